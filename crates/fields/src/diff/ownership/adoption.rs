//! Takes ownership of fields from other managers without sharing it.
//!
//! No manager can remove a field on its own if two managers own it. An apply alone therefore cannot
//! remove fields that git does not contain. First, one JSON patch merges the entries of the adopted
//! managers into ours. It tests the resourceVersion. The following apply then removes the remaining
//! fields.
//!
//! The list of managers is never left empty. Otherwise the server would assign all live fields to
//! the manager `before-first-apply` at the next apply.

use serde_json::{Value, json};

use super::{FieldSet, entries, fields_of, is_main_resource, manager_of};
use crate::diff::locate;
use crate::ignore::{self, FieldPattern};
use pleach_model::foreign_tools::MADE_UP_MANAGER;
use pleach_model::object::{FieldPath, PathSegment, annotations};

fn last_applied_path() -> FieldPath {
    FieldPath::default()
        .key("metadata")
        .key("annotations")
        .key(annotations::LAST_APPLIED)
}

/// Returns whether an entry is our Apply entry for the main resource.
fn is_our_apply(entry: &Value, ours: &str) -> bool {
    is_main_resource(entry) && manager_of(entry) == ours && entry["operation"] == "Apply"
}

/// Returns whether an entry can own fields that an apply sends. The status has its own owners.
fn is_about_content(entry: &Value) -> bool {
    entry["subresource"] != "status"
}

/// Returns another manager's entry without the fields that we take.
///
/// Returns `None` if only containers of the taken fields remain.
fn give_back(entry: &Value, theirs: &FieldSet, taken: &FieldSet) -> Option<Value> {
    if theirs.intersection(taken).is_empty() {
        return Some(entry.clone());
    }
    let rest = theirs.difference(taken);
    if rest.leaves().iter().all(|path| taken.holds_below(path)) {
        return None;
    }
    let mut entry = entry.clone();
    entry["fieldsV1"] = rest.to_json();
    Some(entry)
}

/// Returns whether an entry has fields. The server drops entries without fields.
fn has_fields(entry: &Value) -> bool {
    !FieldSet::parse(&entry["fieldsV1"]).is_empty()
}

/// Returns a predicate for the entries that are merged into our Apply entry: ours, the ones of
/// adopted managers, and in addition `before-first-apply`.
pub(super) fn is_merged(
    metadata: &Value,
    ours: &str,
    adopted: &dyn Fn(&str) -> bool,
) -> impl Fn(&Value) -> bool {
    let named = move |entry: &Value| {
        let manager = manager_of(entry);
        is_main_resource(entry) && (manager == ours || adopted(manager))
    };
    let any = entries(metadata).iter().any(named);
    move |entry| {
        named(entry) || (any && is_main_resource(entry) && manager_of(entry) == MADE_UP_MANAGER)
    }
}

/// Rules for transferring field ownership of an object.
pub struct Transfer<'a> {
    /// Our field manager.
    pub ours: &'a str,
    /// API version of the manifest, for an object without an entry that provides one.
    pub api_version: &'a str,
    /// Predicate for managers whose fields we take.
    pub from: &'a dyn Fn(&str) -> bool,
    /// Fields to take from all other managers.
    pub reclaim: &'a FieldSet,
    /// Fields to release to other managers.
    pub give_up: &'a [FieldPattern],
    /// Labels and annotations to remove.
    pub strip: &'a [FieldPath],
}

/// The ownership transfer of one object.
#[derive(Debug, Clone, PartialEq)]
pub struct Transferred {
    /// RFC 6902 operations, starting with a test of the resourceVersion.
    pub patch: Value,
    /// Fields that we own afterwards.
    pub fields: FieldSet,
}

impl Transfer<'_> {
    /// Builds the JSON patch for the transfer. Returns `None` if there is nothing to change.
    ///
    /// Main-resource entries of the managers in `from` are merged into our Apply entry. A second
    /// entry under our own name is merged, too. Entries of subresources and of all other managers
    /// remain. The last-applied annotation and the fields in `strip` are removed.
    ///
    /// The fields in `reclaim` move from all other entries to ours. Only entries with the same
    /// API version are considered. The values do not change.
    ///
    /// An object whose entries were wiped gets an entry for one field that the next apply sends.
    /// This prevents the server from creating `before-first-apply`. Fields that git dropped in the
    /// meantime then have no owner and remain.
    pub fn of(&self, object: &Value) -> Option<Transferred> {
        let metadata = &object["metadata"];
        let all = entries(metadata);
        let is_merged = is_merged(metadata, self.ours, self.from);
        let merged: Vec<&Value> = all.iter().filter(|entry| is_merged(entry)).collect();
        let wiped = !all.iter().any(has_fields);
        let moved = wiped || !merged.iter().all(|entry| is_our_apply(entry, self.ours));
        let owned = merged.iter().fold(FieldSet::default(), |fields, entry| {
            fields.union(&fields_of(entry, object))
        });
        // The newest entry has the API version that its manager used last.
        let version = merged
            .iter()
            .filter(|entry| entry["apiVersion"].is_string())
            .max_by_key(|entry| entry["time"].as_str().unwrap_or_default())
            .and_then(|entry| entry["apiVersion"].as_str())
            .unwrap_or(self.api_version);
        let others: Vec<(&Value, FieldSet)> = all
            .iter()
            .filter(|entry| !is_merged(entry) && has_fields(entry))
            .map(|entry| (entry, FieldSet::parse(&entry["fieldsV1"])))
            .collect();
        let taken = others
            .iter()
            .filter(|(entry, _)| entry["apiVersion"] == version && is_about_content(entry))
            .fold(FieldSet::default(), |taken, (_, fields)| {
                taken.union(&fields.intersection(self.reclaim))
            });
        let mut fields = ignore::give_up(self.give_up, &owned, object);
        let mut removed: Vec<FieldPath> = self
            .strip
            .iter()
            .filter(|path| locate::find(object, path).is_some())
            .cloned()
            .collect();
        if !moved && fields == owned && removed.is_empty() && taken.is_empty() {
            return None;
        }
        fields = fields.union(&taken);
        if moved && metadata["annotations"][annotations::LAST_APPLIED].is_string() {
            removed.push(last_applied_path());
        }
        for path in &removed {
            fields = fields.without(path);
        }
        if fields.is_empty() {
            fields = FieldSet::parse(&json!({"f:metadata": {"f:annotations": {
                (format!("f:{}", annotations::DESIRED)): {}}}}));
        }
        let mut remaining: Vec<Value> = others
            .into_iter()
            .filter_map(|(entry, theirs)| {
                if entry["apiVersion"] == version && is_about_content(entry) {
                    give_back(entry, &theirs, &taken)
                } else {
                    Some(entry.clone())
                }
            })
            .collect();
        let mut entry = json!({
            "manager": self.ours,
            "operation": "Apply",
            "apiVersion": version,
            "fieldsType": "FieldsV1",
            "fieldsV1": fields.to_json(),
        });
        if let Some(time) = merged
            .iter()
            .filter_map(|entry| entry["time"].as_str())
            .max()
        {
            entry["time"] = Value::from(time);
        }
        remaining.insert(0, entry);
        let op = if metadata["managedFields"].is_null() {
            "add"
        } else {
            "replace"
        };
        let mut patch = vec![
            json!({"op": "test", "path": "/metadata/resourceVersion", "value": metadata["resourceVersion"]}),
            json!({"op": op, "path": "/metadata/managedFields", "value": remaining}),
        ];
        patch.extend(
            removed
                .iter()
                .filter_map(|path| Some(json!({"op": "remove", "path": pointer(path)?}))),
        );
        Some(Transferred {
            patch: Value::Array(patch),
            fields,
        })
    }
}

/// Returns the JSON pointer of a path. `None` if the path contains list items.
fn pointer(path: &FieldPath) -> Option<String> {
    path.0
        .iter()
        .map(|segment| match segment {
            PathSegment::Key(key) => {
                Some(format!("/{}", key.replace('~', "~0").replace('/', "~1")))
            }
            _ => None,
        })
        .collect()
}

/// Removes the fields that are in `taken`, but not in `others`.
///
/// This simulates an apply that owns `taken`, but does not send it. A field is removed with all its
/// descendants, except those in `others`. Containers that become empty are removed, too.
pub(super) fn prune(value: &mut Value, taken: &FieldSet, others: &FieldSet) {
    let nothing = FieldSet::default();
    // Iterate backwards, so that the indexes of atomic items stay valid.
    let steps: Vec<_> = taken.items().collect();
    for (segment, mine) in steps.into_iter().rev() {
        let theirs = others.child(&segment).unwrap_or(&nothing);
        if theirs.is_whole() {
            continue;
        }
        let Some(child) = locate::step_mut(value, &segment) else {
            continue;
        };
        if mine.itself && theirs.is_empty() {
            locate::remove(value, &segment);
            continue;
        }
        prune(child, mine, theirs);
        let is_empty = child.as_object().is_some_and(serde_json::Map::is_empty)
            || child.as_array().is_some_and(Vec::is_empty);
        if is_empty && theirs.is_empty() {
            locate::remove(value, &segment);
        }
    }
}

/// Predicts the result of an adoption from a forced dry run without merged entries.
///
/// Fields that only the adopted managers own are removed from the dry run's result. A manager that
/// created an object owns all defaults in it, and the server fills in removed defaults again. A dry
/// run of the patch from [`super::remainder`] adds these defaults.
#[must_use]
pub fn after_adoption(
    predicted: &Value,
    ours: &str,
    adopted: &dyn Fn(&str) -> bool,
    ignored: &[FieldPattern],
) -> Value {
    let mut taken = FieldSet::default();
    let mut others = FieldSet::default();
    let metadata = &predicted["metadata"];
    let is_merged = is_merged(metadata, ours, adopted);
    for entry in entries(metadata) {
        if is_merged(entry) && !is_our_apply(entry, ours) {
            taken = taken.union(&fields_of(entry, predicted));
        } else {
            others = others.union(&FieldSet::parse(&entry["fieldsV1"]));
        }
    }
    // Ignored fields retain their value.
    let taken = ignore::give_up(ignored, &taken, predicted);
    if taken.is_empty() {
        return predicted.clone();
    }
    let mut rest = predicted.clone();
    prune(&mut rest, &taken, &others);
    if let Some(annotations) = rest
        .pointer_mut("/metadata/annotations")
        .and_then(Value::as_object_mut)
    {
        annotations.shift_remove(annotations::LAST_APPLIED);
    }
    rest
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::diff::ownership::applied_by;

    const OURS: &str = "pleach/production.web";

    fn kubectl_object() -> Value {
        json!({
            "apiVersion": "v1", "kind": "ConfigMap",
            "metadata": {
                "name": "settings", "resourceVersion": "812",
                "annotations": {"kubectl.kubernetes.io/last-applied-configuration": "{}", "team": "web"},
                "managedFields": [
                    {"manager": "kubectl-client-side-apply", "operation": "Update", "apiVersion": "v1",
                     "time": "2026-07-01T10:00:00Z", "fieldsType": "FieldsV1",
                     "fieldsV1": {"f:data": {".": {}, "f:a": {}, "f:old": {}},
                        "f:metadata": {"f:annotations": {".": {}, "f:kubectl.kubernetes.io/last-applied-configuration": {}, "f:team": {}}}}},
                    {"manager": "other", "operation": "Update", "apiVersion": "v1",
                     "time": "2026-07-02T10:00:00Z", "fieldsType": "FieldsV1", "fieldsV1": {"f:data": {"f:theirs": {}}}},
                    {"manager": "kubelet", "operation": "Update", "apiVersion": "v1", "subresource": "status",
                     "fieldsType": "FieldsV1", "fieldsV1": {"f:status": {"f:x": {}}}},
                ],
            },
            "data": {"a": "1", "old": "2", "theirs": "3"},
        })
    }

    fn merge_entries(
        metadata: &Value,
        api_version: &str,
        ours: &str,
        from: &dyn Fn(&str) -> bool,
    ) -> Option<Value> {
        let transfer = Transfer {
            ours,
            api_version,
            from,
            reclaim: &FieldSet::default(),
            give_up: &[],
            strip: &[],
        };
        let transferred = transfer.of(&json!({"metadata": metadata}))?;
        Some(transferred.patch)
    }

    fn adopt_kubectl(manager: &str) -> bool {
        manager.starts_with("kubectl")
    }

    fn patched(mut object: Value, patch: Value) -> Value {
        let patch: json_patch::Patch = serde_json::from_value(patch).unwrap();
        json_patch::patch(&mut object, &patch).unwrap();
        object
    }

    #[test]
    fn entries_of_adopted_managers_become_ours() {
        let object = kubectl_object();
        let patch = merge_entries(&object["metadata"], "v1", OURS, &adopt_kubectl).unwrap();
        assert_eq!(
            patch[0],
            json!({"op": "test", "path": "/metadata/resourceVersion", "value": "812"})
        );
        let object = patched(object, patch);
        let managers: Vec<(&str, &str)> = entries(&object["metadata"])
            .iter()
            .map(|entry| {
                (
                    entry["manager"].as_str().unwrap(),
                    entry["operation"].as_str().unwrap(),
                )
            })
            .collect();
        assert_eq!(
            managers,
            [(OURS, "Apply"), ("other", "Update"), ("kubelet", "Update")]
        );
        let ours = applied_by(&object["metadata"], OURS);
        assert_eq!(
            ours.to_json(),
            json!({"f:data": {".": {}, "f:a": {}, "f:old": {}},
                "f:metadata": {"f:annotations": {".": {}, "f:team": {}}}})
        );
        assert_eq!(object["metadata"]["annotations"], json!({"team": "web"}));
        assert_eq!(
            merge_entries(&object["metadata"], "v1", OURS, &adopt_kubectl),
            None,
            "once is enough"
        );
    }

    #[test]
    fn given_up_and_removed_fields_share_one_patch() {
        let mut object = kubectl_object();
        object["metadata"]["labels"] = json!({"tool/name": "x", "app": "y"});
        object["metadata"]["managedFields"][0]["fieldsV1"]["f:metadata"]["f:labels"] =
            json!({"f:tool/name": {}, "f:app": {}});
        let strip = [FieldPath::default()
            .key("metadata")
            .key("labels")
            .key("tool/name")];
        let give_up = ["data.a".parse().unwrap()];
        let transfer = Transfer {
            ours: OURS,
            api_version: "v1",
            from: &adopt_kubectl,
            reclaim: &FieldSet::default(),
            give_up: &give_up,
            strip: &strip,
        };
        let transferred = transfer.of(&object).unwrap();
        let object = patched(object, transferred.patch);
        assert_eq!(object["metadata"]["labels"], json!({"app": "y"}));
        assert_eq!(object["data"]["a"], "1");
        let ours = applied_by(&object["metadata"], OURS);
        assert_eq!(ours, transferred.fields);
        assert_eq!(
            ours.to_json(),
            json!({"f:data": {".": {}, "f:old": {}},
                "f:metadata": {"f:annotations": {".": {}, "f:team": {}}, "f:labels": {"f:app": {}}}})
        );
        assert_eq!(transfer.of(&object), None, "once is enough");
    }

    #[test]
    fn without_adoption_nothing_is_patched() {
        let object = kubectl_object();
        assert_eq!(
            merge_entries(&object["metadata"], "v1", OURS, &|_| false),
            None
        );
    }

    #[test]
    fn our_update_entry_joins_our_apply_entry() {
        let metadata = json!({"resourceVersion": "1", "managedFields": [
            {"manager": OURS, "operation": "Apply", "apiVersion": "v1", "fieldsV1": {"f:data": {"f:a": {}}}},
            {"manager": OURS, "operation": "Update", "apiVersion": "v1", "fieldsV1": {"f:data": {"f:b": {}}}}]});
        let patch = merge_entries(&metadata, "v1", OURS, &|_| false).unwrap();
        assert_eq!(
            patch[1]["value"],
            json!([{"manager": OURS, "operation": "Apply", "apiVersion": "v1", "fieldsType": "FieldsV1",
                "fieldsV1": {"f:data": {"f:a": {}, "f:b": {}}}}])
        );
    }

    #[test]
    fn a_wiped_object_gets_an_entry_that_the_server_keeps() {
        for metadata in [
            json!({"resourceVersion": "1"}),
            json!({"resourceVersion": "1", "managedFields": null}),
            json!({"resourceVersion": "1", "managedFields": [{}]}),
            json!({"resourceVersion": "1", "managedFields": []}),
        ] {
            let object = json!({"metadata": metadata});
            let patch = merge_entries(&object["metadata"], "apps/v1", OURS, &|_| false).unwrap();
            assert_eq!(
                patched(object, patch)["metadata"]["managedFields"],
                json!([{"manager": OURS, "operation": "Apply", "apiVersion": "apps/v1", "fieldsType": "FieldsV1",
                    "fieldsV1": {"f:metadata": {"f:annotations": {"f:pleach.dev/desired": {}}}}}])
            );
        }
    }

    #[test]
    fn the_before_first_apply_owner_is_removed_only_with_adopted_ones() {
        let made_up = json!({"manager": "before-first-apply", "operation": "Update", "apiVersion": "v1",
            "fieldsV1": {"f:data": {"f:a": {}, "f:b": {}}}});
        let ours = json!({"manager": OURS, "operation": "Apply", "apiVersion": "v1", "fieldsV1": {"f:data": {"f:a": {}}}});
        let metadata = json!({"resourceVersion": "1", "managedFields": [made_up, ours]});
        let patch = merge_entries(&metadata, "v1", OURS, &|_| false).unwrap();
        assert_eq!(
            patch[1]["value"][0]["fieldsV1"],
            json!({"f:data": {"f:a": {}, "f:b": {}}})
        );
        assert_eq!(patch[1]["value"].as_array().unwrap().len(), 1);
        let metadata = json!({"resourceVersion": "1", "managedFields": [made_up]});
        assert_eq!(merge_entries(&metadata, "v1", OURS, &|_| false), None);
    }

    #[test]
    fn reclaimed_fields_are_owned_by_us_alone() {
        let entry = |manager: &str, version: &str, fields: Value| {
            json!({"manager": manager, "operation": "Update",
            "apiVersion": version, "fieldsType": "FieldsV1", "fieldsV1": fields})
        };
        let mut ours = entry(OURS, "v1", json!({"f:data": {"f:a": {}}}));
        ours["operation"] = json!("Apply");
        let mut scale = entry("scaler", "v1", json!({"f:data": {"f:b": {}}}));
        scale["subresource"] = json!("scale");
        let mut status = entry("kubelet", "v1", json!({"f:data": {"f:b": {}}}));
        status["subresource"] = json!("status");
        let object = json!({"metadata": {"resourceVersion": "1", "managedFields": [
            ours,
            entry("editor", "v1", json!({"f:data": {".": {}, "f:b": {}, "f:more": {}}})),
            entry("labeler", "v1", json!({"f:data": {".": {}, "f:b": {}}})),
            scale,
            status,
            entry("older", "v1beta1", json!({"f:data": {"f:b": {}}}))]}});
        let reclaim = FieldSet::parse(&json!({"f:data": {"f:b": {}, "f:c": {}}}));
        let transfer = Transfer {
            ours: OURS,
            api_version: "v1",
            from: &|_| false,
            reclaim: &reclaim,
            give_up: &[],
            strip: &[],
        };
        let transferred = transfer.of(&object).unwrap();
        let object = patched(object, transferred.patch);
        let left: Vec<(&str, &Value)> = entries(&object["metadata"])
            .iter()
            .map(|entry| {
                (
                    entry["manager"].as_str().unwrap(),
                    &entry["fieldsV1"]["f:data"],
                )
            })
            .collect();
        assert_eq!(
            left,
            [
                (OURS, &json!({"f:a": {}, "f:b": {}})),
                ("editor", &json!({".": {}, "f:more": {}})),
                ("kubelet", &json!({"f:b": {}})),
                ("older", &json!({"f:b": {}}))
            ]
        );
        assert_eq!(transfer.of(&object), None, "once is enough");
    }

    #[test]
    fn the_newest_entry_gives_the_version() {
        let metadata = json!({"resourceVersion": "1", "managedFields": [
            {"manager": "helm", "operation": "Update", "apiVersion": "policy/v1", "time": "2026-07-02T10:00:00Z", "fieldsV1": {"f:spec": {}}},
            {"manager": "helm", "operation": "Apply", "apiVersion": "policy/v1beta1", "time": "2025-07-02T10:00:00Z", "fieldsV1": {"f:spec": {}}}]});
        let patch = merge_entries(&metadata, "x/v1", OURS, &|_| true).unwrap();
        assert_eq!(patch[1]["value"][0]["apiVersion"], "policy/v1");
        assert_eq!(patch[1]["value"][0]["time"], "2026-07-02T10:00:00Z");
    }

    #[test]
    fn an_adoption_removes_fields_only_the_adopted_manager_owned() {
        // The result of a forced dry run: our entry was added, no entries were merged.
        let mut predicted = kubectl_object();
        predicted["data"]["a"] = json!("new");
        predicted["metadata"]["managedFields"].as_array_mut().unwrap().push(json!(
            {"manager": OURS, "operation": "Apply", "apiVersion": "v1", "fieldsV1": {"f:data": {"f:a": {}}}}));
        let rest = after_adoption(&predicted, OURS, &adopt_kubectl, &[]);
        assert_eq!(rest["data"], json!({"a": "new", "theirs": "3"}));
        assert_eq!(rest["metadata"].get("annotations"), None);
    }

    #[test]
    fn list_items_are_removed_by_key_unless_other_managers_own_fields() {
        let object = json!({"spec": {"containers": [
            {"name": "a", "image": "a:1", "env": [{"name": "X", "value": "1"}]},
            {"name": "b", "image": "b:1", "resources": {"limits": {"cpu": "1"}}},
            {"name": "c", "image": "c:1"}], "args": ["x", "y", "z"]}});
        let taken = FieldSet::parse(&json!({"f:spec": {
            "f:containers": {
                "k:{\"name\":\"a\"}": {".": {}, "f:name": {}, "f:image": {}},
                "k:{\"name\":\"b\"}": {".": {}, "f:name": {}, "f:image": {}},
                "k:{\"name\":\"gone\"}": {".": {}, "f:name": {}}},
            "f:args": {"v:\"x\"": {}, "v:\"z\"": {}}}}));
        let others = FieldSet::parse(&json!({"f:spec": {"f:containers": {
            "k:{\"name\":\"b\"}": {"f:name": {}, "f:resources": {"f:limits": {"f:cpu": {}}}}}}}));
        let mut rest = object;
        prune(&mut rest, &taken, &others);
        assert_eq!(
            rest,
            json!({"spec": {"containers": [
                {"name": "b", "resources": {"limits": {"cpu": "1"}}},
                {"name": "c", "image": "c:1"}], "args": ["y"]}})
        );
    }

    #[test]
    fn an_empty_container_is_removed() {
        let object = json!({"spec": {"resources": {"limits": {"cpu": "1"}}}, "data": {}});
        let taken =
            FieldSet::parse(&json!({"f:spec": {"f:resources": {"f:limits": {"f:cpu": {}}}}}));
        let mut rest = object;
        prune(&mut rest, &taken, &FieldSet::default());
        assert_eq!(rest, json!({"data": {}}));
    }
}
