//! Open watches: cluster-wide per kind or, if forbidden, per namespace with members. Each runtime
//! object has its own watch.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use pleach_model::object::{GroupKind, ObjectId};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::{Expected, Kind};
use pleach_cluster::ResourcePath;

/// A kind in the cluster or a namespace, or a single object.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Scope {
    pub(super) path: ResourcePath,
    pub(super) namespace: Option<String>,
    /// The object, for a watch of a single one.
    pub(super) name: Option<String>,
}

impl fmt::Display for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = self.path.group_kind();
        if let Some(name) = &self.name {
            write!(f, "{kind} {name}")?;
        } else {
            write!(f, "{kind}")?;
        }
        match &self.namespace {
            Some(namespace) => write!(f, " in {namespace}"),
            None => Ok(()),
        }
    }
}

/// Open and forbidden watches.
#[derive(Debug, Default)]
pub(super) struct Scopes {
    open: BTreeMap<Scope, CancellationToken>,
    /// Time of the next attempt of each forbidden watch.
    closed: BTreeMap<Scope, Instant>,
}

impl Scopes {
    /// Ends unneeded watches, and returns those to start.
    pub(super) fn adjust(
        &mut self,
        kinds: &BTreeMap<GroupKind, Kind>,
        expected: &BTreeMap<ObjectId, Expected>,
        now: Instant,
    ) -> Vec<(Scope, CancellationToken)> {
        self.closed.retain(|_, until| *until > now);
        let desired = self.desired(kinds, expected);
        self.open.retain(|scope, ending| {
            let stays = desired.contains(scope);
            if !stays {
                ending.cancel();
            }
            stays
        });
        let mut started = Vec::new();
        for scope in desired {
            if !self.open.contains_key(&scope) {
                let ending = CancellationToken::new();
                self.open.insert(scope.clone(), ending.clone());
                started.push((scope, ending));
            }
        }
        started
    }

    /// Closes a forbidden watch until its next attempt.
    pub(super) fn close(&mut self, scope: Scope, until: Instant) {
        if let Some(ending) = self.open.remove(&scope) {
            ending.cancel();
        }
        self.closed.insert(scope, until);
    }

    /// Returns the time of the next attempt of a forbidden watch.
    pub(super) fn retry_at(&self) -> Option<Instant> {
        self.closed.values().min().copied()
    }

    fn desired(
        &self,
        kinds: &BTreeMap<GroupKind, Kind>,
        expected: &BTreeMap<ObjectId, Expected>,
    ) -> BTreeSet<Scope> {
        let objects = expected.iter().map(|(id, expected)| Scope {
            path: expected.path.clone(),
            namespace: id.namespace.clone(),
            name: Some(id.name.clone()),
        });
        let mut desired: BTreeSet<Scope> = objects
            .filter(|scope| !self.closed.contains_key(scope))
            .collect();
        for kind in kinds.values() {
            let Some(path) = &kind.path else { continue };
            let scope = |namespace: Option<String>| Scope {
                path: path.clone(),
                namespace,
                name: None,
            };
            let everywhere = scope(None);
            if !self.closed.contains_key(&everywhere) {
                desired.insert(everywhere);
                continue;
            }
            let namespaces = kind.members.keys().filter(|namespace| namespace.is_some());
            let each = namespaces.map(|namespace| scope(namespace.clone()));
            desired.extend(each.filter(|scope| !self.closed.contains_key(scope)));
        }
        desired
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn kinds(namespaces: &[&str]) -> BTreeMap<GroupKind, Kind> {
        let kind = Kind {
            path: Some(ResourcePath::namespaced("v1", "ConfigMap", "configmaps")),
            is_unserved: false,
            members: namespaces
                .iter()
                .map(|name| (Some((*name).to_owned()), 1))
                .collect(),
        };
        BTreeMap::from([(GroupKind::new("", "ConfigMap"), kind)])
    }

    fn shown(started: &[(Scope, CancellationToken)]) -> Vec<String> {
        started.iter().map(|(scope, _)| scope.to_string()).collect()
    }

    #[tokio::test(start_paused = true)]
    async fn a_forbidden_cluster_wide_watch_falls_back_to_namespaces() {
        let mut scopes = Scopes::default();
        let now = Instant::now();
        let started = scopes.adjust(&kinds(&["a", "b"]), &BTreeMap::new(), now);
        assert_eq!(shown(&started), ["ConfigMap"]);
        assert_eq!(
            shown(&scopes.adjust(&kinds(&["a"]), &BTreeMap::new(), now)),
            [""; 0]
        );
        let later = now + Duration::from_secs(5);
        scopes.close(started[0].0.clone(), later);
        assert!(started[0].1.is_cancelled());
        let started = scopes.adjust(&kinds(&["a", "b"]), &BTreeMap::new(), now);
        assert_eq!(shown(&started), ["ConfigMap in a", "ConfigMap in b"]);
        // A forbidden namespace is left to the interval.
        scopes.close(started[0].0.clone(), later);
        assert_eq!(
            shown(&scopes.adjust(&kinds(&["a", "b"]), &BTreeMap::new(), now)),
            [""; 0]
        );
        assert_eq!(scopes.retry_at(), Some(later));
        // With new permissions, one watch covers all namespaces again.
        let begun_again = scopes.adjust(&kinds(&["a", "b"]), &BTreeMap::new(), later);
        assert_eq!(shown(&begun_again), ["ConfigMap"]);
        assert!(started[1].1.is_cancelled());
    }

    #[tokio::test(start_paused = true)]
    async fn a_runtime_object_has_its_own_watch() {
        let mut scopes = Scopes::default();
        let now = Instant::now();
        let path = ResourcePath::namespaced("v1", "Secret", "secrets");
        let id = path.id(Some("a"), "certs");
        let expected = BTreeMap::from([(id, Expected { path, count: 1 })]);
        let none = BTreeMap::new();
        let started = scopes.adjust(&none, &expected, now);
        assert_eq!(shown(&started), ["Secret certs in a"]);
        assert_eq!(shown(&scopes.adjust(&none, &expected, now)), [""; 0]);
        // If the watch is forbidden, the interval finds the object.
        scopes.close(started[0].0.clone(), now + Duration::from_secs(5));
        assert_eq!(shown(&scopes.adjust(&none, &expected, now)), [""; 0]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_kind_without_members_is_not_watched() {
        let mut scopes = Scopes::default();
        let now = Instant::now();
        let started = scopes.adjust(&kinds(&["a"]), &BTreeMap::new(), now);
        assert_eq!(
            shown(&scopes.adjust(&BTreeMap::new(), &BTreeMap::new(), now)),
            [""; 0]
        );
        assert!(started[0].1.is_cancelled());
    }
}
