//! Signatures of cosign with keys: a pure function over bytes.
//!
//! A signature is over a statement that names the digest of the artifact. There are two forms: a
//! "simple signing" payload, and a sigstore bundle with a DSSE envelope of an in-toto statement.
//! Transparency logs are not checked: the key alone decides.

use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use ring::signature::{
    ECDSA_P256_SHA256_ASN1, ECDSA_P384_SHA256_ASN1, ECDSA_P384_SHA384_ASN1, ED25519,
    RSA_PKCS1_2048_8192_SHA256, UnparsedPublicKey, VerificationAlgorithm,
};
use serde::Deserialize;
use x509_parser::asn1_rs::{FromDer as _, Oid, oid};
use x509_parser::pem::Pem;
use x509_parser::x509::SubjectPublicKeyInfo;

use crate::digest_of;

/// Type of a simple signing payload.
const SIMPLE_TYPE: &str = "cosign container image signature";
/// Type of the payload of an envelope.
const IN_TOTO: &str = "application/vnd.in-toto+json";
/// Type of a statement that is a signature, and not an attestation of something else.
const SIGNATURE_TYPE: &str = "https://sigstore.dev/cosign/sign/v1";
/// Label of a public key in PEM.
const PUBLIC_KEY: &str = "PUBLIC KEY";
/// Number of digits of a fingerprint in messages.
const FINGERPRINT: usize = "sha256:".len() + 12;

/// Reason why a file with public keys cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum KeyError {
    /// The file has no key.
    #[error("there is no public key in PEM: expected `-----BEGIN PUBLIC KEY-----`")]
    None,
    /// A block has another content.
    #[error("block {position} is `{label}`, not a public key")]
    Label {
        /// Position, from 1.
        position: usize,
        /// Label of the block.
        label: String,
    },
    /// A block is not well-formed.
    #[error("block {0} is not a well-formed public key")]
    Format(usize),
    /// The algorithm is not supported.
    #[error("key {0} is neither ECDSA P-256 or P-384, nor Ed25519, nor RSA")]
    Algorithm(usize),
}

/// Algorithm of a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Algorithm {
    EcdsaP256,
    EcdsaP384,
    Ed25519,
    Rsa,
}

impl Algorithm {
    /// Returns the kinds of signatures that cosign makes with such a key.
    fn verifiers(self) -> Vec<&'static dyn VerificationAlgorithm> {
        match self {
            Self::EcdsaP256 => vec![&ECDSA_P256_SHA256_ASN1],
            Self::EcdsaP384 => vec![&ECDSA_P384_SHA256_ASN1, &ECDSA_P384_SHA384_ASN1],
            Self::Ed25519 => vec![&ED25519],
            Self::Rsa => vec![&RSA_PKCS1_2048_8192_SHA256],
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::EcdsaP256 => "ECDSA P-256",
            Self::EcdsaP384 => "ECDSA P-384",
            Self::Ed25519 => "Ed25519",
            Self::Rsa => "RSA",
        }
    }
}

/// Public key.
#[derive(Debug, Clone, PartialEq, Eq)]
struct PublicKey {
    algorithm: Algorithm,
    /// Key in the form that its algorithm defines.
    bytes: Vec<u8>,
    /// Digest of the key with its algorithm.
    fingerprint: String,
}

/// Trusted public keys, at least one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PublicKeys(Vec<PublicKey>);

impl fmt::Display for PublicKeys {
    /// Lists algorithms and fingerprints: `ECDSA P-256 sha256:0123456789ab`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let keys = self.0.iter().map(|key| {
            let fingerprint = key.fingerprint.get(..FINGERPRINT).unwrap_or_default();
            format!("{} {fingerprint}", key.algorithm.name())
        });
        f.write_str(&keys.collect::<Vec<_>>().join(", "))
    }
}

impl PublicKeys {
    /// Reads keys in PEM, one or several.
    pub fn read(pem: &[u8]) -> Result<Self, KeyError> {
        let mut keys = Vec::new();
        for (index, block) in Pem::iter_from_buffer(pem).enumerate() {
            let position = index + 1;
            let block = block.map_err(|_| KeyError::Format(position))?;
            if block.label != PUBLIC_KEY {
                return Err(KeyError::Label {
                    position,
                    label: block.label,
                });
            }
            keys.push(public_key(&block.contents, position)?);
        }
        if keys.is_empty() {
            return Err(KeyError::None);
        }
        Ok(Self(keys))
    }

    /// Returns whether one of the keys made a signature.
    fn have_signed(&self, message: &[u8], signature: &[u8]) -> bool {
        let mut keys = self.0.iter();
        keys.any(|key| {
            let mut verifiers = key.algorithm.verifiers().into_iter();
            verifiers.any(|verifier| {
                let key = UnparsedPublicKey::new(verifier, &key.bytes);
                key.verify(message, signature).is_ok()
            })
        })
    }
}

const EC: Oid<'static> = oid!(1.2.840.10045.2.1);
const P256: Oid<'static> = oid!(1.2.840.10045.3.1.7);
const P384: Oid<'static> = oid!(1.3.132.0.34);
const ED_25519: Oid<'static> = oid!(1.3.101.112);
const RSA: Oid<'static> = oid!(1.2.840.113549.1.1.1);

fn public_key(der: &[u8], position: usize) -> Result<PublicKey, KeyError> {
    let (rest, info) =
        SubjectPublicKeyInfo::from_der(der).map_err(|_| KeyError::Format(position))?;
    if !rest.is_empty() {
        return Err(KeyError::Format(position));
    }
    let kind = &info.algorithm.algorithm;
    let curve = info.algorithm.parameters.as_ref();
    let curve = curve.and_then(|curve| curve.as_oid().ok());
    let algorithm = match curve {
        Some(curve) if *kind == EC && curve == P256 => Algorithm::EcdsaP256,
        Some(curve) if *kind == EC && curve == P384 => Algorithm::EcdsaP384,
        _ if *kind == ED_25519 => Algorithm::Ed25519,
        _ if *kind == RSA => Algorithm::Rsa,
        _ => return Err(KeyError::Algorithm(position)),
    };
    Ok(PublicKey {
        algorithm,
        bytes: info.subject_public_key.data.to_vec(),
        fingerprint: digest_of(der),
    })
}

/// Signature of an artifact, as a registry returned it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Evidence {
    /// Simple signing.
    Simple {
        /// Signed bytes.
        payload: Vec<u8>,
        /// Signature in base64.
        signature: String,
    },
    /// Sigstore bundle as JSON.
    Bundle(Vec<u8>),
}

/// Reason why one signature does not count.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Objection {
    /// No trusted key made it.
    #[error("a signature is by another key")]
    OtherKey,
    /// The signed statement names another artifact.
    #[error("a signature is for another artifact")]
    OtherArtifact,
    /// The signed statement is not a signature of an artifact.
    #[error("a signed statement is not a signature of an artifact")]
    OtherStatement,
    /// The signature has an unknown form.
    #[error("a signature has an unknown form")]
    Format,
}

/// Reasons why an artifact is not trusted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Untrusted {
    /// One objection per signature.
    pub objections: Vec<Objection>,
    /// Keys that were tried, for messages.
    pub keys: String,
}

impl fmt::Display for Untrusted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.objections.is_empty() {
            f.write_str("there is no signature")?;
        }
        let mut objections: Vec<String> = self.objections.iter().map(ToString::to_string).collect();
        objections.dedup();
        write!(f, "{}; trusted: {}", objections.join(", "), self.keys)
    }
}

impl std::error::Error for Untrusted {}

/// Checks that a trusted key signed the artifact with this digest. One sound signature suffices.
pub fn verify(keys: &PublicKeys, digest: &str, evidence: &[Evidence]) -> Result<(), Untrusted> {
    let mut objections = Vec::new();
    for one in evidence {
        match check(keys, digest, one) {
            Ok(()) => return Ok(()),
            Err(objection) => objections.push(objection),
        }
    }
    Err(Untrusted {
        objections,
        keys: keys.to_string(),
    })
}

fn check(keys: &PublicKeys, digest: &str, evidence: &Evidence) -> Result<(), Objection> {
    match evidence {
        Evidence::Simple { payload, signature } => {
            let signature = decode(signature)?;
            if !keys.have_signed(payload, &signature) {
                return Err(Objection::OtherKey);
            }
            check_simple(digest, payload)
        }
        Evidence::Bundle(bundle) => {
            let envelope = parse::<Bundle>(bundle)?.dsse_envelope;
            let payload = decode(&envelope.payload)?;
            let message = pre_authentication(&envelope.payload_type, &payload);
            let is_signed = |one: &EnvelopeSignature| {
                decode(&one.sig).is_ok_and(|signature| keys.have_signed(&message, &signature))
            };
            if !envelope.signatures.iter().any(is_signed) {
                return Err(Objection::OtherKey);
            }
            if envelope.payload_type != IN_TOTO {
                return Err(Objection::OtherStatement);
            }
            check_statement(digest, &payload)
        }
    }
}

#[derive(Deserialize)]
struct SimplePayload {
    critical: Critical,
}

#[derive(Deserialize)]
struct Critical {
    image: Image,
    r#type: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
struct Image {
    docker_manifest_digest: String,
}

fn check_simple(digest: &str, payload: &[u8]) -> Result<(), Objection> {
    let critical = parse::<SimplePayload>(payload)?.critical;
    if ![SIMPLE_TYPE, SIGNATURE_TYPE].contains(&&*critical.r#type) {
        return Err(Objection::OtherStatement);
    }
    if critical.image.docker_manifest_digest != digest {
        return Err(Objection::OtherArtifact);
    }
    Ok(())
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Bundle {
    dsse_envelope: Envelope,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Envelope {
    payload: String,
    payload_type: String,
    signatures: Vec<EnvelopeSignature>,
}

#[derive(Deserialize)]
struct EnvelopeSignature {
    sig: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Statement {
    predicate_type: String,
    subject: Vec<Subject>,
}

#[derive(Deserialize)]
struct Subject {
    digest: SubjectDigest,
}

#[derive(Deserialize)]
struct SubjectDigest {
    sha256: Option<String>,
}

fn check_statement(digest: &str, payload: &[u8]) -> Result<(), Objection> {
    let statement: Statement = parse(payload)?;
    if statement.predicate_type != SIGNATURE_TYPE {
        return Err(Objection::OtherStatement);
    }
    let hex = digest.strip_prefix("sha256:").ok_or(Objection::Format)?;
    let names_it = |subject: &Subject| subject.digest.sha256.as_deref() == Some(hex);
    if !statement.subject.iter().any(names_it) {
        return Err(Objection::OtherArtifact);
    }
    Ok(())
}

/// Returns the bytes that a DSSE signature covers.
fn pre_authentication(kind: &str, payload: &[u8]) -> Vec<u8> {
    let mut message = format!("DSSEv1 {} {kind} {} ", kind.len(), payload.len()).into_bytes();
    message.extend_from_slice(payload);
    message
}

fn decode(text: &str) -> Result<Vec<u8>, Objection> {
    STANDARD.decode(text.trim()).map_err(|_| Objection::Format)
}

fn parse<'a, T: Deserialize<'a>>(json: &'a [u8]) -> Result<T, Objection> {
    serde_json::from_slice(json).map_err(|_| Objection::Format)
}

#[cfg(test)]
mod tests;
