//! Field patterns in the notation of users: `spec.template.spec.containers[name=app].image`.

mod walk;

use std::fmt;
use std::str::FromStr;

use serde::{Serialize, Serializer};
use serde_json::Value;

use pleach_model::object::{FieldPath, KeyValue, PathSegment};

pub(super) use walk::Reach;

/// A pattern that matches fields of objects. List items are selected by content instead of their
/// position, which can change.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct FieldPattern {
    steps: Vec<Step>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Step {
    /// A key of a map.
    Key(String),
    /// List items that contain all of these values.
    Where(Vec<(String, String)>),
    /// All list items.
    Every,
}

/// Reason why a text is not a valid pattern.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is not a field path: {why}")]
pub struct PatternError {
    text: String,
    why: &'static str,
}

const BY_POSITION: &str =
    "select list items by content, such as [name=app], or all of them with [*]";

impl FromStr for FieldPattern {
    type Err = PatternError;

    fn from_str(text: &str) -> Result<Self, PatternError> {
        let error = |why| PatternError {
            text: text.to_owned(),
            why,
        };
        if text.starts_with('/') {
            return Err(error("separate keys with dots, such as spec.replicas"));
        }
        let mut steps = Vec::new();
        let mut rest = text.strip_prefix('.').unwrap_or(text);
        while !rest.is_empty() {
            if let Some(inner) = rest.strip_prefix('[') {
                let end = closing(inner).ok_or_else(|| error("a `]` is missing"))?;
                steps.push(bracket(&inner[..end]).map_err(error)?);
                rest = &inner[end + 1..];
                if !rest.is_empty() && !rest.starts_with(['.', '[']) {
                    return Err(error("a `.` is missing after `]`"));
                }
                rest = rest.strip_prefix('.').unwrap_or(rest);
            } else {
                let end = rest.find(['.', '[']).unwrap_or(rest.len());
                let (key, after) = rest.split_at(end);
                if key.is_empty() {
                    return Err(error("it has an empty key"));
                }
                if key.bytes().all(|byte| byte.is_ascii_digit()) {
                    return Err(error(BY_POSITION));
                }
                steps.push(Step::Key(key.to_owned()));
                rest = match after.strip_prefix('.') {
                    Some("") => return Err(error("it ends with a `.`")),
                    Some(after) => after,
                    None => after,
                };
            }
        }
        match steps.first() {
            None => Err(error("it is empty")),
            Some(Step::Key(_)) => Ok(Self { steps }),
            Some(_) => Err(error("it must start with a key, such as spec")),
        }
    }
}

/// Returns the position of the closing bracket outside of quotes.
fn closing(text: &str) -> Option<usize> {
    let mut quote = None;
    for (index, character) in text.char_indices() {
        match quote {
            Some(open) if character == open => quote = None,
            None if character == ']' => return Some(index),
            None if character == '"' || character == '\'' => quote = Some(character),
            Some(_) | None => {}
        }
    }
    None
}

fn bracket(inner: &str) -> Result<Step, &'static str> {
    if inner == "*" {
        return Ok(Step::Every);
    }
    if let Some(key) = quoted(inner) {
        return Ok(Step::Key(key.to_owned()));
    }
    if inner.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(BY_POSITION);
    }
    let keys = split(inner)
        .into_iter()
        .map(|part| {
            let (key, value) = part.split_once('=')?;
            let value = value.trim();
            let value = quoted(value).unwrap_or(value);
            (!key.trim().is_empty()).then(|| (key.trim().to_owned(), value.to_owned()))
        })
        .collect::<Option<Vec<_>>>()
        .ok_or("brackets must contain a key and a value, such as [name=app], or a quoted key")?;
    Ok(Step::Where(keys))
}

/// Splits a text at commas outside of quotes.
fn split(text: &str) -> Vec<&str> {
    let mut parts = Vec::new();
    let (mut start, mut quote) = (0, None);
    for (index, character) in text.char_indices() {
        match quote {
            Some(open) if character == open => quote = None,
            None if character == '"' || character == '\'' => quote = Some(character),
            None if character == ',' => {
                parts.push(&text[start..index]);
                start = index + 1;
            }
            _ => {}
        }
    }
    parts.push(&text[start..]);
    parts
}

fn quoted(text: &str) -> Option<&str> {
    let inner = |quote| text.strip_prefix(quote)?.strip_suffix(quote);
    (text.len() >= 2).then(|| inner('"').or_else(|| inner('\'')))?
}

impl fmt::Display for FieldPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, step) in self.steps.iter().enumerate() {
            match step {
                Step::Key(key) if is_plain(key) => {
                    write!(f, "{}{key}", if index > 0 { "." } else { "" })?;
                }
                Step::Key(key) => write!(f, "[\"{key}\"]")?,
                Step::Every => f.write_str("[*]")?,
                Step::Where(keys) => {
                    f.write_str("[")?;
                    for (index, (key, value)) in keys.iter().enumerate() {
                        let comma = if index > 0 { "," } else { "" };
                        if value.contains([',', ']', '"', '\'']) || value.is_empty() {
                            write!(f, "{comma}{key}=\"{value}\"")?;
                        } else {
                            write!(f, "{comma}{key}={value}")?;
                        }
                    }
                    f.write_str("]")?;
                }
            }
        }
        Ok(())
    }
}

fn is_plain(key: &str) -> bool {
    !key.contains(['.', '/', '[', ']', '"'])
}

impl Serialize for FieldPattern {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// Converts a path of the server into a pattern. Fails if the path contains a list index or a set
/// item.
impl TryFrom<&FieldPath> for FieldPattern {
    type Error = ();

    fn try_from(path: &FieldPath) -> Result<Self, ()> {
        let steps = path
            .0
            .iter()
            .map(|segment| match segment {
                PathSegment::Key(key) => Ok(Step::Key(key.clone())),
                PathSegment::Select(keys) => Ok(Step::Where(
                    keys.iter()
                        .map(|(key, value)| (key.clone(), text_of(value)))
                        .collect(),
                )),
                PathSegment::Index(_) | PathSegment::Item(_) => Err(()),
            })
            .collect::<Result<Vec<_>, ()>>()?;
        Ok(Self { steps })
    }
}

fn text_of(value: &KeyValue) -> String {
    match value {
        KeyValue::Bool(value) => value.to_string(),
        KeyValue::Int(value) => value.to_string(),
        KeyValue::Text(value) => value.clone(),
    }
}

impl FieldPattern {
    /// Parses a field path from a conflict message of the server.
    ///
    /// The message does not delimit keys with dots, so the manifest is used to find their ends. A
    /// path through a list index or a set item yields the whole list.
    pub fn of_server(text: &str, manifest: &Value) -> Option<Self> {
        let mut steps = Vec::new();
        let mut at = Some(manifest);
        let mut rest = text;
        while !rest.is_empty() {
            if let Some(inner) = rest.strip_prefix('[') {
                let end = closing(inner)?;
                let Ok(step @ Step::Where(_)) = bracket(&inner[..end]) else {
                    break;
                };
                at = at
                    .and_then(Value::as_array)
                    .and_then(|items| items.iter().find(|item| step.selects(item)));
                steps.push(step);
                rest = &inner[end + 1..];
                continue;
            }
            let keys = rest.strip_prefix('.')?;
            let known = at
                .and_then(Value::as_object)
                .into_iter()
                .flat_map(serde_json::Map::keys)
                .filter(|key| {
                    keys.strip_prefix(key.as_str())
                        .is_some_and(|after| after.is_empty() || after.starts_with(['.', '[']))
                })
                .max_by_key(|key| key.len());
            let key = known.map_or_else(
                || &keys[..keys.find(['.', '[']).unwrap_or(keys.len())],
                String::as_str,
            );
            at = at.and_then(|at| at.get(key));
            steps.push(Step::Key(key.to_owned()));
            rest = &keys[key.len()..];
        }
        (!steps.is_empty()).then_some(Self { steps })
    }
}

/// Returns whether a list item contains all of these values.
fn holds(item: &Value, keys: &[(String, String)]) -> bool {
    item.is_object()
        && keys.iter().all(|(key, expected)| {
            KeyValue::from_json(&item[key]).is_some_and(|value| text_of(&value) == *expected)
        })
}

impl Step {
    fn selects(&self, item: &Value) -> bool {
        match self {
            Self::Key(_) => false,
            Self::Where(keys) => holds(item, keys),
            Self::Every => true,
        }
    }
}
