//! Effects on runtime objects, as far as they are known without a cluster.

use std::collections::{BTreeMap, BTreeSet};

use pleach_model::finding::{Finding, Kind};
use pleach_model::object::ObjectId;
use pleach_planner::plan::{Action, Desired, Plan};

/// Reports the effects on declared runtime objects, which no manifest contains.
///
/// Covers registrations whose Service is deleted, and leftovers in namespaces that the release
/// leaves. `base` is the release before the change.
pub fn run_time_objects(base: &Desired, plan: &Plan) -> Vec<Finding> {
    let registrations = registrations(base, plan);
    let leftovers = leftovers(base, plan);
    registrations.into_iter().chain(leftovers).collect()
}

fn note(message: String) -> Finding {
    Finding::note(Kind::Repository, "run-time-objects-unknown", message)
}

/// Returns the objects of a kind with an action.
fn of<'p>(
    plan: &'p Plan,
    kind: &'p str,
    action: Action,
) -> impl Iterator<Item = &'p ObjectId> + 'p {
    let changes = plan.changes.iter();
    changes
        .filter(move |change| change.action == action && change.object.is("", kind))
        .map(|change| &change.object)
}

fn registrations(base: &Desired, plan: &Plan) -> Vec<Finding> {
    let mut kinds: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for object in &base.runtime_objects {
        if let Some(service) = &object.service {
            kinds.entry(service).or_default().push(&object.kind);
        }
    }
    let removed = of(plan, "Service", Action::Delete);
    removed
        .filter_map(|service| {
            let kinds = kinds.get(service.name.as_str())?;
            let then = of(plan, "Service", Action::Create)
            .find(|id| id.name == service.name)
            .map_or_else(
                || "they are removed with it".to_owned(),
                |id| {
                    format!(
                        "they are removed before the new pods start, which create their own for {}",
                        place(id)
                    )
                },
            );
            Some(note(format!(
                "pods create {} that point at Service {}, and no manifest has them: {then}",
                list(kinds),
                place(service),
            )))
        })
        .collect()
}

fn leftovers(base: &Desired, plan: &Plan) -> Vec<Finding> {
    let names: Vec<String> = base
        .runtime_objects
        .iter()
        .filter_map(|object| Some(format!("{} {}", object.kind, object.name.as_ref()?)))
        .collect();
    if names.is_empty() {
        return Vec::new();
    }
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let namespaces = |includes: fn(Action) -> bool| -> BTreeSet<&str> {
        let changes = plan.changes.iter();
        changes
            .filter(|change| includes(change.action))
            .filter_map(|change| change.object.namespace.as_deref())
            .collect()
    };
    let left = namespaces(|action| action == Action::Delete);
    let remaining = namespaces(|action| action != Action::Delete);
    left.difference(&remaining)
        .map(|namespace| {
            note(format!(
                "if pods created {} in {namespace}, pleach removes them with the other objects that leave the namespace",
                list(&names)
            ))
        })
        .collect()
}

fn place(id: &ObjectId) -> String {
    let namespace = id.namespace.as_deref().unwrap_or_default();
    format!("{namespace}/{}", id.name)
}

/// Joins names: `a`, `a and b`, `a, b and c`.
fn list(names: &[&str]) -> String {
    match names {
        [] => String::new(),
        [one] => (*one).to_owned(),
        [first @ .., last] => format!("{} and {last}", first.join(", ")),
    }
}
