//! Tasks of a release: the I/O that its state machine asks for.

use std::sync::Arc;
use std::time::Duration;

use pleach_cluster::{ClusterError, ResourcePath};
use pleach_engine::planning::{Planned, Planner};
use pleach_engine::sync::{SyncError, affirm, expected_objects, introduce};
use pleach_model::object::ObjectId;
use pleach_reconciler::outcome::{ReconcileOutcome, panicked};
use pleach_reconciler::release::{
    Answer, Approval, Changes, Depth, Failure, Fetch, Finished, PlanSummary, Reasons, RunSummary,
    Task, TaskId, Wait,
};
use pleach_state::inventory::Condition;
use tokio::sync::oneshot;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::{ReleaseChannels, Targets};
use crate::approval::{self, RetainedPlan};
use crate::catch_panic::catch_panic;
use crate::concurrency::{ReconcilePermit, is_silence};
use crate::drift::{AppliedState, Subscription};
use crate::history_lookup::{LookupRequest, LookupResult};
use crate::plan_facts::{failure, summary};
use crate::run::{self, Target, in_time};
use crate::waiting::Awaited;
use crate::{ControllerEvent, RetainedOutcome, Shared, describe, health};

/// Means and data of the tasks.
pub(super) struct Executor {
    pub(super) shared: Shared,
    pub(super) channels: ReleaseChannels,
    /// The desired state that is reconciled.
    pub(super) current: Arc<Target>,
    /// Stops the present run at its next safe point.
    pub(super) cancel: CancellationToken,
    /// The reconcile permit, or the error of its cluster.
    permit: Option<Result<ReconcilePermit, ClusterError>>,
    /// The newest plan.
    plan: Option<(TaskId, Planned)>,
    /// The last plan that waited for approval.
    retained: Option<(TaskId, RetainedPlan)>,
    /// Watch subscription for the objects.
    pub(super) subscription: Option<Subscription>,
    /// State of the objects after the run.
    applied: Option<AppliedState>,
    /// Dependencies of the newest plan that are not ready.
    awaited: Awaited,
}

impl Executor {
    pub(super) fn new(current: Arc<Target>, channels: ReleaseChannels, shared: Shared) -> Self {
        Self {
            shared,
            channels,
            current,
            cancel: CancellationToken::new(),
            permit: None,
            plan: None,
            retained: None,
            subscription: None,
            applied: None,
            awaited: Awaited::default(),
        }
    }

    /// Executes a task, and returns its answer.
    pub(super) async fn perform(&mut self, id: TaskId, task: Task, targets: Targets) -> Answer {
        match task {
            Task::Admit {
                target: _,
                needs_permit,
                reconciled,
                since,
            } => {
                let reconciled = reconciled.and_then(|id| targets.get(&id));
                self.admit(needs_permit, reconciled, since).await
            }
            Task::Report(status) if status.unless.is_none() => self.report(*status, &targets).await,
            Task::Check { rules, objects } => {
                let rules = targets.get(&rules).unwrap_or(&self.current);
                let (release, _) = rules.release();
                let cluster = self.current.planner(false).cluster_for(&release.name);
                let subscription = self.subscription.as_ref();
                let path = |id: &ObjectId| subscription?.path(&id.group_kind());
                let rules = &release.sequence.readiness;
                Answer::Checked(health::check(&cluster, rules, objects, path).await)
            }
            Task::Wait(wait) => self.wait(&wait).await,
            task => {
                let answer = catch_panic(Box::pin(self.reconcile(id, task, &targets))).await;
                answer.unwrap_or_else(|| {
                    self.subscription = None;
                    self.was_planned();
                    Answer::Panicked
                })
            }
        }
    }

    /// Executes a task of a reconcile.
    async fn reconcile(&mut self, id: TaskId, task: Task, targets: &Targets) -> Answer {
        match task {
            Task::Plan {
                target,
                depth,
                since,
            } => match targets.get(&target) {
                Some(target) => self.plan(id, target, depth, since).await,
                None => Answer::Panicked,
            },
            Task::CreateRecord(plan) => match self.take_plan(plan) {
                Some(planned) => {
                    let introducing = introduce(&planned.desired, planned.observation);
                    let introduced = recorded(Box::pin(introducing).await);
                    // Shared answers from before do not contain the record.
                    self.permit = None;
                    introduced
                }
                None => Answer::Panicked,
            },
            Task::Approve(_) => {
                // Forges can answer slowly; let other releases plan meanwhile.
                self.permit = None;
                match &self.plan {
                    Some((_, planned)) => {
                        let missing = Box::pin(approval::missing(&self.current, planned));
                        Answer::Approved(missing.await)
                    }
                    None => Answer::Panicked,
                }
            }
            Task::RecordRevision(plan) => match self.take_plan(plan) {
                Some(planned) => {
                    let affirming = affirm(&planned.desired, planned.observation);
                    recorded(Box::pin(affirming).await)
                }
                None => Answer::Panicked,
            },
            Task::Execute { plan, target } => {
                let planned = self.take_plan(plan);
                match planned.zip(targets.get(&target)) {
                    Some((planned, target)) => self.execute(target, planned).await,
                    None => Answer::Panicked,
                }
            }
            Task::Report(status) => self.write_conditions(*status, targets).await,
            // Handled by the caller.
            Task::Admit { .. } | Task::Check { .. } | Task::Wait(_) => Answer::Panicked,
        }
    }

    /// Waits for the slot of the release, and for a permit if one is needed. Holds no data during
    /// the wait, because many releases can be waiting.
    async fn admit(
        &mut self,
        needs_permit: bool,
        reconciled: Option<&Arc<Target>>,
        since: Option<Duration>,
    ) -> Answer {
        (self.plan, self.applied) = (None, None);
        self.shared.self_update.wait_for_others(&self.current).await;
        if needs_permit {
            let since = since.map(|at| self.shared.clock.instant(at));
            self.permit = Some(self.shared.permits.acquire(&self.current, since).await);
        }
        Answer::Admitted {
            found: self.subscribe(reconciled.map(AsRef::as_ref)),
            answered: self.channels.requests.answered(),
        }
    }

    /// Starts buffering watch events of the objects during a reconcile. Returns the objects with
    /// changes found before.
    fn subscribe(&mut self, reconciled: Option<&Target>) -> Changes {
        let Some(members) = &self.current.members else {
            self.subscription = None;
            return Changes::default();
        };
        let (release, rendered) = self.current.release();
        if !self
            .subscription
            .as_ref()
            .is_some_and(|one| one.is_to(members))
        {
            self.subscription = Some(members.subscribe(release.name.field_manager()));
        }
        let Some(subscription) = &mut self.subscription else {
            return Changes::default();
        };
        // The retained state is watched while a newer one waits.
        let reconciled = reconciled.map(|reconciled| &reconciled.release().1);
        let manifests = [Some(rendered), reconciled].into_iter().flatten();
        let manifests = manifests.flat_map(|rendered| &rendered.manifests);
        let objects = subscription.start(manifests.map(|manifest| manifest.id().clone()).collect());
        Changes {
            has_runtime: subscription.expects_any(&objects),
            objects,
        }
    }

    async fn plan(
        &mut self,
        id: TaskId,
        target: &Arc<Target>,
        depth: Depth,
        since: Option<Duration>,
    ) -> Answer {
        let (release, rendered) = target.release();
        let started = Instant::now();
        // Plans are large, and this can wait for a permit.
        self.plan = None;
        let planned = match depth {
            Depth::Changed(objects) => {
                let planner = target.planner(false);
                let planning = Box::pin(planner.plan_some(release, rendered, &objects));
                in_time(&release.name, planning).await
            }
            Depth::All { verify } => self.plan_all(target, verify, since).await.map(Some),
        };
        self.was_planned();
        let error = planned.as_ref().err();
        let described = planned.as_ref().ok().and_then(Option::as_ref);
        let described = described.filter(|_| self.shared.events.has_facts && !target.is_retained);
        let facts = described.map(|planned| Arc::new(describe::facts(target, planned)));
        self.shared.events.report(ControllerEvent::Planned {
            release: release.name.clone(),
            answered: !error
                .and_then(SyncError::of_cluster)
                .is_some_and(is_silence),
            facts,
            took: started.elapsed(),
        });
        Answer::Planned(match planned {
            Ok(Some(planned)) => {
                let summary = self.summary(target, &planned);
                self.plan = Some((id, planned));
                Ok(Some(Box::new(summary)))
            }
            Ok(None) => Ok(None),
            Err(error) => Err(failure(&error)),
        })
    }

    /// Plans all objects, with the permit of the newest desired state.
    async fn plan_all(
        &mut self,
        target: &Target,
        verify: bool,
        since: Option<Duration>,
    ) -> Result<Planned, SyncError> {
        let (release, rendered) = target.release();
        let permit = if let Some(permit) = self.permit.take() {
            permit
        } else {
            let since = since.map(|at| self.shared.clock.instant(at));
            self.shared.permits.acquire(&self.current, since).await
        };
        let permit = permit?;
        let planner = Planner {
            cluster: &permit.cluster,
            ..target.planner(verify)
        };
        let planning = Box::pin(planner.plan(release, rendered));
        let planned = in_time(&release.name, planning).await;
        permit.record_answer(planned.as_ref().err().and_then(SyncError::of_cluster));
        self.permit = Some(Ok(permit));
        planned
    }

    /// Records that the release was planned, with any outcome.
    /// Ends a reconcile after a panic outside of its tasks: releases its permit, and counts the
    /// release as planned for the crash record.
    pub(super) fn panicked(&mut self) {
        self.subscription = None;
        self.was_planned();
        self.finished(Finished {
            report: panicked(),
            took: Duration::ZERO,
            drifted: None,
            alert: false,
            check_all: false,
        });
    }

    fn was_planned(&self) {
        let release = &self.current.release().0.name.release;
        let commit = self.current.revision();
        self.channels.attempt.planned(&commit, release);
    }

    /// Returns the facts of a plan.
    fn summary(&mut self, target: &Target, planned: &Planned) -> PlanSummary {
        let mut facts = summary(target, planned);
        if facts.is_new && facts.policy.needs_approval && facts.has_steps {
            let retained = self.retained.as_ref();
            let covering = retained.filter(|(_, retained)| retained.covers(planned));
            facts.approval = Some(Approval {
                effects: planned.plan.effects().to_string(),
                covered_by: covering.map(|(id, _)| *id),
                missing: approval::lacks(planned),
            });
        }
        if target.is_retained {
            return facts;
        }
        self.watch(planned);
        if let Some(refusal) = facts.refused.as_mut().filter(|refusal| refusal.waits) {
            self.awaited = Awaited::of(&planned.desired, &planned.observation.observed);
            refusal.requeue_after = self.awaited.requeue_after;
        }
        let open = facts.requests.sync.as_ref();
        let open = open.filter(|request| request.needs_fetch());
        facts.fetch = open.map(|request| {
            let name = &target.release().0.name.release;
            let (number, until) = self.channels.requests.request_fetch(name, request);
            let until = self.shared.clock.time(until);
            Fetch { number, until }
        });
        facts
    }

    /// Updates the watch with the API paths of the kinds, and with the objects that workloads
    /// create.
    fn watch(&mut self, planned: &Planned) {
        if let Some(subscription) = &mut self.subscription {
            let observed = &planned.observation.observed;
            let discovery = &observed.discovery;
            if observed.focus.is_none() {
                subscription.expect(expected_objects(&planned.desired, discovery));
            }
            let manifests = planned.desired.manifests.iter();
            subscription.watch(
                manifests.filter_map(|manifest| ResourcePath::of(discovery, &manifest.gvk())),
            );
        }
    }

    fn take_plan(&mut self, id: TaskId) -> Option<Planned> {
        let (_, planned) = self.plan.take_if(|(known, _)| *known == id)?;
        if planned.plan.has_steps() {
            // Execution can take long; let other releases plan meanwhile.
            self.permit = None;
        }
        Some(planned)
    }

    async fn execute(&mut self, target: &Arc<Target>, planned: Planned) -> Answer {
        let name = &target.release().0.name;
        let cluster = target.planner(false).cluster_for(name);
        let ignored = planned.desired.ignored.clone();
        let run = run::execute(&self.shared, &cluster, planned, self.cancel.clone());
        let done = Box::pin(run).await;
        let is_reconciled = matches!(
            done.outcome,
            ReconcileOutcome::Deployed | ReconcileOutcome::Unchanged
        );
        let members = done.members.filter(|_| is_reconciled);
        let members = members.filter(|_| self.subscription.is_some());
        self.applied =
            members.map(|members| AppliedState::new(Arc::clone(target), ignored, members));
        let reasons = Reasons {
            message: done.message,
            public_message: done.public_message,
        };
        Answer::Executed(RunSummary {
            outcome: done.outcome,
            reasons,
        })
    }

    /// Returns whether the record of the newest plan already has these conditions.
    pub(super) fn are_written(&mut self, conditions: &[Condition]) -> bool {
        let Some((_, planned)) = &self.plan else {
            return false;
        };
        let are_written = planned.observation.has_conditions(conditions);
        if planned.plan.has_steps() {
            self.permit = None;
        }
        are_written
    }

    /// Waits for an event.
    async fn wait(&self, wait: &Wait) -> Answer {
        let clock = self.shared.clock;
        let subscription = self.subscription.as_ref();
        let subscription = wait.drift_from.and_then(|from| Some((from, subscription?)));
        let drifting = async {
            match subscription {
                Some((from, subscription)) => {
                    let objects = subscription.changes(clock.instant(from)).await;
                    let has_runtime = subscription.expects_any(&objects);
                    Answer::Changed(Changes {
                        objects,
                        has_runtime,
                    })
                }
                None => std::future::pending().await,
            }
        };
        let checking = async {
            match subscription {
                Some((_, subscription)) => {
                    let at = wait.check_at.map(|at| clock.instant(at));
                    Answer::Written(subscription.written(wait.debounce, at).await)
                }
                None => std::future::pending().await,
            }
        };
        let name = &self.current.release().0.name;
        let depending = async {
            if wait.for_dependencies {
                let cluster = self.current.planner(false).cluster_for(name);
                Box::pin(self.awaited.one_is_ready(&cluster)).await;
                return Answer::Ready;
            }
            std::future::pending().await
        };
        let fetching = async {
            if wait.for_fetch {
                self.channels
                    .requests
                    .wait_until_answered(&name.release)
                    .await;
                return Answer::Ready;
            }
            std::future::pending().await
        };
        tokio::select! {
            biased;
            answer = depending => answer,
            answer = fetching => answer,
            answer = drifting => answer,
            answer = checking => answer,
        }
    }

    /// Retains the effects of the newest plan.
    pub(super) fn retain_plan(&mut self, id: TaskId) {
        let planned = self.plan.as_ref().filter(|(known, _)| *known == id);
        self.retained = planned.map(|(_, planned)| (id, RetainedPlan::of(planned)));
    }

    /// Starts the lookup of the release at a commit.
    pub(super) fn look_up(&self, commit: String) -> oneshot::Receiver<LookupResult> {
        let (answer, answered) = oneshot::channel();
        let request = LookupRequest {
            commits: [commit].into(),
            release: Some(self.current.release().0.name.release.clone()),
            answer,
        };
        // The receiver is gone only at shutdown.
        drop(self.channels.lookups.send(request));
        answered
    }

    pub(super) fn notify_dependents(&self) {
        let name = self.current.release().0.name.release.clone();
        // The receiver is gone only at shutdown.
        drop(self.channels.reconciled.send(name));
    }

    pub(super) fn started(&self) {
        let release = self.current.release().0.name.clone();
        let started = ControllerEvent::ReconcileStarted { release };
        self.shared.events.report(started);
    }

    /// Ends a reconcile: the wait that follows needs neither a permit nor a plan.
    pub(super) fn finished(&mut self, finished: Finished) {
        let Finished {
            report,
            took,
            drifted,
            alert,
            check_all,
        } = finished;
        (self.permit, self.plan) = (None, None);
        let release = self.current.release().0.name.clone();
        if let Some(objects) = drifted {
            let release = release.clone();
            let detected = ControllerEvent::DriftDetected { release, objects };
            self.shared.events.report(detected);
        }
        if let Some(subscription) = &self.subscription {
            subscription.finish(self.applied.take());
            if alert {
                subscription.count_every_event();
            }
            if check_all {
                subscription.check_all();
            }
        }
        if !matches!(
            report.effective_outcome(),
            ReconcileOutcome::Superseded | ReconcileOutcome::Interrupted
        ) {
            self.shared.self_update.record(&self.current);
        }
        let finished = ControllerEvent::ReconcileFinished {
            release,
            cluster: self
                .current
                .source_policy
                .cluster
                .as_ref()
                .map(|id| id.0.clone()),
            revision: self.current.revision(),
            outcome: report.outcome,
            message: report.message,
            is_correction: report.is_correction,
            public_message: report.public_message,
            retained: report.retained.map(|retained| RetainedOutcome {
                revision: retained.revision,
                outcome: retained.report.outcome,
                message: retained.report.message,
            }),
            took,
        };
        self.shared.events.report(finished);
    }
}

fn recorded(result: Result<(), SyncError>) -> Answer {
    let failed = |error: SyncError| -> Failure { failure(&error) };
    Answer::Recorded(result.map_err(failed))
}
