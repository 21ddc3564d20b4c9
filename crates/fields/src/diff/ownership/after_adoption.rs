//! Predicts the result of an adoption without a dry run of the apply.
//!
//! This is needed if the old and the new values cannot coexist in one object.

use serde_json::{Map, Value};

use super::adoption::{is_merged, prune};
use super::{FieldSet, entries, fields_of};
use crate::diff::locate;
use crate::ignore::{self, FieldPattern};
use pleach_model::object::{KeyValue, PathSegment, annotations};

/// Returns the object after the entries of the managers in `from` were merged into ours and `sent`
/// was applied.
///
/// Server defaults are missing in the result. A dry run of the patch from [`super::remainder`] adds
/// them.
#[must_use]
pub fn predicted(
    live: &Value,
    sent: &Value,
    ours: &str,
    from: &dyn Fn(&str) -> bool,
    ignored: &[FieldPattern],
) -> Value {
    let metadata = &live["metadata"];
    let is_merged = is_merged(metadata, ours, from);
    let (mut taken, mut others) = (FieldSet::default(), FieldSet::default());
    for entry in entries(metadata) {
        if is_merged(entry) {
            taken = taken.union(&fields_of(entry, live));
        } else {
            others = others.union(&FieldSet::parse(&entry["fieldsV1"]));
        }
    }
    // Ignored fields retain their value.
    let taken = ignore::give_up(ignored, &taken, live);
    let mut left = merged(sent, live, &taken, &others);
    if let Some(annotations) = left
        .pointer_mut("/metadata/annotations")
        .and_then(Value::as_object_mut)
    {
        annotations.shift_remove(annotations::LAST_APPLIED);
    }
    left
}

fn merged(sent: &Value, live: &Value, taken: &FieldSet, others: &FieldSet) -> Value {
    match (sent, live) {
        (Value::Object(sent), Value::Object(live)) if !taken.is_whole() && !others.is_whole() => {
            maps(sent, live, taken, others)
        }
        (Value::Array(sent), Value::Array(live)) => lists(sent, live, taken, others),
        _ => sent.clone(),
    }
}

fn maps(
    sent: &Map<String, Value>,
    live: &Map<String, Value>,
    taken: &FieldSet,
    others: &FieldSet,
) -> Value {
    let nothing = FieldSet::default();
    let child = |set: &FieldSet, key: &str| {
        let below = set.child(&PathSegment::Key(key.to_owned()));
        below.unwrap_or(&nothing).clone()
    };
    // The server removes a field, with all defaults below it, if we owned a part of it and no
    // manager owns any other part.
    let is_removed = |key: &str| !child(taken, key).is_empty() && child(others, key).is_empty();
    let remaining: Map<String, Value> = live
        .iter()
        .filter(|(key, _)| !sent.contains_key(*key) && !is_removed(key))
        .map(|(key, value)| (key.clone(), value.clone()))
        .collect();
    let mut left = Value::Object(remaining);
    prune(&mut left, taken, others);
    if let Value::Object(left) = &mut left {
        for (key, desired) in sent {
            let value = match live.get(key) {
                Some(live) => merged(desired, live, &child(taken, key), &child(others, key)),
                None => desired.clone(),
            };
            left.insert(key.clone(), value);
        }
    }
    left
}

fn lists(sent: &[Value], live: &[Value], taken: &FieldSet, others: &FieldSet) -> Value {
    let keys = taken.list_keys().or_else(|| others.list_keys());
    let is_set = taken.is_scalar_set() || others.is_scalar_set();
    if keys.is_none() && !is_set {
        return Value::from(sent);
    }
    let keys = keys.unwrap_or_default();
    let nothing = FieldSet::default();
    let mut rest = live.to_vec();
    let mut left = Vec::new();
    for desired in sent {
        let Some(at) = rest.iter().position(|one| is_same(desired, one, &keys)) else {
            left.push(desired.clone());
            continue;
        };
        let there = rest.remove(at);
        let step = named(&there, &keys);
        let mine = taken.child(&step).unwrap_or(&nothing);
        let theirs = others.child(&step).unwrap_or(&nothing);
        left.push(merged(desired, &there, mine, theirs));
    }
    let mut rest = Value::Array(rest);
    prune(&mut rest, taken, others);
    if let Value::Array(rest) = rest {
        left.extend(rest);
    }
    Value::Array(left)
}

/// Returns whether two items are the same. The server fills in defaults for key fields that a
/// manifest omits.
fn is_same(desired: &Value, live: &Value, keys: &[String]) -> bool {
    if !keys.iter().any(|key| desired.get(key).is_some()) {
        return desired == live;
    }
    keys.iter().all(|key| match desired.get(key) {
        Some(value) => live.get(key) == Some(value),
        None => live[key]
            .as_str()
            .is_none_or(|text| locate::can_be_omitted(key, text)),
    })
}

/// Returns the step for a live item. An item of a set is named by its value.
fn named(item: &Value, keys: &[String]) -> PathSegment {
    let of_set = KeyValue::from_json(item).filter(|_| keys.is_empty());
    of_set.map_or_else(
        || {
            let values = keys.iter().filter_map(|key| {
                let value = KeyValue::from_json(item.get(key)?)?;
                Some((key.clone(), value))
            });
            PathSegment::Select(values.collect())
        },
        PathSegment::Item,
    )
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn left(live: &Value, fields: &Value, sent: &Value) -> Value {
        let mut object = json!({"metadata": {"managedFields": [
            {"manager": "kubectl", "operation": "Update", "apiVersion": "v1", "fieldsV1": {"f:spec": fields}},
            {"manager": "other", "operation": "Update", "apiVersion": "v1",
             "fieldsV1": {"f:spec": {"f:theirs": {}}}}]}});
        object["spec"] = live.clone();
        let sent = json!({ "spec": sent });
        let from = |manager: &str| manager == "kubectl";
        predicted(&object, &sent, "pleach/a.b", &from, &[])["spec"].clone()
    }

    #[test]
    fn undesired_fields_are_removed_before_desired_ones_are_added() {
        let port = |port: u16| json!({"name": "http", "port": port, "protocol": "TCP"});
        let item = json!({".": {}, "f:name": {}, "f:port": {}});
        assert_eq!(
            left(
                &json!({"ports": [port(80)], "clusterIP": "10.0.0.1", "theirs": 1}),
                &json!({"f:ports": {".": {}, r#"k:{"port":80,"protocol":"TCP"}"#: item}}),
                &json!({"ports": [{"name": "http", "port": 8080}]}),
            ),
            json!({"clusterIP": "10.0.0.1", "theirs": 1, "ports": [{"name": "http", "port": 8080}]})
        );
        let env = json!({"name": "A", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}});
        assert_eq!(
            left(
                &json!({"env": [{"name": "A", "value": "1"}, {"name": "B", "value": "2"}]}),
                &json!({"f:env": {r#"k:{"name":"A"}"#: {".": {}, "f:name": {}, "f:value": {}}}}),
                &json!({ "env": [env] }),
            ),
            json!({"env": [env, {"name": "B", "value": "2"}]})
        );
    }

    #[test]
    fn one_port_of_two_protocols_is_two_items() {
        let udp = json!({".": {}, "f:name": {}, "f:port": {}, "f:protocol": {}});
        let tcp = json!({".": {}, "f:name": {}, "f:port": {}});
        assert_eq!(
            left(
                &json!({"ports": [
                    {"name": "dns", "port": 53, "protocol": "UDP", "nodePort": 30000},
                    {"name": "dns-tcp", "port": 53, "protocol": "TCP", "nodePort": 30001}]}),
                &json!({"f:ports": {".": {},
                    r#"k:{"port":53,"protocol":"UDP"}"#: udp, r#"k:{"port":53,"protocol":"TCP"}"#: tcp}}),
                &json!({"ports": [{"name": "dns-tcp", "port": 53}]}),
            ),
            json!({"ports": [{"name": "dns-tcp", "port": 53, "protocol": "TCP", "nodePort": 30001}]})
        );
    }

    #[test]
    fn a_field_is_removed_with_the_defaults_below_it() {
        assert_eq!(
            left(
                &json!({"probe": {"httpGet": {"port": 80, "scheme": "HTTP"}, "period": 10}, "grace": 30}),
                &json!({"f:probe": {"f:httpGet": {"f:port": {}}}}),
                &json!({"probe": {"tcpSocket": {"port": 80}}}),
            ),
            json!({"probe": {"tcpSocket": {"port": 80}, "period": 10}, "grace": 30})
        );
    }

    #[test]
    fn values_of_sets_and_wholes() {
        assert_eq!(
            left(
                &json!({"names": ["a", "b", "c"], "args": ["x", "y"], "selector": {"a": "1", "b": "2"}}),
                &json!({"f:names": {"v:\"a\"": {}, "v:\"b\"": {}}, "f:args": {}, "f:selector": {}}),
                &json!({"names": ["b"], "args": ["z"], "selector": {"a": "1"}}),
            ),
            json!({"names": ["b", "c"], "args": ["z"], "selector": {"a": "1"}})
        );
    }
}
