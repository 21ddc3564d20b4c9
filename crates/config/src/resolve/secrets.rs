//! Resolution of secret fields in objects other than Secrets.

use super::super::bundle::Source;
use pleach_formats::policy::SecretRule;
use pleach_model::finding::{Finding, Kind};
use pleach_model::object::{SecretField, Selector, yaml::Node};

/// Resolves the `secretFields` of a bundle. Each rule lists its fields as paths.
pub(super) fn secret_fields(source: &Source, findings: &mut Vec<Finding>) -> Vec<SecretRule> {
    let rules = source.body.secret_fields.as_deref().unwrap_or_default();
    let nodes = source.node.get("secretFields").map_or(&[][..], Node::items);
    rules
        .iter()
        .zip(nodes)
        .map(|(rule, node)| {
            let fields = rule.fields.iter().filter_map(|text| {
                let read = text.parse::<SecretField>();
                read.map_err(|error| {
                    findings.push(
                        Finding::error(Kind::Repository, "invalid-value", error.to_string())
                            .at(node.origin())
                            .hint("write it as data.password or spec.users[name=admin].password"),
                    );
                })
                .ok()
            });
            SecretRule {
                fields: fields.collect(),
                target: Selector {
                    kind: rule.kind.clone(),
                    group: rule.group.clone(),
                    name: rule.name.clone(),
                    namespace: rule.namespace.clone(),
                    labels: rule.labels.clone().unwrap_or_default(),
                    service: None,
                },
                origin: node.origin(),
            }
        })
        .collect()
}
