//! Resolution of gates, which temporarily refuse writes by other clients.

use std::collections::BTreeSet;

use jiff::SignedDuration;

use super::{check_name, lasts};
use pleach_formats::file::Gate;
use pleach_formats::gate::{Closed, Operation, account};
use pleach_formats::sequence::{GateRule, StageRule};
use pleach_model::finding::Finding;
use pleach_model::object::{Located, Places};

/// Default maximum age of a gate.
const MAX_AGE: SignedDuration = SignedDuration::from_hours(1);

/// Resolves the gates of a bundle.
pub(super) fn gates<'a>(
    gates: impl Iterator<Item = &'a Located<Gate>>,
    stages: &[StageRule],
    findings: &mut Vec<Finding>,
) -> Vec<GateRule> {
    let mut names = BTreeSet::new();
    let mut rules = Vec::new();
    for gate in gates {
        let before = findings.len();
        if !names.insert(&gate.name) {
            let message = format!("a second gate `{}`", gate.name);
            findings.push(gate.places.refuse(message, "give one of them another name"));
        }
        let rule = gate_rule(gate, stages, findings);
        if findings.len() == before {
            rules.push(rule);
        }
    }
    rules
}

fn gate_rule(gate: &Located<Gate>, stages: &[StageRule], findings: &mut Vec<Finding>) -> GateRule {
    let places = &gate.places;
    check_name("a gate", &gate.name, places, findings);
    if gate.name.starts_with('-') || gate.name.ends_with('-') {
        findings.push(places.invalid("the name of a gate must not begin or end with -"));
    }
    check_groups(&gate.groups, places, findings);
    let resources = gate
        .resources
        .clone()
        .unwrap_or_else(|| vec!["*".to_owned()]);
    check_resources(&resources, places, findings);
    let mut operations = gate
        .operations
        .clone()
        .unwrap_or_else(|| vec![Operation::Create, Operation::Update]);
    if operations.is_empty() {
        findings.push(places.invalid("`operations` must not be empty"));
    }
    operations.sort_by_key(|operation| operation.as_str());
    operations.dedup();
    let mut exempt = Vec::new();
    for one in gate.exempt.iter().flatten() {
        match one.service_account.split_once('/') {
            Some((namespace, name)) if !namespace.is_empty() && !name.is_empty() => {
                exempt.push(account(namespace, name));
            }
            _ => findings.push(places.refuse(
                format!("`{}` is not a service account", one.service_account),
                "write it as NAMESPACE/NAME",
            )),
        }
    }
    let names = (gate.from.as_deref(), gate.until.as_deref());
    let why = "after `ungate`, everything is ready and no client has to wait";
    let (from, until) = lasts(names, stages, places, why, findings);
    let max_age = gate.max_duration.map_or(MAX_AGE, |duration| duration.0);
    if max_age <= SignedDuration::ZERO {
        findings.push(places.invalid("`maxDuration` must be longer than zero"));
    }
    GateRule {
        name: gate.name.clone(),
        closed: Closed {
            groups: gate.groups.clone(),
            resources,
        },
        operations,
        exempt,
        from,
        until,
        max_age,
        origin: places.origin.clone(),
    }
}

fn check_groups(groups: &[String], places: &Places, findings: &mut Vec<Finding>) {
    if groups.is_empty() {
        findings.push(places.invalid("`groups` must not be empty"));
    }
    for group in groups {
        if group.contains('*') {
            let message = format!("`{group}` would also match API groups of other bundles");
            findings.push(places.refuse(message, "name each API group"));
        }
    }
}

/// Checks that resources are plurals or `*`. Their subresources are included implicitly.
fn check_resources(resources: &[String], places: &Places, findings: &mut Vec<Finding>) {
    if resources.is_empty() {
        findings.push(places.invalid("`resources` must not be empty"));
    }
    for resource in resources {
        let is_plural = resource.bytes().all(|b| b.is_ascii_alphanumeric());
        if resource != "*" && (!is_plural || resource.is_empty()) {
            let message = format!("`{resource}` is not the plural name of a kind");
            findings.push(places.refuse(
                message,
                "use a plural such as `deployments`, which includes subresources, or `*` for all",
            ));
        }
    }
}
