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
use self::subscription::Mailbox;
use super::environment::pass_on;
use pleach_cluster::{Class, Cluster, ClusterError, Connection, Heard, ResourcePath, Selector};
use pleach_engine::words;

pub(super) use self::subscription::Left;

/// Delay before a forbidden watch is retried.
const FORBIDDEN: Duration = Duration::from_mins(10);
/// Limit on watched runtime objects per release. The interval finds changes of the others.
const EXPECTED: usize = 16;
/// Window in which changes are combined into one reconcile.
const GATHER: Duration = Duration::from_millis(50);

/// Members on all connections; `None` if watches are disabled.
#[derive(Debug, Clone)]
pub(super) struct Watches(Option<Known>);

/// Identity of a connection with its members.
type Member = (Made, Weak<Inner>);

/// Connections with subscribed members.
#[derive(Debug, Clone)]
struct Known {
    members: Arc<Mutex<Vec<Member>>>,
    /// Channel for new connections that are not watched yet.
    unfollowed: mpsc::UnboundedSender<Asked>,
}

/// A connection with the fingerprint of its kubeconfig. A changed kubeconfig makes another
/// connection.
type Made = (Connection, Option<Digest>);

/// Members with the connection that they are on.
pub(super) type Asked = (Members, Cluster);

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
    listeners: HashMap<ObjectId, Vec<Arc<Mailbox>>>,
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
    /// Wakes the watch task when the last subscriber is dropped. On the single thread of the
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
    mailbox: Arc<Mailbox>,
    ids: BTreeSet<ObjectId>,
    expected: BTreeSet<ObjectId>,
}

/// Stream of changes in a scope. The last part of a list comes with the ids of the earlier parts.
type Changes = LocalBoxStream<'static, (Scope, Result<Heard, ClusterError>, BTreeSet<ObjectId>)>;

impl Watches {
    /// Creates the watches, if enabled, and the receiver for [`follow_all`].
    pub(super) fn new(is_enabled: bool) -> (Self, mpsc::UnboundedReceiver<Asked>) {
        let (unfollowed, asked) = mpsc::unbounded_channel();
        let known = Known {
            members: Arc::default(),
            unfollowed,
        };
        (Self(is_enabled.then_some(known)), asked)
    }

    /// Returns the members on a connection.
    pub(super) fn on(&self, made: Made, cluster: &Cluster) -> Option<Members> {
        let known = self.0.as_ref()?;
        let (members, is_new) = known.on(made);
        if is_new {
            // The receiver is gone only at shutdown.
            drop(known.unfollowed.send((members.clone(), cluster.clone())));
        }
        Some(members)
    }
}

impl Known {
    /// Returns the members on a connection, and whether they are new.
    fn on(&self, made: Made) -> (Members, bool) {
        let mut known = self.members.lock().unwrap_or_else(PoisonError::into_inner);
        known.retain(|(_, members)| members.strong_count() > 0);
        let found = known.iter().find(|(one, _)| *one == made);
        if let Some(members) = found.and_then(|(_, members)| members.upgrade()) {
            return (Members(members), false);
        }
        let members = Members::default();
        known.push((made, Arc::downgrade(&members.0)));
        (members, true)
    }
}

/// Watches the members of all connections until shutdown. A watch can outlive the environment that
/// connected first.
pub(super) async fn follow_all(mut asked: mpsc::UnboundedReceiver<Asked>, stop: CancellationToken) {
    let mut following = JoinSet::new();
    loop {
        tokio::select! {
            () = stop.cancelled() => return,
            Some((members, cluster)) = asked.recv() => {
                following.spawn_local(members.follow(cluster, stop.clone()));
            }
            Some(ended) = following.join_next() => pass_on(ended),
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
            mailbox: Arc::new(Mailbox::new(manager)),
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
            let begun = {
                let state = self.lock();
                scopes.adjust(&state.kinds, &state.expected, Instant::now())
            };
            for (scope, ending) in begun {
                changes.push(follow(&cluster, scope, ending));
            }
            let retry = scopes.retry_at();
            loop {
                tokio::select! {
                    () = stop.cancelled() => return,
                    () = self.0.changed.notified() => break,
                    () = until(retry) => break,
                    Some((scope, change, parts)) = changes.next(), if !changes.is_empty() => {
                        if self.hear(&scope, change, &parts) {
                            scopes.close(scope, Instant::now() + FORBIDDEN);
                            break;
                        }
                    }
                }
            }
        }
    }

    /// Distributes an event to the releases. Returns true if the watch has ended.
    fn hear(
        &self,
        scope: &Scope,
        change: Result<Heard, ClusterError>,
        parts: &BTreeSet<ObjectId>,
    ) -> bool {
        let report = |value: &Value| {
            let id = id_of(&scope.path, value);
            self.report(&id, Some(value));
            id
        };
        match change {
            Ok(Heard::Applied(value)) => {
                let id = report(&value);
                self.stir(&id);
            }
            // The object is deleted or lost its label.
            Ok(Heard::Deleted(value)) => self.report(&id_of(&scope.path, &value), None),
            Ok(Heard::Part(values)) => values.iter().for_each(|value| drop(report(value))),
            Ok(Heard::Rest(values)) => {
                self.note(scope, true);
                let mut missing = self.within(scope);
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
                    self.note(scope, false);
                }
                tracing::debug!(%scope, error = %words(&error), "the watch failed");
            }
        }
        false
    }

    fn report(&self, id: &ObjectId, live: Option<&Value>) {
        let state = self.lock();
        for mailbox in state.listeners.get(id).into_iter().flatten() {
            mailbox.hear(id, live.map(|live| &live["metadata"]));
        }
    }

    /// Notifies the releases of a write to an object.
    fn stir(&self, id: &ObjectId) {
        let state = self.lock();
        for mailbox in state.listeners.get(id).into_iter().flatten() {
            mailbox.stirred(id);
        }
    }

    /// Records whether a kind is still served at the watched path.
    fn note(&self, scope: &Scope, is_served: bool) {
        let mut state = self.lock();
        if let Some(kind) = state.kinds.get_mut(&scope.path.group_kind())
            && kind.path.as_ref() == Some(&scope.path)
        {
            kind.is_unserved = !is_served;
        }
    }

    /// Returns the members that a list of the scope would contain.
    fn within(&self, scope: &Scope) -> BTreeSet<ObjectId> {
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
        state.listeners.keys().filter(is_within).cloned().collect()
    }
}

impl Subscription {
    /// Returns whether the subscription is to these members.
    pub(super) fn is_to(&self, members: &Members) -> bool {
        self.members.is_same(members)
    }

    /// Replaces the subscribed objects at the start of a reconcile. Events are buffered until
    /// [`Subscription::settle`]. Returns the objects with changes found before.
    pub(super) fn begin(&mut self, ids: BTreeSet<ObjectId>) -> BTreeSet<ObjectId> {
        let mut state = self.members.lock();
        let mut is_other = false;
        // An object of a manifest is no longer a runtime object.
        for id in self.expected.extract_if(.., |id| ids.contains(id)) {
            state.forget(&id, &self.mailbox);
            is_other = true;
        }
        for id in self.ids.difference(&ids) {
            state.remove(id, &self.mailbox);
            is_other = true;
        }
        for id in ids.difference(&self.ids) {
            state.add(id, &self.mailbox);
            is_other = true;
        }
        drop(state);
        if is_other {
            self.mailbox.expect(&self.expected);
        }
        self.ids = ids;
        let changed = self.mailbox.begin();
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
            let is_elsewhere = kind.path.as_ref() != Some(&path);
            if kind.path.is_none() || kind.is_unserved && is_elsewhere {
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
        let objects: BTreeMap<ObjectId, ResourcePath> = objects.take(EXPECTED).collect();
        let ids: BTreeSet<ObjectId> = objects.keys().cloned().collect();
        if ids == self.expected {
            return;
        }
        let mut state = self.members.lock();
        for id in &self.expected {
            state.forget(id, &self.mailbox);
        }
        for (id, path) in objects {
            state.expect(&id, path, &self.mailbox);
        }
        drop(state);
        self.mailbox.expect(&ids);
        self.expected = ids;
        self.members.0.changed.notify_one();
    }

    /// Returns whether one of the objects is a runtime object.
    pub(super) fn expects_any(&self, ids: &BTreeSet<ObjectId>) -> bool {
        !self.expected.is_disjoint(ids)
    }

    /// Ends the buffering after a reconcile. `left` is the new state of the objects, if it changed.
    pub(super) fn settle(&self, left: Option<Left>) {
        self.mailbox.settle(left);
    }

    /// Returns the API path of a kind, if known.
    pub(super) fn path(&self, kind: &GroupKind) -> Option<ResourcePath> {
        self.members.lock().kinds.get(kind)?.path.clone()
    }

    /// Marks all objects for a readiness check.
    pub(super) fn stir(&self) {
        self.mailbox.stir();
    }

    /// Waits until objects need a readiness check or until `due`, and returns the objects. Written
    /// objects are returned only after `calm` has passed.
    pub(super) async fn stirred(&self, calm: Duration, due: Option<Instant>) -> BTreeSet<ObjectId> {
        let stirred = async {
            // The delay counts from the first write, even if the release is reconciled meanwhile.
            let since = self.mailbox.is_stirred().await;
            sleep_until(since + calm).await;
        };
        tokio::select! {
            () = stirred => {}
            () = until(due) => {}
        }
        self.mailbox.take_stirred()
    }

    /// Treats every further event of the objects as a change.
    pub(super) fn alert(&self) {
        self.mailbox.alert();
    }

    /// Waits for changed objects, at least until `calm_at`, and returns them. Objects that were
    /// changed back meanwhile are not included.
    pub(super) async fn changes(&self, calm_at: Instant) -> BTreeSet<ObjectId> {
        loop {
            self.mailbox.changed().await;
            // Combine several changes into one.
            sleep_until(calm_at.max(Instant::now() + GATHER)).await;
            let changed = self.mailbox.take();
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
            state.remove(id, &self.mailbox);
        }
        for id in &self.expected {
            state.forget(id, &self.mailbox);
        }
        drop(state);
        self.members.0.changed.notify_one();
    }
}

impl State {
    fn add(&mut self, id: &ObjectId, mailbox: &Arc<Mailbox>) {
        let listeners = self.listeners.entry(id.clone()).or_default();
        listeners.push(Arc::clone(mailbox));
        let kind = self.kinds.entry(id.group_kind()).or_default();
        *kind.members.entry(id.namespace.clone()).or_default() += 1;
    }

    /// Adds a runtime object.
    fn expect(&mut self, id: &ObjectId, path: ResourcePath, mailbox: &Arc<Mailbox>) {
        let listeners = self.listeners.entry(id.clone()).or_default();
        listeners.push(Arc::clone(mailbox));
        let expected = self.expected.entry(id.clone());
        expected.or_insert(Expected { path, count: 0 }).count += 1;
    }

    /// Removes a runtime object.
    fn forget(&mut self, id: &ObjectId, mailbox: &Arc<Mailbox>) {
        self.silence(id, mailbox);
        if let Some(expected) = self.expected.get_mut(id) {
            expected.count -= 1;
            if expected.count == 0 {
                self.expected.remove(id);
            }
        }
    }

    fn silence(&mut self, id: &ObjectId, mailbox: &Arc<Mailbox>) {
        if let Some(listeners) = self.listeners.get_mut(id) {
            listeners.retain(|one| !Arc::ptr_eq(one, mailbox));
            if listeners.is_empty() {
                self.listeners.remove(id);
            }
        }
    }

    fn remove(&mut self, id: &ObjectId, mailbox: &Arc<Mailbox>) {
        self.silence(id, mailbox);
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
        let before = if let Ok(Heard::Part(values)) = &change {
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
