//! Cases per rule and per pair of rules.

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

/// Judges conditions without other fields of a status.
fn check_conditions(cases: impl IntoIterator<Item = (&'static str, Readiness)>) {
    for (text, expected) in cases {
        let status = json!({"conditions": conditions(text)});
        let (found, message) = judged(json!({"status": status}));
        assert_eq!(found, expected, "{text}: {message}");
    }
}

#[test]
fn conditions_alone() {
    check_conditions([
        ("", Current),
        ("Ready=True", Current),
        ("Available=True", Current),
        ("Unheard=False", Current),
        ("Upgradeable=False", Current),
        ("UpdateAvailable=False", Current),
        ("Active=False", InProgress),
        ("Active=False Healthy=True", Current),
        ("Active=False AbleToScale=True", Current),
        ("Initialized=True", InProgress),
        ("Initialized=True Running=True", Current),
        ("Initialized=True Deployed=True", Current),
        ("Synced=True", Current),
        ("Synced=True:ReconcileSuccess", InProgress),
        ("Synced=True:ReconcileSuccess Ready=True", Current),
        // Trouble of the whole object.
        ("Ready=False", InProgress),
        ("Ready=Unknown", InProgress),
        ("Ready=", InProgress),
        ("Available=False", InProgress),
        ("Healthy=False", InProgress),
        ("Synced=False", InProgress),
        ("Synced=False:ReconcileError", Failed),
        ("Ready=False:Creating", InProgress),
        ("Ready=False:InstallFailed", Failed),
        ("Ready=False:SecretNotFound", Failed),
        ("Ready=Unknown:InstallFailed", InProgress),
        ("Failed=True", Failed),
        ("Failed=False", Current),
        ("Degraded=True", Failed),
        ("Stalled=True", Failed),
        ("Error=True", Failed),
        ("NotReady=True", InProgress),
        ("NotReady=True:InvalidSpec", Failed),
        ("NotReady=False", Current),
        ("Reconciling=True", InProgress),
        ("Progressing=True", InProgress),
        ("Progressing=True:NewReplicaSetAvailable", Current),
        ("Progressing=True:RolloutStarted", InProgress),
        ("Progressing=True:UpgradeAccepted", InProgress),
        ("Progressing=True:Running", InProgress),
        ("Progressing=False", InProgress),
        ("Progressing=False:Completed", Current),
        ("Progressing=False:ProgressDeadlineExceeded", Failed),
        // Parts of the object.
        ("DatabaseReady=False", InProgress),
        ("DatabaseReady=True CacheReady=False:CreateError", Failed),
        ("Accepted=True Programmed=False", InProgress),
        ("BackupFailed=True", Failed),
        ("FailedToReconcile=True", Failed),
        ("InvalidSpec=True", Failed),
        ("InvalidSpec=False", Current),
        ("SecretNotValid=True", InProgress),
        ("NodeNotReady=False", Current),
        ("OutOfSync=True", InProgress),
        ("AbleToScale=False:FailedGetScale", Failed),
        ("Attached=False:Invalid", Failed),
        ("Unreachable=True", Failed),
        ("example.org/MissingPeerConfig=True", Failed),
        ("ScalingUp=True", InProgress),
        ("Running=False", InProgress),
        ("Running=False Complete=True", Current),
        ("Running=False:DeploymentFailed", Failed),
        ("Running=Unknown:DeploymentFailed", Current),
        ("CrashLooping=True", Failed),
        ("FailedProvisioning=True", Failed),
        ("NoQuorum=True", Failed),
        ("RollingBack=True", InProgress),
        ("Scaling=True", InProgress),
        ("Ready=True Scaling=True", Current),
        ("Ready=True Succeeded=False:UpdateInProgress", InProgress),
        ("Ready=True Active=False:InvalidConfig", Current),
    ]);
}

#[test]
fn conditions_together() {
    check_conditions([
        // Conditions about the newest spec, with conditions about the whole.
        ("Available=True Reconciled=False:ReconcileError", Failed),
        ("Healthy=True ReconcileSuccess=False", InProgress),
        ("Ready=True Applied=False:ApplyFailed", Failed),
        ("Ready=True UpToDate=False", InProgress),
        ("Available=True UpgradeFailed=True", Failed),
        ("Ready=True UpdateInProgress=True", InProgress),
        ("Ready=True RollingOut=True", InProgress),
        ("Accepted=True DatabaseReady=False", InProgress),
        // Conditions about a part, with conditions about the whole.
        ("Ready=True ScalingUp=True", Current),
        ("Ready=True DatabaseReady=False", Current),
        ("Ready=True BackupFailed=True", Current),
        ("Synced=True DatabaseReady=False", InProgress),
        // Several conditions about the whole.
        ("Ready=True Available=False", InProgress),
        ("Ready=True Synced=False:ReconcileError", Failed),
        ("Ready=True Failed=True", Failed),
        ("Ready=True Degraded=True", Failed),
        ("Ready=True NotReady=True", InProgress),
        ("Ready=True Error=True", Failed),
        ("Ready=True Progressing=False", Current),
        ("Available=True Progressing=False", Current),
        (
            "Ready=True Progressing=False:ProgressDeadlineExceeded",
            Current,
        ),
        ("Synced=True Progressing=False", InProgress),
        ("Ready=True Progressing=True", InProgress),
        ("Ready=True Progressing=True:Available", Current),
        ("Ready=True Reconciling=True", InProgress),
        ("Ready=False Progressing=False", InProgress),
        // A working controller may recover.
        ("Degraded=True Progressing=True", InProgress),
        ("Ready=False:InstallFailed Reconciling=True", InProgress),
        ("Stalled=True Reconciling=True", Failed),
    ]);
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
fn the_first_condition_counts_until_the_status_reports_readiness() {
    for (ready, expected) in [
        (json!({}), InProgress),
        (json!({"phase": "Ready"}), Current),
        (json!({"ready": true}), Current),
    ] {
        let mut status = ready.clone();
        status["conditions"] = conditions("Initialized=True");
        let (found, message) = judged(json!({"status": status}));
        assert_eq!(found, expected, "{ready}: {message}");
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
fn messages_and_severities_decide_where_the_reason_does_not() {
    for (rest, expected) in [
        (json!({"message": "cannot pull the image"}), Failed),
        (
            json!({"message": "waiting for the secret: not found"}),
            InProgress,
        ),
        (
            json!({"reason": "Creating", "message": "error"}),
            InProgress,
        ),
        (
            json!({"reason": "NotReady", "message": "1 of 3 pods"}),
            InProgress,
        ),
        (json!({"severity": "Error"}), Failed),
        (
            json!({"severity": "Info", "reason": "CreateError"}),
            InProgress,
        ),
        (
            json!({"severity": "Warning", "reason": "CreateError"}),
            Failed,
        ),
    ] {
        let mut condition = json!({"type": "Ready", "status": "False"});
        for (key, value) in rest.as_object().unwrap() {
            condition[key] = value.clone();
        }
        let status = json!({"conditions": [condition]});
        let (found, message) = judged(json!({"status": status}));
        assert_eq!(found, expected, "{rest}: {message}");
    }
    let part = json!({"type": "DatabaseReady", "status": "False", "severity": "Info"});
    assert_eq!(judged(json!({"status": {"conditions": [part]}})).0, Current);
}

#[test]
fn conditions_of_an_earlier_generation_do_not_count() {
    const BEHIND: &str = "its conditions describe an earlier generation";
    let condition = |name: &str, status: &str, observed: i64| json!({"type": name, "status": status, "observedGeneration": observed});
    for (conditions, expected, message) in [
        (vec![condition("Ready", "True", 1)], InProgress, BEHIND),
        (vec![condition("Stalled", "True", 1)], InProgress, BEHIND),
        (
            vec![
                condition("Reconciling", "True", 1),
                condition("Ready", "True", 2),
            ],
            Current,
            "",
        ),
        (
            vec![
                condition("Stalled", "True", 1),
                condition("Ready", "True", 2),
            ],
            Current,
            "",
        ),
        (
            vec![
                condition("Ready", "True", 1),
                condition("Synced", "True", 2),
            ],
            InProgress,
            BEHIND,
        ),
        (
            vec![
                condition("DatabaseReady", "True", 1),
                condition("CacheReady", "True", 2),
            ],
            Current,
            "",
        ),
        (
            vec![
                condition("Ready", "False", 1),
                condition("Failed", "True", 2),
            ],
            Failed,
            "Failed=True",
        ),
        (vec![condition("Ready", "True", 2)], Current, ""),
    ] {
        let status = json!({"conditions": conditions});
        let found = judged(json!({"metadata": {"generation": 2}, "status": status}));
        assert_eq!(found, (expected, message.to_owned()), "{status}");
    }
    for field in [
        "observedGeneration",
        "lastObservedGeneration",
        "lastReconciledGeneration",
    ] {
        let status = json!({field: 2, "conditions": conditions("Ready=True")});
        let found = judged(json!({"metadata": {"generation": 3}, "status": status}));
        let lag = "its controller has observed generation 2, not 3 yet".to_owned();
        assert_eq!(found, (InProgress, lag), "{field}");
    }
}

#[test]
fn conditions_of_parents_count_if_there_are_no_own_ones() {
    let parent = |text: &str| json!({"conditions": conditions(text)});
    for (status, expected) in [
        (
            json!({"ancestors": [parent("Accepted=True"), parent("Accepted=False:Invalid")]}),
            Failed,
        ),
        (
            json!({"ancestors": [parent("Ready=True"), parent("Attached=True CacheReady=False")]}),
            InProgress,
        ),
        (json!({"ancestors": [parent("Accepted=True")]}), Current),
        (
            json!({"conditions": [], "ancestors": [parent("Accepted=Unknown")]}),
            InProgress,
        ),
        (
            json!({"conditions": conditions("Ready=True"), "ancestors": [parent("Accepted=False")]}),
            Current,
        ),
        (
            json!({"conditionStatus": parent("Ready=False:CreateError")}),
            Failed,
        ),
        (
            json!({"previousStatus": parent("Ready=False:CreateError")}),
            Current,
        ),
    ] {
        let (found, message) = judged(json!({"status": status}));
        assert_eq!(found, expected, "{status}: {message}");
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
fn nothing_trips_over_other_types() {
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
