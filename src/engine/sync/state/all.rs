//! The records of all releases of a cluster, for those who only look.

use std::collections::BTreeMap;

use futures::{Stream, StreamExt as _};
use pleach_domain::doctor::KnownRelease;
use pleach_domain::inventory::{Inventory, ReleaseName, ReleaseSummary};
use pleach_domain::object::labels;

use super::{STATE_NAMESPACE, assemble, config_maps};
use crate::io::cluster::{Class, Cluster, ClusterError, Depth, Followed, Selector};

/// Every release, in the order of their names; none where pleach was never
/// used. Needs no right but to list Releases.
pub async fn releases(cluster: &Cluster) -> Result<Vec<ReleaseSummary>, ClusterError> {
    match cluster.list(&super::releases(), &Selector::default()).await {
        Ok(list) => {
            let mut releases: Vec<ReleaseSummary> =
                list.items.iter().filter_map(ReleaseSummary::read).collect();
            releases.sort_by(|a, b| a.name.cmp(&b.name));
            Ok(releases)
        }
        Err(error) if error.class() == Some(&Class::KindNotServed) => Ok(Vec::new()),
        Err(error) => Err(error),
    }
}

/// One release; none where it is not installed.
pub async fn release(
    cluster: &Cluster,
    name: &ReleaseName,
) -> Result<Option<ReleaseSummary>, ClusterError> {
    match cluster
        .get(&super::releases(), None, &name.to_string())
        .await
    {
        Ok(value) => Ok(value.as_ref().and_then(ReleaseSummary::read)),
        Err(error) if error.class() == Some(&Class::KindNotServed) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Every release with its members. An inventory that cannot be read is said to
/// be so; somebody may write between our two reads, so that is looked at twice.
pub async fn inventories(cluster: &Cluster) -> Result<Vec<KnownRelease>, ClusterError> {
    let once = read_all(cluster).await?;
    let is_complete = once
        .iter()
        .all(|release| release.summary.record.is_err() || release.inventory.is_ok());
    if is_complete {
        Ok(once)
    } else {
        read_all(cluster).await
    }
}

async fn read_all(cluster: &Cluster) -> Result<Vec<KnownRelease>, ClusterError> {
    let summaries = releases(cluster).await?;
    if summaries.is_empty() {
        return Ok(Vec::new());
    }
    let selector = Selector {
        namespace: Some(STATE_NAMESPACE),
        labels: Some(labels::RELEASE),
        ..Selector::default()
    };
    let shards = cluster.list(&config_maps(), &selector).await?.items;
    Ok(summaries
        .into_iter()
        .map(|summary| {
            let inventory = match &summary.record {
                Err(why) => Err(why.clone()),
                Ok(installed) if installed.shards.is_empty() => Ok(Inventory::default()),
                Ok(installed) => assemble(&summary.name, installed, &shards)
                    .map_err(|error| crate::engine::words(&error)),
            };
            KnownRelease { summary, inventory }
        })
        .collect())
}

/// All releases, anew whenever one of them changes. Failures are reported and
/// do not end the stream.
pub fn follow_releases(
    cluster: &Cluster,
) -> impl Stream<Item = Result<Vec<ReleaseSummary>, ClusterError>> + Send + use<> {
    let changes = cluster.follow(&super::releases(), &Selector::default(), Depth::Full);
    changes.scan(
        BTreeMap::<ReleaseName, ReleaseSummary>::new(),
        |known, change| {
            let seen = change.map(|change| {
                match change {
                    Followed::Listed(values) => {
                        *known = values
                            .iter()
                            .filter_map(ReleaseSummary::read)
                            .map(|release| (release.name.clone(), release))
                            .collect();
                    }
                    Followed::Applied(value) => known.extend(
                        ReleaseSummary::read(&value).map(|release| (release.name.clone(), release)),
                    ),
                    Followed::Deleted(value) => {
                        if let Some(release) = ReleaseSummary::read(&value) {
                            known.remove(&release.name);
                        }
                    }
                }
                known.values().cloned().collect()
            });
            std::future::ready(Some(seen))
        },
    )
}
