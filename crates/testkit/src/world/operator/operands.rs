//! Operands of the operator: a CRD, an account with permissions, and a Deployment.

use serde_json::{Value, json};

use crate::world::rest::{Failure, Rest};

const NAME: &str = "depot-api";
const RBAC: &str = "rbac.authorization.k8s.io";

/// Object with its collection.
struct Operand {
    collection: String,
    body: Value,
}

impl Operand {
    fn path(&self) -> String {
        let name = self.body["metadata"]["name"].as_str().unwrap_or_default();
        format!("{}/{name}", self.collection)
    }
}

/// Returns all operands, in order of creation.
fn operands(namespace: &str, version: &str, replicas: u64) -> [Operand; 5] {
    let is_newer = version != "v1.0.0";
    let mut fields = json!({"weight": {"type": "integer"}});
    let mut rules = vec![json!({
        "apiGroups": ["depot.example.org"],
        "resources": ["parcels"],
        "verbs": ["get", "list", "watch", "update"],
    })];
    if is_newer {
        fields["destination"] = json!({"type": "string"});
        rules.push(json!({
            "apiGroups": ["coordination.k8s.io"],
            "resources": ["leases"],
            "verbs": ["get", "create", "update"],
        }));
    }
    let schema = json!({"type": "object", "properties": {
        "spec": {"type": "object", "properties": fields},
    }});
    let labels = json!({"app": NAME});
    let operand = |collection: String, body: Value| Operand { collection, body };
    [
        operand(
            "/apis/apiextensions.k8s.io/v1/customresourcedefinitions".to_owned(),
            json!({
                "apiVersion": "apiextensions.k8s.io/v1",
                "kind": "CustomResourceDefinition",
                "metadata": {"name": "parcels.depot.example.org"},
                "spec": {
                    "group": "depot.example.org",
                    "scope": "Namespaced",
                    "names": {"kind": "Parcel", "plural": "parcels", "singular": "parcel"},
                    "versions": [{
                        "name": "v1", "served": true, "storage": true,
                        "schema": {"openAPIV3Schema": schema},
                    }],
                },
            }),
        ),
        operand(
            format!("/api/v1/namespaces/{namespace}/serviceaccounts"),
            json!({
                "apiVersion": "v1",
                "kind": "ServiceAccount",
                "metadata": {"name": NAME, "namespace": namespace},
            }),
        ),
        operand(
            format!("/apis/{RBAC}/v1/clusterroles"),
            json!({
                "apiVersion": format!("{RBAC}/v1"),
                "kind": "ClusterRole",
                "metadata": {"name": NAME},
                "rules": rules,
            }),
        ),
        operand(
            format!("/apis/{RBAC}/v1/clusterrolebindings"),
            json!({
                "apiVersion": format!("{RBAC}/v1"),
                "kind": "ClusterRoleBinding",
                "metadata": {"name": NAME},
                "roleRef": {"apiGroup": RBAC, "kind": "ClusterRole", "name": NAME},
                "subjects": [{"kind": "ServiceAccount", "name": NAME, "namespace": namespace}],
            }),
        ),
        operand(
            format!("/apis/apps/v1/namespaces/{namespace}/deployments"),
            json!({
                "apiVersion": "apps/v1",
                "kind": "Deployment",
                "metadata": {"name": NAME, "namespace": namespace},
                "spec": {
                    "replicas": replicas,
                    "selector": {"matchLabels": labels},
                    "template": {
                        "metadata": {"labels": labels},
                        "spec": {
                            "serviceAccountName": NAME,
                            "containers": [{"name": "api", "image": format!("docker.io/depot/api:{version}")}],
                        },
                    },
                },
            }),
        ),
    ]
}

/// Updates all operands to a version. Returns the missing part, if any.
pub(super) async fn install(
    rest: &Rest,
    namespace: &str,
    version: &str,
    replicas: u64,
) -> Result<Option<String>, Failure> {
    let mut last = Value::Null;
    for operand in operands(namespace, version, replicas) {
        let path = operand.path();
        last = match rest.get(&path).await? {
            None => rest.create(&operand.collection, &operand.body).await?,
            Some(live) if covers(&live, &operand.body) => live,
            Some(_) => rest.merge(&path, &operand.body).await?,
        };
    }
    let status = &last["status"];
    let count = |field: &str| status[field].as_u64().unwrap_or_default();
    let is_seen = status["observedGeneration"] == last["metadata"]["generation"];
    let ready = if is_seen {
        count("updatedReplicas").min(count("readyReplicas"))
    } else {
        0
    };
    // Pods of the previous version count until they are deleted.
    let is_complete = ready == replicas && count("replicas") == replicas;
    Ok((!is_complete).then(|| format!("{ready} of {replicas} pods of {NAME} run {version}")))
}

/// Removes the operands in reverse order and returns whether all are deleted. The CRD is retained,
/// because users have created objects of it.
pub(super) async fn remove(rest: &Rest, namespace: &str) -> Result<bool, Failure> {
    let mut is_gone = true;
    for operand in operands(namespace, "", 0).iter().skip(1).rev() {
        let path = operand.path();
        if rest.get(&path).await?.is_some() {
            is_gone = false;
            match rest.delete(&path).await {
                Err(failure) if failure.code() != Some(404) => return Err(failure),
                Ok(()) | Err(_) => {}
            }
        }
    }
    Ok(is_gone)
}

/// Returns whether a live value contains the desired one.
pub(super) fn covers(live: &Value, desired: &Value) -> bool {
    match (live, desired) {
        (Value::Object(live), Value::Object(desired)) => desired
            .iter()
            .all(|(key, desired)| live.get(key).is_some_and(|live| covers(live, desired))),
        (Value::Array(live), Value::Array(desired)) => {
            live.len() == desired.len()
                && live
                    .iter()
                    .zip(desired)
                    .all(|(live, desired)| covers(live, desired))
        }
        (live, desired) => live == desired,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn server_defaults_are_no_difference() {
        let live = json!({"a": [{"b": 1, "added": true}], "c": "d"});
        assert!(covers(&live, &json!({"a": [{"b": 1}]})));
        assert!(!covers(&live, &json!({"a": [{"b": 2}]})));
        assert!(!covers(&live, &json!({"a": []})));
        assert!(!covers(&live, &json!({"e": 1})));
        assert!(!covers(&Value::Null, &json!({"e": 1})));
    }

    #[test]
    fn a_newer_version_gives_more() {
        let rules = |version: &str| {
            let [_, _, role, ..] = operands("a", version, 1);
            role.body["rules"].as_array().unwrap().len()
        };
        assert_eq!((rules("v1.0.0"), rules("v1.1.0")), (1, 2));
    }
}
