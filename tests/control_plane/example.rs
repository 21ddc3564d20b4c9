//! The upgrade that motivated the project, with the files in this repository: a product moves to
//! another namespace, and nothing remains in the old one.

use std::path::Path;
use std::time::Duration;

use pleach_testkit::control_plane::binaries;
use pleach_testkit::demo::copy_example;
use pleach_testkit::isolated;
use pleach_testkit::program::{Program, Run};
use pleach_testkit::proof;
use pleach_testkit::repository::TestRepo;
use pleach_testkit::scene::Scene;
use pleach_testkit::upgrade::{Upgrade, is_recorded};
use pleach_testkit::world::Product;

const ENVIRONMENT: &str = "environments/demo.yaml";
const RELEASE: &str = "demo.kubevirt";
const OLD: &str = "version: v0.11.0";
const NEW: &str = "version: v0.12.0";
const PATIENCE: Duration = Duration::from_mins(1);

/// Example of the project, installed in its old version.
struct Fleet {
    scene: Scene,
    repo: TestRepo,
    program: Program,
}

impl Fleet {
    async fn start() -> Self {
        let scene = Scene::start(Product::kubevirt(), "kube-system")
            .await
            .unwrap();
        let repo = TestRepo::new::<&str, &str>([]).unwrap();
        copy_example(Path::new(env!("CARGO_MANIFEST_DIR")), repo.path()).unwrap();
        repo.commit("Install").unwrap();
        let program = scene.program(Path::new(env!("CARGO_BIN_EXE_pleach")), repo.path());
        let id = scene.cluster_id().unwrap();
        let args = ["apply", "demo", "--yes", "--cluster-id", &id];
        program.run(&args).await.unwrap().ended_with(0).unwrap();
        Self {
            scene,
            repo,
            program,
        }
    }

    async fn apply(&self) -> Run {
        self.program.run(&["apply", "demo", "--yes"]).await.unwrap()
    }

    fn edit(&self, from: &str, to: &str) {
        self.repo.edit(ENVIRONMENT, from, to).unwrap();
        self.repo.commit("Change the environment").unwrap();
    }
}

#[track_caller]
fn check_says(run: &Run, lines: &[&str]) {
    for line in lines {
        assert!(run.says(line), "missing: {line}\n{run}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_example_moves_and_leaves_nothing_behind() {
    if !isolated::inside("example::the_example_moves_and_leaves_nothing_behind").unwrap() {
        return;
    }
    let mut fleet = Fleet::start().await;
    fleet.scene.start_user(PATIENCE).await.unwrap();
    fleet.edit(OLD, NEW);
    rehearses(&fleet).await;

    let upgrade = Upgrade::watch(&fleet.scene, &fleet.program, "demo", "kubevirt")
        .await
        .unwrap();
    let run = upgrade.run.clone().ended_with(0).unwrap();
    let ends = [
        "release demo.kubevirt v0.12.0: deployed",
        "release demo.web v1.0.0: unchanged",
    ];
    check_says(&run, &ends);
    upgrade.is_in_order("virt-api").unwrap();
    let scene = &fleet.scene;
    scene.audited(&fleet.program, "demo").await.unwrap();
    // 3 registrations, the objects in kube-system (10 members, 2 of the pods), and the gate's
    // policy and binding.
    assert_eq!(upgrade.deletes_what_it_saw().unwrap(), 17);
    has_no_gap(&fleet, &run);
    fleet.scene.has_moved_to("kubevirt").await.unwrap();
    is_recorded(&fleet.scene.kubectl, RELEASE, "v0.12.0", "kube-system").unwrap();
    let scene = &fleet.scene;
    scene.is_unchanged(&fleet.program, "demo").await.unwrap();
    // The user can write again.
    fleet.scene.world.more_writes(20, PATIENCE).await.unwrap();

    goes_back(&fleet).await;
    let scene = &fleet.scene;
    scene.audited(&fleet.program, "demo").await.unwrap();
    assert_eq!(fleet.scene.world.controllers_together(), []);
    fleet.scene.world.stop().await.unwrap();
}

/// Rehearses the upgrade: nothing would be refused.
async fn rehearses(fleet: &Fleet) {
    let programs = binaries().find("kube-apiserver").unwrap();
    let programs = programs.parent().unwrap().to_str().unwrap();
    let mut args = vec!["rehearse", "demo", "-o", "json", "--pod-delay", "0s"];
    args.extend(["--control-plane", programs]);
    let run = fleet.program.run(&args).await.unwrap();
    let run = run.ended_with(0).unwrap();
    let report: serde_json::Value = serde_json::from_str(&run.stdout).unwrap();
    assert_eq!(report["plan"]["agreement"], "same", "{run}");
    assert!(run.took < Duration::from_secs(45), "{run}");
}

/// Agents, then controllers, then the API. Each is stopped right before its successor starts, and
/// the old API answers until its own stage. A gate of the bundle closes before the registrations
/// that it replaces are deleted.
#[tokio::test(flavor = "multi_thread")]
async fn the_former_api_answers_until_its_own_stage() {
    if !isolated::inside("example::the_former_api_answers_until_its_own_stage").unwrap() {
        return;
    }
    let mut fleet = Fleet::start().await;
    let stages = "stages:
  - {name: agents, select: [{kind: DaemonSet, name: virt-handler}]}
  - {name: controllers, select: [{kind: Deployment, name: virt-controller}]}
  - {name: api, select: [{kind: Deployment, name: virt-api}]}
gates: [{name: handover, groups: [kubevirt.io], from: api}]
moves: ";
    let bundle = "manifests/kubevirt/bundle.yaml";
    fleet.repo.edit(bundle, "moves: ", stages).unwrap();
    fleet.scene.start_user(PATIENCE).await.unwrap();
    fleet.scene.world.start_administrator().unwrap();
    fleet.scene.world.more_writes(20, PATIENCE).await.unwrap();
    fleet.edit(OLD, NEW);

    let begun = jiff::Timestamp::now();
    let run = fleet.apply().await.ended_with(0).unwrap();
    let events = fleet.scene.audit().await.unwrap();
    let writes = events.since(begun).by_agent("pleach/").writes();
    let place = |verb: &str, namespace: &str, object: &str| {
        let (resource, name) = object.split_once('/').unwrap();
        let found = writes.0.iter().position(|event| {
            let is_it = event.object_ref.as_ref().is_some_and(|one| {
                (one.resource.as_str(), one.namespace.as_str()) == (resource, namespace)
                    && one.name.starts_with(name)
            });
            event.verb == verb && event.code() < 400 && is_it
        });
        found.unwrap_or_else(|| panic!("no {verb} of {namespace} {object}:\n{writes}"))
    };
    let order = [
        place("patch", "kube-system", "daemonsets/virt-handler"),
        place("patch", "kubevirt", "daemonsets/virt-handler"),
        place("patch", "kube-system", "deployments/virt-controller"),
        place("patch", "kubevirt", "deployments/virt-controller"),
        place("create", "", "validatingadmissionpolicies/demo.kubevirt"),
        place("delete", "", "apiservices/v1alpha2.subresources"),
        place("patch", "kube-system", "deployments/virt-api"),
        place("patch", "kubevirt", "deployments/virt-api"),
    ];
    assert!(order.is_sorted(), "{order:?}\n{writes}");
    // Another user of pleach's kubeconfig did not bypass the webhooks either.
    has_no_gap(&fleet, &run);
    let shared = fleet.scene.world.administrators_report();
    assert_eq!((shared.failed, shared.unvalidated), (0, 0), "{shared}");
    assert!(shared.refused > 0, "{shared}");
    fleet.scene.has_moved_to("kubevirt").await.unwrap();
    fleet.scene.world.stop().await.unwrap();
}

/// Verifies that every write of the user was validated or refused by the gate, controllers of two
/// versions never ran together, and no pod crashed twice.
fn has_no_gap(fleet: &Fleet, run: &Run) {
    let world = &fleet.scene.world;
    let report = world.report();
    assert_eq!(
        (report.failed, report.unvalidated),
        (0, 0),
        "{report}\n{run}"
    );
    for message in report.messages.keys() {
        assert!(
            message.contains("(gate handover, since ") && message.contains("pleach doctor --fix"),
            "{report}"
        );
    }
    assert!(report.refused > 0, "the gate was never closed: {report}");
    assert_eq!(world.controllers_together(), []);
    let crashes = world.crashes();
    let mut pods: Vec<&str> = crashes.iter().map(|crash| crash.pod.as_str()).collect();
    pods.sort_unstable();
    assert!(
        pods.windows(2).all(|pair| pair[0] != pair[1]),
        "{crashes:?}"
    );
}

/// Rolls back by the pin, with confirmation. The namespace created by the upgrade is retained, and
/// the report shows it.
async fn goes_back(fleet: &Fleet) {
    fleet.edit(NEW, OLD);
    let run = fleet.apply().await.ended_with(7).unwrap();
    let meant = "rollback: {from: v0.12.0, to: v0.11.0}";
    check_says(
        &run,
        &["v0.11.0 is older than v0.12.0, which is installed", meant],
    );
    fleet.edit(OLD, &format!("{OLD}\n    {meant}"));
    let run = fleet.apply().await.ended_with(0).unwrap();
    let lines = [
        "release demo.kubevirt v0.12.0 -> v0.11.0",
        "kept Namespace/kubevirt: no longer in git; stays because objects of kind Namespace are protected",
        "release demo.kubevirt v0.11.0: deployed",
    ];
    check_says(&run, &lines);
    let kubectl = &fleet.scene.kubectl;
    let empty = ["ConfigMap/kube-root-ca.crt", "ServiceAccount/default"];
    let empty = empty.map(str::to_owned).into();
    proof::nothing_left(kubectl, "kubevirt", &empty, &[]).unwrap();
    proof::registrations_point_at(kubectl, &Product::kubevirt(), "kube-system").unwrap();
    proof::no_dead_registration(kubectl).unwrap();
    proof::subjects_moved(kubectl, "kubevirt", "kube-system").unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn an_upgrade_that_never_gets_ready_takes_nothing_away() {
    if !isolated::inside("example::an_upgrade_that_never_gets_ready_takes_nothing_away").unwrap() {
        return;
    }
    let mut fleet = Fleet::start().await;
    let members = proof::contents(&fleet.scene.kubectl, "kube-system").unwrap();

    // No node has this label, so the new pods are never scheduled.
    let broken = format!(
        "{NEW}
    patches:
      - target: {{kind: Deployment, name: virt-api}}
        merge: {{spec: {{template: {{spec: {{nodeSelector: {{nowhere: \"true\"}}}}}}}}}}"
    );
    fleet.edit(OLD, &broken);
    fleet.edit("timeout: 2m", "timeout: 15s");
    let run = fleet.apply().await.ended_with(6).unwrap();
    assert!(run.took < Duration::from_secs(40), "{run}");
    let lines = [
        "failed Deployment.apps/kubevirt/virt-api: not ready after 15 s",
        "release demo.kubevirt v0.12.0: failed",
    ];
    check_says(&run, &lines);

    // Nothing was pruned, and the record shows the progress.
    let now = proof::contents(&fleet.scene.kubectl, "kube-system").unwrap();
    let gone = members.difference(&now);
    let gone: Vec<&String> = gone.filter(|member| !member.starts_with("Pod/")).collect();
    assert_eq!(gone, Vec::<&String>::new());
    check_unfinished(&fleet.scene);
    check_stands(&fleet.scene, &run);

    // After a fix in git, the next run completes.
    fleet.edit(&broken, NEW);
    let run = fleet.apply().await.ended_with(0).unwrap();
    check_says(&run, &["release demo.kubevirt v0.12.0: deployed"]);
    fleet.scene.start_user(PATIENCE).await.unwrap();
    fleet.scene.has_moved_to("kubevirt").await.unwrap();
    is_recorded(&fleet.scene.kubectl, RELEASE, "v0.12.0", "kube-system").unwrap();
    let scene = &fleet.scene;
    scene.is_unchanged(&fleet.program, "demo").await.unwrap();
    assert_eq!(fleet.scene.world.controllers_together(), []);
    fleet.scene.world.stop().await.unwrap();
}

/// Verifies that workloads without a ready successor run again, and others stay at zero. The gate
/// remains, and the report shows it.
fn check_stands(scene: &Scene, run: &Run) {
    let replicas = |namespace: &str, name: &str| {
        let get = ["get", "deployment", name, "--namespace", namespace];
        scene.kubectl.json(&get).unwrap()["spec"]["replicas"].clone()
    };
    assert_eq!(replicas("kube-system", "virt-api"), 2);
    assert_eq!(replicas("kube-system", "virt-controller"), 0);
    assert_eq!(scene.world.controllers_together(), []);
    let policy = "ValidatingAdmissionPolicy.admissionregistration.k8s.io/demo.kubevirt.handover";
    let lines = [
        format!("still closed: {policy} (gate handover: retained if the run fails, for at most 1h"),
        "still temporarily changed: Deployment.apps/kube-system/virt-controller (overlay handover:"
            .to_owned(),
    ];
    for line in lines {
        assert!(run.says(&line), "missing: {line}\n{run}");
    }
    let name = ["get", "validatingadmissionpolicy", "demo.kubevirt.handover"];
    scene.kubectl.json(&name).unwrap();
}

/// Verifies that the release is between two versions and has the members of both.
fn check_unfinished(scene: &Scene) {
    let get = ["get", "releases.pleach.dev", RELEASE];
    let release = scene.kubectl.json(&get).unwrap();
    let ready = &release["status"]["conditions"][0];
    assert_eq!(ready["type"], "Ready");
    assert_eq!(ready["status"], "False", "{ready}");
    assert_eq!(ready["reason"], "Failed", "{ready}");
    let message = ready["message"].as_str().unwrap();
    assert!(
        message.starts_with("Deployment.apps/kubevirt/virt-api: "),
        "{message}"
    );
    let (installed, inventory) = proof::record(&scene.kubectl, RELEASE).unwrap();
    assert_eq!(installed.installed.unwrap().version, "v0.11.0");
    assert_eq!(installed.applying.unwrap().version, "v0.12.0");
    assert_eq!(installed.history[0].result.word(), "failed");
    for namespace in ["kube-system", "kubevirt"] {
        let id = format!("Deployment.apps/{namespace}/virt-api");
        let mut ids = inventory.entries.keys().map(ToString::to_string);
        assert!(ids.any(|member| member == id), "{id}");
    }
}
