//! The board of the web page, from the events of the controller.

use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use pleach_engine::sync::events::{EventKind, StepOutcome, SyncEvent};
use pleach_page::board::{Board, LoadedEnvironment, Outcome, Run, Stalled, StepState, Wait};
use tokio::sync::watch;

use crate::ControllerEvent as Event;

/// The only writer of the board.
#[derive(Debug)]
pub struct BoardWriter {
    board: Board,
    published: watch::Sender<Arc<Board>>,
    is_changed: bool,
}

impl BoardWriter {
    /// Creates an empty board. The receiver has the newest published one.
    pub fn new() -> (Self, watch::Receiver<Arc<Board>>) {
        let (published, receiver) = watch::channel(Arc::new(Board::default()));
        let writer = Self {
            board: Board::default(),
            published,
            is_changed: false,
        };
        (writer, receiver)
    }

    /// Returns whether events arrived since the last call of [`Self::publish`].
    pub fn is_changed(&self) -> bool {
        self.is_changed
    }

    /// Publishes the present board. Readers share its parts, so this should not be called for every
    /// event.
    pub fn publish(&mut self) {
        self.is_changed = false;
        self.published.send_replace(Arc::new(self.board.clone()));
    }

    /// Applies an event of the controller.
    pub fn process(&mut self, event: &Event) {
        self.apply(event, Timestamp::now());
        self.is_changed = true;
    }

    fn apply(&mut self, event: &Event, now: Timestamp) {
        let board = &mut self.board;
        match event {
            Event::Fetched { repository, .. } => board.fetched(repository, Ok(now)),
            Event::SourceUnreachable {
                repository,
                message,
            } => board.fetched(repository, Err(message)),
            Event::ReplicasChanged { replicas } => board.set_replicas(*replicas),
            Event::LeadershipChanged { .. }
            | Event::EnvironmentLoaded { .. }
            | Event::EnvironmentUnchanged { .. }
            | Event::EnvironmentStalled { .. }
            | Event::ClusterUnreachable { .. } => self.apply_to_environment(event, now),
            Event::Planned {
                release,
                answered,
                facts,
                took: _,
            } => {
                let error = (!answered).then_some("");
                board.answered(&release.environment, now, error);
                if let Some(facts) = facts {
                    board.planned(release, facts);
                }
            }
            Event::Applying {
                release, changes, ..
            } => board.applying(release, now, changes),
            Event::HealthChecked {
                release,
                is_degraded,
            } => board.health(release, *is_degraded),
            Event::Contended { release, fields } => board.contended(release, *fields),
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
            } => board.finished(
                release,
                Outcome {
                    at: now,
                    revision: revision.clone(),
                    outcome: *outcome,
                    message: message.clone(),
                    is_correction: *is_correction,
                    retained: retained
                        .as_ref()
                        .map(|retained| (retained.revision.clone(), retained.outcome)),
                    took_ms: took.as_millis().try_into().unwrap_or(u64::MAX),
                },
            ),
            Event::Recorded {
                environments,
                releases,
            } => match releases {
                Ok(releases) => board.recorded(environments, releases, now),
                Err(error) => {
                    for environment in environments.keys() {
                        board.unread(environment, now, error);
                    }
                }
            },
            Event::Unobserved { environments } => board.unobserved(environments),
            Event::OwnerChanged { .. }
            | Event::ReconcileStarted { .. }
            | Event::QueueChanged { .. }
            | Event::PlanExecuted { .. }
            | Event::DriftDetected { .. }
            | Event::StateChanged(_)
            | Event::Previewed { .. }
            | Event::ForgeUnreachable { .. } => {}
        }
    }

    fn apply_to_environment(&mut self, event: &Event, now: Timestamp) {
        let board = &mut self.board;
        match event {
            Event::LeadershipChanged { environment, leads } => {
                board.set_leader(environment, *leads);
            }
            Event::EnvironmentLoaded {
                repository,
                environment,
                cluster,
                revision,
                releases,
                stalled,
                took: _,
            } => board.loaded(&LoadedEnvironment {
                repository,
                environment,
                cluster: cluster.as_deref(),
                revision,
                releases,
                stalled,
            }),
            Event::EnvironmentUnchanged {
                environment,
                revision,
                ..
            } => board.unchanged(environment, revision),
            Event::EnvironmentStalled {
                environment,
                revision,
                reason,
                message,
                ..
            } => board.stalled(
                environment,
                &Stalled {
                    revision: revision.clone(),
                    reason: reason.clone(),
                    message: message.clone(),
                },
            ),
            Event::ClusterUnreachable {
                environment,
                message,
            } => board.answered(environment, now, Some(message)),
            // Handled by the caller.
            _ => {}
        }
    }

    /// Applies an event of a run.
    pub fn process_sync(&mut self, event: &SyncEvent) {
        let now = Timestamp::now();
        let name = &event.release;
        let board = &mut self.board;
        self.is_changed = true;
        match &event.kind {
            EventKind::Queued(holder) => board.progress(name, now, |run| {
                run.queued = Some(pleach_model::sanitize::one_line(&holder.to_string()));
            }),
            EventKind::Started(step) => board.progress(name, now, |run| {
                run.queued = None;
                run.newest = Some(step.0);
                run.steps.insert(step.0, StepState::Running);
            }),
            EventKind::Applied(step) => board.progress(name, now, |run| {
                run.steps.insert(step.0, StepState::Waiting);
            }),
            EventKind::Waiting(step, state) => board.progress(name, now, |run| {
                run.steps.insert(step.0, StepState::Waiting);
                let since = SignedDuration::try_from(state.since).unwrap_or_default();
                let wait = Wait {
                    object: state.object.to_string(),
                    message: state.message.clone(),
                    since: now.checked_sub(since).unwrap_or(now),
                };
                run.set_wait(step.0, &wait);
            }),
            EventKind::Done(step, _, outcome) => {
                board.progress(name, now, |run| finish(run, step.0, outcome));
            }
            EventKind::Nodes(nodes) => board.progress(name, now, |run| run.set_nodes(nodes)),
            EventKind::Node(change) => {
                board.progress(name, now, |run| run.set_node(&change.node));
            }
            EventKind::Phase(_)
            | EventKind::Evicted(_)
            | EventKind::Retrying(..)
            | EventKind::Warning(_)
            | EventKind::Finished(_) => {}
        }
    }
}

/// Records the outcome of a step.
fn finish(run: &mut Run, step: usize, outcome: &StepOutcome) {
    let state = match outcome {
        StepOutcome::Done => StepState::Done,
        StepOutcome::Failed(failure) => {
            StepState::Failed(pleach_model::sanitize::one_line(&failure.message))
        }
        StepOutcome::Skipped { .. } => StepState::Skipped,
        StepOutcome::Stopped { .. } => StepState::Stopped,
    };
    run.waits.remove(&step);
    run.steps.insert(step, state);
}
