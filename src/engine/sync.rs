//! One release, once: observe, plan, carry out, record.

mod absent;
mod access;
mod body;
mod checks;
mod contents;
mod daemon;
mod dependencies;
mod error;
pub mod events;
mod hub;
mod ledger;
mod live;
pub mod novelty;
mod observe;
mod op;
mod paths;
mod reach;
mod record;
pub mod remainder;
mod removal;
pub mod report;
mod returned;
mod scheduler;
#[cfg(test)]
mod serving;
pub mod state;
mod surroundings;
mod turn;
mod unanswered;
mod wait;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use jiff::Timestamp;
use pleach_domain::inventory::{
    Attempt, Condition, Following, Installed, Inventory, Orders, RECONCILING, Store,
};
use pleach_domain::object::{DigestKey, ObjectId, labels};
use pleach_domain::observe::{DesiredDigest, Grants, Observed};
use pleach_domain::order::StageName;
use pleach_domain::plan::{Desired, Plan};
use tokio::sync::{OnceCell, Semaphore};

pub use checks::look_at_checked;
pub use contents::look_into_namespaces;
pub use dependencies::{Neighbor, is_ready, look_at_dependants, look_at_dependencies, place_of};
pub use error::SyncError;
pub use live::live;
pub use observe::{
    Observation, cluster_id, expected_objects, is_cluster, observe, observe_record, observe_some,
    recognize,
};
pub use record::attempt;
pub use removal::review_end;
pub use surroundings::look_around;
pub(in crate::engine) use turn::in_turn;
pub use turn::{Claim, clear_lease};

use super::lease::Holder;
use super::stop::Stop;
use crate::io::cluster::Cluster;
use events::{EventKind, Events, Verb};
use ledger::Ledger;
use record::Under;
use report::SyncResult;
use state::State;

/// Requests in flight.
const CONCURRENCY: usize = 32;

/// Asks what pleach itself may not do of a plan. Nothing is asked for a plan
/// that changes nothing.
pub async fn review_access(
    cluster: &Cluster,
    desired: &Desired,
    observed: &Observed,
    plan: &Plan,
) -> Result<Grants, SyncError> {
    if !plan.has_steps() {
        return Ok(Grants::default());
    }
    let paths = paths::Paths::new(&observed.discovery, &desired.manifests);
    Ok(access::review(cluster, desired, observed, plan, &paths).await?)
}

/// What every run has beside its plan.
#[derive(Debug)]
pub struct Run<'a> {
    /// Where it writes.
    pub cluster: &'a Cluster,
    /// Who it is, and how long it waits for others.
    pub claim: &'a Claim,
    /// Who hears of it.
    pub events: &'a Events,
    /// What ends it at the next safe point.
    pub stop: &'a Stop,
}

/// Carries out a plan that was made from this observation, and records it.
///
/// Nothing is written for a plan without steps whose record is up to date. A
/// plan that changes something is carried out in turn: under the Lease of the
/// release, and only if the record is still the one it was made from. The
/// superset of the inventory is written before the first change it describes,
/// and shrunk after confirmed deletions.
pub async fn carry_out(
    run: &Run<'_>,
    desired: &mut Desired,
    observation: Observation,
    plan: &Plan,
) -> Result<SyncResult, SyncError> {
    if let Some(outgoing) = &plan.removal {
        let removing = removal::carry_out(run, desired, observation, plan, outgoing);
        return Box::pin(removing).await;
    }
    let Observation {
        observed,
        mut state,
    } = observation;
    if !record::writes(desired, &observed, plan) {
        return Ok(SyncResult {
            ending: record::Ending::of_nothing(plan, state.record().ready),
            members: Some(Arc::new(record::into_refreshed(desired, observed, plan))),
            ..SyncResult::default()
        });
    }
    run.events.send(EventKind::Phase(Verb::Apply));
    state.prepare().await?;
    desired.digest_with(state.key());
    let desired = &*desired;
    run.in_turn(plan, &mut state, async |state| {
        let superset = record::superset(desired, &observed, plan);
        let begun = begin(state, desired, plan, &superset).await?;
        if plan.has_steps() {
            let at = begun.attempt.at;
            let kept = record::last_plan(desired, &observed, plan, at);
            state.keep_plan(&kept).await?;
        }
        let journal = observed.journal.clone();
        let ledger = state.ledger(journal, begun.attempt.clone(), plan.effects());
        let books = Books {
            inventory: superset,
            ledger,
            key: state.key().cloned(),
        };
        let steps = run.steps(desired, &observed, plan, books);
        let reached = Box::pin(steps).await;
        Ok(settle(run, state, desired, &observed, plan, begun, reached).await)
    })
    .await
}

/// Writes the record of a release of which nothing was applied yet, so that
/// people can say something of it. Nothing else is written.
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

/// Writes down that a commit wants nothing else of a release than what was reached
/// before, also where others changed some of it since: what depends on the release
/// may go on. Nothing else is written.
pub async fn affirm(desired: &Desired, observation: Observation) -> Result<(), SyncError> {
    let Observation {
        observed,
        mut state,
    } = observation;
    let change = |record: &mut Installed| {
        if let Some(installed) = &mut record.installed {
            installed.version.clone_from(&desired.version);
            installed.revision.clone_from(&desired.revision);
            // It is that of the content at its version, which may be the commit.
            installed.digest = desired.digest();
        }
    };
    let (reason, message) = record::REACHED;
    state
        .commit(&observed.inventory, change, reason, message)
        .await
}

/// A run that was begun.
struct Begun {
    attempt: Attempt,
    was_ready: bool,
}

/// Writes down what is about to be done, before the first change.
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
    // Drift is corrected under any policy: only what is new was admitted by the recorded one.
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
            installed.removed = false;
            installed.ready = false;
        };
        let message = "a plan is being carried out";
        state.commit(superset, change, RECONCILING, message).await?;
    }
    Ok(begun)
}

/// The records that are kept while a plan is carried out.
struct Books {
    /// The inventory that was written before the first step.
    inventory: Inventory,
    /// The journal.
    ledger: Ledger,
    /// The key of digests; `None` where there is none yet.
    key: Option<DigestKey>,
}

/// How far the steps got.
struct Reached {
    result: SyncResult,
    /// The inventory in step with the answers.
    inventory: Inventory,
}

/// What every run ends with that was begun, whether all of its steps were
/// carried out, one of them failed, or it was stopped: the one way out. Only a
/// run that lost its Lease does not come here, for it may write nothing.
async fn settle(
    run: &Run<'_>,
    state: &mut State,
    desired: &Desired,
    observed: &Observed,
    plan: &Plan,
    begun: Begun,
    reached: Reached,
) -> SyncResult {
    let Reached {
        mut result,
        mut inventory,
    } = reached;
    run.events.send(EventKind::Phase(Verb::Report));
    if result.is_success() {
        for id in returned::remembered(desired, observed, plan).keys() {
            inventory.entries.remove(id);
        }
    }
    if result.stopped.is_none() {
        let told = (run.cluster, run.events);
        let look = returned::keep(told, desired, observed, plan, &mut inventory);
        Box::pin(look).await;
    }
    // What cannot be recorded makes the release unfinished: the next run tries again.
    let recorded = if result.is_success() && plan.verifies() {
        record::record_run_time_objects(run.cluster, desired, observed, &mut inventory).await
    } else {
        Ok(())
    };
    let was_ready = begun.was_ready;
    let ending = record::Ending::of(plan, &result, was_ready, recorded.as_ref().err())
        .local(run.claim.local.as_ref());
    let corrected = record::corrected(plan, &result);
    let finished = record::finish(
        state,
        desired,
        &ending,
        (plan.has_steps(), &corrected),
        &inventory,
        begun.attempt,
    )
    .await;
    result.members = Some(Arc::new(inventory));
    // What was done is reported even if it could not be recorded.
    result.unrecorded = recorded.and(finished).err().map(Arc::new);
    result.ending = if result.unrecorded.is_some() {
        "failed"
    } else {
        ending.word(plan, was_ready)
    };
    run.events.send(EventKind::Finished(result.clone()));
    result
}

impl Run<'_> {
    /// Does something in turn, if the plan changes anything. A run that only
    /// looks and records needs no Lease: its one write is fenced.
    async fn in_turn(
        &self,
        plan: &Plan,
        state: &mut State,
        work: impl AsyncFnOnce(&mut State) -> Result<SyncResult, SyncError>,
    ) -> Result<SyncResult, SyncError> {
        if !plan.has_steps() {
            return work(state).await;
        }
        let waiting = |holder: &Holder| self.events.send(EventKind::Queued(holder.clone()));
        let done = in_turn(self.claim, state, self.stop, waiting, work).await?;
        Ok(done.unwrap_or_else(|cause| SyncResult::not_begun(plan, cause)))
    }

    /// Carries out the steps, and applies the rules of what is only for a while
    /// where they did not come to their end.
    async fn steps(
        &self,
        desired: &Desired,
        observed: &Observed,
        plan: &Plan,
        books: Books,
    ) -> Reached {
        let operator = self.operator(desired, observed, plan, books);
        // Before the first step closes a gate: `select!` polls in random order.
        let begun = Timestamp::now();
        let mut result = tokio::select! {
            result = scheduler::run(plan, &operator, self.events, CONCURRENCY, self.stop) => result,
            never = operator.lift_expired(begun) => match never {},
        };
        Box::pin(operator.settle(&mut result)).await;
        let inventory = operator
            .inventory
            .into_inner()
            .unwrap_or_else(PoisonError::into_inner);
        Reached { result, inventory }
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
            ledger,
            key,
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
            hub: hub::Hub::new(
                self.cluster.clone(),
                format!("{}={}", labels::PART_OF, desired.apply_set()),
                reach::Reach::of(observed),
                plan,
            ),
            events: self.events,
            stop: self.stop,
            ledger,
            inventory: Mutex::new(inventory),
            unregistered: OnceCell::new(),
            gone: Mutex::default(),
            places: Semaphore::new(CONCURRENCY),
            controllers: wait::Controllers::default(),
            statuses: wait::Statuses::default(),
            can_go_back: observed
                .installed
                .as_ref()
                .is_some_and(|record| record.can_go_back_from(&desired.revision)),
            operations: Mutex::default(),
            begun: Mutex::new(BTreeMap::new()),
        }
    }
}

impl Observation {
    /// The branch that a loop keeps the release equal to, in words; none where
    /// no loop does.
    pub fn followed(&self) -> Option<Following> {
        self.state.followed()
    }

    /// What a loop said of what was ready and is not any more.
    pub fn degraded(&self) -> Option<String> {
        self.state.degraded()
    }

    /// Whether exactly this is said of the release already, as far as the loop
    /// says it.
    pub fn says(&self, said: &[Condition]) -> bool {
        self.state.says(said)
    }

    /// What people say of the release without git. Where the record is a ConfigMap,
    /// the approval is an annotation of its namespace.
    pub fn orders(&self) -> Orders {
        let orders = self.state.orders();
        let Store::ConfigMap { namespace } = self.state.store() else {
            return orders;
        };
        let id = ObjectId::new("", "Namespace", None, namespace);
        let annotation = Orders::approval_annotation(self.state.name());
        let live = self.observed.live_meta(&id);
        let approved = live.and_then(|live| live.annotations.get(&annotation));
        Orders {
            approved: approved.map(|digest| digest.trim().to_owned()),
            ..orders
        }
    }

    /// Whether carrying out a plan would write something, be it only the record.
    pub fn writes(&self, desired: &Desired, plan: &Plan) -> bool {
        match &plan.removal {
            Some(outgoing) => removal::writes(desired, &self.observed, plan, outgoing),
            None => record::writes(desired, &self.observed, plan),
        }
    }
}

/// Whether every secret object has the digest that will be written.
fn is_keyed(desired: &Desired) -> bool {
    desired
        .digests
        .values()
        .all(|digest| *digest != DesiredDigest::Unkeyed)
}
