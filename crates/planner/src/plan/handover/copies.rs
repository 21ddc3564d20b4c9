//! User objects that are copied when the product leaves a namespace.

use std::collections::BTreeSet;

use crate::observe::Observed;
use crate::plan::{
    draft::{Ctx, Draft},
    model::{Action, Desired, EdgeReason, Need, Op, StepId},
    overlays::Progress,
};
use pleach_formats::sequence::{CopyRule, MoveRule};
use pleach_model::finding::{Finding, Kind};
use pleach_model::object::{Manifest, ObjectId};
use pleach_model::order::StageName;
use pleach_state::live::LiveMeta;
use pleach_state::state_objects::{self, holds_state, is_named_as_state};

/// `ConfigMap` that the cluster creates in every namespace.
const ROOT_CA: &str = "kube-root-ca.crt";

/// Annotation of ServiceAccount tokens, which are useless in another namespace.
const TOKEN_OF: &str = "kubernetes.io/service-account.name";

impl Desired {
    /// Returns the rules whose objects must be listed, with their namespace.
    /// Empty once the release has left the namespace.
    pub fn copies_to_list(&self, observed: &Observed) -> Vec<(String, CopyRule)> {
        let moves = self.sequence.moves.iter();
        let patterns = |rule: &MoveRule| rule.copy.iter().any(|one| !one.is_one());
        let moves: Vec<&MoveRule> = moves.filter(|rule| patterns(rule)).collect();
        let record = observed.installed.as_ref();
        if moves.is_empty() || !Progress::of(self, record).unfinished {
            return Vec::new();
        }
        let desired: BTreeSet<&ObjectId> = self.manifests.iter().map(Manifest::id).collect();
        moves
            .into_iter()
            .filter(|rule| is_left(rule, observed, &|id| desired.contains(id)))
            .flat_map(|rule| {
                let copied = rule.copy.iter();
                copied.map(move |one| (rule.from.clone(), one.clone()))
            })
            .filter(|(_, one)| !one.is_one())
            .collect()
    }
}

/// Returns whether a rule copies a listed object: it is a user's. Objects of controllers or releases
/// are recreated by them.
pub fn is_copied(rule: &CopyRule, id: &ObjectId, live: &LiveMeta) -> bool {
    let mut labels = rule.labels.iter();
    rule.names(id)
        && labels.all(|(key, value)| live.labels.get(key) == Some(value))
        && live.part_of().is_none()
        && live.owners.is_empty()
        && !live.deleting
        && !live.annotations.contains_key(TOKEN_OF)
        && !holds_state(id, live)
        && id.name != ROOT_CA
}

/// Returns whether the previous namespace still has members of this release, or
/// of the release that hands its objects over.
fn is_left(rule: &MoveRule, observed: &Observed, is_desired: &dyn Fn(&ObjectId) -> bool) -> bool {
    let previous = observed.previous.iter();
    let previous = previous.flat_map(|previous| previous.inventory.entries.keys());
    let mut members = observed.inventory.entries.keys().chain(previous);
    members.any(|id| id.namespace.as_ref() == Some(&rule.from) && !is_desired(id))
}

/// Adds the copies, before the workloads that read them.
pub(super) fn run(ctx: &Ctx<'_>, draft: &mut Draft) {
    let record = ctx.observed.installed.as_ref();
    if !Progress::of(ctx.desired, record).unfinished {
        return;
    }
    for rule in &ctx.desired.sequence.moves {
        if !is_left(rule, ctx.observed, &|id| ctx.is_desired(id)) {
            continue;
        }
        for one in &rule.copy {
            for (from, to) in pairs(ctx, rule, one) {
                if !ctx.is_desired(&to) && !ctx.is_desired(&from) {
                    copy(ctx, draft, rule, from, to);
                } else if one.is_one() {
                    let message =
                        format!("{to} cannot be copied, because the release contains the object");
                    let finding = Finding::error(Kind::Repository, "copy-of-own", message);
                    draft.findings.push(finding.at(rule.origin.clone()));
                }
            }
        }
    }
}

/// Returns the source and target of each copy.
fn pairs(ctx: &Ctx<'_>, rule: &MoveRule, one: &CopyRule) -> Vec<(ObjectId, ObjectId)> {
    let at = |namespace: &str, name: &str| {
        ObjectId::new(&one.kind.group, &one.kind.kind, Some(namespace), name)
    };
    let pair = |name: &str| (at(&rule.from, name), at(&rule.to, name));
    if one.is_one() {
        return vec![pair(&one.name)];
    }
    let found = ctx.observed.copies.iter();
    found
        .filter(|id| id.namespace.as_ref() == Some(&rule.from) && one.names(id))
        .map(|id| pair(&id.name))
        .collect()
}

fn copy(ctx: &Ctx<'_>, draft: &mut Draft, rule: &MoveRule, from: ObjectId, to: ObjectId) {
    let namespace = ObjectId::new("", "Namespace", None, &rule.to);
    let is_copied = ctx.observed.inventory.entries.contains_key(&to);
    if is_copied || draft.action(&namespace) == Some(Action::Blocked) {
        return;
    }
    let Desired { name, store, .. } = ctx.desired;
    for id in [&from, &to] {
        if is_named_as_state(id, &name.environment, store) {
            let finding = state_objects::refusal().at(rule.origin.clone());
            draft.findings.push(finding.on(id.clone()));
            return;
        }
    }
    let reason = format!("copied from {from}, if that exists; an existing object does not change");
    let op = Op::Copy {
        from,
        to: to.clone(),
    };
    let step = draft.step(ctx, StageName::Config, to, op, &reason);
    // The release namespace may be created without a manifest.
    let made = draft.steps.iter();
    let made = made.filter(|step| step.op.applies() && step.object == namespace);
    let made: Vec<StepId> = made.map(|step| step.id).collect();
    for made in made {
        draft.edge(made, Need::Applied, step, EdgeReason::Namespace);
    }
    for workload in draft.workloads(ctx) {
        if draft.steps[workload.0].object.namespace.as_ref() == Some(&rule.to) {
            draft.edge(step, Need::Applied, workload, EdgeReason::Reference);
        }
    }
}
