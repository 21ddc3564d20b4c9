//! Hooks and nodes of a stage whose nodes another controller drains: what was read of them, and the
//! decision about the wait of each node.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures::stream::{self, StreamExt as _};
use jiff::Timestamp;
use pleach_formats::nodes::{
    DriverRule, Mark,
    driver::{Course, Decision, Hook, Point, next, unresolved},
};
use pleach_formats::window::Windows;
use pleach_model::finding::{Finding, Kind};
use pleach_model::order::StageName;
use pleach_planner::plan::{Op, Plan, StepId};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::sync::Mutex as AsyncMutex;
use tokio::time::Instant;

use super::super::{PAUSE, closed, nodes};
use crate::sync::{
    events::EventKind,
    op::{Operator, failure},
    report::{Failure, FailureKind},
};
use pleach_cluster::{Cluster, ClusterError, Depth, ResourcePath, Selector};
/// Interval between lists of the nodes.
pub(super) const NODES: Duration = Duration::from_secs(30);

/// Delay before the node of a hook that could not be read is read again.
const LOOKUP: Duration = Duration::from_secs(10);

/// Number of concurrent reads of the nodes of hooks.
const AT_ONCE: usize = 10;

/// Number of hooks or nodes in a message.
const NAMED: usize = 3;

/// Drivers of a run, by stage.
#[derive(Default)]
pub(in crate::sync) struct Drivers(pub(super) Mutex<BTreeMap<StageName, Arc<AsyncMutex<Board>>>>);

impl Drivers {
    pub(super) fn of(&self, plan: &Plan, stage: &StageName) -> Arc<AsyncMutex<Board>> {
        let mut boards = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let board = boards.entry(stage.clone());
        let board = board.or_insert_with(|| Arc::new(AsyncMutex::new(Board::new(plan, stage))));
        Arc::clone(board)
    }
}

/// Hooks and nodes of a stage.
pub(super) struct Board {
    /// Nodes that are not complete.
    pub(super) open: BTreeSet<String>,
    /// Node on which the run works.
    pub(super) active: Option<String>,
    /// Step whose failure stops the others.
    pub(super) ended: Option<StepId>,
    /// Time of the last acknowledgement, or at which a node was completed, or the run began.
    moved: Instant,
    /// Whether the driver withdrew a request since then.
    pub(super) withdrawn: bool,
    pub(super) hooks: Vec<Hook>,
    pub(super) hooks_at: Option<Instant>,
    /// Decision about these hooks. `None` if it is out of date.
    pub(super) outlook: Option<Outlook>,
    /// Uids of the live nodes, and our marks.
    live: BTreeMap<String, String>,
    pub(super) marks: BTreeMap<String, Mark>,
    nodes_at: Option<Instant>,
    /// Nodes of hooks, by uid of the hook and name of the object of the node.
    pub(super) known: BTreeMap<(String, String), Known>,
    /// Last known nodes of the hooks, by uid of the hook.
    pub(super) last: BTreeMap<String, String>,
    /// Hooks with a warning.
    pub(super) warned: BTreeSet<(String, String)>,
}

/// Node of a hook, with the time of the read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Known {
    pub(super) node: Result<String, String>,
    pub(super) at: Instant,
}

/// Decision about the hooks, for the steps of all nodes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Outlook {
    /// Node in work, with its hook.
    pub(super) turn: Option<(String, Hook, Point)>,
    /// Nodes that wait for it, or for a hook whose node is not known.
    pub(super) waiting: BTreeSet<String>,
    /// Text about hooks that are not acknowledged, and the one that blocks all nodes.
    pub(super) strays: String,
}

/// State of the hook of the node in work.
pub(super) struct Seen {
    pub(super) turn: Option<(Hook, Point)>,
    /// Our mark of the node.
    pub(super) mark: Option<Mark>,
    /// Reason why it is not known whether the driver asks.
    pub(super) unresolved: Option<String>,
    pub(super) strays: String,
}

/// Metadata of a listed object.
#[derive(Deserialize)]
struct Partial {
    pub(super) metadata: Value,
}

impl Board {
    pub(super) fn new(plan: &Plan, stage: &StageName) -> Self {
        let steps = plan.steps.iter();
        let steps = steps.filter(|step| matches!(step.op, Op::UpgradeNode { .. }));
        let steps = steps.filter(|step| step.stage == *stage);
        Self {
            open: steps.map(|step| step.object.name.clone()).collect(),
            active: None,
            ended: None,
            moved: Instant::now(),
            withdrawn: false,
            hooks: Vec::new(),
            hooks_at: None,
            outlook: None,
            live: BTreeMap::new(),
            marks: BTreeMap::new(),
            nodes_at: None,
            known: BTreeMap::new(),
            last: BTreeMap::new(),
            warned: BTreeSet::new(),
        }
    }

    fn decide(&self) -> Decision<'_> {
        let course = Course {
            open: &self.open,
            active: self.active.as_deref(),
            marks: &self.marks,
        };
        next(&self.hooks, course)
    }

    /// Returns the decision about the hooks.
    pub(super) fn outlook(&mut self) -> Outlook {
        if let Some(outlook) = &self.outlook {
            return outlook.clone();
        }
        let decision = self.decide();
        let turn = decision.turn.as_ref();
        let outlook = Outlook {
            turn: turn
                .map(|(node, hook, point)| ((*node).to_owned(), (*hook).clone(), point.clone())),
            waiting: decision.waiting.iter().map(ToString::to_string).collect(),
            strays: strays(&decision),
        };
        self.outlook.insert(outlook).clone()
    }

    /// Sets the node on which the run works.
    pub(super) fn activate(&mut self, node: Option<&str>) {
        self.active = node.map(str::to_owned);
        self.outlook = None;
    }

    /// Restarts the time after which the driver counts as stuck.
    pub(super) fn restart(&mut self) {
        self.moved = Instant::now();
        self.withdrawn = false;
    }

    /// Returns whether the driver made no progress for this long.
    fn is_silent(&self, limit: Duration) -> bool {
        self.active.is_none() && self.moved.elapsed() >= limit
    }

    /// Sets our mark of a node.
    pub(super) fn remember(&mut self, node: &str, mark: Option<Mark>) {
        match mark {
            Some(mark) => self.marks.insert(node.to_owned(), mark),
            None => self.marks.remove(node),
        };
        self.outlook = None;
    }

    /// Returns why it is not known whether the driver asks for a node.
    pub(super) fn unresolved(&self, node: &str) -> Option<String> {
        let hook = unresolved(&self.hooks, &self.last, node)?;
        let why = hook.node.as_ref().err()?;
        Some(format!("the node of {} is not known: {why}", hook.object))
    }

    /// Reads the hooks and their nodes, unless they were just read.
    pub(super) async fn refresh(
        &mut self,
        operator: &Operator<'_>,
        cluster: &Cluster,
        rule: &DriverRule,
    ) -> Result<(), ClusterError> {
        let is_fresh = |at: Option<Instant>, age: Duration| at.is_some_and(|at| at.elapsed() < age);
        if !is_fresh(self.nodes_at, NODES) {
            self.read_nodes(operator, cluster).await?;
        }
        // A little less than the pause of a step, so that each of its reads is a new one.
        if is_fresh(self.hooks_at, PAUSE / 2) {
            return Ok(());
        }
        let Some(path) = operator.paths.of_kind(&rule.hooks) else {
            self.hooks = Vec::new();
            self.outlook = None;
            return Ok(());
        };
        let labels = rule.selector();
        let selector = Selector {
            labels: Some(&labels),
            ..Selector::namespace(rule.namespace.as_deref())
        };
        let read = |object: Partial| rule.hook(&object.metadata);
        let hooks = cluster.pick(&path, &selector, Depth::Metadata, read);
        let mut hooks = hooks.await?;
        hooks.sort_by(|a, b| a.object.cmp(&b.object));
        self.resolve(operator, cluster, rule, &mut hooks).await?;
        self.last
            .retain(|uid, _| hooks.iter().any(|hook| hook.uid == *uid));
        for hook in hooks.iter().filter(|hook| hook.is_used()) {
            if let Ok(node) = &hook.node {
                self.last.insert(hook.uid.clone(), node.clone());
            }
        }
        self.hooks = hooks;
        self.hooks_at = Some(Instant::now());
        self.outlook = None;
        let mut warned = std::mem::take(&mut self.warned);
        let decision = self.decide();
        let strays = decision.strays.into_iter();
        let strays =
            strays.map(|(hook, why)| (hook, format!("it asks and is not acknowledged: {why}")));
        let block = decision.block.map(|(hook, why)| (hook, blocks(why)));
        for (hook, message) in strays.chain(block) {
            if warned.insert((hook.uid.clone(), message.clone())) {
                let finding = Finding::warning(Kind::Cluster, "hook-not-acknowledged", message);
                let finding = finding.on(hook.object.clone());
                operator.events.send(EventKind::Warning(finding));
            }
        }
        self.warned = warned;
        Ok(())
    }

    async fn read_nodes(
        &mut self,
        operator: &Operator<'_>,
        cluster: &Cluster,
    ) -> Result<(), ClusterError> {
        let ours = operator.desired.name.to_string();
        let read = |node: Partial| {
            let metadata = &node.metadata;
            let name = metadata["name"].as_str()?.to_owned();
            let uid = metadata["uid"].as_str()?.to_owned();
            let mark = Mark::of(&json!({"metadata": {"annotations": metadata["annotations"]}}));
            let mark = mark.filter(|mark| mark.release == ours);
            Some((name, uid, mark))
        };
        let everything = Selector::default();
        let path = nodes();
        let found = cluster.pick(&path, &everything, Depth::Metadata, read);
        let found = found.await?;
        self.live.clear();
        self.marks.clear();
        for (name, uid, mark) in found {
            self.marks.extend(mark.map(|mark| (name.clone(), mark)));
            self.live.insert(name, uid);
        }
        self.outlook = None;
        self.nodes_at = Some(Instant::now());
        Ok(())
    }

    /// Replaces the name of the object of each node by that of the node. Fails if an object cannot be
    /// read for now.
    async fn resolve(
        &mut self,
        operator: &Operator<'_>,
        cluster: &Cluster,
        rule: &DriverRule,
        hooks: &mut [Hook],
    ) -> Result<(), ClusterError> {
        let key = |hook: &Hook| {
            let target = hook.node.as_ref().ok()?;
            hook.is_used().then(|| (hook.uid.clone(), target.clone()))
        };
        let used: BTreeSet<(String, String)> = hooks.iter().filter_map(key).collect();
        let is_valid = |known: &Known| known.node.is_ok() || known.at.elapsed() < LOOKUP;
        self.known
            .retain(|key, known| used.contains(key) && is_valid(known));
        let open: Vec<(String, String)> = used
            .into_iter()
            .filter(|key| !self.known.contains_key(key))
            .collect();
        let path = operator.paths.of_kind(&rule.node.kind);
        let path = path.as_ref();
        let read = stream::iter(open)
            .map(|key| async move {
                let node = node_of(cluster, path, rule, &key.1).await;
                let at = Instant::now();
                node.map(|node| (key, Known { node, at }))
            })
            .buffer_unordered(AT_ONCE);
        let read: Vec<_> = read.collect().await;
        let mut failed = Ok(());
        for one in read {
            match one {
                Ok((key, known)) => drop(self.known.insert(key, known)),
                Err(error) => failed = Err(error),
            }
        }
        failed?;
        for hook in hooks {
            if let Some(known) = key(hook).and_then(|key| self.known.get(&key)) {
                hook.node.clone_from(&known.node);
            }
        }
        Ok(())
    }

    /// Decides about the wait of a node whose hooks cannot be read.
    pub(super) fn unread(&self, failed: Failure, is_retryable: bool, limit: Duration) -> Verdict {
        if let Some(because) = self.ended {
            return Verdict::After(because);
        }
        if is_retryable && !self.is_silent(limit) {
            return Verdict::Wait(format!("hooks cannot be read: {}", failed.message));
        }
        Verdict::Failed(failed)
    }

    /// Decides about the wait of a node. `limit` is the time after which a driver that asks for no
    /// node counts as stuck.
    pub(super) fn verdict(&mut self, rule: &DriverRule, turn: &Waiting<'_>) -> Verdict {
        if let Some(because) = self.ended {
            return Verdict::After(because);
        }
        if turn.uid.is_some_and(|uid| {
            self.nodes_at.is_some() && self.live.get(turn.node).is_none_or(|live| live != uid)
        }) {
            return Verdict::Gone;
        }
        let outlook = self.outlook();
        let in_work = match &outlook.turn {
            Some((node, _, point)) if *node == turn.node && self.active.is_none() => {
                return self.begin(rule, turn, point);
            }
            Some((node, ..)) => Some(node.as_str()),
            None => None,
        };
        let in_work = self.active.as_deref().or(in_work);
        if in_work.is_none()
            && let Some(closed) = closed(turn.windows, &Value::Null, turn.now)
        {
            return Verdict::Failed(closed);
        }
        if self.is_silent(turn.limit) {
            return Verdict::Failed(self.silent(rule, &outlook, turn.limit));
        }
        let text = match in_work {
            Some(other) if outlook.waiting.contains(turn.node) => {
                format!("its hook waits for node {other}, which is between its hooks")
            }
            Some(other) => format!("waiting for the driver, which works on node {other}"),
            None if outlook.waiting.contains(turn.node) => {
                "its hook waits for a hook whose node is not known".to_owned()
            }
            None => {
                let request = &rule.before.request;
                format!("waiting for the driver to ask by annotation `{request}`")
            }
        };
        let text = format!("{text}{}", outlook.strays);
        let is_withdrawn =
            || !outlook.waiting.contains(turn.node) && self.unresolved(turn.node).is_none();
        if self.marks.contains_key(turn.node) && is_withdrawn() {
            return Verdict::Marked(text);
        }
        Verdict::Wait(text)
    }

    /// Decides whether a node begins. Outside of the windows, only a node in work continues. A driver
    /// that asks and withdraws again and again makes no progress.
    pub(super) fn begin(&self, rule: &DriverRule, turn: &Waiting<'_>, point: &Point) -> Verdict {
        let is_asked = matches!(point, Point::Before(_));
        if is_asked && self.withdrawn && self.is_silent(turn.limit) {
            let message = format!(
                "the driver withdrew its requests by annotation `{}` for {} s",
                rule.before.request,
                turn.limit.as_secs()
            );
            let failed = Failure::new(FailureKind::NotReady, message);
            return Verdict::Failed(failed.hint("check the driver, then apply again"));
        }
        let is_new = is_asked && !self.marks.contains_key(turn.node);
        let closed = closed(turn.windows, &Value::Null, turn.now).filter(|_| is_new);
        closed.map_or(Verdict::Begin, Verdict::Failed)
    }

    /// Returns the failure of a driver that asks for no node.
    fn silent(&self, rule: &DriverRule, outlook: &Outlook, limit: Duration) -> Failure {
        let names: Vec<&str> = self.open.iter().map(String::as_str).collect();
        let message = format!(
            "the driver asked for none of {} in {} s by annotation `{}` of {} with label {}{}",
            listed(&names),
            limit.as_secs(),
            rule.before.request,
            rule.hook_objects(),
            rule.selector(),
            outlook.strays,
        );
        let hint = "check the driver, then apply again; nodes for which `done` holds are skipped";
        Failure::new(FailureKind::NotReady, message).hint(hint)
    }
}

/// Node that waits until the driver asks for it.
pub(super) struct Waiting<'a> {
    pub(super) node: &'a str,
    pub(super) uid: Option<&'a str>,
    pub(super) windows: &'a Windows,
    pub(super) now: Timestamp,
    pub(super) limit: Duration,
}

/// End of the wait of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Begun {
    /// It is in work now.
    Now,
    /// A killed run completed it.
    Over,
}

/// Decision about the wait of a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Verdict {
    /// It is in work now.
    Begin,
    /// It waits, with the reason.
    Wait(String),
    /// It waits, but bears the mark of an earlier run.
    Marked(String),
    /// It is not in the cluster any more.
    Gone,
    /// Another step failed.
    After(StepId),
    /// The wait failed.
    Failed(Failure),
}

/// Describes the hooks that are not acknowledged.
pub(super) fn strays(decision: &Decision<'_>) -> String {
    let shown = decision.strays.iter().take(NAMED);
    let shown = shown.map(|(hook, why)| format!("; {} is not acknowledged: {why}", hook.object));
    let more = decision.strays.len().saturating_sub(NAMED);
    let more = (more > 0).then(|| format!("; likewise {more} more"));
    let block = decision.block.as_ref();
    let block = block.map(|(hook, why)| format!("; {}: {}", hook.object, blocks(why)));
    shown.chain(more).chain(block).collect::<Vec<_>>().concat()
}

/// Describes a hook that blocks all nodes.
fn blocks(why: &str) -> String {
    format!("no other node begins, because its node may be drained and is not known: {why}")
}

pub(super) fn listed(names: &[&str]) -> String {
    let shown = names.iter().take(NAMED).copied();
    let shown = shown.collect::<Vec<_>>().join(", ");
    match names.len().saturating_sub(NAMED) {
        0 => shown,
        more => format!("{shown} and {more} more"),
    }
}

/// Reads the node that an object names. An error that can pass is returned as such.
async fn node_of(
    cluster: &Cluster,
    path: Option<&ResourcePath>,
    rule: &DriverRule,
    name: &str,
) -> Result<Result<String, String>, ClusterError> {
    let id = rule.node.object(name);
    let Some(path) = path else {
        return Ok(Err(format!("the server does not know the kind of {id}")));
    };
    let node = match cluster.get_id(path, &id).await {
        Ok(Some(object)) => {
            let node = rule.node.node_of(&object);
            node.map_err(|why| format!("{id}: {why}"))
        }
        Ok(None) => Err(format!("{id} does not exist")),
        Err(error) if error.is_retryable() => return Err(error),
        Err(error) => Err(format!("{id} cannot be read: {}", failure(&error).message)),
    };
    Ok(node)
}

#[cfg(test)]
mod tests;
