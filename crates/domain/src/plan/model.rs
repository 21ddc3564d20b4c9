//! What a plan is made of.

mod brought;
mod configuration;
mod op;
mod wanted;

pub use brought::Brought;
pub use op::{Body, NonSecret, Op, Own};
pub use wanted::{Desired, Policy, Terms};

use std::collections::BTreeMap;
use std::fmt;

use jiff::SignedDuration;
use serde::{Deserialize, Serialize};

use super::FORMAT;
use crate::finding::{Finding, Kind};
use crate::inventory::{Override, ReleaseName};
use crate::object::{Digest, FieldPath, GroupKind, Gvk, ObjectId, ServiceRef};
use crate::observe::DesiredDigest;
use crate::order::StageName;
use crate::overlay::{OnFailure, OverlayContent, OverlayId, OverlayKind};
use crate::repo::Count;

/// An ordered, reviewed set of steps, and what it does to every object.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Plan {
    /// Version of this format.
    pub format: u32,
    /// Environment and release.
    pub release: ReleaseName,
    /// Version installed before; none on first use.
    pub from: Option<String>,
    /// Version that is wanted.
    pub to: String,
    /// Which way it goes.
    pub direction: Direction,
    /// Every object of the release, also the unchanged ones.
    pub changes: Vec<Change>,
    /// Stages in order; only those with steps.
    pub stages: Vec<Stage>,
    /// Steps, sorted by stage, kind order, namespace, name.
    pub steps: Vec<Step>,
    /// Temporary changes.
    pub overlays: Vec<Overlay>,
    /// Objects that the bundle assigns to a stage: what the record keeps of them.
    #[serde(skip)]
    pub assigned: BTreeMap<ObjectId, StageName>,
    /// Checks that do not hold and do not matter this once.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub overrides: Vec<Override>,
    /// Set where the release goes as a whole.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub removal: Option<Outgoing>,
    /// Everything there is to say; an error means that nothing is written.
    pub findings: Vec<Finding>,
}

impl Plan {
    /// A plan for a version of a release that is not installed, which does nothing.
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

    /// Whether carrying it out would change anything.
    pub fn has_steps(&self) -> bool {
        self.steps.iter().any(|step| !matches!(step.op, Op::Wait))
    }

    /// Whether it waits until everything is ready: holds the barrier after which
    /// things may be pruned.
    pub fn verifies(&self) -> bool {
        self.steps
            .iter()
            .any(|step| step.stage == StageName::Verify && step.object.is("pleach.dev", "Release"))
    }

    /// What forbids to carry it out at all. What only blocks single objects
    /// (conflicts, an API that does not answer) is not among it.
    pub fn refusals(&self) -> impl Iterator<Item = &Finding> {
        self.findings.iter().filter(|finding| is_refusal(finding))
    }

    /// Whether something was planned and nothing of it can be done.
    pub fn is_stuck(&self) -> bool {
        !self.has_steps() && self.count(Action::Blocked) > 0
    }

    /// Returns the temporary change that a step makes or ends.
    pub fn overlay_of(&self, step: &Step) -> Option<&Overlay> {
        let id = step.overlay.as_ref()?;
        self.overlays.iter().find(|overlay| overlay.id == *id)
    }

    /// Whether a step closes or lifts a gate.
    pub fn is_of_gate(&self, step: &Step) -> bool {
        self.overlay_of(step).is_some_and(Overlay::is_gate)
    }

    /// How many objects get which action.
    pub fn count(&self, action: Action) -> usize {
        self.changes
            .iter()
            .filter(|change| change.action == action)
            .count()
    }
}

/// Whether a finding forbids to carry out the plan that it is of.
pub fn is_refusal(finding: &Finding) -> bool {
    let blocks_one = matches!(finding.kind, Kind::Conflict | Kind::Cluster)
        && finding.object.is_some()
        // Who may not do all of it had better not begin.
        && finding.code != "forbidden";
    finding.is_error() && !blocks_one
}

/// How a release goes as a whole.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Outgoing {
    /// Whether its record goes too, once it has no members any more.
    pub ends: bool,
    /// Objects that stay and are members of nothing afterwards, or of the
    /// release that they were handed over to.
    pub released: Vec<ObjectId>,
}

/// Which way a version change goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Direction {
    /// To a newer version, or the same.
    Forward,
    /// To an older version.
    Reverse,
}

/// What happens to an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Action {
    /// It does not exist yet.
    Create,
    /// It exists, is ours, and changes.
    Update,
    /// A field that cannot change does; the object is deleted and created anew.
    Recreate,
    /// It exists and was not ours.
    Adopt,
    /// It goes.
    Delete,
    /// It is as wanted.
    Unchanged,
    /// It cannot be brought about; a finding says why.
    Blocked,
    /// It is left alone on purpose; the reason says why.
    Skip,
}

/// What happens to one object, and why.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Change {
    /// The object.
    pub object: ObjectId,
    /// What happens.
    pub action: Action,
    /// The stage it happens in; none where nothing happens.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stage: Option<StageName>,
    /// One sentence fragment for people.
    pub reason: String,
    /// Whose change it is, for updates.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cause: Option<Cause>,
    /// What must still hold.
    pub require: Vec<Precondition>,
    /// The digest written with it; none for deletions.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub digest: Option<DesiredDigest>,
    /// Why the server has not checked it, where it has not.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unverified: Option<String>,
    /// The fields of ours that are taken back, and from whom.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub corrects: Vec<Taken>,
}

/// A field of ours that somebody wrote to.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Taken {
    /// The field.
    #[serde(serialize_with = "as_text")]
    pub field: FieldPath,
    /// Who holds it now; empty where that cannot be told.
    pub manager: String,
}

impl Taken {
    /// Who holds it, in words.
    pub fn who(&self) -> &str {
        if self.manager.is_empty() {
            "somebody who is not on record"
        } else {
            &self.manager
        }
    }
}

fn as_text<S: serde::Serializer>(path: &FieldPath, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(path)
}

/// Whose change an update carries out.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase", tag = "kind")]
pub enum Cause {
    /// git changed.
    Git,
    /// The cluster drifted; these managers wrote.
    Drift {
        /// Field managers that now hold fields of ours, where they can be told.
        managers: Vec<String>,
    },
    /// Both.
    Both {
        /// Field managers that now hold fields of ours, where they can be told.
        managers: Vec<String>,
    },
    /// Neither: no value changes, only the server's record of who owns it.
    Ownership,
    /// A temporary change of ours is taken back.
    Overlay,
}

/// A named group of steps; not a lock.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Stage {
    /// Its name.
    pub name: StageName,
    /// Number of steps in it.
    pub steps: usize,
}

/// Names a step within its plan: its position.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct StepId(pub usize);

/// One thing to do.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Step {
    /// Its position.
    pub id: StepId,
    /// The stage it belongs to.
    pub stage: StageName,
    /// What it acts on; barriers act on the release.
    pub object: ObjectId,
    /// What is done.
    pub op: Op,
    /// What must have happened before.
    pub needs: Vec<Edge>,
    /// What must hold when it is done.
    pub require: Vec<Precondition>,
    /// What completes it.
    pub until: Option<Until>,
    /// How long it may take from its start.
    pub deadline: SignedDuration,
    /// The overlay it sets or lifts.
    pub overlay: Option<OverlayId>,
    /// Why it is there.
    pub reason: String,
}

/// One step needs something of another.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Edge {
    /// The step that comes first.
    pub from: StepId,
    /// What it must have reached.
    pub state: Need,
    /// Why.
    pub why: EdgeReason,
}

/// How far the earlier step must be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Need {
    /// The server took it.
    Applied,
    /// What completes it has come about.
    Ready,
    /// The object is gone.
    Absent,
}

/// Why one step waits for another.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum EdgeReason {
    /// A custom resource needs its definition.
    Definition,
    /// A workload may serve a kind that its release defines.
    Operator,
    /// An object needs the APIService behind which it is kept.
    Api,
    /// Content needs its namespace.
    Namespace,
    /// A binding needs its role.
    Role,
    /// A workload needs its rights.
    Rights,
    /// The token of an account needs that: the cluster deletes one without.
    Token,
    /// A pod template names it.
    Reference,
    /// A registration needs the workload behind its Service.
    Backend,
    /// A Service that selects other pods needs them ready, or they need that it
    /// selects them.
    Selects,
    /// A custom resource is intercepted by a registration, and by who answers it.
    Intercepts,
    /// An admission policy needs its parameters, and a binding of it both.
    Policy,
    /// Annotation `pleach.dev/after`.
    After,
    /// A barrier between stages.
    Barrier,
    /// Earlier on the same object.
    SameObject,
    /// What comes first on the way up goes last on the way back, and when
    /// everything is deleted.
    Reverse,
    /// A dead registration goes before what it would break or crash.
    Leftover,
    /// A temporary change comes before what it is for, and ends after it.
    Overlay,
    /// A stage that the bundle declares.
    Stage,
    /// A Job that runs once comes before what comes after it.
    Once,
    /// Stored objects are rewritten while those still run who convert them.
    Rewritten,
    /// A check of the bundle holds before it.
    Check,
}

/// What must hold when a step is carried out.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Precondition {
    /// The object is this incarnation.
    Uid(String),
    /// Nobody wrote to the object.
    ResourceVersion(String),
    /// Nobody changed what we own of it.
    Fingerprint(Digest),
    /// It does not exist.
    Absent,
}

/// What completes a step.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Until {
    /// The object is ready, and stays so for a while.
    Ready {
        /// How long it must stay ready.
        stable_for: SignedDuration,
        /// Whether it is only told that it is not ready in time.
        #[serde(default, skip_serializing_if = "core::ops::Not::not")]
        optional: bool,
    },
    /// The object is gone, and the pods that the selector names with it.
    Absent {
        /// Labels of the pods.
        pods: Option<BTreeMap<String, String>>,
    },
    /// The dry run of a probe is denied by the gate behind it, or is not any
    /// more; some time later all API servers do as the one that was asked.
    Probe {
        /// What would be created.
        object: ObjectId,
        /// Whether it is to be denied.
        denied: bool,
        /// How long the other API servers are given.
        settle: SignedDuration,
    },
    /// The kind is served and answers a LIST.
    Served(Gvk),
    /// The Job has ended, well or not.
    Finished,
    /// So many pods of the `DaemonSet` run what it says now and stay ready; all
    /// of them and no other one, where no number is said.
    #[serde(rename_all = "camelCase")]
    RolledOut {
        /// How many.
        pods: Option<Count>,
        /// Whether a restart of one of them ends it.
        abort_on_restart: bool,
        /// How long it must stay so.
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
        /// How many endpoints must be ready.
        ready: usize,
        /// Labels of the pods whose endpoints count, where the selector of the Service
        /// changes: those of the former pods are still listed for a moment.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pods: Option<BTreeMap<String, String>>,
    },
    /// A registration of this kind exists and points at the Service: workloads
    /// make it themselves.
    Registered {
        /// `APIService` or one of the webhook configurations.
        kind: GroupKind,
        /// The Service it must point at.
        service: ServiceRef,
        /// Whether the change goes on without it where it does not come in time.
        optional: bool,
    },
    /// A check of the bundle holds.
    Holds {
        /// Its name.
        check: String,
    },
    /// One of these objects exists: workloads make it themselves.
    Exists {
        /// The same name in each namespace of the release.
        any_of: Vec<ObjectId>,
    },
}

/// A temporary change with its undo, as a plan has it.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Overlay {
    /// Its name, and its object.
    pub id: OverlayId,
    /// What it changes.
    pub object: ObjectId,
    /// The change, and the values before it.
    #[serde(flatten)]
    pub content: OverlayContent,
    /// What this plan does about it.
    pub course: Course,
    /// The stage it begins with; none where a former run began it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub from: Option<StageName>,
    /// The stage it ends with.
    pub until: StageName,
    /// How it is taken back.
    pub undo: Vec<Op>,
    /// What becomes of it when the plan is not carried out to its end.
    pub on_failure: OnFailure,
}

impl Overlay {
    /// Whether it is a gate.
    pub fn is_gate(&self) -> bool {
        self.content.kind() == OverlayKind::Gate
    }
}

/// What a plan does about a temporary change.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Course {
    /// It is made, and taken back.
    Made,
    /// A former run made it; it is taken back later.
    Kept,
    /// A former run made it, and it is not wanted any more.
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

/// Kinds that are never deleted or recreated without consent.
pub fn is_protected_kind(kind: &GroupKind) -> bool {
    kind.is("", "Namespace")
        || kind.is("apiextensions.k8s.io", "CustomResourceDefinition")
        || kind.is("", "PersistentVolume")
        || kind.is("", "PersistentVolumeClaim")
}
