//! Posts commit statuses to forges, with retries.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::sleep;

use super::{Said, Tellers, Wanted, is_same, superseded};
use crate::backoff;
use pleach_engine::words;
use pleach_forge::{Forge, ForgeError, State, Status};

/// Time limit for pending posts at shutdown.
const FAREWELL: Duration = Duration::from_secs(5);
/// Delay before a retry after the forge rejected our token, which a user can replace in its file.
const OTHER_TOKEN: Duration = Duration::from_mins(5);

impl Tellers {
    /// Posts until shutdown, when the senders are closed.
    pub async fn run(self) {
        let mut tasks = JoinSet::new();
        for (forge, desired) in self.0 {
            tasks.spawn(tell_all(forge, desired));
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
async fn tell_all(forge: Arc<Forge>, mut desired: watch::Receiver<Wanted>) {
    let mut posted = Told::default();
    let mut failures = 0_u32;
    let mut is_over = false;
    loop {
        let now = desired.borrow_and_update().clone();
        let mut loop_ends = desired.clone();
        let farewell = async {
            while loop_ends.changed().await.is_ok() {}
            sleep(FAREWELL).await;
        };
        let again = tokio::select! {
            again = posted.report(&forge, &now) => again,
            () = farewell => return,
        };
        if is_over {
            return;
        }
        failures = match again {
            Again::Soon => failures.saturating_add(1),
            Again::Never | Again::Later => 0,
        };
        let retry = async {
            match again {
                Again::Never => std::future::pending().await,
                Again::Later => sleep(OTHER_TOKEN).await,
                Again::Soon => sleep(backoff::after(failures)).await,
            }
        };
        tokio::select! {
            // Post the last status even at shutdown.
            changed = desired.changed() => is_over = changed.is_err(),
            () = retry => {}
        }
    }
}

/// Time of the next attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Again {
    /// Only with a new status.
    Never,
    /// After a user has acted.
    Later,
    /// After a backoff.
    Soon,
}

impl Again {
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
struct Told(BTreeMap<String, Known>);

/// Status of a commit on a forge.
#[derive(Debug)]
struct Known {
    commit: String,
    /// Desired status at the last post.
    desired: Status,
    /// Status on the forge.
    there: Status,
    since: u64,
}

impl Told {
    /// Posts missing statuses, and returns the time of the next attempt.
    async fn report(&mut self, forge: &Forge, desired: &Wanted) -> Again {
        let mut again = Again::Never;
        for (context, entry) in desired {
            let known = self.0.get(context);
            let known = known.filter(|known| known.since == entry.since);
            if known.is_some_and(|known| {
                known.commit == entry.commit && is_same(&known.desired, &entry.status)
            }) {
                continue;
            }
            let there = match report(forge, known, entry).await {
                Ok(there) => there,
                Err(error) => {
                    tracing::warn!(
                        commit = %entry.commit,
                        %context,
                        error = %words(&error),
                        "failed to post a commit status"
                    );
                    let next = Again::after(&error);
                    again = again.max(next);
                    if next != Again::Never {
                        continue;
                    }
                    entry.status.clone()
                }
            };
            let known = Known {
                commit: entry.commit.clone(),
                desired: entry.status.clone(),
                there,
                since: entry.since,
            };
            self.0.insert(context.clone(), known);
        }
        again
    }
}

/// Posts the status of a commit, and returns the status that the forge has then.
async fn report(forge: &Forge, known: Option<&Known>, entry: &Said) -> Result<Status, ForgeError> {
    let context = &entry.status.context;
    match known {
        Some(known) if known.commit == entry.commit => {
            if is_same(&known.there, &entry.status) {
                return Ok(known.there.clone());
            }
        }
        previous => {
            if let Some(previous) =
                previous.filter(|previous| previous.there.state == State::Pending)
            {
                let end = match &entry.former {
                    Some((commit, end)) if *commit == previous.commit => end.clone(),
                    _ => superseded(context, &entry.commit),
                };
                forge.set_status(&previous.commit, &end).await?;
            }
            // A post before a restart can already be there or be further ahead.
            if let Some(there) = forge.status(&entry.commit, context).await?
                && (entry.status.state == State::Pending || is_same(&there, &entry.status))
            {
                return Ok(there);
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
        for (status, again) in [
            (401, Again::Later),
            (403, Again::Later),
            (404, Again::Never),
            (422, Again::Never),
            (503, Again::Soon),
        ] {
            assert_eq!(Again::after(&refused(status)), again, "{status}");
        }
        let place = "a file".to_owned();
        let empty = ForgeError::UnusableToken { place };
        assert_eq!(Again::after(&empty), Again::Later);
    }
}
