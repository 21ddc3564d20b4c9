//! Digest of the desired state of an object.

use serde::{Deserialize, Serialize};

use super::{Digest, DigestKey, Manifest};

/// Digest in the annotation of an object: keyed for secret objects, plain otherwise.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum DesiredDigest {
    /// The computed digest.
    Known(Digest),
    /// A secret object, before the key exists.
    Unkeyed,
}

impl DesiredDigest {
    /// Computes the digest of a manifest. Keyed if the manifest is secret.
    pub fn of(manifest: &Manifest, key: Option<&DigestKey>) -> Self {
        match (manifest.is_secret(), key) {
            (false, _) => Self::Known(manifest.digest()),
            (true, Some(key)) => Self::Known(Digest::keyed(key, manifest.json())),
            (true, None) => Self::Unkeyed,
        }
    }
}
