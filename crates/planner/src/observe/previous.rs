//! Previous release of a handover: the one that hands over its objects.

use serde::{Deserialize, Serialize};

use pleach_model::object::{ObjectId, ReleaseName};
use pleach_state::inventory::{Entry, EntryState, Inventory};

/// State of a release that hands over its objects and that git no longer contains.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PreviousRelease {
    /// The release.
    pub name: ReleaseName,
    /// ApplySet id, which its members carry as a label.
    pub apply_set: String,
    /// Its members.
    pub inventory: Inventory,
}

impl PreviousRelease {
    /// Returns its applied objects.
    pub fn applied(&self) -> impl Iterator<Item = (&ObjectId, &Entry)> {
        let entries = self.inventory.entries.iter();
        entries.filter(|(_, entry)| entry.state == EntryState::Applied)
    }
}
