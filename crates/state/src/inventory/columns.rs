//! Status fields that `kubectl get` shows as columns, derived from the conditions.

use jiff::Timestamp;
use serde_json::{Value, json};

use super::UserRequests;
use super::conditions::{ConditionKind, of};

/// Maximum length of the message, in characters.
const LONGEST: usize = 120;
/// Number of characters shown of a commit id.
const COMMIT: usize = 7;
/// Reasons of condition Ready that occur only after everything was applied.
const APPLIED: [&str; 2] = ["Degraded", "Recovered"];

/// Sets the column fields of a status. `live` is the live object with the user requests.
pub(super) fn fill(status: &mut Value, live: &Value, now: Timestamp) {
    let commit: String = text(&status["revision"]).chars().take(COMMIT).collect();
    let suspended = UserRequests::read(live).suspended(now).is_some();
    let conditions = of(status);
    let synced = if is_true(conditions, "SourceUnavailable") {
        "Unknown"
    } else if is_synced(conditions) {
        "True"
    } else {
        "False"
    };
    let summary = shortened(summary(conditions));
    status["commit"] = json!(commit);
    status["synced"] = json!(synced);
    status["suspended"] = json!(if suspended { "True" } else { "False" });
    status["summary"] = json!(summary);
}

/// Extracts the column fields of a status.
pub(super) fn of_status(status: &Value) -> Value {
    json!({
        "commit": status["commit"],
        "synced": status["synced"],
        "suspended": status["suspended"],
        "summary": status["summary"],
    })
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

fn find<'a>(conditions: &'a [Value], kind: &str) -> Option<&'a Value> {
    conditions.iter().find(|one| one["type"] == kind)
}

fn is_true(conditions: &[Value], kind: &str) -> bool {
    find(conditions, kind).is_some_and(|one| one["status"] == "True")
}

/// Returns whether the cluster is in sync with the newest commit, ready or not.
fn is_synced(conditions: &[Value]) -> bool {
    let behind = ["Stalled", "Reconciling", "Drifted"];
    let ready = find(conditions, "Ready");
    ready
        .is_some_and(|ready| ready["status"] == "True" || APPLIED.contains(&text(&ready["reason"])))
        && behind.iter().all(|kind| !is_true(conditions, kind))
}

/// Returns the most severe condition message.
fn summary(conditions: &[Value]) -> &str {
    let troubles = [
        ConditionKind::Stalled,
        ConditionKind::Degraded,
        ConditionKind::Drifted,
        ConditionKind::Waiting,
        ConditionKind::SourceUnavailable,
    ];
    let mut messages = troubles
        .iter()
        .map(|kind| kind.as_str())
        .filter(|kind| is_true(conditions, kind))
        .filter_map(|kind| find(conditions, kind))
        .map(|condition| text(&condition["message"]));
    let ready = find(conditions, "Ready").filter(|ready| ready["status"] != "True");
    let ready = ready.map(|ready| text(&ready["message"]));
    messages
        .find(|message| !message.is_empty())
        .or(ready)
        .unwrap_or_default()
}

/// Shortens a message to one line of bounded length.
fn shortened(message: &str) -> String {
    let line = message.split_whitespace().collect::<Vec<_>>().join(" ");
    if line.chars().count() <= LONGEST {
        return line;
    }
    let short: String = line.chars().take(LONGEST - 1).collect();
    format!("{short}…")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn columns(ready: (&str, &str), reported: &[(&str, &str)], live: &Value) -> [String; 4] {
        let (status, reason) = ready;
        let ready = json!({"type": "Ready", "status": status, "reason": reason, "message": "why"});
        let reported = reported
            .iter()
            .map(|(kind, message)| json!({"type": kind, "status": "True", "message": message}));
        let conditions: Vec<Value> = [ready].into_iter().chain(reported).collect();
        let revision = "0bc84c90add820bb7a4c4aac6bbd3d411f48d652";
        let mut status = json!({"revision": revision, "conditions": conditions});
        fill(&mut status, live, Timestamp::UNIX_EPOCH);
        ["commit", "synced", "suspended", "summary"].map(|key| text(&status[key]).to_owned())
    }

    type Case<'a> = (
        (&'a str, &'a str),
        &'a [(&'a str, &'a str)],
        &'a Value,
        [&'a str; 3],
    );

    #[test]
    fn the_columns_show_an_unsynced_commit() {
        let suspended = json!({"spec": {"suspend": {"reason": "a test", "by": "ann"}}});
        let none = json!({});
        let deployed = ("True", "Deployed");
        let cases: [Case<'_>; 9] = [
            (
                deployed,
                &[("Followed", "env/a")],
                &none,
                ["True", "False", ""],
            ),
            (
                deployed,
                &[("Stalled", "a.yaml:1: no\nfield")],
                &none,
                ["False", "False", "a.yaml:1: no field"],
            ),
            (
                deployed,
                &[("Drifted", "x"), ("Stalled", "y")],
                &none,
                ["False", "False", "y"],
            ),
            (
                ("False", "Degraded"),
                &[("Degraded", "web is down")],
                &none,
                ["True", "False", "web is down"],
            ),
            (("False", "Failed"), &[], &none, ["False", "False", "why"]),
            (
                ("False", "Reconciling"),
                &[("Reconciling", "")],
                &none,
                ["False", "False", "why"],
            ),
            (
                deployed,
                &[("Reconciling", "the window is closed")],
                &none,
                ["False", "False", "the window is closed"],
            ),
            (
                deployed,
                &[("SourceUnavailable", "no route")],
                &none,
                ["Unknown", "False", "no route"],
            ),
            (deployed, &[], &suspended, ["True", "True", ""]),
        ];
        for (ready, reported, live, expected) in cases {
            let [commit, rest @ ..] = columns(ready, reported, live);
            assert_eq!(commit, "0bc84c9");
            assert_eq!(rest, expected, "{ready:?} {reported:?}");
        }
        let long = "ä".repeat(500);
        let [.., summary] = columns(deployed, &[("Stalled", &long)], &none);
        assert_eq!(summary.chars().count(), LONGEST);
    }
}
