//! Documents of plain YAML, straight from the events of the parser.
//!
//! What bundles hold is nearly always maps, lists, and scalars that can only
//! mean one thing. These become values here in half the time that the crate's
//! deserializer takes. Whatever else there is (anchors, tags, merge keys, keys
//! that are no texts, directives, errors, limits) is left to it: it has the last
//! word on what YAML means and on what is wrong.

use std::collections::HashMap;

use serde_json::map::Entry;
use serde_json::{Map, Number, Value};
use serde_yaml::granit_parser::{self, Event, Parser, ScalarStyle};

use super::emit::is_word;
use super::parse::{Document, library};

/// Above this many bytes the limits of the crate might be reached.
const MAX_BYTES: usize = 8 * 1024 * 1024;

/// Deeper ones are left to who counts them, and grows the stack.
const MAX_DEPTH: usize = 60;

/// More documents are left to who counts them.
const MAX_DOCUMENTS: usize = 50_000;

/// Words that may be numbers, in any case.
const NUMBERS: [&str; 3] = ["nan", "inf", "infinity"];

/// A map or a list that is not complete.
enum Open {
    List(Vec<Value>),
    /// Whether the value of its last key comes next; until then that is null.
    Map(Map<String, Value>, bool),
}

/// Every document of a text that has none but plain ones.
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
                    // An empty document is none; one that is a scalar is rare.
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

/// What plain scalars mean.
#[derive(Default)]
struct Scalars {
    /// Those that the crate was asked about.
    asked: HashMap<String, Value>,
}

impl Scalars {
    fn value(&mut self, text: &str) -> Option<Value> {
        match text {
            // As a key it merges.
            "<<" => None,
            "" | "null" => Some(Value::Null),
            "true" => Some(Value::Bool(true)),
            "false" => Some(Value::Bool(false)),
            _ if is_text(text) => Some(Value::String(text.to_owned())),
            _ => match whole(text) {
                Some(number) => Some(Value::Number(number)),
                None => self.ask(text),
            },
        }
    }

    /// What the crate makes of it, as the value of a key.
    fn ask(&mut self, text: &str) -> Option<Value> {
        if let Some(known) = self.asked.get(text) {
            return Some(known.clone());
        }
        if text.contains('\n') {
            return None;
        }
        let [document] = &mut *library(&format!("k: {text}\n")).ok()? else {
            return None;
        };
        let value = document.value.get_mut("k")?.take();
        // Only a scalar: it meant no more where it was written.
        if value.is_object() || value.is_array() {
            return None;
        }
        self.asked.insert(text.to_owned(), value.clone());
        Some(value)
    }
}

/// Whether it is a text and nothing else: a path, an option of a program, or what
/// begins like a word and is none of those that mean something.
fn is_text(text: &str) -> bool {
    let is_word_like = |text: &str| text.starts_with(|first: char| first.is_ascii_alphabetic());
    if text.starts_with('/') || text.strip_prefix("--").is_some_and(is_word_like) {
        return true;
    }
    is_word_like(text)
        && !is_word(text)
        && !NUMBERS.iter().any(|word| word.eq_ignore_ascii_case(text))
}

/// A whole number in its only form.
fn whole(text: &str) -> Option<Number> {
    let is_decimal = text.len() <= 18 && text.bytes().all(|byte| byte.is_ascii_digit());
    let is_octal = text.len() > 1 && text.starts_with('0');
    (is_decimal && !is_octal)
        .then(|| text.parse::<u64>().ok().map(Number::from))
        .flatten()
}
