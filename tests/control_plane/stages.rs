//! Custom stages on a control plane with nodes and running pods: a DaemonSet rollout, and an
//! upgrade in ten steps.

use std::path::Path;
use std::sync::OnceLock;

use pleach_testkit::audit::Events;
use pleach_testkit::control_plane::binaries;
use pleach_testkit::demo::copy_example;
use pleach_testkit::faults::Moment;
use pleach_testkit::throwaway::{ControlPlane, Network, Options};
use serde_json::Value;

use crate::fleet::{Fleet, Requests, owners};
use crate::kill;
use crate::samples::{BUNDLE, config_map};

/// Returns a control plane with simulated nodes.
pub(crate) fn nodes() -> &'static ControlPlane {
    static NODES: OnceLock<ControlPlane> = OnceLock::new();
    NODES.get_or_init(|| {
        pleach_testkit::control_plane::start(Options {
            binaries: binaries(),
            controllers: true,
            scheduler: true,
            nodes: 3,
            network: Network::Host,
        })
        .expect("the control plane starts")
    })
}

const CANARY: &str = "\
stages:
  - {name: agents, select: [{kind: DaemonSet, name: agent}], rollout: {first: 1, then: 2}}
";

/// Returns a release with a DaemonSet.
fn fleet(environment: &'static str) -> Fleet {
    let release =
        format!("  - {{name: web, bundle: web, namespace: {environment}, timeout: 40s}}\n");
    let bundle = format!("{BUNDLE}{CANARY}");
    let files = [("manifests/web/bundle.yaml", bundle.as_str())];
    let fleet = Fleet::on(nodes(), environment, &release, &files);
    fleet.create_namespace(environment);
    fleet
}

/// Deploys the agent. `crash` is the annotation for the simulated kubelet.
fn deploy(fleet: &Fleet, image: &str, crash: &str) {
    let agent = format!(
        "\
apiVersion: apps/v1
kind: DaemonSet
metadata: {{name: agent}}
spec:
  selector: {{matchLabels: {{app: agent}}}}
  template:
    metadata: {{labels: {{app: agent}}, annotations: {{testkit.pleach.dev/crash: \"{crash}\"}}}}
    spec: {{terminationGracePeriodSeconds: 0, containers: [{{name: agent, image: \"{image}\"}}]}}
"
    );
    let files = [agent, config_map("settings", image)];
    fleet.write("manifests/web/web.yaml", &files.join("---\n"));
    fleet.commit();
}

/// Returns the images of the pods that are not terminating, sorted.
fn images(fleet: &Fleet) -> Vec<String> {
    let pods = fleet
        .get(&["pods", "-l", "app=agent", "-n", fleet.environment])
        .unwrap();
    let mut images: Vec<String> = pods["items"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|pod| pod["metadata"]["deletionTimestamp"].is_null())
        .map(|pod| {
            pod["spec"]["containers"][0]["image"]
                .as_str()
                .unwrap()
                .to_owned()
        })
        .collect();
    images.sort();
    images
}

fn agent(fleet: &Fleet) -> Value {
    fleet
        .get(&["daemonset", "agent", "-n", fleet.environment])
        .unwrap()
}

fn journal(fleet: &Fleet) -> Option<Value> {
    let name = format!("{}.web.journal", fleet.environment);
    fleet.get(&["configmap", &name, "-n", "pleach-system"])
}

/// Returns the number of pods that the program deleted.
fn deleted_pods(events: &Events) -> usize {
    let deletions = events.writes().filter(|event| {
        let object = event.object_ref.as_ref();
        event.verb == "delete"
            && event.code() < 400
            && object.is_some_and(|object| object.resource == "pods")
    });
    deletions.0.len()
}

/// Verifies that the object matches its manifest, without other owners.
#[track_caller]
fn is_as_declared(fleet: &Fleet) {
    let agent = agent(fleet);
    let strategy = &agent["spec"]["updateStrategy"];
    assert_eq!(strategy["type"], "RollingUpdate", "{agent:#}");
    assert_eq!(strategy["rollingUpdate"]["maxUnavailable"], 1, "{agent:#}");
    assert!(
        !owners(&agent)
            .iter()
            .any(|owner| owner.starts_with("pleach-overlay")),
        "{agent:#}"
    );
    assert_eq!(journal(fleet), None);
}

#[test]
fn an_agent_is_replaced_on_one_node_first_and_stays_elsewhere_when_it_restarts() {
    let fleet = fleet("stages-canary");
    deploy(&fleet, "agent:1", "false");
    fleet.applied();
    assert_eq!(images(&fleet), ["agent:1"; 3]);
    is_as_declared(&fleet);
    deploy(&fleet, "agent:2", "false");
    let (_, events) = fleet.watched(Fleet::applied);
    assert_eq!(deleted_pods(&events), 1, "{}", events.writes());
    assert_eq!(images(&fleet), ["agent:2"; 3]);
    is_as_declared(&fleet);
    fleet.writes_nothing(Fleet::applied);
    // A change outside of the template does not roll out pods.
    fleet.edit(
        "manifests/web/web.yaml",
        "selector:",
        "minReadySeconds: 1\n  selector:",
    );
    fleet.commit();
    let (_, events) = fleet.watched(Fleet::applied);
    assert_eq!(deleted_pods(&events), 0);
    // The next version crashes. The other pods remain, even between runs.
    deploy(&fleet, "agent:3", "true");
    fleet
        .apply()
        .ended_with(6)
        .says("restarted: container agent ended with Error (1); the other pods are not replaced")
        .says("still temporarily changed: DaemonSet.apps/stages-canary/agent");
    assert_eq!(images(&fleet), ["agent:2", "agent:2", "agent:3"]);
    assert_eq!(agent(&fleet)["spec"]["updateStrategy"]["type"], "OnDelete");
    fleet
        .run(&["status"])
        .ended_with(0)
        .says("was temporarily changed");
    // Reverted in git: the crashing pod is replaced, and nothing else remains.
    deploy(&fleet, "agent:2", "false");
    fleet.applied();
    assert_eq!(images(&fleet), ["agent:2"; 3]);
    is_as_declared(&fleet);
}

#[test]
fn a_roll_out_that_is_killed_again_and_again_replaces_no_more_pods_than_it_says() {
    let mut fleet = fleet("stages-killed");
    deploy(&fleet, "agent:1", "false");
    fleet.applied();
    deploy(&fleet, "agent:2", "false");
    let args = ["apply", "stages-killed", "--yes"];
    let requests = Requests::from_now(nodes());
    kill::at_every_write(&mut fleet, &args, Moment::AfterForwarding);
    let (_, last) = fleet.watched(Fleet::applied);
    assert_eq!(last.writes().to_string(), "");
    let all = requests.events().by_agent("pleach/");
    let all = all.filter(|event| event.user_agent.contains(" stages-killed."));
    assert_eq!(deleted_pods(&all), 1, "{}", all.writes());
    assert_eq!(images(&fleet), ["agent:2"; 3]);
    is_as_declared(&fleet);
}

const PATCHES: &str = "
    patches:
      - target: {kind: Job, name: test-controllers}
        merge: {spec: {activeDeadlineSeconds: 3, template: {metadata: {annotations: {testkit.pleach.dev/crash: \"wait\"}}}}}";

/// Returns the steps of the upgrade, in order of the writes.
fn steps(events: &Events) -> Vec<String> {
    let known = [
        "daemonsets/agent",
        "jobs/test-agents",
        "deployments/controller",
        "deployments/api",
        "validatingwebhookconfigurations/machines.platform.example.org",
        "customresourcedefinitions/machines.platform.example.org",
        "jobs/test-controllers",
        "jobs/test-api",
    ];
    let mut steps: Vec<String> = Vec::new();
    for event in &events.writes().0 {
        let Some(object) = event.object_ref.as_ref().filter(|_| event.code() < 400) else {
            continue;
        };
        let name = format!("{}/{}", object.resource, object.name);
        if known.contains(&name.as_str()) && steps.last() != Some(&name) {
            steps.push(name);
        }
    }
    steps
}

#[test]
fn a_major_upgrade_in_ten_steps_stops_where_a_test_fails_and_goes_on_from_there() {
    let release = "  - name: platform\n    bundle: platform\n    namespace: platform\n    timeout: 40s\n    version: v1.0.0\n";
    let none: [(&str, &str); 0] = [];
    let fleet = Fleet::on(nodes(), "stages-ten", release, &none);
    let project = Path::new(env!("CARGO_MANIFEST_DIR"));
    copy_example(project, fleet.repo.path()).unwrap();
    fleet.commit();
    fleet.applied();
    fleet.audited();
    let image = |kind: &str, name: &str| {
        let path = "{.spec.template.spec.containers[0].image}";
        fleet.field(&[kind, name, "-n", "platform"], path)
    };
    let uid = |job: &str| fleet.field(&["job", job, "-n", "platform"], "{.metadata.uid}");
    let first = uid("test-api");

    // The test of the controllers fails. The API is restored and runs.
    let pinned = format!("version: v2.0.0{PATCHES}");
    fleet.edit_environment("version: v1.0.0", &pinned);
    fleet.commit();
    let (run, events) = fleet.watched(Fleet::apply);
    run.ended_with(6)
        .says("failed Job.batch/platform/test-controllers: Failed=True (DeadlineExceeded)");
    assert_eq!(
        steps(&events),
        [
            "daemonsets/agent",
            "jobs/test-agents",
            "deployments/controller",
            "deployments/api",
            "validatingwebhookconfigurations/machines.platform.example.org",
            "customresourcedefinitions/machines.platform.example.org",
            "deployments/controller",
            "jobs/test-controllers",
            // It runs again, unchanged.
            "deployments/api",
        ]
    );
    assert_eq!(
        image("daemonset", "agent"),
        "docker.io/platform/agent:v2.0.0"
    );
    assert_eq!(
        image("deployment", "controller"),
        "docker.io/platform/controller:v2.0.0"
    );
    assert_eq!(image("deployment", "api"), "docker.io/platform/api:v1.0.0");
    let replicas = fleet.field(&["deployment", "api", "-n", "platform"], "{.spec.replicas}");
    assert_eq!(replicas, "2");
    assert_eq!(uid("test-api"), first);
    let agents = uid("test-agents");

    // The next run continues. Successful tests are not repeated.
    fleet.edit_environment(PATCHES, "");
    fleet.commit();
    fleet
        .applied()
        .says("release stages-ten.platform v2.0.0: deployed");
    assert_eq!(image("deployment", "api"), "docker.io/platform/api:v2.0.0");
    assert_eq!(uid("test-agents"), agents);
    assert_ne!(uid("test-api"), first);
    fleet.audited();
    fleet.writes_nothing(Fleet::applied);
}
