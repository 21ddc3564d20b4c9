//! Cache of answers that several connections share.
//!
//! The releases of an environment send similar requests at about the same time: discovery,
//! registrations, and lists of their objects. A connection that reads [as of](Cluster::as_of) a
//! moment accepts any answer that was requested at that moment or later. Without one it sends the
//! request, and other connections wait for its answer. So no answer is older than the caller
//! allows.
//!
//! Objects of single releases are listed for all releases by their label. Only reads are shared,
//! and only where the caller opts in.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use http::HeaderValue;
use pleach_model::discovery::Discovery;
use pleach_model::object::{ObjectId, labels};
use serde_json::{Map, Value};
use tokio::time::Instant;

use super::objects::with_type;
use super::transport::{Call, Reply};
use super::{ApiError, Class, Cluster, ClusterError, Depth, ResourcePath, Selector};

/// Labels whose values identify a release.
const LABELS: [&str; 2] = [labels::PART_OF, labels::RELEASE];
/// How long an unused answer is cached.
const RETENTION: Duration = Duration::from_mins(1);

type Answer<T> = Result<T, Box<ApiError>>;

/// Cache entry with the last answer to a query.
#[derive(Debug)]
struct Slot<T> {
    stored: tokio::sync::Mutex<Option<Stored<T>>>,
    /// Number of finished attempts.
    attempts: AtomicU64,
}

/// Cached answer.
#[derive(Debug)]
struct Stored<T> {
    requested_at: Instant,
    /// Sequence number of the attempt that produced it.
    attempt: u64,
    answer: Answer<T>,
}

impl<T> Default for Slot<T> {
    fn default() -> Self {
        Self {
            stored: tokio::sync::Mutex::default(),
            attempts: AtomicU64::default(),
        }
    }
}

impl<T: Clone> Slot<T> {
    /// Returns the last answer if it was requested at `since` or later. Otherwise requests a new
    /// one. A failure is shared only with callers that waited for the same attempt.
    async fn get(&self, since: Instant, ask: impl Future<Output = Answer<T>>) -> Answer<T> {
        let before = self.attempts.load(Ordering::Acquire);
        let mut stored = self.stored.lock().await;
        if let Some(Stored {
            requested_at,
            attempt,
            answer,
        }) = &*stored
            && *requested_at >= since
            && (answer.is_ok() || *attempt > before)
        {
            return answer.clone();
        }
        let requested_at = Instant::now();
        let answer = ask.await;
        *stored = Some(Stored {
            requested_at,
            attempt: self.attempts.fetch_add(1, Ordering::AcqRel) + 1,
            answer: answer.clone(),
        });
        answer
    }
}

/// Objects of a kind as text, by release or by name. A tree would need ten times the memory.
#[derive(Debug, Default)]
struct Parts {
    texts: HashMap<String, Vec<Box<str>>>,
    resource_version: String,
}

/// Cache entries of one type of query, with the time of their last use.
#[derive(Debug)]
struct Slots<T>(Mutex<ByQuery<T>>);

/// Cache entries by query.
type ByQuery<T> = HashMap<String, (Instant, Arc<Slot<T>>)>;

impl<T> Default for Slots<T> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<T> Slots<T> {
    fn of(&self, question: String) -> Arc<Slot<T>> {
        let now = Instant::now();
        let mut slots: MutexGuard<'_, _> = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        slots.retain(|_, (used, _)| now.duration_since(*used) < RETENTION);
        let (used, slot) = slots
            .entry(question)
            .or_insert_with(|| (now, Arc::default()));
        *used = now;
        Arc::clone(slot)
    }
}

/// Cache that all clones of a connection share.
#[derive(Debug, Clone)]
pub(super) struct Shared(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    /// User agent of shared requests, which belong to no single release.
    user_agent: HeaderValue,
    replies: Slots<Reply>,
    parts: Slots<Arc<Parts>>,
    discovery: Slot<Arc<Discovery>>,
}

/// Use of the shared cache by a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Taking {
    /// No use: every request is sent.
    Nothing,
    /// Accepts shared lists of release objects and discovery, requested at this moment or later.
    Since(Instant),
    /// Accepts shared answers to all reads, requested at this moment or later.
    Everything(Instant),
}

impl Shared {
    pub(super) fn new(user_agent: HeaderValue) -> Self {
        Self(Arc::new(Inner {
            user_agent,
            replies: Slots::default(),
            parts: Slots::default(),
            discovery: Slot::default(),
        }))
    }
}

impl Cluster {
    /// Returns this connection for reads that accept shared answers, requested at this moment or
    /// later.
    #[must_use]
    pub fn as_of(mut self, moment: Instant) -> Self {
        self.taking = Taking::Since(moment);
        self
    }

    /// Returns this connection without shared answers, for reads before and after a write.
    #[must_use]
    pub fn alone(mut self) -> Self {
        self.taking = Taking::Nothing;
        self
    }

    /// Returns this connection with shared answers for all reads, for queries that are the same for
    /// all releases.
    #[must_use]
    pub fn common(&self) -> Self {
        let mut common = self.clone();
        if let Taking::Since(moment) = self.taking {
            common.taking = Taking::Everything(moment);
        }
        common
    }

    /// Returns the connection that sends shared requests.
    fn asker(&self) -> Self {
        let mut asker = self.clone().alone();
        asker.user_agent.clone_from(&self.shared.0.user_agent);
        asker
    }

    /// Sends a read request, unless a shared answer exists.
    pub(super) async fn send_shared(
        &self,
        since: Instant,
        call: Call<'_>,
    ) -> Result<Reply, Box<ApiError>> {
        let slot = self
            .shared
            .0
            .replies
            .of(format!("{} {}", call.accept, call.url));
        let asker = self.asker();
        slot.get(since, asker.send_now(call)).await
    }

    /// Returns the discovery, from the cache if possible.
    pub(super) async fn discovery_shared(
        &self,
        since: Instant,
    ) -> Result<Discovery, Box<ApiError>> {
        let asker = self.asker();
        let asking = async { asker.ask_discovery().await.map(Arc::new) };
        let found = Box::pin(self.shared.0.discovery.get(since, asking)).await?;
        Ok(Discovery::clone(&found))
    }

    /// Returns the objects that a selector picks by a release label, from the shared list of all
    /// releases. `None` if the selector has another form.
    pub(super) async fn of_release(
        &self,
        path: &ResourcePath,
        selector: &Selector<'_>,
        depth: Depth,
    ) -> Option<Result<(Vec<Value>, String), Box<ApiError>>> {
        let (Taking::Since(since) | Taking::Everything(since)) = self.taking else {
            return None;
        };
        let (key, value) = selector.labels?.split_once('=')?;
        if !LABELS.contains(&key) || value.contains(',') || selector.fields.is_some() {
            return None;
        }
        let label = |object: &Value| {
            object["metadata"]["labels"][key]
                .as_str()
                .map(str::to_owned)
        };
        let here = Selector {
            labels: Some(key),
            ..*selector
        };
        // State objects are in one namespace, members in any namespace.
        let may_be_anywhere = key == labels::PART_OF && here.namespace.is_some();
        if may_be_anywhere && !self.refusals.are_recent() {
            let everywhere = Selector {
                namespace: None,
                ..here
            };
            let parts = self.parts(since, (path, &everywhere, depth), label).await;
            if let Err(error) = &parts
                && error.class == Class::Forbidden
            {
                self.refusals.remember(&path.plural, error);
            } else {
                return Some(parts.map(|parts| parts.within(value, here.namespace)));
            }
        }
        let parts = self.parts(since, (path, &here, depth), label).await;
        Some(parts.map(|parts| parts.within(value, None)))
    }

    /// Reads an object from the shared list of its kind if this connection uses shared answers.
    /// Otherwise reads it by name.
    pub async fn get_among(
        &self,
        path: &ResourcePath,
        id: &ObjectId,
    ) -> Result<Option<Value>, ClusterError> {
        let (Taking::Since(since) | Taking::Everything(since)) = self.taking else {
            return self.get_id(path, id).await;
        };
        let name = |object: &Value| object["metadata"]["name"].as_str().map(str::to_owned);
        let all = Selector::namespace(id.namespace.as_deref());
        match self.parts(since, (path, &all, Depth::Full), name).await {
            Ok(parts) => Ok(parts.within(&id.name, None).0.pop()),
            // Without the permission to list, reading by name can still be allowed.
            Err(error) if error.class == Class::Forbidden => self.get_id(path, id).await,
            Err(source) => Err(ClusterError::Get {
                id: id.clone(),
                source,
            }),
        }
    }

    async fn parts(
        &self,
        since: Instant,
        (path, selector, depth): (&ResourcePath, &Selector<'_>, Depth),
        key: impl Fn(&Value) -> Option<String>,
    ) -> Answer<Arc<Parts>> {
        let question = format!(
            "{depth:?} {} {} {} {}",
            path.api_version,
            path.plural,
            selector.namespace.unwrap_or_default(),
            selector.labels.unwrap_or_default()
        );
        let slot = self.shared.0.parts.of(question);
        let asker = self.asker();
        let asking = async {
            let keep = |object: Map<String, Value>| {
                let object = with_type(object, path);
                key(&object).map(|key| (key, object.to_string().into_boxed_str()))
            };
            let (objects, resource_version) = asker.pick_all(path, selector, depth, keep).await?;
            let mut texts: HashMap<String, Vec<Box<str>>> = HashMap::new();
            for (key, text) in objects {
                texts.entry(key).or_default().push(text);
            }
            Ok::<_, Box<ApiError>>(Arc::new(Parts {
                texts,
                resource_version,
            }))
        };
        slot.get(since, asking).await
    }
}

impl Parts {
    /// Returns the objects of one release, in one or all namespaces, and the version of the list.
    fn within(&self, key: &str, namespace: Option<&str>) -> (Vec<Value>, String) {
        let texts = self.texts.get(key).into_iter().flatten();
        // We serialized the text ourselves, so parsing does not fail.
        let values = texts.filter_map(|text| serde_json::from_str(text).ok());
        let is_there = |value: &Value| {
            namespace.is_none_or(|namespace| value["metadata"]["namespace"] == namespace)
        };
        let values = values.filter(is_there).collect();
        (values, self.resource_version.clone())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;

    use super::*;

    async fn ask(slot: &Slot<usize>, requests: &AtomicUsize, since: Instant) -> usize {
        let asking = async {
            tokio::time::sleep(Duration::from_secs(1)).await;
            Ok(requests.fetch_add(1, Ordering::Relaxed) + 1)
        };
        slot.get(since, asking).await.unwrap()
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_requested_before_the_minimum_time_is_not_shared() {
        let (slot, requests) = (Slot::default(), AtomicUsize::new(0));
        let begun = Instant::now();
        let all = (0..100).map(|_| ask(&slot, &requests, begun));
        assert_eq!(futures::future::join_all(all).await, [1; 100]);
        // A running request started too early for a caller that arrives later.
        let (early, late) = tokio::join!(ask(&slot, &requests, Instant::now()), async {
            tokio::time::sleep(Duration::from_millis(500)).await;
            let now = Instant::now();
            futures::future::join_all((0..10).map(|_| ask(&slot, &requests, now))).await
        });
        assert_eq!((early, late), (2, vec![3; 10]));
        assert_eq!(ask(&slot, &requests, begun).await, 3);
    }

    #[tokio::test(start_paused = true)]
    async fn a_failure_is_requested_again() {
        let (slot, requests) = (Slot::<usize>::default(), AtomicUsize::new(0));
        let begun = Instant::now();
        // Only the first attempt fails.
        let ask = || {
            let asking = async {
                tokio::time::sleep(Duration::from_secs(1)).await;
                match requests.fetch_add(1, Ordering::Relaxed) {
                    0 => Err(Box::new(ApiError::local(Class::Unreachable, "away"))),
                    before => Ok(before + 1),
                }
            };
            slot.get(begun, asking)
        };
        // All waiting callers share the failure.
        let all = futures::future::join_all((0..10).map(|_| ask())).await;
        assert!(all.iter().all(Result::is_err));
        assert_eq!(requests.load(Ordering::Relaxed), 1);
        assert_eq!(ask().await.unwrap(), 2);
        assert_eq!(ask().await.unwrap(), 2);
    }

    #[tokio::test(start_paused = true)]
    async fn unused_answers_are_evicted() {
        let slots: Slots<usize> = Slots::default();
        let requests = AtomicUsize::new(0);
        let begun = Instant::now();
        assert_eq!(ask(&slots.of("a".to_owned()), &requests, begun).await, 1);
        assert_eq!(ask(&slots.of("a".to_owned()), &requests, begun).await, 1);
        tokio::time::sleep(RETENTION).await;
        slots.of("b".to_owned());
        assert_eq!(slots.0.lock().unwrap().len(), 1);
        assert_eq!(ask(&slots.of("a".to_owned()), &requests, begun).await, 2);
    }
}
