//! Result of the command, release by release: refused, started and finished.

use std::collections::BTreeSet;

use pleach_formats::window::Windows;
use pleach_model::object::ReleaseName;
use pleach_planner::plan::Plan;
use pleach_state::inventory::RunOutcome;
use serde_json::Value;

use super::{ApplyOutput, Reviewed};
use crate::cli::{
    Context, Exit, Ui,
    error::{CliError, Kind},
    format::{self, report::Report},
    session,
    verdict::Verdict,
};
use pleach_cluster::Cluster;
use pleach_engine::planning::Planned;
use pleach_engine::stop::Cause;
use pleach_engine::sync::{
    self, Claim, Run, SyncError,
    events::Events,
    report::{FailureKind, SyncResult},
};

/// Result of the command, release by release.
pub(in crate::cli) struct Outcome {
    output: ApplyOutput,
    claim: Claim,
    /// Name of the command.
    command: &'static str,
    pub(in crate::cli) exit: Exit,
    reports: Vec<Value>,
    /// Releases that could not be planned.
    pub(super) unplanned: BTreeSet<String>,
}

impl Outcome {
    pub(in crate::cli) fn new(command: &'static str, output: ApplyOutput, claim: Claim) -> Self {
        Self {
            output,
            claim,
            command,
            exit: Exit::DONE,
            reports: Vec::new(),
            unplanned: BTreeSet::new(),
        }
    }

    /// Records a release that could not be planned. The reason has already been shown.
    pub(in crate::cli) fn unplanned(&mut self, release: &ReleaseName, error: &CliError) {
        self.exit = self.exit.and(error.exit());
        self.unplanned.insert(release.release.clone());
        self.reports.push(format::report::unplanned(release, error));
    }

    /// Returns the command that continues this one.
    fn go_on(&self, plan: &Plan) -> String {
        let ReleaseName {
            environment,
            release,
        } = &plan.release;
        // A release that git no longer has is not a valid target.
        if plan.removal.is_some() && self.command == "apply" {
            format!("pleach apply {environment}")
        } else {
            format!("pleach {} {environment}/{release}", self.command)
        }
    }

    /// Shows the refusals of all releases. Returns whether there are any.
    pub(in crate::cli) fn refuses<'a>(
        &mut self,
        ui: &mut Ui,
        reviewed: impl Iterator<Item = &'a Planned> + Clone,
    ) -> bool {
        let answers: Vec<Result<(), CliError>> = reviewed
            .clone()
            .map(|planned| Verdict(&planned.plan).ensure_allowed())
            .collect();
        if answers.iter().all(Result::is_ok) {
            return false;
        }
        for (planned, answer) in reviewed.zip(answers) {
            let error = answer.err();
            if let Some(error) = &error {
                ui.error(error);
                self.exit = self.exit.and(error.exit());
            } else if planned.would_write() {
                ui.status(format_args!(
                    "release {} was not started, because another release was refused; `{}` applies only this one",
                    planned.plan.release,
                    self.go_on(&planned.plan)
                ));
            }
            let word = if error.is_some() {
                "refused"
            } else {
                "skipped"
            };
            let report = Report {
                plan: &planned.plan,
                result: Err(word),
                error: error.as_ref(),
                go_on: &self.go_on(&planned.plan),
            };
            // The text output already shows the reason and that nothing was written.
            if self.output == ApplyOutput::Json {
                self.reports.push(report.json());
            }
        }
        true
    }

    /// Records that the plans differ from the reviewed ones. The reason has already been shown.
    pub(super) fn stale(&mut self, ui: &mut Ui, reviewed: &[Reviewed<'_>], error: &CliError) {
        self.exit = self.exit.and(error.exit());
        for one in reviewed {
            self.not_begun(ui, &one.planned, error);
        }
    }

    /// Records a release that was not started. The reason has already been shown.
    pub(super) fn not_begun(&mut self, ui: &mut Ui, planned: &Planned, error: &CliError) {
        self.exit = self.exit.and(error.exit());
        let word = if error.kind() == Kind::Interrupted {
            "interrupted"
        } else {
            "failed"
        };
        let report = Report {
            plan: &planned.plan,
            result: Err(word),
            error: Some(error),
            go_on: &self.go_on(&planned.plan),
        };
        self.report(ui, &report);
    }

    /// Applies one release. Reports a failure without affecting other releases.
    pub(in crate::cli) async fn execute(
        &mut self,
        ui: &mut Ui,
        ctx: &Context,
        cluster: &Cluster,
        planned: Planned,
    ) -> Option<RunOutcome> {
        self.exit = self.exit.and(Verdict(&planned.plan).blocks());
        let (plan, result) = Box::pin(execute(ui, ctx, cluster, self, planned)).await;
        let (result, error) = match result {
            Ok(result) => {
                // Report the executed steps even if recording failed.
                let error = result
                    .unrecorded
                    .clone()
                    .map(|source| session::unrecorded(&plan.release, source));
                (Ok(result), error)
            }
            Err(error) => (
                Err("failed"),
                Some(session::failed("execute the plan of", &plan.release, error)),
            ),
        };
        if let Some(error) = &error {
            ui.error(error);
            self.exit = self.exit.and(error.exit());
        }
        if let Ok(result) = &result {
            self.exit = self.exit.and(exit_of(&plan, result));
        }
        let report = Report {
            plan: &plan,
            result: result.as_ref().map_err(|word| *word),
            error: error.as_ref(),
            go_on: &self.go_on(&plan),
        };
        self.report(ui, &report);
        result.ok().map(|result| result.outcome)
    }

    fn report(&mut self, ui: &mut Ui, report: &Report<'_>) {
        match self.output {
            ApplyOutput::Text => ui.print(report.text()),
            ApplyOutput::Json => self.reports.push(report.json()),
        }
    }

    /// Prints the JSON result, if requested, and returns the exit code.
    pub(in crate::cli) fn finish(self, ui: &mut Ui) -> Exit {
        if self.output == ApplyOutput::Json {
            ui.print(format::json(
                &serde_json::json!({ "format": 1, "releases": self.reports }),
            ));
        }
        self.exit
    }
}

async fn execute(
    ui: &mut Ui,
    ctx: &Context,
    cluster: &Cluster,
    outcome: &Outcome,
    planned: Planned,
) -> (Plan, Result<SyncResult, SyncError>) {
    let Planned {
        mut desired,
        observation,
        plan,
    } = planned;
    let (sender, mut receiver) = tokio::sync::mpsc::unbounded_channel();
    let events = Events::new(desired.name.clone(), sender);
    // The text report already shows failures in full.
    let logs_failures = outcome.output == ApplyOutput::Json;
    let mut progress = format::progress::Progress::new(ui, &plan, logs_failures);
    let result = {
        let run = Run {
            cluster,
            claim: &outcome.claim,
            events: &events,
            stop: &ctx.stop(),
            windows: &Windows::default(),
        };
        let sync = sync::execute(&run, &mut desired, observation, &plan);
        tokio::pin!(sync);
        loop {
            tokio::select! {
                biased;
                Some(event) = receiver.recv() => progress.show(ui, &event),
                result = &mut sync => break result,
            }
        }
    };
    while let Ok(event) = receiver.try_recv() {
        progress.show(ui, &event);
    }
    ui.end_progress();
    (plan, result)
}

fn exit_of(plan: &Plan, result: &SyncResult) -> Exit {
    let failures = result
        .failures(plan)
        .map(|(_, failure)| exit_of_kind(failure.kind))
        .fold(Exit::DONE, Exit::and);
    match result.stopped {
        Some(Cause::Interrupted) => failures.and(Exit::INTERRUPTED),
        Some(Cause::Superseded) => failures.and(Exit::CONFLICT),
        None => failures,
    }
}

/// Returns the exit code of a category of failures.
pub(in crate::cli) fn exit_of_kind(kind: FailureKind) -> Exit {
    match kind {
        FailureKind::Cluster => Exit::CLUSTER,
        FailureKind::Conflict => Exit::CONFLICT,
        FailureKind::Policy => Exit::POLICY,
        FailureKind::NotReady | FailureKind::Paused => Exit::NOT_READY,
        FailureKind::Refused => Exit::REPOSITORY,
        FailureKind::Other => Exit::FAILED,
    }
}
