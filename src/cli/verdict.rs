//! Verdict about a plan: exit code, messages and whether it is allowed to be executed.

use pleach_model::finding::{self, Finding};
use pleach_planner::plan::{Action, Plan, is_refusal};

use super::Exit;
use super::error::{CliError, Kind};

/// Codes of errors that mean that a server or an API did not answer, for kind
/// [`finding::Kind::Cluster`]. `refused` then means 429 or 502 to 504.
const UNANSWERED: [&str; 4] = ["api-stale", "conversion-failed", "not-read", "refused"];

/// Verdict about a plan.
#[derive(Debug, Clone, Copy)]
pub(super) struct Verdict<'a>(pub(super) &'a Plan);

impl Verdict<'_> {
    /// Returns the exit code for blocked objects.
    pub(super) fn blocks(self) -> Exit {
        self.0
            .findings
            .iter()
            .filter(|finding| finding.is_error() && !is_refusal(finding))
            .map(|finding| Kind::from(finding.kind).exit())
            .fold(Exit::DONE, Exit::and)
    }

    /// Refuses a partial apply while objects of the release are blocked.
    ///
    /// A started run (`begun`) continues if every error means that a server or an API did not
    /// answer, because the rest of the run can fix that.
    pub(super) fn ensure_whole(self, begun: bool) -> Result<(), CliError> {
        let blocked: Vec<String> = self
            .0
            .changes
            .iter()
            .filter(|change| change.action == Action::Blocked)
            .map(|change| change.object.to_string())
            .collect();
        let findings = self.0.findings.iter();
        let errors: Vec<&Finding> = findings.filter(|one| one.is_error()).collect();
        let by_cluster = errors.iter().any(|one| one.kind == finding::Kind::Cluster);
        let goes_on = begun && by_cluster && errors.iter().all(|one| is_unanswered(one));
        if blocked.is_empty() || goes_on {
            return Ok(());
        }
        let kind = if by_cluster {
            Kind::Cluster
        } else {
            Kind::Conflict
        };
        let message = format!(
            "nothing of release {} was written, because objects are blocked: {}",
            self.0.release,
            blocked.join(", ")
        );
        Err(CliError::new(kind, message)
            .hint("resolve the cause, or apply the other objects with --skip-blocked"))
    }

    /// Returns whether the plan has changes.
    pub(super) fn has_changes(self) -> bool {
        self.0
            .changes
            .iter()
            .any(|change| !matches!(change.action, Action::Unchanged | Action::Skip))
    }

    /// Returns the warnings and notes of the plan, and errors that block single objects.
    pub(super) fn remarks(self) -> Vec<Finding> {
        self.0
            .findings
            .iter()
            .filter(|finding| !is_refusal(finding))
            .cloned()
            .collect()
    }

    /// Fails with all refusals if the plan must not be executed. [`Verdict::remarks`] has the other
    /// findings.
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

/// Returns whether an error means that a server or an API did not answer.
fn is_unanswered(error: &Finding) -> bool {
    error.kind == finding::Kind::Cluster && UNANSWERED.contains(&error.code.as_str())
}

#[cfg(test)]
mod tests {
    use pleach_model::finding::Kind;

    use super::*;
    use crate::cli::format::samples;

    #[test]
    fn nothing_of_a_release_is_written_while_objects_are_blocked() {
        let mut plan = samples::plan(&[("a", Action::Update), ("b", Action::Blocked)]);
        let object = plan.changes[1].object.clone();
        let blocked =
            |(kind, code): (Kind, &str)| Finding::error(kind, code, "no").on(object.clone());
        let exit =
            |plan: &Plan, begun: bool| Verdict(plan).ensure_whole(begun).map_err(|e| e.exit());
        let conflict = (Kind::Conflict, "field-conflict");
        let stale = (Kind::Cluster, "api-stale");
        let refused = (Kind::Cluster, "refused");
        for (name, errors, begun, expected) in [
            ("a conflict", &[conflict][..], false, Err(Exit::CONFLICT)),
            (
                "a conflict in a run that was begun",
                &[conflict],
                true,
                Err(Exit::CONFLICT),
            ),
            (
                "an API that does not answer",
                &[stale],
                false,
                Err(Exit::CLUSTER),
            ),
            (
                "the same in a run that was begun",
                &[
                    stale,
                    refused,
                    (Kind::Cluster, "conversion-failed"),
                    (Kind::Cluster, "not-read"),
                ],
                true,
                Ok(()),
            ),
            (
                "an API that does not answer, and a conflict",
                &[stale, conflict],
                true,
                Err(Exit::CLUSTER),
            ),
            (
                "an API that does not answer, and an admission check",
                &[stale, (Kind::Policy, "denied")],
                true,
                Err(Exit::CLUSTER),
            ),
            (
                "an API that does not answer, and an invalid object",
                &[stale, (Kind::Repository, "refused")],
                true,
                Err(Exit::CLUSTER),
            ),
            (
                "a missing permission in a run that was begun",
                &[(Kind::Cluster, "forbidden")],
                true,
                Err(Exit::CLUSTER),
            ),
        ] {
            plan.findings = errors.iter().copied().map(blocked).collect();
            assert_eq!(exit(&plan, begun), expected, "{name}");
        }
        let error = Verdict(&plan).ensure_whole(false).unwrap_err();
        assert!(error.to_string().contains(&object.to_string()), "{error}");
        assert!(exit(&samples::plan(&[("a", Action::Update)]), false).is_ok());
    }

    #[test]
    fn a_refused_plan_reports_each_finding_once() {
        let mut plan = samples::plan(&[("a", Action::Update)]);
        plan.findings = vec![
            Finding::error(Kind::Policy, "guard", "not now"),
            Finding::warning(Kind::Policy, "kept", "it stays"),
            Finding::note(Kind::Policy, "noted", "by the way"),
        ];
        let verdict = Verdict(&plan);
        let refused = verdict.ensure_allowed().unwrap_err();
        let mut remarks = verdict.remarks();
        remarks.extend(refused.findings().iter().cloned());
        remarks.sort();
        plan.findings.sort();
        assert_eq!(remarks, plan.findings);
    }
}
