//! Waits: every wait has a deadline and can report its state at any moment (I4).

mod controllers;
mod grace;
mod hint;
mod progress;
mod ready;
mod registered;
mod rollout;
mod silence;
mod symptoms;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::future::BoxFuture;
use jiff::SignedDuration;
use pleach_formats::check::Check;
use pleach_formats::gate::probed;
use pleach_formats::readiness::{Assessment, Readiness};
use pleach_model::finding::{Finding, Kind};
use pleach_model::object::{Gvk, ObjectId, ServiceRef, canonical_json, managers};
use pleach_planner::plan::{Desired, Step, Until};
use pleach_report::doctor::Subject;
use pleach_report::finalizers;
use serde_json::Value;
use tokio::sync::{Mutex, Semaphore};
use tokio::time::Instant;

pub(super) use self::controllers::Controllers;
pub(super) use self::progress::Progress;
pub(super) use self::silence::Statuses;
pub(super) use self::symptoms::Symptoms;
use super::absent::confirmed_absent;
use super::checks::{self, secrecy_of};
use super::events::{EventKind, Events};
use super::paths::Paths;
use super::report::{Failure, FailureKind};
use super::watch_cache::{WatchCache, describe};
use pleach_cluster::{ApplyOptions, Class, Cluster, ClusterError, ResourcePath, Selector};

/// First interval between reads of a state that cannot be watched.
const SHORTEST: Duration = Duration::from_millis(100);
/// Longest such interval.
const LONGEST: Duration = Duration::from_secs(2);
/// Interval at which a wait repeats its state.
const REMINDER: Duration = Duration::from_secs(10);

/// Version of an object after our apply. Watch events must not be older.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Since {
    pub(super) uid: String,
    pub(super) resource_version: String,
    pub(super) generation: Option<i64>,
    /// Number of container restarts before the write, by pod uid.
    pub(super) restarts: BTreeMap<String, i64>,
    /// The object in the answer to our write; `None` if no wait needs it.
    pub(super) answer: Option<Arc<Value>>,
}

impl Since {
    /// Returns whether the object is at least as new as our write.
    fn is_reached(&self, value: &Value) -> bool {
        let metadata = &value["metadata"];
        // Another incarnation is newer than ours.
        if !self.uid.is_empty() && metadata["uid"] != self.uid.as_str() {
            return true;
        }
        if let (Some(ours), Some(theirs)) = (self.generation, metadata["generation"].as_i64()) {
            return theirs >= ours;
        }
        // Resource versions are comparable as numbers (KEP-5504). Otherwise, assume that the object
        // is new enough.
        let number = |text: &str| text.parse::<u128>().ok();
        match (
            number(&self.resource_version),
            number(metadata["resourceVersion"].as_str().unwrap_or_default()),
        ) {
            (Some(ours), Some(theirs)) => theirs >= ours,
            _ => true,
        }
    }
}

/// Context of waits.
pub(super) struct Waiter<'a> {
    pub(super) cluster: &'a Cluster,
    /// Desired state, with its readiness rules.
    pub(super) desired: &'a Desired,
    pub(super) paths: &'a Paths,
    pub(super) watch_cache: &'a WatchCache,
    pub(super) events: &'a Events,
    /// Limits the requests of all waits together.
    pub(super) permits: &'a Semaphore,
    /// Controllers that remove finalizers, as observed by waits.
    pub(super) controllers: &'a Controllers,
    /// CRDs that were read for objects without a status.
    pub(super) statuses: &'a Statuses,
    /// Whether a verified version is installed, so that the release can be rolled back.
    pub(super) can_roll_back: bool,
}

/// Result of a read during a wait.
enum WaitState {
    /// The condition is met.
    Done,
    /// Not yet, with the present state.
    NotYet(String),
    /// An object still exists.
    Stays {
        /// Reason why its deletion is pending.
        message: String,
        /// Hint if the deletion does not happen.
        advice: Option<String>,
    },
    /// The condition can never be met.
    Never(String),
}

impl Waiter<'_> {
    /// Assesses the readiness of an object by the rules of the bundle.
    fn assess(&self, value: &Value) -> Assessment {
        self.desired.sequence.readiness.assess(value)
    }

    /// Waits for the completion of a step, until its deadline.
    pub(super) async fn wait(
        &self,
        step: &Step,
        until: &Until,
        since: &Since,
        started: Instant,
    ) -> Result<Option<Value>, Failure> {
        let deadline = started + duration(step.deadline);
        let progress = Progress::new(self, step, started);
        match until {
            Until::Ready {
                stable_for,
                optional,
            } => {
                let stable_for = duration(*stable_for);
                let waited = self.wait_ready(step, since, stable_for, deadline, progress);
                self.forgiven(step, *optional, waited.await)
            }
            Until::Absent { .. } => {
                let uid = super::op::required_uid(step);
                let path = self.paths.of_kind(&step.object.group_kind());
                let now = Instant::now();
                self.poll(deadline, progress, || {
                    Box::pin(self.check_absent(path.as_ref(), &step.object, uid, now))
                })
                .await
            }
            Until::Finished => {
                let path = self.paths.of_kind(&step.object.group_kind());
                self.poll(deadline, progress, || {
                    Box::pin(self.check_finished(path.as_ref(), &step.object))
                })
                .await
            }
            Until::RolledOut {
                pods,
                abort_on_restart,
                stable_for,
            } => {
                let target = rollout::RolloutTarget {
                    pods: *pods,
                    abort_on_restart: *abort_on_restart,
                    stable_for: duration(*stable_for),
                };
                let watched = Mutex::new(rollout::Watched::new(since.restarts.clone()));
                self.poll(deadline, progress, || {
                    Box::pin(self.check_rollout(&step.object, target, &watched))
                })
                .await
            }
            Until::Emptied { pods } => {
                self.poll(deadline, progress, || {
                    Box::pin(self.check_emptied(&step.object, pods))
                })
                .await
            }
            Until::Probe {
                object,
                denied,
                settle,
            } => {
                let check = || -> BoxFuture<'_, _> { Box::pin(self.check_probe(object, *denied)) };
                self.poll(deadline, progress, check).await?;
                tokio::time::sleep(duration(*settle)).await;
                Ok(None)
            }
            Until::Served(gvk) => {
                self.poll(deadline, progress, || {
                    Box::pin(self.check_served(gvk, &step.object))
                })
                .await
            }
            Until::Endpoints {
                service,
                ready,
                pods,
            } => {
                self.poll(deadline, progress, || {
                    Box::pin(self.check_endpoints(service, *ready, pods.as_ref()))
                })
                .await
            }
            Until::Registered {
                kind,
                service,
                optional,
            } => {
                let what = (kind, service, *optional);
                self.wait_registered(step, what, deadline, progress).await
            }
            Until::Holds { check } => {
                self.poll(deadline, progress, || Box::pin(self.check_condition(check)))
                    .await
            }
            Until::Exists { any_of } => {
                self.poll(deadline, progress, || Box::pin(self.check_exists(any_of)))
                    .await
            }
        }
    }

    /// Returns the result of a wait. Lost readiness of an optional object is no failure.
    fn forgiven(
        &self,
        step: &Step,
        optional: bool,
        waited: Result<Value, Failure>,
    ) -> Result<Option<Value>, Failure> {
        match waited {
            Err(failure) if optional && failure.kind == FailureKind::NotReady => {
                let finding = Finding::warning(Kind::Cluster, "not-ready", failure.message);
                self.events
                    .send(EventKind::Warning(finding.on(step.object.clone())));
                Ok(None)
            }
            waited => waited.map(Some),
        }
    }

    /// Polls with growing intervals.
    async fn poll<'a>(
        &self,
        deadline: Instant,
        mut progress: Progress<'_>,
        inspect: impl Fn() -> BoxFuture<'a, Result<WaitState, ClusterError>>,
    ) -> Result<Option<Value>, Failure> {
        let mut pause = SHORTEST;
        loop {
            let state = {
                let _permit = self.permits.acquire().await;
                inspect().await
            };
            match state {
                Ok(WaitState::Done) => return Ok(None),
                Ok(WaitState::Never(why)) => return Err(Failure::new(FailureKind::NotReady, why)),
                Ok(WaitState::NotYet(message)) => progress.report(message),
                Ok(WaitState::Stays { message, advice }) => {
                    progress.is_deletion = true;
                    progress.advice = advice;
                    progress.report(message);
                }
                Err(error) if error.is_retryable() => progress.report(describe(&error)),
                Err(error) => return Err(super::op::failure(&error)),
            }
            let now = Instant::now();
            if now >= deadline {
                return Err(progress.timed_out(None));
            }
            // The last read is at the deadline, whatever the interval.
            tokio::time::sleep(pause.min(deadline - now)).await;
            pause = (pause * 2).min(LONGEST);
        }
    }

    async fn check_absent(
        &self,
        path: Option<&ResourcePath>,
        id: &ObjectId,
        uid: Option<&str>,
        waiting_since: Instant,
    ) -> Result<WaitState, ClusterError> {
        // An unserved kind proves the deletion of its objects only if its CRD is confirmed gone.
        // Here the object was seen just before.
        let Some(path) = path else {
            return Ok(WaitState::Never(format!(
                "{} is not served any more",
                id.group_kind()
            )));
        };
        let value = match self.cluster.get_id(path, id).await {
            Ok(Some(value)) => value,
            Ok(None) => return Ok(WaitState::Done),
            // The CRD can have been deleted meanwhile, together with the object.
            Err(error) if error.class() == Some(&Class::KindNotServed) => {
                let kinds = [id.group_kind()].into();
                let absent = confirmed_absent(self.cluster, kinds).await?;
                return Ok(if absent.is_empty() {
                    WaitState::NotYet(format!("{} is not served", id.group_kind()))
                } else {
                    WaitState::Done
                });
            }
            Err(error) => return Err(error),
        };
        if uid.is_some_and(|uid| value["metadata"]["uid"] != uid) {
            return Ok(WaitState::Done);
        }
        let mut message = finalizers::explain(&value);
        let subject = Subject::read(id.clone(), &value["metadata"]);
        let controllers = self.controllers.of(self.cluster, &subject, waiting_since);
        for words in controllers.await {
            message.push_str("; ");
            message.push_str(&words);
        }
        Ok(WaitState::Stays {
            message,
            advice: finalizers::advice(id, &value),
        })
    }

    /// Checks whether a Job has ended, successfully or not. A deleted Job has.
    async fn check_finished(
        &self,
        path: Option<&ResourcePath>,
        id: &ObjectId,
    ) -> Result<WaitState, ClusterError> {
        let Some(path) = path else {
            return Ok(WaitState::Never(format!(
                "{} is not served any more",
                id.group_kind()
            )));
        };
        let Some(value) = self.cluster.get_id(path, id).await? else {
            return Ok(WaitState::Done);
        };
        let assessment = self.assess(&value);
        Ok(match assessment.readiness {
            Readiness::Current | Readiness::Failed => WaitState::Done,
            _ => WaitState::NotYet(assessment.message),
        })
    }

    /// Checks whether a workload has no pods left. Its own replica count excludes terminating pods.
    async fn check_emptied(
        &self,
        workload: &ObjectId,
        pods: &BTreeMap<String, String>,
    ) -> Result<WaitState, ClusterError> {
        if pods.is_empty() {
            return Ok(WaitState::Never("its selector names no labels".to_owned()));
        }
        let path = ResourcePath::namespaced("v1", "Pod", "pods");
        let labels: Vec<String> = pods
            .iter()
            .map(|(key, value)| format!("{key}={value}"))
            .collect();
        let labels = labels.join(",");
        let selector = Selector {
            namespace: workload.namespace.as_deref(),
            labels: Some(&labels),
            ..Selector::default()
        };
        let left = self
            .cluster
            .list_metadata(&path, &selector, "")
            .await?
            .items
            .len();
        Ok(match left {
            0 => WaitState::Done,
            left => WaitState::NotYet(format!("{left} of its pods are still there")),
        })
    }

    /// Checks whether the gate behind a probe answers as expected. The probe is a dry run, so
    /// nothing is created.
    async fn check_probe(&self, probe: &ObjectId, denied: bool) -> Result<WaitState, ClusterError> {
        let path = ResourcePath::namespaced("v1", "ConfigMap", "configmaps");
        let body = serde_json::json!({
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": { "name": probe.name, "namespace": probe.namespace },
        });
        let options = ApplyOptions {
            dry_run: true,
            ..ApplyOptions::new(managers::OVERLAY)
        };
        let body = Bytes::from(canonical_json(&body));
        let is_denied = match self.cluster.create(&path, probe, body, &options).await {
            Ok(_) => false,
            Err(error) => match error.class() {
                Some(Class::PolicyDenied { policy, .. })
                    if Some(policy.as_str()) == probed(probe) =>
                {
                    true
                }
                // Policies are evaluated before the existence check.
                Some(Class::AlreadyExists { .. }) => false,
                _ => return Err(error),
            },
        };
        Ok(match (denied, is_denied) {
            (true, false) => WaitState::NotYet("the gate is not in force yet".to_owned()),
            (false, true) => WaitState::NotYet("the gate is still in force".to_owned()),
            (true, true) | (false, false) => WaitState::Done,
        })
    }

    async fn check_served(&self, gvk: &Gvk, crd: &ObjectId) -> Result<WaitState, ClusterError> {
        let Some(path) = self.paths.of(gvk) else {
            return Ok(WaitState::Never(format!("nothing defines {gvk}")));
        };
        let selector = Selector {
            fields: Some("metadata.name=pleach"),
            ..Selector::default()
        };
        match self.cluster.list_metadata(&path, &selector, "").await {
            // Another CRD can serve the same kind.
            Ok(_) => self.explain_crd(crd).await,
            Err(error) => match error.class() {
                Some(Class::KindNotServed | Class::NotFound) => {
                    Ok(match self.explain_crd(crd).await? {
                        WaitState::Done => {
                            WaitState::NotYet("its kind is not served yet".to_owned())
                        }
                        other => other,
                    })
                }
                _ => Err(error),
            },
        }
    }

    /// Returns whether a CRD was accepted or why not, from its conditions.
    async fn explain_crd(&self, crd: &ObjectId) -> Result<WaitState, ClusterError> {
        let Some(path) = self.paths.of_kind(&crd.group_kind()) else {
            return Ok(WaitState::NotYet("it is not served yet".to_owned()));
        };
        let value = self.cluster.get_id(&path, crd).await?;
        Ok(match value.map(|value| self.assess(&value)) {
            Some(assessment) if assessment.readiness == Readiness::Failed => {
                WaitState::Never(assessment.message)
            }
            Some(assessment) if assessment.is_current() => WaitState::Done,
            Some(assessment) => WaitState::NotYet(assessment.message),
            None => WaitState::NotYet("it does not exist".to_owned()),
        })
    }

    async fn check_endpoints(
        &self,
        service: &ServiceRef,
        ready: usize,
        pods: Option<&BTreeMap<String, String>>,
    ) -> Result<WaitState, ClusterError> {
        let backend = match pods {
            Some(labels) => self.cluster.backend_among(service, labels).await?,
            None => self.cluster.backend(service).await?,
        };
        Ok(if !backend.exists {
            WaitState::NotYet(format!("Service {service} does not exist"))
        } else if !backend.is_elsewhere && backend.ready_endpoints < ready {
            WaitState::NotYet(format!(
                "Service {service} has {} of {ready} ready endpoints",
                backend.ready_endpoints
            ))
        } else {
            WaitState::Done
        })
    }

    async fn check_condition(&self, name: &str) -> Result<WaitState, ClusterError> {
        let mut checks = self.desired.sequence.checks.iter();
        let Some(check) = checks.find(|check| check.name == name) else {
            return Ok(WaitState::Never(format!("there is no check `{name}`")));
        };
        Ok(match self.objection(check).await? {
            None => WaitState::Done,
            Some(objection) => WaitState::NotYet(objection),
        })
    }

    /// Evaluates a check now. `None` if it holds.
    pub(super) async fn objection(&self, check: &Check) -> Result<Option<String>, ClusterError> {
        let name = &check.name;
        let kind = check.kind();
        let mut path = kind.as_ref().and_then(|kind| self.paths.of_kind(kind));
        if path.is_none()
            && let Some(kind) = &kind
        {
            // The kind can be served since the plan was made.
            let discovery = self.cluster.clone().alone().discover().await?;
            path = ResourcePath::preferred(&discovery, kind);
            if path.is_none() && discovery.is_stale(&kind.group) {
                return Ok(Some(format!(
                    "check {name} cannot be evaluated: the server behind {} does not answer",
                    kind.group
                )));
            }
        }
        let of = |id: &ObjectId| Some(secrecy_of(self.desired, id));
        let outcome = checks::inspect(self.cluster, path.as_ref(), check, &of).await;
        let why = outcome.explain();
        Ok(why.map(|why| format!("check {name} does not hold: {why}")))
    }

    async fn check_exists(&self, any_of: &[ObjectId]) -> Result<WaitState, ClusterError> {
        for id in any_of {
            if let Some(path) = self.paths.of_kind(&id.group_kind())
                && self.cluster.get_id(&path, id).await?.is_some()
            {
                return Ok(WaitState::Done);
            }
        }
        Ok(WaitState::NotYet(
            "the workloads have not created it yet".to_owned(),
        ))
    }
}

fn duration(duration: SignedDuration) -> Duration {
    Duration::try_from(duration).unwrap_or_default()
}
