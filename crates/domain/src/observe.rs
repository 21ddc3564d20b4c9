//! What the planner may know of a cluster.
//!
//! Serializable, so that a bug report is a fixture: [`Live`] masks the values
//! of Secrets when it is written.

mod contents;
mod discovery;
mod escalation;
mod former;
mod grants;
mod live;
mod registration;
mod rendered;
mod surroundings;
mod text_map;
mod triage;

pub use contents::{Content, Contents};
pub use discovery::{Discovery, Freshness, Resource, Served, ServedGroup, ServedVersion};
pub use escalation::Escalation;
pub use former::Former;
pub use grants::{Grants, MissingGrant, MissingRule, copyable, rules};
pub use live::{Live, LiveMeta};
pub use registration::{Backend, Lack, Registration};
pub(crate) use registration::{asks_url, available};
pub use rendered::Base;
pub use surroundings::{Budget, Node, Surroundings};
pub use text_map::TextMap;
pub use triage::{Known, Reading, is_unchanged, triage};

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::check::Looked;
use crate::definition::Instances;
use crate::depends::Hindrance;
use crate::deployer::KnownOwner;
use crate::inventory::{Entry, FieldKey, Installed, Inventory, Journal, Memory, OwnedBefore};
use crate::object::{Digest, DigestKey, FieldPath, GroupKind, Manifest, ObjectId, ServiceRef};

/// Which cluster: the uid of its namespace `kube-system`; where state is kept in
/// ConfigMaps, that of their namespace.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct ClusterId(pub String);

impl fmt::Display for ClusterId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Everything the planner knows of the cluster.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Observed {
    /// When it was read.
    pub at: Timestamp,
    /// Which cluster it is.
    pub cluster: ClusterId,
    /// Version of the API server, such as `v1.36.3`.
    pub server_version: String,
    /// What the server serves.
    pub discovery: Discovery,
    /// How each LIST went: whether something is absent is decided here (I1).
    pub listings: BTreeMap<ListingKey, Listing>,
    /// What the metadata LISTs and the reads by name brought: members and
    /// desired objects that exist.
    pub meta: BTreeMap<ObjectId, LiveMeta>,
    /// Objects read in full: only what changed or what a pass reasons about.
    pub full: BTreeMap<ObjectId, Live>,
    /// What the server says it would make of the desired objects that changed.
    pub predicted: BTreeMap<ObjectId, Prediction>,
    /// How objects that may be adopted would look once only git and those who
    /// stay want something of them; only where the server could be asked.
    pub adopted: BTreeMap<ObjectId, Live>,
    /// What the server says against such a look.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub unadoptable: BTreeMap<ObjectId, Prediction>,
    /// What other deployers say of objects that may be adopted.
    pub owners: Vec<KnownOwner>,
    /// APIServices and webhook configurations that point at a Service.
    pub registrations: Vec<Registration>,
    /// The Services that registrations point at; read only when there are steps.
    pub backends: BTreeMap<ServiceRef, Backend>,
    /// The Services that convert the objects of definitions which git no longer
    /// has; looked up only where a Service goes as well.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub conversions: BTreeMap<ObjectId, Vec<ServiceRef>>,
    /// What lies in namespaces that the plan would delete, by their names; read
    /// only when there are such.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub contents: BTreeMap<String, Contents>,
    /// The custom resources of definitions that change, where something of them
    /// could be lost.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub instances: BTreeMap<ObjectId, Instances>,
    /// What speaks against the checks of the bundle, by their names; read only
    /// where a change of the release is on its way.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub checked: BTreeMap<String, Looked>,
    /// What it depends on and is not ready, or what depends on it and is there;
    /// looked for only where a change of the release is on its way.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub hindrances: Vec<Hindrance>,
    /// The only objects that were looked at, where that is not all of them: the
    /// others are as the record has them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub focus: Option<BTreeSet<ObjectId>>,
    /// What stands around workloads; read only before some are written.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub surroundings: Option<Surroundings>,
    /// What pleach itself may do; empty when it was not asked.
    pub access: Grants,
    /// What the Release object says; none on first use.
    pub installed: Option<Installed>,
    /// The members of the release.
    pub inventory: Inventory,
    /// Run-time objects that the bundle declares, and that exist and are not recorded yet,
    /// as they would be.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub found: BTreeMap<ObjectId, Entry>,
    /// What a former run left to do.
    pub journal: Journal,
    /// The release whose objects are handed over, where git has it no more; read
    /// only where a change of the release is on its way.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub former: Option<Former>,
    /// The policy that is recorded for the release whose objects are handed over; `None`
    /// without such a release.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub inherited: Option<Memory>,
    /// What users keep in a namespace that the product leaves and that comes along,
    /// where the bundle does not name each of them; read only where a move is on
    /// its way.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub copies: BTreeSet<ObjectId>,
    /// The fields that were ours alone after the last apply, of objects whose apply was
    /// tried; only where the record has digests of fields.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub owned: BTreeMap<ObjectId, OwnedBefore>,
    /// Objects that are changed for a while or restarted, of the release or of
    /// others, and roles that its workloads make; read only where a change of the release is on its way, or a
    /// former run left something.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub targets: BTreeMap<ObjectId, Live>,
}

/// What a LIST covered: a kind, in all namespaces or in one.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct ListingKey {
    /// The kind.
    pub kind: GroupKind,
    /// The namespace; none for all of them and for cluster-scoped kinds. Of
    /// kind Namespace: the one that was looked for by its name.
    pub namespace: Option<String>,
}

impl ListingKey {
    /// The keys that say whether an object may be called absent: its kind
    /// everywhere, and in its namespace. A namespace is looked for by its name.
    pub fn of(id: &ObjectId) -> [Self; 2] {
        let own = if id.is("", "Namespace") {
            Some(id.name.clone())
        } else {
            id.namespace.clone()
        };
        [None, own].map(|namespace| Self {
            kind: id.group_kind(),
            namespace,
        })
    }
}

impl fmt::Display for ListingKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}/{}",
            self.kind,
            self.namespace.as_deref().unwrap_or("*")
        )
    }
}

impl Serialize for ListingKey {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for ListingKey {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        // The text is an object id with a namespace for a name.
        let id: ObjectId = text.parse().map_err(serde::de::Error::custom)?;
        Ok(Self {
            kind: id.group_kind(),
            namespace: (id.name != "*").then_some(id.name.clone()),
        })
    }
}

/// How a LIST went.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Listing {
    /// Every page arrived: what is not in it, is not labelled or not there.
    Complete,
    /// The kind is not served; its objects are not thereby gone.
    NotServed,
    /// We may not list it.
    Forbidden(String),
    /// It failed: nothing may be concluded.
    Failed(String),
}

/// What the server's dry run says about a desired object.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Prediction {
    /// The object would be created; its random parts are not kept.
    Creates,
    /// The object would look like this.
    Answer(Live),
    /// Other managers hold fields that would change.
    Conflict {
        /// Who holds what.
        fields: Vec<FieldConflict>,
        /// How the object would look if they were taken over.
        forced: Option<Live>,
        /// Why they cannot be taken over; none where they can, or where nobody asked.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        refused: Option<ApiRefusal>,
        /// The fields that cannot change, where that is why.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        immutable: Vec<FieldPath>,
    },
    /// These fields cannot change; only a new object would do.
    Immutable {
        /// The fields.
        fields: Vec<FieldPath>,
        /// Why the server would not take the new object either; none when it
        /// would, or could not be asked.
        refused: Option<ApiRefusal>,
    },
    /// The server refuses it.
    Refused(ApiRefusal),
    /// The server could not be asked.
    Unverified(Unverified),
}

/// A field that another manager holds.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct FieldConflict {
    /// The other field manager.
    pub manager: String,
    /// The API version it wrote with, where the server says it.
    pub api_version: Option<String>,
    /// The field as the server names it, such as `.spec.replicas`.
    pub field: String,
}

/// A refusal of the API server, in its own words.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ApiRefusal {
    /// HTTP status.
    pub code: u16,
    /// Reason of the Status object; empty where there is none.
    pub reason: String,
    /// The message; for secret objects without the values.
    pub message: String,
}

/// Why the server could not check an object yet.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Unverified {
    /// Its namespace comes in an earlier stage.
    NamespaceMissing(String),
    /// Its kind comes in an earlier stage.
    KindMissing,
    /// The role that it binds comes before it.
    RoleMissing(String),
    /// Its API is registered but does not answer.
    ApiStale,
    /// A webhook does not support dry runs, or is down.
    Webhook(String),
    /// It is refused by what is replaced before it is applied.
    Former(String),
    /// Its record of owners names a version at which the server cannot read what
    /// is wanted; the record is changed when it is applied.
    Recorded(String),
    /// A gate that a former run closed refuses it: this plan closes it again so that it
    /// does not, or lifts it.
    Gate(String),
    /// An offline preview has no server to ask.
    Offline,
}

impl fmt::Display for Unverified {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NamespaceMissing(name) => write!(f, "namespace {name} does not exist yet"),
            Self::KindMissing => f.write_str("its kind is not served yet"),
            Self::RoleMissing(name) => write!(f, "role {name} does not exist yet"),
            Self::ApiStale => f.write_str("its API does not answer"),
            Self::Webhook(message) => write!(f, "a webhook could not be asked: {message}"),
            Self::Former(message) => write!(
                f,
                "refused by the former version, which is replaced before: {message}"
            ),
            Self::Recorded(message) => write!(
                f,
                "its record of owners names another version, and is changed before: {message}"
            ),
            Self::Gate(name) => write!(f, "gate {name} of a former run is closed"),
            Self::Offline => f.write_str("no cluster was asked"),
        }
    }
}

impl ApiRefusal {
    /// Whether a check of the cluster's own refuses the object that it looked at: a
    /// webhook, an admission policy, a quota, pod security. They choose their HTTP
    /// status themselves.
    pub fn is_by_admission(&self) -> bool {
        let says = |start: &str, end: &str| {
            let rest = self.message.split_once(start).map(|(_, rest)| rest);
            rest.is_some_and(|rest| rest.contains(end))
        };
        // `User "x" cannot …` comes from who looks at the right alone.
        let is_about_rights = says("User \"", " cannot ")
            || Escalation::hint_of(&self.message).is_some()
            || self.message.contains("because it is being terminated");
        says("admission webhook \"", "\" denied the request")
            || says("ValidatingAdmissionPolicy '", "' denied request")
            || (self.code == 403 && self.message.contains(" is forbidden: ") && !is_about_rights)
    }
}

impl Observed {
    /// A cluster of which nothing is known but what it is and what it serves.
    pub fn of(
        cluster: ClusterId,
        server_version: String,
        discovery: Discovery,
        at: Timestamp,
    ) -> Self {
        Self {
            at,
            cluster,
            server_version,
            discovery,
            listings: BTreeMap::new(),
            meta: BTreeMap::new(),
            full: BTreeMap::new(),
            predicted: BTreeMap::new(),
            adopted: BTreeMap::new(),
            unadoptable: BTreeMap::new(),
            owners: Vec::new(),
            registrations: Vec::new(),
            backends: BTreeMap::new(),
            conversions: BTreeMap::new(),
            contents: BTreeMap::new(),
            instances: BTreeMap::new(),
            checked: BTreeMap::new(),
            hindrances: Vec::new(),
            focus: None,
            surroundings: None,
            access: Grants::default(),
            installed: None,
            inventory: Inventory::default(),
            found: BTreeMap::new(),
            journal: Journal::default(),
            former: None,
            inherited: None,
            copies: BTreeSet::new(),
            owned: BTreeMap::new(),
            targets: BTreeMap::new(),
        }
    }

    /// Returns the recorded policies that hold for the release: its own, and that of the
    /// release whose objects are handed over to it.
    pub fn policies(&self) -> impl Iterator<Item = &Memory> {
        let record = self.installed.as_ref();
        let own = record.and_then(|record| record.memory.as_ref());
        own.into_iter().chain(&self.inherited)
    }

    /// Recognizes the fields that were ours alone after the last apply, in the answers
    /// to dry runs. Without a key nothing is recognized.
    pub fn recognize_fields(&mut self, manager: &str, key: Option<&DigestKey>) {
        let Some(key) = key else {
            return;
        };
        for (id, prediction) in &self.predicted {
            let (Prediction::Answer(after)
            | Prediction::Conflict {
                forced: Some(after),
                ..
            }) = prediction
            else {
                continue;
            };
            let entry = self.inventory.entries.get(id);
            if let Some(entry) = entry.filter(|entry| !entry.fields.is_empty()) {
                let key = FieldKey { id, key };
                let before = entry.fields.recognize(after.value(), manager, key);
                self.owned.insert(id.clone(), before);
            }
        }
    }

    /// Whether the view of a kind is good enough to conclude that something is absent.
    pub fn is_complete(&self, id: &ObjectId) -> bool {
        let (all, own) = self.views(id);
        all == Some(&Listing::Complete) || own == Some(&Listing::Complete)
    }

    /// Whether a namespace was looked for in vain, because we may not read it.
    pub fn hides_namespace(&self, name: &str) -> bool {
        let id = ObjectId::new("", "Namespace", None, name);
        let (_, own) = self.views(&id);
        self.live_meta(&id).is_none() && matches!(own, Some(Listing::Forbidden(_)))
    }

    /// What was seen of an object's kind: everywhere, and where the object is.
    fn views(&self, id: &ObjectId) -> (Option<&Listing>, Option<&Listing>) {
        let [all, own] = ListingKey::of(id).map(|key| self.listings.get(&key));
        (all, own)
    }

    /// What is known of a live object, from whichever read brought it.
    pub fn live_meta(&self, id: &ObjectId) -> Option<&LiveMeta> {
        self.full
            .get(id)
            .map(Live::meta)
            .or_else(|| self.meta.get(id))
    }
}

/// The digest that is written for an object: keyed for secrets, plain otherwise.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum DesiredDigest {
    /// The digest.
    Known(Digest),
    /// A secret object before the key exists.
    Unkeyed,
}

impl DesiredDigest {
    /// The digest that is written for a manifest: keyed where it holds secrets.
    pub fn of(manifest: &Manifest, key: Option<&DigestKey>) -> Self {
        match (manifest.is_secret(), key) {
            (false, _) => Self::Known(manifest.digest()),
            (true, Some(key)) => Self::Known(Digest::keyed(key, manifest.json())),
            (true, None) => Self::Unkeyed,
        }
    }
}
