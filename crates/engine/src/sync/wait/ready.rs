//! Waits by watch until an object is ready and stays so.

use std::sync::Arc;
use std::time::Duration;

use pleach_formats::readiness::{Assessment, Readiness};
use pleach_model::object::ObjectId;
use pleach_planner::plan::Step;
use serde_json::Value;
use tokio::time::Instant;

use super::grace::Grace;
use super::symptoms::Symptoms;
use super::{LONGEST, Progress, REMINDER, Since, Waiter, duration};
use crate::sync::{
    op,
    report::{Failure, FailureKind},
    watch_cache::{Seen, describe},
};
use pleach_cluster::{Class, ResourcePath};

/// Time for a watch to show our write, after which the object is read by name.
const UNSEEN: Duration = Duration::from_secs(1);

/// Assessment of an object for a wait.
enum Verdict {
    /// Ready. `is_silent`: its controller has written no status.
    Ready { is_silent: bool },
    /// Waits for a later consumer.
    Waits,
    /// Not ready. `again` is the time at which the verdict can change without an event.
    NotYet {
        message: String,
        again: Option<Instant>,
    },
    /// Can never become ready.
    Failed(String),
}

impl Waiter<'_> {
    /// Returns the path of the kind of an object.
    fn served(&self, id: &ObjectId) -> Result<ResourcePath, Failure> {
        let kind = id.group_kind();
        self.paths.of_kind(&kind).ok_or_else(|| {
            let message = format!("{kind} is not served by the cluster");
            Failure::new(FailureKind::Cluster, message)
        })
    }

    /// Waits by watch until the object is ready and stays so.
    pub(super) async fn wait_ready(
        &self,
        step: &Step,
        since: &Since,
        stable_for: Duration,
        deadline: Instant,
        mut progress: Progress<'_>,
    ) -> Result<Value, Failure> {
        let id = &step.object;
        let path = self.served(id)?;
        if let Some(answer) = &since.answer
            && stable_for.is_zero()
            && self.is_ready_as_written(step, &path, answer).await
        {
            return Ok(Value::clone(answer));
        }
        // The answer proves that the object exists, so the watch must show it soon.
        let unseen_until = since.answer.as_ref().map(|_| Instant::now() + UNSEEN);
        let mut seen = self.watch_cache.follow(&path, id).ok_or_else(|| {
            Failure::new(FailureKind::Other, "the plan does not wait for this object")
        })?;
        let comes_with_the_plan = self.paths.crd(&id.group_kind()).is_some()
            || self.paths.is_registered(&path.api_version);
        let mut ready_since: Option<Instant> = None;
        let mut grace = Grace::new(Instant::now(), deadline);
        let fail_fast = self.desired.terms.fail_fast.map(duration);
        let mut symptoms = Symptoms::new(self.cluster, self.permits, id);
        loop {
            let now = seen.borrow_and_update().clone();
            let mut wake = deadline.min(Instant::now() + REMINDER);
            let state = match now {
                Seen::Present(value) if since.is_reached(&value) => Some(value),
                Seen::Present(_) => {
                    progress.report("the server does not show the change yet".to_owned());
                    None
                }
                Seen::Unselected if unseen_until.is_some_and(|until| Instant::now() < until) => {
                    wake = wake.min(unseen_until.unwrap_or(wake));
                    None
                }
                Seen::Unselected => {
                    wake = wake.min(Instant::now() + LONGEST);
                    // The object can have lost its label, so read it by name.
                    let place = (&path, comes_with_the_plan);
                    match self.read_one(place, id, since).await? {
                        Ok(value) => Some(Arc::new(value)),
                        Err(message) => {
                            ready_since = None;
                            progress.report(message);
                            None
                        }
                    }
                }
                Seen::Failing(trouble) if trouble.is_permanent(comes_with_the_plan) => {
                    return Err(Failure::new(FailureKind::Cluster, trouble.message));
                }
                Seen::Failing(trouble) => {
                    progress.report(trouble.message);
                    None
                }
                Seen::Unknown => None,
            };
            if let Some(value) = state {
                match self.verdict(step, &path, &value, &mut grace).await {
                    Verdict::Ready { is_silent } => {
                        let at = *ready_since.get_or_insert_with(Instant::now);
                        let stable_for = symptoms.stable_for(stable_for, &value).await;
                        if at.elapsed() >= stable_for {
                            if is_silent {
                                self.warn_of_silence(id);
                            }
                            return Ok(Value::clone(&value));
                        }
                        let seconds = stable_for.as_secs();
                        progress.report(format!("ready; must stay ready for {seconds} s"));
                        wake = wake.min(at + stable_for);
                    }
                    Verdict::Failed(message) => {
                        let message = symptoms.at_last(message, &value).await;
                        return Err(progress.failed(message, symptoms.stuck()));
                    }
                    Verdict::Waits => return Ok(Value::clone(&value)),
                    Verdict::NotYet { message, again } => {
                        ready_since = None;
                        let seen = symptoms.beside(message.clone(), &value).await;
                        if symptoms.is_over(fail_fast) {
                            // Check again, because it can have recovered since the last check.
                            let seen = symptoms.at_last(message.clone(), &value).await;
                            if symptoms.is_over(fail_fast) {
                                return Err(progress.gave_up(&seen, symptoms.stuck()));
                            }
                        }
                        progress.report_with_detail(&message, seen);
                        wake = wake.min(symptoms.over_at(fail_fast).unwrap_or(wake));
                        wake = wake.min(symptoms.again()).min(again.unwrap_or(wake));
                    }
                }
            }
            tokio::select! {
                changed = seen.changed() => if changed.is_err() {
                    return Err(Failure::new(FailureKind::Other, "the watch ended"));
                },
                () = tokio::time::sleep_until(wake) => if Instant::now() >= deadline {
                    return Err(progress.timed_out(symptoms.stuck()));
                },
            }
        }
    }

    /// Returns whether the answer to our write already shows a ready object, so that no further
    /// request is needed.
    async fn is_ready_as_written(&self, step: &Step, path: &ResourcePath, answer: &Value) -> bool {
        let assessment = self.assess(answer);
        assessment.readiness == Readiness::Current
            && !(assessment.message.is_empty() && self.lacks_status(step, path, answer).await)
    }

    /// Assesses an object for the wait, with grace periods for failures and a missing status.
    async fn verdict(
        &self,
        step: &Step,
        path: &ResourcePath,
        value: &Value,
        grace: &mut Grace,
    ) -> Verdict {
        let Assessment {
            readiness,
            message,
            give_up,
        } = self.assess(value);
        if readiness == Readiness::Failed {
            return match grace.of_failure(give_up) {
                None => Verdict::Failed(message),
                again => Verdict::NotYet { message, again },
            };
        }
        grace.recovered();
        if readiness == Readiness::Current {
            // A message, for example of a paused object, explains the missing status.
            let is_silent = message.is_empty() && self.lacks_status(step, path, value).await;
            return match grace.of_silence() {
                again @ Some(_) if is_silent => Verdict::NotYet {
                    message: "its controller has written no status yet".to_owned(),
                    again,
                },
                _ => Verdict::Ready { is_silent },
            };
        }
        if self.waits_for_consumer(&step.object, value).await {
            return Verdict::Waits;
        }
        Verdict::NotYet {
            message,
            again: None,
        }
    }

    /// Returns whether a claim is pending because its storage class binds on first use. A pod for
    /// it can come later.
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

    /// Reads an object by name. The inner error describes what is missing.
    async fn read_one(
        &self,
        (path, comes_with_the_plan): (&ResourcePath, bool),
        id: &ObjectId,
        since: &Since,
    ) -> Result<Result<Value, String>, Failure> {
        let _permit = self.permits.acquire().await;
        match self.cluster.get_id(path, id).await {
            Ok(Some(value)) if since.is_reached(&value) => Ok(Ok(value)),
            Ok(Some(_)) => Ok(Err("the server does not show the change yet".to_owned())),
            Ok(None) => Ok(Err("it does not exist".to_owned())),
            Err(error) => {
                let is_unserved = error.class() == Some(&Class::KindNotServed);
                if error.is_retryable() || is_unserved && comes_with_the_plan {
                    Ok(Err(describe(&error)))
                } else {
                    Err(op::failure(&error))
                }
            }
        }
    }
}
