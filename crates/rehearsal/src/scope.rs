//! Scope of a copy: the objects that a plan reads, and those that the server needs to judge it.

use std::collections::BTreeSet;

use pleach_model::object::{GroupKind, managers};
use pleach_state::inventory::STATE_NAMESPACE;
use serde_json::Value;

use super::{dump::position, storage};

/// Built-in kinds of which every object counts, wherever it is.
const EVERYWHERE: [(&str, &str); 27] = [
    ("", "Namespace"),
    ("", "Node"),
    ("", "PersistentVolume"),
    ("", "Service"),
    ("admissionregistration.k8s.io", "MutatingAdmissionPolicy"),
    (
        "admissionregistration.k8s.io",
        "MutatingAdmissionPolicyBinding",
    ),
    (
        "admissionregistration.k8s.io",
        "MutatingWebhookConfiguration",
    ),
    ("admissionregistration.k8s.io", "ValidatingAdmissionPolicy"),
    (
        "admissionregistration.k8s.io",
        "ValidatingAdmissionPolicyBinding",
    ),
    (
        "admissionregistration.k8s.io",
        "ValidatingWebhookConfiguration",
    ),
    ("apiextensions.k8s.io", "CustomResourceDefinition"),
    ("apiregistration.k8s.io", "APIService"),
    ("networking.k8s.io", "IPAddress"),
    ("networking.k8s.io", "IngressClass"),
    ("networking.k8s.io", "ServiceCIDR"),
    ("node.k8s.io", "RuntimeClass"),
    ("rbac.authorization.k8s.io", "ClusterRole"),
    ("rbac.authorization.k8s.io", "ClusterRoleBinding"),
    ("rbac.authorization.k8s.io", "Role"),
    ("rbac.authorization.k8s.io", "RoleBinding"),
    ("resource.k8s.io", "DeviceClass"),
    ("scheduling.k8s.io", "PriorityClass"),
    ("storage.k8s.io", "CSIDriver"),
    ("storage.k8s.io", "CSINode"),
    ("storage.k8s.io", "StorageClass"),
    ("storage.k8s.io", "VolumeAttributesClass"),
    ("pleach.dev", "Release"),
];

/// Kinds that judge nothing.
const NEVER: [(&str, &str); 1] = [("storage.k8s.io", "VolumeAttachment")];

/// Part of the cluster that a plan is about.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Touched {
    /// Namespaces of its objects, and those with parameters of admission policies.
    pub namespaces: BTreeSet<String>,
    /// Kinds of its objects, of its changed CRDs, and of parameters of admission policies.
    pub kinds: BTreeSet<GroupKind>,
}

impl Touched {
    /// Adds the namespace of pleach's own state.
    #[must_use]
    pub fn with_state(mut self) -> Self {
        self.namespaces.insert(STATE_NAMESPACE.to_owned());
        self
    }
}

/// Objects of a kind to copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Extent {
    /// All objects.
    Everywhere,
    /// Objects in the touched namespaces.
    InNamespaces,
    /// None.
    Nowhere,
}

/// Returns the objects of a kind to copy. `is_custom` is whether a CRD defines the kind; objects of
/// an aggregated API are not in etcd.
pub fn extent(kind: &GroupKind, namespaced: bool, is_custom: bool, touched: &Touched) -> Extent {
    let (group, name) = (kind.group.as_str(), kind.kind.as_str());
    let is_built_in = storage::is_built_in(group, name);
    if NEVER.contains(&(group, name)) || !(is_built_in || is_custom) {
        Extent::Nowhere
    } else if EVERYWHERE.contains(&(group, name)) || (is_custom && touched.kinds.contains(kind)) {
        Extent::Everywhere
    } else if namespaced {
        Extent::InNamespaces
    } else {
        Extent::Nowhere
    }
}

/// Returns whether an object is left out although its kind is copied: the API server of the copy
/// writes it itself, or it is the Lease of a run on the cluster.
pub fn is_left_out(object: &Value) -> bool {
    let position = position(object);
    let parts = position.each_ref().map(String::as_str);
    match parts {
        [
            "" | "discovery.k8s.io",
            "Endpoints" | "EndpointSlice",
            "default",
            "kubernetes",
        ]
        | [
            "",
            "ConfigMap",
            "kube-system",
            "extension-apiserver-authentication",
        ] => true,
        ["coordination.k8s.io", "Lease", ..] => {
            let fields = object["metadata"]["managedFields"].as_array();
            let mut managers = fields.into_iter().flatten();
            managers.any(|it| it["manager"].as_str().is_some_and(managers::is_of_pleach))
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn extents_of_kinds() {
        let touched = Touched {
            namespaces: BTreeSet::from(["web".to_owned()]),
            kinds: BTreeSet::from([GroupKind::new("example.org", "Gear")]),
        };
        for (group, kind, namespaced, is_custom, expected) in [
            ("", "Namespace", false, false, Extent::Everywhere),
            (
                "rbac.authorization.k8s.io",
                "Role",
                true,
                false,
                Extent::Everywhere,
            ),
            ("apps", "Deployment", true, false, Extent::InNamespaces),
            ("", "Endpoints", true, false, Extent::InNamespaces),
            ("", "Event", true, false, Extent::Nowhere),
            (
                "coordination.k8s.io",
                "Lease",
                true,
                false,
                Extent::InNamespaces,
            ),
            ("metrics.k8s.io", "PodMetrics", true, false, Extent::Nowhere),
            ("example.org", "Gear", true, true, Extent::Everywhere),
            ("example.org", "Wheel", true, true, Extent::InNamespaces),
            ("example.org", "Axle", false, true, Extent::Nowhere),
            ("pleach.dev", "Release", false, true, Extent::Everywhere),
        ] {
            let kind = GroupKind::new(group, kind);
            assert_eq!(
                extent(&kind, namespaced, is_custom, &touched),
                expected,
                "{kind:?}"
            );
        }
    }

    #[test]
    fn objects_that_are_left_out() {
        let object = |version: &str, kind: &str, namespace: &str, manager: &str| {
            json!({"apiVersion": version, "kind": kind, "metadata": {
                "namespace": namespace, "name": "kubernetes",
                "managedFields": [{"manager": manager}],
            }})
        };
        for (version, kind, namespace, manager, expected) in [
            ("discovery.k8s.io/v1", "EndpointSlice", "default", "x", true),
            ("v1", "Endpoints", "default", "x", true),
            ("v1", "Service", "default", "x", false),
            ("v1", "Endpoints", "web", "x", false),
            (
                "coordination.k8s.io/v1",
                "Lease",
                "web",
                "controller",
                false,
            ),
            (
                "coordination.k8s.io/v1",
                "Lease",
                "web",
                managers::STATE,
                true,
            ),
        ] {
            let object = object(version, kind, namespace, manager);
            assert_eq!(is_left_out(&object), expected, "{object}");
        }
    }
}
