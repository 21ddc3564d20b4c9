//! Permissions that pleach lacks for a plan, checked before the first write.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use futures::stream::{self, StreamExt as _};
use pleach_formats::gate::binding;
use pleach_model::object::{GroupKind, ObjectId, canonical_json};
use pleach_model::order::StageName;
use pleach_planner::observe::{Escalation, Grants, MissingGrant, Observed};
use pleach_planner::plan::{Body, Desired, Op, Plan, Precondition, Step, Until};
use pleach_state::inventory::Store;
use pleach_state::overlay::OverlayKind;

use super::paths::Paths;
use pleach_cluster::{Access, ApplyOptions, Class, Cluster, ClusterError};

/// Number of concurrent queries.
const CONCURRENCY: usize = 32;
/// Largest number of objects whose permission is checked by name.
const NAMED: usize = 64;

/// A permission that the plan needs.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Right {
    verb: &'static str,
    kind: GroupKind,
    resource: String,
    subresource: Option<&'static str>,
    namespace: Option<String>,
}

/// Objects that a permission is needed for.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Of {
    /// All objects of the kind, for requests without a name.
    All,
    /// Objects with these names.
    These(BTreeSet<String>),
}

/// The needed permissions.
#[derive(Debug, Default)]
struct Needed(BTreeMap<Right, Of>);

impl Needed {
    /// Adds a permission for all objects of a kind.
    fn add(&mut self, right: Right) {
        self.0.insert(right, Of::All);
    }

    /// Adds several permissions for all objects of a kind.
    fn add_all(&mut self, rights: Vec<Right>) {
        for right in rights {
            self.add(right);
        }
    }

    /// Adds a permission for one object.
    fn add_for(&mut self, right: Right, name: &str) {
        let of = self
            .0
            .entry(right)
            .or_insert_with(|| Of::These(BTreeSet::new()));
        if let Of::These(names) = of {
            names.insert(name.to_owned());
        }
    }
}

/// Checks every permission that the execution needs, by `SelfSubjectAccessReview`. One query is
/// enough if pleach is allowed to do everything. A permission that is needed in several namespaces
/// is first checked cluster-wide. Single objects are only checked if the permission for the whole
/// kind is missing.
pub(super) async fn review(
    cluster: &Cluster,
    desired: &Desired,
    observed: &Observed,
    plan: &Plan,
    paths: &Paths,
) -> Result<Grants, ClusterError> {
    let mut grants = known(ask_for_all(cluster, desired, observed, plan, paths).await)?;
    let exempts_us = |step: &Step| matches!(&step.op, Op::Close { gate } if gate.exempts_us);
    if plan.steps.iter().any(exempts_us) {
        grants.user = Some(cluster.whoami().await?.username);
    }
    Ok(grants)
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

async fn ask_for_all(
    cluster: &Cluster,
    desired: &Desired,
    observed: &Observed,
    plan: &Plan,
    paths: &Paths,
) -> Result<Grants, ClusterError> {
    let everything = Access {
        verb: "*",
        group: "*",
        resource: "*",
        subresource: None,
        namespace: None,
        name: None,
    };
    if cluster.can_i(&everything).await? {
        return Ok(Grants::default());
    }
    let mut needed = needed(plan, paths);
    needed.add_all(of_the_record(&desired.store, observed, plan));
    let Needed(needed) = needed;
    let anywhere = |right: &Right| Right {
        namespace: None,
        ..right.clone()
    };
    let mut places: BTreeMap<Right, usize> = BTreeMap::new();
    for right in needed.keys() {
        *places.entry(anywhere(right)).or_default() += 1;
    }
    let is_spread = |right: &Right| places.get(&anywhere(right)).is_some_and(|count| *count > 1);
    let spread = needed.keys().filter(|right| is_spread(right));
    let spread: BTreeSet<Question> = spread.map(|right| (anywhere(right), None)).collect();
    let held_anywhere = ask(cluster, spread).await?;
    let mut open: BTreeMap<Right, Of> = needed
        .into_iter()
        .filter(|(right, _)| !held_anywhere.contains(&(anywhere(right), None)))
        .collect();
    let questions = open.keys().map(|right| (right.clone(), None));
    let held = ask(cluster, questions.collect()).await?;
    open.retain(|right, _| !held.contains(&(right.clone(), None)));
    let questions: BTreeSet<Question> = open.iter().flat_map(by_name).collect();
    let held = ask(cluster, questions).await?;
    open.retain(|right, of| {
        let mut questions = by_name((right, &*of)).peekable();
        questions.peek().is_none() || !questions.all(|question| held.contains(&question))
    });
    let missing = open
        .into_keys()
        .map(|right| MissingGrant {
            verb: right.verb.to_owned(),
            kind: right.kind,
            resource: match right.subresource {
                Some(subresource) => format!("{}/{subresource}", right.resource),
                None => right.resource,
            },
            namespace: right.namespace,
        })
        .collect();
    let escalations = escalations(cluster, desired, plan, paths).await;
    Ok(Grants {
        missing,
        escalations,
        unasked: None,
        user: None,
    })
}

/// Returns temporary roles and bindings that the server would reject as privilege escalation,
/// because it only lets us grant permissions that we have. Permanent ones are checked during
/// observation.
async fn escalations(
    cluster: &Cluster,
    desired: &Desired,
    plan: &Plan,
    paths: &Paths,
) -> Vec<Escalation> {
    let manager = desired.name.field_manager();
    let bodies = plan.steps.iter().filter_map(|step| {
        let body = match &step.op {
            Op::Apply {
                body: Body::Inline(body),
                ..
            } if step.stage == StageName::Access => body,
            Op::Set { patch } if is_made(plan, step) => patch,
            _ => return None,
        };
        let path = paths.of_kind(&step.object.group_kind())?;
        Some((step, path, Bytes::from(canonical_json(&body.0))))
    });
    let bodies: Vec<_> = bodies.collect();
    let manager = manager.as_str();
    stream::iter(bodies)
        .map(|(step, path, body)| async move {
            let options = ApplyOptions {
                force: true,
                dry_run: true,
                ..ApplyOptions::new(manager)
            };
            let asked = cluster.apply(&path, &step.object, body, &options).await;
            // Other errors are reported by the actual write.
            match asked.err()?.class() {
                Some(Class::RbacEscalation { missing }) => {
                    Some(Escalation::new(step.object.clone(), missing))
                }
                _ => None,
            }
        })
        .buffered(CONCURRENCY)
        .filter_map(std::future::ready)
        .collect()
        .await
}

/// Returns the permissions that the steps need.
fn needed(plan: &Plan, paths: &Paths) -> Needed {
    let mut needed = Needed::default();
    for step in &plan.steps {
        if plan.is_of_gate(step) {
            needed.add_all(of_a_gate(step, paths));
            continue;
        }
        let verbs: &[&'static str] = match &step.op {
            Op::Apply { .. } if step.require.contains(&Precondition::Absent) => {
                &["create", "patch"]
            }
            Op::Set { .. } | Op::Lift if is_made(plan, step) => &["get", "create", "delete"],
            Op::Own(_) | Op::Set { .. } | Op::Lift => &["get", "patch"],
            Op::Replace { .. } => &["get"],
            Op::Apply { .. } | Op::Patch { .. } | Op::Restart { .. } => &["patch"],
            Op::Create { .. } => &["create", "patch"],
            Op::Delete(_) => &["delete"],
            Op::Copy { from, to } => {
                needed.add_all(of_a_copy(from, to, paths));
                continue;
            }
            Op::Migrate { crd, .. } => {
                needed.add_all(of_a_migration(crd, paths));
                continue;
            }
            // The permissions to close a gate are collected separately.
            Op::Close { .. } | Op::Wait => continue,
        };
        let watches = matches!(step.until, Some(Until::Ready { .. })).then_some("watch");
        for (verb, kind, resource) in beside(step) {
            needed.add(Right {
                verb,
                kind,
                resource: resource.to_owned(),
                subresource: None,
                namespace: step.object.namespace.clone(),
            });
        }
        let kind = step.object.group_kind();
        // Kinds that the release defines are included, with their plural.
        let Some(path) = paths.of_kind(&kind) else {
            continue;
        };
        for verb in verbs.iter().copied().chain(watches) {
            let right = Right {
                verb,
                kind: kind.clone(),
                resource: path.plural.clone(),
                subresource: None,
                namespace: step.object.namespace.clone(),
            };
            // Creation by POST and watches have no name in the request.
            if verb == "watch" || verb == "create" && is_made(plan, step) {
                needed.add(right);
            } else {
                needed.add_for(right, &step.object.name);
            }
        }
    }
    needed
}

/// Returns the permissions that a step needs beside its object: those on its pods.
fn beside(step: &Step) -> Vec<(&'static str, GroupKind, &'static str)> {
    let pods = |verb| (verb, GroupKind::new("", "Pod"), "pods");
    let mut rights = Vec::new();
    if matches!(
        step.until,
        Some(Until::Emptied { .. } | Until::RolledOut { .. })
    ) {
        rights.push(pods("list"));
    }
    if matches!(step.until, Some(Until::RolledOut { .. })) {
        let revision = GroupKind::new("apps", "ControllerRevision");
        rights.push(("list", revision, "controllerrevisions"));
    }
    if matches!(step.op, Op::Replace { .. }) {
        rights.push(pods("delete"));
    }
    rights
}

/// Returns whether a step creates or deletes a temporary object.
fn is_made(plan: &Plan, step: &Step) -> bool {
    let overlay = plan.overlay_of(step);
    overlay.is_some_and(|overlay| overlay.content.kind() == OverlayKind::Binding)
}

/// Returns the permissions to rewrite the objects of a CRD. The CRD name consists of their plural
/// and group.
fn of_a_migration(crd: &ObjectId, paths: &Paths) -> Vec<Right> {
    let right = |verb, kind: &GroupKind, resource: &str, subresource| Right {
        verb,
        kind: kind.clone(),
        resource: resource.to_owned(),
        subresource,
        namespace: None,
    };
    let definitions = "customresourcedefinitions";
    let mut rights = vec![
        right("get", &crd.group_kind(), definitions, None),
        right("patch", &crd.group_kind(), definitions, Some("status")),
    ];
    if let Some((plural, group)) = crd.name.split_once('.') {
        // The kind can be unknown here, and the review does not need it.
        let kind = paths
            .kind_of(group, plural)
            .unwrap_or_else(|| GroupKind::new(group, plural));
        rights.extend(["get", "list", "patch"].map(|verb| right(verb, &kind, plural, None)));
    }
    rights
}

/// Returns the permissions for a copy: reading the source and creating the target.
fn of_a_copy(from: &ObjectId, to: &ObjectId, paths: &Paths) -> Vec<Right> {
    let kind = to.group_kind();
    let Some(path) = paths.of_kind(&kind) else {
        return Vec::new();
    };
    [("get", from), ("create", to)]
        .map(|(verb, id)| Right {
            verb,
            kind: kind.clone(),
            resource: path.plural.clone(),
            subresource: None,
            namespace: id.namespace.clone(),
        })
        .into()
}

/// Returns the permissions to close or lift a gate: on its policy, its binding and its probe. The
/// probe is in the namespace of the record.
fn of_a_gate(step: &Step, paths: &Paths) -> Vec<Right> {
    let verbs: &[&'static str] = match &step.op {
        Op::Close { .. } => &["create", "get", "patch"],
        _ => &["get", "delete"],
    };
    let kinds = [step.object.group_kind(), binding(&step.object).group_kind()];
    kinds
        .into_iter()
        .filter_map(|kind| Some((paths.of_kind(&kind)?, kind)))
        .flat_map(|(path, kind)| {
            verbs.iter().map(move |verb| Right {
                verb,
                kind: kind.clone(),
                resource: path.plural.clone(),
                subresource: None,
                namespace: None,
            })
        })
        .collect()
}

/// Returns the permissions to write the record.
fn of_the_record(store: &Store, observed: &Observed, plan: &Plan) -> Vec<Right> {
    let is_new = observed.installed.is_none();
    let right = |verb, kind: &str, group: &str, resource: &str, subresource| Right {
        verb,
        kind: GroupKind::new(group, kind),
        resource: resource.to_owned(),
        subresource,
        namespace: (kind != "Release").then(|| store.namespace().to_owned()),
    };
    let mut rights: Vec<Right> = ["create", "patch", "delete"]
        .into_iter()
        .map(|verb| right(verb, "ConfigMap", "", "configmaps", None))
        .collect();
    let lease = |verb| right(verb, "Lease", "coordination.k8s.io", "leases", None);
    rights.extend(["get", "create", "patch", "delete"].map(lease));
    if is_new {
        rights.push(right("create", "Secret", "", "secrets", None));
    }
    if *store == Store::Release {
        let release =
            |verb, subresource| right(verb, "Release", "pleach.dev", "releases", subresource);
        rights.extend(is_new.then(|| release("create", None)));
        rights.push(release("patch", None));
        rights.push(release("patch", Some("status")));
        let ends = plan.removal.as_ref().is_some_and(|outgoing| outgoing.ends);
        rights.extend(ends.then(|| release("delete", None)));
    }
    rights
}

/// A permission, with the name of the object to check it for.
type Question = (Right, Option<String>);

/// Returns the queries for single objects. Empty if there are too many names, or none.
fn by_name((right, of): (&Right, &Of)) -> impl Iterator<Item = Question> {
    let names = match of {
        Of::These(names) => Some(names).filter(|names| names.len() <= NAMED),
        Of::All => None,
    };
    let names = names.into_iter().flatten();
    names.map(|name| (right.clone(), Some(name.clone())))
}

/// Returns the queries that were answered with yes.
async fn ask(
    cluster: &Cluster,
    questions: BTreeSet<Question>,
) -> Result<BTreeSet<Question>, ClusterError> {
    let answers: Vec<Result<Option<Question>, ClusterError>> = stream::iter(questions)
        .map(|(right, name)| async move {
            let access = Access {
                verb: right.verb,
                group: &right.kind.group,
                resource: &right.resource,
                subresource: right.subresource,
                namespace: right.namespace.as_deref(),
                name: name.as_deref(),
            };
            let held = cluster.can_i(&access).await?;
            Ok(held.then_some((right, name)))
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

    fn right(verb: &'static str) -> Right {
        Right {
            verb,
            kind: GroupKind::new("", "ConfigMap"),
            resource: "configmaps".to_owned(),
            subresource: None,
            namespace: None,
        }
    }

    #[test]
    fn who_needs_all_of_a_kind_is_not_asked_for_some() {
        let asked = |needed: &Needed| -> Vec<Option<String>> {
            let questions = needed.0.iter().flat_map(by_name);
            questions.map(|(_, name)| name).collect()
        };
        let mut needed = Needed::default();
        needed.add_for(right("patch"), "b");
        needed.add_for(right("patch"), "a");
        let names = ["a", "b"].map(|name| Some(name.to_owned()));
        assert_eq!(asked(&needed), names);
        needed.add(right("patch"));
        needed.add_for(right("patch"), "c");
        assert_eq!(asked(&needed), []);
        // Too many names are not checked one by one.
        for number in 0..=NAMED {
            needed.add_for(right("delete"), &number.to_string());
        }
        assert_eq!(asked(&needed), []);
    }

    #[test]
    fn a_webhook_that_is_asked_about_the_questions_says_nothing_of_rights() {
        let down = refused(Class::WebhookUnavailable("w.example.org".to_owned()));
        let grants = known(Err(down)).unwrap();
        assert_eq!(grants.unasked.as_deref(), Some("failed calling webhook"));
        assert!(grants.missing.is_empty());
        assert!(known(Err(refused(Class::ServerError))).is_err());
    }
}
