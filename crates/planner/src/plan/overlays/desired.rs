//! Temporary changes that the bundle declares, per object.

use jiff::SignedDuration;
use serde_json::{Value, json};

use super::rollout;
use crate::plan::{
    changes::ready,
    draft::{Ctx, Draft},
    handover::pods,
    model::{Desired, Need, StepId, Until},
};
use pleach_formats::sequence::{OverlayRule, ScaleRule, StageRule};
use pleach_model::finding::{Finding, Kind};
use pleach_model::object::{Manifest, NonSecret, ObjectId, Selector};
use pleach_model::order::StageName;
use pleach_state::live::Live;
use pleach_state::overlay::{OnFailure, OverlayId, fields};
use pleach_state::state_objects;

/// End of a temporary change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::plan) enum End {
    /// After a stage.
    Stage(StageName),
    /// After the apply of the object itself.
    Apply,
    /// During the rollout of the object, at the point given by the role.
    Rollout(Role),
}

/// Role of a temporary change in a rollout.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::plan) enum Role {
    /// The controller replaces no pods.
    Hold,
    /// The controller replaces a limited number of pods at a time.
    Pace,
}

/// Start of a temporary change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::plan) enum Begin {
    /// Before all other steps of its first stage.
    Stage,
    /// In a declared stage.
    Declared,
    /// Between these steps.
    Steps {
        after: Vec<(StepId, Need)>,
        before: Vec<StepId>,
    },
}

/// A temporary change of one object.
pub(in crate::plan) struct DesiredOverlay<'a> {
    pub(in crate::plan) id: OverlayId,
    pub(in crate::plan) object: ObjectId,
    pub(in crate::plan) live: &'a Live,
    pub(in crate::plan) patch: NonSecret,
    pub(in crate::plan) from: StageName,
    pub(in crate::plan) begin: Begin,
    pub(in crate::plan) end: End,
    pub(in crate::plan) on_failure: OnFailure,
    pub(in crate::plan) reason: String,
    /// Condition that completes the step which makes the change.
    pub(in crate::plan) ready: Option<Until>,
    pub(in crate::plan) deadline: Option<SignedDuration>,
}

impl DesiredOverlay<'_> {
    /// Returns the last possible stage of the change.
    pub(super) fn until(&self) -> StageName {
        match &self.end {
            End::Stage(stage) => stage.clone(),
            End::Apply => StageName::Ungate,
            End::Rollout(_) => self.from.clone(),
        }
    }

    /// Returns whether the change is made even if the present values match,
    /// because an apply in between may change them.
    pub(super) fn is_always_made(&self) -> bool {
        matches!(self.end, End::Rollout(_))
    }

    /// Returns whether the change stops a workload from having its pods.
    pub(super) fn stops_pods(&self) -> bool {
        stops_pods(&self.object, &self.patch.0)
    }
}

/// Returns whether a patch stops a workload from having its pods.
pub(in crate::plan) fn stops_pods(object: &ObjectId, patch: &Value) -> bool {
    let spec = &patch["spec"];
    object.group == "apps" && (spec["paused"] == true || spec["replicas"].is_u64())
}

/// Returns all temporary changes of existing objects that the bundle declares.
pub(super) fn desired_overlays<'a>(ctx: &Ctx<'a>, draft: &mut Draft) -> Vec<DesiredOverlay<'a>> {
    let mut all = Vec::new();
    for rule in &ctx.sequence.overlays {
        let before = all.len();
        for (object, live) in matching(ctx, &rule.target) {
            if let Some(finding) = refused(ctx, rule, object, live) {
                draft.findings.push(finding);
            } else {
                all.push(overlay(ctx, rule, object, live));
            }
        }
        if all.len() == before
            && !draft
                .findings
                .iter()
                .any(|one| one.place.as_ref() == Some(&rule.origin) && one.is_error())
        {
            let message = format!(
                "overlay {}: no {} matches its target",
                rule.name, rule.target.kind
            );
            let finding = Finding::note(Kind::Repository, "overlay-without-object", message);
            draft.findings.push(finding.at(rule.origin.clone()));
        }
    }
    for stage in &ctx.sequence.stages {
        for scale in &stage.scale {
            for (object, live) in matching(ctx, &scale.target) {
                all.push(scaled(ctx, stage, scale, object, live));
            }
        }
    }
    all.extend(rollout::desired_overlays(ctx, draft));
    all
}

/// Returns the read objects that a selector matches. Without a namespace, the
/// selector applies to the release namespace.
pub(super) fn matching<'a>(ctx: &Ctx<'a>, selector: &Selector) -> Vec<(&'a ObjectId, &'a Live)> {
    let kind = selector.group_kind();
    let anywhere = selector.matcher();
    let within = selector.within(ctx.desired.namespace.as_deref()).matcher();
    let targets = ctx.observed.targets.iter();
    targets
        .filter(|(id, live)| {
            let matcher = if id.namespace.is_some() {
                &within
            } else {
                &anywhere
            };
            Some(id.group_kind()) == kind
                && !live.meta().deleting
                && matcher.is_about(id, live.value())
        })
        .collect()
}

/// Returns the reason why an object cannot be changed temporarily.
fn refused(ctx: &Ctx<'_>, rule: &OverlayRule, object: &ObjectId, live: &Live) -> Option<Finding> {
    let Desired { name, store, .. } = ctx.desired;
    let is_state = state_objects::holds_state(object, live.meta())
        || state_objects::is_named_as_state(object, &name.environment, store);
    if !is_state {
        return secret(ctx, rule, object, live);
    }
    let refusal = state_objects::refusal().at(rule.origin.clone());
    Some(refusal.on(object.clone()))
}

/// Refuses a temporary change of a secret field, because its value would be
/// journaled.
fn secret(ctx: &Ctx<'_>, rule: &OverlayRule, object: &ObjectId, live: &Live) -> Option<Finding> {
    let ours = ctx
        .manifests
        .get(object)
        .map(|manifest| Manifest::secrecy(manifest));
    let secrecy = ours.map_or_else(|| live.secrecy(), |ours| live.secrecy().and(&ours));
    let field = fields(&rule.patch.0)
        .into_iter()
        .find(|field| secrecy.hides(field))?;
    let message = format!("overlay {}: {field} is secret", rule.name);
    Some(
        Finding::error(Kind::Repository, "overlay-of-secret", message)
            .at(rule.origin.clone())
            .on(object.clone())
            .hint("an overlay records the previous value, and a secret must not be recorded"),
    )
}

fn overlay<'a>(
    ctx: &Ctx<'_>,
    rule: &OverlayRule,
    object: &ObjectId,
    live: &'a Live,
) -> DesiredOverlay<'a> {
    let on_failure = if stops_pods(object, &rule.patch.0) {
        stopping(ctx, object)
    } else {
        OnFailure::Keep { max_age: None }
    };
    DesiredOverlay {
        id: OverlayId::new(&rule.name, object, &rule.patch.0),
        object: object.clone(),
        live,
        patch: rule.patch.clone(),
        from: rule.from.clone(),
        begin: Begin::Stage,
        end: End::Stage(rule.until.clone()),
        on_failure,
        reason: format!("overlay {} until {}", rule.name, rule.until),
        ready: None,
        deadline: None,
    }
}

fn scaled<'a>(
    ctx: &Ctx<'_>,
    stage: &StageRule,
    scale: &ScaleRule,
    object: &ObjectId,
    live: &'a Live,
) -> DesiredOverlay<'a> {
    let patch = json!({"spec": {"replicas": scale.replicas}});
    let ready = if scale.replicas == 0 {
        Some(Until::Emptied { pods: pods(live) })
    } else {
        ready(ctx, object, SignedDuration::ZERO)
    };
    let name = stage.stage.as_str();
    DesiredOverlay {
        id: OverlayId::new(name, object, &patch),
        object: object.clone(),
        live,
        patch: NonSecret(patch),
        from: stage.stage.clone(),
        begin: Begin::Declared,
        end: End::Apply,
        on_failure: stopping(ctx, object),
        reason: format!("stage {name} scales it to {}", scale.replicas),
        ready,
        deadline: stage.timeout,
    }
}

/// Returns the failure handling of a stopped workload. It is started again,
/// unless its successor in another namespace is ready.
fn stopping(ctx: &Ctx<'_>, object: &ObjectId) -> OnFailure {
    let successor = ctx
        .named(&object.kind, &object.name)
        .iter()
        .find(|other| other.group == object.group && other.namespace != object.namespace);
    match successor {
        Some(successor) if !ctx.is_desired(object) => OnFailure::UndoUnless {
            ready: (*successor).clone(),
        },
        _ => OnFailure::Undo,
    }
}
