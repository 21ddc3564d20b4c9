//! The lines with which people consent to what is refused without that.

use super::draft::Ctx;
use super::protection::installed_version;
use super::version::has_no_versions;

/// What a consent of this plan is bound to, as it is written in git. A bundle
/// without versions gets a new one by the very commit that consents.
pub(super) fn bound_to(ctx: &Ctx<'_>) -> String {
    let release = &ctx.desired.name.release;
    if has_no_versions(ctx) {
        return format!("release: {release}");
    }
    let from = installed_version(ctx).unwrap_or("…");
    match ctx.removal {
        // What is taken away goes to no version.
        Some(_) => format!("release: {release}, from: {from}"),
        None => format!(
            "release: {release}, from: {from}, to: {}",
            ctx.desired.version
        ),
    }
}
