//! Resolution of a bundle's CEL rules.

use std::collections::BTreeSet;

use super::sequence::check_name;
use super::{Source, unknown_group};
use pleach_formats::becomes::{BecomesRule, BrokenRule};
use pleach_formats::check::Check;
use pleach_formats::policy::SecretRule;
use pleach_formats::readiness::Rules;
use pleach_model::cel::CompileError;
use pleach_model::finding::Finding;
use pleach_model::object::{Places, Selector, well_known_group};

/// Resolves the checks that must pass before a change. Refuses messages that contain the bundle's
/// secret fields.
pub(super) fn checks(
    source: &Source,
    secret: &[SecretRule],
    findings: &mut Vec<Finding>,
) -> Vec<Check> {
    let mut names = BTreeSet::new();
    let mut read = Vec::new();
    for check in source.body.checks.iter().flatten() {
        let places = &check.places;
        check_name("a check", &check.name, places, findings);
        if !names.insert(&check.name) {
            let message = format!("a second check `{}`", check.name);
            findings.push(places.refuse(message, "give one of them another name"));
        }
        check_objects(&check.for_each, places, findings);
        match Check::read(check, secret, places.origin.clone()) {
            Ok(check) => read.push(check),
            Err(broken) => {
                let broken = broken.iter();
                findings.extend(broken.map(|one| expression(places, one.field, &one.error)));
            }
        }
    }
    read
}

/// Resolves the readiness rules.
pub(super) fn readiness(source: &Source, findings: &mut Vec<Finding>) -> Rules {
    let rules = source.body.readiness.as_deref().unwrap_or_default();
    let mut kinds = BTreeSet::new();
    for rule in rules {
        let places = &rule.places;
        let group = rule
            .group
            .as_deref()
            .or_else(|| well_known_group(&rule.kind));
        if group.is_none() || rule.kind == "*" {
            let message = format!("the API group of {} is not known", rule.kind);
            findings.push(places.refuse(message, "name one kind and set `group`"));
        }
        if !kinds.insert((group, &rule.kind)) {
            let message = format!("a second readiness rule for {}", rule.kind);
            findings.push(places.refuse(message, "write one rule with `&&` or `||`"));
        }
        if rule.current.is_none() && rule.failed.is_none() && rule.stable_for.is_none() {
            let message = format!("the readiness rule for {} is empty", rule.kind);
            findings.push(places.refuse(message, "set `current`"));
        }
    }
    match Rules::read(rules.iter().map(|rule| &rule.value)) {
        Ok(rules) => rules,
        Err(broken) => {
            findings.extend(broken.iter().filter_map(|broken| {
                let rule = rules.get(broken.index)?;
                Some(expression(&rule.places, broken.field, &broken.error))
            }));
            Rules::default()
        }
    }
}

/// Resolves the rules for the status of custom resources in a rehearsal.
pub(super) fn rehearsal(source: &Source, findings: &mut Vec<Finding>) -> Vec<BecomesRule> {
    let mut read = Vec::new();
    for rule in source.body.rehearsal.iter().flatten() {
        let places = &rule.places;
        let broken = match BecomesRule::read(rule) {
            Ok(rule) => {
                read.push(rule);
                continue;
            }
            Err(broken) => broken,
        };
        findings.extend(broken.iter().map(|broken| match broken {
            BrokenRule::Group => unknown_group(places, &rule.kind),
            BrokenRule::Field(field) if field == "status" => {
                let message = "`becomes` has no `status`";
                places.refuse(message, "set the fields of the status")
            }
            BrokenRule::Field(field) => {
                let message = format!("`becomes` cannot change `{field}`");
                places.refuse(message, "set only `status`")
            }
            BrokenRule::Deep => places.invalid("`becomes` is nested too deeply"),
            BrokenRule::Expression(field, error) => {
                expression(places, &format!("becomes.{field}"), error)
            }
        }));
    }
    read
}

/// Checks that a rule selects objects of one kind, whose group is known.
pub(super) fn check_objects(target: &Selector, places: &Places, findings: &mut Vec<Finding>) {
    if target.kind == "*" || target.service.is_some() {
        let message = "`forEach` must name one kind";
        findings.push(places.refuse(message, "set `kind` and `group`"));
    } else if target.group_kind().is_none() {
        findings.push(unknown_group(places, &target.kind));
    }
}

/// Reports a wrong expression, at its line.
pub(super) fn expression(places: &Places, field: &str, error: &CompileError) -> Finding {
    places
        .error("invalid-expression", format!("`{field}`: {error}"))
        .at(places.value(field))
        .hint("expected a CEL expression, see docs/reference/checks.md")
}
