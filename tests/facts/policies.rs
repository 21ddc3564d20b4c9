//! Admission policies: mutations of other clients' writes, and gates.

use super::*;

const POLICIES: &str = "/apis/admissionregistration.k8s.io/v1";

#[tokio::test]
async fn a_mutation_of_somebody_elses_write_leaves_our_entry() {
    let server = Server::with("facts-mutated").await;
    let name = "facts-mutated.example.org";
    let spec = json!({
        "matchConstraints": {
            "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "facts-mutated"}},
            "resourceRules": [{"apiGroups": [""], "apiVersions": ["v1"],
                "operations": ["UPDATE"], "resources": ["configmaps"]}]},
        "matchConditions": [{"name": "others",
            "expression": "request.options.fieldManager == 'someone'"}],
        "failurePolicy": "Fail", "reinvocationPolicy": "Never",
        "mutations": [{"patchType": "JSONPatch", "jsonPatch": {
            "expression": "[JSONPatch{op: 'replace', path: '/data/k', value: 'mutated'}]"}}]});
    let object = |kind: &str, spec: Value| {
        json!({"apiVersion": "admissionregistration.k8s.io/v1", "kind": kind,
            "metadata": {"name": name}, "spec": spec})
    };
    let path = format!("{POLICIES}/mutatingadmissionpolicies/{name}");
    server
        .apply(&path, &object("MutatingAdmissionPolicy", spec))
        .await
        .ok();
    let path = format!("{POLICIES}/mutatingadmissionpolicybindings/{name}");
    let binding = object(
        "MutatingAdmissionPolicyBinding",
        json!({"policyName": name}),
    );
    server.apply(&path, &binding).await.ok();

    let path = server.config_map_path();
    let wanted = config_map(json!({"k": "1"}));
    let before = server.apply(&path, &wanted).await.ok();
    until("the policy is in force", async || {
        let noted = json!({"metadata": {"annotations": {"note": "hi"}}});
        let answer = server.merge_dry(&path, noted).await;
        answer.body["data"]["k"] == "mutated"
    })
    .await;
    let noted = json!({"metadata": {"annotations": {"note": "hi"}}});
    let after = server.merge(&path, noted).await.ok();
    assert_eq!(after["data"]["k"], "mutated");
    assert_eq!(our_entry(&after), our_entry(&before));
    assert_ne!(
        after["metadata"]["resourceVersion"],
        before["metadata"]["resourceVersion"]
    );
    let repaired = server.apply(&path, &wanted).await.ok();
    assert_eq!(repaired["data"]["k"], "1");
}

#[tokio::test]
async fn a_gate_is_probed_through_a_rule_that_nobody_is_exempt_from() {
    let server = Server::with("facts-gate").await;
    let (name, probe) = ("facts-gate.example.org", "pleach-gate-probe-facts");
    let spec = json!({
        "failurePolicy": "Fail",
        "matchConstraints": {
            "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "facts-gate"}},
            "resourceRules": [
                {"apiGroups": ["apps"], "apiVersions": ["*"], "operations": ["CREATE", "UPDATE"], "resources": ["*/*"]},
                {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"],
                    "resources": ["configmaps"], "resourceNames": [probe]}]},
        "matchConditions": [{"name": "exempt", "expression":
            "request.resource.group == '' || request.userInfo.username != 'throwaway-admin'"}],
        "validations": [{"expression": "false", "message": "closed", "reason": "Forbidden"}]});
    let object = |kind: &str, spec: Value| {
        json!({"apiVersion": "admissionregistration.k8s.io/v1", "kind": kind,
            "metadata": {"name": name}, "spec": spec})
    };
    let path = format!("{POLICIES}/validatingadmissionpolicies/{name}");
    server
        .apply(&path, &object("ValidatingAdmissionPolicy", spec))
        .await
        .ok();
    let path = format!("{POLICIES}/validatingadmissionpolicybindings/{name}");
    let binding = json!({"policyName": name, "validationActions": ["Deny"]});
    server
        .apply(&path, &object("ValidatingAdmissionPolicyBinding", binding))
        .await
        .ok();

    let all = server.path("/api/v1", "configmaps");
    let mut tried = config_map(json!({}));
    tried["metadata"]["name"] = json!(probe);
    until("the gate is closed", async || {
        let answer = server.create("test&dryRun=All", &all, &tried).await;
        answer.code == 403
            && answer.body["message"]
                .as_str()
                .unwrap()
                .contains("denied request: closed")
    })
    .await;
    // Only that name is refused, and exempt users pass elsewhere.
    server
        .create("test&dryRun=All", &all, &config_map(json!({})))
        .await
        .ok();
    server
        .dry_run(&server.deployment_path(), &deployment())
        .await
        .ok();
    // An invalid object is refused before the policy is evaluated.
    let mut invalid = deployment();
    invalid["spec"]["replicas"] = json!(-1);
    assert_eq!(
        server
            .dry_run(&server.deployment_path(), &invalid)
            .await
            .code,
        422
    );
}
