//! What a reviewer would have to gather from many objects: what goes where, and
//! who gets which rights.

use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::Value;

use crate::diff::masking::Masker;
use crate::diff::pairing::Moved;
use crate::diff::text::ObjectDiff;
use crate::object::{Manifest, ObjectId};
use crate::observe::Live;
use crate::plan::view::{Drawing, ReleaseDiff};
use crate::plan::{Action, Op, Plan};

/// Objects that go from one namespace to another.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Relocation {
    /// The former namespace.
    pub from: String,
    /// The namespace they come to.
    pub to: String,
    /// How many there are.
    pub objects: usize,
}

/// An object that is copied where it exists.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct CopyAlong {
    /// What is read.
    pub from: ObjectId,
    /// What is made, unless it is there already.
    pub to: ObjectId,
}

/// Who has a role before a change, and after it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct SubjectChange {
    /// The binding.
    pub object: ObjectId,
    /// Under which name it was known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub former: Option<ObjectId>,
    /// The role, by kind and name.
    pub role: String,
    /// Who had it.
    pub before: Vec<String>,
    /// Who will have it.
    pub after: Vec<String>,
}

/// What goes from one namespace to another.
pub(super) fn moves(diff: &ReleaseDiff) -> Vec<Relocation> {
    let mut moves: BTreeMap<(String, String), usize> = BTreeMap::new();
    for object in &diff.objects {
        let Some(former) = object.former.as_ref().filter(|one| one.how == Moved::Move) else {
            continue;
        };
        if let (Some(from), Some(to)) = (&former.object.namespace, &object.object.namespace) {
            *moves.entry((from.clone(), to.clone())).or_default() += 1;
        }
    }
    let moves = moves.into_iter();
    moves
        .map(|((from, to), objects)| Relocation { from, to, objects })
        .collect()
}

/// What is copied along.
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

/// Who gets or loses a role, binding by binding.
pub(super) fn subjects(
    diff: &ReleaseDiff,
    drawing: Drawing<'_>,
    masker: &mut Masker,
) -> Vec<SubjectChange> {
    let bindings = diff.objects.iter().filter(|object| is_binding(object));
    bindings
        .filter_map(|object| {
            let id = &object.object;
            let former = object.former.as_ref().map(|former| &former.object);
            let live = drawing.observed.full.get(former.unwrap_or(id));
            let mut manifests = drawing.desired.manifests.iter();
            let manifest = manifests.find(|manifest| manifest.id() == id);
            let secrecies = [manifest.map(Manifest::secrecy), live.map(Live::secrecy)];
            let secrecy = secrecies.into_iter().flatten().reduce(|a, b| a.and(&b))?;
            let before = live
                .map(|live| masker.former(live.value().clone(), &secrecy))
                .unwrap_or_default();
            let after = manifest
                .filter(|_| object.action != Action::Delete)
                .map(|manifest| masker.object(manifest.value(), &secrecy))
                .unwrap_or_default();
            let change = SubjectChange {
                object: id.clone(),
                former: former.cloned(),
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

/// The subjects of a binding; sorted, as their order means nothing.
fn names(binding: &Value) -> Vec<String> {
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
