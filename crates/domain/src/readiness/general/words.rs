//! Words of statuses, reasons and messages: which mean ready, in progress or failed.

/// Meaning of a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Meaning {
    Ready,
    InProgress,
    Failed,
    Paused,
}

/// Words for a finished and working object, as names of states.
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

/// Words for an object that its controller still works at.
const IN_PROGRESS: &[&str] = &[
    "accepting",
    "awaiting",
    "bootstrapping",
    "building",
    "configuring",
    "creating",
    "deleting",
    "deploying",
    "downloading",
    "inactive",
    "init",
    "initial",
    "initializing",
    "installing",
    "issuing",
    "migrating",
    "offline",
    "ongoing",
    "outdated",
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
    "rolling",
    "scaling",
    "starting",
    "stopping",
    "submitted",
    "syncing",
    "synchronizing",
    "terminating",
    "unavailable",
    "unbound",
    "unknown",
    "unready",
    "unscheduled",
    "unschedulable",
    "unsynced",
    "updating",
    "upgrading",
    "wait",
    "waiting",
    "yellow",
];

/// Words of a message that say that something is waited for, whatever comes after them.
const WAITING: &[&str] = &["awaiting", "pending", "queued", "wait", "waiting"];

/// Words for trouble.
const FAILED: &[&str] = &[
    "aborted",
    "broken",
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
    "invalid",
    "lost",
    "malformed",
    "misconfigured",
    "mismatch",
    "missing",
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
    "unrecoverable",
    "unrecognized",
    "unresolvable",
    "unsupported",
    "cannot",
];

/// Pairs of words for trouble.
const FAILED_PAIRS: &[[&str; 2]] = &[
    ["can", "not"],
    ["can", "t"],
    ["could", "not"],
    ["couldn", "t"],
    ["did", "not"],
    ["does", "not"],
    ["doesn", "t"],
    ["no", "such"],
    ["not", "allowed"],
    ["not", "exist"],
    ["not", "found"],
    ["not", "permitted"],
    ["not", "supported"],
    ["timed", "out"],
];

const PAUSED: &[&str] = &["paused", "suspended"];

const NEGATIONS: &[&str] = &["no", "non", "not", "without"];

/// Verbs in their form with "-ing" that name a state and no progress.
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

/// Splits a text into words of lower case, at everything but letters and digits and
/// where a capital letter begins a word.
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

/// Whether words report trouble; "no errors" does not.
fn has_failed(words: &[String]) -> bool {
    first_failed(words).is_some()
}

/// Position of the first word of trouble.
fn first_failed(words: &[String]) -> Option<usize> {
    (0..words.len()).find(|&position| {
        let is_negated = position > 0
            && (NEGATIONS.contains(&words[position - 1].as_str()) || words[position - 1] == "0");
        let next = words.get(position + 1).map(String::as_str);
        FAILED.contains(&words[position].as_str()) && !is_negated
            || FAILED_PAIRS
                .iter()
                .any(|[first, second]| words[position] == *first && next == Some(*second))
    })
}

/// Whether a word ends with "-ing" and names something that goes on.
fn goes_on(word: &str) -> bool {
    word.len() > 6 && word.ends_with("ing") && !STATES_IN_ING.contains(&word)
}

/// Reads the name of a state, such as `ProvisioningFailed`. `None`: the words do not
/// decide.
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
    let goes_on = words.iter().any(|word| goes_on(word));
    if is_any(&words, IN_PROGRESS) || goes_on || is_negated && is_ready {
        return Some(Meaning::InProgress);
    }
    if ["new", "outofsync"].contains(&words.concat().as_str()) {
        return Some(Meaning::InProgress);
    }
    is_ready.then_some(Meaning::Ready)
}

/// Reads the reason of a condition that is not as it should be.
pub(super) fn reason(text: &str) -> Option<Meaning> {
    let words = words(text);
    if has_failed(&words) {
        Some(Meaning::Failed)
    } else if is_any(&words, PAUSED) {
        Some(Meaning::Paused)
    } else if is_any(&words, IN_PROGRESS) || words.iter().any(|word| goes_on(word)) {
        Some(Meaning::InProgress)
    } else {
        None
    }
}

/// Reads the message of a condition that is not as it should be: an object that waits
/// for something has not failed, even if that is missing.
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

/// Whether a reason names a finished change, as `NewReplicaSetAvailable`.
pub(super) fn is_done(reason: &str) -> bool {
    state(reason) == Some(Meaning::Ready)
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
            ("NewReplicaSetAvailable", Some(Ready)),
            ("Paused", Some(Paused)),
            ("suspended", Some(Paused)),
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
    fn reasons_and_messages() {
        for (text, expected) in [
            ("ReconcileError", Some(Failed)),
            ("ErrImagePull", Some(Failed)),
            ("SecretNotFound", Some(Failed)),
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
