//! Assessment by conditions.

use serde_json::json;

use super::{Current, Failed, InProgress, Readiness, conditions, judged};

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
