//! Protected objects, which are not deleted or recreated without consent.

use super::draft::Ctx;
use super::model::is_protected_kind;
use pleach_formats::policy::Protect;
use pleach_model::object::ObjectId;
use pleach_state::inventory::{Attempt, Entry};
use pleach_state::live::Live;

/// Returns the reason why an object is protected, as a plural noun; `None` if
/// it is not.
pub(super) fn protected(ctx: &Ctx<'_>, id: &ObjectId, entry: Option<&Entry>) -> Option<String> {
    let is_load_balancer = id.is("", "Service")
        && ctx
            .observed
            .full
            .get(id)
            .map(Live::value)
            .is_none_or(|live| live["spec"]["type"] == "LoadBalancer");
    let protected = entry.is_some_and(|entry| entry.protected)
        || is_protected_kind(&id.group_kind())
        || is_load_balancer
        || ctx.policy.protect.iter().any(|protect| protect.matches(id))
        || recorded(ctx).any(|protect| protect.matches(id));
    protected.then(|| {
        if is_load_balancer {
            "load balancers".to_owned()
        } else {
            format!("objects of kind {}", id.kind)
        }
    })
}

/// Returns the kinds that the environment protected when the release, or the
/// release it takes objects from, was applied. A commit that stops protecting a
/// kind then does not delete its objects.
fn recorded<'c>(ctx: &'c Ctx<'_>) -> impl Iterator<Item = &'c Protect> {
    let policies = ctx.observed.policies();
    policies.flat_map(|memory| &memory.protect)
}

/// Returns the version that a change or uninstall leaves.
pub(super) fn installed_version<'c>(ctx: &'c Ctx<'_>) -> Option<&'c str> {
    left(ctx).map(|attempt| attempt.version.as_str())
}

/// Returns whether that version is a git revision, as for a bundle without
/// version folders.
pub(super) fn was_without_versions(ctx: &Ctx<'_>) -> bool {
    left(ctx).is_some_and(|attempt| attempt.version == attempt.revision)
}

fn left<'c>(ctx: &'c Ctx<'_>) -> Option<&'c Attempt> {
    let record = ctx.observed.installed.as_ref()?;
    record.installed.as_ref().or(record.applying.as_ref())
}
