//! Order of a downgrade: the first steps of an upgrade become the last.
//!
//! While both versions run, the newer CRDs serve both, and the newer backend
//! answers the older registrations. So custom resources are downgraded first,
//! then registrations, workloads and CRDs. Bindings of admission policies come
//! before the policies, and policies before their parameters.
//!
//! Some steps come first in either direction. These are prerequisites
//! (namespaces, permissions, configuration), all creations, workloads that do
//! not answer, and objects that would refuse the older version of their
//! dependents.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use super::needs::{Dependencies, Dependency};
use crate::crd::is_crd;
use crate::observe::{Prediction, Unverified};
use crate::plan::{
    draft::{Ctx, Draft},
    model::{Action, EdgeReason, Need},
};
use pleach_formats::versions::semantic;
use pleach_model::discovery::Served;
use pleach_model::object::ObjectId;
use pleach_model::order::StageName;

/// Dependencies with a reversed order.
#[derive(Default)]
pub(super) struct Reversed<'a> {
    /// Positions of the dependencies whose needed object changes last.
    dependencies: BTreeSet<usize>,
    /// The same dependencies as pairs of needed object and dependent.
    pairs: BTreeSet<(&'a ObjectId, &'a ObjectId)>,
    /// Workloads that must be ready before CRDs are downgraded.
    pub(super) after_workloads: BTreeMap<Vec<&'a ObjectId>, Vec<&'a ObjectId>>,
}

impl Reversed<'_> {
    /// Returns whether the dependency at a position is reversed.
    pub(super) fn holds(&self, position: usize) -> bool {
        self.dependencies.contains(&position)
    }

    /// Returns whether a dependent changes before the object it needs.
    pub(super) fn has(&self, needed: &ObjectId, by: &ObjectId) -> bool {
        self.pairs.contains(&(needed, by))
    }
}

/// Selects the dependencies to reverse. A reversal that would create a cycle is
/// omitted.
pub(super) fn reversed<'a>(
    ctx: &Ctx<'a>,
    draft: &Draft,
    dependencies: &Dependencies<'a>,
) -> Reversed<'a> {
    let mut order = Order::default();
    let mut candidates = Vec::new();
    let is_changed = |id: &&&ObjectId| draft.done_by.contains_key(**id);
    for joint in &dependencies.joints {
        let (from, to) = (joint.from.iter(), joint.to.iter());
        order.join(from.filter(is_changed), to.filter(is_changed));
    }
    for (position, dependency) in dependencies.single.iter().enumerate() {
        if can_reverse(ctx, draft, dependency) {
            candidates.push((position, dependency));
        } else if is_done(draft, dependency) {
            order.add(dependency.from, dependency.to);
        }
    }
    let mut reversed = Reversed::default();
    for (position, dependency) in candidates {
        let (from, to) = (dependency.from, dependency.to);
        if order.later_than(draft, from).contains(to) {
            order.add(from, to);
        } else {
            order.add(to, from);
            reversed.dependencies.insert(position);
            reversed.pairs.insert((from, to));
        }
    }
    let changed = ctx.manifests.keys().copied().filter(|id| is_changed(&id));
    let workloads: Vec<&ObjectId> = changed.filter(|id| is_workload(ctx, id)).collect();
    for &crd in ctx.manifests.keys().filter(|id| is_crd(id)) {
        if !is_downgraded(draft, crd) || !is_served(ctx, crd) {
            continue;
        }
        // For a CRD in a declared stage, the stage decides the order.
        if ctx.declared(&ctx.stage_of(crd)).is_some() {
            continue;
        }
        let later = order.later_than(draft, crd);
        let mut earlier = workloads.clone();
        earlier.retain(|workload| !later.contains(workload));
        order.join(earlier.iter(), [crd].iter());
        reversed
            .after_workloads
            .entry(earlier)
            .or_default()
            .push(crd);
    }
    reversed
}

pub(super) fn is_workload(ctx: &Ctx<'_>, id: &ObjectId) -> bool {
    ctx.stage_of_kind(id) == StageName::Workloads
}

/// Returns whether an existing object is downgraded.
fn is_downgraded(draft: &Draft, id: &ObjectId) -> bool {
    draft.action(id) == Some(Action::Update)
}

/// Returns whether both objects have steps. An unchanged object has no position
/// in the order and imposes none on others.
fn is_done(draft: &Draft, dependency: &Dependency<'_>) -> bool {
    let Dependency { from, to, .. } = dependency;
    [from, to].iter().all(|id| draft.done_by.contains_key(**id))
}

/// Returns whether both objects exist and either may change first.
fn can_reverse(ctx: &Ctx<'_>, draft: &Draft, dependency: &Dependency<'_>) -> bool {
    let may = match dependency.why {
        EdgeReason::Crd => is_served(ctx, dependency.from),
        EdgeReason::Backend | EdgeReason::Intercepts | EdgeReason::Policy | EdgeReason::After => {
            true
        }
        _ => false,
    };
    may && is_downgraded(draft, dependency.from)
        && is_downgraded(draft, dependency.to)
        && answers(ctx, dependency.from)
        && is_let_through(ctx, dependency.to)
}

/// Returns whether the server accepts an object before anything else is
/// downgraded. A webhook may deny the older version, or be unreachable.
pub(in crate::plan) fn is_let_through(ctx: &Ctx<'_>, id: &ObjectId) -> bool {
    !matches!(
        ctx.observed.predicted.get(id),
        Some(Prediction::Refused(_) | Prediction::Unverified(Unverified::Webhook(_)))
    )
}

/// Returns whether a workload has available pods; true if the object is not a
/// workload or has not been read. A workload without available pods is usually
/// the cause of the rollback. It answers no requests and reconciles nothing, so
/// no other object can be downgraded before it.
fn answers(ctx: &Ctx<'_>, id: &ObjectId) -> bool {
    let available = match id.kind.as_str() {
        "DaemonSet" => "numberAvailable",
        "Deployment" | "StatefulSet" | "ReplicaSet" | "ReplicationController" => {
            "availableReplicas"
        }
        _ => return true,
    };
    let live = ctx.observed.full.get(id);
    let status = live.map(|live| &live.value()["status"]);
    // Without a cluster there is no status.
    let status = status.filter(|status| !status.is_null());
    status.is_none_or(|status| status[available].as_u64().unwrap_or(0) > 0)
}

/// Returns the state that a dependent must reach before the object it needs is
/// downgraded.
pub(super) fn required_before(ctx: &Ctx<'_>, dependency: &Dependency<'_>) -> Need {
    let Dependency { from, to, why, .. } = dependency;
    let is_own = ctx.crd(&to.group_kind()).is_some();
    if is_own && is_workload(ctx, from) {
        // The present controller installs the version that its custom resource
        // names, and possibly only the newer one knows how to. If the resource
        // names no version, the controller installs its own, so the change
        // takes effect only after the controller itself is downgraded.
        let waits = names_another_version(ctx, to) && !ctx.is_applied_only(&ctx.stage_of(to));
        return if waits { Need::Ready } else { Need::Applied };
    }
    // `pleach.dev/after` demands readiness in both directions. For other
    // dependencies it is sufficient that the object is written.
    match why {
        EdgeReason::After => Need::Ready,
        _ => Need::Applied,
    }
}

/// Returns whether the spec of an object changes a version number.
fn names_another_version(ctx: &Ctx<'_>, id: &ObjectId) -> bool {
    let desired = ctx.manifests.get(id).map(|manifest| manifest.value());
    let live = ctx.observed.full.get(id);
    desired
        .zip(live)
        .is_some_and(|(desired, live)| has_another_version(&desired["spec"], &live.value()["spec"]))
}

fn has_another_version(desired: &Value, live: &Value) -> bool {
    match desired {
        Value::String(text) => desired != live && semantic(text).is_some(),
        Value::Object(fields) => fields
            .iter()
            .any(|(name, desired)| has_another_version(desired, &live[name])),
        Value::Array(items) => items
            .iter()
            .enumerate()
            .any(|(place, desired)| has_another_version(desired, &live[place])),
        _ => false,
    }
}

/// Returns whether the present CRD already serves all versions of the desired
/// one. Dependents of the desired CRD can then be applied before it.
pub(super) fn is_served(ctx: &Ctx<'_>, crd: &ObjectId) -> bool {
    let facts = ctx.facts.get(crd);
    facts
        .and_then(|facts| facts.defines.as_ref())
        .is_some_and(|defines| {
            let discovery = &ctx.observed.discovery;
            let served = |gvk| matches!(discovery.served(gvk), Served::Current(_));
            defines.served.iter().all(served)
        })
}

/// Partial order of objects.
#[derive(Default)]
struct Order<'a> {
    later: BTreeMap<&'a ObjectId, BTreeSet<&'a ObjectId>>,
    /// Positions of the joints that come after an object.
    joined: BTreeMap<&'a ObjectId, Vec<usize>>,
    joints: Vec<Vec<&'a ObjectId>>,
}

impl<'a> Order<'a> {
    fn add(&mut self, earlier: &'a ObjectId, later: &'a ObjectId) {
        self.later.entry(earlier).or_default().insert(later);
    }

    /// Adds all of `earlier` before all of `later`.
    fn join<'i>(
        &mut self,
        earlier: impl Iterator<Item = &'i &'a ObjectId>,
        later: impl Iterator<Item = &'i &'a ObjectId>,
    ) where
        'a: 'i,
    {
        let joint = self.joints.len();
        self.joints.push(later.copied().collect());
        for &earlier in earlier {
            self.joined.entry(earlier).or_default().push(joint);
        }
    }

    /// Returns the object and all its direct and indirect successors.
    fn later_than(&self, draft: &Draft, from: &'a ObjectId) -> BTreeSet<&'a ObjectId> {
        let mut seen = BTreeSet::from([from]);
        let mut passed = BTreeSet::new();
        let mut open = vec![from];
        while let Some(at) = open.pop() {
            let direct = self.later.get(at).into_iter().flatten();
            let joints = self.joined.get(at).into_iter().flatten();
            let joints = joints.filter(|joint| passed.insert(**joint));
            let joined = joints.flat_map(|joint| &self.joints[*joint]);
            let mut followed = 0;
            for &next in direct.chain(joined) {
                followed += 1;
                if seen.insert(next) {
                    open.push(next);
                }
            }
            if !draft.budget.work(followed) {
                break;
            }
        }
        seen
    }
}
