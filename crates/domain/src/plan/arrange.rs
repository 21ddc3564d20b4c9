//! Sorts the steps, gives them their final ids and refuses cycles.

use std::collections::BTreeMap;

use super::FORMAT;
use super::draft::{Ctx, Draft};
use super::model::{Direction, Op, Plan, Stage, Step, StepId};
use crate::finding::{Finding, Kind};
use crate::object::ObjectId;
use crate::order::{StageName, deletion_class, kind_rank};

/// Turns the draft into the plan.
pub(super) fn run(ctx: &Ctx<'_>, draft: Draft, direction: Direction) -> Plan {
    let Draft {
        changes,
        steps,
        mut findings,
        dropped,
        ..
    } = draft;
    let mut steps: Vec<Step> = steps
        .into_iter()
        .filter(|step| !dropped.contains(&step.id))
        .collect();
    let depth = depths(&steps);
    steps.sort_by_cached_key(|step| sort_key(step, &depth));
    let ids: BTreeMap<StepId, StepId> = steps
        .iter()
        .enumerate()
        .map(|(position, step)| (step.id, StepId(position)))
        .collect();
    for step in &mut steps {
        step.id = ids[&step.id];
        step.needs.retain(|edge| ids.contains_key(&edge.from));
        for edge in &mut step.needs {
            edge.from = ids[&edge.from];
        }
        step.needs.sort_by_key(|edge| edge.from);
    }
    findings.extend(find_cycle(&steps));
    findings.sort_by(|a, b| {
        (b.severity, &a.place, &a.object, &a.code).cmp(&(a.severity, &b.place, &b.object, &b.code))
    });
    findings.dedup();
    let installed = ctx
        .observed
        .installed
        .as_ref()
        .and_then(|installed| installed.installed.as_ref());
    Plan {
        format: FORMAT,
        release: ctx.desired.name.clone(),
        from: installed.map(|attempt| attempt.version.clone()),
        to: ctx.desired.version.clone(),
        direction,
        changes: changes.into_values().collect(),
        stages: stages(&steps),
        steps,
        overlays: Vec::new(),
        findings,
    }
}

type SortKey = (
    StageName,
    usize,
    usize,
    String,
    Option<String>,
    String,
    usize,
    usize,
);

/// Stage, place within it, kind order, namespace, name; deletions stand before
/// what else a stage does, barriers behind what they wait for.
fn sort_key(step: &Step, depth: &BTreeMap<StepId, usize>) -> SortKey {
    let ObjectId {
        group,
        kind,
        namespace,
        name,
    } = &step.object;
    let kind_id = step.object.group_kind();
    let is_barrier = step.until.is_none() && matches!(step.op, Op::Wait);
    let place = match step.stage {
        // Barriers of prune stand between the classes: by how much lies before them.
        StageName::Prune if is_barrier => depth.get(&step.id).copied().unwrap_or(0) + 1,
        StageName::Prune => depth.get(&step.id).copied().unwrap_or(0),
        _ if is_barrier => usize::MAX,
        // What goes is read before what comes.
        _ if matches!(step.op, Op::Delete(_)) => 0,
        _ => 1,
    };
    let rank = if step.stage == StageName::Prune {
        deletion_class(&kind_id) as usize
    } else {
        kind_rank(&kind_id)
    };
    let op = match step.op {
        Op::Delete(_) => 0,
        Op::Wait => 1,
        Op::Patch { .. } => 2,
        Op::Create { .. } | Op::Copy { .. } | Op::Migrate { .. } => 3,
        Op::Apply { .. } => 4,
    };
    (
        step.stage.clone(),
        place,
        rank,
        format!("{kind}.{group}"),
        namespace.clone(),
        name.clone(),
        op,
        step.id.0,
    )
}

/// The longest chain of prune steps before each prune step.
fn depths(steps: &[Step]) -> BTreeMap<StepId, usize> {
    let mut depths: BTreeMap<StepId, usize> = BTreeMap::new();
    // Prune steps and their joins are made class by class, in order.
    for step in steps.iter().filter(|step| step.stage == StageName::Prune) {
        depths.insert(step.id, 0);
    }
    loop {
        let mut changed = false;
        for step in steps.iter().filter(|step| step.stage == StageName::Prune) {
            let before = step
                .needs
                .iter()
                .filter_map(|edge| depths.get(&edge.from))
                .max();
            let depth = before.map_or(0, |depth| depth + 1);
            if depth <= steps.len() && depths.get(&step.id) != Some(&depth) {
                depths.insert(step.id, depth);
                changed = true;
            }
        }
        if !changed {
            return depths;
        }
    }
}

fn stages(steps: &[Step]) -> Vec<Stage> {
    let mut stages: Vec<Stage> = Vec::new();
    for step in steps {
        match stages.last_mut() {
            Some(stage) if stage.name == step.stage => stage.steps += 1,
            _ => stages.push(Stage {
                name: step.stage.clone(),
                steps: 1,
            }),
        }
    }
    stages
}

/// A cycle among the edges, as an error that prints its path.
fn find_cycle(steps: &[Step]) -> Option<Finding> {
    let mut open: Vec<usize> = steps.iter().map(|step| step.needs.len()).collect();
    let mut dependents: Vec<Vec<usize>> = vec![Vec::new(); steps.len()];
    for step in steps {
        for edge in &step.needs {
            dependents[edge.from.0].push(step.id.0);
        }
    }
    let mut ready: Vec<usize> = (0..steps.len()).filter(|index| open[*index] == 0).collect();
    while let Some(index) = ready.pop() {
        for &dependent in &dependents[index] {
            open[dependent] -= 1;
            if open[dependent] == 0 {
                ready.push(dependent);
            }
        }
    }
    let start = open.iter().position(|count| *count > 0)?;
    // Every step that is still open has an open predecessor: walking back must repeat one.
    let mut path = vec![start];
    loop {
        let current = path[path.len() - 1];
        let before = steps[current]
            .needs
            .iter()
            .map(|edge| edge.from.0)
            .find(|index| open[*index] > 0)?;
        if let Some(first) = path.iter().position(|index| *index == before) {
            let mut cycle: Vec<String> = path[first..]
                .iter()
                .rev()
                .map(|index| steps[*index].object.to_string())
                .collect();
            cycle.push(cycle[0].clone());
            cycle.dedup();
            return Some(
                Finding::error(
                    Kind::Repository,
                    "dependency-cycle",
                    format!("these objects wait for each other: {}", cycle.join(" -> ")),
                )
                .hint("remove one of the references or pleach.dev/after annotations between them"),
            );
        }
        path.push(before);
    }
}

#[cfg(test)]
mod tests {
    use jiff::SignedDuration;
    use serde_json::json;

    use super::*;
    use crate::inventory::{Entry, EntryState};
    use crate::observe::LiveMeta;
    use crate::plan::{Deletion, Propagation};

    fn step(id: usize, stage: StageName, kind: (&str, &str), op: Op) -> Step {
        Step {
            id: StepId(id),
            stage,
            object: ObjectId::new(kind.0, kind.1, Some("web"), "a"),
            op,
            needs: Vec::new(),
            require: Vec::new(),
            until: Some(crate::plan::Until::Absent { pods: None }),
            deadline: SignedDuration::from_secs(1),
            overlay: None,
            reason: String::new(),
        }
    }

    fn delete() -> Op {
        let entry = Entry {
            state: EntryState::Applied,
            uid: Some("uid".to_owned()),
            ..Entry::default()
        };
        let live = LiveMeta::read(&json!({ "uid": "uid" }), "pleach/test.web");
        Op::Delete(Deletion::of_member(&entry, &live, Propagation::Background).unwrap())
    }

    #[test]
    fn deletions_come_first_within_a_stage() {
        let barrier = Step {
            until: None,
            ..step(0, StageName::Workloads, ("pleach.dev", "Release"), Op::Wait)
        };
        let mut steps = [
            barrier,
            step(1, StageName::Workloads, ("apps", "Deployment"), Op::Wait),
            step(2, StageName::Workloads, ("batch", "Job"), delete()),
            step(3, StageName::Services, ("", "Service"), Op::Wait),
        ];
        steps.sort_by_cached_key(|step| sort_key(step, &BTreeMap::new()));
        assert_eq!(steps.map(|step| step.id.0), [3, 2, 1, 0]);
    }
}
