//! One release: looked at whenever something may have changed, and brought to
//! what git says.

mod looking;
mod telling;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use pleach_domain::inventory::{Condition, HEARTBEAT};
use pleach_domain::object::ObjectId;
use tokio::sync::{Notify, mpsc, watch};
use tokio::time::{Instant, sleep_until};

use super::approval::Asked;
use super::crash::Attempt;
use super::defect::guarded;
use super::drift::Subscription;
use super::health::Health;
use super::looked::Looked;
use super::news::Told;
use super::recollection::{Question, Recall};
use super::requests::Requests;
use super::run::{LIMIT, Wanted};
use super::sight::Sight;
use super::{End, KeptUp, LoopEvent, Shared, pace};
use crate::io::cluster::ClusterError;

/// Every object goes through a dry run once in this time.
const VERIFY: Duration = Duration::from_hours(24);
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
    /// What was last reached: what drift is corrected to while anything newer waits.
    reached: Option<Arc<Wanted>>,
    /// What the commit of its record is asked to be, until something is reached.
    recall: Option<Recall>,
    /// What was last found not to be approved.
    asked: Option<Asked>,
    /// The room that it has to look.
    room: Option<Result<Sight, ClusterError>>,
    /// How often in a row drift was corrected that was in the way of what waits.
    made_way: u32,
    /// Whether something else was begun since, and did not come to its end.
    is_elsewhere: bool,
    /// What the loop last said of it; unknown at first.
    told: Option<Vec<Condition>>,
    /// When it was last said that a controller follows it.
    renewed: Instant,
    /// Whether the record was seen to be this release's, on the cluster that is
    /// meant: nothing is told of any other.
    is_ours: bool,
    verify_at: Instant,
    /// Where it hears of changes of its objects.
    subscription: Option<Subscription>,
    /// Whether what was brought about stays ready.
    health: Health,
    /// Fields that other clients keep writing to.
    contended: Vec<String>,
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

/// For how long a release is left alone, and what is heard of it meanwhile.
struct Rest {
    /// Then it is looked at whatever happens.
    pause: Duration,
    /// From when on changes are looked at.
    calm_at: Instant,
    /// Whether it is kept as it is.
    is_kept: bool,
    /// Whether what was asked for is still to come.
    is_held: bool,
}

/// How the releases of an environment hear of each other.
#[derive(Debug, Clone)]
pub(super) struct Neighbors {
    /// One that this release depends on may be ready now.
    pub(super) ready: Arc<Notify>,
    /// Where it says by its name that it was brought to a commit.
    pub(super) reached: mpsc::UnboundedSender<String>,
    /// Where to ask what they were at a commit.
    pub(super) questions: mpsc::UnboundedSender<Question>,
    /// What people ask for of them.
    pub(super) requests: Requests,
    /// The commit that the environment takes up, until all of them are planned.
    pub(super) attempt: Attempt,
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
            recall: None,
            asked: None,
            room: None,
            made_way: 0,
            is_elsewhere: false,
            told: None,
            renewed: Instant::now(),
            is_ours: false,
            since: Some(Instant::now()),
            // Spread over the day.
            verify_at: Instant::now() + VERIFY.mul_f64(pace::random()),
            subscription: None,
            health: Health::default(),
            contended: Vec::new(),
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
            // What was changed is looked at first, which takes no room.
            match self.turn(&wanted, changed.is_empty()).await {
                Some(true) => {}
                Some(false) => continue,
                None => return,
            }
            let stop = self.shared.stop.clone();
            let started = Instant::now();
            let found = self.begin(&wanted);
            if !changed.is_empty() {
                // What was changed while it waited for its turn.
                changed.extend(found);
            }
            self.shared.listener.tell(LoopEvent::Looking {
                release: wanted.release().0.name.clone(),
            });
            let looked = match guarded(Box::pin(self.look(&wanted, &changed, &stop))).await {
                Ok(looked) => looked,
                Err(looked) => {
                    self.forget();
                    self.was_planned(&wanted);
                    Some(looked)
                }
            };
            self.room = None;
            let Some(mut looked) = looked else { return };
            let is_held = self.holds_on(&wanted, &mut looked, answered);
            // Most of the time it waits: what it does in between takes no room then.
            let calm_at = self.heed(&wanted, &changed, &mut looked, started.elapsed());
            if self.health.is_uncertain()
                && let Some(subscription) = &self.subscription
            {
                subscription.stir();
            }
            let telling = Box::pin(async {
                self.tell(&wanted, &looked).await;
                self.spread(&wanted, &looked).await;
            });
            if stop.run_until_cancelled(telling).await.is_none() {
                return;
            }
            if looked.in_the_end() == End::Interrupted {
                return;
            }
            // What is left alone, or not as git says, is not kept as it is.
            let is_kept = matches!(
                looked.in_the_end(),
                End::Deployed | End::Unchanged | End::Drifted
            );
            let pause = self.pause(&wanted, &looked, is_kept);
            self.made_way = if looked.made_way() {
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
            match Box::pin(self.rest(&wanted, looked, rest)).await {
                Some(found) => changed = found,
                None => return,
            }
        }
    }

    /// Waits until there is a reason to look again, and gives what was changed where that
    /// is one; none at the end, or where git no longer has the release.
    async fn rest(
        &mut self,
        wanted: &Arc<Wanted>,
        looked: Looked,
        rest: Rest,
    ) -> Option<BTreeSet<ObjectId>> {
        let stop = self.shared.stop.clone();
        let said = looked.conditions(&wanted.conditions);
        let waits = looked.awaited.is_some();
        let cluster = wanted.planner(false).cluster_for(&wanted.release().0.name);
        let awaited = looked.awaited.unwrap_or_default();
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
                    let name = &wanted.release().0.name.release;
                    self.neighbors.requests.answer_to(name).await;
                } else {
                    std::future::pending::<()>().await;
                }
            };
            let recalling = Recall::is_answered(&mut self.recall);
            let stirred = tokio::select! {
                // A release that left git is not looked at again.
                biased;
                () = stop.cancelled() => return None,
                changed = self.wanted.changed() => {
                    self.begin_anew();
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
                    self.since = pace::not_before(rest.pause);
                    return nothing;
                }
            };
            let checking = Box::pin(async {
                if let Some(stirred) = stirred {
                    self.check(wanted, stirred, said.clone()).await;
                } else {
                    let said = self.with_health(said.clone());
                    self.say(wanted, said).await;
                }
            });
            stop.run_until_cancelled(checking).await?;
        }
    }

    /// Waits for its turn, and for room where that is needed to look. False where
    /// something else is wanted by then; none at the end.
    async fn turn(&mut self, wanted: &Wanted, takes_room: bool) -> Option<bool> {
        let turn = async {
            self.shared.last.turn(wanted).await;
            if takes_room {
                Some(self.shared.sights.begin(wanted, self.since).await)
            } else {
                None
            }
        };
        // Nothing is kept for a look while it waits: there may be many.
        tokio::select! {
            biased;
            room = turn => {
                self.room = room;
                Some(true)
            }
            () = self.shared.stop.cancelled() => None,
            changed = self.wanted.changed() => {
                self.begin_anew();
                changed.is_ok().then_some(false)
            }
        }
    }

    /// Records that the release was planned, whatever came of it.
    fn was_planned(&self, wanted: &Wanted) {
        let release = &wanted.release().0.name.release;
        self.neighbors.attempt.planned(&wanted.revision(), release);
    }

    /// Nothing is known that a look may have left half done.
    fn forget(&mut self) {
        self.reached = None;
        self.recall = None;
        self.asked = None;
        self.told = None;
        self.subscription = None;
        self.is_elsewhere = true;
    }

    /// Something else is wanted: what came of the former one says nothing of it.
    fn begin_anew(&mut self) {
        self.failures = 0;
        self.since = None;
        self.recall.take_if(|recall| recall.is_in_vain());
    }

    /// Whether what was asked for is not taken back yet: what git had when it was
    /// asked for is still to come.
    fn holds_on(&self, wanted: &Wanted, looked: &mut Looked, answered: u64) -> bool {
        if looked.made_way() && self.made_way == 0 {
            // It counts for what comes now, as nothing is in the way any more.
            looked.request = None;
        }
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
        let done = looked.in_the_end();
        self.fruitless = match done {
            End::Unchanged | End::Drifted if !changed.is_empty() => {
                self.fruitless.saturating_add(1)
            }
            _ => 0,
        };
        let calm_at = Instant::now() + calm(self.fruitless);
        // What others may change, such as replicas that are scaled, is no drift.
        let is_drift = matches!(done, End::Deployed | End::Drifted | End::Failed);
        if is_drift && !changed.is_empty() {
            self.shared.listener.tell(LoopEvent::Changed {
                release: wanted.release().0.name.clone(),
                objects: changed.len(),
            });
        }
        self.settle(looked);
        let kept = looked.kept.as_ref().map(|kept| KeptUp {
            revision: kept.wanted.revision(),
            end: kept.looked.end,
            message: kept.looked.message.clone(),
        });
        self.shared.listener.tell(LoopEvent::Looked {
            release: wanted.release().0.name.clone(),
            cluster: wanted.grant.cluster.as_ref().map(|id| id.0.clone()),
            revision: wanted.revision(),
            end: looked.end,
            message: looked.message.clone(),
            is_correction: looked.is_correction,
            about: looked.about.clone(),
            kept,
            took,
        });
        if !matches!(done, End::Superseded | End::Interrupted) {
            self.shared.last.looked(wanted);
        }
        self.failures = if looked.failed() {
            self.failures.saturating_add(1)
        } else {
            0
        };
        calm_at
    }

    /// How long the release is not looked at where nothing happens.
    fn pause(&self, wanted: &Wanted, looked: &Looked, is_kept: bool) -> Duration {
        let sync = &wanted.loaded.environment.sync;
        let interval = pace::interval(sync.interval.try_into().unwrap_or(LIMIT));
        let pause = match looked.in_the_end() {
            End::Superseded => Duration::ZERO,
            // Not again and again, where somebody changes it again and again.
            _ if looked.made_way() && self.made_way == 0 => CALM,
            _ if looked.failed() => pace::after(self.failures),
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
        // What was reached is kept while something newer waits.
        let reached = self.reached.as_ref().map(|reached| &reached.release().1);
        let manifests = [Some(rendered), reached].into_iter().flatten();
        let manifests = manifests.flat_map(|rendered| &rendered.manifests);
        subscription.begin(manifests.map(|manifest| manifest.id().clone()).collect())
    }

    /// Judges what was heard meanwhile.
    fn settle(&self, looked: &mut Looked) {
        if let Some(subscription) = &self.subscription {
            let kept = looked.kept.as_mut();
            let left = kept.map_or(&mut looked.left, |kept| &mut kept.looked.left);
            subscription.settle(left.take());
            if looked.in_the_end() == End::Drifted {
                // Whoever takes it back makes it something to tell.
                subscription.alert();
            }
        }
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
