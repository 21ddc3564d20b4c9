//! Releases of environments that other replicas lead, for the web page of this one. Only states in
//! Releases are observed, because namespaces of other states are in git.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt as _;
use pleach_cluster::Cluster;
use pleach_engine::planning::agent;
use pleach_engine::sync::is_cluster;
use pleach_engine::sync::state::{self, Search};
use pleach_engine::words;
use pleach_state::inventory::{ReleaseSummary, Store};
use tokio::sync::watch;
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::{Instant, sleep, sleep_until};
use tokio_util::sync::CancellationToken;

use super::{ControllerEvent, EventSender, SourcePolicy, backoff};

/// Minimum interval between two reports of a watch.
const INTERVAL: Duration = Duration::from_millis(500);

/// Names of environments, with the names of their leaders.
pub(super) type Leaders = BTreeMap<String, String>;

/// Watches of releases, one per source policy that has environments of other replicas.
#[derive(Debug)]
pub(super) struct Observers {
    events: EventSender,
    stop: CancellationToken,
    /// By repository and source policy.
    running: BTreeMap<(usize, usize), Observer>,
    /// Environments of all watches.
    observed: BTreeSet<String>,
}

#[derive(Debug)]
struct Observer {
    leaders: watch::Sender<Leaders>,
    task: AbortHandle,
}

impl Observers {
    /// The watches end with `stop`.
    pub(super) fn new(events: EventSender, stop: CancellationToken) -> Self {
        Self {
            events,
            stop,
            running: BTreeMap::new(),
            observed: BTreeSet::new(),
        }
    }

    /// Starts and ends watches, so that these environments are observed. Reports those that are not
    /// observed any more.
    pub(super) fn observe(
        &mut self,
        mut wanted: BTreeMap<(usize, usize), Leaders>,
        policy: impl Fn((usize, usize)) -> Arc<SourcePolicy>,
        tasks: &mut JoinSet<()>,
    ) {
        // A local run takes the cluster from the environment file.
        wanted.retain(|key, _| {
            let policy = policy(*key);
            policy.cluster.is_some() || policy.connection.context.is_some()
        });
        let names = wanted.values().flat_map(BTreeMap::keys);
        let names: BTreeSet<String> = names.cloned().collect();
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
            let observing = run(policy(key), receiver, self.events.clone());
            let stop = self.stop.clone();
            let task = tasks.spawn_local(async move {
                let _stopped = stop.run_until_cancelled(observing).await;
            });
            let observer = Observer {
                leaders: sender,
                task,
            };
            self.running.insert(key, observer);
        }
        let lost: BTreeSet<String> = self.observed.difference(&names).cloned().collect();
        if !lost.is_empty() {
            let environments = lost;
            self.events
                .report(ControllerEvent::Unobserved { environments });
        }
        self.observed = names;
    }
}

/// Reports the releases after each change, and after each change of the environments. Connects again
/// when the kubeconfig changed.
async fn run(
    policy: Arc<SourcePolicy>,
    mut leaders: watch::Receiver<Leaders>,
    events: EventSender,
) {
    let mut reporter = Reporter {
        events,
        failed: None,
    };
    let mut failures = 0;
    loop {
        let kubeconfig = policy.connection.fingerprint().await.ok();
        match connected(&policy).await {
            Ok(cluster) => {
                failures = 0;
                let is_changed = async || {
                    let now = policy.connection.fingerprint().await.ok();
                    now.is_some() && now != kubeconfig
                };
                follow(&cluster, &mut leaders, &mut reporter, is_changed).await;
            }
            Err(error) => {
                failures += 1;
                reporter.failed(&leaders.borrow(), error);
            }
        }
        sleep(backoff::after(failures)).await;
    }
}

/// Reports changes until an error of the watch after which `is_over` holds.
async fn follow(
    cluster: &Cluster,
    leaders: &mut watch::Receiver<Leaders>,
    reporter: &mut Reporter,
    is_over: impl AsyncFn() -> bool,
) {
    let mut releases = state::follow_releases(cluster, &Search::In(Store::Release)).boxed();
    let mut known: Option<Arc<[ReleaseSummary]>> = None;
    let (mut is_due, mut earliest) = (false, Instant::now());
    loop {
        tokio::select! {
            next = releases.next() => match next {
                Some(Ok(listed)) => (known, is_due) = (Some(listed.into()), true),
                // The watch restarts by itself.
                Some(Err(error)) => {
                    reporter.failed(&leaders.borrow(), words(&error));
                    if is_over().await {
                        return;
                    }
                }
                None => return,
            },
            // The sender lives as long as this task.
            Ok(()) = leaders.changed() => is_due = true,
            () = sleep_until(earliest), if is_due => {
                is_due = false;
                earliest = Instant::now() + INTERVAL;
                let leaders = leaders.borrow_and_update();
                if let Some(releases) = &known {
                    reporter.report(&leaders, releases);
                }
            }
        }
    }
}

/// Connects to the cluster of a source policy. Fails if it is another one.
async fn connected(policy: &SourcePolicy) -> Result<Cluster, String> {
    let mut connection = policy.connection.clone();
    connection.user_agent = agent(None);
    let connecting = Cluster::connect(&connection).await;
    let cluster = connecting.map_err(|error| words(&error))?;
    if let Some(id) = &policy.cluster
        && is_cluster(&cluster, &Store::Release, &id.0).await != Some(true)
    {
        return Err("the cluster has another id, or does not answer".to_owned());
    }
    Ok(cluster)
}

struct Reporter {
    events: EventSender,
    /// Error since the last report.
    failed: Option<String>,
}

impl Reporter {
    fn report(&mut self, leaders: &Leaders, releases: &Arc<[ReleaseSummary]>) {
        self.failed = None;
        self.events.report(ControllerEvent::Recorded {
            environments: leaders.clone(),
            releases: Ok(Arc::clone(releases)),
        });
    }

    fn failed(&mut self, leaders: &Leaders, error: String) {
        if self.failed.as_ref() == Some(&error) {
            return;
        }
        tracing::warn!(%error, "cannot observe the releases of other replicas");
        self.failed = Some(error.clone());
        self.events.report(ControllerEvent::Recorded {
            environments: leaders.clone(),
            releases: Err(error),
        });
    }
}
