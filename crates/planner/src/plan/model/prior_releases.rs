//! Objects of releases that are applied before the planned one.

use std::collections::BTreeSet;

use crate::crd::is_crd;
use pleach_model::object::{ApiVersion, Gvk, Manifest, ObjectId};

/// Kinds, namespaces and Services that do not exist when a release is planned.
/// Earlier releases of the same command create them before it is applied.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PriorReleases {
    kinds: BTreeSet<Gvk>,
    apis: BTreeSet<ApiVersion>,
    namespaces: BTreeSet<String>,
    services: BTreeSet<ObjectId>,
}

impl PriorReleases {
    /// Adds the objects of an earlier release, and the namespace created for
    /// it.
    pub fn add(&mut self, manifests: &[Manifest], namespace: Option<&str>) {
        self.namespaces.extend(namespace.map(str::to_owned));
        for manifest in manifests {
            let id = manifest.id();
            if id.is("", "Namespace") {
                self.namespaces.insert(id.name.clone());
            } else if id.is("", "Service") {
                self.services.insert(id.clone());
            } else if is_crd(id) || id.is("apiregistration.k8s.io", "APIService") {
                let facts = manifest.facts();
                let served = facts.defines.iter().flat_map(|one| &one.served);
                self.kinds.extend(served.cloned());
                self.apis.extend(facts.registers.clone());
            }
        }
    }

    /// Returns whether a kind is served once the earlier releases are applied.
    pub fn serves(&self, gvk: &Gvk) -> bool {
        self.kinds.contains(gvk) || self.apis.contains(&gvk.api_version)
    }

    /// Returns whether an earlier release contains the Service.
    pub fn has_service(&self, id: &ObjectId) -> bool {
        self.services.contains(id)
    }

    /// Returns whether an earlier release creates the namespace.
    pub fn has_namespace(&self, name: &str) -> bool {
        self.namespaces.contains(name)
    }
}
