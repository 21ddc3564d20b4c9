//! Puts the items of lists where the other side has them.

use serde_json::Value;

use super::lists::{self, Shape};
use crate::diff::locate;
use crate::diff::ownership::FieldSet;
use crate::kinds::Schema;
use crate::object::{FieldPath, PathSegment};

/// Reorders the lists of `new` as `old` has them. Items that only the new side
/// has stay behind the one they follow. Lists whose items cannot be told apart
/// stay as they are.
pub(super) fn align(
    field: Option<&str>,
    old: &Value,
    new: &mut Value,
    owned: Option<&FieldSet>,
    schema: Option<Schema<'_>>,
) {
    match (old, new) {
        (Value::Object(old), Value::Object(new)) => {
            for (key, new) in new {
                let Some(old) = old.get(key) else { continue };
                let owned = owned.and_then(|set| set.child(&PathSegment::Key(key.clone())));
                let schema = schema.and_then(|one| one.field(key).or_else(|| one.values()));
                align(Some(key), old, new, owned, schema);
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
                            align(None, before, &mut one, owned, item);
                        }
                        new.push(one);
                    }
                }
                Shape::Positions if lists::is_permuted(old, new) => new.clone_from(old),
                Shape::Positions if old.len() == new.len() => {
                    for (old, new) in old.iter().zip(new) {
                        align(None, old, new, None, item);
                    }
                }
                Shape::Positions => {}
            }
        }
        _ => {}
    }
}

/// The positions of the new items in the order of the old side.
fn order(old: &[PathSegment], new: &[PathSegment]) -> Vec<usize> {
    let mut order: Vec<usize> = old
        .iter()
        .filter_map(|step| new.iter().position(|one| one == step))
        .collect();
    for position in 0..new.len() {
        if !order.contains(&position) {
            // Everything before it is placed already.
            let after = position
                .checked_sub(1)
                .and_then(|before| order.iter().position(|one| *one == before))
                .map_or(0, |at| at + 1);
            order.insert(after, position);
        }
    }
    order
}

/// Brings the items of a list into an order, which names them by their keys or
/// as wholes. What it does not name stays behind.
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
        // A key that the item leaves out has the server's default.
        (Some(item), Some(name)) => name
            .iter()
            .all(|(key, value)| item.get(key).is_none_or(|one| one == value)),
        _ => item == name,
    }
}
