//! Staged rollout of a `DaemonSet`: a few pods first, then the others with a
//! limit.
//!
//! Two temporary changes start before the new template is applied. `OnDelete`
//! stops the controller from replacing pods, so that pleach replaces and
//! watches the first ones. After that is reverted, the controller replaces the
//! others, up to `maxUnavailable` at a time. Then the second change is
//! reverted, and the object matches its manifest. If the rollout stops at any
//! point, the previous pods remain.

use jiff::SignedDuration;
use serde_json::{Value, json};

use super::desired::{Begin, DesiredOverlay, End, Role};
use super::{hand_over, lift};
use crate::observe::Prediction;
use crate::plan::{
    draft::{Ctx, Draft},
    model::{Action, EdgeReason, Need, Op, StepId, Until},
    verify::completion,
};
use pleach_formats::sequence::{Count, RolloutRule, StageRule};
use pleach_model::finding::{Finding, Kind};
use pleach_model::object::{NonSecret, ObjectId};
use pleach_state::live::Live;
use pleach_state::overlay::{OnFailure, OverlayId};

/// Time for which pods must stay ready: a status about to change looks correct
/// for a moment.
const STEADY: SignedDuration = SignedDuration::from_secs(5);

/// Returns whether a temporary change stops a controller from replacing pods.
pub(in crate::plan) fn holds(patch: &Value) -> bool {
    patch["spec"]["updateStrategy"]["type"] == "OnDelete"
}

/// Returns the temporary changes of `DaemonSets` whose pods are replaced.
pub(super) fn desired_overlays<'a>(ctx: &Ctx<'a>, draft: &mut Draft) -> Vec<DesiredOverlay<'a>> {
    let mut all = Vec::new();
    for &id in ctx.assigned.keys() {
        let Some((stage, rule)) = ctx.rollout_of(id) else {
            continue;
        };
        let (Some(live), Some(manifest)) = (ctx.observed.full.get(id), ctx.manifests.get(id))
        else {
            continue;
        };
        if !is_exchanged(ctx, draft, id, live) {
            continue;
        }
        if holds(&manifest.value()) {
            let message = format!(
                "stage {} does not roll it out: its updateStrategy is OnDelete, so its pods stay until a client deletes them",
                stage.stage
            );
            let finding = Finding::warning(Kind::Repository, "rollout-on-delete", message);
            draft.findings.push(finding.on(id.clone()));
            continue;
        }
        let change = |role, patch: Value, reason: String| DesiredOverlay {
            id: OverlayId::new(stage.stage.as_str(), id, &patch),
            object: id.clone(),
            live,
            patch: NonSecret(patch),
            from: stage.stage.clone(),
            begin: Begin::Declared,
            end: End::Rollout(role),
            on_failure: OnFailure::Keep { max_age: None },
            reason: format!("stage {} {reason}", stage.stage),
            ready: None,
            deadline: stage.timeout,
        };
        if rule.first.is_some() {
            let patch = json!({"spec": {"updateStrategy": {"type": "OnDelete"}}});
            let reason = "suspends its rollout".to_owned();
            all.push(change(Role::Hold, patch, reason));
        }
        if let Some(then) = rule.then {
            let value = match then {
                Count::Pods(pods) => json!(pods),
                Count::Percent(_) => json!(then.to_string()),
            };
            let patch =
                json!({"spec": {"updateStrategy": {"rollingUpdate": {"maxUnavailable": value}}}});
            let reason = format!("replaces {then} of its pods at a time");
            all.push(change(Role::Pace, patch, reason));
        }
    }
    all
}

/// Returns whether pods are replaced: the template changes, or an earlier run
/// started the rollout and did not finish.
fn is_exchanged(ctx: &Ctx<'_>, draft: &Draft, id: &ObjectId, live: &Live) -> bool {
    if !matches!(draft.action(id), Some(Action::Update | Action::Adopt)) {
        return false;
    }
    let mut journaled = ctx.observed.journal.overlays.values();
    if journaled.any(|one| one.object == *id && !one.set.0["spec"]["updateStrategy"].is_null()) {
        return true;
    }
    changes_template(ctx, id, live)
}

/// Returns whether the pod template of an object changes.
fn changes_template(ctx: &Ctx<'_>, id: &ObjectId, live: &Live) -> bool {
    match ctx.observed.predicted.get(id) {
        Some(Prediction::Answer(predicted)) => {
            live.value()["spec"]["template"] != predicted.value()["spec"]["template"]
        }
        // Without a dry-run answer, assume a change.
        _ => true,
    }
}

/// Returns whether an earlier run already let the controller continue with the
/// present template. The hold starts before the pace and the apply, and is
/// reverted before the pace.
pub(super) fn is_released(ctx: &Ctx<'_>, one: &DesiredOverlay<'_>) -> bool {
    let mut journaled = ctx.observed.journal.overlays.values();
    one.end == End::Rollout(Role::Hold)
        && !changes_template(ctx, &one.object, one.live)
        && journaled.any(|other| {
            let pace = &other.set.0["spec"]["updateStrategy"]["rollingUpdate"];
            other.object == one.object && !pace.is_null()
        })
}

/// Rollout of one `DaemonSet`.
#[derive(Debug, Default)]
pub(super) struct Rollout {
    hold: Option<(usize, Option<StepId>)>,
    pace: Option<(usize, Option<StepId>)>,
}

impl Rollout {
    /// Adds a temporary change, with the step that makes it.
    pub(super) fn add(&mut self, role: Role, overlay: usize, set: Option<StepId>) {
        match role {
            Role::Hold => self.hold = Some((overlay, set)),
            Role::Pace => self.pace = Some((overlay, set)),
        }
    }

    /// Adds the steps after the apply.
    pub(super) fn plan(self, ctx: &Ctx<'_>, draft: &mut Draft, id: &ObjectId) {
        let (Some((stage, rule)), Some(apply)) =
            (ctx.rollout_of(id), draft.done_by.get(id).copied())
        else {
            return;
        };
        for (_, set) in [self.hold, self.pace].into_iter().flatten() {
            if let Some(set) = set {
                let (from, need) = completion(&draft.steps[set.0]);
                draft.edge(from, need, apply, EdgeReason::Overlay);
            }
        }
        if let (Some((_, Some(hold))), Some((_, Some(pace)))) = (self.hold, self.pace) {
            draft.edge(hold, Need::Applied, pace, EdgeReason::Overlay);
        }
        let mut last = apply;
        if let Some((overlay, set)) = self.hold {
            draft.at(apply).until = None;
            let first = replace(ctx, draft, id, stage, rule);
            draft.edge(apply, Need::Applied, first, EdgeReason::SameObject);
            let go_on = lift(ctx, draft, overlay, set, stage.stage.clone());
            draft.edge(first, Need::Ready, go_on, EdgeReason::SameObject);
            last = go_on;
        }
        draft.at(last).until = Some(rolled_out(None, false));
        if let Some((overlay, set)) = self.pace {
            let end = lift(ctx, draft, overlay, set, stage.stage.clone());
            draft.edge(last, Need::Ready, end, EdgeReason::SameObject);
            last = end;
        }
        if last != apply {
            hand_over(draft, apply, last);
            draft.done_by.insert(id.clone(), last);
        }
    }
}

/// Adds the step that replaces the first pods and watches them.
fn replace(
    ctx: &Ctx<'_>,
    draft: &mut Draft,
    id: &ObjectId,
    stage: &StageRule,
    rule: &RolloutRule,
) -> StepId {
    let pods = rule.first.unwrap_or(Count::Pods(1));
    let reason = format!("stage {} replaces {pods} of its pods first", stage.stage);
    let op = Op::Replace { pods };
    let step = draft.step(ctx, stage.stage.clone(), id.clone(), op, &reason);
    draft.at(step).until = Some(rolled_out(Some(pods), rule.abort_on_restart));
    step
}

fn rolled_out(pods: Option<Count>, abort_on_restart: bool) -> Until {
    Until::RolledOut {
        pods,
        abort_on_restart,
        stable_for: STEADY,
    }
}
