//! Aligns the order of list items with the other side.

use serde_json::Value;

use super::lists::{self, Shape};
use crate::diff::{locate, ownership::FieldSet};
use pleach_model::kinds::Schema;
use pleach_model::object::{FieldPath, Hidden, PathSegment};

/// Reorders the lists of `new` to match `old`.
///
/// An item that only the new side has stays behind its predecessor. Lists without identifiable
/// items remain unchanged, and fields that are declared secret: a different order is a difference.
pub(super) fn align(
    field: Option<&str>,
    old: &Value,
    new: &mut Value,
    owned: Option<&FieldSet>,
    schema: Option<Schema<'_>>,
    hidden: &Hidden<'_>,
) {
    if hidden.whole {
        return;
    }
    match (old, new) {
        (Value::Object(old), Value::Object(new)) => {
            for (key, new) in new {
                let Some(old) = old.get(key) else { continue };
                let owned = owned.and_then(|set| set.child(&PathSegment::Key(key.clone())));
                let schema = schema.and_then(|one| one.field(key).or_else(|| one.values()));
                align(Some(key), old, new, owned, schema, &hidden.key(key));
            }
        }
        (Value::Array(old), Value::Array(new)) if old != new => {
            let item = schema.and_then(Schema::items);
            match lists::shape(field, old, new, owned, schema) {
                Shape::Keyed(old_steps, new_steps) | Shape::Set(old_steps, new_steps) => {
                    let order = order(&old_steps, &new_steps);
                    let mut items: Vec<Option<Value>> =
                        std::mem::take(new).into_iter().map(Some).collect();
                    for position in order {
                        let step = &new_steps[position];
                        let Some(mut one) = items[position].take() else {
                            continue;
                        };
                        let before = old_steps.iter().position(|old| old == step);
                        if let Some(before) = before.and_then(|at| old.get(at)) {
                            let owned = owned.and_then(|set| set.child(step));
                            let hidden = hidden.item(&one);
                            align(None, before, &mut one, owned, item, &hidden);
                        }
                        new.push(one);
                    }
                }
                Shape::Positions if lists::is_permuted(old, new) => new.clone_from(old),
                Shape::Positions if old.len() == new.len() => {
                    for (old, new) in old.iter().zip(new) {
                        let hidden = hidden.item(new);
                        align(None, old, new, None, item, &hidden);
                    }
                }
                Shape::Positions => {}
            }
        }
        _ => {}
    }
}

/// Returns the indexes of the new items in the order of the old side.
fn order(old: &[PathSegment], new: &[PathSegment]) -> Vec<usize> {
    let mut order: Vec<usize> = old
        .iter()
        .filter_map(|step| new.iter().position(|one| one == step))
        .collect();
    for position in 0..new.len() {
        if !order.contains(&position) {
            // All preceding indexes are already in `order`.
            let after = position
                .checked_sub(1)
                .and_then(|before| order.iter().position(|one| *one == before))
                .map_or(0, |at| at + 1);
            order.insert(after, position);
        }
    }
    order
}

/// Sorts the items of a list by `order`, which names them by key or as a whole. Other items follow
/// at the end.
pub(super) fn reorder(object: &mut Value, path: &FieldPath, order: &Value) {
    let list = path
        .0
        .iter()
        .try_fold(object, |value, step| locate::step_mut(value, step));
    let (Some(Value::Array(items)), Some(order)) = (list, order.as_array()) else {
        return;
    };
    let rank = |item: &Value| {
        let named = order.iter().position(|name| is_named(item, name));
        named.unwrap_or(order.len())
    };
    items.sort_by_key(rank);
}

fn is_named(item: &Value, name: &Value) -> bool {
    match (item.as_object(), name.as_object()) {
        // The server fills in defaults for key fields that an item omits.
        (Some(item), Some(name)) => name
            .iter()
            .all(|(key, value)| item.get(key).is_none_or(|one| one == value)),
        _ => item == name,
    }
}
