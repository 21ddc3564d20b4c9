//! Tests with an in-memory server that has one record.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use pleach_model::discovery::{Freshness, Resource, ServedGroup, ServedVersion};
use pleach_state::inventory::{
    Entry, ShardRef, config_map_data, parent_object, write_shards as to_shards,
};
use rstest::rstest;
use serde_json::json;

use super::*;
use crate::sync::serving::serving;

fn discovery() -> Discovery {
    let maps = Resource {
        kind: "ConfigMap".to_owned(),
        plural: "configmaps".to_owned(),
        namespaced: true,
        verbs: BTreeSet::new(),
    };
    let version = ServedVersion {
        version: "v1".to_owned(),
        freshness: Freshness::Current,
        resources: vec![maps],
    };
    let mut discovery = Discovery::default();
    let versions = vec![version];
    discovery
        .groups_mut()
        .insert(String::new(), ServedGroup { versions });
    discovery
}

/// Reads a record whose shards are missing in the first `lists_without` lists.
async fn read(lists_without: usize) -> (Inventory, Result<Recorded, SyncError>) {
    read_sealed(lists_without, true).await
}

async fn read_sealed(
    lists_without: usize,
    is_sealed: bool,
) -> (Inventory, Result<Recorded, SyncError>) {
    let name = ReleaseName {
        environment: "dev".to_owned(),
        release: "web".to_owned(),
    };
    let store = Store::ConfigMap {
        namespace: "web".to_owned(),
    };
    let mut inventory = Inventory::default();
    let member = ObjectId::new("", "ConfigMap", Some("web"), "a");
    inventory.entries.insert(member, Entry::default());
    let (mut refs, mut maps) = (Vec::new(), Vec::new());
    for shard in to_shards(&inventory) {
        let name = format!("dev.web.inventory.{}", shard.index);
        let entries = STANDARD.encode(&shard.bytes);
        maps.push(json!({"metadata": {"name": name}, "binaryData": {"entries": entries}}));
        let digest = shard.digest;
        refs.push(ShardRef { name, digest });
    }
    let record = Installed {
        shards: refs,
        entries: 1,
        ..Installed::default()
    };
    let status = record.status("Deployed", "", Timestamp::UNIX_EPOCH);
    let mut object = parent_object(&store, &name, &inventory, "0.0.0");
    object["metadata"]["uid"] = json!("u");
    object["metadata"]["resourceVersion"] = json!("7");
    let mut status = status;
    let id = ClusterId("c".to_owned());
    let key = StateKey::beside(b"hi".to_vec(), "web/pleach-digest-key".to_owned());
    if is_sealed {
        Scope::of(&id.0, &store, &name).seal_record(&key, &mut status);
    }
    object["data"] = config_map_data(&status);
    let lists = Arc::new(AtomicUsize::new(0));
    let cluster = serving(move |path| match path {
        "/api/v1/namespaces/web/configmaps" => {
            let is_old = lists.fetch_add(1, Ordering::Relaxed) < lists_without;
            let items = if is_old { Vec::new() } else { maps.clone() };
            Some(json!({"kind": "ConfigMapList", "metadata": {}, "items": items}))
        }
        "/api/v1/namespaces/web/configmaps/dev.web" => Some(object.clone()),
        "/api/v1/namespaces/web/secrets/pleach-digest-key" => {
            Some(json!({"data": {"key": "aGk="}}))
        }
        _ => None,
    });
    let read = State::read(&cluster, (&name, &store), &id, &discovery()).await;
    (inventory, read.map(|(_, recorded)| recorded))
}

/// The second read finds the same record, because only the list was outdated.
#[rstest]
#[case::as_new_as_its_record(0)]
#[case::older_than_its_record(1)]
#[tokio::test]
async fn an_inventory_that_was_listed_before_its_record_is_listed_again(#[case] lists: usize) {
    let (inventory, read) = read(lists).await;
    assert_eq!(read.unwrap().inventory, inventory);
}

#[tokio::test]
async fn a_missing_shard_makes_the_inventory_incomplete() {
    let (_, read) = read(2).await;
    let error = read.unwrap_err();
    assert!(matches!(error, SyncError::Inventory { .. }), "{error}");
}

/// In the namespace of a tenant, any ConfigMap can be forged.
#[tokio::test]
async fn a_record_without_a_seal_is_no_record() {
    let (_, read) = read_sealed(0, false).await;
    let error = read.unwrap_err();
    assert!(matches!(error, SyncError::Unverified { .. }), "{error}");
    assert!(error.hint().unwrap().contains("`pleach recover dev/web`"));
}

#[test]
fn a_first_record_is_the_one_that_is_read_back() {
    let record = Installed {
        bundle: "web".to_owned(),
        ..Installed::default()
    };
    let status = record.status("Reconciling", "", Timestamp::UNIX_EPOCH);
    let object = json!({ "metadata": { "name": "dev.web" }, "status": status });
    let back = Installed::from_object(&object).unwrap();
    assert_eq!(comparable(&back), comparable(&record));
}
