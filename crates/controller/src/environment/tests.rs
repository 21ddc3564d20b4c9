//! Handling of commits that cannot be loaded, and of environments without a commit.

use jiff::SignedDuration;
use pleach_formats::sync::Minimum;
use pleach_model::tree::MemoryTree;
use pleach_reconciler::Moment;
use pleach_reconciler::config::{Branches, Reserved};
use pleach_reconciler::environment::Reported;
use pleach_reconciler::stall::Stall;

use super::*;
use crate::clock::Clock;
use crate::crash::{Attempt, Crashes};
use crate::history_lookup::LookupRequest;
use crate::loader::check_cluster;
use crate::stalled_releases::tests::load;
use crate::{
    EventSender, Fetching, SourcePolicy, concurrency::ReconcilePermits, drift::Watches,
    loader::Loader, self_update,
};
use pleach_cluster::Connection;
use pleach_engine::decryption::KeySources;
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
    let (events, _) = EventSender::new();
    let (watches, _) = Watches::new(false);
    Shared {
        events: events.clone(),
        clock: Clock::start(),
        lease_identity: Claim {
            who: "test".to_owned(),
            patience: Duration::ZERO,
            peers: Peers::default(),
            local: None,
            approved_by: None,
        },
        watches,
        self_update: self_update::SelfUpdate::of(None),
        permits: ReconcilePermits::new(events),
        histories: Arc::new(tokio::sync::Semaphore::new(1)),
        loader: Loader {
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
    let source_policy = SourcePolicy {
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
        keys: KeySources::default(),
        reserved: Reserved::default(),
        forge: None,
    };
    Assigned {
        repository: "fleet".to_owned(),
        remote: remote.clone(),
        has_history: true,
        source_policy: Arc::new(source_policy),
        origin: "env/web of fleet".to_owned(),
        commit: AssignedCommit::Followed {
            commit: commit.to_owned(),
            reader: fetched.reader.clone(),
        },
        source: None,
        answered: 0,
        is_removed: false,
    }
}

/// Creates a repository with one commit of environment web, and fetches it.
fn fetched() -> (TempDir, Remote, Fetched) {
    let folder = tempfile::tempdir().unwrap();
    let git = |args: &[&str]| {
        let mut command = std::process::Command::new("git");
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

fn key() -> EnvironmentKey {
    EnvironmentKey {
        environment: "web".to_owned(),
        cluster: None,
    }
}

/// An environment whose cluster is unreachable.
struct Bench {
    /// Must outlive the task.
    sender: watch::Sender<Assigned>,
    task: EnvironmentTask,
    /// The wait for the next round.
    wait: Option<(TaskId, Task)>,
}

impl Bench {
    fn of(assigned: &Assigned, shared: Shared) -> Self {
        let (sender, receiver) = watch::channel(assigned.clone());
        Self {
            sender,
            task: EnvironmentTask::new(key(), receiver, FetchSchedule::default(), shared),
            wait: None,
        }
    }

    fn moment(&self) -> Moment {
        self.task.executor.shared.clock.moment()
    }

    /// Executes the round of an assignment. Returns the reported hold.
    async fn round(&mut self, assigned: &Assigned) -> Option<Stall> {
        let commands = match self.wait.take() {
            None => {
                let moment = self.moment();
                self.task.machine.start(moment)
            }
            Some((id, wait)) => {
                self.sender.send_replace(assigned.clone());
                self.task.follow(id, wait).await
            }
        };
        self.finish_round(commands).await
    }

    /// Executes commands and loads until the end of the round.
    async fn finish_round(&mut self, mut commands: Vec<Command>) -> Option<Stall> {
        let mut stall = None;
        let unreachable = || "no route".to_owned();
        loop {
            let (id, task) = self.task.execute(commands).unwrap();
            let answer = match task {
                Task::Load { .. } => {
                    commands = self.task.follow(id, task).await;
                    continue;
                }
                Task::Wait => {
                    self.wait = Some((id, task));
                    return stall;
                }
                Task::ReadRecords { .. } => Answer::Records(None),
                Task::Connect { .. } => Answer::Connected(Err(unreachable())),
                Task::Report { reports, .. } => {
                    stall = reports.into_iter().find_map(|report| report.stall);
                    Answer::Reported(Reported {
                        connection: None,
                        written: Vec::new(),
                        error: Some(unreachable()),
                    })
                }
                Task::Notify(_) | Task::CheckFiles => panic!("{task:?}"),
            };
            let moment = self.moment();
            commands = self.task.machine.on(Event::Answer(id, answer), moment);
        }
    }

    /// Returns the commands that are due after a time.
    fn pass(&mut self, time: Duration) -> Vec<Command> {
        let now = self.moment();
        let later = Moment {
            at: now.at + time,
            ..now
        };
        self.task.machine.on(Event::Tick, later)
    }
}

#[tokio::test]
async fn an_environment_that_is_no_longer_synced_requests_no_fetches() {
    let (_folder, remote, fetched) = fetched();
    let good = assigned(&remote, &fetched, &fetched.heads["env/web"]);
    let mut bench = Bench::of(&good, shared());
    let fetch_schedule = bench.task.executor.fetch_schedule.clone();
    fetch_schedule.set(&key(), Duration::from_secs(1));
    assert_eq!(fetch_schedule.shortest(), Some(Duration::from_secs(1)));
    // The same happens after the deletion of its branch.
    bench.task.execute(vec![Command::StopSync]);
    assert_eq!(fetch_schedule.shortest(), None);
}

/// Creates an environment that is rendered by a shell script.
fn rendered_by(script: &str) -> (TempDir, Shared) {
    let (folder, program) = pleach_testkit::program::script(script).unwrap();
    let mut shared = shared();
    shared.loader.slots = RenderSlots::by(program, 1);
    (folder, shared)
}

#[tokio::test]
async fn a_failed_load_is_retried_and_reported_if_it_fails_again() {
    let (_folder, remote, fetched) = fetched();
    let good = assigned(&remote, &fetched, &fetched.heads["env/web"]);
    let (program, shared) = rendered_by("echo x >> $0.log; exit 1");
    let tries = || {
        pleach_files::read(&program.path().join("program.log"))
            .unwrap()
            .len()
            / 2
    };
    let mut bench = Bench::of(&good, shared);
    for (tried, reason) in [(1, None), (2, Some("Unread")), (3, Some("Unread"))] {
        let stall = bench.round(&good).await;
        let stall = stall.map(|stall| stall.reason);
        assert_eq!((tries(), stall.as_deref()), (tried, reason));
    }
}

#[tokio::test]
async fn a_commit_beyond_the_limits_is_stalled_and_retried_later() {
    let (_folder, remote, fetched) = fetched();
    let head = &fetched.heads["env/web"];
    let good = assigned(&remote, &fetched, head);
    let (folder, shared) = rendered_by("echo x >> $0.log; kill -ABRT $$");
    let mut bench = Bench::of(&good, shared);
    let log = folder.path().join("program.log");
    let tries = || pleach_files::read(&log).unwrap().len() / 2;
    for _ in 0..2 {
        let stall = bench.round(&good).await.unwrap();
        assert_eq!(stall.reason, "InvalidRepository");
        assert!(
            stall.message.contains("the memory or time limit"),
            "{}",
            stall.message
        );
        assert_eq!(tries(), 1);
    }
    for (minutes, tried) in [(29, 1), (30, 2)] {
        let commands = bench.pass(Duration::from_mins(minutes));
        bench.finish_round(commands).await;
        assert_eq!(tries(), tried);
    }
}

#[tokio::test]
async fn a_commit_at_which_the_controller_crashed_waits_and_no_other_commit_does() {
    let (_folder, remote, fetched) = fetched();
    let head = &fetched.heads["env/web"];
    let good = assigned(&remote, &fetched, head);
    let (program, mut shared) = rendered_by("echo x >> $0.log; exit 1");
    let tries =
        || pleach_files::read(&program.path().join("program.log")).map_or(0, |log| log.len() / 2);
    let records = || Crashes::of(program.path().to_owned());
    let of = |url: &str| Attempt::of(&records(), url, &key());
    of(&remote.url).begin(head, None).await;
    shared.crashes = records();
    let mut bench = Bench::of(&good, shared.clone());
    for _ in 0..2 {
        let stall = bench.round(&good).await.unwrap();
        assert_eq!(stall.reason, "ControllerCrashed");
        assert_eq!(stall.revision.as_ref(), Some(head));
        assert!(stall.message.contains(&head[..7]), "{}", stall.message);
        assert_eq!(tries(), 0);
    }
    let other = "01".repeat(20);
    assert_eq!(bench.task.executor.attempt.stall(&other), None);
    // The commit is loaded at the end of the backoff.
    let commands = bench.pass(Duration::from_secs(3));
    let is_load = |one: &Command| matches!(one, Command::Start(_, Task::Load { .. }));
    assert!(commands.iter().any(is_load), "{commands:?}");
    // An attempt that failed without a crash leaves no crash record.
    let another = Remote {
        url: "another".to_owned(),
        ..remote
    };
    let good = assigned(&another, &fetched, head);
    assert_eq!(Bench::of(&good, shared).round(&good).await, None);
    assert_eq!(tries(), 1);
    assert_eq!(of("another").stall(head), None);
}

#[tokio::test]
async fn a_canceled_task_leaves_no_crash_record() {
    let (_folder, remote, fetched) = fetched();
    let good = assigned(&remote, &fetched, &fetched.heads["env/web"]);
    let (_program, mut shared) = rendered_by("exec /bin/sleep 1000");
    let folder = tempfile::tempdir().unwrap();
    shared.crashes = Crashes::of(folder.path().to_owned());
    let Bench {
        sender: _sender,
        task,
        ..
    } = Bench::of(&good, shared);
    let records = || pleach_files::names(folder.path()).unwrap().len();
    let recorded = async {
        while records() == 0 {
            tokio::task::yield_now().await;
        }
    };
    let running = Box::pin(task.run());
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
async fn a_commit_that_is_not_available_is_loaded_again() {
    let (_folder, remote, fetched) = fetched();
    let head = &fetched.heads["env/web"];
    let good = assigned(&remote, &fetched, head);
    let mut bench = Bench::of(&good, shared());
    // The commit contains no environments, so each load fails.
    let first = bench.round(&good).await;
    assert!(first.is_some());
    let other = assigned(&remote, &fetched, &"01".repeat(20));
    // It is loaded in both rounds, and reported after the second.
    assert_eq!(bench.round(&other).await, first);
    let stall = bench.round(&other).await.unwrap();
    assert_eq!(stall.reason, "InvalidRepository");
    assert_eq!(stall.revision, Some("01".repeat(20)));
}

#[tokio::test]
async fn an_environment_that_left_git_has_no_task() {
    let (_folder, remote, fetched) = fetched();
    let mut removed = assigned(&remote, &fetched, &fetched.heads["env/web"]);
    removed.commit = AssignedCommit::Unknown;
    removed.is_removed = true;
    let (sender, receiver) = watch::channel(removed);
    let environment = EnvironmentTask::new(key(), receiver, FetchSchedule::default(), shared());
    let local = tokio::task::LocalSet::new();
    let running = Box::pin(local.run_until(environment.run()));
    let ended = tokio::time::timeout(Duration::from_secs(10), running).await;
    assert!(ended.is_ok());
    drop(sender);
}

#[tokio::test]
async fn a_silent_remote_delays_no_other_environment() {
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
git --git-dir "$(field folder)" fetch --quiet "$(field from)" +refs/heads/env/web:refs/pleach/previous
echo '{"Ok":{"branches":{},"defaultBranch":null}}'"#,
    )
    .unwrap();
    // Clones share the single history permit.
    let mut shared = shared();
    shared.fetching.fetcher = Fetcher::by(program);
    let recollect = |remote: &Remote, limit| {
        let (sender, assigned) = watch::channel(assigned(remote, &fetched, &head));
        let (lookups, received) = mpsc::unbounded_channel();
        let attempt = Attempt::of(&shared.crashes, &remote.url, &key());
        let lookup = HistoryLookup {
            environment: "web".to_owned(),
            assigned,
            requests: received,
            shared: shared.clone(),
            attempt,
            limit,
        };
        let (answer, answered) = oneshot::channel();
        let request = LookupRequest {
            commits: [head.clone()].into(),
            release: None,
            answer,
        };
        lookups.send(request).unwrap();
        let keep = (sender, lookups);
        (lookup.run(), answered, keep)
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

/// The minimum of a source policy applies to every commit of the environment.
#[test]
fn a_loaded_environment_has_the_minimum_of_its_source_policy() {
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
    let mut source_policy = assigned(&remote, &fetched, "c0").source_policy;
    Arc::get_mut(&mut source_policy).unwrap().minimum = Minimum {
        interval: Some(SignedDuration::from_mins(2)),
        needs_approval: true,
        ..Minimum::default()
    };
    let synced = check_cluster(loaded, &source_policy)
        .unwrap()
        .environment
        .sync;
    assert!(synced.needs_approval);
    assert_eq!(synced.interval, SignedDuration::from_mins(2));
}
