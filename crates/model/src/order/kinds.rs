//! Stage of each kind, and the order of kinds within a stage.

use std::collections::BTreeSet;

use rayon::slice::ParallelSliceMut as _;

use super::StageName;
use crate::object::{GroupKind, Manifest, ObjectId, registered_api};

/// Kinds with a fixed stage, in apply order. Other kinds come last in their stage, by name.
const KINDS: &[(&str, &str, StageName)] = &[
    ("", "Namespace", StageName::Definitions),
    (
        "apiextensions.k8s.io",
        "CustomResourceDefinition",
        StageName::Definitions,
    ),
    ("", "ServiceAccount", StageName::Access),
    (
        "rbac.authorization.k8s.io",
        "ClusterRole",
        StageName::Access,
    ),
    ("rbac.authorization.k8s.io", "Role", StageName::Access),
    (
        "rbac.authorization.k8s.io",
        "ClusterRoleBinding",
        StageName::Access,
    ),
    (
        "rbac.authorization.k8s.io",
        "RoleBinding",
        StageName::Access,
    ),
    ("scheduling.k8s.io", "PriorityClass", StageName::Config),
    ("node.k8s.io", "RuntimeClass", StageName::Config),
    ("storage.k8s.io", "StorageClass", StageName::Config),
    ("storage.k8s.io", "VolumeAttributesClass", StageName::Config),
    ("storage.k8s.io", "CSIDriver", StageName::Config),
    ("networking.k8s.io", "IngressClass", StageName::Config),
    ("networking.k8s.io", "ServiceCIDR", StageName::Config),
    ("resource.k8s.io", "DeviceClass", StageName::Config),
    ("", "ResourceQuota", StageName::Config),
    ("", "LimitRange", StageName::Config),
    ("networking.k8s.io", "NetworkPolicy", StageName::Config),
    ("policy", "PodDisruptionBudget", StageName::Config),
    ("", "ConfigMap", StageName::Config),
    ("", "Secret", StageName::Config),
    (
        "certificates.k8s.io",
        "ClusterTrustBundle",
        StageName::Config,
    ),
    ("", "PersistentVolume", StageName::Config),
    ("", "PersistentVolumeClaim", StageName::Config),
    (
        "resource.k8s.io",
        "ResourceClaimTemplate",
        StageName::Config,
    ),
    ("resource.k8s.io", "ResourceClaim", StageName::Config),
    ("", "Service", StageName::Services),
    ("", "Endpoints", StageName::Services),
    ("discovery.k8s.io", "EndpointSlice", StageName::Services),
    ("apps", "DaemonSet", StageName::Workloads),
    ("apps", "Deployment", StageName::Workloads),
    ("apps", "StatefulSet", StageName::Workloads),
    ("apps", "ReplicaSet", StageName::Workloads),
    ("", "ReplicationController", StageName::Workloads),
    ("", "Pod", StageName::Workloads),
    ("batch", "Job", StageName::Workloads),
    ("batch", "CronJob", StageName::Workloads),
    (
        "apiregistration.k8s.io",
        "APIService",
        StageName::Registrations,
    ),
    (
        "admissionregistration.k8s.io",
        "MutatingWebhookConfiguration",
        StageName::Registrations,
    ),
    (
        "admissionregistration.k8s.io",
        "ValidatingWebhookConfiguration",
        StageName::Registrations,
    ),
];

/// Groups that the API server itself serves. All other groups belong to custom resources or
/// aggregated servers.
const BUILTIN_GROUPS: &[&str] = &[
    "",
    "admissionregistration.k8s.io",
    "apiextensions.k8s.io",
    "apiregistration.k8s.io",
    "apps",
    "authentication.k8s.io",
    "authorization.k8s.io",
    "autoscaling",
    "batch",
    "certificates.k8s.io",
    "coordination.k8s.io",
    "discovery.k8s.io",
    "events.k8s.io",
    "flowcontrol.apiserver.k8s.io",
    "internal.apiserver.k8s.io",
    "networking.k8s.io",
    "node.k8s.io",
    "policy",
    "rbac.authorization.k8s.io",
    "resource.k8s.io",
    "scheduling.k8s.io",
    "storage.k8s.io",
    "storagemigration.k8s.io",
];

/// Returns whether the API server itself serves the group.
pub fn is_builtin_group(group: &str) -> bool {
    BUILTIN_GROUPS.contains(&group)
}

/// Returns the kinds that these manifests define with a CRD. Also returns the manifests' own kinds
/// that one of their APIServices serves.
pub fn defined_kinds<'a>(manifests: impl IntoIterator<Item = &'a Manifest>) -> BTreeSet<GroupKind> {
    let mut defined = BTreeSet::new();
    let mut apis = BTreeSet::new();
    let mut others = BTreeSet::new();
    for manifest in manifests {
        let id = manifest.id();
        if id.is("apiextensions.k8s.io", "CustomResourceDefinition") {
            let value = manifest.value();
            let spec = &value["spec"];
            if let (Some(group), Some(kind)) =
                (spec["group"].as_str(), spec["names"]["kind"].as_str())
            {
                defined.insert(GroupKind::new(group, kind));
            }
        } else if id.is("apiregistration.k8s.io", "APIService") {
            apis.extend(registered_api(&id.group_kind(), &manifest.value()));
        } else if !is_builtin_group(&id.group) {
            others.insert((manifest.api_version(), id.group_kind()));
        }
    }
    let answered = others
        .into_iter()
        .filter(|(api_version, _)| apis.contains(*api_version))
        .map(|(_, kind)| kind);
    defined.extend(answered);
    defined
}

/// Returns the stage of a kind. `defined` are the kinds whose CRD is part of the release.
pub fn stage_of(kind: &GroupKind, defined: &BTreeSet<GroupKind>) -> StageName {
    if let Some((_, _, stage)) = KINDS.iter().find(|(group, name, _)| kind.is(group, name)) {
        return stage.clone();
    }
    // A custom resource of another product (a Certificate, an ExternalSecret) can create objects
    // that pods need. A custom resource of this release needs the release's pods.
    if is_builtin_group(&kind.group) || defined.contains(kind) {
        StageName::Resources
    } else {
        StageName::Config
    }
}

/// Returns the position of a kind in the apply order.
pub fn kind_rank(kind: &GroupKind) -> usize {
    KINDS
        .iter()
        .position(|(group, name, _)| kind.is(group, name))
        .unwrap_or(KINDS.len())
}

/// Sorts manifests by stage, kind order, namespace, name.
pub fn sort(manifests: &mut [Manifest]) {
    let defined = defined_kinds(manifests.iter());
    manifests.par_sort_by_cached_key(|manifest| sort_key(manifest.id(), &defined));
}

type SortKey = (StageName, usize, GroupKind, Option<String>, String);

fn sort_key(id: &ObjectId, defined: &BTreeSet<GroupKind>) -> SortKey {
    let kind = id.group_kind();
    (
        stage_of(&kind, defined),
        kind_rank(&kind),
        kind,
        id.namespace.clone(),
        id.name.clone(),
    )
}

/// Classes of kinds that are deleted one after the other, in this order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum DeletionClass {
    /// Bindings of admission policies. An active policy refuses all matching requests once its
    /// parameters are deleted.
    PolicyBindings,
    /// Admission policies, before their parameters.
    Policies,
    /// Custom resources and all kinds without a fixed stage, while controllers and webhooks still
    /// run.
    CustomResources,
    /// Registrations, while their Service still exists.
    Registrations,
    /// CRDs whose conversion webhook is deleted too, while it still answers.
    ConvertedDefinitions,
    /// Workloads, before the objects that they need.
    Workloads,
    /// Services, after their pods.
    Services,
    /// Configuration, after the workloads that read it.
    Config,
    /// Aggregated `ClusterRoles`, before the roles that they aggregate. Otherwise the aggregation
    /// controller could write a deleted role from its cache and so create it again.
    AggregatedRoles,
    /// Access, after the workloads that use the permissions.
    Access,
    /// CRDs, after their custom resources.
    Definitions,
    /// Namespaces last, with their remaining contents.
    Namespaces,
}

impl DeletionClass {
    /// All classes in order of deletion.
    pub const ALL: [Self; 12] = [
        Self::PolicyBindings,
        Self::Policies,
        Self::CustomResources,
        Self::Registrations,
        Self::ConvertedDefinitions,
        Self::Workloads,
        Self::Services,
        Self::Config,
        Self::AggregatedRoles,
        Self::Access,
        Self::Definitions,
        Self::Namespaces,
    ];

    /// Returns the standard stage in which objects of this class are applied.
    pub fn stage(self) -> StageName {
        match self {
            Self::PolicyBindings | Self::Policies | Self::CustomResources => StageName::Resources,
            Self::Registrations => StageName::Registrations,
            Self::Workloads => StageName::Workloads,
            Self::Services => StageName::Services,
            Self::Config => StageName::Config,
            Self::AggregatedRoles | Self::Access => StageName::Access,
            Self::ConvertedDefinitions | Self::Definitions | Self::Namespaces => {
                StageName::Definitions
            }
        }
    }
}

/// Returns the deletion class of a kind. [`DeletionClass::ConvertedDefinitions`] depends on more
/// than the kind and is never returned.
pub fn deletion_class(kind: &GroupKind) -> DeletionClass {
    if kind.is("", "Namespace") {
        return DeletionClass::Namespaces;
    }
    if kind.group == "admissionregistration.k8s.io" {
        match kind.kind.as_str() {
            "MutatingAdmissionPolicyBinding" | "ValidatingAdmissionPolicyBinding" => {
                return DeletionClass::PolicyBindings;
            }
            "MutatingAdmissionPolicy" | "ValidatingAdmissionPolicy" => {
                return DeletionClass::Policies;
            }
            _ => {}
        }
    }
    match KINDS
        .iter()
        .find(|(group, name, _)| kind.is(group, name))
        .map(|(_, _, stage)| stage)
    {
        Some(StageName::Registrations) => DeletionClass::Registrations,
        Some(StageName::Workloads) => DeletionClass::Workloads,
        Some(StageName::Services) => DeletionClass::Services,
        Some(StageName::Access) => DeletionClass::Access,
        Some(StageName::Definitions) => DeletionClass::Definitions,
        Some(_) => DeletionClass::Config,
        // These kinds are applied last, so they are deleted first. This also stops traffic and
        // scaling first.
        None => DeletionClass::CustomResources,
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case("", "Namespace", "definitions")]
    #[case("rbac.authorization.k8s.io", "RoleBinding", "access")]
    #[case("", "Secret", "config")]
    #[case("resource.k8s.io", "ResourceClaim", "config")]
    #[case("resource.k8s.io", "ResourceClaimTemplate", "config")]
    #[case("certificates.k8s.io", "ClusterTrustBundle", "config")]
    #[case("storage.k8s.io", "CSIDriver", "config")]
    #[case("networking.k8s.io", "ServiceCIDR", "config")]
    #[case("", "Service", "services")]
    #[case("batch", "CronJob", "workloads")]
    #[case("apiregistration.k8s.io", "APIService", "registrations")]
    #[case("networking.k8s.io", "Ingress", "resources")]
    #[case("autoscaling", "HorizontalPodAutoscaler", "resources")]
    #[case("ours.example.org", "Widget", "resources")]
    #[case("cert-manager.io", "Certificate", "config")]
    fn kinds_have_their_stage(#[case] group: &str, #[case] kind: &str, #[case] stage: &str) {
        let defined = BTreeSet::from([GroupKind::new("ours.example.org", "Widget")]);
        assert_eq!(
            stage_of(&GroupKind::new(group, kind), &defined).as_str(),
            stage
        );
    }

    #[rstest]
    #[case("MutatingAdmissionPolicy")]
    #[case("ValidatingAdmissionPolicy")]
    fn an_admission_policy_is_deleted_between_its_binding_and_parameters(#[case] policy: &str) {
        let class = |group: &str, kind: &str| deletion_class(&GroupKind::new(group, kind));
        let group = "admissionregistration.k8s.io";
        let policies = class(group, policy);
        assert!(class(group, &format!("{policy}Binding")) < policies);
        assert!(policies < class("ours.example.org", "Widget"));
        assert!(policies < class("", "ConfigMap"));
        assert!(DeletionClass::ALL.is_sorted());
    }

    #[test]
    fn deletion_runs_from_custom_resources_to_namespaces() {
        let class = |group: &str, kind: &str| deletion_class(&GroupKind::new(group, kind));
        assert!(
            class("ours.example.org", "Widget") < class("apiregistration.k8s.io", "APIService")
        );
        assert!(class("apiregistration.k8s.io", "APIService") < class("apps", "Deployment"));
        assert!(class("apps", "Deployment") < class("", "Service"));
        assert!(class("", "Service") < class("", "ConfigMap"));
        // These objects have finalizers that wait for pods, or for the addresses of Services.
        assert!(class("", "Pod") < class("resource.k8s.io", "ResourceClaim"));
        assert!(class("", "Service") < class("networking.k8s.io", "ServiceCIDR"));
        assert!(class("", "Secret") < class("", "ServiceAccount"));
        assert!(
            class("", "ServiceAccount") < class("apiextensions.k8s.io", "CustomResourceDefinition")
        );
        assert!(class("apiextensions.k8s.io", "CustomResourceDefinition") < class("", "Namespace"));
    }
}
