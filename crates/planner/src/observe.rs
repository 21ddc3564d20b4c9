//! Observed state of a cluster: the input of the planner.
//!
//! All types are serializable, so that a bug report can be used as a fixture. [`Live`] masks the
//! values of Secrets when it is serialized.

mod contents;
mod drift_candidates;
mod escalation;
mod missing_permissions;
mod nodes;
mod previous;
mod registration;
mod rendered;
mod workload_context;

pub use contents::{Content, Contents};
pub use drift_candidates::{Known, Reading, is_unchanged, triage};
pub use escalation::Escalation;
pub use missing_permissions::{Grants, MissingGrant, MissingRule, copyable, rules};
pub use nodes::{MarkedNode, MarkedNodes, ObservedNodes};
pub use previous::PreviousRelease;
pub use registration::{Backend, Lack, Registration};
pub use registration::{asks_url, available};
pub use rendered::Base;
pub use workload_context::{Budget, Node, WorkloadContext};

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::crd::Instances;
use crate::plan::BaseSecrets;
use pleach_config::dependencies::Hindrance;
use pleach_formats::check::CheckOutcome;
use pleach_model::discovery::Discovery;
use pleach_model::foreign_tools::KnownOwner;
use pleach_model::object::{DigestKey, FieldPath, GroupKind, ObjectId, ServiceRef};
use pleach_state::inventory::{
    Entry, FieldKey, Installed, Inventory, Journal, Memory, OwnedBefore,
};
use pleach_state::live::{Live, LiveMeta};

/// Cluster id: the uid of the namespace `kube-system`. If state is stored in ConfigMaps, it is the
/// uid of their namespace.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct ClusterId(pub String);

impl fmt::Display for ClusterId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// All facts that the planner has about the cluster.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Observed {
    /// Time of the observation.
    pub at: Timestamp,
    /// Cluster id.
    pub cluster: ClusterId,
    /// Version of the API server, such as `v1.36.3`.
    pub server_version: String,
    /// APIs that the server serves.
    pub discovery: Discovery,
    /// Outcome of each LIST. The only evidence that an object is absent (I1).
    pub listings: BTreeMap<ListingKey, Listing>,
    /// Metadata of existing members and desired objects, from metadata LISTs and reads by name.
    pub meta: BTreeMap<ObjectId, LiveMeta>,
    /// Objects read in full: only what changed or what a pass reasons about.
    pub full: BTreeMap<ObjectId, Live>,
    /// Dry-run results of the desired objects that changed.
    pub predicted: BTreeMap<ObjectId, Prediction>,
    /// Preview of each adoption candidate after adoption: fields that only previous tools own are
    /// dropped. Only for candidates that the server could dry-run.
    pub adopted: BTreeMap<ObjectId, Live>,
    /// Failed dry runs of `adopted`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub unadoptable: BTreeMap<ObjectId, Prediction>,
    /// Owners of adoption candidates, as other deployment tools report them.
    pub owners: Vec<KnownOwner>,
    /// APIServices and webhook configurations that point at a Service.
    pub registrations: Vec<Registration>,
    /// Backends of the Services that registrations point at. Read only if the plan has steps.
    pub backends: BTreeMap<ServiceRef, Backend>,
    /// Conversion Services of CRDs that git no longer contains. Read only if a Service is deleted
    /// too.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub conversions: BTreeMap<ObjectId, Vec<ServiceRef>>,
    /// Contents of the namespaces that the plan would delete, by name.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub contents: BTreeMap<String, Contents>,
    /// Custom resources of CRDs whose change can lose data.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub instances: BTreeMap<ObjectId, Instances>,
    /// Results of the bundle's checks, by name. Read only before a change of the release.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub checked: BTreeMap<String, CheckOutcome>,
    /// Objects that a `blockUninstall` rule of the record finds, by the index of the rule. Read only
    /// before an uninstall.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub blocking: BTreeMap<usize, CheckOutcome>,
    /// State of the dependencies, by their index in `dependsOn`. `None` for a ready one. Read only
    /// before a change of the release.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub dependencies: BTreeMap<usize, Option<Hindrance>>,
    /// Releases that depend on this one. Read only before an uninstall.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dependents: Option<Vec<Hindrance>>,
    /// Objects that were read in a partial observation. All other objects are as recorded. `None`
    /// for a full observation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub focus: Option<BTreeSet<ObjectId>>,
    /// Workload context. Read only before workloads are written.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workload_context: Option<WorkloadContext>,
    /// Nodes that stages change, by the name of the stage. Read only before a change of the release.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub nodes: BTreeMap<String, ObservedNodes>,
    /// Nodes with a mark of the release. Read only if it changed nodes before, ahead of a change of
    /// the release and of an uninstall.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub marked_nodes: Option<MarkedNodes>,
    /// Permissions that pleach lacks. `None` if they were not checked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub access: Option<Grants>,
    /// State of the Release object. `None` on first use.
    pub installed: Option<Installed>,
    /// The members of the release.
    pub inventory: Inventory,
    /// Existing runtime objects that the bundle declares and that are not recorded yet, as their
    /// future entries.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub found: BTreeMap<ObjectId, Entry>,
    /// Work that a previous run left.
    pub journal: Journal,
    /// Previous release that hands over its objects, if git no longer contains it. Read only before
    /// a change of the release.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub previous: Option<PreviousRelease>,
    /// Recorded policy of the release that hands over its objects. `None` without such a release.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub inherited: Option<Memory>,
    /// User resources to copy from the old namespace of a release that moves. Contains only those
    /// that the bundle does not name one by one. Read only before a move.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub copies: BTreeSet<ObjectId>,
    /// Fields that only pleach owned after the last apply, of objects with a dry run. Only if the
    /// record has digests of fields.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub owned: BTreeMap<ObjectId, OwnedBefore>,
    /// Targets of temporary changes and restarts, also in other releases, and roles that the
    /// release's workloads create. Read only before a change of the release, or if a previous run
    /// left work.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub targets: BTreeMap<ObjectId, Live>,
}

/// Scope of a LIST: a kind, in all namespaces or in one.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct ListingKey {
    /// The kind.
    pub kind: GroupKind,
    /// Namespace. `None` for all namespaces and for cluster-scoped kinds. For kind Namespace: the
    /// namespace that was read by name.
    pub namespace: Option<String>,
}

impl ListingKey {
    /// Returns the keys that can prove the absence of an object: its kind in all namespaces, and
    /// its kind in its own namespace. A namespace is read by its name.
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
        // The text is an object id whose name part is the namespace.
        let id: ObjectId = text.parse().map_err(serde::de::Error::custom)?;
        Ok(Self {
            kind: id.group_kind(),
            namespace: (id.name != "*").then_some(id.name.clone()),
        })
    }
}

/// Outcome of a LIST.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Listing {
    /// All pages were read. A missing object is unlabeled or absent.
    Complete,
    /// The kind is not served. Its objects can still exist.
    NotServed,
    /// pleach is not allowed to list the kind.
    Forbidden(String),
    /// The LIST failed, so no conclusion is possible.
    Failed(String),
}

/// Result of a server-side dry run of a desired object.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Prediction {
    /// The object would be created. Its generated values are not stored.
    Creates,
    /// The resulting object.
    Answer(Live),
    /// Other field managers own fields that would change.
    Conflict {
        /// The conflicting fields and their managers.
        fields: Vec<FieldConflict>,
        /// The resulting object if pleach took ownership of these fields.
        forced: Option<Live>,
        /// Refusal of the forced apply. `None` if it is accepted or was not tried.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        refused: Option<ApiRefusal>,
        /// Immutable fields, if they are the reason of the refusal.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        immutable: Vec<FieldPath>,
    },
    /// Immutable fields would change. Only a recreated object could have the new values.
    Immutable {
        /// The fields.
        fields: Vec<FieldPath>,
        /// Refusal of the recreated object. `None` if it is accepted or was not tried.
        refused: Option<ApiRefusal>,
    },
    /// The server refuses the object.
    Refused(ApiRefusal),
    /// The dry run was not possible.
    Unverified(Unverified),
}

/// A field that another manager owns.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct FieldConflict {
    /// The other field manager.
    pub manager: String,
    /// API version that the manager wrote with, if the server reports it.
    pub api_version: Option<String>,
    /// The field as the server writes it, such as `.spec.replicas`.
    pub field: String,
}

/// A refusal of the API server, verbatim.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ApiRefusal {
    /// HTTP status.
    pub code: u16,
    /// Reason of the Status object. Empty if absent.
    pub reason: String,
    /// Message of the server, without values for secret objects.
    pub message: String,
}

/// Reason why the server could not check an object yet.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Unverified {
    /// An earlier stage creates its namespace.
    NamespaceMissing(String),
    /// An earlier stage creates its kind.
    KindMissing,
    /// An earlier step creates the role that it binds.
    RoleMissing(String),
    /// Its API is registered but does not answer.
    ApiStale,
    /// A webhook does not support dry runs, or is down.
    Webhook(String),
    /// The previous version refuses the object, and an earlier step replaces that version.
    PreviousRelease(String),
    /// Its `managedFields` name an API version at which the server cannot read the desired object.
    /// The apply corrects `managedFields`.
    Recorded(String),
    /// A gate that a previous run closed refuses the object. This plan either lifts the gate or
    /// closes it with new terms that accept the object.
    Gate(String),
    /// An offline preview has no server.
    Offline,
}

impl fmt::Display for Unverified {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NamespaceMissing(name) => write!(f, "namespace {name} does not exist yet"),
            Self::KindMissing => f.write_str("its kind is not served yet"),
            Self::RoleMissing(name) => write!(f, "role {name} does not exist yet"),
            Self::ApiStale => f.write_str("its API does not answer"),
            Self::Webhook(message) => write!(f, "a webhook could not be called: {message}"),
            Self::PreviousRelease(message) => write!(
                f,
                "refused by the previous version, which is replaced first: {message}"
            ),
            Self::Recorded(message) => write!(
                f,
                "its managedFields name another API version, and are corrected first: {message}"
            ),
            Self::Gate(name) => write!(f, "gate {name} of a previous run is closed"),
            Self::Offline => f.write_str("no cluster was queried"),
        }
    }
}

impl ApiRefusal {
    /// Returns whether admission refused the object: a webhook, an admission policy, a quota or pod
    /// security. The HTTP status is no indication, because they choose it themselves.
    pub fn is_by_admission(&self) -> bool {
        let contains = |start: &str, end: &str| {
            let rest = self.message.split_once(start).map(|(_, rest)| rest);
            rest.is_some_and(|rest| rest.contains(end))
        };
        // `User "x" cannot …` comes from authorization, not admission.
        let is_from_authorization = contains("User \"", " cannot ")
            || Escalation::hint_of(&self.message).is_some()
            || self.message.contains("because it is being terminated");
        contains("admission webhook \"", "\" denied the request")
            || contains("ValidatingAdmissionPolicy '", "' denied request")
            || (self.code == 403
                && self.message.contains(" is forbidden: ")
                && !is_from_authorization)
    }
}

impl Observed {
    /// Creates an observation with only the cluster's identity and its APIs.
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
            blocking: BTreeMap::new(),
            dependencies: BTreeMap::new(),
            dependents: None,
            focus: None,
            workload_context: None,
            nodes: BTreeMap::new(),
            marked_nodes: None,
            access: None,
            installed: None,
            inventory: Inventory::default(),
            found: BTreeMap::new(),
            journal: Journal::default(),
            previous: None,
            inherited: None,
            copies: BTreeSet::new(),
            owned: BTreeMap::new(),
            targets: BTreeMap::new(),
        }
    }

    /// Returns the recorded policies that apply to the release: its own, and that of a release that
    /// hands over its objects.
    pub fn policies(&self) -> impl Iterator<Item = &Memory> {
        let record = self.installed.as_ref();
        let own = record.and_then(|record| record.memory.as_ref());
        own.into_iter().chain(&self.inherited)
    }

    /// Returns the dependencies that are not ready, and the dependents.
    pub fn hindrances(&self) -> impl Iterator<Item = &Hindrance> {
        let dependencies = self.dependencies.values().flatten();
        dependencies.chain(self.dependents.iter().flatten())
    }

    /// Finds the fields in dry-run answers that only pleach owned after the last apply. Does
    /// nothing without a key.
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

    /// Masks the secret fields that the base of a preview declares, in all live objects.
    pub fn hide(&mut self, secrets: &BaseSecrets) {
        let Self {
            full,
            predicted,
            adopted,
            unadoptable,
            targets,
            ..
        } = self;
        for (id, live) in full.iter_mut().chain(adopted).chain(targets) {
            live.hide(&secrets.of_object(id));
        }
        for (id, prediction) in predicted.iter_mut().chain(unadoptable) {
            // The server was asked before it was known that pleach manages the object.
            if let Prediction::Refused(why)
            | Prediction::Conflict {
                refused: Some(why), ..
            }
            | Prediction::Immutable {
                refused: Some(why), ..
            } = prediction
                && secrets.is_unknown(id)
            {
                "the server refuses the object".clone_into(&mut why.message);
            }
            if let Prediction::Answer(live)
            | Prediction::Conflict {
                forced: Some(live), ..
            } = prediction
            {
                live.hide(&secrets.of_object(id));
            }
        }
    }

    /// Returns whether the view of an object's kind is complete enough to prove its absence.
    pub fn is_complete(&self, id: &ObjectId) -> bool {
        let (all, own) = self.views(id);
        all == Some(&Listing::Complete) || own == Some(&Listing::Complete)
    }

    /// Returns whether a namespace is unknown because pleach is not allowed to read it.
    pub fn hides_namespace(&self, name: &str) -> bool {
        let id = ObjectId::new("", "Namespace", None, name);
        let (_, own) = self.views(&id);
        self.live_meta(&id).is_none() && matches!(own, Some(Listing::Forbidden(_)))
    }

    /// Returns the LIST outcomes of an object's kind: in all namespaces, and in the object's
    /// namespace.
    fn views(&self, id: &ObjectId) -> (Option<&Listing>, Option<&Listing>) {
        let [all, own] = ListingKey::of(id).map(|key| self.listings.get(&key));
        (all, own)
    }

    /// Returns the metadata of a live object, from the full read if there is one.
    pub fn live_meta(&self, id: &ObjectId) -> Option<&LiveMeta> {
        self.full
            .get(id)
            .map(Live::meta)
            .or_else(|| self.meta.get(id))
    }
}
