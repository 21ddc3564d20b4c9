//! Page of all releases that wait.

use minijinja::{Value, context};

use super::hidden::Hidden;
use super::{Content, Request, release, text};
use crate::board::{Board, Environment, Release, State};
use crate::facts;

/// Maximum number of releases on the page.
const RELEASES: usize = 300;

pub(super) fn content(board: &Board, request: &Request<'_>) -> Content {
    let hidden = Hidden::of(board, request.viewer, None);
    let mut waiting: Vec<(&String, &Environment, &Release)> = Vec::new();
    for (name, environment) in board.visible_environments(request.viewer) {
        let releases = environment.visible_releases(request.viewer);
        let releases = releases.filter(|release| waits(release));
        waiting.extend(releases.map(|release| (name, environment, release)));
    }
    let rows: Vec<Value> = waiting
        .iter()
        .take(RELEASES)
        .map(|(name, environment, release)| {
            context! {
                environment => facts::text(name),
                waits => release::waits(release),
                chain => text::chain((environment, release), request.viewer, &hidden),
                ..text::row(release, &hidden)
            }
        })
        .collect();
    Content {
        template: "waiting.html.j2",
        title: "Waiting".to_owned(),
        section: "waiting",
        values: context! {
            notices => text::board_notices(board, request.viewer),
            rows,
            left_out => waiting.len().saturating_sub(RELEASES),
        },
    }
}

fn waits(release: &Release) -> bool {
    match release.state() {
        State::Unapproved | State::Waiting | State::Suspended | State::Stalled => true,
        State::Syncing => release
            .running()
            .is_some_and(|run| run.queued.is_some() || !run.waits.is_empty()),
        State::Failed
        | State::Refused
        | State::Degraded
        | State::Drifted
        | State::Pending
        | State::InSync => false,
    }
}
