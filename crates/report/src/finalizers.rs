//! Explains why the deletion of an object does not finish.
//!
//! pleach never removes finalizers, because each one stands for a pending cleanup. Instead, it
//! reports the finalizers and the field managers that set them.

use std::fmt;

use serde_json::Value;

use crate::doctor::Leaving;
use pleach_fields::diff::ownership;
use pleach_model::object::ObjectId;

/// Finalizers of Kubernetes itself, with the cause of the delay.
const WELL_KNOWN: &[(&str, &str)] = &[
    ("foregroundDeletion", "its dependents are being deleted"),
    ("orphan", "its dependents are being orphaned"),
    ("kubernetes.io/pvc-protection", "a pod still uses it"),
    (
        "kubernetes.io/pv-protection",
        "a claim is still bound to it",
    ),
    (
        "customresourcecleanup.apiextensions.k8s.io",
        "its custom resources are being deleted",
    ),
    (
        "service.kubernetes.io/load-balancer-cleanup",
        "the cloud controller must delete its load balancer first",
    ),
    (
        "batch.kubernetes.io/job-tracking",
        "the Job controller must count it first",
    ),
];

/// A finalizer on an object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finalizer {
    /// Its name in `metadata.finalizers`.
    pub name: String,
    /// Field managers that set it.
    pub set_by: Vec<String>,
}

impl Finalizer {
    /// Returns the finalizers in an object's metadata.
    pub fn all(metadata: &Value) -> Vec<Self> {
        let names = metadata["finalizers"].as_array().into_iter().flatten();
        names
            .filter_map(Value::as_str)
            .map(|name| Self {
                name: name.to_owned(),
                set_by: setters(metadata, name),
            })
            .collect()
    }

    /// Explains a finalizer of Kubernetes itself. Returns `None` for any other.
    pub fn meaning(&self) -> Option<&'static str> {
        let mut known = WELL_KNOWN.iter();
        known
            .find(|(known, _)| *known == self.name)
            .map(|(_, why)| *why)
    }
}

impl fmt::Display for Finalizer {
    /// Appends the explanation, or else the field managers.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)?;
        match self.meaning() {
            Some(why) => write!(f, " ({why})"),
            None if self.set_by.is_empty() => Ok(()),
            None => write!(f, " (set by {})", self.set_by.join(", ")),
        }
    }
}

fn setters(metadata: &Value, finalizer: &str) -> Vec<String> {
    let key = format!("v:{}", Value::from(finalizer));
    ownership::entries(metadata)
        .iter()
        .filter(|entry| !entry["fieldsV1"]["f:metadata"]["f:finalizers"][key.as_str()].is_null())
        .filter_map(|entry| entry["manager"].as_str())
        .map(str::to_owned)
        .collect()
}

/// Describes in one line why the deletion of an object is not finished.
pub fn explain(value: &Value) -> String {
    if let Some(cause) = namespace(value).or_else(|| crd(value)) {
        return cause;
    }
    let finalizers: Vec<String> = Finalizer::all(&value["metadata"])
        .iter()
        .map(ToString::to_string)
        .collect();
    match finalizers.as_slice() {
        [] if value["metadata"]["deletionTimestamp"].is_string() => {
            "it is being deleted".to_owned()
        }
        [] => "it still exists".to_owned(),
        finalizers => format!("it waits for {}", finalizers.join(", ")),
    }
}

/// Suggests how to unblock a deletion. Returns `None` if there is nothing to do but wait.
pub fn advice(id: &ObjectId, value: &Value) -> Option<String> {
    let mut foreign = Finalizer::all(&value["metadata"]);
    foreign.retain(|finalizer| finalizer.meaning().is_none());
    if foreign.is_empty() {
        return id.is("", "Namespace").then(|| {
            "run `pleach doctor` to see what blocks the deletion of namespaces".to_owned()
        });
    }
    let names: Vec<&str> = foreign.iter().map(|one| one.name.as_str()).collect();
    let kind = id.group_kind().to_string().to_lowercase();
    let option = id
        .namespace
        .as_ref()
        .map(|namespace| format!(" -n {namespace}"))
        .unwrap_or_default();
    Some(format!(
        "the controller that set {} must remove it; pleach never does. Only if that controller no longer exists: kubectl patch {kind} {}{option} --type=merge -p '{{\"metadata\":{{\"finalizers\":null}}}}'",
        names.join(", "),
        id.name
    ))
}

/// Reads the cause from the conditions of a Namespace.
fn namespace(value: &Value) -> Option<String> {
    let is_namespace = value["kind"] == "Namespace" && value["apiVersion"] == "v1";
    let leaving = Leaving::read(value).filter(|_| is_namespace)?;
    let (condition, message) = leaving.cause()?;
    let rest = leaving
        .condition("NamespaceContentRemaining")
        .filter(|rest| *rest != message);
    Some(match rest {
        Some(rest) => format!("it waits ({condition}): {message}; {rest}"),
        None => format!("it waits ({condition}): {message}"),
    })
}

/// Reads the cause from the `Terminating` condition of a CRD.
fn crd(value: &Value) -> Option<String> {
    let is_deleted = value["metadata"]["deletionTimestamp"].is_string();
    if !is_deleted || value["kind"] != "CustomResourceDefinition" {
        return None;
    }
    let condition = value["status"]["conditions"]
        .as_array()?
        .iter()
        .find(|condition| condition["type"] == "Terminating" && condition["status"] == "True")?;
    let text = |key: &str| condition[key].as_str().unwrap_or_default();
    Some(format!(
        "it waits ({}): {}",
        text("reason"),
        text("message")
    ))
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::json;

    use super::*;

    #[rstest]
    #[case(json!({}), "it still exists")]
    #[case(json!({"metadata": {"deletionTimestamp": "2026-07-01T10:00:00Z"}}), "it is being deleted")]
    #[case(json!({"metadata": {"finalizers": ["foregroundDeletion"]}}),
        "it waits for foregroundDeletion (its dependents are being deleted)")]
    #[case(json!({"metadata": {"finalizers": ["ex.org/a", "ex.org/b"], "managedFields": [
        {"manager": "gears", "fieldsV1": {"f:metadata": {"f:finalizers": {".": {}, "v:\"ex.org/a\"": {}}}}}]}}),
        "it waits for ex.org/a (set by gears), ex.org/b")]
    #[case(json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"deletionTimestamp": "2026-07-01T10:00:00Z"},
        "status": {"conditions": [
            {"type": "NamespaceContentRemaining", "status": "True", "message": "gears.ex.org has 1 resource instances"},
            {"type": "NamespaceFinalizersRemaining", "status": "True", "message": "ex.org/a in 1 resource instances"}]}}),
        "it waits (NamespaceFinalizersRemaining): ex.org/a in 1 resource instances; gears.ex.org has 1 resource instances")]
    #[case(json!({"kind": "CustomResourceDefinition", "metadata": {"deletionTimestamp": "2026-07-01T10:00:00Z",
        "finalizers": ["customresourcecleanup.apiextensions.k8s.io"]},
        "status": {"conditions": [{"type": "Terminating", "status": "True", "reason": "InstanceDeletionCheck", "message": "1 left"}]}}),
        "it waits (InstanceDeletionCheck): 1 left")]
    fn pending_deletions_name_their_cause(#[case] value: Value, #[case] expected: &str) {
        assert_eq!(explain(&value), expected);
    }

    #[test]
    fn only_foreign_finalizers_get_a_hint() {
        let id: ObjectId = "Gear.ex.org/web/g".parse().unwrap();
        let object = |finalizer: &str| json!({"metadata": {"finalizers": [finalizer]}});
        assert_eq!(advice(&id, &object("kubernetes.io/pvc-protection")), None);
        let advice = advice(&id, &object("ex.org/a")).unwrap();
        assert!(
            advice.ends_with("kubectl patch gear.ex.org g -n web --type=merge -p '{\"metadata\":{\"finalizers\":null}}'"),
            "{advice}"
        );
    }
}
