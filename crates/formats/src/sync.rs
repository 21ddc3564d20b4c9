//! Resolution of `sync` in an environment file.

use jiff::SignedDuration;

use crate::file::{Approval, Drift, Sync};
use crate::policy::Protect;
use crate::window::Windows;
use pleach_model::finding::Finding;

/// Default interval between reconciles.
const INTERVAL: SignedDuration = SignedDuration::from_mins(5);

/// Sync settings of an environment for the controller.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct SyncPolicy {
    /// Interval between reconciles without a trigger.
    pub interval: SignedDuration,
    /// Reaction to drift.
    pub drift: Drift,
    /// Whether the controller executes only approved plans.
    pub needs_approval: bool,
    /// Change windows.
    pub windows: Windows,
}

impl Default for SyncPolicy {
    fn default() -> Self {
        Self {
            interval: INTERVAL,
            drift: Drift::Correct,
            needs_approval: false,
            windows: Windows::default(),
        }
    }
}

impl SyncPolicy {
    /// Returns the policy with additional demands for approval and windows.
    #[must_use]
    pub fn stricter(&self, needs_approval: bool, windows: &Windows) -> Self {
        Self {
            interval: self.interval,
            drift: self.drift,
            needs_approval: self.needs_approval || needs_approval,
            windows: self.windows.clone().and(windows),
        }
    }
}

/// Minimum policy for the environments of a grant.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Minimum {
    /// Shortest allowed interval. `None` if environments choose freely.
    pub interval: Option<SignedDuration>,
    /// Whether plans need approval.
    pub needs_approval: bool,
    /// Change windows.
    pub windows: Windows,
    /// Kinds whose deletion or recreation always needs consent.
    pub protect: Vec<Protect>,
}

/// Resolves the `sync` settings of an environment file.
pub fn resolve(declared: Option<Sync>, findings: &mut Vec<Finding>) -> SyncPolicy {
    let mut policy = SyncPolicy::default();
    let Some(declared) = declared else {
        return policy;
    };
    if let Some(interval) = declared.interval {
        policy.interval = interval.0;
    }
    if let Some(drift) = declared.drift {
        policy.drift = drift;
    }
    policy.needs_approval = declared.approval == Some(Approval::Digest);
    policy.windows = Windows::resolve("sync", declared.windows, findings);
    policy
}
