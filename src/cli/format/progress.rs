//! Events of a sync as lines and as a bar.

use std::collections::BTreeMap;

use pleach_domain::inventory::ReleaseName;
use pleach_domain::plan::{Op, Plan, StepId};

use super::findings::plain;
use crate::cli::Ui;
use crate::engine::lease::Holder;
use crate::engine::sync::events::{EventKind, Outcome, SyncEvent, Verb};

/// Consumes the events of one release.
pub(crate) struct Progress<'a> {
    plan: &'a Plan,
    done: usize,
    waiting: BTreeMap<StepId, String>,
}

impl<'a> Progress<'a> {
    /// Starts the bar.
    pub(crate) fn new(ui: &mut Ui, plan: &'a Plan) -> Self {
        ui.start_progress(plan.steps.len());
        Self {
            plan,
            done: 0,
            waiting: BTreeMap::new(),
        }
    }

    /// Shows one event.
    pub(crate) fn show(&mut self, ui: &mut Ui, event: &SyncEvent) {
        match &event.kind {
            EventKind::Queued(holder) => ui.status(queued(&event.release, holder)),
            EventKind::Done(id, _, outcome) => self.done(ui, *id, outcome),
            EventKind::Waiting(id, state) => {
                let waited = state.since.as_secs();
                let line = format!(
                    "waiting for {}: {}",
                    plain(&state.object.to_string()),
                    plain(&state.message)
                );
                // Short waits are nobody's concern.
                if waited >= 5 {
                    ui.status(format!("{line} ({waited} s)"));
                } else {
                    ui.detail(&line);
                }
                self.waiting.insert(*id, line);
            }
            EventKind::Retrying(id, message) => {
                ui.status(format!("retrying {}: {}", self.object(*id), plain(message)));
            }
            EventKind::Warning(finding) => ui.findings(std::slice::from_ref(finding)),
            EventKind::Phase(Verb::Report) => ui.end_progress(),
            EventKind::Phase(_) | EventKind::Started(_) | EventKind::Finished(_) => {}
        }
        let message = self
            .waiting
            .values()
            .next_back()
            .cloned()
            .unwrap_or_default();
        ui.progress(self.done, &message);
    }

    fn object(&self, id: StepId) -> String {
        plain(&self.plan.steps[id.0].object.to_string())
    }

    fn done(&mut self, ui: &mut Ui, id: StepId, outcome: &Outcome) {
        self.done += 1;
        self.waiting.remove(&id);
        let step = &self.plan.steps[id.0];
        match outcome {
            Outcome::Done => match &step.op {
                Op::Wait => {}
                Op::Lift if self.plan.is_of_gate(step) => {
                    ui.status(format!("{}: lifted {}", step.stage, self.object(id)));
                }
                op => ui.status(format!("{}: {} {}", step.stage, past(op), self.object(id))),
            },
            Outcome::Failed(failure) => {
                ui.status(format!(
                    "{}: failed {}: {}",
                    step.stage,
                    self.object(id),
                    plain(&failure.message)
                ));
            }
            Outcome::Skipped { .. } | Outcome::Stopped { .. } => {}
        }
    }
}

/// Says that somebody else is waited for.
pub(crate) fn queued(release: &ReleaseName, holder: &Holder) -> String {
    format!(
        "waiting for {}, who applies release {release}",
        plain(&holder.to_string())
    )
}

fn past(op: &Op) -> &'static str {
    match op {
        Op::Apply { .. } => "applied",
        Op::Create { .. } => "created",
        Op::Own(_) | Op::Patch { .. } => "patched",
        Op::Set { .. } => "changed for a while",
        Op::Close { .. } => "closed",
        Op::Lift => "took back the change of",
        Op::Restart { .. } => "restarted",
        Op::Replace { .. } => "replaced pods of",
        Op::Delete(_) => "deleted",
        Op::Copy { .. } => "saw to the copy",
        Op::Migrate { .. } => "migrated",
        Op::Wait => "waited for",
    }
}
