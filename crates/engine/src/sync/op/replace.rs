//! Replacement of pods of a `DaemonSet` whose controller does not replace them itself.
//!
//! Pods are deleted as the controller would do it: by name and uid, and only pods that it owns. It
//! creates the new ones.

use std::time::Duration;

use pleach_formats::sequence::Count;
use pleach_model::object::ObjectId;
use pleach_planner::plan::{Deletion, Step};
use tokio::time::Instant;

use super::{Operator, failure};
use crate::sync::{
    daemon::Daemon,
    report::{Failure, FailureKind},
    wait::Since,
};
use pleach_cluster::{Class, DeleteOptions, ResourcePath};

/// Interval between reads while the controller has not observed the latest spec.
const PAUSE: Duration = Duration::from_millis(200);

impl Operator<'_> {
    /// Replaces pods until this many run the current revision. Pods that a previous run replaced
    /// count.
    pub(super) async fn replace(
        &self,
        step: &Step,
        pods: Count,
        started: Instant,
    ) -> Result<(), Failure> {
        let daemon = self.daemon(step, started).await?;
        let updated = daemon.updated.iter();
        let since = Since {
            restarts: updated.map(|pod| (pod.uid.clone(), pod.restarts)).collect(),
            ..Since::default()
        };
        self.record(step, started, since);
        let cluster = self.cluster_for(step, started);
        let path = ResourcePath::namespaced("v1", "Pod", "pods");
        let journal = self.journal_writer.journal().await;
        let journaled_holds = journal.overlays.iter();
        let journaled_holds =
            journaled_holds.filter(|(_, journaled)| journaled.object == step.object);
        for pod in daemon.next(pods.of(daemon.desired)) {
            let namespace = step.object.namespace.as_deref();
            let id = ObjectId::new("", "Pod", namespace, &pod.name);
            let deletion = journaled_holds
                .clone()
                .find_map(|hold| Deletion::of_exchanged_pod(hold, &pod.metadata))
                .ok_or_else(|| not_on_delete(&id))?;
            let options = DeleteOptions {
                uid: Some(deletion.uid()),
                resource_version: deletion.resource_version(),
                propagation: deletion.propagation(),
                dry_run: false,
            };
            match cluster.delete(&path, &id, &options).await {
                // Another pod has the name by now.
                Err(error) if matches!(error.class(), Some(Class::PreconditionFailed(_))) => {}
                deleted => drop(deleted.map_err(|error| failure(&error))?),
            }
        }
        Ok(())
    }

    /// Returns the `DaemonSet` once its controller has observed it.
    async fn daemon(&self, step: &Step, started: Instant) -> Result<Daemon, Failure> {
        let deadline = started + Duration::try_from(step.deadline).unwrap_or_default();
        loop {
            let cluster = self.cluster_for(step, started);
            let read = Daemon::read(&cluster, &step.object).await;
            match read.map_err(|error| failure(&error))? {
                Ok(daemon) => return Ok(daemon),
                Err(message) if Instant::now() >= deadline || self.stop.cause().is_some() => {
                    return Err(Failure::new(FailureKind::NotReady, message));
                }
                Err(_) => self.pause(step, PAUSE).await,
            }
        }
    }
}

/// Builds the failure for a rollout that is not suspended. Its controller would replace all pods
/// itself.
fn not_on_delete(pod: &ObjectId) -> Failure {
    let message =
        format!("{pod} is not replaced: the journal does not record the rollout as suspended");
    Failure::new(FailureKind::Conflict, message)
}
