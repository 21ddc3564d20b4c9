//! Workloads and CRDs of the same release: pods that use an undefined kind fail.

use std::time::Duration;

use pleach_testkit::audit::Events;
use pleach_testkit::faults::{Fault, FaultProxy, Kind, Rule, Seen};

use super::{definition, fleet, group, not_applied, upgrade};
use crate::fleet::{Fleet, object_writes};
use crate::samples::{config_map, deployment};
use crate::shared;

/// Returns a CRD and a workload of the same release.
fn both(definition: &str, image: &str) -> String {
    let workload = deployment("app").replace("app:1", image);
    [definition, &workload].join("---\n")
}

/// Returns the kinds of the two objects that were written, in order of the answers.
fn written(events: &Events) -> Vec<&'static str> {
    let kinds = ["customresourcedefinitions", "deployments"];
    let writes = object_writes(events);
    let kind_of = |line: &String| kinds.into_iter().find(|kind| line.contains(*kind));
    writes.iter().filter_map(kind_of).collect()
}

#[test]
fn a_workload_is_written_after_the_definitions_of_its_release() {
    let g = group("defined-first");
    let before = both(&definition(&g, &["v1"], &["a"]), "app:1");
    let after = both(&definition(&g, &["v1"], &["a", "b"]), "app:2");
    let mut fleet = not_applied("defined-first", &before, &after);
    // Without waiting, the workload would be faster.
    let is_definition = |seen: &Seen| {
        seen.kind == Kind::Write && seen.path.contains("/customresourcedefinitions/gears.")
    };
    let proxy = FaultProxy::start(shared().kubeconfig()).unwrap();
    let delay = Fault::Delay(Duration::from_millis(700));
    proxy.add(Rule::on(is_definition, delay));
    fleet.through(proxy.kubeconfig());

    let expected = ["customresourcedefinitions", "deployments"];
    let (_, events) = fleet.watched(Fleet::applied);
    assert_eq!(written(&events), expected, "{}", events.writes());
    upgrade(&fleet);
    let (_, events) = fleet.watched(Fleet::applied);
    assert_eq!(written(&events), expected, "{}", events.writes());
    assert_eq!(proxy.log().faults().count(), 2);
}

#[test]
fn a_workload_stays_while_a_definition_of_its_release_is_blocked() {
    let g = group("defined-blocked");
    let name = format!("gears.{g}");
    let before = definition(&g, &["v1"], &["a"]);
    let ours = format!("{{name: {name}, labels: {{team: ours}}}}");
    let after = before.replace(&format!("{{name: {name}}}"), &ours);
    let other = |value: &str| config_map("other", value);
    let version = |definition: &str, image: &str, value: &str| {
        [both(definition, image), other(value)].join("---\n")
    };
    let fleet = fleet(
        "defined-blocked",
        &version(&before, "app:1", "v"),
        &version(&after, "app:2", "w"),
    );
    let theirs = format!(
        "apiVersion: apiextensions.k8s.io/v1\nkind: CustomResourceDefinition\nmetadata: {{name: {name}, labels: {{team: theirs}}}}\n"
    );
    let file = fleet.file("theirs.yaml", &theirs);
    fleet.kubectl(&[
        "apply",
        "--server-side",
        "--field-manager=other-team",
        "-f",
        &file,
    ]);

    upgrade(&fleet);
    let id = format!("CustomResourceDefinition.apiextensions.k8s.io/{name}");
    let blocked =
        format!("blocked Deployment.apps/defined-blocked/app: it needs {id}, which is blocked");
    fleet
        .diff()
        .ended_with(5)
        .says(&format!(
            "blocked {id}: other-team owns .metadata.labels.team"
        ))
        .says(&blocked);
    let (run, events) = fleet.watched(Fleet::apply_unblocked);
    run.ended_with(5)
        .says("other-team owns .metadata.labels.team");
    // Objects without this dependency are applied.
    assert_eq!(
        object_writes(&events),
        ["patch configmaps defined-blocked/other 200"]
    );
    let image = "{.spec.template.spec.containers[0].image}";
    let deployment = ["-n", "defined-blocked", "deployment/app"];
    assert_eq!(fleet.field(&deployment, image), "app:1");

    fleet.edit_environment("bundle: web,", "bundle: web, adopt: [other-team],");
    fleet.commit();
    fleet.applied();
    assert_eq!(fleet.field(&deployment, image), "app:2");
}
