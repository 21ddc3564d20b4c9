//! Rehearsals and dumps on real control planes.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;

use pleach_rehearsal::dump::Copy;
use serde_json::Value;

use crate::fleet::{Fleet, PLANTED, leaks};
use crate::secrets;

/// Writes a dump of the environment and reads it.
fn dumped(fleet: &Fleet) -> (Copy, Vec<u8>) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("dump");
    let out = path.to_str().unwrap();
    fleet
        .run(&["dump", fleet.environment, "--out", out])
        .ended_with(0)
        .says("objects written to");
    let mode = fs::metadata(&path).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    #[expect(clippy::disallowed_methods, reason = "the file is of this test")]
    let bytes = fs::read(&path).unwrap();
    (Copy::read(bytes.as_slice()).unwrap(), bytes)
}

fn find<'a>(copy: &'a Copy, kind: &str, name: &str) -> &'a Value {
    let mut objects = copy.objects.iter();
    objects
        .find(|it| it["kind"] == kind && it["metadata"]["name"] == name)
        .unwrap_or_else(|| panic!("no {kind} {name}"))
}

/// Values of Secrets are neither in the Secrets of a dump nor in other objects of it.
#[test]
fn a_dump_has_no_secret_values() {
    let fleet = secrets::fleet("hush-dump");
    fleet.run(&["apply", "hush-dump", "--yes"]).ended_with(0);
    let copied = format!("--from-literal=url=x:{PLANTED}@y");
    fleet.kubectl(&[
        "-n",
        "hush-dump",
        "create",
        "configmap",
        "careless",
        &copied,
    ]);
    let key = fleet.field(
        &["-n", "pleach-system", "secret/pleach-digest-key"],
        "/data/key",
    );

    let (copy, bytes) = dumped(&fleet);

    let mut all = String::new();
    for object in &copy.objects {
        let text = object.to_string();
        assert_eq!(
            leaks(&text),
            None,
            "{} {}",
            object["kind"],
            object["metadata"]["name"]
        );
        all.push_str(&text);
    }
    assert!(!all.contains(&key), "the digest key");
    assert_eq!(leaks(&String::from_utf8_lossy(&bytes)), None);
    // The objects themselves are there, with their names.
    assert_eq!(copy.objects.len(), copy.header.objects);
    let text = find(&copy, "Secret", "text");
    assert_eq!(text["metadata"]["annotations"]["note"], "public");
    let length = text["data"]["password"].as_str().unwrap().len();
    assert_eq!(length, "cHctWHE3aHVzaDl2QjI=".len());
    let encoded = find(&copy, "Secret", "encoded");
    assert_eq!(encoded["data"]["password"], encoded["data"]["again"]);
    let careless = find(&copy, "ConfigMap", "careless");
    let url = careless["data"]["url"].as_str().unwrap();
    assert!(url.starts_with("x:") && url.ends_with("@y"), "{url}");
    for (kind, name) in [
        ("Namespace", "hush-dump"),
        ("ClusterRole", "cluster-admin"),
        ("Release", "hush-dump.web"),
    ] {
        find(&copy, kind, name);
    }
}
