//! Custom resources without a status, and whether their CRD declares one.

use std::collections::BTreeMap;

use pleach_model::finding::{Finding, Kind};
use pleach_model::object::ObjectId;
use pleach_planner::crd::declares_status;
use pleach_planner::plan::{Op, Step};
use serde_json::Value;
use tokio::sync::Mutex;

use super::Waiter;
use crate::sync::events::EventKind;
use pleach_cluster::{Cluster, ResourcePath};

/// Kinds whose live CRD was read, with whether it declares a status.
#[derive(Default)]
pub(in crate::sync) struct Statuses(Mutex<BTreeMap<String, bool>>);

impl Statuses {
    /// Reads a CRD once. An unreadable CRD counts as one without a status.
    async fn declared(&self, cluster: &Cluster, path: &ResourcePath) -> bool {
        let name = format!("{}.{}", path.plural, path.api_version.group);
        let mut known = self.0.lock().await;
        if let Some(declared) = known.get(&name) {
            return *declared;
        }
        let crds = ResourcePath::cluster_scoped(
            "apiextensions.k8s.io/v1",
            "CustomResourceDefinition",
            "customresourcedefinitions",
        );
        let read = cluster.get(&crds, None, &name).await;
        let declared = matches!(read, Ok(Some(crd))
            if declares_status(&crd, &path.api_version.version));
        known.insert(name, declared);
        declared
    }
}

impl Waiter<'_> {
    /// Returns whether a written object has no status yet although its CRD declares one.
    pub(super) async fn lacks_status(
        &self,
        step: &Step,
        path: &ResourcePath,
        value: &Value,
    ) -> bool {
        let writes = matches!(step.op, Op::Apply { .. } | Op::Create { .. });
        writes
            && self.desired.sequence.readiness.lacks_status(value)
            && self.statuses.declared(self.cluster, path).await
    }

    pub(super) fn warn_of_silence(&self, object: &ObjectId) {
        let message = "its controller has written no status; it counts as ready";
        let finding = Finding::warning(Kind::Cluster, "no-status", message);
        self.events
            .send(EventKind::Warning(finding.on(object.clone())));
    }
}
