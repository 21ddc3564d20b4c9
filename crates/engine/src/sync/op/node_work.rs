//! Pods and Jobs on a node, beside its change.

use std::time::Duration;

use bytes::Bytes;
use pleach_formats::nodes::{NODE_UPGRADE, job_of};
use pleach_formats::preload::PRELOAD;
use pleach_formats::readiness::{Readiness, assess};
use pleach_model::finding::{Finding, Kind};
use pleach_model::object::{DesiredDigest, Manifest, ObjectId, canonical_json};
use pleach_planner::plan::Step;
use serde_json::Value;
use tokio::time::Instant;

use super::{Operator, failure, required_uid};
use crate::sync::{
    events::EventKind,
    report::{Failure, FailureKind},
    wait::{Progress, Symptoms},
};
use pleach_cluster::{ApplyOptions, Class, Cluster, DeleteOptions, Propagation, ResourcePath};

/// Interval between reads of a pod or Job.
const PAUSE: Duration = Duration::from_secs(1);

/// Time for deleting the pod after a failure.
const UNDOING: Duration = Duration::from_secs(30);

/// Work on one node.
pub(super) struct NodeWork<'a> {
    pub(super) operator: &'a Operator<'a>,
    pub(super) step: &'a Step,
    pub(super) uid: String,
    pub(super) started: Instant,
    pub(super) deadline: Instant,
    pub(super) progress: Progress<'a>,
}

impl<'a> NodeWork<'a> {
    pub(super) fn new(operator: &'a Operator<'a>, step: &'a Step, started: Instant) -> Self {
        Self {
            operator,
            step,
            uid: required_uid(step).unwrap_or_default().to_owned(),
            started,
            deadline: started + Duration::try_from(step.deadline).unwrap_or_default(),
            progress: Progress::new(&operator.waiter(), step, started),
        }
    }

    /// Returns whether the node is still in the cluster. Warns if it is not.
    pub(super) async fn has_node(&self) -> Result<bool, Failure> {
        let path = ResourcePath::cluster_scoped("v1", "Node", "nodes");
        let cluster = self.operator.cluster_for(self.step, self.started);
        let read = cluster.get_id(&path, &self.step.object).await;
        let node = read.map_err(|error| failure(&error))?;
        let is_there = node.is_some_and(|node| node["metadata"]["uid"] == self.uid.as_str());
        if !is_there {
            self.warn("node-gone", "it was removed from the cluster meanwhile");
        }
        Ok(is_there)
    }

    /// Sends a warning about the node.
    pub(super) fn warn(&self, code: &'static str, message: &str) {
        let finding = Finding::warning(Kind::Cluster, code, message);
        let finding = finding.on(self.step.object.clone());
        self.operator.events.send(EventKind::Warning(finding));
    }

    /// Runs the Job of the node and waits for its end. A Job of a previous run counts, unless it
    /// failed: then it runs again. A Job that cannot start or does not end in time is deleted, and so
    /// is the Job of a run that is stopped. `input` is everything else that the Job depends on.
    pub(super) async fn run_job(
        &mut self,
        manifest: &Manifest,
        input: Option<&str>,
    ) -> Result<(), Failure> {
        let node = (self.step.object.name.as_str(), self.uid.as_str());
        let (id, job) = self.operator.job_on(node, manifest, input);
        let options = ApplyOptions {
            secret: manifest.is_secret(),
            ..ApplyOptions::new(&self.operator.manager)
        };
        let fail_fast = self.operator.desired.terms.fail_fast;
        let fail_fast = fail_fast.map(|limit| Duration::try_from(limit).unwrap_or_default());
        let mut symptoms = Symptoms::new(self.operator.cluster, &self.operator.permits, &id);
        let mut created = false;
        loop {
            let Some(live) = self.read(&jobs(), &id).await? else {
                if created {
                    let message = format!("{id} was deleted before it ended");
                    return Err(Failure::new(FailureKind::NotReady, message));
                }
                self.create(&jobs(), &id, &job, &options).await?;
                created = true;
                continue;
            };
            if live["metadata"]["labels"][NODE_UPGRADE].is_null() {
                let message = format!("{id} exists, and pleach did not create it");
                return Err(Failure::new(FailureKind::Conflict, message));
            }
            let assessment = assess(&live);
            match assessment.readiness {
                Readiness::Current => return Ok(()),
                Readiness::Failed if created => {
                    let message = format!("{id} failed: {}", assessment.message);
                    let failed = Failure::new(FailureKind::NotReady, message);
                    let then = "the next apply runs it again";
                    return Err(self.operator.with_log(&id, failed, then).await);
                }
                Readiness::Failed => self.delete(&jobs(), &id, self.started).await?,
                _ => {
                    let state = format!("{id}: {}", assessment.message);
                    let state = symptoms.beside(state, &live).await;
                    if symptoms.is_over(fail_fast) {
                        let failure = self.progress.gave_up(&state, symptoms.stuck());
                        return Err(self.ended(&id, failure).await);
                    }
                    self.progress.report(state);
                }
            }
            if Instant::now() >= self.deadline {
                let failure = self.progress.timed_out(None);
                return Err(self.ended(&id, failure).await);
            }
            if let Err(failure) = self.pause().await {
                return Err(self.ended(&id, failure).await);
            }
        }
    }

    /// Deletes a Job that must not go on after a failure. Returns the failure, which also says if the
    /// Job is still there.
    async fn ended(&self, id: &ObjectId, failure: Failure) -> Failure {
        match self.delete(&jobs(), id, Instant::now()).await {
            Ok(()) => failure,
            Err(deleting) => failure.hint(format!("delete {id}: {}", deleting.message)),
        }
    }

    pub(super) async fn read(
        &self,
        path: &ResourcePath,
        id: &ObjectId,
    ) -> Result<Option<Value>, Failure> {
        let cluster = self.operator.cluster_for(self.step, self.started);
        read(&cluster, path, id).await
    }

    pub(super) async fn create(
        &self,
        path: &ResourcePath,
        id: &ObjectId,
        object: &Value,
        options: &ApplyOptions<'_>,
    ) -> Result<(), Failure> {
        let cluster = self.operator.cluster_for(self.step, self.started);
        create(&cluster, path, id, object, options).await
    }

    /// Deletes our pod or Job, unless it is gone or belongs to somebody else. `started` is the begin
    /// of the time for it.
    pub(super) async fn delete(
        &self,
        path: &ResourcePath,
        id: &ObjectId,
        started: Instant,
    ) -> Result<(), Failure> {
        let deleting = async {
            let cluster = self.operator.cluster_for(self.step, started);
            let read = cluster.get_id(path, id).await;
            let Some(live) = read.map_err(|error| failure(&error))? else {
                return Ok(());
            };
            let labels = &live["metadata"]["labels"];
            if labels[PRELOAD].is_null() && labels[NODE_UPGRADE].is_null() {
                return Ok(());
            }
            let options = DeleteOptions {
                uid: live["metadata"]["uid"].as_str(),
                resource_version: None,
                propagation: Propagation::Foreground,
                dry_run: false,
            };
            match cluster.delete(path, id, &options).await {
                Err(error) if matches!(error.class(), Some(Class::PreconditionFailed(_))) => Ok(()),
                deleted => deleted.map(drop).map_err(|error| failure(&error)),
            }
        };
        let deleted = tokio::time::timeout(UNDOING, deleting).await;
        deleted.unwrap_or_else(|_| {
            let message = format!("{id} could not be deleted in time");
            Err(Failure::new(FailureKind::Cluster, message))
        })
    }

    /// Waits for a moment, without holding the permit of the step. Fails on a stop request.
    pub(super) async fn pause(&self) -> Result<(), Failure> {
        tokio::select! {
            biased;
            _ = self.operator.stop.wait() => {
                Err(Failure::stopped())
            }
            () = self.operator.pause(self.step, PAUSE) => Ok(()),
        }
    }
}

impl Operator<'_> {
    /// Returns the Job of a node, given by name and uid. `input` is everything else that the Job
    /// depends on.
    pub(super) fn job_on(
        &self,
        (node, uid): (&str, &str),
        manifest: &Manifest,
        input: Option<&str>,
    ) -> (ObjectId, Value) {
        let digest = match self.desired.digests.get(manifest.id()) {
            Some(DesiredDigest::Known(digest)) => digest.to_string(),
            Some(DesiredDigest::Unkeyed) | None => String::new(),
        };
        let digest = match input {
            Some(input) => format!("{digest} {input}"),
            None => digest,
        };
        let job = job_of(&manifest.value(), &digest, node, uid);
        let name = job["metadata"]["name"].as_str().unwrap_or_default();
        let namespace = manifest.id().namespace.as_deref();
        (ObjectId::new("batch", "Job", namespace, name), job)
    }
}

/// Reads an object.
pub(super) async fn read(
    cluster: &Cluster,
    path: &ResourcePath,
    id: &ObjectId,
) -> Result<Option<Value>, Failure> {
    let read = cluster.get_id(path, id).await;
    read.map_err(|error| failure(&error))
}

/// Creates an object, unless it exists.
pub(super) async fn create(
    cluster: &Cluster,
    path: &ResourcePath,
    id: &ObjectId,
    object: &Value,
    options: &ApplyOptions<'_>,
) -> Result<(), Failure> {
    let body = Bytes::from(canonical_json(object));
    match cluster.create(path, id, body, options).await {
        Err(error) if matches!(error.class(), Some(Class::AlreadyExists { .. })) => Ok(()),
        created => created.map(drop).map_err(|error| failure(&error)),
    }
}

pub(super) fn jobs() -> ResourcePath {
    ResourcePath::namespaced("batch/v1", "Job", "jobs")
}
