//! Request bodies of manifests.

use bytes::Bytes;
use pleach_model::object::{DesiredDigest, annotations, canonical_json};
use serde_json::{Value, json};

/// Preconditions to send with a manifest.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Require<'a> {
    /// Required uid.
    pub(super) uid: Option<&'a str>,
    /// Required resource version.
    pub(super) resource_version: Option<&'a str>,
}

/// Builds the request body: the object with its digest annotation and the preconditions.
pub(super) fn compose(mut value: Value, digest: DesiredDigest, require: Require<'_>) -> Bytes {
    if let DesiredDigest::Known(digest) = digest {
        value["metadata"]["annotations"][annotations::DESIRED] = json!(digest.to_string());
    }
    with_requirements(value, require)
}

/// Builds the request body of an object of pleach, with the preconditions.
pub(super) fn with_requirements(mut value: Value, require: Require<'_>) -> Bytes {
    if let Some(uid) = require.uid {
        value["metadata"]["uid"] = json!(uid);
    }
    if let Some(resource_version) = require.resource_version {
        value["metadata"]["resourceVersion"] = json!(resource_version);
    }
    Bytes::from(canonical_json(&value))
}
