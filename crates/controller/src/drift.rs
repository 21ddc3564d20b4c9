//! Watches of members: one metadata watch per kind and connection, shared by all releases.
//!
//! Only members of releases are stored: their subscribers and their last applied state. An event
//! for an object in that state (by [`is_unchanged`](pleach_planner::observe::is_unchanged)) triggers
//! nothing.
//!
//! A watch only makes the controller reconcile earlier. A broken watch restarts with a list, which
//! contains all missed changes. If a cluster-wide watch of a kind is forbidden, the namespaces of
//! the members are watched. If that is forbidden too, the interval finds the changes.

mod scopes;
mod subscription;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use futures::StreamExt as _;
use futures::stream::{LocalBoxStream, SelectAll};
use pleach_model::object::{Digest, GroupKind, ObjectId, labels};
use serde_json::Value;
use tokio::sync::{Notify, mpsc};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

use self::scopes::{Scope, Scopes};
use self::subscription::EventBuffer;
use super::environment::propagate_panic;
use pleach_cluster::{
    Class, Cluster, ClusterError, Connection, FollowedPart, ResourcePath, Selector,
};
use pleach_engine::words;

pub(super) use self::subscription::AppliedState;

/// Delay before a forbidden watch is retried.
const FORBIDDEN: Duration = Duration::from_mins(10);
/// Limit on watched runtime objects per release. The interval finds changes of the others.
const MAX_RUNTIME_OBJECTS: usize = 16;
/// Window in which changes are combined into one reconcile.
const BATCH: Duration = Duration::from_millis(50);

/// Members on all connections; `None` if watches are disabled.
#[derive(Debug, Clone)]
pub(super) struct Watches(Option<KnownConnections>);

/// Identity of a connection with its members.
type Member = (ConnectionKey, Weak<Inner>);

/// Connections with subscribed members.
#[derive(Debug, Clone)]
struct KnownConnections {
    members: Arc<Mutex<Vec<Member>>>,
    /// Channel for new connections that are not watched yet.
    new_requests: mpsc::UnboundedSender<WatchRequest>,
}

/// A connection with the fingerprint of its kubeconfig. A changed kubeconfig makes another
/// connection.
type ConnectionKey = (Connection, Option<Digest>);

/// Members with the connection that they are on.
pub(super) type WatchRequest = (Members, Cluster);

/// Members of all releases on one connection.
#[derive(Debug, Clone, Default)]
pub(super) struct Members(Arc<Inner>);

#[derive(Debug, Default)]
struct Inner {
    state: Mutex<State>,
    /// Signals a change of the kinds or namespaces to watch.
    changed: Notify,
}

#[derive(Debug, Default)]
struct State {
    subscribers: HashMap<ObjectId, Vec<Arc<EventBuffer>>>,
    kinds: BTreeMap<GroupKind, Kind>,
    expected: BTreeMap<ObjectId, Expected>,
}

/// A runtime object that releases declare.
#[derive(Debug)]
struct Expected {
    path: ResourcePath,
    /// Number of releases that declare it.
    count: usize,
}

/// A kind with subscribed members.
#[derive(Debug, Default)]
struct Kind {
    /// API path of the kind, if known.
    path: Option<ResourcePath>,
    /// Whether the server reported that it no longer serves this path.
    is_unserved: bool,
    /// Number of members by namespace.
    members: BTreeMap<Option<String>, usize>,
}

impl Drop for Members {
    /// Triggers the watch task when the last subscriber is dropped. On the single thread of the
    /// controller, the task runs after this drop.
    fn drop(&mut self) {
        if Arc::strong_count(&self.0) == 2 {
            self.0.changed.notify_one();
        }
    }
}

/// Subscription of one release to its members, until dropped.
#[derive(Debug)]
pub(super) struct Subscription {
    members: Members,
    buffer: Arc<EventBuffer>,
    ids: BTreeSet<ObjectId>,
    expected: BTreeSet<ObjectId>,
}

/// Stream of changes in a scope. The last part of a list comes with the ids of the earlier parts.
type Changes = LocalBoxStream<
    'static,
    (
        Scope,
        Result<FollowedPart, ClusterError>,
        BTreeSet<ObjectId>,
    ),
>;

impl Watches {
    /// Creates the watches, if enabled, and the receiver for [`follow_all`].
    pub(super) fn new(is_enabled: bool) -> (Self, mpsc::UnboundedReceiver<WatchRequest>) {
        let (new_requests, requests) = mpsc::unbounded_channel();
        let known = KnownConnections {
            members: Arc::default(),
            new_requests,
        };
        (Self(is_enabled.then_some(known)), requests)
    }

    /// Returns the members on a connection.
    pub(super) fn on(&self, key: ConnectionKey, cluster: &Cluster) -> Option<Members> {
        let known = self.0.as_ref()?;
        let (members, is_new) = known.on(key);
        if is_new {
            // The receiver is gone only at shutdown.
            drop(known.new_requests.send((members.clone(), cluster.clone())));
        }
        Some(members)
    }
}

impl KnownConnections {
    /// Returns the members on a connection, and whether they are new.
    fn on(&self, key: ConnectionKey) -> (Members, bool) {
        let mut known = self.members.lock().unwrap_or_else(PoisonError::into_inner);
        known.retain(|(_, members)| members.strong_count() > 0);
        let found = known.iter().find(|(one, _)| *one == key);
        if let Some(members) = found.and_then(|(_, members)| members.upgrade()) {
            return (Members(members), false);
        }
        let members = Members::default();
        known.push((key, Arc::downgrade(&members.0)));
        (members, true)
    }
}

/// Watches the members of all connections until shutdown. A watch can outlive the environment that
/// connected first.
pub(super) async fn follow_all(
    mut requests: mpsc::UnboundedReceiver<WatchRequest>,
    stop: CancellationToken,
) {
    let mut following = JoinSet::new();
    loop {
        tokio::select! {
            () = stop.cancelled() => return,
            Some((members, cluster)) = requests.recv() => {
                following.spawn_local(members.follow(cluster, stop.clone()));
            }
            Some(ended) = following.join_next() => propagate_panic(ended),
        }
    }
}

impl Members {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns whether both share the same members.
    pub(super) fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// Subscribes a release to its members.
    pub(super) fn subscribe(&self, manager: String) -> Subscription {
        Subscription {
            members: self.clone(),
            buffer: Arc::new(EventBuffer::new(manager)),
            ids: BTreeSet::new(),
            expected: BTreeSet::new(),
        }
    }

    /// Watches the members until shutdown.
    pub(super) async fn follow(self, cluster: Cluster, stop: CancellationToken) {
        let mut scopes = Scopes::default();
        let mut changes: SelectAll<Changes> = SelectAll::new();
        loop {
            if Arc::strong_count(&self.0) == 1 {
                // No subscriber is left.
                return;
            }
            let started = {
                let state = self.lock();
                scopes.adjust(&state.kinds, &state.expected, Instant::now())
            };
            for (scope, ending) in started {
                changes.push(follow(&cluster, scope, ending));
            }
            let retry = scopes.retry_at();
            loop {
                tokio::select! {
                    () = stop.cancelled() => return,
                    () = self.0.changed.notified() => break,
                    () = until(retry) => break,
                    Some((scope, change, parts)) = changes.next(), if !changes.is_empty() => {
                        if self.receive(&scope, change, &parts) {
                            scopes.close(scope, Instant::now() + FORBIDDEN);
                            break;
                        }
                    }
                }
            }
        }
    }

    /// Distributes an event to the releases. Returns true if the watch has ended.
    fn receive(
        &self,
        scope: &Scope,
        change: Result<FollowedPart, ClusterError>,
        parts: &BTreeSet<ObjectId>,
    ) -> bool {
        let report = |value: &Value| {
            let id = id_of(&scope.path, value);
            self.report(&id, Some(value));
            id
        };
        match change {
            Ok(FollowedPart::Applied(value)) => {
                let id = report(&value);
                self.record_write(&id);
            }
            // The object is deleted or lost its label.
            Ok(FollowedPart::Deleted(value)) => self.report(&id_of(&scope.path, &value), None),
            Ok(FollowedPart::Part(values)) => values.iter().for_each(|value| drop(report(value))),
            Ok(FollowedPart::LastPart(values)) => {
                self.set_served(scope, true);
                let mut missing = self.members_in(scope);
                missing.retain(|id| !parts.contains(id));
                for value in &values {
                    missing.remove(&report(value));
                }
                for id in missing {
                    self.report(&id, None);
                }
            }
            Err(error) if error.class() == Some(&Class::Forbidden) => {
                tracing::info!(%scope, error = %words(&error), "the watch is forbidden");
                return true;
            }
            // The watch restarts by itself, with a list.
            Err(error) => {
                if error.class() == Some(&Class::KindNotServed) && scope.name.is_none() {
                    self.set_served(scope, false);
                }
                tracing::debug!(%scope, error = %words(&error), "the watch failed");
            }
        }
        false
    }

    fn report(&self, id: &ObjectId, live: Option<&Value>) {
        let state = self.lock();
        for buffer in state.subscribers.get(id).into_iter().flatten() {
            buffer.receive(id, live.map(|live| &live["metadata"]));
        }
    }

    /// Notifies the releases of a write to an object.
    fn record_write(&self, id: &ObjectId) {
        let state = self.lock();
        for buffer in state.subscribers.get(id).into_iter().flatten() {
            buffer.record_write(id);
        }
    }

    /// Records whether a kind is still served at the watched path.
    fn set_served(&self, scope: &Scope, is_served: bool) {
        let mut state = self.lock();
        if let Some(kind) = state.kinds.get_mut(&scope.path.group_kind())
            && kind.path.as_ref() == Some(&scope.path)
        {
            kind.is_unserved = !is_served;
        }
    }

    /// Returns the members that a list of the scope would contain.
    fn members_in(&self, scope: &Scope) -> BTreeSet<ObjectId> {
        let kind = scope.path.group_kind();
        let state = self.lock();
        let is_within = |id: &&ObjectId| {
            id.is(&kind.group, &kind.kind)
                && (scope.namespace.is_none() || scope.namespace == id.namespace)
                && match &scope.name {
                    Some(name) => *name == id.name,
                    None => !state.expected.contains_key(*id),
                }
        };
        state
            .subscribers
            .keys()
            .filter(is_within)
            .cloned()
            .collect()
    }
}

impl Subscription {
    /// Returns whether the subscription is to these members.
    pub(super) fn is_to(&self, members: &Members) -> bool {
        self.members.is_same(members)
    }

    /// Replaces the subscribed objects at the start of a reconcile. Events are buffered until
    /// [`Subscription::finish`]. Returns the objects with changes found before.
    pub(super) fn start(&mut self, ids: BTreeSet<ObjectId>) -> BTreeSet<ObjectId> {
        let mut state = self.members.lock();
        let mut is_other = false;
        // An object of a manifest is no longer a runtime object.
        for id in self.expected.extract_if(.., |id| ids.contains(id)) {
            state.forget(&id, &self.buffer);
            is_other = true;
        }
        for id in self.ids.difference(&ids) {
            state.remove(id, &self.buffer);
            is_other = true;
        }
        for id in ids.difference(&self.ids) {
            state.add(id, &self.buffer);
            is_other = true;
        }
        drop(state);
        if is_other {
            self.buffer.expect(&self.expected);
        }
        self.ids = ids;
        let changed = self.buffer.start();
        if is_other {
            self.members.0.changed.notify_one();
        }
        changed
    }

    /// Sets the API paths of kinds. A kind that is watched at another path stays there while it is
    /// served, because releases can use several versions.
    pub(super) fn watch(&self, paths: impl Iterator<Item = ResourcePath>) {
        let mut state = self.members.lock();
        let mut is_new = false;
        for path in paths {
            let Some(kind) = state.kinds.get_mut(&path.group_kind()) else {
                continue;
            };
            let is_other_path = kind.path.as_ref() != Some(&path);
            if kind.path.is_none() || kind.is_unserved && is_other_path {
                kind.path = Some(path);
                kind.is_unserved = false;
                is_new = true;
            }
        }
        drop(state);
        if is_new {
            self.members.0.changed.notify_one();
        }
    }

    /// Watches these runtime objects too. An appearance with another uid than the recorded one is a
    /// change.
    pub(super) fn expect(&mut self, objects: BTreeMap<ObjectId, ResourcePath>) {
        let objects = objects.into_iter();
        let objects = objects.filter(|(id, _)| !self.ids.contains(id));
        let objects: BTreeMap<ObjectId, ResourcePath> = objects.take(MAX_RUNTIME_OBJECTS).collect();
        let ids: BTreeSet<ObjectId> = objects.keys().cloned().collect();
        if ids == self.expected {
            return;
        }
        let mut state = self.members.lock();
        for id in &self.expected {
            state.forget(id, &self.buffer);
        }
        for (id, path) in objects {
            state.expect(&id, path, &self.buffer);
        }
        drop(state);
        self.buffer.expect(&ids);
        self.expected = ids;
        self.members.0.changed.notify_one();
    }

    /// Returns whether one of the objects is a runtime object.
    pub(super) fn expects_any(&self, ids: &BTreeSet<ObjectId>) -> bool {
        !self.expected.is_disjoint(ids)
    }

    /// Ends the buffering after a reconcile. `applied` is the new state of the objects, if it
    /// changed.
    pub(super) fn finish(&self, applied: Option<AppliedState>) {
        self.buffer.finish(applied);
    }

    /// Returns the API path of a kind, if known.
    pub(super) fn path(&self, kind: &GroupKind) -> Option<ResourcePath> {
        self.members.lock().kinds.get(kind)?.path.clone()
    }

    /// Marks all objects for a readiness check.
    pub(super) fn check_all(&self) {
        self.buffer.check_all();
    }

    /// Waits until objects need a readiness check or until `due`, and returns the objects. Written
    /// objects are returned only after `debounce` has passed.
    pub(super) async fn written(
        &self,
        debounce: Duration,
        due: Option<Instant>,
    ) -> BTreeSet<ObjectId> {
        let written = async {
            // The delay counts from the first write, even if the release is reconciled meanwhile.
            let since = self.buffer.wait_until_written().await;
            sleep_until(since + debounce).await;
        };
        tokio::select! {
            () = written => {}
            () = until(due) => {}
        }
        self.buffer.take_written()
    }

    /// Treats every further event of the objects as a change.
    pub(super) fn count_every_event(&self) {
        self.buffer.count_every_event();
    }

    /// Waits for changed objects, at least until `debounce_until`, and returns them. Objects that
    /// were changed back meanwhile are not included.
    pub(super) async fn changes(&self, debounce_until: Instant) -> BTreeSet<ObjectId> {
        loop {
            self.buffer.changed().await;
            // Combine several changes into one.
            sleep_until(debounce_until.max(Instant::now() + BATCH)).await;
            let changed = self.buffer.take();
            if !changed.is_empty() {
                return changed;
            }
        }
    }
}

impl Drop for Subscription {
    fn drop(&mut self) {
        let mut state = self.members.lock();
        for id in &self.ids {
            state.remove(id, &self.buffer);
        }
        for id in &self.expected {
            state.forget(id, &self.buffer);
        }
        drop(state);
        self.members.0.changed.notify_one();
    }
}

impl State {
    fn add(&mut self, id: &ObjectId, buffer: &Arc<EventBuffer>) {
        let subscribers = self.subscribers.entry(id.clone()).or_default();
        subscribers.push(Arc::clone(buffer));
        let kind = self.kinds.entry(id.group_kind()).or_default();
        *kind.members.entry(id.namespace.clone()).or_default() += 1;
    }

    /// Adds a runtime object.
    fn expect(&mut self, id: &ObjectId, path: ResourcePath, buffer: &Arc<EventBuffer>) {
        let subscribers = self.subscribers.entry(id.clone()).or_default();
        subscribers.push(Arc::clone(buffer));
        let expected = self.expected.entry(id.clone());
        expected.or_insert(Expected { path, count: 0 }).count += 1;
    }

    /// Removes a runtime object.
    fn forget(&mut self, id: &ObjectId, buffer: &Arc<EventBuffer>) {
        self.unsubscribe(id, buffer);
        if let Some(expected) = self.expected.get_mut(id) {
            expected.count -= 1;
            if expected.count == 0 {
                self.expected.remove(id);
            }
        }
    }

    fn unsubscribe(&mut self, id: &ObjectId, buffer: &Arc<EventBuffer>) {
        if let Some(subscribers) = self.subscribers.get_mut(id) {
            subscribers.retain(|one| !Arc::ptr_eq(one, buffer));
            if subscribers.is_empty() {
                self.subscribers.remove(id);
            }
        }
    }

    fn remove(&mut self, id: &ObjectId, buffer: &Arc<EventBuffer>) {
        self.unsubscribe(id, buffer);
        let Some(kind) = self.kinds.get_mut(&id.group_kind()) else {
            return;
        };
        if let Some(count) = kind.members.get_mut(&id.namespace) {
            *count -= 1;
            if *count == 0 {
                kind.members.remove(&id.namespace);
            }
        }
        if kind.members.is_empty() {
            self.kinds.remove(&id.group_kind());
        }
    }
}

fn follow(cluster: &Cluster, scope: Scope, ending: CancellationToken) -> Changes {
    let field = scope
        .name
        .as_ref()
        .map(|name| format!("metadata.name={name}"));
    let selector = Selector {
        namespace: scope.namespace.as_deref(),
        // Runtime objects carry no labels of pleach.
        labels: scope.name.is_none().then_some(labels::PART_OF),
        fields: field.as_deref(),
    };
    let changes = cluster.follow_in_parts(&scope.path, &selector);
    let tagged = changes.scan(BTreeSet::new(), move |parts, change| {
        let before = if let Ok(FollowedPart::Part(values)) = &change {
            parts.extend(values.iter().map(|value| id_of(&scope.path, value)));
            BTreeSet::new()
        } else {
            std::mem::take(parts)
        };
        std::future::ready(Some((scope.clone(), change, before)))
    });
    tagged.take_until(ending.cancelled_owned()).boxed_local()
}

fn id_of(path: &ResourcePath, value: &Value) -> ObjectId {
    let metadata = &value["metadata"];
    path.id(
        metadata["namespace"].as_str(),
        metadata["name"].as_str().unwrap_or_default(),
    )
}

async fn until(at: Option<Instant>) {
    match at {
        Some(at) => sleep_until(at).await,
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests;
