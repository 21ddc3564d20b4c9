//! Change of three nodes with real kubelets, two at a time: evicted pods end and start elsewhere, Jobs
//! run on their node, a kubelet stops and starts in the middle, and the API server restarts.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::pin::pin;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use futures::TryStreamExt as _;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, ListParams, WatchEvent, WatchParams};
use pleach_testkit::control_plane::client;
use pleach_testkit::isolated::inside_nodes;
use pleach_testkit::kubectl::Kubectl;
use pleach_testkit::program::Program;
use pleach_testkit::proof;
use pleach_testkit::repository::TestRepo;
use pleach_testkit::throwaway::nodes::POD_IMAGE;
use pleach_testkit::throwaway::{Component, ControlPlane};
use serde_json::Value;
use tokio::task::JoinSet;

use crate::Cluster;

/// Number of the nodes.
const NODES: usize = 3;
/// The node whose kubelet is stopped in the middle of its change. It is the last one: for half a minute
/// after a restart of the API server, the scheduler ignores a new cordon.
const STOPPED: (u8, &str) = (2, "node-2");
/// Time without an API server. Its Lease expires after 15 seconds.
const OUTAGE: Duration = Duration::from_secs(16);

/// Returns the bundle of a version.
fn bundle(version: &str) -> String {
    format!(
        "apiVersion: pleach.dev/v1alpha1\nkind: Bundle\nstages:\n  - name: nodes\n    nodes:\n      parallel: 2\n      \
         done: \"node.metadata.labels['version'] == '{version}'\"\n      \
         before: [{{taint: \"drain.example.org/now=true:NoSchedule\"}}]\n      \
         drain: {{}}\n      job: job.yaml\n      timeout: 3m\n"
    )
}

fn job(version: &str) -> String {
    format!(
        "apiVersion: batch/v1\nkind: Job\nmetadata: {{name: upgrade}}\nspec:\n  template:\n    spec:\n      \
         restartPolicy: Never\n      containers: [{{name: upgrade, image: \"{POD_IMAGE}\", args: [exit, \"0\"], \
         env: [{{name: VERSION, value: {version}}}]}}]\n"
    )
}

/// A workload with a budget, and a pod that ignores SIGTERM.
const APP: &str = "\
apiVersion: apps/v1
kind: Deployment
metadata: {name: app}
spec:
  replicas: 3
  selector: {matchLabels: {app: app}}
  template:
    metadata: {labels: {app: app}}
    spec:
      terminationGracePeriodSeconds: 1
      containers: [{name: app, image: \"IMAGE\", args: [serve, \":8080\"], readinessProbe: {httpGet: {port: 8080}, periodSeconds: 1}}]
---
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata: {name: app}
spec: {maxUnavailable: 1, selector: {matchLabels: {app: app}}}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: stubborn}
spec:
  replicas: 1
  selector: {matchLabels: {app: stubborn}}
  template:
    metadata: {labels: {app: stubborn}}
    spec:
      terminationGracePeriodSeconds: 2
      containers: [{name: stubborn, image: \"IMAGE\", args: [stay]}]
";

fn items(kubectl: &Kubectl, args: &[&str]) -> Vec<Value> {
    kubectl.list(args).unwrap_or_default()
}

/// Pod as a watch shows it.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Seen {
    app: String,
    node: Option<String>,
    is_available: bool,
    /// Whether its containers have ended.
    has_ended: bool,
}

/// All changes of pods, in the order of the API server.
#[derive(Debug, Default)]
struct Record {
    pods: BTreeMap<String, Seen>,
    /// Smallest number of available pods of the workload.
    fewest: Option<usize>,
    /// Pods that were on a node when its Job started.
    left: Vec<String>,
    /// Exit codes of the pod that ignores SIGTERM.
    exits: BTreeSet<i32>,
}

impl Record {
    fn note(&mut self, pod: &Pod, is_gone: bool, is_listed: bool) {
        let metadata = &pod.metadata;
        let label = |key: &str| metadata.labels.as_ref()?.get(key).cloned();
        let status = pod.status.clone().unwrap_or_default();
        let conditions = status.conditions.unwrap_or_default();
        let is_ready = conditions
            .iter()
            .any(|one| one.type_ == "Ready" && one.status == "True");
        let seen = Seen {
            app: label("app").unwrap_or_default(),
            node: pod.spec.as_ref().and_then(|spec| spec.node_name.clone()),
            is_available: is_ready && metadata.deletion_timestamp.is_none(),
            has_ended: matches!(status.phase.as_deref(), Some("Succeeded" | "Failed")),
        };
        if seen.app == "stubborn" {
            let containers = status.container_statuses.unwrap_or_default().into_iter();
            let ended = containers.filter_map(|one| one.state?.terminated);
            self.exits.extend(ended.map(|ended| ended.exit_code));
        }
        let uid = metadata.uid.clone().unwrap_or_default();
        let is_new = !is_listed && !self.pods.contains_key(&uid);
        let is_job = label("batch.kubernetes.io/job-name").is_some();
        if is_job && is_new && !is_gone {
            let here = self.pods.values().filter(|one| one.node == seen.node);
            let left = here.filter(|one| !one.app.is_empty() && !one.has_ended);
            self.left.extend(left.map(|one| format!("{one:?}")));
        }
        if is_gone {
            self.pods.remove(&uid);
        } else {
            self.pods.insert(uid, seen);
        }
    }

    /// Counts the available pods.
    fn count(&mut self) {
        let pods = self.pods.values();
        let available = pods.filter(|one| one.app == "app" && one.is_available);
        let available = available.count();
        self.fewest = Some(
            self.fewest
                .map_or(available, |fewest| fewest.min(available)),
        );
    }
}

/// Follows the pods of the release until it is dropped. An API server that does not answer is asked
/// again.
async fn follow(pods: Api<Pod>, record: Arc<Mutex<Record>>) {
    let mut version = None;
    loop {
        if let Err(_restart) = follow_once(&pods, &record, &mut version).await {
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    }
}

async fn follow_once(
    pods: &Api<Pod>,
    record: &Mutex<Record>,
    version: &mut Option<String>,
) -> anyhow::Result<()> {
    let from = if let Some(version) = version.clone() {
        version
    } else {
        let list = pods.list(&ListParams::default()).await?;
        let mut record = record.lock().unwrap();
        record.pods.clear();
        for pod in &list.items {
            record.note(pod, false, true);
        }
        record.count();
        list.metadata.resource_version.unwrap_or_default()
    };
    *version = Some(from.clone());
    let mut events = pin!(pods.watch(&WatchParams::default(), &from).await?);
    while let Some(event) = events.try_next().await? {
        let (pod, is_gone) = match event {
            WatchEvent::Added(pod) | WatchEvent::Modified(pod) => (pod, false),
            WatchEvent::Deleted(pod) => (pod, true),
            WatchEvent::Bookmark(_) => continue,
            WatchEvent::Error(error) => {
                *version = None;
                anyhow::bail!("{error:?}");
            }
        };
        version.clone_from(&pod.metadata.resource_version);
        let mut record = record.lock().unwrap();
        record.note(&pod, is_gone, false);
        record.count();
    }
    Ok(())
}

/// Sets the condition Ready of a node whose kubelet does not run, as the node lifecycle controller
/// does. That controller does not run here.
fn lose(kubectl: &Kubectl, node: &str) -> anyhow::Result<()> {
    let now = Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ");
    let patch = format!(
        r#"{{"status": {{"conditions": [{{"type": "Ready", "status": "Unknown", "reason": "NodeStatusUnknown", "lastTransitionTime": "{now}"}}]}}}}"#
    );
    kubectl.run(&["patch", "node", node, "--subresource=status", "-p", &patch])?;
    Ok(())
}

/// Time of the change of the node that was stopped.
#[derive(Debug, Default)]
struct Stopped {
    /// Whether the node was cordoned while it was not ready.
    was_cordoned: bool,
    ready_at: Option<Instant>,
    uncordoned_at: Option<Instant>,
}

/// Plays what the Jobs do with their nodes. The Job of one node stops its kubelet; when that runs
/// again, the API server is lost for a while.
fn play(
    plane: &ControlPlane,
    kubectl: &Kubectl,
    played: &mut BTreeSet<String>,
) -> anyhow::Result<Option<Stopped>> {
    let mut result = None;
    for job in items(kubectl, &["get", "jobs", "-n", "web"]) {
        let spec = &job["spec"]["template"]["spec"];
        let node = spec["nodeName"].as_str().unwrap_or_default();
        if job["status"]["succeeded"] != 1 || !played.insert(node.to_owned()) {
            continue;
        }
        let env = spec["containers"][0]["env"].as_array().unwrap();
        let version = env.iter().find(|one| one["name"] == "VERSION").unwrap();
        let version = format!("version={}", version["value"].as_str().unwrap());
        let (number, name) = STOPPED;
        if node == name {
            plane.kill(Component::Kubelet(number))?;
            lose(kubectl, name)?;
        }
        kubectl.run(&["label", "node", node, &version, "--overwrite"])?;
        if node == name {
            result = Some(stop_and_start(plane, kubectl)?);
        }
    }
    Ok(result)
}

/// Starts the kubelet of the stopped node, restarts the API server, and waits until the node is
/// uncordoned.
fn stop_and_start(plane: &ControlPlane, kubectl: &Kubectl) -> anyhow::Result<Stopped> {
    let (number, name) = STOPPED;
    let mut stopped = Stopped::default();
    let node = || -> anyhow::Result<Value> {
        let nodes = kubectl.list(&["get", "nodes"])?;
        let mut nodes = nodes.into_iter();
        let node = nodes.find(|node| node["metadata"]["name"] == name);
        node.ok_or_else(|| anyhow::anyhow!("there is no {name}"))
    };
    stopped.was_cordoned = node()?["spec"]["unschedulable"] == true;
    plane.start_again(Component::Kubelet(number))?;
    let begun = Instant::now();
    while stopped.uncordoned_at.is_none() && begun.elapsed() < crate::PATIENCE {
        std::thread::sleep(Duration::from_millis(200));
        let Ok(node) = node() else { continue };
        let conditions = node["status"]["conditions"].as_array();
        let mut conditions = conditions.into_iter().flatten();
        let is_ready = conditions.any(|one| one["type"] == "Ready" && one["status"] == "True");
        if is_ready && stopped.ready_at.is_none() {
            stopped.ready_at = Some(Instant::now());
            plane.kill(Component::ApiServer)?;
            std::thread::sleep(OUTAGE);
            plane.start_again(Component::ApiServer)?;
        }
        if node["spec"]["unschedulable"].is_null() && stopped.ready_at.is_some() {
            stopped.uncordoned_at = Some(Instant::now());
        }
    }
    Ok(stopped)
}

#[tokio::test(flavor = "multi_thread")]
async fn nodes_are_drained_and_changed_by_their_jobs() {
    if !inside_nodes("upgrade::nodes_are_drained_and_changed_by_their_jobs").unwrap() {
        return;
    }
    let cluster = Cluster::start(NODES).await.unwrap();
    let kubectl = &cluster.kubectl;
    kubectl
        .run(&["label", "nodes", "--all", "version=v1"])
        .unwrap();
    let id = proof::cluster_id(kubectl).unwrap();
    let environment = format!(
        "apiVersion: pleach.dev/v1alpha1\nkind: Environment\ncluster: {{id: {id}}}\nreleases:\n\
         - {{name: web, bundle: web, namespace: web, timeout: 60s}}\n"
    );
    let repo = TestRepo::new([
        (
            "pleach.yaml",
            "apiVersion: pleach.dev/v1alpha1\nkind: Repository\nid: nodes\n",
        ),
        ("environments/dev.yaml", environment.as_str()),
        ("manifests/web/bundle.yaml", &bundle("v1")),
        ("manifests/web/job.yaml", &job("v1")),
        ("manifests/web/app.yaml", &APP.replace("IMAGE", POD_IMAGE)),
    ])
    .unwrap();
    repo.commit("start").unwrap();
    let program = Path::new(env!("CARGO_BIN_EXE_pleach"));
    let pleach = Program::new(program, repo.path(), cluster.plane.kubeconfig());
    let apply = ["apply", "dev", "--yes"];
    pleach.run(&apply).await.unwrap().ended_with(0).unwrap();
    let pods = |kubectl: &Kubectl| -> BTreeSet<String> {
        let pods = items(kubectl, &["get", "pods", "-n", "web", "-l", "app"]);
        pods.iter()
            .map(|pod| pod["metadata"]["uid"].to_string())
            .collect()
    };
    let before = pods(kubectl);
    assert_eq!(before.len(), 4);

    repo.write("manifests/web/bundle.yaml", bundle("v2"))
        .unwrap();
    repo.write("manifests/web/job.yaml", job("v2")).unwrap();
    repo.commit("upgrade").unwrap();
    let record: Arc<Mutex<Record>> = Arc::default();
    let api = Api::namespaced(client(cluster.plane.kubeconfig()).await.unwrap(), "web");
    let mut following = JoinSet::new();
    following.spawn(follow(api, Arc::clone(&record)));
    let kubectl = Kubectl::new(cluster.plane.kubectl(), cluster.plane.kubeconfig());
    let plane = cluster.plane;
    let kubelets = std::thread::spawn(move || {
        let (mut played, mut stopped) = (BTreeSet::new(), None);
        let begun = Instant::now();
        while played.len() < NODES && begun.elapsed() < crate::PATIENCE {
            stopped = play(&plane, &kubectl, &mut played).unwrap().or(stopped);
            std::thread::sleep(Duration::from_millis(100));
        }
        (plane, kubectl, stopped)
    });
    let run = pleach.run(&apply).await.unwrap();
    let (_plane, kubectl, stopped) = kubelets.join().unwrap();
    let run = run.ended_with(0).unwrap();
    following.shutdown().await;

    let record = record.lock().unwrap();
    assert_eq!(record.fewest, Some(2), "a budget was violated\n{run}");
    assert_eq!(record.left, [""; 0], "pods beside a Job\n{run}");
    assert!(record.exits.contains(&137), "{:?}\n{run}", record.exits);
    let stopped = stopped.unwrap();
    assert!(stopped.was_cordoned, "{stopped:?}");
    let waited = stopped.uncordoned_at.unwrap() - stopped.ready_at.unwrap();
    assert!(waited > Duration::from_secs(25), "{waited:?}\n{run}");
    assert!(pods(&kubectl).is_disjoint(&before), "each pod was evicted");
    for node in items(&kubectl, &["get", "nodes"]) {
        assert_eq!(node["metadata"]["labels"]["version"], "v2", "{node:#}");
        assert!(node["spec"]["unschedulable"].is_null(), "{node:#}");
        assert!(node["spec"]["taints"].is_null(), "{node:#}");
        let mark = &node["metadata"]["annotations"]["pleach.dev/node-upgrade"];
        assert!(mark.is_null(), "{node:#}");
    }
    let jobs = items(&kubectl, &["get", "jobs", "-n", "web"]);
    let on: BTreeSet<&str> = jobs
        .iter()
        .filter_map(|job| job["spec"]["template"]["spec"]["nodeName"].as_str())
        .collect();
    assert_eq!((jobs.len(), on.len()), (NODES, NODES), "{jobs:#?}");
    let ran = [
        "get",
        "pods",
        "-n",
        "web",
        "-l",
        "batch.kubernetes.io/job-name",
    ];
    let ran = items(&kubectl, &ran);
    let on: BTreeSet<&str> = ran
        .iter()
        .filter_map(|pod| pod["spec"]["nodeName"].as_str())
        .collect();
    assert_eq!((ran.len(), on.len()), (NODES, NODES), "each Job ran once");
}
