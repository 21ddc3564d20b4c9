//! Fields of a status beside conditions: words for states, flags, errors and counts.

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
];

/// Fields that the state of an object is in, where the state is an object itself.
const INNER: &[&str] = &["status", "state", "phase"];

/// A word for a state, and where it is.
pub(super) struct State<'a> {
    field: String,
    word: &'a str,
}

impl State<'_> {
    pub(super) fn meaning(&self) -> Option<Meaning> {
        words::state(self.word)
    }

    /// `phase Failed: message`.
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

/// Words for the state of the whole object.
pub(super) fn states(value: &Value) -> impl Iterator<Item = State<'_>> {
    STATES
        .iter()
        .filter_map(|key| state_of(key, value["status"].get(key)?))
}

/// Words for states of parts: other fields whose name ends with one of the names.
fn states_of_parts(value: &Value) -> impl Iterator<Item = State<'_>> {
    let fields = value["status"].as_object().into_iter().flatten();
    fields.filter_map(|(key, field)| {
        let words = words::words(key);
        let last = words.last()?.as_str();
        (words.len() > 1 && STATES.contains(&last) && !is_of_the_past(&words))
            .then(|| state_of(key, field))?
    })
}

fn is_of_the_past(words: &[String]) -> bool {
    words
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

/// Finds trouble of the whole object.
pub(super) fn trouble(value: &Value) -> impl Iterator<Item = Trouble> {
    states(value).filter_map(|state| trouble_of(&state, value, GiveUp::AfterGrace))
}

/// Finds trouble of parts: it counts where no condition is about the whole.
pub(super) fn trouble_of_parts(value: &Value) -> Vec<Trouble> {
    let status = &value["status"];
    let parts = states_of_parts(value);
    let mut found: Vec<Trouble> = parts
        .filter_map(|state| trouble_of(&state, value, GiveUp::AtDeadline))
        .collect();
    found.extend(ERRORS.iter().filter_map(|key| {
        let text = match &status[*key] {
            Value::String(text) if !text.is_empty() => format!("{key}: {text}"),
            Value::Array(items) if !items.is_empty() => format!("{} {key}", items.len()),
            _ => return None,
        };
        Some(Trouble::failed(text, GiveUp::AtDeadline))
    }));
    let flags = status.as_object().into_iter().flatten();
    found.extend(flags.filter_map(|(key, flag)| {
        let is_good = matches!(sense(key), Sense::Good(_));
        (is_good && *flag == false).then(|| Trouble::in_progress(format!("{key} is false")))
    }));
    if let (Some(wanted), Some(ready)) = (
        value["spec"]["replicas"].as_i64(),
        status["readyReplicas"].as_i64(),
    ) && ready < wanted
    {
        let counts = format!("{ready} of {wanted} replicas ready");
        found.push(Trouble::in_progress(counts));
    }
    found
}
