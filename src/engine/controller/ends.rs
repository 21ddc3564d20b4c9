//! Releases that an environment had and has no more: they go last, and only
//! with consent.

mod telling;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jiff::Timestamp;
use pleach_domain::inventory::{ConditionKind, Installed, Orders, ReleaseName, ReleaseSummary};
use tokio::sync::{Notify, watch};
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

use self::telling::Leaving;
use super::defect::guarded;
use super::looked::{Looked, policy, unplanned, until_open, window_closed};
use super::read::Which;
use super::requests::Requests;
use super::run::{Done, LIMIT, Wanted, are_same_terms, carry_out, codes, in_time, line};
use super::{End, LoopEvent, Shared, approval, pace};
use crate::engine::planning::{Candidate, Gone, Planned, candidates, gone, readable};
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
    /// What exactly they ask for.
    requests: Requests,
    shared: Shared,
    /// What was told of those that left git.
    leaving: BTreeMap<ReleaseName, Leaving>,
}

/// What came of ending releases.
struct Ended {
    /// Whether all that could go went.
    done: bool,
    /// A release of which somebody asked for something that holds on.
    open: Option<String>,
}

impl Ends {
    pub(super) fn new(
        wanted: watch::Receiver<Last>,
        asked: Arc<Notify>,
        requests: Requests,
        shared: Shared,
    ) -> Self {
        Self {
            wanted,
            asked,
            requests,
            shared,
            leaving: BTreeMap::new(),
        }
    }

    /// Runs until the loop ends, or the environment is not synced any more.
    pub(super) async fn run(mut self) {
        let mut failures = 0;
        loop {
            let answered = self.requests.answered();
            let last = self.wanted.borrow_and_update().clone();
            let wanted = Arc::clone(&last.wanted);
            let stop = self.shared.stop.clone();
            let Ended { done, open } = Box::pin(self.end_all(last, answered, &stop)).await;
            failures = if done { 0 } else { failures + 1 };
            let sync = &wanted.loaded.environment.sync;
            let pause = if done {
                let interval = pace::interval(sync.interval.try_into().unwrap_or(LIMIT));
                // What may go only then goes when the windows open.
                let closed = until_open(&sync.windows, Timestamp::now());
                closed.map_or(interval, |closed| closed.min(interval))
            } else {
                pace::after(failures)
            };
            let answering = async {
                match &open {
                    Some(release) => self.requests.answer_to(release).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = stop.cancelled() => return,
                changed = self.wanted.changed() => if changed.is_err() {
                    return;
                },
                () = self.asked.notified() => {}
                () = answering => {}
                () = sleep(pause) => {}
            }
        }
    }

    /// Ends what may go, and takes back what was asked for of what stays.
    async fn end_all(&mut self, last: Last, answered: u64, stop: &CancellationToken) -> Ended {
        let mut ended = Ended {
            done: true,
            open: None,
        };
        let Last {
            wanted,
            reader,
            commit,
        } = last;
        let environment = &wanted.loaded.environment;
        let search = Search::In(environment.store.clone());
        let listing = state::releases(&wanted.cluster, &search);
        let releases = match stop.run_until_cancelled(listing).await {
            None => return ended,
            Some(Ok(records)) => records.releases,
            // Who may not list them does not notice what left git.
            Some(Err(error)) if error.class() == Some(&Class::Forbidden) => return ended,
            Some(Err(error)) => {
                tracing::debug!(environment = %environment.name, error = %words(&error), "releases cannot be listed");
                ended.done = false;
                return ended;
            }
        };
        let mut leaving = candidates(&wanted.loaded, true, readable(releases.clone()));
        // Those of other environments are other branches' concern.
        leaving.retain(|(name, ..)| name.environment == environment.name);
        let names: BTreeSet<ReleaseName> = leaving.iter().map(|(name, ..)| name.clone()).collect();
        self.leaving.retain(|name, _| names.contains(name));
        let now = Timestamp::now();
        // Only what somebody wants at any time.
        let windows = |record: &Installed| policy(&environment.sync, &record.memory).windows;
        let (may_go, wait): (Vec<_>, Vec<_>) =
            leaving.into_iter().partition(|(name, _, record)| {
                windows(record).are_open(now) || is_at_any_time(&releases, name)
            });
        leaving = may_go;
        if !wait.is_empty() {
            for (name, store, record) in &wait {
                let closed = window_closed(&windows(record), &Orders::default(), now);
                let former = (name, store, version(record));
                let telling = Box::pin(self.tell(&wanted, former, &closed));
                if stop.run_until_cancelled(telling).await.is_none() {
                    return ended;
                }
            }
        }
        if leaving.is_empty() {
            return ended;
        }
        let Some(leaving) = self.gone(&wanted, (reader, commit), leaving).await else {
            ended.done = false;
            return ended;
        };
        for one in leaving {
            if self.wanted.has_changed().unwrap_or(true) || stop.is_cancelled() {
                break;
            }
            let Some(there) = releases.iter().find(|there| there.name == *one.name()) else {
                continue;
            };
            if there.orders.suspended(Timestamp::now()).is_some() {
                continue;
            }
            // What is handed over goes when it was taken over.
            if !is_taken_over(&wanted, &one, &releases) {
                ended.done = false;
                continue;
            }
            let Some(looked) = Box::pin(self.end(&wanted, &one, stop)).await else {
                break;
            };
            let former = there.record.as_ref().map(version).unwrap_or_default();
            let former = (one.name(), &there.store, former);
            let telling = Box::pin(self.tell(&wanted, former, &looked));
            if stop.run_until_cancelled(telling).await.is_none() {
                break;
            }
            let end = looked.end;
            ended.done &= end != End::Failed;
            let is_looked_at = !matches!(
                end,
                End::Removed | End::Unapproved | End::Interrupted | End::Superseded
            );
            if is_looked_at && self.holds_on(&wanted, there, answered).await {
                ended.open = Some(there.name.release.clone());
            }
        }
        ended
    }

    /// What is to become of releases that the environment may have no more, by its files at
    /// a commit; none where these cannot be read now, or the loop ends.
    async fn gone(
        &self,
        wanted: &Wanted,
        (reader, commit): (Reader, String),
        leaving: Vec<Candidate>,
    ) -> Option<Vec<Gone>> {
        let loaded = Arc::clone(&wanted.loaded);
        let reading = self.shared.reading.clone();
        let reading = tokio::task::spawn_blocking(move || {
            let place = reader.place();
            let tree = place.tree(&commit).ok()?;
            // Whoever pushes may let others take over what they like.
            let read = |environment: &str| {
                reading.other(&Which {
                    place: place.clone(),
                    commit: commit.clone(),
                    name: environment.to_owned(),
                })
            };
            Some(gone(&loaded, &tree, leaving, &read))
        });
        let read = self.shared.stop.run_until_cancelled(reading).await?;
        read.ok().flatten()
    }

    /// Takes back what was asked for of a release, unless what git had then is still
    /// to come.
    async fn holds_on(&self, wanted: &Wanted, release: &ReleaseSummary, answered: u64) -> bool {
        let Some(request) = &release.orders.sync else {
            return false;
        };
        let name = &release.name;
        if self.requests.is_open(&name.release, request, answered) {
            return true;
        }
        let cluster = wanted.planner(false).cluster_for(name);
        let done = |orders: &mut Orders| {
            if orders.sync.as_ref() == Some(request) {
                orders.sync = None;
            }
        };
        if let Err(error) = state::order(&cluster, name, &release.store, done).await {
            tracing::debug!(release = %name, error = %words(&error), "a request could not be taken back");
        }
        false
    }

    /// Takes one release away, as far as that is allowed; none at the end of the loop.
    async fn end(&self, wanted: &Wanted, gone: &Gone, stop: &CancellationToken) -> Option<Looked> {
        let started = Instant::now();
        self.shared.listener.tell(LoopEvent::Looking {
            release: gone.name().clone(),
        });
        let looked = match guarded(Box::pin(self.take_away(wanted, gone, stop))).await {
            Ok(looked) => looked?,
            Err(looked) => looked,
        };
        self.shared.listener.tell(LoopEvent::Looked {
            release: gone.name().clone(),
            cluster: wanted.grant.cluster.as_ref().map(|id| id.0.clone()),
            revision: wanted.revision(),
            end: looked.end,
            message: looked.message.clone(),
            is_correction: false,
            about: looked.about.clone(),
            kept: None,
            took: started.elapsed(),
        });
        Some(looked)
    }

    async fn take_away(
        &self,
        wanted: &Wanted,
        gone: &Gone,
        stop: &CancellationToken,
    ) -> Option<Looked> {
        let plans = wanted.planner(false);
        let making = in_time(gone.name(), Box::pin(plans.plan_end(gone)));
        let planned = stop.run_until_cancelled(making).await?;
        Some(match planned {
            Err(error) => unplanned(&error, 1),
            Ok(planned) => {
                let refusals = wanted.refusals(&planned);
                let recorded = planned.observation.observed.policies();
                let sync = policy(&wanted.loaded.environment.sync, recorded);
                let needs_approval = sync.needs_approval;
                let lacks = if needs_approval && refusals.is_empty() {
                    let asking = Box::pin(approval::missing(wanted, &planned));
                    stop.run_until_cancelled(asking).await?
                } else {
                    None
                };
                if let Some(missing) = lacks {
                    missing.looked()
                } else if refusals.is_empty() {
                    let done = Box::pin(self.carry_out(wanted, gone, planned)).await;
                    Looked::new(done.end, done.message).about(done.about)
                } else {
                    let looked = Looked::new(End::Refused, line(&refusals));
                    let looked = looked.about(codes(&refusals));
                    looked.saying(ConditionKind::Stalled, "Refused")
                }
            }
        })
    }

    /// Carries the plan out, unless git has the release again meanwhile, or takes the
    /// consent back, or the environment is not synced any more.
    async fn carry_out(&self, wanted: &Wanted, gone: &Gone, planned: Planned) -> Done {
        let cluster = wanted.planner(false).cluster_for(gone.name());
        let newer = CancellationToken::new();
        let run = carry_out(&self.shared, &cluster, planned, newer.clone());
        let mut coming = self.wanted.clone();
        let watching = async {
            loop {
                let Ok(()) = coming.changed().await else {
                    return newer.cancel();
                };
                let last = coming.borrow_and_update().clone();
                if !is_meant_alike(wanted, &last.wanted, gone.name()) {
                    return newer.cancel();
                }
            }
        };
        let mut run = std::pin::pin!(run);
        tokio::select! {
            biased;
            ended = &mut run => return ended,
            () = watching => {}
        }
        run.await
    }
}

/// The version that was installed last.
fn version(record: &Installed) -> &str {
    let installed = record.installed.as_ref();
    installed.map_or("", |installed| installed.version.as_str())
}

/// Whether a release that left git is to end as before: it did not come back, and
/// the consent to its end and all other terms are the same.
fn is_meant_alike(before: &Wanted, now: &Wanted, name: &ReleaseName) -> bool {
    let environments = (&before.loaded.environment, &now.loaded.environment);
    !now.loaded.has(name) && are_same_terms(environments.0, environments.1, &name.release)
}

/// Whether somebody asked for a release to be synced also outside of the windows.
fn is_at_any_time(releases: &[ReleaseSummary], name: &ReleaseName) -> bool {
    let mut named = releases.iter().filter(|release| release.name == *name);
    named.any(|release| {
        let request = release.orders.sync.as_ref();
        request.is_some_and(|request| request.override_window)
    })
}

/// Whether all that take over objects of a release were brought to what is wanted.
fn is_taken_over(wanted: &Wanted, gone: &Gone, releases: &[ReleaseSummary]) -> bool {
    gone.heirs().all(|heir| {
        releases.iter().any(|release| {
            release.name == *heir
                && release.record.as_ref().is_ok_and(|record| {
                    let installed = record.installed.as_ref();
                    record.ready && installed.is_some_and(|one| one.revision == wanted.revision())
                })
        })
    })
}
