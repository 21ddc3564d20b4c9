//! JSON patches that test the resourceVersion.

use pleach_domain::object::managers;
use pleach_domain::plan::{NonSecret, Step};
use tokio::time::Instant;

use super::{Operator, failure};
use crate::engine::sync::report::{Failure, FailureKind};
use crate::io::cluster::{Patch, PatchOptions};

impl Operator<'_> {
    /// Sends the patch.
    pub(super) async fn patch(
        &self,
        step: &Step,
        operations: &NonSecret,
        subresource: Option<&str>,
        started: Instant,
    ) -> Result<(), Failure> {
        let id = &step.object;
        let path = self.paths.of_kind(&id.group_kind()).ok_or_else(|| {
            Failure::new(
                FailureKind::Cluster,
                format!("{} is not served by the cluster", id.group_kind()),
            )
        })?;
        let options = PatchOptions {
            manager: managers::OVERLAY,
            dry_run: false,
            subresource,
        };
        self.cluster_for(step, started)
            .patch(&path, id, &Patch::Json(operations.0.clone()), &options)
            .await
            .map(drop)
            .map_err(|error| failure(&error))
    }
}
