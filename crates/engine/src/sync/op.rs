//! Operations of a plan, one file each.

mod apply;
mod cleanup;
mod contents;
mod copy;
mod delete;
mod gate;
mod migrate;
mod node;
mod node_work;
mod once;
mod orphaned_fields;
mod overlay;
mod own;
mod patch;
mod preload;
mod replace;
mod returned;
mod temporary_binding;
mod versions;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use pleach_formats::window::Windows;
use pleach_model::finding::Kind;
use pleach_model::object::{DigestKey, Manifest, ObjectId};
use pleach_planner::plan::{Desired, Op, Plan, Precondition, Step, StepId, Until};
use pleach_state::inventory::Inventory;
use serde_json::Value;
use tokio::sync::{OnceCell, Semaphore};
use tokio::time::Instant;

pub(super) use self::node::Drivers;
use super::events::{EventKind, Events};
use super::journal_writer::JournalWriter;
use super::paths::Paths;
use super::report::{Failure, FailureKind};
use super::scheduler::{Executor, Permit};
use super::wait::{Controllers, Since, Statuses, Waiter};
use super::watch_cache::WatchCache;
use crate::lease::NodesInChange;
use crate::stop::Stop;
use pleach_cluster::{Class, Cluster, ClusterError, Retry};

/// Time in which a 403 after a permission change can be passing. The authorizer sees new rules
/// within milliseconds, other replicas of the API server later.
const AUTHORIZER_DELAY: Duration = Duration::from_secs(5);

/// Executor of steps, which keeps the inventory up to date with the answers.
pub(super) struct Operator<'a> {
    pub(super) cluster: &'a Cluster,
    pub(super) plan: &'a Plan,
    /// Whether the plan grants permissions, which take a moment to be in force.
    pub(super) grants: bool,
    pub(super) desired: &'a Desired,
    pub(super) manifests: BTreeMap<&'a ObjectId, &'a Manifest>,
    pub(super) manager: String,
    /// The key of digests; `None` if there is none yet.
    pub(super) key: Option<DigestKey>,
    pub(super) paths: Paths,
    pub(super) watch_cache: WatchCache,
    pub(super) events: &'a Events,
    /// Ends retries of failed requests when requested.
    pub(super) stop: &'a Stop,
    /// Windows outside of which no further node begins.
    pub(super) windows: &'a Windows,
    /// Counter of the nodes in their change.
    pub(super) nodes: NodesInChange,
    /// Hooks of the controllers that drain nodes.
    pub(super) drivers: Drivers,
    pub(super) journal_writer: JournalWriter,
    pub(super) inventory: Mutex<Inventory>,
    /// Whether registrations of the deleted Services were searched.
    pub(super) unregistered: OnceCell<()>,
    /// Deletions that the server confirmed at once.
    pub(super) gone: Mutex<BTreeSet<StepId>>,
    /// Limits the requests of all waits together.
    pub(super) permits: Semaphore,
    /// Controllers that remove finalizers, shared by all waits.
    pub(super) controllers: Controllers,
    /// CRDs read for objects without a status, shared by all waits.
    pub(super) statuses: Statuses,
    /// Whether a verified version is installed, so that the release can be rolled back.
    pub(super) can_roll_back: bool,
    /// Permits of the operations in progress.
    pub(super) operations: Mutex<BTreeMap<StepId, Permit>>,
    /// Start time of each step, and the answer to its write.
    pub(super) begun: Mutex<BTreeMap<StepId, (Instant, Since)>>,
}

impl Executor for Operator<'_> {
    async fn execute<'a>(&'a self, step: &'a Step, permit: &'a Permit) -> Result<(), Failure> {
        let operations = || {
            let operations = self.operations.lock();
            operations.unwrap_or_else(PoisonError::into_inner)
        };
        operations().insert(step.id, permit.clone());
        let done = self.operate(step).await;
        operations().remove(&step.id);
        done
    }

    async fn complete<'a>(&'a self, step: &'a Step) -> Result<(), Failure> {
        let Some(until) = &step.until else {
            return Ok(());
        };
        let (started, since) = self
            .begun
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .remove(&step.id)
            .unwrap_or_else(|| (Instant::now(), Since::default()));
        if self
            .gone
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .contains(&step.id)
        {
            self.forget(&step.object);
            return self.forget_overlays(&step.object).await;
        }
        let end = self.waiter().wait(step, until, &since, started).await;
        let seen = match &step.op {
            Op::Create { once: true, .. } => self.ran(step, end).await?,
            _ => end?,
        };
        match (until, &step.op) {
            (Until::Absent { .. }, Op::Delete(_)) => {
                self.forget(&step.object);
                self.forget_overlays(&step.object).await?;
            }
            (Until::Ready { .. }, Op::Apply { .. } | Op::Create { .. } | Op::Lift) => {
                self.refresh(&step.object, seen.as_ref());
            }
            _ => {}
        }
        Ok(())
    }
}

impl Operator<'_> {
    fn waiter(&self) -> Waiter<'_> {
        Waiter {
            cluster: self.cluster,
            desired: self.desired,
            paths: &self.paths,
            watch_cache: &self.watch_cache,
            events: self.events,
            permits: &self.permits,
            controllers: &self.controllers,
            statuses: &self.statuses,
            can_roll_back: self.can_roll_back,
        }
    }

    async fn operate(&self, step: &Step) -> Result<(), Failure> {
        let started = Instant::now();
        self.record(step, started, Since::default());
        match &step.op {
            Op::Apply {
                body,
                take_over,
                leave,
            } => self.apply(step, body, (take_over, leave), started).await,
            Op::Own(own) => self.own(step, own, started).await,
            Op::Patch { patch, subresource } => {
                self.patch(step, patch, subresource.as_deref(), started)
                    .await
            }
            Op::Set { patch } => self.set(step, patch, started).await,
            Op::Close { gate } => self.close(step, gate, started).await,
            Op::Lift => match &step.overlay {
                Some(id) => self.lift(step, id, started).await,
                None => Ok(()),
            },
            Op::Restart { key, mark } => self.restart(step, (key, mark), started).await,
            Op::Replace { pods } => self.replace(step, *pods, started).await,
            Op::Delete(deletion) => self.delete(step, deletion, started).await,
            Op::Wait => self.unregister_again(step, started).await,
            Op::Create { body, .. } => self.run_once(step, body, started).await,
            Op::Copy { from, to } => self.copy(step, (from, to), started).await,
            Op::UpgradeNode { .. } => self.upgrade_node(step, started).await,
            Op::Pause => Err(self.pause_nodes(step)),
            Op::Preload { .. } => self.preload(step, started).await,
            Op::RememberImages { images } => self.remember_images(step, images, started).await,
            Op::CleanNode { images, job, .. } => {
                self.clean_node(step, (images, job), started).await
            }
            Op::Migrate { crd, from, to } => self.migrate(step, (crd, from, to), started).await,
        }
    }

    /// Ends the run after the first nodes, so that a person can check them.
    fn pause_nodes(&self, step: &Step) -> Failure {
        let message = format!("paused after {}", step.object.name);
        let environment = &self.desired.name.environment;
        let hint = format!("check it; `pleach apply {environment}` shows the rest");
        Failure::new(FailureKind::Paused, message).hint(hint)
    }

    fn record(&self, step: &Step, started: Instant, since: Since) {
        self.begun
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .insert(step.id, (started, since));
    }

    /// Removes an object from the inventory after a confirmed deletion.
    fn forget(&self, id: &ObjectId) {
        let mut inventory = self
            .inventory
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        inventory.entries.remove(id);
        // The deletion of a CRD deletes its objects, including those that git no longer contains.
        if let Some(kind) = self.paths.defined_by(id) {
            inventory
                .entries
                .retain(|one, _| one.group_kind() != *kind || self.manifests.contains_key(one));
        }
    }

    /// Waits in the middle of an operation, without holding the permit.
    async fn pause(&self, step: &Step, pause: Duration) {
        let sleep = tokio::time::sleep(pause);
        match self.permit(step) {
            Some(permit) => permit.aside(sleep).await,
            None => sleep.await,
        }
    }

    /// Returns the permit of a step in progress.
    fn permit(&self, step: &Step) -> Option<Permit> {
        let operations = self.operations.lock();
        let operations = operations.unwrap_or_else(PoisonError::into_inner);
        operations.get(&step.id).cloned()
    }

    /// Returns the client with the retries of one step: until its deadline, and for errors that are
    /// known to be passing in this plan.
    fn cluster_for(&self, step: &Step, started: Instant) -> Cluster {
        let deadline = started + Duration::try_from(step.deadline).unwrap_or_default();
        let defined = self.paths.crd(&step.object.group_kind()).is_some()
            || (self.manifests.get(&step.object))
                .is_some_and(|manifest| self.paths.is_registered(manifest.api_version()));
        let grants = self.grants;
        let events = self.events.clone();
        let stop = self.stop.clone();
        let id = step.id;
        let retry = Retry::until(deadline)
            .also(move |class| match class {
                Class::KindNotServed => defined,
                Class::NamespaceTerminating(_) => true,
                Class::Forbidden | Class::RbacEscalation { .. } | Class::RoleMissing(_) => {
                    grants && started.elapsed() < AUTHORIZER_DELAY
                }
                _ => false,
            })
            .notify(move |retrying| {
                events.send(EventKind::Retrying(id, retrying.error.message.clone()));
            })
            .unless(move || {
                let stop = stop.clone();
                async move {
                    stop.wait().await;
                }
            });
        let retry = match self.permit(step) {
            Some(permit) => retry.pausing(move |pause| {
                let permit = permit.clone();
                async move { permit.aside(tokio::time::sleep(pause)).await }
            }),
            None => retry,
        };
        self.cluster.clone().with_retry(retry)
    }

    /// Updates the entry of an object that became ready. Kinds without a generation change their
    /// resourceVersion with their status. If only we own fields of the object itself, every later
    /// write was to its status.
    fn refresh(&self, id: &ObjectId, seen: Option<&Value>) {
        let Some(value) = seen else { return };
        let mut inventory = self
            .inventory
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let Some(entry) = inventory.entries.get_mut(id) else {
            return;
        };
        let metadata = &value["metadata"];
        let untouched = entry.uid.as_deref() == metadata["uid"].as_str()
            && entry.generation == metadata["generation"].as_i64()
            && entry.fingerprint.is_some()
            && entry.fingerprint
                == pleach_fields::diff::ownership::fingerprint(metadata, &self.manager)
            && self.last_main_writer_is_us(metadata);
        if untouched {
            entry.resource_version = metadata["resourceVersion"].as_str().map(str::to_owned);
        }
    }

    /// Adopts the new versions after a restart by pleach. The rest of the object is unchanged.
    fn restarted(&self, step: &Step, answer: &Value, started: Instant) {
        let metadata = &answer["metadata"];
        let text = |key: &str| metadata[key].as_str().unwrap_or_default().to_owned();
        let since = Since {
            uid: text("uid"),
            resource_version: text("resourceVersion"),
            generation: metadata["generation"].as_i64(),
            ..Since::default()
        };
        let mut inventory = self
            .inventory
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if let Some(entry) = inventory.entries.get_mut(&step.object)
            && entry.uid.as_deref() == Some(&since.uid)
            && entry.fingerprint.is_some()
            && entry.fingerprint
                == pleach_fields::diff::ownership::fingerprint(metadata, &self.manager)
        {
            entry.generation = since.generation;
            entry.resource_version = Some(since.resource_version.clone());
        }
        drop(inventory);
        self.record(step, started, since);
    }

    /// Returns whether only we own fields of the object itself, so that every write since ours was
    /// to its status.
    fn last_main_writer_is_us(&self, metadata: &Value) -> bool {
        let managers = pleach_fields::diff::ownership::managers(metadata);
        managers.iter().all(|manager| *manager == self.manager)
    }
}

/// Returns the precondition on the uid, if any.
pub(super) fn required_uid(step: &Step) -> Option<&str> {
    step.require
        .iter()
        .find_map(|precondition| match precondition {
            Precondition::Uid(uid) => Some(uid.as_str()),
            _ => None,
        })
}

/// Returns the precondition on the resource version, if any.
fn required_version(step: &Step) -> Option<&str> {
    step.require
        .iter()
        .find_map(|precondition| match precondition {
            Precondition::ResourceVersion(version) => Some(version.as_str()),
            _ => None,
        })
}

/// Converts a failed request into the failure of a step.
pub(super) fn failure(error: &ClusterError) -> Failure {
    let kind = match error.kind() {
        Kind::Cluster => FailureKind::Cluster,
        Kind::Conflict => FailureKind::Conflict,
        Kind::Policy => FailureKind::Policy,
        Kind::Repository => FailureKind::Refused,
    };
    let message = match error.api() {
        Some(api) => api.message.clone(),
        None => error.to_string(),
    };
    Failure {
        hint: error.hint(),
        ..Failure::new(kind, message)
    }
}
