//! Status conditions, and their text form.

use std::fmt::Write as _;

use serde_json::Value;

use super::Assessment;
use super::stale::seen_generation;

/// Maximum message length in characters; two lines of a wide terminal.
const LONGEST: usize = 240;

/// One entry of `status.conditions`.
#[derive(Clone, Copy)]
pub(super) struct Condition<'a>(&'a Value);

impl<'a> Condition<'a> {
    pub(super) fn of(entry: &'a Value) -> Self {
        Self(entry)
    }

    fn text(self, key: &str) -> &'a str {
        self.0[key].as_str().unwrap_or_default()
    }

    pub(super) fn is_true(self) -> bool {
        self.is("true", true)
    }

    pub(super) fn is_false(self) -> bool {
        self.is("false", false)
    }

    /// Compares the status. Some controllers write lower case, or a boolean.
    fn is(self, text: &str, value: bool) -> bool {
        let status = &self.0["status"];
        match status.as_str() {
            Some(status) => status.eq_ignore_ascii_case(text),
            None => *status == value,
        }
    }

    pub(super) fn name(self) -> &'a str {
        self.text("type")
    }

    pub(super) fn severity(self) -> &'a str {
        self.text("severity")
    }

    pub(super) fn reason(self) -> &'a str {
        self.text("reason")
    }

    pub(super) fn message(self) -> &'a str {
        self.text("message")
    }

    /// Formats `Type=Status (Reason): message`, without missing parts.
    pub(super) fn line(self) -> String {
        let mut line = format!("{}={}", self.text("type"), self.text("status"));
        if !self.reason().is_empty() {
            // Writing to a String cannot fail.
            let _ = write!(line, " ({})", self.reason());
        }
        if !self.message().is_empty() {
            let _ = write!(line, ": {}", self.message());
        }
        line
    }
}

/// Finds a condition by its type. The list may be absent or null.
pub(super) fn condition<'a>(value: &'a Value, name: &str) -> Option<Condition<'a>> {
    value["status"]["conditions"]
        .as_array()?
        .iter()
        .find(|condition| condition["type"] == name)
        .map(Condition)
}

/// Joins a text into one line and truncates it.
pub(super) fn one_line(text: &str) -> String {
    let line = text.split_whitespace().collect::<Vec<_>>().join(" ");
    if line.chars().count() <= LONGEST {
        return line;
    }
    let mut cut: String = line.chars().take(LONGEST - 1).collect();
    cut.push('…');
    cut
}

/// Returns an assessment while the controller has not observed the newest spec.
/// A status without `observedGeneration` counts as unobserved, so this is for
/// kinds whose controller always writes it.
pub(super) fn unobserved(value: &Value) -> Option<Assessment> {
    let generation = value["metadata"]["generation"].as_i64()?;
    let observed = seen_generation(&value["status"]);
    (observed.unwrap_or(0) < generation).then(|| lag(generation, observed))
}

fn lag(generation: i64, observed: Option<i64>) -> Assessment {
    Assessment::in_progress(match observed {
        Some(observed) => {
            format!("its controller has observed generation {observed}, not {generation} yet")
        }
        None => "its controller has not observed it yet".to_owned(),
    })
}

/// Returns an assessment while the status belongs to an older spec. A status
/// without `observedGeneration` counts as current.
pub(super) fn lagging(value: &Value) -> Option<Assessment> {
    seen_generation(&value["status"])?;
    unobserved(value)
}

/// Conditions that are healthy when true, and conditions that are unhealthy
/// when true.
const GOOD: [&str; 4] = ["Ready", "Available", "Healthy", "Synced"];
const BAD: [&str; 3] = ["Stalled", "Failed", "Degraded"];

/// Returns the first condition that reports a problem.
pub(super) fn trouble(value: &Value) -> Option<String> {
    let conditions = value["status"]["conditions"].as_array()?;
    let mut conditions = conditions.iter().map(Condition);
    conditions
        .find(|condition| {
            let name = condition.text("type");
            (BAD.contains(&name) && condition.is_true())
                || (GOOD.contains(&name) && !condition.is_true())
        })
        .map(Condition::line)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_messages_are_cut_between_characters() {
        let cut = one_line(&"ä".repeat(1000));
        assert_eq!(cut.chars().count(), LONGEST);
        assert!(cut.ends_with('…'));
        assert_eq!(one_line("  a \n\t b "), "a b");
    }
}
