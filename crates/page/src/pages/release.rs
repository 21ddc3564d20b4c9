//! Pages of one release.

mod graph;
mod objects;

use minijinja::{Value, context};
use pleach_model::object::ReleaseName;
use pleach_planner::plan::Action;
use pleach_state::inventory::{NodePhase, NodeProgress, NodesReport};

use super::hidden::Hidden;
use super::{Content, Request, Tab, text};
use crate::board::{Board, Environment, Recorded, Release, Run, State, StepState};
use crate::facts::{self, HistoryRow, RehearsalFacts, ReleaseFacts};
use crate::viewer::{Verb, Viewer};

/// Maximum number of waits and failed steps on a page.
const WAITS: usize = 100;
/// Maximum number of drifted objects on the first page.
const DRIFTED: usize = 50;

/// Tabs with their titles, in order.
const TABS: [(&str, &str); 6] = [
    ("", "State"),
    ("/plan", "Plan"),
    ("/diff", "Differences"),
    ("/objects", "Objects"),
    ("/history", "History"),
    ("/graph", "Graph"),
];

pub(super) fn content(
    board: &Board,
    (name, tab): (&ReleaseName, &Tab),
    request: &Request<'_>,
) -> Option<Content> {
    let (environment, release) = board.visible(name, request.viewer)?;
    let base = Page::base(name);
    let page = Page {
        environment,
        release,
        base: &base,
        viewer: request.viewer,
        hidden: &Hidden::of(board, request.viewer, Some(&name.environment)),
    };
    let (template, values) = match tab {
        Tab::Overview => ("overview.html.j2", page.overview()),
        Tab::Plan => ("plan.html.j2", page.plan()),
        Tab::Diff => ("diff.html.j2", page.diff()),
        Tab::Objects {
            search,
            page: number,
        } => ("objects.html.j2", page.objects(search, *number)),
        Tab::History => ("history.html.j2", page.history()),
        Tab::Graph { node } => ("graph.html.j2", page.graph(*node)),
    };
    let mut notices = text::notices(board, environment, request.now);
    notices.extend(page.notices());
    let tabs = TABS
        .into_iter()
        .map(|(path, title)| context! { path, title });
    let state = release.state();
    Some(Content {
        template,
        title: facts::text(&format!("{}/{}", name.environment, name.release)),
        section: "",
        values: context! {
            environment => facts::text(&name.environment),
            release => facts::text(&name.release),
            target => facts::text(&format!("{}/{}", name.environment, name.release)),
            version => text::version(release),
            state => text::state(state),
            // The run and its waits are shown below.
            reason => if state == State::Syncing { String::new() } else { release.reason() },
            run => release.running().map(|run| page.run(run)),
            notices,
            tabs => tabs.collect::<Vec<_>>(),
            tab => tab.path(),
            base => &base,
            ..values
        },
    })
}

/// Input of the pages of a release.
struct Page<'a> {
    environment: &'a Environment,
    release: &'a Release,
    /// Path of the release.
    base: &'a str,
    viewer: &'a Viewer,
    hidden: &'a Hidden,
}

impl Page<'_> {
    /// Returns the path of a release.
    fn base(name: &ReleaseName) -> String {
        let (environment, release) = (facts::text(&name.environment), facts::text(&name.release));
        format!("/releases/{environment}/{release}")
    }

    fn facts(&self) -> Option<&ReleaseFacts> {
        self.release.facts.as_deref()
    }

    /// Returns the progress of a run.
    fn run(&self, run: &Run) -> Value {
        let plan = self.facts().map(|facts| &facts.plan);
        let stage = plan.zip(run.newest).and_then(|(plan, id)| plan.step(id));
        let steps = plan
            .map_or(0, |plan| plan.steps)
            .max(run.steps.len())
            .max(1);
        context! {
            steps,
            done => run.done(),
            stage => stage.map(|(stage, _)| &stage.name),
            since => text::moment(run.since),
        }
    }

    fn notices(&self) -> Vec<Value> {
        let mut notices = Vec::new();
        let mut add = |class: &str, title: &str, text: &str| {
            notices.push(text::notice(class, title, text));
        };
        if let Some(queued) = self.release.running().and_then(|run| run.queued.as_ref()) {
            add(
                "busy",
                "Queued:",
                &format!("another client applies the release: {queued}"),
            );
        }
        if let Some((revision, outcome)) = self
            .release
            .outcome
            .as_ref()
            .and_then(|outcome| outcome.retained.as_ref())
        {
            let retained = format!("{}, {}", text::commit(revision), outcome.as_str());
            add("warn", "Retained meanwhile:", &retained);
        }
        let Some(facts) = self.facts() else {
            return notices;
        };
        if let Some(suspended) = &facts.suspended
            && self.release.state() != State::Suspended
        {
            add("warn", "Suspended:", suspended);
        }
        if let Some(degraded) = &facts.degraded
            && self.release.is_degraded
            && self.release.state() != State::Degraded
        {
            add("bad", "Degraded:", degraded);
        }
        if self.release.contended > 0 {
            let contended = facts
                .record
                .as_ref()
                .map(|record| record.contended.join("; "));
            let contended = contended.filter(|contended| !contended.is_empty());
            let contended = contended.unwrap_or_else(|| {
                format!(
                    "{} fields that other clients keep writing to",
                    self.release.contended
                )
            });
            add("warn", "Left alone:", &contended);
        }
        notices
    }

    fn overview(&self) -> Value {
        let facts = self.facts();
        let drift = facts.map_or(Vec::new(), drifted);
        let failed = self.release.run.iter().flat_map(|run| &run.steps);
        let failed = failed.filter_map(|(id, state)| match state {
            StepState::Failed(message) => {
                let step = facts.and_then(|facts| facts.plan.step(*id));
                Some(step.map_or_else(
                    || message.clone(),
                    |(_, step)| format!("{}: {message}", step.subject),
                ))
            }
            _ => None,
        });
        let recorded = self.release.recorded.as_ref();
        let run = self.release.run.as_ref();
        let nodes = recorded.map_or_else(
            || NodesReport::of(run.map_or(&[], |run| &run.nodes)),
            |recorded| recorded.nodes.clone(),
        );
        let (all, changed) = nodes.totals();
        context! {
            waits => waits(self.release),
            nodes_all => all,
            nodes_done => changed,
            nodes_left_out => all.saturating_sub(nodes.nodes.len()),
            nodes => nodes.nodes.iter().map(node).collect::<Vec<_>>(),
            failed => failed.take(WAITS).collect::<Vec<_>>(),
            chain => text::chain((self.environment, self.release), self.viewer, self.hidden),
            actions => self.actions(),
            summary => facts.map(|facts| &facts.plan.summary),
            effects => facts.map_or("", |facts| &facts.plan.effects),
            rehearsal => facts.and_then(|facts| facts.rehearsal.as_ref()).map(rehearsal),
            // Without a report: how to make one, for the user who is about to approve the plan.
            is_unapproved => self.release.state() == State::Unapproved,
            about => self.about(),
            active => facts.map_or(Vec::new(), |facts| facts.active.clone()),
            drift_left_out => drift.len().saturating_sub(DRIFTED),
            drift => drift.into_iter().take(DRIFTED).collect::<Vec<_>>(),
        }
    }

    /// Returns the names of the actions that the viewer is allowed to use now.
    fn actions(&self) -> Vec<&'static str> {
        let state = self.release.state();
        let recorded = self.release.recorded.as_ref();
        let is_suspended = state == State::Suspended
            || recorded.is_some_and(|recorded| recorded.is_suspended)
            || self.facts().is_some_and(|facts| facts.suspended.is_some());
        let verbs = Verb::ALL.into_iter().filter(|verb| match verb {
            Verb::Get => false,
            Verb::Sync => true,
            Verb::Suspend => !is_suspended,
            Verb::Resume => is_suspended,
            Verb::Approve => state == State::Unapproved && self.facts().is_some(),
        });
        verbs
            .filter(|verb| self.viewer.may(*verb, &self.release.name))
            .map(Verb::as_str)
            .collect()
    }

    fn about(&self) -> Vec<(&'static str, String)> {
        if let Some(recorded) = &self.release.recorded {
            return about_recorded(recorded);
        }
        let facts = self.facts();
        let record = facts.and_then(|facts| facts.record.as_ref());
        let outcome = self.release.outcome.as_ref();
        let depends_on = self.release.depends_on();
        let depends_on: Vec<&str> = depends_on
            .filter(|name| {
                let name = ReleaseName {
                    environment: self.release.name.environment.clone(),
                    release: (*name).to_owned(),
                };
                self.viewer.may(Verb::Get, &name)
            })
            .collect();
        let last = outcome.map(|outcome| {
            let at = outcome.at.strftime("%Y-%m-%d %H:%M:%S UTC");
            let correction = if outcome.is_correction {
                ", corrected drift"
            } else {
                ""
            };
            let seconds = outcome.took_ms / 1_000;
            let tenths = outcome.took_ms % 1_000 / 100;
            format!(
                "{}{correction}, {at}, {seconds}.{tenths} s",
                outcome.outcome.as_str()
            )
        });
        let idle = record.filter(|_| self.release.running().is_none());
        let ready = idle.map(|record| {
            if self.release.is_degraded {
                "no: an object is not ready any more"
            } else if record.ready || self.release.is_applied() {
                "yes"
            } else {
                "no"
            }
        });
        let installed = record.and_then(|record| {
            let version = record.version.as_deref()?;
            let revision = record.revision.as_deref().map(text::commit);
            Some(format!(
                "{} from commit {}",
                text::commit(version),
                revision.unwrap_or("none")
            ))
        });
        let desired = facts.map(|facts| {
            format!(
                "{} from commit {}",
                text::commit(&facts.version),
                facts.revision
            )
        });
        let installed = if self.release.is_applied() {
            desired.clone()
        } else {
            installed.or_else(|| facts.map(|_| "not installed".to_owned()))
        };
        let objects = facts.map(|facts| {
            let count = facts.objects.len() + facts.objects_left_out;
            count.to_string()
        });
        let approval = facts.filter(|facts| facts.needs_approval);
        [
            ("Bundle", facts.map(|facts| facts.bundle.clone())),
            ("Installed", installed),
            ("Desired", desired),
            ("Ready", ready.map(str::to_owned)),
            ("Last reconcile", last),
            ("Objects", objects),
            (
                "Depends on",
                Some(depends_on.join(", ")).filter(|text| !text.is_empty()),
            ),
            ("Approval", approval.map(|_| "required".to_owned())),
        ]
        .into_iter()
        .filter_map(|(title, value)| Some((title, facts::text(&value?))))
        .collect()
    }

    /// Returns the values that all pages about the plan have in common.
    fn planned(&self) -> Value {
        let facts = self.facts();
        let outcome = self.release.outcome.as_ref();
        context! {
            planned => facts.map(|facts| text::moment(facts.at)),
            commit => facts.map(|facts| text::commit(&facts.revision)),
            is_applied => self.release.is_applied(),
            applied => outcome.map(|outcome| text::moment(outcome.at)),
        }
    }

    fn plan(&self) -> Value {
        let plan = self.facts().map(|facts| &facts.plan);
        let shown = plan.map_or(0, |plan| plan.steps - plan.steps_left_out);
        let states: Vec<Option<Value>> = (0..shown).map(|id| self.step_state(id)).collect();
        context! {
            plan => plan.map(text::value),
            states,
            ..self.planned()
        }
    }

    /// Returns the state of a step in the present or last run.
    fn step_state(&self, id: usize) -> Option<Value> {
        let run = self.release.run.as_ref()?;
        let state = run.steps.get(&id)?;
        let wait = run.waits.get(&id).map(|wait| wait.message.clone());
        let (class, symbol, words) = words(state);
        let text = match state {
            StepState::Failed(message) => Some(message.clone()),
            _ => wait,
        };
        Some(context! { class, symbol, words, text => text.unwrap_or_default() })
    }

    fn diff(&self) -> Value {
        let plan = self.facts().map(|facts| &facts.plan);
        let changes = plan.and_then(|plan| plan.changes.as_ref());
        let left_out = changes
            .into_iter()
            .flatten()
            .filter(|one| one.left_out > 0)
            .count();
        context! {
            plan => plan.map(|plan| context! { summary => &plan.summary }),
            changes => changes.map(text::value),
            changes_left_out => left_out,
            ..self.planned()
        }
    }

    fn history(&self) -> Value {
        let record = self.facts().and_then(|facts| facts.record.as_ref());
        let rows = record
            .iter()
            .flat_map(|record| &record.history)
            .map(history_row);
        let recent = self.release.recent.iter().map(|outcome| {
            context! {
                at => text::moment(outcome.at),
                outcome => outcome.outcome.as_str(),
                commit => text::commit(&outcome.revision),
                message => &outcome.message,
            }
        });
        context! {
            rows => rows.collect::<Vec<_>>(),
            recent => recent.collect::<Vec<_>>(),
        }
    }
}

/// Returns the facts of a release that another replica reconciles.
fn about_recorded(recorded: &Recorded) -> Vec<(&'static str, String)> {
    let attempt = |attempt: &Option<(String, String)>| {
        let (version, revision) = attempt.as_ref()?;
        let (version, revision) = (text::commit(version), text::commit(revision));
        Some(format!("{version} from commit {revision}"))
    };
    let installed = attempt(&recorded.installed);
    let since = recorded.since.map(|since| {
        let since = since.strftime("%Y-%m-%d %H:%M:%S UTC");
        since.to_string()
    });
    [
        ("Bundle", recorded.bundle.clone()),
        (
            "Installed",
            Some(installed.unwrap_or_else(|| "not installed".to_owned())),
        ),
        ("Being applied", attempt(&recorded.applying)),
        ("Readiness since", since),
    ]
    .into_iter()
    .filter_map(|(title, value)| Some((title, facts::text(&value?))))
    .collect()
}

/// Returns class, symbol and text of a state of a step.
fn words(state: &StepState) -> (&'static str, &'static str, &'static str) {
    match state {
        StepState::Running => ("busy", "⟳", "running"),
        StepState::Waiting => ("busy", "…", "waiting"),
        StepState::Done => ("ok", "✓", "done"),
        StepState::Failed(_) => ("bad", "✗", "failed"),
        StepState::Skipped => ("idle", "·", "skipped"),
        StepState::Stopped => ("idle", "‖", "stopped"),
    }
}

fn history_row(row: &HistoryRow) -> Value {
    let class = match row.result.as_str() {
        "deployed" => "ok",
        "failed" => "bad",
        _ => "warn",
    };
    context! {
        at => text::moment(row.at),
        class,
        commit => text::commit(&row.revision),
        version => text::commit(&row.version),
        ..text::value(row)
    }
}

/// Returns the present waits of a release.
pub(super) fn waits(release: &Release) -> Vec<Value> {
    let waits = release
        .running()
        .into_iter()
        .flat_map(|run| run.waits.values());
    waits
        .take(WAITS)
        .map(|wait| {
            context! {
                object => &wait.object,
                message => &wait.message,
                since => text::moment(wait.since),
            }
        })
        .collect()
}

/// Returns the report of a rehearsal.
fn rehearsal(report: &Result<RehearsalFacts, String>) -> Value {
    let facts = match report {
        Ok(facts) => facts,
        Err(why) => return context! { class => "warn", error => why },
    };
    let result = &facts.result;
    let class = match &result.out_of_date {
        Some(_) => "idle",
        None if result.passed => "ok",
        None => "bad",
    };
    let findings = result.findings.iter().map(|finding| {
        context! {
            stage => &finding.stage,
            object => &finding.object,
            message => &finding.message,
            hint => &finding.hint,
        }
    });
    context! {
        class,
        error => "",
        out_of_date => &result.out_of_date,
        summary => &result.summary,
        kubernetes => &result.kubernetes,
        commit => text::commit(&result.revision),
        at => text::moment(facts.at),
        by => &facts.by,
        findings => findings.collect::<Vec<_>>(),
        left_out => result.findings_left_out,
    }
}

/// Returns a node that a run changes.
fn node(node: &NodeProgress) -> Value {
    let class = match node.phase {
        NodePhase::Failed => "bad",
        NodePhase::Done => "ok",
        NodePhase::Pending => "idle",
        NodePhase::Preloading
        | NodePhase::Evacuating
        | NodePhase::Draining
        | NodePhase::Upgrading
        | NodePhase::Verifying => "busy",
    };
    context! {
        name => &node.name,
        phase => node.phase.as_str(),
        class,
        since => text::moment(node.since),
        message => &node.message,
    }
}

/// Returns the objects that other clients changed.
fn drifted(facts: &ReleaseFacts) -> Vec<Value> {
    let rows = facts.objects.iter();
    let drifted = rows
        .filter(|row| row.action != Action::Unchanged && (row.is_drift || row.writer.is_some()));
    drifted
        .map(|row| {
            context! {
                object => facts::text(&row.object.to_string()),
                reason => row.reason.as_deref().unwrap_or_default(),
                writer => row.writer.as_deref().unwrap_or("an unknown client"),
            }
        })
        .collect()
}
