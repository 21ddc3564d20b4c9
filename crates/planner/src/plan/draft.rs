//! Input and output of the planner passes.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use super::budget::Budget;
use super::deletion::Member;
use super::model::{
    Action, Change, Desired, Edge, EdgeReason, Need, Op, Overlay, Policy, Precondition, Step,
    StepId, Until,
};
use super::{Deletion, Removal};
use crate::observe::Observed;
use pleach_fields::diff::ownership::FieldSet;
use pleach_formats::sequence::Sequence;
use pleach_model::finding::Finding;
use pleach_model::object::{ApiVersion, GroupKind, Gvk, Manifest, ObjectId, ServiceRef};
use pleach_model::order::{DefinedKind, Facts, StageName, defined_kinds, stage_of};
use pleach_state::inventory::{Entry, Inventory, Override};
use pleach_state::live::LiveMeta;

/// Input of every pass.
pub(super) struct Ctx<'a> {
    pub(super) desired: &'a Desired,
    pub(super) observed: &'a Observed,
    pub(super) policy: &'a Policy,
    /// Set if the plan uninstalls the release.
    pub(super) removal: Option<&'a Removal>,
    /// Label value of the release's members.
    pub(super) apply_set: String,
    /// Our field manager.
    pub(super) manager: String,
    pub(super) manifests: BTreeMap<&'a ObjectId, &'a Manifest>,
    pub(super) facts: BTreeMap<&'a ObjectId, &'a Facts>,
    /// Kinds whose CRD is part of the release.
    pub(super) defined: BTreeSet<GroupKind>,
    /// Recorded objects that git does not contain, sorted.
    pub(super) left: Vec<(&'a ObjectId, &'a Entry)>,
    /// Desired objects, sorted by kind (without its group), name and id.
    by_name: Vec<&'a ObjectId>,
    /// Names of the namespaces that are being deleted.
    terminating: BTreeSet<&'a str>,
    /// Desired workloads with long-running pods, by namespace.
    workloads: BTreeMap<&'a str, Vec<&'a ObjectId>>,
    /// The same workloads by namespace and by each pod label, as `key=value`.
    labeled: BTreeMap<&'a str, BTreeMap<String, Vec<&'a ObjectId>>>,
    /// CRDs of the release, by the kind they define.
    crds: BTreeMap<GroupKind, &'a ObjectId>,
    /// APIServices of the release, by the group-version they register.
    apis: BTreeMap<ApiVersion, &'a ObjectId>,
    /// Workloads behind the Services that objects of the release reference.
    backends: BTreeMap<ServiceRef, Vec<&'a ObjectId>>,
    /// Stages, checks and overlays of the bundle, in the order of this plan.
    pub(super) sequence: Sequence,
    /// Objects that the bundle assigns to a stage.
    pub(super) assigned: BTreeMap<&'a ObjectId, StageName>,
    /// Remaining budget of the plan.
    pub(super) budget: Budget,
}

impl<'a> Ctx<'a> {
    /// Combines a recorded object with its live state, to judge its membership
    /// in the release.
    pub(super) fn member<'b>(&'b self, entry: &'b Entry, live: &'b LiveMeta) -> Member<'b> {
        Member {
            entry,
            live,
            apply_set: &self.apply_set,
            manager: &self.manager,
        }
    }

    pub(super) fn new(desired: &'a Desired, observed: &'a Observed, policy: &'a Policy) -> Self {
        let manifests: BTreeMap<&'a ObjectId, &'a Manifest> = desired
            .manifests
            .iter()
            .map(|one| (one.id(), one))
            .collect();
        let facts = manifests
            .iter()
            .map(|(&id, &manifest)| (id, manifest.facts()))
            .collect();
        let mut by_name: Vec<&'a ObjectId> = manifests.keys().copied().collect();
        by_name.sort_by_key(|&id| name_of(id));
        let mut ctx = Self {
            desired,
            observed,
            policy,
            removal: None,
            apply_set: desired.apply_set(),
            manager: desired.name.field_manager(),
            left: left(&manifests, &observed.inventory),
            terminating: terminating(observed),
            manifests,
            facts,
            defined: defined_kinds(&desired.manifests),
            by_name,
            workloads: BTreeMap::new(),
            labeled: BTreeMap::new(),
            crds: BTreeMap::new(),
            apis: BTreeMap::new(),
            backends: BTreeMap::new(),
            sequence: desired.sequence.clone(),
            assigned: BTreeMap::new(),
            budget: Budget::default(),
        };
        for (&id, &facts) in &ctx.facts {
            // Pods of Jobs finish and serve no Service.
            if let (Some(namespace), Some(labels)) = (&id.namespace, &facts.pod_labels)
                && id.group != "batch"
            {
                ctx.workloads.entry(namespace).or_default().push(id);
                let labeled = ctx.labeled.entry(namespace).or_default();
                for (key, value) in labels {
                    let label = format!("{key}={value}");
                    labeled.entry(label).or_default().push(id);
                }
            }
            if let Some(crd) = &facts.defines {
                ctx.crds.insert(crd.kind.clone(), id);
            }
            if let Some(api) = &facts.registers {
                ctx.apis.insert(api.clone(), id);
            }
        }
        let services = ctx.facts.values().flat_map(|facts| &facts.services);
        let services: BTreeSet<ServiceRef> = services.cloned().collect();
        let backends = services.into_iter().map(|service| {
            let backends = ctx.find_backends(&service);
            (service, backends)
        });
        ctx.backends = backends.collect();
        ctx.assigned = super::stages::assign(&ctx);
        ctx
    }

    /// Returns the stage in which an object is applied.
    pub(super) fn stage_of(&self, id: &ObjectId) -> StageName {
        let assigned = self.assigned.get(id).cloned();
        assigned.unwrap_or_else(|| self.stage_of_kind(id))
    }

    /// Returns the default stage of the object's kind. The role of an object
    /// for others does not depend on the stage in which it is applied.
    pub(super) fn stage_of_kind(&self, id: &ObjectId) -> StageName {
        stage_of(&id.group_kind(), &self.defined)
    }

    /// Returns whether an object is desired.
    pub(super) fn is_desired(&self, id: &ObjectId) -> bool {
        self.manifests.contains_key(id)
    }

    /// Returns the desired objects with a name and a kind of any group.
    pub(super) fn named(&self, kind: &str, name: &str) -> &[&'a ObjectId] {
        let key = (kind, name);
        let start = self.by_name.partition_point(|id| name_of(id) < key);
        let rest = &self.by_name[start..];
        let end = rest.partition_point(|id| name_of(id) == key);
        &rest[..end]
    }

    /// Returns the CRD of the release that defines a kind.
    pub(super) fn crd(&self, kind: &GroupKind) -> Option<(&'a ObjectId, &DefinedKind)> {
        let id = *self.crds.get(kind)?;
        Some((id, self.facts.get(id)?.defines.as_ref()?))
    }

    /// Returns the APIService of the release that serves a group-version.
    pub(super) fn api(&self, api_version: &ApiVersion) -> Option<&'a ObjectId> {
        self.apis.get(api_version).copied()
    }

    /// Returns the workloads of the release whose pods a Service selects.
    pub(super) fn backends(&self, service: &ServiceRef) -> Vec<&'a ObjectId> {
        match self.backends.get(service) {
            Some(known) => known.clone(),
            None => self.find_backends(service),
        }
    }

    fn find_backends(&self, service: &ServiceRef) -> Vec<&'a ObjectId> {
        let facts = self.facts.get(&service.id());
        let Some(selector) = facts.and_then(|facts| facts.selector.as_ref()) else {
            return Vec::new();
        };
        let workloads = self.candidates(&service.namespace, selector);
        if !self.budget.work(workloads.len()) {
            return Vec::new();
        }
        workloads
            .iter()
            .copied()
            .filter(|id| {
                self.facts
                    .get(id)
                    .is_some_and(|facts| facts.is_selected_by(selector))
            })
            .collect()
    }

    /// Returns the workloads of a namespace that have the rarest label of a
    /// selector.
    fn candidates(&self, namespace: &str, selector: &BTreeMap<String, String>) -> &[&'a ObjectId] {
        let mut rarest = self.workloads_in(namespace);
        let labeled = self.labeled.get(namespace);
        for (key, value) in selector {
            let label = format!("{key}={value}");
            let found = labeled.and_then(|labeled| labeled.get(&label));
            let found: &[&'a ObjectId] = found.map_or(&[], Vec::as_slice);
            if found.len() < rarest.len() {
                rarest = found;
            }
        }
        rarest
    }

    /// Returns the desired workloads of a namespace with long-running pods.
    pub(super) fn workloads_in(&self, namespace: &str) -> &[&'a ObjectId] {
        self.workloads.get(namespace).map_or(&[], Vec::as_slice)
    }

    /// Returns whether a namespace is being deleted.
    pub(super) fn is_terminating(&self, namespace: &str) -> bool {
        self.terminating.contains(namespace)
    }

    /// Returns the path of the environment file, in which users consent.
    pub(super) fn environment_file(&self) -> String {
        format!("environments/{}.yaml", self.desired.name.environment)
    }

    /// Returns the Release object, on which barriers act.
    pub(super) fn release(&self) -> ObjectId {
        ObjectId::new(
            "pleach.dev",
            "Release",
            None,
            &self.desired.name.to_string(),
        )
    }
}

/// Returns kind and name of an object.
fn name_of(id: &ObjectId) -> (&str, &str) {
    (&id.kind, &id.name)
}

/// Returns the recorded objects without a manifest, sorted. Compares the two
/// sorted maps entry by entry.
fn left<'a>(
    manifests: &BTreeMap<&'a ObjectId, &'a Manifest>,
    inventory: &'a Inventory,
) -> Vec<(&'a ObjectId, &'a Entry)> {
    let mut desired = manifests.keys().copied().peekable();
    let is_left = |(id, _): &(&ObjectId, &Entry)| {
        while desired.next_if(|one| *one < *id).is_some() {}
        desired.next_if(|one| *one == *id).is_none()
    };
    inventory.entries.iter().filter(is_left).collect()
}

/// Returns the names of the namespaces that are being deleted.
fn terminating(observed: &Observed) -> BTreeSet<&str> {
    let full = observed.full.iter().map(|(id, live)| (id, live.meta()));
    let is_terminating = |id: &ObjectId| {
        let live = observed.live_meta(id);
        live.is_some_and(|live| live.deleting)
    };
    full.chain(&observed.meta)
        .filter(|(id, live)| live.deleting && id.is("", "Namespace") && id.namespace.is_none())
        .filter(|(id, _)| is_terminating(id))
        .map(|(id, _)| id.name.as_str())
        .collect()
}

/// Output of the passes so far that all phases add to. Step ids are positions
/// in `steps`; `arrange` assigns the final ones.
#[derive(Default)]
pub(super) struct Draft {
    pub(super) changes: BTreeMap<ObjectId, Change>,
    pub(super) steps: Vec<Step>,
    pub(super) findings: Vec<Finding>,
    /// Step after which a desired object matches git.
    pub(super) done_by: BTreeMap<ObjectId, StepId>,
    /// Steps of objects that turned out to be blocked.
    pub(super) dropped: BTreeSet<StepId>,
    /// Temporary changes.
    pub(super) overlays: Vec<Overlay>,
    /// Failed checks that a consent overrides for this plan.
    pub(super) overrides: Vec<Override>,
    /// Remaining budget of the plan.
    pub(super) budget: Budget,
}

/// A dependency that changes.
pub(super) enum Changed {
    /// One object, after its last step.
    Object(ObjectId),
    /// Many objects, represented by the step that follows all of them.
    All(StepId),
}

/// A CRD whose stored objects are rewritten.
pub(super) struct Rewrite {
    pub(super) id: ObjectId,
    /// Versions in which objects may be stored now.
    pub(super) from: Vec<String>,
    /// Version in which objects are stored afterwards.
    pub(super) to: String,
    /// Kind at that version.
    pub(super) served: Option<Gvk>,
    /// Step after which the CRD stores the new version; `None` if it already
    /// does.
    pub(super) before: Option<StepId>,
    /// Set if versions are removed: the CRD that no longer serves them, with
    /// the operation that applies the final CRD.
    pub(super) closing: Option<(Value, Op, Vec<Precondition>)>,
    /// Conversion fields of other managers that are removed too. We take
    /// ownership just before.
    pub(super) left: FieldSet,
}

/// A role or binding that grants less in git than in the cluster.
pub(super) struct Narrowing {
    pub(super) id: ObjectId,
    /// Operation that reduces the object, and its preconditions.
    pub(super) op: Op,
    pub(super) require: Vec<Precondition>,
    /// Step that grants the new permissions before; `None` if there are none.
    pub(super) before: Option<StepId>,
}

/// An object to delete.
pub(super) struct Pruned {
    pub(super) id: ObjectId,
    pub(super) deletion: Deletion,
    /// True for a registration without a backend. It breaks other requests and
    /// is deleted first.
    pub(super) dead: bool,
}

impl Draft {
    /// Creates an empty draft that shares a budget.
    pub(super) fn within(budget: &Budget) -> Self {
        Self {
            budget: budget.clone(),
            ..Self::default()
        }
    }

    /// Records the change of an object. Unchanged, blocked and skipped objects
    /// have no stage.
    pub(super) fn change(
        &mut self,
        object: &ObjectId,
        action: Action,
        stage: StageName,
        reason: impl Into<String>,
        require: Vec<Precondition>,
    ) -> &mut Change {
        let happens = !matches!(action, Action::Unchanged | Action::Blocked | Action::Skip);
        let change = Change {
            stage: happens.then_some(stage),
            reason: reason.into(),
            require,
            ..Change::new(object.clone(), action)
        };
        match self.changes.entry(object.clone()) {
            std::collections::btree_map::Entry::Occupied(mut entry) => {
                entry.insert(change);
                entry.into_mut()
            }
            std::collections::btree_map::Entry::Vacant(entry) => entry.insert(change),
        }
    }

    /// Adds changes of objects that have none yet.
    pub(super) fn add_changes(&mut self, changes: Vec<Change>) {
        let changes = changes.into_iter();
        let mut changes: BTreeMap<ObjectId, Change> = changes
            .map(|change| (change.object.clone(), change))
            .collect();
        self.changes.append(&mut changes);
    }

    /// Returns the action on an object.
    pub(super) fn action(&self, id: &ObjectId) -> Option<Action> {
        self.changes.get(id).map(|change| change.action)
    }

    /// Adds a step and returns its provisional id.
    pub(super) fn step(
        &mut self,
        ctx: &Ctx<'_>,
        stage: StageName,
        object: ObjectId,
        op: Op,
        reason: &str,
    ) -> StepId {
        let id = StepId(self.steps.len());
        self.steps.push(Step {
            id,
            stage,
            object,
            op,
            needs: Vec::new(),
            require: Vec::new(),
            until: None,
            deadline: ctx.policy.timeout,
            overlay: None,
            reason: reason.to_owned(),
        });
        id
    }

    /// Returns the step with a provisional id.
    pub(super) fn at(&mut self, id: StepId) -> &mut Step {
        &mut self.steps[id.0]
    }

    /// Makes one step wait for another. `arrange` later keeps the strongest of
    /// several edges between the same steps.
    pub(super) fn edge(&mut self, from: StepId, state: Need, to: StepId, why: EdgeReason) {
        if from != to && self.budget.edge() {
            self.steps[to.0].needs.push(Edge { from, state, why });
        }
    }

    /// Makes every later step wait for every earlier one, with direct edges.
    pub(super) fn each_before(
        &mut self,
        earlier: &[(StepId, Need)],
        later: &[StepId],
        why: &EdgeReason,
    ) {
        for &to in later {
            for &(from, state) in earlier {
                self.edge(from, state, to, why.clone());
            }
        }
    }

    /// Makes every later step wait for every earlier one. If there are many of
    /// both, an empty step joins them, so that the number of edges grows
    /// linearly.
    pub(super) fn all_before(
        &mut self,
        ctx: &Ctx<'_>,
        stage: StageName,
        earlier: &[(StepId, Need)],
        later: &[StepId],
        why: &EdgeReason,
        reason: &str,
    ) {
        if earlier.len() <= 1 || later.len() <= 1 {
            self.each_before(earlier, later, why);
            return;
        }
        let join = self.wait(ctx, stage, ctx.release(), None, reason);
        for &(from, state) in earlier {
            self.edge(from, state, join, why.clone());
        }
        for &to in later {
            self.edge(join, Need::Applied, to, why.clone());
        }
    }

    /// Adds a step that only waits.
    pub(super) fn wait(
        &mut self,
        ctx: &Ctx<'_>,
        stage: StageName,
        object: ObjectId,
        until: Option<Until>,
        reason: &str,
    ) -> StepId {
        let id = self.step(ctx, stage, object, Op::Wait, reason);
        self.at(id).until = until;
        id
    }

    /// Adds a step that waits until an object that is being deleted is gone.
    pub(super) fn wait_for_end(
        &mut self,
        ctx: &Ctx<'_>,
        stage: StageName,
        id: &ObjectId,
        uid: &str,
        reason: &str,
    ) -> StepId {
        let until = Some(Until::Absent { pods: None });
        let gone = self.wait(ctx, stage, id.clone(), until, reason);
        self.at(gone).require = vec![Precondition::Uid(uid.to_owned())];
        gone
    }

    /// Returns the steps that apply workloads.
    pub(super) fn workloads(&self, ctx: &Ctx<'_>) -> Vec<StepId> {
        let is_workload = |id| ctx.stage_of_kind(id) == StageName::Workloads;
        self.steps
            .iter()
            .filter(|step| step.op.applies() && is_workload(&step.object))
            .map(|step| step.id)
            .collect()
    }

    /// Returns whether any object is blocked.
    pub(super) fn is_blocked(&self) -> bool {
        self.changes
            .values()
            .any(|change| change.action == Action::Blocked)
    }
}
