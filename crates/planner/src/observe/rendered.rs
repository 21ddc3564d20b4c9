//! Simulated observation: a cluster that contains exactly the rendered objects of a revision.
//!
//! Used by previews without a cluster. The planner receives the state right after an apply of that
//! revision. Every rendered object is live, owned only by its release, and recorded in the
//! inventory. Predictions simulate an apply by the same manager: fields that git dropped are
//! removed, fields that git added are set. Defaults and admission are not simulated. Runtime
//! objects are unknown and omitted.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use serde_json::{Value, json};

use super::{Backend, ClusterId, Listing, ListingKey, Observed, Prediction, Registration};
use crate::plan::Desired;
use pleach_fields::diff::ownership::everything_in;
use pleach_formats::policy::RuntimeObject;
use pleach_model::discovery::{Discovery, Freshness, Resource, ServedVersion};
use pleach_model::kinds::{KindTable, Scope};
use pleach_model::object::{
    ApiVersion, DesiredDigest, Digest, GroupKind, Gvk, Manifest, ObjectId, ServiceRef, annotations,
    labels,
};
use pleach_model::order::pointed_at;
use pleach_state::inventory::{Attempt, Entry, EntryState, Installed, Outcome, Run};
use pleach_state::live::{Live, LiveMeta};

/// Starting point of a preview: an environment at some revision.
#[derive(Debug, Clone, Copy)]
pub struct Base<'a> {
    /// The release at that revision. `None` if it did not exist.
    pub release: Option<&'a Desired>,
    /// The other releases of the environment at that revision. Their objects exist and belong to
    /// them.
    pub others: &'a [&'a Desired],
    /// Namespaces of further releases, of which no more is known. The value is the ApplySet id of
    /// the release that creates the namespace, if any.
    pub namespaces: &'a BTreeMap<String, Option<String>>,
    /// Kinds of the Kubernetes version that both sides are rendered for.
    pub kinds: &'a KindTable,
}

/// Kinds that point at Services. The planner requires a listing for them.
const REGISTRATIONS: [(&str, &str); 3] = [
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

/// Kind that defines other kinds and can point at a conversion Service.
const CRD: &str = "CustomResourceDefinition";

impl Observed {
    /// Simulates the observation for `head` right after an apply of `base`.
    ///
    /// Digests are compared as they are. Compute both sides with the same key
    /// ([`Desired::digest_with`]). Otherwise every secret object counts as changed.
    ///
    /// ```
    /// # use std::collections::BTreeMap;
    /// # use pleach_model::kinds::KindTable;
    /// # use pleach_planner::observe::{Base, Observed};
    /// # use pleach_planner::plan::{self, Desired, Plan, Policy};
    /// fn preview(base: &Desired, head: &Desired, policy: &Policy, kinds: &KindTable) -> Plan {
    ///     let base = Base { release: Some(base), others: &[], namespaces: &BTreeMap::new(), kinds };
    ///     plan::plan_offline(head, &Observed::from_rendered(base, head), policy)
    /// }
    /// ```
    pub fn from_rendered(base: Base<'_>, head: &Desired) -> Self {
        let mut observed = Self::of(
            ClusterId("preview".to_owned()),
            format!("v{}.0", base.kinds.minor()),
            Discovery::default(),
            Timestamp::UNIX_EPOCH,
        );
        observed.installed = base.release.map(installed);
        let sides = base
            .others
            .iter()
            .copied()
            .chain(base.release)
            .chain([head]);
        serve(&mut observed, sides, base.kinds);
        let desired: BTreeMap<&ObjectId, &Manifest> =
            head.manifests.iter().map(|one| (one.id(), one)).collect();
        for other in base.others {
            exist(&mut observed, other, head, |id| desired.contains_key(id));
            if head.terms.moved_from.as_ref() == Some(&other.name) {
                hand_over(&mut observed, other, head, &desired);
            }
        }
        for (name, set) in base.namespaces {
            let id = ObjectId::new("", "Namespace", None, name);
            let unread = |id: &ObjectId| unread(id, set.as_deref());
            observed.meta.entry(id).or_insert_with_key(unread);
        }
        if let Some(release) = base.release {
            exist(&mut observed, release, head, |_| true);
            for manifest in &release.manifests {
                remember(&mut observed, release, head, manifest, &desired);
            }
            remember_namespace(&mut observed, release);
        }
        for manifest in &head.manifests {
            let id = manifest.id();
            if !observed.meta.contains_key(id) {
                observed.predicted.insert(id.clone(), Prediction::Creates);
            }
        }
        observed
    }
}

fn installed(base: &Desired) -> Installed {
    Installed {
        repository: base.repository.clone(),
        bundle: base.bundle.clone(),
        installed: Some(Attempt {
            version: base.version.clone(),
            revision: base.revision.clone(),
            digest: Digest::of(b""),
            at: Timestamp::UNIX_EPOCH,
        }),
        ready: true,
        ..Installed::default()
    }
}

/// Adds every rendered kind to discovery, because rendering refuses unserved kinds. Kinds that are
/// only referenced are those of Kubernetes.
fn serve<'a>(observed: &mut Observed, sides: impl Iterator<Item = &'a Desired>, kinds: &KindTable) {
    let mut served: BTreeMap<Gvk, (String, bool)> = BTreeMap::new();
    let mut listed: BTreeSet<GroupKind> = REGISTRATIONS
        .iter()
        .map(|(group, kind)| GroupKind::new(*group, *kind))
        .collect();
    listed.insert(GroupKind::new("", "Namespace"));
    for side in sides {
        for manifest in &side.manifests {
            let id = manifest.id();
            listed.insert(id.group_kind());
            served.insert(
                manifest.gvk(),
                (id.kind.to_lowercase(), id.namespace.is_some()),
            );
            if !id.is("apiextensions.k8s.io", CRD) {
                continue;
            }
            if let Some(crd) = &manifest.facts().defines {
                let scope = manifest.value()["spec"]["scope"] == "Namespaced";
                listed.insert(crd.kind.clone());
                for gvk in &crd.served {
                    served.insert(gvk.clone(), (crd.plural.clone(), scope));
                }
            }
        }
        listed.extend(
            side.runtime_objects
                .iter()
                .filter_map(RuntimeObject::group_kind),
        );
    }
    for kind in &listed {
        let (Some(scope), Some(plural)) = (kinds.scope(kind), kinds.plural(kind)) else {
            continue;
        };
        for version in kinds.versions(kind) {
            let api_version = ApiVersion {
                group: kind.group.clone(),
                version: version.clone(),
            };
            let gvk = Gvk {
                api_version,
                kind: kind.kind.clone(),
            };
            served.insert(gvk, (plural.to_owned(), scope == Scope::Namespaced));
        }
    }
    for (gvk, (plural, namespaced)) in served {
        let versions = &mut observed
            .discovery
            .groups_mut()
            .entry(gvk.api_version.group)
            .or_default()
            .versions;
        let version = gvk.api_version.version;
        let resource = Resource {
            kind: gvk.kind,
            plural,
            namespaced,
            verbs: BTreeSet::new(),
        };
        match versions.iter_mut().find(|known| known.version == version) {
            Some(known) => known.resources.push(resource),
            None => versions.push(ServedVersion {
                version,
                freshness: Freshness::Current,
                resources: vec![resource],
            }),
        }
    }
    for kind in listed {
        let key = ListingKey {
            kind,
            namespace: None,
        };
        observed.listings.insert(key, Listing::Complete);
    }
}

/// Adds the objects of a release: metadata, registrations, Services and namespaces. For objects
/// that the planner does not ask about, only their owner is stored. These can be all objects of a
/// thousand other releases.
fn exist(
    observed: &mut Observed,
    release: &Desired,
    reader: &Desired,
    is_requested: impl Fn(&ObjectId) -> bool,
) {
    let manager = reader.name.field_manager();
    let owner = release.name.field_manager();
    let set = release.apply_set();
    for manifest in &release.manifests {
        let id = manifest.id();
        let kind = id.group_kind();
        let registers = REGISTRATIONS
            .iter()
            .any(|(group, name)| kind.is(group, name));
        if !registers && !is_requested(id) && !id.is("apiextensions.k8s.io", CRD) {
            let meta = unread(id, Some(&set));
            observed.meta.insert(id.clone(), meta);
            serve_endpoints(observed, id);
            continue;
        }
        let live = live(manifest, &owner, release.digests.get(id));
        let meta = LiveMeta::read(&live["metadata"], &manager);
        if let Some(mut registration) = Registration::read(id.clone(), &live, &manager) {
            registration.available = registration.available.map(|_| Ok(()));
            observed.registrations.push(registration);
        }
        serve_endpoints(observed, id);
        observed.meta.insert(id.clone(), meta);
    }
    let made = release
        .namespace
        .as_deref()
        .filter(|_| release.create_namespace);
    for manifest in &release.manifests {
        let Some(name) = &manifest.id().namespace else {
            continue;
        };
        let id = ObjectId::new("", "Namespace", None, name);
        let part_of = (made == Some(name)).then_some(&*set);
        let unread = |id: &ObjectId| unread(id, part_of);
        observed.meta.entry(id).or_insert_with_key(unread);
    }
}

/// Returns the metadata of an object that was not read.
fn unread(id: &ObjectId, part_of: Option<&str>) -> LiveMeta {
    LiveMeta {
        uid: uid(id),
        resource_version: RESOURCE_VERSION.to_owned(),
        has_managed_fields: true,
        labels: part_of
            .map(|set| (labels::PART_OF.to_owned(), set.to_owned()))
            .into_iter()
            .collect(),
        ..LiveMeta::default()
    }
}

/// Adds a ready backend for an existing Service.
fn serve_endpoints(observed: &mut Observed, id: &ObjectId) {
    let Some(namespace) = id.namespace.clone().filter(|_| id.is("", "Service")) else {
        return;
    };
    let service = ServiceRef {
        namespace,
        name: id.name.clone(),
    };
    let backend = Backend {
        exists: true,
        ready_endpoints: 1,
        ..Backend::default()
    };
    observed.backends.insert(service, backend);
}

/// Records an object of the release as applied. Adds the full object if the plan changes it.
fn remember(
    observed: &mut Observed,
    release: &Desired,
    head: &Desired,
    manifest: &Manifest,
    desired: &BTreeMap<&ObjectId, &Manifest>,
) {
    let id = manifest.id();
    let manager = head.name.field_manager();
    let digest = release.digests.get(id);
    let before = Live::new(live(manifest, &manager, digest), &manager).hiding(&manifest.secrecy());
    let meta = before.meta().clone();
    let entry = Entry {
        state: EntryState::Applied,
        api_version: manifest.api_version().to_string(),
        uid: Some(meta.uid.clone()),
        resource_version: Some(meta.resource_version.clone()),
        desired: match digest {
            Some(DesiredDigest::Known(digest)) => Some(*digest),
            Some(DesiredDigest::Unkeyed) | None => None,
        },
        fingerprint: meta.fingerprint,
        ..Entry::default()
    };
    observed.inventory.entries.insert(id.clone(), entry);
    observed.meta.insert(id.clone(), meta);
    if let Some(key) = release.run_key(id) {
        let outcome = Outcome::Succeeded;
        observed
            .journal
            .runs
            .insert(id.clone(), Run { key, outcome });
    }
    let after = match desired.get(id) {
        // A run-once Job can also run again because another object changed.
        Some(desired) if desired.json() == manifest.json() && !manifest.runs_once() => return,
        Some(desired) => {
            let after = live(desired, &manager, head.digests.get(id));
            Some(Live::new(after, &manager).hiding(&desired.secrecy()))
        }
        None => {
            if id.is("apiextensions.k8s.io", CRD) {
                let services = pointed_at(&id.group_kind(), before.value());
                observed.conversions.insert(id.clone(), services);
            }
            None
        }
    };
    observed.full.insert(id.clone(), before);
    if let Some(after) = after {
        observed
            .predicted
            .insert(id.clone(), Prediction::Answer(after));
    }
}

/// Adds the objects that `head` takes over from another release, in full.
fn hand_over(
    observed: &mut Observed,
    previous: &Desired,
    head: &Desired,
    desired: &BTreeMap<&ObjectId, &Manifest>,
) {
    let manager = head.name.field_manager();
    let owner = previous.name.field_manager();
    for manifest in &previous.manifests {
        let id = manifest.id();
        let Some(desired) = desired.get(id) else {
            continue;
        };
        let before = live(manifest, &owner, previous.digests.get(id));
        let before = Live::new(before, &manager).hiding(&manifest.secrecy());
        let after = live(desired, &manager, head.digests.get(id));
        let after = Live::new(after, &manager).hiding(&desired.secrecy());
        observed.full.insert(id.clone(), before);
        observed.adopted.insert(id.clone(), after.clone());
        observed
            .predicted
            .insert(id.clone(), Prediction::Answer(after));
    }
}

/// Records the namespace that pleach created for the release without a manifest.
fn remember_namespace(observed: &mut Observed, release: &Desired) {
    let Some(name) = &release.namespace else {
        return;
    };
    let id = ObjectId::new("", "Namespace", None, name);
    let Some(meta) = observed.meta.get(&id) else {
        return;
    };
    if meta.part_of() == Some(&release.apply_set()) {
        let entry = Entry {
            state: EntryState::Applied,
            api_version: "v1".to_owned(),
            uid: Some(meta.uid.clone()),
            ..Entry::default()
        };
        observed.inventory.entries.entry(id).or_insert(entry);
    }
}

/// Resource version of all objects: they have not been written since the apply.
const RESOURCE_VERSION: &str = "1";

fn uid(id: &ObjectId) -> String {
    format!("preview {id}")
}

/// Builds the live object of a manifest that only its release has applied.
fn live(manifest: &Manifest, manager: &str, digest: Option<&DesiredDigest>) -> Value {
    let mut value = manifest.value();
    if let Some(DesiredDigest::Known(digest)) = digest {
        value["metadata"]["annotations"][annotations::DESIRED] = json!(digest.to_string());
    }
    // Own lists as a whole: the comparison knows the keys of their items.
    let fields = everything_in(&value, None).to_json();
    let metadata = &mut value["metadata"];
    metadata["uid"] = json!(uid(manifest.id()));
    metadata["resourceVersion"] = json!(RESOURCE_VERSION);
    metadata["managedFields"] = json!([{
        "manager": manager,
        "operation": "Apply",
        "apiVersion": manifest.api_version().to_string(),
        "fieldsType": "FieldsV1",
        "fieldsV1": fields,
    }]);
    if manifest.runs_once() {
        value["status"] = json!({"conditions": [{"type": "Complete", "status": "True"}]});
    }
    value
}
