//! Live objects of releases as text and JSON.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use jiff::Timestamp;
use pleach_model::age::age;
use pleach_model::object::ReleaseName;
use pleach_report::status::{Drift, LiveStatus, MemberStatus};
use pleach_state::inventory::{ReleaseSummary, Store};
use serde_json::{Value, json};

use crate::cli::format::{
    style::{ADDED, ERROR, WARNING},
    table::one_line,
};

/// Live state of the releases that are shown.
#[derive(Debug, Clone)]
pub(crate) struct Live {
    /// Time of the read.
    pub(crate) at: Timestamp,
    /// State by release.
    pub(crate) releases: BTreeMap<(ReleaseName, Store), LiveStatus>,
    /// Whether to list all objects, or only those with a message or drift.
    pub(crate) lists_all: bool,
}

impl Live {
    /// Returns the state of one release.
    pub(super) fn of(&self, release: &ReleaseSummary) -> Option<&LiveStatus> {
        let key = (release.name.clone(), release.store.clone());
        self.releases.get(&key)
    }

    /// Draws the objects of a release and the sum.
    pub(super) fn lines(&self, release: &ReleaseSummary, now: Timestamp) -> Vec<String> {
        let Some(status) = self.of(release) else {
            return Vec::new();
        };
        let target = release.target();
        let shown: Vec<&MemberStatus> = status
            .members
            .iter()
            .filter(|member| self.lists_all || !member.is_ready || member.drift.is_some())
            .collect();
        let width = shown.iter().map(|member| member.object.to_string().len());
        let width = width.max().unwrap_or_default();
        let mut lines: Vec<String> = shown
            .iter()
            .map(|member| line(member, width, now))
            .collect();
        for why in &status.unread {
            lines.push(format!("  {WARNING}?{WARNING:#} {}", one_line(why)));
        }
        let ready = status.members.iter().filter(|member| member.is_ready);
        let ready = match (ready.count(), status.members.len()) {
            (ready, all) if ready == all => format!("{} ready", objects(all)),
            (ready, all) => format!("{ready} of {} ready", objects(all)),
        };
        let verdict = match status.is_ready() {
            Some(true) => "",
            Some(false) => "NOT READY: ",
            None => "readiness unknown: ",
        };
        let drifted = match status.drifted() {
            0 => String::new(),
            drifted => format!(", {} drifted", objects(drifted)),
        };
        let at = self.at;
        lines.push(format!(
            "{target}: {verdict}{ready}{drifted} (as of {at:.0})"
        ));
        lines
    }
}

fn objects(count: usize) -> String {
    match count {
        1 => "1 object".to_owned(),
        _ => format!("{count} objects"),
    }
}

fn line(member: &MemberStatus, width: usize, now: Timestamp) -> String {
    let (style, mark) = match (member.is_ready, &member.drift) {
        (false, _) => (ERROR, "✗"),
        (true, Some(_)) => (WARNING, "~"),
        (true, None) => (ADDED, "✓"),
    };
    let drift = member.drift.as_ref().map(|drift| words(drift, now));
    let texts = [Some(member.message.clone()), drift].into_iter().flatten();
    let texts: Vec<String> = texts.filter(|text| !text.is_empty()).collect();
    let object = one_line(&member.object.to_string());
    let text = format!("{object:width$}  {}", one_line(&texts.join("; ")));
    format!("  {style}{mark}{style:#} {}", text.trim_end())
}

fn words(drift: &Drift, now: Timestamp) -> String {
    let what = if drift.is_recreated {
        "recreated"
    } else {
        "changed"
    };
    let mut words = what.to_owned();
    if !drift.manager.is_empty() {
        words.push_str(" by ");
        words.push_str(&drift.manager);
    }
    if let Some(at) = drift.at {
        let _ = write!(words, " {} ago", age(at, now));
    }
    if !drift.fields.is_empty() && !drift.is_recreated {
        words.push_str(": ");
        words.push_str(&drift.fields.join(", "));
        if drift.more > 0 {
            let _ = write!(words, " and {} more", drift.more);
        }
    }
    words
}

/// Formats the live state as JSON.
pub(super) fn json(status: &LiveStatus, at: Timestamp) -> Value {
    let members = status.members.iter().map(|member| {
        json!({
            "object": member.object,
            "ready": member.is_ready,
            "message": member.message,
            "drift": member.drift.as_ref().map(|drift| json!({
                "manager": drift.manager,
                "at": drift.at,
                "fields": drift.fields,
                "recreated": drift.is_recreated,
            })),
        })
    });
    json!({
        "at": at,
        "ready": status.is_ready(),
        "objects": members.collect::<Vec<_>>(),
        "unread": status.unread,
    })
}
