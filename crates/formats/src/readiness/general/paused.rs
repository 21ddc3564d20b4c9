//! Objects that a user has paused.

use serde_json::Value;

use super::status;
use super::types::{Sense, sense};
use super::words::{self, Meaning};
use crate::readiness::conditions::Condition;

/// Fields of a spec that pause its controller.
const FIELDS: &[&str] = &["pause", "paused", "suspend", "suspended"];

/// Names of annotations, after the `/`, that pause a controller.
const ANNOTATIONS: &[&str] = &["paused", "pause-reconciliation", "reconciliation-paused"];

/// Finds the field of the spec or the annotation that pauses an object.
pub(super) fn by_user(value: &Value) -> Option<String> {
    of_spec(value).or_else(|| of_annotations(value))
}

/// Finds the condition or status word that reports a paused object. A word does
/// not count if the spec already resumes the object. Words about parts count if
/// there are no conditions.
pub(super) fn by_status(value: &Value, conditions: &[Condition<'_>]) -> Option<String> {
    let is_resumed = || FIELDS.iter().any(|field| value["spec"][*field] == false);
    of_conditions(conditions).or_else(|| {
        let parts = status::states_of_parts(value).filter(|_| conditions.is_empty());
        status::states(value)
            .chain(parts)
            .find(|state| state.meaning() == Some(Meaning::Paused) && !is_resumed())
            .map(|state| state.line(value))
    })
}

fn of_spec(value: &Value) -> Option<String> {
    let field = FIELDS.iter().find(|field| value["spec"][**field] == true);
    field.map(|field| format!("spec.{field}"))
}

fn of_annotations(value: &Value) -> Option<String> {
    let annotations = value["metadata"]["annotations"].as_object()?;
    let paused = annotations.iter().find(|(key, set)| {
        let name = key.split_once('/').map(|(_, name)| name);
        name.is_some_and(|name| ANNOTATIONS.contains(&name)) && *set != "false"
    });
    paused.map(|(key, _)| format!("annotation {key}"))
}

fn of_conditions(conditions: &[Condition<'_>]) -> Option<String> {
    let paused = conditions.iter().find(|condition| {
        let is_paused = || words::reason(condition.reason()) == Some(Meaning::Paused);
        match sense(condition.name()) {
            Sense::Paused => {
                condition.is_true() && words::reason(condition.reason()) != Some(Meaning::Failed)
            }
            Sense::Good(_) => !condition.is_true() && is_paused(),
            Sense::Progressing => is_paused(),
            Sense::Failed
            | Sense::Bad(_)
            | Sense::NotGood(_)
            | Sense::Work(_)
            | Sense::Activity
            | Sense::Neutral => false,
        }
    });
    paused.map(|condition| condition.line())
}
