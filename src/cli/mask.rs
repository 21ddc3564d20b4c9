//! Masking of secret values in the output.

pub(super) use pleach_engine::mask::masker;
use pleach_model::object::DigestKey;

use super::error::{CliError, Kind};
use pleach_engine::mask;

/// Returns a key for this run. Numbers of masked secrets are only comparable within its output.
pub(super) fn run_key() -> Result<DigestKey, CliError> {
    mask::run_key().map_err(|error| CliError::new(Kind::Failed, error))
}
