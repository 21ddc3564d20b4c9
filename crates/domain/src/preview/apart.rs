//! Whether a change of a release is one of that release alone.
//!
//! Releases of an environment have more in common than its name: no two have the
//! same object, one defines the kinds of another, scales its workloads, or is
//! asked about its objects. Where a change concerns none of that, what it does
//! is the same whatever the other releases are.

use std::collections::BTreeMap;

use crate::ignore::wants_replicas;
use crate::kinds::KindTable;
use crate::object::{Manifest, ObjectId};
use crate::render::Rendered;
use crate::repo::ResolvedRelease;

/// Groups whose objects have an effect on those of others.
const REACHING: [&str; 3] = [
    "admissionregistration.k8s.io",
    "apiextensions.k8s.io",
    "apiregistration.k8s.io",
];

/// Part of every kind of autoscalers. A kind that a template puts together from
/// pieces is not found by it.
pub const AUTOSCALER: &str = "PodAutoscaler";
/// The kind of namespaces, likewise.
pub const NAMESPACE: &str = "Namespace";

/// Whether the course of a change of the release is told by the release alone:
/// nothing is taken over, closed, migrated, or changed for a while.
pub fn has_course_of_its_own(release: &ResolvedRelease) -> bool {
    let sequence = &release.sequence;
    release.moved_from.is_none()
        && sequence.gates.is_empty()
        && sequence.moves.is_empty()
        && sequence.migrations.is_empty()
        && sequence.targets().next().is_none()
}

/// Whether a release asks nothing of others and nothing of what others may ask of
/// it differs: it has the same objects at both revisions, all of kinds of
/// Kubernetes, none of which has an effect on other releases unless it stays as
/// it is.
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
    let (former, wanted) = (by_id(base), by_id(head));
    former.len() == wanted.len()
        && former.iter().zip(&wanted).all(|((id, a), (other, b))| {
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

/// Whether an autoscaler of another release would have a say in it.
pub fn may_be_scaled(rendered: &Rendered) -> bool {
    rendered.manifests.iter().any(wants_replicas)
}
