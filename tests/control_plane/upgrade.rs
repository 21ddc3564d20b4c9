//! The upgrade that this project was started for, on the files that the
//! repository itself holds: a product moves to another namespace, and nothing
//! of it stays behind.

use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use jiff::Timestamp;
use pleach_domain::inventory::EntryState;
use pleach_testkit::audit::{Event, Events};
use pleach_testkit::demo::copy_example;
use pleach_testkit::faults::{Fault, Moment, Rule, Seen};
use pleach_testkit::isolated;
use pleach_testkit::kubectl::Kubectl;
use pleach_testkit::program::{Program, Run};
use pleach_testkit::proof;
use pleach_testkit::repository::TestRepo;
use pleach_testkit::scene::Scene;
use pleach_testkit::world::Product;
use serde_json::Value;

const ENVIRONMENT: &str = "environments/demo.yaml";
const OLD: &str = "version: v0.11.0";
const NEW: &str = "version: v0.12.0";
const FORMER: &str = "kube-system";
const PATIENCE: Duration = Duration::from_mins(1);

/// The example of the project, installed in its old version.
struct Fleet {
    scene: Scene,
    repo: TestRepo,
    program: Program,
}

impl Fleet {
    async fn start() -> Self {
        let scene = Scene::start(Product::kubevirt(), FORMER).await.unwrap();
        let repo = TestRepo::new::<&str, &str>([]).unwrap();
        copy_example(Path::new(env!("CARGO_MANIFEST_DIR")), repo.path()).unwrap();
        repo.commit("Install").unwrap();
        let program = scene.program(Path::new(env!("CARGO_BIN_EXE_pleach")), repo.path());
        let fleet = Self {
            scene,
            repo,
            program,
        };
        let id = fleet.scene.cluster_id().unwrap();
        let args = ["apply", "demo", "--yes", "--cluster-id", &id];
        fleet.run(&args).await.ended_with(0).unwrap();
        fleet
    }

    async fn run(&self, args: &[&str]) -> Run {
        self.program.run(args).await.unwrap()
    }

    async fn apply(&self) -> Run {
        self.run(&["apply", "demo", "--yes"]).await
    }

    fn edit(&self, from: &str, to: &str) {
        self.repo.edit(ENVIRONMENT, from, to).unwrap();
        self.repo.commit("Change the environment").unwrap();
    }

    /// What the program asked of the server since a time.
    async fn requests(&self, since: Timestamp) -> Events {
        let events = self.scene.audit().await.unwrap();
        events.since(since).by_agent("pleach/")
    }

    /// Nothing is left to do: nobody is even asked what would change.
    #[track_caller]
    fn has_no_writes(events: &Events) {
        assert!(!events.0.is_empty());
        assert_eq!(events.writes().to_string(), "");
        assert_eq!(events.dry_runs().to_string(), "");
    }
}

/// What stood when the first member of the release was deleted.
#[derive(Debug, Default)]
struct Snapshot {
    unready: Vec<String>,
    backends: Vec<Value>,
}

impl Snapshot {
    fn take(kubectl: &Kubectl) -> Self {
        let workloads = kubectl
            .list(&["get", "deployments,daemonsets", "--namespace=kubevirt"])
            .unwrap();
        let registrations = kubectl
            .list(&[
                "get",
                "apiservices,validatingwebhookconfigurations,mutatingwebhookconfigurations",
                "--selector=kubevirt.io",
            ])
            .unwrap();
        let unready = workloads.iter().filter(|workload| !is_ready(workload));
        Self {
            unready: unready
                .map(|workload| workload["metadata"]["name"].to_string())
                .collect(),
            backends: registrations.iter().map(backend).collect(),
        }
    }
}

fn is_ready(workload: &Value) -> bool {
    let status = &workload["status"];
    match workload["kind"].as_str() {
        Some("Deployment") => status["readyReplicas"] == workload["spec"]["replicas"],
        _ => {
            status["numberReady"] == status["desiredNumberScheduled"] && status["numberReady"] != 0
        }
    }
}

/// Namespace of the Service that a registration points at.
fn backend(registration: &Value) -> Value {
    match &registration["webhooks"][0] {
        Value::Null => registration["spec"]["service"]["namespace"].clone(),
        hook => hook["clientConfig"]["service"]["namespace"].clone(),
    }
}

/// A deletion of what the release had in its old namespace.
fn is_pruning(seen: &Seen) -> bool {
    seen.method == http::Method::DELETE && seen.path.contains(&format!("/namespaces/{FORMER}/"))
}

fn is_registration(path: &str) -> bool {
    [
        "/apis/apiregistration.k8s.io/",
        "/apis/admissionregistration.k8s.io/",
    ]
    .iter()
    .any(|group| path.starts_with(group))
}

/// Every place of the events that the function says yes to.
fn places(events: &Events, which: impl Fn(&Event) -> bool) -> Vec<usize> {
    let places: Vec<usize> = events
        .0
        .iter()
        .enumerate()
        .filter(|(_, event)| which(event))
        .map(|(place, _)| place)
        .collect();
    assert!(!places.is_empty(), "{events}");
    places
}

#[tokio::test(flavor = "multi_thread")]
async fn the_example_moves_and_leaves_nothing_behind() {
    if !isolated::inside("upgrade::the_example_moves_and_leaves_nothing_behind").unwrap() {
        return;
    }
    let mut fleet = Fleet::start().await;
    fleet.scene.start_user(PATIENCE).await.unwrap();
    fleet.edit(OLD, NEW);

    let snapshot: Arc<Mutex<Option<Snapshot>>> = Arc::default();
    let taken = Arc::clone(&snapshot);
    let kubectl = fleet.scene.kubectl.clone();
    let look = Fault::hook(Moment::AfterAnswer, move || {
        *taken.lock().unwrap() = Some(Snapshot::take(&kubectl));
    });
    fleet.scene.proxy.reset();
    fleet.scene.proxy.add(Rule::on(is_pruning, look).nth(1));
    let begun = Timestamp::now();
    let run = fleet.apply().await.ended_with(0).unwrap();
    let requests = fleet.requests(begun).await.writes();
    assert!(
        run.says("release demo.kubevirt v0.12.0: deployed")
            && run.says("release demo.web v1.0.0: unchanged"),
        "{run}"
    );

    fleet.scene.has_moved_to("kubevirt").await.unwrap();
    fleet.scene.world.more_writes(20, PATIENCE).await.unwrap();
    let (installed, inventory) = proof::record(&fleet.scene.kubectl, "demo.kubevirt").unwrap();
    assert!(installed.ready && installed.applying.is_none());
    assert_eq!(installed.installed.unwrap().version, "v0.12.0");
    for (id, entry) in &inventory.entries {
        assert_ne!(id.namespace.as_deref(), Some(FORMER), "{id}");
        let expected = match id.kind.as_str() {
            "APIService" | "Endpoints" => EntryState::Observed,
            kind if kind.ends_with("WebhookConfiguration") => EntryState::Observed,
            "Secret" => EntryState::Observed,
            _ => EntryState::Applied,
        };
        assert_eq!(entry.state, expected, "{id}");
        assert!(entry.uid.is_some(), "{id}");
    }

    // What the old version registered goes before the workloads of the new one
    // come; what else it had goes after they are ready and have registered.
    let is_delete = |event: &Event| event.verb == "delete";
    let deletes_registration =
        |event: &Event| is_delete(event) && is_registration(&event.request_uri);
    let applies_workload = |event: &Event| {
        let object = event.object_ref.as_ref().unwrap();
        object.api_group == "apps" && object.namespace == "kubevirt" && event.verb == "patch"
    };
    let prunes = |event: &Event| {
        let object = event.object_ref.as_ref().unwrap();
        is_delete(event) && object.namespace == FORMER
    };
    let registrations = places(&requests, deletes_registration);
    let workloads = places(&requests, applies_workload);
    let pruned = places(&requests, prunes);
    assert_eq!(registrations.len(), 3, "{requests}");
    assert_eq!(workloads.len(), 3, "{requests}");
    assert_eq!(pruned.len(), 12, "{requests}");
    let api = |place: &&usize| {
        let object = requests.0[**place].object_ref.as_ref().unwrap();
        object.name == "virt-api"
    };
    let api = workloads.iter().find(api).unwrap();
    assert!(registrations.last() < Some(api), "{requests}");
    assert!(workloads.last() < pruned.first(), "{requests}");
    let everything_else = requests
        .0
        .iter()
        .rposition(|event| event.verb == "patch" && !is_record(event));
    assert!(everything_else < pruned.first().copied(), "{requests}");
    let snapshot = snapshot
        .lock()
        .unwrap()
        .take()
        .expect("something was pruned");
    assert_eq!(snapshot.unready, Vec::<String>::new());
    assert_eq!(snapshot.backends, ["kubevirt"; 3]);

    // Nothing is deleted that is not the very object that was looked at.
    let log = fleet.scene.proxy.log();
    let mut deleted = 0;
    for seen in log
        .writes()
        .filter(|seen| seen.method == http::Method::DELETE)
    {
        let preconditions = &seen.delete_options["preconditions"];
        if !seen.path.contains("/namespaces/pleach-system/") {
            assert!(preconditions["uid"].is_string(), "{seen:?}");
            deleted += 1;
        }
        if is_registration(&seen.path) {
            assert!(preconditions["resourceVersion"].is_string(), "{seen:?}");
        }
    }
    assert_eq!(deleted, registrations.len() + pruned.len());

    // Again: nothing to write, nothing to ask.
    let begun = Timestamp::now();
    let run = fleet.apply().await.ended_with(0).unwrap();
    assert!(
        run.says("release demo.kubevirt v0.12.0: unchanged"),
        "{run}"
    );
    Fleet::has_no_writes(&fleet.requests(begun).await);

    // And back, which is no other than forth; the namespace it made stays.
    fleet.edit(NEW, OLD);
    let run = fleet.apply().await.ended_with(0).unwrap();
    for line in [
        "release demo.kubevirt v0.12.0 -> v0.11.0",
        "kept Namespace/kubevirt: no longer in git; stays because objects of kind Namespace are protected",
        "release demo.kubevirt v0.11.0: deployed",
    ] {
        assert!(run.says(line), "{run}");
    }
    let kubectl = &fleet.scene.kubectl;
    let empty = ["ConfigMap/kube-root-ca.crt", "ServiceAccount/default"];
    let empty = empty.map(str::to_owned).into();
    proof::nothing_left(kubectl, "kubevirt", &empty, &[]).unwrap();
    proof::registrations_point_at(kubectl, &Product::kubevirt(), FORMER).unwrap();
    proof::no_dead_registration(kubectl).unwrap();
    proof::subjects_moved(kubectl, "kubevirt", FORMER).unwrap();
    fleet.scene.world.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn an_upgrade_that_never_gets_ready_takes_nothing_away() {
    if !isolated::inside("upgrade::an_upgrade_that_never_gets_ready_takes_nothing_away").unwrap() {
        return;
    }
    let mut fleet = Fleet::start().await;
    let members = proof::contents(&fleet.scene.kubectl, FORMER).unwrap();

    // No node has this label, so that the new pods wait for ever.
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
    assert!(
        run.says("failed Deployment.apps/kubevirt/virt-api: "),
        "{run}"
    );
    assert!(run.says("release demo.kubevirt v0.12.0: failed"), "{run}");

    // Nothing was pruned, and the record says how far it went.
    let now = proof::contents(&fleet.scene.kubectl, FORMER).unwrap();
    let gone: Vec<&String> = members.difference(&now).collect();
    assert_eq!(gone, Vec::<&String>::new());
    let release = fleet
        .scene
        .kubectl
        .json(&["get", "releases.pleach.dev", "demo.kubevirt"])
        .unwrap();
    let ready = &release["status"]["conditions"][0];
    assert_eq!(ready["type"], "Ready");
    assert_eq!(ready["status"], "False", "{ready}");
    assert_eq!(ready["reason"], "Failed", "{ready}");
    assert!(
        ready["message"]
            .as_str()
            .unwrap()
            .starts_with("Deployment.apps/kubevirt/virt-api: "),
        "{ready}"
    );
    let (installed, inventory) = proof::record(&fleet.scene.kubectl, "demo.kubevirt").unwrap();
    assert_eq!(installed.installed.unwrap().version, "v0.11.0");
    assert_eq!(installed.applying.unwrap().version, "v0.12.0");
    assert_eq!(installed.history[0].result, "failed");
    for namespace in [FORMER, "kubevirt"] {
        let id = format!("Deployment.apps/{namespace}/virt-api");
        assert!(
            inventory.entries.keys().any(|key| key.to_string() == id),
            "{id}"
        );
    }

    // What was wrong is put right, in git, and the next run goes to the end.
    fleet.edit(&broken, NEW);
    let run = fleet.apply().await.ended_with(0).unwrap();
    assert!(run.says("release demo.kubevirt v0.12.0: deployed"), "{run}");
    fleet.scene.start_user(PATIENCE).await.unwrap();
    fleet.scene.has_moved_to("kubevirt").await.unwrap();
    let begun = Timestamp::now();
    fleet.apply().await.ended_with(0).unwrap();
    Fleet::has_no_writes(&fleet.requests(begun).await);
    fleet.scene.world.stop().await.unwrap();
}

/// A write of what pleach keeps for itself.
fn is_record(event: &Event) -> bool {
    event.object_ref.as_ref().is_some_and(|object| {
        object.namespace == "pleach-system" || object.api_group == "pleach.dev"
    })
}
