//! Releases that an environment had and has no more: they go last, and only
//! with consent.

use std::sync::Arc;

use jiff::Timestamp;
use pleach_domain::inventory::{Condition, ConditionKind, ReleaseSummary};
use tokio::sync::{Notify, watch};
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

use super::run::{LIMIT, Wanted, carry_out, line};
use super::{End, LoopEvent, Shared, approval, pace};
use crate::engine::planning::{Gone, candidates, gone, readable};
use crate::engine::sync::state::{self, Search};
use crate::engine::words;
use crate::io::cluster::Class;
use crate::io::git::mirror::Reader;

/// What an environment has now.
#[derive(Debug, Clone)]
pub(super) struct Last {
    /// Its first release, for all that they have in common.
    pub(super) wanted: Arc<Wanted>,
    /// Where its files are read.
    pub(super) reader: Reader,
    /// The newest commit: the mirror may not have an older one any more.
    pub(super) commit: String,
}

/// The task that ends releases of an environment.
pub(super) struct Ends {
    wanted: watch::Receiver<Last>,
    /// Somebody asks for something of a release that left git: approves its end,
    /// or lets it go on.
    asked: Arc<Notify>,
    shared: Shared,
}

impl Ends {
    pub(super) fn new(wanted: watch::Receiver<Last>, asked: Arc<Notify>, shared: Shared) -> Self {
        Self {
            wanted,
            asked,
            shared,
        }
    }

    /// Runs until the loop ends, or the environment is not synced any more.
    pub(super) async fn run(mut self) {
        let mut failures = 0;
        loop {
            let last = self.wanted.borrow_and_update().clone();
            let wanted = Arc::clone(&last.wanted);
            let stop = self.shared.stop.clone();
            let done = Box::pin(self.end_all(last, &stop)).await;
            failures = if done { 0 } else { failures + 1 };
            let sync = &wanted.loaded.environment.sync;
            let pause = if done {
                pace::interval(sync.interval.try_into().unwrap_or(LIMIT))
            } else {
                pace::after(failures)
            };
            tokio::select! {
                () = stop.cancelled() => return,
                changed = self.wanted.changed() => if changed.is_err() {
                    return;
                },
                () = self.asked.notified() => {}
                () = sleep(pause) => {}
            }
        }
    }

    /// Whether all that could go went.
    async fn end_all(&self, last: Last, stop: &CancellationToken) -> bool {
        let Last {
            wanted,
            reader,
            commit,
        } = last;
        let environment = &wanted.loaded.environment;
        let search = Search::In(environment.store.clone());
        let listing = state::releases(&wanted.cluster, &search);
        let releases = match stop.run_until_cancelled(listing).await {
            None => return true,
            Some(Ok(records)) => records.releases,
            // Who may not list them does not notice what left git.
            Some(Err(error)) if error.class() == Some(&Class::Forbidden) => return true,
            Some(Err(error)) => {
                tracing::debug!(environment = %environment.name, error = %words(&error), "releases cannot be listed");
                return false;
            }
        };
        let mut leaving = candidates(&wanted.loaded, true, readable(releases.clone()));
        // Those of other environments are other branches' concern.
        leaving.retain(|(name, ..)| name.environment == environment.name);
        if leaving.is_empty() || !environment.sync.windows.are_open(Timestamp::now()) {
            return true;
        }
        let loaded = Arc::clone(&wanted.loaded);
        let reading = tokio::task::spawn_blocking(move || {
            let tree = reader.tree(&commit).map_err(|error| words(&error))?;
            Ok::<_, String>(gone(&loaded, &tree, leaving))
        });
        let Ok(Ok(leaving)) = reading.await else {
            return false;
        };
        let mut done = true;
        for one in leaving {
            if self.wanted.has_changed().unwrap_or(true) || stop.is_cancelled() {
                return true;
            }
            done &= Box::pin(self.end(&wanted, &one, &releases, stop)).await;
        }
        done
    }

    /// Takes one release away, as far as that is allowed.
    async fn end(
        &self,
        wanted: &Wanted,
        gone: &Gone,
        releases: &[ReleaseSummary],
        stop: &CancellationToken,
    ) -> bool {
        let started = Instant::now();
        let is_suspended = releases.iter().any(|release| {
            release.name == *gone.name() && release.orders.suspended(Timestamp::now()).is_some()
        });
        // What is handed over goes when it was taken over.
        let is_taken_over = gone.heirs().all(|heir| {
            releases.iter().any(|release| {
                release.name == *heir
                    && release.record.as_ref().is_ok_and(|record| {
                        let installed = record.installed.as_ref();
                        record.ready
                            && installed.is_some_and(|one| one.revision == wanted.revision())
                    })
            })
        });
        if is_suspended || !is_taken_over {
            return is_suspended;
        }
        self.shared.listener.tell(LoopEvent::Looking {
            release: gone.name().clone(),
        });
        let plans = wanted.planner(false);
        let work = format!("to look at release {}", gone.name());
        let work = self.shared.pulse.work(work, LIMIT);
        let making = Box::pin(plans.plan_end(gone));
        let Some(planned) = stop.run_until_cancelled(making).await else {
            return true;
        };
        drop(work);
        let (end, message) = match planned {
            Err(error) => (End::Failed, words(&error)),
            Ok(planned) => {
                let refusals = wanted.refusals(&planned);
                let needs_approval = wanted.loaded.environment.sync.needs_approval;
                let lacks = if needs_approval && refusals.is_empty() {
                    let asking = Box::pin(approval::missing(wanted, &planned));
                    match stop.run_until_cancelled(asking).await {
                        Some(lacks) => lacks,
                        None => return true,
                    }
                } else {
                    None
                };
                if let Some(message) = lacks {
                    let mut said = wanted.conditions.clone();
                    said.push(Condition {
                        kind: ConditionKind::Stalled,
                        reason: approval::AWAITING.to_owned(),
                        message: message.clone(),
                    });
                    let cluster = plans.cluster_for(gone.name());
                    let store = &wanted.loaded.environment.store;
                    let telling = state::tell(&cluster, gone.name(), store, &said);
                    if let Some(Err(error)) = stop.run_until_cancelled(telling).await {
                        tracing::debug!(release = %gone.name(), error = %words(&error), "nothing could be told");
                    }
                    (End::Unapproved, message)
                } else if refusals.is_empty() {
                    let cluster = plans.cluster_for(gone.name());
                    let newer = CancellationToken::new();
                    let done = carry_out(&self.shared, &cluster, planned, newer).await;
                    (done.end, done.message)
                } else {
                    (End::Refused, line(&refusals))
                }
            }
        };
        self.shared.listener.tell(LoopEvent::Looked {
            release: gone.name().clone(),
            revision: wanted.revision(),
            end,
            message,
            took: started.elapsed(),
        });
        end != End::Failed
    }
}
