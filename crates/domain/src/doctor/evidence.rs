//! What entitles `--fix` to delete a registration.

use super::{Diagnosis, Owner};
use crate::object::ServiceRef;
use crate::plan::Deletion;

/// A registration whose every Service does not exist, as it was seen. Made by
/// the diagnosis only.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Evidence {
    uid: String,
    resource_version: String,
    services: Vec<ServiceRef>,
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
    pub(super) fn new(uid: &str, resource_version: &str, services: Vec<ServiceRef>) -> Self {
        Self {
            uid: uid.to_owned(),
            resource_version: resource_version.to_owned(),
            services,
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

    /// The Services that do not exist.
    pub fn services(&self) -> &[ServiceRef] {
        &self.services
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

fn suspend(owner: &Owner) -> Option<String> {
    owner.deployer.as_ref()?.suspend.clone()
}
