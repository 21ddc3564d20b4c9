//! What entitles `--fix` to delete a registration or a gate.

use super::{Diagnosis, Gate, Owner, Subject};
use crate::object::{ObjectId, ServiceRef};
use crate::plan::Deletion;

/// An object that may be deleted, as it was seen. Made by the diagnosis only.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Evidence {
    uid: String,
    resource_version: String,
    proof: Proof,
    /// What goes before it, with the same proof.
    first: Vec<(ObjectId, Self)>,
}

/// Why it may be deleted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Proof {
    /// Every Service that it points at does not exist: these.
    DeadServices(Vec<ServiceRef>),
    /// It is a gate of this release's upgrade, which nobody carries out.
    AbandonedGate(String),
}

/// Why `--fix` leaves an object alone.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// What is wrong is not repaired by a deletion.
    #[error("it cannot be fixed by deleting it: {0}")]
    NotDead(String),
    /// The garbage collector or its owner takes care of it.
    #[error("it is owned by {0}: it goes with that, which may put it back until then")]
    Owned(String),
    /// Somebody else may put it back, or miss it.
    #[error("it belongs to {who}")]
    Foreign {
        /// Who.
        who: String,
        /// How it is told to leave the object alone.
        suspend: Option<String>,
    },
}

impl Evidence {
    pub(super) fn of_services(registered: &Subject, services: Vec<ServiceRef>) -> Self {
        Self::new(registered, Proof::DeadServices(services))
    }

    /// The bindings go before the policy.
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

    /// The incarnation that was seen.
    pub fn uid(&self) -> &str {
        &self.uid
    }

    /// The version that was seen.
    pub fn resource_version(&self) -> &str {
        &self.resource_version
    }

    /// Why it may be deleted.
    pub fn proof(&self) -> &Proof {
        &self.proof
    }
}

impl Diagnosis {
    /// The deletion that repairs it. `overrule` says that whoever else the
    /// object belongs to was told about, and is overruled.
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
    /// What is deleted before the object itself, where that may be deleted.
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
