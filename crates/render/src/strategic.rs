//! Strategic merge patches: RFC 7386, except that lists with merge keys are merged item by item.
//!
//! The merge keys are those of server-side apply. A patch needs to name only some of them, so a
//! container port is found by its number alone. Supported directives are `$patch` (`replace`,
//! `delete`, `merge`) in maps and list items, `$retainKeys`, `$deleteFromPrimitiveList/FIELD` and
//! `$setElementOrder/FIELD`.

use serde_json::{Map, Value};

use pleach_model::kinds::{ListKind, Schema};

/// Merges a patch into an object, by the schema of its kind. Without a schema, every list is
/// replaced.
pub(super) fn merge(object: &mut Value, patch: &Value, schema: Option<Schema<'_>>) {
    let merged = merged(Some(object.take()), patch, schema);
    *object = merged.unwrap_or_default();
}

/// Returns the merged value. `None` if it is deleted.
fn merged(previous: Option<Value>, patch: &Value, schema: Option<Schema<'_>>) -> Option<Value> {
    match patch {
        Value::Null => None,
        Value::Object(change) => match change.get("$patch").and_then(Value::as_str) {
            Some("delete") => None,
            Some("replace") => Some(plain(patch)),
            _ => Some(Value::Object(map(previous, change, schema))),
        },
        Value::Array(items) => Some(Value::Array(list(previous, items, schema))),
        scalar => Some(scalar.clone()),
    }
}

fn map(
    previous: Option<Value>,
    change: &Map<String, Value>,
    schema: Option<Schema<'_>>,
) -> Map<String, Value> {
    let mut fields = match previous {
        Some(Value::Object(fields)) => fields,
        _ => Map::new(),
    };
    let orderings = orderings(&fields, change);
    if let Some(Value::Array(keys)) = change.get("$retainKeys") {
        fields.retain(|field, _| keys.iter().any(|key| key == field));
    }
    for (key, change) in change {
        if let Some(field) = key.strip_prefix("$deleteFromPrimitiveList/") {
            let gone = change.as_array().map_or(&[][..], Vec::as_slice);
            if let Some(Value::Array(items)) = fields.get_mut(field) {
                items.retain(|item| !gone.contains(item));
            }
            continue;
        }
        if key.starts_with('$') {
            continue;
        }
        let below = schema.and_then(|schema| schema.field(key).or_else(|| schema.values()));
        let previous = fields.get_mut(key).map(Value::take);
        match merged(previous, change, below) {
            Some(value) => fields.insert(key.clone(), value),
            None => fields.shift_remove(key),
        };
    }
    for order in orderings {
        let below = schema.and_then(|schema| schema.field(order.field));
        if let Some(Value::Array(items)) = fields.get_mut(order.field) {
            *items = order.of(std::mem::take(items), below);
        }
    }
    fields
}

/// A directive `$setElementOrder/FIELD`.
struct Order<'a> {
    field: &'a str,
    /// Items in the desired order. For items with merge keys, one of the keys is enough.
    declared: &'a [Value],
    /// The list before the merge.
    previous: Vec<Value>,
}

fn orderings<'a>(fields: &Map<String, Value>, change: &'a Map<String, Value>) -> Vec<Order<'a>> {
    let declared = change.iter().filter_map(|(key, declared)| {
        let field = key.strip_prefix("$setElementOrder/")?;
        Some((field, declared.as_array()?))
    });
    declared
        .map(|(field, declared)| Order {
            field,
            declared,
            previous: fields
                .get(field)
                .and_then(Value::as_array)
                .cloned()
                .unwrap_or_default(),
        })
        .collect()
}

impl Order<'_> {
    /// Sorts items by the directive. Like kubectl, unlisted items keep their position relative to
    /// other previous items.
    fn of(&self, items: Vec<Value>, schema: Option<Schema<'_>>) -> Vec<Value> {
        let each = schema.and_then(Schema::items);
        let keys: &[String] = match schema.map(Schema::list) {
            Some(ListKind::Map(keys)) => keys,
            _ => &[],
        };
        let place = |list: &[Value], item: &Value| {
            list.iter()
                .position(|one| one == item || is_same(item, one, keys, each))
        };
        let (mut declared, others): (Vec<Value>, Vec<Value>) = items
            .into_iter()
            .partition(|item| place(self.declared, item).is_some());
        declared.sort_by_key(|item| place(self.declared, item));
        let mut others = others.into_iter().peekable();
        let mut ordered = Vec::new();
        for item in declared {
            let at = place(&self.previous, &item);
            let comes_before = |other: &Value| {
                let before = place(&self.previous, other).zip(at);
                before.is_some_and(|(other, item)| other < item)
            };
            while let Some(other) = others.next_if(comes_before) {
                ordered.push(other);
            }
            ordered.push(item);
        }
        ordered.extend(others);
        ordered
    }
}

fn list(previous: Option<Value>, changes: &[Value], schema: Option<Schema<'_>>) -> Vec<Value> {
    let mut items = match previous {
        Some(Value::Array(items)) if !changes.iter().any(|one| one["$patch"] == "replace") => items,
        _ => Vec::new(),
    };
    let each = schema.and_then(Schema::items);
    match schema.map(Schema::list) {
        Some(ListKind::Map(keys)) => {
            for change in changes.iter().filter(|one| one["$patch"] != "replace") {
                let at = items
                    .iter()
                    .position(|item| is_same(item, change, keys, each));
                let previous = at.map(|at| items[at].take());
                match (at, merged(previous, change, each)) {
                    (Some(at), Some(item)) => items[at] = item,
                    (Some(at), None) => drop(items.remove(at)),
                    (None, Some(item)) => items.push(item),
                    (None, None) => {}
                }
            }
            items
        }
        Some(ListKind::Set) => {
            for change in changes {
                if !items.contains(change) {
                    items.push(change.clone());
                }
            }
            items
        }
        Some(ListKind::Atomic) | None => changes
            .iter()
            .filter(|change| change.get("$patch").is_none())
            .map(plain)
            .collect(),
    }
}

/// Returns whether an item is the target of a change. All merge keys in the change must match, and
/// there must be at least one.
fn is_same(item: &Value, change: &Value, keys: &[String], schema: Option<Schema<'_>>) -> bool {
    let mut named = keys
        .iter()
        .filter_map(|key| Some((key, change.get(key)?)))
        .peekable();
    named.peek().is_some()
        && named.all(|(key, expected)| {
            let default = || schema?.field(key)?.default();
            item.get(key).or_else(default) == Some(expected)
        })
}

/// Removes merge directives from a value.
fn plain(value: &Value) -> Value {
    match value {
        Value::Object(fields) => fields
            .iter()
            .filter(|(key, _)| !key.starts_with('$'))
            .map(|(key, value)| (key.clone(), plain(value)))
            .collect(),
        Value::Array(items) => items
            .iter()
            .filter(|item| item.get("$patch").is_none())
            .map(plain)
            .collect(),
        scalar => scalar.clone(),
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::json;

    use super::*;
    use pleach_model::kinds::KindTable;
    use pleach_model::object::Gvk;

    fn patched(kind: &str, object: &Value, patch: &Value) -> Value {
        let table = KindTable::for_minor("1.36").unwrap();
        let (api_version, kind) = kind.rsplit_once('/').unwrap();
        let mut object = object.clone();
        merge(
            &mut object,
            patch,
            table.schema(&Gvk::new(api_version, kind)),
        );
        object
    }

    fn pod(spec: &Value) -> Value {
        json!({"spec": {"template": {"spec": spec}}})
    }

    #[rstest]
    #[case::an_item(
        json!({"containers": [{"name": "a", "image": "a:1", "tty": true}, {"name": "b", "image": "b:1"}]}),
        json!({"containers": [{"name": "a", "image": "a:2"}]}),
        json!({"containers": [{"name": "a", "image": "a:2", "tty": true}, {"name": "b", "image": "b:1"}]}))]
    #[case::an_item_more(
        json!({"containers": [{"name": "a"}]}),
        json!({"containers": [{"name": "b"}]}),
        json!({"containers": [{"name": "a"}, {"name": "b"}]}))]
    #[case::an_item_less(
        json!({"containers": [{"name": "a"}, {"name": "b"}]}),
        json!({"containers": [{"name": "a", "$patch": "delete"}, {"name": "c", "$patch": "delete"}]}),
        json!({"containers": [{"name": "b"}]}))]
    #[case::other_items(
        json!({"containers": [{"name": "a"}, {"name": "b"}]}),
        json!({"containers": [{"$patch": "replace"}, {"name": "c"}]}),
        json!({"containers": [{"name": "c"}]}))]
    #[case::by_a_part_of_the_key(
        json!({"containers": [{"name": "a", "ports": [{"containerPort": 80, "protocol": "UDP"}]}]}),
        json!({"containers": [{"name": "a", "ports": [{"containerPort": 80, "name": "web"}]}]}),
        json!({"containers": [{"name": "a", "ports": [{"containerPort": 80, "protocol": "UDP", "name": "web"}]}]}))]
    #[case::by_a_default(
        json!({"containers": [{"name": "a", "ports": [{"containerPort": 80}]}]}),
        json!({"containers": [{"name": "a", "ports": [{"containerPort": 80, "protocol": "TCP", "name": "web"}]}]}),
        json!({"containers": [{"name": "a", "ports": [{"containerPort": 80, "protocol": "TCP", "name": "web"}]}]}))]
    #[case::a_list_without_keys(
        json!({"containers": [{"name": "a", "args": ["1", "2"]}]}),
        json!({"containers": [{"name": "a", "args": ["3"]}]}),
        json!({"containers": [{"name": "a", "args": ["3"]}]}))]
    #[case::a_field_less(
        json!({"nodeSelector": {"a": "b", "c": "d"}, "hostNetwork": true}),
        json!({"nodeSelector": {"a": null}, "hostNetwork": null}),
        json!({"nodeSelector": {"c": "d"}}))]
    #[case::another_map(
        json!({"nodeSelector": {"a": "b"}}),
        json!({"nodeSelector": {"$patch": "replace", "c": "d"}}),
        json!({"nodeSelector": {"c": "d"}}))]
    #[case::no_map(
        json!({"nodeSelector": {"a": "b"}, "tolerations": []}),
        json!({"nodeSelector": {"$patch": "delete"}}),
        json!({"tolerations": []}))]
    #[case::some_keys(
        json!({"volumes": [{"name": "v", "emptyDir": {}}]}),
        json!({"volumes": [{"name": "v", "$retainKeys": ["name", "configMap"], "configMap": {"name": "c"}}]}),
        json!({"volumes": [{"name": "v", "configMap": {"name": "c"}}]}))]
    #[case::in_an_order(
        json!({"containers": [{"name": "a"}, {"name": "b"}]}),
        json!({"$setElementOrder/containers": [{"name": "c"}, {"name": "b"}, {"name": "a"}], "containers": [{"name": "c"}]}),
        json!({"containers": [{"name": "c"}, {"name": "b"}, {"name": "a"}]}))]
    #[case::in_an_order_that_leaves_some_where_they_were(
        json!({"containers": [{"name": "theirs"}, {"name": "a"}, {"name": "b"}, {"name": "last"}]}),
        json!({"$setElementOrder/containers": [{"name": "b"}, {"name": "a"}]}),
        json!({"containers": [{"name": "theirs"}, {"name": "b"}, {"name": "a"}, {"name": "last"}]}))]
    #[case::in_an_order_of_which_some_are_not_there(
        json!({"containers": [{"name": "a"}, {"name": "b"}]}),
        json!({"$setElementOrder/containers": [{"name": "b"}, {"name": "gone"}, {"name": "a"}], "containers": [{"name": "b", "$patch": "delete"}, {"name": "new"}]}),
        json!({"containers": [{"name": "a"}, {"name": "new"}]}))]
    #[case::in_an_order_by_a_part_of_the_key(
        json!({"containers": [{"name": "a", "ports": [{"containerPort": 80, "protocol": "UDP"}, {"containerPort": 81}]}]}),
        json!({"containers": [{"name": "a", "$setElementOrder/ports": [{"containerPort": 81}, {"containerPort": 80}]}]}),
        json!({"containers": [{"name": "a", "ports": [{"containerPort": 81}, {"containerPort": 80, "protocol": "UDP"}]}]}))]
    #[case::in_no_order_without_a_list(
        json!({"hostNetwork": true}),
        json!({"$setElementOrder/containers": [{"name": "a"}]}),
        json!({"hostNetwork": true}))]
    fn pods_are_merged_by_their_keys(
        #[case] previous: Value,
        #[case] patch: Value,
        #[case] expected: Value,
    ) {
        let found = patched("apps/v1/Deployment", &pod(&previous), &pod(&patch));
        assert_eq!(found, pod(&expected));
    }

    #[test]
    fn values_of_a_set_are_added_and_removed_one_by_one() {
        let object = json!({"metadata": {"finalizers": ["a", "b"]}});
        let patch = json!({"metadata": {"finalizers": ["c", "a"], "$deleteFromPrimitiveList/finalizers": ["b"]}});
        let found = patched("v1/ConfigMap", &object, &patch);
        assert_eq!(found["metadata"]["finalizers"], json!(["a", "c"]));
        let patch =
            json!({"metadata": {"finalizers": ["c"], "$setElementOrder/finalizers": ["c", "b"]}});
        let found = patched("v1/ConfigMap", &object, &patch);
        assert_eq!(found["metadata"]["finalizers"], json!(["c", "a", "b"]));
    }

    #[test]
    fn without_a_schema_lists_are_replaced() {
        let object = json!({"spec": {"l": [{"name": "a"}], "m": {"a": 1, "b": 2}}});
        let patch = json!({"spec": {"l": [{"name": "b"}], "m": {"a": null}}});
        let found = patched("example.org/v1/Gear", &object, &patch);
        assert_eq!(
            found,
            json!({"spec": {"l": [{"name": "b"}], "m": {"b": 2}}})
        );
    }
}
