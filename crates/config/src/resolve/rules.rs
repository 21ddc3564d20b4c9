//! Resolution of a bundle's CEL rules.

use std::collections::BTreeSet;

use super::Source;
use super::sequence::check_name;
use pleach_formats::check::Check;
use pleach_formats::policy::SecretRule;
use pleach_formats::readiness::Rules;
use pleach_model::cel::CompileError;
use pleach_model::finding::{Finding, Kind};
use pleach_model::object::{Selector, well_known_group, yaml::Node};

/// Resolves the checks that must pass before a change. Refuses messages that contain the bundle's
/// secret fields.
pub(super) fn checks(
    source: &Source,
    secret: &[SecretRule],
    findings: &mut Vec<Finding>,
) -> Vec<Check> {
    let checks = source.body.checks.as_deref().unwrap_or_default();
    let nodes = source.node.get("checks").map_or(&[][..], Node::items);
    let mut names = BTreeSet::new();
    let mut read = Vec::new();
    for (check, node) in checks.iter().zip(nodes) {
        check_name("a check", &check.name, node, findings);
        if !names.insert(&check.name) {
            let message = format!("a second check `{}`", check.name);
            findings.push(invalid(node, message).hint("give one of them another name"));
        }
        check_objects(&check.for_each, node, findings);
        match Check::read(check, secret, node.origin()) {
            Ok(check) => read.push(check),
            Err(broken) => findings.extend(
                broken
                    .iter()
                    .map(|broken| expression(node, broken.field, &broken.error)),
            ),
        }
    }
    read
}

/// Resolves the readiness rules.
pub(super) fn readiness(source: &Source, findings: &mut Vec<Finding>) -> Rules {
    let rules = source.body.readiness.as_deref().unwrap_or_default();
    let nodes = source.node.get("readiness").map_or(&[][..], Node::items);
    let mut kinds = BTreeSet::new();
    for (rule, node) in rules.iter().zip(nodes) {
        let group = rule
            .group
            .as_deref()
            .or_else(|| well_known_group(&rule.kind));
        if group.is_none() || rule.kind == "*" {
            let message = format!("the API group of {} is not known", rule.kind);
            findings.push(invalid(node, message).hint("name one kind and set `group`"));
        }
        if !kinds.insert((group, &rule.kind)) {
            let message = format!("a second readiness rule for {}", rule.kind);
            findings.push(invalid(node, message).hint("write one rule with `&&` or `||`"));
        }
        if rule.current.is_none() && rule.failed.is_none() && rule.stable_for.is_none() {
            let message = format!("the readiness rule for {} is empty", rule.kind);
            findings.push(invalid(node, message).hint("set `current`"));
        }
    }
    match Rules::read(rules) {
        Ok(rules) => rules,
        Err(broken) => {
            findings.extend(broken.iter().filter_map(|broken| {
                let node = nodes.get(broken.index)?;
                Some(expression(node, broken.field, &broken.error))
            }));
            Rules::default()
        }
    }
}

/// Checks that a rule selects objects of one kind, whose group is known.
pub(super) fn check_objects(target: &Selector, node: &Node, findings: &mut Vec<Finding>) {
    if target.kind == "*" || target.service.is_some() {
        findings.push(invalid(node, "`forEach` must name one kind").hint("set `kind` and `group`"));
    } else if target.group_kind().is_none() {
        let message = format!("the API group of {} is not known", target.kind);
        findings.push(invalid(node, message).hint("set `group`"));
    }
}

/// Reports a wrong expression, at its line.
pub(super) fn expression(node: &Node, field: &str, error: &CompileError) -> Finding {
    let place = node.get(field).map_or_else(|| node.origin(), Node::origin);
    Finding::error(
        Kind::Repository,
        "invalid-expression",
        format!("`{field}`: {error}"),
    )
    .at(place)
    .hint("expected a CEL expression, see docs/reference/checks.md")
}

fn invalid(node: &Node, message: impl Into<String>) -> Finding {
    Finding::error(Kind::Repository, "invalid-value", message).at(node.origin())
}
