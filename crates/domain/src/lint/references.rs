//! What pods need and nobody renders.

use std::collections::BTreeSet;

use super::Scene;
use crate::finding::{Finding, Kind};
use crate::object::ObjectId;

pub(super) fn check(scene: &Scene<'_>, findings: &mut Vec<Finding>) {
    for object in &scene.objects {
        let facts = &object.facts;
        let missing: BTreeSet<&ObjectId> = facts
            .pod_references
            .iter()
            .chain(&facts.service_account)
            .filter(|id| !exists(id) && !scene.has(id) && !scene.is_made_at_run_time(id))
            .collect();
        for id in missing {
            let finding = Finding::note(
                Kind::Repository,
                "reference-not-made",
                format!("the pods need {id}, which is in no manifest of the environment"),
            );
            let pointer = if id.is("", "ServiceAccount") {
                "/spec/template/spec/serviceAccountName"
            } else {
                ""
            };
            findings.push(object.at(finding, pointer));
        }
    }
}

/// What every namespace and every cluster has.
fn exists(id: &ObjectId) -> bool {
    let everywhere = [
        ("ServiceAccount", "default"),
        ("ConfigMap", "kube-root-ca.crt"),
        ("PriorityClass", "system-node-critical"),
        ("PriorityClass", "system-cluster-critical"),
    ];
    everywhere.contains(&(id.kind.as_str(), id.name.as_str()))
}
