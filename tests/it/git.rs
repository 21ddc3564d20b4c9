//! Revisions and trees of git repositories on disk.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;

use pleach_git::Source;
use pleach_model::tree::{FileTree as _, TreeKind};
use rstest::rstest;
use tempfile::TempDir;

/// Git repository in a temporary folder.
struct Repo(TempDir);

impl Repo {
    fn new() -> Self {
        let repo = Self(tempfile::tempdir().unwrap());
        repo.git(&["init", "--quiet", "--initial-branch=main"]);
        repo
    }

    fn with_commit(files: &[(&str, &str)]) -> (Self, String) {
        let repo = Self::new();
        let commit = repo.commit(files);
        (repo, commit)
    }

    fn path(&self) -> &Path {
        self.0.path()
    }

    fn git(&self, arguments: &[&str]) -> String {
        let output = Command::new("git")
            .arg("-C")
            .arg(self.path())
            .args(["-c", "user.name=t", "-c", "user.email=t@example.org"])
            .args(["-c", "protocol.file.allow=always"])
            .args(arguments)
            .env("GIT_CONFIG_GLOBAL", "/dev/null")
            .env("GIT_CONFIG_NOSYSTEM", "1")
            .output()
            .unwrap();
        assert!(output.status.success(), "git {arguments:?}: {output:?}");
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    }

    fn write(&self, path: &str, content: &str) {
        let path = self.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
    }

    fn commit(&self, files: &[(&str, &str)]) -> String {
        for (path, content) in files {
            self.write(path, content);
        }
        self.git(&["add", "--all"]);
        self.git(&["commit", "--quiet", "--allow-empty", "--message=x"]);
        self.git(&["rev-parse", "HEAD"])
    }

    fn revision(&self, folder: &str) -> String {
        let source = Source::open(&self.path().join(folder)).unwrap();
        source.revision().unwrap().to_string()
    }

    fn refused(&self, revision: &str) -> (String, Option<String>) {
        let error = Source::open(self.path())
            .unwrap()
            .tree(revision)
            .err()
            .unwrap();
        let text = error.to_string();
        let here = self.path().canonicalize().unwrap();
        (
            text.replace(&here.display().to_string(), "REPO"),
            error.hint(),
        )
    }
}

fn dirty(commit: &str) -> String {
    format!("{}-dirty", &commit[..7])
}

#[test]
fn a_plain_folder_has_no_revision() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("pleach.yaml"), "x").unwrap();
    let source = Source::open(folder.path()).unwrap();
    assert_eq!(source.revision().unwrap().to_string(), "none");
    assert_eq!(
        &source.working_tree().read("pleach.yaml").unwrap()[..],
        b"x"
    );
    let error = source.tree("main").err().unwrap().to_string();
    assert!(error.ends_with("is not in a git repository, so it has no revision main"));
}

#[test]
fn an_unborn_branch_has_no_revision() {
    let repo = Repo::new();
    repo.write("pleach.yaml", "x");
    assert_eq!(repo.revision(""), "none");
}

#[test]
fn a_clean_tree_is_its_commit() {
    let (repo, commit) = Repo::with_commit(&[("pleach.yaml", "x"), ("manifests/a/b.yaml", "y")]);
    assert_eq!(repo.revision(""), commit);
    repo.git(&["checkout", "--quiet", "--detach"]);
    assert_eq!(repo.revision(""), commit);
}

#[rstest]
#[case::changed("manifests/a/b.yaml", true)]
#[case::untracked("manifests/new/c.yaml", true)]
#[case::ignored("manifests/a/skipped.yaml", true)]
#[case::environment("environments/new.yaml", true)]
#[case::elsewhere("docs/new.md", false)]
#[case::hidden("manifests/a/.b.yaml.swp", false)]
#[case::same_beginning("manifests-old/x.yaml", false)]
fn a_tree_is_dirty_when_something_that_is_read_differs(
    #[case] path: &str,
    #[case] expected: bool,
    #[values("", "deploy/fleet")] folder: &str,
) {
    let inside = |path: &str| match folder {
        "" => path.to_owned(),
        _ => format!("{folder}/{path}"),
    };
    let (repo, commit) = Repo::with_commit(&[
        (&inside("pleach.yaml"), "x"),
        (&inside("environments/a.yaml"), "x"),
        (&inside("manifests/a/b.yaml"), "y"),
        (".gitignore", "skipped.yaml\n"),
    ]);
    assert_eq!(repo.revision(folder), commit);
    repo.write(&inside(path), "changed");
    let revision = if expected { dirty(&commit) } else { commit };
    assert_eq!(repo.revision(folder), revision);
}

#[test]
fn staged_and_deleted_files_are_changes() {
    let (repo, commit) = Repo::with_commit(&[("manifests/a.yaml", "x"), ("manifests/b.yaml", "x")]);
    repo.write("manifests/a.yaml", "y");
    repo.git(&["add", "--all"]);
    assert_eq!(repo.revision(""), dirty(&commit));
    repo.git(&["reset", "--quiet", "--hard"]);
    assert_eq!(repo.revision(""), commit);
    fs::remove_file(repo.path().join("manifests/b.yaml")).unwrap();
    assert_eq!(repo.revision(""), dirty(&commit));
}

#[test]
fn folders_without_files_are_no_change() {
    let (repo, commit) = Repo::with_commit(&[("manifests/a.yaml", "x"), (".gitignore", "out/\n")]);
    for folder in ["templates", "manifests/b/c", "manifests/out/d"] {
        fs::create_dir_all(repo.path().join(folder)).unwrap();
    }
    assert_eq!(repo.revision(""), commit);
    // Content of an ignored folder is still rendered.
    repo.write("manifests/out/d/e.yaml", "x");
    assert_eq!(repo.revision(""), dirty(&commit));
}

#[test]
fn changes_outside_of_the_folder_do_not_count() {
    let (repo, commit) =
        Repo::with_commit(&[("fleet/manifests/a.yaml", "x"), ("manifests/b.yaml", "x")]);
    repo.write("manifests/b.yaml", "changed");
    assert_eq!(repo.revision("fleet"), commit);
    assert_eq!(repo.revision(""), dirty(&commit));
}

#[test]
fn a_linked_worktree_is_a_repository_too() {
    let (repo, commit) = Repo::with_commit(&[("pleach.yaml", "x")]);
    repo.git(&["worktree", "add", "--quiet", "-b", "other", ".wt"]);
    assert_eq!(repo.revision(".wt"), commit);
    repo.write(".wt/pleach.yaml", "changed");
    assert_eq!(repo.revision(".wt"), dirty(&commit));
}

#[test]
fn any_name_of_a_commit_will_do() {
    let (repo, first) = Repo::with_commit(&[("fleet/pleach.yaml", "one")]);
    repo.git(&["tag", "light"]);
    repo.git(&["tag", "--annotate", "--message=x", "v1.0.0"]);
    repo.git(&["branch", "old"]);
    let second = repo.commit(&[("fleet/pleach.yaml", "two")]);
    let source = Source::open(&repo.path().join("fleet")).unwrap();
    for (name, commit, content) in [
        ("old", &first, "one"),
        ("light", &first, "one"),
        ("v1.0.0", &first, "one"),
        (first.as_str(), &first, "one"),
        (&first[..9], &first, "one"),
        ("HEAD~1", &first, "one"),
        ("main", &second, "two"),
        ("HEAD", &second, "two"),
    ] {
        let tree = source.tree(name).unwrap();
        assert_eq!(&tree.commit(), commit, "{name}");
        assert_eq!(tree.read("pleach.yaml").unwrap(), content, "{name}");
    }
}

#[test]
fn an_unknown_revision_is_named() {
    let (repo, _) = Repo::with_commit(&[("pleach.yaml", "x")]);
    let (text, hint) = repo.refused("nothing");
    assert_eq!(text, "revision nothing does not exist in REPO");
    assert_eq!(
        hint.unwrap(),
        "name a branch, a tag or a commit; a branch of a remote is origin/NAME"
    );
    let (text, _) = repo.refused("HEAD:pleach.yaml");
    assert_eq!(text, "revision HEAD:pleach.yaml is not a commit");
}

#[test]
fn a_shallow_clone_says_how_to_get_more() {
    let (origin, first) = Repo::with_commit(&[("pleach.yaml", "x")]);
    origin.commit(&[("pleach.yaml", "y")]);
    let clone = Repo::new();
    let url = format!("file://{}", origin.path().display());
    clone.git(&["fetch", "--quiet", "--depth=1", &url, "main"]);
    clone.git(&["checkout", "--quiet", "FETCH_HEAD"]);
    let (_, hint) = clone.refused(&first);
    assert_eq!(
        hint.unwrap(),
        format!(
            "this is a shallow clone; fetch the revision first: git fetch --depth=1 origin {first}"
        )
    );
}

#[test]
fn a_revision_without_the_folder_is_refused() {
    let (repo, _) = Repo::with_commit(&[("README.md", "x")]);
    repo.git(&["tag", "before"]);
    repo.commit(&[("fleet/pleach.yaml", "x")]);
    let error = Source::open(&repo.path().join("fleet"))
        .unwrap()
        .tree("before")
        .err()
        .unwrap();
    assert_eq!(error.to_string(), "revision before has no folder fleet");
}

#[test]
fn links_and_submodules_are_listed_and_not_entered() {
    let (other, _) = Repo::with_commit(&[("inner.yaml", "x")]);
    let repo = Repo::new();
    repo.write("a.b", "x");
    repo.write("a/file.yaml", "x");
    symlink("a", repo.path().join("link")).unwrap();
    let url = other.path().display().to_string();
    repo.git(&["submodule", "--quiet", "add", &url, "sub"]);
    repo.commit(&[]);
    let source = Source::open(repo.path()).unwrap();
    let tree = source.tree("HEAD").unwrap();
    let on_disk = source.working_tree();

    let listed: Vec<_> = tree
        .list("")
        .unwrap()
        .into_iter()
        .map(|entry| (entry.name, entry.kind))
        .collect();
    let expected = [
        (".gitmodules", TreeKind::File),
        ("a", TreeKind::Folder),
        ("a.b", TreeKind::File),
        ("link", TreeKind::Link),
        ("sub", TreeKind::Submodule),
    ];
    assert_eq!(listed, expected.map(|(name, kind)| (name.to_owned(), kind)));
    assert_eq!(tree.list("").unwrap(), on_disk.list("").unwrap());

    for (path, expected) in [
        (
            "link",
            "failed to read link: it is a symbolic link, and links are not followed",
        ),
        (
            "link/file.yaml",
            "failed to read link/file.yaml: link is a symbolic link, and links are not followed",
        ),
        (
            "sub",
            "failed to read sub: it is a submodule, and submodules are not entered",
        ),
        (
            "sub/inner.yaml",
            "failed to read sub/inner.yaml: sub is a submodule, and submodules are not entered",
        ),
        ("a", "failed to read a: it is a folder"),
        ("a/nothing", "a/nothing does not exist"),
        (
            "../x",
            "failed to read ../x: it is not a path within the repository",
        ),
    ] {
        assert_eq!(tree.read(path).unwrap_err().to_string(), expected);
    }
    assert!(tree.list("sub").is_err());
    assert!(tree.list("link").is_err());
    assert!(tree.list("a.b").is_err());
}

#[test]
fn large_files_of_a_commit_are_refused() {
    let repo = Repo::new();
    let large = "x".repeat(16 * 1024 * 1024 + 1);
    repo.commit(&[("large.yaml", &large)]);
    let tree = Source::open(repo.path()).unwrap().tree("HEAD").unwrap();
    assert_eq!(
        tree.read("large.yaml").unwrap_err().to_string(),
        "failed to read large.yaml: it has 16777217 bytes, and at most 16 MiB are read"
    );
}

#[test]
fn a_bare_repository_has_revisions() {
    let (repo, commit) = Repo::with_commit(&[("pleach.yaml", "x")]);
    repo.git(&["clone", "--quiet", "--bare", ".", "bare.git"]);
    let source = Source::open(&repo.path().join("bare.git")).unwrap();
    assert_eq!(source.tree("main").unwrap().commit(), commit);
    assert_eq!(
        source.tree("main").unwrap().read("pleach.yaml").unwrap(),
        "x"
    );
}

#[test]
fn the_subject_of_a_commit_is_found_by_its_id() {
    let (repo, commit) = Repo::with_commit(&[("a", "")]);
    let source = Source::open(repo.path()).unwrap();
    for id in [commit.as_str(), &commit[..7]] {
        assert_eq!(source.subject(id).as_deref(), Some("x"), "{id}");
    }
    assert_eq!(source.subject("none"), None);
}
