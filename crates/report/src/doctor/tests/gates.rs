//! Gates that no run will lift.

use rstest::rstest;

use super::*;
use crate::doctor::{Gate, LeaseState};

fn gate(lease_state: LeaseState) -> Gate {
    let name = "production.web.handover";
    let metadata = json!({"name": name, "uid": "u", "resourceVersion": "7",
        "annotations": {"pleach.dev/gate": "production.web"}});
    let rule = |names: Value| {
        json!({"apiGroups": ["ex.org"], "resources": ["*/*"],
            "operations": ["CREATE", "UPDATE"], "resourceNames": names})
    };
    let rules = [rule(Value::Null), rule(json!(["pleach-gate-probe"]))];
    let policy =
        json!({"metadata": metadata, "spec": {"matchConstraints": {"resourceRules": rules}}});
    let mut gate = Gate::read(&policy).unwrap();
    for (binding, policy) in [(name, name), ("other", "other")] {
        gate.bind(
            &json!({"metadata": {"name": binding, "uid": "b", "resourceVersion": "8"},
            "spec": {"policyName": policy}}),
        );
    }
    gate.lease_state = lease_state;
    gate
}

fn diagnoses(gate: Gate, releases: Vec<KnownRelease>) -> Vec<Diagnosis> {
    let mut all = diagnose(&Observations {
        gates: vec![gate],
        releases,
        ..cluster()
    });
    all.retain(|diagnosis| diagnosis.code == Code::GateAbandoned);
    all
}

#[rstest]
#[case::in_use(LeaseState::Active, true, None)]
#[case::not_known(LeaseState::Unknown, true, None)]
#[case::given_up(
    LeaseState::Expired,
    true,
    Some("whose Lease holder no longer renews the Lease")
)]
#[case::left(LeaseState::Free, true, Some("which no client is executing"))]
#[case::of_no_release(LeaseState::Free, false, Some("whose Release does not exist"))]
fn a_gate_belongs_to_a_run(
    #[case] lease_state: LeaseState,
    #[case] has_release: bool,
    #[case] why: Option<&str>,
) {
    let releases = has_release.then(|| release("production.web", &[]));
    let found = diagnoses(gate(lease_state), releases.into_iter().collect());
    let Some(why) = why else {
        assert_eq!(found, []);
        return;
    };
    let [found] = &found[..] else {
        panic!("{found:?}");
    };
    assert_eq!(
        found.message,
        format!("is a gate of an upgrade of production/web, {why}")
    );
    let id = "ValidatingAdmissionPolicy.admissionregistration.k8s.io/production.web.handover";
    assert_eq!(found.object.as_ref().unwrap().to_string(), id);
    assert_eq!(
        found.breaks,
        ["CREATE, UPDATE of everything of ex.org is refused, except for exempt clients"]
    );
    assert_eq!(
        found.command.as_deref(),
        Some(&*format!("pleach doctor --fix {id}"))
    );

    // The binding is deleted first. Both deletions are bound to the observed objects.
    let deletion = found.deletion(false).unwrap();
    assert_eq!(
        (deletion.uid(), deletion.resource_version()),
        ("u", Some("7"))
    );
    assert!(matches!(deletion.because(), Grant::Gate { release } if release == "production.web"));
    let before = found.deletions_before();
    let [(binding, deletion)] = &before[..] else {
        panic!("{before:?}");
    };
    assert!(binding.kind.ends_with("Binding"), "{binding}");
    assert_eq!(
        (deletion.uid(), deletion.resource_version()),
        ("b", Some("8"))
    );
}

#[rstest]
#[case::no_annotation("production.web.handover", json!({}))]
#[case::another_name("policy", json!({"pleach.dev/gate": "production.web"}))]
#[case::no_gate_name("production.web", json!({"pleach.dev/gate": "production.web"}))]
#[case::no_release("x.y", json!({"pleach.dev/gate": "x"}))]
fn foreign_policies_are_no_gates(#[case] name: &str, #[case] annotations: Value) {
    let policy = json!({"metadata": {"name": name, "annotations": annotations}});
    assert_eq!(Gate::read(&policy), None);
}
