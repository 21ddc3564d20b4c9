//! The loop: keeps environments equal to the branches that hold them.
//!
//! It is level-based: whatever wakes it (a push, an interval, a request, a
//! restart), it looks at what git and the cluster say now, and brings the second
//! to the first by the same plans that `apply` carries out. All that it keeps is
//! in memory and can be lost.
//!
//! A task per repository fetches, one per environment renders, one per release
//! syncs: none of them waits for another. They hand on the newest of what they
//! have and never a queue, so what came in between is skipped. They share a
//! thread, which mostly waits; what takes long (git, rendering) has others.
//!
//! The loop tells of itself by [`LoopEvent`]s, and by [`SyncEvent`]s of each
//! run; it knows no consumer.

mod approval;
mod drift;
mod ends;
mod environment;
mod inputs;
mod last;
mod looked;
mod news;
mod pace;
mod pull_requests;
pub mod pulse;
mod recall;
mod release;
mod replicas;
mod run;
mod sight;
mod source;
pub mod statuses;
mod waiting;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use pleach_domain::inventory::ReleaseName;
use pleach_domain::observe::ClusterId;
use pleach_domain::plan::Action;
use pleach_domain::repo::controller::{
    Allow, Branches, Claim, ClaimKey, Claimant, Heads, News, claims,
};
use tokio::sync::{Notify, Semaphore, mpsc, watch};
use tokio::task::{AbortHandle, JoinSet, LocalSet};
use tokio_util::sync::CancellationToken;

pub use self::pull_requests::{Previewed, Previews};
pub use self::replicas::Sharing;

use self::drift::Watches;
use self::environment::{Assigned, Assignment, Environment};
use self::last::Last;
use self::pull_requests::PullRequests;
use self::pulse::Pulse;
use self::replicas::{Replica, Standing};
use self::sight::Sights;
use self::source::SourceState;
use super::sync::Claim as LeaseClaim;
use super::sync::events::SyncEvent;
use crate::io::cluster::Connection;
use crate::io::git::mirror::Remote;

/// How many objects a message names.
const NAMED: usize = 5;
/// What can be done to an object.
const ACTIONS: [Action; 5] = [
    Action::Create,
    Action::Update,
    Action::Recreate,
    Action::Adopt,
    Action::Delete,
];
/// How many pull requests are previewed at once: syncs come first.
const PREVIEWS: usize = 2;

/// What the loop follows, and where to.
#[derive(Debug, Clone)]
pub struct Setup {
    /// The repositories.
    pub repositories: Vec<Repository>,
    /// Who carries plans out, and how long others are waited for.
    pub claim: LeaseClaim,
    /// Whether changes of members are watched; otherwise they are found at the
    /// interval.
    pub drift_watch: bool,
    /// The replicas that the work is shared with; none when it is alone.
    pub sharing: Option<Sharing>,
    /// The release that the loop itself is, which is synced after all others of
    /// its environment.
    pub own: Option<ReleaseName>,
}

/// A repository that is followed.
#[derive(Debug, Clone)]
pub struct Repository {
    /// What messages call it.
    pub name: String,
    /// Where it is.
    pub remote: Remote,
    /// The environments that are synced from it.
    pub grants: Vec<Arc<Grant>>,
    /// How its pull requests are previewed; none where they are not.
    pub previews: Option<Previews>,
}

/// Environments of a repository, where to, and within which limits.
#[derive(Debug)]
pub struct Grant {
    /// URL of the repository.
    pub url: String,
    /// The branches that hold them.
    pub branches: Branches,
    /// The cluster that is meant. None where the environment file may name it,
    /// and the context of the kubeconfig too: at a desk.
    pub cluster: Option<ClusterId>,
    /// The cluster that is meant where neither this nor the file names one.
    pub fallback: Option<ClusterId>,
    /// The way to it.
    pub connection: Connection,
    /// What may be written at all; anything where left out.
    pub allow: Option<Allow>,
}

/// One thing that happened in the loop.
#[derive(Debug, Clone)]
pub enum LoopEvent {
    /// A repository was asked for its branches.
    Fetched {
        /// The repository.
        repository: String,
        /// How many of its branches are followed.
        branches: usize,
        /// How long it took.
        took: Duration,
    },
    /// A repository cannot be reached.
    Unreachable {
        /// The repository.
        repository: String,
        /// Why.
        message: String,
    },
    /// How many replicas there are is another number now.
    Sharing {
        /// The replicas, with this one; none while it is cut off from them.
        there: usize,
    },
    /// An environment is synced by this replica from now on, or no longer.
    Led {
        /// The environment.
        environment: String,
        /// Whether it is.
        leads: bool,
    },
    /// An environment was read at a new commit.
    Loaded {
        /// The repository.
        repository: String,
        /// The environment.
        environment: String,
        /// The commit.
        revision: String,
        /// The releases it has.
        releases: Vec<String>,
        /// How long it took.
        took: Duration,
    },
    /// A commit changes nothing of an environment.
    Unaffected {
        /// The environment.
        environment: String,
        /// The commit.
        revision: String,
    },
    /// Nothing newer of an environment is synced until somebody does something.
    Held {
        /// The repository.
        repository: String,
        /// The environment.
        environment: String,
        /// The commit that is the reason, where it is one.
        revision: Option<String>,
        /// One word.
        reason: String,
        /// One line.
        message: String,
    },
    /// The cluster of an environment cannot be reached.
    Unconnected {
        /// The environment.
        environment: String,
        /// Why.
        message: String,
    },
    /// Somebody begins to look at a release.
    Looking {
        /// Environment and release.
        release: ReleaseName,
    },
    /// A release was observed and planned.
    Planned {
        /// Environment and release.
        release: ReleaseName,
        /// How long it took.
        took: Duration,
    },
    /// A plan was carried out, as far as that went.
    Carried {
        /// Environment and release.
        release: ReleaseName,
        /// What was done to how many objects; nothing where it failed.
        objects: Vec<(Action, usize)>,
        /// How long it took.
        took: Duration,
    },
    /// Somebody changed objects of a release, as far as their metadata tells.
    Changed {
        /// Environment and release.
        release: ReleaseName,
        /// How many objects.
        objects: usize,
    },
    /// The state of a release changed: for those who are told.
    News(News),
    /// A release was looked at, and what came of it.
    Looked {
        /// Environment and release.
        release: ReleaseName,
        /// The revision that is wanted.
        revision: String,
        /// What came of it.
        end: End,
        /// One line: why, where there is something to say.
        message: String,
        /// How long it took.
        took: Duration,
    },
    /// A pull request was previewed.
    Previewed {
        /// The repository.
        repository: String,
        /// Its number.
        number: u64,
        /// Its newest commit.
        head: String,
        /// What came of it.
        previewed: Previewed,
        /// One line.
        message: String,
        /// How long it took.
        took: Duration,
    },
    /// The forge of a repository cannot be asked for its pull requests.
    Untold {
        /// The repository.
        repository: String,
        /// Why.
        message: String,
    },
}

/// What came of looking at a release.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum End {
    /// It is as git says.
    Unchanged,
    /// It was made so.
    Deployed,
    /// It is gone, as git says.
    Removed,
    /// It failed, and is tried again.
    Failed,
    /// The plan may not be carried out.
    Refused,
    /// Somebody changed it, and that is only told.
    Drifted,
    /// A newer revision came meanwhile.
    Superseded,
    /// The loop ends.
    Interrupted,
    /// Somebody holds it.
    Suspended,
    /// It waits for its time, or for others.
    Waiting,
    /// It waits for somebody to approve the plan.
    Unapproved,
}

impl End {
    /// In one word.
    pub fn word(self) -> &'static str {
        match self {
            Self::Unchanged => "unchanged",
            Self::Deployed => "deployed",
            Self::Removed => "removed",
            Self::Failed => "failed",
            Self::Refused => "refused",
            Self::Drifted => "drifted",
            Self::Superseded => "superseded",
            Self::Interrupted => "interrupted",
            Self::Suspended => "suspended",
            Self::Waiting => "waiting",
            Self::Unapproved => "unapproved",
        }
    }
}

/// Who hears of what happens.
#[derive(Debug, Clone)]
pub struct Listener {
    /// Of the loop.
    pub events: mpsc::UnboundedSender<LoopEvent>,
    /// Of each run.
    pub syncs: mpsc::UnboundedSender<SyncEvent>,
}

impl Listener {
    /// Tells of something; nobody has to listen.
    fn tell(&self, event: LoopEvent) {
        drop(self.events.send(event));
    }
}

/// A task of the loop came to an end that nobody asked for.
#[derive(Debug, thiserror::Error)]
#[error("a task of the loop failed; this is a bug")]
pub struct TaskFailed(#[source] tokio::task::JoinError);

/// What every task has.
#[derive(Debug, Clone)]
struct Shared {
    listener: Listener,
    pulse: Pulse,
    claim: LeaseClaim,
    watches: Watches,
    last: Last,
    sights: Sights,
    stop: CancellationToken,
}

/// How often the environments of a repository want it to be looked at.
#[derive(Debug, Clone, Default)]
struct Paces(Arc<PacesInner>);

#[derive(Debug, Default)]
struct PacesInner {
    intervals: Mutex<BTreeMap<ClaimKey, Duration>>,
    /// One of them is another now.
    changed: Notify,
}

impl Paces {
    fn set(&self, key: &ClaimKey, interval: Duration) {
        let mut intervals = self.lock();
        if intervals.insert(key.clone(), interval) != Some(interval) {
            self.0.changed.notify_one();
        }
    }

    fn shortest(&self) -> Option<Duration> {
        self.lock().values().min().copied()
    }

    async fn changed(&self) {
        self.0.changed.notified().await;
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<ClaimKey, Duration>> {
        self.0
            .intervals
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

/// Makes the loop look at repositories at once.
#[derive(Debug, Clone)]
pub struct Trigger {
    wakes: Vec<Wakes>,
    /// How often each was asked for, which other replicas are told.
    asked: watch::Sender<Vec<u64>>,
}

/// What wakes those who look at a repository.
#[derive(Debug, Clone, Default)]
struct Wakes {
    source: Arc<Notify>,
    pull_requests: Arc<Notify>,
}

impl Trigger {
    fn new(repositories: usize) -> Self {
        Self {
            wakes: (0..repositories).map(|_| Wakes::default()).collect(),
            asked: watch::Sender::new(vec![0; repositories]),
        }
    }

    /// Fetches a repository, by its position, here and in other replicas. However
    /// often this is asked for meanwhile, it is done once more.
    pub fn fetch(&self, repository: usize) {
        if let Some(wakes) = self.wakes.get(repository) {
            wakes.source.notify_one();
            self.asked.send_modify(|asked| asked[repository] += 1);
        }
    }

    /// Looks at the pull requests of a repository, likewise.
    pub fn look_at_pull_requests(&self, repository: usize) {
        if let Some(wakes) = self.wakes.get(repository) {
            wakes.pull_requests.notify_one();
            self.asked.send_modify(|asked| asked[repository] += 1);
        }
    }
}

/// The loop, ready to run.
pub struct Controller {
    setup: Setup,
    listener: Listener,
    trigger: Trigger,
    pulse: Pulse,
}

impl Controller {
    /// Prepares it.
    pub fn new(setup: Setup, listener: Listener) -> Self {
        let trigger = Trigger::new(setup.repositories.len());
        Self {
            setup,
            listener,
            trigger,
            pulse: Pulse::default(),
        }
    }

    /// What makes it look at repositories.
    pub fn trigger(&self) -> Trigger {
        self.trigger.clone()
    }

    /// What tells whether it goes on.
    pub fn pulse(&self) -> Pulse {
        self.pulse.clone()
    }

    /// Runs until it is stopped: what is under way ends at its next safe point.
    pub async fn run(self, stop: CancellationToken) -> Result<(), TaskFailed> {
        LocalSet::new().run_until(self.run_here(stop)).await
    }

    async fn run_here(self, stop: CancellationToken) -> Result<(), TaskFailed> {
        let stop = stop.child_token();
        let (watches, asked) = Watches::new(self.setup.drift_watch);
        let shared = Shared {
            listener: self.listener,
            pulse: self.pulse.clone(),
            claim: self.setup.claim,
            watches,
            last: Last::of(self.setup.own),
            sights: Sights::default(),
            stop: stop.clone(),
        };
        let mut tasks = JoinSet::new();
        tasks.spawn_local(self.pulse.clone().beat(stop.clone()));
        tasks.spawn_local(drift::follow_all(asked, stop.clone()));
        let changed = Arc::new(Notify::new());
        let mut sources = Vec::new();
        let mut paces = Vec::new();
        for (repository, wakes) in self.setup.repositories.iter().zip(&self.trigger.wakes) {
            let (sender, receiver) = watch::channel(SourceState::default());
            let pace = Paces::default();
            tasks.spawn_local(source::follow(
                repository.clone(),
                (Arc::clone(&wakes.source), pace.clone()),
                (sender, Arc::clone(&changed)),
                shared.clone(),
            ));
            sources.push(receiver);
            paces.push(pace);
        }
        let (standing, mut stands) = watch::channel(match &self.setup.sharing {
            None => Standing::Alone,
            Some(_) => Standing::Out,
        });
        // It takes part until all others have come to their end.
        let leave = CancellationToken::new();
        let mut membership = JoinSet::new();
        if let Some(sharing) = self.setup.sharing {
            let replica = Replica::new(
                sharing,
                shared.clone(),
                standing,
                (&self.setup.repositories, &self.trigger),
            );
            membership.spawn_local(replica.run(leave.clone()));
        }
        let turns = Arc::new(Semaphore::new(PREVIEWS));
        let repositories = self.setup.repositories.iter();
        for (repository, wakes) in repositories.zip(&self.trigger.wakes) {
            let Some(previews) = &repository.previews else {
                continue;
            };
            let pull_requests = PullRequests::new(
                (repository, previews),
                Arc::clone(&wakes.pull_requests),
                (Arc::clone(&turns), stands.clone()),
                shared.clone(),
            );
            tasks.spawn_local(pull_requests.run());
        }
        let mut supervisor = Supervisor {
            repositories: &self.setup.repositories,
            paces,
            shared,
            environments: BTreeMap::new(),
            leaving: BTreeMap::new(),
        };
        let ended = loop {
            let states: Vec<SourceState> = sources
                .iter_mut()
                .map(|source| source.borrow_and_update().clone())
                .collect();
            let stand = stands.borrow_and_update().clone();
            supervisor.assign(&states, &stand, &mut tasks);
            if states.iter().all(|state| state.was_tried) {
                self.pulse.is_ready();
            }
            tokio::select! {
                () = changed.notified() => {}
                // It is alone when there is nobody to say anything else.
                Ok(()) = stands.changed() => {}
                () = stop.cancelled() => break Ok(()),
                Some(ended) = tasks.join_next() => if let Err(error) = ended
                    && !error.is_cancelled()
                {
                    break Err(TaskFailed(error));
                },
            }
        };
        self.pulse.is_draining();
        stop.cancel();
        let mut ended = ended.and(drain(&mut tasks, &mut stands).await);
        leave.cancel();
        while let Some(task) = membership.join_next().await {
            ended = ended.and_then(|()| task.map_err(TaskFailed));
        }
        ended
    }
}

/// Waits until all tasks have ended. What is lost meanwhile is dropped where it
/// stands.
async fn drain(
    tasks: &mut JoinSet<()>,
    stands: &mut watch::Receiver<Standing>,
) -> Result<(), TaskFailed> {
    let mut ended = Ok(());
    loop {
        tokio::select! {
            task = tasks.join_next() => match task {
                None => return ended,
                Some(Err(error)) if !error.is_cancelled() => {
                    ended = ended.and(Err(TaskFailed(error)));
                }
                Some(_) => {}
            },
            Ok(()) = stands.changed() => if *stands.borrow_and_update() == Standing::Out {
                tasks.abort_all();
            },
        }
    }
}

/// Hands branches to environments.
struct Supervisor<'a> {
    repositories: &'a [Repository],
    paces: Vec<Paces>,
    shared: Shared,
    environments: BTreeMap<ClaimKey, Led>,
    /// Environments that others lead by now, while their last run ends.
    leaving: BTreeMap<ClaimKey, AbortHandle>,
}

/// An environment that this replica leads.
struct Led {
    assigned: watch::Sender<Assigned>,
    task: AbortHandle,
}

impl Supervisor<'_> {
    fn assign(&mut self, states: &[SourceState], stand: &Standing, tasks: &mut JoinSet<()>) {
        self.give_up(stand);
        let grants: Vec<Vec<_>> = self
            .repositories
            .iter()
            .map(|repository| {
                let grants = repository.grants.iter();
                grants
                    .map(|grant| {
                        let cluster = grant.cluster.as_ref().map(|id| id.0.clone());
                        (grant.branches.clone(), cluster)
                    })
                    .collect()
            })
            .collect();
        let heads: Vec<Heads> = states
            .iter()
            .map(|state| {
                let fetched = state.fetched.as_ref();
                fetched.map_or_else(Heads::new, |fetched| fetched.heads.clone())
            })
            .collect();
        let mut claims = claims(&grants, &heads);
        // Environments of patterns whose branches nobody could ask for yet.
        for (repository, state) in states.iter().enumerate() {
            for recalled in &state.recalled {
                let (_, cluster) = &grants[repository][recalled.grant];
                let key = ClaimKey {
                    environment: recalled.environment.clone(),
                    cluster: cluster.clone(),
                };
                let claimant = Claimant {
                    repository,
                    grant: recalled.grant,
                    branch: recalled.branch.clone(),
                    commit: None,
                };
                claims.entry(key).or_insert(Claim::Held(claimant));
            }
        }
        for (key, claim) in claims.iter().filter(|(key, _)| stand.leads(key)) {
            let (claimant, assignment, by) = match claim {
                Claim::Held(claimant) => {
                    let state = &states[claimant.repository];
                    let distrust = state
                        .fetched
                        .as_ref()
                        .and_then(|fetched| fetched.distrusted.get(&claimant.branch));
                    let assignment = match (&claimant.commit, distrust, &state.fetched) {
                        (Some(commit), Some(message), _) => Assignment::Distrusted {
                            commit: commit.clone(),
                            message: message.clone(),
                        },
                        (Some(commit), None, Some(fetched)) => Assignment::Follow {
                            commit: commit.clone(),
                            reader: fetched.reader.clone(),
                        },
                        (None, _, Some(_)) => missing(&claimant.branch),
                        (_, _, None) => Assignment::Unknown,
                    };
                    (claimant, assignment, self.words(claimant))
                }
                Claim::Contested(claimants) => {
                    let who: Vec<String> = claimants.iter().map(|one| self.words(one)).collect();
                    let who = who.join(", ");
                    let assignment = Assignment::Held {
                        reason: "Contested",
                        message: format!(
                            "several branches hold the environment, so it is synced from none of them: {who}"
                        ),
                    };
                    (&claimants[0], assignment, who)
                }
            };
            let repository = &self.repositories[claimant.repository];
            let assigned = Assigned {
                repository: repository.name.clone(),
                grant: Arc::clone(&repository.grants[claimant.grant]),
                by,
                what: assignment,
                source: states[claimant.repository].trouble.clone(),
            };
            self.give(key, claimant.repository, assigned, tasks);
        }
        // A branch that is gone suspends its environment, and deletes nothing.
        for (
            key,
            Led {
                assigned: sender, ..
            },
        ) in &self.environments
        {
            if !claims.contains_key(key) {
                let mut assigned = sender.borrow().clone();
                assigned.what = missing(&format!("of environment {}", key.environment));
                sender.send_if_modified(|known| replace(known, assigned));
            }
        }
    }

    /// Lets go of what others lead. What is under way comes to its next safe
    /// point, unless others may have taken it over already.
    fn give_up(&mut self, stand: &Standing) {
        let lost: Vec<ClaimKey> = self
            .environments
            .keys()
            .filter(|key| !stand.leads(key))
            .cloned()
            .collect();
        for key in lost {
            if let Some(Led { task, .. }) = self.environments.remove(&key) {
                self.tell(&key, false);
                self.leaving.insert(key, task);
            }
        }
        self.leaving.retain(|_, task| !task.is_finished());
        if *stand == Standing::Out {
            self.leaving.values().for_each(AbortHandle::abort);
        }
    }

    fn tell(&self, key: &ClaimKey, leads: bool) {
        self.shared.listener.tell(LoopEvent::Led {
            environment: key.environment.clone(),
            leads,
        });
    }

    /// A branch and its repository.
    fn words(&self, claimant: &Claimant) -> String {
        let repository = &self.repositories[claimant.repository].name;
        format!("{} of {repository}", claimant.branch)
    }

    fn give(
        &mut self,
        key: &ClaimKey,
        repository: usize,
        assigned: Assigned,
        tasks: &mut JoinSet<()>,
    ) {
        if let Some(led) = self.environments.get(key) {
            led.assigned
                .send_if_modified(|known| replace(known, assigned));
            return;
        }
        if self.leaving.contains_key(key) {
            // It came back too soon: its task ends first, and that wakes us.
            return;
        }
        let (sender, receiver) = watch::channel(assigned);
        let environment = Environment::new(
            key.clone(),
            receiver,
            self.paces[repository].clone(),
            self.shared.clone(),
        );
        let task = tasks.spawn_local(environment.run());
        self.tell(key, true);
        let assigned = sender;
        self.environments
            .insert(key.clone(), Led { assigned, task });
    }
}

fn replace(known: &mut Assigned, assigned: Assigned) -> bool {
    let differs = !known.is_same(&assigned);
    *known = assigned;
    differs
}

fn missing(branch: &str) -> Assignment {
    Assignment::Held {
        reason: "BranchMissing",
        message: format!(
            "branch {branch} is gone: the environment is suspended, nothing is applied and nothing deleted"
        ),
    }
}
