//! Reverting a temporary change, as far as the values still are as pleach set them.

use serde_json::{Map, Value};

use super::Journaled;
use pleach_fields::diff::ownership::FieldSet;
use pleach_model::object::{FieldPath, PathSegment};

/// Writes that revert a temporary change.
#[derive(Debug, Clone, PartialEq)]
pub struct Reverted {
    /// Merge patch of the values. An empty map if no value changes.
    pub patch: Value,
    /// Fields whose ownership pleach gives up.
    pub fields: Vec<FieldPath>,
    /// Fields that another writer changed since. They stay.
    pub moved: Vec<FieldPath>,
}

/// Computes how to revert a temporary change of an object.
///
/// A value counts as ours if it equals the value that we set. It also counts if the overlay manager
/// owns it (`owned`), because the server can normalize values. `keeps` selects fields that an apply
/// restores, so that the patch omits them.
pub fn revert(
    journaled: &Journaled,
    live: &Value,
    owned: &FieldSet,
    keeps: &dyn Fn(&FieldPath) -> bool,
) -> Reverted {
    let mut walk = Walk {
        owned,
        keeps,
        fields: Vec::new(),
        moved: Vec::new(),
    };
    let (set, original) = (&journaled.set.0, &journaled.original.0);
    let patch = walk.below(set, original, live, &FieldPath::default());
    Reverted {
        patch: Value::Object(patch),
        fields: walk.fields,
        moved: walk.moved,
    }
}

struct Walk<'a> {
    owned: &'a FieldSet,
    keeps: &'a dyn Fn(&FieldPath) -> bool,
    fields: Vec<FieldPath>,
    moved: Vec<FieldPath>,
}

impl Walk<'_> {
    fn below(
        &mut self,
        set: &Value,
        original: &Value,
        live: &Value,
        at: &FieldPath,
    ) -> Map<String, Value> {
        let mut patch = Map::new();
        for (key, set) in set.as_object().into_iter().flatten() {
            let field = at.join(PathSegment::Key(key.clone()));
            let original = original.get(key).unwrap_or(&Value::Null);
            let live = live.get(key).unwrap_or(&Value::Null);
            let is_map = set.as_object().is_some_and(|map| !map.is_empty());
            if is_map && live.is_object() && (original.is_object() || original.is_null()) {
                let below = self.below(set, original, live, &field);
                if original.is_null() && leaves_nothing(live, &below) {
                    // We created the map.
                    patch.insert(key.clone(), Value::Null);
                } else if !below.is_empty() {
                    patch.insert(key.clone(), Value::Object(below));
                }
            } else if live == original {
                if self.owned.touches(&field) {
                    self.fields.push(field);
                }
            } else if live == set || self.owned.touches(&field) {
                if !(self.keeps)(&field) {
                    patch.insert(key.clone(), original.clone());
                }
                self.fields.push(field);
            } else {
                self.moved.push(field);
            }
        }
        patch
    }
}

/// Returns whether a map is empty after a merge patch.
fn leaves_nothing(live: &Value, patch: &Map<String, Value>) -> bool {
    live.as_object()
        .is_some_and(|live| live.keys().all(|key| patch.get(key) == Some(&Value::Null)))
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;
    use rstest::rstest;
    use serde_json::json;

    use super::*;
    use crate::overlay::{OnFailure, State, merge, project};
    use pleach_model::object::{NonSecret, ObjectId};

    fn journaled(patch: &Value, before: &Value) -> Journaled {
        Journaled {
            kind: None,
            object: ObjectId::new("apps", "Deployment", Some("web"), "api"),
            uid: "u".to_owned(),
            state: State::On,
            set: NonSecret(patch.clone()),
            original: NonSecret(project(patch, before)),
            owners: Vec::new(),
            on_failure: OnFailure::Undo,
            until: "verify".to_owned(),
            since: Timestamp::UNIX_EPOCH,
            attempt: "v1".to_owned(),
        }
    }

    #[rstest]
    #[case::a_value(json!({"spec": {"replicas": 2}}), json!({"spec": {"replicas": 0}}))]
    #[case::nothing(json!({"spec": {"a": 1}}), json!({"spec": {"paused": true}}))]
    #[case::a_list(json!({"spec": {"m": ["a"]}}), json!({"spec": {"m": []}}))]
    #[case::a_map_of_our_own(json!({"spec": {}}), json!({"spec": {"x": {"y": {"z": 1}}}}))]
    #[case::a_removal(json!({"spec": {"x": {"y": 1}, "l": 2}}), json!({"spec": {"x": null, "l": null}}))]
    #[case::a_scalar_that_became_a_map(json!({"spec": {"x": 1}}), json!({"spec": {"x": {"y": 1}}}))]
    fn changed_values_are_restored(#[case] before: Value, #[case] patch: Value) {
        let mut live = before.clone();
        merge(&mut live, &patch);
        let record = journaled(&patch, &before);
        let taken = revert(&record, &live, &FieldSet::default(), &|_| false);
        merge(&mut live, &taken.patch);
        assert_eq!(live, before);
        assert!(taken.moved.is_empty());
        // Repeat it, as after a lost response: no change is left.
        let again = revert(&record, &live, &FieldSet::default(), &|_| false);
        assert_eq!(again.patch, json!({}));
    }

    #[test]
    fn values_changed_by_other_managers_stay() {
        let before = json!({"spec": {"replicas": 2, "x": 1}});
        let record = journaled(&json!({"spec": {"replicas": 0, "x": 5}}), &before);
        let live = json!({"spec": {"replicas": 7, "x": 5}});
        let taken = revert(&record, &live, &FieldSet::default(), &|_| false);
        assert_eq!(taken.patch, json!({"spec": {"x": 1}}));
        let moved: Vec<String> = taken.moved.iter().map(ToString::to_string).collect();
        assert_eq!(moved, [".spec.replicas"]);
    }

    #[test]
    fn entries_of_other_managers_in_our_map_stay() {
        let before = json!({"metadata": {}});
        let record = journaled(
            &json!({"metadata": {"annotations": {"ours": "a"}}}),
            &before,
        );
        let live = json!({"metadata": {"annotations": {"ours": "a", "theirs": "b"}}});
        let taken = revert(&record, &live, &FieldSet::default(), &|_| false);
        assert_eq!(
            taken.patch,
            json!({"metadata": {"annotations": {"ours": null}}})
        );
    }

    #[test]
    fn a_normalized_value_is_ours_while_we_own_it() {
        let before = json!({"spec": {"cpu": "2"}});
        let record = journaled(&json!({"spec": {"cpu": "1000m"}}), &before);
        let live = json!({"spec": {"cpu": "1"}});
        let owned = FieldSet::parse(&json!({"f:spec": {"f:cpu": {}}}));
        let taken = revert(&record, &live, &owned, &|_| false);
        assert_eq!(taken.patch, json!({"spec": {"cpu": "2"}}));
        let strange = revert(&record, &live, &FieldSet::default(), &|_| false);
        assert_eq!(strange.patch, json!({}));
    }

    #[test]
    fn values_that_an_apply_restores_are_only_given_up() {
        let before = json!({"spec": {"replicas": 2}});
        let record = journaled(&json!({"spec": {"replicas": 0}}), &before);
        let live = json!({"spec": {"replicas": 0}});
        let taken = revert(&record, &live, &FieldSet::default(), &|_| true);
        assert_eq!((taken.patch, taken.fields.len()), (json!({}), 1));
    }
}
