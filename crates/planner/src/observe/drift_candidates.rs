//! Selection of objects to read in full, from metadata alone.
//!
//! An unchanged object costs no request beyond the metadata LIST that contains it.

use std::collections::BTreeMap;

use serde::Deserialize;

use pleach_fields::ignore::Ignored;
use pleach_model::object::{DesiredDigest, Manifest, ObjectId, SortedLookup, annotations};
use pleach_model::text_map::TextMap;
use pleach_state::inventory::{Entry, EntryState, Inventory};
use pleach_state::live::LiveMeta;

/// Reads needed for a desired object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reading {
    /// None: metadata proves that the object is unchanged and as desired.
    Nothing,
    /// A dry run: the object does not seem to exist.
    Predict,
    /// The object in full, and a dry run.
    Full,
}

/// Input of [`triage`].
#[derive(Debug, Clone, Copy)]
pub struct Known<'a> {
    /// Rendered objects.
    pub manifests: &'a [Manifest],
    /// Values of annotation `pleach.dev/desired`, by id.
    pub digests: &'a BTreeMap<ObjectId, DesiredDigest>,
    /// Fields that ignore rules leave to other managers.
    pub ignored: &'a Ignored,
    /// Members of the release.
    pub inventory: &'a Inventory,
    /// Metadata from LISTs and reads by name.
    pub meta: &'a BTreeMap<ObjectId, LiveMeta>,
    /// Whether to read everything again (`--verify`).
    pub verify: bool,
}

/// Decides which reads each desired object needs, in the order of the manifests.
pub fn triage(known: Known<'_>) -> Vec<Reading> {
    let mut meta = SortedLookup::new(known.meta);
    let mut entries = SortedLookup::new(&known.inventory.entries);
    let mut digests = SortedLookup::new(known.digests);
    known
        .manifests
        .iter()
        .map(|manifest| {
            let id = manifest.id();
            match (meta.get(id), entries.get(id)) {
                (None, _) => Reading::Predict,
                (Some(live), Some(entry))
                    if !known.verify
                        && is_unchanged(
                            known.ignored.lean(manifest),
                            digests.get(id),
                            entry,
                            live,
                        ) =>
                {
                    Reading::Nothing
                }
                (Some(_), _) => Reading::Full,
            }
        })
        .collect()
}

/// Returns whether metadata proves that the object is unchanged since the last apply, and as
/// desired.
///
/// The fingerprint contains paths but no values, so it does not show a reordered associative list.
/// Proof is therefore one of two facts. The resourceVersion is unchanged. Or the generation,
/// pleach's fields, labels and annotations are unchanged. Without a generation, a changed
/// resourceVersion requires a read.
pub fn is_unchanged(
    manifest: &Manifest,
    digest: Option<&DesiredDigest>,
    entry: &Entry,
    live: &LiveMeta,
) -> bool {
    let Some(DesiredDigest::Known(digest)) = digest else {
        return false;
    };
    if entry.state != EntryState::Applied
        || entry.desired.as_ref() != Some(digest)
        || entry.uid.as_deref() != Some(&live.uid)
        || live.deleting
        // Without `managedFields`, metadata proves nothing.
        || !live.has_managed_fields
    {
        return false;
    }
    if entry.resource_version.as_deref() == Some(&live.resource_version) {
        return true;
    }
    live.generation.is_some()
        && live.generation == entry.generation
        && live.fingerprint.is_some()
        && live.fingerprint == entry.fingerprint
        && live.annotations.get(annotations::DESIRED) == Some(&digest.to_string())
        && has_our_metadata(manifest, live)
}

/// The part of a manifest that [`has_our_metadata`] compares. Parsing skips the rest.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Labeled {
    metadata: LabeledMetadata,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct LabeledMetadata {
    labels: Option<BTreeMap<String, String>>,
    annotations: Option<BTreeMap<String, String>>,
}

/// Returns whether the live object has the manifest's labels and annotations.
fn has_our_metadata(manifest: &Manifest, live: &LiveMeta) -> bool {
    let Ok(Labeled { metadata }) = serde_json::from_slice(manifest.json()) else {
        return false;
    };
    let holds = |expected: Option<BTreeMap<String, String>>, on: &TextMap| {
        let mut expected = expected.into_iter().flatten();
        expected.all(|(name, value)| on.get(&name) == Some(&value))
    };
    holds(metadata.labels, &live.labels) && holds(metadata.annotations, &live.annotations)
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::json;

    use super::*;
    use pleach_model::object::{ApiVersion, Digest, Origin};

    fn manifest() -> Manifest {
        let id = ObjectId::new("apps", "Deployment", Some("web"), "api");
        let value = json!({"metadata": {"labels": {"app": "api"}}});
        Manifest::new(
            id,
            ApiVersion::parse("apps/v1"),
            Origin::new("a.yaml", 1),
            &value,
            false,
        )
    }

    fn applied() -> (Entry, LiveMeta) {
        let digest = manifest().digest();
        let fingerprint = Some(Digest::of(b"entry"));
        let entry = Entry {
            state: EntryState::Applied,
            uid: Some("u".to_owned()),
            resource_version: Some("7".to_owned()),
            generation: Some(2),
            desired: Some(digest),
            fingerprint,
            ..Entry::default()
        };
        let live = LiveMeta {
            uid: "u".to_owned(),
            resource_version: "9".to_owned(),
            generation: Some(2),
            fingerprint,
            has_managed_fields: true,
            labels: [("app".to_owned(), "api".to_owned())].into_iter().collect(),
            annotations: [(annotations::DESIRED.to_owned(), digest.to_string())]
                .into_iter()
                .collect(),
            ..LiveMeta::default()
        };
        (entry, live)
    }

    #[rstest]
    #[case::a_status_write_of_others(|_: &mut Entry, _: &mut LiveMeta| {}, true)]
    #[case::no_write(|_: &mut Entry, l: &mut LiveMeta| { l.resource_version = "7".into(); l.fingerprint = None }, true)]
    #[case::another_incarnation(|_: &mut Entry, l: &mut LiveMeta| l.uid = "v".into(), false)]
    #[case::being_deleted(|_: &mut Entry, l: &mut LiveMeta| { l.deleting = true; l.resource_version = "7".into() }, false)]
    #[case::spec_was_written(|_: &mut Entry, l: &mut LiveMeta| l.generation = Some(3), false)]
    #[case::kind_without_generation(|e: &mut Entry, l: &mut LiveMeta| { e.generation = None; l.generation = None }, false)]
    #[case::our_field_was_taken(|_: &mut Entry, l: &mut LiveMeta| l.fingerprint = Some(Digest::of(b"other")), false)]
    #[case::managed_fields_wiped(|_: &mut Entry, l: &mut LiveMeta| l.fingerprint = None, false)]
    #[case::our_label_was_changed(|_: &mut Entry, l: &mut LiveMeta| { l.labels.insert("app".into(), "x".into()); }, false)]
    #[case::our_label_was_removed(|_: &mut Entry, l: &mut LiveMeta| l.labels.clear(), false)]
    #[case::our_annotation_was_removed(|_: &mut Entry, l: &mut LiveMeta| l.annotations.clear(), false)]
    #[case::no_record_of_owners(|_: &mut Entry, l: &mut LiveMeta| { l.resource_version = "7".into(); l.has_managed_fields = false }, false)]
    #[case::git_changed(|e: &mut Entry, _: &mut LiveMeta| e.desired = Some(Digest::of(b"previous")), false)]
    #[case::never_confirmed(|e: &mut Entry, _: &mut LiveMeta| e.state = EntryState::Intended, false)]
    fn metadata_settles(#[case] change: fn(&mut Entry, &mut LiveMeta), #[case] unchanged: bool) {
        let (mut entry, mut live) = applied();
        change(&mut entry, &mut live);
        let manifest = manifest();
        let digest = DesiredDigest::Known(manifest.digest());
        assert_eq!(
            is_unchanged(&manifest, Some(&digest), &entry, &live),
            unchanged
        );
        assert!(!is_unchanged(
            &manifest,
            Some(&DesiredDigest::Unkeyed),
            &entry,
            &live
        ));
    }
}
