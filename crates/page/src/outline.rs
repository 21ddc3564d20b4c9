//! Outlines of plans, to compare the plan that a user saw with the present one.

use std::collections::{BTreeMap, BTreeSet};

use pleach_model::object::Digest;
use pleach_planner::plan::Plan;
use serde::Serialize;

use crate::facts::{StageView, text};

/// Maximum number of rows.
const ROWS: usize = 1_500;

/// Effects of a plan, as far as its approval covers them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Outline {
    /// Digest of the effects.
    pub effects: String,
    /// The first effects, in order of the plan.
    pub rows: Vec<OutlineRow>,
}

/// One effect.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OutlineRow {
    /// The object.
    pub object: String,
    /// Verb and stage.
    pub step: String,
    /// Digest of object, operation, body and stage.
    pub effect: Digest,
}

/// Difference between two plans.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Deviation {
    /// `new`, `gone` or `changed`.
    pub kind: &'static str,
    /// The object.
    pub object: String,
    /// Its steps in the first plan, or empty.
    pub before: String,
    /// Its steps in the second plan, or empty.
    pub now: String,
}

impl Outline {
    /// Outlines the first steps of a plan. `stages` are those of its view.
    pub(crate) fn of(plan: &Plan, stages: &[StageView]) -> Self {
        let verbs: BTreeMap<usize, &str> = stages
            .iter()
            .flat_map(|stage| &stage.steps)
            .map(|step| (step.id, step.verb.as_str()))
            .collect();
        let effects = plan.effects_by_step().into_iter().take(ROWS);
        let rows = effects.map(|(step, effect)| {
            let verb = verbs.get(&step.id.0).copied().unwrap_or_default();
            OutlineRow {
                object: text(&step.object.to_string()),
                step: format!("{verb} in stage {}", step.stage),
                effect,
            }
        });
        Self {
            effects: plan.effects().to_string(),
            rows: rows.collect(),
        }
    }

    /// Returns the effects of each object.
    fn by_object(&self) -> BTreeMap<&str, BTreeSet<(&Digest, &str)>> {
        let mut objects: BTreeMap<&str, BTreeSet<(&Digest, &str)>> = BTreeMap::new();
        for row in &self.rows {
            let effects = objects.entry(&row.object).or_default();
            effects.insert((&row.effect, &row.step));
        }
        objects
    }

    /// Returns the differences to a later plan, in order of the objects.
    pub fn compare(&self, now: &Self) -> Vec<Deviation> {
        let (mut before, now) = (self.by_object(), now.by_object());
        let mut deviations = Vec::new();
        for (object, effects) in now {
            let known = before.remove(object).unwrap_or_default();
            if known != effects {
                deviations.push(deviation(object, &known, &effects));
            }
        }
        let gone = before.iter();
        deviations.extend(gone.map(|(object, known)| deviation(object, known, &BTreeSet::new())));
        deviations.sort_by(|one, other| one.object.cmp(&other.object));
        deviations
    }
}

fn deviation(
    object: &str,
    before: &BTreeSet<(&Digest, &str)>,
    now: &BTreeSet<(&Digest, &str)>,
) -> Deviation {
    let steps = |effects: &BTreeSet<(&Digest, &str)>| {
        let steps: BTreeSet<&str> = effects.iter().map(|(_, step)| *step).collect();
        Vec::from_iter(steps).join(", ")
    };
    let (before_steps, now_steps) = (steps(before), steps(now));
    let has_same_steps = before_steps == now_steps;
    Deviation {
        kind: match (before.is_empty(), now.is_empty()) {
            (true, _) => "new",
            (_, true) => "gone",
            _ => "changed",
        },
        object: object.to_owned(),
        before: before_steps,
        now: if has_same_steps {
            format!("{now_steps}, with another content")
        } else {
            now_steps
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outline(rows: &[(&str, &str, &str)]) -> Outline {
        let rows = rows.iter().map(|(object, step, body)| OutlineRow {
            object: (*object).to_owned(),
            step: (*step).to_owned(),
            effect: Digest::of(body.as_bytes()),
        });
        Outline {
            effects: String::new(),
            rows: rows.collect(),
        }
    }

    #[test]
    fn objects_of_two_plans_are_compared() {
        let before = outline(&[
            ("Deployment shop/web", "update in stage workloads", "1"),
            ("ConfigMap shop/a", "create in stage config", "1"),
            ("ConfigMap shop/b", "update in stage config", "1"),
            ("Service shop/web", "update in stage workloads", "1"),
        ]);
        let now = outline(&[
            ("ConfigMap shop/b", "update in stage config", "1"),
            ("Deployment shop/web", "update in stage workloads", "2"),
            ("Service shop/web", "delete in stage prune", "1"),
            ("Secret shop/key", "create in stage config", "1"),
        ]);
        let found = before.compare(&now);
        let found: Vec<[&str; 4]> = found
            .iter()
            .map(|one| [one.kind, &*one.object, &*one.before, &*one.now])
            .collect();
        let update = "update in stage workloads";
        let expected = [
            ["gone", "ConfigMap shop/a", "create in stage config", ""],
            [
                "changed",
                "Deployment shop/web",
                update,
                "update in stage workloads, with another content",
            ],
            ["new", "Secret shop/key", "", "create in stage config"],
            [
                "changed",
                "Service shop/web",
                update,
                "delete in stage prune",
            ],
        ];
        assert_eq!(found, expected);
        assert!(before.compare(&before).is_empty());
    }
}
