//! Labels and annotations that are irrelevant to the changes in git.

use serde_json::Value;

use pleach_fields::diff::ownership::FieldSet;
use pleach_model::object::{PathSegment, labels};

/// Removes pleach's own labels, which every managed object has.
pub(super) fn drop_own_labels(value: &mut Value) {
    let Some(metadata) = value.get_mut("metadata").and_then(Value::as_object_mut) else {
        return;
    };
    if let Some(Value::Object(map)) = metadata.get_mut("labels") {
        map.shift_remove(labels::PART_OF);
        if map.get(labels::MANAGED_BY).is_some_and(|by| by == "pleach") {
            map.shift_remove(labels::MANAGED_BY);
        }
        if map.is_empty() {
            metadata.shift_remove("labels");
        }
    }
}

/// Removes labels and annotations that neither the manifest nor pleach owns from the old side of a
/// moved object.
///
/// They are missing in the manifest, although git does not remove them.
pub(super) fn drop_of_others(old: &mut Value, new: &Value, owned: &FieldSet) {
    let key = |key: &str| PathSegment::Key(key.to_owned());
    let ours = owned.child(&key("metadata"));
    let Some(metadata) = old.get_mut("metadata").and_then(Value::as_object_mut) else {
        return;
    };
    for map in ["labels", "annotations"] {
        let Some(Value::Object(entries)) = metadata.get_mut(map) else {
            continue;
        };
        let ours = ours.and_then(|ours| ours.child(&key(map)));
        let is_ours = |name: &str| {
            ours.is_some_and(|ours| ours.is_whole() || ours.child(&key(name)).is_some())
        };
        entries.retain(|name, _| !new["metadata"][map][name.as_str()].is_null() || is_ours(name));
        if entries.is_empty() {
            metadata.shift_remove(map);
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::plan::Action;
    use crate::renames::{Moved, PreviousObject};
    use crate::text_diff::{Note, ObjectDiff, Sides, View};
    use pleach_fields::diff::{fields::Scope, masking::Masker};
    use pleach_model::object::{DigestKey, ObjectId, Secrecy};

    /// A controller wrote an annotation that git does not contain.
    #[test]
    fn metadata_of_other_managers_is_not_moved() {
        let old = json!({"kind": "Deployment", "apiVersion": "apps/v1",
            "metadata": {"name": "x", "namespace": "old", "labels": {"ours": "a"},
                "annotations": {"pleach.dev/desired": "1", "deployment.kubernetes.io/revision": "1"}},
            "spec": {"replicas": 1}});
        let new = json!({"kind": "Deployment", "apiVersion": "apps/v1",
            "metadata": {"name": "x", "namespace": "web"}, "spec": {"replicas": 1}});
        let id = ObjectId::new("apps", "Deployment", Some("web"), "x");
        let previous = PreviousObject {
            object: ObjectId::new("apps", "Deployment", Some("old"), "x"),
            how: Moved::Move,
        };
        let owned = json!({"f:metadata": {"f:labels": {"f:ours": {}}, "f:annotations": {"f:pleach.dev/desired": {}}},
            "f:spec": {"f:replicas": {}}});
        let view = View {
            scope: Scope::Owned,
            status: false,
            full_deletes: false,
        };
        let diff = ObjectDiff::new(
            Sides {
                object: &id,
                action: Action::Create,
                old: Some(&old),
                new: Some(&new),
                owned: &FieldSet::parse(&owned),
                secrecy: &Secrecy::of(&id, &[]),
                schema: None,
                previous: Some(&previous),
                note: &Note::default(),
            },
            view,
            &mut Masker::new(DigestKey::new(b"test".to_vec())),
        );
        let shown = diff.unified();
        assert!(!shown.contains("revision"), "{shown}");
        // A label that we wrote is shown as removed.
        assert!(shown.contains("-    ours: a"), "{shown}");
    }
}
