//! Whether a live object has come about, from the object alone.
//!
//! The sense of the words is that of kstatus
//! (<https://github.com/kubernetes-sigs/cli-utils/tree/master/pkg/kstatus>),
//! stricter where "current" there only means "taken note of": a Job is
//! `Current` when it has completed, not while it runs. Nothing here waits or
//! reads: what cannot be seen from one object is not guessed, the message says
//! so instead.
//!
//! ```
//! use pleach_domain::readiness::{Readiness, assess};
//! let live = serde_json::json!({
//!     "apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService",
//!     "metadata": {"name": "v1.metrics.example.org"},
//!     "status": {"conditions": [{"type": "Available", "status": "False",
//!         "reason": "MissingEndpoints", "message": "no addresses"}]},
//! });
//! let assessment = assess(&live);
//! assert_eq!(assessment.readiness, Readiness::InProgress);
//! assert_eq!(assessment.message, "Available=False (MissingEndpoints): no addresses");
//! ```

mod apis;
mod conditions;
mod general;
mod jobs;
mod kinds;
mod namespaces;
mod network;
mod pods;
mod policies;
mod rules;
mod stale;
mod storage;
pub mod symptoms;
mod workloads;

use std::fmt;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::object::{ApiVersion, GroupKind};
use crate::order::is_builtin_group;

pub use pods::failure_hint;
pub(crate) use rules::NAMES;
pub use rules::{BrokenRule, Rules};

/// How far an object is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Readiness {
    /// Its controller is still at work, or has not seen it yet.
    InProgress,
    /// It is as its manifest wants it, as far as its status tells.
    Current,
    /// It will not come about without a change.
    Failed,
    /// It is being deleted.
    Terminating,
    /// It does not exist; said by whoever looked for it, never by [`assess`].
    NotFound,
    /// Nothing can be told.
    Unknown,
}

impl fmt::Display for Readiness {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::InProgress => "in progress",
            Self::Current => "current",
            Self::Failed => "failed",
            Self::Terminating => "terminating",
            Self::NotFound => "not found",
            Self::Unknown => "unknown",
        })
    }
}

/// When a wait may give up on a failed object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GiveUp {
    /// The verdict is final.
    AtOnce,
    /// After the verdict stayed the same for a while: the controller may recover.
    AfterGrace,
    /// Not before the deadline of the wait: the controller tries again.
    AtDeadline,
}

/// How far an object is, and what says so.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Assessment {
    /// The verdict.
    pub readiness: Readiness,
    /// One line for people: condition, reason, last message, counts. Empty
    /// when there is nothing to add to `Current`.
    pub message: String,
    /// When a wait may give up. Only for [`Readiness::Failed`].
    pub give_up: GiveUp,
}

impl Assessment {
    /// States a verdict; the message is made one line and cut.
    pub fn new(readiness: Readiness, message: impl AsRef<str>) -> Self {
        Self {
            readiness,
            message: conditions::one_line(message.as_ref()),
            give_up: GiveUp::AtOnce,
        }
    }

    /// What is said of an object that is not there.
    pub fn not_found() -> Self {
        Self::new(Readiness::NotFound, "does not exist")
    }

    /// Whether nothing needs to be waited for.
    pub fn is_current(&self) -> bool {
        self.readiness == Readiness::Current
    }

    fn current() -> Self {
        Self::new(Readiness::Current, "")
    }

    fn note(message: impl AsRef<str>) -> Self {
        Self::new(Readiness::Current, message)
    }

    fn in_progress(message: impl AsRef<str>) -> Self {
        Self::new(Readiness::InProgress, message)
    }

    fn failed(message: impl AsRef<str>) -> Self {
        Self::new(Readiness::Failed, message)
    }

    fn failed_until(message: impl AsRef<str>, give_up: GiveUp) -> Self {
        Self {
            give_up,
            ..Self::failed(message)
        }
    }
}

type Rule = fn(&Value) -> Assessment;

/// One built-in kind.
struct Family {
    group: &'static str,
    kind: &'static str,
    rule: Rule,
    /// Whether the verdict can be anything but `Current`.
    waits: bool,
    /// Whether "accepted" is less than "ready".
    exists_is_accepted: bool,
}

const fn family(group: &'static str, kind: &'static str, rule: Rule) -> Family {
    Family {
        group,
        kind,
        rule,
        waits: true,
        exists_is_accepted: false,
    }
}

const fn lenient(group: &'static str, kind: &'static str, rule: Rule) -> Family {
    Family {
        exists_is_accepted: true,
        ..family(group, kind, rule)
    }
}

const fn note_only(group: &'static str, kind: &'static str, rule: Rule) -> Family {
    Family {
        waits: false,
        ..lenient(group, kind, rule)
    }
}

/// The rules for built-in kinds. A new rule is one line here and one function.
const FAMILIES: &[Family] = &[
    family("apps", "Deployment", workloads::deployment),
    family("apps", "StatefulSet", workloads::stateful_set),
    family("apps", "DaemonSet", workloads::daemon_set),
    family("apps", "ReplicaSet", workloads::replica_set),
    family("", "ReplicationController", workloads::replica_set),
    family("batch", "Job", jobs::job),
    note_only("batch", "CronJob", jobs::cron_job),
    family("", "Pod", pods::pod),
    lenient("", "PersistentVolumeClaim", storage::claim),
    lenient("", "PersistentVolume", storage::volume),
    family("policy", "PodDisruptionBudget", policies::disruption_budget),
    lenient(
        "autoscaling",
        "HorizontalPodAutoscaler",
        policies::autoscaler,
    ),
    lenient("", "Service", network::service),
    note_only("networking.k8s.io", "Ingress", network::ingress),
    family("", "Namespace", namespaces::namespace),
    family(
        "apiextensions.k8s.io",
        "CustomResourceDefinition",
        apis::definition,
    ),
    family("apiregistration.k8s.io", "APIService", apis::api_service),
];

fn find(kind: &GroupKind) -> Option<&'static Family> {
    FAMILIES
        .iter()
        .find(|family| kind.is(family.group, family.kind))
}

fn kind_of(value: &Value) -> GroupKind {
    GroupKind::new(
        ApiVersion::parse(value["apiVersion"].as_str().unwrap_or_default()).group,
        value["kind"].as_str().unwrap_or_default(),
    )
}

/// Judges a live object, read in full, by the rule of its kind or by its
/// conditions.
pub fn assess(value: &Value) -> Assessment {
    if let Some(terminating) = terminating(value) {
        return terminating;
    }
    let kind = kind_of(value);
    match find(&kind) {
        Some(family) => (family.rule)(value),
        // A built-in kind without a rule has no status that says whether it is ready.
        None if is_builtin_group(&kind.group) => Assessment::current(),
        None => kinds::row(&kind).map_or_else(|| general::assess(value), |row| row.assess(value)),
    }
}

/// Judges what must hold before workloads are applied: workloads, Jobs,
/// namespaces, definitions and disruption budgets as [`assess`] does; of
/// everything else, that it exists and is not being deleted. Real readiness of
/// those is due before `verify`.
pub fn accepted(value: &Value) -> Assessment {
    match find(&kind_of(value)) {
        Some(family) if !family.exists_is_accepted => assess(value),
        _ => terminating(value).unwrap_or_else(Assessment::current),
    }
}

/// Whether objects of a kind can be anything but current while they exist, so
/// that their status has to be read. Custom resources may; a `ConfigMap` cannot.
pub fn has_rules(kind: &GroupKind) -> bool {
    match find(kind) {
        Some(family) => family.waits,
        None => !is_builtin_group(&kind.group),
    }
}

/// What is said of an object that is being deleted.
fn terminating(value: &Value) -> Option<Assessment> {
    let metadata = &value["metadata"];
    metadata["deletionTimestamp"].as_str()?;
    let finalizers: Vec<&str> = metadata["finalizers"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
        .collect();
    let mut message = String::from("is being deleted");
    if !finalizers.is_empty() {
        message.push_str(", waits for finalizers ");
        message.push_str(&finalizers.join(", "));
    }
    if kind_of(value).is("", "Namespace")
        && let Some(blocker) = namespaces::deletion_blocker(value)
    {
        message.push_str("; ");
        message.push_str(&blocker);
    }
    Some(Assessment::new(Readiness::Terminating, message))
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::json;

    use super::*;

    /// Judges an object given by group-version, kind and the rest.
    #[expect(clippy::needless_pass_by_value, reason = "tables hold the values")]
    pub(super) fn check(api_version: &str, kind: &str, rest: Value) -> (Readiness, String) {
        let mut object =
            json!({"apiVersion": api_version, "kind": kind, "metadata": {"name": "x"}});
        let target = object.as_object_mut().unwrap();
        for (key, value) in rest.as_object().unwrap() {
            target.insert(key.clone(), value.clone());
        }
        let Assessment {
            readiness, message, ..
        } = assess(&object);
        assert!(!message.contains('\n'), "{message}");
        (readiness, message)
    }

    #[rstest]
    #[case("", "ConfigMap", false)]
    #[case("", "Secret", false)]
    #[case("rbac.authorization.k8s.io", "ClusterRole", false)]
    #[case(
        "admissionregistration.k8s.io",
        "ValidatingWebhookConfiguration",
        false
    )]
    #[case("batch", "CronJob", false)]
    #[case("networking.k8s.io", "Ingress", false)]
    #[case("apps", "Deployment", true)]
    #[case("", "Namespace", true)]
    #[case("", "Service", true)]
    #[case("apiextensions.k8s.io", "CustomResourceDefinition", true)]
    #[case("widgets.example.org", "Widget", true)]
    fn kinds_whose_status_matters(#[case] group: &str, #[case] kind: &str, #[case] expected: bool) {
        assert_eq!(has_rules(&GroupKind::new(group, kind)), expected);
    }

    #[rstest]
    #[case("v1", "ConfigMap")]
    #[case("admissionregistration.k8s.io/v1", "ValidatingWebhookConfiguration")]
    #[case("admissionregistration.k8s.io/v1", "MutatingWebhookConfiguration")]
    #[case("rbac.authorization.k8s.io/v1", "Role")]
    fn what_has_no_status_is_current_once_it_exists(#[case] api_version: &str, #[case] kind: &str) {
        assert_eq!(
            check(api_version, kind, json!({})),
            (Readiness::Current, String::new())
        );
    }

    #[test]
    fn a_kind_without_rules_is_never_anything_but_current() {
        for family in FAMILIES.iter().filter(|family| !family.waits) {
            let object = json!({"kind": family.kind, "status": null, "spec": null});
            assert!((family.rule)(&object).is_current(), "{}", family.kind);
        }
    }

    #[test]
    fn no_rule_trips_over_nulls() {
        for family in FAMILIES {
            let api_version = if family.group.is_empty() {
                "v1".to_owned()
            } else {
                format!("{}/v1", family.group)
            };
            for status in [
                json!(null),
                json!({"conditions": null, "containerStatuses": null, "loadBalancer": null}),
                json!({"conditions": [null, {"type": null}, 3]}),
            ] {
                let object = json!({"apiVersion": api_version, "kind": family.kind,
                    "metadata": {"generation": 1, "finalizers": null, "deletionTimestamp": null},
                    "spec": null, "status": status});
                assert_ne!(assess(&object).readiness, Readiness::Terminating);
            }
        }
    }

    #[test]
    fn whatever_is_being_deleted_is_terminating() {
        let (readiness, message) = check(
            "v1",
            "ConfigMap",
            json!({"metadata": {"deletionTimestamp": "2026-07-01T10:00:00Z", "finalizers": ["example.org/a", "b"]}}),
        );
        assert_eq!(readiness, Readiness::Terminating);
        assert_eq!(
            message,
            "is being deleted, waits for finalizers example.org/a, b"
        );
    }

    #[rstest]
    #[case(json!({"apiVersion": "v1", "kind": "Service", "spec": {"type": "LoadBalancer"}}), true)]
    #[case(json!({"apiVersion": "v1", "kind": "PersistentVolumeClaim", "status": {"phase": "Pending"}}), true)]
    #[case(json!({"apiVersion": "example.org/v1", "kind": "Certificate",
        "status": {"conditions": [{"type": "Ready", "status": "False"}]}}), true)]
    #[case(json!({"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": {"generation": 1}}), false)]
    #[case(json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"generation": 1}}), false)]
    #[case(json!({"apiVersion": "v1", "kind": "Service",
        "metadata": {"deletionTimestamp": "2026-07-01T10:00:00Z"}}), false)]
    fn accepted_is_less_than_ready(#[case] object: Value, #[case] expected: bool) {
        assert_eq!(accepted(&object).is_current(), expected);
    }
}
