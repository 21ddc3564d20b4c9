//! Operators that write roles.

use rstest::rstest;

use super::scene::Scene;
use pleach_model::finding::Severity;

const RBAC: &str = "rbac.authorization.k8s.io";

/// Builds a release whose operator creates the role `made` and has these rules.
fn scene(kind: &str, rules: &str) -> Scene {
    let place = if kind == "Role" { "web/" } else { "" };
    Scene::new()
        .live(&format!("{kind}.{RBAC}/{place}made: {{rules: [{{apiGroups: [''], resources: [pods], verbs: [get, list]}}]}}"))
        .git(&format!(
            "ServiceAccount/web/operator: {{}}\n\
             ClusterRole.{RBAC}/operator: {{rules: [{rules}]}}\n\
             ClusterRoleBinding.{RBAC}/operator: {{roleRef: {{kind: ClusterRole, name: operator}}, subjects: [{{kind: ServiceAccount, name: operator, namespace: web}}]}}\n"
        ))
        .declares(&format!("{{kind: {kind}, group: {RBAC}, name: made, optional: true}}"))
}

const WRITES: &str = "{apiGroups: [rbac.authorization.k8s.io], resources: [roles, clusterroles], verbs: [create, update]}";
const ESCALATES: &str = "{apiGroups: [rbac.authorization.k8s.io], resources: ['*'], verbs: ['*']}";
const LISTS: &str = "{apiGroups: [''], resources: [pods], verbs: [list]}";
const BOTH: &str = "{apiGroups: [''], resources: [pods], verbs: [get, list]}";

#[rstest]
#[case::holds_all_of_it(scene("ClusterRole", &format!("{WRITES}, {BOTH}")), false)]
#[case::lacks_a_verb(scene("ClusterRole", &format!("{WRITES}, {LISTS}")), true)]
#[case::in_a_namespace(scene("Role", &format!("{WRITES}, {LISTS}")), true)]
#[case::may_escalate(scene("ClusterRole", ESCALATES), false)]
#[case::holds_what_its_role_is_gathered_from(gathering(&format!("{WRITES}, {BOTH}")), false)]
#[case::lacks_a_verb_in_what_its_role_is_gathered_from(gathering(&format!("{WRITES}, {LISTS}")), true)]
#[case::writes_no_roles(scene("ClusterRole", LISTS), false)]
fn a_role_that_its_operator_cannot_write_is_named(#[case] scene: Scene, #[case] expected: bool) {
    let plan = scene.plan();
    let mut findings = plan.findings.iter();
    let found = findings.find(|finding| finding.code == "operator-cannot-grant");
    assert_eq!(found.is_some(), expected, "{:#?}", plan.findings);
    if let Some(found) = found {
        assert_eq!(found.severity, Severity::Error);
        assert!(
            found
                .message
                .starts_with("ServiceAccount/web/operator writes this role")
        );
        assert!(
            found
                .hint
                .as_ref()
                .unwrap()
                .contains(r#""verbs":["get","list"]"#)
        );
    }
}

/// Builds an operator whose role is aggregated from another one, through a
/// third.
fn gathering(rules: &str) -> Scene {
    let gathers = |part: &str| {
        format!("aggregationRule: {{clusterRoleSelectors: [{{matchLabels: {{part: {part}}}}}]}}")
    };
    scene("ClusterRole", "").git(&format!(
        "ClusterRole.{RBAC}/operator: {{{}}}\n\
         ClusterRole.{RBAC}/between: {{metadata: {{labels: {{part: between}}}}, {}}}\n\
         ClusterRole.{RBAC}/part: {{metadata: {{labels: {{part: last}}}}, rules: [{rules}]}}",
        gathers("between"),
        gathers("last"),
    ))
}

/// Builds an operator that lacks permissions of the role it creates.
pub(super) fn lacking() -> Scene {
    scene("ClusterRole", &format!("{WRITES}, {LISTS}"))
}

#[test]
fn permissions_removed_from_an_operator_need_consent() {
    let findings = |scene: Scene| {
        let plan = scene.plan();
        let findings = plan.findings.iter();
        let found: Vec<(Severity, String)> = findings
            .filter(|finding| {
                [
                    "operator-cannot-grant",
                    "check-overridden",
                    "unused-consent",
                ]
                .contains(&finding.code.as_str())
            })
            .map(|finding| (finding.severity, finding.code.clone()))
            .collect();
        (found, plan.overrides.len())
    };
    let consent = |name: &str| {
        format!(
            "{{action: override, check: operator-cannot-grant, kind: ClusterRole, name: {name}, release: r, reason: it gives less}}"
        )
    };
    let overridden = lacking().consent(&consent("made"));
    assert_eq!(
        findings(overridden),
        (vec![(Severity::Warning, "check-overridden".to_owned())], 1)
    );
    let of_another = lacking().consent(&consent("other"));
    assert_eq!(
        findings(of_another),
        (
            vec![(Severity::Error, "operator-cannot-grant".to_owned())],
            0
        )
    );
}
