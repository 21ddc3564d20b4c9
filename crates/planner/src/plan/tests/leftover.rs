//! Registrations whose Service is deleted.

use std::collections::BTreeSet;

use rstest::rstest;

use super::removal::by_command;
use super::scene::Scene;
use super::{edges, position};
use crate::observe::{Backend, Listing, Registration};
use crate::plan::{Action, Deletion, Grant, Op, Plan, Precondition, leaving_service, returned};
use pleach_model::object::{ServiceRef, labels};
use pleach_state::inventory::EntryState;

const OLD: &str = "Service/old/api: {spec: {selector: {app: api}}}\nDeployment.apps/old/api: {spec: {template: {metadata: {labels: {app: api}}}}}\nServiceAccount/old/s: {}";
const NEW: &str = "Service/web/api: {spec: {selector: {app: api}}}\nDeployment.apps/web/api: {spec: {template: {metadata: {labels: {app: api}}, spec: {serviceAccountName: s}}}}\nServiceAccount/web/s: {}";
const RUN_TIME: &str = "APIService.apiregistration.k8s.io/v1.x: {spec: {service: {namespace: old, name: api}}, managers: [api]}";
const KEY: &str = "APIService.apiregistration.k8s.io/v1.x";

/// Builds a product that moves from namespace `old` to `web` and whose pods
/// registered.
fn moved() -> Scene {
    Scene::new().installed(OLD).git(NEW).live(RUN_TIME)
}

fn deletion<'a>(plan: &'a Plan, id: &str) -> Option<&'a Deletion> {
    plan.steps.iter().find_map(|step| match &step.op {
        Op::Delete(deletion) if step.object.to_string() == id => Some(deletion),
        _ => None,
    })
}

#[rstest]
#[case::unknown(moved())]
#[case::recorded(Scene::new().installed(OLD).git(NEW).run_time(RUN_TIME, Some("old/api")))]
#[case::its_service_is_gone_already(moved().gone("Service/old/api"))]
fn a_leftover_is_deleted_right_before_the_new_workloads(#[case] scene: Scene) {
    let plan = scene.plan();
    let deletion = deletion(&plan, KEY).unwrap();
    let grant = Grant::Registration {
        service: super::scene::service_ref("old/api"),
    };
    assert_eq!(
        (deletion.uid(), deletion.resource_version()),
        (&*format!("uid of {KEY}"), Some("1"))
    );
    assert_eq!(*deletion.because(), grant);
    let step = &plan.steps[position(&plan, KEY)];
    let require = [
        Precondition::Uid(format!("uid of {KEY}")),
        Precondition::ResourceVersion("1".to_owned()),
    ];
    assert_eq!(step.require, require);
    let edges = edges(&plan);
    // Deleted after the prerequisites of the workloads; until then the old
    // registration is used.
    for edge in [
        format!("ServiceAccount/web/s -> {KEY}: Applied Leftover"),
        format!("{KEY} -> Deployment.apps/web/api: Absent Leftover"),
        format!("{KEY} -> Release.pleach.dev/e.r (wait): Absent Barrier"),
    ] {
        assert!(edges.contains(&edge), "{edge} is missing in {edges:#?}");
    }
    assert!(step.id.0 < position(&plan, "Deployment.apps/web/api"));
    // Deleted once; all other deletions come after verify.
    assert_eq!(
        plan.steps
            .iter()
            .filter(|step| step.object.to_string() == KEY && step.op != Op::Wait)
            .count(),
        1
    );
    let change = plan
        .changes
        .iter()
        .find(|change| change.object.to_string() == KEY)
        .unwrap();
    assert_eq!(
        (change.action, change.reason.as_str()),
        (
            Action::Delete,
            "points at Service old/api, which is deleted"
        )
    );
}

#[rstest]
#[case::shared(moved().with_live(KEY, |live| {
        *live = serde_json::json!({"metadata": live["metadata"], "webhooks": []}); })
    .gone(KEY).live("ValidatingWebhookConfiguration.admissionregistration.k8s.io/h: {webhooks: [{clientConfig: {service: {namespace: old, name: api}}}, {clientConfig: {service: {namespace: web, name: api}}}]}"),
    "leftover-shared", "it also points at Service web/api, which stays")]
#[case::asks_a_url(moved().gone(KEY).live("ValidatingWebhookConfiguration.admissionregistration.k8s.io/h: {webhooks: [{clientConfig: {service: {namespace: old, name: api}}}, {clientConfig: {url: 'https://10.0.0.1/'}}]}"),
    "leftover-shared", "its Service is deleted, but one of its webhooks is called at a URL")]
#[case::of_another_set(moved().meta(KEY, |meta| drop(meta.labels.insert(labels::PART_OF.into(), "other".into()))),
    "leftover-foreign", "its Service is deleted, but it is part of another ApplySet (other)")]
#[case::marked(moved().meta(KEY, |meta| drop(meta.labels.insert("helm.toolkit.fluxcd.io/name".into(), "x".into()))),
    "leftover-foreign", "its Service is deleted, but it carries the mark `helm.toolkit.fluxcd.io/name` of another tool")]
#[case::owned(moved().meta(KEY, |meta| meta.owners.push("x".into())),
    "leftover-owned", "its Service is deleted, but another object owns it")]
#[case::unseen(moved().listing("APIService.apiregistration.k8s.io", Listing::Forbidden("no".to_owned()))
    .with_desired(|desired| desired.namespace = None),
    "incomplete-view", "its Service is deleted, but its kind could not be listed completely")]
fn a_leftover_is_reported(#[case] scene: Scene, #[case] code: &str, #[case] message: &str) {
    let plan = scene.plan();
    let finding = plan
        .findings
        .iter()
        .find(|finding| finding.code == code)
        .unwrap();
    assert_eq!(finding.message, message);
    assert!(finding.object.is_some() && finding.hint.is_some());
    let registrations = plan
        .steps
        .iter()
        .filter(|step| step.object.group.contains("registration"));
    assert_eq!(registrations.count(), 0);
}

#[rstest]
#[case::prune_is_off(moved().policy(|policy| policy.prune.enabled = false))]
#[case::not_waiting(moved().policy(|policy| policy.wait = false))]
#[case::blocked(moved().live("ServiceAccount/web/s: {managers: [x]}"))]
#[case::its_service_stays(moved().git("Service/old/api: {}"))]
#[case::its_service_is_retained(moved().meta("Service/old/api", |meta| drop(meta.annotations.insert("pleach.dev/prune".into(), "disabled".into()))))]
#[case::its_service_was_replaced(moved().meta("Service/old/api", |meta| meta.uid = "later".into()))]
#[case::its_service_was_never_ours(moved().entry("Service/old/api", |entry| entry.state = EntryState::Kept))]
#[case::its_service_was_not_seen(moved().gone("Service/old/api").incomplete("Service"))]
#[case::it_moved_itself(moved().with_live(KEY, |live| live["spec"]["service"]["namespace"] = "web".into()))]
fn nothing_is_done(#[case] scene: Scene) {
    let plan = scene.plan();
    assert!(deletion(&plan, KEY).is_none());
    assert!(
        plan.changes
            .iter()
            .all(|change| change.object.to_string() != KEY)
    );
}

#[test]
fn a_registration_in_git_is_updated_and_not_deleted() {
    let git =
        "APIService.apiregistration.k8s.io/v1.x: {spec: {service: {namespace: web, name: api}}}";
    let plan = Scene::new().installed(&format!("{OLD}\nAPIService.apiregistration.k8s.io/v1.x: {{spec: {{service: {{namespace: old, name: api}}}}}}"))
        .git(&format!("{NEW}\n{git}"))
        .plan();
    assert!(deletion(&plan, KEY).is_none());
    assert!(
        plan.steps
            .iter()
            .any(|step| step.object.to_string() == KEY && step.op.verb() == "apply")
    );
}

#[test]
fn several_leftovers_precede_all_workloads_with_few_edges() {
    let mut scene = moved();
    for index in 0..5 {
        scene = scene
            .live(&RUN_TIME.replace("v1.x", &format!("v1.x{index}")))
            .git(&NEW.replace("/api:", &format!("/api{index}:")));
    }
    let plan = scene.plan();
    let edges = edges(&plan);
    let join = edges
        .iter()
        .filter(|edge| edge.contains("-> Release.pleach.dev/e.r (wait): Absent Leftover"));
    assert_eq!(join.count(), 6);
    let workloads = edges.iter().filter(|edge| {
        edge.starts_with("Release.pleach.dev/e.r (wait) -> Deployment")
            && edge.ends_with("Leftover")
    });
    assert_eq!(workloads.count(), 6);
}

/// Builds a release whose Service an earlier run deleted. The registration that
/// its pods made again is only in the record.
fn lost() -> Scene {
    Scene::new()
        .installed("ConfigMap/web/c: {}")
        .git("ConfigMap/web/c: {}")
        .run_time(RUN_TIME, Some("old/api"))
        .cluster(|observed| {
            let service = super::scene::service_ref("old/api");
            observed.backends.insert(service, Backend::default());
        })
}

#[test]
fn a_dead_registration_of_a_previous_run_is_deleted() {
    let plan = lost().plan();
    let found = deletion(&plan, KEY).unwrap();
    assert_eq!(
        found.explain(),
        "points at Service old/api, which is deleted"
    );
    assert!(deletion(&lost().end(&by_command()), KEY).is_some());
}

#[rstest]
#[case::its_service_is_there(lost().cluster(|observed| {
    let service = crate::plan::tests::scene::service_ref("old/api");
    let backend = Backend { exists: true, ..Backend::default() };
    observed.backends.insert(service, backend);
}))]
#[case::it_was_not_searched(lost().cluster(|observed| observed.backends.clear()))]
#[case::it_points_elsewhere(lost().with_live(KEY, |live| live["spec"]["service"]["namespace"] = "new".into()))]
fn a_possibly_live_registration_stays(#[case] scene: Scene) {
    assert!(deletion(&scene.plan(), KEY).is_none());
}

const LATE: &str = "Secret/old/certs";

#[test]
fn registrations_made_by_pods_are_deleted_with_their_namespace() {
    let found = |scene: Scene| scene.found(&format!("{LATE}: {{}}"));
    let removal = by_command();
    for plan in [
        found(moved()).plan(),
        // The object was read by its name, so an incomplete listing of its kind
        // does not matter.
        found(moved()).incomplete("Secret").plan(),
        found(moved()).end(&removal),
    ] {
        let deletion = deletion(&plan, LATE).unwrap();
        assert_eq!(deletion.uid(), format!("uid of {LATE}"));
        assert_eq!(*deletion.because(), Grant::RunTimeObject { service: None });
    }
    // Remaining pods use the object.
    let plan = moved().found("Secret/web/certs: {}").plan();
    assert!(deletion(&plan, "Secret/web/certs").is_none());
}

#[rstest]
#[case::owned("{ownerReferences: [{uid: x}]}", "leftover-owned")]
#[case::of_another_set(
    "{labels: {applyset.kubernetes.io/part-of: applyset-x}}",
    "leftover-foreign"
)]
#[case::of_another_tool("{labels: {helm.toolkit.fluxcd.io/name: x}}", "leftover-foreign")]
fn a_registration_of_another_owner_with_that_name_stays(
    #[case] metadata: &str,
    #[case] code: &str,
) {
    let scene = moved().found(&format!("{LATE}: {{metadata: {metadata}}}"));
    for plan in [scene.plan(), scene.end(&by_command())] {
        assert!(deletion(&plan, LATE).is_none());
        let mut findings = plan.findings.iter();
        let is_about = |one: &&pleach_model::finding::Finding| {
            one.object.as_ref().is_some_and(|id| id.to_string() == LATE)
        };
        assert_eq!(findings.find(is_about).unwrap().code, code);
    }
}

/// Builds a registration that is found at execution, after the plan was made.
fn changed(change: impl FnOnce(&mut Registration)) -> Registration {
    let mut found = moved().observed().registrations[0].clone();
    change(&mut found);
    found
}

#[rstest]
#[case::the_same(changed(|_| {}), None)]
#[case::shared(changed(|one| one.services.push(service("other"))), Some("leftover-shared"))]
#[case::asks_a_url(changed(|one| one.asks_url = true), Some("leftover-shared"))]
#[case::owned(changed(|one| one.meta.owners.push("x".into())), Some("leftover-owned"))]
#[case::of_another_set(
    changed(|one| drop(one.meta.labels.insert(labels::PART_OF.into(), "other".into()))),
    Some("leftover-foreign")
)]
fn a_recreated_registration_is_judged_alike(
    #[case] found: Registration,
    #[case] left: Option<&str>,
) {
    let going = BTreeSet::from([service("api")]);
    match returned(&found, &going, "ours").unwrap() {
        Ok(deletion) => {
            assert_eq!(left, None);
            assert_eq!(deletion.uid(), found.meta.uid);
            assert_eq!(deletion.resource_version(), Some("1"));
        }
        Err(finding) => assert_eq!(left, Some(finding.code.as_str())),
    }
    let other = BTreeSet::from([service("third")]);
    assert!(returned(&found, &other, "ours").is_none());
}

fn service(name: &str) -> ServiceRef {
    super::scene::service_ref(&format!("old/{name}"))
}

#[test]
fn deleted_services_are_the_pruned_ones() {
    let going = |plan: &Plan| -> Vec<ServiceRef> {
        plan.steps.iter().filter_map(leaving_service).collect()
    };
    assert_eq!(going(&moved().plan()), [service("api")]);
    assert_eq!(going(&moved().end(&by_command())), [service("api")]);
    assert_eq!(going(&lost().plan()), Vec::<ServiceRef>::new());
}
