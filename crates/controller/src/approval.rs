//! Plans that wait for an approval of their effects: `sync.approval: digest`.
//!
//! An approval covers the effects of a plan and nothing else. A new plan, from another commit or on
//! a changed cluster, is approved if it has the same effects.
//!
//! Effects are approved by an annotation of the Release, or by the merge of a pull request. A merge
//! counts if our comment on the merged head listed these effects before the merge. The forge
//! decides who is allowed to merge.

use pleach_planner::plan::Plan;
use pleach_reconciler::release::Reasons;
use pleach_report::preview::comment::stated;
use pleach_state::inventory::{Attempt, Source, awaiting_approval};

use super::run::Target;
use super::{ACTIONS, NAMED};
use pleach_engine::{planning::Planned, preview_process::MARKER, sync::attempt, words};
use pleach_forge::{Comment, Forge, ForgeError, PullRequest};

/// A plan that was reported as waiting for approval.
pub(super) struct RetainedPlan {
    /// Identity of the content to apply.
    attempt: Attempt,
    /// The plan without its changes, which can be large.
    plan: Plan,
}

impl RetainedPlan {
    pub(super) fn of(planned: &Planned) -> Self {
        Self {
            attempt: attempt(&planned.desired),
            plan: Plan {
                changes: Vec::new(),
                ..planned.plan.clone()
            },
        }
    }

    /// Returns whether a plan is for the same content and does nothing beyond this one.
    pub(super) fn covers(&self, planned: &Planned) -> bool {
        planned.desired.is_of(&self.attempt) && planned.plan.has_effects_of(&self.plan)
    }
}

/// Adds the error of the forge, only to the non-public message.
fn unanswered(mut missing: Reasons, error: &ForgeError) -> Reasons {
    missing.message = format!(
        "{}; cannot check whether its pull request was merged with these effects: {}",
        missing.message,
        words(error)
    );
    missing
}

/// Returns the missing approval of a plan, or `None` if it can be executed.
pub(super) async fn missing(desired: &Target, planned: &Planned) -> Option<Reasons> {
    let missing = lacks(planned)?;
    let (Some(forge), Some(source)) = (&desired.source_policy.forge, &desired.source) else {
        return Some(missing);
    };
    match was_merged_knowingly(forge, source, &desired.revision(), &planned.plan).await {
        Ok(true) => None,
        Ok(false) => Some(missing),
        Err(error) => Some(unanswered(missing, &error)),
    }
}

/// Returns whether the commit was merged by a pull request whose merged head had our comment with
/// the effects of the plan.
async fn was_merged_knowingly(
    forge: &Forge,
    source: &Source,
    commit: &str,
    plan: &Plan,
) -> Result<bool, ForgeError> {
    let (release, effects) = (plan.release.to_string(), plan.effects());
    for pull in forge.pull_requests_of(commit).await? {
        // Commits pushed on top of the merge were not reviewed with it.
        let is_this = pull.merged_as.iter().any(|merged| merged == commit);
        if !is_this || pull.base_branch != source.branch {
            continue;
        }
        let account = forge.account().await?;
        let comments = forge.find_comments(pull.number, account, MARKER).await?;
        let is_listed = comments
            .iter()
            .filter(|comment| is_applied(comment, &pull))
            .filter_map(|comment| stated(&comment.body))
            .any(|stated| {
                stated.head == pull.head && stated.effects.get(&release) == Some(&effects)
            });
        if is_listed {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Returns whether a comment had its present text before the merge. A change in the same second
/// does not count, nor does a comment or merge without a time.
fn is_applied(comment: &Comment, pull: &PullRequest) -> bool {
    match (comment.changed_at, pull.merged_at) {
        (Some(changed), Some(merged)) => changed < merged,
        _ => false,
    }
}

/// Returns the approval that the annotation of the Release lacks for a plan.
pub(super) fn lacks(planned: &Planned) -> Option<Reasons> {
    let Planned {
        desired,
        observation,
        plan,
    } = planned;
    if !plan.has_steps() {
        return None;
    }
    let effects = plan.effects().to_string();
    let approved = observation.user_requests().approved;
    if approved.as_ref() == Some(&effects) {
        return None;
    }
    let approved = match approved {
        Some(approved) => format!("; the present approval is for {approved}"),
        None => String::new(),
    };
    let waits = awaiting_approval(&effects, &difference(plan));
    let annotation = desired.store.approval_place(&desired.name);
    let how = format!("to approve it: kubectl annotate --overwrite {annotation}={effects}");
    Some(Reasons {
        message: format!("{waits}{approved}; {how}"),
        public_message: format!("{waits}; {how}"),
    })
}

/// Summarizes the changes of a plan.
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
        // For example a restart, a gate, or the end of a temporary change.
        format!("{} steps, no changes to objects in git", plan.steps.len())
    } else {
        format!("{} ({})", counts.join(", "), changed.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use pleach_reconciler::outcome::unapproved;
    use rstest::rstest;

    use super::*;

    #[test]
    fn the_public_message_has_no_error_of_the_forge() {
        let missing = Reasons {
            message: "waits for approval of e".to_owned(),
            public_message: "waits for approval of e".to_owned(),
        };
        let error = ForgeError::Refused {
            what: "find pull requests",
            status: 502,
            message: "no route to 10.0.0.7".to_owned(),
        };
        let report = unapproved(&unanswered(missing, &error));
        assert_eq!(report.public_message, "waits for approval of e");
        assert!(report.message.contains("10.0.0.7"), "{}", report.message);
        assert_eq!(report.condition.unwrap().message, report.message);
    }

    #[rstest]
    #[case::before(Some("2026-11-02T09:14:02Z"), Some("2026-11-02T09:14:03Z"), true)]
    #[case::in_the_same_second(Some("2026-11-02T09:14:03Z"), Some("2026-11-02T09:14:03Z"), false)]
    #[case::after(Some("2026-11-02T09:14:04Z"), Some("2026-11-02T09:14:03Z"), false)]
    #[case::merged_at_an_unknown_time(Some("2026-11-02T09:14:02Z"), None, false)]
    #[case::written_at_an_unknown_time(None, Some("2026-11-02T09:14:03Z"), false)]
    fn a_comment_counts_if_it_predates_the_merge(
        #[case] changed: Option<&str>,
        #[case] merged: Option<&str>,
        #[case] expected: bool,
    ) {
        let at = |text: Option<&str>| text.map(|text| text.parse().unwrap());
        let comment = Comment {
            id: 1,
            author: Some(42),
            login: None,
            body: String::new(),
            changed_at: at(changed),
        };
        let pull = PullRequest {
            number: 7,
            is_open: false,
            head: "abc".to_owned(),
            base_branch: "main".to_owned(),
            is_fork: false,
            author: None,
            labels: Vec::new(),
            updated_at: None,
            merged_as: vec!["abc".to_owned()],
            merged_at: at(merged),
        };
        assert_eq!(is_applied(&comment, &pull), expected);
    }
}
