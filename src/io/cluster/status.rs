//! The Status object, as the API server sends it on failure.

use std::time::Duration;

use serde::{Deserialize, Deserializer};

/// A failure in the server's words (`meta/v1 Status`).
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Status {
    /// `Status`.
    pub kind: String,
    /// List metadata: only `continue` of an expired list is of interest.
    #[serde(deserialize_with = "nullable")]
    pub metadata: StatusMetadata,
    /// For people.
    pub message: String,
    /// For machines; empty for some failures.
    pub reason: String,
    /// HTTP status.
    pub code: u16,
    /// What it is about.
    #[serde(deserialize_with = "nullable")]
    pub details: Details,
}

/// Metadata of a Status.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct StatusMetadata {
    /// With it an expired list can be continued, inconsistently.
    #[serde(rename = "continue")]
    pub continue_token: String,
}

/// What a Status is about.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Details {
    /// Name of the object.
    pub name: String,
    /// Its group.
    pub group: String,
    /// Plural name of the resource, mostly.
    pub kind: String,
    /// Its uid.
    pub uid: String,
    /// One by one.
    #[serde(deserialize_with = "nullable")]
    pub causes: Vec<Cause>,
    /// Seconds to wait.
    pub retry_after_seconds: u64,
}

/// One of several causes.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Cause {
    /// For machines.
    pub reason: String,
    /// For people.
    pub message: String,
    /// The field.
    pub field: String,
}

fn nullable<'de, D: Deserializer<'de>, T: Default + Deserialize<'de>>(
    deserializer: D,
) -> Result<T, D::Error> {
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}

impl Status {
    /// Reads a body; none when it is no Status: plain text, a page of a proxy.
    pub(super) fn read(body: &[u8]) -> Option<Self> {
        let status: Self = serde_json::from_slice(body).ok()?;
        (status.kind == "Status").then_some(status)
    }

    /// Whether a cause has this reason.
    pub(super) fn has_cause(&self, reason: &str) -> bool {
        self.details
            .causes
            .iter()
            .any(|cause| cause.reason == reason)
    }

    /// The fresh token of an expired list.
    pub(super) fn continue_token(&self) -> Option<String> {
        let token = &self.metadata.continue_token;
        (!token.is_empty()).then(|| token.clone())
    }

    /// How long the server asks to wait.
    pub(super) fn retry_after(&self) -> Option<Duration> {
        let seconds = self.details.retry_after_seconds;
        (seconds > 0).then(|| Duration::from_secs(seconds))
    }

    /// Takes quoted values out of every text.
    pub(super) fn map_texts(&mut self, mask: impl Fn(&str) -> String) {
        self.message = mask(&self.message);
        for cause in &mut self.details.causes {
            cause.message = mask(&cause.message);
        }
    }
}
