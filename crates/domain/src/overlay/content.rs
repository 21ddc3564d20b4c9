//! Contents of temporary changes.

use serde::ser::SerializeStruct as _;
use serde::{Deserialize, Serialize, Serializer};
use serde_json::Value;

use super::Journaled;
use crate::gate::Gate;
use crate::plan::NonSecret;

/// The sorts of temporary changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum OverlayKind {
    /// Fields of an existing object have other values.
    Patch,
    /// An admission policy refuses writes.
    Gate,
    /// A temporary binding exists.
    Binding,
}

/// The content of a temporary change.
///
/// Only the planner makes a gate. The text of a declared overlay is a patch, even
/// if it reads like a gate.
#[derive(Debug, Clone, PartialEq)]
pub enum OverlayContent {
    /// Fields of an existing object have other values.
    Patch {
        /// A merge patch.
        patch: NonSecret,
        /// The values before, as a merge patch that restores them.
        original: NonSecret,
    },
    /// An admission policy refuses writes. `None` if the journal does not tell
    /// which ones.
    Gate(Option<Gate>),
    /// A temporary binding exists.
    Binding {
        /// The binding.
        body: NonSecret,
    },
}

impl OverlayContent {
    /// Returns the sort of the change.
    pub fn kind(&self) -> OverlayKind {
        match self {
            Self::Patch { .. } => OverlayKind::Patch,
            Self::Gate(_) => OverlayKind::Gate,
            Self::Binding { .. } => OverlayKind::Binding,
        }
    }

    /// Returns the gate, if the change is one.
    pub fn gate(&self) -> Option<&Gate> {
        match self {
            Self::Gate(gate) => gate.as_ref(),
            Self::Patch { .. } | Self::Binding { .. } => None,
        }
    }

    /// Returns the merge patch of an existing object.
    pub fn patch(&self) -> Option<&Value> {
        match self {
            Self::Patch { patch, .. } => Some(&patch.0),
            Self::Gate(_) | Self::Binding { .. } => None,
        }
    }

    /// Returns the change as the journal and JSON output have it.
    pub fn written(&self) -> NonSecret {
        match self {
            Self::Patch { patch, .. } => patch.clone(),
            // Serializing our own types cannot fail.
            Self::Gate(gate) => NonSecret(serde_json::to_value(gate).unwrap_or_default()),
            Self::Binding { body } => body.clone(),
        }
    }

    /// Returns the values before the change; null if nothing existed.
    pub fn original(&self) -> NonSecret {
        match self {
            Self::Patch { original, .. } => original.clone(),
            Self::Gate(_) | Self::Binding { .. } => NonSecret(Value::Null),
        }
    }
}

impl From<&Journaled> for OverlayContent {
    fn from(journaled: &Journaled) -> Self {
        match journaled.kind() {
            OverlayKind::Patch => Self::Patch {
                patch: journaled.set.clone(),
                original: journaled.original.clone(),
            },
            OverlayKind::Gate => Self::Gate(journaled.gate()),
            OverlayKind::Binding => Self::Binding {
                body: journaled.set.clone(),
            },
        }
    }
}

impl Serialize for OverlayContent {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut fields = serializer.serialize_struct("OverlayContent", 2)?;
        fields.serialize_field("patch", &self.written())?;
        fields.serialize_field("original", &self.original())?;
        fields.end()
    }
}
