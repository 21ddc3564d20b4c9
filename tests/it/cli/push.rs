use pleach_testkit::registry::Registry;

use super::Folder;
use super::diff::{commit, git};

#[test]
fn a_commit_is_pushed_without_the_changes_of_the_working_tree() {
    let registry = Registry::start(0).unwrap();
    let folder = Folder::with(&[
        (
            "pleach.yaml",
            "apiVersion: pleach.dev/v1alpha1\nkind: Repository\nid: fleet\n",
        ),
        ("manifests/web/v1/a.yaml", "a: b\n"),
        (".github/workflow.yaml", "c: d\n"),
    ]);
    std::os::unix::fs::symlink("pleach.yaml", folder.path().join("link")).unwrap();
    commit(&folder);
    git(
        &folder,
        &[
            "remote",
            "add",
            "origin",
            "https://ann:pw@git.example.org/fleet.git",
        ],
    );
    let address = format!("oci://{}/team/fleet", registry.host());
    let push = |arguments: &[&str]| folder.run(&[&["push", &*address], arguments].concat());
    let first = push(&["--tag", "production"]);
    assert_eq!(first.code, 0, "{}", first.stderr);
    assert_eq!(
        first.stderr,
        "links and submodules are not part of the artifact: 1, such as link\n"
    );
    let (digest, rest) = first.stdout.split_once("  ").unwrap();
    assert!(digest.starts_with("sha256:"), "{digest}");
    assert!(
        rest.starts_with("main ") && rest.ends_with("  2 files, 1 KiB\n"),
        "{rest}"
    );
    folder.write("manifests/web/v1/a.yaml", "changed\n");
    let second = push(&["--tag", "staging"]);
    assert_eq!(second.stdout, first.stdout);
    let manifest = registry.manifest("team/fleet:staging").unwrap();
    let annotations = &manifest["annotations"];
    assert_eq!(
        annotations["org.opencontainers.image.source"],
        "https://git.example.org/fleet.git"
    );
    let revision = annotations["org.opencontainers.image.revision"].as_str();
    let commit = rest["main ".len()..].split(' ').next();
    assert_eq!(revision.map(|revision| &revision[..7]), commit);
    assert_eq!(
        annotations["org.opencontainers.image.created"],
        "2026-01-01T00:00:00Z"
    );
}

#[test]
fn a_push_that_cannot_succeed_names_the_cause() {
    let folder = Folder::with(&[("pleach.yaml", "a: b\n")]);
    commit(&folder);
    folder.write(
        "home/.docker/config.json",
        r#"{"credHelpers": {"r.example.org": "x"}}"#,
    );
    for (arguments, code, expected) in [
        (
            ["https://r.example.org/fleet", "--tag", "a"],
            2,
            "expected an address such as oci://registry.example.org/fleet",
        ),
        (
            ["oci://r.example.org/fleet", "--tag", "a/b"],
            2,
            "the tag of the address is invalid",
        ),
        (
            ["oci://r.example.org/fleet", "--tag", "a"],
            1,
            "from the program `docker-credential-x`, which pleach does not run",
        ),
    ] {
        let run = folder.run(&[&["push"], &arguments[..]].concat());
        assert_eq!(run.code, code, "{}", run.stderr);
        assert!(run.stderr.contains(expected), "{}", run.stderr);
    }
    let registry = Registry::start(0).unwrap();
    registry.answer_with(|_| {
        let answer = axum::response::Response::builder().status(403);
        answer.body(axum::body::Body::empty()).ok()
    });
    let address = format!("oci://{}/fleet", registry.host());
    let run = folder.run(&["push", &address, "--tag", "a"]);
    assert_eq!(run.code, 4, "{}", run.stderr);
    assert!(
        run.stderr
            .contains("unauthorized: the registry answered 403"),
        "{}",
        run.stderr
    );
}
