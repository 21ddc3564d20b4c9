//! Wait for the controller: it follows the branch with its own credentials.

use std::time::Duration;

use jiff::Timestamp;
use pleach_cluster::Cluster;
use pleach_engine::sync::state::{self, Search};
use pleach_model::object::ReleaseName;
use pleach_state::inventory::{ConditionKind, ReleaseSummary};
use tokio::time::{Instant, sleep};

use crate::cli::Ui;
use crate::cli::error::{CliError, Kind};
use crate::cli::format::status::short;

/// Pause between two reads.
const PAUSE: Duration = Duration::from_secs(2);
/// How long the controller can take.
const PATIENCE: Duration = Duration::from_mins(10);
/// How long a problem that the controller reports can last. A pod sees a changed Secret after up to
/// two minutes.
const TROUBLE: Duration = Duration::from_mins(2);

/// Commit that the controller has to reach.
#[derive(Debug, Clone, Default)]
pub(super) struct Expected {
    /// Commit that was pushed in this run. `None`: the branch had it before.
    pub(super) pushed: Option<String>,
    /// Commit in the record before this run.
    pub(super) before: Option<String>,
}

/// Progress of the controller.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Progress {
    /// Not done yet, with the reason.
    Waits(String),
    /// The controller reports a problem.
    Trouble(String),
    /// The controller follows the branch, and the release is at this commit.
    Follows(String),
}

/// Returns the progress from the record of the release.
pub(super) fn progress(
    release: Option<&ReleaseSummary>,
    expected: &Expected,
    now: Timestamp,
) -> Progress {
    let Some(release) = release else {
        return Progress::Waits("the release has no record".to_owned());
    };
    let troubles =
        [ConditionKind::SourceUnavailable, ConditionKind::Stalled].map(ConditionKind::as_str);
    let mut conditions = release.conditions.iter();
    if let Some((_, _, message)) = conditions.find(|(kind, ..)| troubles.contains(&kind.as_str())) {
        return Progress::Trouble(message.clone());
    }
    if release.user_requests.sync.is_some() {
        return Progress::Waits("it has not fetched since this run".to_owned());
    }
    let followed = release.followed.as_ref();
    if followed.is_none_or(|following| following.is_stale(now)) {
        return Progress::Waits("no controller follows it".to_owned());
    }
    let record = match &release.record {
        Ok(record) => record,
        Err(error) => return Progress::Waits(error.clone()),
    };
    let revision = record.installed.as_ref().map(|one| one.revision.as_str());
    let Some(revision) = revision.filter(|_| record.ready && record.applying.is_none()) else {
        let why = Some(release.message.as_str()).filter(|message| !message.is_empty());
        return Progress::Waits(why.unwrap_or("it is not ready").to_owned());
    };
    let Expected { pushed, before } = expected;
    // Another commit can follow ours at once.
    let is_old = before.as_deref() == Some(revision);
    if is_old && pushed.as_deref().is_some_and(|pushed| pushed != revision) {
        return Progress::Waits(format!("it is at {}", short(revision)));
    }
    Progress::Follows(revision.to_owned())
}

/// Reads the record of the release.
pub(super) async fn read(
    cluster: &Cluster,
    name: &ReleaseName,
    search: &Search,
) -> Result<Option<ReleaseSummary>, CliError> {
    let found = state::release(cluster, name, search).await?;
    Ok(found.into_iter().next())
}

/// Waits until the controller follows the branch, and returns the commit of the release.
pub(super) async fn wait(
    ui: &mut Ui,
    cluster: &Cluster,
    name: &ReleaseName,
    search: &Search,
    expected: &Expected,
) -> Result<String, CliError> {
    let started = Instant::now();
    let mut troubled: Option<Instant> = None;
    let mut reported = String::new();
    loop {
        let release = read(cluster, name, search).await?;
        let words = match progress(release.as_ref(), expected, Timestamp::now()) {
            Progress::Follows(commit) => return Ok(commit),
            Progress::Waits(why) => {
                troubled = None;
                format!("waiting for the controller: {why}")
            }
            Progress::Trouble(message) => {
                let since = troubled.get_or_insert_with(Instant::now);
                if since.elapsed() > TROUBLE {
                    return Err(trouble(&message));
                }
                format!("the controller reports: {message}")
            }
        };
        if words != reported {
            ui.status(&words);
            reported = words;
        }
        if started.elapsed() > PATIENCE {
            let message =
                format!("the controller did not follow {name} within {PATIENCE:?}: {reported}");
            return Err(CliError::new(Kind::NotReady, message)
                .hint("read the log of its pods; the command can be repeated"));
        }
        sleep(PAUSE).await;
    }
}

/// Returns the error for a problem that the controller reports.
pub(super) fn trouble(message: &str) -> CliError {
    CliError::new(
        Kind::NotReady,
        format!("the controller cannot follow the repository: {message}"),
    )
    .hint("fix the cause, and run the command again: it replaces the Secret and continues")
}

#[cfg(test)]
mod tests {
    use pleach_state::inventory::SyncRequest;
    use serde_json::{Value, json};

    use super::*;

    fn release(ready: bool, revision: &str, conditions: &[(&str, &str)]) -> ReleaseSummary {
        let attempt = json!({
            "version": "v0.1.0",
            "revision": revision,
            "digest": pleach_model::object::Digest::of(b"all"),
            "at": "2026-09-01T10:00:00Z",
        });
        let conditions: Vec<Value> = conditions
            .iter()
            .map(|(kind, message)| json!({"type": kind, "status": "True", "reason": "R", "message": message}))
            .collect();
        let record = json!({"repository": "fleet", "format": 5, "history": [], "shards": [],
            "bundle": "pleach", "entries": 0, "ready": ready, "stage": "verify", "installed": attempt});
        let live = json!({"kind": "Release", "metadata": {"name": "pleach.pleach"},
            "status": {"record": record, "conditions": conditions}});
        ReleaseSummary::read(&live).unwrap()
    }

    #[test]
    fn only_a_controller_that_fetched_the_commit_counts() {
        let follows = ("Followed", "branch main of fleet");
        let unreachable = ("SourceUnavailable", "the server rejected the credentials");
        let waits = |text: &str| Progress::Waits(text.to_owned());
        let expected = Expected {
            pushed: Some("second".to_owned()),
            before: Some("first".to_owned()),
        };
        for (name, one, result) in [
            (
                "nothing is recorded",
                None,
                waits("the release has no record"),
            ),
            (
                "only the command line applied it",
                Some(release(true, "second", &[])),
                waits("no controller follows it"),
            ),
            (
                "the controller cannot fetch",
                Some(release(true, "second", &[follows, unreachable])),
                Progress::Trouble("the server rejected the credentials".to_owned()),
            ),
            (
                "the controller refuses the commit",
                Some(release(true, "first", &[follows, ("Stalled", "refused")])),
                Progress::Trouble("refused".to_owned()),
            ),
            (
                "the controller is at the commit before",
                Some(release(true, "first", &[follows])),
                waits("it is at first"),
            ),
            (
                "it is not ready",
                Some(release(false, "second", &[follows])),
                waits("it is not ready"),
            ),
            (
                "it is at the commit",
                Some(release(true, "second", &[follows])),
                Progress::Follows("second".to_owned()),
            ),
            (
                "it is at a later commit",
                Some(release(true, "third", &[follows])),
                Progress::Follows("third".to_owned()),
            ),
        ] {
            let now = Timestamp::UNIX_EPOCH;
            assert_eq!(progress(one.as_ref(), &expected, now), result, "{name}");
        }
        let mut unanswered = release(true, "second", &[follows]);
        unanswered.user_requests.sync = Some(SyncRequest {
            at: Timestamp::UNIX_EPOCH,
            by: "ann".to_owned(),
            override_window: false,
            after_fetch: true,
            nodes: false,
        });
        assert_eq!(
            progress(Some(&unanswered), &expected, Timestamp::UNIX_EPOCH),
            waits("it has not fetched since this run")
        );
        // Without a push, the recorded commit is the right one.
        let known = Expected {
            pushed: None,
            before: Some("first".to_owned()),
        };
        let there = release(true, "first", &[follows]);
        assert_eq!(
            progress(Some(&there), &known, Timestamp::UNIX_EPOCH),
            Progress::Follows("first".to_owned())
        );
    }
}
