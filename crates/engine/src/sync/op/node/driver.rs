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
    driver::{Course, Decision, Hook, HookAnnotations, Point, next},
};
use pleach_formats::window::Windows;
use pleach_model::finding::{Finding, Kind};
use pleach_model::order::StageName;
use pleach_planner::plan::{Op, Plan, StepId};
use pleach_state::inventory::NodePhase;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::sync::Mutex as AsyncMutex;
use tokio::time::Instant;

use super::job::Role;
use super::{AGAIN, End, NodeUpgrade, PAUSE, closed, nodes};
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
    /// Time at which a node began or ended, or the run began.
    moved: Instant,
    hooks: Vec<Hook>,
    hooks_at: Option<Instant>,
    /// Decision about these hooks. `None` if it is out of date.
    outlook: Option<Outlook>,
    /// Uids of the live nodes, and whether they bear our mark.
    live: BTreeMap<String, String>,
    marked: BTreeSet<String>,
    nodes_at: Option<Instant>,
    /// Nodes of hooks, by uid of the hook and name of the object of the node.
    known: BTreeMap<(String, String), Known>,
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
    /// Nodes that wait for it.
    waiting: BTreeSet<String>,
    /// Text about hooks that ask and are not acknowledged.
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
            hooks: Vec::new(),
            hooks_at: None,
            outlook: None,
            live: BTreeMap::new(),
            marked: BTreeSet::new(),
            nodes_at: None,
            known: BTreeMap::new(),
            warned: BTreeSet::new(),
        }
    }

    fn decide(&self) -> Decision<'_> {
        let course = Course {
            open: &self.open,
            active: self.active.as_deref(),
            marked: &self.marked,
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
        self.moved = Instant::now();
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
        self.resolve(operator, cluster, rule, &mut hooks).await;
        self.hooks = hooks;
        self.hooks_at = Some(Instant::now());
        self.outlook = None;
        let mut warned = std::mem::take(&mut self.warned);
        for (hook, why) in self.decide().strays {
            if warned.insert((hook.uid.clone(), why.clone())) {
                let message = format!("it asks and is not acknowledged: {why}");
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
            let is_ours = mark.is_some_and(|mark| mark.release == ours);
            Some((name, uid, is_ours))
        };
        let everything = Selector::default();
        let path = nodes();
        let found = cluster.pick(&path, &everything, Depth::Metadata, read);
        let found = found.await?;
        let marked = found.iter().filter(|(.., is_ours)| *is_ours);
        self.marked = marked.map(|(name, ..)| name.clone()).collect();
        self.live = found
            .into_iter()
            .map(|(name, uid, _)| (name, uid))
            .collect();
        self.nodes_at = Some(Instant::now());
        Ok(())
    }

    /// Replaces the name of the object of each node by that of the node.
    async fn resolve(
        &mut self,
        operator: &Operator<'_>,
        cluster: &Cluster,
        rule: &DriverRule,
        hooks: &mut [Hook],
    ) {
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
                (key, Known { node, at })
            })
            .buffer_unordered(AT_ONCE);
        let read: Vec<_> = read.collect().await;
        self.known.extend(read);
        for hook in hooks {
            if let Some(known) = key(hook).and_then(|key| self.known.get(&key)) {
                hook.node.clone_from(&known.node);
            }
        }
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
                return self.begin(turn, point);
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
        if self.active.is_none() && self.moved.elapsed() >= turn.limit {
            return Verdict::Failed(self.silent(rule, &outlook, turn.limit));
        }
        let text = match in_work {
            Some(other) if outlook.waiting.contains(turn.node) => {
                format!("its hook waits for node {other}, which is between its hooks")
            }
            Some(other) => format!("waiting for the driver, which works on node {other}"),
            None => {
                let request = &rule.before.request;
                format!("waiting for the driver to ask by annotation `{request}`")
            }
        };
        let text = format!("{text}{}", outlook.strays);
        if self.marked.contains(turn.node) && !outlook.waiting.contains(turn.node) {
            return Verdict::Marked(text);
        }
        Verdict::Wait(text)
    }

    /// Decides whether a node begins. Outside of the windows, only a node in work goes on.
    fn begin(&self, turn: &Waiting<'_>, point: &Point) -> Verdict {
        let is_new = matches!(point, Point::Before(_)) && !self.marked.contains(turn.node);
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
    shown.chain(more).collect::<Vec<_>>().concat()
}

fn listed(names: &[&str]) -> String {
    let shown = names.iter().take(NAMED).copied();
    let shown = shown.collect::<Vec<_>>().join(", ");
    match names.len().saturating_sub(NAMED) {
        0 => shown,
        more => format!("{shown} and {more} more"),
    }
}

/// Reads the node that an object names.
async fn node_of(
    cluster: &Cluster,
    path: Option<&ResourcePath>,
    rule: &DriverRule,
    name: &str,
) -> Result<String, String> {
    let id = rule.node.object(name);
    let Some(path) = path else {
        return Err(format!("the server does not know the kind of {id}"));
    };
    match cluster.get_id(path, &id).await {
        Ok(Some(object)) => {
            let node = rule.node.node_of(&object);
            node.map_err(|why| format!("{id}: {why}"))
        }
        Ok(None) => Err(format!("{id} does not exist")),
        Err(error) => Err(format!("{id} cannot be read: {}", failure(&error).message)),
    }
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
            self.in_change = Some(self.operator.nodes.begin());
            let node = self.node().await?;
            self.ready_at_start = pleach_formats::nodes::ready_since(&node).map(str::to_owned);
            if self.serve(driver).await? {
                return Ok(());
            }
            self.undo().await?;
            self.enter(NodePhase::Pending);
            self.in_change = None;
            self.board().lock().await.activate(None);
        }
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
        loop {
            let verdict = tokio::select! {
                biased;
                _ = stop.wait() => return Err(End::NotBegun(NotBegun::Stopped)),
                verdict = self.verdict(driver) => verdict?,
            };
            match verdict {
                Verdict::Begin => return Ok(Begun::Now),
                Verdict::Wait(message) => self.progress.report(message),
                Verdict::Marked(message) => {
                    if self.clear().await? {
                        return Ok(Begun::Over);
                    }
                    // Its requests can have taken a permit for retries.
                    if let Some(permit) = self.operator.permit(self.step) {
                        permit.release();
                    }
                    self.progress.report(message);
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
    async fn verdict(&self, driver: &DriverRule) -> Result<Verdict, End> {
        let board = self.board();
        let mut board = board.lock().await;
        let read = board.refresh(self.operator, self.operator.cluster, driver);
        match read.await {
            Ok(()) => {}
            Err(error) if error.is_retryable() => {
                let message = format!("hooks cannot be read: {}", failure(&error).message);
                return Ok(Verdict::Wait(message));
            }
            Err(error) => {
                let failed = failure(&error);
                board.ended.get_or_insert(self.step.id);
                return Err(failed.into());
            }
        }
        let turn = Waiting {
            node: &self.step.object.name,
            uid: required_uid(self.step),
            windows: self.operator.windows,
            now: Timestamp::now(),
            limit: self.limit_of_node(),
        };
        let verdict = board.verdict(driver, &turn);
        match &verdict {
            Verdict::Begin => {
                board.activate(Some(&self.step.object.name));
            }
            Verdict::Failed(_) => {
                board.ended.get_or_insert(self.step.id);
            }
            Verdict::Wait(_) | Verdict::Marked(_) | Verdict::Gone | Verdict::After(_) => {}
        }
        Ok(verdict)
    }

    /// Takes the mark of a killed run off a node that the driver does not ask for any more. Returns
    /// whether the node is changed. One on which the Job may have begun keeps its mark until then.
    async fn clear(&self) -> Result<bool, End> {
        let node = self.node().await?;
        let begun = Mark::of(&node).is_some_and(|mark| mark.begun);
        if begun && self.is_done(&node)? {
            return self.end_driven().await;
        }
        self.undo().await?;
        if !begun {
            let board = self.board();
            board.lock().await.marked.remove(&self.step.object.name);
        }
        Ok(false)
    }

    /// Executes the actions of both hooks. Returns `false` if the driver withdrew its request
    /// before anything was acknowledged.
    async fn serve(&mut self, driver: &DriverRule) -> Result<bool, End> {
        let rule = self.rule;
        loop {
            let outlook = self.look(driver).await?;
            let Some((.., point)) = outlook.turn else {
                let node = self.node().await?;
                if !self.mark(&node)?.begun {
                    return Ok(false);
                }
                let message = "waiting for the driver, which asks for nothing on this node now";
                self.progress.report(format!("{message}{}", outlook.strays));
                self.pause().await?;
                continue;
            };
            match point {
                Point::Before(value) => {
                    self.enter(NodePhase::Evacuating);
                    for action in &rule.before {
                        self.act(action).await?;
                    }
                    let is_same = |point: &Point| *point == Point::Before(value.clone());
                    let now = self.look(driver).await?.turn;
                    if now.is_some_and(|(.., point)| is_same(&point)) {
                        // From here on the driver may drain the node.
                        self.change(|mark, node| (!mark.begun).then(|| mark.begin(node)))
                            .await?;
                        self.acknowledge(driver, (&driver.before, &value), is_same)
                            .await?;
                    }
                }
                Point::Drain => {
                    self.enter(NodePhase::Draining);
                    let request = &driver.after.request;
                    let message =
                        format!("waiting for the driver to drain it: annotation `{request}`");
                    self.progress.report(message);
                    self.pause().await?;
                }
                Point::After(value) => {
                    self.change(|mark, node| (!mark.begun).then(|| mark.begin(node)))
                        .await?;
                    self.finish_driven().await?;
                    let is_same = |point: &Point| *point == Point::After(value.clone());
                    let hook = (&driver.after, value.as_str());
                    if self.acknowledge(driver, hook, is_same).await? {
                        return self.end_driven().await;
                    }
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

    /// Runs the Job and everything after it.
    async fn finish_driven(&mut self) -> Result<(), End> {
        let rule = self.rule;
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
    async fn look(&self, driver: &DriverRule) -> Result<Outlook, End> {
        let cluster = self.operator.cluster_for(self.step, self.started);
        let board = self.board();
        let mut board = board.lock().await;
        let name = &self.step.object.name;
        board.hooks_at = None;
        board
            .known
            .retain(|_, known| known.node.as_ref() != Ok(name));
        let read = board.refresh(self.operator, &cluster, driver);
        read.await.map_err(|error| failure(&error))?;
        Ok(board.outlook())
    }

    /// Copies the value of a request to the annotation that acknowledges it. Returns `false` if the
    /// driver changed its request meanwhile.
    async fn acknowledge(
        &self,
        driver: &DriverRule,
        (annotations, value): (&HookAnnotations, &str),
        is_same: impl Fn(&Point) -> bool,
    ) -> Result<bool, End> {
        loop {
            let Some((_, hook, point)) = self.look(driver).await?.turn else {
                return Ok(false);
            };
            if !is_same(&point) {
                return Ok(false);
            }
            let Some(path) = self.operator.paths.of_kind(&driver.hooks) else {
                return Ok(false);
            };
            let patch = acknowledgement(&hook, annotations, value);
            let options = PatchOptions {
                answer: Depth::Metadata,
                ..PatchOptions::new(managers::OVERLAY)
            };
            let cluster = self.operator.cluster_for(self.step, self.started);
            let patched = cluster.patch(&path, &hook.object, &patch, &options);
            let Err(error) = patched.await else {
                return Ok(true);
            };
            let is_stale = matches!(
                error.class(),
                Some(Class::StaleResourceVersion | Class::PreconditionFailed(_) | Class::Conflict)
            );
            if !is_stale || Instant::now() >= self.deadline {
                let failed = failure(&error);
                let message = format!("{} is not acknowledged: {}", hook.object, failed.message);
                return Err(Failure { message, ..failed }.into());
            }
            self.operator.pause(self.step, AGAIN).await;
        }
    }
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
