//! Waiting: every wait has a deadline and can say at any moment what it waits for (I4).

mod rollout;

use std::collections::BTreeMap;
use std::time::Duration;

use futures::future::BoxFuture;
use jiff::SignedDuration;
use pleach_domain::ending;
use pleach_domain::object::{GroupKind, Gvk, ObjectId, ServiceRef};
use pleach_domain::order::registered_services;
use pleach_domain::plan::{Precondition, Step, Until};
use pleach_domain::readiness::{Readiness, assess};
use serde_json::Value;
use tokio::sync::{Mutex, Semaphore};
use tokio::time::Instant;

use super::absent::confirmed_absent;
use super::events::{EventKind, Events, WaitState};
use super::hub::{Hub, Seen, describe};
use super::paths::Paths;
use super::report::{Failure, FailureKind};
use crate::io::cluster::{Class, Cluster, ClusterError, ResourcePath, Selector};

/// First pause between two looks at something that cannot be watched.
const SHORTEST: Duration = Duration::from_millis(100);
/// Longest pause.
const LONGEST: Duration = Duration::from_secs(2);
/// How often a wait without news says what it waits for.
const REMINDER: Duration = Duration::from_secs(10);

/// The version of an object that an apply gave back: what a watch tells must
/// not be older.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Since {
    pub(super) uid: String,
    pub(super) resource_version: String,
    pub(super) generation: Option<i64>,
    /// How often its pods had been started again before, by their uid.
    pub(super) restarts: BTreeMap<String, i64>,
}

impl Since {
    /// Whether the object is at least as new as our write.
    fn is_reached(&self, value: &Value) -> bool {
        let metadata = &value["metadata"];
        // Another incarnation is younger than ours.
        if !self.uid.is_empty() && metadata["uid"] != self.uid.as_str() {
            return true;
        }
        if let (Some(ours), Some(theirs)) = (self.generation, metadata["generation"].as_i64()) {
            return theirs >= ours;
        }
        // Resource versions are comparable as numbers (KEP-5504); a server where
        // they are not gets the benefit of the doubt.
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

/// What waits are made with.
pub(super) struct Waiter<'a> {
    pub(super) cluster: &'a Cluster,
    pub(super) paths: &'a Paths,
    pub(super) hub: &'a Hub,
    pub(super) events: &'a Events,
    /// Bounds the requests of all waits together.
    pub(super) places: &'a Semaphore,
}

/// How a look at the cluster went.
enum Look {
    /// It has come about.
    Done,
    /// Not yet; what it looks like.
    NotYet(String),
    /// An object is still there.
    Stays {
        /// What its end waits for.
        message: String,
        /// What to do when it does not come.
        advice: Option<String>,
    },
    /// It will not come about.
    Never(String),
}

impl Waiter<'_> {
    /// Waits for what completes a step, until its deadline.
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
            Until::Ready { stable_for } => self
                .wait_ready(
                    &step.object,
                    since,
                    duration(*stable_for),
                    deadline,
                    progress,
                )
                .await
                .map(Some),
            Until::Absent { .. } => {
                let uid = step
                    .require
                    .iter()
                    .find_map(|precondition| match precondition {
                        Precondition::Uid(uid) => Some(uid.as_str()),
                        _ => None,
                    });
                let path = self.paths.of_kind(&step.object.group_kind());
                self.poll(deadline, progress, || {
                    Box::pin(self.look_absent(path.as_ref(), &step.object, uid))
                })
                .await
            }
            Until::Finished => {
                let path = self.paths.of_kind(&step.object.group_kind());
                self.poll(deadline, progress, || {
                    Box::pin(self.look_finished(path.as_ref(), &step.object))
                })
                .await
            }
            Until::RolledOut {
                pods,
                abort_on_restart,
                stable_for,
            } => {
                let wanted = rollout::Wanted {
                    pods: *pods,
                    abort_on_restart: *abort_on_restart,
                    stable_for: duration(*stable_for),
                };
                let watched = Mutex::new(rollout::Watched::new(since.restarts.clone()));
                self.poll(deadline, progress, || {
                    Box::pin(self.look_rolled_out(&step.object, wanted, &watched))
                })
                .await
            }
            Until::Emptied { pods } => {
                self.poll(deadline, progress, || {
                    Box::pin(self.look_emptied(&step.object, pods))
                })
                .await
            }
            Until::Served(gvk) => {
                self.poll(deadline, progress, || {
                    Box::pin(self.look_served(gvk, &step.object))
                })
                .await
            }
            Until::Endpoints { service, ready } => {
                self.poll(deadline, progress, || {
                    Box::pin(self.look_endpoints(service, *ready))
                })
                .await
            }
            Until::Registered { kind, service } => {
                self.poll(deadline, progress, || {
                    Box::pin(self.look_registered(kind, service))
                })
                .await
            }
            Until::Exists { any_of } => {
                self.poll(deadline, progress, || Box::pin(self.look_exists(any_of)))
                    .await
            }
        }
    }

    /// Looks again and again, with growing pauses.
    async fn poll<'a>(
        &self,
        deadline: Instant,
        mut progress: Progress<'_>,
        look: impl Fn() -> BoxFuture<'a, Result<Look, ClusterError>>,
    ) -> Result<Option<Value>, Failure> {
        let mut pause = SHORTEST;
        loop {
            let looked = {
                let _place = self.places.acquire().await;
                look().await
            };
            match looked {
                Ok(Look::Done) => return Ok(None),
                Ok(Look::Never(why)) => return Err(Failure::new(FailureKind::NotReady, why)),
                Ok(Look::NotYet(message)) => progress.tell(message),
                Ok(Look::Stays { message, advice }) => {
                    progress.ends = true;
                    progress.advice = advice;
                    progress.tell(message);
                }
                Err(error) if error.is_retryable() => progress.tell(describe(&error)),
                Err(error) => return Err(super::op::failure(&error)),
            }
            let now = Instant::now();
            if now >= deadline {
                return Err(progress.timed_out());
            }
            // The last look is at the deadline, however long the pauses are by then.
            tokio::time::sleep(pause.min(deadline - now)).await;
            pause = (pause * 2).min(LONGEST);
        }
    }

    /// Waits by watch until the object is ready and stays so.
    async fn wait_ready(
        &self,
        id: &ObjectId,
        since: &Since,
        stable_for: Duration,
        deadline: Instant,
        mut progress: Progress<'_>,
    ) -> Result<Value, Failure> {
        let path = self.paths.of_kind(&id.group_kind()).ok_or_else(|| {
            Failure::new(
                FailureKind::Cluster,
                format!("{} is not served by the cluster", id.group_kind()),
            )
        })?;
        let mut seen = self.hub.follow(&path, id).ok_or_else(|| {
            Failure::new(FailureKind::Other, "the plan does not wait for this object")
        })?;
        let mut ready_since: Option<Instant> = None;
        loop {
            let now = seen.borrow_and_update().clone();
            let mut wake = deadline.min(Instant::now() + REMINDER);
            match now {
                Seen::Present(value) if since.is_reached(&value) => {
                    let assessment = assess(&value);
                    match assessment.readiness {
                        Readiness::Current => {
                            let at = *ready_since.get_or_insert_with(Instant::now);
                            if at.elapsed() >= stable_for {
                                return Ok(Value::clone(&value));
                            }
                            wake = wake.min(at + stable_for);
                        }
                        Readiness::Failed => {
                            return Err(Failure::new(FailureKind::NotReady, assessment.message));
                        }
                        _ if self.waits_for_consumer(id, &value).await => {
                            return Ok(Value::clone(&value));
                        }
                        _ => {
                            ready_since = None;
                            progress.tell(assessment.message);
                        }
                    }
                }
                Seen::Present(_) => {
                    progress.tell("the server has not seen the change yet".to_owned());
                }
                Seen::Unselected => {
                    ready_since = None;
                    // Somebody may have taken its label off: it is read by name.
                    match self.look_ready(&path, id, since).await? {
                        Ok(value) => return Ok(value),
                        Err(message) => progress.tell(message),
                    }
                    wake = wake.min(Instant::now() + LONGEST);
                }
                Seen::Failing(trouble) if trouble.permanent => {
                    return Err(Failure::new(FailureKind::Cluster, trouble.message));
                }
                Seen::Failing(trouble) => progress.tell(trouble.message),
                Seen::Unknown => {}
            }
            tokio::select! {
                changed = seen.changed() => if changed.is_err() {
                    return Err(Failure::new(FailureKind::Other, "the watch ended"));
                },
                () = tokio::time::sleep_until(wake) => if Instant::now() >= deadline {
                    return Err(progress.timed_out());
                },
            }
        }
    }

    /// Whether a claim is pending because its class binds on first use, which
    /// only the class tells: no pod may want it yet.
    async fn waits_for_consumer(&self, id: &ObjectId, value: &Value) -> bool {
        let class = match value["spec"]["storageClassName"].as_str() {
            Some(class)
                if id.is("", "PersistentVolumeClaim") && value["status"]["phase"] == "Pending" =>
            {
                class
            }
            _ => return false,
        };
        let path =
            ResourcePath::cluster_scoped("storage.k8s.io/v1", "StorageClass", "storageclasses");
        let class = self.cluster.get(&path, None, class).await;
        class.is_ok_and(|class| {
            class.is_some_and(|class| class["volumeBindingMode"] == "WaitForFirstConsumer")
        })
    }

    /// Reads one object that the watch does not see; in words what is missing.
    async fn look_ready(
        &self,
        path: &ResourcePath,
        id: &ObjectId,
        since: &Since,
    ) -> Result<Result<Value, String>, Failure> {
        let _place = self.places.acquire().await;
        match self.cluster.get_id(path, id).await {
            Ok(Some(value)) if since.is_reached(&value) => {
                let assessment = assess(&value);
                match assessment.readiness {
                    Readiness::Current => Ok(Ok(value)),
                    Readiness::Failed => {
                        Err(Failure::new(FailureKind::NotReady, assessment.message))
                    }
                    _ => Ok(Err(assessment.message)),
                }
            }
            Ok(Some(_)) => Ok(Err("the server has not seen the change yet".to_owned())),
            Ok(None) => Ok(Err("it is not there".to_owned())),
            Err(error) if error.is_retryable() => Ok(Err(describe(&error))),
            Err(error) => Err(super::op::failure(&error)),
        }
    }

    async fn look_absent(
        &self,
        path: Option<&ResourcePath>,
        id: &ObjectId,
        uid: Option<&str>,
    ) -> Result<Look, ClusterError> {
        // A kind that is no longer served took its objects with it only if its
        // definition is confirmed gone; here the object was seen just before.
        let Some(path) = path else {
            return Ok(Look::Never(format!(
                "{} is not served any more",
                id.group_kind()
            )));
        };
        let value = match self.cluster.get_id(path, id).await {
            Ok(Some(value)) => value,
            Ok(None) => return Ok(Look::Done),
            // Its definition went in the meantime, and took it along?
            Err(error) if error.class() == Some(&Class::KindNotServed) => {
                let kinds = [id.group_kind()].into();
                let absent = confirmed_absent(self.cluster, kinds).await?;
                return Ok(if absent.is_empty() {
                    Look::NotYet(format!("{} is not served", id.group_kind()))
                } else {
                    Look::Done
                });
            }
            Err(error) => return Err(error),
        };
        if uid.is_some_and(|uid| value["metadata"]["uid"] != uid) {
            return Ok(Look::Done);
        }
        Ok(Look::Stays {
            message: ending::explain(&value),
            advice: ending::advice(id, &value),
        })
    }

    /// Whether a Job has ended, well or not. One that is gone has.
    async fn look_finished(
        &self,
        path: Option<&ResourcePath>,
        id: &ObjectId,
    ) -> Result<Look, ClusterError> {
        let Some(path) = path else {
            return Ok(Look::Never(format!(
                "{} is not served any more",
                id.group_kind()
            )));
        };
        let Some(value) = self.cluster.get_id(path, id).await? else {
            return Ok(Look::Done);
        };
        let assessment = assess(&value);
        Ok(match assessment.readiness {
            Readiness::Current | Readiness::Failed => Look::Done,
            _ => Look::NotYet(assessment.message),
        })
    }

    /// Whether a workload has no pods any more: its own count leaves out those
    /// that are still ending.
    async fn look_emptied(
        &self,
        workload: &ObjectId,
        pods: &BTreeMap<String, String>,
    ) -> Result<Look, ClusterError> {
        if pods.is_empty() {
            return Ok(Look::Never("its selector names no labels".to_owned()));
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
            0 => Look::Done,
            left => Look::NotYet(format!("{left} of its pods are still there")),
        })
    }

    async fn look_served(&self, gvk: &Gvk, definition: &ObjectId) -> Result<Look, ClusterError> {
        let Some(path) = self.paths.of(gvk) else {
            return Ok(Look::Never(format!("nothing defines {gvk}")));
        };
        let selector = Selector {
            fields: Some("metadata.name=pleach"),
            ..Selector::default()
        };
        match self.cluster.list_metadata(&path, &selector, "").await {
            // Another definition may serve the same kind.
            Ok(_) => self.explain_definition(definition).await,
            Err(error) => match error.class() {
                Some(Class::KindNotServed | Class::NotFound) => {
                    Ok(match self.explain_definition(definition).await? {
                        Look::Done => Look::NotYet("its kind is not served yet".to_owned()),
                        other => other,
                    })
                }
                _ => Err(error),
            },
        }
    }

    /// Whether a definition was accepted, or why it was not: its own conditions say it.
    async fn explain_definition(&self, definition: &ObjectId) -> Result<Look, ClusterError> {
        let Some(path) = self.paths.of_kind(&definition.group_kind()) else {
            return Ok(Look::NotYet("it is not served yet".to_owned()));
        };
        let value = self.cluster.get_id(&path, definition).await?;
        Ok(match value.map(|value| assess(&value)) {
            Some(assessment) if assessment.readiness == Readiness::Failed => {
                Look::Never(assessment.message)
            }
            Some(assessment) if assessment.is_current() => Look::Done,
            Some(assessment) => Look::NotYet(assessment.message),
            None => Look::NotYet("it does not exist".to_owned()),
        })
    }

    async fn look_endpoints(
        &self,
        service: &ServiceRef,
        ready: usize,
    ) -> Result<Look, ClusterError> {
        let backend = self.cluster.backend(service).await?;
        Ok(if !backend.exists {
            Look::NotYet(format!("Service {service} does not exist"))
        } else if backend.ready_endpoints < ready {
            Look::NotYet(format!(
                "Service {service} has {} of {ready} ready endpoints",
                backend.ready_endpoints
            ))
        } else {
            Look::Done
        })
    }

    async fn look_registered(
        &self,
        kind: &GroupKind,
        service: &ServiceRef,
    ) -> Result<Look, ClusterError> {
        let id = ObjectId::new(&kind.group, &kind.kind, None, "");
        let Some(path) = self.paths.of_kind(&id.group_kind()) else {
            return Ok(Look::Never(format!("{kind} is not served by the cluster")));
        };
        let list = self.cluster.list(&path, &Selector::default()).await?;
        let found = list
            .items
            .iter()
            .find(|value| registered_services(kind, value).contains(service));
        Ok(match found {
            None => Look::NotYet(format!("no {} points at Service {service} yet", kind.kind)),
            Some(value) => {
                let assessment = assess(value);
                if assessment.is_current() {
                    Look::Done
                } else {
                    Look::NotYet(assessment.message)
                }
            }
        })
    }

    async fn look_exists(&self, any_of: &[ObjectId]) -> Result<Look, ClusterError> {
        for id in any_of {
            if let Some(path) = self.paths.of_kind(&id.group_kind())
                && self.cluster.get_id(&path, id).await?.is_some()
            {
                return Ok(Look::Done);
            }
        }
        Ok(Look::NotYet(
            "the workloads have not made it yet".to_owned(),
        ))
    }
}

/// Tells what a wait sees: every change, and a reminder while nothing changes.
struct Progress<'a> {
    events: &'a Events,
    step: &'a Step,
    started: Instant,
    last: String,
    told: Instant,
    /// Whether an end is waited for.
    ends: bool,
    /// What to do when it does not come.
    advice: Option<String>,
}

impl<'a> Progress<'a> {
    fn new(waiter: &Waiter<'a>, step: &'a Step, started: Instant) -> Self {
        Self {
            events: waiter.events,
            step,
            started,
            last: String::new(),
            told: started,
            ends: false,
            advice: None,
        }
    }

    fn tell(&mut self, message: String) {
        if message == self.last && self.told.elapsed() < REMINDER {
            return;
        }
        self.told = Instant::now();
        self.events.send(EventKind::Waiting(
            self.step.id,
            WaitState {
                object: self.step.object.clone(),
                message: message.clone(),
                since: self.started.elapsed(),
            },
        ));
        self.last = message;
    }

    fn timed_out(&self) -> Failure {
        let waited = self.started.elapsed().as_secs();
        let last = if self.last.is_empty() {
            "the server told nothing about it"
        } else {
            &self.last
        };
        let state = if self.ends { "gone" } else { "ready" };
        Failure {
            kind: FailureKind::NotReady,
            message: format!("not {state} after {waited} s: {last}"),
            hint: Some(self.advice.clone().unwrap_or_else(|| {
                "the release's `timeout` in the environment file says how long to wait".to_owned()
            })),
        }
    }
}

fn duration(duration: SignedDuration) -> Duration {
    Duration::try_from(duration).unwrap_or_default()
}
