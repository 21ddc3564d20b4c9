//! Log lines of the controller as text.

use serde_json::{Map, Value};

use super::table::one_line;
use crate::cli::Target;
use crate::cli::log_format::as_text;

/// A parsed log line.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct LogLine {
    fields: Map<String, Value>,
}

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
        self.text("time")
    }

    /// Returns whether the line concerns a target. A line about a whole environment concerns each
    /// of its releases.
    pub(crate) fn is_about(&self, target: &Target) -> bool {
        let requested = target.release.as_deref();
        let release = self.text("release");
        self.text("environment") == Some(&target.environment)
            && (requested.is_none() || release.is_none() || release == requested)
    }

    /// Formats the line for people, as the controller does on a terminal, but with the date.
    fn draw(mut self) -> String {
        let mut take = |name: &str| match self.fields.shift_remove(name) {
            Some(Value::String(text)) => text,
            _ => String::new(),
        };
        let (time, level) = (take("time"), take("level").to_ascii_uppercase());
        // Omit fractions of a second.
        let time = match time.split_once('.') {
            Some((time, _)) => format!("{time}Z"),
            None => time,
        };
        as_text(self.fields, &time, &level)
    }
}

/// Formats a log line, which can contain texts of other programs.
pub(crate) fn text(line: &str) -> String {
    LogLine::read(line).map_or_else(|| one_line(line), LogLine::draw)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SYNCED: &str = r#"{"time":"2026-11-28T17:17:18.123Z","level":"info","environment":"dev","release":"shop","commit":"9683080","action":"deployed","message":"deployed 9683080: 2 updated, 11.9 s","seconds":11.9}"#;
    const STALLED: &str = r#"{"time":"2026-11-28T17:17:19.000Z","level":"error","environment":"dev","action":"environment stalled","message":"environment stalled: Invalid: web.yaml:1:\u001b[31m no field"}"#;
    const FOREIGN: &str = r#"{"time":"\u001b[2J","level":"info","message":"m","\u001b[2J":["\u009b2J"],"a":"\u001b[3J"}"#;

    #[test]
    fn a_line_has_its_target_before_its_message() {
        let plain = |line: &str| anstream::adapter::strip_str(&text(line)).to_string();
        assert_eq!(
            plain(SYNCED),
            "2026-11-28T17:17:18Z INFO  dev/shop  deployed 9683080: 2 updated, 11.9 s"
        );
        let stalled = plain(STALLED);
        let start = "2026-11-28T17:17:19Z ERROR dev  environment stalled: Invalid: web.yaml:1:";
        assert!(stalled.starts_with(start), "{stalled}");
        let foreign = text(FOREIGN);
        let is_escape = ["\u{1b}[2J", "\u{1b}[3J", "\u{9b}"].map(|one| foreign.contains(one));
        assert_eq!(is_escape, [false; 3], "{foreign}");
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
