//! Live objects of releases as text and JSON.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use jiff::Timestamp;
use pleach_model::age::age;
use pleach_model::object::ReleaseName;
use pleach_report::status::{Drift, LiveStatus, MemberStatus};
use pleach_state::inventory::{Attempt, AttemptResult, ReleaseSummary, Store};
use serde_json::{Value, json};

use super::{is_ready, short, versions};
use crate::cli::format::{
    history::author,
    style::{ADDED, ERROR, PLACE, WARNING},
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
    /// Context or address of the cluster.
    pub(crate) cluster: String,
    /// Subjects of the recorded commits that the local repository has, by recorded id.
    pub(crate) subjects: BTreeMap<String, String>,
}

impl Live {
    /// Returns the state of one release.
    pub(super) fn of(&self, release: &ReleaseSummary) -> Option<&LiveStatus> {
        let key = (release.name.clone(), release.store.clone());
        self.releases.get(&key)
    }

    /// Formats the release: version, commit, cluster and last result.
    pub(super) fn header(&self, release: &ReleaseSummary, now: Timestamp) -> String {
        let mut parts = Vec::new();
        if let Ok(record) = &release.record {
            let shown = record.applying.as_ref().or(record.installed.as_ref());
            let commit = shown.map(|attempt| self.commit(attempt));
            let version = one_line(&versions(record));
            let version = [Some(version), commit].into_iter().flatten();
            let version: Vec<String> = version.filter(|text| !text.is_empty()).collect();
            parts.push(version.join(" "));
            parts.push(format!("on {}", one_line(&self.cluster)));
            parts.extend(record.history.first().map(|last| result(last, now)));
        } else {
            parts.push(format!("on {}", one_line(&self.cluster)));
        }
        parts.retain(|part| !part.is_empty());
        format!("{PLACE}{}{PLACE:#}  {}", release.target(), parts.join("  "))
    }

    /// Formats the commit of an attempt, unless its version is the commit, and its subject.
    fn commit(&self, attempt: &Attempt) -> String {
        let revision = attempt.revision.as_str();
        let is_known = revision != attempt.version && revision != "none";
        let commit = is_known.then(|| format!("at {}", one_line(&short(revision))));
        let id = revision.trim_end_matches("-dirty");
        let subject = self.subjects.get(id);
        let subject = subject.map(|subject| format!("\"{}\"", one_line(subject)));
        [commit, subject]
            .into_iter()
            .flatten()
            .collect::<Vec<_>>()
            .join(" ")
    }

    /// Draws the objects of a release and the verdict.
    pub(super) fn lines(&self, release: &ReleaseSummary, now: Timestamp) -> Vec<String> {
        let Some(status) = self.of(release) else {
            return Vec::new();
        };
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
        let ready = status.members.iter();
        let ready = ready.filter(|member| member.is_ready && member.drift.is_none());
        let ready = ready.count();
        if ready > 0 {
            lines.push(format!("  {ADDED}✓{ADDED:#} {} ready", objects(ready)));
        }
        lines.push(self.verdict(release, status, now));
        lines
    }

    /// Formats the readiness of a release, from its record and its live objects.
    fn verdict(&self, release: &ReleaseSummary, status: &LiveStatus, now: Timestamp) -> String {
        let (style, verdict) = match is_ready(release, Some(self)) {
            Some(true) => (ADDED.bold(), "READY"),
            Some(false) => (ERROR, "NOT READY"),
            None => (WARNING, "READINESS UNKNOWN"),
        };
        let drifted = match status.drifted() {
            0 => String::new(),
            drifted => format!(", {} drifted", objects(drifted)),
        };
        let seen = match now.as_second() - self.at.as_second() {
            ..JUST => "just now".to_owned(),
            _ => format!("{} ago", age(self.at, now)),
        };
        format!("{style}{verdict}{style:#}{drifted} (seen {seen})")
    }
}

/// Age of a read that is not stated, in seconds.
const JUST: i64 = 2;

/// Formats the last result: `deployed 88s ago by ann@desk`.
fn result(last: &AttemptResult, now: Timestamp) -> String {
    let by = match author(&last.run.by).as_str() {
        "" => String::new(),
        by => format!(" by {by}"),
    };
    one_line(&format!(
        "{} {} ago{by}",
        last.result.word(),
        age(last.at, now)
    ))
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
