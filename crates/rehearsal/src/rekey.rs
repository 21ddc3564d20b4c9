//! New digests and seals for the records of a copy.
//!
//! The records have digests of values, also of secret ones, with the key of the cluster. In a copy,
//! values are redacted and the key is another one. Renewed records say the same about the copy as
//! the old ones about the cluster: an object that was unchanged is unchanged.

use std::collections::{BTreeMap, BTreeSet};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use pleach_model::object::{Digest, ObjectId, ReleaseName, labels};
use pleach_state::inventory::{
    FieldKey, Installed, Inventory, Scope, ShardRef, StateKey, Store, read_shards, write_shards,
};
use pleach_state::state_objects::KEY_SECRET;
use serde_json::{Value, json};

use super::dump::{LeftOut, position};

/// Input of a renewal.
#[derive(Debug)]
pub struct Renewal<'a> {
    /// Id of the cluster.
    pub cluster: &'a str,
    /// Key of the cluster. `None`: it has no records, or the user cannot read it.
    pub old: Option<&'a StateKey>,
    /// Bytes of the key of the copy.
    pub key: &'a [u8],
    /// Digests of desired objects and of their configuration, as text: those of the objects in git,
    /// and those of the redacted objects.
    pub digests: &'a BTreeMap<String, String>,
}

/// Renews the records in redacted objects. `raw` are the same objects as the cluster has them.
/// Returns the records that do not verify, which stay as they are.
pub fn renew(raw: &[Value], redacted: &mut Vec<Value>, renewal: &Renewal<'_>) -> Vec<LeftOut> {
    for object in redacted.iter_mut() {
        replace(object, renewal.digests);
    }
    let mut left_out = Vec::new();
    let mut stores = BTreeSet::new();
    let records: Vec<usize> = (0..redacted.len())
        .filter(|index| name_of_record(&redacted[*index]).is_some())
        .collect();
    let mut removed = BTreeSet::new();
    let mut added = Vec::new();
    for index in records {
        let Some(name) = name_of_record(&redacted[index]) else {
            continue;
        };
        let store = Store::of(&redacted[index]);
        stores.insert(store.namespace().to_owned());
        match renewed(raw, redacted, (&name, &store), index, renewal) {
            Ok(Some(record)) => {
                removed.extend(record.old_shards);
                added.extend(record.shards);
                redacted[index] = record.object;
            }
            Ok(None) => {}
            Err(why) => left_out.push(LeftOut {
                what: format!("record of release {name}"),
                why,
            }),
        }
        renew_journal(redacted, (&name, &store), renewal);
    }
    redacted.retain(|object| {
        let [group, kind, namespace, name] = position(object);
        let is_of_core = |expected: &str| group.is_empty() && kind == expected;
        let is_key = is_of_core("Secret") && name == KEY_SECRET && stores.contains(&namespace);
        let is_old_shard = is_of_core("ConfigMap") && removed.contains(&(namespace, name));
        !is_key && !is_old_shard
    });
    redacted.extend(added);
    redacted.extend(stores.iter().map(|namespace| {
        json!({
            "apiVersion": "v1", "kind": "Secret", "type": "Opaque",
            "metadata": {"name": KEY_SECRET, "namespace": namespace},
            "data": {"key": STANDARD.encode(renewal.key)},
        })
    }));
    left_out
}

/// Replaces texts that are digests.
fn replace(value: &mut Value, digests: &BTreeMap<String, String>) {
    match value {
        Value::String(text) => {
            if let Some(new) = digests.get(text.as_str()) {
                text.clone_from(new);
            }
        }
        Value::Array(items) => items.iter_mut().for_each(|item| replace(item, digests)),
        Value::Object(map) => map.values_mut().for_each(|item| replace(item, digests)),
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

/// Returns the release whose record an object has.
fn name_of_record(object: &Value) -> Option<ReleaseName> {
    let [group, kind, _, name] = position(object);
    let is_record = (group == "pleach.dev" && kind == "Release")
        || (kind == "ConfigMap"
            && object["data"]["status"].is_string()
            && object["metadata"]["labels"][labels::RELEASE].is_string());
    let (environment, release) = name.split_once('.')?;
    is_record.then(|| ReleaseName {
        environment: environment.to_owned(),
        release: release.to_owned(),
    })
}

struct Renewed {
    object: Value,
    shards: Vec<Value>,
    /// Namespaces and names of the old shards.
    old_shards: Vec<(String, String)>,
}

fn new_key(store: &Store, renewal: &Renewal<'_>) -> StateKey {
    let home = format!("{}/{KEY_SECRET}", store.namespace());
    StateKey::beside(renewal.key.to_vec(), home)
}

fn renewed(
    raw: &[Value],
    redacted: &[Value],
    (name, store): (&ReleaseName, &Store),
    index: usize,
    renewal: &Renewal<'_>,
) -> Result<Option<Renewed>, String> {
    let object = &redacted[index];
    // Redaction could have changed a text of the record, so the cluster's object is verified.
    let original = raw
        .iter()
        .find(|one| position(one) == position(object))
        .unwrap_or(object);
    let installed = Installed::from_object(original).map_err(|error| error.to_string())?;
    let scope = Scope::of(renewal.cluster, store, name);
    installed
        .verify(&scope, store, renewal.old)
        .map_err(|error| error.to_string())?;
    if installed.content.is_none() {
        return Ok(None);
    }
    let mut status = status_of(object).ok_or("its status cannot be read")?;
    let shards = shards_of(raw, store, &installed).ok_or("an inventory shard is missing")?;
    let mut inventory = read_shards(&shards).map_err(|error| error.to_string())?;
    let key = new_key(store, renewal);
    if let Some(old) = renewal.old {
        renew_entries(raw, redacted, &mut inventory, (name, old, &key));
    }
    for entry in inventory.entries.values_mut() {
        let renewed = entry
            .desired
            .and_then(|digest| renewal.digests.get(&digest.to_string()));
        if let Some(Ok(digest)) = renewed.map(|text| text.parse()) {
            entry.desired = Some(digest);
        }
    }
    let mut written = Vec::new();
    let mut references = Vec::new();
    for shard in write_shards(&inventory) {
        let shard_name = format!("{name}.inventory.{}-{}", shard.index, shard.digest.short());
        written.push(json!({
            "apiVersion": "v1", "kind": "ConfigMap",
            "metadata": {
                "name": shard_name, "namespace": store.namespace(),
                "labels": {labels::RELEASE: name.label(), labels::MANAGED_BY: "pleach"},
            },
            "binaryData": {"entries": STANDARD.encode(&shard.bytes)},
        }));
        references.push(ShardRef {
            name: shard_name,
            digest: shard.digest,
        });
    }
    status["record"]["shards"] = json!(references);
    scope.seal_record(&key, &mut status);
    let mut object = object.clone();
    if object["kind"] == "ConfigMap" {
        object["data"]["status"] = status.to_string().into();
    } else {
        object["status"] = status;
    }
    let old = installed.shards.into_iter();
    Ok(Some(Renewed {
        object,
        shards: written,
        old_shards: old
            .map(|shard| (store.namespace().to_owned(), shard.name))
            .collect(),
    }))
}

fn status_of(object: &Value) -> Option<Value> {
    if object["kind"] == "ConfigMap" {
        return serde_json::from_str(object["data"]["status"].as_str()?).ok();
    }
    Some(object["status"].clone())
}

fn shards_of(
    objects: &[Value],
    store: &Store,
    installed: &Installed,
) -> Option<Vec<(Digest, Vec<u8>)>> {
    let shards = installed.shards.iter();
    shards
        .map(|shard| {
            let map = objects.iter().find(|object| {
                object["kind"] == "ConfigMap"
                    && object["metadata"]["namespace"] == store.namespace()
                    && object["metadata"]["name"] == shard.name.as_str()
            })?;
            let text = map["binaryData"]["entries"].as_str()?;
            Some((shard.digest, STANDARD.decode(text).ok()?))
        })
        .collect()
}

fn renew_entries(
    raw: &[Value],
    redacted: &[Value],
    inventory: &mut Inventory,
    (name, old, new): (&ReleaseName, &StateKey, &StateKey),
) {
    let by_id = |objects: &'_ [Value]| -> BTreeMap<[String; 4], usize> {
        let positions = objects.iter().enumerate();
        positions
            .map(|(index, object)| (position(object), index))
            .collect()
    };
    let (raw_at, redacted_at) = (by_id(raw), by_id(redacted));
    let manager = name.field_manager();
    for (id, entry) in &mut inventory.entries {
        let at = of_id(id);
        let (Some(object), Some(copy)) = (raw_at.get(&at), redacted_at.get(&at)) else {
            continue;
        };
        let key = |key| FieldKey { id, key };
        entry.fields = entry.fields.renewed(
            (&raw[*object], key(old.digests())),
            (&redacted[*copy], key(new.digests())),
            &manager,
        );
    }
}

fn of_id(id: &ObjectId) -> [String; 4] {
    [
        id.group.clone(),
        id.kind.clone(),
        id.namespace.clone().unwrap_or_default(),
        id.name.clone(),
    ]
}

fn renew_journal(
    redacted: &mut [Value],
    (name, store): (&ReleaseName, &Store),
    renewal: &Renewal<'_>,
) {
    let journal = pleach_state::inventory::Journal::name(name);
    let scope = Scope::of(renewal.cluster, store, name);
    for object in redacted {
        let metadata = &object["metadata"];
        if object["kind"] == "ConfigMap"
            && metadata["namespace"] == store.namespace()
            && metadata["name"] == journal.as_str()
            && scope.verify_journal(renewal.old, object).is_ok()
        {
            let text = object["data"]["journal"].as_str().unwrap_or_default();
            let seal = scope.seal_journal(&new_key(store, renewal), text);
            object["data"]["seal"] = seal.into();
        }
    }
}

#[cfg(test)]
mod tests {
    use pleach_model::object::DigestKey;
    use pleach_state::inventory::{Entry, EntryState, OwnedFields};

    use super::*;

    const CLUSTER: &str = "6f0c2d5e";

    fn name() -> ReleaseName {
        ReleaseName {
            environment: "production".to_owned(),
            release: "web".to_owned(),
        }
    }

    fn old_key() -> StateKey {
        StateKey::beside(vec![1; 32], format!("pleach-system/{KEY_SECRET}"))
    }

    fn map(value: &str) -> Value {
        json!({
            "apiVersion": "v1", "kind": "ConfigMap",
            "metadata": {
                "name": "a", "namespace": "web", "annotations": {"pleach.dev/desired": "sha256:old"},
                "managedFields": [{
                    "manager": name().field_manager(), "operation": "Apply",
                    "fieldsV1": {"f:data": {"f:k": {}}},
                }],
            },
            "data": {"k": value},
        })
    }

    /// Returns the objects of a cluster with one release of one ConfigMap.
    fn cluster() -> Vec<Value> {
        let (key, store) = (old_key(), Store::Release);
        let id = ObjectId::new("", "ConfigMap", Some("web"), "a");
        let object = map("secret value");
        let fields = OwnedFields::of(
            &object,
            &name().field_manager(),
            FieldKey {
                id: &id,
                key: key.digests(),
            },
        );
        let entry = Entry {
            state: EntryState::Applied,
            desired: Some(Digest::of(b"old")),
            fields,
            ..Entry::default()
        };
        let inventory = Inventory {
            entries: BTreeMap::from([(id, entry)]),
        };
        let mut objects = vec![object];
        let mut references = Vec::new();
        for shard in write_shards(&inventory) {
            let name = format!("production.web.inventory.{}", shard.index);
            objects.push(json!({
                "apiVersion": "v1", "kind": "ConfigMap",
                "metadata": {"name": name, "namespace": "pleach-system"},
                "binaryData": {"entries": STANDARD.encode(&shard.bytes)},
            }));
            references.push(ShardRef {
                name,
                digest: shard.digest,
            });
        }
        let record = Installed {
            format: 6,
            oldest_writer: 6,
            shards: references,
            entries: 1,
            ..Installed::default()
        };
        let mut status = json!({"record": record});
        Scope::of(CLUSTER, &store, &name()).seal_record(&key, &mut status);
        objects.push(json!({
            "apiVersion": "pleach.dev/v1alpha1", "kind": "Release",
            "metadata": {"name": "production.web"}, "status": status,
        }));
        objects
    }

    fn renewed_from(raw: &[Value], old: Option<&StateKey>) -> (Vec<Value>, Vec<LeftOut>) {
        let mut redacted = raw.to_vec();
        redacted[0] = map("aaaaaa aaaaa");
        let digests = BTreeMap::from([
            (
                Digest::of(b"old").to_string(),
                Digest::of(b"new").to_string(),
            ),
            ("sha256:old".to_owned(), "sha256:new".to_owned()),
        ]);
        let renewal = Renewal {
            cluster: CLUSTER,
            old,
            key: &[2; 32],
            digests: &digests,
        };
        let left_out = renew(raw, &mut redacted, &renewal);
        (redacted, left_out)
    }

    #[test]
    fn a_renewed_record_verifies_with_the_new_key_and_recognizes_the_redacted_object() {
        let raw = cluster();
        let (copy, left_out) = renewed_from(&raw, Some(&old_key()));
        assert_eq!(left_out, []);
        let key = StateKey::beside(vec![2; 32], String::new());
        let release = copy.iter().find(|it| it["kind"] == "Release").unwrap();
        let installed = Installed::from_object(release).unwrap();
        let scope = Scope::of(CLUSTER, &Store::Release, &name());
        assert_eq!(
            installed.verify(&scope, &Store::Release, Some(&key)),
            Ok(())
        );
        let shards = shards_of(&copy, &Store::Release, &installed).unwrap();
        let inventory = read_shards(&shards).unwrap();
        let (id, entry) = inventory.entries.iter().next().unwrap();
        assert_eq!(entry.desired, Some(Digest::of(b"new")));
        let digests = DigestKey::new(vec![2; 32]);
        let before = entry.fields.recognize(
            &copy[0],
            &name().field_manager(),
            FieldKey { id, key: &digests },
        );
        assert!(before.is_unchanged(".data.k"));
        assert_eq!(
            copy[0]["metadata"]["annotations"]["pleach.dev/desired"],
            "sha256:new"
        );
        // The old shard and the old key are gone.
        let names: Vec<String> = copy.iter().map(|it| position(it)[3].clone()).collect();
        assert!(
            !names.contains(&"production.web.inventory.0".to_owned()),
            "{names:?}"
        );
        let keys = copy.iter().filter(|it| it["kind"] == "Secret");
        assert_eq!(keys.count(), 1);
    }

    #[test]
    fn a_record_of_another_key_is_left_and_named() {
        let raw = cluster();
        let other = StateKey::beside(vec![9; 32], String::new());
        for key in [Some(&other), None] {
            let (_, left_out) = renewed_from(&raw, key);
            assert_eq!(left_out.len(), 1);
            assert_eq!(left_out[0].what, "record of release production.web");
        }
    }
}
