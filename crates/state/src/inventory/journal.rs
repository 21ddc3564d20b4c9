//! Journal of temporary changes. An entry is written before the change is made.
//!
//! A later run never replays the journal. It observes the cluster, reads the journal and plans
//! again. Active changes that are still desired stay. Other changes are reverted. Entries of
//! deleted objects are dropped.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::Attempt;
use crate::overlay::{Journaled, OverlayId};
use pleach_model::object::{Digest, ObjectId, ReleaseName, ServiceRef};

/// Version of the journal's format.
pub const JOURNAL_FORMAT: u32 = 2;

/// The oldest format whose readers understand our journals.
const OLDEST_READER: u32 = 1;

/// Maximum size of a journal in bytes. It is stored in one object.
pub const JOURNAL_LIMIT: usize = 512 * 1024;

/// Unfinished work of a previous run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Journal {
    /// Version of this format.
    pub format: u32,
    /// The oldest format whose readers are allowed to write it.
    pub oldest_reader: u32,
    /// The attempt in progress.
    #[serde(default)]
    pub attempt: Option<Attempt>,
    /// Digest of the effects of the attempt's plan.
    #[serde(default)]
    pub plan: Option<Digest>,
    /// Temporary changes, recorded from before they are made until they are reverted.
    #[serde(default)]
    pub overlays: BTreeMap<OverlayId, Journaled>,
    /// Run-once Jobs, by object.
    #[serde(default)]
    pub runs: BTreeMap<ObjectId, Run>,
    /// Services whose pods had registered themselves, and whose registrations were removed for a
    /// move that is not finished.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub unregistered: BTreeSet<ServiceRef>,
}

/// Record of a run-once Job.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Run {
    /// Key of the run: digest of the Job's content and of the configuration that its pods read.
    pub key: Digest,
    /// Outcome of the run.
    pub outcome: Outcome,
}

/// Outcome of a run-once Job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Outcome {
    /// The Job was created, but its outcome was not observed.
    Begun,
    /// It succeeded.
    Succeeded,
    /// It failed.
    Failed,
}

/// Error from reading or writing a journal.
#[derive(Debug, thiserror::Error)]
pub enum JournalError {
    /// The text is not a journal.
    #[error("failed to parse the journal of release {name}")]
    Parse {
        /// Release that the journal belongs to.
        name: ReleaseName,
        /// JSON error.
        #[source]
        source: serde_json::Error,
    },
    /// A newer pleach wrote the journal.
    #[error(
        "the journal of release {name} has format {format}, written by a newer pleach; this version writes format {JOURNAL_FORMAT}"
    )]
    Newer {
        /// Release that the journal belongs to.
        name: ReleaseName,
        /// Format of the journal.
        format: u32,
    },
    /// The journal exceeds the size limit.
    #[error(
        "the journal of release {name} is too large: {size} bytes, at most {JOURNAL_LIMIT} are allowed"
    )]
    TooLarge {
        /// Release that the journal belongs to.
        name: ReleaseName,
        /// Size in bytes.
        size: usize,
    },
}

impl Default for Journal {
    fn default() -> Self {
        Self {
            format: JOURNAL_FORMAT,
            oldest_reader: OLDEST_READER,
            attempt: None,
            plan: None,
            overlays: BTreeMap::new(),
            runs: BTreeMap::new(),
            unregistered: BTreeSet::new(),
        }
    }
}

impl Journal {
    /// Returns the name of the ConfigMap that contains the journal.
    pub fn name(release: &ReleaseName) -> String {
        format!("{release}.journal")
    }

    /// Reads the journal from its ConfigMap.
    pub fn from_object(object: &Value, name: &ReleaseName) -> Result<Self, JournalError> {
        let text = object["data"]["journal"].as_str().unwrap_or_default();
        let failed = |source| JournalError::Parse {
            name: name.clone(),
            source,
        };
        let value: Value = serde_json::from_str(text).map_err(failed)?;
        let number = |key: &str| {
            let number = value[key].as_u64().unwrap_or_default();
            u32::try_from(number).unwrap_or(u32::MAX)
        };
        // Fields of a later format are dropped. `oldestReader` states whether that is safe.
        if number("oldestReader") > JOURNAL_FORMAT {
            return Err(JournalError::Newer {
                name: name.clone(),
                format: number("format"),
            });
        }
        let journal: Self = serde_json::from_value(value).map_err(failed)?;
        Ok(Self {
            format: JOURNAL_FORMAT,
            oldest_reader: OLDEST_READER,
            ..journal
        })
    }

    /// Serializes the journal.
    pub fn to_text(&self, name: &ReleaseName) -> Result<String, JournalError> {
        // Serializing our own types cannot fail.
        let text = serde_json::to_string(self).unwrap_or_default();
        if text.len() > JOURNAL_LIMIT {
            return Err(JournalError::TooLarge {
                name: name.clone(),
                size: text.len(),
            });
        }
        Ok(text)
    }

    /// Returns whether the next run can ignore the journal.
    pub fn is_empty(&self) -> bool {
        self.overlays.is_empty() && self.runs.is_empty() && self.unregistered.is_empty()
    }

    /// Returns the temporary changes of one object.
    pub fn overlays_of(&self, object: &ObjectId) -> impl Iterator<Item = (&OverlayId, &Journaled)> {
        self.overlays
            .iter()
            .filter(move |(_, journaled)| journaled.object == *object)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::overlay::{OnFailure, OverlayKind, State};

    fn name() -> ReleaseName {
        ReleaseName {
            environment: "e".to_owned(),
            release: "r".to_owned(),
        }
    }

    /// A journal in format 1, byte for byte.
    const FIRST: &str = r#"{"format":1,"oldestReader":1,"attempt":{"version":"v2","revision":"abc","digest":"sha256:2d711642b726b04401627ca9fbac32f5c8530fb1903cc4db02258717921a4881","at":"1970-01-01T00:00:00Z"},"plan":"sha256:2d711642b726b04401627ca9fbac32f5c8530fb1903cc4db02258717921a4881","overlays":{"stop Deployment.apps/web/api":{"object":"Deployment.apps/web/api","uid":"u","state":"on","set":{"spec":{"replicas":0}},"original":{"spec":{"replicas":2}},"owners":[{"manager":"helm","operation":"Apply","apiVersion":"apps/v1","fields":{"f:spec":{"f:replicas":{}}}}],"onFailure":"undo","until":"verify","since":"1970-01-01T00:00:00Z","attempt":"v2"},"wait Gear.example.org/web/one":{"object":"Gear.example.org/web/one","uid":"v","state":"intended","set":{"spec":{"hold":true}},"original":{"spec":{"hold":null}},"onFailure":{"keep":{"maxAge":"PT1H"}},"until":"ungate","since":"1970-01-01T00:00:00Z","attempt":"v2"}},"runs":{"Job.batch/web/migrate":{"key":"sha256:2d711642b726b04401627ca9fbac32f5c8530fb1903cc4db02258717921a4881","outcome":"succeeded"}}}"#;

    fn object(text: &str) -> Value {
        json!({"data": {"journal": text}})
    }

    /// Returns the same journal in format 2, in which entries have a kind.
    fn second() -> String {
        FIRST.replacen(r#""format":1"#, r#""format":2"#, 1)
    }

    #[test]
    fn the_second_format_names_the_type_of_an_entry() {
        let text = second().replacen(r#"{"object":"#, r#"{"kind":"patch","object":"#, 1);
        let journal = Journal::from_object(&object(&text), &name()).unwrap();
        assert_eq!(journal.to_text(&name()).unwrap(), text);
        let kinds = journal.overlays.values().map(|one| one.kind);
        assert_eq!(kinds.collect::<Vec<_>>(), [Some(OverlayKind::Patch), None]);
    }

    #[test]
    fn the_first_format_is_read_and_written_as_the_second() {
        let journal = Journal::from_object(&object(FIRST), &name()).unwrap();
        assert_eq!(journal.to_text(&name()).unwrap(), second());
        let mut kinds = journal.overlays.values().map(Journaled::kind);
        assert!(kinds.all(|kind| kind == OverlayKind::Patch));
        let api = "Deployment.apps/web/api".parse().unwrap();
        let overlays: Vec<_> = journal.overlays_of(&api).collect();
        assert_eq!(overlays.len(), 1);
        assert_eq!(overlays[0].1.state, State::On);
        assert_eq!(overlays[0].1.on_failure, OnFailure::Undo);
        assert!(!journal.is_empty());
    }

    #[test]
    fn unregistered_services_round_trip() {
        let text = FIRST.trim_end_matches('}').to_owned() + "}},\"unregistered\":[\"web/api\"]}";
        let journal = Journal::from_object(&object(&text), &name()).unwrap();
        let api = ServiceRef {
            namespace: "web".to_owned(),
            name: "api".to_owned(),
        };
        assert_eq!(journal.unregistered, BTreeSet::from([api]));
        let written = text.replacen(r#""format":1"#, r#""format":2"#, 1);
        assert_eq!(journal.to_text(&name()).unwrap(), written);
        let journal = Journal {
            unregistered: journal.unregistered,
            ..Journal::default()
        };
        assert!(!journal.is_empty());
    }

    #[test]
    fn a_later_format_is_read_if_it_permits_it() {
        let later = FIRST.replacen(r#""format":1"#, r#""format":7"#, 1);
        assert!(Journal::from_object(&object(&later), &name()).is_ok());
        let newer = later.replacen(r#""oldestReader":1"#, r#""oldestReader":3"#, 1);
        let error = Journal::from_object(&object(&newer), &name()).unwrap_err();
        assert!(matches!(error, JournalError::Newer { format: 7, .. }));
    }

    #[test]
    fn an_invalid_journal_is_an_error() {
        for broken in ["", "[]", "{\"format\": 1"] {
            assert!(Journal::from_object(&object(broken), &name()).is_err());
        }
    }

    #[test]
    fn a_journal_has_a_bounded_size() {
        let mut journal = Journal::from_object(&object(FIRST), &name()).unwrap();
        let one = journal.overlays.values_mut().next().unwrap();
        one.original.0 = json!({"spec": {"text": "x".repeat(JOURNAL_LIMIT)}});
        let error = journal.to_text(&name()).unwrap_err();
        assert!(matches!(error, JournalError::TooLarge { .. }));
    }
}
