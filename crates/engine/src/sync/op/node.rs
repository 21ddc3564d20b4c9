//! Change of a node: actions, cordon, drain, Job, uncordon.
//!
//! A run reads from the node and its mark how far its change is, so it continues the work of a
//! killed one. Before the Job may have begun, a failed run undoes cordon and taints. Afterwards they stay,
//! because a half-changed node must not get pods.

mod drain;
mod driver;
mod job;

use std::time::Duration;

use jiff::Timestamp;
use pleach_formats::nodes::{Mark, NodeAction, NodesRule, is_cordoned, ready_since};
use pleach_formats::window::Windows;
use pleach_model::finding::{Finding, Kind};
use pleach_model::object::managers;
use pleach_planner::plan::Step;
use pleach_state::inventory::NodePhase;
use serde_json::Value;
use tokio::time::Instant;

pub(in crate::sync) use self::driver::Drivers;
use self::job::Role;
use super::{Operator, failure, required_uid};
use crate::lease::NodeInChange;
use crate::sync::{
    events::EventKind,
    report::{Failure, FailureKind, NotBegun},
    wait::Progress,
};
use pleach_cluster::{Class, ClusterError, Patch, PatchOptions, ResourcePath};

/// Interval between reads of a node in work.
const PAUSE: Duration = Duration::from_secs(1);

/// Delay before a patch that met another write is repeated.
const AGAIN: Duration = Duration::from_millis(200);

/// Time for undoing the changes of a node after a failure.
const UNDOING: Duration = Duration::from_secs(30);

/// Time for which a node must be ready again, if it was not ready meanwhile.
const STABLE: Duration = Duration::from_secs(30);

/// Reason why the change of a node ends early.
enum End {
    /// The node does not exist any more.
    Gone,
    /// The change did not begin.
    NotBegun(NotBegun),
    /// The change failed.
    Failed(Failure),
}

impl From<Failure> for End {
    fn from(failure: Failure) -> Self {
        Self::Failed(failure)
    }
}

/// The change of one node.
struct NodeUpgrade<'a> {
    operator: &'a Operator<'a>,
    step: &'a Step,
    rule: &'a NodesRule,
    started: Instant,
    deadline: Instant,
    progress: Progress<'a>,
    /// Time since which the node was ready when its change began, as its condition has it.
    ready_at_start: Option<String>,
    /// Time at which the node was seen ready again.
    ready_again: Option<Instant>,
    /// Whether another client uncordoned the node once.
    uncordoned: bool,
    /// Entry in the counter of nodes in their change.
    in_change: Option<NodeInChange>,
}

impl Operator<'_> {
    /// Changes a node, as far as it is not done.
    pub(super) async fn upgrade_node(&self, step: &Step, started: Instant) -> Result<(), Failure> {
        let mut stages = self.desired.sequence.stages.iter();
        let stage = stages.find(|rule| rule.stage == step.stage);
        let Some(rule) = stage.and_then(|stage| stage.nodes.as_ref()) else {
            let message = format!("stage {} changes no nodes", step.stage);
            return Err(Failure::new(FailureKind::Other, message));
        };
        let waiter = self.waiter();
        let mut upgrade = NodeUpgrade {
            operator: self,
            step,
            rule,
            started,
            deadline: started + Duration::try_from(step.deadline).unwrap_or_default(),
            progress: Progress::new(&waiter, step, started),
            ready_at_start: None,
            ready_again: None,
            uncordoned: false,
            in_change: None,
        };
        let ended = match &rule.driver {
            None => {
                upgrade.in_change = Some(self.nodes.begin());
                upgrade.run().await
            }
            Some(driver) => {
                let ended = upgrade.run_driven(driver).await;
                upgrade.leave(matches!(ended, Err(End::Failed(_)))).await;
                ended
            }
        };
        let failed = match ended {
            Ok(()) => return Ok(()),
            Err(End::Gone) => {
                upgrade.note("node-gone", "it was removed from the cluster meanwhile");
                return Ok(());
            }
            Err(End::NotBegun(why)) => return Err(Failure::not_begun(why)),
            Err(End::Failed(failure)) => failure,
        };
        upgrade.started = Instant::now();
        upgrade.deadline = upgrade.started + UNDOING;
        match upgrade.undo().await {
            Ok(true) | Err(End::Gone | End::NotBegun(_)) => {
                if failed.is_stop() {
                    upgrade.enter(NodePhase::Pending);
                }
                Err(failed)
            }
            Ok(false) => {
                let stays = "the node stays as it is; the next apply continues with it";
                let hint = match &failed.hint {
                    Some(hint) => format!("{hint}; {stays}"),
                    None => stays.to_owned(),
                };
                Err(failed.hint(hint))
            }
            Err(End::Failed(undoing)) => {
                let message = format!("its cordon and taints stay: {}", undoing.message);
                upgrade.note("node-not-undone", &message);
                Err(failed)
            }
        }
    }
}

impl NodeUpgrade<'_> {
    async fn run(&mut self) -> Result<(), End> {
        let node = self.node().await?;
        self.ready_at_start = ready_since(&node).map(str::to_owned);
        let rule = self.rule;
        if let Some(closed) = closed(self.operator.windows, &node, Timestamp::now()) {
            return Err(closed.into());
        }
        if !self.mark(&node)?.begun && !self.is_done(&node)? {
            self.enter(NodePhase::Evacuating);
            for action in &rule.before {
                self.act(action).await?;
            }
            let node = self.node().await?;
            if is_cordoned(&node) && !self.mark(&node)?.cordoned {
                self.note(
                    "node-cordoned",
                    "another client cordoned it; it stays cordoned",
                );
            }
            self.change(Mark::cordon).await?;
            if let Some(drain) = &rule.drain {
                self.enter(NodePhase::Draining);
                self.drain(drain).await?;
            }
        }
        self.enter(NodePhase::Upgrading);
        if let Some(file) = &rule.job {
            self.run_job(file, Role::Changes).await?;
            self.enter(NodePhase::Verifying);
        }
        self.await_done().await?;
        self.enter(NodePhase::Verifying);
        if !rule.after.is_empty() {
            self.change(|mark, node| mark.release(node, rule)).await?;
        }
        for action in &rule.after {
            self.act(action).await?;
        }
        self.change(|mark, node| Mark::of(node).map(|_| mark.end(node, rule)))
            .await?;
        Ok(())
    }

    /// Takes cordon, taints and mark off the node, unless its Job may have begun. Returns whether
    /// nothing of them is left.
    async fn undo(&self) -> Result<bool, End> {
        let node = self.node().await?;
        // The mark of another release is none of ours.
        let ours = Mark::of(&node).and_then(|_| self.mark(&node).ok());
        match ours {
            None => return Ok(true),
            Some(mark) if mark.begun => return Ok(false),
            Some(_) => {}
        }
        let rule = self.rule;
        self.change(|mark, node| Mark::of(node).map(|_| mark.end(node, rule)))
            .await?;
        Ok(true)
    }

    /// Reads the node.
    async fn node(&self) -> Result<Value, End> {
        let cluster = self.operator.cluster_for(self.step, self.started);
        let read = cluster.get_id(&nodes(), &self.step.object).await;
        let node = read.map_err(|error| failure(&error))?.ok_or(End::Gone)?;
        if required_uid(self.step).is_some_and(|uid| node["metadata"]["uid"] != uid) {
            return Err(End::Gone);
        }
        Ok(node)
    }

    /// Returns our mark of the node, or a new one.
    fn mark(&self, node: &Value) -> Result<Mark, Failure> {
        let new = Mark {
            release: self.operator.desired.name.to_string(),
            stage: self.step.stage.as_str().to_owned(),
            ..Mark::default()
        };
        match Mark::of(node) {
            None => Ok(new),
            Some(mark) if mark.release == new.release => Ok(mark),
            Some(mark) => {
                let message = format!(
                    "it is being changed by stage {} of release {}",
                    mark.stage, mark.release
                );
                Err(Failure::new(FailureKind::Conflict, message))
            }
        }
    }

    /// Patches the node. `patch` returns `None` if nothing is to be changed. It is called again if
    /// another client wrote the node meanwhile.
    async fn change(&self, patch: impl Fn(&Mark, &Value) -> Option<Value>) -> Result<(), End> {
        loop {
            let node = self.node().await?;
            let Some(patch) = patch(&self.mark(&node)?, &node) else {
                return Ok(());
            };
            let cluster = self.operator.cluster_for(self.step, self.started);
            let options = PatchOptions::new(managers::OVERLAY);
            let change = Patch::Merge(patch);
            let path = nodes();
            let patched = cluster.patch(&path, &self.step.object, &change, &options);
            let Err(error) = patched.await else {
                return Ok(());
            };
            if !may_pass(&error) || Instant::now() >= self.deadline {
                return Err(failure(&error).into());
            }
            self.operator.pause(self.step, AGAIN).await;
        }
    }

    /// Executes an action before or after the upgrade.
    async fn act(&mut self, action: &NodeAction) -> Result<(), End> {
        match action {
            NodeAction::Taint(taint) => {
                let node = self.node().await?;
                if let Some(other) = self.mark(&node)?.obstacle(&node, taint) {
                    let value = other["value"].as_str().unwrap_or_default();
                    let message = format!("it has taint {} with value `{value}`", taint.key);
                    return Err(Failure::new(FailureKind::Conflict, message).into());
                }
                self.change(|mark, node| mark.taint(node, taint)).await
            }
            NodeAction::Patch(patch) => {
                self.change(|mark, node| mark.patch_metadata(node, patch))
                    .await
            }
            NodeAction::Job {
                file,
                timeout,
                optional,
            } => {
                let limit = self.limit(*timeout);
                let deadline = std::mem::replace(&mut self.deadline, limit);
                let run = self.run_job(file, Role::Beside).await;
                self.deadline = deadline;
                let has_ended = self.operator.stop.cause().is_some() || Instant::now() >= deadline;
                match run {
                    Err(End::Failed(failure))
                        if *optional && !has_ended && failure.kind == FailureKind::NotReady =>
                    {
                        self.note("node-job-failed", &failure.message);
                        Ok(())
                    }
                    run => run,
                }
            }
            NodeAction::Check {
                name,
                timeout,
                optional,
            } => self.hold(name, self.limit(*timeout), *optional).await,
        }
    }

    /// Returns the end of an action: its own time limit, or that of the node.
    fn limit(&self, timeout: Option<jiff::SignedDuration>) -> Instant {
        let limit = timeout.map(|timeout| Duration::try_from(timeout).unwrap_or_default());
        limit.map_or(self.deadline, |limit| {
            self.deadline.min(Instant::now() + limit)
        })
    }

    /// Waits until a check holds.
    async fn hold(&mut self, name: &str, limit: Instant, optional: bool) -> Result<(), End> {
        let mut checks = self.operator.desired.sequence.checks.iter();
        let Some(check) = checks.find(|check| check.name == name) else {
            let message = format!("there is no check `{name}`");
            return Err(Failure::new(FailureKind::Other, message).into());
        };
        let waiter = self.operator.waiter();
        loop {
            let node = self.node().await?;
            let objection = match waiter.objection(&check.for_node(&node)).await {
                Ok(None) => return Ok(()),
                Ok(Some(objection)) => objection,
                Err(error) if error.is_retryable() => error.to_string(),
                Err(error) => return Err(failure(&error).into()),
            };
            if Instant::now() >= limit {
                if optional {
                    self.note("check-failed", &objection);
                    return Ok(());
                }
                return Err(Failure::new(FailureKind::NotReady, objection).into());
            }
            self.progress.report(objection);
            self.pause().await?;
        }
    }

    /// Waits until the node is changed and ready.
    async fn await_done(&mut self) -> Result<(), End> {
        loop {
            let node = self.cordoned_node().await?;
            match self.lacks(&node)? {
                None => return Ok(()),
                Some(message) => self.progress.report(message),
            }
            self.pause().await?;
        }
    }

    /// Returns what the node lacks to be changed and ready. A node that was not ready meanwhile
    /// must be ready for a while.
    fn lacks(&mut self, node: &Value) -> Result<Option<String>, Failure> {
        let Some((since, seen)) = self.seen_ready(node) else {
            return Ok(Some("the node is not ready".to_owned()));
        };
        if !self.is_done(node)? {
            let text = self.rule.done.text();
            return Ok(Some(format!("`{text}` does not hold yet")));
        }
        let stayed_ready = self.ready_at_start.as_deref() == Some(since);
        if stayed_ready || seen.elapsed() >= STABLE {
            return Ok(None);
        }
        let message = format!("the node must be ready for {} s", STABLE.as_secs());
        Ok(Some(message))
    }

    /// Returns the time since which the node is ready, as its condition has it, and since when that
    /// was seen.
    fn seen_ready<'n>(&mut self, node: &'n Value) -> Option<(&'n str, Instant)> {
        let Some(since) = ready_since(node) else {
            self.ready_again = None;
            return None;
        };
        Some((since, *self.ready_again.get_or_insert_with(Instant::now)))
    }

    /// Returns whether the node was not ready since the begin of its change, and is not ready again
    /// for long enough.
    fn settles(&self, node: &Value) -> bool {
        let since = ready_since(node);
        let stayed_ready = since.is_some() && self.ready_at_start.as_deref() == since;
        !stayed_ready && self.ready_again.is_none_or(|seen| seen.elapsed() < STABLE)
    }

    fn is_done(&self, node: &Value) -> Result<bool, Failure> {
        self.rule.is_done(node).map_err(|error| {
            let message = format!("`done` cannot be evaluated: {error}");
            Failure::new(FailureKind::NotReady, message)
        })
    }

    /// Reads the node. Cordons it again if another client uncordoned it, but only once.
    async fn cordoned_node(&mut self) -> Result<Value, End> {
        let node = self.node().await?;
        let mark = self.mark(&node)?;
        if !mark.cordoned || is_cordoned(&node) {
            return Ok(node);
        }
        if self.uncordoned {
            let message = "another client uncordoned it twice during its change";
            let hint = "suspend the release before you schedule pods on the node";
            return Err(Failure::new(FailureKind::Conflict, message)
                .hint(hint)
                .into());
        }
        self.uncordoned = true;
        self.note(
            "node-uncordoned",
            "another client uncordoned it; it is cordoned again",
        );
        self.change(Mark::cordon).await?;
        self.node().await
    }

    /// Waits for a moment, without holding the permit of the step. Fails at the deadline and on a
    /// stop request.
    async fn pause(&self) -> Result<(), Failure> {
        if Instant::now() >= self.deadline {
            return Err(self.progress.timed_out(None));
        }
        tokio::select! {
            biased;
            _ = self.operator.stop.wait() => {
                Err(Failure::stopped())
            }
            () = self.operator.pause(self.step, PAUSE) => Ok(()),
        }
    }

    /// Reports the phase of the node.
    fn enter(&self, phase: NodePhase) {
        self.operator.events.enter(self.step.id, phase);
    }

    /// Reports something that stops nothing.
    fn note(&self, code: &str, message: &str) {
        let finding = Finding::warning(Kind::Cluster, code, message);
        let finding = finding.on(self.step.object.clone());
        self.operator.events.send(EventKind::Warning(finding));
    }
}

/// Returns the failure for a node whose change would begin outside of the windows. A change that has
/// begun is completed.
fn closed(windows: &Windows, node: &Value, now: Timestamp) -> Option<Failure> {
    if windows.are_open(now) || Mark::of(node).is_some() {
        return None;
    }
    let message = "the window closed; no further node begins";
    let hint = match windows.open_after(now) {
        Some(opens) => format!("the controller continues at {opens}"),
        None => "the windows never open again".to_owned(),
    };
    Some(Failure::new(FailureKind::Paused, message).hint(hint))
}

/// Returns whether a patch with a resourceVersion may be repeated after another read: it met another
/// write, or its answer was lost.
fn may_pass(error: &ClusterError) -> bool {
    error.is_retryable() || matches!(error.class(), Some(Class::PreconditionFailed(_)))
}

fn nodes() -> ResourcePath {
    ResourcePath::cluster_scoped("v1", "Node", "nodes")
}

#[cfg(test)]
mod tests {
    use pleach_formats::file::Window;
    use pleach_formats::nodes::MARK;
    use rstest::rstest;
    use serde_json::json;

    use super::*;

    #[rstest]
    #[case::within_the_window("2026-01-05T09:00:00Z", json!({}), None)]
    #[case::after_the_window("2026-01-05T18:00:00Z", json!({}), Some("the controller continues at 2026-01-06T08:00:00Z"))]
    #[case::a_node_in_work_is_completed("2026-01-05T18:00:00Z", json!({MARK: r#"{"release": "e.r", "stage": "nodes"}"#}), None)]
    fn no_node_begins_outside_of_the_windows(
        #[case] now: &str,
        #[case] annotations: Value,
        #[case] expected: Option<&str>,
    ) {
        let window = json!({"allow": "Mon-Fri 08:00-16:00"});
        let window: Window = serde_json::from_value(window).unwrap();
        let windows = Windows::recorded(&[vec![window]]);
        let node = json!({"metadata": {"annotations": annotations}});
        let closed = closed(&windows, &node, now.parse().unwrap());
        assert_eq!(closed.and_then(|failure| failure.hint).as_deref(), expected);
    }
}
