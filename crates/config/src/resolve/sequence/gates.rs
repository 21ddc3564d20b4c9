//! Resolution of gates, which temporarily refuse writes by other clients.

use std::collections::BTreeSet;

use jiff::SignedDuration;

use super::{check_name, invalid, lasts};
use pleach_formats::file::Gate;
use pleach_formats::gate::{Closed, Operation, account};
use pleach_formats::sequence::{GateRule, StageRule};
use pleach_model::finding::Finding;
use pleach_model::object::yaml::Node;

/// Default maximum age of a gate.
const MAX_AGE: SignedDuration = SignedDuration::from_hours(1);

/// Resolves the gates of a bundle.
pub(super) fn gates(
    gates: &[Gate],
    nodes: &[Node],
    stages: &[StageRule],
    findings: &mut Vec<Finding>,
) -> Vec<GateRule> {
    let mut names = BTreeSet::new();
    let mut rules = Vec::new();
    for (gate, node) in gates.iter().zip(nodes) {
        let before = findings.len();
        if !names.insert(&gate.name) {
            let message = format!("a second gate `{}`", gate.name);
            findings.push(invalid(node, message).hint("give one of them another name"));
        }
        let rule = gate_rule(gate, node, stages, findings);
        if findings.len() == before {
            rules.push(rule);
        }
    }
    rules
}

fn gate_rule(
    gate: &Gate,
    node: &Node,
    stages: &[StageRule],
    findings: &mut Vec<Finding>,
) -> GateRule {
    check_name("a gate", &gate.name, node, findings);
    if gate.name.starts_with('-') || gate.name.ends_with('-') {
        findings.push(invalid(
            node,
            "the name of a gate must not begin or end with -",
        ));
    }
    check_groups(&gate.groups, node, findings);
    let resources = gate
        .resources
        .clone()
        .unwrap_or_else(|| vec!["*".to_owned()]);
    check_resources(&resources, node, findings);
    let mut operations = gate
        .operations
        .clone()
        .unwrap_or_else(|| vec![Operation::Create, Operation::Update]);
    if operations.is_empty() {
        findings.push(invalid(node, "`operations` must not be empty"));
    }
    operations.sort_by_key(|operation| operation.as_str());
    operations.dedup();
    let mut exempt = Vec::new();
    for one in gate.exempt.iter().flatten() {
        match one.service_account.split_once('/') {
            Some((namespace, name)) if !namespace.is_empty() && !name.is_empty() => {
                exempt.push(account(namespace, name));
            }
            _ => findings.push(
                invalid(
                    node,
                    format!("`{}` is not a service account", one.service_account),
                )
                .hint("write it as NAMESPACE/NAME"),
            ),
        }
    }
    let names = (gate.from.as_deref(), gate.until.as_deref());
    let why = "after `ungate`, everything is ready and no client has to wait";
    let (from, until) = lasts(names, stages, node, why, findings);
    let max_age = gate.max_duration.map_or(MAX_AGE, |duration| duration.0);
    if max_age <= SignedDuration::ZERO {
        findings.push(invalid(node, "`maxDuration` must be longer than zero"));
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
        origin: node.origin(),
    }
}

fn check_groups(groups: &[String], node: &Node, findings: &mut Vec<Finding>) {
    if groups.is_empty() {
        findings.push(invalid(node, "`groups` must not be empty"));
    }
    for group in groups {
        if group.contains('*') {
            findings.push(
                invalid(
                    node,
                    format!("`{group}` would also match API groups of other bundles"),
                )
                .hint("name each API group"),
            );
        }
    }
}

/// Checks that resources are plurals or `*`. Their subresources are included implicitly.
fn check_resources(resources: &[String], node: &Node, findings: &mut Vec<Finding>) {
    if resources.is_empty() {
        findings.push(invalid(node, "`resources` must not be empty"));
    }
    for resource in resources {
        let is_plural = resource.bytes().all(|b| b.is_ascii_alphanumeric());
        if resource != "*" && (!is_plural || resource.is_empty()) {
            findings.push(
                invalid(node, format!("`{resource}` is not the plural name of a kind"))
                    .hint("use a plural such as `deployments`, which includes subresources, or `*` for all"),
            );
        }
    }
}
