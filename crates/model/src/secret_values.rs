//! Values that `values.schema.json` marks `writeOnly`. They are secret wherever they are used.
//!
//! Templates can embed a value anywhere in any form. Rendered text is searched for the plain value,
//! as part of a string, escaped, and in base64. A hash of a value is not found, but does not reveal
//! the value.

use std::collections::{BTreeSet, HashSet};
use std::fmt;

use base64::Engine as _;
use base64::alphabet;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// Minimum length for a search within strings. Shorter values would match by accident. They are
/// only compared with whole strings.
const SHORTEST_PART: usize = 4;

/// Minimum length of a line of a multi-line value. Shorter lines are not searched separately.
const SHORTEST_LINE: usize = 8;

/// Maximum nesting depth of base64 within base64.
const LAYERS: usize = 2;

const LENIENT: GeneralPurposeConfig = GeneralPurposeConfig::new()
    .with_decode_padding_mode(DecodePaddingMode::Indifferent)
    .with_decode_allow_trailing_bits(true);
const STANDARD: GeneralPurpose = GeneralPurpose::new(&alphabet::STANDARD, LENIENT);
const URL_SAFE: GeneralPurpose = GeneralPurpose::new(&alphabet::URL_SAFE, LENIENT);

/// A set of values that must not be shown.
#[derive(Clone, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SecretValues {
    /// Texts that are searched within strings.
    parts: BTreeSet<String>,
    /// Texts that are compared with whole strings.
    wholes: BTreeSet<String>,
}

impl fmt::Debug for SecretValues {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SecretValues")
            .field("count", &self.wholes.len())
            .finish_non_exhaustive()
    }
}

impl SecretValues {
    /// Returns the values that a JSON Schema marks `writeOnly`, including their descendants.
    ///
    /// Conditions in the schema (`anyOf`, `if`) are not evaluated. A mark in any branch counts.
    pub fn of(schema: &Value, values: &Value) -> Self {
        let mut secrets = Self::default();
        secrets.add_all(marked(schema, values));
        secrets
    }

    /// Returns all scalars in a value.
    pub fn all_of(values: &Value) -> Self {
        let mut secrets = Self::default();
        secrets.add_all(vec![values]);
        secrets
    }

    /// Returns whether the set is empty.
    pub fn is_empty(&self) -> bool {
        self.wholes.is_empty()
    }

    /// Returns the values themselves, to search for them. Never show them.
    pub fn texts(&self) -> impl Iterator<Item = &str> {
        self.wholes.iter().map(String::as_str)
    }

    /// Adds the values of another set.
    pub fn extend(&mut self, others: &Self) {
        self.parts.extend(others.parts.iter().cloned());
        self.wholes.extend(others.wholes.iter().cloned());
    }

    /// Returns whether a text is or contains one of the values. Values with fewer than four
    /// characters only count if they are the whole text.
    pub fn are_in(&self, text: &str) -> bool {
        if self.is_empty() || text.is_empty() {
            return false;
        }
        self.wholes.contains(text)
            || decoded(&STANDARD, text).is_some_and(|text| self.wholes.contains(&text))
            || self.are_part_of(text)
    }

    /// Returns whether a text is or contains one of the values, possibly escaped or line by line.
    ///
    /// Base64 in the text is not decoded. Use [`unpacked`] for that.
    pub fn are_plainly_in(&self, text: &str) -> bool {
        self.wholes.contains(text) || self.parts.iter().any(|part| text.contains(part.as_str()))
    }

    /// Returns whether a text contains a value that is long enough for a search within strings.
    pub fn are_part_of(&self, text: &str) -> bool {
        !self.parts.is_empty() && self.packed_in(text, LAYERS)
    }

    fn packed_in(&self, text: &str, layers: usize) -> bool {
        if self.parts.iter().any(|part| text.contains(part.as_str())) {
            return true;
        }
        layers > 0
            && packed(text)
                .iter()
                .any(|inner| self.packed_in(inner, layers - 1))
    }

    /// Adds values and their descendants. Each one is visited once.
    fn add_all(&mut self, mut open: Vec<&Value>) {
        let mut seen = HashSet::new();
        while let Some(value) = open.pop() {
            if !seen.insert(address(value)) {
                continue;
            }
            match value {
                Value::Object(map) => open.extend(map.values()),
                Value::Array(items) => open.extend(items),
                // Null and Booleans carry no secret.
                Value::Null | Value::Bool(_) => {}
                Value::Number(number) => self.add(number.to_string()),
                Value::String(text) => self.add(text.clone()),
            }
        }
    }

    fn add(&mut self, text: String) {
        let trimmed = text.trim();
        if trimmed.is_empty() {
            return;
        }
        if trimmed.chars().count() >= SHORTEST_PART {
            self.parts.insert(trimmed.to_owned());
            // Form within a quoted string of JSON or YAML.
            let quoted = Value::from(trimmed).to_string();
            self.parts.insert(quoted[1..quoted.len() - 1].to_owned());
        }
        // Templates indent the lines of a multi-line value.
        if trimmed.contains('\n') {
            let lines = trimmed.lines().map(str::trim);
            self.parts.extend(
                lines
                    .filter(|line| line.chars().count() >= SHORTEST_LINE)
                    .filter(|line| !line.starts_with("-----"))
                    .map(str::to_owned),
            );
        }
        self.wholes.insert(trimmed.to_owned());
        self.wholes.insert(text);
    }
}

/// Returns a text and the decoded content of all base64 in it.
pub fn unpacked(text: &str) -> BTreeSet<String> {
    let mut found = BTreeSet::from([text.to_owned()]);
    let mut outer = vec![text.to_owned()];
    for _ in 0..LAYERS {
        outer = outer.iter().flat_map(|text| packed(text)).collect();
        found.extend(outer.iter().cloned());
    }
    found
}

/// Decodes all parts of a text that are possibly base64.
fn packed(text: &str) -> Vec<String> {
    let is_base64 = |c: char| c.is_ascii_alphanumeric() || matches!(c, '+' | '/' | '-' | '_' | '=');
    // Line breaks within base64 are ignored.
    let joined: String = text.chars().filter(|c| !matches!(c, '\n' | '\r')).collect();
    text.split(|c| !is_base64(c))
        .chain([joined.as_str()])
        .filter(|run| run.len() >= SHORTEST_PART)
        .flat_map(|run| [decoded(&STANDARD, run), decoded(&URL_SAFE, run)])
        .flatten()
        .collect()
}

fn decoded(engine: &GeneralPurpose, text: &str) -> Option<String> {
    let bytes = engine.decode(text).ok()?;
    Some(String::from_utf8_lossy(&bytes).into_owned())
}

/// Returns the identity of a value, to distinguish equal values.
fn address(value: &Value) -> usize {
    std::ptr::from_ref(value).addr()
}

/// Returns the values that a schema marks.
fn marked<'a>(schema: &'a Value, values: &'a Value) -> Vec<&'a Value> {
    let mut walk = Walk {
        root: schema,
        seen: HashSet::new(),
        open: Vec::new(),
    };
    walk.visit(schema, values);
    let mut marked = Vec::new();
    while let Some((keywords, value)) = walk.open.pop() {
        if keywords.get("writeOnly") == Some(&Value::Bool(true)) {
            marked.push(value);
        }
        walk.follow(keywords, value);
    }
    marked
}

/// Worklist of schemas with their values. Each pair is visited once, because schemas can be
/// recursive and of any depth.
struct Walk<'a> {
    root: &'a Value,
    seen: HashSet<(usize, usize)>,
    open: Vec<(&'a Map<String, Value>, &'a Value)>,
}

impl<'a> Walk<'a> {
    fn visit(&mut self, schema: &'a Value, value: &'a Value) {
        let Value::Object(keywords) = schema else {
            return;
        };
        if self.seen.insert((address(schema), address(value))) {
            self.open.push((keywords, value));
        }
    }

    /// Adds the subschemas of a schema with their values.
    fn follow(&mut self, keywords: &'a Map<String, Value>, value: &'a Value) {
        for (keyword, part) in keywords {
            match keyword.as_str() {
                "$ref" => {
                    let root = self.root;
                    let pointer = part.as_str().and_then(|text| text.strip_prefix('#'));
                    if let Some(target) = pointer.and_then(|at| root.pointer(at)) {
                        self.visit(target, value);
                    }
                }
                "allOf" | "anyOf" | "oneOf" => {
                    for one in part.as_array().into_iter().flatten() {
                        self.visit(one, value);
                    }
                }
                "if" | "then" | "else" => self.visit(part, value),
                "dependentSchemas" => {
                    for (_, one) in part.as_object().into_iter().flatten() {
                        self.visit(one, value);
                    }
                }
                "properties" => {
                    for (key, schema) in part.as_object().into_iter().flatten() {
                        if let Some(child) = value.get(key) {
                            self.visit(schema, child);
                        }
                    }
                }
                // Patterns are not evaluated. Each of them counts for all keys.
                "patternProperties" => {
                    for (_, schema) in part.as_object().into_iter().flatten() {
                        self.children(schema, value, None);
                    }
                }
                "additionalProperties" | "unevaluatedProperties" => {
                    self.children(part, value, keywords.get("properties"));
                }
                "items" | "prefixItems" | "additionalItems" | "contains" | "unevaluatedItems" => {
                    let schemas = match part {
                        Value::Array(schemas) => schemas.as_slice(),
                        one => std::slice::from_ref(one),
                    };
                    for schema in schemas {
                        for item in value.as_array().into_iter().flatten() {
                            self.visit(schema, item);
                        }
                    }
                }
                _ => {}
            }
        }
    }

    /// Adds a schema for the keys of a map that have no schema of their own.
    fn children(&mut self, schema: &'a Value, value: &'a Value, named: Option<&Value>) {
        for (key, child) in value.as_object().into_iter().flatten() {
            if named.is_none_or(|named| named.get(key).is_none()) {
                self.visit(schema, child);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use base64::engine::general_purpose::STANDARD as PLAIN;
    use rstest::rstest;
    use serde_json::json;

    use super::*;

    #[rstest]
    #[case::property(json!({"properties": {"a": {"writeOnly": true}}}), &["in a"])]
    #[case::below(json!({"properties": {"m": {"writeOnly": true}}}), &["in m", "in m l", "12345"])]
    #[case::reference(json!({"$defs": {"s": {"writeOnly": true}}, "properties": {"a": {"$ref": "#/$defs/s"}}}), &["in a"])]
    #[case::itself(json!({"$ref": "#"}), &[])]
    #[case::items(json!({"properties": {"m": {"properties": {"l": {"items": {"writeOnly": true}}}}}}), &["in m l", "12345"])]
    #[case::other_keys(json!({"properties": {"a": {}}, "additionalProperties": {"writeOnly": true}}), &["in m", "in m l", "12345", "open"])]
    #[case::alternatives(json!({"anyOf": [{"required": ["x"], "properties": {"a": {"writeOnly": true}}}]}), &["in a"])]
    #[case::not_marked(json!({"properties": {"a": {"writeOnly": false, "readOnly": true}}}), &[])]
    #[case::no_schema(json!(true), &[])]
    fn marked_values_are_found(#[case] schema: Value, #[case] expected: &[&str]) {
        let values = json!({"a": "in a", "m": {"k": "in m", "l": ["in m l", 12345, true, null]}, "b": "open"});
        let secrets = SecretValues::of(&schema, &values);
        for text in ["in a", "in m", "in m l", "12345", "open"] {
            assert_eq!(secrets.are_in(text), expected.contains(&text), "{text}");
        }
        assert_eq!(secrets.is_empty(), expected.is_empty());
    }

    #[test]
    fn a_value_is_found_below_any_number_of_schemas() {
        let (mut schema, mut values) = (json!({"writeOnly": true}), json!("hunter2"));
        for _ in 0..100 {
            schema = json!({"properties": {"a": schema}});
            values = json!({"a": values});
        }
        assert!(SecretValues::of(&schema, &values).are_in("hunter2"));
    }

    #[test]
    fn a_schema_may_refer_to_itself_any_number_of_times() {
        let itself = json!({"$ref": "#"});
        let schema = json!({
            "allOf": vec![itself.clone(); 8],
            "properties": {"next": itself, "a": {"writeOnly": true}},
        });
        let mut values = json!({"a": "hunter2"});
        for _ in 0..50 {
            values = json!({"next": values, "a": "x"});
        }
        let secrets = SecretValues::of(&schema, &values);
        assert!(secrets.are_in("hunter2") && secrets.are_in("x"));
    }

    fn secrets(values: &Value) -> SecretValues {
        SecretValues::of(&json!({"writeOnly": true}), values)
    }

    #[test]
    fn a_value_is_found_however_it_is_wrapped() {
        let secrets = secrets(&json!(["pa\"ss/wörd", "first line\n  second line\n"]));
        let base64 = PLAIN.encode("user:pa\"ss/wörd");
        for text in [
            "pa\"ss/wörd",
            "url=postgres://u:pa\"ss/wörd@db",
            r#"{"p": "pa\"ss/wörd"}"#,
            &PLAIN.encode("pa\"ss/wörd"),
            &base64,
            &format!("Authorization: Basic {base64}"),
            &PLAIN.encode(&base64),
            &base64.replace('=', ""),
            &format!("{}\n{}", &base64[..8], &base64[8..]),
            "    first line\n    second line\n",
        ] {
            assert!(secrets.are_in(text), "{text}");
        }
        for text in ["", "word", "pa", &PLAIN.encode("user")] {
            assert!(!secrets.are_in(text), "{text}");
        }
        assert!(!format!("{secrets:?}").contains("line"));
    }

    #[test]
    fn encoded_values_are_decoded() {
        let auth = PLAIN.encode("user:hunter22");
        let text = format!(r#"{{"auths": {{"a.org": {{"auth": "{auth}"}}}}}}"#);
        let found = unpacked(&PLAIN.encode(&text));
        assert!(found.contains(&text), "{found:?}");
        assert!(found.contains("user:hunter22"), "{found:?}");
        let secrets = SecretValues::all_of(&json!({"a": "hunter22", "b": "x\ny\"z"}));
        assert!(secrets.are_plainly_in("user:hunter22"));
        assert!(secrets.are_plainly_in(r#"{"b": "x\ny\"z"}"#));
        assert!(!secrets.are_plainly_in(&text));
    }

    #[test]
    fn short_values_count_as_a_whole() {
        let secrets = secrets(&json!(["abc", ""]));
        assert!(secrets.are_in("abc") && secrets.are_in(&PLAIN.encode("abc")));
        assert!(!secrets.are_in("abcd") && !secrets.are_part_of("abc"));
        assert!(!secrets.are_in(""));
    }
}
