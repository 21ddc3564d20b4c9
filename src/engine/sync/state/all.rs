//! The records of all releases, for those who only look.

use std::collections::{BTreeMap, BTreeSet};

use futures::stream::{self, Stream, StreamExt as _};
use pleach_domain::doctor::KnownRelease;
use pleach_domain::inventory::{Inventory, ReleaseName, ReleaseSummary, Store};
use pleach_domain::object::labels;
use serde_json::Value;

use super::config_maps;
use super::parent::path;
use super::shards::assemble;
use crate::io::cluster::{Class, Cluster, ClusterError, Followed, List, ResourcePath, Selector};

/// What tells a ConfigMap that holds a record from all others.
const RECORDS: &str = "applyset.kubernetes.io/id,pleach.dev/release";

/// Why the inventory of a blank record cannot be read.
const BLANK: &str = "its record is empty: a first run was killed, or somebody emptied it";

/// Where records are looked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Search {
    /// In the whole cluster, as far as we may look.
    Everywhere,
    /// Where an environment keeps them.
    In(Store),
}

/// What was found, and what could not be looked at.
#[derive(Debug)]
pub struct Records {
    /// In the order of their names.
    pub releases: Vec<ReleaseSummary>,
    /// Why there may be more, in ConfigMaps or as Releases.
    pub unseen: Option<ClusterError>,
}

/// Releases with their members, and what could not be looked at.
#[derive(Debug)]
pub struct Inventories {
    /// In the order of their names.
    pub releases: Vec<KnownRelease>,
    /// Why there may be more.
    pub unseen: Option<ClusterError>,
}

/// One kind of object that holds records, somewhere.
#[derive(Debug, Clone)]
struct Place {
    path: ResourcePath,
    namespace: Option<String>,
    labels: Option<&'static str>,
}

impl Place {
    fn selector(&self) -> Selector<'_> {
        Selector {
            namespace: self.namespace.as_deref(),
            labels: self.labels,
            ..Selector::default()
        }
    }
}

impl Search {
    fn places(&self) -> Vec<Place> {
        let releases = || Place {
            path: path(&Store::Release),
            namespace: None,
            labels: None,
        };
        let maps = |namespace: Option<&str>| Place {
            path: config_maps(),
            namespace: namespace.map(str::to_owned),
            labels: Some(RECORDS),
        };
        match self {
            Self::Everywhere => vec![releases(), maps(None)],
            Self::In(Store::Release) => vec![releases()],
            Self::In(Store::ConfigMap { namespace }) => vec![maps(Some(namespace))],
        }
    }
}

/// Every release; none where pleach was never used. One of the places may be
/// closed to us; when all are, that is an error.
pub async fn releases(cluster: &Cluster, search: &Search) -> Result<Records, ClusterError> {
    let places = search.places();
    let lists = places.iter().map(|place| async {
        let (path, selector) = (&place.path, place.selector());
        match cluster.list_of(path, &selector, summary).await {
            Err(error) if error.class() == Some(&Class::KindNotServed) => Ok(Vec::new()),
            listed => listed,
        }
    });
    let mut records = Records {
        releases: Vec::new(),
        unseen: None,
    };
    let mut looked = false;
    for listed in futures::future::join_all(lists).await {
        match listed {
            Ok(releases) => {
                looked = true;
                records.releases.extend(releases);
            }
            Err(error) if error.class() == Some(&Class::Forbidden) => {
                // The first one is what most people lack.
                records.unseen.get_or_insert(error);
            }
            Err(error) => return Err(error),
        }
    }
    match records.unseen.take() {
        Some(error) if !looked => return Err(error),
        unseen => records.unseen = unseen,
    }
    records
        .releases
        .sort_by(|a, b| (&a.name, &a.store).cmp(&(&b.name, &b.store)));
    Ok(records)
}

/// One release; none where it is not installed. There may be several of the
/// same name in ConfigMaps of different namespaces, where no Release has it.
pub async fn release(
    cluster: &Cluster,
    name: &ReleaseName,
    search: &Search,
) -> Result<Vec<ReleaseSummary>, ClusterError> {
    let found = find(cluster, name, search, false).await?;
    Ok(found.releases)
}

/// Finds all records of one name: that of a Release first, then those in ConfigMaps.
pub async fn namesakes(
    cluster: &Cluster,
    name: &ReleaseName,
    search: &Search,
) -> Result<Records, ClusterError> {
    find(cluster, name, search, true).await
}

/// Reads the records of one name: all of them, or those in the first place that has one.
async fn find(
    cluster: &Cluster,
    name: &ReleaseName,
    search: &Search,
    is_exhaustive: bool,
) -> Result<Records, ClusterError> {
    let stores = match search {
        Search::Everywhere => Store::Release,
        Search::In(store) => store.clone(),
    };
    let parent = stores.parent(name);
    let mut found: Vec<ReleaseSummary> = Vec::new();
    let mut unlisted = None;
    let closed = match cluster.get_id(&path(&stores), &parent).await {
        Ok(Some(value)) => {
            found.extend(ReleaseSummary::read(&value));
            None
        }
        Ok(None) => None,
        Err(error) if error.class() == Some(&Class::KindNotServed) => None,
        Err(error) if error.class() == Some(&Class::Forbidden) => Some(error),
        Err(error) => return Err(error),
    };
    if *search == Search::Everywhere && (is_exhaustive || found.is_empty()) {
        let label = format!("{RECORDS}={}", name.label());
        let selector = Selector {
            labels: Some(&label),
            ..Selector::default()
        };
        match cluster.list(&config_maps(), &selector).await {
            Ok(list) => {
                let maps = list.items.iter().filter_map(ReleaseSummary::read);
                found.extend(maps.filter(|release| release.name == *name));
            }
            Err(error) if error.class() == Some(&Class::KindNotServed) => {}
            Err(error) if error.class() == Some(&Class::Forbidden) => unlisted = Some(error),
            Err(error) => return Err(error),
        }
    }
    match closed {
        Some(error) if found.is_empty() => Err(error),
        closed => Ok(Records {
            releases: found,
            unseen: closed.or(unlisted),
        }),
    }
}

/// Every release with its members. An inventory that cannot be read is said to
/// be so; somebody may write between our two reads, so that is looked at twice.
pub async fn inventories(cluster: &Cluster, search: &Search) -> Result<Inventories, ClusterError> {
    let once = read_all(cluster, search).await?;
    let is_complete = once
        .releases
        .iter()
        .all(|release| release.summary.record.is_err() || release.inventory.is_ok());
    if is_complete {
        Ok(once)
    } else {
        read_all(cluster, search).await
    }
}

async fn read_all(cluster: &Cluster, search: &Search) -> Result<Inventories, ClusterError> {
    let Records {
        releases,
        mut unseen,
    } = releases(cluster, search).await?;
    let namespaces: BTreeSet<String> = releases
        .iter()
        .map(|release| release.store.namespace().to_owned())
        .collect();
    let lists: Vec<(String, Result<List, ClusterError>)> = stream::iter(namespaces)
        .map(|namespace| async move {
            let selector = Selector {
                namespace: Some(&namespace),
                labels: Some(labels::RELEASE),
                ..Selector::default()
            };
            let listed = cluster.list(&config_maps(), &selector).await;
            (namespace, listed)
        })
        .buffer_unordered(8)
        .collect()
        .await;
    let mut shards: BTreeMap<String, Vec<Value>> = BTreeMap::new();
    for (namespace, listed) in lists {
        match listed {
            Ok(list) => drop(shards.insert(namespace, list.items)),
            // Who may not read them is not told that they are broken.
            Err(error) if error.class() == Some(&Class::Forbidden) => {
                unseen.get_or_insert(error);
            }
            Err(error) => return Err(error),
        }
    }
    let known = releases.into_iter().filter_map(|summary| {
        let shards = shards.get(summary.store.namespace())?;
        let inventory = inventory_of(&summary, shards);
        Some(KnownRelease { summary, inventory })
    });
    Ok(Inventories {
        releases: known.collect(),
        unseen,
    })
}

/// Puts the members of a release together from the shards in its namespace.
fn inventory_of(summary: &ReleaseSummary, shards: &[Value]) -> Result<Inventory, String> {
    match &summary.record {
        Err(why) => Err(why.clone()),
        // What it had is not thereby nobody's.
        Ok(installed) if installed.is_blank() => Err(BLANK.to_owned()),
        Ok(installed) if installed.shards.is_empty() => Ok(Inventory::default()),
        Ok(installed) => assemble(&summary.name, &summary.store, installed, shards)
            .map_err(|error| crate::engine::words(&error)),
    }
}

/// Reads the members of releases, in their order, or why they cannot be read.
pub async fn inventories_of(
    cluster: &Cluster,
    releases: &[ReleaseSummary],
) -> Result<Vec<Result<Inventory, String>>, ClusterError> {
    let mut names: BTreeMap<&str, BTreeSet<String>> = BTreeMap::new();
    for release in releases {
        let names = names.entry(release.store.namespace()).or_default();
        names.insert(release.name.label());
    }
    let mut shards: BTreeMap<&str, Result<Vec<Value>, String>> = BTreeMap::new();
    for (namespace, names) in names {
        let names: Vec<String> = names.into_iter().collect();
        let of_releases = format!("{} in ({})", labels::RELEASE, names.join(","));
        let selector = Selector {
            namespace: Some(namespace),
            labels: Some(&of_releases),
            ..Selector::default()
        };
        let listed = match cluster.list(&config_maps(), &selector).await {
            Ok(list) => Ok(list.items),
            Err(error) if error.class() == Some(&Class::Forbidden) => {
                Err(crate::engine::words(&error))
            }
            Err(error) => return Err(error),
        };
        shards.insert(namespace, listed);
    }
    let inventories = releases
        .iter()
        .map(|release| match shards.get(release.store.namespace()) {
            Some(Ok(shards)) => inventory_of(release, shards),
            Some(Err(why)) => Err(why.clone()),
            None => Ok(Inventory::default()),
        });
    Ok(inventories.collect())
}

#[expect(
    clippy::needless_pass_by_value,
    reason = "what is read of an object is all that is kept of it"
)]
fn summary(object: Value) -> Option<ReleaseSummary> {
    ReleaseSummary::read(&object)
}

/// All releases at first, and then those that change. Failures are reported and do
/// not end the stream.
pub fn follow_changes(
    cluster: &Cluster,
    search: &Search,
) -> impl Stream<Item = Result<Vec<ReleaseSummary>, ClusterError>> + Send + use<> {
    let changes = search.places().into_iter().map(|place| {
        let followed = cluster.follow_read(&place.path, &place.selector(), summary);
        followed.boxed()
    });
    stream::select_all(changes).map(|change| {
        Ok(match change? {
            Followed::Listed(releases) => releases,
            Followed::Applied(release) => vec![release],
            Followed::Deleted(_) => Vec::new(),
        })
    })
}

/// All releases, anew whenever one of them changes. Failures are reported and
/// do not end the stream.
pub fn follow_releases(
    cluster: &Cluster,
    search: &Search,
) -> impl Stream<Item = Result<Vec<ReleaseSummary>, ClusterError>> + Send + use<> {
    type Known = BTreeMap<(ReleaseName, Store), ReleaseSummary>;
    let places = search.places().into_iter().enumerate();
    let changes = places.map(|(index, place)| {
        cluster
            .follow_read(&place.path, &place.selector(), summary)
            .map(move |change| (index, change))
            .boxed()
    });
    stream::select_all(changes).scan(
        BTreeMap::<usize, Known>::new(),
        |places, (index, change)| {
            let seen = change.map(|change| {
                let known = places.entry(index).or_default();
                let key = |release: &ReleaseSummary| (release.name.clone(), release.store.clone());
                match change {
                    Followed::Listed(releases) => {
                        let releases = releases.into_iter();
                        *known = releases.map(|release| (key(&release), release)).collect();
                    }
                    Followed::Applied(release) => {
                        known.insert(key(&release), release);
                    }
                    Followed::Deleted(release) => {
                        known.remove(&key(&release));
                    }
                }
                let mut all: Vec<ReleaseSummary> = places
                    .values()
                    .flat_map(|known| known.values().cloned())
                    .collect();
                all.sort_by(|a, b| (&a.name, &a.store).cmp(&(&b.name, &b.store)));
                all
            });
            std::future::ready(Some(seen))
        },
    )
}
