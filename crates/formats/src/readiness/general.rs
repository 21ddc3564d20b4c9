//! Rules for custom resources without a row in the table, by well-known
//! condition types and status words.
//!
//! Any reported trouble prevents `Current`. The type of a condition, or its
//! reason and message, decide between "in progress" and "failed".

mod paused;
mod status;
mod tasks;
#[cfg(test)]
mod tests;
mod types;
mod words;

use serde_json::Value;

use self::types::{Sense, Weight, sense};
use self::words::Meaning;
use super::conditions::{Condition, lagging};
use super::stale::is_stale;
use super::{Assessment, GiveUp};

/// An objection to readiness.
struct Trouble {
    /// `None`: in progress.
    failed: Option<GiveUp>,
    line: String,
}

impl Trouble {
    fn failed(line: String, give_up: GiveUp) -> Self {
        Self {
            failed: Some(give_up),
            line,
        }
    }

    fn in_progress(line: String) -> Self {
        Self { failed: None, line }
    }
}

/// Conditions of one list, split by whether they belong to an earlier
/// generation.
struct Conditions<'a> {
    fresh: Vec<Condition<'a>>,
    stale: Vec<Condition<'a>>,
}

/// Assesses an object.
pub(super) fn assess(value: &Value) -> Assessment {
    let lists = lists(value);
    let fresh: Vec<Condition<'_>> = lists.iter().flat_map(|list| list.fresh.clone()).collect();
    if let Some(line) = paused::by_user(value) {
        return Assessment::note(format!("paused: {line}"));
    }
    if let Some(lag) = lagging(value) {
        return lag;
    }
    if let Some(line) = paused::by_status(value, &fresh) {
        return Assessment::note(format!("paused: {line}"));
    }
    let mut troubles: Vec<Trouble> = lists.iter().flat_map(Conditions::troubles).collect();
    troubles.extend(status::trouble(value));
    if !lists.iter().any(Conditions::is_whole_good) {
        troubles.extend(status::trouble_of_parts(value));
    }
    if lists.is_empty() {
        troubles.extend(status::trouble_of_components(value));
    }
    if troubles.is_empty() {
        troubles.extend(tasks::running(value, &fresh));
    }
    if troubles.is_empty() && !status::is_ready(value) {
        troubles.extend(lists.iter().find_map(Conditions::beginning));
    }
    // A controller that is still working may report transient errors.
    let is_at_work = fresh.iter().copied().any(is_at_work);
    let found = troubles
        .iter()
        .find(|trouble| trouble.failed == Some(GiveUp::AfterGrace))
        .or_else(|| troubles.iter().find(|trouble| trouble.failed.is_some()))
        .or_else(|| troubles.first());
    match found {
        Some(Trouble {
            failed: Some(give_up),
            line,
        }) if *give_up == GiveUp::AfterGrace || !is_at_work => {
            Assessment::failed_until(line, *give_up)
        }
        Some(trouble) => Assessment::in_progress(&trouble.line),
        None if lists.iter().any(Conditions::is_outdated) => {
            Assessment::in_progress("its conditions describe an earlier generation")
        }
        None => Assessment::current(),
    }
}

/// Returns `status.conditions`. If it is empty, returns the conditions of other
/// status fields and of list items.
fn lists(value: &Value) -> Vec<Conditions<'_>> {
    let generation = value["metadata"]["generation"].as_i64();
    let status = &value["status"];
    let whole = Conditions::read(status, generation);
    if !whole.is_empty() {
        return vec![whole];
    }
    let fields = status.as_object().into_iter().flatten();
    fields
        .flat_map(|(key, field)| places(key, field))
        .map(|place| Conditions::read(place, generation))
        .filter(|list| !list.is_empty())
        .collect()
}

/// Returns the values below a status field that may have their own conditions.
fn places<'a>(key: &str, field: &'a Value) -> Vec<&'a Value> {
    match field {
        Value::Array(items) => items.iter().collect(),
        Value::Object(_) if !status::is_of_the_past(key) => vec![field],
        _ => Vec::new(),
    }
}

impl<'a> Conditions<'a> {
    fn read(place: &'a Value, generation: Option<i64>) -> Self {
        let items = place["conditions"].as_array().into_iter().flatten();
        let (stale, fresh): (Vec<_>, Vec<_>) =
            items.partition(|item| generation.is_some_and(|generation| is_stale(item, generation)));
        let conditions = |items: Vec<&'a Value>| items.into_iter().map(Condition::of).collect();
        Self {
            fresh: conditions(fresh),
            stale: conditions(stale),
        }
    }

    fn is_empty(&self) -> bool {
        self.fresh.is_empty() && self.stale.is_empty()
    }

    /// Returns whether a condition reports the whole object as ready.
    fn is_whole_good(&self) -> bool {
        let mut fresh = self.fresh.iter();
        // "Synced" is about the spec, not about its effect.
        fresh.any(|condition| {
            condition.is_true()
                && sense(condition.name()) == Sense::Good(Weight::Whole)
                && !condition.name().eq_ignore_ascii_case("synced")
        })
    }

    /// Returns whether only conditions of an earlier generation report
    /// readiness.
    fn is_outdated(&self) -> bool {
        let is_good = |condition: &Condition<'_>| {
            condition.is_true() && matches!(sense(condition.name()), Sense::Good(_))
        };
        let is_whole =
            |condition: &Condition<'_>| sense(condition.name()) == Sense::Good(Weight::Whole);
        let is_confirmed = self.fresh.iter().any(is_good) && !self.stale.iter().any(is_whole);
        !self.stale.is_empty() && !self.is_whole_good() && !is_confirmed
    }

    /// Returns the condition that shows an object before its start, if no other
    /// condition reports progress.
    fn beginning(&self) -> Option<Trouble> {
        let has_progress = self.fresh.iter().copied().any(|condition| {
            let sense = sense(condition.name());
            let is_progress = matches!(sense, Sense::Good(_) | Sense::Activity);
            condition.is_true() && is_progress && !is_first(condition)
        });
        let mut fresh = self.fresh.iter().copied();
        let first = fresh.find(|condition| {
            is_first(*condition)
                || condition.is_false() && sense(condition.name()) == Sense::Activity
        });
        first
            .filter(|_| !has_progress)
            .map(|condition| Trouble::in_progress(condition.line()))
    }

    fn troubles(&self) -> Vec<Trouble> {
        let is_good = self.is_whole_good();
        let fresh = self.fresh.iter();
        fresh
            .filter_map(|condition| trouble(*condition, is_good))
            .collect()
    }
}

/// Returns whether a condition is the first of a new object: of a Helm
/// operator, or of Crossplane.
fn is_first(condition: Condition<'_>) -> bool {
    condition.is_true()
        && match condition.name() {
            "Initialized" => true,
            "Synced" => condition.reason() == "ReconcileSuccess",
            _ => false,
        }
}

/// Message of the condition `Running` while an Ansible operator works.
const ANSIBLE_RUN: &str = "Running reconciliation";

/// Returns the trouble that a condition reports. `is_good` is set if another
/// condition reports the whole object as ready.
fn trouble(condition: Condition<'_>, is_good: bool) -> Option<Trouble> {
    let counts = |weight| weight != Weight::Part || !is_good;
    let is_true = condition.is_true();
    match sense(condition.name()) {
        Sense::Good(Weight::Spec | Weight::Part) if condition.severity() == "Info" => None,
        Sense::Good(weight) => (!is_true && counts(weight)).then(|| explained(condition)),
        Sense::NotGood(weight) => (is_true && counts(weight)).then(|| explained(condition)),
        Sense::Failed => is_true.then(|| Trouble::failed(condition.line(), GiveUp::AfterGrace)),
        Sense::Bad(weight) => (is_true && counts(weight))
            .then(|| Trouble::failed(condition.line(), GiveUp::AtDeadline)),
        Sense::Work(weight) => {
            (is_true && counts(weight)).then(|| Trouble::in_progress(condition.line()))
        }
        Sense::Progressing if words::is_done(condition.reason()) => None,
        // Many operators end in this state.
        Sense::Progressing if condition.is_false() && is_good => None,
        Sense::Progressing if is_true => Some(Trouble::in_progress(condition.line())),
        Sense::Progressing => Some(explained(condition)),
        Sense::Activity if is_true && condition.message() == ANSIBLE_RUN => {
            Some(Trouble::in_progress(condition.line()))
        }
        Sense::Activity => {
            let has_failed = words::reason(condition.reason()) == Some(Meaning::Failed);
            (condition.is_false() && has_failed && !is_good).then(|| explained(condition))
        }
        Sense::Paused | Sense::Neutral => None,
    }
}

/// Decides by severity, reason and message whether a condition means "failed".
fn explained(condition: Condition<'_>) -> Trouble {
    let line = condition.line();
    let meaning = match condition.severity() {
        "Error" => Some(Meaning::Failed),
        "Info" => Some(Meaning::InProgress),
        _ => words::reason(condition.reason()).or_else(|| words::message(condition.message())),
    };
    let is_known = condition.is_true() || condition.is_false();
    if is_known && meaning == Some(Meaning::Failed) {
        Trouble::failed(line, GiveUp::AtDeadline)
    } else {
        Trouble::in_progress(line)
    }
}

/// Returns whether a condition reports that the controller is working.
fn is_at_work(condition: Condition<'_>) -> bool {
    condition.is_true()
        && match sense(condition.name()) {
            Sense::Work(weight) => weight == Weight::Whole,
            Sense::Progressing => !words::is_done(condition.reason()),
            Sense::Good(_)
            | Sense::NotGood(_)
            | Sense::Activity
            | Sense::Failed
            | Sense::Bad(_)
            | Sense::Paused
            | Sense::Neutral => false,
        }
}
