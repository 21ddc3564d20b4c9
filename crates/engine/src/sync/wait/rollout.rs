//! Progress and health of the replacement of pods of a `DaemonSet`.

use std::collections::BTreeMap;
use std::time::Duration;

use pleach_formats::sequence::Count;
use pleach_model::object::ObjectId;
use tokio::sync::Mutex;
use tokio::time::Instant;

use super::{WaitState, Waiter};
use crate::sync::daemon::{Daemon, DaemonPod};
use pleach_cluster::ClusterError;

/// Condition of a rollout.
#[derive(Debug, Clone, Copy)]
pub(super) struct RolloutTarget {
    /// Number of new pods; `None`: all, with no old pod left.
    pub(super) pods: Option<Count>,
    /// Whether a container restart fails it.
    pub(super) abort_on_restart: bool,
    /// Time for which the condition must hold.
    pub(super) stable_for: Duration,
}

/// State of earlier checks.
#[derive(Debug, Default)]
pub(super) struct Watched {
    /// Time since when the condition holds.
    since: Option<Instant>,
    /// Earlier restart counts of pods that existed before, which do not count as failures.
    restarts: BTreeMap<String, i64>,
}

impl Waiter<'_> {
    /// Checks the rollout once.
    pub(super) async fn check_rollout(
        &self,
        id: &ObjectId,
        target: RolloutTarget,
        watched: &Mutex<Watched>,
    ) -> Result<WaitState, ClusterError> {
        let read = Daemon::read(self.cluster, id).await?;
        let mut watched = watched.lock().await;
        Ok(match read {
            Ok(daemon) => watched.judge(&daemon, target, Instant::now()),
            Err(message) => {
                watched.since = None;
                WaitState::NotYet(message)
            }
        })
    }
}

impl Watched {
    pub(super) fn new(restarts: BTreeMap<String, i64>) -> Self {
        Self {
            since: None,
            restarts,
        }
    }

    fn judge(&mut self, daemon: &Daemon, target: RolloutTarget, now: Instant) -> WaitState {
        if target.abort_on_restart
            && let Some(pod) = self.restarted(daemon)
        {
            let trouble = if pod.trouble.is_empty() {
                String::new()
            } else {
                format!(": {}", pod.trouble)
            };
            return WaitState::Never(format!(
                "its new pod {} restarted{trouble}; the other pods are not replaced",
                pod.name
            ));
        }
        if let Some(missing) = missing(daemon, target.pods) {
            self.since = None;
            return WaitState::NotYet(missing);
        }
        let since = *self.since.get_or_insert(now);
        if now.duration_since(since) >= target.stable_for {
            WaitState::Done
        } else {
            WaitState::NotYet(
                "its new pods are ready; they must stay ready for some seconds".to_owned(),
            )
        }
    }

    /// Returns a new pod that restarted meanwhile, if any.
    fn restarted<'d>(&self, daemon: &'d Daemon) -> Option<&'d DaemonPod> {
        let mut pods = daemon.updated.iter();
        pods.find(|pod| {
            let known = self.restarts.get(&pod.uid).copied();
            pod.restarts > known.unwrap_or_default()
        })
    }
}

/// Describes the missing pods, if any.
fn missing(daemon: &Daemon, pods: Option<Count>) -> Option<String> {
    let ready = daemon.updated.iter().filter(|pod| pod.is_ready).count();
    let desired = pods.map_or(daemon.desired, |pods| pods.of(daemon.desired));
    if ready < desired {
        return Some(format!("{ready} of {desired} new pods ready"));
    }
    if pods.is_some() {
        return None;
    }
    if !daemon.previous.is_empty() {
        let left = daemon.previous.len();
        return Some(format!("previous pods that still exist: {left}"));
    }
    (daemon.available < daemon.desired).then(|| {
        let (available, desired) = (daemon.available, daemon.desired);
        format!("{available} of {desired} pods available")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pods(names: &[&str]) -> Vec<DaemonPod> {
        let pod = |name: &&str| DaemonPod {
            metadata: serde_json::json!({"name": name, "uid": name}),
            name: (*name).to_owned(),
            uid: (*name).to_owned(),
            is_ready: true,
            is_terminating: false,
            restarts: 0,
            trouble: String::new(),
        };
        names.iter().map(pod).collect()
    }

    fn daemon(updated: &[&str], previous: &[&str]) -> Daemon {
        Daemon {
            desired: updated.len() + previous.len(),
            available: updated.len() + previous.len(),
            updated: pods(updated),
            previous: pods(previous),
        }
    }

    const FIRST: RolloutTarget = RolloutTarget {
        pods: Some(Count::Pods(1)),
        abort_on_restart: true,
        stable_for: Duration::from_secs(5),
    };
    const ALL: RolloutTarget = RolloutTarget {
        pods: None,
        abort_on_restart: false,
        ..FIRST
    };

    fn word(state: &WaitState) -> &str {
        match state {
            WaitState::Done => "done",
            WaitState::NotYet(message)
            | WaitState::Never(message)
            | WaitState::Stays { message, .. } => message,
        }
    }

    #[test]
    fn a_rollout_is_done_after_a_stable_time() {
        let start = Instant::now();
        let after = |seconds| start + Duration::from_secs(seconds);
        let mut watched = Watched::default();
        let begun = daemon(&[], &["a", "b"]);
        let state = watched.judge(&begun, FIRST, start);
        assert_eq!(word(&state), "0 of 1 new pods ready");
        let first = daemon(&["a"], &["b"]);
        assert!(word(&watched.judge(&first, FIRST, after(1))).contains("must stay ready"));
        // The condition did not hold in between.
        watched.judge(&begun, FIRST, after(2));
        assert!(word(&watched.judge(&first, FIRST, after(6))).contains("must stay ready"));
        assert_eq!(word(&watched.judge(&first, FIRST, after(11))), "done");
    }

    #[test]
    fn a_full_rollout_leaves_no_previous_pod() {
        let start = Instant::now();
        let later = start + ALL.stable_for;
        let mut watched = Watched::default();
        let mut half = daemon(&["a", "b"], &["c"]);
        half.desired = 2;
        let state = watched.judge(&half, ALL, start);
        assert_eq!(word(&state), "previous pods that still exist: 1");
        let mut unavailable = daemon(&["a", "b"], &[]);
        unavailable.available = 1;
        let state = watched.judge(&unavailable, ALL, start);
        assert_eq!(word(&state), "1 of 2 pods available");
        let all = daemon(&["a", "b"], &[]);
        assert!(word(&watched.judge(&all, ALL, start)).contains("must stay ready"));
        assert_eq!(word(&watched.judge(&all, ALL, later)), "done");
    }

    #[test]
    fn a_new_restart_aborts_the_rollout() {
        let now = Instant::now();
        let mut old = daemon(&["a"], &["b"]);
        old.updated[0].restarts = 7;
        let mut watched = Watched::new([("a".to_owned(), 7)].into());
        assert!(word(&watched.judge(&old, FIRST, now)).contains("must stay ready"));
        old.updated.push(DaemonPod {
            name: "c".to_owned(),
            uid: "c".to_owned(),
            restarts: 1,
            trouble: "container x ended with Error (1)".to_owned(),
            ..old.updated[0].clone()
        });
        let state = watched.judge(&old, FIRST, now);
        assert!(matches!(state, WaitState::Never(_)));
        assert_eq!(
            word(&state),
            "its new pod c restarted: container x ended with Error (1); the other pods are not replaced"
        );
        assert!(!matches!(
            watched.judge(&old, ALL, now),
            WaitState::Never(_)
        ));
    }
}
