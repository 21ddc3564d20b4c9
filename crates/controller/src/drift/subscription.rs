//! Mailbox of watch events for the members of one release.

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
pub(crate) struct Left {
    desired: Arc<Target>,
    ignored: Ignored,
    members: Arc<Inventory>,
    /// Index of each manifest.
    positions: HashMap<ObjectId, usize>,
}

impl Left {
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
    fn awaits(&self, id: &ObjectId) -> bool {
        let (release, rendered) = self.desired.release();
        let manifest = self.positions.get(id);
        let manifest = manifest.and_then(|position| rendered.manifests.get(*position));
        release.sequence.readiness.waits_for(&id.group_kind())
            && manifest
                .is_some_and(|manifest| manifest.facts().readiness == ReadinessDemand::Require)
    }

    /// Returns the objects whose lost readiness is reported.
    fn awaited(&self) -> BTreeSet<ObjectId> {
        let ids = self.positions.keys();
        ids.filter(|id| self.awaits(id)).cloned().collect()
    }

    /// Returns whether a runtime object with this uid is recorded.
    fn records(&self, id: &ObjectId, uid: &str) -> bool {
        let entry = self.members.entries.get(id);
        entry.is_some_and(|entry| entry.uid.as_deref() == Some(uid))
    }

    /// Returns whether an object is in the captured state. True for objects that are no member.
    fn holds(&self, id: &ObjectId, live: Option<&LiveMeta>) -> bool {
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

impl fmt::Debug for Left {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Never print the manifests: they include Secrets.
        f.debug_struct("Left")
            .field("members", &self.positions.len())
            .finish_non_exhaustive()
    }
}

/// Receiver of changes to the members of a release.
#[derive(Debug)]
pub(super) struct Mailbox {
    manager: String,
    heard: Mutex<Heard>,
    news: Notify,
    /// Signals that an object can have lost readiness.
    stir: Notify,
}

#[derive(Debug, Default)]
struct Heard {
    left: Option<Left>,
    /// Events received during a reconcile, which are evaluated afterwards. Only the last one per
    /// object is kept.
    held: Option<BTreeMap<ObjectId, Option<LiveMeta>>>,
    /// Treats every event as a change.
    alert: bool,
    changed: BTreeSet<ObjectId>,
    /// Runtime objects, each with its last reported uid.
    expected: BTreeMap<ObjectId, Option<String>>,
    /// Objects with writes, including status updates.
    stirred: BTreeSet<ObjectId>,
    /// Time of the first of these writes.
    stirred_at: Option<Instant>,
}

impl Heard {
    fn judge(&mut self, id: &ObjectId, live: Option<&LiveMeta>) {
        if self.expected.contains_key(id) {
            return self.judge_expected(id, live);
        }
        let is_as_left = match &self.left {
            _ if self.alert => false,
            Some(left) => left.holds(id, live),
            // No state was applied yet.
            None => true,
        };
        if is_as_left {
            // The object was changed back.
            self.changed.remove(id);
        } else {
            self.changed.insert(id.clone());
        }
    }

    /// Reports an unrecorded runtime object once, however often its controller writes to it.
    fn judge_expected(&mut self, id: &ObjectId, live: Option<&LiveMeta>) {
        let Some(live) = live.filter(|live| !live.deleting) else {
            self.changed.remove(id);
            return;
        };
        let uid = Some(live.uid.as_str());
        let Some(left) = &self.left else { return };
        let reported = self
            .expected
            .get_mut(id)
            .filter(|one| one.as_deref() != uid);
        if let Some(reported) = reported
            && !left.records(id, &live.uid)
        {
            *reported = Some(live.uid.clone());
            self.changed.insert(id.clone());
        }
    }
}

impl Mailbox {
    pub(super) fn new(manager: String) -> Self {
        Self {
            manager,
            heard: Mutex::default(),
            news: Notify::new(),
            stir: Notify::new(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Heard> {
        self.heard.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records the present metadata of an object; `None` if it is deleted.
    pub(super) fn hear(&self, id: &ObjectId, metadata: Option<&Value>) {
        let live = metadata.map(|metadata| LiveMeta::read(metadata, &self.manager));
        let mut heard = self.lock();
        if let Some(held) = &mut heard.held {
            held.insert(id.clone(), live);
            return;
        }
        heard.judge(id, live.as_ref());
        if !heard.changed.is_empty() {
            self.news.notify_one();
        }
    }

    /// Records a write to an object.
    pub(super) fn stirred(&self, id: &ObjectId) {
        let mut heard = self.lock();
        if heard.left.as_ref().is_some_and(|left| left.awaits(id)) {
            heard.stirred.insert(id.clone());
            heard.stirred_at.get_or_insert_with(Instant::now);
            self.stir.notify_one();
        }
    }

    /// Schedules a readiness check of all objects.
    pub(super) fn stir(&self) {
        let mut heard = self.lock();
        heard.stirred = heard.left.as_ref().map(Left::awaited).unwrap_or_default();
        if !heard.stirred.is_empty() {
            heard.stirred_at.get_or_insert_with(Instant::now);
            self.stir.notify_one();
        }
    }

    /// Waits for a write to an object, and returns its time.
    pub(super) async fn is_stirred(&self) -> Instant {
        loop {
            if let Some(at) = self.lock().stirred_at {
                return at;
            }
            self.stir.notified().await;
        }
    }

    /// Returns the objects to check.
    pub(super) fn take_stirred(&self) -> BTreeSet<ObjectId> {
        let mut heard = self.lock();
        heard.stirred_at = None;
        std::mem::take(&mut heard.stirred)
    }

    /// Starts the buffering of a reconcile. Returns the pending changed objects.
    pub(super) fn begin(&self) -> BTreeSet<ObjectId> {
        let mut heard = self.lock();
        heard.held.get_or_insert_default();
        std::mem::take(&mut heard.changed)
    }

    /// Ends the buffering and evaluates the events.
    pub(super) fn settle(&self, left: Option<Left>) {
        let mut heard = self.lock();
        if left.is_some() {
            heard.left = left;
            heard.alert = false;
        }
        for (id, live) in heard.held.take().unwrap_or_default() {
            heard.judge(&id, live.as_ref());
        }
        if !heard.changed.is_empty() {
            self.news.notify_one();
        }
    }

    /// Sets the expected runtime objects.
    pub(super) fn expect(&self, ids: &BTreeSet<ObjectId>) {
        let mut heard = self.lock();
        heard.expected.retain(|id, _| ids.contains(id));
        for id in ids {
            heard.expected.entry(id.clone()).or_default();
        }
    }

    pub(super) fn alert(&self) {
        self.lock().alert = true;
    }

    pub(super) async fn changed(&self) {
        loop {
            if !self.lock().changed.is_empty() {
                return;
            }
            self.news.notified().await;
        }
    }

    pub(super) fn take(&self) -> BTreeSet<ObjectId> {
        std::mem::take(&mut self.lock().changed)
    }
}
