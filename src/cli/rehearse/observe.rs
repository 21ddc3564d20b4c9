//! Executes a plan on the copy and records its stages.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use pleach_formats::window::Windows;
use pleach_planner::plan::{Course, Op, Plan, StepId, Until};
use pleach_rehearsal::dump::LeftOut;
use pleach_rehearsal::hints;
use pleach_rehearsal::report::{GateClosure, NotComparable, Refusal, Release, Stage};

use super::world::World;
use super::{is_custom, references};
use crate::cli::error::CliError;
use crate::cli::session::{self, Planned};
use crate::cli::{Context, lease};
use pleach_cluster::Cluster;
use pleach_engine::sync::events::{EventKind, Events, StepOutcome};
use pleach_engine::sync::report::{Failure, FailureKind};
use pleach_engine::sync::{self, Run};

/// Times of a step.
#[derive(Debug, Default, Clone, Copy)]
struct Times {
    applied: Option<Instant>,
    done: Option<Instant>,
}

/// Executes a plan and returns the release with its stages, and references that cannot be judged.
pub(super) async fn execute(
    ctx: &Context,
    cluster: &Cluster,
    planned: Planned,
    mut release: Release,
    left_out: &[LeftOut],
) -> Result<(Release, Vec<NotComparable>), CliError> {
    let Planned {
        mut desired,
        observation,
        plan,
    } = planned;
    let needs = references::needs(&plan, &desired);
    let paths = references::Paths::of(&observation.observed.discovery, left_out);
    let (sender, mut receiver) = tokio::sync::mpsc::unbounded_channel();
    let events = Events::new(desired.name.clone(), sender);
    let claim = lease::alone();
    let mut times: BTreeMap<StepId, Times> = BTreeMap::new();
    let mut note = |kind: EventKind| match kind {
        EventKind::Applied(step) => {
            times.entry(step).or_default().applied = Some(Instant::now());
        }
        EventKind::Done(step, ..) => times.entry(step).or_default().done = Some(Instant::now()),
        _ => {}
    };
    let start = Instant::now();
    let result = {
        let run = Run {
            cluster,
            claim: &claim,
            events: &events,
            stop: &ctx.stop(),
            windows: &Windows::default(),
        };
        let sync = sync::execute(&run, &mut desired, observation, &plan);
        let mut sync = Box::pin(sync);
        loop {
            tokio::select! {
                biased;
                Some(event) = receiver.recv() => note(event.kind),
                result = &mut sync => break result,
            }
        }
    };
    while let Ok(event) = receiver.try_recv() {
        note(event.kind);
    }
    release.gates = closures(&plan, &times, start, Instant::now());
    let mut unclear = Vec::new();
    match result {
        Ok(result) => {
            release.stages = stages(&plan, &result.outcomes, &times);
            let missing = references::missing(cluster, &paths, needs).await;
            unclear = references::report(missing, &mut release.stages);
            if let Some(error) = result.unrecorded {
                let error = session::unrecorded(&plan.release, error);
                release.trouble = Some(line(&error));
            }
        }
        Err(error) => {
            release.stages = stages(&plan, &BTreeMap::new(), &times);
            let error = session::failed("execute the plan of", &plan.release, error);
            release.trouble = Some(line(&error));
        }
    }
    Ok((release, unclear))
}

/// Joins the lines of a message.
pub(super) fn one_line(text: &str) -> String {
    let lines: Vec<&str> = text.lines().map(str::trim).collect();
    lines.join(" ")
}

/// Formats an error with its causes in one line.
fn line(error: &CliError) -> String {
    let causes = error.causes();
    let mut parts = vec![error.to_string()];
    parts.extend(causes);
    parts.join(": ")
}

/// Removes waits that only an operator or another server could end, and changes of nodes, and returns
/// them.
pub(super) fn answerable(mut planned: Planned, world: &World) -> (Planned, Vec<NotComparable>) {
    let unanswered = without_unanswerable(&mut planned.plan, world);
    (planned, unanswered)
}

fn without_unanswerable(plan: &mut Plan, world: &World) -> Vec<NotComparable> {
    let mut unanswered = Vec::new();
    for step in &mut plan.steps {
        if matches!(
            step.op,
            Op::UpgradeNode { .. } | Op::Preload { .. } | Op::CleanNode { .. } | Op::Pause
        ) {
            unanswered.push(NotComparable {
                kind: "node".to_owned(),
                what: format!(
                    "{} {} is not rehearsed: simulated nodes do not change",
                    step.op.verb(),
                    step.object
                ),
            });
            step.op = Op::Wait;
            step.until = None;
        }
        let kind = step.object.group_kind();
        let is_answered = match &step.until {
            None | Some(Until::Served(_) | Until::Probe { .. } | Until::Holds { .. }) => true,
            Some(Until::Registered { .. } | Until::Exists { .. }) => false,
            Some(_) if world.decides(&step.object) => true,
            Some(_) => !is_custom(&kind) && !kind.is("apiregistration.k8s.io", "APIService"),
        };
        if !is_answered {
            step.until = None;
            unanswered.push(NotComparable {
                kind: "operator".to_owned(),
                what: format!(
                    "nothing in a rehearsal makes {} ready; it is not waited for",
                    step.object
                ),
            });
        }
    }
    unanswered
}

/// Summarizes the steps of a plan by stage, in the order of the plan.
fn stages(
    plan: &Plan,
    outcomes: &BTreeMap<StepId, StepOutcome>,
    times: &BTreeMap<StepId, Times>,
) -> Vec<Stage> {
    let mut order = Vec::new();
    let mut stages: BTreeMap<String, Stage> = BTreeMap::new();
    let mut waits: BTreeMap<String, Vec<(Instant, Instant)>> = BTreeMap::new();
    let mut failed = BTreeSet::new();
    for step in &plan.steps {
        let name = step.stage.to_string();
        if !stages.contains_key(&name) {
            order.push(name.clone());
        }
        let stage = stages.entry(name.clone()).or_insert_with(|| Stage {
            stage: name.clone(),
            ..Stage::default()
        });
        let timed = times.get(&step.id).copied().unwrap_or_default();
        let is_write = !matches!(step.op, Op::Wait);
        let was_applied = match outcomes.get(&step.id) {
            Some(StepOutcome::Done) => true,
            Some(StepOutcome::Skipped { applied, .. } | StepOutcome::Stopped { applied }) => {
                *applied
            }
            Some(StepOutcome::Failed(_)) | None => timed.applied.is_some(),
        };
        stage.planned += usize::from(is_write);
        stage.writes += usize::from(is_write && was_applied);
        if let (Some(applied), Some(done), Some(_)) = (timed.applied, timed.done, &step.until) {
            waits.entry(name).or_default().push((applied, done));
        }
        if let Some(StepOutcome::Failed(failure)) = outcomes.get(&step.id)
            && failed.insert((step.object.clone(), failure.message.clone()))
        {
            stage.refused.push(Refusal {
                object: step.object.to_string(),
                message: one_line(&failure.message),
                hint: hint(failure),
            });
        }
    }
    order
        .into_iter()
        .filter_map(|name| {
            let mut stage = stages.remove(&name)?;
            stage.waited = covered(waits.remove(&name).unwrap_or_default());
            Some(stage)
        })
        .collect()
}

/// Returns the next step for a failure. The general hint of a wait says less than the cause.
fn hint(failure: &Failure) -> Option<String> {
    let of_cause = hints::hint(&failure.message).map(str::to_owned);
    let of_step = failure.hint.as_deref().map(one_line);
    match failure.kind {
        FailureKind::NotReady => of_cause.or(of_step),
        _ => of_step.or(of_cause),
    }
}

/// Returns the gates that refused writers between two times. A gate that an earlier run left closed
/// refuses them from the start.
fn closures(
    plan: &Plan,
    times: &BTreeMap<StepId, Times>,
    start: Instant,
    end: Instant,
) -> Vec<GateClosure> {
    let gates = plan.overlays.iter().filter(|overlay| overlay.is_gate());
    let closures = gates.filter_map(|gate| {
        let steps = || {
            let steps = plan.steps.iter();
            steps.filter(|step| step.overlay.as_ref() == Some(&gate.id))
        };
        let applied = |id: &StepId| times.get(id)?.applied;
        let closed = steps().filter(|step| matches!(step.op, Op::Close { .. }));
        let closed = closed.filter_map(|step| applied(&step.id)).min();
        let lifted = steps().filter(|step| step.op == Op::Lift);
        let lifted = lifted.filter_map(|step| applied(&step.id)).max();
        let from = match gate.course {
            Course::Made => closed?,
            Course::Kept | Course::Dropped => start,
        };
        let duration = lifted.unwrap_or(end).saturating_duration_since(from);
        Some(GateClosure {
            gate: gate.id.name().to_owned(),
            seconds: duration.as_secs_f64(),
            lifted: lifted.is_some(),
        })
    });
    closures.collect()
}

/// Returns the seconds that intervals cover together.
fn covered(mut intervals: Vec<(Instant, Instant)>) -> f64 {
    intervals.sort();
    let mut total = 0.0;
    let mut end: Option<Instant> = None;
    for (from, to) in intervals {
        let from = end.map_or(from, |end| end.max(from));
        total += to.saturating_duration_since(from).as_secs_f64();
        end = Some(end.map_or(to, |end| end.max(to)));
    }
    total
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use pleach_model::object::Digest;

    use super::*;
    use crate::cli::format::samples;

    #[test]
    fn changes_of_nodes_are_left_out() {
        let mut plan = samples::plan(&[]);
        plan.steps.clear();
        let nodes = Op::UpgradeNode {
            content: Digest::of(b"x"),
            jobs: Vec::new(),
            driver: None,
        };
        for (position, op) in [nodes, Op::Pause, Op::Lift].into_iter().enumerate() {
            plan.steps.push(samples::step(position, "a", op));
        }
        let left_out: Vec<String> = without_unanswerable(&mut plan, &World::new(Vec::new()))
            .into_iter()
            .map(|it| it.what)
            .collect();
        let ops: Vec<&Op> = plan.steps.iter().map(|step| &step.op).collect();
        assert_eq!(ops, [&Op::Wait, &Op::Wait, &Op::Lift]);
        let text = |verb: &str| {
            format!("{verb} ConfigMap/web/a is not rehearsed: simulated nodes do not change")
        };
        assert_eq!(left_out, [text("upgrade"), text("pause")]);
    }

    #[test]
    fn overlapping_waits_count_once() {
        let start = Instant::now();
        let at = |seconds: u64| start + Duration::from_secs(seconds);
        for (intervals, expected) in [
            (vec![], 0.0),
            (vec![(0, 2), (1, 3)], 3.0),
            (vec![(5, 6), (0, 2)], 3.0),
            (vec![(0, 10), (1, 2), (3, 4)], 10.0),
        ] {
            let intervals = intervals.iter().map(|(from, to)| (at(*from), at(*to)));
            let found = covered(intervals.collect());
            assert!((found - expected).abs() < 0.001, "{found} {expected}");
        }
    }
}
