//! What people may consent to although a rule of the planner refuses it, and the
//! lines with which they do.

use super::draft::Ctx;
use super::protection::{installed_version, was_without_versions};
use super::version::has_no_versions;

/// A definition would take fields away that objects have: whoever overrides it
/// wants the objects as the new schema leaves them.
pub(crate) const FIELD_IN_USE: &str = "field-in-use";

/// Nobody of the release could write a role again: the new version may give less
/// than the one that is there, or who writes the role may hold more than git gives
/// him.
pub(crate) const CANNOT_GRANT: &str = "operator-cannot-grant";

/// A Service goes at which something points that stays: whoever overrides it knows
/// that nobody needs that.
pub(crate) const BACKEND_GOES: &str = "backend-goes";

/// What a consent `override` may name beside the checks of the bundle.
pub(crate) const OVERRIDABLE: [&str; 3] = [FIELD_IN_USE, CANNOT_GRANT, BACKEND_GOES];

/// What a consent of this plan is bound to, as it is written in git. A bundle
/// without versions gets a new one by the very commit that consents.
pub(super) fn bound_to(ctx: &Ctx<'_>) -> String {
    let release = &ctx.desired.name.release;
    let from = installed_version(ctx).unwrap_or("…");
    match ctx.removal {
        Some(_) if was_without_versions(ctx) => format!("release: {release}"),
        // What is taken away goes to no version.
        Some(_) => format!("release: {release}, from: {from}"),
        None if has_no_versions(ctx) => format!("release: {release}"),
        None => format!(
            "release: {release}, from: {from}, to: {}",
            ctx.desired.version
        ),
    }
}
