//! `pleach sync --wait`: waits for the results of requests.

use std::collections::{BTreeMap, BTreeSet};

use futures::{StreamExt as _, stream};
use jiff::{SignedDuration, Timestamp};
use pleach_state::inventory::{DEPENDENCY_NOT_READY, ReleaseSummary, Store, WINDOW_CLOSED};
use tokio::time::{Instant, sleep_until};

use super::Selected;
use crate::cli::{
    Context, Exit, Ui,
    apply::exit_of_kind,
    error::{CliError, Kind},
    format::{status::versions, table::one_line},
    status::is_final,
};
use pleach_engine::sync::{
    report::FailureKind,
    state::{self, Search},
};
use pleach_model::object::ReleaseName;

/// State of a release that a client waits for.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Standing {
    /// The controller is not done. The text describes the present state.
    Open(String),
    /// The controller is done: the exit code of an apply with this result, and its description.
    Over(Exit, String),
}

/// Refuses to wait for releases that no controller reconciles now.
pub(super) fn ensure_executed(releases: &[ReleaseSummary], now: Timestamp) -> Result<(), CliError> {
    for release in releases {
        let target = release.target();
        if let Some(suspension) = release.user_requests.suspended(now) {
            let message = format!("{target} is {}; no sync was requested", suspension.words());
            return Err(CliError::new(Kind::Policy, message)
                .hint(format!("end the suspension first: pleach resume {target}")));
        }
        let following = release.followed.as_ref();
        if following.is_none_or(|following| following.is_stale(now)) {
            let message = format!("no controller follows {target}; no sync was requested");
            return Err(CliError::new(Kind::Failed, message)
                .hint(format!("without a controller: pleach apply {target}")));
        }
    }
    Ok(())
}

/// Waits until the controller has executed the requests for these releases. Prints each result, and
/// returns the exit code that an apply with these results has.
pub(super) async fn run(
    ui: &mut Ui,
    ctx: &Context,
    selected: &Selected,
    releases: &[ReleaseSummary],
    limit: SignedDuration,
) -> Result<Exit, CliError> {
    let key = |release: &ReleaseSummary| (release.name.clone(), release.store.clone());
    let mut open: BTreeMap<(ReleaseName, Store), String> = releases
        .iter()
        .map(|release| (key(release), String::new()))
        .collect();
    let stores: BTreeSet<Store> = open.keys().map(|(_, store)| store.clone()).collect();
    let mut changes = stream::select_all(stores.into_iter().map(|store| {
        let search = Search::In(store.clone());
        let changes = state::follow_releases(&selected.cluster, &search);
        changes.map(move |change| (store.clone(), change)).boxed()
    }));
    let until = Instant::now() + limit.unsigned_abs();
    let mut exit = Exit::DONE;
    while !open.is_empty() {
        let change = tokio::select! {
            biased;
            () = ctx.cancel.cancelled() => return Err(CliError::interrupted()),
            change = changes.next() => change,
            () = sleep_until(until) => return Err(late(&open, limit)),
        };
        let (store, releases) = match change {
            Some((store, Ok(releases))) => (store, releases),
            Some((_, Err(error))) if is_final(&error) => return Err(error.into()),
            Some((_, Err(error))) => {
                ui.status(format_args!("{error}; trying again"));
                continue;
            }
            None => return Err(late(&open, limit)),
        };
        open.retain(|(name, place), last| {
            if *place != store {
                return true;
            }
            let found = releases.iter().find(|release| release.name == *name);
            let target = format!("{}/{}", name.environment, name.release);
            match found.map(standing) {
                Some(Standing::Open(words)) => {
                    if *last != words {
                        ui.status(format_args!("{target}: {words}"));
                        *last = words;
                    }
                    true
                }
                Some(Standing::Over(code, words)) => {
                    ui.print(format_args!("{target}: {words}"));
                    exit = exit.and(code);
                    false
                }
                None => {
                    ui.print(format_args!("{target}: uninstalled"));
                    false
                }
            }
        });
    }
    Ok(exit)
}

/// Returns the error of releases without a result in time.
fn late(open: &BTreeMap<(ReleaseName, Store), String>, limit: SignedDuration) -> CliError {
    let lines = open.iter().map(|((name, _), last)| {
        let last = if last.is_empty() {
            "not seen"
        } else {
            last.as_str()
        };
        format!("{}/{} ({last})", name.environment, name.release)
    });
    let lines: Vec<String> = lines.collect();
    let message = format!("no result after {limit:#}: {}", lines.join(", "));
    CliError::new(Kind::NotReady, message)
        .hint("the requests remain; `pleach status` shows the releases, and `pleach sync --withdraw` withdraws requests")
}

/// Evaluates the record of a release.
fn standing(release: &ReleaseSummary) -> Standing {
    let is_running = matches!(
        release.reason.as_str(),
        "Reconciling" | "Superseded" | "Uninstalling"
    );
    let ready = match (release.reason.as_str(), release.message.as_str()) {
        ("", _) => "no result yet".to_owned(),
        (reason, "") => reason.to_owned(),
        (reason, message) => format!("{reason}: {message}"),
    };
    if release.user_requests.sync.is_some() || is_running {
        return Standing::Open(one_line(&ready));
    }
    let troubles: Vec<(Exit, String)> = release
        .conditions
        .iter()
        .map(|(kind, reason, message)| {
            let exit = exit_of_condition(kind, reason);
            (exit, format!("{kind}: {reason}: {message}"))
        })
        .filter(|(exit, _)| *exit != Exit::DONE)
        .collect();
    let exit = troubles
        .iter()
        .fold(exit_of_run(release), |exit, (other, _)| exit.and(*other));
    let words: Vec<String> = match (&release.record, release.ready) {
        (Err(why), _) => vec![why.clone()],
        (Ok(_), _) if !troubles.is_empty() => {
            troubles.into_iter().map(|(_, words)| words).collect()
        }
        (Ok(record), Some(true)) => vec![format!("deployed {}", versions(record))],
        (Ok(_), _) => vec![ready],
    };
    Standing::Over(exit, one_line(&words.join("; ")))
}

/// Returns the exit code of an apply with the recorded result.
fn exit_of_run(release: &ReleaseSummary) -> Exit {
    let Ok(record) = &release.record else {
        return Exit::CLUSTER;
    };
    if release.ready == Some(true) {
        return Exit::DONE;
    }
    let last = record.history.first();
    let failures = last.map_or(&[][..], |last| &last.run.failures);
    match release.reason.as_str() {
        // git no longer has it, and a user has to consent.
        "Removed" => Exit::DONE,
        "Blocked" => Exit::CONFLICT,
        "NotVerified" | "Degraded" | "Paused" => Exit::NOT_READY,
        "Failed" if !failures.is_empty() => {
            let exits = failures.iter().map(|word| exit_of_failure(word));
            exits.fold(Exit::DONE, Exit::and)
        }
        _ => Exit::FAILED,
    }
}

/// Returns the exit code of an apply with a recorded category of failures.
fn exit_of_failure(word: &str) -> Exit {
    let mut kinds = FailureKind::ALL.into_iter();
    let kind = kinds.find(|kind| kind.word() == word);
    kind.map_or(Exit::FAILED, exit_of_kind)
}

/// Returns the exit code of an apply that ends with this condition of the controller.
fn exit_of_condition(kind: &str, reason: &str) -> Exit {
    match (kind, reason) {
        (
            "Stalled",
            "InvalidRepository" | "UntrustedCommit" | "EnvironmentMissing" | "BranchMissing"
            | "Contested",
        )
        | ("SourceUnavailable", _) => Exit::REPOSITORY,
        ("Stalled", "Refused" | "AwaitingApproval" | "WrongCluster")
        | ("Reconciling", WINDOW_CLOSED) => Exit::POLICY,
        ("Stalled", "Blocked") => Exit::CONFLICT,
        ("Stalled", _) => Exit::FAILED,
        ("Reconciling", DEPENDENCY_NOT_READY) | ("Degraded", _) => Exit::NOT_READY,
        _ => Exit::DONE,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    /// Returns a release with a condition Ready and others, written as `TYPE REASON MESSAGE`.
    fn release(ready: &str, others: &[&str], spec: &Value) -> ReleaseSummary {
        let conditions = [ready].into_iter().chain(others.iter().copied());
        let conditions: Vec<Value> = conditions
            .map(|text| {
                let mut words = text.splitn(3, ' ');
                let (kind, status) = match words.next().unwrap() {
                    "NotReady" => ("Ready", "False"),
                    kind => (kind, "True"),
                };
                let (reason, message) = (words.next(), words.next().unwrap_or_default());
                json!({"type": kind, "status": status, "reason": reason, "message": message})
            })
            .collect();
        let attempt = json!({"version": "v1.0.0", "revision": "abc", "at": "2026-07-01T10:00:00Z",
            "digest": format!("sha256:{}", "0".repeat(64))});
        let record = json!({"format": 1, "repository": "fleet", "installed": attempt});
        let value = json!({"kind": "Release", "metadata": {"name": "dev.web"}, "spec": spec,
            "status": {"conditions": conditions, "record": record}});
        ReleaseSummary::read(&value).unwrap()
    }

    #[test]
    fn the_exit_code_is_that_of_an_apply() {
        for (ready, others, code, words) in [
            ("Ready Deployed", &[][..], Exit::DONE, "deployed v1.0.0"),
            ("NotReady Removed kept", &[], Exit::DONE, "Removed: kept"),
            ("NotReady Failed no", &[], Exit::FAILED, "Failed: no"),
            (
                "NotReady Blocked by a",
                &[],
                Exit::CONFLICT,
                "Blocked: by a",
            ),
            (
                "Ready Deployed",
                &["Stalled InvalidRepository web.yaml:1: no field"],
                Exit::REPOSITORY,
                "Stalled: InvalidRepository: web.yaml:1: no field",
            ),
            (
                "Ready Deployed",
                &["Stalled Refused prune-cap"],
                Exit::POLICY,
                "Stalled: Refused: prune-cap",
            ),
            (
                "NotReady Degraded api",
                &["Degraded NotReady api"],
                Exit::NOT_READY,
                "Degraded: NotReady: api",
            ),
            (
                "Ready Deployed",
                &["Drifted Reported a"],
                Exit::DONE,
                "deployed v1.0.0",
            ),
            (
                "Ready Deployed",
                &["Reconciling WindowClosed until 6"],
                Exit::POLICY,
                "Reconciling: WindowClosed: until 6",
            ),
        ] {
            let over = Standing::Over(code, words.to_owned());
            assert_eq!(standing(&release(ready, others, &Value::Null)), over);
        }
    }

    #[test]
    fn the_exit_code_of_a_failure_is_that_of_its_category() {
        for (failures, code) in [
            (&["notReady"][..], Exit::NOT_READY),
            (&["notReady", "conflict"], Exit::CONFLICT),
            (&["of a newer version"], Exit::FAILED),
            (&[], Exit::FAILED),
        ] {
            let mut release = release("NotReady Failed no", &[], &Value::Null);
            let last = json!({"version": "v1", "revision": "abc", "result": "failed",
                "at": "2026-07-01T10:00:00Z", "run": {"failures": failures}});
            let record = release.record.as_mut().unwrap();
            record.history = vec![serde_json::from_value(last).unwrap()];
            assert_eq!(exit_of_run(&release), code, "{failures:?}");
        }
    }

    #[test]
    fn a_request_or_a_run_is_waited_for() {
        let request = json!({"sync": {"at": "2026-07-01T10:00:00Z"}});
        for (ready, spec, words) in [
            ("Ready Deployed", &request, "Deployed"),
            (
                "NotReady Reconciling 3 of 5",
                &Value::Null,
                "Reconciling: 3 of 5",
            ),
            ("NotReady Superseded", &Value::Null, "Superseded"),
        ] {
            let open = Standing::Open(words.to_owned());
            assert_eq!(standing(&release(ready, &[], spec)), open);
        }
    }

    #[test]
    fn nobody_waits_for_a_release_that_no_controller_reconciles() {
        let now: Timestamp = "2026-07-01T10:00:00Z".parse().unwrap();
        let followed = "Followed Following main of fleet";
        for (others, spec, code) in [
            (&[followed][..], Value::Null, None),
            (&[], Value::Null, Some(Exit::FAILED)),
            (
                &[followed],
                json!({"suspend": {"by": "ann"}}),
                Some(Exit::POLICY),
            ),
        ] {
            let release = release("Ready Deployed", others, &spec);
            let refused = ensure_executed(&[release], now).err();
            assert_eq!(refused.map(|error| error.exit()), code);
        }
    }
}
