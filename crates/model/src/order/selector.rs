//! Label selectors.

use std::collections::BTreeMap;

use serde_json::Value;

/// Returns whether a label selector matches the labels. An empty selector matches everything.
pub fn selects(selector: &Value, labels: &BTreeMap<String, String>) -> bool {
    let Some(selector) = selector.as_object() else {
        return false;
    };
    let exact = selector.get("matchLabels").and_then(Value::as_object);
    let has = |key: &str, value: &Value| labels.get(key).map(String::as_str) == value.as_str();
    let exact = exact
        .into_iter()
        .flatten()
        .all(|(key, value)| has(key, value));
    let terms = selector.get("matchExpressions").and_then(Value::as_array);
    exact && terms.into_iter().flatten().all(|term| holds(term, labels))
}

fn holds(term: &Value, labels: &BTreeMap<String, String>) -> bool {
    let label = labels.get(term["key"].as_str().unwrap_or_default());
    let values = term["values"].as_array();
    let is_among = |label: &String| {
        let mut values = values.into_iter().flatten();
        values.any(|value| value.as_str() == Some(label))
    };
    match term["operator"].as_str() {
        Some("In") => label.is_some_and(is_among),
        Some("NotIn") => !label.is_some_and(is_among),
        Some("Exists") => label.is_some(),
        Some("DoesNotExist") => label.is_none(),
        // An unknown operator matches nothing.
        _ => false,
    }
}
