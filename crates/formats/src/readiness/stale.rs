//! Conditions that describe an earlier spec.

use std::borrow::Cow;

use serde_json::Value;

/// Removes conditions whose `observedGeneration` is older than the object's
/// generation, from every list named `conditions` below `status` (including
/// those of parents and listeners).
pub(super) fn without_stale(value: &Value) -> Cow<'_, Value> {
    let Some(generation) = value["metadata"]["generation"].as_i64() else {
        return Cow::Borrowed(value);
    };
    if !has_stale(&value["status"], generation) {
        return Cow::Borrowed(value);
    }
    let mut fresh = value.clone();
    remove(&mut fresh["status"], generation);
    Cow::Owned(fresh)
}

/// Parses a number, or a number in a string.
fn number(field: &Value) -> Option<i64> {
    field.as_i64().or_else(|| field.as_str()?.parse().ok())
}

/// Status fields with the generation that the controller has observed, in order
/// of preference.
const GENERATIONS: &[&str] = &[
    "observedGeneration",
    "lastObservedGeneration",
    "lastReconciledGeneration",
];

/// Returns the generation that the controller has observed.
pub(super) fn seen_generation(status: &Value) -> Option<i64> {
    GENERATIONS.iter().find_map(|key| number(&status[*key]))
}

/// Returns whether a condition describes an earlier generation.
pub(super) fn is_stale(condition: &Value, generation: i64) -> bool {
    number(&condition["observedGeneration"]).is_some_and(|observed| observed < generation)
}

fn has_stale(place: &Value, generation: i64) -> bool {
    match place {
        Value::Object(fields) => fields.iter().any(|(key, field)| match field {
            Value::Array(items) if key == "conditions" => {
                items.iter().any(|item| is_stale(item, generation))
            }
            _ => has_stale(field, generation),
        }),
        Value::Array(items) => items.iter().any(|item| has_stale(item, generation)),
        _ => false,
    }
}

fn remove(place: &mut Value, generation: i64) {
    match place {
        Value::Object(fields) => {
            for (key, field) in fields.iter_mut() {
                match field {
                    Value::Array(items) if key == "conditions" => {
                        items.retain(|item| !is_stale(item, generation));
                    }
                    _ => remove(field, generation),
                }
            }
        }
        Value::Array(items) => {
            for item in items {
                remove(item, generation);
            }
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn fields_of_the_seen_generation() {
        for (status, expected) in [
            (json!({"observedGeneration": 2}), Some(2)),
            (json!({"observedGeneration": "2"}), Some(2)),
            (json!({"lastObservedGeneration": 2}), Some(2)),
            (json!({"lastReconciledGeneration": 2}), Some(2)),
            (
                json!({"observedGeneration": 2, "lastReconciledGeneration": 1}),
                Some(2),
            ),
            (json!({"lastObservedGeneration": "5d8f"}), None),
            (json!(null), None),
        ] {
            assert_eq!(seen_generation(&status), expected, "{status}");
        }
    }

    #[test]
    fn only_conditions_of_an_earlier_generation_are_removed() {
        let condition = |name: &str, observed: Value| json!({"type": name, "status": "True", "observedGeneration": observed});
        let conditions = json!([
            condition("Older", json!(1)),
            condition("Same", json!(2)),
            condition("Newer", json!(3)),
            condition("Text", json!("1")),
            condition("Hash", json!("5d8f")),
            {"type": "Without"},
            null,
        ]);
        let fresh = json!([
            condition("Same", json!(2)),
            condition("Newer", json!(3)),
            condition("Hash", json!("5d8f")),
            {"type": "Without"},
            null,
        ]);
        let object = |conditions: &Value| {
            json!({
                "metadata": {"generation": 2},
                "spec": {"conditions": [condition("Older", json!(1))]},
                "status": {
                    "conditions": conditions,
                    "parents": [{"conditions": conditions}, {"conditions": null}],
                    "nested": {"listeners": [{"conditions": conditions}]},
                    "others": [condition("Older", json!(1))],
                },
            })
        };
        assert_eq!(*without_stale(&object(&conditions)), object(&fresh));
        assert!(matches!(without_stale(&object(&fresh)), Cow::Borrowed(_)));
        let unnumbered = json!({"status": {"conditions": conditions}});
        assert!(matches!(without_stale(&unnumbered), Cow::Borrowed(_)));
    }
}
