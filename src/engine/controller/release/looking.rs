//! Looks at a release, and brings it to what git says.

use std::collections::BTreeSet;
use std::sync::Arc;

use jiff::Timestamp;
use pleach_domain::inventory::ConditionKind;
use pleach_domain::object::ObjectId;
use pleach_domain::repo::format::Drift;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::{Release, VERIFY};
use crate::engine::controller::drift::Left;
use crate::engine::controller::looked::{
    CLOSED, Looked, OTHERWISE, blocked, drift, is_held_back, is_reached, stops, unplanned,
    window_closed,
};
use crate::engine::controller::run::{Done, LIMIT, Wanted, carry_out};
use crate::engine::controller::{End, LoopEvent, approval};
use crate::engine::planning::{Planned, Planner};
use crate::engine::sync::{SyncError, introduce};
use crate::engine::words;
use crate::io::cluster::ResourcePath;

/// Findings by which a record is somebody else's, or on another cluster.
const NOT_OURS: [&str; 3] = ["wrong-cluster", "other-repository", "other-tooling"];

impl Release {
    /// Looks, and does what is to be done; only at objects that were changed,
    /// where that is enough. None at the end of the loop.
    pub(super) async fn look(
        &mut self,
        wanted: &Arc<Wanted>,
        changed: &BTreeSet<ObjectId>,
        stop: &CancellationToken,
    ) -> Option<Looked> {
        let verify = Instant::now() >= self.verify_at;
        let none = BTreeSet::new();
        let changed = if verify { &none } else { changed };
        let mut conditions = wanted.conditions.clone();
        self.kept = None;
        self.was_reached = !self.is_elsewhere && self.has_reached(wanted);
        let mut wanted = Arc::clone(wanted);
        let planning = match self.plan_some(&wanted, changed, stop).await? {
            Ok(None) => self.plan(&wanted, verify, stop).await?,
            Ok(Some(planned)) => Ok(planned),
            Err(error) => Err(error),
        };
        let mut planned = match planning {
            Ok(planned) => planned,
            Err(error) => return Some(unplanned(&error, self.failures)),
        };
        self.watch(&planned);
        self.was_reached |= is_reached(&planned);
        self.is_ours = !planned
            .plan
            .refusals()
            .any(|finding| NOT_OURS.contains(&finding.code.as_str()));
        let orders = planned.observation.orders();
        let now = Timestamp::now();
        if let Some(suspension) = orders.suspended(now) {
            let mut looked = Looked::new(End::Suspended, suspension.words());
            let left = suspension.until.map(|until| until.duration_since(now));
            looked.pause = left.and_then(|left| left.try_into().ok());
            return Some(looked);
        }
        if wanted.is_remembered && !is_reached(&planned) {
            return Some(Looked::new(End::Waiting, OTHERWISE));
        }
        if is_held_back(&wanted, &planned, &orders, now) {
            // Drift is corrected all the same, to what was reached before.
            let reached = self
                .reached
                .clone()
                .filter(|reached| !reached.is_same(&wanted));
            let Some(reached) = reached else {
                let mut looked = Looked::new(End::Waiting, CLOSED);
                looked.condition = Some(window_closed());
                return Some(looked);
            };
            planned = match self.plan(&reached, verify, stop).await? {
                Ok(planned) => planned,
                Err(error) => return Some(unplanned(&error, self.failures)),
            };
            wanted = reached;
            (self.kept, self.was_reached) = (Some(Arc::clone(&wanted)), true);
            conditions.push(window_closed());
        }
        if verify {
            self.verify_at = Instant::now() + VERIFY;
        }
        if let Some(looked) = stops(&wanted, &planned, &orders) {
            return Some(looked);
        }
        let sync = &wanted.loaded.environment.sync;
        // What was approved once is kept as it is without asking again.
        if sync.needs_approval && !is_reached(&planned) {
            planned = match Box::pin(self.approved(&wanted, planned, verify, stop)).await? {
                Ok(planned) => planned,
                Err(looked) => return Some(*looked),
            };
        }
        if let Some(looked) = blocked(&planned.plan, &orders) {
            return Some(looked);
        }
        // What held it may be over, and this may take long.
        if planned.observation.says(&conditions) {
            self.told = Some(conditions);
        } else {
            self.say(&wanted, conditions).await;
        }
        let ignored = planned.desired.ignored.clone();
        let Done {
            end,
            message,
            members,
        } = Box::pin(self.carry_out(&wanted, planned)).await;
        let is_reached = matches!(end, End::Deployed | End::Unchanged);
        let left = members
            .filter(|_| is_reached && self.subscription.is_some())
            .map(|members| Left::new(Arc::clone(&wanted), ignored, members));
        if end != End::Unchanged {
            // The record may be another object now.
            self.told = None;
        }
        self.reach(wanted, end);
        let mut looked = Looked::new(end, message);
        looked.left = left;
        if !matches!(end, End::Superseded | End::Interrupted) {
            looked.request = orders.sync;
        }
        Some(looked)
    }

    /// A plan that somebody approved; otherwise what has to be approved.
    async fn approved(
        &mut self,
        wanted: &Wanted,
        mut planned: Planned,
        verify: bool,
        stop: &CancellationToken,
    ) -> Option<Result<Planned, Box<Looked>>> {
        let failed = |error: SyncError| Box::new(Looked::new(End::Failed, words(&error)));
        if planned.is_new() && planned.plan.has_steps() {
            // There is nothing yet that an approval could be written to.
            let introducing = Box::pin(introduce(&planned.desired, planned.observation));
            if let Err(error) = stop.run_until_cancelled(introducing).await? {
                return Some(Err(failed(error)));
            }
            self.told = None;
            planned = match self.plan(wanted, verify, stop).await? {
                Ok(planned) => planned,
                Err(error) => return Some(Err(failed(error))),
            };
        }
        let asking = Box::pin(approval::missing(wanted, &planned));
        Some(match stop.run_until_cancelled(asking).await? {
            None => Ok(planned),
            Some(message) => {
                let looked = Looked::new(End::Unapproved, message);
                let looked = looked.saying(ConditionKind::Stalled, approval::AWAITING);
                Err(Box::new(looked))
            }
        })
    }

    /// Whether the same was reached last.
    fn has_reached(&self, wanted: &Wanted) -> bool {
        self.reached.as_ref().is_some_and(|one| one.is_same(wanted))
    }

    /// Notes how a run ended. Where it is as wanted, those that wait for it hear of
    /// that.
    fn reach(&mut self, wanted: Arc<Wanted>, end: End) {
        if !matches!(end, End::Deployed | End::Unchanged) {
            // Part of it may be there: to come back from that corrects no drift.
            self.is_elsewhere |= !self.has_reached(&wanted);
            return;
        }
        self.is_elsewhere = false;
        let before = self.reached.as_ref().map(|one| one.revision());
        if end == End::Deployed || before != Some(wanted.revision()) {
            let name = wanted.release().0.name.release.clone();
            // Nobody listens any more when the loop ends.
            drop(self.neighbors.reached.send(name));
        }
        self.reached = Some(wanted);
    }

    /// Says where the kinds of the objects are served.
    fn watch(&self, planned: &Planned) {
        if let Some(subscription) = &self.subscription {
            let discovery = &planned.observation.observed.discovery;
            let manifests = planned.desired.manifests.iter();
            subscription.watch(
                manifests.filter_map(|manifest| ResourcePath::of(discovery, &manifest.gvk())),
            );
        }
    }

    /// Plans only objects that were changed, where nothing else is to be done.
    async fn plan_some(
        &self,
        wanted: &Wanted,
        changed: &BTreeSet<ObjectId>,
        stop: &CancellationToken,
    ) -> Option<Result<Option<Planned>, SyncError>> {
        let corrects = wanted.loaded.environment.sync.drift == Drift::Correct;
        if changed.is_empty() || !self.has_reached(wanted) || !corrects {
            return Some(Ok(None));
        }
        let (release, rendered) = wanted.release();
        let work = format!("to look at release {}", release.name);
        let _work = self.shared.pulse.work(work, LIMIT);
        let started = Instant::now();
        let planner = wanted.planner(false);
        let planning = Box::pin(planner.plan_some(release, rendered, changed));
        let planned = stop.run_until_cancelled(planning).await;
        self.planned(wanted, started);
        planned
    }

    async fn plan(
        &self,
        wanted: &Wanted,
        verify: bool,
        stop: &CancellationToken,
    ) -> Option<Result<Planned, SyncError>> {
        let (release, rendered) = wanted.release();
        let started = Instant::now();
        let planner = wanted.planner(verify);
        let planning = async {
            let sight = self.shared.sights.begin(wanted, self.since).await;
            let work = format!("to look at release {}", release.name);
            let _work = self.shared.pulse.work(work, LIMIT);
            let planner = Planner {
                cluster: &sight.cluster,
                ..planner
            };
            Box::pin(planner.plan(release, rendered)).await
        };
        let planned = stop.run_until_cancelled(planning).await;
        self.planned(wanted, started);
        planned
    }

    fn planned(&self, wanted: &Wanted, started: Instant) {
        self.shared.listener.tell(LoopEvent::Planned {
            release: wanted.release().0.name.clone(),
            took: started.elapsed(),
        });
    }

    /// Carries the plan out, unless something newer comes in between.
    async fn carry_out(&self, wanted: &Arc<Wanted>, planned: Planned) -> Done {
        let cluster = wanted.planner(false).cluster_for(&wanted.release().0.name);
        let newer = CancellationToken::new();
        // Who is told that drift was corrected wants to know which.
        let corrected = self.was_reached.then(|| drift(&planned.plan));
        let run = async {
            let run = carry_out(&self.shared, &cluster, planned, newer.clone());
            let mut done = Box::pin(run).await;
            if let (End::Deployed, Some(corrected)) = (done.end, corrected) {
                done.message = corrected;
            }
            done
        };
        let mut coming = self.wanted.clone();
        let watching = async {
            loop {
                // A release that left git is not gone on with either.
                let Ok(()) = coming.changed().await else {
                    return newer.cancel();
                };
                if !coming.borrow_and_update().is_same(wanted) {
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
