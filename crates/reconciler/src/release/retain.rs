//! The last applied state, which is retained while a newer one waits.

use super::reconcile::{Step, Work, all, blocked, refused};
use super::{Command, Failure, Lookup, LookupState, PlanSummary, Release, TargetFacts, TaskId};
use crate::Moment;
use crate::outcome::{ReconcileOutcome, ReconcileReport, Retained, plan_failed, suspended};

impl Release {
    /// Corrects drift from the last applied state while a newer one waits. Deletes nothing, and
    /// never reverts to an older state.
    pub(super) fn retain(&mut self, mut work: Work, waiting: ReconcileReport, now: Moment) {
        let previous = if work.is_last_started {
            self.previous(&work, &waiting)
        } else {
            None
        };
        let Some(previous) = previous else {
            return self.finish(work, waiting, now);
        };
        let retained = TargetFacts {
            id: self.new_target(),
            content: previous.content,
            revision: previous.revision,
            sync: previous.sync,
            is_from_records: false,
            // Restrictions stay the present ones.
            ..work.desired.clone()
        };
        self.commands.push(Command::Retain {
            id: retained.id,
            from: previous.id,
        });
        if self.reconciled.is_some() {
            self.reconciled = Some(retained.clone());
        }
        work.retained = Some(retained);
        work.waiting = Some(waiting);
        let depth = all(work.verify);
        self.plan(work, Step::PlanRetained, depth);
    }

    /// Returns the last applied state, or starts its lookup. A reconcile does not wait for git.
    fn previous(&mut self, work: &Work, waiting: &ReconcileReport) -> Option<TargetFacts> {
        let newer = &work.desired.revision;
        let previous = match (&self.reconciled, &work.recorded) {
            (Some(reconciled), _) => reconciled.clone(),
            (None, Some(commit)) if commit == newer => work.desired.clone(),
            (None, Some(commit)) => self.look_up(commit)?,
            (None, None) => return None,
        };
        let is_wrong = matches!(
            waiting.outcome,
            ReconcileOutcome::Refused | ReconcileOutcome::Failed
        );
        // The same commit would be refused again.
        (!is_wrong || previous.revision != *newer).then_some(previous)
    }

    fn look_up(&mut self, commit: &str) -> Option<TargetFacts> {
        let known = self.lookup.as_ref().filter(|one| one.commit == commit);
        if let Some(known) = known {
            return known.found().cloned();
        }
        let task = TaskId(self.number());
        self.lookup = Some(Lookup {
            task,
            commit: commit.to_owned(),
            state: LookupState::Awaited,
        });
        self.commands.push(Command::LookUp(task, commit.to_owned()));
        None
    }

    pub(super) fn on_retained_plan(
        &mut self,
        mut work: Work,
        planned: Result<Option<Box<PlanSummary>>, Failure>,
        now: Moment,
    ) {
        match planned {
            Ok(Some(summary)) => {
                if let Some(suspension) = summary.requests.suspended(now.wall) {
                    work.waiting = None;
                    work.retained = None;
                    let report = suspended(suspension, now.wall);
                    return self.finish(work, report, now);
                }
                if !summary.is_applied {
                    // The record names the present state.
                    self.reconciled = None;
                    return self.finish_waiting(work, None, now);
                }
                self.is_ours |= summary.is_ours;
                self.was_reconciled = true;
                let stopped = refused(&summary).or_else(|| blocked(&summary));
                work.summary = summary;
                match stopped {
                    Some(report) => self.done(work, report, now),
                    None => self.prepare(work, now),
                }
            }
            Err(failure) if self.reconciled.is_some() => {
                let report = plan_failed(&failure, self.failures);
                self.done(work, report, now);
            }
            // The state is only known from a record.
            Ok(None) | Err(_) => self.finish_waiting(work, None, now),
        }
    }

    /// Ends a reconcile whose desired state waits, with the outcome for the retained state.
    pub(super) fn finish_waiting(
        &mut self,
        mut work: Work,
        retained: Option<ReconcileReport>,
        now: Moment,
    ) {
        let Some(mut waiting) = work.waiting.take() else {
            return;
        };
        match (retained, &work.retained) {
            (Some(report), Some(target)) => {
                waiting.retained = Some(Box::new(Retained {
                    target: target.id,
                    revision: target.revision.clone(),
                    report,
                }));
            }
            (_, _) => work.retained = None,
        }
        self.finish(work, waiting, now);
    }
}
