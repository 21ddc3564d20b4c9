//! Data types of a plan.

mod base_secrets;
mod configuration;
mod desired;
mod op;
mod prior_releases;

pub use base_secrets::BaseSecrets;
pub(crate) use base_secrets::secrecy_of_kinds;
pub use desired::{Desired, Digests, Policy, Terms};
pub use op::{Body, DriverObjects, Op, Own};
pub use prior_releases::PriorReleases;

use std::collections::BTreeMap;
use std::fmt;

use jiff::SignedDuration;
use serde::{Deserialize, Serialize};

use super::FORMAT;
use pleach_fields::diff::Cause;
use pleach_formats::sequence::Count;
use pleach_model::finding::{Finding, Kind};
use pleach_model::object::{
    DesiredDigest, Digest, FieldPath, GroupKind, Gvk, ObjectId, ReleaseName, ServiceRef,
};
use pleach_model::order::{Direction, StageName};
use pleach_state::inventory::Override;
use pleach_state::overlay::{OnFailure, OverlayContent, OverlayId, OverlayKind};

/// An ordered set of steps, and the resulting change of every object.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Plan {
    /// Version of this format.
    pub format: u32,
    /// Environment and release.
    pub release: ReleaseName,
    /// Installed version; `None` for a new release.
    pub from: Option<String>,
    /// Desired version.
    pub to: String,
    /// Direction of the version change.
    pub direction: Direction,
    /// Changes of all objects of the release, including unchanged ones.
    pub changes: Vec<Change>,
    /// Stages in order, without empty ones.
    pub stages: Vec<Stage>,
    /// Steps, sorted by stage, kind order, namespace, name.
    pub steps: Vec<Step>,
    /// Temporary changes.
    pub overlays: Vec<Overlay>,
    /// Objects that the bundle assigns to a stage. The inventory records them.
    #[serde(skip)]
    pub assigned: BTreeMap<ObjectId, StageName>,
    /// Failed checks that a consent overrides for this plan.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub overrides: Vec<Override>,
    /// Set if the plan uninstalls the release.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub removal: Option<Outgoing>,
    /// All findings. With an error that is a refusal, nothing is written.
    pub findings: Vec<Finding>,
}

impl Plan {
    /// Creates an empty plan for a release that is not installed.
    pub fn new(release: ReleaseName, to: impl Into<String>) -> Self {
        Self {
            format: FORMAT,
            release,
            from: None,
            to: to.into(),
            direction: Direction::Forward,
            changes: Vec::new(),
            stages: Vec::new(),
            steps: Vec::new(),
            overlays: Vec::new(),
            assigned: BTreeMap::new(),
            overrides: Vec::new(),
            removal: None,
            findings: Vec::new(),
        }
    }

    /// Returns whether executing the plan would change anything.
    pub fn has_steps(&self) -> bool {
        self.steps.iter().any(|step| !matches!(step.op, Op::Wait))
    }

    /// Returns whether the plan continues a change of nodes after its pause. In
    /// the controller such a plan needs an approval.
    pub fn continues_after_pause(&self) -> bool {
        let mut findings = self.findings.iter();
        findings.any(|finding| finding.code == super::nodes::AFTER_PAUSE)
    }

    /// Returns whether the plan waits for readiness of the release: it contains
    /// the barrier that precedes pruning.
    pub fn verifies(&self) -> bool {
        self.steps
            .iter()
            .any(|step| step.stage == StageName::Verify && step.object.is("pleach.dev", "Release"))
    }

    /// Returns the findings that forbid executing the plan. Findings that block
    /// only one object (conflicts, an API that does not answer) are not
    /// refusals.
    pub fn refusals(&self) -> impl Iterator<Item = &Finding> {
        self.findings.iter().filter(|finding| is_refusal(finding))
    }

    /// Returns whether objects are blocked and no step is left to execute.
    pub fn is_stuck(&self) -> bool {
        !self.has_steps() && self.count(Action::Blocked) > 0
    }

    /// Returns the temporary change that a step sets or lifts.
    pub fn overlay_of(&self, step: &Step) -> Option<&Overlay> {
        let id = step.overlay.as_ref()?;
        self.overlays.iter().find(|overlay| overlay.id == *id)
    }

    /// Returns whether a step closes or lifts a gate.
    pub fn is_of_gate(&self, step: &Step) -> bool {
        self.overlay_of(step).is_some_and(Overlay::is_gate)
    }

    /// Counts the objects with an action.
    pub fn count(&self, action: Action) -> usize {
        self.changes
            .iter()
            .filter(|change| change.action == action)
            .count()
    }
}

/// Returns whether a finding forbids executing its plan.
pub fn is_refusal(finding: &Finding) -> bool {
    let blocks_one = matches!(finding.kind, Kind::Conflict | Kind::Cluster)
        && finding.object.is_some()
        // Without permission for all writes, the plan must not start.
        && finding.code != "forbidden";
    finding.is_error() && !blocks_one
}

/// Effects of an uninstall.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Outgoing {
    /// True if the record of the release is removed once it has no members.
    pub ends: bool,
    /// Objects that stay in the cluster. Afterwards they are members of no
    /// release, or of the release that took them over.
    pub released: Vec<ObjectId>,
}

/// Action of a plan on an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Action {
    /// The object does not exist yet.
    Create,
    /// The object exists, is ours, and changes.
    Update,
    /// An immutable field changes, so the object is deleted and recreated.
    Recreate,
    /// The object exists and was not ours.
    Adopt,
    /// The object is deleted.
    Delete,
    /// The object matches git.
    Unchanged,
    /// The object cannot be applied; a finding states the reason.
    Blocked,
    /// The object is skipped on purpose; `reason` states why.
    Skip,
}

/// Change of one object, with its reason.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Change {
    /// The object.
    pub object: ObjectId,
    /// Action on the object.
    pub action: Action,
    /// Stage of the change; `None` if the object does not change.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stage: Option<StageName>,
    /// Reason as a sentence fragment for users.
    pub reason: String,
    /// Origin of the change, for updates.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cause: Option<Cause>,
    /// Preconditions, checked again at execution.
    pub require: Vec<Precondition>,
    /// Digest that is written with the change; `None` for deletions.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub digest: Option<DesiredDigest>,
    /// Reason why the server has not checked the change; `None` if it has.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unverified: Option<String>,
    /// Fields of ours that the change corrects, with their present owners.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub corrects: Vec<Taken>,
}

impl Change {
    /// Creates a change without stage, reason, preconditions and digest.
    pub fn new(object: ObjectId, action: Action) -> Self {
        Self {
            object,
            action,
            stage: None,
            reason: String::new(),
            cause: None,
            require: Vec::new(),
            digest: None,
            unverified: None,
            corrects: Vec::new(),
        }
    }
}

/// A field of ours that another field manager wrote.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Taken {
    /// The field.
    #[serde(serialize_with = "as_text")]
    pub field: FieldPath,
    /// Present field manager; empty if unknown.
    pub manager: String,
}

impl Taken {
    /// Returns the field manager for messages, or a placeholder if unknown.
    pub fn who(&self) -> &str {
        if self.manager.is_empty() {
            "an unknown field manager"
        } else {
            &self.manager
        }
    }
}

fn as_text<S: serde::Serializer>(path: &FieldPath, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(path)
}

/// A named group of steps; it is not a lock.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Stage {
    /// Name of the stage.
    pub name: StageName,
    /// Number of steps in the stage.
    pub steps: usize,
}

/// Id of a step: its position in the plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct StepId(pub usize);

/// A single operation of a plan.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Step {
    /// Position in the plan.
    pub id: StepId,
    /// Stage of the step.
    pub stage: StageName,
    /// Object of the operation; barriers use the release.
    pub object: ObjectId,
    /// Operation.
    pub op: Op,
    /// Earlier steps that this step waits for.
    pub needs: Vec<Edge>,
    /// Preconditions of the operation.
    pub require: Vec<Precondition>,
    /// Condition that completes the step; `None`: the operation alone.
    pub until: Option<Until>,
    /// Time limit, counted from the start of the step.
    pub deadline: SignedDuration,
    /// Overlay that the step sets or lifts.
    pub overlay: Option<OverlayId>,
    /// Reason for the step, for users.
    pub reason: String,
}

/// A dependency of a step on an earlier step.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Edge {
    /// Earlier step.
    pub from: StepId,
    /// State that the earlier step must have reached.
    pub state: Need,
    /// Reason for the dependency.
    pub why: EdgeReason,
}

/// State of an earlier step that a later step needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Need {
    /// The server accepted the operation.
    Applied,
    /// The completion condition of the step is met.
    Ready,
    /// The object is deleted.
    Absent,
}

/// Reason for an order between two steps.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum EdgeReason {
    /// A custom resource needs its CRD.
    #[serde(rename = "definition")]
    Crd,
    /// A workload may be the controller of a kind that its release defines.
    Operator,
    /// An object needs the APIService that serves its kind.
    Api,
    /// A namespaced object needs its namespace.
    Namespace,
    /// A binding needs its role.
    Role,
    /// A workload needs its permissions.
    #[serde(rename = "rights")]
    Permissions,
    /// A token Secret needs its ServiceAccount; the cluster deletes it without
    /// one.
    Token,
    /// A pod template references the object.
    Reference,
    /// A registration needs the workload behind its Service.
    Backend,
    /// A Service gets a new selector and needs the selected pods ready, or the
    /// pods need to be selected.
    Selects,
    /// A custom resource is intercepted by a webhook and needs its registration
    /// and backend.
    Intercepts,
    /// An admission policy needs its parameters, and a binding needs both.
    Policy,
    /// Annotation `pleach.dev/after`.
    After,
    /// A barrier between stages.
    Barrier,
    /// An earlier step on the same object.
    SameObject,
    /// The forward order is reversed for downgrades and uninstalls.
    Reverse,
    /// A dead registration is deleted before the steps that it would break.
    Leftover,
    /// A temporary change starts before the steps it protects and ends after
    /// them.
    Overlay,
    /// A stage that the bundle declares.
    Stage,
    /// Later steps wait for a run-once Job.
    Once,
    /// Stored objects are rewritten while their conversion webhook still runs.
    Rewritten,
    /// A check of the bundle must pass first.
    Check,
    /// Another node is changed first.
    Node,
}

/// Precondition of a step, checked when it runs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Precondition {
    /// The object still has this UID.
    Uid(String),
    /// The object still has this resourceVersion.
    ResourceVersion(String),
    /// The fields that we own are unchanged.
    Fingerprint(Digest),
    /// The object does not exist.
    Absent,
}

/// Condition that completes a step.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Until {
    /// The object is ready and stays ready for a while.
    Ready {
        /// Time for which the object must stay ready.
        stable_for: SignedDuration,
        /// True if a time-out is only reported and does not fail the step.
        #[serde(default, skip_serializing_if = "core::ops::Not::not")]
        optional: bool,
    },
    /// The object is deleted, and with it the selected pods.
    Absent {
        /// Labels of the pods; `None`: no pods are awaited.
        pods: Option<BTreeMap<String, String>>,
    },
    /// The gate denies a dry run of the probe object, or no longer denies it. A
    /// delay then covers the other API servers.
    Probe {
        /// Object that the dry run would create.
        object: ObjectId,
        /// True if the gate must deny the dry run.
        denied: bool,
        /// Delay until the other API servers have the same state.
        settle: SignedDuration,
    },
    /// The kind is served and answers a LIST.
    Served(Gvk),
    /// The Job has finished, successfully or not.
    Finished,
    /// This many pods of the `DaemonSet` run its current template and stay
    /// ready. Without a number: all of them, and no pod of an older template is
    /// left.
    #[serde(rename_all = "camelCase")]
    RolledOut {
        /// Required number of pods; `None`: all.
        pods: Option<Count>,
        /// True if a container restart in one of the pods fails the step.
        abort_on_restart: bool,
        /// Time for which the pods must stay ready.
        stable_for: SignedDuration,
    },
    /// No pod with these labels is left in the namespace of the object.
    Emptied {
        /// Labels of the pods.
        pods: BTreeMap<String, String>,
    },
    /// The Service has as many ready endpoints as its workload has replicas.
    Endpoints {
        /// The Service.
        service: ServiceRef,
        /// Number of ready endpoints required.
        ready: usize,
        /// Labels of the pods whose endpoints count, if the selector of the
        /// Service changes. Endpoints of the previous pods are still listed for
        /// a moment.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pods: Option<BTreeMap<String, String>>,
    },
    /// A registration of this kind exists and points at the Service. Workloads
    /// create it themselves.
    Registered {
        /// `APIService` or one of the webhook configurations.
        kind: GroupKind,
        /// Service that the registration must point at.
        service: ServiceRef,
        /// True if the plan continues without the registration after a
        /// time-out.
        optional: bool,
    },
    /// A check of the bundle passes.
    Holds {
        /// Name of the check.
        check: String,
    },
    /// One of these objects exists. Workloads create it themselves.
    Exists {
        /// Candidates: the same name in each namespace of the release.
        any_of: Vec<ObjectId>,
    },
}

/// A temporary change of a plan, with its undo.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Overlay {
    /// Name and object of the change.
    pub id: OverlayId,
    /// Object that is changed.
    pub object: ObjectId,
    /// The change and the values it replaces.
    #[serde(flatten)]
    pub content: OverlayContent,
    /// Effect of this plan on the change.
    pub course: Course,
    /// First stage of the change; `None` if an earlier run started it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub from: Option<StageName>,
    /// Stage at whose end the change is reverted.
    pub until: StageName,
    /// Operations that revert the change.
    pub undo: Vec<Op>,
    /// Fate of the change if the plan fails.
    pub on_failure: OnFailure,
}

impl Overlay {
    /// Returns whether the overlay is a gate.
    pub fn is_gate(&self) -> bool {
        self.content.kind() == OverlayKind::Gate
    }
}

/// Effect of a plan on a temporary change.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Course {
    /// The plan makes and reverts the change.
    Made,
    /// An earlier run made the change, and this plan reverts it at its usual
    /// stage.
    Kept,
    /// An earlier run made the change, and it is no longer desired.
    Dropped,
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Create => "create",
            Self::Update => "update",
            Self::Recreate => "recreate",
            Self::Adopt => "adopt",
            Self::Delete => "delete",
            Self::Unchanged => "unchanged",
            Self::Blocked => "blocked",
            Self::Skip => "skip",
        })
    }
}

/// Returns whether objects of a kind are never deleted or recreated without
/// consent.
pub fn is_protected_kind(kind: &GroupKind) -> bool {
    kind.is("", "Namespace")
        || kind.is("apiextensions.k8s.io", "CustomResourceDefinition")
        || kind.is("", "PersistentVolume")
        || kind.is("", "PersistentVolumeClaim")
}
