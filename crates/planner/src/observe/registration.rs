//! Registrations and their backends. The planner and `doctor` share this logic.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use serde_json::Value;

use pleach_model::object::{ObjectId, ServiceRef};
use pleach_model::order::{Interception, interceptions, registered_services};
use pleach_state::live::LiveMeta;

/// An APIService or webhook configuration that points at Services.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Registration {
    /// The object.
    pub id: ObjectId,
    /// Its metadata.
    pub meta: LiveMeta,
    /// Services that it points at, without duplicates.
    pub services: Vec<ServiceRef>,
    /// Whether a webhook of the configuration uses a URL. Availability of a URL is unknown, so the
    /// configuration counts as in use.
    #[serde(default)]
    pub asks_url: bool,
    /// API resources that the webhooks intercept. Empty for APIServices.
    #[serde(default)]
    pub intercepts: Vec<Interception>,
    /// Names of the webhooks, as the server quotes them in refusals. Empty for APIServices.
    #[serde(default)]
    pub webhooks: Vec<String>,
    /// Condition Available of an APIService, with the message if it is not True. `None` for webhook
    /// configurations.
    pub available: Option<Result<(), String>>,
}

/// Backend of a Service.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Backend {
    /// Whether the Service exists.
    pub exists: bool,
    /// Whether the Service refers to another DNS name (`type: ExternalName`). It has no endpoints,
    /// and its availability is unknown.
    #[serde(default)]
    pub is_elsewhere: bool,
    /// Number of ready endpoints in all its EndpointSlices.
    pub ready_endpoints: usize,
}

/// Reason why a registration has no working backend.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lack {
    /// The Service does not exist.
    Service,
    /// The Service has no ready endpoint.
    Endpoints,
}

impl Registration {
    /// Reads a live registration. Returns `None` if it points at no Service: an API of the server
    /// itself, or webhooks with URLs only. `manager` is pleach's field manager.
    pub fn read(id: ObjectId, value: &Value, manager: &str) -> Option<Self> {
        let kind = id.group_kind();
        let services = registered_services(&kind, value);
        if services.is_empty() {
            return None;
        }
        let is_api = kind.is("apiregistration.k8s.io", "APIService");
        Some(Self {
            id,
            meta: LiveMeta::read(&value["metadata"], manager),
            services,
            asks_url: asks_url(value),
            intercepts: interceptions(value),
            webhooks: names(value),
            available: is_api.then(|| available(value)),
        })
    }

    /// Returns whether no part of the registration has a backend. A backend missing from `backends`
    /// counts as alive.
    pub fn is_dead(&self, backends: &BTreeMap<ServiceRef, Backend>) -> bool {
        let answers = self.available == Some(Ok(()));
        let lacks = |service: &ServiceRef| {
            let backend = backends.get(service);
            backend.is_some_and(|backend| backend.lack(answers).is_some())
        };
        !self.asks_url && !self.services.is_empty() && self.services.iter().all(lacks)
    }
}

impl Backend {
    /// Reads a Service, if it exists, and its EndpointSlices.
    pub fn read(service: Option<&Value>, slices: &[Value]) -> Self {
        Self {
            exists: service.is_some(),
            is_elsewhere: service.is_some_and(|value| value["spec"]["type"] == "ExternalName"),
            ready_endpoints: ready_endpoints(slices),
        }
    }

    /// Returns the reason why the backend cannot answer, or `None`. `answers` is the API server's
    /// own report of availability. It takes precedence over endpoints.
    pub fn lack(&self, answers: bool) -> Option<Lack> {
        if !self.exists {
            return Some(Lack::Service);
        }
        let is_empty = self.ready_endpoints == 0 && !self.is_elsewhere;
        (is_empty && !answers).then_some(Lack::Endpoints)
    }
}

fn names(value: &Value) -> Vec<String> {
    let webhooks = value["webhooks"].as_array().into_iter().flatten();
    webhooks
        .filter_map(|webhook| webhook["name"].as_str().map(str::to_owned))
        .collect()
}

/// Returns whether a webhook of the configuration uses a URL.
pub fn asks_url(value: &Value) -> bool {
    let mut webhooks = value["webhooks"].as_array().into_iter().flatten();
    webhooks.any(|webhook| webhook["clientConfig"]["url"].is_string())
}

/// Reads condition Available of an APIService. Fails with its reason and message if it is not True.
pub fn available(value: &Value) -> Result<(), String> {
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
        None => Err("the API server has not checked it yet".to_owned()),
    }
}

/// Counts distinct ready endpoints. A dual-stack pod is in the slices of both families.
fn ready_endpoints(slices: &[Value]) -> usize {
    let ready: BTreeSet<&str> = slices
        .iter()
        .flat_map(|slice| slice["endpoints"].as_array().into_iter().flatten())
        // An absent `ready` means ready (EndpointConditions).
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

    fn webhooks(value: &Value) -> Option<Registration> {
        let group = "admissionregistration.k8s.io";
        let id = ObjectId::new(group, "ValidatingWebhookConfiguration", None, "w");
        Registration::read(id, value, "pleach/a.b")
    }

    fn api(conditions: &Value) -> Registration {
        let id = ObjectId::new("apiregistration.k8s.io", "APIService", None, "v1.x");
        let value = json!({"metadata": {"name": "v1.x"}, "status": {"conditions": conditions},
            "spec": {"service": {"namespace": "a", "name": "s"}}});
        Registration::read(id, &value, "m").unwrap()
    }

    fn behind(backend: Option<Backend>) -> BTreeMap<ServiceRef, Backend> {
        let service = ServiceRef {
            namespace: "a".to_owned(),
            name: "s".to_owned(),
        };
        backend
            .into_iter()
            .map(|backend| (service.clone(), backend))
            .collect()
    }

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

    #[test]
    fn services_are_named_once_and_urls_are_recognized() {
        let value = json!({"metadata": {"name": "w", "uid": "u"}, "webhooks": [
            {"clientConfig": {"service": {"namespace": "b", "name": "s"}}},
            {"clientConfig": {"url": "https://x"}},
            {"clientConfig": {"service": {"namespace": "a", "name": "s", "port": 1}}},
            {"clientConfig": {"service": {"namespace": "b", "name": "s"}}},
        ]});
        let found = webhooks(&value).unwrap();
        let names: Vec<String> = found.services.iter().map(ToString::to_string).collect();
        assert_eq!(names, ["a/s", "b/s"]);
        assert_eq!(found.meta.uid, "u");
        assert_eq!((found.available, found.asks_url), (None, true));
    }

    #[rstest]
    #[case(json!(null))]
    #[case(json!([{"clientConfig": {"url": "https://x"}}]))]
    fn an_object_without_a_service_is_no_registration(#[case] hooks: Value) {
        let value = json!({"metadata": {"name": "w"}, "webhooks": hooks});
        assert_eq!(webhooks(&value), None);
    }

    #[rstest]
    #[case(json!([{"type": "Available", "status": "True"}]), Ok(()))]
    #[case(
        json!([{"type": "Available", "status": "False", "reason": "ServiceNotFound",
            "message": "service/widget-api in \"kube-system\" is not present"}]),
        Err("ServiceNotFound: service/widget-api in \"kube-system\" is not present")
    )]
    #[case(json!(null), Err("the API server has not checked it yet"))]
    fn availability_is_a_condition(#[case] conditions: Value, #[case] expected: Result<(), &str>) {
        let found = api(&conditions);
        assert_eq!(found.available, Some(expected.map_err(str::to_owned)));
    }

    #[rstest]
    #[case::gone(None, json!([]), Some(Lack::Service))]
    #[case::empty(Some(json!({"spec": {"type": "ClusterIP"}})), json!([]), Some(Lack::Endpoints))]
    #[case::answers(Some(json!({})), json!([{"endpoints": [{"addresses": ["10.0.0.1"]}]}]), None)]
    #[case::elsewhere(Some(json!({"spec": {"type": "ExternalName", "externalName": "x"}})), json!([]), None)]
    fn a_service_of_another_name_may_answer(
        #[case] service: Option<Value>,
        #[case] slices: Value,
        #[case] lack: Option<Lack>,
    ) {
        let backend = Backend::read(service.as_ref(), slices.as_array().unwrap());
        assert_eq!(backend.lack(false), lack);
        let hook =
            json!({"webhooks": [{"clientConfig": {"service": {"namespace": "a", "name": "s"}}}]});
        let registration = webhooks(&hook).unwrap();
        let backends = behind(Some(backend));
        assert_eq!(registration.is_dead(&backends), lack.is_some());
        assert!(!registration.is_dead(&behind(None)));
    }

    #[test]
    fn a_registration_with_a_url_is_never_dead() {
        let hook = json!({"webhooks": [
            {"clientConfig": {"service": {"namespace": "a", "name": "s"}}},
            {"clientConfig": {"url": "https://x"}}]});
        let registration = webhooks(&hook).unwrap();
        assert!(!registration.is_dead(&behind(Some(Backend::default()))));
    }

    #[rstest]
    #[case(true, true, false)]
    #[case(true, false, true)]
    #[case(false, true, true)]
    fn an_api_that_answers_has_a_backend(
        #[case] exists: bool,
        #[case] answers: bool,
        #[case] dead: bool,
    ) {
        let status = if answers { "True" } else { "False" };
        let registration = api(&json!([{"type": "Available", "status": status}]));
        let backend = Backend {
            exists,
            ..Backend::default()
        };
        assert_eq!(registration.is_dead(&behind(Some(backend))), dead);
    }
}
