//! Operations of steps.

use std::collections::BTreeSet;

use serde::Serialize;
use serde_json::Value;

use crate::observe::FieldConflict;
use crate::plan::{Deletion, Propagation};
use pleach_fields::diff::ownership::FieldSet;
use pleach_fields::ignore::FieldPattern;
use pleach_formats::gate::Gate;
use pleach_formats::sequence::Count;
use pleach_model::object::{DesiredDigest, Digest, FieldPath, NonSecret, ObjectId, canonical_json};

/// Operation of a step.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Op {
    /// Server-side apply with the field manager of the release.
    Apply {
        /// Object to send.
        body: Body,
        /// Fields taken over from other managers, as shown in the plan. The
        /// apply is first sent without force. A conflict with another manager
        /// or about another field fails the step.
        take_over: Vec<FieldConflict>,
        /// Fields that keep their cluster value in this apply.
        #[serde(skip_serializing_if = "Vec::is_empty", serialize_with = "as_texts")]
        leave: Vec<FieldPath>,
    },
    /// Changes field ownership, but no value that git declares.
    Own(Own),
    /// POST, which fails if the object exists.
    Create {
        /// Object to send.
        body: Body,
        /// True for a run-once Job.
        once: bool,
    },
    /// A JSON patch that tests the resourceVersion.
    Patch {
        /// RFC 6902 operations.
        patch: NonSecret,
        /// Subresource, such as `scale`.
        subresource: Option<String>,
    },
    /// Makes a temporary change, after the replaced values are journaled.
    Set {
        /// JSON merge patch.
        patch: NonSecret,
    },
    /// Closes a gate after it is journaled. A gate that is already closed is
    /// updated to this state.
    Close {
        /// Gate, with its closed resources and exempt users.
        gate: Gate,
    },
    /// Reverts a temporary change, as far as the fields are still ours, or
    /// lifts a gate.
    Lift,
    /// Restarts a workload, unless it already carries this mark.
    Restart {
        /// Annotation of the pod template that stores the mark.
        key: String,
        /// Value that identifies the cause of the restart.
        mark: String,
    },
    /// Deletes pods of a `DaemonSet` with update strategy `OnDelete` until this
    /// many run the current template.
    Replace {
        /// Number of pods.
        pods: Count,
    },
    /// A deletion.
    Delete(Deletion),
    /// Reads an object at run time and creates it elsewhere, so that no secret
    /// is part of the plan.
    Copy {
        /// Source object.
        from: ObjectId,
        /// Object to create.
        to: ObjectId,
    },
    /// Rewrites stored objects at another version.
    Migrate {
        /// CRD of the objects.
        crd: ObjectId,
        /// Versions to migrate from. Afterwards no object is stored in them and
        /// `storedVersions` does not list them.
        from: Vec<String>,
        /// Version to store.
        to: String,
    },
    /// Changes a node: actions, cordon, drain, Job, uncordon. Only what is not
    /// done yet.
    UpgradeNode {
        /// Digest of what is done with each node.
        content: Digest,
        /// Jobs in git that run on the node, under names of their own.
        jobs: Vec<ObjectId>,
        /// Objects of the controller that drains the node. `None`: pleach does.
        #[serde(skip_serializing_if = "Option::is_none")]
        driver: Option<DriverObjects>,
    },
    /// Ends the run, so that a person can check the changed nodes.
    /// A plan of the rest does not have it.
    Pause,
    /// Preloads images on a node, with pods or a Job. Only what is missing.
    Preload {
        /// Digest of what is preloaded.
        content: Digest,
        /// Namespace of the pods. `None` without pods.
        #[serde(skip_serializing_if = "Option::is_none")]
        namespace: Option<String>,
        /// Job in git that runs on the node, under a name of its own.
        job: Option<ObjectId>,
    },
    /// Writes the images that only the replaced version uses into a `ConfigMap`.
    /// Without images it is deleted.
    RememberImages {
        /// References as in the pod templates.
        images: BTreeSet<String>,
    },
    /// Removes images from a node with a Job that reads this `ConfigMap`. A
    /// failure is a warning.
    CleanNode {
        /// References as in the pod templates.
        images: BTreeSet<String>,
        /// Digest of the Job.
        content: String,
        /// Job in git that runs on the node, under a name of its own.
        job: ObjectId,
    },
    /// No operation; the step completes when its condition is met.
    Wait,
}

impl Op {
    /// Returns the part of the operation that an approval covers. The digest of
    /// the body is omitted if it could not be computed.
    pub(in crate::plan) fn effect(&self, with_body: bool) -> Value {
        let digest = |body: &Body| {
            if with_body {
                body.digest()
            } else {
                "unkeyed".to_owned()
            }
        };
        match self {
            Self::Apply { body, leave, .. } if leave.is_empty() => {
                serde_json::json!(["apply", digest(body)])
            }
            Self::Apply { body, leave, .. } => {
                let leave: Vec<String> = leave.iter().map(ToString::to_string).collect();
                serde_json::json!(["apply", digest(body), leave])
            }
            Self::Own(own) => serde_json::json!(["own", own.effect()]),
            Self::Create { body, .. } => serde_json::json!(["create", digest(body)]),
            // Patches contain resourceVersions. Their effect is part of the
            // apply that follows.
            Self::Patch { subresource, .. } => serde_json::json!(["patch", subresource]),
            Self::Set { patch } => serde_json::json!(["set", patch]),
            Self::Close { gate } => serde_json::json!(["close", gate]),
            Self::Lift => serde_json::json!(["lift"]),
            // The mark changes with every change of the release.
            Self::Restart { .. } => serde_json::json!(["restart"]),
            Self::Replace { pods } => serde_json::json!(["replace", pods]),
            // The propagation decides whether pods of a StatefulSet or Job are
            // deleted with it.
            Self::Delete(deletion) if deletion.propagation() == Propagation::Orphan => {
                serde_json::json!(["delete", "orphan"])
            }
            Self::Delete(_) => serde_json::json!(["delete"]),
            Self::Copy { from, .. } => serde_json::json!(["copy", from.to_string()]),
            Self::Migrate { crd, from, to } => {
                serde_json::json!(["migrate", crd.to_string(), from, to])
            }
            Self::UpgradeNode { content, .. } => {
                serde_json::json!(["upgrade", content.to_string()])
            }
            Self::Pause => serde_json::json!(["pause"]),
            Self::Preload { content, .. } => {
                serde_json::json!(["preload", content.to_string()])
            }
            Self::RememberImages { images } => serde_json::json!(["remember", images]),
            Self::CleanNode {
                images, content, ..
            } => serde_json::json!(["clean", images, content]),
            Self::Wait => serde_json::json!(["wait"]),
        }
    }

    /// Returns whether the operation sends the rendered object.
    pub(in crate::plan) fn applies(&self) -> bool {
        matches!(self, Self::Apply { .. } | Self::Create { .. })
    }

    /// Returns a verb for users.
    pub fn verb(&self) -> &'static str {
        match self {
            Self::Apply { .. } => "apply",
            Self::Create { .. } => "create",
            Self::Own(_) | Self::Patch { .. } => "patch",
            Self::Set { .. } => "set",
            Self::Close { .. } => "close",
            Self::Lift => "lift",
            Self::Restart { .. } => "restart",
            Self::Replace { .. } => "replace",
            Self::Delete(_) => "delete",
            Self::Copy { .. } => "copy",
            Self::Migrate { .. } => "migrate",
            Self::UpgradeNode { .. } => "upgrade",
            Self::Pause => "pause",
            Self::Preload { .. } => "preload",
            Self::RememberImages { .. } => "remember",
            Self::CleanNode { .. } => "clean",
            Self::Wait => "wait",
        }
    }
}

/// Objects of a controller that drains nodes, with the name `*`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct DriverObjects {
    /// Hook objects, whose annotations are written.
    pub hooks: ObjectId,
    /// Objects that name the nodes, which are read.
    pub nodes: ObjectId,
}

/// A change of field ownership. It is one JSON patch, built from the live
/// object at execution, and tests the resourceVersion.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Own {
    /// API version of the manifest, for an object without managed fields.
    pub api_version: String,
    /// Field managers whose fields become ours.
    pub from: Vec<String>,
    /// Fields that become ours alone again, as `fieldsV1`.
    #[serde(rename = "takeBack", skip_serializing_if = "FieldSet::is_empty")]
    pub reclaim: FieldSet,
    /// Fields whose ownership we give up.
    pub give_up: Vec<FieldPattern>,
    /// Labels and annotations to remove: marks of other deployment tools.
    #[serde(serialize_with = "as_texts")]
    pub strip: Vec<FieldPath>,
    /// Digest of the fields that we own afterwards. A different digest means
    /// that another client wrote the object since planning. `None` if the plan
    /// itself writes the object before.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fields: Option<Digest>,
}

fn as_texts<S: serde::Serializer>(paths: &[FieldPath], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(paths.iter().map(ToString::to_string))
}

impl Own {
    fn effect(&self) -> Value {
        let strip: Vec<String> = self.strip.iter().map(ToString::to_string).collect();
        if self.reclaim.is_empty() {
            return serde_json::json!([self.from, self.give_up, strip]);
        }
        serde_json::json!([self.from, self.give_up, strip, self.reclaim])
    }
}

/// Placeholder for the digest of a secret object before its key exists.
const UNKEYED: &str = "unkeyed";

/// Body of an apply.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Body {
    /// Rendered manifest of the step's object, identified by its digest.
    Rendered(DesiredDigest),
    /// Object that the planner built.
    Inline(NonSecret),
}

impl Body {
    fn digest(&self) -> String {
        match self {
            Self::Rendered(DesiredDigest::Known(digest)) => digest.to_string(),
            Self::Rendered(DesiredDigest::Unkeyed) => UNKEYED.to_owned(),
            Self::Inline(value) => Digest::of(&canonical_json(&value.0)).to_string(),
        }
    }
}
