//! Delays the reduction of permissions until the previous version no longer
//! runs.
//!
//! While both versions run, a role has the rules of both, and a binding has the
//! service accounts of both. Each is one complete list, because the server
//! keeps a single owner for it. Stage `shrink` reduces it after all objects are
//! ready and all prunable ones are deleted. A run that fails earlier leaves the
//! wider list. The digest then differs from that of the manifest, so the next
//! complete run reduces the list.

mod aggregated;
mod cover;
pub(super) mod operators;
mod temporary_bindings;

use serde_json::Value;

pub(super) use aggregated::gathered;
pub(super) use temporary_bindings::TemporaryBinding;

use super::draft::{Ctx, Draft, Narrowing};
use super::model::{Action, Body, Change, EdgeReason, Need, Op};
use super::overlays::lift;
use super::phases::{Bracketed, Decided};
use super::shrink::after_everything;
use pleach_fields::diff::Cause;
use pleach_model::finding::{Finding, Kind};
use pleach_model::object::{NonSecret, ObjectId};
use pleach_model::order::StageName;

const RBAC: &str = "rbac.authorization.k8s.io";

/// List field of an RBAC object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum List {
    Rules,
    Subjects,
}

impl List {
    fn of(id: &ObjectId) -> Option<Self> {
        match id.kind.as_str() {
            _ if id.group != RBAC => None,
            "Role" | "ClusterRole" => Some(Self::Rules),
            "RoleBinding" | "ClusterRoleBinding" => Some(Self::Subjects),
            _ => None,
        }
    }

    fn field(self) -> &'static str {
        match self {
            Self::Rules => "rules",
            Self::Subjects => "subjects",
        }
    }

    fn items(self, object: &Value) -> &[Value] {
        object[self.field()].as_array().map_or(&[], Vec::as_slice)
    }

    /// Returns the items of `granted` that `other` does not grant.
    fn missing<'a>(self, granted: &'a [Value], other: &[Value]) -> Vec<&'a Value> {
        granted
            .iter()
            .filter(|item| match self {
                Self::Rules => !cover::is_covered(item, other),
                Self::Subjects => !other.iter().any(|one| cover::is_same_subject(item, one)),
            })
            .collect()
    }

    /// Returns whether pods may need an item. Users lose access immediately.
    fn is_of_pods(self, item: &Value) -> bool {
        match self {
            Self::Rules => true,
            Self::Subjects => item["kind"] == "ServiceAccount",
        }
    }
}

/// Retains access that running pods may need in the steps that would remove it.
pub(super) fn widen(ctx: &Ctx<'_>, draft: &mut Decided) {
    temporary_bindings::keep(ctx, draft);
    if !may_pods_be_exchanged(ctx, draft) {
        return;
    }
    let narrower: Vec<ObjectId> = draft
        .changes
        .values()
        .filter(|change| List::of(&change.object).is_some() && is_of_git(change))
        .map(|change| change.object.clone())
        .collect();
    for id in narrower {
        keep_for_now(ctx, draft, &id);
    }
    temporary_bindings::add(ctx, draft);
}

/// Returns whether pods of two versions may run at the same time. Either
/// workloads change, or a run that changed them did not finish.
pub(super) fn may_pods_be_exchanged(ctx: &Ctx<'_>, draft: &Draft) -> bool {
    let mut left = ctx.left.iter();
    ctx.observed
        .installed
        .as_ref()
        .is_none_or(|installed| !installed.ready)
        || !draft.workloads(ctx).is_empty()
        || left.any(|(id, _)| ctx.stage_of_kind(id) == StageName::Workloads)
}

/// Returns whether git caused the change. Access added by hand is removed
/// immediately.
pub(super) fn is_of_git(change: &Change) -> bool {
    matches!(change.action, Action::Update | Action::Adopt)
        && !matches!(
            change.cause,
            Some(Cause::Drift { .. } | Cause::Ownership | Cause::Overlay)
        )
}

fn keep_for_now(ctx: &Ctx<'_>, draft: &mut Decided, id: &ObjectId) {
    let (Some(list), Some(manifest), Some(live), Some(step)) = (
        List::of(id),
        ctx.manifests.get(id),
        ctx.observed.full.get(id),
        draft.done_by.get(id).copied(),
    ) else {
        return;
    };
    let mut wider = ctx.desired.ignored.lean(manifest).value();
    // A cluster controller writes the rules of an aggregated role.
    if !wider["aggregationRule"].is_null() || !live.value()["aggregationRule"].is_null() {
        return;
    }
    let granted = list.items(live.value());
    let retained: Vec<Value> = list
        .missing(granted, list.items(&wider))
        .into_iter()
        .filter(|item| list.is_of_pods(item))
        .cloned()
        .collect();
    if retained.is_empty() {
        return;
    }
    let adds = !list.missing(list.items(&wider), granted).is_empty();
    let planned = draft.at(step);
    let op = planned.op.clone();
    let require = planned.require.clone();
    // A step that changes field ownership precedes it.
    let is_prepared = planned
        .needs
        .iter()
        .any(|edge| edge.why == EdgeReason::SameObject);
    let before = if adds || is_prepared {
        let mut items = list.items(&wider).to_vec();
        items.extend(retained);
        wider[list.field()] = Value::Array(items);
        let planned = draft.at(step);
        if let Op::Apply { body, .. } = &mut planned.op {
            *body = Body::Inline(NonSecret(wider));
        }
        planned.reason = format!(
            "{}; access that the running version may need is retained until the end",
            planned.reason
        );
        Some(step)
    } else {
        draft.dropped.insert(step);
        draft.done_by.remove(id);
        None
    };
    draft.narrowings.push(Narrowing {
        id: id.clone(),
        op,
        require,
        before,
    });
}

/// Reduces access to the declared one, after everything else.
pub(super) fn shrink(ctx: &Ctx<'_>, draft: &mut Bracketed) {
    let mut narrowings = std::mem::take(&mut draft.narrowings);
    narrowings.retain(|one| draft.action(&one.id) != Some(Action::Blocked));
    let temporary_bindings = std::mem::take(&mut draft.temporary_bindings);
    if narrowings.is_empty() && temporary_bindings.is_empty() {
        return;
    }
    let Some(verified) = draft.verified else {
        return stays_wide(draft, &narrowings, &temporary_bindings);
    };
    let mut steps = Vec::with_capacity(narrowings.len() + temporary_bindings.len());
    for TemporaryBinding { overlay, made } in temporary_bindings {
        steps.push(lift(ctx, draft, overlay, made, StageName::Shrink));
    }
    for Narrowing {
        id,
        op,
        require,
        before,
    } in narrowings
    {
        if before.is_none()
            && let Some(change) = draft.changes.get_mut(&id)
        {
            change.stage = Some(StageName::Shrink);
        }
        let reason = "no pod of the previous version needs the remaining access";
        let step = draft.step(ctx, StageName::Shrink, id, op, reason);
        draft.at(step).require = require;
        if let Some(before) = before {
            draft.edge(before, Need::Applied, step, EdgeReason::SameObject);
        }
        steps.push(step);
    }
    let reason = "access is reduced after the previous version is removed";
    after_everything(ctx, draft, verified, &steps, reason);
}

/// Reports that access is not reduced: without verify, pods of the previous
/// version may still run.
fn stays_wide(
    draft: &mut Draft,
    narrowings: &[Narrowing],
    temporary_bindings: &[TemporaryBinding],
) {
    let reason =
        "access is reduced only after all objects are ready, which this run does not check";
    for one in narrowings.iter().filter(|one| one.before.is_none()) {
        if let Some(change) = draft.changes.get_mut(&one.id) {
            change.action = Action::Skip;
            change.stage = None;
            reason.clone_into(&mut change.reason);
        }
    }
    let temporary_bindings = temporary_bindings
        .iter()
        .map(|one| &draft.overlays[one.overlay].object);
    let objects = narrowings
        .iter()
        .map(|one| &one.id)
        .chain(temporary_bindings);
    let names: Vec<String> = objects.map(ToString::to_string).collect();
    let message = format!("{reason}: {}", names.join(", "));
    draft
        .findings
        .push(Finding::note(Kind::Policy, "access-not-reduced", message));
}
