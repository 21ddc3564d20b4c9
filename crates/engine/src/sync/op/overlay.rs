//! Temporary changes: journaling, applying and reverting.

use std::collections::BTreeSet;

use jiff::Timestamp;
use pleach_fields::diff::{locate, ownership};
use pleach_formats::gate::lifted_by;
use pleach_model::finding::{Finding, Kind};
use pleach_model::object::{DesiredDigest, FieldPath, NonSecret, ObjectId, annotations, managers};
use pleach_planner::observe::FieldConflict;
use pleach_planner::plan::{Body, Op, Overlay, Precondition, Step};
use pleach_state::overlay::{
    Journaled, OnFailure, OverlayContent, OverlayId, OverlayKind, State, field_owners, fields,
    project, restore_owners, revert,
};
use serde_json::{Value, json};
use tokio::time::Instant;

use super::{Operator, failure, required_uid};
use crate::sync::{
    error::SyncError,
    events::EventKind,
    report::{Failure, FailureKind, Standing, SyncResult},
};
use pleach_cluster::{Class, Cluster, ClusterError, Failed, Patch, PatchOptions, ResourcePath};

/// Number of write races after which a patch fails.
const ATTEMPTS: usize = 10;

impl Operator<'_> {
    /// Applies a temporary change. The journal contains the replaced values first.
    pub(super) async fn set(
        &self,
        step: &Step,
        patch: &NonSecret,
        started: Instant,
    ) -> Result<(), Failure> {
        let overlay = self.overlay_of(step)?;
        if let OverlayContent::Binding { body } = &overlay.content {
            return self.make(step, (overlay, body), started).await;
        }
        let (place, cluster) = self.place_of(step, started)?;
        let id = &step.object;
        for attempt in 1.. {
            let live = cluster.get_id(&place, id).await;
            let live = live
                .map_err(|error| failure(&error))?
                .filter(|live| required_uid(step).is_none_or(|uid| live["metadata"]["uid"] == uid))
                .ok_or_else(moved)?;
            let now = project(&patch.0, &live);
            let known = self.journal_writer.journal().await;
            let known = known.overlays.get(&overlay.id);
            if known.is_some_and(|known| known.state == State::On && known.set.0 == now) {
                return Ok(());
            }
            // A revert restores the values at the time of the change, not those at an earlier
            // attempt.
            if known.is_none_or(|known| known.is_overtaken(&live)) {
                self.begin((overlay, patch), &live, now.clone()).await?;
            }
            let written = if now == patch.0 {
                // Our own write, which lost its answer.
                Ok(live)
            } else {
                let mut change = patch.0.clone();
                fence(&mut change, &live);
                self.send((&cluster, &place), id, &live, &Patch::Merge(change))
                    .await
            };
            match written {
                Ok(answer) => {
                    let set = NonSecret(project(&patch.0, &answer));
                    let recorded = self.journal_writer.record(|journal| {
                        if let Some(journaled) = journal.overlays.get_mut(&overlay.id) {
                            journaled.state = State::On;
                            journaled.set = set;
                        }
                    });
                    return recorded.await.map_err(|error| unrecorded(&error));
                }
                Err(error) if is_stale(&error) && attempt < ATTEMPTS => {}
                Err(error) => return Err(failure(&error)),
            }
        }
        Ok(())
    }

    /// Journals the pending change with the current values.
    async fn begin(
        &self,
        (overlay, patch): (&Overlay, &NonSecret),
        live: &Value,
        now: Value,
    ) -> Result<(), Failure> {
        let metadata = &live["metadata"];
        let journaled = Journaled {
            kind: Some(OverlayKind::Patch),
            object: overlay.object.clone(),
            uid: metadata["uid"].as_str().unwrap_or_default().to_owned(),
            state: State::Intended,
            set: patch.clone(),
            original: NonSecret(now),
            owners: field_owners(metadata, &fields(&patch.0)),
            on_failure: overlay.on_failure.clone(),
            until: overlay.until.to_string(),
            since: Timestamp::now(),
            attempt: self.journal_writer.version().to_owned(),
        };
        let id = overlay.id.clone();
        self.journal_writer
            .record(|journal| drop(journal.overlays.insert(id, journaled)))
            .await
            .map_err(|error| unrecorded(&error))
    }

    /// Reverts a temporary change as far as we still own it, by restoring previous values and field
    /// owners. A member whose new manifest is already applied gets the values of the manifest.
    pub(super) async fn lift(
        &self,
        step: &Step,
        id: &OverlayId,
        started: Instant,
    ) -> Result<(), Failure> {
        let known = self.journal_writer.journal().await;
        let Some(journaled) = known.overlays.get(id) else {
            // It was never applied.
            return Ok(());
        };
        match journaled.kind() {
            OverlayKind::Gate => return self.open(step, (id, journaled), started).await,
            OverlayKind::Binding => return self.unmake(step, (id, journaled), started).await,
            OverlayKind::Patch => {}
        }
        let (place, cluster) = self.place_of(step, started)?;
        for attempt in 1.. {
            let live = cluster.get_id(&place, &journaled.object).await;
            let live = live.map_err(|error| failure(&error))?.filter(|live| {
                let metadata = &live["metadata"];
                metadata["uid"] == journaled.uid.as_str()
                    && !metadata["deletionTimestamp"].is_string()
            });
            let Some(live) = live else {
                self.warn(
                    step,
                    "overlay-gone",
                    "the temporarily changed object is gone; there is nothing to revert",
                );
                break;
            };
            match self
                .revert(step, journaled, (&cluster, &place), &live)
                .await
            {
                Ok(is_ours) => {
                    if is_ours {
                        self.apply_again(step, id, journaled, started).await?;
                    }
                    break;
                }
                Err(error) if is_stale(&error) && attempt < ATTEMPTS => {}
                Err(error) => return Err(failure(&error)),
            }
        }
        self.journal_writer
            .record(|journal| drop(journal.overlays.remove(id)))
            .await
            .map_err(|error| unrecorded(&error))
    }

    /// Restores values and field owners. Returns whether the object is a member whose new manifest
    /// is already applied.
    async fn revert(
        &self,
        step: &Step,
        journaled: &Journaled,
        (cluster, place): (&Cluster, &ResourcePath),
        live: &Value,
    ) -> Result<bool, ClusterError> {
        let id = &journaled.object;
        let target = self.target(id, live);
        let owned = ownership::owned_by(&live["metadata"], managers::OVERLAY);
        let keeps = |field: &FieldPath| {
            let target = target.as_ref();
            target.is_some_and(|target| locate::find(target, field).is_some())
        };
        let mut taken = revert(journaled, live, &owned, &keeps);
        let mut now = live.clone();
        if taken.patch != json!({}) {
            fence(&mut taken.patch, live);
            let patch = Patch::Merge(taken.patch);
            now = self.send((cluster, place), id, live, &patch).await?;
        }
        let adopted = self.adopted(id);
        let owners: Vec<_> = journaled
            .owners
            .iter()
            .filter(|owner| target.is_none() || !adopted.contains(owner.manager.as_str()))
            .cloned()
            .collect();
        if let Some(entries) = restore_owners(&now["metadata"], &taken.fields, &owners) {
            let patch = json!([
                {"op": "test", "path": "/metadata/resourceVersion", "value": now["metadata"]["resourceVersion"]},
                {"op": "replace", "path": "/metadata/managedFields", "value": entries},
            ]);
            self.send((cluster, place), id, live, &Patch::Json(patch))
                .await?;
        }
        if !taken.moved.is_empty() {
            let fields: Vec<String> = taken.moved.iter().map(ToString::to_string).collect();
            let message = format!(
                "{} was changed by another client in the meantime and is not reverted",
                fields.join(", ")
            );
            self.warn(step, "overlay-moved", &message);
        }
        Ok(target.is_some())
    }

    /// Returns the manifest of a member, if it was already applied.
    fn target(&self, id: &ObjectId, live: &Value) -> Option<Value> {
        let manifest = self.manifests.get(id)?;
        let Some(DesiredDigest::Known(digest)) = self.desired.digests.get(id) else {
            return None;
        };
        let applied = &live["metadata"]["annotations"][annotations::DESIRED];
        (*applied == digest.to_string()).then(|| self.desired.ignored.lean(manifest).value())
    }

    /// Returns the field managers whose fields this plan takes over.
    fn adopted(&self, id: &ObjectId) -> BTreeSet<&str> {
        let steps = self.plan.steps.iter();
        steps
            .filter(|step| step.object == *id)
            .filter_map(|step| match &step.op {
                Op::Own(own) => Some(own.from.iter().map(String::as_str)),
                _ => None,
            })
            .flatten()
            .collect()
    }

    /// Applies the manifest without the temporary change.
    async fn apply_again(
        &self,
        step: &Step,
        id: &OverlayId,
        journaled: &Journaled,
        started: Instant,
    ) -> Result<(), Failure> {
        let digest = self.desired.digests.get(&step.object).copied();
        let body = Body::Rendered(digest.unwrap_or(DesiredDigest::Unkeyed));
        let apply = Step {
            require: vec![Precondition::Uid(journaled.uid.clone())],
            overlay: Some(id.clone()),
            ..step.clone()
        };
        let any_value = FieldConflict {
            manager: managers::OVERLAY.to_owned(),
            api_version: None,
            field: String::new(),
        };
        self.apply(&apply, &body, (&[any_value], &[]), started)
            .await
    }

    /// Merges active temporary changes into an object. Returns whether there are any.
    pub(super) async fn overlaid(&self, step: &Step, value: &mut Value) -> bool {
        let journal = self.journal_writer.journal().await;
        let mut is_overlaid = false;
        for (id, journaled) in journal.overlays_of(&step.object) {
            if step.overlay.as_ref() != Some(id) {
                pleach_state::overlay::merge(value, &journaled.set.0);
                is_overlaid = true;
            }
        }
        is_overlaid
    }

    /// Removes the temporary changes of a deleted object from the journal.
    pub(super) async fn forget_overlays(&self, id: &ObjectId) -> Result<(), Failure> {
        self.journal_writer
            .record(|journal| journal.overlays.retain(|_, one| one.object != *id))
            .await
            .map_err(|error| unrecorded(&error))
    }

    /// Restarts the pods of a workload, unless it already has this mark.
    pub(super) async fn restart(
        &self,
        step: &Step,
        (key, mark): (&str, &str),
        started: Instant,
    ) -> Result<(), Failure> {
        let (place, cluster) = self.place_of(step, started)?;
        let change = json!({
            "metadata": { "uid": required_uid(step) },
            "spec": { "template": { "metadata": { "annotations": { key: mark } } } },
        });
        let hidden = self.hidden_of(&step.object);
        let options = PatchOptions {
            hides: hidden.as_ref(),
            ..PatchOptions::new(managers::RESTART)
        };
        let patch = Patch::Merge(change);
        let patched = cluster.patch(&place, &step.object, &patch, &options).await;
        let answer = patched.map_err(|error| failure(&error))?.value;
        self.restarted(step, &answer, started);
        Ok(())
    }

    /// Ends temporary changes by their rules after an unfinished run. Reports those that stay and
    /// those that were reverted.
    pub(in crate::sync) async fn finish(&self, result: &mut SyncResult) {
        if result.is_success() {
            // Run-once jobs that left git are forgotten. If the write fails, the next run repeats
            // it.
            let forgotten = self.journal_writer.record(|journal| {
                journal.runs.retain(|id, _| self.manifests.contains_key(id));
                journal.unregistered.clear();
            });
            if let Err(error) = forgotten.await {
                tracing::debug!(%error, "failed to remove finished entries from the journal");
            }
        }
        let journal = self.journal_writer.journal().await;
        for (id, journaled) in &journal.overlays {
            let stays = match &journaled.on_failure {
                OnFailure::Keep { .. } => true,
                OnFailure::Undo => false,
                OnFailure::UndoUnless { ready } => self.is_ready_successor(ready).await,
            };
            let mut trouble = None;
            if !stays {
                match self.lift_now(id, journaled).await {
                    Ok(()) => {
                        result.undone.insert(id.clone());
                        continue;
                    }
                    Err(failure) => trouble = Some(failure.message),
                }
            }
            result.standing.push(Standing {
                overlay: id.clone(),
                kind: journaled.kind(),
                object: journaled.object.clone(),
                rule: rule(journaled),
                trouble,
            });
        }
    }

    /// Returns whether an object has taken over, in this or an earlier run: it exists and is ready.
    /// False if it cannot be read.
    async fn is_ready_successor(&self, id: &ObjectId) -> bool {
        let Ok(place) = self.path_of_kind(id) else {
            return false;
        };
        let live = self.cluster.get_id(&place, id).await.ok().flatten();
        let rules = &self.desired.sequence.readiness;
        live.is_some_and(|live| rules.assess(&live).is_current())
    }

    async fn lift_now(&self, id: &OverlayId, journaled: &Journaled) -> Result<(), Failure> {
        let mut steps = self.plan.steps.iter();
        let own = steps.clone().find(|step| step.overlay.as_ref() == Some(id));
        let Some(step) = own.or_else(|| steps.find(|step| step.object == journaled.object)) else {
            return Err(Failure::new(
                FailureKind::Other,
                "the plan has no step for it",
            ));
        };
        let step = Step {
            op: Op::Lift,
            overlay: Some(id.clone()),
            require: Vec::new(),
            until: None,
            ..step.clone()
        };
        self.lift(&step, id, Instant::now()).await
    }

    pub(super) fn overlay_of(&self, step: &Step) -> Result<&Overlay, Failure> {
        self.plan
            .overlay_of(step)
            .ok_or_else(|| Failure::new(FailureKind::Other, "the plan has no such overlay"))
    }

    pub(super) fn place_of(
        &self,
        step: &Step,
        started: Instant,
    ) -> Result<(ResourcePath, Cluster), Failure> {
        let place = self.path_of_kind(&step.object)?;
        Ok((place, self.cluster_for(step, started)))
    }

    /// Returns the path of the kind of an object.
    pub(super) fn path_of_kind(&self, id: &ObjectId) -> Result<ResourcePath, Failure> {
        let kind = id.group_kind();
        self.paths.of_kind(&kind).ok_or_else(|| {
            let message = format!("{kind} is not served by the cluster");
            Failure::new(FailureKind::Cluster, message)
        })
    }

    async fn send(
        &self,
        (cluster, place): (&Cluster, &ResourcePath),
        id: &ObjectId,
        live: &Value,
        patch: &Patch,
    ) -> Result<Value, ClusterError> {
        let options = PatchOptions {
            hides: self.hidden(id, live),
            ..PatchOptions::new(managers::OVERLAY)
        };
        Ok(cluster.patch(place, id, patch, &options).await?.value)
    }

    pub(super) fn warn(&self, step: &Step, code: &str, message: &str) {
        let finding = Finding::warning(Kind::Cluster, code, message);
        self.events
            .send(EventKind::Warning(finding.on(step.object.clone())));
    }
}

/// Describes when a change is reverted, with the command that does it now if there is one.
fn rule(journaled: &Journaled) -> String {
    let rule = journaled.on_failure.explain();
    if journaled.is_gate() {
        return format!("{rule}; `{}` lifts it now", lifted_by(&journaled.object));
    }
    rule
}

/// Binds a merge patch to the uid and version of the object that was read.
fn fence(patch: &mut Value, live: &Value) {
    let metadata = &mut patch["metadata"];
    if !metadata.is_object() {
        // The journal can contain anything if another client wrote it.
        *metadata = json!({});
    }
    for key in ["uid", "resourceVersion"] {
        metadata[key] = live["metadata"][key].clone();
    }
}

/// Returns whether another client wrote between our read and our patch.
fn is_stale(error: &ClusterError) -> bool {
    matches!(
        error.class(),
        Some(
            Class::PreconditionFailed(Failed::Test | Failed::ResourceVersion)
                | Class::StaleResourceVersion
                | Class::Conflict
        )
    )
}

fn moved() -> Failure {
    let message = "the object was replaced since the plan was made";
    Failure::new(FailureKind::Conflict, message)
        .hint("run the command again to plan from its current state")
}

/// Builds the failure for an unwritten journal. The change that it describes is not made.
pub(super) fn unrecorded(error: &SyncError) -> Failure {
    let kind = match error.kind() {
        Kind::Cluster => FailureKind::Cluster,
        Kind::Conflict => FailureKind::Conflict,
        Kind::Policy => FailureKind::Policy,
        Kind::Repository => FailureKind::Refused,
    };
    Failure {
        hint: error.hint(),
        ..Failure::new(kind, format!("the journal could not be written: {error}"))
    }
}
