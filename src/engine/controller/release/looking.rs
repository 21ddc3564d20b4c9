//! Looks at a release, and brings it to what git says.

use std::collections::BTreeSet;
use std::sync::Arc;

use jiff::Timestamp;
use pleach_domain::inventory::{Condition, Orders};
use pleach_domain::object::ObjectId;
use pleach_domain::repo::format::Drift;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::{Release, VERIFY};
use crate::engine::controller::approval::Asked;
use crate::engine::controller::drift::Left;
use crate::engine::controller::looked::{
    Kept, Looked, OTHERWISE, blocked, drift, is_closed, is_left, is_new, is_of_another_commit,
    is_reached, policy, refused, reported, suspended, unplanned, was_there, window_closed,
};
use crate::engine::controller::recollection::Recall;
use crate::engine::controller::run::{Done, Wanted, carry_out, code, in_time};
use crate::engine::controller::sight::is_silence;
use crate::engine::controller::{End, LoopEvent, approval};
use crate::engine::load::Loaded;
use crate::engine::planning::{Planned, Planner};
use crate::engine::sync::{SyncError, affirm, expected_objects, introduce};
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
        let subscription = self.subscription.as_ref();
        // A run-time object is found by a plan of all objects.
        let is_made = subscription.is_some_and(|one| one.expects_any(changed));
        let changed = if verify || is_made { &none } else { changed };
        self.was_reached = !self.is_elsewhere && self.has_reached(wanted);
        let planning = match self.plan_some(wanted, changed, stop).await? {
            Ok(None) => self.plan((wanted, wanted), verify, stop).await?,
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
        let recorded = recorded(wanted, &planned);
        let is_left = is_left(&planned);
        let look = Look {
            verify,
            is_new,
            by_change: !changed.is_empty(),
        };
        let admitting = Box::pin(self.admit(wanted, planned, &orders, &look, stop));
        let held = match admitting.await? {
            Ok(planned) => {
                let said = wanted.conditions.clone();
                let done = self.bring_about((wanted, wanted), planned, said, verify);
                return Some(Box::pin(done).await);
            }
            Err(held) => *held,
        };
        if !is_left {
            return Some(held);
        }
        // It waits; what was there before is not left to whoever changes it.
        Box::pin(self.keep(wanted, held, recorded, verify, stop)).await
    }

    /// A plan that may be carried out now; otherwise what it waits for.
    async fn admit(
        &mut self,
        wanted: &Wanted,
        mut planned: Planned,
        orders: &Orders,
        look: &Look,
        stop: &CancellationToken,
    ) -> Option<Result<Planned, Box<Looked>>> {
        // What was reached is kept as it is at any time, and without asking again.
        if look.is_new && wanted.is_remembered {
            let looked = Looked::new(End::Waiting, OTHERWISE).about(OTHERWISE);
            return Some(Err(Box::new(looked)));
        }
        let now = Timestamp::now();
        let recorded = planned.observation.observed.policies();
        let sync = policy(&wanted.loaded.environment.sync, recorded);
        if look.is_new && is_closed(&sync.windows, orders, now) {
            return Some(Err(Box::new(window_closed(&sync.windows, orders, now))));
        }
        if let Some(looked) = refused(wanted, &planned, orders) {
            return Some(Err(Box::new(looked)));
        }
        if look.is_new && sync.needs_approval {
            planned = match Box::pin(self.approved(wanted, planned, look, stop)).await? {
                Ok(planned) => planned,
                Err(looked) => return Some(Err(looked)),
            };
        }
        let blocked = blocked(&planned.plan, orders);
        Some(blocked.map_or(Ok(planned), |looked| Err(Box::new(looked))))
    }

    /// Corrects drift from what was there before something newer came, which has to
    /// wait; deletes nothing. What is elsewhere by now is not brought back.
    async fn keep(
        &mut self,
        newer: &Arc<Wanted>,
        mut held: Looked,
        recorded: Option<String>,
        verify: bool,
        stop: &CancellationToken,
    ) -> Option<Looked> {
        let Some(former) = self.former(newer, &held, recorded) else {
            return Some(held);
        };
        let looked = match self.plan((&former, newer), verify, stop).await? {
            Ok(planned) => {
                let (orders, now) = (planned.observation.orders(), Timestamp::now());
                if let Some(suspension) = orders.suspended(now) {
                    return Some(suspended(suspension, now));
                }
                if !was_there(&planned) {
                    // Where it is by now, its record knows.
                    self.reached = None;
                    return Some(held);
                }
                self.is_ours |= is_ours(&planned);
                self.was_reached = true;
                let stopped = refused(&former, &planned, &orders);
                if let Some(looked) = stopped.or_else(|| blocked(&planned.plan, &orders)) {
                    looked
                } else {
                    let said = held.conditions(&newer.conditions);
                    let done = self.bring_about((&former, newer), planned, said, verify);
                    Box::pin(done).await
                }
            }
            // Only a record said that it was there, as far as is known.
            Err(error) if self.reached.is_none() => {
                let release = &newer.release().0.name;
                tracing::debug!(%release, error = %words(&error), "what its record names cannot be planned");
                return Some(held);
            }
            Err(error) => unplanned(&error, self.failures),
        };
        held.kept = Some(Box::new(Kept {
            wanted: former,
            looked,
        }));
        Some(held)
    }

    /// What the release was brought to before, to be kept while something waits.
    fn former(
        &mut self,
        newer: &Arc<Wanted>,
        held: &Looked,
        recorded: Option<String>,
    ) -> Option<Arc<Wanted>> {
        let loaded = match (&self.reached, recorded) {
            (Some(reached), _) => {
                let loaded = &reached.loaded;
                // It may wait for long, and each release since another commit.
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
        // What a commit is refused for, it is refused for once more.
        let is_same = Arc::ptr_eq(&loaded, &newer.loaded);
        if is_same && matches!(held.end, End::Refused | End::Failed) {
            return None;
        }
        let former = Arc::new(newer.kept_at(loaded)?);
        if self.reached.is_some() {
            self.reached = Some(Arc::clone(&former));
        }
        Some(former)
    }

    /// What the environment was at the commit that the record names, once that is
    /// looked up: a look is not held up by git.
    fn recall(&mut self, newer: &Wanted, commit: String) -> Option<Arc<Loaded>> {
        let known = self.recall.as_ref();
        if let Some(answered) = known.and_then(|recall| recall.answered(&commit)) {
            return answered;
        }
        let name = &newer.release().0.name.release;
        self.recall = Some(Recall::of(name, commit, &self.neighbors.questions));
        None
    }

    /// Carries out a plan that may be, and says `conditions` of the release meanwhile.
    /// What is brought about may be kept while something newer waits.
    async fn bring_about(
        &mut self,
        (wanted, newest): (&Arc<Wanted>, &Arc<Wanted>),
        planned: Planned,
        conditions: Vec<Condition>,
        verify: bool,
    ) -> Looked {
        if verify {
            self.verify_at = Instant::now() + VERIFY;
        }
        if planned.plan.has_steps() {
            // They may take long; others look meanwhile.
            self.room = None;
            if !wanted.is_kept {
                // The rest of it, if any is left, is approved anew.
                self.asked = None;
            }
        }
        let orders = planned.observation.orders();
        if let Some(looked) = reported(wanted, &planned, &orders) {
            if is_of_another_commit(&planned) && !wanted.is_kept {
                let affirming = Box::pin(affirm(&planned.desired, planned.observation)).await;
                if let Err(error) = affirming {
                    return unplanned(&error, self.failures);
                }
                self.told = None;
            }
            return looked;
        }
        // What held it may be over, and this may take long.
        let conditions = self.with_health(conditions);
        if planned.observation.says(&conditions) {
            self.told = Some(conditions);
        } else {
            self.say(wanted, conditions).await;
        }
        let ignored = planned.desired.ignored.clone();
        let is_whole = planned.observation.observed.focus.is_none() && planned.plan.has_steps();
        let Done {
            end,
            message,
            is_correction,
            about,
            members,
        } = Box::pin(self.carry_out(wanted, newest, planned)).await;
        let is_reached = matches!(end, End::Deployed | End::Unchanged);
        let left = members
            .filter(|_| is_reached && self.subscription.is_some())
            .map(|members| Left::new(Arc::clone(wanted), ignored, members));
        if end != End::Unchanged {
            // The record may be another object now.
            self.told = None;
        }
        if end == End::Deployed && is_whole {
            // All of it was waited for.
            self.health.is_well();
        }
        self.reach(wanted, end);
        let mut looked = Looked::new(end, message).about(about);
        looked.is_correction = is_correction;
        looked.left = left;
        if !matches!(end, End::Superseded | End::Interrupted) {
            looked.request = orders.sync;
        }
        looked
    }

    /// A plan that somebody approved; otherwise what has to be approved.
    async fn approved(
        &mut self,
        wanted: &Wanted,
        mut planned: Planned,
        look: &Look,
        stop: &CancellationToken,
    ) -> Option<Result<Planned, Box<Looked>>> {
        let failed = |error: SyncError| {
            let looked = Looked::new(End::Failed, words(&error));
            Box::new(looked.about(code(error.kind())))
        };
        if planned.is_new() && planned.plan.has_steps() {
            // There is nothing yet that an approval could be written to.
            let introducing = Box::pin(introduce(&planned.desired, planned.observation));
            if let Err(error) = stop.run_until_cancelled(introducing).await? {
                return Some(Err(failed(error)));
            }
            self.told = None;
            // What was asked before that does not know of it.
            (self.room, self.since) = (None, None);
            planned = match self.plan((wanted, wanted), look.verify, stop).await? {
                Ok(planned) => planned,
                Err(error) => return Some(Err(failed(error))),
            };
        }
        // Forges take long to answer, and others look meanwhile.
        self.room = None;
        let asked = self.asked.as_ref();
        if asked.is_some_and(|asked| asked.approves(&planned)) {
            return Some(Ok(planned));
        }
        let known = asked.filter(|asked| look.by_change && asked.is_for(&planned));
        let missing = match known {
            // Who changes objects says nothing to the forge.
            Some(known) if approval::lacks(&planned).is_some() => Some(known.missing.clone()),
            _ => {
                let asking = Box::pin(approval::missing(wanted, &planned));
                stop.run_until_cancelled(asking).await?
            }
        };
        let Some(missing) = missing else {
            return Some(Ok(planned));
        };
        let looked = missing.looked();
        self.asked = Some(Asked::of(planned, missing));
        Some(Err(Box::new(looked)))
    }

    /// Whether the same was reached last.
    fn has_reached(&self, wanted: &Wanted) -> bool {
        self.reached.as_ref().is_some_and(|one| one.is_same(wanted))
    }

    /// Notes how a run ended. Where it is as wanted, those that wait for it hear of
    /// that.
    fn reach(&mut self, wanted: &Arc<Wanted>, end: End) {
        if !matches!(end, End::Deployed | End::Unchanged) {
            // Part of it may be there: to come back from that corrects no drift.
            self.is_elsewhere |= !self.has_reached(wanted);
            return;
        }
        self.is_elsewhere = false;
        let before = self.reached.as_ref().map(|one| one.revision());
        if end == End::Deployed || before != Some(wanted.revision()) {
            let name = wanted.release().0.name.release.clone();
            // Nobody listens any more when the loop ends.
            drop(self.neighbors.reached.send(name));
        }
        if !wanted.is_kept {
            self.asked = None;
        }
        self.reached = Some(Arc::clone(wanted));
        self.recall = None;
    }

    /// Says where the kinds of the objects are served, and which objects their workloads
    /// make.
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
        let started = Instant::now();
        let planner = wanted.planner(false);
        let planning = Box::pin(planner.plan_some(release, rendered, changed));
        let planning = in_time(&release.name, planning);
        let planned = stop.run_until_cancelled(planning).await?;
        self.planned(wanted, started, planned.as_ref().err());
        Some(planned)
    }

    /// Plans what is wanted, in the room of what is wanted in the end.
    async fn plan(
        &mut self,
        (wanted, newest): (&Wanted, &Wanted),
        verify: bool,
        stop: &CancellationToken,
    ) -> Option<Result<Planned, SyncError>> {
        let (release, rendered) = wanted.release();
        let started = Instant::now();
        let planner = wanted.planner(verify);
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
        self.planned(wanted, started, planned.as_ref().err());
        self.room = sight;
        Some(planned)
    }

    fn planned(&self, wanted: &Wanted, started: Instant, error: Option<&SyncError>) {
        self.was_planned(wanted);
        self.shared.listener.tell(LoopEvent::Planned {
            release: wanted.release().0.name.clone(),
            answered: !error
                .and_then(SyncError::of_cluster)
                .is_some_and(is_silence),
            took: started.elapsed(),
        });
    }

    /// Carries the plan out, unless something newer comes in between, or what waits for
    /// the end of its waiting may go ahead.
    async fn carry_out(
        &self,
        wanted: &Arc<Wanted>,
        newest: &Arc<Wanted>,
        planned: Planned,
    ) -> Done {
        let cluster = wanted.planner(false).cluster_for(&wanted.release().0.name);
        let newer = CancellationToken::new();
        // Who is told that drift was corrected wants to know which.
        let corrected = self.was_reached.then(|| drift(&planned.plan));
        let corrected = corrected.filter(|corrected| !corrected.is_empty());
        let run = async {
            let run = carry_out(&self.shared, &cluster, planned, newer.clone());
            let mut done = Box::pin(run).await;
            if let (End::Deployed, Some(corrected)) = (done.end, corrected) {
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
                        // A release that left git is not gone on with either.
                        let is_there = changed.is_ok();
                        if !is_there || !newest.may_go_on(&coming.borrow_and_update()) {
                            return newer.cancel();
                        }
                    }
                    () = self.wake.notified(), if wanted.is_kept => {
                        // For the look that comes.
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

/// How a release is looked at.
struct Look {
    /// Every object goes through a dry run.
    verify: bool,
    /// What is planned was not there before.
    is_new: bool,
    /// Somebody changed objects, and nothing else happened.
    by_change: bool,
}

/// Whether the record is of this release, on the cluster that is meant.
fn is_ours(planned: &Planned) -> bool {
    let mut refusals = planned.plan.refusals();
    refusals.all(|finding| !NOT_OURS.contains(&finding.code.as_str()))
}

/// The commit that a release was brought to from the branch that it follows now.
fn recorded(wanted: &Wanted, planned: &Planned) -> Option<String> {
    let record = planned.observation.observed.installed.as_ref()?;
    let is_of_branch = wanted.source.is_some() && record.source == wanted.source;
    let installed = record.installed.as_ref().filter(|_| is_of_branch)?;
    Some(installed.revision.clone())
}
