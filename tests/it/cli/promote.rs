//! Versions of one environment, taken over by another: a commit.

use super::diff::{commit, git};
use super::{Folder, Run};

const STAGING: &str = "\
apiVersion: pleach.dev/v1alpha1
kind: Environment
releases:
  - {name: web, bundle: web, version: v1.1.0, namespace: web}
";

const PRODUCTION: &str = "\
apiVersion: pleach.dev/v1alpha1
kind: Environment
releases:
  # What customers see.
  - name: web
    bundle: web
    version: v1.0.0   # since May
    namespace: web
";

fn repository() -> Folder {
    let manifest = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\n";
    let folder = Folder::with(&[
        (
            "pleach.yaml",
            "apiVersion: pleach.dev/v1alpha1\nkind: Repository\nid: fleet\n",
        ),
        ("environments/staging.yaml", STAGING),
        ("environments/production.yaml", PRODUCTION),
        (
            "manifests/web/bundle.yaml",
            "apiVersion: pleach.dev/v1alpha1\nkind: Bundle\n",
        ),
        ("manifests/web/v1.0.0/a.yaml", manifest),
        (
            "manifests/web/v1.1.0/a.yaml",
            &manifest.replace("name: a", "name: b"),
        ),
    ]);
    commit(&folder);
    folder
}

fn promote(folder: &Folder, arguments: &[&str]) -> Run {
    let mut command = folder.command(&[&["promote", "staging", "production"], arguments].concat());
    for role in ["AUTHOR", "COMMITTER"] {
        command
            .env(format!("GIT_{role}_NAME"), "tester")
            .env(format!("GIT_{role}_EMAIL"), "tester@example.org");
    }
    folder.finish(command.env("GIT_CONFIG_NOSYSTEM", "1"))
}

#[test]
fn the_pin_is_committed_and_nothing_else() {
    let folder = repository();
    // What somebody is editing stays as it is.
    folder.write("notes.md", "mine\n");
    let run = promote(&folder, &["--dry-run"]);
    assert_eq!(run.code, 0, "{}", run.shown());
    assert!(
        run.stdout
            .contains("-    version: v1.0.0   # since May\n+    version: v1.1.0   # since May"),
        "{}",
        run.shown()
    );
    assert_eq!(folder.read("environments/production.yaml"), PRODUCTION);
    let run = promote(&folder, &["--reason", "it ran for a week"]);
    assert_eq!(run.code, 0, "{}", run.shown());
    assert!(
        run.stdout
            .contains("Promote production/web v1.0.0 -> v1.1.0"),
        "{}",
        run.shown()
    );
    assert_eq!(
        folder.read("environments/production.yaml"),
        PRODUCTION.replace("v1.0.0", "v1.1.0")
    );
    // The preview shows what it does.
    let run = folder.run(&["preview", "--base", "HEAD~1"]);
    assert!(
        run.stdout.contains("release production.web"),
        "{}",
        run.shown()
    );
    let run = promote(&folder, &[]);
    assert_eq!(run.code, 0, "{}", run.shown());
    assert!(run.stderr.contains("nothing to commit"), "{}", run.shown());
}

#[test]
fn edits_in_the_file_are_not_committed_along() {
    let folder = repository();
    folder.write(
        "environments/production.yaml",
        &format!("{PRODUCTION}# mine\n"),
    );
    let run = promote(&folder, &[]);
    assert_eq!(run.code, 5, "{}", run.shown());
    assert!(
        run.stderr
            .contains("not committed in environments/production.yaml"),
        "{}",
        run.shown()
    );
}

#[test]
fn a_version_comes_from_another_branch_with_its_folder() {
    let folder = repository();
    git(&folder, &["checkout", "--quiet", "-b", "env/staging"]);
    folder.write(
        "environments/staging.yaml",
        &STAGING.replace("v1.1.0", "v1.2.0"),
    );
    folder.write(
        "manifests/web/v1.2.0/a.yaml",
        "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: b}\n",
    );
    commit(&folder);
    git(&folder, &["checkout", "--quiet", "main"]);
    let run = promote(&folder, &["--from-revision", "env/staging"]);
    assert_eq!(run.code, 0, "{}", run.shown());
    assert!(
        folder
            .read("manifests/web/v1.2.0/a.yaml")
            .contains("name: b")
    );
    assert!(
        folder
            .read("environments/production.yaml")
            .contains("v1.2.0")
    );
}

#[test]
fn bad_input_is_told_and_nothing_is_written() {
    let folder = repository();
    folder.write(
        "environments/production.yaml",
        &PRODUCTION.replace("v1.0.0", "v1.5.0"),
    );
    folder.write(
        "manifests/web/v1.5.0/a.yaml",
        "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\n",
    );
    commit(&folder);
    let run = promote(&folder, &["--release", "web"]);
    assert_eq!(run.code, 7, "{}", run.shown());
    assert!(
        run.stderr.contains("v1.5.0 is newer than v1.1.0"),
        "{}",
        run.shown()
    );
    let run = folder.run(&["promote", "staging", "staging"]);
    assert_eq!(run.code, 2, "{}", run.shown());
    let run = folder.run(&["promote", "staging/web", "production"]);
    assert_eq!(run.code, 2, "{}", run.shown());
    let run = folder.run(&["promote", "nowhere", "production"]);
    assert_eq!(run.code, 3, "{}", run.shown());
}
