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
                "a CustomResourceDefinition is named after the plural and the group of its kind: {expected}"
            );
            let finding = Finding::error(Kind::Repository, "name", message);
            findings.push(object.at(finding, "/metadata/name"));
        }
    }
}
