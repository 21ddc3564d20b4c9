//! YAML parser that produces JSON values and collects errors.

use std::fmt;

use rayon::prelude::*;
use serde::Deserialize;
use serde::de::{DeserializeSeed, Deserializer, Error as _, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};
use serde_yaml::{DuplicateKeyPolicy, Options, Spanned};

use super::error::{OURS, duplicate_key};
use super::{YamlError, plain, tabs};

/// Maximum nesting depth. Schemas in CRDs exceed 64.
pub(super) const MAX_DEPTH: usize = 128;

/// Longer texts are parsed in parallel, in parts of at least this many bytes.
const PART: usize = 64 * 1024;

/// Maximum number of parts. Each part has the parser limits of a whole text.
const MAX_PARTS: usize = 16;

/// One document of a stream.
#[derive(Debug, Clone, PartialEq)]
pub struct Document {
    /// Line of its first content, from 1. Markers and comments do not count.
    pub line: usize,
    /// Content of the document.
    pub value: Value,
}

/// Parses every document of a text. Skips empty documents and documents with only comments.
///
/// Fails with the first error of every broken document, in text order. The list of errors is never
/// empty.
pub fn parse_documents(text: &str) -> Result<Vec<Document>, Vec<YamlError>> {
    if !text.contains('\t') {
        let parts = parts(text);
        let read: Option<Vec<Vec<Document>>> = match parts.as_slice() {
            // One part does not need the thread pool.
            [part] => read(part).map(|documents| vec![documents]),
            parts => parts.par_iter().map(read).collect(),
        };
        if let Some(documents) = read {
            return Ok(documents.into_iter().flatten().collect());
        }
        // Parse the whole text again to report the errors.
    }
    parse_stream(text, document)
}

/// Parses one part. `before` is the number of lines before the part.
fn read((before, part): &(usize, &str)) -> Option<Vec<Document>> {
    let mut documents = plain::parse(part).or_else(|| library(part).ok())?;
    for document in &mut documents {
        document.line += before;
    }
    Some(documents)
}

/// Parses a text with the YAML crate.
pub(super) fn library(text: &str) -> Result<Vec<Document>, serde_yaml::Error> {
    let parsed = serde_yaml::from_multiple_with_options(text, options())?;
    Ok(parsed.into_iter().map(document).collect())
}

fn document(parsed: Spanned<Tree>) -> Document {
    Document {
        line: usize::try_from(parsed.referenced.line()).unwrap_or(0),
        value: parsed.value.0,
    }
}

/// Splits a long text between documents. Each part comes with the number of lines before it. A
/// short text, or one with directives, stays in one part. Documents are independent: anchors are
/// local to a document.
fn parts(text: &str) -> Vec<(usize, &str)> {
    let size = PART.max(text.len() / MAX_PARTS);
    let has_directives = || text.starts_with('%') || text.contains("\n%");
    if text.len() <= size || has_directives() {
        return vec![(0, text)];
    }
    let mut parts = Vec::new();
    let (mut lines, mut rest) = (0, text);
    while let Some(end) = next_marker(rest, size) {
        let (part, after) = rest.split_at(end);
        parts.push((lines, part));
        lines += part.matches('\n').count();
        rest = after;
    }
    parts.push((lines, rest));
    parts
}

/// Returns the offset of the first `---` line at or after `from`.
fn next_marker(text: &str, from: usize) -> Option<usize> {
    let mut at = text.ceil_char_boundary(from);
    while let Some(found) = text.get(at..)?.find("\n---") {
        let line = at + found + 1;
        let after = text.as_bytes().get(line + 3);
        if after.is_none_or(|byte| matches!(byte, b' ' | b'\r' | b'\n')) {
            return Some(line);
        }
        at = line;
    }
    None
}

/// Parses every document into `T` and converts it.
pub(super) fn parse_stream<T, U>(
    text: &str,
    convert: impl Fn(T) -> U,
) -> Result<Vec<U>, Vec<YamlError>>
where
    T: for<'de> Deserialize<'de>,
{
    if text.contains('\t') {
        let found = tabs::find(text);
        if !found.is_empty() {
            return Err(found);
        }
    }
    match serde_yaml::from_multiple_with_options::<T>(text, options()) {
        Ok(documents) => Ok(documents.into_iter().map(convert).collect()),
        Err(first) => Err(all_errors::<T>(text, &first)),
    }
}

fn options() -> Options {
    serde_yaml::options! {
        budget: serde_yaml::budget! {
            max_depth: MAX_DEPTH,
            flow_nesting_limit: MAX_DEPTH,
            max_documents: 100_000,
            max_nodes: 10_000_000,
            max_events: 40_000_000,
            max_total_scalar_bytes: 256 * 1024 * 1024,
            max_recorded_anchor_events: 100_000,
        },
        alias_limits: serde_yaml::alias_limits! { max_total_replayed_events: 100_000 },
        duplicate_keys: DuplicateKeyPolicy::Error,
        legacy_octal_numbers: true,
        // A snippet would copy lines of the text, and so Secrets, into the error.
        with_snippet: false,
        emit_comments: false,
    }
}

/// Returns the first error of every document. A line that starts with `---` always begins a
/// document, so one broken document does not hide the errors of later ones.
fn all_errors<T>(text: &str, first: &serde_yaml::Error) -> Vec<YamlError>
where
    T: for<'de> Deserialize<'de>,
{
    let first = YamlError::from_crate(first, 0);
    let documents = split_documents(text);
    if documents.len() < 2 {
        return vec![first];
    }
    let mut errors: Vec<YamlError> = documents
        .into_iter()
        .filter_map(|(offset, document)| {
            serde_yaml::from_multiple_with_options::<T>(document, options())
                .err()
                .map(|error| YamlError::from_crate(&error, offset))
        })
        .collect();
    // Errors of the whole text: limits, and errors that occur only in context.
    if errors.is_empty() {
        errors.push(first);
    }
    errors
}

/// Splits a text before each line that starts with `---`. Each part comes with the number of lines
/// before it. Empty parts are omitted.
fn split_documents(text: &str) -> Vec<(usize, &str)> {
    let mut parts = Vec::new();
    let (mut start, mut start_line, mut position) = (0, 0, 0);
    let has_content = |part: &str| {
        part.lines().any(|line| {
            let line = line.trim_start_matches("---").trim();
            !line.is_empty() && !line.starts_with('#') && !line.starts_with('%')
        })
    };
    for (number, line) in text.split_inclusive('\n').enumerate() {
        let marker = line
            .strip_prefix("---")
            .is_some_and(|rest| rest.is_empty() || rest.starts_with([' ', '\r', '\n']));
        if marker {
            parts.push((start_line, &text[start..position]));
            (start, start_line) = (position, number);
        }
        position += line.len();
    }
    parts.push((start_line, &text[start..]));
    parts.retain(|(_, part)| has_content(part));
    parts
}

/// A JSON value, converted while parsing: keys become strings and whole floats become integers.
pub(super) struct Tree(pub(super) Value);

impl<'de> Deserialize<'de> for Tree {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(TreeVisitor)
    }
}

pub(super) struct TreeVisitor;

impl<'de> Visitor<'de> for TreeVisitor {
    type Value = Tree;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any value")
    }

    fn visit_unit<E>(self) -> Result<Tree, E> {
        Ok(Tree(Value::Null))
    }

    fn visit_none<E>(self) -> Result<Tree, E> {
        Ok(Tree(Value::Null))
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<Tree, D::Error> {
        Tree::deserialize(deserializer)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Tree, E> {
        Ok(Tree(Value::Bool(value)))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Tree, E> {
        Ok(Tree(Value::Number(value.into())))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Tree, E> {
        Ok(Tree(Value::Number(value.into())))
    }

    fn visit_f64<E: serde::de::Error>(self, value: f64) -> Result<Tree, E> {
        number(value)
            .map(|number| Tree(Value::Number(number)))
            .ok_or_else(|| E::custom(format!("{OURS}infinity and NaN have no JSON form")))
    }

    fn visit_str<E>(self, value: &str) -> Result<Tree, E> {
        Ok(Tree(Value::String(value.to_owned())))
    }

    fn visit_string<E>(self, value: String) -> Result<Tree, E> {
        Ok(Tree(Value::String(value)))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Tree, A::Error> {
        deeper(|| {
            let mut list = Vec::new();
            while let Some(Tree(item)) = items.next_element()? {
                list.push(item);
            }
            Ok(Tree(Value::Array(list)))
        })
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Tree, A::Error> {
        deeper(|| {
            let mut map = Map::new();
            while let Some(key) = entries.next_key_seed(NewKey(&map))? {
                let Tree(value) = entries.next_value()?;
                map.insert(key, value);
            }
            Ok(Tree(Value::Object(map)))
        })
    }
}

/// Runs one level of recursion, on a new stack segment if little stack is left. A level uses up to
/// 20 KB, and test and runtime threads have 2 MB.
pub(super) fn deeper<T>(level: impl FnOnce() -> T) -> T {
    stacker::maybe_grow(128 * 1024, 2 * 1024 * 1024, level)
}

/// Converts a number as Go prints it: a whole float becomes an integer if it is exact. Otherwise
/// the API server would refuse `replicas: 2.0`.
pub(super) fn number(value: f64) -> Option<Number> {
    const EXACT: f64 = 9_007_199_254_740_992.0;
    if value.fract() == 0.0 && value.abs() < EXACT {
        #[expect(
            clippy::cast_possible_truncation,
            reason = "whole and below 2^53, checked above"
        )]
        return Some(Number::from(value as i64));
    }
    Number::from_f64(value)
}

/// A map key, converted to a JSON string as Kubernetes clients do: `on` becomes `true`.
pub(super) struct Key(pub(super) String);

impl<'de> Deserialize<'de> for Key {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(KeyVisitor)
    }
}

/// Reads a key and refuses duplicates. The crate cannot detect that `on` and `true` are the same
/// key.
struct NewKey<'a>(&'a Map<String, Value>);

impl<'de> DeserializeSeed<'de> for NewKey<'_> {
    type Value = String;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<String, D::Error> {
        let Key(key) = Key::deserialize(deserializer)?;
        if self.0.contains_key(&key) {
            return Err(D::Error::custom(format!("{OURS}{}", duplicate_key(&key))));
        }
        Ok(key)
    }
}

struct KeyVisitor;

impl<'de> Visitor<'de> for KeyVisitor {
    type Value = Key;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a key")
    }

    fn visit_bool<E>(self, value: bool) -> Result<Key, E> {
        Ok(Key(value.to_string()))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Key, E> {
        Ok(Key(value.to_string()))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Key, E> {
        Ok(Key(value.to_string()))
    }

    fn visit_f64<E: serde::de::Error>(self, value: f64) -> Result<Key, E> {
        number(value)
            .map(|number| Key(number.to_string()))
            .ok_or_else(|| E::custom(format!("{OURS}infinity and NaN cannot be keys")))
    }

    fn visit_str<E>(self, value: &str) -> Result<Key, E> {
        Ok(Key(value.to_owned()))
    }

    fn visit_string<E>(self, value: String) -> Result<Key, E> {
        Ok(Key(value))
    }

    fn visit_unit<E: serde::de::Error>(self) -> Result<Key, E> {
        Err(E::custom(format!("{OURS}null cannot be a key")))
    }

    fn visit_none<E: serde::de::Error>(self) -> Result<Key, E> {
        self.visit_unit()
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<Key, D::Error> {
        Key::deserialize(deserializer)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, _: A) -> Result<Key, A::Error> {
        Err(A::Error::custom(format!("{OURS}a list cannot be a key")))
    }

    fn visit_map<A: MapAccess<'de>>(self, _: A) -> Result<Key, A::Error> {
        Err(A::Error::custom(format!("{OURS}a map cannot be a key")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Generates a text of several parts: documents of two lengths, one of which contains lines
    /// that resemble a marker.
    fn long(line_end: &str) -> String {
        let documents = (0..4000).map(|number| {
            let text = if number % 3 == 0 {
                "\n  ---\n  ---x"
            } else {
                ""
            };
            format!("---\n# of {number}\nname: n{number}\ntext: |\n  a{text}\nlist: [1, 2.0, on]\n")
        });
        let text: String = documents.collect();
        text.replace('\n', line_end)
    }

    #[test]
    fn a_long_text_reads_as_if_it_were_one_part() {
        for text in [
            long("\n"),
            long("\r\n"),
            format!("{}---\n---\n", long("\n")),
        ] {
            assert!(parts(&text).len() > 2);
            let whole = parse_stream(&text, document);
            let read = parse_documents(&text);
            assert_eq!(read.as_ref().map(Vec::len), Ok(4000));
            assert_eq!(read, whole);
        }
    }

    #[test]
    fn no_part_begins_within_a_document() {
        let text = long("\n");
        let parts = parts(&text);
        assert_eq!(
            parts.iter().map(|(_, part)| *part).collect::<String>(),
            text
        );
        for (before, part) in parts {
            assert!(part.starts_with("---\n"));
            let offset = part.as_ptr() as usize - text.as_ptr() as usize;
            assert_eq!(text[..offset].matches('\n').count(), before);
        }
    }

    #[test]
    fn errors_of_a_long_text_equal_those_of_the_whole() {
        let mut text = long("\n");
        let lines = text.matches('\n').count();
        text.push_str("---\na: 1\na: 2\n---\nb: [\n");
        let errors = parse_documents(&text).unwrap_err();
        let at: Vec<usize> = errors.iter().map(|error| error.line).collect();
        assert_eq!(at[0], lines + 3);
        assert_eq!(errors.len(), 2);
    }

    #[test]
    fn a_text_with_directives_is_one_part() {
        let text = format!("{}...\n%YAML 1.2\n---\na: 1\n", long("\n"));
        assert_eq!(parts(&text).len(), 1);
    }
}
