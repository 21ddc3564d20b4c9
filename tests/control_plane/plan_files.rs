//! `plan --out` and `apply --plan`: what was reviewed is what runs, or nothing.

use crate::fleet::{Fleet, PLANTED, object_writes};

const FILE: &str = "reviewed.json";

fn config(name: &str, color: &str) -> String {
    format!(
        "apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: {name}}}\ndata: {{color: {color}}}\n"
    )
}

/// A release with objects that are about to change, to go, to come, to stay.
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

/// Carries out what was reviewed.
#[track_caller]
fn carry_out(fleet: &Fleet) -> crate::fleet::Run {
    fleet.run(&["apply", fleet.environment, "--plan", FILE])
}

#[test]
fn what_was_reviewed_is_carried_out_without_a_question() {
    let fleet = reviewed("planned");
    let text = fleet.read(FILE);
    assert_eq!(crate::fleet::leaks(&text), None, "{text}");
    assert!(!text.contains("green"), "a body is in the file: {text}");
    let (_, events) = fleet.watched(|fleet| carry_out(fleet).ended_with(0));
    assert_eq!(object_writes(&events).len(), 4, "{events}");
    // It is used up: what it would do has been done.
    fleet.writes_nothing(|fleet| {
        carry_out(fleet)
            .ended_with(5)
            .says("ConfigMap/planned/changing")
            .says("the plan was to update it, now it is to leave it as it is")
    });
}

#[test]
fn the_file_says_which_environment() {
    let fleet = reviewed("plan-names");
    for target in ["plan-other", "plan-names/other"] {
        fleet
            .writes_nothing(|fleet| fleet.run(&["apply", target, "--plan", FILE]).ended_with(2))
            .says("is of plan-names.web, not of");
    }
    let (_, events) = fleet.watched(|fleet| fleet.run(&["apply", "--plan", FILE]).ended_with(0));
    assert_eq!(object_writes(&events).len(), 4, "{events}");
}

/// Changes something between plan and apply; nothing may be written then, and
/// every line of `says` must be said.
#[track_caller]
fn moved(environment: &'static str, change: impl FnOnce(&Fleet), code: i32, says: &str) {
    let fleet = reviewed(environment);
    change(&fleet);
    fleet.writes_nothing(|fleet| {
        let run = carry_out(fleet).ended_with(code);
        says.lines()
            .fold(run, |run, part| run.says(part))
            .says("nothing was written")
    });
}

#[test]
fn another_content_in_git() {
    let change = |fleet: &Fleet| {
        fleet.edit("manifests/web/changing.yaml", "green", "blue");
        fleet.commit();
    };
    moved(
        "plan-git",
        change,
        5,
        "ConfigMap/plan-git/changing\ngit wants something else of it now",
    );
}

#[test]
fn another_value_of_a_secret_in_git() {
    let change = |fleet: &Fleet| {
        fleet.edit("manifests/web/key.yaml", PLANTED, &format!("{PLANTED}3"));
    };
    moved(
        "plan-secret",
        change,
        5,
        "Secret/plan-secret/key\ngit wants something else of it now",
    );
}

#[test]
fn an_object_more_in_git() {
    let change = |fleet: &Fleet| fleet.write("manifests/web/more.yaml", &config("more", "green"));
    moved(
        "plan-more",
        change,
        5,
        "ConfigMap/plan-more/more\nthe plan does not have it, now it is to create it",
    );
}

#[test]
fn an_object_less_in_git() {
    let change = |fleet: &Fleet| fleet.write("manifests/web/staying.yaml", "# nothing\n");
    moved(
        "plan-less",
        change,
        5,
        "ConfigMap/plan-less/staying\nthe plan was to leave it as it is, now it is to delete it",
    );
}

#[test]
fn drift_of_what_changes() {
    let change = |fleet: &Fleet| {
        fleet.kubectl(&[
            "-n",
            fleet.environment,
            "patch",
            "configmap",
            "changing",
            "--type=merge",
            "-p",
            r#"{"data":{"color":"black"}}"#,
        ]);
    };
    moved(
        "plan-drift",
        change,
        5,
        "ConfigMap/plan-drift/changing\nthe plan was to update it, now it is to leave it blocked",
    );
}

#[test]
fn drift_of_what_stays() {
    let change = |fleet: &Fleet| {
        fleet.kubectl(&[
            "-n",
            fleet.environment,
            "patch",
            "configmap",
            "staying",
            "--type=merge",
            "-p",
            r#"{"data":{"color":"black"}}"#,
        ]);
    };
    moved(
        "plan-stays",
        change,
        5,
        "ConfigMap/plan-stays/staying\nthe plan was to leave it as it is, now it is to update it",
    );
}

#[test]
fn a_deleted_object() {
    let change = |fleet: &Fleet| {
        fleet.kubectl(&["-n", fleet.environment, "delete", "configmap", "staying"]);
    };
    moved(
        "plan-deleted",
        change,
        5,
        "ConfigMap/plan-deleted/staying\nthe plan was to leave it as it is, now it is to create it",
    );
}

#[test]
fn an_object_that_was_made_anew() {
    let change = |fleet: &Fleet| {
        fleet.kubectl(&["-n", fleet.environment, "delete", "configmap", "going"]);
        fleet.kubectl(&["-n", fleet.environment, "create", "configmap", "going"]);
    };
    moved(
        "plan-anew",
        change,
        5,
        "ConfigMap/plan-anew/going\nthe plan was to delete it",
    );
}

#[test]
fn an_object_of_that_name_by_somebody_else() {
    let change = |fleet: &Fleet| {
        fleet.kubectl(&["-n", fleet.environment, "create", "configmap", "coming"]);
    };
    moved(
        "plan-foreign",
        change,
        5,
        "ConfigMap/plan-foreign/coming\nthe plan was to create it, now it is to leave it blocked",
    );
}

#[test]
fn an_object_that_is_to_be_kept_now() {
    let change = |fleet: &Fleet| {
        fleet.kubectl(&[
            "-n",
            fleet.environment,
            "annotate",
            "configmap",
            "going",
            "pleach.dev/prune=disabled",
        ]);
    };
    moved(
        "plan-kept",
        change,
        5,
        "ConfigMap/plan-kept/going\nthe plan was to delete it, now it is to skip it",
    );
}

#[test]
fn pruning_that_was_switched_off() {
    let change = |fleet: &Fleet| fleet.extend_environment("prune: {enabled: false}\n");
    moved(
        "plan-prune",
        change,
        5,
        "ConfigMap/plan-prune/going\nthe plan was to delete it, now it is to skip it",
    );
}

#[test]
fn another_apply_in_between() {
    let change = |fleet: &Fleet| {
        fleet.applied();
    };
    moved(
        "plan-applied",
        change,
        5,
        "ConfigMap/plan-applied/coming\nthe plan was to create it, now it is to leave it as it is",
    );
}

#[test]
fn a_release_more() {
    let change = |fleet: &Fleet| {
        fleet.edit_environment("releases:\n", "releases:\n- {name: more, bundle: more}\n");
        fleet.write(
            "manifests/more/bundle.yaml",
            "apiVersion: pleach.dev/v1alpha1\nkind: Bundle\n",
        );
    };
    moved(
        "plan-release",
        change,
        5,
        "the plan does not have release plan-release.more",
    );
}

#[test]
fn another_order_of_the_same_changes() {
    let change = |fleet: &Fleet| {
        let last = "stages: [{name: last, select: [{kind: ConfigMap, name: changing}], after: [resources]}]\n";
        let bundle = fleet.read("manifests/web/bundle.yaml");
        fleet.write("manifests/web/bundle.yaml", &(bundle + last));
    };
    moved(
        "plan-order",
        change,
        5,
        "release plan-order.web: the steps are no longer those that were reviewed",
    );
}

#[test]
fn what_others_add_and_commits_of_other_things_do_not_matter() {
    let fleet = reviewed("plan-harmless");
    let annotate = ["annotate", "configmap", "changing", "theirs=theirs"];
    fleet.kubectl(&[&annotate[..], &["-n", fleet.environment]].concat());
    fleet.write("README.md", "Read me.\n");
    fleet.commit();
    let (_, events) = fleet.watched(|fleet| carry_out(fleet).ended_with(0));
    assert_eq!(object_writes(&events).len(), 4, "{events}");
}

#[test]
fn another_repository_and_another_cluster() {
    let change = |fleet: &Fleet| {
        fleet.edit("pleach.yaml", "id: plan-repository", "id: other");
    };
    moved(
        "plan-repository",
        change,
        7,
        "the plan is of repository plan-repository, this one is other",
    );
    let change = |fleet: &Fleet| {
        let text = fleet.read(FILE).replace(&fleet.cluster_id(), "another");
        fleet.write(FILE, &text);
        fleet.edit_environment(&format!("{{id: {}}}", fleet.cluster_id()), "{}");
    };
    moved(
        "plan-cluster",
        change,
        7,
        "the plan was made for cluster another",
    );
}

#[test]
fn a_file_that_is_no_plan() {
    let fleet = reviewed("plan-broken");
    for (text, code, says) in [
        ("no", 2, "it is not a plan that pleach wrote"),
        (r#"{"format": 99}"#, 7, "it has format 99"),
    ] {
        fleet.write(FILE, text);
        fleet.writes_nothing(|fleet| carry_out(fleet).ended_with(code).says(says));
    }
}
