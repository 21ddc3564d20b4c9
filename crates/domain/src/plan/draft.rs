//! What the passes read and what they write.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use super::access::StandIn;
use super::budget::Budget;
use super::deletion::Member;
use super::model::{
    Action, Change, Desired, Edge, EdgeReason, Need, Op, Overlay, Policy, Precondition, Step,
    StepId, Until,
};
use super::overlays::Late;
use super::{Deletion, Removal};
use crate::diff::ownership::FieldSet;
use crate::finding::Finding;
use crate::inventory::{Entry, Override};
use crate::object::{ApiVersion, GroupKind, Gvk, Manifest, ObjectId, ServiceRef};
use crate::observe::{LiveMeta, Observed};
use crate::order::{Definition, Facts, StageName, defined_kinds, stage_of};
use crate::repo::Sequence;

/// What every pass may read.
pub(super) struct Ctx<'a> {
    pub(super) desired: &'a Desired,
    pub(super) observed: &'a Observed,
    pub(super) policy: &'a Policy,
    /// Set where the release goes as a whole.
    pub(super) removal: Option<&'a Removal>,
    /// Label value of the release's members.
    pub(super) apply_set: String,
    /// Our field manager.
    pub(super) manager: String,
    pub(super) manifests: BTreeMap<&'a ObjectId, &'a Manifest>,
    pub(super) facts: BTreeMap<&'a ObjectId, &'a Facts>,
    /// Kinds whose CRD is part of the release.
    pub(super) defined: BTreeSet<GroupKind>,
    /// Wanted objects by kind (without its group) and name.
    by_name: BTreeMap<&'a str, BTreeMap<&'a str, Vec<&'a ObjectId>>>,
    /// Wanted workloads with pods that stay, by namespace.
    workloads: BTreeMap<&'a str, Vec<&'a ObjectId>>,
    /// The same workloads by namespace and each label of their pods, as `key=value`.
    labeled: BTreeMap<&'a str, BTreeMap<String, Vec<&'a ObjectId>>>,
    /// The CRDs of the release by what they define.
    definitions: BTreeMap<GroupKind, &'a ObjectId>,
    /// The APIServices of the release by what they register.
    apis: BTreeMap<ApiVersion, &'a ObjectId>,
    /// The workloads behind the Services that objects of the release point at.
    backends: BTreeMap<ServiceRef, Vec<&'a ObjectId>>,
    /// What the bundle says of the course of a change, in the order of this plan.
    pub(super) sequence: Sequence,
    /// Objects that the bundle assigns to a stage.
    pub(super) assigned: BTreeMap<&'a ObjectId, StageName>,
    /// Budget that is left for the plan.
    pub(super) budget: Budget,
}

impl<'a> Ctx<'a> {
    /// A recorded object as it is now, to be judged as a member of the release.
    pub(super) fn member<'b>(&'b self, entry: &'b Entry, live: &'b LiveMeta) -> Member<'b> {
        Member {
            entry,
            live,
            apply_set: &self.apply_set,
            manager: &self.manager,
        }
    }

    pub(super) fn new(desired: &'a Desired, observed: &'a Observed, policy: &'a Policy) -> Self {
        let manifests = || desired.manifests.iter().map(|one| (one.id(), one));
        let mut ctx = Self {
            desired,
            observed,
            policy,
            removal: None,
            apply_set: desired.apply_set(),
            manager: desired.name.field_manager(),
            manifests: manifests().collect(),
            facts: manifests()
                .map(|(id, manifest)| (id, manifest.facts()))
                .collect(),
            defined: defined_kinds(&desired.manifests),
            by_name: BTreeMap::new(),
            workloads: BTreeMap::new(),
            labeled: BTreeMap::new(),
            definitions: BTreeMap::new(),
            apis: BTreeMap::new(),
            backends: BTreeMap::new(),
            sequence: desired.sequence.clone(),
            assigned: BTreeMap::new(),
            budget: Budget::default(),
        };
        for &id in ctx.manifests.keys() {
            let names = ctx.by_name.entry(&id.kind).or_default();
            names.entry(&id.name).or_default().push(id);
        }
        for (&id, &facts) in &ctx.facts {
            // The pods of Jobs end: they are nobody's endpoints.
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
            if let Some(definition) = &facts.defines {
                ctx.definitions.insert(definition.kind.clone(), id);
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

    /// The stage in which an object is applied.
    pub(super) fn stage_of(&self, id: &ObjectId) -> StageName {
        let assigned = self.assigned.get(id).cloned();
        assigned.unwrap_or_else(|| self.stage_of_kind(id))
    }

    /// The stage in which objects of its kind are applied by default: what they
    /// are to others does not depend on when they are.
    pub(super) fn stage_of_kind(&self, id: &ObjectId) -> StageName {
        stage_of(&id.group_kind(), &self.defined)
    }

    /// Whether an object is wanted.
    pub(super) fn is_desired(&self, id: &ObjectId) -> bool {
        self.manifests.contains_key(id)
    }

    /// The wanted objects of a kind, whatever its group, with a name.
    pub(super) fn named(&self, kind: &str, name: &str) -> &[&'a ObjectId] {
        self.by_name
            .get(kind)
            .and_then(|names| names.get(name))
            .map_or(&[], Vec::as_slice)
    }

    /// The CRD of the release that defines a kind.
    pub(super) fn definition(&self, kind: &GroupKind) -> Option<(&'a ObjectId, &Definition)> {
        let id = *self.definitions.get(kind)?;
        Some((id, self.facts.get(id)?.defines.as_ref()?))
    }

    /// The APIService of the release behind which a group-version is served.
    pub(super) fn api(&self, api_version: &ApiVersion) -> Option<&'a ObjectId> {
        self.apis.get(api_version).copied()
    }

    /// The workloads of the release whose pods a Service selects.
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

    /// The workloads of a namespace whose pods have the rarest label of a selector.
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

    /// The wanted workloads of a namespace whose pods stay.
    pub(super) fn workloads_in(&self, namespace: &str) -> &[&'a ObjectId] {
        self.workloads.get(namespace).map_or(&[], Vec::as_slice)
    }

    /// Whether a namespace is being deleted, and everything in it with it.
    pub(super) fn is_ending(&self, namespace: &str) -> bool {
        let id = ObjectId::new("", "Namespace", None, namespace);
        self.observed
            .live_meta(&id)
            .is_some_and(|live| live.deleting)
    }

    /// The file in which people say what is allowed.
    pub(super) fn environment_file(&self) -> String {
        format!("environments/{}.yaml", self.desired.name.environment)
    }

    /// The Release object: what barriers act on.
    pub(super) fn release(&self) -> ObjectId {
        ObjectId::new(
            "pleach.dev",
            "Release",
            None,
            &self.desired.name.to_string(),
        )
    }
}

/// What the passes have come up with so far. Step ids are positions in
/// `steps`; `arrange` gives the final ones.
#[derive(Default)]
pub(super) struct Draft {
    pub(super) changes: BTreeMap<ObjectId, Change>,
    pub(super) steps: Vec<Step>,
    pub(super) findings: Vec<Finding>,
    /// The step after which a desired object is as wanted.
    pub(super) done_by: BTreeMap<ObjectId, StepId>,
    /// Steps that wait for objects to which nothing is done.
    pub(super) awaited: BTreeMap<ObjectId, StepId>,
    /// Objects that are ready already when something changes that they need: it
    /// is looked again afterwards.
    pub(super) looked_at_again: BTreeMap<ObjectId, Vec<(Changed, Need, EdgeReason)>>,
    /// Steps of objects that turned out to be blocked.
    pub(super) dropped: BTreeSet<StepId>,
    /// What goes.
    pub(super) pruned: Vec<Pruned>,
    /// Services of the release that go, or went already.
    pub(super) leaving: BTreeSet<ServiceRef>,
    /// Services of the release whose objects are handed over, behind which nothing
    /// of it runs any more.
    pub(super) deserted: BTreeSet<ServiceRef>,
    /// The barrier after which things may be pruned.
    pub(super) verified: Option<StepId>,
    /// Temporary changes.
    pub(super) overlays: Vec<Overlay>,
    /// Those of them that end after verify.
    pub(super) late: Vec<Late>,
    /// Checks that do not hold and do not matter this once.
    pub(super) overrides: Vec<Override>,
    /// Access that is reduced at the end.
    pub(super) narrowings: Vec<Narrowing>,
    /// Bindings that stand in for others until the end.
    pub(super) stand_ins: Vec<StandIn>,
    /// Stored objects that are rewritten at the end.
    pub(super) rewrites: Vec<Rewrite>,
    /// Steps that rewrite stored objects while a webhook that goes still converts.
    pub(super) rewritten_before: Vec<StepId>,
    /// Steps that apply a definition once the Service answers that converts.
    pub(super) converting: BTreeMap<StepId, ServiceRef>,
    /// How much more there may be of it.
    pub(super) budget: Budget,
}

/// What changes, and is needed.
pub(super) enum Changed {
    /// An object, as its last step leaves it.
    Object(ObjectId),
    /// Many objects, by the step that comes after all of them.
    All(StepId),
}

/// A definition whose stored objects are rewritten.
pub(super) struct Rewrite {
    pub(super) id: ObjectId,
    /// The versions in which they may be stored.
    pub(super) from: Vec<String>,
    /// The version in which they are stored from then on.
    pub(super) to: String,
    /// The kind at that version.
    pub(super) served: Option<Gvk>,
    /// The step after which the definition stores them so; none where it does.
    pub(super) before: Option<StepId>,
    /// Where versions go: the definition that serves them no more, and what
    /// applies it without them.
    pub(super) closing: Option<(Value, Op, Vec<Precondition>)>,
    /// What others hold of a conversion that goes with them: ours just before.
    pub(super) left: FieldSet,
}

/// A role or binding that gives less in git than it does now.
pub(super) struct Narrowing {
    pub(super) id: ObjectId,
    /// What reduces it, and what must hold then.
    pub(super) op: Op,
    pub(super) require: Vec<Precondition>,
    /// The step that gives what is new before; none where nothing is.
    pub(super) before: Option<StepId>,
}

/// An object that goes.
pub(super) struct Pruned {
    pub(super) id: ObjectId,
    pub(super) deletion: Deletion,
    /// A registration without a backend: it breaks others and goes first.
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

    /// Records what happens to an object. The stage is only kept for what
    /// happens at all.
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
            object: object.clone(),
            action,
            stage: happens.then_some(stage),
            reason: reason.into(),
            cause: None,
            require,
            digest: None,
            unverified: None,
            corrects: Vec::new(),
        };
        match self.changes.entry(object.clone()) {
            std::collections::btree_map::Entry::Occupied(mut entry) => {
                entry.insert(change);
                entry.into_mut()
            }
            std::collections::btree_map::Entry::Vacant(entry) => entry.insert(change),
        }
    }

    /// What happens to an object.
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

    /// The step with a provisional id.
    pub(super) fn at(&mut self, id: StepId) -> &mut Step {
        &mut self.steps[id.0]
    }

    /// Makes one step wait for another. Of two edges between the same steps
    /// `arrange` keeps the stronger one.
    pub(super) fn edge(&mut self, from: StepId, state: Need, to: StepId, why: EdgeReason) {
        if from != to && self.budget.edge() {
            self.steps[to.0].needs.push(Edge { from, state, why });
        }
    }

    /// Makes every later step wait for every earlier one, directly.
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

    /// Makes every later step wait for every earlier one. Where there are many
    /// of both, a step without effect stands between them, so that the number
    /// of edges grows with the objects and not with their square.
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

    /// Adds a step that does nothing but wait.
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

    /// Adds a step that waits for the end of an object that is being deleted.
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

    /// The applies of workloads.
    pub(super) fn workloads(&self, ctx: &Ctx<'_>) -> Vec<StepId> {
        let is_workload = |id| ctx.stage_of_kind(id) == StageName::Workloads;
        self.steps
            .iter()
            .filter(|step| step.op.applies() && is_workload(&step.object))
            .map(|step| step.id)
            .collect()
    }

    /// Whether any object cannot be brought about.
    pub(super) fn is_blocked(&self) -> bool {
        self.changes
            .values()
            .any(|change| change.action == Action::Blocked)
    }

    /// Whether any step changes something.
    pub(super) fn has_effects(&self) -> bool {
        !self.rewrites.is_empty() || self.steps.iter().any(|step| !matches!(step.op, Op::Wait))
    }
}
