//! Reads a whole cluster for the doctor, and deletes the objects that the user selected.
//!
//! A failed read is recorded as a gap and never as an absence. Only discovery must succeed. The
//! decisions are in [`pleach_report::doctor`].

pub(super) mod controllers;
mod gates;
mod journals;
mod permissions;
mod sweep;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use futures::stream::{self, StreamExt as _};
use jiff::Timestamp;
use pleach_model::object::{GroupKind, ObjectId, ServiceRef};
use pleach_planner::observe::Backend;
use pleach_planner::plan::Deletion;
use pleach_report::doctor::{Crd, Gap, Gate, Leaving, Observations, Registered};
use pleach_state::inventory::Store;
use serde_json::Value;

use crate::sync::state::{self, Inventories, Search};
use pleach_cluster::{
    Class, Cluster, ClusterError, DeleteOptions, Deleted, Depth, ResourcePath, Retry, Selector,
};

/// Number of concurrent requests.
const CONCURRENCY: usize = 16;
/// Time limit for retries of a request. Short, because unresponsive servers are the very findings
/// of the doctor.
const PATIENCE: Duration = Duration::from_secs(3);

/// Parses one object of a kind that `--fix` is allowed to delete.
type Read = fn(&Value) -> Option<Registered>;

/// Reads all objects that the doctor checks. They are those of the whole cluster, or of the
/// namespaces that contain releases with namespaced state.
pub async fn examine(cluster: &Cluster, search: &Search) -> Result<Observations, ClusterError> {
    let cluster = &cluster.clone().with_retry(Retry::within(PATIENCE));
    let mut observations = Observations {
        at: Timestamp::now(),
        discovery: cluster.discover().await?,
        ..Observations::default()
    };
    match search {
        Search::In(Store::ConfigMap { namespace }) => {
            let releases = state::inventories(cluster, search).await;
            observations.take_releases(releases);
            journals::all(cluster, Some(namespace), &mut observations).await;
            sweep::namespaces(cluster, namespace, &mut observations).await;
        }
        Search::Everywhere | Search::In(Store::Release) => {
            examine_all(cluster, search, &mut observations).await;
        }
    }
    permissions::missing(cluster, search, &mut observations).await;
    Ok(observations)
}

async fn examine_all(cluster: &Cluster, search: &Search, observations: &mut Observations) {
    let (registrations, crds, namespaces, releases) = futures::join!(
        registrations(cluster),
        crds(cluster),
        namespaces(cluster),
        state::inventories(cluster, search)
    );
    for (path, listed) in registrations {
        let what = format!("the {}", path.plural);
        let found = observations.take(&what, listed).unwrap_or_default();
        observations.registrations.extend(found);
    }
    let crds = observations
        .take("CustomResourceDefinitions", crds)
        .unwrap_or_default();
    observations
        .registrations
        .extend(crds.iter().filter_map(Crd::registered));
    observations.namespaces = observations
        .take("the namespaces", namespaces)
        .unwrap_or_default();
    observations.take_releases(releases);
    backends(cluster, observations).await;
    gates::all(cluster, observations).await;
    journals::all(cluster, None, observations).await;
    let kinds = crds.iter().map(Crd::kind).collect();
    sweep::objects(cluster, kinds, observations).await;
    controllers::find(cluster, observations).await;
}

/// Reads the facts to judge one registration or gate: the object, its backends and its owner.
/// Returns `None` if the object does not exist.
pub async fn examine_one(
    cluster: &Cluster,
    id: &ObjectId,
) -> Result<Option<Observations>, ClusterError> {
    let Some(path) = fixable_path(id) else {
        return Ok(None);
    };
    let Some(value) = cluster.get_id(&path, id).await? else {
        return Ok(None);
    };
    let mut observations = Observations {
        at: Timestamp::now(),
        ..Observations::default()
    };
    observations.take_releases(state::inventories(cluster, &Search::Everywhere).await);
    let registration = registration_kinds()
        .into_iter()
        .find(|(path, _)| path.group_kind() == id.group_kind());
    if let Some((_, read)) = registration {
        observations.registrations = read(&value).into_iter().collect();
        backends(cluster, &mut observations).await;
    } else {
        let gates = Gate::read(&value).into_iter().collect();
        gates::complete(cluster, gates, &mut observations).await;
    }
    Ok(Some(observations))
}

/// Returns whether `--fix` is ever allowed to delete objects of this kind.
pub fn is_fixable_kind(id: &ObjectId) -> bool {
    fixable_path(id).is_some()
}

/// Returns the kinds of [`is_fixable_kind`].
pub fn fixable_kinds() -> Vec<GroupKind> {
    let paths = registration_kinds().map(|(path, _)| path);
    let paths = paths.into_iter().chain([gates::policies()]);
    paths.map(|path| path.group_kind()).collect()
}

/// Deletes an object if it is still the examined one.
pub async fn remove(
    cluster: &Cluster,
    id: &ObjectId,
    deletion: &Deletion,
) -> Result<Deleted, ClusterError> {
    let binding = gates::bindings();
    let path = fixable_path(id)
        .or_else(|| (binding.group_kind() == id.group_kind()).then_some(binding))
        .ok_or_else(|| ClusterError::Address {
            what: id.to_string(),
            why: "doctor deletes only registrations and gates",
        })?;
    let options = DeleteOptions {
        uid: Some(deletion.uid()),
        resource_version: deletion.resource_version(),
        propagation: deletion.propagation(),
        dry_run: false,
    };
    cluster.delete(&path, id, &options).await
}

/// Returns the kinds that refer to Services, except CRDs.
fn registration_kinds() -> [(ResourcePath, Read); 3] {
    let webhooks = "admissionregistration.k8s.io/v1";
    [
        (
            ResourcePath::cluster_scoped("apiregistration.k8s.io/v1", "APIService", "apiservices"),
            Registered::api_service,
        ),
        (
            ResourcePath::cluster_scoped(
                webhooks,
                "ValidatingWebhookConfiguration",
                "validatingwebhookconfigurations",
            ),
            |value| Registered::webhooks("ValidatingWebhookConfiguration", value),
        ),
        (
            ResourcePath::cluster_scoped(
                webhooks,
                "MutatingWebhookConfiguration",
                "mutatingwebhookconfigurations",
            ),
            |value| Registered::webhooks("MutatingWebhookConfiguration", value),
        ),
    ]
}

fn fixable_path(id: &ObjectId) -> Option<ResourcePath> {
    registration_kinds()
        .into_iter()
        .map(|(path, _)| path)
        .chain([gates::policies()])
        .find(|path| path.group_kind() == id.group_kind() && id.namespace.is_none())
}

async fn registrations(
    cluster: &Cluster,
) -> Vec<(ResourcePath, Result<Vec<Registered>, ClusterError>)> {
    let lists = registration_kinds().map(|(path, read)| async move {
        let listed = cluster
            .pick(&path, &Selector::default(), Depth::Full, |value: Value| {
                read(&value)
            })
            .await;
        (path, listed)
    });
    futures::future::join_all(lists).await
}

/// Lists CRDs without their schemas, which make up most of their size.
async fn crds(cluster: &Cluster) -> Result<Vec<Crd>, ClusterError> {
    let path = ResourcePath::cluster_scoped(
        "apiextensions.k8s.io/v1",
        "CustomResourceDefinition",
        "customresourcedefinitions",
    );
    cluster
        .pick(&path, &Selector::default(), Depth::Full, Some)
        .await
}

async fn namespaces(cluster: &Cluster) -> Result<Vec<Leaving>, ClusterError> {
    let path = ResourcePath::cluster_scoped("v1", "Namespace", "namespaces");
    cluster
        .pick(&path, &Selector::default(), Depth::Full, |value: Value| {
            Leaving::read(&value)
        })
        .await
}

/// Reads the backends of all Services that a registration refers to.
async fn backends(cluster: &Cluster, observations: &mut Observations) {
    let services: BTreeSet<ServiceRef> = observations
        .registrations
        .iter()
        .flat_map(Registered::services)
        .cloned()
        .collect();
    let read: Vec<(ServiceRef, Result<Backend, ClusterError>)> = stream::iter(services)
        .map(|service| async move {
            let backend = cluster.backend(&service).await;
            (service, backend)
        })
        .buffer_unordered(CONCURRENCY)
        .collect()
        .await;
    let mut backends = BTreeMap::new();
    for (service, backend) in read {
        let what = format!("Service {service}");
        if let Some(backend) = observations.take(&what, backend) {
            backends.insert(service, backend);
        }
    }
    observations.backends = backends;
}

/// Collects read results, and turns failures into gaps of the view.
trait Take {
    fn take<T>(&mut self, what: &str, read: Result<T, ClusterError>) -> Option<T>;

    /// Stores the releases. Some can be in namespaces that we are not allowed to read.
    fn take_releases(&mut self, read: Result<Inventories, ClusterError>);
}

impl Take for Observations {
    fn take<T>(&mut self, what: &str, read: Result<T, ClusterError>) -> Option<T> {
        match read {
            Ok(read) => Some(read),
            Err(error) => {
                self.gaps.push(Gap {
                    what: what.to_owned(),
                    why: crate::words(&error),
                    forbidden: error.class() == Some(&Class::Forbidden),
                });
                None
            }
        }
    }

    fn take_releases(&mut self, read: Result<Inventories, ClusterError>) {
        let Some(found) = self.take("the releases of pleach", read) else {
            return;
        };
        self.releases = found.releases;
        self.releases_are_complete = match found.unseen {
            None => true,
            Some(error) => {
                let none: Option<()> = self.take("other releases of pleach", Err(error));
                none.is_some()
            }
        };
    }
}
