//! What differs between two objects, field by field.
//!
//! Items of associative lists are matched by their keys, quantities compared as
//! quantities, and only fields that we own count unless all are asked for.
//! Both sides are compared as they are: see [`super::normalize`] for what is
//! taken out before, and [`super::masking`] for what must be hidden after.

mod lists;
mod quantity;

use std::collections::{BTreeMap, BTreeSet};

use serde::{Serialize, Serializer};
use serde_json::{Map, Value};
use similar::{Algorithm, DiffOp, capture_diff_slices};

use super::ownership::FieldSet;
use crate::object::{FieldPath, PathSegment, canonical_json};

use lists::Shape;

/// One field that differs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct FieldChange {
    /// Which field. Positions in lists are those of the new side, or of the old
    /// side for what goes.
    #[serde(serialize_with = "as_text")]
    pub path: FieldPath,
    /// What it was; none when it was not there.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub old: Option<Value>,
    /// What it becomes; none when it goes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub new: Option<Value>,
}

fn as_text<S: Serializer>(path: &FieldPath, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(path)
}

/// Which differences count.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scope {
    /// Those of fields that we own.
    Owned,
    /// All of them (`--all`).
    All,
}

/// The differences between two objects.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Comparison {
    /// Those that count, in the order of the paths.
    pub changes: Vec<FieldChange>,
    /// Those that do not: other managers' fields, the same quantity in other
    /// words, another order of a set.
    pub ignored: Vec<FieldChange>,
}

/// Compares two objects. `owned` are our fields on either side: what we own now
/// together with what we are about to own.
pub fn compare(old: &Value, new: &Value, owned: &FieldSet, scope: Scope) -> Comparison {
    let mut walk = Walk {
        scope,
        out: Comparison::default(),
    };
    walk.values(&FieldPath::default(), old, new, Owner::of(owned));
    walk.out
}

/// What we own at a place.
#[derive(Clone, Copy)]
enum Owner<'a> {
    /// Nothing.
    Nothing,
    /// Everything: the place lies in a field that is ours as a whole.
    Everything,
    /// Some of what is below.
    Some(&'a FieldSet),
}

impl<'a> Owner<'a> {
    fn of(set: &'a FieldSet) -> Self {
        if set.is_whole() {
            Self::Everything
        } else if set.is_empty() {
            Self::Nothing
        } else {
            Self::Some(set)
        }
    }

    fn below(self, segment: &PathSegment) -> Self {
        match self {
            Self::Some(set) => set.child(segment).map_or(Self::Nothing, Self::of),
            other => other,
        }
    }

    fn set(self) -> Option<&'a FieldSet> {
        match self {
            Self::Some(set) => Some(set),
            _ => None,
        }
    }
}

struct Walk {
    scope: Scope,
    out: Comparison,
}

impl Walk {
    fn counts(&self, owner: Owner<'_>) -> bool {
        self.scope == Scope::All || !matches!(owner, Owner::Nothing)
    }

    fn record(&mut self, path: FieldPath, old: Option<&Value>, new: Option<&Value>, counts: bool) {
        let change = FieldChange {
            path,
            old: old.cloned(),
            new: new.cloned(),
        };
        if counts {
            self.out.changes.push(change);
        } else {
            self.out.ignored.push(change);
        }
    }

    fn values(&mut self, path: &FieldPath, old: &Value, new: &Value, owner: Owner<'_>) {
        if old == new {
            return;
        }
        match (old, new) {
            (Value::Object(old), Value::Object(new)) => self.maps(path, old, new, owner),
            (Value::Array(old_items), Value::Array(new_items)) => {
                let field = path.0.last().and_then(|segment| match segment {
                    PathSegment::Key(key) => Some(key.as_str()),
                    _ => None,
                });
                match lists::shape(field, old_items, new_items, owner.set()) {
                    Shape::Keyed(old_steps, new_steps) => {
                        if same_order(&old_steps, &new_steps) {
                            self.items(
                                path,
                                (&old_steps, old_items),
                                (&new_steps, new_items),
                                owner,
                            );
                        } else {
                            // The order is content too; it shows on the list as a whole.
                            self.record(path.clone(), Some(old), Some(new), self.counts(owner));
                        }
                    }
                    Shape::Set(old_steps, new_steps) => {
                        let same = old_steps.iter().collect::<BTreeSet<_>>()
                            == new_steps.iter().collect::<BTreeSet<_>>();
                        if same {
                            self.record(path.clone(), Some(old), Some(new), false);
                        } else {
                            self.items(
                                path,
                                (&old_steps, old_items),
                                (&new_steps, new_items),
                                owner,
                            );
                        }
                    }
                    Shape::Positions if self.counts(owner) => {
                        self.positions(path, old_items, new_items, owner);
                    }
                    Shape::Positions => self.record(path.clone(), Some(old), Some(new), false),
                }
            }
            _ => {
                let same = quantity::is_place(path) && quantity::equal(old, new);
                self.record(
                    path.clone(),
                    Some(old),
                    Some(new),
                    !same && self.counts(owner),
                );
            }
        }
    }

    fn maps(
        &mut self,
        path: &FieldPath,
        old: &Map<String, Value>,
        new: &Map<String, Value>,
        owner: Owner<'_>,
    ) {
        let keys: BTreeSet<&String> = old.keys().chain(new.keys()).collect();
        for key in keys {
            let segment = PathSegment::Key(key.clone());
            self.sides(path, &segment, old.get(key), new.get(key), owner);
        }
    }

    fn items(
        &mut self,
        path: &FieldPath,
        (old_steps, old_items): (&[PathSegment], &[Value]),
        (new_steps, new_items): (&[PathSegment], &[Value]),
        owner: Owner<'_>,
    ) {
        let mut rest: BTreeMap<&PathSegment, &Value> = new_steps.iter().zip(new_items).collect();
        for (step, item) in old_steps.iter().zip(old_items) {
            self.sides(path, step, Some(item), rest.remove(step), owner);
        }
        for (step, item) in new_steps.iter().zip(new_items) {
            if rest.contains_key(step) {
                self.sides(path, step, None, Some(item), owner);
            }
        }
    }

    fn sides(
        &mut self,
        path: &FieldPath,
        step: &PathSegment,
        old: Option<&Value>,
        new: Option<&Value>,
        owner: Owner<'_>,
    ) {
        let path = path.join(step.clone());
        let owner = owner.below(step);
        match (old, new) {
            (Some(old), Some(new)) => self.values(&path, old, new, owner),
            _ => self.record(path, old, new, self.counts(owner)),
        }
    }

    /// Pairs what is equal first, then what stands in the same place between.
    fn positions(&mut self, path: &FieldPath, old: &[Value], new: &[Value], owner: Owner<'_>) {
        let text = |items: &[Value]| items.iter().map(canonical_json).collect::<Vec<_>>();
        for op in capture_diff_slices(Algorithm::Myers, &text(old), &text(new)) {
            if matches!(op, DiffOp::Equal { .. }) {
                continue;
            }
            let (before, after) = (op.old_range(), op.new_range());
            for offset in 0..before.len().max(after.len()) {
                let old_index = before.clone().nth(offset);
                let new_index = after.clone().nth(offset);
                let Some(index) = new_index.or(old_index) else {
                    continue;
                };
                self.sides(
                    path,
                    &PathSegment::Index(index),
                    old_index.map(|index| &old[index]),
                    new_index.map(|index| &new[index]),
                    owner,
                );
            }
        }
    }
}

/// Whether the items that both sides have stand in the same order.
fn same_order(old: &[PathSegment], new: &[PathSegment]) -> bool {
    let in_new: BTreeSet<&PathSegment> = new.iter().collect();
    let in_old: BTreeSet<&PathSegment> = old.iter().collect();
    old.iter()
        .filter(|step| in_new.contains(step))
        .eq(new.iter().filter(|step| in_old.contains(step)))
}

/// The new object with the ignored differences taken back: what is shown of it.
pub(super) fn shown(old: &Value, new: &Value, ignored: &[FieldChange]) -> Value {
    let mut value = new.clone();
    // What came goes first, so that the positions of what went are those of the old side.
    let (went, came): (Vec<_>, Vec<_>) = ignored.iter().partition(|change| change.old.is_some());
    for change in came.into_iter().chain(went) {
        put(&mut value, old, &change.path.0, change.old.as_ref());
    }
    value
}

/// Sets or removes what a path names; `like` tells where an item stood.
fn put(value: &mut Value, like: &Value, path: &[PathSegment], content: Option<&Value>) {
    match path {
        [] => {
            if let Some(content) = content {
                *value = content.clone();
            }
        }
        [last] => match content {
            None => super::locate::remove(value, last),
            Some(content) => match super::locate::step_mut(value, last) {
                Some(place) => *place = content.clone(),
                None => insert(value, like, last, content),
            },
        },
        [first, rest @ ..] => {
            let below = super::locate::step(like, first).unwrap_or(&Value::Null);
            if let Some(child) = super::locate::step_mut(value, first) {
                put(child, below, rest, content);
            }
        }
    }
}

fn insert(value: &mut Value, like: &Value, step: &PathSegment, content: &Value) {
    match (value, step) {
        (Value::Object(map), PathSegment::Key(key)) => {
            map.insert(key.clone(), content.clone());
            map.sort_keys();
        }
        (Value::Array(items), step) => {
            let index = like
                .as_array()
                .and_then(|items| super::locate::position(items, step))
                .map_or(items.len(), |index| index.min(items.len()));
            items.insert(index, content.clone());
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests;
