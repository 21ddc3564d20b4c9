//! Files are parsed like kubectl does.

use std::process::Command;

use pleach_model::object::Origin;
use pleach_render::parsed_objects;
use pleach_testkit::control_plane::binaries;
use serde_json::{Value, json};

use crate::{data, files, load, read, repository};

/// File with tabs after keys, which kubectl accepts and pleach refuses intentionally.
const WITH_TABS: &str = "cdi/v1.4.1/cdi.yaml";

/// Returns kubectl's parse of a file. Without a server, kubectl can only print a file with an added
/// annotation.
fn by_kubectl(file: &str) -> Vec<Value> {
    let output = Command::new(binaries().find("kubectl").unwrap())
        .args(["annotate", "--local", "x=y", "-o", "json", "-f"])
        .arg(data(file))
        .output()
        .unwrap();
    assert!(output.status.success(), "{file}: {output:?}");
    serde_json::Deserializer::from_slice(&output.stdout)
        .into_iter()
        .map(Result::unwrap)
        .collect()
}

fn annotated(mut object: Value) -> Value {
    match &mut object["metadata"]["annotations"] {
        Value::Object(annotations) => {
            annotations.insert("x".to_owned(), "y".into());
        }
        none => *none = json!({"x": "y"}),
    }
    object
}

#[test]
fn objects_are_those_that_kubectl_reads() {
    let files = files(".yaml");
    let mut objects = 0;
    for file in files.iter().filter(|file| *file != WITH_TABS) {
        let (tree, environment, _) = load(repository(&[("app.yaml", read(file))], "{}"));
        let ours = parsed_objects(&tree, &environment.releases[0])
            .unwrap_or_else(|findings| panic!("{file}: {findings:#?}"));
        let kubectl = by_kubectl(file);
        assert_eq!(ours.len(), kubectl.len(), "{file}");
        for (ours, kubectl) in ours.into_iter().zip(kubectl) {
            let place = format!("{file}:{}", ours.origin.line);
            assert_eq!(annotated(ours.value), kubectl, "{place}");
            objects += 1;
        }
    }
    println!("{objects} objects of {} files", files.len() - 1);
}

#[test]
fn a_tab_after_a_key_is_named_with_its_line() {
    let (tree, environment, _) = load(repository(&[("app.yaml", read(WITH_TABS))], "{}"));
    let findings = parsed_objects(&tree, &environment.releases[0]).unwrap_err();
    let first = &findings[0];
    assert_eq!(
        first.place,
        Some(Origin::new("manifests/app/app.yaml", 119)),
        "{findings:#?}"
    );
    assert!(first.message.contains("tab"), "{findings:#?}");
}
