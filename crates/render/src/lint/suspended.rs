//! Suspended Jobs that run once. An apply waits for their completion until something in the cluster
//! resumes them.

use super::{Object, Scene};
use pleach_model::finding::{Finding, Kind};

pub(super) fn check(scene: &Scene<'_>, findings: &mut Vec<Finding>) {
    for object in scene.objects.iter().filter(|object| is_suspended(object)) {
        let message = "`suspend: true` in git: the Job does not run, and an apply waits for it until the timeout, unless another client resumes it";
        let finding = Finding::note(Kind::Repository, "never-ready", message)
            .hint("remove `suspend`, or apply with --wait=none");
        findings.push(object.at(finding, "/spec/suspend"));
    }
}

fn is_suspended(object: &Object<'_>) -> bool {
    object.manifest.runs_once() && object.manifest.value()["spec"]["suspend"] == true
}
