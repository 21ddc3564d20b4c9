//! Patches of bundles and releases, so that upstream files stay verbatim.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::Value;

use super::strategic;
use crate::finding::{Finding, Kind};
use crate::kinds::Schema;
use crate::object::ObjectId;
use crate::repo::{Matcher, Patch, PatchChange};

/// A patch with its selector compiled.
pub(super) struct Target<'a> {
    patch: &'a Patch,
    matcher: Matcher,
    /// Whether an object was meant.
    met: AtomicBool,
}

impl<'a> Target<'a> {
    pub(super) fn new(patch: &'a Patch) -> Self {
        Self {
            patch,
            matcher: patch.target.matcher(),
            met: AtomicBool::new(false),
        }
    }

    pub(super) fn patch(&self) -> &'a Patch {
        self.patch
    }

    /// Whether the patch is for an object.
    pub(super) fn meets(&self, id: &ObjectId, value: &Value) -> bool {
        let meets = self.matcher.is_about(id, value);
        if meets {
            self.met.store(true, Ordering::Relaxed);
        }
        meets
    }

    /// Whether it was for any object.
    pub(super) fn is_met(&self) -> bool {
        self.met.load(Ordering::Relaxed)
    }
}

/// The labels of an object.
pub(super) fn labels(value: &Value) -> BTreeMap<String, String> {
    value["metadata"]["labels"]
        .as_object()
        .into_iter()
        .flatten()
        .filter_map(|(key, value)| Some((key.clone(), value.as_str()?.to_owned())))
        .collect()
}

/// Applies a patch to an object, or leaves the object as it was and says why.
/// `schema` is that of its kind, if that is one of Kubernetes.
pub(super) fn apply(
    patch: &Patch,
    id: &ObjectId,
    value: &mut Value,
    schema: Option<Schema<'_>>,
) -> Result<(), Box<Finding>> {
    match &patch.change {
        PatchChange::Json(operations) => json_patch::patch(value, operations).map_err(|error| {
            let operation = operations
                .get(error.operation)
                .map_or("operation", operation_name);
            Box::new(
                Finding::error(
                    Kind::Repository,
                    "patch-failed",
                    format!(
                        "operation {} of the patch ({operation} {}) failed: {}",
                        error.operation, error.path, error.kind
                    ),
                )
                .at(patch.origin.clone())
                .on(id.clone()),
            )
        }),
        PatchChange::Merge(change) => {
            json_patch::merge(value, change);
            Ok(())
        }
        PatchChange::Strategic(change) => {
            strategic::merge(value, change, schema);
            Ok(())
        }
    }
}

fn operation_name(operation: &json_patch::PatchOperation) -> &'static str {
    use json_patch::PatchOperation as Operation;
    match operation {
        Operation::Add(_) => "add",
        Operation::Remove(_) => "remove",
        Operation::Replace(_) => "replace",
        Operation::Move(_) => "move",
        Operation::Copy(_) => "copy",
        Operation::Test(_) => "test",
    }
}

/// Says that a patch changes nothing.
pub(super) fn unused(patch: &Patch) -> Finding {
    let target = &patch.target;
    let mut wanted = target.kind.clone();
    if let Some(group) = target.group.as_ref().filter(|group| !group.is_empty()) {
        wanted.push('.');
        wanted.push_str(group);
    }
    for part in [&target.namespace, &target.name].into_iter().flatten() {
        wanted.push('/');
        wanted.push_str(part);
    }
    if !target.labels.is_empty() {
        wanted.push_str(" with these labels");
    }
    Finding::error(
        Kind::Repository,
        "patch-without-target",
        format!("the patch is for {wanted}, and the release has no such object"),
    )
    .at(patch.origin.clone())
    .hint("correct its target, or take it out when upstream no longer needs it")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::object::Origin;
    use crate::repo::Selector;

    fn selector(kind: &str, group: Option<&str>, name: Option<&str>) -> Selector {
        Selector {
            kind: kind.to_owned(),
            group: group.map(str::to_owned),
            name: name.map(str::to_owned),
            ..Selector::default()
        }
    }

    #[test]
    fn a_target_remembers_whether_it_was_met() {
        let patch = Patch {
            target: Selector {
                labels: BTreeMap::from([("tier".to_owned(), "front".to_owned())]),
                ..selector("*", None, Some("w*"))
            },
            change: PatchChange::Merge(json!({})),
            origin: Origin::new("x", 1),
        };
        let id = ObjectId::new("apps", "Deployment", Some("shop"), "web");
        let target = Target::new(&patch);
        assert!(!target.meets(&id, &json!({"metadata": {"labels": {"tier": "back"}}})));
        assert!(!target.meets(&id, &json!({"metadata": {}})));
        assert!(!target.is_met());
        assert!(target.meets(
            &id,
            &json!({"metadata": {"labels": {"tier": "front", "n": 1}}})
        ));
        assert!(!target.meets(&id, &json!({"metadata": {}})));
        assert!(target.is_met());
    }

    #[test]
    fn a_failing_operation_says_which_and_changes_nothing() {
        let id = ObjectId::new("", "Secret", Some("shop"), "web");
        let patch = Patch {
            target: selector("Secret", None, None),
            change: PatchChange::Json(
                serde_json::from_value(json!([
                    {"op": "add", "path": "/data/a", "value": "x"},
                    {"op": "test", "path": "/data/password", "value": "guess"},
                ]))
                .unwrap(),
            ),
            origin: Origin::new("environments/a.yaml", 9),
        };
        let mut value = json!({"data": {"password": "hunter2"}});
        let finding = apply(&patch, &id, &mut value, None).unwrap_err();
        assert_eq!(
            finding.to_string(),
            "environments/a.yaml:9: Secret/shop/web: operation 1 of the patch \
             (test /data/password) failed: value did not match"
        );
        assert_eq!(value, json!({"data": {"password": "hunter2"}}));
    }

    #[test]
    fn a_merge_patch_removes_with_null() {
        let id = ObjectId::new("", "ConfigMap", Some("shop"), "web");
        let patch = Patch {
            target: selector("ConfigMap", None, None),
            change: PatchChange::Merge(json!({"data": {"a": null, "b": "2"}})),
            origin: Origin::new("x", 1),
        };
        let mut value = json!({"data": {"a": "1"}});
        apply(&patch, &id, &mut value, None).unwrap();
        assert_eq!(value, json!({"data": {"b": "2"}}));
    }
}
