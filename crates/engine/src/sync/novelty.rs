//! Distinction of new content from corrections of drift.

use pleach_fields::diff::Cause;
use pleach_planner::plan::{Action, Change, Desired, Op, Plan, Step};
use pleach_state::inventory::{AttemptResult, Installed, RunOutcome};

/// Returns whether a plan applies new content, or deletes objects that git removed. A drift
/// correction or its retry is not new.
pub fn is_new(desired: &Desired, record: Option<&Installed>, plan: &Plan) -> bool {
    let is_of_git = |step: &Step| match &step.op {
        Op::Delete(deletion) => deletion.because().is_of_git(),
        _ => false,
    };
    let is_recreated =
        |change: &Change| change.action == Action::Recreate && change.cause == Some(Cause::Git);
    !was_there(desired, record)
        || plan.steps.iter().any(is_of_git)
        || plan.changes.iter().any(is_recreated)
}

/// Returns whether exactly this content was applied before, and no other content was started since.
pub fn was_there(desired: &Desired, record: Option<&Installed>) -> bool {
    record.is_some_and(|one| !desired.is_fresh(Some(one)) && is_undisturbed(one))
}

/// Returns whether no other revision was tried since the last reconciled one. Reverting a failed
/// revision is not a drift correction.
pub fn is_undisturbed(record: &Installed) -> bool {
    let attempts = [&record.installed, &record.applying];
    let is_of_it = |result: &AttemptResult| {
        let mut attempts = attempts.into_iter().flatten();
        attempts.any(|attempt| attempt.revision == result.revision)
    };
    let since = record.history.iter();
    let mut since = since.take_while(|result| result.result != RunOutcome::Deployed);
    since.all(is_of_it)
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;
    use pleach_model::object::Digest;
    use pleach_state::inventory::{Attempt, RunFacts};
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case::deployed(&["deployed a"], true)]
    #[case::corrected_in_vain(&["failed a", "interrupted a", "deployed a", "failed b"], true)]
    #[case::at_a_commit_that_changes_nothing(&["failed c", "deployed a"], true)]
    #[case::after_a_failed_revision(&["failed a", "failed b", "deployed a"], false)]
    #[case::superseded(&["failed a", "superseded b", "deployed a"], false)]
    fn a_revert_of_a_failed_revision_is_no_correction(
        #[case] history: &[&str],
        #[case] expected: bool,
    ) {
        let attempt = |revision: &str| {
            Some(Attempt {
                version: "v1".to_owned(),
                revision: revision.to_owned(),
                digest: Digest::of(b""),
                at: Timestamp::UNIX_EPOCH,
            })
        };
        let results = history.iter().map(|result| {
            let (result, revision) = result.split_once(' ').unwrap();
            AttemptResult {
                version: "v1".to_owned(),
                revision: revision.to_owned(),
                result: serde_json::from_value(result.into()).unwrap(),
                at: Timestamp::UNIX_EPOCH,
                message: String::new(),
                local: String::new(),
                overridden: Vec::new(),
                run: RunFacts::default(),
            }
        });
        let record = Installed {
            installed: attempt("a"),
            applying: attempt("c"),
            history: results.collect(),
            ..Installed::default()
        };
        assert_eq!(is_undisturbed(&record), expected);
    }
}
