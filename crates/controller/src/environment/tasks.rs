//! Tasks of an environment: the I/O that its state machine asks for.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use pleach_model::object::Digest;
use pleach_planner::observe::ClusterId;
use pleach_reconciler::TaskId;
use pleach_reconciler::config::EnvironmentKey;
use pleach_reconciler::environment::{
    Answer, ChangedFiles, ConnectionId, Load, PreviousState, RecordChange, RecordedCommit,
    StateFacts, StateId, Task,
};
use pleach_reconciler::stall::Stall;
use pleach_state::inventory::ReleaseSummary;
use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;

use super::LIMIT;
use crate::assignment::{Assigned, AssignedCommit};
use crate::backoff::FetchSchedule;
use crate::connected::Connected;
use crate::crash::Attempt;
use crate::history_lookup::{LookupRequest, LookupResult};
use crate::inputs::Inputs;
use crate::loader::{LoadResult, check_cluster};
use crate::requests::{Requests, may_be_in};
use crate::stalled_releases::{PreviousRelease, complete};
use crate::{ControllerEvent, Shared};
use pleach_engine::{
    bounded_render::EnvironmentAt,
    load::Loaded,
    sync::{
        is_cluster,
        state::{self, Search},
    },
    words,
};

/// Desired states by number.
pub(super) type LoadedStates = BTreeMap<StateId, Arc<Loaded>>;

/// Means and data of the tasks.
pub(super) struct Executor {
    pub(super) key: EnvironmentKey,
    pub(super) shared: Shared,
    pub(super) fetch_schedule: FetchSchedule,
    /// User requests for the releases.
    pub(super) requests: Requests,
    /// The assignment of the round.
    pub(super) current: Assigned,
    /// The commit in progress, with the crash record.
    pub(super) attempt: Attempt,
    /// Sender of history lookups, for the release tasks too.
    pub(super) lookups: mpsc::UnboundedSender<LookupRequest>,
    pub(super) connected: Option<Connected>,
    pub(super) connection: ConnectionId,
    /// Inputs of the last load that reported them.
    inputs: Option<(TaskId, Inputs)>,
    /// Digest of the file with the keys at the last load.
    keys: Option<Digest>,
    /// Records that the last reports were written to.
    pub(super) reported: Vec<ReleaseSummary>,
}

/// Result of a task.
pub(super) enum TaskResult {
    /// The environment, and whether its content is that of the present state.
    Loaded {
        loaded: Box<Loaded>,
        is_same: bool,
    },
    Answer(Answer),
}

impl Executor {
    pub(super) fn new(
        key: EnvironmentKey,
        current: Assigned,
        fetch_schedule: FetchSchedule,
        shared: Shared,
    ) -> Self {
        Self {
            attempt: Attempt::of(&shared.crashes, &current.source_policy.url, &key),
            key,
            requests: Requests::new(fetch_schedule.clone()),
            fetch_schedule,
            shared,
            current,
            // Placeholder; replaced when the task starts.
            lookups: mpsc::unbounded_channel().0,
            connected: None,
            connection: ConnectionId(0),
            inputs: None,
            keys: None,
            reported: Vec::new(),
        }
    }

    /// Executes a task, and returns its result.
    pub(super) async fn perform(
        &mut self,
        id: TaskId,
        task: Task,
        states: LoadedStates,
    ) -> TaskResult {
        let loaded = |state: Option<StateId>| state.and_then(|id| states.get(&id));
        TaskResult::Answer(match task {
            Task::Load {
                commit,
                inputs,
                current,
                previous,
            } => {
                let mut read = match self.read(id, commit, inputs).await {
                    Ok(loaded) => loaded,
                    Err(load) => return TaskResult::Answer(Answer::Loaded(load)),
                };
                complete(&mut read, |name| find(previous.get(name), name, &states));
                let current = loaded(current);
                let is_same = current.is_some_and(|current| current.wants_the_same(&read));
                return TaskResult::Loaded {
                    loaded: read,
                    is_same,
                };
            }
            Task::ReadRecords { state } => {
                Answer::Records(self.recorded(loaded(state).map(Arc::as_ref)).await)
            }
            Task::Connect { state } => Answer::Connected(match states.get(&state) {
                Some(loaded) => self.follow(loaded).await,
                None => Err("the desired state is gone".to_owned()),
            }),
            Task::Report { state, reports } => {
                let loaded = loaded(state).map(Arc::as_ref);
                Answer::Reported(self.report(loaded, &reports).await)
            }
            Task::Notify(notifications) => {
                self.notify(notifications).await;
                Answer::Notified
            }
            Task::CheckFiles => {
                let environment = &self.key.environment;
                Answer::FilesChecked(ChangedFiles {
                    kubeconfig: match &self.connected {
                        Some(connected) => connected.is_kubeconfig_changed(environment).await,
                        None => false,
                    },
                    keys: self.digest_of_keys() != self.keys,
                })
            }
            Task::Wait => {
                // The notifications about them are sent.
                self.reported = Vec::new();
                Answer::RecordsChanged(self.changes().await)
            }
        })
    }

    /// Loads the environment at a commit within the time limit.
    async fn read(
        &mut self,
        id: TaskId,
        commit: String,
        inputs: Option<TaskId>,
    ) -> Result<Box<Loaded>, Load> {
        let load_failed = |message: String| Load::Failed(Stall::new("Unread", message));
        let AssignedCommit::Followed { reader, .. } = &self.current.commit else {
            return Err(load_failed("no commit is assigned".to_owned()));
        };
        let at = EnvironmentAt {
            place: reader.place(),
            commit,
            name: self.key.environment.clone(),
            keys: self.current.source_policy.keys.clone(),
        };
        self.keys = self.digest_of_keys();
        let known = self.inputs.as_ref().filter(|(id, _)| Some(*id) == inputs);
        let known = known.map(|(_, inputs)| inputs.clone());
        let loading = self.shared.loader.load(at, known, &self.attempt);
        let Ok(read) = timeout(LIMIT, loading).await else {
            let message = format!("the environment was not loaded within {LIMIT:?}");
            return Err(load_failed(message));
        };
        match read {
            LoadResult::Unchanged => Err(Load::Unchanged),
            LoadResult::Loaded(inputs, read) => {
                self.inputs = Some((id, inputs));
                // An environment for another cluster is stalled like an invalid one.
                let read =
                    read.and_then(|loaded| check_cluster(*loaded, &self.current.source_policy));
                read.map(Box::new).map_err(Load::Invalid)
            }
            LoadResult::Exceeded(stall) => Err(Load::Exceeded(stall)),
            LoadResult::Failed(stall) => Err(Load::Failed(stall)),
        }
    }

    /// Returns the digest of the file with the keys. `None` without such a file.
    fn digest_of_keys(&self) -> Option<Digest> {
        let path = self.current.source_policy.keys.age_keys.as_deref()?;
        let bytes = pleach_files::read(path).ok()?;
        Some(Digest::of(&bytes))
    }

    /// Returns the recorded commits of the branch, or `None` if the records cannot be read.
    async fn recorded(&mut self, loaded: Option<&Loaded>) -> Option<Vec<RecordedCommit>> {
        let recorded = Box::pin(self.try_recorded(loaded)).await;
        if let Err(error) = &recorded {
            let environment = &self.key.environment;
            let of_environment = loaded.is_none();
            tracing::warn!(%environment, of_environment, %error, "failed to read the last applied revisions");
        }
        recorded.ok()
    }

    async fn try_recorded(
        &mut self,
        loaded: Option<&Loaded>,
    ) -> Result<Vec<RecordedCommit>, String> {
        let cluster = self.connect(loaded).await?.cluster.clone();
        let source_policy = &self.current.source_policy;
        let source = source_policy.source(&self.key.environment);
        let intended = source_policy
            .cluster
            .as_ref()
            .or(source_policy.fallback.as_ref());
        let records = state::releases(&cluster, &Search::Everywhere).await;
        let mut commits = Vec::new();
        for release in records.map_err(|error| words(&error))?.releases {
            if release.name.environment != self.key.environment {
                continue;
            }
            let Ok(record) = &release.record else {
                continue;
            };
            let Some(installed) = &record.installed else {
                continue;
            };
            if record.source != source {
                continue;
            }
            let is_intended = match intended {
                // Another cluster can have a release of the same name.
                Some(ClusterId(id)) => is_cluster(&cluster, &release.store, id).await == Some(true),
                None => true,
            };
            if is_intended {
                commits.push(RecordedCommit {
                    release: release.name.release.clone(),
                    commit: installed.revision.clone(),
                });
            }
        }
        Ok(commits)
    }

    /// Connects to the cluster of a state, and watches its records.
    async fn follow(&mut self, loaded: &Loaded) -> Result<ConnectionId, String> {
        let interval = loaded.environment.sync.interval;
        let interval = interval.try_into().unwrap_or(LIMIT);
        self.fetch_schedule.set(&self.key, interval);
        if let Err(error) = self.connect(Some(loaded)).await {
            // Nothing is planned without a connection.
            self.attempt.suspend_record();
            return Err(error);
        }
        self.attempt.record().await;
        if let Some(connected) = &mut self.connected {
            connected.watch_requests(&loaded.environment.store);
        }
        Ok(self.connection)
    }

    /// Returns the connection. Reconnects if the source policy or the context changed. Without a
    /// state, any context is used.
    pub(super) async fn connect(
        &mut self,
        loaded: Option<&Loaded>,
    ) -> Result<&mut Connected, String> {
        let source_policy = Arc::clone(&self.current.source_policy);
        // The environment file selects the context only in a local run.
        let context = match (&source_policy.cluster, &source_policy.connection.context) {
            (None, None) => loaded.and_then(|one| one.environment.cluster.context.clone()),
            (_, named) => named.clone(),
        };
        let kubeconfig = source_policy.connection.fingerprint().await;
        let is_same = |connected: &Connected| {
            Arc::ptr_eq(&connected.source_policy, &source_policy)
                && (connected.context == context || loaded.is_none())
                // If the kubeconfig cannot be read now, keep the present connection.
                && !matches!(&kubeconfig, Ok(now) if *now != connected.kubeconfig)
        };
        let known = self.connected.take_if(|connected| is_same(connected));
        let connected = if let Some(known) = known {
            known
        } else {
            let kubeconfig = kubeconfig.map_err(|error| words(&error))?;
            self.connected = None;
            self.connection.0 += 1;
            Connected::open(&self.shared, &source_policy, context, kubeconfig).await?
        };
        Ok(self.connected.insert(connected))
    }

    /// Waits for changes of the records of this environment. Requests for environments without a
    /// branch cause a fetch meanwhile.
    async fn changes(&mut self) -> Vec<RecordChange> {
        let Some(connected) = &mut self.connected else {
            return std::future::pending().await;
        };
        loop {
            let mut changes = Vec::new();
            for release in connected.changed_releases().await {
                let environment = &release.name.environment;
                if *environment == self.key.environment {
                    changes.push(connected.record_change(release));
                } else if connected.is_new_request(&release)
                    && !self.fetch_schedule.is_followed(environment)
                    && may_be_in(&release, &connected.source_policy.url, Timestamp::now())
                {
                    self.fetch_schedule.request_fetch();
                }
            }
            if !changes.is_empty() {
                return changes;
            }
        }
    }

    /// Starts a lookup of the newest of these commits that counts.
    pub(super) fn look_up(
        &self,
        commits: BTreeSet<String>,
        release: Option<String>,
    ) -> oneshot::Receiver<LookupResult> {
        let (answer, answered) = oneshot::channel();
        let request = LookupRequest {
            commits,
            release,
            answer,
        };
        // The receiver is gone only at shutdown.
        drop(self.lookups.send(request));
        answered
    }

    pub(super) fn unchanged(&self, revision: String, took: Option<Duration>) {
        let event = ControllerEvent::EnvironmentUnchanged {
            environment: self.key.environment.clone(),
            cluster: self.key.cluster.clone(),
            revision,
            took,
        };
        self.shared.events.report(event);
    }

    pub(super) fn loaded(&self, state: StateFacts, took: Duration) {
        let names = state.releases.into_iter().map(|release| release.name);
        let stalled = state.stalled.into_iter();
        let stalled: BTreeMap<_, _> = stalled.map(|(name, stall)| (name, stall.message)).collect();
        let event = ControllerEvent::EnvironmentLoaded {
            repository: self.current.repository.clone(),
            environment: self.key.environment.clone(),
            cluster: self.key.cluster.clone(),
            revision: state.revision,
            releases: names.chain(stalled.keys().cloned()).collect(),
            stalled,
            took,
        };
        self.shared.events.report(event);
    }

    pub(super) fn retained(&self, revision: &str) {
        let environment = &self.key.environment;
        tracing::info!(%environment, %revision, "the last applied revision is retained");
    }

    pub(super) fn stalled(&self, stall: Stall) {
        let event = ControllerEvent::EnvironmentStalled {
            repository: self.current.repository.clone(),
            revision: stall.revision,
            environment: self.key.environment.clone(),
            cluster: self.key.cluster.clone(),
            reason: stall.reason,
            message: stall.message,
        };
        self.shared.events.report(event);
    }

    pub(super) fn unreachable(&self, message: String) {
        let environment = self.key.environment.clone();
        let event = ControllerEvent::ClusterUnreachable {
            environment,
            message,
        };
        self.shared.events.report(event);
    }
}

/// Returns the previous state of a stalled release.
fn find<'a>(
    previous: Option<&PreviousState>,
    name: &str,
    states: &'a LoadedStates,
) -> PreviousRelease<'a> {
    match previous {
        None => PreviousRelease::Unknown,
        Some(PreviousState::Absent) => PreviousRelease::Absent,
        Some(PreviousState::In(state)) => {
            let mut releases = states.get(state).into_iter().flat_map(|one| &one.rendered);
            let known = releases.find(|(release, _)| release.name.release == name);
            known.map_or(PreviousRelease::Unknown, PreviousRelease::Known)
        }
    }
}
