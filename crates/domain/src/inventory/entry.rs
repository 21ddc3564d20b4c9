//! Members of a release.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::object::{Digest, ObjectId};

/// The members of a release.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Inventory {
    /// By id.
    pub entries: BTreeMap<ObjectId, Entry>,
}

/// What is recorded of a member.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Entry {
    /// How sure we are that it is ours.
    pub state: EntryState,
    /// API version it was last applied with, such as `apps/v1`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub api_version: String,
    /// uid of the object that we applied or saw; none while intended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uid: Option<String>,
    /// resourceVersion of our last answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resource_version: Option<String>,
    /// generation of our last answer, where the kind has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub generation: Option<i64>,
    /// Digest of the body sent, without the annotation that carries it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub desired: Option<Digest>,
    /// Digest of our managedFields entry after the last apply.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fingerprint: Option<Digest>,
    /// The stage it was applied in.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub stage: String,
    /// Never deleted without consent, whatever the environment file says today.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub protected: bool,
    /// The namespace was there before us, or was adopted: never deleted.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub adopted: bool,
    /// The Service by which a run-time registration was found.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub service: Option<crate::object::ServiceRef>,
}

/// How sure we are that a member is ours.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum EntryState {
    /// About to be applied; has no uid and is never deleted.
    #[default]
    Intended,
    /// We applied it and saw the answer.
    Applied,
    /// Made by the workloads, not by us; recorded with its uid.
    Observed,
    /// No longer wanted, and left in place on purpose.
    Kept,
}
