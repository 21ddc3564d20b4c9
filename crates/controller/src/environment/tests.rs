//! Handling of commits that cannot be loaded, and of environments without a commit.

use std::process::Command;

use jiff::SignedDuration;
use pleach_formats::sync::Minimum;
use pleach_model::tree::MemoryTree;
use pleach_reconciler::config::{Branches, Reserved};
use pleach_state::inventory::HEARTBEAT;
use tokio_util::sync::CancellationToken;

use super::*;
use crate::clock::Clock;
use crate::crash::Crashes;
use crate::held::tests::load;
use crate::{
    Fetching, Listener, concurrency::ReconcilePermits, drift::Watches, read::Reading, self_update,
};
use pleach_cluster::Connection;
use pleach_engine::{bounded_render::RenderSlots, fetching::Fetcher, lease::Peers, sync::Claim};
use pleach_git::Revision;
use pleach_git::{
    budget::Budget,
    mirror::{Fetched, Mirror},
    remote::{Auth, Remote},
};
use pleach_testkit::program::script;
use tempfile::TempDir;

fn shared() -> Shared {
    let (listener, _) = Listener::new();
    let (watches, _) = Watches::new(false);
    Shared {
        listener: listener.clone(),
        clock: Clock::start(),
        claim: Claim {
            who: "test".to_owned(),
            patience: Duration::ZERO,
            peers: Peers::default(),
            local: None,
        },
        watches,
        last: self_update::Last::of(None),
        sights: ReconcilePermits::new(listener),
        histories: Arc::new(tokio::sync::Semaphore::new(1)),
        reading: Reading {
            slots: RenderSlots::by("/bin/true".into(), 1),
            stop: CancellationToken::new(),
        },
        fetching: Fetching {
            fetcher: Fetcher::by("/bin/true".into()),
            budget: Budget::of(1 << 30),
        },
        // No crash is recorded.
        crashes: Crashes::of("/nonexistent".into()),
        stop: CancellationToken::new(),
    }
}

/// Builds the assignment of a commit of environment web.
fn assigned(remote: &Remote, fetched: &Fetched, commit: &str) -> Assigned {
    let grant = SourcePolicy {
        url: remote.url.clone(),
        branches: Branches::One {
            environment: "web".to_owned(),
            branch: "env/web".to_owned(),
        },
        cluster: None,
        fallback: None,
        connection: Connection::new("pleach/0.0.0"),
        allow: None,
        minimum: Minimum::default(),
        reserved: Reserved::default(),
        forge: None,
    };
    Assigned {
        repository: "fleet".to_owned(),
        remote: remote.clone(),
        grant: Arc::new(grant),
        by: "env/web of fleet".to_owned(),
        what: Assignment::Follow {
            commit: commit.to_owned(),
            reader: fetched.reader.clone(),
        },
        source: None,
        answered: 0,
        is_over: false,
    }
}

/// Creates a repository with one commit of environment web, and fetches it.
fn fetched() -> (TempDir, Remote, Fetched) {
    let folder = tempfile::tempdir().unwrap();
    let git = |args: &[&str]| {
        let mut command = Command::new("git");
        command.arg("-C").arg(folder.path()).args(args);
        assert!(command.status().unwrap().success());
    };
    git(&["init", "--quiet", "--initial-branch=env/web"]);
    git(&["config", "user.name", "Ann"]);
    git(&["config", "user.email", "ann@example.org"]);
    git(&["config", "commit.gpgsign", "false"]);
    git(&["commit", "--quiet", "--allow-empty", "--message=start"]);
    let remote = Remote {
        url: folder.path().display().to_string(),
        auth: Auth::Anonymous,
        keys: None,
    };
    let fetched = Mirror::new(remote.clone()).fetch(|_| true).unwrap();
    (folder, remote, fetched)
}

fn environment(assigned: &Assigned) -> Environment {
    let key = ClaimKey {
        environment: "web".to_owned(),
        cluster: None,
    };
    let (_, receiver) = watch::channel(assigned.clone());
    Environment::new(key, receiver, Paces::default(), shared())
}

#[tokio::test]
async fn what_is_not_synced_any_more_asks_for_nothing() {
    let (_folder, remote, fetched) = fetched();
    let good = assigned(&remote, &fetched, &fetched.heads["env/web"]);
    let mut environment = environment(&good);
    let paces = environment.paces.clone();
    paces.set(&environment.key, Duration::from_secs(1));
    assert_eq!(paces.shortest(), Some(Duration::from_secs(1)));
    // The same happens after the deletion of its branch.
    environment.settle(&good).await.unwrap();
    assert_eq!(paces.shortest(), None);
}

#[tokio::test(start_paused = true)]
async fn a_report_about_releases_without_a_task_is_renewed_at_the_heartbeat() {
    let (_folder, remote, fetched) = fetched();
    let good = assigned(&remote, &fetched, &fetched.heads["env/web"]);
    let mut environment = environment(&good);
    let report = || {
        vec![Untasked::one(
            "db",
            Environment::conditions(&good, None),
            None,
        )]
    };
    assert!(!environment.is_reported(&report()));
    assert_eq!(environment.renewal(), None);
    (environment.told, environment.renewed) = (Some(report()), Instant::now());
    assert!(environment.is_reported(&report()));
    assert!(!environment.is_reported(&[]));
    assert_eq!(environment.renewal(), Some(HEARTBEAT));
    tokio::time::advance(HEARTBEAT).await;
    assert!(!environment.is_reported(&report()));
    assert_eq!(environment.renewal(), Some(Duration::ZERO));
}

/// Creates an environment that is rendered by a shell script.
fn tried_by(assigned: &Assigned, script: &str) -> (TempDir, Environment) {
    let (folder, program) = pleach_testkit::program::script(script).unwrap();
    let mut environment = environment(assigned);
    environment.shared.reading.slots = RenderSlots::by(program, 1);
    (folder, environment)
}

#[tokio::test]
async fn what_cannot_be_tried_now_is_tried_again_and_told_when_it_stays_so() {
    let (_folder, remote, fetched) = fetched();
    let good = assigned(&remote, &fetched, &fetched.heads["env/web"]);
    let (_program, mut environment) = tried_by(&good, "exit 1");
    let reason = |environment: &Environment| {
        let hold = environment.hold.as_ref();
        hold.map(|hold| hold.reason.clone())
    };
    for told in [None, Some("Unread"), Some("Unread")] {
        assert!(!environment.read(&good).await);
        assert_eq!(
            (reason(&environment).as_deref(), environment.tried.as_ref()),
            (told, None)
        );
    }
}

#[tokio::test]
async fn what_takes_too_much_is_held_and_tried_again_much_later() {
    let (_folder, remote, fetched) = fetched();
    let head = &fetched.heads["env/web"];
    let good = assigned(&remote, &fetched, head);
    let (folder, mut environment) = tried_by(&good, "echo x >> $0.log; kill -ABRT $$");
    let log = folder.path().join("program.log");
    let tries = || pleach_files::read(&log).unwrap().len() / 2;
    for _ in 0..2 {
        assert!(environment.read(&good).await);
        let hold = environment.hold.as_ref().unwrap();
        assert_eq!(hold.reason, "InvalidRepository");
        assert!(
            hold.message.contains("the memory or time limit"),
            "{}",
            hold.message
        );
        assert_eq!(tries(), 1);
    }
    environment.beyond = environment
        .beyond
        .map(|since| since.checked_sub(AGAIN).unwrap());
    assert!(environment.read(&good).await);
    assert_eq!(tries(), 2);
}

#[tokio::test]
async fn a_commit_at_which_the_controller_crashed_waits_and_no_other_commit_does() {
    let (_folder, remote, fetched) = fetched();
    let head = &fetched.heads["env/web"];
    let good = assigned(&remote, &fetched, head);
    let (program, mut environment) = tried_by(&good, "echo x >> $0.log; exit 1");
    let tries =
        || pleach_files::read(&program.path().join("program.log")).map_or(0, |log| log.len() / 2);
    let key = environment.key.clone();
    let records = program.path().to_owned();
    let of = |url: &str| Attempt::of(&Crashes::of(records.clone()), url, &key);
    let start = || of(&remote.url);
    start().begin(head, None).await;
    environment.attempt = start();
    for _ in 0..2 {
        assert!(environment.read(&good).await);
        let hold = environment.hold.as_ref().unwrap();
        assert_eq!(hold.reason, "ControllerCrashed");
        assert_eq!(hold.revision.as_ref(), Some(head));
        assert!(hold.message.contains(&head[..7]), "{}", hold.message);
        assert_eq!((environment.tried.as_ref(), tries()), (None, 0));
    }
    // The environment is reconciled again at the end of the backoff.
    assert!(environment.attempt.left().is_some());
    let other = "01".repeat(20);
    assert_eq!(environment.attempt.hold(&other), None);
    // An attempt that failed without a crash leaves no crash record.
    environment.attempt = of("another");
    assert!(!environment.read(&good).await);
    assert_eq!(tries(), 1);
    assert_eq!(of("another").hold(head), None);
}

#[tokio::test]
async fn a_canceled_task_leaves_no_crash_record() {
    let (_folder, remote, fetched) = fetched();
    let good = assigned(&remote, &fetched, &fetched.heads["env/web"]);
    let (_program, mut environment) = tried_by(&good, "exec /bin/sleep 1000");
    let folder = tempfile::tempdir().unwrap();
    let crashes = Crashes::of(folder.path().to_owned());
    environment.attempt = Attempt::of(&crashes, &remote.url, &environment.key);
    let records = || pleach_files::names(folder.path()).unwrap().len();
    let recorded = async {
        while records() == 0 {
            tokio::task::yield_now().await;
        }
    };
    let running = Box::pin(environment.run());
    let local = tokio::task::LocalSet::new();
    let canceling = async {
        tokio::select! {
            () = running => panic!("it ended"),
            () = recorded => {}
        }
    };
    local.run_until(canceling).await;
    assert_eq!(records(), 0);
}

#[tokio::test]
async fn a_commit_that_is_not_at_hand_is_read_again() {
    let (_folder, remote, fetched) = fetched();
    let head = &fetched.heads["env/web"];
    let good = assigned(&remote, &fetched, head);
    let mut environment = environment(&good);
    // The commit contains no environments, so each load fails.
    assert!(environment.read(&good).await);
    assert_eq!(environment.tried.as_ref(), Some(head));
    let other = assigned(&remote, &fetched, &"01".repeat(20));
    assert!(!environment.read(&other).await);
    assert!(!environment.read(&other).await);
    assert_eq!(environment.tried, None);
    let hold = environment.hold.map(|hold| hold.reason);
    assert_eq!(hold.as_deref(), Some("InvalidRepository"));
}

#[tokio::test]
async fn what_git_has_no_more_takes_no_task() {
    let (_folder, remote, fetched) = fetched();
    let mut over = assigned(&remote, &fetched, &fetched.heads["env/web"]);
    over.what = Assignment::Unknown;
    over.is_over = true;
    let (sender, receiver) = watch::channel(over);
    let key = ClaimKey {
        environment: "web".to_owned(),
        cluster: None,
    };
    let environment = Environment::new(key, receiver, Paces::default(), shared());
    let local = tokio::task::LocalSet::new();
    let running = Box::pin(local.run_until(environment.run()));
    let ended = tokio::time::timeout(Duration::from_secs(10), running).await;
    assert!(ended.is_ok());
    drop(sender);
}

#[tokio::test]
async fn a_silent_remote_holds_up_nobody_else() {
    let (_folder, remote, fetched) = fetched();
    let head = fetched.heads["env/web"].clone();
    // It accepts connections and never answers.
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let silent = Remote {
        url: format!("http://{}/fleet.git", listener.local_addr().unwrap()),
        auth: Auth::Anonymous,
        keys: None,
    };
    // Replaces `pleach worker fetch`.
    let (_program, program) = script(
        r#"order=$(cat)
field() { printf %s "$order" | sed "s/.*\"$1\":\"\([^\"]*\)\".*/\1/"; }
case $order in *http://*) exec sleep 1000 ;; esac
git --git-dir "$(field folder)" fetch --quiet "$(field from)" +refs/heads/env/web:refs/pleach/former
echo '{"Ok":{"branches":{},"defaultBranch":null}}'"#,
    )
    .unwrap();
    // Clones share the single history permit.
    let mut shared = shared();
    shared.fetching.fetcher = Fetcher::by(program);
    let recollect = |remote: &Remote, limit| {
        let (sender, assigned) = watch::channel(assigned(remote, &fetched, &head));
        let (questions, asked) = mpsc::unbounded_channel();
        let attempt = environment(&assigned.borrow()).attempt;
        let recollection = Recollection {
            environment: "web".to_owned(),
            assigned,
            questions: asked,
            shared: shared.clone(),
            attempt,
            limit,
        };
        let (answer, answered) = oneshot::channel();
        let question = Question {
            commits: [head.clone()].into(),
            release: None,
            answer,
        };
        questions.send(question).unwrap();
        let keep = (sender, questions);
        (recollection.run(), answered, keep)
    };
    let (hangs, unanswered, _keep) = recollect(&silent, Duration::from_millis(100));
    let (works, answered, _kept) = recollect(&remote, Duration::from_mins(1));
    let (other, too, _kept) = recollect(&remote, Duration::from_mins(1));
    let answers = async {
        // The first lookup has the permit by now, and returns it on its time-out.
        assert!(unanswered.await.is_err());
        assert!(answered.await.is_ok() && too.await.is_ok());
    };
    tokio::select! {
        biased;
        () = hangs => panic!("it ended"),
        () = works => panic!("it ended"),
        () = other => panic!("it ended"),
        () = answers => {}
    }
    drop(listener);
}

/// The minimum of a grant applies to every commit of the environment.
#[test]
fn a_loaded_environment_is_under_the_minimum_of_its_grant() {
    let header = "apiVersion: pleach.dev/v1alpha1\nkind";
    let tree = MemoryTree::new([
        (
            "pleach.yaml".to_owned(),
            format!("{header}: Repository\nid: fleet\n"),
        ),
        (
            "environments/web.yaml".to_owned(),
            format!("{header}: Environment\nsync: {{interval: 1s}}\n"),
        ),
    ]);
    let loaded = load(&tree, Revision::Commit("c0".to_owned()), "web");
    let (_folder, remote, fetched) = fetched();
    let mut grant = assigned(&remote, &fetched, "c0").grant;
    Arc::get_mut(&mut grant).unwrap().minimum = Minimum {
        interval: Some(SignedDuration::from_mins(2)),
        needs_approval: true,
        ..Minimum::default()
    };
    let synced = for_cluster(loaded, &grant).unwrap().environment.sync;
    assert!(synced.needs_approval);
    assert_eq!(synced.interval, SignedDuration::from_mins(2));
}
