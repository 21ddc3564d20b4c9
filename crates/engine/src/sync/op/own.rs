//! Changes of field ownership by a JSON patch of the current object.

use pleach_fields::diff::ownership::{Transfer, Transferred};
use pleach_model::object::{Digest, canonical_json, managers};
use pleach_planner::plan::{Own, Step};
use serde_json::Value;
use tokio::time::Instant;

use super::{Operator, failure, required_uid};
use crate::sync::report::{Failure, FailureKind};
use pleach_cluster::{Class, ClusterError, Failed, Patch, PatchOptions};

/// Number of write races after which a patch fails. Frequent status writes must not stop an
/// upgrade.
const ATTEMPTS: usize = 10;

impl Operator<'_> {
    /// Reads the object and patches its `managedFields`. Retries after a write race.
    pub(super) async fn own(
        &self,
        step: &Step,
        own: &Own,
        started: Instant,
    ) -> Result<(), Failure> {
        let id = &step.object;
        let path = self.paths.of_kind(&id.group_kind()).ok_or_else(|| {
            Failure::new(
                FailureKind::Cluster,
                format!("{} is not served by the cluster", id.group_kind()),
            )
        })?;
        let cluster = self.cluster_for(step, started);
        for attempt in 1.. {
            let read = cluster.get_id(&path, id).await;
            let live = read
                .map_err(|error| failure(&error))?
                .filter(|live| required_uid(step).is_none_or(|uid| live["metadata"]["uid"] == uid))
                .ok_or_else(|| moved("the object was replaced"))?;
            let Some(transferred) = self.transfer(own, &live) else {
                // Already done by a request that lost its answer.
                return Ok(());
            };
            // Temporarily changed fields move between two field managers of pleach.
            let is_overlaid = self.plan.overlays.iter().any(|one| one.object == *id);
            let fields = Digest::of(&canonical_json(&transferred.fields.to_json()));
            if !is_overlaid && own.fields.is_some_and(|planned| planned != fields) {
                return Err(moved(
                    "another client wrote to the adopted fields or to fields of pleach",
                ));
            }
            let change = Patch::Json(transferred.patch);
            let options = PatchOptions {
                hides: self.hidden(id, &live),
                ..PatchOptions::new(managers::OVERLAY)
            };
            match cluster.patch(&path, id, &change, &options).await {
                Ok(_) => return Ok(()),
                Err(error) if is_stale(&error) && attempt < ATTEMPTS => {}
                Err(error) => return Err(failure(&error)),
            }
        }
        Ok(())
    }

    fn transfer(&self, own: &Own, live: &Value) -> Option<Transferred> {
        Transfer {
            ours: &self.manager,
            api_version: &own.api_version,
            from: &|manager| own.from.iter().any(|known| known == manager),
            reclaim: &own.reclaim,
            give_up: &own.give_up,
            strip: &own.strip,
        }
        .of(live)
    }
}

/// Returns whether another client wrote between our read and our patch.
pub(super) fn is_stale(error: &ClusterError) -> bool {
    matches!(
        error.class(),
        Some(
            Class::PreconditionFailed(Failed::Test | Failed::ResourceVersion)
                | Class::StaleResourceVersion
                | Class::Conflict
        )
    )
}

fn moved(message: &str) -> Failure {
    let message = format!("{message} since the plan was made");
    Failure::new(FailureKind::Conflict, message)
        .hint("run the command again to plan from its current state")
}
