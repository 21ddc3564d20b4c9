//! Results of `recover` as text and JSON.

use std::fmt::Write as _;

use pleach_model::object::ObjectId;
use serde_json::{Value, json};

use super::findings::plain;
use super::style;
use pleach_engine::recover::Examined;

/// Formats the losses, the recovered entries and the unreadable parts.
pub(crate) fn text(examined: &Examined) -> String {
    let rebuilt = &examined.rebuilt;
    let mut text = format!(
        "{}release {}{:#}",
        style::PLACE,
        examined.name,
        style::PLACE
    );
    for lost in &examined.lost {
        let _ = write!(text, "\n  lost: {}", plain(lost));
    }
    if rebuilt.known > 0 {
        let _ = write!(text, "\n  the record still has {} objects", rebuilt.known);
    }
    list(&mut text, "found", &rebuilt.found);
    let what = "found, but never deleted, because another client created it";
    list(&mut text, what, &rebuilt.retained);
    let what = "found from git, without the label";
    list(&mut text, what, &rebuilt.unlabelled);
    let what = "skipped, because pleach did not apply it although it has the label";
    list(&mut text, what, &rebuilt.left_out);
    for gap in &examined.gaps {
        let _ = write!(text, "\n  not read: {}", plain(gap));
    }
    text
}

fn list(text: &mut String, what: &str, ids: &[ObjectId]) {
    for id in ids {
        let _ = write!(text, "\n  {what}: {}", plain(&id.to_string()));
    }
}

/// Formats the last line of a release.
pub(crate) fn ending(examined: &Examined, word: &str) -> String {
    let members = examined.rebuilt.inventory.entries.len();
    let mut text = match word {
        "complete" if !examined.is_installed() => {
            format!(
                "release {}: not installed, nothing to recover",
                examined.name
            )
        }
        "complete" => format!("release {}: nothing is lost", examined.name),
        "recovered" => format!(
            "release {}: recovered with {members} objects; `pleach apply` compares them with git",
            examined.name
        ),
        other => format!("release {}: {other}", examined.name),
    };
    if !examined.gaps.is_empty() {
        text.push_str("; some objects could not be read, so fix the cause and run recover again");
    }
    text
}

/// Formats the result as JSON.
pub(crate) fn json(examined: &Examined, word: &str) -> Value {
    let rebuilt = &examined.rebuilt;
    json!({
        "release": examined.name.to_string(),
        "result": word,
        "lost": examined.lost,
        "known": rebuilt.known,
        "found": rebuilt.found,
        "kept": rebuilt.retained,
        "unlabelled": rebuilt.unlabelled,
        "leftOut": rebuilt.left_out,
        "gaps": examined.gaps,
        "objects": rebuilt.inventory.entries.len(),
    })
}
