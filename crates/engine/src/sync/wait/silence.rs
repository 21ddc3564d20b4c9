//! Custom resources without a status, and whether their CRD declares one.

use std::collections::BTreeMap;

use pleach_model::finding::{Finding, Kind};
use pleach_model::object::ObjectId;
use pleach_planner::crd::declares_status;
use pleach_planner::plan::{Op, Step};
use serde_json::Value;
use tokio::sync::Mutex;

use super::Waiter;
use crate::sync::events::EventKind;
use pleach_cluster::{Cluster, ResourcePath};

/// Kinds whose live CRD was read, with whether it declares a status.
#[derive(Default)]
pub(in crate::sync) struct Statuses(Mutex<BTreeMap<String, bool>>);

impl Statuses {
    /// Reads a CRD once. An unreadable CRD counts as one without a status.
    async fn declared(&self, cluster: &Cluster, path: &ResourcePath) -> bool {
        let name = format!("{}.{}", path.plural, path.api_version.group);
        let mut known = self.0.lock().await;
        if let Some(declared) = known.get(&name) {
            return *declared;
        }
        let crds = ResourcePath::cluster_scoped(
            "apiextensions.k8s.io/v1",
            "CustomResourceDefinition",
            "customresourcedefinitions",
        );
        let read = cluster.get(&crds, None, &name).await;
        let declared = matches!(read, Ok(Some(crd))
            if declares_status(&crd, &path.api_version.version));
        known.insert(name, declared);
        declared
    }
}

impl Waiter<'_> {
    /// Returns whether a written object has no status yet although its CRD declares one.
    pub(super) async fn lacks_status(
        &self,
        step: &Step,
        path: &ResourcePath,
        value: &Value,
    ) -> bool {
        let writes = matches!(step.op, Op::Apply { .. } | Op::Create { .. });
        writes
            && self.desired.sequence.readiness.lacks_status(value)
            && self.statuses.declared(self.cluster, path).await
    }

    pub(super) fn warn_of_silence(&self, object: &ObjectId) {
        let message = "its controller has written no status; it counts as ready";
        let finding = Finding::warning(Kind::Cluster, "no-status", message);
        self.events
            .send(EventKind::Warning(finding.on(object.clone())));
    }
}

#[cfg(test)]
mod tests {
    use jiff::SignedDuration;
    use pleach_model::object::{DesiredDigest, NonSecret};
    use pleach_model::order::StageName;
    use pleach_planner::plan::{Body, Plan, StepId, Until};
    use serde_json::json;
    use tokio::sync::Semaphore;
    use tokio::sync::mpsc::unbounded_channel;

    use super::*;
    use crate::sync::events::Events;
    use crate::sync::observe::tests::emptied;
    use crate::sync::paths::Paths;
    use crate::sync::rbac_scope::RbacScope;
    use crate::sync::serving::serving;
    use crate::sync::wait::Controllers;
    use crate::sync::watch_cache::WatchCache;
    use pleach_model::discovery::Discovery;

    fn gear() -> ResourcePath {
        ResourcePath::namespaced("example.org/v1", "Gear", "gears")
    }

    fn step(op: Op) -> Step {
        Step {
            id: StepId(0),
            stage: StageName::Workloads,
            object: "Gear.example.org/web/g".parse().unwrap(),
            op,
            needs: Vec::new(),
            require: Vec::new(),
            until: Some(Until::Ready {
                stable_for: SignedDuration::ZERO,
                optional: false,
            }),
            deadline: SignedDuration::from_mins(1),
            overlay: None,
            reason: String::new(),
        }
    }

    /// Only a write to a kind whose CRD declares a status waits for the status.
    #[tokio::test]
    async fn a_status_is_awaited_after_a_write_where_the_crd_declares_one() {
        let apply = || Op::Apply {
            body: Body::Rendered(DesiredDigest::Unkeyed),
            take_over: Vec::new(),
            leave: Vec::new(),
        };
        let create = || Op::Create {
            body: Body::Rendered(DesiredDigest::Unkeyed),
            once: false,
        };
        let set = || Op::Set {
            patch: NonSecret(json!({})),
        };
        let (with, without) = (json!({"status": {}}), json!({"scale": {}}));
        for (case, op, subresources, status, expected) in [
            ("apply", apply(), Some(&with), json!(null), true),
            ("create", create(), Some(&with), json!({}), true),
            ("nothing to do", Op::Wait, Some(&with), json!(null), false),
            ("overlay", set(), Some(&with), json!(null), false),
            (
                "a status",
                apply(),
                Some(&with),
                json!({"phase": "Idle"}),
                false,
            ),
            (
                "no subresource",
                apply(),
                Some(&without),
                json!(null),
                false,
            ),
            ("no CRD", apply(), None, json!(null), false),
        ] {
            let crd = subresources.map(|subresources| {
                json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
                    "metadata": {"name": "gears.example.org"},
                    "spec": {"versions": [{"name": "v1", "subresources": subresources}]}})
            });
            let cluster = serving(move |path| {
                let is_crd = path.ends_with("/customresourcedefinitions/gears.example.org");
                crd.clone().filter(|_| is_crd)
            });
            let desired = emptied();
            let (sender, mut warned) = unbounded_channel();
            let waiter = Waiter {
                cluster: &cluster,
                desired: &desired,
                paths: &Paths::new(&Discovery::default(), &[]),
                watch_cache: &WatchCache::new(
                    cluster.clone(),
                    String::new(),
                    RbacScope::default(),
                    &Plan::new(desired.name.clone(), "v1"),
                ),
                events: &Events::new(desired.name.clone(), sender),
                permits: &Semaphore::new(1),
                controllers: &Controllers::default(),
                statuses: &Statuses::default(),
                can_roll_back: false,
            };
            let value = json!({"apiVersion": "example.org/v1", "kind": "Gear",
                "metadata": {"name": "g", "namespace": "web"}, "status": status});
            let step = step(op);
            let lacks = waiter.lacks_status(&step, &gear(), &value).await;
            assert_eq!(lacks, expected, "{case}");
            waiter.warn_of_silence(&step.object);
            let EventKind::Warning(finding) = warned.try_recv().unwrap().kind else {
                panic!("{case}: no warning");
            };
            assert_eq!(finding.code, "no-status");
            assert_eq!(finding.object, Some(step.object));
        }
    }
}
