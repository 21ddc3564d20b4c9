//! Benchmark of a change of many nodes: plan, memory, and requests per node.
//!
//! The control plane is etcd and the API server. The benchmark writes nodes and pods as kubelets would,
//! and the ends of Jobs as controllers would. The change pauses after the first batch, so that the
//! plan is about all nodes, and the figures of a changed node come from the batch.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::Context as _;
use futures::stream::{self, StreamExt as _, TryStreamExt as _};
use http::Request;
use kube::Client;
use serde_json::{Value, json};
use tokio::task::JoinSet;

use super::measure::{self, Usage};
use crate::audit::{AuditLog, Events};
use crate::control_plane::{binaries, client, start_patiently};
use crate::kubectl::Kubectl;
use crate::proof;
use crate::repository::TestRepo;
use crate::throwaway::{ControlPlane, Network, Options};

/// Number of pods on each node.
const PODS: usize = 10;
/// Number of images that each node reports, the most of a kubelet.
const IMAGES: usize = 50;
/// One of this many nodes is changed in the batch.
const BATCHES: usize = 10;
/// Maximum number of concurrent requests of the benchmark itself.
const CONCURRENCY: usize = 32;
/// Namespace of the pods and Jobs.
const NAMESPACE: &str = "app";
/// Interval between reads of the Jobs by their player.
const PAUSE: Duration = Duration::from_millis(200);

/// Measured figures.
#[derive(Debug)]
pub struct Figures {
    /// Number of nodes in the plan.
    nodes: usize,
    /// Number of changed nodes.
    changed: usize,
    /// Cost of each plan, and the requests of the last one by verb and resource.
    plans: Vec<Usage>,
    plan_requests: BTreeMap<String, usize>,
    /// Cost of the change of the batch, and its requests.
    change: Usage,
    requests: BTreeMap<String, usize>,
}

/// Measures the plan for `nodes` nodes, and the change of a tenth of them.
pub async fn measure(
    pleach: &Path,
    nodes: usize,
    rounds: usize,
    mut report_line: impl FnMut(&str),
) -> anyhow::Result<Figures> {
    let plane = start_patiently(Options {
        binaries: binaries(),
        controllers: false,
        scheduler: false,
        nodes: 0,
        network: Network::Host,
    })
    .await?;
    let api = client(plane.kubeconfig()).await?;
    report_line(&format!("{nodes} nodes with {PODS} pods each are created"));
    populate(&api, nodes).await?;
    let changed = nodes.div_ceil(BATCHES);
    let kubectl = Kubectl::new(plane.kubectl(), plane.kubeconfig());
    let repository = repository(&proof::cluster_id(&kubectl)?)?;
    write(&repository, "v1", changed)?;
    let folder = tempfile::Builder::new().prefix("pleach-bench-").tempdir()?;
    let run = |args: &[&str], good: &[i32]| {
        let mut command = Command::new(pleach);
        command
            .env_clear()
            .env("PATH", "/usr/bin:/bin")
            .env("HOME", folder.path())
            .env("NO_COLOR", "1")
            .env("KUBECONFIG", plane.kubeconfig())
            .current_dir(repository.path())
            .args(args);
        let output = folder.path().join("output");
        tokio::task::block_in_place(|| measure::run(&mut command, &output, good))
    };
    run(&["apply", "bench", "--yes"], &[0])?;
    write(&repository, "v2", changed)?;
    let mut plans = Vec::new();
    let mut plan_requests = BTreeMap::new();
    for round in 0..rounds.max(1) {
        report_line(&format!("plan, round {}", round + 1));
        let log = from_here(&plane, &api).await?;
        plans.push(run(&["plan", "bench"], &[0])?);
        plan_requests = by_resource(&log.complete(&api).await?);
    }
    report_line(&format!("change of {changed} nodes"));
    let mut player = JoinSet::new();
    player.spawn(play(api.clone()));
    let log = from_here(&plane, &api).await?;
    // Exit code 6: the run pauses after the batch.
    let change = run(&["apply", "bench", "--yes"], &[6])?;
    drop(player);
    let requests = by_resource(&log.complete(&api).await?);
    Ok(Figures {
        nodes,
        changed,
        plans,
        plan_requests,
        change,
        requests,
    })
}

/// Returns the audit log from here on.
async fn from_here(plane: &ControlPlane, api: &Client) -> anyhow::Result<AuditLog> {
    let log = AuditLog::new(plane.audit_log()).from_here()?;
    log.complete(api).await?;
    log.from_here()
}

/// Counts the requests of pleach by verb and resource.
fn by_resource(events: &Events) -> BTreeMap<String, usize> {
    let mut counts = BTreeMap::new();
    for event in &events.by_agent("pleach/").0 {
        let resource = match &event.object_ref {
            Some(object) if object.subresource.is_empty() => object.resource.clone(),
            Some(object) => format!("{}/{}", object.resource, object.subresource),
            None => "discovery".to_owned(),
        };
        *counts
            .entry(format!("{} {resource}", event.verb))
            .or_default() += 1;
    }
    counts
}

/// Creates the namespace, nodes and pods.
async fn populate(api: &Client, nodes: usize) -> anyhow::Result<()> {
    let namespace =
        json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}});
    post(api, "/api/v1/namespaces", &namespace).await?;
    let account =
        json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default"}});
    let in_namespace = |plural: &str| format!("/api/v1/namespaces/{NAMESPACE}/{plural}");
    post(api, &in_namespace("serviceaccounts"), &account).await?;
    create(api, "/api/v1/nodes", (0..nodes).map(node)).await?;
    let pods = (0..nodes * PODS).map(|number| pod(number, number / PODS));
    create(api, &in_namespace("pods"), pods).await
}

async fn create(
    api: &Client,
    path: &str,
    objects: impl Iterator<Item = Value>,
) -> anyhow::Result<()> {
    stream::iter(objects)
        .map(|object| async move { post(api, path, &object).await })
        .buffer_unordered(CONCURRENCY)
        .try_collect::<()>()
        .await
}

async fn post(api: &Client, path: &str, object: &Value) -> anyhow::Result<()> {
    let request = Request::post(path)
        .header("content-type", "application/json")
        .body(serde_json::to_vec(object)?)?;
    api.request_text(request).await?;
    Ok(())
}

async fn merge(api: &Client, path: &str, patch: &Value) -> anyhow::Result<()> {
    let request = Request::patch(path)
        .header("content-type", "application/merge-patch+json")
        .body(serde_json::to_vec(patch)?)?;
    api.request_text(request).await?;
    Ok(())
}

/// Returns a node of version v1, as large as one of a kubelet.
fn node(number: usize) -> Value {
    let name = format!("node-{number:05}");
    let images = (0..IMAGES).map(|image| {
        let digest = format!("{image:064x}");
        json!({"names": [format!("registry.example.org/team/image-{image}@sha256:{digest}"),
            format!("registry.example.org/team/image-{image}:1.4.2")], "sizeBytes": 100_000_000})
    });
    let images: Vec<Value> = images.collect();
    json!({
        "apiVersion": "v1", "kind": "Node",
        "metadata": {"name": name, "labels": {"version": "v1", "kubernetes.io/hostname": name}},
        "status": {
            "conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z",
                "lastHeartbeatTime": "2026-01-01T00:00:00Z", "reason": "KubeletReady", "message": ""}],
            "images": images,
        },
    })
}

/// Returns a pod that ends at once when it is evicted.
fn pod(number: usize, node: usize) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": format!("pod-{number:06}"), "labels": {"app": "app"}, "ownerReferences": [
            {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "app", "uid": "6f9619ff-8b86-d011-b42d-00c04fc964ff",
                "controller": true}]},
        "spec": {"nodeName": format!("node-{node:05}"), "terminationGracePeriodSeconds": 0,
            "containers": [{"name": "app", "image": "app:1"}]},
    })
}

/// Ends each Job with success, and sets the version of its node.
async fn play(api: Client) -> anyhow::Result<()> {
    let path = format!("/apis/batch/v1/namespaces/{NAMESPACE}/jobs");
    let mut played = BTreeSet::new();
    loop {
        tokio::time::sleep(PAUSE).await;
        let open = format!("{path}?fieldSelector=status.successful%3D0");
        let list: Value = api.request(Request::get(open).body(Vec::new())?).await?;
        for job in list["items"].as_array().into_iter().flatten() {
            let name = job["metadata"]["name"].as_str().unwrap_or_default();
            if !played.insert(name.to_owned()) {
                continue;
            }
            let spec = &job["spec"]["template"]["spec"];
            let node = spec["nodeName"].as_str().context("a Job without a node")?;
            let version = json!({"metadata": {"labels": {"version": "v2"}}});
            merge(&api, &format!("/api/v1/nodes/{node}"), &version).await?;
            let now = jiff::Timestamp::now()
                .strftime("%Y-%m-%dT%H:%M:%SZ")
                .to_string();
            let condition = |kind: &str| json!({"type": kind, "status": "True", "lastTransitionTime": now, "lastProbeTime": now});
            let status = json!({"status": {
                "startTime": now, "completionTime": now, "succeeded": 1, "uncountedTerminatedPods": {},
                "conditions": [condition("SuccessCriteriaMet"), condition("Complete")],
            }});
            merge(&api, &format!("{path}/{name}/status"), &status).await?;
        }
    }
}

/// Creates a repository with one environment for a cluster.
fn repository(cluster: &str) -> anyhow::Result<TestRepo> {
    let header = "apiVersion: pleach.dev/v1alpha1\nkind";
    TestRepo::new([
        ("pleach.yaml", format!("{header}: Repository\nid: bench\n")),
        (
            "environments/bench.yaml",
            format!(
                "{header}: Environment\ncluster: {{id: {cluster}}}\nreleases:\n  - {{bundle: app, namespace: {NAMESPACE}}}\n"
            ),
        ),
        (
            "manifests/app/app.yaml",
            "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: app}\n".to_owned(),
        ),
    ])
}

/// Writes and commits the bundle of a version, whose run pauses after one batch.
fn write(repository: &TestRepo, version: &str, batch: usize) -> anyhow::Result<()> {
    let bundle = format!(
        "apiVersion: pleach.dev/v1alpha1\nkind: Bundle\nstages:\n  - name: nodes\n    nodes:\n      parallel: {batch}\n      \
         pauseAfter: {batch}\n      done: \"node.metadata.labels['version'] == '{version}'\"\n      \
         before: [{{taint: \"example.org/drain=draining:NoSchedule\"}}]\n      drain: {{}}\n      job: job.yaml\n"
    );
    let job = format!(
        "apiVersion: batch/v1\nkind: Job\nmetadata: {{name: upgrade}}\nspec:\n  template:\n    spec:\n      \
         restartPolicy: Never\n      containers: [{{name: upgrade, image: \"upgrade:{version}\"}}]\n"
    );
    repository.write("manifests/app/bundle.yaml", bundle)?;
    repository.write("manifests/app/job.yaml", job)?;
    repository.commit(version)?;
    Ok(())
}

#[expect(
    clippy::cast_precision_loss,
    reason = "counts and KiB are far below 2^52"
)]
impl Figures {
    /// Formats the figures as text, with one line per guarantee.
    pub fn text(&self) -> String {
        let mut text = String::new();
        let mut walls: Vec<f64> = self
            .plans
            .iter()
            .map(|plan| plan.wall.as_secs_f64())
            .collect();
        walls.sort_by(f64::total_cmp);
        let wall = walls
            .get(walls.len().saturating_sub(1) / 2)
            .copied()
            .unwrap_or_default();
        let cpu = self.plans.iter().map(|plan| plan.cpu.as_secs_f64());
        let cpu = cpu.fold(f64::INFINITY, f64::min);
        let peak = |usage: &Usage| usage.peak_kib as f64 / 1024.0;
        let plan_peak = self.plans.iter().map(peak).fold(0.0, f64::max);
        let plan_requests: usize = self.plan_requests.values().sum();
        let _never_fails = writeln!(
            text,
            "plan of {} nodes with {PODS} pods each: {wall:.2} s (median of {}), {cpu:.2} s of CPU, {plan_peak:.0} MiB, {plan_requests} requests",
            self.nodes,
            self.plans.len()
        );
        for (what, count) in &self.plan_requests {
            let _never_fails = writeln!(text, "  {count:>6}  {what}");
        }
        let seconds = self.change.wall.as_secs_f64();
        let change_peak = peak(&self.change);
        let per_node = |count: usize| count as f64 / self.changed.max(1) as f64;
        let _never_fails = writeln!(
            text,
            "change of {} of them at a time: {seconds:.1} s, {:.1} s of CPU, {change_peak:.0} MiB; requests per node:",
            self.changed,
            self.change.cpu.as_secs_f64()
        );
        for (what, count) in &self.requests {
            let _never_fails = writeln!(text, "  {:>6.2}  {what}", per_node(*count));
        }
        let count = |what: &str| per_node(self.requests.get(what).copied().unwrap_or_default());
        let patches = count("patch nodes");
        let evictions = count("create pods/eviction");
        let jobs = count("create jobs");
        let reads = [
            "get nodes",
            "list nodes",
            "list pods",
            "get jobs",
            "list jobs",
        ];
        let reads: f64 = reads.iter().map(|what| count(what)).sum();
        let most = 12.0 + 3.0 * seconds;
        for (is_met, what) in [
            (wall < 2.0, format!("plan: {wall:.2} s (less than 2)")),
            (
                plan_peak.max(change_peak) < 300.0,
                format!(
                    "memory: {:.0} MiB (less than 300)",
                    plan_peak.max(change_peak)
                ),
            ),
            (
                patches <= 5.0,
                format!("{patches:.2} patches of each node (at most 5)"),
            ),
            (
                evictions <= PODS as f64,
                format!("{evictions:.2} evictions of each node with {PODS} pods"),
            ),
            (jobs <= 1.0, format!("{jobs:.2} Jobs of each node")),
            (
                reads <= most,
                format!(
                    "{reads:.1} reads of each node (at most 12 and 3 for each second: {most:.0})"
                ),
            ),
        ] {
            let word = if is_met { "met   " } else { "MISSED" };
            let _never_fails = writeln!(text, "{word} {what}");
        }
        text
    }
}
