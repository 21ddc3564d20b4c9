//! One environment: read at the newest commit of its branch, and handed to a
//! task per release.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt as _;
use futures::stream::BoxStream;
use pleach_domain::inventory::{
    Condition, ConditionKind, Orders, ReleaseName, ReleaseSummary, Store,
};
use pleach_domain::object::Digest;
use pleach_domain::observe::ClusterId;
use pleach_domain::repo::controller::ClaimKey;
use tokio::sync::{Notify, mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, MissedTickBehavior, interval_at, sleep_until};

use super::assigned::{Assigned, Assignment};
use super::drift::Members;
use super::ends::{Ends, Last};
use super::inputs::Inputs;
use super::pace::{self, Paces};
use super::read::{Hold, load};
use super::release::{Neighbors, Release};
use super::run::Wanted;
use super::{Grant, LoopEvent, Shared};
use crate::engine::load::Loaded;
use crate::engine::planning::agent;
use crate::engine::sync::is_cluster;
use crate::engine::sync::state::{self, Search};
use crate::engine::words;
use crate::io::cluster::{Cluster, ClusterError};

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

/// All releases, and then those that change.
type Releases = BoxStream<'static, Result<Vec<ReleaseSummary>, ClusterError>>;

/// A connection, and what was asked for over it.
struct Connected {
    grant: Arc<Grant>,
    context: Option<String>,
    /// Which kubeconfig it was made from.
    kubeconfig: Option<Digest>,
    cluster: Cluster,
    /// The members of all releases there.
    members: Option<Members>,
    /// What people ask for, as it comes in.
    orders: Option<(Store, Releases)>,
    known: BTreeMap<ReleaseName, Known>,
}

/// What was last heard of a release.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Known {
    orders: Orders,
    /// What others wait for: whether it is ready, and at which commit.
    standing: Option<(bool, Option<String>)>,
}

/// The task of an environment.
pub(super) struct Environment {
    key: ClaimKey,
    assigned: watch::Receiver<Assigned>,
    paces: Paces,
    shared: Shared,
    loaded: Option<Arc<Loaded>>,
    /// What it was read from, at the commit that was last read.
    inputs: Option<Inputs>,
    /// The commit that was last read, whatever came of it.
    tried: Option<String>,
    hold: Option<Hold>,
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
            paces,
            shared,
            loaded: None,
            inputs: None,
            tried: None,
            hold: None,
            connected: None,
            releases: BTreeMap::new(),
            ends: None,
            end_asked: Arc::default(),
            tasks: JoinSet::new(),
            reached: mpsc::unbounded_channel(),
            told: None,
        }
    }

    pub(super) async fn run(mut self) {
        let mut failures = 0;
        while !self.shared.stop.is_cancelled() {
            let assigned = self.assigned.borrow_and_update().clone();
            self.read(&assigned).await;
            let retry = match self.settle(&assigned).await {
                Ok(()) => {
                    failures = 0;
                    None
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
        // Those that are left end at their next safe point.
        self.releases.clear();
        self.ends = None;
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
            let orders = async {
                match &mut self.connected {
                    Some(Connected {
                        orders: Some((_, orders)),
                        ..
                    }) => orders.next().await,
                    _ => std::future::pending().await,
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
                said = orders => match said {
                    Some(Ok(releases)) => self.hear(releases),
                    // It goes on by itself, and each release looks at its own.
                    Some(Err(error)) => tracing::debug!(
                        environment = %self.key.environment,
                        error = %words(&error),
                        "requests of people cannot be followed"
                    ),
                    None => if let Some(connected) = &mut self.connected {
                        connected.orders = None;
                    },
                },
            }
        }
    }

    /// Wakes the releases of which somebody wants something else now.
    fn hear(&mut self, releases: Vec<ReleaseSummary>) {
        let Some(connected) = &mut self.connected else {
            return;
        };
        let mut moved = Vec::new();
        for release in releases {
            let ReleaseSummary {
                name,
                orders,
                record,
                ..
            } = release;
            if name.environment != self.key.environment {
                continue;
            }
            let standing = record.ok().map(|record| {
                let installed = record.installed.map(|installed| installed.revision);
                (record.ready && record.applying.is_none(), installed)
            });
            let now = Known { orders, standing };
            let known = connected.known.insert(name.clone(), now.clone());
            if known.as_ref().map(|known| &known.standing) != Some(&now.standing) {
                moved.push(name.release.clone());
            }
            // One that is heard of for the first time may have been asked already.
            let known = known.map(|known| known.orders).unwrap_or_default();
            let is_asked = known.suspend != now.orders.suspend
                || known.approved != now.orders.approved
                || (now.orders.sync.is_some() && known.sync != now.orders.sync);
            if is_asked {
                let running = self.releases.get(&name.release);
                let wake = running.map_or(&self.end_asked, |running| &running.wake);
                wake.notify_one();
            }
        }
        for name in moved {
            self.wake_dependants(&name);
        }
    }

    /// Wakes the releases that may wait for one.
    fn wake_dependants(&self, name: &str) {
        let running = self.releases.values();
        for one in running.filter(|one| one.depends_on(name)) {
            one.ready.notify_one();
        }
    }

    /// Reads the environment, where its commit is another one.
    async fn read(&mut self, assigned: &Assigned) {
        let (commit, reader) = match &assigned.what {
            Assignment::Follow { commit, reader } => (commit, reader),
            Assignment::Held { reason, message } => {
                self.loaded = None;
                self.tried = None;
                self.inputs = None;
                self.held(assigned, Hold::new(reason, message.clone()), None);
                return;
            }
            Assignment::Distrusted { commit, message } => {
                // The commit before it may come back, and is good then: it is
                // read, also where nothing of the environment is another.
                self.tried = None;
                self.inputs = None;
                let hold = Hold::new("UntrustedCommit", message.clone());
                self.held(assigned, hold, Some(commit));
                return;
            }
            Assignment::Unknown => return,
        };
        if self.tried.as_ref() == Some(commit) {
            return;
        }
        let started = Instant::now();
        let name = self.key.environment.clone();
        let work = format!("to read environment {name}");
        let _work = self.shared.pulse.work(work, LIMIT);
        let (at, from, inputs) = (commit.clone(), reader.clone(), self.inputs.clone());
        let reading = tokio::task::spawn_blocking(move || load(&from, &at, &name, inputs.as_ref()));
        let Some(read) = self.shared.stop.run_until_cancelled(reading).await else {
            return;
        };
        self.tried = Some(commit.clone());
        let read = match read {
            Ok(None) => {
                self.unaffected(commit, None);
                return;
            }
            Ok(Some((read, inputs))) => {
                self.inputs = inputs;
                Ok(read)
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
    fn held(&mut self, assigned: &Assigned, hold: Hold, commit: Option<&String>) {
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

    /// Brings the tasks in line with what was read.
    async fn settle(&mut self, assigned: &Assigned) -> Result<(), String> {
        let Some(loaded) = self.loaded.clone() else {
            self.releases.clear();
            self.ends = None;
            return self.tell(assigned).await;
        };
        let grant = &assigned.grant;
        let named = loaded.environment.cluster.id.clone().map(ClusterId);
        let cluster_id = match (&grant.cluster, named) {
            (Some(meant), Some(named)) if *meant != named => {
                let message = format!(
                    "the environment file names cluster {named}, and the loop may sync it to {meant} only"
                );
                let commit = loaded.revision.to_string();
                let hold = Hold::new("WrongCluster", message);
                self.held(assigned, hold, Some(&commit));
                self.releases.clear();
                self.ends = None;
                return self.tell(assigned).await;
            }
            (Some(meant), _) => Some(meant.clone()),
            (None, named) => named.or_else(|| grant.fallback.clone()),
        };
        let interval = loaded.environment.sync.interval;
        self.paces
            .set(&self.key, interval.try_into().unwrap_or(LIMIT));
        let context = loaded.environment.cluster.context.clone();
        let cluster = self.connect(grant, context).await?;
        self.follow_orders(&cluster, &loaded.environment.store);
        self.told = None;
        let conditions = self.conditions(assigned);
        let connected = self.connected.as_ref();
        let members = connected.and_then(|connected| connected.members.clone());
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
            if let Some(ends) = &self.ends {
                ends.send_if_modified(|known| {
                    let is_other = !known.wanted.is_identical(&last.wanted);
                    *known = last;
                    is_other
                });
            } else {
                let (sender, receiver) = watch::channel(last);
                let asked = Arc::clone(&self.end_asked);
                let ends = Ends::new(receiver, asked, self.shared.clone());
                self.tasks.spawn_local(ends.run());
                self.ends = Some(sender);
            }
        }
        Ok(())
    }

    /// What the object that holds a record says beside it: that a loop follows
    /// the release, so that a desk knows, and what holds that loop.
    fn conditions(&self, assigned: &Assigned) -> Vec<Condition> {
        let hold = self.hold.as_ref();
        let stalled =
            hold.map(|Hold { reason, message }| (ConditionKind::Stalled, reason, message));
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
        let cluster = self.connect(&assigned.grant, None).await?;
        let id = assigned.grant.cluster.clone();
        let id = id.or_else(|| assigned.grant.fallback.clone());
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
    ) -> Result<Cluster, String> {
        // Only at a desk the file says which context is meant.
        let context = match (&grant.cluster, &grant.connection.context) {
            (None, None) => context,
            (_, named) => named.clone(),
        };
        let stop = self.shared.stop.clone();
        let kubeconfig = stop.run_until_cancelled(grant.connection.fingerprint());
        let kubeconfig = kubeconfig.await.unwrap_or(Ok(None));
        if let Some(connected) = &self.connected
            && Arc::ptr_eq(&connected.grant, grant)
            && (connected.context == context || self.loaded.is_none())
            // What cannot be read now leaves the connection that is there.
            && !matches!(&kubeconfig, Ok(now) if *now != connected.kubeconfig)
        {
            return Ok(connected.cluster.clone());
        }
        let kubeconfig = kubeconfig.map_err(|error| words(&error))?;
        self.connected = None;
        let mut connection = grant.connection.clone();
        connection.context.clone_from(&context);
        connection.user_agent = agent(None);
        let connecting = Cluster::connect(&connection);
        let cluster = match stop.run_until_cancelled(connecting).await {
            Some(cluster) => cluster.map_err(|error| words(&error))?,
            None => return Err("the loop ends".to_owned()),
        };
        let members = self.shared.watches.on((connection, kubeconfig), &cluster);
        self.connected = Some(Connected {
            grant: Arc::clone(grant),
            context,
            kubeconfig,
            cluster: cluster.clone(),
            members,
            orders: None,
            known: BTreeMap::new(),
        });
        Ok(cluster)
    }

    /// Whether the connection was made from a kubeconfig that is another by now.
    async fn is_other_kubeconfig(&self) -> bool {
        let Some(connected) = &self.connected else {
            return false;
        };
        let Some(known) = connected.kubeconfig else {
            return false;
        };
        let reading = connected.grant.connection.fingerprint();
        match self.shared.stop.run_until_cancelled(reading).await {
            Some(Ok(now)) => now != Some(known),
            Some(Err(error)) => {
                tracing::warn!(
                    environment = %self.key.environment,
                    error = %words(&error),
                    "the kubeconfig cannot be read; the connection stays as it is"
                );
                false
            }
            None => false,
        }
    }

    /// Listens for what people ask of the releases.
    fn follow_orders(&mut self, cluster: &Cluster, store: &Store) {
        let Some(connected) = &mut self.connected else {
            return;
        };
        let is_followed = |(known, _): &(Store, Releases)| known == store;
        if !connected.orders.as_ref().is_some_and(is_followed) {
            let search = Search::In(store.clone());
            let orders = state::follow_changes(cluster, &search).boxed();
            connected.orders = Some((store.clone(), orders));
            connected.known.clear();
        }
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
