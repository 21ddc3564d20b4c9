//! What was heard of the members of one release, and whether it is news.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use pleach_domain::ignore::Ignored;
use pleach_domain::inventory::{EntryState, Inventory};
use pleach_domain::object::ObjectId;
use pleach_domain::observe::{DesiredDigest, LiveMeta, is_unchanged};
use pleach_domain::order::ReadinessDemand;
use pleach_domain::plan::runs_once;
use serde_json::Value;
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::engine::controller::run::Wanted;

/// How the objects of a release were left.
pub(in crate::engine::controller) struct Left {
    wanted: Arc<Wanted>,
    ignored: Ignored,
    members: Arc<Inventory>,
    /// Positions of the manifests.
    positions: HashMap<ObjectId, usize>,
}

impl Left {
    /// Takes what was recorded when the release was brought to what is wanted.
    pub(in crate::engine::controller) fn new(
        wanted: Arc<Wanted>,
        ignored: Ignored,
        members: Arc<Inventory>,
    ) -> Self {
        let manifests = &wanted.release().1.manifests;
        let positions = manifests
            .iter()
            .enumerate()
            // Whether it ran is what counts, and not what became of it.
            .filter(|(_, manifest)| !runs_once(manifest))
            .map(|(position, manifest)| (manifest.id().clone(), position))
            .collect();
        Self {
            wanted,
            ignored,
            members,
            positions,
        }
    }

    /// Whether it is told when the object is not ready any more.
    fn awaits(&self, id: &ObjectId) -> bool {
        let (release, rendered) = self.wanted.release();
        let manifest = self.positions.get(id);
        let manifest = manifest.and_then(|position| rendered.manifests.get(*position));
        release.sequence.readiness.waits_for(&id.group_kind())
            && manifest
                .is_some_and(|manifest| manifest.facts().readiness == ReadinessDemand::Require)
    }

    /// Those of the objects that it is told of when they are not ready any more.
    fn awaited(&self) -> BTreeSet<ObjectId> {
        let ids = self.positions.keys();
        ids.filter(|id| self.awaits(id)).cloned().collect()
    }

    /// Whether this incarnation of a run-time object is recorded.
    fn records(&self, id: &ObjectId, uid: &str) -> bool {
        let entry = self.members.entries.get(id);
        entry.is_some_and(|entry| entry.uid.as_deref() == Some(uid))
    }

    /// Whether an object is as it was left. One that is nobody's member is.
    fn holds(&self, id: &ObjectId, live: Option<&LiveMeta>) -> bool {
        let entry = self.members.entries.get(id);
        let Some(entry) = entry.filter(|entry| entry.state == EntryState::Applied) else {
            return true;
        };
        let manifests = &self.wanted.release().1.manifests;
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
        // Not the manifests: Secrets are among them.
        f.debug_struct("Left")
            .field("members", &self.positions.len())
            .finish_non_exhaustive()
    }
}

/// Where changes of the members of a release end up.
#[derive(Debug)]
pub(super) struct Mailbox {
    manager: String,
    heard: Mutex<Heard>,
    news: Notify,
    /// Something may not be ready any more.
    stir: Notify,
}

#[derive(Debug, Default)]
struct Heard {
    left: Option<Left>,
    /// Somebody is looking at the objects: what is heard meanwhile is judged
    /// afterwards. The last of each is enough.
    held: Option<BTreeMap<ObjectId, Option<LiveMeta>>>,
    /// Everything counts.
    alert: bool,
    changed: BTreeSet<ObjectId>,
    /// Run-time objects, with the uid that was reported last of each.
    expected: BTreeMap<ObjectId, Option<String>>,
    /// Something was written to these, be it only what is said of them.
    stirred: BTreeSet<ObjectId>,
    /// When that was, of the first of them.
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
            // Nobody has brought it to anything yet.
            None => true,
        };
        if is_as_left {
            // Whoever changed it has changed it back.
            self.changed.remove(id);
        } else {
            self.changed.insert(id.clone());
        }
    }

    /// A run-time object that is not recorded is reported once, however often its
    /// controller writes to it.
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

    /// An object is like this now; none where it is gone.
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

    /// Something was written to an object.
    pub(super) fn stirred(&self, id: &ObjectId) {
        let mut heard = self.lock();
        if heard.left.as_ref().is_some_and(|left| left.awaits(id)) {
            heard.stirred.insert(id.clone());
            heard.stirred_at.get_or_insert_with(Instant::now);
            self.stir.notify_one();
        }
    }

    /// All objects may not be ready any more.
    pub(super) fn stir(&self) {
        let mut heard = self.lock();
        heard.stirred = heard.left.as_ref().map(Left::awaited).unwrap_or_default();
        if !heard.stirred.is_empty() {
            heard.stirred_at.get_or_insert_with(Instant::now);
            self.stir.notify_one();
        }
    }

    /// Waits until something may not be ready any more, and says since when.
    pub(super) async fn is_stirred(&self) -> Instant {
        loop {
            if let Some(at) = self.lock().stirred_at {
                return at;
            }
            self.stir.notified().await;
        }
    }

    /// Gives what may not be.
    pub(super) fn take_stirred(&self) -> BTreeSet<ObjectId> {
        let mut heard = self.lock();
        heard.stirred_at = None;
        std::mem::take(&mut heard.stirred)
    }

    /// Somebody begins to look. Gives what nobody has taken of what was changed.
    pub(super) fn begin(&self) -> BTreeSet<ObjectId> {
        let mut heard = self.lock();
        heard.held.get_or_insert_default();
        std::mem::take(&mut heard.changed)
    }

    /// Somebody has looked.
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

    /// Which run-time objects are expected from now on.
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
