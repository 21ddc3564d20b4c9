//! Recreated registrations of deleted Services.
//!
//! The next plan finds such registrations by their Service, so the Service stays in the record
//! until they are gone.

use std::collections::{BTreeMap, BTreeSet};

use pleach_model::finding::{Finding, Kind};
use pleach_model::object::{Manifest, ObjectId, ServiceRef};
use pleach_planner::observe::{Observed, Registration};
use pleach_planner::plan::{Desired, Grant, Op, Plan, leaving_service};
use pleach_state::inventory::{Entry, EntryState, Inventory};

use super::events::{EventKind, Events};
use super::watch_cache::describe;
use pleach_cluster::{Class, Cluster};

/// Returns the Services of registrations that a plan deletes as stale.
fn unregistered(plan: &Plan) -> impl Iterator<Item = &ServiceRef> {
    plan.steps.iter().filter_map(|step| match &step.op {
        Op::Delete(deletion) => match deletion.because() {
            Grant::Registration { service } => Some(service),
            _ => None,
        },
        _ => None,
    })
}

/// Returns Services of the release that were gone before the plan, and whose registrations it
/// deletes. They stay in the record until that is done.
pub(super) fn remembered<'a>(
    desired: &Desired,
    observed: &'a Observed,
    plan: &Plan,
) -> BTreeMap<ObjectId, &'a Entry> {
    let desired_ids: BTreeSet<&ObjectId> = desired.manifests.iter().map(Manifest::id).collect();
    let gone = unregistered(plan).map(ServiceRef::id);
    let gone = gone.filter(|id| !desired_ids.contains(id) && observed.live_meta(id).is_none());
    gone.filter_map(|id| {
        let entry = observed.inventory.entries.get(&id)?;
        (entry.state == EntryState::Applied).then_some((id, entry))
    })
    .collect()
}

/// Searches for new registrations of deleted Services. Keeps the Service in the inventory if there
/// are any, or if the search was incomplete, so that the next plan finds them.
pub(super) async fn keep(
    (cluster, events): (&Cluster, &Events),
    desired: &Desired,
    observed: &Observed,
    plan: &Plan,
    inventory: &mut Inventory,
) {
    let deleted = plan.steps.iter().filter_map(leaving_service);
    let gone: BTreeSet<ServiceRef> = deleted
        .chain(unregistered(plan).cloned())
        .filter(|service| !inventory.entries.contains_key(&service.id()))
        .filter(|service| observed.inventory.entries.contains_key(&service.id()))
        .collect();
    if gone.is_empty() {
        return;
    }
    let known: BTreeSet<&str> = observed
        .registrations
        .iter()
        .map(|registration| registration.meta.uid.as_str())
        .collect();
    let manager = desired.name.field_manager();
    for (id, finding) in inspect(cluster, &manager, &gone, &known).await {
        if let Some(entry) = observed.inventory.entries.get(&id) {
            inventory.entries.insert(id, entry.clone());
            events.send(EventKind::Warning(finding));
        }
    }
}

/// Returns the deleted Services with unknown registrations. A kind that cannot be listed counts as
/// having some.
async fn inspect(
    cluster: &Cluster,
    manager: &str,
    gone: &BTreeSet<ServiceRef>,
    known: &BTreeSet<&str>,
) -> Vec<(ObjectId, Finding)> {
    let mut remaining = Vec::new();
    for list in cluster.clone().alone().registrations(manager).await {
        let found = match list.found {
            Ok(found) => found,
            // A list that is forbidden was reported as out of scope.
            Err(error)
                if matches!(error.class(), Some(Class::Forbidden | Class::KindNotServed)) =>
            {
                continue;
            }
            Err(error) => {
                let why = describe(&error);
                let each = gone.iter().map(|service| unseen(service, &why));
                remaining.extend(each);
                continue;
            }
        };
        let came = |one: &&Registration| !known.contains(one.meta.uid.as_str());
        for registration in found.iter().filter(came) {
            let mut services = registration.services.iter();
            if let Some(service) = services.find(|service| gone.contains(*service)) {
                remaining.push((service.id(), recreated(registration, service)));
            }
        }
    }
    remaining
}

fn unseen(service: &ServiceRef, why: &str) -> (ObjectId, Finding) {
    let message = format!("is gone; failed to check whether a client registered it again: {why}");
    let finding = Finding::warning(Kind::Cluster, "registrations-unseen", message);
    let hint = "it stays in the record, so the next apply checks again";
    let id = service.id();
    (id.clone(), finding.on(id).hint(hint))
}

fn recreated(registration: &Registration, service: &ServiceRef) -> Finding {
    let message =
        format!("points at Service {service}, which is gone: another client recreated it");
    let finding = Finding::warning(Kind::Cluster, "registered-again", message);
    let hint = "the next apply deletes it if the client that recreates it no longer runs";
    finding.on(registration.id.clone()).hint(hint)
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::{Value, json};

    use super::*;
    use crate::sync::serving::answering;

    fn webhooks(service: &str) -> Value {
        let hook = json!({"name": "g.example.org",
            "clientConfig": {"service": {"namespace": "web", "name": service}}});
        json!({"kind": "List", "metadata": {}, "items": [
            {"metadata": {"name": "guard", "uid": "new"}, "webhooks": [hook]}]})
    }

    fn refused(code: u16, reason: &str, message: &str) -> (u16, Value) {
        let status = json!({"kind": "Status", "code": code, "reason": reason, "message": message});
        (code, status)
    }

    /// Returns the retained Services, given an answer to the list of mutating webhooks.
    async fn remaining(answer: (u16, Value), known: &[&str]) -> Vec<(String, String)> {
        let cluster = answering(move |path| {
            if path.ends_with("/mutatingwebhookconfigurations") {
                answer.clone()
            } else {
                (200, json!({"kind": "List", "metadata": {}, "items": []}))
            }
        });
        let gone = BTreeSet::from([ServiceRef {
            namespace: "web".to_owned(),
            name: "guard".to_owned(),
        }]);
        let known: BTreeSet<&str> = known.iter().copied().collect();
        let remaining = inspect(&cluster, "pleach/dev.web", &gone, &known).await;
        let shown = remaining.into_iter();
        shown
            .map(|(id, finding)| (id.to_string(), finding.code))
            .collect()
    }

    #[rstest]
    #[case::recreated((200, webhooks("guard")), &[], Some("registered-again"))]
    #[case::known((200, webhooks("guard")), &["new"], None)]
    #[case::of_others((200, webhooks("other")), &[], None)]
    #[case::not_answered(refused(503, "ServiceUnavailable", "no"), &[], Some("registrations-unseen"))]
    #[case::not_in_time(refused(504, "Timeout", "no"), &[], Some("registrations-unseen"))]
    #[case::forbidden(refused(403, "Forbidden", "User \"a\" cannot list resource"), &[], None)]
    #[tokio::test]
    async fn a_service_stays_recorded_while_registrations_point_at_it(
        #[case] answer: (u16, Value),
        #[case] known: &[&str],
        #[case] code: Option<&str>,
    ) {
        let expected: Vec<(String, String)> = code
            .map(|code| ("Service/web/guard".to_owned(), code.to_owned()))
            .into_iter()
            .collect();
        assert_eq!(remaining(answer, known).await, expected);
    }
}
