//! Lists, in pages.
//!
//! Callers treat objects that are missing from a list as absent. So a list is either complete or an
//! error, never a part of the pages.

use std::fmt;

use pleach_model::object::ObjectId;
use pleach_state::live::LiveMeta;
use rayon::prelude::*;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};

use super::brief;
use super::page::{Page, Reading};
use crate::{
    ApiError, Class, Cluster, ClusterError, Depth, ResourcePath,
    classify::Verb,
    path::with_query,
    transport::{About, Call, JSON},
};

/// Objects per page; same as kubectl.
const PAGE: u32 = 500;
/// Media type for metadata only. A server without support for it sends whole objects with the same
/// metadata.
const METADATA_LIST: &str =
    "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,application/json";

/// Selection of objects of a kind.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Selector<'a> {
    /// Namespace. `None`: all namespaces, or a cluster-scoped kind.
    pub namespace: Option<&'a str>,
    /// Label selector, such as `a=b,c`.
    pub labels: Option<&'a str>,
    /// Field selector, such as `metadata.name=x`.
    pub fields: Option<&'a str>,
}

impl<'a> Selector<'a> {
    /// Selects all objects in a namespace, or in all namespaces.
    pub fn namespace(namespace: Option<&'a str>) -> Self {
        Self {
            namespace,
            ..Self::default()
        }
    }

    /// Returns the selectors as query parameters.
    pub fn query(&self) -> Vec<(&'static str, String)> {
        let mut query = Vec::new();
        if let Some(labels) = self.labels {
            query.push(("labelSelector", labels.to_owned()));
        }
        if let Some(fields) = self.fields {
            query.push(("fieldSelector", fields.to_owned()));
        }
        query
    }
}

/// Complete list of objects.
#[derive(Clone, PartialEq)]
pub struct List {
    /// The objects, with apiVersion and kind.
    pub items: Vec<Value>,
    /// Version from which a watch continues.
    pub resource_version: String,
}

impl fmt::Debug for List {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let items: Vec<String> = self.items.iter().map(brief).collect();
        f.debug_struct("List")
            .field("items", &items)
            .field("resource_version", &self.resource_version)
            .finish()
    }
}

/// Complete list of metadata.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MetaList {
    /// Ids and metadata, in the server's order.
    pub items: Vec<(ObjectId, LiveMeta)>,
    /// Version from which a watch continues.
    pub resource_version: String,
}

/// One page of metadata.
#[derive(Debug, Clone, PartialEq)]
pub struct MetadataPage {
    /// The `metadata` of objects, in the server's order.
    pub items: Vec<Value>,
    /// Token of the next page. `None` on the last page.
    pub next: Option<String>,
    /// Approximate number of objects on later pages, if the server reports it.
    pub remaining: Option<u64>,
}

/// Metadata of an object. The rest is skipped during parsing.
#[derive(Deserialize)]
struct Partial {
    metadata: Value,
}

impl Cluster {
    /// Lists metadata, with one request per 500 objects. The fingerprints come from the
    /// managedFields entry of `manager`.
    pub async fn list_metadata(
        &self,
        path: &ResourcePath,
        selector: &Selector<'_>,
        manager: &str,
    ) -> Result<MetaList, ClusterError> {
        let read = |metadata: &Value| {
            // The kind in the answer can be PartialObjectMetadata.
            let name = metadata["name"].as_str().unwrap_or_default();
            let id = path.id(metadata["namespace"].as_str(), name);
            (id, LiveMeta::read(metadata, manager))
        };
        if let Some(found) = self.of_release(path, selector, Depth::Metadata).await {
            let (values, resource_version) =
                found.map_err(|source| failed(path, selector, source))?;
            let items = values.iter().map(|value| read(&value["metadata"]));
            return Ok(MetaList {
                items: items.collect(),
                resource_version,
            });
        }
        // Parse the objects of a page on all cores.
        let finish = |texts: Vec<Box<RawValue>>| {
            let parse = |text: Box<RawValue>| match serde_json::from_str(text.get()) {
                Ok(Partial { metadata }) => Ok(read(&metadata)),
                Err(_) => Err(Box::new(no_list("objects without metadata"))),
            };
            let parsed = texts.into_par_iter().map(parse);
            parsed.collect::<Result<Vec<_>, Box<ApiError>>>()
        };
        let mut items = Vec::new();
        let text = |object: Box<RawValue>| object;
        let resource_version = self
            .pages(path, selector, METADATA_LIST, &mut items, text, finish)
            .await?;
        Ok(MetaList {
            items,
            resource_version,
        })
    }

    /// Lists objects in full.
    pub async fn list(
        &self,
        path: &ResourcePath,
        selector: &Selector<'_>,
    ) -> Result<List, ClusterError> {
        if let Some(found) = self.of_release(path, selector, Depth::Full).await {
            let (items, resource_version) =
                found.map_err(|source| failed(path, selector, source))?;
            return Ok(List {
                items,
                resource_version,
            });
        }
        let read = |object| Some(with_type(object, path));
        let (items, resource_version) = self.list_read(path, selector, read).await?;
        Ok(List {
            items,
            resource_version,
        })
    }

    /// Lists objects in full and retains only the results of `read`. The full trees of many objects
    /// would need too much memory.
    pub async fn list_of<T>(
        &self,
        path: &ResourcePath,
        selector: &Selector<'_>,
        read: impl Fn(Value) -> Option<T>,
    ) -> Result<Vec<T>, ClusterError> {
        let read = |object| read(with_type(object, path));
        let (items, _) = self.list_read(path, selector, read).await?;
        Ok(items)
    }

    /// Lists objects in full and retains only the results of `read`. Also returns the version from
    /// which a watch continues.
    pub async fn list_read<T>(
        &self,
        path: &ResourcePath,
        selector: &Selector<'_>,
        read: impl Fn(Map<String, Value>) -> Option<T>,
    ) -> Result<(Vec<T>, String), ClusterError> {
        let mut items = Vec::new();
        let pages = self.pages(path, selector, JSON, &mut items, read, Ok);
        let resource_version = pages.await?;
        Ok((items.into_iter().flatten().collect(), resource_version))
    }

    /// Lists objects and retains only the results of `pick`, for large lists. `T` has the required
    /// fields; the rest of each object is skipped during parsing.
    pub async fn pick<T: DeserializeOwned, U>(
        &self,
        path: &ResourcePath,
        selector: &Selector<'_>,
        depth: Depth,
        pick: impl Fn(T) -> Option<U>,
    ) -> Result<Vec<U>, ClusterError> {
        let accept = match depth {
            Depth::Full => JSON,
            Depth::Metadata => METADATA_LIST,
        };
        let mut items = Vec::new();
        self.pages(path, selector, accept, &mut items, pick, Ok)
            .await?;
        Ok(items.into_iter().flatten().collect())
    }

    /// Lists whole objects or their metadata and retains only the results of `pick`. Also returns
    /// the version of the list. The error is the server's answer.
    pub async fn pick_all<U>(
        &self,
        path: &ResourcePath,
        selector: &Selector<'_>,
        depth: Depth,
        pick: impl Fn(Map<String, Value>) -> Option<U>,
    ) -> Result<(Vec<U>, String), Box<ApiError>> {
        let accept = match depth {
            Depth::Full => JSON,
            Depth::Metadata => METADATA_LIST,
        };
        let mut items = Vec::new();
        let listed = self
            .pages(path, selector, accept, &mut items, pick, Ok)
            .await;
        match listed {
            Ok(resource_version) => Ok((items.into_iter().flatten().collect(), resource_version)),
            Err(ClusterError::List { source, .. }) => Err(source),
            Err(other) => Err(no_list(&other.to_string()).into()),
        }
    }

    /// Reads one page of metadata, with the kind of the objects and the token of the next page. An
    /// expired token is an error.
    pub async fn partial_page(
        &self,
        path: &ResourcePath,
        selector: &Selector<'_>,
        token: Option<&str>,
    ) -> Result<(List, Option<String>), ClusterError> {
        let mut items = Vec::new();
        let read = |item: Partial| {
            let mut object = Map::new();
            object.insert("metadata".to_owned(), item.metadata);
            with_type(object, path)
        };
        let page = self
            .one_page(path, selector, (METADATA_LIST, token), &mut items, &read)
            .await
            .and_then(|page| page.map_err(|source| failed(path, selector, source)))?;
        let next = page.next().map_err(|error| failed(path, selector, error))?;
        let list = List {
            items,
            resource_version: page.metadata.resource_version.unwrap_or_default(),
        };
        Ok((list, next))
    }

    /// Reads one page of metadata, for callers that change the objects during the iteration. A
    /// truncated list is an error.
    pub async fn metadata_page(
        &self,
        path: &ResourcePath,
        selector: &Selector<'_>,
        token: Option<&str>,
    ) -> Result<MetadataPage, ClusterError> {
        let mut items = Vec::new();
        let read = |item: Partial| item.metadata;
        let page = self
            .one_page(path, selector, (METADATA_LIST, token), &mut items, &read)
            .await
            .and_then(|page| page.map_err(|source| failed(path, selector, source)))?;
        let next = page.next().map_err(|error| failed(path, selector, error))?;
        Ok(MetadataPage {
            items,
            next,
            remaining: page.metadata.remaining_item_count,
        })
    }

    /// Collects all pages. Calls `read` for each object during parsing, then finishes all objects
    /// of a page together. Restarts once if the list expires.
    async fn pages<T: DeserializeOwned, V, U>(
        &self,
        path: &ResourcePath,
        selector: &Selector<'_>,
        accept: &'static str,
        items: &mut Vec<U>,
        read: impl Fn(T) -> V,
        finish: impl Fn(Vec<V>) -> Result<Vec<U>, Box<ApiError>>,
    ) -> Result<String, ClusterError> {
        let mut token: Option<String> = None;
        let mut restarted = false;
        loop {
            let mut objects = Vec::new();
            let page = self
                .one_page(
                    path,
                    selector,
                    (accept, token.as_deref()),
                    &mut objects,
                    &read,
                )
                .await?;
            let page = match page {
                Ok(page) => page,
                Err(error)
                    if token.is_some()
                        && !restarted
                        && matches!(error.class, Class::Expired { .. }) =>
                {
                    // A fresh token would continue from another snapshot. Objects could be missing
                    // from both parts.
                    items.clear();
                    token = None;
                    restarted = true;
                    continue;
                }
                Err(error) => return Err(failed(path, selector, error)),
            };
            let finished = finish(objects).map_err(|error| failed(path, selector, error))?;
            items.extend(finished);
            let next = page.next().map_err(|error| failed(path, selector, error))?;
            if next.is_none() {
                return Ok(page.metadata.resource_version.unwrap_or_default());
            }
            if next == token {
                // The list would never end.
                let message = "the server returned the same continue token twice";
                let error = ApiError::local(Class::NotKubernetes, message);
                return Err(failed(path, selector, error.into()));
            }
            token = next;
        }
    }

    /// Requests one page and appends its objects to `items`. The inner error is the server's
    /// answer.
    async fn one_page<T: DeserializeOwned, U>(
        &self,
        path: &ResourcePath,
        selector: &Selector<'_>,
        (accept, token): (&'static str, Option<&str>),
        items: &mut Vec<U>,
        read: &impl Fn(T) -> U,
    ) -> Result<Result<Page, Box<ApiError>>, ClusterError> {
        let mut query = selector.query();
        query.push(("limit", PAGE.to_string()));
        if let Some(token) = token {
            query.push(("continue", token.to_owned()));
        }
        let mut call = Call::read(
            Verb::List,
            with_query(path.collection(selector.namespace)?, &query),
            About {
                kind: &path.kind,
                secret: path.kind == "Secret",
                hides: None,
            },
        );
        call.accept = accept;
        let reply = match self.send(call).await {
            Ok(reply) => reply,
            Err(error) => return Ok(Err(error)),
        };
        let page = reply.json_with(Reading::new(read, items));
        Ok(page.and_then(|page| {
            if page.kind.ends_with("List") {
                Ok(page)
            } else {
                Err(no_list(&page.kind).into())
            }
        }))
    }
}

impl Page {
    /// Returns the token of the next page. `None` on the last page. A truncated list is an error.
    fn next(&self) -> Result<Option<String>, Box<ApiError>> {
        let token = self.metadata.continue_token.clone();
        let token = token.filter(|token| !token.is_empty());
        if token.is_none() && self.metadata.remaining_item_count.unwrap_or_default() > 0 {
            return Err(no_list("a truncated list").into());
        }
        Ok(token)
    }
}

fn failed(path: &ResourcePath, selector: &Selector<'_>, source: Box<ApiError>) -> ClusterError {
    ClusterError::List {
        kind: path.group_kind(),
        namespace: selector.namespace.map(str::to_owned),
        source,
    }
}

/// Adds apiVersion and kind, which items of built-in kinds lack in a list.
pub(crate) fn with_type(mut item: Map<String, Value>, path: &ResourcePath) -> Value {
    item.insert("apiVersion".to_owned(), json!(path.api_version.to_string()));
    item.insert("kind".to_owned(), json!(path.kind));
    Value::Object(item)
}

fn no_list(what: &str) -> ApiError {
    let message = format!("expected a list from the server, got {what}");
    ApiError::local(Class::NotKubernetes, message)
}
