//! Uninstalls, and objects that move to another release.

mod handed_over;

use rstest::rstest;
use serde_json::json;

use super::scene::Scene;
use super::{changes, edges, lines, position};
use crate::observe::{Content, Contents, Listing};
use crate::plan::{Action, Consented, Grant, Op, Plan, Removal, ReviewedRelease, Successor, Terms};
use pleach_model::object::{ObjectId, ReleaseName, annotations, labels};
use pleach_state::inventory::{EntryState, Store};

pub(super) fn by_command() -> Removal {
    Removal {
        consented: Some(Consented::by_command()),
        ..Removal::default()
    }
}

fn name(release: &str) -> ReleaseName {
    ReleaseName {
        environment: "e".to_owned(),
        release: release.to_owned(),
    }
}

fn set(release: &str) -> String {
    Store::Release.apply_set(&name(release))
}

pub(super) fn successor(desires: &[&str]) -> Removal {
    Removal {
        consented: Some(Consented::by_command()),
        successors: vec![Successor {
            name: name("new"),
            apply_set: set("new"),
            desires: desires.iter().map(|id| id.parse().unwrap()).collect(),
        }],
        ..Removal::default()
    }
}

fn deleted(plan: &Plan) -> Vec<String> {
    plan.steps
        .iter()
        .filter(|step| matches!(step.op, Op::Delete(_)))
        .map(|step| step.object.to_string())
        .collect()
}

fn released(plan: &Plan) -> Vec<String> {
    let outgoing = plan.removal.as_ref().unwrap();
    outgoing.released.iter().map(ObjectId::to_string).collect()
}

const EVERYTHING: &str = "\
ConfigMap/web/c: {}
Service/web/s: {}
ServiceAccount/web/a: {}
Deployment.apps/web/d: {spec: {template: {}}}
Widget.example.org/web/w: {}
ValidatingWebhookConfiguration.admissionregistration.k8s.io/h: {webhooks: [{clientConfig: {service: {namespace: web, name: s}}}]}
CustomResourceDefinition.apiextensions.k8s.io/widgets.example.org: {}
PersistentVolumeClaim/web/p: {}
Namespace/made: {}";

#[test]
fn an_uninstall_deletes_in_reverse_and_releases_protected_objects() {
    let scene = Scene::new().installed(EVERYTHING).backend("web/s", true, 1);
    let plan = scene.end(&by_command());
    assert!(ReviewedRelease::of(&plan, "abc").removal);
    assert_eq!(
        lines(&plan),
        [
            "prune: delete Widget.example.org/web/w until gone",
            "prune: delete ValidatingWebhookConfiguration.admissionregistration.k8s.io/h until gone",
            "prune: delete Deployment.apps/web/d until gone",
            "prune: delete Service/web/s until gone",
            "prune: delete ConfigMap/web/c until gone",
            "prune: delete ServiceAccount/web/a until gone",
            "shrink: wait Release.pleach.dev/e.r",
            "shrink: patch Namespace/made",
            "shrink: patch CustomResourceDefinition.apiextensions.k8s.io/widgets.example.org",
            "shrink: patch PersistentVolumeClaim/web/p",
        ]
    );
    assert_eq!(
        released(&plan),
        [
            "Namespace/made",
            "PersistentVolumeClaim/web/p",
            "CustomResourceDefinition.apiextensions.k8s.io/widgets.example.org",
        ]
    );
    let edges = edges(&plan);
    for edge in [
        "Widget.example.org/web/w -> ValidatingWebhookConfiguration.admissionregistration.k8s.io/h: Absent Reverse",
        "ConfigMap/web/c -> ServiceAccount/web/a: Absent Reverse",
    ] {
        assert!(edges.contains(&edge.to_owned()), "{edges:#?}");
    }
    let Op::Delete(deletion) = &plan.steps[0].op else {
        panic!()
    };
    assert_eq!(deletion.because(), &Grant::Uninstall);
    assert_eq!(deletion.uid(), "uid of Widget.example.org/web/w");
    assert!(plan.removal.as_ref().unwrap().ends);
    // There is no cap, because the consent covers all objects.
    assert!(plan.findings.iter().all(|finding| !finding.is_error()));
}

fn keeping_objects() -> Removal {
    Removal {
        keeps_objects: true,
        ..by_command()
    }
}

#[test]
fn an_uninstall_that_keeps_the_objects_releases_them_all() {
    // Protected objects and registrations are objects like any other: nothing is deleted.
    let plan = Scene::new()
        .installed(EVERYTHING)
        .backend("web/s", false, 0)
        .end(&keeping_objects());
    assert!(deleted(&plan).is_empty());
    assert_eq!(released(&plan).len(), EVERYTHING.lines().count());
    let patched = plan.steps.iter();
    let patched = patched.filter(|step| matches!(step.op, Op::Patch { .. }));
    assert_eq!(patched.count(), EVERYTHING.lines().count());
    assert!(plan.removal.as_ref().unwrap().ends);
    assert!(plan.findings.is_empty(), "{:?}", plan.findings);
}

#[rstest]
#[case::member(Scene::new().installed("ConfigMap/web/c: {}"),
    "skip ConfigMap/web/c: stays because the uninstall keeps all objects", true)]
#[case::of_others(Scene::new().installed("ConfigMap/web/c: {}").entry("ConfigMap/web/c", |entry| entry.state = EntryState::Kept),
    "skip ConfigMap/web/c: stays because the uninstall keeps all objects", true)]
#[case::gone(Scene::new().installed("ConfigMap/web/c: {}").gone("ConfigMap/web/c"), "unchanged ConfigMap/web/c: gone already", false)]
#[case::another(Scene::new().installed("ConfigMap/web/c: {}").meta("ConfigMap/web/c", |meta| meta.uid = "later".into()),
    "unchanged ConfigMap/web/c: its name now belongs to another object", true)]
#[case::never_confirmed(Scene::new().installed("ConfigMap/web/c: {}").entry("ConfigMap/web/c", |entry| entry.state = EntryState::Intended),
    "skip ConfigMap/web/c: its creation was never confirmed, so an existing object is not changed", false)]
#[case::run_time_object(Scene::new().installed("ConfigMap/web/c: {}").entry("ConfigMap/web/c", |entry| entry.state = EntryState::Observed).incomplete("ConfigMap"),
    "skip ConfigMap/web/c: stays because its creator stays", true)]
#[case::not_seen(Scene::new().installed("ConfigMap/web/c: {}").incomplete("ConfigMap"),
    "skip ConfigMap/web/c: stays because its kind could not be listed completely", false)]
fn it_stays_when_all_objects_do(
    #[case] scene: Scene,
    #[case] change: &str,
    #[case] is_forgotten: bool,
) {
    let plan = scene.end(&keeping_objects());
    assert!(deleted(&plan).is_empty());
    assert_eq!(changes(&plan), [change]);
    assert_eq!(released(&plan).len(), usize::from(is_forgotten));
}

#[rstest]
#[case::deleted("Delete", true)]
#[case::retained("Retain", false)]
fn claims_deleted_with_their_stateful_set_are_named(
    #[case] policy: &str,
    #[case] is_reported: bool,
) {
    let key = "StatefulSet.apps/web/db";
    let set = format!(
        "{key}: {{spec: {{volumeClaimTemplates: [{{metadata: {{name: data}}}}], persistentVolumeClaimRetentionPolicy: {{whenDeleted: {policy}}}}}}}"
    );
    let scene = Scene::new().installed(&set);
    let uninstalled = scene.end(&by_command());
    let pruned = scene.git("ConfigMap/web/c: {}").plan();
    for plan in [uninstalled, pruned] {
        assert_eq!(deleted(&plan), [key]);
        let mut changes = plan.changes.iter();
        let change = changes.find(|change| change.action == Action::Delete);
        let reason = &change.unwrap().reason;
        let reported = reason.contains("; its PersistentVolumeClaims are deleted with it, unless ");
        assert_eq!(reported, is_reported, "{reason}");
    }
}

#[test]
fn a_released_object_loses_only_our_marks() {
    let plan = Scene::new()
        .installed("PersistentVolumeClaim/web/p: {metadata: {labels: {app.kubernetes.io/managed-by: pleach, app: web}}}")
        .end(&by_command());
    let Op::Patch { patch, .. } = &plan.steps[0].op else {
        panic!()
    };
    let operations = patch.0.as_array().unwrap();
    let paths = |op: &str| -> Vec<&str> {
        operations
            .iter()
            .filter(|one| one["op"] == op)
            .map(|one| one["path"].as_str().unwrap())
            .collect()
    };
    let marks = [
        "/metadata/labels/applyset.kubernetes.io~1part-of",
        "/metadata/labels/app.kubernetes.io~1managed-by",
        "/metadata/annotations/pleach.dev~1desired",
    ];
    assert_eq!(paths("remove"), marks);
    assert_eq!(paths("test")[0], "/metadata/uid");
    assert_eq!(paths("test")[1..], marks);
    assert_eq!(paths("add"), ["/metadata/annotations/pleach.dev~1released"]);
    assert_eq!(operations.last().unwrap()["value"], "e.r");
}

#[rstest]
#[case::without_versions(
    "{action: delete, kind: PersistentVolumeClaim, name: p, release: r}",
    true
)]
#[case::from_what_is_installed(
    "{action: delete, kind: PersistentVolumeClaim, name: p, release: r, from: v1.0.0}",
    true
)]
#[case::from_another_version(
    "{action: delete, kind: PersistentVolumeClaim, name: p, release: r, from: v0.9.0}",
    false
)]
#[case::for_an_upgrade(
    "{action: delete, kind: PersistentVolumeClaim, name: p, release: r, from: v1.0.0, to: v2.0.0}",
    false
)]
fn a_protected_object_is_deleted_with_its_own_consent(
    #[case] consent: &str,
    #[case] is_removed: bool,
) {
    let scene = Scene::new().installed("PersistentVolumeClaim/web/p: {}");
    let plan = scene.consent(consent).end(&by_command());
    assert_eq!(deleted(&plan).len(), usize::from(is_removed));
    assert_eq!(released(&plan).len(), usize::from(!is_removed));
    let hint = plan
        .findings
        .iter()
        .find_map(|finding| finding.hint.as_ref());
    assert_eq!(hint.is_none(), is_removed);
    if let Some(hint) = hint {
        assert!(
            hint.ends_with("name: p, release: r, from: v1.0.0}"),
            "{hint}"
        );
    }
}

/// The consenting commit is recorded as the version of the release.
#[test]
fn an_uninstall_without_versions_accepts_the_suggested_consent() {
    let at = |revision: &str| {
        let scene = Scene::new().installed("PersistentVolumeClaim/web/p: {}");
        scene.version(revision).cluster(|observed| {
            let record = observed.installed.as_mut().unwrap();
            record.installed.as_mut().unwrap().revision = revision.to_owned();
        })
    };
    let plan = at("abc").end(&by_command());
    let mut findings = plan.findings.iter();
    let hint = findings.find_map(|finding| finding.hint.as_deref());
    let hint = hint.unwrap();
    let line = &hint[hint.rfind("{action: ").unwrap()..];
    assert!(line.ends_with("name: p, release: r}"), "{line}");
    let plan = at("def").consent(line).end(&by_command());
    assert_eq!(deleted(&plan).len(), 1);
}

#[rstest]
#[case::annotated(Scene::new().installed("ConfigMap/web/c: {}").meta("ConfigMap/web/c", |meta| drop(meta.annotations.insert("pleach.dev/prune".into(), "disabled".into()))),
    "skip ConfigMap/web/c: stays because of its annotation pleach.dev/prune", true)]
#[case::adopted_namespace(Scene::new().installed("Namespace/m: {}").entry("Namespace/m", |entry| entry.adopted = true)
    .consent("{action: delete, kind: Namespace, name: m, release: r}"),
    "skip Namespace/m: stays because a namespace that existed before the release is never deleted", true)]
#[case::load_balancer(Scene::new().installed("Service/web/s: {spec: {type: LoadBalancer}}"),
    "skip Service/web/s: stays because load balancers are protected", true)]
#[case::protected_by_the_environment(Scene::new().installed("ConfigMap/web/c: {}").protect("{kind: ConfigMap}"),
    "skip ConfigMap/web/c: stays because objects of kind ConfigMap are protected", true)]
#[case::of_another_set(Scene::new().installed("ConfigMap/web/c: {}").meta("ConfigMap/web/c", |meta| drop(meta.labels.insert(labels::PART_OF.into(), "other".into()))),
    "skip ConfigMap/web/c: stays because it is part of another ApplySet now", true)]
#[case::of_others(Scene::new().installed("ConfigMap/web/c: {}").entry("ConfigMap/web/c", |entry| entry.state = EntryState::Kept),
    "skip ConfigMap/web/c: stays because other field managers own fields of it", true)]
#[case::gone(Scene::new().installed("ConfigMap/web/c: {}").gone("ConfigMap/web/c"), "unchanged ConfigMap/web/c: gone already", false)]
#[case::another(Scene::new().installed("ConfigMap/web/c: {}").meta("ConfigMap/web/c", |meta| meta.uid = "later".into()),
    "unchanged ConfigMap/web/c: its name now belongs to another object", true)]
#[case::never_confirmed(Scene::new().installed("ConfigMap/web/c: {}").entry("ConfigMap/web/c", |entry| entry.state = EntryState::Intended),
    "skip ConfigMap/web/c: its creation was never confirmed, so an existing object is not changed", false)]
#[case::never_confirmed_nor_seen(Scene::new().installed("ConfigMap/web/c: {}").entry("ConfigMap/web/c", |entry| entry.state = EntryState::Intended)
    .gone("ConfigMap/web/c").incomplete("ConfigMap"),
    "skip ConfigMap/web/c: its creation was never confirmed, so an existing object is not changed", false)]
#[case::never_made(Scene::new().installed("ConfigMap/web/c: {}").entry("ConfigMap/web/c", |entry| entry.state = EntryState::Intended)
    .gone("ConfigMap/web/c"), "unchanged ConfigMap/web/c: it does not exist", false)]
#[case::not_seen(Scene::new().installed("ConfigMap/web/c: {}").incomplete("ConfigMap"),
    "skip ConfigMap/web/c: stays because its kind could not be listed completely", false)]
#[case::not_served(Scene::new().installed("Widget.example.org/web/w: {}").gone("Widget.example.org/web/w").unserved("Widget.example.org"),
    "skip Widget.example.org/web/w: stays because its kind could not be listed completely", false)]
#[case::registrations_not_seen(Scene::new().installed("ConfigMap/web/c: {}").incomplete("APIService.apiregistration.k8s.io"),
    "skip ConfigMap/web/c: stays because objects of kind APIService.apiregistration.k8s.io could not be listed", false)]
#[case::pruning_is_off(Scene::new().installed("ConfigMap/web/c: {}").policy(|policy| policy.prune.enabled = false),
    "skip ConfigMap/web/c: stays because pruning is disabled in the environment file", false)]
fn it_stays(#[case] scene: Scene, #[case] change: &str, #[case] is_forgotten: bool) {
    let plan = scene.end(&by_command());
    assert!(deleted(&plan).is_empty());
    assert_eq!(changes(&plan), [change]);
    assert_eq!(released(&plan).len(), usize::from(is_forgotten));
}

#[test]
fn an_object_deleted_with_its_crd_does_not_block() {
    let plan = Scene::new()
        .installed("Widget.example.org/web/w: {}")
        .gone("Widget.example.org/web/w")
        .unserved("Widget.example.org")
        .listing("Widget.example.org", Listing::Complete)
        .end(&by_command());
    assert_eq!(
        changes(&plan),
        ["unchanged Widget.example.org/web/w: gone already"]
    );
}

const FOREIGN: &str = "Secret/made/s";

#[rstest]
#[case::contents_not_read(None, true, "")]
#[case::empty(Some(Contents::Known(Vec::new())), true, "")]
#[case::of_others(Some(Contents::Known(vec![content(FOREIGN, &[])])), false, "it contains objects that the release does not own: Secret/made/s")]
#[case::of_the_release(Some(Contents::Known(vec![content("ConfigMap/made/c", &[])])), true, "")]
#[case::owned_by_a_removed_object(Some(Contents::Known(vec![content("ConfigMap/made/x", &["uid of ConfigMap/made/c"])])), true, "")]
#[case::not_seen(Some(Contents::Unknown("secrets cannot be listed".to_owned())), false,
    "its contents are unknown: secrets cannot be listed")]
fn a_namespace_with_foreign_objects_stays_despite_consent(
    #[case] contents: Option<Contents>,
    #[case] is_removed: bool,
    #[case] why: &str,
) {
    let scene = Scene::new()
        .installed("Namespace/made: {}\nConfigMap/made/c: {}")
        .cluster(|observed| {
            if let Some(contents) = contents {
                observed.contents.insert("made".to_owned(), contents);
            }
        });
    let for_the_end = scene
        .clone()
        .consent("{action: delete, kind: Namespace, name: made, release: r}");
    let end = for_the_end.end(&by_command());
    let upgrade = scene
        .consent(
            "{action: delete, kind: Namespace, name: made, release: r, from: v1.0.0, to: v2.0.0}",
        )
        .plan();
    for (plan, prefix) in [(end, ""), (upgrade, "no longer in git; ")] {
        assert_eq!(
            deleted(&plan).contains(&"Namespace/made".to_owned()),
            is_removed,
            "{:?}",
            changes(&plan)
        );
        if !is_removed {
            let expected = format!("skip Namespace/made: {prefix}stays because {why}");
            assert!(changes(&plan).contains(&expected), "{:?}", changes(&plan));
        }
        // All other objects are still deleted.
        assert!(deleted(&plan).contains(&"ConfigMap/made/c".to_owned()));
    }
}

fn content(id: &str, owners: &[&str]) -> Content {
    Content {
        id: id.parse().unwrap(),
        uid: format!("uid of {id}"),
        owners: owners.iter().map(|&owner| owner.to_owned()).collect(),
    }
}

#[rstest]
#[case::in_its_file(
    true,
    "to uninstall it, add to `consent` in environments/e.yaml: {action: uninstall, release: r}"
)]
#[case::its_file_is_gone(
    false,
    "to uninstall it, run `pleach uninstall e/r`: its environment no longer has a file for the consent"
)]
fn without_consent_everything_stays_and_the_consent_is_suggested(
    #[case] has_file: bool,
    #[case] hint: &str,
) {
    let plan = Scene::new()
        .installed("ConfigMap/web/c: {}\nConfigMap/web/gone: {}\nNamespace/made: {}")
        .gone("ConfigMap/web/gone")
        .end(&Removal {
            has_file,
            ..Removal::default()
        });
    assert!(plan.steps.is_empty());
    assert_eq!(
        changes(&plan),
        [
            "skip ConfigMap/web/c: no longer in git; stays until a consent to uninstall its release",
            "unchanged ConfigMap/web/gone: no longer in git, and gone already",
            "skip Namespace/made: no longer in git; stays until a consent to uninstall its release",
        ]
    );
    let [finding] = plan.findings.as_slice() else {
        panic!("{:?}", plan.findings)
    };
    assert_eq!(finding.code, "removal-waits");
    assert!(!finding.is_error());
    assert_eq!(finding.hint.as_deref(), Some(hint));
    assert!(!plan.removal.unwrap().ends);
}

const LEFT: &str = "APIService.apiregistration.k8s.io/v1.example.org: {spec: {service: {namespace: web, name: api}}}";
const LEFT_KEY: &str = "APIService.apiregistration.k8s.io/v1.example.org";

#[rstest]
#[case::alive(Some((true, 1)), "prune")]
#[case::dead(Some((true, 0)), "gates")]
#[case::not_looked_up(None, "prune")]
fn registrations_made_by_workloads_are_deleted_with_the_service(
    #[case] backend: Option<(bool, usize)>,
    #[case] stage: &str,
) {
    let mut scene = Scene::new()
        .installed("Service/web/api: {}\nWidget.example.org/web/w: {}")
        .live(LEFT);
    if let Some((exists, endpoints)) = backend {
        scene = scene.backend("web/api", exists, endpoints);
    }
    let plan = scene.end(&by_command());
    let step = &plan.steps[position(&plan, LEFT_KEY)];
    assert_eq!(step.stage.as_str(), stage);
    let edge = if stage == "gates" {
        format!("{LEFT_KEY} -> Widget.example.org/web/w: Absent Leftover")
    } else {
        format!("{LEFT_KEY} -> Service/web/api: Absent Reverse")
    };
    assert!(edges(&plan).contains(&edge), "{:#?}", edges(&plan));
}

#[test]
fn registrations_of_deleted_services_are_found_by_declaration() {
    let plan = Scene::new()
        .version("v1.0.0")
        .declares("{kind: APIService, service: api}")
        .live(LEFT)
        .backend("web/api", false, 0)
        .end(&by_command());
    assert_eq!(deleted(&plan), [LEFT_KEY]);
}

#[test]
fn a_release_is_deleted_in_reverse_order_of_its_stages() {
    let plan = super::prune::staged().end(&by_command());
    assert_eq!(
        deleted(&plan),
        [
            "Deployment.apps/web/api",
            "Deployment.apps/web/controller",
            "DaemonSet.apps/web/agent",
            "Deployment.apps/web/first",
            "Service/web/s",
            "ConfigMap/web/late",
            "ConfigMap/web/early",
        ]
    );
    let edge = "Deployment.apps/web/api -> Deployment.apps/web/controller: Absent Reverse";
    assert!(edges(&plan).contains(&edge.to_owned()));
}

#[test]
fn a_crd_is_deleted_while_its_conversion_service_runs() {
    let consent = "{action: delete, kind: CustomResourceDefinition, name: widgets.example.org, release: r, from: v1.0.0}";
    let plan = super::prune::converted("api")
        .consent(consent)
        .end(&by_command());
    assert_eq!(deleted(&plan), super::prune::CONVERTED);
}

#[test]
fn a_release_does_not_delete_objects_another_one_adopts() {
    let worker = "ConfigMap/web/worker: {}\nConfigMap/web/left: {}";
    let scene = || {
        let git = "ConfigMap/web/kept: {}";
        Scene::new()
            .installed(&format!("{git}\n{worker}"))
            .git(git)
            .with_desired(|desired| {
                desired.terms.successors = successor(&["ConfigMap/web/worker"]).successors;
            })
    };
    let plan = scene().plan();
    assert_eq!(deleted(&plan), ["ConfigMap/web/left"]);
    assert!(changes(&plan).contains(
        &"skip ConfigMap/web/worker: no longer in git; stays because it is to be handed over to release e.new".to_owned()
    ));
    let taken = scene().with_live("ConfigMap/web/worker", |live| {
        live["metadata"]["labels"] = json!({labels::PART_OF: set("new")});
    });
    let plan = taken.plan();
    assert_eq!(deleted(&plan), ["ConfigMap/web/left"]);
    assert!(changes(&plan).contains(
        &"unchanged ConfigMap/web/worker: it was handed over to release e.new".to_owned()
    ));
}
