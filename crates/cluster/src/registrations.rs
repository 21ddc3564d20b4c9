//! Registrations that refer to Services, and the endpoints of these Services.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use pleach_model::object::{GroupKind, ServiceRef};
use pleach_planner::observe::{Backend, Registration};
use serde_json::Value;
use tokio::time::Instant;

use super::{ApiError, Class, Cluster, ClusterError, ResourcePath, Selector};

/// How long a refusal is cached. Permissions can be granted at any time.
const REMEMBERED: Duration = Duration::from_mins(2);

/// Forbidden lists by plural name, shared by all clones of a connection.
#[derive(Debug, Clone, Default)]
pub(super) struct Refusals(Arc<Mutex<HashMap<String, (Instant, ApiError)>>>);

impl Refusals {
    fn get(&self, plural: &str) -> Option<ApiError> {
        let refusals = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (since, error) = refusals.get(plural)?;
        (since.elapsed() < REMEMBERED).then(|| error.clone())
    }

    /// Returns whether a cluster-wide list was refused recently. Such a user usually has
    /// permissions only in namespaces.
    pub(super) fn are_recent(&self) -> bool {
        let refusals = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        refusals
            .values()
            .any(|(since, _)| since.elapsed() < REMEMBERED)
    }

    pub(super) fn remember(&self, plural: &str, error: &ApiError) {
        let mut refusals = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // Do not extend a cached refusal.
        let known = refusals.get(plural);
        if known.is_none_or(|(since, _)| since.elapsed() >= REMEMBERED) {
            refusals.insert(plural.to_owned(), (Instant::now(), error.clone()));
        }
    }
}

/// Registrations of one kind, or the error of their list.
#[derive(Debug)]
pub struct RegistrationList {
    /// The kind.
    pub kind: GroupKind,
    /// Registrations that refer to a Service.
    pub found: Result<Vec<Registration>, ClusterError>,
}

impl Cluster {
    /// Lists registrations that refer to Services: `APIServices` and webhook configurations. Each
    /// kind has its own result, so a failure makes the view incomplete, not empty. Refusals are
    /// cached, because a user with namespace permissions would otherwise be refused again for every
    /// release. `manager` is our field manager.
    pub async fn registrations(&self, manager: &str) -> Vec<RegistrationList> {
        let paths = [
            ResourcePath::cluster_scoped("apiregistration.k8s.io/v1", "APIService", "apiservices"),
            ResourcePath::cluster_scoped(
                "admissionregistration.k8s.io/v1",
                "ValidatingWebhookConfiguration",
                "validatingwebhookconfigurations",
            ),
            ResourcePath::cluster_scoped(
                "admissionregistration.k8s.io/v1",
                "MutatingWebhookConfiguration",
                "mutatingwebhookconfigurations",
            ),
        ];
        let everything = Selector::default();
        let common = self.common();
        let lists = paths.iter().map(|path| async {
            let listed = match self.refusals.get(&path.plural) {
                Some(source) => Err(ClusterError::List {
                    kind: path.group_kind(),
                    namespace: None,
                    source: Box::new(source),
                }),
                None => common.list(path, &everything).await,
            };
            if let Err(error) = &listed
                && let Some(api) = error.api().filter(|api| api.class == Class::Forbidden)
            {
                self.refusals.remember(&path.plural, api);
            }
            let found = listed.map(|list| {
                list.items
                    .iter()
                    .filter_map(|value| registration(path, value, manager))
                    .collect()
            });
            RegistrationList {
                kind: path.group_kind(),
                found,
            }
        });
        futures::future::join_all(lists).await
    }

    /// Reads the backend of a Service. Sends two requests.
    pub async fn backend(&self, service: &ServiceRef) -> Result<Backend, ClusterError> {
        self.backend_of(service, None).await
    }

    /// Reads the backend of a Service and counts only endpoints of pods with these labels. Sends
    /// one more request. Without the permission to list pods, all endpoints count.
    pub async fn backend_among(
        &self,
        service: &ServiceRef,
        labels: &BTreeMap<String, String>,
    ) -> Result<Backend, ClusterError> {
        let path = ResourcePath::namespaced("v1", "Pod", "pods");
        let labels: Vec<String> = labels
            .iter()
            .map(|(key, value)| format!("{key}={value}"))
            .collect();
        let labels = labels.join(",");
        let selector = Selector {
            namespace: Some(&service.namespace),
            labels: Some(&labels),
            fields: None,
        };
        match self.list_metadata(&path, &selector, "").await {
            Ok(list) => {
                let pods = list.items.into_iter().map(|(_, meta)| meta.uid);
                let pods: BTreeSet<String> = pods.collect();
                self.backend_of(service, Some(&pods)).await
            }
            Err(error) if error.class() == Some(&Class::Forbidden) => {
                self.backend_of(service, None).await
            }
            Err(error) => Err(error),
        }
    }

    async fn backend_of(
        &self,
        service: &ServiceRef,
        pods: Option<&BTreeSet<String>>,
    ) -> Result<Backend, ClusterError> {
        let services = ResourcePath::namespaced("v1", "Service", "services");
        let slices =
            ResourcePath::namespaced("discovery.k8s.io/v1", "EndpointSlice", "endpointslices");
        let label = format!("kubernetes.io/service-name={}", service.name);
        let selector = Selector {
            namespace: Some(&service.namespace),
            labels: Some(&label),
            fields: None,
        };
        let (service, mut slices) = futures::try_join!(
            self.get(&services, Some(&service.namespace), &service.name),
            self.list(&slices, &selector)
        )?;
        if let Some(pods) = pods {
            keep_endpoints_of(&mut slices.items, pods);
        }
        Ok(Backend::read(service.as_ref(), &slices.items))
    }
}

/// Retains only the endpoints of these pods, by uid.
fn keep_endpoints_of(slices: &mut [Value], pods: &BTreeSet<String>) {
    let is_of = |endpoint: &Value| {
        let uid = endpoint["targetRef"]["uid"].as_str();
        uid.is_some_and(|uid| pods.contains(uid))
    };
    for slice in slices {
        let endpoints = slice.get_mut("endpoints").and_then(Value::as_array_mut);
        if let Some(endpoints) = endpoints {
            endpoints.retain(is_of);
        }
    }
}

/// Reads a registration. `None` if it refers to no Service.
fn registration(path: &ResourcePath, value: &Value, manager: &str) -> Option<Registration> {
    let name = value["metadata"]["name"].as_str()?;
    Registration::read(path.id(None, name), value, manager)
}
