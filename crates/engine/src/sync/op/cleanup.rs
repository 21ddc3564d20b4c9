//! Removal of images that only the replaced version used: their list, and a Job on each node.

use std::collections::BTreeSet;

use bytes::Bytes;
use pleach_formats::nodes::FormerImages;
use pleach_model::object::{Digest, ObjectId, canonical_json, managers};
use pleach_planner::plan::Step;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::node_work::NodeWork;
use super::{Operator, failure};
use crate::sync::report::{Failure, FailureKind};
use pleach_cluster::{
    ApplyOptions, Class, DeleteOptions, Patch, PatchOptions, Propagation, ResourcePath,
};

impl Operator<'_> {
    /// Writes the images into the `ConfigMap` of the step, or deletes it if there are none.
    pub(super) async fn remember_images(
        &self,
        step: &Step,
        images: &BTreeSet<String>,
        started: Instant,
    ) -> Result<(), Failure> {
        let path = ResourcePath::namespaced("v1", "ConfigMap", "configmaps");
        let cluster = self.cluster_for(step, started);
        let release = self.desired.name.to_string();
        let id = &step.object;
        let read = cluster.get_id(&path, id).await;
        let live = read.map_err(|error| failure(&error))?;
        if live
            .as_ref()
            .is_some_and(|live| !FormerImages::is_of(&release, live))
        {
            let message = format!("{id} belongs to another release or a user");
            return Err(Failure::new(FailureKind::Conflict, message));
        }
        let former = FormerImages {
            release: &release,
            images,
        };
        let object = former.config_map(id.namespace.as_deref());
        match live {
            None if images.is_empty() => Ok(()),
            None => {
                let body = Bytes::from(canonical_json(&object));
                let options = ApplyOptions::new(managers::OVERLAY);
                let created = cluster.create(&path, id, body, &options).await;
                created.map(drop).map_err(|error| failure(&error))
            }
            Some(live) if images.is_empty() => {
                let options = DeleteOptions {
                    uid: live["metadata"]["uid"].as_str(),
                    resource_version: None,
                    propagation: Propagation::Background,
                    dry_run: false,
                };
                match cluster.delete(&path, id, &options).await {
                    Err(error) if matches!(error.class(), Some(Class::PreconditionFailed(_))) => {
                        Ok(())
                    }
                    deleted => deleted.map(drop).map_err(|error| failure(&error)),
                }
            }
            Some(live) if live["data"] == object["data"] => Ok(()),
            Some(_) => {
                let patch = Patch::Merge(object);
                let options = PatchOptions::new(managers::OVERLAY);
                let patched = cluster.patch(&path, id, &patch, &options).await;
                patched.map(drop).map_err(|error| failure(&error))
            }
        }
    }

    /// Removes images from a node. A failure is a warning, because the version is ready. A run that
    /// is stopped ends.
    pub(super) async fn clean_node(
        &self,
        step: &Step,
        (images, job): (&BTreeSet<String>, &ObjectId),
        started: Instant,
    ) -> Result<(), Failure> {
        let mut jobs = self.desired.node_jobs.values();
        let Some(manifest) = jobs.find(|one| one.id() == job) else {
            let message = format!("{job} is not in git");
            return Err(Failure::new(FailureKind::Other, message));
        };
        let mut work = NodeWork::new(self, step, started);
        let input: Value = json!(images);
        let input = Digest::of(&canonical_json(&input)).to_string();
        let cleaned = match work.has_node().await {
            Ok(true) => work.run_job(manifest, Some(&input)).await,
            absent => absent.map(drop),
        };
        match cleaned {
            Err(failure) if self.stop.cause().is_some() => Err(failure),
            Err(failure) => {
                let message = format!("its images were not removed: {}", failure.message);
                work.warn("node-not-cleaned", &message);
                Ok(())
            }
            Ok(()) => Ok(()),
        }
    }
}
