//! The program is killed at writes of an apply. The next run continues, and the final state is the
//! same as without the kill (I8). `make chaos` kills once at every write.

use std::collections::BTreeMap;

use pleach_fields::diff::normalize::normalized;
use pleach_testkit::faults::Moment;
use rstest::rstest;
use serde_json::Value;

use crate::fleet::{Fleet, object_writes, owners};
use crate::kill;
use crate::samples::{BUNDLE, config_map, deployment};

/// Upper limit of writes per apply in these tests.
const MOST_WRITES: usize = 60;

/// Writes one of the two desired states between which the release alternates. Each has an object
/// that the other lacks.
fn write(fleet: &Fleet, name: &str) {
    let app = deployment("app").replace("app:1", &format!("app:{name}"));
    let files = [
        config_map("settings", name),
        config_map(&format!("only-{name}"), "v"),
        app,
        format!(
            "apiVersion: v1\nkind: Secret\nmetadata: {{name: key}}\nstringData: {{k: Xq7hush9vB2-{name}}}\n"
        ),
    ];
    fleet.write("manifests/web/web.yaml", &files.join("---\n"));
    fleet.commit();
}

/// Bundle with many temporary changes.
const TEMPORARY: &str = "\
overlays:
  - {name: hold, target: {kind: ConfigMap, name: theirs}, patch: {data: {mode: slow, extra: x}}, from: preflight, until: verify}
  - {name: own, target: {kind: ConfigMap, name: settings}, patch: {data: {k: meanwhile, other: x}}, from: gates, until: registrations}
  - {name: pause, target: {kind: Deployment, name: app}, patch: {spec: {paused: true}}}
stages:
  - {name: again, restart: [{kind: Deployment, name: app}], after: [resources]}
";

/// Returns all objects of the release and pleach's records.
fn state(fleet: &Fleet) -> BTreeMap<String, Value> {
    let release = format!("{}.web", fleet.environment);
    let mut all = BTreeMap::new();
    let kinds = [
        ("ConfigMap", "configmap"),
        ("Secret", "secret"),
        ("Deployment", "deployment"),
    ];
    let objects = kinds.into_iter().flat_map(|(kind, name)| {
        let list = fleet.list(name, "applyset.kubernetes.io/part-of");
        list.into_iter().map(move |object| (kind, object))
    });
    for (kind, object) in objects {
        let name = format!("{kind}/{}", object["metadata"]["name"].as_str().unwrap());
        let mut owners = owners(&object);
        // A restart is retained.
        owners.retain(|owner| owner != "pleach-restart Update");
        assert_eq!(owners, [format!("pleach/{release} Apply")], "{object}");
        let mut value = normalized(&object, false);
        if let Some(metadata) = value["metadata"].as_object_mut() {
            // Ignore the rollout counter.
            metadata.shift_remove("annotations");
        }
        all.insert(name, value);
    }
    let record = fleet.get(&["release", &release]).unwrap();
    let condition = &record["status"]["conditions"][0];
    all.insert("ready".to_owned(), condition["status"].clone());
    all.insert("reason".to_owned(), condition["reason"].clone());
    all
}

/// Returns an unrelated object with its owners, without fields that change with every write.
fn theirs(fleet: &Fleet) -> Value {
    let mut value = fleet
        .get(&["configmap", "theirs", "-n", fleet.environment])
        .unwrap();
    let metadata = value["metadata"].as_object_mut().unwrap();
    metadata.shift_remove("resourceVersion");
    for entry in metadata["managedFields"].as_array_mut().unwrap() {
        entry.as_object_mut().unwrap().shift_remove("time");
    }
    value
}

/// Writes a desired state that additionally has a Job that runs once per state.
fn write_with_job(fleet: &Fleet, name: &str) {
    write(fleet, name);
    let job = "---\napiVersion: batch/v1\nkind: Job\nmetadata: {name: migrate, annotations: {pleach.dev/run: once}}\nspec:\n  completions: 0\n  template: {spec: {restartPolicy: Never, containers: [{name: c, image: none, envFrom: [{configMapRef: {name: settings}}]}]}}\n";
    let objects = fleet.read("manifests/web/web.yaml");
    fleet.write("manifests/web/web.yaml", &(objects + job));
    fleet.commit();
}

/// Returns the Job runs in the journal, which must contain nothing else.
fn only_runs(fleet: &Fleet) -> Value {
    let name = format!("{}.web.journal", fleet.environment);
    let object = fleet
        .get(&["configmap", &name, "-n", "pleach-system"])
        .unwrap();
    let journal: Value = serde_json::from_str(object["data"]["journal"].as_str().unwrap()).unwrap();
    assert_eq!(journal["overlays"], serde_json::json!({}));
    journal["runs"].clone()
}

/// Returns the number of inventory shards, including unreferenced ones.
fn shards(fleet: &Fleet) -> usize {
    let all = fleet.state_maps("");
    let start = format!("{}.web.inventory.", fleet.environment);
    all.iter().filter(|name| name.starts_with(&start)).count()
}

/// Applies and kills the program at the nth write. Returns whether it was killed.
fn killed_at(fleet: &mut Fleet, moment: Moment, nth: usize) -> bool {
    let environment = fleet.environment;
    let killed = kill::at_write(fleet, &["apply", environment, "--yes"], moment, nth);
    if !killed {
        // The run completed, so nothing is left to do.
        fleet.writes_nothing(Fleet::applied);
    }
    killed
}

#[rstest]
#[case::before("crash-before", Moment::BeforeForwarding, 1)]
#[case::unanswered("crash-unanswered", Moment::AfterForwarding, 2)]
fn a_kill_at_a_write_changes_nothing_about_the_end(
    #[case] environment: &'static str,
    #[case] moment: Moment,
    #[case] first: usize,
) {
    let release = format!("  - {{name: web, bundle: web, namespace: {environment}}}\n");
    let mut fleet = Fleet::new(
        environment,
        &release,
        &[("manifests/web/bundle.yaml", BUNDLE)],
    );
    fleet.create_namespace(environment);

    // Record the states without a kill.
    let names = ["red", "blue"];
    let mut expected = Vec::new();
    for name in names {
        write(&fleet, name);
        fleet.applied();
        expected.push(state(&fleet));
    }
    assert_ne!(expected[0], expected[1]);
    let usual = shards(&fleet);

    let mut kills = 0;
    for nth in (first..MOST_WRITES).step_by(2) {
        let side = kills % 2;
        write(&fleet, names[side]);
        if !killed_at(&mut fleet, moment, nth) {
            break;
        }
        kills += 1;
        fleet.applied();
        let mut state = state(&fleet);
        state.retain(|name, value| expected[side].get(name) != Some(value));
        assert!(state.is_empty(), "killed at write {nth}: {state:#?}");
        let (_, events) = fleet.watched(Fleet::applied);
        assert_eq!(events.writes().to_string(), "", "killed at write {nth}");
    }
    // Writes of the record, its shards, four changes and a deletion.
    assert!((4..MOST_WRITES / 2 - 1).contains(&kills), "{kills}");
    // The next run that writes a shard removes unreferenced ones.
    assert_eq!(shards(&fleet), usual);
}

/// Kills at every second write, each at one of three moments.
#[rstest]
#[case::before("while-before", Moment::BeforeForwarding, 1)]
#[case::unanswered("while-unanswered", Moment::AfterForwarding, 3)]
#[case::answered("while-answered", Moment::AfterAnswer, 5)]
fn a_kill_while_things_are_different_leaves_nothing_different(
    #[case] environment: &'static str,
    #[case] moment: Moment,
    #[case] first: usize,
) {
    let release = format!("  - {{name: web, bundle: web, namespace: {environment}}}\n");
    let bundle = format!("{BUNDLE}{TEMPORARY}");
    let mut fleet = Fleet::new(
        environment,
        &release,
        &[("manifests/web/bundle.yaml", bundle.as_str())],
    );
    fleet.create_namespace(environment);
    let file = fleet.file(
        "theirs.yaml",
        "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: theirs}\ndata: {mode: fast, more: z}\n",
    );
    fleet.kubectl(&[
        "apply",
        "--server-side",
        "--field-manager=helm",
        "-n",
        environment,
        "-f",
        &file,
    ]);
    let untouched = theirs(&fleet);
    let names = ["red", "blue"];
    let (mut expected, mut runs) = (Vec::new(), Vec::new());
    // One more iteration than states, because the restart mark exists from the second one on.
    for name in ["blue", names[0], names[1]] {
        write_with_job(&fleet, name);
        fleet.applied();
        expected.push(state(&fleet));
        assert_eq!(theirs(&fleet), untouched);
        runs.push(only_runs(&fleet));
    }
    let (expected, runs) = (expected.split_off(1), runs.split_off(1));
    assert_ne!(runs[0], runs[1]);
    let (mut kills, mut current) = (0, 1);
    for nth in (first..MOST_WRITES).step_by(6) {
        let side = 1 - current;
        write_with_job(&fleet, names[side]);
        if !killed_at(&mut fleet, moment, nth) {
            break;
        }
        kills += 1;
        // In every second iteration, a newer revision arrives before the run that continues.
        let side = if kills % 2 == 1 { side } else { current };
        current = side;
        write_with_job(&fleet, names[side]);
        fleet.applied();
        let mut state = state(&fleet);
        state.retain(|name, value| expected[side].get(name) != Some(value));
        assert!(state.is_empty(), "killed at write {nth}: {state:#?}");
        assert_eq!(theirs(&fleet), untouched, "killed at write {nth}");
        assert_eq!(only_runs(&fleet), runs[side], "killed at write {nth}");
        let (_, events) = fleet.watched(Fleet::applied);
        assert_eq!(events.writes().to_string(), "", "killed at write {nth}");
    }
    assert!((3..MOST_WRITES / 6).contains(&kills), "{kills}");
}

#[rstest]
#[case::before("born-before", Moment::BeforeForwarding)]
#[case::unanswered("born-unanswered", Moment::AfterForwarding)]
fn a_first_apply_that_is_killed_again_and_again_gets_done(
    #[case] environment: &'static str,
    #[case] moment: Moment,
) {
    let release = format!("  - {{name: web, bundle: web, namespace: {environment}}}\n");
    let mut fleet = Fleet::new(
        environment,
        &release,
        &[("manifests/web/bundle.yaml", BUNDLE)],
    );
    write(&fleet, "red");
    // Each run gets one write further than the previous one.
    let mut kills = 0;
    while kills < MOST_WRITES && killed_at(&mut fleet, moment, kills + 1) {
        kills += 1;
    }
    assert!((3..MOST_WRITES).contains(&kills), "{kills}");
    let (_, events) = fleet.watched(Fleet::applied);
    assert_eq!(object_writes(&events), [""; 0]);
    let state = state(&fleet);
    assert_eq!(state["ready"], "True");
    for name in [
        "ConfigMap/settings",
        "ConfigMap/only-red",
        "Secret/key",
        "Deployment/app",
    ] {
        assert!(state.contains_key(name), "{name}");
    }
}
