//! Secret values in what one run prints.

use pleach_domain::object::DigestKey;

use super::error::{CliError, Kind};
use crate::engine::mask;
pub(super) use crate::engine::mask::masker;

/// A key of this run only: numbers of secrets mean nothing outside its output.
pub(super) fn run_key() -> Result<DigestKey, CliError> {
    mask::run_key().map_err(|error| CliError::new(Kind::Failed, error))
}
