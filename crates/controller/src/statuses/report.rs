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
        for (forge, wanted) in self.0 {
            tasks.spawn(tell_all(forge, wanted));
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
async fn tell_all(forge: Arc<Forge>, mut wanted: watch::Receiver<Wanted>) {
    let mut told = Told::default();
    let mut failures = 0_u32;
    let mut is_over = false;
    loop {
        let now = wanted.borrow_and_update().clone();
        let mut loop_ends = wanted.clone();
        let farewell = async {
            while loop_ends.changed().await.is_ok() {}
            sleep(FAREWELL).await;
        };
        let again = tokio::select! {
            again = told.tell(&forge, &now) => again,
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
            changed = wanted.changed() => is_over = changed.is_err(),
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
    wanted: Status,
    /// Status on the forge.
    there: Status,
    since: u64,
}

impl Told {
    /// Posts missing statuses, and returns the time of the next attempt.
    async fn tell(&mut self, forge: &Forge, wanted: &Wanted) -> Again {
        let mut again = Again::Never;
        for (context, said) in wanted {
            let known = self.0.get(context);
            let known = known.filter(|known| known.since == said.since);
            if known.is_some_and(|known| {
                known.commit == said.commit && is_same(&known.wanted, &said.status)
            }) {
                continue;
            }
            let there = match tell(forge, known, said).await {
                Ok(there) => there,
                Err(error) => {
                    tracing::warn!(
                        commit = %said.commit,
                        %context,
                        error = %words(&error),
                        "the state of a commit could not be told"
                    );
                    let next = Again::after(&error);
                    again = again.max(next);
                    if next != Again::Never {
                        continue;
                    }
                    said.status.clone()
                }
            };
            let known = Known {
                commit: said.commit.clone(),
                wanted: said.status.clone(),
                there,
                since: said.since,
            };
            self.0.insert(context.clone(), known);
        }
        again
    }
}

/// Posts the status of a commit, and returns the status that the forge has then.
async fn tell(forge: &Forge, known: Option<&Known>, said: &Said) -> Result<Status, ForgeError> {
    let context = &said.status.context;
    match known {
        Some(known) if known.commit == said.commit => {
            if is_same(&known.there, &said.status) {
                return Ok(known.there.clone());
            }
        }
        former => {
            if let Some(former) = former.filter(|former| former.there.state == State::Pending) {
                let end = match &said.former {
                    Some((commit, end)) if *commit == former.commit => end.clone(),
                    _ => superseded(context, &said.commit),
                };
                forge.set_status(&former.commit, &end).await?;
            }
            // A post before a restart can already be there or be further ahead.
            if let Some(there) = forge.status(&said.commit, context).await?
                && (said.status.state == State::Pending || is_same(&there, &said.status))
            {
                return Ok(there);
            }
        }
    }
    forge.set_status(&said.commit, &said.status).await?;
    Ok(said.status.clone())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_token_may_not_do_is_told_again_with_a_better_one() {
        let refused = |status| ForgeError::Refused {
            what: "set a state",
            status,
            said: String::new(),
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
