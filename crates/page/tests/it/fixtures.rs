//! Boards in known states.

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use pleach_fields::diff::Cause;
use pleach_formats::file::Window;
use pleach_formats::window::Windows;
use pleach_model::finding::{Finding, Kind};
use pleach_model::object::{DesiredDigest, Digest, ObjectId, ReleaseName};
use pleach_model::order::StageName;
use pleach_page::board::{Board, LoadedEnvironment, Outcome, Stalled, StepState, Wait};
use pleach_page::facts::{
    HistoryRow, ObjectRow, PlanView, RecordFacts, RehearsalFacts, ReleaseFacts,
};
use pleach_page::pages::{Assets, Page, Query, Request, render};
use pleach_page::viewer::Viewer;
use pleach_planner::plan::{Action, Body, Change, Edge, EdgeReason, Need, Op, Plan, Step, StepId};
use pleach_planner::text_diff::{Note, ObjectDiff, hunks};
use pleach_planner::view::ReleaseDiff;
use pleach_reconciler::outcome::ReconcileOutcome;
use pleach_report::preview::rehearsal::{ReleaseResult, ResultFinding};
use pleach_state::inventory::{NodePhase, NodeProgress, ReleaseSummary};
use serde_json::json;

pub(crate) const COMMIT: &str = "3c1f0aa2b1d4e5f60718293a4b5c6d7e8f901234";
const BEFORE: &str = "9683080a2b1d4e5f60718293a4b5c6d7e8f90123";

/// Returns the time of all requests, plus seconds.
pub(crate) fn at(seconds: i64) -> Timestamp {
    Timestamp::from_second(1_780_000_000 + seconds).unwrap()
}

pub(crate) fn name(environment: &str, release: &str) -> ReleaseName {
    ReleaseName {
        environment: environment.to_owned(),
        release: release.to_owned(),
    }
}

pub(crate) fn object(kind: &str, name: &str) -> ObjectId {
    let group = if kind == "Deployment" { "apps" } else { "" };
    ObjectId::new(group, kind, Some("shop"), name)
}

/// Renders a page. Panics if there is none.
pub(crate) fn html(board: &Board, viewer: &Viewer, address: &str) -> String {
    try_html(board, viewer, address).unwrap()
}

pub(crate) fn try_html(board: &Board, viewer: &Viewer, address: &str) -> Option<String> {
    let (path, query) = address.split_once('?').unwrap_or((address, ""));
    let mut parsed = Query::default();
    for field in query.split('&').filter(|field| !field.is_empty()) {
        let (name, value) = field.split_once('=').unwrap();
        let target = match name {
            "q" => &mut parsed.q,
            "state" => &mut parsed.state,
            "page" => &mut parsed.page,
            "node" => &mut parsed.node,
            "fragment" => &mut parsed.fragment,
            other => panic!("unknown field {other}"),
        };
        value.clone_into(target);
    }
    let request = Request {
        viewer,
        now: at(0),
        epoch: "e",
    };
    let page = Page::at(path, &parsed)?;
    let page = render(board, (&page, &parsed), &request).unwrap()?;
    let page = page.replace("&#x2f;", "/");
    // Golden files do not change with the style.
    let Assets { style, script } = Assets::current();
    let page = page.replace(style.as_str(), "/static/DIGEST.css");
    Some(page.replace(script.as_str(), "/static/DIGEST.js"))
}

fn step(id: usize, stage: StageName, object: ObjectId, op: Op, needs: &[usize]) -> Step {
    let edge = |from: &usize| Edge {
        from: StepId(*from),
        state: Need::Ready,
        why: EdgeReason::Reference,
    };
    Step {
        id: StepId(id),
        stage,
        object,
        op,
        needs: needs.iter().map(edge).collect(),
        require: Vec::new(),
        until: None,
        deadline: SignedDuration::from_secs(1),
        overlay: None,
        reason: "every step before".to_owned(),
    }
}

fn apply() -> Op {
    Op::Apply {
        body: Body::Rendered(DesiredDigest::Known(Digest::of(b"body"))),
        take_over: Vec::new(),
        leave: Vec::new(),
    }
}

/// Returns a plan with four steps in three stages.
pub(crate) fn plan(release: &ReleaseName) -> Plan {
    let change = |object: ObjectId, action, reason: &str| Change {
        reason: reason.to_owned(),
        ..Change::new(object, action)
    };
    let (config, service) = (object("ConfigMap", "web"), object("Service", "web"));
    let workload = object("Deployment", "web");
    let mut changes = vec![
        change(config.clone(), Action::Update, "git changed it"),
        change(service.clone(), Action::Create, "new in git"),
        change(workload.clone(), Action::Update, "git changed it"),
        change(object("Secret", "web"), Action::Unchanged, ""),
        change(
            object("ConfigMap", "old"),
            Action::Blocked,
            "its namespace is missing",
        ),
    ];
    changes[2].cause = Some(Cause::Git);
    let mut warning = Finding::warning(
        Kind::Policy,
        "certificate-expires",
        "the certificate expires in 9 days",
    );
    warning.object = Some(object("Secret", "web"));
    Plan {
        from: Some("v1.3.0".to_owned()),
        steps: vec![
            step(0, StageName::Config, config, apply(), &[]),
            step(1, StageName::Services, service, apply(), &[]),
            step(2, StageName::Workloads, workload.clone(), apply(), &[0, 1]),
            step(3, StageName::Verify, workload, Op::Wait, &[2]),
        ],
        changes,
        findings: vec![warning.hint("renew it")],
        ..Plan::new(release.clone(), "v1.4.0")
    }
}

/// Returns the differences of [`plan`].
pub(crate) fn diff(plan: &Plan) -> ReleaseDiff {
    let one = |change: &Change| ObjectDiff {
        object: change.object.clone(),
        action: change.action,
        previous: None,
        note: Note {
            reason: change.reason.clone(),
            ..Note::default()
        },
        hunks: match change.action {
            Action::Update => hunks(
                "kind: Deployment\nspec:\n  image: web:1.3.0\n  replicas: 2\n",
                "kind: Deployment\nspec:\n  image: web:1.4.0\n  replicas: 2\n",
                3,
            ),
            Action::Create => hunks("", "kind: Service\nspec:\n  port: 80\n", 3),
            _ => Vec::new(),
        },
        fields: Vec::new(),
    };
    let changes = plan.changes.iter();
    let changes = changes.filter(|change| change.action != Action::Unchanged);
    ReleaseDiff {
        release: plan.release.to_string(),
        from: plan.from.clone(),
        to: plan.to.clone(),
        summary: String::new(),
        counts: BTreeMap::new(),
        objects: changes.map(one).collect(),
        overlays: Vec::new(),
        findings: Vec::new(),
    }
}

/// Returns the facts of a release whose plan has changes.
pub(crate) fn facts(release: &ReleaseName, depends_on: &[&str]) -> ReleaseFacts {
    let plan = plan(release);
    let mut windows = Windows::default();
    windows
        .add(&Window {
            allow: Some("Mon-Fri 08:00-16:00".to_owned()),
            deny: None,
            time_zone: Some("Europe/Berlin".to_owned()),
        })
        .unwrap();
    ReleaseFacts {
        at: at(-240),
        revision: COMMIT.to_owned(),
        version: "v1.4.0".to_owned(),
        bundle: "web".to_owned(),
        branch: Some("env/production".to_owned()),
        depends_on: depends_on.iter().map(|one| (*one).to_owned()).collect(),
        store_namespace: None,
        needs_approval: false,
        windows,
        suspended: None,
        degraded: None,
        record: Some(RecordFacts {
            version: Some("v1.3.0".to_owned()),
            revision: Some(BEFORE.to_owned()),
            ready: true,
            contended: Vec::new(),
            history: history(),
        }),
        active: Vec::new(),
        objects: plan.changes.iter().map(row).collect(),
        plan: PlanView::of(&plan, Some(&diff(&plan))),
        objects_left_out: 0,
        is_partial: false,
        rehearsal: None,
    }
}

/// Returns an attached report of a rehearsal with one failed step.
pub(crate) fn rehearsal() -> RehearsalFacts {
    RehearsalFacts {
        at: at(-600),
        by: "ann@laptop".to_owned(),
        result: ReleaseResult {
            summary: "would fail, 2 of 3 writes, 1 refused".to_owned(),
            passed: false,
            out_of_date: None,
            kubernetes: "1.36.3".to_owned(),
            revision: COMMIT.to_owned(),
            findings: vec![ResultFinding {
                stage: "workloads".to_owned(),
                object: "Deployment.apps/shop/web".to_owned(),
                message: "container web has no <memory> limit".to_owned(),
                hint: "set resources.limits".to_owned(),
            }],
            findings_left_out: 2,
        },
    }
}

/// Returns the facts of a release that is in sync.
pub(crate) fn in_sync(release: &ReleaseName, depends_on: &[&str]) -> ReleaseFacts {
    let plan = Plan {
        changes: vec![Change::new(object("ConfigMap", "web"), Action::Unchanged)],
        from: Some("v1.3.0".to_owned()),
        ..Plan::new(release.clone(), "v1.3.0")
    };
    ReleaseFacts {
        version: "v1.3.0".to_owned(),
        objects: plan.changes.iter().map(row).collect(),
        plan: PlanView::of(&plan, Some(&diff(&plan))),
        ..facts(release, depends_on)
    }
}

fn row(change: &Change) -> ObjectRow {
    ObjectRow {
        object: change.object.clone(),
        action: change.action,
        reason: (!change.reason.is_empty()).then(|| change.reason.clone().into()),
        writer: None,
        is_drift: false,
    }
}

fn history() -> Vec<HistoryRow> {
    let row = |seconds, result: &str, notes: &[&str]| HistoryRow {
        at: at(seconds),
        version: "v1.3.0".to_owned(),
        revision: BEFORE.to_owned(),
        result: result.to_owned(),
        seconds: Some(12),
        changes: "1 created, 2 updated".to_owned(),
        by: "pleach@node (controller, replica pleach-7d9f-2)".to_owned(),
        notes: notes.iter().map(|note| (*note).to_owned()).collect(),
    };
    vec![
        row(-86_400, "deployed", &["local run: ann: hotfix"]),
        row(
            -90_000,
            "failed",
            &["Deployment.apps/shop/web: not ready after 5m"],
        ),
    ]
}

pub(crate) fn outcome(outcome: ReconcileOutcome, message: &str) -> Outcome {
    Outcome {
        at: at(-200),
        revision: COMMIT.to_owned(),
        outcome,
        message: message.to_owned(),
        is_correction: false,
        retained: None,
        took_ms: 1_234,
    }
}

/// Adds an environment with releases that were not reconciled yet.
pub(crate) fn load(board: &mut Board, environment: &str, releases: &[&str]) {
    board.set_leader(environment, true);
    board.fetched("fleet", Ok(at(-60)));
    let releases: Vec<String> = releases.iter().map(|one| (*one).to_owned()).collect();
    board.loaded(&LoadedEnvironment {
        repository: "fleet",
        environment,
        cluster: Some("6f0c2d5e-4a51-4c1c-9d3b-1f0a1c5f7b11"),
        revision: COMMIT,
        releases: &releases,
        stalled: &BTreeMap::new(),
    });
}

/// Returns a board with a release in each state, and environments in each state.
pub(crate) fn every_state() -> Board {
    use ReconcileOutcome as Is;
    let mut board = Board::default();
    let env = "production";
    let mut releases = vec![
        "approval",
        "degraded",
        "drifted",
        "failed",
        "in-sync",
        "pending",
        "refused",
        "suspended",
        "syncing",
        "waiting",
    ];
    releases.push("waits-for-waiting");
    load(&mut board, env, &releases);
    let mut plan = |release: &str, facts: ReleaseFacts, is: Is, message: &str| {
        let name = name(env, release);
        board.planned(&name, &Arc::new(facts));
        board.finished(&name, outcome(is, message));
    };
    let with = |release: &str| facts(&name(env, release), &[]);
    let synced = |release: &str| in_sync(&name(env, release), &[]);
    let mut needs = with("approval");
    needs.needs_approval = true;
    plan("approval", needs, Is::Unapproved, "not approved: sha256:ab");
    let mut degraded = synced("degraded");
    degraded.degraded = Some("Deployment.apps/shop/web: 1 of 2 replicas ready".to_owned());
    plan("degraded", degraded, Is::Unchanged, "");
    let mut drifted = synced("drifted");
    drifted.objects[0].action = Action::Update;
    drifted.objects[0].reason = Some("data.key changed".into());
    drifted.objects[0].writer = Some("kubectl-edit".into());
    drifted.objects[0].is_drift = true;
    plan(
        "drifted",
        drifted,
        Is::Drifted,
        "data.key changed by kubectl-edit",
    );
    plan(
        "failed",
        with("failed"),
        Is::Failed,
        "the API server returned 500",
    );
    plan("in-sync", synced("in-sync"), Is::Unchanged, "");
    plan(
        "refused",
        with("refused"),
        Is::Refused,
        "more objects to delete than the cap",
    );
    let mut suspended = with("suspended");
    suspended.suspended = Some("suspended by ann until it is resumed: audit".to_owned());
    plan(
        "suspended",
        suspended,
        Is::Suspended,
        "suspended by ann until it is resumed: audit",
    );
    let mut syncing = with("syncing");
    syncing.active = vec!["gate writes on Deployment.apps/shop/web, until ungate".to_owned()];
    plan(
        "syncing",
        syncing,
        Is::Waiting,
        "the environment allows no sync at this time",
    );
    let waiting = facts(&name(env, "waiting"), &["syncing"]);
    plan(
        "waiting",
        waiting,
        Is::Waiting,
        "dependency syncing is not ready",
    );
    let last = facts(&name(env, "waits-for-waiting"), &["waiting", "in-sync"]);
    plan(
        "waits-for-waiting",
        last,
        Is::Waiting,
        "dependency waiting is not ready",
    );
    board.health(&name(env, "degraded"), true);
    run(&mut board, &name(env, "syncing"));
    environments(&mut board);
    board
}

/// Starts a run that waits in its third step.
pub(crate) fn run(board: &mut Board, name: &ReleaseName) {
    board.applying(name, at(-100), "1 to create, 2 to update");
    for (step, state) in [
        (0, StepState::Done),
        (
            1,
            StepState::Failed("the API server returned 500".to_owned()),
        ),
        (2, StepState::Waiting),
    ] {
        board.progress(name, at(-90), |run| {
            run.newest = Some(step);
            run.steps.insert(step, state);
        });
    }
    let wait = Wait {
        object: "Deployment.apps/shop/web".to_owned(),
        message: "1 of 2 replicas ready; pod web-5c7d: container web: CrashLoopBackOff: configmaps \"web\" is forbidden".to_owned(),
        since: at(-80),
    };
    board.progress(name, at(-80), |run| {
        run.set_wait(2, &wait);
        run.set_nodes(&nodes());
    });
}

/// Returns nodes of three phases.
fn nodes() -> Vec<NodeProgress> {
    let node = |name: &str, phase: NodePhase, message: &str| NodeProgress {
        name: name.to_owned(),
        phase,
        since: at(-60),
        message: message.to_owned(),
    };
    vec![
        node("node-1", NodePhase::Done, ""),
        node("node-2", NodePhase::Evacuating, "VM <db> has not left"),
        node("node-3", NodePhase::Pending, ""),
    ]
}

/// A release of another replica, with names and messages that are no markup.
fn recorded() -> ReleaseSummary {
    let attempt = |version: &str| json!({"version": version, "revision": BEFORE, "digest": Digest::of(b""), "at": at(-600)});
    let object = json!({
        "apiVersion": "pleach.dev/v1alpha1",
        "kind": "Release",
        "metadata": {"name": "elsewhere.web", "uid": "1", "resourceVersion": "1"},
        "status": {
            "record": {"format": 3, "repository": "fleet", "bundle": "web", "installed": attempt("v1<b>")},
            "conditions": [{"type": "Ready", "status": "False", "reason": "Failed",
                "message": "Deployment <web> was not ready", "lastTransitionTime": at(-600)}],
        },
    });
    ReleaseSummary::read(&object).unwrap()
}

/// Adds an environment that is stalled, one whose cluster is unreachable, one of another replica,
/// and one without releases.
fn environments(board: &mut Board) {
    load(board, "stalled", &["web"]);
    board.stalled(
        "stalled",
        &Stalled {
            revision: Some(BEFORE.to_owned()),
            reason: "Invalid".to_owned(),
            message: "environments/stalled.yaml:7: unknown field `releaes`".to_owned(),
        },
    );
    load(board, "unreachable", &["web"]);
    board.answered("unreachable", at(-240), None);
    board.answered("unreachable", at(-10), Some("connection refused"));
    load(board, "elsewhere", &["web"]);
    board.set_leader("elsewhere", false);
    let leaders = BTreeMap::from([("elsewhere".to_owned(), "pleach-replica-7d9f-0".to_owned())]);
    board.recorded(&leaders, &[recorded()], at(-5));
    load(board, "empty", &[]);
}
