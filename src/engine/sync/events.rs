//! What happens during a sync, as a stream of events.

use std::time::Duration;

use pleach_domain::finding::Finding;
use pleach_domain::inventory::ReleaseName;
use pleach_domain::object::ObjectId;
use pleach_domain::plan::StepId;
use serde::Serialize;
use tokio::sync::mpsc::{Sender, UnboundedSender};

use super::report::{Failure, SyncResult};
use crate::engine::lease::Holder;

/// One thing that happened, in the release it happened in.
#[derive(Debug, Clone)]
pub struct SyncEvent {
    /// Environment and release.
    pub release: ReleaseName,
    /// What happened.
    pub kind: EventKind,
}

/// The verbs of a sync, in their order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Verb {
    /// git is read.
    Fetch,
    /// Manifests are made.
    Render,
    /// The cluster is read.
    Observe,
    /// Both are compared.
    Diff,
    /// Steps are planned.
    Plan,
    /// Steps are carried out.
    Apply,
    /// Readiness is waited for.
    Wait,
    /// What git no longer has goes.
    Prune,
    /// The result is recorded.
    Report,
}

/// What can happen.
#[derive(Debug, Clone)]
pub enum EventKind {
    /// A phase begins.
    Phase(Verb),
    /// Somebody else carries out a plan of the release, and is waited for.
    Queued(Holder),
    /// A step begins.
    Started(StepId),
    /// The operation of a step is done; it may wait from now on.
    Applied(StepId),
    /// A step waits; sent when what it waits for changes.
    Waiting(StepId, WaitState),
    /// A request is tried again.
    Retrying(StepId, String),
    /// A step ended; with the object that it is about.
    Done(StepId, ObjectId, Outcome),
    /// Something to say that stops nothing.
    Warning(Finding),
    /// The sync ended.
    Finished(SyncResult),
}

/// What is being waited for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WaitState {
    /// The object that is not there yet.
    pub object: ObjectId,
    /// Condition and last message, in one line.
    pub message: String,
    /// For how long so far.
    pub since: Duration,
}

/// How a step ended.
#[derive(Debug, Clone, PartialEq)]
pub enum Outcome {
    /// Carried out, and complete.
    Done,
    /// It failed.
    Failed(Failure),
    /// Not started, because a step that it needs did not end well.
    Skipped {
        /// That step.
        because: StepId,
    },
    /// Not started, or its wait was broken off: the sync was stopped.
    Stopped {
        /// Its operation was carried out.
        applied: bool,
    },
}

/// Where events go. Sending never blocks and never fails: a consumer that went
/// away is no reason to stop a sync.
#[derive(Debug, Clone)]
pub struct Events {
    release: ReleaseName,
    sink: Sink,
}

#[derive(Debug, Clone)]
enum Sink {
    Nowhere,
    /// A consumer of one run.
    All(UnboundedSender<SyncEvent>),
    /// A consumer of many runs. Events that it has no room for are dropped.
    Some(Sender<SyncEvent>),
}

impl Events {
    /// Sends to a consumer.
    pub fn new(release: ReleaseName, sender: UnboundedSender<SyncEvent>) -> Self {
        Self {
            release,
            sink: Sink::All(sender),
        }
    }

    /// Sends to a consumer that hears of many runs. Events are dropped while it has no room.
    pub fn bounded(release: ReleaseName, sender: Sender<SyncEvent>) -> Self {
        Self {
            release,
            sink: Sink::Some(sender),
        }
    }

    /// Sends nowhere.
    pub fn silent(release: ReleaseName) -> Self {
        Self {
            release,
            sink: Sink::Nowhere,
        }
    }

    /// Sends an event.
    pub fn send(&self, kind: EventKind) {
        let event = || SyncEvent {
            release: self.release.clone(),
            kind,
        };
        // A closed channel means that nobody listens any more.
        match &self.sink {
            Sink::Nowhere => {}
            Sink::All(sender) => drop(sender.send(event())),
            Sink::Some(sender) => drop(sender.try_send(event())),
        }
    }
}
