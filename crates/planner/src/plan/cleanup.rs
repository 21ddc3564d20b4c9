//! Removal of images from nodes at the end of an upgrade that changes nodes.
//!
//! The images of the replaced version are only known while its objects exist. So they are remembered
//! before the first write, in a `ConfigMap` that the Jobs mount, and forgotten when all nodes are
//! clean.

use std::collections::{BTreeMap, BTreeSet};

use super::draft::Ctx;
use super::model::{Desired, EdgeReason, Need, Op, Precondition, StepId};
use super::node_batches::{NodeStep, Pause, in_batches};
use super::nodes::named;
use super::phases::Bracketed;
use super::shrink::after_everything;
use crate::observe::ObservedNodes;
use pleach_formats::nodes::{CleanupRule, FormerImages, NodesRule};
use pleach_formats::sequence::StageRule;
use pleach_model::finding::{Finding, Kind};
use pleach_model::object::{DesiredDigest, Manifest, ObjectId};
use pleach_model::order::{Direction, StageName};

impl Desired {
    /// Returns the Job of a cleanup.
    pub fn cleanup_job(&self, rule: &CleanupRule) -> Option<&Manifest> {
        self.node_jobs.get(&rule.job)
    }
}

/// A `ConfigMap` of images, with the steps that read it.
#[derive(Default)]
struct List {
    images: BTreeSet<String>,
    steps: Vec<StepId>,
}

/// Adds the steps of all stages with a cleanup. Without images to remove there are none.
pub(super) fn run(ctx: &Ctx<'_>, draft: &mut Bracketed, direction: Direction) {
    let (Some(verified), true) = (
        draft.verified,
        ctx.desired.changes_nodes(ctx.observed.installed.as_ref()),
    ) else {
        return;
    };
    let others: Vec<StepId> = draft.steps.iter().map(|step| step.id).collect();
    let mut lists: BTreeMap<Option<String>, List> = BTreeMap::new();
    for stage in &ctx.sequence.stages {
        let Some(rule) = &stage.nodes else { continue };
        let Some(cleanup) = &rule.cleanup else {
            continue;
        };
        if direction == Direction::Reverse && !rule.reverse {
            continue;
        }
        let read = ctx.observed.nodes.get(stage.stage.as_str());
        let Some(job) = ctx.desired.cleanup_job(cleanup) else {
            continue;
        };
        let Some(ObservedNodes::Read { former, .. }) = read else {
            continue;
        };
        if former.is_empty() || !has_namespace(ctx, draft, stage, job) {
            continue;
        }
        let steps = add(ctx, draft, (stage, rule, cleanup), job);
        let list = lists.entry(job.id().namespace.clone()).or_default();
        list.images.extend(former.iter().cloned());
        list.steps.extend(steps);
    }
    for (namespace, List { images, steps }) in lists {
        let id = FormerImages::id(namespace.as_deref());
        let reason = format!("{}, to be removed from nodes", counted(&images));
        let op = Op::RememberImages { images };
        let remember = draft.step(ctx, StageName::Preflight, id.clone(), op, &reason);
        let why = EdgeReason::Node;
        draft.each_before(&[(remember, Need::Applied)], &others, &why);
        draft.each_before(&[(remember, Need::Applied)], &steps, &why);
        let reason = "when all nodes are ready and nothing is left to delete";
        after_everything(ctx, draft, verified, &steps, reason);
        let op = Op::RememberImages {
            images: BTreeSet::new(),
        };
        let reason = "the nodes are clean";
        let forget = draft.step(ctx, StageName::Shrink, id, op, reason);
        draft.edge(verified, Need::Applied, forget, EdgeReason::Barrier);
        let steps: Vec<(StepId, Need)> = steps.iter().map(|&id| (id, Need::Applied)).collect();
        draft.each_before(&steps, &[forget], &why);
    }
}

/// Returns whether the namespace of a Job exists.
fn has_namespace(ctx: &Ctx<'_>, draft: &mut Bracketed, stage: &StageRule, job: &Manifest) -> bool {
    let Some(namespace) = job.id().namespace.as_deref() else {
        return true;
    };
    let id = ObjectId::new("", "Namespace", None, namespace);
    let exists = ctx.observed.live_meta(&id).is_some() || ctx.observed.hides_namespace(namespace);
    if !exists {
        let message = format!(
            "stage {}: no images are removed: namespace {namespace} does not exist yet",
            stage.stage
        );
        let finding = Finding::note(Kind::Policy, "nodes-skipped", message);
        draft.findings.push(finding.at(stage.origin.clone()));
    }
    exists
}

/// Adds the steps of one stage, one per node, in batches.
fn add(
    ctx: &Ctx<'_>,
    draft: &mut Bracketed,
    (stage, rule, cleanup): (&StageRule, &NodesRule, &CleanupRule),
    job: &Manifest,
) -> Vec<StepId> {
    let Some(ObservedNodes::Read { nodes, former, .. }) =
        ctx.observed.nodes.get(stage.stage.as_str())
    else {
        return Vec::new();
    };
    let lost = nodes.iter().filter(|node| !node.ready && node.done);
    let lost: Vec<&str> = lost.map(|node| node.name.as_str()).collect();
    if !lost.is_empty() {
        let message = format!(
            "stage {}: {} not ready, and keep their images",
            stage.stage,
            named(&lost)
        );
        let finding = Finding::warning(Kind::Cluster, "node-not-cleaned", message);
        draft.findings.push(finding.at(stage.origin.clone()));
    }
    let mut clean: Vec<_> = nodes
        .iter()
        .filter(|node| node.ready || !node.done)
        .collect();
    clean.sort_by_key(|node| &node.name);
    let op = Op::CleanNode {
        images: former.clone(),
        content: match ctx.desired.digests.get(job.id()) {
            Some(DesiredDigest::Known(digest)) => digest.to_string(),
            Some(DesiredDigest::Unkeyed) | None => "unkeyed".to_owned(),
        },
        job: job.id().clone(),
    };
    let reason = format!("{}, Job of {}", counted(former), cleanup.job);
    let mut steps: Vec<NodeStep> = Vec::new();
    for node in clean {
        let id = ObjectId::new("", "Node", None, &node.name);
        let step = draft.step(ctx, StageName::Shrink, id, op.clone(), &reason);
        draft.at(step).deadline = cleanup.timeout;
        draft.at(step).require = vec![Precondition::Uid(node.uid.clone())];
        steps.push(NodeStep::plain(step));
    }
    let at_once = rule.parallel.of(nodes.len());
    in_batches(
        ctx,
        draft,
        &StageName::Shrink,
        &steps,
        at_once,
        Pause::Never,
    );
    steps.into_iter().map(|one| one.step).collect()
}

fn counted(images: &BTreeSet<String>) -> String {
    match images.len() {
        1 => "1 image of the replaced version".to_owned(),
        count => format!("{count} images of the replaced version"),
    }
}
