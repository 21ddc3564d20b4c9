//! Keeps secret values out of all output and stored data.
//!
//! A value is replaced by `<secret N>`. Equal desired values get the same number within a run. A
//! reviewer therefore sees that a value changed and where it is used, but neither its length nor
//! its text.
//!
//! A previous value has a number of its own for each field. Otherwise the author of a change could
//! confirm a guess by writing it to another field. A list item is identified by its name. An item
//! without a unique, non-secret name is identified by its position.
//!
//! In a comparison, a list or map that is declared secret is one value. Otherwise each item and key
//! would confirm a guess of its own, and their number would be known.
//!
//! Values are compared by a keyed digest. The key exists only for the duration of the run.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt::{self, Write as _};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::Value;

use super::fields::FieldChange;
use super::locate;
use pleach_model::object::{
    Coding, Digest, DigestKey, FieldPath, Hidden, KeyValue, PathSegment, Secrecy, canonical_json,
    from_base64,
};
use pleach_model::secret_values::SecretValues;

/// Text in place of every secret value of an object that is only compared ([`Masker::blank`]).
pub const BLANK: &str = "<secret>";

/// Replaces secret values by numbers that are stable for the masker's lifetime.
pub struct Masker {
    key: DigestKey,
    /// Numbers of desired values.
    numbers: BTreeMap<Digest, usize>,
    /// Numbers of previous values, each specific to its field.
    previous: BTreeMap<Digest, usize>,
    /// Number of numbers assigned so far.
    count: usize,
    /// Values that are masked in every field.
    guarded: SecretValues,
}

impl fmt::Debug for Masker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Masker")
            .field("values", &self.count)
            .finish_non_exhaustive()
    }
}

/// A side of a comparison, or an object without one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Side {
    /// The previous state: the live object, or the base of a comparison.
    Previous,
    /// The desired state.
    Desired,
    /// A single object. Lists and maps that are declared secret retain their structure.
    Alone,
}

/// A field of an object on one side.
#[derive(Debug)]
struct Field {
    side: Side,
    /// The object and the keys on the path, each with its length as a prefix.
    path: String,
}

impl Field {
    fn root(side: Side, object: &Value) -> Self {
        let mut field = Self {
            side,
            path: String::new(),
        };
        let version = object["apiVersion"].as_str().unwrap_or_default();
        let group = version.split_once('/').map_or("", |(group, _)| group);
        let metadata = &object["metadata"];
        let names = [&object["kind"], &metadata["namespace"], &metadata["name"]];
        let names = names.map(|name| name.as_str().unwrap_or_default());
        for part in std::iter::once(group).chain(names) {
            field.enter(part);
        }
        field
    }

    /// Descends into a key. Returns the path length to pass to `leave`.
    fn enter(&mut self, key: &str) -> usize {
        let length = self.path.len();
        // The server stores `stringData` as `data`. Writing to a String cannot fail.
        let key = if key == "stringData" { "data" } else { key };
        let _ = write!(self.path, "{}:{key}", key.len());
        length
    }

    fn leave(&mut self, length: usize) {
        self.path.truncate(length);
    }
}

impl Masker {
    /// Creates a masker for a run. The key must be random and must never be stored.
    pub fn new(key: DigestKey) -> Self {
        Self {
            key,
            numbers: BTreeMap::new(),
            previous: BTreeMap::new(),
            count: 0,
            guarded: SecretValues::default(),
        }
    }

    /// Masks these values in every field, even if the field is not declared secret.
    pub fn guard(&mut self, values: &SecretValues) {
        self.guarded.extend(values);
    }

    /// Returns whether there are values that are masked in every field.
    pub fn guards(&self) -> bool {
        !self.guarded.is_empty()
    }

    /// Masks an object outside of a comparison. Only scalars are replaced.
    #[must_use]
    pub fn object(&mut self, object: Value, secrecy: &Secrecy) -> Value {
        self.alone(Side::Alone, object, secrecy)
    }

    /// Masks a desired object of a comparison whose sides are shown apart.
    #[must_use]
    pub fn desired(&mut self, object: Value, secrecy: &Secrecy) -> Value {
        self.alone(Side::Desired, object, secrecy)
    }

    /// Masks a previous object, as [`Self::desired`] does with a desired one.
    #[must_use]
    pub fn previous(&mut self, object: Value, secrecy: &Secrecy) -> Value {
        self.alone(Side::Previous, object, secrecy)
    }

    fn alone(&mut self, side: Side, mut object: Value, secrecy: &Secrecy) -> Value {
        let mut field = Field::root(side, &object);
        self.walk(&mut object, &mut field, &secrecy.root(), None, None);
        object
    }

    /// Replaces every secret value, list and map by [`BLANK`]. The result is for decisions that must
    /// not depend on secret values, not even on whether two of them are equal.
    #[must_use]
    pub fn blank(&self, mut object: Value, secrecy: &Secrecy) -> Value {
        self.blank_in(&mut object, &secrecy.root());
        object
    }

    fn blank_in(&self, value: &mut Value, hidden: &Hidden<'_>) {
        if hidden.whole || hidden.secret.is_some() {
            *value = BLANK.into();
            return;
        }
        match value {
            Value::Object(map) => {
                for (key, child) in map {
                    self.blank_in(child, &hidden.key(key));
                }
            }
            Value::Array(items) => {
                for item in items {
                    let below = hidden.item(item);
                    self.blank_in(item, &below);
                }
            }
            Value::Null => {}
            scalar => {
                if self.guarded.are_part_of(&text_of(scalar)) {
                    *scalar = BLANK.into();
                }
            }
        }
    }

    /// Masks both sides of a comparison. Secrets that changed in place are marked as changed.
    ///
    /// A value that only the old side has is treated as secret if it is next to a secret. The
    /// secrecy rules only describe the new side.
    #[must_use]
    pub fn pair(&mut self, old: &Value, new: &Value, secrecy: &Secrecy) -> (Value, Value) {
        let (mut old_masked, mut masked) = (old.clone(), new.clone());
        let root = secrecy.root();
        // The field is identified by its new name, so that it stays the same across a rename.
        let mut field = Field::root(Side::Previous, new);
        self.walk(&mut old_masked, &mut field, &root, None, Some(new));
        field.side = Side::Desired;
        self.walk(&mut masked, &mut field, &root, Some(old), None);
        (old_masked, masked)
    }

    /// Masks field changes, including values within their paths. `new` is the predicted object,
    /// unmasked.
    pub fn changes(&mut self, changes: &mut [FieldChange], new: &Value, secrecy: &Secrecy) {
        for change in changes {
            let old = change.old.clone();
            let mut hidden = secrecy.root();
            let mut field = Field::root(Side::Previous, new);
            let mut like = Some(new);
            for segment in &change.path.0 {
                self.enter_segment(&mut field, segment, like, &hidden);
                let below = hidden.step(segment);
                let next = like.and_then(|like| locate::step(like, segment));
                // As in `walk`, a removed value next to a secret counts as secret.
                let is_removed = next.is_none() && like.is_some() && hidden.has_secret_neighbors();
                hidden = if is_removed && change.new.is_none() {
                    below.secret()
                } else {
                    below
                };
                like = next;
            }
            if let Some(value) = &mut change.old {
                self.walk(value, &mut field, &hidden, None, like);
            }
            field.side = Side::Desired;
            if let Some(value) = &mut change.new {
                self.walk(value, &mut field, &hidden, old.as_ref(), None);
            }
            let side = match &change.new {
                None => Side::Previous,
                Some(_) => Side::Desired,
            };
            self.path(&mut change.path, side, new, secrecy);
        }
    }

    /// Masks list keys within a path, because these keys are values, too.
    fn path(&mut self, path: &mut FieldPath, side: Side, new: &Value, secrecy: &Secrecy) {
        let mut field = Field::root(side, new);
        let mut hidden = secrecy.root();
        let mut like = Some(new);
        for segment in &mut path.0 {
            self.enter_segment(&mut field, segment, like, &hidden);
            like = like.and_then(|like| locate::step(like, segment));
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
                self.segment(segment, &mut field);
            }
        }
    }

    /// Enters a step of a path below `parent`, a value of the new side. `None` means that the new
    /// side lacks the value.
    fn enter_segment(
        &self,
        field: &mut Field,
        segment: &PathSegment,
        parent: Option<&Value>,
        hidden: &Hidden<'_>,
    ) {
        if let PathSegment::Key(key) = segment {
            field.enter(key);
            return;
        }
        let items = parent.and_then(Value::as_array);
        let key = items.and_then(|items| {
            let index = locate::position(items, segment)?;
            Some(self.key_of_item(items, index, hidden))
        });
        field.enter(&key.unwrap_or_else(|| key_of_removed(segment)));
    }

    /// Returns the name of a list item. `None` if the item has no name or its name is secret.
    fn name_of<'v>(&self, item: &'v Value, hidden: &Hidden<'_>) -> Option<&'v str> {
        let name = item.get("name").and_then(Value::as_str)?;
        let is_secret =
            hidden.item(item).key("name").secret.is_some() || self.guarded.are_part_of(name);
        (!is_secret).then_some(name)
    }

    /// Returns the keys of all items of a list, in the order of the items.
    fn keys_of_items(&self, items: &[Value], hidden: &Hidden<'_>) -> Vec<String> {
        let names: Vec<Option<&str>> = items
            .iter()
            .map(|item| self.name_of(item, hidden))
            .collect();
        let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
        for name in names.iter().flatten() {
            *counts.entry(*name).or_default() += 1;
        }
        names
            .into_iter()
            .enumerate()
            .map(|(index, name)| key_of(name.filter(|name| counts.get(name) == Some(&1)), index))
            .collect()
    }

    /// Returns the key of one item of a list, as in [`Self::keys_of_items`].
    fn key_of_item(&self, items: &[Value], index: usize, hidden: &Hidden<'_>) -> String {
        let name = items
            .get(index)
            .and_then(|item| self.name_of(item, hidden))
            .filter(|name| {
                let mut others = items
                    .iter()
                    .enumerate()
                    .filter(|(other, _)| *other != index);
                others.all(|(_, item)| self.name_of(item, hidden) != Some(*name))
            });
        key_of(name, index)
    }

    fn segment(&mut self, segment: &mut PathSegment, field: &mut Field) {
        let values: Vec<(Option<&str>, &mut KeyValue)> = match segment {
            PathSegment::Item(value) => vec![(None, value)],
            PathSegment::Select(keys) => keys
                .iter_mut()
                .map(|(key, value)| (Some(&**key), value))
                .collect(),
            PathSegment::Key(_) | PathSegment::Index(_) => Vec::new(),
        };
        for (key, value) in values {
            let text = match &*value {
                KeyValue::Text(text) => text.clone(),
                KeyValue::Int(number) => number.to_string(),
                KeyValue::Bool(_) => continue,
            };
            let back = key.map(|key| field.enter(key));
            let number = self.number_in(field, &text, Coding::Plain);
            if let Some(back) = back {
                field.leave(back);
            }
            *value = KeyValue::Text(format!("<secret {number}>"));
        }
    }

    /// Masks a value in place.
    ///
    /// `old` is the previous value of the field. `like` is the corresponding value on the other
    /// side. It is set if `value` can hold secrets that the rules do not describe.
    fn walk(
        &mut self,
        value: &mut Value,
        field: &mut Field,
        hidden: &Hidden<'_>,
        old: Option<&Value>,
        like: Option<&Value>,
    ) {
        if hidden.whole && field.side != Side::Alone && (value.is_object() || value.is_array()) {
            self.scalar(value, field, old, Coding::Plain);
            return;
        }
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
                    let back = field.enter(key);
                    self.walk(child, field, &below, old, like);
                    field.leave(back);
                }
            }
            Value::Array(items) => {
                let paired = old
                    .and_then(Value::as_array)
                    .filter(|old| old.len() == items.len());
                let others = like.and_then(Value::as_array);
                let keys = self.keys_of_items(items, hidden);
                for (index, (child, key)) in items.iter_mut().zip(&keys).enumerate() {
                    let old = paired.and_then(|items| items.get(index));
                    let like = others.and_then(|others| hidden.counterpart(child, others));
                    let mut below = hidden.item(child);
                    if others.is_some() && like.is_none() && hidden.has_secret_neighbors() {
                        below = below.secret();
                    }
                    let back = field.enter(key);
                    self.walk(child, field, &below, old, like);
                    field.leave(back);
                }
            }
            Value::Null => {}
            scalar => {
                if let Some(coding) = hidden.secret {
                    self.scalar(scalar, field, old, coding);
                } else if self.guarded.are_part_of(&text_of(scalar)) {
                    self.scalar(scalar, field, old, Coding::Plain);
                }
            }
        }
    }

    /// Replaces a value by its number. A list or map is replaced as a whole.
    fn scalar(&mut self, value: &mut Value, field: &Field, old: Option<&Value>, coding: Coding) {
        let changed = old.is_some_and(|old| old != value);
        let text = text_of(value);
        let number = self.number_in(field, &text, coding);
        *value = Value::String(if changed {
            format!("<secret {number}, changed>")
        } else {
            format!("<secret {number}>")
        });
    }

    /// Returns the number of a value in a field.
    ///
    /// A previous value has a number that is specific to its field. The number is used on both
    /// sides and never for another value.
    fn number_in(&mut self, field: &Field, text: &str, coding: Coding) -> usize {
        let decoded = match coding {
            Coding::Base64 => from_base64(text),
            Coding::Plain => None,
        };
        let bytes = decoded.as_deref().unwrap_or(text.as_bytes());
        let head = format!("{}:{}", field.path.len(), field.path);
        let digest = Digest::keyed(&self.key, &[head.as_bytes(), bytes].concat());
        match (self.previous.get(&digest), field.side, coding) {
            (Some(number), _, _) => *number,
            (None, Side::Previous, _) => {
                let number = self.next_number();
                self.previous.insert(digest, number);
                number
            }
            (None, Side::Desired | Side::Alone, Coding::Plain) => self.number(text),
            (None, Side::Desired | Side::Alone, Coding::Base64) => self.encoded(text),
        }
    }

    /// Returns the number of a base64-encoded value, so that `data` and `stringData` match.
    fn encoded(&mut self, text: &str) -> usize {
        let Some(bytes) = from_base64(text) else {
            return self.number(text);
        };
        self.number_of(&bytes)
    }

    fn number(&mut self, text: &str) -> usize {
        // The same value gets the same number in base64 and in plain form, in either order.
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
}

/// Returns the key of a list item within a path: its unique name, or else its position.
///
/// A guess at another position must not get the number of a value.
fn key_of(unique_name: Option<&str>, index: usize) -> String {
    match unique_name {
        Some(name) => format!("[{name}]"),
        None => format!("[]{index}"),
    }
}

/// Returns the key of an item that the new side does not have.
fn key_of_removed(segment: &PathSegment) -> String {
    match segment {
        PathSegment::Select(keys) => {
            let name = keys.iter().find_map(|(key, value)| match value {
                KeyValue::Text(name) if key == "name" => Some(format!("[{name}]")),
                KeyValue::Bool(_) | KeyValue::Int(_) | KeyValue::Text(_) => None,
            });
            name.unwrap_or_else(|| "[]removed".to_owned())
        }
        PathSegment::Index(index) => format!("[]{index}"),
        PathSegment::Key(_) | PathSegment::Item(_) => "[]removed".to_owned(),
    }
}

/// Returns the text of a scalar, or the canonical JSON of a list or map.
fn text_of(value: &Value) -> Cow<'_, str> {
    match value {
        Value::String(text) => Cow::Borrowed(text),
        Value::Array(_) | Value::Object(_) => {
            let json = canonical_json(value);
            Cow::Owned(String::from_utf8_lossy(&json).into_owned())
        }
        other => Cow::Owned(other.to_string()),
    }
}

#[cfg(test)]
mod tests;
