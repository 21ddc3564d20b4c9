//! Controller events as log lines and metrics.

mod entry;

use std::collections::BTreeMap;
use std::time::Duration;

use pleach_model::object::{ObjectId, ReleaseName};
use tokio::time::{Instant, MissedTickBehavior, interval};

use entry::{Entry, Level};
use pleach_controller::board::BoardWriter;
#[cfg(feature = "otlp")]
use pleach_controller::server::traces::Traces;
use pleach_controller::server::{metrics::Metrics, notifications::Notifier};
use pleach_controller::{
    ControllerEvent as Event, EventReceivers, Previewed, ReconcileOutcome, statuses::Statuses,
};
use pleach_engine::sync::events::{EventKind, StepOutcome, SyncEvent, WaitState};
use pleach_engine::sync::node_progress::NodeChange;
use pleach_state::inventory::NodePhase;

/// Receivers of controller events besides the log.
pub(super) struct Listeners<'a> {
    pub(super) metrics: &'a Metrics,
    pub(super) statuses: Statuses,
    pub(super) notifier: Notifier,
    /// The board of the web page, if there is one.
    pub(super) board: Option<BoardWriter>,
    pub(super) waits: Waits,
    #[cfg(feature = "otlp")]
    pub(super) traces: Option<Traces>,
}

/// Minimum duration of a wait in a run to be logged.
const SHORT: Duration = Duration::from_secs(5);
/// Minimum interval between two log lines about the waits of one run.
const CHANGES: Duration = Duration::from_secs(10);
/// Interval at which an unchanged wait is logged again.
const REMINDER: Duration = Duration::from_mins(1);
/// Minimum interval between two versions of the web page.
const PUBLISH: Duration = Duration::from_millis(100);

/// Waits that were already logged.
#[derive(Debug, Default)]
pub(super) struct Waits {
    /// Waits before a run.
    releases: BTreeMap<ReleaseName, (ReconcileOutcome, String)>,
    /// Waits in a run: time of the last line, and the last message of each object.
    runs: BTreeMap<ReleaseName, (Instant, BTreeMap<ObjectId, String>)>,
}

impl Waits {
    /// Returns whether to log a wait: when it changes, and once per minute.
    fn is_due(&mut self, release: &ReleaseName, state: &WaitState, now: Instant) -> bool {
        if state.since < SHORT {
            return false;
        }
        let (at, known) = self
            .runs
            .entry(release.clone())
            .or_insert((now, BTreeMap::new()));
        let is_new = known.get(&state.object) != Some(&state.message);
        let pause = if is_new { CHANGES } else { REMINDER };
        let is_due = known.is_empty() || now >= *at + pause;
        if is_due {
            *at = now;
            known.insert(state.object.clone(), state.message.clone());
        }
        is_due
    }

    /// Returns whether the result of a reconcile is not in the log yet.
    fn is_change(
        &mut self,
        release: &ReleaseName,
        outcome: ReconcileOutcome,
        message: &str,
    ) -> bool {
        match outcome {
            ReconcileOutcome::Waiting | ReconcileOutcome::Suspended => {
                let now = (outcome, message.to_owned());
                self.releases.insert(release.clone(), now.clone()) != Some(now)
            }
            // An interrupted run continues to wait.
            ReconcileOutcome::Superseded | ReconcileOutcome::Interrupted => false,
            _ => {
                self.releases.remove(release);
                false
            }
        }
    }
}

impl Listeners<'_> {
    /// Listens until the controller has ended.
    pub(super) async fn listen(mut self, received: EventReceivers) {
        let EventReceivers {
            mut events,
            mut syncs,
        } = received;
        let mut publishing = interval(PUBLISH);
        publishing.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let is_changed = self.board.as_ref().is_some_and(BoardWriter::is_changed);
            tokio::select! {
                Some(event) = events.recv() => self.receive(&event),
                Some(event) = syncs.recv() => {
                    if let Some(board) = &mut self.board {
                        board.process_sync(&event);
                    }
                    #[cfg(feature = "otlp")]
                    if let Some(traces) = &mut self.traces {
                        traces.process_sync(&event);
                    }
                    self.metrics.count_sync(&event);
                    log_sync(&event, &mut self.waits);
                }
                _ = publishing.tick(), if is_changed => if let Some(board) = &mut self.board {
                    board.publish();
                },
                else => break,
            }
        }
        #[cfg(feature = "otlp")]
        if let Some(traces) = self.traces {
            traces.end().await;
        }
    }

    fn receive(&mut self, event: &Event) {
        self.metrics.count(event);
        self.statuses.process(event);
        if let Some(board) = &mut self.board {
            board.process(event);
        }
        #[cfg(feature = "otlp")]
        if let Some(traces) = &mut self.traces {
            traces.process(event);
        }
        if let Event::ReconcileFinished {
            release,
            revision,
            outcome,
            message,
            ..
        } = event
            && self.waits.is_change(release, *outcome, message)
        {
            let text = format!("{}: {message}", outcome.as_str());
            let entry = Entry::of_release(release, outcome.as_str(), text).at(revision);
            entry.write(Level::Info);
        }
        log(event);
        if let Event::StateChanged(news) = event {
            self.notifier.report(news);
        }
    }
}

/// Shortens a commit id.
fn short(revision: &str) -> &str {
    let is_commit = revision.len() == 40 && revision.bytes().all(|byte| byte.is_ascii_hexdigit());
    if is_commit { &revision[..7] } else { revision }
}

/// Formats a duration in seconds, such as `11.9 s`.
fn seconds(duration: Duration) -> String {
    format!("{:.1} s", duration.as_secs_f64())
}

fn log(event: &Event) {
    match event {
        Event::Fetched {
            repository,
            branches,
            took,
        } => {
            let message = format!("fetched {branches} branches, {}", seconds(*took));
            let entry = Entry::of_repository(repository, "fetched", message);
            entry.took(*took).write(Level::Debug);
        }
        Event::SourceUnreachable {
            repository,
            message,
        } => log_unreachable_source(repository, "repository", message),
        Event::ForgeUnreachable {
            repository,
            message,
        } => log_unreachable_source(repository, "forge", message),
        Event::ReplicasChanged { replicas } => log_replicas(*replicas),
        Event::StateChanged(_)
        | Event::Recorded { .. }
        | Event::Unobserved { .. }
        | Event::ReconcileStarted { .. }
        | Event::QueueChanged { .. }
        | Event::HealthChecked { .. }
        | Event::Contended { .. }
        | Event::Planned { .. }
        | Event::PlanExecuted { .. } => {}
        Event::LeadershipChanged { .. }
        | Event::OwnerChanged { .. }
        | Event::EnvironmentLoaded { .. }
        | Event::EnvironmentUnchanged { .. }
        | Event::EnvironmentStalled { .. }
        | Event::ClusterUnreachable { .. } => log_environment(event),
        Event::Applying {
            release,
            revision,
            changes,
        } => {
            let message = format!("applying {}: {changes}", short(revision));
            let entry = Entry::of_release(release, "applying", message);
            entry.at(revision).write(Level::Info);
        }
        Event::DriftDetected { release, objects } => {
            let message = format!("{objects} objects changed");
            Entry::of_release(release, "changed", message).write(Level::Debug);
        }
        Event::ReconcileFinished {
            release,
            cluster: _,
            revision,
            outcome,
            message,
            is_correction,
            public_message: _,
            retained,
            took,
        } => {
            if let Some(retained) = retained
                .as_ref()
                .filter(|retained| retained.outcome != ReconcileOutcome::Unchanged)
            {
                log_outcome(
                    release,
                    &retained.revision,
                    (retained.outcome, true),
                    &retained.message,
                    *took,
                );
            }
            log_outcome(
                release,
                revision,
                (*outcome, *is_correction),
                message,
                *took,
            );
        }
        Event::Previewed { .. } => log_preview(event),
    }
}

fn log_unreachable_source(repository: &str, part: &str, message: &str) {
    let message = format!("{part} unreachable: {message}");
    Entry::of_repository(repository, "unreachable", message).write(Level::Warn);
}

fn log_environment(event: &Event) {
    match event {
        Event::LeadershipChanged { environment, leads } => {
            let verb = if *leads { "leads" } else { "no longer leads" };
            let message = format!("this replica {verb} the environment");
            Entry::of_environment(environment, "leadership", message).write(Level::Info);
        }
        Event::OwnerChanged {
            environment,
            cluster,
            owner,
        } => {
            let message = format!("environment claimed on cluster {cluster:?}: {owner:?}");
            Entry::of_environment(environment, "claimed", message).write(Level::Debug);
        }
        Event::EnvironmentLoaded {
            environment,
            revision,
            releases,
            stalled,
            took,
            ..
        } => {
            let (commit, count) = (short(revision), releases.len());
            let message = format!("loaded {commit}: {count} releases, {}", seconds(*took));
            let entry = Entry::of_environment(environment, "loaded", message);
            entry.at(revision).took(*took).write(Level::Info);
            for (release, message) in stalled {
                let entry = Entry {
                    release: Some(release),
                    ..Entry::of_environment(
                        environment,
                        "release stalled",
                        format!("release stalled: {message}"),
                    )
                };
                entry.at(revision).write(Level::Error);
            }
        }
        Event::EnvironmentUnchanged {
            environment,
            revision,
            ..
        } => {
            let message = format!("{} does not change the environment", short(revision));
            let entry = Entry::of_environment(environment, "unchanged", message);
            entry.at(revision).write(Level::Debug);
        }
        Event::EnvironmentStalled {
            environment,
            revision,
            reason,
            message,
            ..
        } => {
            let message = format!("environment stalled: {reason}: {message}");
            let entry = Entry::of_environment(environment, "environment stalled", message);
            let entry = Entry {
                commit: revision.as_deref(),
                ..entry
            };
            entry.write(Level::Error);
        }
        Event::ClusterUnreachable {
            environment,
            message,
        } => {
            let message = format!("cluster unreachable: {message}");
            Entry::of_environment(environment, "unreachable", message).write(Level::Warn);
        }
        _ => {}
    }
}

fn log_replicas(replicas: usize) {
    match replicas {
        0 => {
            let message = "cut off from the other replicas".to_owned();
            Entry::new("replicas", message).write(Level::Error);
        }
        _ => Entry::new("replicas", format!("replicas: {replicas}")).write(Level::Info),
    }
}

fn log_preview(event: &Event) {
    let Event::Previewed {
        repository,
        number,
        head,
        previewed,
        message,
        took,
    } = event
    else {
        return;
    };
    let (result, level) = match previewed {
        Previewed::Failed => ("not previewed", Level::Warn),
        _ => ("previewed", Level::Info),
    };
    let message = format!(
        "pull request {number} {result} at {}: {}: {message}, {}",
        short(head),
        previewed.as_str(),
        seconds(*took)
    );
    let entry = Entry::of_repository(repository, result, message);
    entry.at(head).took(*took).write(level);
}

fn log_outcome(
    name: &ReleaseName,
    revision: &str,
    (outcome, is_correction): (ReconcileOutcome, bool),
    message: &str,
    took: Duration,
) {
    let (mut action, mut level) = (outcome.as_str(), level_of(outcome));
    if outcome == ReconcileOutcome::Deployed && is_correction {
        (action, level) = ("drift corrected", Level::Warn);
    }
    let mut text = match action {
        "drift corrected" => action.to_owned(),
        _ => format!("{action} {}", short(revision)),
    };
    if !message.is_empty() {
        text = format!("{text}: {message}");
    }
    text = format!("{text}, {}", seconds(took));
    let entry = Entry::of_release(name, action, text);
    entry.at(revision).took(took).write(level);
}

fn level_of(outcome: ReconcileOutcome) -> Level {
    match outcome {
        ReconcileOutcome::Unchanged | ReconcileOutcome::Suspended | ReconcileOutcome::Waiting => {
            Level::Debug
        }
        ReconcileOutcome::Deployed
        | ReconcileOutcome::Removed
        | ReconcileOutcome::Superseded
        | ReconcileOutcome::Interrupted => Level::Info,
        ReconcileOutcome::Unapproved | ReconcileOutcome::Drifted => Level::Warn,
        ReconcileOutcome::Failed | ReconcileOutcome::Refused => Level::Error,
    }
}

/// Logs begin, end and failure of the change of a node. The failure has a line of its own.
fn log_node(release: &ReleaseName, change: &NodeChange) {
    let name = &change.node.name;
    let level = match change.node.phase {
        NodePhase::Done => Level::Info,
        _ => Level::Debug,
    };
    let (before, now) = (change.before.as_str(), change.node.phase.as_str());
    let message = format!(
        "node {name}: {now}, after {} {before}",
        seconds(change.took)
    );
    let entry = Entry::of_release(release, "node", message);
    entry.took(change.took).write(level);
}

fn log_sync(event: &SyncEvent, waits: &mut Waits) {
    let name = &event.release;
    match &event.kind {
        EventKind::Queued(holder) => {
            let message = format!("another client applies the release: {holder}");
            Entry::of_release(name, "queued", message).write(Level::Info);
        }
        EventKind::Waiting(_, state) => {
            let WaitState {
                object,
                message,
                since,
            } = state;
            let level = if waits.is_due(name, state, Instant::now()) {
                Level::Info
            } else {
                Level::Debug
            };
            let message = format!("waiting for {object}: {message} ({} s)", since.as_secs());
            let entry = Entry::of_release(name, "waiting", message);
            entry.on(object).took(*since).write(level);
        }
        EventKind::Finished(_) => drop(waits.runs.remove(name)),
        EventKind::Done(_, object, StepOutcome::Failed(failure)) => {
            let message = format!("step failed: {object}: {}", failure.message);
            let entry = Entry::of_release(name, "step failed", message);
            entry.on(object).write(Level::Warn);
        }
        EventKind::Warning(finding) => {
            Entry::of_release(name, "warning", finding.to_string()).write(Level::Warn);
        }
        EventKind::Node(change) => log_node(name, change),
        EventKind::Phase(_)
        | EventKind::Nodes(_)
        | EventKind::Evicted(_)
        | EventKind::Started(_)
        | EventKind::Applied(_)
        | EventKind::Retrying(..)
        | EventKind::Done(..) => {}
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::sync::{Arc, Mutex};

    use pleach_planner::plan::StepId;

    use super::*;
    use crate::cli::log_format::LogLines;
    use crate::cli::run::LogFormat;
    use pleach_engine::sync::report::SyncResult;

    #[derive(Clone, Default)]
    struct Tape(Arc<Mutex<Vec<u8>>>);

    impl Write for Tape {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().unwrap().write(bytes)
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    fn web() -> ReleaseName {
        ReleaseName {
            environment: "staging".to_owned(),
            release: "web".to_owned(),
        }
    }

    fn reconciled(message: &str, is_correction: bool) -> Event {
        Event::ReconcileFinished {
            release: web(),
            cluster: None,
            revision: "9683080".to_owned(),
            outcome: ReconcileOutcome::Deployed,
            message: message.to_owned(),
            public_message: String::new(),
            is_correction,
            retained: None,
            took: Duration::from_secs(12),
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_run_is_logged_from_its_start_to_its_result() {
        let tape = Tape::default();
        let writer = tape.clone();
        let subscriber = tracing_subscriber::fmt()
            .with_writer(move || writer.clone())
            .with_ansi(false)
            .event_format(LogLines(LogFormat::Text))
            .finish();
        let guard = tracing::subscriber::set_default(subscriber);
        let mut waits = Waits::default();
        let waiting = |seconds, message: &str| SyncEvent {
            release: web(),
            kind: EventKind::Waiting(
                StepId(0),
                WaitState {
                    object: "Deployment.apps/shop/search".parse().unwrap(),
                    message: message.to_owned(),
                    since: Duration::from_secs(seconds),
                },
            ),
        };
        log(&Event::Applying {
            release: web(),
            revision: "9683080".to_owned(),
            changes: "2 to update, 1 to delete".to_owned(),
        });
        // Short waits are not logged. Longer ones are logged when they change, and once per minute.
        for (second, message) in [
            (1, "0 of 3 replicas ready"),
            (8, "1 of 3 replicas ready"),
            (18, "1 of 3 replicas ready"),
            (20, "2 of 3 replicas ready"),
            (21, "1 of 3 replicas ready"),
            (79, "2 of 3 replicas ready"),
            (80, "2 of 3 replicas ready"),
        ] {
            log_sync(&waiting(second, message), &mut waits);
            tokio::time::advance(Duration::from_secs(1)).await;
            let next = match second {
                1 => 6,
                8 => 9,
                21 => 57,
                _ => 0,
            };
            tokio::time::advance(Duration::from_secs(next)).await;
        }
        let finished = EventKind::Finished(SyncResult::default());
        log_sync(
            &SyncEvent {
                release: web(),
                kind: finished,
            },
            &mut waits,
        );
        assert!(waits.runs.is_empty());
        log(&reconciled("2 updated, 1 deleted", false));
        log(&reconciled(
            "Deployment.apps/shop/cart: .spec.replicas changed by kubectl",
            true,
        ));
        drop(guard);
        let shown = String::from_utf8(tape.0.lock().unwrap().clone()).unwrap();
        // Without the time.
        let lines: Vec<&str> = shown.lines().map(|line| &line[9..]).collect();
        insta::assert_snapshot!(lines.join("\n"), @r"
        INFO  staging/web  applying 9683080: 2 to update, 1 to delete
        INFO  staging/web  waiting for Deployment.apps/shop/search: 1 of 3 replicas ready (8 s)
        INFO  staging/web  waiting for Deployment.apps/shop/search: 2 of 3 replicas ready (20 s)
        INFO  staging/web  waiting for Deployment.apps/shop/search: 2 of 3 replicas ready (80 s)
        INFO  staging/web  deployed 9683080: 2 updated, 1 deleted, 12.0 s
        WARN  staging/web  drift corrected: Deployment.apps/shop/cart: .spec.replicas changed by kubectl, 12.0 s
        ");
    }

    #[test]
    fn a_wait_is_logged_once_per_change() {
        let release = ReleaseName {
            environment: "staging".to_owned(),
            release: "web".to_owned(),
        };
        let mut waits = Waits::default();
        let mut news = |outcome, message: &str| waits.is_change(&release, outcome, message);
        assert!(news(ReconcileOutcome::Waiting, "it depends on a"));
        assert!(!news(ReconcileOutcome::Waiting, "it depends on a"));
        assert!(!news(ReconcileOutcome::Superseded, ""));
        assert!(!news(ReconcileOutcome::Waiting, "it depends on a"));
        assert!(news(ReconcileOutcome::Waiting, "it depends on b"));
        assert!(news(ReconcileOutcome::Suspended, "it depends on b"));
        assert!(!news(ReconcileOutcome::Deployed, ""));
        assert!(news(ReconcileOutcome::Suspended, "it depends on b"));
    }
}
