//! The bytes that are sent for a manifest.

use bytes::Bytes;
use pleach_domain::object::{annotations, canonical_json};
use pleach_domain::observe::DesiredDigest;
use serde_json::{Value, json};

/// What is sent beside the manifest itself.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Require<'a> {
    /// Only to this incarnation.
    pub(super) uid: Option<&'a str>,
    /// Only if nobody wrote to it.
    pub(super) resource_version: Option<&'a str>,
}

/// The request body: the object with the annotation that carries its digest,
/// and with the incarnation it is meant for.
pub(super) fn compose(mut value: Value, digest: DesiredDigest, require: Require<'_>) -> Bytes {
    if let DesiredDigest::Known(digest) = digest {
        value["metadata"]["annotations"][annotations::DESIRED] = json!(digest.to_string());
    }
    with_requirements(value, require)
}

/// An object of our own with the incarnation it is meant for.
pub(super) fn with_requirements(mut value: Value, require: Require<'_>) -> Bytes {
    if let Some(uid) = require.uid {
        value["metadata"]["uid"] = json!(uid);
    }
    if let Some(resource_version) = require.resource_version {
        value["metadata"]["resourceVersion"] = json!(resource_version);
    }
    Bytes::from(canonical_json(&value))
}
