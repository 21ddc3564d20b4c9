//! Preloading of images on simulated nodes. A thread plays what kubelets do with the pods.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use pleach_testkit::faults::{Kind, Moment, Seen};
use serde_json::{Value, json};

use crate::fleet::{Fleet, object_writes};
use crate::pool::{admin, await_ready, join};
use crate::samples::BUNDLE;
use crate::stages::nodes as plane;
use crate::{kill, kubectl};

/// Free space that the pods report, in bytes.
const FREE: &str = "2147483648";

/// Nodes of a test, and the thread that plays the pods on them.
struct Nodes {
    pool: &'static str,
    stop: Arc<AtomicBool>,
    kubelets: Option<JoinHandle<()>>,
}

impl Nodes {
    fn start(pool: &'static str) -> Self {
        join(pool, 0, "");
        join(pool, 1, "");
        await_ready(pool);
        let stop = Arc::new(AtomicBool::new(false));
        let ends = Arc::clone(&stop);
        let kubelets = std::thread::spawn(move || {
            while !ends.load(Ordering::Relaxed) {
                play_pods(pool);
                std::thread::sleep(Duration::from_millis(200));
            }
        });
        Self {
            pool,
            stop,
            kubelets: Some(kubelets),
        }
    }

    /// Returns the number of nodes that are remembered as preloaded, each with its value.
    fn remembered(&self) -> Vec<String> {
        let selector = format!("pool={}", self.pool);
        let list = admin(&["get", "nodes", "-l", &selector, "-o", "json"]);
        let list: Value = serde_json::from_str(&list).unwrap();
        let nodes = list["items"].as_array().unwrap().iter();
        let annotations = nodes.filter_map(|node| node["metadata"]["annotations"].as_object());
        annotations
            .flatten()
            .filter(|(key, _)| key.starts_with("preload.pleach.dev/"))
            .map(|(_, value)| value.to_string())
            .collect()
    }

    #[track_caller]
    fn has_no_pods_left(&self) {
        let label = "pleach.dev/preload";
        let gone = ["wait", "--for=delete", "pod", "--timeout=30s", "-l", label];
        admin(&[&gone[..], &["-n", self.pool]].concat());
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

/// Ends the pods of a pool. The image `app:absent` cannot be pulled.
fn play_pods(pool: &str) {
    let label = "pleach.dev/preload";
    let args = ["get", "pods", "-n", pool, "-l", label, "-o", "json"];
    let output = kubectl::run(plane().kubeconfig(), &args);
    let list: Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
    for pod in list["items"].as_array().into_iter().flatten() {
        let name = pod["metadata"]["name"].as_str().unwrap();
        let is_space = pod["metadata"]["labels"][label] == "space";
        let is_absent = pod["spec"]["volumes"].to_string().contains("app:absent");
        let (phase, state) = match (is_space, is_absent) {
            (true, _) => (
                "Succeeded",
                json!({"terminated": {"exitCode": 0, "message": FREE}}),
            ),
            (_, true) => (
                "Pending",
                json!({"waiting": {"reason": "ErrImagePull", "message": "app:absent: not found"}}),
            ),
            _ => ("Succeeded", json!({"terminated": {"exitCode": 0}})),
        };
        let container = json!({"name": "preload", "image": "pleach:1", "imageID": "", "ready": false, "restartCount": 0, "state": state});
        let patch = json!({"status": {"phase": phase, "containerStatuses": [container]}});
        let args = ["patch", "pod", name, "-n", pool, "--subresource=status"];
        let patch = patch.to_string();
        let args = [&args[..], &["--type=merge", "-p", &patch]].concat();
        kubectl::run(plane().kubeconfig(), &args);
    }
}

fn bundle(pool: &str, preload: &str) -> String {
    format!(
        "{BUNDLE}stages:\n  - name: images\n    before: [definitions]\n    preload: {{select: {{labels: {{pool: {pool}}}}}, {preload}}}\n"
    )
}

/// Returns a workload without pods.
fn app(image: &str) -> String {
    format!(
        "\
apiVersion: apps/v1
kind: Deployment
metadata: {{name: app}}
spec:
  replicas: 0
  selector: {{matchLabels: {{app: app}}}}
  template:
    metadata: {{labels: {{app: app}}}}
    spec:
      containers: [{{name: app, image: \"{image}\"}}]
"
    )
}

fn fleet(pool: &'static str, preload: &str, files: &[(&str, String)]) -> Fleet {
    let release = format!("  - {{name: web, bundle: web, namespace: {pool}, failFast: 1s}}\n");
    let mut all = vec![
        ("manifests/web/bundle.yaml", bundle(pool, preload)),
        ("manifests/web/app.yaml", app("app:1")),
    ];
    all.extend(files.iter().map(|(path, text)| (*path, text.clone())));
    let fleet = Fleet::on(plane(), pool, &release, &all);
    fleet.create_namespace(pool);
    fleet
}

fn image(fleet: &Fleet) -> String {
    let path = "jsonpath={.spec.template.spec.containers[0].image}";
    admin(&["get", "deploy", "app", "-n", fleet.environment, "-o", path])
}

#[test]
fn images_are_preloaded_before_anything_else_is_changed() {
    let nodes = Nodes::start("pre-images");
    let of =
        |space: &str| format!("images: release, runner: \"pleach:1\", parallel: 2, space: {space}");
    let fleet = fleet("pre-images", &of("1Gi"), &[]);
    fleet
        .run(&["plan", "pre-images"])
        .ended_with(0)
        .says("~ preload Node/pre-images-0  (1Gi free, 1 image)");
    fleet.applied();
    let first = nodes.remembered();
    assert_eq!(first.len(), 2);
    nodes.has_no_pods_left();
    fleet.writes_objects_nowhere(|fleet| fleet.apply().ended_with(0));

    fleet.write("manifests/web/app.yaml", &app("app:absent"));
    fleet.commit();
    fleet
        .apply()
        .ended_with(6)
        .says("Node/pre-images-0")
        .says("not preloaded: app:absent: ErrImagePull: app:absent: not found");
    assert_eq!(image(&fleet), "app:1");
    nodes.has_no_pods_left();

    fleet.write("manifests/web/app.yaml", &app("app:2"));
    fleet.write(
        "manifests/web/bundle.yaml",
        &bundle("pre-images", &of("3Gi")),
    );
    fleet.commit();
    fleet
        .apply()
        .ended_with(6)
        .says("2Gi are free for images, and `space` needs 3Gi");
    assert_eq!(nodes.remembered(), first, "nothing was preloaded meanwhile");
    fleet.write(
        "manifests/web/bundle.yaml",
        &bundle("pre-images", &of("2Gi")),
    );
    fleet.commit();
    fleet.applied();
    assert_eq!(image(&fleet), "app:2");
    nodes.has_no_pods_left();
}

#[test]
fn a_killed_preloading_is_continued() {
    let nodes = Nodes::start("pre-kill");
    let mut fleet = fleet("pre-kill", "images: release, runner: \"pleach:1\"", &[]);
    for moment in [Moment::BeforeForwarding, Moment::BeforeAnswer] {
        let is_about = |seen: &Seen| {
            let is_creation = seen.method.as_str().eq_ignore_ascii_case("post");
            seen.kind == Kind::Write && is_creation && seen.path.contains("/pods")
        };
        let args = ["apply", "pre-kill", "--yes"];
        assert!(kill::at(&mut fleet, &args, moment, is_about));
        fleet.forget_killed_runs();
    }
    let label = "pleach.dev/preload";
    let ended = "--for=jsonpath={.status.phase}=Succeeded";
    let ended = ["wait", ended, "pod", "--timeout=30s", "-l", label];
    admin(&[&ended[..], &["-n", nodes.pool]].concat());
    let (_, events) = fleet.watched(|fleet| fleet.apply().ended_with(0));
    let writes = object_writes(&events);
    let deletions = writes
        .iter()
        .filter(|line| line.starts_with("delete pods "));
    // The pod that ended under the killed run is replaced.
    assert_eq!(deletions.count(), 3, "{writes:#?}");
    assert_eq!(nodes.remembered().len(), 2);
    nodes.has_no_pods_left();
}

#[test]
fn a_job_preloads_each_node_once() {
    let nodes = Nodes::start("pre-job");
    let job = "\
apiVersion: batch/v1
kind: Job
metadata: {name: preload}
spec:
  template:
    spec: {restartPolicy: Never, containers: [{name: preload, image: \"preload:1\"}]}
";
    let files = [("manifests/web/job.yaml", job.to_owned())];
    let fleet = fleet("pre-job", "job: job.yaml", &files);
    fleet.applied();
    let jobs = || {
        admin(&["get", "jobs", "-n", "pre-job", "-o", "name"])
            .lines()
            .count()
    };
    assert_eq!((jobs(), nodes.remembered().len()), (2, 2));
    fleet.write("manifests/web/app.yaml", &app("app:2"));
    fleet.commit();
    fleet.applied();
    assert_eq!(jobs(), 2, "the Job did not change");

    // A Job that does not end in time is deleted.
    let held = "metadata: {name: preload, labels: {part: held}}";
    let waits = "template:\n    metadata: {labels: {part: held}, annotations: {testkit.pleach.dev/crash: wait}}";
    let held = job.replace("metadata: {name: preload}", held);
    fleet.write("manifests/web/job.yaml", &held.replace("template:", waits));
    let bundle = bundle("pre-job", "job: job.yaml, timeout: 3s");
    fleet.write("manifests/web/bundle.yaml", &bundle);
    fleet.commit();
    fleet
        .apply()
        .ended_with(6)
        .says("Job.batch/pre-job/preload-");
    let gone = [
        "wait",
        "--for=delete",
        "job",
        "--timeout=30s",
        "-l",
        "part=held",
    ];
    admin(&[&gone[..], &["-n", "pre-job"]].concat());
    assert_eq!(jobs(), 2);
}
