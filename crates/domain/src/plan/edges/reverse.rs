//! The way back: what an upgrade does first, a rollback does last.
//!
//! While old and new run side by side, the new definitions know both, and the
//! new backend answers what the old registrations ask. So custom resources go
//! back first, then registrations, then workloads, then definitions; bindings of
//! admission policies before the policies, and those before their parameters. What must
//! exist before something else can run (a namespace, rights, configuration)
//! comes first whichever way it goes, and so does everything that is created. So
//! does a workload that does not answer any more, and what refuses the older
//! version of what needs it.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use super::needs::{Dependencies, Dependency};
use crate::definition::is_definition;
use crate::object::ObjectId;
use crate::observe::{Prediction, Served, Unverified};
use crate::order::StageName;
use crate::plan::draft::{Ctx, Draft};
use crate::plan::model::{Action, EdgeReason, Need};
use crate::repo::semantic;

/// What is done in the other order.
#[derive(Default)]
pub(super) struct Turned<'a> {
    /// Positions of the dependencies whose object that is needed goes last.
    dependencies: BTreeSet<usize>,
    /// The same as pairs of what is needed and what needs it.
    pairs: BTreeSet<(&'a ObjectId, &'a ObjectId)>,
    /// Workloads that are ready before definitions go back.
    pub(super) after_workloads: BTreeMap<Vec<&'a ObjectId>, Vec<&'a ObjectId>>,
}

impl Turned<'_> {
    /// Whether a dependency, by its position, holds the other way round.
    pub(super) fn holds(&self, position: usize) -> bool {
        self.dependencies.contains(&position)
    }

    /// Whether what needs an object is done before it.
    pub(super) fn has(&self, needed: &ObjectId, by: &ObjectId) -> bool {
        self.pairs.contains(&(needed, by))
    }
}

/// Decides which dependencies are turned round. One that would close a circle
/// with others stays as it is.
pub(super) fn turn<'a>(
    ctx: &Ctx<'a>,
    draft: &Draft,
    dependencies: &Dependencies<'a>,
) -> Turned<'a> {
    let mut order = Order::default();
    let mut candidates = Vec::new();
    let is_changed = |id: &&&ObjectId| draft.done_by.contains_key(**id);
    for joint in &dependencies.joints {
        let (from, to) = (joint.from.iter(), joint.to.iter());
        order.join(from.filter(is_changed), to.filter(is_changed));
    }
    for (position, dependency) in dependencies.single.iter().enumerate() {
        if can_turn(ctx, draft, dependency) {
            candidates.push((position, dependency));
        } else if is_done(draft, dependency) {
            order.add(dependency.from, dependency.to);
        }
    }
    let mut turned = Turned::default();
    for (position, dependency) in candidates {
        let (from, to) = (dependency.from, dependency.to);
        if order.later_than(draft, from).contains(to) {
            order.add(from, to);
        } else {
            order.add(to, from);
            turned.dependencies.insert(position);
            turned.pairs.insert((from, to));
        }
    }
    let changed = ctx.manifests.keys().copied().filter(|id| is_changed(&id));
    let workloads: Vec<&ObjectId> = changed.filter(|id| is_workload(ctx, id)).collect();
    for &definition in ctx.manifests.keys().filter(|id| is_definition(id)) {
        if !goes_back(draft, definition) || !is_served(ctx, definition) {
            continue;
        }
        // A stage of the bundle's own says when it goes back.
        if ctx.declared(&ctx.stage_of(definition)).is_some() {
            continue;
        }
        let later = order.later_than(draft, definition);
        let mut earlier = workloads.clone();
        earlier.retain(|workload| !later.contains(workload));
        order.join(earlier.iter(), [definition].iter());
        turned
            .after_workloads
            .entry(earlier)
            .or_default()
            .push(definition);
    }
    turned
}

pub(super) fn is_workload(ctx: &Ctx<'_>, id: &ObjectId) -> bool {
    ctx.stage_of_kind(id) == StageName::Workloads
}

/// Whether an object is there and becomes what it was.
fn goes_back(draft: &Draft, id: &ObjectId) -> bool {
    draft.action(id) == Some(Action::Update)
}

/// Whether something is done to both: an object that stays as it is comes neither
/// before nor after others, and does not keep them in their order.
fn is_done(draft: &Draft, dependency: &Dependency<'_>) -> bool {
    let Dependency { from, to, .. } = dependency;
    [from, to].iter().all(|id| draft.done_by.contains_key(**id))
}

/// Whether both are there, and either may go back first.
fn can_turn(ctx: &Ctx<'_>, draft: &Draft, dependency: &Dependency<'_>) -> bool {
    let may = match dependency.why {
        EdgeReason::Definition => is_served(ctx, dependency.from),
        EdgeReason::Backend | EdgeReason::Intercepts | EdgeReason::Policy | EdgeReason::After => {
            true
        }
        _ => false,
    };
    may && goes_back(draft, dependency.from)
        && goes_back(draft, dependency.to)
        && answers(ctx, dependency.from)
        && is_let_through(ctx, dependency.to)
}

/// Whether the server would take an object before anything else has gone back: a
/// webhook may deny the older version, or not be there to be asked.
pub(in crate::plan) fn is_let_through(ctx: &Ctx<'_>, id: &ObjectId) -> bool {
    !matches!(
        ctx.observed.predicted.get(id),
        Some(Prediction::Refused(_) | Prediction::Unverified(Unverified::Webhook(_)))
    )
}

/// Whether a workload has pods that answer, as far as it is one and known to be
/// there. One that has none is the reason to go back: it lets no custom resource
/// through and brings nothing about, so nothing goes back before it.
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

/// What an object that goes back first reaches before the one that it needs does.
pub(super) fn reached_before(ctx: &Ctx<'_>, dependency: &Dependency<'_>) -> Need {
    let Dependency { from, to, why, .. } = dependency;
    let is_own = ctx.definition(&to.group_kind()).is_some();
    if is_own && is_workload(ctx, from) {
        // The operator installs the version that its custom resource names, and
        // may know the newer one alone. Where none is named it installs its own:
        // what is wanted then comes about only when the operator has gone back.
        let waits = names_another_version(ctx, to) && !ctx.is_applied_only(&ctx.stage_of(to));
        return if waits { Need::Ready } else { Need::Applied };
    }
    // What must be ready in one direction must be ready in the other; of the
    // rest it is enough that it is written.
    match why {
        EdgeReason::After => Need::Ready,
        _ => Need::Applied,
    }
}

/// Whether the spec of an object comes to name a version that it does not name yet.
fn names_another_version(ctx: &Ctx<'_>, id: &ObjectId) -> bool {
    let wanted = ctx.manifests.get(id).map(|manifest| manifest.value());
    let live = ctx.observed.full.get(id);
    wanted
        .zip(live)
        .is_some_and(|(wanted, live)| has_another_version(&wanted["spec"], &live.value()["spec"]))
}

fn has_another_version(wanted: &Value, live: &Value) -> bool {
    match wanted {
        Value::String(text) => wanted != live && semantic(text).is_some(),
        Value::Object(fields) => fields
            .iter()
            .any(|(name, wanted)| has_another_version(wanted, &live[name])),
        Value::Array(items) => items
            .iter()
            .enumerate()
            .any(|(place, wanted)| has_another_version(wanted, &live[place])),
        _ => false,
    }
}

/// Whether the definition that is there serves all that the wanted one serves:
/// what relies on the wanted one can be there before it.
pub(super) fn is_served(ctx: &Ctx<'_>, definition: &ObjectId) -> bool {
    let facts = ctx.facts.get(definition);
    facts
        .and_then(|facts| facts.defines.as_ref())
        .is_some_and(|defines| {
            let discovery = &ctx.observed.discovery;
            let served = |gvk| matches!(discovery.served(gvk), Served::Current(_));
            defines.served.iter().all(served)
        })
}

/// Who comes before whom.
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

    /// All of some before all of others.
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

    /// The object, and what comes after it, directly or not.
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
