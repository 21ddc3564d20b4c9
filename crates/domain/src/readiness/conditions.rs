//! Conditions, and the lines made of them.

use std::fmt::Write as _;

use serde_json::Value;

use super::Assessment;
use super::stale::observed_generation;

/// Longest message in characters; one line of a wide terminal, twice.
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

    /// Some controllers write lower case, or no string.
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

    /// `Type=Status (Reason): message`, without what is not there.
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

/// Finds a condition by its type; the list may be absent or null.
pub(super) fn condition<'a>(value: &'a Value, name: &str) -> Option<Condition<'a>> {
    value["status"]["conditions"]
        .as_array()?
        .iter()
        .find(|condition| condition["type"] == name)
        .map(Condition)
}

/// Makes one line of a text and cuts it at a sensible length.
pub(super) fn one_line(text: &str) -> String {
    let line = text.split_whitespace().collect::<Vec<_>>().join(" ");
    if line.chars().count() <= LONGEST {
        return line;
    }
    let mut cut: String = line.chars().take(LONGEST - 1).collect();
    cut.push('…');
    cut
}

/// What is said while the controller has not seen the newest spec. A status
/// without `observedGeneration` counts as unseen: for kinds whose controller
/// always writes it.
pub(super) fn unobserved(value: &Value) -> Option<Assessment> {
    let generation = value["metadata"]["generation"].as_i64()?;
    let observed = observed_generation(&value["status"]);
    (observed.unwrap_or(0) < generation).then(|| lag(generation, observed))
}

fn lag(generation: i64, observed: Option<i64>) -> Assessment {
    Assessment::in_progress(match observed {
        Some(observed) => {
            format!("its controller has seen generation {observed}, not {generation} yet")
        }
        None => "its controller has not seen it yet".to_owned(),
    })
}

/// What is said while a status is one of a former spec; a status that never
/// says which spec it is of gets the benefit of the doubt.
pub(super) fn lagging(value: &Value) -> Option<Assessment> {
    observed_generation(&value["status"])?;
    unobserved(value)
}

/// Conditions that are good when they are true, and those that are bad then.
const GOOD: [&str; 4] = ["Ready", "Available", "Healthy", "Synced"];
const BAD: [&str; 3] = ["Stalled", "Failed", "Degraded"];

/// The condition that says what is wrong, if one does.
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
