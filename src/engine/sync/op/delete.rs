//! Deletions: only what the planner granted, only this incarnation.

use pleach_domain::order::registered_services;
use pleach_domain::plan::{Deletion, Grant, Step};
use tokio::time::Instant;

use super::{Operator, failure};
use crate::engine::sync::absent::confirmed_absent;
use crate::engine::sync::report::{Failure, FailureKind};
use crate::io::cluster::{
    Class, Cluster, ClusterError, DeleteOptions, Deleted, Failed, ResourcePath,
};

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
        let cluster = self.cluster_for(step, started);
        let deleted = match cluster.delete(&path, id, &options).await {
            Err(error) if is_moved(&error) => {
                let again = self
                    .still_points_there(&cluster, &path, step, deletion)
                    .await?;
                let Some(resource_version) = again else {
                    return Err(failure(&error));
                };
                let options = DeleteOptions {
                    resource_version: Some(&resource_version),
                    ..options
                };
                cluster.delete(&path, id, &options).await
            }
            Err(error) if error.class() == Some(&Class::KindNotServed) => {
                let kinds = [id.group_kind()].into();
                match confirmed_absent(&cluster, kinds).await {
                    Ok(absent) if !absent.is_empty() => Ok(Deleted::Absent),
                    _ => Err(error),
                }
            }
            other => other,
        };
        match deleted.map_err(|error| failure(&error))? {
            Deleted::Gone | Deleted::Absent => {
                let mut gone = self
                    .gone
                    .lock()
                    .unwrap_or_else(std::sync::PoisonError::into_inner);
                gone.insert(step.id);
            }
            Deleted::Accepted { .. } => {}
        }
        Ok(())
    }

    /// Somebody wrote to a registration since the plan was made; an APIService
    /// is written whenever its availability flips. It may still go if it is the
    /// same object and still points only at the Service that goes.
    async fn still_points_there(
        &self,
        cluster: &Cluster,
        path: &ResourcePath,
        step: &Step,
        deletion: &Deletion,
    ) -> Result<Option<String>, Failure> {
        let Grant::Registration { service } = deletion.because() else {
            return Ok(None);
        };
        let read = cluster
            .get_id(path, &step.object)
            .await
            .map_err(|error| failure(&error))?;
        Ok(read
            .filter(|value| {
                value["metadata"]["uid"] == deletion.uid()
                    && registered_services(&step.object.group_kind(), value) == [service.clone()]
            })
            .and_then(|value| {
                value["metadata"]["resourceVersion"]
                    .as_str()
                    .map(str::to_owned)
            }))
    }
}

/// Whether the version in the precondition is no longer that of the object.
fn is_moved(error: &ClusterError) -> bool {
    matches!(
        error.class(),
        Some(Class::PreconditionFailed(Failed::ResourceVersion))
    )
}
