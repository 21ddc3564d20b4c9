//! Objects that are being deleted, and objects that say they are ours.
//!
//! Kinds of which pleach has members, and kinds that custom resources define,
//! are gone through in full, in pages of metadata of which only what matters is
//! kept. Of all other kinds only what carries the label of an ApplySet is asked for.

use std::collections::{BTreeMap, BTreeSet};

use futures::stream::{self, StreamExt as _};
use pleach_domain::doctor::{Gap, Observations, Subject};
use pleach_domain::object::{GroupKind, ObjectId, labels};
use serde::Deserialize;
use serde_json::Value;

use super::{CONCURRENCY, Take as _};
use crate::io::cluster::{Class, Cluster, ClusterError, Depth, ResourcePath, Selector};

/// Namespaces whose left content is looked for.
const NAMESPACES: usize = 20;

#[derive(Deserialize)]
struct Partial {
    metadata: Value,
}

struct Question {
    path: ResourcePath,
    namespace: Option<String>,
    labels: Option<&'static str>,
}

/// Fills in the objects.
pub(super) async fn objects(
    cluster: &Cluster,
    defined: BTreeSet<GroupKind>,
    observations: &mut Observations,
) {
    let members: BTreeSet<&ObjectId> = observations
        .releases
        .iter()
        .filter_map(|release| release.inventory.as_ref().ok())
        .flat_map(|inventory| inventory.entries.keys())
        .collect();
    let mut in_full = defined;
    in_full.extend(members.iter().map(|id| id.group_kind()));
    let questions = questions(observations, &in_full);
    let members = &members;
    let read: Vec<(ResourcePath, Result<Vec<Subject>, ClusterError>)> = stream::iter(questions)
        .map(|question| async move {
            let found = ask(cluster, &question, members).await;
            (question.path, found)
        })
        .buffer_unordered(CONCURRENCY)
        .collect()
        .await;
    // A kind may have been asked for twice.
    let mut objects: BTreeMap<ObjectId, Subject> = BTreeMap::new();
    let mut closed = Vec::new();
    for (path, found) in read {
        if found.as_ref().is_err_and(is_forbidden) {
            closed.push(path.group_kind().to_string());
            continue;
        }
        let what = format!("the objects of kind {}", path.group_kind());
        let found = observations.take(&what, found).unwrap_or_default();
        objects.extend(
            found
                .into_iter()
                .map(|subject| (subject.id.clone(), subject)),
        );
    }
    observations.objects = objects.into_values().collect();
    observations.gaps.extend(forbidden(&mut closed));
}

fn is_forbidden(error: &ClusterError) -> bool {
    error.class() == Some(&Class::Forbidden)
}

/// One gap for all kinds that we may not list: there may be many.
fn forbidden(kinds: &mut Vec<String>) -> Option<Gap> {
    kinds.sort();
    kinds.dedup();
    let first = kinds.first()?;
    let what = match kinds.len() - 1 {
        0 => format!("the objects of kind {first}"),
        more => format!("the objects of kind {first} and {more} other kinds"),
    };
    Some(Gap {
        what,
        why: "forbidden".to_owned(),
        forbidden: true,
    })
}

fn questions(observations: &Observations, in_full: &BTreeSet<GroupKind>) -> Vec<Question> {
    let discovery = &observations.discovery;
    let mut kinds: BTreeMap<GroupKind, ResourcePath> = BTreeMap::new();
    let mut plurals: BTreeMap<(&str, &str), GroupKind> = BTreeMap::new();
    for (group, served) in &discovery.groups {
        for resource in served
            .versions
            .iter()
            .flat_map(|version| &version.resources)
        {
            // What cannot be deleted is computed, not kept.
            if !resource.verbs.contains("list") || !resource.verbs.contains("delete") {
                continue;
            }
            let kind = GroupKind::new(group.clone(), resource.kind.clone());
            if let Some(path) = ResourcePath::preferred(discovery, &kind) {
                plurals.insert((group, &resource.plural), kind.clone());
                kinds.insert(kind, path);
            }
        }
    }
    let mut questions: Vec<Question> = kinds
        .iter()
        .map(|(kind, path)| Question {
            path: path.clone(),
            namespace: None,
            labels: (!in_full.contains(kind)).then_some(labels::PART_OF),
        })
        .collect();
    for namespace in observations.namespaces.iter().take(NAMESPACES) {
        for remaining in namespace.remaining() {
            let place = (remaining.group.as_str(), remaining.plural.as_str());
            let kind = plurals.get(&place).filter(|kind| !in_full.contains(kind));
            if let Some(path) = kind.and_then(|kind| kinds.get(kind)) {
                questions.push(Question {
                    path: path.clone(),
                    namespace: Some(namespace.name.clone()),
                    labels: None,
                });
            }
        }
    }
    questions
}

async fn ask(
    cluster: &Cluster,
    question: &Question,
    members: &BTreeSet<&ObjectId>,
) -> Result<Vec<Subject>, ClusterError> {
    let path = &question.path;
    let selector = Selector {
        namespace: question.namespace.as_deref(),
        labels: question.labels,
        ..Selector::default()
    };
    let pick = |item: Partial| {
        let id = path.id(
            item.metadata["namespace"].as_str(),
            item.metadata["name"].as_str().unwrap_or_default(),
        );
        let is_member = members.contains(&id);
        let subject = Subject::read(id, &item.metadata);
        (subject.deleting_since.is_some() || (subject.claims_membership() && !is_member))
            .then_some(subject)
    };
    cluster.pick(path, &selector, Depth::Metadata, pick).await
}
