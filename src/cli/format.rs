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

/// A document for programs, with a line end of its own from who prints it.
pub(crate) fn json(value: &serde_json::Value) -> String {
    // The alternate form is indented; writing a Value cannot fail.
    format!("{value:#}")
}
