//! Records outlive the pleach version that wrote them. Fixtures of all formats are stored here and
//! must be readable.

use std::fs;
use std::path::{Path, PathBuf};

use jiff::Timestamp;
use pleach_model::object::ReleaseName;
use pleach_state::inventory::{Installed, RECORD_FORMAT, Scope, StateKey, Store, config_map_data};
use serde_json::Value;

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/fixtures/records")
        .join(name)
}

fn read(name: &str) -> Value {
    serde_json::from_str(&fs::read_to_string(fixture(name)).unwrap()).unwrap()
}

#[test]
fn records_of_every_format_are_read() {
    for format in 1..=RECORD_FORMAT {
        let record = Installed::from_object(&read(&format!("release-{format}.json"))).unwrap();
        assert_eq!((record.format, record.oldest_writer), (format, format));
        assert_eq!(record.repository, "fleet");
        assert_eq!(record.installed.as_ref().unwrap().version, "v1");
        assert_eq!(record.history.len(), 1);
        assert_eq!(record.shards.len(), 1);
        assert!(record.ready);
        // All fields are known.
        assert!(record.unknown.is_empty(), "{:?}", record.unknown);
    }
}

/// The current output equals the newest fixture byte for byte. If this fails, raise
/// `RECORD_FORMAT`, retain the fixture of the previous format, and add one for the new format.
#[test]
fn the_bytes_of_a_record_change_with_their_format_only() {
    let file = format!("release-{RECORD_FORMAT}.json");
    let object = read(&file);
    let record = Installed::from_object(&object).unwrap();
    let mut written = object.clone();
    written["status"] = record.status("Deployed", "", Timestamp::UNIX_EPOCH);
    let name = ReleaseName {
        environment: "e".to_owned(),
        release: "r".to_owned(),
    };
    let key = StateKey::beside(b"k".to_vec(), "pleach-system/pleach-digest-key".to_owned());
    let scope = Scope::of("c", &Store::Release, &name);
    scope.seal_record(&key, &mut written["status"]);
    record.verify(&scope, &Store::Release, Some(&key)).unwrap();
    let text = serde_json::to_string_pretty(&written).unwrap() + "\n";
    assert_eq!(text, fs::read_to_string(fixture(&file)).unwrap());
    // The same record in a ConfigMap.
    let mut map = serde_json::json!({"kind": "ConfigMap", "metadata": object["metadata"]});
    map["data"] = config_map_data(&written["status"]);
    assert_eq!(Installed::from_object(&map).unwrap(), record);
}
