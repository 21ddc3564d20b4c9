//! The Status object, as the API server sends it on failure.

use std::time::Duration;

use serde::{Deserialize, Deserializer};

/// A failure in the server's words (`meta/v1 Status`).
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct Status {
    /// `Status`.
    pub(super) kind: String,
    /// List metadata: only `continue` of an expired list is of interest.
    #[serde(deserialize_with = "nullable")]
    pub(super) metadata: StatusMetadata,
    /// For people.
    pub(super) message: String,
    /// For machines; empty for some failures.
    pub(super) reason: String,
    /// HTTP status.
    pub(super) code: u16,
    /// What it is about.
    #[serde(deserialize_with = "nullable")]
    pub(super) details: Details,
}

/// Metadata of a Status.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub(super) struct StatusMetadata {
    /// With it an expired list can be continued, inconsistently.
    #[serde(rename = "continue")]
    pub(super) continue_token: String,
}

/// What a Status is about.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct Details {
    /// Name of the object.
    pub(super) name: String,
    /// Its group.
    pub(super) group: String,
    /// Plural name of the resource, mostly.
    pub(super) kind: String,
    /// Its uid.
    pub(super) uid: String,
    /// One by one.
    #[serde(deserialize_with = "nullable")]
    pub(super) causes: Vec<Cause>,
    /// Seconds to wait.
    pub(super) retry_after_seconds: u64,
}

/// One of several causes.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub(super) struct Cause {
    /// For machines.
    pub(super) reason: String,
    /// For people.
    pub(super) message: String,
    /// The field.
    pub(super) field: String,
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
