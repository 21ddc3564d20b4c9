//! Resolution of moves between namespaces.

use super::check_service;
use crate::resolve::unknown_group;
use pleach_formats::{
    file::Move,
    sequence::{CopyRule, MoveRule},
};
use pleach_model::finding::Finding;
use pleach_model::object::{Located, Places, Selector};

/// Resolves the moves of a bundle.
pub(super) fn moves<'a>(
    moves: impl Iterator<Item = &'a Located<Move>>,
    findings: &mut Vec<Finding>,
) -> Vec<MoveRule> {
    moves
        .filter_map(|one| {
            let before = findings.len();
            for (field, namespace) in [("from", &one.from), ("to", &one.to)] {
                if !is_label(namespace) {
                    let message = format!("`{field}: {namespace}` is not a namespace name");
                    findings.push(one.places.invalid(message));
                }
            }
            if one.from == one.to {
                let message = "`from` and `to` are the same namespace";
                findings.push(one.places.invalid(message));
            }
            let copy = one.copy.iter().flatten();
            let copy = copy
                .filter_map(|selector| copied(selector, &one.places, findings))
                .collect();
            (findings.len() == before).then(|| MoveRule {
                from: one.from.clone(),
                to: one.to.clone(),
                copy,
                origin: one.places.origin.clone(),
            })
        })
        .collect()
}

fn is_label(text: &str) -> bool {
    (1..=63).contains(&text.len())
        && text
            .bytes()
            .all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-')
}

/// Resolves the objects to copy. Each rule must name kind and name.
fn copied(selector: &Selector, places: &Places, findings: &mut Vec<Finding>) -> Option<CopyRule> {
    let kind = selector.group_kind();
    if kind.is_none() {
        findings.push(unknown_group(places, &selector.kind));
    }
    if selector.namespace.is_some() {
        let message = "objects are copied from the namespace `from`";
        findings.push(places.refuse(message, "omit `namespace`"));
    }
    check_service(selector, places, findings);
    if selector.name.is_none() {
        let message = format!("a rule that copies a {} needs `name`", selector.kind);
        findings.push(places.refuse(message, "set `name`, which can contain `*` and `?`"));
    }
    Some(CopyRule {
        kind: kind?,
        name: selector.name.clone()?,
        labels: selector.labels.clone(),
    })
}
