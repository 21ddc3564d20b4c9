//! Nodes that another controller drains. Each step waits until the driver asks for its node.
//!
//! The steps of a stage share what was read of the hooks, and the node in work. So hooks are listed
//! once for all, and one node at most is between its hooks.

mod board;

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use pleach_formats::nodes::{
    DriverRule, Mark,
    driver::{Hook, HookAnnotations, Point},
};
use pleach_model::finding::{Finding, Kind};
use pleach_state::inventory::NodePhase;
use serde_json::json;
use tokio::sync::Mutex as AsyncMutex;
use tokio::time::{Instant, timeout};

pub(in crate::sync) use self::board::Drivers;
use self::board::{Begun, Board, Known, NODES, Seen, Verdict, Waiting};
use super::job::Role;
use super::{AGAIN, End, NodeUpgrade, PAUSE, UNDOING, may_pass};
use crate::sync::{
    events::EventKind,
    op::{failure, required_uid},
    report::{Failure, NotBegun},
    wait::Progress,
};
use pleach_cluster::{Class, Depth, Patch, PatchOptions};
use pleach_model::object::managers;

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
