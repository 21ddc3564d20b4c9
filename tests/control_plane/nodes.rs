//! Change of nodes: simulated nodes with the real eviction API, disruption and Job controllers. A
//! thread plays what the Jobs do with their nodes.

use std::collections::BTreeSet;
use std::io::Write as _;
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use pleach_testkit::faults::{Kind, Moment, Seen};
use rstest::rstest;
use serde_json::Value;

use crate::fleet::{Fleet, object_writes};
use crate::samples::BUNDLE;
use crate::stages::nodes as plane;
use crate::{kill, kubectl};

/// Nodes of a test, and the thread that plays their Jobs.
struct Nodes {
    pool: &'static str,
    stop: Arc<AtomicBool>,
    kubelets: Option<JoinHandle<()>>,
}

impl Nodes {
    /// Creates nodes that only pods of the pool tolerate, at version v1.
    fn start(pool: &'static str, count: usize) -> Self {
        for number in 0..count {
            let role = if number + 1 == count {
                "control-plane"
            } else {
                "worker"
            };
            let node = format!(
                "apiVersion: v1\nkind: Node\nmetadata: {{name: {pool}-{number}, labels: {{pool: {pool}, role: {role}, version: v1}}}}\nspec: {{taints: [{{key: pool, value: {pool}, effect: NoSchedule}}]}}\n"
            );
            let mut create = kubectl::command(plane().kubeconfig(), &["create", "-f", "-"]);
            let mut create = create.stdin(Stdio::piped()).spawn().unwrap();
            let mut input = create.stdin.take().unwrap();
            input.write_all(node.as_bytes()).unwrap();
            drop(input);
            assert!(create.wait().unwrap().success());
        }
        let selector = format!("pool={pool}");
        let ready = [
            "wait",
            "--for=condition=Ready",
            "node",
            "--timeout=30s",
            "-l",
        ];
        admin(&[&ready[..], &[&selector]].concat());
        let stop = Arc::new(AtomicBool::new(false));
        let ends = Arc::clone(&stop);
        let kubelets = std::thread::spawn(move || {
            while !ends.load(Ordering::Relaxed) {
                play_jobs(pool);
                std::thread::sleep(Duration::from_millis(200));
            }
        });
        Self {
            pool,
            stop,
            kubelets: Some(kubelets),
        }
    }

    fn all(&self) -> Vec<Value> {
        let selector = format!("pool={}", self.pool);
        let list = admin(&["get", "nodes", "-l", &selector, "-o", "json"]);
        let list: Value = serde_json::from_str(&list).unwrap();
        list["items"].as_array().unwrap().clone()
    }

    /// Asserts that all nodes have a version, and nothing of pleach but `cordoned`.
    #[track_caller]
    fn are_free(&self, version: &str, cordoned: &[&str]) {
        for node in self.all() {
            let name = node["metadata"]["name"].as_str().unwrap();
            assert_eq!(node["metadata"]["labels"]["version"], version, "{name}");
            let mark = &node["metadata"]["annotations"]["pleach.dev/node-upgrade"];
            assert!(mark.is_null(), "{name}: {mark}");
            let is_cordoned = node["spec"]["unschedulable"] == true;
            assert_eq!(is_cordoned, cordoned.contains(&name), "{name}");
            let keys: BTreeSet<&str> = node["spec"]["taints"]
                .as_array()
                .into_iter()
                .flatten()
                .map(|taint| taint["key"].as_str().unwrap())
                .filter(|key| !key.starts_with("node.kubernetes.io/"))
                .collect();
            assert_eq!(keys, ["pool"].into(), "{name}");
        }
    }

    fn jobs(&self) -> Vec<Value> {
        let list = admin(&["get", "jobs", "-n", self.pool, "-o", "json"]);
        let list: Value = serde_json::from_str(&list).unwrap();
        list["items"].as_array().unwrap().clone()
    }
}

impl Drop for Nodes {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(kubelets) = self.kubelets.take() {
            drop(kubelets.join());
        }
    }
}

#[track_caller]
fn admin(args: &[&str]) -> String {
    let output = kubectl::run(plane().kubeconfig(), args);
    assert!(output.status.success(), "kubectl {args:?}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// Sets the version of each node whose Job is complete.
fn play_jobs(pool: &str) {
    let args = [
        "get",
        "jobs",
        "-A",
        "-l",
        "pleach.dev/node-upgrade",
        "-o",
        "json",
    ];
    let output = kubectl::run(plane().kubeconfig(), &args);
    let list: Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
    for job in list["items"].as_array().into_iter().flatten() {
        let spec = &job["spec"]["template"]["spec"];
        let is_here = spec["nodeName"].as_str().unwrap().starts_with(pool);
        if is_here && job["status"]["succeeded"] == 1 {
            let env = spec["containers"][0]["env"].as_array().unwrap();
            let version = env.iter().find(|one| one["name"] == "VERSION").unwrap();
            let version = format!("version={}", version["value"].as_str().unwrap());
            let node = spec["nodeName"].as_str().unwrap();
            kubectl::run(
                plane().kubeconfig(),
                &["label", "node", node, &version, "--overwrite"],
            );
        }
    }
}

/// Returns the bundle; `rest` are further lines of `nodes`.
fn bundle(pool: &str, version: &str, rest: &str) -> String {
    format!(
        "\
{BUNDLE}stages:
  - name: nodes
    nodes:
      select: {{labels: {{pool: {pool}}}}}
      first: [{{labels: {{role: control-plane}}}}]
      done: \"node.metadata.labels['version'] == '{version}'\"
      before: [{{taint: \"drain.example.org/now=true:NoSchedule\"}}]
      job: job.yaml
{rest}"
    )
}

fn job(version: &str) -> String {
    format!(
        "\
apiVersion: batch/v1
kind: Job
metadata: {{name: upgrade}}
spec:
  template:
    spec:
      restartPolicy: Never
      containers: [{{name: upgrade, image: \"upgrade:1\", env: [{{name: VERSION, value: {version}}}]}}]
"
    )
}

/// Returns a workload on the nodes, with a budget.
fn workload(pool: &str, budget: &str) -> String {
    format!(
        "\
apiVersion: apps/v1
kind: Deployment
metadata: {{name: app}}
spec:
  replicas: 3
  selector: {{matchLabels: {{app: app}}}}
  template:
    metadata: {{labels: {{app: app}}}}
    spec:
      nodeSelector: {{pool: {pool}}}
      tolerations: [{{key: pool, operator: Exists}}]
      containers: [{{name: app, image: \"app:1\"}}]
---
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata: {{name: app}}
spec: {{{budget}, selector: {{matchLabels: {{app: app}}}}}}
"
    )
}

fn fleet(pool: &'static str, budget: &str, rest: &str) -> Fleet {
    let release = format!("  - {{name: web, bundle: web, namespace: {pool}}}\n");
    let fleet = Fleet::on(
        plane(),
        pool,
        &release,
        &[
            ("manifests/web/bundle.yaml", bundle(pool, "v1", rest)),
            ("manifests/web/job.yaml", job("v1")),
            ("manifests/web/app.yaml", workload(pool, budget)),
        ],
    );
    fleet.create_namespace(pool);
    fleet
}

/// Commits the second version.
fn upgrade(fleet: &Fleet, rest: &str) {
    fleet.write(
        "manifests/web/bundle.yaml",
        &bundle(fleet.environment, "v2", rest),
    );
    fleet.write("manifests/web/job.yaml", &job("v2"));
    fleet.commit();
}

const DRAIN: &str = "      drain: {timeout: 60s}\n";

#[test]
fn nodes_are_drained_changed_and_released_one_after_the_other() {
    let nodes = Nodes::start("pool-turn", 3);
    let fleet = fleet("pool-turn", "maxUnavailable: 1", DRAIN);
    fleet.applied();
    assert_eq!(nodes.jobs().len(), 0, "nodes that are done are left alone");
    admin(&["cordon", "pool-turn-0"]);
    upgrade(&fleet, DRAIN);
    fleet.run(&["plan", "pool-turn"]).ended_with(0).says(
        "~ upgrade Node/pool-turn-2  (taint drain.example.org/now=true:NoSchedule, cordon, drain, Job of manifests/web/job.yaml, uncordon)",
    );
    let (run, events) = fleet.watched(|fleet| fleet.apply().ended_with(0));
    run.says("somebody else cordoned it; it stays cordoned");
    nodes.are_free("v2", &["pool-turn-0"]);
    let writes = object_writes(&events);
    let changed = writes
        .iter()
        .filter_map(|line| line.strip_prefix("patch nodes "));
    let mut order: Vec<&str> = changed
        .filter_map(|line| line.split_whitespace().next())
        .collect();
    assert_eq!(order.len(), 11, "{writes:#?}");
    order.dedup();
    assert_eq!(
        order,
        ["pool-turn-2", "pool-turn-0", "pool-turn-1"],
        "{writes:#?}"
    );
    assert_eq!(nodes.jobs().len(), 3);
    assert!(
        writes.iter().any(|line| line.contains("eviction")),
        "{writes:#?}"
    );
    fleet.writes_objects_nowhere(|fleet| fleet.apply().ended_with(0));
}

#[test]
fn a_budget_that_refuses_is_named_and_everything_is_undone() {
    let nodes = Nodes::start("pool-refuse", 1);
    let drain = "      drain: {timeout: 4s}\n";
    let fleet = fleet("pool-refuse", "minAvailable: 3", drain);
    fleet.applied();
    upgrade(&fleet, drain);
    fleet
        .apply()
        .ended_with(6)
        .says("The disruption budget app needs 3 healthy pods and has 3 currently");
    nodes.are_free("v1", &[]);
    assert_eq!(nodes.jobs().len(), 0);
    // A budget that never allows an eviction is refused before anything is written.
    fleet.edit(
        "manifests/web/app.yaml",
        "minAvailable: 3",
        "maxUnavailable: 0",
    );
    fleet.commit();
    fleet.kubectl(&[
        "-n",
        "pool-refuse",
        "patch",
        "pdb",
        "app",
        "--type=merge",
        "-p",
        r#"{"spec": {"minAvailable": null, "maxUnavailable": 0}}"#,
    ]);
    fleet.writes_nothing(|fleet| {
        fleet
            .apply()
            .ended_with(7)
            .says("PodDisruptionBudget.policy/pool-refuse/app never allow")
    });
}

#[test]
fn a_failed_job_keeps_the_node_cordoned_and_runs_again() {
    let nodes = Nodes::start("pool-fail", 2);
    let fleet = fleet("pool-fail", "maxUnavailable: 1", DRAIN);
    fleet.applied();
    upgrade(&fleet, DRAIN);
    // Its namespace admits no pods, so the Job reaches its deadline.
    fleet.create_namespace("pool-fail-jobs");
    let quota = [
        "create",
        "quota",
        "none",
        "--hard=pods=0",
        "-n",
        "pool-fail-jobs",
    ];
    fleet.kubectl(&quota);
    let metadata = "metadata: {name: upgrade}\nspec:\n";
    let doomed =
        "metadata: {name: upgrade, namespace: pool-fail-jobs}\nspec:\n  activeDeadlineSeconds: 1\n";
    fleet.edit("manifests/web/job.yaml", metadata, doomed);
    fleet.commit();
    fleet
        .apply()
        .ended_with(6)
        .says("failed: ")
        .says("the node stays as it is; the next apply goes on with it");
    let cordoned = |node: &&Value| node["spec"]["unschedulable"] == true;
    assert_eq!(nodes.all().iter().filter(cordoned).count(), 1);
    fleet.kubectl(&["delete", "quota", "none", "-n", "pool-fail-jobs"]);
    fleet.edit("manifests/web/job.yaml", "  activeDeadlineSeconds: 1\n", "");
    fleet.commit();
    fleet.applied();
    nodes.are_free("v2", &[]);
}

/// A node is patched for its taint, its cordon, the begin of its Job, its release and its end.
#[rstest]
#[case::taint("kill-taint", "patch /api/v1/nodes/")]
#[case::eviction("kill-evict", "/eviction")]
#[case::job("kill-job", "post /apis/batch/v1/")]
fn a_killed_change_is_continued(#[case] pool: &'static str, #[case] at: &'static str) {
    let nodes = Nodes::start(pool, 2);
    // The API server counts a pod as disrupted for two minutes if its eviction was interrupted.
    let mut fleet = fleet(pool, "maxUnavailable: 3", DRAIN);
    fleet.applied();
    upgrade(&fleet, DRAIN);
    for moment in [Moment::BeforeForwarding, Moment::BeforeAnswer] {
        let is_about = move |seen: &Seen| {
            let request = format!("{} {}", seen.method.as_str().to_lowercase(), seen.path);
            seen.kind == Kind::Write && request.contains(at)
        };
        let args = ["apply", pool, "--yes"];
        assert!(kill::at(&mut fleet, &args, moment, is_about));
        fleet.forget_killed_runs();
    }
    fleet.applied();
    nodes.are_free("v2", &[]);
    assert_eq!(nodes.jobs().len(), 2, "one Job for each node");
}
