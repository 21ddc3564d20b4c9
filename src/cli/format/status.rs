//! Releases as text and JSON.

use jiff::Timestamp;
use pleach_formats::gate::lifted_by;
use pleach_model::age::age;
use pleach_state::inventory::{Attempt, Installed, NodePhase, ReleaseSummary, Suspension};
use pleach_state::overlay::{Journaled, OverlayId};
use serde_json::{Value, json};

use super::style::{ERROR, WARNING};
use super::table::{one_line, table};
use crate::cli::Target;

mod live;

pub(crate) use live::Live;

/// Desired state of an environment in git.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct DeclaredVersions {
    /// Name of the environment.
    pub(crate) environment: String,
    /// Id of the repository.
    pub(crate) repository: String,
    /// Releases with their pinned versions. `None` for unversioned bundles.
    pub(crate) releases: Vec<(String, Option<String>)>,
    /// Release to show. `None`: all releases.
    pub(crate) only: Option<String>,
}

/// Formats the releases with their problems, and the differences from git. With `live`, each release
/// has a header, its objects and a verdict. Without it, the releases are a table.
///
/// `target` is the requested target, if any.
pub(crate) fn text(
    releases: &[ReleaseSummary],
    target: Option<&Target>,
    desired: Option<&DeclaredVersions>,
    live: Option<&Live>,
    now: Timestamp,
) -> String {
    let mut lines = Vec::new();
    match (releases, live) {
        ([], _) => lines.push(match target {
            Some(target) => format!("nothing of {target} is installed"),
            None => "no releases are installed".to_owned(),
        }),
        (_, Some(live)) => {
            for release in releases {
                lines.push(live.header(release, now));
                lines.extend(remarks(release, now));
                lines.extend(standing(release, now).iter().map(|line| one_line(line)));
                lines.extend(live.lines(release, now));
            }
        }
        (_, None) => {
            lines.extend(recorded(releases, now));
            lines.extend(releases.iter().flat_map(|release| remarks(release, now)));
            for release in releases {
                lines.extend(standing(release, now).iter().map(|line| one_line(line)));
            }
        }
    }
    for difference in desired
        .map(|desired| desired.differences(releases))
        .unwrap_or_default()
    {
        lines.push(format!(
            "{WARNING}git{WARNING:#}: {}",
            one_line(&difference)
        ));
    }
    lines.join("\n")
}

/// Formats the recorded results as a table.
fn recorded(releases: &[ReleaseSummary], now: Timestamp) -> Vec<String> {
    let rows: Vec<[String; 7]> = releases.iter().map(|release| row(release, now)).collect();
    let headings = [
        "RELEASE", "VERSION", "REVISION", "READY", "STAGE", "ENTRIES", "AS OF",
    ];
    table(headings, &rows)
}

/// Formats the remarks about a release: controller, problems, conditions and user requests.
fn remarks(release: &ReleaseSummary, now: Timestamp) -> Vec<String> {
    let mut lines = Vec::new();
    let target = release.target();
    if let Some(following) = &release.followed {
        let branch = &following.branch;
        let silent = following.renewed.filter(|_| following.is_stale(now));
        let silent = silent.map(|at| format!(", and was last seen at {at:.0}"));
        let silent = silent.unwrap_or_default();
        lines.push(one_line(&format!(
            "{target}: a controller follows {branch}{silent}"
        )));
    }
    if let Some(trouble) = trouble(release) {
        lines.push(format!("{ERROR}{target}{ERROR:#}: {}", one_line(&trouble)));
    }
    for (kind, reason, message) in &release.conditions {
        let condition = one_line(&format!("{kind}: {reason}: {message}"));
        lines.push(format!("{WARNING}{target}{WARNING:#}: {condition}"));
    }
    lines.extend(nodes(release, now));
    for order in user_requests(release, now) {
        let order = one_line(&order);
        lines.push(format!("{WARNING}{target}{WARNING:#}: {order}"));
    }
    lines
}

/// Formats the nodes that the last run changes: their number, and those that are not changed.
fn nodes(release: &ReleaseSummary, now: Timestamp) -> Vec<String> {
    let target = release.target();
    let Some((done, all)) = release.node_totals() else {
        return Vec::new();
    };
    let mut lines = vec![format!("{target}: {done} of {all} nodes changed")];
    let nodes = release.nodes.nodes.iter();
    // Of the nodes that wait for a driver, one is enough.
    let waiting = nodes
        .clone()
        .find(|node| node.phase == NodePhase::Pending && !node.message.is_empty());
    let open = nodes.filter(|node| !matches!(node.phase, NodePhase::Done | NodePhase::Pending));
    let open = open.chain(waiting);
    lines.extend(open.map(|node| {
        let style = match node.phase {
            NodePhase::Failed => ERROR,
            _ => WARNING,
        };
        let message = match node.message.as_str() {
            "" => String::new(),
            message => format!(": {message}"),
        };
        let text = format!(
            "{} for {}{message}",
            node.phase.as_str(),
            age(node.since, now)
        );
        format!(
            "{style}{target} node {}{style:#}: {}",
            one_line(&node.name),
            one_line(&text)
        )
    }));
    lines
}

/// Returns whether a release is ready, from its record and its live objects.
fn is_ready(release: &ReleaseSummary, live: Option<&Live>) -> Option<bool> {
    let live = live.and_then(|live| live.of(release));
    match live.map(pleach_report::status::LiveStatus::is_ready) {
        Some(Some(false)) => Some(false),
        Some(None) if release.ready == Some(true) => None,
        Some(_) | None => release.ready,
    }
}

fn row(release: &ReleaseSummary, now: Timestamp) -> [String; 7] {
    let ready = match release.ready {
        Some(true) => "True",
        Some(false) => "False",
        None => "Unknown",
    };
    let Ok(record) = &release.record else {
        let unknown = || "?".to_owned();
        return [
            release.target(),
            unknown(),
            unknown(),
            ready.to_owned(),
            unknown(),
            unknown(),
            unknown(),
        ];
    };
    let shown = record.applying.as_ref().or(record.installed.as_ref());
    [
        release.target(),
        versions(record),
        shown
            .map(|attempt| short(&attempt.revision))
            .unwrap_or_default(),
        ready.to_owned(),
        record.stage.clone(),
        record.entries.to_string(),
        record
            .history
            .first()
            .map(|result| format!("{} ago", age(result.at, now)))
            .unwrap_or_default(),
    ]
}

/// Formats the temporary changes: start, attempt and end.
fn standing(release: &ReleaseSummary, now: Timestamp) -> Vec<String> {
    let overlays = release.journal.iter().flat_map(|journal| &journal.overlays);
    overlays
        .map(|(id, one)| {
            if one.is_gate() {
                return closed(release, (id, one), now);
            }
            let what = if one.is_made() { "created" } else { "changed" };
            format!(
                "{}: {} was temporarily {what} {} ago (overlay {id} of {}, until {}; {}); `pleach apply {}` continues, or reverts it if git no longer has it",
                release.target(),
                one.object,
                age(one.since, now),
                one.attempt,
                one.until,
                one.on_failure.explain(),
                release.target(),
            )
        })
        .collect()
}

/// Formats a closed gate: start, attempt and how to lift it.
fn closed(release: &ReleaseSummary, (id, one): (&OverlayId, &Journaled), now: Timestamp) -> String {
    let what = one.gate().map(|gate| gate.explain());
    format!(
        "{}: {} has been closed for {} (gate {id} of {}, until {}; {}); `pleach apply {}` continues, or lifts it if git no longer has it; `{}` lifts it now",
        release.target(),
        what.unwrap_or_else(|| one.object.to_string()),
        age(one.since, now),
        one.attempt,
        one.until,
        one.on_failure.explain(),
        release.target(),
        lifted_by(&one.object),
    )
}

/// Formats the installed version and the one being applied.
pub(crate) fn versions(record: &Installed) -> String {
    match (&record.installed, &record.applying) {
        (None, None) => String::new(),
        (Some(installed), None) => version(installed),
        (Some(installed), Some(applying)) if installed.version == applying.version => {
            format!("{} (unfinished)", version(installed))
        }
        (Some(installed), Some(applying)) => {
            format!("{} -> {}", version(installed), version(applying))
        }
        (None, Some(applying)) => format!("-> {}", version(applying)),
    }
}

/// Formats a version. For an unversioned bundle, this is the revision.
fn version(attempt: &Attempt) -> String {
    if attempt.version == attempt.revision {
        short(&attempt.version)
    } else {
        attempt.version.clone()
    }
}

/// Abbreviates a commit id. Returns any other text unchanged.
pub(crate) fn short(revision: &str) -> String {
    let is_commit = revision.len() == 40 && revision.bytes().all(|byte| byte.is_ascii_hexdigit());
    if is_commit {
        revision[..7].to_owned()
    } else {
        revision.to_owned()
    }
}

/// Returns the reason why a release is not ready.
fn trouble(release: &ReleaseSummary) -> Option<String> {
    if let Err(why) = &release.record {
        return Some(why.clone());
    }
    if release.ready == Some(true) {
        return None;
    }
    let texts: Vec<&str> = [release.reason.as_str(), release.message.as_str()]
        .into_iter()
        .filter(|text| !text.is_empty())
        .collect();
    Some(if texts.is_empty() {
        "its readiness is not known yet".to_owned()
    } else {
        texts.join(": ")
    })
}

/// Formats the user requests for a release.
fn user_requests(release: &ReleaseSummary, now: Timestamp) -> Vec<String> {
    let suspended = release.user_requests.suspended(now).map(Suspension::words);
    let sync = release.user_requests.sync.as_ref().map(|sync| {
        let since = age(sync.at, now);
        if sync.is_stale(now) {
            format!(
                "the sync request of {} is stale: no controller has accepted it for {since}; `pleach sync {} --withdraw` withdraws it",
                sync.by,
                release.target()
            )
        } else {
            format!(
                "sync requested by {} {since} ago; no controller has executed it yet",
                sync.by
            )
        }
    });
    suspended.into_iter().chain(sync).collect()
}

impl DeclaredVersions {
    /// Returns the selected releases of git.
    fn versions(&self) -> impl Iterator<Item = &(String, Option<String>)> {
        self.releases
            .iter()
            .filter(|(name, _)| self.only.as_ref().is_none_or(|only| only == name))
    }

    fn version_of(&self, name: &str) -> Option<&Option<String>> {
        self.releases
            .iter()
            .find(|(release, _)| release == name)
            .map(|(_, version)| version)
    }

    /// Returns the differences between cluster and git in releases and versions.
    fn differences(&self, releases: &[ReleaseSummary]) -> Vec<String> {
        let mut differences = Vec::new();
        for (name, version) in self.missing(releases) {
            let version = version
                .as_ref()
                .map(|version| format!(" ({version})"))
                .unwrap_or_default();
            differences.push(format!(
                "{}/{name}{version} is not installed",
                self.environment
            ));
        }
        for release in releases {
            let target = release.target();
            let record = release.record.as_ref().ok();
            let repository = record.map_or("", |record| record.repository.as_str());
            if !repository.is_empty() && repository != self.repository {
                differences.push(format!(
                    "{target} belongs to repository {repository}, not to {}",
                    self.repository
                ));
                continue;
            }
            let Some(pinned) = self.version_of(&release.name.release) else {
                differences.push(format!(
                    "{target} is installed, and environment {} no longer has it",
                    self.environment
                ));
                continue;
            };
            let installed = record.and_then(|record| record.installed.as_ref());
            if let (Some(pinned), Some(installed)) = (pinned, installed)
                && *pinned != installed.version
            {
                differences.push(format!(
                    "{target} is pinned to {pinned}, and {} is installed",
                    installed.version
                ));
            }
        }
        differences
    }

    fn missing(&self, releases: &[ReleaseSummary]) -> Vec<&(String, Option<String>)> {
        self.versions()
            .filter(|(name, _)| !releases.iter().any(|release| release.name.release == *name))
            .collect()
    }
}

/// Formats the releases as JSON.
pub(crate) fn json(
    releases: &[ReleaseSummary],
    desired: Option<&DeclaredVersions>,
    live: Option<&Live>,
    now: Timestamp,
) -> Value {
    let releases_shown = releases.iter();
    let releases_shown = releases_shown.map(|release| one(release, desired, live, now));
    let mut value = json!({
        "format": 1,
        "releases": releases_shown.collect::<Vec<_>>(),
    });
    if let Some(desired) = desired {
        value["notInstalled"] = desired
            .missing(releases)
            .into_iter()
            .map(|(name, version)| json!({ "release": name, "version": version }))
            .collect();
    }
    value
}

fn one(
    release: &ReleaseSummary,
    desired: Option<&DeclaredVersions>,
    live: Option<&Live>,
    now: Timestamp,
) -> Value {
    let mut value = json!({
        "environment": release.name.environment,
        "release": release.name.release,
        "ready": is_ready(release, live),
        "reason": release.reason,
        "message": release.message,
        "since": release.since,
        "state": release.store,
        "followed": release.followed.as_ref().map(|following| &following.branch),
        "orders": {
            "suspended": release.user_requests.suspended(now).is_some(),
            "suspend": release.user_requests.suspend,
            "sync": release.user_requests.sync,
        },
    });
    value["live"] = live
        .and_then(|live| Some(live::json(live.of(release)?, live.at)))
        .unwrap_or_default();
    match &release.record {
        Ok(record) => {
            value["repository"] = json!(record.repository);
            value["bundle"] = json!(record.bundle);
            value["installed"] = json!(record.installed);
            value["applying"] = json!(record.applying);
            value["stage"] = json!(record.stage);
            value["entries"] = json!(record.entries);
            value["last"] = json!(record.history.first());
        }
        Err(why) => value["unreadable"] = json!(why),
    }
    if !release.conditions.is_empty() {
        let conditions = release.conditions.iter();
        value["conditions"] = conditions
            .map(|(kind, reason, message)| {
                json!({ "type": kind, "reason": reason, "message": message })
            })
            .collect();
    }
    if !release.nodes.is_empty() {
        let counts = release.nodes.counts.iter();
        value["nodes"] = json!(release.nodes.nodes);
        value["nodeCounts"] = counts
            .map(|(phase, count)| (phase.as_str().to_owned(), json!(count)))
            .collect();
    }
    if let Some(journal) = &release.journal {
        value["overlays"] = journal
            .overlays
            .iter()
            .map(|(id, one)| {
                json!({
                    "overlay": id.name(),
                    "object": one.object,
                    "since": one.since,
                    "attempt": one.attempt,
                    "until": one.until,
                    "original": one.original,
                    "onFailure": one.on_failure.explain(),
                })
            })
            .collect();
    }
    if let Some(desired) = desired {
        let pinned = desired.version_of(&release.name.release);
        value["git"] = json!({ "desired": pinned.is_some(), "version": pinned.cloned().flatten() });
    }
    value
}

#[cfg(test)]
mod tests;
