//! Controller replicas share environments and take over from each other.

use std::fmt::Write as _;
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::TcpStream;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::time::{Duration, Instant};

use pleach_formats::file::ForgeKind;
use pleach_testkit::chaos::replicas::{Terms, play};
use pleach_testkit::forge::{FakeForge, TOKEN};
use pleach_testkit::git_server::GitServer;

use crate::fleet::{Fleet, Requests, object_writes};
use crate::loop_run::{Loop, fleet};
use crate::page::Page;
use crate::samples::deployment;
use crate::shared;

/// Maximum time until a killed replica is replaced.
const FOLLOWED: Duration = Duration::from_secs(15);

impl Fleet {
    /// Starts a replica as its own user, for the audit log.
    #[track_caller]
    fn replica(&mut self, user: &str, more: &[&str]) -> Loop {
        let kubeconfig = shared().kubeconfig_for_user(user, &["system:masters"]);
        self.through(kubeconfig.unwrap());
        let secret = self.file("webhook-secret", crate::loop_run::SECRET);
        let repo = self.repo.path().to_str().unwrap().to_owned();
        let args = [
            "--repo",
            &repo,
            "--share-in",
            self.environment,
            "--webhook-secret-file",
            &secret,
        ];
        self.runs_with(&[&args[..], more].concat())
    }

    /// Returns the object writes of a user since a time.
    #[expect(clippy::unused_self, reason = "reads like what else a fleet tells")]
    fn written_by(&self, user: &str, since: &Requests) -> Vec<String> {
        let events = since.events();
        object_writes(&events.filter(|event| event.user.username == user))
    }

    /// Waits until these replicas see each other.
    #[track_caller]
    fn until_there(&self, replicas: &[&Loop]) {
        let wanted = f64::from(u32::try_from(replicas.len()).unwrap());
        self.until("all replicas", |_| {
            let see_all =
                |replica: &&Loop| (replica.number("pleach_replicas ") - wanted).abs() < 0.1;
            replicas.iter().all(see_all).then_some(())
        });
    }
}

impl Loop {
    fn leads(&self, environment: &str) -> bool {
        let metric = format!("pleach_environment_leader{{environment=\"{environment}\"}}");
        self.number(&metric) > 0.0
    }
}

/// Returns the leader of an environment, then the other replica.
#[track_caller]
fn sorted(fleet: &Fleet, environment: &str, one: Loop, two: Loop) -> (Loop, Loop) {
    let first = fleet.until("a leader", |_| {
        let leads = (one.leads(environment), two.leads(environment));
        match leads {
            (true, false) => Some(true),
            (false, true) => Some(false),
            _ => None,
        }
    });
    if first { (one, two) } else { (two, one) }
}

#[test]
fn environments_are_shared_and_a_replica_that_ends_is_followed_within_6_seconds() {
    let mut fleet = fleet("replica-drain", "{interval: 1h}");
    // Environments that git does not have also have a leader, and only one replica reports them.
    let others: Vec<String> = (0..20).map(|number| format!("none-{number}")).collect();
    for name in &others {
        fleet.repo.git(&["branch", &format!("env/{name}")]).unwrap();
    }
    let one = fleet.replica("drain-one", &[]);
    let two = fleet.replica("drain-two", &[]);
    fleet.until_there(&[&one, &two]);
    fleet.until("each environment to have one leader", |_| {
        let led = |name: &&String| u8::from(one.leads(name)) + u8::from(two.leads(name));
        others.iter().all(|name| led(&name) == 1).then_some(())
    });
    assert!(others.iter().any(|name| one.leads(name)));
    assert!(others.iter().any(|name| two.leads(name)));
    fleet.until_value("first");

    // A push webhook to the other replica reaches the leader.
    let (leader, other) = sorted(&fleet, "replica-drain", one, two);
    let looks = || leader.looks("replica-drain", "web", "deployed");
    fleet.until("the first look", |_| (looks() > 0.0).then_some(()));
    fleet.push_value("first", "second");
    let pushed = Instant::now();
    other.pushed();
    fleet.until_value("second");
    assert!(
        pushed.elapsed() < Duration::from_secs(5),
        "{:?}",
        pushed.elapsed()
    );
    fleet.until_ready();
    assert_eq!(other.get("/readyz").0, 200, "who waits is ready too");

    // The leader ends during a wait.
    fleet.write(
        "manifests/web/slow.yaml",
        &deployment("slow").replace("replicas: 0", "replicas: 1"),
    );
    fleet.push("slow");
    leader.pushed();
    fleet.until("slow", |fleet| {
        let there = fleet.exists(&["deployment", "slow", "-n", "replica-drain"]);
        there.then_some(())
    });
    let ended = Instant::now();
    leader.stopped();
    fleet.until("the other to lead", |_| {
        other.leads("replica-drain").then_some(())
    });
    assert!(others.iter().all(|name| other.leads(name)));
    assert!(
        ended.elapsed() < Duration::from_secs(6),
        "{:?}",
        ended.elapsed()
    );
    fleet.remove("manifests/web/slow.yaml");
    fleet.push_value("second", "third");
    other.pushed();
    fleet.until_value("third");
    fleet.until("slow to go", |fleet| {
        let there = fleet.exists(&["deployment", "slow", "-n", "replica-drain"]);
        (!there).then_some(())
    });
    other.stopped();
    let leases = fleet.kubectl(&["get", "leases", "-n", "replica-drain", "-o", "name"]);
    assert_eq!(leases, "", "every replica took its lease away");
}

#[test]
fn a_sync_request_brings_new_branches_to_all_replicas_within_10_seconds() {
    let mut fleet = fleet("replica-fresh", "{interval: 1h}");
    let one = fleet.replica("fresh-one", &[]);
    let two = fleet.replica("fresh-two", &[]);
    fleet.until_there(&[&one, &two]);
    fleet.until_value("first");
    fleet.until_ready();
    // One replica leads the environment of the request, and both lead new ones.
    let new: Vec<String> = (0..20).map(|number| format!("fresh-{number}")).collect();
    for name in &new {
        fleet.repo.git(&["branch", &format!("env/{name}")]).unwrap();
    }
    // A new environment has no release that could carry the request.
    fleet
        .run(&["sync", "replica-fresh/none"])
        .ended_with(1)
        .says("`pleach sync replica-fresh/web` lets it fetch now");
    let requested = Instant::now();
    fleet.run(&["sync", "replica-fresh/web"]).ended_with(0);
    fleet.until("each new environment to have one leader", |_| {
        let led = |name: &&String| u8::from(one.leads(name)) + u8::from(two.leads(name));
        new.iter().all(|name| led(&name) == 1).then_some(())
    });
    let took = requested.elapsed();
    assert!(took < Duration::from_secs(10), "{took:?}");
    assert!(new.iter().any(|name| one.leads(name)));
    assert!(new.iter().any(|name| two.leads(name)));
    one.stopped();
    two.stopped();
}

#[test]
fn a_replica_that_is_killed_in_the_middle_of_a_run_is_followed_within_15_seconds() {
    let mut fleet = fleet("replica-kill", "{interval: 1s}");
    let one = fleet.replica("kill-one", &[]);
    let two = fleet.replica("kill-two", &[]);
    fleet.until_there(&[&one, &two]);
    fleet.until_value("first");
    let (leader, other) = sorted(&fleet, "replica-kill", one, two);
    fleet.write(
        "manifests/web/slow.yaml",
        &deployment("slow").replace("replicas: 0", "replicas: 1"),
    );
    fleet.push("slow");
    // It waits and holds the Lease of the release.
    fleet.until("slow", |fleet| {
        let there = fleet.exists(&["deployment", "slow", "-n", "replica-kill"]);
        let held = fleet.exists(&["lease", "replica-kill.web", "-n", "pleach-system"]);
        (there && held).then_some(())
    });
    leader.running.signal("KILL");
    let killed = Instant::now();
    fleet.remove("manifests/web/slow.yaml");
    fleet.push_value("first", "second");
    fleet.until_value("second");
    assert!(killed.elapsed() < FOLLOWED, "{:?}", killed.elapsed());
    drop(leader);
    other.stopped();
}

/// A reader of one replica needs not know which one reconciles a release.
#[test]
fn a_page_shows_releases_of_other_replicas_and_follows_when_they_are_killed() {
    let fleet = fleet("replica-page", "{interval: 1s}");
    let text = fleet.configuration_text(fleet.repo.path().to_str().unwrap(), "");
    let text = text + "ui: {listen: '127.0.0.1:0', auth: none}\n";
    let config = fleet.file("replicas.yaml", &text);
    let start = || {
        let mut replica = fleet.runs_with(&["--config", &config, "--share-in", "replica-page"]);
        let address = replica.running.until_prints("page: http://");
        (replica, address)
    };
    let ((one, page_one), (two, page_two)) = (start(), start());
    fleet.until_there(&[&one, &two]);
    fleet.until_value("first");
    let is_first = fleet.until("a leader", |_| {
        let leads = (one.leads("replica-page"), two.leads("replica-page"));
        (leads.0 != leads.1).then_some(leads.0)
    });
    let (leader, other, address) = if is_first {
        (one, two, page_two)
    } else {
        (two, one, page_one)
    };
    let page = Page { address };
    let body = || page.ask("GET /releases/replica-page/web", "", "").body;
    let elsewhere = "Another replica reconciles this environment:</strong> <span>pleach-replica-";
    let is_shown = |body: &str| body.contains("in sync") && body.contains("Installed");
    fleet.until("the release on the other page", |_| {
        let body = body();
        (body.contains(elsewhere) && is_shown(&body)).then_some(())
    });
    let overview = page.ask("GET /", "", "").body;
    assert!(
        overview.contains("/releases/replica-page/web"),
        "{overview}"
    );

    let mut stream = TcpStream::connect(&page.address).unwrap();
    let scope = "GET /events?scope=/releases/replica-page/web HTTP/1.1\r\nhost: page\r\n\r\n";
    let request = scope.replace("page\r\n", &format!("{}\r\n", page.address));
    stream.write_all(request.as_bytes()).unwrap();
    stream.set_read_timeout(Some(FOLLOWED)).unwrap();
    let mut lines = BufReader::new(stream).lines();
    let mut until_event = || {
        let mut lines = lines.by_ref().map(Result::unwrap);
        assert!(lines.any(|line| line == "event: change"));
    };
    until_event(); // at once
    leader.running.signal("KILL");
    until_event();
    fleet.until("the release on its own page", |_| {
        let body = body();
        (!body.contains(elsewhere) && is_shown(&body)).then_some(())
    });
    drop(leader);
    other.stopped();
}

#[test]
fn a_replica_that_comes_back_too_late_writes_nothing() {
    let mut fleet = fleet("replica-late", "{interval: 1s}");
    let one = fleet.replica("late-one", &[]);
    let two = fleet.replica("late-two", &[]);
    fleet.until_there(&[&one, &two]);
    fleet.until_value("first");
    let leads = one.leads("replica-late");
    let (mut leader, other) = sorted(&fleet, "replica-late", one, two);
    let leader_is = if leads { "late-one" } else { "late-two" };
    fleet.write(
        "manifests/web/slow.yaml",
        &deployment("slow").replace("replicas: 0", "replicas: 1"),
    );
    fleet.push("slow");
    fleet.until("slow", |fleet| {
        let there = fleet.exists(&["deployment", "slow", "-n", "replica-late"]);
        there.then_some(())
    });
    // It is stopped during a run, as in a machine pause.
    leader.running.signal("STOP");
    fleet.remove("manifests/web/slow.yaml");
    fleet.push_value("first", "second");
    fleet.until_value("second");
    fleet.until_ready();
    let back = Requests::from_now(shared());
    leader.running.signal("CONT");
    leader.running.until_says("this replica lost its Lease");
    fleet.until_there(&[&leader, &other]);
    assert_eq!(fleet.written_by(leader_is, &back), [""; 0]);
    leader.stopped();
    other.stopped();
}

#[test]
fn a_replica_that_takes_no_part_syncs_nothing_until_it_does_again() {
    let fleet = fleet("replica-out", "{interval: 1s}");
    let meet = "replica-out-meet";
    fleet.create_namespace(meet);
    let secret = fleet.file("webhook-secret", crate::loop_run::SECRET);
    let repo = fleet.repo.path().to_str().unwrap().to_owned();
    let mut replica = fleet.runs_with(&[
        "--repo",
        &repo,
        "--share-in",
        meet,
        "--webhook-secret-file",
        &secret,
    ]);
    fleet.until_value("first");
    fleet.until_ready();
    assert!(replica.leads("replica-out"));

    // Its Lease is deleted and cannot be recreated.
    fleet.kubectl(&["delete", "namespace", meet]);
    replica.running.until_says("this replica lost its Lease");
    fleet.until("it to lead nothing", |_| {
        (!replica.leads("replica-out")).then_some(())
    });
    let fetches =
        || replica.number("pleach_reconcile_phase_duration_seconds_count{phase=\"fetch\"}");
    fleet.writes_nothing(|fleet| {
        fleet.push_value("first", "second");
        let seen = fetches();
        replica.pushed();
        // The second fetch started after the push.
        fleet.until("two fetches", |_| (fetches() > seen + 1.5).then_some(()));
    });
    assert_eq!(fleet.value().as_deref(), Some("first"));
    fleet.create_namespace(meet);
    fleet.until_value("second");
    assert!(replica.leads("replica-out"));
    replica.stopped();
}

#[test]
#[expect(clippy::disallowed_methods, reason = "files of the test's own")]
fn the_state_of_a_commit_is_that_of_all_clusters() {
    let fleet = fleet("replica-states", "{interval: 1s}");
    let names: Vec<String> = (0..4).map(|one| format!("replica-states-{one}")).collect();
    let text = fleet.read(&fleet.environment_file());
    for name in &names {
        let text = text.replace("namespace: replica-states", &format!("namespace: {name}"));
        fleet.write(&format!("environments/{name}.yaml"), &text);
        fleet.create_namespace(name);
    }
    let commit = fleet.commit();
    let root = tempfile::tempdir().unwrap();
    std::fs::create_dir(root.path().join("example")).unwrap();
    let repository = root.path().join("example/fleet.git");
    symlink(fleet.repo.path().join(".git"), repository).unwrap();
    let git = GitServer::start(root.path()).unwrap();
    let forge = FakeForge::start(ForgeKind::Github).unwrap();
    let (token, api) = (fleet.file("token", TOKEN), forge.api());
    let url = git.url("example/fleet.git");
    let url = format!("{url}\n    forge: {{kind: github, url: \"{api}\", tokenFile: {token}}}");
    // Each environment is on two clusters, and its file contains only the first one.
    let mut config = fleet.configuration_text(&url, "");
    let grants = config.find("      - name:").unwrap();
    config.truncate(grants);
    let id = fleet.cluster_id();
    for name in &names {
        fleet.repo.git(&["branch", &format!("env/{name}")]).unwrap();
        let kubeconfig = shared().kubeconfig().display();
        for id in [id.as_str(), "another-one"] {
            write!(
                config,
                "      - name: {name}\n        branch: env/{name}\n        cluster: {{id: {id}, kubeconfigFile: {kubeconfig}}}\n        allow: all\n"
            )
            .unwrap();
        }
    }
    let config = fleet.file("states.yaml", &config);
    let args = ["--config", &config, "--share-in", "replica-states"];
    let (one, two) = (fleet.runs_with(&args), fleet.runs_with(&args));
    fleet.until_there(&[&one, &two]);
    let states = |name: &str| -> Vec<String> {
        let said = forge.statuses(&commit).into_iter();
        let of = said.filter(|(context, _, _)| *context == format!("pleach/{name}"));
        of.map(|(_, state, _)| state).collect()
    };
    for name in &names {
        fleet.until("a look after the first one", |_| {
            let looks = |replica: &Loop| replica.looks(name, "web", "unchanged");
            (looks(&one) + looks(&two) > 0.0).then_some(())
        });
        fleet.until("the refusal of the second cluster", |_| {
            (states(name).last()? == "failure").then_some(())
        });
    }
    for name in &names {
        // The commit on the first cluster alone is not a success, and one replica reports for both.
        let told = states(name);
        let told: Vec<&str> = told.iter().map(String::as_str).collect();
        assert!(
            matches!(told[..], ["failure"] | ["pending", "failure"]),
            "{name}: {told:?}"
        );
    }
    one.stopped();
    two.stopped();
    assert_eq!(forge.wrong(), [""; 0]);
}

#[test]
fn our_own_release_goes_after_all_others() {
    let fleet = fleet("replica-last", "{interval: 1h}");
    fleet.write("manifests/self/bundle.yaml", crate::samples::BUNDLE);
    fleet.write(
        "manifests/self/self.yaml",
        &crate::samples::config_map("self", "first"),
    );
    fleet.edit_environment(
        "  - {name: web,",
        "  - {name: self, bundle: self, namespace: replica-last}\n  - {name: web, timeout: 8s,",
    );
    fleet.write(
        "manifests/web/slow.yaml",
        &deployment("slow").replace("replicas: 0", "replicas: 1"),
    );
    fleet.push("both");
    let secret = fleet.file("webhook-secret", crate::loop_run::SECRET);
    let repo = fleet.repo.path().to_str().unwrap().to_owned();
    let running = fleet.runs_with(&[
        "--repo",
        &repo,
        "--own-release",
        "replica-last/self",
        "--webhook-secret-file",
        &secret,
    ]);
    fleet.until_value("first");
    let own = |fleet: &Fleet| fleet.exists(&["configmap", "self", "-n", "replica-last"]);
    assert!(!own(&fleet));
    // The other release fails but does not block ours forever.
    fleet.until("our own release", |fleet| own(fleet).then_some(()));
    assert!(running.looks("replica-last", "web", "failed") > 0.0);
    running.stopped();
}

#[tokio::test(flavor = "multi_thread")]
async fn two_replicas_of_which_one_is_killed_again_and_again_lose_nothing() {
    let pleach = Path::new(env!("CARGO_BIN_EXE_pleach"));
    let terms = Terms {
        lasts: Duration::from_secs(30),
        kills: Duration::from_secs(5),
        commits: Duration::from_secs(2),
        seed: 1,
    };
    let played = play(pleach, terms).await.unwrap();
    assert!(played.kills >= 3 && played.commits >= 8, "{played}");
}
