//! Registrations whose Service is gone, and that somebody made anew after that: what
//! the next plan finds them by.
//!
//! It finds them by their Service, so that this stays on record until they are gone.

use std::collections::{BTreeMap, BTreeSet};

use pleach_domain::finding::{Finding, Kind};
use pleach_domain::inventory::{Entry, EntryState, Inventory};
use pleach_domain::object::{Manifest, ObjectId, ServiceRef};
use pleach_domain::observe::{Observed, Registration};
use pleach_domain::plan::{Desired, Grant, Op, Plan, leaving_service};

use super::events::{EventKind, Events};
use crate::io::cluster::Cluster;

/// The Services of registrations that a plan deletes as they go.
fn unregistered(plan: &Plan) -> impl Iterator<Item = &ServiceRef> {
    plan.steps.iter().filter_map(|step| match &step.op {
        Op::Delete(deletion) => match deletion.because() {
            Grant::Registration { service } => Some(service),
            _ => None,
        },
        _ => None,
    })
}

/// Services of the release that were gone when the plan was made, and of which it
/// deletes registrations: they stay on record until that is done.
pub(super) fn remembered<'a>(
    desired: &Desired,
    observed: &'a Observed,
    plan: &Plan,
) -> BTreeMap<ObjectId, &'a Entry> {
    let wanted: BTreeSet<&ObjectId> = desired.manifests.iter().map(Manifest::id).collect();
    let gone = unregistered(plan).map(ServiceRef::id);
    let gone = gone.filter(|id| !wanted.contains(id) && observed.live_meta(id).is_none());
    gone.filter_map(|id| {
        let entry = observed.inventory.entries.get(&id)?;
        (entry.state == EntryState::Applied).then_some((id, entry))
    })
    .collect()
}

/// Looks, once Services of the release went, whether something points at them that
/// was not there when the plan was made. That keeps the Service among the members, by
/// which the next plan finds it.
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
    let cluster = cluster.clone().alone();
    for list in cluster.registrations(&desired.name.field_manager()).await {
        // What may not be listed was said to be none of our concern.
        let Ok(found) = list.found else { continue };
        let came = |one: &&Registration| !known.contains(one.meta.uid.as_str());
        for registration in found.iter().filter(came) {
            let mut services = registration.services.iter();
            let Some(service) = services.find(|service| gone.contains(*service)) else {
                continue;
            };
            let id = service.id();
            if let Some(entry) = observed.inventory.entries.get(&id) {
                inventory.entries.insert(id, entry.clone());
                events.send(EventKind::Warning(came_back(registration, service)));
            }
        }
    }
}

fn came_back(registration: &Registration, service: &ServiceRef) -> Finding {
    let message = format!("points at Service {service}, which is gone: somebody made it anew");
    let finding = Finding::warning(Kind::Cluster, "registered-again", message);
    let hint = "the next apply deletes it, if whoever makes it runs no more by then";
    finding.on(registration.id.clone()).hint(hint)
}
