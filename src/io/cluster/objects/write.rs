//! Writes: apply, create, patch, delete.

use std::fmt;

use bytes::Bytes;
use http::Method;
use pleach_domain::object::ObjectId;

use serde_json::{Value, json};

use super::brief;
use crate::io::cluster::classify::Verb;
use crate::io::cluster::path::with_query;
use crate::io::cluster::status::Status;
use crate::io::cluster::transport::{About, Call, JSON, Reply};
use crate::io::cluster::{ApiError, Class, Cluster, ClusterError, ResourcePath};

/// JSON text is YAML; as YAML proper a plain `n` would become a boolean.
const APPLY: &str = "application/apply-patch+yaml";
/// HTTP status of an answer: the object did not exist.
const CREATED: u16 = 201;

/// How an object is applied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ApplyOptions<'a> {
    /// Field manager.
    pub manager: &'a str,
    /// Takes the fields of others.
    pub force: bool,
    /// Writes nothing.
    pub dry_run: bool,
    /// Subresource, such as `status`.
    pub subresource: Option<&'a str>,
    /// The object holds values that messages must not quote; kind Secret
    /// always does.
    pub secret: bool,
}

impl<'a> ApplyOptions<'a> {
    /// An apply without force.
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

/// What the server made of a write.
#[derive(Clone, PartialEq)]
pub struct Applied {
    /// The object as it is now, or would be.
    pub value: Value,
    /// It did not exist (HTTP 201).
    pub created: bool,
    /// What the server warns of.
    pub warnings: Vec<String>,
    /// An earlier attempt may have been carried out: `created` may then be
    /// false although the object is ours.
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

/// What a patch changes.
#[derive(Clone, PartialEq)]
pub enum Patch {
    /// RFC 6902 operations.
    Json(Value),
    /// RFC 7386 merge patch.
    Merge(Value),
}

impl fmt::Debug for Patch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Never the values.
        f.write_str(match self {
            Self::Json(_) => "Json",
            Self::Merge(_) => "Merge",
        })
    }
}

/// How an object is patched.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PatchOptions<'a> {
    /// Field manager.
    pub manager: &'a str,
    /// Writes nothing.
    pub dry_run: bool,
    /// Subresource, such as `scale`.
    pub subresource: Option<&'a str>,
    /// What the object holds, where messages must not quote that: a patch does not
    /// have it. Of kind Secret at least what is quoted is never told.
    pub hides: Option<&'a Value>,
}

impl<'a> PatchOptions<'a> {
    /// A patch of the object itself, of which anything may be told.
    pub fn new(manager: &'a str) -> Self {
        Self {
            manager,
            dry_run: false,
            subresource: None,
            hides: None,
        }
    }
}

/// How an object is deleted: always with a propagation, mostly with a uid.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DeleteOptions<'a> {
    /// Only this incarnation.
    pub uid: Option<&'a str>,
    /// Only if nobody wrote to it.
    pub resource_version: Option<&'a str>,
    /// What happens to what it owns.
    pub propagation: Propagation,
    /// Deletes nothing.
    pub dry_run: bool,
}

pub use pleach_domain::plan::Propagation;

/// How a deletion went.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Deleted {
    /// It is gone.
    Gone,
    /// It is being deleted: finalizers or its dependents come first.
    Accepted {
        /// What it waits for.
        finalizers: Vec<String>,
    },
    /// It was not there.
    Absent,
}

impl Cluster {
    /// Applies an object, server-side: the bytes are sent as they are.
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

    /// Applies an object in a dry run, and returns the object as it would be. `None`: the
    /// server would create it. That answer is not parsed.
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

    /// Creates an object, only if it is absent.
    ///
    /// When an earlier attempt may have been carried out, the error
    /// `AlreadyExists` is marked [`ApiError::unclear`]: the object may be ours.
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
        // The name is not part of the address, but it must be one.
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

    /// Patches an object that exists. It is repeated only when the server has
    /// certainly not carried it out.
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

    /// Deletes an object. Its absence is an answer, not an error; a kind that
    /// is not served is an error.
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

/// The request that applies an object.
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

/// A Status says that it is gone; the object itself, that it waits.
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

/// Whether a body names the incarnation or version it is meant for.
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
