//! Finds what a pattern names, in objects and in entries of managedFields.

use serde_json::Value;

use super::{FieldPattern, Step, text_of};
use crate::diff::locate;
use crate::diff::ownership::FieldSet;
use crate::object::{KeyValue, PathSegment};

/// How far a pattern leads into an object.
pub(in crate::ignore) enum Reach<'v> {
    /// It names something.
    Found,
    /// Up to this value, which does not have the next key.
    UpTo(&'v Value, String),
}

impl FieldPattern {
    /// The field with this path of keys.
    pub fn of_keys(keys: &[&str]) -> Self {
        Self {
            steps: keys
                .iter()
                .map(|key| Step::Key((*key).to_owned()))
                .collect(),
        }
    }

    /// The first keys, as far as they are keys.
    pub(in crate::ignore) fn keys(&self) -> Vec<&str> {
        self.steps
            .iter()
            .map_while(|step| match step {
                Step::Key(key) => Some(key.as_str()),
                Step::Where(_) | Step::Every => None,
            })
            .collect()
    }

    /// Whether it leads through nothing but keys.
    pub(in crate::ignore) fn is_keys(&self) -> bool {
        self.keys().len() == self.steps.len()
    }

    /// Whether an object has the field, or how far it leads.
    pub(in crate::ignore) fn reach<'v>(&self, object: &'v Value) -> Reach<'v> {
        fn walk<'v>(value: &'v Value, steps: &[Step]) -> Reach<'v> {
            let Some((first, rest)) = steps.split_first() else {
                return Reach::Found;
            };
            if let Step::Key(key) = first {
                return match value.get(key) {
                    Some(child) => walk(child, rest),
                    None => Reach::UpTo(value, key.clone()),
                };
            }
            let mut last = Reach::UpTo(value, String::new());
            for item in value.as_array().into_iter().flatten() {
                if first.selects(item) {
                    match walk(item, rest) {
                        Reach::Found => return Reach::Found,
                        further @ Reach::UpTo(..) => last = further,
                    }
                }
            }
            last
        }
        walk(object, &self.steps)
    }

    /// Takes the field out of an object, with what is left empty by that.
    /// Says whether it was there.
    pub fn remove(&self, object: &mut Value) -> bool {
        remove(object, &self.steps)
    }

    /// Takes the field out of what is sent for an object that exists, except
    /// where we still own it: there it gets the value that it has.
    pub(in crate::ignore) fn settle(&self, wanted: &mut Value, live: &Value, ours: &FieldSet) {
        settle(wanted, Some(live), ours, &self.steps);
    }

    /// The set without the field and all below it. Items of lists are looked up
    /// in the object: the server may key them by other fields.
    #[must_use]
    pub fn give_up(&self, fields: &FieldSet, object: &Value) -> FieldSet {
        give_up(fields, Some(object), &self.steps)
    }
}

fn remove(value: &mut Value, steps: &[Step]) -> bool {
    let Some((first, rest)) = steps.split_first() else {
        return false;
    };
    match (first, value) {
        (Step::Key(key), Value::Object(map)) => {
            if rest.is_empty() {
                return map.shift_remove(key).is_some();
            }
            let Some(child) = map.get_mut(key) else {
                return false;
            };
            let removed = remove(child, rest);
            if removed && is_empty(child) {
                map.shift_remove(key);
            }
            removed
        }
        (step @ (Step::Where(_) | Step::Every), Value::Array(items)) => {
            let before = items.len();
            if rest.is_empty() {
                items.retain(|item| !step.selects(item));
                return items.len() < before;
            }
            let mut removed = false;
            for item in items.iter_mut().filter(|item| step.selects(item)) {
                removed |= remove(item, rest);
            }
            removed
        }
        _ => false,
    }
}

fn is_empty(value: &Value) -> bool {
    match value {
        Value::Object(map) => map.is_empty(),
        Value::Array(items) => items.is_empty(),
        _ => false,
    }
}

/// Whether the value is to be taken out by whoever holds it.
fn settle(wanted: &mut Value, live: Option<&Value>, ours: &FieldSet, steps: &[Step]) -> bool {
    let Some((first, rest)) = steps.split_first() else {
        return match live {
            Some(live) if !ours.is_empty() => {
                *wanted = live.clone();
                false
            }
            _ => true,
        };
    };
    match (first, wanted) {
        (Step::Key(key), Value::Object(map)) => {
            let Some(child) = map.get_mut(key) else {
                return false;
            };
            let below = below(ours, &PathSegment::Key(key.clone()));
            let live = live.and_then(|live| live.get(key));
            let was_empty = is_empty(child);
            if settle(child, live, &below, rest) || (!was_empty && is_empty(child)) {
                map.shift_remove(key);
            }
        }
        (step @ (Step::Where(_) | Step::Every), Value::Array(items)) => {
            let live = live.and_then(Value::as_array);
            items.retain_mut(|item| {
                if !step.selects(item) {
                    return true;
                }
                let (found, below) = counterpart(item, live, ours);
                !settle(item, found, &below, rest)
            });
        }
        _ => {}
    }
    false
}

/// What we own below a step; all of it below what is ours as a whole.
fn below(ours: &FieldSet, segment: &PathSegment) -> FieldSet {
    if ours.is_whole() {
        return ours.clone();
    }
    ours.child(segment).cloned().unwrap_or_default()
}

/// The live item that the server takes for the same, and what we own of it.
fn counterpart<'v>(
    item: &Value,
    live: Option<&'v Vec<Value>>,
    ours: &FieldSet,
) -> (Option<&'v Value>, FieldSet) {
    for (segment, below) in ours.items() {
        if is_counterpart(item, &segment) {
            let found = live.and_then(|items| {
                let index = locate::position(items, &segment)?;
                items.get(index)
            });
            return (found, below.clone());
        }
    }
    (None, FieldSet::default())
}

fn give_up(fields: &FieldSet, object: Option<&Value>, steps: &[Step]) -> FieldSet {
    let Some((first, rest)) = steps.split_first() else {
        return FieldSet::default();
    };
    match first {
        Step::Key(key) => {
            let segment = PathSegment::Key(key.clone());
            let Some(child) = fields.child(&segment) else {
                return fields.clone();
            };
            let object = object.and_then(|object| object.get(key));
            fields.with(&segment, give_up(child, object, rest))
        }
        Step::Where(_) | Step::Every => {
            let items = object.and_then(Value::as_array);
            let mut left = fields.clone();
            for (segment, child) in fields.items() {
                let item = items.and_then(|items| {
                    let index = locate::position(items, &segment)?;
                    items.get(index)
                });
                let selected = match (&segment, item) {
                    (PathSegment::Key(_), _) => false,
                    (_, Some(item)) => first.selects(item),
                    // It is gone; its keys are all there is.
                    (PathSegment::Select(keys), None) => match first {
                        Step::Where(wanted) => wanted.iter().all(|(key, value)| {
                            keys.iter()
                                .any(|(known, text)| known == key && text_of(text) == *value)
                        }),
                        _ => true,
                    },
                    (_, None) => matches!(first, Step::Every),
                };
                if selected {
                    left = left.with(&segment, give_up(child, item, rest));
                }
            }
            left
        }
    }
}

impl FieldPattern {
    /// Whether the field lies in something that the server keeps one owner for
    /// as a whole, and that is ours: then it cannot be given up alone.
    pub fn is_locked(&self, ours: &FieldSet) -> bool {
        fn walk(set: &FieldSet, steps: &[Step]) -> bool {
            let Some((first, rest)) = steps.split_first() else {
                return false;
            };
            if set.is_whole() {
                return true;
            }
            match first {
                Step::Key(key) => set
                    .child(&PathSegment::Key(key.clone()))
                    .is_some_and(|child| walk(child, rest)),
                Step::Where(_) | Step::Every => set.items().any(|(_, child)| walk(child, rest)),
            }
        }
        walk(ours, &self.steps)
    }

    /// The field as an entry of managedFields would name it: items of lists by
    /// the keys that the entry has for them.
    pub(in crate::ignore) fn named(&self, ours: &FieldSet, manifest: &Value) -> FieldSet {
        fn walk(ours: Option<&FieldSet>, value: &Value, steps: &[Step]) -> FieldSet {
            let nothing = FieldSet::default();
            let Some((first, rest)) = steps.split_first() else {
                return FieldSet::whole();
            };
            match first {
                Step::Key(key) => {
                    let segment = PathSegment::Key(key.clone());
                    let child = ours.and_then(|ours| ours.child(&segment));
                    match value.get(key) {
                        Some(value) => nothing.with(&segment, walk(child, value, rest)),
                        None => nothing,
                    }
                }
                Step::Where(_) | Step::Every => {
                    let mut named = nothing;
                    let items = value.as_array().into_iter().flatten();
                    for item in items.filter(|item| first.selects(item)) {
                        let (segment, child) = ours
                            .into_iter()
                            .flat_map(FieldSet::items)
                            .find(|(segment, _)| is_counterpart(item, segment))
                            .map_or((None, None), |(segment, child)| {
                                (Some(segment), Some(child))
                            });
                        if let Some(segment) = segment {
                            named = named.with(&segment, walk(child, item, rest));
                        }
                    }
                    named
                }
            }
        }
        walk(Some(ours), manifest, &self.steps)
    }
}

/// Whether an item of a manifest is the one that an entry names by its keys. The
/// server fills in keys that the manifest leaves out.
fn is_counterpart(item: &Value, segment: &PathSegment) -> bool {
    matches!(segment, PathSegment::Select(keys) if keys.iter().all(|(key, value)| {
        if let Some(known) = KeyValue::from_json(&item[key]) {
            return known == *value;
        }
        item[key].is_null() && locate::may_go_unsaid(key, &text_of(value))
    }))
}
