//! Picture of the steps of a plan.

use std::collections::{BTreeMap, BTreeSet};

use minijinja::{Value, context};

use super::{Page, text, words};
use crate::board::StepState;
use crate::facts::{PlanView, StepView};
use crate::graph::{Graph, MAX_NODES, Node};

impl Page<'_> {
    /// Draws the steps. Of a large plan it draws the stages, or the neighborhood of a step.
    pub(super) fn graph(&self, selected: Option<usize>) -> Value {
        let Some(plan) = self.facts().map(|facts| &facts.plan) else {
            return context! { graph => () };
        };
        if plan.stages.is_empty() {
            return context! { graph => () };
        }
        let steps = plan.stages.iter().flat_map(|stage| &stage.steps);
        let steps: Vec<&StepView> = steps.collect();
        let whole = self.steps(&steps);
        let selected = selected.filter(|id| steps.get(*id).is_some());
        let (graph, heading, explanation) = match selected {
            Some(id) if steps.len() > MAX_NODES => (
                whole.around(id),
                format!("Steps around step {id}"),
                format!(
                    "The nearest of {} steps. A step is right of the steps that it waits for.",
                    steps.len()
                ),
            ),
            _ if steps.len() <= MAX_NODES => (
                whole,
                "Steps of the plan".to_owned(),
                "A step is right of the steps that it waits for.".to_owned(),
            ),
            _ => (
                self.stages(plan),
                "Stages of the plan".to_owned(),
                format!(
                    "The plan has {} steps. A stage links to the steps around its first one.",
                    steps.len()
                ),
            ),
        };
        let rows: Vec<Value> = graph
            .nodes
            .iter()
            .enumerate()
            .map(|(index, node)| {
                let needs = graph.edges.iter().filter(|(_, to)| *to == index);
                let needs: Vec<&str> = needs.map(|(from, _)| &*graph.nodes[*from].label).collect();
                context! {
                    label => &node.label,
                    note => &node.note,
                    href => &node.href,
                    needs => needs.join("; "),
                }
            })
            .collect();
        context! {
            graph => text::value(graph.picture()),
            heading,
            explanation,
            rows,
        }
    }

    fn steps(&self, steps: &[&StepView]) -> Graph {
        let is_large = steps.len() > MAX_NODES;
        let nodes = steps.iter().map(|step| {
            let state = self
                .release
                .run
                .as_ref()
                .and_then(|run| run.steps.get(&step.id));
            let (class, note) = note(step, state);
            Node {
                label: format!("{} {}", step.verb, step.subject),
                note,
                class,
                href: Some(if is_large {
                    format!("{}/graph?node={}", self.base, step.id)
                } else {
                    format!("{}/plan#step-{}", self.base, step.id)
                }),
            }
        });
        let edges = steps.iter().enumerate().flat_map(|(to, step)| {
            let needs = step.needs.iter().filter(|from| **from < steps.len());
            needs.map(move |from| (*from, to))
        });
        Graph {
            nodes: nodes.collect(),
            edges: edges.collect(),
        }
    }

    /// Draws the stages with the number of their complete steps.
    fn stages(&self, plan: &PlanView) -> Graph {
        let mut stage_of = BTreeMap::new();
        for (index, stage) in plan.stages.iter().enumerate() {
            stage_of.extend(stage.steps.iter().map(|step| (step.id, index)));
        }
        let run = self.release.run.as_ref();
        let nodes = plan.stages.iter().map(|stage| {
            let done = stage.steps.iter().filter(|step| {
                run.is_some_and(|run| run.steps.get(&step.id) == Some(&StepState::Done))
            });
            let (done, all) = (done.count(), stage.steps.len());
            Node {
                label: stage.name.clone(),
                note: format!("{done} of {all} steps done"),
                class: if done == all { "ok" } else { "idle" },
                href: stage
                    .steps
                    .first()
                    .map(|step| format!("{}/graph?node={}", self.base, step.id)),
            }
        });
        let steps = plan.stages.iter().flat_map(|stage| &stage.steps);
        let edges: BTreeSet<(usize, usize)> = steps
            .flat_map(|step| step.needs.iter().map(move |from| (*from, step.id)))
            .filter_map(|(from, to)| Some((*stage_of.get(&from)?, *stage_of.get(&to)?)))
            .filter(|(from, to)| from != to)
            .collect();
        Graph {
            nodes: nodes.collect(),
            edges,
        }
    }
}

fn note(step: &StepView, state: Option<&StepState>) -> (&'static str, String) {
    match state {
        None => ("idle", format!("step {}", step.id)),
        Some(state) => {
            let (class, symbol, words) = words(state);
            (class, format!("step {} {symbol} {words}", step.id))
        }
    }
}
