//! Plans that wait until somebody approves what they do: `sync.approval: digest`.
//!
//! An approval binds to the effects of a plan and to nothing else: made again
//! from another commit, or on a cluster that has changed, a plan that does the
//! same is approved, and any other is not.

use pleach_domain::plan::Plan;

use super::{ACTIONS, NAMED};
use crate::engine::planning::Planned;

/// Reason of the condition of a release that waits for approval.
pub(super) const AWAITING: &str = "AwaitingApproval";

/// What has to be approved before a plan is carried out; none where it may be.
pub(super) fn lacks(planned: &Planned) -> Option<String> {
    let Planned {
        desired,
        observation,
        plan,
    } = planned;
    if !plan.has_steps() {
        return None;
    }
    let effects = plan.effects().to_string();
    let approved = observation.orders().approved;
    if approved.as_ref() == Some(&effects) {
        return None;
    }
    let approved = match approved {
        Some(approved) => format!("; what is approved is {approved}"),
        None => String::new(),
    };
    Some(format!(
        "waits for approval of {effects}: {}{approved}; to approve it: kubectl annotate --overwrite {} pleach.dev/approved={effects}",
        difference(plan),
        desired.store.address(&desired.name),
    ))
}

/// What a plan would change, in short.
fn difference(plan: &Plan) -> String {
    let mut changed = Vec::new();
    let mut counts = Vec::new();
    for action in ACTIONS {
        let of_it = plan.changes.iter().filter(|change| change.action == action);
        changed.extend(of_it.map(|change| format!("{action} {}", change.object)));
        match plan.count(action) {
            0 => {}
            count => counts.push(format!("{count} to {action}")),
        }
    }
    let more = changed.len().saturating_sub(NAMED);
    changed.truncate(NAMED);
    if more > 0 {
        changed.push(format!("and {more} more"));
    }
    if counts.is_empty() {
        // A restart, a gate, or only the end of something temporary.
        format!("{} steps, no object of git", plan.steps.len())
    } else {
        format!("{} ({})", counts.join(", "), changed.join(", "))
    }
}
