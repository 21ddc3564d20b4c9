//! Compares two objects field by field.
//!
//! Items of associative lists are matched by their keys. Quantities are compared by value. Only
//! fields that we own count, unless all are requested. Callers normalize both sides first, see
//! [`super::normalize`], and mask the result, see [`super::masking`].

mod align;
mod lists;
mod quantity;

use std::collections::{BTreeMap, BTreeSet};

use serde::{Serialize, Serializer};
use serde_json::{Map, Value};
use similar::{Algorithm, DiffOp, capture_diff_slices};

use super::ownership::FieldSet;
use crate::diff::Cause;
use pleach_model::kinds::Schema;
use pleach_model::object::{FieldPath, PathSegment, Secrecy, canonical_json};

use lists::Shape;

pub use quantity::billionths;

/// A field that differs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct FieldChange {
    /// Path of the field. List indexes refer to the new side, or to the old side for a removed
    /// item.
    #[serde(serialize_with = "as_text")]
    pub path: FieldPath,
    /// Old value. `None` if the field did not exist.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub old: Option<Value>,
    /// New value. `None` if the field is removed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub new: Option<Value>,
    /// Whether only the order of a list's items changes. `old` and `new` are then the keys of the
    /// items, or the items themselves if they have no keys.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub reordered: bool,
    /// Origin of the change, if it can be determined for this field.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cause: Option<Cause>,
}

fn as_text<S: Serializer>(path: &FieldPath, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(path)
}

/// Differences that count.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scope {
    /// Differences in fields that we own.
    Owned,
    /// All differences (`--all`).
    All,
}

/// Differences between two objects.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Comparison {
    /// Differences that count, in the order of their paths.
    pub changes: Vec<FieldChange>,
    /// Other differences: fields of other managers, a different notation of the same quantity, or a
    /// different order of a set.
    pub ignored: Vec<FieldChange>,
}

/// Compares two objects.
///
/// `owned` is the union of the fields that we own now and the ones that we are about to own.
/// Without a `schema` of the kind, well-known field names determine types. A field that is declared
/// secret is one change, regardless of how many of its parts differ.
pub fn compare(
    old: &Value,
    new: &Value,
    owned: &FieldSet,
    scope: Scope,
    schema: Option<Schema<'_>>,
    secrecy: &Secrecy,
) -> Comparison {
    let mut walk = Walk {
        scope,
        secrecy,
        out: Comparison::default(),
    };
    walk.values(&FieldPath::default(), old, new, Owner::of(owned), schema);
    walk.out
}

/// Our ownership at a path.
#[derive(Clone, Copy)]
enum Owner<'a> {
    /// No field at or below the path.
    Nothing,
    /// All fields, because a field at or above the path is ours as a whole.
    Everything,
    /// Some fields below the path.
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

struct Walk<'s> {
    scope: Scope,
    secrecy: &'s Secrecy,
    out: Comparison,
}

impl Walk<'_> {
    fn counts(&self, owner: Owner<'_>) -> bool {
        self.scope == Scope::All || !matches!(owner, Owner::Nothing)
    }

    fn record(&mut self, path: FieldPath, old: Option<&Value>, new: Option<&Value>, counts: bool) {
        let change = FieldChange {
            path,
            old: old.cloned(),
            new: new.cloned(),
            reordered: false,
            cause: None,
        };
        self.push(change, counts);
    }

    /// Records a change of order. `old` and `new` identify the items.
    fn reorder(&mut self, path: &FieldPath, old: Value, new: Value, counts: bool) {
        let change = FieldChange {
            path: path.clone(),
            old: Some(old),
            new: Some(new),
            reordered: true,
            cause: None,
        };
        self.push(change, counts);
    }

    fn push(&mut self, change: FieldChange, counts: bool) {
        if counts {
            self.out.changes.push(change);
        } else {
            self.out.ignored.push(change);
        }
    }

    fn values(
        &mut self,
        path: &FieldPath,
        old: &Value,
        new: &Value,
        owner: Owner<'_>,
        schema: Option<Schema<'_>>,
    ) {
        if old == new {
            return;
        }
        let has_parts = !self.secrecy.is_one_value(path);
        match (old, new) {
            (Value::Object(old), Value::Object(new)) if has_parts => {
                self.maps(path, old, new, owner, schema);
            }
            (Value::Array(old), Value::Array(new)) if has_parts => {
                self.lists(path, old, new, owner, schema);
            }
            _ => {
                let same = match schema {
                    Some(schema) => quantity::equal_by(schema, old, new),
                    None => quantity::is_place(path) && quantity::equal(old, new),
                };
                self.record(
                    path.clone(),
                    Some(old),
                    Some(new),
                    !same && self.counts(owner),
                );
            }
        }
    }

    fn lists(
        &mut self,
        path: &FieldPath,
        old: &[Value],
        new: &[Value],
        owner: Owner<'_>,
        schema: Option<Schema<'_>>,
    ) {
        let item = schema.and_then(Schema::items);
        match lists::shape(lists::field_of(path), old, new, owner.set(), schema) {
            Shape::Keyed(old_steps, new_steps) => {
                self.items(path, (&old_steps, old), (&new_steps, new), owner, item);
                if !same_order(&old_steps, &new_steps) {
                    // The order of keyed items is significant.
                    let counts = self.counts(owner);
                    let (old, new) = (lists::keys(&old_steps), lists::keys(&new_steps));
                    self.reorder(path, old, new, counts);
                }
            }
            Shape::Set(old_steps, new_steps) => {
                let same = old_steps.iter().collect::<BTreeSet<_>>()
                    == new_steps.iter().collect::<BTreeSet<_>>();
                if same {
                    self.reorder(path, old.into(), new.into(), false);
                } else {
                    self.items(path, (&old_steps, old), (&new_steps, new), owner, item);
                }
            }
            Shape::Positions if lists::is_permuted(old, new) => {
                self.reorder(path, old.into(), new.into(), self.counts(owner));
            }
            Shape::Positions if self.counts(owner) => {
                // If another writer duplicated a key, our keys do not name positions. The list then
                // counts as a whole.
                let by_key = owner.set().is_some_and(|set| set.list_keys().is_some());
                let owner = if by_key { Owner::Everything } else { owner };
                self.positions(path, old, new, owner, item);
            }
            Shape::Positions => {
                let (old, new) = (Value::from(old), Value::from(new));
                self.record(path.clone(), Some(&old), Some(&new), false);
            }
        }
    }

    fn maps(
        &mut self,
        path: &FieldPath,
        old: &Map<String, Value>,
        new: &Map<String, Value>,
        owner: Owner<'_>,
        schema: Option<Schema<'_>>,
    ) {
        let keys: BTreeSet<&String> = old.keys().chain(new.keys()).collect();
        for key in keys {
            let segment = PathSegment::Key(key.clone());
            let below = schema.and_then(|schema| schema.field(key).or_else(|| schema.values()));
            self.sides(path, &segment, old.get(key), new.get(key), owner, below);
        }
    }

    fn items(
        &mut self,
        path: &FieldPath,
        (old_steps, old_items): (&[PathSegment], &[Value]),
        (new_steps, new_items): (&[PathSegment], &[Value]),
        owner: Owner<'_>,
        schema: Option<Schema<'_>>,
    ) {
        let mut rest: BTreeMap<&PathSegment, &Value> = new_steps.iter().zip(new_items).collect();
        for (step, item) in old_steps.iter().zip(old_items) {
            self.sides(path, step, Some(item), rest.remove(step), owner, schema);
        }
        for (step, item) in new_steps.iter().zip(new_items) {
            if rest.contains_key(step) {
                self.sides(path, step, None, Some(item), owner, schema);
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
        schema: Option<Schema<'_>>,
    ) {
        let path = path.join(step.clone());
        let owner = owner.below(step);
        match (old, new) {
            (Some(old), Some(new)) => self.values(&path, old, new, owner, schema),
            _ => self.record(path, old, new, self.counts(owner)),
        }
    }

    /// Pairs equal items first, then the items between them by position.
    fn positions(
        &mut self,
        path: &FieldPath,
        old: &[Value],
        new: &[Value],
        owner: Owner<'_>,
        schema: Option<Schema<'_>>,
    ) {
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
                    schema,
                );
            }
        }
    }
}

/// Returns whether the common items have the same order on both sides.
fn same_order(old: &[PathSegment], new: &[PathSegment]) -> bool {
    let in_new: BTreeSet<&PathSegment> = new.iter().collect();
    let in_old: BTreeSet<&PathSegment> = old.iter().collect();
    old.iter()
        .filter(|step| in_new.contains(step))
        .eq(new.iter().filter(|step| in_old.contains(step)))
}

/// Returns the new object with the ignored differences reverted.
pub fn shown(old: &Value, new: &Value, ignored: &[FieldChange]) -> Value {
    let mut value = new.clone();
    // Revert additions first, so that the indexes of removed items match the old side. Restore the
    // order of items last, when all of them exist.
    let (reorderings, fields): (Vec<_>, Vec<_>) =
        ignored.iter().partition(|change| change.reordered);
    let (removed, came): (Vec<_>, Vec<_>) = fields.into_iter().partition(|one| one.old.is_some());
    for change in came.into_iter().chain(removed) {
        put(&mut value, old, &change.path.0, change.old.as_ref());
    }
    for change in reorderings {
        if let Some(order) = &change.old {
            align::reorder(&mut value, &change.path, order);
        }
    }
    value
}

/// Returns the new object with its lists in the order of the old one, for a line diff. Lists that
/// are declared secret retain their order.
pub fn aligned(
    old: &Value,
    new: &Value,
    owned: &FieldSet,
    schema: Option<Schema<'_>>,
    secrecy: &Secrecy,
) -> Value {
    let mut aligned = new.clone();
    let hidden = secrecy.root();
    align::align(None, old, &mut aligned, Some(owned), schema, &hidden);
    aligned
}

/// Sets or removes the value at a path. `like` provides the position of an inserted item.
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
