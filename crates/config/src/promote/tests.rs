use super::*;
use pleach_model::tree::MemoryTree;

const ENVIRONMENT: &str = "apiVersion: pleach.dev/v1alpha1\nkind: Environment\n";
const MANIFEST: &str = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\n";

fn tree(files: &[(&str, &str)]) -> MemoryTree {
    MemoryTree::new(files.iter().map(|(path, text)| {
        let head = if path.starts_with("environments/") {
            ENVIRONMENT
        } else {
            ""
        };
        ((*path).to_owned(), format!("{head}{text}"))
    }))
}

/// Promotes within one tree.
fn promoted(
    files: &[(&str, &str)],
    to: &[&str],
    release: Option<&str>,
) -> Result<Promotion, Vec<String>> {
    between(files, files, to, release)
}

fn between(
    now: &[(&str, &str)],
    then: &[(&str, &str)],
    to: &[&str],
    release: Option<&str>,
) -> Result<Promotion, Vec<String>> {
    let to: Vec<String> = to.iter().map(|&name| name.to_owned()).collect();
    let then = tree(then);
    let from = Source {
        tree: &then,
        environment: "staging",
    };
    promote(&tree(now), from, &to, release)
        .map_err(|errors| errors.iter().map(ToString::to_string).collect())
}

fn file(done: &Promotion, path: &str) -> String {
    let content = done.files[path].as_ref().unwrap();
    String::from_utf8(content.to_vec())
        .unwrap()
        .replace(ENVIRONMENT, "")
}

const STAGING: (&str, &str) = (
    "environments/staging.yaml",
    "releases:\n- {bundle: web, version: v1.1.0}\n- {name: db, bundle: db, version: v3.0.0}\n- {bundle: app}\n",
);

#[test]
fn versions_are_copied_and_comments_stay() {
    let production = "releases:\n- bundle: web\n  version: v1.0.0   # since May\n  values: {a: b}\n# the database\n- {name: db, bundle: db, version: v3.0.0}\n";
    let done = promoted(
        &[STAGING, ("environments/production.yaml", production)],
        &["production"],
        None,
    )
    .unwrap();
    assert_eq!(done.promoted, ["production/web v1.0.0 -> v1.1.0"]);
    assert_eq!(
        file(&done, "environments/production.yaml"),
        production.replace("v1.0.0 ", "v1.1.0 ")
    );
    assert_eq!(done.files.len(), 1);
    let messages: Vec<String> = done.findings.iter().map(ToString::to_string).collect();
    assert_eq!(messages.len(), 1, "{messages:?}");
    assert!(
        messages[0]
            .contains("production/app is not promoted: the target environment does not have it"),
        "{messages:?}"
    );
}

#[test]
fn several_environments_and_releases_are_promoted() {
    let old =
        "releases:\n- {bundle: web, version: v1.0.0}\n- {name: db, bundle: db, version: v2.0.0}\n";
    let files = [
        STAGING,
        ("environments/eu.yaml", old),
        ("environments/us.yaml", old),
    ];
    let done = promoted(&files, &["eu", "us"], None).unwrap();
    assert_eq!(done.promoted.len(), 4);
    for path in ["environments/eu.yaml", "environments/us.yaml"] {
        assert_eq!(
            file(&done, path),
            "releases:\n- {bundle: web, version: v1.1.0}\n- {name: db, bundle: db, version: v3.0.0}\n"
        );
    }
    let done = promoted(&files, &["eu"], Some("db")).unwrap();
    assert_eq!(done.promoted, ["eu/db v2.0.0 -> v3.0.0"]);
    assert!(done.findings.is_empty());
}

#[test]
fn the_folder_of_a_version_is_copied_from_another_revision() {
    let old = (
        "environments/production.yaml",
        "releases:\n- {bundle: web, version: v1.0.0}\n",
    );
    let then = [
        STAGING,
        ("manifests/web/v1.1.0/a.yaml", MANIFEST),
        ("manifests/web/v1.1.0/deep/b.yaml", MANIFEST),
    ];
    let now = [old, ("manifests/web/v1.0.0/a.yaml", MANIFEST)];
    let done = between(&now, &then, &["production"], None).unwrap();
    let paths: Vec<&str> = done.files.keys().map(String::as_str).collect();
    assert_eq!(
        paths,
        [
            "environments/production.yaml",
            "manifests/web/v1.1.0/a.yaml",
            "manifests/web/v1.1.0/deep/b.yaml"
        ]
    );
    // An existing folder is not overwritten.
    let now = [old, ("manifests/web/v1.1.0/a.yaml", "other: x\n")];
    let done = between(&now, &then, &["production"], None).unwrap();
    assert_eq!(done.files.len(), 1);
    assert!(
        done.findings
            .iter()
            .any(|one| one.code == "version-differs")
    );
}

#[test]
fn a_release_that_is_only_in_an_extended_file_gets_an_entry_of_its_own() {
    let base = (
        "environments/_base.yaml",
        "releases:\n- {bundle: web, version: v1.0.0}\n",
    );
    let done = promoted(
        &[
            STAGING,
            base,
            ("environments/production.yaml", "extends: _base.yaml\n"),
        ],
        &["production"],
        Some("web"),
    )
    .unwrap();
    let text = file(&done, "environments/production.yaml");
    assert!(
        text.contains("name: web") && text.contains("version: v1.1.0"),
        "{text}"
    );
    assert_eq!(done.files.len(), 1);
}

#[test]
fn unpromotable_releases_are_named() {
    let ahead = (
        "environments/production.yaml",
        "releases:\n- {bundle: web, version: v2.0.0}\n- {name: db, bundle: other, version: v1.0.0}\n- {bundle: app}\n",
    );
    let files = [STAGING, ahead];
    let done = promoted(&files, &["production"], None).unwrap();
    assert!(done.promoted.is_empty() && done.files.is_empty());
    let messages = done
        .findings
        .iter()
        .map(ToString::to_string)
        .collect::<Vec<_>>()
        .join("\n");
    for words in [
        "v2.0.0 is newer than v1.1.0",
        "it uses another bundle",
        "has no versions",
    ] {
        assert!(messages.contains(words), "{messages}");
    }
    let error = |to: &str, release| promoted(&files, &[to], release).unwrap_err().join("\n");
    assert!(error("production", Some("web")).contains("rollback"));
    assert!(error("production", Some("none")).contains("environment staging has no release none"));
    assert!(error("nowhere", None).contains("nowhere"));
}
