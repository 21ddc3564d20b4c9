//! What an apply leaves behind where the server keeps the owners of a list
//! otherwise than when it was applied before.
//!
//! A list that a definition had as a whole and has by its items from now on: the
//! server forgets who owned the whole, and merges what is sent into what is there.
//! Items that git dropped stay, and belong to nobody.

use serde_json::Value;

use super::{FieldSet, applied_by, held_by_others};
use crate::diff::locate;
use crate::object::{FieldPath, KeyValue, PathSegment};

/// The JSON pointers of what was ours as a part of a list or map before, and is
/// there as it was, and belongs to nobody now; in an order in which they can be
/// removed one after the other. Defaults of the server may be among them.
pub fn stranded(before: &Value, after: &Value, manager: &str) -> Vec<String> {
    let held = held_by_others(&before["metadata"], manager);
    let sets = (
        applied_by(&after["metadata"], manager),
        held_by_others(&after["metadata"], manager),
    );
    let mut found = Vec::new();
    for path in applied_by(&before["metadata"], manager).leaves() {
        let (Some(was), Some(is)) = (locate::find(before, &path), locate::find(after, &path))
        else {
            continue;
        };
        let is_whole = was.is_array() || was.is_object();
        let Some(at) = pointer(&path).filter(|_| is_whole && !held.touches(&path)) else {
            continue;
        };
        let owners = Owners {
            ours: descend(&sets.0, &path),
            others: descend(&sets.1, &path),
        };
        owners.look(&at, was, is, &mut found);
    }
    // Items from the last one on, or the places of the others would move.
    found.reverse();
    found
}

fn descend<'s>(set: &'s FieldSet, path: &FieldPath) -> Option<&'s FieldSet> {
    path.0.iter().try_fold(set, |at, segment| at.child(segment))
}

/// The JSON pointer of a path of keys.
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

/// Who owns a value, and what of it.
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

    fn look(self, at: &str, was: &Value, is: &Value, found: &mut Vec<String>) {
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
                        self.of(&segment).look(&at, was, is, found);
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
                        self.of(&segment).look(&at, was, is, found);
                    }
                }
            }
            _ => {}
        }
    }

    /// How the sets name an item of a list; none where they do not show it.
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
    #[case::of_somebody_else(
        object(items(&["a", "b", "c"]), &[(OURS, owned(&["a", "c"])), ("other", owned(&["b"]))]), &[])]
    #[case::it_came_since(
        object(items(&["a", "c", "e"]), &[(OURS, owned(&["a", "c"]))]), &[])]
    #[case::all_of_it(object(items(&["a", "b", "c", "d"]), &[]), &["/spec/groups"])]
    #[case::a_field_of_an_item(
        object(items(&["a"]), &[(OURS, json!({"k:{\"name\":\"a\"}": {".": {}, "f:name": {}}}))]),
        &["/spec/groups/0/x"])]
    fn what_was_ours_and_belongs_to_nobody(#[case] after: Value, #[case] expected: &[&str]) {
        let before = object(items(&["a", "b", "c", "d"]), &[(OURS, json!({}))]);
        assert_eq!(stranded(&before, &after, OURS), expected);
        // It was not ours alone.
        let shared = object(
            items(&["a", "b", "c", "d"]),
            &[(OURS, json!({})), ("other", json!({}))],
        );
        assert_eq!(stranded(&shared, &after, OURS), [""; 0]);
    }

    #[test]
    fn items_of_a_set_are_named_by_their_values() {
        let before = object(json!(["a", "b"]), &[(OURS, json!({}))]);
        let after = object(json!(["a", "b"]), &[(OURS, json!({"v:\"a\"": {}}))]);
        assert_eq!(stranded(&before, &after, OURS), ["/spec/groups/1"]);
    }
}
