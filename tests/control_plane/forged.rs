//! Forged state in a tenant's namespace has no effect: it deletes, patches, approves and blocks
//! nothing.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use pleach_model::object::{ObjectId, ReleaseName};
use pleach_state::inventory::{Entry, EntryState, Inventory, Scope, StateKey, Store, write_shards};
use serde_json::{Value, json};

use crate::fleet::{Fleet, Run};
use crate::loop_run::fleet as looped;

const KEYS: [&str; 2] = ["--key-namespace", "forged-keys"];

/// Seals a record again with the key beside it.
pub(crate) fn reseal(fleet: &Fleet, store: &Store, release: &str, status: &mut Value) {
    let (scope, key) = beside(fleet, store, release);
    scope.seal_record(&key, status);
}

/// Returns the seal of a journal's text.
pub(crate) fn seal_of_journal(fleet: &Fleet, store: &Store, release: &str, text: &str) -> String {
    let (scope, key) = beside(fleet, store, release);
    scope.seal_journal(&key, text)
}

fn beside(fleet: &Fleet, store: &Store, release: &str) -> (Scope, StateKey) {
    let namespace = store.namespace();
    let secret = fleet
        .get(&["secret", "pleach-digest-key", "-n", namespace])
        .unwrap();
    let key = STANDARD
        .decode(secret["data"]["key"].as_str().unwrap())
        .unwrap();
    let name = ReleaseName {
        environment: fleet.environment.to_owned(),
        release: release.to_owned(),
    };
    let id = match store {
        Store::Release => fleet.cluster_id(),
        Store::ConfigMap { namespace } => fleet.field(&["namespace", namespace], "{.metadata.uid}"),
    };
    let key = StateKey::beside(key, format!("{namespace}/pleach-digest-key"));
    (Scope::of(&id, store, &name), key)
}

/// Tenant with write access to ConfigMaps, Secrets and Leases in its namespace.
struct Tenant<'a>(&'a Fleet);

impl Tenant<'_> {
    fn record(&self) -> Value {
        let map = self.0.get(&["configmap", "forged.web", "-n", "forged"]);
        serde_json::from_str(map.unwrap()["data"]["status"].as_str().unwrap()).unwrap()
    }

    fn writes_record(&self, status: &Value) {
        let patch = json!({"data": {"status": status.to_string()}}).to_string();
        let map = ["patch", "configmap", "forged.web", "-n", "forged"];
        self.0
            .kubectl(&[&map[..], &["--type=merge", "-p", &patch]].concat());
    }

    fn writes_map(&self, name: &str, fields: &Value) {
        let mut map = json!({
            "apiVersion": "v1", "kind": "ConfigMap",
            "metadata": {"name": name, "namespace": "forged",
                "labels": {"pleach.dev/release": "forged.web", "pleach.dev/journal": "true"}},
        });
        for (key, value) in fields.as_object().unwrap() {
            map[key] = value.clone();
        }
        let file = self.0.file(&format!("{name}.json"), &map.to_string());
        self.0.kubectl(&["apply", "-f", &file]);
    }

    /// Returns a status with one more member in its inventory.
    fn with_member(&self, id: ObjectId, uid: &str) -> Value {
        let entry = Entry {
            state: EntryState::Applied,
            api_version: "v1".to_owned(),
            uid: Some(uid.to_owned()),
            ..Entry::default()
        };
        let shard = &write_shards(&Inventory {
            entries: [(id, entry)].into(),
        })[0];
        let name = format!("forged.web.inventory.0-{}", shard.digest.short());
        let entries = STANDARD.encode(&shard.bytes);
        self.writes_map(&name, &json!({"binaryData": {"entries": entries}}));
        let mut status = self.record();
        status["record"]["shards"] = json!([{"name": name, "digest": shard.digest}]);
        status
    }
}

fn refused(run: &Run, why: &str) {
    assert_eq!(run.code, 4, "{}", run.shown());
    for part in ["does not verify", why, "`pleach recover forged/web`"] {
        assert!(run.shown().contains(part), "{part}: {}", run.shown());
    }
}

#[test]
fn forged_state_deletes_patches_and_approves_nothing() {
    let fleet = looped("forged", "{interval: 1s, approval: digest}");
    fleet.extend_environment("state: {kind: ConfigMap, namespace: forged}\n");
    fleet.push("state");
    fleet.create_namespace("forged-keys");
    let run = |args: &[&str]| fleet.run(&[args, &KEYS[..]].concat());
    let apply = || run(&["apply", "forged", "--yes"]);
    apply().ended_with(0);
    // The key of the store is not readable by its tenants.
    assert!(!fleet.exists(&["secret", "pleach-digest-key", "-n", "forged"]));
    assert!(fleet.exists(&["secret", "pleach-state-key", "-n", "forged-keys"]));
    apply().ended_with(0);
    fleet
        .apply()
        .ended_with(4)
        .says("--key-namespace forged-keys");

    let tenant = Tenant(&fleet);
    let victim = ["configmap", "victim", "-n", "forged"];
    fleet.kubectl(&[
        "create",
        "configmap",
        "victim",
        "-n",
        "forged",
        "--from-literal=k=v",
    ]);
    let uid = fleet.field(&victim, "{.metadata.uid}");
    let own = tenant.record();

    // Forge a member that git does not have.
    let id = ObjectId::new("", "ConfigMap", Some("forged"), "victim");
    let mut status = tenant.with_member(id, &uid);
    tenant.writes_record(&status);
    refused(&apply(), "its seal does not match");
    // Seal it with a key of the tenant.
    let key = STANDARD.encode("a key of the tenant");
    let secret = format!(
        r#"{{"apiVersion":"v1","kind":"Secret","metadata":{{"name":"pleach-digest-key","namespace":"forged"}},"data":{{"key":"{key}"}}}}"#
    );
    let secret = fleet.file("key.json", &secret);
    fleet.kubectl(&["apply", "-f", &secret]);
    let store = Store::ConfigMap {
        namespace: "forged".to_owned(),
    };
    reseal(&fleet, &store, "web", &mut status);
    tenant.writes_record(&status);
    refused(&apply(), "it is sealed with another key");
    // Use the format from before seals existed.
    status["record"]["format"] = json!(5);
    status["record"]["oldestWriter"] = json!(5);
    status["record"]["seal"] = Value::Null;
    tenant.writes_record(&status);
    refused(&apply(), "it is not sealed");

    // Forge a temporary change to revert.
    tenant.writes_record(&own);
    let journal = json!({"format": 1, "oldestReader": 1, "overlays": {"x ConfigMap/forged/victim": {
        "object": "ConfigMap/forged/victim", "uid": uid, "state": "on",
        "set": {"data": {"k": "v"}}, "original": {"data": {"k": "forged"}},
        "onFailure": "undo", "until": "verify", "since": "1970-01-01T00:00:00Z", "attempt": "v1"}}});
    tenant.writes_map(
        "forged.web.journal",
        &json!({"data": {"journal": journal.to_string()}}),
    );
    refused(&apply(), "its journal");

    // The record is blocked until a user with the key rewrites it.
    tenant.writes_record(&status);
    run(&["recover", "forged", "--yes"])
        .ended_with(0)
        .says("lost: the record and its inventory")
        .says("lost: the journal")
        .says("found: ConfigMap/forged/web");
    apply().ended_with(0);
    let live = fleet.get(&victim).unwrap();
    assert_eq!(
        (&live["metadata"]["uid"], &live["data"]["k"]),
        (&json!(uid), &json!("v"))
    );
    assert!(!fleet.exists(&["configmap", "forged.web.journal", "-n", "forged"]));
    approves_nothing(&fleet);
}

/// Verifies that an approval in the ConfigMap is ignored, and one on the namespace counts.
fn approves_nothing(fleet: &Fleet) {
    fleet.push_value("first", "second");
    let plan = [&["plan", "forged", "-o", "json"][..], &KEYS].concat();
    let effects = fleet.run(&plan).json();
    let effects = effects["plans"][0]["effects"].as_str().unwrap().to_owned();
    let repo = fleet.repo.path().to_str().unwrap().to_owned();
    let running = fleet.runs_with(&[&["--repo", &repo, "forged"][..], &KEYS].concat());
    let unapproved = || running.looks("forged", "web", "unapproved");
    fleet.until("the plan waits", |_| (unapproved() > 0.0).then_some(()));
    let approval = format!("pleach.dev/approved={effects}");
    fleet.kubectl(&[
        "annotate",
        "configmap",
        "forged.web",
        "-n",
        "forged",
        &approval,
    ]);
    let before = unapproved();
    fleet.until("two more", |_| (unapproved() > before + 1.0).then_some(()));
    assert_eq!(fleet.value().as_deref(), Some("first"));
    let approval = format!("pleach.dev/approved.forged.web={effects}");
    fleet.kubectl(&["annotate", "namespace", "forged", &approval]);
    fleet.until_value("second");
    running.stopped();
}
