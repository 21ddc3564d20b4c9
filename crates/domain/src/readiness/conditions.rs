//! Conditions, the lines made of them, and the rules for kinds that have
//! nothing else.

use std::fmt::Write as _;

use serde_json::Value;

use super::Assessment;

/// Longest message in characters; one line of a wide terminal, twice.
const LONGEST: usize = 240;

/// One entry of `status.conditions`.
#[derive(Clone, Copy)]
pub(super) struct Condition<'a>(&'a Value);

impl<'a> Condition<'a> {
    fn text(self, key: &str) -> &'a str {
        self.0[key].as_str().unwrap_or_default()
    }

    pub(super) fn is_true(self) -> bool {
        self.0["status"] == "True"
    }

    pub(super) fn is_false(self) -> bool {
        self.0["status"] == "False"
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
    let observed = value["status"]["observedGeneration"].as_i64();
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
    value["status"]["observedGeneration"].as_i64()?;
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

/// The rules of kstatus for kinds that are not built in.
pub(super) fn generic(value: &Value) -> Assessment {
    let generation = value["metadata"]["generation"].as_i64();
    // Many controllers never write it, so its absence means nothing here.
    let behind = |place: &Value| {
        let observed = place["observedGeneration"].as_i64()?;
        (observed < generation?).then_some(lag(generation?, Some(observed)))
    };
    if let Some(lag) = behind(&value["status"]) {
        return lag;
    }
    if let Some(condition) = condition(value, "Stalled").filter(|condition| condition.is_true()) {
        return Assessment::failed(condition.line());
    }
    if let Some(condition) = condition(value, "Reconciling").filter(|condition| condition.is_true())
    {
        return Assessment::in_progress(condition.line());
    }
    match condition(value, "Ready") {
        Some(ready) => match behind(ready.0) {
            Some(lag) => lag,
            None if ready.is_true() => Assessment::current(),
            None => Assessment::in_progress(ready.line()),
        },
        None => Assessment::current(),
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::json;

    use super::super::Readiness::{self, Current, Failed, InProgress};
    use super::super::tests::check;
    use super::*;

    #[rstest]
    #[case::no_status(json!({}), Current, "")]
    #[case::null_conditions(json!({"status": {"conditions": null}}), Current, "")]
    #[case::other_conditions(
        json!({"status": {"conditions": [{"type": "Synced", "status": "False"}]}}), Current, "")]
    #[case::ready(json!({"status": {"conditions": [{"type": "Ready", "status": "True"}]}}), Current, "")]
    #[case::not_ready(
        json!({"status": {"conditions": [{"type": "Ready", "status": "False", "reason": "Issuing",
            "message": "waiting for\n  the order"}]}}),
        InProgress, "Ready=False (Issuing): waiting for the order")]
    #[case::unknown(
        json!({"status": {"conditions": [{"type": "Ready", "status": "Unknown"}]}}),
        InProgress, "Ready=Unknown")]
    #[case::lag(
        json!({"metadata": {"generation": 3}, "status": {"observedGeneration": 2,
            "conditions": [{"type": "Ready", "status": "True"}]}}),
        InProgress, "its controller has seen generation 2, not 3 yet")]
    #[case::condition_lag(
        json!({"metadata": {"generation": 3}, "status": {
            "conditions": [{"type": "Ready", "status": "True", "observedGeneration": 2}]}}),
        InProgress, "its controller has seen generation 2, not 3 yet")]
    #[case::never_written(
        json!({"metadata": {"generation": 3}, "status": {
            "conditions": [{"type": "Ready", "status": "True"}]}}),
        Current, "")]
    #[case::reconciling(
        json!({"status": {"conditions": [{"type": "Ready", "status": "True"},
            {"type": "Reconciling", "status": "True", "reason": "Progressing"}]}}),
        InProgress, "Reconciling=True (Progressing)")]
    #[case::stalled(
        json!({"status": {"conditions": [{"type": "Stalled", "status": "True",
            "reason": "InvalidSpec", "message": "no such chart"}]}}),
        Failed, "Stalled=True (InvalidSpec): no such chart")]
    fn custom_resources(#[case] rest: Value, #[case] readiness: Readiness, #[case] message: &str) {
        assert_eq!(
            check("example.org/v1", "Widget", rest),
            (readiness, message.to_owned())
        );
    }

    #[test]
    fn long_messages_are_cut_between_characters() {
        let cut = one_line(&"ä".repeat(1000));
        assert_eq!(cut.chars().count(), LONGEST);
        assert!(cut.ends_with('…'));
        assert_eq!(one_line("  a \n\t b "), "a b");
    }
}
