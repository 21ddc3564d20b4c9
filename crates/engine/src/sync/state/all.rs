//! Records of all releases, for read-only use.

use std::collections::{BTreeMap, BTreeSet};

use futures::stream::{self, Stream, StreamExt as _};
use pleach_model::object::{ReleaseName, labels};
use pleach_report::doctor::KnownRelease;
use pleach_state::inventory::{Inventory, ReleaseSummary, Store};
use serde_json::Value;

use super::config_maps;
use super::parent::path;
use super::shards::assemble;
use pleach_cluster::{Class, Cluster, ClusterError, Followed, List, ResourcePath, Selector};

/// Label selector of ConfigMaps with a record.
const RECORDS: &str = "applyset.kubernetes.io/id,pleach.dev/release";

/// Reason why the inventory of an empty record cannot be read.
const BLANK: &str = "its record is empty: the first run was killed, or a client emptied it";

/// Location of records to search.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Search {
    /// The whole cluster, as far as permissions allow.
    Everywhere,
    /// The store of an environment.
    In(Store),
}

/// Found records, with the error of an incomplete search.
#[derive(Debug)]
pub struct Records {
    /// Sorted by name.
    pub releases: Vec<ReleaseSummary>,
    /// Reason why there can be more, in ConfigMaps or as Releases.
    pub unseen: Option<ClusterError>,
}

/// Releases with their members, and the error of an incomplete search.
#[derive(Debug)]
pub struct Inventories {
    /// Sorted by name.
    pub releases: Vec<KnownRelease>,
    /// Reason why there can be more.
    pub unseen: Option<ClusterError>,
}

/// A kind of record object, optionally in one namespace.
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

/// Lists all releases; empty if pleach was never used. Fails if all locations are forbidden. If
/// only some are, it returns the others with `unseen`.
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
    let mut is_listed = false;
    for listed in futures::future::join_all(lists).await {
        match listed {
            Ok(releases) => {
                is_listed = true;
                records.releases.extend(releases);
            }
            Err(error) if error.class() == Some(&Class::Forbidden) => {
                // Keep the first error, which is the most common one.
                records.unseen.get_or_insert(error);
            }
            Err(error) => return Err(error),
        }
    }
    match records.unseen.take() {
        Some(error) if !is_listed => return Err(error),
        unseen => records.unseen = unseen,
    }
    records
        .releases
        .sort_by(|a, b| (&a.name, &a.store).cmp(&(&b.name, &b.store)));
    Ok(records)
}

/// Finds a release; empty if it is not installed. Without a Release, ConfigMaps in several
/// namespaces can have the same name.
pub async fn release(
    cluster: &Cluster,
    name: &ReleaseName,
    search: &Search,
) -> Result<Vec<ReleaseSummary>, ClusterError> {
    let found = find(cluster, name, search, false).await?;
    Ok(found.releases)
}

/// Finds all records of one name: the Release first, then ConfigMaps.
pub async fn namesakes(
    cluster: &Cluster,
    name: &ReleaseName,
    search: &Search,
) -> Result<Records, ClusterError> {
    find(cluster, name, search, true).await
}

/// Reads the records of one name: all of them, or those in the first location that has any.
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

/// Lists all releases with their members, or the error of each unreadable inventory. Reads twice if
/// needed, because another client can write between the two reads.
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
            // Without permission to read shards, report them as unseen and not as broken.
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

/// Assembles the members of a release from the shards in its namespace.
fn inventory_of(summary: &ReleaseSummary, shards: &[Value]) -> Result<Inventory, String> {
    match &summary.record {
        Err(why) => Err(why.clone()),
        // An empty record does not mean that there are no members.
        Ok(installed) if installed.is_blank() => Err(BLANK.to_owned()),
        Ok(installed) if installed.shards.is_empty() => Ok(Inventory::default()),
        Ok(installed) => assemble(&summary.name, &summary.store, installed, shards)
            .map_err(|error| crate::words(&error)),
    }
}

/// Reads the members of releases in the given order, or the errors.
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
            Err(error) if error.class() == Some(&Class::Forbidden) => Err(crate::words(&error)),
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

/// Streams all releases first, then changed ones. Errors are items and do not end the stream.
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

/// Streams the list of all releases after each change. Errors are items and do not end the stream.
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
