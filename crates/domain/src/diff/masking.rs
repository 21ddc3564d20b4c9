//! Keeps secret values out of everything that is shown or written down.
//!
//! A value is replaced by `<secret N>`; equal values get the same number in the
//! whole run, so a reviewer sees that a value changed and where it went, and
//! nothing else: not its length, not its text. Values are told apart by a keyed
//! digest whose key lives as long as the run.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt::{self, Write as _};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::Value;

use super::fields::FieldChange;
use super::locate;
use crate::object::{
    Coding, Digest, DigestKey, FieldPath, Hidden, KeyValue, PathSegment, Secrecy, from_base64,
};
use crate::values::SecretValues;

/// Shorter texts are not looked for in messages: they would be found everywhere.
const SHORTEST_IN_TEXT: usize = 4;

/// Replaces secret values, and remembers them for as long as it lives.
pub struct Masker {
    key: DigestKey,
    numbers: BTreeMap<Digest, usize>,
    /// How many numbers were given.
    count: usize,
    /// What to look for in texts, and its number.
    known: BTreeMap<String, usize>,
    /// Values that are secret wherever they are.
    guarded: SecretValues,
}

impl fmt::Debug for Masker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Masker")
            .field("values", &self.count)
            .finish_non_exhaustive()
    }
}

impl Masker {
    /// Starts a run; the key must be random and never be stored.
    pub fn new(key: DigestKey) -> Self {
        Self {
            key,
            numbers: BTreeMap::new(),
            count: 0,
            known: BTreeMap::new(),
            guarded: SecretValues::default(),
        }
    }

    /// Hides these values wherever they are, also where nobody said that the
    /// field is secret.
    pub fn guard(&mut self, values: &SecretValues) {
        self.guarded.extend(values);
    }

    /// Whether there are values that it hides wherever they are.
    pub fn guards(&self) -> bool {
        !self.guarded.is_empty()
    }

    /// Masks one object, or one side of a comparison.
    #[must_use]
    pub fn object(&mut self, mut object: Value, secrecy: &Secrecy) -> Value {
        self.walk(&mut object, &secrecy.root(), None, None);
        object
    }

    /// Masks both sides of a comparison; what changed in place says so.
    ///
    /// What the old side holds beside a secret and the new one does not is
    /// taken for secret: only what is wanted now says what is secret.
    #[must_use]
    pub fn pair(&mut self, old: &Value, new: &Value, secrecy: &Secrecy) -> (Value, Value) {
        let (mut old_masked, mut masked) = (old.clone(), new.clone());
        self.walk(&mut old_masked, &secrecy.root(), None, Some(new));
        self.walk(&mut masked, &secrecy.root(), Some(old), None);
        (old_masked, masked)
    }

    /// Masks field changes, their paths too where these hold values. `new` is
    /// the object as it will be, unmasked.
    pub fn changes(&mut self, changes: &mut [FieldChange], new: &Value, secrecy: &Secrecy) {
        for change in changes {
            let old = change.old.clone();
            let mut hidden = secrecy.root();
            let mut like = Some(new);
            for segment in &change.path.0 {
                let below = hidden.step(segment);
                let next = like.and_then(|like| locate::step(like, segment));
                // Beside a secret, and gone: as in the whole object.
                let went = next.is_none() && like.is_some() && hidden.has_secret_neighbors();
                hidden = if went && change.new.is_none() {
                    below.secret()
                } else {
                    below
                };
                like = next;
            }
            if let Some(value) = &mut change.old {
                self.walk(value, &hidden, None, like);
            }
            if let Some(value) = &mut change.new {
                self.walk(value, &hidden, old.as_ref(), None);
            }
            self.path(&mut change.path, secrecy);
        }
    }

    /// Keys of list items are values too.
    fn path(&mut self, path: &mut FieldPath, secrecy: &Secrecy) {
        let mut hidden = secrecy.root();
        for segment in &mut path.0 {
            let below = hidden.step(segment);
            let guarded = match &*segment {
                PathSegment::Item(value) => vec![value],
                PathSegment::Select(keys) => keys.iter().map(|(_, value)| value).collect(),
                PathSegment::Key(_) | PathSegment::Index(_) => Vec::new(),
            }
            .into_iter()
            .any(|value| matches!(value, KeyValue::Text(text) if self.guarded.are_part_of(text)));
            hidden = below;
            if hidden.secret.is_some() || guarded {
                self.segment(segment);
            }
        }
    }

    fn segment(&mut self, segment: &mut PathSegment) {
        let values: Vec<&mut KeyValue> = match segment {
            PathSegment::Item(value) => vec![value],
            PathSegment::Select(keys) => keys.iter_mut().map(|(_, value)| value).collect(),
            PathSegment::Key(_) | PathSegment::Index(_) => Vec::new(),
        };
        for value in values {
            let number = match &*value {
                KeyValue::Text(text) => self.number(text),
                KeyValue::Int(number) => self.number(&number.to_string()),
                KeyValue::Bool(_) => continue,
            };
            *value = KeyValue::Text(format!("<secret {number}>"));
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

    /// `old` is what stood here before; `like` is the other side of what may
    /// hold more than we know to be secret.
    fn walk(
        &mut self,
        value: &mut Value,
        hidden: &Hidden<'_>,
        old: Option<&Value>,
        like: Option<&Value>,
    ) {
        match value {
            Value::Object(map) => {
                let others = like.and_then(Value::as_object);
                for (key, child) in map {
                    let old = old.and_then(|old| old.as_object()?.get(key));
                    let like = others.and_then(|others| others.get(key));
                    let mut below = hidden.key(key);
                    if others.is_some() && like.is_none() && hidden.has_secret_neighbors() {
                        below = below.secret();
                    }
                    self.walk(child, &below, old, like);
                }
            }
            Value::Array(items) => {
                let paired = old
                    .and_then(Value::as_array)
                    .filter(|old| old.len() == items.len());
                let others = like.and_then(Value::as_array);
                for (index, child) in items.iter_mut().enumerate() {
                    let old = paired.and_then(|items| items.get(index));
                    let like = others.and_then(|others| hidden.counterpart(child, others));
                    let mut below = hidden.item(child);
                    if others.is_some() && like.is_none() && hidden.has_secret_neighbors() {
                        below = below.secret();
                    }
                    self.walk(child, &below, old, like);
                }
            }
            Value::Null => {}
            scalar => {
                if let Some(coding) = hidden.secret {
                    self.scalar(scalar, old, coding);
                } else if self.guarded.are_part_of(&text_of(scalar)) {
                    self.scalar(scalar, old, Coding::Plain);
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
        let Some(bytes) = from_base64(text) else {
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
        // The same value in base64 has the same number, whichever came first.
        let encoded = STANDARD.encode(text);
        let decoded = from_base64(text).filter(|bytes| !bytes.is_empty());
        let forms = [Some(encoded.as_bytes()), decoded.as_deref()];
        let known = forms
            .into_iter()
            .flatten()
            .find_map(|form| self.numbers.get(&Digest::keyed(&self.key, form)).copied());
        let digest = Digest::keyed(&self.key, text.as_bytes());
        let number = match (self.numbers.get(&digest), known) {
            (Some(number), _) => *number,
            (None, Some(number)) => number,
            (None, None) => self.next_number(),
        };
        self.numbers.insert(digest, number);
        self.remember(text, number);
        self.remember(&encoded, number);
        number
    }

    fn next_number(&mut self) -> usize {
        self.count += 1;
        self.count
    }

    fn number_of(&mut self, bytes: &[u8]) -> usize {
        let digest = Digest::keyed(&self.key, bytes);
        if let Some(number) = self.numbers.get(&digest) {
            return *number;
        }
        let number = self.next_number();
        self.numbers.insert(digest, number);
        number
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

fn text_of(value: &Value) -> Cow<'_, str> {
    match value {
        Value::String(text) => Cow::Borrowed(text),
        other => Cow::Owned(other.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::super::fields::{Scope, compare};
    use super::super::ownership::FieldSet;
    use super::*;
    use crate::object::{ObjectId, SecretField};

    fn masker() -> Masker {
        Masker::new(DigestKey::new(b"a key of the test".to_vec()))
    }

    fn secret_kind() -> Secrecy {
        Secrecy::of(&ObjectId::new("", "Secret", Some("web"), "db"), &[])
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
            masker.object(object.clone(), &secret_kind()),
            json!({"data": {"a": "<secret 1>", "b": "<secret 2>"}, "stringData": {"c": "<secret 1>"}, "type": "Opaque"})
        );
        assert_eq!(
            masker.object(
                secret(&json!({"x": STANDARD.encode("other")})),
                &secret_kind()
            )["data"],
            json!({"x": "<secret 2>"})
        );
    }

    #[test]
    fn line_breaks_in_base64_change_nothing() {
        let mut masker = masker();
        let object = secret(&json!({"a": "aHVudGVyMg==", "b": "aHVu\ndGVyMg==\n"}));
        let masked = masker.object(object, &secret_kind());
        assert_eq!(
            masked["data"],
            json!({"a": "<secret 1>", "b": "<secret 1>"})
        );
        let mut masker = self::masker();
        let object = secret(&json!({"b": "aHVu\ndGVyMg==\n"}));
        assert_eq!(
            masker.object(object, &secret_kind())["data"]["b"],
            "<secret 1>"
        );
        assert_eq!(masker.text("it is hunter2"), "it is <secret 1>");
    }

    #[test]
    fn a_misspelled_field_of_a_secret_is_secret_too() {
        let object = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "a"}, "type": "Opaque",
            "immutable": true, "stringDate": {"a": "hunter2"}});
        let masked = masker().object(object.clone(), &secret_kind());
        assert_eq!(masked["stringDate"], json!({"a": "<secret 1>"}));
        assert_eq!(
            (&masked["type"], &masked["immutable"], &masked["metadata"]),
            (&json!("Opaque"), &json!(true), &object["metadata"])
        );
    }

    #[test]
    fn what_changes_in_place_says_so() {
        let old = secret(&json!({"a": "MQ==", "b": "Mg==", "gone": "Mw=="}));
        let new = secret(&json!({"a": "MQ==", "b": "Mw==", "moved": "Mw=="}));
        let (old_masked, new_masked) = masker().pair(&old, &new, &secret_kind());
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
        let mut changes = compare(&old, &new, &FieldSet::default(), Scope::All, None).changes;
        let whole = FieldChange {
            path: FieldPath::default().key("data"),
            old: None,
            new: Some(json!({"a": "Mg=="})),
            reordered: false,
            cause: None,
        };
        changes.push(whole);
        masker.changes(&mut changes, &new, &secret_kind());
        assert_eq!(changes[0].old, Some(json!("<secret 1>")));
        assert_eq!(changes[0].new, Some(json!("<secret 2, changed>")));
        assert_eq!(changes[1].new, Some(json!({"a": "<secret 2>"})));
    }

    #[test]
    fn the_last_applied_annotation_is_masked_in_every_kind() {
        let object = json!({"kind": "ConfigMap", "metadata": {"annotations": {
            "kubectl.kubernetes.io/last-applied-configuration": "{\"data\":{}}", "team": "web"}}});
        assert_eq!(
            masker().object(object.clone(), &Secrecy::default())["metadata"]["annotations"],
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
            masker.object(object.clone(), &secret_kind())["data"]["a"],
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

    #[test]
    fn fields_of_other_kinds_are_masked_where_they_are_named() {
        let fields: Vec<SecretField> = ["data.password", "spec.users[name=b].key"]
            .iter()
            .map(|text| text.parse().unwrap())
            .collect();
        let secrecy = Secrecy::of(&ObjectId::new("", "ConfigMap", Some("web"), "a"), &fields);
        let object = |password: &str, key: &str| {
            json!({"kind": "ConfigMap", "data": {"password": password, "user": "web"}, "spec": {"users": [
            {"name": "a", "key": "open"}, {"name": "b", "key": key}]}})
        };
        let mut masker = masker();
        let (old, new) = (object("one", "two"), object("three", "two"));
        let (old_masked, new_masked) = masker.pair(&old, &new, &secrecy);
        assert_eq!(old_masked, object("<secret 1>", "<secret 2>"));
        assert_eq!(new_masked, object("<secret 3, changed>", "<secret 2>"));
        let mut changes = compare(&old, &new, &FieldSet::default(), Scope::All, None).changes;
        masker.changes(&mut changes, &new, &secrecy);
        assert_eq!(changes.len(), 1);
        assert_eq!(changes[0].new, Some(json!("<secret 3, changed>")));
    }

    #[test]
    fn what_stood_beside_a_secret_and_is_gone_may_have_been_one() {
        let fields: Vec<SecretField> = ["data.password", "env[name=NEW].value"]
            .iter()
            .map(|text| text.parse().unwrap())
            .collect();
        let secrecy = Secrecy::of(&ObjectId::new("", "ConfigMap", Some("web"), "a"), &fields);
        let old = json!({"data": {"pass": "former", "user": "web"}, "env": [
            {"name": "OLD", "value": "former"}, {"name": "X", "value": "open"}]});
        let new = json!({"data": {"password": "now", "user": "web"}, "env": [
            {"name": "NEW", "value": "now"}, {"name": "X", "value": "open"}]});
        let mut masker = masker();
        let (old_masked, new_masked) = masker.pair(&old, &new, &secrecy);
        let mut changes = compare(&old, &new, &FieldSet::default(), Scope::All, None).changes;
        masker.changes(&mut changes, &new, &secrecy);
        let out = format!("{old_masked}{new_masked}{changes:?}");
        assert!(!out.contains("former") && !out.contains("now"), "{out}");
        assert!(out.contains("open") && out.contains("web"), "{out}");
    }

    #[test]
    fn values_that_are_guarded_are_secret_everywhere() {
        let values = SecretValues::of(&json!({"writeOnly": true}), &json!("hunter2-and-more"));
        let mut masker = masker();
        masker.guard(&values);
        let object = json!({"a": "x hunter2-and-more", "b": STANDARD.encode("hunter2-and-more"), "c": "hunter2"});
        assert_eq!(
            masker.object(object.clone(), &Secrecy::default()),
            json!({"a": "<secret 1>", "b": "<secret 2>", "c": "hunter2"})
        );
    }

    #[test]
    fn base64_of_a_value_has_its_number() {
        for flip in [false, true] {
            let mut masker = masker();
            let mut texts = ["hunter2".to_owned(), STANDARD.encode("hunter2")];
            if flip {
                texts.reverse();
            }
            let numbers = texts.map(|text| masker.number(&text));
            assert_eq!(numbers, [1, 1]);
        }
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
                (|value| json!({"kind": "Secret", "data": value, "stringData": {"x": value}}), secret_kind())
            } else {
                (|value| json!({"kind": "Widget", "metadata": {"annotations": {"a": value}}, "spec": value}), Secrecy::everything())
            };
            let (old, new) = (wrap(&old), wrap(&new));
            let mut masker = masker();
            let (old_masked, new_masked) = masker.pair(&old, &new, &secrecy);
            let mut changes = compare(&old, &new, &FieldSet::default(), Scope::All, None).changes;
            masker.changes(&mut changes, &new, &secrecy);
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
