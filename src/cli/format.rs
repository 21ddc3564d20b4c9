//! From what was found out to text. Nothing here decides or reads anything.

pub(crate) mod audit;
pub(crate) mod diff;
pub(crate) mod doctor;
pub(crate) mod findings;
pub(crate) mod history;
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
mod table;
pub(crate) mod values;

use std::fmt::Write as _;

use pleach_domain::plain::steers;
use serde_json::Value;

/// A document for programs, with a line end of its own from who prints it. It
/// may be shown on a terminal: what that would obey is escaped, which means the
/// same.
pub(crate) fn json(value: &Value) -> String {
    // The alternate form is indented; writing a Value cannot fail.
    escaped(format!("{value:#}"))
}

/// JSON text without what a terminal would obey. All of that is in strings: only
/// the line breaks between values are not.
pub(crate) fn escaped(json: String) -> String {
    let is_obeyed = |character: char| character != '\n' && steers(character);
    if !json.contains(is_obeyed) {
        return json;
    }
    let mut escaped = String::with_capacity(json.len() + 64);
    for character in json.chars() {
        if is_obeyed(character) {
            // All of them lie below U+10000; writing to a String cannot fail.
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
    fn a_terminal_obeys_nothing_in_a_document() {
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
