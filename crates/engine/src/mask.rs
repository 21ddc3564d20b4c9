//! Masking of secret values in the output of a run.

use pleach_fields::diff::masking::Masker;
use pleach_model::object::DigestKey;
use pleach_render::Rendered;

/// The operating system provided no random bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("failed to get random bytes from the operating system")]
pub struct NoRandomness;

/// Creates a random digest key for this run. Digests of secrets cannot be compared across runs.
pub fn run_key() -> Result<DigestKey, NoRandomness> {
    let mut key = vec![0; 32];
    rustls::crypto::ring::default_provider()
        .secure_random
        .fill(&mut key)
        .map_err(|_| NoRandomness)?;
    Ok(DigestKey::new(key))
}

/// Builds a masker for the secret values of all these releases, wherever the values appear.
pub fn masker<'a>(key: &DigestKey, releases: impl IntoIterator<Item = &'a Rendered>) -> Masker {
    let mut masker = Masker::new(key.clone());
    for rendered in releases {
        masker.guard(&rendered.secret_values);
    }
    masker
}
