//! Format of the controller's log lines.
//!
//! JSON lines have the fields `time`, `level`, `environment`, `release`, `commit`, `action`, `object`,
//! `message` and `seconds`, as far as they apply, then others. Text lines name time, level, release
//! and message. Neither contains module paths.

use std::fmt::{self, Debug, Write as _};

use jiff::Timestamp;
use pleach_model::sanitize::plain;
use serde_json::{Map, Value, json};
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields, format::Writer};
use tracing_subscriber::registry::LookupSpan;

use super::format::style;
use super::run::LogFormat;

/// Fields in the order of a JSON line, after time and level.
const FIELDS: [&str; 7] = [
    "environment",
    "release",
    "commit",
    "action",
    "object",
    "message",
    "seconds",
];

/// Formats events as log lines.
#[derive(Debug, Clone, Copy)]
pub(super) struct LogLines(pub(super) LogFormat);

impl<S, N> FormatEvent<S, N> for LogLines
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(
        &self,
        _: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        let mut record = Record::default();
        event.record(&mut record);
        let (now, level) = (Timestamp::now(), *event.metadata().level());
        let line = match self.0 {
            LogFormat::Json => record.json(now, level),
            LogFormat::Text => record.text(now, level, writer.has_ansi_escapes()),
        };
        writeln!(writer, "{line}")
    }
}

/// Fields of an event.
#[derive(Debug, Default)]
struct Record(Map<String, Value>);

impl Record {
    fn add(&mut self, field: &Field, value: Value) {
        // Events of libraries have their module path in such fields.
        if !field.name().starts_with("log.") {
            self.0.insert(field.name().to_owned(), value);
        }
    }

    /// Removes a field and returns it as text. Empty if it is missing.
    fn take(&mut self, name: &str) -> String {
        match self.0.shift_remove(name) {
            Some(Value::String(text)) => text,
            Some(other) => other.to_string(),
            None => String::new(),
        }
    }

    fn json(mut self, now: Timestamp, level: Level) -> String {
        let mut line = Map::new();
        let time = now.strftime("%Y-%m-%dT%H:%M:%S%.3fZ").to_string();
        line.insert("time".to_owned(), time.into());
        let level = level.as_str().to_ascii_lowercase();
        line.insert("level".to_owned(), level.into());
        for name in FIELDS {
            if let Some(value) = self.0.shift_remove(name) {
                line.insert(name.to_owned(), value);
            }
        }
        line.extend(self.0);
        Value::Object(line).to_string()
    }

    fn text(self, now: Timestamp, level: Level, colors: bool) -> String {
        let time = now.strftime("%H:%M:%S").to_string();
        let line = as_text(self.0, &time, level.as_str());
        if colors {
            line
        } else {
            anstream::adapter::strip_str(&line).to_string()
        }
    }
}

/// Formats a line for people, with colors: time, level, subject and message, then fields that the
/// message does not contain. The fields can be of any origin.
pub(super) fn as_text(fields: Map<String, Value>, time: &str, level: &str) -> String {
    let mut record = Record(fields);
    let style = match level {
        "ERROR" => style::ERROR,
        "WARN" => style::WARNING,
        "INFO" => style::NOTE,
        _ => style::HINT,
    };
    let (time, level) = (plain(time), plain(level));
    let mut line = format!("{time} {style}{level:<5}{style:#} ");
    let subject = ["environment", "release", "repository"].map(|name| record.take(name));
    let subject: Vec<&str> = subject
        .iter()
        .map(String::as_str)
        .filter(|one| !one.is_empty())
        .collect();
    if !subject.is_empty() {
        let _ = write!(line, "{}  ", plain(&subject.join("/")));
    }
    line.push_str(&plain(&record.take("message")));
    // The message of an event with an action names these fields.
    if record.0.shift_remove("action").is_some() {
        for name in FIELDS {
            record.0.shift_remove(name);
        }
    }
    for (name, value) in record.0 {
        let value = match value {
            Value::String(text) => text,
            other => other.to_string(),
        };
        let _ = write!(line, " {}={}", plain(&name), plain(&value));
    }
    line
}

impl Visit for Record {
    fn record_f64(&mut self, field: &Field, value: f64) {
        self.add(field, json!(value));
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.add(field, json!(value));
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.add(field, json!(value));
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.add(field, json!(value));
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.add(field, json!(value));
    }

    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.add(field, json!(format!("{value:?}")));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(fields: Value) -> Record {
        match fields {
            Value::Object(fields) => Record(fields),
            other => panic!("{other}"),
        }
    }

    #[test]
    fn a_line_names_the_release_and_no_module() {
        let now: Timestamp = "2026-11-28T17:17:06.5Z".parse().unwrap();
        for (case, level, fields, text, line) in [
            (
                "a release",
                Level::INFO,
                json!({
                    "message": "applying 9683080: 2 to update", "commit": "9683080", "action": "applying",
                    "environment": "dev", "release": "shopsrc",
                }),
                "17:17:06 INFO  dev/shopsrc  applying 9683080: 2 to update",
                r#"{"time":"2026-11-28T17:17:06.500Z","level":"info","environment":"dev","release":"shopsrc","commit":"9683080","action":"applying","message":"applying 9683080: 2 to update"}"#,
            ),
            (
                "seconds",
                Level::WARN,
                json!({"message": "waiting", "seconds": 8.0, "environment": "dev", "action": "waiting", "object": "Pod/a/b"}),
                "17:17:06 WARN  dev  waiting",
                r#"{"time":"2026-11-28T17:17:06.500Z","level":"warn","environment":"dev","action":"waiting","object":"Pod/a/b","message":"waiting","seconds":8.0}"#,
            ),
            (
                "other fields",
                Level::ERROR,
                json!({"message": "failed to read", "error": "a\u{1b}[0m\nb", "number": 7}),
                "17:17:06 ERROR failed to read error=a\\u{1b}[0m\nb number=7",
                "{\"time\":\"2026-11-28T17:17:06.500Z\",\"level\":\"error\",\"message\":\"failed to read\",\"error\":\"a\\u001b[0m\\nb\",\"number\":7}",
            ),
            (
                "a repository",
                Level::WARN,
                json!({"message": "repository unreachable: refused", "repository": "fleet", "action": "unreachable"}),
                "17:17:06 WARN  fleet  repository unreachable: refused",
                r#"{"time":"2026-11-28T17:17:06.500Z","level":"warn","action":"unreachable","message":"repository unreachable: refused","repository":"fleet"}"#,
            ),
        ] {
            assert_eq!(
                record(fields.clone()).text(now, level, false),
                text,
                "{case}"
            );
            assert_eq!(record(fields).json(now, level), line, "{case}");
        }
    }
}
