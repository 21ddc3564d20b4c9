//! Readiness of the dependencies of a release, and the dependents of a release to uninstall.

use pleach_config::dependencies::{Dependency, Hindrance, Needed, NeededObject, TargetRelease};
use pleach_model::discovery::Discovery;
use pleach_model::object::{ObjectId, ReleaseName};
use pleach_planner::plan::Desired;
use pleach_state::inventory::{Installed, Store};
use serde_json::Value;

use super::answers::Source;
use super::error::SyncError;
use super::state::{self, Search};
use crate::words;
use pleach_cluster::{Class, Cluster, ClusterError, ResourcePath};

/// Another release beside the planned one.
#[derive(Debug, Clone, Copy)]
pub struct Neighbor<'a> {
    /// Its expected state.
    pub target: TargetRelease<'a>,
    /// Whether it is executed or uninstalled before the planned release.
    pub comes_first: bool,
}

/// Returns path and id of a needed object. `None` if its kind is not served. The namespace defaults
/// to that of the release.
pub fn place_of(
    needed: &NeededObject,
    namespace: Option<&str>,
    discovery: &Discovery,
) -> Option<(ResourcePath, ObjectId)> {
    let path = ResourcePath::preferred(discovery, &needed.kind)?;
    let own = needed.namespace.as_deref().or(namespace);
    let id = path.id(own.filter(|_| path.namespaced), &needed.name);
    Some((path, id))
}

impl Source<'_> {
    /// Checks a dependency of the release, by its index. Returns `None` if it is ready.
    ///
    /// `neighbor` returns other releases of the environment by name.
    pub(crate) async fn dependency<'n>(
        &self,
        index: usize,
        neighbor: &(dyn Fn(&str) -> Neighbor<'n> + Sync),
    ) -> Result<Option<Hindrance>, SyncError> {
        let Some(dependency) = self.desired.terms.depends_on.get(index) else {
            return Ok(None);
        };
        let (what, lacks, comes_first) = match &dependency.needed {
            Needed::Release(name) => {
                let neighbor = neighbor(name);
                let lacks = check_release(self.cluster, self.desired, name, neighbor.target);
                (
                    format!("release {name}"),
                    lacks.await?,
                    neighbor.comes_first,
                )
            }
            Needed::Object(needed) => {
                let namespace = self.desired.namespace.as_deref();
                let discovery = &self.observed.discovery;
                let (what, lacks) =
                    check_object(self.cluster, needed, namespace, discovery).await?;
                (what, lacks, false)
            }
        };
        Ok(lacks.map(|lacks| hindrance(dependency, index, &what, &lacks, comes_first)))
    }
}

fn hindrance(
    dependency: &Dependency,
    index: usize,
    what: &str,
    lacks: &str,
    comes_first: bool,
) -> Hindrance {
    let message = if comes_first {
        format!("{what} is applied and ready first")
    } else {
        format!("it depends on {what}, which {lacks}")
    };
    Hindrance {
        message,
        place: Some(dependency.origin.clone()),
        index: Some(index),
        comes_first,
    }
}

async fn check_release(
    cluster: &Cluster,
    desired: &Desired,
    name: &str,
    target: TargetRelease<'_>,
) -> Result<Option<String>, SyncError> {
    let name = ReleaseName {
        environment: desired.name.environment.clone(),
        release: name.to_owned(),
    };
    let search = Search::In(desired.store.clone());
    let found = state::release(cluster, &name, &search).await?;
    Ok(match found.first().map(|summary| &summary.record) {
        Some(Err(why)) => Some(format!("has a record that cannot be read: {why}")),
        Some(Ok(record)) => target.lacks(Some(record)),
        None => target.lacks(None),
    })
}

/// Returns the name of an object, and what it lacks. An object that cannot be read counts as not
/// ready.
async fn check_object(
    cluster: &Cluster,
    needed: &NeededObject,
    namespace: Option<&str>,
    discovery: &Discovery,
) -> Result<(String, Option<String>), SyncError> {
    let Some((path, id)) = place_of(needed, namespace, discovery) else {
        let lacks = "is of a kind that is not served".to_owned();
        return Ok((needed.to_string(), Some(lacks)));
    };
    let lacks = match cluster.get_id(&path, &id).await {
        Ok(live) => needed.lacks(live.as_ref()),
        Err(error) if is_of_the_object(&error) => {
            Some(format!("cannot be read: {}", words(&error)))
        }
        Err(error) => return Err(error.into()),
    };
    Ok((id.to_string(), lacks))
}

/// Returns whether an error concerns only the object.
fn is_of_the_object(error: &ClusterError) -> bool {
    matches!(
        error.class(),
        Some(Class::Forbidden | Class::KindNotServed | Class::NotFound)
    )
}

/// Returns whether a live object, as received by a watch, meets the need.
pub fn is_ready(needed: &NeededObject, live: &Value) -> bool {
    needed.lacks(Some(live)).is_none()
}

/// Returns whether the last applied plan depended on a release of its environment.
fn remembers(record: &Installed, release: &String) -> bool {
    let memory = record.memory.as_ref();
    memory.is_some_and(|memory| memory.depends_on.contains(release))
}

/// Finds the installed releases that depend on one to uninstall. Releases in git (`in_git`, which
/// returns whether they depend on it) count by git, others by their record. A release with an
/// unreadable record counts too. Without permission to list releases, none is found.
pub(crate) async fn dependents(
    cluster: &Cluster,
    name: &ReleaseName,
    store: &Store,
    in_git: &(dyn Fn(&str) -> Option<bool> + Sync),
    comes_first: bool,
) -> Result<Vec<Hindrance>, SyncError> {
    let listed = match state::releases(cluster, &Search::In(store.clone())).await {
        Ok(records) => records.releases,
        Err(error) if error.class() == Some(&Class::Forbidden) => return Ok(Vec::new()),
        Err(error) => return Err(error.into()),
    };
    let mut hindrances = Vec::new();
    for release in listed {
        let other = &release.name;
        if other.environment != name.environment || other == name {
            continue;
        }
        let pinned_in_git = in_git(&other.release);
        // A release that is still in git is not uninstalled first.
        let comes_first = comes_first && pinned_in_git.is_none() && release.record.is_ok();
        let message = match (pinned_in_git, &release.record) {
            (Some(false), _) => continue,
            // Unknown dependencies count as dependencies.
            (None, Err(why)) => {
                format!("cannot determine whether release {other} depends on it: {why}")
            }
            (None, Ok(record)) if !remembers(record, &name.release) => continue,
            _ if comes_first => format!("release {other} depends on it and is uninstalled first"),
            _ => format!("release {other} depends on it: uninstall that release first"),
        };
        hindrances.push(Hindrance {
            message,
            place: None,
            index: None,
            comes_first,
        });
    }
    Ok(hindrances)
}
