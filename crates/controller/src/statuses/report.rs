//! Posts commit statuses to forges, with retries.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::sleep;

use super::{DesiredStatuses, StatusEntry, StatusPosters, is_same, superseded};
use crate::backoff;
use pleach_engine::words;
use pleach_forge::{Forge, ForgeError, State, Status};

/// Time limit for pending posts at shutdown.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(5);
/// Delay before a retry after the forge rejected our token, which a user can replace in its file.
const TOKEN_RETRY: Duration = Duration::from_mins(5);

impl StatusPosters {
    /// Posts until shutdown, when the senders are closed.
    pub async fn run(self) {
        let mut tasks = JoinSet::new();
        for (forge, desired) in self.0 {
            tasks.spawn(post_all(forge, desired));
        }
        while let Some(ended) = tasks.join_next().await {
            if let Err(error) = ended
                && let Ok(panic) = error.try_into_panic()
            {
                std::panic::resume_unwind(panic);
            }
        }
    }
}

/// Posts changed statuses to one forge.
async fn post_all(forge: Arc<Forge>, mut desired: watch::Receiver<DesiredStatuses>) {
    let mut posted = PostedStatuses::default();
    let mut failures = 0_u32;
    let mut is_last = false;
    loop {
        let now = desired.borrow_and_update().clone();
        let mut closing = desired.clone();
        let shutdown = async {
            while closing.changed().await.is_ok() {}
            sleep(SHUTDOWN_TIMEOUT).await;
        };
        let retry = tokio::select! {
            retry = posted.report(&forge, &now) => retry,
            () = shutdown => return,
        };
        if is_last {
            return;
        }
        failures = match retry {
            Retry::Soon => failures.saturating_add(1),
            Retry::Never | Retry::Later => 0,
        };
        let waiting = async {
            match retry {
                Retry::Never => std::future::pending().await,
                Retry::Later => sleep(TOKEN_RETRY).await,
                Retry::Soon => sleep(backoff::after(failures)).await,
            }
        };
        tokio::select! {
            // Post the last status even at shutdown.
            changed = desired.changed() => is_last = changed.is_err(),
            () = waiting => {}
        }
    }
}

/// Time of the next attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Retry {
    /// Only with a new status.
    Never,
    /// After a user has acted.
    Later,
    /// After a backoff.
    Soon,
}

impl Retry {
    /// Returns the time of the next attempt after an error.
    fn after(error: &ForgeError) -> Self {
        if error.is_passing() {
            Self::Soon
        } else if error.is_about_token() {
            Self::Later
        } else {
            Self::Never
        }
    }
}

/// Statuses on a forge, by context.
#[derive(Debug, Default)]
struct PostedStatuses(BTreeMap<String, PostedStatus>);

/// Status of a commit on a forge.
#[derive(Debug)]
struct PostedStatus {
    commit: String,
    /// Desired status at the last post.
    desired: Status,
    /// Status on the forge.
    present: Status,
    since: u64,
}

impl PostedStatuses {
    /// Posts missing statuses, and returns the time of the next attempt.
    async fn report(&mut self, forge: &Forge, desired: &DesiredStatuses) -> Retry {
        let mut retry = Retry::Never;
        for (context, entry) in desired {
            let known = self.0.get(context);
            let known = known.filter(|known| known.since == entry.since);
            if known.is_some_and(|known| {
                known.commit == entry.commit && is_same(&known.desired, &entry.status)
            }) {
                continue;
            }
            let present = match report(forge, known, entry).await {
                Ok(present) => present,
                Err(error) => {
                    tracing::warn!(
                        commit = %entry.commit,
                        %context,
                        error = %words(&error),
                        "failed to post a commit status"
                    );
                    let next = Retry::after(&error);
                    retry = retry.max(next);
                    if next != Retry::Never {
                        continue;
                    }
                    entry.status.clone()
                }
            };
            let known = PostedStatus {
                commit: entry.commit.clone(),
                desired: entry.status.clone(),
                present,
                since: entry.since,
            };
            self.0.insert(context.clone(), known);
        }
        retry
    }
}

/// Posts the status of a commit, and returns the status that the forge has then.
async fn report(
    forge: &Forge,
    known: Option<&PostedStatus>,
    entry: &StatusEntry,
) -> Result<Status, ForgeError> {
    let context = &entry.status.context;
    match known {
        Some(known) if known.commit == entry.commit => {
            if is_same(&known.present, &entry.status) {
                return Ok(known.present.clone());
            }
        }
        previous => {
            if let Some(previous) =
                previous.filter(|previous| previous.present.state == State::Pending)
            {
                let end = match &entry.previous {
                    Some((commit, end)) if *commit == previous.commit => end.clone(),
                    _ => superseded(context, &entry.commit),
                };
                forge.set_status(&previous.commit, &end).await?;
            }
            // A post before a restart can already be there or be further ahead.
            if let Some(present) = forge.status(&entry.commit, context).await?
                && (entry.status.state == State::Pending || is_same(&present, &entry.status))
            {
                return Ok(present);
            }
        }
    }
    forge.set_status(&entry.commit, &entry.status).await?;
    Ok(entry.status.clone())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_forbidden_post_is_retried_later() {
        let refused = |status| ForgeError::Refused {
            what: "set a state",
            status,
            message: String::new(),
        };
        for (status, retry) in [
            (401, Retry::Later),
            (403, Retry::Later),
            (404, Retry::Never),
            (422, Retry::Never),
            (503, Retry::Soon),
        ] {
            assert_eq!(Retry::after(&refused(status)), retry, "{status}");
        }
        let place = "a file".to_owned();
        let empty = ForgeError::UnusableToken { place };
        assert_eq!(Retry::after(&empty), Retry::Later);
    }
}
