//! One release, once: observe, plan, carry out, record.

mod absent;
mod access;
mod body;
mod contents;
mod error;
pub mod events;
mod hub;
mod observe;
mod op;
mod paths;
mod reach;
mod record;
mod removal;
pub mod report;
mod scheduler;
pub mod state;
mod wait;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use pleach_domain::inventory::Inventory;
use pleach_domain::object::labels;
use pleach_domain::observe::{DesiredDigest, Grants, Observed};
use pleach_domain::order::StageName;
use pleach_domain::plan::{Desired, Plan};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

pub use contents::look_into_namespaces;
pub use error::SyncError;
pub use observe::{Observation, cluster_id, is_cluster, observe, recognize};
pub use removal::review_end;

use crate::io::cluster::Cluster;
use events::{EventKind, Events, Verb};
use report::SyncResult;

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

/// Carries out a plan that was made from this observation, and records it.
///
/// Nothing is written for a plan without steps whose record is up to date. The
/// superset of the inventory is written before the first change it describes,
/// and shrunk after confirmed deletions.
pub async fn carry_out(
    cluster: &Cluster,
    desired: &mut Desired,
    observation: Observation,
    plan: &Plan,
    events: &Events,
    cancel: &CancellationToken,
) -> Result<SyncResult, SyncError> {
    if let Some(outgoing) = &plan.removal {
        let removing = removal::carry_out(
            cluster,
            desired,
            observation,
            plan,
            outgoing,
            events,
            cancel,
        );
        return Box::pin(removing).await;
    }
    let Observation {
        observed,
        mut state,
    } = observation;
    let was_ready = state.record().ready;
    if !record::writes(desired, &observed, plan) {
        return Ok(SyncResult {
            ending: record::Ending::of_nothing(plan, was_ready),
            ..SyncResult::default()
        });
    }
    events.send(EventKind::Phase(Verb::Apply));
    state.prepare().await?;
    desired.digest_with(state.key());
    let attempt = record::attempt(desired);
    let superset = record::superset(desired, &observed, plan);
    if plan.has_steps() {
        let begun = attempt.clone();
        let (repository, bundle) = (desired.repository.clone(), desired.bundle.clone());
        let memory = desired.memory();
        state
            .commit(
                &superset,
                |installed| {
                    installed.repository = repository;
                    installed.bundle = bundle;
                    installed.applying = Some(begun);
                    installed.memory = Some(memory);
                    installed.removed = false;
                    installed.ready = false;
                },
                "Reconciling",
                "a plan is being carried out",
            )
            .await?;
    }
    let desired = &*desired;
    let operator = operator(cluster, desired, &observed, plan, events, superset);
    let mut result = scheduler::run(plan, &operator, events, CONCURRENCY, cancel).await;
    let mut inventory = operator
        .inventory
        .into_inner()
        .unwrap_or_else(PoisonError::into_inner);
    events.send(EventKind::Phase(Verb::Report));
    // What cannot be recorded makes the release unfinished: the next run tries again.
    let recorded = if result.is_success() && plan.verifies() {
        record::record_run_time_objects(cluster, desired, &observed, &mut inventory).await
    } else {
        Ok(())
    };
    let ending = record::Ending::of(plan, &result, was_ready, recorded.as_ref().err());
    let corrected = record::corrected(plan, &result);
    let finished = record::finish(
        &mut state,
        desired,
        &ending,
        (plan.has_steps(), &corrected),
        &inventory,
        attempt,
    )
    .await;
    // What was done is reported even if it could not be recorded.
    result.unrecorded = recorded.and(finished).err().map(Arc::new);
    result.ending = if result.unrecorded.is_some() {
        "failed"
    } else {
        ending.word(plan, was_ready)
    };
    events.send(EventKind::Finished(result.clone()));
    Ok(result)
}

impl Observation {
    /// Whether carrying out a plan would write something, be it only the record.
    pub fn writes(&self, desired: &Desired, plan: &Plan) -> bool {
        match &plan.removal {
            Some(outgoing) => removal::writes(desired, &self.observed, plan, outgoing),
            None => record::writes(desired, &self.observed, plan),
        }
    }
}

/// What carries out the steps of a plan; `superset` is the inventory that was
/// written before the first of them.
fn operator<'a>(
    cluster: &'a Cluster,
    desired: &'a Desired,
    observed: &Observed,
    plan: &'a Plan,
    events: &'a Events,
    superset: Inventory,
) -> op::Operator<'a> {
    op::Operator {
        cluster,
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
        paths: paths::Paths::new(&observed.discovery, &desired.manifests),
        hub: hub::Hub::new(
            cluster.clone(),
            format!("{}={}", labels::PART_OF, desired.apply_set()),
            reach::Reach::of(observed),
            plan,
        ),
        events,
        inventory: Mutex::new(superset),
        gone: Mutex::default(),
        places: Semaphore::new(CONCURRENCY),
        begun: Mutex::new(BTreeMap::new()),
    }
}

/// Whether every secret object has the digest that will be written.
fn is_keyed(desired: &Desired) -> bool {
    desired
        .digests
        .values()
        .all(|digest| *digest != DesiredDigest::Unkeyed)
}
