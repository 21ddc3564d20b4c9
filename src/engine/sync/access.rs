//! What pleach itself may not do of a plan, asked before its first write.

use std::collections::BTreeSet;

use futures::stream::{self, StreamExt as _};
use pleach_domain::object::GroupKind;
use pleach_domain::observe::{Grants, MissingGrant};
use pleach_domain::plan::{Op, Plan, Precondition};

use super::paths::Paths;
use super::state::STATE_NAMESPACE;
use crate::io::cluster::{Access, Cluster, ClusterError};

/// Questions at a time.
const CONCURRENCY: usize = 32;

/// One right that the plan needs.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Right {
    verb: &'static str,
    kind: GroupKind,
    resource: String,
    subresource: Option<&'static str>,
    namespace: Option<String>,
}

/// Asks by `SelfSubjectAccessReview` for every right that carrying out the plan
/// needs; one question is enough for who may do everything. A right that is
/// held cluster-wide is asked for once, not per namespace.
pub(super) async fn review(
    cluster: &Cluster,
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
    let needed = needed(plan, paths);
    let cluster_wide: BTreeSet<Right> = needed
        .iter()
        .map(|right| Right {
            namespace: None,
            ..right.clone()
        })
        .collect();
    let held = ask(cluster, cluster_wide).await?;
    let open: BTreeSet<Right> = needed
        .into_iter()
        .filter(|right| {
            !held.contains(&Right {
                namespace: None,
                ..right.clone()
            })
        })
        .collect();
    let in_namespaces: BTreeSet<Right> = open
        .iter()
        .filter(|right| right.namespace.is_some())
        .cloned()
        .collect();
    let held = ask(cluster, in_namespaces).await?;
    let missing = open
        .into_iter()
        .filter(|right| !held.contains(right))
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
    Ok(Grants { missing })
}

/// The rights that the steps and the record need.
fn needed(plan: &Plan, paths: &Paths) -> BTreeSet<Right> {
    let mut needed = BTreeSet::new();
    for step in &plan.steps {
        let verbs: &[&'static str] = match &step.op {
            Op::Apply { .. } if step.require.contains(&Precondition::Absent) => {
                &["create", "patch"]
            }
            Op::Apply { .. } | Op::Patch { .. } => &["patch"],
            Op::Create { .. } => &["create"],
            Op::Delete(_) => &["delete"],
            Op::Copy { .. } | Op::Migrate { .. } | Op::Wait => continue,
        };
        let kind = step.object.group_kind();
        // A kind that the release itself defines is asked for by its plural too.
        let Some(path) = paths.of_kind(&kind) else {
            continue;
        };
        for verb in verbs {
            needed.insert(Right {
                verb,
                kind: kind.clone(),
                resource: path.plural.clone(),
                subresource: None,
                namespace: step.object.namespace.clone(),
            });
        }
    }
    let state =
        |verb, kind: &str, group: &str, resource: &str, subresource, namespace: Option<&str>| {
            Right {
                verb,
                kind: GroupKind::new(group, kind),
                resource: resource.to_owned(),
                subresource,
                namespace: namespace.map(str::to_owned),
            }
        };
    needed.insert(state(
        "patch",
        "Release",
        "pleach.dev",
        "releases",
        None,
        None,
    ));
    needed.insert(state(
        "patch",
        "Release",
        "pleach.dev",
        "releases",
        Some("status"),
        None,
    ));
    needed.insert(state(
        "patch",
        "ConfigMap",
        "",
        "configmaps",
        None,
        Some(STATE_NAMESPACE),
    ));
    needed
}

/// The rights among these that are held.
async fn ask(cluster: &Cluster, rights: BTreeSet<Right>) -> Result<BTreeSet<Right>, ClusterError> {
    let answers: Vec<Result<Option<Right>, ClusterError>> = stream::iter(rights)
        .map(|right| async move {
            let access = Access {
                verb: right.verb,
                group: &right.kind.group,
                resource: &right.resource,
                subresource: right.subresource,
                namespace: right.namespace.as_deref(),
                name: None,
            };
            let held = cluster.can_i(&access).await?;
            Ok(held.then_some(right))
        })
        .buffer_unordered(CONCURRENCY)
        .collect()
        .await;
    answers.into_iter().filter_map(Result::transpose).collect()
}
