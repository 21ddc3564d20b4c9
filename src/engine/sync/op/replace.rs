//! Pods of a `DaemonSet` whose controller leaves their replacement to others.
//!
//! They are deleted as its controller would: by name and uid, and only pods that
//! it owns. It makes the new ones.

use std::time::Duration;

use pleach_domain::object::ObjectId;
use pleach_domain::plan::{Deletion, Step};
use pleach_domain::repo::Count;
use tokio::time::Instant;

use super::{Operator, failure};
use crate::engine::sync::daemon::Daemon;
use crate::engine::sync::report::{Failure, FailureKind};
use crate::engine::sync::wait::Since;
use crate::io::cluster::{Class, DeleteOptions, ResourcePath};

/// Pause between two looks at a controller that has not seen a change.
const PAUSE: Duration = Duration::from_millis(200);

impl Operator<'_> {
    /// Replaces pods until so many run what their `DaemonSet` says now. Those
    /// that a former run replaced count.
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
        let journal = self.ledger.journal().await;
        let held = journal.overlays.iter();
        let held = held.filter(|(_, journaled)| journaled.object == step.object);
        for pod in daemon.next(pods.of(daemon.desired)) {
            let namespace = step.object.namespace.as_deref();
            let id = ObjectId::new("", "Pod", namespace, &pod.name);
            let deletion = held
                .clone()
                .find_map(|hold| Deletion::of_exchanged_pod(hold, &pod.metadata))
                .ok_or_else(|| not_held(&id))?;
            let options = DeleteOptions {
                uid: Some(deletion.uid()),
                resource_version: deletion.resource_version(),
                propagation: deletion.propagation(),
                dry_run: false,
            };
            match cluster.delete(&path, &id, &options).await {
                // Another pod has its name by now.
                Err(error) if matches!(error.class(), Some(Class::PreconditionFailed(_))) => {}
                deleted => drop(deleted.map_err(|error| failure(&error))?),
            }
        }
        Ok(())
    }

    /// The `DaemonSet` as its controller has seen it.
    async fn daemon(&self, step: &Step, started: Instant) -> Result<Daemon, Failure> {
        let deadline = started + Duration::try_from(step.deadline).unwrap_or_default();
        loop {
            let cluster = self.cluster_for(step, started);
            let read = Daemon::read(&cluster, &step.object).await;
            match read.map_err(|error| failure(&error))? {
                Ok(daemon) => return Ok(daemon),
                Err(message) if Instant::now() >= deadline || self.stop.asked().is_some() => {
                    return Err(Failure::new(FailureKind::NotReady, message));
                }
                Err(_) => self.pause(step, PAUSE).await,
            }
        }
    }
}

/// Without the hold its controller would replace the pods itself, all of them.
fn not_held(pod: &ObjectId) -> Failure {
    let message =
        format!("{pod} is not replaced: the journal does not say that the roll-out is held");
    Failure::new(FailureKind::Conflict, message)
}
