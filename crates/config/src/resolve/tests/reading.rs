//! Tests for the files that are read, and for foreign files.

use rstest::rstest;

use super::*;
use crate::RecordingTree;
use pleach_model::tree::{TreeEntry, TreeError, TreeKind};

#[rstest]
#[case("kind: Environment\n", ":1: `apiVersion` is required")]
#[case("apiVersion: v1\nkind: Environment\n", ":1: this is not a pleach file")]
#[case(
    "apiVersion: pleach.dev/v2\nkind: Environment\n",
    ":1: this version of pleach does not support the format `pleach.dev/v2`"
)]
#[case("apiVersion: pleach.dev/v1alpha1\n", ":1: `kind` is required")]
#[case(
    "apiVersion: pleach.dev/v1alpha1\nkind: Bundle\n",
    ":2: expected kind `Environment`, found `Bundle`"
)]
#[case(
    "- a\n",
    ":1: expected a map that begins with `apiVersion: pleach.dev/v1alpha1` and `kind: Environment`"
)]
#[case(
    "# nothing\n",
    ": the file is empty, expected `apiVersion: pleach.dev/v1alpha1` and `kind: Environment`"
)]
fn files_of_another_kind_are_refused(#[case] text: &str, #[case] expected: &str) {
    let mut files: BTreeMap<String, Vec<u8>> = BTreeMap::new();
    files.insert("pleach.yaml".to_owned(), PLEACH.as_bytes().to_vec());
    files.insert(PROD.to_owned(), text.as_bytes().to_vec());
    let findings = resolve(&MemoryTree::new(files), "prod", &version()).unwrap_err();
    assert_eq!(findings[0].to_string(), format!("{PROD}{expected}"));
}

#[test]
fn a_folder_without_pleach_yaml_is_no_repository() {
    let files = [(PROD.to_owned(), ENVIRONMENT.as_bytes().to_vec())];
    let findings = resolve(&MemoryTree::new(files), "prod", &version()).unwrap_err();
    assert_eq!(
        shown(&findings),
        [
            "pleach.yaml: this is not a pleach repository: pleach.yaml is missing (`pleach init` creates one)"
        ]
    );
}

/// A tree in which some paths are links or submodules.
struct Special<'a> {
    tree: &'a dyn FileTree,
    name: &'a str,
    kind: TreeKind,
}

impl FileTree for Special<'_> {
    fn list(&self, folder: &str) -> Result<Vec<TreeEntry>, TreeError> {
        let mut entries = self.tree.list(folder)?;
        for entry in &mut entries {
            if entry.name == self.name {
                entry.kind = self.kind;
            }
        }
        Ok(entries)
    }

    fn read(&self, file: &str) -> Result<bytes::Bytes, TreeError> {
        self.tree.read(file)
    }
}

#[rstest]
#[case(
    TreeKind::Link,
    "manifests/app/x.yaml: symbolic links are not followed"
)]
#[case(
    TreeKind::Submodule,
    "manifests/app/x.yaml: submodules are not followed"
)]
fn links_and_submodules_are_refused(#[case] kind: TreeKind, #[case] expected: &str) {
    let tree = tree(&[
        (PROD, "releases: [{bundle: app}]"),
        ("manifests/app/x.yaml", MANIFEST),
    ]);
    let special = Special {
        tree: &tree,
        name: "x.yaml",
        kind,
    };
    let findings = resolve(&special, "prod", &version()).unwrap_err();
    assert_eq!(findings[0].to_string(), expected);
}

#[test]
fn folders_are_entered_down_to_a_hundred_levels() {
    let path = |levels: usize| format!("manifests/app/{}x.yaml", "a/".repeat(levels - 2));
    let (last, beyond) = (path(100), path(101));
    let release = (PROD, "releases: [{bundle: app}]");
    resolved(&[release, (last.as_str(), MANIFEST)]);
    let found = errors(&[release, (beyond.as_str(), MANIFEST)]);
    assert!(
        found[0].contains("/a/a: folders are nested more than 100 levels deep"),
        "{found:?}"
    );
}

/// A tree in which every folder of a bundle contains two more. git can store it in a few kilobytes.
struct Doubled<'a>(&'a dyn FileTree);

impl FileTree for Doubled<'_> {
    fn list(&self, folder: &str) -> Result<Vec<TreeEntry>, TreeError> {
        if !folder.starts_with("manifests/app/") {
            return self.0.list(folder);
        }
        let inner = ["a", "b"].map(|name| TreeEntry {
            name: name.to_owned(),
            kind: TreeKind::Folder,
        });
        Ok(inner.into())
    }

    fn read(&self, file: &str) -> Result<bytes::Bytes, TreeError> {
        self.0.read(file)
    }
}

#[test]
fn reading_of_an_endless_bundle_stops() {
    let tree = tree(&[
        (PROD, "releases: [{bundle: app}]"),
        ("manifests/app/inner/x.yaml", MANIFEST),
    ]);
    let findings = resolve(&Doubled(&tree), "prod", &version()).unwrap_err();
    let too_many = findings.iter().filter(|one| one.code == "too-many-files");
    let messages: Vec<&str> = too_many.map(|one| one.message.as_str()).collect();
    assert_eq!(messages, ["more than 10000 files and folders"]);
}

#[test]
fn only_relevant_files_are_read() {
    let tree = tree(&[
        (
            PROD,
            "extends: _eu.yaml\nreleases: [{bundle: web, version: v1.0.0}]",
        ),
        ("environments/_eu.yaml", ""),
        ("environments/staging.yaml", ""),
        ("environments/_eu.yaml", "values: {a: 1}\n"),
    ]);
    let recording = RecordingTree::new(&tree);
    resolve(&recording, "prod", &version()).unwrap();
    let record = recording.record();
    let read: Vec<&str> = record.read.iter().map(String::as_str).collect();
    assert_eq!(
        read,
        [
            "environments/_eu.yaml",
            "environments/prod.yaml",
            "manifests/web/bundle.yaml",
            "manifests/web/v1.0.0/version.yaml",
            "manifests/web/v1.0.0/web.yaml",
            // Read for `upgradesFrom`.
            "manifests/web/v1.10.0/version.yaml",
            "pleach.yaml",
        ]
    );
    assert!(!record.listed.contains("manifests/app"));
    // Other bundles and environments have no effect on this one.
    for folder in ["manifests", "environments"] {
        assert!(!record.listed.contains(folder), "{folder}");
    }
    let named = |folder: &str, name: &str| (folder.to_owned(), name.to_owned());
    assert_eq!(
        Vec::from_iter(record.named),
        [
            named("environments", "prod.yaml"),
            named("manifests", "web")
        ]
    );
}

/// Name of the case, lines of the environment file, more files, and the broken releases. `None` if
/// the whole environment is broken.
type Case<'a> = (
    &'a str,
    &'a str,
    &'a [(&'a str, &'a str)],
    Option<&'a [&'a str]>,
);

#[test]
fn a_broken_release_leaves_the_rest_usable() {
    let header = "releases:\n\
                  - {bundle: app}\n\
                  - {name: typo, bundle: ap, movedFrom: {environment: prod, release: old}}\n\
                  - {name: web, bundle: web, version: v1.0.0}\n";
    let cases: [Case<'_>; 8] = [
        ("a bundle that is not there", "", &[], Some(&["typo"])),
        (
            "a bundle file",
            "",
            &[("manifests/web/bundle.yaml", "patches: 1\n")],
            Some(&["typo", "web"]),
        ),
        (
            "a version that is not there",
            "- {name: gone, bundle: web, version: v9.0.0}\n",
            &[],
            Some(&["gone", "typo"]),
        ),
        (
            "a circle",
            "- {name: a, bundle: app, dependsOn: [b]}\n- {name: b, bundle: app, dependsOn: [a]}\n",
            &[],
            Some(&["a", "b", "typo"]),
        ),
        (
            "a version of no other release",
            "- {name: tail, bundle: web, versionFrom: nothing}\n",
            &[],
            Some(&["tail", "typo"]),
        ),
        (
            "a consent",
            "consent:\n- {action: delete, release: web}\n",
            &[],
            Some(&["typo", "web"]),
        ),
        ("two of one name", "- {bundle: app}\n", &[], None),
        (
            "the repository",
            "",
            &[("pleach.yaml", "id: 'a b'\n")],
            None,
        ),
    ];
    for (case, lines, files, expected) in cases {
        let text = format!("{header}{lines}");
        let mut all = vec![("environments/prod.yaml", text.as_str())];
        all.extend(files);
        let read = resolve_partly(&tree(&all), "prod", &version());
        let broken = read.as_ref().ok().map(|read| {
            let names = read.broken.keys().map(String::as_str);
            names.collect::<Vec<_>>()
        });
        assert_eq!(broken.as_deref(), expected, "{case}");
        let strict = resolve(&tree(&all), "prod", &version());
        assert!(strict.is_err(), "{case}");
        let Ok(read) = read else { continue };
        assert!(
            !read.environment.findings.iter().any(Finding::is_error),
            "{case}"
        );
        let mut releases = read.environment.releases.iter();
        assert!(releases.any(|one| one.name.release == "app"), "{case}");
        let previous = read.broken["typo"].moved_from.as_ref();
        assert_eq!(
            previous.map(ToString::to_string).as_deref(),
            Some("prod.old"),
            "{case}"
        );
    }
}
