//! Nodes that another controller drains. Each step waits until the driver asks for its node.
//!
//! The steps of a stage share what was read of the hooks, and the node in work. So hooks are listed
//! once for all, and one node at most is between its hooks.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures::stream::{self, StreamExt as _};
use jiff::Timestamp;
use pleach_formats::nodes::{
    DriverRule, Mark,
    driver::{Course, Decision, Hook, HookAnnotations, Point, next, unresolved},
};
use pleach_formats::window::Windows;
use pleach_model::finding::{Finding, Kind};
use pleach_model::order::StageName;
use pleach_planner::plan::{Op, Plan, StepId};
use pleach_state::inventory::NodePhase;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::sync::Mutex as AsyncMutex;
use tokio::time::{Instant, timeout};

use super::job::Role;
use super::{AGAIN, End, NodeUpgrade, PAUSE, UNDOING, closed, may_pass, nodes};
use crate::sync::{
    events::EventKind,
    op::{Operator, failure, required_uid},
    report::{Failure, FailureKind, NotBegun},
    wait::Progress,
};
use pleach_cluster::{
    Class, Cluster, ClusterError, Depth, Patch, PatchOptions, ResourcePath, Selector,
};
use pleach_model::object::managers;

/// Interval between lists of the nodes.
const NODES: Duration = Duration::from_secs(30);

/// Delay before the node of a hook that could not be read is read again.
const LOOKUP: Duration = Duration::from_secs(10);

/// Number of concurrent reads of the nodes of hooks.
const AT_ONCE: usize = 10;

/// Number of hooks or nodes in a message.
const NAMED: usize = 3;

/// Drivers of a run, by stage.
#[derive(Default)]
pub(in crate::sync) struct Drivers(Mutex<BTreeMap<StageName, Arc<AsyncMutex<Board>>>>);

impl Drivers {
    fn of(&self, plan: &Plan, stage: &StageName) -> Arc<AsyncMutex<Board>> {
        let mut boards = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let board = boards.entry(stage.clone());
        let board = board.or_insert_with(|| Arc::new(AsyncMutex::new(Board::new(plan, stage))));
        Arc::clone(board)
    }
}

/// Hooks and nodes of a stage.
struct Board {
    /// Nodes that are not complete.
    open: BTreeSet<String>,
    /// Node on which the run works.
    active: Option<String>,
    /// Step whose failure stops the others.
    ended: Option<StepId>,
    /// Time of the last acknowledgement, or at which a node was completed, or the run began.
    moved: Instant,
    /// Whether the driver withdrew a request since then.
    withdrawn: bool,
    hooks: Vec<Hook>,
    hooks_at: Option<Instant>,
    /// Decision about these hooks. `None` if it is out of date.
    outlook: Option<Outlook>,
    /// Uids of the live nodes, and our marks.
    live: BTreeMap<String, String>,
    marks: BTreeMap<String, Mark>,
    nodes_at: Option<Instant>,
    /// Nodes of hooks, by uid of the hook and name of the object of the node.
    known: BTreeMap<(String, String), Known>,
    /// Last known nodes of the hooks, by uid of the hook.
    last: BTreeMap<String, String>,
    /// Hooks with a warning.
    warned: BTreeSet<(String, String)>,
}

/// Node of a hook, with the time of the read.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Known {
    node: Result<String, String>,
    at: Instant,
}

/// Decision about the hooks, for the steps of all nodes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Outlook {
    /// Node in work, with its hook.
    turn: Option<(String, Hook, Point)>,
    /// Nodes that wait for it, or for a hook whose node is not known.
    waiting: BTreeSet<String>,
    /// Text about hooks that are not acknowledged, and the one that blocks all nodes.
    strays: String,
}

/// State of the hook of the node in work.
struct Seen {
    turn: Option<(Hook, Point)>,
    /// Our mark of the node.
    mark: Option<Mark>,
    /// Reason why it is not known whether the driver asks.
    unresolved: Option<String>,
    strays: String,
}

/// Metadata of a listed object.
#[derive(Deserialize)]
struct Partial {
    metadata: Value,
}

impl Board {
    fn new(plan: &Plan, stage: &StageName) -> Self {
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
    fn outlook(&mut self) -> Outlook {
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
    fn activate(&mut self, node: Option<&str>) {
        self.active = node.map(str::to_owned);
        self.outlook = None;
    }

    /// Restarts the time after which the driver counts as stuck.
    fn restart(&mut self) {
        self.moved = Instant::now();
        self.withdrawn = false;
    }

    /// Returns whether the driver made no progress for this long.
    fn is_silent(&self, limit: Duration) -> bool {
        self.active.is_none() && self.moved.elapsed() >= limit
    }

    /// Sets our mark of a node.
    fn remember(&mut self, node: &str, mark: Option<Mark>) {
        match mark {
            Some(mark) => self.marks.insert(node.to_owned(), mark),
            None => self.marks.remove(node),
        };
        self.outlook = None;
    }

    /// Returns why it is not known whether the driver asks for a node.
    fn unresolved(&self, node: &str) -> Option<String> {
        let hook = unresolved(&self.hooks, &self.last, node)?;
        let why = hook.node.as_ref().err()?;
        Some(format!("the node of {} is not known: {why}", hook.object))
    }

    /// Reads the hooks and their nodes, unless they were just read.
    async fn refresh(
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
    fn unread(&self, failed: Failure, is_retryable: bool, limit: Duration) -> Verdict {
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
    fn verdict(&mut self, rule: &DriverRule, turn: &Waiting<'_>) -> Verdict {
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

    /// Decides whether a node begins. Outside of the windows, only a node in work goes on. A driver
    /// that asks and withdraws again and again makes no progress.
    fn begin(&self, rule: &DriverRule, turn: &Waiting<'_>, point: &Point) -> Verdict {
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
struct Waiting<'a> {
    node: &'a str,
    uid: Option<&'a str>,
    windows: &'a Windows,
    now: Timestamp,
    limit: Duration,
}

/// End of the wait of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Begun {
    /// It is in work now.
    Now,
    /// A killed run completed it.
    Over,
}

/// Decision about the wait of a node.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Verdict {
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
fn strays(decision: &Decision<'_>) -> String {
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

fn listed(names: &[&str]) -> String {
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

impl NodeUpgrade<'_> {
    /// Changes a node when its driver asks for it.
    pub(super) async fn run_driven(&mut self, driver: &DriverRule) -> Result<(), End> {
        loop {
            let begun = match self.operator.permit(self.step) {
                Some(permit) => permit.aside(self.await_turn(driver)).await,
                None => self.await_turn(driver).await,
            };
            if begun? == Begun::Over {
                return Ok(());
            }
            let waiter = self.operator.waiter();
            self.started = Instant::now();
            self.deadline = self.started + self.limit_of_node();
            self.progress = Progress::new(&waiter, self.step, self.started);
            self.ready_again = None;
            self.in_change = Some(self.operator.nodes.begin());
            let node = self.node().await?;
            self.ready_at_start = pleach_formats::nodes::ready_since(&node).map(str::to_owned);
            if self.serve(driver).await? {
                return Ok(());
            }
            // Marks that stay are cleared during the wait.
            self.begin_undoing();
            if let Ok(undone) = timeout(UNDOING, self.undo()).await {
                undone?;
            }
            self.enter(NodePhase::Pending);
            self.in_change = None;
            let board = self.board();
            let mut board = board.lock().await;
            board.activate(None);
            board.withdrawn = true;
        }
    }

    /// Sets the time limit for undoing changes.
    fn begin_undoing(&mut self) {
        self.started = Instant::now();
        self.deadline = self.started + UNDOING;
    }

    /// Ends the work on the node.
    pub(super) async fn leave(&self, failed: bool) {
        let board = self.board();
        let mut board = board.lock().await;
        let name = &self.step.object.name;
        if failed {
            board.ended.get_or_insert(self.step.id);
        } else {
            board.open.remove(name);
            board.outlook = None;
            board.restart();
        }
        if board.active.as_ref() == Some(name) {
            board.activate(None);
        }
    }

    fn board(&self) -> Arc<AsyncMutex<Board>> {
        self.operator
            .drivers
            .of(self.operator.plan, &self.step.stage)
    }

    fn limit_of_node(&self) -> Duration {
        Duration::try_from(self.step.deadline).unwrap_or_default()
    }

    /// Waits until the driver asks for the node, and no other one is in work.
    async fn await_turn(&mut self, driver: &DriverRule) -> Result<Begun, End> {
        let stop = self.operator.stop;
        let mut tried: Option<Instant> = None;
        loop {
            let verdict = tokio::select! {
                biased;
                _ = stop.wait() => return Err(End::NotBegun(NotBegun::Stopped)),
                verdict = self.verdict(driver) => verdict,
            };
            match verdict {
                Verdict::Begin => return Ok(Begun::Now),
                Verdict::Wait(message) => self.progress.report(message),
                Verdict::Marked(message) => {
                    self.progress.report(message);
                    if tried.is_none_or(|at| at.elapsed() >= NODES) {
                        tried = Some(Instant::now());
                        self.begin_undoing();
                        let cleared = tokio::select! {
                            biased;
                            _ = stop.wait() => Ok(Err(End::NotBegun(NotBegun::Stopped))),
                            cleared = timeout(UNDOING, self.clear()) => cleared,
                        };
                        // Its requests can have taken a permit for retries.
                        if let Some(permit) = self.operator.permit(self.step) {
                            permit.release();
                        }
                        // After the time limit it is tried again.
                        if let Ok(is_over) = cleared
                            && is_over?
                        {
                            return Ok(Begun::Over);
                        }
                    }
                }
                Verdict::Gone => return Err(End::Gone),
                Verdict::After(because) => return Err(End::NotBegun(NotBegun::After(because))),
                Verdict::Failed(failure) => return Err(failure.into()),
            }
            tokio::select! {
                biased;
                _ = stop.wait() => return Err(End::NotBegun(NotBegun::Stopped)),
                () = tokio::time::sleep(PAUSE) => {}
            }
        }
    }

    /// Reads the hooks and decides about the node. A node that begins is the active one.
    async fn verdict(&self, driver: &DriverRule) -> Verdict {
        let board = self.board();
        let mut board = board.lock().await;
        let limit = self.limit_of_node();
        let read = board.refresh(self.operator, self.operator.cluster, driver);
        let read = read.await;
        let turn = Waiting {
            node: &self.step.object.name,
            uid: required_uid(self.step),
            windows: self.operator.windows,
            now: Timestamp::now(),
            limit,
        };
        let verdict = match read {
            Ok(()) => board.verdict(driver, &turn),
            Err(error) => board.unread(failure(&error), error.is_retryable(), limit),
        };
        match &verdict {
            Verdict::Begin => {
                board.activate(Some(&self.step.object.name));
            }
            Verdict::Failed(_) => {
                board.ended.get_or_insert(self.step.id);
            }
            Verdict::Wait(_) | Verdict::Marked(_) | Verdict::Gone | Verdict::After(_) => {}
        }
        verdict
    }

    /// Takes the mark of a killed run off a node that the driver does not ask for any more. Returns
    /// whether the node is changed. One on which the Job may have begun keeps its mark until then.
    async fn clear(&self) -> Result<bool, End> {
        let node = self.node().await?;
        let begun = Mark::of(&node).is_some_and(|mark| mark.begun);
        if begun && self.is_done(&node)? && self.did_run(&node).await? {
            return self.end_driven().await;
        }
        self.undo().await?;
        if !begun {
            let board = self.board();
            board.lock().await.remember(&self.step.object.name, None);
        }
        Ok(false)
    }

    /// Reads the mark of the node again, after it was changed.
    async fn remember(&self) -> Result<(), End> {
        let node = self.node().await?;
        let ours = Mark::of(&node).and_then(|_| self.mark(&node).ok());
        let board = self.board();
        board.lock().await.remember(&self.step.object.name, ours);
        Ok(())
    }

    /// Executes the actions of both hooks. Returns `false` if the driver withdrew its request
    /// before anything was acknowledged.
    async fn serve(&mut self, driver: &DriverRule) -> Result<bool, End> {
        // Whether the answer to the last acknowledgement was lost.
        let mut is_lost = false;
        loop {
            let seen = self.look(driver).await?;
            let Some((hook, point)) = seen.turn else {
                if let Some(why) = seen.unresolved {
                    self.progress.report(why);
                } else if is_lost {
                    return self.end_driven().await;
                } else {
                    let node = self.node().await?;
                    if !self.mark(&node)?.begun {
                        return Ok(false);
                    }
                    let message = "waiting for the driver, which asks for nothing on this node now";
                    self.progress.report(format!("{message}{}", seen.strays));
                }
                self.pause().await?;
                continue;
            };
            if hook.is_foreign(seen.mark.as_ref()) {
                self.warn_foreign(driver, &hook).await;
            }
            is_lost = false;
            let is_earlier = hook.is_earlier(seen.mark.as_ref());
            match point {
                Point::Before(value) => self.serve_before(driver, &value).await?,
                Point::Drain => {
                    self.enter(NodePhase::Draining);
                    if hook.asked.is_none() && seen.mark.is_some_and(|mark| mark.earlier.is_some())
                    {
                        self.change(Mark::forget_earlier).await?;
                        self.remember().await?;
                    }
                    let request = &driver.after.request;
                    let state = if is_earlier {
                        ", which still has the value of an earlier change"
                    } else {
                        ""
                    };
                    let message = format!(
                        "waiting for the driver to drain it: annotation `{request}`{state}"
                    );
                    self.progress.report(message);
                    self.pause().await?;
                }
                Point::After(value) => {
                    self.check_stop()?;
                    self.change(|mark, node| (!mark.begun).then(|| mark.begin(node)))
                        .await?;
                    self.remember().await?;
                    self.finish_driven().await?;
                    let is_same = |point: &Point| *point == Point::After(value.clone());
                    let hook = (&driver.after, value.as_str());
                    match self.acknowledge(driver, hook, is_same).await? {
                        Answer::Given => return self.end_driven().await,
                        Answer::Changed { unclear } => is_lost = unclear,
                        Answer::Refused { failure, .. } => return Err(failure.into()),
                    }
                    self.pause().await?;
                }
                Point::Over => {
                    let node = self.node().await?;
                    match self.lacks(&node)? {
                        None => return self.end_driven().await,
                        Some(message) => self.progress.report(message),
                    }
                    self.pause().await?;
                }
            }
        }
    }

    /// Executes the actions before the drain, and acknowledges the request unless the driver
    /// changed it meanwhile.
    async fn serve_before(&mut self, driver: &DriverRule, value: &str) -> Result<(), End> {
        let rule = self.rule;
        self.enter(NodePhase::Evacuating);
        for action in &rule.before {
            self.act(action).await?;
        }
        let is_same = |point: &Point| matches!(point, Point::Before(now) if now == value);
        let now = self.look(driver).await?.turn;
        let Some((hook, _)) = now.filter(|(_, point)| is_same(point)) else {
            return Ok(self.pause().await?);
        };
        self.check_stop()?;
        // From here on the driver may drain the node.
        let node = self.node().await?;
        let was_begun = self.mark(&node)?.begun;
        let is_done = self.is_done(&node)?;
        self.change(|mark, node| mark.hand_over(node, is_done, hook.asked.as_deref()))
            .await?;
        self.remember().await?;
        let annotations = (&driver.before, value);
        let answer = self.acknowledge(driver, annotations, is_same).await?;
        let unclear = match &answer {
            Answer::Given => return Ok(()),
            Answer::Changed { unclear } | Answer::Refused { unclear, .. } => *unclear,
        };
        let reverted = if was_begun || unclear {
            Ok(())
        } else {
            self.revert(driver, &hook, value).await
        };
        if let Answer::Refused { failure, .. } = answer {
            return Err(failure.into());
        }
        reverted?;
        Ok(self.pause().await?)
    }

    /// Reverts the mark of a request whose acknowledgement was refused, unless a read shows it.
    async fn revert(&self, driver: &DriverRule, hook: &Hook, value: &str) -> Result<(), End> {
        self.look(driver).await?;
        let board = self.board();
        let is_confirmed = {
            let board = board.lock().await;
            let now = board.hooks.iter().find(|now| now.uid == hook.uid);
            now.is_some_and(|now| now.has_confirmed(value))
        };
        if !is_confirmed {
            self.change(Mark::hand_back).await?;
            self.remember().await?;
        }
        Ok(())
    }

    /// Fails after a stop request.
    fn check_stop(&self) -> Result<(), Failure> {
        match self.operator.stop.cause() {
            Some(_) => Err(Failure::stopped()),
            None => Ok(()),
        }
    }

    /// Warns about an acknowledgement that is not of this change.
    async fn warn_foreign(&self, driver: &DriverRule, hook: &Hook) {
        let HookAnnotations {
            request,
            acknowledge,
        } = &driver.before;
        let message = format!(
            "`{acknowledge}` acknowledges `{request}`, but not by this change: the actions before the drain did not run. A driver must remove both before it asks with the same value again"
        );
        let board = self.board();
        let mut board = board.lock().await;
        if board.warned.insert((hook.uid.clone(), message.clone())) {
            let finding = Finding::warning(Kind::Cluster, "hook-not-ours", message);
            let finding = finding.on(hook.object.clone());
            self.operator.events.send(EventKind::Warning(finding));
        }
    }

    /// Runs the Job and everything after it.
    async fn finish_driven(&mut self) -> Result<(), End> {
        let rule = self.rule;
        self.ready_again = None;
        self.enter(NodePhase::Upgrading);
        if let Some(file) = &rule.job {
            self.run_job(file, Role::Changes).await?;
            self.enter(NodePhase::Verifying);
        }
        self.await_done().await?;
        self.enter(NodePhase::Verifying);
        self.change(|mark, node| mark.release(node, rule)).await?;
        for action in &rule.after {
            self.act(action).await?;
        }
        Ok(())
    }

    /// Takes the mark off the node.
    async fn end_driven(&self) -> Result<bool, End> {
        let rule = self.rule;
        self.change(|mark, node| Mark::of(node).map(|_| mark.end(node, rule)))
            .await?;
        Ok(true)
    }

    /// Reads the hook of the node, and the object that names its node.
    async fn look(&self, driver: &DriverRule) -> Result<Seen, End> {
        let cluster = self.operator.cluster_for(self.step, self.started);
        let board = self.board();
        let mut board = board.lock().await;
        let name = &self.step.object.name;
        board.hooks_at = None;
        let is_other = |known: &Known| known.node.as_ref().is_ok_and(|node| node != name);
        board.known.retain(|_, known| is_other(known));
        let read = board.refresh(self.operator, &cluster, driver);
        read.await.map_err(|error| failure(&error))?;
        let outlook = board.outlook();
        Ok(Seen {
            turn: outlook.turn.map(|(_, hook, point)| (hook, point)),
            mark: board.marks.get(name).cloned(),
            unresolved: board.unresolved(name),
            strays: outlook.strays,
        })
    }

    /// Copies the value of a request to the annotation that acknowledges it.
    async fn acknowledge(
        &self,
        driver: &DriverRule,
        (annotations, value): (&HookAnnotations, &str),
        is_same: impl Fn(&Point) -> bool,
    ) -> Result<Answer, End> {
        let mut unclear = false;
        loop {
            let turn = self.look(driver).await?.turn;
            let Some((hook, _)) = turn.filter(|(_, point)| is_same(point)) else {
                return Ok(Answer::Changed { unclear });
            };
            let Some(path) = self.operator.paths.of_kind(&driver.hooks) else {
                return Ok(Answer::Changed { unclear });
            };
            if let Err(failure) = self.check_stop() {
                return Ok(Answer::Refused { failure, unclear });
            }
            let patch = acknowledgement(&hook, annotations, value);
            let options = PatchOptions {
                answer: Depth::Metadata,
                ..PatchOptions::new(managers::OVERLAY)
            };
            let cluster = self.operator.cluster_for(self.step, self.started);
            let patched = cluster.patch(&path, &hook.object, &patch, &options);
            let Err(error) = patched.await else {
                self.board().lock().await.restart();
                return Ok(Answer::Given);
            };
            unclear |= error.class().is_none_or(Class::is_unclear);
            if !may_pass(&error) || Instant::now() >= self.deadline {
                let failed = failure(&error);
                let message = format!("{} is not acknowledged: {}", hook.object, failed.message);
                let failure = Failure { message, ..failed };
                return Ok(Answer::Refused { failure, unclear });
            }
            self.operator.pause(self.step, AGAIN).await;
        }
    }
}

/// Result of an acknowledgement. `unclear`: whether the server can have executed a patch that failed.
enum Answer {
    /// The request is acknowledged.
    Given,
    /// The driver changed its request meanwhile.
    Changed { unclear: bool },
    /// The patch failed, or was not sent.
    Refused { failure: Failure, unclear: bool },
}

/// Returns the patch that acknowledges a request. It fails if the object was written meanwhile.
fn acknowledgement(hook: &Hook, annotations: &HookAnnotations, value: &str) -> Patch {
    Patch::Merge(json!({"metadata": {
        "uid": hook.uid,
        "resourceVersion": hook.version,
        "annotations": {annotations.acknowledge.as_str(): value},
    }}))
}

#[cfg(test)]
mod tests;
