//! Pulls of artifacts: manifest, signatures, files.

use std::collections::BTreeMap;

use bytes::Bytes;

use crate::OciError;
use crate::artifact::{Descriptor, Index, Manifest, Origin, unpack};
use crate::registry::Registry;
use crate::verify::{Evidence, PublicKeys, Untrusted, verify};

/// Maximum size of the compressed files, in bytes.
const LARGEST_LAYER: u64 = 64 << 20;
/// Maximum size of a signature or its payload, in bytes.
const LARGEST_SIGNATURE: u64 = 1 << 20;
/// Maximum number of signatures that are read from one place. Anyone who can push can add some.
const MOST_SIGNATURES: usize = 32;
/// Media type of simple signing payloads.
const SIMPLE: &str = "application/vnd.dev.cosign.simplesigning.v1+json";
/// Annotation with the signature of a payload.
const SIGNATURE: &str = "dev.cosignproject.cosign/signature";
/// Prefix of the media types of bundles.
const BUNDLE: &str = "application/vnd.dev.sigstore.bundle";

/// Files of an artifact.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Artifact {
    /// Digest of the manifest.
    pub digest: String,
    /// Origin that the publisher declares.
    pub origin: Origin,
    /// Files by path.
    pub files: BTreeMap<String, Bytes>,
}

/// Pulls the artifact with a digest. With keys, one of them must have signed it. The signature is
/// checked before the files are downloaded.
pub async fn pull(
    registry: &Registry,
    digest: &str,
    keys: Option<&PublicKeys>,
) -> Result<Artifact, OciError> {
    let what = format!("{}@{digest}", registry.repository());
    let manifest = registry.manifest(digest).await?;
    if let Some(keys) = keys {
        ensure_signed(registry, digest, keys).await?;
    }
    let manifest = Manifest::parse(&manifest, &what)?;
    let layer = manifest.content(&what)?;
    let layer = registry.blob(layer, LARGEST_LAYER).await?;
    let files = unpack(&layer).map_err(|source| OciError::Unpack { what, source })?;
    Ok(Artifact {
        digest: digest.to_owned(),
        origin: manifest.origin(),
        files,
    })
}

/// Checks that one of the keys signed the manifest with a digest.
pub(crate) async fn ensure_signed(
    registry: &Registry,
    digest: &str,
    keys: &PublicKeys,
) -> Result<(), OciError> {
    let verified = verify_in(registry, digest, keys).await?;
    verified.map_err(|source| OciError::Untrusted {
        what: format!("{}@{digest}", registry.repository()),
        source,
    })
}

/// Looks for a signature of a trusted key: in the referrers of the artifact, and in the tag of
/// simple signing.
async fn verify_in(
    registry: &Registry,
    digest: &str,
    keys: &PublicKeys,
) -> Result<Result<(), Untrusted>, OciError> {
    let referrers = verify(keys, digest, &bundles(registry, digest).await?);
    let Err(mut untrusted) = referrers else {
        return Ok(Ok(()));
    };
    let simple = verify(keys, digest, &simple(registry, digest).await?);
    Ok(simple.map_err(|other| {
        untrusted.objections.extend(other.objections);
        untrusted
    }))
}

/// Reads the bundles of an artifact.
async fn bundles(registry: &Registry, digest: &str) -> Result<Vec<Evidence>, OciError> {
    let index = match registry.referrers(digest).await? {
        Some(index) => Some(index),
        // Registries without the API have an index in a tag.
        None => registry.tagged(&digest.replace(':', "-")).await?,
    };
    let index = index.and_then(|index| serde_json::from_slice(&index).ok());
    let Some(Index { manifests }) = index else {
        return Ok(Vec::new());
    };
    let mut found = Vec::new();
    // The types in the index are not reliable: some registries fill in other ones.
    for referrer in manifests.iter().take(MOST_SIGNATURES) {
        let Some(manifest) = skip_broken(registry.manifest(&referrer.digest).await)? else {
            continue;
        };
        let Ok(manifest) = Manifest::parse(&manifest, "it") else {
            continue;
        };
        let subject = manifest.subject.as_ref();
        if subject.is_none_or(|subject| subject.digest != digest) {
            continue;
        }
        let is_bundle = |layer: &&Descriptor| layer.media_type.starts_with(BUNDLE);
        for layer in manifest.layers.iter().filter(is_bundle) {
            let bundle = skip_broken(registry.blob(layer, LARGEST_SIGNATURE).await)?;
            found.extend(bundle.map(Evidence::Bundle));
        }
    }
    Ok(found)
}

/// Reads the simple signatures of an artifact.
async fn simple(registry: &Registry, digest: &str) -> Result<Vec<Evidence>, OciError> {
    let tag = format!("{}.sig", digest.replace(':', "-"));
    let manifest = registry.tagged(&tag).await?;
    let manifest = manifest.and_then(|manifest| Manifest::parse(&manifest, "it").ok());
    let layers = manifest.map(|manifest| manifest.layers).unwrap_or_default();
    let layers = layers.iter().filter(|layer| layer.media_type == SIMPLE);
    let mut found = Vec::new();
    for layer in layers.take(MOST_SIGNATURES) {
        let Some(signature) = layer.annotations.get(SIGNATURE) else {
            continue;
        };
        let payload = skip_broken(registry.blob(layer, LARGEST_SIGNATURE).await)?;
        found.extend(payload.map(|payload| Evidence::Simple {
            payload,
            signature: signature.clone(),
        }));
    }
    Ok(found)
}

/// Replaces content that cannot be used by `None`: another signature can be sound. A failed request
/// stays an error, because the missing signature could be the sound one.
fn skip_broken(read: Result<Vec<u8>, OciError>) -> Result<Option<Vec<u8>>, OciError> {
    match read {
        Ok(content) => Ok(Some(content)),
        Err(error @ OciError::Request { .. }) if error.class() != Some(crate::Class::NotFound) => {
            Err(error)
        }
        Err(_) => Ok(None),
    }
}
