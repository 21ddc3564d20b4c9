//! Namespaces that no manifest contains.

use std::collections::BTreeSet;

use super::Scene;
use pleach_model::finding::{Finding, Kind};
use pleach_model::object::ObjectId;
use pleach_state::inventory::{STATE_NAMESPACE, Store};

/// Namespaces that exist in every cluster.
const EVERYWHERE: [&str; 4] = ["default", "kube-node-lease", "kube-public", "kube-system"];

pub(super) fn check(scene: &Scene<'_>, findings: &mut Vec<Finding>) {
    let created: BTreeSet<&str> = scene
        .environment
        .releases
        .iter()
        .filter_map(|release| release.namespace.as_deref())
        .collect();
    let mut reported = BTreeSet::new();
    for object in &scene.objects {
        let Some(namespace) = object.id().namespace.as_deref() else {
            continue;
        };
        // The state namespace is created before the first apply.
        let is_of_state = namespace == STATE_NAMESPACE && scene.environment.store == Store::Release;
        let exists = EVERYWHERE.contains(&namespace)
            || is_of_state
            || created.contains(namespace)
            || scene.has(&ObjectId::new("", "Namespace", None, namespace));
        // One finding per namespace and release is sufficient.
        if exists || !reported.insert((namespace, &object.release.name)) {
            continue;
        }
        let finding = Finding::warning(
            Kind::Repository,
            "namespace-not-made",
            format!("no manifest of the environment creates namespace {namespace}, so it must exist already"),
        )
        .hint("add a Namespace, or a release with this `namespace`");
        findings.push(object.at(finding, "/metadata/namespace"));
    }
}
