//! One environment: read at the newest commit of its branch, and handed to a
//! task per release.

mod former;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use pleach_domain::inventory::{Condition, ConditionKind, ReleaseSummary};
use pleach_domain::observe::ClusterId;
use pleach_domain::repo::controller::ClaimKey;
use tokio::sync::{Notify, mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, MissedTickBehavior, interval_at, sleep_until};

use super::assigned::{Assigned, Assignment};
use super::connected::Connected;
use super::ends::{Ends, Last};
use super::inputs::Inputs;
use super::news::{Item, Told};
use super::pace::{self, Paces};
use super::read::{Hold, load};
use super::release::{Neighbors, Release};
use super::requests::Requests;
use super::run::Wanted;
use super::{Grant, Listener, LoopEvent, Shared};
use crate::engine::load::Loaded;
use crate::engine::sync::is_cluster;
use crate::engine::sync::state::{self, Search};
use crate::engine::words;
use crate::io::cluster::Cluster;

/// How long it may take to read an environment.
const LIMIT: Duration = Duration::from_mins(10);
/// How often it is looked whether a kubeconfig is another one.
const KUBECONFIG: Duration = Duration::from_secs(15);

fn condition(kind: ConditionKind, reason: &str, message: &str) -> Condition {
    Condition {
        kind,
        reason: reason.to_owned(),
        message: message.to_owned(),
    }
}

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
    /// What it was read from, at the commit that was last read.
    inputs: Option<Inputs>,
    /// The commit that was last read, whatever came of it.
    tried: Option<String>,
    hold: Option<Hold>,
    /// The commit that was held when it was last looked up what was synced before.
    sought: Option<String>,
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
    /// What was told of all releases while none had a task.
    told: Option<Vec<Condition>>,
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
        Self {
            key,
            assigned,
            requests: Requests::new(paces.clone()),
            paces,
            shared,
            loaded: None,
            inputs: None,
            tried: None,
            hold: None,
            sought: None,
            is_remembered: false,
            connected: None,
            releases: BTreeMap::new(),
            ends: None,
            end_asked: Arc::default(),
            tasks: JoinSet::new(),
            reached: mpsc::unbounded_channel(),
            told: None,
            news: BTreeMap::new(),
        }
    }

    pub(super) async fn run(mut self) {
        let mut failures = 0;
        while !self.shared.stop.is_cancelled() {
            let assigned = self.assigned.borrow_and_update().clone();
            let is_read = self.read(&assigned).await;
            let is_known = self.remember(&assigned).await && is_read;
            let retry = match self.settle(&assigned).await {
                Ok(()) => {
                    failures = if is_known { 0 } else { failures + 1 };
                    self.requests.answer(assigned.answered);
                    (!is_known).then(|| pace::after(failures))
                }
                Err(message) => {
                    failures += 1;
                    self.shared.listener.tell(LoopEvent::Unconnected {
                        environment: self.key.environment.clone(),
                        message,
                    });
                    Some(pace::after(failures))
                }
            };
            if !self.wait(retry).await {
                break;
            }
        }
        self.leave();
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
            tokio::select! {
                () = self.shared.stop.cancelled() => return false,
                changed = self.assigned.changed() => return changed.is_ok(),
                () = retry => return true,
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

    /// Reads the environment, where its commit is another one. False where that has to
    /// be tried again: it is not the commit that is wrong.
    async fn read(&mut self, assigned: &Assigned) -> bool {
        let (commit, reader) = match &assigned.what {
            Assignment::Follow { commit, reader } => (commit, reader),
            Assignment::Held { reason, message } => {
                self.loaded = None;
                self.tried = None;
                self.inputs = None;
                self.sought = None;
                self.held(assigned, Hold::new(reason, message.clone()), None);
                return true;
            }
            Assignment::Distrusted { commit, message } => {
                // The commit before it may come back, and is good then: it is
                // read, also where nothing of the environment is another.
                self.tried = None;
                self.inputs = None;
                let hold = Hold::new("UntrustedCommit", message.clone());
                self.held(assigned, hold, Some(commit));
                return true;
            }
            Assignment::Unknown => return true,
        };
        if self.tried.as_ref() == Some(commit) {
            return true;
        }
        let started = Instant::now();
        let name = self.key.environment.clone();
        let work = format!("to read environment {name}");
        let _work = self.shared.pulse.work(work, LIMIT);
        let (at, from, inputs) = (commit.clone(), reader.clone(), self.inputs.clone());
        let reading = tokio::task::spawn_blocking(move || load(&from, &at, &name, inputs.as_ref()));
        let Some(read) = self.shared.stop.run_until_cancelled(reading).await else {
            return true;
        };
        self.tried = Some(commit.clone());
        let read = match read {
            Ok(None) => {
                self.unaffected(commit, None);
                return true;
            }
            Ok(Some((read, inputs))) => {
                if inputs.is_none() {
                    self.tried = None;
                }
                self.inputs = inputs;
                // One for another cluster is held as one that cannot be read.
                Ok(read.and_then(|loaded| for_cluster(loaded, &assigned.grant)))
            }
            Err(error) => {
                self.inputs = None;
                Err(error)
            }
        };
        match read {
            // Read from other files, or in other words: nobody is woken.
            Ok(Ok(loaded)) if self.is_wanted_already(&loaded) => {
                self.unaffected(commit, Some(started.elapsed()));
            }
            Ok(Ok(loaded)) => {
                let releases = loaded.names().into_iter().map(str::to_owned);
                self.shared.listener.tell(LoopEvent::Loaded {
                    repository: assigned.repository.clone(),
                    environment: self.key.environment.clone(),
                    revision: commit.clone(),
                    releases: releases.collect(),
                    took: started.elapsed(),
                });
                self.hold = None;
                self.is_remembered = false;
                self.loaded = Some(Arc::new(loaded));
            }
            Ok(Err(hold)) => {
                // What git has no more is left alone; what is only broken is
                // kept as it was last good.
                if hold.reason == "EnvironmentMissing" {
                    self.loaded = None;
                }
                self.held(assigned, hold, Some(commit));
            }
            Err(_) => {
                let message = format!("commit {commit} could not be read; this is a bug");
                self.held(assigned, Hold::new("Internal", message), Some(commit));
            }
        }
        self.tried.is_some()
    }

    /// Whether the same is kept already as a commit wants.
    fn is_wanted_already(&self, loaded: &Loaded) -> bool {
        let known = self.loaded.as_ref();
        self.hold.is_none() && known.is_some_and(|known| known.wants_the_same(loaded))
    }

    /// Notes that a commit changes nothing; `took` is how long it took to read it,
    /// where that was necessary to know.
    fn unaffected(&self, commit: &str, took: Option<Duration>) {
        self.shared.listener.tell(LoopEvent::Unaffected {
            environment: self.key.environment.clone(),
            revision: commit.to_owned(),
            took,
        });
    }

    /// Notes why nothing newer is synced; `commit` where that is the reason.
    fn held(&mut self, assigned: &Assigned, mut hold: Hold, commit: Option<&String>) {
        hold.revision = commit.cloned();
        if self.hold.as_ref() != Some(&hold) {
            self.shared.listener.tell(LoopEvent::Held {
                repository: assigned.repository.clone(),
                revision: commit.cloned(),
                environment: self.key.environment.clone(),
                reason: hold.reason.clone(),
                message: hold.message.clone(),
            });
        }
        self.hold = Some(hold);
    }

    /// Nothing of it is synced any more: what is under way ends at its next safe point.
    fn leave(&mut self) {
        self.releases.clear();
        self.ends = None;
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
        self.told = None;
        self.news.values_mut().for_each(Told::free);
        let conditions = self.conditions(assigned);
        let wanted = |index| {
            Arc::new(Wanted {
                loaded: Arc::clone(&loaded),
                index,
                cluster: cluster.clone(),
                cluster_id: cluster_id.clone(),
                members: members.clone(),
                grant: Arc::clone(grant),
                source: grant.source(&loaded.environment.name),
                conditions: conditions.clone(),
                hold: self.hold.clone(),
                is_remembered: self.is_remembered,
            })
        };
        let mut releases = BTreeMap::new();
        for (index, (release, _)) in loaded.rendered.iter().enumerate() {
            let name = &release.name.release;
            let wanted = wanted(index);
            let running = if let Some(running) = self.releases.remove(name) {
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
                    requests: self.requests.clone(),
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
            releases.insert(name.clone(), running);
        }
        // What is left is not in git any more: its task ends.
        self.releases = releases;
        if let Assignment::Follow { reader, commit } = &assigned.what
            && self.hold.is_none()
        {
            let last = Last {
                wanted: wanted(0),
                reader: reader.clone(),
                commit: commit.clone(),
            };
            self.follow_ends(last);
        }
        Ok(())
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

    /// What the object that holds a record says beside it: that a loop follows
    /// the release, so that a desk knows, and what holds that loop.
    fn conditions(&self, assigned: &Assigned) -> Vec<Condition> {
        let hold = self.hold.as_ref();
        let stalled = hold.map(|hold| (ConditionKind::Stalled, &hold.reason, &hold.message));
        let unreachable = "Unreachable".to_owned();
        let source = assigned.source.as_ref();
        let source = source.map(|why| (ConditionKind::SourceUnavailable, &unreachable, why));
        let troubles = stalled.into_iter().chain(source);
        std::iter::once(condition(ConditionKind::Followed, "Loop", &assigned.by))
            .chain(troubles.map(|(kind, reason, message)| condition(kind, reason, message)))
            .collect()
    }

    /// Tells of all releases of the environment while none of them has a task.
    async fn tell(&mut self, assigned: &Assigned) -> Result<(), String> {
        if self.hold.is_none() && assigned.source.is_none() {
            return Ok(());
        }
        let said = self.conditions(assigned);
        if self.told.as_ref() == Some(&said) {
            return Ok(());
        }
        let cluster = self.connect(&assigned.grant, None).await?.cluster.clone();
        let id = assigned.grant.cluster.clone();
        let id = id.or_else(|| assigned.grant.fallback.clone());
        let (hold, listener) = (self.hold.as_ref(), &self.shared.listener);
        let telling = async {
            let records = state::releases(&cluster, &Search::Everywhere).await;
            for release in records.map_err(|error| words(&error))?.releases {
                if release.name.environment != self.key.environment {
                    continue;
                }
                let is_meant = match &id {
                    // Another cluster may have a release of the same name.
                    Some(id) => is_cluster(&cluster, &release.store, &id.0).await == Some(true),
                    None => true,
                };
                if is_meant {
                    let told = state::tell(&cluster, &release.name, &release.store, &said);
                    told.await.map_err(|error| words(&error))?;
                    let news = self.news.entry(release.name.release.clone());
                    let news = news.or_insert_with(Told::new).of_hold(hold);
                    if let Some(item) = news {
                        Box::pin(spread(listener, &cluster, &release, &item, hold)).await;
                    }
                }
            }
            Ok::<_, String>(())
        };
        let stop = self.shared.stop.clone();
        if let Some(told) = stop.run_until_cancelled(telling).await {
            told?;
            self.told = Some(said);
        }
        Ok(())
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

/// An environment, where it may be synced to the cluster that is meant.
fn for_cluster(loaded: Loaded, grant: &Grant) -> Result<Loaded, Hold> {
    let named = loaded.environment.cluster.id.clone().map(ClusterId);
    match (&grant.cluster, named) {
        (Some(meant), Some(named)) if *meant != named => Err(wrong_cluster(meant, &named)),
        _ => Ok(loaded),
    }
}

fn wrong_cluster(meant: &ClusterId, named: &ClusterId) -> Hold {
    Hold::new(
        "WrongCluster",
        format!(
            "the environment file names cluster {named}, and the loop may sync it to {meant} only"
        ),
    )
}

/// Tells those who do not watch a release what holds its environment.
async fn spread(
    listener: &Listener,
    cluster: &Cluster,
    release: &ReleaseSummary,
    item: &Item,
    hold: Option<&Hold>,
) {
    let name = &release.name;
    let installed = release.record.as_ref().ok();
    let installed = installed.and_then(|record| record.installed.as_ref());
    let (version, former) = installed
        .map(|one| (one.version.as_str(), one.revision.as_str()))
        .unwrap_or_default();
    let held = hold.and_then(|hold| hold.revision.as_deref());
    let revision = held.unwrap_or(former);
    if let Some(news) = item.news(name, (version, revision), Timestamp::now()) {
        listener.tell(LoopEvent::News(news));
    }
    let said = item.announcement(revision);
    if let Err(error) = state::announce(cluster, name, &release.store, said).await {
        tracing::debug!(release = %name, error = %words(&error), "no Event could be written");
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
