//! Writes: apply, create, patch, delete.

use std::fmt;

use bytes::Bytes;
use http::Method;
use pleach_model::object::ObjectId;

use serde_json::{Value, json};

use super::brief;
use crate::{
    ApiError, Class, Cluster, ClusterError, Depth, ResourcePath,
    classify::Verb,
    path::with_query,
    status::Status,
    transport::{About, Call, JSON, Reply},
};

/// Media type of an apply. JSON is valid YAML, and avoids plain scalars such as `n` that YAML reads
/// as a boolean.
const APPLY: &str = "application/apply-patch+yaml";
/// Media type for the metadata of one object.
const METADATA: &str =
    "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1,application/json";
/// HTTP status of a write that created the object.
const CREATED: u16 = 201;

/// Options of an apply.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ApplyOptions<'a> {
    /// Field manager.
    pub manager: &'a str,
    /// Whether to take ownership of fields from other managers.
    pub force: bool,
    /// Whether to write nothing.
    pub dry_run: bool,
    /// Subresource, such as `status`.
    pub subresource: Option<&'a str>,
    /// Whether messages must not quote values of the object. Implied for kind Secret.
    pub secret: bool,
}

impl<'a> ApplyOptions<'a> {
    /// Returns the options of an apply without force.
    pub fn new(manager: &'a str) -> Self {
        Self {
            manager,
            force: false,
            dry_run: false,
            subresource: None,
            secret: false,
        }
    }
}

/// Result of a write.
#[derive(Clone, PartialEq)]
pub struct Applied {
    /// Object after the write or dry run.
    pub value: Value,
    /// Whether the object did not exist before (HTTP 201).
    pub created: bool,
    /// Warnings of the server.
    pub warnings: Vec<String>,
    /// Whether an earlier attempt could have succeeded. `created` can then be false although we
    /// created the object.
    pub repeated: bool,
}

impl fmt::Debug for Applied {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Applied")
            .field("value", &brief(&self.value))
            .field("created", &self.created)
            .field("warnings", &self.warnings)
            .field("repeated", &self.repeated)
            .finish()
    }
}

/// Content of a patch.
#[derive(Clone, PartialEq)]
pub enum Patch {
    /// RFC 6902 operations.
    Json(Value),
    /// RFC 7386 merge patch.
    Merge(Value),
}

impl fmt::Debug for Patch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Never show the values.
        f.write_str(match self {
            Self::Json(_) => "Json",
            Self::Merge(_) => "Merge",
        })
    }
}

/// Options of a patch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PatchOptions<'a> {
    /// Field manager.
    pub manager: &'a str,
    /// Whether to write nothing.
    pub dry_run: bool,
    /// Subresource, such as `scale`.
    pub subresource: Option<&'a str>,
    /// Full object with secret values that messages must not quote; the patch itself does not
    /// contain them. For kind Secret, quoted values are always masked.
    pub hides: Option<&'a Value>,
    /// Part of the object in the answer.
    pub answer: Depth,
}

impl<'a> PatchOptions<'a> {
    /// Returns the options of a patch without secret values or subresource.
    pub fn new(manager: &'a str) -> Self {
        Self {
            manager,
            dry_run: false,
            subresource: None,
            hides: None,
            answer: Depth::Full,
        }
    }
}

/// Options of a deletion. The propagation is mandatory; most callers also set a uid.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DeleteOptions<'a> {
    /// Required uid of the object.
    pub uid: Option<&'a str>,
    /// Required version of the object.
    pub resource_version: Option<&'a str>,
    /// Handling of its dependents.
    pub propagation: Propagation,
    /// Whether to delete nothing.
    pub dry_run: bool,
}

pub use pleach_planner::plan::Propagation;

/// Result of a deletion.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Deleted {
    /// The object was deleted.
    Gone,
    /// The object is being deleted, but waits for finalizers or dependents.
    Accepted {
        /// Remaining finalizers.
        finalizers: Vec<String>,
    },
    /// The object did not exist.
    Absent,
}

impl Cluster {
    /// Applies an object with server-side apply. Sends the bytes unchanged.
    pub async fn apply(
        &self,
        path: &ResourcePath,
        id: &ObjectId,
        body: Bytes,
        options: &ApplyOptions<'_>,
    ) -> Result<Applied, ClusterError> {
        let call = apply_call(path, id, body, options)?;
        self.write(call)
            .await
            .map_err(|source| ClusterError::Apply {
                id: id.clone(),
                source,
            })
    }

    /// Applies an object in a dry run and returns the predicted object. `None`: the server would
    /// create it; the answer is then not parsed.
    pub async fn dry_run(
        &self,
        path: &ResourcePath,
        id: &ObjectId,
        body: Bytes,
        options: &ApplyOptions<'_>,
    ) -> Result<Option<Value>, ClusterError> {
        let options = ApplyOptions {
            dry_run: true,
            ..*options
        };
        let call = apply_call(path, id, body, &options)?;
        let failed = |source| ClusterError::Apply {
            id: id.clone(),
            source,
        };
        let reply = self.send(call).await.map_err(failed)?;
        if reply.status == CREATED {
            return Ok(None);
        }
        reply.json().map(Some).map_err(failed)
    }

    /// Creates an object only if it is absent.
    ///
    /// If an earlier attempt could have succeeded, the error `AlreadyExists` is marked
    /// [`ApiError::unclear`]. The object can then be ours.
    pub async fn create(
        &self,
        path: &ResourcePath,
        id: &ObjectId,
        body: Bytes,
        options: &ApplyOptions<'_>,
    ) -> Result<Applied, ClusterError> {
        let mut query = vec![
            ("fieldManager", options.manager.to_owned()),
            ("fieldValidation", "Strict".to_owned()),
        ];
        if options.dry_run {
            query.push(("dryRun", "All".to_owned()));
        }
        // The URL does not contain the name, but validate it all the same.
        path.object(id.namespace.as_deref(), &id.name, None)?;
        let call = Call::read(
            Verb::Create,
            with_query(path.collection(id.namespace.as_deref())?, &query),
            About::object(id, options.secret),
        )
        .with_body(Method::POST, JSON, body);
        self.write(call)
            .await
            .map_err(|source| ClusterError::Create {
                id: id.clone(),
                source,
            })
    }

    /// Patches an existing object. Repeats the request only if the server certainly did not execute
    /// it.
    pub async fn patch(
        &self,
        path: &ResourcePath,
        id: &ObjectId,
        change: &Patch,
        options: &PatchOptions<'_>,
    ) -> Result<Applied, ClusterError> {
        let (content_type, body) = match change {
            Patch::Json(operations) => ("application/json-patch+json", operations),
            Patch::Merge(changes) => ("application/merge-patch+json", changes),
        };
        let mut query = vec![
            ("fieldManager", options.manager.to_owned()),
            ("fieldValidation", "Strict".to_owned()),
        ];
        if options.dry_run {
            query.push(("dryRun", "All".to_owned()));
        }
        let url = path.object(id.namespace.as_deref(), &id.name, options.subresource)?;
        let mut about = About::object(id, options.hides.is_some());
        about.hides = options.hides;
        let mut call = Call::read(Verb::Patch, with_query(url, &query), about);
        if options.answer == Depth::Metadata {
            call.accept = METADATA;
        }
        let body = Bytes::from(body.to_string());
        call.conditional = match change {
            Patch::Json(_) => true,
            Patch::Merge(_) => has_precondition(&body),
        };
        let call = call.with_body(Method::PATCH, content_type, body);
        self.write(call)
            .await
            .map_err(|source| ClusterError::Patch {
                id: id.clone(),
                source,
            })
    }

    async fn write(&self, call: Call<'_>) -> Result<Applied, Box<ApiError>> {
        let reply = self.send(call).await?;
        Ok(Applied {
            value: reply.json()?,
            created: reply.status == CREATED,
            warnings: reply.warnings,
            repeated: reply.repeated,
        })
    }

    /// Deletes an object. A missing object is not an error; a kind that is not served is one.
    pub async fn delete(
        &self,
        path: &ResourcePath,
        id: &ObjectId,
        options: &DeleteOptions<'_>,
    ) -> Result<Deleted, ClusterError> {
        let mut body = json!({
            "apiVersion": "v1",
            "kind": "DeleteOptions",
            "propagationPolicy": match options.propagation {
                Propagation::Background => "Background",
                Propagation::Foreground => "Foreground",
                Propagation::Orphan => "Orphan",
            },
        });
        if let Some(uid) = options.uid {
            body["preconditions"]["uid"] = json!(uid);
        }
        if let Some(resource_version) = options.resource_version {
            body["preconditions"]["resourceVersion"] = json!(resource_version);
        }
        if options.dry_run {
            body["dryRun"] = json!(["All"]);
        }
        let url = path.object(id.namespace.as_deref(), &id.name, None)?;
        let mut call = Call::read(Verb::Delete, url, About::object(id, false));
        call.conditional = options.uid.is_some() || options.resource_version.is_some();
        let call = call.with_body(Method::DELETE, JSON, Bytes::from(body.to_string()));
        let failed = |source| ClusterError::Delete {
            id: id.clone(),
            source,
        };
        match self.send(call).await {
            Ok(reply) => outcome(&reply).map_err(failed),
            Err(error) if error.class == Class::NotFound => Ok(Deleted::Absent),
            Err(error) => Err(failed(error)),
        }
    }
}

/// Builds the request that applies an object.
fn apply_call<'a>(
    path: &ResourcePath,
    id: &'a ObjectId,
    body: Bytes,
    options: &ApplyOptions<'_>,
) -> Result<Call<'a>, ClusterError> {
    let mut query = vec![
        ("fieldManager", options.manager.to_owned()),
        ("fieldValidation", "Strict".to_owned()),
    ];
    if options.force {
        query.push(("force", "true".to_owned()));
    }
    let verb = if options.dry_run {
        query.push(("dryRun", "All".to_owned()));
        Verb::DryRun
    } else {
        Verb::Apply
    };
    let url = path.object(id.namespace.as_deref(), &id.name, options.subresource)?;
    let mut call = Call::read(
        verb,
        with_query(url, &query),
        About::object(id, options.secret),
    );
    call.conditional = has_precondition(&body);
    Ok(call.with_body(Method::PATCH, APPLY, body))
}

/// Reads the result of a deletion. The server answers with a Status if the object is deleted, and
/// with the object if it still exists.
fn outcome(reply: &Reply) -> Result<Deleted, Box<ApiError>> {
    if Status::read(&reply.body).is_some() {
        return Ok(Deleted::Gone);
    }
    let value: Value = reply.json()?;
    let metadata = &value["metadata"];
    let finalizers: Vec<String> = metadata["finalizers"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(|finalizer| finalizer.as_str().map(str::to_owned))
        .collect();
    // Pods wait for their kubelet, namespaces for their content.
    if metadata["deletionTimestamp"].is_string() || !finalizers.is_empty() {
        Ok(Deleted::Accepted { finalizers })
    } else {
        Ok(Deleted::Gone)
    }
}

/// Returns whether a body has a uid or resourceVersion as a precondition.
fn has_precondition(body: &Bytes) -> bool {
    #[derive(serde::Deserialize, Default)]
    #[serde(rename_all = "camelCase", default)]
    struct Body {
        metadata: Metadata,
    }
    #[derive(serde::Deserialize, Default)]
    #[serde(rename_all = "camelCase", default)]
    struct Metadata {
        uid: Option<serde::de::IgnoredAny>,
        resource_version: Option<serde::de::IgnoredAny>,
    }
    let body: Body = serde_json::from_slice(body).unwrap_or_default();
    body.metadata.uid.is_some() || body.metadata.resource_version.is_some()
}
