//! Computes the field set of an object as if one manager owned all of it.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use super::FieldSet;
use super::field_set::written;
use pleach_model::kinds::{ListKind, Schema};

/// Returns all fields of an object except the identifying ones.
///
/// List items are named by their keys if the schema declares them. Without a schema, a list is one
/// field.
pub fn everything_in(object: &Value, schema: Option<Schema<'_>>) -> FieldSet {
    let mut fields = fields(object, schema);
    if let Value::Object(fields) = &mut fields {
        fields.shift_remove("f:apiVersion");
        fields.shift_remove("f:kind");
        if let Some(Value::Object(metadata)) = fields.get_mut("f:metadata") {
            metadata.shift_remove("f:name");
            metadata.shift_remove("f:namespace");
        }
    }
    FieldSet::parse(&fields)
}

impl FieldSet {
    /// Returns the union, in which an atomic field covers finer members.
    ///
    /// If one set contains a list as a whole, so does the result, even if the other set names
    /// items.
    #[must_use]
    pub fn covering(&self, other: &Self) -> Self {
        if self.is_empty() {
            return other.clone();
        }
        if other.is_empty() {
            return self.clone();
        }
        if self.is_whole() || other.is_whole() {
            return Self {
                itself: true,
                below: BTreeMap::new(),
            };
        }
        let mut below = self.below.clone();
        for (step, theirs) in &other.below {
            let mine = below.entry(step.clone()).or_default();
            *mine = mine.covering(theirs);
        }
        Self {
            itself: self.itself || other.itself,
            below,
        }
    }
}

fn fields(value: &Value, schema: Option<Schema<'_>>) -> Value {
    match value {
        Value::Object(map) if !schema.is_some_and(Schema::is_atomic_map) => map
            .iter()
            .map(|(key, child)| {
                let below = schema.and_then(|one| one.field(key).or_else(|| one.values()));
                (format!("f:{key}"), fields(child, below))
            })
            .collect::<Map<String, Value>>()
            .into(),
        Value::Array(items) => {
            let Some(schema) = schema else {
                return json!({});
            };
            let named: Option<Map<String, Value>> = items
                .iter()
                .map(|item| {
                    let name = match schema.list() {
                        ListKind::Atomic => return None,
                        ListKind::Set => format!("v:{}", written(item)),
                        ListKind::Map(keys) => {
                            format!("k:{}", written(&key(item, keys, schema.items())?))
                        }
                    };
                    let mut below = fields(item, schema.items());
                    if let (Value::Object(below), true) = (&mut below, item.is_object()) {
                        // The item itself is a member, in addition to its fields.
                        below.insert(".".to_owned(), json!({}));
                    }
                    Some((name, below))
                })
                .collect();
            named.unwrap_or_default().into()
        }
        _ => json!({}),
    }
}

/// Returns the key of an item as the server writes it: sorted and with defaults.
fn key(item: &Value, keys: &[String], schema: Option<Schema<'_>>) -> Option<Value> {
    let mut keys: Vec<&String> = keys.iter().collect();
    keys.sort();
    keys.into_iter()
        .map(|key| {
            let default = || schema.and_then(|one| one.field(key)?.default());
            let value = item.get(key).or_else(default)?;
            Some((key.clone(), value.clone()))
        })
        .collect::<Option<Map<String, Value>>>()
        .map(Value::Object)
}

#[cfg(test)]
mod tests {
    use super::*;
    use pleach_model::kinds::KindTable;
    use pleach_model::object::Gvk;

    #[test]
    fn a_field_covers_its_children() {
        let set = |value: Value| FieldSet::parse(&value);
        let whole = set(json!({"f:a": {"f:list": {}}}));
        let parts = set(json!({"f:a": {"f:list": {"k:{\"name\":\"x\"}": {".": {}}}, "f:b": {}}}));
        let covering = set(json!({"f:a": {"f:list": {}, "f:b": {}}}));
        assert_eq!(whole.covering(&parts), covering);
        assert_eq!(parts.covering(&whole), covering);
        assert_eq!(parts.covering(&FieldSet::default()), parts);
    }

    #[test]
    fn items_are_named_as_the_server_names_them() {
        let table = KindTable::for_minor("1.36").unwrap();
        let service = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "a", "finalizers": ["x"]},
            "spec": {"ports": [{"port": 80}], "selector": {"app": "a"}, "externalIPs": ["10.0.0.1"]}});
        let schema = table.schema(&Gvk::new("v1", "Service"));
        assert_eq!(
            everything_in(&service, schema).to_json(),
            FieldSet::parse(
                &json!({"f:metadata": {"f:finalizers": {"v:\"x\"": {}}}, "f:spec": {
                "f:ports": {"k:{\"port\":80,\"protocol\":\"TCP\"}": {".": {}, "f:port": {}}},
                "f:selector": {}, "f:externalIPs": {}}})
            )
            .to_json()
        );
        // Without a schema, a list is one field, but a map is not.
        assert_eq!(
            everything_in(&service, None).to_json()["f:spec"],
            FieldSet::parse(
                &json!({"f:ports": {}, "f:selector": {"f:app": {}}, "f:externalIPs": {}})
            )
            .to_json()
        );
    }
}
