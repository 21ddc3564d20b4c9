//! Definitions of custom resources that change: what of a definition can only
//! be had later, and what live objects stand against it.
//!
//! A definition is a `CustomResourceDefinition`, as JSON.

mod course;
mod schema;
mod survey;

use serde_json::Value;

pub(crate) use course::covers;
pub use course::{
    before_backend, converting, ends_conversion, is_conversion_broken, keeping, kept,
    left_of_conversion, rewritten, rewritten_before, unconverted, unserved, without,
};
pub use survey::{Instances, Misfit, Named, Sighting, Survey};

use crate::object::{GroupKind, ObjectId, ServiceRef};
use crate::order::pointed_at;

/// Whether an object is a definition.
pub fn is_definition(id: &ObjectId) -> bool {
    id.is("apiextensions.k8s.io", "CustomResourceDefinition")
}

fn all(definition: &Value) -> &[Value] {
    let versions = definition["spec"]["versions"].as_array();
    versions.map_or(&[], Vec::as_slice)
}

/// The names of its versions, in its order.
pub fn versions(definition: &Value) -> impl Iterator<Item = &str> {
    all(definition)
        .iter()
        .filter_map(|version| version["name"].as_str())
}

fn version<'a>(definition: &'a Value, name: &str) -> Option<&'a Value> {
    let mut versions = all(definition).iter();
    versions.find(|version| version["name"] == name)
}

/// Whether it has a version, be it served or not.
pub fn has_version(definition: &Value, name: &str) -> bool {
    version(definition, name).is_some()
}

/// The versions that it serves, in its order.
pub fn served(definition: &Value) -> impl Iterator<Item = &str> {
    let served = all(definition)
        .iter()
        .filter(|version| version["served"] == true);
    served.filter_map(|version| version["name"].as_str())
}

/// Whether objects at a version have a status of their own, which controllers write.
pub fn declares_status(definition: &Value, name: &str) -> bool {
    version(definition, name).is_some_and(|version| version["subresources"]["status"].is_object())
}

fn is_served(definition: &Value, name: &str) -> bool {
    version(definition, name).is_some_and(|version| version["served"] == true)
}

/// The version in which objects are written from now on.
pub fn storage(definition: &Value) -> Option<&str> {
    let mut versions = all(definition).iter();
    versions.find(|version| version["storage"] == true)?["name"].as_str()
}

/// The versions in which objects may be stored. Where no server has said so, as
/// of one that is only rendered, that in which they are written.
pub fn stored(definition: &Value) -> Vec<&str> {
    match definition["status"]["storedVersions"].as_array() {
        Some(stored) => stored.iter().filter_map(Value::as_str).collect(),
        None => storage(definition).into_iter().collect(),
    }
}

/// What git wants, with the conversion that the server says there will be where
/// git leaves it to others: that is not none.
pub fn with_conversion(mut wanted: Value, predicted: &Value) -> Value {
    let conversion = &predicted["spec"]["conversion"];
    if let Some(spec) = wanted.get_mut("spec").and_then(Value::as_object_mut)
        && spec.get("conversion").is_none_or(Value::is_null)
        && !conversion.is_null()
    {
        spec.insert("conversion".to_owned(), conversion.clone());
    }
    wanted
}

/// Whether a webhook converts objects between the versions.
pub(crate) fn converts(definition: &Value) -> bool {
    definition["spec"]["conversion"]["strategy"] == "Webhook"
}

/// The Service behind which its objects are converted; none where they are served
/// and stored in one version only, as nothing is converted then.
pub fn converter(definition: &Value) -> Option<ServiceRef> {
    let mut names = stored(definition);
    names.extend(storage(definition));
    names.extend(served(definition));
    let several = names.iter().any(|name| *name != names[0]);
    if !several || !converts(definition) {
        return None;
    }
    let kind = GroupKind::new("apiextensions.k8s.io", "CustomResourceDefinition");
    pointed_at(&kind, definition).into_iter().next()
}
