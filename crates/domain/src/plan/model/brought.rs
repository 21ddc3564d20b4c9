//! What releases bring that are carried out before another one.

use std::collections::BTreeSet;

use crate::definition::is_definition;
use crate::object::{ApiVersion, Gvk, Manifest, ObjectId};

/// Kinds and namespaces that are not there yet when a release is planned, and
/// are when its turn comes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Brought {
    kinds: BTreeSet<Gvk>,
    apis: BTreeSet<ApiVersion>,
    namespaces: BTreeSet<String>,
    services: BTreeSet<ObjectId>,
}

impl Brought {
    /// Adds what a release has, and the namespace that is made for it.
    pub fn add(&mut self, manifests: &[Manifest], namespace: Option<&str>) {
        self.namespaces.extend(namespace.map(str::to_owned));
        for manifest in manifests {
            let id = manifest.id();
            if id.is("", "Namespace") {
                self.namespaces.insert(id.name.clone());
            } else if id.is("", "Service") {
                self.services.insert(id.clone());
            } else if is_definition(id) || id.is("apiregistration.k8s.io", "APIService") {
                let facts = manifest.facts();
                let served = facts.defines.iter().flat_map(|one| &one.served);
                self.kinds.extend(served.cloned());
                self.apis.extend(facts.registers.clone());
            }
        }
    }

    /// Whether a kind is served once those releases are there.
    pub fn serves(&self, gvk: &Gvk) -> bool {
        self.kinds.contains(gvk) || self.apis.contains(&gvk.api_version)
    }

    /// Whether a Service is there by then.
    pub fn has_service(&self, id: &ObjectId) -> bool {
        self.services.contains(id)
    }

    /// Whether a namespace is there by then.
    pub fn has_namespace(&self, name: &str) -> bool {
        self.namespaces.contains(name)
    }
}
