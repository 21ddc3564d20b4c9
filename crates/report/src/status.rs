//! Compares the live members of a release with the last run, and evaluates their readiness.
//!
//! The inputs are the inventory and what lists of the cluster hold, so no repository is
//! needed. A field that another actor changed is no longer in our Apply entry: its
//! fingerprint differs from the recorded one.

use jiff::Timestamp;
use serde_json::Value;

use pleach_fields::diff::ownership::{self, FieldSet};
use pleach_formats::policy::RuntimeObject;
use pleach_formats::readiness::{Readiness, Rules};
use pleach_model::object::{ObjectId, annotations, managers};
use pleach_model::order::registered_services;
use pleach_state::inventory::{Entry, EntryState};

/// Maximum number of changed fields that are listed.
const FIELDS: usize = 3;

/// State of the members of one release.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LiveStatus {
    /// Members, sorted by object.
    pub members: Vec<MemberStatus>,
    /// Reasons why members could not be read, one line each.
    pub unread: Vec<String>,
}

impl LiveStatus {
    /// Returns whether all members are ready. `None` if all readable members are ready, but some
    /// could not be read.
    pub fn is_ready(&self) -> Option<bool> {
        if self.members.iter().any(|member| !member.is_ready) {
            Some(false)
        } else {
            self.unread.is_empty().then_some(true)
        }
    }

    /// Returns the number of members that another actor changed or deleted.
    pub fn drifted(&self) -> usize {
        let drifted = self.members.iter();
        drifted
            .filter(|member| member.is_missing || member.drift.is_some())
            .count()
    }
}

/// State of one member.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MemberStatus {
    /// The object.
    pub object: ObjectId,
    /// Whether it exists and is ready.
    pub is_ready: bool,
    /// Whether it does not exist and has to.
    pub is_missing: bool,
    /// Reason why it is not ready, in one line. Empty if it is ready.
    pub message: String,
    /// Change by another actor since the last run.
    pub drift: Option<Drift>,
}

/// A change of a member that no run of the release made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Drift {
    /// Field manager of the latest write. Empty if the server does not name one.
    pub manager: String,
    /// Time of that write.
    pub at: Option<Timestamp>,
    /// First few fields that the manager owns.
    pub fields: Vec<String>,
    /// Number of further fields that it owns.
    pub more: usize,
    /// Whether the object was deleted and created again.
    pub is_recreated: bool,
}

/// Input for evaluating one member.
#[derive(Debug, Clone, Copy)]
pub struct Member<'a> {
    /// The object.
    pub id: &'a ObjectId,
    /// Its entry in the inventory.
    pub entry: &'a Entry,
    /// The readiness rules of its bundle.
    pub rules: &'a Rules,
    /// The field manager of the release.
    pub manager: &'a str,
}

/// Returns whether the status of a release covers a recorded object: one that a run applied,
/// or one that its workloads make and `declared` does not call optional.
pub fn is_covered(id: &ObjectId, entry: &Entry, declared: &[RuntimeObject]) -> bool {
    match entry.state {
        EntryState::Applied => true,
        EntryState::Observed => declared
            .iter()
            .any(|object| !object.optional && object.is_recorded_as(id, entry.service.as_ref())),
        EntryState::Intended | EntryState::Kept => false,
    }
}

impl Member<'_> {
    /// Evaluates the live object. `None` means that it does not exist.
    ///
    /// Kinds without readiness rules only need the metadata of the object, unless the inventory
    /// records a Service for it.
    pub fn judge(&self, live: Option<&Value>) -> MemberStatus {
        let (is_ready, message) = live.map_or_else(|| self.missing(), |live| self.readiness(live));
        MemberStatus {
            object: self.id.clone(),
            is_ready,
            is_missing: live.is_none() && !is_ready,
            message,
            drift: live.and_then(|live| self.drift(&live["metadata"])),
        }
    }

    fn missing(&self) -> (bool, String) {
        // A finished Job can be removed after its time to live.
        if self.id.is("batch", "Job") {
            (true, String::new())
        } else {
            (false, "missing".to_owned())
        }
    }

    fn readiness(&self, live: &Value) -> (bool, String) {
        if let Some(service) = &self.entry.service
            && self.entry.state == EntryState::Observed
            && !registered_services(&self.id.group_kind(), live).contains(service)
        {
            return (false, format!("it does not point at Service {service}"));
        }
        let found = self.rules.assess(live);
        let required = live["metadata"]["annotations"][annotations::READY].as_str();
        let is_optional = matches!(required, Some("none" | "warn"));
        // A claim that no pod uses yet can be pending forever.
        let is_unused = self.id.is("", "PersistentVolumeClaim");
        let is_ready = match found.readiness {
            Readiness::Current => true,
            Readiness::InProgress => is_optional || is_unused,
            Readiness::Failed | Readiness::Unknown => is_optional,
            Readiness::Terminating | Readiness::NotFound => false,
        };
        if is_ready {
            (true, String::new())
        } else {
            (false, found.message)
        }
    }

    fn drift(&self, metadata: &Value) -> Option<Drift> {
        let entry = self.entry;
        let uid = metadata["uid"].as_str();
        let is_recreated = entry.uid.is_some() && entry.uid.as_deref() != uid;
        let fingerprint = ownership::fingerprint(metadata, self.manager);
        if !is_recreated && (entry.fingerprint.is_none() || entry.fingerprint == fingerprint) {
            return None;
        }
        let ours = ownership::apply_entry(metadata, self.manager);
        let newest = newest_writer(metadata, ours.and_then(time));
        // A run of the release writes the object before it updates the inventory.
        if newest.is_none() && ours.is_some() {
            return None;
        }
        let leaves = newest.map(|newest| FieldSet::parse(&newest["fieldsV1"]).leaves());
        let leaves = leaves.unwrap_or_default();
        Some(Drift {
            manager: newest
                .and_then(|newest| newest["manager"].as_str())
                .unwrap_or_default()
                .to_owned(),
            at: newest.and_then(time),
            fields: leaves
                .iter()
                .take(FIELDS)
                .map(ToString::to_string)
                .collect(),
            more: leaves.len().saturating_sub(FIELDS),
            is_recreated,
        })
    }
}

/// Returns the latest entry of another tool that is not older than `since`. Status entries are
/// ignored.
fn newest_writer(metadata: &Value, since: Option<Timestamp>) -> Option<&Value> {
    let entries = ownership::entries(metadata).iter();
    let others = entries.filter(|entry| {
        let manager = entry["manager"].as_str().unwrap_or_default();
        !managers::is_of_pleach(manager) && entry["subresource"] != "status"
    });
    others
        .filter(|entry| time(entry) >= since)
        .max_by_key(|entry| time(entry))
}

fn time(entry: &Value) -> Option<Timestamp> {
    entry["time"].as_str()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use pleach_model::object::ServiceRef;

    const OURS: &str = "pleach/prod.web";

    fn judge(id: &str, entry: &Entry, live: Option<&Value>) -> MemberStatus {
        let id: ObjectId = id.parse().unwrap();
        let rules = Rules::default();
        let member = Member {
            id: &id,
            entry,
            rules: &rules,
            manager: OURS,
        };
        member.judge(live)
    }

    /// Returns a Deployment after a run, and its inventory entry.
    fn left() -> (Entry, Value) {
        let live = json!({
            "apiVersion": "apps/v1", "kind": "Deployment",
            "metadata": {"name": "api", "uid": "u", "generation": 1, "managedFields": [
                {"manager": OURS, "operation": "Apply", "time": "2026-09-01T10:00:00Z",
                 "fieldsV1": {"f:spec": {"f:replicas": {}, "f:paused": {}}}},
                {"manager": "kube-controller-manager", "operation": "Update", "subresource": "status",
                 "time": "2026-09-01T10:00:09Z", "fieldsV1": {"f:status": {}}}]},
            "spec": {"replicas": 1},
            "status": {"observedGeneration": 1, "replicas": 1, "updatedReplicas": 1,
                "readyReplicas": 1, "availableReplicas": 1},
        });
        let entry = Entry {
            state: EntryState::Applied,
            uid: Some("u".to_owned()),
            fingerprint: ownership::fingerprint(&live["metadata"], OURS),
            ..Entry::default()
        };
        (entry, live)
    }

    const API: &str = "Deployment.apps/shop/api";
    const HOOK: &str = "ValidatingWebhookConfiguration.admissionregistration.k8s.io/hook";

    fn service_hook() -> ServiceRef {
        ServiceRef {
            namespace: "shop".to_owned(),
            name: "hook".to_owned(),
        }
    }

    #[test]
    fn a_member_as_it_was_left_is_ready() {
        let (entry, live) = left();
        let found = judge(API, &entry, Some(&live));
        assert_eq!((found.is_ready, found.message.as_str()), (true, ""));
        assert_eq!(found.drift, None);
    }

    #[test]
    fn a_missing_member_is_not_ready_but_a_finished_job_is() {
        let (entry, _) = left();
        let found = judge(API, &entry, None);
        assert_eq!((found.is_ready, found.message.as_str()), (false, "missing"));
        assert!(judge("Job.batch/shop/migrate", &entry, None).is_ready);
    }

    #[test]
    fn a_change_is_named_with_manager_time_and_fields() {
        let (entry, mut live) = left();
        let all = live["metadata"]["managedFields"].as_array_mut().unwrap();
        all[0]["fieldsV1"] = json!({"f:spec": {"f:paused": {}}});
        all.push(
            json!({"manager": "kubectl", "operation": "Update", "subresource": "scale",
            "time": "2026-09-01T10:05:00Z", "fieldsV1": {"f:spec": {"f:replicas": {}}}}),
        );
        all.push(json!({"manager": "before", "operation": "Update",
            "time": "2026-09-01T09:00:00Z", "fieldsV1": {"f:spec": {"f:strategy": {}}}}));
        live["spec"]["replicas"] = json!(3);
        let found = judge(API, &entry, Some(&live));
        assert!(!found.is_ready);
        let drift = found.drift.unwrap();
        assert_eq!((drift.manager.as_str(), drift.more), ("kubectl", 0));
        assert_eq!(drift.fields, [".spec.replicas"]);
        assert_eq!(drift.at.unwrap().to_string(), "2026-09-01T10:05:00Z");
        assert!(!drift.is_recreated);
    }

    #[test]
    fn a_run_that_has_not_recorded_yet_is_no_drift() {
        let (entry, mut live) = left();
        let ours = &mut live["metadata"]["managedFields"][0];
        ours["fieldsV1"] = json!({"f:spec": {"f:replicas": {}}});
        ours["time"] = json!("2026-09-01T11:00:00Z");
        assert_eq!(judge(API, &entry, Some(&live)).drift, None);
    }

    #[test]
    fn an_object_that_was_created_again_has_drifted() {
        let (entry, mut live) = left();
        live["metadata"]["uid"] = json!("other");
        live["metadata"]["managedFields"] = json!([{"manager": "kubectl-create", "operation": "Update",
            "time": "2026-09-01T10:05:00Z", "fieldsV1": {"f:spec": {"f:a": {}, "f:b": {}, "f:c": {}, "f:d": {}}}}]);
        let drift = judge(API, &entry, Some(&live)).drift.unwrap();
        assert!(drift.is_recreated);
        assert_eq!((drift.manager.as_str(), drift.more), ("kubectl-create", 1));
    }

    #[test]
    fn a_run_time_object_is_covered_unless_it_is_optional() {
        let named = |optional: bool| RuntimeObject {
            kind: "ConfigMap".to_owned(),
            group: None,
            name: Some("made".to_owned()),
            service: None,
            optional,
        };
        let registration = RuntimeObject {
            kind: "ValidatingWebhookConfiguration".to_owned(),
            name: None,
            service: Some("hook".to_owned()),
            ..named(false)
        };
        let service = service_hook();
        let entry = |state: EntryState, service: Option<&ServiceRef>| Entry {
            state,
            service: service.cloned(),
            ..Entry::default()
        };
        let observed = |service| entry(EntryState::Observed, service);
        for (id, entry, declared, expected) in [
            ("ConfigMap/shop/made", observed(None), named(false), true),
            ("ConfigMap/shop/made", observed(None), named(true), false),
            ("ConfigMap/shop/other", observed(None), named(false), false),
            (HOOK, observed(Some(&service)), registration.clone(), true),
            (HOOK, observed(None), registration, false),
            (
                "ConfigMap/shop/made",
                entry(EntryState::Kept, None),
                named(false),
                false,
            ),
            (
                "ConfigMap/shop/made",
                entry(EntryState::Applied, None),
                named(true),
                true,
            ),
        ] {
            let id: ObjectId = id.parse().unwrap();
            let covered = is_covered(&id, &entry, &[declared]);
            assert_eq!(covered, expected, "{id} {entry:?}");
        }
    }

    #[test]
    fn a_registration_that_workloads_made_is_ready_while_it_points_at_their_service() {
        let hook = |uid: &str, service: &str| {
            json!({"apiVersion": "admissionregistration.k8s.io/v1",
                "kind": "ValidatingWebhookConfiguration", "metadata": {"name": "hook", "uid": uid},
                "webhooks": [{"clientConfig": {"service": {"namespace": "shop", "name": service}}}]})
        };
        let entry = Entry {
            state: EntryState::Observed,
            uid: Some("u".to_owned()),
            service: Some(service_hook()),
            ..Entry::default()
        };
        let found = judge(HOOK, &entry, Some(&hook("u", "hook")));
        assert_eq!((found.is_ready, found.drift), (true, None));
        let found = judge(HOOK, &entry, Some(&hook("other", "hook")));
        assert!(found.drift.unwrap().is_recreated);
        let found = judge(HOOK, &entry, Some(&hook("u", "other")));
        assert_eq!(
            (found.is_ready, found.message.as_str()),
            (false, "it does not point at Service shop/hook")
        );
        assert!(!judge(HOOK, &entry, None).is_ready);
    }

    #[test]
    fn members_that_need_not_be_ready_are() {
        let (entry, mut live) = left();
        live["status"] = json!({});
        assert!(!judge(API, &entry, Some(&live)).is_ready);
        live["metadata"]["annotations"] = json!({"pleach.dev/ready": "warn"});
        assert!(judge(API, &entry, Some(&live)).is_ready);
        let claim = json!({"apiVersion": "v1", "kind": "PersistentVolumeClaim",
            "metadata": {"uid": "u"}, "status": {"phase": "Pending"}});
        assert!(judge("PersistentVolumeClaim/shop/data", &entry, Some(&claim)).is_ready);
    }

    #[test]
    fn members_that_could_not_be_read_leave_readiness_unknown() {
        let (entry, live) = left();
        let mut status = LiveStatus {
            members: vec![judge(API, &entry, Some(&live))],
            unread: Vec::new(),
        };
        assert_eq!(status.is_ready(), Some(true));
        status.unread.push("no".to_owned());
        assert_eq!(status.is_ready(), None);
        status.members.push(judge(API, &entry, None));
        assert_eq!(status.is_ready(), Some(false));
    }
}
