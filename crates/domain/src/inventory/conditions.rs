//! Conditions of a release. Those of the record are written with it; those that
//! the loop tells stand beside them, and each write keeps the other's.

use jiff::Timestamp;
use serde_json::{Value, json};

use super::release::status_of;

/// Reason of the condition by which a release is told to wait for others.
pub const DEPENDENCY_NOT_READY: &str = "DependencyNotReady";
/// Reason of the condition by which a release is told to wait for its time.
pub const WINDOW_CLOSED: &str = "WindowClosed";

/// What the loop says of a release beside its record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Condition {
    /// Its type.
    pub kind: ConditionKind,
    /// One word.
    pub reason: String,
    /// One line.
    pub message: String,
}

/// What the loop can say. Each of them is left out where it does not hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum ConditionKind {
    /// A loop keeps the release equal to a branch.
    Followed,
    /// What git wants cannot be carried out until somebody does something.
    Stalled,
    /// What comes before it is not ready yet, or it is not the time for it; nobody has
    /// to do anything.
    Waiting,
    /// Somebody changed what git says, and it is left as it is.
    Drifted,
    /// git cannot be reached: newer commits are not seen.
    SourceUnavailable,
}

impl ConditionKind {
    const ALL: [Self; 5] = [
        Self::Followed,
        Self::Stalled,
        Self::Waiting,
        Self::Drifted,
        Self::SourceUnavailable,
    ];

    /// As it is written.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Followed => "Followed",
            Self::Stalled => "Stalled",
            // As kstatus has it: not there yet, and on its way.
            Self::Waiting => "Reconciling",
            Self::Drifted => "Drifted",
            Self::SourceUnavailable => "SourceUnavailable",
        }
    }

    fn is(self, condition: &Value) -> bool {
        // The record has a condition Reconciling of its own.
        let reasons = [DEPENDENCY_NOT_READY, WINDOW_CLOSED];
        let is_its_reason =
            self != Self::Waiting || reasons.iter().any(|known| condition["reason"] == *known);
        condition["type"] == self.as_str() && is_its_reason
    }
}

/// Whether a condition is one that the loop tells.
pub(super) fn is_told(condition: &Value) -> bool {
    ConditionKind::ALL.iter().any(|kind| kind.is(condition))
}

/// What a loop that follows a release says of itself in the object that holds
/// the record; none where no loop does.
pub fn followed(live: &Value) -> Option<String> {
    let status = status_of(live).ok()?;
    let mut conditions = of(&status).iter();
    let condition = conditions.find(|condition| ConditionKind::Followed.is(condition))?;
    Some(condition["message"].as_str().unwrap_or_default().to_owned())
}

fn of(status: &Value) -> &[Value] {
    status["conditions"].as_array().map_or(&[], Vec::as_slice)
}

/// Takes the time of the last transition from what was said before, where
/// nothing has changed since.
fn keep_time(before: &[Value], condition: &mut Value) {
    let same = before
        .iter()
        .find(|known| known["type"] == condition["type"] && known["status"] == condition["status"]);
    if let Some(same) = same
        && same["lastTransitionTime"].is_string()
    {
        condition["lastTransitionTime"] = same["lastTransitionTime"].clone();
    }
}

/// Lays a status that is about to be written over the one that `live` holds:
/// what the loop said stays.
pub fn carry_over(live: &Value, status: &mut Value) {
    let Ok(before) = status_of(live) else { return };
    let before = of(&before);
    let Some(conditions) = status["conditions"].as_array_mut() else {
        return;
    };
    for condition in conditions.iter_mut() {
        keep_time(before, condition);
    }
    let told = before.iter().filter(|known| is_told(known));
    let kept: Vec<Value> = told
        .filter(|known| conditions.iter().all(|one| one["type"] != known["type"]))
        .cloned()
        .collect();
    conditions.extend(kept);
}

/// The status of `live` as it has to be for the loop to have said exactly this;
/// none where it is that already.
pub fn telling(live: &Value, said: &[Condition], now: Timestamp) -> Option<Value> {
    let status = status_of(live).ok()?;
    let before = of(&status);
    let mut conditions: Vec<Value> = before
        .iter()
        .filter(|condition| !is_told(condition))
        .cloned()
        .collect();
    for Condition {
        kind,
        reason,
        message,
    } in said
    {
        // Somebody carries it out right now, and says so.
        if conditions.iter().any(|one| one["type"] == kind.as_str()) {
            continue;
        }
        let mut condition = json!({
            "type": kind.as_str(),
            "status": "True",
            "reason": reason,
            "message": message,
            "lastTransitionTime": now.to_string(),
        });
        keep_time(before, &mut condition);
        conditions.push(condition);
    }
    (conditions != before).then(|| {
        let mut status = status.into_owned();
        if !status.is_object() {
            status = json!({});
        }
        status["conditions"] = json!(conditions);
        status
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn drifted(message: &str) -> Condition {
        Condition {
            kind: ConditionKind::Drifted,
            reason: "ChangedByOthers".to_owned(),
            message: message.to_owned(),
        }
    }

    fn types(status: &Value) -> Vec<(&str, &str)> {
        of(status)
            .iter()
            .map(|one| {
                (
                    one["type"].as_str().unwrap(),
                    one["lastTransitionTime"].as_str().unwrap(),
                )
            })
            .collect()
    }

    fn live(status: &Value) -> [Value; 2] {
        [
            json!({"kind": "Release", "status": status}),
            json!({"kind": "ConfigMap", "data": {"status": status.to_string()}}),
        ]
    }

    #[test]
    fn what_the_loop_says_is_kept_and_taken_back() {
        let ready = json!({"type": "Ready", "status": "True", "lastTransitionTime": "then"});
        for live_of in [0, 1] {
            let first = &live(&json!({"conditions": [ready]}))[live_of];
            assert_eq!(telling(first, &[], at(0)), None);
            let told = telling(first, &[drifted("a")], at(0)).unwrap();
            assert_eq!(
                types(&told),
                [("Ready", "then"), ("Drifted", "1970-01-01T00:00:00Z")]
            );
            // The same again is no change, other words are one.
            let second = &live(&told)[live_of];
            assert_eq!(telling(second, &[drifted("a")], at(9)), None);
            let other = telling(second, &[drifted("b")], at(9)).unwrap();
            assert_eq!(types(&other)[1].1, "1970-01-01T00:00:00Z");
            assert_eq!(other["conditions"][1]["message"], "b");
            // The record is written meanwhile.
            let mut status = json!({"conditions": [
                {"type": "Ready", "status": "False", "lastTransitionTime": "now"}]});
            carry_over(second, &mut status);
            assert_eq!(
                types(&status),
                [("Ready", "now"), ("Drifted", "1970-01-01T00:00:00Z")]
            );
            let back = telling(&live(&status)[live_of], &[], at(9)).unwrap();
            assert_eq!(types(&back), [("Ready", "now")]);
        }
    }

    #[test]
    fn who_waits_for_its_time_is_told_so_until_it_is_over() {
        let waiting = Condition {
            kind: ConditionKind::Waiting,
            reason: WINDOW_CLOSED.to_owned(),
            message: "not at this time".to_owned(),
        };
        let first = json!({"kind": "Release", "status": {"conditions": []}});
        let told = telling(&first, &[waiting], at(0)).unwrap();
        assert_eq!(types(&told), [("Reconciling", "1970-01-01T00:00:00Z")]);
        let live = json!({"kind": "Release", "status": told});
        let over = telling(&live, &[], at(1)).unwrap();
        assert!(types(&over).is_empty(), "{over}");
    }

    #[test]
    fn who_waits_for_others_is_told_so_until_it_begins() {
        let waiting = Condition {
            kind: ConditionKind::Waiting,
            reason: DEPENDENCY_NOT_READY.to_owned(),
            message: "it depends on release a".to_owned(),
        };
        let own = json!({"type": "Reconciling", "reason": "Reconciling", "status": "True"});
        let first = json!({"kind": "Release", "status": {"conditions": []}});
        let told = telling(&first, &[waiting], at(0)).unwrap();
        assert_eq!(types(&told), [("Reconciling", "1970-01-01T00:00:00Z")]);
        // Somebody else carries it out: the condition is there once.
        let live = json!({"kind": "Release", "status": told});
        let mut status = json!({"conditions": [own]});
        carry_over(&live, &mut status);
        assert_eq!(status["conditions"].as_array().unwrap().len(), 1);
        assert_eq!(status["conditions"][0]["reason"], "Reconciling");
        // What the record says is not taken back.
        let live = json!({"kind": "Release", "status": status});
        assert_eq!(telling(&live, &[], at(0)), None);
    }

    #[test]
    fn a_loop_that_follows_a_release_is_known_by_what_it_says() {
        let said = [Condition {
            kind: ConditionKind::Followed,
            reason: "Loop".to_owned(),
            message: "branch env/a of fleet".to_owned(),
        }];
        for one in live(&json!({"conditions": []})) {
            assert_eq!(followed(&one), None);
            let mut status = telling(&one, &said, at(0)).unwrap();
            for one in live(&status) {
                assert_eq!(followed(&one).unwrap(), "branch env/a of fleet");
            }
            // A run from elsewhere does not take that back.
            let before = live(&status)[0].clone();
            status = json!({"conditions": [{"type": "Ready", "status": "True"}]});
            carry_over(&before, &mut status);
            assert!(followed(&live(&status)[1]).is_some());
        }
        assert_eq!(followed(&json!({"kind": "ConfigMap"})), None);
    }

    #[test]
    fn a_condition_that_stays_keeps_its_time() {
        let ready =
            |time: &str| json!({"type": "Ready", "status": "True", "lastTransitionTime": time});
        let live = json!({"kind": "Release", "status": {"conditions": [ready("then")]}});
        let mut status = json!({"conditions": [ready("now")]});
        carry_over(&live, &mut status);
        assert_eq!(types(&status), [("Ready", "then")]);
    }
}
