//! Page of one environment.

use minijinja::context;
use pleach_model::object::ReleaseName;

use super::hidden::Hidden;
use super::{Content, Request, overview, text};
use crate::board::{Board, Environment, Release};
use crate::facts;
use crate::graph::{Graph, MAX_NODES, Node, Picture};
use crate::viewer::Verb;

/// Maximum number of releases on the page.
const RELEASES: usize = 2_000;

pub(super) fn content(board: &Board, name: &str, request: &Request<'_>) -> Option<Content> {
    let environment = board.environments.get(name)?;
    let hidden = Hidden::of(board, request.viewer, Some(name));
    let releases = environment.in_order(request.viewer);
    let rows = releases.iter().take(RELEASES).map(|release| {
        let after = release.depends_on().filter(|after| {
            let name = ReleaseName {
                environment: name.to_owned(),
                release: (*after).to_owned(),
            };
            request.viewer.may(Verb::Get, &name)
        });
        let after: Vec<&str> = after.collect();
        context! { after => after.join(", "), ..text::row(release, &hidden) }
    });
    let mut notices = text::notices(board, environment, request.now);
    notices.extend(text::partial(request.viewer));
    Some(Content {
        template: "environment.html.j2",
        title: facts::text(name),
        section: "",
        values: context! {
            name => facts::text(name),
            notices,
            about => about(board, environment, &releases, request),
            releases => rows.collect::<Vec<_>>(),
            empty => overview::empty(environment),
            left_out => releases.len().saturating_sub(RELEASES),
            graph => graph(name, &releases).map(text::value),
        },
    })
}

fn about(
    board: &Board,
    environment: &Environment,
    releases: &[&Release],
    request: &Request<'_>,
) -> Vec<(&'static str, String)> {
    let facts = releases.iter().find_map(|release| release.facts.as_ref());
    let windows = facts.map(|facts| {
        let declared = facts.windows.declared();
        let windows: Vec<String> = declared.iter().flatten().map(window).collect();
        let now = if facts.windows.are_open(request.now) {
            "open now"
        } else {
            "closed now"
        };
        if windows.is_empty() {
            "always open".to_owned()
        } else {
            format!("{now}: {}", windows.join("; "))
        }
    });
    let approval = facts.map(|facts| {
        if facts.needs_approval {
            "required"
        } else {
            "not required"
        }
    });
    let reconciled = match &environment.leader {
        _ if environment.led => "this replica",
        Some(leader) => leader,
        None => "another replica",
    };
    let replicas = board
        .replicas
        .map(|replicas| format!(" of {replicas}"))
        .unwrap_or_default();
    [
        ("Repository", environment.repository.clone()),
        ("Branch", environment.branch.clone()),
        ("Commit", environment.revision.clone()),
        ("Cluster", environment.cluster.clone()),
        ("Reconciled by", Some(format!("{reconciled}{replicas}"))),
        ("Change windows", windows),
        ("Approval", approval.map(str::to_owned)),
    ]
    .into_iter()
    .filter_map(|(title, value)| Some((title, facts::text(&value?))))
    .collect()
}

fn window(window: &pleach_formats::file::Window) -> String {
    let side =
        |word: &str, span: &Option<String>| span.as_ref().map(|span| format!("{word} {span}"));
    let sides = [side("allow", &window.allow), side("deny", &window.deny)];
    let sides: Vec<String> = sides.into_iter().flatten().collect();
    let zone = window.time_zone.as_deref().unwrap_or("UTC");
    format!("{} ({zone})", sides.join(", "))
}

/// Draws the releases with their dependencies. `None` if there are none, or too many.
fn graph(environment: &str, releases: &[&Release]) -> Option<Picture> {
    let position = |name: &str| releases.iter().position(|one| one.name.release == name);
    let edges = releases.iter().enumerate().flat_map(|(to, release)| {
        let needs = release.depends_on().filter_map(position);
        needs.map(move |from| (from, to))
    });
    if releases.len() > MAX_NODES {
        return None;
    }
    let graph = Graph {
        edges: edges.collect(),
        nodes: releases
            .iter()
            .map(|release| node(environment, release))
            .collect(),
    };
    (!graph.edges.is_empty()).then(|| graph.picture())
}

fn node(environment: &str, release: &Release) -> Node {
    let state = release.state();
    let name = facts::text(&release.name.release);
    Node {
        note: format!("{} {}", state.symbol(), state.words()),
        class: state.class(),
        href: Some(format!("/releases/{}/{name}", facts::text(environment))),
        label: name,
    }
}
