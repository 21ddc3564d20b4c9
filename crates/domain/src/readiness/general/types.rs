//! Types of conditions: whether True is good or bad.

use super::words::words;

/// Meaning of a type of condition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Sense {
    /// True is good.
    Good(Weight),
    /// True is trouble that the controller does not try to end.
    Failed,
    /// True is trouble.
    Bad(Weight),
    /// True is as False of the opposite.
    NotGood(Weight),
    /// True means that the controller is at work.
    Work(Weight),
    /// False is the end of work, or trouble: other conditions decide.
    Progressing,
    /// True means that nothing is done until a user resumes the object.
    Paused,
    /// Nothing about readiness.
    Neutral,
}

/// Weight of a condition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Weight {
    /// About the whole object: it always counts.
    Whole,
    /// About a part: it counts unless a condition about the whole is True.
    Part,
}

const GOOD: &[&str] = &[
    "accepted",
    "admitted",
    "applied",
    "approved",
    "available",
    "bootstrapped",
    "complete",
    "completed",
    "configured",
    "connected",
    "converged",
    "created",
    "deployed",
    "established",
    "healthy",
    "initialized",
    "installed",
    "issued",
    "joined",
    "launched",
    "online",
    "operational",
    "programmed",
    "provisioned",
    "reachable",
    "ready",
    "reconciled",
    "registered",
    "resolved",
    "stable",
    "succeeded",
    "success",
    "successful",
    "synced",
    "synchronized",
    "valid",
    "validated",
    "verified",
];

const BAD: &[&str] = &[
    "blocked",
    "crashed",
    "degraded",
    "denied",
    "error",
    "errored",
    "errors",
    "exceeded",
    "failed",
    "failing",
    "failure",
    "invalid",
    "misconfigured",
    "rejected",
    "stalled",
    "terminal",
    "unhealthy",
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
    "reconciling",
    "recovering",
    "resizing",
    "restarting",
    "restoring",
    "starting",
    "syncing",
    "synchronizing",
    "terminating",
    "updating",
    "upgrading",
    "waiting",
];

/// First words of types such as `UpdateAvailable`, that offer something.
const OFFERS: &[&str] = &["update", "updates", "upgrade", "upgrades", "version"];

/// First words of types about what the controller does with the object.
const RECONCILE: &[&str] = &["reconcile", "reconciler", "reconciliation", "replica"];

/// Reads a type of condition.
pub(super) fn sense(name: &str) -> Sense {
    let words = words(name);
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    match words.as_slice() {
        [] => Sense::Neutral,
        ["ready" | "available" | "healthy" | "synced"] => Sense::Good(Weight::Whole),
        ["progressing"] => Sense::Progressing,
        ["paused" | "suspended"] | ["reconcile" | "reconciliation", "paused" | "suspended"] => {
            Sense::Paused
        }
        ["failed" | "stalled" | "terminal"] => Sense::Failed,
        ["degraded" | "unhealthy" | "failure" | "error" | "errored"] | ["error", "occurred"] => {
            Sense::Bad(Weight::Whole)
        }
        ["in", "progress"] => Sense::Work(Weight::Whole),
        ["in", "sync"] | ["up", "to", "date"] | ["resolved", "refs"] => Sense::Good(Weight::Part),
        [first, "error" | "failed" | "failure"] if RECONCILE.contains(first) => {
            Sense::Bad(Weight::Whole)
        }
        [first, "available"] if OFFERS.contains(first) => Sense::Neutral,
        ["not", rest @ ..] if rest.last().is_some_and(|last| GOOD.contains(last)) => {
            Sense::NotGood(weight(rest.len()))
        }
        [.., last] => of_last(last, words.len()),
    }
}

fn weight(words: usize) -> Weight {
    if words == 1 {
        Weight::Whole
    } else {
        Weight::Part
    }
}

fn of_last(last: &str, words: usize) -> Sense {
    if GOOD.contains(&last) {
        Sense::Good(Weight::Part)
    } else if BAD.contains(&last) {
        Sense::Bad(Weight::Part)
    } else if NOT_GOOD.contains(&last) {
        Sense::NotGood(weight(words))
    } else if WORK.contains(&last) {
        Sense::Work(weight(words))
    } else {
        Sense::Neutral
    }
}

#[cfg(test)]
mod tests {
    use super::Weight::{Part, Whole};
    use super::*;

    #[test]
    fn senses_of_types() {
        for (name, expected) in [
            ("Ready", Sense::Good(Whole)),
            ("Available", Sense::Good(Whole)),
            ("Healthy", Sense::Good(Whole)),
            ("Synced", Sense::Good(Whole)),
            ("DatabaseReady", Sense::Good(Part)),
            ("Accepted", Sense::Good(Part)),
            ("ResolvedRefs", Sense::Good(Part)),
            ("API.ResourceSynced", Sense::Good(Part)),
            ("ReconcileSuccess", Sense::Good(Part)),
            ("UpToDate", Sense::Good(Part)),
            ("UpdateAvailable", Sense::Neutral),
            ("Upgradeable", Sense::Neutral),
            ("Active", Sense::Neutral),
            ("Running", Sense::Neutral),
            ("", Sense::Neutral),
            ("Failed", Sense::Failed),
            ("Error", Sense::Bad(Whole)),
            ("Stalled", Sense::Failed),
            ("ReconcileError", Sense::Bad(Whole)),
            ("ReplicaFailure", Sense::Bad(Whole)),
            ("BackupFailed", Sense::Bad(Part)),
            ("Degraded", Sense::Bad(Whole)),
            ("NotReady", Sense::NotGood(Whole)),
            ("NotAllReady", Sense::NotGood(Part)),
            ("Unavailable", Sense::NotGood(Whole)),
            ("Progressing", Sense::Progressing),
            ("Reconciling", Sense::Work(Whole)),
            ("InProgress", Sense::Work(Whole)),
            ("VolumeResizing", Sense::Work(Part)),
            ("Paused", Sense::Paused),
            ("ReconciliationPaused", Sense::Paused),
        ] {
            assert_eq!(sense(name), expected, "{name}");
        }
    }
}
