//! Finds orphaned fields after a CRD changed the type of a list.
//!
//! When an atomic list becomes an associative list, the server drops the owner of the whole list.
//! The next apply then merges its items into the existing ones. Items that git removed remain
//! without an owner.

use serde_json::Value;

use super::{FieldSet, applied_by, owned_by_others};
use crate::diff::locate;
use pleach_model::object::{FieldPath, KeyValue, PathSegment};

/// Returns JSON pointers to orphaned values: formerly part of a list or map of ours, now unchanged
/// and without an owner.
///
/// The pointers can be removed in the returned order. They can include server defaults.
pub fn orphaned(before: &Value, after: &Value, manager: &str) -> Vec<String> {
    let owned = owned_by_others(&before["metadata"], manager);
    let sets = (
        applied_by(&after["metadata"], manager),
        owned_by_others(&after["metadata"], manager),
    );
    let mut found = Vec::new();
    for path in applied_by(&before["metadata"], manager).leaves() {
        let (Some(was), Some(is)) = (locate::find(before, &path), locate::find(after, &path))
        else {
            continue;
        };
        let is_whole = was.is_array() || was.is_object();
        let Some(at) = pointer(&path).filter(|_| is_whole && !owned.touches(&path)) else {
            continue;
        };
        let owners = Owners {
            ours: descend(&sets.0, &path),
            others: descend(&sets.1, &path),
        };
        owners.inspect(&at, was, is, &mut found);
    }
    // Remove items from the end, because each removal shifts the positions after it.
    found.reverse();
    found
}

fn descend<'s>(set: &'s FieldSet, path: &FieldPath) -> Option<&'s FieldSet> {
    path.0.iter().try_fold(set, |at, segment| at.child(segment))
}

/// Returns the JSON pointer of a path. `None` if the path contains list items.
fn pointer(path: &FieldPath) -> Option<String> {
    let keys = path.0.iter().map(|segment| match segment {
        PathSegment::Key(key) => Some(format!("/{}", escaped(key))),
        _ => None,
    });
    keys.collect()
}

fn escaped(key: &str) -> String {
    key.replace('~', "~0").replace('/', "~1")
}

/// Owners of a value: our fields and the fields of other managers at its path.
#[derive(Clone, Copy)]
struct Owners<'s> {
    ours: Option<&'s FieldSet>,
    others: Option<&'s FieldSet>,
}

impl<'s> Owners<'s> {
    fn both(self) -> impl Iterator<Item = &'s FieldSet> {
        self.ours.into_iter().chain(self.others)
    }

    fn of(self, segment: &PathSegment) -> Self {
        Self {
            ours: self.ours.and_then(|set| set.child(segment)),
            others: self.others.and_then(|set| set.child(segment)),
        }
    }

    fn inspect(self, at: &str, was: &Value, is: &Value, found: &mut Vec<String>) {
        if self.both().next().is_none() {
            if was == is {
                found.push(at.to_owned());
            }
            return;
        }
        if self.both().any(FieldSet::is_whole) {
            return;
        }
        match is {
            Value::Object(fields) => {
                for (key, is) in fields {
                    let segment = PathSegment::Key(key.clone());
                    if let Some(was) = locate::step(was, &segment) {
                        let at = format!("{at}/{}", escaped(key));
                        self.of(&segment).inspect(&at, was, is, found);
                    }
                }
            }
            Value::Array(items) => {
                for (place, is) in items.iter().enumerate() {
                    let Some(segment) = self.segment(is) else {
                        continue;
                    };
                    if let Some(was) = locate::step(was, &segment) {
                        let at = format!("{at}/{place}");
                        self.of(&segment).inspect(&at, was, is, found);
                    }
                }
            }
            _ => {}
        }
    }

    /// Returns the step by which the sets name a list item. `None` if they do not show it.
    fn segment(self, item: &Value) -> Option<PathSegment> {
        if let Some(keys) = self.both().find_map(FieldSet::list_keys) {
            let keys = keys.into_iter().map(|key| {
                let value = KeyValue::from_json(item.get(&key)?)?;
                Some((key, value))
            });
            return Some(PathSegment::Select(keys.collect::<Option<Vec<_>>>()?));
        }
        let is_set = self.both().any(FieldSet::is_scalar_set);
        let value = KeyValue::from_json(item).filter(|_| is_set)?;
        Some(PathSegment::Item(value))
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::json;

    use super::*;

    const OURS: &str = "pleach/e.r";

    fn object(groups: Value, fields: &[(&str, Value)]) -> Value {
        let entries = fields.iter().map(|(manager, fields)| {
            json!({"manager": manager, "operation": "Apply", "apiVersion": "example.org/v1",
                   "fieldsV1": {"f:spec": {"f:groups": fields}}})
        });
        let entries: Vec<Value> = entries.collect();
        let spec = serde_json::Map::from_iter([("groups".to_owned(), groups)]);
        json!({"metadata": {"managedFields": entries}, "spec": spec})
    }

    fn items(names: &[&str]) -> Value {
        let items = names.iter().map(|name| json!({"name": name, "x": "1"}));
        items.collect()
    }

    fn owned(names: &[&str]) -> Value {
        let items = names.iter().map(|name| {
            let key = format!("k:{{\"name\":\"{name}\"}}");
            (key, json!({".": {}, "f:name": {}, "f:x": {}}))
        });
        Value::Object(items.collect())
    }

    #[rstest]
    #[case::by_items_now(
        object(items(&["a", "b", "c", "d"]), &[(OURS, owned(&["a", "c"]))]),
        &["/spec/groups/3", "/spec/groups/1"])]
    #[case::as_a_whole_still(object(items(&["a", "c"]), &[(OURS, json!({}))]), &[])]
    #[case::of_another_manager(
        object(items(&["a", "b", "c"]), &[(OURS, owned(&["a", "c"])), ("other", owned(&["b"]))]), &[])]
    #[case::it_came_since(
        object(items(&["a", "c", "e"]), &[(OURS, owned(&["a", "c"]))]), &[])]
    #[case::all_of_it(object(items(&["a", "b", "c", "d"]), &[]), &["/spec/groups"])]
    #[case::a_field_of_an_item(
        object(items(&["a"]), &[(OURS, json!({"k:{\"name\":\"a\"}": {".": {}, "f:name": {}}}))]),
        &["/spec/groups/0/x"])]
    fn fields_without_an_owner_are_found(#[case] after: Value, #[case] expected: &[&str]) {
        let before = object(items(&["a", "b", "c", "d"]), &[(OURS, json!({}))]);
        assert_eq!(orphaned(&before, &after, OURS), expected);
        // Another manager owned the list, too.
        let shared = object(
            items(&["a", "b", "c", "d"]),
            &[(OURS, json!({})), ("other", json!({}))],
        );
        assert_eq!(orphaned(&shared, &after, OURS), [""; 0]);
    }

    #[test]
    fn items_of_a_set_are_named_by_their_values() {
        let before = object(json!(["a", "b"]), &[(OURS, json!({}))]);
        let after = object(json!(["a", "b"]), &[(OURS, json!({"v:\"a\"": {}}))]);
        assert_eq!(orphaned(&before, &after, OURS), ["/spec/groups/1"]);
    }
}
