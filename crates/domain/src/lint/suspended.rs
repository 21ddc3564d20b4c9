//! Workloads that a manifest holds back: who applies them waits for what does not
//! come, unless something in the cluster lets them go on.

use super::{Object, Scene};
use crate::finding::{Finding, Kind};

pub(super) fn check(scene: &Scene<'_>, findings: &mut Vec<Finding>) {
    for object in &scene.objects {
        let Some((field, pointer, what)) = held_back(object) else {
            continue;
        };
        let message = format!(
            "`{field}: true` in git: {what}, and an apply waits for that until its timeout, unless something lets it go on"
        );
        let finding = Finding::note(Kind::Repository, "never-ready", message)
            .hint(format!("take `{field}` out, or apply with --wait=none"));
        findings.push(object.at(finding, pointer));
    }
}

/// The field that holds an object back, and what does not happen for it.
fn held_back(object: &Object<'_>) -> Option<(&'static str, &'static str, &'static str)> {
    let id = object.id();
    let (is_job, is_deployment) = (id.is("batch", "Job"), id.is("apps", "Deployment"));
    if !is_job && !is_deployment {
        return None;
    }
    let value = object.manifest.value();
    let spec = &value["spec"];
    if is_job {
        let is_held = spec["suspend"] == true;
        return is_held.then_some(("suspend", "/spec/suspend", "the Job does not run"));
    }
    // Without pods nothing is waited for.
    let is_held = spec["paused"] == true && spec["replicas"] != 0;
    is_held.then_some(("paused", "/spec/paused", "no pod is made or replaced"))
}
