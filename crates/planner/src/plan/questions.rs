//! Facts that a plan needs and that were not read yet.
//!
//! The planner does not know how a question is answered. It only checks in
//! [`Observed`] whether it was, so no question is asked twice.

use std::collections::BTreeSet;

use super::draft::Ctx;
use super::model::{Op, Plan};
use super::nodes;
use super::permissions::Permissions;
use crate::observe::{Contents, Grants, MarkedNodes, Observed, ObservedNodes, WorkloadContext};
use pleach_config::dependencies::Hindrance;
use pleach_formats::check::CheckOutcome;

/// Result of planning.
#[derive(Debug)]
pub enum Planning {
    /// All facts that the policy asks for are known.
    Done(Box<Plan>),
    /// Facts to read before the next attempt. Never empty.
    Ask(BTreeSet<Question>),
}

/// Kinds of question. A policy selects those that the planner asks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Topic {
    /// Reasons against an uninstall.
    Uninstall,
    /// Contents of namespaces to delete.
    Contents,
    /// Objects that the checks of the bundle read.
    Checks,
    /// Readiness of the dependencies.
    Dependencies,
    /// Nodes and disruption budgets.
    WorkloadContext,
    /// Nodes that a stage changes, and those in work.
    Nodes,
    /// Permissions of pleach.
    Permissions,
}

/// A missing fact.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Question {
    /// Objects of a rule in the record's `blockUninstall`, by its index.
    Blocking(usize),
    /// Releases that depend on the one to uninstall.
    Dependents,
    /// Contents of a namespace, by its name.
    Contents(String),
    /// Result of a check of the bundle, by its name.
    Check(String),
    /// State of a dependency, by its index in `dependsOn`.
    Dependency(usize),
    /// Nodes and disruption budgets around the workloads.
    WorkloadContext,
    /// Nodes that a stage changes, by the name of the stage.
    Nodes(String),
    /// Nodes with a mark of the release.
    MarkedNodes,
    /// Permissions that pleach lacks.
    Permissions(Box<Permissions>),
}

/// Answer to a question.
#[derive(Debug)]
pub enum Answer {
    /// Answer to [`Question::Blocking`].
    Blocking(usize, CheckOutcome),
    /// Answer to [`Question::Dependents`]: those that prevent the uninstall.
    Dependents(Vec<Hindrance>),
    /// Answer to [`Question::Contents`].
    Contents(String, Contents),
    /// Answer to [`Question::Check`].
    Check(String, CheckOutcome),
    /// Answer to [`Question::Dependency`]. `None` if it is ready.
    Dependency(usize, Option<Hindrance>),
    /// Answer to [`Question::WorkloadContext`].
    WorkloadContext(WorkloadContext),
    /// Answer to [`Question::Nodes`].
    Nodes(String, ObservedNodes),
    /// Answer to [`Question::MarkedNodes`].
    MarkedNodes(MarkedNodes),
    /// Answer to [`Question::Permissions`].
    Permissions(Grants),
}

impl Question {
    /// Returns the kind of the question.
    pub fn topic(&self) -> Topic {
        match self {
            Self::Blocking(_) | Self::Dependents => Topic::Uninstall,
            Self::Contents(_) => Topic::Contents,
            Self::Check(_) => Topic::Checks,
            Self::Dependency(_) => Topic::Dependencies,
            Self::WorkloadContext => Topic::WorkloadContext,
            Self::Nodes(_) | Self::MarkedNodes => Topic::Nodes,
            Self::Permissions(_) => Topic::Permissions,
        }
    }
}

impl Observed {
    /// Stores an answer.
    pub fn learn(&mut self, answer: Answer) {
        match answer {
            Answer::Blocking(index, outcome) => drop(self.blocking.insert(index, outcome)),
            Answer::Dependents(hindrances) => self.dependents = Some(hindrances),
            Answer::Contents(name, contents) => drop(self.contents.insert(name, contents)),
            Answer::Check(name, outcome) => drop(self.checked.insert(name, outcome)),
            Answer::Dependency(index, hindrance) => {
                self.dependencies.insert(index, hindrance);
            }
            Answer::WorkloadContext(found) => self.workload_context = Some(found),
            Answer::Nodes(stage, nodes) => drop(self.nodes.insert(stage, nodes)),
            Answer::MarkedNodes(marked) => self.marked_nodes = Some(marked),
            Answer::Permissions(grants) => self.access = Some(grants),
        }
    }

    fn answers(&self, question: &Question) -> bool {
        match question {
            Question::Blocking(index) => self.blocking.contains_key(index),
            Question::Dependents => self.dependents.is_some(),
            Question::Contents(name) => self.contents.contains_key(name),
            Question::Check(name) => self.checked.contains_key(name),
            Question::Dependency(index) => self.dependencies.contains_key(index),
            Question::WorkloadContext => self.workload_context.is_some(),
            Question::Nodes(stage) => self.nodes.contains_key(stage),
            Question::MarkedNodes => self.marked_nodes.is_some(),
            Question::Permissions(_) => self.access.is_some(),
        }
    }
}

/// Returns the plan, or the open questions about it if there are any.
pub(super) fn done_or_ask(ctx: &Ctx<'_>, plan: Plan) -> Planning {
    let open = about(ctx, &plan);
    if open.is_empty() {
        Planning::Done(Box::new(plan))
    } else {
        Planning::Ask(open)
    }
}

/// Returns the open questions that need no plan: the reasons against an
/// uninstall that git consents to.
pub(super) fn before_removal(ctx: &Ctx<'_>) -> BTreeSet<Question> {
    let Some(removal) = ctx.removal.filter(|removal| removal.consented.is_some()) else {
        return BTreeSet::new();
    };
    let count = ctx.desired.terms.block_uninstall.len();
    let rules = 0..if removal.keeps_objects { 0 } else { count };
    let questions = rules.map(Question::Blocking);
    let questions = questions.chain([Question::Dependents]);
    open(ctx, questions.chain(nodes::questions(ctx)))
}

/// Returns the open questions about a plan. Nodes and the contents of
/// namespaces come first, because they decide which other steps there are.
fn about(ctx: &Ctx<'_>, plan: &Plan) -> BTreeSet<Question> {
    let nodes = open(ctx, nodes::questions(ctx));
    if !nodes.is_empty() {
        return nodes;
    }
    if !plan.has_steps() {
        return BTreeSet::new();
    }
    let deleted = plan
        .steps
        .iter()
        .filter(|step| matches!(step.op, Op::Delete(_)) && step.object.is("", "Namespace"));
    let contents = deleted.map(|step| Question::Contents(step.object.name.clone()));
    let first = open(ctx, contents);
    if !first.is_empty() {
        return first;
    }
    let (desired, record) = (ctx.desired, ctx.observed.installed.as_ref());
    let checks = desired.sequence.checks.iter();
    let checks = checks.filter(|check| desired.needs_checks(record) && !check.needs_node());
    let dependencies = 0..desired.terms.depends_on.len();
    let dependencies = dependencies.filter(|_| desired.needs_dependencies(record));
    let context = plan.writes_workloads().then_some(Question::WorkloadContext);
    let is_open = ctx.policy.asks.contains(&Topic::Permissions) && ctx.observed.access.is_none();
    let permissions = is_open.then(|| Question::Permissions(Box::new(Permissions::of(ctx, plan))));
    let questions = checks
        .map(|check| Question::Check(check.name.clone()))
        .chain(dependencies.map(Question::Dependency))
        .chain(context)
        .chain(permissions);
    open(ctx, questions)
}

/// Returns the questions that the policy asks and the observation does not
/// answer.
fn open(ctx: &Ctx<'_>, questions: impl Iterator<Item = Question>) -> BTreeSet<Question> {
    let is_requested = |question: &Question| ctx.policy.asks.contains(&question.topic());
    questions
        .filter(|question| is_requested(question) && !ctx.observed.answers(question))
        .collect()
}
