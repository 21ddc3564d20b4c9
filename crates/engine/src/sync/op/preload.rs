//! Preloading of images on a node, with pods or a Job.
//!
//! A run that was killed leaves its pod; the next one goes on with it, because pods are named by
//! content and node. A pod that ended before is replaced: since then, the kubelet may have removed
//! images, and the free space may have changed. A run that fails or is stopped deletes its pod or Job.

use std::time::Duration;

use jiff::Timestamp;
use pleach_formats::preload::{
    Images, PodState, PreloadRule, PreloadSource, Preloading, Target, is_same, lacks_space,
    pod_state,
};
use pleach_model::object::{ObjectId, managers};
use pleach_planner::plan::Step;
use pleach_state::inventory::NodePhase;
use serde_json::Value;
use tokio::time::Instant;

use super::node_work::NodeWork;
use super::{Operator, failure};
use crate::sync::report::{Failure, FailureKind};
use pleach_cluster::{ApplyOptions, Patch, PatchOptions, ResourcePath};

/// Number of images in a message.
const NAMED: usize = 5;

/// The preloading of one node.
struct Preload<'a> {
    rule: &'a PreloadRule,
    images: Images,
    preloading: Preloading,
    work: NodeWork<'a>,
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
        let work = NodeWork::new(self, step, started);
        let mut preload = Preload {
            rule,
            images,
            preloading,
            work,
        };
        preload.run().await
    }
}

impl Preload<'_> {
    async fn run(&mut self) -> Result<(), Failure> {
        if !self.work.has_node().await? {
            return Ok(());
        }
        let step = self.work.step.id;
        self.work.operator.events.enter(step, NodePhase::Preloading);
        if let Some(namespace) = self.work.operator.desired.namespace.as_deref() {
            let target = Target {
                content: &self.preloading.content,
                namespace,
                node: &self.work.step.object.name,
                uid: &self.work.uid,
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
        if let Some(job) = self.work.operator.desired.preload_job(self.rule) {
            self.work.run_job(job, None).await?;
        }
        let path = ResourcePath::cluster_scoped("v1", "Node", "nodes");
        let patch = Patch::Merge(self.preloading.remember(Timestamp::now()));
        let options = PatchOptions::new(managers::OVERLAY);
        let cluster = self
            .work
            .operator
            .cluster_for(self.work.step, self.work.started);
        let patched = cluster.patch(&path, &self.work.step.object, &patch, &options);
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
        let deleted = self.work.delete(&pods(), &id, Instant::now()).await;
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
        let limit = self.work.operator.desired.terms.fail_fast;
        let limit = limit.map(|limit| Duration::try_from(limit).unwrap_or_default());
        let mut created = false;
        let mut stuck_since: Option<Instant> = None;
        loop {
            let Some(live) = self.work.read(&pods(), id).await? else {
                if created {
                    let message = format!("{id} was deleted before it ended");
                    return Err(Failure::new(FailureKind::NotReady, message));
                }
                let options = ApplyOptions::new(&self.work.operator.manager);
                self.work.create(&pods(), id, pod, &options).await?;
                created = true;
                continue;
            };
            if !is_same(&live, pod) {
                let message = format!("{id} exists, and pleach did not create it");
                return Err(Failure::new(FailureKind::Conflict, message));
            }
            let last = match pod_state(&live) {
                PodState::Succeeded(message) if created => return Ok(message),
                PodState::Failed(why) if created => return Err(failed(images, &why)),
                // A pod of a previous run.
                PodState::Succeeded(_) | PodState::Failed(_) => {
                    self.work.delete(&pods(), id, self.work.started).await?;
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
            if Instant::now() >= self.work.deadline {
                return Err(failed(images, &format!("not in time: {last}")));
            }
            self.work.progress.report(last);
            self.work.pause().await?;
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
