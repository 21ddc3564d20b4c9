//! Page of all environments.

use std::collections::BTreeMap;

use minijinja::{Value, context};

use super::hidden::Hidden;
use super::{Content, Request, text};
use crate::board::{Board, Environment, Release, State};
use crate::facts;

/// Maximum number of releases on the page.
const RELEASES: usize = 2_000;

pub(super) fn content(
    board: &Board,
    (search, selected): (&str, Option<State>),
    request: &Request<'_>,
) -> Content {
    let hidden = Hidden::of(board, request.viewer, None);
    let mut counts: BTreeMap<State, usize> = BTreeMap::new();
    let mut left = RELEASES;
    let mut left_out = 0;
    let is_filtered = !search.is_empty() || selected.is_some();
    let mut environments = Vec::new();
    for (name, environment) in board.visible_environments(request.viewer) {
        let releases = environment.visible_releases(request.viewer);
        let releases = releases.inspect(|release| {
            *counts.entry(release.state()).or_default() += 1;
        });
        let releases: Vec<&Release> = releases
            .filter(|release| {
                selected.is_none_or(|state| release.state() == state)
                    && matches((name, release), search, &hidden)
            })
            .collect();
        if releases.is_empty() && is_filtered {
            continue;
        }
        let shown = releases.len().min(left);
        left -= shown;
        left_out += releases.len() - shown;
        let rows = releases[..shown]
            .iter()
            .map(|release| text::row(release, &hidden));
        environments.push(context! {
            name => facts::text(name),
            about => about(environment),
            notices => text::notices(board, environment, request.now),
            releases => rows.collect::<Vec<_>>(),
            empty => empty(environment),
        });
    }
    let counts: Vec<Value> = counts
        .into_iter()
        .map(|(state, count)| context! { key => state.key(), count, ..text::state(state) })
        .collect();
    let empty = if is_filtered {
        "No release matches."
    } else {
        "No environment is known yet. Environments appear when their branch is fetched."
    };
    Content {
        template: "board.html.j2",
        title: "Releases".to_owned(),
        section: "releases",
        values: context! {
            q => facts::text(search),
            selected => selected.map_or("", State::key),
            counts,
            notices => text::board_notices(board, request.viewer),
            environments,
            empty,
            left_out,
        },
    }
}

fn matches((environment, release): (&str, &Release), search: &str, hidden: &Hidden) -> bool {
    search.is_empty()
        || environment.contains(search)
        || release.name.release.contains(search)
        || release
            .version()
            .is_some_and(|version| version.contains(search))
        || hidden
            .in_text(&release.reason())
            .to_lowercase()
            .contains(search)
}

/// Describes branch and commit of an environment.
pub(super) fn about(environment: &Environment) -> String {
    let revision = environment.revision.as_deref().map(text::commit);
    let parts = [
        environment.branch.clone(),
        revision.map(|revision| format!("at {revision}")),
    ];
    let parts: Vec<String> = parts.into_iter().flatten().collect();
    parts.join(" ")
}

/// Explains an environment without releases.
pub(super) fn empty(environment: &Environment) -> &'static str {
    match (environment.led, &environment.revision) {
        (false, _) => "Its releases are not known here.",
        (true, None) => "It is not loaded yet.",
        (true, Some(_)) => "It has no releases.",
    }
}
