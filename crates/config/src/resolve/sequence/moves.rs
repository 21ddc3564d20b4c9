//! Resolution of moves between namespaces.

use super::{check_service, invalid};
use pleach_formats::{
    file::Move,
    sequence::{CopyRule, MoveRule},
};
use pleach_model::finding::Finding;
use pleach_model::object::{Selector, yaml::Node};

/// Resolves the moves of a bundle.
pub(super) fn moves(moves: &[Move], nodes: &[Node], findings: &mut Vec<Finding>) -> Vec<MoveRule> {
    let pairs = moves.iter().zip(nodes);
    pairs
        .filter_map(|(one, node)| {
            let before = findings.len();
            for (field, namespace) in [("from", &one.from), ("to", &one.to)] {
                if !is_label(namespace) {
                    let message = format!("`{field}: {namespace}` is not a namespace name");
                    findings.push(invalid(node, message));
                }
            }
            if one.from == one.to {
                findings.push(invalid(node, "`from` and `to` are the same namespace"));
            }
            let copy = one.copy.iter().flatten();
            let copy = copy
                .filter_map(|selector| copied(selector, node, findings))
                .collect();
            (findings.len() == before).then(|| MoveRule {
                from: one.from.clone(),
                to: one.to.clone(),
                copy,
                origin: node.origin(),
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
fn copied(selector: &Selector, node: &Node, findings: &mut Vec<Finding>) -> Option<CopyRule> {
    let kind = selector.group_kind();
    if kind.is_none() {
        let message = format!("the API group of {} is not known", selector.kind);
        findings.push(invalid(node, message).hint("set `group`"));
    }
    if selector.namespace.is_some() {
        let finding = invalid(node, "objects are copied from the namespace `from`");
        findings.push(finding.hint("omit `namespace`"));
    }
    check_service(selector, node, findings);
    if selector.name.is_none() {
        let finding = invalid(
            node,
            format!("a rule that copies a {} needs `name`", selector.kind),
        );
        findings.push(finding.hint("set `name`, which can contain `*` and `?`"));
    }
    Some(CopyRule {
        kind: kind?,
        name: selector.name.clone()?,
        labels: selector.labels.clone(),
    })
}
