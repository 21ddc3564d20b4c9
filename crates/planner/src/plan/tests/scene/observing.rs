//! Observation of a scene's cluster.

use std::collections::BTreeSet;

use serde_json::json;

use super::{MANAGER, Scene, digest_key};
use crate::crd::is_crd;
use crate::observe::{
    Listing, ListingKey, Prediction, PreviousRelease, Registration, Unverified, is_unchanged,
};
use crate::plan::tests::server;
use pleach_fields::diff::ownership;
use pleach_model::discovery::{Freshness, Resource, ServedGroup, ServedVersion};
use pleach_model::object::{DesiredDigest, Manifest, ObjectId, ReleaseName, labels};
use pleach_model::order::pointed_at;
use pleach_state::inventory::{Entry, EntryState, Inventory, Store};
use pleach_state::live::{Live, LiveMeta};

impl Scene {
    /// Adds objects of release `old`, which hands them over and which git no
    /// longer has.
    pub(in crate::plan::tests) fn previous(mut self, text: &str) -> Self {
        let name = ReleaseName {
            environment: "e".to_owned(),
            release: "old".to_owned(),
        };
        let mut previous = PreviousRelease {
            apply_set: Store::Release.apply_set(&name),
            name,
            inventory: Inventory::default(),
        };
        let known: BTreeSet<ObjectId> = self.live.keys().cloned().collect();
        self = self.live(text);
        let manager = previous.name.field_manager();
        for (id, value) in self.live.iter_mut().filter(|(id, _)| !known.contains(*id)) {
            value["metadata"]["labels"][labels::PART_OF] = json!(previous.apply_set);
            let fields = server::fields(value);
            value["metadata"]["managedFields"] = json!([server::entry(&manager, "Apply", &fields)]);
            let entry = Entry {
                state: EntryState::Applied,
                uid: value["metadata"]["uid"].as_str().map(str::to_owned),
                ..Entry::default()
            };
            previous.inventory.entries.insert(id.clone(), entry);
        }
        let terms = &mut self.desired.terms;
        terms.moved_from = Some(previous.name.clone());
        terms.previous_set = Some(previous.apply_set.clone());
        terms.previous_is_given_up = true;
        self.observed.previous = Some(previous);
        self
    }

    /// Fills in the result of observing the cluster.
    pub(super) fn observe(&mut self) {
        for manifest in &self.desired.manifests {
            let lean = self.desired.ignored.lean(manifest);
            let digest = DesiredDigest::Known(lean.digest());
            let digests = &mut self.desired.digests;
            digests.entry(manifest.id().clone()).or_insert(digest);
        }
        self.discover();
        self.observed.targets = self
            .live
            .iter()
            .filter(|(id, _)| self.is_target(id))
            .map(|(id, value)| (id.clone(), Live::new(value.clone(), MANAGER)))
            .collect();
        for (from, rule) in self.desired.copies_to_list(&self.observed) {
            let found = self.live.iter().filter(|(id, value)| {
                let meta = LiveMeta::read(&value["metadata"], MANAGER);
                id.namespace.as_ref() == Some(&from) && crate::plan::is_copied(&rule, id, &meta)
            });
            let found = found.map(|(id, _)| id.clone());
            self.observed.copies.extend(found);
        }
        for (id, value) in &self.live {
            let meta = LiveMeta::read(&value["metadata"], MANAGER);
            if let Some(mut registration) = Registration::read(id.clone(), value, MANAGER) {
                registration.available = None;
                self.observed.registrations.push(registration);
            }
            if is_crd(id) && !self.desired.manifests.iter().any(|one| one.id() == id) {
                let services = pointed_at(&id.group_kind(), value);
                self.observed.conversions.insert(id.clone(), services);
            }
            let is_leaving = !self.desired.manifests.iter().any(|one| one.id() == id);
            let is_set = id.is("apps", "StatefulSet") && is_leaving;
            if id.is("", "Service") || id.is("batch", "Job") || is_set {
                let live = Live::new(value.clone(), MANAGER);
                self.observed.full.insert(id.clone(), live);
            }
            self.observed.meta.insert(id.clone(), meta);
        }
        for id in self.desired.undesired_crds(&self.observed) {
            let live = Live::new(self.live[&id].clone(), MANAGER);
            self.observed.full.insert(id, live);
        }
        for manifest in self.desired.manifests.clone() {
            self.ask(&manifest);
        }
        self.observed.recognize_fields(MANAGER, Some(&digest_key()));
    }

    fn is_target(&self, id: &ObjectId) -> bool {
        let mut selectors = self.desired.sequence.targets();
        let mut journaled = self.observed.journal.overlays.values();
        let record = self.observed.installed.as_ref();
        if self.desired.counterparts(&self.observed).contains(id) {
            return true;
        }
        let given = self.desired.given_roles(record);
        selectors.any(|selector| selector.group_kind() == Some(id.group_kind()))
            || journaled.any(|one| one.object == *id)
            || given.contains(id)
    }

    fn ask(&mut self, manifest: &Manifest) {
        let id = manifest.id();
        let observed = &mut self.observed;
        let live = self
            .live
            .get(id)
            .map(|live| Live::new(live.clone(), MANAGER));
        let entry = observed.inventory.entries.get(id);
        if let (Some(live), Some(entry)) = (&live, entry)
            && !self.policy.verify
            && is_unchanged(
                self.desired.ignored.lean(manifest),
                self.desired.digests.get(id),
                entry,
                live.meta(),
            )
        {
            return;
        }
        let namespace = id.namespace.as_ref().filter(|name| {
            let id = ObjectId::new("", "Namespace", None, name);
            !self.live.contains_key(&id)
        });
        let prediction = match (&live, namespace) {
            (_, Some(name)) => Prediction::Unverified(Unverified::NamespaceMissing(name.clone())),
            (None, _) if self.unserved.contains(&id.group_kind()) => {
                Prediction::Unverified(Unverified::KindMissing)
            }
            (None, _) => Prediction::Creates,
            (Some(live), _) => {
                let ours = ownership::applied_by(&live.value()["metadata"], MANAGER);
                let ignored = &self.desired.ignored;
                let question = ignored.question(manifest, live.value(), &ours);
                let question = question.unwrap_or_else(|| manifest.value());
                server::dry_run(live.value(), &question)
            }
        };
        observed.predicted.entry(id.clone()).or_insert(prediction);
        if let Some(live) = live {
            observed.full.insert(id.clone(), live);
        }
    }

    /// Serves and lists all kinds that occur, unless the scene overrides it.
    fn discover(&mut self) {
        let ids: BTreeSet<ObjectId> = self
            .desired
            .manifests
            .iter()
            .map(Manifest::id)
            .chain(self.live.keys())
            .chain(self.observed.inventory.entries.keys())
            .cloned()
            .collect();
        let mut kinds = self.namespaced.clone();
        kinds.extend(
            ids.iter()
                .map(|id| (id.group_kind(), id.namespace.is_some())),
        );
        for (kind, namespaced) in kinds {
            let served = !self.unserved.contains(&kind);
            let default = if served {
                Listing::Complete
            } else {
                Listing::NotServed
            };
            let listing = self.listings.get(&kind).cloned().unwrap_or(default);
            let key = ListingKey {
                kind: kind.clone(),
                namespace: None,
            };
            self.observed.listings.insert(key, listing);
            let is_stale = self.stale.contains(&kind.group);
            if !served && !is_stale {
                continue;
            }
            let groups = self.observed.discovery.groups_mut();
            let group = groups
                .entry(kind.group.clone())
                .or_insert_with(|| ServedGroup {
                    versions: vec![ServedVersion {
                        version: "v1".to_owned(),
                        freshness: Freshness::Current,
                        resources: Vec::new(),
                    }],
                });
            let version = &mut group.versions[0];
            if is_stale {
                version.freshness = Freshness::Stale;
            } else if served {
                version.resources.push(Resource {
                    plural: format!("{}s", kind.kind.to_lowercase()),
                    kind: kind.kind,
                    namespaced,
                    verbs: BTreeSet::new(),
                });
            }
        }
        for (kind, listing) in &self.listings {
            let key = ListingKey {
                kind: kind.clone(),
                namespace: None,
            };
            self.observed.listings.insert(key, listing.clone());
        }
    }
}
