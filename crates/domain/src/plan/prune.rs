//! What git no longer has: decided here, deleted after verify, in reverse order.

use std::collections::{BTreeMap, BTreeSet};

use super::draft::{Ctx, Draft, Pruned};
use super::model::{
    Action, Change, EdgeReason, Need, Op, Precondition, StepId, Until, is_protected_kind,
};
use super::{Deletion, Propagation, namespace};
use crate::finding::{Finding, Kind};
use crate::inventory::{Entry, EntryState};
use crate::object::{ObjectId, annotations};
use crate::observe::{LiveMeta, Registration};
use crate::order::{DeletionClass, StageName, deletion_class};

/// Decides which members go, which are kept and why.
pub(super) fn decide(ctx: &Ctx<'_>, draft: &mut Draft) {
    let implied = namespace::implied(ctx);
    let mut pruned = Vec::new();
    let mut counted = 0;
    for (id, entry) in &ctx.observed.inventory.entries {
        if ctx.is_desired(id) || implied.as_ref() == Some(id) {
            continue;
        }
        match entry.state {
            // Never confirmed: never deleted.
            EntryState::Intended | EntryState::Kept => {}
            EntryState::Applied => match judge(ctx, id, entry) {
                Verdict::Gone => {}
                Verdict::Keep(finding) => keep(draft, id, finding),
                Verdict::Delete(one) => {
                    counted += usize::from(!has_successor(ctx, id));
                    pruned.push(one);
                }
            },
            EntryState::Observed => pruned.extend(run_time(ctx, id, entry)),
        }
    }
    // A run-time object that points at a Service goes with that Service only.
    let services: BTreeSet<ObjectId> = pruned
        .iter()
        .filter(|one| one.id.is("", "Service"))
        .map(|one| one.id.clone())
        .collect();
    pruned.retain(|one| match ctx.observed.inventory.entries.get(&one.id) {
        Some(Entry {
            state: EntryState::Observed,
            service: Some(service),
            ..
        }) => services.contains(&service.id()),
        _ => true,
    });
    if pruned.is_empty() {
        return;
    }
    let hold = if draft.is_blocked() {
        Some("objects are blocked")
    } else if !ctx.policy.wait {
        Some("nothing is waited for")
    } else if !ctx.policy.prune.enabled {
        Some("pruning is disabled in the environment file")
    } else {
        None
    };
    if let Some(why) = hold {
        for one in pruned {
            skip(
                draft,
                &one.id,
                format!("no longer in git; stays because {why}"),
            );
        }
        return;
    }
    check_cap(ctx, draft, counted);
    draft.pruned = pruned;
}

/// What happens to a member that git no longer has.
enum Verdict {
    /// It does not exist any more, or is another incarnation.
    Gone,
    /// It stays, and this says why.
    Keep(Finding),
    /// It goes.
    Delete(Pruned),
}

fn judge(ctx: &Ctx<'_>, id: &ObjectId, entry: &Entry) -> Verdict {
    let keep = |finding: Finding| Verdict::Keep(finding.on(id.clone()));
    let Some(live) = ctx.observed.live_meta(id) else {
        return if ctx.observed.is_complete(id) {
            Verdict::Gone
        } else {
            keep(Finding::warning(
                Kind::Cluster,
                "incomplete-view",
                "no longer in git; stays because its kind could not be listed completely",
            ))
        };
    };
    if entry.uid.as_deref() != Some(&live.uid) {
        return Verdict::Gone;
    }
    if !ctx.observed.is_complete(id) {
        return keep(Finding::warning(
            Kind::Cluster,
            "incomplete-view",
            "no longer in git; stays because its kind could not be listed completely",
        ));
    }
    if is_renamed(ctx, live) {
        return Verdict::Gone;
    }
    if live.part_of().is_some_and(|set| set != ctx.apply_set) {
        return keep(Finding::warning(
            Kind::Policy,
            "kept-foreign",
            "no longer in git; stays because it is part of another ApplySet now",
        ));
    }
    if live
        .annotations
        .get(annotations::PRUNE)
        .is_some_and(|value| value == "disabled")
    {
        return keep(Finding::note(
            Kind::Policy,
            "kept-annotated",
            "no longer in git; stays because of its annotation pleach.dev/prune",
        ));
    }
    if let Some(finding) = protection(ctx, id, entry) {
        return keep(finding);
    }
    let propagation = if deletion_class(&id.group_kind()) == DeletionClass::Workloads {
        // Its pods still use what is deleted after it.
        Propagation::Foreground
    } else {
        Propagation::Background
    };
    match Deletion::of_member(entry, live, propagation) {
        Some(deletion) => Verdict::Delete(Pruned {
            id: id.clone(),
            deletion,
            dead: is_dead(ctx, id),
        }),
        None => Verdict::Gone,
    }
}

/// Why a protected object may not go.
fn protection(ctx: &Ctx<'_>, id: &ObjectId, entry: &Entry) -> Option<Finding> {
    let kept = |code: &str, why: String| {
        Finding::warning(
            Kind::Policy,
            code,
            format!("no longer in git; stays because {why}"),
        )
    };
    if id.is("", "Namespace") && entry.adopted {
        return Some(kept(
            "kept-adopted",
            "a namespace that was there before is never deleted".to_owned(),
        ));
    }
    let load_balancer = id.is("", "Service")
        && ctx
            .observed
            .full
            .get(id)
            .is_none_or(|live| live.value()["spec"]["type"] == "LoadBalancer");
    let protected = entry.protected
        || is_protected_kind(&id.group_kind())
        || load_balancer
        || ctx.policy.protect.iter().any(|protect| protect.matches(id));
    if !protected || is_consented(ctx, id) {
        return None;
    }
    let finding = kept(
        "kept-protected",
        format!("objects of kind {} are protected", id.kind),
    );
    Some(finding.hint(format!(
        "to delete it, add to `consent` in the environment file: {{action: delete, kind: {}, name: {}, release: {}, from: {}, to: {}}}",
        id.kind,
        id.name,
        ctx.desired.name.release,
        installed_version(ctx).unwrap_or("…"),
        ctx.desired.version,
    )))
}

fn is_consented(ctx: &Ctx<'_>, id: &ObjectId) -> bool {
    ctx.policy.consent.iter().any(|consent| {
        consent.allows_delete(
            id,
            &ctx.desired.name.release,
            installed_version(ctx),
            &ctx.desired.version,
        )
    })
}

fn installed_version<'a>(ctx: &'a Ctx<'_>) -> Option<&'a str> {
    let installed = ctx.observed.installed.as_ref()?;
    installed
        .installed
        .as_ref()
        .or(installed.applying.as_ref())
        .map(|attempt| attempt.version.as_str())
}

/// An object that changed its group and kept its uid is the same object.
fn is_renamed(ctx: &Ctx<'_>, live: &LiveMeta) -> bool {
    ctx.desired
        .manifests
        .iter()
        .filter_map(|manifest| ctx.observed.live_meta(manifest.id()))
        .any(|other| other.uid == live.uid)
}

/// The same kind and name in another namespace: a move, not a loss.
fn has_successor(ctx: &Ctx<'_>, id: &ObjectId) -> bool {
    id.namespace.is_some()
        && ctx.manifests.keys().any(|other| {
            other.group == id.group
                && other.kind == id.kind
                && other.name == id.name
                && other.namespace != id.namespace
        })
}

/// A registration whose Services are all gone breaks whoever calls it.
fn is_dead(ctx: &Ctx<'_>, id: &ObjectId) -> bool {
    let Some(Registration { services, .. }) = ctx
        .observed
        .registrations
        .iter()
        .find(|registration| registration.id == *id)
    else {
        return false;
    };
    !services.is_empty()
        && services.iter().all(|service| {
            ctx.observed
                .backends
                .get(service)
                .is_some_and(|backend| !backend.exists)
        })
}

/// A recorded run-time object goes with its Service, or when no desired object
/// lies in its namespace any more.
fn run_time(ctx: &Ctx<'_>, id: &ObjectId, entry: &Entry) -> Option<Pruned> {
    let live = ctx.observed.live_meta(id)?;
    let in_use = entry.service.is_none()
        && match &id.namespace {
            Some(namespace) => ctx
                .manifests
                .keys()
                .any(|other| other.namespace.as_ref() == Some(namespace)),
            None => !ctx.desired.manifests.is_empty(),
        };
    if in_use {
        return None;
    }
    let deletion = Deletion::of_run_time_object(entry, live)?;
    Some(Pruned {
        id: id.clone(),
        deletion,
        dead: false,
    })
}

fn check_cap(ctx: &Ctx<'_>, draft: &mut Draft, counted: usize) {
    let cap = ctx.policy.prune.max.cap(ctx.observed.inventory.applied());
    let release = &ctx.desired.name.release;
    let consented = ctx
        .policy
        .consent
        .iter()
        .filter_map(|consent| {
            consent.prune_limit(release, installed_version(ctx), &ctx.desired.version)
        })
        .max();
    if counted <= cap.max(consented.unwrap_or(0)) {
        return;
    }
    let from = installed_version(ctx).unwrap_or("…");
    draft.findings.push(
        Finding::error(
            Kind::Policy,
            "prune-cap",
            format!("{counted} objects would be pruned, more than the cap of {cap}"),
        )
        .hint(format!(
            "if that is meant, add to `consent` in the environment file: {{action: prune, release: {release}, from: {from}, to: {}, count: {counted}}}",
            ctx.desired.version
        )),
    );
}

fn keep(draft: &mut Draft, id: &ObjectId, finding: Finding) {
    skip(draft, id, finding.message.clone());
    draft.findings.push(finding);
}

fn skip(draft: &mut Draft, id: &ObjectId, reason: String) {
    record(draft, id, Action::Skip, None, reason, Vec::new());
}

fn record(
    draft: &mut Draft,
    id: &ObjectId,
    action: Action,
    stage: Option<StageName>,
    reason: String,
    require: Vec<Precondition>,
) {
    draft.changes.insert(
        id.clone(),
        Change {
            object: id.clone(),
            action,
            stage,
            reason,
            cause: None,
            require,
            digest: None,
            unverified: None,
        },
    );
}

/// The deletions: class by class, each class after the one before is gone.
pub(super) fn steps(ctx: &Ctx<'_>, draft: &mut Draft) {
    let pruned = std::mem::take(&mut draft.pruned);
    let Some(verified) = draft.verified else {
        return;
    };
    let mut by_class: BTreeMap<DeletionClass, Vec<StepId>> = BTreeMap::new();
    for Pruned { id, deletion, dead } in pruned {
        if draft
            .steps
            .iter()
            .any(|step| step.object == id && matches!(step.op, Op::Delete(_)))
        {
            // Already removed as a leftover.
            continue;
        }
        let stage = if dead {
            StageName::Gates
        } else {
            StageName::Prune
        };
        let reason = deletion.explain();
        let require = vec![Precondition::Uid(deletion.uid().to_owned())];
        record(
            draft,
            &id,
            Action::Delete,
            Some(stage.clone()),
            reason.clone(),
            require.clone(),
        );
        let class = deletion_class(&id.group_kind());
        let step = draft.step(ctx, stage, id, Op::Delete(deletion), &reason);
        draft.at(step).require = require;
        draft.at(step).until = Some(Until::Absent { pods: None });
        if dead {
            let later: Vec<StepId> = draft
                .steps
                .iter()
                .map(|step| step.id)
                .filter(|other| *other < verified)
                .collect();
            for other in later {
                draft.edge(step, Need::Absent, other, EdgeReason::Leftover);
            }
        } else {
            draft.edge(verified, Need::Applied, step, EdgeReason::Barrier);
            by_class.entry(class).or_default().push(step);
        }
    }
    join_classes(ctx, draft, &by_class);
}

/// Between two classes stands a step without effect, so that the number of
/// edges grows with the objects and not with their square.
fn join_classes(ctx: &Ctx<'_>, draft: &mut Draft, by_class: &BTreeMap<DeletionClass, Vec<StepId>>) {
    let mut former: Option<StepId> = None;
    let last = by_class.keys().next_back().copied();
    for (class, steps) in by_class {
        if let Some(former) = former {
            for &step in steps {
                draft.edge(former, Need::Applied, step, EdgeReason::Reverse);
            }
        }
        if Some(*class) != last {
            let reason = "what is deleted next is needed by these until they are gone";
            let join = draft.wait(ctx, StageName::Prune, ctx.release(), None, reason);
            for &step in steps {
                draft.edge(step, Need::Absent, join, EdgeReason::Reverse);
            }
            former = Some(join);
        }
    }
}
