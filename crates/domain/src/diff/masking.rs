//! Keeps secret values out of everything that is shown or written down.
//!
//! A value is replaced by `<secret N>`; equal values get the same number in the
//! whole run, so a reviewer sees that a value changed and where it went, and
//! nothing else: not its length, not its text. Values are told apart by a keyed
//! digest whose key lives as long as the run.

use std::collections::BTreeMap;
use std::fmt::{self, Write as _};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::Value;

use super::fields::FieldChange;
use crate::object::{Digest, DigestKey, FieldPath, KeyValue, PathSegment, annotations};

/// Shorter texts are not looked for in messages: they would be found everywhere.
const SHORTEST_IN_TEXT: usize = 4;

/// Which parts of an object are secret.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Secrecy {
    /// Nothing but the last-applied annotation, which may hold anything.
    Open,
    /// `data` and `stringData`: kind Secret.
    Data,
    /// Every value outside of the object's name, namespace and labels: another
    /// kind with a secret field, of which nobody says which one it is.
    Everything,
}

impl Secrecy {
    /// What is secret in an object of a kind; `marked` is
    /// [`Manifest::is_secret`](crate::object::Manifest::is_secret).
    pub fn of(group: &str, kind: &str, marked: bool) -> Self {
        if group.is_empty() && kind == "Secret" {
            Self::Data
        } else if marked {
            Self::Everything
        } else {
            Self::Open
        }
    }
}

/// Replaces secret values, and remembers them for as long as it lives.
pub struct Masker {
    key: DigestKey,
    numbers: BTreeMap<Digest, usize>,
    /// What to look for in texts, and its number.
    known: BTreeMap<String, usize>,
}

impl fmt::Debug for Masker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Masker")
            .field("values", &self.numbers.len())
            .finish_non_exhaustive()
    }
}

impl Masker {
    /// Starts a run; the key must be random and never be stored.
    pub fn new(key: DigestKey) -> Self {
        Self {
            key,
            numbers: BTreeMap::new(),
            known: BTreeMap::new(),
        }
    }

    /// Masks one object, or one side of a comparison.
    #[must_use]
    pub fn object(&mut self, object: &Value, secrecy: Secrecy) -> Value {
        let mut masked = object.clone();
        self.walk(&FieldPath::default(), &mut masked, None, secrecy);
        masked
    }

    /// Masks both sides of a comparison; what changed in place says so.
    #[must_use]
    pub fn pair(&mut self, old: &Value, new: &Value, secrecy: Secrecy) -> (Value, Value) {
        let mut masked = new.clone();
        let old_masked = self.object(old, secrecy);
        self.walk(&FieldPath::default(), &mut masked, Some(old), secrecy);
        (old_masked, masked)
    }

    /// Masks field changes, their paths too where these hold values.
    pub fn changes(&mut self, changes: &mut [FieldChange], secrecy: Secrecy) {
        for change in changes {
            let old = change.old.clone();
            if let Some(value) = &mut change.old {
                self.walk(&change.path, value, None, secrecy);
            }
            if let Some(value) = &mut change.new {
                self.walk(&change.path, value, old.as_ref(), secrecy);
            }
            self.path(&mut change.path, secrecy);
        }
    }

    /// Keys of list items are values too.
    fn path(&mut self, path: &mut FieldPath, secrecy: Secrecy) {
        let mut place = FieldPath::default();
        for segment in &mut path.0 {
            let below = place.join(segment.clone());
            if secret_at(&below, &Value::String(String::new()), secrecy).is_some() {
                self.segment(segment);
            }
            place = below;
        }
    }

    fn segment(&mut self, segment: &mut PathSegment) {
        let values: Vec<&mut KeyValue> = match segment {
            PathSegment::Item(value) => vec![value],
            PathSegment::Select(keys) => keys.iter_mut().map(|(_, value)| value).collect(),
            PathSegment::Key(_) | PathSegment::Index(_) => Vec::new(),
        };
        for value in values {
            if let KeyValue::Text(text) = value {
                *text = format!("<secret {}>", self.number(text));
            }
        }
    }

    /// Replaces every known secret in a text, such as a message of the server.
    /// Values of less than four characters are not looked for.
    #[must_use]
    pub fn text(&self, text: &str) -> String {
        let mut known: Vec<(&String, &usize)> = self.known.iter().collect();
        // The longest first: one secret may be the beginning of another.
        known.sort_by_key(|(secret, _)| std::cmp::Reverse(secret.len()));
        let mut masked = String::with_capacity(text.len());
        let mut rest = text;
        while let Some(next) = rest.chars().next() {
            let found = known
                .iter()
                .find_map(|(secret, number)| Some((rest.strip_prefix(secret.as_str())?, number)));
            if let Some((after, number)) = found {
                // Writing to a String cannot fail.
                let _ = write!(masked, "<secret {number}>");
                rest = after;
            } else {
                masked.push(next);
                rest = &rest[next.len_utf8()..];
            }
        }
        masked
    }

    /// Takes note of a secret value without masking anything.
    pub fn learn(&mut self, secret: &str) {
        self.number(secret);
    }

    fn walk(&mut self, path: &FieldPath, value: &mut Value, old: Option<&Value>, secrecy: Secrecy) {
        match value {
            Value::Object(map) => {
                for (key, child) in map {
                    let old = old.and_then(|old| old.as_object()?.get(key));
                    self.walk(&path.key(key), child, old, secrecy);
                }
            }
            Value::Array(items) => {
                let paired = old
                    .and_then(Value::as_array)
                    .filter(|old| old.len() == items.len());
                for (index, child) in items.iter_mut().enumerate() {
                    let step = PathSegment::Index(index);
                    let old = paired.and_then(|items| items.get(index));
                    self.walk(&path.join(step), child, old, secrecy);
                }
            }
            scalar => {
                if let Some(coding) = secret_at(path, scalar, secrecy) {
                    self.scalar(scalar, old, coding);
                }
            }
        }
    }

    fn scalar(&mut self, value: &mut Value, old: Option<&Value>, coding: Coding) {
        let changed = old.is_some_and(|old| old != value);
        let text = text_of(value);
        let number = match coding {
            Coding::Plain => self.number(&text),
            Coding::Base64 => self.encoded(&text),
        };
        *value = Value::String(if changed {
            format!("<secret {number}, changed>")
        } else {
            format!("<secret {number}>")
        });
    }

    /// The number of what is encoded, so that `data` and `stringData` agree.
    fn encoded(&mut self, text: &str) -> usize {
        let Ok(bytes) = STANDARD.decode(text) else {
            return self.number(text);
        };
        let number = self.number_of(&bytes);
        self.remember(text, number);
        if let Ok(decoded) = String::from_utf8(bytes) {
            self.remember(&decoded, number);
        }
        number
    }

    fn number(&mut self, text: &str) -> usize {
        let number = self.number_of(text.as_bytes());
        self.remember(text, number);
        self.remember(&STANDARD.encode(text), number);
        number
    }

    fn number_of(&mut self, bytes: &[u8]) -> usize {
        let next = self.numbers.len() + 1;
        *self
            .numbers
            .entry(Digest::keyed(&self.key, bytes))
            .or_insert(next)
    }

    fn remember(&mut self, text: &str, number: usize) {
        // Also line by line: texts are shown in lines.
        for part in std::iter::once(text.trim()).chain(text.lines().map(str::trim)) {
            if part.chars().count() >= SHORTEST_IN_TEXT {
                self.known.entry(part.to_owned()).or_insert(number);
            }
        }
    }
}

/// How a secret value is written.
#[derive(Clone, Copy)]
enum Coding {
    Plain,
    Base64,
}

fn text_of(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

/// Whether the scalar at a path is secret.
fn secret_at(path: &FieldPath, value: &Value, secrecy: Secrecy) -> Option<Coding> {
    let key = |index: usize| match path.0.get(index) {
        Some(PathSegment::Key(key)) => key.as_str(),
        _ => "",
    };
    if key(0) == "metadata" && key(1) == "annotations" && key(2) == annotations::LAST_APPLIED {
        return Some(Coding::Plain);
    }
    match secrecy {
        Secrecy::Open => None,
        Secrecy::Data => match key(0) {
            "data" => Some(Coding::Base64),
            "stringData" => Some(Coding::Plain),
            _ => None,
        },
        Secrecy::Everything => {
            let named = match key(0) {
                "apiVersion" | "kind" => path.0.len() == 1,
                "metadata" => matches!(key(1), "name" | "namespace" | "labels"),
                _ => false,
            };
            // Neither tells a value.
            let silent = value.is_null() || value.is_boolean();
            (!named && !silent).then_some(Coding::Plain)
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use rstest::rstest;
    use serde_json::json;

    use super::super::fields::{Scope, compare};
    use super::super::ownership::FieldSet;
    use super::*;

    fn masker() -> Masker {
        Masker::new(DigestKey::new(b"a key of the test".to_vec()))
    }

    fn secret(data: &Value) -> Value {
        json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "db"}, "type": "Opaque", "data": data})
    }

    #[test]
    fn equal_values_have_equal_numbers_wherever_they_are() {
        let mut masker = masker();
        let object = json!({"data": {"a": STANDARD.encode("hunter2"), "b": STANDARD.encode("other")},
            "stringData": {"c": "hunter2"}, "type": "Opaque"});
        assert_eq!(
            masker.object(&object, Secrecy::Data),
            json!({"data": {"a": "<secret 1>", "b": "<secret 2>"}, "stringData": {"c": "<secret 1>"}, "type": "Opaque"})
        );
        assert_eq!(
            masker.object(
                &secret(&json!({"x": STANDARD.encode("other")})),
                Secrecy::Data
            )["data"],
            json!({"x": "<secret 2>"})
        );
    }

    #[test]
    fn what_changes_in_place_says_so() {
        let old = secret(&json!({"a": "MQ==", "b": "Mg==", "gone": "Mw=="}));
        let new = secret(&json!({"a": "MQ==", "b": "Mw==", "moved": "Mw=="}));
        let (old_masked, new_masked) = masker().pair(&old, &new, Secrecy::Data);
        assert_eq!(
            old_masked["data"],
            json!({"a": "<secret 1>", "b": "<secret 2>", "gone": "<secret 3>"})
        );
        assert_eq!(
            new_masked["data"],
            json!({"a": "<secret 1>", "b": "<secret 3, changed>", "moved": "<secret 3>"})
        );
    }

    #[test]
    fn changes_of_fields_are_masked_at_any_depth() {
        let mut masker = masker();
        let old = secret(&json!({"a": "MQ=="}));
        let new = secret(&json!({"a": "Mg=="}));
        let mut changes = compare(&old, &new, &FieldSet::default(), Scope::All).changes;
        let whole = FieldChange {
            path: FieldPath::default().key("data"),
            old: None,
            new: Some(json!({"a": "Mg=="})),
        };
        changes.push(whole);
        masker.changes(&mut changes, Secrecy::Data);
        assert_eq!(changes[0].old, Some(json!("<secret 1>")));
        assert_eq!(changes[0].new, Some(json!("<secret 2, changed>")));
        assert_eq!(changes[1].new, Some(json!({"a": "<secret 2>"})));
    }

    #[test]
    fn the_last_applied_annotation_is_masked_in_every_kind() {
        let object = json!({"kind": "ConfigMap", "metadata": {"annotations": {
            "kubectl.kubernetes.io/last-applied-configuration": "{\"data\":{}}", "team": "web"}}});
        assert_eq!(
            masker().object(&object, Secrecy::Open)["metadata"]["annotations"],
            json!({"kubectl.kubernetes.io/last-applied-configuration": "<secret 1>", "team": "web"})
        );
    }

    #[test]
    fn messages_lose_what_is_known() {
        let mut masker = masker();
        let object = secret(
            &json!({"a": STANDARD.encode("hunter2-and-more"), "b": STANDARD.encode("hunter2")}),
        );
        assert_eq!(
            masker.object(&object, Secrecy::Data)["data"]["a"],
            "<secret 1>"
        );
        assert_eq!(
            masker.text(&format!(
                "invalid value hunter2-and-more, hunter2 ({})",
                STANDARD.encode("hunter2")
            )),
            "invalid value <secret 1>, <secret 2> (<secret 2>)"
        );
        masker.learn("line one\nline two");
        assert_eq!(masker.text("+ line two"), "+ <secret 3>");
        assert!(!format!("{masker:?}").contains("hunter2"));
    }

    #[rstest]
    #[case("", "Secret", false, Secrecy::Data)]
    #[case("", "ConfigMap", false, Secrecy::Open)]
    #[case("", "ConfigMap", true, Secrecy::Everything)]
    #[case("example.org", "Secret", false, Secrecy::Open)]
    fn secrecy_follows_the_kind(
        #[case] group: &str,
        #[case] kind: &str,
        #[case] marked: bool,
        #[case] expected: Secrecy,
    ) {
        assert_eq!(Secrecy::of(group, kind, marked), expected);
    }

    const PLANTED: &str = "planted-5ecret";

    /// An object with the planted value in some places, plain and encoded.
    fn any_object() -> impl Strategy<Value = Value> {
        let scalar = prop_oneof![
            Just(json!(PLANTED)),
            Just(json!(STANDARD.encode(PLANTED))),
            Just(json!(format!("--password={PLANTED}"))),
            "[a-c]".prop_map(Value::from),
            (0..3).prop_map(Value::from),
            Just(json!(null)),
        ];
        scalar.prop_recursive(3, 20, 3, |inner| {
            prop_oneof![
                proptest::collection::btree_map("[a-c]|name|env", inner.clone(), 0..4)
                    .prop_map(|map| Value::Object(map.into_iter().collect())),
                proptest::collection::vec(inner.clone(), 0..3).prop_map(Value::from),
                inner.prop_map(|item| json!({"env": [{"name": item}], "finalizers": [PLANTED]})),
            ]
        })
    }

    proptest! {
        #[test]
        fn no_planted_value_gets_out(old in any_object(), new in any_object(), in_data in any::<bool>()) {
            let (wrap, secrecy): (fn(&Value) -> Value, _) = if in_data {
                (|value| json!({"kind": "Secret", "data": value, "stringData": {"x": value}}), Secrecy::Data)
            } else {
                (|value| json!({"kind": "Widget", "metadata": {"annotations": {"a": value}}, "spec": value}), Secrecy::Everything)
            };
            let (old, new) = (wrap(&old), wrap(&new));
            let mut masker = masker();
            let (old_masked, new_masked) = masker.pair(&old, &new, secrecy);
            let mut changes = compare(&old, &new, &FieldSet::default(), Scope::All).changes;
            masker.changes(&mut changes, secrecy);
            let mut out = format!("{old_masked}{new_masked}");
            for change in &changes {
                write!(out, "{} {:?} {:?}", change.path, change.old, change.new).unwrap();
            }
            prop_assert!(!out.contains(PLANTED), "{}", out);
            prop_assert!(!out.contains(&STANDARD.encode(PLANTED)), "{}", out);
        }

        #[test]
        fn texts_hide_what_was_learned(before in ".{0,8}", after in ".{0,8}", secret in "[a-zA-Z0-9+/]{4,20}") {
            let mut masker = masker();
            masker.learn(&secret);
            prop_assert_eq!(masker.text(&secret), "<secret 1>");
            let text = format!("{before}\n{secret}\n{after}");
            prop_assert!(!masker.text(&text).replace("<secret 1>", "").contains(&secret));
        }
    }
}
