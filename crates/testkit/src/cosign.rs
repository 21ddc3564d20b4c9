//! Signatures as cosign makes them with a key.

use anyhow::Context as _;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use rcgen::{KeyPair, SigningKey as _};
use serde_json::{Value, json};

use crate::registry::Registry;

const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
const BUNDLE: &str = "application/vnd.dev.sigstore.bundle.v0.3+json";
const IN_TOTO: &str = "application/vnd.in-toto+json";

/// Private key, ECDSA P-256.
#[derive(Debug)]
pub struct CosignKey(KeyPair);

/// Form of a signature in a registry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// Simple signing, in the tag `sha256-DIGEST.sig`.
    Simple,
    /// Bundle that refers to the artifact.
    Referrer,
    /// Bundle in the index of the tag `sha256-DIGEST`.
    FallbackTag,
}

impl CosignKey {
    /// Generates a key.
    pub fn generate() -> anyhow::Result<Self> {
        Ok(Self(KeyPair::generate()?))
    }

    /// Returns the public key in PEM.
    pub fn public_pem(&self) -> String {
        self.0.public_key_pem()
    }

    /// Signs an artifact in a repository of a registry.
    pub fn sign(
        &self,
        registry: &Registry,
        repository: &str,
        digest: &str,
        form: Form,
    ) -> anyhow::Result<()> {
        match form {
            Form::Simple => self.sign_simple(registry, repository, digest),
            Form::Referrer => self.bundle(registry, digest).map(drop),
            Form::FallbackTag => {
                let bundle = self.bundle(registry, digest)?;
                let index = json!({ "schemaVersion": 2, "manifests": [bundle] });
                let tag = format!("{repository}:{}", digest.replace(':', "-"));
                registry.publish_manifest(&tag, &index).map(drop)
            }
        }
    }

    fn sign_simple(
        &self,
        registry: &Registry,
        repository: &str,
        digest: &str,
    ) -> anyhow::Result<()> {
        let payload = json!({
            "critical": {
                "identity": { "docker-reference": repository },
                "image": { "docker-manifest-digest": digest },
                "type": "cosign container image signature",
            },
            "optional": null,
        });
        let payload = payload.to_string().into_bytes();
        let signature = STANDARD.encode(self.0.sign(&payload)?);
        let kind = "application/vnd.dev.cosign.simplesigning.v1+json";
        let mut layer = registry.add(kind, payload);
        layer["annotations"] = json!({ "dev.cosignproject.cosign/signature": signature });
        let config = registry.add("application/vnd.oci.image.config.v1+json", b"{}".to_vec());
        let manifest = json!({ "schemaVersion": 2, "config": config, "layers": [layer] });
        let tag = format!("{repository}:{}.sig", digest.replace(':', "-"));
        registry.publish_manifest(&tag, &manifest).map(drop)
    }

    /// Adds a manifest with a bundle, and returns its descriptor.
    fn bundle(&self, registry: &Registry, digest: &str) -> anyhow::Result<Value> {
        let hex = digest.strip_prefix("sha256:").context("no digest")?;
        let statement = json!({
            "_type": "https://in-toto.io/Statement/v1",
            "subject": [{ "digest": { "sha256": hex } }],
            "predicateType": "https://sigstore.dev/cosign/sign/v1",
            "predicate": {},
        });
        let payload = statement.to_string();
        let message = format!(
            "DSSEv1 {} {IN_TOTO} {} {payload}",
            IN_TOTO.len(),
            payload.len()
        );
        let signature = STANDARD.encode(self.0.sign(message.as_bytes())?);
        let bundle = json!({
            "mediaType": BUNDLE,
            "verificationMaterial": { "publicKey": { "hint": "" } },
            "dsseEnvelope": {
                "payload": STANDARD.encode(&payload),
                "payloadType": IN_TOTO,
                "signatures": [{ "sig": signature }],
            },
        });
        let layer = registry.add(BUNDLE, bundle.to_string().into_bytes());
        let config = registry.add("application/vnd.oci.empty.v1+json", b"{}".to_vec());
        let manifest = json!({
            "schemaVersion": 2,
            "mediaType": MANIFEST,
            "config": config,
            "layers": [layer],
            "subject": { "mediaType": MANIFEST, "digest": digest, "size": 0 },
        });
        Ok(registry.add(MANIFEST, manifest.to_string().into_bytes()))
    }
}
