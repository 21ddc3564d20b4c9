//! Meaning of words in states, reasons and messages.

/// Meaning of a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Meaning {
    Ready,
    InProgress,
    Failed,
    Paused,
}

/// Words for a finished and working object, as state names.
const READY: &[&str] = &[
    "accepted",
    "active",
    "applied",
    "attached",
    "available",
    "bound",
    "complete",
    "completed",
    "configured",
    "connected",
    "deployed",
    "done",
    "enabled",
    "established",
    "expected",
    "finished",
    "green",
    "healthy",
    "installed",
    "issued",
    "normal",
    "ok",
    "online",
    "operational",
    "programmed",
    "provisioned",
    "published",
    "ready",
    "reconciled",
    "registered",
    "resolved",
    "running",
    "stable",
    "started",
    "steady",
    "succeeded",
    "success",
    "successful",
    "successfully",
    "synced",
    "synchronized",
    "up",
    "valid",
    "validated",
    "verified",
];

/// Words of [`READY`] that also name the start of a change.
const STARTED: &[&str] = &[
    "accepted", "active", "enabled", "normal", "running", "started", "up",
];

/// Words for an object that its controller is still working on.
const IN_PROGRESS: &[&str] = &[
    "accepting",
    "awaiting",
    "bootstrapping",
    "building",
    "configuring",
    "creating",
    "deleting",
    "deploying",
    "disconnected",
    "downloading",
    "drifted",
    "inactive",
    "incomplete",
    "init",
    "initial",
    "initializing",
    "installing",
    "issuing",
    "migrating",
    "offline",
    "ongoing",
    "outdated",
    "partial",
    "partially",
    "pending",
    "preparing",
    "processing",
    "progress",
    "progressing",
    "provisioning",
    "queued",
    "rebuilding",
    "reconciling",
    "recovering",
    "requested",
    "resizing",
    "restarting",
    "restoring",
    "retry",
    "rollback",
    "rolling",
    "scaling",
    "scheduled",
    "starting",
    "stopping",
    "submitted",
    "synchronizing",
    "syncing",
    "terminating",
    "unavailable",
    "unbound",
    "undeployed",
    "uninitialized",
    "unknown",
    "unready",
    "unschedulable",
    "unscheduled",
    "unsynced",
    "unsynchronized",
    "updating",
    "upgrading",
    "wait",
    "waiting",
    "yellow",
];

/// Words of a message that report waiting, whatever follows them.
const WAITING: &[&str] = &["awaiting", "pending", "queued", "wait", "waiting"];

/// Words for trouble.
const FAILED: &[&str] = &[
    "aborted",
    "backoff",
    "blocked",
    "broken",
    "canceled",
    "cancelled",
    "cannot",
    "conflict",
    "conflicting",
    "conflicts",
    "corrupted",
    "crash",
    "crashed",
    "crashing",
    "critical",
    "dead",
    "degraded",
    "denied",
    "err",
    "error",
    "errored",
    "errors",
    "evicted",
    "exceeded",
    "expired",
    "fail",
    "failed",
    "failing",
    "fails",
    "failure",
    "failures",
    "fatal",
    "faulted",
    "faulty",
    "forbidden",
    "illegal",
    "incompatible",
    "inconclusive",
    "interrupted",
    "invalid",
    "killed",
    "lost",
    "malformed",
    "misconfigured",
    "mismatch",
    "missing",
    "noncompliant",
    "orphaned",
    "panic",
    "red",
    "refused",
    "rejected",
    "revoked",
    "stalled",
    "terminal",
    "timedout",
    "timeout",
    "unable",
    "unauthorized",
    "unhealthy",
    "unreachable",
    "unrecognized",
    "unrecoverable",
    "unresolvable",
    "unsuccessful",
    "unsupported",
];

/// Word pairs for trouble.
const FAILED_PAIRS: &[[&str; 2]] = &[
    ["back", "off"],
    ["bad", "request"],
    ["can", "not"],
    ["can", "t"],
    ["could", "not"],
    ["couldn", "t"],
    ["did", "not"],
    ["does", "not"],
    ["doesn", "t"],
    ["no", "quorum"],
    ["no", "such"],
    ["non", "compliant"],
    ["not", "allowed"],
    ["not", "authorized"],
    ["not", "compliant"],
    ["not", "exist"],
    ["not", "found"],
    ["not", "permitted"],
    ["not", "supported"],
    ["rolled", "back"],
    ["timed", "out"],
];

const PAUSED: &[&str] = &["hibernated", "paused", "suspended"];

const NEGATIONS: &[&str] = &["no", "non", "not", "without"];

/// Verbs ending in "-ing" that name a state instead of progress.
const STATES_IN_ING: &[&str] = &[
    "crashing",
    "existing",
    "failing",
    "listening",
    "missing",
    "monitoring",
    "networking",
    "replicating",
    "running",
    "serving",
    "streaming",
    "warning",
    "watching",
    "working",
];

/// Splits a text into lower-case words, at other characters than letters and
/// digits and before capital letters that start a word.
pub(super) fn words(text: &str) -> Vec<String> {
    let characters: Vec<char> = text.chars().collect();
    let mut words = vec![String::new()];
    for (position, character) in characters.iter().enumerate() {
        if !character.is_alphanumeric() {
            words.push(String::new());
            continue;
        }
        let previous = position.checked_sub(1).map(|before| characters[before]);
        let next = characters.get(position + 1);
        let starts_word = character.is_uppercase()
            && previous.is_some_and(|previous| {
                !previous.is_uppercase() || next.is_some_and(|next| next.is_lowercase())
            });
        if starts_word {
            words.push(String::new());
        }
        if let Some(word) = words.last_mut() {
            word.extend(character.to_lowercase());
        }
    }
    words.retain(|word| !word.is_empty());
    words
}

fn is_any(words: &[String], of: &[&str]) -> bool {
    words.iter().any(|word| of.contains(&word.as_str()))
}

/// Returns whether words report trouble; "no errors" and "failed over" do not.
fn has_failed(words: &[String]) -> bool {
    first_failed(words).is_some()
}

/// Returns the position of the first word that reports trouble.
fn first_failed(words: &[String]) -> Option<usize> {
    (0..words.len()).find(|&position| {
        let is_negated = position > 0
            && (NEGATIONS.contains(&words[position - 1].as_str()) || words[position - 1] == "0");
        let next = words.get(position + 1).map(String::as_str);
        let is_over = words[position] == "failed" && next == Some("over");
        FAILED.contains(&words[position].as_str()) && !is_negated && !is_over
            || FAILED_PAIRS
                .iter()
                .any(|[first, second]| words[position] == *first && next == Some(*second))
    })
}

/// Returns whether a word ends with "-ing" and names an ongoing activity.
fn is_in_progress(word: &str) -> bool {
    word.len() > 6 && word.ends_with("ing") && !STATES_IN_ING.contains(&word)
}

/// Returns the meaning of a state name such as `ProvisioningFailed`. `None` if
/// the words do not decide.
pub(super) fn state(text: &str) -> Option<Meaning> {
    let words = words(text);
    if has_failed(&words) {
        return Some(Meaning::Failed);
    }
    if is_any(&words, PAUSED) {
        return Some(Meaning::Paused);
    }
    let is_ready = is_any(&words, READY);
    let is_negated = is_any(&words, NEGATIONS);
    let is_in_progress = words.iter().any(|word| is_in_progress(word));
    if is_any(&words, IN_PROGRESS) || is_in_progress || is_negated && is_ready {
        return Some(Meaning::InProgress);
    }
    if ["down", "new", "outofsync"].contains(&words.concat().as_str()) {
        return Some(Meaning::InProgress);
    }
    is_ready.then_some(Meaning::Ready)
}

/// Returns the meaning of the reason of an unhealthy condition.
pub(super) fn reason(text: &str) -> Option<Meaning> {
    let words = words(text);
    if has_failed(&words) {
        Some(Meaning::Failed)
    } else if is_any(&words, PAUSED) {
        Some(Meaning::Paused)
    } else if is_any(&words, IN_PROGRESS) || words.iter().any(|word| is_in_progress(word)) {
        Some(Meaning::InProgress)
    } else {
        None
    }
}

/// Returns the meaning of the message of an unhealthy condition. An object that
/// waits for something has not failed, even if that thing is missing.
pub(super) fn message(text: &str) -> Option<Meaning> {
    let words = words(text);
    let waits = words
        .iter()
        .position(|word| WAITING.contains(&word.as_str()));
    match (waits, first_failed(&words)) {
        (Some(waits), Some(failed)) if waits < failed => Some(Meaning::InProgress),
        (_, Some(_)) => Some(Meaning::Failed),
        (Some(_), None) => Some(Meaning::InProgress),
        (None, None) => is_any(&words, IN_PROGRESS).then_some(Meaning::InProgress),
    }
}

/// Returns whether a reason names a finished change, such as
/// `NewReplicaSetAvailable`.
pub(super) fn is_done(reason: &str) -> bool {
    let words = words(reason);
    let mut done = READY.iter().filter(|word| !STARTED.contains(word));
    state(reason) == Some(Meaning::Ready)
        && (done.any(|done| words.iter().any(|word| word == done)) || words.concat() == "uptodate")
}

#[cfg(test)]
mod tests {
    use super::Meaning::{Failed, InProgress, Paused, Ready};
    use super::*;

    #[test]
    fn words_of_texts() {
        for (text, expected) in [
            ("", vec![]),
            ("Ready", vec!["ready"]),
            ("ProvisioningFailed", vec!["provisioning", "failed"]),
            ("DNSReady", vec!["dns", "ready"]),
            ("CRASH_LOOP", vec!["crash", "loop"]),
            ("in progress (1/3)", vec!["in", "progress", "1", "3"]),
            ("API.ResourceSynced", vec!["api", "resource", "synced"]),
            ("ÄndernÜber", vec!["ändern", "über"]),
        ] {
            assert_eq!(words(text), expected, "{text}");
        }
    }

    #[test]
    fn states() {
        for (text, expected) in [
            ("Running", Some(Ready)),
            ("running", Some(Ready)),
            ("RUNNING", Some(Ready)),
            ("Cluster in healthy state", Some(Ready)),
            ("green", Some(Ready)),
            ("Succeeded", Some(Ready)),
            ("Failed", Some(Failed)),
            ("ProvisioningFailed", Some(Failed)),
            ("CreateError", Some(Failed)),
            ("Degraded", Some(Failed)),
            ("red", Some(Failed)),
            ("NotFound", Some(Failed)),
            ("Unable to create required objects", Some(Failed)),
            ("Pending", Some(InProgress)),
            ("Creating", Some(InProgress)),
            ("Fencing", Some(InProgress)),
            ("NotReady", Some(InProgress)),
            ("not running", Some(InProgress)),
            ("OutOfSync", Some(InProgress)),
            ("InProgress", Some(InProgress)),
            (
                "Waiting for the instances to become active",
                Some(InProgress),
            ),
            ("Unknown", Some(InProgress)),
            ("New", Some(InProgress)),
            ("Down", Some(InProgress)),
            ("ScaledDown", None),
            ("NewReplicaSetAvailable", Some(Ready)),
            ("Paused", Some(Paused)),
            ("suspended", Some(Paused)),
            ("Hibernated", Some(Paused)),
            ("Cancelled", Some(Failed)),
            ("Unsuccessful", Some(Failed)),
            ("OOMKilled", Some(Failed)),
            ("ImagePullBackOff", Some(Failed)),
            ("NonCompliant", Some(Failed)),
            ("NoQuorum", Some(Failed)),
            ("RolledBack", Some(Failed)),
            ("FailedOver", None),
            ("Incomplete", Some(InProgress)),
            ("PartiallyReady", Some(InProgress)),
            ("Disconnected", Some(InProgress)),
            ("Rollback", Some(InProgress)),
            ("scheduled", Some(InProgress)),
            ("Created", None),
            ("Idle", None),
            ("Stopped", None),
            ("", None),
            ("v1.2", None),
            ("string", None),
        ] {
            assert_eq!(state(text), expected, "{text}");
        }
    }

    #[test]
    fn reasons_of_a_finished_change() {
        for (reason, expected) in [
            ("NewReplicaSetAvailable", true),
            ("Completed", true),
            ("AsExpected", true),
            ("UpToDate", true),
            ("RolloutStarted", false),
            ("UpgradeAccepted", false),
            ("Running", false),
            ("NewReplicaSetCreated", false),
            ("", false),
        ] {
            assert_eq!(is_done(reason), expected, "{reason}");
        }
    }

    #[test]
    fn reasons_and_messages() {
        for (text, expected) in [
            ("ReconcileError", Some(Failed)),
            ("ErrImagePull", Some(Failed)),
            ("SecretNotFound", Some(Failed)),
            ("BadRequest", Some(Failed)),
            ("NotAuthorized", Some(Failed)),
            ("ProgressDeadlineExceeded", Some(Failed)),
            ("ReconcilePaused", Some(Paused)),
            ("Creating", Some(InProgress)),
            ("WaitingForSecret", Some(InProgress)),
            ("ComponentsNotReady", None),
            ("Available", None),
        ] {
            assert_eq!(reason(text), expected, "{text}");
        }
        for (text, expected) in [
            ("error creating load balancer", Some(Failed)),
            ("creating the load balancer failed: quota", Some(Failed)),
            ("secrets \"x\" not found", Some(Failed)),
            ("waiting for secret: not found", Some(InProgress)),
            ("timed out waiting for the condition", Some(Failed)),
            ("provisioning the cluster", Some(InProgress)),
            ("reconciled with no errors", None),
            ("0 errors", None),
            ("1 of 3 replicas", None),
            ("", None),
        ] {
            assert_eq!(message(text), expected, "{text}");
        }
    }
}
