//! What the loop tells of itself.

use std::time::Duration;

use pleach_domain::inventory::ReleaseName;
use pleach_domain::plan::Action;
use pleach_domain::repo::controller::News;
use tokio::sync::mpsc;

use super::pull_requests::Previewed;
use crate::engine::sync::events::SyncEvent;

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
        /// The cluster that is meant, where the configuration names one.
        cluster: Option<String>,
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
        /// The cluster that is meant, where the configuration names one.
        cluster: Option<String>,
        /// The commit.
        revision: String,
        /// How long it took to read it; none where nothing that the environment was
        /// read from is another.
        took: Option<Duration>,
    },
    /// Nothing newer of an environment is synced until somebody does something.
    Held {
        /// The repository.
        repository: String,
        /// The environment.
        environment: String,
        /// The cluster that is meant, where the configuration names one.
        cluster: Option<String>,
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
    /// Other releases wait until there is room to look at them.
    Queued {
        /// How many.
        waiting: usize,
    },
    /// A release was observed and planned.
    Planned {
        /// Environment and release.
        release: ReleaseName,
        /// Whether its cluster answered.
        answered: bool,
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
    /// Somebody changed objects of a release, and a look at them found that the
    /// release was not as git says.
    Changed {
        /// Environment and release.
        release: ReleaseName,
        /// How many objects.
        objects: usize,
    },
    /// It was looked whether what was brought about is still ready.
    Health {
        /// Environment and release.
        release: ReleaseName,
        /// Whether something is not.
        is_degraded: bool,
    },
    /// The state of a release changed: for those who are told.
    News(News),
    /// A release was looked at, and what came of it.
    Looked {
        /// Environment and release.
        release: ReleaseName,
        /// The cluster that is meant, where the configuration names one.
        cluster: Option<String>,
        /// The revision that is wanted.
        revision: String,
        /// What came of it.
        end: End,
        /// One line: why, where there is something to say.
        message: String,
        /// What came of the revision that was there before, where the wanted one
        /// waits.
        kept: Option<KeptUp>,
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

/// What came of a revision that was there before, and is kept up.
#[derive(Debug, Clone)]
pub struct KeptUp {
    /// The revision.
    pub revision: String,
    /// What came of it.
    pub end: End,
    /// One line: why, where there is something to say.
    pub message: String,
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
    pub(super) fn tell(&self, event: LoopEvent) {
        drop(self.events.send(event));
    }
}
