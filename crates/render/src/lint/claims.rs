//! Objects that several environments of one cluster contain.

use std::collections::BTreeMap;

use super::Linted;
use pleach_model::finding::{Finding, Kind};

/// Reports objects that several environments of one cluster contain. Only environments with a
/// `cluster.id` are compared.
pub fn across(environments: &[Linted]) -> Vec<Finding> {
    let mut owners = BTreeMap::new();
    let mut findings = Vec::new();
    for linted in environments {
        let Some(cluster) = &linted.cluster else {
            continue;
        };
        for (id, origin) in &linted.objects {
            let (owner, place) = *owners
                .entry((cluster, id))
                .or_insert((&linted.environment, origin));
            if *owner != linted.environment {
                findings.push(
                    Finding::error(
                        Kind::Repository,
                        "claimed-twice",
                        format!(
                            "environments {owner} and {} both contain the object on cluster \
                             {cluster}; {owner} has it at {place}",
                            linted.environment
                        ),
                    )
                    .at(origin.clone())
                    .on(id.clone())
                    .hint("declare an object in one environment only: the other one would take ownership and prune it"),
                );
            }
        }
    }
    findings
}
