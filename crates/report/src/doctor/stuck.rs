//! Deletions that do not finish.

use std::collections::BTreeSet;

use jiff::{SignedDuration, Timestamp};

use super::absence;
use super::registration::Role;
use super::{Code, Diagnosis, Leaving, Observations, Subject};
use pleach_model::age::age;
use pleach_model::finding::Severity;
use pleach_model::object::ObjectId;

/// Grace period of a namespace. Without obstacles its deletion takes seconds, of which the
/// namespace controller alone takes five.
const NAMESPACE_PATIENCE: SignedDuration = SignedDuration::from_secs(60);
/// Grace period if the controller of the finalizer is missing. Waiting longer is of no use.
const CERTAIN_PATIENCE: SignedDuration = SignedDuration::from_secs(10);
/// Grace period of an object. Its finalizers can require long-running work.
const OBJECT_PATIENCE: SignedDuration = SignedDuration::from_secs(300);

/// Returns whether the message of a condition names a group-version. A prefix of a longer name does
/// not match.
pub(super) fn names_api(message: &str, group_version: &str) -> bool {
    message
        .split([' ', ',', ':', ';', '"'])
        .any(|word| word == group_version)
}

/// Adds terminating namespaces with a known obstacle or an exceeded grace period.
pub(super) fn namespaces(observations: &Observations, found: &mut Vec<Diagnosis>) {
    for namespace in &observations.namespaces {
        let late = is_late(namespace.since, observations.at, NAMESPACE_PATIENCE);
        found.extend(match namespace.cause() {
            Some(("NamespaceDeletionDiscoveryFailure", message)) => {
                Some(by_discovery(observations, namespace, message))
            }
            Some((
                condition @ ("NamespaceDeletionContentFailure"
                | "NamespaceDeletionGroupVersionParsingFailure"),
                message,
            )) => Some(by_failure(observations, namespace, condition, message)),
            Some((_, message)) if late => Some(by_content(observations, namespace, message)),
            None if late => Some(without_condition(observations, namespace)),
            _ => None,
        });
    }
}

fn is_late(since: Timestamp, now: Timestamp, patience: SignedDuration) -> bool {
    now.duration_since(since) >= patience
}

fn start(
    observations: &Observations,
    namespace: &Leaving,
    severity: Severity,
    why: &str,
) -> Diagnosis {
    let age = age(namespace.since, observations.at);
    Diagnosis::new(
        Code::NamespaceStuck,
        severity,
        Some(ObjectId::new("", "Namespace", None, &namespace.name)),
        format!("has been terminating for {age}: {why}"),
    )
}

fn by_discovery(observations: &Observations, namespace: &Leaving, message: &str) -> Diagnosis {
    // Both causes can exist at once. Then neither repair is sufficient on its own.
    let left = left_in(namespace);
    let why = match &left {
        Some(left) => format!("{message}; {left}"),
        None => message.to_owned(),
    };
    let mut diagnosis = start(observations, namespace, Severity::Error, &why);
    let causes: Vec<(&str, &ObjectId)> = observations
        .registrations
        .iter()
        .filter_map(|registered| match &registered.role {
            Role::Api { group_version, .. } if names_api(message, group_version) => {
                Some((group_version.as_str(), &registered.subject.id))
            }
            Role::Api { .. } | Role::Webhooks(_) | Role::Conversion { .. } => None,
        })
        .collect();
    diagnosis.related = causes.iter().map(|(_, id)| (*id).clone()).collect();
    let apis: Vec<&str> = causes.iter().map(|(api, _)| *api).collect();
    let apis = apis.join(", ");
    let hint = match (causes.as_slice(), &left) {
        ([], _) => {
            "no APIService explains it any longer: the namespace controller retries within minutes"
                .to_owned()
        }
        (_, None) => format!(
            "its content is deleted; the server removes the namespace once {apis} answers, or is no longer registered"
        ),
        (_, Some(_)) => format!(
            "the server removes the namespace once {apis} answers, or is no longer registered, and the remaining objects are removed"
        ),
    };
    diagnosis.hint = Some(hint);
    if left.is_some() {
        let deleting = deleting(observations, namespace);
        let ids = deleting.iter().map(|object| object.id.clone());
        diagnosis.related.extend(ids);
        if let (Some(hint), Some(how)) = (&mut diagnosis.hint, finalizer_hint(&deleting)) {
            hint.push_str(": ");
            hint.push_str(&how);
        }
        absence::of_controllers(observations, &deleting).report(&mut diagnosis);
    }
    diagnosis.command = Some(match causes.first() {
        Some((_, id)) => format!("kubectl get apiservice {} -o yaml", id.name),
        None => show(namespace),
    });
    diagnosis
}

fn by_failure(
    observations: &Observations,
    namespace: &Leaving,
    condition: &str,
    message: &str,
) -> Diagnosis {
    let why = format!("{condition}: {message}");
    let mut diagnosis = start(observations, namespace, Severity::Error, &why);
    diagnosis.hint = Some(
        "the namespace controller cannot read or delete its content; a webhook or an API that does not answer is the usual cause"
            .to_owned(),
    );
    diagnosis.command = Some(show(namespace));
    diagnosis
}

/// Diagnoses a namespace with remaining objects, with or without finalizers.
fn by_content(observations: &Observations, namespace: &Leaving, message: &str) -> Diagnosis {
    let why = left_in(namespace).unwrap_or_else(|| message.to_owned());
    let mut diagnosis = start(observations, namespace, Severity::Warning, &why);
    let deleting = deleting(observations, namespace);
    diagnosis.related = deleting.iter().map(|object| object.id.clone()).collect();
    diagnosis.hint = Some(finalizer_hint(&deleting).unwrap_or_else(|| {
        "its objects are being deleted, or another client recreates them: check the remaining objects".to_owned()
    }));
    absence::of_controllers(observations, &deleting).report(&mut diagnosis);
    diagnosis.command = Some(match namespace.remaining().first() {
        Some(remaining) if remaining.group.is_empty() => {
            format!("kubectl get {} -n {}", remaining.plural, namespace.name)
        }
        Some(remaining) => format!(
            "kubectl get {}.{} -n {}",
            remaining.plural, remaining.group, namespace.name
        ),
        None => show(namespace),
    });
    diagnosis
}

/// Returns the messages about remaining objects and finalizers. The finalizers are the cause of the
/// remaining objects, and both messages contain details.
fn left_in(namespace: &Leaving) -> Option<String> {
    let conditions = ["NamespaceFinalizersRemaining", "NamespaceContentRemaining"];
    let reported: Vec<&str> = conditions
        .into_iter()
        .filter_map(|condition| namespace.condition(condition))
        .collect();
    (!reported.is_empty()).then(|| reported.join("; "))
}

/// Returns the objects in a namespace that are being deleted.
fn deleting<'o>(observations: &'o Observations, namespace: &Leaving) -> Vec<&'o Subject> {
    let objects = observations.objects.iter();
    objects
        .filter(|object| {
            object.deleting_since.is_some()
                && object.id.namespace.as_deref() == Some(&namespace.name)
        })
        .collect()
}

/// Names the finalizers whose controllers must act. Returns `None` if there are none.
fn finalizer_hint(deleting: &[&Subject]) -> Option<String> {
    let finalizers: BTreeSet<&str> = deleting
        .iter()
        .flat_map(|object| object.finalizers.iter().map(|one| one.name.as_str()))
        .collect();
    let finalizers: Vec<&str> = finalizers.into_iter().collect();
    (!finalizers.is_empty()).then(|| {
        format!(
            "the controllers of {} must remove these finalizers; restore the controllers if they are missing",
            finalizers.join(", ")
        )
    })
}

/// Diagnoses a namespace without a condition. No controller works on its deletion.
fn without_condition(observations: &Observations, namespace: &Leaving) -> Diagnosis {
    let why = if namespace.finalizers.is_empty() {
        "no condition reports a cause".to_owned()
    } else {
        format!("waits for {}", namespace.finalizers.join(", "))
    };
    let mut diagnosis = start(observations, namespace, Severity::Warning, &why);
    diagnosis.hint = Some(
        "no controller has reported a condition: finalizer `kubernetes` belongs to the kube-controller-manager, any other finalizer to the controller that set it"
            .to_owned(),
    );
    diagnosis.command = Some(show(namespace));
    diagnosis
}

fn show(namespace: &Leaving) -> String {
    format!("kubectl get namespace {} -o yaml", namespace.name)
}

/// Adds objects whose finalizers are not removed. Objects that are part of a namespace diagnosis
/// are skipped.
pub(super) fn objects(observations: &Observations, found: &mut Vec<Diagnosis>) {
    let diagnosed: BTreeSet<ObjectId> = found
        .iter()
        .filter(|diagnosis| diagnosis.code == Code::NamespaceStuck)
        .flat_map(|diagnosis| diagnosis.related.clone())
        .collect();
    for object in &observations.objects {
        let Some(since) = object.deleting_since else {
            continue;
        };
        if object.finalizers.is_empty() || diagnosed.contains(&object.id) {
            continue;
        }
        let absence = absence::of_controllers(observations, &[object]);
        let patience = if absence.is_seen() {
            CERTAIN_PATIENCE
        } else {
            OBJECT_PATIENCE
        };
        if !is_late(since, observations.at, patience) {
            continue;
        }
        let finalizers = || object.finalizers.iter();
        let waits: Vec<String> = finalizers().map(ToString::to_string).collect();
        let names: Vec<&str> = finalizers().map(|one| one.name.as_str()).collect();
        let mut diagnosis = Diagnosis::new(
            Code::ObjectStuck,
            Severity::Warning,
            Some(object.id.clone()),
            format!(
                "has been terminating for {}: waits for {}",
                age(since, observations.at),
                waits.join(", ")
            ),
        );
        diagnosis.owner = Some(object.owner());
        diagnosis.hint = Some(format!(
            "the controller of {} must remove the finalizer; restore the controller if it is missing",
            names.join(", ")
        ));
        diagnosis.command = Some(format!(
            "kubectl get {} -o yaml",
            object.id.kubectl_arguments()
        ));
        absence.report(&mut diagnosis);
        found.push(diagnosis);
    }
}
