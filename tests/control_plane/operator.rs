//! Operator with a custom resource (`manifests/depot`) on a control plane whose pods answer:
//! installed, upgraded by both triggers, removed, dead, and without a required permission.

use std::path::Path;

use pleach_testkit::audit::Events;
use pleach_testkit::control_plane::binaries;
use pleach_testkit::demo::copy_example;
use pleach_testkit::isolated;
use pleach_testkit::throwaway::{ControlPlane, Network, Options};
use pleach_testkit::world::Operator;
use tokio::runtime::Runtime;

use crate::fleet::{Fleet, Requests, object_writes};

/// Installed example with the simulated operator.
struct Scene {
    fleet: Fleet,
    plane: &'static ControlPlane,
    operator: Operator,
    runtime: Runtime,
}

impl Scene {
    /// Starts the scene. `install` pins the version of the product, or leaves it to the operator.
    fn start(environment: &'static str, install: &str) -> Self {
        let plane = pleach_testkit::control_plane::start(Options {
            binaries: binaries(),
            controllers: true,
            scheduler: true,
            nodes: 1,
            network: Network::Namespace,
        });
        let plane: &'static ControlPlane = Box::leak(Box::new(plane.unwrap()));
        let release = format!(
            "  - name: depot\n    bundle: depot\n    namespace: depot\n    timeout: 40s\n    version: v1.0.0\n    values: {{install: \"{install}\"}}\n"
        );
        let none: [(&str, &str); 0] = [];
        let fleet = Fleet::on(plane, environment, &release, &none);
        let project = Path::new(env!("CARGO_MANIFEST_DIR"));
        copy_example(project, fleet.repo.path()).unwrap();
        fleet.commit();
        let runtime = Runtime::new().unwrap();
        let operator = runtime
            .block_on(Operator::start(plane.kubeconfig()))
            .unwrap();
        Self {
            fleet,
            plane,
            operator,
            runtime,
        }
    }

    /// Returns all requests of all clients during `act`.
    fn all<T>(&self, act: impl FnOnce(&Fleet) -> T) -> (T, Events) {
        let requests = Requests::from_now(self.plane);
        let done = act(&self.fleet);
        (done, requests.events())
    }

    /// Verifies that no request of the operator was refused and its simulation did not fail.
    fn end(self) {
        let events = Requests::of(self.plane).events().by_agent("depot-operator");
        let refused = events.filter(|event| event.code() == 403);
        assert_eq!(refused.to_string(), "");
        self.runtime.block_on(self.operator.stop()).unwrap();
    }
}

/// Changes the environment and commits.
fn change(fleet: &Fleet, from: &str, to: &str) {
    fleet.edit_environment(from, to);
    fleet.commit();
}

/// Returns the status of the custom resource: phase, installed version, and operator version.
fn told(fleet: &Fleet) -> String {
    fleet.field(
        &["depots.depot.example.org", "depot", "-n", "depot"],
        "{.status.phase} {.status.observedVersion} {.status.operatorVersion}",
    )
}

/// Returns the image of a Deployment without its registry.
fn image(fleet: &Fleet, name: &str) -> String {
    let path = "{.spec.template.spec.containers[0].image}";
    let image = fleet.field(&["deployment", name, "-n", "depot"], path);
    image.strip_prefix("docker.io/depot/").unwrap().to_owned()
}

/// Returns the successful writes with their clients: `pleach patch deployments/depot-operator`.
fn written(events: &Events) -> Vec<String> {
    let events = events.writes();
    let events = events.0.iter().filter(|event| event.code() < 400);
    events
        .filter_map(|event| {
            let object = event.object_ref.as_ref()?;
            let who = event.user_agent.split('/').next()?;
            (object.subresource.is_empty() && ["pleach", "depot-operator"].contains(&who))
                .then(|| format!("{who} {} {}/{}", event.verb, object.resource, object.name))
        })
        .collect()
}

/// Verifies that these writes happened in this order, by the last occurrence of each.
#[track_caller]
fn in_order(written: &[String], expected: &[&str]) {
    let place = |one: &&str| written.iter().rposition(|written| written == one);
    let places: Vec<Option<usize>> = expected.iter().map(place).collect();
    assert!(
        places.iter().all(Option::is_some) && places.is_sorted(),
        "{expected:#?}\n{places:?}\n{written:#?}"
    );
}

const NEWER: &str = "version: v1.1.0\n";
const BACK: &str = "version: v1.0.0\n    rollback: {from: v1.1.0, to: v1.0.0}\n";

#[test]
fn an_operand_follows_its_operator_or_a_pin_and_goes_before_it() {
    let name = "operator::an_operand_follows_its_operator_or_a_pin_and_goes_before_it";
    if !isolated::inside(name).unwrap() {
        return;
    }
    let scene = Scene::start("harbor", "");
    let fleet = &scene.fleet;

    // The operator has the permissions to grant before they are needed.
    let (run, events) = scene.all(Fleet::applied);
    run.says("release harbor.depot v1.0.0: deployed");
    assert_eq!(told(fleet), "Deployed v1.0.0 v1.0.0");
    in_order(
        &written(&events),
        &[
            "pleach patch customresourcedefinitions/depots.depot.example.org",
            "pleach patch clusterrolebindings/depot-operator",
            "pleach patch deployments/depot-operator",
            "pleach patch validatingwebhookconfigurations/depots.depot.example.org",
            "pleach patch depots/depot",
            "depot-operator create customresourcedefinitions/parcels.depot.example.org",
            "depot-operator create clusterroles/depot-api",
            "depot-operator create deployments/depot-api",
        ],
    );
    // Changes of the operator are recorded once.
    fleet.applied();
    fleet.writes_nothing(Fleet::applied);

    // Locked to the operator: its operand is upgraded with it.
    change(fleet, "version: v1.0.0", "version: v1.1.0");
    let (_, events) = scene.all(Fleet::applied);
    assert_eq!(told(fleet), "Deployed v1.1.0 v1.1.0");
    assert_eq!(image(fleet, "depot-api"), "api:v1.1.0");
    in_order(
        &written(&events),
        &[
            "pleach patch clusterroles/depot-operator",
            "pleach patch deployments/depot-operator",
            "depot-operator patch clusterroles/depot-api",
            "depot-operator patch deployments/depot-api",
        ],
    );

    // The downgrade is not waited for before the operator is replaced.
    change(fleet, NEWER, BACK);
    let (_, events) = scene.all(Fleet::applied);
    assert_eq!(told(fleet), "Deployed v1.0.0 v1.0.0");
    in_order(
        &written(&events),
        &[
            "pleach patch depots/depot",
            "pleach patch deployments/depot-operator",
            "depot-operator patch deployments/depot-api",
        ],
    );
    change(fleet, BACK, NEWER);
    fleet.applied();

    // Pinned to the version that the operator installed before. The plan waits for the new spec and
    // ignores the status of the previous one.
    change(fleet, "install: \"\"", "install: v1.0.0");
    scene.operator.hang(true);
    change(fleet, "timeout: 40s", "timeout: 3s");
    fleet
        .apply()
        .ended_with(6)
        .says("failed Depot.depot.example.org/depot/depot: not ready after")
        .says("its controller has observed generation");
    assert_eq!(image(fleet, "depot-api"), "api:v1.1.0");
    scene.operator.hang(false);
    change(fleet, "timeout: 3s", "timeout: 40s");
    fleet.applied();
    assert_eq!(told(fleet), "Deployed v1.0.0 v1.1.0");
    assert_eq!(image(fleet, "depot-api"), "api:v1.0.0");

    // The pin changes in git: only the custom resource is written.
    change(fleet, "install: v1.0.0", "install: v1.1.0");
    let (_, events) = fleet.watched(Fleet::applied);
    assert_eq!(
        object_writes(&events),
        ["patch depot.example.org depots depot/depot 200"]
    );
    assert_eq!(told(fleet), "Deployed v1.1.0 v1.1.0");
    assert_eq!(image(fleet, "depot-api"), "api:v1.1.0");

    // Downgrade: first the operand, then the operator.
    fleet.edit_environment("install: v1.1.0", "install: v1.0.0");
    change(fleet, NEWER, BACK);
    let (_, events) = scene.all(Fleet::applied);
    // The operator writes its own version once it has started, which nothing waits for.
    fleet.until("the version of the operator", |fleet| {
        (told(fleet) == "Deployed v1.0.0 v1.0.0").then_some(())
    });
    assert_eq!(image(fleet, "depot-api"), "api:v1.0.0");
    in_order(
        &written(&events),
        &[
            "pleach patch depots/depot",
            "depot-operator patch deployments/depot-api",
            "pleach patch deployments/depot-operator",
        ],
    );

    ends_before_its_operator(&scene);
    scene.end();
}

/// Uninstalls while the operator still answers.
fn ends_before_its_operator(scene: &Scene) {
    let fleet = &scene.fleet;
    // Objects of users retain the release.
    let parcel = "apiVersion: depot.example.org/v1\nkind: Parcel\nmetadata: {name: mine, namespace: default}\n";
    let parcel = fleet.file("parcel.yaml", parcel);
    fleet.kubectl(&["apply", "-f", &parcel]);
    let uninstall = ["uninstall", "harbor/depot", "--yes"];
    fleet
        .writes_nothing(|fleet| fleet.run(&uninstall).ended_with(7))
        .says("parcel mine is in store");
    fleet.kubectl(&["delete", "-f", &parcel]);

    // The custom resource is removed while its operator answers and cleans up.
    let (run, events) = scene.all(|fleet| fleet.run(&uninstall).ended_with(0));
    run.says("release harbor.depot v1.0.0: uninstalled")
        .says("kept CustomResourceDefinition.apiextensions.k8s.io/depots.depot.example.org: ")
        .says("kept CustomResourceDefinition.apiextensions.k8s.io/parcels.depot.example.org: ");
    in_order(
        &written(&events),
        &[
            "pleach delete depots/depot",
            "depot-operator delete deployments/depot-api",
            "depot-operator delete clusterroles/depot-api",
            "depot-operator patch depots/depot",
            "pleach delete validatingwebhookconfigurations/depots.depot.example.org",
            "pleach delete deployments/depot-operator",
            "pleach delete services/depot-operator",
            "pleach delete secrets/depot-operator-certs",
            "pleach delete clusterroles/depot-operator",
        ],
    );
    for gone in ["deployment/depot-api", "secret/depot-operator-certs"] {
        assert!(!fleet.exists(&["-n", "depot", gone]), "{gone}");
    }
    for kept in ["depots", "parcels"] {
        assert!(fleet.exists(&["crd", &format!("{kept}.depot.example.org")]));
    }
}

/// Returns the program's deletions, in order of the answers.
fn deleted(events: &Events) -> Vec<String> {
    let lines = object_writes(events).into_iter();
    lines.filter(|line| line.starts_with("delete ")).collect()
}

#[test]
fn an_operator_that_is_dead_holds_the_end_until_it_is_back() {
    let name = "operator::an_operator_that_is_dead_holds_the_end_until_it_is_back";
    if !isolated::inside(name).unwrap() {
        return;
    }
    let scene = Scene::start("wreck", "");
    let fleet = &scene.fleet;
    fleet.applied();
    let replicas = |count: &str| {
        let count = format!("--replicas={count}");
        fleet.kubectl(&["scale", "-n=depot", "deployment/depot-operator", &count]);
    };
    replicas("0");
    let pods = ["wait", "-n=depot", "pod", "-l=app=depot-operator"];
    fleet.kubectl(&[&pods[..], &["--for=delete", "--timeout=60s"]].concat());

    // The dead webhook is removed first, because it would block the removal of the finalizer.
    let uninstall = ["uninstall", "wreck/depot", "--yes", "--timeout", "4s"];
    let (run, events) = fleet.watched(|fleet| fleet.run(&uninstall).ended_with(6));
    run.says("failed Depot.depot.example.org/depot/depot: not gone after")
        .says("it waits for depot.example.org/operands (set by depot-operator); Deployment.apps/depot/depot-operator has no ready pods")
        .says("the controller that set depot.example.org/operands must remove it; pleach never does");
    assert_eq!(
        deleted(&events),
        [
            "delete admissionregistration.k8s.io validatingwebhookconfigurations depots.depot.example.org 200",
            "delete depot.example.org depots depot/depot 200",
        ]
    );
    // The doctor reports an object that is deleted for ten seconds.
    let diagnosed = fleet.until("the diagnosis", |fleet| {
        let run = fleet.run(&["doctor"]);
        run.stdout.contains("[object-stuck]").then_some(run)
    });
    diagnosed
        .ended_with(1)
        .says("Depot.depot.example.org/depot/depot")
        .says("Deployment.apps/depot/depot-operator has no ready pods");
    for left in [
        "deployment/depot-api",
        "deployment/depot-operator",
        "sa/depot-operator",
    ] {
        assert!(fleet.exists(&["-n", "depot", left]), "{left}");
    }

    // The restored operator cleans up. Its runtime objects are removed with consent.
    replicas("1");
    let operator = ["-n=depot", "deployment/depot-operator", "--timeout=60s"];
    fleet.kubectl(&[&["rollout", "status"], &operator[..]].concat());
    fleet.extend_environment(
        "consent: [{action: uninstall, release: depot}, {action: delete, kind: CustomResourceDefinition, name: parcels.depot.example.org, release: depot, from: v1.0.0}]\n",
    );
    fleet.commit();
    fleet
        .run(&["uninstall", "wreck/depot", "--yes"])
        .ended_with(0)
        .says("release wreck.depot v1.0.0: uninstalled");
    assert!(!fleet.exists(&["-n", "depot", "deployment/depot-api"]));
    assert!(!fleet.exists(&["crd", "parcels.depot.example.org"]));
    assert!(fleet.exists(&["crd", "depots.depot.example.org"]));

    // A hanging operator blocks the removal from git in the same way.
    fleet.applied();
    assert_eq!(told(fleet), "Deployed v1.0.0 v1.0.0");
    scene.operator.hang(true);
    fleet.remove("manifests/depot/v1.0.0/depot.yaml.j2");
    change(fleet, "timeout: 40s", "timeout: 3s");
    let (run, events) = fleet.watched(|fleet| fleet.apply().ended_with(6));
    run.says("failed Depot.depot.example.org/depot/depot: not gone after")
        .says("it waits for depot.example.org/operands (set by depot-operator)");
    assert_eq!(
        deleted(&events),
        ["delete depot.example.org depots depot/depot 200"]
    );
    assert!(fleet.exists(&["-n", "depot", "deployment/depot-api"]));
    scene.operator.hang(false);
    change(fleet, "timeout: 3s", "timeout: 40s");
    fleet.applied();
    assert!(!fleet.exists(&["-n", "depot", "deployment/depot-api"]));
    fleet.writes_nothing(Fleet::applied);
    scene.end();
}

#[test]
fn an_operator_that_does_not_run_goes_back_before_what_it_installs() {
    let name = "operator::an_operator_that_does_not_run_goes_back_before_what_it_installs";
    if !isolated::inside(name).unwrap() {
        return;
    }
    let scene = Scene::start("salvage", "v1.0.0");
    let fleet = &scene.fleet;
    fleet.applied();
    fleet.edit_environment("install: \"v1.0.0\"", "install: v1.1.0");
    change(fleet, "version: v1.0.0\n", NEWER);
    fleet.applied();
    assert_eq!(told(fleet), "Deployed v1.1.0 v1.1.0");

    // The pods of the newer operator are no longer scheduled.
    fleet.edit(
        "manifests/depot/v1.1.0/operator.yaml.j2",
        "  template:\n    metadata: {labels: {app: depot-operator}}\n    spec:\n",
        "  strategy: {rollingUpdate: {maxSurge: 0, maxUnavailable: 1}}\n  template:\n    metadata: {labels: {app: depot-operator}}\n    spec:\n      nodeSelector: {none: here}\n",
    );
    change(fleet, "timeout: 40s", "timeout: 4s");
    fleet
        .apply()
        .ended_with(6)
        .says("failed Deployment.apps/depot/depot-operator: ");

    // Its webhook would refuse any custom resource, and it would install nothing.
    fleet.edit_environment("timeout: 4s", "timeout: 40s");
    fleet.edit_environment("install: v1.1.0", "install: v1.0.0");
    change(fleet, NEWER, BACK);
    let (_, events) = scene.all(Fleet::applied);
    assert_eq!(told(fleet), "Deployed v1.0.0 v1.0.0");
    in_order(
        &written(&events),
        &[
            "pleach patch deployments/depot-operator",
            "pleach patch depots/depot",
            "depot-operator patch deployments/depot-api",
        ],
    );
    fleet.writes_nothing(Fleet::applied);
    scene.end();
}

const PARCELS: &str = "  - {apiGroups: [depot.example.org], resources: [parcels], verbs: [get, list, watch, update]}\n";
const LEASES: &str =
    "  - {apiGroups: [coordination.k8s.io], resources: [leases], verbs: [get, create, update]}\n";

#[test]
fn an_operator_gives_no_right_that_it_lacks() {
    let name = "operator::an_operator_gives_no_right_that_it_lacks";
    if !isolated::inside(name).unwrap() {
        return;
    }
    let scene = Scene::start("customs", "v1.0.0");
    let fleet = &scene.fleet;
    let access = "manifests/depot/v1.1.0/access.yaml";
    fleet.applied();

    // Operator and pin change in one commit. The previous operator would refuse the pin, but the
    // pin is applied after its successor.
    fleet.edit(access, PARCELS, "");
    fleet.edit_environment("install: \"v1.0.0\"", "install: v1.1.0");
    change(fleet, "version: v1.0.0", "version: v1.1.0");
    fleet
        .writes_nothing(|fleet| fleet.apply().ended_with(7))
        .says("ServiceAccount/depot/depot-operator writes this role at run time and could no longer do so")
        .says("object: ClusterRole.rbac.authorization.k8s.io/depot-api")
        .says(r#""resources":["parcels"]"#)
        .says("{action: override, check: operator-cannot-grant, kind: ClusterRole, name: depot-api, release: depot, from: v1.0.0, to: v1.1.0, reason: …}")
        .says("nothing was written");

    // Further permissions of the new version are unknown beforehand. The server refuses them, and
    // the custom resource reports it.
    fleet.edit(
        access,
        "---\napiVersion: rbac.authorization.k8s.io/v1\nkind: ClusterRoleBinding",
        &format!(
            "{PARCELS}---\napiVersion: rbac.authorization.k8s.io/v1\nkind: ClusterRoleBinding"
        ),
    );
    fleet.edit(access, LEASES, "");
    change(fleet, "timeout: 40s", "timeout: 10s");
    let (run, events) = fleet.watched(Fleet::apply);
    run.ended_with(6)
        .says("failed Depot.depot.example.org/depot/depot: not ready after")
        .says("Available=False (Refused): ")
        .says(r#"clusterroles.rbac.authorization.k8s.io "depot-api" is forbidden"#);
    assert_eq!(deleted(&events), [""; 0]);
    assert_eq!(told(fleet), "Deploying v1.0.0 v1.1.0");
    assert_eq!(image(fleet, "depot-operator"), "operator:v1.1.0");
    assert_eq!(image(fleet, "depot-api"), "api:v1.0.0");

    // With the permissions, it continues.
    fleet.edit(access, PARCELS, &format!("{PARCELS}{LEASES}"));
    change(fleet, "timeout: 10s", "timeout: 40s");
    fleet
        .applied()
        .says("release customs.depot v1.1.0: deployed");
    assert_eq!(told(fleet), "Deployed v1.1.0 v1.1.0");
    assert_eq!(image(fleet, "depot-api"), "api:v1.1.0");

    // A field that only the new CRD has is valid too.
    fleet.edit(
        "manifests/depot/v1.1.0/api.yaml",
        "replicas: {type: integer}",
        "replicas: {type: integer}\n                keep: {type: integer}",
    );
    fleet.edit(
        "manifests/depot/v1.1.0/depot.yaml.j2",
        "replicas: 2",
        "replicas: 2\n  keep: 10",
    );
    fleet.commit();
    fleet
        .run(&[
            "plan",
            "customs",
            "--explain",
            "Depot.depot.example.org/depot/depot",
        ])
        .ended_with(0)
        .says(
            "not verified by the server: refused by the previous version, which is replaced first",
        );
    fleet.applied();
    let depot = ["depots.depot.example.org", "depot", "-n", "depot"];
    assert_eq!(fleet.field(&depot, "{.spec.keep}"), "10");
    fleet.writes_nothing(Fleet::applied);
    scene.runtime.block_on(scene.operator.stop()).unwrap();
}
