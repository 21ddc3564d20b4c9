//! The Job of a node.

use std::time::Duration;

use pleach_formats::nodes::{NODE_UPGRADE, driver::is_evidence};
use pleach_formats::readiness::{Readiness, assess};
use pleach_model::object::ObjectId;
use serde_json::Value;

use super::{End, NodeUpgrade};
use crate::sync::{
    op::{
        failure,
        node_work::{create, jobs, read},
    },
    report::{Failure, FailureKind},
    wait::Symptoms,
};
use pleach_cluster::{ApplyOptions, Class, DeleteOptions, Depth, Propagation, Selector};

/// Role of a Job of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Role {
    /// Changes the node, which keeps its cordon from then on.
    Changes,
    /// Runs before or after the change.
    Beside,
}

impl NodeUpgrade<'_> {
    /// Runs a Job on the node and waits for its end. A Job of a previous run counts, unless it
    /// failed: then it runs again.
    pub(super) async fn run_job(&mut self, file: &str, role: Role) -> Result<(), End> {
        let Some(manifest) = self.operator.desired.node_jobs.get(file) else {
            let message = format!("{file} has no Job");
            return Err(Failure::new(FailureKind::Other, message).into());
        };
        let changes = role == Role::Changes;
        let node = self.node().await?;
        let uid = node["metadata"]["uid"].as_str().unwrap_or_default();
        let on = (self.step.object.name.as_str(), uid);
        let (id, job) = self.operator.job_on(on, manifest, None);
        let is_evidence = is_evidence(self.rule.driver.is_some(), &self.mark(&node)?);
        // If `done` did not hold before the Job, the Job is the reason why it holds.
        let shows_work = is_evidence || !self.is_done(&node)?;
        let options = ApplyOptions {
            secret: manifest.is_secret(),
            ..ApplyOptions::new(&self.operator.manager)
        };
        let mut created = false;
        let fail_fast = self.operator.desired.terms.fail_fast;
        let fail_fast = fail_fast.map(|limit| Duration::try_from(limit).unwrap_or_default());
        let mut symptoms = Symptoms::new(self.operator.cluster, &self.operator.permits, &id);
        loop {
            let node = self.cordoned_node().await?;
            self.seen_ready(&node);
            let cluster = self.operator.cluster_for(self.step, self.started);
            let live = read(&cluster, &jobs(), &id).await?;
            let Some(live) = live else {
                if changes && is_evidence && self.is_done(&node)? {
                    return Ok(());
                }
                if created {
                    let message = format!("{id} was deleted before it ended");
                    return Err(Failure::new(FailureKind::NotReady, message).into());
                }
                if let Some(other) = self.unfinished(&id, uid).await? {
                    let message = format!("another Job of the node has not ended: {other}");
                    self.progress.report(message);
                    self.pause().await?;
                    continue;
                }
                if changes {
                    self.change(|mark, node| (!mark.begun).then(|| mark.begin(node)))
                        .await?;
                }
                create(&cluster, &jobs(), &id, &job, &options).await?;
                created = true;
                continue;
            };
            if live["metadata"]["labels"][NODE_UPGRADE].is_null() {
                let message = format!("{id} exists, and pleach did not create it");
                return Err(Failure::new(FailureKind::Conflict, message).into());
            }
            let assessment = assess(&live);
            match assessment.readiness {
                Readiness::Current => return Ok(()),
                // A reboot ends the pod of a Job that may have done its work.
                Readiness::Failed if changes && shows_work && self.lacks(&node)?.is_none() => {
                    return Ok(());
                }
                Readiness::Failed if self.settles(&node) => {
                    self.progress
                        .report(format!("{id} failed; the node restarts"));
                }
                Readiness::Failed if created => {
                    let message = format!("{id} failed: {}", assessment.message);
                    let failed = Failure::new(FailureKind::NotReady, message);
                    let then = "the next apply runs it again";
                    return Err(self.operator.with_log(&id, failed, then).await.into());
                }
                Readiness::Failed => self.delete(&id, &live).await?,
                _ => {
                    let message = format!("{id}: {}", assessment.message);
                    let message = symptoms.beside(message, &live).await;
                    if symptoms.is_over(fail_fast) {
                        // It cannot end, and would be in the way of its successor.
                        self.delete(&id, &live).await?;
                        return Err(self.progress.gave_up(&message, symptoms.stuck()).into());
                    }
                    self.progress.report(message);
                    if let Err(failure) = self.pause().await {
                        // The node is schedulable again, and the Job must not go on there.
                        if !changes {
                            self.delete(&id, &live).await?;
                        }
                        return Err(failure.into());
                    }
                    continue;
                }
            }
            self.pause().await?;
        }
    }

    /// Returns whether the Job that changes the node did its work, for a node for which `done` holds.
    pub(super) async fn did_run(&self, node: &Value) -> Result<bool, End> {
        let jobs_in_git = &self.operator.desired.node_jobs;
        let file = self.rule.job.as_ref();
        let Some(manifest) = file.and_then(|file| jobs_in_git.get(file)) else {
            return Ok(true);
        };
        if is_evidence(self.rule.driver.is_some(), &self.mark(node)?) {
            return Ok(true);
        }
        let uid = node["metadata"]["uid"].as_str().unwrap_or_default();
        let on = (self.step.object.name.as_str(), uid);
        let (id, _) = self.operator.job_on(on, manifest, None);
        let cluster = self.operator.cluster_for(self.step, self.started);
        let live = read(&cluster, &jobs(), &id).await?;
        Ok(live.is_some_and(|live| assess(&live).readiness == Readiness::Current))
    }

    /// Returns the name of another unfinished Job of the node, from an earlier content in git.
    async fn unfinished(&self, id: &ObjectId, uid: &str) -> Result<Option<String>, Failure> {
        let cluster = self.operator.cluster_for(self.step, self.started);
        // Without the Jobs of all nodes that are changed already.
        let selector = Selector {
            labels: Some(NODE_UPGRADE),
            fields: Some("status.successful=0"),
            ..Selector::namespace(id.namespace.as_deref())
        };
        let read = |job: Value| {
            let owners = job["metadata"]["ownerReferences"].as_array();
            let is_of_node =
                owners.is_some_and(|owners| owners.iter().any(|one| one["uid"] == uid));
            let has_ended = matches!(
                assess(&job).readiness,
                Readiness::Current | Readiness::Failed
            );
            let name = job["metadata"]["name"].as_str()?;
            (is_of_node && !has_ended && name != id.name).then(|| name.to_owned())
        };
        let found = cluster.pick(&jobs(), &selector, Depth::Full, read).await;
        let found = found.map_err(|error| failure(&error))?;
        Ok(found.into_iter().next())
    }

    /// Deletes a Job that failed or cannot start.
    async fn delete(&self, id: &ObjectId, live: &Value) -> Result<(), Failure> {
        let cluster = self.operator.cluster_for(self.step, self.started);
        let options = DeleteOptions {
            uid: live["metadata"]["uid"].as_str(),
            resource_version: None,
            propagation: Propagation::Foreground,
            dry_run: false,
        };
        match cluster.delete(&jobs(), id, &options).await {
            Err(error) if matches!(error.class(), Some(Class::PreconditionFailed(_))) => Ok(()),
            deleted => deleted.map(drop).map_err(|error| failure(&error)),
        }
    }
}
