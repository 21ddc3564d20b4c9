//! Previews of the controller with cluster access: conditions, and the effect of a merge after one.

use std::os::unix::fs::symlink;
use std::path::Path;

use pleach_formats::file::ForgeKind;
use pleach_testkit::forge::{FakeForge, Pull, TOKEN};
use pleach_testkit::git_server::GitServer;
use tempfile::TempDir;

use crate::fleet::Fleet;
use crate::loop_run::{Loop, SECRET, fleet};
use crate::samples::config_map;
use crate::shared;

/// Applied fleet whose repository is on a forge.
pub(crate) struct Hosted {
    pub(crate) fleet: Fleet,
    pub(crate) forge: FakeForge,
    config: String,
    _git: GitServer,
    _root: TempDir,
}

impl Hosted {
    #[expect(clippy::disallowed_methods, reason = "a folder of the test's own")]
    pub(crate) fn new(environment: &'static str, sync: &str, lines: &str) -> Self {
        let fleet = fleet(environment, sync);
        fleet.applied();
        let root = tempfile::tempdir().unwrap();
        std::fs::create_dir(root.path().join("example")).unwrap();
        let repository = root.path().join("example/fleet.git");
        symlink(fleet.repo.path().join(".git"), repository).unwrap();
        let git = GitServer::start(root.path()).unwrap();
        let forge = FakeForge::start(ForgeKind::Github).unwrap();
        let (token, secret) = (fleet.file("token", TOKEN), fleet.file("hooks", SECRET));
        let (url, api) = (git.url("example/fleet.git"), forge.api());
        let url = format!(
            "{url}\n    forge: {{kind: github, url: \"{api}\", tokenFile: {token}, webhookSecretFile: {secret}, previews: true, live: true, forkLabel: ask the cluster}}"
        );
        let config = fleet.configuration(&url, lines);
        Self {
            fleet,
            forge,
            config,
            _git: git,
            _root: root,
        }
    }

    pub(crate) fn runs(&self) -> Loop {
        self.fleet.runs_with(&["--config", &self.config])
    }

    /// Commits the value to a pull request instead of the branch of the environment.
    pub(crate) fn proposes(&self, number: u64, path: &str, text: &str, pull: Pull) -> String {
        self.fleet.write(path, text);
        let head = self.fleet.commit();
        let reference = format!("refs/pull/{number}/head");
        self.fleet
            .repo
            .git(&["update-ref", &reference, "HEAD"])
            .unwrap();
        let branch = format!("env/{}", self.fleet.environment);
        self.fleet
            .repo
            .git(&["reset", "--quiet", "--hard", &branch])
            .unwrap();
        let pull = Pull {
            head: head.clone(),
            base_branch: branch,
            ..pull
        };
        self.forge.put(number, pull);
        head
    }

    /// Waits until the comment on a pull request contains the words.
    #[track_caller]
    fn until_says(&self, number: u64, words: &str) -> String {
        let said = || self.forge.notes(number).pop().map(|(_, text)| text);
        self.fleet
            .until(words, |_| said().filter(|text| text.contains(words)))
    }
}

const VALUE: &str = "manifests/web/web.yaml";
const STATED: &str = "<!-- pleach effects";

pub(crate) fn fork(labels: &[&str]) -> Pull {
    Pull {
        is_fork: true,
        labels: labels.iter().map(|label| (*label).to_owned()).collect(),
        ..Pull::default()
    }
}

#[test]
fn a_fork_is_compared_with_the_cluster_where_a_member_consents_to_its_commit() {
    const MEMBER: u64 = 5;
    let hosted = Hosted::new("loop-live-forks", "{interval: 1h}", "");
    hosted.forge.admit(MEMBER);
    let value = |value: &str| config_map("web", value);
    let head = hosted.proposes(8, VALUE, &value("second"), fork(&["ask the cluster"]));
    let running = hosted.runs();
    let said = hosted.until_says(8, "+  k: second");
    assert!(
        !said.contains(STATED) && !said.contains("In the cluster"),
        "{said}"
    );
    assert!(said.contains("Not compared with the cluster"), "{said}");

    // A review consents to the reviewed commit.
    hosted.forge.review(8, MEMBER, &head, "APPROVED");
    let said = hosted.fleet.writes_objects_nowhere(|_| {
        running.happened("pull_request_review");
        hosted.until_says(8, STATED)
    });
    assert!(said.contains("In the cluster"), "{said}");

    // It does not consent to later pushes, whatever event triggers the preview.
    hosted.proposes(8, VALUE, &value("third"), fork(&["ask the cluster"]));
    running.happened("pull_request");
    let said = hosted.until_says(8, "+  k: third");
    assert!(!said.contains(STATED), "{said}");
    running.stopped();
    let running = hosted.runs();
    let head = hosted.proposes(8, VALUE, &value("fourth"), fork(&["ask the cluster"]));
    running.happened("pull_request");
    let said = hosted.until_says(8, "+  k: fourth");
    assert!(!said.contains(STATED), "{said}");
    // A label with the commit in its name also consents.
    let pull = |label: &str| Pull {
        head: head.clone(),
        base_branch: format!("env/{}", hosted.fleet.environment),
        ..fork(&[label])
    };
    hosted
        .forge
        .put(8, pull(&format!("ask the cluster {}", &head[..32])));
    running.happened("pull_request");
    hosted.until_says(8, STATED);
    running.stopped();
    assert_eq!(hosted.forge.wrong(), [""; 0]);
}

#[test]
#[expect(clippy::disallowed_methods, reason = "files of the test's own")]
fn a_preview_is_made_again_until_its_cluster_answers() {
    let mut hosted = Hosted::new("loop-live-later", "{interval: 1h}", "");
    let text = std::fs::read_to_string(&hosted.config).unwrap();
    let known = shared().kubeconfig().display().to_string();
    let good = std::fs::read_to_string(&known).unwrap();
    let way = Path::new(&hosted.config).with_file_name("way");
    let elsewhere = text.replace(&known, way.to_str().unwrap());
    assert_ne!(text, elsewhere);
    hosted.config = hosted.fleet.file("elsewhere.yaml", &elsewhere);
    let second = config_map("web", "second");
    hosted.proposes(7, VALUE, &second, Pull::default());
    let running = hosted.runs();
    let said = hosted.until_says(7, "+  k: second");
    assert!(!said.contains(STATED), "{said}");
    std::fs::write(way, good).unwrap();
    hosted.until_says(7, STATED);
    running.stopped();
    assert_eq!(hosted.forge.wrong(), [""; 0]);
}

#[test]
fn what_was_merged_with_known_effects_is_approved() {
    let hosted = Hosted::new("loop-live", "{interval: 1h, approval: digest}", "");
    let value = |value: &str| config_map("web", value);
    let running = hosted.runs();
    let head = hosted.proposes(7, VALUE, &value("second"), Pull::default());
    running.happened("pull_request");
    let said = hosted.until_says(7, STATED);
    let fleet = &hosted.fleet;
    assert!(
        said.contains(&format!("<!-- pleach head {head} -->")),
        "{said}"
    );

    // The change is merged as previewed.
    let branch = format!("env/{}", fleet.environment);
    let merge = |commit: &str| {
        fleet
            .repo
            .git(&["reset", "--quiet", "--hard", commit])
            .unwrap();
        fleet.repo.git(&["branch", "--force", &branch]).unwrap();
    };
    let merged = Pull {
        head: head.clone(),
        base_branch: branch.clone(),
        is_closed: true,
        merged_as: Some(head.clone()),
        ..Pull::default()
    };
    hosted.forge.put(7, merged.clone());
    merge(&head);
    running.pushed();
    fleet.until_value("second");
    fleet.until_not("Stalled");

    // A commit without a pull request waits, as does one that was merged without a preview.
    fleet.push_value("second", "third");
    running.pushed();
    fleet.until_condition("Stalled", "AwaitingApproval");
    assert_eq!(fleet.value().as_deref(), Some("second"));
    let unseen = hosted.proposes(9, VALUE, &value("fourth"), fork(&[]));
    running.happened("pull_request");
    hosted.until_says(9, "+  k: fourth");
    hosted.forge.put(
        9,
        Pull {
            head: unseen.clone(),
            merged_as: Some(unseen.clone()),
            ..merged
        },
    );
    merge(&unseen);
    running.pushed();
    fleet.until("a look at it", |fleet| {
        let (_, message) = fleet.condition("Stalled")?;
        let asked = hosted.forge.asked();
        let is_asked = asked
            .iter()
            .any(|one| one.contains(&format!("commits/{unseen}/pulls")));
        (is_asked && message.contains("waits for approval")).then_some(())
    });
    assert_eq!(fleet.value().as_deref(), Some("second"));
    running.stopped();
    assert_eq!(hosted.forge.wrong(), [""; 0]);
}

#[test]
fn nothing_beyond_its_limits_is_asked_about_or_shown() {
    let hosted = Hosted::new(
        "loop-live-limits",
        "{interval: 1h}",
        "        allow: {namespaces: [loop-live-limits]}\n",
    );
    let fleet = &hosted.fleet;
    fleet.create_namespace("loop-live-others");
    let literal = "--from-literal=k=tell-nobody-here";
    let others = [
        "create",
        "configmap",
        "theirs",
        "-n",
        "loop-live-others",
        literal,
    ];
    fleet.kubectl(&others);
    let theirs = config_map("theirs", "mine")
        .replace("name: theirs", "name: theirs, namespace: loop-live-others");
    let running = hosted.runs();
    let ((), events) = fleet.watched(|_| {
        hosted.proposes(7, "manifests/web/theirs.yaml", &theirs, Pull::default());
        running.happened("pull_request");
        let said = hosted.until_says(7, "the controller is not allowed to write to it");
        assert!(!said.contains("tell-nobody-here"), "{said}");
        // Records are not searched in namespaces of others.
        let file = fleet.environment_file();
        let state = "state: {kind: ConfigMap, namespace: loop-live-others}\n";
        let moved = fleet.read(&file) + state;
        fleet.write(VALUE, &config_map("web", "second"));
        hosted.proposes(8, &file, &moved, Pull::default());
        running.happened("pull_request");
        hosted.until_says(8, "state is kept in namespace");
    });
    let asked = events.to_string();
    assert!(!asked.contains("loop-live-others"), "{asked}");
    running.stopped();
}
