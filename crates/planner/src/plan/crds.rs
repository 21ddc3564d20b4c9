//! CRDs that cannot reach their desired state in one step.
//!
//! Parts of a CRD that need a conversion webhook of the release wait until it
//! answers. These are another conversion, another storage version, and newly
//! served versions. A version in which objects are stored is retained until
//! they are rewritten, at the very end.

use serde_json::Value;

use super::ca_bundles::{self, TRUSTED};
use super::draft::{Ctx, Draft, Narrowing, Rewrite};
use super::edges::first_step_of;
use super::model::{Action, Body, Desired, EdgeReason, Need, Op, Own, Policy, StepId, Until};
use super::overlays::before_later;
use super::ownership;
use super::phases::{Bracketed, Decided, Ordered};
use super::shrink::after_everything;
use crate::crd::{
    before_backend, converts, ends_conversion, is_conversion_broken, is_crd, left_of_conversion,
    retained, rewritten, rewritten_before, served, storage, unserved, with_retained,
};
use pleach_fields::diff::ownership::{FieldSet, applied_by};
use pleach_formats::sequence::MigrationRule;
use pleach_model::finding::{Finding, Kind};
use pleach_model::object::{Gvk, Manifest, NonSecret, ObjectId, ServiceRef};
use pleach_model::order::{Direction, StageName, pointed_at};
use pleach_state::live::Live;

/// Reason for taking ownership of conversion fields.
pub(super) const ENDS: &str = "the release takes the conversion fields of other managers, which would otherwise outlive the conversion";

impl Desired {
    /// Returns the conversion fields of other managers in a CRD whose
    /// conversion git removes. We must own them before the CRD can drop its
    /// webhook.
    pub fn left_of_conversion(
        &self,
        policy: &Policy,
        manifest: &Manifest,
        live: &Live,
    ) -> FieldSet {
        let live = live.value();
        if !is_crd(manifest.id()) || !converts(live) {
            return FieldSet::default();
        }
        let manager = self.name.field_manager();
        let ours = applied_by(&live["metadata"], &manager);
        // An ignore rule may leave the conversion to another manager.
        let desired = self.ignored.question(manifest, live, &ours);
        let desired = desired.unwrap_or_else(|| manifest.value());
        let may_be_taken = |manager: &str| ownership::takes_ownership(self, policy, manager);
        left_of_conversion(&desired, live, &manager, &may_be_taken)
    }

    /// Returns the same fields if the CRD drops its webhook in the first apply,
    /// and not only after a storage migration.
    pub(super) fn left_at_once(
        &self,
        policy: &Policy,
        manifest: &Manifest,
        live: &Live,
    ) -> FieldSet {
        let left = self.left_of_conversion(policy, manifest, live);
        let rules = &self.sequence.migrations;
        if !left.is_empty() && !retained(&manifest.value(), live.value(), rules).is_empty() {
            return FieldSet::default();
        }
        left
    }
}

/// Splits the steps of CRDs that must change in several parts.
pub(super) fn stage(ctx: &Ctx<'_>, draft: &mut Decided, direction: Direction) {
    check(ctx, draft);
    for &id in ctx.manifests.keys().filter(|id| is_crd(id)) {
        split(ctx, draft, id, direction);
    }
}

/// Reports migrations that cannot have an effect.
fn check(ctx: &Ctx<'_>, draft: &mut Draft) {
    for rule in &ctx.desired.sequence.migrations {
        let MigrationRule { crd, to, .. } = rule;
        let mut crds = ctx.manifests.iter();
        let desired = crds.find(|(id, _)| is_crd(id) && id.name == *crd);
        let finding = match desired.map(|(_, manifest)| manifest.value()) {
            None => Finding::warning(
                Kind::Repository,
                "migration-of-nothing",
                format!("`migrate` names {crd}, which is not a CRD of the release"),
            ),
            Some(desired) if storage(&desired) != Some(to) => Finding::error(
                Kind::Repository,
                "migration-to-another-version",
                format!(
                    "`migrate` targets version {to}, but {crd} stores its objects in {}",
                    storage(&desired).unwrap_or("no version")
                ),
            )
            .hint("set `to` to the version with `storage: true`"),
            Some(_) => continue,
        };
        draft.findings.push(finding.at(rule.origin.clone()));
    }
}

fn split(ctx: &Ctx<'_>, draft: &mut Decided, id: &ObjectId, direction: Direction) {
    let (Some(manifest), Some(live)) = (ctx.manifests.get(id), ctx.observed.full.get(id)) else {
        return;
    };
    let is_there = matches!(
        draft.action(id),
        Some(Action::Update | Action::Adopt | Action::Unchanged)
    );
    if !is_there {
        return;
    }
    let desired = ctx.desired.ignored.lean(manifest).value();
    let rules = &ctx.desired.sequence.migrations;
    let retained = retained(&desired, live.value(), rules);
    let rewritten = rewritten(&desired, live.value(), rules);
    let step = draft.done_by.get(id).copied();
    let trusted = ca_bundles::of_conversion(ctx, draft, id, (&desired, live.value()));
    let body = trusted.as_ref().unwrap_or(&desired).clone();
    let body = with_retained(body, live.value(), &retained);
    let mut closing = None;
    let mut last = step;
    if let Some(step) = step {
        let planned = draft.at(step);
        let whole = (planned.op.clone(), planned.require.clone());
        if trusted.is_some() || !retained.is_empty() {
            send(draft, step, body.clone());
        }
        let planned = draft.at(step);
        if trusted.is_some() {
            planned.reason = format!("{}; {TRUSTED}", planned.reason);
        }
        if !retained.is_empty() {
            let names: Vec<&str> = retained.iter().map(|rule| rule.from.as_str()).collect();
            planned.reason = format!(
                "{}; version {} stays until no object is stored in it",
                planned.reason,
                names.join(", ")
            );
            let without = with_retained(desired.clone(), live.value(), &retained);
            let without = unserved(without, &retained);
            closing = Some((without, whole.0.clone(), whole.1.clone()));
        }
        if direction == Direction::Forward
            && let Some(service) = backend(ctx, id)
            && let Some(course) = course(ctx, id, &body, live.value())
        {
            last = Some(convert_later(ctx, draft, step, &course, service));
        }
        // The step that removes a version also applies the rest of the CRD as
        // git declares it.
        if trusted.is_some() && closing.is_none() {
            draft.narrowings.push(Narrowing {
                id: id.clone(),
                op: whole.0,
                require: whole.1,
                before: last,
            });
        }
    }
    rewrite_before(ctx, draft, id, (&desired, live.value()));
    if let Some(rule) = rewritten.first() {
        draft.rewrites.push(Rewrite {
            id: id.clone(),
            from: rewritten.iter().map(|rule| rule.from.clone()).collect(),
            to: rule.to.clone(),
            served: gvk(&desired, &rule.to),
            before: last,
            closing,
            left: ctx.desired.left_of_conversion(ctx.policy, manifest, live),
        });
    }
}

/// Rewrites objects that only the webhook can convert while it still runs:
/// before the CRD drops it and before its pods are replaced.
fn rewrite_before(
    ctx: &Ctx<'_>,
    draft: &mut Decided,
    id: &ObjectId,
    (desired, live): (&Value, &Value),
) {
    let ours = |manager: &str| ownership::may_take_over(ctx, manager);
    let rules = rewritten_before(desired, live, &ctx.desired.sequence.migrations);
    let (Some(step), Some(rule)) = (draft.done_by.get(id).copied(), rules.first()) else {
        return;
    };
    if !ends_conversion(desired, live, &ours) {
        return;
    }
    let from: Vec<String> = rules.iter().map(|rule| rule.from.clone()).collect();
    let reason = format!(
        "objects that may be stored as {} are rewritten as {} while the webhook still converts",
        from.join(", "),
        rule.to
    );
    let migrate = Op::Migrate {
        crd: id.clone(),
        from,
        to: rule.to.clone(),
    };
    let stage = StageName::Definitions;
    let migrated = draft.step(ctx, stage, id.clone(), migrate, &reason);
    let uid = ctx.observed.live_meta(id).map(|live| live.uid.clone());
    draft.at(migrated).require = uid.map(super::Precondition::Uid).into_iter().collect();
    let first = first_step_of(draft, step);
    draft.edge(migrated, Need::Applied, first, EdgeReason::SameObject);
    draft.rewritten_before.push(migrated);
}

/// Makes later stages wait for the migrations that need the previous conversion
/// webhook, because they replace its pods.
pub(super) fn run_before(ctx: &Ctx<'_>, draft: &mut Ordered) {
    let mut steps = draft.decided().rewritten_before.clone();
    steps.retain(|step| !draft.dropped.contains(step));
    if !steps.is_empty() {
        let why = &EdgeReason::Rewritten;
        let reason = "the previous webhook converts the objects that are rewritten";
        before_later(ctx, draft, &steps, (&StageName::Definitions, why, reason));
    }
}

/// Replaces the body of the step that applies a CRD.
fn send(draft: &mut Draft, step: StepId, object: Value) {
    if let Op::Apply { body, .. } = &mut draft.at(step).op {
        *body = Body::Inline(NonSecret(object));
    }
}

/// Returns the Service of the release that converts the CRD.
fn backend(ctx: &Ctx<'_>, id: &ObjectId) -> Option<ServiceRef> {
    let services = &ctx.facts.get(id)?.services;
    let mut services = services.iter();
    services
        .find(|service| ctx.is_desired(&service.id()))
        .cloned()
}

/// Ways to introduce a conversion webhook of the release.
enum Course {
    /// This part of the CRD is applied before the webhook answers.
    ByParts(Value),
    /// The conversion in the cluster is broken. The whole CRD is applied at
    /// once and awaited when the webhook answers.
    Repair,
}

/// Returns the way to introduce the conversion. `None` if the CRD can be
/// applied in one step and its conversion does not change.
fn course(ctx: &Ctx<'_>, id: &ObjectId, desired: &Value, live: &Value) -> Option<Course> {
    let mut services = pointed_at(&id.group_kind(), live).into_iter();
    let backend = services.find_map(|service| ctx.observed.backends.get(&service));
    if converts(desired) && is_conversion_broken(live, backend) {
        return Some(Course::Repair);
    }
    before_backend(desired, live).map(Course::ByParts)
}

/// Applies the parts that need no webhook first, and the whole CRD once the
/// webhook answers.
fn convert_later(
    ctx: &Ctx<'_>,
    draft: &mut Decided,
    step: StepId,
    course: &Course,
    service: ServiceRef,
) -> StepId {
    let planned = draft.at(step);
    let (id, op, require) = (
        planned.object.clone(),
        planned.op.clone(),
        planned.require.clone(),
    );
    let until = planned.until.take();
    let later = match course {
        Course::ByParts(first) => {
            let first = served(first).next().and_then(|name| gvk(first, name));
            planned.until = first.map(Until::Served);
            "versions that its webhook converts follow when the webhook answers"
        }
        Course::Repair => "its conversion in the cluster cannot work and is replaced at once",
    };
    planned.reason = format!("{}; {later}", planned.reason);
    if let Course::ByParts(first) = course {
        send(draft, step, first.clone());
    }
    let reason = format!("{service} answers: it converts between the versions from now on");
    let whole = draft.step(ctx, StageName::Registrations, id.clone(), op, &reason);
    draft.at(whole).require = require;
    draft.at(whole).until = until;
    draft.edge(step, Need::Ready, whole, EdgeReason::SameObject);
    draft.done_by.insert(id, whole);
    draft.converting.insert(whole, service);
    whole
}

fn gvk(crd: &Value, version: &str) -> Option<Gvk> {
    let spec = &crd["spec"];
    let group = spec["group"].as_str()?;
    let kind = spec["names"]["kind"].as_str()?;
    Some(Gvk::new(&format!("{group}/{version}"), kind))
}

/// Rewrites stored objects after everything else, then removes their previous
/// versions.
pub(super) fn finish(ctx: &Ctx<'_>, draft: &mut Bracketed) {
    let mut rewrites = std::mem::take(&mut draft.rewrites);
    rewrites.retain(|one| draft.action(&one.id) != Some(Action::Blocked));
    if rewrites.is_empty() {
        return;
    }
    let Some(verified) = draft.verified else {
        return stay(draft, &rewrites);
    };
    let mut first = Vec::with_capacity(rewrites.len());
    for rewrite in rewrites {
        first.push(rewrite_objects(ctx, draft, rewrite));
    }
    let reason = "objects are rewritten after the previous version is removed";
    after_everything(ctx, draft, verified, &first, reason);
}

/// Adds the migration steps of one CRD and returns the first.
fn rewrite_objects(ctx: &Ctx<'_>, draft: &mut Draft, rewrite: Rewrite) -> StepId {
    let Rewrite {
        id,
        from,
        to,
        served,
        before,
        closing,
        left,
    } = rewrite;
    let names = from.join(", ");
    let live = ctx.observed.live_meta(&id);
    let uid = live.map(|live| super::Precondition::Uid(live.uid.clone()));
    let shrink = || StageName::Shrink;
    let migrate = Op::Migrate {
        crd: id.clone(),
        from,
        to: to.clone(),
    };
    let reason = format!("objects that may be stored as {names} are rewritten as {to}");
    let migrated = draft.step(ctx, shrink(), id.clone(), migrate, &reason);
    draft.at(migrated).require = uid.into_iter().collect();
    let mut first = migrated;
    if let Some((unserved, whole, require)) = closing {
        let mut closed = whole.clone();
        if let Op::Apply { body, .. } = &mut closed {
            *body = Body::Inline(NonSecret(unserved));
        }
        let reason = format!("clients cannot write {names} while its objects are rewritten");
        first = draft.step(ctx, shrink(), id.clone(), closed, &reason);
        draft.at(first).require.clone_from(&require);
        draft.at(first).until = served.clone().map(Until::Served);
        draft.edge(first, Need::Ready, migrated, EdgeReason::SameObject);
        let mut last = migrated;
        if !left.is_empty() {
            last = take_over(ctx, draft, &id, left);
            draft.edge(migrated, Need::Applied, last, EdgeReason::SameObject);
        }
        let reason = format!("no object is stored as {names} any more");
        let gone = draft.step(ctx, shrink(), id.clone(), whole, &reason);
        draft.at(gone).require = require;
        draft.at(gone).until = served.map(Until::Served);
        draft.edge(last, Need::Applied, gone, EdgeReason::SameObject);
    }
    if let Some(before) = before {
        draft.edge(before, Need::Applied, first, EdgeReason::SameObject);
    }
    first
}

/// Takes ownership of the conversion fields of other managers. This plan has
/// written the CRD before, so no field digest is expected.
fn take_over(ctx: &Ctx<'_>, draft: &mut Draft, id: &ObjectId, left: FieldSet) -> StepId {
    let manifest = ctx.manifests.get(id);
    let own = Own {
        api_version: manifest.map_or_else(String::new, |one| one.api_version().to_string()),
        from: Vec::new(),
        reclaim: left,
        give_up: Vec::new(),
        strip: Vec::new(),
        fields: None,
    };
    let step = draft.step(ctx, StageName::Shrink, id.clone(), Op::Own(own), ENDS);
    let uid = ctx.observed.live_meta(id).map(|live| live.uid.clone());
    draft.at(step).require = uid.map(super::Precondition::Uid).into_iter().collect();
    step
}

/// Reports migrations that are deferred: without verify, pods of the previous
/// version may still run.
fn stay(draft: &mut Draft, rewrites: &[Rewrite]) {
    let names: Vec<String> = rewrites.iter().map(|one| one.id.to_string()).collect();
    let message = format!(
        "stored objects are rewritten only after all objects are ready, which this run does not check: {}",
        names.join(", ")
    );
    let finding = Finding::note(Kind::Policy, "not-migrated", message);
    draft.findings.push(finding);
}
