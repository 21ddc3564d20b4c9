//! Task of one environment: loads the newest commit of its branch, and hands the desired state to
//! one task per release.

mod former;
mod reading;
mod report;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use pleach_planner::observe::ClusterId;
use pleach_reconciler::{config::ClaimKey, hold::Hold, state_changes::Told};
use pleach_state::inventory::ReleaseSummary;
use tokio::sync::{Notify, mpsc, oneshot, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, MissedTickBehavior, interval_at, sleep_until};

pub(super) use self::reading::for_cluster;
use self::reading::wrong_cluster;
use self::report::Untasked;
use super::assignment::{Assigned, Assignment};
use super::backoff::{self, Paces};
use super::connected::Connected;
use super::crash::Attempt;
use super::held::{Former, Formers, hold_of};
use super::history_lookup::{Question, Recalled, Recollection};
use super::inputs::Inputs;
use super::release::{Neighbors, ReleaseTask};
use super::removals::{Ends, Last};
use super::requests::Requests;
use super::run::Target;
use super::{ControllerEvent, Shared, SourcePolicy};
use pleach_engine::{load::Loaded, words};

/// Time limit for loading an environment.
pub(super) const LIMIT: Duration = Duration::from_mins(10);
/// Delay before a commit is retried that exceeded the render limits.
const AGAIN: Duration = Duration::from_mins(30);
/// Number of tasks that live as long as the environment.
const OWN_TASKS: usize = 1;
/// Interval between checks for a changed kubeconfig.
const KUBECONFIG: Duration = Duration::from_secs(15);

/// A release with a running task.
struct Running {
    desired: watch::Sender<Arc<Target>>,
    wake: Arc<Notify>,
    /// Signals that a dependency might have become ready.
    ready: Arc<Notify>,
}

impl Running {
    fn depends_on(&self, name: &str) -> bool {
        let desired = self.desired.borrow();
        let mut needed = desired.release().0.depends_on.iter();
        needed.any(|needed| needed.release() == Some(name))
    }
}

/// Task of an environment.
pub(super) struct Environment {
    key: ClaimKey,
    assigned: watch::Receiver<Assigned>,
    paces: Paces,
    /// User requests for its releases.
    requests: Requests,
    shared: Shared,
    loaded: Option<Arc<Loaded>>,
    /// Previous state of its stalled releases.
    formers: Formers,
    /// Lookups of previous states in progress.
    asked: JoinSet<(String, Option<Recalled>)>,
    /// Inputs of the last loaded commit.
    inputs: Option<Inputs>,
    /// The last commit that was tried, with any outcome.
    tried: Option<String>,
    hold: Option<Hold>,
    /// Time of the last failure to render within the limits. The machine can have been the cause.
    beyond: Option<Instant>,
    /// The commit in progress, with the crash record.
    attempt: Attempt,
    /// Number of consecutive load failures that were not caused by the commit.
    unread: u32,
    /// The stalled commit at the last history lookup.
    sought: Option<String>,
    /// The history lookup in progress.
    remembering: Option<oneshot::Receiver<Recalled>>,
    /// Whether the loaded state came from a history lookup.
    is_remembered: bool,
    connected: Option<Connected>,
    releases: BTreeMap<String, Running>,
    ends: Option<watch::Sender<Last>>,
    /// Triggered by user requests on a release without a task: its uninstall might be allowed now.
    end_asked: Arc<Notify>,
    tasks: JoinSet<()>,
    /// Names of releases that were reconciled to a commit.
    reached: (
        mpsc::UnboundedSender<String>,
        mpsc::UnboundedReceiver<String>,
    ),
    /// Sender of history lookups, for the release tasks.
    questions: mpsc::UnboundedSender<Question>,
    /// Last reported state of releases without a task.
    told: Option<Vec<Untasked>>,
    /// Time of that report.
    renewed: Instant,
    /// State of the notifications about each of them.
    news: BTreeMap<String, Told>,
}

impl Environment {
    pub(super) fn new(
        key: ClaimKey,
        assigned: watch::Receiver<Assigned>,
        paces: Paces,
        shared: Shared,
    ) -> Self {
        let attempt = Attempt::of(&shared.crashes, &assigned.borrow().grant.url, &key);
        Self {
            key,
            assigned,
            attempt,
            requests: Requests::new(paces.clone()),
            paces,
            shared,
            loaded: None,
            formers: Formers::new(),
            asked: JoinSet::new(),
            inputs: None,
            tried: None,
            hold: None,
            beyond: None,
            unread: 0,
            sought: None,
            remembering: None,
            is_remembered: false,
            connected: None,
            releases: BTreeMap::new(),
            ends: None,
            end_asked: Arc::default(),
            tasks: JoinSet::new(),
            reached: mpsc::unbounded_channel(),
            // Placeholder; replaced when the task starts.
            questions: mpsc::unbounded_channel().0,
            told: None,
            renewed: Instant::now(),
            news: BTreeMap::new(),
        }
    }

    pub(super) async fn run(mut self) {
        let _ending = self.attempt.end_on_drop();
        let (questions, asked) = mpsc::unbounded_channel();
        self.questions = questions;
        let recollection = Recollection {
            environment: self.key.environment.clone(),
            assigned: self.assigned.clone(),
            questions: asked,
            shared: self.shared.clone(),
            attempt: self.attempt.clone(),
            limit: LIMIT,
        };
        let recollection = self.tasks.spawn_local(recollection.run());
        let mut failures = 0;
        while !self.shared.stop.is_cancelled() {
            let assigned = self.assigned.borrow_and_update().clone();
            let is_read = self.read(&assigned).await;
            let is_known =
                self.remember(&assigned).await && self.remember_held(&assigned).await && is_read;
            let retry = match self.settle(&assigned).await {
                Ok(()) => {
                    failures = if is_known { 0 } else { failures + 1 };
                    if is_read {
                        self.requests.answer(assigned.answered);
                    }
                    if is_known && assigned.is_over && self.tasks.len() <= OWN_TASKS {
                        break;
                    }
                    if assigned.is_over {
                        // Reset, because unfinished work can still report something else.
                        self.told = None;
                    }
                    let is_again = !is_known || assigned.is_over;
                    is_again.then(|| backoff::after(failures.max(1)))
                }
                Err(message) => {
                    failures += 1;
                    // Reported again only with the next attempt.
                    self.told = None;
                    self.shared
                        .listener
                        .report(ControllerEvent::ClusterUnreachable {
                            environment: self.key.environment.clone(),
                            message,
                        });
                    Some(backoff::after(failures))
                }
            };
            let retry_beyond = self.beyond.map(|since| {
                let elapsed = since.elapsed();
                AGAIN.saturating_sub(elapsed)
            });
            let retry = retry.into_iter().chain(retry_beyond);
            let retry = retry.chain(self.renewal()).chain(self.attempt.left()).min();
            if !self.wait(retry).await {
                break;
            }
        }
        self.leave();
        recollection.abort();
        while let Some(ended) = self.tasks.join_next().await {
            pass_on(ended);
        }
    }

    /// Waits until there is something to do. Returns false at shutdown.
    async fn wait(&mut self, retry: Option<Duration>) -> bool {
        let retry_at = retry.map(|pause| Instant::now() + pause);
        let mut looks = interval_at(Instant::now() + KUBECONFIG, KUBECONFIG);
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let changes = async {
                match &mut self.connected {
                    Some(connected) => connected.said().await,
                    None => std::future::pending().await,
                }
            };
            let retry = async {
                match retry_at {
                    Some(at) => sleep_until(at).await,
                    None => std::future::pending().await,
                }
            };
            let remembering = async {
                match &mut self.remembering {
                    Some(answered) => answered.await.ok(),
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = self.shared.stop.cancelled() => return false,
                changed = self.assigned.changed() => return changed.is_ok(),
                () = retry => return true,
                found = remembering => {
                    self.remembers(found);
                    return true;
                }
                Some(found) = self.asked.join_next() => if self.remembers_held(found) {
                    return true;
                },
                _ = looks.tick() => if self.is_other_kubeconfig().await {
                    return true;
                },
                Some(ended) = self.tasks.join_next() => pass_on(ended),
                Some(name) = self.reached.1.recv() => self.wake_dependants(&name),
                releases = changes => self.receive(releases),
            }
        }
    }

    /// Triggers the releases with changed user requests.
    fn receive(&mut self, releases: Vec<ReleaseSummary>) {
        let mut moved = Vec::new();
        for release in releases {
            let name = release.name.clone();
            if name.environment != self.key.environment {
                continue;
            }
            let Some(connected) = &mut self.connected else {
                return;
            };
            let change = connected.hear(release);
            if change.moved {
                moved.push(name.release.clone());
            }
            if let Some(request) = &change.fetch {
                // A push without a webhook is followed as soon as it is fetched.
                self.requests.ask(&name.release, request);
            }
            if change.asked {
                let running = self.releases.get(&name.release);
                let wake = running.map_or(&self.end_asked, |running| &running.wake);
                wake.notify_one();
            }
        }
        for name in moved {
            self.wake_dependants(&name);
        }
    }

    async fn is_other_kubeconfig(&self) -> bool {
        let looking = async {
            match &self.connected {
                Some(connected) => connected.is_other_kubeconfig(&self.key.environment).await,
                None => false,
            }
        };
        let is_other = self.shared.stop.run_until_cancelled(looking).await;
        is_other == Some(true)
    }

    /// Triggers the releases that could wait for this one.
    fn wake_dependants(&self, name: &str) {
        let running = self.releases.values();
        for one in running.filter(|one| one.depends_on(name)) {
            one.ready.notify_one();
        }
    }

    /// Stops syncing the environment. Work in progress ends at its next safe point.
    fn leave(&mut self) {
        self.releases.clear();
        self.ends = None;
        self.attempt.end();
        self.paces.forget(&self.key);
    }

    /// Adapts the tasks to the loaded state.
    async fn settle(&mut self, assigned: &Assigned) -> Result<(), String> {
        let Some(loaded) = self.loaded.clone() else {
            self.leave();
            return self.report(assigned).await;
        };
        let grant = &assigned.grant;
        let named = loaded.environment.cluster.id.clone().map(ClusterId);
        let cluster_id = match (&grant.cluster, named) {
            (Some(meant), Some(named)) if *meant != named => {
                // Errors of a newer commit have priority.
                if self.hold.is_none() {
                    let commit = loaded.revision.to_string();
                    self.held(assigned, wrong_cluster(meant, &named), Some(&commit));
                }
                self.leave();
                return self.report(assigned).await;
            }
            (Some(meant), _) => Some(meant.clone()),
            (None, named) => named.or_else(|| grant.fallback.clone()),
        };
        let interval = loaded.environment.sync.interval;
        self.paces
            .set(&self.key, interval.try_into().unwrap_or(LIMIT));
        let context = loaded.environment.cluster.context.clone();
        let attempt = self.attempt.clone();
        let connecting = self.connect(grant, context).await;
        // Nothing is planned without a connection.
        let connected = connecting.inspect_err(|_| attempt.pause())?;
        attempt.record().await;
        connected.follow_orders(&loaded.environment.store);
        let (cluster, members) = (connected.cluster.clone(), connected.members.clone());
        let conditions = Self::conditions(assigned, self.hold.as_ref());
        let desired = |loaded: &Arc<Loaded>, index| Target {
            loaded: Arc::clone(loaded),
            index,
            cluster: cluster.clone(),
            cluster_id: cluster_id.clone(),
            members: members.clone(),
            grant: Arc::clone(grant),
            source: grant.source(&loaded.environment.name),
            conditions: conditions.clone(),
            hold: self.hold.clone(),
            is_held: false,
            is_remembered: self.is_remembered,
            is_kept: false,
        };
        let mut all: Vec<Target> = (0..loaded.rendered.len())
            .map(|index| desired(&loaded, index))
            .collect();
        let mut untasked = Vec::new();
        for (name, previous) in &self.formers {
            let held = loaded.held.get(name);
            let own = held.map(|held| hold_of(held, &loaded.revision.to_string()));
            let hold = self.hold.clone().or(own);
            let conditions = Self::conditions(assigned, hold.as_ref());
            match previous {
                Former::Known(previous, is_remembered) => all.push(Target {
                    conditions,
                    hold,
                    is_held: true,
                    is_remembered: *is_remembered,
                    ..desired(previous, 0)
                }),
                Former::Unknown | Former::Asked | Former::Absent(_) => {
                    untasked.push(Untasked::one(name, conditions, hold));
                }
            }
        }
        let first = desired(&loaded, 0);
        if untasked.is_empty() {
            self.told = None;
            self.news.values_mut().for_each(Told::free);
        }
        self.follow_releases(all);
        if self.hold.is_some() {
            // Uninstalls follow the newest commit only. The release can be back in a commit that
            // cannot be loaded.
            self.ends = None;
        } else if let Assignment::Follow { reader, commit } = &assigned.what {
            let last = Last {
                wanted: Arc::new(first),
                reader: reader.clone(),
                commit: commit.clone(),
            };
            self.follow_ends(last);
        }
        if untasked.is_empty() {
            return Ok(());
        }
        self.tell_untasked(assigned, untasked).await
    }

    /// Hands the desired states to the release tasks.
    fn follow_releases(&mut self, all: Vec<Target>) {
        let mut releases = BTreeMap::new();
        for desired in all {
            let desired = Arc::new(desired);
            let name = desired.release().0.name.release.clone();
            let running = if let Some(running) = self.releases.remove(&name) {
                running.desired.send_if_modified(|known| {
                    let is_other = !known.is_identical(&desired);
                    *known = desired;
                    is_other
                });
                running
            } else {
                let (sender, receiver) = watch::channel(desired);
                let wake = Arc::new(Notify::new());
                let ready = Arc::new(Notify::new());
                let neighbors = Neighbors {
                    ready: Arc::clone(&ready),
                    reached: self.reached.0.clone(),
                    questions: self.questions.clone(),
                    requests: self.requests.clone(),
                    attempt: self.attempt.clone(),
                };
                let shared = self.shared.clone();
                let task = ReleaseTask::new(receiver, Arc::clone(&wake), neighbors, shared);
                self.tasks.spawn_local(task.run());
                Running {
                    desired: sender,
                    wake,
                    ready,
                }
            };
            releases.insert(name, running);
        }
        // Dropping the other senders ends the tasks of releases that are gone or unknown.
        self.releases = releases;
    }

    /// Hands the present state to the uninstall task.
    fn follow_ends(&mut self, last: Last) {
        if let Some(ends) = &self.ends {
            ends.send_if_modified(|known| {
                let is_other = !known.wanted.is_identical(&last.wanted);
                *known = last;
                is_other
            });
        } else {
            let (sender, receiver) = watch::channel(last);
            let asked = Arc::clone(&self.end_asked);
            let requests = self.requests.clone();
            let ends = Ends::new(receiver, asked, requests, self.shared.clone());
            self.tasks.spawn_local(ends.run());
            self.ends = Some(sender);
        }
    }

    /// Returns the connection. Reconnects if the source policy or the context changed.
    async fn connect(
        &mut self,
        grant: &Arc<SourcePolicy>,
        context: Option<String>,
    ) -> Result<&mut Connected, String> {
        // The environment file selects the context only in a local run.
        let context = match (&grant.cluster, &grant.connection.context) {
            (None, None) => context,
            (_, named) => named.clone(),
        };
        let stop = self.shared.stop.clone();
        let kubeconfig = stop.run_until_cancelled(grant.connection.fingerprint());
        let kubeconfig = kubeconfig.await.unwrap_or(Ok(None));
        let is_same = |connected: &Connected| {
            Arc::ptr_eq(&connected.grant, grant)
                && (connected.context == context || self.loaded.is_none())
                // If the kubeconfig cannot be read now, keep the present connection.
                && !matches!(&kubeconfig, Ok(now) if *now != connected.kubeconfig)
        };
        let is_same = self.connected.as_ref().is_some_and(is_same);
        if !is_same {
            let kubeconfig = kubeconfig.map_err(|error| words(&error))?;
            self.connected = None;
            let opening = Connected::open(&self.shared, grant, context, kubeconfig);
            if let Some(opened) = stop.run_until_cancelled(opening).await {
                self.connected = Some(opened?);
            }
        }
        let connected = self.connected.as_mut();
        connected.ok_or_else(|| "the controller is shutting down".to_owned())
    }
}

/// Propagates the panic of a task. The controller then exits and is restarted by its supervisor.
pub(super) fn pass_on(ended: Result<(), tokio::task::JoinError>) {
    if let Err(error) = ended
        && let Ok(panic) = error.try_into_panic()
    {
        std::panic::resume_unwind(panic);
    }
}

#[cfg(test)]
mod tests;
