//! What is wrong with a cluster, and what repairs it.
//!
//! [`diagnose`] looks at a whole cluster, whoever installed what: leftovers
//! that are found by what they point at, APIs that do not answer, deletions
//! that do not end, objects of pleach that no inventory has. It reads nothing
//! and changes nothing; what `--fix` may delete is decided here too, by
//! [`Diagnosis::deletion`], which takes the evidence of the diagnosis.

mod absence;
mod dead;
mod effect;
mod evidence;
mod gate;
mod limits;
mod membership;
mod namespace;
mod registration;
mod standing;
mod stuck;
mod subject;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::fmt;

use jiff::Timestamp;
use serde::{Serialize, Serializer};

use crate::finding::Severity;
use crate::inventory::{Inventory, ReleaseSummary};
use crate::object::{ObjectId, ServiceRef};
use crate::observe::{Backend, Discovery, MissingGrant};

pub use absence::{Workload, missing_controllers, waits_for_controller};
pub use evidence::{Evidence, Proof, Refusal};
pub use gate::{Gate, Holding};
pub use namespace::{Leaving, Remaining};
pub use registration::{Definition, Registered, Role, Rule, Webhook};
pub use standing::Standing;
pub(crate) use stuck::address;
pub use subject::{Deployer, Owner, Subject, Write};

/// Everything that the doctor knows of a cluster.
#[derive(Debug, Clone, Default)]
pub struct Observations {
    /// When it was looked at.
    pub at: Timestamp,
    /// What the server serves.
    pub discovery: Discovery,
    /// What points at Services.
    pub registrations: Vec<Registered>,
    /// What stands behind those Services; one that could not be read is not in it.
    pub backends: BTreeMap<ServiceRef, Backend>,
    /// Admission policies of pleach that close something.
    pub gates: Vec<Gate>,
    /// Temporary changes that releases have on record.
    pub standing: Vec<Standing>,
    /// Namespaces that are being deleted.
    pub namespaces: Vec<Leaving>,
    /// Objects that are being deleted, and those that claim to be members of a
    /// release and are in no inventory that could be read.
    pub objects: Vec<Subject>,
    /// The workloads of the cluster, where some of those objects wait for a
    /// controller; none where they were not looked at, or not all of them.
    pub workloads: Option<Vec<Workload>>,
    /// The releases of pleach, and their members where those could be read.
    pub releases: Vec<KnownRelease>,
    /// Whether [`Observations::releases`] is all there is.
    pub releases_are_complete: bool,
    /// Rights that pleach lacks.
    pub missing: Vec<MissingGrant>,
    /// What could not be looked at.
    pub gaps: Vec<Gap>,
}

/// A release with its members.
#[derive(Debug, Clone)]
pub struct KnownRelease {
    /// What its Release object says.
    pub summary: ReleaseSummary,
    /// Its members, or why they could not be read.
    pub inventory: Result<Inventory, String>,
}

/// Something that could not be looked at.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Gap {
    /// What was to be read.
    pub what: String,
    /// How that failed.
    pub why: String,
    /// Whether we may not: that is a matter of rights, not of the cluster.
    pub forbidden: bool,
}

/// One thing that is wrong.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Diagnosis {
    /// What it is, for programs.
    pub code: Code,
    /// How bad it is.
    pub severity: Severity,
    /// The object it is about; none for what is about the whole cluster.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub object: Option<ObjectId>,
    /// What is wrong: a sentence fragment in lower case without a period.
    pub message: String,
    /// Whose the object is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub owner: Option<Owner>,
    /// What it breaks.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub breaks: Vec<String>,
    /// Objects that it is about too.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub related: Vec<ObjectId>,
    /// What to know before it is repaired.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hint: Option<String>,
    /// The command that repairs it, or that shows what has to be repaired.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub command: Option<String>,
    /// Set where `--fix` may delete the object.
    #[serde(rename = "fixable", serialize_with = "is_some")]
    evidence: Option<Evidence>,
}

#[expect(clippy::ref_option, reason = "serde hands the field over like this")]
fn is_some<S: Serializer>(evidence: &Option<Evidence>, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_bool(evidence.is_some())
}

/// What a diagnosis is about. The texts are part of the interface.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Code {
    /// A registration points at a Service that does not exist.
    ServiceMissing,
    /// A registration points at a Service without ready endpoints.
    ServiceWithoutEndpoints,
    /// An aggregated API is not available for another reason.
    ApiUnavailable,
    /// A gate of an upgrade that nobody carries out any more.
    GateAbandoned,
    /// A temporary change of an upgrade that nobody carries out any more.
    OverlayAbandoned,
    /// Discovery of a group-version is stale, and no `APIService` says why.
    DiscoveryStale,
    /// The deletion of a namespace does not get on.
    NamespaceStuck,
    /// The deletion of an object waits for a finalizer.
    ObjectStuck,
    /// An object claims to be a member of a release and is in no inventory.
    Orphan,
    /// Objects are members of a release that no longer exists.
    ReleaseLost,
    /// A release is not ready.
    ReleaseNotReady,
    /// The record or the inventory of a release cannot be read.
    ReleaseUnreadable,
    /// pleach may not do what it needs to.
    RightMissing,
    /// Something could not be looked at.
    NotExamined,
}

impl Code {
    /// Every code.
    pub const ALL: [Self; 14] = [
        Self::ServiceMissing,
        Self::ServiceWithoutEndpoints,
        Self::ApiUnavailable,
        Self::GateAbandoned,
        Self::OverlayAbandoned,
        Self::DiscoveryStale,
        Self::NamespaceStuck,
        Self::ObjectStuck,
        Self::Orphan,
        Self::ReleaseLost,
        Self::ReleaseNotReady,
        Self::ReleaseUnreadable,
        Self::RightMissing,
        Self::NotExamined,
    ];
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::ServiceMissing => "service-missing",
            Self::ServiceWithoutEndpoints => "service-without-endpoints",
            Self::ApiUnavailable => "api-unavailable",
            Self::GateAbandoned => "gate-abandoned",
            Self::OverlayAbandoned => "overlay-abandoned",
            Self::DiscoveryStale => "discovery-stale",
            Self::NamespaceStuck => "namespace-stuck",
            Self::ObjectStuck => "object-stuck",
            Self::Orphan => "orphan",
            Self::ReleaseLost => "release-lost",
            Self::ReleaseNotReady => "release-not-ready",
            Self::ReleaseUnreadable => "release-unreadable",
            Self::RightMissing => "right-missing",
            Self::NotExamined => "not-examined",
        })
    }
}

impl Diagnosis {
    /// Starts a diagnosis.
    fn new(
        code: Code,
        severity: Severity,
        object: Option<ObjectId>,
        message: impl Into<String>,
    ) -> Self {
        Self {
            code,
            severity,
            object,
            message: message.into(),
            owner: None,
            breaks: Vec::new(),
            related: Vec::new(),
            hint: None,
            command: None,
            evidence: None,
        }
    }

    /// Whether `--fix` may delete the object.
    pub fn is_fixable(&self) -> bool {
        self.evidence.is_some()
    }

    /// What proves that the object may be deleted.
    pub fn evidence(&self) -> Option<&Evidence> {
        self.evidence.as_ref()
    }
}

/// Looks at everything, the worst first.
pub fn diagnose(observations: &Observations) -> Vec<Diagnosis> {
    let mut diagnoses = Vec::new();
    dead::registrations(observations, &mut diagnoses);
    dead::discovery(observations, &mut diagnoses);
    gate::gates(observations, &mut diagnoses);
    standing::overlays(observations, &mut diagnoses);
    stuck::namespaces(observations, &mut diagnoses);
    stuck::objects(observations, &mut diagnoses);
    membership::orphans(observations, &mut diagnoses);
    membership::releases(observations, &mut diagnoses);
    limits::gaps(observations, &mut diagnoses);
    limits::rights(observations, &mut diagnoses);
    diagnoses.sort_by(|a, b| {
        let key = |d: &Diagnosis| (std::cmp::Reverse(d.severity), d.code, d.object.clone());
        key(a).cmp(&key(b)).then_with(|| a.message.cmp(&b.message))
    });
    diagnoses
}
