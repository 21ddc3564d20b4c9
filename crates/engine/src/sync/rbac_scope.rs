//! RBAC scope of pleach: whether kinds are listed and watched cluster-wide or per namespace.

use std::collections::BTreeSet;

use pleach_model::object::GroupKind;
use pleach_planner::observe::{Listing, Observed};

use pleach_cluster::ResourcePath;

/// RBAC scope, as learned from requests.
#[derive(Debug, Clone, Default)]
pub(super) struct RbacScope {
    /// Whether a cluster-wide request was forbidden. Without permission to list registrations,
    /// pleach probably has only namespaced permissions.
    restricted: bool,
    /// Kinds whose cluster-wide list was forbidden.
    closed: BTreeSet<GroupKind>,
}

impl RbacScope {
    /// Derives the scope from the lists so far.
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

    /// Returns whether a cluster-wide request was forbidden.
    pub(super) fn is_restricted(&self) -> bool {
        self.restricted
    }

    /// Returns the scopes to query for objects in these namespaces; `None` stands for the whole
    /// cluster. For a single namespace, it returns that namespace.
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
    fn cluster_wide_access_needs_one_request_per_kind() {
        let maps = ResourcePath::namespaced("v1", "ConfigMap", "configmaps");
        let roles = ResourcePath::cluster_scoped(
            "rbac.authorization.k8s.io/v1",
            "ClusterRole",
            "clusterroles",
        );
        let set = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect();
        let some = |name: &str| Some(name.to_owned());
        let free = RbacScope::default();
        let restricted = RbacScope {
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
