//! Readiness of a live object, derived from the object alone.
//!
//! The states follow kstatus
//! (<https://github.com/kubernetes-sigs/cli-utils/tree/master/pkg/kstatus>). They
//! are stricter where "current" there only means "observed": a Job is `Current`
//! when it has completed, not while it runs. This module neither waits nor reads.
//! If one object does not show its state, the message reports that.
//!
//! ```
//! use pleach_formats::readiness::{Readiness, assess};
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

use pleach_model::object::{ApiVersion, GroupKind};
use pleach_model::order::is_builtin_group;

pub use pods::failure_hint;
pub use rules::NAMES;
pub use rules::{BrokenRule, Rules};

/// State of an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Readiness {
    /// The controller is still working, or has not observed the object yet.
    InProgress,
    /// The object matches its spec, as far as its status shows.
    Current,
    /// The object will not become ready without a change.
    Failed,
    /// The object is being deleted.
    Terminating,
    /// The object does not exist. The reader sets this state, never [`assess`].
    NotFound,
    /// The state is unknown.
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

/// Time at which a wait may give up on a failed object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GiveUp {
    /// Immediately: the failure is final.
    AtOnce,
    /// After a grace period with the same failure, because the controller may
    /// recover.
    AfterGrace,
    /// At the deadline of the wait, because the controller retries.
    AtDeadline,
}

/// State of an object, with the reason.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Assessment {
    /// State of the object.
    pub readiness: Readiness,
    /// One line for users: condition, reason, last message, counts. Empty if
    /// there is nothing to add to `Current`.
    pub message: String,
    /// Time at which a wait may give up. Only relevant for
    /// [`Readiness::Failed`].
    pub give_up: GiveUp,
}

impl Assessment {
    /// Creates an assessment. The message is joined into one line and
    /// truncated.
    pub fn new(readiness: Readiness, message: impl AsRef<str>) -> Self {
        Self {
            readiness,
            message: conditions::one_line(message.as_ref()),
            give_up: GiveUp::AtOnce,
        }
    }

    /// Creates the assessment of an object that does not exist.
    pub fn not_found() -> Self {
        Self::new(Readiness::NotFound, "does not exist")
    }

    /// Returns whether there is nothing to wait for.
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

/// Rule of one built-in kind.
struct Family {
    group: &'static str,
    kind: &'static str,
    rule: Rule,
    /// False if the rule always returns `Current`.
    waits: bool,
    /// True if existence is sufficient for [`accepted`].
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

/// Rules of built-in kinds. A new rule is one line here and one function.
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
        apis::crd,
    ),
    family("apiregistration.k8s.io", "APIService", apis::api_service),
    lenient(
        "certificates.k8s.io",
        "CertificateSigningRequest",
        apis::signing_request,
    ),
    lenient(
        "flowcontrol.apiserver.k8s.io",
        "FlowSchema",
        apis::flow_schema,
    ),
    lenient("networking.k8s.io", "ServiceCIDR", network::service_range),
    lenient(
        "storagemigration.k8s.io",
        "StorageVersionMigration",
        apis::migration,
    ),
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

/// Assesses a complete live object, by the rule of its kind or by its
/// conditions.
pub fn assess(value: &Value) -> Assessment {
    if let Some(terminating) = terminating(value) {
        return terminating;
    }
    let kind = kind_of(value);
    match find(&kind) {
        Some(family) => (family.rule)(value),
        // Built-in kinds without a rule have no status that shows readiness.
        None if is_builtin_group(&kind.group) => Assessment::current(),
        None => kinds::row(&kind).map_or_else(|| general::assess(value), |row| row.assess(value)),
    }
}

/// Assesses a prerequisite of workloads. Workloads, Jobs, namespaces, CRDs and
/// disruption budgets are assessed as in [`assess`]. All other objects only
/// have to exist and not be deleted; their readiness is checked in `verify`.
pub fn accepted(value: &Value) -> Assessment {
    match find(&kind_of(value)) {
        Some(family) if !family.exists_is_accepted => assess(value),
        _ => terminating(value).unwrap_or_else(Assessment::current),
    }
}

/// Returns whether objects of a kind can exist without being current, so that
/// their status must be read. True for custom resources, false for a
/// `ConfigMap`.
pub fn has_rules(kind: &GroupKind) -> bool {
    match find(kind) {
        Some(family) => family.waits,
        None => !is_builtin_group(&kind.group),
    }
}

/// Returns the assessment of an object that is being deleted; `None` if it is
/// not.
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

    /// Assesses an object built from its group-version, kind and other fields.
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
    #[case("certificates.k8s.io", "CertificateSigningRequest", true)]
    #[case("flowcontrol.apiserver.k8s.io", "PriorityLevelConfiguration", false)]
    #[case("widgets.example.org", "Widget", true)]
    fn kinds_with_a_relevant_status(
        #[case] group: &str,
        #[case] kind: &str,
        #[case] expected: bool,
    ) {
        assert_eq!(has_rules(&GroupKind::new(group, kind)), expected);
    }

    #[rstest]
    #[case("v1", "ConfigMap")]
    #[case("admissionregistration.k8s.io/v1", "ValidatingWebhookConfiguration")]
    #[case("admissionregistration.k8s.io/v1", "MutatingWebhookConfiguration")]
    #[case("rbac.authorization.k8s.io/v1", "Role")]
    fn objects_without_status_are_current_once_they_exist(
        #[case] api_version: &str,
        #[case] kind: &str,
    ) {
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
    fn rules_accept_nulls() {
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
    fn an_object_being_deleted_is_terminating() {
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
