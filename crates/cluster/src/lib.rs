//! Adapter for all requests that pleach sends to an API server.
//!
//! It connects, applies time-outs and retries, and turns answers into values and failures into a
//! [`Class`]. It makes no decisions about plans and caches no object state. It sends the bytes of a
//! manifest unchanged, because a typed client would drop unknown fields.
//!
//! ```no_run
//! # async fn example() -> Result<(), pleach_cluster::ClusterError> {
//! use pleach_cluster::{Cluster, Connection, ResourcePath};
//! let cluster = Cluster::connect(&Connection::new("pleach/0.1.0")).await?;
//! let namespaces = ResourcePath::cluster_scoped("v1", "Namespace", "namespaces");
//! let system = cluster.get(&namespaces, None, "kube-system").await?;
//! # Ok(())
//! # }
//! ```

mod classify;
mod connect;
mod discovery;
mod error;
mod identity;
mod keys;
mod kubeconfig;
mod mask;
mod objects;
mod path;
mod registrations;
mod retry;
mod shared;
mod status;
mod transport;
mod warning;
mod watch;

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use http::HeaderValue;

pub use classify::{Class, Failed};
pub use connect::Connection;
pub use error::{ApiError, ClusterError};
pub use identity::{Access, NamespacePermissions, Subject, User};
pub use keys::{KeyHome, Keys, make_key, read_key};
pub use kubeconfig::{KubeconfigSecret, OwnCluster};
pub use objects::{
    Applied, ApplyOptions, ContainerRef, DeleteOptions, Deleted, Evicted, List, LogPart, MetaList,
    MetadataPage, Patch, PatchOptions, Propagation, Selector,
};
pub use path::ResourcePath;
pub use registrations::RegistrationList;
pub use retry::{Retry, Retrying};
pub use watch::{Depth, Followed, FollowedPart, WatchEvent};

/// Connection to one cluster under one user agent. Clones are cheap.
#[derive(Clone)]
pub struct Cluster {
    client: kube::Client,
    server: Arc<str>,
    /// Context of the kubeconfig, if a kubeconfig was read.
    context: Option<Arc<str>>,
    user_agent: HeaderValue,
    limits: Limits,
    retry: Retry,
    /// Server version from the first request, until the first caller takes it.
    version: Arc<Mutex<Option<String>>>,
    /// Recently forbidden lists, which are not requested again.
    refusals: registrations::Refusals,
    /// Answers shared between connections. `taking` decides whether this one uses them.
    shared: shared::Shared,
    taking: shared::Taking,
    /// Permits for concurrent list responses.
    list_permits: transport::ListPermits,
    /// Location of the keys for state in tenant namespaces.
    keys: Keys,
}

#[derive(Debug, Clone, Copy)]
struct Limits {
    request: Duration,
    watch: Duration,
}

impl Cluster {
    /// Wraps an existing client. Messages call the server `server`.
    pub fn over(client: kube::Client, connection: &Connection, server: &str) -> Self {
        let user_agent = connect::header(&connection.user_agent);
        Self {
            client,
            server: Arc::from(server),
            context: connection.context.as_deref().map(Arc::from),
            shared: shared::Shared::new(user_agent.clone()),
            taking: shared::Taking::Nothing,
            user_agent,
            limits: Limits {
                request: connection.request_timeout,
                watch: connection.watch_timeout,
            },
            retry: Retry::within(connection.patience),
            version: Arc::default(),
            refusals: registrations::Refusals::default(),
            list_permits: transport::ListPermits::default(),
            keys: connection.keys.clone(),
        }
    }

    /// Returns the location of the keys for state in tenant namespaces.
    pub fn keys(&self) -> &Keys {
        &self.keys
    }

    /// Returns the address of the API server, for messages.
    pub fn server(&self) -> &str {
        &self.server
    }

    /// Returns the context of the kubeconfig, for messages. `None` in a pod.
    pub fn context(&self) -> Option<&str> {
        self.context.as_deref()
    }

    /// Returns this connection with another user agent, which audit logs show.
    #[must_use]
    pub fn with_user_agent(mut self, user_agent: &str) -> Self {
        self.user_agent = connect::header(user_agent);
        self
    }

    /// Returns this connection with another retry policy.
    #[must_use]
    pub fn with_retry(mut self, retry: Retry) -> Self {
        self.retry = retry;
        self
    }

    fn remember_version(&self, version: String) {
        *self.version.lock().unwrap_or_else(PoisonError::into_inner) = Some(version);
    }

    fn take_version(&self) -> Option<String> {
        self.version
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take()
    }
}

impl fmt::Debug for Cluster {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cluster")
            .field("server", &self.server)
            .field("user_agent", &self.user_agent)
            .finish_non_exhaustive()
    }
}
