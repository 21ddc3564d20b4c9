//! Required commit signatures, with the usual signing programs.

use std::collections::BTreeSet;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::process::Command;

use pleach_git::branch_history::BranchHistory;
use pleach_git::mirror::{Fetched, Mirror};
use pleach_git::remote::{Auth, Remote};
use pleach_testkit::repository::TestRepo;
use pleach_testkit::ssh_server::make_key;
use tempfile::TempDir;

const BRANCH: &str = "env/a";

/// Repository with various commit signatures.
struct Scene {
    repo: TestRepo,
    folder: TempDir,
    mirror: Mirror,
}

fn remote(repo: &TestRepo, folder: &TempDir) -> Remote {
    Remote {
        url: repo.path().to_str().unwrap().to_owned(),
        auth: Auth::Anonymous,
        keys: Some(folder.path().join("keys")),
    }
}

impl Scene {
    fn new() -> Self {
        let repo = TestRepo::new([("pleach.yaml", "first")]).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let mirror = Mirror::new(remote(&repo, &folder));
        Self {
            repo,
            folder,
            mirror,
        }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn trust(&self, keys: &str) {
        std::fs::write(self.path("keys"), keys).unwrap();
    }

    /// Creates an ssh key and returns its line for an allowed signers file.
    fn ssh_key(&self, name: &str) -> String {
        make_key(&self.path(name)).unwrap();
        let key = std::fs::read_to_string(self.path(&format!("{name}.pub"))).unwrap();
        format!("{name}@example.org namespaces=\"git\" {key}")
    }

    fn sign_by_ssh(&self, name: &str) -> String {
        let key = format!("user.signingkey={}", self.path(name).display());
        self.sign(&["-c", "gpg.format=ssh", "-c", &key])
    }

    /// Commits with a signature and moves the branch there.
    fn sign(&self, settings: &[&str]) -> String {
        let commit = ["commit", "--quiet", "--allow-empty", "-S", "-m", "signed"];
        self.repo.git(&["add", "--all"]).unwrap();
        self.repo.git(&[settings, &commit[..]].concat()).unwrap();
        self.point("HEAD")
    }

    fn point(&self, commit: &str) -> String {
        self.repo
            .git(&["branch", "--force", BRANCH, commit])
            .unwrap();
        self.repo.git(&["rev-parse", BRANCH]).unwrap()
    }

    /// Creates the same commit with another message and the old signature.
    fn tamper(&self) -> String {
        let commit = self.repo.git(&["cat-file", "commit", BRANCH]).unwrap();
        let other = commit.replace("signed", "something else");
        assert_ne!(commit, other);
        std::fs::write(self.path("tampered"), other).unwrap();
        let path = self.path("tampered");
        let tampered = ["hash-object", "-t", "commit", "-w", path.to_str().unwrap()];
        let id = self.repo.git(&tampered).unwrap();
        self.point(&id)
    }

    fn fetch(&mut self) -> Fetched {
        self.mirror.fetch(|branch| branch == BRANCH).unwrap()
    }

    /// Returns the reason for distrusting the branch's commit.
    fn wrong(&mut self) -> Option<String> {
        let fetched = self.fetch();
        assert_eq!(fetched.heads.len(), 1);
        fetched.distrusted.get(BRANCH).cloned()
    }

    #[track_caller]
    fn assert_wrong(&mut self, commit: &str, parts: &[&str]) {
        let wrong = self.wrong().unwrap();
        let start = format!(
            "commit {} of branch {BRANCH} is not trusted: ",
            &commit[..7]
        );
        assert!(wrong.starts_with(&start), "{wrong}");
        for part in parts {
            assert!(wrong.contains(part), "{part}: {wrong}");
        }
    }
}

/// gpg home with one key, and a program that signs with it.
struct Gpg {
    folder: TempDir,
    /// Options to fake the current time.
    time: Vec<&'static str>,
}

impl Gpg {
    fn new(name: &str, time: &[&'static str], lifetime: &str) -> Self {
        let gpg = Self {
            folder: tempfile::tempdir().unwrap(),
            time: time.to_vec(),
        };
        let private = std::fs::Permissions::from_mode(0o700);
        std::fs::set_permissions(gpg.folder.path(), private).unwrap();
        let user = format!("{name} <{name}@example.org>");
        gpg.run(&["--quick-gen-key", &user, "ed25519", "sign", lifetime]);
        let program = format!(
            "#!/bin/sh\nexec gpg --homedir '{}' --batch {} \"$@\"\n",
            gpg.folder.path().display(),
            gpg.time.join(" ")
        );
        std::fs::write(gpg.program(), program).unwrap();
        let runnable = std::fs::Permissions::from_mode(0o755);
        std::fs::set_permissions(gpg.program(), runnable).unwrap();
        gpg
    }

    fn program(&self) -> PathBuf {
        self.folder.path().join("sign")
    }

    fn run(&self, args: &[&str]) -> String {
        let output = Command::new("gpg")
            .arg("--homedir")
            .arg(self.folder.path())
            .args(["--batch", "--passphrase", ""])
            .args(&self.time)
            .args(args)
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "gpg {args:?}: {said}");
        String::from_utf8(output.stdout).unwrap()
    }

    fn public(&self) -> String {
        self.run(&["--armor", "--export"])
    }

    fn sign(&self, scene: &Scene) -> String {
        let program = format!("gpg.program={}", self.program().display());
        scene.sign(&["-c", &program, "-c", "user.signingkey=example.org"])
    }
}

impl Drop for Gpg {
    fn drop(&mut self) {
        // The agent would run until it notices that its home was deleted.
        let mut command = Command::new("gpgconf");
        command.arg("--homedir").arg(self.folder.path());
        drop(command.args(["--kill", "gpg-agent"]).output());
    }
}

#[test]
fn a_commit_that_the_branch_had_before_counts_only_with_its_signature() {
    let scene = Scene::new();
    let (ann, _bob) = (scene.ssh_key("ann"), scene.ssh_key("bob"));
    scene.trust(&ann);
    let good = scene.sign_by_ssh("ann");
    let theirs = scene.sign_by_ssh("bob");
    scene.repo.write("pleach.yaml", "second").unwrap();
    scene.repo.commit("unsigned").unwrap();
    let unsigned = scene.point("HEAD");
    let named = BTreeSet::from([good.clone(), theirs, unsigned]);
    let mut history = BranchHistory::fetch(&remote(&scene.repo, &scene.folder), BRANCH).unwrap();
    let had = history.had(&named).unwrap();
    assert_eq!(had.len(), 3);
    let mut trusted = had.clone();
    trusted.retain(|commit| history.distrusts(commit).unwrap().is_none());
    assert_eq!(trusted, [good]);
    // Without a readable key file, verification is impossible.
    std::fs::remove_file(scene.path("keys")).unwrap();
    assert!(had.iter().all(|commit| history.distrusts(commit).is_err()));
}

#[test]
fn commits_signed_by_ssh_keys_are_told_from_others() {
    let mut scene = Scene::new();
    let (ann, bob) = (scene.ssh_key("ann"), scene.ssh_key("bob"));
    scene.trust(&format!("# the team\n{ann}"));
    scene.sign_by_ssh("ann");
    assert_eq!(scene.wrong(), None);
    // Signed with an untrusted key.
    let commit = scene.sign_by_ssh("bob");
    scene.assert_wrong(
        &commit,
        &[
            "it is signed with ED25519 key SHA256:",
            "is not among the keys of",
        ],
    );
    // The trusted keys have changed.
    scene.trust(&format!("{ann}{bob}"));
    assert_eq!(scene.wrong(), None);
    scene.trust(&ann);
    scene.assert_wrong(&commit, &["is not among the keys of"]);
    // The signed content differs.
    scene.sign_by_ssh("ann");
    let commit = scene.tamper();
    scene.assert_wrong(&commit, &["is not valid"]);
    // Unsigned: the committer is reported.
    scene.repo.commit("unsigned").unwrap();
    let commit = scene.point("HEAD");
    scene.assert_wrong(
        &commit,
        &["tester@example.com committed it without a signature"],
    );
    // Back to a good commit.
    scene.sign_by_ssh("ann");
    assert_eq!(scene.wrong(), None);
    // A key restricted to files is not trusted for commits.
    scene.trust(&ann.replace("namespaces=\"git\"", "namespaces=\"file\""));
    assert!(scene.wrong().is_some());
}

#[test]
fn commits_signed_by_openpgp_keys_are_told_from_others() {
    let mut scene = Scene::new();
    let ann = Gpg::new("ann", &[], "0");
    let bob = Gpg::new("bob", &[], "0");
    scene.trust(&ann.public());
    ann.sign(&scene);
    assert_eq!(scene.wrong(), None);
    let commit = scene.tamper();
    scene.assert_wrong(
        &commit,
        &[
            "its signature with OpenPGP key ",
            "(ann <ann@example.org>)",
            "the signature does not match the commit",
        ],
    );
    let commit = bob.sign(&scene);
    scene.assert_wrong(
        &commit,
        &["it is signed with OpenPGP key ", "is not among the keys of"],
    );
    // Keys of both types in one file.
    let carl = scene.ssh_key("carl");
    scene.trust(&format!("{}{carl}{}", ann.public(), bob.public()));
    assert_eq!(scene.wrong(), None);
    scene.sign_by_ssh("carl");
    assert_eq!(scene.wrong(), None);
}

#[test]
fn a_key_that_expired_signs_nothing() {
    let mut scene = Scene::new();
    // A frozen clock (`!`). A running one would restart with each program, so the key would be from
    // the signer's future.
    let old = Gpg::new("old", &["--faked-system-time", "20200101T000000!"], "1y");
    scene.trust(&old.public());
    let commit = old.sign(&scene);
    scene.assert_wrong(&commit, &["the key has expired"]);
}

#[test]
fn keys_that_cannot_be_read_trust_nobody() {
    let mut scene = Scene::new();
    let ann = scene.ssh_key("ann");
    let commit = scene.sign_by_ssh("ann");
    let file = scene.path("keys").to_str().unwrap().to_owned();
    scene.assert_wrong(&commit, &["the keys cannot be read", &file]);
    for keys in ["", "no keys\n", "-----BEGIN PGP PUBLIC KEY BLOCK-----\nx\n"] {
        scene.trust(keys);
        scene.assert_wrong(&commit, &["ED25519 key SHA256:"]);
    }
    scene.trust(&ann);
    assert_eq!(scene.wrong(), None);
}
