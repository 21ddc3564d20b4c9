//! Fast path for plain YAML, based on parser events.
//!
//! Bundles contain almost only maps, lists and unambiguous scalars. This path parses them in half
//! the time of the crate's deserializer. It gives up on everything else: anchors, tags, merge keys,
//! non-string keys, directives, errors and limits. The crate then decides the meaning of the text
//! and its errors.

use std::collections::HashMap;

use serde_json::map::Entry;
use serde_json::{Map, Number, Value};
use serde_yaml::granit_parser::{self, Event, Parser, ScalarStyle};

use super::emit::is_word;
use super::parse::{Document, library};

/// Longer texts go to the crate, because they can exceed its limits.
const MAX_BYTES: usize = 8 * 1024 * 1024;

/// Deeper nesting is left to the crate, which counts levels and grows the stack.
const MAX_DEPTH: usize = 60;

/// Streams with more documents go to the crate, which counts them.
const MAX_DOCUMENTS: usize = 50_000;

/// Words that a parser can read as numbers, ignoring case.
const NUMBERS: [&str; 3] = ["nan", "inf", "infinity"];

/// A map or list under construction.
enum Open {
    List(Vec<Value>),
    /// The flag is set if the value of the last key comes next. That value is null until then.
    Map(Map<String, Value>, bool),
}

/// Parses every document of a text. Returns `None` if any document is not plain.
pub(super) fn parse(text: &str) -> Option<Vec<Document>> {
    if text.len() > MAX_BYTES || text.starts_with('\u{feff}') {
        return None;
    }
    let mut scalars = Scalars::default();
    let mut documents: Vec<Document> = Vec::new();
    let mut open: Vec<Open> = Vec::new();
    let (mut line, mut count) = (0, 0);
    let options = granit_parser::options! { emit_comments: false };
    for event in Parser::new_from_str_with_options(text, options) {
        let (event, span) = event.ok()?;
        let value = match event {
            Event::DocumentStart(_, None) if count < MAX_DOCUMENTS => {
                count += 1;
                continue;
            }
            Event::StreamStart | Event::StreamEnd | Event::DocumentEnd => continue,
            Event::MappingStart(_, 0, None) | Event::SequenceStart(_, 0, None) => {
                if open.is_empty() {
                    line = span.start.line();
                }
                open.push(match event {
                    Event::MappingStart(..) => Open::Map(Map::new(), false),
                    _ => Open::List(Vec::new()),
                });
                if open.len() > MAX_DEPTH {
                    return None;
                }
                continue;
            }
            Event::MappingEnd => match open.pop()? {
                Open::Map(map, false) => Value::Object(map),
                _ => return None,
            },
            Event::SequenceEnd => match open.pop()? {
                Open::List(list) => Value::Array(list),
                Open::Map(..) => return None,
            },
            Event::Scalar(text, style, 0, None) => {
                if open.is_empty() {
                    // Skip an empty document. Leave a scalar document, which is rare, to the crate.
                    if text.is_empty() && style == ScalarStyle::Plain {
                        continue;
                    }
                    return None;
                }
                if style == ScalarStyle::Plain {
                    scalars.value(&text)?
                } else {
                    Value::String(text.into_owned())
                }
            }
            _ => return None,
        };
        match open.last_mut() {
            None => documents.push(Document { line, value }),
            Some(Open::List(list)) => list.push(value),
            Some(Open::Map(map, has_key)) if *has_key => {
                *map.values_mut().next_back()? = value;
                *has_key = false;
            }
            Some(Open::Map(map, has_key)) => {
                let Value::String(key) = value else {
                    return None;
                };
                match map.entry(key) {
                    Entry::Vacant(entry) => entry.insert(Value::Null),
                    Entry::Occupied(_) => return None,
                };
                *has_key = true;
            }
        }
    }
    open.is_empty().then_some(documents)
}

/// Values of plain scalars.
#[derive(Default)]
struct Scalars {
    /// Cache of scalars that the crate has parsed.
    parsed: HashMap<String, Value>,
}

impl Scalars {
    fn value(&mut self, text: &str) -> Option<Value> {
        match text {
            // As a key, `<<` merges.
            "<<" => None,
            "" | "null" => Some(Value::Null),
            "true" => Some(Value::Bool(true)),
            "false" => Some(Value::Bool(false)),
            _ if is_text(text) => Some(Value::String(text.to_owned())),
            _ => match whole(text) {
                Some(number) => Some(Value::Number(number)),
                None => self.parse(text),
            },
        }
    }

    /// Parses a scalar with the crate, as the value of a key.
    fn parse(&mut self, text: &str) -> Option<Value> {
        if let Some(known) = self.parsed.get(text) {
            return Some(known.clone());
        }
        if text.contains('\n') {
            return None;
        }
        let [document] = &mut *library(&format!("k: {text}\n")).ok()? else {
            return None;
        };
        let value = document.value.get_mut("k")?.take();
        // Accept only a scalar: the parser reported a scalar at the original position.
        if value.is_object() || value.is_array() {
            return None;
        }
        self.parsed.insert(text.to_owned(), value.clone());
        Some(value)
    }
}

/// Returns whether a text is certainly a string: a path, a command-line option, or a text that
/// starts with a letter and has no special meaning.
fn is_text(text: &str) -> bool {
    let is_word_like = |text: &str| text.starts_with(|first: char| first.is_ascii_alphabetic());
    if text.starts_with('/') || text.strip_prefix("--").is_some_and(is_word_like) {
        return true;
    }
    is_word_like(text)
        && !is_word(text)
        && !NUMBERS.iter().any(|word| word.eq_ignore_ascii_case(text))
}

/// Parses a whole decimal number in canonical form.
fn whole(text: &str) -> Option<Number> {
    let is_decimal = text.len() <= 18 && text.bytes().all(|byte| byte.is_ascii_digit());
    let is_octal = text.len() > 1 && text.starts_with('0');
    (is_decimal && !is_octal)
        .then(|| text.parse::<u64>().ok().map(Number::from))
        .flatten()
}
