//! Readiness rules that bundles declare.

use jiff::SignedDuration;
use serde_json::Value;

use super::stale::without_stale;
use super::{Assessment, assess, conditions, has_rules, kind_of, terminating};
use crate::file::ReadinessRule;
use pleach_model::cel::{CompileError, Expression, Subject, Unevaluable};
use pleach_model::object::{GroupKind, known_kind};
use pleach_model::order::is_builtin_group;

/// Names available in rules: the object and its top-level fields.
pub const NAMES: &[&str] = &[
    "item",
    "apiVersion",
    "kind",
    "metadata",
    "spec",
    "status",
    "data",
];

/// Readiness rules for some kinds. They take precedence over the built-in
/// rules.
#[derive(Debug, Clone, Default, PartialEq, Hash)]
pub struct Rules(Vec<Rule>);

#[derive(Debug, Clone, PartialEq, Hash)]
struct Rule {
    kind: GroupKind,
    current: Option<Expression>,
    failed: Option<Expression>,
    stable_for: SignedDuration,
    source: ReadinessRule,
}

/// An invalid part of a rule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BrokenRule {
    /// Index of the rule.
    pub index: usize,
    /// Field of the rule.
    pub field: &'static str,
    /// Compile error of the expression.
    pub error: CompileError,
}

impl Rules {
    /// Compiles rules. Fails with all invalid parts.
    pub fn read<'a>(
        rules: impl IntoIterator<Item = &'a ReadinessRule>,
    ) -> Result<Self, Vec<BrokenRule>> {
        let mut broken = Vec::new();
        let mut read = Vec::new();
        for (index, rule) in rules.into_iter().enumerate() {
            let mut expression = |field, text: Option<&String>| {
                Expression::compile(text?, NAMES)
                    .map_err(|error| {
                        broken.push(BrokenRule {
                            index,
                            field,
                            error,
                        });
                    })
                    .ok()
            };
            let current = expression("current", rule.current.as_ref());
            let failed = expression("failed", rule.failed.as_ref());
            read.push(Rule {
                kind: group_kind(rule),
                current,
                failed,
                stable_for: rule.stable_for.map_or(SignedDuration::ZERO, |time| time.0),
                source: rule.clone(),
            });
        }
        if broken.is_empty() {
            Ok(Self(read))
        } else {
            Err(broken)
        }
    }

    /// Returns the rules as written, for the record.
    pub fn sources(&self) -> Vec<ReadinessRule> {
        self.0.iter().map(|rule| rule.source.clone()).collect()
    }

    fn of(&self, kind: &GroupKind) -> Option<&Rule> {
        self.0.iter().find(|rule| rule.kind == *kind)
    }

    /// Assesses a complete live object, by these rules or else by the built-in
    /// ones.
    pub fn assess(&self, value: &Value) -> Assessment {
        let rule = self.of(&kind_of(value));
        let judged = rule.filter(|rule| rule.current.is_some() || rule.failed.is_some());
        judged.map_or_else(|| assess(value), |rule| rule.assess(value))
    }

    /// Returns whether objects of a kind can exist without being current.
    pub fn waits_for(&self, kind: &GroupKind) -> bool {
        self.of(kind).is_some() || has_rules(kind)
    }

    /// Returns whether a custom resource has no status and no rule of the
    /// bundle decides when it is ready.
    pub fn lacks_status(&self, value: &Value) -> bool {
        let kind = kind_of(value);
        let has_rule = self.of(&kind).is_some_and(|rule| rule.current.is_some());
        !is_builtin_group(&kind.group) && !has_rule && is_empty(&value["status"])
    }

    /// Returns the time for which an object of a kind must stay ready.
    pub fn stable_for(&self, kind: &GroupKind) -> SignedDuration {
        self.of(kind)
            .map_or(SignedDuration::ZERO, |rule| rule.stable_for)
    }
}

/// Returns whether a value has no content at any depth.
fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::String(text) => text.is_empty(),
        Value::Array(items) => items.iter().all(is_empty),
        Value::Object(fields) => fields.values().all(is_empty),
        Value::Bool(_) | Value::Number(_) => false,
    }
}

/// Returns the group and kind of a rule. An unknown kind without a group is in
/// the core group.
fn group_kind(rule: &ReadinessRule) -> GroupKind {
    known_kind(rule.group.as_deref(), &rule.kind)
        .unwrap_or_else(|| GroupKind::new("", rule.kind.clone()))
}

impl Rule {
    /// Assesses an object by the rule. If the rule only has `failed`, the
    /// built-in rules decide the rest.
    fn assess(&self, object: &Value) -> Assessment {
        if let Some(terminating) = terminating(object) {
            return terminating;
        }
        // A status of an earlier spec does not count.
        if let Some(lag) = conditions::lagging(object) {
            return lag;
        }
        let value = &*without_stale(object);
        let subject = Subject::of(value);
        if let Some(failed) = &self.failed
            && failed.test(&subject) == Ok(true)
        {
            let holds = format!("`{}` holds", failed.text());
            return Assessment::failed(explained(value, holds));
        }
        let Some(current) = &self.current else {
            return assess(object);
        };
        match current.test(&subject) {
            Ok(true) => Assessment::current(),
            Ok(false) | Err(Unevaluable::Missing(_)) => {
                let missing = format!("`{}` does not hold yet", current.text());
                Assessment::in_progress(explained(value, missing))
            }
            Err(why) => Assessment::in_progress(format!("`{}`: {why}", current.text())),
        }
    }
}

/// Explains an assessment by a condition of the object, or else by the rule.
pub(super) fn explained(value: &Value, rule: String) -> String {
    conditions::trouble(value).unwrap_or(rule)
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::json;

    use super::super::Readiness::{self, Current, Failed, InProgress, Terminating};
    use super::*;

    fn rule(
        group: Option<&str>,
        kind: &str,
        current: Option<&str>,
        failed: Option<&str>,
    ) -> ReadinessRule {
        ReadinessRule {
            group: group.map(str::to_owned),
            kind: kind.to_owned(),
            current: current.map(str::to_owned),
            failed: failed.map(str::to_owned),
            stable_for: None,
        }
    }

    fn rules() -> Rules {
        Rules::read(&[
            rule(
                Some("example.org"),
                "Widget",
                Some("status.phase == 'Deployed' && status.observed == status.target"),
                Some("status.phase == 'Broken'"),
            ),
            rule(None, "ConfigMap", Some("data.ready == 'yes'"), None),
            rule(Some("example.org"), "Gear", None, Some("status.teeth < 3")),
            rule(None, "Deployment", Some("status.readyReplicas > 0"), None),
        ])
        .unwrap()
    }

    #[rstest]
    #[case::no_status(json!({}), InProgress, "`status.phase == 'Deployed' && status.observed == status.target` does not hold yet")]
    #[case::deployed(json!({"status": {"phase": "Deployed", "observed": "1", "target": "1"}}), Current, "")]
    #[case::another_version(json!({"status": {"phase": "Deployed", "observed": "1", "target": "2"}}), InProgress,
        "`status.phase == 'Deployed' && status.observed == status.target` does not hold yet")]
    #[case::conditions_are_more_specific(json!({"status": {"phase": "Deploying", "conditions": [
            {"type": "Available", "status": "False", "reason": "Pods", "message": "1 of 2"}]}}), InProgress,
        "Available=False (Pods): 1 of 2")]
    #[case::ready_by_its_condition_is_not_enough(json!({"status": {"conditions": [{"type": "Ready", "status": "True"}]}}),
        InProgress, "`status.phase == 'Deployed' && status.observed == status.target` does not hold yet")]
    #[case::broken(json!({"status": {"phase": "Broken"}}), Failed, "`status.phase == 'Broken'` holds")]
    #[case::lag(json!({"metadata": {"generation": 2}, "status": {"observedGeneration": 1, "phase": "Broken"}}), InProgress,
        "its controller has observed generation 1, not 2 yet")]
    #[case::of_another_type(json!({"status": {"phase": "Deployed", "observed": [], "target": 1}}), InProgress,
        "`status.phase == 'Deployed' && status.observed == status.target` does not hold yet")]
    #[case::terminating(json!({"metadata": {"deletionTimestamp": "2026-07-01T10:00:00Z"}, "status": {"phase": "Broken"}}),
        Terminating, "is being deleted")]
    fn a_rule_of_a_bundle_decides(
        #[case] rest: Value,
        #[case] readiness: Readiness,
        #[case] message: &str,
    ) {
        let mut value = json!({"apiVersion": "example.org/v1", "kind": "Widget"});
        for (key, field) in rest.as_object().unwrap() {
            value[key] = field.clone();
        }
        let found = rules().assess(&value);
        assert_eq!(
            (found.readiness, found.message.as_str()),
            (readiness, message)
        );
    }

    #[test]
    fn rules_come_before_the_built_in_ones_and_only_for_their_kind() {
        let rules = rules();
        let map = json!({"apiVersion": "v1", "kind": "ConfigMap", "data": {"ready": "no"}});
        assert_eq!(rules.assess(&map).readiness, InProgress);
        let deployment = json!({"apiVersion": "apps/v1", "kind": "Deployment", "spec": {"replicas": 3},
            "status": {"readyReplicas": 1}});
        assert_eq!(rules.assess(&deployment).readiness, Current);
        let gear = |status: Value| json!({"apiVersion": "example.org/v1", "kind": "Gear", "status": status});
        assert_eq!(rules.assess(&gear(json!({"teeth": 2}))).readiness, Failed);
        let condition = json!({"conditions": [{"type": "Ready", "status": "False"}]});
        assert_eq!(rules.assess(&gear(condition)).readiness, InProgress);
        let other = json!({"apiVersion": "other.org/v1", "kind": "Widget"});
        assert_eq!(rules.assess(&other).readiness, Current);
        for (group, kind, waits) in [
            ("", "ConfigMap", true),
            ("", "Secret", false),
            ("example.org", "Widget", true),
        ] {
            assert_eq!(
                rules.waits_for(&GroupKind::new(group, kind)),
                waits,
                "{kind}"
            );
        }
    }

    #[test]
    fn custom_resources_without_a_status() {
        let rules = rules();
        for (api_version, kind, status, expected) in [
            ("example.org/v1", "Gear", json!(null), true),
            ("example.org/v1", "Gear", json!({}), true),
            (
                "example.org/v1",
                "Gear",
                json!({"conditions": [], "phase": ""}),
                true,
            ),
            (
                "example.org/v1",
                "Gear",
                json!({"observedGeneration": 1}),
                false,
            ),
            ("example.org/v1", "Gear", json!({"phase": "Idle"}), false),
            ("example.org/v1", "Widget", json!({}), false),
            ("v1", "ConfigMap", json!(null), false),
            ("apps/v1", "Deployment", json!({}), false),
        ] {
            let value = json!({"apiVersion": api_version, "kind": kind, "status": status});
            assert_eq!(rules.lacks_status(&value), expected, "{value}");
        }
    }

    /// A condition of an earlier generation is ignored by every kind of rule.
    #[test]
    fn conditions_of_an_earlier_generation_do_not_count() {
        let exists = "status.conditions.exists(c, c.type == 'Ready' && c.status == 'True')";
        let stalled = "status.conditions.exists(c, c.type == 'Stalled' && c.status == 'True')";
        let rules = Rules::read(&[
            rule(Some("example.org"), "Widget", Some(exists), Some(stalled)),
            rule(Some("example.org"), "Gear", None, Some(stalled)),
        ])
        .unwrap();
        for (api_version, kind) in [
            ("example.org/v1", "Widget"),
            ("example.org/v1", "Gear"),
            ("example.org/v1", "Other"),
            ("cert-manager.io/v1", "Certificate"),
            ("kustomize.toolkit.fluxcd.io/v1", "Kustomization"),
        ] {
            for (name, observed, expected) in [
                ("Ready", 2, Current),
                ("Ready", 1, InProgress),
                ("Stalled", 1, InProgress),
            ] {
                let value = json!({"apiVersion": api_version, "kind": kind, "metadata": {"generation": 2},
                    "status": {"conditions": [{"type": name, "status": "True", "observedGeneration": observed}]}});
                let found = rules.assess(&value);
                let case = format!("{kind} {name} {observed}: {}", found.message);
                assert_eq!(found.readiness, expected, "{case}");
            }
        }
    }

    #[test]
    fn a_rule_can_set_only_a_duration() {
        let mut slow = rule(None, "Deployment", None, None);
        slow.stable_for = Some("30s".to_owned().try_into().unwrap());
        let rules = Rules::read(&[slow.clone()]).unwrap();
        let kind = GroupKind::new("apps", "Deployment");
        assert_eq!(rules.stable_for(&kind), SignedDuration::from_secs(30));
        let other = GroupKind::new("apps", "DaemonSet");
        assert_eq!(rules.stable_for(&other), SignedDuration::ZERO);
        let value =
            json!({"apiVersion": "apps/v1", "kind": "Deployment", "spec": {}, "status": {}});
        assert_eq!(rules.assess(&value), assess(&value));
        // The recorded rules read back the same.
        let text = serde_json::to_string(&rules.sources()).unwrap();
        let read: Vec<ReadinessRule> = serde_json::from_str(&text).unwrap();
        assert_eq!(read, [slow]);
    }

    #[test]
    fn all_errors_of_rules_are_reported() {
        let broken = Rules::read(&[
            rule(None, "Pod", Some("statu.phase == 'x'"), Some("(")),
            rule(None, "Job", Some("true"), None),
        ])
        .unwrap_err();
        let fields: Vec<_> = broken.iter().map(|one| (one.index, one.field)).collect();
        assert_eq!(fields, [(0, "current"), (0, "failed")]);
    }
}
