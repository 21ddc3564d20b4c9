//! What the loop tells of itself.

use std::collections::BTreeMap;
use std::time::Duration;

use pleach_domain::inventory::ReleaseName;
use pleach_domain::plan::Action;
use pleach_domain::repo::controller::News;
use tokio::sync::mpsc;

use super::pull_requests::Previewed;
use crate::engine::sync::events::{Events, SyncEvent};

/// The most events of the loop that wait for the listener.
const EVENTS: usize = 16_384;
/// The most events of runs that do.
const SYNCS: usize = 4_096;

/// One thing that happened in the loop.
#[derive(Debug, Clone)]
pub enum LoopEvent {
    /// A repository was asked for its branches.
    Fetched {
        /// The repository.
        repository: String,
        /// How many of its branches are followed.
        branches: usize,
        /// How long it took.
        took: Duration,
    },
    /// A repository cannot be reached.
    Unreachable {
        /// The repository.
        repository: String,
        /// Why.
        message: String,
    },
    /// How many replicas there are is another number now.
    Sharing {
        /// The replicas, with this one; none while it is cut off from them.
        there: usize,
    },
    /// An environment is synced by this replica from now on, or no longer.
    Led {
        /// The environment.
        environment: String,
        /// Whether it is.
        leads: bool,
    },
    /// An environment on a cluster has a branch that this replica syncs it from, or
    /// no longer.
    Claimed {
        /// The environment.
        environment: String,
        /// The cluster that is meant, where the configuration names one.
        cluster: Option<String>,
        /// Who has it now.
        by: Claimed,
    },
    /// An environment was read at a new commit.
    Loaded {
        /// The repository.
        repository: String,
        /// The environment.
        environment: String,
        /// The cluster that is meant, where the configuration names one.
        cluster: Option<String>,
        /// The commit.
        revision: String,
        /// The releases it has, also those that are held.
        releases: Vec<String>,
        /// The releases that cannot be brought to the commit, with the reason in one line.
        held: BTreeMap<String, String>,
        /// How long it took.
        took: Duration,
    },
    /// A commit changes nothing of an environment.
    Unaffected {
        /// The environment.
        environment: String,
        /// The cluster that is meant, where the configuration names one.
        cluster: Option<String>,
        /// The commit.
        revision: String,
        /// How long it took to read it; none where nothing that the environment was
        /// read from is another.
        took: Option<Duration>,
    },
    /// Nothing newer of an environment is synced until somebody does something.
    Held {
        /// The repository.
        repository: String,
        /// The environment.
        environment: String,
        /// The cluster that is meant, where the configuration names one.
        cluster: Option<String>,
        /// The commit that is the reason, where it is one.
        revision: Option<String>,
        /// One word.
        reason: String,
        /// One line.
        message: String,
    },
    /// The cluster of an environment cannot be reached.
    Unconnected {
        /// The environment.
        environment: String,
        /// Why.
        message: String,
    },
    /// Somebody begins to look at a release.
    Looking {
        /// Environment and release.
        release: ReleaseName,
    },
    /// Other releases wait until there is room to look at them.
    Queued {
        /// How many.
        waiting: usize,
    },
    /// A release was observed and planned.
    Planned {
        /// Environment and release.
        release: ReleaseName,
        /// Whether its cluster answered.
        answered: bool,
        /// How long it took.
        took: Duration,
    },
    /// A plan is about to be carried out.
    Applying {
        /// Environment and release.
        release: ReleaseName,
        /// The revision.
        revision: String,
        /// How many objects it creates, updates and deletes, in words.
        changes: String,
    },
    /// A plan was carried out, as far as that went.
    Carried {
        /// Environment and release.
        release: ReleaseName,
        /// What was done to how many objects; nothing where it failed.
        objects: Vec<(Action, usize)>,
        /// How long it took.
        took: Duration,
    },
    /// Somebody changed objects of a release, and a look at them found that the
    /// release was not as git says.
    Changed {
        /// Environment and release.
        release: ReleaseName,
        /// How many objects.
        objects: usize,
    },
    /// It was looked whether what was brought about is still ready.
    Health {
        /// Environment and release.
        release: ReleaseName,
        /// Whether something is not.
        is_degraded: bool,
    },
    /// Other clients keep writing to fields of a release, or do so no longer.
    Contended {
        /// Environment and release.
        release: ReleaseName,
        /// How many fields are left alone.
        fields: usize,
    },
    /// The state of a release changed: for those who are told.
    News(News),
    /// A release was looked at, and what came of it.
    Looked {
        /// Environment and release.
        release: ReleaseName,
        /// The cluster that is meant, where the configuration names one.
        cluster: Option<String>,
        /// The revision that is wanted.
        revision: String,
        /// What came of it.
        end: End,
        /// One line: why, where there is something to say; the counts of a deployment.
        message: String,
        /// Whether it only corrected drift. The message names objects and managers then.
        is_correction: bool,
        /// The same for the public, without words of a server or of users: codes and
        /// objects. Empty where there is no more to say than what came of it.
        about: String,
        /// What came of the revision that was there before, where the wanted one
        /// waits.
        kept: Option<KeptUp>,
        /// How long it took.
        took: Duration,
    },
    /// A pull request was previewed.
    Previewed {
        /// The repository.
        repository: String,
        /// Its number.
        number: u64,
        /// Its newest commit.
        head: String,
        /// What came of it.
        previewed: Previewed,
        /// One line.
        message: String,
        /// How long it took.
        took: Duration,
    },
    /// The forge of a repository cannot be asked for its pull requests.
    Untold {
        /// The repository.
        repository: String,
        /// Why.
        message: String,
    },
}

/// Who syncs an environment on a cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Claimed {
    /// This replica.
    Ours,
    /// Another replica, or another task of this one.
    Elsewhere,
    /// Nothing: no branch holds it, or several do.
    Nobody,
}

/// What came of a revision that was there before, and is kept up.
#[derive(Debug, Clone)]
pub struct KeptUp {
    /// The revision.
    pub revision: String,
    /// What came of it.
    pub end: End,
    /// One line: why, where there is something to say.
    pub message: String,
}

/// What came of looking at a release.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum End {
    /// It is as git says.
    Unchanged,
    /// It was made so.
    Deployed,
    /// It is gone, as git says.
    Removed,
    /// It failed, and is tried again.
    Failed,
    /// The plan may not be carried out.
    Refused,
    /// Somebody changed it, and that is only told.
    Drifted,
    /// A newer revision came meanwhile.
    Superseded,
    /// The loop ends.
    Interrupted,
    /// Somebody holds it.
    Suspended,
    /// It waits for its time, or for others.
    Waiting,
    /// It waits for somebody to approve the plan.
    Unapproved,
}

impl End {
    /// In one word.
    pub fn word(self) -> &'static str {
        match self {
            Self::Unchanged => "unchanged",
            Self::Deployed => "deployed",
            Self::Removed => "removed",
            Self::Failed => "failed",
            Self::Refused => "refused",
            Self::Drifted => "drifted",
            Self::Superseded => "superseded",
            Self::Interrupted => "interrupted",
            Self::Suspended => "suspended",
            Self::Waiting => "waiting",
            Self::Unapproved => "unapproved",
        }
    }
}

impl LoopEvent {
    /// Whether it only says how far something is: the next event of its kind makes up for it.
    fn is_progress(&self) -> bool {
        match self {
            Self::Looking { .. }
            | Self::Queued { .. }
            | Self::Planned { .. }
            | Self::Applying { .. }
            | Self::Health { .. }
            | Self::Unaffected { .. } => true,
            Self::Fetched { .. }
            | Self::Unreachable { .. }
            | Self::Sharing { .. }
            | Self::Led { .. }
            | Self::Claimed { .. }
            | Self::Loaded { .. }
            | Self::Held { .. }
            | Self::Unconnected { .. }
            | Self::Carried { .. }
            | Self::Changed { .. }
            | Self::News(_)
            | Self::Looked { .. }
            | Self::Previewed { .. }
            | Self::Contended { .. }
            | Self::Untold { .. } => false,
        }
    }
}

/// Who hears of what happens.
#[derive(Debug, Clone)]
pub struct Listener {
    /// Of the loop.
    events: mpsc::Sender<LoopEvent>,
    /// Of each run.
    syncs: mpsc::Sender<SyncEvent>,
}

/// Where a listener hears.
#[derive(Debug)]
pub struct Heard {
    /// Of the loop.
    pub events: mpsc::Receiver<LoopEvent>,
    /// Of each run.
    pub syncs: mpsc::Receiver<SyncEvent>,
}

impl Listener {
    /// A listener, and where it hears. A consumer that is slow, such as a log that nobody
    /// reads, holds up nobody: the progress of runs is dropped first, then that of the loop,
    /// and with a full buffer the rest.
    pub fn new() -> (Self, Heard) {
        let (events, hears_events) = mpsc::channel(EVENTS);
        let (syncs, hears_syncs) = mpsc::channel(SYNCS);
        let heard = Heard {
            events: hears_events,
            syncs: hears_syncs,
        };
        (Self { events, syncs }, heard)
    }

    /// Tells of something; nobody has to listen.
    pub(super) fn tell(&self, event: LoopEvent) {
        let is_half_full = self.events.capacity() <= EVENTS / 2;
        if !(is_half_full && event.is_progress()) {
            drop(self.events.try_send(event));
        }
    }

    /// Where the events of a run go.
    pub(super) fn of_run(&self, release: ReleaseName) -> Events {
        Events::bounded(release, self.syncs.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::sync::events::{EventKind, Verb};

    #[test]
    fn progress_is_dropped_first_where_nobody_listens() {
        let (listener, mut heard) = Listener::new();
        for waiting in 0..EVENTS {
            listener.tell(LoopEvent::Queued { waiting });
        }
        for there in 0..EVENTS {
            listener.tell(LoopEvent::Sharing { there });
        }
        let mut told = (0, 0);
        while let Ok(event) = heard.events.try_recv() {
            if event.is_progress() {
                told.0 += 1;
            } else {
                told.1 += 1;
            }
        }
        assert_eq!(told.0 + told.1, EVENTS);
        assert!(told.1 >= EVENTS / 2, "{told:?}");
        let release = ReleaseName {
            environment: "dev".to_owned(),
            release: "web".to_owned(),
        };
        let events = listener.of_run(release);
        for _ in 0..2 * SYNCS {
            events.send(EventKind::Phase(Verb::Apply));
        }
        assert_eq!(heard.syncs.len(), SYNCS);
    }
}
