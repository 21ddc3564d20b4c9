//! Meaning of condition types: whether True is good or bad.

use super::words::words;

/// Meaning of a type of condition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Sense {
    /// True is good.
    Good(Weight),
    /// True is trouble that the controller does not try to resolve.
    Failed,
    /// True is trouble.
    Bad(Weight),
    /// True means the same as False of the opposite type.
    NotGood(Weight),
    /// True means that the controller is working.
    Work(Weight),
    /// False is either the end of the work or trouble; other conditions decide.
    Progressing,
    /// False is trouble only if its reason reports a failure.
    Activity,
    /// True means that the controller waits until a user resumes the object.
    Paused,
    /// Unrelated to readiness.
    Neutral,
}

/// Weight of a condition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Weight {
    /// About the whole object; always counts.
    Whole,
    /// About the newest spec; always counts, but True does not mean that the
    /// object is ready.
    Spec,
    /// About a part; counts unless a condition about the whole is True.
    Part,
}

const GOOD: &[&str] = &[
    "accepted",
    "accomplished",
    "admitted",
    "adopted",
    "allowed",
    "applied",
    "approved",
    "attached",
    "authenticated",
    "authorized",
    "available",
    "balanced",
    "bootstrapped",
    "bound",
    "built",
    "complete",
    "completed",
    "configured",
    "connected",
    "converged",
    "created",
    "deployed",
    "done",
    "downloaded",
    "enforced",
    "established",
    "finished",
    "generated",
    "granted",
    "healthy",
    "imported",
    "initialized",
    "installed",
    "issued",
    "joined",
    "launched",
    "loaded",
    "online",
    "operational",
    "passed",
    "programmed",
    "propagation",
    "provisioned",
    "published",
    "reachable",
    "ready",
    "reconciled",
    "registered",
    "reserved",
    "resolved",
    "satisfied",
    "scheduled",
    "stable",
    "succeeded",
    "success",
    "successful",
    "synced",
    "synchronized",
    "updated",
    "valid",
    "validated",
    "verified",
];

const BAD: &[&str] = &[
    "aborted",
    "blocked",
    "broken",
    "canceled",
    "cancelled",
    "conflict",
    "conflicted",
    "conflicting",
    "corrupted",
    "crashed",
    "degraded",
    "denied",
    "error",
    "errored",
    "errors",
    "exceeded",
    "expired",
    "failed",
    "failing",
    "failure",
    "halted",
    "invalid",
    "irreconcilable",
    "looping",
    "lost",
    "misconfigured",
    "missing",
    "orphaned",
    "rejected",
    "stalled",
    "stuck",
    "terminal",
    "timeout",
    "unhealthy",
    "unreachable",
];

const NOT_GOOD: &[&str] = &["offline", "unavailable", "unready", "unschedulable"];

const WORK: &[&str] = &[
    "bootstrapping",
    "building",
    "configuring",
    "creating",
    "deleting",
    "deploying",
    "initializing",
    "installing",
    "issuing",
    "migrating",
    "pending",
    "preparing",
    "progress",
    "progressing",
    "provisioning",
    "rebalancing",
    "reconciling",
    "recovering",
    "resizing",
    "restarting",
    "restoring",
    "starting",
    "synchronizing",
    "syncing",
    "terminating",
    "updating",
    "upgrading",
    "waiting",
];

/// First words of types such as `UpdateAvailable`, which announce a
/// possibility.
const OFFERS: &[&str] = &[
    "deletion",
    "disruption",
    "release",
    "update",
    "updates",
    "upgrade",
    "upgrades",
    "version",
];

/// First words of types about what the controller does with the object.
const RECONCILE: &[&str] = &["reconcile", "reconciler", "reconciliation", "replica"];

/// Returns the meaning of a condition type. A type with a domain, such as
/// `example.org/Ready`, is about a part.
pub(super) fn sense(name: &str) -> Sense {
    match name.rsplit_once('/') {
        Some((_, name)) => of_part(sense_of(name)),
        None => sense_of(name),
    }
}

fn of_part(sense: Sense) -> Sense {
    match sense {
        Sense::Good(_) => Sense::Good(Weight::Part),
        Sense::Failed | Sense::Bad(_) => Sense::Bad(Weight::Part),
        Sense::NotGood(_) => Sense::NotGood(Weight::Part),
        Sense::Work(_) | Sense::Progressing => Sense::Work(Weight::Part),
        Sense::Activity => Sense::Activity,
        Sense::Paused | Sense::Neutral => Sense::Neutral,
    }
}

fn sense_of(name: &str) -> Sense {
    let words = words(name);
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    match words.as_slice() {
        [] => Sense::Neutral,
        ["ready" | "available" | "healthy" | "synced"] => Sense::Good(Weight::Whole),
        [
            "accepted" | "applied" | "programmed" | "reconciled" | "success" | "succeeded"
            | "successful" | "valid",
        ]
        | [
            "reconcile" | "reconciliation",
            "success" | "succeeded" | "successful",
        ]
        | ["up", "to", "date"] => Sense::Good(Weight::Spec),
        ["progressing"] => Sense::Progressing,
        ["hibernated" | "hibernating" | "paused" | "stopped" | "suspended"]
        | ["reconcile" | "reconciliation", "paused" | "suspended"] => Sense::Paused,
        ["failed" | "stalled" | "terminal"] => Sense::Failed,
        ["degraded" | "unhealthy" | "failure" | "error" | "errored"]
        | ["error", "occurred"]
        | ["rollout" | "update" | "upgrade", "failed"]
        | ["rollout", "blocked"] => Sense::Bad(Weight::Whole),
        ["in", "progress"]
        | ["rolling", "back" | "out"]
        | [
            "rollback" | "rollout" | "update" | "upgrade",
            "in",
            "progress",
        ] => Sense::Work(Weight::Whole),
        ["scaling"] | ["scaling", "up" | "down"] => Sense::Work(Weight::Part),
        ["out", "of", "sync"] => Sense::NotGood(Weight::Whole),
        ["in", "sync"] | ["resolved", "refs"] => Sense::Good(Weight::Part),
        ["ack", "recoverable"]
        | ["failed" | "unable", "to", ..]
        | ["no", "matching", ..]
        | ["no", "quorum"]
        | ["timed", "out"] => Sense::Bad(Weight::Part),
        ["failed", .., last] if WORK.contains(last) => Sense::Bad(Weight::Part),
        [first, "error" | "failed" | "failure"] if RECONCILE.contains(first) => {
            Sense::Bad(Weight::Whole)
        }
        [first, "allowed" | "available"] if OFFERS.contains(first) => Sense::Neutral,
        ["no", .., last] if BAD.contains(last) => Sense::Good(Weight::Part),
        ["not", rest @ ..] if rest.last().is_some_and(|last| GOOD.contains(last)) => {
            Sense::NotGood(weight(rest.len()))
        }
        [.., "not", last] if GOOD.contains(last) => Sense::NotGood(Weight::Part),
        [first, ..] => of_last(&words).unwrap_or_else(|| of_first(first)),
    }
}

fn weight(words: usize) -> Weight {
    if words == 1 {
        Weight::Whole
    } else {
        Weight::Part
    }
}

fn of_last(words: &[&str]) -> Option<Sense> {
    let last = words.last()?;
    if GOOD.contains(last) {
        Some(Sense::Good(Weight::Part))
    } else if BAD.contains(last) {
        Some(Sense::Bad(Weight::Part))
    } else if NOT_GOOD.contains(last) {
        Some(Sense::NotGood(weight(words.len())))
    } else if WORK.contains(last) {
        Some(Sense::Work(weight(words.len())))
    } else {
        ["active", "running"]
            .contains(last)
            .then_some(Sense::Activity)
    }
}

fn of_first(first: &str) -> Sense {
    match first {
        "bad" | "error" | "invalid" | "missing" => Sense::Bad(Weight::Part),
        "able" | "ready" => Sense::Good(Weight::Part),
        _ => Sense::Neutral,
    }
}

#[cfg(test)]
mod tests {
    use super::Weight::{Part, Spec, Whole};
    use super::*;

    #[test]
    fn senses_of_types() {
        for (name, expected) in [
            ("Ready", Sense::Good(Whole)),
            ("Available", Sense::Good(Whole)),
            ("Healthy", Sense::Good(Whole)),
            ("Synced", Sense::Good(Whole)),
            ("DatabaseReady", Sense::Good(Part)),
            ("Accepted", Sense::Good(Spec)),
            ("Reconciled", Sense::Good(Spec)),
            ("DatabaseReconciled", Sense::Good(Part)),
            ("ResolvedRefs", Sense::Good(Part)),
            ("API.ResourceSynced", Sense::Good(Part)),
            ("ReconcileSuccess", Sense::Good(Spec)),
            ("Succeeded", Sense::Good(Spec)),
            ("BackupSucceeded", Sense::Good(Part)),
            ("PreflightsPassed", Sense::Good(Part)),
            ("UpToDate", Sense::Good(Spec)),
            ("ReadyToSyncSecrets", Sense::Good(Part)),
            ("Ready-In-Zone-a", Sense::Good(Part)),
            ("AbleToScale", Sense::Good(Part)),
            ("example.org/Ready", Sense::Good(Part)),
            ("NoConflicts", Sense::Neutral),
            ("NoErrors", Sense::Good(Part)),
            ("Attached", Sense::Good(Part)),
            ("Finished", Sense::Good(Part)),
            ("DeletionAllowed", Sense::Neutral),
            ("UpdateAvailable", Sense::Neutral),
            ("Upgradeable", Sense::Neutral),
            ("Active", Sense::Activity),
            ("PolicyRunning", Sense::Activity),
            ("Warning", Sense::Neutral),
            ("FailedOver", Sense::Neutral),
            ("", Sense::Neutral),
            ("Failed", Sense::Failed),
            ("Error", Sense::Bad(Whole)),
            ("Stalled", Sense::Failed),
            ("ReconcileError", Sense::Bad(Whole)),
            ("ReplicaFailure", Sense::Bad(Whole)),
            ("BackupFailed", Sense::Bad(Part)),
            ("UpgradeFailed", Sense::Bad(Whole)),
            ("RolloutBlocked", Sense::Bad(Whole)),
            ("FailedToReconcile", Sense::Bad(Part)),
            ("FailedProvisioning", Sense::Bad(Part)),
            ("NoQuorum", Sense::Bad(Part)),
            ("TimedOut", Sense::Bad(Part)),
            ("CrashLooping", Sense::Bad(Part)),
            ("InvalidSpec", Sense::Bad(Part)),
            ("BadConfiguration", Sense::Bad(Part)),
            ("Unreachable", Sense::Bad(Part)),
            ("Canceled", Sense::Bad(Part)),
            ("ACK.Recoverable", Sense::Bad(Part)),
            ("Recoverable", Sense::Neutral),
            ("example.org/NoMatchingNode", Sense::Bad(Part)),
            ("example.org/MissingPeerConfig", Sense::Bad(Part)),
            ("Degraded", Sense::Bad(Whole)),
            ("NotReady", Sense::NotGood(Whole)),
            ("NotAllReady", Sense::NotGood(Part)),
            ("NodeNotReady", Sense::NotGood(Part)),
            ("SecretNotValid", Sense::NotGood(Part)),
            ("OutOfSync", Sense::NotGood(Whole)),
            ("Unavailable", Sense::NotGood(Whole)),
            ("Progressing", Sense::Progressing),
            ("Reconciling", Sense::Work(Whole)),
            ("InProgress", Sense::Work(Whole)),
            ("RollingOut", Sense::Work(Whole)),
            ("RollingBack", Sense::Work(Whole)),
            ("RollbackInProgress", Sense::Work(Whole)),
            ("UpdateInProgress", Sense::Work(Whole)),
            ("MigrationInProgress", Sense::Work(Part)),
            ("Scaling", Sense::Work(Part)),
            ("ScalingUp", Sense::Work(Part)),
            ("VolumeResizing", Sense::Work(Part)),
            ("Paused", Sense::Paused),
            ("Stopped", Sense::Paused),
            ("Hibernating", Sense::Paused),
            ("ReconciliationPaused", Sense::Paused),
        ] {
            assert_eq!(sense(name), expected, "{name}");
        }
    }
}
