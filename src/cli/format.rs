//! Formatting of results as text and JSON. Makes no decisions and reads nothing.

pub(crate) mod audit;
pub(crate) mod change;
pub(crate) mod diff;
pub(crate) mod doctor;
pub(crate) mod findings;
pub(crate) mod history;
pub(crate) mod logs;
pub(crate) mod manifests;
pub(crate) mod plan;
pub(crate) mod preview;
pub(crate) mod progress;
pub(crate) mod recover;
pub(crate) mod report;
#[cfg(test)]
pub(crate) mod samples;
pub(crate) mod sarif;
pub(crate) mod status;
pub(crate) mod style;
pub(crate) mod table;
pub(crate) mod values;

use std::fmt::Write as _;

use pleach_model::sanitize::steers;
use serde_json::Value;

/// Formats a JSON document without a trailing newline. Control characters for terminals are
/// escaped, which does not change the value.
pub(crate) fn json(value: &Value) -> String {
    // The alternate form is indented. Writing a Value cannot fail.
    escaped(format!("{value:#}"))
}

/// Escapes characters that control a terminal. They only occur in strings; line breaks between
/// values remain.
pub(crate) fn escaped(json: String) -> String {
    let is_obeyed = |character: char| character != '\n' && steers(character);
    if !json.contains(is_obeyed) {
        return json;
    }
    let mut escaped = String::with_capacity(json.len() + 64);
    for character in json.chars() {
        if is_obeyed(character) {
            // All of them are below U+10000. Writing to a String cannot fail.
            let _ = write!(escaped, "\\u{:04x}", u32::from(character));
        } else {
            escaped.push(character);
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn documents_contain_no_terminal_sequences() {
        let value = json!({"a\u{9b}2J": ["\u{1b}[31m", "\u{7f}\u{85}\u{202e}", "\t\n\u{e9}"]});
        let text = json(&value);
        assert!(!text.contains(|c: char| c != '\n' && steers(c)), "{text:?}");
        assert!(
            text.contains("a\\u009b2J") && text.contains('\u{e9}'),
            "{text:?}"
        );
        assert_eq!(serde_json::from_str::<Value>(&text).unwrap(), value);
    }
}
