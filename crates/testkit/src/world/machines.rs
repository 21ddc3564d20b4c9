//! Simulated product that runs virtual machines, and the nodes that its upgrade changes.
//!
//! It acts for the bundle `manifests/machines`:
//! - Each machine is a custom resource with a pod and a disruption budget. When its node gets the
//!   taint, the machine migrates: a second pod starts elsewhere, then the first one ends. Meanwhile
//!   two budgets cover its pods.
//! - The pods of node Jobs fail or succeed. After a success, the node has the kubelet version that
//!   the Job names, and the volumes on it are rebuilt.
//!
//! A [`Ledger`] counts everything that an upgrade must not do. Controllers and scheduler are real;
//! kubelets are simulated. Dropping the world stops everything.

mod jobs;
mod ledger;
mod migrate;
mod populate;
mod watch;

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::Context as _;
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio::task::JoinSet;

pub use ledger::Ledger;

use super::rest::Rest;
use super::{connection, hold};
use watch::{Followed, Seen};

/// Label `app` of the pods of node Jobs.
const JOB: &str = "upgrade-node";
/// Label of the pods of a machine; its value is the name of the machine.
const MACHINE: &str = "machine";
/// Key of the taint that starts migrations.
const TAINT: &str = "machines.example.org/drain";
/// Variable of a node Job with the kubelet version that it installs.
const VERSION: &str = "KUBELET_VERSION";
/// Maximum number of concurrent migrations from a node.
const AT_ONCE: usize = 5;
/// Time until the volumes of a node are rebuilt.
const REBUILD: Duration = Duration::from_millis(500);
/// Delay before a failed request is repeated, and maximum number of repetitions.
const RETRY: (Duration, usize) = (Duration::from_millis(200), 100);

/// Settings of the world.
#[derive(Debug, Clone)]
pub struct Terms {
    /// Namespace of the machines.
    pub namespace: String,
    /// Nodes whose first Job fails.
    pub failing: BTreeSet<String>,
}

/// Running world. Dropping it ends it.
pub struct Machines {
    shared: Arc<Shared>,
    tasks: JoinSet<anyhow::Result<()>>,
}

/// State shared by all parts of the world.
struct Shared {
    admin: Rest,
    namespace: String,
    /// Nodes whose next Job fails.
    failing: Mutex<BTreeSet<String>>,
    ledger: Mutex<Ledger>,
    /// Live pods of machines, by name.
    pods: tokio::sync::watch::Sender<BTreeMap<String, MachinePod>>,
}

/// Live pod of a machine.
#[derive(Debug, Clone, PartialEq, Eq)]
struct MachinePod {
    machine: String,
    node: Option<String>,
    is_ready: bool,
}

/// Request of the world.
#[derive(Clone, Copy)]
enum Call<'a> {
    Get(&'a str),
    Create(&'a str, &'a Value),
    Merge(&'a str, &'a Value),
    Delete(&'a str),
}

/// Result of a task of the world.
enum Done {
    /// No machine is left on a node.
    Evacuated(String),
    /// A Job was played.
    Played,
}

impl Machines {
    /// Starts the world on a control plane, as administrator.
    pub async fn start(kubeconfig: &Path, terms: Terms) -> anyhow::Result<Self> {
        let config = connection(kubeconfig).await?;
        let admin = Rest::new(&config, "testkit-world")?;
        hold::install(&admin, "app", &[JOB]).await?;
        let shared = Arc::new(Shared {
            namespace: terms.namespace,
            failing: Mutex::new(terms.failing),
            ledger: Mutex::default(),
            pods: tokio::sync::watch::Sender::new(BTreeMap::new()),
            admin,
        });
        let (sender, seen) = mpsc::unbounded_channel();
        let mut tasks = JoinSet::new();
        for kind in Followed::ALL {
            let client = shared.admin.client();
            tasks.spawn(watch::follow(client, kind, sender.clone()));
        }
        tasks.spawn(run(Arc::clone(&shared), seen));
        Ok(Self { shared, tasks })
    }

    /// Sets the kubelet version of all nodes.
    pub async fn set_kubelets(&self, version: &str) -> anyhow::Result<()> {
        let nodes = self.shared.list("/api/v1/nodes").await?;
        for node in &nodes {
            self.shared.set_kubelet(name_of(node), version).await?;
        }
        Ok(())
    }

    /// Creates running machines, their volumes, and the settings of the user.
    pub async fn populate(&self, count: usize) -> anyhow::Result<()> {
        populate::all(&self.shared, count).await
    }

    /// Changes the status of an object of the product.
    pub async fn set_status(&self, plural: &str, name: &str, status: &Value) -> anyhow::Result<()> {
        self.shared.set_status(plural, name, status).await
    }

    /// Creates an object of the product.
    pub async fn create(&self, plural: &str, kind: &str, name: &str) -> anyhow::Result<()> {
        let object = self.shared.object(kind, name, &json!({}));
        self.shared.create(plural, &object).await.map(drop)
    }

    /// Returns the counts so far.
    pub fn ledger(&self) -> Ledger {
        self.shared.ledger().clone()
    }

    /// Stops everything. Fails if a part of the world itself failed.
    pub async fn stop(mut self) -> anyhow::Result<Ledger> {
        let ended = self.tasks.try_join_next();
        self.tasks.shutdown().await;
        if let Some(ended) = ended {
            ended??;
            anyhow::bail!("a part of the world ended by itself");
        }
        Ok(self.ledger())
    }
}

/// Reacts to changes of nodes and pods until it is dropped.
async fn run(
    shared: Arc<Shared>,
    mut changes: mpsc::UnboundedReceiver<Seen>,
) -> anyhow::Result<()> {
    let mut tasks: JoinSet<anyhow::Result<Done>> = JoinSet::new();
    let mut evacuating: BTreeSet<String> = BTreeSet::new();
    let mut played: HashSet<String> = HashSet::new();
    loop {
        tokio::select! {
            seen = changes.recv() => {
                let seen = seen.context("all watches ended")?;
                shared.note(&seen);
                let object = &seen.object;
                match seen.kind {
                    _ if seen.gone => {}
                    Followed::Nodes if is_tainted(object) => {
                        let node = name_of(object).to_owned();
                        if evacuating.insert(node.clone()) {
                            tasks.spawn(migrate::evacuate(Arc::clone(&shared), node));
                        }
                    }
                    Followed::Pods if jobs::is_due(object) && played.insert(uid_of(object)) => {
                        tasks.spawn(jobs::play(Arc::clone(&shared), object.clone()));
                    }
                    Followed::Pods if jobs::preloads(object) => {
                        tasks.spawn(jobs::preload(Arc::clone(&shared), object.clone()));
                    }
                    Followed::Nodes | Followed::Pods | Followed::Budgets => {}
                }
            }
            Some(done) = tasks.join_next() => match done?? {
                Done::Evacuated(node) => {
                    evacuating.remove(&node);
                }
                Done::Played => {}
            },
        }
    }
}

impl Shared {
    fn ledger(&self) -> MutexGuard<'_, Ledger> {
        self.ledger.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records a change.
    fn note(&self, seen: &Seen) {
        let object = &seen.object;
        match seen.kind {
            Followed::Nodes => self.ledger().node(object, seen.gone),
            Followed::Budgets => self.ledger().budget(object, seen.gone),
            Followed::Pods => {
                let Some(machine) = object["metadata"]["labels"][MACHINE].as_str() else {
                    return;
                };
                let is_ready = !seen.gone && is_ready(object);
                self.ledger().pod(machine, name_of(object), is_ready);
                let pod = MachinePod {
                    machine: machine.to_owned(),
                    node: object["spec"]["nodeName"].as_str().map(str::to_owned),
                    is_ready,
                };
                self.pods.send_modify(|pods| {
                    if seen.gone {
                        pods.remove(name_of(object));
                    } else {
                        pods.insert(name_of(object).to_owned(), pod);
                    }
                });
            }
        }
    }

    /// Sends a request, again while it fails for now. An object that does not exist is `null`.
    async fn send(&self, call: Call<'_>) -> anyhow::Result<Value> {
        let mut failures = 0;
        loop {
            let answer = match call {
                Call::Get(path) => self.admin.get(path).await.map(Option::unwrap_or_default),
                Call::Create(path, object) => self.admin.create(path, object).await,
                Call::Merge(path, change) => self.admin.merge(path, change).await,
                Call::Delete(path) => self.admin.delete(path).await.map(|()| Value::Null),
            };
            match answer {
                Ok(answer) => return Ok(answer),
                Err(failure) if failure.code() == Some(404) => return Ok(Value::Null),
                Err(failure) => {
                    failures += 1;
                    let is_final = failure.code().is_some_and(|code| code < 500 && code != 429);
                    if is_final || failures > RETRY.1 {
                        return Err(failure.into());
                    }
                    tokio::time::sleep(RETRY.0).await;
                }
            }
        }
    }

    /// Returns the path of a collection of the product.
    fn path(&self, plural: &str) -> String {
        let namespace = &self.namespace;
        format!("/apis/machines.example.org/v1/namespaces/{namespace}/{plural}")
    }

    /// Returns a custom resource of the product.
    fn object(&self, kind: &str, name: &str, spec: &Value) -> Value {
        json!({
            "apiVersion": "machines.example.org/v1",
            "kind": kind,
            "metadata": {"name": name, "namespace": self.namespace},
            "spec": spec,
        })
    }

    /// Creates a custom resource of the product.
    async fn create(&self, plural: &str, object: &Value) -> anyhow::Result<Value> {
        let path = self.path(plural);
        self.send(Call::Create(&path, object)).await
    }

    async fn set_status(&self, plural: &str, name: &str, status: &Value) -> anyhow::Result<()> {
        let path = format!("{}/{name}/status", self.path(plural));
        let status = json!({"status": status});
        self.send(Call::Merge(&path, &status)).await.map(drop)
    }

    async fn set_kubelet(&self, node: &str, version: &str) -> anyhow::Result<()> {
        let path = format!("/api/v1/nodes/{node}/status");
        let status = json!({"status": {"nodeInfo": {"kubeletVersion": version}}});
        self.send(Call::Merge(&path, &status)).await.map(drop)
    }

    /// Returns the items of a list. A kind that is not served has none.
    async fn list(&self, path: &str) -> anyhow::Result<Vec<Value>> {
        let mut list = self.send(Call::Get(path)).await?;
        match list["items"].take() {
            Value::Array(items) => Ok(items),
            _ => Ok(Vec::new()),
        }
    }
}

fn name_of(object: &Value) -> &str {
    object["metadata"]["name"].as_str().unwrap_or_default()
}

fn uid_of(object: &Value) -> String {
    object["metadata"]["uid"]
        .as_str()
        .unwrap_or_default()
        .to_owned()
}

fn is_tainted(node: &Value) -> bool {
    let mut taints = node["spec"]["taints"].as_array().into_iter().flatten();
    taints.any(|taint| taint["key"] == TAINT)
}

/// Returns whether an object is ready and not being deleted.
fn is_ready(object: &Value) -> bool {
    let conditions = object["status"]["conditions"].as_array();
    let mut conditions = conditions.into_iter().flatten();
    object["metadata"]["deletionTimestamp"].is_null()
        && conditions.any(|condition| condition["type"] == "Ready" && condition["status"] == "True")
}
