//! Services that are deleted although a remaining object references them.

use rstest::rstest;
use serde_json::json;

use super::removal::{by_command, successor};
use super::scene::Scene;
use crate::plan::{Action, Consented, Plan, Removal, is_refusal};
use pleach_model::finding::Finding;
use pleach_model::object::labels;
use pleach_state::inventory::EntryState;

const SERVICE: &str = "Service/web/engine";
const GEARS: &str = "CustomResourceDefinition.apiextensions.k8s.io/gears.example.org";
const HOOK: &str = "ValidatingWebhookConfiguration.admissionregistration.k8s.io/h";
const API: &str = "APIService.apiregistration.k8s.io/v1.example.org";

/// Builds a release with a Service and an object that references it. Git
/// contains neither now.
fn installed(object: &str, body: &str) -> Scene {
    Scene::new()
        .installed(&format!(
            "{SERVICE}: {{}}\nDeployment.apps/web/engine: {{spec: {{template: {{}}}}}}\n{object}: {body}"
        ))
        .git("ConfigMap/web/c: {}")
}

/// Builds a CRD with two versions that the Service converts.
pub(super) fn gears() -> Scene {
    installed(
        GEARS,
        "{spec: {group: example.org, scope: Namespaced, names: {kind: Gear, plural: gears}, \
         versions: [{name: v1, served: true, storage: true}, {name: v1alpha1, served: true, storage: false}], \
         conversion: {strategy: Webhook, webhook: {clientConfig: {service: {namespace: web, name: engine}}}}}}",
    )
}

fn hook() -> Scene {
    installed(
        HOOK,
        "{metadata: {annotations: {pleach.dev/prune: disabled}}, webhooks: [\
         {clientConfig: {url: 'https://x'}}, {clientConfig: {service: {namespace: web, name: engine}}}]}",
    )
}

fn api() -> Scene {
    installed(API, "{spec: {service: {namespace: web, name: engine}}}")
        .protect("{kind: APIService}")
}

/// Returns the plan without the objects, and the uninstall plan.
fn plans(scene: &Scene) -> [Plan; 2] {
    [scene.plan(), scene.end(&by_command())]
}

fn errors(plan: &Plan) -> Vec<&Finding> {
    plan.findings.iter().filter(|one| one.is_error()).collect()
}

#[rstest]
#[case::of_a_crd(
    gears(),
    GEARS,
    "this Service converts its objects: without it they can only be read and written in their stored version"
)]
#[case::of_a_webhook(
    hook(),
    HOOK,
    "this Service serves its webhooks: without it the writes that they intercept are refused or not checked"
)]
#[case::of_an_api(
    api(),
    API,
    "this Service serves its API: without it no client can use the API"
)]
fn the_backend_of_a_retained_object_is_not_deleted(
    #[case] scene: Scene,
    #[case] id: &str,
    #[case] harm: &str,
) {
    for plan in plans(&scene) {
        let [error] = errors(&plan)[..] else {
            panic!("{:#?}", plan.findings)
        };
        assert_eq!(
            (error.code.as_str(), error.message.as_str()),
            (
                "backend-removed",
                &*format!("is deleted, but {id} stays; {harm}")
            )
        );
        let object = error.object.as_ref().map(ToString::to_string);
        assert_eq!(object.as_deref(), Some(SERVICE));
        assert!(is_refusal(error) && error.hint.is_some());
    }
}

#[rstest]
#[case::it_is_removed_too(gears().consent("{action: delete, kind: CustomResourceDefinition, name: gears.example.org, release: r}"))]
#[case::it_is_gone(gears().gone(GEARS))]
#[case::the_service_is_gone(gears().gone(SERVICE))]
#[case::the_service_stays(gears().protect("{kind: Service}"))]
#[case::nothing_converts(gears().with_live(GEARS, |live| live["spec"]["conversion"] = json!({"strategy": "None"})))]
#[case::another_service_converts(gears().with_live(GEARS, |live| {
    live["spec"]["conversion"]["webhook"]["clientConfig"]["service"]["name"] = json!("other");
}))]
#[case::there_is_one_version(gears().with_live(GEARS, |live| {
    live["spec"]["versions"][1]["served"] = json!(false);
    live["status"]["storedVersions"] = json!(["v1"]);
}))]
#[case::the_webhook_is_removed_too(hook().meta(HOOK, |meta| drop(meta.annotations.remove("pleach.dev/prune"))))]
#[case::the_webhook_points_elsewhere(hook().with_live(HOOK, |live| live["webhooks"][1] = json!({"clientConfig": {"url": "https://y"}})))]
fn an_unneeded_service_is_deleted(#[case] scene: Scene) {
    for plan in plans(&scene) {
        assert_eq!(errors(&plan), Vec::<&Finding>::new());
    }
}

#[rstest]
#[case::stored_in_a_version_that_is_not_served(gears().with_live(GEARS, |live| {
    live["spec"]["versions"][1]["served"] = json!(false);
    live["status"]["storedVersions"] = json!(["v1alpha1", "v1"]);
}))]
#[case::others_hold_fields_of_it(gears().entry(GEARS, |entry| entry.state = EntryState::Kept))]
#[case::it_was_recreated(gears().meta(GEARS, |meta| meta.uid = "later".into()))]
#[case::it_is_part_of_another_set(gears().meta(GEARS, |meta| drop(meta.labels.insert(labels::PART_OF.into(), "other".into()))))]
#[case::the_webhook_was_recreated(hook().meta(HOOK, |meta| meta.uid = "later".into()))]
fn whatever_keeps_it_is_a_reason(#[case] scene: Scene) {
    for plan in plans(&scene) {
        let codes: Vec<&str> = errors(&plan).iter().map(|one| one.code.as_str()).collect();
        assert_eq!(codes, ["backend-removed"]);
    }
}

/// The successor may not exist yet: an uninstall command does not wait for it,
/// unlike an apply of both.
#[rstest]
#[case::of_a_crd(gears(), GEARS)]
#[case::of_a_webhook(hook(), HOOK)]
#[case::of_an_api(api(), API)]
fn a_backend_is_deleted_after_its_registration_is_handed_over(
    #[case] scene: Scene,
    #[case] id: &str,
) {
    let removal = successor(&[id]);
    let plan = scene.end(&removal);
    let [error] = errors(&plan)[..] else {
        panic!("{:#?}", plan.findings)
    };
    assert_eq!(error.code, "backend-removed");
    let hint = format!("{id} is handed over to release e.new: run `pleach apply e/new` first");
    assert_eq!(error.hint.as_deref(), Some(hint.as_str()));

    let consent = serde_json::from_str(r#"{"action": "uninstall", "release": "r"}"#).unwrap();
    let consented = Consented::in_git(&[consent], "r");
    assert!(consented.is_some());
    let plan = scene.end(&Removal {
        consented,
        ..removal
    });
    assert_eq!(errors(&plan), Vec::<&Finding>::new());
}

/// Returns the consents in a hint.
fn consents(hint: &str) -> Vec<String> {
    let texts = hint.split("{action: ").skip(1);
    texts
        .map(|text| format!("{{action: {}}}", text.split_once('}').unwrap().0))
        .collect()
}

#[rstest]
#[case::of_a_crd(gears(), "delete")]
#[case::of_an_api(api(), "delete")]
#[case::of_a_webhook(hook(), "override")]
fn the_hint_contains_the_consents_to_write(#[case] scene: Scene, #[case] first: &str) {
    for end in [false, true] {
        let plan = |scene: &Scene| {
            let [plan, removal] = plans(scene);
            if end { removal } else { plan }
        };
        let refused = plan(&scene);
        let hint = errors(&refused)[0].hint.clone().unwrap();
        assert_eq!(hint.contains("keep the Service in git"), !end, "{hint}");
        let consents = consents(&hint);
        assert!(
            consents[0].starts_with(&format!("{{action: {first}")),
            "{hint}"
        );
        for consent in consents {
            let plan = plan(&scene.clone().consent(&consent));
            assert_eq!(errors(&plan), Vec::<&Finding>::new(), "{consent}");
            let overridden = consent.contains("check: backend-removed");
            let reported = plan.findings.iter();
            let reported = reported
                .filter(|one| one.code == "check-overridden")
                .count();
            assert_eq!(reported, usize::from(overridden));
            assert_eq!(plan.overrides.len(), usize::from(overridden));
        }
    }
}

#[test]
fn an_unread_crd_may_need_the_service() {
    let scene = gears()
        .gone(GEARS)
        .incomplete("CustomResourceDefinition.apiextensions.k8s.io");
    for plan in plans(&scene) {
        let [error] = errors(&plan)[..] else {
            panic!("{:#?}", plan.findings)
        };
        assert_eq!(error.code, "backend-unknown");
        assert!(is_refusal(error));
    }
}

#[test]
fn handed_over_objects_do_not_block_the_backend() {
    let successors = successor(&[GEARS]).successors;
    let plan = gears()
        .with_desired(|desired| desired.terms.successors = successors)
        .plan();
    assert_eq!(errors(&plan), Vec::<&Finding>::new());
    let mut changes = plan.changes.iter();
    assert!(changes.any(|one| one.object.to_string() == SERVICE && one.action == Action::Delete));
}

#[test]
fn crds_are_read_only_if_a_service_is_deleted() {
    let left = |scene: &Scene| {
        let observed = scene.observed();
        scene.desired.undesired_crds(&observed).len()
    };
    assert_eq!(left(&gears()), 1);
    assert_eq!(left(&gears().git(&format!("{SERVICE}: {{}}"))), 0);
    assert_eq!(left(&gears().gone(SERVICE)), 0);
    assert_eq!(left(&gears().gone(GEARS)), 0);
}

#[test]
fn a_registration_without_a_service_is_reported() {
    const HOOK: &str = "ValidatingWebhookConfiguration.admissionregistration.k8s.io/h: {webhooks: [{clientConfig: {service: {namespace: web, name: hook}}}]}";
    let warning = |scene: Scene| {
        let plan = scene.plan();
        let mut findings = plan.findings.into_iter();
        findings.find(|one| one.code == "registration-without-service")
    };
    let absent = || Scene::new().git(HOOK).backend("web/hook", false, 0);
    let finding = warning(absent()).unwrap();
    assert_eq!(
        finding.message,
        "Service web/hook, which it points at, is neither in git nor in the cluster"
    );
    assert!(!finding.is_error() && finding.place.is_some());
    // An unread Service is not known to be absent.
    assert_eq!(warning(Scene::new().git(HOOK)), None);
    assert_eq!(warning(absent().git("Service/web/hook: {}")), None);
    assert_eq!(
        warning(absent().declares("{kind: Service, name: hook}")),
        None
    );
    assert_eq!(warning(absent().backend("web/hook", true, 0)), None);
    let prior_releases = absent().with_desired(|desired| {
        let other = Scene::new().git("Service/web/hook: {}").desired.manifests;
        desired.terms.prior_releases.add(&other, None);
    });
    assert_eq!(warning(prior_releases), None);
}
