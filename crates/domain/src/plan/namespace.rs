//! The release's namespace, when an object lies in it and no manifest has it.

use serde_json::json;

use super::draft::{Ctx, Draft};
use super::model::{Action, Body, Change, EdgeReason, Need, NonSecret, Op, Precondition, Until};
use crate::finding::{Finding, Kind};
use crate::object::{ObjectId, labels};
use crate::order::StageName;

/// Creates the namespace where it is missing. An existing one is left
/// untouched and is no member; one that we created stays a member as long as
/// it is needed.
pub(super) fn run(ctx: &Ctx<'_>, draft: &mut Draft) {
    let Some(id) = implied(ctx) else { return };
    let live = ctx.observed.live_meta(&id);
    if live.is_some_and(|live| !live.deleting) {
        if ctx.observed.inventory.entries.contains_key(&id) {
            record(draft, &id, Action::Unchanged, "as wanted");
        }
        return;
    }
    if !ctx.desired.create_namespace {
        draft.findings.push(
            Finding::error(
                Kind::Policy,
                "namespace-missing",
                format!("namespace {} does not exist", id.name),
            )
            .on(id.clone())
            .hint("create it, or set createNamespace: true on the release"),
        );
        return;
    }
    let reason = "objects of the release lie in it and no manifest has it";
    let body = json!({
        "apiVersion": "v1",
        "kind": "Namespace",
        "metadata": {
            "name": id.name,
            "labels": { labels::PART_OF: ctx.apply_set, labels::MANAGED_BY: "pleach" },
        },
    });
    record(draft, &id, Action::Create, reason);
    let op = Op::Apply {
        body: Body::Inline(NonSecret(body)),
        force: false,
    };
    let step = draft.step(ctx, StageName::Definitions, id.clone(), op, reason);
    draft.at(step).require.push(Precondition::Absent);
    if let Some(live) = live {
        let gone = draft.wait(
            ctx,
            StageName::Definitions,
            id.clone(),
            Some(Until::Absent { pods: None }),
            "it is being deleted; created again when it is gone",
        );
        draft
            .at(gone)
            .require
            .push(Precondition::Uid(live.uid.clone()));
        draft.edge(gone, Need::Absent, step, EdgeReason::SameObject);
    }
    draft.done_by.insert(id.clone(), step);
    for object in ctx
        .desired
        .manifests
        .iter()
        .map(crate::object::Manifest::id)
    {
        if object.namespace.as_deref() == Some(&id.name)
            && let Some(to) = draft.done_by.get(object).copied()
        {
            draft.edge(step, Need::Applied, to, EdgeReason::Namespace);
        }
    }
}

/// The namespace that the release implies, if any.
pub(super) fn implied(ctx: &Ctx<'_>) -> Option<ObjectId> {
    let name = ctx.desired.namespace.as_deref()?;
    let id = ObjectId::new("", "Namespace", None, name);
    let used = ctx
        .desired
        .manifests
        .iter()
        .any(|manifest| manifest.id().namespace.as_deref() == Some(name));
    (used && !ctx.is_desired(&id)).then_some(id)
}

/// Whether an object lies in a namespace of the release that is being deleted.
pub(super) fn is_ending(ctx: &Ctx<'_>, id: &ObjectId) -> bool {
    let Some(name) = &id.namespace else {
        return false;
    };
    let namespace = ObjectId::new("", "Namespace", None, name);
    (ctx.is_desired(&namespace) || implied(ctx).as_ref() == Some(&namespace))
        && ctx
            .observed
            .live_meta(&namespace)
            .is_some_and(|live| live.deleting)
}

fn record(draft: &mut Draft, id: &ObjectId, action: Action, reason: &str) {
    draft.changes.insert(
        id.clone(),
        Change {
            object: id.clone(),
            action,
            stage: (action == Action::Create).then_some(StageName::Definitions),
            reason: reason.to_owned(),
            cause: None,
            require: if action == Action::Create {
                vec![Precondition::Absent]
            } else {
                Vec::new()
            },
            digest: None,
            unverified: None,
        },
    );
}
