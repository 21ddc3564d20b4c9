//! What a plan means for the command that made it: the exit code, what is
//! said, and whether it may be carried out.

use pleach_domain::finding::Finding;
use pleach_domain::plan::{Action, Plan, is_refusal};

use super::Exit;
use super::error::{CliError, Kind};

/// Judges a plan.
#[derive(Debug, Clone, Copy)]
pub(super) struct Verdict<'a>(pub(super) &'a Plan);

impl Verdict<'_> {
    /// What blocks single objects.
    pub(super) fn blocks(self) -> Exit {
        self.0
            .findings
            .iter()
            .filter(|finding| finding.is_error() && !is_refusal(finding))
            .map(|finding| Kind::from(finding.kind).exit())
            .fold(Exit::DONE, Exit::and)
    }

    /// Whether anything would change.
    pub(super) fn has_changes(self) -> bool {
        self.0
            .changes
            .iter()
            .any(|change| !matches!(change.action, Action::Unchanged | Action::Skip))
    }

    /// Warnings and notes of the plan, and errors that block single objects.
    pub(super) fn remarks(self) -> Vec<Finding> {
        self.0
            .findings
            .iter()
            .filter(|finding| !is_refusal(finding))
            .cloned()
            .collect()
    }

    /// Refuses to go on when the plan may not be carried out: all that forbids it
    /// at once. What else there is to say is among the remarks.
    pub(super) fn ensure_allowed(self) -> Result<(), CliError> {
        let findings: Vec<Finding> = self.0.refusals().cloned().collect();
        if findings.is_empty() {
            return Ok(());
        }
        Err(CliError::from_findings(
            format!(
                "release {} is not applied; nothing was written",
                self.0.release
            ),
            findings,
        ))
    }
}

#[cfg(test)]
mod tests {
    use pleach_domain::finding::Kind;

    use super::*;
    use crate::cli::format::samples;

    #[test]
    fn everything_is_said_once_of_a_plan_that_is_refused() {
        let mut plan = samples::plan(&[("a", Action::Update)]);
        plan.findings = vec![
            Finding::error(Kind::Policy, "guard", "not now"),
            Finding::warning(Kind::Policy, "kept", "it stays"),
            Finding::note(Kind::Policy, "noted", "by the way"),
        ];
        let verdict = Verdict(&plan);
        let refused = verdict.ensure_allowed().unwrap_err();
        let mut said = verdict.remarks();
        said.extend(refused.findings().iter().cloned());
        said.sort();
        plan.findings.sort();
        assert_eq!(said, plan.findings);
    }
}
