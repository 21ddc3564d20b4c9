//! Deletions, limited to the incarnations that the planner granted.

use pleach_model::object::ObjectId;
use pleach_planner::plan::{Deletion, Grant, Step};
use tokio::time::Instant;

use super::{Operator, failure, overlay::unrecorded};
use crate::sync::{
    absent::confirmed_absent,
    report::{Failure, FailureKind},
};
use pleach_cluster::{Class, Cluster, ClusterError, DeleteOptions, Deleted, Failed, ResourcePath};

/// Limit on re-reads before a deletion of an object that changes all the time, such as the status
/// of a workload.
const ATTEMPTS: usize = 10;

impl Operator<'_> {
    /// Requests the deletion. The condition of the step waits for its end.
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
        self.note_unregistered(deletion).await?;
        Box::pin(self.unregister(step, started)).await?;
        let cluster = self.cluster_for(step, started);
        let deleted = match delete_as_seen(&cluster, &path, id, deletion).await? {
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

    /// Records the Service of registrations made by pods, if the Service moves to another
    /// namespace. A later run could not find it anymore.
    async fn note_unregistered(&self, deletion: &Deletion) -> Result<(), Failure> {
        let Grant::Registration { service } = deletion.because() else {
            return Ok(());
        };
        let here = Some(&service.namespace);
        let comes_elsewhere = self.manifests.keys().any(|id| {
            id.is("", "Service") && id.name == service.name && id.namespace.as_ref() != here
        });
        if !comes_elsewhere {
            return Ok(());
        }
        let recorded = self.journal_writer.record(|journal| {
            journal.unregistered.insert(service.clone());
        });
        recorded.await.map_err(|error| unrecorded(&error))
    }
}

/// Deletes the object at the version of the decision. After a newer write, it is checked again,
/// because it can belong to another release by now or be marked as retained.
pub(super) async fn delete_as_seen(
    cluster: &Cluster,
    path: &ResourcePath,
    id: &ObjectId,
    deletion: &Deletion,
) -> Result<Result<Deleted, ClusterError>, Failure> {
    let mut version = deletion.seen_version().map(str::to_owned);
    let mut attempts = 0;
    loop {
        let options = DeleteOptions {
            uid: Some(deletion.uid()),
            resource_version: version.as_deref(),
            propagation: deletion.propagation(),
            dry_run: false,
        };
        let deleted = cluster.delete(path, id, &options).await;
        match deleted {
            Err(error) if is_moved(&error) && attempts < ATTEMPTS => {}
            deleted => return Ok(deleted),
        }
        attempts += 1;
        let read = cluster.get_id(path, id).await;
        let Some(now) = read.map_err(|error| failure(&error))? else {
            return Ok(Ok(Deleted::Absent));
        };
        // The uid precondition rejects another incarnation.
        let is_it = now["metadata"]["uid"] == deletion.uid();
        if is_it && let Some(why) = deletion.objection(&id.group_kind(), &now) {
            return Err(spared(&why));
        }
        version = now["metadata"]["resourceVersion"]
            .as_str()
            .map(str::to_owned);
    }
}

/// Builds the failure for an object that changed since its deletion was planned.
fn spared(why: &str) -> Failure {
    let message = format!("not deleted, as it changed since the plan was made: {why}");
    Failure::new(FailureKind::Conflict, message)
        .hint("run the command again: the next plan leaves out objects that stay")
}

/// Returns whether the object is no longer at the version of the precondition.
fn is_moved(error: &ClusterError) -> bool {
    matches!(
        error.class(),
        Some(Class::PreconditionFailed(Failed::ResourceVersion))
    )
}
