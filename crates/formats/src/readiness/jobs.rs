//! Rules for Jobs and cron jobs.

use serde_json::Value;

use super::Assessment;
use super::conditions::condition;
use pleach_model::object::annotations;

/// Label of a Job that a Kueue queue starts.
const QUEUE: &str = "kueue.x-k8s.io/queue-name";

/// Returns whether a suspended Job still counts as pending: its run is
/// recorded, or a queue resumes the Job.
fn has_to_run(value: &Value) -> bool {
    let metadata = &value["metadata"];
    metadata["annotations"][annotations::RUN] == "once" || metadata["labels"][QUEUE].is_string()
}

pub(super) fn job(value: &Value) -> Assessment {
    if let Some(failed) = condition(value, "Failed").filter(|condition| condition.is_true()) {
        return Assessment::failed(failed.line());
    }
    if condition(value, "Complete").is_some_and(super::conditions::Condition::is_true) {
        return Assessment::current();
    }
    let is_suspended = value["spec"]["suspend"] == true;
    if is_suspended && !has_to_run(value) {
        return Assessment::note("paused: spec.suspend");
    }
    if let Some(suspended) = condition(value, "Suspended").filter(|condition| condition.is_true()) {
        return Assessment::in_progress(suspended.line());
    }
    if is_suspended {
        return Assessment::in_progress("suspended");
    }
    // The outcome is decided, but pods are still terminating (Kubernetes 1.31
    // and later).
    if let Some(decided) = ["FailureTarget", "SuccessCriteriaMet"]
        .into_iter()
        .find_map(|name| condition(value, name).filter(|condition| condition.is_true()))
    {
        return Assessment::in_progress(decided.line());
    }
    let status = &value["status"];
    if !status["startTime"].is_string() {
        return Assessment::in_progress("its controller has not observed it yet");
    }
    let [active, succeeded, failed] =
        ["active", "succeeded", "failed"].map(|key| status[key].as_i64().unwrap_or(0));
    // Without `completions` and `parallelism` one success is needed. Without
    // `completions` alone, any success is sufficient.
    let desired = value["spec"]["completions"].as_i64().unwrap_or(1);
    let failed = if failed > 0 {
        format!(", {failed} failed")
    } else {
        String::new()
    };
    Assessment::in_progress(format!(
        "{succeeded} of {desired} pods succeeded, {active} active{failed}"
    ))
}

pub(super) fn cron_job(value: &Value) -> Assessment {
    if value["spec"]["suspend"] == true {
        return Assessment::note("paused: spec.suspend");
    }
    Assessment::current()
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::json;

    use super::super::Readiness::{self, Current, Failed, InProgress};
    use super::super::tests::check;
    use super::*;

    #[rstest]
    #[case::new(json!({"spec": {}, "status": {}}), InProgress, "its controller has not observed it yet")]
    #[case::running(json!({"spec": {"completions": 1}, "status": {"startTime": "2026-07-01T10:00:00Z", "active": 1, "ready": 0, "terminating": 0}}),
        InProgress, "0 of 1 pods succeeded, 1 active")]
    #[case::retrying(json!({"spec": {"completions": 3}, "status": {"startTime": "2026-07-01T10:00:00Z", "active": 1, "succeeded": 1, "failed": 2}}),
        InProgress, "1 of 3 pods succeeded, 1 active, 2 failed")]
    #[case::complete(json!({"spec": {}, "status": {"startTime": "2026-07-01T10:00:00Z", "succeeded": 1,
        "conditions": [{"type": "SuccessCriteriaMet", "status": "True", "reason": "CompletionsReached", "message": "Reached expected number of succeeded pods"},
            {"type": "Complete", "status": "True", "reason": "CompletionsReached", "message": "Reached expected number of succeeded pods"}]}}),
        Current, "")]
    #[case::failed(json!({"spec": {}, "status": {"startTime": "2026-07-01T10:00:00Z", "failed": 7,
        "conditions": [{"type": "FailureTarget", "status": "True", "reason": "BackoffLimitExceeded"},
            {"type": "Failed", "status": "True", "reason": "BackoffLimitExceeded", "message": "Job has reached the specified backoff limit"}]}}),
        Failed, "Failed=True (BackoffLimitExceeded): Job has reached the specified backoff limit")]
    #[case::stopping(json!({"spec": {}, "status": {"startTime": "2026-07-01T10:00:00Z",
        "conditions": [{"type": "FailureTarget", "status": "True", "reason": "DeadlineExceeded"}]}}),
        InProgress, "FailureTarget=True (DeadlineExceeded)")]
    #[case::suspended(json!({"spec": {"suspend": true}, "status": {
        "conditions": [{"type": "Suspended", "status": "True", "reason": "JobSuspended", "message": "Job suspended"}]}}),
        Current, "paused: spec.suspend")]
    #[case::runs_once(json!({"metadata": {"annotations": {"pleach.dev/run": "once"}}, "spec": {"suspend": true}, "status": {
        "conditions": [{"type": "Suspended", "status": "True", "reason": "JobSuspended", "message": "Job suspended"}]}}),
        InProgress, "Suspended=True (JobSuspended): Job suspended")]
    #[case::queued(json!({"metadata": {"labels": {"kueue.x-k8s.io/queue-name": "default"}}, "spec": {"suspend": true}, "status": {}}),
        InProgress, "suspended")]
    #[case::complete_and_suspended(json!({"spec": {"suspend": true}, "status": {"conditions": [{"type": "Complete", "status": "True"}]}}),
        Current, "")]
    #[case::about_to_resume(json!({"spec": {"suspend": false}, "status": {
        "conditions": [{"type": "Suspended", "status": "True", "reason": "JobSuspended"}]}}),
        InProgress, "Suspended=True (JobSuspended)")]
    #[case::resumed(json!({"spec": {"suspend": false}, "status": {"startTime": "2026-07-01T10:00:00Z", "active": 1,
        "conditions": [{"type": "Suspended", "status": "False", "reason": "JobResumed"}]}}),
        InProgress, "0 of 1 pods succeeded, 1 active")]
    fn jobs(#[case] rest: Value, #[case] readiness: Readiness, #[case] message: &str) {
        assert_eq!(
            check("batch/v1", "Job", rest),
            (readiness, message.to_owned())
        );
    }

    #[test]
    fn cron_jobs_are_current() {
        assert_eq!(
            check("batch/v1", "CronJob", json!({"spec": {"suspend": true}})),
            (Current, "paused: spec.suspend".to_owned())
        );
        assert_eq!(
            check("batch/v1", "CronJob", json!({"spec": {}, "status": {}})),
            (Current, String::new())
        );
    }
}
