//! Deletions: only what the planner granted, only this incarnation.

use pleach_domain::plan::{Deletion, Step};
use tokio::time::Instant;

use super::{Operator, failure};
use crate::engine::sync::report::{Failure, FailureKind};
use crate::io::cluster::{DeleteOptions, Deleted};

impl Operator<'_> {
    /// Asks for the deletion; its end is waited for by the step's condition.
    pub(super) async fn delete(
        &self,
        step: &Step,
        deletion: &Deletion,
        started: Instant,
    ) -> Result<(), Failure> {
        let id = &step.object;
        let recorded = {
            let inventory = self
                .inventory
                .lock()
                .unwrap_or_else(std::sync::PoisonError::into_inner);
            inventory
                .entries
                .get(id)
                .map(|entry| entry.api_version.clone())
                .unwrap_or_default()
        };
        let path = self.paths.of_member(id, &recorded).ok_or_else(|| {
            Failure::new(
                FailureKind::Cluster,
                format!("{} is not served by the cluster", id.group_kind()),
            )
        })?;
        if id.is("", "Namespace") {
            self.ensure_empty(id).await?;
        }
        let options = DeleteOptions {
            uid: Some(deletion.uid()),
            resource_version: deletion.resource_version(),
            propagation: deletion.propagation(),
            dry_run: false,
        };
        match self
            .cluster_for(step, started)
            .delete(&path, id, &options)
            .await
        {
            Ok(Deleted::Gone | Deleted::Absent | Deleted::Accepted { .. }) => Ok(()),
            Err(error) => Err(failure(&error)),
        }
    }
}
