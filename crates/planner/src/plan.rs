//! The planner: turns desired and observed state into ordered steps.
//!
//! [`plan`] is pure, deterministic and total: every problem becomes a finding.
//! It runs passes over a [`draft::Draft`]. A pass emits changes, steps, edges
//! and findings, and reads the output of earlier passes. The draft passes through
//! three [`phases`], each of which owns its fields: decided (passes 1 to 6),
//! ordered (from `leftover` to `crds::run_before`) and bracketed (from
//! `overlays` on):
//!
//! 1. `preflight`: checks that writing is allowed at all. `access::operators`:
//!    checks that controllers that write roles keep the permissions for it.
//!    `checks`: evaluates the checks that the bundle declares.
//! 2. `changes`: decides the action for every desired object and emits its
//!    steps.
//! 3. `access::widen`, `ca_bundles::widen`: keep permissions and CA bundles that
//!    running pods still use. `crds::stage`: defers the parts of a CRD
//!    that cannot be applied yet.
//! 4. `namespace`: creates the release namespace if no manifest contains it,
//!    and reports other missing namespaces.
//! 5. `edges`: adds the dependencies between steps.
//! 6. `prune::decide`: selects objects to delete that git no longer contains,
//!    and finds what the deletions would break. `handover::succeed`: orders
//!    workloads of a release that hands its objects over from another
//!    namespace.
//! 7. `leftover`: registrations whose Service is deleted. `superseded`: stale
//!    registrations whose pods are replaced.
//! 8. `handover`: orders a move to another namespace. `nodes`: changes nodes of the
//!    cluster. `once`: orders steps
//!    after run-once Jobs. `crds::run_before`: orders steps after
//!    storage migrations that need a conversion webhook which is about to be
//!    deleted. `overlays`: adds temporary changes and gates, and the declared
//!    stages that `stages` assigned. `checks` runs again before each of these
//!    stages.
//! 9. `verify`: waits for readiness of all objects, including runtime objects.
//! 10. `overlays` again: ends temporary changes after verify.
//! 11. `prune::steps`: adds the deletions, in order, after verify.
//! 12. `access::shrink`, `crds::finish`: reduce access to what git
//!     declares and rewrite stored objects, after all of the above.
//! 13. `gate`: exempts our own user from gates that would stop this plan.
//!     `certificates`, `workload_context`: report obstacles in the cluster.
//!     `resumed_nodes`: completes nodes in work before it waits for checks.
//! 14. `needless`: without `--wait`, drops waits that no other step needs.
//!
//! `arrange` sorts the steps and refuses cycles. All passes share a `budget`: a
//! plan that is too large is refused as a whole.
//!
//! [`remove`] plans an uninstall. There are no desired objects, so only the
//! deleting passes run.

mod access;
mod arrange;
mod budget;
mod ca_bundles;
mod certificates;
mod changes;
mod checks;
mod cleanup;
mod consent;
mod crds;
mod deletion;
mod draft;
mod drop_unneeded_waits;
mod edges;
mod effects;
mod evidence;
mod file;
mod gate;
mod handover;
mod leftover;
mod model;
mod namespace;
mod node_batches;
mod nodes;
mod overlays;
mod ownership;
mod permissions;
mod phases;
mod preflight;
mod preload;
mod protection;
mod prune;
mod questions;
mod removal;
mod resumed_nodes;
mod run_once_jobs;
mod shrink;
mod stages;
mod stale_registrations;
#[cfg(test)]
mod tests;
mod unbacked;
mod verify;
mod version;
mod workload_context;

pub use deletion::{Deletion, Grant, Propagation};
pub use evidence::{Evidence, Proof};
pub use file::{PLAN_FILE_FORMAT, PlanFile, PlanFileError, ReviewedObject, ReviewedRelease};
pub use handover::is_copied;
pub use leftover::{leaving_service, made_by_others, returned};
pub(crate) use model::secrecy_of_kinds;
pub use model::{
    Action, BaseSecrets, Body, Change, Course, Desired, Digests, DriverObjects, Edge, EdgeReason,
    Need, Op, Outgoing, Overlay, Own, Plan, Policy, Precondition, PriorReleases, Stage, Step,
    StepId, Taken, Terms, Until, is_protected_kind, is_refusal,
};
pub use ownership::{is_foreign, owners_of, takes_ownership};
pub use permissions::{Objects, Permission, Permissions, TemporaryGrant};
pub use prune::REGISTRATIONS;
pub use questions::{Answer, Planning, Question, Topic};
pub use removal::{Consented, Removal, Successor};
pub use version::version_left;

use crate::observe::Observed;
use draft::{Ctx, Draft};
use phases::{Bracketed, Decided, Ordered};
use pleach_model::finding::Finding;
use pleach_model::order::Direction;

/// Version of the plan's serialized form.
pub const FORMAT: u32 = 1;

/// Plans the steps that bring `observed` to `desired` within `policy`. Asks for
/// missing facts; store the answers and plan again.
pub fn plan(desired: &Desired, observed: &Observed, policy: &Policy) -> Planning {
    let mut ctx = Ctx::new(desired, observed, policy);
    let plan = forward(&mut ctx);
    questions::done_or_ask(&ctx, plan)
}

/// Plans from the known facts only, like [`plan`] with a policy that asks
/// nothing.
pub fn plan_offline(desired: &Desired, observed: &Observed, policy: &Policy) -> Plan {
    forward(&mut Ctx::new(desired, observed, policy))
}

fn forward(ctx: &mut Ctx<'_>) -> Plan {
    let desired = ctx.desired;
    let mut draft = Draft::within(&ctx.budget);
    draft.findings.extend(desired.findings.iter().cloned());
    if let Some(refusal) = desired.refuse_size() {
        draft.findings.push(refusal);
        return arrange::run(ctx, draft, Direction::Forward);
    }
    let direction = preflight::run(ctx, &mut draft);
    stages::reverse(ctx, direction);
    let decided = decide(ctx, Decided::new(draft), direction);
    let ordered = order(ctx, decided.order(), direction);
    let bracketed = bracket(ctx, ordered.bracket(), direction);
    arrange::run(ctx, bracketed.finish(), direction)
}

/// Phase 1: decides the action on every object and adds its steps.
fn decide(ctx: &Ctx<'_>, mut draft: Decided, direction: Direction) -> Decided {
    access::operators::check(ctx, &mut draft, direction);
    checks::run(ctx, &mut draft);
    changes::run(ctx, &mut draft);
    access::widen(ctx, &mut draft);
    ca_bundles::widen(ctx, &mut draft);
    crds::stage(ctx, &mut draft, direction);
    namespace::run(ctx, &mut draft);
    namespace::check(ctx, &mut draft);
    changes::await_deletions(&mut draft);
    edges::run(ctx, &mut draft, direction);
    prune::decide(ctx, &mut draft);
    handover::succeed(ctx, &mut draft);
    stages::join(&mut draft, direction);
    draft
}

/// Phase 2: orders the steps around deleted registrations, moves, run-once Jobs
/// and migrations.
fn order(ctx: &Ctx<'_>, mut draft: Ordered, direction: Direction) -> Ordered {
    leftover::run(ctx, &mut draft);
    stale_registrations::run(ctx, &mut draft, direction);
    handover::run(ctx, &mut draft);
    preload::run(ctx, &mut draft, direction);
    nodes::run(ctx, &mut draft, direction);
    run_once_jobs::run_before(ctx, &mut draft);
    crds::run_before(ctx, &mut draft);
    stages::join(&mut draft, direction);
    draft
}

/// Phase 3: encloses the steps in temporary changes, verify and the deletions.
fn bracket(ctx: &Ctx<'_>, mut draft: Bracketed, direction: Direction) -> Bracketed {
    overlays::run(ctx, &mut draft);
    checks::before_stages(ctx, &mut draft);
    verify::run(ctx, &mut draft);
    overlays::finish(ctx, &mut draft);
    prune::steps(ctx, &mut draft);
    access::shrink(ctx, &mut draft);
    crds::finish(ctx, &mut draft);
    cleanup::run(ctx, &mut draft, direction);
    gate::exempt_us(ctx, &mut draft);
    certificates::run(ctx, &mut draft);
    workload_context::run(ctx, &mut draft);
    unbacked::run(ctx, &mut draft);
    resumed_nodes::run(ctx, &mut draft);
    drop_unneeded_waits::run(ctx, &mut draft);
    draft
}

/// Returns a plan without steps for a release that is refused before its
/// objects are observed. The findings are `refusals` and the problems of the
/// record and the cluster.
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

/// Plans the uninstall of a release within `policy`. `desired` identifies the
/// release and has no manifests. Asks for missing facts, like [`plan`].
pub fn remove(
    desired: &Desired,
    removal: &Removal,
    observed: &Observed,
    policy: &Policy,
) -> Planning {
    let mut ctx = Ctx::new(desired, observed, policy);
    ctx.removal = Some(removal);
    let first = questions::before_removal(&ctx);
    if !first.is_empty() {
        return Planning::Ask(first);
    }
    let plan = uninstall(&ctx);
    questions::done_or_ask(&ctx, plan)
}

/// Plans an uninstall from the known facts only, like [`remove`] with a policy
/// that asks nothing.
pub fn remove_offline(
    desired: &Desired,
    removal: &Removal,
    observed: &Observed,
    policy: &Policy,
) -> Plan {
    let mut ctx = Ctx::new(desired, observed, policy);
    ctx.removal = Some(removal);
    uninstall(&ctx)
}

fn uninstall(ctx: &Ctx<'_>) -> Plan {
    let mut draft = Draft::default();
    draft.findings.extend(ctx.desired.findings.iter().cloned());
    preflight::before_removal(ctx, &mut draft);
    let (mut draft, outgoing) = removal::run(ctx, Decided::new(draft));
    overlays::before_removal(ctx, &mut draft, outgoing.ends);
    let mut plan = arrange::run(ctx, draft.finish(), Direction::Reverse);
    plan.removal = Some(outgoing);
    plan
}
