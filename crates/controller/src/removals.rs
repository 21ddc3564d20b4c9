//! Uninstalls of releases that left git. They come last, and need consent.

mod report;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jiff::Timestamp;
use pleach_model::object::ReleaseName;
use pleach_reconciler::outcome::{
    ReconcileReport, panicked, plan_failed, policy, unapproved, until_open, window_closed,
};
use pleach_state::inventory::{ConditionKind, Installed, ReleaseSummary, UserRequests};
use tokio::sync::{Notify, watch};
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

use self::report::{LastReport, RemovedRelease};
use super::catch_panic::catch_panic;
use super::plan_facts::{failure, reasons};
use super::requests::Requests;
use super::run::{LIMIT, RunResult, Target, TermsDigest, execute, in_time};
use super::{ControllerEvent, ReconcileOutcome, Shared, approval, backoff};
use pleach_cluster::Class;
use pleach_engine::{
    bounded_render::EnvironmentAt,
    planning::{Candidate, Gone, Planned, candidates, gone, readable},
    sync::state::{self, Search},
    words,
};
use pleach_git::mirror::Reader;

/// Present state of an environment.
#[derive(Debug, Clone)]
pub(super) struct PresentState {
    /// Its first release, for settings that all releases share.
    pub(super) target: Arc<Target>,
    /// Reader of its files.
    pub(super) reader: Reader,
    /// The newest commit. Older ones can be missing from the mirror.
    pub(super) commit: String,
}

/// Task that uninstalls releases of an environment.
pub(super) struct UninstallTask {
    states: watch::Receiver<PresentState>,
    /// Triggered by user requests on a release that left git, for example an approval or a resume.
    trigger: Arc<Notify>,
    /// The user requests.
    requests: Requests,
    shared: Shared,
    /// Last reported state of releases that left git.
    removed: BTreeMap<ReleaseName, LastReport>,
}

/// Outcome of a round of uninstalls.
struct RoundOutcome {
    /// Whether every uninstall that is allowed has succeeded.
    done: bool,
    /// A release with a sync request that is still open.
    open: Option<String>,
}

impl UninstallTask {
    pub(super) fn new(
        states: watch::Receiver<PresentState>,
        trigger: Arc<Notify>,
        requests: Requests,
        shared: Shared,
    ) -> Self {
        Self {
            states,
            trigger,
            requests,
            shared,
            removed: BTreeMap::new(),
        }
    }

    /// Runs until shutdown, or until the environment is no longer synced.
    pub(super) async fn run(mut self) {
        let mut failures = 0;
        loop {
            let answered = self.requests.answered();
            let present = self.states.borrow_and_update().clone();
            let desired = Arc::clone(&present.target);
            let stop = self.shared.stop.clone();
            let RoundOutcome { done, open } =
                Box::pin(self.uninstall_all(present, answered, &stop)).await;
            failures = if done { 0 } else { failures + 1 };
            let sync = &desired.loaded.environment.sync;
            let delay = if done {
                let interval = backoff::interval(sync.interval.try_into().unwrap_or(LIMIT));
                // Wake up when the windows open, for uninstalls that wait for them.
                let closed = until_open(&sync.windows, Timestamp::now());
                closed.map_or(interval, |closed| closed.min(interval))
            } else {
                backoff::after(failures)
            };
            let answering = async {
                match &open {
                    Some(release) => self.requests.wait_until_answered(release).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = stop.cancelled() => return,
                changed = self.states.changed() => if changed.is_err() {
                    return;
                },
                () = self.trigger.notified() => {}
                () = answering => {}
                () = sleep(delay) => {}
            }
        }
    }

    /// Uninstalls releases as far as allowed, and withdraws requests on releases that stay.
    async fn uninstall_all(
        &mut self,
        present: PresentState,
        answered: u64,
        stop: &CancellationToken,
    ) -> RoundOutcome {
        let mut ended = RoundOutcome {
            done: true,
            open: None,
        };
        let PresentState {
            target: desired,
            reader,
            commit,
        } = present;
        let environment = &desired.loaded.environment;
        let search = Search::In(environment.store.clone());
        let listing = state::releases(&desired.cluster, &search);
        let releases = match stop.run_until_cancelled(listing).await {
            None => return ended,
            Some(Ok(records)) => records.releases,
            // Without permission to list releases, removed ones stay unnoticed.
            Some(Err(error)) if error.class() == Some(&Class::Forbidden) => return ended,
            Some(Err(error)) => {
                tracing::debug!(environment = %environment.name, error = %words(&error), "failed to list releases");
                ended.done = false;
                return ended;
            }
        };
        let mut removed = candidates(&desired.loaded, true, readable(releases.clone()));
        // Releases of other environments belong to other branches.
        removed.retain(|(name, ..)| name.environment == environment.name);
        let names: BTreeSet<ReleaseName> = removed.iter().map(|(name, ..)| name.clone()).collect();
        self.removed.retain(|name, _| names.contains(name));
        let now = Timestamp::now();
        // Outside of the windows, only uninstall releases with a window override.
        let windows = |record: &Installed| policy(&environment.sync, &record.memory).windows;
        let (allowed, waiting): (Vec<_>, Vec<_>) =
            removed.into_iter().partition(|(name, _, record)| {
                windows(record).are_open(now) || overrides_windows(&releases, name)
            });
        removed = allowed;
        if !waiting.is_empty() {
            for (name, store, record) in &waiting {
                let closed = window_closed(&windows(record), &UserRequests::default(), now);
                let previous = RemovedRelease {
                    name,
                    store,
                    version: version(record),
                };
                let reporting = Box::pin(self.report(&desired, previous, &closed));
                if stop.run_until_cancelled(reporting).await.is_none() {
                    return ended;
                }
            }
        }
        if removed.is_empty() {
            return ended;
        }
        let Some(removed) = self.gone(&desired, (reader, commit), removed).await else {
            ended.done = false;
            return ended;
        };
        for one in removed {
            if self.states.has_changed().unwrap_or(true) || stop.is_cancelled() {
                break;
            }
            let Some(summary) = releases.iter().find(|summary| summary.name == *one.name()) else {
                continue;
            };
            if summary.user_requests.suspended(Timestamp::now()).is_some() {
                continue;
            }
            // A release that is handed over waits until its successors are ready.
            if !are_successors_ready(&desired, &one, &releases) {
                ended.done = false;
                continue;
            }
            let Some(report) = Box::pin(self.uninstall_one(&desired, &one, stop)).await else {
                break;
            };
            let previous = summary.record.as_ref().map(version).unwrap_or_default();
            let previous = RemovedRelease {
                name: one.name(),
                store: &summary.store,
                version: previous,
            };
            let reporting = Box::pin(self.report(&desired, previous, &report));
            if stop.run_until_cancelled(reporting).await.is_none() {
                break;
            }
            let outcome = report.outcome;
            ended.done &= outcome != ReconcileOutcome::Failed;
            let is_reconciled = !matches!(
                outcome,
                ReconcileOutcome::Removed
                    | ReconcileOutcome::Unapproved
                    | ReconcileOutcome::Interrupted
                    | ReconcileOutcome::Superseded
            );
            if is_reconciled && self.is_request_open(&desired, summary, answered).await {
                ended.open = Some(summary.name.release.clone());
            }
        }
        ended
    }

    /// Decides about releases that left git, by the files at a commit. Returns `None` if the files
    /// cannot be read now, or at shutdown.
    async fn gone(
        &self,
        desired: &Target,
        (reader, commit): (Reader, String),
        removed: Vec<Candidate>,
    ) -> Option<Vec<Gone>> {
        let loaded = Arc::clone(&desired.loaded);
        let loader = self.shared.loader.clone();
        let keys = desired.source_policy.keys.clone();
        let loading = tokio::task::spawn_blocking(move || {
            let place = reader.place();
            let tree = place.tree(&commit).ok()?;
            // The files are untrusted: a push can declare successors for any release.
            let read = |environment: &str| {
                loader.load_other(&EnvironmentAt {
                    place: place.clone(),
                    commit: commit.clone(),
                    name: environment.to_owned(),
                    keys: keys.clone(),
                })
            };
            Some(gone(&loaded, &tree, removed, &read))
        });
        let read = self.shared.stop.run_until_cancelled(loading).await?;
        read.ok().flatten()
    }

    /// Returns whether a sync request stays open because its fetch is not done. Withdraws it
    /// otherwise.
    async fn is_request_open(
        &self,
        desired: &Target,
        release: &ReleaseSummary,
        answered: u64,
    ) -> bool {
        let Some(request) = &release.user_requests.sync else {
            return false;
        };
        let name = &release.name;
        if self.requests.is_open(&name.release, request, answered) {
            return true;
        }
        let cluster = desired.planner(false).cluster_for(name);
        let done = |requests: &mut UserRequests| {
            if requests.sync.as_ref() == Some(request) {
                requests.sync = None;
            }
        };
        if let Err(error) = state::order(&cluster, name, &release.store, done).await {
            tracing::debug!(release = %name, error = %words(&error), "failed to withdraw a sync request");
        }
        false
    }

    /// Uninstalls one release, as far as allowed. Returns `None` at shutdown.
    async fn uninstall_one(
        &self,
        desired: &Target,
        gone: &Gone,
        stop: &CancellationToken,
    ) -> Option<ReconcileReport> {
        let started = Instant::now();
        self.shared
            .events
            .report(ControllerEvent::ReconcileStarted {
                release: gone.name().clone(),
            });
        let report = match catch_panic(Box::pin(self.plan_and_execute(desired, gone, stop))).await {
            Some(report) => report?,
            None => panicked(),
        };
        self.shared
            .events
            .report(ControllerEvent::ReconcileFinished {
                release: gone.name().clone(),
                cluster: desired
                    .source_policy
                    .cluster
                    .as_ref()
                    .map(|id| id.0.clone()),
                revision: desired.revision(),
                outcome: report.outcome,
                message: report.message.clone(),
                is_correction: false,
                public_message: report.public_message.clone(),
                retained: None,
                took: started.elapsed(),
            });
        Some(report)
    }

    async fn plan_and_execute(
        &self,
        desired: &Target,
        gone: &Gone,
        stop: &CancellationToken,
    ) -> Option<ReconcileReport> {
        let plans = desired.planner(false);
        let making = in_time(gone.name(), Box::pin(plans.plan_end(gone)));
        let planned = stop.run_until_cancelled(making).await?;
        Some(match planned {
            Err(error) => plan_failed(&failure(&error), 1),
            Ok(planned) => {
                let refusals = desired.refusals(&planned);
                let recorded = planned.observation.observed.policies();
                let sync = policy(&desired.loaded.environment.sync, recorded);
                let needs_approval = sync.needs_approval;
                let missing = if needs_approval && refusals.is_empty() {
                    let querying = Box::pin(approval::missing(desired, &planned));
                    stop.run_until_cancelled(querying).await?
                } else {
                    None
                };
                if let Some(missing) = missing {
                    unapproved(&missing)
                } else if refusals.is_empty() {
                    let done = Box::pin(self.execute(desired, gone, planned)).await;
                    ReconcileReport::new(done.outcome, done.message)
                        .with_public_message(done.public_message)
                } else {
                    let reasons = reasons(&refusals);
                    let report = ReconcileReport::with_reasons(ReconcileOutcome::Refused, &reasons);
                    report.with_condition(ConditionKind::Stalled, "Refused")
                }
            }
        })
    }

    /// Executes the plan. Cancels it if git contains the release again, the consent is withdrawn,
    /// or the environment is no longer synced.
    async fn execute(&self, desired: &Target, gone: &Gone, planned: Planned) -> RunResult {
        let cluster = desired.planner(false).cluster_for(gone.name());
        let newer = CancellationToken::new();
        let run = execute(&self.shared, &cluster, planned, newer.clone());
        let mut updates = self.states.clone();
        let watching = async {
            loop {
                let Ok(()) = updates.changed().await else {
                    return newer.cancel();
                };
                let present = updates.borrow_and_update().clone();
                if !is_unaffected(desired, &present.target, gone.name()) {
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

/// Returns the last installed version.
fn version(record: &Installed) -> &str {
    let installed = record.installed.as_ref();
    installed.map_or("", |installed| installed.version.as_str())
}

/// Returns whether the uninstall is unaffected by a new commit: the release is still absent, and
/// consent and other terms are the same.
fn is_unaffected(before: &Target, now: &Target, name: &ReleaseName) -> bool {
    let terms = |desired: &Target| TermsDigest::of(&desired.loaded.environment, &name.release);
    !now.loaded.has(name) && terms(before) == terms(now)
}

/// Returns whether a user requested a sync of the release outside of the windows.
fn overrides_windows(releases: &[ReleaseSummary], name: &ReleaseName) -> bool {
    let mut named = releases.iter().filter(|release| release.name == *name);
    named.any(|release| {
        let request = release.user_requests.sync.as_ref();
        request.is_some_and(|request| request.override_window)
    })
}

/// Returns whether all successors of a release are ready at the desired commit.
fn are_successors_ready(desired: &Target, gone: &Gone, releases: &[ReleaseSummary]) -> bool {
    gone.successors().all(|successor| {
        releases.iter().any(|release| {
            release.name == *successor
                && release.record.as_ref().is_ok_and(|record| {
                    let installed = record.installed.as_ref();
                    record.ready && installed.is_some_and(|one| one.revision == desired.revision())
                })
        })
    })
}
