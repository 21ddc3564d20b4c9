//! Services and ingresses.

use serde_json::Value;

use super::Assessment;

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

/// Many ingress controllers never write an address, so none is waited for.
pub(super) fn ingress(value: &Value) -> Assessment {
    if has_address(value) {
        Assessment::current()
    } else {
        Assessment::note("no address in its status")
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
    fn by_address(
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
