//! Several releases of one environment: a failure is limited to its release.

use crate::fleet::{Fleet, Run, object_writes};

const RELEASES: &str = "\
- {name: front, bundle: front, namespace: NAMESPACE, createNamespace: true}
- {name: back, bundle: back, namespace: NAMESPACE, createNamespace: true}
";

/// Returns two releases in one namespace that does not exist yet.
fn pair(environment: &'static str) -> Fleet {
    let bundle = "apiVersion: pleach.dev/v1alpha1\nkind: Bundle\n";
    let config = |name: &str| {
        format!(
            "apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: {name}}}\ndata: {{color: red}}\n"
        )
    };
    Fleet::new(
        environment,
        &RELEASES.replace("NAMESPACE", environment),
        &[
            ("manifests/front/bundle.yaml", bundle),
            ("manifests/front/config.yaml", &config("front")),
            ("manifests/back/bundle.yaml", bundle),
            ("manifests/back/config.yaml", &config("back")),
        ],
    )
}

/// Returns release and result of each report.
fn results(run: &Run) -> Vec<(String, String)> {
    let text = |value: &serde_json::Value| value.as_str().unwrap().to_owned();
    run.json()["releases"]
        .as_array()
        .unwrap()
        .iter()
        .map(|report| (text(&report["release"]), text(&report["result"])))
        .collect()
}

fn expected(results: &[(&str, &str)]) -> Vec<(String, String)> {
    results
        .iter()
        .map(|(release, result)| ((*release).to_owned(), (*result).to_owned()))
        .collect()
}

#[test]
fn releases_may_share_a_namespace_that_neither_has_made() {
    let fleet = pair("pair");
    let run = fleet
        .run(&["apply", "pair", "--yes", "--wait=none"])
        .ended_with(0);
    run.says("2 to create, 0 to delete")
        .says("release pair.front ")
        .says("unverified (2 created)")
        .says("unverified (1 created)");
    let run = fleet.run(&["apply", "pair", "--yes", "-o", "json"]);
    let run = run.ended_with(0);
    let deployed = expected(&[("pair.front", "deployed"), ("pair.back", "deployed")]);
    assert_eq!(results(&run), deployed, "{}", run.shown());
    let run = fleet.run(&["apply", "pair", "-o", "json"]).ended_with(0);
    let unchanged = expected(&[("pair.front", "unchanged"), ("pair.back", "unchanged")]);
    assert_eq!(results(&run), unchanged, "{}", run.shown());
    // Another revision changes the record, which is a write.
    fleet.write("notes.txt", "nothing that matters");
    fleet.commit();
    fleet
        .run(&["apply", "pair"])
        .ended_with(2)
        .says("cannot ask without a terminal: No object changes; write the records of 2 releases");
}

#[test]
fn a_release_that_cannot_be_observed_costs_only_itself() {
    let fleet = pair("halves");
    fleet.applied();
    fleet.kubectl(&[
        "-n",
        "pleach-system",
        "delete",
        "configmap",
        "-l",
        "pleach.dev/release=halves.front",
    ]);
    fleet.edit("manifests/back/config.yaml", "red", "blue");
    fleet.commit();
    fleet
        .run(&["diff", "halves"])
        .ended_with(4)
        .says("error: failed to plan release halves.front")
        .says("+  color: blue");
    fleet
        .run(&["plan", "halves"])
        .ended_with(4)
        .says("~ update  ConfigMap/halves/back");
    let run = fleet.run(&["apply", "halves", "--yes", "-o", "json"]);
    let run = run.ended_with(4);
    let halves = expected(&[("halves.front", "failed"), ("halves.back", "deployed")]);
    assert_eq!(results(&run), halves, "{}", run.shown());
}

#[test]
fn one_that_is_refused_keeps_the_others_and_they_are_named() {
    let fleet = pair("kept-back");
    let service = "apiVersion: v1\nkind: Service\nmetadata: {name: back}\nspec: {ports: [{port: 80}], clusterIP: nowhere}\n";
    fleet.write("manifests/back/service.yaml", service);
    fleet.create_namespace("kept-back");
    fleet.commit();
    fleet
        .writes_nothing(|fleet| fleet.apply().ended_with(3))
        .says("release kept-back.back is not applied; nothing was written")
        .says("release kept-back.front was not started")
        .says("`pleach apply kept-back/front`");
    fleet
        .run(&["apply", "kept-back/front", "--yes"])
        .ended_with(0);
}

#[test]
fn what_is_blocked_altogether_is_not_written() {
    let fleet = pair("stuck");
    let conflicting = "\
apiVersion: v1
kind: ConfigMap
metadata: {name: front, namespace: stuck}
data: {color: green}
";
    fleet.applied();
    fleet.edit("manifests/front/config.yaml", "red", "blue");
    fleet.edit("manifests/back/config.yaml", "red", "blue");
    fleet.commit();
    let file = fleet.file("conflict.yaml", conflicting);
    fleet.kubectl(&[
        "apply",
        "--server-side",
        "--force-conflicts",
        "--field-manager=someone",
        "-f",
        &file,
    ]);
    let (run, events) =
        fleet.watched(|fleet| fleet.run(&["apply", "stuck", "--yes", "-o", "json"]));
    let run = run.ended_with(5);
    let stuck = expected(&[("stuck.front", "failed"), ("stuck.back", "deployed")]);
    assert_eq!(results(&run), stuck, "{}", run.shown());
    assert_eq!(object_writes(&events).len(), 1, "{}", events.writes());
    let (run, events) = fleet.watched(|fleet| fleet.run(&["apply", "stuck/front", "--yes"]));
    run.ended_with(5)
        .says("failed (planned: 1 unchanged, 1 blocked)");
    assert_eq!(events.writes().to_string(), "");
}
