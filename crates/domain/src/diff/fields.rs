//! What differs between two objects, field by field.
//!
//! Items of associative lists are matched by their keys, quantities compared as
//! quantities, and only fields that we own count unless all are asked for.
//! Both sides are compared as they are: see [`super::normalize`] for what is
//! taken out before, and [`super::masking`] for what must be hidden after.

mod align;
mod lists;
mod quantity;

use std::collections::{BTreeMap, BTreeSet};

use serde::{Serialize, Serializer};
use serde_json::{Map, Value};
use similar::{Algorithm, DiffOp, capture_diff_slices};

use super::ownership::FieldSet;
use crate::kinds::Schema;
use crate::object::{FieldPath, PathSegment, canonical_json};
use crate::plan::Cause;

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
    /// The items of a list stay, and only their order changes. Old and new are
    /// the keys of the items then, or the items where they have no keys.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub reordered: bool,
    /// Whose change it is, where that can be told of the single field.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cause: Option<Cause>,
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
/// together with what we are about to own. `schema` is that of the object's
/// kind; without one, well-known names have to do.
pub fn compare(
    old: &Value,
    new: &Value,
    owned: &FieldSet,
    scope: Scope,
    schema: Option<Schema<'_>>,
) -> Comparison {
    let mut walk = Walk {
        scope,
        out: Comparison::default(),
    };
    walk.values(&FieldPath::default(), old, new, Owner::of(owned), schema);
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
            reordered: false,
            cause: None,
        };
        self.push(change, counts);
    }

    /// The items are the same and stand elsewhere: `old` and `new` tell them apart.
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
        match (old, new) {
            (Value::Object(old), Value::Object(new)) => self.maps(path, old, new, owner, schema),
            (Value::Array(old), Value::Array(new)) => self.lists(path, old, new, owner, schema),
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
                    // The order is content too.
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
                // Where somebody doubled a key, ours name no positions: the list
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

    /// Pairs what is equal first, then what stands in the same place between.
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
    // What came goes first, so that the positions of what went are those of the
    // old side; the order of the items comes last, when all of them are there.
    let (orders, fields): (Vec<_>, Vec<_>) = ignored.iter().partition(|change| change.reordered);
    let (went, came): (Vec<_>, Vec<_>) = fields.into_iter().partition(|one| one.old.is_some());
    for change in came.into_iter().chain(went) {
        put(&mut value, old, &change.path.0, change.old.as_ref());
    }
    for change in orders {
        if let Some(order) = &change.old {
            align::reorder(&mut value, &change.path, order);
        }
    }
    value
}

/// The new object with its lists in the order of the old one, for lines that
/// are compared one by one.
pub(super) fn aligned(
    old: &Value,
    new: &Value,
    owned: &FieldSet,
    schema: Option<Schema<'_>>,
) -> Value {
    let mut aligned = new.clone();
    align::align(None, old, &mut aligned, Some(owned), schema);
    aligned
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
