//! Registrations of Services that no manifest contains. They break all intercepted requests.

use super::Scene;
use pleach_model::finding::{Finding, Kind};

pub(super) fn check(scene: &Scene<'_>, findings: &mut Vec<Finding>) {
    for object in &scene.objects {
        for service in &object.facts.services {
            if scene.has(&service.id()) {
                continue;
            }
            let finding = Finding::warning(
                Kind::Repository,
                "registration-without-service",
                format!(
                    "Service {service}, which it points at, is in no manifest of the environment"
                ),
            )
            .hint("requests that it intercepts fail as long as that Service has no endpoints");
            findings.push(object.at(finding, pointer(&object.id().kind)));
        }
    }
}

fn pointer(kind: &str) -> &'static str {
    match kind {
        "APIService" => "/spec/service",
        "CustomResourceDefinition" => "/spec/conversion/webhook/clientConfig/service",
        _ => "/webhooks",
    }
}
