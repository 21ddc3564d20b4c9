//! References from pods and bindings to objects that no manifest contains.

use std::collections::BTreeSet;

use serde_json::Value;

use super::{Object, Scene};
use pleach_model::finding::{Finding, Kind};
use pleach_model::object::ObjectId;

pub(super) fn check(scene: &Scene<'_>, findings: &mut Vec<Finding>) {
    for object in &scene.objects {
        let facts = object.facts;
        let of_pods = facts.pod_references.iter().chain(&facts.service_account);
        report(scene, object, "the pods need", of_pods, findings);
        let of_binding = facts.role.iter().chain(&facts.subjects);
        report(scene, object, "the binding refers to", of_binding, findings);
    }
}

/// Reports each missing object once, at the first line that refers to it.
fn report<'a>(
    scene: &Scene<'_>,
    object: &Object<'_>,
    who: &str,
    ids: impl Iterator<Item = &'a ObjectId>,
    findings: &mut Vec<Finding>,
) {
    let missing: BTreeSet<&ObjectId> = ids
        .filter(|id| !exists(id) && !scene.has(id) && !scene.is_made_at_run_time(id))
        .collect();
    if missing.is_empty() {
        return;
    }
    let value = object.manifest.value();
    for id in missing {
        let mut path = Vec::new();
        let pointer = if find(&value, id, &mut path) {
            format!("/{}", path.join("/"))
        } else {
            String::new()
        };
        let finding = Finding::warning(
            Kind::Repository,
            "reference-not-made",
            format!("{who} {id}, which is in no manifest of the environment"),
        );
        findings.push(object.at(finding, &pointer));
    }
}

/// Searches for the first field that names an object. `path` receives its steps.
fn find(value: &Value, id: &ObjectId, path: &mut Vec<String>) -> bool {
    let steps: Vec<(String, &Value)> = match value {
        Value::Object(fields) => fields.iter().map(|(key, one)| (key.clone(), one)).collect(),
        Value::Array(items) => {
            let items = items.iter().enumerate();
            items.map(|(index, one)| (index.to_string(), one)).collect()
        }
        _ => return false,
    };
    for (key, inner) in steps {
        let holder = path
            .iter()
            .rev()
            .find(|step| step.parse::<usize>().is_err());
        let names_it = inner.as_str() == Some(&id.name)
            && value["optional"] != true
            && names(holder.map_or("", String::as_str), &key, value, id);
        // Escapes the key as in a JSON pointer.
        path.push(key.replace('~', "~0").replace('/', "~1"));
        if names_it || find(inner, id, path) {
            return true;
        }
        path.pop();
    }
    false
}

/// Returns whether a field refers to objects of the kind. `holder` is the key of the map that
/// contains the field, or of the list of such maps.
fn names(holder: &str, key: &str, map: &Value, id: &ObjectId) -> bool {
    match (id.kind.as_str(), key) {
        ("ConfigMap", "name") => ["configMap", "configMapRef", "configMapKeyRef"].contains(&holder),
        ("Secret", "name") => [
            "imagePullSecrets",
            "nodePublishSecretRef",
            "secret",
            "secretKeyRef",
            "secretRef",
        ]
        .contains(&holder),
        ("ServiceAccount", "name") => holder == "subjects" && is_subject(map, id),
        ("Role" | "ClusterRole", "name") => holder == "roleRef",
        ("ClusterTrustBundle", "name") => holder == "clusterTrustBundle",
        ("Secret", "secretName")
        | ("Service", "serviceName")
        | ("ServiceAccount", "serviceAccountName")
        | ("PersistentVolumeClaim", "claimName")
        | ("PriorityClass", "priorityClassName")
        | ("RuntimeClass", "runtimeClassName")
        | ("ResourceClaim", "resourceClaimName")
        | ("ResourceClaimTemplate", "resourceClaimTemplateName") => true,
        _ => false,
    }
}

fn is_subject(subject: &Value, id: &ObjectId) -> bool {
    let namespace = subject["namespace"].as_str();
    subject["kind"] == "ServiceAccount"
        && namespace.is_none_or(|namespace| Some(namespace) == id.namespace.as_deref())
}

/// Returns whether an object exists in all namespaces or clusters.
fn exists(id: &ObjectId) -> bool {
    let everywhere = [
        ("ServiceAccount", "default"),
        ("ConfigMap", "kube-root-ca.crt"),
        ("PriorityClass", "system-node-critical"),
        ("PriorityClass", "system-cluster-critical"),
        ("ClusterRole", "admin"),
        ("ClusterRole", "cluster-admin"),
        ("ClusterRole", "edit"),
        ("ClusterRole", "view"),
    ];
    let is_of_system = match id.kind.as_str() {
        "ClusterRole" => id.name.starts_with("system:"),
        // The API server and the controllers of Kubernetes create these.
        "Role" | "ServiceAccount" => id.namespace.as_deref() == Some("kube-system"),
        _ => false,
    };
    is_of_system || everywhere.contains(&(id.kind.as_str(), id.name.as_str()))
}
