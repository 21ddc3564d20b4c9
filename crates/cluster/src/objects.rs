//! Objects: read, list, apply, create, patch, delete.

mod evict;
mod list;
mod log;
mod page;
mod write;

use pleach_model::object::ObjectId;
use serde_json::Value;

pub use evict::Evicted;
pub(super) use list::with_type;
pub use list::{List, MetaList, MetadataPage, Selector};
pub use log::{ContainerRef, LogPart};
pub use write::{Applied, ApplyOptions, DeleteOptions, Deleted, Patch, PatchOptions, Propagation};

use super::classify::Verb;
use super::transport::{About, Call};
use super::{Class, Cluster, ClusterError, ResourcePath};

/// Identifies an object without showing its body, which can be a Secret.
pub(super) fn brief(value: &Value) -> String {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let metadata = &value["metadata"];
    format!(
        "{}/{}/{} at {}",
        text(&value["kind"]),
        text(&metadata["namespace"]),
        text(&metadata["name"]),
        text(&metadata["resourceVersion"])
    )
}

impl Cluster {
    /// Reads an object. `None` if it does not exist.
    ///
    /// A kind that is not served is an error, because its objects can still exist.
    pub async fn get(
        &self,
        path: &ResourcePath,
        namespace: Option<&str>,
        name: &str,
    ) -> Result<Option<Value>, ClusterError> {
        let id = path.id(namespace, name);
        let call = Call::read(
            Verb::Get,
            path.object(namespace, name, None)?,
            About::object(&id, false),
        );
        let failed = |source| ClusterError::Get {
            id: id.clone(),
            source,
        };
        match self.send(call).await {
            Ok(reply) => Ok(Some(reply.json().map_err(failed)?)),
            // A GET in a missing namespace reports the object as missing.
            Err(error) if error.class == Class::NotFound => Ok(None),
            Err(error) => Err(failed(error)),
        }
    }

    /// Reads an object by id. `None` if it does not exist.
    pub async fn get_id(
        &self,
        path: &ResourcePath,
        id: &ObjectId,
    ) -> Result<Option<Value>, ClusterError> {
        self.get(path, id.namespace.as_deref(), &id.name).await
    }
}
