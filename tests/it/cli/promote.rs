//! Promotion of versions to another environment: a commit.

use pleach_formats::file::ForgeKind;
use pleach_testkit::forge::{FakeForge, PROJECT, TOKEN};

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
    promote_with(folder, arguments, &[])
}

fn promote_with(folder: &Folder, arguments: &[&str], variables: &[(&str, &str)]) -> Run {
    let mut command = folder.command(&[&["promote", "staging", "production"], arguments].concat());
    for role in ["AUTHOR", "COMMITTER"] {
        command
            .env(format!("GIT_{role}_NAME"), "tester")
            .env(format!("GIT_{role}_EMAIL"), "tester@example.org");
    }
    command.envs(variables.iter().copied());
    folder.finish(command.env("GIT_CONFIG_NOSYSTEM", "1"))
}

#[test]
fn the_pin_is_committed_and_nothing_else() {
    let folder = repository();
    // Uncommitted changes of the user remain.
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
    // The preview shows the effect.
    let run = folder.run(&["preview", "--base", "HEAD~1"]);
    assert!(
        run.stdout.contains("release production.web"),
        "{}",
        run.shown()
    );
    let run = promote(&folder, &[]);
    assert_eq!(run.code, 0, "{}", run.shown());
    assert!(
        run.stderr
            .contains("nothing to commit: the versions are already the same"),
        "{}",
        run.shown()
    );
}

#[test]
fn what_is_not_promoted_is_not_said_to_be_the_same() {
    let folder = repository();
    let cases = [
        (
            STAGING.replace("v1.1.0", "v0.9.0"),
            "v1.0.0 is newer than v0.9.0",
        ),
        (
            STAGING.replace("name: web,", "name: shop,"),
            "production/shop is not promoted: the target environment does not have it",
        ),
        (
            STAGING.replace("bundle: web", "bundle: other"),
            "it uses another bundle in the target environment",
        ),
    ];
    for (staging, why) in cases {
        folder.write("environments/staging.yaml", &staging);
        commit(&folder);
        let run = promote(&folder, &[]);
        assert_eq!(run.code, 0, "{}", run.shown());
        for words in [why, "nothing to commit: no version is copied"] {
            assert!(run.stderr.contains(words), "{words}: {}", run.shown());
        }
        assert!(!run.stderr.contains("already the same"), "{}", run.shown());
    }
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
            .contains("uncommitted changes in environments/production.yaml"),
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

/// Adds a bare repository as the upstream of the branch.
fn publish(folder: &Folder, bare: &str) {
    git(folder, &["clone", "--quiet", "--bare", ".", bare]);
    git(folder, &["remote", "add", "origin", bare]);
    git(folder, &["fetch", "--quiet", "origin"]);
    git(
        folder,
        &["branch", "--quiet", "--set-upstream-to=origin/main"],
    );
}

#[test]
fn with_a_forge_it_is_a_pull_request() {
    let forge = FakeForge::start(ForgeKind::Gitea).unwrap();
    let folder = repository();
    let remote = tempfile::tempdir().unwrap();
    let bare = remote.path().join("example/fleet.git");
    let bare = bare.to_str().unwrap();
    publish(&folder, bare);
    // Uncommitted changes of the user remain.
    folder.write("notes.md", "mine\n");
    let push = [
        "--push",
        "--forge",
        "gitea",
        "--reason",
        "it ran for a week",
    ];
    let run = promote(&folder, &push);
    assert_eq!(run.code, 2, "{}", run.shown());
    let api = forge.api();
    let variables = [
        ("PLEACH_FORGE_URL", api.as_str()),
        ("PLEACH_FORGE_PROJECT", PROJECT),
    ];
    let run = promote_with(&folder, &push, &variables);
    assert_eq!(run.code, 2, "{}", run.shown());
    assert!(run.stderr.contains("PLEACH_FORGE_TOKEN"), "{}", run.shown());
    let variables = [variables[0], variables[1], ("PLEACH_FORGE_TOKEN", TOKEN)];
    let run = promote_with(&folder, &push, &variables);
    assert_eq!(run.code, 0, "{}", run.shown());
    assert!(
        run.stderr
            .contains("opened pull request 77: https://git.example.org/"),
        "{}",
        run.shown()
    );
    let opened = &forge.opened()[0];
    assert_eq!(opened["title"], "Promote production/web v1.0.0 -> v1.1.0");
    assert_eq!(opened["body"], "it ran for a week");
    assert_eq!(opened["base"], "main");
    let branch = opened["head"].as_str().unwrap();
    assert!(
        branch.starts_with("promote/staging-to-production-"),
        "{branch}"
    );
    // The previous branch is checked out again, unchanged.
    assert_eq!(folder.read("environments/production.yaml"), PRODUCTION);
    assert_eq!(folder.read("notes.md"), "mine\n");
    let line = |arguments: &[&str]| git_line(&folder, arguments);
    assert_eq!(line(&["branch", "--show-current"]), "main");
    assert_eq!(
        line(&["rev-parse", "main"]),
        line(&["rev-parse", "origin/main"])
    );
    let there = line(&[
        "--git-dir",
        bare,
        "show",
        &format!("{branch}:environments/production.yaml"),
    ]);
    assert!(there.contains("v1.1.0"), "{there}");
    // A repetition uses the same branch.
    let run = promote_with(&folder, &push, &variables);
    assert_eq!(run.code, 1, "{}", run.shown());
    assert!(run.stderr.contains("already exists"), "{}", run.shown());
    assert_eq!(line(&["branch", "--show-current"]), "main");
    assert_eq!(forge.opened().len(), 1);
}

#[test]
fn why_there_is_no_pull_request_is_told_first() {
    let forge = FakeForge::start(ForgeKind::Gitea).unwrap();
    let folder = repository();
    let elsewhere = tempfile::tempdir().unwrap();
    let path = |name: &str| elsewhere.path().join(name).to_str().unwrap().to_owned();
    publish(&folder, &path("example/fleet.git"));
    // Signing fails, and the branch cannot be checked out again.
    git(&folder, &["config", "commit.gpgSign", "true"]);
    git(&folder, &["config", "gpg.program", "/bin/false"]);
    let other = path("other");
    let worktree = [
        "worktree",
        "add",
        "--quiet",
        "--force",
        other.as_str(),
        "main",
    ];
    git(&folder, &worktree);
    let api = forge.api();
    let variables = [
        ("PLEACH_FORGE_URL", api.as_str()),
        ("PLEACH_FORGE_PROJECT", PROJECT),
        ("PLEACH_FORGE_TOKEN", TOKEN),
    ];
    let run = promote_with(&folder, &["--push", "--forge", "gitea"], &variables);
    assert_ne!(run.code, 0, "{}", run.shown());
    for said in [
        "failed to sign the data",
        "the completed work is on branch promote/",
        "that branch is still checked out",
    ] {
        assert!(run.stderr.contains(said), "{}", run.shown());
    }
}

/// Returns the output of git.
fn git_line(folder: &Folder, arguments: &[&str]) -> String {
    let output = std::process::Command::new("git")
        .args(arguments)
        .current_dir(folder.path())
        .output()
        .unwrap();
    assert!(output.status.success(), "{arguments:?}");
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}
