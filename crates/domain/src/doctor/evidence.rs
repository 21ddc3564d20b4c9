//! Evidence that allows `--fix` to delete a registration or a gate.

use super::{Diagnosis, Gate, Owner, Subject};
use crate::object::{ObjectId, ServiceRef};
use crate::plan::Deletion;

/// An object that is allowed to be deleted, as observed. Only the diagnosis creates it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Evidence {
    uid: String,
    resource_version: String,
    proof: Proof,
    /// Objects to delete first, with the same proof.
    first: Vec<(ObjectId, Self)>,
}

/// Reason why the object is allowed to be deleted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Proof {
    /// None of the Services that it refers to exists. Contains these Services.
    DeadServices(Vec<ServiceRef>),
    /// A gate of an upgrade that is no longer executed. Contains the release.
    AbandonedGate(String),
}

/// Reason why `--fix` does not delete an object.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// A deletion does not repair the problem.
    #[error("it cannot be fixed by deleting it: {0}")]
    NotDead(String),
    /// The garbage collector or the owner is responsible for the object.
    #[error("it is owned by {0}: it goes with that, which may put it back until then")]
    Owned(String),
    /// Another owner could recreate the object or depend on it.
    #[error("it belongs to {who}")]
    Foreign {
        /// The owner.
        who: String,
        /// Command that suspends the owner.
        suspend: Option<String>,
    },
}

impl Evidence {
    pub(super) fn of_services(registered: &Subject, services: Vec<ServiceRef>) -> Self {
        Self::new(registered, Proof::DeadServices(services))
    }

    /// Creates the evidence for a gate. Its bindings are deleted before the policy.
    pub(super) fn of_gate(gate: &Gate) -> Self {
        let proof = Proof::AbandonedGate(gate.owner.clone());
        let first = gate.bindings.iter();
        Self {
            first: first
                .map(|binding| (binding.id.clone(), Self::new(binding, proof.clone())))
                .collect(),
            ..Self::new(&gate.policy, proof.clone())
        }
    }

    fn new(subject: &Subject, proof: Proof) -> Self {
        Self {
            uid: subject.uid.clone(),
            resource_version: subject.resource_version.clone(),
            proof,
            first: Vec::new(),
        }
    }

    /// Returns the UID that was observed.
    pub fn uid(&self) -> &str {
        &self.uid
    }

    /// Returns the resource version that was observed.
    pub fn resource_version(&self) -> &str {
        &self.resource_version
    }

    /// Returns the reason why the object is allowed to be deleted.
    pub fn proof(&self) -> &Proof {
        &self.proof
    }
}

impl Diagnosis {
    /// Returns the deletion that repairs the problem.
    ///
    /// `overrule` permits the deletion of an object with another owner. The caller has reported
    /// that owner to the user.
    pub fn deletion(&self, overrule: bool) -> Result<Deletion, Refusal> {
        let owner = self.owner.clone().unwrap_or_default();
        if !owner.references.is_empty() {
            return Err(Refusal::Owned(owner.references.join(", ")));
        }
        let Some(evidence) = &self.evidence else {
            return Err(Refusal::NotDead(self.message.clone()));
        };
        if !overrule && let Some(who) = owner.active() {
            return Err(Refusal::Foreign {
                who,
                suspend: suspend(&owner),
            });
        }
        Ok(Deletion::of_diagnosis(evidence))
    }
}

impl Diagnosis {
    /// Returns the deletions that precede the deletion of the object, if that is allowed.
    pub fn deletions_before(&self) -> Vec<(ObjectId, Deletion)> {
        let evidence = self.evidence.iter();
        evidence
            .flat_map(|evidence| &evidence.first)
            .map(|(id, evidence)| (id.clone(), Deletion::of_diagnosis(evidence)))
            .collect()
    }
}

fn suspend(owner: &Owner) -> Option<String> {
    owner.deployer.as_ref()?.suspend.clone()
}
