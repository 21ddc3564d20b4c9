//! What may be written and is not built yet: refused in words, never ignored.

use crate::finding::{Finding, Kind};
use crate::object::Origin;

/// Refuses a feature at a place.
pub(super) fn at(place: Origin, what: &str) -> Finding {
    Finding::error(
        Kind::Repository,
        "not-supported-yet",
        format!("`{what}` is not supported yet"),
    )
    .at(place)
}
