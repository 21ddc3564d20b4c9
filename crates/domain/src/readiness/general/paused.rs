//! Objects that a user has paused.

use serde_json::Value;

use super::status;
use super::types::{Sense, sense};
use super::words::{self, Meaning};
use crate::readiness::conditions::Condition;

/// Fields of a spec that pause its controller.
const FIELDS: &[&str] = &["pause", "paused", "suspend", "suspended"];

/// Names of annotations, after the `/`, that do the same.
const ANNOTATIONS: &[&str] = &["paused", "pause-reconciliation", "reconciliation-paused"];

/// Finds what says that an object is paused or suspended.
pub(super) fn paused(value: &Value, conditions: &[Condition<'_>]) -> Option<String> {
    of_spec(value)
        .or_else(|| of_annotations(value))
        .or_else(|| of_conditions(conditions))
        .or_else(|| {
            status::states(value)
                .find(|state| state.meaning() == Some(Meaning::Paused))
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
            Sense::Paused => condition.is_true(),
            Sense::Good(_) => !condition.is_true() && is_paused(),
            Sense::Progressing => is_paused(),
            Sense::Failed | Sense::Bad(_) | Sense::NotGood(_) | Sense::Work(_) | Sense::Neutral => {
                false
            }
        }
    });
    paused.map(|condition| condition.line())
}
