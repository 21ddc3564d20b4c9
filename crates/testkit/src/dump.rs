//! Content of a cluster without details that differ between runs, so that two final states can be
//! compared.
//!
//! Omits uids, versions, times, addresses, certificates, status, and short-lived objects such as
//! pods, objects derived from them, and events. Only pleach's managedFields entries are included.
//! An inventory is represented by its entries.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use futures::stream::{self, StreamExt as _, TryStreamExt as _};
use http::{Request, header};
use kube::Client;
use pleach_model::object::{Digest, annotations, labels};
use pleach_state::inventory::{Installed, read_shards};
use serde_json::{Value, json};

use crate::generated::id;

/// Media type of the aggregated discovery.
const DISCOVERY: &str = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";

/// Kinds that change by themselves, or that depend on machines and addresses.
const RESTLESS: [(&str, &str); 12] = [
    ("", "Pod"),
    ("", "Endpoints"),
    ("", "Event"),
    ("", "Node"),
    ("events.k8s.io", "Event"),
    ("discovery.k8s.io", "EndpointSlice"),
    ("apps", "ReplicaSet"),
    ("apps", "ControllerRevision"),
    ("batch", "Job"),
    ("networking.k8s.io", "IPAddress"),
    ("networking.k8s.io", "ServiceCIDR"),
    ("storage.k8s.io", "CSINode"),
];

/// Annotations that count rollouts.
const COUNTERS: [&str; 2] = [
    "deployment.kubernetes.io/revision",
    "deprecated.daemonset.template.generation",
];

/// Namespace of pleach's state.
const STATE: &str = "pleach-system";

/// Maximum number of concurrent lists.
const CONCURRENCY: usize = 8;

/// Maximum number of differences in a message.
const SHOWN: usize = 20;

/// Object of a cluster with its path.
#[derive(Debug, Clone)]
pub struct Found {
    /// The object, with its kind.
    pub object: Value,
    /// Path on the API server.
    pub path: String,
}

/// Returns all objects of a cluster that can be listed and deleted, by id.
pub async fn everything(client: &Client) -> anyhow::Result<BTreeMap<String, Found>> {
    let lists: Vec<Vec<(String, Found)>> = stream::iter(kinds(client).await?)
        .map(|kind| list(client, kind))
        .buffer_unordered(CONCURRENCY)
        .try_collect()
        .await?;
    Ok(lists.into_iter().flatten().collect())
}

/// Content of a cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Dump(BTreeMap<String, Value>);

impl Dump {
    /// Reads a whole cluster.
    pub async fn take(client: &Client) -> anyhow::Result<Self> {
        let all = everything(client).await?;
        let mut dump = BTreeMap::new();
        for (id, found) in &all {
            let object = &found.object;
            if is_restless(object)
                || is_state_map(object) && has_record(object, &all)
                || is_stored_plan(object, &all)
            {
                continue;
            }
            if object["kind"] == "Release" {
                record(object, &all, &mut dump)?;
            } else {
                dump.insert(id.clone(), lasting(object));
            }
        }
        Ok(Self(dump))
    }

    /// Returns the ids of all objects.
    pub fn ids(&self) -> impl Iterator<Item = &str> {
        self.0.keys().map(String::as_str)
    }

    /// Returns the differences from another dump, without values, which can be secret.
    pub fn differences(&self, other: &Self) -> Vec<String> {
        let ids: BTreeSet<&String> = self.0.keys().chain(other.0.keys()).collect();
        let mut differences = Vec::new();
        for id in ids {
            match (self.0.get(id), other.0.get(id)) {
                (Some(_), None) => differences.push(format!("{id} is absent")),
                (None, Some(_)) => differences.push(format!("{id} is too many")),
                (Some(one), Some(other)) => differ(one, other, id, &mut differences),
                (None, None) => {}
            }
        }
        differences
    }

    /// Waits until a cluster matches this dump. Controllers and the garbage collector can need some
    /// time.
    pub async fn is_reached(&self, client: &Client, patience: Duration) -> anyhow::Result<()> {
        let started = Instant::now();
        loop {
            let differences = self.differences(&Self::take(client).await?);
            if differences.is_empty() {
                return Ok(());
            }
            if started.elapsed() > patience {
                let count = differences.len();
                let shown = &differences[..count.min(SHOWN)];
                bail!("{count} differences:\n{}", shown.join("\n"));
            }
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    }
}

/// Kind with the path of its list.
#[derive(Debug)]
struct Resource {
    api_version: String,
    kind: String,
    plural: String,
}

async fn kinds(client: &Client) -> anyhow::Result<Vec<Resource>> {
    let mut seen = BTreeSet::new();
    let mut kinds = Vec::new();
    for root in ["/api", "/apis"] {
        let request = Request::get(root)
            .header(header::ACCEPT, DISCOVERY)
            .body(Vec::new())?;
        let groups: Value = client.request(request).await?;
        for group in array(&groups["items"]) {
            let name = text(&group["metadata"]["name"]);
            for version in array(&group["versions"]) {
                let api_version = match name {
                    "" => text(&version["version"]).to_owned(),
                    group => format!("{group}/{}", text(&version["version"])),
                };
                for resource in array(&version["resources"]) {
                    let plural = text(&resource["resource"]);
                    let verbs = array(&resource["verbs"]);
                    let is_stored = ["list", "delete"]
                        .iter()
                        .all(|verb| verbs.iter().any(|one| one == verb));
                    if is_stored && seen.insert((name.to_owned(), plural.to_owned())) {
                        kinds.push(Resource {
                            api_version: api_version.clone(),
                            kind: text(&resource["responseKind"]["kind"]).to_owned(),
                            plural: plural.to_owned(),
                        });
                    }
                }
            }
        }
    }
    Ok(kinds)
}

async fn list(client: &Client, kind: Resource) -> anyhow::Result<Vec<(String, Found)>> {
    let root = if kind.api_version.contains('/') {
        "apis"
    } else {
        "api"
    };
    let base = format!("/{root}/{}", kind.api_version);
    let request = Request::get(format!("{base}/{}", kind.plural)).body(Vec::new())?;
    let mut answer: Value = client
        .request(request)
        .await
        .with_context(|| format!("failed to list {}", kind.plural))?;
    let Value::Array(items) = answer["items"].take() else {
        bail!("the list of {} has no items", kind.plural);
    };
    Ok(items
        .into_iter()
        .map(|mut object| {
            object["apiVersion"] = json!(kind.api_version);
            object["kind"] = json!(kind.kind);
            let name = text(&object["metadata"]["name"]);
            let path = match object["metadata"]["namespace"].as_str() {
                Some(namespace) => {
                    format!("{base}/namespaces/{namespace}/{}/{name}", kind.plural)
                }
                None => format!("{base}/{}/{name}", kind.plural),
            };
            (id(&object), Found { object, path })
        })
        .collect())
}

fn is_restless(object: &Value) -> bool {
    let group = text(&object["apiVersion"])
        .split_once('/')
        .map_or("", |(group, _)| group);
    let kind = text(&object["kind"]);
    // Include only pleach's own Leases.
    let is_foreign_lease = kind == "Lease" && object["metadata"]["namespace"] != STATE;
    is_foreign_lease || RESTLESS.contains(&(group, kind))
}

/// Returns whether the object is a shard of an inventory.
fn is_state_map(object: &Value) -> bool {
    let metadata = &object["metadata"];
    object["kind"] == "ConfigMap"
        && metadata["labels"][labels::RELEASE].is_string()
        && metadata["labels"][labels::JOURNAL].is_null()
}

/// Returns whether a record exists that can refer to a shard. Unreferenced shards remain forever.
fn has_record(shard: &Value, all: &BTreeMap<String, Found>) -> bool {
    let release = text(&shard["metadata"]["labels"][labels::RELEASE]);
    all.contains_key(&format!("Release.pleach.dev/{release}"))
}

/// Returns whether the object is the stored plan of a run, which differs after a kill.
fn is_stored_plan(object: &Value, all: &BTreeMap<String, Found>) -> bool {
    let metadata = &object["metadata"];
    let release = text(&metadata["name"]).strip_suffix(".plan");
    object["kind"] == "ConfigMap"
        && metadata["namespace"] == STATE
        && release.is_some_and(|release| all.contains_key(&format!("Release.pleach.dev/{release}")))
}

/// Adds the parts of a record that are the same after another run.
fn record(
    release: &Value,
    all: &BTreeMap<String, Found>,
    dump: &mut BTreeMap<String, Value>,
) -> anyhow::Result<()> {
    let installed = Installed::from_object(release)?;
    let mut shards = Vec::new();
    for shard in &installed.shards {
        let name = &shard.name;
        let map = all
            .get(&format!("ConfigMap/{STATE}/{name}"))
            .with_context(|| format!("ConfigMap {name} is absent"))?;
        let bytes = text(&map.object["binaryData"]["entries"]);
        shards.push((shard.digest, STANDARD.decode(bytes)?));
    }
    let id = id(release);
    for (member, entry) in read_shards(&shards)?.entries {
        dump.insert(format!("{id}: {member}"), json!(entry.state));
    }
    let version = |attempt: Option<&pleach_state::inventory::Attempt>| {
        attempt.map(|attempt| attempt.version.clone())
    };
    dump.insert(
        id,
        json!({
            "ready": installed.ready,
            "installed": version(installed.installed.as_ref()),
            "applying": version(installed.applying.as_ref()),
            "removed": installed.removed,
        }),
    );
    Ok(())
}

/// Returns the parts of an object that are the same after another run.
fn lasting(object: &Value) -> Value {
    let mut object = object.clone();
    let phase = object["status"]["phase"].take();
    let is_pleachs = object["metadata"]["annotations"][annotations::DESIRED].is_string();
    remove(&mut object, &["status"]);
    let kind = text(&object["kind"]).to_owned();
    match kind.as_str() {
        "Namespace" => object["phase"] = phase,
        "Secret" => {
            let data = object["data"].as_object_mut();
            for value in data.into_iter().flat_map(|data| data.values_mut()) {
                // Content created by pods differs each time.
                let digest = Digest::of(text(value).as_bytes()).to_string();
                *value = json!(is_pleachs.then_some(digest));
            }
        }
        "Service" if object["spec"]["clusterIP"] != "None" => {
            remove(&mut object["spec"], &["clusterIP", "clusterIPs"]);
        }
        "Lease" => remove(&mut object, &["spec"]),
        _ => {}
    }
    hide_authorities(&mut object);
    let metadata = &mut object["metadata"];
    let owners = owners(metadata);
    let incarnation = [
        "uid",
        "resourceVersion",
        "generation",
        "creationTimestamp",
        "deletionTimestamp",
        "managedFields",
        "ownerReferences",
    ];
    remove(metadata, &incarnation);
    remove(&mut metadata["annotations"], &COUNTERS);
    metadata["owners"] = owners;
    object
}

fn remove(value: &mut Value, keys: &[&str]) {
    if let Some(map) = value.as_object_mut() {
        for key in keys {
            map.shift_remove(*key);
        }
    }
}

/// Returns pleach's managedFields entries, without their times.
fn owners(metadata: &Value) -> Value {
    let mut owners = BTreeMap::new();
    for entry in array(&metadata["managedFields"]) {
        let manager = text(&entry["manager"]);
        if manager.starts_with("pleach") {
            let key = format!(
                "{manager} {} {}",
                text(&entry["operation"]),
                text(&entry["subresource"])
            );
            owners.insert(key, entry["fieldsV1"].clone());
        }
    }
    json!(owners)
}

/// Hides CA certificates, which differ with every installation.
fn hide_authorities(value: &mut Value) {
    match value {
        Value::Object(map) => {
            for (key, value) in map {
                if key == "caBundle" {
                    *value = Value::Null;
                } else {
                    hide_authorities(value);
                }
            }
        }
        Value::Array(items) => items.iter_mut().for_each(hide_authorities),
        _ => {}
    }
}

fn differ(one: &Value, other: &Value, place: &str, differences: &mut Vec<String>) {
    match (one, other) {
        (Value::Object(a), Value::Object(b)) => {
            let keys: BTreeSet<&String> = a.keys().chain(b.keys()).collect();
            for key in keys {
                differ(
                    &one[key],
                    &other[key],
                    &format!("{place} {key}"),
                    differences,
                );
            }
        }
        (Value::Array(a), Value::Array(b)) if a.len() == b.len() => {
            for (index, (a, b)) in a.iter().zip(b).enumerate() {
                differ(a, b, &format!("{place} [{index}]"), differences);
            }
        }
        _ if one == other => {}
        _ => differences.push(format!("{place} is another")),
    }
}

fn array(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_unavoidable_differences_are_ignored() {
        let map = |uid: &str, value: &str, manager: &str| {
            lasting(
                &json!({"apiVersion": "v1", "kind": "ConfigMap", "data": {"k": value},
                "metadata": {"name": "a", "uid": uid, "managedFields": [
                    {"manager": manager, "operation": "Apply", "time": uid, "fieldsV1": {"f:data": {}}}]}}),
            )
        };
        let dump = |object: Value| Dump(BTreeMap::from([("ConfigMap/a".to_owned(), object)]));
        let one = dump(map("1", "v", "pleach/a.b"));
        assert_eq!(one.differences(&dump(map("2", "v", "pleach/a.b"))), [""; 0]);
        assert_eq!(
            one.differences(&dump(map("1", "w", "pleach/a.b"))),
            ["ConfigMap/a data k is another"]
        );
        let other = one.differences(&dump(map("1", "v", "pleach-overlay")));
        assert_eq!(other.len(), 2, "{other:?}");
        let none = Dump(BTreeMap::new());
        assert_eq!(one.differences(&none), ["ConfigMap/a is absent"]);
        assert_eq!(none.differences(&one), ["ConfigMap/a is too many"]);
    }

    #[test]
    fn values_of_secrets_are_compared_and_not_stored() {
        let secret = |desired: Value| {
            let object = json!({"kind": "Secret", "data": {"k": "cGxhaW4="},
                "metadata": {"annotations": {annotations::DESIRED: desired}}});
            lasting(&object).to_string()
        };
        for dumped in [secret(json!("sha256:x")), secret(Value::Null)] {
            assert!(!dumped.contains("cGxhaW4="), "{dumped}");
        }
        assert_ne!(secret(json!("sha256:x")), secret(Value::Null));
    }
}
