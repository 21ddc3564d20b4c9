//! Determines whether a release can be previewed independently of other releases.
//!
//! Releases of an environment interact: they share objects, define each other's kinds, scale each
//! other's workloads, or intercept each other's writes. If a change involves none of that, its
//! effects do not depend on other releases.

use std::collections::BTreeMap;

use pleach_config::ResolvedRelease;
use pleach_fields::ignore::sets_replicas;
use pleach_model::kinds::KindTable;
use pleach_model::object::{Manifest, ObjectId};
use pleach_render::Rendered;

/// API groups whose objects affect objects of other releases.
const REACHING: [&str; 3] = [
    "admissionregistration.k8s.io",
    "apiextensions.k8s.io",
    "apiregistration.k8s.io",
];

/// Part of the name of all autoscaler kinds. Kinds that a template assembles from pieces are not
/// found.
pub const AUTOSCALER: &str = "PodAutoscaler";
/// Name of the namespace kind. The same limitation applies.
pub const NAMESPACE: &str = "Namespace";

/// Returns whether the plan of a release depends on the release alone. It must have no ownership
/// transfer, gate, migration or temporary change.
pub fn has_course_of_its_own(release: &ResolvedRelease) -> bool {
    let sequence = &release.sequence;
    release.moved_from.is_none()
        && sequence.gates.is_empty()
        && sequence.moves.is_empty()
        && sequence.migrations.is_empty()
        && sequence.targets().next().is_none()
}

/// Returns whether a change of a release neither affects nor depends on other releases.
///
/// Both revisions must contain the same objects, all of built-in kinds. Objects with an effect on
/// other releases must be unchanged.
pub fn stays_apart(base: &Rendered, head: &Rendered, kinds: &KindTable) -> bool {
    if base.failed() || head.failed() {
        return false;
    }
    let by_id = |rendered: &'_ Rendered| -> BTreeMap<ObjectId, Manifest> {
        let manifests = rendered.manifests.iter();
        manifests
            .map(|one| (one.id().clone(), one.clone()))
            .collect()
    };
    let (previous, desired) = (by_id(base), by_id(head));
    previous.len() == desired.len()
        && previous.iter().zip(&desired).all(|((id, a), (other, b))| {
            let is_known = |manifest: &Manifest| {
                kinds.scope(&id.group_kind()).is_some() && kinds.served(&manifest.gvk())
            };
            id == other
                && is_known(a)
                && is_known(b)
                && !REACHING.contains(&id.group.as_str())
                && (!scales(id) || a.json() == b.json())
        })
}

fn scales(id: &ObjectId) -> bool {
    id.is("autoscaling", "HorizontalPodAutoscaler")
}

/// Returns whether an autoscaler of another release could affect the release.
pub fn may_be_scaled(rendered: &Rendered) -> bool {
    rendered.manifests.iter().any(sets_replicas)
}
