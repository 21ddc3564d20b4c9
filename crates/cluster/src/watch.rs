//! Watches.
//!
//! A silent watch is reopened, because a dead connection looks like a quiet cluster.

use std::collections::VecDeque;
use std::fmt;
use std::time::Duration;

use bytes::{Buf as _, BytesMut};
use futures::{Stream, stream};
use http_body_util::BodyExt as _;
use kube::client::Body;
use serde::Deserialize;
use serde_json::{Map, Value};
use tokio::time::{Instant, sleep, timeout};

use super::classify::{Question, Verb};
use super::mask::Mask;
use super::objects::{brief, with_type};
use super::path::with_query;
use super::retry::pause;
use super::status::Status;
use super::transport::{About, Call, JSON, classify};
use super::{ApiError, Class, Cluster, ClusterError, ResourcePath, Selector};

/// Media type for metadata only.
const METADATA: &str =
    "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1,application/json";

/// Shortest life of a healthy watch. A watch that ends sooner counts as failed.
const SHORTEST: Duration = Duration::from_secs(1);

/// Requested part of the objects.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Depth {
    /// Whole objects.
    Full,
    /// Metadata. A server without support for it sends whole objects.
    Metadata,
}

/// Message of a single watch.
#[derive(Clone, PartialEq)]
pub enum WatchEvent {
    /// An object exists or has changed.
    Applied(Value),
    /// An object was deleted or no longer matches.
    Deleted(Value),
    /// No change up to this version.
    Bookmark {
        /// Version from which the next watch continues.
        resource_version: String,
    },
    /// The server no longer stores the version to start from. List again.
    Expired,
}

/// Message of an endless watch with lists in parts. A large list is never in memory as a whole.
#[derive(Clone, PartialEq)]
pub enum FollowedPart<T = Value> {
    /// Part of a list; more parts follow. An error discards the parts so far.
    Part(Vec<T>),
    /// Last part of a list. Known objects that are in none of the parts are deleted.
    LastPart(Vec<T>),
    /// An object exists or has changed.
    Applied(T),
    /// An object was deleted or no longer matches.
    Deleted(T),
}

/// Message of an endless watch.
#[derive(Clone, PartialEq)]
pub enum Followed<T = Value> {
    /// All objects. Known objects that are not in the list are deleted.
    Listed(Vec<T>),
    /// An object exists or has changed.
    Applied(T),
    /// An object was deleted or no longer matches.
    Deleted(T),
}

impl fmt::Debug for WatchEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Applied(value) => write!(f, "Applied({})", brief(value)),
            Self::Deleted(value) => write!(f, "Deleted({})", brief(value)),
            Self::Bookmark { resource_version } => write!(f, "Bookmark({resource_version})"),
            Self::Expired => f.write_str("Expired"),
        }
    }
}

impl fmt::Debug for FollowedPart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Part(values) | Self::LastPart(values) => {
                f.debug_list().entries(values.iter().map(brief)).finish()
            }
            Self::Applied(value) => write!(f, "Applied({})", brief(value)),
            Self::Deleted(value) => write!(f, "Deleted({})", brief(value)),
        }
    }
}

impl fmt::Debug for Followed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Listed(values) => f.debug_list().entries(values.iter().map(brief)).finish(),
            Self::Applied(value) => write!(f, "Applied({})", brief(value)),
            Self::Deleted(value) => write!(f, "Deleted({})", brief(value)),
        }
    }
}

impl Cluster {
    /// Watches from the version of a list. The stream ends when the server ends it, after at most
    /// the watch time-out, or after [`WatchEvent::Expired`].
    pub fn watch(
        &self,
        path: &ResourcePath,
        selector: &Selector<'_>,
        resource_version: &str,
        depth: Depth,
    ) -> impl Stream<Item = Result<WatchEvent, ClusterError>> + Send + use<> {
        let watch = Watch::new(self.clone(), path, selector, resource_version, depth);
        stream::unfold(Some(watch), |watch| async {
            let mut watch = watch?;
            match watch.next().await {
                Ok(Some(event)) => {
                    let is_expired = event == WatchEvent::Expired;
                    Some((Ok(event), (!is_expired).then_some(watch)))
                }
                Ok(None) => None,
                Err(error) => Some((Err(watch.failed(error)), None)),
            }
        })
    }

    /// Lists and watches forever. After each end it watches again, or lists again if that is
    /// impossible. Errors are reported and do not end the stream. The backoff grows until a watch
    /// delivers a message.
    pub fn follow(
        &self,
        path: &ResourcePath,
        selector: &Selector<'_>,
        depth: Depth,
    ) -> impl Stream<Item = Result<Followed, ClusterError>> + Send + use<> {
        following(Follow::new(self, path, selector, depth, Some))
    }

    /// Follows whole objects but retains only the result of `read` for each. The trees of all
    /// objects are never in memory together. Objects without a result are skipped.
    pub fn follow_read<T: Send + 'static>(
        &self,
        path: &ResourcePath,
        selector: &Selector<'_>,
        read: fn(Value) -> Option<T>,
    ) -> impl Stream<Item = Result<Followed<T>, ClusterError>> + Send + use<T> {
        following(Follow::new(self, path, selector, Depth::Full, read))
    }

    /// Follows metadata, with lists in parts.
    pub fn follow_in_parts(
        &self,
        path: &ResourcePath,
        selector: &Selector<'_>,
    ) -> impl Stream<Item = Result<FollowedPart, ClusterError>> + Send + use<> {
        let follow = Follow::new(self, path, selector, Depth::Metadata, Some);
        stream::unfold(follow, |mut follow| async {
            let item = follow.next().await;
            Some((item, follow))
        })
    }
}

fn following<T: Send>(
    follow: Follow<T>,
) -> impl Stream<Item = Result<Followed<T>, ClusterError>> + Send + use<T> {
    stream::unfold((follow, Vec::new()), |(mut follow, mut listed)| async {
        let item = loop {
            break Ok(match follow.next().await {
                Ok(FollowedPart::Part(part)) => {
                    listed.extend(part);
                    continue;
                }
                Ok(FollowedPart::LastPart(rest)) => {
                    listed.extend(rest);
                    Followed::Listed(std::mem::take(&mut listed))
                }
                Ok(FollowedPart::Applied(value)) => Followed::Applied(value),
                Ok(FollowedPart::Deleted(value)) => Followed::Deleted(value),
                Err(error) => {
                    listed.clear();
                    break Err(error);
                }
            });
        };
        Some((item, (follow, listed)))
    })
}

/// Open watch, or one that the next read will open.
struct Watch {
    cluster: Cluster,
    path: ResourcePath,
    namespace: Option<String>,
    labels: Option<String>,
    fields: Option<String>,
    depth: Depth,
    resource_version: String,
    body: Option<Lines>,
    /// Time of the last opening.
    opened: Instant,
}

impl Watch {
    fn new(
        cluster: Cluster,
        path: &ResourcePath,
        selector: &Selector<'_>,
        resource_version: &str,
        depth: Depth,
    ) -> Self {
        Self {
            cluster,
            path: path.clone(),
            namespace: selector.namespace.map(str::to_owned),
            labels: selector.labels.map(str::to_owned),
            fields: selector.fields.map(str::to_owned),
            depth,
            resource_version: resource_version.to_owned(),
            body: None,
            opened: Instant::now(),
        }
    }

    fn selector(&self) -> Selector<'_> {
        Selector {
            namespace: self.namespace.as_deref(),
            labels: self.labels.as_deref(),
            fields: self.fields.as_deref(),
        }
    }

    fn about(&self) -> About<'_> {
        About {
            kind: &self.path.kind,
            secret: self.path.kind == "Secret",
            hides: None,
        }
    }

    fn failed(&self, source: Failure) -> ClusterError {
        match source {
            Failure::Error(error) => error,
            Failure::Api(source) => ClusterError::Watch {
                kind: self.path.group_kind(),
                namespace: self.namespace.clone(),
                source,
            },
        }
    }

    async fn open(&mut self) -> Result<Lines, Failure> {
        let url = self
            .path
            .collection(self.namespace.as_deref())
            .map_err(Failure::Error)?;
        let mut query = self.selector().query();
        query.push(("watch", "true".to_owned()));
        query.push(("allowWatchBookmarks", "true".to_owned()));
        query.push(("resourceVersion", self.resource_version.clone()));
        // Let the server end the watch before our time-out does.
        let seconds = self.cluster.limits.watch.mul_f64(0.75).as_secs().max(1);
        query.push(("timeoutSeconds", seconds.to_string()));
        let mut call = Call::read(Verb::Watch, with_query(url, &query), self.about());
        call.accept = match self.depth {
            Depth::Full => JSON,
            Depth::Metadata => METADATA,
        };
        let response = self.cluster.stream(&call).await.map_err(Failure::Api)?;
        Ok(Lines::new(response.into_body()))
    }

    /// Returns the next message. `None` at the end of the stream.
    async fn next(&mut self) -> Result<Option<WatchEvent>, Failure> {
        if self.body.is_none() {
            match self.open().await {
                Ok(lines) => {
                    self.body = Some(lines);
                    self.opened = Instant::now();
                }
                // Some servers report the expiry before the stream begins.
                Err(Failure::Api(error)) if matches!(error.class, Class::Expired { .. }) => {
                    return Ok(Some(WatchEvent::Expired));
                }
                Err(error) => return Err(error),
            }
        }
        let limit = self.cluster.limits.watch;
        let Some(lines) = &mut self.body else {
            return Ok(None);
        };
        let line = match timeout(limit, lines.next()).await {
            Ok(Ok(line)) => line,
            Ok(Err(error)) => {
                self.body = None;
                return Err(self.cluster.broken(&error, true).into());
            }
            Err(_) => {
                self.body = None;
                return Err(self.silent(limit).into());
            }
        };
        let Some(line) = line else {
            self.body = None;
            return Ok(None);
        };
        self.read(&line).map(Some)
    }

    fn silent(&self, limit: Duration) -> ApiError {
        let message = format!("{} sent nothing for {limit:?}", self.cluster.server);
        ApiError::local(Class::Timeout, message)
    }

    fn read(&mut self, line: &[u8]) -> Result<WatchEvent, Failure> {
        #[derive(Deserialize)]
        struct Message {
            #[serde(rename = "type")]
            kind: String,
            object: Map<String, Value>,
        }
        let Ok(message) = serde_json::from_slice::<Message>(line) else {
            return Err(self.nonsense("a line that is not a watch event").into());
        };
        if message.kind == "ERROR" {
            return self.refused(&message.object);
        }
        let version = message
            .object
            .get("metadata")
            .and_then(|metadata| metadata["resourceVersion"].as_str());
        if let Some(version) = version {
            version.clone_into(&mut self.resource_version);
        }
        match message.kind.as_str() {
            "ADDED" | "MODIFIED" => Ok(WatchEvent::Applied(with_type(message.object, &self.path))),
            "DELETED" => Ok(WatchEvent::Deleted(with_type(message.object, &self.path))),
            "BOOKMARK" => Ok(WatchEvent::Bookmark {
                resource_version: self.resource_version.clone(),
            }),
            _ => Err(self.nonsense("an event of an unknown type").into()),
        }
    }

    /// Handles a Status in the middle of the stream.
    fn refused(&mut self, object: &Map<String, Value>) -> Result<WatchEvent, Failure> {
        self.body = None;
        let text = serde_json::to_vec(object).unwrap_or_default();
        let Some(status) = Status::read(&text) else {
            return Err(self.nonsense("an error without a status").into());
        };
        let http = status.code;
        let question = Question {
            verb: Verb::Watch,
            kind: &self.path.kind,
        };
        let mask = self.about().secret.then(Mask::default);
        let error = classify(question, http, Some(status), String::new(), mask.as_ref());
        if matches!(error.class, Class::Expired { .. }) {
            return Ok(WatchEvent::Expired);
        }
        Err(error.into())
    }

    fn nonsense(&mut self, what: &str) -> ApiError {
        self.body = None;
        let message = format!("{} sent {what}", self.cluster.server);
        ApiError::local(Class::NotKubernetes, message)
    }
}

enum Failure {
    Api(Box<ApiError>),
    Error(ClusterError),
}

impl From<ApiError> for Failure {
    fn from(error: ApiError) -> Self {
        Self::Api(Box::new(error))
    }
}

/// Watch that restarts forever.
struct Follow<T> {
    watch: Watch,
    /// Conversion of an object to the retained value.
    read: fn(Value) -> Option<T>,
    listed: bool,
    /// Token of the next part of a started list.
    token: Option<String>,
    /// Number of failures since a watch last delivered a message.
    failures: u32,
    /// Backoff after the last failure.
    pause: Option<Duration>,
}

impl<T> Follow<T> {
    fn new(
        cluster: &Cluster,
        path: &ResourcePath,
        selector: &Selector<'_>,
        depth: Depth,
        read: fn(Value) -> Option<T>,
    ) -> Self {
        let cluster = cluster.clone().alone().with_retry(super::Retry::never());
        Self {
            watch: Watch::new(cluster, path, selector, "", depth),
            read,
            listed: false,
            token: None,
            failures: 0,
            pause: None,
        }
    }

    async fn next(&mut self) -> Result<FollowedPart<T>, ClusterError> {
        loop {
            if let Some(pause) = self.pause {
                sleep(pause).await;
                self.pause = None;
            }
            if !self.listed {
                return self.list().await;
            }
            match self.watch.next().await {
                Ok(Some(WatchEvent::Applied(value))) => {
                    self.failures = 0;
                    if let Some(value) = (self.read)(value) {
                        return Ok(FollowedPart::Applied(value));
                    }
                }
                Ok(Some(WatchEvent::Deleted(value))) => {
                    self.failures = 0;
                    if let Some(value) = (self.read)(value) {
                        return Ok(FollowedPart::Deleted(value));
                    }
                }
                Ok(Some(WatchEvent::Bookmark { .. })) => self.failures = 0,
                // A successful list does not prove that the next watch works.
                Ok(Some(WatchEvent::Expired)) => {
                    self.listed = false;
                    self.wait(None);
                }
                Ok(None) if self.watch.opened.elapsed() < SHORTEST => self.wait(None),
                Ok(None) => {}
                Err(error) => {
                    // The kind could be deleted or forbidden by now. A list reports it.
                    self.listed = false;
                    let error = self.watch.failed(error);
                    return Err(self.failed(error));
                }
            }
        }
    }

    /// Reads the next part of the list. Restarts the list after an error.
    async fn list(&mut self) -> Result<FollowedPart<T>, ClusterError> {
        let token = self.token.take();
        let (watch, read) = (&mut self.watch, self.read);
        let (path, selector) = (&watch.path, &watch.selector());
        let listed = match watch.depth {
            Depth::Full => {
                let read = |object| read(with_type(object, path));
                let listed = watch.cluster.list_read(path, selector, read).await;
                listed.map(|(items, version)| (items, version, None))
            }
            Depth::Metadata => {
                let page = watch.cluster.partial_page(path, selector, token.as_deref());
                page.await.map(|(list, next)| {
                    let items = list.items.into_iter().filter_map(read);
                    (items.collect(), list.resource_version, next)
                })
            }
        };
        match listed {
            Ok((items, version, None)) => {
                self.listed = true;
                watch.resource_version = version;
                Ok(FollowedPart::LastPart(items))
            }
            Ok((items, _, next)) => {
                self.token = next;
                Ok(FollowedPart::Part(items))
            }
            Err(error) => Err(self.failed(error)),
        }
    }

    fn failed(&mut self, error: ClusterError) -> ClusterError {
        self.wait(error.api().and_then(|api| api.retry_after));
        error
    }

    /// Sets the backoff before the next request. It grows with each failure, and is at least what
    /// the server asks for.
    fn wait(&mut self, retry_after: Option<Duration>) {
        self.failures = self.failures.saturating_add(1);
        self.pause = Some(pause(self.failures, retry_after));
    }
}

/// Longest line of a body, in bytes. The server accepts no object of even a tenth of this size.
const LONGEST_LINE: usize = 16 << 20;

/// Splits a body into lines.
pub(super) struct Lines {
    body: Body,
    buffer: BytesMut,
    ready: VecDeque<Vec<u8>>,
    /// Whether the last line counts without a line break, as in the log of a killed process.
    is_log: bool,
}

impl Lines {
    pub(super) fn new(body: Body) -> Self {
        Self {
            body,
            buffer: BytesMut::new(),
            ready: VecDeque::new(),
            is_log: false,
        }
    }

    /// Reads the log of a container.
    pub(super) fn of_log(body: Body) -> Self {
        Self {
            is_log: true,
            ..Self::new(body)
        }
    }

    /// Returns the next line that is not empty. `None` at the end.
    pub(super) async fn next(&mut self) -> Result<Option<Vec<u8>>, kube::Error> {
        loop {
            if let Some(line) = self.ready.pop_front() {
                return Ok(Some(line));
            }
            let Some(frame) = self.body.frame().await else {
                let rest = self.buffer.split().to_vec();
                return Ok(Some(rest).filter(|rest| self.is_log && !rest.is_empty()));
            };
            let Ok(data) = frame?.into_data() else {
                continue;
            };
            // Only the new part can contain the end of a line.
            let mut from = self.buffer.len();
            self.buffer.extend_from_slice(&data);
            while let Some(at) = self
                .buffer
                .iter()
                .skip(from)
                .position(|byte| *byte == b'\n')
            {
                let line = self.buffer.split_to(from + at);
                self.buffer.advance(1);
                from = 0;
                if !line.is_empty() {
                    self.ready.push_back(line.to_vec());
                }
            }
            if self.buffer.len() > LONGEST_LINE {
                self.buffer.clear();
                return Err(kube::Error::LinesCodecMaxLineLengthExceeded);
            }
        }
    }
}
