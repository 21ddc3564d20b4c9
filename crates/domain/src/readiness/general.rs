//! Rules for custom resources without a row in the table: conditions of well-known
//! types, and words of the status.
//!
//! Whatever reports trouble holds the verdict back. The type of a condition, or its
//! reason and message, decide between "in progress" and "failed".

mod paused;
mod status;
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

/// A reason against "ready".
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

/// Conditions of one list; those of an earlier generation apart.
struct Conditions<'a> {
    fresh: Vec<Condition<'a>>,
    stale: Vec<Condition<'a>>,
}

/// Judges an object.
pub(super) fn assess(value: &Value) -> Assessment {
    let lists = lists(value);
    let fresh: Vec<Condition<'_>> = lists.iter().flat_map(|list| list.fresh.clone()).collect();
    if let Some(line) = paused::paused(value, &fresh) {
        return Assessment::note(format!("paused: {line}"));
    }
    if let Some(lag) = lagging(value) {
        return lag;
    }
    let mut troubles: Vec<Trouble> = lists.iter().flat_map(Conditions::troubles).collect();
    troubles.extend(status::trouble(value));
    if !lists.iter().any(Conditions::is_whole_good) {
        troubles.extend(status::trouble_of_parts(value));
    }
    // Controllers at work report passing errors.
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

/// `status.conditions`; where there are none, those of the items of other lists.
fn lists(value: &Value) -> Vec<Conditions<'_>> {
    let generation = value["metadata"]["generation"].as_i64();
    let status = &value["status"];
    let whole = Conditions::read(status, generation);
    if !whole.is_empty() {
        return vec![whole];
    }
    let fields = status.as_object().into_iter().flatten();
    let items = fields.filter_map(|(_, field)| field.as_array()).flatten();
    items
        .map(|item| Conditions::read(item, generation))
        .filter(|list| !list.is_empty())
        .collect()
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

    /// Whether a condition says that the whole object is ready.
    fn is_whole_good(&self) -> bool {
        let mut fresh = self.fresh.iter();
        // "Synced" is about the spec, not about its effect.
        fresh.any(|condition| {
            condition.is_true()
                && sense(condition.name()) == Sense::Good(Weight::Whole)
                && !condition.name().eq_ignore_ascii_case("synced")
        })
    }

    /// Whether only conditions of an earlier generation say that the object is ready.
    fn is_outdated(&self) -> bool {
        let is_good = |condition: &Condition<'_>| {
            condition.is_true() && matches!(sense(condition.name()), Sense::Good(_))
        };
        let is_whole =
            |condition: &Condition<'_>| sense(condition.name()) == Sense::Good(Weight::Whole);
        let is_confirmed = self.fresh.iter().any(is_good) && !self.stale.iter().any(is_whole);
        !self.stale.is_empty() && !self.is_whole_good() && !is_confirmed
    }

    fn troubles(&self) -> Vec<Trouble> {
        let is_good = self.is_whole_good();
        let fresh = self.fresh.iter();
        fresh
            .filter_map(|condition| trouble(*condition, is_good))
            .collect()
    }
}

/// Reads trouble from a condition; `is_good`: another one says that the whole object
/// is ready.
fn trouble(condition: Condition<'_>, is_good: bool) -> Option<Trouble> {
    let counts = |weight| weight == Weight::Whole || !is_good;
    let is_true = condition.is_true();
    match sense(condition.name()) {
        Sense::Good(Weight::Part) if condition.severity() == "Info" => None,
        Sense::Good(weight) => (!is_true && counts(weight)).then(|| explained(condition)),
        Sense::NotGood(weight) => (is_true && counts(weight)).then(|| explained(condition)),
        Sense::Failed => is_true.then(|| Trouble::failed(condition.line(), GiveUp::AfterGrace)),
        Sense::Bad(weight) => (is_true && counts(weight))
            .then(|| Trouble::failed(condition.line(), GiveUp::AtDeadline)),
        Sense::Work(weight) => {
            (is_true && counts(weight)).then(|| Trouble::in_progress(condition.line()))
        }
        Sense::Progressing if words::is_done(condition.reason()) => None,
        // The settled state of many operators.
        Sense::Progressing if condition.is_false() && is_good => None,
        Sense::Progressing if is_true => Some(Trouble::in_progress(condition.line())),
        Sense::Progressing => Some(explained(condition)),
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

/// Whether a condition says that the controller is at work.
fn is_at_work(condition: Condition<'_>) -> bool {
    condition.is_true()
        && match sense(condition.name()) {
            Sense::Work(Weight::Whole) => true,
            Sense::Progressing => !words::is_done(condition.reason()),
            Sense::Work(Weight::Part)
            | Sense::Good(_)
            | Sense::NotGood(_)
            | Sense::Failed
            | Sense::Bad(_)
            | Sense::Paused
            | Sense::Neutral => false,
        }
}
