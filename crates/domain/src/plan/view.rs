//! What a plan does to each object, as differences to look at.

use std::collections::BTreeMap;

use serde_json::Value;

use super::model::{Action, Change, Desired, Plan, Policy, StepId};
use crate::diff::masking::{Masker, Secrecy};
use crate::diff::ownership::{self, FieldSet};
use crate::diff::text::{ObjectDiff, Sides, View};
use crate::object::{Manifest, ObjectId};
use crate::observe::{Live, Observed, Prediction};

/// Draws every object that changes, in the order of the plan's steps. `masker`
/// lives as long as the run, so that equal secrets have equal numbers.
pub fn differences(
    plan: &Plan,
    desired: &Desired,
    observed: &Observed,
    policy: &Policy,
    view: View,
    masker: &mut Masker,
) -> Vec<ObjectDiff> {
    let mut changes: Vec<&Change> = plan
        .changes
        .iter()
        .filter(|change| {
            !matches!(
                change.action,
                Action::Unchanged | Action::Blocked | Action::Skip
            )
        })
        .collect();
    let last: BTreeMap<&ObjectId, StepId> = plan
        .steps
        .iter()
        .map(|step| (&step.object, step.id))
        .collect();
    changes.sort_by_key(|change| last.get(&change.object));
    let side = Side {
        manifests: desired
            .manifests
            .iter()
            .map(|manifest| (manifest.id(), manifest))
            .collect(),
        observed,
        policy,
        manager: desired.name.field_manager(),
    };
    changes
        .into_iter()
        .map(|change| side.draw(change, view, masker))
        .collect()
}

struct Side<'a> {
    manifests: BTreeMap<&'a ObjectId, &'a Manifest>,
    observed: &'a Observed,
    policy: &'a Policy,
    manager: String,
}

impl Side<'_> {
    fn draw(&self, change: &Change, view: View, masker: &mut Masker) -> ObjectDiff {
        let id = &change.object;
        let manifest = self.manifests.get(id).copied();
        let secrecy = Secrecy::of(
            &id.group,
            &id.kind,
            manifest.is_some_and(Manifest::is_secret),
        );
        let old = match change.action {
            Action::Create => None,
            _ => self.observed.full.get(id).map(Live::value),
        };
        let new = match change.action {
            Action::Delete => None,
            _ => self.predicted(change, manifest),
        };
        let owned = match (old, &new) {
            (Some(old), Some(new)) => ownership::at_stake(old, new, &self.manager, &|manager| {
                self.policy.adopts(manager)
            }),
            _ => FieldSet::default(),
        };
        let sides = Sides {
            object: id,
            action: change.action,
            old,
            new: new.as_ref(),
            owned: &owned,
            secrecy,
        };
        ObjectDiff::new(sides, view, masker)
    }

    /// What the object will look like: the server's answer where it gave one.
    /// A create is shown from the manifest, the answer has random parts.
    fn predicted(&self, change: &Change, manifest: Option<&Manifest>) -> Option<Value> {
        let answer = match self.observed.predicted.get(&change.object) {
            Some(Prediction::Answer(live)) => Some(live.value()),
            Some(Prediction::Conflict { forced, .. }) => forced.as_ref().map(Live::value),
            _ => None,
        };
        match (change.action, answer) {
            (Action::Update | Action::Recreate, Some(answer)) => Some(answer.clone()),
            (Action::Adopt, Some(answer)) => Some(ownership::after_adoption(
                answer,
                None,
                &self.manager,
                &|manager| self.policy.adopts(manager),
            )),
            _ => manifest.map(Manifest::value),
        }
    }
}
