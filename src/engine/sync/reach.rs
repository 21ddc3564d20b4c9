//! How far our rights reach: a kind is listed and watched in the whole cluster,
//! or namespace by namespace.

use std::collections::BTreeSet;

use pleach_domain::object::GroupKind;
use pleach_domain::observe::{Listing, Observed};

use crate::io::cluster::ResourcePath;

/// What is known of our rights from requests that were made anyway.
#[derive(Debug, Clone, Default)]
pub(super) struct Reach {
    /// Something of the whole cluster was refused: who may not list
    /// registrations has rights in namespaces.
    restricted: bool,
    /// Kinds that were refused in the whole cluster.
    closed: BTreeSet<GroupKind>,
}

impl Reach {
    /// Takes what the lists so far have shown.
    pub(super) fn of(observed: &Observed) -> Self {
        let closed: BTreeSet<GroupKind> = observed
            .listings
            .iter()
            .filter(|(key, listing)| {
                key.namespace.is_none() && matches!(listing, Listing::Forbidden(_))
            })
            .map(|(key, _)| key.kind.clone())
            .collect();
        Self {
            restricted: !closed.is_empty(),
            closed,
        }
    }

    /// Whether something of the whole cluster was refused.
    pub(super) fn is_restricted(&self) -> bool {
        self.restricted
    }

    /// Where a kind is asked for whose objects lie in these namespaces; none
    /// stands for the whole cluster. One namespace is never more than that.
    pub(super) fn scopes(
        &self,
        path: &ResourcePath,
        namespaces: &BTreeSet<String>,
    ) -> Vec<Option<String>> {
        let by_namespace = path.namespaced
            && (namespaces.len() == 1
                || self.restricted
                || self.closed.contains(&path.group_kind()));
        if by_namespace {
            namespaces.iter().cloned().map(Some).collect()
        } else {
            vec![None]
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kind_in_many_namespaces_is_one_request_for_who_may() {
        let maps = ResourcePath::namespaced("v1", "ConfigMap", "configmaps");
        let roles = ResourcePath::cluster_scoped(
            "rbac.authorization.k8s.io/v1",
            "ClusterRole",
            "clusterroles",
        );
        let set = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect();
        let some = |name: &str| Some(name.to_owned());
        let free = Reach::default();
        let restricted = Reach {
            restricted: true,
            closed: BTreeSet::new(),
        };
        assert_eq!(free.scopes(&maps, &set(&["a"])), [some("a")]);
        assert_eq!(free.scopes(&maps, &set(&["a", "b"])), [None]);
        assert_eq!(
            restricted.scopes(&maps, &set(&["a", "b"])),
            [some("a"), some("b")]
        );
        assert_eq!(restricted.scopes(&roles, &set(&[])), [None]);
    }
}
