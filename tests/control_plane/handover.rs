//! Objects that move between releases (`movedFrom`), and releases that move to another namespace
//! (`moves`).

use pleach_testkit::faults::Moment;
use rstest::rstest;

use crate::fleet::{Fleet, object_writes, owners};
use crate::{kill, samples};

/// Returns ConfigMaps and a Deployment. The new release contains all but one.
fn manifests(names: &[&str]) -> String {
    let maps = names.iter().map(|name| samples::config_map(name, "v"));
    maps.chain([samples::deployment("shop")])
        .collect::<Vec<_>>()
        .join("---\n")
}

fn old(environment: &str) -> String {
    format!("  - {{name: old, bundle: shop, namespace: {environment}}}\n")
}

fn new(environment: &str, from: &str) -> String {
    format!(
        "  - {{name: new, bundle: next, namespace: {environment}, movedFrom: {{environment: {from}, release: old}}}}\n"
    )
}

fn fleet(environment: &'static str) -> Fleet {
    Fleet::new(
        environment,
        &old(environment),
        &[
            ("manifests/shop/bundle.yaml", samples::BUNDLE),
            ("manifests/shop/all.yaml", &manifests(&["a", "b", "c"])),
            ("manifests/next/bundle.yaml", samples::BUNDLE),
            ("manifests/next/all.yaml", &manifests(&["a", "b"])),
        ],
    )
}

fn uids(fleet: &Fleet) -> Vec<String> {
    ["cm/a", "cm/b", "deployment/shop"]
        .map(|object| fleet.field(&["-n", fleet.environment, object], "{.metadata.uid}"))
        .into()
}

/// Verifies that the new release owns all objects of the old one without recreating them.
fn assert_handed_over(fleet: &Fleet, uids_before: &[String]) {
    assert_eq!(uids(fleet), uids_before);
    let environment = fleet.environment;
    let set = fleet.field(
        &["release", &format!("{environment}.new")],
        r"{.metadata.labels.applyset\.kubernetes\.io/id}",
    );
    for object in ["cm/a", "cm/b", "deployment/shop"] {
        let label = r"{.metadata.labels.applyset\.kubernetes\.io/part-of}";
        assert_eq!(
            fleet.field(&["-n", environment, object], label),
            set,
            "{object}"
        );
        let object = fleet.get(&["-n", environment, object]).unwrap();
        let owners = owners(&object);
        let ours = format!("pleach/{environment}.new Apply");
        assert!(owners.contains(&ours), "{owners:?}");
        let theirs = format!("pleach/{environment}.old Apply");
        assert!(!owners.contains(&theirs), "{owners:?}");
    }
}

#[test]
fn objects_are_handed_over_instead_of_deleted() {
    let fleet = fleet("moves");
    fleet.applied();
    let uids = uids(&fleet);
    fleet.edit_environment(&old("moves"), &new("moves", "moves"));
    fleet.commit();
    fleet
        .diff()
        .ended_with(10)
        .says("it exists and is adopted from pleach/moves.old")
        .says("ConfigMap/moves/c: no longer in git");

    // Nothing is deleted. The last object waits for consent.
    let (run, events) = fleet.watched(Fleet::applied);
    run.says("release moves.new")
        .says("3 adopted")
        .says("release moves.old");
    assert!(
        object_writes(&events)
            .iter()
            .all(|line| !line.starts_with("delete")),
        "{events:?}"
    );
    assert_handed_over(&fleet, &uids);
    assert!(fleet.exists(&["-n", "moves", "cm/c"]));
    let (_, events) = fleet.watched(Fleet::applied);
    assert_eq!(events.writes().to_string(), "");

    // With consent, only the remaining objects and the record are removed.
    fleet.extend_environment("consent: [{action: uninstall, release: old}]\n");
    fleet.commit();
    let (_, events) = fleet.watched(Fleet::applied);
    let deleted: Vec<String> = object_writes(&events)
        .into_iter()
        .filter(|line| line.starts_with("delete"))
        .collect();
    assert_eq!(deleted, ["delete configmaps moves/c 200"]);
    assert!(!fleet.exists(&["release", "moves.old"]));
    assert_handed_over(&fleet, &uids);
    fleet.writes_nothing(Fleet::applied);
}

#[test]
fn objects_are_handed_over_with_the_consent_in_the_same_commit() {
    let fleet = fleet("moves-now");
    fleet.applied();
    let uids = uids(&fleet);
    fleet.edit_environment(&old("moves-now"), &new("moves-now", "moves-now"));
    fleet.extend_environment("consent: [{action: uninstall, release: old}]\n");
    fleet.commit();
    // The plan shows the handover beforehand.
    fleet
        .diff()
        .ended_with(10)
        .says("3 to adopt")
        .says("1 to delete");
    fleet.applied();
    assert_handed_over(&fleet, &uids);
    assert!(!fleet.exists(&["-n", "moves-now", "cm/c"]));
    fleet.applied();
    assert!(!fleet.exists(&["release", "moves-now.old"]));
}

#[test]
fn objects_are_handed_over_to_another_environment() {
    let fleet = fleet("moves-from");
    fleet.applied();
    let uids = uids(&fleet);
    let id = fleet.cluster_id();
    fleet.write(
        "environments/moves-to.yaml",
        &format!(
            "apiVersion: pleach.dev/v1alpha1\nkind: Environment\ncluster: {{id: {id}}}\nreleases:\n{}",
            new("moves-from", "moves-from")
        ),
    );
    fleet.edit_environment(&old("moves-from"), "");
    fleet.edit_environment("releases:\n", "releases: []\n");
    fleet.extend_environment("consent: [{action: uninstall, release: old}]\n");
    fleet.commit();
    // In any order, objects to be handed over are not deleted.
    let (run, events) = fleet.watched(Fleet::applied);
    run.says("it is handed over to release moves-to.new");
    let deleted: Vec<String> = object_writes(&events)
        .into_iter()
        .filter(|line| line.starts_with("delete"))
        .collect();
    assert_eq!(deleted, ["delete configmaps moves-from/c 200"]);
    assert!(fleet.exists(&["release", "moves-from.old"]));
    fleet
        .run(&["apply", "moves-to", "--yes"])
        .ended_with(0)
        .says("3 adopted");
    assert_eq!(uids, self::uids(&fleet));
    // Its environment contains the consent, and nothing remains.
    fleet.applied();
    assert!(!fleet.exists(&["release", "moves-from.old"]));
    assert_eq!(uids, self::uids(&fleet));
    // Another release cannot take the objects without `movedFrom`.
    let (_, events) =
        fleet.watched(|fleet| fleet.run(&["apply", "moves-to", "--yes"]).ended_with(0));
    assert_eq!(events.writes().to_string(), "");
}

#[test]
fn what_a_renamed_environment_leaves_behind_is_uninstalled() {
    let fleet = fleet("renamed-from");
    fleet.applied();
    let id = fleet.cluster_id();
    fleet.write(
        "environments/renamed-to.yaml",
        &format!(
            "apiVersion: pleach.dev/v1alpha1\nkind: Environment\ncluster: {{id: {id}}}\nreleases:\n{}",
            new("renamed-from", "renamed-from")
        ),
    );
    fleet.remove("environments/renamed-from.yaml");
    fleet.commit();
    fleet
        .run(&["apply", "renamed-to", "--yes"])
        .ended_with(0)
        .says("3 adopted")
        .says("run `pleach uninstall renamed-from/old`");
    assert!(fleet.exists(&["-n", "renamed-from", "cm/c"]));
    fleet
        .run(&["uninstall", "renamed-from/old", "--yes"])
        .ended_with(0);
    assert!(!fleet.exists(&["-n", "renamed-from", "cm/c"]));
    assert!(fleet.exists(&["-n", "renamed-from", "cm/a"]));
}

#[test]
fn objects_of_another_release_are_refused_without_being_named() {
    let fleet = fleet("grabs");
    fleet.applied();
    let moved = new("grabs", "grabs").replace("release: old", "release: older");
    fleet.edit_environment(&old("grabs"), &moved);
    fleet.commit();
    fleet
        .apply()
        .ended_with(5)
        .says("it is part of release grabs.old")
        .says("nothing of release grabs.new was written");
    // The run of the previous release only records that git no longer has it.
    assert!(fleet.exists(&["-n", "grabs", "cm/c"]));
    assert!(!fleet.exists(&["releases.pleach.dev", "grabs.new"]));
}

#[rstest]
#[case("cut-before", Moment::BeforeForwarding)]
#[case("cut-after", Moment::AfterForwarding)]
fn a_handover_that_is_killed_is_gone_on_with(
    #[case] environment: &'static str,
    #[case] moment: Moment,
) {
    let mut fleet = fleet(environment);
    fleet.applied();
    let uids = uids(&fleet);
    fleet.edit_environment(&old(environment), &new(environment, environment));
    fleet.extend_environment("consent: [{action: uninstall, release: old}]\n");
    fleet.commit();
    kill::at_every_write(&mut fleet, &["apply", environment, "--yes"], moment);
    fleet.applied();
    assert_handed_over(&fleet, &uids);
    assert!(!fleet.exists(&["-n", environment, "cm/c"]));
    fleet.applied();
    assert!(!fleet.exists(&["release", &format!("{environment}.old")]));
    let (_, events) = fleet.watched(Fleet::applied);
    assert_eq!(events.writes().to_string(), "");
}

/// Returns a release whose two versions are in different namespaces. Both namespaces exist.
pub(crate) fn moving(environment: &'static str) -> Fleet {
    let (old, new) = (format!("{environment}-a"), format!("{environment}-b"));
    let bundle = format!(
        "{}moves:\n  - {{from: {old}, to: {new}, copy: [{{kind: ConfigMap, name: settings}}]}}\n",
        samples::BUNDLE
    );
    let app = |namespace: &str| {
        let name = format!("{{name: shop, namespace: {namespace}}}");
        samples::deployment("shop").replacen("{name: shop}", &name, 1)
    };
    let fleet = Fleet::new(
        environment,
        "  - {name: shop, bundle: shop, version: v1.0.0}\n",
        &[
            ("manifests/shop/bundle.yaml", bundle.as_str()),
            ("manifests/shop/v1.0.0/app.yaml", &app(&old)),
            ("manifests/shop/v1.1.0/app.yaml", &app(&new)),
        ],
    );
    for namespace in [&old, &new] {
        fleet.create_namespace(namespace);
    }
    fleet
}

fn settings(fleet: &Fleet, namespace: &str, value: &str) {
    let literal = format!("--from-literal=k={value}");
    fleet.kubectl(&["create", "configmap", "settings", "-n", namespace, &literal]);
}

#[test]
fn settings_of_users_come_along_and_are_theirs() {
    let fleet = moving("move-copy");
    fleet.applied();
    settings(&fleet, "move-copy-a", "theirs");
    fleet.edit_environment("v1.0.0", "v1.1.0");
    fleet.commit();
    fleet
        .run(&["plan", "move-copy"])
        .ended_with(0)
        .says("+ copy    ConfigMap/move-copy-b/settings  (copied from ConfigMap/move-copy-a/settings, if that exists; an existing object does not change)");
    fleet.applied();
    let copy = ["configmap", "settings", "-n", "move-copy-b"];
    let object = fleet.get(&copy).unwrap();
    assert_eq!(object["data"]["k"], "theirs");
    assert_eq!(owners(&object), ["pleach-copy Update"]);
    // The source belongs to the user and remains. The workload has moved.
    assert!(fleet.exists(&["configmap", "settings", "-n", "move-copy-a"]));
    assert!(!fleet.exists(&["deployment", "shop", "-n", "move-copy-a"]));
    assert!(fleet.exists(&["deployment", "shop", "-n", "move-copy-b"]));
    fleet.writes_nothing(Fleet::applied).says(
        "kept ConfigMap/move-copy-b/settings: copied when the bundle moved; stays because it belongs to the user",
    );
    // It is neither changed nor deleted.
    fleet.kubectl(&[
        "patch",
        "configmap",
        "settings",
        "-n",
        "move-copy-b",
        "--type=merge",
        "-p",
        r#"{"data":{"k":"later"}}"#,
    ]);
    fleet.writes_nothing(Fleet::applied);
    fleet
        .run(&["uninstall", "move-copy/shop", "--yes"])
        .ended_with(0);
    assert_eq!(fleet.field(&copy, "{.data.k}"), "later");
}

#[test]
fn settings_come_along_by_a_pattern() {
    let fleet = moving("move-many");
    fleet.edit(
        "manifests/shop/bundle.yaml",
        "name: settings}",
        "name: \"user-*\"}",
    );
    fleet.commit();
    fleet.applied();
    for (name, value) in [("user-a", "1"), ("user-b", "2"), ("other", "3")] {
        let literal = format!("--from-literal=k={value}");
        fleet.kubectl(&["create", "configmap", name, "-n", "move-many-a", &literal]);
    }
    fleet.edit_environment("v1.0.0", "v1.1.0");
    fleet.commit();
    fleet.applied();
    for (name, value) in [("user-a", "1"), ("user-b", "2")] {
        let copy = ["configmap", name, "-n", "move-many-b"];
        assert_eq!(fleet.field(&copy, "{.data.k}"), value);
    }
    assert!(!fleet.exists(&["configmap", "other", "-n", "move-many-b"]));
    fleet.writes_nothing(Fleet::applied);
}

#[test]
fn what_exists_already_is_not_copied_over() {
    let fleet = moving("move-there");
    fleet.applied();
    settings(&fleet, "move-there-a", "former");
    settings(&fleet, "move-there-b", "here");
    fleet.edit_environment("v1.0.0", "v1.1.0");
    fleet.commit();
    fleet
        .run(&["apply", "move-there", "--yes", "--verbose"])
        .ended_with(0)
        .says("ConfigMap/move-there-b/settings already exists and is left unchanged");
    let copy = ["configmap", "settings", "-n", "move-there-b"];
    assert_eq!(fleet.field(&copy, "{.data.k}"), "here");
    fleet.writes_nothing(Fleet::applied);
}

#[test]
fn without_a_source_there_is_nothing_to_copy() {
    let fleet = moving("move-none");
    fleet.applied();
    fleet.edit_environment("v1.0.0", "v1.1.0");
    fleet.commit();
    fleet
        .run(&["apply", "move-none", "--yes", "--verbose"])
        .ended_with(0)
        .says("ConfigMap/move-none-a/settings does not exist, and is not copied");
    assert!(!fleet.exists(&["configmap", "settings", "-n", "move-none-b"]));
    fleet.writes_nothing(Fleet::applied);
}

#[test]
fn a_move_of_what_nobody_recorded_is_refused() {
    let fleet = moving("move-unknown");
    let file = fleet.file("app.yaml", &samples::deployment("shop"));
    fleet.kubectl(&["apply", "-n", "move-unknown-a", "-f", &file]);
    fleet.edit_environment("v1.0.0", "v1.1.0");
    fleet.commit();
    fleet
        .writes_nothing(|fleet| fleet.apply().ended_with(7))
        .says("Deployment.apps/move-unknown-a/shop still runs, but the release has no record of it")
        .says("adopt the installed version first");
    // Without running pods, nothing is moved.
    fleet.kubectl(&["delete", "deployment", "shop", "-n", "move-unknown-a"]);
    fleet.applied();
    assert!(fleet.exists(&["deployment", "shop", "-n", "move-unknown-b"]));
}

/// Returns the independent releases `base`, `new` in one namespace, and `old` in another one.
fn beside(environment: &'static str) -> Fleet {
    let former = old(&format!("{environment}-a"));
    let releases = format!(
        "  - {{name: base, bundle: base, namespace: {environment}, timeout: 3s}}\n{former}  - {{name: new, bundle: next, namespace: {environment}}}\n"
    );
    Fleet::new(
        environment,
        &releases,
        &[
            ("manifests/base/bundle.yaml", samples::BUNDLE),
            ("manifests/base/all.yaml", &samples::deployment("base")),
            ("manifests/shop/bundle.yaml", samples::BUNDLE),
            ("manifests/shop/all.yaml", &samples::config_map("a", "v")),
            ("manifests/next/bundle.yaml", samples::BUNDLE),
            ("manifests/next/all.yaml", &samples::config_map("a", "v")),
        ],
    )
}

/// The successor existed before and is recorded as ready at its previous version. In this run it
/// was not started.
#[test]
fn what_hands_over_to_a_release_that_failed_in_this_run_stays() {
    let fleet = beside("heir-late");
    fleet.applied();
    let is_ready = || {
        let successor = fleet.get(&["release", "heir-late.new"]).unwrap();
        let record = &successor["status"]["record"];
        record["ready"] == true && record["applying"].is_null()
    };
    assert!(is_ready());

    fleet.edit_environment(&old("heir-late-a"), "");
    fleet.edit_environment(
        "name: new, bundle: next,",
        "name: new, bundle: next, dependsOn: [base], movedFrom: {environment: heir-late, release: old},",
    );
    fleet.extend_environment("consent: [{action: uninstall, release: old}]\n");
    // No pod is ever scheduled on this control plane.
    let never = samples::deployment("base").replace("replicas: 0", "replicas: 1");
    fleet.write("manifests/base/all.yaml", &never);
    // Releases in sync are reconciled without their dependencies.
    fleet.write("manifests/next/all.yaml", &samples::config_map("a", "w"));
    fleet.commit();
    let (run, events) = fleet.watched(Fleet::apply);
    run.ended_with(6)
        .says("release heir-late.new was not started: it depends on release base")
        .says("release heir-late.old was not removed: its successor, release heir-late.new, is not ready");
    let deleted = |line: &String| line.starts_with("delete");
    let writes = object_writes(&events);
    assert!(!writes.iter().any(deleted), "{writes:#?}");
    assert!(fleet.exists(&["-n", "heir-late-a", "cm/a"]));
    assert!(fleet.exists(&["release", "heir-late.old"]));
    // This record would have allowed the removal.
    assert!(is_ready());

    fleet.write("manifests/base/all.yaml", &samples::deployment("base"));
    fleet.commit();
    fleet.applied();
    assert!(!fleet.exists(&["-n", "heir-late-a", "cm/a"]));
    assert!(!fleet.exists(&["release", "heir-late.old"]));
    assert!(fleet.exists(&["-n", "heir-late", "cm/a"]));
}

/// One of two successors is not part of the run, so its record decides.
#[test]
fn what_hands_over_to_a_release_that_is_ready_and_not_asked_for_goes() {
    let fleet = beside("heir-ready");
    fleet.applied();
    let from = "movedFrom: {environment: heir-ready, release: old},";
    for successor in ["name: base, bundle: base,", "name: new, bundle: next,"] {
        fleet.edit_environment(successor, &format!("{successor} {from}"));
    }
    fleet.edit_environment(&old("heir-ready-a"), "");
    fleet.extend_environment("consent: [{action: uninstall, release: old}]\n");
    fleet.commit();
    let apply = ["apply", "heir-ready/new", "--yes"];
    fleet.run(&apply).ended_with(0);
    assert!(!fleet.exists(&["-n", "heir-ready-a", "cm/a"]));
    assert!(!fleet.exists(&["release", "heir-ready.old"]));
}
