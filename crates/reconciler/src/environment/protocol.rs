//! Events and commands of an environment.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use pleach_planner::observe::ClusterId;
use pleach_state::inventory::{Condition, SyncRequest};

use crate::TaskId;
use crate::stall::Stall;
use crate::state_changes::Notice;

/// Number of a desired state: an environment, or one release of it, at a commit. The executor stores
/// the state itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StateId(pub u64);

/// Number of a cluster connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConnectionId(pub u64);

/// Facts of the assignment of an environment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AssignmentFacts {
    /// The commit, or the reason why there is none.
    pub commit: Commit,
    /// Branch and repository, as text.
    pub origin: String,
    /// Whether the source policy names the branch. Nothing is looked up otherwise.
    pub has_branch: bool,
    /// Error if the repository is unreachable now.
    pub unreachable: Option<String>,
    /// Sequence number of the latest fetch request that this answers.
    pub answered: u64,
    /// Whether git no longer contains the environment. Its task ends once that is reported.
    pub is_removed: bool,
    /// The only cluster that the source policy allows.
    pub cluster: Option<ClusterId>,
    /// The cluster if neither the source policy nor the environment file names one.
    pub fallback: Option<ClusterId>,
}

/// Commit of an environment, or the reason why there is none.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Commit {
    /// A commit of its branch.
    Followed(String),
    /// The environment is stalled.
    Stalled {
        /// One word.
        reason: String,
        /// One line.
        message: String,
    },
    /// The newest commit lacks a trusted signature. The last loaded commit stays in effect.
    Untrusted {
        /// Reason of the stall: `UntrustedCommit` or `UntrustedArtifact`.
        reason: String,
        /// The commit.
        commit: String,
        /// One line.
        message: String,
    },
    /// The repository was not fetched yet.
    Unknown,
}

/// Files of the configuration that changed since they were used.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ChangedFiles {
    /// The kubeconfig changed since the connection was made.
    pub kubeconfig: bool,
    /// The keys that decrypt values changed since the last load.
    pub keys: bool,
}

/// A commit at which the controller crashed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Crash {
    /// The commit.
    pub commit: String,
    /// Its stall.
    pub stall: Stall,
    /// End of the backoff.
    pub until: Duration,
}

/// Facts of a desired state.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StateFacts {
    /// Its number.
    pub id: StateId,
    /// The commit.
    pub revision: String,
    /// The cluster that the environment file names.
    pub cluster: Option<ClusterId>,
    /// Releases that can be applied, in the order of the environment.
    pub releases: Vec<ReleaseFacts>,
    /// Releases that cannot be applied at this commit.
    pub stalled: BTreeMap<String, Stall>,
}

/// Facts of a release.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReleaseFacts {
    /// Its name.
    pub name: String,
    /// Names of the releases of this environment that it depends on.
    pub depends_on: BTreeSet<String>,
}

/// Desired state of a release.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Desired {
    /// The state that contains the release.
    pub state: StateId,
    /// Index of the release in it.
    pub index: usize,
    /// The connection to its cluster.
    pub connection: ConnectionId,
    /// The expected cluster.
    pub cluster: Option<ClusterId>,
    /// Conditions of the environment.
    pub conditions: Vec<Condition>,
    /// Reason why the release is stalled.
    pub stall: Option<Stall>,
    /// Whether only this release is stalled. Nothing is pruned then.
    pub is_stalled: bool,
    /// Whether the commit is only known from records. Drift is not corrected then.
    pub is_from_records: bool,
}

/// Previous state of a release, in case that the release is stalled at the newest commit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PreviousState {
    /// No usable commit was found.
    Absent,
    /// The release in this state.
    In(StateId),
}

/// Result of loading a commit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Load {
    /// The inputs are unchanged, so nothing was loaded.
    Unchanged,
    /// The environment.
    Loaded {
        /// Its state.
        state: Box<StateFacts>,
        /// Whether the present state has the same content. Then no release needs a reconcile.
        is_same: bool,
    },
    /// The commit cannot be synced.
    Invalid(Stall),
    /// The commit exceeds the limits. Only a later retry can show otherwise.
    Exceeded(Stall),
    /// A retry can succeed soon.
    Failed(Stall),
}

/// Commit in the record of a release.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RecordedCommit {
    /// The release.
    pub release: String,
    /// The commit.
    pub commit: String,
}

/// Result of a history lookup.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LookedUp {
    /// The lookup failed.
    Failed,
    /// No commit counts.
    Nothing,
    /// The state at the newest commit that counts.
    State(Box<StateFacts>),
}

/// Report about releases without a task.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Report {
    /// The release; `None` for all releases of the environment.
    pub release: Option<String>,
    /// Conditions for the record.
    pub conditions: Vec<Condition>,
    /// Reason why the release is stalled.
    pub stall: Option<Stall>,
}

/// Result of reports.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reported {
    /// Releases whose records were written.
    pub written: Vec<String>,
    /// The connection that was used. `None` if it could not be made.
    pub connection: Option<ConnectionId>,
    /// The error that ended the reports early.
    pub error: Option<String>,
}

/// A notification about a stall.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StallNotification {
    /// The release.
    pub release: String,
    /// The stalled commit. `None`: the recorded one.
    pub revision: Option<String>,
    /// The notification.
    pub notice: Notice,
}

/// Change of the record of a release.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RecordChange {
    /// The release.
    pub release: String,
    /// Whether dependent releases might be able to proceed.
    pub affects_dependents: bool,
    /// Whether a user request changed.
    pub is_requested: bool,
    /// A new request to fetch and sync.
    pub fetch: Option<SyncRequest>,
}

/// Event of an environment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// A new assignment.
    Assigned(Box<AssignmentFacts>),
    /// The controller shuts down, or another replica syncs the environment.
    Stopped,
    /// A history lookup ended.
    LookedUp(TaskId, LookedUp),
    /// A release was reconciled to a commit.
    Reconciled(String),
    /// The task of a release, or of the uninstalls, ended.
    TaskEnded,
    /// The time of [`Environment::wake_at`](super::Environment::wake_at) has come.
    Tick,
    /// A task ended.
    Answer(TaskId, Answer),
}

/// Answer to a task.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer {
    /// Of [`Task::Load`].
    Loaded(Load),
    /// Of [`Task::ReadRecords`]. `None`: that failed.
    Records(Option<Vec<RecordedCommit>>),
    /// Of [`Task::Connect`].
    Connected(Result<ConnectionId, String>),
    /// Of [`Task::Report`].
    Reported(Reported),
    /// Of [`Task::Notify`].
    Notified,
    /// Of [`Task::CheckFiles`].
    FilesChecked(ChangedFiles),
    /// Of [`Task::Wait`].
    RecordsChanged(Vec<RecordChange>),
}

/// A task of the executor. There is at most one at a time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Task {
    /// Load the environment at a commit.
    Load {
        /// The commit.
        commit: String,
        /// The load whose inputs are compared: if they are unchanged, nothing is loaded.
        inputs: Option<TaskId>,
        /// The present state, to compare with.
        current: Option<StateId>,
        /// Previous states, in case that releases are stalled. Those of others are unknown.
        previous: BTreeMap<String, PreviousState>,
    },
    /// Read the commits that the records of the branch name.
    ReadRecords {
        /// The present state, whose connection is used.
        state: Option<StateId>,
    },
    /// Connect to the cluster of a state, and watch its records.
    Connect {
        /// The state.
        state: StateId,
    },
    /// Write reports to the records.
    Report {
        /// The present state, whose connection is used.
        state: Option<StateId>,
        /// The reports.
        reports: Vec<Report>,
    },
    /// Send notifications, also as Kubernetes Events.
    Notify(Vec<StallNotification>),
    /// Check whether the kubeconfig changed since the connection was made, or the keys since the
    /// last load.
    CheckFiles,
    /// Wait for a change of the records.
    Wait,
}

/// Command to the executor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Command {
    /// Start a task, which replaces the present one.
    Start(TaskId, Task),
    /// A round started: the tasks until the next one are about the newest assignment.
    StartRound,
    /// A commit changes nothing: log it, with the duration of its load if it was loaded.
    Unchanged(String, Option<Duration>),
    /// A state was loaded: log it, with the duration of the load.
    Loaded(Box<StateFacts>, Duration),
    /// The last applied revision was found in the history and is retained: log it.
    Retained(String),
    /// The environment is stalled: log it.
    Stalled(Stall),
    /// The cluster cannot be reached: log the error.
    Unreachable(String),
    /// End the crash record of the commit as soon as these releases are planned.
    EndAttempt(BTreeSet<String>),
    /// The releases have received the result of these fetches.
    Answered(u64),
    /// Look up the newest of these commits that counts, in the history of the branch.
    LookUp {
        /// Number of the lookup.
        id: TaskId,
        /// The commits.
        commits: BTreeSet<String>,
        /// The release to look up; `None` for the whole environment.
        release: Option<String>,
    },
    /// Create the state `id` from one release of the state `from`.
    Extract {
        /// Number of the new state.
        id: StateId,
        /// The state with the release.
        from: StateId,
        /// The release.
        release: String,
    },
    /// Start the task of a release.
    StartRelease(String, Desired),
    /// Update the desired state of a release, and trigger its task.
    UpdateRelease(String, Desired),
    /// End the task of a release: it has no desired state any more.
    RemoveRelease(String),
    /// Set the state by which the releases that left git are uninstalled. Starts the task.
    Uninstall {
        /// The first release, for settings that all releases share.
        first: Desired,
        /// Whether the task is triggered.
        is_changed: bool,
    },
    /// End the task of the uninstalls.
    StopUninstalls,
    /// Stop syncing the environment: end the tasks of all releases and of the uninstalls, the crash
    /// record and the fetches at its interval.
    StopSync,
    /// Trigger a release because a dependency might be ready.
    TriggerDependent(String),
    /// Trigger a release because of user requests.
    TriggerRelease(String),
    /// Trigger the uninstalls because of user requests.
    TriggerUninstalls,
    /// Fetch for a request on a release.
    Fetch(String, SyncRequest),
    /// End the task of the environment.
    End,
}
