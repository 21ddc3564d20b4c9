//! Highlights for reviewers that span several objects: moves and role changes.

use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::Value;

use pleach_fields::diff::masking::Masker;
use pleach_model::object::{Manifest, ObjectId};
use pleach_planner::plan::{Action, Op, Plan};
use pleach_planner::renames::Moved;
use pleach_planner::text_diff::ObjectDiff;
use pleach_planner::view::{Drawing, ReleaseDiff};
use pleach_state::live::Live;

/// Objects that move from one namespace to another.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Relocation {
    /// Previous namespace.
    pub from: String,
    /// New namespace.
    pub to: String,
    /// Number of objects.
    pub objects: usize,
}

/// An object that is copied if it exists.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct CopyAlong {
    /// The source.
    pub from: ObjectId,
    /// The copy. Not created if it already exists.
    pub to: ObjectId,
}

/// Subjects of a role before and after a change.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct SubjectChange {
    /// The binding.
    pub object: ObjectId,
    /// Previous binding, if the binding is moved or renamed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub previous: Option<ObjectId>,
    /// Kind and name of the role.
    pub role: String,
    /// Subjects before the change.
    pub before: Vec<String>,
    /// Subjects after the change.
    pub after: Vec<String>,
}

/// Returns the moves between namespaces, with the number of objects.
pub(super) fn moves(diff: &ReleaseDiff) -> Vec<Relocation> {
    let mut moves: BTreeMap<(String, String), usize> = BTreeMap::new();
    for object in &diff.objects {
        let Some(previous) = object
            .previous
            .as_ref()
            .filter(|one| one.how == Moved::Move)
        else {
            continue;
        };
        if let (Some(from), Some(to)) = (&previous.object.namespace, &object.object.namespace) {
            *moves.entry((from.clone(), to.clone())).or_default() += 1;
        }
    }
    let moves = moves.into_iter();
    moves
        .map(|((from, to), objects)| Relocation { from, to, objects })
        .collect()
}

/// Returns the copies in the plan.
pub(super) fn copies(plan: &Plan) -> Vec<CopyAlong> {
    let steps = plan.steps.iter();
    steps
        .filter_map(|step| {
            let Op::Copy { from, to } = &step.op else {
                return None;
            };
            let (from, to) = (from.clone(), to.clone());
            Some(CopyAlong { from, to })
        })
        .collect()
}

/// Returns the bindings whose subjects change.
pub(super) fn subjects(
    diff: &ReleaseDiff,
    drawing: Drawing<'_>,
    masker: &mut Masker,
) -> Vec<SubjectChange> {
    let bindings = diff.objects.iter().filter(|object| is_binding(object));
    bindings
        .filter_map(|object| {
            let id = &object.object;
            let previous = object.previous.as_ref().map(|previous| &previous.object);
            let live = drawing.observed.full.get(previous.unwrap_or(id));
            let mut manifests = drawing.desired.manifests.iter();
            let manifest = manifests.find(|manifest| manifest.id() == id);
            let secrecies = [manifest.map(Manifest::secrecy), live.map(Live::secrecy)];
            let secrecy = secrecies.into_iter().flatten().reduce(|a, b| a.and(&b))?;
            let before = live
                .map(|live| masker.previous(live.value().clone(), &secrecy))
                .unwrap_or_default();
            let after = manifest
                .filter(|_| object.action != Action::Delete)
                .map(|manifest| masker.desired(manifest.value(), &secrecy))
                .unwrap_or_default();
            let change = SubjectChange {
                object: id.clone(),
                previous: previous.cloned(),
                role: role(if after.is_null() { &before } else { &after }),
                before: names(&before),
                after: names(&after),
            };
            (change.before != change.after).then_some(change)
        })
        .collect()
}

fn is_binding(object: &ObjectDiff) -> bool {
    let kind = object.object.group_kind();
    let happens = !matches!(object.action, Action::Blocked | Action::Skip);
    happens
        && (kind.is("rbac.authorization.k8s.io", "ClusterRoleBinding")
            || kind.is("rbac.authorization.k8s.io", "RoleBinding"))
}

fn role(binding: &Value) -> String {
    let text = |key: &str| binding["roleRef"][key].as_str().unwrap_or_default();
    format!("{} {}", text("kind"), text("name"))
}

/// Returns the subjects of a binding. They are sorted, because their order is not significant. A
/// list that is declared secret is one masked value.
fn names(binding: &Value) -> Vec<String> {
    if let Some(masked) = binding["subjects"].as_str() {
        return vec![masked.to_owned()];
    }
    let subjects = binding["subjects"].as_array();
    let mut names: Vec<String> = subjects
        .into_iter()
        .flatten()
        .map(|subject| {
            let text = |key: &str| subject[key].as_str().unwrap_or_default();
            match text("namespace") {
                "" => format!("{} {}", text("kind"), text("name")),
                namespace => format!("{} {namespace}/{}", text("kind"), text("name")),
            }
        })
        .collect();
    names.sort();
    names
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn subjects_that_are_declared_secret_are_one_value() {
        let binding = |subjects: Value| names(&json!({"subjects": subjects}));
        assert_eq!(binding(json!("<secret 1>")), ["<secret 1>"]);
        let subject = json!({"kind": "User", "name": "a"});
        assert_eq!(binding(json!([subject])), ["User a"]);
    }
}
