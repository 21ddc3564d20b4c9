//! Releases of environments that other replicas lead, for the web page of this one. Only states in
//! Releases are observed, because namespaces of other states are in git.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt as _;
use pleach_cluster::Cluster;
use pleach_engine::planning::agent;
use pleach_engine::sync::state::{self, Search};
use pleach_engine::words;
use pleach_state::inventory::{ReleaseSummary, Store};
use tokio::sync::watch;
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::sleep;

use super::{ControllerEvent, EventSender, SourcePolicy, backoff};

/// Minimum interval between two reports of a watch.
const INTERVAL: Duration = Duration::from_millis(500);

/// Names of environments, with the names of their leaders.
pub(super) type Leaders = BTreeMap<String, String>;

/// Watches of releases, one per source policy that has environments of other replicas.
#[derive(Debug)]
pub(super) struct Observers {
    events: EventSender,
    /// By repository and source policy.
    running: BTreeMap<(usize, usize), Observer>,
}

#[derive(Debug)]
struct Observer {
    leaders: watch::Sender<Leaders>,
    task: AbortHandle,
}

impl Observers {
    pub(super) fn new(events: EventSender) -> Self {
        Self {
            events,
            running: BTreeMap::new(),
        }
    }

    /// Starts and ends watches, so that these environments are observed.
    pub(super) fn observe(
        &mut self,
        mut wanted: BTreeMap<(usize, usize), Leaders>,
        policy: impl Fn((usize, usize)) -> Arc<SourcePolicy>,
        tasks: &mut JoinSet<()>,
    ) {
        self.running.retain(|key, observer| {
            let Some(leaders) = wanted.remove(key) else {
                observer.task.abort();
                return false;
            };
            observer.leaders.send_if_modified(|known| {
                let differs = *known != leaders;
                *known = leaders;
                differs
            });
            true
        });
        for (key, leaders) in wanted {
            let (sender, receiver) = watch::channel(leaders);
            let task = tasks.spawn_local(run(policy(key), receiver, self.events.clone()));
            let observer = Observer {
                leaders: sender,
                task,
            };
            self.running.insert(key, observer);
        }
    }
}

/// Reports the releases after each change, and after each change of the environments.
async fn run(
    policy: Arc<SourcePolicy>,
    mut leaders: watch::Receiver<Leaders>,
    events: EventSender,
) {
    let mut failures = 0;
    loop {
        let mut connection = policy.connection.clone();
        connection.user_agent = agent(None);
        match Cluster::connect(&connection).await {
            Ok(cluster) => {
                report_changes(&cluster, &mut leaders, &events).await;
                failures = 0;
            }
            Err(error) => {
                tracing::debug!(error = %words(&error), "cannot observe the releases of other replicas");
                failures += 1;
            }
        }
        sleep(backoff::after(failures)).await;
    }
}

/// Returns when the watch ends. Errors of the watch do not end it.
async fn report_changes(
    cluster: &Cluster,
    leaders: &mut watch::Receiver<Leaders>,
    events: &EventSender,
) {
    let search = Search::In(Store::Release);
    let mut releases = state::follow_releases(cluster, &search).boxed();
    let mut known: Option<Arc<[ReleaseSummary]>> = None;
    loop {
        tokio::select! {
            next = releases.next() => match next {
                Some(Ok(listed)) => known = Some(listed.into()),
                Some(Err(error)) => {
                    tracing::debug!(error = %words(&error), "the watch of releases of other replicas failed");
                    continue;
                }
                None => return,
            },
            changed = leaders.changed() => if changed.is_err() {
                return;
            },
        }
        if let Some(releases) = &known {
            events.report(ControllerEvent::Recorded {
                environments: leaders.borrow_and_update().clone(),
                releases: Arc::clone(releases),
            });
            sleep(INTERVAL).await;
        }
    }
}
