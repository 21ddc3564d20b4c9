//! Eviction of the pods of a node.

use std::collections::BTreeMap;
use std::time::Duration;

use futures::stream::{self, StreamExt as _};
use pleach_formats::nodes::{Budget, DrainRule, NodePod, overlapping};
use serde_json::Value;
use tokio::time::Instant;

use super::{End, NodeUpgrade};
use crate::sync::{
    events::EventKind,
    node_progress::Evictions,
    op::failure,
    report::{Failure, FailureKind},
};
use pleach_cluster::{Class, ClusterError, Depth, Evicted, ResourcePath, Selector};

/// Number of concurrent evictions.
const AT_ONCE: usize = 10;

/// Delay before a pod that could not be evicted is tried again.
const AGAIN: Duration = Duration::from_secs(5);

/// A pod that could not be evicted: the time of the attempt, and the reason.
type Refusals = BTreeMap<String, (Instant, String)>;

impl NodeUpgrade<'_> {
    /// Evicts pods until none is left that a drain must remove.
    pub(super) async fn drain(&mut self, rule: &DrainRule) -> Result<(), End> {
        let limit = rule
            .timeout
            .map(|limit| Duration::try_from(limit).unwrap_or_default());
        let limit = limit.map_or(self.deadline, |limit| Instant::now() + limit);
        let mut refusals = Refusals::new();
        loop {
            self.cordoned_node().await?;
            let pods = self.pods().await?;
            if pods.is_empty() {
                return Ok(());
            }
            let mut reasons = rule.objections(&pods).into_iter();
            if let Some((_, message)) = reasons.next() {
                return Err(Failure::new(FailureKind::Policy, message).into());
            }
            self.evict(&pods, &mut refusals).await?;
            let state = state(&pods, &refusals);
            if Instant::now() >= limit {
                let message = format!("not drained in time: {state}");
                return Err(Failure::new(FailureKind::NotReady, message).into());
            }
            self.progress.report(state);
            self.pause().await?;
        }
    }

    async fn pods(&self) -> Result<Vec<NodePod>, Failure> {
        let cluster = self.operator.cluster_for(self.step, self.started);
        let on_node = format!("spec.nodeName={}", self.step.object.name);
        let selector = Selector {
            fields: Some(&on_node),
            ..Selector::default()
        };
        let path = ResourcePath::namespaced("v1", "Pod", "pods");
        let read = |pod: Value| NodePod::of(&pod);
        let pods = cluster.pick(&path, &selector, Depth::Full, read).await;
        pods.map_err(|error| failure(&error))
    }

    /// Sends the evictions that are due.
    async fn evict(&self, pods: &[NodePod], refusals: &mut Refusals) -> Result<(), Failure> {
        let is_due = |pod: &&NodePod| {
            let refusal = refusals.get(&pod.uid);
            !pod.deleting && refusal.is_none_or(|(at, _)| at.elapsed() >= AGAIN)
        };
        let due: Vec<NodePod> = pods.iter().filter(is_due).cloned().collect();
        let cluster = self.operator.cluster;
        let attempts = stream::iter(due)
            .map(|pod| async move {
                let evicted = cluster.evict(&pod.id, &pod.uid).await;
                (pod, evicted)
            })
            .buffer_unordered(AT_ONCE);
        let attempts: Vec<(NodePod, Result<Evicted, ClusterError>)> = attempts.collect().await;
        if !attempts.is_empty() {
            let counted = evictions(attempts.iter().map(|(_, evicted)| evicted));
            self.operator.events.send(EventKind::Evicted(counted));
        }
        for (pod, evicted) in attempts {
            let reason = match evicted {
                Ok(Evicted::Accepted | Evicted::Gone) => {
                    refusals.remove(&pod.uid);
                    continue;
                }
                Ok(Evicted::NotNow(reason)) => reason,
                Err(error) if error.class() == Some(&Class::SeveralBudgets) => {
                    return Err(self.several(&pod, &error).await);
                }
                Err(error) if error.is_retryable() => error.to_string(),
                Err(error) => return Err(failure(&error)),
            };
            refusals.insert(pod.uid, (Instant::now(), reason));
        }
        Ok(())
    }

    /// Returns the failure for a pod with several budgets, which it names.
    async fn several(&self, pod: &NodePod, error: &ClusterError) -> Failure {
        let path =
            ResourcePath::namespaced("policy/v1", "PodDisruptionBudget", "poddisruptionbudgets");
        let selector = Selector::namespace(pod.id.namespace.as_deref());
        let read = |budget: Value| Budget::of(&budget);
        let cluster = self.operator.cluster;
        let budgets = cluster.pick(&path, &selector, Depth::Full, read).await;
        let budgets = budgets.unwrap_or_default();
        let pods = std::slice::from_ref(pod);
        let names: Vec<&str> = overlapping(pods, &budgets)
            .iter()
            .flat_map(|(_, budgets)| budgets.iter().map(|budget| budget.id.name.as_str()))
            .collect();
        let found = if names.is_empty() {
            failure(error).message
        } else {
            format!("several budgets cover it: {}", names.join(", "))
        };
        let message = format!("{} cannot be evicted: {found}", pod.id);
        let hint = "the API server evicts no pod with several budgets; let one cover it";
        Failure::new(FailureKind::Policy, message).hint(hint)
    }
}

/// Counts the results of eviction requests.
fn evictions<'a>(attempts: impl Iterator<Item = &'a Result<Evicted, ClusterError>>) -> Evictions {
    let mut counted = Evictions::default();
    for attempt in attempts {
        let count = match attempt {
            Ok(Evicted::Accepted | Evicted::Gone) => &mut counted.accepted,
            Ok(Evicted::NotNow(_)) => &mut counted.refused,
            Err(_) => &mut counted.failed,
        };
        *count += 1;
    }
    counted
}

/// Describes a drain in one line: the reason of a refused eviction first.
fn state(pods: &[NodePod], refusals: &Refusals) -> String {
    let count = match pods.len() {
        1 => "1 pod is left".to_owned(),
        count => format!("{count} pods are left"),
    };
    let refused = pods.iter().find_map(|pod| {
        let (_, reason) = refusals.get(&pod.uid)?;
        Some((&pod.id, reason))
    });
    match (refused, pods.first()) {
        (Some((pod, reason)), _) => format!("{count}; {pod}: {reason}"),
        (None, Some(pod)) => format!("{count}; {} ends", pod.id),
        (None, None) => count,
    }
}
