//! What steps do.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::diff::ownership::FieldSet;
use crate::gate::Gate;
use crate::ignore::FieldPattern;
use crate::object::{Digest, FieldPath, ObjectId, canonical_json};
use crate::observe::{DesiredDigest, FieldConflict};
use crate::plan::{Deletion, Propagation};
use crate::repo::Count;

/// The operations.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Op {
    /// Server-side apply under the release's manager.
    Apply {
        /// What is sent.
        body: Body,
        /// Fields that are taken over from others, as they were shown. The apply is
        /// sent without force first; a conflict with anybody else, or about
        /// another field, fails the step.
        take_over: Vec<FieldConflict>,
        /// Fields that are left as they are in the cluster, this once.
        #[serde(skip_serializing_if = "Vec::is_empty", serialize_with = "as_texts")]
        leave: Vec<FieldPath>,
    },
    /// Changes who owns what, and no value that git wants.
    Own(Own),
    /// POST: only if absent.
    Create {
        /// What is sent.
        body: Body,
        /// A Job that runs once.
        once: bool,
    },
    /// A JSON patch that tests the resourceVersion.
    Patch {
        /// RFC 6902 operations.
        patch: NonSecret,
        /// Subresource, such as `scale`.
        subresource: Option<String>,
    },
    /// Makes a temporary change: the patch of the step's overlay, after what it
    /// replaces was written down.
    Set {
        /// A merge patch.
        patch: NonSecret,
    },
    /// Closes a gate, after it was written down; one that is closed already
    /// becomes as it is here.
    Close {
        /// What is closed, and for whom it is not.
        gate: Gate,
    },
    /// Takes a temporary change back, as far as it still is ours; lifts a gate.
    Lift,
    /// Replaces the pods of a workload, unless that was done for this mark.
    Restart {
        /// The annotation of the pod template that holds the mark.
        key: String,
        /// What it is done for.
        mark: String,
    },
    /// Replaces pods of a `DaemonSet` whose controller leaves that to others,
    /// until so many run what it says now.
    Replace {
        /// How many.
        pods: Count,
    },
    /// A deletion.
    Delete(Deletion),
    /// Read at run time and created elsewhere: no secret in a plan.
    Copy {
        /// Where it is read.
        from: ObjectId,
        /// Where it is created.
        to: ObjectId,
    },
    /// Stored objects are rewritten at another version.
    Migrate {
        /// The definition.
        crd: ObjectId,
        /// The versions that nothing is stored in afterwards, and that nothing
        /// records.
        from: Vec<String>,
        /// The version to store.
        to: String,
    },
    /// Nothing is done; the step completes when its condition holds.
    Wait,
}

impl Op {
    /// What of the operation an approval binds to; without the body where its
    /// digest could not be known.
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
            // Patches carry resourceVersions; what they do shows in the apply that follows.
            Self::Patch { subresource, .. } => serde_json::json!(["patch", subresource]),
            Self::Set { patch } => serde_json::json!(["set", patch]),
            Self::Close { gate } => serde_json::json!(["close", gate]),
            Self::Lift => serde_json::json!(["lift"]),
            // The mark moves with every change of the release.
            Self::Restart { .. } => serde_json::json!(["restart"]),
            Self::Replace { pods } => serde_json::json!(["replace", pods]),
            // What a StatefulSet or a Job ran goes with it, or stays without it.
            Self::Delete(deletion) if deletion.propagation() == Propagation::Orphan => {
                serde_json::json!(["delete", "orphan"])
            }
            Self::Delete(_) => serde_json::json!(["delete"]),
            Self::Copy { from, .. } => serde_json::json!(["copy", from.to_string()]),
            Self::Migrate { crd, from, to } => {
                serde_json::json!(["migrate", crd.to_string(), from, to])
            }
            Self::Wait => serde_json::json!(["wait"]),
        }
    }

    /// Whether it sends the object.
    pub(in crate::plan) fn applies(&self) -> bool {
        matches!(self, Self::Apply { .. } | Self::Create { .. })
    }

    /// A word for people.
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
            Self::Wait => "wait",
        }
    }
}

/// A change of the record of owners: one JSON patch that is made from the
/// object as it is when the step runs, and tests its resourceVersion.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Own {
    /// Version of the manifest, for an object without a record.
    pub api_version: String,
    /// Managers whose fields become ours.
    pub from: Vec<String>,
    /// Fields that come back to us alone, as `fieldsV1`.
    #[serde(skip_serializing_if = "FieldSet::is_empty")]
    pub take_back: FieldSet,
    /// Fields that are left to others from now on.
    pub give_up: Vec<FieldPattern>,
    /// Labels and annotations that are taken off: marks of former deployers.
    #[serde(serialize_with = "as_texts")]
    pub strip: Vec<FieldPath>,
    /// Digest of the fields that we own afterwards: with others, somebody wrote
    /// to the object since the plan was made. None where the plan itself writes to
    /// it before.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fields: Option<Digest>,
}

fn as_texts<S: serde::Serializer>(paths: &[FieldPath], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(paths.iter().map(ToString::to_string))
}

impl Own {
    fn effect(&self) -> Value {
        let strip: Vec<String> = self.strip.iter().map(ToString::to_string).collect();
        if self.take_back.is_empty() {
            return serde_json::json!([self.from, self.give_up, strip]);
        }
        serde_json::json!([self.from, self.give_up, strip, self.take_back])
    }
}

/// Stands for the digest of a secret object before its key exists.
const UNKEYED: &str = "unkeyed";

/// What an apply sends.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Body {
    /// The rendered manifest of the step's object, by its written digest.
    Rendered(DesiredDigest),
    /// An object that the planner made.
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

/// A value that holds nothing secret and may be written down.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct NonSecret(pub Value);
