//! Bookkeeping of reverted fields, so that pleach does not fight another writer forever.

use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};

use super::Installed;
use pleach_model::object::ObjectId;

/// Number of corrections of a field within [`WINDOW`] after which pleach leaves it alone.
const LIMIT: usize = 3;

/// Time for which a correction counts.
const WINDOW: SignedDuration = SignedDuration::from_mins(10);

/// Maximum number of recorded fields. The record does not grow with the release.
const REMEMBERED: usize = 64;

/// Maximum length in bytes of a recorded field path or manager name.
const LONGEST: usize = 256;

/// Recent corrections of one field that another manager wrote.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Correction {
    /// The object.
    pub object: ObjectId,
    /// The field, as written in messages.
    pub field: String,
    /// The manager that wrote the field. Empty if unknown.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub manager: String,
    /// Times of the latest corrections, oldest first.
    pub at: Vec<Timestamp>,
}

impl Correction {
    fn is_about(&self, object: &ObjectId, field: &str, manager: &str) -> bool {
        self.object == *object && self.field == field && self.manager == manager
    }

    /// Returns whether the field was corrected so often that pleach stops.
    fn is_contended(&self, now: Timestamp) -> bool {
        self.at.iter().filter(|at| counts(**at, now)).count() >= LIMIT
    }
}

/// Returns whether a correction still counts. A time in the future comes from another clock and
/// counts, too, within the window.
fn counts(at: Timestamp, now: Timestamp) -> bool {
    now.duration_since(at).abs() < WINDOW
}

impl Installed {
    /// Returns whether pleach no longer corrects a field.
    pub fn is_contended(
        &self,
        object: &ObjectId,
        field: &str,
        manager: &str,
        now: Timestamp,
    ) -> bool {
        self.corrections
            .iter()
            .any(|known| known.is_about(object, field, manager) && known.is_contended(now))
    }

    /// Records a correction of a field.
    pub fn correct(&mut self, object: &ObjectId, field: &str, manager: &str, now: Timestamp) {
        if field.len() > LONGEST || manager.len() > LONGEST {
            return;
        }
        self.calm_down(now);
        let known = self
            .corrections
            .iter_mut()
            .find(|known| known.is_about(object, field, manager));
        if let Some(known) = known {
            known.at.push(now);
            let surplus = known.at.len().saturating_sub(LIMIT);
            known.at.drain(..surplus);
            return;
        }
        self.corrections.insert(
            0,
            Correction {
                object: object.clone(),
                field: field.to_owned(),
                manager: manager.to_owned(),
                at: vec![now],
            },
        );
        self.corrections.truncate(REMEMBERED);
    }

    /// Removes expired corrections. Returns whether there were any.
    pub fn calm_down(&mut self, now: Timestamp) -> bool {
        let count = |known: &[Correction]| known.iter().map(|one| one.at.len()).sum::<usize>();
        let before = count(&self.corrections);
        for known in &mut self.corrections {
            known.at.retain(|at| counts(*at, now));
        }
        self.corrections.retain(|known| !known.at.is_empty());
        before != count(&self.corrections)
    }

    /// Describes the contended fields, one per line.
    pub fn contended(&self, now: Timestamp) -> Vec<String> {
        self.corrections
            .iter()
            .filter(|known| known.is_contended(now))
            .map(|known| {
                let manager = if known.manager.is_empty() {
                    "an unknown field manager"
                } else {
                    &known.manager
                };
                format!(
                    "{manager} keeps changing {} of {}",
                    known.field, known.object
                )
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_second(1_000_000 + seconds).unwrap()
    }

    fn id(name: &str) -> ObjectId {
        ObjectId::new("apps", "Deployment", Some("web"), name)
    }

    #[test]
    fn three_corrections_in_ten_minutes_are_a_contention() {
        let mut record = Installed::default();
        for seconds in [0, 60] {
            record.correct(&id("a"), ".spec.replicas", "scaler", at(seconds));
        }
        let contended = |record: &Installed, manager: &str, seconds| {
            record.is_contended(&id("a"), ".spec.replicas", manager, at(seconds))
        };
        assert!(!contended(&record, "scaler", 61));
        record.correct(&id("a"), ".spec.replicas", "scaler", at(120));
        assert!(contended(&record, "scaler", 121));
        assert!(!contended(&record, "other-manager", 121));
        assert!(!record.is_contended(&id("b"), ".spec.replicas", "scaler", at(121)));
        assert_eq!(
            record.contended(at(121)),
            ["scaler keeps changing .spec.replicas of Deployment.apps/web/a"]
        );
        // The first of the three corrections expires.
        assert!(contended(&record, "scaler", 599));
        assert!(!contended(&record, "scaler", 600));
        assert!(record.clone().calm_down(at(600)));
        assert!(record.calm_down(at(2000)));
        assert!(record.corrections.is_empty());
        assert!(!record.calm_down(at(2000)));
    }

    #[test]
    fn the_record_does_not_grow() {
        let mut record = Installed::default();
        for number in 0..1000 {
            for seconds in 0..5 {
                record.correct(&id(&format!("o{number}")), ".x", "m", at(seconds));
            }
        }
        record.correct(&id("a"), &"x".repeat(1000), "m", at(0));
        assert_eq!(record.corrections.len(), REMEMBERED);
        assert!(
            record
                .corrections
                .iter()
                .all(|known| known.at.len() == LIMIT)
        );
        assert_eq!(record.corrections[0].object, id("o999"));
    }
}
