//! What a push costs: little time where it changes something, and nothing where
//! it does not.

use std::time::Duration;

use jiff::Timestamp;
use pleach_testkit::git_server::GitServer;

use crate::loop_run::{SECRET, fleet};

/// From the webhook to the first request that applies something.
const FAST: Duration = Duration::from_secs(2);

#[test]
fn a_push_is_applied_within_two_seconds() {
    let fleet = fleet("loop-fast", "{interval: 1h}");
    let server = GitServer::start(fleet.repo.path()).unwrap();
    let secret = fleet.file("webhook-secret", SECRET);
    let text = fleet.configuration_text(&server.url(".git"), "");
    let forge = format!("    forge: {{kind: github, webhookSecretFile: {secret}}}\n");
    let text = text.replace(
        "    environments:\n",
        &format!("{forge}    environments:\n"),
    );
    let config = fleet.file("loop.yaml", &text);
    let running = fleet.runs_with(&["--config", &config]);
    fleet.until_value("first");
    fleet.until_ready();
    for (from, to) in [
        ("first", "second"),
        ("second", "third"),
        ("third", "fourth"),
    ] {
        fleet.push_value(from, to);
        let pushed = Timestamp::now();
        let ((), events) = fleet.watched(|fleet| {
            running.pushed();
            fleet.until_value(to);
        });
        let applied = events.writes().filter(|event| {
            let object = event.object_ref.as_ref();
            event.verb == "patch" && object.is_some_and(|object| object.name == "web")
        });
        let first = applied.0.first().expect("the ConfigMap was applied");
        let took = first.request_received_timestamp.duration_since(pushed);
        println!("from the push of {to} to its first apply: {took:#}");
        assert!(took.unsigned_abs() < FAST, "{took:#}");
        fleet.until_ready();
    }
    running.stopped();
}

#[test]
fn a_commit_that_changes_nothing_of_an_environment_is_not_rendered() {
    let fleet = fleet("loop-unrelated", "{interval: 1h}");
    let running = fleet.runs();
    fleet.until_ready();
    let looks = || running.looks("loop-unrelated", "web", "deployed");
    fleet.until("the first look", |_| (looks() > 0.0).then_some(()));
    let rendered = || running.number("pleach_verb_duration_seconds_count{verb=\"render\"}");
    let fetched =
        || running.number("pleach_source_fetch_timestamp_seconds{repository=\"repository\"}");
    let before = rendered();
    let ((), events) = fleet.watched(|fleet| {
        for (file, text) in [
            ("README.md", "Read me.\n"),
            ("manifests/web/.notes.yaml", "a: b\n"),
            ("manifests/other/other.yaml", "kind: [\n"),
        ] {
            let since = fetched();
            fleet.write(file, text);
            fleet.push(file);
            running.pushed();
            fleet.until("the fetch", |_| (fetched() > since).then_some(()));
        }
    });
    assert_eq!(crate::fleet::object_writes(&events), [""; 0]);
    assert_eq!(events.dry_runs().to_string(), "");
    // The next one that changes something is the only one that was read.
    fleet.push_value("first", "second");
    running.pushed();
    fleet.until_value("second");
    assert!((rendered() - before - 1.0).abs() < f64::EPSILON);
    running.stopped();
}
