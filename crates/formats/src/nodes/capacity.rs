//! Capacity of nodes: whether the pods that a drain removes fit on the other nodes.
//!
//! A sum, not a schedule: affinity, limits per node and fragments are not considered. So a warning
//! is certain, and no warning proves nothing.

use std::collections::{BTreeMap, BTreeSet};

use pleach_fields::diff::fields::billionths;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{NodePod, is_cordoned, ready_since};

/// Amounts of CPU and memory.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Resources {
    /// Thousandths of a CPU.
    pub cpu: u64,
    /// Bytes.
    pub memory: u64,
}

impl Resources {
    /// Reads the amounts in a map of quantities, such as `requests`. Missing ones are zero.
    fn of(map: &Value) -> Self {
        let amount = |key: &str, unit: i128| {
            let amount = billionths(&map[key]).unwrap_or(0).max(0);
            // The server rounds up, too.
            let rounded = amount.saturating_add(unit - 1) / unit;
            u64::try_from(rounded).unwrap_or(u64::MAX)
        };
        Self {
            cpu: amount("cpu", 1_000_000),
            memory: amount("memory", 1_000_000_000),
        }
    }

    fn plus(self, other: Self) -> Self {
        Self {
            cpu: self.cpu.saturating_add(other.cpu),
            memory: self.memory.saturating_add(other.memory),
        }
    }

    fn minus(self, other: Self) -> Self {
        Self {
            cpu: self.cpu.saturating_sub(other.cpu),
            memory: self.memory.saturating_sub(other.memory),
        }
    }

    fn max(self, other: Self) -> Self {
        Self {
            cpu: self.cpu.max(other.cpu),
            memory: self.memory.max(other.memory),
        }
    }
}

/// Returns the requests of a live pod, as the scheduler counts them: the sum of its containers and
/// sidecars, or the largest init container, and the overhead. Requests of the pod itself count
/// first.
fn requests(pod: &Value) -> Resources {
    let spec = &pod["spec"];
    let of = |container: &Value| Resources::of(&container["resources"]["requests"]);
    let all = |key: &str| spec[key].as_array().into_iter().flatten();
    let mut running = Resources::default();
    for container in all("containers") {
        running = running.plus(of(container));
    }
    let mut sidecars = Resources::default();
    let mut starting = Resources::default();
    for container in all("initContainers") {
        if container["restartPolicy"] == "Always" {
            sidecars = sidecars.plus(of(container));
            starting = starting.max(sidecars);
        } else {
            starting = starting.max(sidecars.plus(of(container)));
        }
    }
    let mut requests = running.plus(sidecars).max(starting);
    let own = &spec["resources"]["requests"];
    for (key, amount) in [("cpu", &mut requests.cpu), ("memory", &mut requests.memory)] {
        if !own[key].is_null() {
            let own = Resources::of(own);
            *amount = if key == "cpu" { own.cpu } else { own.memory };
        }
    }
    requests.plus(Resources::of(&spec["overhead"]))
}

/// Free capacity of a node, and the pods that a drain would remove from it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeCapacity {
    /// Its name.
    pub name: String,
    /// Allocatable, without the requests of all its pods. Zero if it takes no pods.
    pub free: Resources,
    /// Requests of the pods that a drain removes.
    pub moving: Resources,
    /// Keys of its taints that keep pods away.
    pub taints: BTreeSet<String>,
}

impl NodeCapacity {
    /// Reads a live node without its pods.
    pub fn of(node: &Value) -> Option<Self> {
        let takes_pods = ready_since(node).is_some() && !is_cordoned(node);
        let taints = node["spec"]["taints"].as_array().into_iter().flatten();
        let taints = taints.filter(|taint| taint["effect"] != "PreferNoSchedule");
        Some(Self {
            name: node["metadata"]["name"].as_str()?.to_owned(),
            free: if takes_pods {
                Resources::of(&node["status"]["allocatable"])
            } else {
                Resources::default()
            },
            moving: Resources::default(),
            taints: taints
                .filter_map(|taint| taint["key"].as_str().map(str::to_owned))
                .collect(),
        })
    }
}

/// Sums of the requests of pods, by node.
#[derive(Debug, Default)]
pub struct Usage(BTreeMap<String, (Resources, Resources)>);

impl Usage {
    /// Adds a live pod. A finished one and one without a node count for nothing.
    pub fn add(&mut self, pod: &Value) {
        let phase = pod["status"]["phase"].as_str();
        let node = pod["spec"]["nodeName"].as_str();
        let node = node.filter(|_| !matches!(phase, Some("Succeeded" | "Failed")));
        let Some(node) = node else { return };
        let requests = requests(pod);
        let moves = NodePod::of(pod).is_some_and(|pod| !pod.deleting);
        let (used, moving) = self.0.entry(node.to_owned()).or_default();
        *used = used.plus(requests);
        if moves {
            *moving = moving.plus(requests);
        }
    }

    /// Subtracts the requests from the free capacity of each node, and adds the pods that move.
    pub fn apply(&self, nodes: &mut [NodeCapacity]) {
        for node in nodes {
            if let Some((used, moving)) = self.0.get(&node.name) {
                node.free = node.free.minus(*used);
                node.moving = *moving;
            }
        }
    }
}

/// Requests that do not fit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shortage {
    /// Requests of the pods that move.
    pub moving: Resources,
    /// Free capacity of the nodes that can take them.
    pub free: Resources,
}

/// Returns the shortage if the pods of a batch of nodes do not fit on all other nodes. A node takes
/// pods if each of its taints is on a node of the batch too, because nobody knows what these pods
/// tolerate beyond that.
pub fn shortage(nodes: &[NodeCapacity], batch: &BTreeSet<&str>) -> Option<Shortage> {
    let (leaving, others): (Vec<&NodeCapacity>, Vec<&NodeCapacity>) = nodes
        .iter()
        .partition(|node| batch.contains(node.name.as_str()));
    let sum = |resources: &mut dyn Iterator<Item = Resources>| {
        resources.fold(Resources::default(), Resources::plus)
    };
    let tolerated: BTreeSet<&String> = leaving.iter().flat_map(|node| &node.taints).collect();
    let takes = |node: &&&NodeCapacity| node.taints.iter().all(|taint| tolerated.contains(taint));
    let moving = sum(&mut leaving.iter().map(|node| node.moving));
    let free = sum(&mut others.iter().filter(takes).map(|node| node.free));
    let is_short = moving.cpu > free.cpu || moving.memory > free.memory;
    is_short.then_some(Shortage { moving, free })
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::json;

    use super::*;

    const MI: u64 = 1 << 20;

    fn resources(cpu: u64, mebibytes: u64) -> Resources {
        Resources {
            cpu,
            memory: mebibytes * MI,
        }
    }

    fn container(cpu: &str, memory: &str) -> Value {
        json!({"resources": {"requests": {"cpu": cpu, "memory": memory}}})
    }

    #[rstest]
    #[case::no_requests(json!({"containers": [{}]}), resources(0, 0))]
    #[case::sum(json!({"containers": [container("250m", "64Mi"), container("1", "1Gi")]}), resources(1250, 1088))]
    #[case::rounded_up(json!({"containers": [container("1u", "0")]}), resources(1, 0))]
    #[case::unreadable(json!({"containers": [container("many", "-1")]}), resources(0, 0))]
    #[case::large_init(json!({"containers": [container("1", "1Mi")], "initContainers": [container("2", "1Mi"), container("1", "3Mi")]}), resources(2000, 3))]
    #[case::sidecar(json!({"containers": [container("1", "1Mi")], "initContainers": [
        {"restartPolicy": "Always", "resources": {"requests": {"cpu": "500m"}}}, container("1", "2Mi")]}), resources(1500, 2))]
    #[case::overhead(json!({"containers": [container("1", "1Mi")], "overhead": {"cpu": "100m", "memory": "2Mi"}}), resources(1100, 3))]
    #[case::of_the_pod(json!({"containers": [container("1", "1Mi")], "resources": {"requests": {"cpu": "3"}}}), resources(3000, 1))]
    fn requests_of_a_pod(#[case] spec: Value, #[case] expected: Resources) {
        assert_eq!(requests(&json!({"spec": spec})), expected);
    }

    fn node(name: &str, cpu: &str, taints: &Value) -> Value {
        json!({"metadata": {"name": name}, "spec": {"taints": taints}, "status": {
            "allocatable": {"cpu": cpu, "memory": "1Gi"},
            "conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": "t"}]}})
    }

    fn pod(node: &str, cpu: &str, owner: &str) -> Value {
        json!({"metadata": {"name": "p", "ownerReferences": [
                {"apiVersion": "apps/v1", "kind": owner, "controller": true}]},
            "spec": {"nodeName": node, "containers": [container(cpu, "1Mi")]},
            "status": {"phase": "Running"}})
    }

    fn capacities(nodes: &[Value], pods: &[Value]) -> Vec<NodeCapacity> {
        let mut usage = Usage::default();
        for pod in pods {
            usage.add(pod);
        }
        let mut nodes: Vec<NodeCapacity> = nodes.iter().filter_map(NodeCapacity::of).collect();
        usage.apply(&mut nodes);
        nodes
    }

    #[test]
    fn pods_that_move_must_fit_on_the_other_nodes() {
        let control_plane = json!([{"key": "control-plane", "effect": "NoSchedule"}]);
        let soft = json!([{"key": "busy", "effect": "PreferNoSchedule"}]);
        let none = json!([]);
        let mut cordoned = node("b", "4", &none);
        cordoned["spec"]["unschedulable"] = json!(true);
        let mut lost = node("b", "4", &none);
        lost["status"]["conditions"] = json!([]);
        let mut finished = pod("b", "3", "ReplicaSet");
        finished["status"]["phase"] = json!("Succeeded");
        for (case, other, pods, expected) in [
            (
                "fits",
                node("b", "2", &none),
                vec![pod("a", "2", "ReplicaSet")],
                None,
            ),
            (
                "does not fit",
                node("b", "2", &none),
                vec![pod("a", "2001m", "ReplicaSet")],
                Some((2001, 2000)),
            ),
            (
                "the other node is used",
                node("b", "2", &none),
                vec![pod("a", "1", "ReplicaSet"), pod("b", "1500m", "DaemonSet")],
                Some((1000, 500)),
            ),
            (
                "finished pods use nothing",
                node("b", "2", &none),
                vec![pod("a", "1", "ReplicaSet"), finished],
                None,
            ),
            (
                "pods of a DaemonSet do not move",
                node("b", "2", &none),
                vec![pod("a", "3", "DaemonSet")],
                None,
            ),
            (
                "cordoned",
                cordoned,
                vec![pod("a", "1", "ReplicaSet")],
                Some((1000, 0)),
            ),
            (
                "not ready",
                lost,
                vec![pod("a", "1", "ReplicaSet")],
                Some((1000, 0)),
            ),
            (
                "tainted",
                node("b", "2", &control_plane),
                vec![pod("a", "1", "ReplicaSet")],
                Some((1000, 0)),
            ),
            (
                "a soft taint",
                node("b", "2", &soft),
                vec![pod("a", "1", "ReplicaSet")],
                None,
            ),
        ] {
            let nodes = capacities(&[node("a", "4", &none), other], &pods);
            let found = shortage(&nodes, &BTreeSet::from(["a"]));
            let found = found.map(|short| (short.moving.cpu, short.free.cpu));
            assert_eq!(found, expected, "{case}");
        }
    }

    #[test]
    fn memory_counts_as_well() {
        let mut large = pod("a", "0", "ReplicaSet");
        large["spec"]["containers"][0]["resources"]["requests"]["memory"] = json!("1025Mi");
        let none = json!([]);
        let nodes = capacities(&[node("a", "4", &none), node("b", "4", &none)], &[large]);
        let short = shortage(&nodes, &BTreeSet::from(["a"])).unwrap();
        assert_eq!(
            (short.moving.memory, short.free.memory),
            (1025 * MI, 1024 * MI)
        );
    }
}
