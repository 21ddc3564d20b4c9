//! Change of nodes that a stage declares: one step per node.
//!
//! The nodes of `first` are changed one at a time, the others in batches. Each batch waits for the
//! one before, so that no further node begins after a failure.

use std::collections::BTreeSet;

use serde_json::json;

use super::draft::{Ctx, Draft};
use super::model::{Desired, DriverObjects, Op, Plan, Precondition};
use super::node_batches::{NodeStep, Pause, in_batches};
use super::phases::Ordered;
use super::questions::Question;
use crate::observe::{MarkedNode, MarkedNodes, ObservedNodes};
use pleach_formats::bytes;
use pleach_formats::nodes::{
    Budget, MARK, NodeCapacity, NodePod, NodeState, NodesRule, Resources, Shortage, overlapping,
    shortage,
};
use pleach_formats::sequence::StageRule;
use pleach_model::finding::{Finding, Kind, Severity};
use pleach_model::object::{DesiredDigest, Digest, Manifest, ObjectId, canonical_json};
use pleach_model::order::Direction;
use pleach_state::inventory::{Installed, NodesMemory};

/// Code of the finding about a plan that continues after a pause. Such a plan needs an approval.
pub(super) const AFTER_PAUSE: &str = "nodes-after-pause";

/// Code of the finding about nodes that a rollback leaves as they are.
const LEFT: &str = "nodes-left";

/// Code of the finding about nodes that fell behind the installed version.
const NODE_BEHIND: &str = "node-behind";

/// Number of names in a message.
const NAMED: usize = 5;

/// Treatment of the nodes of a plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Treatment {
    /// They are changed.
    Change,
    /// Nodes that fell behind the installed version are reported.
    Report,
    /// They are left alone: no stage is about them, or the installed version was
    /// reached by a rollback.
    Leave,
}

impl Treatment {
    fn of(ctx: &Ctx<'_>) -> Self {
        let record = ctx.observed.installed.as_ref();
        if ctx.desired.changes_nodes(record) {
            return Self::Change;
        }
        let mut stages = ctx.sequence.stages.iter();
        let is_left = record.is_some_and(|record| record.nodes == Some(NodesMemory::Left));
        if is_left || !stages.any(|rule| rule.nodes.is_some()) {
            Self::Leave
        } else if ctx.policy.nodes_behind {
            Self::Change
        } else {
            Self::Report
        }
    }
}

impl Plan {
    /// Returns the message about nodes that fell behind the installed version.
    pub fn nodes_behind(&self) -> Option<&str> {
        let mut findings = self.findings.iter();
        let finding = findings.find(|finding| finding.code == NODE_BEHIND)?;
        Some(&finding.message)
    }

    /// Returns the course of the nodes for the record. `None` if it does not change.
    pub fn nodes_memory(&self) -> Option<NodesMemory> {
        let mut steps = self.steps.iter();
        if steps.any(|step| matches!(step.op, Op::UpgradeNode { .. })) {
            return Some(NodesMemory::Changed);
        }
        let mut findings = self.findings.iter();
        let is_left = findings.any(|finding| finding.code == LEFT);
        is_left.then_some(NodesMemory::Left)
    }
}

impl Desired {
    /// Returns whether nodes are changed, if there are any to change: until the state in git is
    /// installed. Drift is corrected without nodes.
    pub(super) fn changes_nodes(&self, record: Option<&Installed>) -> bool {
        let mut stages = self.sequence.stages.iter();
        stages.any(has_nodes) && self.is_fresh(record)
    }

    /// Returns the Jobs that a change of nodes runs on each node.
    fn jobs_of(&self, rule: &NodesRule) -> Vec<&Manifest> {
        rule.jobs()
            .filter_map(|file| self.node_jobs.get(file))
            .collect()
    }
}

fn has_nodes(rule: &StageRule) -> bool {
    rule.nodes.is_some() || rule.preload.is_some()
}

/// Returns the questions about nodes.
pub(super) fn questions(ctx: &Ctx<'_>) -> impl Iterator<Item = Question> {
    let is_fresh = ctx.desired.changes_nodes(ctx.observed.installed.as_ref());
    let is_needed = Treatment::of(ctx) != Treatment::Leave;
    let stages = ctx.sequence.stages.iter();
    let stages = stages
        .filter(move |rule| (is_fresh && has_nodes(rule)) || (is_needed && rule.nodes.is_some()));
    let stages = stages.map(|rule| Question::Nodes(rule.stage.as_str().to_owned()));
    let marks = may_be_marked(ctx).then_some(Question::MarkedNodes);
    stages.chain(marks)
}

/// Returns whether nodes can bear a mark of the release that no stage would
/// remove.
fn may_be_marked(ctx: &Ctx<'_>) -> bool {
    let record = ctx.observed.installed.as_ref();
    let has_changed = record.is_some_and(|record| record.nodes.is_some());
    has_changed && (ctx.removal.is_some() || ctx.desired.is_fresh(record))
}

/// Reports nodes in work that no stage of the plan completes. `direction` is
/// `None` for an uninstall.
pub(super) fn unclaimed(ctx: &Ctx<'_>, draft: &mut Draft, direction: Option<Direction>) {
    if !may_be_marked(ctx) {
        return;
    }
    let marked = match &ctx.observed.marked_nodes {
        None => return,
        Some(MarkedNodes::Read(marked)) => marked,
        Some(MarkedNodes::Unknown(why)) => {
            let message = format!("nodes in work of the release cannot be read: {why}");
            let finding = Finding::error(Kind::Cluster, "nodes-unknown", message);
            let hint = "docs/permissions/nodes.yaml has the permissions";
            draft.findings.push(finding.hint(hint));
            return;
        }
    };
    let stages = ctx.sequence.stages.iter();
    let stages = stages.filter(|rule| rule.nodes.is_some());
    let selected = stages.filter_map(|rule| ctx.observed.nodes.get(rule.stage.as_str()));
    let selected: BTreeSet<&str> = selected.flat_map(ObservedNodes::names).collect();
    let is_claimed = |name: &str| direction.is_some() && selected.contains(name);
    let left = marked.iter().filter(|one| !is_claimed(&one.name));
    let left: Vec<&MarkedNode> = left.collect();
    let Some(first) = left.first() else { return };
    let names: Vec<&str> = left.iter().map(|one| one.name.as_str()).collect();
    let why = match direction {
        None => "an uninstall does not complete them",
        Some(_) => "no stage in git selects them any more",
    };
    let message = format!(
        "{} in work of stage {}: they keep cordon and taints, and {why}",
        named(&names),
        first.stage
    );
    let hint = format!(
        "complete them with the version that began, or check each and free it: `kubectl uncordon {0}`, remove the taints of the stage, then `kubectl annotate node {0} {MARK}-`",
        first.name
    );
    let severity = match direction {
        // A rollback must be possible.
        Some(Direction::Reverse) => Severity::Warning,
        Some(Direction::Forward) | None => Severity::Error,
    };
    let finding = Finding::new(severity, Kind::Policy, "nodes-unclaimed", message);
    draft.findings.push(finding.hint(hint));
}

/// Warns about nodes that fell behind the installed version.
fn report(ctx: &Ctx<'_>, draft: &mut Draft, (stage, rule): (&StageRule, &NodesRule)) {
    let seen = ctx.observed.nodes.get(stage.stage.as_str());
    let Some(ObservedNodes::Read { nodes, .. }) = seen else {
        return;
    };
    let ours = ctx.desired.name.to_string();
    let is_behind = |node: &&NodeState| !node.done && !node.is_in_work_of(&ours);
    let mut behind: Vec<&NodeState> = nodes.iter().filter(is_behind).collect();
    rule.sort(&mut behind);
    if behind.is_empty() {
        return;
    }
    let names: Vec<&str> = behind.iter().map(|node| node.name.as_str()).collect();
    let done = rule.done.text();
    let message = format!(
        "stage {}: {} behind: `{done}` does not hold",
        stage.stage,
        named(&names)
    );
    let finding = Finding::warning(Kind::Cluster, NODE_BEHIND, message);
    let name = &ctx.desired.name;
    let target = format!("{}/{}", name.environment, name.release);
    let hint =
        format!("`pleach sync {target} --nodes` changes them, and so does `pleach apply {target}`");
    draft
        .findings
        .push(finding.at(stage.origin.clone()).hint(hint));
}

/// Adds the steps of all stages with nodes.
pub(super) fn run(ctx: &Ctx<'_>, draft: &mut Ordered, direction: Direction) {
    unclaimed(ctx, draft, Some(direction));
    let treatment = Treatment::of(ctx);
    if treatment == Treatment::Leave {
        return;
    }
    for stage in &ctx.sequence.stages {
        let Some(rule) = &stage.nodes else { continue };
        if treatment == Treatment::Report {
            report(ctx, draft, (stage, rule));
            // A requested change of nodes that failed is continued, for the nodes in work only.
            if let Ok((nodes, met)) = read(ctx, stage) {
                add(ctx, draft, (stage, rule), (nodes, Scope::InWork), met);
            }
            continue;
        }
        if direction == Direction::Reverse && !rule.reverse {
            let message = format!("stage {}: nodes are not changed back", stage.stage);
            let finding = Finding::note(Kind::Policy, LEFT, message);
            draft.findings.push(finding.at(stage.origin.clone()));
            leave(ctx, draft, stage);
            continue;
        }
        match read(ctx, stage) {
            Ok((nodes, met)) => add(ctx, draft, (stage, rule), (nodes, Scope::Open), met),
            Err(finding) => draft.findings.push(*finding),
        }
    }
}

/// Pods, budgets and capacity that a drain meets.
#[derive(Clone, Copy)]
pub(super) struct Met<'a> {
    pods: &'a [NodePod],
    budgets: &'a [Budget],
    capacity: &'a [NodeCapacity],
}

/// Returns the nodes of a stage, and what their drain meets. The error says why they are not known.
pub(super) fn read<'a>(
    ctx: &Ctx<'a>,
    stage: &StageRule,
) -> Result<(&'a [NodeState], Met<'a>), Box<Finding>> {
    match ctx.observed.nodes.get(stage.stage.as_str()) {
        Some(ObservedNodes::Read {
            nodes,
            pods,
            budgets,
            capacity,
            ..
        }) => Ok((
            nodes,
            Met {
                pods,
                budgets,
                capacity,
            },
        )),
        None => {
            let message = format!(
                "stage {}: nodes were not read and are not shown",
                stage.stage
            );
            let finding = Finding::note(Kind::Cluster, "nodes-not-read", message);
            Err(Box::new(finding.at(stage.origin.clone())))
        }
        Some(ObservedNodes::Unknown(why)) => {
            let message = format!("stage {}: the nodes cannot be read: {why}", stage.stage);
            let finding = Finding::error(Kind::Cluster, "nodes-unknown", message);
            let hint = "docs/permissions/nodes.yaml has the permissions";
            Err(Box::new(finding.hint(hint)))
        }
    }
}

/// Warns about nodes that a failed change left in work, and that a rollback leaves alone.
fn leave(ctx: &Ctx<'_>, draft: &mut Ordered, stage: &StageRule) {
    let seen = ctx.observed.nodes.get(stage.stage.as_str());
    let Some(ObservedNodes::Read { nodes, .. }) = seen else {
        return;
    };
    let ours = ctx.desired.name.to_string();
    for node in nodes.iter().filter(|node| node.is_in_work_of(&ours)) {
        let message = "a failed change left it in work, and a rollback does not end that";
        let hint = format!(
            "check it, then `kubectl uncordon {0}` and `kubectl annotate node {0} {MARK}-`",
            node.name
        );
        let finding = Finding::warning(Kind::Policy, "node-in-work", message).hint(hint);
        draft
            .findings
            .push(finding.on(ObjectId::new("", "Node", None, &node.name)));
    }
}

/// Nodes to change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Scope {
    /// Nodes that are not done.
    Open,
    /// Nodes in work of the release.
    InWork,
}

fn add(
    ctx: &Ctx<'_>,
    draft: &mut Ordered,
    (stage, rule): (&StageRule, &NodesRule),
    (nodes, scope): (&[NodeState], Scope),
    met: Met<'_>,
) {
    let ours = ctx.desired.name.to_string();
    let is_ours = |node: &NodeState| node.is_in_work_of(&ours);
    let mut open: Vec<&NodeState> = nodes
        .iter()
        .filter(|node| is_ours(node) || (scope == Scope::Open && !node.done))
        .collect();
    rule.sort(&mut open);
    // A node in work is out of service, so it is completed before another one begins.
    open.sort_by_key(|node| !is_ours(node));
    if open.is_empty() {
        return;
    }
    // A driver chooses the order during the run.
    let at_once = match &rule.driver {
        Some(_) => open.len(),
        None => rule.parallel.of(nodes.len()),
    };
    judge(draft, (stage, rule), (nodes, &open, at_once), &ours, met);
    let jobs = ctx.desired.jobs_of(rule);
    let op = Op::UpgradeNode {
        content: content(ctx, rule, &jobs),
        jobs: jobs.into_iter().map(|job| job.id().clone()).collect(),
        driver: rule.driver.as_ref().map(|driver| DriverObjects {
            hooks: driver.hook_objects(),
            nodes: driver.node_objects(),
        }),
    };
    let reason = rule.summary();
    let changed = nodes.iter().filter(|node| node.done && !is_ours(node));
    let changed: Vec<&str> = changed.map(|node| node.name.as_str()).collect();
    // A user asked for nodes that fell behind, so there is nothing to check first.
    let pause = if ctx.desired.changes_nodes(ctx.observed.installed.as_ref()) {
        Pause::of(rule, changed.len(), open.len())
    } else {
        Pause::Never
    };
    if pause == Pause::Over {
        let message = format!(
            "stage {}: {} changed already; this plan changes the rest",
            stage.stage,
            named(&changed)
        );
        let finding = Finding::note(Kind::Policy, AFTER_PAUSE, message);
        draft.findings.push(finding.at(stage.origin.clone()));
    }
    let mut steps: Vec<NodeStep> = Vec::new();
    for node in open {
        let id = ObjectId::new("", "Node", None, &node.name);
        let step = draft.step(ctx, stage.stage.clone(), id, op.clone(), &reason);
        draft.at(step).deadline = rule.timeout;
        draft.at(step).require = vec![Precondition::Uid(node.uid.clone())];
        steps.push(NodeStep {
            is_first: rule.group(node).is_some(),
            // The run completes the node that is between its hooks, whichever that is.
            is_resumed: is_ours(node) && rule.driver.is_none(),
            step,
        });
    }
    in_batches(ctx, draft, &stage.stage, &steps, at_once, pause);
}

/// Reports what stops the change of the `open` nodes, and what a person should
/// know about it.
fn judge(
    draft: &mut Ordered,
    (stage, rule): (&StageRule, &NodesRule),
    (nodes, open, at_once): (&[NodeState], &[&NodeState], usize),
    ours: &str,
    met: Met<'_>,
) {
    let Met {
        pods,
        budgets,
        capacity,
    } = met;
    let names: BTreeSet<&str> = open.iter().map(|node| node.name.as_str()).collect();
    let pods = pods.iter().filter(|pod| names.contains(pod.node.as_str()));
    let pods: Vec<NodePod> = pods.cloned().collect();
    let is_ours = |node: &NodeState| node.is_in_work_of(ours);
    let mut refuse = |code: &str, message: String| {
        let message = format!("stage {}: {message}", stage.stage);
        let finding = Finding::error(Kind::Policy, code, message);
        let finding = finding.at(stage.origin.clone());
        draft.findings.push(finding.hint(remedy(code)));
    };
    let lost = open.iter().filter(|node| !node.ready && !is_ours(node));
    let lost: Vec<&str> = lost.map(|node| node.name.as_str()).collect();
    if !lost.is_empty() {
        refuse("nodes-not-ready", format!("{} not ready", named(&lost)));
    }
    let taken = open
        .iter()
        .filter(|node| node.in_work.is_some() && !is_ours(node));
    let taken: Vec<&str> = taken.map(|node| node.name.as_str()).collect();
    if !taken.is_empty() {
        let message = format!("{} being changed by another release", named(&taken));
        refuse("nodes-in-work", message);
    }
    for (code, message) in obstacles(rule, &pods, budgets) {
        refuse(code, message);
    }
    let ready = nodes
        .iter()
        .filter(|node| node.ready && !node.cordoned)
        .count();
    if rule.drain.is_some() && ready <= at_once {
        let message = format!(
            "stage {}: {at_once} nodes are drained at a time, and {ready} can take their pods",
            stage.stage
        );
        let finding = Finding::warning(Kind::Cluster, "too-few-nodes", message);
        draft.findings.push(finding.at(stage.origin.clone()));
    }
    if rule.drain.is_some()
        && let Some(message) = tight(rule, open, at_once, capacity)
    {
        let message = format!("stage {}: {message}", stage.stage);
        let finding = Finding::warning(Kind::Cluster, "tight-capacity", message);
        draft.findings.push(finding.at(stage.origin.clone()));
    }
    let alone = pods.iter().filter(|pod| pod.alone && !pod.deleting);
    let alone: Vec<String> = alone.map(|pod| pod.id.to_string()).collect();
    if rule.drain.is_some() && !alone.is_empty() {
        let message = format!(
            "stage {}: {} without another replica; each is down while it moves",
            stage.stage,
            named(&alone)
        );
        let finding = Finding::warning(Kind::Cluster, "single-replicas", message);
        draft.findings.push(finding.at(stage.origin.clone()));
    }
}

/// Returns what stops the evictions: code and message of each finding.
fn obstacles(
    rule: &NodesRule,
    pods: &[NodePod],
    budgets: &[Budget],
) -> Vec<(&'static str, String)> {
    let Some(drain) = &rule.drain else {
        return Vec::new();
    };
    let mut found = drain.objections(pods);
    let closed = budgets
        .iter()
        .filter(|budget| budget.is_closed && pods.iter().any(|pod| budget.covers(pod)));
    let closed: Vec<String> = closed.map(|budget| budget.id.to_string()).collect();
    if !closed.is_empty() {
        let message = format!("{} never allow an eviction", named(&closed));
        found.push(("budget-allows-nothing", message));
    }
    let overlaps: Vec<String> = overlapping(pods, budgets)
        .into_iter()
        .map(|(pod, budgets)| {
            let names: Vec<&str> = budgets
                .iter()
                .map(|budget| budget.id.name.as_str())
                .collect();
            format!("{} is covered by {}", pod.id, names.join(" and "))
        })
        .collect();
    if !overlaps.is_empty() {
        let why = "the API server evicts no pod with several budgets";
        found.push(("budgets-overlap", format!("{}: {why}", named(&overlaps))));
    }
    found
}

/// Returns a message about batches of nodes whose pods do not fit on the other nodes. `open` is
/// sorted.
fn tight(
    rule: &NodesRule,
    open: &[&NodeState],
    at_once: usize,
    capacity: &[NodeCapacity],
) -> Option<String> {
    let is_first = |node: &&NodeState| rule.group(node).is_some();
    let (first, others): (Vec<&NodeState>, Vec<&NodeState>) =
        open.iter().copied().partition(is_first);
    let mut short: Option<(Vec<&str>, Shortage)> = None;
    let mut more = 0;
    for batch in first.chunks(1).chain(others.chunks(at_once)) {
        let names: Vec<&str> = batch.iter().map(|node| node.name.as_str()).collect();
        match shortage(capacity, &names.iter().copied().collect()) {
            Some(_) if short.is_some() => more += batch.len(),
            found => short = found.map(|found| (names, found)).or(short),
        }
    }
    let (names, Shortage { moving, free }) = short?;
    let more = match more {
        0 => String::new(),
        more => format!("; likewise for {more} more nodes"),
    };
    Some(format!(
        "the pods of {} request {}, and the other nodes have {} free{more}",
        named(&names),
        amounts(moving),
        amounts(free)
    ))
}

/// Formats amounts, such as `2500m CPU and 4Gi`.
fn amounts(resources: Resources) -> String {
    let Resources { cpu, memory } = resources;
    format!("{cpu}m CPU and {}", bytes::text(memory))
}

/// Returns the next step for a finding about nodes.
fn remedy(code: &str) -> &'static str {
    match code {
        "nodes-not-ready" => "repair them, or leave them out with `select`",
        "nodes-in-work" => {
            "wait for the other release, or uncordon them and remove their annotation"
        }
        "unmanaged-pods" => "delete them, or set `unmanaged: delete` in `drain`",
        "empty-dirs" => "move the data, or set `emptyDir: delete` in `drain`",
        "budget-allows-nothing" => "change the bounds of the budget",
        _ => "let one budget cover each pod",
    }
}

/// Joins names, with the number of those left out.
pub(super) fn named<S: AsRef<str>>(names: &[S]) -> String {
    let shown: Vec<&str> = names.iter().take(NAMED).map(AsRef::as_ref).collect();
    let shown = shown.join(", ");
    match names.len().saturating_sub(NAMED) {
        0 => shown,
        more => format!("{shown} and {more} more"),
    }
}

/// Returns a digest of the change of each node, for approvals. The digest of the Job is keyed if it
/// has secret values.
fn content(ctx: &Ctx<'_>, rule: &NodesRule, jobs: &[&Manifest]) -> Digest {
    let jobs = jobs
        .iter()
        .map(|job| match ctx.desired.digests.get(job.id()) {
            Some(DesiredDigest::Known(digest)) => digest.to_string(),
            Some(DesiredDigest::Unkeyed) | None => "unkeyed".to_owned(),
        });
    let jobs: Vec<String> = jobs.collect();
    Digest::of(&canonical_json(&json!([rule.content(), jobs])))
}
