//! Events of the loop as log lines and numbers.

use std::collections::BTreeMap;
use std::time::Duration;

use pleach_domain::inventory::ReleaseName;

use crate::engine::controller::statuses::Statuses;
use crate::engine::controller::{End, Heard, LoopEvent, Previewed};
use crate::engine::sync::events::{EventKind, Outcome, SyncEvent};
use crate::server::metrics::Metrics;
use crate::server::notifications::Notifier;
#[cfg(feature = "otlp")]
use crate::server::traces::Traces;

/// Who hears of what the loop does, beside the log.
pub(super) struct Listeners<'a> {
    pub(super) metrics: &'a Metrics,
    pub(super) statuses: Statuses,
    pub(super) notifier: Notifier,
    pub(super) waits: Waits,
    #[cfg(feature = "otlp")]
    pub(super) traces: Option<Traces>,
}

/// What releases wait for, as far as the log has it.
#[derive(Debug, Default)]
pub(super) struct Waits(BTreeMap<ReleaseName, (End, String)>);

impl Waits {
    /// Whether a look says something that the log does not have yet.
    fn is_news(&mut self, release: &ReleaseName, end: End, message: &str) -> bool {
        match end {
            End::Waiting | End::Suspended => {
                let now = (end, message.to_owned());
                self.0.insert(release.clone(), now.clone()) != Some(now)
            }
            // It was stopped, and goes on waiting.
            End::Superseded | End::Interrupted => false,
            _ => {
                self.0.remove(release);
                false
            }
        }
    }
}

impl Listeners<'_> {
    /// Listens until the loop has ended.
    pub(super) async fn listen(mut self, heard: Heard) {
        let Heard {
            mut events,
            mut syncs,
        } = heard;
        loop {
            tokio::select! {
                Some(event) = events.recv() => self.hear(&event),
                Some(event) = syncs.recv() => {
                    #[cfg(feature = "otlp")]
                    if let Some(traces) = &mut self.traces {
                        traces.hear_sync(&event);
                    }
                    log_sync(&event);
                }
                else => break,
            }
        }
        #[cfg(feature = "otlp")]
        if let Some(traces) = self.traces {
            traces.end().await;
        }
    }

    fn hear(&mut self, event: &LoopEvent) {
        self.metrics.count(event);
        self.statuses.hear(event);
        #[cfg(feature = "otlp")]
        if let Some(traces) = &mut self.traces {
            traces.hear(event);
        }
        if let LoopEvent::Looked {
            release,
            revision,
            end,
            message,
            ..
        } = event
            && self.waits.is_news(release, *end, message)
        {
            let (environment, name, result) = (&release.environment, &release.release, end.word());
            tracing::info!(%environment, release = %name, %revision, result, detail = %message, "release waits");
        }
        log(event);
        if let LoopEvent::News(news) = event {
            self.notifier.tell(news);
        }
    }
}

fn log(event: &LoopEvent) {
    match event {
        LoopEvent::Fetched {
            repository,
            branches,
            took,
        } => tracing::debug!(%repository, branches, took = took.as_secs_f64(), "fetched"),
        LoopEvent::Unreachable {
            repository,
            message,
        } => tracing::warn!(%repository, error = %message, "repository unreachable"),
        LoopEvent::Sharing { there: 0 } => tracing::error!("cut off from the other replicas"),
        LoopEvent::Sharing { there } => tracing::info!(replicas = there, "work is shared"),
        LoopEvent::Led { environment, leads } => {
            tracing::info!(%environment, leads, "environment led");
        }
        LoopEvent::Loaded {
            environment,
            revision,
            releases,
            held,
            took,
            ..
        } => {
            let releases = releases.len();
            tracing::info!(%environment, %revision, releases, took = took.as_secs_f64(), "environment read");
            for (release, message) in held {
                tracing::error!(%environment, %release, %revision, error = %message, "release held");
            }
        }
        LoopEvent::Unaffected {
            environment,
            revision,
            ..
        } => tracing::debug!(%environment, %revision, "environment unaffected"),
        LoopEvent::Held {
            environment,
            reason,
            message,
            ..
        } => tracing::error!(%environment, %reason, error = %message, "environment held"),
        LoopEvent::Unconnected {
            environment,
            message,
        } => tracing::warn!(%environment, error = %message, "cluster unreachable"),
        LoopEvent::News(_)
        | LoopEvent::Looking { .. }
        | LoopEvent::Queued { .. }
        | LoopEvent::Health { .. }
        | LoopEvent::Contended { .. }
        | LoopEvent::Planned { .. }
        | LoopEvent::Carried { .. } => {}
        LoopEvent::Changed { release, objects } => {
            let environment = &release.environment;
            let release = &release.release;
            tracing::debug!(%environment, %release, objects, "objects changed");
        }
        LoopEvent::Looked {
            release,
            cluster: _,
            revision,
            end,
            message,
            kept,
            took,
        } => {
            if let Some(kept) = kept.as_ref().filter(|kept| kept.end != End::Unchanged) {
                log_look(release, &kept.revision, kept.end, &kept.message, *took);
            }
            log_look(release, revision, *end, message, *took);
        }
        LoopEvent::Previewed {
            repository,
            number,
            head,
            previewed,
            message,
            took,
        } => {
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
        LoopEvent::Untold {
            repository,
            message,
        } => tracing::warn!(%repository, error = %message, "forge cannot be asked"),
    }
}

fn log_look(name: &ReleaseName, revision: &str, end: End, message: &str, took: Duration) {
    let ReleaseName {
        environment,
        release,
    } = name;
    let (took, result) = (took.as_secs_f64(), end.word());
    match end {
        End::Unchanged | End::Suspended | End::Waiting => {
            tracing::debug!(%environment, %release, %revision, result, took, detail = %message, "release looked at");
        }
        End::Deployed | End::Removed | End::Superseded | End::Interrupted => {
            tracing::info!(%environment, %release, %revision, result, took, "release synced");
        }
        End::Unapproved => {
            tracing::warn!(%environment, %release, %revision, result, took, detail = %message, "release not synced");
        }
        End::Drifted => {
            tracing::warn!(%environment, %release, %revision, result, took, detail = %message, "release drifted");
        }
        End::Failed | End::Refused => {
            tracing::error!(%environment, %release, %revision, result, took, error = %message, "release not synced");
        }
    }
}

fn log_sync(event: &SyncEvent) {
    let environment = &event.release.environment;
    let release = &event.release.release;
    match &event.kind {
        EventKind::Queued(holder) => {
            tracing::info!(%environment, %release, %holder, "somebody else applies the release");
        }
        EventKind::Waiting(_, state) => {
            tracing::debug!(%environment, %release, object = %state.object, detail = %state.message, "waiting");
        }
        EventKind::Done(_, object, Outcome::Failed(failure)) => {
            tracing::warn!(%environment, %release, %object, error = %failure.message, "step failed");
        }
        EventKind::Warning(finding) => {
            tracing::warn!(%environment, %release, detail = %finding, "warning");
        }
        EventKind::Phase(_)
        | EventKind::Started(_)
        | EventKind::Applied(_)
        | EventKind::Retrying(..)
        | EventKind::Done(..)
        | EventKind::Finished(_) => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_release_waits_for_is_said_once_per_change() {
        let release = ReleaseName {
            environment: "staging".to_owned(),
            release: "web".to_owned(),
        };
        let mut waits = Waits::default();
        let mut news = |end, message: &str| waits.is_news(&release, end, message);
        assert!(news(End::Waiting, "it depends on a"));
        assert!(!news(End::Waiting, "it depends on a"));
        assert!(!news(End::Superseded, ""));
        assert!(!news(End::Waiting, "it depends on a"));
        assert!(news(End::Waiting, "it depends on b"));
        assert!(news(End::Suspended, "it depends on b"));
        assert!(!news(End::Deployed, ""));
        assert!(news(End::Suspended, "it depends on b"));
    }
}
