//! Restarts of pods whose configuration changes: the pod template carries a
//! digest of the ConfigMaps and Secrets it reads.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value, json};

use super::Desired;
use pleach_model::object::{Digest, DigestKey, Manifest, ObjectId, annotations, canonical_json};
use pleach_model::order::configuration;

impl Desired {
    /// Annotates pod templates with a digest of the configuration they read
    /// from this release, if enabled. Returns the workloads that need `key` for
    /// the digest and are left unchanged without it: a plain digest of a secret
    /// can be guessed.
    pub(super) fn stamp_pods(&mut self, key: Option<&DigestKey>) -> BTreeSet<ObjectId> {
        let mut unkeyed = BTreeSet::new();
        if !self.terms.restart_on_config_change {
            return unkeyed;
        }
        let mut stamped = Vec::new();
        let sources: BTreeMap<&ObjectId, &Manifest> = self
            .manifests
            .iter()
            .filter(|manifest| manifest.id().is("", "ConfigMap") || manifest.id().is("", "Secret"))
            .map(|manifest| (manifest.id(), self.ignored.lean(manifest)))
            .collect();
        for (index, manifest) in self.manifests.iter().enumerate() {
            let mut value = manifest.value();
            let read: Vec<&Manifest> = configuration(manifest.id(), &value)
                .iter()
                .filter_map(|id| sources.get(id).copied())
                .collect();
            if read.is_empty() {
                continue;
            }
            let Some(digest) = digest(&read, key) else {
                unkeyed.insert(manifest.id().clone());
                continue;
            };
            if annotate(&mut value, &digest).is_some() {
                stamped.push((index, manifest.with_content(&value)));
            }
        }
        for (index, manifest) in stamped {
            if !self.ignored.of(manifest.id()).is_empty() {
                self.ignored.add(&manifest, &[]);
            }
            if let Some(place) = self.manifests.get_mut(index) {
                *place = manifest;
            }
        }
        unkeyed
    }
}

/// Computes a digest of the data of ConfigMaps and Secrets. Labels do not
/// count, so a new label restarts nothing. `None` if a Secret is among them and
/// there is no key.
fn digest(read: &[&Manifest], key: Option<&DigestKey>) -> Option<Digest> {
    let contents: Vec<Value> = read
        .iter()
        .map(|manifest| {
            let value = manifest.value();
            json!([
                manifest.id().to_string(),
                value["data"],
                value["binaryData"]
            ])
        })
        .collect();
    let bytes = canonical_json(&Value::Array(contents));
    if read.iter().any(|manifest| manifest.is_secret()) {
        key.map(|key| Digest::keyed(key, &bytes))
    } else {
        Some(Digest::of(&bytes))
    }
}

/// Annotates a pod template. `None` if the object has no valid template; the
/// server then rejects the object itself.
fn annotate(value: &mut Value, digest: &Digest) -> Option<()> {
    let template = value
        .get_mut("spec")?
        .get_mut("template")?
        .as_object_mut()?;
    let notes = member(member(template, "metadata")?, "annotations")?;
    notes.insert(
        annotations::CONFIGURATION.to_owned(),
        json!(digest.to_string()),
    );
    Some(())
}

/// Returns a member that is an object, and creates it if missing.
fn member<'a>(
    parent: &'a mut Map<String, Value>,
    name: &str,
) -> Option<&'a mut Map<String, Value>> {
    let value = parent.entry(name).or_insert(Value::Null);
    if value.is_null() {
        *value = json!({});
    }
    value.as_object_mut()
}
