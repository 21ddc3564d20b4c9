//! Reads the objects of a copy, with the permissions of the user.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use futures::stream::{self, StreamExt as _};
use pleach_model::discovery::Discovery;
use pleach_model::object::GroupKind;
use pleach_rehearsal::dump::{LeftOut, MAX_BYTES};
use pleach_rehearsal::scope::{Extent, Touched, extent, is_left_out};
use pleach_rehearsal::storage::is_built_in;
use serde_json::{Value, json};

use super::{CopyError, kind_of_crd};
use crate::words;
use pleach_cluster::{Class, Cluster, ClusterError, ResourcePath, Selector};

/// Maximum number of objects of a kind.
pub const LIMIT: usize = 100_000;

/// Objects of one copy that are in memory, by their length as JSON in bytes.
struct Budget {
    used: AtomicU64,
    limit: u64,
}

impl Budget {
    fn new(limit: u64) -> Self {
        Self {
            used: AtomicU64::new(0),
            limit,
        }
    }

    /// Counts an object. Returns whether it fits.
    fn take(&self, object: &Value) -> bool {
        let size = size_of(object);
        self.used.fetch_add(size, Ordering::Relaxed) + size <= self.limit
    }

    fn ensure(&self) -> Result<(), CopyError> {
        if self.used.load(Ordering::Relaxed) <= self.limit {
            return Ok(());
        }
        Err(CopyError::TooLarge { limit: self.limit })
    }
}

/// Returns the approximate length of a value as JSON in bytes.
fn size_of(value: &Value) -> u64 {
    let length = |text: &str| text.len() as u64 + 3;
    match value {
        Value::Object(map) => map
            .iter()
            .fold(2, |sum, (key, child)| sum + length(key) + size_of(child)),
        Value::Array(items) => items.iter().fold(2, |sum, item| sum + 1 + size_of(item)),
        Value::String(text) => length(text),
        Value::Number(_) | Value::Bool(_) | Value::Null => 5,
    }
}

/// Number of concurrent lists.
const CONCURRENCY: usize = 8;

/// Maximum number of owners that are read one by one.
const OWNERS: usize = 1_000;

/// Objects of a cluster, as the server returned them.
#[derive(Default)]
pub struct Collected {
    /// The objects, with apiVersion and kind, unredacted.
    pub(super) raw: Vec<Value>,
    /// Parts that were left out.
    pub left_out: Vec<LeftOut>,
}

impl std::fmt::Debug for Collected {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Collected")
            .field("objects", &self.raw.len())
            .field("left_out", &self.left_out)
            .finish()
    }
}

/// List to request.
struct Request {
    path: ResourcePath,
    namespace: Option<String>,
}

/// Reads all objects in the scope of a copy. Kinds and objects that cannot be read are left out and
/// named; an unreachable cluster and more than [`MAX_BYTES`] of objects are errors.
pub async fn collect(
    cluster: &Cluster,
    discovery: &Discovery,
    mut touched: Touched,
) -> Result<Collected, CopyError> {
    let budget = Budget::new(MAX_BYTES);
    let mut collected = Collected::default();
    let kinds = kinds(discovery);
    let crd = GroupKind::new("apiextensions.k8s.io", "CustomResourceDefinition");
    let mut crds = Vec::new();
    if let Some(path) = kinds.get(&crd) {
        let answers = lists(
            cluster,
            requests(path, Extent::Everywhere, &touched),
            &budget,
        )
        .await;
        crds = collected.take(answers)?;
    }
    let custom: BTreeSet<GroupKind> = crds.iter().filter_map(kind_of_crd).collect();
    collected.raw.extend(crds);
    add_parameters(cluster, &kinds, &mut touched).await?;
    let mut wanted = Vec::new();
    for (kind, path) in kinds.iter().filter(|(kind, _)| **kind != crd) {
        let extent = extent(kind, path.namespaced, custom.contains(kind), &touched);
        wanted.extend(requests(path, extent, &touched));
    }
    let answers = lists(cluster, wanted, &budget).await;
    budget.ensure()?;
    let objects = collected.take(answers)?;
    collected
        .raw
        .extend(objects.into_iter().filter(|object| !is_left_out(object)));
    let is_stored =
        |kind: &GroupKind| is_built_in(&kind.group, &kind.kind) || custom.contains(kind);
    add_owners(cluster, &kinds, &mut collected, is_stored, &budget).await?;
    budget.ensure()?;
    Ok(collected)
}

/// Returns the kinds with stored objects, at the preferred version.
fn kinds(discovery: &Discovery) -> BTreeMap<GroupKind, ResourcePath> {
    let mut kinds = BTreeMap::new();
    for (group, served) in &*discovery.groups {
        let resources = served.versions.iter().flat_map(|it| &it.resources);
        for resource in resources.filter(|it| it.verbs.contains("list")) {
            let kind = GroupKind::new(group.clone(), resource.kind.clone());
            if let Some(path) = ResourcePath::preferred(discovery, &kind) {
                kinds.insert(kind, path);
            }
        }
    }
    kinds
}

/// Adds the kinds and namespaces of parameters of admission policies.
async fn add_parameters(
    cluster: &Cluster,
    kinds: &BTreeMap<GroupKind, ResourcePath>,
    touched: &mut Touched,
) -> Result<(), ClusterError> {
    for kind in [
        "ValidatingAdmissionPolicy",
        "ValidatingAdmissionPolicyBinding",
    ] {
        let kind = GroupKind::new("admissionregistration.k8s.io", kind);
        let Some(path) = kinds.get(&kind) else {
            continue;
        };
        // A failure is reported by the list of the objects themselves.
        let Ok(list) = cluster.list(path, &Selector::default()).await else {
            continue;
        };
        for object in &list.items {
            let spec = &object["spec"];
            let parameters = &spec["paramKind"];
            if let (Some(version), Some(kind)) = (
                parameters["apiVersion"].as_str(),
                parameters["kind"].as_str(),
            ) {
                let group = version.split_once('/').map_or("", |(group, _)| group);
                touched.kinds.insert(GroupKind::new(group, kind));
            }
            let namespace = spec["paramRef"]["namespace"].as_str();
            touched.namespaces.extend(namespace.map(str::to_owned));
        }
    }
    Ok(())
}

fn requests(path: &ResourcePath, extent: Extent, touched: &Touched) -> Vec<Request> {
    let request = |namespace: Option<&String>| Request {
        path: path.clone(),
        namespace: namespace.cloned(),
    };
    match extent {
        Extent::Everywhere => vec![request(None)],
        Extent::InNamespaces => touched
            .namespaces
            .iter()
            .map(|namespace| request(Some(namespace)))
            .collect(),
        Extent::Nowhere => Vec::new(),
    }
}

/// Answer to a request: the objects, or the number of objects beyond the limit.
struct Answer {
    request: Request,
    objects: Result<Vec<Value>, ClusterError>,
    count: usize,
}

async fn lists(cluster: &Cluster, requests: Vec<Request>, budget: &Budget) -> Vec<Answer> {
    stream::iter(requests)
        .map(|request| async move {
            let count = AtomicUsize::new(0);
            let read = |object: Value| {
                // Beyond the limits, only count.
                let number = count.fetch_add(1, Ordering::Relaxed);
                (number < LIMIT && budget.take(&object)).then_some(object)
            };
            let selector = Selector::namespace(request.namespace.as_deref());
            let objects = cluster.list_of(&request.path, &selector, read).await;
            Answer {
                request,
                objects,
                count: count.into_inner(),
            }
        })
        .buffer_unordered(CONCURRENCY)
        .collect()
        .await
}

impl Collected {
    /// Returns the objects of all answers. Lists that the server refuses are left out.
    fn take(&mut self, answers: Vec<Answer>) -> Result<Vec<Value>, ClusterError> {
        let mut all = Vec::new();
        for answer in answers {
            let kind = answer.request.path.group_kind();
            let what = match &answer.request.namespace {
                Some(namespace) => format!("{kind} in namespace {namespace}"),
                None => kind.to_string(),
            };
            match answer.objects {
                Ok(_) if answer.count > LIMIT => self.left_out.push(LeftOut {
                    what,
                    why: format!("{} objects; at most {LIMIT} are copied", answer.count),
                }),
                Ok(objects) => all.extend(objects),
                Err(error) if ends_the_copy(&error) => return Err(error),
                Err(error) => self.left_out.push(LeftOut {
                    what,
                    why: words(&error),
                }),
            }
        }
        Ok(all)
    }
}

/// Returns whether an error concerns the whole cluster.
fn ends_the_copy(error: &ClusterError) -> bool {
    matches!(
        error.class(),
        Some(
            Class::Unreachable
                | Class::Tls
                | Class::Credentials
                | Class::Unauthorized
                | Class::NotKubernetes
        )
    )
}

/// Reads owners of objects that are not part of the copy, transitively. The garbage collector of
/// the copy would delete objects without their owner, so an owner that cannot be read becomes a
/// stub, and a reference to one that is stored elsewhere is removed.
async fn add_owners(
    cluster: &Cluster,
    kinds: &BTreeMap<GroupKind, ResourcePath>,
    collected: &mut Collected,
    is_stored: impl Fn(&GroupKind) -> bool,
    budget: &Budget,
) -> Result<(), ClusterError> {
    let mut known: BTreeSet<String> = collected.raw.iter().filter_map(uid).collect();
    let mut next = 0;
    let mut read = 0;
    while next < collected.raw.len() {
        let namespace = collected.raw[next]["metadata"]["namespace"]
            .as_str()
            .map(str::to_owned);
        let references = collected.raw[next]["metadata"]["ownerReferences"]
            .as_array()
            .cloned();
        for reference in references.into_iter().flatten() {
            let Some(owner) = reference["uid"].as_str() else {
                continue;
            };
            if known.contains(owner) {
                continue;
            }
            known.insert(owner.to_owned());
            let version = reference["apiVersion"].as_str().unwrap_or_default();
            let group = version.split_once('/').map_or("", |(group, _)| group);
            let kind = GroupKind::new(group, reference["kind"].as_str().unwrap_or_default());
            let name = reference["name"].as_str().unwrap_or_default();
            let Some(path) = kinds.get(&kind).filter(|_| is_stored(&kind)) else {
                remove_owner(&mut collected.raw, owner);
                collected.left_out.push(LeftOut {
                    what: format!("owner {kind} {name}"),
                    why: "its kind is not stored in the cluster".to_owned(),
                });
                continue;
            };
            let namespace = namespace.as_deref().filter(|_| path.namespaced);
            read += 1;
            let found = if read <= OWNERS && budget.ensure().is_ok() {
                cluster.get(path, namespace, name).await
            } else {
                Ok(None)
            };
            let found = match found {
                Ok(found) => found.filter(|found| uid(found).as_deref() == Some(owner)),
                Err(error) if ends_the_copy(&error) => return Err(error),
                Err(_) => None,
            };
            let stub = || {
                json!({
                    "apiVersion": path.api_version.to_string(),
                    "kind": path.kind,
                    "metadata": {"name": name, "namespace": namespace, "uid": owner},
                })
            };
            if found.is_none() {
                collected.left_out.push(LeftOut {
                    what: format!("owner {kind} {name}"),
                    why: "it cannot be read; the copy has only its metadata".to_owned(),
                });
            }
            let owner = found.unwrap_or_else(stub);
            budget.take(&owner);
            collected.raw.push(owner);
        }
        next += 1;
    }
    Ok(())
}

fn uid(object: &Value) -> Option<String> {
    object["metadata"]["uid"].as_str().map(str::to_owned)
}

fn remove_owner(objects: &mut [Value], owner: &str) {
    for object in objects {
        if let Some(Value::Array(references)) = object.pointer_mut("/metadata/ownerReferences") {
            references.retain(|reference| reference["uid"] != owner);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_is_bounded_in_bytes() {
        let object =
            json!({"kind": "ConfigMap", "data": {"a": "x".repeat(100), "b": [1, true, null]}});
        let length = object.to_string().len() as u64;
        assert!(size_of(&object).abs_diff(length) < 20, "{length}");
        let budget = Budget::new(2 * size_of(&object));
        assert!(budget.take(&object) && budget.take(&object));
        budget.ensure().unwrap();
        assert!(!budget.take(&object));
        let error = budget.ensure().unwrap_err().to_string();
        assert!(error.contains("more than"), "{error}");
    }
}
