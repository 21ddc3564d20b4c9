//! Refusals of the planner that a consent can override, and the form of a
//! consent.

use super::draft::Ctx;
use super::protection::{installed_version, was_without_versions};
use super::version::has_no_versions;

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
