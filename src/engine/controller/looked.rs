//! What came of looking at a release, and what a plan says without being carried
//! out.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use pleach_domain::depends;
use pleach_domain::finding::Finding;
use pleach_domain::inventory::{
    Condition, ConditionKind, DEPENDENCY_NOT_READY, Installed, Memory, Orders, Suspension,
    SyncRequest, WINDOW_CLOSED,
};
use pleach_domain::plan::{Action, Cause, Plan, Taken};
use pleach_domain::repo::format::Drift;
use pleach_domain::repo::{SyncPolicy, Windows};

use super::drift::Left;
use super::run::{Wanted, code, codes, line};
use super::waiting::Awaited;
use super::{End, NAMED};
use crate::engine::planning::Planned;
use crate::engine::sync::{SyncError, novelty};
use crate::engine::words;
use crate::io::cluster::Class;

/// Why nothing newer is synced outside of the windows.
const CLOSED: &str = "the environment allows no sync at this time";

/// Why a release is left alone that is not as the last good commit says.
pub(super) const OTHERWISE: &str =
    "the newest commit cannot be synced, and what is installed is not what the last good one says";

/// What came of looking.
pub(super) struct Looked {
    pub(super) end: End,
    pub(super) message: String,
    /// Whether it only corrected drift.
    pub(super) is_correction: bool,
    /// The same for the public: codes and objects.
    pub(super) about: String,
    /// What is to be said of it.
    pub(super) condition: Option<Condition>,
    /// A request that was taken up.
    pub(super) request: Option<SyncRequest>,
    /// When to look again, where that is not the interval.
    pub(super) pause: Option<Duration>,
    /// What it waits for.
    pub(super) awaited: Option<Awaited>,
    /// How its objects were left.
    pub(super) left: Option<Left>,
    /// What was reached before, and is kept up while this waits.
    pub(super) kept: Option<Box<Kept>>,
}

/// What was reached before, while something newer waits.
pub(super) struct Kept {
    pub(super) wanted: Arc<Wanted>,
    /// What came of looking whether it still is so.
    pub(super) looked: Looked,
}

impl Looked {
    pub(super) fn new(end: End, message: impl Into<String>) -> Self {
        Self {
            end,
            message: message.into(),
            is_correction: false,
            about: String::new(),
            condition: None,
            request: None,
            pause: None,
            awaited: None,
            left: None,
            kept: None,
        }
    }

    /// How it ended in the cluster: what was reached before, where that is kept up.
    pub(super) fn in_the_end(&self) -> End {
        self.kept.as_ref().map_or(self.end, |kept| kept.looked.end)
    }

    /// Whether something is to be tried again soon.
    pub(super) fn failed(&self) -> bool {
        self.end == End::Failed || self.in_the_end() == End::Failed
    }

    /// Whether drift was corrected that may have been in the way of what waits.
    pub(super) fn made_way(&self) -> bool {
        let is_stopped = matches!(self.end, End::Failed | End::Refused | End::Unapproved);
        self.kept.is_some() && is_stopped && self.in_the_end() == End::Deployed
    }

    /// What is to be said of it beside what holds its environment.
    pub(super) fn conditions(&self, of_environment: &[Condition]) -> Vec<Condition> {
        let mut said = of_environment.to_vec();
        let kept = self.kept.iter().map(|kept| &kept.looked.condition);
        for condition in [&self.condition].into_iter().chain(kept).flatten() {
            if said.iter().all(|known| known.kind != condition.kind) {
                said.push(condition.clone());
            }
        }
        said
    }

    /// Says for the public what it is about.
    pub(super) fn about(mut self, about: impl Into<String>) -> Self {
        self.about = about.into();
        self
    }

    pub(super) fn saying(mut self, kind: ConditionKind, reason: &str) -> Self {
        self.condition = Some(Condition {
            kind,
            reason: reason.to_owned(),
            message: self.message.clone(),
        });
        self
    }
}

/// Says that it is not the time for what git wants.
pub(super) fn window_closed(windows: &Windows, orders: &Orders, now: Timestamp) -> Looked {
    let looked = Looked::new(End::Waiting, CLOSED).about(CLOSED);
    Looked {
        // One that would go ahead all the same does not come here.
        request: orders.sync.clone(),
        pause: until_open(windows, now),
        ..looked.saying(ConditionKind::Waiting, WINDOW_CLOSED)
    }
}

/// Says that somebody holds it.
pub(super) fn suspended(suspension: &Suspension, now: Timestamp) -> Looked {
    let left = suspension.until.map(|until| until.duration_since(now));
    Looked {
        pause: left.and_then(|left| left.try_into().ok()),
        ..Looked::new(End::Suspended, suspension.words())
    }
}

/// What there is to say where a plan may not be carried out.
pub(super) fn refused(wanted: &Wanted, planned: &Planned, orders: &Orders) -> Option<Looked> {
    let refusals = wanted.refusals(planned);
    let waits = |finding: &Finding| finding.code == depends::NOT_READY;
    if !refusals.is_empty() && refusals.iter().all(waits) {
        let awaited = Awaited::of(&planned.desired, &planned.observation.observed);
        let looked = Looked::new(End::Waiting, line(&refusals)).about(codes(&refusals));
        return Some(Looked {
            pause: awaited.pause,
            awaited: Some(awaited),
            ..looked.saying(ConditionKind::Waiting, DEPENDENCY_NOT_READY)
        });
    }
    if refusals.is_empty() {
        return None;
    }
    let looked = Looked::new(End::Refused, line(&refusals)).about(codes(&refusals));
    Some(Looked {
        request: orders.sync.clone(),
        ..looked.saying(ConditionKind::Stalled, "Refused")
    })
}

/// What there is to say where what others changed is only told.
pub(super) fn reported(wanted: &Wanted, planned: &Planned, orders: &Orders) -> Option<Looked> {
    let only_tells = wanted.loaded.environment.sync.drift == Drift::Report;
    if !only_tells || !is_reached(planned) || is_new(planned) || !has_drifted(&planned.plan) {
        return None;
    }
    let looked = Looked::new(End::Drifted, drift(&planned.plan));
    Some(Looked {
        request: orders.sync.clone(),
        ..looked.saying(ConditionKind::Drifted, "ChangedByOthers")
    })
}

/// What there is to say where something was to be done and nothing of it can be:
/// no run writes that down.
pub(super) fn blocked(plan: &Plan, orders: &Orders) -> Option<Looked> {
    if !plan.is_stuck() {
        return None;
    }
    let errors = plan.findings.iter().filter(|finding| finding.is_error());
    let errors: Vec<Finding> = errors.cloned().collect();
    let looked = Looked::new(End::Failed, line(&errors)).about(codes(&errors));
    Some(Looked {
        request: orders.sync.clone(),
        ..looked.saying(ConditionKind::Stalled, "Blocked")
    })
}

/// What there is to say where no plan could be made; `failures` is how often that
/// was so before. What passes by itself is said to nobody, and nothing is said to
/// a cluster that does not answer.
pub(super) fn unplanned(error: &SyncError, failures: u32) -> Looked {
    let looked = Looked::new(End::Failed, words(error)).about(code(error.kind()));
    let may_pass = match error {
        SyncError::Cluster(error) => error.class() != Some(&Class::Forbidden),
        SyncError::Undiscovered(_)
        | SyncError::Unanswered { .. }
        | SyncError::Contended { .. }
        | SyncError::Held { .. } => true,
        _ => false,
    };
    if may_pass || failures == 0 {
        looked
    } else {
        looked.saying(ConditionKind::Stalled, "Failed")
    }
}

/// How long the windows of an environment stay closed; none where they are open, or
/// never will be.
pub(super) fn until_open(windows: &Windows, now: Timestamp) -> Option<Duration> {
    if windows.are_open(now) {
        return None;
    }
    let closed: Duration = windows
        .open_after(now)?
        .duration_since(now)
        .try_into()
        .ok()?;
    // Clocks of a sleep are not those of a window.
    Some(closed + Duration::from_secs(1))
}

/// Returns when and how a release is synced: as the environment file says, and as
/// strictly as the recorded policies. The commit that loosens the policy is still
/// under the recorded one.
pub(super) fn policy<'m>(
    sync: &SyncPolicy,
    recorded: impl IntoIterator<Item = &'m Memory>,
) -> SyncPolicy {
    recorded.into_iter().fold(sync.clone(), |sync, memory| {
        sync.stricter(memory.approval, &Windows::recorded(&memory.windows))
    })
}

/// Whether it is not the time for anything new.
pub(super) fn is_closed(windows: &Windows, orders: &Orders, now: Timestamp) -> bool {
    let is_overridden = orders
        .sync
        .as_ref()
        .is_some_and(|sync| sync.override_window);
    !windows.are_open(now) && !is_overridden
}

/// Whether what git wants was reached before: what differs now is not git's.
pub(super) fn is_reached(planned: &Planned) -> bool {
    let record: Option<&Installed> = planned.observation.observed.installed.as_ref();
    record.is_some_and(|record| {
        let installed = record.installed.as_ref();
        record.ready && installed.is_some_and(|installed| planned.desired.is_of(installed))
    })
}

/// Whether the record names another commit than the one that is looked at.
pub(super) fn is_of_another_commit(planned: &Planned) -> bool {
    let record: Option<&Installed> = planned.observation.observed.installed.as_ref();
    let installed = record.and_then(|record| record.installed.as_ref());
    installed.is_some_and(|installed| installed.revision != planned.desired.revision)
}

/// Whether a plan brings anything that was not there before, or deletes what git
/// does not want any more: not only drift is corrected, or that is tried again.
pub(super) fn is_new(planned: &Planned) -> bool {
    let record = planned.observation.observed.installed.as_ref();
    novelty::is_new(&planned.desired, record, &planned.plan)
}

/// Whether nothing else was begun since something was reached.
pub(super) fn is_left(planned: &Planned) -> bool {
    let record: Option<&Installed> = planned.observation.observed.installed.as_ref();
    record.is_some_and(novelty::is_undisturbed)
}

/// Whether exactly this was there, and nothing else was begun since.
pub(super) fn was_there(planned: &Planned) -> bool {
    let record = planned.observation.observed.installed.as_ref();
    novelty::was_there(&planned.desired, record)
}

/// Whether somebody changed what git says: who owns a field is no value.
fn has_drifted(plan: &Plan) -> bool {
    plan.changes.iter().any(|change| match change.action {
        Action::Unchanged | Action::Skip | Action::Blocked => false,
        Action::Update => !matches!(change.cause, Some(Cause::Ownership | Cause::Overlay)),
        Action::Create | Action::Recreate | Action::Adopt | Action::Delete => true,
    })
}

/// What differs from git, and who did it.
pub(super) fn drift(plan: &Plan) -> String {
    let changed: Vec<_> = plan
        .changes
        .iter()
        .filter(|change| !matches!(change.action, Action::Unchanged | Action::Skip))
        .collect();
    let mut texts: Vec<String> = changed
        .iter()
        .take(NAMED)
        .map(|change| {
            let who: BTreeSet<&str> = change.corrects.iter().map(Taken::who).collect();
            let who: Vec<&str> = who.into_iter().collect();
            if who.is_empty() {
                format!("{}: {}", change.object, change.reason)
            } else {
                format!("{}: changed by {}", change.object, who.join(", "))
            }
        })
        .collect();
    if changed.len() > NAMED {
        texts.push(format!("and {} more", changed.len() - NAMED));
    }
    texts.join("; ")
}

#[cfg(test)]
mod tests {
    use pleach_domain::observe::{ClusterId, Discovery, Observed};
    use pleach_domain::repo::format::Window;

    use super::*;

    #[test]
    fn a_renamed_release_is_under_the_recorded_policy_of_the_one_that_it_replaces() {
        let closed = Window {
            allow: None,
            deny: Some("00:00-24:00".to_owned()),
            time_zone: None,
        };
        let strict = || Memory {
            approval: true,
            windows: vec![vec![closed.clone()]],
            ..Memory::default()
        };
        let record = |memory: Memory| Installed {
            memory: Some(memory),
            ..Installed::default()
        };
        let now = Timestamp::UNIX_EPOCH;
        // The commit says nothing of approval or windows.
        let loose = SyncPolicy::default();
        for (case, installed, inherited, is_strict) in [
            ("a new release", None, None, false),
            ("a renamed release", None, Some(strict()), true),
            (
                "a release that was there and takes over now",
                Some(record(Memory::default())),
                Some(strict()),
                true,
            ),
            ("a known release", Some(record(strict())), None, true),
            ("no policy", None, Some(Memory::default()), false),
        ] {
            let cluster = ClusterId("cluster".to_owned());
            let version = "v1.36.0".to_owned();
            let mut observed = Observed::of(cluster, version, Discovery::default(), now);
            observed.installed = installed;
            observed.inherited = inherited;
            let policy = policy(&loose, observed.policies());
            assert_eq!(policy.needs_approval, is_strict, "{case}");
            assert_eq!(!policy.windows.are_open(now), is_strict, "{case}");
        }
    }

    #[test]
    fn what_does_not_pass_by_itself_is_said_of_the_release() {
        let reason = |error: &SyncError, failures| {
            let said = unplanned(error, failures).condition;
            said.map(|said| said.reason)
        };
        let lasting = SyncError::NoStateNamespace("state".to_owned());
        assert_eq!(reason(&lasting, 0), None);
        assert_eq!(reason(&lasting, 1).as_deref(), Some("Failed"));
        let passing = SyncError::Contended {
            release: "dev.web".to_owned(),
            source: None,
        };
        assert_eq!(reason(&passing, 1), None);
    }
}
