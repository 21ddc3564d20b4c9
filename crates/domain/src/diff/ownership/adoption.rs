//! Taking over what other managers own, without becoming their co-owner.
//!
//! A field that two managers own cannot be removed by either of them, so an
//! apply alone never gets rid of what git does not have. Therefore the entries
//! of the adopted managers are merged into ours first, in one JSON patch that
//! tests the resourceVersion; the apply that follows then removes what is left
//! over. The list of managers is never left empty: the server would make up
//! an owner of every live field, `before-first-apply`, at the next apply.

use serde_json::{Value, json};

use super::{FieldSet, entries, fields_of, is_main_resource, manager_of};
use crate::deployer::MADE_UP_MANAGER;
use crate::diff::locate;
use crate::ignore::{self, FieldPattern};
use crate::object::{FieldPath, PathSegment, annotations};

fn last_applied_path() -> FieldPath {
    FieldPath::default()
        .key("metadata")
        .key("annotations")
        .key(annotations::LAST_APPLIED)
}

/// Whether an entry is our Apply entry for the object itself.
fn is_our_apply(entry: &Value, ours: &str) -> bool {
    is_main_resource(entry) && manager_of(entry) == ours && entry["operation"] == "Apply"
}

/// Whether an entry may hold what an apply sends: the status has owners of its own.
fn is_about_content(entry: &Value) -> bool {
    entry["subresource"] != "status"
}

/// An entry of somebody else without what was taken back; none when nothing
/// is left of it but the maps and lists around that.
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

/// Whether the server keeps an entry: one without fields it drops.
fn has_fields(entry: &Value) -> bool {
    !FieldSet::parse(&entry["fieldsV1"]).is_empty()
}

/// Which entries become part of our Apply entry: ours, those of adopted
/// managers, and with them the one that the server made up.
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

/// What becomes ours of an object, and what stops to be.
pub struct Transfer<'a> {
    /// Our field manager.
    pub ours: &'a str,
    /// Version of the manifest: used where the object has no entry to take it from.
    pub api_version: &'a str,
    /// The managers whose fields become ours.
    pub from: &'a dyn Fn(&str) -> bool,
    /// Fields that come back to us alone, whoever else holds them.
    pub take_back: &'a FieldSet,
    /// Fields that are left to others from now on.
    pub give_up: &'a [FieldPattern],
    /// Labels and annotations that are taken off.
    pub strip: &'a [FieldPath],
}

/// A transfer of one object.
#[derive(Debug, Clone, PartialEq)]
pub struct Transferred {
    /// RFC 6902 operations that test the resourceVersion.
    pub patch: Value,
    /// What we own afterwards.
    pub fields: FieldSet,
}

impl Transfer<'_> {
    /// The JSON patch that makes us the owner of what the other managers own,
    /// and of nothing that is given up.
    ///
    /// Main-resource entries of those managers, and any second entry under our
    /// own name, become part of our Apply entry; entries of subresources and of
    /// all others stay as they are. The last-applied annotation goes with them,
    /// its path too, and so does what is stripped.
    ///
    /// What is taken back leaves the entries of all others and joins ours, where
    /// both name fields by the same version; the values stay as they are.
    ///
    /// An object whose entries were wiped gets an entry of ours that names one
    /// field which the next apply sends: enough for the server not to make up an
    /// owner. What git dropped in the meantime then has no owner and stays.
    ///
    /// None when there is nothing to change.
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
        // The newest entry names the version that its writer last used.
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
                taken.union(&fields.intersection(self.take_back))
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
        let mut kept: Vec<Value> = others
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
        kept.insert(0, entry);
        let op = if metadata["managedFields"].is_null() {
            "add"
        } else {
            "replace"
        };
        let mut patch = vec![
            json!({"op": "test", "path": "/metadata/resourceVersion", "value": metadata["resourceVersion"]}),
            json!({"op": op, "path": "/metadata/managedFields", "value": kept}),
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

/// The JSON pointer of a path of keys.
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

/// Takes the fields away that only the first set has.
///
/// What is left is what an apply leaves of an object once it owns `taken` and
/// neither it nor anyone else wants more than `others`: a member goes with all
/// below it, except what is named in `others`; what is left empty by that goes too.
pub(super) fn prune(value: &mut Value, taken: &FieldSet, others: &FieldSet) {
    let nothing = FieldSet::default();
    // Backwards, so that positions of atomic items stay true.
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

/// What an adoption makes of an object, from the answer to a forced dry run
/// that did not merge any entries yet: the answer without what only the adopted
/// managers, and no longer git, want.
///
/// Managers that created an object own every default in it, and what the
/// adoption takes away the server fills in again: it is asked with
/// [`super::remainder`] what becomes of the rest.
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
    // What is given up keeps the value that it has.
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
            take_back: &FieldSet::default(),
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
    fn what_is_given_up_and_what_is_stripped_goes_with_the_same_patch() {
        let mut object = kubectl_object();
        object["metadata"]["labels"] = json!({"deployer/name": "x", "app": "y"});
        object["metadata"]["managedFields"][0]["fieldsV1"]["f:metadata"]["f:labels"] =
            json!({"f:deployer/name": {}, "f:app": {}});
        let strip = [FieldPath::default()
            .key("metadata")
            .key("labels")
            .key("deployer/name")];
        let give_up = ["data.a".parse().unwrap()];
        let transfer = Transfer {
            ours: OURS,
            api_version: "v1",
            from: &adopt_kubectl,
            take_back: &FieldSet::default(),
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
    fn nothing_is_patched_where_nobody_is_adopted() {
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
    fn the_made_up_owner_goes_with_the_others_but_not_alone() {
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
    fn what_was_taken_comes_back_to_us_alone() {
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
        let take_back = FieldSet::parse(&json!({"f:data": {"f:b": {}, "f:c": {}}}));
        let transfer = Transfer {
            ours: OURS,
            api_version: "v1",
            from: &|_| false,
            take_back: &take_back,
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
    fn an_adoption_removes_what_only_the_adopted_wanted() {
        // The answer to a forced dry run: ours joined, nothing merged.
        let mut predicted = kubectl_object();
        predicted["data"]["a"] = json!("new");
        predicted["metadata"]["managedFields"].as_array_mut().unwrap().push(json!(
            {"manager": OURS, "operation": "Apply", "apiVersion": "v1", "fieldsV1": {"f:data": {"f:a": {}}}}));
        let rest = after_adoption(&predicted, OURS, &adopt_kubectl, &[]);
        assert_eq!(rest["data"], json!({"a": "new", "theirs": "3"}));
        assert_eq!(rest["metadata"].get("annotations"), None);
    }

    #[test]
    fn list_items_go_by_their_keys_and_stay_where_others_own_in_them() {
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
    fn a_container_that_is_left_empty_goes() {
        let object = json!({"spec": {"resources": {"limits": {"cpu": "1"}}}, "data": {}});
        let taken =
            FieldSet::parse(&json!({"f:spec": {"f:resources": {"f:limits": {"f:cpu": {}}}}}));
        let mut rest = object;
        prune(&mut rest, &taken, &FieldSet::default());
        assert_eq!(rest, json!({"data": {}}));
    }
}
