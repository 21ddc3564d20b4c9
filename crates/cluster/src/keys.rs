//! Location of the state keys. Tenants can read and write their own namespaces, so a key there does
//! not protect against them.

use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use pleach_model::object::{DigestKey, ObjectId, canonical_json, managers};
use serde_json::{Value, json};
use tokio::sync::OnceCell;

use super::kubeconfig::OwnCluster;
use super::{ApplyOptions, Class, Cluster, ClusterError, ResourcePath};

/// Name of the Secret with the root key, from which the keys of all stores are derived.
const ROOT_SECRET: &str = "pleach-state-key";

/// Location of the keys for state in tenant namespaces. State in `pleach-system` always has its key
/// in the same namespace.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Keys {
    /// In the namespace of the state.
    #[default]
    Beside,
    /// In a namespace that tenants cannot access.
    In(KeyHome),
    /// No key: such state is read unverified and never written.
    Unread,
}

/// Namespace with the root key. The key is read once, on first use.
#[derive(Debug, Clone)]
pub struct KeyHome(Arc<Home>);

#[derive(Debug)]
struct Home {
    own: OwnCluster,
    namespace: String,
    root: OnceCell<DigestKey>,
}

impl PartialEq for KeyHome {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for KeyHome {}

impl KeyHome {
    /// Creates the location from a cluster and a namespace. Sends no request.
    pub fn new(own: OwnCluster, namespace: String) -> Self {
        Self(Arc::new(Home {
            own,
            namespace,
            root: OnceCell::new(),
        }))
    }

    /// Returns the name of the Secret: `<namespace>/<name>`.
    pub fn place(&self) -> String {
        format!("{}/{ROOT_SECRET}", self.0.namespace)
    }

    /// Returns the root key. `None` if it does not exist yet.
    pub async fn root(&self) -> Result<Option<DigestKey>, ClusterError> {
        if let Some(root) = self.0.root.get() {
            return Ok(Some(root.clone()));
        }
        let cluster = self.0.own.cluster().await?;
        let read = read_key(cluster, &self.0.namespace, ROOT_SECRET).await?;
        Ok(read.map(|bytes| self.remember(bytes)))
    }

    /// Creates the key from these bytes, or reads the existing one. `None` if the Secret exists
    /// without a key.
    pub async fn make(&self, bytes: &[u8]) -> Result<Option<DigestKey>, ClusterError> {
        let cluster = self.0.own.cluster().await?;
        let made = make_key(cluster, &self.0.namespace, ROOT_SECRET, bytes).await?;
        Ok(made.map(|bytes| self.remember(bytes)))
    }

    fn remember(&self, bytes: Vec<u8>) -> DigestKey {
        let root = DigestKey::new(bytes);
        // Another task could have read the same key meanwhile.
        drop(self.0.root.set(root.clone()));
        root
    }
}

fn secrets() -> ResourcePath {
    ResourcePath::namespaced("v1", "Secret", "secrets")
}

/// Reads a key. `None` if the Secret does not exist or has no key.
pub async fn read_key(
    cluster: &Cluster,
    namespace: &str,
    name: &str,
) -> Result<Option<Vec<u8>>, ClusterError> {
    let secret = cluster.get(&secrets(), Some(namespace), name).await?;
    Ok(secret.as_ref().and_then(key_of))
}

fn key_of(secret: &Value) -> Option<Vec<u8>> {
    let text = secret["data"]["key"].as_str()?;
    STANDARD.decode(text).ok().filter(|key| !key.is_empty())
}

/// Creates a key, or reads the one that another client created first. `None` if the Secret exists
/// without a key.
pub async fn make_key(
    cluster: &Cluster,
    namespace: &str,
    name: &str,
    bytes: &[u8],
) -> Result<Option<Vec<u8>>, ClusterError> {
    let secret = json!({
        "apiVersion": "v1", "kind": "Secret",
        "metadata": { "name": name, "namespace": namespace },
        "type": "Opaque",
        "data": { "key": STANDARD.encode(bytes) },
    });
    let id = ObjectId::new("", "Secret", Some(namespace), name);
    let body = Bytes::from(canonical_json(&secret));
    let options = ApplyOptions::new(managers::STATE);
    match cluster.create(&secrets(), &id, body, &options).await {
        Ok(_) => Ok(Some(bytes.to_vec())),
        Err(error) if matches!(error.class(), Some(Class::AlreadyExists { .. })) => {
            read_key(cluster, namespace, name).await
        }
        Err(error) => Err(error),
    }
}
