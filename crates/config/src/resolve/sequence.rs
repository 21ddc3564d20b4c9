//! Resolution of a bundle's overlays, gates, migrations, moves and stages.

mod gates;
mod moves;

mod declared;

use std::collections::BTreeSet;

use serde_json::Value;

use super::{Source, check_service, rules};
use declared::Declared;
use pleach_formats::gate;
use pleach_formats::{
    check::Check,
    file::{Migration, Overlay},
    nodes::NodesRule,
    policy::SecretRule,
    sequence::{MigrationRule, OverlayRule, Sequence, StageRule},
};
use pleach_model::finding::{Finding, Kind};
use pleach_model::object::{
    Located, NonSecret, Places, SecretField, Selector, annotations, labels,
};
use pleach_model::order::StageName;
use pleach_model::suggest::did_you_mean;
use pleach_state::inventory::STATE_NAMESPACE;

/// API group of pleach's own state objects.
const OWN_GROUP: &str = "pleach.dev";

/// Resolves the sequence of a bundle. Overlays of its secret fields are refused, because the
/// journal would contain the original values.
pub(super) fn sequence(
    source: &Source,
    secret: &[SecretRule],
    findings: &mut Vec<Finding>,
) -> Sequence {
    let stages = Declared::read(source, findings).placed(findings);
    let mut names = BTreeSet::new();
    let overlays = source.body.overlays.iter().flatten();
    let overlays = overlays
        .filter_map(|overlay| {
            let before = findings.len();
            if !names.insert(&overlay.name) {
                let message = format!("a second overlay `{}`", overlay.name);
                findings.push(
                    overlay
                        .places
                        .refuse(message, "give one of them another name"),
                );
            }
            let rule = overlay_rule(overlay, &stages, findings);
            check_secrets(&rule, &overlay.places, secret, findings);
            (findings.len() == before).then_some(rule)
        })
        .collect();
    let migrations = source.body.migrate.iter().flatten();
    let migrations = migrations
        .map(|migration| migration_rule(migration, findings))
        .collect();
    let gates = gates::gates(source.body.gates.iter().flatten(), &stages, findings);
    let moves = moves::moves(source.body.moves.iter().flatten(), findings);
    let checks = rules::checks(source, secret, findings);
    check_nodes_named(&stages, &checks, findings);
    Sequence {
        overlays,
        stages,
        gates,
        moves,
        migrations: without_doubles(migrations, findings),
        checks,
        readiness: rules::readiness(source, findings),
    }
}

/// Refuses a check with variable `node` that no change of nodes names, or that verifies a stage.
fn check_nodes_named(stages: &[StageRule], checks: &[Check], findings: &mut Vec<Finding>) {
    let rules = stages.iter().filter_map(|stage| stage.nodes.as_ref());
    let named: BTreeSet<&str> = rules.flat_map(NodesRule::checks).collect();
    let verifying: BTreeSet<&String> = stages.iter().flat_map(|stage| &stage.checks).collect();
    let misplaced = |check: &&Check| {
        let is_named = named.contains(check.name.as_str());
        check.needs_node() && (!is_named || verifying.contains(&check.name))
    };
    for check in checks.iter().filter(misplaced) {
        let message = format!(
            "check {} uses `node`, which exists only in `before` and `after` of `nodes`",
            check.name
        );
        let finding = Finding::error(Kind::Repository, "check-needs-node", message);
        let hint = "name it there, and nowhere else";
        findings.push(finding.at(check.origin.clone()).hint(hint));
    }
}

fn migration_rule(migration: &Located<Migration>, findings: &mut Vec<Finding>) -> MigrationRule {
    let Located { value, places } = migration;
    let Migration { crd, from, to } = value;
    if !crd.contains('.') {
        let message = format!("`crd: {crd}` is not the name of a CRD");
        findings.push(places.refuse(message, "write plural and group, such as gears.example.org"));
    }
    if from == to {
        findings.push(places.invalid(format!("`from` and `to` are both {to}")));
    }
    MigrationRule {
        crd: crd.clone(),
        from: from.clone(),
        to: to.clone(),
        origin: places.origin.clone(),
    }
}

/// Refuses conflicting migrations. All objects of a CRD are stored in one version, so all its
/// migrations must have the same target.
fn without_doubles(rules: Vec<MigrationRule>, findings: &mut Vec<Finding>) -> Vec<MigrationRule> {
    let mut valid: Vec<MigrationRule> = Vec::new();
    for rule in rules {
        let error = |message: String| {
            Finding::error(Kind::Repository, "invalid-value", message).at(rule.origin.clone())
        };
        let mut others = valid.iter().filter(|other| other.crd == rule.crd);
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
            valid.push(rule);
        }
    }
    valid
}

fn overlay_rule(
    overlay: &Located<Overlay>,
    stages: &[StageRule],
    findings: &mut Vec<Finding>,
) -> OverlayRule {
    let Located {
        value: overlay,
        places,
    } = overlay;
    check_name("an overlay", &overlay.name, places, findings);
    check_target(&overlay.target, places, findings);
    let kind = overlay.target.group_kind();
    if kind.is_some_and(|kind| kind.is("", "Secret")) {
        let hint = "pleach records the previous values, and must not record those of a Secret";
        let message = "an overlay cannot change a Secret";
        findings.push(places.refuse(message, hint));
    }
    check_patch(&overlay.patch, places, findings);
    let names = (overlay.from.as_deref(), overlay.until.as_deref());
    let why = "pleach deletes objects only after all others have their final state";
    let (from, until) = lasts(names, stages, places, why, findings);
    OverlayRule {
        name: overlay.name.clone(),
        target: overlay.target.clone(),
        patch: NonSecret(overlay.patch.clone()),
        from,
        until,
        origin: places.origin.clone(),
    }
}

pub(super) fn check_name(what: &str, name: &str, places: &Places, findings: &mut Vec<Finding>) {
    let valid = (1..=63).contains(&name.len())
        && name
            .bytes()
            .all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-');
    if !valid {
        let message = format!("`{name}` is not a valid name for {what}");
        let finding = places.error("invalid-name", message);
        findings.push(finding.hint("use lower-case letters, digits and -, at most 63 characters"));
    }
}

fn check_target(target: &Selector, places: &Places, findings: &mut Vec<Finding>) {
    let kind = target.group_kind();
    if target.kind == "*" || kind.is_none() {
        let message = format!("the API group of {} is not known", target.kind);
        findings.push(places.refuse(message, "name one kind and set `group`"));
    }
    if kind.as_ref().is_some_and(|kind| kind.group == OWN_GROUP) {
        findings.push(places.invalid(format!(
            "{} contains records of pleach, which an overlay cannot change",
            target.kind
        )));
    }
    if kind.as_ref().is_some_and(gate::is_admission) {
        let hint = "change its manifest, or use `gates` to refuse writes during an upgrade";
        let message = format!(
            "{} controls the writes of other clients, and an overlay cannot change it",
            target.kind
        );
        findings.push(places.refuse(message, hint));
    }
    if target.namespace.as_deref() == Some(STATE_NAMESPACE) {
        let message = format!(
            "namespace {STATE_NAMESPACE} contains state of pleach, which an overlay cannot change"
        );
        findings.push(places.invalid(message));
    }
    check_service(target, places, findings);
}

/// Checks an overlay's patch. It can change spec, labels and annotations, but not identity and
/// owners of the object.
fn check_patch(patch: &Value, places: &Places, findings: &mut Vec<Finding>) {
    let Some(map) = patch.as_object().filter(|map| !map.is_empty()) else {
        findings.push(places.invalid("`patch` must be a map with at least one field"));
        return;
    };
    for key in map.keys() {
        if matches!(key.as_str(), "apiVersion" | "kind" | "status") {
            findings.push(places.invalid(format!("`patch.{key}` cannot be changed")));
        }
    }
    let metadata = map.get("metadata");
    if metadata.is_some_and(|metadata| !metadata.is_object()) {
        findings.push(places.invalid("`patch.metadata` must be a map"));
    }
    for (key, below) in metadata.and_then(Value::as_object).into_iter().flatten() {
        if !below.is_object() {
            findings.push(places.invalid(format!("`patch.metadata.{key}` must be a map")));
        }
        if !matches!(key.as_str(), "labels" | "annotations") {
            findings.push(places.invalid(format!("`patch.metadata.{key}` cannot be changed")));
        }
        for name in below.as_object().into_iter().flat_map(|map| map.keys()) {
            let ours = name.starts_with("pleach.dev/") || name == labels::PART_OF;
            if ours || name == annotations::LAST_APPLIED {
                findings.push(places.invalid(format!("an overlay cannot change `{name}`")));
            }
        }
    }
}

fn check_secrets(
    rule: &OverlayRule,
    places: &Places,
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
        findings.push(places.refuse(
            message,
            "pleach records the previous values, and must not record a secret",
        ));
    }
}

/// Resolves the stages in which a temporary change starts and ends. `why` explains in errors why it
/// cannot last longer.
fn lasts(
    (from, until): (Option<&str>, Option<&str>),
    stages: &[StageRule],
    places: &Places,
    why: &str,
    findings: &mut Vec<Finding>,
) -> (StageName, StageName) {
    let mut stage = |name: Option<&str>, default: StageName| match name {
        None => default,
        Some(name) => find(name, stages, places, findings).unwrap_or(default),
    };
    let from = stage(from, StageName::Gates);
    let until = stage(until, StageName::Ungate);
    if from > until {
        let message = format!("`from: {from}` comes after `until: {until}`");
        findings.push(places.invalid(message));
    }
    if until > StageName::Ungate {
        let message = format!("`until: {until}`: the last allowed stage is `ungate`");
        findings.push(places.refuse(message, why));
    }
    (from, until)
}

/// Finds a stage by name: a standard one, or one that the bundle declares.
fn find(
    name: &str,
    declared: &[StageRule],
    places: &Places,
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
        findings.push(unknown_stage(name, &known, places));
    }
    found
}

fn unknown_stage(name: &str, known: &[&str], places: &Places) -> Finding {
    let finding = places.error("unknown-stage", format!("there is no stage `{name}`"));
    finding.hint(
        did_you_mean(name, known).unwrap_or_else(|| format!("known stages: {}", known.join(", "))),
    )
}
