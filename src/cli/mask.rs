//! Secret values in what one run prints.

use pleach_domain::diff::masking::Masker;
use pleach_domain::object::DigestKey;
use pleach_domain::render::Rendered;

use super::error::{CliError, Kind};

/// A key of this run only: numbers of secrets mean nothing outside its output.
pub(super) fn run_key() -> Result<DigestKey, CliError> {
    let mut key = vec![0; 32];
    rustls::crypto::ring::default_provider()
        .secure_random
        .fill(&mut key)
        .map_err(|_| {
            CliError::new(
                Kind::Failed,
                "failed to get random bytes from the operating system",
            )
        })?;
    Ok(DigestKey::new(key))
}

/// Hides what is secret in any of these releases, wherever it is.
pub(super) fn masker<'a>(
    key: &DigestKey,
    releases: impl IntoIterator<Item = &'a Rendered>,
) -> Masker {
    let mut masker = Masker::new(key.clone());
    for rendered in releases {
        masker.guard(&rendered.secret_values);
    }
    masker
}
