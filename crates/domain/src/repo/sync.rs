//! `sync` of an environment file: when and how the loop syncs it.

use jiff::SignedDuration;

use super::format::{Approval, Drift, Sync};
use super::policy::Protect;
use super::resolved::ResolvedEnvironment;
use super::window::Windows;
use crate::finding::{Finding, Kind};
use crate::object::yaml::Node;

/// How often the loop looks where nothing else is said.
const INTERVAL: SignedDuration = SignedDuration::from_mins(5);

/// When and how the loop syncs an environment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SyncPolicy {
    /// How often it looks without being told to.
    pub interval: SignedDuration,
    /// What it does about drift.
    pub drift: Drift,
    /// Whether it carries out only plans whose effects somebody approved.
    pub needs_approval: bool,
    /// When it may sync.
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
    /// Returns the policy that is as strict as this one and asks for approval and
    /// windows as well.
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

/// The least strict policy of the environments of a grant.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Minimum {
    /// The shortest interval; none where environments choose.
    pub interval: Option<SignedDuration>,
    /// Whether plans wait for approval.
    pub needs_approval: bool,
    /// When the controller may sync.
    pub windows: Windows,
    /// Kinds that are never deleted or recreated without consent.
    pub protect: Vec<Protect>,
}

impl ResolvedEnvironment {
    /// Makes the policy at least as strict as the minimum of its grant.
    pub fn demand(&mut self, minimum: &Minimum) {
        let Minimum {
            interval,
            needs_approval,
            windows,
            protect,
        } = minimum;
        self.sync = self.sync.stricter(*needs_approval, windows);
        if let Some(shortest) = interval {
            self.sync.interval = self.sync.interval.max(*shortest);
        }
        for one in protect {
            if !self.protect.contains(one) {
                self.protect.push(one.clone());
            }
        }
    }
}

/// Reads what an environment file says.
pub(super) fn resolve(
    said: Option<Sync>,
    environment: &Node,
    findings: &mut Vec<Finding>,
) -> SyncPolicy {
    let mut policy = SyncPolicy::default();
    let (Some(said), Some(node)) = (said, environment.get("sync")) else {
        return policy;
    };
    if let Some(interval) = said.interval {
        policy.interval = interval.0;
    }
    if let Some(drift) = said.drift {
        policy.drift = drift;
    }
    policy.needs_approval = said.approval == Some(Approval::Digest);
    let windows = said.windows.unwrap_or_default();
    let nodes = node.get("windows").map_or(&[][..], Node::items);
    for (window, node) in windows.iter().zip(nodes) {
        if let Err(message) = policy.windows.add(window) {
            findings.push(
                Finding::error(
                    Kind::Repository,
                    "invalid-value",
                    format!("`sync.windows`: {message}"),
                )
                .at(node.origin()),
            );
        }
    }
    policy
}

#[cfg(test)]
mod tests {
    use semver::Version;

    use super::*;
    use crate::repo::MemoryTree;

    #[test]
    fn a_branch_syncs_no_more_often_than_the_minimum_of_its_grant() {
        let header = "apiVersion: pleach.dev/v1alpha1\nkind";
        let seconds = SignedDuration::from_secs;
        for (said, minimum, expected) in [
            ("sync: {interval: 1s}", Some(60), seconds(60)),
            ("sync: {interval: 1s}", None, seconds(1)),
            ("sync: {interval: 10m}", Some(60), seconds(600)),
            ("", Some(60), INTERVAL),
        ] {
            let files = [
                (
                    "pleach.yaml".to_owned(),
                    format!("{header}: Repository\nid: fleet\n"),
                ),
                (
                    "environments/dev.yaml".to_owned(),
                    format!("{header}: Environment\n{said}\n"),
                ),
            ];
            let tree = MemoryTree::new(files);
            let version = Version::new(0, 1, 0);
            let mut environment = crate::repo::resolve(&tree, "dev", &version).unwrap();
            environment.demand(&Minimum {
                interval: minimum.map(seconds),
                ..Minimum::default()
            });
            assert_eq!(environment.sync.interval, expected, "{said} {minimum:?}");
        }
    }
}
