//! Facts about a release that its removal needs after git no longer contains its bundle.

use std::collections::BTreeSet;

use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};

use super::Inventory;
use pleach_formats::file::{BlockUninstall, ReadinessRule, Window, remembered};
use pleach_formats::{
    policy::{Protect, RuntimeObject},
    sequence::StageRule,
    window::Windows,
};
use pleach_model::order::StageName;

/// Maximum number of window sets and protected kinds retained from previous policies.
const MOST_RETAINED: usize = 16;

/// Facts that the removal of a release needs when git no longer contains its bundle or its
/// environment. Their size does not grow with the release.
///
/// Empty fields are serialized, too: the status is written as a merge patch, which keeps fields
/// that it does not name.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Memory {
    /// Default namespace of the release.
    pub namespace: Option<String>,
    /// Stages that the bundle declares, in their order. Objects are deleted in reverse order.
    pub stages: Vec<RememberedStage>,
    /// Objects that its workloads create.
    pub runtime_objects: Vec<RuntimeObject>,
    /// Conditions that forbid its removal.
    pub block_uninstall: Vec<BlockUninstall>,
    /// Readiness rules for some kinds.
    pub readiness: Vec<ReadinessRule>,
    /// Releases that it depends on. It is removed before them.
    pub depends_on: Vec<String>,
    /// Kinds that its environment protects, in addition to the built-in ones.
    pub protect: Vec<Protect>,
    /// Whether its plans needed approval.
    pub approval: bool,
    /// Change windows of its environment. Every set must be open.
    pub windows: Vec<Vec<Window>>,
    /// Deadline of each wait, in seconds.
    pub timeout: Option<i64>,
}

/// Name and position of a stage that a bundle declares.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RememberedStage {
    /// Its name.
    pub name: String,
    /// The standard stage that precedes it.
    pub after: String,
    /// Deadline of each wait in the stage, in seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout: Option<i64>,
}

impl RememberedStage {
    /// Converts a stage rule. Returns `None` for a standard stage.
    pub fn of(rule: &StageRule) -> Option<Self> {
        Some(Self {
            name: rule.stage.as_str().to_owned(),
            after: rule.stage.behind()?.as_str().to_owned(),
            timeout: rule.timeout.map(|timeout| timeout.as_secs()),
        })
    }

    /// Returns the deadline of each wait for objects of the stage.
    pub fn timeout(&self) -> Option<SignedDuration> {
        self.timeout.map(remembered)
    }
}

impl Memory {
    /// Adds previous stages in which members were applied. An upgrade can stop half way, so members
    /// of the previous version can remain.
    #[must_use]
    pub fn with_previous_stages(mut self, formerly: Option<&Self>, members: &Inventory) -> Self {
        let entries = members.entries.values();
        let used: BTreeSet<&str> = entries.map(|entry| entry.stage.as_str()).collect();
        let previous = formerly.into_iter().flat_map(|memory| &memory.stages);
        let previous: Vec<RememberedStage> = previous
            .filter(|stage| used.contains(stage.name.as_str()))
            .filter(|stage| !self.stages.iter().any(|own| own.name == stage.name))
            .cloned()
            .collect();
        self.stages.extend(previous);
        self
    }

    /// Makes the policy at least as strict as the recorded one. The recorded policy admitted no
    /// plan that brings the new one. Recorded windows are dropped once they are open.
    #[must_use]
    pub fn under_policy_of(mut self, previous: Option<&Self>, now: Timestamp) -> Self {
        let Some(previous) = previous else {
            return self;
        };
        self.approval |= previous.approval;
        keep(&mut self.protect, &previous.protect);
        if !Windows::recorded(&previous.windows).are_open(now) {
            keep(&mut self.windows, &previous.windows);
        }
        self
    }

    /// Returns the stages with their position in the stage order.
    pub fn placed(&self) -> impl Iterator<Item = (StageName, &RememberedStage)> {
        let stages = self.stages.iter().enumerate();
        stages.filter_map(|(order, stage)| {
            let after = StageName::standard(&stage.after)?;
            Some((StageName::declared(&stage.name, &after, order), stage))
        })
    }
}

/// Adds missing items, up to a bound, because many commits can change only the policy.
fn keep<T: Clone + PartialEq>(known: &mut Vec<T>, previous: &[T]) {
    let missing: Vec<T> = previous
        .iter()
        .filter(|one| !known.contains(one))
        .take(MOST_RETAINED)
        .cloned()
        .collect();
    known.extend(missing);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::inventory::Entry;
    use pleach_model::object::ObjectId;

    fn stage(name: &str, after: &str) -> RememberedStage {
        RememberedStage {
            name: name.to_owned(),
            after: after.to_owned(),
            timeout: None,
        }
    }

    fn memory(stages: &[(&str, &str)]) -> Memory {
        Memory {
            stages: stages
                .iter()
                .map(|(name, after)| stage(name, after))
                .collect(),
            ..Memory::default()
        }
    }

    fn names(memory: &Memory) -> Vec<&str> {
        let stages = memory.stages.iter();
        stages.map(|stage| stage.name.as_str()).collect()
    }

    #[test]
    fn a_previous_stage_is_retained_while_it_has_members() {
        let applied = |stage: &str| {
            let id = ObjectId::new("", "ConfigMap", Some("web"), stage);
            let entry = Entry {
                stage: stage.to_owned(),
                ..Entry::default()
            };
            (id, entry)
        };
        let members = Inventory {
            entries: ["api", "agents", "config"].map(applied).into(),
        };
        let previous = memory(&[
            ("agents", "workloads"),
            ("hooks", "workloads"),
            ("api", "workloads"),
        ]);
        let now = || memory(&[("api", "services"), ("test", "workloads")]);
        let retained = now().with_previous_stages(Some(&previous), &members);
        assert_eq!(names(&retained), ["api", "test", "agents"]);
        assert_eq!(retained.stages[0].after, "services");
        // Repetition changes nothing. The stage is dropped with its last member.
        assert_eq!(
            now().with_previous_stages(Some(&retained), &members),
            retained
        );
        let none = now().with_previous_stages(Some(&retained), &Inventory::default());
        assert_eq!(none, now());
    }

    #[test]
    fn retained_stages_keep_their_position() {
        let memory = memory(&[("stop", "services"), ("hooks", "workloads"), ("x", "later")]);
        let mut placed: Vec<StageName> = memory.placed().map(|(stage, _)| stage).collect();
        placed.extend([StageName::Workloads, StageName::Registrations]);
        placed.sort();
        let names: Vec<&str> = placed.iter().map(StageName::as_str).collect();
        assert_eq!(names, ["stop", "workloads", "hooks", "registrations"]);
    }

    fn windows(text: &str) -> Vec<Window> {
        let (allows, span) = text.split_once(' ').unwrap();
        let span = Some(span.to_owned());
        let (allow, deny) = match allows {
            "allow" => (span, None),
            _ => (None, span),
        };
        vec![Window {
            allow,
            deny,
            time_zone: None,
        }]
    }

    #[test]
    fn a_policy_is_loosened_by_no_commit_that_changes_nothing_else() {
        let protect = |kind: &str| Protect {
            group: None,
            kind: kind.to_owned(),
        };
        let (closed, other) = (windows("deny 00:00-24:00"), windows("allow 00:00-12:00"));
        let strict = Memory {
            approval: true,
            windows: vec![closed.clone()],
            protect: vec![protect("Secret")],
            ..Memory::default()
        };
        let now = Timestamp::UNIX_EPOCH;
        // The recorded policy survives any number of commits.
        let loose = Memory::default().under_policy_of(Some(&strict), now);
        assert_eq!(loose, strict);
        assert_eq!(Memory::default().under_policy_of(Some(&loose), now), strict);
        let different = Memory {
            windows: vec![other.clone()],
            protect: vec![protect("ConfigMap")],
            ..Memory::default()
        };
        let both = different.clone().under_policy_of(Some(&strict), now);
        assert!(both.approval);
        assert_eq!(both.windows, [other, closed]);
        assert_eq!(both.protect, [protect("ConfigMap"), protect("Secret")]);
        assert_eq!(different.clone().under_policy_of(Some(&both), now), both);
        // Recorded windows that are open are replaced, but nothing else.
        let open = Memory {
            windows: vec![windows("allow 00:00-24:00")],
            ..strict
        };
        let replaced = different.clone().under_policy_of(Some(&open), now);
        assert_eq!(replaced.windows, different.windows);
        assert!(replaced.approval);
        // A stricter policy applies at once.
        assert!(open.under_policy_of(Some(&different), now).approval);
        assert_eq!(different.clone().under_policy_of(None, now), different);
    }
}
