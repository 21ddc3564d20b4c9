//! Preloading of images on a node, with pods or a Job.
//!
//! A run that was killed leaves its pod; the next one goes on with it, because pods are named by
//! content and node. A run that fails or is stopped deletes its pod.

use std::time::Duration;

use bytes::Bytes;
use jiff::Timestamp;
use pleach_formats::nodes::{NODE_UPGRADE, job_of};
use pleach_formats::preload::{
    Images, PRELOAD, PodState, PreloadRule, PreloadSource, Preloading, Target, lacks_space,
    pod_state,
};
use pleach_formats::readiness::{Readiness, assess};
use pleach_model::finding::{Finding, Kind};
use pleach_model::object::{DesiredDigest, Manifest, ObjectId, canonical_json, managers};
use pleach_planner::plan::Step;
use serde_json::Value;
use tokio::time::Instant;

use super::{Operator, failure, required_uid};
use crate::sync::{
    events::EventKind,
    report::{Failure, FailureKind},
    wait::Progress,
};
use pleach_cluster::{
    ApplyOptions, Class, DeleteOptions, Patch, PatchOptions, Propagation, ResourcePath,
};

/// Interval between reads of a pod or Job.
const PAUSE: Duration = Duration::from_secs(1);

/// Time for deleting the pod after a failure.
const UNDOING: Duration = Duration::from_secs(30);

/// Number of images in a message.
const NAMED: usize = 5;

/// The preloading of one node.
struct Preload<'a> {
    operator: &'a Operator<'a>,
    step: &'a Step,
    rule: &'a PreloadRule,
    images: Images,
    preloading: Preloading,
    uid: String,
    started: Instant,
    deadline: Instant,
    progress: Progress<'a>,
}

impl Operator<'_> {
    /// Preloads images on a node, and remembers that on the node.
    pub(super) async fn preload(&self, step: &Step, started: Instant) -> Result<(), Failure> {
        let mut stages = self.desired.sequence.stages.iter();
        let stage = stages.find(|rule| rule.stage == step.stage);
        let Some(rule) = stage.and_then(|stage| stage.preload.as_ref()) else {
            let message = format!("stage {} preloads nothing", step.stage);
            return Err(Failure::new(FailureKind::Other, message));
        };
        let images = self.desired.images();
        let preloading = self.desired.preloading(rule, &images);
        let waiter = self.waiter();
        let mut preload = Preload {
            operator: self,
            step,
            rule,
            images,
            preloading,
            uid: required_uid(step).unwrap_or_default().to_owned(),
            started,
            deadline: started + Duration::try_from(step.deadline).unwrap_or_default(),
            progress: Progress::new(&waiter, step, started),
        };
        preload.run().await
    }
}

impl Preload<'_> {
    async fn run(&mut self) -> Result<(), Failure> {
        let path = ResourcePath::cluster_scoped("v1", "Node", "nodes");
        let cluster = self.operator.cluster_for(self.step, self.started);
        let read = cluster.get_id(&path, &self.step.object).await;
        let node = read.map_err(|error| failure(&error))?;
        if !node.is_some_and(|node| node["metadata"]["uid"] == self.uid.as_str()) {
            let message = "it was removed from the cluster meanwhile";
            let finding = Finding::warning(Kind::Cluster, "node-gone", message);
            let finding = finding.on(self.step.object.clone());
            self.operator.events.send(EventKind::Warning(finding));
            return Ok(());
        }
        if let Some(namespace) = self.operator.desired.namespace.as_deref() {
            let target = Target {
                content: &self.preloading.content,
                namespace,
                node: &self.step.object.name,
                uid: &self.uid,
            };
            let measuring = self.rule.measuring_pod(&target);
            let images = self.images.clone();
            let pulling = match self.rule.source {
                PreloadSource::Release => self.rule.pulling_pods(&target, &images),
                PreloadSource::Job(_) => Vec::new(),
            };
            if let Some(pod) = measuring {
                let free = self.run_pod(&pod, &[]).await?;
                self.check_space(&free)?;
            }
            for (pod, images) in pulling {
                self.run_pod(&pod, &images).await?;
            }
        }
        if let Some(job) = self.operator.desired.preload_job(self.rule) {
            self.run_job(job).await?;
        }
        let patch = Patch::Merge(self.preloading.remember(Timestamp::now()));
        let options = PatchOptions::new(managers::OVERLAY);
        let cluster = self.operator.cluster_for(self.step, self.started);
        let patched = cluster.patch(&path, &self.step.object, &patch, &options);
        patched.await.map(drop).map_err(|error| failure(&error))
    }

    fn check_space(&self, message: &str) -> Result<(), Failure> {
        let needed = self.rule.space.unwrap_or_default();
        match lacks_space(needed, message) {
            Ok(None) => Ok(()),
            Ok(Some(lacking)) => {
                let hint = "remove images from the node, or lower `space`";
                Err(Failure::new(FailureKind::NotReady, lacking).hint(hint))
            }
            Err(why) => Err(Failure::new(FailureKind::NotReady, why)
                .hint("`runner` must be an image of this version of pleach")),
        }
    }

    /// Runs a pod to its end and deletes it. Returns its termination message.
    async fn run_pod(&mut self, pod: &Value, images: &[&str]) -> Result<String, Failure> {
        let metadata = &pod["metadata"];
        let namespace = metadata["namespace"].as_str();
        let name = metadata["name"].as_str().unwrap_or_default();
        let id = ObjectId::new("", "Pod", namespace, name);
        let ended = self.await_pod(&id, pod, images).await;
        let deleted = self.delete(&pods(), &id, Instant::now()).await;
        let message = ended?;
        deleted?;
        Ok(message)
    }

    async fn await_pod(
        &mut self,
        id: &ObjectId,
        pod: &Value,
        images: &[&str],
    ) -> Result<String, Failure> {
        let limit = self.operator.desired.terms.fail_fast;
        let limit = limit.map(|limit| Duration::try_from(limit).unwrap_or_default());
        let mut created = false;
        let mut stuck_since: Option<Instant> = None;
        loop {
            let Some(live) = self.read(&pods(), id).await? else {
                if created {
                    let message = format!("{id} was deleted before it ended");
                    return Err(Failure::new(FailureKind::NotReady, message));
                }
                let options = ApplyOptions::new(&self.operator.manager);
                self.create(&pods(), id, pod, &options).await?;
                created = true;
                continue;
            };
            if live["metadata"]["labels"][PRELOAD].is_null() {
                let message = format!("{id} exists, and pleach did not create it");
                return Err(Failure::new(FailureKind::Conflict, message));
            }
            let last = match pod_state(&live) {
                PodState::Succeeded(message) => return Ok(message),
                PodState::Failed(why) if created => return Err(failed(images, &why)),
                // A pod of a previous run.
                PodState::Failed(_) => {
                    self.delete(&pods(), id, self.started).await?;
                    "the previous pod ends".to_owned()
                }
                PodState::Stuck(why) => {
                    let since = *stuck_since.get_or_insert_with(Instant::now);
                    if limit.is_some_and(|limit| since.elapsed() >= limit) {
                        return Err(failed(images, &why));
                    }
                    why
                }
                PodState::Open(state) => state,
            };
            if Instant::now() >= self.deadline {
                return Err(failed(images, &format!("not in time: {last}")));
            }
            self.progress.report(last);
            self.pause().await?;
        }
    }

    /// Runs the Job of the node and waits for its end. A Job of a previous run counts, unless it
    /// failed: then it runs again.
    async fn run_job(&mut self, manifest: &Manifest) -> Result<(), Failure> {
        let digest = match self.operator.desired.digests.get(manifest.id()) {
            Some(DesiredDigest::Known(digest)) => digest.to_string(),
            Some(DesiredDigest::Unkeyed) | None => String::new(),
        };
        let job = job_of(
            &manifest.value(),
            &digest,
            &self.step.object.name,
            &self.uid,
        );
        let name = job["metadata"]["name"].as_str().unwrap_or_default();
        let namespace = manifest.id().namespace.as_deref();
        let id = ObjectId::new("batch", "Job", namespace, name);
        let options = ApplyOptions {
            secret: manifest.is_secret(),
            ..ApplyOptions::new(&self.operator.manager)
        };
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
                    self.progress.report(state);
                }
            }
            if Instant::now() >= self.deadline {
                return Err(self.progress.timed_out(None));
            }
            self.pause().await?;
        }
    }

    async fn read(&self, path: &ResourcePath, id: &ObjectId) -> Result<Option<Value>, Failure> {
        let cluster = self.operator.cluster_for(self.step, self.started);
        let read = cluster.get_id(path, id).await;
        read.map_err(|error| failure(&error))
    }

    async fn create(
        &self,
        path: &ResourcePath,
        id: &ObjectId,
        object: &Value,
        options: &ApplyOptions<'_>,
    ) -> Result<(), Failure> {
        let cluster = self.operator.cluster_for(self.step, self.started);
        let body = Bytes::from(canonical_json(object));
        match cluster.create(path, id, body, options).await {
            Err(error) if matches!(error.class(), Some(Class::AlreadyExists { .. })) => Ok(()),
            created => created.map(drop).map_err(|error| failure(&error)),
        }
    }

    /// Deletes our pod or Job, unless it is gone or belongs to somebody else. `started` is the begin
    /// of the time for it.
    async fn delete(
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
    async fn pause(&self) -> Result<(), Failure> {
        tokio::select! {
            biased;
            _ = self.operator.stop.wait() => {
                Err(Failure::new(FailureKind::NotReady, "the run was stopped"))
            }
            () = self.operator.pause(self.step, PAUSE) => Ok(()),
        }
    }
}

/// Returns the failure of a pod, with the images that it is about.
fn failed(images: &[&str], why: &str) -> Failure {
    let concerned = Images::named_in(images, why);
    let shown = concerned.iter().take(NAMED).copied();
    let mut shown = shown.collect::<Vec<_>>().join(", ");
    if let Some(more) = concerned.len().checked_sub(NAMED).filter(|more| *more > 0) {
        shown = format!("{shown} and {more} more");
    }
    let message = if images.is_empty() {
        format!("the free space was not measured: {why}")
    } else {
        format!("not preloaded: {shown}: {why}")
    };
    let hint =
        "no object of the release was changed yet by this stage; the next apply preloads the rest";
    Failure::new(FailureKind::NotReady, message).hint(hint)
}

fn pods() -> ResourcePath {
    ResourcePath::namespaced("v1", "Pod", "pods")
}

fn jobs() -> ResourcePath {
    ResourcePath::namespaced("batch/v1", "Job", "jobs")
}
