use std::path::PathBuf;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::task::LocalSet;
use tokio_util::sync::CancellationToken;

use super::*;
use crate::clock::Clock;
use crate::crash::Crashes;
use crate::{
    EventSender, Fetching, SourcePolicy, concurrency::ReconcilePermits, drift::Watches,
    known_environments::RecordedEnvironment, loader::Loader, self_update::SelfUpdate, source,
};
use pleach_cluster::Connection;
use pleach_engine::decryption::KeySources;
use pleach_engine::{
    bounded_render::RenderSlots, fetching::Fetcher, lease::Peers, sync::Claim as LeaseIdentity,
};
use pleach_formats::sync::Minimum;
use pleach_git::{
    budget::Budget,
    mirror::Mirror,
    remote::{Auth, Remote},
};
use pleach_reconciler::config::{Branches, Reserved};
use pleach_state::inventory::Source;

/// Creates the shared resources, and the receiver of events.
fn shared() -> (Shared, mpsc::Receiver<ControllerEvent>) {
    let (sender, receivers) = EventSender::new();
    let events = receivers.events;
    let (watches, _) = Watches::new(false);
    let shared = Shared {
        events: sender.clone(),
        clock: Clock::start(),
        lease_identity: LeaseIdentity {
            who: "test".to_owned(),
            patience: Duration::ZERO,
            peers: Peers::default(),
            local: None,
            approved_by: None,
        },
        watches,
        self_update: SelfUpdate::of(None),
        permits: ReconcilePermits::new(sender),
        histories: Arc::new(tokio::sync::Semaphore::new(1)),
        loader: Loader {
            slots: RenderSlots::by(PathBuf::from("/bin/true"), 1),
            stop: CancellationToken::new(),
        },
        fetching: Fetching {
            fetcher: Fetcher::by("/bin/true".into()),
            budget: Budget::of(1 << 30),
        },
        // No crash is recorded.
        crashes: Crashes::of("/nonexistent".into()),
        stop: CancellationToken::new(),
    };
    (shared, events)
}

/// Builds a repository of these environments that was not reached yet.
fn repository(environments: &[&str]) -> Repository {
    let source_policy = |name: &&str| {
        Arc::new(SourcePolicy {
            url: "/srv/fleet".to_owned(),
            branches: Branches::One {
                environment: (*name).to_owned(),
                branch: format!("env/{name}"),
            },
            cluster: None,
            fallback: None,
            connection: Connection::new("pleach/0.0.0"),
            allow: None,
            minimum: Minimum::default(),
            keys: KeySources::default(),
            reserved: Reserved::default(),
            forge: None,
        })
    };
    Repository {
        name: "fleet".to_owned(),
        remote: Remote {
            url: "/srv/fleet".to_owned(),
            auth: Auth::Anonymous,
            keys: None,
        },
        artifact: None,
        source_policies: environments.iter().map(source_policy).collect(),
        previews: None,
    }
}

/// Builds a repository whose branches env/* contain environments.
fn of_a_pattern(name: &str) -> Repository {
    let mut fleet = repository(&["web"]);
    name.clone_into(&mut fleet.name);
    let source_policy = Arc::get_mut(&mut fleet.source_policies[0]).unwrap();
    source_policy.branches = Branches::pattern("env/*").unwrap();
    fleet
}

/// Builds the leadership of replica `a` among these replicas.
fn among(replicas: &[&str]) -> Leadership {
    Leadership::Shared {
        own: "a".to_owned(),
        replicas: replicas.iter().map(|name| (*name).to_owned()).collect(),
    }
}

/// Returns the reported leadership changes.
fn led(events: &mut mpsc::Receiver<ControllerEvent>) -> Vec<(String, bool)> {
    let mut led = Vec::new();
    while let Ok(event) = events.try_recv() {
        if let ControllerEvent::LeadershipChanged { environment, leads } = event {
            led.push((environment, leads));
        }
    }
    led
}

fn expected(of: &[(&str, bool)]) -> Vec<(String, bool)> {
    let of = of.iter();
    of.map(|(environment, leads)| ((*environment).to_owned(), *leads))
        .collect()
}

#[tokio::test]
async fn a_replica_without_leadership_aborts_its_work() {
    let repositories = [repository(&["api", "web"])];
    let (shared, mut events) = shared();
    let mut tasks = JoinSet::new();
    let mut supervisor = Supervisor::new(&repositories, vec![FetchSchedule::default()], shared);
    let states = [SourceState::default()];
    let playing = async {
        supervisor.assign(&states, &among(&["a"]), &mut tasks);
        assert_eq!(tasks.len(), 2);
        assert_eq!(led(&mut events), expected(&[("api", true), ("web", true)]));
        tokio::task::yield_now().await;

        supervisor.assign(&states, &Leadership::Nothing, &mut tasks);
        for _ in 0..2 {
            // Other replicas could have taken over, so tasks are aborted at once.
            let ended = tasks.join_next().await.unwrap();
            assert!(ended.is_err_and(|error| error.is_cancelled()));
        }
        assert_eq!(
            led(&mut events),
            expected(&[("api", false), ("web", false)])
        );

        supervisor.assign(&states, &Leadership::Nothing, &mut tasks);
        assert!(tasks.is_empty() && supervisor.environments.is_empty());
        // Other replicas exist, and this one has not joined yet.
        supervisor.assign(&states, &among(&["b"]), &mut tasks);
        assert!(tasks.is_empty());
        assert_eq!(led(&mut events), expected(&[]));

        supervisor.assign(&states, &among(&["a"]), &mut tasks);
        assert_eq!(tasks.len(), 2);
    };
    LocalSet::new().run_until(playing).await;
}

#[tokio::test]
async fn an_environment_that_moved_to_another_repository_is_restarted() {
    let repositories = [of_a_pattern("a"), of_a_pattern("b")];
    let (shared, mut events) = shared();
    let mut tasks = JoinSet::new();
    let fetch_schedules = vec![FetchSchedule::default(), FetchSchedule::default()];
    let mut supervisor = Supervisor::new(&repositories, fetch_schedules, shared);
    let web = RecordedEnvironment {
        source_policy: 0,
        environment: "web".to_owned(),
        branch: "env/web".to_owned(),
    };
    let known = SourceState {
        recorded: vec![web],
        ..SourceState::default()
    };
    let before = [known.clone(), SourceState::default()];
    let after = [SourceState::default(), known];
    let playing = async {
        supervisor.assign(&before, &Leadership::All, &mut tasks);
        supervisor.assign(&before, &Leadership::All, &mut tasks);
        assert_eq!(led(&mut events), expected(&[("web", true)]));
        tokio::task::yield_now().await;
        // The previous task continues to its safe point first.
        supervisor.assign(&after, &Leadership::All, &mut tasks);
        assert_eq!(led(&mut events), expected(&[("web", false)]));
        assert!(tasks.join_next().await.unwrap().is_ok());
        supervisor.assign(&after, &Leadership::All, &mut tasks);
        assert_eq!(led(&mut events), expected(&[("web", true)]));
        let led = supervisor.environments.values().next().unwrap();
        assert_eq!(led.repository, 1);
    };
    LocalSet::new().run_until(playing).await;
}

#[tokio::test]
async fn an_environment_without_a_branch_has_no_task() {
    let repositories = [of_a_pattern("a")];
    let (shared, mut events) = shared();
    let mut tasks = JoinSet::new();
    let mut supervisor = Supervisor::new(&repositories, vec![FetchSchedule::default()], shared);
    let web = RecordedEnvironment {
        source_policy: 0,
        environment: "web".to_owned(),
        branch: "env/web".to_owned(),
    };
    let there = [SourceState {
        recorded: vec![web],
        ..SourceState::default()
    }];
    let gone = [SourceState::default()];
    let playing = async {
        supervisor.assign(&there, &among(&["a"]), &mut tasks);
        assert_eq!(led(&mut events), expected(&[("web", true)]));
        supervisor.assign(&gone, &among(&["a"]), &mut tasks);
        let web = supervisor.environments.values().next().unwrap();
        assert!(web.assigned.borrow().is_removed);
        // The task ends like this after its report.
        web.task.abort();
        assert!(tasks.join_next().await.unwrap().is_err());
        supervisor.assign(&gone, &among(&["a"]), &mut tasks);
        assert!(tasks.is_empty() && supervisor.environments.is_empty());
        // This replica still leads it.
        supervisor.assign(&there, &among(&["a"]), &mut tasks);
        assert_eq!(tasks.len(), 1);
        assert_eq!(led(&mut events), expected(&[]));
        tasks.abort_all();
        while tasks.join_next().await.is_some() {}
        supervisor.assign(&gone, &among(&["a"]), &mut tasks);
        supervisor.assign(&gone, &among(&["b"]), &mut tasks);
        assert_eq!(led(&mut events), expected(&[("web", false)]));
    };
    LocalSet::new().run_until(playing).await;
}

#[tokio::test]
async fn a_fetch_request_is_answered_by_a_later_fetch() {
    let fleet = repository(&["web"]);
    let (shared, _events) = shared();
    let mut tasks = JoinSet::new();
    let fetch_schedules = FetchSchedule::default();
    let repositories = [fleet.clone()];
    let mut supervisor =
        Supervisor::new(&repositories, vec![fetch_schedules.clone()], shared.clone());
    let (sender, mut states) = watch::channel(SourceState::default());
    assert_eq!(fetch_schedules.request_fetch(), 1);
    let fetching = source::follow(
        fleet,
        (Arc::default(), fetch_schedules.clone()),
        (sender, Arc::default()),
        shared.clone(),
    );
    let playing = async {
        // The address is unreachable, which also answers the request.
        for request in [1, 2] {
            let answered = |state: &SourceState| state.answered >= request;
            let mut state = states.wait_for(answered).await.unwrap().clone();
            assert_eq!(state.answered, request);
            // Skip the report to the cluster.
            state.error = None;
            supervisor.assign(&[state], &Leadership::All, &mut tasks);
            let led = supervisor.environments.values().next().unwrap();
            assert_eq!(led.assigned.borrow().answered, request);
            fetch_schedules.request_fetch();
        }
        shared.stop.cancel();
    };
    let both = async { tokio::join!(fetching, playing) };
    let local = LocalSet::new();
    let ended = tokio::time::timeout(Duration::from_mins(1), local.run_until(both));
    Box::pin(ended).await.unwrap();
}

#[tokio::test]
async fn an_environment_is_restarted_after_its_previous_task_ended() {
    let repositories = [repository(&["web"])];
    let (shared, mut events) = shared();
    let mut tasks = JoinSet::new();
    let mut supervisor = Supervisor::new(&repositories, vec![FetchSchedule::default()], shared);
    let states = [SourceState::default()];
    let playing = async {
        supervisor.assign(&states, &among(&["a"]), &mut tasks);
        tokio::task::yield_now().await;
        supervisor.assign(&states, &among(&["b"]), &mut tasks);
        assert_eq!(led(&mut events), expected(&[("web", true), ("web", false)]));
        // The lead returns before the task has ended.
        supervisor.assign(&states, &among(&["a"]), &mut tasks);
        assert_eq!(tasks.len(), 1);
        assert_eq!(led(&mut events), expected(&[]));
        let ended = tasks.join_next().await.unwrap();
        assert!(ended.is_ok());
        supervisor.assign(&states, &among(&["a"]), &mut tasks);
        assert_eq!(led(&mut events), expected(&[("web", true)]));
    };
    LocalSet::new().run_until(playing).await;
}

#[tokio::test]
async fn a_branch_without_a_fetched_commit_is_not_missing() {
    let repositories = [of_a_pattern("a")];
    let (shared, mut events) = shared();
    let mut tasks = JoinSet::new();
    let mut supervisor = Supervisor::new(&repositories, vec![FetchSchedule::default()], shared);
    let folder = tempfile::tempdir().unwrap();
    git2::Repository::init_bare(folder.path()).unwrap();
    let mut mirror = Mirror::new(Remote {
        url: folder.path().display().to_string(),
        auth: Auth::Anonymous,
        keys: None,
    });
    let mut fetched = mirror.fetch(|_| true).unwrap();
    let behind = ("env/web".to_owned(), "it is larger than 1 MiB".to_owned());
    fetched.behind.extend([behind]);
    let states = [SourceState {
        fetched: Some(Arc::new(fetched)),
        ..SourceState::default()
    }];
    let playing = async {
        supervisor.assign(&states, &Leadership::All, &mut tasks);
        assert_eq!(led(&mut events), expected(&[("web", true)]));
        let web = supervisor.environments.values().next().unwrap();
        let assigned = web.assigned.borrow();
        assert!(matches!(assigned.commit, AssignedCommit::Unknown));
        assert_eq!(assigned.source.as_deref(), Some("it is larger than 1 MiB"));
    };
    LocalSet::new().run_until(playing).await;
}

#[tokio::test]
async fn an_environment_is_not_started_before_its_records_are_read() {
    let mut repositories = [of_a_pattern("a"), of_a_pattern("b")];
    let source_policy = Arc::get_mut(&mut repositories[0].source_policies[0]).unwrap();
    "/srv/absent".clone_into(&mut source_policy.url);
    let (shared, mut events) = shared();
    let mut tasks = JoinSet::new();
    let fetch_schedules = vec![FetchSchedule::default(), FetchSchedule::default()];
    let mut supervisor = Supervisor::new(&repositories, fetch_schedules, shared);
    let folder = tempfile::tempdir().unwrap();
    git2::Repository::init_bare(folder.path()).unwrap();
    let mut mirror = Mirror::new(Remote {
        url: folder.path().display().to_string(),
        auth: Auth::Anonymous,
        keys: None,
    });
    let mut fetched = mirror.fetch(|_| true).unwrap();
    let behind = ("env/web".to_owned(), "later".to_owned());
    fetched.behind.extend([behind]);
    let reached = SourceState {
        fetched: Some(Arc::new(fetched)),
        ..SourceState::default()
    };
    let states = [SourceState::default(), reached];
    let key = EnvironmentKey {
        environment: "web".to_owned(),
        cluster: None,
    };
    let playing = async {
        // The environment could have been synced from the unreached repository.
        supervisor.assign(&states, &Leadership::All, &mut tasks);
        assert_eq!(led(&mut events), expected(&[]));
        let source = |url: &str| Source {
            url: url.to_owned(),
            branch: "env/web".to_owned(),
        };
        supervisor
            .recorded_sources
            .set_known(&key, [source("/srv/absent")].into());
        supervisor.assign(&states, &Leadership::All, &mut tasks);
        assert_eq!(led(&mut events), expected(&[("web", true)]));
        let of = |supervisor: &Supervisor<'_>| supervisor.environments[&key].repository;
        assert_eq!(of(&supervisor), 0);
        // With both branches present, the recorded one keeps it.
        let both = [states[1].clone(), states[1].clone()];
        supervisor.assign(&both, &Leadership::All, &mut tasks);
        assert_eq!(led(&mut events), expected(&[]));
        assert_eq!(of(&supervisor), 0);
    };
    LocalSet::new().run_until(playing).await;
}

#[tokio::test]
async fn environments_of_other_replicas_are_observed_until_the_end() {
    let mut fleet = repository(&["api", "web"]);
    for policy in &mut fleet.source_policies {
        let connection = &mut Arc::get_mut(policy).unwrap().connection;
        connection.kubeconfig = Some("/nonexistent".into());
        connection.context = Some("other".to_owned());
    }
    let repositories = [fleet];
    let (mut shared, mut events) = shared();
    shared.events.has_facts = true;
    let stop = shared.stop.clone();
    let mut tasks = JoinSet::new();
    let mut supervisor = Supervisor::new(&repositories, vec![FetchSchedule::default()], shared);
    let states = [SourceState::default()];
    let playing = async {
        supervisor.assign(&states, &among(&["b"]), &mut tasks);
        assert_eq!(tasks.len(), 2);
        let mut failed = BTreeSet::new();
        while failed.len() < 2 {
            let event = events.recv().await.unwrap();
            let ControllerEvent::Recorded {
                environments,
                releases: Err(_),
            } = event
            else {
                panic!("{event:?}");
            };
            assert!(environments.values().all(|leader| leader == "b"));
            failed.extend(environments.into_keys());
        }

        // Another replica could lead them by now.
        supervisor.assign(&states, &Leadership::Nothing, &mut tasks);
        let event = events.recv().await.unwrap();
        let ControllerEvent::Unobserved { environments } = event else {
            panic!("{event:?}");
        };
        assert_eq!(environments, failed);
        while tasks.join_next().await.is_some() {}

        supervisor.assign(&states, &among(&["b"]), &mut tasks);
        tokio::task::yield_now().await;
        stop.cancel();
        while let Some(ended) = tasks.join_next().await {
            ended.unwrap();
        }
    };
    LocalSet::new().run_until(playing).await;
}
