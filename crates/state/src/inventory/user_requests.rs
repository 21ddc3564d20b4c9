//! User requests that do not go through git. They are stored beside the record, and every write of
//! the record preserves them.

use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use pleach_model::object::{Digest, ReleaseName, annotations};

/// User requests. A Release has them in its spec, a ConfigMap as JSON text under `orders`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct UserRequests {
    /// The controller does not reconcile the release.
    pub suspend: Option<Suspension>,
    /// The controller syncs the release now, before its regular time.
    pub sync: Option<SyncRequest>,
    /// Digest of the approved plan effects, from annotation `pleach.dev/approved` of a Release. The
    /// annotation of a ConfigMap is ignored: see [`UserRequests::approval_annotation`].
    #[serde(skip)]
    pub approved: Option<String>,
    /// User who approved it, from annotation `pleach.dev/approved-by`. `None` if the approval names
    /// no user.
    #[serde(skip)]
    pub approved_by: Option<String>,
}

/// Suspension of the controller for a release.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Suspension {
    /// End of the suspension. `None` until a user resumes the release.
    #[serde(default)]
    pub until: Option<Timestamp>,
    /// Reason that the user gave.
    #[serde(default)]
    pub reason: String,
    /// User who requested it.
    #[serde(default)]
    pub by: String,
    /// Start of the suspension.
    #[serde(default)]
    pub at: Option<Timestamp>,
}

/// Request for an immediate sync.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SyncRequest {
    /// Time of the request. A sync that starts later fulfills it.
    pub at: Timestamp,
    /// User who requested it.
    #[serde(default)]
    pub by: String,
    /// Whether the sync is allowed outside of the change windows.
    #[serde(default)]
    pub override_window: bool,
    /// Whether the request lasts until the commits at its time are reconciled, because a client
    /// waits for their result.
    #[serde(default)]
    pub after_fetch: bool,
    /// Whether nodes are changed that fell behind the installed version.
    #[serde(default, skip_serializing_if = "core::ops::Not::not")]
    pub nodes: bool,
}

/// Age at which an unclaimed request becomes stale.
const STALE: SignedDuration = SignedDuration::from_hours(1);

impl SyncRequest {
    /// Returns whether the request lasts until the commits at its time are reconciled.
    pub fn needs_fetch(&self) -> bool {
        self.override_window || self.after_fetch
    }

    /// Returns whether the request is so old that no controller is allowed to take it.
    pub fn is_stale(&self, now: Timestamp) -> bool {
        now.duration_since(self.at) >= STALE
    }
}

impl UserRequests {
    /// Returns the namespace annotation that approves plans of a release whose record is a
    /// ConfigMap in the namespace. Permission to write ConfigMaps there does not include permission
    /// to annotate the namespace.
    pub fn approval_annotation(name: &ReleaseName) -> String {
        of_release(annotations::APPROVED, name)
    }

    /// Returns the namespace annotation with the user who approved the plan, beside
    /// [`UserRequests::approval_annotation`].
    pub fn approver_annotation(name: &ReleaseName) -> String {
        of_release(annotations::APPROVED_BY, name)
    }

    /// Reads the requests from the object with the record. Unreadable requests suspend the release,
    /// because the user's intent is unknown.
    pub fn read(parent: &Value) -> Self {
        let read = match (parent["kind"] == "ConfigMap", &parent["data"]["orders"]) {
            (true, Value::String(text)) => serde_json::from_str(text),
            (true, _) => Ok(Self::default()),
            (false, _) if parent["spec"].is_null() => Ok(Self::default()),
            (false, _) => serde_json::from_value(parent["spec"].clone()),
        };
        let read = read.unwrap_or_else(|error| Self {
            suspend: Some(Suspension {
                until: None,
                reason: format!("failed to parse the user requests: {error}"),
                by: String::new(),
                at: None,
            }),
            ..Self::default()
        });
        let annotation = |key: &str| {
            let value = parent["metadata"]["annotations"][key].as_str();
            let value = value.filter(|_| parent["kind"] != "ConfigMap");
            value.map(|value| value.trim().to_owned())
        };
        read.with_approval(
            annotation(annotations::APPROVED),
            annotation(annotations::APPROVED_BY),
        )
    }

    /// Returns the requests with the approval of these annotations. An approver of another digest
    /// is ignored, because another client can have replaced the digest alone.
    #[must_use]
    pub fn with_approval(self, approved: Option<String>, approver: Option<String>) -> Self {
        let approver = approver.and_then(|approver| {
            let (digest, user) = approver.split_once(' ')?;
            (approved.as_deref() == Some(digest)).then(|| user.to_owned())
        });
        Self {
            approved,
            approved_by: approver,
            ..self
        }
    }

    /// Returns the value of the annotation with the approver of a digest.
    pub fn approver(digest: &str, user: &str) -> String {
        format!("{digest} {user}")
    }

    /// Builds the merge patch that writes the requests. Absent requests become null.
    pub fn patch(&self, parent: &Value) -> Value {
        let mut change = json!({
            "metadata": { "resourceVersion": parent["metadata"]["resourceVersion"] },
        });
        if parent["kind"] == "ConfigMap" {
            change["data"] = json!({ "orders": json!(self).to_string() });
        } else {
            change["spec"] = json!(self);
        }
        change
    }

    /// Returns the suspension that applies at `now`.
    pub fn suspended(&self, now: Timestamp) -> Option<&Suspension> {
        self.suspend
            .as_ref()
            .filter(|suspension| suspension.until.is_none_or(|until| now < until))
    }
}

/// Returns the annotation of a namespace that is about one release.
fn of_release(annotation: &str, name: &ReleaseName) -> String {
    let label = name.to_string();
    let part = annotation.split('/').next_back().unwrap_or_default();
    // The name part of an annotation key has at most 63 characters.
    let label = if part.len() + 1 + label.len() <= 63 {
        label
    } else {
        Digest::of(label.as_bytes()).short()
    };
    format!("{annotation}.{label}")
}

impl Suspension {
    /// Describes user, end and reason in one line.
    pub fn words(&self) -> String {
        let by = match self.by.as_str() {
            "" => String::new(),
            by => format!(" by {by}"),
        };
        let until = match self.until {
            Some(until) => format!(" until {until:.0}"),
            None => " until it is resumed".to_owned(),
        };
        let reason = match self.reason.as_str() {
            "" => String::new(),
            reason => format!(": {reason}"),
        };
        format!("suspended{by}{until}{reason}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn requests() -> UserRequests {
        UserRequests {
            suspend: Some(Suspension {
                until: Some(at(7200)),
                reason: "the database moves".to_owned(),
                by: "ann@host".to_owned(),
                at: Some(at(0)),
            }),
            sync: Some(SyncRequest {
                at: at(60),
                by: "bob@host".to_owned(),
                override_window: true,
                after_fetch: true,
                nodes: true,
            }),
            ..UserRequests::default()
        }
    }

    #[test]
    fn an_approval_is_read_from_a_release_only() {
        let approvals = [("Release", Some("sha256:ab")), ("ConfigMap", None)];
        for (kind, approved) in approvals {
            let metadata = json!({"annotations": {"pleach.dev/approved": " sha256:ab\n",
                "pleach.dev/approved-by": UserRequests::approver("sha256:ab", "oidc:ann")}});
            let requests = UserRequests::read(&json!({"kind": kind, "metadata": metadata}));
            assert_eq!(requests.approved.as_deref(), approved);
            let by = approved.map(|_| "oidc:ann");
            assert_eq!(requests.approved_by.as_deref(), by);
            // The approval is stored only as an annotation.
            assert!(
                !requests
                    .patch(&json!({"kind": kind}))
                    .to_string()
                    .contains("sha256")
            );
        }
    }

    #[test]
    fn an_approver_of_another_digest_is_ignored() {
        for (approver, expected) in [
            ("sha256:ab oidc:ann", Some("oidc:ann")),
            ("sha256:ab ann the second", Some("ann the second")),
            ("sha256:cd oidc:ann", None),
            ("oidc:ann", None),
        ] {
            let requests = UserRequests::default()
                .with_approval(Some("sha256:ab".to_owned()), Some(approver.to_owned()));
            assert_eq!(requests.approved_by.as_deref(), expected, "{approver}");
        }
    }

    #[test]
    fn an_approval_in_a_namespace_names_its_release() {
        let name = |release: &str| ReleaseName {
            environment: "prod".to_owned(),
            release: release.to_owned(),
        };
        assert_eq!(
            UserRequests::approval_annotation(&name("web")),
            "pleach.dev/approved.prod.web"
        );
        for length in [46, 47, 49, 50, 63] {
            let name = name(&"x".repeat(length));
            for annotation in [
                UserRequests::approval_annotation(&name),
                UserRequests::approver_annotation(&name),
            ] {
                let (_, name) = annotation.split_once('/').unwrap();
                assert!(name.len() <= 63, "{annotation}");
            }
        }
    }

    #[test]
    fn an_ignored_request_becomes_stale() {
        let request = requests().sync.unwrap();
        assert!(!request.is_stale(at(60 + 3599)));
        assert!(request.is_stale(at(60 + 3600)));
    }

    #[test]
    fn requests_round_trip_through_both_kinds_of_record() {
        for kind in ["Release", "ConfigMap"] {
            let parent = json!({"kind": kind, "metadata": {"resourceVersion": "7"}});
            assert_eq!(UserRequests::read(&parent), UserRequests::default());
            for requests in [requests(), UserRequests::default()] {
                let mut written = requests.patch(&parent);
                assert_eq!(written["metadata"]["resourceVersion"], "7");
                written["kind"] = json!(kind);
                assert_eq!(UserRequests::read(&written), requests);
            }
        }
        // A merge patch removes only the fields that it names.
        let parent = json!({"kind": "Release"});
        let change = UserRequests::default().patch(&parent);
        assert_eq!(change["spec"], json!({"suspend": null, "sync": null}));
    }

    #[test]
    fn other_fields_of_the_spec_are_ignored() {
        let parent = json!({"kind": "Release", "spec": {"environment": "e", "release": "r"}});
        assert_eq!(UserRequests::read(&parent), UserRequests::default());
    }

    #[test]
    fn a_suspension_expires() {
        let requests = requests();
        assert!(requests.suspended(at(7199)).is_some());
        assert!(requests.suspended(at(7200)).is_none());
        assert_eq!(
            requests.suspend.unwrap().words(),
            "suspended by ann@host until 1970-01-01T02:00:00Z: the database moves"
        );
        let endless: Suspension = serde_json::from_value(json!({})).unwrap();
        assert_eq!(endless.words(), "suspended until it is resumed");
        let requests = UserRequests {
            suspend: Some(endless),
            ..UserRequests::default()
        };
        assert!(requests.suspended(at(1 << 33)).is_some());
    }

    #[test]
    fn an_unreadable_request_suspends_the_controller() {
        for parent in [
            json!({"kind": "Release", "spec": {"suspend": {"until": "soon"}}}),
            json!({"kind": "ConfigMap", "data": {"orders": "{"}}),
        ] {
            let requests = UserRequests::read(&parent);
            let words = requests.suspended(at(0)).unwrap().words();
            assert!(words.contains("failed to parse"), "{words}");
        }
    }
}
