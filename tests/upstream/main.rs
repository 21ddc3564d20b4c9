//! Tests with manifests of upstream projects: large, old, and written by other tools. They are not
//! in this repository; `make test-upstream DATA=folder` sets their location.

#![expect(
    clippy::unwrap_used,
    clippy::panic,
    clippy::disallowed_methods,
    reason = "helpers of a test fail like the test, and they read files where they lie"
)]

mod large;
mod lint;
mod narrowing;
mod parse;
mod rehearsals;
mod templates;
mod upgrade;

use std::fs;
use std::path::{Path, PathBuf};

use pleach_config::{ResolvedEnvironment, resolve};
use pleach_model::kinds::KindTable;
use pleach_model::tree::MemoryTree;
use semver::Version;

/// Variable with the folder of the manifests.
const DATA: &str = "PLEACH_UPSTREAM_DATA";

/// Returns a path in the folder of the manifests.
fn data(path: &str) -> PathBuf {
    let Some(folder) = std::env::var_os(DATA) else {
        panic!("{DATA} is not set; run `make test-upstream DATA=folder`");
    };
    PathBuf::from(folder).join(path)
}

fn read(path: &str) -> String {
    let path = data(path);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Returns the files whose names have this ending, sorted, as paths relative to the folder.
fn files(ending: &str) -> Vec<String> {
    let root = data("");
    let mut found = Vec::new();
    let mut folders = vec![root.clone()];
    while let Some(folder) = folders.pop() {
        let entries = fs::read_dir(&folder);
        for entry in entries.unwrap_or_else(|error| panic!("{}: {error}", folder.display())) {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.to_str().unwrap().ends_with(ending) {
                let path = path.strip_prefix(&root).unwrap();
                found.push(path.to_str().unwrap().to_owned());
            }
        }
    }
    found.sort();
    assert!(
        !found.is_empty(),
        "{} holds no {ending} files",
        root.display()
    );
    found
}

/// Returns the files of a repository with one environment `test` and an unversioned bundle `app`.
fn repository(content: &[(&str, String)], values: &str) -> Vec<(String, String)> {
    let mut files = vec![
        (
            "pleach.yaml".to_owned(),
            "apiVersion: pleach.dev/v1alpha1\nkind: Repository\nid: upstream\n".to_owned(),
        ),
        (
            "environments/test.yaml".to_owned(),
            format!(
                "apiVersion: pleach.dev/v1alpha1\nkind: Environment\n\
                 releases: [{{bundle: app, namespace: app, values: {values}}}]\n"
            ),
        ),
        (
            "manifests/app/bundle.yaml".to_owned(),
            "apiVersion: pleach.dev/v1alpha1\nkind: Bundle\n".to_owned(),
        ),
    ];
    for (name, text) in content {
        files.push((format!("manifests/app/{name}"), text.clone()));
    }
    files
}

fn load(files: Vec<(String, String)>) -> (MemoryTree, ResolvedEnvironment, KindTable) {
    let tree = MemoryTree::new(files);
    let environment = resolve(&tree, "test", &Version::new(0, 1, 0))
        .unwrap_or_else(|findings| panic!("{findings:#?}"));
    let (kinds, _) = KindTable::nearest(None);
    (tree, environment, kinds)
}

/// Returns the program under test.
fn program() -> &'static Path {
    Path::new(env!("CARGO_BIN_EXE_pleach"))
}
