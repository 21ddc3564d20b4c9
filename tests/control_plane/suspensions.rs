//! User requests without git: suspend, resume and sync.

use crate::fleet::{Fleet, object_writes};
use crate::samples::{BUNDLE, config_map};

/// Returns two installed releases. `lines` selects the store of their records.
fn fleet(environment: &'static str, lines: &str) -> Fleet {
    let release =
        |name: &str| format!("  - {{name: {name}, bundle: {name}, namespace: {environment}}}\n");
    let fleet = Fleet::new(
        environment,
        &[release("web"), release("api")].concat(),
        &[
            ("manifests/web/bundle.yaml", BUNDLE),
            ("manifests/web/web.yaml", &config_map("web", "old")),
            ("manifests/api/bundle.yaml", BUNDLE),
            ("manifests/api/api.yaml", &config_map("api", "old")),
        ],
    );
    fleet.extend_environment(lines);
    fleet.commit();
    fleet.create_namespace(environment);
    fleet.applied();
    fleet
}

/// Runs a suspended release through its lifecycle. `args` select its store.
fn check(environment: &'static str, lines: &str, args: &[&str]) {
    let fleet = fleet(environment, lines);
    let web = format!("{environment}/web");
    // Neither command needs a repository.
    let away = tempfile::tempdir().unwrap();
    let run = |words: &[&str]| fleet.run_in(away.path(), &[words, args].concat());
    let suspend = [
        "suspend",
        &web,
        "--for",
        "2h",
        "--reason",
        "the database moves",
    ];
    let (done, events) = fleet.watched(|_| run(&suspend).ended_with(0));
    done.says(&format!("{web}: suspended by "))
        .says("Z: the database moves");
    // The ConfigMap of a record looks like any other object.
    let record = format!("/{environment}.web 200");
    let others: Vec<String> = object_writes(&events);
    assert!(
        others.iter().all(|line| line.ends_with(&record)),
        "{others:?}"
    );
    let status = run(&["status", environment]).ended_with(0);
    let shown = status.shown();
    assert_eq!(shown.matches("suspended by ").count(), 1, "{shown}");
    let json = run(&["status", environment, "-o", "json"]).json();
    let of = |name: &str| {
        let releases = json["releases"].as_array().unwrap();
        let one = releases.iter().find(|one| one["release"] == name);
        one.unwrap()["orders"].clone()
    };
    assert_eq!(of("web")["suspend"]["reason"], "the database moves");
    assert_eq!(of("web")["suspended"], true);
    assert_eq!(of("api")["suspended"], false);

    // It stops the controller. A local apply shows a warning, and the request is retained.
    fleet.edit("manifests/web/web.yaml", "k: old", "k: new");
    fleet.commit();
    fleet
        .run(&["plan", environment])
        .ended_with(0)
        .says(&format!("release {environment}.web is suspended by "));
    fleet
        .applied()
        .says(&format!("release {environment}.web is suspended by "))
        .says("1 updated");
    run(&["status", environment]).says("the database moves");
    fleet.diff().ended_with(0);

    // The request is replaced, then ended.
    run(&["suspend", environment])
        .ended_with(0)
        .says("until it is resumed");
    run(&["resume", &web])
        .ended_with(0)
        .says("resumed; it was suspended by ");
    run(&["resume", &web])
        .ended_with(0)
        .says("was not suspended");
    let json = run(&["status", environment, "-o", "json"]).json();
    let suspended: Vec<bool> = json["releases"]
        .as_array()
        .unwrap()
        .iter()
        .map(|one| one["orders"]["suspended"].as_bool().unwrap())
        .collect();
    assert_eq!(suspended, [true, false]);

    // A request is recorded; without a controller nothing happens.
    run(&["sync", environment, "--override-window"])
        .ended_with(0)
        .says(&format!("{web}: sync requested"))
        .says(&format!("{environment}/api is suspended by "))
        .says("the controller that follows these releases executes the request");
    let json = run(&["status", environment, "-o", "json"]).json();
    for one in json["releases"].as_array().unwrap() {
        assert_eq!(one["orders"]["sync"]["overrideWindow"], true);
        assert!(one["orders"]["sync"]["by"].is_string());
    }
    run(&["status", environment]).says("sync requested by");
    // A request does not mark a release as unfinished.
    let (_, events) = fleet.watched(Fleet::applied);
    assert_eq!(events.writes().to_string(), "");
}

#[test]
fn what_is_said_is_kept_in_the_release() {
    check("said", "", &[]);
    // The CRD of previous versions rejects unknown fields.
    let fleet = fleet("said-former", "");
    fleet.kubectl(&[
        "patch", "crd", "releases.pleach.dev", "--type=json", "-p",
        r#"[{"op": "remove", "path": "/spec/versions/0/schema/openAPIV3Schema/properties/spec/properties/suspend"},
            {"op": "replace", "path": "/metadata/annotations/pleach.dev~1definition-revision", "value": "1"}]"#,
    ]);
    fleet.run(&["suspend", "said-former"]).ended_with(0);
    fleet
        .run(&["status", "said-former"])
        .says("said-former/web: suspended by ");
}

#[test]
fn what_is_said_is_kept_in_a_config_map() {
    let state = "state: {kind: ConfigMap, namespace: said-map}\n";
    check("said-map", state, &["--state-namespace", "said-map"]);
}

#[test]
fn only_what_is_installed_in_the_right_cluster_is_suspended() {
    let fleet = fleet("said-where", "");
    fleet
        .run(&["suspend", "said-where/nothing"])
        .ended_with(1)
        .says("nothing of said-where/nothing is installed");
    fleet
        .run(&["suspend", "said-where", "--for", "0s"])
        .ended_with(2);
    let id = fleet.cluster_id();
    fleet.edit_environment(&id, "00000000-0000-0000-0000-000000000000");
    let (run, events) = fleet.watched(|fleet| fleet.run(&["suspend", "said-where"]));
    run.ended_with(7).says("is not cluster");
    assert_eq!(events.writes().to_string(), "");
}

#[test]
fn what_belongs_to_another_repository_is_left_alone() {
    let fleet = fleet("said-theirs", "");
    fleet.edit("pleach.yaml", "id: said-theirs", "id: somebody-else");
    for order in ["suspend", "resume", "sync"] {
        let (run, events) = fleet.watched(|fleet| fleet.run(&[order, "said-theirs"]));
        run.ended_with(7)
            .says("said-theirs/web belongs to repository ")
            .says(", not to somebody-else")
            .says("hint: run the command in that repository");
        assert_eq!(events.writes().to_string(), "", "{order}");
    }
    // Without a repository, the owner is unknown.
    let elsewhere = tempfile::tempdir().unwrap();
    fleet
        .run_in(elsewhere.path(), &["suspend", "said-theirs"])
        .ended_with(0);
}

/// Another repository has an environment of the same name.
#[test]
fn a_broken_environment_file_does_not_widen_a_request() {
    let ours = apart("widened", "widened", "widened-ours");
    let theirs = apart("widened", "others", "widened-theirs");
    ours.write("environments/widened.yaml", "kind: [\n");
    ours.commit();
    ours.run(&["sync", "widened"])
        .ended_with(0)
        .says("the repository is ignored")
        .says("widened/web belongs to repository others, not to widened; it is skipped");
    let orders = |fleet: &Fleet, namespace: &str| {
        fleet.field(
            &["configmap", "widened.web", "-n", namespace],
            "{.data.orders}",
        )
    };
    assert!(orders(&ours, "widened-ours").contains("\"sync\":{"));
    assert_eq!(orders(&theirs, "widened-theirs"), "");
    // An unaccepted request can be withdrawn.
    ours.run(&["sync", "widened", "--withdraw"])
        .ended_with(0)
        .says("is withdrawn");
    assert!(orders(&ours, "widened-ours").contains("\"sync\":null"));
}

/// Returns an installed release `web` of a repository, with its state in a namespace.
pub(crate) fn apart(environment: &'static str, repository: &str, namespace: &'static str) -> Fleet {
    let release = format!("  - {{name: web, bundle: web, namespace: {namespace}}}\n");
    let fleet = Fleet::new(
        environment,
        &release,
        &[
            ("manifests/web/bundle.yaml", BUNDLE),
            ("manifests/web/web.yaml", &config_map("web", "old")),
        ],
    );
    fleet.write(
        "pleach.yaml",
        &format!("apiVersion: pleach.dev/v1alpha1\nkind: Repository\nid: {repository}\n"),
    );
    fleet.extend_environment(&format!(
        "state: {{kind: ConfigMap, namespace: {namespace}}}\n"
    ));
    fleet.commit();
    fleet.create_namespace(namespace);
    fleet.applied();
    fleet
}
