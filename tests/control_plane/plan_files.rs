//! `plan --out` and `apply --plan`: exactly the reviewed plan runs, or nothing.
//!
//! The unit tests of `plan::file` have every reason for which a plan is stale.

use crate::fleet::{Fleet, PLANTED, object_writes};

const FILE: &str = "reviewed.json";

fn config(name: &str, color: &str) -> String {
    format!(
        "apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: {name}}}\ndata: {{color: {color}}}\n"
    )
}

/// Returns a release with objects to change, delete, create and retain.
fn reviewed(environment: &'static str) -> Fleet {
    let release =
        format!("- {{name: web, bundle: web, namespace: {environment}, createNamespace: true}}\n");
    let secret = format!(
        "apiVersion: v1\nkind: Secret\nmetadata: {{name: key}}\nstringData: {{key: {PLANTED}}}\n"
    );
    let fleet = Fleet::new(
        environment,
        &release,
        &[
            (
                "manifests/web/bundle.yaml",
                "apiVersion: pleach.dev/v1alpha1\nkind: Bundle\n",
            ),
            ("manifests/web/changing.yaml", &config("changing", "red")),
            ("manifests/web/going.yaml", &config("going", "red")),
            ("manifests/web/staying.yaml", &config("staying", "red")),
            ("manifests/web/key.yaml", &secret),
        ],
    );
    fleet.applied();
    fleet.write("manifests/web/changing.yaml", &config("changing", "green"));
    fleet.write("manifests/web/going.yaml", "# nothing\n");
    fleet.write("manifests/web/coming.yaml", &config("coming", "green"));
    fleet.edit("manifests/web/key.yaml", PLANTED, &format!("{PLANTED}2"));
    fleet.commit();
    fleet.writes_nothing(|fleet| {
        fleet
            .run(&["plan", environment, "--out", FILE])
            .ended_with(0)
    });
    fleet
}

/// Applies the plan file.
#[track_caller]
fn execute(fleet: &Fleet) -> crate::fleet::Run {
    fleet.run(&["apply", fleet.environment, "--plan", FILE])
}

#[test]
fn what_was_reviewed_is_carried_out_without_a_question_and_nothing_else() {
    let fleet = reviewed("planned");
    let text = fleet.read(FILE);
    assert_eq!(crate::fleet::leaks(&text), None, "{text}");
    assert!(!text.contains("green"), "a body is in the file: {text}");
    is_refused_elsewhere(&fleet, &text);

    // Fields of other managers and commits of other files change nothing of the plan. The file says
    // which environment it is for.
    let annotate = ["annotate", "configmap", "changing", "theirs=theirs"];
    fleet.kubectl(&[&annotate[..], &["-n", fleet.environment]].concat());
    fleet.write("README.md", "Read me.\n");
    fleet.commit();
    let (_, events) = fleet.watched(|fleet| fleet.run(&["apply", "--plan", FILE]).ended_with(0));
    assert_eq!(object_writes(&events).len(), 4, "{events}");
    // The file is used up, because its changes have been made.
    fleet.writes_nothing(|fleet| {
        execute(fleet)
            .ended_with(5)
            .says("ConfigMap/planned/changing")
            .says("the plan was to update it, but the new plan is to leave it as it is")
    });

    // The environment can be named too.
    fleet.edit("manifests/web/changing.yaml", "green", "blue");
    fleet.commit();
    fleet.run(&["plan", "planned", "--out", FILE]).ended_with(0);
    let (_, events) = fleet.watched(|fleet| execute(fleet).ended_with(0));
    assert_eq!(object_writes(&events).len(), 1, "{events}");
}

/// Verifies that the plan file is refused for another environment, release, repository and cluster,
/// and that other files are refused.
fn is_refused_elsewhere(fleet: &Fleet, written: &str) {
    for target in ["plan-other", "planned/other"] {
        fleet
            .writes_nothing(|fleet| fleet.run(&["apply", target, "--plan", FILE]).ended_with(2))
            .says("is for planned.web, not for");
    }
    let refused = |text: &str, code: i32, says: &str| {
        fleet.write(FILE, text);
        fleet
            .writes_nothing(|fleet| execute(fleet).ended_with(code))
            .says(says)
    };
    refused("no", 2, "the file is not a plan that pleach wrote");
    refused(r#"{"format": 99}"#, 7, "the file has format 99");

    fleet.edit("pleach.yaml", "id: planned", "id: other");
    let says = "the plan is for repository planned, but this repository is other";
    refused(written, 7, says).says("nothing was written");
    fleet.edit("pleach.yaml", "id: other", "id: planned");

    let file = fleet.environment_file();
    let environment = fleet.read(&file);
    let id = fleet.cluster_id();
    fleet.edit_environment(&format!("{{id: {id}}}"), "{}");
    let says = "the plan is for cluster another";
    refused(&written.replace(&id, "another"), 7, says).says("nothing was written");
    fleet.write(&file, &environment);
    fleet.write(FILE, written);
}

#[test]
fn objects_that_moved_are_all_named_and_nothing_is_written() {
    let fleet = reviewed("plan-moved");
    let kubectl = |args: &[&str]| fleet.kubectl(&[&["-n", "plan-moved"], args].concat());
    let drift = ["--type=merge", "-p", r#"{"data":{"color":"black"}}"#];
    kubectl(&[&["patch", "configmap", "changing"], &drift[..]].concat());
    kubectl(&["delete", "configmap", "staying"]);
    kubectl(&["delete", "configmap", "going"]);
    for name in ["going", "coming"] {
        kubectl(&["create", "configmap", name]);
    }
    fleet.edit("manifests/web/key.yaml", PLANTED, &format!("{PLANTED}3"));
    let run = fleet.writes_nothing(|fleet| execute(fleet).ended_with(5));
    [
        "ConfigMap/plan-moved/changing",
        "the plan was to update it, but the new plan is to leave it blocked",
        "ConfigMap/plan-moved/staying",
        "the plan was to leave it as it is, but the new plan is to create it",
        "ConfigMap/plan-moved/going",
        "the plan was to delete it",
        "ConfigMap/plan-moved/coming",
        "the plan was to create it, but the new plan is to leave it blocked",
        "Secret/plan-moved/key",
        "its desired state in git changed",
    ]
    .into_iter()
    .fold(run, |run, text| run.says(text))
    .says("nothing was written");
}
