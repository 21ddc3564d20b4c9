//! Objects of pleach that no inventory contains, and releases that are not ready.

use std::collections::{BTreeMap, BTreeSet};

use super::{Code, Diagnosis, KnownRelease, Observations, Subject};
use pleach_model::finding::Severity;
use pleach_model::object::ObjectId;
use pleach_planner::plan::is_protected_kind;
use pleach_state::inventory::{ReleaseSummary, Store};

/// Maximum number of members of a lost release that are listed.
const NAMED: usize = 10;

/// Adds objects that claim membership, but are in no inventory.
///
/// Objects of releases with an unreadable inventory are skipped.
pub(super) fn orphans(observations: &Observations, found: &mut Vec<Diagnosis>) {
    let known: BTreeMap<String, &KnownRelease> = observations
        .releases
        .iter()
        .map(|release| (release.summary.apply_set(), release))
        .collect();
    let members: BTreeSet<&ObjectId> = observations
        .releases
        .iter()
        .filter_map(|release| release.inventory.as_ref().ok())
        .flat_map(|inventory| inventory.entries.keys())
        .collect();
    let all_read = observations
        .releases
        .iter()
        .all(|release| release.inventory.is_ok());
    let mut lost: BTreeMap<&str, Vec<&Subject>> = BTreeMap::new();
    for object in observations.objects.iter().filter(|object| {
        object.claims_membership()
            && object.deleting_since.is_none()
            && !members.contains(&object.id)
            && !is_copied(object)
    }) {
        match object.apply_set.as_deref() {
            Some(set) => match known.get(set) {
                Some(release) if release.inventory.is_ok() => {
                    found.push(orphan(object, Some(release)));
                }
                // The ApplySet belongs to another tool or to a release that no longer exists.
                None if object.has_digest && observations.releases_are_complete => {
                    lost.entry(set).or_default().push(object);
                }
                // The object is possibly a member of the unreadable inventory.
                Some(_) | None => {}
            },
            // Its label was removed, or it is a copy of a member.
            None if all_read && observations.releases_are_complete => {
                found.push(orphan(object, None));
            }
            None => {}
        }
    }
    found.extend(
        lost.into_iter()
            .map(|(set, objects)| lost_release(set, &objects)),
    );
}

/// Returns whether the labels of an object are copied from another one.
///
/// Endpoint controllers copy the labels of Services. An owned object has the labels of its
/// template.
fn is_copied(object: &Subject) -> bool {
    !object.references.is_empty()
        || object.id.is("", "Endpoints")
        || object.id.is("discovery.k8s.io", "EndpointSlice")
}

fn orphan(object: &Subject, release: Option<&KnownRelease>) -> Diagnosis {
    let message = match release {
        Some(release) => format!(
            "is labeled as part of release {}, whose inventory does not have it",
            release.summary.target()
        ),
        None => "was applied by pleach, or copied from an applied object, and is in no inventory"
            .to_owned(),
    };
    let mut diagnosis = Diagnosis::new(
        Code::Orphan,
        Severity::Warning,
        Some(object.id.clone()),
        message,
    );
    diagnosis.breaks = vec!["it is neither compared with git nor pruned".to_owned()];
    let mut owner = object.owner();
    owner.release = release.map(|release| release.summary.target());
    diagnosis.owner = Some(owner);
    diagnosis.hint = Some(match release {
        Some(release) => format!(
            "if git has it, `pleach apply {0}` adds it to the inventory; if the record was lost, `pleach recover {0}` does; otherwise remove it",
            release.summary.target()
        ),
        None => "remove the object if it is not needed; otherwise remove its annotation pleach.dev/desired".to_owned(),
    });
    // For protected kinds, no deletion command is suggested, because it would delete more than the
    // object.
    diagnosis.command = Some(if is_protected_kind(&object.id.group_kind()) {
        format!("kubectl describe {}", object.id.kubectl_arguments())
    } else {
        format!("kubectl delete {}", object.id.kubectl_arguments())
    });
    diagnosis
}

fn lost_release(set: &str, objects: &[&Subject]) -> Diagnosis {
    let count = objects.len();
    let noun = if count == 1 { "object" } else { "objects" };
    let mut diagnosis = Diagnosis::new(
        Code::ReleaseLost,
        Severity::Warning,
        None,
        format!("{count} {noun} of ApplySet {set}, whose Release does not exist"),
    );
    diagnosis.breaks = vec!["they are neither compared with git nor pruned".to_owned()];
    diagnosis.related = objects
        .iter()
        .take(NAMED)
        .map(|object| object.id.clone())
        .collect();
    diagnosis.hint = Some(
        "if git still has the release, `pleach recover` adds them to its inventory; otherwise they are leftovers"
            .to_owned(),
    );
    diagnosis.command = objects.first().map(|object| {
        let kind = object.id.group_kind().to_string().to_lowercase();
        format!("kubectl get {kind} -A -l applyset.kubernetes.io/part-of={set}")
    });
    diagnosis
}

/// Returns the hint and the command that repair an unreadable release.
fn way_out(summary: &ReleaseSummary) -> (Option<String>, Option<String>) {
    let target = summary.target();
    if summary.record.is_ok() {
        let hint = format!(
            "`pleach recover {target}` rebuilds its inventory from the metadata of its objects, and deletes nothing; if a newer pleach wrote it, use that version"
        );
        return (Some(hint), Some(format!("pleach recover {target}")));
    }
    let patch = match summary.store {
        Store::Release => r#"--subresource=status -p '{"status":null}'"#,
        Store::ConfigMap { .. } => r#"-p '{"data":null}'"#,
    };
    let hint = format!(
        "if a newer pleach wrote it, use that version; if another client wrote it, clear it with `kubectl patch {} --type=merge {patch}`: `pleach recover {target}` rebuilds it, and deletes nothing",
        summary.store.address(&summary.name)
    );
    (Some(hint), None)
}

/// Adds releases that are unreadable or not ready.
pub(super) fn releases(observations: &Observations, found: &mut Vec<Diagnosis>) {
    for release in &observations.releases {
        let summary = &release.summary;
        let target = summary.target();
        let id = summary.parent();
        let unreadable = match (&summary.record, &release.inventory) {
            (Err(why), _) | (Ok(_), Err(why)) => Some(why),
            (Ok(_), Ok(_)) => None,
        };
        if let Some(why) = unreadable {
            let mut diagnosis = Diagnosis::new(
                Code::ReleaseUnreadable,
                Severity::Error,
                Some(id.clone()),
                format!("release {target} cannot be read: {why}"),
            );
            diagnosis.breaks =
                vec!["its objects are neither applied nor pruned until it can be read".to_owned()];
            (diagnosis.hint, diagnosis.command) = way_out(summary);
            found.push(diagnosis);
        }
        if summary.ready == Some(true) || summary.record.is_err() {
            continue;
        }
        let mut words = vec![match summary.since {
            Some(since) => format!(
                "release {target} has not been ready for {}",
                pleach_model::age::age(since, observations.at)
            ),
            None => format!("release {target} is not ready"),
        }];
        for text in [&summary.reason, &summary.message] {
            if !text.is_empty() {
                words.push(text.clone());
            }
        }
        let mut diagnosis = Diagnosis::new(
            Code::ReleaseNotReady,
            Severity::Warning,
            Some(id),
            words.join(": "),
        );
        let is_removed = summary.record.as_ref().is_ok_and(|record| record.removed);
        let verb = if is_removed { "uninstall" } else { "apply" };
        diagnosis.command = Some(format!("pleach {verb} {target}"));
        // A release with another reason is being uninstalled and possibly still in git.
        if is_removed && summary.reason == "Removed" {
            let hint = "git no longer had it at the last reconciliation: uninstall it, or restore its entry and apply";
            diagnosis.hint = Some(hint.to_owned());
        }
        found.push(diagnosis);
    }
}
