//! Change of nodes: simulated nodes with the real eviction API, disruption and Job controllers. A
//! thread plays what the Jobs do with their nodes.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::{JoinHandle, ScopedJoinHandle};
use std::time::{Duration, Instant};

use pleach_testkit::faults::{Fault, FaultProxy, Kind, Moment, Rule, Seen};
use rstest::rstest;
use serde_json::Value;

use crate::fleet::{Fleet, Run, object_writes};
use crate::pool::{self, admin};
use crate::samples::BUNDLE;
use crate::stages::nodes as plane;
use crate::{kill, kubectl};

/// Nodes of a test, and the thread that plays their Jobs.
pub(crate) struct Nodes {
    pool: &'static str,
    stop: Arc<AtomicBool>,
    kubelets: Option<JoinHandle<()>>,
}

impl Nodes {
    /// Creates nodes that only pods of the pool tolerate, at version v1.
    pub(crate) fn start(pool: &'static str, count: usize) -> Self {
        for number in 0..count {
            let role = if number + 1 == count {
                "control-plane"
            } else {
                "worker"
            };
            join(pool, number, role);
        }
        pool::await_ready(pool);
        let stop = Arc::new(AtomicBool::new(false));
        let ends = Arc::clone(&stop);
        let kubelets = std::thread::spawn(move || {
            let mut played = BTreeSet::new();
            while !ends.load(Ordering::Relaxed) {
                play_jobs(pool, &mut played);
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
    pub(crate) fn are_free(&self, version: &str, cordoned: &[&str]) {
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

    pub(crate) fn jobs(&self) -> Vec<Value> {
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

/// Creates a node at version v1.
fn join(pool: &str, number: usize, role: &str) {
    pool::join(pool, number, &format!(", role: {role}, version: v1"));
}

/// Sets the version of each node whose Job is complete, once for each Job.
fn play_jobs(pool: &str, played: &mut BTreeSet<String>) {
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
        let uid = job["metadata"]["uid"].as_str().unwrap();
        if is_here && job["status"]["succeeded"] == 1 && played.insert(uid.to_owned()) {
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
pub(crate) fn bundle(pool: &str, version: &str, rest: &str) -> String {
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

pub(crate) fn job(version: &str) -> String {
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
    fleet_of(pool, budget, bundle(pool, "v1", rest))
}

/// Returns a release with this bundle.
pub(crate) fn fleet_of(pool: &'static str, budget: &str, bundle: String) -> Fleet {
    let release = format!("  - {{name: web, bundle: web, namespace: {pool}}}\n");
    let fleet = Fleet::on(
        plane(),
        pool,
        &release,
        &[
            ("manifests/web/bundle.yaml", bundle),
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

/// Returns the phases of the nodes in the status, and the number of changed ones.
fn phases(fleet: &Fleet) -> [String; 2] {
    let release = format!("release.pleach.dev/{}.web", fleet.environment);
    let status = fleet.get(&[&release]).unwrap()["status"].clone();
    let nodes = status["nodes"].as_array().unwrap().iter();
    let phases: Vec<&str> = nodes.map(|node| node["phase"].as_str().unwrap()).collect();
    [phases.join(" "), status["nodeCounts"]["Done"].to_string()]
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
    run.says("another client cordoned it; it stays cordoned");
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
    assert_eq!(phases(&fleet), [["Done"; 3].join(" "), "3".to_owned()]);
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
        .says("the node stays as it is; the next apply continues with it");
    let cordoned = |node: &&Value| node["spec"]["unschedulable"] == true;
    assert_eq!(nodes.all().iter().filter(cordoned).count(), 1);
    assert_eq!(phases(&fleet), ["Failed Pending", "0"]);
    let uninstall = ["uninstall", "pool-fail/web", "--yes"];
    fleet
        .run(&uninstall)
        .ended_with(7)
        .says("in work of stage nodes");
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

/// Returns a release whose pods a budget of another owner keeps from eviction.
fn guarded(pool: &'static str, rest: &str) -> Fleet {
    let fleet = fleet(pool, "", rest);
    let workload = workload(pool, "");
    let (deployment, _) = workload.split_once("---\n").unwrap();
    fleet.write("manifests/web/app.yaml", deployment);
    fleet.commit();
    add_budget(&fleet, "guard", 3);
    fleet.applied();
    fleet
}

fn add_budget(fleet: &Fleet, name: &str, available: usize) {
    let available = format!("--min-available={available}");
    let create = ["create", "pdb", name, "--selector=app=app", &available];
    fleet.kubectl(&[&["-n", fleet.environment], &create[..]].concat());
}

fn delete_budget(fleet: &Fleet, name: &str) {
    fleet.kubectl(&["-n", fleet.environment, "delete", "pdb", name]);
}

/// Waits until a node is as expected.
#[track_caller]
pub(crate) fn wait_for(node: &str, is_expected: impl Fn(&Value) -> bool) {
    let started = Instant::now();
    loop {
        let live = admin(&["get", "node", node, "-o", "json"]);
        let live: Value = serde_json::from_str(&live).unwrap();
        if is_expected(&live) {
            return;
        }
        assert!(started.elapsed() < Duration::from_secs(30), "{live:#}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

fn is_cordoned(node: &Value) -> bool {
    node["spec"]["unschedulable"] == true
}

/// Applies. Once the node is cordoned, calls `act`.
fn meanwhile(fleet: &Fleet, node: &str, act: impl FnOnce()) -> Run {
    std::thread::scope(|scope| {
        let applied: ScopedJoinHandle<'_, Run> = scope.spawn(|| fleet.apply());
        wait_for(node, is_cordoned);
        act();
        applied.join().unwrap()
    })
}

#[test]
fn a_node_that_leaves_is_skipped_and_one_that_joins_waits_for_the_next_apply() {
    let pool = "pool-leave";
    let nodes = Nodes::start(pool, 2);
    let fleet = guarded(pool, DRAIN);
    upgrade(&fleet, DRAIN);
    let run = meanwhile(&fleet, "pool-leave-1", || {
        admin(&["delete", "node", "pool-leave-1"]);
        join(pool, 2, "worker");
        delete_budget(&fleet, "guard");
    });
    run.ended_with(0)
        .says("it was removed from the cluster meanwhile")
        .says("upgraded Node/pool-leave-0");
    let versions: Vec<String> = nodes
        .all()
        .iter()
        .map(|node| node["metadata"]["labels"]["version"].to_string())
        .collect();
    assert_eq!(versions, ["\"v2\"", "\"v1\""]);
    assert_eq!(nodes.jobs().len(), 1);
    fleet.applied().says("upgraded Node/pool-leave-2");
    nodes.are_free("v2", &[]);
    fleet.writes_objects_nowhere(Fleet::applied);
}

#[test]
fn a_second_budget_and_a_user_that_uncordons_stop_a_node_before_its_job() {
    let pool = "pool-meddle";
    let nodes = Nodes::start(pool, 1);
    let fleet = guarded(pool, DRAIN);
    upgrade(&fleet, DRAIN);
    let node = "pool-meddle-0";
    meanwhile(&fleet, node, || add_budget(&fleet, "second", 1))
        .ended_with(7)
        .says("several budgets cover it: guard, second");
    nodes.are_free("v1", &[]);
    delete_budget(&fleet, "second");
    let run = meanwhile(&fleet, node, || {
        admin(&["uncordon", node]);
        wait_for(node, is_cordoned);
        admin(&["uncordon", node]);
    });
    run.ended_with(5)
        .says("another client uncordoned it; it is cordoned again")
        .says("another client uncordoned it twice during its change");
    nodes.are_free("v1", &[]);
    assert_eq!(nodes.jobs().len(), 0);
}

/// Denies that a node with the annotation `lost` gets ready: the simulated kubelet tries at once.
const LOST: &str = r#"
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata: {name: testkit-lost-nodes}
spec:
  matchConstraints:
    resourceRules: [{apiGroups: [""], apiVersions: [v1], operations: [UPDATE], resources: [nodes/status]}]
  matchConditions: [{name: lost, expression: "has(object.metadata.annotations) && 'lost' in object.metadata.annotations"}]
  validations: [{expression: "!object.status.conditions.exists(c, c.type == 'Ready' && c.status == 'True')"}]
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata: {name: testkit-lost-nodes}
spec: {policyName: testkit-lost-nodes, validationActions: [Deny]}
"#;

/// Returns kubectl's arguments to set the condition Ready of a lost node.
fn lose<'a>(node: &'a str, patch: &'a str) -> Vec<&'a str> {
    vec!["patch", "node", node, "--subresource=status", "-p", patch]
}

fn lost(ready: &str) -> String {
    format!(
        r#"{{"metadata": {{"annotations": {{"lost": "true"}}}}, "status": {{"conditions": [{{"type": "Ready", "status": "{ready}"}}]}}}}"#
    )
}

/// Creates the policy for lost nodes and waits until it is in force.
fn hold_lost_nodes(fleet: &Fleet, node: &str) {
    let file = fleet.file("lost.yaml", LOST);
    fleet.kubectl(&["apply", "-f", &file]);
    let ready = lost("True");
    let attempt = [lose(node, &ready), vec!["--dry-run=server"]].concat();
    let started = Instant::now();
    while kubectl::run(plane().kubeconfig(), &attempt)
        .status
        .success()
    {
        assert!(started.elapsed() < Duration::from_secs(30), "{node}");
    }
}

#[test]
fn a_lost_server_a_lost_node_and_a_new_commit_in_the_middle_delay_a_change() {
    let pool = "pool-delay";
    let nodes = Nodes::start(pool, 2);
    let rest = format!("{DRAIN}      timeout: 8s\n");
    let mut fleet = fleet(pool, "maxUnavailable: 3", &rest);
    fleet.applied();
    upgrade(&fleet, &rest);
    let node = "pool-delay-1";
    hold_lost_nodes(&fleet, node);
    let run = meanwhile(&fleet, node, || {
        admin(&lose(node, &lost("Unknown")));
        // The change goes on with the commit of its plan.
        fleet.write("manifests/web/bundle.yaml", &bundle(pool, "v3", DRAIN));
        fleet.write("manifests/web/job.yaml", &job("v3"));
        fleet.commit();
    });
    run.ended_with(6).says("the node is not ready");
    wait_for(node, |node| {
        node["metadata"]["labels"]["version"] == "v2" && is_cordoned(node)
    });
    admin(&["annotate", "node", node, "lost-"]);
    admin(&[
        "wait",
        "--for=condition=Ready",
        "node",
        node,
        "--timeout=30s",
    ]);
    // The server answers nothing for a while, as during a restart. A holder that cannot renew its Lease
    // for ten seconds does not count on it any more.
    let server = fleet.server();
    let proxy = FaultProxy::start(&server).unwrap();
    let lost: Arc<OnceLock<Instant>> = Arc::default();
    let begin = Arc::clone(&lost);
    let is_lost = move |_: &Seen| {
        let since = lost.get().map(Instant::elapsed);
        since.is_some_and(|since| since < Duration::from_secs(12))
    };
    proxy.add(Rule::on(is_lost, Fault::Drop));
    let begins = Fault::hook(Moment::AfterAnswer, move || {
        let _already = begin.set(Instant::now());
    });
    proxy.add(
        Rule::on(
            |seen| seen.path.starts_with("/apis/batch/v1/") && seen.kind == Kind::Write,
            begins,
        )
        .nth(1),
    );
    fleet.through(proxy.kubeconfig());
    fleet.applied();
    fleet.through(server);
    nodes.are_free("v3", &[]);
    // One Job of the earlier commit for the first node, then one for each.
    assert_eq!(nodes.jobs().len(), 3);
}

#[test]
fn a_job_whose_image_cannot_be_pulled_fails_soon_and_makes_way_for_the_next() {
    let pool = "pool-image";
    let nodes = Nodes::start(pool, 1);
    let fleet = fleet(pool, "maxUnavailable: 3", DRAIN);
    fleet.edit_environment("bundle: web,", "bundle: web, failFast: 1s,");
    fleet.commit();
    fleet.applied();
    upgrade(&fleet, DRAIN);
    let labels = "    metadata: {labels: {job: upgrade}, annotations: {testkit.pleach.dev/crash: wait}}\n    spec:\n      restartPolicy";
    fleet.edit(
        "manifests/web/job.yaml",
        "    spec:\n      restartPolicy",
        labels,
    );
    fleet.commit();
    let run = meanwhile(&fleet, "pool-image-0", || {
        let pod = [
            "-n",
            pool,
            "wait",
            "--for=create",
            "pod",
            "-l",
            "job=upgrade",
            "--timeout=30s",
        ];
        fleet.kubectl(&pod);
        let name = ["-n", pool, "get", "pod", "-l", "job=upgrade", "-o", "name"];
        let name = fleet.kubectl(&name);
        let status = r#"{"status": {"containerStatuses": [{"name": "upgrade", "image": "", "imageID": "", "ready": false, "restartCount": 0, "state": {"waiting": {"reason": "ImagePullBackOff"}}}]}}"#;
        fleet.kubectl(&[
            "-n",
            pool,
            "patch",
            name.trim(),
            "--subresource=status",
            "-p",
            status,
        ]);
    });
    run.ended_with(6)
        .says("ImagePullBackOff")
        .says("the node stays as it is; the next apply continues with it");
    upgrade(&fleet, DRAIN);
    fleet.applied();
    nodes.are_free("v2", &[]);
}

#[test]
fn a_change_pauses_after_the_first_node_and_the_controller_asks_before_the_rest() {
    let pool = "pool-pause";
    let nodes = Nodes::start(pool, 2);
    let rest = "      pauseAfter: 1\n";
    let fleet = fleet(pool, "maxUnavailable: 1", rest);
    fleet.applied();
    let before = "before: [{patch: {metadata: {labels: {work: now, version: null}}}}, {job: before.yaml, timeout: 30s}, ";
    let changed = bundle(pool, "v2", rest).replace("before: [", before);
    fleet.write("manifests/web/bundle.yaml", &changed);
    fleet.write("manifests/web/job.yaml", &job("v2"));
    let beside = job("v1").replace("name: upgrade", "name: before");
    fleet.write("manifests/web/before.yaml", &beside);
    fleet.extend_environment("sync: {interval: 1h}\n");
    fleet.push("v2");
    fleet.run(&["plan", pool]).ended_with(0).says(
        "· pause   after Node/pool-pause-1  (a person checks it; the next run changes the rest)",
    );
    let run = fleet.apply().ended_with(6);
    let run = run.says("paused after pool-pause-1");
    run.says("`pleach apply pool-pause` shows the rest");
    let state = || -> Vec<String> {
        let read = |node: &Value| {
            let metadata = &node["metadata"];
            let labels = &metadata["labels"];
            let mark = &metadata["annotations"]["pleach.dev/node-upgrade"];
            assert_eq!((&labels["work"], mark), (&Value::Null, &Value::Null));
            format!("{} {}", metadata["name"], labels["version"]).replace('"', "")
        };
        nodes.all().iter().map(read).collect()
    };
    assert_eq!(state(), ["pool-pause-0 v1", "pool-pause-1 v2"]);
    assert_eq!(nodes.jobs().len(), 2);
    let release = "release.pleach.dev/pool-pause.web";
    let conditions = fleet.get(&[release]).unwrap()["status"]["conditions"].clone();
    let mut conditions = conditions.as_array().unwrap().iter();
    let ready = conditions.find(|one| one["type"] == "Ready").unwrap();
    assert_eq!(
        (&ready["status"], &ready["reason"]),
        (&"False".into(), &"Paused".into())
    );

    let running = fleet.runs();
    let said = fleet.until_condition("Stalled", "AwaitingApproval");
    assert_eq!(state(), ["pool-pause-0 v1", "pool-pause-1 v2"]);
    let effects = fleet.plan()["effects"].as_str().unwrap().to_owned();
    assert!(said.contains(&effects), "{said}");
    let plan = fleet.run(&["plan", pool, "--verbose"]);
    plan.says("pool-pause-1 changed already; this plan changes the rest");
    let approval = format!("pleach.dev/approved={effects}");
    fleet.kubectl(&["annotate", release, &approval]);
    fleet.until_condition("Ready", "Deployed");
    nodes.are_free("v2", &[]);
    assert_eq!(nodes.jobs().len(), 4);

    join(pool, 2, "worker");
    let target = "pool-pause/web";
    fleet.run(&["sync", target]).ended_with(0);
    let said = fleet.until_condition("Drifted", "NodesBehind");
    assert!(
        said.starts_with("stage nodes: pool-pause-2 behind"),
        "{said}"
    );
    assert_eq!(nodes.jobs().len(), 4);
    fleet.run(&["sync", target, "--nodes"]).ended_with(0);
    let is_free =
        |node: &Value| node["metadata"]["annotations"]["pleach.dev/node-upgrade"].is_null();
    wait_for("pool-pause-2", |node| {
        node["metadata"]["labels"]["version"] == "v2" && is_free(node)
    });
    running.stopped();
}
