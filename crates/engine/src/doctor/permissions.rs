//! Permissions that pleach lacks in the cluster.

use std::collections::{BTreeMap, BTreeSet};

use futures::stream::{self, StreamExt as _, TryStreamExt as _};
use pleach_model::object::GroupKind;
use pleach_planner::observe::MissingGrant;
use pleach_report::doctor::Observations;
use pleach_state::inventory::{STATE_NAMESPACE, Store};

use super::{CONCURRENCY, Take as _};
use crate::sync::state::{KEY_SECRET, Search};
use pleach_cluster::{Access, Cluster, ClusterError, ResourcePath};

/// Verbs that pleach uses on members.
const OF_MEMBERS: &[&str] = &["get", "list", "watch", "create", "patch", "delete"];

/// Group, kind, plural, verbs, and whether the kind stores state, which has its own namespace.
type Needed = (
    &'static str,
    &'static str,
    &'static str,
    &'static [&'static str],
    bool,
);

/// Permissions that every release needs.
const OF_PLEACH: &[Needed] = &[
    (
        "pleach.dev",
        "Release",
        "releases",
        &["get", "list", "watch", "create", "patch", "delete"],
        false,
    ),
    (
        "apiextensions.k8s.io",
        "CustomResourceDefinition",
        "customresourcedefinitions",
        &["get", "create", "patch"],
        false,
    ),
    (
        "",
        "Namespace",
        "namespaces",
        &["get", "create", "patch"],
        false,
    ),
    (
        "",
        "ConfigMap",
        "configmaps",
        &["get", "list", "create", "patch", "delete"],
        true,
    ),
    ("", "Secret", "secrets", &["get", "create"], true),
    (
        "coordination.k8s.io",
        "Lease",
        "leases",
        &["get", "create", "patch", "delete"],
        true,
    ),
    ("", "Service", "services", &["get"], false),
    (
        "discovery.k8s.io",
        "EndpointSlice",
        "endpointslices",
        &["list"],
        false,
    ),
    (
        "apiregistration.k8s.io",
        "APIService",
        "apiservices",
        &["list", "delete"],
        false,
    ),
    (
        "admissionregistration.k8s.io",
        "ValidatingWebhookConfiguration",
        "validatingwebhookconfigurations",
        &["list", "delete"],
        false,
    ),
    (
        "admissionregistration.k8s.io",
        "MutatingWebhookConfiguration",
        "mutatingwebhookconfigurations",
        &["list", "delete"],
        false,
    ),
];

/// Name of the Release CRD.
const CRD: &str = "releases.pleach.dev";

/// Permissions for a release whose state is in its namespace.
const OF_ONE_NAMESPACE: &[Needed] = &[
    (
        "",
        "ConfigMap",
        "configmaps",
        &["get", "list", "watch", "create", "patch", "delete"],
        true,
    ),
    ("", "Secret", "secrets", &["get", "create"], true),
    (
        "coordination.k8s.io",
        "Lease",
        "leases",
        &["get", "create", "patch", "delete"],
        true,
    ),
    ("", "Namespace", "namespaces", &["get"], true),
];

/// Scope of a permission: kind, plural, namespace, and the name of a single object if one is
/// enough.
type Place = (GroupKind, String, Option<String>, Option<String>);

/// Adds the permissions that pleach lacks: those that every release needs, and those on the kinds
/// of its members in their namespaces.
pub(super) async fn missing(cluster: &Cluster, search: &Search, observations: &mut Observations) {
    let everything = may(cluster, "*", ("*", "*"), None, None).await;
    match observations.take("the permissions of pleach", everything) {
        Some(true) | None => return,
        Some(false) => {}
    }
    let mut needed: BTreeMap<Place, BTreeSet<&'static str>> = BTreeMap::new();
    let (of_pleach, state_namespace) = match search {
        Search::In(Store::ConfigMap { namespace }) => (OF_ONE_NAMESPACE, namespace.as_str()),
        Search::Everywhere | Search::In(Store::Release) => (OF_PLEACH, STATE_NAMESPACE),
    };
    for (group, kind, plural, verbs, is_state) in of_pleach {
        let namespace = is_state.then(|| state_namespace.to_owned());
        let name = match (*kind, search) {
            ("Secret", _) => Some(KEY_SECRET.to_owned()),
            // It reads only the namespace of its state.
            ("Namespace", Search::In(Store::ConfigMap { namespace })) => Some(namespace.clone()),
            ("CustomResourceDefinition", _) => Some(CRD.to_owned()),
            _ => None,
        };
        let place = (
            GroupKind::new(*group, *kind),
            (*plural).to_owned(),
            namespace,
            name,
        );
        needed.entry(place).or_default().extend(*verbs);
    }
    for release in &observations.releases {
        for id in release
            .inventory
            .iter()
            .flat_map(|inventory| inventory.entries.keys())
        {
            let kind = id.group_kind();
            let Some(path) = ResourcePath::preferred(&observations.discovery, &kind) else {
                continue;
            };
            let place = (kind, path.plural, id.namespace.clone(), None);
            needed.entry(place).or_default().extend(OF_MEMBERS);
        }
    }
    let answers: Result<Vec<Vec<MissingGrant>>, ClusterError> = stream::iter(needed)
        .map(|(place, verbs)| ask(cluster, place, verbs))
        .buffered(CONCURRENCY)
        .try_collect()
        .await;
    let missing = observations
        .take("the permissions of pleach", answers)
        .unwrap_or_default();
    observations.missing = missing.into_iter().flatten().collect();
}

async fn ask(
    cluster: &Cluster,
    place: Place,
    verbs: BTreeSet<&'static str>,
) -> Result<Vec<MissingGrant>, ClusterError> {
    let (kind, resource, namespace, name) = place;
    let of = (kind.group.as_str(), resource.as_str());
    let (within, name) = (namespace.as_deref(), name.as_deref());
    if may(cluster, "*", of, within, name).await? {
        return Ok(Vec::new());
    }
    let mut missing = Vec::new();
    for verb in verbs {
        // RBAC cannot match the name of an object on create, except for creation by server-side
        // apply.
        let name = name.filter(|name| verb != "create" || *name == CRD);
        if !may(cluster, verb, of, within, name).await? {
            missing.push(MissingGrant {
                verb: verb.to_owned(),
                kind: kind.clone(),
                resource: resource.clone(),
                namespace: namespace.clone(),
            });
        }
    }
    Ok(missing)
}

async fn may(
    cluster: &Cluster,
    verb: &str,
    (group, resource): (&str, &str),
    namespace: Option<&str>,
    name: Option<&str>,
) -> Result<bool, ClusterError> {
    let access = Access {
        verb,
        group,
        resource,
        subresource: None,
        namespace,
        name,
    };
    cluster.can_i(&access).await
}
