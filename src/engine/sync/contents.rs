//! What lies in a namespace that may go.

use std::collections::BTreeSet;

use futures::stream::{self, StreamExt as _};
use pleach_domain::object::ApiVersion;
use pleach_domain::observe::{Content, Contents, Discovery, Freshness, Observed};
use pleach_domain::plan::{Op, Plan};
use serde::Deserialize;
use serde_json::Value;

use super::CONCURRENCY;
use crate::io::cluster::{Class, Cluster, Depth, ResourcePath, Selector};

/// Looks into the namespaces that a plan would delete. Says whether there were
/// any: then the plan has to be made again.
pub async fn look_into_namespaces(cluster: &Cluster, observed: &mut Observed, plan: &Plan) -> bool {
    let namespaces: Vec<&str> = plan
        .steps
        .iter()
        .filter(|step| matches!(step.op, Op::Delete(_)) && step.object.is("", "Namespace"))
        .map(|step| step.object.name.as_str())
        .collect();
    for namespace in &namespaces {
        let contents = look_into(cluster, &observed.discovery, namespace).await;
        observed.contents.insert((*namespace).to_owned(), contents);
    }
    !namespaces.is_empty()
}

/// Lists everything in a namespace. A kind that cannot be listed may hide
/// something.
pub(super) async fn look_into(
    cluster: &Cluster,
    discovery: &Discovery,
    namespace: &str,
) -> Contents {
    let kinds = match listed_kinds(discovery) {
        Ok(kinds) => kinds,
        Err(why) => return Contents::Unknown(why),
    };
    let lists: Vec<_> = stream::iter(kinds)
        .map(|path| async move {
            let selector = Selector {
                namespace: Some(namespace),
                ..Selector::default()
            };
            let list = cluster
                .pick(&path, &selector, Depth::Metadata, |item: Partial| {
                    Some(content(&path, &item.metadata))
                })
                .await;
            (path, list)
        })
        .buffer_unordered(CONCURRENCY)
        .collect()
        .await;
    let mut found = Vec::new();
    for (path, list) in lists {
        match list {
            Ok(list) => found.extend(list),
            // Its definition went with the release.
            Err(error) if matches!(error.class(), Some(Class::KindNotServed | Class::NotFound)) => {
            }
            Err(error) => {
                let why = super::op::failure(&error).message;
                return Contents::Unknown(format!("{} cannot be listed: {why}", path.plural));
            }
        }
    }
    found.sort_by(|a, b| a.id.cmp(&b.id));
    Contents::Known(found)
}

#[derive(Deserialize)]
struct Partial {
    metadata: Value,
}

fn content(path: &ResourcePath, metadata: &Value) -> Content {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    Content {
        id: path.id(
            metadata["namespace"].as_str(),
            metadata["name"].as_str().unwrap_or_default(),
        ),
        uid: text(&metadata["uid"]),
        owners: metadata["ownerReferences"]
            .as_array()
            .into_iter()
            .flatten()
            .map(|owner| text(&owner["uid"]))
            .collect(),
    }
}

/// Every namespaced kind, once.
fn listed_kinds(discovery: &Discovery) -> Result<Vec<ResourcePath>, String> {
    let mut kinds = Vec::new();
    for (group, served) in &discovery.groups {
        let mut seen = BTreeSet::new();
        for version in &served.versions {
            if version.freshness == Freshness::Stale {
                return Err(format!(
                    "the server behind {group}/{} does not answer",
                    version.version
                ));
            }
            for resource in &version.resources {
                let listed = resource.namespaced && resource.verbs.contains("list");
                if listed && seen.insert(&resource.kind) {
                    kinds.push(ResourcePath {
                        api_version: ApiVersion {
                            group: group.clone(),
                            version: version.version.clone(),
                        },
                        kind: resource.kind.clone(),
                        plural: resource.plural.clone(),
                        namespaced: true,
                    });
                }
            }
        }
    }
    Ok(kinds)
}
