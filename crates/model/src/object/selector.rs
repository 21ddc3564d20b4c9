//! Selectors of objects.

use std::collections::BTreeMap;

use globset::{GlobBuilder, GlobMatcher};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{GroupKind, ObjectId, pointed_at};

/// A selector of objects. All given fields must match.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Selector {
    /// Kind; `*` for any.
    pub kind: String,
    /// API group; any if omitted, the core group if empty.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group: Option<String>,
    /// Name, exact or with `*` and `?`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Namespace, exact or with `*` and `?`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// Labels that the object must have.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// Name of a Service that it points at, for registrations and CRDs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub service: Option<String>,
}

/// A selector with its patterns compiled, for use on many objects.
#[derive(Debug, Clone)]
pub struct Matcher {
    kind: String,
    group: Option<String>,
    name: Pattern,
    namespace: Pattern,
    labels: BTreeMap<String, String>,
    service: Option<String>,
}

impl Matcher {
    /// Returns whether all criteria of the selector match an object.
    pub fn is_about(&self, id: &ObjectId, object: &Value) -> bool {
        if !self.may_be_about(id) {
            return false;
        }
        let labels = || {
            let labels = object["metadata"]["labels"].as_object();
            let labels = labels.into_iter().flatten();
            labels
                .filter_map(|(key, value)| Some((key.clone(), value.as_str()?.to_owned())))
                .collect()
        };
        let labels = if self.labels.is_empty() {
            BTreeMap::new()
        } else {
            labels()
        };
        self.matches(id, &labels)
            && self.service.as_ref().is_none_or(|service| {
                let mut services = pointed_at(&id.group_kind(), object).into_iter();
                services.any(|one| one.name == *service)
            })
    }

    /// Returns whether id and labels of an object match. Services are not compared.
    pub fn matches(&self, id: &ObjectId, labels: &BTreeMap<String, String>) -> bool {
        self.may_be_about(id)
            && self
                .labels
                .iter()
                .all(|(key, value)| labels.get(key) == Some(value))
    }

    /// Returns whether kind, group, name and namespace of an object match. Labels and
    /// Services are not compared.
    pub fn may_be_about(&self, id: &ObjectId) -> bool {
        (self.kind == "*" || self.kind == id.kind)
            && self.group.as_ref().is_none_or(|group| *group == id.group)
            && self.name.matches(Some(&id.name))
            && self.namespace.matches(id.namespace.as_deref())
    }
}

/// A name or a pattern of names.
#[derive(Debug, Clone)]
pub enum Pattern {
    /// Any name, and also none.
    Any,
    /// This name.
    Exact(String),
    /// Names with wildcards.
    Glob(GlobMatcher),
}

impl Pattern {
    /// Compiles a pattern. Only `*` and `?` are wildcards, because names can contain brackets.
    pub fn new(text: Option<&String>) -> Self {
        let Some(text) = text else { return Self::Any };
        if !text.contains(['*', '?']) {
            return Self::Exact(text.clone());
        }
        let glob: String = text
            .chars()
            .map(|c| match c {
                '*' | '?' => c.to_string(),
                c => globset::escape(&c.to_string()),
            })
            .collect();
        GlobBuilder::new(&glob)
            .literal_separator(false)
            .build()
            .map_or_else(
                |_| Self::Exact(text.clone()),
                |glob| Self::Glob(glob.compile_matcher()),
            )
    }

    /// Returns whether a name matches.
    pub fn matches(&self, text: Option<&str>) -> bool {
        match self {
            Self::Any => true,
            Self::Exact(expected) => text == Some(expected),
            Self::Glob(glob) => text.is_some_and(|text| glob.is_match(text)),
        }
    }
}

impl Selector {
    /// Compiles the patterns.
    pub fn matcher(&self) -> Matcher {
        Matcher {
            kind: self.kind.clone(),
            group: self.group.clone(),
            name: Pattern::new(self.name.as_ref()),
            namespace: Pattern::new(self.namespace.as_ref()),
            labels: self.labels.clone(),
            service: self.service.clone(),
        }
    }

    /// Returns the selector with this default namespace.
    #[must_use]
    pub fn within(&self, namespace: Option<&str>) -> Self {
        Self {
            namespace: self
                .namespace
                .clone()
                .or_else(|| namespace.map(str::to_owned)),
            ..self.clone()
        }
    }

    /// Returns whether id and labels of an object match. For many objects use [`Self::matcher`].
    pub fn matches(&self, id: &ObjectId, labels: &BTreeMap<String, String>) -> bool {
        self.matcher().matches(id, labels)
    }

    /// Returns group and kind. `None` if the group is not given and the kind is not well known.
    pub fn group_kind(&self) -> Option<GroupKind> {
        known_kind(self.group.as_deref(), &self.kind)
    }
}

/// Returns group and kind. `None` if the group is not given and the kind is not well known.
pub fn known_kind(group: Option<&str>, kind: &str) -> Option<GroupKind> {
    let group = group.or_else(|| well_known_group(kind))?;
    Some(GroupKind::new(group, kind))
}

/// Returns the group of a kind that is commonly written without one.
pub fn well_known_group(kind: &str) -> Option<&'static str> {
    Some(match kind {
        "ConfigMap"
        | "Endpoints"
        | "Event"
        | "LimitRange"
        | "Namespace"
        | "Node"
        | "PersistentVolume"
        | "PersistentVolumeClaim"
        | "Pod"
        | "PodTemplate"
        | "ReplicationController"
        | "ResourceQuota"
        | "Secret"
        | "Service"
        | "ServiceAccount" => "",
        "ControllerRevision" | "DaemonSet" | "Deployment" | "ReplicaSet" | "StatefulSet" => "apps",
        "CronJob" | "Job" => "batch",
        "HorizontalPodAutoscaler" => "autoscaling",
        "APIService" => "apiregistration.k8s.io",
        "CustomResourceDefinition" => "apiextensions.k8s.io",
        "MutatingAdmissionPolicy"
        | "MutatingAdmissionPolicyBinding"
        | "MutatingWebhookConfiguration"
        | "ValidatingAdmissionPolicy"
        | "ValidatingAdmissionPolicyBinding"
        | "ValidatingWebhookConfiguration" => "admissionregistration.k8s.io",
        "ClusterRole" | "ClusterRoleBinding" | "Role" | "RoleBinding" => {
            "rbac.authorization.k8s.io"
        }
        "CertificateSigningRequest" => "certificates.k8s.io",
        "EndpointSlice" => "discovery.k8s.io",
        "FlowSchema" | "PriorityLevelConfiguration" => "flowcontrol.apiserver.k8s.io",
        "Ingress" | "IngressClass" | "NetworkPolicy" => "networking.k8s.io",
        "Lease" => "coordination.k8s.io",
        "PodDisruptionBudget" => "policy",
        "PriorityClass" => "scheduling.k8s.io",
        "RuntimeClass" => "node.k8s.io",
        "CSIDriver" | "CSINode" | "StorageClass" | "VolumeAttachment" => "storage.k8s.io",
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    fn id(text: &str) -> ObjectId {
        text.parse().unwrap()
    }

    fn selector(kind: &str, name: &str, namespace: &str) -> Selector {
        let some = |text: &str| (!text.is_empty()).then(|| text.to_owned());
        Selector {
            kind: kind.to_owned(),
            name: some(name),
            namespace: some(namespace),
            ..Selector::default()
        }
    }

    #[rstest]
    #[case(selector("Deployment", "", ""), "Deployment.apps/a/b", true)]
    #[case(selector("*", "", ""), "Namespace/a", true)]
    #[case(selector("Deployment", "b", ""), "Deployment.apps/a/b", true)]
    #[case(selector("Deployment", "b*", "a"), "Deployment.apps/a/bcd", true)]
    #[case(selector("Deployment", "b?", ""), "Deployment.apps/a/bcd", false)]
    #[case(selector("Deployment", "b", "c"), "Deployment.apps/a/b", false)]
    #[case(selector("Namespace", "", "*"), "Namespace/a", false)]
    #[case(
        selector("ClusterRole", "system:*", ""),
        "ClusterRole.rbac.authorization.k8s.io/system:x",
        true
    )]
    #[case(selector("ConfigMap", "[a]*", ""), "ConfigMap/x/[a]b", true)]
    #[case(selector("ConfigMap", "[a]*", ""), "ConfigMap/x/ab", false)]
    fn selectors(#[case] selector: Selector, #[case] object: &str, #[case] matches: bool) {
        assert_eq!(selector.matches(&id(object), &BTreeMap::new()), matches);
    }

    #[test]
    fn group_and_labels_must_match() {
        let mut pattern = selector("Deployment", "", "");
        let labels = BTreeMap::from([("app".to_owned(), "web".to_owned())]);
        pattern.labels = labels.clone();
        pattern.group = Some("apps".to_owned());
        assert!(pattern.matches(&id("Deployment.apps/a/b"), &labels));
        assert!(!pattern.matches(&id("Deployment.apps/a/b"), &BTreeMap::new()));
        assert!(!pattern.matches(&id("Deployment.extensions/a/b"), &labels));
    }

    #[rstest]
    #[case::registration_of_the_service("ValidatingWebhookConfiguration", "api", true)]
    #[case::registration_of_another_service("ValidatingWebhookConfiguration", "web", false)]
    #[case::a_crd("CustomResourceDefinition", "api", true)]
    #[case::of_any_kind("*", "api", true)]
    fn registrations_are_selected_by_service(
        #[case] kind: &str,
        #[case] service: &str,
        #[case] expected: bool,
    ) {
        let mut pattern = selector(kind, "", "");
        pattern.service = Some(service.to_owned());
        let client = serde_json::json!({"service": {"namespace": "a", "name": "api"}});
        let object = serde_json::json!({
            "webhooks": [{"clientConfig": client}],
            "spec": {"conversion": {"webhook": {"clientConfig": client}}},
        });
        let id = id(match kind {
            "CustomResourceDefinition" => "CustomResourceDefinition.apiextensions.k8s.io/things.a",
            _ => "ValidatingWebhookConfiguration.admissionregistration.k8s.io/hook",
        });
        assert_eq!(pattern.matcher().is_about(&id, &object), expected);
    }
}
