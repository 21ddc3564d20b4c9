//! Discovery of the served kinds: aggregated, in two requests.
//!
//! A group-version is marked as stale if its server does not answer. Its kinds are then unknown,
//! not absent.

use futures::{StreamExt as _, TryStreamExt as _, stream};
use kube::core::discovery::v2::{
    ACCEPT_AGGREGATED_DISCOVERY_V2, APIGroupDiscoveryList, APIVersionDiscovery,
};
use pleach_model::discovery::{Discovery, Freshness, Resource, ServedGroup, ServedVersion};
use pleach_model::object::ApiVersion;
use serde::Deserialize;

use super::classify::Verb;
use super::path::root;
use super::shared::Taking;
use super::transport::{About, Call};
use super::{ApiError, Class, Cluster, ClusterError};

/// Number of concurrent requests when each group-version is requested separately.
const CONCURRENT: usize = 8;

impl Cluster {
    /// Returns the served kinds.
    pub async fn discover(&self) -> Result<Discovery, ClusterError> {
        let found = match self.taking {
            Taking::Nothing => self.ask_discovery().await,
            Taking::Since(since) | Taking::Everything(since) => self.discovery_shared(since).await,
        };
        found.map_err(ClusterError::Discover)
    }

    /// Requests the served kinds and ignores shared answers.
    pub(super) async fn ask_discovery(&self) -> Result<Discovery, Box<ApiError>> {
        let (core, groups) = futures::try_join!(self.document("/api"), self.document("/apis"))?;
        let mut discovery = Discovery::default();
        for document in [core, groups] {
            match document {
                Document::Aggregated(list) => {
                    for group in list.items {
                        let name = group
                            .metadata
                            .and_then(|metadata| metadata.name)
                            .unwrap_or_default();
                        let versions = group.versions.into_iter().filter_map(served).collect();
                        discovery
                            .groups_mut()
                            .insert(name, ServedGroup { versions });
                    }
                }
                Document::Names(versions) => {
                    self.walk(versions, &mut discovery).await?;
                }
            }
        }
        Ok(discovery)
    }

    async fn document(&self, url: &str) -> Result<Document, Box<ApiError>> {
        let mut call = Call::read(Verb::Get, url.to_owned(), About::default());
        call.accept = ACCEPT_AGGREGATED_DISCOVERY_V2;
        let reply = self.send(call).await?;
        let Typed { kind } = reply.json()?;
        match kind.as_deref() {
            Some("APIGroupDiscoveryList") => Ok(Document::Aggregated(reply.json()?)),
            Some("APIVersions") => {
                let legacy: LegacyVersions = reply.json()?;
                Ok(Document::Names(vec![(String::new(), legacy.versions)]))
            }
            Some("APIGroupList") => {
                let legacy: LegacyGroups = reply.json()?;
                let names = legacy.groups.into_iter().map(|group| {
                    let mut versions: Vec<String> =
                        group.versions.into_iter().map(|v| v.version).collect();
                    // A stable sort: the preferred version comes first.
                    versions.sort_by_key(|v| *v != group.preferred_version.version);
                    (group.name, versions)
                });
                Ok(Document::Names(names.collect()))
            }
            _ => Err(Box::new(ApiError::local(
                Class::NotKubernetes,
                format!("{url} is not a discovery document"),
            ))),
        }
    }

    /// Requests each group-version separately: for servers before 1.26 and servers without
    /// aggregated discovery. A group-version that fails is marked as stale.
    async fn walk(
        &self,
        groups: Vec<(String, Vec<String>)>,
        discovery: &mut Discovery,
    ) -> Result<(), Box<ApiError>> {
        let flat = groups.into_iter().flat_map(|(group, versions)| {
            versions.into_iter().map(move |version| ApiVersion {
                group: group.clone(),
                version,
            })
        });
        let mut served = stream::iter(flat)
            .map(|api_version| async move {
                let call = Call::read(Verb::Get, root(&api_version), About::default());
                let resources = match self.send(call).await {
                    Ok(reply) => Some(reply.json::<LegacyResources>()?),
                    Err(error) if is_stale(&error) => None,
                    Err(error) => return Err(error),
                };
                Ok((api_version, resources))
            })
            .buffered(CONCURRENT);
        while let Some((api_version, resources)) = served.try_next().await? {
            let version = ServedVersion {
                version: api_version.version,
                freshness: if resources.is_some() {
                    Freshness::Current
                } else {
                    Freshness::Stale
                },
                resources: resources
                    .map(|list| list.resources)
                    .unwrap_or_default()
                    .into_iter()
                    .filter(|resource| !resource.name.contains('/'))
                    .map(|resource| Resource {
                        kind: resource.kind,
                        plural: resource.name,
                        namespaced: resource.namespaced,
                        verbs: resource.verbs.into_iter().collect(),
                    })
                    .collect(),
            };
            discovery
                .groups_mut()
                .entry(api_version.group)
                .or_default()
                .versions
                .push(version);
        }
        Ok(())
    }
}

/// Returns whether the failure concerns only one API and not the whole server.
fn is_stale(error: &ApiError) -> bool {
    error.status.is_some_and(|status| status >= 500)
        || matches!(error.class, Class::KindNotServed | Class::NotFound)
}

enum Document {
    Aggregated(APIGroupDiscoveryList),
    Names(Vec<(String, Vec<String>)>),
}

/// Kind of a document. The rest is skipped during parsing.
#[derive(Deserialize)]
struct Typed {
    kind: Option<String>,
}

#[derive(Deserialize)]
struct LegacyVersions {
    versions: Vec<String>,
}

#[derive(Deserialize)]
struct LegacyGroups {
    groups: Vec<LegacyGroup>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct LegacyGroup {
    name: String,
    versions: Vec<LegacyVersion>,
    #[serde(default)]
    preferred_version: LegacyVersion,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct LegacyVersion {
    version: String,
}

#[derive(Deserialize)]
struct LegacyResources {
    #[serde(default)]
    resources: Vec<LegacyResource>,
}

#[derive(Deserialize)]
struct LegacyResource {
    name: String,
    namespaced: bool,
    kind: String,
    #[serde(default)]
    verbs: Vec<String>,
}

fn served(version: APIVersionDiscovery) -> Option<ServedVersion> {
    let resources = version
        .resources
        .into_iter()
        .filter_map(|resource| {
            let plural = resource.resource.unwrap_or_default();
            let kind = resource
                .response_kind
                .and_then(|kind| kind.kind)
                .unwrap_or_default();
            // A resource without a kind has only subresources.
            if plural.is_empty() || kind.is_empty() {
                return None;
            }
            Some(Resource {
                kind,
                plural,
                namespaced: resource.scope.as_deref() == Some("Namespaced"),
                verbs: resource.verbs.into_iter().collect(),
            })
        })
        .collect();
    Some(ServedVersion {
        version: version.version?,
        freshness: if version.freshness.as_deref() == Some("Stale") {
            Freshness::Stale
        } else {
            Freshness::Current
        },
        resources,
    })
}
