//! JSON patches that test the resourceVersion.

use pleach_model::object::{NonSecret, ObjectId, managers};
use pleach_planner::plan::Step;
use serde_json::Value;
use tokio::time::Instant;

use super::{Operator, failure};
use crate::sync::report::{Failure, FailureKind};
use pleach_cluster::{Patch, PatchOptions};

impl Operator<'_> {
    /// Sends the patch.
    pub(super) async fn patch(
        &self,
        step: &Step,
        operations: &NonSecret,
        subresource: Option<&str>,
        started: Instant,
    ) -> Result<(), Failure> {
        let id = &step.object;
        let path = self.paths.of_kind(&id.group_kind()).ok_or_else(|| {
            Failure::new(
                FailureKind::Cluster,
                format!("{} is not served by the cluster", id.group_kind()),
            )
        })?;
        let hidden = self.hidden_of(id);
        let options = PatchOptions {
            subresource,
            hides: hidden.as_ref(),
            ..PatchOptions::new(managers::OVERLAY)
        };
        self.cluster_for(step, started)
            .patch(&path, id, &Patch::Json(operations.0.clone()), &options)
            .await
            .map(drop)
            .map_err(|error| failure(&error))
    }

    /// Returns the secret part of an object as read; `None` if nothing is secret.
    pub(super) fn hidden<'v>(&self, id: &ObjectId, live: &'v Value) -> Option<&'v Value> {
        self.is_secret(id).then_some(live)
    }

    /// Returns the secret part of an object in git; `None` if nothing is secret.
    pub(super) fn hidden_of(&self, id: &ObjectId) -> Option<Value> {
        let manifest = self.manifests.get(id).filter(|_| self.is_secret(id));
        manifest.map(|manifest| manifest.value())
    }

    fn is_secret(&self, id: &ObjectId) -> bool {
        let manifest = self.manifests.get(id);
        id.is("", "Secret") || manifest.is_some_and(|manifest| manifest.is_secret())
    }
}
