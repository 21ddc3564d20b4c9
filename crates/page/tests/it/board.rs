//! Board and facts.

use std::sync::Arc;

use pleach_fields::ignore::Ignored;
use pleach_formats::sequence::Sequence;
use pleach_formats::sync::SyncPolicy;
use pleach_model::discovery::Discovery;
use pleach_model::object::ReleaseName;
use pleach_model::order::StageName;
use pleach_page::board::{Board, Release, State, StepState};
use pleach_page::facts::{Input, PlanView, ReleaseFacts};
use pleach_page::viewer::Viewer;
use pleach_planner::observe::{ClusterId, Observed};
use pleach_planner::plan::{Action, Change, Desired, Digests, Plan, Terms};
use pleach_reconciler::outcome::ReconcileOutcome;
use pleach_report::attached::{Attached, AttachedError};
use pleach_report::preview::rehearsal::Rehearsal;
use pleach_state::inventory::{
    Attempt, AttemptResult, Installed, RunFacts, RunOutcome, Store, Suspension, UserRequests,
};

use crate::fixtures::{COMMIT, at, diff, facts, in_sync, load, name, object, outcome, plan, run};

fn release<'a>(board: &'a Board, name: &ReleaseName) -> &'a Release {
    &board.environments[&name.environment].releases[&name.release]
}

fn desired(name: &ReleaseName) -> Desired {
    Desired {
        name: name.clone(),
        store: Store::ConfigMap {
            namespace: "shop".to_owned(),
        },
        repository: "fleet".to_owned(),
        bundle: "web".to_owned(),
        version: "v1.4.0".to_owned(),
        revision: COMMIT.to_owned(),
        namespace: None,
        create_namespace: false,
        manifests: Vec::new(),
        runtime_objects: Vec::new(),
        digests: Digests::default(),
        ignored: Ignored::default(),
        findings: Vec::new(),
        terms: Terms::default(),
        sequence: Sequence::default(),
        node_jobs: std::collections::BTreeMap::new(),
    }
}

fn record() -> Installed {
    let digest = pleach_model::object::Digest::of(b"state");
    Installed {
        installed: Some(Attempt {
            version: "v1.3.0".to_owned(),
            revision: COMMIT.to_owned(),
            digest,
            at: at(-500),
        }),
        ready: true,
        history: vec![AttemptResult {
            version: "v1.3.0".to_owned(),
            revision: COMMIT.to_owned(),
            result: RunOutcome::Failed,
            at: at(-400),
            message: "line one\nline two \u{202e}".to_owned(),
            local: "ann".to_owned(),
            overridden: Vec::new(),
            run: RunFacts {
                by: "ann@host".to_owned(),
                seconds: Some(3),
                ..RunFacts::default()
            },
        }],
        ..Installed::default()
    }
}

/// Returns the facts of a plan with an attached report of a rehearsal.
fn with_report(plan: &Plan, report: &Result<Attached, AttachedError>) -> ReleaseFacts {
    let web = name("production", "web");
    let cluster = ClusterId("cluster".to_owned());
    let observed = Observed::of(cluster, "v1.36.0".to_owned(), Discovery::default(), at(0));
    ReleaseFacts::of(&Input {
        at: at(0),
        branch: None,
        depends_on: Vec::new(),
        policy: &SyncPolicy::default(),
        requests: &UserRequests::default(),
        degraded: None,
        desired: &desired(&web),
        observed: &observed,
        plan,
        diff: None,
        rehearsal: Some(report),
    })
}

#[test]
fn a_rehearsal_is_compared_with_the_plan() {
    let web = name("production", "web");
    let changes = plan(&web);
    let nothing = Plan::new(web, "v1.4.0");
    let other = pleach_model::object::Digest::of(b"other");
    let report = |release: &str, effects: &str| {
        let text = format!(
            r#"{{"format": 1, "environment": "production", "revision": "none", "verdict": "passed",
                "releases": [{{"name": "{release}", "effects": "{effects}", "stages": []}}]}}"#
        );
        Ok(Attached {
            at: at(-60),
            by: "ann@laptop".to_owned(),
            rehearsal: Rehearsal::parse(text.as_bytes()).unwrap(),
        })
    };
    let (name, effects) = ("production.web", changes.effects().to_string());
    for (case, plan, report, expected) in [
        ("the same effects", &changes, report(name, &effects), Ok("")),
        (
            "other effects",
            &changes,
            report(name, &other.to_string()),
            Ok("the plan has other effects"),
        ),
        (
            "nothing to change",
            &nothing,
            report(name, &effects),
            Ok("the present plan changes nothing"),
        ),
        (
            "a rehearsal of nothing",
            &nothing,
            report(name, &nothing.effects().to_string()),
            Ok(""),
        ),
        (
            "another release",
            &changes,
            report("production.db", &effects),
            Err("it is of other releases"),
        ),
        (
            "garbage",
            &changes,
            Err(AttachedError::TooLarge),
            Err("it has more than 4194304 bytes"),
        ),
    ] {
        let facts = with_report(plan, &report).rehearsal.unwrap();
        let found = facts.map(|it| it.result.out_of_date.unwrap_or_default());
        let expected = expected.map(str::to_owned).map_err(str::to_owned);
        assert_eq!(found, expected, "{case}");
    }
}

#[test]
fn facts_come_from_plan_record_and_requests() {
    let web = name("production", "web");
    let plan = plan(&web);
    let cluster = ClusterId("cluster".to_owned());
    let mut observed = Observed::of(cluster, "v1.36.0".to_owned(), Discovery::default(), at(0));
    observed.installed = Some(record());
    let requests = UserRequests {
        suspend: Some(Suspension {
            until: None,
            reason: "audit".to_owned(),
            by: "ann".to_owned(),
            at: None,
        }),
        ..UserRequests::default()
    };
    let facts = ReleaseFacts::of(&Input {
        at: at(0),
        branch: Some("env/production"),
        depends_on: vec!["db".to_owned()],
        policy: &SyncPolicy::default(),
        requests: &requests,
        degraded: Some("a\nb"),
        desired: &desired(&web),
        observed: &observed,
        plan: &plan,
        diff: Some(&diff(&plan)),
        rehearsal: None,
    });
    assert_eq!(facts.store_namespace.as_deref(), Some("shop"));
    let suspended = facts.suspended.as_deref();
    assert_eq!(
        suspended,
        Some("suspended by ann until it is resumed: audit")
    );
    assert_eq!(facts.degraded.as_deref(), Some("a b"));
    assert_eq!(facts.objects.len(), 5);
    assert_eq!(facts.plan.stages.len(), 4);
    assert_eq!(facts.plan.changes.as_ref().map(Vec::len), Some(4));
    assert_eq!(facts.plan.effects, plan.effects().to_string());
    assert!(!facts.is_partial);
    let record = facts.record.unwrap();
    assert_eq!(record.version.as_deref(), Some("v1.3.0"));
    let [row] = &record.history[..] else {
        panic!("{:?}", record.history);
    };
    assert_eq!(row.result, "failed");
    assert_eq!(row.notes, ["line one line two \\u{202e}", "local run: ann"]);
}

#[test]
fn a_partial_plan_changes_the_objects_that_it_read() {
    let mut board = Board::default();
    load(&mut board, "production", &["web"]);
    let web = name("production", "web");
    let mut whole = in_sync(&web, &[]);
    let row = whole.objects[0].clone();
    whole.objects = ["a", "b", "c"]
        .map(|name| pleach_page::facts::ObjectRow {
            object: object("ConfigMap", name),
            ..row.clone()
        })
        .to_vec();
    board.planned(&web, &Arc::new(whole));
    let some = Plan {
        changes: vec![Change::new(object("ConfigMap", "b"), Action::Update)],
        ..plan(&web)
    };
    let mut partial = facts(&web, &[]);
    partial.is_partial = true;
    partial.objects.truncate(1);
    partial.objects[0].object = some.changes[0].object.clone();
    board.planned(&web, &Arc::new(partial));
    let facts = release(&board, &web).facts.as_ref().unwrap();
    let actions: Vec<Action> = facts.objects.iter().map(|row| row.action).collect();
    assert_eq!(
        actions,
        [Action::Unchanged, Action::Update, Action::Unchanged]
    );
    assert!(!facts.is_partial);
}

#[test]
fn a_run_ends_with_its_reconcile() {
    let mut board = Board::default();
    load(&mut board, "production", &["web"]);
    let web = name("production", "web");
    board.planned(&web, &Arc::new(facts(&web, &[])));
    run(&mut board, &web);
    assert_eq!(release(&board, &web).state(), State::Syncing);
    let mut deployed = outcome(ReconcileOutcome::Deployed, "1 updated");
    deployed.at = at(0);
    board.finished(&web, deployed);
    // Events of the run can arrive late.
    board.progress(&web, at(1), |run| {
        run.steps.insert(3, StepState::Running);
    });
    let ended = release(&board, &web);
    assert_eq!(ended.state(), State::InSync);
    assert_eq!(ended.version(), Some("v1.4.0"));
    let steps = &ended.run.as_ref().unwrap().steps;
    assert!(steps.contains_key(&1) && !steps.contains_key(&3));
    // The outcome of the steps stays until the next plan.
    board.planned(&web, &Arc::new(in_sync(&web, &[])));
    assert!(release(&board, &web).run.is_none());
}

#[test]
fn releases_follow_their_dependencies() {
    let mut board = Board::default();
    load(&mut board, "production", &["a", "b", "c", "d"]);
    for (release, needs) in [
        ("a", vec!["c"]),
        ("c", vec!["d", "absent"]),
        ("b", vec!["b"]),
    ] {
        let name = name("production", release);
        board.planned(&name, &Arc::new(facts(&name, &needs)));
    }
    let viewer = Viewer::read_only();
    let ordered = board.environments["production"].in_order(&viewer);
    let names: Vec<&str> = ordered.iter().map(|one| &*one.name.release).collect();
    // A release that needs itself comes last.
    assert_eq!(names, ["d", "c", "a", "b"]);
}

#[test]
fn releases_come_and_go_with_their_environment() {
    let mut board = Board::default();
    load(&mut board, "production", &["web", "db"]);
    let web = name("production", "web");
    board.planned(&web, &Arc::new(facts(&web, &[])));
    // Until its removal is reported, a release that leaves git is shown.
    load(&mut board, "production", &["cache"]);
    let known = |board: &Board| -> Vec<String> {
        board.environments["production"]
            .releases
            .keys()
            .cloned()
            .collect()
    };
    assert_eq!(known(&board), ["cache", "web"]);
    board.finished(&web, outcome(ReconcileOutcome::Removed, ""));
    assert_eq!(known(&board), ["cache"]);
    // Another replica takes over on both clusters.
    board.set_leader("production", false);
    assert_eq!(known(&board), ["cache"]);
    board.set_leader("production", false);
    assert!(known(&board).is_empty());
    board.health(&web, true);
    assert!(known(&board).is_empty());
}

#[test]
fn readers_need_not_see_repeated_answers() {
    let mut board = Board::default();
    load(&mut board, "production", &["web"]);
    let viewer = Viewer::read_only();
    let version = |board: &Board| {
        let environment = &board.environments["production"];
        board.version_of_environment(environment, &viewer)
    };
    let mut known = version(&board);
    for (second, error, is_change) in [
        (0, None, false),
        (1, None, false),
        (2, Some("refused"), true),
        (3, Some("refused"), false),
        (4, Some(""), false),
        (5, Some("timed out"), true),
        (6, None, true),
        (7, None, false),
    ] {
        board.answered("production", at(second), error);
        let now = version(&board);
        assert_eq!(now != known, is_change, "{second}");
        known = now;
    }
    let environment = &board.environments["production"];
    assert_eq!(environment.answered, Some(at(7)));
    board.answered("production", at(8), Some("refused"));
    board.answered("production", at(9), Some("timed out"));
    let unreachable = board.environments["production"].unreachable.as_ref();
    assert_eq!(unreachable.map(|one| one.since), Some(at(8)));
}

#[test]
fn a_plan_is_compared_with_the_one_that_a_user_saw() {
    let mut board = Board::default();
    load(&mut board, "production", &["web"]);
    let web = name("production", "web");
    let seen = plan(&web);
    let mut now = seen.clone();
    now.steps.remove(1);
    now.steps[0].stage = StageName::Workloads;
    let approvable = |plan: &Plan| {
        Arc::new(ReleaseFacts {
            needs_approval: true,
            plan: PlanView::of(plan, None),
            ..facts(&web, &[])
        })
    };
    board.planned(&web, &approvable(&seen));
    board.planned(&web, &approvable(&now));
    let digest = |plan: &Plan| plan.effects().to_string();
    let found = release(&board, &web).deviations(&digest(&seen), &digest(&now));
    let found = found.unwrap();
    let found: Vec<(&str, &str)> = found.iter().map(|one| (one.kind, &*one.object)).collect();
    let expected = [
        ("changed", "ConfigMap/shop/web"),
        ("gone", "Service/shop/web"),
    ];
    assert_eq!(found, expected);
    assert!(
        release(&board, &web)
            .deviations(&digest(&now), "sha256:00")
            .is_none()
    );
    // Plans that wait for no approval are not retained, and of the others only a few.
    board.planned(&web, &Arc::new(in_sync(&web, &[])));
    for count in 1..=2 {
        let mut other = seen.clone();
        other.steps.truncate(count);
        board.planned(&web, &approvable(&other));
    }
    assert_eq!(release(&board, &web).earlier.len(), 3);
    assert!(
        release(&board, &web)
            .deviations(&digest(&seen), &digest(&now))
            .is_some()
    );
}
