//! Rules for Services, their address ranges, and Ingresses.

use serde_json::Value;

use super::Assessment;
use super::conditions::condition;

fn has_address(value: &Value) -> bool {
    value["status"]["loadBalancer"]["ingress"]
        .as_array()
        .is_some_and(|addresses| !addresses.is_empty())
}

pub(super) fn service(value: &Value) -> Assessment {
    if value["spec"]["type"] == "LoadBalancer" && !has_address(value) {
        return Assessment::in_progress("the load balancer has no address yet");
    }
    Assessment::current()
}

/// Assesses an Ingress. Many controllers never write an address, so none is
/// awaited.
pub(super) fn ingress(value: &Value) -> Assessment {
    if has_address(value) {
        Assessment::current()
    } else {
        Assessment::note("no address in its status")
    }
}

pub(super) fn service_range(value: &Value) -> Assessment {
    match condition(value, "Ready") {
        Some(ready) if ready.is_true() => Assessment::current(),
        Some(ready) => Assessment::in_progress(ready.line()),
        None => Assessment::in_progress("no condition Ready yet"),
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::json;

    use super::super::Readiness::{self, Current, InProgress};
    use super::super::tests::check;
    use super::*;

    #[rstest]
    #[case("v1", "Service", json!({"spec": {"type": "ClusterIP"}, "status": {"loadBalancer": {}}}), Current, "")]
    #[case("v1", "Service", json!({"spec": {"type": "ExternalName"}}), Current, "")]
    #[case("v1", "Service", json!({"spec": {"type": "LoadBalancer"}, "status": {"loadBalancer": {}}}),
        InProgress, "the load balancer has no address yet")]
    #[case("v1", "Service", json!({"spec": {"type": "LoadBalancer"}, "status": {"loadBalancer": {"ingress": [{"ip": "192.0.2.1"}]}}}), Current, "")]
    #[case("networking.k8s.io/v1", "Ingress", json!({"status": {"loadBalancer": {}}}), Current, "no address in its status")]
    #[case("networking.k8s.io/v1", "ServiceCIDR", json!({}), InProgress, "no condition Ready yet")]
    #[case("networking.k8s.io/v1", "ServiceCIDR", json!({"status": {"conditions": [{"type": "Ready", "status": "True"}]}}), Current, "")]
    #[case("networking.k8s.io/v1", "ServiceCIDR", json!({"status": {"conditions": [{"type": "Ready", "status": "False", "reason": "Terminating"}]}}),
        InProgress, "Ready=False (Terminating)")]
    fn by_status(
        #[case] api_version: &str,
        #[case] kind: &str,
        #[case] rest: Value,
        #[case] readiness: Readiness,
        #[case] message: &str,
    ) {
        assert_eq!(
            check(api_version, kind, rest),
            (readiness, message.to_owned())
        );
    }
}
