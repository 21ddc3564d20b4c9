//! Diagnoses of broken clusters.

mod gates;
mod members;
mod registrations;
mod standing;
mod waiting;

use std::sync::Arc;

use serde::Deserialize as _;
use serde_json::{Value, json};

use super::*;
use pleach_model::discovery::{Freshness, Resource, ServedGroup, ServedVersion};
use pleach_model::object::GroupKind;
use pleach_planner::plan::Grant;
use pleach_state::inventory::{Entry, EntryState};

const NOW: &str = "2026-07-01T10:10:00Z";
const API: &str = "APIService.apiregistration.k8s.io/v1alpha2.sub.ex.io";
const NOT_PRESENT: &str = "service/api in \"old\" is not present";
const NO_ADDRESSES: &str =
    "endpointslices for service/api in \"old\" have no addresses with port name \"\"";
const DISCOVERY: &str = "Discovery failed for some groups, 1 failing: unable to retrieve the complete list of server APIs: sub.ex.io/v1alpha2: stale GroupVersion discovery: sub.ex.io/v1alpha2";

fn service(name: &str) -> ServiceRef {
    ServiceRef {
        namespace: "old".to_owned(),
        name: name.to_owned(),
    }
}

/// Builds a cluster in which Service `old/api` is missing, `old/idle` has no endpoints and
/// `old/live` is ready.
fn cluster() -> Observations {
    let backend = |exists, ready_endpoints| Backend {
        exists,
        ready_endpoints,
        ..Backend::default()
    };
    Observations {
        at: NOW.parse().unwrap(),
        backends: [
            (service("api"), backend(false, 0)),
            (service("idle"), backend(true, 0)),
            (service("live"), backend(true, 2)),
        ]
        .into(),
        releases_are_complete: true,
        ..Observations::default()
    }
}

fn api_service(service: &str, reason: &str, message: &str, metadata: &Value) -> Registered {
    let mut value = json!({
        "metadata": {"name": "v1alpha2.sub.ex.io", "uid": "u", "resourceVersion": "7",
            "managedFields": [{"manager": "kubectl-create", "operation": "Update", "time": "2026-07-01T09:00:00Z"}]},
        "spec": {"group": "sub.ex.io", "version": "v1alpha2", "service": {"namespace": "old", "name": service}},
        "status": {"conditions": [{"type": "Available", "status": "False", "reason": reason, "message": message}]},
    });
    for (key, extra) in metadata.as_object().into_iter().flatten() {
        value["metadata"][key] = extra.clone();
    }
    Registered::api_service(&value).unwrap()
}

fn dead_api() -> Registered {
    api_service("api", "ServiceNotFound", NOT_PRESENT, &json!({}))
}

fn webhook(service: &str, policy: &str, operations: &[&str]) -> Value {
    json!({"name": "create.ex.io", "failurePolicy": policy,
        "clientConfig": {"service": {"namespace": "old", "name": service}},
        "rules": [{"apiGroups": ["ex.io"], "resources": ["things", "things/scale"], "operations": operations}]})
}

fn webhooks(kind: &str, webhooks: &[Value]) -> Registered {
    let value = json!({"metadata": {"name": "w", "uid": "u", "resourceVersion": "7"}, "webhooks": webhooks});
    Registered::webhooks(kind, &value).unwrap()
}

/// Returns the only diagnosis of a registration.
fn only(registered: Registered) -> Diagnosis {
    let mut found = diagnose(&Observations {
        registrations: vec![registered],
        ..cluster()
    });
    assert_eq!(found.len(), 1, "{found:#?}");
    found.remove(0)
}

fn release(name: &str, entries: &[(&str, EntryState)]) -> KnownRelease {
    let value = json!({"metadata": {"name": name},
        "status": {"conditions": [{"type": "Ready", "status": "True"}]}});
    let entries = entries
        .iter()
        .map(|(id, state)| {
            let entry = Entry {
                state: *state,
                ..Entry::default()
            };
            (id.parse().unwrap(), entry)
        })
        .collect();
    KnownRelease {
        summary: ReleaseSummary::read(&value).unwrap(),
        inventory: Ok(Inventory { entries }),
    }
}

fn object(id: &str, metadata: &Value) -> Subject {
    Subject::read(id.parse().unwrap(), metadata)
}

fn codes(diagnoses: &[Diagnosis]) -> Vec<Code> {
    diagnoses.iter().map(|diagnosis| diagnosis.code).collect()
}

#[test]
fn stale_discovery_is_reported_once() {
    let stale = ServedVersion {
        version: "v1alpha2".to_owned(),
        freshness: Freshness::Stale,
        resources: Vec::new(),
    };
    let group = ServedGroup {
        versions: vec![stale],
    };
    let mut observations = Observations {
        discovery: Discovery {
            groups: Arc::new([("sub.ex.io".to_owned(), group)].into()),
        },
        ..cluster()
    };
    let found = diagnose(&observations);
    assert_eq!(codes(&found), [Code::DiscoveryStale]);
    assert_eq!(found[0].object, Some(API.parse().unwrap()));
    observations.registrations = vec![dead_api()];
    assert_eq!(codes(&diagnose(&observations)), [Code::ServiceMissing]);
}

#[test]
fn missing_permissions_are_notes_and_gaps_are_reported() {
    let missing = |verb: &str| MissingGrant {
        verb: verb.to_owned(),
        kind: GroupKind::new("apps", "Deployment"),
        resource: "deployments".to_owned(),
        namespace: Some("web".to_owned()),
    };
    let gap = |forbidden| Gap {
        what: "the Services".to_owned(),
        why: "no".to_owned(),
        forbidden,
    };
    let found = diagnose(&Observations {
        missing: vec![missing("patch"), missing("delete")],
        gaps: vec![gap(true), gap(false)],
        ..cluster()
    });
    let shown: Vec<(Severity, &str)> = found
        .iter()
        .map(|diagnosis| (diagnosis.severity, diagnosis.message.as_str()))
        .collect();
    assert_eq!(
        shown,
        [
            (Severity::Warning, "the Services could not be checked: no"),
            (
                Severity::Note,
                "pleach is not allowed to patch, delete deployments.apps in namespace web"
            ),
            (Severity::Note, "the Services could not be checked: no"),
        ]
    );
}

#[test]
fn codes_are_written_as_they_are_shown() {
    for code in Code::ALL {
        assert_eq!(serde_json::to_value(code).unwrap(), json!(code.to_string()));
    }
    let value = serde_json::to_value(only(dead_api())).unwrap();
    assert_eq!(value["fixable"], true);
    assert_eq!(value["code"], "service-missing");
    assert_eq!(value["owner"]["lastWrite"]["manager"], "kubectl-create");
}
