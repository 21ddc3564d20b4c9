//! Patches of bundles and releases, so that upstream files stay verbatim.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};

use json_patch::PatchOperation as Operation;
use serde_json::Value;

use super::strategic;
use pleach_config::{Patch, PatchChange};
use pleach_model::finding::{Finding, Kind};
use pleach_model::kinds::Schema;
use pleach_model::object::{Matcher, ObjectId};

/// Maximum memory of an object while operations run, in bytes. Moved values count, too. Repeated
/// copies of an object into itself would double it each time.
const LARGEST: usize = 32 << 20;

/// Maximum nesting depth of an object after an operation.
const DEEPEST: usize = 100;

/// A patch with its selector compiled.
pub(super) struct Target<'a> {
    patch: &'a Patch,
    matcher: Matcher,
    /// Whether an object matched.
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

    /// Returns whether the patch selects an object, and records it.
    pub(super) fn meets(&self, id: &ObjectId, value: &Value) -> bool {
        let meets = self.matcher.is_about(id, value);
        if meets {
            self.met.store(true, Ordering::Relaxed);
        }
        meets
    }

    /// Returns whether the patch selected any object.
    pub(super) fn is_met(&self) -> bool {
        self.met.load(Ordering::Relaxed)
    }
}

/// Returns the labels of an object.
pub(super) fn labels(value: &Value) -> BTreeMap<String, String> {
    value["metadata"]["labels"]
        .as_object()
        .into_iter()
        .flatten()
        .filter_map(|(key, value)| Some((key.clone(), value.as_str()?.to_owned())))
        .collect()
}

/// Applies a patch to an object. On failure, the object is unchanged. `schema` is that of a
/// built-in kind, if it is one.
pub(super) fn apply(
    patch: &Patch,
    id: &ObjectId,
    value: &mut Value,
    schema: Option<Schema<'_>>,
) -> Result<(), Box<Finding>> {
    match &patch.change {
        PatchChange::Json(operations) => {
            let mut changed = value.clone();
            let (mut size, _) = extent(value);
            for (number, operation) in operations.iter().enumerate() {
                operate(&mut changed, operation, &mut size).map_err(|why| {
                    let name = operation_name(operation);
                    let message = format!(
                        "operation {number} of the patch ({name} {}) failed: {why}",
                        operation.path()
                    );
                    let finding = Finding::error(Kind::Repository, "patch-failed", message);
                    Box::new(finding.at(patch.origin.clone()).on(id.clone()))
                })?;
            }
            *value = changed;
            Ok(())
        }
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

/// Executes one operation. `size` is the accumulated size of the object and all inserted values.
fn operate(value: &mut Value, operation: &Operation, size: &mut usize) -> Result<(), String> {
    let put = match operation {
        Operation::Add(add) => Some(&add.value),
        Operation::Replace(replace) => Some(&replace.value),
        Operation::Move(from) => value.pointer(from.from.as_str()),
        Operation::Copy(from) => value.pointer(from.from.as_str()),
        Operation::Remove(_) | Operation::Test(_) => None,
    };
    if let Some(put) = put {
        let (bytes, levels) = extent(put);
        *size += bytes;
        if *size > LARGEST {
            return Err(format!(
                "the object would be larger than {} MiB",
                LARGEST >> 20
            ));
        }
        if operation.path().count() + levels > DEEPEST {
            return Err(format!(
                "the object would be more than {DEEPEST} levels deep"
            ));
        }
    }
    json_patch::patch(value, std::slice::from_ref(operation))
        .map_err(|error| error.kind.to_string())
}

/// Estimates the memory of a value in bytes, and its nesting depth.
fn extent(value: &Value) -> (usize, usize) {
    let (mut bytes, mut levels) = (0_usize, 0_usize);
    let mut open = vec![(value, 1_usize)];
    while let Some((value, level)) = open.pop() {
        bytes += size_of::<Value>();
        levels = levels.max(level);
        match value {
            Value::Null | Value::Bool(_) | Value::Number(_) => {}
            Value::String(text) => bytes += text.len(),
            Value::Array(items) => open.extend(items.iter().map(|item| (item, level + 1))),
            Value::Object(fields) => {
                for (key, value) in fields {
                    bytes += size_of::<String>() + key.len();
                    open.push((value, level + 1));
                }
            }
        }
    }
    (bytes, levels)
}

fn operation_name(operation: &Operation) -> &'static str {
    match operation {
        Operation::Add(_) => "add",
        Operation::Remove(_) => "remove",
        Operation::Replace(_) => "replace",
        Operation::Move(_) => "move",
        Operation::Copy(_) => "copy",
        Operation::Test(_) => "test",
    }
}

/// Reports that a patch selects no object.
pub(super) fn unused(patch: &Patch) -> Finding {
    let target = &patch.target;
    let mut selected = target.kind.clone();
    if let Some(group) = target.group.as_ref().filter(|group| !group.is_empty()) {
        selected.push('.');
        selected.push_str(group);
    }
    for part in [&target.namespace, &target.name].into_iter().flatten() {
        selected.push('/');
        selected.push_str(part);
    }
    if !target.labels.is_empty() {
        selected.push_str(" with these labels");
    }
    Finding::error(
        Kind::Repository,
        "patch-without-target",
        format!("the patch is for {selected}, but the release has no such object"),
    )
    .at(patch.origin.clone())
    .hint("correct its target, or remove it if upstream no longer needs it")
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::json;

    use super::*;
    use pleach_model::object::{Origin, Selector};

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
    fn a_failing_operation_is_named_and_changes_nothing() {
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

    #[rstest]
    #[case("/data/x", "/data/x/-", "the object would be larger than 32 MiB")]
    #[case("/data", "/data/y", "the object would be more than 100 levels deep")]
    fn copies_of_copies_are_refused(#[case] from: &str, #[case] path: &str, #[case] why: &str) {
        let id = ObjectId::new("", "ConfigMap", Some("shop"), "web");
        let copy = json!({"op": "copy", "from": from, "path": path});
        let patch = Patch {
            target: selector("ConfigMap", None, None),
            change: PatchChange::Json(serde_json::from_value(vec![copy; 120].into()).unwrap()),
            origin: Origin::new("environments/a.yaml", 9),
        };
        let before = json!({"data": {"x": ["y"]}});
        let mut value = before.clone();
        let finding = apply(&patch, &id, &mut value, None).unwrap_err();
        let expected = format!("of the patch (copy {path}) failed: {why}");
        assert!(finding.message.ends_with(&expected), "{finding}");
        assert_eq!(value, before);
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
