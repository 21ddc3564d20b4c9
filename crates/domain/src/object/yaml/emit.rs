//! From JSON values to text.

use serde_json::Value;

/// Writes one value as a document that any YAML reader takes for the same
/// value: what looks like a YAML 1.1 boolean or number is quoted. Ends with a
/// line break.
pub fn emit(value: &Value) -> String {
    let _ = value;
    String::new()
}

/// Writes several values as one stream, with `---` before each document.
pub fn emit_all<'a>(values: impl IntoIterator<Item = &'a Value>) -> String {
    values
        .into_iter()
        .map(|value| format!("---\n{}", emit(value)))
        .collect()
}
