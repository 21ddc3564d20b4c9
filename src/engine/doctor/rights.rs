//! What pleach itself may not do in the cluster.

use std::collections::{BTreeMap, BTreeSet};

use futures::stream::{self, StreamExt as _, TryStreamExt as _};
use pleach_domain::doctor::Observations;
use pleach_domain::inventory::{STATE_NAMESPACE, Store};
use pleach_domain::object::GroupKind;
use pleach_domain::observe::MissingGrant;

use super::{CONCURRENCY, Take as _};
use crate::engine::sync::state::{KEY_SECRET, Search};
use crate::io::cluster::{Access, Cluster, ClusterError, ResourcePath};

/// What is done with members.
const OF_MEMBERS: &[&str] = &["get", "list", "watch", "create", "patch", "delete"];

/// Group, kind, plural, verbs, and whether it is about state, which has a
/// namespace of its own.
type Needed = (
    &'static str,
    &'static str,
    &'static str,
    &'static [&'static str],
    bool,
);

/// What every release needs.
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

/// The definition of Release.
const DEFINITION: &str = "releases.pleach.dev";

/// What a release needs whose state is kept in a namespace.
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

/// A kind somewhere: its plural, a namespace, and the only object that is needed.
type Place = (GroupKind, String, Option<String>, Option<String>);

/// Fills in the rights that pleach lacks: those that every release needs, and
/// those on the kinds of its members, in the namespaces that they are in.
pub(super) async fn missing(cluster: &Cluster, search: &Search, observations: &mut Observations) {
    let everything = may(cluster, "*", ("*", "*"), None, None).await;
    match observations.take("our rights", everything) {
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
            // It reads the namespace that it is in, and no other.
            ("Namespace", Search::In(Store::ConfigMap { namespace })) => Some(namespace.clone()),
            ("CustomResourceDefinition", _) => Some(DEFINITION.to_owned()),
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
    let asked: Result<Vec<Vec<MissingGrant>>, ClusterError> = stream::iter(needed)
        .map(|(place, verbs)| ask(cluster, place, verbs))
        .buffered(CONCURRENCY)
        .try_collect()
        .await;
    let missing = observations.take("our rights", asked).unwrap_or_default();
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
        // What is made has no name yet for who allows it, unless it is made by a patch.
        let name = name.filter(|name| verb != "create" || *name == DEFINITION);
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
