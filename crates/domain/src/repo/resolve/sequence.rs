//! Temporary changes, gates and declared stages, checked and put into their order.

mod gates;

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use super::{Source, rules};
use crate::finding::{Finding, Kind};
use crate::object::yaml::Node;
use crate::object::{SecretField, annotations, labels};
use crate::order::StageName;
use crate::plan::NonSecret;
use crate::repo::format::{Migration, Overlay, Scale, Stage};
use crate::repo::sequence::{MigrationRule, OverlayRule, ScaleRule, Sequence, StageRule};
use crate::repo::suggest::did_you_mean;
use crate::repo::{SecretRule, Selector, unsupported};

/// Workloads whose pods can be replaced.
const RESTARTED: [&str; 3] = ["Deployment", "StatefulSet", "DaemonSet"];

/// Workloads that say how many pods they want.
const SCALED: [&str; 2] = ["Deployment", "StatefulSet"];

/// What the source says about the course of a change. What its secret fields
/// name is never changed for a while: it would have to be written down.
pub(super) fn sequence(
    source: &Source,
    secret: &[SecretRule],
    findings: &mut Vec<Finding>,
) -> Sequence {
    let nodes = |key: &str| source.node.get(key).map_or(&[][..], Node::items);
    let stages = source.body.stages.as_deref().unwrap_or_default();
    let overlays = source.body.overlays.as_deref().unwrap_or_default();
    let stages = Declared::read(stages, nodes("stages"), findings).placed(findings);
    let mut names = BTreeSet::new();
    let overlays: Vec<OverlayRule> = overlays
        .iter()
        .zip(nodes("overlays"))
        .filter_map(|(overlay, node)| {
            let before = findings.len();
            if !names.insert(&overlay.name) {
                let message = format!("a second overlay `{}`", overlay.name);
                findings.push(invalid(node, message).hint("give one of them another name"));
            }
            let rule = overlay_rule(overlay, node, &stages, findings);
            check_secrets(&rule, node, secret, findings);
            (findings.len() == before).then_some(rule)
        })
        .collect();
    let migrations = source.body.migrate.as_deref().unwrap_or_default();
    let migrations = migrations
        .iter()
        .zip(nodes("migrate"))
        .map(|(migration, node)| migration_rule(migration, node, findings))
        .collect();
    let declared = source.body.gates.as_deref().unwrap_or_default();
    let gates = gates::gates(declared, nodes("gates"), &stages, findings);
    Sequence {
        overlays,
        stages,
        gates,
        migrations: without_doubles(migrations, findings),
        checks: rules::checks(source, secret, findings),
        readiness: rules::readiness(source, findings),
    }
}

fn migration_rule(
    migration: &Migration,
    node: &Node,
    findings: &mut Vec<Finding>,
) -> MigrationRule {
    let Migration { crd, from, to } = migration;
    if !crd.contains('.') {
        findings.push(
            invalid(
                node,
                format!("`crd: {crd}` is not the name of a definition"),
            )
            .hint("the plural and the group, such as gears.example.org"),
        );
    }
    if from == to {
        findings.push(invalid(node, format!("`from` and `to` are both {to}")));
    }
    MigrationRule {
        crd: crd.clone(),
        from: from.clone(),
        to: to.clone(),
        origin: node.origin(),
    }
}

/// The objects of a definition are stored in one version, so all its
/// migrations lead there.
fn without_doubles(rules: Vec<MigrationRule>, findings: &mut Vec<Finding>) -> Vec<MigrationRule> {
    let mut kept: Vec<MigrationRule> = Vec::new();
    for rule in rules {
        let error = |message: String| {
            Finding::error(Kind::Repository, "invalid-value", message).at(rule.origin.clone())
        };
        let mut others = kept.iter().filter(|other| other.crd == rule.crd);
        if let Some(other) = others.clone().find(|other| other.to != rule.to) {
            findings.push(error(format!(
                "{} is migrated to {} and to {}",
                rule.crd, other.to, rule.to
            )));
        } else if others.any(|other| other.from == rule.from) {
            findings.push(error(format!(
                "a second migration of {} from {}",
                rule.crd, rule.from
            )));
        } else {
            kept.push(rule);
        }
    }
    kept
}

fn invalid(node: &Node, message: impl Into<String>) -> Finding {
    Finding::error(Kind::Repository, "invalid-value", message).at(node.origin())
}

fn overlay_rule(
    overlay: &Overlay,
    node: &Node,
    stages: &[StageRule],
    findings: &mut Vec<Finding>,
) -> OverlayRule {
    check_name("an overlay", &overlay.name, node, findings);
    check_target(&overlay.target, node, findings);
    if overlay
        .target
        .group_kind()
        .is_some_and(|kind| kind.is("", "Secret"))
    {
        findings.push(
            invalid(node, "a Secret cannot be changed for a while")
                .hint("what was there before is written down, and a Secret must not be"),
        );
    }
    check_patch(&overlay.patch, node, findings);
    let mut stage = |name: &Option<String>, default: StageName| match name {
        None => default,
        Some(name) => find(name, stages, node, findings).unwrap_or(default),
    };
    let from = stage(&overlay.from, StageName::Gates);
    let until = stage(&overlay.until, StageName::Ungate);
    if from > until {
        findings.push(invalid(
            node,
            format!("`from: {from}` comes after `until: {until}`"),
        ));
    }
    if until > StageName::Ungate {
        findings.push(
            invalid(
                node,
                format!("`until: {until}`: it ends with `ungate` at the latest"),
            )
            .hint("nothing is deleted while objects are not as they will stay"),
        );
    }
    OverlayRule {
        name: overlay.name.clone(),
        target: overlay.target.clone(),
        patch: NonSecret(overlay.patch.clone()),
        from,
        until,
        origin: node.origin(),
    }
}

pub(super) fn check_name(what: &str, name: &str, node: &Node, findings: &mut Vec<Finding>) {
    let valid = (1..=63).contains(&name.len())
        && name
            .bytes()
            .all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-');
    if !valid {
        findings.push(
            Finding::error(
                Kind::Repository,
                "invalid-name",
                format!("`{name}` cannot be the name of {what}"),
            )
            .at(node.origin())
            .hint("lower-case letters, digits and -, at most 63 characters"),
        );
    }
}

fn check_target(target: &Selector, node: &Node, findings: &mut Vec<Finding>) {
    if target.kind == "*" || target.group_kind().is_none() {
        let message = format!("the group of {} is not known", target.kind);
        findings.push(invalid(node, message).hint("name one kind, with `group`"));
    }
    if target.service.is_some() {
        findings.push(unsupported::at(node.origin(), "target.service"));
    }
}

/// A patch may change what an object wants, its labels and its annotations,
/// and nothing that says which object it is or whose.
fn check_patch(patch: &Value, node: &Node, findings: &mut Vec<Finding>) {
    let Some(map) = patch.as_object().filter(|map| !map.is_empty()) else {
        findings.push(invalid(node, "`patch` is a map with at least one field"));
        return;
    };
    for key in map.keys() {
        if matches!(key.as_str(), "apiVersion" | "kind" | "status") {
            findings.push(invalid(node, format!("`patch.{key}` cannot be changed")));
        }
    }
    for (key, below) in map
        .get("metadata")
        .and_then(Value::as_object)
        .into_iter()
        .flatten()
    {
        if !matches!(key.as_str(), "labels" | "annotations") {
            findings.push(invalid(
                node,
                format!("`patch.metadata.{key}` cannot be changed"),
            ));
        }
        for name in below.as_object().into_iter().flat_map(|map| map.keys()) {
            let ours = name.starts_with("pleach.dev/") || name == labels::PART_OF;
            if ours || name == annotations::LAST_APPLIED {
                findings.push(invalid(
                    node,
                    format!("`{name}` is not changed for a while"),
                ));
            }
        }
    }
}

fn check_secrets(
    rule: &OverlayRule,
    node: &Node,
    secret: &[SecretRule],
    findings: &mut Vec<Finding>,
) {
    let same_kind = |other: &Selector| {
        other.kind == "*"
            || other.kind == rule.target.kind
                && other.group.as_ref().is_none_or(|group| {
                    rule.target
                        .group_kind()
                        .is_some_and(|kind| kind.group == *group)
                })
    };
    let fields: Vec<&SecretField> = secret
        .iter()
        .filter(|one| same_kind(&one.target))
        .flat_map(|one| &one.fields)
        .collect();
    for field in fields.iter().filter(|field| field.meets(&rule.patch.0)) {
        let message = format!("the patch changes {field}, which is secret");
        findings.push(
            invalid(node, message)
                .hint("what was there before is written down, and a secret must not be"),
        );
    }
}

/// The stage with a name: a standard one, or one of the bundle's own.
fn find(
    name: &str,
    declared: &[StageRule],
    node: &Node,
    findings: &mut Vec<Finding>,
) -> Option<StageName> {
    let own = declared.iter().map(|rule| &rule.stage);
    let found = StageName::standard(name).or_else(|| {
        let mut own = own.clone();
        own.find(|stage| stage.as_str() == name).cloned()
    });
    if found.is_none() {
        let known: Vec<&str> = StageName::STANDARD
            .iter()
            .chain(own)
            .map(StageName::as_str)
            .collect();
        findings.push(unknown_stage(name, &known, node));
    }
    found
}

fn unknown_stage(name: &str, known: &[&str], node: &Node) -> Finding {
    let finding = Finding::error(
        Kind::Repository,
        "unknown-stage",
        format!("there is no stage `{name}`"),
    )
    .at(node.origin());
    finding.hint(
        did_you_mean(name, known).unwrap_or_else(|| format!("there are {}", known.join(", "))),
    )
}

/// Declared stages whose place is not known yet.
struct Declared<'a> {
    all: Vec<(&'a Stage, &'a Node)>,
}

impl<'a> Declared<'a> {
    fn read(stages: &'a [Stage], nodes: &'a [Node], findings: &mut Vec<Finding>) -> Self {
        let mut names: BTreeSet<&str> = BTreeSet::new();
        let mut all = Vec::new();
        for (index, (stage, node)) in stages.iter().zip(nodes).enumerate() {
            let before = findings.len();
            check_name("a stage", &stage.name, node, findings);
            if StageName::standard(&stage.name).is_some() || !names.insert(&stage.name) {
                let message = format!("there is a stage `{}` already", stage.name);
                findings.push(invalid(node, message).hint("give it another name"));
            }
            refuse_later(stage, node, index, findings);
            check_steps(stage, node, findings);
            if findings.len() == before {
                all.push((stage, node));
            }
        }
        Self { all }
    }

    /// Puts every stage behind a standard one: the last that it comes after, or
    /// the one before the first that it comes before; else behind the workloads.
    fn placed(self, findings: &mut Vec<Finding>) -> Vec<StageRule> {
        let names: Vec<&str> = self
            .all
            .iter()
            .map(|(stage, _)| stage.name.as_str())
            .collect();
        let known: Vec<&str> = StageName::STANDARD
            .iter()
            .map(StageName::as_str)
            .chain(names.iter().copied())
            .collect();
        let mut broken = false;
        for (stage, node) in &self.all {
            for name in links(stage) {
                if !known.contains(&name) {
                    findings.push(unknown_stage(name, &known, node));
                    broken = true;
                }
            }
        }
        if broken {
            return Vec::new();
        }
        let Some(slots) = self.slots() else {
            let (_, node) = self.all[0];
            findings.push(invalid(
                node,
                format!("these stages wait for each other: {}", names.join(", ")),
            ));
            return Vec::new();
        };
        let mut placed: Vec<(usize, usize)> =
            (0..self.all.len()).map(|one| (slots[one].0, one)).collect();
        placed.sort_by_key(|(slot, one)| (*slot, slots[*one].1, *one));
        placed
            .into_iter()
            .enumerate()
            .map(|(order, (slot, one))| {
                let (stage, node) = self.all[one];
                if slot >= position(&StageName::Verify) {
                    findings.push(
                        invalid(node, format!("stage `{}` comes after `verify`", stage.name))
                            .hint("by then everything is ready, and nothing is changed any more"),
                    );
                }
                let after = &StageName::STANDARD[slot];
                rule(stage, node, StageName::declared(&stage.name, after, order))
            })
            .collect()
    }

    /// For every stage the position of the standard one it stands behind, and
    /// how many of its own kind come before it; none where that has no end.
    fn slots(&self) -> Option<Vec<(usize, usize)>> {
        let index: BTreeMap<&str, usize> = self
            .all
            .iter()
            .enumerate()
            .map(|(one, (stage, _))| (stage.name.as_str(), one))
            .collect();
        let mut slots: Vec<(usize, usize)> = self
            .all
            .iter()
            .map(|(stage, _)| {
                // It stands where those of its own kind stand that it names.
                let own = |names: &Option<Vec<String>>| {
                    let names = names.iter().flatten();
                    names
                        .filter_map(|name| index.get(name.as_str()))
                        .map(|other| first_slot(self.all[*other].0))
                        .min()
                };
                let says = links(stage).any(|name| StageName::standard(name).is_some());
                let slot = match (says, own(&stage.after), own(&stage.before)) {
                    (true, ..) | (false, None, None) => first_slot(stage),
                    (false, Some(_), _) => 0,
                    (false, None, Some(before)) => before,
                };
                (slot, 0)
            })
            .collect();
        // Each round moves a stage behind those it comes after; without a circle
        // there are no more rounds than stages.
        for _ in 0..=self.all.len() {
            let mut moved = false;
            for one in 0..self.all.len() {
                let (stage, _) = self.all[one];
                let mut pairs: Vec<(usize, usize)> = Vec::new();
                for name in stage.after.iter().flatten() {
                    pairs.extend(index.get(name.as_str()).map(|&other| (other, one)));
                }
                for name in stage.before.iter().flatten() {
                    pairs.extend(index.get(name.as_str()).map(|&other| (one, other)));
                }
                for (first, second) in pairs {
                    let (slot, depth) = slots[first];
                    let wanted = (slots[second].0.max(slot), slots[second].1.max(depth + 1));
                    if wanted != slots[second] {
                        slots[second] = wanted;
                        moved = true;
                    }
                }
            }
            if !moved {
                let fits = |(one, (stage, _)): (usize, &(&Stage, &Node))| {
                    let before = stage.before.iter().flatten();
                    before
                        .filter_map(|name| StageName::standard(name))
                        .all(|stage| slots[one].0 < position(&stage))
                };
                return self.all.iter().enumerate().all(fits).then_some(slots);
            }
        }
        None
    }
}

fn links(stage: &Stage) -> impl Iterator<Item = &str> {
    let after = stage.after.iter().flatten();
    after
        .chain(stage.before.iter().flatten())
        .map(String::as_str)
}

/// Where a stage stands by the standard ones that it names.
fn first_slot(stage: &Stage) -> usize {
    let positions = |names: &Option<Vec<String>>| {
        let names = names.iter().flatten();
        let found = names.filter_map(|name| StageName::standard(name));
        found.map(|stage| position(&stage)).collect::<Vec<_>>()
    };
    let after = positions(&stage.after).into_iter().max();
    let before = positions(&stage.before).into_iter().min();
    match (after, before) {
        (Some(after), _) => after,
        (None, Some(before)) => before.saturating_sub(1),
        (None, None) => position(&StageName::Workloads),
    }
}

fn position(stage: &StageName) -> usize {
    let mut standard = StageName::STANDARD.iter();
    standard.position(|one| one == stage).unwrap_or_default()
}

/// What a stage may say and pleach does not do yet.
fn refuse_later(stage: &Stage, node: &Node, index: usize, findings: &mut Vec<Finding>) {
    let later = [
        ("select", stage.select.is_some()),
        ("rollout", stage.rollout.is_some()),
        ("verify", stage.verify.is_some()),
        ("ready", stage.ready.is_some()),
    ];
    for (field, _) in later.into_iter().filter(|(_, said)| *said) {
        findings.push(unsupported::at(
            node.origin(),
            &format!("stages[{index}].{field}"),
        ));
    }
    let scaled = stage.scale.iter().flatten().next().is_some();
    let restarted = stage.restart.iter().flatten().next().is_some();
    if !scaled && !restarted && stage.select.is_none() {
        let message = format!("stage `{}` does nothing", stage.name);
        findings.push(invalid(node, message).hint("say what it restarts or scales"));
    }
}

fn check_steps(stage: &Stage, node: &Node, findings: &mut Vec<Finding>) {
    let mut check = |target: &Selector, kinds: &[&str], what: &str| {
        if target.service.is_some() {
            findings.push(unsupported::at(node.origin(), &format!("{what}.service")));
        }
        let known = kinds.contains(&target.kind.as_str());
        if !known || target.group_kind().is_some_and(|kind| kind.group != "apps") {
            let message = format!("a {} cannot be {what}", target.kind);
            findings.push(invalid(node, message).hint(format!("name a {}", kinds.join(", a "))));
        }
    };
    for target in stage.restart.iter().flatten() {
        check(target, &RESTARTED, "restarted");
    }
    for scale in stage.scale.iter().flatten() {
        check(&selector(scale), &SCALED, "scaled");
    }
}

fn selector(scale: &Scale) -> Selector {
    Selector {
        kind: scale.kind.clone(),
        group: scale.group.clone(),
        name: scale.name.clone(),
        namespace: scale.namespace.clone(),
        labels: scale.labels.clone().unwrap_or_default(),
        service: None,
    }
}

fn rule(stage: &Stage, node: &Node, name: StageName) -> StageRule {
    StageRule {
        stage: name,
        scale: stage
            .scale
            .iter()
            .flatten()
            .map(|scale| ScaleRule {
                target: selector(scale),
                replicas: scale.replicas,
            })
            .collect(),
        restart: stage.restart.clone().unwrap_or_default(),
        timeout: stage.timeout.map(|timeout| timeout.0),
        origin: node.origin(),
    }
}
