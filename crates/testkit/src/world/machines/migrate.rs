//! Live migration of machines, away from a node with the taint.

use std::sync::Arc;

use anyhow::Context as _;
use futures::stream::{self, StreamExt as _, TryStreamExt as _};
use serde_json::{Value, json};

use super::ledger::MIGRATION;
use super::{AT_ONCE, Call, Done, MACHINE, Shared, name_of, uid_of};

/// Migrates all machines of a node.
pub(super) async fn evacuate(shared: Arc<Shared>, node: String) -> anyhow::Result<Done> {
    let machines = shared.list(&shared.path("machines")).await?;
    let here = machines
        .into_iter()
        .filter(|machine| machine["status"]["nodeName"] == node.as_str());
    stream::iter(here)
        .map(|machine| {
            let shared = &shared;
            async move {
                let moved = migrate(shared, &machine).await;
                moved.with_context(|| format!("failed to migrate {}", name_of(&machine)))
            }
        })
        .buffer_unordered(AT_ONCE)
        .try_collect::<()>()
        .await?;
    Ok(Done::Evacuated(node))
}

/// Starts a second pod of a machine, and ends the first one.
async fn migrate(shared: &Shared, machine: &Value) -> anyhow::Result<()> {
    let name = name_of(machine);
    let old: Vec<String> = {
        let pods = shared.pods.borrow();
        let pods = pods.iter().filter(|(_, pod)| pod.machine == name);
        pods.map(|(pod, _)| pod.clone()).collect()
    };
    let number = machine["status"]["migrations"].as_i64().unwrap_or_default() + 1;
    let budgets = format!(
        "/apis/policy/v1/namespaces/{}/poddisruptionbudgets",
        shared.namespace
    );
    let budget = budget(&format!("{MIGRATION}{name}"), name, 2);
    shared.send(Call::Create(&budgets, &budget)).await?;
    let target = format!("{name}-{number}");
    let node = shared.start_pod(machine, &target).await?;
    let status = json!({"nodeName": node, "migrations": number});
    shared.set_status("machines", name, &status).await?;
    for pod in &old {
        let path = format!("/api/v1/namespaces/{}/pods/{pod}", shared.namespace);
        shared.send(Call::Delete(&path)).await?;
    }
    let mut pods = shared.pods.subscribe();
    pods.wait_for(|pods| old.iter().all(|pod| !pods.contains_key(pod)))
        .await?;
    let path = format!("{budgets}/{}", name_of(&budget));
    shared.send(Call::Delete(&path)).await?;
    shared.ledger().migrations += 1;
    Ok(())
}

/// Returns the budget of a machine.
pub(super) fn budget(name: &str, machine: &str, available: usize) -> Value {
    json!({
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": {"name": name},
        "spec": {"minAvailable": available, "selector": {"matchLabels": {MACHINE: machine}}},
    })
}

impl Shared {
    /// Creates a pod of a machine and waits until it is ready. Returns its node.
    pub(super) async fn start_pod(&self, machine: &Value, pod: &str) -> anyhow::Result<String> {
        let name = name_of(machine);
        let object = json!({
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {
                "name": pod,
                "labels": {MACHINE: name},
                "ownerReferences": [{
                    "apiVersion": "machines.example.org/v1", "kind": "Machine", "name": name,
                    "uid": uid_of(machine), "controller": true,
                }],
            },
            "spec": {
                "terminationGracePeriodSeconds": 1,
                "containers": [{"name": "machine", "image": "docker.io/machines/launcher"}],
            },
        });
        let path = format!("/api/v1/namespaces/{}/pods", self.namespace);
        self.send(Call::Create(&path, &object)).await?;
        let mut pods = self.pods.subscribe();
        let ready = pods.wait_for(|pods| pods.get(pod).is_some_and(|pod| pod.is_ready));
        let ready = ready.await?;
        let node = ready.get(pod).and_then(|pod| pod.node.clone());
        node.context("a ready pod has no node")
    }
}
