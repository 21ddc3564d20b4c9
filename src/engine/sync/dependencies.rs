//! Looks whether what a release depends on is ready, and who depends on one
//! that goes.

use futures::stream::{self, StreamExt as _};
use pleach_domain::depends::{Dependency, Hindrance, Needed, NeededObject, Wanted};
use pleach_domain::inventory::{Installed, ReleaseName, Store};
use pleach_domain::object::ObjectId;
use pleach_domain::observe::{Discovery, Observed};
use pleach_domain::plan::{Desired, Plan};
use serde_json::Value;

use super::CONCURRENCY;
use super::error::SyncError;
use super::state::{self, Search};
use crate::engine::words;
use crate::io::cluster::{Class, Cluster, ClusterError, ResourcePath};

/// A release beside the one that is planned.
#[derive(Debug, Clone, Copy)]
pub struct Neighbor<'a> {
    /// What is wanted of it.
    pub wanted: Wanted<'a>,
    /// It is carried out, or taken away, before the one that is planned.
    pub comes_first: bool,
}

/// Where an object that is needed is, as its kind is served; none where the kind
/// is not served. The namespace is that of the release where nothing is said.
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

/// Looks at what a release depends on before a plan is carried out that changes
/// it. Gives what is in the way.
///
/// `neighbor` knows the other releases of the environment by their names.
pub async fn look_at_dependencies<'a>(
    cluster: &Cluster,
    desired: &Desired,
    observed: &Observed,
    plan: &Plan,
    neighbor: &(dyn Fn(&str) -> Neighbor<'a> + Sync),
) -> Result<Vec<Hindrance>, SyncError> {
    if !plan.has_steps() || !desired.needs_dependencies(observed.installed.as_ref()) {
        return Ok(Vec::new());
    }
    let discovery = &observed.discovery;
    let looked: Vec<Result<Option<Hindrance>, SyncError>> =
        stream::iter(desired.terms.depends_on.iter().enumerate())
            .map(|(index, dependency)| async move {
                let (what, lacks, comes_first) = match &dependency.needed {
                    Needed::Release(name) => {
                        let neighbor = neighbor(name);
                        let record = look_at_release(cluster, desired, name, neighbor.wanted);
                        let what = format!("release {name}");
                        (what, record.await?, neighbor.comes_first)
                    }
                    Needed::Object(needed) => {
                        let namespace = desired.namespace.as_deref();
                        let (what, lacks) =
                            look_at_object(cluster, needed, namespace, discovery).await?;
                        (what, lacks, false)
                    }
                };
                let said = |lacks: String| said(dependency, index, &what, &lacks, comes_first);
                Ok(lacks.map(said))
            })
            .buffered(CONCURRENCY)
            .collect()
            .await;
    looked.into_iter().filter_map(Result::transpose).collect()
}

fn said(
    dependency: &Dependency,
    index: usize,
    what: &str,
    lacks: &str,
    comes_first: bool,
) -> Hindrance {
    let message = if comes_first {
        format!("{what} is carried out and ready first")
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

async fn look_at_release(
    cluster: &Cluster,
    desired: &Desired,
    name: &str,
    wanted: Wanted<'_>,
) -> Result<Option<String>, SyncError> {
    let name = ReleaseName {
        environment: desired.name.environment.clone(),
        release: name.to_owned(),
    };
    let search = Search::In(desired.store.clone());
    let found = state::release(cluster, &name, &search).await?;
    Ok(match found.first().map(|summary| &summary.record) {
        Some(Err(why)) => Some(format!("has a record that cannot be read: {why}")),
        Some(Ok(record)) => wanted.lacks(Some(record)),
        None => wanted.lacks(None),
    })
}

/// What an object is called, and what it lacks. One that may not be read is
/// not known to be ready.
async fn look_at_object(
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

/// Whether a failure says something of the object only.
fn is_of_the_object(error: &ClusterError) -> bool {
    matches!(
        error.class(),
        Some(Class::Forbidden | Class::KindNotServed | Class::NotFound)
    )
}

/// Whether a live object is what is needed, as a watch shows it.
pub fn is_ready(needed: &NeededObject, live: &Value) -> bool {
    needed.lacks(Some(live)).is_none()
}

/// Whether the plan that was applied last depends on a release of its environment.
fn remembers(record: &Installed, release: &String) -> bool {
    let memory = record.memory.as_ref();
    memory.is_some_and(|memory| memory.depends_on.contains(release))
}

/// Finds the installed releases that depend on one that goes: those that git
/// has (`in_git`, with whether they do) by what git says, all others by what is
/// recorded; one whose record cannot be read may. Who may not list releases sees
/// only itself.
pub async fn look_at_dependants(
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
        let said_in_git = in_git(&other.release);
        // What git still has does not go first.
        let comes_first = comes_first && said_in_git.is_none() && release.record.is_ok();
        let message = match (said_in_git, &release.record) {
            (Some(false), _) => continue,
            // Not known to be independent is not independent.
            (None, Err(why)) => {
                format!("whether release {other} depends on it cannot be told: {why}")
            }
            (None, Ok(record)) if !remembers(record, &name.release) => continue,
            _ if comes_first => format!("release {other}, which depends on it, goes first"),
            _ => format!("release {other} depends on it: take that one away first"),
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
