//! Reconcile of a release: plan, admit, execute.

use std::collections::BTreeSet;
use std::sync::Arc;

use jiff::Timestamp;
use pleach_formats::file::Drift;
use pleach_model::object::ObjectId;
use pleach_state::inventory::{Condition, UserRequests};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::{Release, VERIFY};
use crate::{
    ControllerEvent, ReconcileOutcome,
    approval::{self, Asked},
    concurrency::is_silence,
    drift::Left,
    history_lookup::Recall,
    outcome::{
        Kept, OTHERWISE, ReconcileReport, blocked, drift, is_closed, is_left, is_new,
        is_of_another_commit, is_reached, policy, refused, reported, suspended, unplanned,
        was_there, window_closed,
    },
    run::{self, Done, Target, code, in_time},
};
use pleach_cluster::ResourcePath;
use pleach_engine::{
    load::Loaded,
    planning::{Planned, Planner},
    sync::{SyncError, affirm, expected_objects, introduce},
    words,
};

/// Codes of findings that mean the record belongs to another user or cluster.
const NOT_OURS: [&str; 3] = ["wrong-cluster", "other-repository", "other-tooling"];

impl Release {
    /// Reconciles the release: only the changed objects if that is enough, otherwise all. Returns
    /// `None` at shutdown.
    pub(super) async fn reconcile(
        &mut self,
        desired: &Arc<Target>,
        changed: &BTreeSet<ObjectId>,
        stop: &CancellationToken,
    ) -> Option<ReconcileReport> {
        let verify = Instant::now() >= self.verify_at;
        let none = BTreeSet::new();
        let subscription = self.subscription.as_ref();
        // A new runtime object needs a plan of all objects.
        let is_made = subscription.is_some_and(|one| one.expects_any(changed));
        let changed = if verify || is_made { &none } else { changed };
        self.was_reached = !self.is_elsewhere && self.has_reached(desired);
        let planning = match self.plan_some(desired, changed, stop).await? {
            Ok(None) => self.plan((desired, desired), verify, stop).await?,
            Ok(Some(planned)) => Ok(planned),
            Err(error) => Err(error),
        };
        let planned = match planning {
            Ok(planned) => planned,
            Err(error) => return Some(unplanned(&error, self.failures)),
        };
        self.watch(&planned);
        let is_new = is_new(&planned);
        self.was_reached = !is_new && (self.was_reached || is_reached(&planned));
        self.is_ours = is_ours(&planned);
        if self.is_ours && self.health.said_before(planned.observation.degraded()) {
            self.news.was_degraded();
        }
        if verify {
            self.health.doubt();
        }
        let orders = planned.observation.orders();
        let now = Timestamp::now();
        let record = planned.observation.observed.installed.as_ref();
        self.contended = record.map_or_else(Vec::new, |record| record.contended(now));
        if let Some(suspension) = orders.suspended(now) {
            return Some(suspended(suspension, now));
        }
        let recorded = recorded(desired, &planned);
        let is_left = is_left(&planned);
        let look = Look {
            verify,
            is_new,
            by_change: !changed.is_empty(),
        };
        let admitting = Box::pin(self.admit(desired, planned, &orders, &look, stop));
        let held = match admitting.await? {
            Ok(planned) => {
                let conditions = desired.conditions.clone();
                let done = self.execute((desired, desired), planned, conditions, verify);
                return Some(Box::pin(done).await);
            }
            Err(held) => *held,
        };
        if !is_left {
            return Some(held);
        }
        // While this waits, drift from the previous state is corrected.
        Box::pin(self.keep(desired, held, recorded, verify, stop)).await
    }

    /// Returns the plan if it can be executed now, or the outcome of waiting.
    async fn admit(
        &mut self,
        desired: &Target,
        mut planned: Planned,
        orders: &UserRequests,
        look: &Look,
        stop: &CancellationToken,
    ) -> Option<Result<Planned, Box<ReconcileReport>>> {
        // Maintaining the reconciled state needs neither a window nor an approval.
        if look.is_new && desired.is_remembered {
            let report =
                ReconcileReport::new(ReconcileOutcome::Waiting, OTHERWISE).about(OTHERWISE);
            return Some(Err(Box::new(report)));
        }
        let now = Timestamp::now();
        let recorded = planned.observation.observed.policies();
        let sync = policy(&desired.loaded.environment.sync, recorded);
        if look.is_new && is_closed(&sync.windows, orders, now) {
            return Some(Err(Box::new(window_closed(&sync.windows, orders, now))));
        }
        if let Some(report) = refused(desired, &planned, orders) {
            return Some(Err(Box::new(report)));
        }
        if look.is_new && sync.needs_approval {
            planned = match Box::pin(self.approved(desired, planned, look, stop)).await? {
                Ok(planned) => planned,
                Err(report) => return Some(Err(report)),
            };
        }
        let blocked = blocked(&planned.plan, orders);
        Some(blocked.map_or(Ok(planned), |report| Err(Box::new(report))))
    }

    /// Corrects drift from the last applied state while a newer one waits. Deletes nothing, and
    /// never reverts to an older state.
    async fn keep(
        &mut self,
        newer: &Arc<Target>,
        mut held: ReconcileReport,
        recorded: Option<String>,
        verify: bool,
        stop: &CancellationToken,
    ) -> Option<ReconcileReport> {
        let Some(previous) = self.previous(newer, &held, recorded) else {
            return Some(held);
        };
        let report = match self.plan((&previous, newer), verify, stop).await? {
            Ok(planned) => {
                let (orders, now) = (planned.observation.orders(), Timestamp::now());
                if let Some(suspension) = orders.suspended(now) {
                    return Some(suspended(suspension, now));
                }
                if !was_there(&planned) {
                    // The record names the present state.
                    self.reached = None;
                    return Some(held);
                }
                self.is_ours |= is_ours(&planned);
                self.was_reached = true;
                let stopped = refused(&previous, &planned, &orders);
                if let Some(report) = stopped.or_else(|| blocked(&planned.plan, &orders)) {
                    report
                } else {
                    let conditions = held.conditions(&newer.conditions);
                    let done = self.execute((&previous, newer), planned, conditions, verify);
                    Box::pin(done).await
                }
            }
            // The state is only known from a record.
            Err(error) if self.reached.is_none() => {
                let release = &newer.release().0.name;
                tracing::debug!(%release, error = %words(&error), "failed to plan the recorded revision");
                return Some(held);
            }
            Err(error) => unplanned(&error, self.failures),
        };
        held.kept = Some(Box::new(Kept {
            wanted: previous,
            looked: report,
        }));
        Some(held)
    }

    /// Returns the last applied state, which is retained while a newer one waits.
    fn previous(
        &mut self,
        newer: &Arc<Target>,
        held: &ReconcileReport,
        recorded: Option<String>,
    ) -> Option<Arc<Target>> {
        let loaded = match (&self.reached, recorded) {
            (Some(reached), _) => {
                let loaded = &reached.loaded;
                // Retain only this release: the wait can be long, and releases can be at different
                // commits.
                let is_large = loaded.rendered.len() > 1 && !Arc::ptr_eq(loaded, &newer.loaded);
                if is_large {
                    Arc::new(loaded.alone(&newer.release().0.name.release))
                } else {
                    Arc::clone(loaded)
                }
            }
            (None, Some(commit)) if commit == newer.revision() => Arc::clone(&newer.loaded),
            (None, Some(commit)) => self.recall(newer, commit)?,
            (None, None) => return None,
        };
        // The same commit would be refused again.
        let is_same = Arc::ptr_eq(&loaded, &newer.loaded);
        if is_same
            && matches!(
                held.end,
                ReconcileOutcome::Refused | ReconcileOutcome::Failed
            )
        {
            return None;
        }
        let previous = Arc::new(newer.kept_at(loaded)?);
        if self.reached.is_some() {
            self.reached = Some(Arc::clone(&previous));
        }
        Some(previous)
    }

    /// Returns the environment at the recorded commit, or starts its lookup. A reconcile does not
    /// wait for git.
    fn recall(&mut self, newer: &Target, commit: String) -> Option<Arc<Loaded>> {
        let known = self.recall.as_ref();
        if let Some(answered) = known.and_then(|recall| recall.answered(&commit)) {
            return answered;
        }
        let name = &newer.release().0.name.release;
        self.recall = Some(Recall::of(name, commit, &self.neighbors.questions));
        None
    }

    /// Executes an admitted plan, and reports `conditions` meanwhile. The applied state can be
    /// retained while a newer one waits.
    async fn execute(
        &mut self,
        (desired, newest): (&Arc<Target>, &Arc<Target>),
        planned: Planned,
        conditions: Vec<Condition>,
        verify: bool,
    ) -> ReconcileReport {
        if verify {
            self.verify_at = Instant::now() + VERIFY;
        }
        if planned.plan.has_steps() {
            // Execution can take long; let other releases plan meanwhile.
            self.room = None;
            if !desired.is_kept {
                // A remainder of the plan needs a new approval.
                self.asked = None;
            }
        }
        let orders = planned.observation.orders();
        if let Some(report) = reported(desired, &planned, &orders) {
            if is_of_another_commit(&planned) && !desired.is_kept {
                let affirming = Box::pin(affirm(&planned.desired, planned.observation)).await;
                if let Err(error) = affirming {
                    return unplanned(&error, self.failures);
                }
                self.told = None;
            }
            return report;
        }
        // Report now: the stall can be over, and execution can take long.
        let conditions = self.with_health(conditions);
        if planned.observation.says(&conditions) {
            self.told = Some(conditions);
        } else {
            self.say(desired, conditions).await;
        }
        let ignored = planned.desired.ignored.clone();
        let is_whole = planned.observation.observed.focus.is_none() && planned.plan.has_steps();
        let Done {
            end,
            message,
            is_correction,
            about,
            members,
        } = Box::pin(self.execute_plan(desired, newest, planned)).await;
        let is_reached = matches!(
            end,
            ReconcileOutcome::Deployed | ReconcileOutcome::Unchanged
        );
        let left = members
            .filter(|_| is_reached && self.subscription.is_some())
            .map(|members| Left::new(Arc::clone(desired), ignored, members));
        if end != ReconcileOutcome::Unchanged {
            // The record can have been recreated.
            self.told = None;
        }
        if end == ReconcileOutcome::Deployed && is_whole {
            // The run waited for all objects.
            self.health.is_well();
        }
        self.reach(desired, end);
        let mut report = ReconcileReport::new(end, message).about(about);
        report.is_correction = is_correction;
        report.left = left;
        if !matches!(
            end,
            ReconcileOutcome::Superseded | ReconcileOutcome::Interrupted
        ) {
            report.request = orders.sync;
        }
        report
    }

    /// Returns the plan if it is approved, or the outcome of waiting for approval.
    async fn approved(
        &mut self,
        desired: &Target,
        mut planned: Planned,
        look: &Look,
        stop: &CancellationToken,
    ) -> Option<Result<Planned, Box<ReconcileReport>>> {
        let failed = |error: SyncError| {
            let report = ReconcileReport::new(ReconcileOutcome::Failed, words(&error));
            Box::new(report.about(code(error.kind())))
        };
        if planned.is_new() && planned.plan.has_steps() {
            // Create the record first, so that an approval can be written to it.
            let introducing = Box::pin(introduce(&planned.desired, planned.observation));
            if let Err(error) = stop.run_until_cancelled(introducing).await? {
                return Some(Err(failed(error)));
            }
            self.told = None;
            // Shared answers from before do not contain the record.
            (self.room, self.since) = (None, None);
            planned = match self.plan((desired, desired), look.verify, stop).await? {
                Ok(planned) => planned,
                Err(error) => return Some(Err(failed(error))),
            };
        }
        // Forges can answer slowly; let other releases plan meanwhile.
        self.room = None;
        let asked = self.asked.as_ref();
        if asked.is_some_and(|asked| asked.approves(&planned)) {
            return Some(Ok(planned));
        }
        let known = asked.filter(|asked| look.by_change && asked.is_for(&planned));
        let missing = match known {
            // Drift must not cause requests to the forge.
            Some(known) if approval::lacks(&planned).is_some() => Some(known.missing.clone()),
            _ => {
                let asking = Box::pin(approval::missing(desired, &planned));
                stop.run_until_cancelled(asking).await?
            }
        };
        let Some(missing) = missing else {
            return Some(Ok(planned));
        };
        let report = missing.looked();
        self.asked = Some(Asked::of(planned, missing));
        Some(Err(Box::new(report)))
    }

    /// Returns whether the same content was the last to be reconciled.
    fn has_reached(&self, desired: &Target) -> bool {
        self.reached
            .as_ref()
            .is_some_and(|one| one.is_same(desired))
    }

    /// Records the outcome of a run. Notifies dependent releases if it succeeded.
    fn reach(&mut self, desired: &Arc<Target>, end: ReconcileOutcome) {
        if !matches!(
            end,
            ReconcileOutcome::Deployed | ReconcileOutcome::Unchanged
        ) {
            // Parts can be applied, so reverting to the previous state is no drift correction.
            self.is_elsewhere |= !self.has_reached(desired);
            return;
        }
        self.is_elsewhere = false;
        let before = self.reached.as_ref().map(|one| one.revision());
        if end == ReconcileOutcome::Deployed || before != Some(desired.revision()) {
            let name = desired.release().0.name.release.clone();
            // The receiver is gone only at shutdown.
            drop(self.neighbors.reached.send(name));
        }
        if !desired.is_kept {
            self.asked = None;
        }
        self.reached = Some(Arc::clone(desired));
        self.recall = None;
    }

    /// Updates the watch with the API paths of the kinds, and with the objects that workloads
    /// create.
    fn watch(&mut self, planned: &Planned) {
        if let Some(subscription) = &mut self.subscription {
            let observed = &planned.observation.observed;
            let discovery = &observed.discovery;
            if observed.focus.is_none() {
                subscription.expect(expected_objects(&planned.desired, discovery));
            }
            let manifests = planned.desired.manifests.iter();
            subscription.watch(
                manifests.filter_map(|manifest| ResourcePath::of(discovery, &manifest.gvk())),
            );
        }
    }

    /// Plans only changed objects. Returns `None` inside if a full plan is needed.
    async fn plan_some(
        &self,
        desired: &Target,
        changed: &BTreeSet<ObjectId>,
        stop: &CancellationToken,
    ) -> Option<Result<Option<Planned>, SyncError>> {
        let corrects = desired.loaded.environment.sync.drift == Drift::Correct;
        if changed.is_empty() || !self.has_reached(desired) || !corrects {
            return Some(Ok(None));
        }
        let (release, rendered) = desired.release();
        let started = Instant::now();
        let planner = desired.planner(false);
        let planning = Box::pin(planner.plan_some(release, rendered, changed));
        let planning = in_time(&release.name, planning);
        let planned = stop.run_until_cancelled(planning).await?;
        self.planned(desired, started, planned.as_ref().err());
        Some(planned)
    }

    /// Plans the desired state, with the permit of the newest desired state.
    async fn plan(
        &mut self,
        (desired, newest): (&Target, &Target),
        verify: bool,
        stop: &CancellationToken,
    ) -> Option<Result<Planned, SyncError>> {
        let (release, rendered) = desired.release();
        let started = Instant::now();
        let planner = desired.planner(verify);
        let planning = async {
            let sight = match self.room.take() {
                Some(sight) => sight,
                None => self.shared.sights.begin(newest, self.since).await,
            };
            let sight = match sight {
                Ok(sight) => sight,
                Err(error) => return (Err(error.into()), None),
            };
            let planner = Planner {
                cluster: &sight.cluster,
                ..planner
            };
            let planning = Box::pin(planner.plan(release, rendered));
            let planned = in_time(&release.name, planning).await;
            sight.heard(planned.as_ref().err().and_then(SyncError::of_cluster));
            (planned, Some(Ok(sight)))
        };
        let (planned, sight) = stop.run_until_cancelled(planning).await?;
        self.planned(desired, started, planned.as_ref().err());
        self.room = sight;
        Some(planned)
    }

    fn planned(&self, desired: &Target, started: Instant, error: Option<&SyncError>) {
        self.was_planned(desired);
        self.shared.listener.report(ControllerEvent::Planned {
            release: desired.release().0.name.clone(),
            answered: !error
                .and_then(SyncError::of_cluster)
                .is_some_and(is_silence),
            took: started.elapsed(),
        });
    }

    /// Executes the plan. Cancels it if a newer state arrives, or if a user request could unblock a
    /// waiting one.
    async fn execute_plan(
        &self,
        desired: &Arc<Target>,
        newest: &Arc<Target>,
        planned: Planned,
    ) -> Done {
        let cluster = desired
            .planner(false)
            .cluster_for(&desired.release().0.name);
        let newer = CancellationToken::new();
        // Notifications about a drift correction name the drift.
        let corrected = self.was_reached.then(|| drift(&planned.plan));
        let corrected = corrected.filter(|corrected| !corrected.is_empty());
        let run = async {
            let run = run::execute(&self.shared, &cluster, planned, newer.clone());
            let mut done = Box::pin(run).await;
            if let (ReconcileOutcome::Deployed, Some(corrected)) = (done.end, corrected) {
                done.is_correction = true;
                done.message = corrected;
            }
            done
        };
        let mut coming = self.wanted.clone();
        let watching = async {
            loop {
                tokio::select! {
                    changed = coming.changed() => {
                        // A release that left git is not continued either.
                        let is_there = changed.is_ok();
                        if !is_there || !newest.may_go_on(&coming.borrow_and_update()) {
                            return newer.cancel();
                        }
                    }
                    () = self.wake.notified(), if desired.is_kept => {
                        // Keep the trigger for the next reconcile.
                        self.wake.notify_one();
                        return newer.cancel();
                    }
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

/// Properties of a reconcile.
struct Look {
    /// Whether every object gets a dry run.
    verify: bool,
    /// Whether the plan contains new content.
    is_new: bool,
    /// Whether only watch events triggered the reconcile.
    by_change: bool,
}

/// Returns whether the record belongs to this release on the expected cluster.
fn is_ours(planned: &Planned) -> bool {
    let mut refusals = planned.plan.refusals();
    refusals.all(|finding| !NOT_OURS.contains(&finding.code.as_str()))
}

/// Returns the recorded commit, if it came from the present branch.
fn recorded(desired: &Target, planned: &Planned) -> Option<String> {
    let record = planned.observation.observed.installed.as_ref()?;
    let is_of_branch = desired.source.is_some() && record.source == desired.source;
    let installed = record.installed.as_ref().filter(|_| is_of_branch)?;
    Some(installed.revision.clone())
}
