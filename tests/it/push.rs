//! Pushes from a mirror to git's own server.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::process::Command;

use bytes::Bytes;
use pleach_config::FileChanges;
use pleach_git::GitError;
use pleach_git::mirror::{Fetched, Mirror};
use pleach_git::remote::{Auth, Remote};
use pleach_model::tree::FileTree as _;
use pleach_testkit::git_server::GitServer;
use pleach_testkit::ssh_server::SshServer;
use tempfile::TempDir;

/// Bare repository behind a server.
struct Hosted {
    folder: TempDir,
    server: GitServer,
}

impl Hosted {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let server = GitServer::start(folder.path()).unwrap();
        let hosted = Self { folder, server };
        hosted.git(&["init", "--quiet", "--bare", "--initial-branch=main", "."]);
        hosted.git(&["config", "http.receivepack", "true"]);
        hosted
    }

    fn path(&self) -> PathBuf {
        self.folder.path().join("fleet.git")
    }

    fn git(&self, args: &[&str]) -> String {
        std::fs::create_dir_all(self.path()).unwrap();
        let output = Command::new("git")
            .args(args)
            .current_dir(self.path())
            .output()
            .unwrap();
        assert!(output.status.success(), "git {args:?}: {output:?}");
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    }

    fn remote(&self) -> Remote {
        Remote {
            url: self.server.url("fleet.git"),
            auth: Auth::Anonymous,
            keys: None,
        }
    }
}

fn fetch(remote: &Remote) -> Fetched {
    Mirror::new(remote.clone()).fetch(|_| true).unwrap()
}

fn changes(files: &[(&str, &str)]) -> FileChanges {
    let files = files.iter();
    let content = |text: &str| Some(Bytes::from(text.to_owned()));
    files
        .map(|(path, text)| ((*path).to_owned(), content(text)))
        .collect()
}

/// Fetches, and pushes one commit with these files.
fn push(remote: &Remote, files: &[(&str, &str)]) -> Result<String, GitError> {
    let fetched = fetch(remote);
    let head = fetched.heads.get("main").map(String::as_str);
    let commit = fetched
        .reader
        .commit(head, &changes(files), "change\n")
        .unwrap();
    remote
        .push(&fetched.reader, &commit, "main", head, None)
        .map(|()| commit)
}

#[test]
fn commits_arrive_with_everything_that_was_there() {
    let hosted = Hosted::new();
    let remote = hosted.remote();
    let first = push(&remote, &[("a/b/c", "1"), ("a/d", "2")]).unwrap();
    assert_eq!(hosted.git(&["rev-parse", "main"]), first);
    // The history is not fetched, and only new objects are sent.
    push(&remote, &[("a/b/c", "3"), ("e", "4")]).unwrap();
    let third = push(&remote, &[("f/g", "5")]).unwrap();
    hosted.git(&["fsck", "--strict"]);
    assert_eq!(hosted.git(&["rev-list", "--count", "main"]), "3");
    let files = hosted.git(&["ls-tree", "-r", "--name-only", "main"]);
    assert_eq!(files, "a/b/c\na/d\ne\nf/g");
    assert_eq!(hosted.git(&["show", "main:a/b/c"]), "3");
    let fetched = fetch(&remote);
    assert_eq!(fetched.heads["main"], third);
    assert_eq!(
        fetched.reader.tree(&third).unwrap().read("a/d").unwrap(),
        "2"
    );
}

#[test]
fn commits_of_others_are_never_overwritten() {
    let hosted = Hosted::new();
    let remote = hosted.remote();
    push(&remote, &[("a", "1")]).unwrap();
    let fetched = fetch(&remote);
    let head = fetched.heads["main"].as_str();
    let ours = fetched
        .reader
        .commit(Some(head), &changes(&[("a", "2")]), "ours\n")
        .unwrap();
    let theirs = push(&remote, &[("a", "3")]).unwrap();
    let error = remote
        .push(&fetched.reader, &ours, "main", Some(head), None)
        .unwrap_err();
    assert!(matches!(error, GitError::Moved { .. }), "{error}");
    assert_eq!(hosted.git(&["rev-parse", "main"]), theirs);
    // It can go to a branch of its own.
    let push = |expected| {
        let reader = &fetched.reader;
        remote.push(reader, &ours, "proposal", expected, None)
    };
    push(None).unwrap();
    assert_eq!(hosted.git(&["rev-parse", "proposal"]), ours);
    assert!(matches!(push(None), Err(GitError::Moved { .. })));
}

#[test]
fn a_refusal_has_the_words_of_the_server() {
    let hosted = Hosted::new();
    let remote = hosted.remote();
    let hook = hosted.path().join("hooks/pre-receive");
    std::fs::write(&hook, "#!/bin/sh\necho main is protected >&2\nexit 1\n").unwrap();
    std::fs::set_permissions(&hook, Permissions::from_mode(0o700)).unwrap();
    let error = push(&remote, &[("a", "1")]).unwrap_err();
    assert!(error.is_conflict(), "{error}");
    let text = error.to_string();
    assert!(
        text.contains("refused the push to main: pre-receive hook declined"),
        "{text}"
    );
    assert!(text.contains("main is protected"), "{text}");

    // A token that can only read.
    hosted.git(&["config", "http.receivepack", "false"]);
    let error = push(&remote, &[("a", "1")]).unwrap_err().to_string();
    assert!(error.contains("the server answered 403"), "{error}");
    let folder = tempfile::tempdir().unwrap();
    let token = folder.path().join("token");
    std::fs::write(&token, "t0ken").unwrap();
    hosted.server.demand("Bearer t0ken");
    let remote = Remote {
        auth: Auth::Bearer {
            token: token.clone(),
        },
        ..remote
    };
    let error = push(&remote, &[("a", "1")]).unwrap_err();
    assert!(error.is_conflict(), "{error}");
    assert!(!error.to_string().contains("t0ken"), "{error}");
    assert_eq!(hosted.git(&["for-each-ref"]), "");
}

#[test]
fn ssh_pushes_like_https() {
    let hosted = Hosted::new();
    let server = SshServer::start().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let known_hosts = folder.path().join("known_hosts");
    std::fs::write(&known_hosts, server.known_hosts().unwrap()).unwrap();
    let remote = Remote {
        url: server.url(&hosted.path()),
        auth: Auth::Ssh {
            key: server.key(),
            known_hosts,
        },
        keys: None,
    };
    push(&remote, &[("a", "1")]).unwrap();
    let second = push(&remote, &[("b", "2")]).unwrap();
    assert_eq!(hosted.git(&["rev-parse", "main"]), second);
}
