//! Buffer of watch events for the members of one release.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use pleach_fields::ignore::Ignored;
use pleach_model::object::{DesiredDigest, ObjectId};
use pleach_model::order::ReadinessDemand;
use pleach_planner::observe::is_unchanged;
use pleach_state::inventory::{EntryState, Inventory};
use pleach_state::live::LiveMeta;
use serde_json::Value;
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::run::Target;

/// State of the objects of a release after a run.
pub(crate) struct AppliedState {
    desired: Arc<Target>,
    ignored: Ignored,
    members: Arc<Inventory>,
    /// Index of each manifest.
    positions: HashMap<ObjectId, usize>,
}

impl AppliedState {
    /// Captures the recorded state after the desired state was applied.
    pub(crate) fn new(desired: Arc<Target>, ignored: Ignored, members: Arc<Inventory>) -> Self {
        let manifests = &desired.release().1.manifests;
        let positions = manifests
            .iter()
            .enumerate()
            // A run-once job counts as done, whatever happens to it later.
            .filter(|(_, manifest)| !manifest.runs_once())
            .map(|(position, manifest)| (manifest.id().clone(), position))
            .collect();
        Self {
            desired,
            ignored,
            members,
            positions,
        }
    }

    /// Returns whether lost readiness of the object is reported.
    fn reports_readiness(&self, id: &ObjectId) -> bool {
        let (release, rendered) = self.desired.release();
        let manifest = self.positions.get(id);
        let manifest = manifest.and_then(|position| rendered.manifests.get(*position));
        release.sequence.readiness.waits_for(&id.group_kind())
            && manifest
                .is_some_and(|manifest| manifest.facts().readiness == ReadinessDemand::Require)
    }

    /// Returns the objects whose lost readiness is reported.
    fn readiness_members(&self) -> BTreeSet<ObjectId> {
        let ids = self.positions.keys();
        ids.filter(|id| self.reports_readiness(id))
            .cloned()
            .collect()
    }

    /// Returns whether a runtime object with this uid is recorded.
    fn records(&self, id: &ObjectId, uid: &str) -> bool {
        let entry = self.members.entries.get(id);
        entry.is_some_and(|entry| entry.uid.as_deref() == Some(uid))
    }

    /// Returns whether an object is in the captured state. True for objects that are no member.
    fn is_applied(&self, id: &ObjectId, live: Option<&LiveMeta>) -> bool {
        let entry = self.members.entries.get(id);
        let Some(entry) = entry.filter(|entry| entry.state == EntryState::Applied) else {
            return true;
        };
        let manifests = &self.desired.release().1.manifests;
        let position = self.positions.get(id);
        let Some(manifest) = position.and_then(|position| manifests.get(*position)) else {
            return true;
        };
        let digest = entry.desired.map(DesiredDigest::Known);
        let lean = self.ignored.lean(manifest);
        live.is_some_and(|live| is_unchanged(lean, digest.as_ref(), entry, live))
    }
}

impl fmt::Debug for AppliedState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Never print the manifests: they include Secrets.
        f.debug_struct("Left")
            .field("members", &self.positions.len())
            .finish_non_exhaustive()
    }
}

/// Receiver of changes to the members of a release.
#[derive(Debug)]
pub(super) struct EventBuffer {
    manager: String,
    state: Mutex<BufferState>,
    changed_signal: Notify,
    /// Signals that an object can have lost readiness.
    written_signal: Notify,
}

#[derive(Debug, Default)]
struct BufferState {
    applied: Option<AppliedState>,
    /// Events received during a reconcile, which are evaluated afterwards. Only the last one per
    /// object is retained.
    buffered: Option<BTreeMap<ObjectId, Option<LiveMeta>>>,
    /// Treats every event as a change.
    counts_every_event: bool,
    changed: BTreeSet<ObjectId>,
    /// Runtime objects, each with its last reported uid.
    expected: BTreeMap<ObjectId, Option<String>>,
    /// Objects with writes, including status updates.
    written: BTreeSet<ObjectId>,
    /// Time of the first of these writes.
    written_at: Option<Instant>,
}

impl BufferState {
    fn evaluate(&mut self, id: &ObjectId, live: Option<&LiveMeta>) {
        if self.expected.contains_key(id) {
            return self.evaluate_expected(id, live);
        }
        let is_as_applied = match &self.applied {
            _ if self.counts_every_event => false,
            Some(applied) => applied.is_applied(id, live),
            // No state was applied yet.
            None => true,
        };
        if is_as_applied {
            // The object was changed back.
            self.changed.remove(id);
        } else {
            self.changed.insert(id.clone());
        }
    }

    /// Reports an unrecorded runtime object once, however often its controller writes to it.
    fn evaluate_expected(&mut self, id: &ObjectId, live: Option<&LiveMeta>) {
        let Some(live) = live.filter(|live| !live.deleting) else {
            self.changed.remove(id);
            return;
        };
        let uid = Some(live.uid.as_str());
        let Some(applied) = &self.applied else { return };
        let reported = self
            .expected
            .get_mut(id)
            .filter(|one| one.as_deref() != uid);
        if let Some(reported) = reported
            && !applied.records(id, &live.uid)
        {
            *reported = Some(live.uid.clone());
            self.changed.insert(id.clone());
        }
    }
}

impl EventBuffer {
    pub(super) fn new(manager: String) -> Self {
        Self {
            manager,
            state: Mutex::default(),
            changed_signal: Notify::new(),
            written_signal: Notify::new(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, BufferState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records the present metadata of an object; `None` if it is deleted.
    pub(super) fn receive(&self, id: &ObjectId, metadata: Option<&Value>) {
        let live = metadata.map(|metadata| LiveMeta::read(metadata, &self.manager));
        let mut state = self.lock();
        if let Some(buffered) = &mut state.buffered {
            buffered.insert(id.clone(), live);
            return;
        }
        state.evaluate(id, live.as_ref());
        if !state.changed.is_empty() {
            self.changed_signal.notify_one();
        }
    }

    /// Records a write to an object.
    pub(super) fn record_write(&self, id: &ObjectId) {
        let mut state = self.lock();
        if state
            .applied
            .as_ref()
            .is_some_and(|applied| applied.reports_readiness(id))
        {
            state.written.insert(id.clone());
            state.written_at.get_or_insert_with(Instant::now);
            self.written_signal.notify_one();
        }
    }

    /// Schedules a readiness check of all objects.
    pub(super) fn check_all(&self) {
        let mut state = self.lock();
        state.written = state
            .applied
            .as_ref()
            .map(AppliedState::readiness_members)
            .unwrap_or_default();
        if !state.written.is_empty() {
            state.written_at.get_or_insert_with(Instant::now);
            self.written_signal.notify_one();
        }
    }

    /// Waits for a write to an object, and returns its time.
    pub(super) async fn wait_until_written(&self) -> Instant {
        loop {
            if let Some(at) = self.lock().written_at {
                return at;
            }
            self.written_signal.notified().await;
        }
    }

    /// Returns the objects to check.
    pub(super) fn take_written(&self) -> BTreeSet<ObjectId> {
        let mut state = self.lock();
        state.written_at = None;
        std::mem::take(&mut state.written)
    }

    /// Starts the buffering of a reconcile. Returns the pending changed objects.
    pub(super) fn start(&self) -> BTreeSet<ObjectId> {
        let mut state = self.lock();
        state.buffered.get_or_insert_default();
        std::mem::take(&mut state.changed)
    }

    /// Ends the buffering and evaluates the events.
    pub(super) fn finish(&self, applied: Option<AppliedState>) {
        let mut state = self.lock();
        if applied.is_some() {
            state.applied = applied;
            state.counts_every_event = false;
        }
        for (id, live) in state.buffered.take().unwrap_or_default() {
            state.evaluate(&id, live.as_ref());
        }
        if !state.changed.is_empty() {
            self.changed_signal.notify_one();
        }
    }

    /// Sets the expected runtime objects.
    pub(super) fn expect(&self, ids: &BTreeSet<ObjectId>) {
        let mut state = self.lock();
        state.expected.retain(|id, _| ids.contains(id));
        for id in ids {
            state.expected.entry(id.clone()).or_default();
        }
    }

    pub(super) fn count_every_event(&self) {
        self.lock().counts_every_event = true;
    }

    pub(super) async fn changed(&self) {
        loop {
            if !self.lock().changed.is_empty() {
                return;
            }
            self.changed_signal.notified().await;
        }
    }

    pub(super) fn take(&self) -> BTreeSet<ObjectId> {
        std::mem::take(&mut self.lock().changed)
    }
}
