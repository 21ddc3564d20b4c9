//! Summary of a release record and its conditions, for display.

use jiff::Timestamp;
use serde_json::Value;

use super::conditions::{
    AWAITING_APPROVAL, ConditionKind, Following, awaited_effects, followed, is_reported,
};
use super::release::status_of;
use super::{Installed, Journal, NodesReport, Store, UserRequests};
use pleach_model::object::{ObjectId, ReleaseName};

/// Content of the object with a record. Available even if the record is unreadable.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReleaseSummary {
    /// Environment and release.
    pub name: ReleaseName,
    /// Location of the record.
    pub store: Store,
    /// The record, or the reason why it is unreadable.
    pub record: Result<Installed, String>,
    /// User requests.
    pub user_requests: UserRequests,
    /// Status of condition Ready. `None` before the first status write.
    pub ready: Option<bool>,
    /// Reason of condition Ready.
    pub reason: String,
    /// Message of condition Ready.
    pub message: String,
    /// Last transition time of condition Ready.
    pub since: Option<Timestamp>,
    /// The controller that follows the release, if any.
    pub followed: Option<Following>,
    /// Other conditions of the controller: type, reason and message.
    pub conditions: Vec<(String, String, String)>,
    /// Nodes that the last run changes.
    pub nodes: NodesReport,
    /// Unfinished work of the last run. `None` unless it was read.
    pub journal: Option<Journal>,
}

impl ReleaseSummary {
    /// Reads the object with a record. `None` if its name is not a release name.
    pub fn read(value: &Value) -> Option<Self> {
        let (environment, release) = value["metadata"]["name"].as_str()?.split_once('.')?;
        let status = status_of(value).unwrap_or_default();
        let all = status["conditions"]
            .as_array()
            .map_or(&[][..], Vec::as_slice);
        let condition = all
            .iter()
            .find(|condition| condition["type"] == "Ready")
            .unwrap_or(&Value::Null);
        let text_of =
            |condition: &Value, key: &str| condition[key].as_str().unwrap_or_default().to_owned();
        let text = |key: &str| text_of(condition, key);
        let is_trouble = |other: &&Value| {
            is_reported(other) && other["type"] != ConditionKind::Followed.as_str()
        };
        let others = all.iter().filter(is_trouble).map(|other| {
            (
                text_of(other, "type"),
                text_of(other, "reason"),
                text_of(other, "message"),
            )
        });
        Some(Self {
            name: ReleaseName {
                environment: environment.to_owned(),
                release: release.to_owned(),
            },
            store: Store::of(value),
            record: Installed::from_object(value).map_err(|error| {
                let cause = std::error::Error::source(&error);
                cause.map_or_else(|| error.to_string(), |cause| format!("{error}: {cause}"))
            }),
            user_requests: UserRequests::read(value),
            ready: condition["status"].as_str().map(|status| status == "True"),
            reason: text("reason"),
            message: text("message"),
            since: text("lastTransitionTime").parse().ok(),
            followed: followed(value),
            conditions: others.collect(),
            nodes: NodesReport::read(value),
            journal: None,
        })
    }

    /// Returns the digest of the effects that wait for approval. `None` if no plan waits.
    pub fn awaited_approval(&self) -> Option<&str> {
        let mut conditions = self.conditions.iter();
        let (_, _, message) = conditions.find(|(_, reason, _)| reason == AWAITING_APPROVAL)?;
        awaited_effects(message)
    }

    /// Returns the id of the object with the record.
    pub fn parent(&self) -> ObjectId {
        self.store.parent(&self.name)
    }

    /// Returns the id of the release's ApplySet.
    pub fn apply_set(&self) -> String {
        self.store.apply_set(&self.name)
    }

    /// Returns `ENV/RELEASE`, as commands take it.
    pub fn target(&self) -> String {
        format!("{}/{}", self.name.environment, self.name.release)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::awaiting_approval;
    use super::*;

    #[test]
    fn a_release_without_a_status_is_not_ready_yet() {
        let summary = ReleaseSummary::read(&json!({"metadata": {"name": "e.r"}})).unwrap();
        assert_eq!(summary.target(), "e/r");
        assert_eq!((summary.ready, summary.since), (None, None));
        assert_eq!(summary.record.unwrap().installed, None);
        assert_eq!(
            ReleaseSummary::read(&json!({"metadata": {"name": "x"}})),
            None
        );
    }

    #[test]
    fn the_effects_that_wait_for_approval_are_in_the_condition() {
        let message = awaiting_approval("sha256:ab", "1 to create (create: it)");
        for (kind, reason, message, expected) in [
            (
                "Stalled",
                AWAITING_APPROVAL,
                message.as_str(),
                Some("sha256:ab"),
            ),
            ("Stalled", "Failed", message.as_str(), None),
            ("Stalled", AWAITING_APPROVAL, "soon", None),
        ] {
            let summary = ReleaseSummary::read(&json!({
                "metadata": {"name": "e.r"},
                "status": {"conditions": [
                    {"type": kind, "status": "True", "reason": reason, "message": message}]},
            }));
            let summary = summary.unwrap();
            assert_eq!(summary.awaited_approval(), expected, "{reason}: {message}");
        }
    }

    #[test]
    fn a_record_that_cannot_be_read_leaves_the_condition() {
        let summary = ReleaseSummary::read(&json!({
            "metadata": {"name": "e.r"},
            "status": {"record": {"format": "x"}, "conditions": [
                {"type": "Other"},
                {"type": "Ready", "status": "False", "reason": "Failed", "message": "m",
                 "lastTransitionTime": "1970-01-01T00:00:00Z"}]},
        }))
        .unwrap();
        assert_eq!(summary.ready, Some(false));
        assert_eq!(summary.since, Some(Timestamp::UNIX_EPOCH));
        assert!(
            summary
                .record
                .unwrap_err()
                .starts_with("failed to parse the status of release e.r: ")
        );
    }
}
