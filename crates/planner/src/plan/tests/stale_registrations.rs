//! Registrations that git no longer has and whose pods are replaced.

use rstest::rstest;

use super::scene::Scene;
use super::{WIDGETS, changes, edges, lines, position};
use crate::observe::{ApiRefusal, Prediction};
use crate::plan::{Grant, Op, Plan};
use pleach_formats::file::Rollback;

const OLD: &str = "ValidatingWebhookConfiguration.admissionregistration.k8s.io/old";
const NEW: &str = "ValidatingWebhookConfiguration.admissionregistration.k8s.io/new";
const API: &str = "Deployment.apps/web/api";
const SERVICE: &str = "Service/web/api: {spec: {selector: {app: api}}}";
const WIDGET: &str = "Widget.example.org/web/w";
const BARRIER: &str = "Release.pleach.dev/e.r (wait)";

fn hook(key: &str) -> String {
    let (_, name) = key.split_once('/').unwrap();
    format!(
        "{key}: {{webhooks: [{{name: {name}.example.org, clientConfig: {{service: {{namespace: web, name: api}}}}, rules: [{{apiGroups: [example.org], resources: [widgets]}}]}}]}}"
    )
}

/// Builds an operator of a version, without its webhook.
fn operator(version: u8) -> String {
    format!(
        "{WIDGETS}\n{API}: {{spec: {{image: {version}, template: {{metadata: {{labels: {{app: api}}}}}}}}}}\n{WIDGET}: {{spec: {{size: {version}}}}}"
    )
}

/// Builds an installed operator with the webhook.
fn installed(version: u8) -> Scene {
    Scene::new().installed(&format!("{}\n{SERVICE}\n{}", operator(version), hook(OLD)))
}

fn up(git: &str) -> Scene {
    installed(1).git(git)
}

/// Builds a downgrade to a version without the webhook.
fn back() -> Scene {
    installed(3)
        .version("v3.0.0")
        .git(&format!("{}\n{SERVICE}", operator(2)))
        .policy(|policy| {
            policy.versions.rollback = Some(Rollback {
                from: "v3.0.0".to_owned(),
                to: "v2.0.0".to_owned(),
            });
        })
}

fn check_edges(plan: &Plan, expected: &[String]) {
    let found = edges(plan);
    for edge in expected {
        assert!(found.contains(edge), "{edge} is missing in {found:#?}");
    }
}

/// The webhook loses its backend, so intercepted objects would never become
/// ready.
#[rstest]
#[case::its_service_stays(&format!("{}\n{SERVICE}", operator(2)))]
#[case::its_service_is_removed_too(&operator(2))]
fn a_stale_registration_is_deleted_when_new_pods_are_ready(#[case] git: &str) {
    let plan = up(git).plan();
    let step = &plan.steps[position(&plan, OLD)];
    assert_eq!(step.stage.as_str(), "registrations");
    let Op::Delete(deletion) = &step.op else {
        panic!("{step:?}");
    };
    assert!(matches!(deletion.because(), Grant::Superseded { service } if service.name == "api"));
    check_edges(
        &plan,
        &[
            format!("{API} -> {OLD}: Ready Backend"),
            format!("{OLD} -> {WIDGET}: Absent Intercepts"),
            format!("{OLD} -> {BARRIER}: Absent Barrier"),
        ],
    );
    let line = format!(
        "delete {OLD}: no longer in git, and the new pods behind Service web/api do not serve it"
    );
    assert!(changes(&plan).contains(&line), "{:#?}", changes(&plan));
}

#[test]
fn the_replacement_is_registered_before_the_deletion() {
    let plan = up(&format!("{}\n{SERVICE}\n{}", operator(2), hook(NEW))).plan();
    check_edges(
        &plan,
        &[
            format!("{NEW} -> {OLD}: Applied Reverse"),
            format!("{NEW} -> {WIDGET}: Applied Intercepts"),
            format!("{OLD} -> {WIDGET}: Absent Intercepts"),
        ],
    );
}

#[test]
fn a_downgrade_deletes_it_before_its_pods_and_after_objects_it_admits() {
    check_edges(
        &back().plan(),
        &[
            format!("{WIDGET} -> {OLD}: Applied Reverse"),
            format!("{OLD} -> {API}: Absent Reverse"),
        ],
    );
}

fn denied() -> Prediction {
    Prediction::Refused(ApiRefusal {
        code: 403,
        reason: "Forbidden".to_owned(),
        message: "admission webhook \"old.example.org\" denied the request: no".to_owned(),
    })
}

/// Builds another release of the same charts: all names differ, and the
/// previous pods run until the end.
fn renamed() -> String {
    let operator = operator(2).replace(API, "Deployment.apps/web/other");
    let [operator, service] = [operator.as_str(), SERVICE].map(|text| {
        text.replace("Service/web/api", "Service/web/other")
            .replace("app: api", "app: other")
    });
    format!(
        "{operator}\n{service}\n{}",
        hook(NEW).replace("name: api", "name: other")
    )
}

#[test]
fn a_replaced_registration_is_deleted_when_its_replacement_is_registered() {
    let plan = up(&renamed()).plan();
    check_edges(
        &plan,
        &[
            format!("{NEW} -> {OLD}: Applied Reverse"),
            format!("{OLD} -> {WIDGET}: Absent Intercepts"),
            format!("{OLD} -> {BARRIER}: Absent Barrier"),
        ],
    );
    let line = format!("delete {OLD}: no longer in git, and {NEW} replaces it");
    assert!(changes(&plan).contains(&line), "{:#?}", changes(&plan));
    let deletion = format!("prune: delete {API} until gone");
    assert!(lines(&plan).contains(&deletion), "{:#?}", lines(&plan));
}

/// Denied objects come after the webhook is deleted in either direction, and
/// the plan is not refused.
#[rstest]
#[case::up(up(&format!("{}\n{SERVICE}", operator(2))))]
#[case::up_to_another_one(up(&format!("{}\n{SERVICE}\n{}", operator(2), hook(NEW))))]
#[case::up_to_another_one_of_other_pods(up(&renamed()))]
#[case::to_one_of_its_name(up(&format!(
    "{}\n{SERVICE}\n{}",
    operator(2),
    hook(OLD).replace("name: old.", "name: later.")
)))]
#[case::to_one_of_its_name_for_other_kinds(up(&format!(
    "{}\n{SERVICE}\n{}",
    operator(2),
    hook(OLD).replace("name: old.", "name: later.").replace("[widgets]", "[gears]")
)))]
#[case::back(back())]
fn objects_that_a_stale_webhook_denies_are_applied_after_its_deletion(#[case] scene: Scene) {
    let plan = scene.predict(WIDGET, denied()).plan();
    assert!(
        !plan
            .findings
            .iter()
            .any(pleach_model::finding::Finding::is_error),
        "{:#?}",
        plan.findings
    );
    let found = edges(&plan);
    let first = format!("{OLD} -> {WIDGET}: ");
    assert!(
        found.iter().any(|edge| edge.starts_with(&first)),
        "{found:#?}"
    );
    let mut widgets = plan.changes.iter();
    let widget = widgets.find(|change| change.object.to_string() == WIDGET);
    assert!(widget.unwrap().unverified.is_some());
}

#[test]
fn a_gate_lifted_before_its_deletion_is_reported() {
    let dropped = format!("{}\n{SERVICE}", operator(2));
    let replaced = format!("{dropped}\n{}", hook(NEW));
    for (name, git, group, until, is_refused) in [
        ("lifted before", &dropped, "example.org", "services", true),
        (
            "closed until then",
            &dropped,
            "example.org",
            "ungate",
            false,
        ),
        ("of another group", &dropped, "x.org", "services", false),
        (
            "replaced in git",
            &replaced,
            "example.org",
            "services",
            false,
        ),
        (
            "replaced in full",
            &renamed(),
            "example.org",
            "services",
            false,
        ),
    ] {
        let gate = format!("{{name: hold, groups: [{group}], until: {until}}}");
        let plan = up(git).gate(&gate).plan();
        let mut findings = plan.findings.iter();
        let found = findings.find(|one| one.code == "gate-too-late");
        assert_eq!(found.is_some(), is_refused, "{name}: {:?}", plan.findings);
        assert!(found.is_none_or(crate::plan::is_refusal), "{name}");
    }
}

/// An earlier run replaced the pods.
#[test]
fn after_an_interrupted_run_it_is_deleted_at_once() {
    let plan = Scene::new()
        .installed(&format!("{}\n{SERVICE}\n{}", operator(2), hook(OLD)))
        .unfinished("v2.0.0")
        .git(&format!("{}\n{SERVICE}", operator(2)))
        .plan();
    let deletion = format!("registrations: delete {OLD} until gone");
    assert!(lines(&plan).contains(&deletion), "{:#?}", lines(&plan));
}

#[rstest]
#[case::its_pods_stay(up(&format!("{}\n{SERVICE}", operator(1))))]
#[case::another_one_takes_over_in_part(
    Scene::new()
        .installed(&format!("{}\n{SERVICE}\n{}", operator(1), hook(OLD).replace("[widgets]", "[widgets, gears]")))
        .git(&format!("{}\n{SERVICE}\n{}", operator(1), hook(NEW)))
)]
#[case::others_answer_too(
    Scene::new()
        .installed(&format!("{}\n{SERVICE}\n{}\n{OTHER}", operator(1), hook(OLD)))
        .git(&format!("{}\n{SERVICE}\n{OTHER}", operator(2)))
)]
fn a_registration_with_a_backend_is_deleted_last(#[case] scene: Scene) {
    let plan = scene.plan();
    let deletion = format!("prune: delete {OLD} until gone");
    assert!(lines(&plan).contains(&deletion), "{:#?}", lines(&plan));
}

const OTHER: &str =
    "Deployment.apps/web/other: {spec: {template: {metadata: {labels: {app: api}}}}}";
