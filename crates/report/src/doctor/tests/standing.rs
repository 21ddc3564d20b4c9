//! Temporary changes that no run will revert.

use rstest::rstest;

use super::*;
use crate::doctor::{LeaseState, Standing};

const OBJECT: &str = "Deployment.apps/web/api";

fn standing(lease_state: LeaseState, state: &str) -> Standing {
    let overlays = json!({"stop Deployment.apps/web/api": {
        "object": OBJECT, "uid": "u", "state": state,
        "set": {"spec": {"replicas": 0, "note": "it's"}},
        "original": {"spec": {"replicas": 2, "note": null}},
        "onFailure": "undo", "until": "verify", "since": "2026-07-01T10:00:00Z", "attempt": "v2"}});
    let journal = json!({"format": 1, "oldestReader": 1, "overlays": overlays}).to_string();
    let value = json!({"metadata": {"name": "production.web.journal", "namespace": "pleach-system"},
        "data": {"journal": journal}});
    Standing {
        lease_state,
        ..Standing::read(&value).unwrap().unwrap()
    }
}

fn diagnoses(standing: Standing, has_release: bool) -> Vec<Diagnosis> {
    let releases = has_release.then(|| release("production.web", &[]));
    diagnose(&Observations {
        standing: vec![standing],
        releases: releases.into_iter().collect(),
        ..cluster()
    })
}

#[rstest]
#[case::in_use(LeaseState::Active)]
#[case::not_known(LeaseState::Unknown)]
fn changes_of_a_possibly_active_run_are_not_reported(#[case] lease_state: LeaseState) {
    for has_release in [true, false] {
        assert_eq!(diagnoses(standing(lease_state, "on"), has_release), []);
    }
}

#[rstest]
#[case::given_up(
    LeaseState::Expired,
    "on",
    "is",
    "whose Lease holder no longer renews the Lease"
)]
#[case::left(LeaseState::Free, "on", "is", "which no client is executing")]
#[case::begun(LeaseState::Free, "intended", "may be", "which no client is executing")]
fn leftovers_of_a_run_are_reported_with_a_command(
    #[case] lease_state: LeaseState,
    #[case] state: &str,
    #[case] is: &str,
    #[case] why: &str,
) {
    let found = diagnoses(standing(lease_state, state), true);
    let [found] = &found[..] else {
        panic!("{found:#?}");
    };
    assert_eq!(found.code, Code::OverlayAbandoned);
    assert_eq!(found.severity, Severity::Warning);
    assert_eq!(found.object.as_ref().unwrap().to_string(), OBJECT);
    assert_eq!(
        found.message,
        format!(
            "{is} temporarily changed, for 10m now: .spec.replicas is 0 and was 2, .spec.note is \"it's\" and was absent; overlay stop of an upgrade of production/web to v2, {why}"
        )
    );
    assert_eq!(
        found.command.as_deref(),
        Some("pleach apply production/web")
    );
    assert!(!found.is_fixable());
}

#[test]
fn leftovers_without_a_record_need_a_manual_revert() {
    let found = diagnoses(standing(LeaseState::Free, "on"), false);
    let [found] = &found[..] else {
        panic!("{found:#?}");
    };
    assert_eq!(found.severity, Severity::Error);
    assert!(found.message.ends_with("whose Release does not exist"));
    assert_eq!(
        found.command.as_deref(),
        Some(
            r#"kubectl patch deployment.apps api -n web --type=merge -p '{"spec":{"replicas":2,"note":null}}'"#
        )
    );
    let hint = found.hint.as_deref().unwrap();
    assert!(
        hint.contains("`kubectl delete configmap production.web.journal -n pleach-system`"),
        "{hint}"
    );
}

/// A recorded gate is reported as a gate if it exists.
#[test]
fn a_recorded_gate_is_no_temporary_change() {
    let gate = "ValidatingAdmissionPolicy.admissionregistration.k8s.io/production.web.handover";
    for has_release in [true, false] {
        let mut standing = standing(LeaseState::Free, "on");
        for one in standing.overlays.values_mut() {
            one.object = gate.parse().unwrap();
            one.original.0 = Value::Null;
        }
        assert_eq!(diagnoses(standing, has_release), []);
    }
}

#[test]
fn other_config_maps_are_no_journals_and_broken_ones_are_reported() {
    let named = |name: &str| json!({"metadata": {"name": name}, "data": {"journal": "["}});
    assert!(Standing::read(&named("a.b.inventory.0")).is_none());
    assert!(Standing::read(&named("b.journal")).is_none());
    assert!(Standing::read(&named("a.b.journal")).unwrap().is_err());
}
