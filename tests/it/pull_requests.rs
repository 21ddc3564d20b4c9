//! Pull requests in the controller, with a git server and a forge but no cluster.

use std::fmt::Write as _;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use hmac::{Hmac, KeyInit as _, Mac as _};
use pleach_formats::file::ForgeKind;
use pleach_testkit::forge::{ACCOUNT, FakeForge, Pull, TOKEN};
use pleach_testkit::git_server::GitServer;
use pleach_testkit::repository::{TestRepo, noise};
use rstest::rstest;
use sha2::Sha256;
use tempfile::TempDir;

const SECRET: &str = "tell nobody";
/// Time-out of all waits.
const PATIENCE: Duration = Duration::from_mins(3);

const REPOSITORY: &str = "apiVersion: pleach.dev/v1alpha1\nkind: Repository\nid: fleet\n";
const BUNDLE: &str = "apiVersion: pleach.dev/v1alpha1\nkind: Bundle\n";
const ENVIRONMENT: &str = "apiVersion: pleach.dev/v1alpha1\nkind: Environment\nreleases:\n  - {name: web, bundle: web, namespace: web}\n";

fn config_map(value: &str) -> String {
    format!("apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: web}}\ndata: {{k: {value}}}\n")
}

/// Repository on a forge.
struct Hosted {
    kind: ForgeKind,
    repo: TestRepo,
    root: TempDir,
    git: GitServer,
    forge: FakeForge,
}

impl Hosted {
    fn new(kind: ForgeKind) -> Self {
        let repo = TestRepo::new([
            ("pleach.yaml", REPOSITORY),
            ("environments/staging.yaml", ENVIRONMENT),
            ("environments/other.yaml", ENVIRONMENT),
            ("manifests/web/bundle.yaml", BUNDLE),
            ("manifests/web/web.yaml", &config_map("first")),
        ])
        .unwrap();
        repo.commit("start").unwrap();
        let root = tempfile::tempdir().unwrap();
        let bare = root.path().join("example/fleet.git");
        let bare = bare.to_str().unwrap();
        repo.git(&["clone", "--quiet", "--bare", ".", bare])
            .unwrap();
        repo.git(&["remote", "add", "origin", bare]).unwrap();
        let git = GitServer::start(root.path()).unwrap();
        let forge = FakeForge::start(kind).unwrap();
        Self {
            kind,
            repo,
            root,
            git,
            forge,
        }
    }

    /// Pushes a change to a pull request.
    fn push(&self, number: u64, path: &str, text: &str) -> String {
        self.repo.write(path, text).unwrap();
        let head = self.repo.commit("change").unwrap();
        let reference = match self.kind {
            ForgeKind::Gitlab => format!("refs/merge-requests/{number}/head"),
            _ => format!("refs/pull/{number}/head"),
        };
        let refspec = format!("+HEAD:{reference}");
        self.repo
            .git(&["push", "--quiet", "origin", &refspec])
            .unwrap();
        head
    }

    /// Opens a pull request on the forge.
    fn open(&self, number: u64, head: &str, base_branch: &str) {
        let pull = Pull {
            head: head.to_owned(),
            base_branch: base_branch.to_owned(),
            ..Pull::default()
        };
        self.forge.put(number, pull);
    }

    /// Runs the controller.
    fn runs(&self) -> Loop {
        self.runs_with("previews: true")
    }

    /// Runs the controller with other lines for the forge.
    fn runs_with(&self, lines: &str) -> Loop {
        self.runs_within(lines, "{}")
    }

    /// Runs the controller with disk limits.
    fn runs_within(&self, lines: &str, disk: &str) -> Loop {
        let folder = self.root.path();
        let write = |name: &str, text: &str| {
            let path = folder.join(name);
            std::fs::write(&path, text).unwrap();
            path.display().to_string()
        };
        let kind = match self.kind {
            ForgeKind::Github => "github",
            ForgeKind::Gitlab => "gitlab",
            ForgeKind::Gitea => "gitea",
        };
        let (token, secret) = (write("token", TOKEN), write("secret", SECRET));
        let text = format!(
            "apiVersion: pleach.dev/v1alpha1\nkind: Controller\nlisten: 127.0.0.1:0\ndisk: {disk}\nrepositories:\n  - name: fleet\n    url: {}\n    forge: {{kind: {kind}, url: \"{}\", tokenFile: {token}, webhookSecretFile: {secret}, {lines}}}\n    environments:\n      - match: env/*\n        cluster: {{id: c, kubeconfigFile: /nowhere}}\n        allow: all\n",
            self.git.url("example/fleet.git"),
            self.forge.api(),
        );
        Loop::start(&write("loop.yaml", &text), folder)
    }

    /// Returns the states of a commit in order.
    fn states(&self, commit: &str) -> Vec<String> {
        let said = self.forge.statuses(commit);
        said.into_iter()
            .map(|(context, state, description)| format!("{context} {state} {description}"))
            .collect()
    }

    /// Waits until a commit has a state.
    #[track_caller]
    fn until_state(&self, commit: &str, wanted: &str) {
        let is_there = || {
            self.states(commit)
                .iter()
                .any(|state| state.contains(wanted))
        };
        until(wanted, is_there, || {
            format!("{:?}\n{:?}", self.states(commit), self.forge.asked())
        });
    }
}

#[track_caller]
fn until(what: &str, is_so: impl Fn() -> bool, shown: impl Fn() -> String) {
    let started = Instant::now();
    while !is_so() {
        assert!(started.elapsed() < PATIENCE, "{what}: {}", shown());
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Running controller.
struct Loop {
    child: Child,
    hooks: String,
}

impl Loop {
    fn start(config: &str, folder: &Path) -> Self {
        let log = std::fs::File::create(folder.join("log")).unwrap();
        let temporary = folder.join("tmp");
        std::fs::create_dir_all(&temporary).unwrap();
        let mut child = Command::new(env!("CARGO_BIN_EXE_pleach"))
            .env_clear()
            .env("HOME", folder)
            .env("TMPDIR", temporary)
            .args(["-v", "run", "--config", config])
            .stdout(Stdio::piped())
            .stderr(log)
            .spawn()
            .unwrap();
        let mut line = String::new();
        let out = child.stdout.as_mut().unwrap();
        BufReader::new(out).read_line(&mut line).unwrap();
        let hooks = line.trim().strip_prefix("webhooks: http://").unwrap();
        Self {
            hooks: hooks.to_owned(),
            child,
        }
    }

    /// Sends a pull request webhook.
    fn happened(&self, kind: ForgeKind) {
        self.hook(kind, ["pull_request", "Merge Request Hook"]);
    }

    /// Sends a push webhook.
    fn pushed(&self, kind: ForgeKind) {
        self.hook(kind, ["push", "Push Hook"]);
    }

    fn hook(&self, kind: ForgeKind, [event, on_gitlab]: [&str; 2]) {
        let body = b"{}";
        let mut mac = Hmac::<Sha256>::new_from_slice(SECRET.as_bytes()).unwrap();
        mac.update(body);
        let mut hex = String::new();
        for byte in mac.finalize().into_bytes() {
            write!(hex, "{byte:02x}").unwrap();
        }
        let (path, headers) = match kind {
            ForgeKind::Github => (
                "github",
                format!("x-github-event: {event}\r\nx-hub-signature-256: sha256={hex}"),
            ),
            ForgeKind::Gitlab => (
                "gitlab",
                format!("x-gitlab-event: {on_gitlab}\r\nx-gitlab-token: {SECRET}"),
            ),
            ForgeKind::Gitea => (
                "gitea",
                format!("x-gitea-event: {event}\r\nx-gitea-signature: {hex}"),
            ),
        };
        let mut stream = TcpStream::connect(&self.hooks).unwrap();
        let request = format!(
            "POST /hooks/{path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: 2\r\n{headers}\r\n\r\n{{}}"
        );
        stream.write_all(request.as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        assert!(answer.starts_with("HTTP/1.1 202"), "{answer}");
    }

    /// Stops the controller with SIGTERM, as Kubernetes does.
    fn stop(mut self) {
        let id = self.child.id().to_string();
        let sent = Command::new("kill").args(["-TERM", &id]).status().unwrap();
        assert!(sent.success());
        let status = self.child.wait().unwrap();
        assert!(status.success(), "{status}");
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        // The process could have ended.
        let _killed = self.child.kill();
        let _ended = self.child.wait();
    }
}

#[rstest]
fn a_pull_request_gets_one_comment_which_follows_its_commits(
    #[values(ForgeKind::Github, ForgeKind::Gitlab, ForgeKind::Gitea)] kind: ForgeKind,
) {
    let hosted = Hosted::new(kind);
    let first = hosted.push(7, "manifests/web/web.yaml", &config_map("second"));
    hosted.open(7, &first, "main");
    let running = hosted.runs();
    hosted.until_state(&first, "success");
    let states = hosted.states(&first);
    assert_eq!(states.len(), 2, "{states:?}");
    assert_eq!(states[0], "pleach/preview pending preview in progress");
    assert_eq!(states[1], "pleach/preview success 2 to update, 2 unchanged");
    let notes = hosted.forge.notes(7);
    let [(author, text)] = &notes[..] else {
        panic!("{notes:?}")
    };
    assert_eq!(*author, ACCOUNT);
    assert!(text.starts_with("<!-- pleach preview -->\n"), "{text}");
    for words in ["staging.web", "other.web", "-  k: first", "+  k: second"] {
        assert!(text.contains(words), "{words}: {text}");
    }

    // For another commit, the same comment is updated.
    let second = hosted.push(7, "manifests/web/web.yaml", &config_map("third"));
    hosted.open(7, &second, "main");
    running.happened(kind);
    hosted.until_state(&second, "success");
    let notes = hosted.forge.notes(7);
    assert_eq!(notes.len(), 1, "{notes:?}");
    assert!(notes[0].1.contains("+  k: third"), "{}", notes[0].1);

    // A restart finds earlier results and does not publish them again.
    running.stop();
    let asked = hosted.forge.asked().len();
    let running = hosted.runs();
    let third = hosted.push(8, "manifests/web/web.yaml", "kind: [\n");
    hosted.open(8, &third, "main");
    running.happened(kind);
    hosted.until_state(&third, "cannot be rendered");
    let later = hosted.forge.asked().split_off(asked);
    assert!(
        !later
            .iter()
            .any(|one| one.contains(&second) && one.starts_with("POST")),
        "{later:#?}"
    );
    assert_eq!(hosted.states(&second).len(), 2);
    // A change that cannot be rendered is reported with its location.
    let notes = hosted.forge.notes(8);
    assert!(
        notes[0].1.contains("manifests/web/web.yaml:1"),
        "{}",
        notes[0].1
    );
    assert_eq!(hosted.forge.wrong(), [""; 0]);
    running.stop();
}

#[test]
fn the_branch_decides_which_environments_are_looked_at() {
    let hosted = Hosted::new(ForgeKind::Gitea);
    hosted
        .repo
        .git(&["push", "--quiet", "origin", "HEAD:refs/heads/env/staging"])
        .unwrap();
    let head = hosted.push(3, "manifests/web/web.yaml", &config_map("second"));
    hosted.open(3, &head, "env/staging");
    let running = hosted.runs();
    hosted.until_state(&head, "success");
    let text = hosted.forge.notes(3)[0].1.clone();
    assert!(
        text.starts_with("<!-- pleach preview staging -->\n"),
        "{text}"
    );
    assert!(
        text.contains("staging.web") && !text.contains("other.web"),
        "{text}"
    );
    running.stop();
}

#[test]
fn a_cluster_that_does_not_answer_is_asked_again_and_again() {
    let hosted = Hosted::new(ForgeKind::Gitea);
    hosted
        .repo
        .git(&["push", "--quiet", "origin", "HEAD:refs/heads/env/staging"])
        .unwrap();
    let head = hosted.push(3, "manifests/web/web.yaml", &config_map("second"));
    hosted.open(3, &head, "env/staging");
    let looks = || {
        let asked = hosted.forge.asked();
        let comments = asked.iter().filter(|one| one.starts_with("GET"));
        comments
            .filter(|one| one.contains("/issues/3/comments"))
            .count()
    };
    // The controller has no kubeconfig.
    let running = hosted.runs_with("previews: true, live: true");
    hosted.until_state(&head, "success");
    let said = hosted.forge.notes(3);
    assert_eq!(said.len(), 1, "{said:?}");
    // Each attempt reads the comment, and once more to update it.
    until("another try", || looks() >= 4, || format!("{said:?}"));
    running.stop();
    let before = looks();
    // It does not count as published after a restart either.
    let running = hosted.runs_with("previews: true, live: true");
    until("a try", || looks() >= before + 2, || format!("{said:?}"));
    running.stop();
    // Without a new result, nothing was published.
    assert_eq!(hosted.forge.notes(3), said);
    assert_eq!(hosted.states(&head).len(), 2, "{:?}", hosted.states(&head));
    assert_eq!(hosted.forge.wrong(), [""; 0]);
}

#[rstest]
fn consent_is_for_one_commit(
    #[values(ForgeKind::Github, ForgeKind::Gitlab, ForgeKind::Gitea)] kind: ForgeKind,
) {
    const STRANGER: u64 = 9;
    const MEMBER: u64 = 5;
    let hosted = Hosted::new(kind);
    hosted.forge.admit(MEMBER);
    hosted
        .repo
        .git(&["push", "--quiet", "origin", "HEAD:refs/heads/env/staging"])
        .unwrap();
    let open = |head: &str, labels: &[&str]| {
        let pull = Pull {
            head: head.to_owned(),
            base_branch: "env/staging".to_owned(),
            is_fork: true,
            labels: labels.iter().map(|label| (*label).to_owned()).collect(),
            ..Pull::default()
        };
        hosted.forge.put(7, pull);
    };
    let said = || hosted.forge.notes(7).into_iter().map(|(_, text)| text);
    let ours = || said().find(|text| text.starts_with("<!-- pleach"));
    let asks_for = |commit: &str| {
        ours().is_some_and(|text| {
            text.contains("Not compared with the cluster")
                && text.contains(&format!("`pleach preview {commit}`"))
        })
    };
    let until_asks_for = |commit: &str| {
        until(
            "a word on consent",
            || asks_for(commit),
            || format!("{:#?}", hosted.forge.notes(7)),
        );
    };
    // Without a kubeconfig, the cluster is requested but does not answer.
    let until_asked = |value: &str| {
        let is_so = || {
            ours().is_some_and(|text| {
                text.contains(&format!("+  k: {value}")) && !text.contains("Not compared")
            })
        };
        until("a comparison", is_so, || {
            format!("{:#?}", hosted.forge.notes(7))
        });
    };
    let first = hosted.push(7, "manifests/web/web.yaml", &config_map("second"));
    // The label without a commit is ignored.
    open(&first, &["ask"]);
    let running = hosted.runs_with("previews: true, live: true, forkLabel: ask");
    until_asks_for(&first);

    // A comment of a non-member is ignored too.
    let looks = || {
        let asked = hosted.forge.asked();
        asked
            .iter()
            .filter(|one| one.ends_with("user-9/permission") || one.ends_with("members/all/9"))
            .count()
    };
    hosted.forge.review(7, STRANGER, &first, "APPROVED");
    hosted
        .forge
        .note(7, STRANGER, &format!("pleach preview {first}"));
    running.happened(kind);
    until(
        "a look at the stranger",
        || looks() > 1,
        || format!("{:#?}", hosted.forge.asked()),
    );

    // The head has changed when a member consents to the first commit.
    let second = hosted.push(7, "manifests/web/web.yaml", &config_map("third"));
    open(&second, &["ask"]);
    hosted.forge.review(7, MEMBER, &first, "APPROVED");
    hosted
        .forge
        .note(7, MEMBER, &format!("pleach preview {first}"));
    running.happened(kind);
    until_asks_for(&second);
    assert!(asks_for(&second));
    // The member consents to this commit, in the way of the forge.
    match kind {
        ForgeKind::Gitlab => hosted
            .forge
            .note(7, MEMBER, &format!("pleach preview {second}")),
        _ => hosted.forge.review(7, MEMBER, &second, "APPROVED"),
    }
    running.happened(kind);
    until_asked("third");

    // The consent ends with the next commit, for which a label can consent.
    let third = hosted.push(7, "manifests/web/web.yaml", &config_map("fourth"));
    open(&third, &["ask", &format!("ask {second}")]);
    running.happened(kind);
    until_asks_for(&third);
    open(&third, &[&format!("ask {}", &third[..32])]);
    running.happened(kind);
    until_asked("fourth");
    running.stop();
    assert_eq!(hosted.forge.wrong(), [""; 0]);
}

#[test]
fn what_is_not_in_git_yet_is_waited_for_and_what_is_closed_is_not() {
    let hosted = Hosted::new(ForgeKind::Github);
    let first = hosted.push(7, "manifests/web/web.yaml", &config_map("second"));
    // The forge is ahead of git.
    hosted
        .repo
        .write("manifests/web/web.yaml", config_map("third"))
        .unwrap();
    let second = hosted.repo.commit("change").unwrap();
    hosted.open(7, &second, "main");
    hosted.open(9, &"0".repeat(40), "main");
    let running = hosted.runs();
    hosted.until_state(&second, "pending");
    let pull = Pull {
        is_closed: true,
        ..Pull::default()
    };
    hosted.forge.put(9, pull);
    hosted
        .repo
        .git(&["push", "--quiet", "origin", "+HEAD:refs/pull/7/head"])
        .unwrap();
    hosted.until_state(&second, "success");
    assert_eq!(hosted.states(&first), [""; 0]);
    assert!(hosted.forge.notes(9).is_empty());
    running.stop();
}

#[test]
fn a_forge_in_trouble_is_asked_again() {
    let hosted = Hosted::new(ForgeKind::Gitea);
    let head = hosted.push(7, "manifests/web/web.yaml", &config_map("second"));
    hosted.open(7, &head, "main");
    for _ in 0..3 {
        hosted.forge.fail(502, &[], "<html>Bad gateway</html>");
    }
    let running = hosted.runs();
    hosted.until_state(&head, "success");
    running.stop();
    let log = std::fs::read_to_string(hosted.root.path().join("log")).unwrap();
    assert!(log.contains("forge unreachable"), "{log}");
    assert!(!log.contains(TOKEN), "{log}");
    // Without a terminal, each log line is a JSON object.
    for line in log.lines() {
        assert!(line.starts_with('{') && line.ends_with('}'), "{line}");
    }
}

#[rstest]
fn a_bad_commit_is_told_on_the_commit_and_the_next_good_one_too(
    #[values(ForgeKind::Github, ForgeKind::Gitlab, ForgeKind::Gitea)] kind: ForgeKind,
) {
    let hosted = Hosted::new(kind);
    let push = |text: &str| {
        hosted.repo.write("manifests/web/web.yaml", text).unwrap();
        let head = hosted.repo.commit("change").unwrap();
        let refspec = "+HEAD:refs/heads/env/staging";
        hosted
            .repo
            .git(&["push", "--quiet", "origin", refspec])
            .unwrap();
        head
    };
    let first = push(&config_map("second"));
    let running = hosted.runs();
    hosted.until_state(&first, "pending");
    let bad = push("kind: [\n");
    running.pushed(kind);
    hosted.until_state(&bad, "fail");
    let said = hosted.states(&bad);
    assert_eq!(said.len(), 1, "{said:?}");
    assert!(said[0].starts_with("pleach/staging fail"), "{said:?}");
    assert!(said[0].contains("manifests/web/web.yaml:1"), "{said:?}");
    // The previous commit is superseded.
    hosted.until_state(&first, "superseded by");
    let good = push(&config_map("third"));
    running.pushed(kind);
    hosted.until_state(&good, "pleach/staging pending 0 of 1 releases in sync");
    // Repeated events have no further effect, also after a restart.
    running.pushed(kind);
    running.stop();
    let asked = hosted.forge.asked().len();
    let running = hosted.runs();
    until(
        "the state is asked for",
        || {
            let asked = hosted.forge.asked().split_off(asked);
            asked
                .iter()
                .any(|one| one.contains(&good) && one.starts_with("GET"))
        },
        || format!("{:?}", hosted.forge.asked()),
    );
    running.stop();
    assert_eq!(hosted.states(&good).len(), 1);
    assert_eq!(hosted.states(&bad).len(), 1);
    assert_eq!(hosted.forge.wrong(), [""; 0]);
}

#[test]
fn a_hostile_change_is_told_and_delays_nobody() {
    let hosted = Hosted::new(ForgeKind::Gitea);
    let endless =
        "{% for a in range(90000) %}{% for b in range(90000) %}x{% endfor %}{% endfor %}\n";
    let hostile = hosted.push(7, "manifests/web/endless.yaml.j2", endless);
    hosted
        .repo
        .git(&["reset", "--quiet", "--hard", "HEAD~1"])
        .unwrap();
    let fine = hosted.push(8, "manifests/web/web.yaml", &config_map("second"));
    let staging = "origin/main:refs/heads/env/staging";
    hosted.repo.git(&["fetch", "--quiet", "origin"]).unwrap();
    hosted
        .repo
        .git(&["push", "--quiet", "origin", staging])
        .unwrap();
    hosted.open(7, &hostile, "env/staging");
    hosted.open(8, &fine, "env/staging");
    let running = hosted.runs();
    hosted.until_state(&fine, "success");
    hosted.until_state(&hostile, "pleach/preview failure cannot be rendered");
    let text = hosted.forge.notes(7)[0].1.clone();
    assert!(text.contains("endless.yaml.j2"), "{text}");
    running.stop();
}

/// Returns the peak memory of a process in MiB.
fn peak(child: &Child) -> usize {
    let status = std::fs::read_to_string(format!("/proc/{}/status", child.id())).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kilobytes = line.unwrap().trim().strip_suffix("kB").unwrap().trim();
    kilobytes.parse::<usize>().unwrap() / 1024
}

#[test]
fn a_change_that_unpacks_to_much_takes_no_memory_of_the_loop() {
    const LARGE: usize = 200 << 20;
    let hosted = Hosted::new(ForgeKind::Github);
    let running = hosted.runs();
    // git stores one as a delta of the other: a few hundred kilobytes for both.
    let zeros = "0".repeat(LARGE);
    hosted.repo.write("large", &zeros).unwrap();
    hosted.repo.write("larger", &(zeros + "1")).unwrap();
    let head = hosted.push(9, "manifests/web/web.yaml", &config_map("second"));
    hosted.open(9, &head, "main");
    running.happened(ForgeKind::Github);
    hosted.until_state(&head, "success");
    let peak = peak(&running.child);
    assert!(peak < LARGE >> 20, "{peak} MiB");
    running.stop();
}

#[test]
fn heads_beyond_the_budget_are_fetched_once_and_named() {
    const DISK: &str = "{budget: 8Mi, forkHead: 1Mi}";
    let hosted = Hosted::new(ForgeKind::Github);
    let open = |number: u64, head: &str, is_fork: bool| {
        let pull = Pull {
            head: head.to_owned(),
            base_branch: "main".to_owned(),
            is_fork,
            ..Pull::default()
        };
        hosted.forge.put(number, pull);
    };
    let large = |number: u64, bytes: usize| {
        let head = hosted.push(number, "noise", &noise(number, bytes));
        let reset = ["reset", "--quiet", "--hard", "HEAD~1"];
        hosted.repo.git(&reset).unwrap();
        open(number, &head, number != 4);
        head
    };
    // Three forks exceed the limit of a commit, and a branch exceeds the budget.
    let size_of_a_fork = "it is larger than 1 MiB";
    let heads = [
        (1, large(1, 4 << 20), size_of_a_fork),
        (2, large(2, 4 << 20), size_of_a_fork),
        (3, large(3, 4 << 20), size_of_a_fork),
        (
            4,
            large(4, 24 << 20),
            "the remainder of the controller's disk budget",
        ),
    ];
    let running = hosted.runs_within("previews: true", DISK);
    for (number, head, why) in &heads {
        hosted.until_state(head, "error");
        let states = hosted.states(head);
        assert_eq!(states.len(), 2, "{states:?}");
        assert!(states[1].contains("pleach/preview error"), "{states:?}");
        let notes = hosted.forge.notes(*number);
        assert_eq!(notes.len(), 1, "{notes:?}");
        assert!(notes[0].1.contains(why), "{}", notes[0].1);
    }
    let fine = hosted.push(5, "manifests/web/web.yaml", &config_map("second"));
    open(5, &fine, true);
    running.happened(ForgeKind::Github);
    hosted.until_state(&fine, "success");
    running.stop();
    let log = std::fs::read_to_string(hosted.root.path().join("log")).unwrap();
    for (_, head, _) in &heads {
        let lines = log.lines().filter(|line| line.contains(&**head));
        assert_eq!(lines.count(), 1, "{head}: {log}");
    }
    // Nothing of them remains on disk.
    let folder = hosted.root.path().join("tmp");
    let size = Command::new("du").arg("-sk").arg(folder).output();
    let size = String::from_utf8(size.unwrap().stdout).unwrap();
    let kibibytes = size.split_whitespace().next().unwrap();
    assert!(kibibytes.parse::<u32>().unwrap() < 1024, "{size}");
    // Another pull request has one of the commits. No comment mentions its size yet, and the
    // controller was restarted.
    let downloads = || {
        let requests = hosted.git.requests();
        let posts = requests.iter().filter(|one| one.starts_with("POST"));
        posts.count()
    };
    let before = downloads();
    for (number, head, _) in &heads {
        open(number + 10, head, *number != 4);
    }
    let running = hosted.runs_within("previews: true", DISK);
    for (number, _, why) in &heads {
        let notes = || hosted.forge.notes(number + 10);
        until("the comment", || !notes().is_empty(), || (*why).to_owned());
        assert!(notes()[0].1.contains(why), "{}", notes()[0].1);
    }
    assert_eq!(downloads(), before);
    // A higher limit applies.
    running.stop();
    let running = hosted.runs_within("previews: true", "{forkHead: 10Mi}");
    let refspec = format!("{}:refs/pull/21/head", heads[0].1);
    hosted
        .repo
        .git(&["push", "-q", "origin", &refspec])
        .unwrap();
    open(21, &heads[0].1, true);
    running.happened(ForgeKind::Github);
    let notes = || hosted.forge.notes(21);
    until("the comment", || !notes().is_empty(), || "none".to_owned());
    assert!(!notes()[0].1.contains("no preview"), "{}", notes()[0].1);
    running.stop();
    assert_eq!(hosted.forge.wrong(), [""; 0]);
}
