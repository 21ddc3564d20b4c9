//! Golden files of the pages.

use std::sync::Arc;

use insta::assert_snapshot;
use pleach_page::board::Board;
use pleach_page::facts::ReleaseFacts;
use pleach_page::standalone;
use pleach_page::viewer::{Permissions, Verb, Viewer};
use pleach_reconciler::outcome::ReconcileOutcome;
use pleach_report::preview::rehearsal::ReleaseResult;

use crate::fixtures::{diff, every_state, facts, html, name, outcome, plan, rehearsal, try_html};

const TABS: [&str; 6] = ["", "/plan", "/diff", "/objects", "/history", "/graph"];

/// Returns the main part of a page without its time.
fn main_part(board: &Board, viewer: &Viewer, address: &str) -> String {
    let separator = if address.contains('?') { '&' } else { '?' };
    html(board, viewer, &format!("{address}{separator}fragment=main"))
}

#[test]
fn the_overview_shows_every_state() {
    let board = every_state();
    assert_snapshot!(html(&board, &Viewer::read_only(), "/"));
}

#[test]
fn a_release_of_another_replica_has_the_state_of_its_object() {
    let address = "/releases/elsewhere/web";
    let page = main_part(&every_state(), &Viewer::read_only(), address);
    assert_snapshot!(page);
}

#[test]
fn pages_of_environments() {
    let board = every_state();
    for environment in ["production", "stalled", "unreachable", "elsewhere", "empty"] {
        let page = main_part(
            &board,
            &Viewer::read_only(),
            &format!("/environments/{environment}"),
        );
        assert_snapshot!(format!("environment_{environment}"), page);
    }
}

#[test]
fn pages_of_releases() {
    let board = every_state();
    for tab in TABS {
        let page = main_part(
            &board,
            &Viewer::read_only(),
            &format!("/releases/production/syncing{tab}"),
        );
        assert_snapshot!(format!("release_{}", tab.trim_start_matches('/')), page);
    }
    for release in [
        "approval",
        "degraded",
        "drifted",
        "suspended",
        "pending",
        "waits-for-waiting",
    ] {
        let page = main_part(
            &board,
            &Viewer::read_only(),
            &format!("/releases/production/{release}"),
        );
        assert_snapshot!(format!("state_{release}"), page);
    }
}

#[test]
fn the_waiting_releases_lead_to_their_cause() {
    let board = every_state();
    assert_snapshot!(main_part(&board, &Viewer::read_only(), "/waiting"));
}

#[test]
fn every_tab_of_every_release_renders() {
    let board = every_state();
    for (environment, known) in &board.environments {
        for release in known.releases.keys() {
            for tab in TABS {
                let address = format!("/releases/{environment}/{release}{tab}");
                let page = html(&board, &Viewer::read_only(), &address);
                assert!(page.starts_with("<!DOCTYPE html>"), "{address}");
                assert_eq!(page.matches("<h1").count(), 1, "{address}");
                assert_eq!(page.matches("<main").count(), 1, "{address}");
            }
        }
    }
}

#[test]
fn actions_appear_for_users_who_are_allowed_to_use_them() {
    let board = every_state();
    let all = Viewer::signed_in(
        "ann@example.org",
        Permissions {
            everywhere: Verb::ALL.into(),
            ..Permissions::default()
        },
    );
    for (release, verb, expected) in [
        ("approval", "approve", true),
        ("approval", "sync", true),
        ("approval", "suspend", true),
        ("approval", "resume", false),
        ("in-sync", "approve", false),
        ("suspended", "resume", true),
        ("suspended", "suspend", false),
    ] {
        let address = format!("/releases/production/{release}");
        let form = format!("action=\"{address}/{verb}\"");
        let shown = html(&board, &all, &address).contains(&form);
        assert_eq!(shown, expected, "{release} {verb}");
        let page = html(&board, &Viewer::read_only(), &address);
        assert!(!page.contains("method=\"post\""), "{release}");
    }
    assert_snapshot!(
        "actions",
        html(&board, &all, "/releases/production/approval")
    );
}

#[test]
fn the_page_of_a_release_shows_its_rehearsal() {
    let all = Permissions {
        everywhere: Verb::ALL.into(),
        ..Permissions::default()
    };
    let viewer = Viewer::signed_in("ann", all);
    let approval = name("production", "approval");
    let page = |rehearsal, state| {
        let mut board = every_state();
        let facts = ReleaseFacts {
            rehearsal,
            ..facts(&approval, &[])
        };
        board.planned(&approval, &Arc::new(facts));
        board.finished(&approval, outcome(state, ""));
        let page = main_part(&board, &viewer, "/releases/production/approval");
        page.split_once("<h2>Facts").unwrap().0.to_owned()
    };
    assert_snapshot!(
        "rehearsal",
        page(Some(Ok(rehearsal())), ReconcileOutcome::Unapproved)
    );
    let how = "<code>pleach rehearse production/approval --attach</code>";
    let mut passed = rehearsal();
    passed.result = ReleaseResult {
        summary: "yes, 3 writes, 0 refused".to_owned(),
        passed: true,
        findings: Vec::new(),
        findings_left_out: 0,
        ..passed.result
    };
    let mut old = passed.clone();
    old.result.out_of_date = Some("the plan has other effects".to_owned());
    let wait = ReconcileOutcome::Unapproved;
    for (case, report, outcome, expected, absent) in [
        (
            "passed",
            Some(Ok(passed)),
            wait,
            "<span class=\"state ok\">rehearsed:</span> yes, 3 writes, 0 refused",
            how,
        ),
        (
            "out of date",
            Some(Ok(old)),
            wait,
            "out of date: the plan has other effects; it was: yes, 3 writes, 0 refused",
            "state ok\">rehearsed",
        ),
        (
            "unreadable",
            Some(Err("it has no report".to_owned())),
            wait,
            "cannot be read: it has no report",
            "as reported by",
        ),
        ("none", None, wait, how, "rehearsed:"),
        (
            "none, and no plan waits",
            None,
            ReconcileOutcome::Failed,
            "<h2>Actions",
            "Rehearsal",
        ),
    ] {
        let page = page(report, outcome);
        assert!(page.contains(expected), "{case}: {page}");
        assert!(!page.contains(absent), "{case}: {page}");
    }
}

#[test]
fn a_hidden_release_is_nowhere() {
    let board = every_state();
    let viewer = Viewer::signed_in(
        "bob",
        Permissions {
            releases: [(name("production", "waits-for-waiting"), [Verb::Get].into())].into(),
            ..Permissions::default()
        },
    );
    for address in ["/", "/waiting", "/environments/production"] {
        let page = html(&board, &viewer, address);
        assert!(page.contains("waits-for-waiting"), "{address}");
        for hidden in [
            "/releases/production/syncing",
            "/releases/production/waiting\"",
            "stalled\"",
            "CrashLoop",
        ] {
            assert!(!page.contains(hidden), "{address}: {hidden}");
        }
    }
    let page = html(&board, &viewer, "/releases/production/waits-for-waiting");
    assert!(!page.contains("in-sync"), "a dependency that is hidden");
    for text in [
        "it depends on release syncing, which is stalled",
        "another client writes: pleach/production.syncing",
        &format!("{} production.syncing", "x".repeat(283)),
    ] {
        let mut board = board.clone();
        let seen = name("production", "waits-for-waiting");
        board.finished(&seen, outcome(ReconcileOutcome::Failed, text));
        for address in [
            "/",
            "/environments/production",
            "/releases/production/waits-for-waiting",
            "/releases/production/waits-for-waiting/history",
        ] {
            let page = html(&board, &viewer, address);
            assert!(!page.contains("sync"), "{address}: {page}");
            assert!(page.contains("another release"), "{address}: {page}");
        }
        // A search does not find the name either, and repeats only its own text.
        let page = html(&board, &viewer, "/?q=production.sync");
        assert!(!page.contains("waits-for-waiting"), "{page}");
        let all = html(&board, &Viewer::read_only(), "/environments/production");
        assert!(
            all.contains("release syncing") || all.contains("production.sync"),
            "{all}"
        );
    }
    for address in [
        "/releases/production/syncing",
        "/releases/production/syncing/diff",
        "/environments/stalled",
        "/environments/absent",
        "/releases/production/absent",
        "/releases/production/waits-for-waiting/absent",
        "/releases/production/waits-for-waiting/plan/more",
        "/releases/production",
        "/?fragment=other",
    ] {
        assert_eq!(try_html(&board, &viewer, address), None, "{address}");
    }
}

#[test]
fn incomplete_permissions_are_reported() {
    let board = every_state();
    let mut permissions = Permissions {
        releases: [(name("production", "syncing"), [Verb::Get].into())].into(),
        ..Permissions::default()
    };
    for is_partial in [false, true] {
        permissions.is_partial = is_partial;
        let viewer = Viewer::signed_in("bob", permissions.clone());
        for address in ["/", "/waiting", "/environments/production"] {
            let page = html(&board, &viewer, address);
            assert_eq!(page.contains("Incomplete:"), is_partial, "{address}");
        }
    }
}

#[test]
fn lists_are_filtered() {
    let board = every_state();
    let viewer = Viewer::read_only();
    let page = html(&board, &viewer, "/?q=kubectl");
    assert!(page.contains("/releases/production/drifted\""));
    assert!(!page.contains("/releases/production/failed\""));
    let page = html(&board, &viewer, "/?state=failed");
    assert!(page.contains("/releases/production/failed\""));
    assert!(!page.contains("/releases/production/drifted\""));
    let page = html(
        &board,
        &viewer,
        "/releases/production/failed/objects?q=service",
    );
    assert!(page.contains("1 object <small>of 5</small>"), "{page}");
    let none = html(&board, &viewer, "/?q=nothing-like-that");
    assert!(none.contains("No release matches."));
}

#[test]
fn plans_are_a_page_of_their_own() {
    let plans = ["web", "db"].map(|release| plan(&name("production", release)));
    let diffs = plans.each_ref().map(diff);
    let page = standalone::plans("Plan of production", plans.iter().zip(&diffs)).unwrap();
    assert!(!page.contains("<script") && !page.contains("href=\"http"));
    let (head, rest) = page.split_once("<style>").unwrap();
    let (_, body) = rest.split_once("</style>").unwrap();
    assert_snapshot!(format!("{head}<style></style>{body}").replace("&#x2f;", "/"));
}
