//! The controller follows branches: pushes, invalid commits, and unreachable servers.

use std::time::{Duration, Instant};

use pleach_testkit::git_server::GitServer;

use crate::loop_run::fleet;
use crate::samples::{config_map, deployment};

#[test]
fn a_push_to_one_branch_changes_its_environment_and_no_other() {
    let fleet = fleet("loop-staging", "{interval: 1s}");
    let text = fleet.read("environments/loop-staging.yaml");
    let other = text.replace("loop-staging", "loop-other");
    fleet.write("environments/loop-other.yaml", &other);
    fleet.create_namespace("loop-other");
    fleet.push("two environments");
    fleet.repo.git(&["branch", "env/loop-other"]).unwrap();
    let in_other = || fleet.field(&["configmap", "web", "-n", "loop-other"], "{.data.k}");

    let repo = fleet.repo.path().to_str().unwrap().to_owned();
    let running = fleet.runs_with(&["--repo", &repo]);
    fleet.until_value("first");
    fleet.until("the other", |fleet| {
        let there = fleet.exists(&["configmap", "web", "-n", "loop-other"]);
        there.then_some(())
    });
    let commit = fleet.push_value("first", "second");
    fleet.until_value("second");
    assert_eq!(in_other(), "first");
    let release = "release.pleach.dev/loop-staging.web";
    fleet.until("the record", |fleet| {
        (fleet.field(&[release], "{.status.revision}") == commit).then_some(())
    });
    // A promotion moves the other branch to the same commit.
    fleet
        .repo
        .git(&["branch", "--force", "env/loop-other", "env/loop-staging"])
        .unwrap();
    fleet.until("the other", |_| (in_other() == "second").then_some(()));

    // A deleted branch suspends its environment and deletes nothing.
    fleet
        .repo
        .git(&["branch", "-D", "env/loop-staging"])
        .unwrap();
    let said = fleet.until_condition("Stalled", "BranchMissing");
    assert!(said.contains("nothing is applied or deleted"), "{said}");
    fleet.edit_by_hand("ann");
    fleet
        .repo
        .git(&["branch", "env/loop-staging", "main"])
        .unwrap();
    fleet.until_value("second");
    fleet.until_not("Stalled");
    running.stopped();
}

#[test]
fn a_bad_commit_leaves_what_was_good_and_the_next_one_goes_through() {
    let fleet = fleet("loop-bad", "{interval: 1s}");
    let running = fleet.runs();
    fleet.until_value("first");
    fleet.write("manifests/web/bad.yaml", "kind: [\n");
    fleet.push("bad");
    let said = fleet.until_condition("Stalled", "InvalidRepository");
    assert!(said.contains("manifests/web/bad.yaml:"), "{said}");
    assert_eq!(fleet.value().as_deref(), Some("first"));
    fleet
        .run(&["status", "loop-bad"])
        .says("loop-bad/web: Stalled: InvalidRepository: commit ");
    // Meanwhile, drift is corrected to the last good commit.
    fleet.edit_by_hand("ann");
    fleet.until_value("first");

    // No pod is ever scheduled, so this run waits for ten minutes.
    let waiting = deployment("slow").replace("replicas: 0", "replicas: 1");
    fleet.write("manifests/web/bad.yaml", &waiting);
    fleet.push("slow");
    fleet.until("slow", |fleet| {
        let there = fleet.exists(&["deployment", "slow", "-n", "loop-bad"]);
        there.then_some(())
    });
    fleet.until_not("Stalled");
    fleet.write("manifests/web/bad.yaml", &config_map("other", "x"));
    let pushed = Instant::now();
    let commit = fleet.push_value("first", "second");
    fleet.until_value("second");
    assert!(pushed.elapsed() < Duration::from_secs(20));
    let release = "release.pleach.dev/loop-bad.web";
    fleet.until("the record", |fleet| {
        let installed = fleet.field(&[release], "{.status.record.installed.revision}");
        (installed == commit).then_some(())
    });
    assert!(!fleet.exists(&["deployment", "slow", "-n", "loop-bad"]));
    let results = fleet.field(&[release], "{.status.record.history[*].result}");
    // Drift was corrected once.
    assert_eq!(results, "deployed superseded deployed deployed");
    running.stopped();
}

#[test]
fn a_loop_that_starts_beside_a_bad_commit_keeps_what_was_good() {
    let fleet = fleet("loop-remembers", "{interval: 1s}");
    let server = GitServer::start(fleet.repo.path()).unwrap();
    // Only the newest commit is fetched.
    let config = fleet.configuration(&server.url(".git"), "");
    let running = fleet.runs_with(&["--config", &config]);
    fleet.until_value("first");
    fleet.until_ready();
    running.stopped();

    fleet.write("manifests/web/bad.yaml", "kind: [\n");
    fleet.push_value("first", "second");
    let running = fleet.runs_with(&["--config", &config]);
    fleet.until_condition("Stalled", "InvalidRepository");
    fleet.edit_by_hand("ann");
    fleet.until_value("first");
    fleet.until_condition("Stalled", "InvalidRepository");
    fleet.remove("manifests/web/bad.yaml");
    fleet.push("good");
    fleet.until_value("second");
    fleet.until_not("Stalled");
    fleet.until_ready();
    running.stopped();

    // The branch never contained the recorded commit, so nothing is known about it.
    let orphan = ["checkout", "--quiet", "--orphan", "anew"];
    fleet.repo.git(&orphan).unwrap();
    fleet.write("manifests/web/bad.yaml", "kind: [\n");
    fleet.push_value("second", "third");
    let mut running = fleet.runs_with(&["--config", &config]);
    fleet.until_condition("Stalled", "InvalidRepository");
    fleet.edit_by_hand("bob");
    let held = "pleach_environment_stalled{environment=\"loop-remembers\"}";
    fleet.until("the hold", |_| (running.number(held) > 0.0).then_some(()));
    running
        .running
        .until_says("the last applied revision is not retained: the branch does not contain it");
    assert_eq!(fleet.value().as_deref(), Some("bob"));
    running.stopped();
}

#[test]
fn a_commit_that_a_record_names_makes_no_release_older() {
    let fleet = fleet("loop-otherwise", "{interval: 1s}");
    let url = fleet.repo.path().to_str().unwrap().to_owned();
    let config = fleet.configuration(&url, "");
    let before = fleet.repo.git(&["rev-parse", "HEAD"]).unwrap();
    fleet.push_value("first", "second");
    let running = fleet.runs_with(&["--config", &config]);
    fleet.until_value("second");
    fleet.until_ready();
    running.stopped();
    // Forge a record with an older commit of the branch. This was possible before seals existed.
    let older = r#""seal":null,"format":5,"oldestWriter":5"#;
    let patch =
        format!(r#"{{"status":{{"record":{{{older},"installed":{{"revision":"{before}"}}}}}}}}"#);
    let record = ["patch", "release.pleach.dev", "loop-otherwise.web"];
    let patched = ["--subresource=status", "--type=merge", "-p", &patch];
    fleet.kubectl(&[&record[..], &patched].concat());
    fleet.write("manifests/web/bad.yaml", "kind: [\n");
    fleet.push("bad");
    let running = fleet.runs_with(&["--config", &config]);
    let looks = || running.looks("loop-otherwise", "web", "waiting");
    fleet.until("a look", |_| (looks() > 1.0).then_some(()));
    assert_eq!(fleet.value().as_deref(), Some("second"));
    running.stopped();
}

#[test]
fn a_push_webhook_is_acted_upon_within_5_seconds_and_garbage_never() {
    let fleet = fleet("loop-hooks", "{interval: 1h}");
    let running = fleet.runs();
    fleet.until_value("first");
    let looks = || running.looks("loop-hooks", "web", "deployed");
    fleet.until("the first look", |_| (looks() > 0.0).then_some(()));
    let fetched = "pleach_source_last_fetch_timestamp_seconds{repository=\"repository\"}";
    let before = running.number(fetched);
    fleet.push_value("first", "second");
    assert_eq!(running.push_hook("sha256=00"), 401);
    assert_eq!(running.push_hook(""), 401);
    for garbage in [
        &b"\x16\x03\x01\x02\x00"[..],
        b"GET /\r\n\r\n",
        b"POST /hooks/github HTTP/1.1\r\n",
        &[0; 4096],
    ] {
        running.throw(garbage);
    }
    assert_eq!(running.number(fetched).to_bits(), before.to_bits());
    let pushed = Instant::now();
    // Repeated pushes have no further effect.
    for _ in 0..5 {
        running.pushed();
    }
    fleet.until_value("second");
    assert!(
        pushed.elapsed() < Duration::from_secs(5),
        "{:?}",
        pushed.elapsed()
    );
    assert_eq!(running.get("/livez").0, 200);
    assert_eq!(running.get("/readyz").0, 200);
    let run = running.stopped();
    assert!(!run.stderr.contains(crate::loop_run::SECRET));
}

#[test]
fn a_loop_that_starts_while_git_is_away_says_so_and_goes_on_later() {
    let fleet = fleet("loop-away", "{interval: 1s}");
    let mut server = GitServer::start(fleet.repo.path()).unwrap();
    let config = fleet.configuration(&server.url(".git"), "");
    let running = fleet.runs_with(&["--config", &config]);
    fleet.until_value("first");
    fleet.until_ready();
    running.stopped();

    server.close();
    let mut running = fleet.runs_with(&["--config", &config]);
    let said = fleet.until_condition("SourceUnavailable", "Unreachable");
    assert!(said.contains("failed to fetch http://127.0.0.1:"), "{said}");
    running.running.until_says("repository unreachable");
    // An unreachable git server does not affect the probes.
    assert_eq!(running.get("/livez").0, 200);
    assert_eq!(running.get("/readyz").0, 200);
    assert_eq!(
        running
            .number("pleach_source_up{repository=\"fleet\"}")
            .to_bits(),
        0_f64.to_bits()
    );
    fleet.push_value("first", "second");
    server.open().unwrap();
    fleet.until_value("second");
    fleet.until_not("SourceUnavailable");

    // The server becomes unreachable at runtime. The known state is maintained.
    server.close();
    fleet.until_condition("SourceUnavailable", "Unreachable");
    fleet.edit_by_hand("ann");
    fleet.until_value("second");
    running.stopped();
}

#[test]
fn a_repository_without_branches_of_environments_is_followed_on_its_default_branch() {
    let fleet = fleet("loop-trunk", "{interval: 1s}");
    fleet.repo.git(&["branch", "-D", "env/loop-trunk"]).unwrap();
    let repo = fleet.repo.path().to_str().unwrap().to_owned();
    let running = fleet.runs_with(&["--repo", &repo]);
    fleet.until_value("first");
    fleet.edit("manifests/web/web.yaml", "k: first", "k: second");
    fleet.commit();
    fleet.until_value("second");
    running.stopped();
}
