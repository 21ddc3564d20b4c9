//! Controller events as log lines and metrics.

use std::collections::BTreeMap;
use std::time::Duration;

use pleach_model::object::ReleaseName;
use tokio::time::Instant;

#[cfg(feature = "otlp")]
use pleach_controller::server::traces::Traces;
use pleach_controller::server::{metrics::Metrics, notifications::Notifier};
use pleach_controller::{
    ControllerEvent as Event, Heard, Previewed, ReconcileOutcome, statuses::Statuses,
};
use pleach_engine::sync::events::{EventKind, StepOutcome, SyncEvent, WaitState};

/// Receivers of controller events besides the log.
pub(super) struct Listeners<'a> {
    pub(super) metrics: &'a Metrics,
    pub(super) statuses: Statuses,
    pub(super) notifier: Notifier,
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

/// Waits that were already logged.
#[derive(Debug, Default)]
pub(super) struct Waits {
    /// Waits before a run.
    releases: BTreeMap<ReleaseName, (ReconcileOutcome, String)>,
    /// Waits in a run: last line and its time.
    runs: BTreeMap<ReleaseName, (Instant, String)>,
}

impl Waits {
    /// Returns whether to log a wait: when it changes, and once per minute.
    fn is_due(&mut self, release: &ReleaseName, state: &WaitState, now: Instant) -> bool {
        if state.since < SHORT {
            return false;
        }
        let line = format!("{}: {}", state.object, state.message);
        let is_due = self.runs.get(release).is_none_or(|(at, last)| {
            let pause = if *last == line { REMINDER } else { CHANGES };
            now >= *at + pause
        });
        if is_due {
            self.runs.insert(release.clone(), (now, line));
        }
        is_due
    }

    /// Returns whether the result of a reconcile is not in the log yet.
    fn is_change(&mut self, release: &ReleaseName, end: ReconcileOutcome, message: &str) -> bool {
        match end {
            ReconcileOutcome::Waiting | ReconcileOutcome::Suspended => {
                let now = (end, message.to_owned());
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
    pub(super) async fn listen(mut self, received: Heard) {
        let Heard {
            mut events,
            mut syncs,
        } = received;
        loop {
            tokio::select! {
                Some(event) = events.recv() => self.receive(&event),
                Some(event) = syncs.recv() => {
                    #[cfg(feature = "otlp")]
                    if let Some(traces) = &mut self.traces {
                        traces.hear_sync(&event);
                    }
                    log_sync(&event, &mut self.waits);
                }
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
        self.statuses.hear(event);
        #[cfg(feature = "otlp")]
        if let Some(traces) = &mut self.traces {
            traces.hear(event);
        }
        if let Event::ReconcileFinished {
            release,
            revision,
            end,
            message,
            ..
        } = event
            && self.waits.is_change(release, *end, message)
        {
            let (environment, name, result) = (&release.environment, &release.release, end.word());
            tracing::info!(%environment, release = %name, %revision, result, detail = %message, "release waits");
        }
        log(event);
        if let Event::StateChanged(news) = event {
            self.notifier.report(news);
        }
    }
}

fn log(event: &Event) {
    match event {
        Event::Fetched {
            repository,
            branches,
            took,
        } => tracing::debug!(%repository, branches, took = took.as_secs_f64(), "fetched"),
        Event::SourceUnreachable {
            repository,
            message,
        } => tracing::warn!(%repository, error = %message, "repository unreachable"),
        Event::ReplicasChanged { there } => log_replicas(*there),
        Event::LeadershipChanged { environment, leads } => {
            tracing::info!(%environment, leads, "leadership changed");
        }
        Event::Claimed {
            environment,
            cluster,
            by,
        } => tracing::debug!(%environment, ?cluster, ?by, "environment claimed"),
        Event::EnvironmentLoaded {
            environment,
            revision,
            releases,
            held,
            took,
            ..
        } => {
            let releases = releases.len();
            tracing::info!(%environment, %revision, releases, took = took.as_secs_f64(), "environment loaded");
            for (release, message) in held {
                tracing::error!(%environment, %release, %revision, error = %message, "release stalled");
            }
        }
        Event::EnvironmentUnchanged {
            environment,
            revision,
            ..
        } => tracing::debug!(%environment, %revision, "environment unchanged"),
        Event::EnvironmentStalled {
            environment,
            reason,
            message,
            ..
        } => tracing::error!(%environment, %reason, error = %message, "environment stalled"),
        Event::ClusterUnreachable {
            environment,
            message,
        } => tracing::warn!(%environment, error = %message, "cluster unreachable"),
        Event::StateChanged(_)
        | Event::ReconcileStarted { .. }
        | Event::QueueChanged { .. }
        | Event::HealthChecked { .. }
        | Event::Contended { .. }
        | Event::Planned { .. }
        | Event::PlanExecuted { .. } => {}
        Event::Applying {
            release,
            revision,
            changes,
        } => {
            let (environment, release) = (&release.environment, &release.release);
            tracing::info!(%environment, %release, %revision, %changes, "applying");
        }
        Event::DriftDetected { release, objects } => {
            let environment = &release.environment;
            let release = &release.release;
            tracing::debug!(%environment, %release, objects, "objects changed");
        }
        Event::ReconcileFinished {
            release,
            cluster: _,
            revision,
            end,
            message,
            is_correction,
            about: _,
            kept,
            took,
        } => {
            if let Some(kept) = kept
                .as_ref()
                .filter(|kept| kept.end != ReconcileOutcome::Unchanged)
            {
                log_outcome(
                    release,
                    &kept.revision,
                    (kept.end, true),
                    &kept.message,
                    *took,
                );
            }
            log_outcome(release, revision, (*end, *is_correction), message, *took);
        }
        Event::Previewed { .. } => log_preview(event),
        Event::ForgeUnreachable {
            repository,
            message,
        } => tracing::warn!(%repository, error = %message, "forge unreachable"),
    }
}

fn log_replicas(there: usize) {
    match there {
        0 => tracing::error!("cut off from the other replicas"),
        there => tracing::info!(replicas = there, "number of replicas changed"),
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
    let took = took.as_secs_f64();
    let result = previewed.word();
    match previewed {
        Previewed::Failed => {
            tracing::warn!(%repository, number, %head, result, took, error = %message, "pull request not previewed");
        }
        _ => {
            tracing::info!(%repository, number, %head, result, took, detail = %message, "pull request previewed");
        }
    }
}

fn log_outcome(
    name: &ReleaseName,
    revision: &str,
    (end, is_correction): (ReconcileOutcome, bool),
    message: &str,
    took: Duration,
) {
    let ReleaseName {
        environment,
        release,
    } = name;
    let (took, result) = (took.as_secs_f64(), end.word());
    match end {
        ReconcileOutcome::Unchanged | ReconcileOutcome::Suspended | ReconcileOutcome::Waiting => {
            tracing::debug!(%environment, %release, %revision, result, took, detail = %message, "release checked");
        }
        ReconcileOutcome::Deployed if is_correction => {
            tracing::warn!(%environment, %release, %revision, result, took, detail = %message, "drift corrected");
        }
        ReconcileOutcome::Deployed
        | ReconcileOutcome::Removed
        | ReconcileOutcome::Superseded
        | ReconcileOutcome::Interrupted => {
            tracing::info!(%environment, %release, %revision, result, took, detail = %message, "release synced");
        }
        ReconcileOutcome::Unapproved => {
            tracing::warn!(%environment, %release, %revision, result, took, detail = %message, "release not synced");
        }
        ReconcileOutcome::Drifted => {
            tracing::warn!(%environment, %release, %revision, result, took, detail = %message, "release drifted");
        }
        ReconcileOutcome::Failed | ReconcileOutcome::Refused => {
            tracing::error!(%environment, %release, %revision, result, took, error = %message, "release not synced");
        }
    }
}

fn log_sync(event: &SyncEvent, waits: &mut Waits) {
    let environment = &event.release.environment;
    let release = &event.release.release;
    match &event.kind {
        EventKind::Queued(holder) => {
            tracing::info!(%environment, %release, %holder, "another client applies the release");
        }
        EventKind::Waiting(_, state) => {
            let (object, detail, seconds) = (&state.object, &state.message, state.since.as_secs());
            if waits.is_due(&event.release, state, Instant::now()) {
                tracing::info!(%environment, %release, %object, %detail, seconds, "waiting");
            } else {
                tracing::debug!(%environment, %release, %object, %detail, seconds, "waiting");
            }
        }
        EventKind::Finished(_) => drop(waits.runs.remove(&event.release)),
        EventKind::Done(_, object, StepOutcome::Failed(failure)) => {
            tracing::warn!(%environment, %release, %object, error = %failure.message, "step failed");
        }
        EventKind::Warning(finding) => {
            tracing::warn!(%environment, %release, detail = %finding, "warning");
        }
        EventKind::Phase(_)
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
            end: ReconcileOutcome::Deployed,
            message: message.to_owned(),
            about: String::new(),
            is_correction,
            kept: None,
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
            .with_target(false)
            .without_time()
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
            "Deployment.apps/shop/cart: changed by kubectl",
            true,
        ));
        drop(guard);
        let shown = String::from_utf8(tape.0.lock().unwrap().clone()).unwrap();
        let lines: Vec<&str> = shown.lines().map(str::trim).collect();
        insta::assert_snapshot!(lines.join("\n"), @r#"
        INFO applying environment=staging release=web revision=9683080 changes=2 to update, 1 to delete
        INFO waiting environment=staging release=web object=Deployment.apps/shop/search detail=1 of 3 replicas ready seconds=8
        INFO waiting environment=staging release=web object=Deployment.apps/shop/search detail=2 of 3 replicas ready seconds=20
        INFO waiting environment=staging release=web object=Deployment.apps/shop/search detail=2 of 3 replicas ready seconds=80
        INFO release synced environment=staging release=web revision=9683080 result="deployed" took=12.0 detail=2 updated, 1 deleted
        WARN drift corrected environment=staging release=web revision=9683080 result="deployed" took=12.0 detail=Deployment.apps/shop/cart: changed by kubectl
        "#);
    }

    #[test]
    fn a_wait_is_logged_once_per_change() {
        let release = ReleaseName {
            environment: "staging".to_owned(),
            release: "web".to_owned(),
        };
        let mut waits = Waits::default();
        let mut news = |end, message: &str| waits.is_change(&release, end, message);
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
