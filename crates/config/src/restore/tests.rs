//! Tests for restored parts, unchanged parts and findings.

use super::*;
use pleach_model::tree::MemoryTree;

const MANIFEST: &str = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\n";
const PROD: &str = "environments/prod.yaml";
const BUNDLE: &str = "apiVersion: pleach.dev/v1alpha1\nkind: Bundle\n";
const ENVIRONMENT: &str = "apiVersion: pleach.dev/v1alpha1\nkind: Environment\n";

/// Builds a repository with bundles `web` (v1.0.0, v1.1.0) and `app` (no versions).
fn tree(files: &[(&str, &str)]) -> MemoryTree {
    let mut all: Vec<(String, String)> = [
        ("manifests/web/bundle.yaml", BUNDLE),
        ("manifests/web/v1.0.0/a.yaml", MANIFEST),
        ("manifests/web/v1.1.0/a.yaml", MANIFEST),
        ("manifests/app/bundle.yaml", BUNDLE),
        ("manifests/app/a.yaml", MANIFEST),
    ]
    .into_iter()
    .filter(|(path, _)| !files.contains(&(path, "")))
    .map(|(path, text)| (path.to_owned(), text.to_owned()))
    .collect();
    for (path, text) in files.iter().filter(|(_, text)| !text.is_empty()) {
        let text = if path.starts_with("environments/") {
            format!("{ENVIRONMENT}{text}")
        } else {
            (*text).to_owned()
        };
        all.retain(|(known, _)| known != path);
        all.push(((*path).to_owned(), text));
    }
    MemoryTree::new(all)
}

/// Result of a rollback of one release, with the new text of the environment file.
struct Restored {
    done: Restoration,
    file: Option<String>,
}

fn back(
    now: &[(&str, &str)],
    then: &[(&str, &str)],
    release: &str,
    leaves: Option<&str>,
) -> Restored {
    let wish = Wish {
        release,
        then: &tree(then),
        leaves: leaves.map(str::to_owned),
    };
    let done = restore(&tree(now), "prod", &[wish]).unwrap();
    let file = done.files.get(PROD).map(|content| {
        let text = String::from_utf8(content.as_ref().unwrap().to_vec()).unwrap();
        text.strip_prefix(ENVIRONMENT).unwrap().to_owned()
    });
    Restored { done, file }
}

fn messages(back: &Restored) -> Vec<String> {
    back.done.findings.iter().map(ToString::to_string).collect()
}

#[test]
fn only_version_values_and_patches_are_restored() {
    let then = "\
values: {region: eu}
releases:
  - name: web
    bundle: web
    version: v1.0.0   # the good one
    values:
      level: 1        # quiet
    timeout: 5m
";
    let now = "\
# Edited since.
values: {region: us}
releases:
  - name: other
    bundle: web
    version: v1.1.0
  - name: web
    bundle: web
    version: v1.1.0   # try this
    values: {level: 2, more: true}
    patches: [{target: {kind: ConfigMap}, merge: {data: {a: b}}}]
    timeout: 9m       # longer
";
    let back = back(&[(PROD, now)], &[(PROD, then)], "web", Some("v1.1.0"));
    assert_eq!(
        back.file.as_deref(),
        Some(
            "\
# Edited since.
values: {region: us}
releases:
  - name: other
    bundle: web
    version: v1.1.0
  - name: web
    bundle: web
    version: v1.0.0   # try this
    values:
      level: 1        # quiet
    timeout: 9m       # longer
    rollback: {from: v1.1.0, to: v1.0.0}
"
        )
    );
    assert_eq!(
        back.done.restored,
        [["version v1.1.0 -> v1.0.0", "values", "patches"]]
    );
    assert_eq!(
        messages(&back),
        [
            "environments/prod.yaml:14: not restored: `timeout` of release web",
            "environments/prod.yaml:4: not restored: shared value `region`",
        ]
    );
    assert_eq!(back.done.files.len(), 1);
}

/// A difference in a shared file is overridden in the environment.
#[test]
fn values_of_a_changed_shared_file_are_set_in_the_release() {
    let shared = "environments/_eu.yaml";
    let then = "values: {a: 1}\nreleases:\n  - {name: web, bundle: web, version: v1.0.0}\n";
    let now = "values: {a: 2}\nreleases:\n  - {name: web, bundle: web, version: v1.1.0, patches: [{target: {kind: ConfigMap}, merge: {}}]}\n";
    let own = "extends: _eu.yaml\nprune: {enabled: false}\n";
    let back = back(
        &[(PROD, own), (shared, now)],
        &[(PROD, own), (shared, then)],
        "web",
        Some("v1.1.0"),
    );
    assert_eq!(
        back.file.as_deref(),
        Some(
            "\
extends: _eu.yaml
prune: {enabled: false}
releases:
- name: web
  version: v1.0.0
  patches: null
  rollback: {from: v1.1.0, to: v1.0.0}
"
        )
    );
    assert_eq!(
        messages(&back),
        ["environments/_eu.yaml:3: not restored: shared value `a`"]
    );
}

#[test]
fn a_deleted_version_folder_is_restored() {
    let release = |version: &str| {
        format!("releases: [{{bundle: web, version: {version}, rollback: {{from: a, to: b}}}}]\n")
    };
    let (now, then) = (release("v1.1.0"), release("v1.0.0"));
    let gone = ("manifests/web/v1.0.0/a.yaml", "");
    let result = back(&[(PROD, &now), gone], &[(PROD, &then)], "web", None);
    assert_eq!(
        result.file.as_deref(),
        Some("releases: [{bundle: web, version: v1.0.0}]\n")
    );
    let files: Vec<&String> = result.done.files.keys().collect();
    assert_eq!(files, [PROD, "manifests/web/v1.0.0/a.yaml"]);
    assert_eq!(
        result.done.restored,
        [["version v1.1.0 -> v1.0.0", "manifests/web/v1.0.0"]]
    );
    // An existing folder stays, even if its content differs.
    let edited = (
        "manifests/web/v1.0.0/a.yaml",
        "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: b}\n",
    );
    let result = back(&[(PROD, &now), edited], &[(PROD, &then)], "web", None);
    assert_eq!(result.done.files.len(), 1);
    assert_eq!(
        messages(&result),
        ["manifests/web/v1.0.0: not restored: manifests/web/v1.0.0 was changed since"]
    );
}

#[test]
fn a_bundle_without_versions_is_restored_as_a_folder() {
    let prod = "releases: [{bundle: app}]\n";
    let now = [
        (PROD, prod),
        ("environments/staging.yaml", prod),
        ("manifests/app/a.yaml", "apiVersion: v1\nkind: Secret\n"),
        ("manifests/app/new.yaml", MANIFEST),
    ];
    let back = back(&now, &[(PROD, prod)], "app", None);
    let files: Vec<(&str, bool)> = back
        .done
        .files
        .iter()
        .map(|(path, content)| (path.as_str(), content.is_some()))
        .collect();
    assert_eq!(
        files,
        [
            ("manifests/app/a.yaml", true),
            ("manifests/app/new.yaml", false)
        ]
    );
    assert_eq!(back.done.restored, [["manifests/app"]]);
    assert_eq!(
        messages(&back),
        ["bundle app has no version folders, so the rollback also changes staging/app"]
    );
}

#[test]
fn an_unchanged_release_needs_no_restore() {
    let prod = "releases: [{bundle: web, version: v1.0.0}]\n";
    let back = back(&[(PROD, prod)], &[(PROD, prod)], "web", None);
    assert!(back.done.files.is_empty());
    let (one, other) = (tree(&[(PROD, prod)]), tree(&[(PROD, prod)]));
    assert!(is_same(&one, &other, "prod", "web").unwrap());
    let newer = tree(&[(PROD, "releases: [{bundle: web, version: v1.1.0}]\n")]);
    assert!(!is_same(&one, &newer, "prod", "web").unwrap());
}

/// All errors are reported at once, with their locations.
#[test]
fn unrestorable_parts_are_reported() {
    let then = tree(&[(PROD, "releases: [{bundle: web, version: v1.0.0}]\n")]);
    let now = tree(&[(
        PROD,
        "releases: [{bundle: app}, {name: web, bundle: app}]\n",
    )]);
    let wish = |release| Wish {
        release,
        then: &then,
        leaves: None,
    };
    let errors = restore(&now, "prod", &[wish("web"), wish("app"), wish("gone")]).unwrap_err();
    let errors: Vec<String> = errors.iter().map(ToString::to_string).collect();
    assert_eq!(
        errors,
        [
            "environments/prod.yaml:1: release web used another bundle at that revision",
            "environments/prod.yaml:1: environment prod had no release app at that revision",
            "environments/prod.yaml:1: environment prod has no release gone",
        ]
    );
    let anchored = tree(&[(
        PROD,
        "releases: [{bundle: web, version: &v v1.1.0}, {name: b, bundle: web, version: *v}]\n",
    )]);
    let errors = restore(&anchored, "prod", &[wish("web")]).unwrap_err();
    assert_eq!(errors[0].code, "not-editable");
}

#[test]
fn folders_are_entered_down_to_a_hundred_levels() {
    let files = |levels: usize| {
        let path = format!("manifests/{}x.yaml", "a/".repeat(levels - 1));
        folders::files(&MemoryTree::new([(path, MANIFEST)]), "manifests")
    };
    assert_eq!(files(100).unwrap().len(), 1);
    let message = files(101).unwrap_err().to_string();
    assert!(message.ends_with("/a: folders are nested more than 100 levels deep"));
}

#[test]
fn folders_are_read_up_to_the_bundle_limit() {
    let read = |count: usize| {
        // The folder in between counts as one entry.
        let path = |number: usize| format!("manifests/app/more/{number}.yaml");
        let files = (1..count).map(|number| (path(number), MANIFEST));
        folders::files(&MemoryTree::new(files), "manifests/app")
    };
    assert_eq!(read(10_000).unwrap().len(), 9_999);
    let finding = read(10_001).unwrap_err();
    assert_eq!(finding.code, "too-many-files");
    assert_eq!(
        finding.to_string(),
        "manifests/app: more than 10000 files and folders"
    );
    let hint = finding.hint.unwrap();
    assert!(
        hint.contains("git checkout REVISION -- manifests/app"),
        "{hint}"
    );
}
