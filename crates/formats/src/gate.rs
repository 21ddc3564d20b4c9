//! Gates: admission policies that block writes of other clients during a release change.
//!
//! A gate is a `ValidatingAdmissionPolicy` with a binding of the same name,
//! `<environment>.<release>.<name>`. It exempts service accounts of the release, nodes, the
//! cluster's own controllers, and users that the bundle lists. It exempts the user that creates the
//! gate only if the change itself writes the blocked resources.
//!
//! A second rule of the policy rejects one `ConfigMap` name without exemptions. A dry run of that
//! ConfigMap shows whether the gate is in force.
//!
//! ```
//! use pleach_formats::gate::{Closed, Gate, Operation};
//! use pleach_model::object::ReleaseName;
//! let gate = Gate {
//!     release: ReleaseName { environment: "e".into(), release: "r".into() },
//!     name: "handover".into(),
//!     version: "v2".into(),
//!     closed: vec![Closed { groups: vec!["example.org".into()], resources: vec!["*".into()] }],
//!     operations: vec![Operation::Create, Operation::Update],
//!     exempt: vec![],
//!     exempts_us: false,
//!     state: "pleach-system".into(),
//! };
//! assert_eq!(gate.id().name, "e.r.handover");
//! assert_eq!(gate.explain(), "CREATE and UPDATE of *.example.org");
//! ```

use std::fmt;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use pleach_model::object::{GroupKind, ObjectId, ReleaseName, annotations, labels};
use pleach_model::order::Interception;

pub use crate::file::Operation;

/// API group of policies and their bindings.
pub const GROUP: &str = "admissionregistration.k8s.io";
/// Kind of the policy of a gate.
pub const POLICY: &str = "ValidatingAdmissionPolicy";
/// Kind of the binding that puts a policy in force.
pub const BINDING: &str = "ValidatingAdmissionPolicyBinding";

/// Kinds of admission policies and their bindings.
const ADMISSION: [&str; 4] = [
    POLICY,
    BINDING,
    "MutatingAdmissionPolicy",
    "MutatingAdmissionPolicyBinding",
];

/// Prefix of all probe names. The name of the gate follows.
const PROBE: &str = "pleach-gate-probe-";

/// Users of the cluster's own components, which are exempt.
const COMPONENTS: [&str; 3] = [
    "system:apiserver",
    "system:kube-controller-manager",
    "system:kube-scheduler",
];

/// Exempt groups: nodes and controllers of the cluster.
const GROUPS: [&str; 2] = ["system:nodes", "system:serviceaccounts:kube-system"];

/// A gate in a plan. The user and the time are added when it is created.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Gate {
    /// Release whose change the gate protects.
    pub release: ReleaseName,
    /// Its name in the bundle.
    pub name: String,
    /// Target version of the change.
    pub version: String,
    /// Blocked resources.
    pub closed: Vec<Closed>,
    /// Blocked operations.
    pub operations: Vec<Operation>,
    /// Exempt users in addition to the cluster's own.
    pub exempt: Vec<String>,
    /// Whether the user that creates the gate is exempt, because its change writes the blocked
    /// resources.
    #[serde(default, skip_serializing_if = "core::ops::Not::not")]
    pub exempts_us: bool,
    /// Namespace of the release's state, which is also the namespace of the probe.
    pub state: String,
}

/// Resources that a gate blocks.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Closed {
    /// API groups.
    pub groups: Vec<String>,
    /// Plural names, each including its subresources. `*` means all resources of the groups.
    pub resources: Vec<String>,
}

impl Closed {
    /// Returns the resources of an admission rule. A plural name includes its subresources.
    fn rule(&self) -> Vec<String> {
        if self.resources.iter().any(|resource| resource == "*") {
            return vec!["*/*".to_owned()];
        }
        let both = |plural: &String| [plural.clone(), format!("{plural}/*")];
        self.resources.iter().flat_map(both).collect()
    }

    /// Returns whether the gate blocks some of the resources that a webhook intercepts.
    pub fn covers(&self, rule: &Interception) -> bool {
        let meets = |one: &str, other: &str| one == "*" || other == "*" || one == other;
        let mut groups = self.groups.iter();
        let mut resources = self.resources.iter();
        groups.any(|group| meets(group, &rule.group))
            && resources.any(|resource| meets(resource, &rule.resource))
    }
}

impl fmt::Display for Closed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut first = true;
        for group in &self.groups {
            for resource in &self.resources {
                let separator = if first { "" } else { ", " };
                first = false;
                if group.is_empty() {
                    write!(f, "{separator}{resource}")?;
                } else {
                    write!(f, "{separator}{resource}.{group}")?;
                }
            }
        }
        Ok(())
    }
}

/// Returns the user name of a service account.
pub fn account(namespace: &str, name: &str) -> String {
    format!("system:serviceaccount:{namespace}:{name}")
}

/// Returns whether an object is a `ValidatingAdmissionPolicy`.
pub fn is_policy(id: &ObjectId) -> bool {
    id.is(GROUP, POLICY)
}

/// Returns whether a kind is an admission policy or its binding.
pub fn is_admission(kind: &GroupKind) -> bool {
    kind.group == GROUP && ADMISSION.contains(&kind.kind.as_str())
}

/// Returns the policy name of a probe.
pub fn probed(probe: &ObjectId) -> Option<&str> {
    probe.name.strip_prefix(PROBE)
}

/// Returns the command that lifts an abandoned gate.
pub fn lifted_by(policy: &ObjectId) -> String {
    format!("pleach doctor --fix {policy}")
}

/// Returns the probe of a policy. `state` is the probe's namespace.
pub fn probe(policy: &ObjectId, state: &str) -> ObjectId {
    let name = format!("{PROBE}{}", policy.name);
    ObjectId::new("", "ConfigMap", Some(state), &name)
}

/// Returns the binding of a policy.
pub fn binding(policy: &ObjectId) -> ObjectId {
    ObjectId::new(GROUP, BINDING, None, &policy.name)
}

/// Returns whether a live policy or binding is a gate of the release, by its name and its
/// annotation.
pub fn is_of(live: &Value, release: &ReleaseName) -> bool {
    let metadata = &live["metadata"];
    let owner = release.to_string();
    let name = metadata["name"].as_str().unwrap_or_default();
    metadata["annotations"][annotations::GATE] == owner.as_str()
        && name
            .strip_prefix(&owner)
            .is_some_and(|rest| rest.len() > 1 && rest.starts_with('.'))
}

impl Gate {
    /// Returns the id of the policy.
    pub fn id(&self) -> ObjectId {
        let name = format!("{}.{}", self.release, self.name);
        ObjectId::new(GROUP, POLICY, None, &name)
    }

    /// Describes the blocked writes.
    pub fn explain(&self) -> String {
        let operations: Vec<&str> = self.operations.iter().map(|one| one.as_str()).collect();
        let closed: Vec<String> = self.closed.iter().map(ToString::to_string).collect();
        format!("{} of {}", operations.join(" and "), closed.join(", "))
    }

    /// Builds the policy. `by` is the user that creates it, and only matters if the gate exempts
    /// that user.
    pub fn policy(&self, by: Option<&str>, since: Timestamp) -> Value {
        let probe = probe(&self.id(), &self.state);
        let mut rules: Vec<Value> = self
            .closed
            .iter()
            .map(|closed| {
                json!({
                    "apiGroups": closed.groups,
                    "apiVersions": ["*"],
                    "operations": self.operations,
                    "resources": closed.rule(),
                })
            })
            .collect();
        rules.push(json!({
            "apiGroups": [""],
            "apiVersions": ["*"],
            "operations": ["CREATE"],
            "resources": ["configmaps"],
            "resourceNames": [probe.name],
        }));
        json!({
            "apiVersion": format!("{GROUP}/v1"),
            "kind": POLICY,
            "metadata": self.metadata(since),
            "spec": {
                "failurePolicy": "Fail",
                "matchConstraints": { "resourceRules": rules },
                "matchConditions": [{
                    "name": "not-exempt",
                    "expression": self.condition(by, &probe),
                }],
                "validations": [{
                    "expression": "false",
                    "message": self.message(since),
                    "reason": "Forbidden",
                }],
            },
        })
    }

    /// Builds the binding that puts the policy in force.
    pub fn binding(&self, since: Timestamp) -> Value {
        json!({
            "apiVersion": format!("{GROUP}/v1"),
            "kind": BINDING,
            "metadata": self.metadata(since),
            "spec": { "policyName": self.id().name, "validationActions": ["Deny"] },
        })
    }

    fn metadata(&self, since: Timestamp) -> Value {
        let id = self.id();
        json!({
            "name": id.name,
            "labels": { labels::MANAGED_BY: "pleach" },
            "annotations": {
                annotations::GATE: self.release.to_string(),
                annotations::GATE_SINCE: second(since),
                annotations::GATE_LIFT: lifted_by(&id),
            },
        })
    }

    /// Builds the message for rejected clients.
    fn message(&self, since: Timestamp) -> String {
        let ReleaseName {
            environment,
            release,
        } = &self.release;
        format!(
            "{environment}/{release} is being changed to {} (gate {}, since {}); retry when the run has finished. If no run is active any more: {}",
            self.version,
            self.name,
            second(since),
            lifted_by(&self.id())
        )
    }

    /// Builds the match condition: the probe always matches, other writes only if not exempt.
    fn condition(&self, by: Option<&str>, probe: &ObjectId) -> String {
        // JSON string literals are valid in CEL.
        let text = |text: &str| Value::from(text).to_string();
        let mut users: Vec<&str> = COMPONENTS.to_vec();
        users.extend(by.filter(|_| self.exempts_us));
        users.extend(self.exempt.iter().map(String::as_str));
        users.sort_unstable();
        users.dedup();
        let users: Vec<String> = users.into_iter().map(text).collect();
        let groups: Vec<String> = GROUPS.into_iter().map(text).collect();
        // `name` is absent in a request without a name.
        format!(
            "(request.resource.group == '' && request.resource.resource == 'configmaps' && request.namespace == {} && has(request.name) && request.name == {}) || !(request.userInfo.username in [{}] || (has(request.userInfo.groups) && request.userInfo.groups.exists(group, group in [{}])))",
            text(&self.state),
            text(&probe.name),
            users.join(", "),
            groups.join(", ")
        )
    }
}

fn second(time: Timestamp) -> String {
    // Rounding to seconds cannot fail for a valid timestamp.
    time.round(jiff::Unit::Second).unwrap_or(time).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gate(closed: &[(&str, &str)]) -> Gate {
        Gate {
            release: ReleaseName {
                environment: "production".to_owned(),
                release: "web".to_owned(),
            },
            name: "handover".to_owned(),
            version: "v2.0.0".to_owned(),
            closed: closed
                .iter()
                .map(|(group, resource)| Closed {
                    groups: vec![(*group).to_owned()],
                    resources: vec![(*resource).to_owned()],
                })
                .collect(),
            operations: vec![Operation::Create, Operation::Update],
            exempt: vec![account("web", "api")],
            exempts_us: true,
            state: "pleach-system".to_owned(),
        }
    }

    #[test]
    fn a_gate_closes_all_of_its_groups_or_single_plurals_with_their_subresources() {
        let policy = gate(&[("a.example.org", "*"), ("b.example.org", "gears")])
            .policy(Some("ops"), Timestamp::UNIX_EPOCH);
        let rules = &policy["spec"]["matchConstraints"]["resourceRules"];
        assert_eq!(rules[0]["resources"], json!(["*/*"]));
        assert_eq!(rules[0]["operations"], json!(["CREATE", "UPDATE"]));
        assert_eq!(rules[1]["resources"], json!(["gears", "gears/*"]));
        assert_eq!(
            rules[2]["resourceNames"],
            json!(["pleach-gate-probe-production.web.handover"])
        );
        assert_eq!(rules.as_array().unwrap().len(), 3);
    }

    #[test]
    fn exempt_users_are_a_list_of_names() {
        let policy = gate(&[("a.example.org", "*")]).policy(Some("ops\"x"), Timestamp::UNIX_EPOCH);
        let condition = policy["spec"]["matchConditions"][0]["expression"]
            .as_str()
            .unwrap();
        for name in [
            r#""ops\"x""#,
            r#""system:serviceaccount:web:api""#,
            r#""system:kube-controller-manager""#,
            r#""system:nodes""#,
            r#""system:serviceaccounts:kube-system""#,
        ] {
            assert!(condition.contains(name), "{name} in {condition}");
        }
        assert!(!condition.contains("startsWith"), "{condition}");
        // Users can share the account of pleach, so it is exempt only if the plan requires that.
        let mut gate = gate(&[("a.example.org", "*")]);
        gate.exempts_us = false;
        let policy = gate.policy(Some("ops"), Timestamp::UNIX_EPOCH);
        let condition = policy["spec"]["matchConditions"][0]["expression"].to_string();
        assert!(!condition.contains("ops"), "{condition}");
    }

    /// Gates in journals of older versions lack the exemption of the creating user.
    #[test]
    fn a_gate_of_an_older_version_is_read() {
        let mut written = serde_json::to_value(gate(&[("a.example.org", "*")])).unwrap();
        written.as_object_mut().unwrap().shift_remove("exemptsUs");
        let read: Gate = serde_json::from_value(written).unwrap();
        assert!(!read.exempts_us);
    }

    #[test]
    fn the_denial_names_reason_start_and_end() {
        let policy = gate(&[("a.example.org", "*")]).policy(Some("ops"), Timestamp::UNIX_EPOCH);
        assert_eq!(
            policy["spec"]["validations"][0]["message"],
            "production/web is being changed to v2.0.0 (gate handover, since 1970-01-01T00:00:00Z); retry when the run has finished. If no run is active any more: pleach doctor --fix ValidatingAdmissionPolicy.admissionregistration.k8s.io/production.web.handover"
        );
        let metadata = &policy["metadata"]["annotations"];
        assert_eq!(metadata[annotations::GATE_SINCE], "1970-01-01T00:00:00Z");
        assert!(
            metadata[annotations::GATE_LIFT]
                .as_str()
                .unwrap()
                .starts_with("pleach doctor --fix ")
        );
    }

    #[test]
    fn a_probe_identifies_its_policy() {
        let policy = gate(&[]).id();
        let probe = probe(&policy, "state");
        assert_eq!(probed(&probe), Some("production.web.handover"));
        assert_eq!(probe.namespace.as_deref(), Some("state"));
    }
}
