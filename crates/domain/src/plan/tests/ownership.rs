//! Whose an existing object is.

use rstest::rstest;
use serde_json::json;

use super::changes;
use super::scene::Scene;
use crate::inventory::EntryState;
use crate::object::labels;
use crate::plan::{Action, Cause, Op, Precondition};

const KEY: &str = "ConfigMap/web/c";
const GIT: &str = "ConfigMap/web/c: {data: {k: v}}";

fn theirs(managers: &str) -> Scene {
    let live = format!("ConfigMap/web/c: {{data: {{k: v, more: x}}, managers: [{managers}]}}");
    Scene::new().git(GIT).live(&live)
}

#[rstest]
#[case::nobody_was_asked(
    theirs("kubectl-edit"),
    "not-adopted",
    "it exists already and is not of this release; its fields are held by kubectl-edit",
    "add `adopt: [kubectl]`"
)]
#[case::a_family_is_named_first(
    theirs("kube-controller-manager, helm"),
    "not-adopted",
    "it exists already and is not of this release; its fields are held by kube-controller-manager, helm",
    "add `adopt: [helm]`"
)]
#[case::no_record(
    theirs(""),
    "not-adopted",
    "it exists already and is not of this release; its fields are held by nobody on record",
    "add `adopt: [kubectl]`"
)]
#[case::of_another_family(theirs("helm-controller").adopt("helm"), "not-adopted",
    "it exists already and is not of this release; its fields are held by helm-controller", "add `adopt: [flux]`")]
#[case::of_another_set(theirs("kubectl").adopt("kubectl").with_live(KEY, |live| { live["metadata"]["labels"] = json!({labels::PART_OF: "other"}); }),
    "foreign-apply-set", "it is part of another ApplySet (other)", "remove it from the other set")]
#[case::of_flux(theirs("kustomize-controller").adopt("flux").with_live(KEY, |live| { live["metadata"]["labels"] = json!({"kustomize.toolkit.fluxcd.io/name": "x"}); }),
    "owned-by-deployer", "Flux manages it (mark `kustomize.toolkit.fluxcd.io/name`)", "flux suspend kustomization")]
#[case::of_helm_by_flux(theirs("helm-controller").adopt("flux").with_live(KEY, |live| { live["metadata"]["labels"] = json!({"helm.toolkit.fluxcd.io/name": "x"}); }),
    "owned-by-deployer", "Flux manages it (mark `helm.toolkit.fluxcd.io/name`)", "flux suspend helmrelease")]
#[case::of_argo(theirs("argocd-controller").adopt("argocd").with_live(KEY, |live| { live["metadata"]["annotations"] = json!({"argocd.argoproj.io/tracking-id": "x"}); }),
    "owned-by-deployer", "Argo CD manages it (mark `argocd.argoproj.io/tracking-id`)", "argocd app set")]
#[case::of_helm(theirs("helm").adopt("helm").with_live(KEY, |live| { live["metadata"]["annotations"] = json!({"meta.helm.sh/release-name": "x"}); }),
    "owned-by-deployer", "Helm manages it (mark `meta.helm.sh/release-name`)", "helm uninstall")]
#[case::made_again_by_another_deployer(made_again().with_live(KEY, |live| { live["metadata"]["annotations"] = json!({"meta.helm.sh/release-name": "x"}); }),
    "owned-by-deployer", "Helm manages it (mark `meta.helm.sh/release-name`)", "helm uninstall")]
#[case::created_by_somebody_while_we_applied(Scene::new().installed(GIT).git(GIT).edited("x", "ConfigMap/web/c: {data: {more: y}}")
    .entry(KEY, |entry| entry.state = EntryState::Kept),
    "not-adopted", "it exists already and is not of this release; its fields are held by x", "add `adopt: [x]`")]
fn is_somebody_elses(
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

/// A member that was deleted and made again by hand.
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
#[case::flux_when_it_left(theirs("kustomize-controller").adopt("flux"))]
#[case::argo(theirs("argocd-controller").adopt("argocd"))]
#[case::helm(theirs("helm").adopt("helm"))]
#[case::by_name(theirs("my-own-tool").adopt("my-own-tool"))]
fn may_be_taken_over(#[case] scene: Scene) {
    let plan = scene.plan();
    assert_eq!(plan.count(Action::Adopt), 1, "{:?}", plan.findings);
    // Their entries become ours first, or what git does not have would stay.
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
fn only_what_may_be_taken_over_is_forced() {
    let live = "ConfigMap/web/c: {data: {k: theirs, more: x}, managers: [kubectl]}";
    let scene = Scene::new().git(GIT).live(live).adopt("kubectl");
    let plan = scene.plan();
    assert!(
        plan.steps
            .iter()
            .any(|step| matches!(&step.op, Op::Apply { take_over, .. } if !take_over.is_empty()))
    );
    // A second holder that may not be taken over stops it.
    let plan = scene
        .edited("x", "ConfigMap/web/c: {data: {k: of x}}")
        .plan();
    assert_eq!(plan.count(Action::Blocked), 1);
    assert_eq!(plan.findings[0].message, "x holds .data.k");
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
#[case::kept_and_nobody_else_left(Scene::new().installed(GIT).git(GIT).entry(KEY, |entry| entry.state = EntryState::Kept), Action::Unchanged)]
fn is_ours(#[case] scene: Scene, #[case] action: Action) {
    let plan = scene.plan();
    assert_eq!(plan.changes[0].action, action, "{:?}", changes(&plan));
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
            "adopt Namespace/a: it exists and is taken over from kubectl",
        ]
    );
}
