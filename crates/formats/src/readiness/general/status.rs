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
const OUTCOMES: &[&str] = &["lastOperation", "lifecycle", "outcome", "result", "stage"];

/// Last words of fields that list past events.
const RECORDS: &[&str] = &[
    "attempts",
    "backups",
    "conditions",
    "events",
    "executions",
    "history",
    "logs",
    "revisions",
    "runs",
];

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

    /// Returns whether the word is one of some lower-case words.
    pub(super) fn is_any(&self, of: &[&str]) -> bool {
        of.iter().any(|word| self.word.eq_ignore_ascii_case(word))
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
pub(super) fn states_of_parts(value: &Value) -> impl Iterator<Item = State<'_>> {
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

/// Returns whether a state word or a flag reports a ready object.
pub(super) fn is_ready(value: &Value) -> bool {
    let mut fields = value["status"].as_object().into_iter().flatten();
    states(value).any(|state| state.meaning() == Some(Meaning::Ready))
        || fields
            .any(|(key, field)| flag(field) == Some(true) && matches!(sense(key), Sense::Good(_)))
}

/// Returns the trouble of components below other fields. It counts if the
/// status has no conditions and no word for the state of the whole object.
pub(super) fn trouble_of_components(value: &Value) -> Vec<Trouble> {
    if states(value).any(|state| state.meaning().is_some()) {
        return Vec::new();
    }
    let fields = value["status"].as_object().into_iter().flatten();
    let current = fields.filter(|(key, _)| !is_of_the_past(key) && !is_record(key));
    current
        .flat_map(|(key, field)| components(field).map(move |component| (key, component)))
        .flat_map(|(key, component)| trouble_of_component(key, component))
        .collect()
}

fn is_record(key: &str) -> bool {
    let words = words::words(key);
    words
        .last()
        .is_some_and(|last| RECORDS.contains(&last.as_str()))
}

/// Returns the items of a list, or an object and its fields.
fn components(field: &Value) -> impl Iterator<Item = &Value> {
    let whole = field.as_object().map(|_| field);
    let items = field.as_array().into_iter().flatten();
    let fields = field
        .as_object()
        .into_iter()
        .flat_map(serde_json::Map::values);
    whole.into_iter().chain(items).chain(fields)
}

fn trouble_of_component(key: &str, component: &Value) -> Vec<Trouble> {
    let states = STATES.iter().filter_map(|name| {
        let word = component.get(name)?.as_str()?;
        let field = format!("{key}.{name}");
        trouble_of(&State { field, word }, &Value::Null, GiveUp::AtDeadline)
    });
    let flags = ["ready", "healthy"].into_iter().filter_map(|name| {
        let is_false = flag(component.get(name)?) == Some(false);
        is_false.then(|| Trouble::in_progress(format!("{key}.{name} is false")))
    });
    let others = shortfalls(component).into_iter().chain(errors(component));
    states.chain(flags).chain(others).collect()
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
    found.extend(fractions(status));
    found.extend(shortfalls(status));
    found
}

fn errors(status: &Value) -> Vec<Trouble> {
    let errors = ERRORS.iter().filter_map(|key| {
        let text = match &status[*key] {
            Value::String(text) if !text.is_empty() && !text.eq_ignore_ascii_case("none") => {
                format!("{key}: {text}")
            }
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
    let flags = fields.filter_map(|(key, field)| match (sense(key), flag(field)?) {
        (Sense::Good(_), false) => Some(Trouble::in_progress(format!("{key} is false"))),
        (Sense::NotGood(_) | Sense::Work(_) | Sense::Progressing, true) => {
            Some(Trouble::in_progress(format!("{key} is true")))
        }
        (Sense::Failed | Sense::Bad(_), true) => {
            let line = format!("{key} is true");
            Some(Trouble::failed(line, GiveUp::AtDeadline))
        }
        (Sense::Good(_), true)
        | (
            Sense::NotGood(_) | Sense::Work(_) | Sense::Progressing | Sense::Failed | Sense::Bad(_),
            false,
        )
        | (Sense::Activity | Sense::Paused | Sense::Neutral, _) => None,
    });
    flags.collect()
}

/// Returns the trouble of counts of good things that are written as `1/3`.
fn fractions(place: &Value) -> Vec<Trouble> {
    let fields = place.as_object().into_iter().flatten();
    let behind = fields.filter_map(|(key, field)| {
        let text = field.as_str()?;
        let (done, desired) = text.split_once('/')?;
        let is_behind = done.parse::<u64>().ok()? < desired.parse::<u64>().ok()?;
        let is_good = matches!(sense(key), Sense::Good(_));
        (is_behind && is_good).then(|| Trouble::in_progress(format!("{key} is {text}")))
    });
    behind.collect()
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
        (count("replicas"), replicas, "replicas exist"),
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

/// Compares counts such as `readyNodes` with `nodes` or `totalNodes`, and
/// `ready` with `total`.
fn shortfalls(place: &Value) -> Vec<Trouble> {
    let fields = place.as_object().into_iter().flatten();
    let behind = fields.filter_map(|(key, field)| {
        let done = field.as_i64()?;
        let names = totals(key)?;
        let desired = names.iter().find_map(|name| place[name].as_i64())?;
        (done < desired).then(|| Trouble::in_progress(format!("{key} is {done} of {desired}")))
    });
    behind.collect()
}

/// Returns the fields with the total of a count of ready things.
fn totals(key: &str) -> Option<[String; 4]> {
    if key == "ready" {
        return Some(["desired", "total", "expected", "all"].map(str::to_owned));
    }
    let part = key
        .strip_prefix("ready")
        .or_else(|| key.strip_prefix("healthy"))?;
    let mut rest = part.chars();
    let first = rest.next().filter(char::is_ascii_uppercase)?;
    let plain = format!("{}{}", first.to_ascii_lowercase(), rest.as_str());
    let [desired, total, expected] =
        ["desired", "total", "expected"].map(|prefix| format!("{prefix}{part}"));
    Some([plain, desired, total, expected])
}
