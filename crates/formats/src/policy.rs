//! Policies of environments and bundles that the planner uses.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use pleach_model::object::{Origin, SecretField, Selector};

/// An object that workloads make and no manifest has.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct RuntimeObject {
    /// Kind.
    pub kind: String,
    /// API group; that of the well-known kind when left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group: Option<String>,
    /// Name, where it is matched by name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Name of the Service it points at, where it is matched by that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub service: Option<String>,
    /// Verify does not wait for it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub optional: bool,
}

/// Whether and how much may be pruned.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct PrunePolicy {
    /// Whether anything is pruned.
    pub enabled: bool,
    /// The cap.
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

/// The most that one sync may prune; at least 5 objects are always allowed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(try_from = "serde_json::Value", into = "String")]
#[schemars(with = "serde_json::Value")]
pub enum PruneMax {
    /// Of the applied entries.
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

/// A kind that may not be deleted or recreated without consent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Protect {
    /// API group; any when left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group: Option<String>,
    /// Kind; `*` for any.
    pub kind: String,
}

/// A destructive step that git allows, bound to what it is for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Consent {
    /// What is allowed.
    pub action: ConsentAction,
    /// Kind of the object, for delete and recreate.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    /// Its API group; any when left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group: Option<String>,
    /// Its namespace; any when left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// Its name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// The release it is for.
    pub release: String,
    /// The version that is left.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<String>,
    /// The version that is gone to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub to: Option<String>,
    /// Upper bound of objects, for prune.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub count: Option<usize>,
    /// What becomes of what the object owns, for recreate.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub propagation: Option<Propagation>,
    /// The check that is overridden.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub check: Option<String>,
    /// Why.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// What becomes of what a deleted object owns.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Propagation {
    /// It is deleted afterwards.
    Background,
    /// It is deleted before.
    Foreground,
    /// It stays; the new object adopts it. Only for a `StatefulSet`.
    Orphan,
}

/// What a consent allows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum ConsentAction {
    /// Deleting one object of a protected kind.
    Delete,
    /// Pruning more than the cap.
    Prune,
    /// Deleting and creating one object of a protected kind.
    Recreate,
    /// Going on although a check does not hold.
    Override,
    /// Uninstalling a release.
    Uninstall,
}

/// Secret fields of some objects.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SecretRule {
    /// Selected objects.
    pub target: Selector,
    /// Secret fields of these objects.
    pub fields: Vec<SecretField>,
    /// Location of the rule.
    pub origin: Origin,
}
