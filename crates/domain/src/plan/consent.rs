//! Refusals of the planner that a consent can override, and the form of a
//! consent.

use super::draft::Ctx;
use super::protection::{installed_version, was_without_versions};
use super::version::has_no_versions;

/// A CRD would drop fields that objects use. An override accepts the objects as
/// the new schema leaves them.
pub(crate) const FIELD_IN_USE: &str = "field-in-use";

/// No workload of the release could write a role again. The new version may
/// grant less than the installed one, or the role writer may have more
/// permissions than git grants it.
pub(crate) const CANNOT_GRANT: &str = "operator-cannot-grant";

/// A Service is deleted while a remaining object references it. An override
/// states that the reference is not needed.
pub(crate) const BACKEND_GOES: &str = "backend-goes";

/// Codes that a consent `override` may name, in addition to checks of the
/// bundle.
pub(crate) const OVERRIDABLE: [&str; 3] = [FIELD_IN_USE, CANNOT_GRANT, BACKEND_GOES];

/// Returns the fields that bind a consent to this plan, in the form used in
/// git. For a bundle without versions, the consenting commit itself changes the
/// version.
pub(super) fn bound_to(ctx: &Ctx<'_>) -> String {
    let release = &ctx.desired.name.release;
    let from = installed_version(ctx).unwrap_or("…");
    match ctx.removal {
        Some(_) if was_without_versions(ctx) => format!("release: {release}"),
        // An uninstall has no target version.
        Some(_) => format!("release: {release}, from: {from}"),
        None if has_no_versions(ctx) => format!("release: {release}"),
        None => format!(
            "release: {release}, from: {from}, to: {}",
            ctx.desired.version
        ),
    }
}
