//! Who owns which fields, from `metadata.managedFields`
//! (<https://kubernetes.io/docs/reference/using-api/server-side-apply/#field-management>).

use serde_json::Value;

use crate::object::{Digest, canonical_json};

/// The entries of managedFields, in the server's order.
pub fn entries(metadata: &Value) -> &[Value] {
    metadata["managedFields"]
        .as_array()
        .map_or(&[], Vec::as_slice)
}

/// Whether an entry is about the object itself and not about a subresource.
pub fn is_main_resource(entry: &Value) -> bool {
    entry["subresource"].as_str().is_none_or(str::is_empty)
}

/// The Apply entry of a manager for the main resource: there is at most one,
/// whatever the API version.
pub fn apply_entry<'a>(metadata: &'a Value, manager: &str) -> Option<&'a Value> {
    entries(metadata).iter().find(|entry| {
        entry["manager"] == manager && entry["operation"] == "Apply" && is_main_resource(entry)
    })
}

/// Digest of our own Apply entry without its time. It changes whenever anyone
/// changes or removes a field that we own, and does not change when others add
/// fields of their own.
pub fn fingerprint(metadata: &Value, manager: &str) -> Option<Digest> {
    let entry = apply_entry(metadata, manager)?;
    let mut bytes = entry["apiVersion"]
        .as_str()
        .unwrap_or_default()
        .as_bytes()
        .to_vec();
    bytes.push(b'\n');
    bytes.extend(canonical_json(&entry["fieldsV1"]));
    Some(Digest::of(&bytes))
}

/// The managers of main-resource fields, without doubles, in the server's order.
pub fn managers(metadata: &Value) -> Vec<String> {
    let mut managers: Vec<String> = Vec::new();
    for entry in entries(metadata)
        .iter()
        .filter(|entry| is_main_resource(entry))
    {
        let manager = entry["manager"].as_str().unwrap_or_default();
        if !managers.iter().any(|known| known == manager) {
            managers.push(manager.to_owned());
        }
    }
    managers
}
