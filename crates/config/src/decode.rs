//! Decoding of a positioned YAML tree into a strict struct, with all errors and their lines.
//!
//! serde stops at the first error. The decoder then hides the failed field and decodes again, until
//! no error is left. The structs stay the only description of the formats, and a file with three
//! typos gets three findings. Decoding stops after a hundred errors: such a file is probably
//! something else.

use std::cell::RefCell;
use std::collections::HashSet;
use std::fmt;

use serde::Deserialize;
use serde::de::value::StrDeserializer;
use serde::de::{
    self, DeserializeSeed, Deserializer, Expected, IntoDeserializer as _, MapAccess, SeqAccess,
    Unexpected, Visitor,
};
use serde_json::Value;

use pleach_model::finding::{Finding, Kind};
use pleach_model::object::{
    LOCATED, Origin, Places,
    yaml::{Content, Entry, Node},
};
use pleach_model::suggest::did_you_mean;

/// Maximum number of errors per file. Each one costs another pass.
const MOST: usize = 100;

/// Decodes a struct. Returns `None` if there was any error.
pub fn decode<T: for<'de> Deserialize<'de>>(root: &Node, findings: &mut Vec<Finding>) -> Option<T> {
    let hidden = RefCell::new(HashSet::new());
    let before = findings.len();
    let mut clean = true;
    loop {
        let reader = Reader {
            node: root,
            path: String::new(),
            hidden: &hidden,
        };
        let error = match T::deserialize(reader) {
            Ok(value) => return clean.then_some(value),
            Err(error) => error,
        };
        clean = false;
        let node = error.0.at.as_ref().map_or(root, |place| place.node);
        // A required field that is missing only because it is hidden was already reported.
        let reported = error
            .0
            .missing
            .as_deref()
            .and_then(|field| node.get(field))
            .is_some_and(|value| hidden.borrow().contains(&std::ptr::from_ref(value)));
        if !reported {
            findings.push(error.into_finding(node));
        }
        if std::ptr::eq(node, root) || !hidden.borrow_mut().insert(std::ptr::from_ref(node)) {
            return None;
        }
        if findings.len() - before >= MOST {
            let more = more(&findings[before..]);
            findings.push(more);
            return None;
        }
    }
}

/// Reports that there can be more errors, at the last location.
fn more(found: &[Finding]) -> Finding {
    let message = format!("only the first {MOST} errors of a file are reported");
    let mut finding = Finding::warning(Kind::Repository, "more-errors", message);
    finding.place = found.iter().filter_map(|one| one.place.clone()).max();
    finding
}

/// Decoding error, with the innermost node that it is about.
///
/// Boxed, because it is part of the result at every level.
#[derive(Debug)]
struct DecodeError<'a>(Box<Problem<'a>>);

#[derive(Debug)]
struct Problem<'a> {
    code: &'static str,
    message: String,
    hint: Option<String>,
    missing: Option<String>,
    at: Option<Place<'a>>,
}

#[derive(Debug)]
struct Place<'a> {
    node: &'a Node,
    path: String,
    /// Line of the key, if the key is wrong.
    line: Option<usize>,
}

impl<'a> DecodeError<'a> {
    fn new(code: &'static str, message: String) -> Self {
        Self(Box::new(Problem {
            code,
            message,
            hint: None,
            missing: None,
            at: None,
        }))
    }

    /// Sets the location, unless an inner node is set already.
    fn at(mut self, node: &'a Node, path: &str, line: Option<usize>) -> Self {
        self.0.at.get_or_insert_with(|| Place {
            node,
            path: path.to_owned(),
            line,
        });
        self
    }

    fn into_finding(self, node: &Node) -> Finding {
        let problem = *self.0;
        let (path, line) = problem
            .at
            .map_or_else(Default::default, |place| (place.path, place.line));
        let message = if path.is_empty() {
            problem.message
        } else {
            format!("`{path}`: {}", problem.message)
        };
        let mut finding = Finding::error(Kind::Repository, problem.code, message)
            .at(Origin::new(&*node.file, line.unwrap_or(node.line)));
        finding.hint = problem.hint;
        finding
    }
}

impl fmt::Display for DecodeError<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.message)
    }
}

impl std::error::Error for DecodeError<'_> {}

impl de::Error for DecodeError<'_> {
    fn custom<T: fmt::Display>(message: T) -> Self {
        Self::new("invalid-value", message.to_string())
    }

    fn invalid_type(found: Unexpected<'_>, expected: &dyn Expected) -> Self {
        let expected = in_words(&expected.to_string());
        let found = match found {
            Unexpected::Bool(_) => "a boolean",
            Unexpected::Unsigned(_) | Unexpected::Signed(_) | Unexpected::Float(_) => "a number",
            Unexpected::Str(_) | Unexpected::Char(_) => "a string",
            Unexpected::Unit | Unexpected::Option => "nothing",
            Unexpected::Seq => "a list",
            Unexpected::Map => "a map",
            _ => "something else",
        };
        let mut error = Self::new("wrong-type", format!("expected {expected}, found {found}"));
        if expected == "a string" && matches!(found, "a boolean" | "a number") {
            error.0.hint = Some("put it in quotes".to_owned());
        }
        error
    }

    fn invalid_value(_: Unexpected<'_>, expected: &dyn Expected) -> Self {
        Self::new(
            "invalid-value",
            format!("expected {}", in_words(&expected.to_string())),
        )
    }

    fn unknown_variant(variant: &str, expected: &'static [&'static str]) -> Self {
        let mut error = Self::new(
            "invalid-value",
            format!("`{variant}` is not one of {}", expected.join(", ")),
        );
        error.0.hint = did_you_mean(variant, expected);
        error
    }

    fn unknown_field(field: &str, expected: &'static [&'static str]) -> Self {
        let mut error = Self::new("unknown-field", format!("unknown field `{field}`"));
        error.0.hint = did_you_mean(field, expected)
            .or_else(|| Some(format!("known fields: {}", expected.join(", "))));
        error
    }

    fn missing_field(field: &'static str) -> Self {
        let mut error = Self::new("missing-field", format!("`{field}` is required"));
        error.0.missing = Some(field.to_owned());
        error
    }
}

/// Translates what serde expects to YAML terms.
fn in_words(expected: &str) -> String {
    match expected {
        "a sequence" => "a list",
        "usize" | "u64" | "u32" | "u16" | "u8" => "a non-negative integer",
        "i64" | "i32" => "an integer",
        other if other.starts_with("struct ") => "a map",
        other if other.starts_with("enum ") || other.contains("variant identifier") => "a string",
        other => other,
    }
    .to_owned()
}

/// Deserializer of one node.
struct Reader<'a> {
    node: &'a Node,
    path: String,
    hidden: &'a RefCell<HashSet<*const Node>>,
}

impl<'a> Reader<'a> {
    fn below(&self, node: &'a Node, path: String) -> Self {
        Self {
            node,
            path,
            hidden: self.hidden,
        }
    }

    fn is_hidden(&self, node: &Node) -> bool {
        self.hidden.borrow().contains(&std::ptr::from_ref(node))
    }

    fn read<'de, V: Visitor<'de>>(&self, visitor: V) -> Result<V::Value, DecodeError<'a>> {
        match &self.node.content {
            // A scalar is never a list or map.
            Content::Scalar(Value::Null | Value::Array(_) | Value::Object(_)) => {
                visitor.visit_unit()
            }
            Content::Scalar(Value::Bool(value)) => visitor.visit_bool(*value),
            Content::Scalar(Value::Number(number)) => {
                if let Some(value) = number.as_u64() {
                    visitor.visit_u64(value)
                } else if let Some(value) = number.as_i64() {
                    visitor.visit_i64(value)
                } else {
                    visitor.visit_f64(number.as_f64().unwrap_or_default())
                }
            }
            Content::Scalar(Value::String(text)) => visitor.visit_str(text),
            Content::List(items) => visitor.visit_seq(Items {
                reader: self,
                rest: items.iter().enumerate(),
            }),
            Content::Map(entries) => visitor.visit_map(Entries {
                reader: self,
                rest: entries.iter(),
                current: None,
            }),
        }
    }
}

impl<'de, 'a> Deserializer<'de> for Reader<'a> {
    type Error = DecodeError<'a>;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DecodeError<'a>> {
        self.read(visitor)
            .map_err(|error| error.at(self.node, &self.path, None))
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DecodeError<'a>> {
        if self.node.is_null() {
            visitor.visit_none()
        } else {
            let (node, path) = (self.node, self.path.clone());
            visitor
                .visit_some(self)
                .map_err(|error| error.at(node, &path, None))
        }
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        visitor: V,
    ) -> Result<V::Value, DecodeError<'a>> {
        let (node, path) = (self.node, self.path.clone());
        visitor
            .visit_newtype_struct(self)
            .map_err(|error| error.at(node, &path, None))
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        _: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, DecodeError<'a>> {
        if name == LOCATED {
            let places = Places::from(self.node);
            let reader = Some(self);
            return visitor.visit_seq(ValueAndPlaces { reader, places });
        }
        self.deserialize_any(visitor)
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _: &'static str,
        _: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, DecodeError<'a>> {
        let result = match &self.node.content {
            Content::Scalar(Value::String(text)) => {
                let text: StrDeserializer<'_, DecodeError<'a>> = text.as_str().into_deserializer();
                visitor.visit_enum(text)
            }
            Content::Scalar(_) | Content::List(_) | Content::Map(_) => self.read(visitor),
        };
        result.map_err(|error| error.at(self.node, &self.path, None))
    }

    serde::forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string
        bytes byte_buf unit unit_struct seq tuple tuple_struct map
        identifier ignored_any
    }
}

/// Parts of a [`Located`](pleach_model::object::Located) value.
struct ValueAndPlaces<'a> {
    reader: Option<Reader<'a>>,
    places: Places,
}

impl<'de, 'a> SeqAccess<'de> for ValueAndPlaces<'a> {
    type Error = DecodeError<'a>;

    fn next_element_seed<T: DeserializeSeed<'de>>(
        &mut self,
        seed: T,
    ) -> Result<Option<T::Value>, DecodeError<'a>> {
        if let Some(reader) = self.reader.take() {
            return seed.deserialize(reader).map(Some);
        }
        serde_json::to_value(&self.places)
            .and_then(|places| seed.deserialize(places))
            .map(Some)
            .map_err(de::Error::custom)
    }
}

struct Items<'r, 'a> {
    reader: &'r Reader<'a>,
    rest: std::iter::Enumerate<std::slice::Iter<'a, Node>>,
}

impl<'de, 'a> SeqAccess<'de> for Items<'_, 'a> {
    type Error = DecodeError<'a>;

    fn next_element_seed<T: DeserializeSeed<'de>>(
        &mut self,
        seed: T,
    ) -> Result<Option<T::Value>, DecodeError<'a>> {
        for (index, item) in self.rest.by_ref() {
            if self.reader.is_hidden(item) {
                continue;
            }
            let path = format!("{}[{index}]", self.reader.path);
            return seed
                .deserialize(self.reader.below(item, path.clone()))
                .map(Some)
                .map_err(|error| error.at(item, &path, None));
        }
        Ok(None)
    }
}

struct Entries<'r, 'a> {
    reader: &'r Reader<'a>,
    rest: std::slice::Iter<'a, Entry>,
    current: Option<&'a Entry>,
}

impl<'de, 'a> MapAccess<'de> for Entries<'_, 'a> {
    type Error = DecodeError<'a>;

    fn next_key_seed<K: DeserializeSeed<'de>>(
        &mut self,
        seed: K,
    ) -> Result<Option<K::Value>, DecodeError<'a>> {
        for entry in self.rest.by_ref() {
            if self.reader.is_hidden(&entry.value) {
                continue;
            }
            self.current = Some(entry);
            let key: StrDeserializer<'_, DecodeError<'a>> = entry.key.as_str().into_deserializer();
            return seed
                .deserialize(key)
                .map(Some)
                .map_err(|error| error.at(&entry.value, &self.reader.path, Some(entry.line)));
        }
        Ok(None)
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(
        &mut self,
        seed: V,
    ) -> Result<V::Value, DecodeError<'a>> {
        let Some(entry) = self.current.take() else {
            return Err(de::Error::custom("a value was read before its key"));
        };
        let path = if self.reader.path.is_empty() {
            entry.key.clone()
        } else {
            format!("{}.{}", self.reader.path, entry.key)
        };
        seed.deserialize(self.reader.below(&entry.value, path.clone()))
            .map_err(|error| error.at(&entry.value, &path, None))
    }
}

#[cfg(test)]
mod tests;
