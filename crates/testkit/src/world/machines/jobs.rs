//! Pods of node Jobs: they fail or succeed, and a success changes the node. Pods that preload images
//! succeed.

use std::sync::{Arc, PoisonError};

use serde_json::{Value, json};

use super::{Call, Done, JOB, REBUILD, Shared, VERSION, name_of};

/// Returns whether the pod of a Job waits for its start.
pub(super) fn is_due(pod: &Value) -> bool {
    pod["metadata"]["labels"]["app"] == JOB
        && pod["metadata"]["deletionTimestamp"].is_null()
        && pod["status"]["phase"] == "Pending"
        && pod["spec"]["nodeName"].is_string()
}

/// Label of the pods that preload images.
const PRELOAD: &str = "pleach.dev/preload";

/// Returns whether a pod preloads images and has not ended. The simulated kubelet can report one as
/// running after its end, so that it is due again.
pub(super) fn preloads(pod: &Value) -> bool {
    pod["metadata"]["labels"][PRELOAD].is_string()
        && pod["metadata"]["deletionTimestamp"].is_null()
        && pod["status"]["phase"] != "Succeeded"
}

/// Ends a pod that preloads images. It reports 1 GiB of free space.
pub(super) async fn preload(shared: Arc<Shared>, pod: Value) -> anyhow::Result<Done> {
    let terminated = json!({"exitCode": 0, "reason": "Completed", "message": "1073741824"});
    end(&shared, &pod, "Succeeded", &terminated).await?;
    Ok(Done::Played)
}

/// Runs the pod of a Job to its end.
pub(super) async fn play(shared: Arc<Shared>, pod: Value) -> anyhow::Result<Done> {
    let Some(node) = pod["spec"]["nodeName"].as_str() else {
        return Ok(Done::Played);
    };
    let owner = &pod["metadata"]["ownerReferences"][0];
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let uids = (text(&owner["name"]), text(&owner["uid"]));
    shared
        .ledger()
        .jobs
        .entry(uids.0)
        .or_default()
        .insert(uids.1);
    for setting in shared.list(&shared.path("settings")).await? {
        let mut ledger = shared.ledger();
        let values = ledger.settings.entry(name_of(&setting).to_owned());
        values.or_default().insert(text(&setting["spec"]["value"]));
    }
    let fails = {
        let failing = shared.failing.lock();
        failing.unwrap_or_else(PoisonError::into_inner).remove(node)
    };
    if fails {
        let message = "512 MiB are free on /, and 2 GiB are needed";
        end(
            &shared,
            &pod,
            "Failed",
            &json!({"exitCode": 1, "reason": "Error", "message": message}),
        )
        .await?;
        return Ok(Done::Played);
    }
    let volumes = shared.list(&shared.path("volumes")).await?;
    let volumes: Vec<&str> = volumes
        .iter()
        .filter(|volume| volume["status"]["nodeName"] == node)
        .map(name_of)
        .collect();
    for volume in &volumes {
        shared
            .set_status("volumes", volume, &json!({"robustness": "degraded"}))
            .await?;
    }
    end(
        &shared,
        &pod,
        "Succeeded",
        &json!({"exitCode": 0, "reason": "Completed"}),
    )
    .await?;
    let env = pod["spec"]["containers"][0]["env"].as_array();
    let mut env = env.into_iter().flatten();
    if let Some(version) = env.find(|one| one["name"] == VERSION) {
        shared.set_kubelet(node, &text(&version["value"])).await?;
    }
    tokio::time::sleep(REBUILD).await;
    for volume in &volumes {
        shared
            .set_status("volumes", volume, &json!({"robustness": "healthy"}))
            .await?;
    }
    Ok(Done::Played)
}

/// Writes the end of a pod, as a kubelet does. A pod that was deleted meanwhile has none.
async fn end(shared: &Shared, pod: &Value, phase: &str, terminated: &Value) -> anyhow::Result<()> {
    let namespace = pod["metadata"]["namespace"].as_str().unwrap_or_default();
    let path = format!(
        "/api/v1/namespaces/{namespace}/pods/{}/status",
        name_of(pod)
    );
    let container = &pod["spec"]["containers"][0];
    let status = json!({"status": {
        "phase": phase,
        "containerStatuses": [{
            "name": container["name"], "image": container["image"], "imageID": "", "ready": false,
            "restartCount": 0, "state": {"terminated": terminated},
        }],
    }});
    shared.send(Call::Merge(&path, &status)).await.map(drop)
}
