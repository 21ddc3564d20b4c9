//! Check of existing custom resources before their CRD changes.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::schema::{Rules, may_take_away, misfits, rules_within};
use super::{
    converts, has_version, is_served, retained, served, storage, stored, unconverted, version,
    versions,
};
use pleach_fields::diff::ownership::entries;
use pleach_formats::sequence::MigrationRule;
use pleach_model::object::{ApiVersion, GroupKind, Gvk, ObjectId};

/// Number of objects that a report names.
const NAMED: usize = 3;

/// Facts to collect from the custom resources of a CRD.
#[derive(Debug, Clone)]
pub struct Survey {
    /// The kind, at the version that the objects are read in.
    pub gvk: Gvk,
    /// Plural name of the resource.
    pub plural: String,
    /// Whether the resource is namespaced.
    pub namespaced: bool,
    /// Removed versions, as `apiVersion` texts.
    gone: Vec<String>,
    /// Pairs of old and new schema to compare.
    schemas: Vec<(Value, Value)>,
    /// CEL rules of the new schemas.
    rules: Rules,
}

/// Facts from one custom resource.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sighting {
    /// The object.
    pub id: ObjectId,
    /// Removed versions that its `managedFields` name.
    pub recorded: Vec<String>,
    /// Fields that are dropped or become invalid.
    pub misfits: Vec<Misfit>,
}

/// A field of custom resources that is dropped or becomes invalid.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Misfit {
    /// Path of the field, without list positions.
    pub field: String,
    /// The violated constraint. `None` for a dropped field.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
}

impl fmt::Display for Misfit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.why {
            None => write!(f, "{} is dropped", self.field),
            Some(why) if self.field.is_empty() => f.write_str(why),
            Some(why) => write!(f, "{}: {why}", self.field),
        }
    }
}

/// The custom resources of a CRD that is about to change.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Instances {
    /// All objects were read.
    Known {
        /// All objects.
        all: Named,
        /// Objects whose `managedFields` name a removed version, by version.
        recorded: BTreeMap<String, Named>,
        /// Objects with dropped or invalid fields, by field.
        misfits: Vec<(Misfit, Named)>,
    },
    /// Reason why not all objects could be read.
    Unknown(String),
}

/// Number of objects, and the first of them.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Named {
    /// Total number.
    pub count: usize,
    /// The first objects, sorted.
    pub first: Vec<ObjectId>,
}

impl Named {
    fn add(&mut self, id: &ObjectId) {
        self.count += 1;
        let at = self.first.partition_point(|known| known < id);
        if at < NAMED {
            self.first.insert(at, id.clone());
            self.first.truncate(NAMED);
        }
    }
}

impl fmt::Display for Named {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<String> = self.first.iter().map(ToString::to_string).collect();
        f.write_str(&names.join(", "))?;
        match self.count - self.first.len() {
            0 => Ok(()),
            more => write!(f, " and {more} more"),
        }
    }
}

impl Instances {
    /// Aggregates the facts of all objects.
    pub fn of(sightings: impl IntoIterator<Item = Sighting>) -> Self {
        let mut all = Named::default();
        let mut recorded: BTreeMap<String, Named> = BTreeMap::new();
        let mut misfits: BTreeMap<Misfit, Named> = BTreeMap::new();
        for mut sighting in sightings {
            all.add(&sighting.id);
            for version in sighting.recorded {
                recorded.entry(version).or_default().add(&sighting.id);
            }
            sighting.misfits.sort();
            sighting.misfits.dedup();
            for misfit in sighting.misfits {
                misfits.entry(misfit).or_default().add(&sighting.id);
            }
        }
        Self::Known {
            all,
            recorded,
            misfits: misfits.into_iter().collect(),
        }
    }
}

impl Survey {
    /// Determines the facts to collect before a CRD changes. `None` if no data can be lost.
    pub fn of(desired: &Value, live: &Value, rules: &[MigrationRule]) -> Option<Self> {
        let retained = retained(desired, live, rules);
        let is_dropped = |name: &str| {
            !has_version(desired, name) && !retained.iter().any(|rule| rule.from == name)
        };
        let group = live["spec"]["group"].as_str()?;
        let at = |name: &str| ApiVersion {
            group: group.to_owned(),
            version: name.to_owned(),
        };
        let gone: Vec<String> = versions(live)
            .filter(|name| is_dropped(name))
            .map(|name| at(name).to_string())
            .collect();
        let read = storage(live)
            .filter(|name| is_served(live, name))
            .or_else(|| served(live).next())?;
        let schemas = schemas(desired, live, read);
        let is_other = ["scope", "group"]
            .iter()
            .any(|field| desired["spec"][field] != live["spec"][field])
            || desired["spec"]["names"]["kind"] != live["spec"]["names"]["kind"];
        let is_stored = stored(live).into_iter().any(is_dropped);
        let is_unconverted =
            converts(live) && !converts(desired) && !unconverted(desired, live).is_empty();
        if gone.is_empty() && schemas.is_empty() && !is_other && !is_stored && !is_unconverted {
            return None;
        }
        let names = &live["spec"]["names"];
        Some(Self {
            gvk: Gvk {
                api_version: at(read),
                kind: names["kind"].as_str()?.to_owned(),
            },
            plural: names["plural"].as_str()?.to_owned(),
            namespaced: live["spec"]["scope"] == "Namespaced",
            gone,
            rules: schemas
                .iter()
                .flat_map(|(_, new)| rules_within(new))
                .collect(),
            schemas,
        })
    }

    /// Returns whether the objects have to be read in full. Otherwise metadata is enough.
    pub fn reads_bodies(&self) -> bool {
        !self.schemas.is_empty()
    }

    /// Collects the facts of one object.
    pub fn inspect(&self, object: &Value) -> Sighting {
        let metadata = &object["metadata"];
        let kind: GroupKind = self.gvk.group_kind();
        let mut recorded: Vec<String> = entries(metadata)
            .iter()
            .filter_map(|entry| entry["apiVersion"].as_str())
            .filter(|version| self.gone.iter().any(|gone| gone == version))
            .map(|version| ApiVersion::parse(version).version)
            .collect();
        recorded.sort();
        recorded.dedup();
        Sighting {
            id: ObjectId::new(
                &kind.group,
                &kind.kind,
                metadata["namespace"].as_str(),
                metadata["name"].as_str().unwrap_or_default(),
            ),
            recorded,
            misfits: self
                .schemas
                .iter()
                .flat_map(|(old, new)| misfits(object, old, new, &self.rules))
                .collect(),
        }
    }
}

/// Returns the pairs of schemas to compare: the live schema at the version that is read, and its
/// successor. Without a conversion webhook all versions share their fields, so the new storage
/// version is compared, too.
fn schemas(desired: &Value, live: &Value, read: &str) -> Vec<(Value, Value)> {
    let schema = |crd: &Value, name: &str| {
        version(crd, name).map(|version| version["schema"]["openAPIV3Schema"].clone())
    };
    let Some(old) = schema(live, read) else {
        return Vec::new();
    };
    let stored = storage(desired).filter(|_| !converts(desired));
    let mut names = vec![read];
    names.extend(stored.filter(|name| *name != read));
    names
        .into_iter()
        .filter_map(|name| schema(desired, name))
        .filter(|new| may_take_away(&old, new))
        .map(|new| (old.clone(), new))
        .collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::crd::with_conversion;
    use pleach_model::object::Origin;

    fn crd(versions: &[(&str, &[&str])]) -> Value {
        let versions: Vec<Value> = versions
            .iter()
            .enumerate()
            .map(|(index, (name, fields))| {
                let fields: BTreeMap<&str, Value> =
                    fields.iter().map(|field| (*field, json!({"type": "string"}))).collect();
                json!({"name": name, "served": true, "storage": index == 0, "schema": {"openAPIV3Schema":
                    {"type": "object", "properties": {"spec": {"type": "object", "properties": fields}}}}})
            })
            .collect();
        json!({"metadata": {"name": "things.example.org"}, "spec": {"group": "example.org", "scope": "Namespaced",
            "names": {"kind": "Thing", "plural": "things"}, "versions": versions}})
    }

    fn thing(name: &str, versions: &[&str], spec: &Value) -> Value {
        let entries: Vec<Value> = versions
            .iter()
            .map(|version| json!({"manager": "m", "apiVersion": format!("example.org/{version}"), "fieldsV1": {}}))
            .collect();
        json!({"metadata": {"name": name, "namespace": "web", "managedFields": entries}, "spec": spec})
    }

    fn named(named: &Named) -> String {
        format!("{}: {named}", named.count)
    }

    #[test]
    fn objects_stored_in_a_removed_version_are_found() {
        let live = crd(&[("v1", &["a"]), ("v1beta1", &["a"])]);
        let desired = crd(&[("v1", &["a"])]);
        let survey = Survey::of(&desired, &live, &[]).unwrap();
        assert_eq!(survey.gvk.api_version.to_string(), "example.org/v1");
        assert!(!survey.reads_bodies());
        let objects = ["e", "b", "d", "a", "c"]
            .map(|name| survey.inspect(&thing(name, &["v1", "v1beta1", "v1beta1"], &json!({}))));
        let new = survey.inspect(&thing("n", &["v1"], &json!({})));
        let Instances::Known {
            all,
            recorded,
            misfits,
        } = Instances::of(objects.into_iter().chain([new]))
        else {
            panic!()
        };
        assert_eq!(all.count, 6);
        assert_eq!(
            named(&recorded["v1beta1"]),
            "5: Thing.example.org/web/a, Thing.example.org/web/b, Thing.example.org/web/c and 2 more"
        );
        assert_eq!(misfits, []);
    }

    #[test]
    fn a_migrated_version_is_not_searched() {
        let live = crd(&[("v1", &["a"]), ("v1beta1", &["a"])]);
        let desired = crd(&[("v1", &["a"])]);
        let rule = MigrationRule {
            crd: "things.example.org".to_owned(),
            from: "v1beta1".to_owned(),
            to: "v1".to_owned(),
            origin: Origin::new("bundle.yaml", 1),
        };
        assert!(Survey::of(&desired, &live, &[rule]).is_none());
        assert!(Survey::of(&live, &live, &[]).is_none());
    }

    #[test]
    fn fields_are_compared_with_the_new_storage_schema() {
        let live = crd(&[("v1beta1", &["a", "b"])]);
        let mut desired = crd(&[("v1", &["a"]), ("v1beta1", &["a", "b"])]);
        let survey = Survey::of(&desired, &live, &[]).unwrap();
        assert!(survey.reads_bodies());
        let seen = survey.inspect(&thing("t", &["v1beta1"], &json!({"a": "1", "b": "2"})));
        assert_eq!(
            seen.misfits
                .iter()
                .map(ToString::to_string)
                .collect::<Vec<_>>(),
            ["spec.b is dropped"]
        );
        assert_eq!(seen.recorded, [""; 0]);
        // The webhook decides about the field.
        desired["spec"]["conversion"] = json!({"strategy": "Webhook"});
        assert!(Survey::of(&desired, &live, &[]).is_none());
    }

    #[test]
    fn a_conversion_of_another_manager_counts() {
        let live = crd(&[("v1beta1", &["a", "b"])]);
        let mut desired = crd(&[("v1", &["a"]), ("v1beta1", &["a", "b"])]);
        let mut predicted = desired.clone();
        predicted["spec"]["conversion"] = json!({"strategy": "Webhook"});
        let surveyed =
            |desired: &Value| Survey::of(&with_conversion(desired.clone(), &predicted), &live, &[]);
        assert!(surveyed(&desired).is_none());
        desired["spec"]["conversion"] = json!({"strategy": "None"});
        assert!(surveyed(&desired).is_some());
    }

    #[test]
    fn objects_are_counted_that_only_a_webhook_can_read() {
        let mut live = crd(&[("v1", &["a"]), ("v1beta1", &["b"])]);
        let desired = live.clone();
        live["spec"]["conversion"] = json!({"strategy": "Webhook"});
        live["status"]["storedVersions"] = json!(["v1beta1", "v1"]);
        assert!(Survey::of(&desired, &live, &[]).is_some());
        assert!(Survey::of(&live, &live, &[]).is_none());
        live["status"]["storedVersions"] = json!(["v1"]);
        assert!(Survey::of(&desired, &live, &[]).is_none());
    }

    #[test]
    fn a_changed_kind_or_scope_is_surveyed() {
        let live = crd(&[("v1", &["a"])]);
        for (pointer, value) in [("/spec/scope", "Cluster"), ("/spec/names/kind", "Other")] {
            let mut desired = live.clone();
            *desired.pointer_mut(pointer).unwrap() = json!(value);
            assert!(Survey::of(&desired, &live, &[]).is_some(), "{pointer}");
        }
    }
}
