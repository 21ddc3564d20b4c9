//! What an environment may hold, whatever its branch says.

use std::collections::BTreeSet;

use crate::finding::{Finding, Kind};
use crate::gate::{self, Gate};
use crate::inventory::Store;
use crate::object::ObjectId;
use crate::plan::{Action, Op, Plan};
use crate::repo::format::AllowList;
use crate::repo::selector::{Pattern, well_known_group};

/// The namespaces and kinds that may be written to.
#[derive(Debug, Clone)]
pub struct Allow {
    said: AllowList,
    namespaces: Vec<Pattern>,
    cluster_scoped: Vec<(Option<String>, String)>,
}

impl Allow {
    /// Compiles the patterns.
    pub fn new(said: &AllowList) -> Self {
        let namespaces = said.namespaces.iter().flatten();
        let kinds = said.cluster_scoped.iter().flatten();
        Self {
            said: said.clone(),
            namespaces: namespaces.map(|name| Pattern::new(Some(name))).collect(),
            cluster_scoped: kinds
                .map(|kind| match kind.split_once('.') {
                    Some((kind, group)) => (Some(group.to_owned()), kind.to_owned()),
                    None => (well_known_group(kind).map(str::to_owned), kind.clone()),
                })
                .collect(),
        }
    }

    /// What it was made from.
    pub fn said(&self) -> &AllowList {
        &self.said
    }

    /// Whether an object may be written to.
    pub fn permits(&self, id: &ObjectId) -> bool {
        if let Some(namespace) = &id.namespace {
            return self.permits_namespace(namespace);
        }
        // A kind of an unknown group is meant in no group by accident.
        let is_kind = |(group, kind): &(Option<String>, String)| {
            *kind == id.kind && group.as_ref() == Some(&id.group)
        };
        self.cluster_scoped.iter().any(is_kind)
            // A namespace of others is theirs also as an object.
            && (!id.is("", "Namespace") || self.permits_namespace(&id.name))
    }

    fn permits_namespace(&self, namespace: &str) -> bool {
        self.namespaces
            .iter()
            .any(|pattern| pattern.matches(Some(namespace)))
    }

    /// Refuses what a plan holds beside that: what git wants, and what would be
    /// pruned. What is left alone on purpose is nobody's concern.
    pub fn check(&self, plan: &Plan) -> Vec<Finding> {
        let wanted = plan
            .changes
            .iter()
            .filter(|change| change.action != Action::Skip)
            .map(|change| &change.object);
        let written = plan
            .steps
            .iter()
            // What the steps of a release wait for in the end is no object at all.
            .filter(|step| !(step.object.is("pleach.dev", "Release") && step.op == Op::Wait))
            .filter(|step| !self.is_gate_over_own(plan, &step.object))
            .map(|step| &step.object);
        let mut refusals = self.refuse(wanted.chain(written));
        // What is copied is read with the rights of the loop.
        let copied = plan.steps.iter().filter_map(|step| match &step.op {
            Op::Copy { from, .. } => Some(from),
            _ => None,
        });
        let copied: BTreeSet<&ObjectId> = copied.filter(|from| !self.permits(from)).collect();
        refusals.extend(copied.into_iter().map(|from| {
            refusal("the loop may not copy from it for this environment").on(from.clone())
        }));
        refusals
    }

    /// Whether an object is a gate of the plan that closes nothing but kinds which the
    /// release defines, and may: it keeps users from objects that nobody answers for
    /// yet, and from nothing of anybody else's.
    fn is_gate_over_own(&self, plan: &Plan, object: &ObjectId) -> bool {
        let mut gates = plan.overlays.iter();
        let gate = gates.find(|one| one.object == *object && gate::is_policy(&one.object));
        let gate = gate.and_then(|one| serde_json::from_value::<Gate>(one.patch.0.clone()).ok());
        let defines = |group: &str, plural: &str| {
            let name = format!("{plural}.{group}");
            plan.changes.iter().any(|change| {
                let id = &change.object;
                id.is("apiextensions.k8s.io", "CustomResourceDefinition")
                    && id.name == name
                    && self.permits(id)
            })
        };
        gate.is_some_and(|gate| {
            gate.closed.iter().all(|closed| {
                let groups = closed.groups.iter();
                groups.into_iter().all(|group| {
                    let mut plurals = closed.resources.iter();
                    plurals.all(|plural| defines(group, plural))
                })
            })
        })
    }

    /// Refuses to keep state in a namespace that may not be written to.
    pub fn refuse_store(&self, store: &Store) -> Option<Finding> {
        match store {
            // The loop keeps its own state there.
            Store::Release => None,
            Store::ConfigMap { namespace } if self.permits_namespace(namespace) => None,
            Store::ConfigMap { namespace } => Some(refusal(format!(
                "state is kept in namespace {namespace} (`state` in the environment file), and the loop may not write there for this environment"
            ))),
        }
    }

    /// Refuses to look whether an object is ready that may not be written to: a
    /// branch could ask for it, with the rights of the loop, as often as it likes.
    pub fn refuse_needed(&self, object: &ObjectId) -> Option<Finding> {
        (!self.permits(object)).then(|| {
            refusal("the loop may not read it for this environment (`dependsOn`)")
                .on(object.clone())
        })
    }

    /// Refuses what may not be written to.
    pub fn refuse<'a>(&self, objects: impl IntoIterator<Item = &'a ObjectId>) -> Vec<Finding> {
        let objects = objects.into_iter();
        let refused: BTreeSet<&ObjectId> = objects.filter(|id| !self.permits(id)).collect();
        refused
            .into_iter()
            .map(|id| refusal("the loop may not write to it for this environment").on(id.clone()))
            .collect()
    }
}

fn refusal(message: impl Into<String>) -> Finding {
    Finding::error(Kind::Policy, "not-allowed", message)
        .hint("`allow` in the configuration of the loop says what it may; no branch can widen it")
}

#[cfg(test)]
mod tests;
