//! Tells forges the states of commits: again and again what is not told yet.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::sleep;

use super::{Said, Tellers, Wanted, is_same, superseded};
use crate::engine::controller::pace;
use crate::engine::words;
use crate::io::forge::{Forge, ForgeError, State, Status};

/// How long what is not told yet has at the end of the loop.
const FAREWELL: Duration = Duration::from_secs(5);
/// When it is told again what a forge did not take from our token: somebody may
/// have put a better one into its file.
const OTHER_TOKEN: Duration = Duration::from_mins(5);

impl Tellers {
    /// Tells until the loop has ended, that is, until there are no news any more.
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

/// Tells one forge whatever is news to it.
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
                Again::Soon => sleep(pace::after(failures)).await,
            }
        };
        tokio::select! {
            // What came last is told even at the end of the loop.
            changed = wanted.changed() => is_over = changed.is_err(),
            () = retry => {}
        }
    }
}

/// When something is told again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Again {
    /// Nothing comes of it before there are news.
    Never,
    /// It takes somebody else to do something.
    Later,
    /// It may work by itself.
    Soon,
}

impl Again {
    /// After something that did not work.
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

/// What a forge knows, by the context.
#[derive(Debug, Default)]
struct Told(BTreeMap<String, Known>);

/// What a forge knows of a commit.
#[derive(Debug)]
struct Known {
    commit: String,
    /// What was wanted when it was last told.
    wanted: Status,
    /// What it says.
    there: Status,
    since: u64,
}

impl Told {
    /// Tells what it does not know, and says when something is to be told again.
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

/// Tells what is wanted of a commit, and returns what the forge says then.
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
            // Before a restart it may have been said already, and more than that.
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
