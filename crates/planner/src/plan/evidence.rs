//! Evidence of the diagnosis that an object is allowed to be deleted.

use pleach_model::object::{ObjectId, ServiceRef};

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

impl Evidence {
    /// Creates evidence from an observed object. Only the diagnosis calls this.
    pub fn new(
        uid: String,
        resource_version: String,
        proof: Proof,
        first: Vec<(ObjectId, Self)>,
    ) -> Self {
        Self {
            uid,
            resource_version,
            proof,
            first,
        }
    }

    /// Returns the objects to delete first.
    pub fn first(&self) -> &[(ObjectId, Self)] {
        &self.first
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
