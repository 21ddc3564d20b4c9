//! List of the files of the table: the only code that names projects.

use std::sync::OnceLock;

use super::{Project, Row};

macro_rules! project {
    ($name:literal, $groups:expr) => {{
        static ROWS: OnceLock<Vec<Row>> = OnceLock::new();
        Project {
            #[cfg(test)]
            name: $name,
            groups: &$groups,
            text: include_str!(concat!($name, ".yaml")),
            rows: &ROWS,
        }
    }};
}

/// The files, by name. Each group of a file is listed here.
pub(super) static PROJECTS: &[Project] = &[
    project!("argo", ["argoproj.io"]),
    project!(
        "cert-manager",
        [
            "acme.cert-manager.io",
            "cert-manager.io",
            "policy.cert-manager.io"
        ]
    ),
    project!(
        "cluster-api",
        [
            "addons.cluster.x-k8s.io",
            "bootstrap.cluster.x-k8s.io",
            "cluster.x-k8s.io",
            "controlplane.cluster.x-k8s.io"
        ]
    ),
    project!("cluster-api-operator", ["operator.cluster.x-k8s.io"]),
    project!("cluster-api-providers", ["infrastructure.cluster.x-k8s.io"]),
    project!(
        "crossplane",
        [
            "*.crossplane.io",
            "*.upbound.io",
            "apiextensions.crossplane.io",
            "helm.crossplane.io",
            "helm.m.crossplane.io",
            "kubernetes.crossplane.io",
            "kubernetes.m.crossplane.io",
            "ops.crossplane.io",
            "pkg.crossplane.io",
            "protection.crossplane.io"
        ]
    ),
    project!("envoy-gateway", ["gateway.envoyproxy.io"]),
    project!("external-secrets", ["external-secrets.io"]),
    project!(
        "flux",
        [
            "helm.toolkit.fluxcd.io",
            "kustomize.toolkit.fluxcd.io",
            "source.toolkit.fluxcd.io"
        ]
    ),
    project!(
        "gateway-api",
        [
            "gateway.networking.k8s.io",
            "gateway.networking.x-k8s.io",
            "inference.networking.k8s.io"
        ]
    ),
    project!("keda", ["keda.sh"]),
    project!("knative", ["serving.knative.dev"]),
    project!("operator-lifecycle-manager", ["operators.coreos.com"]),
    project!("sealed-secrets", ["bitnami.com"]),
    project!("trust-manager", ["trust.cert-manager.io"]),
    project!("velero", ["velero.io"]),
    project!("volume-snapshots", ["snapshot.storage.k8s.io"]),
];
