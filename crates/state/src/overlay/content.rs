//! Contents of temporary changes.

use serde::ser::SerializeStruct as _;
use serde::{Deserialize, Serialize, Serializer};
use serde_json::Value;

use super::Journaled;
use pleach_formats::gate::Gate;
use pleach_model::object::NonSecret;

/// Kinds of temporary changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum OverlayKind {
    /// Other values for fields of an existing object.
    Patch,
    /// An admission policy that refuses writes.
    Gate,
    /// A temporary RBAC binding.
    Binding,
}

/// Content of a temporary change.
///
/// Only the planner creates gates. The text of a declared overlay is always a patch, even if it
/// reads like a gate.
#[derive(Debug, Clone, PartialEq)]
pub enum OverlayContent {
    /// Other values for fields of an existing object.
    Patch {
        /// A merge patch.
        patch: NonSecret,
        /// The original values, as a merge patch that restores them.
        original: NonSecret,
    },
    /// An admission policy that refuses writes. `None` if the journal does not contain its terms.
    Gate(Option<Gate>),
    /// A temporary RBAC binding.
    Binding {
        /// The binding.
        body: NonSecret,
    },
}

impl OverlayContent {
    /// Returns the kind of the change.
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

    /// Returns the merge patch, if the change is one.
    pub fn patch(&self) -> Option<&Value> {
        match self {
            Self::Patch { patch, .. } => Some(&patch.0),
            Self::Gate(_) | Self::Binding { .. } => None,
        }
    }

    /// Returns the content as written to the journal and to JSON output.
    pub fn written(&self) -> NonSecret {
        match self {
            Self::Patch { patch, .. } => patch.clone(),
            // Serializing our own types cannot fail.
            Self::Gate(gate) => NonSecret(serde_json::to_value(gate).unwrap_or_default()),
            Self::Binding { body } => body.clone(),
        }
    }

    /// Returns the original values. Null if no object existed.
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
