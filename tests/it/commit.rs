//! Commits to the checked-out branch contain exactly the requested changes.

use bytes::Bytes;
use pleach_config::FileChanges;
use pleach_git::{Branch, GitError, Source};
use pleach_testkit::repository::TestRepo;

/// Returns a git repository with a pleach repository in the folder `fleet`.
fn repo() -> TestRepo {
    let repo = TestRepo::new([
        ("fleet/a.yaml", "a: 1\n"),
        ("fleet/gone.yaml", "x\n"),
        ("fleet/run.sh", "#!/bin/sh\n"),
        ("other.txt", "one\n"),
        (".gitignore", "*.log\n"),
    ])
    .unwrap();
    repo.git(&["config", "user.name", "ada"]).unwrap();
    repo.git(&["config", "user.email", "ada@example.org"])
        .unwrap();
    repo.git(&["add", "--all"]).unwrap();
    repo.git(&["update-index", "--chmod=+x", "fleet/run.sh"])
        .unwrap();
    repo.git(&["commit", "--quiet", "--message", "start"])
        .unwrap();
    repo.git(&["checkout", "--quiet", "--", "."]).unwrap();
    repo
}

fn branch(repo: &TestRepo) -> Result<Branch, GitError> {
    Source::open(&repo.path().join("fleet"))?.branch()
}

fn changes(files: &[(&str, Option<&'static str>)]) -> FileChanges {
    files
        .iter()
        .map(|(path, text)| ((*path).to_owned(), text.map(Bytes::from)))
        .collect()
}

#[tokio::test]
async fn a_commit_holds_its_files_and_nothing_else() {
    let repo = repo();
    repo.write("other.txt", "staged\n").unwrap();
    repo.git(&["add", "other.txt"]).unwrap();
    repo.write("other.txt", "edited after that\n").unwrap();
    repo.write("fleet/notes", "untracked\n").unwrap();
    let before = repo.git(&["status", "--porcelain"]).unwrap();

    let changes = changes(&[
        ("a.yaml", Some("a: 2\n")),
        ("run.sh", Some("#!/bin/sh\ntrue\n")),
        ("new/deep/b.yaml", Some("b: 1\n")),
        ("gone.yaml", None),
    ]);
    let branch = branch(&repo).unwrap();
    assert!(branch.edited(&changes).await.unwrap().is_empty());
    let commit = branch
        .commit(&changes, "Go back\n\n# not a comment\n")
        .await
        .unwrap();
    assert_eq!(repo.git(&["rev-parse", "main"]).unwrap(), commit);
    assert_eq!(
        repo.git(&["show", "--format=%an: %B", "--name-status", "HEAD"])
            .unwrap(),
        "ada: Go back\n\n# not a comment\n\n\nM\tfleet/a.yaml\nD\tfleet/gone.yaml\nA\tfleet/new/deep/b.yaml\nM\tfleet/run.sh"
    );
    // The file is still executable, and everything else is unchanged.
    let listed = repo.git(&["ls-tree", "HEAD", "fleet/run.sh"]).unwrap();
    assert!(listed.starts_with("100755 "), "{listed}");
    assert_eq!(repo.git(&["status", "--porcelain"]).unwrap(), before);
    let files = ["cat-file", "-p", ":fleet/new/deep/b.yaml"];
    assert_eq!(repo.git(&files).unwrap(), "b: 1");
    assert!(!repo.path().join("fleet/gone.yaml").exists());
}

#[tokio::test]
async fn what_was_a_link_or_a_submodule_becomes_a_file() {
    let repo = repo();
    let blob = repo.git(&["rev-parse", "HEAD:fleet/a.yaml"]).unwrap();
    let commit = repo.git(&["rev-parse", "HEAD"]).unwrap();
    for entry in [
        format!("120000,{blob},fleet/link.yaml"),
        format!("160000,{commit},fleet/module.yaml"),
    ] {
        repo.git(&["update-index", "--add", "--cacheinfo", &entry])
            .unwrap();
    }
    repo.git(&["commit", "--quiet", "--message", "no files"])
        .unwrap();
    let paths = ["link.yaml", "module.yaml"];
    let changes = changes(&paths.map(|path| (path, Some("a: 2\n"))));
    branch(&repo).unwrap().commit(&changes, "x").await.unwrap();
    for path in paths.map(|path| format!("fleet/{path}")) {
        let listed = repo.git(&["ls-tree", "HEAD", &path]).unwrap();
        assert!(listed.starts_with("100644 blob "), "{listed}");
    }
}

#[tokio::test]
async fn what_somebody_is_editing_is_named() {
    let repo = repo();
    repo.write("fleet/a.yaml", "a: 3\n").unwrap();
    repo.write("fleet/staged.yaml", "x\n").unwrap();
    repo.git(&["add", "fleet/staged.yaml"]).unwrap();
    repo.write("fleet/new.yaml", "x\n").unwrap();
    repo.write("fleet/x.log", "x\n").unwrap();
    repo.write("other.txt", "x\n").unwrap();
    let files = ["a.yaml", "staged.yaml", "new.yaml", "x.log", "run.sh"];
    let changes = changes(&files.map(|path| (path, Some("y\n"))));
    let mut edited = branch(&repo).unwrap().edited(&changes).await.unwrap();
    edited.sort();
    assert_eq!(
        edited,
        [
            "fleet/a.yaml",
            "fleet/new.yaml",
            "fleet/staged.yaml",
            "fleet/x.log"
        ]
    );
}

#[tokio::test]
async fn a_branch_that_moves_meanwhile_is_left_alone() {
    let repo = repo();
    let branch = branch(&repo).unwrap();
    let theirs = repo.commit("theirs").unwrap();
    let error = branch
        .commit(&changes(&[("a.yaml", None)]), "x")
        .await
        .unwrap_err();
    assert!(matches!(error, GitError::Moved { .. }), "{error}");
    assert_eq!(repo.git(&["rev-parse", "HEAD"]).unwrap(), theirs);
}

#[test]
fn without_a_branch_nothing_is_committed() {
    let said = |repo: &TestRepo| branch(repo).err().unwrap().to_string();
    let repo = repo();
    repo.git(&["checkout", "--quiet", "--detach"]).unwrap();
    assert!(said(&repo).ends_with("has no branch checked out"));
    repo.git(&["checkout", "--quiet", "main"]).unwrap();
    repo.git(&["checkout", "--quiet", "-b", "side"]).unwrap();
    repo.edit("fleet/a.yaml", "1", "2").unwrap();
    repo.commit("side").unwrap();
    repo.git(&["checkout", "--quiet", "main"]).unwrap();
    repo.edit("fleet/a.yaml", "1", "3").unwrap();
    repo.commit("main").unwrap();
    assert!(repo.git(&["merge", "side"]).is_err());
    assert!(said(&repo).ends_with("is in the middle of a merge, rebase or the like"));
    let plain = tempfile::tempdir().unwrap();
    let source = Source::open(plain.path()).unwrap();
    let error = source.branch().err().unwrap().to_string();
    assert!(error.ends_with("is not in a git repository"));
    let unborn = TestRepo::new([("fleet/a.yaml", "x")]).unwrap();
    assert!(said(&unborn).ends_with("has no commit yet"));
}
