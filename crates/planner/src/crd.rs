//! Changes of CRDs: staged rollout of a changed CRD, and conflicts with existing custom resources.
//!
//! A `crd` is a `CustomResourceDefinition` as JSON.

mod instance_check;
mod schema;
mod staged_rollout;

use serde_json::Value;

pub use instance_check::{Instances, Misfit, Named, Sighting, Survey};
pub(crate) use staged_rollout::covers;
pub use staged_rollout::{
    before_backend, converting, ends_conversion, is_conversion_broken, left_of_conversion,
    retained, rewritten, rewritten_before, unconverted, unserved, with_retained, without,
};

use pleach_model::object::{GroupKind, ObjectId, ServiceRef};
use pleach_model::order::pointed_at;

/// Returns whether an object is a CRD.
pub fn is_crd(id: &ObjectId) -> bool {
    id.is("apiextensions.k8s.io", "CustomResourceDefinition")
}

fn all(crd: &Value) -> &[Value] {
    let versions = crd["spec"]["versions"].as_array();
    versions.map_or(&[], Vec::as_slice)
}

/// Returns the names of all versions, in file order.
pub fn versions(crd: &Value) -> impl Iterator<Item = &str> {
    all(crd)
        .iter()
        .filter_map(|version| version["name"].as_str())
}

fn version<'a>(crd: &'a Value, name: &str) -> Option<&'a Value> {
    let mut versions = all(crd).iter();
    versions.find(|version| version["name"] == name)
}

/// Returns whether a version exists, served or not.
pub fn has_version(crd: &Value, name: &str) -> bool {
    version(crd, name).is_some()
}

/// Returns the served versions, in file order.
pub fn served(crd: &Value) -> impl Iterator<Item = &str> {
    let served = all(crd).iter().filter(|version| version["served"] == true);
    served.filter_map(|version| version["name"].as_str())
}

/// Returns whether a version has a status subresource.
pub fn declares_status(crd: &Value, name: &str) -> bool {
    version(crd, name).is_some_and(|version| version["subresources"]["status"].is_object())
}

fn is_served(crd: &Value, name: &str) -> bool {
    version(crd, name).is_some_and(|version| version["served"] == true)
}

/// Returns the storage version.
pub fn storage(crd: &Value) -> Option<&str> {
    let mut versions = all(crd).iter();
    versions.find(|version| version["storage"] == true)?["name"].as_str()
}

/// Returns the versions in which objects can be stored. For a CRD without status, such as a
/// rendered one, this is the storage version.
pub fn stored(crd: &Value) -> Vec<&str> {
    match crd["status"]["storedVersions"].as_array() {
        Some(stored) => stored.iter().filter_map(Value::as_str).collect(),
        None => storage(crd).into_iter().collect(),
    }
}

/// Returns the desired CRD with the conversion of the dry-run answer if git sets none. An unset
/// conversion is not the same as conversion `None`: another manager can own it.
pub fn with_conversion(mut desired: Value, predicted: &Value) -> Value {
    let conversion = &predicted["spec"]["conversion"];
    if let Some(spec) = desired.get_mut("spec").and_then(Value::as_object_mut)
        && spec.get("conversion").is_none_or(Value::is_null)
        && !conversion.is_null()
    {
        spec.insert("conversion".to_owned(), conversion.clone());
    }
    desired
}

/// Returns whether a webhook converts objects between versions.
pub(crate) fn converts(crd: &Value) -> bool {
    crd["spec"]["conversion"]["strategy"] == "Webhook"
}

/// Returns the Service of the conversion webhook. `None` if all objects are served and stored in
/// one version, because no conversion happens then.
pub fn converter(crd: &Value) -> Option<ServiceRef> {
    let mut names = stored(crd);
    names.extend(storage(crd));
    names.extend(served(crd));
    let several = names.iter().any(|name| *name != names[0]);
    if !several || !converts(crd) {
        return None;
    }
    let kind = GroupKind::new("apiextensions.k8s.io", "CustomResourceDefinition");
    pointed_at(&kind, crd).into_iter().next()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_version_declares_a_status_by_its_subresource() {
        let version =
            |name: &str, subresources: Value| json!({"name": name, "subresources": subresources});
        let crd = json!({"spec": {"versions": [
            version("v1", json!({"status": {}})),
            version("v2", json!({"status": null, "scale": {}})),
            version("v3", json!(null)),
        ]}});
        for (version, expected) in [("v1", true), ("v2", false), ("v3", false), ("v4", false)] {
            assert_eq!(declares_status(&crd, version), expected, "{version}");
        }
        assert!(!declares_status(&json!({}), "v1"));
    }
}
