//! Keeps the product's pods from being ready before they are.
//!
//! The simulated kubelet makes a pod ready at once, which would hide a pod that
//! crashes at its start. A policy of the API server puts an annotation on every
//! new pod of the product, on which the simulated kubelet waits.

use std::time::Duration;

use anyhow::{Context as _, ensure};
use serde_json::{Value, json};
use tokio::time::Instant;

use super::product::Product;
use super::rest::{Failure, Rest};

/// Says what the simulated kubelet does with a pod.
pub(crate) const ANNOTATION: &str = "testkit.pleach.dev/crash";
/// Not started yet.
const WAIT: &str = "wait";
/// It runs.
pub(crate) const START: &str = "false";
/// It crash-loops.
pub(crate) const CRASH: &str = "true";

const POLICIES: &str = "/apis/admissionregistration.k8s.io/v1/mutatingadmissionpolicies";
const BINDINGS: &str = "/apis/admissionregistration.k8s.io/v1/mutatingadmissionpolicybindings";
const DEADLINE: Duration = Duration::from_mins(1);

/// Makes the policy and waits until it is in force.
pub(crate) async fn install(admin: &Rest, product: &Product) -> anyhow::Result<()> {
    let name = format!("testkit-{}", product.api);
    let components: String = json!([product.api, product.controller]).to_string();
    let label = json!(product.component_label).to_string();
    let policy = json!({
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "MutatingAdmissionPolicy",
        "metadata": {"name": name},
        "spec": {
            "matchConstraints": {"resourceRules": [
                {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]},
            ]},
            "matchConditions": [{
                "name": "component",
                "expression": format!(
                    "has(object.metadata.labels) && {label} in object.metadata.labels \
                     && object.metadata.labels[{label}] in {components}"
                ),
            }],
            "failurePolicy": "Fail",
            "reinvocationPolicy": "Never",
            "mutations": [{
                "patchType": "ApplyConfiguration",
                "applyConfiguration": {"expression": format!(
                    "Object{{metadata: Object.metadata{{annotations: {}}}}}",
                    json!({ANNOTATION: WAIT})
                )},
            }],
        },
    });
    let binding = json!({
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "MutatingAdmissionPolicyBinding",
        "metadata": {"name": name},
        "spec": {"policyName": name},
    });
    for (path, object) in [(POLICIES, &policy), (BINDINGS, &binding)] {
        admin
            .create(path, object)
            .await
            .context("failed to create the policy that holds pods")?;
    }
    in_force(admin, product).await
}

async fn in_force(admin: &Rest, product: &Product) -> anyhow::Result<()> {
    let start = Instant::now();
    for component in [&product.api, &product.controller] {
        let probe = json!({
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": "probe", "labels": {&product.component_label: component}},
            "spec": {"containers": [{"name": "probe", "image": "probe"}]},
        });
        loop {
            let answer = admin
                .create("/api/v1/namespaces/default/pods?dryRun=All", &probe)
                .await;
            match answer {
                Ok(pod) if is_held(&pod) => break,
                // 403: the namespace's service account is not there yet.
                Ok(_) | Err(Failure::Status { code: 403, .. }) => {}
                Err(failure) => return Err(failure).context("failed to probe the policy"),
            }
            ensure!(
                start.elapsed() < DEADLINE,
                "the policy that holds pods is not in force after {} s",
                DEADLINE.as_secs()
            );
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
    Ok(())
}

fn is_held(pod: &Value) -> bool {
    pod["metadata"]["annotations"][ANNOTATION] == WAIT
}
