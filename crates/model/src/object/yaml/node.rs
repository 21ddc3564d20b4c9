//! YAML tree with source positions.

use std::collections::HashSet;
use std::fmt;
use std::sync::Arc;

use serde::Deserialize;
use serde::de::{Deserializer, Error as _, MapAccess, SeqAccess, Visitor};
use serde_json::Value;
use serde_yaml::{Location, Spanned};

use super::YamlError;
use super::error::{OURS, duplicate_key};
use super::parse::{Key, Tree, TreeVisitor, deeper, parse_stream};
use crate::object::Origin;

/// A value with its position. Used for pleach's own files and for values, where messages point at
/// single fields. Manifests are parsed without positions.
#[derive(Debug, Clone, PartialEq)]
pub struct Node {
    /// The file it was read from.
    pub file: Arc<str>,
    /// Line within the file, from 1.
    pub line: usize,
    /// Column, from 1.
    pub column: usize,
    /// Content of the node.
    pub content: Content,
}

/// Content of a node.
#[derive(Debug, Clone, PartialEq)]
pub enum Content {
    /// Null, a boolean, a number or a string.
    Scalar(Value),
    /// A list.
    List(Vec<Node>),
    /// A map, in file order.
    Map(Vec<Entry>),
}

/// A key of a map with its value.
#[derive(Debug, Clone, PartialEq)]
pub struct Entry {
    /// The key.
    pub key: String,
    /// Line of the key, from 1.
    pub line: usize,
    /// Line and column where the key is written. Differs from `line` if the map comes from an
    /// anchor.
    pub written: (usize, usize),
    /// Its value.
    pub value: Node,
}

impl Node {
    /// Returns file and line.
    pub fn origin(&self) -> Origin {
        Origin::new(&*self.file, self.line)
    }

    /// Returns the value of a map key.
    pub fn get(&self, key: &str) -> Option<&Self> {
        self.entry(key).map(|entry| &entry.value)
    }

    /// Returns a map entry by key.
    pub fn entry(&self, key: &str) -> Option<&Entry> {
        match &self.content {
            Content::Map(entries) => entries.iter().find(|entry| entry.key == key),
            _ => None,
        }
    }

    /// Returns the entries of a map, or an empty slice for other content.
    pub fn entries(&self) -> &[Entry] {
        match &self.content {
            Content::Map(entries) => entries,
            _ => &[],
        }
    }

    /// Returns the items of a list, or an empty slice for other content.
    pub fn items(&self) -> &[Self] {
        match &self.content {
            Content::List(items) => items,
            _ => &[],
        }
    }

    /// Returns the line of a descendant by JSON pointer: the line of its key or list item.
    pub fn locate(&self, pointer: &str) -> Option<usize> {
        let mut at = self;
        let mut line = self.line;
        for step in pointer.split('/').skip(1) {
            match &at.content {
                Content::Map(_) => {
                    let entry = at.entry(&step.replace("~1", "/").replace("~0", "~"))?;
                    (at, line) = (&entry.value, entry.line);
                }
                Content::List(items) => {
                    at = items.get(step.parse::<usize>().ok()?)?;
                    line = at.line;
                }
                Content::Scalar(_) => return None,
            }
        }
        Some(line)
    }

    /// Returns a descendant by JSON pointer, with line and column of its key or list item as
    /// written in the file.
    pub fn find(&self, pointer: &str) -> Option<(&Self, (usize, usize))> {
        let mut at = self;
        let mut place = (self.line, self.column);
        for step in pointer.split('/').skip(1) {
            match &at.content {
                Content::Map(_) => {
                    let entry = at.entry(&step.replace("~1", "/").replace("~0", "~"))?;
                    (at, place) = (&entry.value, entry.written);
                }
                Content::List(items) => {
                    at = items.get(step.parse::<usize>().ok()?)?;
                    place = (at.line, at.column);
                }
                Content::Scalar(_) => return None,
            }
        }
        Some((at, place))
    }

    /// Returns whether the value is null.
    pub fn is_null(&self) -> bool {
        matches!(self.content, Content::Scalar(Value::Null))
    }

    /// Returns the string of a scalar.
    pub fn as_str(&self) -> Option<&str> {
        match &self.content {
            Content::Scalar(Value::String(text)) => Some(text),
            _ => None,
        }
    }

    /// Converts to JSON, without positions.
    pub fn to_value(&self) -> Value {
        match &self.content {
            Content::Scalar(value) => value.clone(),
            Content::List(items) => items.iter().map(Self::to_value).collect(),
            Content::Map(entries) => entries
                .iter()
                .map(|entry| (entry.key.clone(), entry.value.to_value()))
                .collect(),
        }
    }
}

/// Parses every document of a text, with the position of every value. The values equal those of
/// [`parse_documents`](super::parse_documents).
pub fn parse_nodes(file: &str, text: &str) -> Result<Vec<Node>, Vec<YamlError>> {
    let file: Arc<str> = file.into();
    parse_stream(text, |parsed: Spanned<Raw>| node(&file, parsed))
}

/// Returns the line of a field in the document that starts at `document_line`. The field is a JSON
/// pointer (`/spec/ports/0/name`).
///
/// Parses the text again, so use it only for error messages.
pub fn locate(text: &str, document_line: usize, pointer: &str) -> Option<usize> {
    parse_nodes("", text)
        .ok()?
        .iter()
        .find(|document| document.line == document_line)?
        .locate(pointer)
}

/// A node without its file name.
enum Raw {
    Scalar(Value),
    List(Vec<Spanned<Self>>),
    Map(Vec<(Spanned<Key>, Spanned<Self>)>),
}

fn node(file: &Arc<str>, parsed: Spanned<Raw>) -> Node {
    let (line, column) = place(&parsed.referenced);
    let content = match parsed.value {
        Raw::Scalar(value) => Content::Scalar(value),
        Raw::List(items) => Content::List(items.into_iter().map(|item| node(file, item)).collect()),
        Raw::Map(entries) => Content::Map(
            entries
                .into_iter()
                .map(|(key, value)| Entry {
                    line: place(&key.referenced).0,
                    written: place(&key.defined),
                    key: key.value.0,
                    value: node(file, value),
                })
                .collect(),
        ),
    };
    Node {
        file: Arc::clone(file),
        line,
        column,
        content,
    }
}

fn place(location: &Location) -> (usize, usize) {
    let number = |number: u64| usize::try_from(number).unwrap_or(0);
    (number(location.line()), number(location.column()))
}

impl<'de> Deserialize<'de> for Raw {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(RawVisitor)
    }
}

struct RawVisitor;

impl RawVisitor {
    fn scalar<E: serde::de::Error>(value: Result<Tree, E>) -> Result<Raw, E> {
        value.map(|Tree(value)| Raw::Scalar(value))
    }
}

impl<'de> Visitor<'de> for RawVisitor {
    type Value = Raw;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any value")
    }

    fn visit_unit<E: serde::de::Error>(self) -> Result<Raw, E> {
        Self::scalar(TreeVisitor.visit_unit())
    }

    fn visit_none<E: serde::de::Error>(self) -> Result<Raw, E> {
        Self::scalar(TreeVisitor.visit_unit())
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<Raw, D::Error> {
        Raw::deserialize(deserializer)
    }

    fn visit_bool<E: serde::de::Error>(self, value: bool) -> Result<Raw, E> {
        Self::scalar(TreeVisitor.visit_bool(value))
    }

    fn visit_i64<E: serde::de::Error>(self, value: i64) -> Result<Raw, E> {
        Self::scalar(TreeVisitor.visit_i64(value))
    }

    fn visit_u64<E: serde::de::Error>(self, value: u64) -> Result<Raw, E> {
        Self::scalar(TreeVisitor.visit_u64(value))
    }

    fn visit_f64<E: serde::de::Error>(self, value: f64) -> Result<Raw, E> {
        Self::scalar(TreeVisitor.visit_f64(value))
    }

    fn visit_str<E: serde::de::Error>(self, value: &str) -> Result<Raw, E> {
        Self::scalar(TreeVisitor.visit_str(value))
    }

    fn visit_string<E: serde::de::Error>(self, value: String) -> Result<Raw, E> {
        Self::scalar(TreeVisitor.visit_string(value))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Raw, A::Error> {
        deeper(|| {
            let mut list = Vec::new();
            while let Some(item) = items.next_element()? {
                list.push(item);
            }
            Ok(Raw::List(list))
        })
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Raw, A::Error> {
        deeper(|| {
            let mut map: Vec<(Spanned<Key>, Spanned<Raw>)> = Vec::new();
            let mut seen = HashSet::new();
            while let Some(key) = entries.next_key::<Spanned<Key>>()? {
                if !seen.insert(key.value.0.clone()) {
                    let message = duplicate_key(&key.value.0);
                    return Err(A::Error::custom(format!("{OURS}{message}")));
                }
                map.push((key, entries.next_value()?));
            }
            Ok(Raw::Map(map))
        })
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    const TEXT: &str = "\
# comment
---
# another
kind: A
spec:
  ports:
    - name: http
      port: 80
    - {name: https, port: 443}
  text: |
    lines
  a/b~c: 1
---
kind: B
";

    #[rstest]
    #[case(4, "", Some(4))]
    #[case(4, "/kind", Some(4))]
    #[case(4, "/spec/ports", Some(6))]
    #[case(4, "/spec/ports/0/port", Some(8))]
    #[case(4, "/spec/ports/1", Some(9))]
    #[case(4, "/spec/ports/1/port", Some(9))]
    #[case(4, "/spec/text", Some(10))]
    #[case(4, "/spec/a~1b~0c", Some(12))]
    #[case(14, "/kind", Some(14))]
    #[case(4, "/spec/none", None)]
    #[case(4, "/spec/ports/2", None)]
    #[case(4, "/kind/deeper", None)]
    #[case(5, "/kind", None)]
    fn a_field_is_found_by_its_pointer(
        #[case] document: usize,
        #[case] pointer: &str,
        #[case] line: Option<usize>,
    ) {
        assert_eq!(locate(TEXT, document, pointer), line);
    }

    #[test]
    fn values_equal_those_of_documents() {
        let text = "a: &a {on: 010, b: [1.0, ~]}\nc:\n  <<: *a\n  d: |\n    x\n---\n- 1\n";
        let values: Vec<Value> = parse_nodes("f.yaml", text)
            .unwrap()
            .iter()
            .map(Node::to_value)
            .collect();
        let documents: Vec<Value> = super::super::parse_documents(text)
            .unwrap()
            .into_iter()
            .map(|document| document.value)
            .collect();
        assert_eq!(values, documents);
    }

    #[test]
    fn an_alias_lies_where_it_is_used() {
        let nodes = parse_nodes("f.yaml", "a: &a\n  x: 1\nb: *a\n").unwrap();
        let b = nodes[0].get("b").unwrap();
        assert_eq!(b.origin(), Origin::new("f.yaml", 3));
        assert_eq!(b.get("x").unwrap().to_value(), 1);
    }
}
