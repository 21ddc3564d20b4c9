//! Gates: admission policies that block writes during an upgrade of a release.
//!
//! A gate exists only during a run. If its run is gone, the gate blocks writes without a reason.
//! This is the case if the Release does not exist or its Lease is not renewed.

use serde::Deserialize as _;
use serde_json::Value;

use super::effect::{operations, resources};
use super::registration::Rule;
use super::{Code, Diagnosis, Observations, Subject};
use pleach_formats::gate::{BINDING, GROUP, POLICY, lifted_by};
use pleach_model::finding::Severity;
use pleach_model::object::{ObjectId, annotations};

/// A gate of pleach.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Gate {
    /// The policy.
    pub policy: Subject,
    /// Bindings of the policy.
    pub bindings: Vec<Subject>,
    /// Release whose upgrade the gate belongs to: `<environment>.<release>`.
    pub owner: String,
    /// Writes that the gate rejects.
    rules: Vec<Rule>,
    /// State of the Lease for that upgrade.
    pub lease_state: LeaseState,
}

/// State of the Lease of a release.
///
/// If a release has several Leases, the smallest value applies: an active holder takes precedence,
/// then an unknown state.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum LeaseState {
    /// The holder renews the Lease.
    Active,
    /// The Lease was not read or could not be read.
    #[default]
    Unknown,
    /// The holder no longer renews the Lease.
    Expired,
    /// The Lease has no holder.
    Free,
}

impl Gate {
    /// Reads a policy. Returns `None` unless its annotation and its name,
    /// `<environment>.<release>.<name>`, identify a gate of pleach.
    pub fn read(value: &Value) -> Option<Self> {
        let metadata = &value["metadata"];
        let name = metadata["name"].as_str()?;
        let owner = metadata["annotations"][annotations::GATE].as_str()?;
        let (environment, release) = owner.split_once('.')?;
        let is_ours = name
            .strip_prefix(owner)
            .is_some_and(|rest| rest.len() > 1 && rest.starts_with('.'));
        if environment.is_empty() || release.is_empty() || !is_ours {
            return None;
        }
        // A rule for single names is the probe that checks whether the gate is in force.
        let rules = value["spec"]["matchConstraints"]["resourceRules"]
            .as_array()
            .into_iter()
            .flatten()
            .filter(|rule| rule["resourceNames"].as_array().is_none_or(Vec::is_empty))
            .filter_map(|rule| Rule::deserialize(rule).ok())
            .collect();
        Some(Self {
            policy: Subject::read(ObjectId::new(GROUP, POLICY, None, name), metadata),
            bindings: Vec::new(),
            owner: owner.to_owned(),
            rules,
            lease_state: LeaseState::default(),
        })
    }

    /// Adds a binding if it binds this policy.
    pub fn bind(&mut self, value: &Value) {
        if value["spec"]["policyName"] != self.policy.id.name.as_str() {
            return;
        }
        if let Some(name) = value["metadata"]["name"].as_str() {
            let id = ObjectId::new(GROUP, BINDING, None, name);
            let binding = Subject::read(id, &value["metadata"]);
            self.bindings.push(binding);
        }
    }
}

/// Adds all gates that no run will lift.
pub(super) fn gates(observations: &Observations, found: &mut Vec<Diagnosis>) {
    for gate in &observations.gates {
        found.extend(abandoned(observations, gate));
    }
}

/// Reason why a temporary object or change of a run will not be removed by that run.
pub(super) struct Abandonment {
    /// Whether the Release exists, or possibly exists. Its next run would then clean up.
    pub(super) release_exists: bool,
    /// Relative clause about an upgrade.
    pub(super) words: &'static str,
}

/// Determines whether an upgrade of a release, `<environment>.<release>`, is abandoned.
///
/// Returns `None` if it is possibly still executed.
pub(super) fn abandoned_by(
    observations: &Observations,
    owner: &str,
    lease_state: LeaseState,
) -> Option<Abandonment> {
    let owner = owner.replacen('.', "/", 1);
    let mut releases = observations.releases.iter();
    let is_known = releases.any(|release| release.summary.target() == owner);
    let release_exists = is_known || !observations.releases_are_complete;
    let words = match lease_state {
        LeaseState::Active | LeaseState::Unknown => return None,
        _ if !release_exists => "whose Release does not exist",
        LeaseState::Expired => "whose Lease holder no longer renews the Lease",
        LeaseState::Free => "which no client is executing",
    };
    Some(Abandonment {
        release_exists,
        words,
    })
}

fn abandoned(observations: &Observations, gate: &Gate) -> Option<Diagnosis> {
    let why = abandoned_by(observations, &gate.owner, gate.lease_state)?;
    let owner = gate.owner.replacen('.', "/", 1);
    let id = &gate.policy.id;
    let mut diagnosis = Diagnosis::new(
        Code::GateAbandoned,
        Severity::Error,
        Some(id.clone()),
        format!("is a gate of an upgrade of {owner}, {}", why.words),
    );
    diagnosis.breaks = gate
        .rules
        .iter()
        .map(|rule| {
            format!(
                "{} of {} is refused, except for exempt clients",
                operations(rule),
                resources(rule)
            )
        })
        .collect();
    diagnosis.owner = Some(gate.policy.owner());
    diagnosis.related = gate.bindings.iter().map(|one| one.id.clone()).collect();
    diagnosis.hint = Some(if why.release_exists {
        format!(
            "`pleach apply {owner}` continues the upgrade; lift the gate only if you do not want that"
        )
    } else {
        "no run will lift it: remove it".to_owned()
    });
    if gate.policy.references.is_empty() && gate.policy.deleting_since.is_none() {
        diagnosis.evidence = Some(super::deletions::of_gate(gate));
        diagnosis.command = Some(lifted_by(id));
    }
    Some(diagnosis)
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;
    use pleach_formats::gate::{Closed, Gate as Closing, Operation, account, binding, is_of};
    use pleach_model::object::ReleaseName;

    use super::*;

    /// The objects are those that `pleach_formats::gate::Gate` builds.
    #[test]
    fn a_gate_and_its_binding_are_recognized() {
        let release = |name: &str| ReleaseName {
            environment: "production".to_owned(),
            release: name.to_owned(),
        };
        let gate = Closing {
            release: release("web"),
            name: "handover".to_owned(),
            version: "v2.0.0".to_owned(),
            closed: vec![Closed {
                groups: vec!["a.example.org".to_owned()],
                resources: vec!["*".to_owned()],
            }],
            operations: vec![Operation::Create, Operation::Update],
            exempt: vec![account("web", "api")],
            exempts_us: true,
            state: "pleach-system".to_owned(),
        };
        let policy = gate.policy(Some("ops"), Timestamp::UNIX_EPOCH);
        let mut found = Gate::read(&policy).unwrap();
        assert_eq!(found.owner, "production.web");
        assert_eq!(found.policy.id, gate.id());
        found.bind(&gate.binding(Timestamp::UNIX_EPOCH));
        assert_eq!(found.bindings.len(), 1);
        assert_eq!(found.bindings[0].id, binding(&gate.id()));
        assert!(is_of(&policy, &gate.release));
        assert!(!is_of(&policy, &release("we")));
    }
}
