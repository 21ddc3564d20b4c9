//! Recorded temporary changes of releases that are not being reconciled.
//!
//! A temporary change lasts as long as a run. The next run reverts or continues the changes that
//! are left. Without a Release, no run will ever find them.

use std::collections::BTreeMap;

use serde_json::Value;

use super::gate::abandoned_by;
use super::{Code, Diagnosis, LeaseState, Observations};
use pleach_fields::diff::locate::find;
use pleach_model::finding::Severity;
use pleach_model::object::{ObjectId, ReleaseName};
use pleach_state::inventory::{Journal, JournalError};
use pleach_state::overlay::{Journaled, OverlayId, State, fields};

/// Maximum number of fields that are listed per object.
const NAMED: usize = 5;
/// Maximum length of a shown value, in characters.
const SHOWN: usize = 40;

/// Recorded temporary changes of a release.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Standing {
    /// The ConfigMap with the journal.
    pub record: ObjectId,
    /// The release: `<environment>.<release>`.
    pub owner: String,
    /// The temporary changes.
    pub overlays: BTreeMap<OverlayId, Journaled>,
    /// State of the release's Lease.
    pub lease_state: LeaseState,
}

impl Standing {
    /// Reads a ConfigMap. Returns `None` unless its name is that of a journal.
    pub fn read(value: &Value) -> Option<Result<Self, JournalError>> {
        let metadata = &value["metadata"];
        let name = metadata["name"].as_str()?;
        let owner = name.strip_suffix(".journal")?;
        let (environment, release) = owner.split_once('.')?;
        let release = ReleaseName {
            environment: environment.to_owned(),
            release: release.to_owned(),
        };
        let namespace = metadata["namespace"].as_str();
        Some(Journal::from_object(value, &release).map(|journal| Self {
            record: ObjectId::new("", "ConfigMap", namespace, name),
            owner: owner.to_owned(),
            overlays: journal.overlays,
            lease_state: LeaseState::default(),
        }))
    }
}

/// Adds all temporary changes that no run will revert.
pub(super) fn overlays(observations: &Observations, found: &mut Vec<Diagnosis>) {
    for standing in &observations.standing {
        let Some(why) = abandoned_by(observations, &standing.owner, standing.lease_state) else {
            continue;
        };
        // Gates have their own diagnosis. They have no previous state to revert to.
        let overlays = standing.overlays.iter();
        let overlays = overlays.filter(|(_, one)| !one.is_gate());
        found.extend(overlays.map(|(id, one)| {
            let mut diagnosis = diagnosis(observations, standing, id, one);
            diagnosis.message = format!("{}, {}", diagnosis.message, why.words);
            if why.release_exists {
                add_owner_hint(&mut diagnosis, &standing.owner);
            } else {
                by_hand(&mut diagnosis, standing, one);
            }
            diagnosis
        }));
    }
}

fn diagnosis(
    observations: &Observations,
    standing: &Standing,
    id: &OverlayId,
    one: &Journaled,
) -> Diagnosis {
    let is = match one.state {
        State::On => "is",
        State::Intended => "may be",
    };
    Diagnosis::new(
        Code::OverlayAbandoned,
        Severity::Warning,
        Some(one.object.clone()),
        format!(
            "{is} temporarily changed, for {} now: {}; overlay {id} of an upgrade of {} to {}",
            pleach_model::age::age(one.since, observations.at),
            differences(one),
            target(&standing.owner),
            one.attempt,
        ),
    )
}

/// Adds the advice if the next run of the release will clean up.
fn add_owner_hint(diagnosis: &mut Diagnosis, owner: &str) {
    let target = target(owner);
    diagnosis.hint = Some(
        "the next apply continues the upgrade, or reverts overlays that git no longer has"
            .to_owned(),
    );
    diagnosis.command = Some(format!("pleach apply {target}"));
}

/// Adds the advice if no run will find the change.
fn by_hand(diagnosis: &mut Diagnosis, standing: &Standing, one: &Journaled) {
    diagnosis.severity = Severity::Error;
    diagnosis.breaks = vec!["no run will revert it".to_owned()];
    diagnosis.related = vec![standing.record.clone()];
    diagnosis.hint = Some(format!(
        "if git still has the release, `pleach recover {}` and an apply revert it; otherwise revert it by hand, and then run `kubectl delete {}`",
        target(&standing.owner),
        standing.record.kubectl_arguments()
    ));
    let original = one.original.0.to_string().replace('\'', r"'\''");
    diagnosis.command = Some(format!(
        "kubectl patch {} --type=merge -p '{original}'",
        one.object.kubectl_arguments()
    ));
}

fn target(owner: &str) -> String {
    owner.replacen('.', "/", 1)
}

/// Lists the changed fields, such as `.spec.replicas is 0 and was 2`.
fn differences(one: &Journaled) -> String {
    let fields = fields(&one.set.0);
    let mut texts: Vec<String> = fields
        .iter()
        .take(NAMED)
        .map(|path| {
            let value = |all| shown(find(all, path).unwrap_or(&Value::Null));
            format!(
                "{path} is {} and was {}",
                value(&one.set.0),
                value(&one.original.0)
            )
        })
        .collect();
    if fields.len() > NAMED {
        texts.push(format!("{} more", fields.len() - NAMED));
    }
    texts.join(", ")
}

fn shown(value: &Value) -> String {
    if value.is_null() {
        return "absent".to_owned();
    }
    let text = value.to_string();
    if text.chars().count() <= SHOWN {
        return text;
    }
    let start: String = text.chars().take(SHOWN).collect();
    format!("{start}…")
}
