//! Workloads of a release that hands its objects over (`movedFrom`) and that
//! run in another namespace than their successors.

use super::{has_pods, is_behind};
use crate::observe::PreviousRelease;
use crate::plan::{
    Deletion,
    draft::{Ctx, Pruned},
    model::Action,
    phases::Decided,
    protection::protected,
    prune,
};
use pleach_model::finding::{Finding, Kind};
use pleach_model::object::{ObjectId, ServiceRef, annotations};
use pleach_model::order::StageName;
use pleach_state::inventory::Entry;
use pleach_state::live::{Live, LiveMeta};

/// Decides the workloads of the release that hands its objects over. A workload
/// with a successor in another namespace is deleted like a member, and so are
/// registrations of its pods.
pub(in crate::plan) fn succeed(ctx: &Ctx<'_>, draft: &mut Decided) {
    let Some(previous) = &ctx.observed.previous else {
        return;
    };
    let mut blocker = None;
    for (id, entry) in previous.applied() {
        let live = ctx.observed.targets.get(id).map(Live::meta);
        let (Some(live), Some(new)) = (live, successor(ctx, id)) else {
            continue;
        };
        let Some(deletion) = Deletion::of_previous_release(entry, live, previous) else {
            continue;
        };
        let blocker = blocker.get_or_insert_with(|| prune::prune_blocker(ctx, draft));
        let stays = blocker.clone().or_else(|| stays(ctx, (id, entry), live));
        if let Some(why) = stays {
            let message = format!("stays because {why}, and runs beside {new}");
            draft.change(id, Action::Skip, StageName::Prune, &*message, Vec::new());
            let finding = Finding::warning(Kind::Policy, "runs-beside", message);
            draft.findings.push(finding.on(id.clone()));
            continue;
        }
        draft.pruned.push(Pruned {
            id: id.clone(),
            deletion,
            dead: false,
        });
    }
    let services = previous.applied();
    let services = services.filter_map(|(id, _)| prune::service_ref(id));
    let without_backends: Vec<ServiceRef> = services
        .filter(|service| {
            !ctx.is_desired(&service.id()) && is_without_backends(ctx, draft, service)
        })
        .collect();
    draft.without_backends.extend(without_backends);
}

/// Returns whether all workloads that may be behind a Service of the other
/// release are deleted.
fn is_without_backends(ctx: &Ctx<'_>, draft: &Decided, service: &ServiceRef) -> bool {
    let previous = ctx
        .observed
        .previous
        .iter()
        .flat_map(PreviousRelease::applied);
    let workloads = previous.map(|(id, _)| id).filter(|id| has_pods(id));
    let mut behind = workloads
        .filter(|id| is_behind(ctx, service, id) != Some(false))
        .peekable();
    let is_removed = |id: &ObjectId| draft.pruned.iter().any(|pruned| pruned.id == *id);
    behind.peek().is_some() && behind.all(is_removed)
}

/// Returns the successor, in another namespace, of a workload of the other
/// release.
fn successor<'a>(ctx: &Ctx<'a>, old: &ObjectId) -> Option<&'a ObjectId> {
    if !has_pods(old) || ctx.is_desired(old) {
        return None;
    }
    let mut named = ctx.named(&old.kind, &old.name).iter().copied();
    named.find(|new| new.group == old.group)
}

/// Returns the reason why a workload of the other release stays.
fn stays(ctx: &Ctx<'_>, (id, entry): (&ObjectId, &Entry), live: &LiveMeta) -> Option<String> {
    let disabled = live.annotations.get(annotations::PRUNE);
    if disabled.is_some_and(|value| value == "disabled") {
        return Some("of its annotation pleach.dev/prune".to_owned());
    }
    let what = protected(ctx, id, Some(entry))?;
    Some(format!("{what} are protected"))
}

/// Returns whether a Service belongs to the release that hands its objects
/// over, and not to this one.
pub(super) fn is_of_previous_release(ctx: &Ctx<'_>, service: &ServiceRef) -> bool {
    let id = service.id();
    let previous = ctx.observed.previous.as_ref();
    previous.is_some_and(|previous| previous.inventory.entries.contains_key(&id))
        && !ctx.is_desired(&id)
}
