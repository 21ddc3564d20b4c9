//! The order in which manifests are printed and listed.

use super::Manifest;

/// Sorts by stage, kind order, namespace and name.
///
/// The one place where render asks for an order.
pub(super) fn sort(manifests: &mut [Manifest]) {
    manifests.sort_by_cached_key(|manifest| {
        let id = manifest.id();
        (
            fallback(&id.group, &id.kind),
            id.namespace.clone(),
            id.name.clone(),
            id.group.clone(),
            id.kind.clone(),
        )
    });
}

/// Kinds in the order of their standard stage, until `crate::order` has one.
const KINDS: [(&str, &str); 27] = [
    ("", "Namespace"),
    ("apiextensions.k8s.io", "CustomResourceDefinition"),
    ("", "ServiceAccount"),
    ("rbac.authorization.k8s.io", "ClusterRole"),
    ("rbac.authorization.k8s.io", "Role"),
    ("rbac.authorization.k8s.io", "ClusterRoleBinding"),
    ("rbac.authorization.k8s.io", "RoleBinding"),
    ("scheduling.k8s.io", "PriorityClass"),
    ("node.k8s.io", "RuntimeClass"),
    ("storage.k8s.io", "StorageClass"),
    ("", "ResourceQuota"),
    ("", "LimitRange"),
    ("networking.k8s.io", "NetworkPolicy"),
    ("policy", "PodDisruptionBudget"),
    ("", "ConfigMap"),
    ("", "Secret"),
    ("", "PersistentVolume"),
    ("", "PersistentVolumeClaim"),
    ("", "Service"),
    ("apps", "DaemonSet"),
    ("apps", "Deployment"),
    ("apps", "StatefulSet"),
    ("batch", "CronJob"),
    ("batch", "Job"),
    ("apiregistration.k8s.io", "APIService"),
    (
        "admissionregistration.k8s.io",
        "ValidatingWebhookConfiguration",
    ),
    (
        "admissionregistration.k8s.io",
        "MutatingWebhookConfiguration",
    ),
];

fn fallback(group: &str, kind: &str) -> usize {
    KINDS
        .iter()
        .position(|known| *known == (group, kind))
        .unwrap_or(KINDS.len())
}
