//! What a plan means for the command that made it: the exit code, what is
//! said, and whether it may be carried out.

use pleach_domain::finding::{Finding, Severity};
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

    /// Refuses to go on when the plan may not be carried out: all findings at once.
    pub(super) fn ensure_allowed(self) -> Result<(), CliError> {
        let mut findings: Vec<Finding> = self.0.refusals().cloned().collect();
        if findings.is_empty() {
            return Ok(());
        }
        findings.extend(
            self.0
                .findings
                .iter()
                .filter(|finding| finding.severity == Severity::Warning)
                .cloned(),
        );
        Err(CliError::from_findings(
            format!(
                "release {} is not applied; nothing was written",
                self.0.release
            ),
            findings,
        ))
    }
}
