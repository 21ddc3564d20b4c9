//! Objects in deletion, and objects with a label of pleach.
//!
//! Kinds with pleach members, and kinds of custom resources, are listed in full: in pages of
//! metadata, with only the relevant fields retained. Other kinds are listed with a selector for the
//! ApplySet label.

use std::collections::{BTreeMap, BTreeSet};

use futures::stream::{self, StreamExt as _};
use pleach_model::object::{GroupKind, ObjectId, labels};
use pleach_report::doctor::{Gap, Observations, Subject};
use serde::Deserialize;
use serde_json::Value;

use super::{CONCURRENCY, Take as _};
use pleach_cluster::{Class, Cluster, ClusterError, Depth, ResourcePath, Selector};

/// Largest number of namespaces that are searched for leftovers.
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

/// Adds the objects in namespaces of releases, for the kinds that we are allowed to list there.
pub(super) async fn namespaces(
    cluster: &Cluster,
    state_namespace: &str,
    observations: &mut Observations,
) {
    let mut namespaces = BTreeSet::from([state_namespace.to_owned()]);
    let mut in_full = BTreeSet::new();
    for id in members(observations) {
        namespaces.extend(id.namespace.clone());
        in_full.insert(id.group_kind());
    }
    let kinds = listed_kinds(observations);
    let mut questions = Vec::new();
    let mut hidden = 0;
    for namespace in &namespaces {
        let what = format!("the permissions in namespace {namespace}");
        let permissions = cluster.permissions_in(namespace).await;
        let Some(permissions) = observations.take(&what, permissions) else {
            continue;
        };
        for (kind, path) in kinds.iter().filter(|(_, path)| path.namespaced) {
            if !permissions.allow("list", path.api_version.group.as_str(), &path.plural) {
                hidden += 1;
                continue;
            }
            questions.push(Question {
                path: path.clone(),
                namespace: Some(namespace.clone()),
                labels: (!in_full.contains(kind)).then_some(labels::PART_OF),
            });
        }
    }
    ask_all(cluster, questions, observations).await;
    let names: Vec<&str> = namespaces.iter().map(String::as_str).collect();
    let why = match hidden {
        0 => String::new(),
        hidden => format!(", without {hidden} kinds that pleach is not allowed to list there"),
    };
    observations.gaps.push(Gap {
        what: "the rest of the cluster".to_owned(),
        why: format!("only the namespaces {} were checked{why}", names.join(", ")),
        forbidden: true,
    });
}

/// Adds the objects of the whole cluster.
pub(super) async fn objects(
    cluster: &Cluster,
    defined: BTreeSet<GroupKind>,
    observations: &mut Observations,
) {
    let mut in_full = defined;
    in_full.extend(members(observations).map(ObjectId::group_kind));
    let questions = questions(observations, &in_full);
    ask_all(cluster, questions, observations).await;
}

/// Returns the members of all releases with a readable inventory.
fn members(observations: &Observations) -> impl Iterator<Item = &ObjectId> {
    observations
        .releases
        .iter()
        .filter_map(|release| release.inventory.as_ref().ok())
        .flat_map(|inventory| inventory.entries.keys())
}

async fn ask_all(cluster: &Cluster, questions: Vec<Question>, observations: &mut Observations) {
    let members: BTreeSet<&ObjectId> = members(observations).collect();
    let members = &members;
    let read: Vec<(ResourcePath, Result<Vec<Subject>, ClusterError>)> = stream::iter(questions)
        .map(|question| async move {
            let found = ask(cluster, &question, members).await;
            (question.path, found)
        })
        .buffer_unordered(CONCURRENCY)
        .collect()
        .await;
    // The same kind can be listed by two requests.
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

/// Combines all kinds that we are not allowed to list in one gap, because there can be many.
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

/// Returns the persisted kinds that can be listed.
fn listed_kinds(observations: &Observations) -> BTreeMap<GroupKind, ResourcePath> {
    let discovery = &observations.discovery;
    let mut kinds: BTreeMap<GroupKind, ResourcePath> = BTreeMap::new();
    for (group, served) in &*discovery.groups {
        for resource in served
            .versions
            .iter()
            .flat_map(|version| &version.resources)
        {
            // Kinds without deletion are computed and not persisted.
            if !resource.verbs.contains("list") || !resource.verbs.contains("delete") {
                continue;
            }
            let kind = GroupKind::new(group.clone(), resource.kind.clone());
            if let Some(path) = ResourcePath::preferred(discovery, &kind) {
                kinds.insert(kind, path);
            }
        }
    }
    kinds
}

fn questions(observations: &Observations, in_full: &BTreeSet<GroupKind>) -> Vec<Question> {
    let kinds = listed_kinds(observations);
    let plurals: BTreeMap<(&str, &str), &GroupKind> = kinds
        .iter()
        .map(|(kind, path)| ((kind.group.as_str(), path.plural.as_str()), kind))
        .collect();
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
