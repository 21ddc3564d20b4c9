//! An upgrade leaves the Service of a registration without endpoints, on a control plane with
//! running pods.

use crate::fleet::Fleet;
use crate::samples::{BUNDLE, webhook};
use crate::stages::nodes;

const AFTER: &str = "manifests/web/v1.1.0/all.yaml";

/// Returns a webhook, its Service, and a workload with a role. Its previous pods end before the new
/// ones start, so the Service loses its endpoints.
fn manifests(environment: &str, role: &str) -> String {
    let service = "\
apiVersion: v1
kind: Service
metadata: {name: app}
spec: {selector: {role: front}, ports: [{port: 443}]}
";
    let workload = format!(
        "\
apiVersion: apps/v1
kind: Deployment
metadata: {{name: app}}
spec:
  replicas: 1
  strategy: {{type: Recreate}}
  selector: {{matchLabels: {{app: app}}}}
  template:
    metadata: {{labels: {{app: app, role: {role}}}}}
    spec: {{terminationGracePeriodSeconds: 0, containers: [{{name: app, image: \"app:1\"}}]}}
"
    );
    [service, &workload, &webhook(environment, "app")].join("---\n")
}

#[test]
fn an_upgrade_that_takes_the_endpoints_away_is_not_ready() {
    let environment = "deserted";
    let release = format!(
        "  - {{name: web, bundle: web, version: v1.0.0, namespace: {environment}, timeout: 40s}}\n"
    );
    let files = [
        ("manifests/web/bundle.yaml", BUNDLE.to_owned()),
        (
            "manifests/web/v1.0.0/all.yaml",
            manifests(environment, "front"),
        ),
        (AFTER, manifests(environment, "back")),
    ];
    let fleet = Fleet::on(nodes(), environment, &release, &files);
    fleet.applied();

    // All parts are ready, but the webhook refuses writes.
    fleet.edit_environment("v1.0.0", "v1.1.0");
    fleet.edit_environment("timeout: 40s", "timeout: 15s");
    fleet.commit();
    let none = "Service deserted/app has 0 of 1 ready endpoints";
    fleet
        .apply()
        .ended_with(6)
        .says("failed Service/deserted/app: not ready after ")
        .says(none)
        .says("release deserted.web v1.1.0: failed");
    let ready = "{.status.conditions[0].status} {.status.conditions[0].reason}: {.status.conditions[0].message}";
    let told = fleet.field(&["release", "deserted.web"], ready);
    assert!(
        told.starts_with("False Failed: Service/deserted/app: ") && told.contains(none),
        "{told}"
    );

    // Once the Service selects the new pods, it has endpoints again.
    fleet.edit(AFTER, "{role: front}", "{role: back}");
    fleet.edit_environment("timeout: 15s", "timeout: 40s");
    fleet.commit();
    fleet
        .applied()
        .says("release deserted.web v1.1.0: deployed");
}
