//! The order in which manifests are printed and listed.

use std::collections::BTreeSet;

use super::Manifest;
use crate::object::{GroupKind, ObjectId};

/// Sorts by stage, kind order, namespace and name.
///
/// The one place where render asks for an order.
pub(super) fn sort(manifests: &mut [Manifest]) {
    let defined = manifests.iter().filter_map(defined_kind).collect();
    manifests.sort_by_cached_key(|manifest| {
        let id = manifest.id();
        (
            rank(id, &defined),
            id.group_kind(),
            id.namespace.clone(),
            id.name.clone(),
        )
    });
}

/// Kinds in the order of their standard stages, until `crate::order` has one.
const KINDS: [(&str, &str); 30] = [
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
    ("networking.k8s.io", "IngressClass"),
    ("", "ResourceQuota"),
    ("", "LimitRange"),
    ("networking.k8s.io", "NetworkPolicy"),
    ("policy", "PodDisruptionBudget"),
    ("", "ConfigMap"),
    ("", "Secret"),
    ("", "PersistentVolume"),
    ("", "PersistentVolumeClaim"),
    FOREIGN,
    ("", "Service"),
    ("", "Endpoints"),
    ("apps", "DaemonSet"),
    ("apps", "Deployment"),
    ("apps", "StatefulSet"),
    ("batch", "Job"),
    ("batch", "CronJob"),
    ("apiregistration.k8s.io", "APIService"),
    (
        "admissionregistration.k8s.io",
        "MutatingWebhookConfiguration",
    ),
    (
        "admissionregistration.k8s.io",
        "ValidatingWebhookConfiguration",
    ),
];

/// Stands for custom resources that the release does not define: pods may need
/// what they make.
const FOREIGN: (&str, &str) = ("*", "*");

fn rank(id: &ObjectId, defined: &BTreeSet<GroupKind>) -> usize {
    let place = |wanted: (&str, &str)| KINDS.iter().position(|known| *known == wanted);
    let custom = id.group.contains('.') && !id.group.ends_with(".k8s.io");
    place((&id.group, &id.kind))
        .or_else(|| (custom && !defined.contains(&id.group_kind())).then(|| place(FOREIGN))?)
        .unwrap_or(KINDS.len())
}

fn defined_kind(manifest: &Manifest) -> Option<GroupKind> {
    if !manifest
        .id()
        .is("apiextensions.k8s.io", "CustomResourceDefinition")
    {
        return None;
    }
    let value = manifest.value();
    let spec = &value["spec"];
    Some(GroupKind::new(
        spec["group"].as_str()?,
        spec["names"]["kind"].as_str()?,
    ))
}
