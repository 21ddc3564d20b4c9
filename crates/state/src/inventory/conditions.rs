//! Conditions of a release.
//!
//! A run writes its conditions together with the record. The controller adds its own conditions to
//! the same status. Each writer preserves the conditions of the other.

use std::time::Duration;

use jiff::Timestamp;
use serde_json::{Value, json};

use super::columns;
use super::nodes::carry_over_nodes;
use super::release::status_of;

/// Condition reason of a release that waits for its dependencies.
pub const DEPENDENCY_NOT_READY: &str = "DependencyNotReady";
/// Reason of condition Ready after a release is no longer degraded.
const RECOVERED: &str = "Recovered";
/// Reason of Ready after a complete apply.
const DEPLOYED: &str = "Deployed";
/// Condition reason of a release whose plan waits for approval.
pub const AWAITING_APPROVAL: &str = "AwaitingApproval";
/// Start of the message about a plan that waits for approval. The digest of its effects follows.
const AWAITS: &str = "waits for approval of ";
/// Condition reason of a release that waits for its change window.
pub const WINDOW_CLOSED: &str = "WindowClosed";

/// Interval at which a controller renews its condition Followed.
pub const HEARTBEAT: Duration = Duration::from_mins(30);
/// Number of heartbeats after which a silent controller counts as gone.
const MISSED: u32 = 4;
/// Field of condition Followed that contains the time of the last heartbeat.
const RENEWED: &str = "lastHeartbeatTime";

/// The controller that follows a release, from the conditions of the record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Following {
    /// Description of branch and repository.
    pub branch: String,
    /// Time of the last heartbeat. `None` for older controllers, which write no time.
    pub renewed: Option<Timestamp>,
}

impl Following {
    /// Returns whether the controller missed so many heartbeats that it counts as gone.
    pub fn is_stale(&self, now: Timestamp) -> bool {
        let silent = self.renewed.map(|renewed| now.duration_since(renewed));
        silent.is_some_and(|silent| {
            Duration::try_from(silent).is_ok_and(|silent| silent > HEARTBEAT * MISSED)
        })
    }
}

/// A condition that the controller adds to a record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Condition {
    /// Type of the condition.
    pub kind: ConditionKind,
    /// CamelCase reason.
    pub reason: String,
    /// Message of one line.
    pub message: String,
}

/// Types of the controller's conditions. A condition that does not apply is omitted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum ConditionKind {
    /// A controller keeps the release in sync with a branch.
    Followed,
    /// The desired state cannot be applied until a user acts.
    Stalled,
    /// The release waits for a dependency or a change window. No user has to act.
    Waiting,
    /// Another client changed the objects, and the controller does not correct them.
    Drifted,
    /// An object was ready and is not ready any more.
    Degraded,
    /// The git repository is unreachable, so newer commits are unknown.
    SourceUnavailable,
}

impl ConditionKind {
    const ALL: [Self; 6] = [
        Self::Followed,
        Self::Stalled,
        Self::Waiting,
        Self::Drifted,
        Self::Degraded,
        Self::SourceUnavailable,
    ];

    /// Returns the condition type as written to the status.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Followed => "Followed",
            Self::Stalled => "Stalled",
            // kstatus convention: not current yet, but in progress.
            Self::Waiting => "Reconciling",
            Self::Drifted => "Drifted",
            Self::Degraded => "Degraded",
            Self::SourceUnavailable => "SourceUnavailable",
        }
    }

    fn is(self, condition: &Value) -> bool {
        // A run also writes a condition Reconciling, with another reason.
        let reasons = [DEPENDENCY_NOT_READY, WINDOW_CLOSED];
        let is_its_reason =
            self != Self::Waiting || reasons.iter().any(|known| condition["reason"] == *known);
        condition["type"] == self.as_str() && is_its_reason
    }
}

/// Returns the message about a plan that waits for approval: the digest of its effects, and their
/// description.
pub fn awaiting_approval(effects: &str, description: &str) -> String {
    format!("{AWAITS}{effects}: {description}")
}

/// Returns the digest of the effects that wait for approval, from such a message.
pub(super) fn awaited_effects(message: &str) -> Option<&str> {
    let (effects, _) = message.strip_prefix(AWAITS)?.split_once(": ")?;
    Some(effects)
}

/// Returns whether the controller wrote a condition.
pub(super) fn is_reported(condition: &Value) -> bool {
    ConditionKind::ALL.iter().any(|kind| kind.is(condition))
}

/// Reads condition Followed from the object with the record. `None` if no controller follows the
/// release.
pub fn followed(live: &Value) -> Option<Following> {
    let status = status_of(live).ok()?;
    let mut conditions = of(&status).iter();
    let condition = conditions.find(|condition| ConditionKind::Followed.is(condition))?;
    let text = |key: &str| condition[key].as_str().unwrap_or_default();
    Some(Following {
        branch: text("message").to_owned(),
        renewed: text(RENEWED).parse().ok(),
    })
}

/// Sets the heartbeat time of condition Followed. Keeps the previous time while it is recent.
fn beat(before: &[Value], condition: &mut Value, now: Timestamp) {
    let known = before.iter().find(|one| ConditionKind::Followed.is(one));
    let known = known.and_then(|known| known[RENEWED].as_str());
    let is_young = |text: &&str| {
        let renewed: Option<Timestamp> = text.parse().ok();
        let age = renewed.map(|renewed| now.duration_since(renewed));
        age.is_some_and(|age| Duration::try_from(age.abs()).is_ok_and(|age| age < HEARTBEAT))
    };
    let renewed = known.filter(is_young).map(str::to_owned);
    condition[RENEWED] = json!(renewed.unwrap_or_else(|| now.to_string()));
}

pub(super) fn of(status: &Value) -> &[Value] {
    status["conditions"].as_array().map_or(&[], Vec::as_slice)
}

/// Keeps the last transition time if the status of the condition is unchanged.
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

/// Reasons of condition Stalled with which the newest commit is refused.
const REFUSED: [&str; 5] = [
    "InvalidRepository",
    "Refused",
    "UntrustedArtifact",
    "UntrustedCommit",
    "WrongCluster",
];

/// Sets Ready to False while the release is degraded, or while the newest commit is refused.
/// Restores Ready afterwards, if one of these was its reason.
fn overrule(conditions: &mut [Value], now: Timestamp) {
    const DEGRADED: &str = ConditionKind::Degraded.as_str();
    let find = |is_meant: &dyn Fn(&Value) -> bool| {
        let mut conditions = conditions.iter();
        conditions.find(|one| is_meant(one)).cloned()
    };
    let is_refused =
        |one: &Value| ConditionKind::Stalled.is(one) && REFUSED.contains(&reason_of(one));
    let degraded = find(&|one| ConditionKind::Degraded.is(one));
    let refused = find(&is_refused);
    let Some(ready) = conditions.iter_mut().find(|one| one["type"] == "Ready") else {
        return;
    };
    let was_degraded = ready["reason"] == DEGRADED;
    let was_overruled = was_degraded || REFUSED.contains(&reason_of(ready));
    let (status, reason, message) = match (degraded, refused) {
        (None, None) if was_degraded => ("True", RECOVERED.to_owned(), json!("")),
        (None, None) if was_overruled => ("True", DEPLOYED.to_owned(), json!("")),
        _ if ready["status"] != "True" && !was_overruled => return,
        (Some(one), _) => ("False", DEGRADED.to_owned(), one["message"].clone()),
        (None, Some(one)) => ("False", reason_of(&one).to_owned(), one["message"].clone()),
        (None, None) => return,
    };
    if ready["status"] != status {
        ready["lastTransitionTime"] = json!(now.to_string());
    }
    ready["status"] = json!(status);
    ready["reason"] = json!(reason);
    ready["message"] = message;
}

fn reason_of(condition: &Value) -> &str {
    condition["reason"].as_str().unwrap_or_default()
}

/// Returns the message of condition Degraded. `None` if the release is not degraded.
pub fn degraded(live: &Value) -> Option<String> {
    let status = status_of(live).ok()?;
    let mut conditions = of(&status).iter();
    let condition = conditions.find(|condition| ConditionKind::Degraded.is(condition))?;
    Some(condition["message"].as_str().unwrap_or_default().to_owned())
}

/// Adds the controller's conditions in `live` to a status that is about to be written.
pub fn carry_over(live: &Value, status: &mut Value, now: Timestamp) {
    let Ok(before) = status_of(live) else { return };
    carry_over_nodes(&before, status);
    let before = of(&before);
    let Some(conditions) = status["conditions"].as_array_mut() else {
        return;
    };
    let reported = before.iter().filter(|known| is_reported(known));
    let retained: Vec<Value> = reported
        .filter(|known| conditions.iter().all(|one| one["type"] != known["type"]))
        .cloned()
        .collect();
    conditions.extend(retained);
    overrule(conditions, now);
    for condition in conditions.iter_mut() {
        keep_time(before, condition);
    }
    columns::fill(status, live, now);
}

/// Returns the status of `live` with exactly these controller conditions. `None` if the status has
/// them already.
pub fn changed_status(live: &Value, reported: &[Condition], now: Timestamp) -> Option<Value> {
    let status = status_of(live).ok()?;
    let before = of(&status);
    let mut conditions: Vec<Value> = before
        .iter()
        .filter(|condition| !is_reported(condition))
        .cloned()
        .collect();
    for Condition {
        kind,
        reason,
        message,
    } in reported
    {
        // A run is in progress and writes this condition itself.
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
        if *kind == ConditionKind::Followed {
            beat(before, &mut condition, now);
        }
        conditions.push(condition);
    }
    overrule(&mut conditions, now);
    let is_other = conditions != before;
    let mut next = status.clone().into_owned();
    if !next.is_object() {
        next = json!({});
    }
    next["conditions"] = json!(conditions);
    columns::fill(&mut next, live, now);
    // A status without columns gets them with its next change.
    let has_columns = !status["synced"].is_null();
    let is_newer = has_columns && columns::of_status(&status) != columns::of_status(&next);
    (is_other || is_newer).then_some(next)
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
    fn conditions_of_the_controller_are_written_and_removed() {
        let ready = json!({"type": "Ready", "status": "True", "lastTransitionTime": "then"});
        for live_of in [0, 1] {
            let first = &live(&json!({"conditions": [ready]}))[live_of];
            assert_eq!(changed_status(first, &[], at(0)), None);
            let written = changed_status(first, &[drifted("a")], at(0)).unwrap();
            assert_eq!(
                types(&written),
                [("Ready", "then"), ("Drifted", "1970-01-01T00:00:00Z")]
            );
            // An equal message is no change, another message is.
            let second = &live(&written)[live_of];
            assert_eq!(changed_status(second, &[drifted("a")], at(9)), None);
            let other = changed_status(second, &[drifted("b")], at(9)).unwrap();
            assert_eq!(types(&other)[1].1, "1970-01-01T00:00:00Z");
            assert_eq!(other["conditions"][1]["message"], "b");
            // A run writes the record in the meantime.
            let mut status = json!({"conditions": [
                {"type": "Ready", "status": "False", "lastTransitionTime": "now"}]});
            carry_over(second, &mut status, at(9));
            assert_eq!(
                types(&status),
                [("Ready", "now"), ("Drifted", "1970-01-01T00:00:00Z")]
            );
            let back = changed_status(&live(&status)[live_of], &[], at(9)).unwrap();
            assert_eq!(types(&back), [("Ready", "now")]);
        }
    }

    #[test]
    fn a_wait_for_a_window_is_shown_until_it_ends() {
        let waiting = Condition {
            kind: ConditionKind::Waiting,
            reason: WINDOW_CLOSED.to_owned(),
            message: "not at this time".to_owned(),
        };
        let first = json!({"kind": "Release", "status": {"conditions": []}});
        let written = changed_status(&first, &[waiting], at(0)).unwrap();
        assert_eq!(types(&written), [("Reconciling", "1970-01-01T00:00:00Z")]);
        let live = json!({"kind": "Release", "status": written});
        let over = changed_status(&live, &[], at(1)).unwrap();
        assert!(types(&over).is_empty(), "{over}");
    }

    #[test]
    fn a_wait_for_dependencies_is_shown_until_the_start() {
        let waiting = Condition {
            kind: ConditionKind::Waiting,
            reason: DEPENDENCY_NOT_READY.to_owned(),
            message: "it depends on release a".to_owned(),
        };
        let own = json!({"type": "Reconciling", "reason": "Reconciling", "status": "True"});
        let first = json!({"kind": "Release", "status": {"conditions": []}});
        let written = changed_status(&first, &[waiting], at(0)).unwrap();
        assert_eq!(types(&written), [("Reconciling", "1970-01-01T00:00:00Z")]);
        // A run is in progress: the condition occurs once.
        let live = json!({"kind": "Release", "status": written});
        let mut status = json!({"conditions": [own]});
        carry_over(&live, &mut status, at(9));
        assert_eq!(status["conditions"].as_array().unwrap().len(), 1);
        assert_eq!(status["conditions"][0]["reason"], "Reconciling");
        // The condition of the record is not removed.
        let live = json!({"kind": "Release", "status": status});
        assert_eq!(changed_status(&live, &[], at(0)), None);
    }

    #[test]
    fn a_controller_is_recognized_by_its_conditions() {
        let conditions = [Condition {
            kind: ConditionKind::Followed,
            reason: "Loop".to_owned(),
            message: "branch env/a of fleet".to_owned(),
        }];
        for one in live(&json!({"conditions": []})) {
            assert_eq!(followed(&one), None);
            let mut status = changed_status(&one, &conditions, at(0)).unwrap();
            for one in live(&status) {
                assert_eq!(followed(&one).unwrap().branch, "branch env/a of fleet");
            }
            // A local run does not remove the condition.
            let before = live(&status)[0].clone();
            status = json!({"conditions": [{"type": "Ready", "status": "True"}]});
            carry_over(&before, &mut status, at(9));
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
        carry_over(&live, &mut status, at(9));
        assert_eq!(types(&status), [("Ready", "then")]);
    }

    #[test]
    fn a_degraded_release_is_not_ready_until_it_recovers() {
        let ready = json!({"type": "Ready", "status": "True", "reason": "Deployed", "message": "", "lastTransitionTime": "then"});
        let lost_readiness = |message: &str| Condition {
            kind: ConditionKind::Degraded,
            reason: "NotReady".to_owned(),
            message: message.to_owned(),
        };
        let shown = |status: &Value| -> Vec<String> {
            let parts = ["type", "status", "reason", "message", "lastTransitionTime"];
            let line = |one: &Value| parts.map(|part| one[part].as_str().unwrap().to_owned());
            of(status).iter().map(|one| line(one).join(" ")).collect()
        };
        let first = &live(&json!({"conditions": [ready]}))[0];
        let status = changed_status(first, &[lost_readiness("web is down")], at(1)).unwrap();
        let second = &live(&status)[0];
        assert_eq!(degraded(second).as_deref(), Some("web is down"));
        assert_eq!(
            shown(&status),
            [
                "Ready False Degraded web is down 1970-01-01T00:00:01Z",
                "Degraded True NotReady web is down 1970-01-01T00:00:01Z"
            ]
        );
        assert_eq!(
            changed_status(second, &[lost_readiness("web is down")], at(2)),
            None
        );
        // Another message does not change the transition time.
        let status = changed_status(second, &[lost_readiness("web and api are")], at(2)).unwrap();
        assert_eq!(
            shown(&status)[0],
            "Ready False Degraded web and api are 1970-01-01T00:00:01Z"
        );
        // Writing the record in the meantime does not overrule the condition.
        let mut written = json!({"conditions": [ready]});
        carry_over(&live(&status)[0], &mut written, at(3));
        assert_eq!(
            shown(&written)[0],
            "Ready False Degraded web and api are 1970-01-01T00:00:01Z"
        );
        let status = changed_status(&live(&written)[0], &[], at(4)).unwrap();
        assert_eq!(
            shown(&status),
            ["Ready True Recovered  1970-01-01T00:00:04Z"]
        );
        assert_eq!(degraded(&live(&status)[0]), None);
    }

    #[test]
    fn a_release_is_not_ready_while_its_newest_commit_is_refused() {
        let ready = |status: &str, reason: &str| json!({"type": "Ready", "status": status, "reason": reason, "message": ""});
        let told = |kind, reason: &str| Condition {
            kind,
            reason: reason.to_owned(),
            message: format!("because {reason}"),
        };
        let stalled = |reason: &str| told(ConditionKind::Stalled, reason);
        let degraded = || told(ConditionKind::Degraded, "NotReady");
        for (before, reported, expected) in [
            (("True", "Deployed"), vec![], ("True", "Deployed")),
            (
                ("True", "Deployed"),
                vec![stalled("InvalidRepository")],
                ("False", "InvalidRepository"),
            ),
            (
                ("True", "Recovered"),
                vec![stalled("Refused")],
                ("False", "Refused"),
            ),
            // These are no refusals of the commit.
            (
                ("True", "Deployed"),
                vec![stalled("AwaitingApproval")],
                ("True", "Deployed"),
            ),
            (
                ("True", "Deployed"),
                vec![stalled("ControllerCrashed")],
                ("True", "Deployed"),
            ),
            // The result of a run is not replaced.
            (
                ("False", "Failed"),
                vec![stalled("Refused")],
                ("False", "Failed"),
            ),
            (
                ("False", "UntrustedCommit"),
                vec![stalled("Refused")],
                ("False", "Refused"),
            ),
            (
                ("True", "Deployed"),
                vec![stalled("Refused"), degraded()],
                ("False", "Degraded"),
            ),
            (
                ("False", "Degraded"),
                vec![stalled("Refused")],
                ("False", "Refused"),
            ),
            (
                ("False", "Refused"),
                vec![degraded()],
                ("False", "Degraded"),
            ),
            (("False", "Refused"), vec![], ("True", "Deployed")),
            (
                ("False", "WrongCluster"),
                vec![stalled("ControllerCrashed")],
                ("True", "Deployed"),
            ),
        ] {
            let status = json!({"conditions": [ready(before.0, before.1)]});
            let after = changed_status(&live(&status)[0], &reported, at(1)).unwrap_or(status);
            let found = &of(&after)[0];
            let found = (found["status"].as_str().unwrap(), reason_of(found));
            assert_eq!(found, expected, "{before:?} {reported:?}");
        }
    }

    #[test]
    fn a_dead_controller_is_recognized_by_its_heartbeat() {
        let conditions = [Condition {
            kind: ConditionKind::Followed,
            reason: "Loop".to_owned(),
            message: "env/a of fleet".to_owned(),
        }];
        let first = &live(&json!({}))[0];
        let status = changed_status(first, &conditions, at(0)).unwrap();
        let second = &live(&status)[0];
        assert_eq!(followed(second).unwrap().renewed, Some(at(0)));
        // The heartbeat is not renewed early.
        assert_eq!(changed_status(second, &conditions, at(29 * 60)), None);
        let status = changed_status(second, &conditions, at(31 * 60)).unwrap();
        let third = &live(&status)[0];
        let follower = followed(third).unwrap();
        assert_eq!(follower.renewed, Some(at(31 * 60)));
        assert_eq!(
            status["conditions"][0]["lastTransitionTime"],
            at(0).to_string()
        );
        assert!(!follower.is_stale(at(150 * 60)));
        assert!(follower.is_stale(at(152 * 60)));
        // An older controller writes no heartbeat time.
        let older = Following {
            renewed: None,
            ..follower
        };
        assert!(!older.is_stale(at(1 << 32)));
    }
}
