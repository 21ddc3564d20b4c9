//! Temporary changes that are on record, of releases that nobody is at.
//!
//! A temporary change lasts as long as a run; what a run leaves the next one
//! takes back or goes on with. Where there is no Release any more, no run finds it.

use std::collections::BTreeMap;

use serde_json::Value;

use super::gate::abandoned_by;
use super::stuck::address;
use super::{Code, Diagnosis, Holding, Observations};
use crate::diff::locate::find;
use crate::finding::Severity;
use crate::inventory::{Journal, JournalError, ReleaseName};
use crate::object::ObjectId;
use crate::overlay::{Journaled, OverlayId, State, fields};

/// Fields of an object that are told; the rest is counted.
const TOLD: usize = 5;
/// Characters of a value that are shown.
const SHOWN: usize = 40;

/// The temporary changes of a release.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Standing {
    /// The ConfigMap that has them on record.
    pub record: ObjectId,
    /// The release that they belong to: `<environment>.<release>`.
    pub owner: String,
    /// What is different.
    pub overlays: BTreeMap<OverlayId, Journaled>,
    /// Whether somebody carries out a plan of that release.
    pub holding: Holding,
}

impl Standing {
    /// Reads a ConfigMap; none for one that is no journal, by its name.
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
            holding: Holding::default(),
        }))
    }
}

/// Every temporary change that nobody is about to end.
pub(super) fn overlays(observations: &Observations, found: &mut Vec<Diagnosis>) {
    for standing in &observations.standing {
        let Some(why) = abandoned_by(observations, &standing.owner, standing.holding) else {
            continue;
        };
        // A gate is told by itself: nothing that it is was different before.
        let overlays = standing.overlays.iter();
        let overlays = overlays.filter(|(_, one)| !one.is_gate());
        found.extend(overlays.map(|(id, one)| {
            let mut diagnosis = diagnosis(observations, standing, id, one);
            diagnosis.message = format!("{}, {}", diagnosis.message, why.words);
            if why.release_exists {
                goes_on(&mut diagnosis, &standing.owner);
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
            "{is} different for a while, for {} now: {}; overlay {id} of an upgrade of {} to {}",
            crate::age::age(one.since, observations.at),
            differences(one),
            target(&standing.owner),
            one.attempt,
        ),
    )
}

/// The next run of the release ends it.
fn goes_on(diagnosis: &mut Diagnosis, owner: &str) {
    let target = target(owner);
    diagnosis.hint = Some(
        "the next apply goes on with the upgrade, or takes back what git no longer wants"
            .to_owned(),
    );
    diagnosis.command = Some(format!("pleach apply {target}"));
}

/// No run finds it any more.
fn by_hand(diagnosis: &mut Diagnosis, standing: &Standing, one: &Journaled) {
    diagnosis.severity = Severity::Error;
    diagnosis.breaks = vec!["nothing will take it back".to_owned()];
    diagnosis.related = vec![standing.record.clone()];
    diagnosis.hint = Some(format!(
        "if git still has the release, `pleach recover {}` and an apply take it back; otherwise do so by hand, and then `kubectl delete {}`",
        target(&standing.owner),
        address(&standing.record)
    ));
    let original = one.original.0.to_string().replace('\'', r"'\''");
    diagnosis.command = Some(format!(
        "kubectl patch {} --type=merge -p '{original}'",
        address(&one.object)
    ));
}

fn target(owner: &str) -> String {
    owner.replacen('.', "/", 1)
}

/// `.spec.replicas is 0 and was 2`.
fn differences(one: &Journaled) -> String {
    let fields = fields(&one.set.0);
    let mut told: Vec<String> = fields
        .iter()
        .take(TOLD)
        .map(|path| {
            let value = |all| shown(find(all, path).unwrap_or(&Value::Null));
            format!(
                "{path} is {} and was {}",
                value(&one.set.0),
                value(&one.original.0)
            )
        })
        .collect();
    if fields.len() > TOLD {
        told.push(format!("{} more", fields.len() - TOLD));
    }
    told.join(", ")
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
