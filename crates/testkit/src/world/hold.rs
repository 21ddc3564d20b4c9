//! Policy that delays the readiness of simulated pods.
//!
//! The simulated kubelet makes pods ready at once, which would hide a crash at the start. A policy
//! adds an annotation to new pods with certain labels, and the simulated kubelet waits for its
//! change.

use std::time::Duration;

use anyhow::{Context as _, ensure};
use serde_json::{Value, json};
use tokio::time::Instant;

use super::rest::{Failure, Rest};

/// Annotation that controls the simulated kubelet.
pub(crate) const ANNOTATION: &str = "testkit.pleach.dev/crash";
/// The pod is not started yet.
const WAIT: &str = "wait";
/// The pod is running.
pub(crate) const START: &str = "false";
/// The pod is crash-looping.
pub(crate) const CRASH: &str = "true";

const POLICIES: &str = "/apis/admissionregistration.k8s.io/v1/mutatingadmissionpolicies";
const BINDINGS: &str = "/apis/admissionregistration.k8s.io/v1/mutatingadmissionpolicybindings";
const DEADLINE: Duration = Duration::from_mins(1);

/// Creates the policy for pods whose label `key` has one of the values, and waits until it is in
/// force.
pub(crate) async fn install(admin: &Rest, key: &str, values: &[&str]) -> anyhow::Result<()> {
    // A move deletes the policy by this name at its end.
    let name = format!("testkit-{}", values.first().copied().unwrap_or(key));
    let components = json!(values).to_string();
    let label = json!(key).to_string();
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
    in_force(admin, key, values).await
}

async fn in_force(admin: &Rest, key: &str, values: &[&str]) -> anyhow::Result<()> {
    let start = Instant::now();
    for value in values {
        let probe = json!({
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": "probe", "labels": {key: value}},
            "spec": {"containers": [{"name": "probe", "image": "probe"}]},
        });
        loop {
            let answer = admin
                .create("/api/v1/namespaces/default/pods?dryRun=All", &probe)
                .await;
            match answer {
                Ok(pod) if is_held(&pod) => break,
                // 403: the service account of the namespace does not exist yet.
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
