//! One release: looked at whenever something may have changed, and brought to
//! what git says.

mod telling;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use pleach_domain::inventory::{Condition, ConditionKind};
use pleach_domain::object::ObjectId;
use pleach_domain::repo::format::Drift;
use tokio::sync::{Notify, mpsc, watch};
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

use super::drift::{Left, Subscription};
use super::looked::{
    CLOSED, Looked, OTHERWISE, blocked, drift, is_held_back, is_reached, stops, unplanned,
    window_closed,
};
use super::news::Told;
use super::requests::Requests;
use super::run::{Done, LIMIT, Wanted, carry_out};
use super::{End, LoopEvent, Shared, approval, pace};
use crate::engine::planning::{Planned, Planner};
use crate::engine::sync::{SyncError, introduce};
use crate::engine::words;
use crate::io::cluster::ResourcePath;

/// Every object goes through a dry run once in this time.
const VERIFY: Duration = Duration::from_hours(24);
/// Findings by which a record is somebody else's, or on another cluster.
const NOT_OURS: [&str; 3] = ["wrong-cluster", "other-repository", "other-tooling"];
/// Pause after a change that needed nothing to be done; doubles with every
/// further one.
const CALM: Duration = Duration::from_secs(1);
/// The longest such pause.
const CALMEST: Duration = Duration::from_mins(1);

/// The task of a release.
pub(super) struct Release {
    wanted: watch::Receiver<Arc<Wanted>>,
    /// Somebody asks for something.
    wake: Arc<Notify>,
    neighbors: Neighbors,
    shared: Shared,
    failures: u32,
    /// What was last reached: what drift is corrected to while the windows are
    /// closed for anything newer.
    reached: Option<Arc<Wanted>>,
    /// Whether something else was begun since, and did not come to its end.
    is_elsewhere: bool,
    /// What was kept when it was last looked at, where the windows were closed for
    /// what git wants.
    kept: Option<Arc<Wanted>>,
    /// What the loop last said of it; unknown at first.
    told: Option<Vec<Condition>>,
    /// Whether the record was seen to be this release's, on the cluster that is
    /// meant: nothing is told of any other.
    is_ours: bool,
    verify_at: Instant,
    /// Where it hears of changes of its objects.
    subscription: Option<Subscription>,
    /// How often in a row somebody changed something and nothing was to be done.
    fruitless: u32,
    /// Whether what is wanted was brought about before the last look.
    was_reached: bool,
    /// What people were told of it.
    news: Told,
    /// From when on answers count that others asked the cluster for; from now on
    /// where it was not said.
    since: Option<Instant>,
}

/// How the releases of an environment hear of each other.
#[derive(Debug, Clone)]
pub(super) struct Neighbors {
    /// One that this release depends on may be ready now.
    pub(super) ready: Arc<Notify>,
    /// Where it says by its name that it was brought to a commit.
    pub(super) reached: mpsc::UnboundedSender<String>,
    /// What people ask for of them.
    pub(super) requests: Requests,
}

impl Release {
    pub(super) fn new(
        wanted: watch::Receiver<Arc<Wanted>>,
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
            is_elsewhere: false,
            kept: None,
            told: None,
            is_ours: false,
            since: Some(Instant::now()),
            // Spread over the day.
            verify_at: Instant::now() + VERIFY.mul_f64(pace::random()),
            subscription: None,
            fruitless: 0,
            was_reached: false,
            news: Told::new(),
        }
    }

    /// Runs until the loop ends, or git no longer has the release.
    pub(super) async fn run(mut self) {
        let mut changed = BTreeSet::new();
        loop {
            let answered = self.neighbors.requests.answered();
            let wanted = Arc::clone(&self.wanted.borrow_and_update());
            let stop = self.shared.stop.clone();
            tokio::select! {
                biased;
                () = self.shared.last.turn(&wanted) => {}
                () = stop.cancelled() => return,
                changed = self.wanted.changed() => match changed {
                    Ok(()) => continue,
                    Err(_) => return,
                },
            }
            let started = Instant::now();
            let found = self.begin(&wanted);
            if !changed.is_empty() {
                // What was changed while it waited for its turn.
                changed.extend(found);
            }
            self.shared.listener.tell(LoopEvent::Looking {
                release: wanted.release().0.name.clone(),
            });
            let looked = Box::pin(self.look(&wanted, &changed, &stop)).await;
            let Some(mut looked) = looked else { return };
            let is_held = self.holds_on(&wanted, &mut looked, answered);
            // Most of the time it waits: what it does in between takes no room then.
            let calm_at = self.heed(&wanted, &changed, &mut looked, started.elapsed());
            if stop
                .run_until_cancelled(Box::pin(self.tell(&wanted, &looked)))
                .await
                .is_none()
            {
                return;
            }
            if stop
                .run_until_cancelled(Box::pin(self.spread(&wanted, &looked)))
                .await
                .is_none()
            {
                return;
            }
            if looked.end == End::Interrupted {
                return;
            }
            // What is left alone, or not as git says, is not kept as it is.
            let is_kept = matches!(looked.end, End::Deployed | End::Unchanged | End::Drifted);
            let pause = self.pause(&wanted, &looked, is_kept);
            let waits = looked.awaited.is_some();
            let cluster = wanted.planner(false).cluster_for(&wanted.release().0.name);
            let awaited = looked.awaited.unwrap_or_default();
            let hearing = async {
                match &self.subscription {
                    Some(subscription) if is_kept => subscription.changes(calm_at).await,
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
                if is_held {
                    let name = &wanted.release().0.name.release;
                    self.neighbors.requests.answer_to(name).await;
                } else {
                    std::future::pending::<()>().await;
                }
            };
            changed = BTreeSet::new();
            self.since = None;
            tokio::select! {
                // A release that left git is not looked at again.
                biased;
                () = stop.cancelled() => return,
                changed = self.wanted.changed() => match changed {
                    Ok(()) => self.failures = 0,
                    Err(_) => return,
                },
                () = self.wake.notified() => {}
                () = self.neighbors.ready.notified(), if waits => {}
                () = waiting => {}
                () = answering => {}
                objects = hearing => changed = objects,
                () = sleep(pause) => self.since = pace::not_before(pause),
            }
        }
    }

    /// Whether what was asked for is not taken back yet: what git had when it was
    /// asked for is still to come.
    fn holds_on(&self, wanted: &Wanted, looked: &mut Looked, answered: u64) -> bool {
        let name = &wanted.release().0.name.release;
        let requests = &self.neighbors.requests;
        let request = looked.request.as_ref();
        let is_held = request.is_some_and(|request| requests.is_open(name, request, answered));
        if is_held {
            looked.request = None;
        }
        is_held
    }

    /// Takes in what came of a look, and tells of it. Says from when on a change is
    /// looked at again.
    fn heed(
        &mut self,
        wanted: &Wanted,
        changed: &BTreeSet<ObjectId>,
        looked: &mut Looked,
        took: Duration,
    ) -> Instant {
        self.fruitless = match looked.end {
            End::Unchanged | End::Drifted if !changed.is_empty() => {
                self.fruitless.saturating_add(1)
            }
            _ => 0,
        };
        let calm_at = Instant::now() + calm(self.fruitless);
        // What others may change, such as replicas that are scaled, is no drift.
        let is_drift = matches!(looked.end, End::Deployed | End::Drifted | End::Failed);
        if is_drift && !changed.is_empty() {
            self.shared.listener.tell(LoopEvent::Changed {
                release: wanted.release().0.name.clone(),
                objects: changed.len(),
            });
        }
        self.settle(looked);
        let (revision, end, message) = match (&self.kept, looked.end) {
            // What was reached before is there; what git wants now is not.
            (Some(_), End::Unchanged) => (wanted.revision(), End::Waiting, CLOSED.to_owned()),
            (Some(kept), end) => (kept.revision(), end, looked.message.clone()),
            (None, end) => (wanted.revision(), end, looked.message.clone()),
        };
        if self.kept.is_some() && looked.condition.is_none() {
            looked.condition = Some(window_closed());
        }
        self.shared.listener.tell(LoopEvent::Looked {
            release: wanted.release().0.name.clone(),
            revision,
            end,
            message,
            took,
        });
        if !matches!(looked.end, End::Superseded | End::Interrupted) {
            self.shared.last.looked(wanted);
        }
        self.failures = match looked.end {
            End::Failed => self.failures.saturating_add(1),
            _ => 0,
        };
        calm_at
    }

    /// How long the release is not looked at where nothing happens.
    fn pause(&self, wanted: &Wanted, looked: &Looked, is_kept: bool) -> Duration {
        let sync = &wanted.loaded.environment.sync;
        let interval = pace::interval(sync.interval.try_into().unwrap_or(LIMIT));
        let pause = match looked.end {
            End::Superseded => Duration::ZERO,
            End::Failed => pace::after(self.failures),
            _ => looked.pause.unwrap_or(interval).min(interval),
        };
        let until_verify = self.verify_at.saturating_duration_since(Instant::now());
        if is_kept {
            pause.min(until_verify.max(CALM))
        } else {
            pause
        }
    }

    /// Holds what is heard of the objects until they were looked at. Gives those that
    /// were found to be changed before.
    fn begin(&mut self, wanted: &Wanted) -> BTreeSet<ObjectId> {
        let Some(members) = &wanted.members else {
            self.subscription = None;
            return BTreeSet::new();
        };
        let (release, rendered) = wanted.release();
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
        let manifests = rendered.manifests.iter();
        subscription.begin(manifests.map(|manifest| manifest.id().clone()).collect())
    }

    /// Judges what was heard meanwhile.
    fn settle(&self, looked: &mut Looked) {
        if let Some(subscription) = &self.subscription {
            subscription.settle(looked.left.take());
            if looked.end == End::Drifted {
                // Whoever takes it back makes it something to tell.
                subscription.alert();
            }
        }
    }

    /// Looks, and does what is to be done; only at objects that were changed,
    /// where that is enough. None at the end of the loop.
    async fn look(
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

/// How long changes are not looked at after so many that needed nothing: objects
/// that others keep writing to.
fn calm(fruitless: u32) -> Duration {
    match fruitless.checked_sub(1) {
        None => Duration::ZERO,
        Some(more) => CALM.saturating_mul(1 << more.min(10)).min(CALMEST),
    }
}
