//! Sizes of pages and of their files.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::sync::Arc;

use pleach_model::object::ObjectId;
use pleach_page::board::Board;
use pleach_page::facts::{ObjectRow, PlanView, ReleaseFacts};
use pleach_page::pages::{SCRIPT, STYLE};
use pleach_page::viewer::{Permissions, Verb, Viewer};
use pleach_planner::plan::Action;
use pleach_planner::text_diff::hunks;
use pleach_reconciler::outcome::ReconcileOutcome;

use crate::fixtures::{diff, every_state, facts, html, load, name, outcome, plan};

const KIB: usize = 1024;

#[test]
fn style_and_script_are_small() {
    let size = STYLE.len() + SCRIPT.len();
    assert!(size <= 25 * KIB, "{size} bytes");
}

#[test]
fn a_thousand_releases_fit_on_a_page() {
    let names: Vec<String> = (0..1_000)
        .map(|number| format!("release-{number:04}"))
        .collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let mut board = Board::default();
    load(&mut board, "production", &names);
    for release in names {
        let name = name("production", release);
        board.planned(&name, &Arc::new(facts(&name, &[])));
        let waits =
            "dependency database is not ready: Deployment.apps/shop/db: 1 of 2 replicas ready";
        board.finished(&name, outcome(ReconcileOutcome::Waiting, waits));
    }
    let page = html(&board, &Viewer::read_only(), "/");
    assert_eq!(page.matches("<tr>").count(), 1_001);
    assert!(page.len() <= 300 * KIB, "{} bytes", page.len());
}

/// Returns facts with more steps, objects and lines than a page shows.
fn huge() -> ReleaseFacts {
    let web = name("production", "web");
    let mut facts = facts(&web, &[]);
    let mut plan = plan(&web);
    let mut text = String::new();
    for number in 0..4_000 {
        writeln!(text, "key-{number}: value of the key with number {number}").unwrap();
    }
    let template = plan.steps[2].clone();
    for number in 4..4_000 {
        let mut step = template.clone();
        step.id.0 = number;
        plan.steps.push(step);
    }
    let mut diff = diff(&plan);
    for object in &mut diff.objects {
        object.hunks = hunks("", &text, 3);
    }
    let all: Vec<_> = (0..100).flat_map(|_| diff.objects.clone()).collect();
    diff.objects = all;
    facts.plan = PlanView::of(&plan, Some(&diff));
    facts.objects = (0..20_000)
        .map(|number| ObjectRow {
            object: ObjectId::new("", "ConfigMap", Some("shop"), &format!("object-{number}")),
            action: Action::Unchanged,
            reason: None,
            writer: None,
            is_drift: false,
        })
        .collect();
    facts
}

#[test]
fn a_huge_release_is_cut() {
    let mut board = Board::default();
    load(&mut board, "production", &["web"]);
    let web = name("production", "web");
    board.planned(&web, &Arc::new(huge()));
    for (tab, command) in [
        ("", ""),
        ("/plan", "pleach plan production/web"),
        ("/diff", "pleach diff production/web"),
        ("/objects", ""),
        ("/objects?page=100", ""),
        ("/graph", ""),
        ("/graph?node=900", ""),
    ] {
        let page = html(
            &board,
            &Viewer::read_only(),
            &format!("/releases/production/web{tab}"),
        );
        assert!(page.len() <= 512 * KIB, "{tab}: {} bytes", page.len());
        assert!(page.contains(command), "{tab}");
    }
}

#[test]
fn differences_of_all_releases_are_bounded() {
    let names: Vec<String> = (0..400).map(|number| format!("release-{number}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let mut board = Board::default();
    load(&mut board, "production", &names);
    let huge = huge();
    for (second, release) in names.iter().enumerate() {
        let mut facts = huge.clone();
        facts.objects.clear();
        facts.at = crate::fixtures::at(second.try_into().unwrap());
        board.planned(&name("production", release), &Arc::new(facts));
    }
    let has_changes = |release: &str| {
        let facts = board.environments["production"].releases[release]
            .facts
            .as_ref();
        facts.unwrap().plan.changes.is_some()
    };
    assert!(!has_changes("release-0"));
    assert!(has_changes("release-399"));
}

/// Writes the pages of all states to files, to view them with a browser.
#[test]
fn pages_are_written_for_a_browser() {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("page");
    fs::create_dir_all(folder.join("static")).unwrap();
    let board = every_state();
    fs::write(folder.join("static/DIGEST.css"), STYLE).unwrap();
    fs::write(folder.join("static/DIGEST.js"), SCRIPT).unwrap();
    let all = Permissions {
        everywhere: Verb::ALL.into(),
        ..Permissions::default()
    };
    let viewer = Viewer::signed_in("ann@example.org", all);
    for (file, address) in [
        ("overview", "/"),
        ("environment", "/environments/production"),
        ("unreachable", "/environments/unreachable"),
        ("syncing", "/releases/production/syncing"),
        ("approval", "/releases/production/approval"),
        ("drifted", "/releases/production/drifted"),
        ("plan", "/releases/production/syncing/plan"),
        ("diff", "/releases/production/syncing/diff"),
        ("objects", "/releases/production/syncing/objects"),
        ("history", "/releases/production/syncing/history"),
        ("graph", "/releases/production/syncing/graph"),
        ("waiting", "/waiting"),
    ] {
        let page = html(&board, &viewer, address);
        fs::write(folder.join(format!("{file}.html")), page).unwrap();
    }
}
