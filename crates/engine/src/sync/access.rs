//! Permissions that pleach lacks for a plan, checked before the first write.

use std::collections::{BTreeMap, BTreeSet};

use futures::stream::{self, StreamExt as _};
use pleach_planner::observe::{Escalation, Grants, MissingGrant};
use pleach_planner::plan::{Objects, Permission, Permissions, TemporaryGrant};

use super::answers::Source;
use super::paths::Paths;
use pleach_cluster::{Access, ApplyOptions, Class, Cluster, ClusterError};

/// Number of concurrent queries.
const CONCURRENCY: usize = 32;
/// Largest number of objects whose permission is checked by name.
const NAMED: usize = 64;

/// A permission, with the name of the object to check it for.
type Request = (Permission, Option<String>);

impl Source<'_> {
    /// Checks every permission that an execution needs, by `SelfSubjectAccessReview`. One request is
    /// enough if pleach is allowed to do everything. A permission that is needed in several
    /// namespaces is first checked cluster-wide. Single objects are only checked if the permission
    /// for the whole kind is missing.
    pub(crate) async fn permissions(
        &self,
        permissions: Permissions,
    ) -> Result<Grants, ClusterError> {
        let Permissions {
            needed,
            temporary,
            exempts_us,
        } = permissions;
        let mut grants = known(self.review(needed, temporary).await)?;
        if exempts_us {
            grants.user = Some(self.cluster.whoami().await?.username);
        }
        Ok(grants)
    }

    async fn review(
        &self,
        needed: BTreeMap<Permission, Objects>,
        temporary: Vec<TemporaryGrant>,
    ) -> Result<Grants, ClusterError> {
        let everything = Access {
            verb: "*",
            group: "*",
            resource: "*",
            subresource: None,
            namespace: None,
            name: None,
        };
        if self.cluster.can_i(&everything).await? {
            return Ok(Grants::default());
        }
        let missing = missing(self.cluster, needed).await?;
        Ok(Grants {
            missing,
            escalations: self.escalations(temporary).await,
            unasked: None,
            user: None,
        })
    }

    /// Returns temporary roles and bindings that the server would reject as privilege escalation,
    /// because it only lets us grant permissions that we have.
    async fn escalations(&self, temporary: Vec<TemporaryGrant>) -> Vec<Escalation> {
        let manager = self.desired.name.field_manager();
        let paths = Paths::new(&self.observed.discovery, &self.desired.manifests);
        let (manager, paths) = (manager.as_str(), &paths);
        stream::iter(temporary)
            .map(|TemporaryGrant { object, body }| async move {
                let path = paths.of_kind(&object.group_kind())?;
                let options = ApplyOptions {
                    force: true,
                    dry_run: true,
                    ..ApplyOptions::new(manager)
                };
                let dry_run = self.cluster.apply(&path, &object, body.into(), &options);
                // Other errors are reported by the actual write.
                match dry_run.await.err()?.class() {
                    Some(Class::RbacEscalation { missing }) => {
                        Some(Escalation::new(object, missing))
                    }
                    _ => None,
                }
            })
            .buffered(CONCURRENCY)
            .filter_map(std::future::ready)
            .collect()
            .await
    }
}

/// Returns the result of a review. An unavailable webhook for the review requests themselves leaves
/// our permissions unknown.
fn known(reviewed: Result<Grants, ClusterError>) -> Result<Grants, ClusterError> {
    match reviewed {
        Err(error) if matches!(error.class(), Some(Class::WebhookUnavailable(_))) => Ok(Grants {
            unasked: error.api().map(|api| api.message.clone()),
            ..Grants::default()
        }),
        other => other,
    }
}

/// Returns the permissions that pleach lacks.
async fn missing(
    cluster: &Cluster,
    needed: BTreeMap<Permission, Objects>,
) -> Result<Vec<MissingGrant>, ClusterError> {
    let anywhere = |permission: &Permission| Permission {
        namespace: None,
        ..permission.clone()
    };
    let mut places: BTreeMap<Permission, usize> = BTreeMap::new();
    for permission in needed.keys() {
        *places.entry(anywhere(permission)).or_default() += 1;
    }
    let is_spread = |permission: &Permission| {
        places
            .get(&anywhere(permission))
            .is_some_and(|count| *count > 1)
    };
    let spread = needed.keys().filter(|permission| is_spread(permission));
    let spread: BTreeSet<Request> = spread
        .map(|permission| (anywhere(permission), None))
        .collect();
    let granted_anywhere = ask(cluster, spread).await?;
    let mut open: BTreeMap<Permission, Objects> = needed
        .into_iter()
        .filter(|(permission, _)| !granted_anywhere.contains(&(anywhere(permission), None)))
        .collect();
    let requests = open.keys().map(|permission| (permission.clone(), None));
    let granted = ask(cluster, requests.collect()).await?;
    open.retain(|permission, _| !granted.contains(&(permission.clone(), None)));
    let requests: BTreeSet<Request> = open.iter().flat_map(by_name).collect();
    let granted = ask(cluster, requests).await?;
    open.retain(|permission, of| {
        let mut requests = by_name((permission, &*of)).peekable();
        requests.peek().is_none() || !requests.all(|request| granted.contains(&request))
    });
    let missing = open.into_keys().map(|permission| MissingGrant {
        verb: permission.verb.to_owned(),
        kind: permission.kind,
        resource: match permission.subresource {
            Some(subresource) => format!("{}/{subresource}", permission.resource),
            None => permission.resource,
        },
        namespace: permission.namespace,
    });
    Ok(missing.collect())
}

/// Returns the requests for single objects. Empty if there are too many names, or none.
fn by_name((permission, of): (&Permission, &Objects)) -> impl Iterator<Item = Request> {
    let names = match of {
        Objects::Named(names) => Some(names).filter(|names| names.len() <= NAMED),
        Objects::All => None,
    };
    let names = names.into_iter().flatten();
    names.map(|name| (permission.clone(), Some(name.clone())))
}

/// Returns the requests that were answered with yes.
async fn ask(
    cluster: &Cluster,
    requests: BTreeSet<Request>,
) -> Result<BTreeSet<Request>, ClusterError> {
    let answers: Vec<Result<Option<Request>, ClusterError>> = stream::iter(requests)
        .map(|(permission, name)| async move {
            let access = Access {
                verb: permission.verb,
                group: &permission.kind.group,
                resource: &permission.resource,
                subresource: permission.subresource,
                namespace: permission.namespace.as_deref(),
                name: name.as_deref(),
            };
            let granted = cluster.can_i(&access).await?;
            Ok(granted.then_some((permission, name)))
        })
        .buffer_unordered(CONCURRENCY)
        .collect()
        .await;
    answers.into_iter().filter_map(Result::transpose).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use pleach_cluster::ApiError;
    use pleach_model::object::GroupKind;

    fn refused(class: Class) -> ClusterError {
        ClusterError::Review {
            about: "the permission to * *".to_owned(),
            source: Box::new(ApiError {
                class,
                status: Some(500),
                reason: "InternalError".to_owned(),
                message: "failed calling webhook".to_owned(),
                retry_after: None,
                unclear: false,
                attempts: 1,
            }),
        }
    }

    fn right(verb: &'static str) -> Permission {
        Permission {
            verb,
            kind: GroupKind::new("", "ConfigMap"),
            resource: "configmaps".to_owned(),
            subresource: None,
            namespace: None,
        }
    }

    #[test]
    fn a_permission_on_a_whole_kind_replaces_named_ones() {
        let requested = |needed: &Permissions| -> Vec<Option<String>> {
            let questions = needed.needed.iter().flat_map(by_name);
            questions.map(|(_, name)| name).collect()
        };
        let mut needed = Permissions::default();
        needed.add_for(right("patch"), "b");
        needed.add_for(right("patch"), "a");
        let names = ["a", "b"].map(|name| Some(name.to_owned()));
        assert_eq!(requested(&needed), names);
        needed.add(right("patch"));
        needed.add_for(right("patch"), "c");
        assert_eq!(requested(&needed), []);
        // Too many names are not checked one by one.
        for number in 0..=NAMED {
            needed.add_for(right("delete"), &number.to_string());
        }
        assert_eq!(requested(&needed), []);
    }

    #[test]
    fn a_failed_webhook_leaves_permissions_unknown() {
        let down = refused(Class::WebhookUnavailable("w.example.org".to_owned()));
        let grants = known(Err(down)).unwrap();
        assert_eq!(grants.unasked.as_deref(), Some("failed calling webhook"));
        assert!(grants.missing.is_empty());
        assert!(known(Err(refused(Class::ServerError))).is_err());
    }
}
