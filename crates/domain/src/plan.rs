//! The planner: from what is wanted and what is there to ordered steps.
//!
//! [`plan`] is pure, total (what cannot be done becomes a finding) and
//! deterministic. It runs passes over a [`draft::Draft`]; a pass emits changes,
//! steps, edges and findings and reads what earlier passes left:
//!
//! 1. `preflight`: may anything be written at all? With `access::operators`:
//!    could those who write roles still do so? `checks`: does everything hold
//!    that the bundle asks for?
//! 2. `changes`: what happens to every desired object, and the steps for it.
//! 3. `access::widen`, `trust::widen`: what running pods may need stays for now,
//!    and who trusts them. `definitions::stage`: what of a definition can only
//!    be had later.
//! 4. `namespace`: the release's namespace, when no manifest has it; others that
//!    are missing.
//! 5. `edges`: what one step needs of another.
//! 6. `prune::decide`: what git no longer has and may go, and what that would
//!    break; `handover::succeed`: what of a release runs elsewhere that hands its
//!    objects over.
//! 7. `leftover`: registrations whose Service goes; `superseded`: those that git no
//!    longer has, and whose pods are replaced.
//! 8. `handover`: what moves to another namespace; `once`: what comes after Jobs
//!    that run once; `definitions::run_before`: what comes after objects that a
//!    webhook which goes has to convert; `overlays`: what is different or closed for a while, and
//!    declared stages with what `stages` assigns to them; `checks` again before
//!    each of these.
//! 9. `verify`: readiness of everything, run-time objects too.
//! 10. `overlays` again: what ends after that.
//! 11. `prune::steps`: the deletions, in order, after that.
//! 12. `access::shrink`, `definitions::finish`: access reduced to what git has,
//!     stored objects rewritten, after all of it.
//! 13. `gate`: whether a gate lets our own writes through. `certificates`, `surroundings`: what may be in the way of all that.
//! 14. `needless`: without `--wait`, no wait that no other step needs.
//!
//! `arrange` sorts the steps and refuses cycles. All passes share a `budget`: a plan
//! that is too large is refused as a whole.
//!
//! [`remove`] is the same for a release that goes as a whole: there is nothing
//! desired, so only the passes that take away are left.

mod access;
mod arrange;
mod budget;
mod certificates;
mod changes;
mod checks;
mod consent;
mod definitions;
mod deletion;
mod draft;
mod edges;
mod effects;
mod file;
mod gate;
mod handover;
mod leftover;
mod model;
mod namespace;
mod needless;
mod once;
mod overlays;
mod ownership;
mod preflight;
mod protection;
mod prune;
mod removal;
mod shrink;
mod stages;
mod superseded;
mod surroundings;
#[cfg(test)]
mod tests;
mod trust;
mod unbacked;
mod verify;
mod version;
pub mod view;

pub(crate) use consent::OVERRIDABLE;
pub use deletion::{Deletion, Grant, Propagation};
pub use file::{PLAN_FILE_FORMAT, PlanFile, PlanFileError, ReviewedObject, ReviewedRelease};
pub use leftover::{leaving_service, made_by_others, returned};
pub use model::{
    Action, Body, Brought, Cause, Change, Course, Desired, Direction, Edge, EdgeReason, Need,
    NonSecret, Op, Outgoing, Overlay, Own, Plan, Policy, Precondition, Stage, Step, StepId, Taken,
    Terms, Until, is_protected_kind, is_refusal,
};
pub use once::runs_once;
pub use ownership::{is_foreign, owners_of, takes_over};
pub(crate) use prune::REGISTRATIONS;
pub use removal::{Consented, Heir, Removal};
pub use version::version_left;

pub use crate::overlay::OverlayId;

use crate::finding::Finding;
use crate::observe::Observed;
use draft::{Ctx, Draft};

/// Version of the plan's serialized form.
pub const FORMAT: u32 = 1;

/// Makes the plan that brings `observed` to `desired` within `policy`.
pub fn plan(desired: &Desired, observed: &Observed, policy: &Policy) -> Plan {
    let mut ctx = Ctx::new(desired, observed, policy);
    let mut draft = Draft::within(&ctx.budget);
    draft.findings.extend(desired.findings.iter().cloned());
    if let Some(refusal) = desired.refuse_size() {
        draft.findings.push(refusal);
        return arrange::run(&ctx, draft, Direction::Forward);
    }
    let direction = preflight::run(&ctx, &mut draft);
    stages::turn(&mut ctx, direction);
    access::operators::check(&ctx, &mut draft, direction);
    checks::run(&ctx, &mut draft);
    changes::run(&ctx, &mut draft);
    access::widen(&ctx, &mut draft);
    trust::widen(&ctx, &mut draft);
    definitions::stage(&ctx, &mut draft, direction);
    namespace::run(&ctx, &mut draft);
    namespace::check(&ctx, &mut draft);
    changes::before_ends(&mut draft);
    edges::run(&ctx, &mut draft, direction);
    prune::decide(&ctx, &mut draft);
    handover::succeed(&ctx, &mut draft);
    stages::join(&mut draft, direction);
    leftover::run(&ctx, &mut draft);
    superseded::run(&ctx, &mut draft, direction);
    handover::run(&ctx, &mut draft);
    once::run_before(&ctx, &mut draft);
    definitions::run_before(&ctx, &mut draft);
    stages::join(&mut draft, direction);
    overlays::run(&ctx, &mut draft);
    checks::before_stages(&ctx, &mut draft);
    verify::run(&ctx, &mut draft);
    overlays::finish(&ctx, &mut draft);
    prune::steps(&ctx, &mut draft);
    access::shrink(&ctx, &mut draft);
    definitions::finish(&ctx, &mut draft);
    gate::exempt_us(&ctx, &mut draft);
    certificates::run(&ctx, &mut draft);
    surroundings::run(&ctx, &mut draft);
    unbacked::run(&ctx, &mut draft);
    needless::run(&ctx, &mut draft);
    arrange::run(&ctx, draft, direction)
}

/// Makes the plan that does nothing, for a release that is refused before its objects are
/// observed: with what is wrong with the record and the cluster.
pub fn refuse(
    desired: &Desired,
    observed: &Observed,
    policy: &Policy,
    refusals: Vec<Finding>,
) -> Plan {
    let ctx = Ctx::new(desired, observed, policy);
    let mut draft = Draft::default();
    draft.findings.extend(desired.findings.iter().cloned());
    let direction = preflight::run(&ctx, &mut draft);
    draft.findings.extend(refusals);
    arrange::run(&ctx, draft, direction)
}

/// Makes the plan that takes a release away as a whole, within `policy`.
/// `desired` says which release it is and has no manifests.
pub fn remove(desired: &Desired, removal: &Removal, observed: &Observed, policy: &Policy) -> Plan {
    let mut ctx = Ctx::new(desired, observed, policy);
    ctx.removal = Some(removal);
    let mut draft = Draft::default();
    draft.findings.extend(desired.findings.iter().cloned());
    preflight::before_removal(&ctx, &mut draft);
    let outgoing = removal::run(&ctx, &mut draft);
    overlays::before_removal(&ctx, &mut draft, outgoing.ends);
    let mut plan = arrange::run(&ctx, draft, Direction::Reverse);
    plan.removal = Some(outgoing);
    plan
}
