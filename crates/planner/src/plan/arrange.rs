//! Sorts the steps, assigns their final ids and refuses cycles.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};

use super::draft::{Ctx, Draft};
use super::model::{Action, Change, Edge, Op, Plan, Stage, Step, StepId};
use pleach_model::finding::{Finding, Kind};
use pleach_model::object::ObjectId;
use pleach_model::order::{Direction, StageName, kind_rank};

/// Converts the draft into the plan.
pub(super) fn run(ctx: &Ctx<'_>, draft: Draft, direction: Direction) -> Plan {
    let Draft {
        mut changes,
        mut steps,
        mut findings,
        dropped,
        mut overlays,
        overrides,
        budget,
        ..
    } = draft;
    if let Some(refusal) = budget.refusal() {
        // The draft is incomplete, so none of it is used.
        changes.clear();
        steps.clear();
        overlays.clear();
        findings.push(refusal);
    }
    let steps = without(steps, &dropped);
    let steps = number(match direction {
        Direction::Forward => in_order(steps),
        Direction::Reverse => in_reverse_order(steps, &changes),
    });
    findings.extend(find_cycle(&steps));
    findings.sort_by(|a, b| {
        (b.severity, &a.place, &a.object, &a.code, &a.message)
            .cmp(&(a.severity, &b.place, &b.object, &b.code, &b.message))
    });
    findings.dedup();
    let installed = ctx
        .observed
        .installed
        .as_ref()
        .and_then(|installed| installed.installed.as_ref());
    Plan {
        from: installed.map(|attempt| attempt.version.clone()),
        direction,
        changes: changes.into_values().collect(),
        stages: stages(&steps),
        steps,
        overlays,
        assigned: ctx
            .assigned
            .iter()
            .map(|(id, stage)| ((*id).clone(), stage.clone()))
            .collect(),
        overrides,
        findings,
        ..Plan::new(ctx.desired.name.clone(), &ctx.desired.version)
    }
}

/// Removes dropped steps and the edges from them. Of several edges between two
/// steps, keeps the strongest.
fn without(steps: Vec<Step>, dropped: &BTreeSet<StepId>) -> Vec<Step> {
    steps
        .into_iter()
        .filter(|step| !dropped.contains(&step.id))
        .map(|mut step| {
            step.needs.retain(|edge| !dropped.contains(&edge.from));
            step.needs
                .sort_by_key(|edge| (edge.from, Reverse(edge.state)));
            step.needs.dedup_by_key(|edge| edge.from);
            step
        })
        .collect()
}

/// Sorts by stage, and within a stage by dependencies, then by kind order,
/// namespace and name.
fn in_order(mut steps: Vec<Step>) -> Vec<Step> {
    steps.sort_by_cached_key(sort_key);
    let positions: BTreeMap<StepId, usize> = steps
        .iter()
        .enumerate()
        .map(|(position, step)| (step.id, position))
        .collect();
    let same_stage = |edge: &Edge, step: &Step| {
        let from = positions[&edge.from];
        (steps[from].stage == step.stage).then_some(from)
    };
    let mut graph = Graph::new(steps.len());
    for (to, step) in steps.iter().enumerate() {
        for from in step.needs.iter().filter_map(|edge| same_stage(edge, step)) {
            graph.edge(from, to);
        }
    }
    // Steps of a cycle come last in their stage, in sort order.
    let (mut order, cyclic) = graph.sorted();
    order.extend(cyclic);
    let mut ranks: Vec<usize> = vec![0; order.len()];
    for (rank, position) in order.into_iter().enumerate() {
        ranks[position] = rank;
    }
    let mut placed: Vec<(StageName, usize, Step)> = steps
        .into_iter()
        .zip(ranks)
        .map(|(step, rank)| (step.stage.clone(), rank, step))
        .collect();
    placed.sort_by(|a, b| (&a.0, a.1).cmp(&(&b.0, b.1)));
    let steps: Vec<Step> = placed.into_iter().map(|(_, _, step)| step).collect();
    if needs_a_later_stage(&steps) {
        return by_needs(steps);
    }
    steps
}

/// Returns whether a step needs a step of a later stage. This happens if a
/// bundle assigns a dependency to a later stage.
fn needs_a_later_stage(steps: &[Step]) -> bool {
    let stages: BTreeMap<StepId, &StageName> =
        steps.iter().map(|step| (step.id, &step.stage)).collect();
    steps.iter().any(|step| {
        let mut needs = step.needs.iter();
        needs.any(|edge| *stages[&edge.from] > step.stage)
    })
}

/// Sorts the steps of a downgrade: by reverse position, and by dependencies
/// across all stages.
fn in_reverse_order(steps: Vec<Step>, changes: &BTreeMap<ObjectId, Change>) -> Vec<Step> {
    let mut placed: Vec<(usize, Step)> = steps
        .into_iter()
        .map(|step| {
            let change = changes.get(&step.object);
            let exists = change.is_some_and(|change| change.action == Action::Update);
            (downgrade_position(&step, exists), step)
        })
        .collect();
    placed.sort_by_cached_key(|(position, step)| (*position, sort_key(step)));
    by_needs(placed.into_iter().map(|(_, step)| step).collect())
}

/// Moves steps after the steps they need, across all stages, and otherwise
/// keeps the order.
fn by_needs(steps: Vec<Step>) -> Vec<Step> {
    let positions: BTreeMap<StepId, usize> = steps
        .iter()
        .enumerate()
        .map(|(position, step)| (step.id, position))
        .collect();
    let mut graph = Graph::new(steps.len());
    for (to, step) in steps.iter().enumerate() {
        for edge in &step.needs {
            graph.edge(positions[&edge.from], to);
        }
    }
    let (order, cyclic) = graph.sorted();
    let mut steps: Vec<Option<Step>> = steps.into_iter().map(Some).collect();
    order
        .into_iter()
        .chain(cyclic)
        .filter_map(|position| steps[position].take())
        .collect()
}

/// Returns the position of a step in a downgrade. New objects come first
/// because others need them. Existing objects change in the reverse of the
/// forward order.
fn downgrade_position(step: &Step, exists: bool) -> usize {
    let is_crd = step
        .object
        .is("apiextensions.k8s.io", "CustomResourceDefinition");
    match (&step.stage, exists) {
        (StageName::Preflight, _) => 0,
        (StageName::Gates, _) => 1,
        (StageName::Definitions, true) if is_crd => 9,
        (StageName::Definitions, _) => 2,
        (StageName::Access, _) => 3,
        (StageName::Config, _) => 4,
        (StageName::Services, _) => 5,
        (StageName::Resources, true) => 6,
        (StageName::Registrations, true) => 7,
        (StageName::Workloads | StageName::Declared(_), _) => 8,
        (StageName::Registrations, false) => 10,
        (StageName::Resources, false) => 11,
        (StageName::Verify, _) => 12,
        (StageName::Ungate, _) => 13,
        (StageName::Prune, _) => 14,
        (StageName::Shrink, _) => 15,
    }
}

/// Returns the sort key: stage, kind order, namespace and name. The steps of
/// one object sort as deletion, wait, patch, apply.
fn sort_key(
    step: &Step,
) -> (
    StageName,
    usize,
    String,
    Option<String>,
    String,
    usize,
    StepId,
) {
    let kind = step.object.group_kind();
    let op = match step.op {
        Op::Delete(_) => 0,
        Op::Wait => 1,
        Op::Own(_) | Op::Patch { .. } => 2,
        Op::Create { .. }
        | Op::Copy { .. }
        | Op::Migrate { .. }
        | Op::UpgradeNode { .. }
        | Op::Preload { .. }
        | Op::RememberImages { .. }
        | Op::CleanNode { .. }
        | Op::Set { .. }
        | Op::Close { .. } => 3,
        Op::Apply { .. } | Op::Pause => 4,
        Op::Restart { .. } | Op::Replace { .. } => 5,
        Op::Lift => 6,
    };
    (
        step.stage.clone(),
        kind_rank(&kind),
        kind.to_string(),
        step.object.namespace.clone(),
        step.object.name.clone(),
        op,
        step.id,
    )
}

/// Sets the id of every step to its position.
fn number(mut steps: Vec<Step>) -> Vec<Step> {
    let ids: BTreeMap<StepId, StepId> = steps
        .iter()
        .enumerate()
        .map(|(position, step)| (step.id, StepId(position)))
        .collect();
    for step in &mut steps {
        step.id = ids[&step.id];
        for edge in &mut step.needs {
            edge.from = ids[&edge.from];
        }
        step.needs.sort_by_key(|edge| edge.from);
    }
    steps
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

/// Dependency graph of steps, by position.
struct Graph {
    later: Vec<Vec<usize>>,
    /// Number of unsorted predecessors per position.
    open: Vec<usize>,
}

impl Graph {
    fn new(size: usize) -> Self {
        Self {
            later: vec![Vec::new(); size],
            open: vec![0; size],
        }
    }

    fn edge(&mut self, from: usize, to: usize) {
        self.later[from].push(to);
        self.open[to] += 1;
    }

    /// Sorts topologically; of several candidates the lowest position comes
    /// first. The second list has the positions that are in a cycle or behind
    /// one.
    fn sorted(mut self) -> (Vec<usize>, Vec<usize>) {
        let mut sorted = Vec::new();
        let free = |open: &[usize], position: &usize| open[*position] == 0;
        let mut ready: BinaryHeap<Reverse<usize>> = (0..self.open.len())
            .filter(|position| free(&self.open, position))
            .map(Reverse)
            .collect();
        while let Some(Reverse(position)) = ready.pop() {
            sorted.push(position);
            for &later in &self.later[position] {
                self.open[later] -= 1;
                if free(&self.open, &later) {
                    ready.push(Reverse(later));
                }
            }
        }
        let cyclic = (0..self.open.len())
            .filter(|position| !free(&self.open, position))
            .collect();
        (sorted, cyclic)
    }
}

/// Returns an error with the path of a cycle among the edges, if there is one.
fn find_cycle(steps: &[Step]) -> Option<Finding> {
    let mut graph = Graph::new(steps.len());
    for step in steps {
        for edge in &step.needs {
            graph.edge(edge.from.0, step.id.0);
        }
    }
    let (_, cyclic) = graph.sorted();
    let open: BTreeSet<usize> = cyclic.into_iter().collect();
    // Every open step has an open predecessor, so walking back must repeat a
    // step.
    let mut path = vec![*open.first()?];
    loop {
        let current = path[path.len() - 1];
        let mut before = steps[current].needs.iter().map(|edge| edge.from.0);
        let before = before.find(|position| open.contains(position))?;
        if let Some(first) = path.iter().position(|position| *position == before) {
            return Some(cycle(steps, &path[first..]));
        }
        path.push(before);
    }
}

fn cycle(steps: &[Step], backwards: &[usize]) -> Finding {
    let mut objects: Vec<String> = backwards
        .iter()
        .rev()
        .map(|position| steps[*position].object.to_string())
        .collect();
    objects.push(objects[0].clone());
    objects.dedup();
    Finding::error(
        Kind::Repository,
        "dependency-cycle",
        format!(
            "these objects wait for each other: {}",
            objects.join(" -> ")
        ),
    )
    .hint("remove one of the references or pleach.dev/after annotations between them")
}
