//! Progress of a stopped run.

use std::collections::BTreeMap;

use pleach_model::object::ObjectId;
use pleach_planner::plan::{Action, Op, Plan, Step};

use super::events::StepOutcome;
use super::report::SyncResult;

/// Done and remaining changes of a stopped run, by object in the order of the plan.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Remainder<'a> {
    /// Changed and complete.
    pub made: Vec<&'a ObjectId>,
    /// Changed, but readiness or deletion was not awaited.
    pub unsettled: Vec<&'a ObjectId>,
    /// Not changed, or only partly.
    pub left: Vec<Left<'a>>,
}

/// Remaining change of an object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Left<'a> {
    /// The object.
    pub object: &'a ObjectId,
    /// The action, in one word.
    pub action: String,
    /// Whether some of its steps were executed.
    pub begun: bool,
}

impl<'a> Remainder<'a> {
    /// Compares a plan with the outcomes of its steps.
    pub fn of(plan: &'a Plan, result: &SyncResult) -> Self {
        let mut remainder = Self {
            made: Vec::new(),
            unsettled: Vec::new(),
            left: Vec::new(),
        };
        let actions: BTreeMap<&ObjectId, String> = plan
            .changes
            .iter()
            // An object in sync can still have a temporary change.
            .filter(|change| change.action != Action::Unchanged)
            .map(|change| (&change.object, change.action.to_string()))
            .collect();
        let mut seen: BTreeMap<&ObjectId, Vec<&'a Step>> = BTreeMap::new();
        let mut order = Vec::new();
        for step in &plan.steps {
            if matches!(step.op, Op::Wait) {
                continue;
            }
            let steps = seen.entry(&step.object).or_default();
            if steps.is_empty() {
                order.push(&step.object);
            }
            steps.push(step);
        }
        // A temporary change that was reverted left no trace.
        let is_undone = |step: &Step| {
            let overlay = step.overlay.as_ref();
            !matches!(step.op, Op::Lift) && overlay.is_some_and(|id| result.undone.contains(id))
        };
        for object in order {
            let steps = &seen[object];
            let progress = |step: &&Step| match result.outcomes.get(&step.id) {
                _ if is_undone(step) => None,
                Some(StepOutcome::Done) => Some(true),
                Some(
                    StepOutcome::Stopped { applied: true }
                    | StepOutcome::Skipped { applied: true, .. },
                ) => Some(false),
                Some(
                    StepOutcome::Stopped { applied: false }
                    | StepOutcome::Failed(_)
                    | StepOutcome::Skipped { applied: false, .. },
                )
                | None => None,
            };
            let progress: Vec<Option<bool>> = steps.iter().map(progress).collect();
            if progress.iter().all(|one| *one == Some(true)) {
                remainder.made.push(object);
            } else if progress.iter().all(Option::is_some) {
                remainder.unsettled.push(object);
            } else {
                remainder.left.push(Left {
                    object,
                    action: actions
                        .get(object)
                        .cloned()
                        .unwrap_or_else(|| steps[0].op.verb().to_owned()),
                    begun: progress.iter().any(Option::is_some),
                });
            }
        }
        remainder
    }

    /// Returns the number of changed objects.
    pub fn changed(&self) -> usize {
        self.made.len() + self.unsettled.len()
    }

    /// Returns the number of objects to change.
    pub fn planned(&self) -> usize {
        self.changed() + self.left.len()
    }

    /// Summarizes the progress, for example `2 of 5 changes applied, the wait for 1 of them did
    /// not finish`.
    pub fn summary(&self) -> String {
        let (changed, planned) = (self.changed(), self.planned());
        if planned == 0 {
            return "no changes were planned; the wait for readiness did not finish".to_owned();
        }
        let applied = format!("{changed} of {planned} changes applied");
        match self.unsettled.len() {
            0 => applied,
            count => format!("{applied}, the wait for {count} of them did not finish"),
        }
    }
}

#[cfg(test)]
mod tests {
    use jiff::SignedDuration;
    use pleach_model::object::{NonSecret, ReleaseName};
    use pleach_model::order::StageName;
    use pleach_planner::plan::{StepId, Until};
    use pleach_state::overlay::OverlayId;
    use serde_json::json;

    use super::*;
    use crate::stop::Cause;
    use crate::sync::report::{Failure, FailureKind};

    /// Builds a plan with one patch per object, two for the last, and a final wait.
    fn plan(objects: &[&str]) -> Plan {
        let step = |(position, name): (usize, &&str)| Step {
            id: StepId(position),
            stage: StageName::Config,
            object: ObjectId::new("", "ConfigMap", Some("web"), name),
            op: Op::Patch {
                patch: NonSecret(json!([])),
                subresource: None,
            },
            needs: Vec::new(),
            require: Vec::new(),
            until: Some(Until::Absent { pods: None }),
            deadline: SignedDuration::from_secs(1),
            overlay: None,
            reason: String::new(),
        };
        let mut steps: Vec<Step> = objects.iter().enumerate().map(step).collect();
        let mut wait = step((objects.len(), &"waited"));
        wait.op = Op::Wait;
        steps.push(wait);
        let release = ReleaseName {
            environment: "dev".to_owned(),
            release: "web".to_owned(),
        };
        Plan {
            steps,
            ..Plan::new(release, "v1")
        }
    }

    fn check(objects: &[&str], outcomes: &[StepOutcome], expected: &str) {
        check_plan(&plan(objects), outcomes, &[], expected);
    }

    fn check_plan(plan: &Plan, outcomes: &[StepOutcome], undone: &[&OverlayId], expected: &str) {
        let result = SyncResult {
            outcomes: plan
                .steps
                .iter()
                .map(|step| step.id)
                .zip(outcomes.iter().cloned())
                .collect(),
            stopped: Some(Cause::Interrupted),
            undone: undone.iter().map(|id| (*id).clone()).collect(),
            ..SyncResult::default()
        };
        let remainder = Remainder::of(plan, &result);
        let names = |ids: &[&ObjectId]| -> String { ids.iter().map(|id| &id.name[..]).collect() };
        let mut left = String::new();
        for one in &remainder.left {
            left.push_str(&one.object.name);
            left.push_str(if one.begun { "+" } else { "" });
        }
        let found = format!(
            "{}|{}|{left}: {}",
            names(&remainder.made),
            names(&remainder.unsettled),
            remainder.summary()
        );
        assert_eq!(found, expected);
    }

    const APPLIED: StepOutcome = StepOutcome::Stopped { applied: true };
    const UNTOUCHED: StepOutcome = StepOutcome::Stopped { applied: false };

    #[test]
    fn objects_are_counted_by_their_progress() {
        check(
            &["a", "b", "c"],
            &[StepOutcome::Done, APPLIED, UNTOUCHED, UNTOUCHED],
            "a|b|c: 2 of 3 changes applied, the wait for 1 of them did not finish",
        );
        check(
            &["a"],
            &[UNTOUCHED, UNTOUCHED],
            "||a: 0 of 1 changes applied",
        );
        check(
            &[],
            &[UNTOUCHED],
            "||: no changes were planned; the wait for readiness did not finish",
        );
    }

    #[test]
    fn a_reverted_overlay_does_not_count_as_begun() {
        let stop = OverlayId("stop".to_owned());
        let mut plan = plan(&["a", "a", "b"]);
        plan.steps[0].op = Op::Set {
            patch: NonSecret(json!({"spec": {"replicas": 0}})),
        };
        plan.steps[0].overlay = Some(stop.clone());
        let outcomes = [StepOutcome::Done, UNTOUCHED, StepOutcome::Done, UNTOUCHED];
        check_plan(&plan, &outcomes, &[&stop], "b||a: 1 of 2 changes applied");
        // While the temporary change is active, half of the work is done.
        check_plan(&plan, &outcomes, &[], "b||a+: 1 of 2 changes applied");
    }

    #[test]
    fn an_object_counts_as_made_after_all_its_steps() {
        let failed = StepOutcome::Failed(Failure::new(FailureKind::Other, "no"));
        let done = StepOutcome::Done;
        check(
            &["a", "a"],
            &[done.clone(), done.clone(), done.clone()],
            "a||: 1 of 1 changes applied",
        );
        check(
            &["a", "a"],
            &[done.clone(), UNTOUCHED, UNTOUCHED],
            "||a+: 0 of 1 changes applied",
        );
        check(
            &["a", "b"],
            &[done, failed, UNTOUCHED],
            "a||b: 1 of 2 changes applied",
        );
    }
}
