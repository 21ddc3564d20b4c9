//! Nodes that another controller drains: a thread plays it, with hook Secrets and Machines.

use std::collections::BTreeSet;
use std::io::Write as _;
use std::process::Stdio;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use pleach_testkit::faults::{Kind, Moment, Seen};
use serde_json::Value;

use crate::nodes::{Nodes, bundle, fleet_of, job};
use crate::stages::nodes as plane;
use crate::{kill, kubectl};

const POOL: &str = "pool-driver";

/// Label of a hook; its value is the name of a Machine.
const MACHINE: &str = "fleet.example.org/machine";

/// Interval between reads of the hooks.
const PAUSE: Duration = Duration::from_millis(100);

const CRD: &str = "
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: machines.fleet.example.org}
spec:
  group: fleet.example.org
  scope: Namespaced
  names: {kind: Machine, plural: machines}
  versions:
    - name: v1
      served: true
      storage: true
      schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}
";

/// Lines of `nodes` in a bundle.
const DRIVER: &str = "      driver:
        hooks: {kind: Secret, namespace: pool-driver, labels: {fleet.example.org/machine: \"*\"}}
        node: {group: fleet.example.org, kind: Machine, namespace: pool-driver, name: \"hook.metadata.labels['fleet.example.org/machine']\", is: item.status.nodeRef.name}
        before: {request: driver.example.org/pre, acknowledge: us.example.org/pre}
        after: {request: driver.example.org/post, acknowledge: us.example.org/post}
      timeout: 60s
";

fn admin(args: &[&str]) -> Option<String> {
    let output = kubectl::run(plane().kubeconfig(), args);
    let text = String::from_utf8(output.stdout).unwrap();
    output.status.success().then_some(text)
}

fn create(text: &str) {
    let args = ["-n", POOL, "apply", "-f", "-"];
    let mut create = kubectl::command(plane().kubeconfig(), &args);
    let mut create = create.stdin(Stdio::piped()).spawn().unwrap();
    let mut input = create.stdin.take().unwrap();
    input.write_all(text.as_bytes()).unwrap();
    drop(input);
    assert!(create.wait().unwrap().success());
}

/// Creates the hook of a Machine.
fn hook(machine: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Secret\nmetadata: {{name: hook-{machine}, labels: {{{MACHINE}: {machine}}}}}\nstringData: {{plan: plan-of-the-driver}}\n---\n"
    )
}

/// State of the hooks of a node.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Hooks {
    node: String,
    pre: [Option<String>; 2],
    post: [Option<String>; 2],
}

impl Hooks {
    fn all() -> Vec<Self> {
        let args = ["-n", POOL, "get", "secrets", "-l", MACHINE, "-o", "json"];
        let list = admin(&args).unwrap_or_default();
        let list: Value = serde_json::from_str(&list).unwrap_or_default();
        let read = |secret: &Value| {
            let metadata = &secret["metadata"];
            let value = |key: &str| metadata["annotations"][key].as_str().map(str::to_owned);
            let both = |point: &str| {
                ["driver", "us"].map(|side| value(&format!("{side}.example.org/{point}")))
            };
            Self {
                node: metadata["labels"][MACHINE].as_str().unwrap().to_owned(),
                pre: both("pre"),
                post: both("post"),
            }
        };
        let items = list["items"].as_array().into_iter().flatten();
        items.map(read).collect()
    }

    /// Returns whether the driver asked by this value, and got an acknowledgement.
    fn is_acknowledged(annotations: &[Option<String>; 2], value: &str) -> bool {
        annotations.iter().all(|one| one.as_deref() == Some(value))
    }

    fn is_between(&self, value: &str) -> bool {
        Self::is_acknowledged(&self.pre, value) && !Self::is_acknowledged(&self.post, value)
    }
}

/// Asks by a hook.
fn ask(machines: &[&str], point: &str, value: &str) {
    let annotation = format!("driver.example.org/{point}={value}");
    let names: Vec<String> = machines.iter().map(|name| format!("hook-{name}")).collect();
    let mut args = vec!["-n", POOL, "annotate", "--overwrite", "secret"];
    args.push(annotation.as_str());
    args.splice(5..5, names.iter().map(String::as_str));
    admin(&args).unwrap();
}

/// The driver. It asks for node 1, then for others at once. It leaves its annotations.
struct Driver {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
    /// Nodes in the order of their drains.
    drained: Arc<Mutex<Vec<String>>>,
    /// Nodes that were between their hooks at the same time.
    violations: Arc<Mutex<BTreeSet<Vec<String>>>>,
}

impl Driver {
    fn start(value: &'static str, others: &'static [&'static str]) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let drained = Arc::default();
        let violations = Arc::default();
        let mut driver = Self {
            stop: Arc::clone(&stop),
            thread: None,
            drained: Arc::clone(&drained),
            violations: Arc::clone(&violations),
        };
        let play = move || {
            ask(&["lost"], "pre", value);
            ask(&["pool-driver-1"], "pre", value);
            while !stop.load(Ordering::Relaxed) {
                let hooks = Hooks::all();
                let between = hooks.iter().filter(|hooks| hooks.is_between(value));
                let between: Vec<String> = between.map(|hooks| hooks.node.clone()).collect();
                if between.len() > 1 {
                    violations.lock().unwrap().insert(between);
                }
                for hooks in &hooks {
                    play(hooks, value, others, &mut drained.lock().unwrap());
                }
                std::thread::sleep(PAUSE);
            }
        };
        driver.thread = Some(std::thread::spawn(play));
        driver
    }
}

/// Drains a node after its first hook, and releases it after the second one.
fn play(hooks: &Hooks, value: &str, others: &[&str], drained: &mut Vec<String>) {
    let node = hooks.node.as_str();
    if Hooks::is_acknowledged(&hooks.pre, value) && hooks.post[0].as_deref() != Some(value) {
        drained.push(node.to_owned());
        admin(&["cordon", node]).unwrap();
        let field = format!("spec.nodeName={node}");
        let delete = ["-n", POOL, "delete", "pods", "--wait=false"];
        admin(&[&delete[..], &["--field-selector", &field]].concat()).unwrap();
        ask(&[node], "post", value);
    }
    let is_cordoned = || {
        let args = ["get", "node", node, "-o", "jsonpath={.spec.unschedulable}"];
        admin(&args).is_some_and(|text| text == "true")
    };
    if Hooks::is_acknowledged(&hooks.post, value) && is_cordoned() {
        admin(&["uncordon", node]).unwrap();
        if node == "pool-driver-1" && !others.is_empty() {
            ask(others, "pre", value);
        }
    }
}

impl Driver {
    /// Checks that each node was drained once, none beside another one.
    fn ended(self, value: &str, nodes: &[&str]) {
        assert_eq!(*self.violations.lock().unwrap(), BTreeSet::new());
        for hooks in Hooks::all() {
            let both = [&hooks.pre, &hooks.post];
            let both = both.map(|one| Hooks::is_acknowledged(one, value));
            assert_eq!(both, [nodes.contains(&hooks.node.as_str()); 2], "{hooks:?}");
        }
        let drained = self.drained.lock().unwrap().clone();
        assert_eq!(drained[0], "pool-driver-1");
        assert_eq!(drained.len(), nodes.len(), "{drained:?}");
        crate::nodes::wait_for(drained.last().unwrap(), |node| {
            node["spec"]["unschedulable"] != true
        });
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            drop(thread.join());
        }
    }
}

#[test]
fn a_driver_chooses_and_drains_the_nodes_and_a_killed_run_is_continued() {
    let nodes = Nodes::start(POOL, 3);
    let bundle = |version: &str| {
        let bundle = bundle(POOL, version, DRIVER);
        bundle.replace("      first: [{labels: {role: control-plane}}]\n", "")
    };
    let mut fleet = fleet_of(POOL, "maxUnavailable: 3", bundle("v1"));
    fleet.applied();
    create(CRD);
    fleet.kubectl(&[
        "wait",
        "--for=condition=Established",
        "crd/machines.fleet.example.org",
    ]);
    let names = ["pool-driver-0", "pool-driver-1", "pool-driver-2"];
    let machines = names.map(|name| {
        let machine = format!("apiVersion: fleet.example.org/v1\nkind: Machine\nmetadata: {{name: {name}}}\nstatus: {{nodeRef: {{name: {name}}}}}\n---\n");
        format!("{machine}{}", hook(name))
    });
    create(&format!("{}{}", machines.concat(), hook("lost")));
    fleet.write("manifests/web/bundle.yaml", &bundle("v2"));
    fleet.write("manifests/web/job.yaml", &job("v2"));
    fleet.commit();

    let driver = Driver::start("v2", &["pool-driver-2", "pool-driver-0"]);
    let args = ["apply", POOL, "--yes"];
    let creates_job = |seen: &Seen| {
        let is_job = seen.path.contains("/apis/batch/v1/");
        seen.kind == Kind::Write && seen.method == "POST" && is_job
    };
    assert!(kill::at(
        &mut fleet,
        &args,
        Moment::BeforeAnswer,
        creates_job
    ));
    fleet.forget_killed_runs();
    let run = fleet.apply().ended_with(0);
    run.says("Machine.fleet.example.org/pool-driver/lost does not exist")
        .says("upgraded Node/pool-driver-0");

    driver.ended("v2", &names);
    assert_eq!(nodes.jobs().len(), 3, "one Job for each node");
    nodes.are_free("v2", &[]);

    // The pairs of annotations of this upgrade are left. Two nodes are done already.
    let done = ["pool-driver-0", "pool-driver-2", "version=v3"];
    admin(&[&["label", "--overwrite", "node"][..], &done].concat()).unwrap();
    fleet.write("manifests/web/bundle.yaml", &bundle("v3"));
    fleet.write("manifests/web/job.yaml", &job("v3"));
    fleet.commit();
    let driver = Driver::start("v3", &[]);
    fleet.apply().ended_with(0);
    driver.ended("v3", &["pool-driver-1"]);
    nodes.are_free("v3", &[]);
}
