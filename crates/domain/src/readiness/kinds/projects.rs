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
    project!("cert-manager", ["cert-manager.io"]),
    project!("cluster-api", ["cluster.x-k8s.io"]),
    project!(
        "crossplane",
        ["apiextensions.crossplane.io", "pkg.crossplane.io"]
    ),
    project!("external-secrets", ["external-secrets.io"]),
    project!(
        "flux",
        [
            "helm.toolkit.fluxcd.io",
            "kustomize.toolkit.fluxcd.io",
            "source.toolkit.fluxcd.io"
        ]
    ),
    project!("gateway-api", ["gateway.networking.k8s.io"]),
    project!("keda", ["keda.sh"]),
    project!("knative", ["serving.knative.dev"]),
    project!("operator-lifecycle-manager", ["operators.coreos.com"]),
    project!("sealed-secrets", ["bitnami.com"]),
    project!("velero", ["velero.io"]),
    project!("volume-snapshots", ["snapshot.storage.k8s.io"]),
];
