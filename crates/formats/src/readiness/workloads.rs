//! Rules for workloads: `Deployment`, `StatefulSet`, `DaemonSet` and
//! `ReplicaSet`.

use serde_json::Value;

use super::Assessment;
use super::conditions::{Condition, condition, unobserved};

/// Reason of `Progressing` after a rollout.
const ROLLED_OUT: &str = "NewReplicaSetAvailable";

fn count(value: &Value) -> i64 {
    value.as_i64().unwrap_or(0)
}

/// Returns `spec.replicas`; one by default, like the server.
fn desired(value: &Value) -> i64 {
    value["spec"]["replicas"].as_i64().unwrap_or(1)
}

/// Returns whether the `Progressing` condition is older than the last apply.
/// The controller only updates it when the new rollout progresses, so a
/// rollback from a stuck version would otherwise fail immediately.
fn is_of_a_previous_rollout(value: &Value) -> bool {
    let conditions = value["status"]["conditions"].as_array();
    let reported = conditions
        .into_iter()
        .flatten()
        .find(|condition| condition["type"] == "Progressing")
        .and_then(|condition| condition["lastUpdateTime"].as_str());
    let entries = value["metadata"]["managedFields"].as_array();
    let applied = entries
        .into_iter()
        .flatten()
        .filter(|entry| entry["operation"] == "Apply" && entry["subresource"].is_null())
        .filter_map(|entry| entry["time"].as_str())
        .max();
    // Both are RFC 3339 in UTC with whole seconds, so string order is time
    // order.
    matches!((reported, applied), (Some(reported), Some(applied)) if reported <= applied)
}

pub(super) fn deployment(value: &Value) -> Assessment {
    if value["spec"]["paused"] == true {
        return Assessment::note("paused: spec.paused");
    }
    if let Some(lag) = unobserved(value) {
        return lag;
    }
    let stuck = condition(value, "Progressing")
        .filter(|progressing| progressing.is_false() && !is_of_a_previous_rollout(value));
    if let Some(deadline) = stuck.filter(|stuck| stuck.reason() == "ProgressDeadlineExceeded") {
        return Assessment::failed(deadline.line());
    }
    let status = &value["status"];
    let desired = desired(value);
    let [replicas, updated, ready, available] = [
        "replicas",
        "updatedReplicas",
        "readyReplicas",
        "availableReplicas",
    ]
    .map(|key| count(&status[key]));
    let behind = if updated < desired {
        Some(format!("{updated} of {desired} replicas updated"))
    } else if replicas > updated {
        Some(format!(
            "{} replicas of the previous version still run",
            replicas - updated
        ))
    } else if replicas > desired {
        Some(format!("{} replicas too many", replicas - desired))
    } else if ready < desired {
        Some(format!("{ready} of {desired} replicas ready"))
    } else if available < desired {
        Some(format!("{available} of {desired} replicas available"))
    } else {
        None
    };
    if let Some(behind) = behind {
        return Assessment::in_progress(with_replica_failure(value, behind));
    }
    let unavailable = condition(value, "Available").filter(|condition| condition.is_false());
    // Some controllers write the condition without a reason.
    let rolling = condition(value, "Progressing").filter(|progressing| {
        progressing.is_true() && !["", ROLLED_OUT].contains(&progressing.reason())
    });
    let trouble = replica_failure(value).or(stuck).or(unavailable).or(rolling);
    trouble.map_or_else(Assessment::current, |trouble| {
        Assessment::in_progress(trouble.line())
    })
}

/// Returns the condition for quota and admission failures, which no pod can
/// report because none exists.
fn replica_failure(value: &Value) -> Option<Condition<'_>> {
    condition(value, "ReplicaFailure").filter(|condition| condition.is_true())
}

fn with_replica_failure(value: &Value, behind: String) -> String {
    match replica_failure(value) {
        Some(failure) => format!("{behind}; {}", failure.line()),
        None => behind,
    }
}

pub(super) fn stateful_set(value: &Value) -> Assessment {
    if let Some(lag) = unobserved(value) {
        return lag;
    }
    let status = &value["status"];
    let desired = desired(value);
    let replicas = count(&status["replicas"]);
    let ready = count(&status["readyReplicas"]);
    let updated = count(&status["updatedReplicas"]);
    let on_delete = value["spec"]["updateStrategy"]["type"] == "OnDelete";
    let partition = count(&value["spec"]["updateStrategy"]["rollingUpdate"]["partition"]);
    let due = if on_delete {
        0
    } else {
        (desired - partition).max(0)
    };
    // When a rollout is complete, the controller makes the revisions equal.
    let same_revision = status["updateRevision"].is_string()
        && status["updateRevision"] == status["currentRevision"];
    if replicas > desired {
        return Assessment::in_progress(format!("{} replicas too many", replicas - desired));
    }
    if updated < due && !same_revision {
        return Assessment::in_progress(format!("{updated} of {due} replicas updated"));
    }
    if ready < desired {
        return Assessment::in_progress(format!("{ready} of {desired} replicas ready"));
    }
    let available = count(&status["availableReplicas"]);
    if count(&value["spec"]["minReadySeconds"]) > 0 && available < desired {
        return Assessment::in_progress(format!("{available} of {desired} replicas available"));
    }
    let differs = status["updateRevision"].is_string() && status["currentRevision"].is_string();
    if differs && !same_revision && !on_delete && partition == 0 {
        return Assessment::in_progress("the new revision is not the current one yet");
    }
    if same_revision || updated >= desired {
        return Assessment::current();
    }
    let old = desired - updated;
    Assessment::note(if on_delete {
        format!(
            "{old} of {desired} replicas run the previous version until they are deleted (OnDelete)"
        )
    } else {
        format!("{old} of {desired} replicas run the previous version (partition {partition})")
    })
}

pub(super) fn daemon_set(value: &Value) -> Assessment {
    if let Some(lag) = unobserved(value) {
        return lag;
    }
    let status = &value["status"];
    // The controller always writes this count, even if it is zero.
    if !status["desiredNumberScheduled"].is_i64() {
        return Assessment::in_progress("its controller has not reported a pod count yet");
    }
    let [desired, updated, ready, available, misplaced] = [
        "desiredNumberScheduled",
        "updatedNumberScheduled",
        "numberReady",
        "numberAvailable",
        "numberMisscheduled",
    ]
    .map(|key| count(&status[key]));
    let on_delete = value["spec"]["updateStrategy"]["type"] == "OnDelete";
    if updated < desired && !on_delete {
        return Assessment::in_progress(format!("{updated} of {desired} pods updated"));
    }
    if ready < desired {
        return Assessment::in_progress(format!("{ready} of {desired} pods ready"));
    }
    if available < desired {
        return Assessment::in_progress(format!("{available} of {desired} pods available"));
    }
    if updated < desired {
        return Assessment::note(format!(
            "{} of {desired} pods run the previous version until they are deleted (OnDelete)",
            desired - updated
        ));
    }
    if misplaced > 0 {
        return Assessment::note(format!("{misplaced} pods run on nodes that do not match"));
    }
    if desired == 0 {
        return Assessment::note("no node matches");
    }
    Assessment::current()
}

pub(super) fn replica_set(value: &Value) -> Assessment {
    if let Some(lag) = unobserved(value) {
        return lag;
    }
    let status = &value["status"];
    let desired = desired(value);
    let [replicas, ready, available] =
        ["replicas", "readyReplicas", "availableReplicas"].map(|key| count(&status[key]));
    let labeled = status["fullyLabeledReplicas"].as_i64();
    let behind = if replicas > desired {
        format!("{} replicas too many", replicas - desired)
    } else if ready < desired {
        format!("{ready} of {desired} replicas ready")
    } else if available < desired {
        format!("{available} of {desired} replicas available")
    } else if labeled.is_some_and(|labeled| labeled < desired) {
        "not every replica has the labels of the template yet".to_owned()
    } else {
        return replica_failure(value).map_or_else(Assessment::current, |failure| {
            Assessment::in_progress(failure.line())
        });
    };
    Assessment::in_progress(with_replica_failure(value, behind))
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::json;

    use super::super::Readiness::{self, Current, Failed, InProgress};
    use super::super::tests::check;
    use super::*;

    #[rstest]
    #[case::just_created(json!({"metadata": {"generation": 1}, "spec": {"replicas": 2}, "status": {}}),
        InProgress, "its controller has not observed it yet")]
    #[case::not_observed(json!({"metadata": {"generation": 4}, "spec": {"replicas": 2},
        "status": {"observedGeneration": 3, "replicas": 2, "updatedReplicas": 2, "readyReplicas": 2, "availableReplicas": 2}}),
        InProgress, "its controller has observed generation 3, not 4 yet")]
    #[case::rolled_out(json!({"metadata": {"generation": 2}, "spec": {"replicas": 2}, "status": {
        "observedGeneration": 2, "replicas": 2, "updatedReplicas": 2, "readyReplicas": 2, "availableReplicas": 2,
        "conditions": [
            {"type": "Available", "status": "True", "reason": "MinimumReplicasAvailable", "message": "Deployment has minimum availability."},
            {"type": "Progressing", "status": "True", "reason": "NewReplicaSetAvailable", "message": "ReplicaSet \"web-5d8\" has successfully progressed."}]}}),
        Current, "")]
    #[case::rolling(json!({"metadata": {"generation": 2}, "spec": {"replicas": 3}, "status": {
        "observedGeneration": 2, "replicas": 4, "updatedReplicas": 1, "readyReplicas": 3, "availableReplicas": 3, "unavailableReplicas": 1}}),
        InProgress, "1 of 3 replicas updated")]
    #[case::old_replicas_left(json!({"metadata": {"generation": 2}, "spec": {"replicas": 3}, "status": {
        "observedGeneration": 2, "replicas": 4, "updatedReplicas": 3, "readyReplicas": 4, "availableReplicas": 4}}),
        InProgress, "1 replicas of the previous version still run")]
    #[case::min_ready_seconds(json!({"metadata": {"generation": 1}, "spec": {"replicas": 2, "minReadySeconds": 30}, "status": {
        "observedGeneration": 1, "replicas": 2, "updatedReplicas": 2, "readyReplicas": 2, "availableReplicas": 1}}),
        InProgress, "1 of 2 replicas available")]
    #[case::deadline(json!({"metadata": {"generation": 1}, "spec": {"replicas": 1}, "status": {
        "observedGeneration": 1, "replicas": 1, "updatedReplicas": 1, "unavailableReplicas": 1,
        "conditions": [
            {"type": "Available", "status": "False", "reason": "MinimumReplicasUnavailable"},
            {"type": "Progressing", "status": "False", "reason": "ProgressDeadlineExceeded",
             "message": "ReplicaSet \"web-5d8\" has timed out progressing."}]}}),
        Failed, "Progressing=False (ProgressDeadlineExceeded): ReplicaSet \"web-5d8\" has timed out progressing.")]
    #[case::deadline_after_the_apply(json!({"metadata": {"generation": 1, "managedFields": [
            {"manager": "pleach/e.r", "operation": "Apply", "time": "2026-01-01T00:00:00Z"},
            {"manager": "kube-controller-manager", "operation": "Update", "subresource": "status", "time": "2026-01-01T00:00:09Z"}]},
        "spec": {"replicas": 1}, "status": {"observedGeneration": 1, "replicas": 1, "updatedReplicas": 1, "unavailableReplicas": 1,
        "conditions": [{"type": "Progressing", "status": "False", "reason": "ProgressDeadlineExceeded", "lastUpdateTime": "2026-01-01T00:00:09Z", "message": "late"}]}}),
        Failed, "Progressing=False (ProgressDeadlineExceeded): late")]
    #[case::deadline_of_a_previous_rollout(json!({"metadata": {"generation": 2, "managedFields": [
            {"manager": "pleach/e.r", "operation": "Apply", "time": "2026-01-01T00:01:00Z"}]},
        "spec": {"replicas": 2}, "status": {"observedGeneration": 2, "replicas": 2, "updatedReplicas": 1, "readyReplicas": 2, "availableReplicas": 2,
        "conditions": [{"type": "Progressing", "status": "False", "reason": "ProgressDeadlineExceeded", "lastUpdateTime": "2026-01-01T00:00:09Z", "message": "late"}]}}),
        InProgress, "1 of 2 replicas updated")]
    #[case::quota(json!({"metadata": {"generation": 1}, "spec": {"replicas": 1}, "status": {
        "observedGeneration": 1, "unavailableReplicas": 1,
        "conditions": [{"type": "ReplicaFailure", "status": "True", "reason": "FailedCreate", "message": "pods \"web-\" is forbidden: exceeded quota: q"}]}}),
        InProgress, "0 of 1 replicas updated; ReplicaFailure=True (FailedCreate): pods \"web-\" is forbidden: exceeded quota: q")]
    #[case::paused_in_the_middle(json!({"metadata": {"generation": 3}, "spec": {"replicas": 2, "paused": true}, "status": {
        "observedGeneration": 3, "replicas": 3, "updatedReplicas": 1, "readyReplicas": 3, "availableReplicas": 3,
        "conditions": [{"type": "Progressing", "status": "Unknown", "reason": "DeploymentPaused", "message": "Deployment is paused"}]}}),
        Current, "paused: spec.paused")]
    #[case::paused_and_not_observed(json!({"metadata": {"generation": 3}, "spec": {"replicas": 2, "paused": true}, "status": {"observedGeneration": 2}}),
        Current, "paused: spec.paused")]
    #[case::resumed(json!({"metadata": {"generation": 4}, "spec": {"replicas": 2}, "status": {
        "observedGeneration": 3, "replicas": 2, "updatedReplicas": 2, "readyReplicas": 2, "availableReplicas": 2,
        "conditions": [{"type": "Progressing", "status": "Unknown", "reason": "DeploymentPaused"}]}}),
        InProgress, "its controller has observed generation 3, not 4 yet")]
    #[case::still_progressing(json!({"metadata": {"generation": 2}, "spec": {"replicas": 1}, "status": {
        "observedGeneration": 2, "replicas": 1, "updatedReplicas": 1, "readyReplicas": 1, "availableReplicas": 1,
        "conditions": [{"type": "Progressing", "status": "True", "reason": "ReplicaSetUpdated", "message": "ReplicaSet \"web-5d8\" is progressing."}]}}),
        InProgress, "Progressing=True (ReplicaSetUpdated): ReplicaSet \"web-5d8\" is progressing.")]
    #[case::progressing_without_a_reason(json!({"metadata": {"generation": 2}, "spec": {"replicas": 1}, "status": {
        "observedGeneration": 2, "replicas": 1, "updatedReplicas": 1, "readyReplicas": 1, "availableReplicas": 1,
        "conditions": [{"type": "Progressing", "status": "True"}]}}),
        Current, "")]
    #[case::paused_when_done(json!({"metadata": {"generation": 3}, "spec": {"replicas": 1, "paused": true}, "status": {
        "observedGeneration": 3, "replicas": 1, "updatedReplicas": 1, "readyReplicas": 1, "availableReplicas": 1}}),
        Current, "paused: spec.paused")]
    #[case::scaled_to_zero(json!({"metadata": {"generation": 2}, "spec": {"replicas": 0}, "status": {"observedGeneration": 2,
        "conditions": [{"type": "Available", "status": "True"}]}}),
        Current, "")]
    #[case::not_progressing(json!({"metadata": {"generation": 2}, "spec": {"replicas": 1}, "status": {
        "observedGeneration": 2, "replicas": 1, "updatedReplicas": 1, "readyReplicas": 1, "availableReplicas": 1,
        "conditions": [{"type": "Progressing", "status": "False", "reason": "FailedCreate", "message": "quota"}]}}),
        InProgress, "Progressing=False (FailedCreate): quota")]
    #[case::replica_failure_with_enough_replicas(json!({"metadata": {"generation": 2}, "spec": {"replicas": 1}, "status": {
        "observedGeneration": 2, "replicas": 1, "updatedReplicas": 1, "readyReplicas": 1, "availableReplicas": 1,
        "conditions": [{"type": "ReplicaFailure", "status": "True", "reason": "FailedCreate", "message": "quota"}]}}),
        InProgress, "ReplicaFailure=True (FailedCreate): quota")]
    #[case::one_by_default(json!({"metadata": {"generation": 1}, "spec": {}, "status": {"observedGeneration": 1}}),
        InProgress, "0 of 1 replicas updated")]
    fn deployments(#[case] rest: Value, #[case] readiness: Readiness, #[case] message: &str) {
        assert_eq!(
            check("apps/v1", "Deployment", rest),
            (readiness, message.to_owned())
        );
    }

    #[rstest]
    #[case::unseen(json!({"metadata": {"generation": 1}, "spec": {"replicas": 1}, "status": {"replicas": 0, "availableReplicas": 0}}),
        InProgress, "its controller has not observed it yet")]
    #[case::done(json!({"metadata": {"generation": 1}, "spec": {"replicas": 3}, "status": {
        "observedGeneration": 1, "replicas": 3, "readyReplicas": 3, "currentReplicas": 3, "updatedReplicas": 3, "availableReplicas": 3,
        "currentRevision": "db-1", "updateRevision": "db-1"}}),
        Current, "")]
    #[case::rolling(json!({"metadata": {"generation": 2}, "spec": {"replicas": 3}, "status": {
        "observedGeneration": 2, "replicas": 3, "readyReplicas": 2, "currentReplicas": 2, "updatedReplicas": 1,
        "currentRevision": "db-1", "updateRevision": "db-2"}}),
        InProgress, "1 of 3 replicas updated")]
    #[case::starting(json!({"metadata": {"generation": 1}, "spec": {"replicas": 3}, "status": {
        "observedGeneration": 1, "replicas": 1, "readyReplicas": 0, "currentReplicas": 1, "updatedReplicas": 1,
        "currentRevision": "db-1", "updateRevision": "db-1"}}),
        InProgress, "0 of 3 replicas ready")]
    #[case::scaling_down(json!({"metadata": {"generation": 2}, "spec": {"replicas": 1}, "status": {
        "observedGeneration": 2, "replicas": 2, "readyReplicas": 2, "updatedReplicas": 2,
        "currentRevision": "db-1", "updateRevision": "db-1"}}),
        InProgress, "1 replicas too many")]
    #[case::min_ready_seconds(json!({"metadata": {"generation": 1}, "spec": {"replicas": 1, "minReadySeconds": 10}, "status": {
        "observedGeneration": 1, "replicas": 1, "readyReplicas": 1, "updatedReplicas": 1, "availableReplicas": 0,
        "currentRevision": "db-1", "updateRevision": "db-1"}}),
        InProgress, "0 of 1 replicas available")]
    #[case::on_delete(json!({"metadata": {"generation": 2}, "spec": {"replicas": 2, "updateStrategy": {"type": "OnDelete"}}, "status": {
        "observedGeneration": 2, "replicas": 2, "readyReplicas": 2, "currentReplicas": 2,
        "currentRevision": "db-1", "updateRevision": "db-2"}}),
        Current, "2 of 2 replicas run the previous version until they are deleted (OnDelete)")]
    #[case::on_delete_not_ready(json!({"metadata": {"generation": 2}, "spec": {"replicas": 2, "updateStrategy": {"type": "OnDelete"}}, "status": {
        "observedGeneration": 2, "replicas": 2, "readyReplicas": 1, "currentRevision": "db-1", "updateRevision": "db-2"}}),
        InProgress, "1 of 2 replicas ready")]
    #[case::partition(json!({"metadata": {"generation": 2}, "spec": {"replicas": 3,
        "updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"partition": 2}}}, "status": {
        "observedGeneration": 2, "replicas": 3, "readyReplicas": 3, "updatedReplicas": 1, "currentReplicas": 2,
        "currentRevision": "db-1", "updateRevision": "db-2"}}),
        Current, "2 of 3 replicas run the previous version (partition 2)")]
    #[case::partition_rolling(json!({"metadata": {"generation": 2}, "spec": {"replicas": 3,
        "updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"partition": 1}}}, "status": {
        "observedGeneration": 2, "replicas": 3, "readyReplicas": 3, "updatedReplicas": 1, "currentReplicas": 2,
        "currentRevision": "db-1", "updateRevision": "db-2"}}),
        InProgress, "1 of 2 replicas updated")]
    #[case::revisions_differ(json!({"metadata": {"generation": 2}, "spec": {"replicas": 2}, "status": {
        "observedGeneration": 2, "replicas": 2, "readyReplicas": 2, "updatedReplicas": 2,
        "currentRevision": "db-1", "updateRevision": "db-2"}}),
        InProgress, "the new revision is not the current one yet")]
    #[case::revisions_differ_with_a_partition(json!({"metadata": {"generation": 2}, "spec": {"replicas": 1,
        "updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"partition": 1}}}, "status": {
        "observedGeneration": 2, "replicas": 1, "readyReplicas": 1, "updatedReplicas": 1,
        "currentRevision": "db-1", "updateRevision": "db-2"}}),
        Current, "")]
    #[case::no_revisions(json!({"metadata": {"generation": 2}, "spec": {"replicas": 1}, "status": {
        "observedGeneration": 2, "replicas": 1, "readyReplicas": 1, "updatedReplicas": 1}}),
        Current, "")]
    #[case::zero(json!({"metadata": {"generation": 1}, "spec": {"replicas": 0}, "status": {"observedGeneration": 1, "replicas": 0}}),
        Current, "")]
    fn stateful_sets(#[case] rest: Value, #[case] readiness: Readiness, #[case] message: &str) {
        assert_eq!(
            check("apps/v1", "StatefulSet", rest),
            (readiness, message.to_owned())
        );
    }

    #[rstest]
    // The API server writes zero counts before the controller has observed the
    // object.
    #[case::unseen(json!({"metadata": {"generation": 1}, "spec": {}, "status": {
        "currentNumberScheduled": 0, "desiredNumberScheduled": 0, "numberMisscheduled": 0, "numberReady": 0}}),
        InProgress, "its controller has not observed it yet")]
    #[case::done(json!({"metadata": {"generation": 1}, "spec": {}, "status": {"observedGeneration": 1,
        "currentNumberScheduled": 2, "desiredNumberScheduled": 2, "numberReady": 2, "updatedNumberScheduled": 2, "numberAvailable": 2}}),
        Current, "")]
    #[case::rolling(json!({"metadata": {"generation": 2}, "spec": {"updateStrategy": {"type": "RollingUpdate"}}, "status": {"observedGeneration": 2,
        "currentNumberScheduled": 2, "desiredNumberScheduled": 2, "numberReady": 2, "updatedNumberScheduled": 1, "numberAvailable": 2}}),
        InProgress, "1 of 2 pods updated")]
    #[case::not_ready(json!({"metadata": {"generation": 1}, "spec": {}, "status": {"observedGeneration": 1,
        "currentNumberScheduled": 2, "desiredNumberScheduled": 2, "numberReady": 1, "updatedNumberScheduled": 2, "numberAvailable": 1, "numberUnavailable": 1}}),
        InProgress, "1 of 2 pods ready")]
    #[case::on_delete(json!({"metadata": {"generation": 2}, "spec": {"updateStrategy": {"type": "OnDelete"}}, "status": {"observedGeneration": 2,
        "currentNumberScheduled": 2, "desiredNumberScheduled": 2, "numberReady": 2, "numberAvailable": 2}}),
        Current, "2 of 2 pods run the previous version until they are deleted (OnDelete)")]
    #[case::without_counts(json!({"metadata": {"generation": 1}, "spec": {}, "status": {"observedGeneration": 1}}),
        InProgress, "its controller has not reported a pod count yet")]
    #[case::nowhere(json!({"metadata": {"generation": 1}, "spec": {}, "status": {"observedGeneration": 1, "desiredNumberScheduled": 0}}),
        Current, "no node matches")]
    #[case::misplaced(json!({"metadata": {"generation": 1}, "spec": {}, "status": {"observedGeneration": 1, "desiredNumberScheduled": 0, "numberMisscheduled": 1}}),
        Current, "1 pods run on nodes that do not match")]
    fn daemon_sets(#[case] rest: Value, #[case] readiness: Readiness, #[case] message: &str) {
        assert_eq!(
            check("apps/v1", "DaemonSet", rest),
            (readiness, message.to_owned())
        );
    }

    #[rstest]
    #[case(json!({"metadata": {"generation": 1}, "spec": {"replicas": 1}, "status": {"observedGeneration": 1, "replicas": 1, "readyReplicas": 1, "availableReplicas": 1}}),
        Current, "")]
    #[case(json!({"metadata": {"generation": 1}, "spec": {"replicas": 2}, "status": {"observedGeneration": 1, "replicas": 0,
        "conditions": [{"type": "ReplicaFailure", "status": "True", "reason": "FailedCreate", "message": "no"}]}}),
        InProgress, "0 of 2 replicas ready; ReplicaFailure=True (FailedCreate): no")]
    #[case(json!({"metadata": {"generation": 1}, "spec": {"replicas": 1}, "status": {"observedGeneration": 1, "replicas": 1, "readyReplicas": 1, "availableReplicas": 1,
        "conditions": [{"type": "ReplicaFailure", "status": "True", "reason": "FailedDelete", "message": "no"}]}}),
        InProgress, "ReplicaFailure=True (FailedDelete): no")]
    #[case(json!({"metadata": {"generation": 1}, "spec": {"replicas": 1}, "status": {"observedGeneration": 1}}),
        InProgress, "0 of 1 replicas ready")]
    #[case(json!({"metadata": {"generation": 1}, "spec": {"replicas": 2}, "status": {"observedGeneration": 1, "replicas": 2, "readyReplicas": 2,
        "availableReplicas": 2, "fullyLabeledReplicas": 1}}),
        InProgress, "not every replica has the labels of the template yet")]
    fn replica_sets(#[case] rest: Value, #[case] readiness: Readiness, #[case] message: &str) {
        let expected = (readiness, message.to_owned());
        assert_eq!(check("apps/v1", "ReplicaSet", rest.clone()), expected);
        assert_eq!(check("v1", "ReplicationController", rest), expected);
    }
}
