//! Diagnoses problems of a cluster and suggests repairs.
//!
//! [`diagnose`] examines the whole cluster, including objects that pleach did not install. It finds
//! registrations of missing Services, APIs that do not answer, deletions that do not finish, and
//! objects of pleach that no inventory contains. This module neither reads nor changes the cluster.
//! [`Diagnosis::deletion`] decides, from the evidence, which objects `--fix` is allowed to delete.

mod absence;
mod dead;
mod deletions;
mod effect;
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

use pleach_model::discovery::Discovery;
use pleach_model::finding::Severity;
use pleach_model::object::{ObjectId, ServiceRef};
use pleach_planner::observe::{Backend, MissingGrant};
use pleach_planner::plan::Evidence;
use pleach_state::inventory::{Inventory, ReleaseSummary};

pub use absence::{Workload, missing_controllers, waits_for_controller};
pub use deletions::Refusal;
pub use gate::{Gate, LeaseState};
pub use namespace::{Leaving, Remaining};
pub use registration::{Crd, Registered, Role, Rule, Webhook};
pub use standing::Standing;
pub use subject::{OtherTool, Owner, Subject, Write};

/// Observed state of a cluster, the input of the diagnosis.
#[derive(Debug, Clone, Default)]
pub struct Observations {
    /// Time of the observation.
    pub at: Timestamp,
    /// API groups that the server serves.
    pub discovery: Discovery,
    /// Objects that register Services.
    pub registrations: Vec<Registered>,
    /// Backends of those Services. A Service that could not be read is missing.
    pub backends: BTreeMap<ServiceRef, Backend>,
    /// Admission policies of pleach that act as gates.
    pub gates: Vec<Gate>,
    /// Temporary changes that journals of releases contain.
    pub standing: Vec<Standing>,
    /// Namespaces that are being deleted.
    pub namespaces: Vec<Leaving>,
    /// Objects that are being deleted. Also objects that claim membership of a release, but are in
    /// no readable inventory.
    pub objects: Vec<Subject>,
    /// Workloads of the cluster, to find controllers of finalizers. `None` if they were not read or
    /// not all of them could be read.
    pub workloads: Option<Vec<Workload>>,
    /// Releases of pleach, with their members if the inventory could be read.
    pub releases: Vec<KnownRelease>,
    /// Whether [`Observations::releases`] is complete.
    pub releases_are_complete: bool,
    /// RBAC permissions that pleach lacks.
    pub missing: Vec<MissingGrant>,
    /// Parts of the cluster that could not be read.
    pub gaps: Vec<Gap>,
}

/// A release with its members.
#[derive(Debug, Clone)]
pub struct KnownRelease {
    /// Summary of the release from its stored state.
    pub summary: ReleaseSummary,
    /// Members of the release, or the reason why they could not be read.
    pub inventory: Result<Inventory, String>,
}

/// A part of the cluster that could not be read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Gap {
    /// Name of the part.
    pub what: String,
    /// Reason of the failure.
    pub why: String,
    /// Whether the read was forbidden, which is no fault of the cluster.
    pub forbidden: bool,
}

/// A problem in the cluster.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Diagnosis {
    /// Stable code for programs.
    pub code: Code,
    /// Severity of the problem.
    pub severity: Severity,
    /// The affected object. `None` for a problem of the whole cluster.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub object: Option<ObjectId>,
    /// Description: a sentence fragment in lower case without a period.
    pub message: String,
    /// Owner of the object.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub owner: Option<Owner>,
    /// Consequences of the problem.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub breaks: Vec<String>,
    /// Further affected objects.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub related: Vec<ObjectId>,
    /// Advice on the repair.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hint: Option<String>,
    /// Command that repairs the problem or shows the cause.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub command: Option<String>,
    /// Evidence for a deletion. Set if `--fix` is allowed to delete the object.
    #[serde(rename = "fixable", serialize_with = "is_some")]
    evidence: Option<Evidence>,
}

#[expect(clippy::ref_option, reason = "serde hands the field over like this")]
fn is_some<S: Serializer>(evidence: &Option<Evidence>, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_bool(evidence.is_some())
}

/// Code of a diagnosis. The texts are part of the interface.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Code {
    /// A registration refers to a Service that does not exist.
    ServiceMissing,
    /// A registration refers to a Service without ready endpoints.
    ServiceWithoutEndpoints,
    /// An aggregated API is not available for another reason.
    ApiUnavailable,
    /// A gate belongs to an upgrade that is no longer executed.
    GateAbandoned,
    /// A temporary change belongs to an upgrade that is no longer executed.
    OverlayAbandoned,
    /// Discovery of a group-version is stale, and no `APIService` explains it.
    DiscoveryStale,
    /// The deletion of a namespace makes no progress.
    NamespaceStuck,
    /// The deletion of an object waits for a finalizer.
    ObjectStuck,
    /// An object claims membership of a release, but is in no inventory.
    Orphan,
    /// Objects are members of a release that no longer exists.
    ReleaseLost,
    /// A release is not ready.
    ReleaseNotReady,
    /// The record or the inventory of a release cannot be read.
    ReleaseUnreadable,
    /// pleach lacks a required permission.
    RightMissing,
    /// A part of the cluster could not be read.
    NotExamined,
}

impl Code {
    /// All codes.
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
    /// Creates a diagnosis without owner, advice and evidence.
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

    /// Returns whether `--fix` is allowed to delete the object.
    pub fn is_fixable(&self) -> bool {
        self.evidence.is_some()
    }

    /// Returns the evidence that allows a deletion of the object.
    pub fn evidence(&self) -> Option<&Evidence> {
        self.evidence.as_ref()
    }
}

/// Returns all diagnoses, in descending order of severity.
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
    limits::permissions(observations, &mut diagnoses);
    diagnoses.sort_by(|a, b| {
        let key = |d: &Diagnosis| (std::cmp::Reverse(d.severity), d.code, d.object.clone());
        key(a).cmp(&key(b)).then_with(|| a.message.cmp(&b.message))
    });
    diagnoses
}
