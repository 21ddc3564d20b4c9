//! Finds and removes values in an object by field path.

use serde_json::Value;

use pleach_model::object::{FieldPath, KeyValue, PathSegment};

/// Returns the value at a path. `None` if the path does not exist.
pub fn find<'a>(object: &'a Value, path: &FieldPath) -> Option<&'a Value> {
    path.0.iter().try_fold(object, step)
}

pub(super) fn step<'a>(value: &'a Value, segment: &PathSegment) -> Option<&'a Value> {
    if let PathSegment::Key(key) = segment {
        return value.as_object()?.get(key);
    }
    let items = value.as_array()?;
    items.get(position(items, segment)?)
}

pub(super) fn step_mut<'a>(value: &'a mut Value, segment: &PathSegment) -> Option<&'a mut Value> {
    if let PathSegment::Key(key) = segment {
        return value.as_object_mut()?.get_mut(key);
    }
    let items = value.as_array_mut()?;
    let index = position(items, segment)?;
    items.get_mut(index)
}

/// Removes the value at a step. Does nothing if the step does not exist.
pub(crate) fn remove(value: &mut Value, segment: &PathSegment) {
    match (segment, value) {
        (PathSegment::Key(key), Value::Object(map)) => {
            // `shift_remove` preserves the order of the other keys for readers.
            map.shift_remove(key);
        }
        (segment, Value::Array(items)) => {
            if let Some(index) = position(items, segment) {
                items.remove(index);
            }
        }
        _ => {}
    }
}

/// Removes the value at a path. Does nothing if the path does not exist.
pub fn take(object: &mut Value, path: &FieldPath) {
    let Some((last, parents)) = path.0.split_last() else {
        return;
    };
    let mut at = object;
    for segment in parents {
        let Some(child) = step_mut(at, segment) else {
            return;
        };
        at = child;
    }
    remove(at, last);
}

/// Returns whether an item without `key` can match an item with this value, because `value` can be
/// a server default.
///
/// For `protocol`, the default is known. Any default is possible for other keys.
pub(crate) fn can_be_omitted(key: &str, value: &str) -> bool {
    key != "protocol" || !["UDP", "SCTP"].contains(&value)
}

/// Returns the index of the list item that a step selects.
pub(crate) fn position(items: &[Value], segment: &PathSegment) -> Option<usize> {
    match segment {
        PathSegment::Index(index) => (*index < items.len()).then_some(*index),
        PathSegment::Item(expected) => items
            .iter()
            .position(|item| KeyValue::from_json(item).as_ref() == Some(expected)),
        PathSegment::Select(keys) => {
            let holds = |item: &Value, (key, expected): &(String, KeyValue)| {
                KeyValue::from_json(&item[key]).as_ref() == Some(expected)
            };
            let exact = items
                .iter()
                .position(|item| item.is_object() && keys.iter().all(|key| holds(item, key)));
            // The server fills in defaults for key fields that a manifest omits.
            exact.or_else(|| {
                items.iter().position(|item| {
                    let (present, absent): (Vec<_>, Vec<_>) =
                        keys.iter().partition(|(key, _)| item.get(key).is_some());
                    !present.is_empty()
                        && !absent.is_empty()
                        && present.into_iter().all(|key| holds(item, key))
                        && absent.into_iter().all(|(key, expected)| match expected {
                            KeyValue::Text(text) => can_be_omitted(key, text),
                            KeyValue::Bool(_) | KeyValue::Int(_) => true,
                        })
                })
            })
        }
        PathSegment::Key(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn items_are_found_by_their_keys() {
        let object = json!({"spec": {"ports": [
            {"port": 80, "protocol": "TCP", "name": "a"},
            {"port": 80, "protocol": "UDP", "name": "b"}], "names": ["x", "y"]}});
        let spec = FieldPath::default().key("spec");
        let port = spec.key("ports").join(PathSegment::Select(vec![
            ("port".into(), KeyValue::Int(80)),
            ("protocol".into(), KeyValue::Text("UDP".into())),
        ]));
        assert_eq!(find(&object, &port.key("name")), Some(&json!("b")));
        assert_eq!(find(&object, &port.key("targetPort")), None);
        // The manifest omits the protocol, which defaults to TCP.
        let object = json!({"spec": {"ports": [{"port": 80, "name": "a"}, {"port": 80, "protocol": "UDP", "name": "b"}],
            "names": ["x", "y"]}});
        let tcp = spec.key("ports").join(PathSegment::Select(vec![
            ("port".into(), KeyValue::Int(80)),
            ("protocol".into(), KeyValue::Text("TCP".into())),
        ]));
        assert_eq!(find(&object, &tcp.key("name")), Some(&json!("a")));
        assert_eq!(find(&object, &port.key("name")), Some(&json!("b")));
        let object = json!({"spec": {"ports": [{"port": 80, "name": "a"}]}});
        assert_eq!(find(&object, &tcp.key("name")), Some(&json!("a")));
        assert_eq!(find(&object, &port.key("name")), None);
        let object = json!({"spec": {"names": ["x", "y"]}});
        let item = |text: &str| {
            spec.key("names")
                .join(PathSegment::Item(KeyValue::Text(text.into())))
        };
        assert_eq!(find(&object, &item("y")), Some(&json!("y")));
        assert_eq!(find(&object, &item("z")), None);
        assert_eq!(find(&object, &spec.join(PathSegment::Index(0))), None);
    }
}
