//! The release namespace, if objects use it and no manifest contains it.

use std::collections::BTreeSet;

use serde_json::json;

use super::changes::terminating_reason;
use super::draft::Ctx;
use super::model::{Action, Body, EdgeReason, Need, Op, Precondition};
use super::phases::Decided;
use crate::observe::{Prediction, Unverified};
use pleach_model::finding::{Finding, Kind};
use pleach_model::object::{NonSecret, ObjectId, labels};
use pleach_model::order::StageName;
use pleach_state::inventory::{STATE_NAMESPACE, Store};

/// Creates the namespace if it is missing. An existing one is not changed and
/// does not become a member. One that we created stays a member while it is
/// needed.
pub(super) fn run(ctx: &Ctx<'_>, draft: &mut Decided) {
    let Some(id) = implied(ctx) else { return };
    let live = ctx.observed.live_meta(&id);
    let terminating = live.filter(|live| live.deleting);
    if live.is_none() && ctx.observed.hides_namespace(&id.name) {
        // A namespace that we cannot read was created by another client. The
        // dry runs of its objects report any problem.
        return;
    }
    if live.is_some() && terminating.is_none() {
        if ctx.observed.inventory.entries.contains_key(&id) {
            let action = Action::Unchanged;
            draft.change(&id, action, StageName::Definitions, "in sync", Vec::new());
        }
        return;
    }
    if !ctx.desired.create_namespace {
        let stage = StageName::Definitions;
        let reason = "createNamespace is false";
        draft.change(&id, Action::Blocked, stage, reason, Vec::new());
        let what = if terminating.is_some() {
            "is being deleted"
        } else {
            "does not exist"
        };
        draft.findings.push(
            Finding::error(
                Kind::Policy,
                "namespace-missing",
                format!("namespace {} {what}", id.name),
            )
            .on(id.clone())
            .hint("create it, or set createNamespace: true on the release"),
        );
        return;
    }
    let reason = match terminating {
        Some(live) => terminating_reason(live),
        None => "objects of the release are in it, and no manifest contains it".to_owned(),
    };
    let body = json!({
        "apiVersion": "v1",
        "kind": "Namespace",
        "metadata": {
            "name": id.name,
            "labels": { labels::PART_OF: ctx.apply_set, labels::MANAGED_BY: "pleach" },
        },
    });
    let stage = StageName::Definitions;
    let require = vec![Precondition::Absent];
    draft.change(&id, Action::Create, stage.clone(), &reason, require.clone());
    let gone =
        terminating.map(|live| draft.wait_for_end(ctx, stage.clone(), &id, &live.uid, &reason));
    let op = Op::Apply {
        body: Body::Inline(NonSecret(body)),
        take_over: Vec::new(),
        leave: Vec::new(),
    };
    let step = draft.step(ctx, stage, id.clone(), op, &reason);
    draft.at(step).require = require;
    if let Some(gone) = gone {
        draft.edge(gone, Need::Absent, step, EdgeReason::SameObject);
    }
    for object in ctx.manifests.keys() {
        if object.namespace.as_deref() == Some(&id.name)
            && let Some(to) = draft.done_by.get(*object).copied()
        {
            draft.edge(step, Need::Applied, to, EdgeReason::Namespace);
        }
    }
}

/// Refuses objects in a namespace that does not exist and that nothing creates.
pub(super) fn check(ctx: &Ctx<'_>, draft: &mut Decided) {
    let implied = implied(ctx).map(|id| id.name.clone());
    let mut reported = BTreeSet::new();
    for (&id, manifest) in &ctx.manifests {
        let Some(Prediction::Unverified(Unverified::NamespaceMissing(name))) =
            ctx.observed.predicted.get(id)
        else {
            continue;
        };
        let namespace = ObjectId::new("", "Namespace", None, name);
        let comes = ctx.is_desired(&namespace)
            || implied.as_ref() == Some(name)
            || ctx.observed.live_meta(&namespace).is_some()
            || ctx.desired.terms.prior_releases.has_namespace(name)
            // The state namespace is created before the first step.
            || ctx.desired.store == Store::Release && name == STATE_NAMESPACE;
        if comes || !reported.insert(name) {
            continue;
        }
        let message =
            format!("namespace {name} does not exist, and the release does not create it");
        let finding = Finding::error(Kind::Policy, "namespace-missing", message)
            .at(manifest.origin().clone())
            .on(id.clone());
        draft.findings.push(finding.hint(format!(
            "add the Namespace to the bundle, set `namespace: {name}` for release {} in {}, or create it",
            ctx.desired.name.release,
            ctx.environment_file()
        )));
    }
}

/// Returns the namespace that the release uses without a manifest, if any.
pub(super) fn implied(ctx: &Ctx<'_>) -> Option<ObjectId> {
    let name = ctx.desired.namespace.as_deref()?;
    let id = ObjectId::new("", "Namespace", None, name);
    let used = ctx
        .manifests
        .keys()
        .any(|object| object.namespace.as_deref() == Some(name));
    (used && !ctx.is_desired(&id)).then_some(id)
}
