//! Status object that the API server sends on failure.

use std::time::Duration;

use serde::{Deserialize, Deserializer};

/// Failure as reported by the server (`meta/v1 Status`).
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct Status {
    /// `Status`.
    pub(super) kind: String,
    /// List metadata. Only `continue` of an expired list is used.
    #[serde(deserialize_with = "nullable")]
    pub(super) metadata: StatusMetadata,
    /// Message for humans.
    pub(super) message: String,
    /// Machine-readable reason. Empty for some failures.
    pub(super) reason: String,
    /// HTTP status.
    pub(super) code: u16,
    /// Subject of the failure.
    #[serde(deserialize_with = "nullable")]
    pub(super) details: Details,
}

/// Metadata of a Status.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub(super) struct StatusMetadata {
    /// Token that continues an expired list with an inconsistent snapshot.
    #[serde(rename = "continue")]
    pub(super) continue_token: String,
}

/// Subject of a Status.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct Details {
    /// Name of the object.
    pub(super) name: String,
    /// Group of the object.
    pub(super) group: String,
    /// Plural name of the resource in most cases.
    pub(super) kind: String,
    /// Uid of the object.
    pub(super) uid: String,
    /// Single causes.
    #[serde(deserialize_with = "nullable")]
    pub(super) causes: Vec<Cause>,
    /// Retry delay in seconds.
    pub(super) retry_after_seconds: u64,
}

/// One of several causes.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub(super) struct Cause {
    /// Machine-readable reason.
    pub(super) reason: String,
    /// Message for humans.
    pub(super) message: String,
    /// Path of the field.
    pub(super) field: String,
}

fn nullable<'de, D: Deserializer<'de>, T: Default + Deserialize<'de>>(
    deserializer: D,
) -> Result<T, D::Error> {
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}

impl Status {
    /// Reads a body. `None` if it is not a Status, such as plain text or a page of a proxy.
    pub(super) fn read(body: &[u8]) -> Option<Self> {
        let status: Self = serde_json::from_slice(body).ok()?;
        (status.kind == "Status").then_some(status)
    }

    /// Returns whether a cause has this reason.
    pub(super) fn has_cause(&self, reason: &str) -> bool {
        self.details
            .causes
            .iter()
            .any(|cause| cause.reason == reason)
    }

    /// Returns the fresh token of an expired list.
    pub(super) fn continue_token(&self) -> Option<String> {
        let token = &self.metadata.continue_token;
        (!token.is_empty()).then(|| token.clone())
    }

    /// Returns the retry delay that the server asks for.
    pub(super) fn retry_after(&self) -> Option<Duration> {
        let seconds = self.details.retry_after_seconds;
        (seconds > 0).then(|| Duration::from_secs(seconds))
    }

    /// Applies `mask` to every text of the Status.
    pub(super) fn map_texts(&mut self, mask: impl Fn(&str) -> String) {
        self.message = mask(&self.message);
        for cause in &mut self.details.causes {
            cause.message = mask(&cause.message);
        }
    }
}
