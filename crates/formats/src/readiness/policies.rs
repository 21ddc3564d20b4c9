//! Rules for disruption budgets and autoscalers.

use serde_json::{Value, json};

use super::conditions::{condition, unobserved};
use super::{Assessment, GiveUp};

/// Assesses a disruption budget, which is effective once its controller has
/// observed it. The health of its pods belongs to their workload.
pub(super) fn disruption_budget(value: &Value) -> Assessment {
    if let Some(lag) = unobserved(value) {
        return lag;
    }
    match condition(value, "DisruptionAllowed").filter(|allowed| allowed.reason() == "SyncFailed") {
        Some(allowed) => Assessment::note(allowed.line()),
        None => Assessment::current(),
    }
}

/// Annotation with the conditions of an autoscaler read as `autoscaling/v1`.
const CONDITIONS: &str = "autoscaling.alpha.kubernetes.io/conditions";

/// Assesses an autoscaler. If it cannot reach its target, it has failed, until
/// its controller succeeds. If it lacks metrics, it is ready with a note,
/// because its pods run and metrics often arrive late.
pub(super) fn autoscaler(value: &Value) -> Assessment {
    let annotation = value["metadata"]["annotations"][CONDITIONS].as_str();
    let conditions = annotation.and_then(|text| serde_json::from_str::<Value>(text).ok());
    match conditions {
        Some(conditions) if value["status"]["conditions"].is_null() => {
            let version_2 = json!({"status": {"conditions": conditions}});
            by_conditions(&version_2)
        }
        _ => by_conditions(value),
    }
}

fn by_conditions(value: &Value) -> Assessment {
    if let Some(able) = condition(value, "AbleToScale").filter(|able| able.is_false()) {
        return if able.reason().starts_with("Failed") {
            Assessment::failed_until(able.line(), GiveUp::AtDeadline)
        } else {
            Assessment::in_progress(able.line())
        };
    }
    match condition(value, "ScalingActive").filter(|active| active.is_false()) {
        Some(active) if active.reason().starts_with("Invalid") => {
            Assessment::failed_until(active.line(), GiveUp::AtDeadline)
        }
        Some(active) => Assessment::note(active.line()),
        None => Assessment::current(),
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::json;

    use super::super::Readiness::{self, Current, Failed, InProgress};
    use super::super::tests::check;
    use super::*;

    #[rstest]
    #[case(json!({"metadata": {"generation": 1}, "status": {"currentHealthy": 0, "desiredHealthy": 0, "disruptionsAllowed": 0, "expectedPods": 0}}),
        InProgress, "its controller has not observed it yet")]
    #[case::pods_are_not_its_business(json!({"metadata": {"generation": 1}, "status": {"observedGeneration": 1, "currentHealthy": 0, "desiredHealthy": 2, "disruptionsAllowed": 0,
        "expectedPods": 2, "conditions": [{"type": "DisruptionAllowed", "status": "False", "reason": "InsufficientPods", "message": ""}]}}),
        Current, "")]
    #[case(json!({"metadata": {"generation": 1}, "status": {"observedGeneration": 1,
        "conditions": [{"type": "DisruptionAllowed", "status": "False", "reason": "SyncFailed", "message": "found no controllers for pod \"a\""}]}}),
        Current, "DisruptionAllowed=False (SyncFailed): found no controllers for pod \"a\"")]
    fn disruption_budgets(
        #[case] rest: Value,
        #[case] readiness: Readiness,
        #[case] message: &str,
    ) {
        assert_eq!(
            check("policy/v1", "PodDisruptionBudget", rest),
            (readiness, message.to_owned())
        );
    }

    #[rstest]
    #[case(json!({"status": {"conditions": null}}), Current, "")]
    #[case(json!({"status": {"conditions": [{"type": "AbleToScale", "status": "False", "reason": "FailedGetScale", "message": "deployments.apps \"web\" not found"}]}}),
        Failed, "AbleToScale=False (FailedGetScale): deployments.apps \"web\" not found")]
    #[case(json!({"status": {"conditions": [{"type": "AbleToScale", "status": "False", "reason": "BackoffBoth", "message": "scaled before"}]}}),
        InProgress, "AbleToScale=False (BackoffBoth): scaled before")]
    #[case(json!({"status": {"conditions": [{"type": "AbleToScale", "status": "True"}, {"type": "ScalingActive", "status": "False", "reason": "FailedGetResourceMetric", "message": "no metrics"}]}}),
        Current, "ScalingActive=False (FailedGetResourceMetric): no metrics")]
    #[case(json!({"status": {"conditions": [{"type": "AbleToScale", "status": "True"}, {"type": "ScalingActive", "status": "False", "reason": "InvalidSelector", "message": "no selector"}]}}),
        Failed, "ScalingActive=False (InvalidSelector): no selector")]
    fn autoscalers(#[case] rest: Value, #[case] readiness: Readiness, #[case] message: &str) {
        assert_eq!(
            check("autoscaling/v2", "HorizontalPodAutoscaler", rest.clone()),
            (readiness, message.to_owned())
        );
        // Version 1 has the same conditions in an annotation.
        let text = rest["status"]["conditions"].to_string();
        let annotated = json!({"metadata": {"annotations": {CONDITIONS: text}}, "status": {"currentReplicas": 1}});
        assert_eq!(
            check("autoscaling/v1", "HorizontalPodAutoscaler", annotated),
            (readiness, message.to_owned())
        );
    }
}
