//! Migration of `managedFields` entries at versions that the server cannot merge with the applied
//! one.
//!
//! On apply, the server converts the fields of each owner from the version of its last write.
//! Without conversion between the versions of a kind, a field that exists only in the newer one
//! fails every apply. It works again once the entries name that version.

use pleach_fields::diff::ownership::{all_at_with, owned_by};
use pleach_model::object::managers;
use pleach_planner::plan::Step;
use serde_json::json;

use super::migrate::is_passing;
use super::{Operator, required_uid};
use pleach_cluster::{Class, Cluster, ClusterError, Patch, PatchOptions, ResourcePath};

/// Number of write races after which a patch fails.
const ATTEMPTS: usize = 10;

impl Operator<'_> {
    /// Moves all `managedFields` entries to the applied version, and removes the defaults that the
    /// server thereby assigns to us. Returns false if nothing needs to change, or if the object was
    /// replaced since the plan.
    pub(super) async fn move_record(
        &self,
        cluster: &Cluster,
        step: &Step,
        path: &ResourcePath,
    ) -> Result<bool, ClusterError> {
        let id = &step.object;
        let mut before = None;
        for attempt in 1..=ATTEMPTS {
            let live = cluster.get_id(path, id).await?;
            let live = live
                .filter(|live| required_uid(step).is_none_or(|uid| live["metadata"]["uid"] == uid));
            let Some(live) = live else {
                return Ok(false);
            };
            let metadata = &live["metadata"];
            let before = before.get_or_insert_with(|| owned_by(metadata, managers::OVERLAY));
            let of_ours = (managers::OVERLAY, &*before);
            let Some(record) = all_at_with(metadata, &path.api_version, of_ours) else {
                // Done by our own write that lost its answer, or by another client.
                return Ok(attempt > 1);
            };
            let change = Patch::Json(json!([
                {"op": "test", "path": "/metadata/uid", "value": metadata["uid"]},
                {"op": "test", "path": "/metadata/resourceVersion", "value": metadata["resourceVersion"]},
                {"op": "replace", "path": "/metadata/managedFields", "value": record},
            ]));
            let options = PatchOptions {
                hides: self.hidden(id, &live),
                ..PatchOptions::new(managers::OVERLAY)
            };
            match cluster.patch(path, id, &change, &options).await {
                Ok(_) => {}
                Err(error) if error.class() == Some(&Class::NotFound) => return Ok(false),
                Err(error) if is_passing(&error) && attempt < ATTEMPTS => {}
                Err(error) => return Err(error),
            }
        }
        Ok(true)
    }
}
