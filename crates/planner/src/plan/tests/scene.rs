//! Scenes: the state of git, the cluster and the record.
//!
//! Objects are written as `Kind.group/namespace/name: {body}`. Anything else is
//! derived: kinds that occur are served and listed completely, and the server
//! answers dry runs as in `server`.

mod declared;
mod observing;

use std::collections::{BTreeMap, BTreeSet};

use jiff::{SignedDuration, Timestamp};
use semver::VersionReq;
use serde_json::{Value, json};

use super::server;
use crate::observe::{Backend, ClusterId, Listing, Observed, Prediction};
use crate::plan::{
    Desired, Digests, Plan, Policy, Removal, Terms, draft::Ctx, plan_offline, remove_offline,
};
use pleach_fields::ignore::Ignored;
use pleach_formats::{
    policy::{Consent, Protect, PrunePolicy, RuntimeObject},
    versions::VersionPolicy,
};
use pleach_model::discovery::Discovery;
use pleach_model::foreign_tools::{KnownOwner, Owner, OwnerState};
use pleach_model::object::{
    ApiVersion, DesiredDigest, Digest, DigestKey, GroupKind, Manifest, ObjectId, Origin,
    ReleaseName, ServiceRef, annotations, labels, yaml,
};
use pleach_state::inventory::{
    Attempt, AttemptResult, Entry, EntryState, FieldKey, OwnedFields, RunFacts, RunOutcome, Store,
};
use pleach_state::live::LiveMeta;

pub(super) const MANAGER: &str = "pleach/e.r";

/// State of git, the cluster and the record.
#[derive(Clone)]
pub(super) struct Scene {
    pub(super) desired: Desired,
    pub(super) observed: Observed,
    pub(super) policy: Policy,
    live: BTreeMap<ObjectId, Value>,
    unserved: BTreeSet<GroupKind>,
    stale: BTreeSet<String>,
    listings: BTreeMap<GroupKind, Listing>,
    namespaced: BTreeMap<GroupKind, bool>,
}

/// Returns the digest key of the cluster.
fn digest_key() -> DigestKey {
    DigestKey::new(b"scene".to_vec())
}

fn id(text: &str) -> ObjectId {
    text.parse().unwrap()
}

pub(super) fn api_version(id: &ObjectId) -> String {
    if id.group.is_empty() {
        "v1".to_owned()
    } else {
        format!("{}/v1", id.group)
    }
}

/// Parses objects by id, and completes them.
fn objects(text: &str) -> Vec<(ObjectId, Value)> {
    let documents = yaml::parse_documents(text).unwrap();
    let Some(Value::Object(map)) = documents.into_iter().next().map(|one| one.value) else {
        return Vec::new();
    };
    map.into_iter()
        .map(|(key, mut value)| {
            let id = id(&key);
            value["apiVersion"] = json!(api_version(&id));
            value["kind"] = json!(id.kind);
            value["metadata"]["name"] = json!(id.name);
            if let Some(namespace) = &id.namespace {
                value["metadata"]["namespace"] = json!(namespace);
            }
            (id, value)
        })
        .collect()
}

impl Scene {
    /// Creates an empty release `r` of environment `e` with the existing
    /// namespace `web`.
    pub(super) fn new() -> Self {
        let name = ReleaseName {
            environment: "e".to_owned(),
            release: "r".to_owned(),
        };
        let scene = Self {
            desired: Desired {
                name,
                store: Store::Release,
                repository: "fleet".to_owned(),
                bundle: "web".to_owned(),
                version: "v2.0.0".to_owned(),
                revision: "abc".to_owned(),
                namespace: Some("web".to_owned()),
                create_namespace: true,
                manifests: Vec::new(),
                runtime_objects: Vec::new(),
                digests: Digests::default(),
                ignored: Ignored::default(),
                findings: Vec::new(),
                terms: Terms::default(),
                sequence: pleach_formats::sequence::Sequence::default(),
                node_jobs: BTreeMap::new(),
            },
            observed: Observed::of(
                ClusterId("cluster".to_owned()),
                "v1.36.0".to_owned(),
                Discovery::default(),
                Timestamp::UNIX_EPOCH,
            ),
            policy: Policy {
                cluster: None,
                adopt: Vec::new(),
                prune: PrunePolicy::default(),
                protect: Vec::new(),
                consent: Vec::new(),
                timeout: SignedDuration::from_secs(60),
                wait: true,
                verify: false,
                nodes_behind: false,
                // Scenes upgrade from v1.0.0 to v2.0.0.
                versions: VersionPolicy {
                    upgrades_from: Some(VersionReq::STAR),
                    ..VersionPolicy::default()
                },
                asks: BTreeSet::new(),
            },
            live: BTreeMap::new(),
            unserved: BTreeSet::new(),
            stale: BTreeSet::new(),
            listings: BTreeMap::new(),
            namespaced: BTreeMap::new(),
        };
        scene.live("Namespace/web: {}")
    }

    /// Adds objects to git, or replaces them.
    pub(super) fn git(self, text: &str) -> Self {
        self.git_at("web.yaml", text)
    }

    /// Adds objects to a file in git.
    pub(super) fn git_at(mut self, file: &str, text: &str) -> Self {
        for (id, mut value) in objects(text) {
            self.label(&mut value);
            self.desired.manifests.retain(|known| *known.id() != id);
            let origin = Origin::new(file, 1);
            let version = ApiVersion::parse(&api_version(&id));
            let manifest = Manifest::new(id, version, origin, &value, false);
            self.desired.manifests.push(manifest);
        }
        self
    }

    /// Adds foreign objects to the cluster. `managers` own all fields; one of
    /// them is sufficient.
    pub(super) fn live(mut self, text: &str) -> Self {
        for (id, mut value) in objects(text) {
            let managers = value["managers"].take();
            value.as_object_mut().unwrap().shift_remove("managers");
            let fields = server::fields(&value);
            let metadata = &mut value["metadata"];
            if metadata["uid"].is_null() {
                metadata["uid"] = json!(format!("uid of {id}"));
            }
            metadata["resourceVersion"] = json!("1");
            metadata["managedFields"] = managers
                .as_array()
                .into_iter()
                .flatten()
                .map(|manager| server::entry(manager.as_str().unwrap(), "Update", &fields))
                .collect();
            self.live.insert(id, value);
        }
        self
    }

    /// Adds objects that an earlier sync applied and that are unchanged.
    pub(super) fn installed(mut self, text: &str) -> Self {
        for (id, mut value) in objects(text) {
            self.label(&mut value);
            let version = ApiVersion::parse(&api_version(&id));
            let origin = Origin::new("web.yaml", 1);
            let digest = Manifest::new(id.clone(), version, origin, &value, false).digest();
            let fields = server::fields(&value);
            value["metadata"]["annotations"][annotations::DESIRED] = json!(digest.to_string());
            value["metadata"]["uid"] = json!(format!("uid of {id}"));
            value["metadata"]["resourceVersion"] = json!("1");
            value["metadata"]["managedFields"] = json!([server::entry(MANAGER, "Apply", &fields)]);
            let meta = LiveMeta::read(&value["metadata"], MANAGER);
            let key = FieldKey {
                id: &id,
                key: &digest_key(),
            };
            let entry = Entry {
                state: EntryState::Applied,
                api_version: api_version(&id),
                uid: Some(meta.uid),
                resource_version: Some(meta.resource_version),
                desired: Some(digest),
                fingerprint: meta.fingerprint,
                fields: OwnedFields::of(&value, MANAGER, key),
                ..Entry::default()
            };
            self.observed.inventory.entries.insert(id.clone(), entry);
            self.live.insert(id, value);
        }
        self.version("v1.0.0")
    }

    /// Applies later writes of another manager to existing objects.
    pub(super) fn edited(mut self, manager: &str, text: &str) -> Self {
        let documents = yaml::parse_documents(text).unwrap();
        for (key, body) in documents[0].value.as_object().unwrap() {
            let live = self.live.get_mut(&id(key)).unwrap();
            server::write(live, manager, body);
        }
        self
    }

    /// Changes a live object by hand.
    pub(super) fn with_live(mut self, key: &str, change: impl FnOnce(&mut Value)) -> Self {
        change(self.live.get_mut(&id(key)).unwrap());
        self
    }

    /// Changes the LIST result of an object.
    pub(super) fn meta(mut self, key: &str, change: impl FnOnce(&mut LiveMeta)) -> Self {
        let live = self.live.get_mut(&id(key)).unwrap();
        let mut meta = LiveMeta::read(&live["metadata"], MANAGER);
        change(&mut meta);
        live["metadata"]["uid"] = json!(meta.uid);
        live["metadata"]["resourceVersion"] = json!(meta.resource_version);
        live["metadata"]["labels"] = json!(meta.labels);
        live["metadata"]["annotations"] = json!(meta.annotations);
        if meta.deleting {
            live["metadata"]["deletionTimestamp"] = json!("2026-07-01T10:00:00Z");
            live["metadata"]["finalizers"] = json!(meta.finalizers);
        }
        let owners = meta.owners.iter().map(|uid| json!({"uid": uid}));
        live["metadata"]["ownerReferences"] = owners.collect();
        self
    }

    /// Records the exclusively owned fields of an object as it is now.
    pub(super) fn recorded(mut self, key: &str) -> Self {
        let id = id(key);
        let key = FieldKey {
            id: &id,
            key: &digest_key(),
        };
        let entry = self.observed.inventory.entries.get_mut(&id).unwrap();
        entry.fields = OwnedFields::of(&self.live[&id], MANAGER, key);
        self
    }

    /// Removes an object from the cluster.
    pub(super) fn gone(mut self, key: &str) -> Self {
        self.live.remove(&id(key)).unwrap();
        self
    }

    /// Changes the record of an object, and creates it if missing.
    pub(super) fn entry(mut self, key: &str, change: impl FnOnce(&mut Entry)) -> Self {
        let entries = &mut self.observed.inventory.entries;
        change(entries.entry(id(key)).or_default());
        self
    }

    /// Adds a live runtime object, with its record.
    pub(super) fn run_time(self, text: &str, service: Option<&str>) -> Self {
        let ids: Vec<ObjectId> = objects(text).into_iter().map(|(id, _)| id).collect();
        let mut scene = self.live(text);
        for id in ids {
            scene = scene.entry(&id.to_string(), |entry| {
                entry.state = EntryState::Observed;
                entry.uid = Some(format!("uid of {id}"));
                entry.service = service.map(service_ref);
            });
        }
        scene
    }

    /// Adds a live runtime object that is not recorded yet.
    pub(super) fn found(self, text: &str) -> Self {
        let ids: Vec<ObjectId> = objects(text).into_iter().map(|(id, _)| id).collect();
        let mut scene = self.live(text);
        for id in ids {
            let entry = Entry {
                state: EntryState::Observed,
                uid: Some(format!("uid of {id}")),
                ..Entry::default()
            };
            scene.observed.found.insert(id, entry);
        }
        scene
    }

    /// Declares a runtime object, in JSON or YAML flow syntax.
    pub(super) fn declares(mut self, text: &str) -> Self {
        let object: RuntimeObject = parse(text);
        self.desired.runtime_objects.push(object);
        self
    }

    pub(super) fn consent(mut self, text: &str) -> Self {
        let consent: Consent = parse(text);
        self.policy.consent.push(consent);
        self
    }

    pub(super) fn protect(mut self, text: &str) -> Self {
        let protect: Protect = parse(text);
        self.policy.protect.push(protect);
        self
    }

    pub(super) fn adopt(mut self, manager: &str) -> Self {
        self.policy.adopt.push(manager.to_owned());
        self
    }

    /// Ignores fields of a desired object.
    pub(super) fn ignores(mut self, key: &str, fields: &[&str]) -> Self {
        let patterns: Vec<_> = fields.iter().map(|field| field.parse().unwrap()).collect();
        let id = id(key);
        let mut manifests = self.desired.manifests.iter();
        let manifest = manifests.find(|one| *one.id() == id).unwrap();
        self.desired.ignored.add(manifest, &patterns);
        self
    }

    /// Sets the state of another deployment tool that owns objects.
    pub(super) fn owner(mut self, owner: Owner, state: OwnerState) -> Self {
        self.observed.owners.push(KnownOwner { owner, state });
        self
    }

    /// Records that a field was restored.
    pub(super) fn corrected(mut self, key: &str, field: &str, manager: &str, seconds: i64) -> Self {
        let at = Timestamp::from_second(seconds).unwrap();
        let installed = self.observed.installed.get_or_insert_default();
        installed.correct(&id(key), field, manager, at);
        self
    }

    pub(super) fn policy(mut self, change: impl FnOnce(&mut Policy)) -> Self {
        change(&mut self.policy);
        self
    }

    pub(super) fn with_desired(mut self, change: impl FnOnce(&mut Desired)) -> Self {
        change(&mut self.desired);
        self
    }

    pub(super) fn cluster(mut self, change: impl FnOnce(&mut Observed)) -> Self {
        change(&mut self.observed);
        self
    }

    /// Records a failed result of an earlier sync as the latest one.
    pub(super) fn failed(mut self, version: &str) -> Self {
        let installed = self.observed.installed.get_or_insert_default();
        installed.push(AttemptResult {
            version: version.to_owned(),
            revision: "abc".to_owned(),
            result: RunOutcome::Failed,
            at: Timestamp::UNIX_EPOCH,
            message: String::new(),
            local: String::new(),
            overridden: Vec::new(),
            run: RunFacts::default(),
        });
        self
    }

    /// Records a version as installed and ready.
    pub(super) fn version(mut self, version: &str) -> Self {
        let installed = self.observed.installed.get_or_insert_default();
        installed.ready = true;
        installed.installed = Some(attempt(version));
        self
    }

    /// Records an unfinished earlier sync.
    pub(super) fn unfinished(mut self, version: &str) -> Self {
        let installed = self.observed.installed.get_or_insert_default();
        installed.ready = false;
        installed.applying = Some(attempt(version));
        self
    }

    pub(super) fn predict(mut self, key: &str, prediction: Prediction) -> Self {
        self.observed.predicted.insert(id(key), prediction);
        self
    }

    /// Removes the digest of a secret object, as before its key exists.
    pub(super) fn unkeyed(mut self, key: &str) -> Self {
        let digests = &mut self.desired.digests;
        digests.insert(id(key), DesiredDigest::Unkeyed);
        self
    }

    pub(super) fn unserved(mut self, kind: &str) -> Self {
        self.unserved.insert(group_kind(kind));
        self
    }

    pub(super) fn stale(mut self, group: &str) -> Self {
        self.stale.insert(group.to_owned());
        self
    }

    /// Makes a kind cluster-scoped.
    pub(super) fn cluster_scoped(mut self, kind: &str) -> Self {
        self.namespaced.insert(group_kind(kind), false);
        self
    }

    pub(super) fn listing(mut self, kind: &str, listing: Listing) -> Self {
        self.listings.insert(group_kind(kind), listing);
        self
    }

    pub(super) fn incomplete(self, kind: &str) -> Self {
        self.listing(kind, Listing::Failed("time-out".to_owned()))
    }

    pub(super) fn backend(mut self, service: &str, exists: bool, ready_endpoints: usize) -> Self {
        let backend = Backend {
            exists,
            ready_endpoints,
            ..Backend::default()
        };
        let backends = &mut self.observed.backends;
        backends.insert(service_ref(service), backend);
        self
    }

    /// Returns the present state of a live object.
    pub(super) fn inspect(&self, key: &str) -> &Value {
        &self.live[&id(key)]
    }

    pub(super) fn plan(&self) -> Plan {
        let mut scene = self.clone();
        scene.observe();
        plan_offline(&scene.desired, &scene.observed, &scene.policy)
    }

    /// Checks passes of the planner with their input.
    pub(super) fn with_ctx(&self, check: impl FnOnce(&Ctx<'_>)) {
        let mut scene = self.clone();
        scene.observe();
        check(&Ctx::new(&scene.desired, &scene.observed, &scene.policy));
    }

    /// Returns the run key of a Job.
    pub(super) fn run_key(&self, key: &str) -> Digest {
        let mut scene = self.clone();
        scene.observe();
        scene.desired.run_key(&id(key)).unwrap()
    }

    /// Returns the plan of an uninstall.
    pub(super) fn end(&self, removal: &Removal) -> Plan {
        let mut scene = self.clone();
        scene.desired.manifests.clear();
        scene.desired.version = String::new();
        scene.observe();
        remove_offline(&scene.desired, removal, &scene.observed, &scene.policy)
    }

    /// Returns the input of the planner.
    pub(super) fn observed(&self) -> Observed {
        let mut scene = self.clone();
        scene.observe();
        scene.observed
    }

    fn label(&self, value: &mut Value) {
        value["metadata"]["labels"][labels::PART_OF] = json!(self.desired.apply_set());
    }
}

fn attempt(version: &str) -> Attempt {
    Attempt {
        version: version.to_owned(),
        revision: "abc".to_owned(),
        digest: Digest::of(b"x"),
        at: Timestamp::UNIX_EPOCH,
    }
}

pub(super) fn service_ref(text: &str) -> ServiceRef {
    let (namespace, name) = text.split_once('/').unwrap();
    ServiceRef {
        namespace: namespace.to_owned(),
        name: name.to_owned(),
    }
}

fn group_kind(text: &str) -> GroupKind {
    let (kind, group) = text.split_once('.').unwrap_or((text, ""));
    GroupKind::new(group, kind)
}

fn parse<T: serde::de::DeserializeOwned>(text: &str) -> T {
    let documents = yaml::parse_documents(text).unwrap();
    serde_json::from_value(documents[0].value.clone()).unwrap()
}
