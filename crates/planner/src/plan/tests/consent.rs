//! Consent lines that hints suggest.

use rstest::rstest;

use super::crds::{from_to, seen, things};
use super::scene::Scene;
use super::{backends, operators, prune, recreate};
use pleach_formats::check::CheckOutcome;
use pleach_model::finding::overridable::OVERRIDABLE;

const CHECK: &str =
    "{name: volumes, forEach: {group: example.org, kind: Volume}, require: \"item.status.ok\"}";

fn checked() -> Scene {
    Scene::new()
        .installed("ConfigMap/web/c: {data: {k: a}}")
        .git("ConfigMap/web/c: {data: {k: b}}")
        .check(CHECK)
        .outcome("volumes", CheckOutcome::Unknown("forbidden".to_owned()))
}

/// The consenting commit is a new revision, so a line that named the previous
/// revision would not apply.
#[rstest]
#[case::recreate(recreate::scene("StatefulSet.apps/web/db"), "immutable-field")]
#[case::delete(
    Scene::new()
        .installed("PersistentVolumeClaim/web/p: {}")
        .git("ConfigMap/web/c: {}"),
    "kept-protected"
)]
#[case::prune(prune::many(6), "prune-cap")]
#[case::check(checked(), "check-unknown")]
#[case::crd(
    seen(from_to(&["v1"], &["v1"], &["v2"]), things(&[("a", &[], &[])])),
    "version-stored"
)]
#[case::field_in_use(
    seen(from_to(&["v1", "v2"], &["v1"], &["v1"]), things(&[("a", &[], &["spec.a"])])),
    "field-in-use"
)]
#[case::role(operators::lacking(), "operator-cannot-grant")]
#[case::backend(backends::gears(), "backend-removed")]
fn a_bundle_without_versions_accepts_the_suggested_consent(
    #[case] scene: Scene,
    #[case] code: &str,
) {
    let at = |revision: &str| {
        scene.clone().with_desired(|desired| {
            desired.version = revision.to_owned();
            desired.revision = revision.to_owned();
        })
    };
    let plan = at("abc").plan();
    let mut findings = plan.findings.iter();
    let finding = findings.find(|finding| finding.code == code).unwrap();
    let hint = finding.hint.as_deref().unwrap();
    let line = &hint[hint.rfind("{action: ").unwrap()..];
    // Lint reports names that are neither an overridable rule nor a check of
    // the bundle.
    let is_rule = line.contains("{action: override") && !code.starts_with("check-");
    assert_eq!(OVERRIDABLE.contains(&code), is_rule, "{line}");
    let plan = at("def").consent(line).plan();
    let left = plan.findings.iter().any(|finding| finding.code == code);
    assert!(!left, "{line}: {:?}", plan.findings);
}
