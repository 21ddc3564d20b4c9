//! Fields that are left to other managers.
//!
//! A field is ignored if a rule of the release names it or an autoscaler writes it. It is sent when
//! its object is created. Later, its path is first removed from our entry in `managedFields`, and
//! then the field is omitted from applies. Only omitting it would delete the field. The recorded
//! desired digest never includes ignored fields, so their changes are not drift.

mod autoscaler;
mod pattern;
mod rules;

pub use autoscaler::{SCALED, scale_target, sets_replicas};
pub use pattern::{FieldPattern, PatternError};
pub use rules::{IgnoreRule, resolve};

use std::collections::BTreeMap;

use serde_json::Value;

use crate::diff::ownership::FieldSet;
use pleach_model::object::{DesiredDigest, Manifest, ObjectId};

/// Ignored fields of all objects of a release.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Ignored {
    objects: BTreeMap<ObjectId, IgnoredFields>,
}

/// Ignored fields of one object.
#[derive(Debug, Clone, PartialEq)]
pub struct IgnoredFields {
    /// Patterns of the fields.
    pub patterns: Vec<FieldPattern>,
    /// The manifest without the ignored fields, which is sent once the object exists.
    pub lean: Manifest,
    /// Digest of the full manifest, which is sent when the object is created.
    pub initial: DesiredDigest,
}

impl Ignored {
    /// Adds ignored fields of a manifest. Does nothing if the manifest contains none of them.
    pub fn add(&mut self, manifest: &Manifest, patterns: &[FieldPattern]) {
        let mut all = self
            .objects
            .get(manifest.id())
            .map(|known| known.patterns.clone())
            .unwrap_or_default();
        for pattern in patterns {
            if !all.contains(pattern) {
                all.push(pattern.clone());
            }
        }
        if let Some(lean) = lean(manifest, &all) {
            let fields = IgnoredFields {
                patterns: all,
                lean,
                initial: DesiredDigest::Unkeyed,
            };
            self.objects.insert(manifest.id().clone(), fields);
        }
    }

    /// Returns the ignored fields of an object.
    pub fn of(&self, id: &ObjectId) -> &[FieldPattern] {
        self.objects
            .get(id)
            .map_or(&[], |ignored| ignored.patterns.as_slice())
    }

    /// Returns the manifest to send for an object that exists.
    pub fn lean<'a>(&'a self, manifest: &'a Manifest) -> &'a Manifest {
        self.objects
            .get(manifest.id())
            .map_or(manifest, |ignored| &ignored.lean)
    }

    /// Iterates over all objects with ignored fields.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = (&ObjectId, &mut IgnoredFields)> {
        self.objects.iter_mut()
    }

    /// Returns the digest of the manifest that creates an object. `None` if the object has no
    /// ignored fields.
    pub fn initial(&self, id: &ObjectId) -> Option<DesiredDigest> {
        self.objects.get(id).map(|ignored| ignored.initial)
    }

    /// Returns the body of a dry run for an object that exists.
    ///
    /// Ignored fields that we still own have their live values. If they were omitted, the result
    /// would show them as removed. Returns `None` if the object has no ignored fields.
    pub fn question(&self, manifest: &Manifest, live: &Value, ours: &FieldSet) -> Option<Value> {
        let patterns = self.of(manifest.id());
        if patterns.is_empty() {
            return None;
        }
        let mut value = manifest.value();
        for pattern in patterns {
            pattern.keep_live(&mut value, live, ours);
        }
        Some(value)
    }
}

/// Returns the manifest without the fields. `None` if it contains none of them.
fn lean(manifest: &Manifest, patterns: &[FieldPattern]) -> Option<Manifest> {
    let mut value = manifest.value();
    let mut removed = false;
    for pattern in patterns {
        removed |= pattern.remove(&mut value);
    }
    removed.then(|| manifest.with_content(&value))
}

/// Returns the set without the fields that match the patterns.
#[must_use]
pub fn give_up(patterns: &[FieldPattern], fields: &FieldSet, object: &Value) -> FieldSet {
    patterns
        .iter()
        .fold(fields.clone(), |set, pattern| pattern.give_up(&set, object))
}

/// Returns the matching fields as our managedFields entry would name them.
pub fn named(patterns: &[FieldPattern], ours: &FieldSet, manifest: &Value) -> FieldSet {
    patterns.iter().fold(FieldSet::default(), |set, pattern| {
        set.union(&pattern.named(ours, manifest))
    })
}

#[cfg(test)]
mod tests;
