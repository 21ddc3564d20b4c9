//! Cost of a push: short latency for a change, and no work without one.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use pleach_testkit::git_server::GitServer;

use crate::fleet::Fleet;
use crate::loop_run::{SECRET, fleet};

/// Maximum time from the webhook to the first apply request.
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
    let mut best: Option<SignedDuration> = None;
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
        best = Some(best.map_or(took, |best| best.min(took)));
        fleet.until_ready();
    }
    // Other tests run concurrently, so only the best time counts.
    let best = best.unwrap();
    assert!(best.unsigned_abs() < FAST, "{best:#}");
    running.stopped();
}

#[test]
fn a_commit_that_changes_nothing_of_an_environment_costs_nothing() {
    let fleet = fleet("loop-unrelated", "{interval: 1h}");
    let secret = fleet.file("webhook-secret", SECRET);
    let repo = fleet.repo.path().to_str().unwrap().to_owned();
    let webhook = ["--webhook-secret-file", &secret];
    // The log contains every commit that was read, even if it changes nothing.
    let args = ["--repo", &repo, "loop-unrelated", "--verbose"];
    let running = fleet.runs_with(&[&args[..], &webhook].concat());
    fleet.until_ready();
    // The Event is the last request about the first reconcile.
    let events = ["events", "-A", "--field-selector=reason=Deployed"];
    fleet.until("the Event", |fleet| {
        let about = fleet.field(&events, "{.items[*].involvedObject.name}");
        let mut about = about.split_whitespace();
        about.any(|name| name == "loop-unrelated.web").then_some(())
    });
    let took = |verb: &str| {
        running.number(&format!(
            "pleach_reconcile_phase_duration_seconds_count{{phase=\"{verb}\"}}"
        ))
    };
    let unrelated = |fleet: &Fleet, file: &str, text: &str| {
        fleet.write(file, text);
        let commit = fleet.push(file);
        running.pushed();
        fleet.until(file, |_| {
            running.running.said().contains(&commit).then_some(())
        });
    };
    let (rendered, planned) = (took("render"), took("plan"));
    let ((), events) = fleet.watched(|fleet| {
        // These files are not read: another bundle, another environment, text.
        for (file, text) in [
            ("README.md", "Read me.\n"),
            ("manifests/other/other.yaml", "kind: [\n"),
            ("environments/other.yaml", "kind: [\n"),
        ] {
            unrelated(fleet, file, text);
        }
        assert_eq!(took("render").to_bits(), rendered.to_bits());
        // These files must be read to detect that the desired state is the same.
        fleet.write("manifests/web/.notes.yaml", "a: b\n");
        let text = fleet.read("manifests/web/web.yaml");
        fleet.write("manifests/web/web.yaml", &format!("{text}# Words.\n"));
        fleet.push("words");
        running.pushed();
        fleet.until("the words to be read", |_| {
            (took("render") > rendered).then_some(())
        });
        // Once the next commit is read, the work of the previous one is done.
        unrelated(fleet, "README.md", "Read me again.\n");
    });
    assert_eq!(events.to_string(), "");
    // Only the next commit with a change is planned.
    fleet.push_value("first", "second");
    running.pushed();
    fleet.until_value("second");
    let after = (took("render"), took("plan"));
    assert_eq!(after, (rendered + 2.0, planned + 1.0));
    running.stopped();
}
