//! Counts of everything that an upgrade must not do. Pure.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use super::{is_ready, is_tainted, name_of};

/// Prefix of the names of budgets that cover a machine during its migration.
pub(super) const MIGRATION: &str = "migration-";
/// Label of the nodes of the control plane.
pub(super) const CONTROL_PLANE: &str = "node-role.kubernetes.io/control-plane";

/// Observations of the world.
#[derive(Debug, Clone, Default)]
pub struct Ledger {
    /// Number of completed migrations.
    pub migrations: usize,
    /// Machines that had no running pod, once for each time.
    pub interruptions: Vec<String>,
    /// Budgets with fewer healthy pods than they need, once for each time.
    pub violations: Vec<String>,
    /// Largest set of nodes of the control plane that were out of service at the same time.
    pub control_plane_out: BTreeSet<String>,
    /// Uids of the Jobs of nodes, by name.
    pub jobs: BTreeMap<String, BTreeSet<String>>,
    /// Values of each setting while Jobs of nodes ran.
    pub settings: BTreeMap<String, BTreeSet<String>>,
    /// Running pods of each machine.
    running: BTreeMap<String, BTreeSet<String>>,
    /// Budgets that have enough healthy pods, and those that had once and do not have now.
    healthy: BTreeMap<String, bool>,
    /// Nodes of the control plane that are out of service.
    out: BTreeSet<String>,
}

impl Ledger {
    /// Records a pod of a machine.
    pub(super) fn pod(&mut self, machine: &str, pod: &str, is_running: bool) {
        let running = self.running.entry(machine.to_owned()).or_default();
        if is_running {
            running.insert(pod.to_owned());
        } else if running.remove(pod) && running.is_empty() {
            self.interruptions.push(machine.to_owned());
        }
    }

    /// Records a budget. One of a migration needs two pods before the second one runs.
    pub(super) fn budget(&mut self, budget: &Value, gone: bool) {
        let name = name_of(budget);
        if name.starts_with(MIGRATION) {
            return;
        }
        if gone {
            self.healthy.remove(name);
            return;
        }
        let status = &budget["status"];
        if status["observedGeneration"] != budget["metadata"]["generation"] {
            return;
        }
        let count = |field: &str| status[field].as_i64().unwrap_or_default();
        let is_healthy = count("currentHealthy") >= count("desiredHealthy");
        if is_healthy && count("expectedPods") > 0 {
            self.healthy.insert(name.to_owned(), true);
        } else if let Some(was_healthy) = self.healthy.get_mut(name)
            && std::mem::replace(was_healthy, is_healthy)
            && !is_healthy
        {
            self.violations.push(name.to_owned());
        }
    }

    /// Records a node.
    pub(super) fn node(&mut self, node: &Value, gone: bool) {
        if node["metadata"]["labels"][CONTROL_PLANE].is_null() {
            return;
        }
        let name = name_of(node);
        let in_service =
            is_ready(node) && !is_tainted(node) && node["spec"]["unschedulable"] != true;
        if gone || in_service {
            self.out.remove(name);
            return;
        }
        self.out.insert(name.to_owned());
        if self.out.len() > self.control_plane_out.len() {
            self.control_plane_out.clone_from(&self.out);
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_machine_without_a_running_pod_is_interrupted() {
        let mut ledger = Ledger::default();
        ledger.pod("db", "db-1", false);
        ledger.pod("db", "db-1", true);
        ledger.pod("db", "db-2", true);
        ledger.pod("db", "db-1", false);
        ledger.pod("db", "db-1", false);
        assert_eq!(ledger.interruptions, [""; 0]);
        ledger.pod("db", "db-2", false);
        assert_eq!(ledger.interruptions, ["db"]);
    }

    #[test]
    fn a_budget_is_violated_once_for_each_time() {
        let mut ledger = Ledger::default();
        let budget = |name: &str, healthy: i64| {
            json!({"metadata": {"name": name, "generation": 1}, "status": {
                "observedGeneration": 1, "expectedPods": 1, "desiredHealthy": 1, "currentHealthy": healthy}})
        };
        for healthy in [0, 1, 0, 0, 1, 0] {
            ledger.budget(&budget("web", healthy), false);
            ledger.budget(&budget("migration-web", healthy), false);
        }
        assert_eq!(ledger.violations, ["web", "web"]);
    }

    #[test]
    fn nodes_of_the_control_plane_are_counted_together() {
        let mut ledger = Ledger::default();
        let node = |name: &str, role: &str, cordoned: bool| {
            json!({"metadata": {"name": name, "labels": {role: ""}}, "spec": {"unschedulable": cordoned},
                "status": {"conditions": [{"type": "Ready", "status": "True"}]}})
        };
        for (name, role, cordoned) in [
            ("a", CONTROL_PLANE, true),
            ("w", "worker", true),
            ("a", CONTROL_PLANE, false),
            ("b", CONTROL_PLANE, true),
        ] {
            ledger.node(&node(name, role, cordoned), false);
        }
        assert_eq!(ledger.control_plane_out.len(), 1);
        ledger.node(&node("a", CONTROL_PLANE, true), false);
        assert_eq!(ledger.control_plane_out.len(), 2);
    }
}
