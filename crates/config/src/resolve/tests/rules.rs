//! Tests for the CEL rules of a bundle.

use rstest::rstest;

use super::*;
use pleach_model::object::GroupKind;

const RELEASE: &str = "releases: [{bundle: app, namespace: web}]";

fn refused(bundle: &str) -> Vec<String> {
    errors(&[(PROD, RELEASE), ("manifests/app/bundle.yaml", bundle)])
}

#[test]
fn checks_and_readiness_rules_come_with_their_release() {
    let bundle = "checks:\n- name: volumes-healthy\n  forEach: {group: g.org, kind: V, namespace: storage}\n  where: item.spec.n == 1\n  require: item.status.robustness == 'healthy'\n  message: volume {{ item.metadata.name }}\nreadiness:\n- {group: g.org, kind: V, current: status.phase == 'x', failed: status.phase == 'y', stableFor: 30s}\n- {kind: Deployment, stableFor: 10s}\n";
    let environment = resolved(&[(PROD, RELEASE), ("manifests/app/bundle.yaml", bundle)]);
    let sequence = &environment.releases[0].sequence;
    assert_eq!(sequence.checks[0].name, "volumes-healthy");
    assert_eq!(sequence.checks[0].origin.line, 4);
    let seconds = |group: &str, kind: &str| {
        let kind = GroupKind::new(group, kind);
        sequence.readiness.stable_for(&kind).as_secs()
    };
    assert_eq!(
        (seconds("g.org", "V"), seconds("apps", "Deployment")),
        (30, 10)
    );
}

#[rstest]
#[case(
    "checks:\n- name: a\n  forEach: {kind: Pod}\n  where: it.x\n  require: item.x ==\n  message: \"{{ item.x\"\n",
    &[
        "manifests/app/bundle.yaml:6: `where`: unknown name `it`; known names: item",
        "manifests/app/bundle.yaml:7: `require`: line 1, column",
        "manifests/app/bundle.yaml:8: `message`: `{{` without `}}`",
    ]
)]
#[case(
    "checks: [{name: a, forEach: {kind: Pod}, require: item.a}, {name: a, forEach: {kind: Volume}, require: item.a}, {name: A, forEach: {kind: '*'}, require: item.a}]",
    &[
        "manifests/app/bundle.yaml:3: `A` is not a valid name for a check",
        "manifests/app/bundle.yaml:3: `forEach` must name one kind",
        "manifests/app/bundle.yaml:3: a second check `a`",
        "manifests/app/bundle.yaml:3: the API group of Volume is not known",
    ]
)]
#[case(
    "readiness:\n- kind: Job\n  current: statu.phase\n- {kind: Job, failed: nope(1)}\n- {kind: Volume, current: status.a}\n- {kind: Pod}\n",
    &[
        "manifests/app/bundle.yaml:5: `current`: unknown name `statu`; known names: item, apiVersion, kind, metadata, spec, status, data",
        "manifests/app/bundle.yaml:6: `failed`: there is no function `nope`",
        "manifests/app/bundle.yaml:6: a second readiness rule for Job",
        "manifests/app/bundle.yaml:7: the API group of Volume is not known",
        "manifests/app/bundle.yaml:8: the readiness rule for Pod is empty",
    ]
)]
#[case(
    "blockUninstall: [{forEach: {kind: Pod}, where: item.x +, message: \"{{ x }}\"}]",
    &[
        "manifests/app/bundle.yaml:3: `message`: unknown name `x`; known names: item",
        "manifests/app/bundle.yaml:3: `where`: line 1, column",
    ]
)]
#[case(
    "rehearsal: [{kind: Gear, group: a.org, becomes: {spec: {}, status: {phase: \"{{ x }}\"}}}, {kind: Gear, becomes: {}}]",
    &[
        "manifests/app/bundle.yaml:3: `becomes.status.phase`: unknown name `x`; known names: item",
        "manifests/app/bundle.yaml:3: `becomes` cannot change `spec`",
        "manifests/app/bundle.yaml:3: `becomes` has no `status`",
        "manifests/app/bundle.yaml:3: the API group of Gear is not known",
    ]
)]
#[case(
    "checks: [{name: a, forEach: {kind: Pod}}]",
    &["manifests/app/bundle.yaml:3: `checks[0]`: `require` is required"]
)]
fn errors_name_file_and_line(#[case] bundle: &str, #[case] expected: &[&str]) {
    let found = refused(bundle);
    assert_eq!(found.len(), expected.len(), "{found:#?}");
    for (found, expected) in found.iter().zip(expected) {
        assert!(found.starts_with(expected), "{found} is not {expected}");
    }
}

#[rstest]
#[case("{action: override, release: web, from: v1, to: v2}", &["`check`", "`reason`"])]
#[case("{action: override, check: a, reason: b, release: web, from: v1}", &[])]
#[case("{action: override, check: a, reason: b, release: web, to: v2}", &[])]
fn a_consent_to_override_needs_check_and_reason(#[case] consent: &str, #[case] missing: &[&str]) {
    let text = format!("consent: [{consent}]\nreleases: [{{bundle: web, version: v1.0.0}}]");
    if missing.is_empty() {
        assert_eq!(resolved(&[(PROD, &text)]).consent.len(), 1);
        return;
    }
    let found = errors(&[(PROD, &text)]);
    assert_eq!(found.len(), missing.len(), "{found:?}");
    for (found, missing) in found.iter().zip(missing) {
        assert!(found.contains(missing), "{found}");
    }
}
