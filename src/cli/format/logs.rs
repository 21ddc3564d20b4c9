//! Log lines of the controller as text.

use std::fmt::Write as _;

use serde_json::{Map, Value};

use super::style::{ERROR, WARNING};
use super::table::one_line;
use crate::cli::Target;

/// A parsed log line.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct LogLine {
    fields: Map<String, Value>,
}

/// Fields that have their own place in a line, or that concern only developers.
const PLACED: [&str; 10] = [
    "timestamp",
    "time",
    "level",
    "target",
    "message",
    "environment",
    "release",
    "detail",
    "error",
    "changes",
];

impl LogLine {
    /// Parses a line. `None` if it is no JSON object, such as the message of a crash.
    pub(crate) fn read(line: &str) -> Option<Self> {
        match serde_json::from_str(line) {
            Ok(Value::Object(fields)) => Some(Self { fields }),
            Ok(_) | Err(_) => None,
        }
    }

    fn text(&self, name: &str) -> Option<&str> {
        self.fields.get(name)?.as_str()
    }

    /// Returns the time as written, which sorts like text.
    pub(crate) fn time(&self) -> Option<&str> {
        self.text("timestamp").or_else(|| self.text("time"))
    }

    /// Returns whether the line concerns a target. A line about a whole environment concerns each
    /// of its releases.
    pub(crate) fn is_about(&self, target: &Target) -> bool {
        let requested = target.release.as_deref();
        let release = self.text("release");
        self.text("environment") == Some(&target.environment)
            && (requested.is_none() || release.is_none() || release == requested)
    }

    /// Formats the line: time, level, target, message and the other fields.
    pub(crate) fn draw(&self) -> String {
        let time = self.time().unwrap_or_default();
        // Omit fractions of a second.
        let (time, zone) = match time.split_once('.') {
            Some((time, _)) => (time, "Z"),
            None => (time, ""),
        };
        let level = self.text("level").unwrap_or_default();
        let style = match level {
            "ERROR" => ERROR,
            "WARN" => WARNING,
            _ => anstyle::Style::new(),
        };
        let mut text = format!("{time}{zone} {style}{level:<5}{style:#} ");
        match (self.text("environment"), self.text("release")) {
            (Some(environment), Some(release)) => {
                // Writing to a String cannot fail.
                let _ = write!(text, " {environment}/{release}  ");
            }
            (Some(environment), None) => {
                let _ = write!(text, " {environment}  ");
            }
            (None, _) => text.push(' '),
        }
        text.push_str(self.text("message").unwrap_or_default());
        let details = ["changes", "detail", "error"].map(|name| self.text(name));
        for detail in details
            .into_iter()
            .flatten()
            .filter(|text| !text.is_empty())
        {
            let _ = write!(text, ": {detail}");
        }
        let others: Vec<String> = self
            .fields
            .iter()
            .filter(|(name, _)| !PLACED.contains(&name.as_str()))
            .map(|(name, value)| match value {
                Value::String(text) => format!("{name}={text}"),
                value => format!("{name}={value}"),
            })
            .collect();
        if !others.is_empty() {
            let _ = write!(text, " ({})", others.join(", "));
        }
        text
    }
}

/// Formats a log line, which can contain texts of other programs.
pub(crate) fn text(line: &str) -> String {
    match LogLine::read(line) {
        Some(mut line) => {
            for value in line.fields.values_mut() {
                if let Value::String(text) = value {
                    *text = one_line(text);
                }
            }
            line.draw()
        }
        None => one_line(line),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SYNCED: &str = r#"{"timestamp":"2026-11-28T17:17:18.123456Z","level":"INFO","message":"release synced","environment":"dev","release":"shop","revision":"9683080","result":"deployed","took":11.9,"detail":"2 updated","target":"pleach::cli::run::log"}"#;
    const STALLED: &str = r#"{"timestamp":"2026-11-28T17:17:19Z","level":"ERROR","message":"environment stalled","environment":"dev","error":"web.yaml:1:\u001b[31m no field"}"#;

    #[test]
    fn a_line_has_its_target_before_its_message() {
        let plain = |line: &str| anstream::adapter::strip_str(&text(line)).to_string();
        assert_eq!(
            plain(SYNCED),
            "2026-11-28T17:17:18Z INFO   dev/shop  release synced: 2 updated (revision=9683080, result=deployed, took=11.9)"
        );
        let stalled = plain(STALLED);
        assert!(
            stalled
                .starts_with("2026-11-28T17:17:19Z ERROR  dev  environment stalled: web.yaml:1:"),
            "{stalled}"
        );
        assert!(!stalled.contains('\u{1b}'), "{stalled}");
        assert_eq!(
            text("thread 'main' panicked\u{7}"),
            one_line("thread 'main' panicked\u{7}")
        );
    }

    #[test]
    fn lines_are_selected_by_target() {
        let (synced, stalled) = (LogLine::read(SYNCED), LogLine::read(STALLED));
        let (synced, stalled) = (synced.unwrap(), stalled.unwrap());
        for (target, of_release, of_environment) in [
            ("dev", true, true),
            ("dev/shop", true, true),
            ("dev/api", false, true),
            ("prod", false, false),
        ] {
            let target: Target = target.parse().unwrap();
            assert_eq!(synced.is_about(&target), of_release, "{target}");
            assert_eq!(stalled.is_about(&target), of_environment, "{target}");
        }
        assert_eq!(LogLine::read("[]"), None);
        assert!(synced.time() < stalled.time());
    }
}
