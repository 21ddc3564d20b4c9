//! The recorded answers in `tests/fixtures/yaml` match kubectl.

use std::process::Command;

use pleach_testkit::control_plane::binaries;
use serde_json::Value;

#[test]
#[expect(clippy::disallowed_methods, reason = "a file for kubectl")]
fn kubectl_reads_what_is_recorded() {
    let cases: Value =
        serde_json::from_str(include_str!("../fixtures/yaml/conformance.json")).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("case.yaml");
    let mut wrong = Vec::new();
    for case in cases.as_array().unwrap() {
        std::fs::write(&file, case["text"].as_str().unwrap()).unwrap();
        let output = Command::new(binaries().find("kubectl").unwrap())
            .args(["annotate", "--local", "recorded=yes", "-o", "json", "-f"])
            .arg(&file)
            .output()
            .unwrap();
        let read = output.status.success().then(|| {
            serde_json::Deserializer::from_slice(&output.stdout)
                .into_iter()
                .map(|document| {
                    let mut document: Value = document.unwrap();
                    let metadata = document["metadata"].as_object_mut().unwrap();
                    metadata.shift_remove("annotations");
                    document
                })
                .collect::<Vec<_>>()
        });
        if serde_json::json!(read) != case["kubectl"] {
            wrong.push(format!("{}: {read:?}", case["name"]));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
