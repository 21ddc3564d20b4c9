//! Registrations without a backend, and APIs that do not answer.

use std::collections::BTreeSet;

use super::effect::effects;
use super::registration::{Registered, Role};
use super::{Code, Diagnosis, Observations, Owner};
use pleach_model::finding::Severity;
use pleach_model::object::{ApiVersion, ObjectId, ServiceRef};
use pleach_planner::observe::Lack;
use pleach_planner::plan::Evidence;
use pleach_state::inventory::{EntryState, Inventory};

/// Adds registrations without a backend, and APIs that are unavailable despite a backend.
pub(super) fn registrations(observations: &Observations, found: &mut Vec<Diagnosis>) {
    for registered in &observations.registrations {
        found.extend(registration(observations, registered));
    }
}

fn registration(observations: &Observations, registered: &Registered) -> Option<Diagnosis> {
    let services = registered.services();
    let unavailable = match &registered.role {
        Role::Api { unavailable, .. } => unavailable.as_deref(),
        Role::Webhooks(_) | Role::Conversion { .. } => None,
    };
    // The server checks an aggregated API itself. Its result takes precedence over endpoints.
    let answers = matches!(registered.role, Role::Api { .. }) && unavailable.is_none();
    let lacking = |lack: Lack| -> BTreeSet<&ServiceRef> {
        let lacks = |service: &ServiceRef| observations.backends.get(service)?.lack(answers);
        let services = services.iter().copied();
        services
            .filter(|service| lacks(service) == Some(lack))
            .collect()
    };
    let (missing, empty) = (lacking(Lack::Service), lacking(Lack::Endpoints));
    let (code, fault) = if !missing.is_empty() {
        let names = names(&missing);
        (
            Code::ServiceMissing,
            format!("points at Service {names}, which does not exist"),
        )
    } else if !empty.is_empty() {
        let names = names(&empty);
        (
            Code::ServiceWithoutEndpoints,
            format!("points at Service {names}, which has no ready endpoints"),
        )
    } else {
        (
            Code::ApiUnavailable,
            format!("is not available: {}", unavailable?),
        )
    };
    let message = match unavailable {
        Some(words) if code != Code::ApiUnavailable => format!("{fault} ({words})"),
        _ => fault,
    };
    let dead: BTreeSet<&ServiceRef> = missing.union(&empty).copied().collect();
    let id = &registered.subject.id;
    let mut diagnosis = Diagnosis::new(
        code,
        severity(&registered.role, &dead),
        Some(id.clone()),
        message,
    );
    diagnosis.breaks = effects(
        &registered.role,
        &dead,
        &waiting(observations, &registered.role),
    );
    diagnosis.related = dead.iter().map(|service| service.id()).collect();
    diagnosis.owner = Some(owner(observations, registered));
    diagnosis.evidence = evidence(registered, &missing);
    advise(&mut diagnosis, registered, &dead);
    explain_missing_service(observations, &mut diagnosis, &dead);
    explain_terminating_namespace(observations, &mut diagnosis, &dead);
    Some(diagnosis)
}

fn names(services: &BTreeSet<&ServiceRef>) -> String {
    let names: Vec<String> = services.iter().map(ToString::to_string).collect();
    names.join(", ")
}

/// Returns an error if writes or deletions are blocked. Skipped webhooks are a warning.
fn severity(role: &Role, dead: &BTreeSet<&ServiceRef>) -> Severity {
    let harms = match role {
        Role::Api { .. } => true,
        Role::Webhooks(webhooks) => webhooks.iter().any(|webhook| {
            let service = webhook.service.as_ref();
            webhook.refuses && service.is_some_and(|service| dead.contains(service))
        }),
        Role::Conversion { served, .. } => served.len() > 1,
    };
    if harms {
        Severity::Error
    } else {
        Severity::Warning
    }
}

/// Returns the namespaces whose deletion waits for the API.
fn waiting<'a>(observations: &'a Observations, role: &Role) -> Vec<&'a str> {
    let Role::Api { group_version, .. } = role else {
        return Vec::new();
    };
    observations
        .namespaces
        .iter()
        .filter(|namespace| {
            namespace
                .condition("NamespaceDeletionDiscoveryFailure")
                .is_some_and(|message| super::stuck::names_api(message, group_version))
        })
        .map(|namespace| namespace.name.as_str())
        .collect()
}

/// Returns the owners from the metadata, and the release that contains the object or one of its
/// Services.
fn owner(observations: &Observations, registered: &Registered) -> Owner {
    let mut owner = registered.subject.owner();
    let services: Vec<ObjectId> = registered
        .services()
        .into_iter()
        .map(ServiceRef::id)
        .collect();
    let release = observations.releases.iter().find(|release| {
        let by_label = owner.apply_set.as_ref() == Some(&release.summary.apply_set());
        let by_inventory = release.inventory.as_ref().is_ok_and(|inventory| {
            let has = |id: &ObjectId| {
                let entry = inventory.entries.get(id);
                entry.is_some_and(|entry| entry.state != EntryState::Kept)
            };
            has(&registered.subject.id) || services.iter().any(has)
        });
        by_label || by_inventory
    });
    owner.release = release.map(|release| release.summary.target());
    owner
}

/// Returns the evidence only if the object refers to nothing that exists. A webhook with a URL or
/// with an existing Service is in use.
fn evidence(registered: &Registered, missing: &BTreeSet<&ServiceRef>) -> Option<Evidence> {
    let is_removable = match &registered.role {
        Role::Api { service, .. } => missing.contains(service),
        Role::Webhooks(webhooks) => webhooks.iter().all(|webhook| {
            let service = webhook.service.as_ref();
            service.is_some_and(|service| missing.contains(service))
        }),
        // Deleting a CRD would delete its custom resources.
        Role::Conversion { .. } => false,
    };
    let subject = &registered.subject;
    (is_removable && subject.references.is_empty() && subject.deleting_since.is_none()).then(|| {
        let services = missing.iter().copied().cloned().collect();
        super::deletions::of_services(subject, services)
    })
}

/// Adds the hint and the command, depending on the problem and on the owner.
fn advise(diagnosis: &mut Diagnosis, registered: &Registered, dead: &BTreeSet<&ServiceRef>) {
    let id = &registered.subject.id;
    let owner = diagnosis.owner.clone().unwrap_or_default();
    if !diagnosis.is_fixable() {
        let (hint, command) = repair_by_hand(diagnosis.code, registered, dead, &owner);
        diagnosis.hint = Some(hint);
        diagnosis.command = command;
        return;
    }
    if let Some(release) = &owner.release {
        diagnosis.hint = Some(format!(
            "release {release} has it or its Service: an apply restores the Service, or removes the object that points at it"
        ));
        diagnosis.command = Some(format!("pleach apply {release}"));
        return;
    }
    let fix = format!("pleach doctor --fix {id}");
    match &owner.other_tool {
        Some(tool) => {
            let first = tool.suspend.as_ref().map_or_else(
                || "make sure that the tool no longer deploys it".to_owned(),
                |suspend| {
                    format!(
                        "remove it from the tool's source, or suspend the tool first: {suspend}"
                    )
                },
            );
            diagnosis.hint = Some(format!("{} can recreate it; {first}", tool.name));
            diagnosis.command = Some(format!("{fix} --yes"));
        }
        None if owner.apply_set.is_some() => {
            diagnosis.hint = Some(
                "the tool that manages its ApplySet can recreate it, or fail without it".to_owned(),
            );
            diagnosis.command = Some(format!("{fix} --yes"));
        }
        None => {
            diagnosis.hint = Some(
                "restore the Service if it is still needed; otherwise remove the object that points at it"
                    .to_owned(),
            );
            diagnosis.command = Some(fix);
        }
    }
}

/// Adjusts the hint if a release applied the registration without its Service.
///
/// Applying that release again does not help. Its files must be changed.
fn explain_missing_service(
    observations: &Observations,
    diagnosis: &mut Diagnosis,
    dead: &BTreeSet<&ServiceRef>,
) {
    let Some(id) = diagnosis.object.as_ref().filter(|_| diagnosis.is_fixable()) else {
        return;
    };
    let releases = || {
        let releases = observations.releases.iter();
        releases.filter_map(|one| Some((one, one.inventory.as_ref().ok()?)))
    };
    let has = |inventory: &Inventory, id: &ObjectId| {
        let entry = inventory.entries.get(id);
        entry.is_some_and(|entry| entry.state == EntryState::Applied)
    };
    let owner = releases().find(|(_, inventory)| has(inventory, id));
    let is_provided = releases().any(|(_, inventory)| {
        let mut services = dead.iter();
        services.any(|service| has(inventory, &service.id()))
    });
    let Some((release, _)) = owner.filter(|_| !is_provided) else {
        return;
    };
    let release = release.summary.target();
    diagnosis.hint = Some(format!(
        "release {release} contains it, but not Service {}: add the Service to the files, or remove the registration; then apply {release}",
        names(dead)
    ));
    diagnosis.command = None;
}

/// Adjusts the hint if the Service's namespace is being deleted.
///
/// The Service cannot be created there. Only a release that recreates the namespace repairs it.
fn explain_terminating_namespace(
    observations: &Observations,
    diagnosis: &mut Diagnosis,
    dead: &BTreeSet<&ServiceRef>,
) {
    let is_terminating = |service: &ServiceRef| {
        let mut leaving = observations.namespaces.iter();
        leaving.any(|namespace| namespace.name == service.namespace)
    };
    let owner = diagnosis.owner.as_ref();
    let release = owner.and_then(|owner| owner.release.clone());
    let service = dead.iter().find(|service| is_terminating(service));
    let (Some(release), Some(service), Some(id), true) = (
        release,
        service,
        diagnosis.object.as_ref(),
        diagnosis.is_fixable(),
    ) else {
        return;
    };
    diagnosis.hint = Some(format!(
        "namespace {} of its Service is being deleted: an apply of release {release} removes it and recreates both if the release also has that namespace; otherwise `pleach doctor --fix {id} --yes` removes it",
        service.namespace
    ));
}

fn repair_by_hand(
    code: Code,
    registered: &Registered,
    dead: &BTreeSet<&ServiceRef>,
    owner: &Owner,
) -> (String, Option<String>) {
    let first = dead.iter().next();
    let endpoints = first.map(|service| {
        format!(
            "kubectl get endpointslices -n {} -l kubernetes.io/service-name={}",
            service.namespace, service.name
        )
    });
    if code == Code::ServiceWithoutEndpoints {
        let hint = "the pods of the Service are missing or not ready; repair them";
        return (hint.to_owned(), endpoints);
    }
    if code == Code::ApiUnavailable {
        let name = &registered.subject.id.name;
        let hint = "the Service has ready endpoints; check its pods, its port and the caBundle";
        return (
            hint.to_owned(),
            Some(format!("kubectl get apiservice {name} -o yaml")),
        );
    }
    if registered.subject.deleting_since.is_some() {
        let finalizers = registered.subject.finalizers.iter();
        let waits: Vec<String> = finalizers.map(ToString::to_string).collect();
        return (
            format!(
                "it is already being deleted and waits for {}",
                waits.join(", ")
            ),
            None,
        );
    }
    if !owner.references.is_empty() {
        let hint = format!(
            "it is deleted together with {}, which can recreate it until then",
            owner.references.join(", ")
        );
        return (hint, None);
    }
    let name = &registered.subject.id.name;
    match &registered.role {
        Role::Conversion { .. } => (
            "restore the Service; disable conversion only if all versions have the same schema".to_owned(),
            Some(format!(
                "kubectl patch customresourcedefinition {name} --type=merge -p '{{\"spec\":{{\"conversion\":{{\"strategy\":\"None\",\"webhook\":null}}}}}}'"
            )),
        ),
        Role::Api { .. } | Role::Webhooks(_) => (
            "its other webhooks still answer: restore the Service, or remove the dead webhooks from the configuration".to_owned(),
            Some(format!("kubectl edit {} {name}", registered.subject.id.kind.to_lowercase())),
        ),
    }
}

/// Adds group-versions with stale discovery that no `APIService` with a Service explains.
pub(super) fn discovery(observations: &Observations, found: &mut Vec<Diagnosis>) {
    let explained: BTreeSet<ObjectId> = found
        .iter()
        .filter_map(|diagnosis| diagnosis.object.clone())
        .collect();
    for stale in observations.discovery.stale() {
        let id = api_service(&stale);
        if explained.contains(&id) {
            continue;
        }
        let mut diagnosis = Diagnosis::new(
            Code::DiscoveryStale,
            Severity::Error,
            Some(id.clone()),
            format!("discovery of {stale} is stale: its server does not answer"),
        );
        diagnosis.breaks = vec![
            "its kinds are unknown, not absent: their objects cannot be read, applied or pruned"
                .to_owned(),
            "namespaces cannot be deleted: their deletion waits for the discovery of every API"
                .to_owned(),
        ];
        diagnosis.hint = Some(
            "the API was possibly just registered or removed; check again in a few seconds"
                .to_owned(),
        );
        diagnosis.command = Some(format!("kubectl get apiservice {} -o yaml", id.name));
        found.push(diagnosis);
    }
}

/// Returns the `APIService` of a group-version.
fn api_service(api_version: &ApiVersion) -> ObjectId {
    let name = format!("{}.{}", api_version.version, api_version.group);
    ObjectId::new("apiregistration.k8s.io", "APIService", None, &name)
}
