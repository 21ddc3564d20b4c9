//! Verdict about a move from all observers: the user, the audit log, the fault proxy, the pods and
//! the watches.

use std::collections::BTreeMap;

use super::judge::{Change, judge};
use crate::audit::{Event, Events};
use crate::faults::Log;
use crate::generated::Moving;
use crate::world::{Crash, Report};

/// Observations of a move.
pub(super) struct Witnessed {
    /// Changes from the watches.
    pub(super) changes: Vec<Change>,
    /// Results of the user's writes.
    pub(super) report: Report,
    /// Requests of all clients.
    pub(super) requests: Events,
    /// Requests of the program.
    pub(super) traffic: Log,
    /// Crashes of pods.
    pub(super) crashes: Vec<Crash>,
    /// Pairs of namespaces whose controllers ran at the same time.
    pub(super) together: Vec<(String, String)>,
}

/// Returns all violations as text.
pub(super) fn verdict(moving: &Moving, witnessed: &Witnessed) -> Vec<String> {
    let mut wrong = unseen(moving, witnessed);
    wrong.extend(judge(moving, &witnessed.changes));
    wrong.extend(errors(&witnessed.report));
    wrong.extend(refused_to_pods(moving, &witnessed.requests));
    wrong.extend(deleted_blindly(&witnessed.traffic));
    wrong.extend(crashed_again(&witnessed.crashes));
    let together = witnessed.together.iter();
    wrong.extend(together.map(|pair| format!("controllers ran together: {pair:?}")));
    wrong
}

/// Detects missing observations, which would hide violations.
fn unseen(moving: &Moving, witnessed: &Witnessed) -> Vec<String> {
    let mut wrong = Vec::new();
    for place in [&moving.from, &moving.to] {
        let mut changes = witnessed.changes.iter();
        if !changes.any(|change| change.pod_runs_in() == Some(place.as_str())) {
            wrong.push(format!("no pod was seen in {place}"));
        }
    }
    if witnessed.report.writes == 0 {
        wrong.push("the user did not write".to_owned());
    }
    if witnessed.requests.0.is_empty() || witnessed.traffic.requests.is_empty() {
        wrong.push("no request was seen".to_owned());
    }
    wrong
}

/// Checks the user's view.
fn errors(report: &Report) -> Vec<String> {
    let mut wrong = Vec::new();
    if report.failed > 0 {
        wrong.push(format!("{} writes of the user failed", report.failed));
    }
    if report.unvalidated > 0 {
        let count = report.unvalidated;
        wrong.push(format!("nothing checked {count} writes of the user"));
    }
    // The message of a gate names its owner and the command that lifts it.
    let is_ours =
        |message: &str| message.contains("(gate ") && message.contains("pleach doctor --fix");
    let others = report.messages.keys().filter(|message| !is_ours(message));
    wrong.extend(others.map(|message| format!("the user received: {message}")));
    wrong
}

/// Finds requests of pods that failed for lack of permission.
fn refused_to_pods(moving: &Moving, requests: &Events) -> Vec<String> {
    let accounts =
        [&moving.from, &moving.to].map(|place| format!("system:serviceaccount:{place}:"));
    let is_refused = |event: &&Event| {
        let user = event.impersonated_user.as_ref();
        event.code() == 403
            && user.is_some_and(|user| accounts.iter().any(|one| user.username.starts_with(one)))
    };
    let refused = requests.0.iter().filter(is_refused);
    refused
        .map(|event| format!("a pod was refused: {event}"))
        .collect()
}

/// Finds deletions without a uid precondition, except of pleach's own state.
fn deleted_blindly(traffic: &Log) -> Vec<String> {
    let blindly = traffic.writes().filter(|seen| {
        let is_state = seen.path.contains("/namespaces/pleach-system/");
        let uid = &seen.delete_options["preconditions"]["uid"];
        seen.method == http::Method::DELETE && !is_state && !uid.is_string()
    });
    blindly
        .map(|seen| format!("deleted without its uid: {}", seen.path))
        .collect()
}

/// Finds pods that crashed more than once. One crash is allowed, to wait for a missing object.
fn crashed_again(crashes: &[Crash]) -> Vec<String> {
    let mut by_pod: BTreeMap<(&str, &str), Vec<&Crash>> = BTreeMap::new();
    for crash in crashes {
        let pod = (crash.namespace.as_str(), crash.pod.as_str());
        by_pod.entry(pod).or_default().push(crash);
    }
    let again = by_pod.into_values().filter(|all| all.len() > 1);
    again
        .filter_map(|all| {
            let last = all.last()?;
            Some(format!("crashed {} times: {last:?}", all.len()))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use http::Method;
    use serde_json::{Value, json};

    use super::super::judge::tests::History;
    use super::*;
    use crate::faults::{Kind, Seen};

    fn moving() -> Moving {
        Moving::new("m", 1)
    }

    fn traffic(method: Method, path: &str, delete_options: Value) -> Seen {
        Seen {
            method,
            path: path.to_owned(),
            query: String::new(),
            user_agent: String::new(),
            kind: Kind::Write,
            fault: None,
            delete_options,
            status: Some(200),
        }
    }

    fn event(account: &str, code: u16) -> Event {
        serde_json::from_value(json!({
            "verb": "create", "requestURI": "/api/v1/namespaces/a/secrets",
            "user": {"username": "admin"}, "impersonatedUser": {"username": account},
            "objectRef": {"resource": "secrets", "namespace": "a"},
            "responseStatus": {"code": code},
            "requestReceivedTimestamp": "2026-01-02T03:04:05.678901Z",
        }))
        .unwrap()
    }

    fn crash(pod: &str, reason: &str) -> Crash {
        Crash {
            namespace: "m-1".to_owned(),
            pod: pod.to_owned(),
            reason: reason.to_owned(),
        }
    }

    /// Returns observations without violations.
    fn sound() -> Witnessed {
        let uid = json!({"preconditions": {"uid": "u"}});
        let by_name = "/api/v1/namespaces/pleach-system/configmaps/e.r.journal";
        let refusal = "things is closed (gate m.app.move): pleach doctor --fix 1";
        Witnessed {
            changes: History::sound(moving()).changes,
            report: Report {
                writes: 3,
                done: 2,
                refused: 1,
                messages: [(refusal.to_owned(), 1)].into(),
                ..Report::default()
            },
            requests: Events(vec![
                event(&format!("system:serviceaccount:{}:m-api", moving().to), 200),
                event("system:serviceaccount:elsewhere:m-api", 403),
                event("ada", 403),
            ]),
            traffic: Log {
                requests: vec![
                    traffic(Method::DELETE, "/api/v1/namespaces/a/secrets/s", uid),
                    traffic(Method::DELETE, by_name, Value::Null),
                    traffic(Method::PATCH, "/api/v1/namespaces/a", Value::Null),
                ],
            },
            crashes: vec![
                crash("api-1", "no permissions"),
                crash("api-2", "no permissions"),
            ],
            together: Vec::new(),
        }
    }

    #[track_caller]
    fn is_wrong(spoil: impl FnOnce(&mut Witnessed), expected: &[&str]) {
        let mut witnessed = sound();
        spoil(&mut witnessed);
        assert_eq!(verdict(&moving(), &witnessed), expected);
    }

    #[test]
    fn a_sound_move_is_let_pass() {
        is_wrong(|_| {}, &[]);
    }

    #[test]
    fn watched_changes_are_judged() {
        let mut witnessed = sound();
        witnessed.changes.retain(|change| change.told_at() != 1);
        let wrong = verdict(&moving(), &witnessed);
        assert!(!wrong.is_empty());
        let lacks = |one: &String| one.contains(" runs, and its account ");
        assert!(wrong.iter().any(lacks), "{wrong:#?}");
    }

    #[test]
    fn an_empty_observation_is_an_error() {
        let (from, to) = (moving().from, moving().to);
        is_wrong(
            |witnessed| {
                witnessed.changes.clear();
                witnessed.report = Report::default();
                witnessed.requests = Events::default();
            },
            &[
                &format!("no pod was seen in {from}"),
                &format!("no pod was seen in {to}"),
                "the user did not write",
                "no request was seen",
            ],
        );
    }

    #[test]
    fn writes_of_the_user_that_fail_or_pass_unseen_are_wrong() {
        is_wrong(
            |witnessed| {
                witnessed.report.failed = 1;
                let message = "failed calling webhook: no endpoints".to_owned();
                witnessed.report.messages.insert(message, 1);
            },
            &[
                "1 writes of the user failed",
                "the user received: failed calling webhook: no endpoints",
            ],
        );
        is_wrong(
            |witnessed| witnessed.report.unvalidated = 2,
            &["nothing checked 2 writes of the user"],
        );
    }

    #[test]
    fn a_refusal_that_is_no_gate_of_ours_is_wrong() {
        for message in ["things \"vm1\" is forbidden", "closed (gate m.app.move)"] {
            is_wrong(
                |witnessed| {
                    witnessed.report.refused = 1;
                    witnessed.report.messages = [(message.to_owned(), 1)].into();
                },
                &[&format!("the user received: {message}")],
            );
        }
    }

    #[test]
    fn a_pod_that_is_refused_something_is_wrong() {
        for place in [moving().from, moving().to] {
            is_wrong(
                |witnessed| {
                    let account = format!("system:serviceaccount:{place}:m-api");
                    witnessed.requests.0.push(event(&account, 403));
                },
                &["a pod was refused: create secrets a/ 403"],
            );
        }
    }

    #[test]
    fn a_deletion_by_name_alone_is_wrong() {
        let path = "/apis/apps/v1/namespaces/a/deployments/d";
        for options in [
            Value::Null,
            json!({"preconditions": {"resourceVersion": "1"}}),
        ] {
            is_wrong(
                |witnessed| {
                    let deletion = traffic(Method::DELETE, path, options);
                    witnessed.traffic.requests.push(deletion);
                },
                &[&format!("deleted without its uid: {path}")],
            );
        }
    }

    #[test]
    fn a_pod_that_crashes_in_a_loop_is_wrong() {
        is_wrong(
            |witnessed| witnessed.crashes.push(crash("api-1", "still none")),
            &[
                "crashed 2 times: Crash { namespace: \"m-1\", pod: \"api-1\", reason: \"still none\" }",
            ],
        );
    }

    #[test]
    fn controllers_that_ran_together_are_wrong() {
        is_wrong(
            |witnessed| {
                let pair = ("old".to_owned(), "new".to_owned());
                witnessed.together.push(pair);
            },
            &["controllers ran together: (\"old\", \"new\")"],
        );
    }
}
