//! Secret values in what one run shows.

use pleach_domain::diff::masking::Masker;
use pleach_domain::object::DigestKey;
use pleach_domain::render::Rendered;

/// The operating system gave no random bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("failed to get random bytes from the operating system")]
pub struct NoRandomness;

/// A key of this run only: numbers of secrets mean nothing outside its output.
pub fn run_key() -> Result<DigestKey, NoRandomness> {
    let mut key = vec![0; 32];
    rustls::crypto::ring::default_provider()
        .secure_random
        .fill(&mut key)
        .map_err(|_| NoRandomness)?;
    Ok(DigestKey::new(key))
}

/// Hides what is secret in any of these releases, wherever it is.
pub fn masker<'a>(key: &DigestKey, releases: impl IntoIterator<Item = &'a Rendered>) -> Masker {
    let mut masker = Masker::new(key.clone());
    for rendered in releases {
        masker.guard(&rendered.secret_values);
    }
    masker
}
