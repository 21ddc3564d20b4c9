//! Reconciler of the custom resources: applies their spec and reports the progress.

use serde_json::{Value, json};

use super::OperatorPod;
use super::operands;
use crate::world::rest::{Failure, Rest};

/// Finalizer until all operands are removed.
const FINALIZER: &str = "depot.example.org/operands";

/// Reconciles every custom resource in the namespace of the pod.
pub(super) async fn all(rest: &Rest, pod: &OperatorPod) -> Result<(), Failure> {
    let namespace = &pod.namespace;
    let collection = format!("/apis/depot.example.org/v1/namespaces/{namespace}/depots");
    // The kind can be missing before installation or after removal.
    let Some(list) = rest.get(&collection).await? else {
        return Ok(());
    };
    for depot in list["items"].as_array().into_iter().flatten() {
        let name = depot["metadata"]["name"].as_str().unwrap_or_default();
        tend(rest, pod, &format!("{collection}/{name}"), depot).await?;
    }
    Ok(())
}

async fn tend(rest: &Rest, pod: &OperatorPod, path: &str, depot: &Value) -> Result<(), Failure> {
    let metadata = &depot["metadata"];
    let finalizers = metadata["finalizers"].as_array();
    let (ours, others): (Vec<&Value>, Vec<&Value>) = finalizers
        .into_iter()
        .flatten()
        .partition(|finalizer| *finalizer == FINALIZER);
    let others: Vec<Value> = others.into_iter().cloned().collect();
    if metadata["deletionTimestamp"].is_string() {
        if ours.is_empty() {
            return Ok(());
        }
        report_status(rest, path, depot, json!({"phase": "Deleting"})).await?;
        if operands::remove(rest, &pod.namespace).await? {
            // The status was written in the meantime.
            let now = rest.get(path).await?.unwrap_or_default();
            hold(rest, path, &now, others).await?;
        }
        return Ok(());
    }
    if ours.is_empty() {
        let finalizers = [others, vec![json!(FINALIZER)]].concat();
        return hold(rest, path, depot, finalizers).await;
    }
    bring_about(rest, pod, path, depot).await
}

/// Writes the finalizers, unless another client has written in the meantime.
async fn hold(
    rest: &Rest,
    path: &str,
    depot: &Value,
    finalizers: Vec<Value>,
) -> Result<(), Failure> {
    let change = json!({"metadata": {
        "resourceVersion": depot["metadata"]["resourceVersion"],
        "finalizers": finalizers,
    }});
    rest.merge(path, &change).await.map(drop)
}

async fn bring_about(
    rest: &Rest,
    pod: &OperatorPod,
    path: &str,
    depot: &Value,
) -> Result<(), Failure> {
    let spec = &depot["spec"];
    let target = spec["version"].as_str().unwrap_or(&pod.version);
    let replicas = spec["replicas"].as_u64().unwrap_or(1);
    let trouble = match operands::install(rest, &pod.namespace, target, replicas).await {
        Ok(None) => None,
        Ok(Some(missing)) => Some(("Installing", missing)),
        // Another client wrote in the meantime. Retry.
        Err(failure @ (Failure::Status { code: 409, .. } | Failure::Transport(_))) => {
            return Err(failure);
        }
        Err(failure) => Some(("Refused", failure.message().to_owned())),
    };
    let mut status = json!({
        "observedGeneration": depot["metadata"]["generation"],
        "operatorVersion": pod.version,
        "targetVersion": target,
    });
    match trouble {
        None => {
            status["phase"] = json!("Deployed");
            status["observedVersion"] = json!(target);
            status["conditions"] = json!([{"type": "Available", "status": "True", "reason": "Installed", "message": ""}]);
        }
        Some((reason, message)) => {
            status["phase"] = json!("Deploying");
            status["conditions"] = json!([{"type": "Available", "status": "False", "reason": reason, "message": message}]);
        }
    }
    report_status(rest, path, depot, status).await
}

/// Writes a status if it changed.
async fn report_status(
    rest: &Rest,
    path: &str,
    depot: &Value,
    status: Value,
) -> Result<(), Failure> {
    if operands::covers(&depot["status"], &status) {
        return Ok(());
    }
    let change = json!({"status": status});
    rest.merge(&format!("{path}/status"), &change)
        .await
        .map(drop)
}
