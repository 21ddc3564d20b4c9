//! Cases per rule and per pair of rules.

mod conditions;

use serde_json::{Value, json};

use super::super::Readiness::{self, Current, Failed, InProgress};
use super::super::tests::check;
use super::super::{GiveUp, assess};

/// Conditions by type and status, with a reason after a colon: `Ready=False:Creating`.
fn conditions(text: &str) -> Value {
    text.split_whitespace()
        .map(|one| {
            let (name, rest) = one.split_once('=').unwrap();
            let (status, reason) = rest.split_once(':').unwrap_or((rest, ""));
            json!({"type": name, "status": status, "reason": reason})
        })
        .collect()
}

fn judged(rest: Value) -> (Readiness, String) {
    check("example.org/v1", "Widget", rest)
}

/// Judges statuses of objects that want three replicas.
fn check_statuses(cases: impl IntoIterator<Item = (Value, Readiness, &'static str)>) {
    for (status, expected, message) in cases {
        let found = judged(json!({"spec": {"replicas": 3}, "status": status}));
        assert_eq!(found, (expected, message.to_owned()), "{status}");
    }
}

#[test]
fn words_of_a_status() {
    check_statuses([
        (json!({"phase": "Running"}), Current, ""),
        (json!({"phase": "Idle"}), Current, ""),
        (json!({"phase": 3}), Current, ""),
        (json!({"phase": "Creating"}), InProgress, "phase Creating"),
        (json!({"state": "pending"}), InProgress, "state pending"),
        (
            json!({"phase": "Failed", "message": "no disk"}),
            Failed,
            "phase Failed: no disk",
        ),
        (json!({"status": "degraded"}), Failed, "status degraded"),
        (json!({"health": "green"}), Current, ""),
        (json!({"health": "yellow"}), InProgress, "health yellow"),
        (
            json!({"health": {"status": "Degraded"}}),
            Failed,
            "health.status Degraded",
        ),
        (
            json!({"phase": "Ready", "health": "red"}),
            Failed,
            "health red",
        ),
        // Parts.
        (
            json!({"clusterStatus": "Creating"}),
            InProgress,
            "clusterStatus Creating",
        ),
        (json!({"lastBackupStatus": "Failed"}), Current, ""),
        (
            json!({"jobStatus": {"state": "FAILED"}}),
            Failed,
            "jobStatus.state FAILED",
        ),
        (json!({"ready": false}), InProgress, "ready is false"),
        (json!({"ready": true}), Current, ""),
        (json!({"ready": "False"}), InProgress, "ready is false"),
        (json!({"failed": true}), Failed, "failed is true"),
        (json!({"failed": false}), Current, ""),
        (
            json!({"health": {"healthy": false}}),
            InProgress,
            "healthy is false",
        ),
        (json!({"result": "Failed"}), Failed, "result Failed"),
        (
            json!({"lastOperation": {"state": "Error"}}),
            Failed,
            "lastOperation.state Error",
        ),
        (
            json!({"stage": "Installing"}),
            InProgress,
            "stage Installing",
        ),
        (json!({"stage": "production"}), Current, ""),
        (
            json!({"reconciling": true}),
            InProgress,
            "reconciling is true",
        ),
        (
            json!({"unavailable": true}),
            InProgress,
            "unavailable is true",
        ),
        (
            json!({"failedProvisioning": true}),
            Failed,
            "failedProvisioning is true",
        ),
        (json!({"ready": "1/3"}), InProgress, "ready is 1/3"),
        (json!({"ready": "3/3"}), Current, ""),
        (json!({"ready": "a/3", "failed": "0/0"}), Current, ""),
        (
            json!({"databaseReady": false}),
            InProgress,
            "databaseReady is false",
        ),
        (json!({"error": "no disk"}), Failed, "error: no disk"),
        (json!({"error": ""}), Current, ""),
        (json!({"error": "None"}), Current, ""),
        (json!({"errors": [{}]}), Failed, "1 errors"),
        (
            json!({"error": {"message": "no disk"}}),
            Failed,
            "error: no disk",
        ),
        (json!({"error": {"code": 3}}), Failed, "error is set"),
        (json!({"lastError": "boom"}), Failed, "lastError: boom"),
        (json!({"problems": ["a", "b"]}), Failed, "2 problems"),
    ]);
}

#[test]
fn counts_of_a_status() {
    check_statuses([
        (
            json!({"readyReplicas": 1}),
            InProgress,
            "1 of 3 replicas ready",
        ),
        (json!({"readyReplicas": 3}), Current, ""),
        (json!({"replicas": 3}), Current, ""),
        (json!({"replicas": 2}), InProgress, "2 of 3 replicas exist"),
        (
            json!({"readyNodes": 1, "nodes": 2}),
            InProgress,
            "readyNodes is 1 of 2",
        ),
        (
            json!({"healthyInstances": 1, "desiredInstances": 2}),
            InProgress,
            "healthyInstances is 1 of 2",
        ),
        (json!({"readyNodes": 2, "totalNodes": 2}), Current, ""),
        (
            json!({"ready": 1, "total": 2}),
            InProgress,
            "ready is 1 of 2",
        ),
        (json!({"readyNodes": 1, "limit": 2}), Current, ""),
        (json!({"readyToUse": 1}), Current, ""),
        (
            json!({"availableReplicas": 2}),
            InProgress,
            "2 of 3 replicas ready",
        ),
        (
            json!({"replicas": 3, "readyReplicas": 3, "updatedReplicas": 1}),
            InProgress,
            "1 of 3 replicas updated",
        ),
        (
            json!({"desiredNumberScheduled": 3}),
            InProgress,
            "0 of 3 pods ready",
        ),
        (
            json!({"desiredNumberScheduled": 3, "numberReady": 3, "updatedNumberScheduled": 2}),
            InProgress,
            "2 of 3 pods updated",
        ),
    ]);
}

#[test]
fn words_of_a_status_beside_conditions() {
    check_statuses([
        (
            json!({"phase": "Creating", "conditions": conditions("Ready=True")}),
            InProgress,
            "phase Creating",
        ),
        (
            json!({"phase": "Failed", "conditions": conditions("Ready=True")}),
            Failed,
            "phase Failed",
        ),
        (
            json!({"phase": "Ready", "conditions": conditions("Ready=False")}),
            InProgress,
            "Ready=False",
        ),
        (
            json!({"phase": "Creating", "conditions": conditions("Available=False")}),
            InProgress,
            "Available=False",
        ),
        (
            json!({"clusterStatus": "Creating", "conditions": conditions("Ready=True")}),
            Current,
            "",
        ),
        (
            json!({"error": "old", "readyReplicas": 1, "conditions": conditions("Ready=True")}),
            Current,
            "",
        ),
    ]);
}

#[test]
fn words_of_components_count_if_nothing_is_about_the_whole() {
    check_statuses([
        (
            json!({"database": {"phase": "Creating"}}),
            InProgress,
            "database.phase Creating",
        ),
        (
            json!({"components": [{"status": "Ready"}, {"status": "Failed"}]}),
            Failed,
            "components.status Failed",
        ),
        (
            json!({"components": {"web": {"ready": true}, "db": {"ready": false}}}),
            InProgress,
            "components.ready is false",
        ),
        (
            json!({"server": {"readyReplicas": 1, "replicas": 3}}),
            InProgress,
            "readyReplicas is 1 of 3",
        ),
        (
            json!({"nodes": {"ready": 1, "total": 3}}),
            InProgress,
            "ready is 1 of 3",
        ),
        (
            json!({"phase": "Ready", "database": {"phase": "Creating"}}),
            Current,
            "",
        ),
        (
            json!({"conditions": conditions("Ready=True"), "database": {"phase": "Creating"}}),
            Current,
            "",
        ),
        (
            json!({"byPod": [{"errors": []}, {"errors": [{"code": "parse"}]}]}),
            Failed,
            "1 errors",
        ),
        (json!({"lastBackup": {"phase": "Failed"}}), Current, ""),
        (
            json!({"upgradeHistory": [{"state": "Failed"}]}),
            Current,
            "",
        ),
        (json!({"features": [{"enabled": false}]}), Current, ""),
    ]);
}

#[test]
fn an_operator_with_ansible_reports_a_run_by_a_message() {
    for (reason, message, expected) in [
        ("Running", "Running reconciliation", InProgress),
        ("Successful", "Awaiting next reconciliation", Current),
    ] {
        let condition =
            json!({"type": "Running", "status": "True", "reason": reason, "message": message});
        let status = json!({"conditions": [condition]});
        let (found, message) = judged(json!({"status": status}));
        assert_eq!(found, expected, "{message}");
    }
}

#[test]
fn a_task_is_ready_when_it_has_finished() {
    let running = conditions("Created=True Running=True");
    let complete = conditions("Running=True Complete=True");
    for (kind, status, expected) in [
        ("DatabaseBackup", json!({"phase": "Running"}), InProgress),
        ("DatabaseBackup", json!({"phase": "Completed"}), Current),
        (
            "DataJob",
            json!({"jobStatus": {"state": "RUNNING"}}),
            InProgress,
        ),
        ("DataJob", json!({"conditions": running}), InProgress),
        ("DataJob", json!({"conditions": complete}), Current),
        ("Database", json!({"phase": "Running"}), Current),
        ("Database", json!({"conditions": running}), Current),
        ("BackupSchedule", json!({"phase": "Running"}), Current),
    ] {
        let (found, message) = check("example.org/v1", kind, json!({"status": status}));
        assert_eq!(found, expected, "{kind} {status}: {message}");
    }
}

#[test]
fn replicas_of_a_previous_version_may_stay_by_strategy() {
    for strategy in [
        json!({"type": "OnDelete"}),
        json!({"partition": 2}),
        json!({"rollingUpdate": {"partition": 2}}),
    ] {
        let spec = json!({"replicas": 3, "updateStrategy": strategy});
        let status = json!({"readyReplicas": 3, "updatedReplicas": 1});
        let (found, message) = judged(json!({"spec": spec, "status": status}));
        assert_eq!(found, Current, "{strategy}: {message}");
    }
}

#[test]
fn paused_objects_are_ready_with_a_note() {
    let unready = json!({"conditions": conditions("Ready=False:InstallFailed")});
    for (rest, message) in [
        (
            json!({"spec": {"paused": true}, "status": unready}),
            "paused: spec.paused",
        ),
        (
            json!({"spec": {"suspend": true}, "status": unready}),
            "paused: spec.suspend",
        ),
        (
            json!({"metadata": {"annotations": {"example.org/paused": ""}}, "status": unready}),
            "paused: annotation example.org/paused",
        ),
        (
            json!({"status": {"conditions": conditions("Ready=False Paused=True")}}),
            "paused: Paused=True",
        ),
        (
            json!({"status": {"conditions": conditions("Synced=False:ReconcilePaused")}}),
            "paused: Synced=False (ReconcilePaused)",
        ),
        (
            json!({"status": {"phase": "Suspended"}}),
            "paused: phase Suspended",
        ),
        (
            json!({"status": {"lifecycleState": "SUSPENDED"}}),
            "paused: lifecycleState SUSPENDED",
        ),
        (
            json!({"status": {"conditions": conditions("Stopped=True Ready=False")}}),
            "paused: Stopped=True",
        ),
    ] {
        assert_eq!(
            judged(rest.clone()),
            (Current, message.to_owned()),
            "{rest}"
        );
    }
    for rest in [
        json!({"spec": {"paused": false}, "status": unready}),
        json!({"metadata": {"annotations": {"example.org/paused": "false"}}, "status": unready}),
        json!({"status": {"conditions": conditions("Paused=False Failed=True")}}),
        json!({"status": {"conditions": conditions("Stopped=True:Crashed Failed=True")}}),
    ] {
        assert_eq!(judged(rest.clone()).0, Failed, "{rest}");
    }
}

#[test]
fn an_object_that_is_about_to_resume_is_in_progress() {
    let suspended = json!({"phase": "Suspended"});
    for (rest, message) in [
        (
            json!({"spec": {"suspend": false}, "status": suspended}),
            "phase Suspended",
        ),
        (
            json!({"metadata": {"generation": 2}, "status": {"observedGeneration": 1, "phase": "Suspended"}}),
            "its controller has observed generation 1, not 2 yet",
        ),
        (
            json!({"metadata": {"generation": 2}, "status": {"observedGeneration": 1, "conditions": conditions("Paused=True")}}),
            "its controller has observed generation 1, not 2 yet",
        ),
    ] {
        assert_eq!(
            judged(rest.clone()),
            (InProgress, message.to_owned()),
            "{rest}"
        );
    }
    // Pausing in the spec takes effect immediately.
    let spec = json!({"metadata": {"generation": 2}, "spec": {"suspend": true}, "status": {"observedGeneration": 1}});
    assert_eq!(judged(spec), (Current, "paused: spec.suspend".to_owned()));
}

#[test]
fn only_permanent_failures_end_a_wait() {
    for (status, expected) in [
        (
            json!({"conditions": conditions("Stalled=True")}),
            GiveUp::AfterGrace,
        ),
        (json!({"phase": "Failed"}), GiveUp::AfterGrace),
        (
            json!({"conditions": conditions("Ready=False:CreateError")}),
            GiveUp::AtDeadline,
        ),
        (
            json!({"conditions": conditions("Ready=False:CreateError Stalled=True")}),
            GiveUp::AfterGrace,
        ),
        (
            json!({"conditions": conditions("Degraded=True")}),
            GiveUp::AtDeadline,
        ),
    ] {
        let value = json!({"apiVersion": "example.org/v1", "kind": "Widget", "status": status});
        assert_eq!(assess(&value).give_up, expected, "{status}");
    }
}

#[test]
fn unexpected_types_are_accepted() {
    for status in [
        json!(null),
        json!("text"),
        json!([]),
        json!({"conditions": null, "phase": null, "health": [], "errors": {}}),
        json!({"conditions": [null, 3, {"type": null}, {"type": 1, "status": []}]}),
        json!({"conditions": {"Ready": "False"}, "list": [null, {"conditions": 3}]}),
    ] {
        assert_eq!(
            judged(json!({"spec": null, "status": status})).0,
            Current,
            "{status}"
        );
    }
}
