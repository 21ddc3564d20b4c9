//! Names of CRDs.

use super::Scene;
use pleach_model::finding::{Finding, Kind};

pub(super) fn check(scene: &Scene<'_>, findings: &mut Vec<Finding>) {
    for object in &scene.objects {
        let Some(defines) = &object.facts.defines else {
            continue;
        };
        let expected = format!("{}.{}", defines.plural, defines.kind.group);
        if object.id().name != expected {
            let message = format!(
                "a CustomResourceDefinition must have the name PLURAL.GROUP of its kind: {expected}"
            );
            let finding = Finding::error(Kind::Repository, "name", message);
            findings.push(object.at(finding, "/metadata/name"));
        }
    }
}
