//! The release whose objects are handed over to another one.

use serde::{Deserialize, Serialize};

use crate::inventory::{Entry, EntryState, Inventory, ReleaseName};
use crate::object::ObjectId;

/// What a release has whose objects are handed over, and that git has no more.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Former {
    /// The release.
    pub name: ReleaseName,
    /// What its members carry as label.
    pub apply_set: String,
    /// Its members.
    pub inventory: Inventory,
}

impl Former {
    /// What it applied.
    pub fn applied(&self) -> impl Iterator<Item = (&ObjectId, &Entry)> {
        let entries = self.inventory.entries.iter();
        entries.filter(|(_, entry)| entry.state == EntryState::Applied)
    }
}
