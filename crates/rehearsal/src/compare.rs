//! Comparison of two plans by their effects.

use std::collections::BTreeSet;
use std::fmt;

use pleach_model::object::{Digest, ObjectId};
use pleach_planner::plan::Plan;

/// Effect of a step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Effect {
    /// The object.
    pub object: ObjectId,
    /// Stage of the step.
    pub stage: String,
    /// Operation, in one word.
    pub operation: String,
    /// Digest of the whole effect. `None` for an object whose content was redacted.
    digest: Option<Digest>,
}

/// First step in which two plans differ.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Difference {
    /// Number of the step, from 1.
    pub step: usize,
    /// Effect in the plan for the cluster; `None`: the plan ends before.
    pub expected: Option<Effect>,
    /// Effect in the plan for the copy; `None`: the plan ends before.
    pub found: Option<Effect>,
}

/// Returns the effects of a plan in its order. The content of `redacted` objects is left out.
pub fn effects(plan: &Plan, redacted: &BTreeSet<ObjectId>) -> Vec<Effect> {
    plan.effects_by_step()
        .into_iter()
        .map(|(step, digest)| Effect {
            object: step.object.clone(),
            stage: step.stage.to_string(),
            operation: operation(&step.op),
            digest: (!redacted.contains(&step.object)).then_some(digest),
        })
        .collect()
}

/// Returns the name of an operation, as in a plan file.
fn operation(op: &pleach_planner::plan::Op) -> String {
    let written = serde_json::to_value(op).unwrap_or_default();
    let name = match &written {
        serde_json::Value::String(name) => Some(name.as_str()),
        serde_json::Value::Object(map) => map
            .get("op")
            .or_else(|| map.get("kind"))
            .and_then(|it| it.as_str())
            .or_else(|| map.keys().next().map(String::as_str)),
        _ => None,
    };
    name.unwrap_or("change").to_owned()
}

/// Returns the first difference; `None` if both plans have the same effects.
pub fn first_difference(expected: &[Effect], found: &[Effect]) -> Option<Difference> {
    (0..expected.len().max(found.len())).find_map(|index| {
        let (expected, found) = (expected.get(index), found.get(index));
        (expected != found).then(|| Difference {
            step: index + 1,
            expected: expected.cloned(),
            found: found.cloned(),
        })
    })
}

impl fmt::Display for Effect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} of {} in stage {}",
            self.operation, self.object, self.stage
        )
    }
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "step {}: ", self.step)?;
        match (&self.expected, &self.found) {
            (Some(expected), Some(found)) if expected.to_string() == found.to_string() => {
                write!(f, "{expected} has other content on the copy")
            }
            (Some(expected), Some(found)) => {
                write!(f, "{expected} on the cluster, {found} on the copy")
            }
            (Some(expected), None) => write!(f, "{expected} only on the cluster"),
            (None, Some(found)) => write!(f, "{found} only on the copy"),
            (None, None) => write!(f, "none"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn effect(name: &str, content: Option<&str>) -> Effect {
        Effect {
            object: ObjectId::new("", "ConfigMap", Some("web"), name),
            stage: "config".to_owned(),
            operation: "apply".to_owned(),
            digest: content.map(|it| Digest::of(it.as_bytes())),
        }
    }

    #[test]
    fn the_first_difference_is_named() {
        let (a, b) = (effect("a", Some("1")), effect("b", None));
        for (case, expected, found, text) in [
            (
                "equal",
                vec![a.clone(), b.clone()],
                vec![a.clone(), b.clone()],
                None,
            ),
            (
                "shorter",
                vec![a.clone(), b.clone()],
                vec![a.clone()],
                Some("step 2: apply of ConfigMap/web/b in stage config only on the cluster"),
            ),
            (
                "longer",
                vec![],
                vec![a.clone()],
                Some("step 1: apply of ConfigMap/web/a in stage config only on the copy"),
            ),
            (
                "content",
                vec![a.clone()],
                vec![effect("a", Some("2"))],
                Some(
                    "step 1: apply of ConfigMap/web/a in stage config has other content on the copy",
                ),
            ),
            (
                "order",
                vec![a.clone(), b.clone()],
                vec![b, a],
                Some(
                    "step 1: apply of ConfigMap/web/a in stage config on the cluster, apply of ConfigMap/web/b in stage config on the copy",
                ),
            ),
        ] {
            let difference = first_difference(&expected, &found);
            assert_eq!(
                difference.map(|it| it.to_string()).as_deref(),
                text,
                "{case}"
            );
        }
    }
}
