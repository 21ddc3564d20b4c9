//! Orphaned fields, which an apply does not remove because the previous CRD had another list type.

use pleach_fields::diff::ownership;
use pleach_model::object::managers;
use pleach_planner::plan::{EdgeReason, Precondition, Step};
use serde_json::{Value, json};
use tokio::time::Instant;

use super::own::is_stale;
use super::{Operator, failure};
use crate::sync::report::Failure;
use pleach_cluster::{Applied, Patch, PatchOptions, ResourcePath};

/// Number of write races after which a patch fails.
const ATTEMPTS: usize = 10;

impl Operator<'_> {
    /// Returns the object before the apply, if this plan changes its CRD first.
    pub(super) async fn before_crd_change(
        &self,
        step: &Step,
        path: &ResourcePath,
        started: Instant,
    ) -> Result<Option<Value>, Failure> {
        if !self.is_crd_changed(step) || step.require.contains(&Precondition::Absent) {
            return Ok(None);
        }
        let read = self
            .cluster_for(step, started)
            .get_id(path, &step.object)
            .await;
        read.map_err(|error| failure(&error))
    }

    /// Returns whether the plan changes the CRD before the object.
    fn is_crd_changed(&self, step: &Step) -> bool {
        let mut at = Some(step);
        while let Some(step) = at {
            let find = |why: &EdgeReason| step.needs.iter().find(|edge| edge.why == *why);
            if find(&EdgeReason::Crd).is_some() {
                return true;
            }
            at = find(&EdgeReason::SameObject).and_then(|edge| self.plan.steps.get(edge.from.0));
        }
        false
    }

    /// Removes fields that we owned, no longer send, and that have no owner since the apply. The
    /// server would otherwise keep them forever.
    pub(super) async fn remove_orphaned_fields(
        &self,
        step: &Step,
        (path, before): (&ResourcePath, &Value),
        mut applied: Applied,
        started: Instant,
    ) -> Result<Applied, Failure> {
        let cluster = self.cluster_for(step, started);
        for attempt in 1..=ATTEMPTS {
            let orphaned = ownership::orphaned(before, &applied.value, &self.manager);
            if orphaned.is_empty() {
                break;
            }
            let version = &applied.value["metadata"]["resourceVersion"];
            let test = json!({"op": "test", "path": "/metadata/resourceVersion", "value": version});
            let removals = orphaned
                .iter()
                .map(|at| json!({"op": "remove", "path": at}));
            let change = Patch::Json(std::iter::once(test).chain(removals).collect());
            let options = PatchOptions {
                hides: self.hidden(&step.object, &applied.value),
                ..PatchOptions::new(managers::OVERLAY)
            };
            let patched = cluster.patch(path, &step.object, &change, &options).await;
            match patched {
                Ok(patched) => {
                    applied.value = patched.value;
                    break;
                }
                Err(error) if is_stale(&error) && attempt < ATTEMPTS => {
                    let read = cluster.get_id(path, &step.object).await;
                    let Some(live) = read.map_err(|error| failure(&error))? else {
                        break;
                    };
                    applied.value = live;
                }
                Err(error) => return Err(failure(&error)),
            }
        }
        Ok(applied)
    }
}
