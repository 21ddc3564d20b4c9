//! Observation of the record only, for a release that is refused in any case.

use jiff::Timestamp;
use pleach_model::discovery::Served;
use pleach_model::object::Gvk;
use pleach_planner::observe::Observed;
use pleach_planner::plan::Desired;

use super::{Observation, identity};
use crate::sync::{error::SyncError, state::State};
use pleach_cluster::Cluster;

/// Reads the cluster id and the record of the release. Fills in `desired.digests`.
pub async fn observe_record(
    cluster: &Cluster,
    desired: &mut Desired,
) -> Result<Observation, SyncError> {
    let manager = desired.name.field_manager();
    let common = cluster.common();
    let (server_version, identity, discovery) = futures::try_join!(
        async { Ok(common.server_version().await?) },
        identity::identify(&common, &desired.store, &manager),
        async { Ok(cluster.discover().await?) }
    )?;
    let place = (&desired.name, &desired.store);
    let read = State::read(cluster, place, &identity.cluster, &discovery);
    let (state, recorded) = read.await?;
    if recorded.installed.is_none() {
        let release = Gvk::new("pleach.dev/v1alpha1", "Release");
        let is_defined = matches!(discovery.served(&release), Served::Current(_));
        state
            .ensure_only_record(&desired.repository, is_defined)
            .await?;
    }
    desired.digest_with(state.key());
    let now = Timestamp::now();
    let mut observed = Observed::of(identity.cluster, server_version, discovery, now);
    observed.meta = identity.namespace.into_iter().collect();
    observed.installed = recorded.installed;
    observed.inventory = recorded.inventory;
    observed.journal = recorded.journal;
    Ok(Observation { observed, state })
}
