//! Temporary bindings: journaling, creation and deletion.

use bytes::Bytes;
use jiff::Timestamp;
use pleach_model::object::{NonSecret, canonical_json, managers};
use pleach_planner::plan::{Deletion, Overlay, Step};
use pleach_state::overlay::{Journaled, OverlayId, OverlayKind, State, is_as_made};
use serde_json::Value;
use tokio::time::Instant;

use super::overlay::unrecorded;
use super::{Operator, failure};
use crate::sync::report::{Failure, FailureKind};
use pleach_cluster::{ApplyOptions, Class, DeleteOptions};

impl Operator<'_> {
    /// Creates a temporary binding. The journal contains its name first.
    pub(super) async fn make(
        &self,
        step: &Step,
        (overlay, body): (&Overlay, &NonSecret),
        started: Instant,
    ) -> Result<(), Failure> {
        let (place, cluster) = self.place_of(step, started)?;
        let id = &step.object;
        let known = self.journal_writer.journal().await;
        if !known.overlays.contains_key(&overlay.id) {
            let journaled = Journaled {
                kind: Some(OverlayKind::Binding),
                object: id.clone(),
                uid: String::new(),
                state: State::Intended,
                set: body.clone(),
                original: NonSecret(Value::Null),
                owners: Vec::new(),
                on_failure: overlay.on_failure.clone(),
                until: overlay.until.to_string(),
                since: Timestamp::now(),
                attempt: self.journal_writer.version().to_owned(),
            };
            let key = overlay.id.clone();
            self.journal_writer
                .record(|journal| drop(journal.overlays.insert(key, journaled)))
                .await
                .map_err(|error| unrecorded(&error))?;
        }
        let sent = Bytes::from(canonical_json(&body.0));
        let options = ApplyOptions::new(managers::OVERLAY);
        let live = match cluster.create(&place, id, sent, &options).await {
            Ok(applied) => applied.value,
            // Our own write that lost its answer, or an object of another client.
            Err(error) if matches!(error.class(), Some(Class::AlreadyExists { .. })) => {
                let read = cluster.get_id(&place, id).await;
                let live = read.map_err(|error| failure(&error))?;
                live.filter(|live| is_as_made(live, &body.0))
                    .ok_or_else(|| {
                        Failure::new(
                            FailureKind::Conflict,
                            "another client created an object of this name",
                        )
                    })?
            }
            Err(error) => return Err(failure(&error)),
        };
        let uid = uid(&live);
        self.journal_writer
            .record(|journal| {
                if let Some(journaled) = journal.overlays.get_mut(&overlay.id) {
                    journaled.uid = uid;
                    journaled.state = State::On;
                }
            })
            .await
            .map_err(|error| unrecorded(&error))
    }

    /// Deletes the incarnation that was created, and no other.
    pub(super) async fn unmake(
        &self,
        step: &Step,
        (id, journaled): (&OverlayId, &Journaled),
        started: Instant,
    ) -> Result<(), Failure> {
        let (place, cluster) = self.place_of(step, started)?;
        let object = &journaled.object;
        let read = cluster.get_id(&place, object).await;
        let live = read.map_err(|error| failure(&error))?;
        let deletion = live.and_then(|live| Deletion::of_temporary_binding((id, journaled), &live));
        if let Some(deletion) = deletion {
            let options = DeleteOptions {
                uid: Some(deletion.uid()),
                resource_version: deletion.resource_version(),
                propagation: deletion.propagation(),
                dry_run: false,
            };
            match cluster.delete(&place, object, &options).await {
                Ok(_) => {}
                // Another object has the name, so ours is gone.
                Err(error) if matches!(error.class(), Some(Class::PreconditionFailed(_))) => {}
                Err(error) => return Err(failure(&error)),
            }
        }
        self.journal_writer
            .record(|journal| drop(journal.overlays.remove(id)))
            .await
            .map_err(|error| unrecorded(&error))
    }
}

fn uid(live: &Value) -> String {
    let uid = live["metadata"]["uid"].as_str();
    uid.unwrap_or_default().to_owned()
}
