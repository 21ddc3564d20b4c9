//! Task of one release: reconciles it whenever something could have changed.

mod reconcile;
mod report;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use pleach_model::object::ObjectId;
use pleach_state::inventory::{Condition, HEARTBEAT};
use tokio::sync::{Notify, mpsc, watch};
use tokio::time::{Instant, sleep_until};

use super::approval::Asked;
use super::catch_panic::guarded;
use super::concurrency::ReconcilePermit;
use super::crash::Attempt;
use super::drift::Subscription;
use super::health::Health;
use super::history_lookup::{Question, Recall};
use super::outcome::ReconcileReport;
use super::requests::Requests;
use super::run::{LIMIT, Target};
use super::state_changes::Told;
use super::{ControllerEvent, KeptUp, ReconcileOutcome, Shared, backoff};
use pleach_cluster::ClusterError;

/// Interval in which every object gets a dry run.
const VERIFY: Duration = Duration::from_hours(24);
/// Delay after a change that required no action. It doubles with each further one.
const CALM: Duration = Duration::from_secs(1);
/// Longest such delay.
const CALMEST: Duration = Duration::from_mins(1);

/// Task of a release.
pub(super) struct Release {
    wanted: watch::Receiver<Arc<Target>>,
    /// Triggered by user requests.
    wake: Arc<Notify>,
    neighbors: Neighbors,
    shared: Shared,
    failures: u32,
    /// The last reconciled state. Drift is corrected to it while a newer one waits.
    reached: Option<Arc<Target>>,
    /// Lookup of the state at the recorded commit, until a reconcile succeeds.
    recall: Option<Recall>,
    /// The last plan that waited for approval.
    asked: Option<Asked>,
    /// The reconcile permit, or the error of its cluster.
    room: Option<Result<ReconcilePermit, ClusterError>>,
    /// Number of consecutive drift corrections that could unblock the waiting revision.
    made_way: u32,
    /// Whether other content was started since and did not finish.
    is_elsewhere: bool,
    /// The last reported conditions; `None` before the first report.
    told: Option<Vec<Condition>>,
    /// Time of the last heartbeat in the record that the controller follows the release.
    renewed: Instant,
    /// Whether the record verifiably belongs to this release on the expected cluster. Nothing is
    /// reported to other records.
    is_ours: bool,
    verify_at: Instant,
    /// Watch subscription for its objects.
    subscription: Option<Subscription>,
    /// Readiness since the last reconcile.
    health: Health,
    /// Fields that other clients keep writing to.
    contended: Vec<String>,
    /// Number of consecutive changes that required no action.
    fruitless: u32,
    /// Whether the desired state was already reconciled before the last reconcile.
    was_reached: bool,
    /// State of the notifications.
    news: Told,
    /// Oldest shared answer we may use. `None`: only answers requested from now on.
    since: Option<Instant>,
}

/// Conditions of the wait for the next reconcile.
struct Rest {
    /// Longest wait.
    pause: Duration,
    /// Time from which changes trigger a reconcile.
    calm_at: Instant,
    /// Whether the present state is maintained: drift triggers a reconcile.
    is_kept: bool,
    /// Whether a sync request is still open.
    is_held: bool,
}

/// Channels between the releases of an environment.
#[derive(Debug, Clone)]
pub(super) struct Neighbors {
    /// Signals that a dependency might have become ready.
    pub(super) ready: Arc<Notify>,
    /// Channel to report, by name, that the release was reconciled.
    pub(super) reached: mpsc::UnboundedSender<String>,
    /// Channel for history lookups.
    pub(super) questions: mpsc::UnboundedSender<Question>,
    /// The user requests.
    pub(super) requests: Requests,
    /// The commit in progress, until all releases are planned.
    pub(super) attempt: Attempt,
}

impl Release {
    pub(super) fn new(
        wanted: watch::Receiver<Arc<Target>>,
        wake: Arc<Notify>,
        neighbors: Neighbors,
        shared: Shared,
    ) -> Self {
        Self {
            wanted,
            wake,
            neighbors,
            shared,
            failures: 0,
            reached: None,
            recall: None,
            asked: None,
            room: None,
            made_way: 0,
            is_elsewhere: false,
            told: None,
            renewed: Instant::now(),
            is_ours: false,
            since: Some(Instant::now()),
            // Random, to spread verification over the day.
            verify_at: Instant::now() + VERIFY.mul_f64(backoff::random()),
            subscription: None,
            health: Health::default(),
            contended: Vec::new(),
            fruitless: 0,
            was_reached: false,
            news: Told::new(),
        }
    }

    /// Runs until shutdown, or until git no longer contains the release.
    pub(super) async fn run(mut self) {
        let mut changed = BTreeSet::new();
        loop {
            let answered = self.neighbors.requests.answered();
            let desired = Arc::clone(&self.wanted.borrow_and_update());
            // Changed objects are reconciled first, without a permit.
            match self.turn(&desired, changed.is_empty()).await {
                Some(true) => {}
                Some(false) => continue,
                None => return,
            }
            let stop = self.shared.stop.clone();
            let started = Instant::now();
            let found = self.begin(&desired);
            if !changed.is_empty() {
                // Add changes that arrived while waiting for the permit.
                changed.extend(found);
            }
            self.shared
                .listener
                .report(ControllerEvent::ReconcileStarted {
                    release: desired.release().0.name.clone(),
                });
            let report = match guarded(Box::pin(self.reconcile(&desired, &changed, &stop))).await {
                Ok(report) => report,
                Err(report) => {
                    self.forget();
                    self.was_planned(&desired);
                    Some(report)
                }
            };
            self.room = None;
            let Some(mut report) = report else { return };
            let is_held = self.holds_on(&desired, &mut report, answered);
            // The wait that follows needs no permit.
            let calm_at = self.heed(&desired, &changed, &mut report, started.elapsed());
            if self.health.is_uncertain()
                && let Some(subscription) = &self.subscription
            {
                subscription.stir();
            }
            let telling = Box::pin(async {
                self.report(&desired, &report).await;
                self.spread(&desired, &report).await;
            });
            if stop.run_until_cancelled(telling).await.is_none() {
                return;
            }
            if report.in_the_end() == ReconcileOutcome::Interrupted {
                return;
            }
            // States that are out of sync or not managed now are not maintained.
            let is_kept = matches!(
                report.in_the_end(),
                ReconcileOutcome::Deployed
                    | ReconcileOutcome::Unchanged
                    | ReconcileOutcome::Drifted
            );
            let pause = self.pause(&desired, &report, is_kept);
            self.made_way = if report.made_way() {
                self.made_way.saturating_add(1)
            } else {
                0
            };
            let rest = Rest {
                pause,
                calm_at,
                is_kept,
                is_held,
            };
            match Box::pin(self.rest(&desired, report, rest)).await {
                Some(found) => changed = found,
                None => return,
            }
        }
    }

    /// Waits for a reason to reconcile, and returns the changed objects if there are any. Returns
    /// `None` at shutdown, or if git no longer contains the release.
    async fn rest(
        &mut self,
        desired: &Arc<Target>,
        report: ReconcileReport,
        rest: Rest,
    ) -> Option<BTreeSet<ObjectId>> {
        let stop = self.shared.stop.clone();
        let conditions = report.conditions(&desired.conditions);
        let waits = report.awaited.is_some();
        let cluster = desired
            .planner(false)
            .cluster_for(&desired.release().0.name);
        let awaited = report.awaited.unwrap_or_default();
        let look_at = Instant::now() + rest.pause;
        let nothing = Some(BTreeSet::new());
        self.since = None;
        loop {
            let hearing = async {
                match &self.subscription {
                    Some(subscription) if rest.is_kept => subscription.changes(rest.calm_at).await,
                    _ => std::future::pending().await,
                }
            };
            let ailing = async {
                match &self.subscription {
                    Some(subscription) if rest.is_kept => {
                        subscription
                            .stirred(self.health.calm(), self.health.due())
                            .await
                    }
                    _ => std::future::pending().await,
                }
            };
            let waiting = async {
                if waits {
                    Box::pin(awaited.one_is_ready(&cluster)).await;
                } else {
                    std::future::pending::<()>().await;
                }
            };
            let answering = async {
                if rest.is_held {
                    let name = &desired.release().0.name.release;
                    self.neighbors.requests.answer_to(name).await;
                } else {
                    std::future::pending::<()>().await;
                }
            };
            let recalling = Recall::is_answered(&mut self.recall);
            let stirred = tokio::select! {
                // Shutdown has priority, so that a release that left git is not reconciled again.
                biased;
                () = stop.cancelled() => return None,
                changed = self.wanted.changed() => {
                    self.restart();
                    return nothing.filter(|_| changed.is_ok());
                }
                () = recalling => return nothing,
                () = self.wake.notified() => return nothing,
                () = self.neighbors.ready.notified(), if waits => return nothing,
                () = waiting => return nothing,
                () = answering => return nothing,
                objects = hearing => return Some(objects),
                stirred = ailing => Some(stirred),
                () = sleep_until(self.renewed + HEARTBEAT), if self.is_ours => None,
                () = sleep_until(look_at) => {
                    self.since = backoff::not_before(rest.pause);
                    return nothing;
                }
            };
            let checking = Box::pin(async {
                if let Some(stirred) = stirred {
                    self.check(desired, stirred, conditions.clone()).await;
                } else {
                    let conditions = self.with_health(conditions.clone());
                    self.say(desired, conditions).await;
                }
            });
            stop.run_until_cancelled(checking).await?;
        }
    }

    /// Waits for its turn, and for a permit if one is needed. Returns false if the desired state
    /// changed meanwhile, and `None` at shutdown.
    async fn turn(&mut self, desired: &Target, takes_room: bool) -> Option<bool> {
        let turn = async {
            self.shared.last.turn(desired).await;
            if takes_room {
                Some(self.shared.sights.begin(desired, self.since).await)
            } else {
                None
            }
        };
        // Hold no data during the wait, because many releases can be waiting.
        tokio::select! {
            biased;
            room = turn => {
                self.room = room;
                Some(true)
            }
            () = self.shared.stop.cancelled() => None,
            changed = self.wanted.changed() => {
                self.restart();
                changed.is_ok().then_some(false)
            }
        }
    }

    /// Records that the release was planned, with any outcome.
    fn was_planned(&self, desired: &Target) {
        let release = &desired.release().0.name.release;
        self.neighbors.attempt.planned(&desired.revision(), release);
    }

    /// Resets state that an aborted reconcile could have left inconsistent.
    fn forget(&mut self) {
        self.reached = None;
        self.recall = None;
        self.asked = None;
        self.told = None;
        self.subscription = None;
        self.is_elsewhere = true;
    }

    /// Resets state about the previous desired state.
    fn restart(&mut self) {
        self.failures = 0;
        self.since = None;
        self.recall.take_if(|recall| recall.is_in_vain());
    }

    /// Returns whether a sync request stays open, because the commit at the time of the request has
    /// not arrived yet.
    fn holds_on(&self, desired: &Target, report: &mut ReconcileReport, answered: u64) -> bool {
        if report.made_way() && self.made_way == 0 {
            // Keep the request for the next reconcile, which is unblocked now.
            report.request = None;
        }
        let name = &desired.release().0.name.release;
        let requests = &self.neighbors.requests;
        let request = report.request.as_ref();
        let is_held = request.is_some_and(|request| requests.is_open(name, request, answered));
        if is_held {
            report.request = None;
        }
        is_held
    }

    /// Records and reports the outcome of a reconcile. Returns the time from which changes trigger
    /// the next one.
    fn heed(
        &mut self,
        desired: &Target,
        changed: &BTreeSet<ObjectId>,
        report: &mut ReconcileReport,
        took: Duration,
    ) -> Instant {
        let done = report.in_the_end();
        self.fruitless = match done {
            ReconcileOutcome::Unchanged | ReconcileOutcome::Drifted if !changed.is_empty() => {
                self.fruitless.saturating_add(1)
            }
            _ => 0,
        };
        let calm_at = Instant::now() + calm(self.fruitless);
        // Changes of fields that others manage, such as scaled replicas, are not drift.
        let is_drift = matches!(
            done,
            ReconcileOutcome::Deployed | ReconcileOutcome::Drifted | ReconcileOutcome::Failed
        );
        if is_drift && !changed.is_empty() {
            self.shared.listener.report(ControllerEvent::DriftDetected {
                release: desired.release().0.name.clone(),
                objects: changed.len(),
            });
        }
        self.settle(report);
        let kept = report.kept.as_ref().map(|kept| KeptUp {
            revision: kept.wanted.revision(),
            end: kept.looked.end,
            message: kept.looked.message.clone(),
        });
        self.shared
            .listener
            .report(ControllerEvent::ReconcileFinished {
                release: desired.release().0.name.clone(),
                cluster: desired.grant.cluster.as_ref().map(|id| id.0.clone()),
                revision: desired.revision(),
                end: report.end,
                message: report.message.clone(),
                is_correction: report.is_correction,
                about: report.about.clone(),
                kept,
                took,
            });
        if !matches!(
            done,
            ReconcileOutcome::Superseded | ReconcileOutcome::Interrupted
        ) {
            self.shared.last.looked(desired);
        }
        self.failures = if report.failed() {
            self.failures.saturating_add(1)
        } else {
            0
        };
        calm_at
    }

    /// Returns the requeue delay without events.
    fn pause(&self, desired: &Target, report: &ReconcileReport, is_kept: bool) -> Duration {
        let sync = &desired.loaded.environment.sync;
        let interval = backoff::interval(sync.interval.try_into().unwrap_or(LIMIT));
        let pause = match report.in_the_end() {
            ReconcileOutcome::Superseded => Duration::ZERO,
            // Back off while another writer keeps changing the object.
            _ if report.made_way() && self.made_way == 0 => CALM,
            _ if report.failed() => backoff::after(self.failures),
            _ => report.pause.unwrap_or(interval).min(interval),
        };
        let until_verify = self.verify_at.saturating_duration_since(Instant::now());
        if is_kept {
            pause.min(until_verify.max(CALM))
        } else {
            pause
        }
    }

    /// Starts buffering watch events of the objects during a reconcile. Returns the objects with
    /// changes found before.
    fn begin(&mut self, desired: &Target) -> BTreeSet<ObjectId> {
        let Some(members) = &desired.members else {
            self.subscription = None;
            return BTreeSet::new();
        };
        let (release, rendered) = desired.release();
        if !self
            .subscription
            .as_ref()
            .is_some_and(|one| one.is_to(members))
        {
            self.subscription = Some(members.subscribe(release.name.field_manager()));
        }
        let Some(subscription) = &mut self.subscription else {
            return BTreeSet::new();
        };
        // The retained state is watched while a newer one waits.
        let reached = self.reached.as_ref().map(|reached| &reached.release().1);
        let manifests = [Some(rendered), reached].into_iter().flatten();
        let manifests = manifests.flat_map(|rendered| &rendered.manifests);
        subscription.begin(manifests.map(|manifest| manifest.id().clone()).collect())
    }

    /// Evaluates the events that arrived during the reconcile.
    fn settle(&self, report: &mut ReconcileReport) {
        if let Some(subscription) = &self.subscription {
            let kept = report.kept.as_mut();
            let left = kept.map_or(&mut report.left, |kept| &mut kept.looked.left);
            subscription.settle(left.take());
            if report.in_the_end() == ReconcileOutcome::Drifted {
                // A reverted change is reported too.
                subscription.alert();
            }
        }
    }
}

/// Returns the delay before changes trigger a reconcile, after consecutive ones without an action.
/// Some clients keep writing to objects.
fn calm(fruitless: u32) -> Duration {
    match fruitless.checked_sub(1) {
        None => Duration::ZERO,
        Some(more) => CALM.saturating_mul(1 << more.min(10)).min(CALMEST),
    }
}
