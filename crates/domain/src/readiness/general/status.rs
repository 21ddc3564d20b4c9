//! Status fields besides conditions: state words, flags, errors and counts.

use serde_json::Value;

use super::Trouble;
use super::types::{Sense, sense};
use super::words::{self, Meaning};
use crate::readiness::GiveUp;

/// Fields that name the state of the whole object.
const STATES: &[&str] = &["phase", "state", "health", "status"];

/// Fields that are not empty after an error.
const ERRORS: &[&str] = &[
    "error",
    "errorMessage",
    "errorReason",
    "errors",
    "failureMessage",
    "failureReason",
    "lastError",
    "problems",
    "reconcileError",
    "validationErrors",
];

/// Fields that name the state of the last change.
const OUTCOMES: &[&str] = &["lastOperation", "result"];

/// Fields with the word, if the state is an object.
const INNER: &[&str] = &["status", "state", "phase"];

/// A state word, with its field.
pub(super) struct State<'a> {
    field: String,
    word: &'a str,
}

impl State<'_> {
    pub(super) fn meaning(&self) -> Option<Meaning> {
        words::state(self.word)
    }

    /// Formats `phase Failed: message`.
    pub(super) fn line(&self, value: &Value) -> String {
        let Self { field, word } = self;
        match value["status"]["message"].as_str() {
            Some(message) if !message.is_empty() => format!("{field} {word}: {message}"),
            _ => format!("{field} {word}"),
        }
    }
}

fn state_of<'a>(key: &str, field: &'a Value) -> Option<State<'a>> {
    if let Some(word) = field.as_str() {
        let field = key.to_owned();
        return Some(State { field, word });
    }
    INNER.iter().find_map(|inner| {
        let field = field.get(inner)?;
        Some(State {
            field: format!("{key}.{inner}"),
            word: field.as_str()?,
        })
    })
}

/// Returns the state words of the whole object.
pub(super) fn states(value: &Value) -> impl Iterator<Item = State<'_>> {
    STATES
        .iter()
        .filter_map(|key| state_of(key, value["status"].get(key)?))
}

/// Returns the state words of parts: other fields whose name ends with one of
/// the names, and outcomes.
fn states_of_parts(value: &Value) -> impl Iterator<Item = State<'_>> {
    let fields = value["status"].as_object().into_iter().flatten();
    fields.filter_map(|(key, field)| {
        let words = words::words(key);
        let last = words.last()?.as_str();
        let is_state = words.len() > 1 && STATES.contains(&last) && !is_of_the_past(key);
        (is_state || OUTCOMES.contains(&key.as_str())).then(|| state_of(key, field))?
    })
}

/// Returns whether a field name is about a past or future state.
pub(super) fn is_of_the_past(key: &str) -> bool {
    words::words(key)
        .first()
        .is_some_and(|first| ["last", "previous", "desired", "target"].contains(&first.as_str()))
}

fn trouble_of(state: &State<'_>, value: &Value, give_up: GiveUp) -> Option<Trouble> {
    match state.meaning()? {
        Meaning::Failed => Some(Trouble::failed(state.line(value), give_up)),
        Meaning::InProgress => Some(Trouble::in_progress(state.line(value))),
        Meaning::Ready | Meaning::Paused => None,
    }
}

/// Returns the trouble of the whole object. A word for "paused" means that the
/// object is resuming; otherwise it was handled before.
pub(super) fn trouble(value: &Value) -> impl Iterator<Item = Trouble> {
    states(value).filter_map(|state| {
        if state.meaning() == Some(Meaning::Paused) {
            return Some(Trouble::in_progress(state.line(value)));
        }
        trouble_of(&state, value, GiveUp::AfterGrace)
    })
}

/// Returns the trouble of parts, which counts if no condition is about the
/// whole object.
pub(super) fn trouble_of_parts(value: &Value) -> Vec<Trouble> {
    let status = &value["status"];
    let parts = states_of_parts(value);
    let mut found: Vec<Trouble> = parts
        .filter_map(|state| trouble_of(&state, value, GiveUp::AtDeadline))
        .collect();
    found.extend(errors(status));
    found.extend(flags(status));
    found.extend(flags(&status["health"]));
    found.extend(counts(value));
    found
}

fn errors(status: &Value) -> Vec<Trouble> {
    let errors = ERRORS.iter().filter_map(|key| {
        let text = match &status[*key] {
            Value::String(text) if !text.is_empty() => format!("{key}: {text}"),
            Value::Array(items) if !items.is_empty() => format!("{} {key}", items.len()),
            Value::Object(fields) if !fields.is_empty() => {
                match fields.get("message").and_then(Value::as_str) {
                    Some(message) => format!("{key}: {message}"),
                    None => format!("{key} is set"),
                }
            }
            _ => return None,
        };
        Some(Trouble::failed(text, GiveUp::AtDeadline))
    });
    errors.collect()
}

fn flags(place: &Value) -> Vec<Trouble> {
    let fields = place.as_object().into_iter().flatten();
    let flags = fields.filter_map(|(key, field)| {
        let flag = flag(field)?;
        let sense = sense(key);
        if !flag && matches!(sense, Sense::Good(_)) {
            Some(Trouble::in_progress(format!("{key} is false")))
        } else if flag && matches!(sense, Sense::Failed | Sense::Bad(_)) {
            let line = format!("{key} is true");
            Some(Trouble::failed(line, GiveUp::AtDeadline))
        } else {
            None
        }
    });
    flags.collect()
}

/// Reads a boolean. Some controllers write it as a string.
fn flag(field: &Value) -> Option<bool> {
    match field {
        Value::Bool(flag) => Some(*flag),
        Value::String(text) if text.eq_ignore_ascii_case("true") => Some(true),
        Value::String(text) if text.eq_ignore_ascii_case("false") => Some(false),
        _ => None,
    }
}

/// Compares counts of replicas and pods with the desired ones.
fn counts(value: &Value) -> Vec<Trouble> {
    let status = &value["status"];
    let count = |key: &str| status[key].as_i64();
    let replicas = value["spec"]["replicas"].as_i64();
    let pods = count("desiredNumberScheduled");
    let ready = count("readyReplicas").or_else(|| count("availableReplicas"));
    // A partition, or deletion by hand, leaves replicas of the previous version.
    let strategy = &value["spec"]["updateStrategy"];
    let is_whole = strategy["type"] != "OnDelete"
        && strategy["partition"].is_null()
        && strategy["rollingUpdate"]["partition"].is_null();
    let updated = |key: &str| count(key).filter(|_| is_whole);
    let counts = [
        (ready, replicas, "replicas ready"),
        (updated("updatedReplicas"), replicas, "replicas updated"),
        // The controller omits a zero.
        (Some(count("numberReady").unwrap_or(0)), pods, "pods ready"),
        (updated("updatedNumberScheduled"), pods, "pods updated"),
    ];
    let behind = counts.into_iter().filter_map(|(done, desired, what)| {
        let (done, desired) = (done?, desired?);
        (done < desired).then(|| Trouble::in_progress(format!("{done} of {desired} {what}")))
    });
    behind.collect()
}
