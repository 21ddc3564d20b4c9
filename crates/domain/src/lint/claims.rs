//! Objects that two environments claim on one cluster.

use std::collections::BTreeMap;

use super::Linted;
use crate::finding::{Finding, Kind};

/// Finds objects that several environments of one cluster have. Only
/// environments that say `cluster.id` can be compared.
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
                            "environments {owner} and {} both have the object on cluster \
                             {cluster}; {owner} has it at {place}",
                            linted.environment
                        ),
                    )
                    .at(origin.clone())
                    .on(id.clone())
                    .hint("one environment per object: the other would take it over and prune it"),
                );
            }
        }
    }
    findings
}
