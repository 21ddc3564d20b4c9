//! Ownership of existing objects.

use rstest::rstest;
use serde_json::json;

use super::changes;
use super::scene::Scene;
use crate::plan::{Action, Op, Plan, Precondition, takes_ownership};
use pleach_fields::diff::Cause;
use pleach_model::foreign_tools::{Owner, OwnerKind, OwnerState};
use pleach_model::object::{ReleaseName, labels};
use pleach_state::inventory::EntryState;

const KEY: &str = "ConfigMap/web/c";
const GIT: &str = "ConfigMap/web/c: {data: {k: v}}";

#[rstest]
#[case::its_own("pleach/e.r", true)]
#[case::its_own_for_a_while("pleach-overlay", true)]
#[case::of_the_release_that_hands_over("pleach/e.old", true)]
#[case::adopted("shop-operator", true)]
#[case::of_another_release("pleach/e.other", false)]
#[case::of_the_same_release_elsewhere("pleach/other.old", false)]
#[case::of_a_user("other-tool", false)]
fn fields_of_known_managers_are_owned_without_consent(
    #[case] manager: &str,
    #[case] expected: bool,
) {
    let mut scene = Scene::new();
    scene.desired.terms.moved_from = Some(ReleaseName {
        environment: "e".to_owned(),
        release: "old".to_owned(),
    });
    scene.policy.adopt = vec!["shop-operator".to_owned()];
    assert_eq!(
        takes_ownership(&scene.desired, &scene.policy, manager),
        expected
    );
}

fn theirs(managers: &str) -> Scene {
    let live = format!("ConfigMap/web/c: {{data: {{k: v, more: x}}, managers: [{managers}]}}");
    Scene::new().git(GIT).live(&live)
}

fn of_flux(engine: &str) -> Scene {
    theirs(&format!("{engine}-controller")).with_live(KEY, |live| {
        let key = |what: &str| format!("{engine}.toolkit.fluxcd.io/{what}");
        live["metadata"]["labels"] = json!({key("name"): "x", key("namespace"): "flux-system"});
    })
}

fn of_argo() -> Scene {
    theirs("argocd-controller").with_live(KEY, |live| {
        live["metadata"]["annotations"] =
            json!({"argocd.argoproj.io/tracking-id": "x:/ConfigMap:web/c"});
    })
}

fn of_helm() -> Scene {
    theirs("helm").with_live(KEY, |live| {
        live["metadata"]["annotations"] =
            json!({"meta.helm.sh/release-name": "x", "meta.helm.sh/release-namespace": "web"});
    })
}

fn owner(kind: OwnerKind, namespace: Option<&str>) -> Owner {
    Owner {
        kind,
        namespace: namespace.map(str::to_owned),
        name: "x".to_owned(),
    }
}

fn kustomization() -> Owner {
    owner(OwnerKind::Kustomization, Some("flux-system"))
}

fn application() -> Owner {
    owner(OwnerKind::Application, None)
}

fn active() -> OwnerState {
    OwnerState::Active {
        namespace: "flux-system".to_owned(),
    }
}

#[rstest]
#[case::no_request(
    theirs("kubectl-edit"),
    "not-adopted",
    "it already exists and is not part of this release; its fields are owned by kubectl-edit",
    "add `adopt: [kubectl]`"
)]
#[case::a_family_is_named_first(
    theirs("kube-controller-manager, helm"),
    "not-adopted",
    "it already exists and is not part of this release; its fields are owned by kube-controller-manager, helm",
    "add `adopt: [helm]`"
)]
#[case::no_record(
    theirs(""),
    "not-adopted",
    "it already exists and is not part of this release; its fields are owned by no recorded manager",
    "add `adopt: [kubectl]`"
)]
#[case::of_another_family(theirs("helm-controller").adopt("helm"), "not-adopted",
    "it already exists and is not part of this release; its fields are owned by helm-controller", "add `adopt: [flux]`")]
#[case::of_another_set(theirs("kubectl").adopt("kubectl").with_live(KEY, |live| { live["metadata"]["labels"] = json!({labels::PART_OF: "other"}); }),
    "foreign-apply-set", "it is part of another ApplySet (other)", "remove it from the other set")]
#[case::of_another_release(theirs("pleach/e.other, kubectl").with_live(KEY, |live| { live["metadata"]["labels"] = json!({labels::PART_OF: "other"}); }),
    "foreign-apply-set", "it is part of release e.other",
    "to take ownership of it, add to release r in environments/e.yaml: `movedFrom: {environment: e, release: other}`")]
#[case::of_another_set_by_its_label_alone(
    Scene::new().git(GIT).installed(GIT).with_live(KEY, |live| {
        live["metadata"]["labels"] = json!({labels::PART_OF: "other"});
        live["metadata"]["uid"] = json!("later");
    }),
    "foreign-apply-set", "it is part of another ApplySet (other)",
    "remove it from the other set, or from this release; if no other set contains it, remove its label applyset.kubernetes.io/part-of")]
#[case::of_flux(of_flux("kustomize").adopt("flux").owner(kustomization(), active()),
    "owned-by-other-tool", "Flux (Kustomization flux-system/x) manages it and is active",
    "suspend it first: `flux suspend kustomization x -n flux-system` or `kubectl -n flux-system patch kustomizations.kustomize.toolkit.fluxcd.io x --type=merge -p '{\"spec\":{\"suspend\":true}}'`; to adopt the object, add `adopt: [flux]` to release r in environments/e.yaml")]
#[case::of_flux_that_cannot_be_read(of_flux("kustomize").adopt("flux").owner(kustomization(), OwnerState::Unknown("forbidden".to_owned())),
    "owned-by-other-tool", "Flux (Kustomization flux-system/x) manages it, and it is unknown whether the tool is active: forbidden", "allow pleach to read Flux")]
#[case::of_flux_that_is_suspended(of_flux("kustomize").adopt("kubectl").owner(kustomization(), OwnerState::Suspended),
    "not-adopted", "it already exists and is not part of this release; Flux (Kustomization flux-system/x) installed it", "add `adopt: [flux]`")]
#[case::of_helm_by_flux(of_flux("helm").adopt("flux"),
    "owned-by-other-tool", "Flux (HelmRelease flux-system/x) manages it, and it is unknown whether the tool is active: its state was not read", "allow pleach to read Flux")]
#[case::of_argo(of_argo().adopt("argocd").owner(application(), active()),
    "owned-by-other-tool", "Argo CD (application x) manages it and is active", "`argocd app set x --sync-policy none` or `kubectl -n flux-system patch applications.argoproj.io x")]
#[case::of_helm(of_helm().adopt("kubectl"),
    "not-adopted", "it already exists and is not part of this release; Helm (release web/x) installed it", "add `adopt: [helm]`")]
#[case::made_again_by_another_tool(made_again().with_live(KEY, |live| { live["metadata"]["annotations"] = json!({"meta.helm.sh/release-name": "x"}); }),
    "not-adopted", "it already exists and is not part of this release; Helm (release x) installed it", "add `adopt: [helm]`")]
#[case::created_by_a_user_while_we_applied(Scene::new().installed(GIT).git(GIT).edited("x", "ConfigMap/web/c: {data: {more: y}}")
    .entry(KEY, |entry| entry.state = EntryState::Kept),
    "not-adopted", "it already exists and is not part of this release; its fields are owned by x", "add `adopt: [x]`")]
fn is_owned_by_another_client(
    #[case] scene: Scene,
    #[case] code: &str,
    #[case] message: &str,
    #[case] hint: &str,
) {
    let plan = scene.plan();
    let finding = &plan.findings[0];
    assert_eq!(
        (finding.code.as_str(), finding.message.as_str()),
        (code, message)
    );
    assert!(finding.hint.as_ref().unwrap().contains(hint), "{finding:?}");
    assert_eq!(plan.count(Action::Blocked), 1);
    assert!(!plan.has_steps());
}

/// Builds a member that was deleted and recreated by hand.
fn made_again() -> Scene {
    let again = "ConfigMap/web/c: {metadata: {uid: later}, data: {k: other}, managers: [kubectl]}";
    Scene::new().installed(GIT).git(GIT).live(again)
}

#[test]
fn a_member_that_was_made_again_by_hand_has_drifted() {
    let plan = made_again().plan();
    assert!(plan.findings.is_empty(), "{:?}", plan.findings);
    let change = &plan.changes[0];
    assert_eq!(change.action, Action::Update);
    let drift = Cause::Drift {
        managers: vec!["kubectl".to_owned()],
    };
    assert_eq!(change.cause, Some(drift));
}

#[rstest]
#[case::by_family(theirs("kubectl-client-side-apply").adopt("kubectl"))]
#[case::made_up_by_the_server(theirs("before-first-apply").adopt("kubectl"))]
#[case::no_recorded_owner(theirs("").adopt("kubectl"))]
#[case::flux_when_it_left(theirs("kustomize-controller").adopt("flux"))]
#[case::argo(theirs("argocd-controller").adopt("argocd"))]
#[case::helm(theirs("helm").adopt("helm"))]
#[case::by_name(theirs("my-own-tool").adopt("my-own-tool"))]
#[case::flux_that_is_suspended(of_flux("kustomize").adopt("flux").owner(kustomization(), OwnerState::Suspended))]
#[case::flux_that_is_gone(of_flux("kustomize").adopt("flux").owner(kustomization(), OwnerState::Absent))]
#[case::argo_without_automation(of_argo().adopt("argocd").owner(application(), OwnerState::Suspended))]
#[case::helm_has_no_loop(of_helm().adopt("helm"))]
fn can_be_adopted(#[case] scene: Scene) {
    let plan = scene.plan();
    assert_eq!(plan.count(Action::Adopt), 1, "{:?}", plan.findings);
    // Their entries become ours first, or fields that git lacks would remain.
    let verbs: Vec<&str> = plan
        .steps
        .iter()
        .take(2)
        .map(|step| step.op.verb())
        .collect();
    assert_eq!(verbs, ["patch", "apply"]);
    let uid = Precondition::Uid(format!("uid of {KEY}"));
    assert_eq!(
        (&plan.steps[0].require, &plan.steps[1].require),
        (&vec![uid.clone()], &vec![uid])
    );
    assert!(matches!(&plan.steps[1].op, Op::Apply { take_over, .. } if take_over.is_empty()));
}

#[test]
fn marks_of_previous_tools_are_removed_unless_git_has_them() {
    let scene = of_helm().adopt("helm");
    let own = |plan: &Plan| match &plan.steps[0].op {
        Op::Own(own) => own.clone(),
        op => panic!("{op:?}"),
    };
    let strip: Vec<String> = own(&scene.plan())
        .strip
        .iter()
        .map(ToString::to_string)
        .collect();
    assert_eq!(
        strip,
        [
            r#".metadata.annotations["meta.helm.sh/release-name"]"#,
            r#".metadata.annotations["meta.helm.sh/release-namespace"]"#,
        ]
    );
    assert_eq!(own(&scene.plan()).from, ["helm"]);
    let git =
        "ConfigMap/web/c: {metadata: {annotations: {meta.helm.sh/release-name: x}}, data: {k: v}}";
    assert_eq!(own(&scene.git(git).plan()).strip.len(), 1);
}

#[test]
fn a_helm_record_is_named_with_its_removal_command() {
    let recorded = OwnerState::Recorded {
        namespace: "web".to_owned(),
        records: vec!["configmap/sh.helm.release.v1.x.v1".to_owned()],
    };
    let plan = of_helm()
        .adopt("helm")
        .owner(owner(OwnerKind::HelmInstallation, Some("web")), recorded)
        .plan();
    let finding = &plan.findings[0];
    assert_eq!(finding.code, "helm-release-remains");
    assert!(
        finding
            .message
            .contains("(configmap/sh.helm.release.v1.x.v1 in namespace web)")
    );
    assert_eq!(
        finding.hint.as_deref(),
        Some(
            "after this apply, delete the record: `kubectl -n web delete configmap/sh.helm.release.v1.x.v1`"
        )
    );
    assert!(!finding.is_error());
}

#[test]
fn an_interrupted_adoption_is_resumed() {
    // The patch ran but the apply did not: our entry exists without our label,
    // and another manager co-owns fields.
    let scene = theirs("kubectl").with_live(KEY, |live| {
        let entries = live["metadata"]["managedFields"].as_array_mut().unwrap();
        entries.push(super::server::entry(
            super::scene::MANAGER,
            "Apply",
            &json!({"f:data": {"f:k": {}}}),
        ));
    });
    let plan = scene.plan();
    assert_eq!(plan.count(Action::Adopt), 1, "{:?}", plan.findings);
}

#[test]
fn only_permitted_conflicts_are_forced() {
    let live = "ConfigMap/web/c: {data: {k: theirs, more: x}, managers: [kubectl]}";
    let scene = Scene::new().git(GIT).live(live).adopt("kubectl");
    let plan = scene.plan();
    assert!(
        plan.steps
            .iter()
            .any(|step| matches!(&step.op, Op::Apply { take_over, .. } if !take_over.is_empty()))
    );
    // A second manager that is not adopted blocks the object.
    let plan = scene
        .edited("x", "ConfigMap/web/c: {data: {k: of x}}")
        .plan();
    assert_eq!(plan.count(Action::Blocked), 1);
    assert_eq!(plan.findings[0].message, "x owns .data.k");
    assert_eq!(
        plan.findings[0].hint.as_deref(),
        Some(
            "to leave the fields to x, add to release r in environments/e.yaml:\n  \
             ignore: [{kind: ConfigMap, name: c, namespace: web, fields: [data.k]}]\n\
             to take ownership of them, add:\n  adopt: [x]\n\
             or remove data.k from web.yaml:1"
        )
    );
}

#[test]
fn an_adoption_that_could_not_be_checked_is_still_one() {
    use crate::observe::{Prediction, Unverified};
    let down = Prediction::Unverified(Unverified::Webhook("down".to_owned()));
    let plan = theirs("kubectl").adopt("kubectl").predict(KEY, down).plan();
    assert_eq!(plan.count(Action::Adopt), 1);
    assert!(plan.changes[0].unverified.is_some());
    assert_eq!(plan.steps[0].op.verb(), "patch");
}

#[rstest]
#[case::label_lost(Scene::new().installed(GIT).git(GIT).meta(KEY, |meta| { meta.labels.clear(); meta.resource_version = "2".into(); }), Action::Update)]
#[case::record_lost(Scene::new().installed(GIT).git(GIT).cluster(|observed| observed.inventory.entries.clear()), Action::Update)]
#[case::retained_without_other_managers(Scene::new().installed(GIT).git(GIT).entry(KEY, |entry| entry.state = EntryState::Kept), Action::Unchanged)]
fn is_ours(#[case] scene: Scene, #[case] action: Action) {
    let plan = scene.plan();
    assert_eq!(plan.changes[0].action, action, "{:?}", changes(&plan));
}

/// The record of another release, its shards, journal and lease, and the digest
/// key.
#[rstest]
#[case::record("ConfigMap/web/prod.db", Some(labels::RELEASE), "kubectl")]
#[case::journal("ConfigMap/web/prod.db.journal", Some(labels::JOURNAL), "kubectl")]
#[case::last_plan("ConfigMap/web/prod.db.plan", Some(labels::PLAN), "kubectl")]
#[case::written_by_pleach("ConfigMap/web/prod.db", None, "pleach-state")]
#[case::lease("Lease.coordination.k8s.io/web/prod.db", None, "pleach-state")]
#[case::digest_key("Secret/web/pleach-digest-key", None, "kubectl")]
fn state_objects_are_not_adopted(
    #[case] key: &str,
    #[case] label: Option<&str>,
    #[case] manager: &str,
) {
    let scene = Scene::new()
        .git(&format!("{key}: {{data: {{k: v}}}}"))
        .live(&format!("{key}: {{data: {{k: x}}, managers: [{manager}]}}"))
        .with_live(key, |live| {
            if let Some(label) = label {
                live["metadata"]["labels"] = json!({label: "x"});
            }
        })
        .adopt("kubectl");
    let plan = scene.plan();
    assert_eq!(plan.findings[0].code, "state-object");
    assert_eq!(plan.refusals().count(), 1);
    assert!(!plan.has_steps());
    // The same object without these marks is adopted.
    let other = "ConfigMap/web/prod.db";
    let scene = Scene::new()
        .git(&format!("{other}: {{data: {{k: v}}}}"))
        .live(&format!("{other}: {{data: {{k: x}}, managers: [kubectl]}}"));
    assert_eq!(scene.adopt("kubectl").plan().count(Action::Adopt), 1);
}

/// Builds a relabeled member, and a second object that changes.
fn relabelled() -> Scene {
    let other = "ConfigMap/web/d: {data: {k: v}}";
    let label = format!(
        "{KEY}: {{metadata: {{labels: {{{}: other}}}}}}",
        labels::PART_OF
    );
    Scene::new()
        .installed(&format!("{GIT}\n{other}"))
        .git(&format!("{GIT}\n{}", other.replace("k: v", "k: later")))
        .edited("kubectl-label", &label)
}

#[test]
fn a_foreign_label_on_a_member_is_drift() {
    let plan = relabelled().plan();
    assert!(plan.findings.is_empty(), "{:?}", plan.findings);
    assert_eq!(plan.count(Action::Update), 2);
    let drift = Cause::Drift {
        managers: vec!["kubectl-label".to_owned()],
    };
    assert_eq!(plan.changes[0].cause, Some(drift));
    assert!(
        plan.steps
            .iter()
            .any(|step| step.object.to_string() == KEY && step.op.verb() == "apply")
    );
}

#[rstest]
#[case::made_again(relabelled().with_live(KEY, |live| live["metadata"]["uid"] = json!("later")))]
#[case::applied_by_another_release(relabelled().edited("pleach/e.other", "ConfigMap/web/c: {data: {more: x}}"))]
#[case::not_applied_by_us(relabelled().with_live(KEY, |live| live["metadata"]["managedFields"] = json!([])))]
fn another_label_blocks_its_object_and_no_other(#[case] scene: Scene) {
    let plan = scene.plan();
    assert_eq!(plan.findings[0].code, "foreign-apply-set");
    assert_eq!(plan.refusals().count(), 0);
    assert_eq!(plan.count(Action::Blocked), 1);
    assert_eq!(plan.count(Action::Update), 1);
}

#[test]
fn a_namespace_is_adopted_like_anything_else() {
    let git = "Namespace/a: {metadata: {labels: {team: web}}}\nConfigMap/a/c: {}";
    let scene = Scene::new()
        .git(git)
        .live("Namespace/a: {managers: [kubectl]}");
    assert_eq!(scene.plan().count(Action::Blocked), 2);
    let plan = scene.adopt("kubectl").plan();
    assert_eq!(
        changes(&plan),
        [
            "create ConfigMap/a/c: it does not exist yet",
            "adopt Namespace/a: it exists and is adopted from kubectl",
        ]
    );
}
