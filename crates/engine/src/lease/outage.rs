//! Outages of the API server that a holder of a Lease survives.
//!
//! The change of a control-plane node restarts its API server. The run of such a change does not end
//! then: it pauses, and continues if it can renew its Lease. The renewal names the last
//! resourceVersion, so it fails if another client took or deleted the Lease meanwhile.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use serde_json::Value;

/// Longest outage that is tolerated while a node is in its change.
const TOLERATED: Duration = Duration::from_mins(10);

/// Number of nodes in their change. Clones share it.
#[derive(Debug, Clone, Default)]
pub struct NodesInChange(Arc<AtomicUsize>);

impl NodesInChange {
    /// Counts a node until the returned value is dropped.
    pub fn begin(&self) -> NodeInChange {
        self.0.fetch_add(1, Ordering::Relaxed);
        NodeInChange(self.clone())
    }

    /// Returns whether a node is in its change.
    pub(super) fn any(&self) -> bool {
        self.0.load(Ordering::Relaxed) > 0
    }
}

/// Node in its change.
#[derive(Debug)]
pub struct NodeInChange(NodesInChange);

impl Drop for NodeInChange {
    fn drop(&mut self) {
        let Self(NodesInChange(count)) = self;
        count.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Certainty that a Lease is ours.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Certainty {
    /// No other client can have taken it.
    Held,
    /// Another client can have taken it. Nothing must be written before the next renewal.
    Doubtful,
    /// It counts as lost.
    Lost,
}

/// Returns the certainty for a Lease whose last successful renewal was sent `age` ago. `grace` is the
/// age below which no other client takes it.
pub(super) fn certainty(age: Duration, grace: Duration, changes_a_node: bool) -> Certainty {
    if age < grace {
        Certainty::Held
    } else if changes_a_node && age < TOLERATED {
        Certainty::Doubtful
    } else {
        Certainty::Lost
    }
}

/// Returns whether a Lease as just read belongs to the holder. Identities are unique to an attempt, so
/// no other client had it in between.
pub(super) fn is_ours(lease: &Value, identity: &str) -> bool {
    lease["spec"]["holderIdentity"] == identity
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn an_outage_is_tolerated_only_while_a_node_is_in_its_change() {
        let seconds = Duration::from_secs;
        for (age, changes_a_node, expected) in [
            (0, false, Certainty::Held),
            (9, false, Certainty::Held),
            (9, true, Certainty::Held),
            (10, false, Certainty::Lost),
            (10, true, Certainty::Doubtful),
            (599, true, Certainty::Doubtful),
            (599, false, Certainty::Lost),
            (600, true, Certainty::Lost),
        ] {
            let found = certainty(seconds(age), seconds(10), changes_a_node);
            assert_eq!(found, expected, "{age} s, {changes_a_node}");
        }
    }

    #[test]
    fn a_lease_is_ours_by_the_identity_of_its_holder() {
        for (lease, expected) in [
            (json!({"spec": {"holderIdentity": "a 1"}}), true),
            (json!({"spec": {"holderIdentity": "a 2"}}), false),
            (json!({"spec": {"holderIdentity": ""}}), false),
            (json!({"spec": {}}), false),
        ] {
            assert_eq!(is_ours(&lease, "a 1"), expected, "{lease}");
        }
    }

    #[test]
    fn nodes_are_counted_until_their_change_ends() {
        let nodes = NodesInChange::default();
        assert!(!nodes.any());
        let (one, other) = (nodes.begin(), nodes.clone().begin());
        drop(one);
        assert!(nodes.any());
        drop(other);
        assert!(!nodes.any());
    }
}
