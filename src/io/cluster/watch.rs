//! Changes as they happen.
//!
//! A watch that stays silent is opened anew: a connection that died without a
//! word looks exactly like a quiet cluster.

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

/// Metadata only.
const METADATA: &str =
    "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1,application/json";

/// A watch that ends sooner has failed, whatever it looks like.
const SHORTEST: Duration = Duration::from_secs(1);

/// How much of the objects is wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Depth {
    /// All of it.
    Full,
    /// The metadata; a server that cannot do this sends all of it.
    Metadata,
}

/// One message of a watch.
#[derive(Clone, PartialEq)]
pub enum WatchEvent {
    /// An object is there, or has changed.
    Applied(Value),
    /// An object is gone, or no longer selected.
    Deleted(Value),
    /// Nothing has happened up to this version.
    Bookmark {
        /// Where the next watch continues.
        resource_version: String,
    },
    /// The version to start from is no longer kept: list again.
    Expired,
}

/// One message of a watch that never ends and whose lists come in parts, so that a
/// large one is never in memory as a whole.
#[derive(Clone, PartialEq)]
pub enum Heard<T = Value> {
    /// Some of what is there; more comes. An error takes it back.
    Part(Vec<T>),
    /// The rest of it; what was known before and is in none of the parts, is gone.
    Rest(Vec<T>),
    /// An object is there, or has changed.
    Applied(T),
    /// An object is gone, or no longer selected.
    Deleted(T),
}

/// One message of a watch that never ends.
#[derive(Clone, PartialEq)]
pub enum Followed<T = Value> {
    /// Everything that is there; what was known before and is not in it, is gone.
    Listed(Vec<T>),
    /// An object is there, or has changed.
    Applied(T),
    /// An object is gone, or no longer selected.
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

impl fmt::Debug for Heard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Part(values) | Self::Rest(values) => {
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
    /// Watches from a version of a list on. The stream ends when the server
    /// ends it, after at most the watch time-out, or after [`WatchEvent::Expired`].
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
                    let ends = event == WatchEvent::Expired;
                    Some((Ok(event), (!ends).then_some(watch)))
                }
                Ok(None) => None,
                Err(error) => Some((Err(watch.failed(error)), None)),
            }
        })
    }

    /// Lists and watches for ever: every end is followed by the next watch, and
    /// where that is impossible by the next list. Errors are reported and do
    /// not end the stream; the pause after them grows until a watch tells something.
    pub fn follow(
        &self,
        path: &ResourcePath,
        selector: &Selector<'_>,
        depth: Depth,
    ) -> impl Stream<Item = Result<Followed, ClusterError>> + Send + use<> {
        following(Follow::new(self, path, selector, depth, Some))
    }

    /// The same of whole objects, of which only what is read of each is kept: the
    /// trees of all of them are never in memory together. What nothing is read of
    /// is left out.
    pub fn follow_read<T: Send + 'static>(
        &self,
        path: &ResourcePath,
        selector: &Selector<'_>,
        read: fn(Value) -> Option<T>,
    ) -> impl Stream<Item = Result<Followed<T>, ClusterError>> + Send + use<T> {
        following(Follow::new(self, path, selector, Depth::Full, read))
    }

    /// The same of metadata, with lists in parts.
    pub fn follow_in_parts(
        &self,
        path: &ResourcePath,
        selector: &Selector<'_>,
    ) -> impl Stream<Item = Result<Heard, ClusterError>> + Send + use<> {
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
                Ok(Heard::Part(part)) => {
                    listed.extend(part);
                    continue;
                }
                Ok(Heard::Rest(rest)) => {
                    listed.extend(rest);
                    Followed::Listed(std::mem::take(&mut listed))
                }
                Ok(Heard::Applied(value)) => Followed::Applied(value),
                Ok(Heard::Deleted(value)) => Followed::Deleted(value),
                Err(error) => {
                    listed.clear();
                    break Err(error);
                }
            });
        };
        Some((item, (follow, listed)))
    })
}

/// An open watch, or one that will be opened by the next read.
struct Watch {
    cluster: Cluster,
    path: ResourcePath,
    namespace: Option<String>,
    labels: Option<String>,
    fields: Option<String>,
    depth: Depth,
    resource_version: String,
    body: Option<Lines>,
    /// When it was opened last.
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
        // The server ends it before our patience does.
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

    /// The next message; none at the end of the stream.
    async fn next(&mut self) -> Result<Option<WatchEvent>, Failure> {
        if self.body.is_none() {
            match self.open().await {
                Ok(lines) => {
                    self.body = Some(lines);
                    self.opened = Instant::now();
                }
                // Some servers say it before the stream begins.
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
            return Err(self.nonsense("a line that is no event").into());
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

    /// A Status in the middle of the stream.
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

/// A watch that begins again for ever.
struct Follow<T> {
    watch: Watch,
    /// What is kept of an object.
    read: fn(Value) -> Option<T>,
    listed: bool,
    /// What asks for the next part of a list that was begun.
    token: Option<String>,
    /// How often it failed since a watch told something.
    failures: u32,
    /// What is to be waited for after the last failure.
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

    async fn next(&mut self) -> Result<Heard<T>, ClusterError> {
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
                        return Ok(Heard::Applied(value));
                    }
                }
                Ok(Some(WatchEvent::Deleted(value))) => {
                    self.failures = 0;
                    if let Some(value) = (self.read)(value) {
                        return Ok(Heard::Deleted(value));
                    }
                }
                Ok(Some(WatchEvent::Bookmark { .. })) => self.failures = 0,
                // A list that works says nothing of the watch after it.
                Ok(Some(WatchEvent::Expired)) => {
                    self.listed = false;
                    self.wait(None);
                }
                Ok(None) if self.watch.opened.elapsed() < SHORTEST => self.wait(None),
                Ok(None) => {}
                Err(error) => {
                    // The kind may be gone or forbidden by now: a list says so.
                    self.listed = false;
                    let error = self.watch.failed(error);
                    return Err(self.failed(error));
                }
            }
        }
    }

    /// The next part of what is there. After an error it begins anew.
    async fn list(&mut self) -> Result<Heard<T>, ClusterError> {
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
                Ok(Heard::Rest(items))
            }
            Ok((items, _, next)) => {
                self.token = next;
                Ok(Heard::Part(items))
            }
            Err(error) => Err(self.failed(error)),
        }
    }

    fn failed(&mut self, error: ClusterError) -> ClusterError {
        self.wait(error.api().and_then(|api| api.retry_after));
        error
    }

    /// Waits before the next request, longer each time, and as long as the
    /// server asks for.
    fn wait(&mut self, asked: Option<Duration>) {
        self.failures = self.failures.saturating_add(1);
        self.pause = Some(pause(self.failures, asked));
    }
}

/// The longest line of a body: the server takes no object that is a tenth as large.
const LONGEST_LINE: usize = 16 << 20;

/// The lines of a body.
struct Lines {
    body: Body,
    buffer: BytesMut,
    ready: VecDeque<Vec<u8>>,
}

impl Lines {
    fn new(body: Body) -> Self {
        Self {
            body,
            buffer: BytesMut::new(),
            ready: VecDeque::new(),
        }
    }

    async fn next(&mut self) -> Result<Option<Vec<u8>>, kube::Error> {
        loop {
            if let Some(line) = self.ready.pop_front() {
                return Ok(Some(line));
            }
            let Some(frame) = self.body.frame().await else {
                return Ok(None);
            };
            let Ok(data) = frame?.into_data() else {
                continue;
            };
            // Only the new part can hold the end of a line.
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
