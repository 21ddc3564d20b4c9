//! Deletions that `--fix` executes, with their evidence.

use super::{Diagnosis, Gate, Owner, Subject};
use pleach_model::object::{ObjectId, ServiceRef};
use pleach_planner::plan::{Deletion, Evidence, Proof};

/// Reason why `--fix` does not delete an object.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// A deletion does not repair the problem.
    #[error("deleting it does not fix the problem: {0}")]
    NotDead(String),
    /// The garbage collector or the owner is responsible for the object.
    #[error(
        "it is owned by {0}: it is deleted together with its owner, which can recreate it until then"
    )]
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

/// Creates the evidence for a registration, or another object that refers to Services.
pub(super) fn of_services(registered: &Subject, services: Vec<ServiceRef>) -> Evidence {
    evidence(registered, Proof::DeadServices(services), Vec::new())
}

/// Creates the evidence for a gate. Its bindings are deleted before the policy.
pub(super) fn of_gate(gate: &Gate) -> Evidence {
    let proof = Proof::AbandonedGate(gate.owner.clone());
    let first = gate.bindings.iter().map(|binding| {
        let evidence = evidence(binding, proof.clone(), Vec::new());
        (binding.id.clone(), evidence)
    });
    evidence(&gate.policy, proof.clone(), first.collect())
}

fn evidence(subject: &Subject, proof: Proof, first: Vec<(ObjectId, Evidence)>) -> Evidence {
    Evidence::new(
        subject.uid.clone(),
        subject.resource_version.clone(),
        proof,
        first,
    )
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
            .flat_map(Evidence::first)
            .map(|(id, evidence)| (id.clone(), Deletion::of_diagnosis(evidence)))
            .collect()
    }
}

fn suspend(owner: &Owner) -> Option<String> {
    owner.other_tool.as_ref()?.suspend.clone()
}
