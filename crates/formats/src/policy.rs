//! Policies of environments and bundles that the planner uses.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use pleach_model::object::{Origin, SecretField, Selector};

/// An object that workloads create and no manifest contains.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct RuntimeObject {
    /// Kind.
    pub kind: String,
    /// API group; that of the well-known kind if omitted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group: Option<String>,
    /// Name, if it is matched by name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Name of the Service that it points at, if it is matched by that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub service: Option<String>,
    /// Verify does not wait for it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub optional: bool,
}

/// Whether and how much pleach prunes.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct PrunePolicy {
    /// Whether pleach prunes.
    pub enabled: bool,
    /// The prune cap.
    pub max: PruneMax,
}

impl Default for PrunePolicy {
    fn default() -> Self {
        Self {
            enabled: true,
            max: PruneMax::Percent(10),
        }
    }
}

/// Maximum that one sync prunes; at least 5 objects are always allowed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(try_from = "serde_json::Value", into = "String")]
#[schemars(with = "serde_json::Value")]
pub enum PruneMax {
    /// Percentage of the applied entries.
    Percent(u8),
    /// A number of objects.
    Count(usize),
}

impl PruneMax {
    /// Returns the limit for a number of applied entries, at least 5.
    pub fn cap(self, applied: usize) -> usize {
        match self {
            Self::Percent(percent) => (applied * usize::from(percent) / 100).max(5),
            Self::Count(count) => count.max(5),
        }
    }
}

impl From<PruneMax> for String {
    fn from(max: PruneMax) -> Self {
        match max {
            PruneMax::Percent(percent) => format!("{percent}%"),
            PruneMax::Count(count) => count.to_string(),
        }
    }
}

impl TryFrom<serde_json::Value> for PruneMax {
    type Error = String;

    fn try_from(value: serde_json::Value) -> Result<Self, Self::Error> {
        let text = match &value {
            serde_json::Value::String(text) => text.clone(),
            other => other.to_string(),
        };
        let error =
            || format!("`{text}` is neither a number of objects nor a percentage such as 10%");
        match text.strip_suffix('%') {
            Some(percent) => percent
                .parse()
                .ok()
                .filter(|p| *p <= 100)
                .map(Self::Percent)
                .ok_or_else(error),
            None => text.parse().map(Self::Count).map_err(|_| error()),
        }
    }
}

/// A kind that is not deleted or recreated without consent.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Protect {
    /// API group; any if omitted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group: Option<String>,
    /// Kind; `*` for any.
    pub kind: String,
}

/// A destructive step that git allows, bound to one change.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Consent {
    /// The allowed action.
    pub action: ConsentAction,
    /// Kind of the object, for delete and recreate.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    /// Its API group; any if omitted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group: Option<String>,
    /// Its namespace; any if omitted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// Its name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// The release it is for.
    pub release: String,
    /// The version before the change.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<String>,
    /// The version after the change.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub to: Option<String>,
    /// Maximum number of objects, for prune.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub count: Option<usize>,
    /// Propagation to owned objects, for recreate.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub propagation: Option<Propagation>,
    /// The check that is overridden.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub check: Option<String>,
    /// The reason.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// Propagation of a deletion to owned objects.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub enum Propagation {
    /// Owned objects are deleted afterwards.
    Background,
    /// Owned objects are deleted before.
    Foreground,
    /// Owned objects are orphaned, and the new object adopts them. Only for a `StatefulSet`.
    Orphan,
}

/// Action that a consent allows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum ConsentAction {
    /// Deleting one object of a protected kind.
    Delete,
    /// Pruning more than the cap.
    Prune,
    /// Deleting and creating one object of a protected kind.
    Recreate,
    /// Continuing although a check does not hold.
    Override,
    /// Uninstalling a release.
    Uninstall,
}

/// Secret fields of some objects.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct SecretRule {
    /// Selected objects.
    pub target: Selector,
    /// Secret fields of these objects.
    pub fields: Vec<SecretField>,
    /// Location of the rule.
    pub origin: Origin,
}
