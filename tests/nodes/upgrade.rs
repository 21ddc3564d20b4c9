//! Change of nodes with real kubelets: evicted pods end and start elsewhere, and Jobs run on their
//! node.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use pleach_testkit::isolated::inside_nodes;
use pleach_testkit::kubectl::Kubectl;
use pleach_testkit::program::Program;
use pleach_testkit::proof;
use pleach_testkit::repository::TestRepo;
use pleach_testkit::throwaway::nodes::POD_IMAGE;
use serde_json::Value;

use crate::Cluster;

/// Returns the bundle of a version.
fn bundle(version: &str) -> String {
    format!(
        "apiVersion: pleach.dev/v1alpha1\nkind: Bundle\nstages:\n  - name: nodes\n    nodes:\n      \
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

const APP: &str = "\
apiVersion: apps/v1
kind: Deployment
metadata: {name: app}
spec:
  replicas: 2
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
";

fn items(kubectl: &Kubectl, args: &[&str]) -> Vec<Value> {
    kubectl.list(args).unwrap_or_default()
}

/// Plays what Jobs do with their nodes, and counts the moments without an available pod.
fn play(kubectl: &Kubectl, outages: &AtomicUsize) {
    for job in items(kubectl, &["get", "jobs", "-n", "web"]) {
        let spec = &job["spec"]["template"]["spec"];
        if job["status"]["succeeded"] == 1 {
            let env = spec["containers"][0]["env"].as_array().unwrap();
            let version = env.iter().find(|one| one["name"] == "VERSION").unwrap();
            let version = format!("version={}", version["value"].as_str().unwrap());
            let node = spec["nodeName"].as_str().unwrap();
            drop(kubectl.run(&["label", "node", node, &version, "--overwrite"]));
        }
    }
    let app = items(kubectl, &["get", "deployments", "-n", "web"]);
    let available = app.first().map(|app| &app["status"]["availableReplicas"]);
    if available.is_some_and(|available| available.as_i64().unwrap_or_default() < 1) {
        outages.fetch_add(1, Ordering::Relaxed);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn nodes_are_drained_and_changed_by_their_jobs() {
    if !inside_nodes("upgrade::nodes_are_drained_and_changed_by_their_jobs").unwrap() {
        return;
    }
    let cluster = Cluster::start(2).await.unwrap();
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
        let pods = items(kubectl, &["get", "pods", "-n", "web", "-l", "app=app"]);
        pods.iter()
            .map(|pod| pod["metadata"]["uid"].to_string())
            .collect()
    };
    let before = pods(kubectl);
    assert_eq!(before.len(), 2);

    repo.write("manifests/web/bundle.yaml", bundle("v2"))
        .unwrap();
    repo.write("manifests/web/job.yaml", job("v2")).unwrap();
    repo.commit("upgrade").unwrap();
    let (stop, outages) = (
        Arc::new(AtomicBool::new(false)),
        Arc::new(AtomicUsize::new(0)),
    );
    let kubelets = {
        let (stop, outages) = (Arc::clone(&stop), Arc::clone(&outages));
        let kubectl = Kubectl::new(cluster.plane.kubectl(), cluster.plane.kubeconfig());
        std::thread::spawn(move || {
            while !stop.load(Ordering::Relaxed) {
                play(&kubectl, &outages);
                std::thread::sleep(Duration::from_millis(100));
            }
        })
    };
    let run = pleach.run(&apply).await.unwrap();
    stop.store(true, Ordering::Relaxed);
    kubelets.join().unwrap();
    run.ended_with(0).unwrap();

    assert_eq!(outages.load(Ordering::Relaxed), 0, "a budget was violated");
    assert!(pods(kubectl).is_disjoint(&before), "each pod was evicted");
    for node in items(kubectl, &["get", "nodes"]) {
        assert_eq!(node["metadata"]["labels"]["version"], "v2", "{node:#}");
        assert!(node["spec"]["unschedulable"].is_null(), "{node:#}");
        assert!(node["spec"]["taints"].is_null(), "{node:#}");
    }
    let jobs = items(kubectl, &["get", "jobs", "-n", "web"]);
    assert_eq!(jobs.len(), 2, "{jobs:#?}");
    let ran = items(
        kubectl,
        &[
            "get",
            "pods",
            "-n",
            "web",
            "-l",
            "batch.kubernetes.io/job-name",
        ],
    );
    let on: BTreeSet<&str> = ran
        .iter()
        .filter_map(|pod| pod["spec"]["nodeName"].as_str())
        .collect();
    assert_eq!(on.len(), 2, "each Job ran on its node");
}
