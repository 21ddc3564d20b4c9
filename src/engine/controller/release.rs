//! One release: looked at whenever something may have changed, and brought to
//! what git says.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use pleach_domain::inventory::{Condition, ConditionKind, Installed, Orders, SyncRequest};
use pleach_domain::plan::{Action, Cause, Plan, Taken};
use pleach_domain::repo::format::Drift;
use tokio::sync::{Notify, watch};
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

use super::run::{LIMIT, Wanted, carry_out, line};
use super::{End, LoopEvent, Shared, pace};
use crate::engine::planning::{Planned, Planner};
use crate::engine::sync::SyncError;
use crate::engine::sync::state;
use crate::engine::words;

/// Every object goes through a dry run once in this time.
const VERIFY: Duration = Duration::from_hours(24);
/// Findings by which a record is somebody else's, or on another cluster.
const NOT_OURS: [&str; 3] = ["wrong-cluster", "other-repository", "other-tooling"];
/// How many objects a message names.
const NAMED: usize = 5;

/// The task of a release.
pub(super) struct Release {
    wanted: watch::Receiver<Arc<Wanted>>,
    /// Somebody asks for something.
    wake: Arc<Notify>,
    shared: Shared,
    failures: u32,
    /// What was last reached: what drift is corrected to while the windows are
    /// closed for anything newer.
    reached: Option<Arc<Wanted>>,
    /// What the loop last said of it; unknown at first.
    told: Option<Vec<Condition>>,
    /// Whether the record was seen to be this release's, on the cluster that is
    /// meant: nothing is told of any other.
    is_ours: bool,
    verify_at: Instant,
    /// From when on answers count that others asked the cluster for; from now on
    /// where it was not said.
    since: Option<Instant>,
}

/// What came of looking.
struct Looked {
    end: End,
    message: String,
    /// What is to be said of it.
    condition: Option<Condition>,
    /// A request that was taken up.
    request: Option<SyncRequest>,
    /// When to look again, where that is not the interval.
    pause: Option<Duration>,
}

impl Looked {
    fn new(end: End, message: impl Into<String>) -> Self {
        Self {
            end,
            message: message.into(),
            condition: None,
            request: None,
            pause: None,
        }
    }

    fn saying(mut self, kind: ConditionKind, reason: &str) -> Self {
        self.condition = Some(Condition {
            kind,
            reason: reason.to_owned(),
            message: self.message.clone(),
        });
        self
    }
}

impl Release {
    pub(super) fn new(
        wanted: watch::Receiver<Arc<Wanted>>,
        wake: Arc<Notify>,
        shared: Shared,
    ) -> Self {
        Self {
            wanted,
            wake,
            shared,
            failures: 0,
            reached: None,
            told: None,
            is_ours: false,
            since: Some(Instant::now()),
            // Spread over the day.
            verify_at: Instant::now() + VERIFY.mul_f64(pace::random()),
        }
    }

    /// Runs until the loop ends, or git no longer has the release.
    pub(super) async fn run(mut self) {
        loop {
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
            let looked = Box::pin(self.look(&wanted, &stop)).await;
            let Some(looked) = looked else { return };
            self.shared.listener.tell(LoopEvent::Looked {
                release: wanted.release().0.name.clone(),
                revision: wanted.revision(),
                end: looked.end,
                message: looked.message.clone(),
                took: started.elapsed(),
            });
            if !matches!(looked.end, End::Superseded | End::Interrupted) {
                self.shared.last.looked(&wanted);
            }
            self.failures = match looked.end {
                End::Failed => self.failures.saturating_add(1),
                _ => 0,
            };
            if stop
                .run_until_cancelled(self.tell(&wanted, &looked))
                .await
                .is_none()
            {
                return;
            }
            let sync = &wanted.loaded.environment.sync;
            let interval = pace::interval(sync.interval.try_into().unwrap_or(LIMIT));
            let pause = match looked.end {
                End::Interrupted => return,
                End::Superseded => Duration::ZERO,
                End::Failed => pace::after(self.failures),
                _ => looked.pause.unwrap_or(interval).min(interval),
            };
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
                () = sleep(pause) => self.since = pace::not_before(pause),
            }
        }
    }

    /// Looks, and does what is to be done. None at the end of the loop.
    async fn look(&mut self, wanted: &Arc<Wanted>, stop: &CancellationToken) -> Option<Looked> {
        let verify = Instant::now() >= self.verify_at;
        let conditions = wanted.conditions.clone();
        let mut wanted = Arc::clone(wanted);
        let mut planned = match self.plan(&wanted, verify, stop).await? {
            Ok(planned) => planned,
            Err(error) => return Some(Looked::new(End::Failed, words(&error))),
        };
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
        if is_held_back(&wanted, &planned, &orders, now) {
            // Drift is corrected all the same, to what was reached before.
            let reached = self
                .reached
                .clone()
                .filter(|reached| !reached.is_same(&wanted));
            let Some(reached) = reached else {
                return Some(Looked::new(
                    End::Waiting,
                    "the environment allows no sync at this time",
                ));
            };
            planned = match self.plan(&reached, verify, stop).await? {
                Ok(planned) => planned,
                Err(error) => return Some(Looked::new(End::Failed, words(&error))),
            };
            wanted = reached;
        }
        if verify {
            self.verify_at = Instant::now() + VERIFY;
        }
        let refusals = wanted.refusals(&planned);
        if !refusals.is_empty() {
            let looked = Looked::new(End::Refused, line(&refusals));
            return Some(Looked {
                request: orders.sync,
                ..looked.saying(ConditionKind::Stalled, "Refused")
            });
        }
        let sync = &wanted.loaded.environment.sync;
        if sync.drift == Drift::Report && is_reached(&planned) && has_drifted(&planned.plan) {
            let looked = Looked::new(End::Drifted, drift(&planned.plan));
            return Some(Looked {
                request: orders.sync,
                ..looked.saying(ConditionKind::Drifted, "ChangedByOthers")
            });
        }
        // What held it may be over, and this may take long.
        self.say(&wanted, conditions).await;
        let (end, message) = Box::pin(self.carry_out(&wanted, planned)).await;
        if end != End::Unchanged {
            // The record may be another object now.
            self.told = None;
        }
        if matches!(end, End::Deployed | End::Unchanged) {
            self.reached = Some(wanted);
        }
        let mut looked = Looked::new(end, message);
        if !matches!(end, End::Superseded | End::Interrupted) {
            looked.request = orders.sync;
        }
        Some(looked)
    }

    async fn plan(
        &self,
        wanted: &Wanted,
        verify: bool,
        stop: &CancellationToken,
    ) -> Option<Result<Planned, SyncError>> {
        let (release, rendered) = wanted.release();
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
        stop.run_until_cancelled(planning).await
    }

    /// Carries the plan out, unless something newer comes in between.
    async fn carry_out(&self, wanted: &Arc<Wanted>, planned: Planned) -> (End, String) {
        let cluster = wanted.planner(false).cluster_for(&wanted.release().0.name);
        let newer = CancellationToken::new();
        let run = carry_out(&self.shared, &cluster, planned, newer.clone());
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

    /// Says exactly this of the release, where it is not said yet.
    async fn say(&mut self, wanted: &Wanted, said: Vec<Condition>) {
        let name = &wanted.release().0.name;
        let store = &wanted.loaded.environment.store;
        let cluster = wanted.planner(false).cluster_for(name);
        if self.told.as_ref() != Some(&said) {
            match state::tell(&cluster, name, store, &said).await {
                Ok(()) => self.told = Some(said),
                // It is said when it is looked at again.
                Err(error) => {
                    tracing::debug!(release = %name, error = %words(&error), "nothing could be told");
                }
            }
        }
    }

    /// Says what there is to say, and takes back requests that were taken up.
    async fn tell(&mut self, wanted: &Wanted, looked: &Looked) {
        if !self.is_ours {
            return;
        }
        let mut said = wanted.conditions.clone();
        // What holds the environment comes first.
        if let Some(condition) = &looked.condition
            && said.iter().all(|known| known.kind != condition.kind)
        {
            said.push(condition.clone());
        }
        self.say(wanted, said).await;
        let name = &wanted.release().0.name;
        let store = &wanted.loaded.environment.store;
        let cluster = wanted.planner(false).cluster_for(name);
        if let Some(request) = &looked.request {
            let done = |orders: &mut Orders| {
                if orders.sync.as_ref() == Some(request) {
                    orders.sync = None;
                }
            };
            if let Err(error) = state::order(&cluster, name, store, done).await {
                tracing::debug!(release = %name, error = %words(&error), "a request could not be taken back");
            }
        }
    }
}

/// Whether it is not the time for what git wants now.
fn is_held_back(wanted: &Wanted, planned: &Planned, orders: &Orders, now: Timestamp) -> bool {
    let windows = &wanted.loaded.environment.sync.windows;
    let is_overridden = orders
        .sync
        .as_ref()
        .is_some_and(|sync| sync.override_window);
    !windows.are_open(now) && !is_overridden && !is_reached(planned)
}

/// Whether what git wants was reached before: what differs now is not git's.
fn is_reached(planned: &Planned) -> bool {
    let record: Option<&Installed> = planned.observation.observed.installed.as_ref();
    record.is_some_and(|record| {
        let installed = record.installed.as_ref();
        record.ready && installed.is_some_and(|installed| planned.desired.is_of(installed))
    })
}

/// Whether somebody changed what git says: who owns a field is no value.
fn has_drifted(plan: &Plan) -> bool {
    plan.changes.iter().any(|change| match change.action {
        Action::Unchanged | Action::Skip | Action::Blocked => false,
        Action::Update => !matches!(change.cause, Some(Cause::Ownership | Cause::Overlay)),
        Action::Create | Action::Recreate | Action::Adopt | Action::Delete => true,
    })
}

/// What differs from git, and who did it.
fn drift(plan: &Plan) -> String {
    let changed: Vec<_> = plan
        .changes
        .iter()
        .filter(|change| !matches!(change.action, Action::Unchanged | Action::Skip))
        .collect();
    let mut texts: Vec<String> = changed
        .iter()
        .take(NAMED)
        .map(|change| {
            let who: BTreeSet<&str> = change.corrects.iter().map(Taken::who).collect();
            let who: Vec<&str> = who.into_iter().collect();
            if who.is_empty() {
                format!("{}: {}", change.object, change.reason)
            } else {
                format!("{}: changed by {}", change.object, who.join(", "))
            }
        })
        .collect();
    if changed.len() > NAMED {
        texts.push(format!("and {} more", changed.len() - NAMED));
    }
    texts.join("; ")
}
