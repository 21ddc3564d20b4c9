//! Pages with hostile content.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::sync::Arc;

use pleach_model::object::ObjectId;
use pleach_page::board::{Board, LoadedEnvironment, Stalled, StepState, Wait};
use pleach_page::facts::{FindingView, ReleaseFacts};
use pleach_page::viewer::{Permissions, Verb, Viewer};
use pleach_reconciler::outcome::ReconcileOutcome;
use pleach_report::preview::rehearsal::{ReleaseResult, ResultFinding};

use crate::fixtures::{at, facts, html, load, name, outcome, rehearsal};

const HOSTILE: [&str; 4] = [
    "<img src=x onerror=alert(1)>",
    "\"><script>alert(1)</script>",
    "javascript:alert(1)",
    "\u{202e}txt.exe\u{200b}\u{2066}",
];

/// Replaces every text of the facts.
fn poisoned(facts: ReleaseFacts, text: &str) -> ReleaseFacts {
    let mut facts = facts;
    let own = || text.to_owned();
    facts.bundle = own();
    facts.degraded = Some(own());
    facts.suspended = Some(own());
    facts.active = vec![own()];
    let mut rehearsed = rehearsal();
    rehearsed.by = own();
    rehearsed.result = ReleaseResult {
        summary: own(),
        out_of_date: Some(own()),
        kubernetes: own(),
        revision: own(),
        ..rehearsed.result
    };
    for finding in &mut rehearsed.result.findings {
        let ResultFinding {
            stage,
            object,
            message,
            hint,
        } = finding;
        (*stage, *object, *message, *hint) = (own(), own(), own(), own());
    }
    facts.rehearsal = Some(Ok(rehearsed));
    facts.branch = Some(own());
    for row in &mut facts.objects {
        row.object = ObjectId::new(text, text, Some(text), text);
        row.reason = Some(text.into());
        row.writer = Some(text.into());
        row.is_drift = true;
    }
    if let Some(record) = &mut facts.record {
        record.contended = vec![own()];
        for row in &mut record.history {
            (row.result, row.by, row.changes) = (own(), own(), own());
            row.notes = vec![own()];
        }
    }
    facts.plan.summary = own();
    facts.plan.temporary = vec![own()];
    facts.plan.findings = vec![FindingView {
        severity: "error".to_owned(),
        code: own(),
        about: own(),
        message: own(),
        hint: Some(own()),
    }];
    for step in facts
        .plan
        .stages
        .iter_mut()
        .flat_map(|stage| &mut stage.steps)
    {
        (step.subject, step.reason) = (own(), Some(own()));
    }
    for object in facts.plan.changes.iter_mut().flatten() {
        (object.rest, object.remarks) = (own(), vec![own()]);
        for line in &mut object.lines {
            line.parts[0].text = own();
        }
    }
    facts
}

fn hostile(text: &str) -> Board {
    let mut board = Board::default();
    load(&mut board, "production", &[]);
    let releases = ["web".to_owned(), "db".to_owned()];
    board.loaded(&LoadedEnvironment {
        repository: text,
        environment: "production",
        cluster: Some(text),
        revision: text,
        releases: &releases,
        stalled: &BTreeMap::from([("db".to_owned(), text.to_owned())]),
    });
    board.fetched(text, Err(text));
    board.answered("production", at(-5), Some(text));
    board.stalled(
        "production",
        &Stalled {
            revision: Some(text.to_owned()),
            reason: text.to_owned(),
            message: text.to_owned(),
        },
    );
    let web = name("production", "web");
    board.planned(&web, &Arc::new(poisoned(facts(&web, &["db"]), text)));
    board.finished(&web, outcome(ReconcileOutcome::Waiting, text));
    board
}

fn addresses() -> Vec<String> {
    let tabs = ["", "/plan", "/diff", "/objects", "/history", "/graph"];
    let tabs = tabs.map(|tab| format!("/releases/production/web{tab}"));
    let others = ["/", "/waiting", "/environments/production"].map(str::to_owned);
    tabs.into_iter().chain(others).collect()
}

#[test]
fn hostile_text_is_never_markup() {
    let all = Permissions {
        everywhere: Verb::ALL.into(),
        ..Permissions::default()
    };
    for text in HOSTILE {
        let mut board = hostile(text);
        let viewer = Viewer::signed_in(text, all.clone());
        for running in [false, true] {
            if running {
                let web = name("production", "web");
                board.applying(&web, at(-3), text);
                board.progress(&web, at(-3), |run| {
                    run.steps.insert(0, StepState::Failed(text.to_owned()));
                    run.set_wait(
                        2,
                        &Wait {
                            object: text.to_owned(),
                            message: text.to_owned(),
                            since: at(-2),
                        },
                    );
                });
            }
            for address in addresses() {
                let page = html(&board, &viewer, &address);
                assert!(!page.contains("<img"), "{address}: {page}");
                assert_eq!(page.matches("<script").count(), 1, "{address}");
                for attribute in ["href=\"", "action=\"", "src=\""] {
                    for value in page.split(attribute).skip(1) {
                        let is_ours =
                            value.starts_with(['/', '#', '?']) || value.starts_with("data:,\"");
                        assert!(
                            is_ours,
                            "{address}: {attribute}{}",
                            &value[..value.len().min(60)]
                        );
                    }
                }
                assert!(!page.contains(" style="), "{address}");
                for mark in ['\u{202e}', '\u{2066}', '\u{200b}'] {
                    assert!(!page.contains(mark), "{address} has {mark:?}");
                }
            }
        }
    }
}

#[test]
fn templates_escape_everything() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/templates");
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let text = fs::read_to_string(&path).unwrap();
        // Files have their style inside.
        let text = text.replace("<style>\n{{ inline_style }}</style>", "");
        let text = text.replace("style-src 'unsafe-inline'", "");
        for forbidden in [
            "safe",
            "autoescape",
            "style=",
            "onclick",
            "<style",
            "javascript:",
        ] {
            assert!(
                !text.contains(forbidden),
                "{} has {forbidden}",
                path.display()
            );
        }
        // The only script is a file of its own.
        assert!(
            !text
                .replace("<script type=\"module\" src=", "")
                .contains("<script")
        );
    }
}
