//! Fields that are left to others.
//!
//! A field that a rule of the release names, or that an autoscaler writes, is
//! sent when its object is created and then given up: its path is taken out of
//! our entry of `managedFields` first, and then it is left out of what is
//! applied. Left out alone it would be deleted. What is recorded as desired is
//! always the object without it, so that nothing that happens to it is drift.

mod autoscaler;
mod pattern;
mod rules;

pub use autoscaler::{SCALED, scale_target, wants_replicas};
pub use pattern::{FieldPattern, PatternError};
pub use rules::{IgnoreRule, resolve};

use std::collections::BTreeMap;

use serde_json::Value;

use crate::diff::ownership::FieldSet;
use crate::object::{Manifest, ObjectId};
use crate::observe::DesiredDigest;

/// What is ignored of the objects of a release.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Ignored {
    objects: BTreeMap<ObjectId, IgnoredFields>,
}

/// What is ignored of one object.
#[derive(Debug, Clone, PartialEq)]
pub struct IgnoredFields {
    /// The fields.
    pub patterns: Vec<FieldPattern>,
    /// What is sent once the object exists: the manifest without them.
    pub lean: Manifest,
    /// The digest of what is sent when it is created.
    pub initial: DesiredDigest,
}

impl Ignored {
    /// Ignores fields of a manifest beside those that are ignored already.
    /// Nothing happens where the manifest has none of them.
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

    /// What is ignored of an object.
    pub fn of(&self, id: &ObjectId) -> &[FieldPattern] {
        self.objects
            .get(id)
            .map_or(&[], |ignored| ignored.patterns.as_slice())
    }

    /// What is sent of an object that exists.
    pub fn lean<'a>(&'a self, manifest: &'a Manifest) -> &'a Manifest {
        self.objects
            .get(manifest.id())
            .map_or(manifest, |ignored| &ignored.lean)
    }

    /// What is known of every object of which something is ignored.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = (&ObjectId, &mut IgnoredFields)> {
        self.objects.iter_mut()
    }

    /// The digest of what is sent when an object is created; none where that is
    /// what is sent afterwards too.
    pub fn initial(&self, id: &ObjectId) -> Option<DesiredDigest> {
        self.objects.get(id).map(|ignored| ignored.initial)
    }

    /// What to ask the server about an object that exists: the manifest, with
    /// what we still own of the ignored fields as it is in the cluster. Left
    /// out, the answer would say that they go.
    pub fn question(&self, manifest: &Manifest, live: &Value, ours: &FieldSet) -> Option<Value> {
        let patterns = self.of(manifest.id());
        if patterns.is_empty() {
            return None;
        }
        let mut value = manifest.value();
        for pattern in patterns {
            pattern.settle(&mut value, live, ours);
        }
        Some(value)
    }
}

/// The manifest without some fields; none where it has none of them.
fn lean(manifest: &Manifest, patterns: &[FieldPattern]) -> Option<Manifest> {
    let mut value = manifest.value();
    let mut removed = false;
    for pattern in patterns {
        removed |= pattern.remove(&mut value);
    }
    removed.then(|| manifest.with_content(&value))
}

/// The set without the fields that the patterns name.
#[must_use]
pub fn give_up(patterns: &[FieldPattern], fields: &FieldSet, object: &Value) -> FieldSet {
    patterns
        .iter()
        .fold(fields.clone(), |set, pattern| pattern.give_up(&set, object))
}

/// The fields that the patterns name, as an entry of ours would name them.
pub(crate) fn named(patterns: &[FieldPattern], ours: &FieldSet, manifest: &Value) -> FieldSet {
    patterns.iter().fold(FieldSet::default(), |set, pattern| {
        set.union(&pattern.named(ours, manifest))
    })
}

#[cfg(test)]
mod tests;
