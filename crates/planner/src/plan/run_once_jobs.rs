//! Run-once Jobs. They run once per content, including the ConfigMaps and
//! Secrets that their pods read.
//!
//! Such a Job is not compared with the live object. Only its run key decides
//! whether it has run. A changed Job is deleted and recreated, because its
//! template is immutable, and never while it runs.

use std::collections::BTreeMap;

use super::changes::{block, change, refusal, terminating_reason};
use super::draft::{Ctx, Draft};
use super::model::{Action, Body, EdgeReason, Need, Op, Precondition, StepId, Until};
use super::ownership::{self, Claim};
use super::phases::Ordered;
use super::{Deletion, Desired};
use crate::observe::Prediction;
use pleach_formats::readiness::{Readiness, assess};
use pleach_model::finding::{Finding, Kind};
use pleach_model::object::{
    DesiredDigest, Digest, Manifest, ObjectId, annotations, canonical_json,
};
use pleach_model::order::StageName;
use pleach_state::inventory::{Journal, Outcome};
use pleach_state::live::{Live, LiveMeta};

impl Desired {
    /// Computes the run key of a Job: a digest of its content, and of the
    /// `ConfigMaps` and Secrets of the release that its pods read. `None` for
    /// other objects, and before the digest key exists.
    pub fn run_key(&self, id: &ObjectId) -> Option<Digest> {
        if !id.is("batch", "Job") {
            return None;
        }
        let mut manifests = self.manifests.iter();
        let manifest = manifests
            .find(|one| one.id() == id)
            .filter(|one| one.runs_once())?;
        let known = |id: &ObjectId| match self.digests.get(id) {
            Some(DesiredDigest::Known(digest)) => Some(Some(digest.to_string())),
            Some(DesiredDigest::Unkeyed) => None,
            // Not part of this release; changes by other clients are unknown.
            None => Some(None),
        };
        let mut inputs = vec![known(id)?];
        inputs.extend(self.verified(manifest).map(Some));
        let mut read = manifest.facts().pod_references.clone();
        read.retain(|id| id.is("", "ConfigMap") || id.is("", "Secret"));
        read.sort();
        read.dedup();
        for input in &read {
            inputs.push(known(input)?);
        }
        Some(Digest::of(&canonical_json(&serde_json::json!(inputs))))
    }

    /// Returns the stage and version that bind a verification Job of a stage.
    fn verified(&self, manifest: &Manifest) -> Option<String> {
        let file = &manifest.origin().file;
        let rule = self.sequence.verified_with(file)?;
        let version = if self.has_version() {
            self.version.clone()
        } else {
            self.mark()
        };
        Some(format!("{} {version}", rule.stage))
    }

    /// Returns whether a Job succeeded for its present run key.
    pub fn has_run(&self, id: &ObjectId, journal: &Journal) -> bool {
        let run = journal.runs.get(id);
        run.is_some_and(|run| {
            run.outcome == Outcome::Succeeded && Some(run.key) == self.run_key(id)
        })
    }
}

/// Decides a run-once Job.
pub(super) fn decide(ctx: &Ctx<'_>, draft: &mut Draft, manifest: &Manifest) {
    let id = manifest.id();
    if ctx.desired.has_run(id, &ctx.observed.journal) {
        let reason =
            "it has run; it runs again when its manifest or an object that its pods read changes";
        change(ctx, draft, manifest, Action::Unchanged, reason);
        return;
    }
    let Some(live) = ctx.observed.live_meta(id) else {
        // For an existing Job the server only reports an immutable template,
        // which does not matter because the Job is recreated.
        if let Some(Prediction::Refused(why)) = ctx.observed.predicted.get(id) {
            return block(ctx, draft, manifest, refusal::refused(why));
        }
        return create(ctx, draft, manifest, "it runs once for its content");
    };
    let namespace = id.namespace.as_ref();
    if live.deleting || namespace.is_some_and(|name| ctx.is_terminating(name)) {
        let waiting = terminating_reason(live);
        change(ctx, draft, manifest, Action::Create, &waiting);
        let gone = draft.wait_for_end(ctx, ctx.stage_of(id), id, &live.uid, &waiting);
        let step = run(
            ctx,
            draft,
            manifest,
            Precondition::Absent,
            "the previous Job is gone",
        );
        draft.edge(gone, Need::Absent, step, EdgeReason::SameObject);
        return;
    }
    match ownership::claim(ctx, id, live) {
        Claim::Ours => exists(ctx, draft, manifest, live),
        Claim::Adopt => {
            let message = "it already exists and is not part of this release: it is unknown whether it ran for this release";
            let finding = Finding::error(Kind::Policy, "job-not-ours", message);
            block(
                ctx,
                draft,
                manifest,
                finding.hint("delete it, or rename the Job in git: either way it runs again"),
            );
        }
        Claim::Refused(finding) => block(ctx, draft, manifest, *finding),
    }
}

/// Decides an existing Job of ours that is not known to have succeeded.
fn exists(ctx: &Ctx<'_>, draft: &mut Draft, manifest: &Manifest, live: &LiveMeta) {
    let id = manifest.id();
    let Some(full) = ctx.observed.full.get(id) else {
        let finding = Finding::error(Kind::Cluster, "not-read", "it exists and could not be read");
        return block(ctx, draft, manifest, finding);
    };
    let readiness = assess(full.value()).readiness;
    if is_for(ctx, id, full) && readiness != Readiness::Failed {
        let reason = "a previous run started it; pleach waits for it to finish";
        change(ctx, draft, manifest, Action::Update, reason);
        run(
            ctx,
            draft,
            manifest,
            Precondition::Uid(live.uid.clone()),
            reason,
        );
        return;
    }
    let entry = ctx.observed.inventory.entries.get(id);
    let deletion = entry.and_then(|entry| Deletion::of_rerun(ctx.member(entry, live)));
    let Some(deletion) = deletion else {
        let message = "a Job of this name exists and is not the one that was applied";
        let finding = Finding::error(Kind::Conflict, "job-replaced", message);
        return block(
            ctx,
            draft,
            manifest,
            finding.hint("delete it, and apply again"),
        );
    };
    let stage = ctx.stage_of(id);
    let reason = deletion.explain();
    change(ctx, draft, manifest, Action::Recreate, &reason);
    let delete = draft.step(
        ctx,
        stage.clone(),
        id.clone(),
        Op::Delete(deletion),
        &reason,
    );
    draft.at(delete).require = vec![Precondition::Uid(live.uid.clone())];
    draft.at(delete).until = Some(Until::Absent { pods: None });
    let step = run(
        ctx,
        draft,
        manifest,
        Precondition::Absent,
        "the previous Job is gone",
    );
    draft.edge(delete, Need::Absent, step, EdgeReason::SameObject);
    if !matches!(readiness, Readiness::Current | Readiness::Failed) {
        let reason = "a Job is never deleted while it runs";
        let ended = draft.wait(ctx, stage, id.clone(), Some(Until::Finished), reason);
        draft.edge(ended, Need::Ready, delete, EdgeReason::SameObject);
    }
}

/// Returns whether a live Job was created for the present run key.
fn is_for(ctx: &Ctx<'_>, id: &ObjectId, full: &Live) -> bool {
    let key = ctx.desired.run_key(id).map(|key| key.to_string());
    key.is_some() && full.meta().annotations.get(annotations::RUN_KEY) == key.as_ref()
}

fn create(ctx: &Ctx<'_>, draft: &mut Draft, manifest: &Manifest, reason: &str) {
    change(ctx, draft, manifest, Action::Create, reason);
    run(ctx, draft, manifest, Precondition::Absent, reason);
}

/// Adds the step that creates a Job and waits for its success.
fn run(
    ctx: &Ctx<'_>,
    draft: &mut Draft,
    manifest: &Manifest,
    require: Precondition,
    reason: &str,
) -> StepId {
    let id = manifest.id();
    let digest = ctx.desired.digests.get(id).copied();
    let op = Op::Create {
        body: Body::Rendered(digest.unwrap_or(DesiredDigest::Unkeyed)),
        once: true,
    };
    let step = draft.step(ctx, ctx.stage_of(id), id.clone(), op, reason);
    draft.at(step).require = vec![require];
    draft.at(step).until = Some(Until::Ready {
        stable_for: jiff::SignedDuration::ZERO,
        optional: false,
    });
    draft.done_by.insert(id.clone(), step);
    step
}

/// Makes later stages wait for run-once Jobs. A declared stage is a barrier
/// already.
pub(super) fn run_before(ctx: &Ctx<'_>, draft: &mut Ordered) {
    let mut stages: BTreeMap<StageName, Vec<StepId>> = BTreeMap::new();
    for step in &draft.steps {
        let runs_once = matches!(step.op, Op::Create { once: true, .. });
        if runs_once && !draft.dropped.contains(&step.id) && ctx.declared(&step.stage).is_none() {
            stages.entry(step.stage.clone()).or_default().push(step.id);
        }
    }
    for (stage, steps) in stages {
        let reason = "later stages wait for Jobs that run once";
        let behind = (&stage, &EdgeReason::Once, reason);
        super::overlays::before_later(ctx, draft, &steps, behind);
    }
}
