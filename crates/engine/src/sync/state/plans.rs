//! Writes of the last plan, stored for comparison with an audit log.

use pleach_model::object::{ObjectId, ReleaseName};
use pleach_report::audit::{LastPlan, LastPlanError};
use pleach_state::inventory::Store;

use super::{State, config_maps};
use crate::sync::error::SyncError;
use pleach_cluster::{Cluster, ClusterError};

impl State {
    /// Stores a plan in place of the previous one. In an audit log, this write marks the start of
    /// the plan.
    pub(in crate::sync) async fn keep_plan(&self, plan: &LastPlan) -> Result<(), SyncError> {
        let namespace = self.store.namespace();
        let name = LastPlan::name(&self.name);
        let id = ObjectId::new("", "ConfigMap", Some(namespace), &name);
        let object = plan.to_object(namespace);
        self.apply(&config_maps(), &id, &object).await?;
        Ok(())
    }
}

/// Returns the last started plan of a release; `None` if none is stored. The inner error is that of
/// an unreadable plan.
pub async fn last_plan(
    cluster: &Cluster,
    release: &ReleaseName,
    store: &Store,
) -> Result<Option<Result<LastPlan, LastPlanError>>, ClusterError> {
    let name = LastPlan::name(release);
    let namespace = Some(store.namespace());
    let object = cluster.get(&config_maps(), namespace, &name).await?;
    Ok(object.map(|object| LastPlan::from_object(&object)))
}
