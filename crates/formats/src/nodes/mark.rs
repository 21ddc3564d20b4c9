//! The mark on a node that is being changed, and the patches of the node.
//!
//! The mark is an annotation. It is written with the same patch as the change that it remembers,
//! so a node never has a cordon or taint of ours without a mark, and no mark without them. A patch
//! contains the resourceVersion, because `spec.taints` is replaced as a whole.

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::patch::Replaced;
use super::{MetadataPatch, NodeAction, NodesRule, Taint, is_cordoned};

/// Annotation of a node that is being changed.
pub const MARK: &str = "pleach.dev/node-upgrade";

/// Changes of a release on a node, which end with its upgrade.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Mark {
    /// Environment and release.
    pub release: String,
    /// The stage.
    pub stage: String,
    /// Whether the node was cordoned by us.
    #[serde(default, skip_serializing_if = "core::ops::Not::not")]
    pub cordoned: bool,
    /// Taints that we set.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub taints: Vec<Taint>,
    /// Values of labels and annotations that we replaced.
    #[serde(default, skip_serializing_if = "Replaced::is_empty")]
    pub replaced: Replaced,
    /// Whether the Job may have begun. From then on, the node keeps its cordon and taints.
    #[serde(default, skip_serializing_if = "core::ops::Not::not")]
    pub begun: bool,
    /// Whether `done` held before the driver of the node got its first acknowledgement.
    #[serde(default, skip_serializing_if = "core::ops::Not::not")]
    pub was_done: bool,
    /// Digest of the second request of the driver at that time, which is of an earlier change.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub earlier: Option<String>,
}

impl Mark {
    /// Reads the mark of a node. An unreadable mark counts as none: then nothing is ours.
    pub fn of(node: &Value) -> Option<Self> {
        let text = node["metadata"]["annotations"][MARK].as_str()?;
        serde_json::from_str(text).ok()
    }

    /// Returns the patch that sets a taint. `None` if the node has it.
    pub fn taint(&self, node: &Value, taint: &Taint) -> Option<Value> {
        let mut taints = taints_of(node);
        if taints.iter().any(|item| taint.equals(item)) {
            return None;
        }
        taints.retain(|item| !taint.is(item));
        taints.push(taint.to_value());
        let mut mark = self.clone();
        if !mark.taints.contains(taint) {
            mark.taints.push(taint.clone());
        }
        let mut patch = mark.patch(node);
        patch["spec"]["taints"] = json!(taints);
        Some(patch)
    }

    /// Returns the patch that sets labels and annotations. `None` if the node has them.
    pub fn patch_metadata(&self, node: &Value, declared: &MetadataPatch) -> Option<Value> {
        let replaced = declared.replaces(node);
        if replaced.is_empty() {
            return None;
        }
        let mut mark = self.clone();
        mark.replaced.add(replaced);
        let mut patch = mark.patch(node);
        declared.add_to(&mut patch);
        Some(patch)
    }

    /// Returns the item of `spec.taints` that is in the way of a taint: the same key and effect with
    /// another value, which is not ours.
    pub fn obstacle<'a>(&self, node: &'a Value, taint: &Taint) -> Option<&'a Value> {
        let mut taints = node["spec"]["taints"].as_array()?.iter();
        taints.find(|item| {
            let is_ours = self.taints.iter().any(|ours| ours.equals(item));
            taint.is(item) && !taint.equals(item) && !is_ours
        })
    }

    /// Returns the patch that cordons the node. A node that another client cordoned only gets the
    /// mark. `None` if nothing is to be changed.
    pub fn cordon(&self, node: &Value) -> Option<Value> {
        if is_cordoned(node) {
            return Self::of(node).is_none().then(|| self.patch(node));
        }
        let mark = Self {
            cordoned: true,
            ..self.clone()
        };
        let mut patch = mark.patch(node);
        patch["spec"]["unschedulable"] = json!(true);
        Some(patch)
    }

    /// Returns the patch that remembers that the Job may have begun.
    pub fn begin(&self, node: &Value) -> Value {
        let mark = Self {
            begun: true,
            ..self.clone()
        };
        mark.patch(node)
    }

    /// Returns the patch that remembers that the first request of a driver is about to be
    /// acknowledged. `is_done`: whether `done` holds. `earlier`: digest of its second request.
    /// `None` if the mark has these values.
    pub fn hand_over(&self, node: &Value, is_done: bool, earlier: Option<&str>) -> Option<Value> {
        let mark = Self {
            begun: true,
            was_done: if self.begun { self.was_done } else { is_done },
            earlier: earlier.map(str::to_owned),
            ..self.clone()
        };
        (mark != *self).then(|| mark.patch(node))
    }

    /// Returns the patch that reverts [`Self::hand_over`]. `None` if there is nothing to revert.
    pub fn hand_back(&self, node: &Value) -> Option<Value> {
        let mark = Self {
            begun: false,
            was_done: false,
            earlier: None,
            ..self.clone()
        };
        (mark != *self).then(|| mark.patch(node))
    }

    /// Returns the patch that forgets the earlier request of a driver, which removed it. `None` if
    /// there is none.
    pub fn forget_earlier(&self, node: &Value) -> Option<Value> {
        let mark = Self {
            earlier: None,
            ..self.clone()
        };
        (mark != *self).then(|| mark.patch(node))
    }

    /// Returns the patch that takes our cordon and taints off and keeps the mark, for the actions
    /// after the upgrade. `None` if nothing of it is left on the node.
    pub fn release(&self, node: &Value, rule: &NodesRule) -> Option<Value> {
        if !self.cordoned && self.taints.is_empty() && self.replaced.is_empty() {
            return None;
        }
        let mark = Self {
            cordoned: false,
            taints: Vec::new(),
            replaced: Replaced::default(),
            begun: true,
            ..self.clone()
        };
        Some(self.without_changes(node, rule, mark.patch(node)))
    }

    /// Returns the patch that takes cordon, taints and mark off the node.
    pub fn end(&self, node: &Value, rule: &NodesRule) -> Value {
        let version = &node["metadata"]["resourceVersion"];
        let patch = json!({"metadata": {"resourceVersion": version, "annotations": {MARK: null}}});
        self.without_changes(node, rule, patch)
    }

    fn without_changes(&self, node: &Value, rule: &NodesRule, mut patch: Value) -> Value {
        if self.cordoned && is_cordoned(node) {
            patch["spec"]["unschedulable"] = Value::Null;
        }
        // Everybody who can annotate a node can write the mark. Only taints that the bundle
        // declares are removed.
        let is_ours = |item: &Value| {
            let mut declared = rule.taints();
            declared.any(|taint| self.taints.contains(taint) && taint.equals(item))
        };
        let mut taints = taints_of(node);
        let count = taints.len();
        taints.retain(|item| !is_ours(item));
        if taints.len() < count {
            patch["spec"]["taints"] = json!(taints);
        }
        let declared: Vec<&MetadataPatch> = rule.patches().collect();
        self.replaced.restore(&declared, node, &mut patch);
        patch
    }

    fn patch(&self, node: &Value) -> Value {
        let version = &node["metadata"]["resourceVersion"];
        // A struct of texts and booleans always has a JSON form.
        let text = serde_json::to_string(self).unwrap_or_default();
        json!({"metadata": {"resourceVersion": version, "annotations": {MARK: text}}})
    }
}

impl NodesRule {
    /// Returns the taints that the rule sets.
    pub fn taints(&self) -> impl Iterator<Item = &Taint> {
        let actions = self.before.iter().chain(&self.after);
        actions.filter_map(|action| match action {
            NodeAction::Taint(taint) => Some(taint),
            NodeAction::Patch(_) | NodeAction::Check { .. } | NodeAction::Job { .. } => None,
        })
    }

    /// Returns the patches of labels and annotations that the rule sets.
    fn patches(&self) -> impl Iterator<Item = &MetadataPatch> {
        self.before.iter().filter_map(|action| match action {
            NodeAction::Patch(patch) => Some(patch),
            NodeAction::Taint(_) | NodeAction::Check { .. } | NodeAction::Job { .. } => None,
        })
    }
}

fn taints_of(node: &Value) -> Vec<Value> {
    node["spec"]["taints"]
        .as_array()
        .cloned()
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use jiff::SignedDuration;
    use pleach_model::cel::Expression;

    use super::*;
    use crate::sequence::Count;

    fn rule() -> NodesRule {
        NodesRule {
            select: BTreeMap::new(),
            first: Vec::new(),
            parallel: Count::Pods(1),
            done: Expression::compile("true", &["node"]).unwrap(),
            before: vec![
                NodeAction::Taint("drain=now:NoSchedule".parse().unwrap()),
                NodeAction::Patch(work()),
            ],
            drain: None,
            driver: None,
            job: None,
            after: Vec::new(),
            cleanup: None,
            pause_after: None,
            reverse: false,
            timeout: SignedDuration::from_secs(60),
        }
    }

    fn work() -> MetadataPatch {
        let patch = json!({"metadata": {"labels": {"work": "yes"}}});
        MetadataPatch::of(&serde_json::from_value(patch).unwrap()).unwrap()
    }

    fn mark() -> Mark {
        Mark {
            release: "prod.web".to_owned(),
            stage: "nodes".to_owned(),
            ..Mark::default()
        }
    }

    fn patched(node: &Value, patch: &Value) -> Value {
        let mut node = node.clone();
        json_patch::merge(&mut node, patch);
        node
    }

    fn node() -> Value {
        json!({"metadata": {"name": "a", "resourceVersion": "7"},
            "spec": {"taints": [{"key": "other", "effect": "NoSchedule"}]}})
    }

    #[test]
    fn a_node_is_as_before_at_the_end() {
        let rule = rule();
        let taint = rule.taints().next().unwrap();
        let tainted = patched(&node(), &mark().taint(&node(), taint).unwrap());
        assert_eq!(tainted["spec"]["taints"].as_array().unwrap().len(), 2);
        let mark = Mark::of(&tainted).unwrap();
        assert_eq!(mark.taint(&tainted, taint), None);
        let labeled = patched(&tainted, &mark.patch_metadata(&tainted, &work()).unwrap());
        assert_eq!(labeled["metadata"]["labels"]["work"], "yes");
        let mark = Mark::of(&labeled).unwrap();
        assert_eq!(mark.patch_metadata(&labeled, &work()), None);
        let cordoned = patched(&labeled, &mark.cordon(&labeled).unwrap());
        let mark = Mark::of(&cordoned).unwrap();
        assert!(mark.cordoned && is_cordoned(&cordoned));
        assert_eq!(mark.cordon(&cordoned), None);
        let begun = patched(&cordoned, &mark.begin(&cordoned));
        let mark = Mark::of(&begun).unwrap();
        assert!(mark.begun);
        let released = patched(&begun, &mark.release(&begun, &rule).unwrap());
        assert!(!is_cordoned(&released));
        assert_eq!(released["spec"]["taints"], node()["spec"]["taints"]);
        let mark = Mark::of(&released).unwrap();
        assert_eq!(mark.release(&released, &rule), None);
        let mut ended = patched(&released, &mark.end(&released, &rule));
        let metadata = ended["metadata"].as_object_mut().unwrap();
        metadata.remove("annotations");
        assert_eq!(metadata.remove("labels"), Some(json!({})));
        assert_eq!(ended, node());
    }

    #[test]
    fn what_others_did_stays() {
        let rule = rule();
        let mut foreign = node();
        foreign["spec"]["unschedulable"] = json!(true);
        foreign["spec"]["taints"] =
            json!([{"key": "drain", "value": "now", "effect": "NoSchedule"}]);
        let taint = rule.taints().next().unwrap();
        assert_eq!(mark().taint(&foreign, taint), None);
        let marked = patched(&foreign, &mark().cordon(&foreign).unwrap());
        assert_eq!(Mark::of(&marked), Some(mark()));
        assert_eq!(marked["spec"], foreign["spec"]);
        assert_eq!(mark().cordon(&marked), None);
        let other: Taint = "drain=later:NoSchedule".parse().unwrap();
        assert!(mark().obstacle(&foreign, &other).is_some());
        assert!(mark().obstacle(&foreign, taint).is_none());
        let ended = patched(&foreign, &mark().end(&foreign, &rule));
        assert_eq!(ended["spec"], foreign["spec"]);
    }

    #[test]
    fn a_forged_mark_removes_no_other_taint() {
        let forged = Mark {
            taints: vec!["other:NoSchedule".parse().unwrap()],
            ..mark()
        };
        let ended = patched(&node(), &forged.end(&node(), &rule()));
        assert_eq!(ended["spec"], node()["spec"]);
    }

    #[test]
    fn a_refused_acknowledgement_leaves_no_trace_in_the_mark() {
        let tainted = patched(
            &node(),
            &mark()
                .taint(&node(), rule().taints().next().unwrap())
                .unwrap(),
        );
        let before = Mark::of(&tainted).unwrap();
        let handed = patched(
            &tainted,
            &before.hand_over(&tainted, true, Some("d")).unwrap(),
        );
        let mark = Mark::of(&handed).unwrap();
        let earlier = mark.earlier.as_deref();
        assert_eq!(
            (mark.begun, mark.was_done, earlier),
            (true, true, Some("d"))
        );
        assert_eq!(mark.hand_over(&handed, false, Some("d")), None);
        // A second first hook of the same change.
        let again = patched(&handed, &mark.hand_over(&handed, false, Some("e")).unwrap());
        let again = Mark::of(&again).unwrap();
        assert_eq!(
            (again.was_done, again.earlier.as_deref()),
            (true, Some("e"))
        );
        let forgot = patched(&handed, &mark.forget_earlier(&handed).unwrap());
        let forgot = Mark::of(&forgot).unwrap();
        assert_eq!((forgot.begun, forgot.earlier.clone()), (true, None));
        assert_eq!(forgot.forget_earlier(&handed), None);
        let back = patched(&handed, &mark.hand_back(&handed).unwrap());
        assert_eq!(back, tainted);
        assert_eq!(before.hand_back(&tainted), None);
    }

    #[test]
    fn a_mark_of_the_previous_version_is_read() {
        let mut node = node();
        let text = r#"{"release":"prod.web","stage":"nodes","begun":true}"#;
        node["metadata"]["annotations"] = json!({MARK: text});
        let begun = Mark {
            begun: true,
            ..mark()
        };
        assert_eq!(Mark::of(&node), Some(begun));
    }

    #[test]
    fn an_unreadable_mark_is_none() {
        let mut node = node();
        node["metadata"]["annotations"] = json!({MARK: "{"});
        assert_eq!(Mark::of(&node), None);
    }
}
