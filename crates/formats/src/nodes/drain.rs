//! Pods of a node, and those that a drain evicts.
//!
//! As in `kubectl drain`: pods of a DaemonSet, static pods and finished pods stay.

use std::collections::BTreeMap;

use jiff::SignedDuration;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::labels_of;
use crate::file::Loss;
use pleach_model::object::ObjectId;
use pleach_model::order::selects;

/// Annotation of the copy of a static pod.
const MIRROR: &str = "kubernetes.io/config.mirror";

/// Number of pods that a message names.
const NAMED: usize = 5;

/// Eviction of pods.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct DrainRule {
    /// Pods with an `emptyDir` volume.
    pub empty_dir: Loss,
    /// Pods without a controller.
    pub unmanaged: Loss,
    /// Time limit. `None`: that of the node.
    pub timeout: Option<SignedDuration>,
}

/// A pod that a drain must remove.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NodePod {
    /// The pod.
    pub id: ObjectId,
    /// Its uid.
    pub uid: String,
    /// Its node.
    pub node: String,
    /// Its labels.
    pub labels: BTreeMap<String, String>,
    /// Whether it is being deleted.
    pub deleting: bool,
    /// Uid of the controller that creates it again. `None` without one.
    pub controller: Option<String>,
    /// Whether it is the only pod of its controller.
    #[serde(default)]
    pub alone: bool,
    /// Whether it has an `emptyDir` volume on a disk.
    pub empty_dir: bool,
}

impl NodePod {
    /// Reads a live pod. `None` for one that a drain leaves alone, and for one without a node.
    pub fn of(pod: &Value) -> Option<Self> {
        let text = |value: &Value| value.as_str().map(str::to_owned);
        let metadata = &pod["metadata"];
        let node = text(&pod["spec"]["nodeName"])?;
        let owners = metadata["ownerReferences"].as_array();
        let mut owners = owners.into_iter().flatten();
        let controller = owners.find(|owner| owner["controller"] == true);
        let is_of_daemon_set = controller.is_some_and(|owner| {
            owner["kind"] == "DaemonSet"
                && owner["apiVersion"]
                    .as_str()
                    .is_some_and(|version| version.starts_with("apps/"))
        });
        let is_static = !metadata["annotations"][MIRROR].is_null();
        let phase = pod["status"]["phase"].as_str();
        if is_of_daemon_set || is_static || matches!(phase, Some("Succeeded" | "Failed")) {
            return None;
        }
        let volumes = pod["spec"]["volumes"].as_array();
        let mut volumes = volumes.into_iter().flatten();
        Some(Self {
            id: ObjectId::new(
                "",
                "Pod",
                metadata["namespace"].as_str(),
                metadata["name"].as_str()?,
            ),
            uid: text(&metadata["uid"]).unwrap_or_default(),
            node,
            labels: labels_of(pod),
            deleting: !metadata["deletionTimestamp"].is_null(),
            controller: controller.map(|owner| text(&owner["uid"]).unwrap_or_default()),
            alone: false,
            empty_dir: volumes.any(|volume| volume["emptyDir"].is_object()),
        })
    }
}

impl DrainRule {
    /// Returns the reasons not to evict pods: code and message of a finding for each.
    pub fn objections(&self, pods: &[NodePod]) -> Vec<(&'static str, String)> {
        let mut refused = Vec::new();
        let mut add = |code, loss, is_lost: fn(&NodePod) -> bool, why: &str| {
            let pods: Vec<&NodePod> = pods.iter().filter(|pod| is_lost(pod)).collect();
            if loss == Loss::Refuse && !pods.is_empty() {
                refused.push((code, format!("{}: {why}", named(&pods))));
            }
        };
        add(
            "unmanaged-pods",
            self.unmanaged,
            |pod| pod.controller.is_none() && !pod.deleting,
            "no controller creates them again after an eviction",
        );
        add(
            "empty-dirs",
            self.empty_dir,
            |pod| pod.empty_dir && !pod.deleting,
            "an eviction loses the data in their emptyDir volumes",
        );
        refused
    }
}

fn named(pods: &[&NodePod]) -> String {
    let mut names: Vec<String> = pods
        .iter()
        .take(NAMED)
        .map(|pod| pod.id.to_string())
        .collect();
    if pods.len() > NAMED {
        names.push(format!("{} more", pods.len() - NAMED));
    }
    names.join(", ")
}

/// A `PodDisruptionBudget`, as the API server judges evictions by it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Budget {
    /// The object.
    pub id: ObjectId,
    /// Its label selector.
    pub selector: Value,
    /// Whether its bounds never allow an eviction: `maxUnavailable` of 0, or `minAvailable` of
    /// 100 %.
    pub is_closed: bool,
}

impl Budget {
    /// Reads a live budget.
    pub fn of(budget: &Value) -> Option<Self> {
        let metadata = &budget["metadata"];
        let spec = &budget["spec"];
        let (min, max) = (&spec["minAvailable"], &spec["maxUnavailable"]);
        Some(Self {
            id: ObjectId::new(
                "policy",
                "PodDisruptionBudget",
                metadata["namespace"].as_str(),
                metadata["name"].as_str()?,
            ),
            selector: spec["selector"].clone(),
            is_closed: *min == "100%" || *max == "0%" || max.as_i64() == Some(0),
        })
    }

    /// Returns whether the budget covers a pod.
    pub fn covers(&self, pod: &NodePod) -> bool {
        self.id.namespace == pod.id.namespace && selects(&self.selector, &pod.labels)
    }
}

/// Returns each pod that several budgets cover, with those budgets. The API server refuses its
/// eviction.
pub fn overlapping<'a>(
    pods: &'a [NodePod],
    budgets: &'a [Budget],
) -> Vec<(&'a NodePod, Vec<&'a Budget>)> {
    let mut by_namespace: BTreeMap<Option<&str>, Vec<&Budget>> = BTreeMap::new();
    for budget in budgets {
        by_namespace
            .entry(budget.id.namespace.as_deref())
            .or_default()
            .push(budget);
    }
    let covering = pods.iter().map(|pod| {
        let budgets = by_namespace.get(&pod.id.namespace.as_deref());
        let budgets = budgets.into_iter().flatten().copied();
        (
            pod,
            budgets
                .filter(|budget| budget.covers(pod))
                .collect::<Vec<_>>(),
        )
    });
    covering.filter(|(_, budgets)| budgets.len() > 1).collect()
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::json;

    use super::*;

    fn pod(extra: &Value) -> Value {
        let mut pod = json!({"metadata": {"namespace": "web", "name": "web-1", "uid": "u",
            "labels": {"app": "web"}, "ownerReferences": [
                {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web", "controller": true}]},
            "spec": {"nodeName": "node-1"}, "status": {"phase": "Running"}});
        for (pointer, value) in extra.as_object().unwrap() {
            let (parent, key) = pointer.rsplit_once('/').unwrap();
            pod.pointer_mut(parent).unwrap()[key] = value.clone();
        }
        pod
    }

    #[rstest]
    #[case::of_a_deployment(json!({}), true)]
    #[case::of_a_daemon_set(json!({"/metadata/ownerReferences": [{"apiVersion": "apps/v1", "kind": "DaemonSet", "controller": true}]}), false)]
    #[case::of_another_daemon_set(json!({"/metadata/ownerReferences": [{"apiVersion": "apps.example.org/v1", "kind": "DaemonSet", "controller": true}]}), true)]
    #[case::static_pod(json!({"/metadata/annotations": {MIRROR: "x"}}), false)]
    #[case::finished(json!({"/status/phase": "Succeeded"}), false)]
    #[case::pending(json!({"/status/phase": "Pending"}), true)]
    #[case::without_a_node(json!({"/spec/nodeName": null}), false)]
    fn pods_to_evict(#[case] extra: Value, #[case] expected: bool) {
        assert_eq!(NodePod::of(&pod(&extra)).is_some(), expected);
    }

    fn pods(extra: &Value) -> Vec<NodePod> {
        vec![NodePod::of(&pod(extra)).unwrap()]
    }

    #[rstest]
    #[case(json!({}), &[])]
    #[case(json!({"/metadata/ownerReferences": []}), &["unmanaged-pods"])]
    #[case(json!({"/spec/volumes": [{"name": "a", "emptyDir": {}}]}), &["empty-dirs"])]
    #[case(json!({"/spec/volumes": [{"name": "a", "emptyDir": {}}], "/metadata/deletionTimestamp": "t"}), &[])]
    fn lost_pods_and_data_are_refused(#[case] extra: Value, #[case] expected: &[&str]) {
        let refuse = DrainRule {
            empty_dir: Loss::Refuse,
            unmanaged: Loss::Refuse,
            timeout: None,
        };
        let refused = refuse.objections(&pods(&extra));
        let codes: Vec<&str> = refused.iter().map(|(code, _)| *code).collect();
        assert_eq!(codes, expected);
        let delete = DrainRule {
            empty_dir: Loss::Delete,
            unmanaged: Loss::Delete,
            timeout: None,
        };
        assert_eq!(delete.objections(&pods(&extra)), []);
    }

    fn budget(name: &str, spec: &Value) -> Budget {
        let metadata = json!({"namespace": "web", "name": name});
        Budget::of(&json!({"metadata": metadata, "spec": spec})).unwrap()
    }

    #[rstest]
    #[case(json!({"maxUnavailable": 0}), true)]
    #[case(json!({"maxUnavailable": "0%"}), true)]
    #[case(json!({"minAvailable": "100%"}), true)]
    #[case(json!({"minAvailable": 1}), false)]
    #[case(json!({"maxUnavailable": 1}), false)]
    fn budgets_that_never_allow_an_eviction(#[case] spec: Value, #[case] expected: bool) {
        assert_eq!(budget("a", &spec).is_closed, expected);
    }

    #[test]
    fn two_budgets_on_one_pod_overlap() {
        let of_app = json!({"selector": {"matchLabels": {"app": "web"}}});
        let of_all = json!({"selector": {}});
        let other = json!({"selector": {"matchLabels": {"app": "db"}}});
        let pods = pods(&json!({}));
        let budgets = [
            budget("a", &of_app),
            budget("b", &of_all),
            budget("c", &other),
        ];
        let found = overlapping(&pods, &budgets);
        let names: Vec<&str> = found[0]
            .1
            .iter()
            .map(|budget| budget.id.name.as_str())
            .collect();
        assert_eq!((found.len(), names), (1, vec!["a", "b"]));
        assert_eq!(overlapping(&pods, &budgets[1..]), []);
    }
}
