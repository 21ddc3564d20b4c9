//! Texts of all pages.

use std::fmt::Write as _;

use jiff::{SignedDuration, Timestamp};
use minijinja::value::Serde;
use minijinja::{Value, context};
use pleach_model::sanitize::clipped;
use serde::Serialize;

use super::hidden::Hidden;
use crate::board::{Board, Environment, Release, State};
use crate::facts::text;
use crate::viewer::Viewer;

/// Maximum number of characters of a reason in a list.
const REASON: usize = 300;

/// Returns a value for templates.
pub(crate) fn value(value: impl Serialize) -> Value {
    Value::from(Serde(value))
}

/// Returns a time for templates.
pub(super) fn moment(at: Timestamp) -> Value {
    context! {
        iso => format!("{at:.0}"),
        text => at.strftime("%Y-%m-%d %H:%M:%S UTC").to_string(),
    }
}

/// Returns a duration in its largest unit.
pub(super) fn ago(duration: SignedDuration) -> String {
    let seconds = duration.as_secs().max(0);
    match seconds {
        0..60 => format!("{seconds} s ago"),
        60..3_600 => format!("{} min ago", seconds / 60),
        3_600..172_800 => format!("{} h ago", seconds / 3_600),
        _ => format!("{} days ago", seconds / 86_400),
    }
}

/// Shortens a commit id.
pub(super) fn commit(revision: &str) -> &str {
    let is_commit = revision.len() == 40 && revision.bytes().all(|byte| byte.is_ascii_hexdigit());
    if is_commit { &revision[..7] } else { revision }
}

/// Encodes a value of a query.
pub(super) fn encoded(value: &str) -> String {
    let mut encoded = String::new();
    for byte in value.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            encoded.push(char::from(byte));
        } else {
            // Writing to a String cannot fail.
            let _ = write!(encoded, "%{byte:02X}");
        }
    }
    encoded
}

/// Returns a state for templates.
pub(super) fn state(state: State) -> Value {
    context! {
        class => state.class(),
        symbol => state.symbol().to_string(),
        words => state.words(),
    }
}

/// Returns the row of a release in a list.
pub(super) fn row(release: &Release, hidden: &Hidden) -> Value {
    let state = release.state();
    context! {
        name => text(&release.name.release),
        version => version(release),
        state => self::state(state),
        // Before it is cut: a part of a name is not recognized.
        reason => clipped(&hidden.in_text(&release.reason()), REASON),
        is_approval => state == State::Unapproved,
    }
}

/// Returns the version of a release: the present one, and the desired one if it differs.
pub(super) fn version(release: &Release) -> String {
    let Some(version) = release.version() else {
        return String::new();
    };
    let desired = release
        .facts
        .as_ref()
        .map_or(version, |facts| &facts.version);
    if desired == version {
        commit(version).to_owned()
    } else {
        format!("{} → {}", commit(version), commit(desired))
    }
}

/// A notice: class, title and text.
pub(super) fn notice(class: &str, title: &str, text: &str) -> Value {
    context! { class, title, text }
}

/// Returns the notices about the environment as a whole.
pub(super) fn notices(board: &Board, environment: &Environment, now: Timestamp) -> Vec<Value> {
    let mut notices = Vec::new();
    let as_of = |at: Option<Timestamp>| {
        at.map_or_else(
            || "nothing is known yet".to_owned(),
            |at| {
                let clock = at.strftime("%H:%M:%S UTC");
                format!("state as of {clock}, {}", ago(now.duration_since(at)))
            },
        )
    };
    if let Some(stalled) = &environment.stalled {
        let at = stalled.revision.as_deref().map(commit);
        let at = at.map_or_else(String::new, |at| format!(" at {at}"));
        notices.push(notice(
            "bad",
            &format!("Stalled{at}:"),
            &format!("{}: {}", stalled.reason, stalled.message),
        ));
    }
    if let Some(unreachable) = &environment.unreachable {
        let message = if unreachable.message.is_empty() {
            String::new()
        } else {
            format!("; {}", unreachable.message)
        };
        let known = as_of(environment.answered);
        notices.push(notice(
            "bad",
            "Cluster unreachable:",
            &format!("{known}{message}"),
        ));
    }
    let repository = environment.repository.as_ref();
    if let Some(repository) = repository.and_then(|name| board.repositories.get(name))
        && let Some(error) = &repository.error
    {
        let known = as_of(repository.fetched);
        notices.push(notice(
            "warn",
            "Repository unreachable:",
            &format!("{known}; {error}"),
        ));
    }
    if !environment.led {
        let leader = environment.leader.as_ref();
        let text = match leader {
            Some(leader) => format!(
                "{leader}; states are those of the Releases, and plans and steps are on the page of that replica"
            ),
            None => "pleach status lists its releases".to_owned(),
        };
        notices.push(notice(
            "warn",
            "Another replica reconciles this environment:",
            &text,
        ));
    }
    notices
}

/// Returns the notices about the whole board, and about the viewer.
pub(super) fn board_notices(board: &Board, viewer: &Viewer) -> Vec<Value> {
    let mut notices = Vec::from_iter(partial(viewer));
    if board.replicas == Some(0) {
        notices.push(notice(
            "bad",
            "Cut off:",
            "this replica does not reach the other replicas",
        ));
    }
    notices
}

/// Returns the notice about releases that are missing on a page, because their reviews take long.
pub(super) fn partial(viewer: &Viewer) -> Option<Value> {
    let text = "your permissions for some releases are not known yet; load the page again";
    viewer
        .is_partial()
        .then(|| notice("warn", "Incomplete:", text))
}

/// Returns the releases that a release waits for, from the nearest to the cause: of its
/// dependencies that are not in sync, the first one, and so on.
pub(super) fn chain(
    (environment, release): (&Environment, &Release),
    viewer: &Viewer,
    hidden: &Hidden,
) -> Vec<Value> {
    const LONGEST: usize = 20;
    let mut chain = Vec::new();
    let mut seen = vec![release.name.release.as_str()];
    let mut at = release;
    while at.state() == State::Waiting && chain.len() < LONGEST {
        let mut needs = at
            .depends_on()
            .filter_map(|name| environment.releases.get(name));
        let next = needs.find(|need| {
            let is_new = !seen.contains(&&*need.name.release);
            is_new && need.state() != State::InSync
        });
        let Some(next) = next.filter(|next| viewer.may(crate::viewer::Verb::Get, &next.name))
        else {
            break;
        };
        seen.push(&next.name.release);
        chain.push(row(next, hidden));
        at = next;
    }
    chain
}
