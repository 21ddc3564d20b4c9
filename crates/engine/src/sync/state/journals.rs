//! Journals of several releases, for read-only use.

use std::collections::BTreeSet;

use pleach_model::object::labels;
use pleach_state::inventory::{Journal, ReleaseSummary};

use super::config_maps;
use pleach_cluster::{Cluster, Selector};

/// Adds the open journal entries of releases. They stay unknown without permission to read
/// journals.
pub async fn read_journals(cluster: &Cluster, releases: &mut [ReleaseSummary]) {
    let namespaces: BTreeSet<String> = releases
        .iter()
        .map(|release| release.store.namespace().to_owned())
        .collect();
    for namespace in namespaces {
        let selector = Selector {
            namespace: Some(&namespace),
            labels: Some(labels::JOURNAL),
            ..Selector::default()
        };
        let Ok(list) = cluster.list(&config_maps(), &selector).await else {
            continue;
        };
        for release in releases.iter_mut() {
            if release.store.namespace() != namespace {
                continue;
            }
            let name = Journal::name(&release.name);
            let mut items = list.items.iter();
            release.journal = items
                .find(|item| item["metadata"]["name"] == name.as_str())
                .and_then(|item| Journal::from_object(item, &release.name).ok());
        }
    }
}
