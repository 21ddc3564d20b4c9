//! Gates: journaling, closing and lifting.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::time::Duration;

use bytes::Bytes;
use jiff::Timestamp;
use pleach_formats::gate::{Gate, binding, is_of};
use pleach_model::object::{NonSecret, ObjectId, canonical_json, managers};
use pleach_planner::plan::{Deletion, Step};
use pleach_state::overlay::{Journaled, OnFailure, OverlayId, OverlayKind, State};
use serde_json::{Value, json};
use tokio::time::Instant;

use super::{Operator, failure, overlay::unrecorded};
use crate::sync::report::{Failure, FailureKind};
use pleach_cluster::{
    ApplyOptions, Class, Cluster, ClusterError, DeleteOptions, Patch, PatchOptions,
};

/// Interval between checks for expired gates.
const EXPIRY: Duration = Duration::from_secs(1);
/// Longest backoff before another attempt to lift a gate.
const LONGEST: Duration = Duration::from_mins(1);

impl Operator<'_> {
    /// Closes a gate: journal first, then the policy, then the binding that puts it in force. An
    /// existing gate is updated, and its time restarts.
    pub(super) async fn close(
        &self,
        step: &Step,
        gate: &Gate,
        started: Instant,
    ) -> Result<(), Failure> {
        let overlay = self.overlay_of(step)?;
        let cluster = self.cluster_for(step, started);
        let us = if gate.exempts_us {
            let us = cluster.whoami().await;
            Some(us.map_err(|error| failure(&error))?.username)
        } else {
            None
        };
        let since = Timestamp::now();
        let id = &overlay.id;
        let set = overlay.content.written();
        self.journal_writer
            .record(|journal| {
                let journaled = journal
                    .overlays
                    .entry(id.clone())
                    .or_insert_with(|| Journaled {
                        kind: Some(OverlayKind::Gate),
                        object: overlay.object.clone(),
                        uid: String::new(),
                        state: State::Intended,
                        set: set.clone(),
                        original: NonSecret(Value::Null),
                        owners: Vec::new(),
                        on_failure: overlay.on_failure.clone(),
                        until: overlay.until.to_string(),
                        since,
                        attempt: self.journal_writer.version().to_owned(),
                    });
                journaled.set = set;
                journaled.on_failure = overlay.on_failure.clone();
                journaled.until = overlay.until.to_string();
                journaled.since = since;
                self.journal_writer
                    .version()
                    .clone_into(&mut journaled.attempt);
            })
            .await
            .map_err(|error| unrecorded(&error))?;
        let policy = gate.policy(us.as_deref(), since);
        let policy = self
            .make_half(&cluster, gate, (&gate.id(), &policy))
            .await?;
        let uid = policy["metadata"]["uid"].as_str().unwrap_or_default();
        self.journal_writer
            .record(|journal| {
                if let Some(journaled) = journal.overlays.get_mut(id) {
                    uid.clone_into(&mut journaled.uid);
                    journaled.state = State::On;
                }
            })
            .await
            .map_err(|error| unrecorded(&error))?;
        let body = gate.binding(since);
        let bound = binding(&gate.id());
        self.make_half(&cluster, gate, (&bound, &body)).await?;
        Ok(())
    }

    /// Lifts the gates of this run when they expire. `begun` is before the first step. The plan
    /// itself closes or lifts gates of a previous run. Never returns.
    pub(in crate::sync) async fn lift_expired(&self, begun: Timestamp) -> Infallible {
        let mut tried: BTreeMap<OverlayId, Tried> = BTreeMap::new();
        loop {
            let journal = self.journal_writer.journal().await;
            let now = Timestamp::now();
            for (id, journaled) in &journal.overlays {
                if journaled.since >= begun
                    && is_on_for_too_long(journaled, now)
                    && tried.get(id).is_none_or(Tried::is_due)
                    && let Some(step) = self.step_of(id)
                {
                    self.lift_late(step, id, journaled).await;
                    let tried = tried.entry(id.clone()).or_default();
                    *tried = tried.again();
                }
            }
            tokio::time::sleep(EXPIRY).await;
        }
    }

    async fn lift_late(&self, step: &Step, id: &OverlayId, journaled: &Journaled) {
        let message = match self.open(step, (id, journaled), Instant::now()).await {
            Ok(()) => format!(
                "gate {id} reached its time limit and was lifted before the change finished"
            ),
            Err(failure) => format!(
                "gate {id} exceeded its time limit and could not be lifted: {}",
                failure.message
            ),
        };
        self.warn(step, "gate-expired", &message);
    }

    /// Returns a step of the plan for a temporary change.
    fn step_of(&self, id: &OverlayId) -> Option<&Step> {
        let mut steps = self.plan.steps.iter();
        steps.find(|step| step.overlay.as_ref() == Some(id))
    }

    /// Creates or updates one half of a gate.
    async fn make_half(
        &self,
        cluster: &Cluster,
        gate: &Gate,
        (id, desired): (&ObjectId, &Value),
    ) -> Result<Value, Failure> {
        let place = self.path_of_kind(id)?;
        let body = Bytes::from(canonical_json(desired));
        let created = cluster
            .create(&place, id, body, &ApplyOptions::new(managers::OVERLAY))
            .await;
        match created {
            Ok(created) => return Ok(created.value),
            Err(error) if matches!(error.class(), Some(Class::AlreadyExists { .. })) => {}
            Err(error) => return Err(failure(&error)),
        }
        let live = cluster.get_id(&place, id).await;
        let live = live.map_err(|error| failure(&error))?;
        let Some(live) = live.filter(|live| is_of(live, &gate.release)) else {
            let message = format!("{id} exists and is not a gate of this release");
            return Err(
                Failure::new(FailureKind::Conflict, message).hint("delete it if it is not in use")
            );
        };
        let change = json!({
            "metadata": {
                "uid": live["metadata"]["uid"],
                "resourceVersion": live["metadata"]["resourceVersion"],
                "annotations": desired["metadata"]["annotations"],
            },
            "spec": desired["spec"],
        });
        let options = PatchOptions::new(managers::OVERLAY);
        let patched = cluster
            .patch(&place, id, &Patch::Merge(change), &options)
            .await;
        Ok(patched.map_err(|error| failure(&error))?.value)
    }

    /// Lifts a gate, starting with its binding. Leaves objects without a mark of this release
    /// alone.
    pub(super) async fn open(
        &self,
        step: &Step,
        (overlay, journaled): (&OverlayId, &Journaled),
        started: Instant,
    ) -> Result<(), Failure> {
        let cluster = self.cluster_for(step, started);
        for id in [binding(&journaled.object), journaled.object.clone()] {
            let place = self.path_of_kind(&id)?;
            let live = cluster.get_id(&place, &id).await;
            let Some(live) = live.map_err(|error| failure(&error))? else {
                continue;
            };
            let release = &self.desired.name;
            let Some(deletion) = Deletion::of_gate((overlay, journaled), release, &live) else {
                let message =
                    format!("{id} is no longer the gate that was closed; it is not deleted");
                self.warn(step, "gate-moved", &message);
                continue;
            };
            let options = DeleteOptions {
                uid: Some(deletion.uid()),
                resource_version: deletion.resource_version(),
                propagation: deletion.propagation(),
                dry_run: false,
            };
            let deleted: Result<_, ClusterError> = cluster.delete(&place, &id, &options).await;
            deleted.map_err(|error| failure(&error))?;
        }
        self.journal_writer
            .record(|journal| drop(journal.overlays.remove(overlay)))
            .await
            .map_err(|error| unrecorded(&error))
    }
}

/// Backoff of a gate that could not be lifted.
struct Tried {
    next: Instant,
    pause: Duration,
}

impl Default for Tried {
    fn default() -> Self {
        Self {
            next: Instant::now(),
            pause: EXPIRY,
        }
    }
}

impl Tried {
    fn is_due(&self) -> bool {
        Instant::now() >= self.next
    }

    /// Returns the backoff after another attempt. It grows, because each attempt is reported.
    fn again(&self) -> Self {
        Self {
            next: Instant::now() + self.pause,
            pause: (self.pause * 2).min(LONGEST),
        }
    }
}

fn is_on_for_too_long(journaled: &Journaled, now: Timestamp) -> bool {
    match &journaled.on_failure {
        OnFailure::Keep { max_age: Some(age) } => {
            journaled.is_gate() && now.duration_since(journaled.since) > *age
        }
        OnFailure::Keep { max_age: None } | OnFailure::Undo | OnFailure::UndoUnless { .. } => false,
    }
}
