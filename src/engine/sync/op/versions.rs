//! Records of owners that name a version at which the server cannot read what is
//! applied.
//!
//! The server merges what is applied into what each owner has, at the version that
//! the owner wrote it at. Where nothing converts between the versions of a kind, a
//! field that only the newer one has stops every apply, until the record names that
//! version.

use pleach_domain::diff::ownership::{all_at_with, owned_by};
use pleach_domain::object::managers;
use pleach_domain::plan::Step;
use serde_json::json;

use super::migrate::is_passing;
use super::{Operator, required_uid};
use crate::io::cluster::{Class, Cluster, ClusterError, Patch, PatchOptions, ResourcePath};

/// Writes by others between our read and our patch after which we give up.
const ATTEMPTS: usize = 10;

impl Operator<'_> {
    /// Sets the whole record of owners to the version that is applied, and takes out
    /// the defaults that the server notes as ours with that. False where there is
    /// nothing to set, or the object is not the one that was planned for.
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
                // Ours whose answer was lost, or somebody else's.
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
