//! Declarations of a scene's bundle besides its objects, and their leftovers of
//! an earlier run.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};
use serde_json::Value;

use super::{Scene, id, parse};
use crate::plan::tests::server;
use pleach_formats::check::{Check, CheckOutcome};
use pleach_formats::gate::{self, Closed, Operation};
use pleach_formats::{
    file::{Gate, Overlay},
    sequence::{CopyRule, GateRule, MoveRule, OverlayRule, ScaleRule, StageRule},
};
use pleach_model::object::{GroupKind, NonSecret, Origin, Selector, managers};
use pleach_model::order::StageName;
use pleach_state::overlay::{Journaled, OnFailure, OverlayId, OverlayKind, State, project};

impl Scene {
    /// Declares a temporary change, in the syntax of the bundle.
    pub(in crate::plan::tests) fn overlay(mut self, text: &str) -> Self {
        let overlay: Overlay = parse(text);
        let stage = |name: &Option<String>, default: &str| {
            let name = name.as_deref().unwrap_or(default);
            StageName::standard(name).unwrap()
        };
        self.desired.sequence.overlays.push(OverlayRule {
            name: overlay.name,
            target: overlay.target,
            patch: NonSecret(overlay.patch),
            from: stage(&overlay.from, "gates"),
            until: stage(&overlay.until, "ungate"),
            origin: Origin::new("bundle.yaml", 1),
        });
        self
    }

    /// Declares a gate, in the syntax of the bundle.
    pub(in crate::plan::tests) fn gate(mut self, text: &str) -> Self {
        let gate: Gate = parse(text);
        let stage = |name: &Option<String>, default: &str| {
            let name = name.as_deref().unwrap_or(default);
            let own = || self.desired.sequence.stage(name);
            StageName::standard(name).or_else(own).unwrap()
        };
        let (from, until) = (stage(&gate.from, "gates"), stage(&gate.until, "ungate"));
        self.desired.sequence.gates.push(GateRule {
            name: gate.name,
            closed: Closed {
                groups: gate.groups,
                resources: gate.resources.unwrap_or_else(|| vec!["*".to_owned()]),
            },
            operations: vec![Operation::Create, Operation::Update],
            exempt: Vec::new(),
            from,
            until,
            max_age: SignedDuration::from_hours(1),
            origin: Origin::new("bundle.yaml", 1),
        });
        self
    }

    /// Declares a move, with the `ConfigMaps` to copy.
    pub(in crate::plan::tests) fn moves(mut self, from: &str, to: &str, copy: &[&str]) -> Self {
        self.desired.sequence.moves.push(MoveRule {
            from: from.to_owned(),
            to: to.to_owned(),
            copy: copy
                .iter()
                .map(|name| CopyRule {
                    kind: GroupKind::new("", "ConfigMap"),
                    name: (*name).to_owned(),
                    labels: BTreeMap::new(),
                })
                .collect(),
            origin: Origin::new("bundle.yaml", 1),
        });
        self
    }

    /// Adds a gate that an earlier run closed and did not lift.
    pub(in crate::plan::tests) fn left_closed(
        mut self,
        name: &str,
        group: &str,
        plural: &str,
    ) -> Self {
        let gate = gate::Gate {
            release: self.desired.name.clone(),
            name: name.to_owned(),
            version: "v2.0.0".to_owned(),
            closed: vec![Closed {
                groups: vec![group.to_owned()],
                resources: vec![plural.to_owned()],
            }],
            operations: vec![Operation::Create],
            exempt: Vec::new(),
            exempts_us: false,
            state: "pleach-system".to_owned(),
        };
        let journaled = Journaled {
            kind: Some(OverlayKind::Gate),
            object: gate.id(),
            uid: "gate".to_owned(),
            state: State::On,
            set: NonSecret(serde_json::to_value(&gate).unwrap()),
            original: NonSecret(Value::Null),
            owners: Vec::new(),
            on_failure: OnFailure::Keep {
                max_age: Some(SignedDuration::from_hours(1)),
            },
            until: "ungate".to_owned(),
            since: Timestamp::UNIX_EPOCH,
            attempt: "v2.0.0".to_owned(),
        };
        let overlays = &mut self.observed.journal.overlays;
        overlays.insert(OverlayId::of_gate(name, &gate.id()), journaled);
        self
    }

    /// Declares a stage after a standard one. `scale` and `restart` name
    /// Deployments.
    pub(in crate::plan::tests) fn stage(
        mut self,
        name: &str,
        after: &StageName,
        scale: &[(&str, u32)],
        restart: &[&str],
    ) -> Self {
        let target = |name: &str| Selector {
            kind: "Deployment".to_owned(),
            name: Some(name.to_owned()),
            ..Selector::default()
        };
        let order = self.desired.sequence.stages.len();
        self.desired.sequence.stages.push(StageRule {
            stage: StageName::declared(name, after, order),
            select: Vec::new(),
            applied_only: false,
            rollout: None,
            nodes: None,
            preload: None,
            verify: Vec::new(),
            checks: Vec::new(),
            scale: scale
                .iter()
                .map(|(name, replicas)| ScaleRule {
                    target: target(name),
                    replicas: *replicas,
                })
                .collect(),
            restart: restart.iter().map(|name| target(name)).collect(),
            timeout: None,
            origin: Origin::new("bundle.yaml", 1),
        });
        self
    }

    /// Declares a stage after the workloads, which applies the selected
    /// objects.
    pub(in crate::plan::tests) fn applies_in(
        self,
        name: &str,
        select: &[&str],
        change: impl FnOnce(&mut StageRule),
    ) -> Self {
        let mut scene = self.stage(name, &StageName::Workloads, &[], &[]);
        let rule = scene.desired.sequence.stages.last_mut().unwrap();
        rule.select = select.iter().map(|one| parse(one)).collect();
        change(rule);
        scene
    }

    /// Declares a check, in the syntax of the bundle.
    pub(in crate::plan::tests) fn check(mut self, text: &str) -> Self {
        let check: pleach_formats::file::Check = parse(text);
        let check = Check::read(&check, &[], Origin::new("bundle.yaml", 1)).unwrap();
        self.desired.sequence.checks.push(check);
        self
    }

    /// Sets the result of reading the objects of a check.
    pub(in crate::plan::tests) fn outcome(mut self, check: &str, outcome: CheckOutcome) -> Self {
        self.observed.checked.insert(check.to_owned(), outcome);
        self
    }

    /// Adds a temporary change that an earlier run made and did not revert.
    pub(in crate::plan::tests) fn left_on(mut self, name: &str, key: &str, patch: &Value) -> Self {
        let object = id(key);
        let live = self.live.get_mut(&object).unwrap();
        let journaled = Journaled {
            kind: Some(OverlayKind::Patch),
            object: object.clone(),
            uid: live["metadata"]["uid"].as_str().unwrap().to_owned(),
            state: State::On,
            set: NonSecret(patch.clone()),
            original: NonSecret(project(patch, live)),
            owners: Vec::new(),
            on_failure: OnFailure::Keep { max_age: None },
            until: "ungate".to_owned(),
            since: Timestamp::UNIX_EPOCH,
            attempt: "v2.0.0".to_owned(),
        };
        server::write(live, managers::OVERLAY, patch);
        let overlays = &mut self.observed.journal.overlays;
        overlays.insert(OverlayId::new(name, &object, patch), journaled);
        self
    }
}
