//! OCI artifacts: packages of files in a registry.
//!
//! [`registry`] has the requests to a registry, with deadlines and limits. [`artifact`] is the
//! format of an artifact, [`verify`] checks signatures, and [`pull`] and [`push`] use all of them.
//! [`chart`] pulls packages of Helm charts.
//! Media types and annotations are those of Flux. Signatures are those of cosign with keys.

pub mod artifact;
mod challenge;
pub mod chart;
pub mod credentials;
mod error;
pub mod pull;
pub mod push;
pub mod registry;
mod request;
pub mod verify;

pub use error::{Class, OciError};

use pleach_model::object::Digest;

/// Returns the digest of bytes, as `sha256:` with hexadecimal digits.
fn digest_of(bytes: &[u8]) -> String {
    Digest::of(bytes).to_string()
}
