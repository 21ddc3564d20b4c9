//! The one adapter for every request that pleach makes to an API server.
//!
//! It connects, sends with a time-out and repeats what may pass, and turns
//! answers into values and failures into a [`Class`]. It decides nothing about
//! plans, keeps no state of objects, and sends the bytes of a manifest as they
//! are: no typed client stands between a manifest and the server, which would
//! drop the fields it does not know.
//!
//! ```no_run
//! # async fn example() -> Result<(), pleach::io::cluster::ClusterError> {
//! use pleach::io::cluster::{Cluster, Connection, ResourcePath};
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
pub use identity::{Access, Rights, User};
pub use keys::{KeyHome, Keys, make_key, read_key};
pub use kubeconfig::{KubeconfigSecret, OwnCluster};
pub use objects::{
    Applied, ApplyOptions, DeleteOptions, Deleted, List, MetaList, MetadataPage, Patch,
    PatchOptions, Propagation, Selector,
};
pub use path::ResourcePath;
pub use registrations::RegistrationList;
pub use retry::{Retry, Retrying};
pub use watch::{Depth, Followed, Heard, WatchEvent};

/// A connection to one cluster under one user agent; clones are cheap.
#[derive(Clone)]
pub struct Cluster {
    client: kube::Client,
    server: Arc<str>,
    user_agent: HeaderValue,
    limits: Limits,
    retry: Retry,
    /// The version that the first request brought, until somebody takes it.
    version: Arc<Mutex<Option<String>>>,
    /// What is not asked for again and again.
    refusals: registrations::Refusals,
    /// What others asked for, and whether it is taken.
    shared: shared::Shared,
    taking: shared::Taking,
    /// Of the lists that come in.
    turns: transport::Turns,
    /// Where the key of state in the namespace of a tenant is.
    keys: Keys,
}

#[derive(Debug, Clone, Copy)]
struct Limits {
    request: Duration,
    watch: Duration,
}

impl Cluster {
    /// Works over a client that exists; `server` is what messages call it.
    pub fn over(client: kube::Client, connection: &Connection, server: &str) -> Self {
        let user_agent = connect::header(&connection.user_agent);
        Self {
            client,
            server: Arc::from(server),
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
            turns: transport::Turns::default(),
            keys: connection.keys.clone(),
        }
    }

    /// Whether both came from the same connecting: they share its credentials.
    pub fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.server, &other.server)
    }

    /// Where the key of state in the namespace of a tenant is.
    pub fn keys(&self) -> &Keys {
        &self.keys
    }

    /// The address of the API server, for messages.
    pub fn server(&self) -> &str {
        &self.server
    }

    /// The same connection under another name in audit logs.
    #[must_use]
    pub fn with_user_agent(mut self, user_agent: &str) -> Self {
        self.user_agent = connect::header(user_agent);
        self
    }

    /// The same connection with another patience.
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
