//! Copies of repositories over ssh, with a real `sshd`.

use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use pleach_git::{
    mirror::{Fetched, Mirror},
    remote::{Auth, Remote},
};
use pleach_model::tree::FileTree as _;
use pleach_testkit::repository::TestRepo;
use pleach_testkit::ssh_server::{SshServer, make_key};
use tempfile::TempDir;

/// Repository, server, and files of a client.
struct Scene {
    repo: TestRepo,
    server: SshServer,
    folder: TempDir,
}

impl Scene {
    fn new() -> Self {
        let repo = TestRepo::new([("pleach.yaml", "first")]).unwrap();
        repo.commit("first").unwrap();
        repo.git(&["branch", "env/a"]).unwrap();
        let scene = Self {
            repo,
            server: SshServer::start().unwrap(),
            folder: tempfile::tempdir().unwrap(),
        };
        let known = scene.server.known_hosts().unwrap();
        scene.write("known_hosts", &known);
        std::fs::copy(scene.server.key(), scene.path("key")).unwrap();
        scene
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn write(&self, name: &str, text: &str) {
        std::fs::write(self.path(name), text).unwrap();
    }

    fn mirror(&self) -> Mirror {
        self.mirror_of(&self.server.url(&self.repo.path().join(".git")))
    }

    fn mirror_of(&self, url: &str) -> Mirror {
        Mirror::new(Remote {
            url: url.to_owned(),
            auth: Auth::Ssh {
                key: self.path("key"),
                known_hosts: self.path("known_hosts"),
            },
            keys: None,
        })
    }

    /// Returns ssh's message about another key of the server.
    fn other_key(&self) -> String {
        let path = self.path("other");
        make_key(&path).unwrap();
        std::fs::read_to_string(self.path("other.pub")).unwrap()
    }
}

fn fetch(mirror: &mut Mirror) -> Result<Fetched, String> {
    mirror
        .fetch(|branch| branch.starts_with("env/"))
        .map_err(|error| error.to_string())
}

fn content(fetched: &Fetched) -> String {
    let tree = fetched.reader.tree(&fetched.heads["env/a"]).unwrap();
    String::from_utf8_lossy(&tree.read("pleach.yaml").unwrap()).into_owned()
}

fn assert_says(error: &str, parts: &[&str]) {
    for part in parts {
        assert!(error.contains(part), "{part}: {error}");
    }
}

#[test]
fn branches_are_followed_wherever_they_go() {
    let scene = Scene::new();
    let mut mirror = scene.mirror();
    let before =
        fetch(&mut mirror).unwrap_or_else(|error| panic!("{error}: {}", scene.server.log()));
    assert_eq!(content(&before), "first");
    assert_eq!(before.default_branch.as_deref(), Some("main"));
    // Without changes, there is one connection, which lists the branches.
    let connections = scene.server.connections();
    fetch(&mut mirror).unwrap();
    assert_eq!(scene.server.connections(), connections + 1);
    // More data than the pipes can buffer.
    let large = "x".repeat(3 << 20);
    scene.repo.write("large", &large).unwrap();
    scene.repo.edit("pleach.yaml", "first", "second").unwrap();
    scene.repo.commit("second").unwrap();
    scene.repo.git(&["branch", "--force", "env/a"]).unwrap();
    assert_eq!(content(&fetch(&mut mirror).unwrap()), "second");
    assert_eq!(content(&before), "first");
    scene.repo.git(&["branch", "-D", "env/a"]).unwrap();
    assert!(fetch(&mut mirror).unwrap().heads.is_empty());
}

#[test]
fn a_host_that_is_not_known_is_refused_with_its_fingerprint() {
    let scene = Scene::new();
    let fingerprint = scene.server.fingerprint().unwrap();
    let mut mirror = scene.mirror();
    for known in ["", "other.example.org ssh-ed25519 AAAA\n"] {
        scene.write("known_hosts", known);
        let error = fetch(&mut mirror).unwrap_err();
        let file = scene.path("known_hosts");
        assert_says(
            &error,
            &[
                "failed to fetch ssh://",
                file.to_str().unwrap(),
                "does not have the key that [127.0.0.1]:",
                &format!("ssh-ed25519 {fingerprint}"),
                "ssh-keyscan",
            ],
        );
    }
    // The file is read again without a restart.
    scene.write("known_hosts", &scene.server.known_hosts().unwrap());
    assert_eq!(content(&fetch(&mut mirror).unwrap()), "first");
}

#[test]
fn a_host_whose_key_changed_is_refused_with_its_fingerprint() {
    let scene = Scene::new();
    let fingerprint = scene.server.fingerprint().unwrap();
    let known = scene.server.known_hosts().unwrap();
    let host = known.split(' ').next().unwrap();
    scene.write("known_hosts", &format!("{host} {}", scene.other_key()));
    let error = fetch(&mut scene.mirror()).unwrap_err();
    assert_says(
        &error,
        &[
            "presents another key than the one in",
            &fingerprint,
            "the connection might be intercepted",
        ],
    );
    scene.write("known_hosts", &format!("@revoked {known}"));
    let error = fetch(&mut scene.mirror()).unwrap_err();
    assert_says(&error, &["as revoked", &fingerprint]);
}

#[test]
fn a_key_that_is_not_let_in_is_named() {
    let scene = Scene::new();
    scene.other_key();
    std::fs::copy(scene.path("other"), scene.path("key")).unwrap();
    let error = fetch(&mut scene.mirror()).unwrap_err();
    let key = scene.path("key");
    assert_says(
        &error,
        &["rejects user", key.to_str().unwrap(), "Permission denied"],
    );
    scene.write("key", "no key");
    let error = fetch(&mut scene.mirror()).unwrap_err();
    assert_says(&error, &["rejects user", "Load key"]);
    std::fs::remove_file(scene.path("key")).unwrap();
    let error = fetch(&mut scene.mirror()).unwrap_err();
    assert_says(&error, &["failed to read", key.to_str().unwrap()]);
}

#[test]
fn a_key_without_the_end_of_its_line_that_others_may_read_is_used() {
    use std::os::unix::fs::PermissionsExt as _;
    let scene = Scene::new();
    let key = std::fs::read_to_string(scene.path("key")).unwrap();
    scene.write("key", key.trim_end());
    let readable = std::fs::Permissions::from_mode(0o644);
    std::fs::set_permissions(scene.path("key"), readable).unwrap();
    assert_eq!(content(&fetch(&mut scene.mirror()).unwrap()), "first");
}

#[test]
fn what_the_server_says_is_told() {
    let scene = Scene::new();
    let url = scene.server.url(Path::new("/nowhere/fleet it's.git"));
    let error = fetch(&mut scene.mirror_of(&url.replace(' ', "-"))).unwrap_err();
    assert_says(
        &error,
        &["'/nowhere/fleet-it's.git' does not appear to be a git repository"],
    );
}

#[test]
fn a_server_that_is_not_there_or_says_nothing_is_given_up() {
    let scene = Scene::new();
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = silent.local_addr().unwrap();
    let started = Instant::now();
    let error = fetch(&mut scene.mirror_of(&format!("ssh://git@{address}/fleet"))).unwrap_err();
    assert_says(&error, &["failed to fetch ssh://"]);
    assert!(started.elapsed() < Duration::from_mins(1));
    drop(silent);
    let error = fetch(&mut scene.mirror_of(&format!("ssh://git@{address}/fleet"))).unwrap_err();
    assert_says(&error, &["Connection refused"]);
}
