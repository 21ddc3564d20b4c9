//! Field ownership, read from `metadata.managedFields`
//! (<https://kubernetes.io/docs/reference/using-api/server-side-apply/#field-management>).

mod adoption;
mod after_adoption;
mod after_removal;
mod displaced;
mod field_set;
mod full_field_set;
mod orphaned_fields;
mod versions;

use jiff::Timestamp;
use serde_json::Value;

use crate::ignore::{self, FieldPattern};
use pleach_model::object::{Digest, FieldPath, PathSegment, canonical_json, managers};

pub use adoption::{Transfer, Transferred, after_adoption};
pub use after_adoption::predicted;
pub use after_removal::{recreated, remainder};
pub use displaced::displacing;
pub use field_set::FieldSet;
pub use full_field_set::everything_in;
pub use orphaned_fields::orphaned;
pub use versions::{all_at_with, moved_to};

/// Returns the entries of managedFields in the server's order.
pub fn entries(metadata: &Value) -> &[Value] {
    metadata["managedFields"]
        .as_array()
        .map_or(&[], Vec::as_slice)
}

/// Returns whether an entry is about the main resource instead of a subresource.
pub fn is_main_resource(entry: &Value) -> bool {
    entry["subresource"].as_str().is_none_or(str::is_empty)
}

fn manager_of(entry: &Value) -> &str {
    entry["manager"].as_str().unwrap_or_default()
}

/// Returns the fields that an entry names, at their location in the object.
///
/// If a client applies `stringData` of a Secret, the entry names `stringData`, but the server
/// stores the values in `data`.
fn fields_of(entry: &Value, object: &Value) -> FieldSet {
    let fields = FieldSet::parse(&entry["fieldsV1"]);
    if object["apiVersion"] != "v1" || object["kind"] != "Secret" {
        return fields;
    }
    let [texts, data] = ["stringData", "data"].map(|key| PathSegment::Key(key.to_owned()));
    let Some(written) = fields.child(&texts) else {
        return fields;
    };
    let mut remaining = fields.child(&data).cloned().unwrap_or_default();
    if !written.is_whole() {
        remaining = remaining.union(written);
    }
    fields
        .with(&texts, FieldSet::default())
        .with(&data, remaining)
}

/// Returns the manager's Apply entry for the main resource. There is at most one, regardless of the
/// API version.
pub fn apply_entry<'a>(metadata: &'a Value, manager: &str) -> Option<&'a Value> {
    entries(metadata).iter().find(|entry| {
        entry["manager"] == manager && entry["operation"] == "Apply" && is_main_resource(entry)
    })
}

/// Returns the digest of our own Apply entry without its time.
///
/// The digest changes if another manager changes or removes one of our fields. It does not change
/// if other managers add their own fields.
pub fn fingerprint(metadata: &Value, manager: &str) -> Option<Digest> {
    let entry = apply_entry(metadata, manager)?;
    Some(entry_digest(entry, &entry["fieldsV1"]))
}

/// Returns the fingerprint that our entry would have with additional `fields`.
pub fn fingerprint_with(metadata: &Value, manager: &str, fields: &FieldSet) -> Option<Digest> {
    let entry = apply_entry(metadata, manager)?;
    let all = FieldSet::parse(&entry["fieldsV1"]).union(fields);
    Some(entry_digest(entry, &all.to_json()))
}

fn entry_digest(entry: &Value, fields: &Value) -> Digest {
    let mut bytes = entry["apiVersion"]
        .as_str()
        .unwrap_or_default()
        .as_bytes()
        .to_vec();
    bytes.push(b'\n');
    bytes.extend(canonical_json(fields));
    Digest::of(&bytes)
}

/// Returns whether our Apply entries in two objects are equal, apart from ignored fields.
pub fn same_entry(a: &Value, b: &Value, manager: &str, ignored: &[FieldPattern]) -> bool {
    let read = |object: &Value| {
        let entry = apply_entry(&object["metadata"], manager)?;
        let fields = FieldSet::parse(&entry["fieldsV1"]);
        let fields = ignore::give_up(ignored, &fields, object);
        Some((entry["apiVersion"].as_str().map(str::to_owned), fields))
    };
    read(a) == read(b)
}

/// Returns the distinct managers of main-resource fields in the server's order.
pub fn managers(metadata: &Value) -> Vec<String> {
    let mut managers: Vec<String> = Vec::new();
    for entry in entries(metadata)
        .iter()
        .filter(|entry| is_main_resource(entry))
    {
        let manager = manager_of(entry);
        if !managers.iter().any(|known| known == manager) {
            managers.push(manager.to_owned());
        }
    }
    managers
}

/// Returns whether another manager created an object that we applied later.
///
/// This is the case if another manager's entry is as old as the object, ours is newer, and both
/// share fields. Managers that only extend our object do not share fields with us.
pub fn made_by_others(metadata: &Value, ours: &str) -> bool {
    let created = &metadata["creationTimestamp"];
    let Some(entry) = apply_entry(metadata, ours) else {
        return false;
    };
    if !created.is_string() || entry["time"] == *created {
        return false;
    }
    let fields = FieldSet::parse(&entry["fieldsV1"]);
    entries(metadata).iter().any(|other| {
        let manager = manager_of(other);
        is_main_resource(other)
            && manager != ours
            && !managers::is_of_pleach(manager)
            && other["time"] == *created
            && !FieldSet::parse(&other["fieldsV1"])
                .intersection(&fields)
                .is_empty()
    })
}

/// Returns whether the status was written after the other fields.
///
/// Entries have a resolution of one second. If the times are equal, or the status entry has none,
/// the status counts as newer.
pub fn status_came_last(metadata: &Value) -> bool {
    let time = |entry: &Value| entry["time"].as_str()?.parse::<Timestamp>().ok();
    let (status, others): (Vec<&Value>, Vec<&Value>) = entries(metadata)
        .iter()
        .partition(|entry| entry["subresource"] == "status");
    let newest = others.into_iter().filter_map(time).max();
    status
        .into_iter()
        .any(|entry| time(entry).is_none_or(|at| Some(at) >= newest))
}

/// Returns the main-resource fields of a manager, for all operations.
pub fn owned_by(metadata: &Value, manager: &str) -> FieldSet {
    collect(metadata, |entry| {
        is_main_resource(entry) && entry["manager"] == manager
    })
}

/// Returns the fields that a manager owns through Apply. pleach always applies.
pub fn applied_by(metadata: &Value, manager: &str) -> FieldSet {
    apply_entry(metadata, manager).map_or_else(FieldSet::default, |entry| {
        FieldSet::parse(&entry["fieldsV1"])
    })
}

/// Returns the fields of all other managers, except status fields.
pub fn owned_by_others(metadata: &Value, ours: &str) -> FieldSet {
    collect(metadata, |entry| {
        entry["manager"] != ours && entry["subresource"] != "status"
    })
}

fn collect(metadata: &Value, selects: impl Fn(&Value) -> bool) -> FieldSet {
    entries(metadata)
        .iter()
        .filter(|entry| selects(entry))
        .fold(FieldSet::default(), |set, entry| {
            set.union(&FieldSet::parse(&entry["fieldsV1"]))
        })
}

/// Returns the distinct managers that own a field, in the server's order.
///
/// Includes managers of fields below it, of an atomic list or map around it, and of subresources
/// such as `scale`.
pub fn owners(metadata: &Value, path: &FieldPath) -> Vec<String> {
    managers_where(metadata, |fields| fields.touches(path))
}

/// Returns the managers other than `except` that own any of these fields. They show who overwrote a
/// field that we lost.
pub fn holders(metadata: &Value, fields: &FieldSet, except: &str) -> Vec<String> {
    let leaves = fields.leaves();
    let mut managers = managers_where(metadata, |theirs| {
        leaves.iter().any(|path| theirs.touches(path))
    });
    managers.retain(|manager| manager != except);
    managers
}

/// Returns the fields to compare: our fields in the live object, in the prediction, and the fields
/// of adopted managers.
pub fn at_stake(
    live: &Value,
    predicted: &Value,
    ours: &str,
    adopted: &dyn Fn(&str) -> bool,
) -> FieldSet {
    let from_adopted = |entry: &Value| {
        is_main_resource(entry) && (manager_of(entry) == ours || adopted(manager_of(entry)))
    };
    [live, predicted]
        .into_iter()
        .flat_map(|object| {
            let all = entries(&object["metadata"]).iter();
            all.map(move |entry| (entry, object))
        })
        .filter(|(entry, _)| from_adopted(entry))
        .fold(FieldSet::default(), |set, (entry, object)| {
            set.union(&fields_of(entry, object))
        })
}

/// Returns the fields that we stop applying, but that remain because other managers own them, with
/// these managers. `predicted` is the result of the dry run.
pub fn survivors(live: &Value, predicted: &Value, ours: &str) -> Vec<(FieldPath, Vec<String>)> {
    let given_up =
        applied_by(&live["metadata"], ours).difference(&applied_by(&predicted["metadata"], ours));
    given_up
        .present(predicted)
        .into_iter()
        .filter_map(|(path, _)| {
            let owners = owners(&predicted["metadata"], &path);
            // A field without an owner is a server default.
            (!owners.is_empty()).then_some((path, owners))
        })
        .collect()
}

fn managers_where(metadata: &Value, selects: impl Fn(&FieldSet) -> bool) -> Vec<String> {
    let mut managers: Vec<String> = Vec::new();
    for entry in entries(metadata) {
        let manager = manager_of(entry);
        if !managers.iter().any(|known| known == manager)
            && selects(&FieldSet::parse(&entry["fieldsV1"]))
        {
            managers.push(manager.to_owned());
        }
    }
    managers
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::json;

    use super::*;

    fn metadata() -> Value {
        json!({"managedFields": [
            {"manager": "pleach/a.b", "operation": "Apply", "apiVersion": "apps/v1",
             "fieldsV1": {"f:spec": {"f:paused": {}, "f:template": {}}}},
            {"manager": "pleach/a.b", "operation": "Update", "apiVersion": "apps/v1",
             "fieldsV1": {"f:spec": {"f:strategy": {}}}},
            {"manager": "kubectl", "operation": "Update", "apiVersion": "apps/v1", "subresource": "scale",
             "fieldsV1": {"f:spec": {"f:replicas": {}}}},
            {"manager": "kubectl-edit", "operation": "Update", "apiVersion": "apps/v1",
             "fieldsV1": {"f:spec": {"f:paused": {}}}},
            {"manager": "null", "fieldsV1": null},
        ]})
    }

    #[test]
    fn owners_of_a_field_are_named_once() {
        let spec = FieldPath::default().key("spec");
        let metadata = metadata();
        assert_eq!(
            owners(&metadata, &spec.key("paused")),
            ["pleach/a.b", "kubectl-edit"]
        );
        assert_eq!(owners(&metadata, &spec.key("replicas")), ["kubectl"]);
        assert_eq!(
            owners(&metadata, &spec.key("template").key("spec")),
            ["pleach/a.b"]
        );
        assert_eq!(
            owners(&metadata, &spec),
            ["pleach/a.b", "kubectl", "kubectl-edit"]
        );
        assert!(owners(&metadata, &spec.key("selector")).is_empty());
    }

    #[test]
    fn present_owners_of_lost_fields_are_found() {
        let lost = FieldSet::parse(&json!({"f:spec": {"f:replicas": {}, "f:paused": {}}}));
        assert_eq!(
            holders(&metadata(), &lost, "pleach/a.b"),
            ["kubectl", "kubectl-edit"]
        );
    }

    #[test]
    fn applied_fields_are_a_subset_of_owned_fields() {
        assert_eq!(
            applied_by(&metadata(), "pleach/a.b").to_json(),
            json!({"f:spec": {"f:paused": {}, "f:template": {}}})
        );
        assert_eq!(
            owned_by(&metadata(), "pleach/a.b").to_json(),
            json!({"f:spec": {"f:paused": {}, "f:strategy": {}, "f:template": {}}})
        );
        assert!(owned_by(&json!({}), "pleach/a.b").is_empty());
    }

    #[test]
    fn the_creator_is_found_by_times_and_common_fields() {
        let ours = json!({"f:data": {"f:a": {}}, "f:metadata": {"f:labels": {"f:x": {}}}});
        let check = |(time, manager, fields): (&str, &str, Value), ours_at: &str| {
            let metadata = json!({"creationTimestamp": "1", "managedFields": [
                {"manager": "pleach/a.b", "operation": "Apply", "time": ours_at, "fieldsV1": ours},
                {"manager": manager, "operation": "Update", "time": time, "fieldsV1": fields}]});
            made_by_others(&metadata, "pleach/a.b")
        };
        let same = || json!({"f:data": {".": {}, "f:a": {}, "f:c": {}}});
        assert!(check(("1", "kubectl-create", same()), "2"));
        // The other entry is newer than the object, or ours is as old as the object.
        assert!(!check(("2", "kubectl-edit", same()), "3"));
        assert!(!check(("1", "kubectl-edit", same()), "1"));
        // The other manager only added fields, or belongs to pleach.
        let other = json!({"f:metadata": {"f:labels": {".": {}, "f:y": {}}}});
        assert!(!check(("1", "kube-controller-manager", other), "2"));
        assert!(!check(("1", "pleach-copy", same()), "2"));
        assert!(!made_by_others(&json!({}), "pleach/a.b"));
    }

    #[rstest]
    #[case::the_status(&[("", "01"), ("status", "02")], true)]
    #[case::the_object(&[("", "03"), ("status", "02")], false)]
    #[case::another_subresource(&[("", "01"), ("scale", "03"), ("status", "02")], false)]
    #[case::one_status_of_two(&[("status", "01"), ("", "02"), ("status", "03")], true)]
    #[case::the_same_second(&[("", "02"), ("status", "02")], true)]
    #[case::a_status_without_time(&[("", "02"), ("status", "")], true)]
    #[case::an_object_without_time(&[("", ""), ("status", "02")], true)]
    #[case::no_status(&[("", "02")], false)]
    #[case::nothing(&[], false)]
    fn the_last_writer_is_found_by_times(#[case] entries: &[(&str, &str)], #[case] expected: bool) {
        let entry = |(subresource, second): &(&str, &str)| {
            let time = (!second.is_empty()).then(|| format!("2026-09-01T10:00:{second}Z"));
            json!({"manager": "m", "subresource": subresource, "time": time})
        };
        let entries: Vec<Value> = entries.iter().map(entry).collect();
        let metadata = json!({ "managedFields": entries });
        assert_eq!(status_came_last(&metadata), expected);
    }

    #[test]
    fn fields_that_survive_after_we_give_them_up_are_found() {
        let entry = |manager: &str, fields: Value| json!({"manager": manager, "operation": "Apply", "fieldsV1": fields});
        let live = json!({"metadata": {"managedFields": [
            entry("ours", json!({"f:data": {"f:a": {}, "f:b": {}, "f:c": {}, "f:d": {}}}))]}});
        let predicted = json!({"data": {"a": "1", "b": "1", "d": "the default"}, "metadata": {"managedFields": [
            entry("ours", json!({"f:data": {"f:a": {}}})),
            entry("theirs", json!({"f:data": {"f:b": {}}}))]}});
        let data = FieldPath::default().key("data");
        assert_eq!(
            survivors(&live, &predicted, "ours"),
            [(data.key("b"), vec!["theirs".to_owned()])]
        );
        let stake = at_stake(&live, &predicted, "ours", &|manager| manager == "theirs");
        assert_eq!(stake.leaves().len(), 4);
    }

    /// The server records applied `stringData` under that name, but stores it in `data`.
    #[test]
    fn string_data_of_a_secret_counts_as_data() {
        let live = |kind: &str| {
            json!({"apiVersion": "v1", "kind": kind, "metadata": {"resourceVersion": "1", "managedFields": [
                {"manager": "helm", "operation": "Apply", "apiVersion": "v1",
                 "fieldsV1": {"f:stringData": {"f:extra": {}, "f:pw": {}}, "f:type": {}}}]},
                "data": {"pw": "YQ==", "extra": "Yg=="}})
        };
        let adopted = |manager: &str| manager == "helm";
        let secret = live("Secret");
        let nothing = FieldSet::default();
        let transfer = Transfer {
            ours: "pleach/a.b",
            api_version: "v1",
            from: &adopted,
            reclaim: &nothing,
            give_up: &[],
            strip: &[],
        };
        let merged = json!({"f:data": {"f:extra": {}, "f:pw": {}}, "f:type": {}});
        let of = |object: &Value| transfer.of(object).unwrap().fields.to_json();
        assert_eq!(of(&secret), merged);
        assert_eq!(of(&live("Other"))["f:data"], Value::Null);

        let mut predicted = secret.clone();
        let entries = predicted["metadata"]["managedFields"].as_array_mut();
        entries.unwrap().push(
            json!({"manager": "pleach/a.b", "operation": "Apply", "apiVersion": "v1",
            "fieldsV1": {"f:data": {"f:pw": {}}}}),
        );
        let rest = after_adoption(&predicted, "pleach/a.b", &adopted, &[]);
        assert_eq!(rest["data"], json!({"pw": "YQ=="}));
        let stake = at_stake(&secret, &predicted, "pleach/a.b", &adopted);
        assert_eq!(stake.to_json(), merged);
    }
}
