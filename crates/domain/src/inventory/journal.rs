//! The journal: what a run may leave behind, written down before it is done.
//!
//! A run that goes on after another one never replays it. It observes, reads
//! this and plans again: what is on and still wanted stays, what is not wanted
//! is taken back, what is gone is forgotten.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{Attempt, ReleaseName};
use crate::object::{Digest, ObjectId, ServiceRef};
use crate::overlay::{Journaled, OverlayId};

/// Version of the journal's format.
pub const JOURNAL_FORMAT: u32 = 2;

/// The oldest format whose readers understand what we write.
const OLDEST_READER: u32 = 1;

/// The most that a journal may take: it is one object in the cluster.
pub const JOURNAL_LIMIT: usize = 512 * 1024;

/// What a former run left to do.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Journal {
    /// Version of this format.
    pub format: u32,
    /// The oldest format whose readers may write it.
    pub oldest_reader: u32,
    /// The attempt that was being carried out.
    #[serde(default)]
    pub attempt: Option<Attempt>,
    /// Digest of the effects of its plan.
    #[serde(default)]
    pub plan: Option<Digest>,
    /// Temporary changes, recorded before they are made and until they are
    /// taken back.
    #[serde(default)]
    pub overlays: BTreeMap<OverlayId, Journaled>,
    /// What ran once, by its object.
    #[serde(default)]
    pub runs: BTreeMap<ObjectId, Run>,
    /// Services with which pods had registered themselves, and whose registrations
    /// were removed for a move that has not come to its end.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub unregistered: BTreeSet<ServiceRef>,
}

/// A Job that runs once.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Run {
    /// What it ran for: digest of its content and of what its pods read.
    pub key: Digest,
    /// How it ended.
    pub outcome: Outcome,
}

/// How a Job that runs once ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Outcome {
    /// It was begun, and its end was not seen.
    Begun,
    /// It succeeded.
    Succeeded,
    /// It failed.
    Failed,
}

/// A journal that cannot be read or written.
#[derive(Debug, thiserror::Error)]
pub enum JournalError {
    /// It is not what we write.
    #[error("failed to parse the journal of release {name}")]
    Parse {
        /// Environment and release.
        name: ReleaseName,
        /// Why.
        #[source]
        source: serde_json::Error,
    },
    /// A newer pleach wrote it.
    #[error(
        "the journal of release {name} was written in format {format} by a newer pleach; this one writes format {JOURNAL_FORMAT}"
    )]
    Newer {
        /// Environment and release.
        name: ReleaseName,
        /// Its format.
        format: u32,
    },
    /// It would be larger than one object may be.
    #[error(
        "the journal of release {name} would take {size} bytes, more than the {JOURNAL_LIMIT} that it may"
    )]
    TooLarge {
        /// Environment and release.
        name: ReleaseName,
        /// What it would take.
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
    /// Name of the ConfigMap that holds it.
    pub fn name(release: &ReleaseName) -> String {
        format!("{release}.journal")
    }

    /// Reads the ConfigMap that holds it.
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
        // What a later format adds may be left out by its readers of today.
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

    /// The text that is kept.
    pub fn to_text(&self, name: &ReleaseName) -> Result<String, JournalError> {
        // Of types of our own this cannot fail.
        let text = serde_json::to_string(self).unwrap_or_default();
        if text.len() > JOURNAL_LIMIT {
            return Err(JournalError::TooLarge {
                name: name.clone(),
                size: text.len(),
            });
        }
        Ok(text)
    }

    /// Whether it says anything that the next run has to know.
    pub fn is_empty(&self) -> bool {
        self.overlays.is_empty() && self.runs.is_empty() && self.unregistered.is_empty()
    }

    /// The temporary changes of one object.
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

    /// What pleach writes in format 1, byte for byte.
    const FIRST: &str = r#"{"format":1,"oldestReader":1,"attempt":{"version":"v2","revision":"abc","digest":"sha256:2d711642b726b04401627ca9fbac32f5c8530fb1903cc4db02258717921a4881","at":"1970-01-01T00:00:00Z"},"plan":"sha256:2d711642b726b04401627ca9fbac32f5c8530fb1903cc4db02258717921a4881","overlays":{"stop Deployment.apps/web/api":{"object":"Deployment.apps/web/api","uid":"u","state":"on","set":{"spec":{"replicas":0}},"original":{"spec":{"replicas":2}},"owners":[{"manager":"helm","operation":"Apply","apiVersion":"apps/v1","fields":{"f:spec":{"f:replicas":{}}}}],"onFailure":"undo","until":"verify","since":"1970-01-01T00:00:00Z","attempt":"v2"},"wait Gear.example.org/web/one":{"object":"Gear.example.org/web/one","uid":"v","state":"intended","set":{"spec":{"hold":true}},"original":{"spec":{"hold":null}},"onFailure":{"keep":{"maxAge":"PT1H"}},"until":"ungate","since":"1970-01-01T00:00:00Z","attempt":"v2"}},"runs":{"Job.batch/web/migrate":{"key":"sha256:2d711642b726b04401627ca9fbac32f5c8530fb1903cc4db02258717921a4881","outcome":"succeeded"}}}"#;

    fn object(text: &str) -> Value {
        json!({"data": {"journal": text}})
    }

    /// The same in format 2, in which entries have their sort.
    fn second() -> String {
        FIRST.replacen(r#""format":1"#, r#""format":2"#, 1)
    }

    #[test]
    fn the_second_format_says_what_an_entry_is() {
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
    fn what_was_unregistered_is_kept_while_it_is_there() {
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
    fn a_later_format_is_read_while_it_says_that_it_may_be() {
        let later = FIRST.replacen(r#""format":1"#, r#""format":7"#, 1);
        assert!(Journal::from_object(&object(&later), &name()).is_ok());
        let newer = later.replacen(r#""oldestReader":1"#, r#""oldestReader":3"#, 1);
        let error = Journal::from_object(&object(&newer), &name()).unwrap_err();
        assert!(matches!(error, JournalError::Newer { format: 7, .. }));
    }

    #[test]
    fn what_is_no_journal_is_an_error_and_not_an_empty_one() {
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
