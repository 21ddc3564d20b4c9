//! Applies patterns to objects and to entries of managedFields.

use serde_json::Value;

use super::{FieldPattern, Step, text_of};
use crate::diff::{locate, ownership::FieldSet};
use pleach_model::object::{KeyValue, PathSegment};

/// Result of following a pattern into an object.
pub(in crate::ignore) enum Reach<'v> {
    /// The field exists.
    Found,
    /// The next key is missing in this value.
    UpTo(&'v Value, String),
}

impl FieldPattern {
    /// Returns the pattern that consists of these keys.
    pub fn of_keys(keys: &[&str]) -> Self {
        Self {
            steps: keys
                .iter()
                .map(|key| Step::Key((*key).to_owned()))
                .collect(),
        }
    }

    /// Returns the leading keys of the pattern.
    pub(in crate::ignore) fn keys(&self) -> Vec<&str> {
        self.steps
            .iter()
            .map_while(|step| match step {
                Step::Key(key) => Some(key.as_str()),
                Step::Where(_) | Step::Every => None,
            })
            .collect()
    }

    /// Returns whether the pattern consists of keys only.
    pub(in crate::ignore) fn is_keys(&self) -> bool {
        self.keys().len() == self.steps.len()
    }

    /// Follows the pattern into an object.
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

    /// Removes the field from an object, including containers that become empty. Returns whether it
    /// existed.
    pub fn remove(&self, object: &mut Value) -> bool {
        remove(object, &self.steps)
    }

    /// Removes the field from the body for an existing object. A field that we still own gets its
    /// live value instead.
    pub(in crate::ignore) fn keep_live(&self, desired: &mut Value, live: &Value, ours: &FieldSet) {
        keep_live(desired, Some(live), ours, &self.steps);
    }

    /// Returns the set without the field and its descendants.
    ///
    /// List items are looked up in `object`, because the server's keys can differ from the
    /// pattern's.
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

/// Returns whether the caller must remove the value from its container.
fn keep_live(desired: &mut Value, live: Option<&Value>, ours: &FieldSet, steps: &[Step]) -> bool {
    let Some((first, rest)) = steps.split_first() else {
        return match live {
            Some(live) if !ours.is_empty() => {
                *desired = live.clone();
                false
            }
            _ => true,
        };
    };
    match (first, desired) {
        (Step::Key(key), Value::Object(map)) => {
            let Some(child) = map.get_mut(key) else {
                return false;
            };
            let below = below(ours, &PathSegment::Key(key.clone()));
            let live = live.and_then(|live| live.get(key));
            let was_empty = is_empty(child);
            if keep_live(child, live, &below, rest) || (!was_empty && is_empty(child)) {
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
                !keep_live(item, found, &below, rest)
            });
        }
        _ => {}
    }
    false
}

/// Returns our fields below a step. An atomic field covers all steps below it.
fn below(ours: &FieldSet, segment: &PathSegment) -> FieldSet {
    if ours.is_whole() {
        return ours.clone();
    }
    ours.child(segment).cloned().unwrap_or_default()
}

/// Returns the live item with the same key, and our fields of it.
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
                    // The item no longer exists, so only its keys can be compared.
                    (PathSegment::Select(keys), None) => match first {
                        Step::Where(desired) => desired.iter().all(|(key, value)| {
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
    /// Returns whether the field is inside an atomic list or map of ours. It cannot be released
    /// separately then.
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

    /// Returns the field as a managedFields entry would name it, with the list keys of `ours`.
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

/// Returns whether a manifest's item matches the keys of an entry. The server fills in defaults for
/// key fields that a manifest omits.
fn is_counterpart(item: &Value, segment: &PathSegment) -> bool {
    matches!(segment, PathSegment::Select(keys) if keys.iter().all(|(key, value)| {
        if let Some(known) = KeyValue::from_json(&item[key]) {
            return known == *value;
        }
        item[key].is_null() && locate::can_be_omitted(key, &text_of(value))
    }))
}
