//! Limits on the objects of an environment, independent of its branch.

use std::collections::BTreeSet;

use crate::plan::{Action, Op, Plan, Step};
use pleach_formats::file::{AllowList, ClusterScoped, NamedObjects};
use pleach_formats::gate::Gate;
use pleach_formats::sequence::Sequence;
use pleach_model::finding::{Finding, Kind};
use pleach_model::object::{ObjectId, Pattern, well_known_group};
use pleach_state::inventory::Store;
use pleach_state::overlay::OverlayId;

/// Namespaces and kinds that an environment is allowed to write.
#[derive(Debug, Clone)]
pub struct Allow {
    declared: AllowList,
    namespaces: Vec<Pattern>,
    cluster_scoped: Vec<Kinds>,
}

/// Cluster-scoped objects of one kind.
#[derive(Debug, Clone)]
struct Kinds {
    group: Option<String>,
    kind: String,
    /// Name patterns. `None` for all objects.
    names: Option<Vec<Pattern>>,
}

impl Kinds {
    fn new(declared: &ClusterScoped) -> Self {
        let group_of = |kind: &str| well_known_group(kind).map(str::to_owned);
        match declared {
            ClusterScoped::Kind(text) => {
                let (kind, group) = match text.split_once('.') {
                    Some((kind, group)) => (kind, Some(group.to_owned())),
                    None => (text.as_str(), group_of(text)),
                };
                Self {
                    group,
                    kind: kind.to_owned(),
                    names: None,
                }
            }
            ClusterScoped::Named(NamedObjects { kind, group, names }) => Self {
                group: group.clone().or_else(|| group_of(kind)),
                kind: kind.clone(),
                names: Some(names.iter().map(|name| Pattern::new(Some(name))).collect()),
            },
        }
    }

    /// Returns whether an object matches. If the group of the kind is unknown, no object matches.
    fn has(&self, id: &ObjectId) -> bool {
        self.kind == id.kind
            && self.group.as_ref() == Some(&id.group)
            && self.names.as_ref().is_none_or(|names| {
                let mut names = names.iter();
                names.any(|name| name.matches(Some(&id.name)))
            })
    }
}

impl Allow {
    /// Compiles the patterns.
    pub fn new(declared: &AllowList) -> Self {
        let namespaces = declared.namespaces.iter().flatten();
        let kinds = declared.cluster_scoped.iter().flatten();
        Self {
            declared: declared.clone(),
            namespaces: namespaces.map(|name| Pattern::new(Some(name))).collect(),
            cluster_scoped: kinds.map(Kinds::new).collect(),
        }
    }

    /// Returns the configured list.
    pub fn declared(&self) -> &AllowList {
        &self.declared
    }

    /// Returns whether the environment is allowed to write an object.
    pub fn permits(&self, id: &ObjectId) -> bool {
        if let Some(namespace) = &id.namespace {
            return self.permits_namespace(namespace);
        }
        self.cluster_scoped.iter().any(|kinds| kinds.has(id))
            // The Namespace object of a forbidden namespace is forbidden, too.
            && (!id.is("", "Namespace") || self.permits_namespace(&id.name))
    }

    /// Refuses changes of nodes if no node may be written. Runs before nodes and pods are read,
    /// because findings about them would disclose objects of other tenants.
    pub fn refuse_nodes(&self, sequence: &Sequence) -> Option<Finding> {
        let mut kinds = self.cluster_scoped.iter();
        let mut stages = sequence.stages.iter();
        let stage = stages.find(|stage| stage.nodes.is_some() || stage.preload.is_some())?;
        if kinds.any(|kinds| kinds.kind == "Node" && kinds.group.as_deref() == Some("")) {
            return None;
        }
        let message = format!(
            "stage {} changes nodes, and the controller is not allowed to write any for this environment",
            stage.stage
        );
        Some(refusal(&message).at(stage.origin.clone()))
    }

    fn permits_namespace(&self, namespace: &str) -> bool {
        self.namespaces
            .iter()
            .any(|pattern| pattern.matches(Some(namespace)))
    }

    /// Reports the objects of a plan that the environment is not allowed to write. Checks desired
    /// and pruned objects, but not skipped changes.
    pub fn check(&self, plan: &Plan) -> Vec<Finding> {
        let desired = plan
            .changes
            .iter()
            .filter(|change| change.action != Action::Skip)
            .map(|change| &change.object);
        let written = plan
            .steps
            .iter()
            // A plan ends by waiting for the Release, which is not written.
            .filter(|step| !(step.object.is("pleach.dev", "Release") && step.op == Op::Wait))
            .filter(|step| !self.is_gate_over_own(plan, step))
            .map(|step| &step.object);
        let jobs = plan.steps.iter().flat_map(|step| match &step.op {
            Op::UpgradeNode { jobs, .. } => jobs.as_slice(),
            Op::Preload { job, .. } => job.as_slice(),
            Op::CleanNode { job, .. } => std::slice::from_ref(job),
            _ => &[],
        });
        let drivers = plan.steps.iter().filter_map(|step| match &step.op {
            Op::UpgradeNode { driver, .. } => driver.as_ref(),
            _ => None,
        });
        let hooks = drivers.clone().map(|driver| &driver.hooks);
        let pods = plan.steps.iter().filter_map(|step| match &step.op {
            Op::Preload { namespace, .. } => {
                let namespace = namespace.as_deref()?;
                Some(ObjectId::new("", "Pod", Some(namespace), "preload"))
            }
            _ => None,
        });
        let pods: BTreeSet<ObjectId> = pods.collect();
        let mut refusals =
            self.refuse(desired.chain(written).chain(jobs).chain(hooks).chain(&pods));
        // The source of a copy is read with the permissions of the controller.
        let copied = plan.steps.iter().filter_map(|step| match &step.op {
            Op::Copy { from, .. } => Some(from),
            _ => None,
        });
        let copied: BTreeSet<&ObjectId> = copied.filter(|from| !self.permits(from)).collect();
        refusals.extend(copied.into_iter().map(|from| {
            refusal("the controller is not allowed to copy from it for this environment")
                .on(from.clone())
        }));
        let nodes = drivers.map(|driver| &driver.nodes);
        let nodes: BTreeSet<&ObjectId> = nodes.filter(|nodes| !self.permits(nodes)).collect();
        refusals.extend(nodes.into_iter().map(|nodes| {
            refusal("the controller is not allowed to read it for this environment (`driver`)")
                .on(nodes.clone())
        }));
        refusals
    }

    /// Returns whether a step closes or lifts a gate that covers only the release's own kinds. The
    /// release must define them and be allowed to.
    ///
    /// A patch of a policy never counts as a gate.
    fn is_gate_over_own(&self, plan: &Plan, step: &Step) -> bool {
        let gate = match &step.op {
            Op::Close { gate } => Some(gate),
            Op::Lift => plan
                .overlay_of(step)
                .and_then(|overlay| overlay.content.gate()),
            _ => None,
        };
        gate.is_some_and(|gate| {
            let policy = gate.id();
            gate.release == plan.release
                && step.object == policy
                && step.overlay == Some(OverlayId::of_gate(&gate.name, &policy))
                && self.closes_own(plan, gate)
        })
    }

    /// Returns whether a gate covers at least one kind, and the release defines all of its kinds
    /// and is allowed to. A CRD that the plan skips or cannot apply does not count, because it
    /// could belong to another release.
    fn closes_own(&self, plan: &Plan, gate: &Gate) -> bool {
        let defines = |group: &str, plural: &str| {
            let name = format!("{plural}.{group}");
            plan.changes.iter().any(|change| {
                let id = &change.object;
                !matches!(change.action, Action::Blocked | Action::Skip)
                    && id.is("apiextensions.k8s.io", "CustomResourceDefinition")
                    && id.name == name
                    && self.permits(id)
            })
        };
        !gate.closed.is_empty()
            && gate.closed.iter().all(|closed| {
                !closed.groups.is_empty()
                    && !closed.resources.is_empty()
                    && closed.groups.iter().all(|group| {
                        let mut plurals = closed.resources.iter();
                        plurals.all(|plural| defines(group, plural))
                    })
            })
    }

    /// Refuses to store state in a forbidden namespace.
    pub fn refuse_store(&self, store: &Store) -> Option<Finding> {
        match store {
            // The controller stores its own state there.
            Store::Release => None,
            Store::ConfigMap { namespace } if self.permits_namespace(namespace) => None,
            Store::ConfigMap { namespace } => Some(refusal(format!(
                "state is kept in namespace {namespace} (`state` in the environment file), where the controller is not allowed to write for this environment"
            ))),
        }
    }

    /// Refuses to read the readiness of a forbidden object. Otherwise a branch could read it with
    /// the controller's permissions.
    pub fn refuse_needed(&self, object: &ObjectId) -> Option<Finding> {
        (!self.permits(object)).then(|| {
            refusal("the controller is not allowed to read it for this environment (`dependsOn`)")
                .on(object.clone())
        })
    }

    /// Reports the objects that the environment is not allowed to write.
    pub fn refuse<'a>(&self, objects: impl IntoIterator<Item = &'a ObjectId>) -> Vec<Finding> {
        let objects = objects.into_iter();
        let refused: BTreeSet<&ObjectId> = objects.filter(|id| !self.permits(id)).collect();
        refused
            .into_iter()
            .map(|id| {
                refusal("the controller is not allowed to write to it for this environment")
                    .on(id.clone())
            })
            .collect()
    }
}

fn refusal(message: impl Into<String>) -> Finding {
    Finding::error(Kind::Policy, "not-allowed", message).hint(
        "`allow` in the controller's configuration sets these limits; no branch can extend them",
    )
}

#[cfg(test)]
mod tests;
