//! One environment: read at the newest commit of its branch, and handed to a
//! task per release.

mod former;
mod reading;
mod telling;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use pleach_domain::inventory::ReleaseSummary;
use pleach_domain::observe::ClusterId;
use pleach_domain::repo::controller::ClaimKey;
use tokio::sync::{Notify, mpsc, oneshot, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, MissedTickBehavior, interval_at, sleep_until};

pub(super) use self::reading::for_cluster;
use self::reading::wrong_cluster;
use self::telling::Untasked;
use super::assigned::{Assigned, Assignment};
use super::connected::Connected;
use super::crash::Attempt;
use super::ends::{Ends, Last};
use super::held::{Former, Formers, hold_of};
use super::inputs::Inputs;
use super::news::Told;
use super::pace::{self, Paces};
use super::read::Hold;
use super::recollection::{Question, Recalled, Recollection};
use super::release::{Neighbors, Release};
use super::requests::Requests;
use super::run::Wanted;
use super::{Grant, LoopEvent, Shared};
use crate::engine::load::Loaded;
use crate::engine::words;

/// How long it may take to read an environment.
pub(super) const LIMIT: Duration = Duration::from_mins(10);
/// When a commit is read again that could not be rendered within bounds.
const AGAIN: Duration = Duration::from_mins(30);
/// Tasks that are there as long as the environment.
const OWN_TASKS: usize = 1;
/// How often it is looked whether a kubeconfig is another one.
const KUBECONFIG: Duration = Duration::from_secs(15);

/// A release that has a task.
struct Running {
    wanted: watch::Sender<Arc<Wanted>>,
    wake: Arc<Notify>,
    /// One that it depends on may be ready now.
    ready: Arc<Notify>,
}

impl Running {
    fn depends_on(&self, name: &str) -> bool {
        let wanted = self.wanted.borrow();
        let mut needed = wanted.release().0.depends_on.iter();
        needed.any(|needed| needed.release() == Some(name))
    }
}

/// The task of an environment.
pub(super) struct Environment {
    key: ClaimKey,
    assigned: watch::Receiver<Assigned>,
    paces: Paces,
    /// What people ask for of its releases.
    requests: Requests,
    shared: Shared,
    loaded: Option<Arc<Loaded>>,
    /// What its held releases were.
    formers: Formers,
    /// Those of them that are being looked up.
    asked: JoinSet<(String, Option<Recalled>)>,
    /// What it was read from, at the commit that was last read.
    inputs: Option<Inputs>,
    /// The commit that was last read, whatever came of it.
    tried: Option<String>,
    hold: Option<Hold>,
    /// When it was found that the commit cannot be rendered: the machine may have been
    /// the reason.
    beyond: Option<Instant>,
    /// The commit that is taken up, and the one at which the controller crashed.
    attempt: Attempt,
    /// How often in a row nothing could be read for another reason than the commit.
    unread: u32,
    /// The commit that was held when it was last looked up what was synced before.
    sought: Option<String>,
    /// What will be found.
    remembering: Option<oneshot::Receiver<Recalled>>,
    /// Whether what is loaded was found in this way.
    is_remembered: bool,
    connected: Option<Connected>,
    releases: BTreeMap<String, Running>,
    ends: Option<watch::Sender<Last>>,
    /// Somebody asks for something of a release that has no task: one that left
    /// git may end now.
    end_asked: Arc<Notify>,
    tasks: JoinSet<()>,
    /// Names of releases that were brought to a commit.
    reached: (
        mpsc::UnboundedSender<String>,
        mpsc::UnboundedReceiver<String>,
    ),
    /// Where releases ask what they were before.
    questions: mpsc::UnboundedSender<Question>,
    /// What was told of releases that have no task.
    told: Option<Vec<Untasked>>,
    /// When that was last reported.
    renewed: Instant,
    /// What people were told of each of them then.
    news: BTreeMap<String, Told>,
}

impl Environment {
    pub(super) fn new(
        key: ClaimKey,
        assigned: watch::Receiver<Assigned>,
        paces: Paces,
        shared: Shared,
    ) -> Self {
        let attempt = Attempt::of(&shared.folder, &assigned.borrow().grant.url, &key);
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
            // Nobody answers before it runs.
            questions: mpsc::unbounded_channel().0,
            told: None,
            renewed: Instant::now(),
            news: BTreeMap::new(),
        }
    }

    pub(super) async fn run(mut self) {
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
                        // What is under way may still say something else.
                        self.told = None;
                    }
                    let is_again = !is_known || assigned.is_over;
                    is_again.then(|| pace::after(failures.max(1)))
                }
                Err(message) => {
                    failures += 1;
                    // It is reported again with the next try, and not before.
                    self.told = None;
                    self.shared.listener.tell(LoopEvent::Unconnected {
                        environment: self.key.environment.clone(),
                        message,
                    });
                    Some(pace::after(failures))
                }
            };
            let anew = self.beyond.map(|since| {
                let elapsed = since.elapsed();
                AGAIN.saturating_sub(elapsed)
            });
            let retry = retry.into_iter().chain(anew);
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

    /// Waits until there is something to do; false at the end of the loop.
    async fn wait(&mut self, retry: Option<Duration>) -> bool {
        let retry_at = retry.map(|pause| Instant::now() + pause);
        let mut looks = interval_at(Instant::now() + KUBECONFIG, KUBECONFIG);
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let said = async {
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
                releases = said => self.hear(releases),
            }
        }
    }

    /// Wakes the releases of which somebody wants something else now.
    fn hear(&mut self, releases: Vec<ReleaseSummary>) {
        let mut moved = Vec::new();
        for release in releases {
            let name = release.name.clone();
            if name.environment != self.key.environment {
                continue;
            }
            let Some(connected) = &mut self.connected else {
                return;
            };
            let heard = connected.hear(release);
            if heard.moved {
                moved.push(name.release.clone());
            }
            if let Some(request) = &heard.fetch {
                // What was pushed without a word is followed as soon as it is here.
                self.requests.ask(&name.release, request);
            }
            if heard.asked {
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
        let looked = self.shared.stop.run_until_cancelled(looking).await;
        looked == Some(true)
    }

    /// Wakes the releases that may wait for one.
    fn wake_dependants(&self, name: &str) {
        let running = self.releases.values();
        for one in running.filter(|one| one.depends_on(name)) {
            one.ready.notify_one();
        }
    }

    /// Nothing of it is synced any more: what is under way ends at its next safe point.
    fn leave(&mut self) {
        self.releases.clear();
        self.ends = None;
        self.attempt.end();
        self.paces.forget(&self.key);
    }

    /// Brings the tasks in line with what was read.
    async fn settle(&mut self, assigned: &Assigned) -> Result<(), String> {
        let Some(loaded) = self.loaded.clone() else {
            self.leave();
            return self.tell(assigned).await;
        };
        let grant = &assigned.grant;
        let named = loaded.environment.cluster.id.clone().map(ClusterId);
        let cluster_id = match (&grant.cluster, named) {
            (Some(meant), Some(named)) if *meant != named => {
                // What is wrong with a newer commit is said first.
                if self.hold.is_none() {
                    let commit = loaded.revision.to_string();
                    self.held(assigned, wrong_cluster(meant, &named), Some(&commit));
                }
                self.leave();
                return self.tell(assigned).await;
            }
            (Some(meant), _) => Some(meant.clone()),
            (None, named) => named.or_else(|| grant.fallback.clone()),
        };
        let interval = loaded.environment.sync.interval;
        self.paces
            .set(&self.key, interval.try_into().unwrap_or(LIMIT));
        let context = loaded.environment.cluster.context.clone();
        let connected = self.connect(grant, context).await?;
        connected.follow_orders(&loaded.environment.store);
        let (cluster, members) = (connected.cluster.clone(), connected.members.clone());
        let conditions = Self::conditions(assigned, self.hold.as_ref());
        let wanted = |loaded: &Arc<Loaded>, index| Wanted {
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
        let mut all: Vec<Wanted> = (0..loaded.rendered.len())
            .map(|index| wanted(&loaded, index))
            .collect();
        let mut untasked = Vec::new();
        for (name, former) in &self.formers {
            let held = loaded.held.get(name);
            let own = held.map(|held| hold_of(held, &loaded.revision.to_string()));
            let hold = self.hold.clone().or(own);
            let conditions = Self::conditions(assigned, hold.as_ref());
            match former {
                Former::Known(former, is_remembered) => all.push(Wanted {
                    conditions,
                    hold,
                    is_held: true,
                    is_remembered: *is_remembered,
                    ..wanted(former, 0)
                }),
                Former::Unknown | Former::Asked | Former::Absent(_) => {
                    untasked.push(Untasked::one(name, conditions, hold));
                }
            }
        }
        let first = wanted(&loaded, 0);
        if untasked.is_empty() {
            self.told = None;
            self.news.values_mut().for_each(Told::free);
        }
        self.follow_releases(all);
        if self.hold.is_some() {
            // What left git ends by the newest commit only: it may be back in one
            // that cannot be read.
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

    /// Hands what is wanted of releases to their tasks.
    fn follow_releases(&mut self, all: Vec<Wanted>) {
        let mut releases = BTreeMap::new();
        for wanted in all {
            let wanted = Arc::new(wanted);
            let name = wanted.release().0.name.release.clone();
            let running = if let Some(running) = self.releases.remove(&name) {
                running.wanted.send_if_modified(|known| {
                    let is_other = !known.is_identical(&wanted);
                    *known = wanted;
                    is_other
                });
                running
            } else {
                let (sender, receiver) = watch::channel(wanted);
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
                let task = Release::new(receiver, Arc::clone(&wake), neighbors, shared);
                self.tasks.spawn_local(task.run());
                Running {
                    wanted: sender,
                    wake,
                    ready,
                }
            };
            releases.insert(name, running);
        }
        // What is left is not in git any more, or not known: its task ends.
        self.releases = releases;
    }

    /// Hands what is wanted last to the task that ends releases.
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

    /// The connection; another one where the grant or the context is another.
    async fn connect(
        &mut self,
        grant: &Arc<Grant>,
        context: Option<String>,
    ) -> Result<&mut Connected, String> {
        // Only at a desk the file says which context is meant.
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
                // What cannot be read now leaves the connection that is there.
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
        connected.ok_or_else(|| "the loop ends".to_owned())
    }
}

/// A task that broke down takes the one that started it along: the loop ends,
/// and is started anew by whoever watches it.
pub(super) fn pass_on(ended: Result<(), tokio::task::JoinError>) {
    if let Err(error) = ended
        && let Ok(panic) = error.try_into_panic()
    {
        std::panic::resume_unwind(panic);
    }
}

#[cfg(test)]
mod tests;
