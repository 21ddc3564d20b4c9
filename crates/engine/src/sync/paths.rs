//! API paths of the objects of a release.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, PoisonError, RwLock};

use pleach_model::discovery::{Discovery, Resource};
use pleach_model::object::{ApiVersion, GroupKind, Gvk, Manifest, ObjectId};
use pleach_model::order::registered_api;
use serde_json::Value;

use pleach_cluster::ResourcePath;

/// Paths of kinds, from discovery and from the CRDs of the release, whose kinds can be served
/// later.
#[derive(Debug, Clone)]
pub(super) struct Paths {
    discovery: Discovery,
    /// Discovery refreshed during execution, for APIs that appeared since.
    later: Arc<RwLock<Discovery>>,
    defined: BTreeMap<GroupKind, DefinedResource>,
    /// Group-versions that APIServices of the release register.
    registered: BTreeSet<ApiVersion>,
    /// Versions of the manifests.
    desired: BTreeMap<GroupKind, ApiVersion>,
}

#[derive(Debug, Clone)]
struct DefinedResource {
    crd: ObjectId,
    resource: Resource,
    served: ApiVersion,
}

impl Paths {
    /// Collects the kinds from discovery and from manifests.
    pub(super) fn new(discovery: &Discovery, manifests: &[Manifest]) -> Self {
        let defined = manifests
            .iter()
            .filter(|manifest| {
                manifest
                    .id()
                    .is("apiextensions.k8s.io", "CustomResourceDefinition")
            })
            .filter_map(|manifest| defined_resource(manifest.id(), &manifest.value()))
            .collect();
        let registered = manifests
            .iter()
            .filter(|manifest| manifest.id().is("apiregistration.k8s.io", "APIService"))
            .filter_map(|manifest| registered_api(&manifest.id().group_kind(), &manifest.value()))
            .collect();
        let mut samples: Vec<&Manifest> = manifests.iter().collect();
        samples.dedup_by(|one, other| {
            one.id().kind == other.id().kind && one.api_version() == other.api_version()
        });
        let desired = samples
            .into_iter()
            .map(|manifest| (manifest.id().group_kind(), manifest.api_version().clone()))
            .collect();
        Self {
            discovery: discovery.clone(),
            later: Arc::default(),
            defined,
            registered,
            desired,
        }
    }

    /// Returns the path of a kind at a version, as the server serves it or a CRD of the release
    /// will.
    pub(super) fn of(&self, gvk: &Gvk) -> Option<ResourcePath> {
        let own = self.defined.get(&gvk.group_kind());
        // The scope of a CRD only changes if it is recreated.
        let has_scope =
            |path: &ResourcePath| own.is_none_or(|one| one.resource.namespaced == path.namespaced);
        ResourcePath::of(&self.discovery, gvk)
            .filter(has_scope)
            .or_else(|| {
                let own = own?;
                Some(ResourcePath::new(gvk.api_version.clone(), &own.resource))
            })
            .or_else(|| {
                let later = self.later.read().unwrap_or_else(PoisonError::into_inner);
                ResourcePath::of(&later, gvk)
            })
    }

    /// Stores refreshed discovery. Kinds of an APIService become known when its server answers.
    pub(super) fn learn(&self, discovery: Discovery) {
        *self.later.write().unwrap_or_else(PoisonError::into_inner) = discovery;
    }

    /// Returns whether an APIService of the release registers this group-version.
    pub(super) fn is_registered(&self, api_version: &ApiVersion) -> bool {
        self.registered.contains(api_version)
    }

    /// Returns the path of an object at its applied version, or else at the preferred one.
    pub(super) fn of_member(&self, id: &ObjectId, api_version: &str) -> Option<ResourcePath> {
        let recorded = (!api_version.is_empty()).then(|| Gvk {
            api_version: ApiVersion::parse(api_version),
            kind: id.kind.clone(),
        });
        recorded
            .and_then(|gvk| ResourcePath::of(&self.discovery, &gvk))
            .or_else(|| ResourcePath::preferred(&self.discovery, &id.group_kind()))
    }

    /// Returns the path of a kind during execution: at the desired version, else as discovered,
    /// else as a CRD of the release defines it.
    pub(super) fn of_kind(&self, kind: &GroupKind) -> Option<ResourcePath> {
        let at = |api_version: &ApiVersion| {
            self.of(&Gvk {
                api_version: api_version.clone(),
                kind: kind.kind.clone(),
            })
        };
        self.desired
            .get(kind)
            .and_then(at)
            .or_else(|| ResourcePath::preferred(&self.discovery, kind))
            .or_else(|| at(&self.defined.get(kind)?.served))
    }

    /// Returns the CRD of the release that defines a kind.
    pub(super) fn crd(&self, kind: &GroupKind) -> Option<&ObjectId> {
        self.defined.get(kind).map(|own| &own.crd)
    }

    /// Returns the kind that a CRD of the release defines.
    pub(super) fn defined_by(&self, crd: &ObjectId) -> Option<&GroupKind> {
        let mut defined = self.defined.iter();
        let (kind, _) = defined.find(|(_, own)| own.crd == *crd)?;
        Some(kind)
    }
}

fn defined_resource(crd: &ObjectId, value: &Value) -> Option<(GroupKind, DefinedResource)> {
    let spec = &value["spec"];
    let kind = spec["names"]["kind"].as_str()?;
    let group = spec["group"].as_str()?;
    let version = spec["versions"]
        .as_array()?
        .iter()
        .find(|version| version["served"] == true)?;
    let version = version["name"].as_str()?;
    let resource = Resource {
        kind: kind.to_owned(),
        plural: spec["names"]["plural"].as_str()?.to_owned(),
        namespaced: spec["scope"] == "Namespaced",
        verbs: BTreeSet::new(),
    };
    Some((
        GroupKind::new(group, kind),
        DefinedResource {
            crd: crd.clone(),
            resource,
            served: ApiVersion::parse(&format!("{group}/{version}")),
        },
    ))
}
