//! Changes of members as they happen: one metadata watch per kind of object and
//! connection, for all releases.
//!
//! What is kept is the members of the releases, and nothing of any other object:
//! who wants to hear of each, and how it was left. What is heard of an object
//! that is as it was left (by the rule of [`is_unchanged`](pleach_domain::observe::is_unchanged)) wakes nobody.
//!
//! A watch only ever makes the loop look earlier. One that breaks begins with a
//! list, in which everything that was missed shows; where a kind may not be
//! watched in the whole cluster it is watched in the namespaces of the members,
//! and where that is not allowed either, the interval finds it.

mod mailbox;
mod scopes;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use futures::StreamExt as _;
use futures::stream::{LocalBoxStream, SelectAll};
use pleach_domain::object::{Digest, GroupKind, ObjectId, labels};
use serde_json::Value;
use tokio::sync::{Notify, mpsc};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

use self::mailbox::Mailbox;
use self::scopes::{Scope, Scopes};
use super::environment::pass_on;
use crate::engine::words;
use crate::io::cluster::{Class, Cluster, ClusterError, Connection, Heard, ResourcePath, Selector};

pub(super) use self::mailbox::Left;

/// When a watch that was forbidden is tried again.
const FORBIDDEN: Duration = Duration::from_mins(10);
/// Run-time objects of a release that are watched: the interval finds more.
const EXPECTED: usize = 16;
/// Changes within this time are looked at together.
const GATHER: Duration = Duration::from_millis(50);

/// The members on all connections; none where nobody wants watches.
#[derive(Debug, Clone)]
pub(super) struct Watches(Option<Known>);

/// How a connection was made, and what is known of it.
type Member = (Made, Weak<Inner>);

/// The connections that somebody has members on.
#[derive(Debug, Clone)]
struct Known {
    members: Arc<Mutex<Vec<Member>>>,
    /// Where new ones are handed to, which are followed by nobody yet.
    unfollowed: mpsc::UnboundedSender<Asked>,
}

/// A connection, and which kubeconfig it was made from: one that changed makes
/// another.
type Made = (Connection, Option<Digest>);

/// Members, and the connection that they are on.
pub(super) type Asked = (Members, Cluster);

/// The members of all releases on one connection.
#[derive(Debug, Clone, Default)]
pub(super) struct Members(Arc<Inner>);

#[derive(Debug, Default)]
struct Inner {
    state: Mutex<State>,
    /// Another set of kinds or namespaces is to be watched.
    changed: Notify,
}

#[derive(Debug, Default)]
struct State {
    listeners: HashMap<ObjectId, Vec<Arc<Mailbox>>>,
    kinds: BTreeMap<GroupKind, Kind>,
    expected: BTreeMap<ObjectId, Expected>,
}

/// A run-time object that releases declare.
#[derive(Debug)]
struct Expected {
    path: ResourcePath,
    /// How many releases declare it.
    count: usize,
}

/// A kind of which somebody has members.
#[derive(Debug, Default)]
struct Kind {
    /// Where it is served, as far as anybody knows.
    path: Option<ResourcePath>,
    /// The server says that it is not served there any more.
    is_unserved: bool,
    /// By their namespaces.
    members: BTreeMap<Option<String>, usize>,
}

impl Drop for Members {
    /// Wakes who follows them when nobody else is left: on the one thread of the
    /// loop it looks when this one is gone.
    fn drop(&mut self) {
        if Arc::strong_count(&self.0) == 2 {
            self.0.changed.notify_one();
        }
    }
}

/// One release that wants to hear of its members, until this is dropped.
#[derive(Debug)]
pub(super) struct Subscription {
    members: Members,
    mailbox: Arc<Mailbox>,
    ids: BTreeSet<ObjectId>,
    expected: BTreeSet<ObjectId>,
}

/// Changes within a scope. With the rest of a list come the ids of its other parts.
type Changes = LocalBoxStream<'static, (Scope, Result<Heard, ClusterError>, BTreeSet<ObjectId>)>;

impl Watches {
    /// Watches, where they are wanted, and what [`follow_all`] needs.
    pub(super) fn new(wanted: bool) -> (Self, mpsc::UnboundedReceiver<Asked>) {
        let (unfollowed, asked) = mpsc::unbounded_channel();
        let known = Known {
            members: Arc::default(),
            unfollowed,
        };
        (Self(wanted.then_some(known)), asked)
    }

    /// The members on a connection.
    pub(super) fn on(&self, made: Made, cluster: &Cluster) -> Option<Members> {
        let known = self.0.as_ref()?;
        let (members, is_new) = known.on(made);
        if is_new {
            // Nobody follows any more when the loop ends.
            drop(known.unfollowed.send((members.clone(), cluster.clone())));
        }
        Some(members)
    }
}

impl Known {
    /// The members on a connection, and whether they are new.
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

/// Follows the members on every connection until the loop ends: longer than the
/// environment that connected first.
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

    /// Whether these are the same members.
    pub(super) fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// Somebody wants to hear of its members.
    pub(super) fn subscribe(&self, manager: String) -> Subscription {
        Subscription {
            members: self.clone(),
            mailbox: Arc::new(Mailbox::new(manager)),
            ids: BTreeSet::new(),
            expected: BTreeSet::new(),
        }
    }

    /// Follows the members until the loop ends.
    pub(super) async fn follow(self, cluster: Cluster, stop: CancellationToken) {
        let mut scopes = Scopes::default();
        let mut changes: SelectAll<Changes> = SelectAll::new();
        loop {
            if Arc::strong_count(&self.0) == 1 {
                // Nobody else has them.
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

    /// Tells the releases what was heard; true where nothing more will be.
    fn hear(
        &self,
        scope: &Scope,
        change: Result<Heard, ClusterError>,
        parts: &BTreeSet<ObjectId>,
    ) -> bool {
        let tell = |value: &Value| {
            let id = id_of(&scope.path, value);
            self.tell(&id, Some(value));
            id
        };
        match change {
            Ok(Heard::Applied(value)) => {
                let id = tell(&value);
                self.stir(&id);
            }
            // Gone, or without its label.
            Ok(Heard::Deleted(value)) => self.tell(&id_of(&scope.path, &value), None),
            Ok(Heard::Part(values)) => values.iter().for_each(|value| drop(tell(value))),
            Ok(Heard::Rest(values)) => {
                self.note(scope, true);
                let mut missing = self.within(scope);
                missing.retain(|id| !parts.contains(id));
                for value in &values {
                    missing.remove(&tell(value));
                }
                for id in missing {
                    self.tell(&id, None);
                }
            }
            Err(error) if error.class() == Some(&Class::Forbidden) => {
                tracing::info!(%scope, error = %words(&error), "changes may not be watched");
                return true;
            }
            // It begins anew by itself, with a list.
            Err(error) => {
                if error.class() == Some(&Class::KindNotServed) && scope.name.is_none() {
                    self.note(scope, false);
                }
                tracing::debug!(%scope, error = %words(&error), "changes cannot be watched");
            }
        }
        false
    }

    fn tell(&self, id: &ObjectId, live: Option<&Value>) {
        let state = self.lock();
        for mailbox in state.listeners.get(id).into_iter().flatten() {
            mailbox.hear(id, live.map(|live| &live["metadata"]));
        }
    }

    /// Tells the releases that something was written to an object.
    fn stir(&self, id: &ObjectId) {
        let state = self.lock();
        for mailbox in state.listeners.get(id).into_iter().flatten() {
            mailbox.stirred(id);
        }
    }

    /// Notes whether a kind is still served where it is watched.
    fn note(&self, scope: &Scope, is_served: bool) {
        let mut state = self.lock();
        if let Some(kind) = state.kinds.get_mut(&scope.path.group_kind())
            && kind.path.as_ref() == Some(&scope.path)
        {
            kind.is_unserved = !is_served;
        }
    }

    /// The members that a list of the scope would have.
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
    /// Whether it is one to these members.
    pub(super) fn is_to(&self, members: &Members) -> bool {
        self.members.is_same(members)
    }

    /// Is about these objects from now on. What is heard of them is held until
    /// [`Subscription::settle`]: somebody is about to look at them. Gives what
    /// was found to be changed before.
    pub(super) fn begin(&mut self, ids: BTreeSet<ObjectId>) -> BTreeSet<ObjectId> {
        let mut state = self.members.lock();
        let mut is_other = false;
        // An object of a manifest is none of them any more.
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

    /// Says where kinds are served. One that is watched elsewhere stays so as long as
    /// it is served there: releases may want it in several versions.
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

    /// Reports these run-time objects too when they appear: an object that is not
    /// recorded with its uid is a change.
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

    /// Whether one of the objects is a run-time object.
    pub(super) fn expects_any(&self, ids: &BTreeSet<ObjectId>) -> bool {
        !self.expected.is_disjoint(ids)
    }

    /// Somebody has looked. Where the objects were left otherwise than before,
    /// `left` says how.
    pub(super) fn settle(&self, left: Option<Left>) {
        self.mailbox.settle(left);
    }

    /// Where a kind is served, as far as that is known.
    pub(super) fn path(&self, kind: &GroupKind) -> Option<ResourcePath> {
        self.members.lock().kinds.get(kind)?.path.clone()
    }

    /// All objects are to be looked at, whether they are ready.
    pub(super) fn stir(&self) {
        self.mailbox.stir();
    }

    /// Waits until objects may not be ready any more, or until a time, and gives them.
    /// What is written to is not given before some time has gone.
    pub(super) async fn stirred(&self, calm: Duration, due: Option<Instant>) -> BTreeSet<ObjectId> {
        let stirred = async {
            // However often somebody looks at the release meanwhile.
            let since = self.mailbox.is_stirred().await;
            sleep_until(since + calm).await;
        };
        tokio::select! {
            () = stirred => {}
            () = until(due) => {}
        }
        self.mailbox.take_stirred()
    }

    /// From now on everything that is heard of the objects counts as a change.
    pub(super) fn alert(&self) {
        self.mailbox.alert();
    }

    /// Waits until objects are found to be changed, at least until `calm_at`, and
    /// gives them. What was changed back meanwhile is not among them.
    pub(super) async fn changes(&self, calm_at: Instant) -> BTreeSet<ObjectId> {
        loop {
            self.mailbox.changed().await;
            // Several changes at once are one.
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

    /// Adds a run-time object.
    fn expect(&mut self, id: &ObjectId, path: ResourcePath, mailbox: &Arc<Mailbox>) {
        let listeners = self.listeners.entry(id.clone()).or_default();
        listeners.push(Arc::clone(mailbox));
        let expected = self.expected.entry(id.clone());
        expected.or_insert(Expected { path, count: 0 }).count += 1;
    }

    /// Removes a run-time object.
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
        // Run-time objects carry no labels of ours.
        labels: scope.name.is_none().then_some(labels::PART_OF),
        fields: field.as_deref(),
    };
    let changes = cluster.follow_in_parts(&scope.path, &selector);
    let told = changes.scan(BTreeSet::new(), move |parts, change| {
        let before = if let Ok(Heard::Part(values)) = &change {
            parts.extend(values.iter().map(|value| id_of(&scope.path, value)));
            BTreeSet::new()
        } else {
            std::mem::take(parts)
        };
        std::future::ready(Some((scope.clone(), change, before)))
    });
    told.take_until(ending.cancelled_owned()).boxed_local()
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
