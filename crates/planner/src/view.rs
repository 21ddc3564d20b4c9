//! Differences per object, for display and machine output.

use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::Value;

use crate::observe::{Observed, Prediction};
use crate::plan::{
    Action, Change, Course, Desired, Overlay, Plan, Policy, StepId, secrecy_of_kinds,
    takes_ownership,
};
use crate::renames::{self, Moved, PreviousObject};
use crate::text_diff::{self, Note, ObjectDiff, Sides, View};
use pleach_fields::diff::{
    Cause,
    masking::Masker,
    ownership::{self, FieldSet},
};
use pleach_model::finding::Finding;
use pleach_model::kinds::{Catalog, Schema};
use pleach_model::object::{FieldPath, GroupKind, Gvk, Manifest, ObjectId, Secrecy};
use pleach_state::live::Live;
use pleach_state::overlay::OverlayContent;

/// Changes of a plan to a release. This is the machine-readable form, and all
/// other output is derived from it.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ReleaseDiff {
    /// `<environment>.<release>`.
    pub release: String,
    /// Installed version; `None` for a new release.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub from: Option<String>,
    /// Desired version.
    pub to: String,
    /// Number of objects per action, as text.
    pub summary: String,
    /// Number of objects per action.
    pub counts: BTreeMap<Action, usize>,
    /// Changed objects in the order of the steps, then blocked ones, then
    /// skipped ones.
    pub objects: Vec<ObjectDiff>,
    /// Temporary changes during the plan.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub overlays: Vec<Temporary>,
    /// Findings of the plan.
    pub findings: Vec<Finding>,
}

/// A temporary change.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Temporary {
    /// Name of the overlay, or of the declared stage.
    pub overlay: String,
    /// The object.
    pub object: ObjectId,
    /// Effect of the plan on the temporary change.
    pub course: Course,
    /// Stage at whose end the change is reverted.
    pub until: String,
    /// The change and the values it replaces.
    #[serde(flatten)]
    pub content: OverlayContent,
    /// Fate of the change if the plan fails.
    pub on_failure: String,
}

impl Temporary {
    fn of(overlay: &Overlay) -> Self {
        Self {
            overlay: overlay.id.name().to_owned(),
            object: overlay.object.clone(),
            course: overlay.course,
            until: overlay.until.to_string(),
            content: overlay.content.clone(),
            on_failure: overlay.on_failure.explain(),
        }
    }
}

/// Input for differences, in addition to the plan.
#[derive(Clone, Copy)]
pub struct Drawing<'a> {
    /// Desired state.
    pub desired: &'a Desired,
    /// Observed state.
    pub observed: &'a Observed,
    /// Policy of the plan.
    pub policy: &'a Policy,
    /// Schemas of kinds.
    pub kinds: Catalog<'a>,
    /// Display options.
    pub view: View,
}

impl<'a> Drawing<'a> {
    /// Returns the changes of a plan to its release. Use one `masker` per run,
    /// so that equal secrets get equal numbers.
    pub fn release(self, plan: &Plan, masker: &mut Masker) -> ReleaseDiff {
        let mut counts = BTreeMap::new();
        for change in &plan.changes {
            *counts.entry(change.action).or_default() += 1;
        }
        ReleaseDiff {
            release: plan.release.to_string(),
            from: plan.from.clone(),
            to: plan.to.clone(),
            summary: text_diff::summary(plan.changes.iter().map(|change| change.action)),
            counts,
            objects: self.objects(plan, masker),
            overlays: plan.overlays.iter().map(Temporary::of).collect(),
            findings: plan.findings.clone(),
        }
    }

    /// Returns the objects that exist before and after the plan and change, in the order of the
    /// plan.
    pub fn updates(self, plan: &Plan, masker: &mut Masker) -> Vec<ObjectDiff> {
        let side = self.side();
        let stays = |change: &&Change| {
            matches!(
                change.action,
                Action::Update | Action::Adopt | Action::Recreate
            )
        };
        let changes = plan.changes.iter().filter(stays);
        changes
            .map(|change| side.draw(change, None, masker))
            .collect()
    }

    fn side(self) -> Side<'a> {
        Side {
            manifests: self
                .desired
                .manifests
                .iter()
                .map(|manifest| (manifest.id(), manifest))
                .collect(),
            secrecy_of_kinds: secrecy_of_kinds(&self.desired.manifests),
            drawing: self,
            manager: self.desired.name.field_manager(),
        }
    }

    /// Returns all objects except unchanged ones. An object that only changed
    /// its name or namespace is one entry, under the new name.
    fn objects(self, plan: &Plan, masker: &mut Masker) -> Vec<ObjectDiff> {
        let side = self.side();
        let previous = side.previous(plan, masker);
        let mut changes: Vec<&Change> = plan
            .changes
            .iter()
            .filter(|change| change.action != Action::Unchanged)
            .filter(|change| {
                let is_previous = |one: &PreviousObject| one.object == change.object;
                change.action != Action::Delete || !previous.values().any(is_previous)
            })
            .collect();
        // An object has its final state after its last step, which decides its
        // position.
        let last: BTreeMap<&ObjectId, StepId> = plan
            .steps
            .iter()
            .map(|step| (&step.object, step.id))
            .collect();
        changes.sort_by_cached_key(|change| match change.action {
            Action::Blocked => (1, None),
            Action::Skip => (2, None),
            _ => (0, last.get(&change.object)),
        });
        changes
            .into_iter()
            .map(|change| side.draw(change, previous.get(&change.object), masker))
            .collect()
    }
}

/// Returns the objects of a plan with this action.
fn of_action(plan: &Plan, action: Action) -> Vec<&ObjectId> {
    let changes = plan.changes.iter();
    changes
        .filter(|change| change.action == action)
        .map(|change| &change.object)
        .collect()
}

struct Side<'a> {
    manifests: BTreeMap<&'a ObjectId, &'a Manifest>,
    /// Fields that are secret in any desired object of a kind.
    secrecy_of_kinds: BTreeMap<GroupKind, Secrecy>,
    drawing: Drawing<'a>,
    manager: String,
}

impl<'a> Side<'a> {
    /// Returns the previous names of renamed objects, by their new name.
    fn previous<'p>(&self, plan: &'p Plan, masker: &Masker) -> BTreeMap<ObjectId, PreviousObject> {
        let observed = self.drawing.observed;
        let gone = of_action(plan, Action::Delete);
        let come = match gone.as_slice() {
            [] => Vec::new(),
            _ => of_action(plan, Action::Create),
        };
        let contents = self.contents(&gone, &come, masker);
        let side = |id: &'p ObjectId| renames::Side {
            id,
            value: contents.get(id),
        };
        let gone: Vec<renames::Side<'_>> = gone.into_iter().map(side).collect();
        let come = come.into_iter();
        let come = come.filter(|id| self.manifests.contains_key(*id));
        let come: Vec<renames::Side<'_>> = come.map(side).collect();
        let mut previous = renames::pair(&gone, &come);
        // An object that moved to another API group keeps its UID.
        let mut left = observed.inventory.entries.iter();
        if left.all(|(id, _)| self.manifests.contains_key(id)) {
            return previous;
        }
        let mut named: BTreeMap<(&str, &str), Vec<&ObjectId>> = BTreeMap::new();
        for &id in self.manifests.keys() {
            named.entry((&id.kind, &id.name)).or_default().push(id);
        }
        for (old, entry) in &observed.inventory.entries {
            if self.manifests.contains_key(old) {
                continue;
            }
            let mut alike = named.get(&(&*old.kind, &*old.name)).into_iter().flatten();
            let renamed = alike.find(|id| {
                id.group != old.group
                    && entry.uid.is_some()
                    && observed.live_meta(id).map(|live| &live.uid) == entry.uid.as_ref()
            });
            if let Some(id) = renamed {
                let one = PreviousObject {
                    object: old.clone(),
                    how: Moved::Rename,
                };
                previous.insert(ObjectId::clone(id), one);
            }
        }
        previous
    }

    /// Returns the content of deleted and created objects without secret values, as far as it is
    /// known. A field that is secret in one object of a kind is masked in all of them, so that both
    /// sides of a pair are masked alike.
    fn contents<'p>(
        &self,
        gone: &[&'p ObjectId],
        come: &[&'p ObjectId],
        masker: &Masker,
    ) -> BTreeMap<&'p ObjectId, Value> {
        let full = &self.drawing.observed.full;
        let gone: Vec<(&'p ObjectId, &Live)> = gone
            .iter()
            .filter_map(|&id| Some((id, full.get(id)?)))
            .collect();
        let mut kinds = self.secrecy_of_kinds.clone();
        for (id, live) in &gone {
            let known = kinds.entry(id.group_kind()).or_default();
            *known = std::mem::take(known).and(&live.secrecy());
        }
        let blank = |id: &'p ObjectId, value: Value| {
            let secrecy = kinds.get(&id.group_kind()).cloned();
            (id, masker.blank(value, &secrecy.unwrap_or_default()))
        };
        let come = come.iter().filter_map(|&id| {
            let manifest = self.manifests.get(id)?;
            Some(blank(id, manifest.value()))
        });
        let gone = gone.into_iter();
        gone.map(|(id, live)| blank(id, live.value().clone()))
            .chain(come)
            .collect()
    }

    fn draw(
        &self,
        change: &Change,
        previous: Option<&PreviousObject>,
        masker: &mut Masker,
    ) -> ObjectDiff {
        let id = &change.object;
        let observed = self.drawing.observed;
        let manifest = self.manifests.get(id).copied();
        let live = match previous.filter(|_| change.action == Action::Create) {
            Some(previous) => observed.full.get(&previous.object),
            None => observed.full.get(id),
        };
        let secrecy = [manifest.map(Manifest::secrecy), live.map(Live::secrecy)]
            .into_iter()
            .flatten()
            .fold(self.of_its_kind(id, manifest), |all, one| all.and(&one));
        let shown = !matches!(change.action, Action::Blocked | Action::Skip);
        let old = match change.action {
            Action::Create if previous.is_none() => None,
            _ => live.map(Live::value).filter(|_| shown),
        };
        let new = match change.action {
            Action::Delete | Action::Blocked | Action::Skip => None,
            _ => self.predicted(change, manifest),
        };
        let schema = self.schema(manifest, live);
        let owned = match (old, &new) {
            (Some(old), Some(new)) if change.action == Action::Create => {
                ownership::applied_by(&old["metadata"], &self.manager)
                    .covering(&ownership::everything_in(new, schema))
            }
            (Some(old), Some(new)) => {
                let adopted = |manager: &str| match change.action {
                    Action::Adopt => self.takes_ownership(manager),
                    _ => self.drawing.policy.adopts(manager),
                };
                // The dry run of an adoption ran under another field manager.
                // Only the answer to our own apply shows which fields become
                // ours.
                let owner = match (change.action, self.answer(change)) {
                    (Action::Adopt, Some(answer)) => answer,
                    _ => new,
                };
                let owned = ownership::at_stake(old, owner, &self.manager, &adopted);
                if self.answer(change).is_some() || change.action == Action::Recreate {
                    owned
                } else {
                    // Without an answer of the server, assume that we own all
                    // fields that we send and all corrected fields.
                    let sent = manifest.map_or_else(|| new.clone(), Manifest::value);
                    let sent = owned.covering(&ownership::everything_in(&sent, schema));
                    change
                        .corrects
                        .iter()
                        .fold(sent, |owned, one| owned.covering(&FieldSet::of(&one.field)))
                }
            }
            _ => FieldSet::default(),
        };
        let sides = Sides {
            object: id,
            action: change.action,
            old,
            new: new.as_ref(),
            owned: &owned,
            secrecy: &secrecy,
            schema,
            previous,
            note: &Note {
                reason: change.reason.clone(),
                cause: change.cause.clone(),
                unverified: change.unverified.clone(),
            },
        };
        let mut diff = ObjectDiff::new(sides, self.drawing.view, masker);
        if let (Some(old), Action::Update) = (old, change.action) {
            for field in &mut diff.fields {
                field.cause = self.cause_of(&field.path, old, change.cause.as_ref());
            }
        }
        diff
    }

    /// Returns the secret fields of an object. Without a manifest, as in a
    /// deletion, the secret fields of other objects of its kind are added.
    fn of_its_kind(&self, id: &ObjectId, manifest: Option<&Manifest>) -> Secrecy {
        let own = Secrecy::of(id, &[]);
        if manifest.is_some() {
            return own;
        }
        match self.secrecy_of_kinds.get(&id.group_kind()) {
            Some(others) => own.and(others),
            None => own,
        }
    }

    fn schema(&self, manifest: Option<&Manifest>, live: Option<&Live>) -> Option<Schema<'a>> {
        let gvk = match (manifest, live) {
            (Some(manifest), _) => manifest.gvk(),
            (None, Some(live)) => {
                let text = |key: &str| live.value()[key].as_str().unwrap_or_default();
                Gvk::new(text("apiVersion"), text("kind"))
            }
            (None, None) => return None,
        };
        self.drawing.kinds.schema(&gvk)
    }

    /// Returns the origin of a field change. Another manager wrote the fields
    /// it owns; only git can change the fields that we still own.
    fn cause_of(&self, path: &FieldPath, old: &Value, cause: Option<&Cause>) -> Option<Cause> {
        let metadata = &old["metadata"];
        match cause? {
            Cause::Git => Some(Cause::Git),
            Cause::Ownership | Cause::Overlay => None,
            Cause::Drift { .. } | Cause::Both { .. } => {
                let mut managers = ownership::owners(metadata, path);
                let is_ours = managers.contains(&self.manager);
                managers.retain(|manager| *manager != self.manager);
                // A field that was removed has no owner on record.
                let is_drift = matches!(cause?, Cause::Drift { .. }) && !is_ours;
                if !managers.is_empty() || is_drift {
                    return Some(Cause::Drift { managers });
                }
                is_ours.then_some(Cause::Git)
            }
        }
    }

    /// Returns whether an adoption makes the fields of a manager ours.
    fn takes_ownership(&self, manager: &str) -> bool {
        takes_ownership(self.drawing.desired, self.drawing.policy, manager)
    }

    /// Returns the predicted object from the dry run of the apply.
    fn answer(&self, change: &Change) -> Option<&'a Value> {
        match self.drawing.observed.predicted.get(&change.object)? {
            Prediction::Answer(live) => Some(live.value()),
            Prediction::Conflict { forced, .. } => forced.as_ref().map(Live::value),
            _ => None,
        }
    }

    /// Returns the predicted object: the answer of the server if there is one.
    /// A creation uses the manifest, because the answer contains random parts.
    fn predicted(&self, change: &Change, manifest: Option<&Manifest>) -> Option<Value> {
        let adoption = self.drawing.observed.adopted.get(&change.object);
        if let (Action::Adopt, Some(left)) = (change.action, adoption) {
            return Some(left.value().clone());
        }
        match (change.action, self.answer(change)) {
            (Action::Update | Action::Recreate, Some(answer)) => Some(answer.clone()),
            (Action::Adopt, Some(answer)) => {
                let adopted = |manager: &str| self.takes_ownership(manager);
                let ignored = self.drawing.desired.ignored.of(&change.object);
                let left = ownership::after_adoption(answer, &self.manager, &adopted, ignored);
                Some(left)
            }
            (Action::Recreate, None) => {
                let old = self
                    .drawing
                    .observed
                    .full
                    .get(&change.object)
                    .map(Live::value);
                Some(ownership::recreated(old?, &manifest?.value()))
            }
            _ => manifest.map(Manifest::value),
        }
    }
}
