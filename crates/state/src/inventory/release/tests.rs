//! Tests for reading and writing records.

use super::*;
use crate::inventory::Entry;
use pleach_model::object::ObjectId;

/// Reads a record, without the facts that only a stored record has.
fn read(object: &Value) -> Installed {
    let mut record = Installed::from_object(object).unwrap();
    record.content = None;
    record
}

#[test]
fn the_record_round_trips_through_the_status() {
    let attempt = Attempt {
        version: "v1".to_owned(),
        revision: "abc".to_owned(),
        digest: Digest::of(b"x"),
        at: Timestamp::UNIX_EPOCH,
    };
    let mut record = Installed {
        uid: "u".to_owned(),
        resource_version: "7".to_owned(),
        tooling: "pleach/0.1.0".to_owned(),
        format: RECORD_FORMAT,
        oldest_writer: OLDEST_WRITER,
        repository: "fleet".to_owned(),
        installed: Some(attempt),
        ready: true,
        shards: vec![ShardRef {
            name: "s".to_owned(),
            digest: Digest::of(b"y"),
        }],
        entries: 3,
        nodes: Some(NodesMemory::Left),
        ..Installed::default()
    };
    for number in 0..12 {
        record.push(AttemptResult {
            version: format!("v{number}"),
            revision: "abc".to_owned(),
            result: RunOutcome::Deployed,
            at: Timestamp::UNIX_EPOCH,
            message: String::new(),
            local: String::new(),
            overridden: Vec::new(),
            run: RunFacts::default(),
        });
    }
    let object = json!({
        "metadata": {"name": "e.r", "uid": "u", "resourceVersion": "7",
                     "annotations": {"applyset.kubernetes.io/tooling": "pleach/0.1.0"}},
        "status": record.status("Deployed", "", Timestamp::UNIX_EPOCH),
    });
    assert_eq!(object["status"]["conditions"][0]["status"], "True");
    let read = read(&object);
    assert_eq!(read, record);
    assert_eq!(
        (read.history.len(), read.history[0].version.as_str()),
        (10, "v11")
    );
}

#[test]
fn a_repeated_failure_has_one_history_entry() {
    let mut record = Installed::default();
    let mut push = |result: RunOutcome, revision: &str, message: &str, second| {
        record.push(AttemptResult {
            version: "v1".to_owned(),
            revision: revision.to_owned(),
            result,
            at: Timestamp::from_second(second).unwrap(),
            message: message.to_owned(),
            local: String::new(),
            overridden: Vec::new(),
            run: RunFacts::default(),
        });
        record.history.len()
    };
    assert_eq!(push(RunOutcome::Deployed, "abc", "", 1), 1);
    assert_eq!(push(RunOutcome::Failed, "def", "no", 2), 2);
    for second in 3..20 {
        assert_eq!(push(RunOutcome::Failed, "def", "no", second), 2);
    }
    assert_eq!(push(RunOutcome::Failed, "def", "still not", 20), 3);
    assert_eq!(push(RunOutcome::Failed, "012", "still not", 21), 4);
    assert_eq!(push(RunOutcome::Deployed, "012", "", 22), 5);
    assert_eq!(push(RunOutcome::Deployed, "012", "", 23), 6);
    assert_eq!(record.history[4].at, Timestamp::from_second(19).unwrap());
}

#[test]
fn an_outcome_is_recorded_as_its_word() {
    let words = "deployed unchanged failed interrupted superseded unverified uninstalled removed";
    for word in words.split(' ').chain(["", "Deployed", "rolled back"]) {
        let outcome: RunOutcome = serde_json::from_value(word.into()).unwrap();
        assert_eq!(outcome.word(), word);
        assert_eq!(json!(outcome), word);
        let is_known = !matches!(outcome, RunOutcome::Unknown(_));
        assert_eq!(
            is_known,
            words.split(' ').any(|known| known == word),
            "{word}"
        );
    }
}

/// A record in format 1, byte for byte.
const PREVIOUS: &str = r#"{"metadata":{"name":"e.r","uid":"u","resourceVersion":"7"},"status":{"record":{"applying":null,"bundle":"web","entries":2,"format":1,"history":[{"at":"1970-01-01T00:00:00Z","result":"deployed","revision":"abc","version":"v1"}],"installed":{"at":"1970-01-01T00:00:00Z","digest":"sha256:2d711642b726b04401627ca9fbac32f5c8530fb1903cc4db02258717921a4881","revision":"abc","version":"v1"},"ready":true,"repository":"fleet","shards":[],"stage":"verify"}}}"#;

#[test]
fn a_record_of_the_previous_format_is_read() {
    let object: Value = serde_json::from_str(PREVIOUS).unwrap();
    let record = Installed::from_object(&object).unwrap();
    assert_eq!((record.format, record.entries), (1, 2));
    assert_eq!(record.installed.as_ref().unwrap().version, "v1");
    assert!(record.ready && !record.removed);
    assert_eq!(record.memory, None);
    // The next write uses the current format.
    let status = record.status("Deployed", "", Timestamp::UNIX_EPOCH);
    assert_eq!(status["record"]["format"], RECORD_FORMAT);
    assert_eq!(status["record"]["memory"], Value::Null);
}

/// A newer pleach declares the oldest writer. Its additional fields survive our writes.
#[test]
fn a_newer_record_is_written_around_or_refused() {
    let newer = |oldest: u32| {
        json!({
            "metadata": {"name": "e.r", "uid": "u", "resourceVersion": "7"},
            "status": {"record": {"format": RECORD_FORMAT + 1, "oldestWriter": oldest,
                                  "repository": "fleet", "later": {"a": [1]}}},
        })
    };
    let record = Installed::from_object(&newer(RECORD_FORMAT)).unwrap();
    let status = record.status("Deployed", "", Timestamp::UNIX_EPOCH);
    assert_eq!(status["record"]["format"], RECORD_FORMAT + 1);
    assert_eq!(status["record"]["oldestWriter"], RECORD_FORMAT);
    assert_eq!(status["record"]["later"], json!({"a": [1]}));
    let error = Installed::from_object(&newer(RECORD_FORMAT + 1)).unwrap_err();
    assert!(matches!(error, RecordError::Newer { format, .. } if format == RECORD_FORMAT + 1));
}

#[test]
fn the_uninstall_spec_round_trips() {
    let memory = json!({
        "namespace": null,
        "stages": [{"name": "agents", "after": "workloads", "timeout": 1200}, {"name": "api", "after": "workloads"}],
        "runtimeObjects": [{"kind": "APIService", "service": "api"}],
        "blockUninstall": [{"forEach": {"kind": "V", "group": "g"}, "where": "item.a", "message": "m"}],
        "readiness": [{"kind": "V", "group": "g", "current": "status.a", "stableFor": "PT10S"}],
        "dependsOn": ["base"],
        "protect": [{"kind": "*", "group": "g"}],
        "approval": true,
        "windows": [[{"allow": "Mon-Fri 08:00-16:00", "deny": null, "timeZone": null}]],
        "timeout": 90,
    });
    let read: Memory = serde_json::from_value(memory.clone()).unwrap();
    assert_eq!(serde_json::to_value(&read).unwrap(), memory);
    // A record of a version without these fields.
    let mut older = memory;
    for field in ["approval", "windows"] {
        older.as_object_mut().unwrap().shift_remove(field);
    }
    let read: Memory = serde_json::from_value(older).unwrap();
    assert!(!read.approval && read.windows.is_empty());
    // All fields are serialized. A merge patch would otherwise keep old values.
    let empty = serde_json::to_value(Memory::default()).unwrap();
    assert_eq!(empty.as_object().unwrap().len(), 10);
}

#[test]
fn a_record_of_a_newer_pleach_is_refused() {
    let object =
        json!({"metadata": {"name": "e.r"}, "status": {"record": {"format": RECORD_FORMAT + 1}}});
    assert!(matches!(
        Installed::from_object(&object),
        Err(RecordError::Newer { .. })
    ));
    assert_eq!(
        Installed::from_object(&json!({})).unwrap(),
        Installed::default()
    );
}

/// A backup restored without status contains only metadata.
#[test]
fn an_empty_record_is_blank() {
    let release = json!({"metadata": {"name": "e.r", "uid": "u", "resourceVersion": "7"}});
    let map = json!({"kind": "ConfigMap", "metadata": {"name": "e.r", "uid": "u"}});
    for object in [release, map] {
        let record = Installed::from_object(&object).unwrap();
        assert!(record.is_blank());
        assert_eq!(record.uid, "u");
        let status = record.status("Reconciling", "", Timestamp::UNIX_EPOCH);
        let written = json!({"metadata": {"name": "e.r"}, "status": status});
        assert!(!Installed::from_object(&written).unwrap().is_blank());
    }
    let previous: Value = serde_json::from_str(PREVIOUS).unwrap();
    assert!(!Installed::from_object(&previous).unwrap().is_blank());
}

#[test]
fn the_parent_names_kinds_and_namespaces_of_its_members() {
    let ids = [
        ("apps", "Deployment", Some("b")),
        ("", "ConfigMap", Some("a")),
        ("", "Namespace", None),
    ];
    let inventory = Inventory {
        entries: ids
            .map(|(g, k, n)| (ObjectId::new(g, k, n, "x"), Entry::default()))
            .into(),
    };
    let name = ReleaseName {
        environment: "e".to_owned(),
        release: "r".to_owned(),
    };
    let parent = parent_object(&Store::Release, &name, &inventory, "0.1.0");
    let annotations = &parent["metadata"]["annotations"];
    assert_eq!(
        annotations["applyset.kubernetes.io/contains-group-kinds"],
        "ConfigMap,Deployment.apps,Namespace"
    );
    assert_eq!(
        annotations["applyset.kubernetes.io/additional-namespaces"],
        "a,b"
    );
    assert_eq!(
        parent["metadata"]["labels"]["applyset.kubernetes.io/id"],
        Store::Release.apply_set(&name)
    );
    // A parent's own namespace is not listed as an additional one.
    let store = Store::ConfigMap {
        namespace: "a".to_owned(),
    };
    let parent = parent_object(&store, &name, &inventory, "0.1.0");
    assert_eq!(
        parent["metadata"]["annotations"]["applyset.kubernetes.io/additional-namespaces"],
        "b"
    );
    assert_eq!(
        (&parent["kind"], &parent["metadata"]["namespace"]),
        (&json!("ConfigMap"), &json!("a"))
    );
}

#[test]
fn a_config_map_contains_the_same_record() {
    let record = Installed {
        format: RECORD_FORMAT,
        oldest_writer: OLDEST_WRITER,
        repository: "fleet".to_owned(),
        ready: true,
        ..Installed::default()
    };
    let status = record.status("Deployed", "", Timestamp::UNIX_EPOCH);
    let data = config_map_data(&status);
    assert_eq!(
        (&data["ready"], &data["reason"]),
        (&json!("True"), &json!("Deployed"))
    );
    let object = json!({"kind": "ConfigMap", "metadata": {"name": "e.r"}, "data": data});
    assert_eq!(read(&object), record);
    let broken = json!({"kind": "ConfigMap", "metadata": {"name": "e.r"}, "data": {"status": "{"}});
    assert!(matches!(
        Installed::from_object(&broken),
        Err(RecordError::Parse { .. })
    ));
    // A foreign object contains no record.
    let other = json!({"kind": "ConfigMap", "metadata": {"name": "e.r"}, "status": status});
    assert_eq!(
        Installed::from_object(&other).unwrap(),
        Installed::default()
    );
}

#[test]
fn a_rollback_needs_another_commit() {
    let commit = "0123456789abcdef0123456789abcdef01234567";
    let other = "76543210fedcba9876543210fedcba9876543210";
    let dirty = format!("{commit}-dirty");
    for (installed, expected) in [
        (None, false),
        (Some(other), false),
        (Some("none"), false),
        (Some(dirty.as_str()), false),
        (Some(commit), true),
    ] {
        let record = Installed {
            installed: installed.map(|revision| Attempt {
                version: "v1.0.0".to_owned(),
                revision: revision.to_owned(),
                digest: Digest::of(b"x"),
                at: Timestamp::UNIX_EPOCH,
            }),
            ..Installed::default()
        };
        assert_eq!(record.can_roll_back_from(other), expected, "{installed:?}");
    }
}
