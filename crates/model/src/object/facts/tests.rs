//! Tests for the facts read from objects.

use serde_json::json;

use super::*;

fn facts(group: &str, kind: &str, value: &Value) -> Facts {
    let namespace = (kind != "ClusterRoleBinding").then_some("web");
    let id = ObjectId::new(group, kind, namespace, "x");
    Facts::of(&id, value)
}

#[test]
fn a_workload_names_the_dependencies_of_its_pods() {
    let facts = facts(
        "apps",
        "Deployment",
        &json!({"spec": {"template": {
        "metadata": {"labels": {"app": "web"}},
        "spec": {
            "serviceAccountName": "web", "priorityClassName": "high",
            "volumes": [{"configMap": {"name": "files"}}, {"secret": {"secretName": "maybe", "optional": true}},
                        {"projected": {"sources": [{"secret": {"name": "tls"}}, {"clusterTrustBundle": {"name": "roots"}},
                                                   {"clusterTrustBundle": {"name": "maybe", "optional": true}}]}}],
            "resourceClaims": [{"resourceClaimName": "card"}, {"resourceClaimTemplateName": "cards"}],
            "containers": [{"env": [{"valueFrom": {"secretKeyRef": {"name": "key"}}}],
                            "envFrom": [{"configMapRef": {"name": "env"}}]}],
        }}}}),
    );
    let names: Vec<String> = facts
        .pod_references
        .iter()
        .map(ToString::to_string)
        .collect();
    assert_eq!(
        names,
        [
            "ConfigMap/web/env",
            "ConfigMap/web/files",
            "Secret/web/key",
            "Secret/web/tls",
            "ClusterTrustBundle.certificates.k8s.io/roots",
            "ResourceClaim.resource.k8s.io/web/card",
            "ResourceClaimTemplate.resource.k8s.io/web/cards",
            "PriorityClass.scheduling.k8s.io/high"
        ]
    );
    assert_eq!(
        facts.service_account.clone().unwrap().to_string(),
        "ServiceAccount/web/web"
    );
    assert!(facts.is_selected_by(&BTreeMap::from([("app".to_owned(), "web".to_owned())])));
    assert!(!facts.is_selected_by(&BTreeMap::from([("app".to_owned(), "db".to_owned())])));
}

#[test]
fn a_binding_names_role_and_accounts() {
    let facts = facts(
        "rbac.authorization.k8s.io",
        "ClusterRoleBinding",
        &json!({"roleRef": {"kind": "ClusterRole", "name": "r"},
                "subjects": [{"kind": "ServiceAccount", "name": "s", "namespace": "other"}, {"kind": "Group", "name": "g"}]}),
    );
    assert_eq!(
        facts.role.unwrap().to_string(),
        "ClusterRole.rbac.authorization.k8s.io/r"
    );
    assert_eq!(facts.subjects.len(), 1);
}

#[test]
fn a_webhook_configuration_names_its_services_once() {
    let hook = json!({"clientConfig": {"service": {"namespace": "web", "name": "api"}},
                      "rules": [{"apiGroups": ["x.org"], "resources": ["widgets/status"]}]});
    let facts = facts(
        "admissionregistration.k8s.io",
        "ValidatingWebhookConfiguration",
        &json!({"webhooks": [hook, hook, {"clientConfig": {"url": "https://x"}}]}),
    );
    assert_eq!(facts.services.len(), 1);
    assert_eq!(
        facts.intercepts[0],
        Interception {
            group: "x.org".to_owned(),
            resource: "widgets".to_owned()
        }
    );
}

#[test]
fn a_crd_names_its_served_versions() {
    let version = |name: &str, served: bool| json!({"name": name, "served": served});
    let facts = facts(
        "apiextensions.k8s.io",
        "CustomResourceDefinition",
        &json!({"spec": {
            "group": "x.org", "names": {"kind": "Widget", "plural": "widgets"},
            "versions": [version("v1", true), version("v1beta1", false), version("v2", true)],
            "conversion": {"webhook": {"clientConfig": {"service": {"namespace": "web", "name": "api"}}}},
        }}),
    );
    let crd = facts.defines.unwrap();
    assert_eq!(crd.kind, GroupKind::new("x.org", "Widget"));
    assert_eq!(crd.plural, "widgets");
    let served = [
        Gvk::new("x.org/v1", "Widget"),
        Gvk::new("x.org/v2", "Widget"),
    ];
    assert_eq!(crd.served, served);
    assert_eq!(facts.services.len(), 1);
}

#[test]
fn a_policy_names_the_kind_of_its_parameters_and_a_binding_both() {
    const GROUP: &str = "admissionregistration.k8s.io";
    let limit = Gvk::new("x.org/v1", "Limit");
    let id = |text: &str| text.parse::<ObjectId>().unwrap();
    for policy in ["MutatingAdmissionPolicy", "ValidatingAdmissionPolicy"] {
        let body = json!({"spec": {"paramKind": {"apiVersion": "x.org/v1", "kind": "Limit"}}});
        let policy_facts = facts(GROUP, policy, &body);
        assert_eq!(policy_facts.parameter_kind, Some(limit.clone()));
        assert_eq!(
            facts(GROUP, policy, &json!({"spec": {}})).parameter_kind,
            None
        );

        let binding = |spec: Value| {
            let facts = facts(GROUP, &format!("{policy}Binding"), &json!({"spec": spec}));
            facts.switches_on.unwrap()
        };
        let named =
            binding(json!({"policyName": "p", "paramRef": {"name": "l", "namespace": "web"}}));
        assert_eq!(named.policy, id(&format!("{policy}.{GROUP}/p")));
        let parameters = named.parameters.unwrap();
        assert!(parameters.may_be(&id("Limit.x.org/web/l")));
        assert!(!parameters.may_be(&id("Limit.x.org/web/other")));
        assert!(!parameters.may_be(&id("Limit.x.org/other/l")));

        let selected = binding(json!({"policyName": "p", "paramRef": {"selector": {}}}));
        assert!(
            selected
                .parameters
                .unwrap()
                .may_be(&id("Limit.x.org/other/l"))
        );
        assert_eq!(binding(json!({"policyName": "p"})).parameters, None);
    }
}

#[test]
fn after_names_kinds_and_names() {
    let facts = facts(
        "",
        "ConfigMap",
        &json!({"metadata": {"annotations": {annotations::AFTER: "Job/a, Deployment/b,,nonsense"}}}),
    );
    let pair = |kind: &str, name: &str| (kind.to_owned(), name.to_owned());
    assert_eq!(
        facts.after,
        [
            pair("Job", "a"),
            pair("Deployment", "b"),
            pair("nonsense", "")
        ]
    );
}
