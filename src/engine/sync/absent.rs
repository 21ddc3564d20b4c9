//! Whether kinds that are not served are gone with their objects.
//!
//! A kind that is not served is not thereby gone: its server may be down. It is
//! gone when nothing defines it any more, neither a definition nor a server
//! that is registered for its group.

use std::collections::BTreeSet;

use pleach_domain::doctor::Definition;
use pleach_domain::object::GroupKind;
use pleach_domain::order::is_builtin_group;

use crate::io::cluster::{Cluster, ClusterError, Depth, ResourcePath, Selector};

/// Label of the `APIServices` that the server makes by itself.
const AUTOMANAGED: &str = "kube-aggregator.kubernetes.io/automanaged";

/// The kinds among these that nothing defines any more.
pub(super) async fn confirmed_absent(
    cluster: &Cluster,
    kinds: BTreeSet<GroupKind>,
) -> Result<BTreeSet<GroupKind>, ClusterError> {
    let custom: BTreeSet<GroupKind> = kinds
        .into_iter()
        .filter(|kind| !is_builtin_group(&kind.group))
        .collect();
    if custom.is_empty() {
        return Ok(custom);
    }
    let definitions = ResourcePath::cluster_scoped(
        "apiextensions.k8s.io/v1",
        "CustomResourceDefinition",
        "customresourcedefinitions",
    );
    let services =
        ResourcePath::cluster_scoped("apiregistration.k8s.io/v1", "APIService", "apiservices");
    let everything = Selector::default();
    let (defined, registered) = futures::try_join!(
        cluster.pick(
            &definitions,
            &everything,
            Depth::Full,
            |definition: Definition| Some(definition.kind())
        ),
        cluster.list_metadata(&services, &everything, "")
    )?;
    // The name of an APIService is `<version>.<group>`. Those of definitions are
    // made by the server, which takes them back a little later than those.
    let registered: BTreeSet<&str> = registered
        .items
        .iter()
        .filter(|(_, meta)| !meta.labels.contains_key(AUTOMANAGED))
        .filter_map(|(id, _)| id.name.split_once('.').map(|(_, group)| group))
        .collect();
    Ok(custom
        .into_iter()
        .filter(|kind| !defined.contains(kind) && !registered.contains(kind.group.as_str()))
        .collect())
}
