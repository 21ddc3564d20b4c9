//! Report of the writing user.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use serde::Serialize;

/// Result of one write.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// The write succeeded and was validated.
    Done,
    /// The deletion succeeded. Deletions are not validated.
    Deleted,
    /// The write succeeded without validation by a webhook.
    Unvalidated,
    /// The server refused the write (4xx).
    Refused(String),
    /// The server failed (5xx) or did not answer.
    Failed(String),
}

/// Write, with times since the start of the user.
#[derive(Debug, Clone)]
pub(crate) struct Write {
    pub(crate) started: Duration,
    pub(crate) ended: Duration,
    pub(crate) outcome: Outcome,
}

/// Counts and times of all writes of the user.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Report {
    /// Number of writes.
    pub writes: usize,
    /// Writes that succeeded and were validated if required.
    pub done: usize,
    /// Writes that succeeded without validation.
    pub unvalidated: usize,
    /// Answered with 4xx.
    pub refused: usize,
    /// Answered with 5xx, or not at all.
    pub failed: usize,
    /// Start of the first unsuccessful write, since the start of the user.
    pub first_failure: Option<Duration>,
    /// End of the last unsuccessful write.
    pub last_failure: Option<Duration>,
    /// Longest period without a successful validated write that contains at least one unsuccessful
    /// write.
    pub longest_gap: Duration,
    /// Duration of the slowest write.
    pub slowest: Duration,
    /// Messages of unsuccessful writes, with their counts.
    pub messages: BTreeMap<String, usize>,
}

impl Report {
    pub(crate) fn new(writes: &[Write]) -> Self {
        let mut report = Self {
            writes: writes.len(),
            ..Self::default()
        };
        let mut last_done = None;
        let mut gap_since = None;
        for write in writes {
            report.slowest = report
                .slowest
                .max(write.ended.saturating_sub(write.started));
            match &write.outcome {
                Outcome::Done => {
                    report.done += 1;
                    if let Some(since) = gap_since.take() {
                        report.longest_gap =
                            report.longest_gap.max(write.ended.saturating_sub(since));
                    }
                    last_done = Some(write.ended);
                    continue;
                }
                Outcome::Deleted => {
                    report.done += 1;
                    continue;
                }
                Outcome::Unvalidated => report.unvalidated += 1,
                Outcome::Refused(message) => {
                    report.refused += 1;
                    *report.messages.entry(message.clone()).or_default() += 1;
                }
                Outcome::Failed(message) => {
                    report.failed += 1;
                    *report.messages.entry(message.clone()).or_default() += 1;
                }
            }
            gap_since = gap_since.or(last_done).or(Some(write.started));
            report.first_failure.get_or_insert(write.started);
            report.last_failure = Some(write.ended);
        }
        if let (Some(since), Some(last)) = (gap_since, writes.last()) {
            report.longest_gap = report.longest_gap.max(last.ended.saturating_sub(since));
        }
        report
    }

    /// Returns whether every write succeeded and was validated.
    pub fn is_clean(&self) -> bool {
        self.done == self.writes
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{} writes: {} done, {} refused, {} failed, {} unvalidated",
            self.writes, self.done, self.refused, self.failed, self.unvalidated
        )?;
        if let (Some(first), Some(last)) = (self.first_failure, self.last_failure) {
            writeln!(
                f,
                "trouble from {} to {}, longest gap {}",
                seconds(first),
                seconds(last),
                seconds(self.longest_gap)
            )?;
        }
        write!(f, "slowest write {}", seconds(self.slowest))?;
        for (message, count) in &self.messages {
            write!(f, "\n{count} x {message}")?;
        }
        Ok(())
    }
}

fn seconds(time: Duration) -> String {
    format!("{:.2} s", time.as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(outcomes: &[(u64, Outcome)]) -> Report {
        let writes: Vec<Write> = outcomes
            .iter()
            .map(|(at, outcome)| Write {
                started: Duration::from_millis(*at),
                ended: Duration::from_millis(at + 10),
                outcome: outcome.clone(),
            })
            .collect();
        Report::new(&writes)
    }

    #[test]
    fn a_gap_lasts_from_the_last_good_write_to_the_next() {
        let failed = || Outcome::Failed("no endpoints".to_owned());
        let report = report(&[
            (0, Outcome::Done),
            (100, failed()),
            (150, Outcome::Deleted),
            (200, Outcome::Unvalidated),
            (300, Outcome::Done),
            (400, failed()),
            (450, Outcome::Done),
        ]);
        assert_eq!(report.longest_gap, Duration::from_millis(300));
        assert_eq!(report.first_failure, Some(Duration::from_millis(100)));
        assert_eq!(report.last_failure, Some(Duration::from_millis(410)));
        assert_eq!(report.messages["no endpoints"], 2);
        assert_eq!((report.done, report.failed, report.unvalidated), (4, 2, 1));
        assert!(!report.is_clean());
    }

    #[test]
    fn an_open_gap_counts_to_the_last_write() {
        let report = report(&[
            (0, Outcome::Done),
            (100, Outcome::Refused("no".to_owned())),
            (500, Outcome::Refused("no".to_owned())),
        ]);
        assert_eq!(report.longest_gap, Duration::from_millis(500));
    }

    #[test]
    fn without_trouble_there_is_no_gap() {
        let report = report(&[(0, Outcome::Done), (5000, Outcome::Done)]);
        assert!(report.is_clean());
        assert_eq!(report.longest_gap, Duration::ZERO);
        assert_eq!(
            report.to_string(),
            "2 writes: 2 done, 0 refused, 0 failed, 0 unvalidated\nslowest write 0.01 s"
        );
    }
}
