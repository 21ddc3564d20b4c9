//! A single run of one release: observe, plan, execute, record.

mod absent;
mod access;
pub(crate) mod answers;
mod body;
mod checks;
mod contents;
mod daemon;
mod dependencies;
mod error;
pub mod events;
pub mod interrupted_summary;
mod journal_writer;
mod live;
mod node_board;
pub mod node_progress;
mod nodes;
pub mod novelty;
mod observe;
mod op;
mod paths;
mod rbac_scope;
mod record;
mod removal;
pub mod report;
mod returned;
mod scheduler;
#[cfg(test)]
pub(crate) mod serving;
pub mod state;
mod symptoms;
mod unanswered;
mod wait;
mod watch_cache;
mod with_lease;
mod workload_context;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use jiff::Timestamp;
use pleach_formats::window::Windows;
use pleach_model::object::{DesiredDigest, DigestKey, ObjectId, labels};
use pleach_model::order::StageName;
use pleach_planner::observe::Observed;
use pleach_planner::plan::{Desired, Plan};
use pleach_state::inventory::{
    Attempt, Condition, Following, Installed, Inventory, RECONCILING, RunOutcome, Store,
    UserRequests,
};
use serde_json::Value;
use tokio::sync::{OnceCell, Semaphore};

pub use dependencies::{Neighbor, is_ready, place_of};
pub use error::SyncError;
pub use live::live;
pub use observe::{
    Early, Observation, cluster_id, expected_objects, is_cluster, observe, observe_early,
    observe_record, observe_some, recognize,
};
pub use record::attempt;
pub use with_lease::with_lease;
pub use with_lease::{Claim, clear_lease};

use super::lease::{Holder, NodesInChange};
use super::stop::Stop;
use events::{EventKind, Events, Verb};
use journal_writer::JournalWriter;
use node_board::NodeBoard;
use pleach_cluster::Cluster;
use record::Under;
use report::SyncResult;
use state::State;

/// Number of concurrent requests.
const CONCURRENCY: usize = 32;

/// Context of a run beside its plan.
#[derive(Debug)]
pub struct Run<'a> {
    /// Cluster to write to.
    pub cluster: &'a Cluster,
    /// Lease identity of the run, and its patience.
    pub claim: &'a Claim,
    /// Receiver of the events.
    pub events: &'a Events,
    /// Request to stop at the next safe point.
    pub stop: &'a Stop,
    /// Windows outside of which no further node begins. Without any, nodes begin at all times.
    pub windows: &'a Windows,
}

/// Executes a plan that was made from this observation, and records the outcome.
///
/// Writes nothing for a plan without steps and with an up-to-date record. A plan with steps runs
/// under the Lease of the release, and only if the record is unchanged since the observation. The
/// superset of the inventory is written before the first change, and shrinks after confirmed
/// deletions.
pub async fn execute(
    run: &Run<'_>,
    desired: &mut Desired,
    observation: Observation,
    plan: &Plan,
) -> Result<SyncResult, SyncError> {
    if let Some(outgoing) = &plan.removal {
        let removing = removal::execute(run, desired, observation, plan, outgoing);
        return Box::pin(removing).await;
    }
    let Observation {
        observed,
        mut state,
    } = observation;
    if !record::writes(desired, &observed, plan) {
        return Ok(SyncResult {
            outcome: record::RecordedOutcome::of_nothing(plan, state.record().ready),
            members: Some(Arc::new(record::into_refreshed(desired, observed, plan))),
            ..SyncResult::default()
        });
    }
    run.events.send(EventKind::Phase(Verb::Apply));
    state.prepare().await?;
    desired.digest_with(state.key());
    let desired = &*desired;
    run.with_lease(plan, &mut state, async |state| {
        let superset = record::superset(desired, &observed, plan);
        let board = Arc::new(NodeBoard::of(plan));
        if plan.has_steps() {
            state.show_nodes(board.report()).await;
        }
        let begun = begin(state, desired, plan, &superset).await?;
        if plan.has_steps() {
            let at = begun.attempt.at;
            let last_plan = record::last_plan(desired, &observed, plan, at);
            state.keep_plan(&last_plan).await?;
        }
        let journal = observed.journal.clone();
        let journal_writer = state.journal_writer(journal, begun.attempt.clone(), plan.effects());
        let books = Books {
            inventory: superset,
            journal_writer,
            key: state.key().cloned(),
            nodes: state.nodes_in_change().clone(),
        };
        let executed = run.steps_with_nodes(state, (desired, &observed, plan), (books, &board));
        let executed = Box::pin(executed).await;
        Ok(finish(run, state, desired, &observed, plan, begun, executed).await)
    })
    .await
}

/// Writes the record of a release that was never applied, so that users can set annotations on it.
/// Writes nothing else.
pub async fn introduce(desired: &Desired, observation: Observation) -> Result<(), SyncError> {
    let Observation {
        observed,
        mut state,
    } = observation;
    state.prepare().await?;
    let inherited = observed.inherited.as_ref();
    let change = |record: &mut Installed| {
        record.repository.clone_from(&desired.repository);
        record.bundle.clone_from(&desired.bundle);
        let nothing = Inventory::default();
        let memory = record::memory(desired, record, &nothing, Under::Recorded);
        record.memory = Some(memory.under_policy_of(inherited, Timestamp::now()));
    };
    let message = "nothing was applied yet";
    state
        .commit(&Inventory::default(), change, "AwaitingApproval", message)
        .await
}

/// Records that a commit has the same desired state as the last reconciled one, even if the objects
/// have drifted since. Releases that depend on this one can then proceed. Writes nothing else.
pub async fn affirm(desired: &Desired, observation: Observation) -> Result<(), SyncError> {
    let Observation {
        observed,
        mut state,
    } = observation;
    let change = |record: &mut Installed| {
        if let Some(installed) = &mut record.installed {
            installed.version.clone_from(&desired.version);
            installed.revision.clone_from(&desired.revision);
            // Recompute: the digest covers the version, which can be the commit.
            installed.digest = desired.digest();
        }
    };
    let (reason, message) = record::RECONCILED;
    state
        .commit(&observed.inventory, change, reason, message)
        .await
}

/// State of a run that has started.
struct Begun {
    attempt: Attempt,
    was_ready: bool,
}

/// Records the intended changes before the first step.
async fn begin(
    state: &mut State,
    desired: &Desired,
    plan: &Plan,
    superset: &Inventory,
) -> Result<Begun, SyncError> {
    let begun = Begun {
        attempt: attempt(desired),
        was_ready: state.record().ready,
    };
    // Drift corrections keep the recorded policy, because only new content was admitted by the
    // desired one.
    let under = if novelty::is_new(desired, Some(state.record()), plan) {
        Under::Desired
    } else {
        Under::Recorded
    };
    if plan.has_steps() {
        let change = |installed: &mut Installed| {
            installed.repository.clone_from(&desired.repository);
            installed.bundle.clone_from(&desired.bundle);
            installed.applying = Some(begun.attempt.clone());
            installed.memory = Some(record::memory(desired, installed, superset, under));
            installed.nodes = plan.nodes_memory().or(installed.nodes);
            installed.removed = false;
            installed.ready = false;
        };
        let message = "a plan is being executed";
        state.commit(superset, change, RECONCILING, message).await?;
    }
    Ok(begun)
}

/// Records that are maintained during execution.
struct Books {
    /// The inventory written before the first step.
    inventory: Inventory,
    /// The journal writer.
    journal_writer: JournalWriter,
    /// Key of digests; `None` if there is none yet.
    key: Option<DigestKey>,
    /// Counter of the nodes that the run is changing.
    nodes: NodesInChange,
}

/// Progress of the steps.
struct Executed {
    result: SyncResult,
    /// The inventory, up to date with the answers.
    inventory: Inventory,
}

/// Finishes a run that has started, whether it succeeded, failed or was stopped. Only a run that
/// lost its Lease skips this, because it must not write anything.
async fn finish(
    run: &Run<'_>,
    state: &mut State,
    desired: &Desired,
    observed: &Observed,
    plan: &Plan,
    begun: Begun,
    executed: Executed,
) -> SyncResult {
    let Executed {
        mut result,
        mut inventory,
    } = executed;
    run.events.send(EventKind::Phase(Verb::Report));
    if result.is_success() {
        for id in returned::remembered(desired, observed, plan).keys() {
            inventory.entries.remove(id);
        }
    }
    if result.stopped.is_none() {
        let context = (run.cluster, run.events);
        let remaining = returned::keep(context, desired, observed, plan, &mut inventory);
        Box::pin(remaining).await;
    }
    // If the runtime objects cannot be recorded, the release is unfinished and the next run
    // retries.
    let recorded = if result.is_success() && plan.verifies() {
        record::record_run_time_objects(run.cluster, desired, observed, &mut inventory).await
    } else {
        Ok(())
    };
    let was_ready = begun.was_ready;
    let outcome = record::RecordedOutcome::of(plan, &result, was_ready, recorded.as_ref().err())
        .by(run.claim);
    let corrected = record::corrected(plan, &result);
    let finished = record::finish(
        state,
        desired,
        &outcome,
        (plan.has_steps(), &corrected),
        &inventory,
        begun.attempt,
    )
    .await;
    result.members = Some(Arc::new(inventory));
    // Report the result even if it could not be recorded.
    result.unrecorded = recorded.and(finished).err().map(Arc::new);
    result.outcome = if result.unrecorded.is_some() {
        RunOutcome::Failed
    } else {
        outcome.outcome(plan, was_ready)
    };
    run.events.send(EventKind::Finished(result.clone()));
    result
}

impl Run<'_> {
    /// Runs `work` under the Lease if the plan has steps. A run that only records needs no Lease,
    /// because optimistic locking protects its single write. But it waits for a run that has begun,
    /// whose last write would fail otherwise: a new controller finds everything applied while
    /// `pleach bootstrap` still waits for its pods.
    async fn with_lease(
        &self,
        plan: &Plan,
        state: &mut State,
        work: impl AsyncFnOnce(&mut State) -> Result<SyncResult, SyncError>,
    ) -> Result<SyncResult, SyncError> {
        if !plan.has_steps() && state.record().applying.is_none() {
            return work(state).await;
        }
        let waiting = |holder: &Holder| self.events.send(EventKind::Queued(holder.clone()));
        let done = with_lease(self.claim, state, self.stop, waiting, work).await?;
        Ok(done.unwrap_or_else(|cause| SyncResult::not_begun(plan, cause)))
    }

    /// Executes the steps, and shows the progress of the nodes in the status meanwhile.
    async fn steps_with_nodes(
        &self,
        state: &mut State,
        (desired, observed, plan): (&Desired, &Observed, &Plan),
        (books, board): (Books, &Arc<NodeBoard>),
    ) -> Executed {
        if board.is_empty() {
            return self.steps(desired, observed, plan, books).await;
        }
        let events = self.events.with_nodes(board);
        let run = Run {
            events: &events,
            ..*self
        };
        let executed = tokio::select! {
            executed = run.steps(desired, observed, plan, books) => executed,
            never = board.write(state, &desired.revision) => match never {},
        };
        board.finish(state, &desired.revision).await;
        state.show_nodes(board.report()).await;
        executed
    }

    /// Executes the steps. Ends temporary changes by their rules if the steps did not finish.
    async fn steps(
        &self,
        desired: &Desired,
        observed: &Observed,
        plan: &Plan,
        books: Books,
    ) -> Executed {
        let operator = self.operator(desired, observed, plan, books);
        // Taken before the first step closes a gate, because `select!` polls in random order.
        let begun = Timestamp::now();
        let mut result = tokio::select! {
            result = scheduler::run(plan, &operator, self.events, CONCURRENCY, self.stop) => result,
            never = operator.lift_expired(begun) => match never {},
        };
        Box::pin(operator.finish(&mut result)).await;
        let inventory = operator
            .inventory
            .into_inner()
            .unwrap_or_else(PoisonError::into_inner);
        Executed { result, inventory }
    }

    fn operator<'a>(
        &'a self,
        desired: &'a Desired,
        observed: &Observed,
        plan: &'a Plan,
        books: Books,
    ) -> op::Operator<'a> {
        let Books {
            inventory,
            journal_writer,
            key,
            nodes,
        } = books;
        op::Operator {
            cluster: self.cluster,
            plan,
            grants: plan
                .steps
                .iter()
                .any(|step| step.stage == StageName::Access),
            desired,
            manifests: desired
                .manifests
                .iter()
                .map(|manifest| (manifest.id(), manifest))
                .collect(),
            manager: desired.name.field_manager(),
            key,
            paths: paths::Paths::new(&observed.discovery, &desired.manifests),
            watch_cache: watch_cache::WatchCache::new(
                self.cluster.clone(),
                format!("{}={}", labels::PART_OF, desired.apply_set()),
                rbac_scope::RbacScope::of(observed),
                plan,
            ),
            events: self.events,
            stop: self.stop,
            windows: self.windows,
            nodes,
            drivers: op::Drivers::default(),
            journal_writer,
            inventory: Mutex::new(inventory),
            unregistered: OnceCell::new(),
            gone: Mutex::default(),
            permits: Semaphore::new(CONCURRENCY),
            controllers: wait::Controllers::default(),
            statuses: wait::Statuses::default(),
            can_roll_back: observed
                .installed
                .as_ref()
                .is_some_and(|record| record.can_roll_back_from(&desired.revision)),
            operations: Mutex::default(),
            begun: Mutex::new(BTreeMap::new()),
        }
    }
}

impl Observation {
    /// Describes the branch that the controller follows for the release; `None` without a
    /// controller.
    pub fn followed(&self) -> Option<Following> {
        self.state.followed()
    }

    /// Returns the message of the controller about lost readiness, if any.
    pub fn degraded(&self) -> Option<String> {
        self.state.degraded()
    }

    /// Returns the ConfigMap with the report of a rehearsal. Its content is untrusted.
    pub fn rehearsal(&self) -> Option<&Value> {
        self.state.rehearsal()
    }

    /// Returns whether the record already has exactly these conditions of the controller.
    pub fn has_conditions(&self, conditions: &[Condition]) -> bool {
        self.state.has_conditions(conditions)
    }

    /// Returns the user requests on the record. If the record is a ConfigMap, the approval is an
    /// annotation of its namespace.
    pub fn user_requests(&self) -> UserRequests {
        let user_requests = self.state.user_requests();
        let Store::ConfigMap { namespace } = self.state.store() else {
            return user_requests;
        };
        let id = ObjectId::new("", "Namespace", None, namespace);
        let name = self.state.name();
        let live = self.observed.live_meta(&id);
        let annotation = |key: String| {
            let value = live.and_then(|live| live.annotations.get(&key));
            value.map(|value| value.trim().to_owned())
        };
        user_requests.with_approval(
            annotation(UserRequests::approval_annotation(name)),
            annotation(UserRequests::approver_annotation(name)),
        )
    }

    /// Returns whether execution would write anything, even only the record.
    pub fn writes(&self, desired: &Desired, plan: &Plan) -> bool {
        match &plan.removal {
            Some(outgoing) => removal::writes(desired, &self.observed, plan, outgoing),
            None => record::writes(desired, &self.observed, plan),
        }
    }
}

/// Returns whether every secret object has its final, keyed digest.
fn is_keyed(desired: &Desired) -> bool {
    desired
        .digests
        .values()
        .all(|digest| *digest != DesiredDigest::Unkeyed)
}
