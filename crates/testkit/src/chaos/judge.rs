//! Checks the invariants of a move after each change that a watch reports.
//!
//! Resource versions count the writes of the whole store, so changes of several kinds have one
//! order. After each change, the permissions of every running pod are compared with the needs of
//! its version.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context as _, bail};
use futures::{StreamExt as _, TryStreamExt as _};
use kube::api::{
    ApiResource, DynamicObject, GroupVersionKind, ListParams, WatchEvent, WatchParams,
};
use kube::{Api, Client};
use serde_json::{Value, json};
use tokio::task::JoinSet;

use crate::generated::{Moving, Side};

/// Watched kinds: group, version, kind and plural.
const KINDS: [(&str, &str, &str, &str); 6] = [
    ("", "v1", "Pod", "pods"),
    ("apps", "v1", "Deployment", "deployments"),
    ("rbac.authorization.k8s.io", "v1", "Role", "roles"),
    (
        "rbac.authorization.k8s.io",
        "v1",
        "RoleBinding",
        "rolebindings",
    ),
    (
        "rbac.authorization.k8s.io",
        "v1",
        "ClusterRole",
        "clusterroles",
    ),
    (
        "rbac.authorization.k8s.io",
        "v1",
        "ClusterRoleBinding",
        "clusterrolebindings",
    ),
];

/// Maximum delay of the last changes.
const LAG: Duration = Duration::from_millis(500);

/// Maximum number of violations in a message.
const SHOWN: usize = 10;

/// Change reported by a watch.
#[derive(Debug, Clone)]
pub(super) struct Change {
    /// Version of the object, which orders changes of all kinds. 0 for the initial objects.
    version: u64,
    kind: &'static str,
    is_gone: bool,
    object: Value,
}

impl Change {
    /// Returns the namespace of the changed pod if it is running.
    pub(super) fn pod_runs_in(&self) -> Option<&str> {
        let runs = !self.is_gone && self.object["status"]["phase"] == "Running";
        let namespace = self.object["metadata"]["namespace"].as_str();
        namespace.filter(|_| self.kind == "Pod" && runs)
    }

    #[cfg(test)]
    pub(super) fn told_at(&self) -> u64 {
        self.version
    }
}

/// Recorder of all watched changes.
pub(super) struct Judge {
    changes: Arc<Mutex<Vec<Change>>>,
    watches: JoinSet<anyhow::Result<()>>,
}

impl Judge {
    /// Starts the watches. Existing objects are reported first.
    pub(super) async fn start(client: &Client) -> anyhow::Result<Self> {
        let changes: Arc<Mutex<Vec<Change>>> = Arc::default();
        let mut watches = JoinSet::new();
        for (group, version, kind, plural) in KINDS {
            let gvk = GroupVersionKind::gvk(group, version, kind);
            let resource = ApiResource::from_gvk_with_plural(&gvk, plural);
            let api: Api<DynamicObject> = Api::all_with(client.clone(), &resource);
            let list = api.list(&ListParams::default()).await?;
            for object in list.items {
                let object = serde_json::to_value(object)?;
                lock(&changes).push(Change {
                    version: 0,
                    kind,
                    is_gone: false,
                    object,
                });
            }
            let from = list.metadata.resource_version.unwrap_or_default();
            watches.spawn(follow(api, kind, from, Arc::clone(&changes)));
        }
        Ok(Self { changes, watches })
    }

    /// Stops the watches and returns all changes in order.
    pub(super) async fn changes(mut self) -> anyhow::Result<Vec<Change>> {
        tokio::time::sleep(LAG).await;
        if let Some(ended) = self.watches.try_join_next() {
            ended??;
            bail!("a watch ended by itself");
        }
        self.watches.shutdown().await;
        let mut changes = std::mem::take(&mut *lock(&self.changes));
        changes.sort_by_key(|change| change.version);
        Ok(changes)
    }
}

fn lock(changes: &Mutex<Vec<Change>>) -> std::sync::MutexGuard<'_, Vec<Change>> {
    changes.lock().unwrap_or_else(PoisonError::into_inner)
}

fn note(
    changes: &Mutex<Vec<Change>>,
    kind: &'static str,
    is_gone: bool,
    object: &DynamicObject,
) -> anyhow::Result<()> {
    let object = serde_json::to_value(object)?;
    let version = object["metadata"]["resourceVersion"].as_str();
    let version = version.and_then(|version| version.parse().ok());
    lock(changes).push(Change {
        version: version.context("an object has no version")?,
        kind,
        is_gone,
        object,
    });
    Ok(())
}

async fn follow(
    api: Api<DynamicObject>,
    kind: &'static str,
    mut from: String,
    changes: Arc<Mutex<Vec<Change>>>,
) -> anyhow::Result<()> {
    loop {
        let events = api.watch(&WatchParams::default(), &from).await?;
        let mut events = events.into_stream().boxed();
        while let Some(event) = events.next().await {
            let (object, is_gone) = match event? {
                WatchEvent::Added(object) | WatchEvent::Modified(object) => (object, false),
                WatchEvent::Deleted(object) => (object, true),
                WatchEvent::Bookmark(_) => continue,
                WatchEvent::Error(status) => bail!("the watch of {kind} failed: {status:?}"),
            };
            note(&changes, kind, is_gone, &object)?;
            from = object.metadata.resource_version.unwrap_or_default();
        }
    }
}

/// Permission of an account: namespace, group, resource, name and verb.
type Right = (String, String, String, String, String);

/// Permissions by namespace and name of the account.
type Permissions = BTreeMap<(String, String), BTreeSet<Right>>;

/// Namespace of a cluster-wide permission.
const EVERYWHERE: &str = "*";

/// Returns the permissions that roles and bindings grant to accounts. Rules with `*` are not
/// supported.
fn permissions<'a>(objects: impl Iterator<Item = &'a Value>) -> Permissions {
    let mut roles: BTreeMap<(String, String, String), &Value> = BTreeMap::new();
    let mut bindings = Vec::new();
    for object in objects {
        let kind = text(&object["kind"]);
        if kind.ends_with("RoleBinding") {
            bindings.push(object);
        } else if kind.ends_with("Role") {
            let (namespace, name) = place(object);
            roles.insert((kind, namespace, name), &object["rules"]);
        }
    }
    let mut permissions = Permissions::new();
    for binding in bindings {
        let (namespace, _) = place(binding);
        let role = &binding["roleRef"];
        let of = match role["kind"].as_str() {
            Some("Role") => namespace.clone(),
            _ => String::new(),
        };
        let Some(rules) = roles.get(&(text(&role["kind"]), of, text(&role["name"]))) else {
            continue;
        };
        let scope = match namespace.as_str() {
            "" => EVERYWHERE.to_owned(),
            _ => namespace.clone(),
        };
        for subject in array(&binding["subjects"]) {
            if subject["kind"] == "ServiceAccount" {
                let account = (text(&subject["namespace"]), text(&subject["name"]));
                let has = permissions.entry(account).or_default();
                has.extend(array(rules).iter().flat_map(|rule| atoms(&scope, rule)));
            }
        }
    }
    permissions
}

fn atoms(scope: &str, rule: &Value) -> Vec<Right> {
    let all = [json!("")];
    let names = match array(&rule["resourceNames"]) {
        [] => &all[..],
        names => names,
    };
    let mut atoms = Vec::new();
    for group in array(&rule["apiGroups"]) {
        for resource in array(&rule["resources"]) {
            for name in names {
                for verb in array(&rule["verbs"]) {
                    let [group, resource, name, verb] = [group, resource, name, verb].map(text);
                    atoms.push((scope.to_owned(), group, resource, name, verb));
                }
            }
        }
    }
    atoms
}

fn may(has: &BTreeSet<Right>, needed: &Right) -> bool {
    let mut everywhere = needed.clone();
    EVERYWHERE.clone_into(&mut everywhere.0);
    has.contains(needed) || has.contains(&everywhere)
}

/// Running pod.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Running {
    side: Side,
    account: (String, String),
    component: String,
    /// For an agent, the name of its application and its node.
    agent: Option<(String, String)>,
}

/// Checked state of the cluster.
struct Court<'a> {
    moving: &'a Moving,
    needs: [Permissions; 2],
    pods: BTreeMap<(String, String), Running>,
    access: BTreeMap<(&'static str, String, String), Value>,
    /// Controllers with desired replicas, by side.
    controllers: BTreeMap<(String, String), (Side, bool)>,
    wrong: BTreeSet<String>,
}

/// Returns the violations as text, limited to a readable number.
pub(super) fn judge(moving: &Moving, changes: &[Change]) -> Vec<String> {
    let wrong = violations(moving, changes);
    let count = wrong.len();
    let mut shown: Vec<String> = wrong.into_iter().take(SHOWN).collect();
    if count > SHOWN {
        shown.push(format!("and {} more", count - SHOWN));
    }
    shown
}

/// Returns all violations.
pub(super) fn violations(moving: &Moving, changes: &[Change]) -> BTreeSet<String> {
    let needs = [Side::Old, Side::New].map(|side| permissions(moving.bundle.objects(side).iter()));
    let mut court = Court {
        moving,
        needs,
        pods: BTreeMap::new(),
        access: BTreeMap::new(),
        controllers: BTreeMap::new(),
        wrong: BTreeSet::new(),
    };
    let begun = changes.partition_point(|change| change.version == 0);
    for change in &changes[..begun] {
        court.learn(change);
    }
    court.together(0);
    court.is_served(0);
    for change in &changes[begun..] {
        if court.learn(change) {
            court.together(change.version);
            court.is_served(change.version);
        }
    }
    court.wrong
}

impl Court<'_> {
    fn side(&self, namespace: &str) -> Option<Side> {
        if namespace == self.moving.from {
            Some(Side::Old)
        } else if namespace == self.moving.to {
            Some(Side::New)
        } else {
            None
        }
    }

    /// Adds a change. Returns whether the state must be checked after it.
    fn learn(&mut self, change: &Change) -> bool {
        let (namespace, name) = place(&change.object);
        match change.kind {
            "Pod" => {
                let Some(side) = self.side(&namespace) else {
                    return false;
                };
                let key = (namespace, name);
                if change.is_gone || change.object["status"]["phase"] != "Running" {
                    self.pods.remove(&key);
                    return false;
                }
                let running = self.running(side, &key.0, &change.object);
                self.pods.insert(key, running.clone()) != Some(running)
            }
            "Deployment" => {
                let controller = &self.moving.product.controller;
                let Some(side) = self.side(&namespace).filter(|_| name == *controller) else {
                    return false;
                };
                let runs = !change.is_gone && change.object["spec"]["replicas"] != 0;
                self.controllers.insert((namespace, name), (side, runs));
                true
            }
            kind => {
                let key = (kind, namespace, name);
                if change.is_gone {
                    self.access.remove(&key);
                } else {
                    let mut object = change.object.clone();
                    object["kind"] = json!(kind);
                    self.access.insert(key, object);
                }
                true
            }
        }
    }

    fn running(&self, side: Side, namespace: &str, pod: &Value) -> Running {
        let spec = &pod["spec"];
        let labels = &pod["metadata"]["labels"];
        let account = spec["serviceAccountName"].as_str().unwrap_or("default");
        let owner = &pod["metadata"]["ownerReferences"][0]["kind"];
        Running {
            side,
            account: (namespace.to_owned(), account.to_owned()),
            component: text(&labels[&self.moving.product.component_label]),
            agent: (owner == "DaemonSet").then(|| (text(&labels["app"]), text(&spec["nodeName"]))),
        }
    }

    /// Checks that no two controllers, and no two agents on a node, have different versions.
    fn together(&mut self, version: u64) {
        let is_running = |side| self.controllers.values().any(|one| *one == (side, true));
        if is_running(Side::Old) && is_running(Side::New) {
            self.wrong.insert(format!(
                "at {version}: controllers of both versions have replicas"
            ));
        }
        let controller = &self.moving.product.controller;
        let sides: BTreeSet<bool> = self
            .pods
            .values()
            .filter(|pod| pod.component == *controller)
            .map(|pod| pod.side == Side::New)
            .collect();
        if sides.len() > 1 {
            self.wrong
                .insert(format!("at {version}: controllers of both versions run"));
        }
        let mut agents: BTreeMap<&(String, String), Side> = BTreeMap::new();
        for pod in self.pods.values() {
            let Some(agent) = &pod.agent else { continue };
            if *agents.entry(agent).or_insert(pod.side) != pod.side {
                let (name, node) = agent;
                self.wrong.insert(format!(
                    "at {version}: agents {name} of both versions run on {node}"
                ));
            }
        }
    }

    /// Checks that every running pod has the permissions of its version.
    fn is_served(&mut self, version: u64) {
        let has = permissions(self.access.values());
        for ((namespace, name), pod) in &self.pods {
            let needs = &self.needs[usize::from(pod.side == Side::New)];
            let nothing = BTreeSet::new();
            let has = has.get(&pod.account).unwrap_or(&nothing);
            let needed = needs.get(&pod.account).unwrap_or(&nothing);
            let lacking = needed.iter().find(|right| !may(has, right));
            if let Some((scope, group, resource, _, verb)) = lacking {
                let account = &pod.account.1;
                self.wrong.insert(format!(
                    "at {version}: pod {namespace}/{name} runs, and its account {account} may not {verb} {resource}.{group} in {scope}"
                ));
            }
        }
    }
}

/// Returns namespace and name of an object.
fn place(object: &Value) -> (String, String) {
    let metadata = &object["metadata"];
    (text(&metadata["namespace"]), text(&metadata["name"]))
}

fn array(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

#[cfg(test)]
pub(super) mod tests;
