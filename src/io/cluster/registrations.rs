//! What points at Services, and what stands behind those Services.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use pleach_domain::object::{GroupKind, ServiceRef};
use pleach_domain::observe::{Backend, LiveMeta, Registration};
use pleach_domain::order::interceptions;
use serde_json::Value;
use tokio::time::Instant;

use super::{ApiError, Class, Cluster, ClusterError, ResourcePath, Selector};

/// How long a refusal is taken for granted: rights may be given at any time.
const REMEMBERED: Duration = Duration::from_mins(2);

/// Lists that were refused, by the plural of their kind, for all clones of a
/// connection.
#[derive(Debug, Clone, Default)]
pub(super) struct Refusals(Arc<Mutex<HashMap<String, (Instant, ApiError)>>>);

impl Refusals {
    fn get(&self, plural: &str) -> Option<ApiError> {
        let refusals = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (since, error) = refusals.get(plural)?;
        (since.elapsed() < REMEMBERED).then(|| error.clone())
    }

    /// Whether something of the whole cluster was refused lately: who is refused
    /// one kind has rights in namespaces, as a rule.
    pub(super) fn are_recent(&self) -> bool {
        let refusals = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        refusals
            .values()
            .any(|(since, _)| since.elapsed() < REMEMBERED)
    }

    pub(super) fn remember(&self, plural: &str, error: &ApiError) {
        let mut refusals = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // What was remembered is not news.
        let known = refusals.get(plural);
        if known.is_none_or(|(since, _)| since.elapsed() >= REMEMBERED) {
            refusals.insert(plural.to_owned(), (Instant::now(), error.clone()));
        }
    }
}

/// The registrations of one kind, or why they could not be listed.
#[derive(Debug)]
pub struct RegistrationList {
    /// The kind.
    pub kind: GroupKind,
    /// Those that point at a Service.
    pub found: Result<Vec<Registration>, ClusterError>,
}

impl Cluster {
    /// Lists what points at Services: `APIServices` and webhook configurations.
    /// Each kind has its own result: a forbidden or failed one makes the view
    /// incomplete, not empty. A refusal is remembered for a while: who has rights
    /// in namespaces only would be refused again for every release. `manager` is
    /// our field manager.
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

    /// Reads what stands behind a Service: two requests.
    pub async fn backend(&self, service: &ServiceRef) -> Result<Backend, ClusterError> {
        let services = ResourcePath::namespaced("v1", "Service", "services");
        let slices =
            ResourcePath::namespaced("discovery.k8s.io/v1", "EndpointSlice", "endpointslices");
        let label = format!("kubernetes.io/service-name={}", service.name);
        let selector = Selector {
            namespace: Some(&service.namespace),
            labels: Some(&label),
            fields: None,
        };
        let (service, slices) = futures::try_join!(
            self.get(&services, Some(&service.namespace), &service.name),
            self.list(&slices, &selector)
        )?;
        Ok(Backend {
            exists: service.is_some(),
            ready_endpoints: ready_endpoints(&slices.items),
        })
    }
}

/// Reads a registration; none when it points at no Service: an API that the
/// server itself serves, a webhook with a URL.
fn registration(path: &ResourcePath, value: &Value, manager: &str) -> Option<Registration> {
    let name = value["metadata"]["name"].as_str()?;
    let is_api = path.kind == "APIService";
    let references: Vec<&Value> = if is_api {
        vec![&value["spec"]["service"]]
    } else {
        value["webhooks"]
            .as_array()
            .into_iter()
            .flatten()
            .map(|webhook| &webhook["clientConfig"]["service"])
            .collect()
    };
    let services: BTreeSet<ServiceRef> = references.into_iter().filter_map(service).collect();
    if services.is_empty() {
        return None;
    }
    Some(Registration {
        id: path.id(None, name),
        meta: LiveMeta::read(&value["metadata"], manager),
        services: services.into_iter().collect(),
        intercepts: interceptions(value),
        available: is_api.then(|| available(value)),
    })
}

fn service(value: &Value) -> Option<ServiceRef> {
    Some(ServiceRef {
        namespace: value["namespace"].as_str()?.to_owned(),
        name: value["name"].as_str()?.to_owned(),
    })
}

/// Condition Available of an APIService.
fn available(value: &Value) -> Result<(), String> {
    let condition = value["status"]["conditions"]
        .as_array()
        .into_iter()
        .flatten()
        .find(|condition| condition["type"] == "Available");
    match condition {
        Some(condition) if condition["status"] == "True" => Ok(()),
        Some(condition) => Err(format!(
            "{}: {}",
            condition["reason"].as_str().unwrap_or_default(),
            condition["message"].as_str().unwrap_or_default()
        )),
        None => Err("the server has not looked at it yet".to_owned()),
    }
}

/// Endpoints that are ready, once each: a pod with two addresses is in the
/// slices of both families.
fn ready_endpoints(slices: &[Value]) -> usize {
    let ready: BTreeSet<&str> = slices
        .iter()
        .flat_map(|slice| slice["endpoints"].as_array().into_iter().flatten())
        // Absent means ready (EndpointConditions).
        .filter(|endpoint| endpoint["conditions"]["ready"] != false)
        .filter_map(|endpoint| {
            endpoint["targetRef"]["uid"]
                .as_str()
                .or_else(|| endpoint["addresses"][0].as_str())
        })
        .collect();
    ready.len()
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::json;

    use super::*;

    #[rstest]
    #[case(json!([]), 0)]
    #[case(json!([{"endpoints": null}]), 0)]
    #[case(json!([{"endpoints": [
        {"addresses": ["10.0.0.1"], "conditions": {"ready": true}},
        {"addresses": ["10.0.0.2"], "conditions": {"ready": false}},
        {"addresses": ["10.0.0.3"]},
    ]}]), 2)]
    #[case(json!([
        {"endpoints": [{"addresses": ["10.0.0.1"], "targetRef": {"uid": "a"}}]},
        {"endpoints": [{"addresses": ["fd00::1"], "targetRef": {"uid": "a"}}]},
    ]), 1)]
    fn endpoints_are_counted_once(#[case] slices: Value, #[case] expected: usize) {
        assert_eq!(ready_endpoints(slices.as_array().unwrap()), expected);
    }

    fn webhooks() -> ResourcePath {
        ResourcePath::cluster_scoped("a/v1", "ValidatingWebhookConfiguration", "x")
    }

    #[test]
    fn services_are_named_once_and_urls_are_left_out() {
        let value = json!({"metadata": {"name": "w", "uid": "u"}, "webhooks": [
            {"clientConfig": {"service": {"namespace": "b", "name": "s"}}},
            {"clientConfig": {"url": "https://x"}},
            {"clientConfig": {"service": {"namespace": "a", "name": "s", "port": 1}}},
            {"clientConfig": {"service": {"namespace": "b", "name": "s"}}},
        ]});
        let found = registration(&webhooks(), &value, "pleach/a.b").unwrap();
        let names: Vec<String> = found.services.iter().map(ToString::to_string).collect();
        assert_eq!(names, ["a/s", "b/s"]);
        assert_eq!(found.meta.uid, "u");
        assert_eq!(found.available, None);
    }

    #[test]
    fn what_points_at_no_service_is_no_registration() {
        let value = json!({"metadata": {"name": "w"}, "webhooks": null});
        assert_eq!(registration(&webhooks(), &value, "m"), None);
    }

    #[rstest]
    #[case(json!([{"type": "Available", "status": "True"}]), Ok(()))]
    #[case(
        json!([{"type": "Available", "status": "False", "reason": "ServiceNotFound",
            "message": "service/widget-api in \"kube-system\" is not present"}]),
        Err("ServiceNotFound: service/widget-api in \"kube-system\" is not present")
    )]
    #[case(json!(null), Err("the server has not looked at it yet"))]
    fn availability_is_a_condition(#[case] conditions: Value, #[case] expected: Result<(), &str>) {
        let path = ResourcePath::cluster_scoped("a/v1", "APIService", "apiservices");
        let value = json!({"metadata": {"name": "v1.x"}, "status": {"conditions": conditions},
            "spec": {"service": {"namespace": "a", "name": "s"}}});
        let found = registration(&path, &value, "m").unwrap();
        assert_eq!(found.available, Some(expected.map_err(str::to_owned)));
    }
}
