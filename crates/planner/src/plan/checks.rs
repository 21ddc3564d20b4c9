//! Checks that the bundle declares. They run in preflight, and again before
//! each declared stage.

use super::consent::bound_to;
use super::draft::{Ctx, Draft};
use super::model::{Desired, EdgeReason, Need, StepId, Until};
use super::overlays::{Progress, descendants};
use super::phases::{Bracketed, Decided};
use super::protection::installed_version;
use super::stages::at_barrier;
use pleach_formats::check::{Check, CheckOutcome};
use pleach_formats::{policy::ConsentAction, sequence::StageRule};
use pleach_model::finding::{Finding, Kind, overridable::OVERRIDABLE};
use pleach_model::order::StageName;
use pleach_state::inventory::{Installed, Override};

impl Desired {
    /// Returns whether the objects of the checks must be read. Drift correction
    /// runs without checks.
    pub fn needs_checks(&self, record: Option<&Installed>) -> bool {
        !self.sequence.checks.is_empty() && self.is_fresh(record)
    }
}

/// Reports all checks that fail now.
pub(super) fn run(ctx: &Ctx<'_>, draft: &mut Decided) {
    let checks = ctx.desired.sequence.checks.iter();
    for check in checks.filter(|check| !ctx.sequence.is_of_a_stage(&check.name)) {
        let Some(outcome) = ctx.observed.checked.get(&check.name) else {
            continue;
        };
        match overridden(ctx, check) {
            None => refuse(ctx, draft, check, outcome),
            Some(_) if outcome.holds() => {}
            Some(reason) => {
                let what = outcome.explain().unwrap_or_default();
                point_out(draft, check, reason, &format!(": {what}"));
            }
        }
    }
    unused(ctx, draft);
}

/// Reports and records an overridden check.
fn point_out(draft: &mut Draft, check: &Check, reason: String, what: &str) {
    let message = format!("check {} is overridden ({reason}){what}", check.name);
    draft
        .findings
        .push(Finding::warning(Kind::Policy, "check-overridden", message).at(check.origin.clone()));
    draft.overrides.push(Override {
        check: check.name.clone(),
        reason,
    });
}

/// Returns waits for the checks that verify a stage.
pub(super) fn of_stage(ctx: &Ctx<'_>, draft: &mut Draft, rule: &StageRule) -> Vec<StepId> {
    let mut waits = Vec::new();
    for check in &ctx.desired.sequence.checks {
        if !rule.checks.contains(&check.name) {
            continue;
        }
        if let Some(reason) = overridden(ctx, check) {
            point_out(draft, check, reason, "");
            continue;
        }
        let until = Until::Holds {
            check: check.name.clone(),
        };
        let reason = format!("check {} verifies stage {}", check.name, rule.stage);
        let stage = rule.stage.clone();
        waits.push(draft.wait(ctx, stage, ctx.release(), Some(until), &reason));
    }
    waits
}

fn refuse(ctx: &Ctx<'_>, draft: &mut Draft, check: &Check, outcome: &CheckOutcome) {
    let hint = || {
        format!(
            "to continue anyway, add to `consent` in {}: {{action: override, check: {}, {}, reason: …}}",
            ctx.environment_file(),
            check.name,
            bound_to(ctx)
        )
    };
    let mut add = |kind, code: &str, what: String| {
        let message = format!("check {} {what}", check.name);
        draft.findings.push(
            Finding::error(kind, code, message)
                .at(check.origin.clone())
                .hint(hint()),
        );
    };
    match outcome {
        CheckOutcome::Unknown(why) => {
            add(
                Kind::Cluster,
                "check-unknown",
                format!("cannot be evaluated: {why}"),
            );
        }
        CheckOutcome::Seen { objections, more } => {
            for objection in objections {
                let what = format!("does not hold: {}: {}", objection.object, objection.message);
                add(Kind::Policy, "check-failed", what);
            }
            if *more > 0 {
                let what = format!("does not hold for {more} more objects");
                add(Kind::Policy, "check-failed", what);
            }
        }
    }
}

/// Returns the reason of a consent in git that overrides a check, if there is
/// one.
fn overridden(ctx: &Ctx<'_>, check: &Check) -> Option<String> {
    let from = installed_version(ctx);
    let (release, to) = (&ctx.desired.name.release, &ctx.desired.version);
    let mut consents = ctx.policy.consent.iter();
    let consent =
        consents.find(|consent| consent.allows_override(&check.name, release, from, to))?;
    Some(consent.reason.clone().unwrap_or_default())
}

/// Warns about a consent that names no check of the bundle.
fn unused(ctx: &Ctx<'_>, draft: &mut Draft) {
    let checks = ctx.desired.sequence.checks.iter();
    let known: Vec<&str> = checks
        .map(|check| check.name.as_str())
        .chain(OVERRIDABLE)
        .collect();
    let from = installed_version(ctx);
    let (release, to) = (&ctx.desired.name.release, &ctx.desired.version);
    for consent in &ctx.policy.consent {
        let Some(name) = &consent.check else { continue };
        let is_ours = consent.action == ConsentAction::Override
            && consent.allows_override(name, release, from, to);
        if is_ours && !known.contains(&name.as_str()) {
            let message =
                format!("consent to override check `{name}`, which the bundle does not have");
            let mut finding = Finding::warning(Kind::Repository, "unused-consent", message);
            finding.hint = pleach_model::suggest::did_you_mean(name, &known);
            draft.findings.push(finding);
        }
    }
}

/// Makes each declared stage wait for all checks, because earlier steps may
/// have changed their result.
pub(super) fn before_stages(ctx: &Ctx<'_>, draft: &mut Bracketed) {
    let progress = Progress::of(ctx.desired, ctx.observed.installed.as_ref());
    let checks: Vec<&Check> = ctx
        .desired
        .sequence
        .checks
        .iter()
        .filter(|check| progress.unfinished && overridden(ctx, check).is_none())
        .filter(|check| !ctx.sequence.is_of_a_stage(&check.name))
        .collect();
    if checks.is_empty() {
        return;
    }
    let mut stages: Vec<(StageName, Option<jiff::SignedDuration>)> = ctx
        .sequence
        .stages
        .iter()
        .map(|rule| (rule.stage.clone(), rule.timeout))
        .collect();
    stages.sort();
    for (stage, timeout) in stages {
        let within: Vec<StepId> = draft
            .steps
            .iter()
            .filter(|step| step.stage == stage && !draft.dropped.contains(&step.id))
            .map(|step| step.id)
            .collect();
        if within.is_empty() {
            continue;
        }
        let behind = descendants(draft, within.clone());
        let before: Vec<(StepId, Need)> = draft
            .steps
            .iter()
            .filter(|step| step.stage < stage && !draft.dropped.contains(&step.id))
            .filter(|step| !behind.contains(&step.id))
            .map(|step| at_barrier(ctx, step))
            .collect();
        let mut waits = Vec::new();
        for check in &checks {
            let until = Until::Holds {
                check: check.name.clone(),
            };
            let reason = format!("check {} holds before stage {stage}", check.name);
            let wait = draft.wait(ctx, stage.clone(), ctx.release(), Some(until), &reason);
            if let Some(timeout) = timeout {
                draft.at(wait).deadline = timeout;
            }
            waits.push(wait);
        }
        let why = EdgeReason::Check;
        let reason = format!("checks come before stage {stage}");
        draft.all_before(ctx, stage.clone(), &before, &waits, &why, &reason);
        let required: Vec<(StepId, Need)> = waits.iter().map(|&wait| (wait, Need::Ready)).collect();
        draft.all_before(ctx, stage.clone(), &required, &within, &why, &reason);
    }
}
