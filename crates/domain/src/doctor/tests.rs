use rstest::rstest;
use serde::Deserialize as _;
use serde_json::{Value, json};

use super::*;
use crate::inventory::{Entry, EntryState};
use crate::object::GroupKind;
use crate::observe::{Freshness, ServedGroup, ServedVersion};
use crate::plan::Grant;

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

/// A cluster in which Service `old/api` is gone, `old/idle` has no endpoints
/// and `old/live` answers.
fn cluster() -> Observations {
    let backend = |exists, ready_endpoints| Backend {
        exists,
        ready_endpoints,
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

/// The only diagnosis of a registration.
fn only(registered: Registered) -> Diagnosis {
    let mut found = diagnose(&Observations {
        registrations: vec![registered],
        ..cluster()
    });
    assert_eq!(found.len(), 1, "{found:#?}");
    found.remove(0)
}

fn namespace(conditions: &[(&str, &str)], since: &str) -> Leaving {
    let conditions: Vec<Value> = conditions
        .iter()
        .map(|(name, message)| json!({"type": name, "status": "True", "message": message}))
        .collect();
    Leaving::read(&json!({
        "metadata": {"name": "st1", "deletionTimestamp": since},
        "spec": {"finalizers": ["kubernetes"]},
        "status": {"conditions": conditions},
    }))
    .unwrap()
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
fn a_dead_api_is_told_with_owner_effect_and_command() {
    let found = only(dead_api());
    assert_eq!(
        (found.code, found.severity),
        (Code::ServiceMissing, Severity::Error)
    );
    assert_eq!(
        found.message,
        "points at Service old/api, which does not exist (ServiceNotFound: service/api in \"old\" is not present)"
    );
    assert_eq!(
        found.breaks,
        [
            "requests to sub.ex.io/v1alpha2 fail (HTTP 503)",
            "discovery of it is stale: clients leave its kinds out without an error",
            "namespaces cannot be deleted: their deletion waits for the discovery of every API",
        ]
    );
    assert_eq!(
        found.owner.as_ref().unwrap().to_string(),
        "last written by kubectl-create at 2026-07-01T09:00:00Z"
    );
    assert_eq!(
        found.command.as_deref(),
        Some(format!("pleach doctor --fix {API}").as_str())
    );
    let deletion = found.deletion(false).unwrap();
    assert_eq!(
        (deletion.uid(), deletion.resource_version()),
        ("u", Some("7"))
    );
    let services = vec![service("api")];
    assert_eq!(deletion.because(), &Grant::Doctor { services });
    assert_eq!(
        deletion.explain(),
        "points at Service old/api, which does not exist"
    );
}

#[rstest]
#[case::no_endpoints(
    "idle",
    "MissingEndpoints",
    NO_ADDRESSES,
    Code::ServiceWithoutEndpoints,
    "points at Service old/idle, which has no ready endpoints (MissingEndpoints: endpointslices for service/api in \"old\" have no addresses with port name \"\")",
    "kubectl get endpointslices -n old -l kubernetes.io/service-name=idle"
)]
#[case::unavailable(
    "live",
    "FailedDiscoveryCheck",
    "unsupported service type \"ExternalName\"",
    Code::ApiUnavailable,
    "is not available: FailedDiscoveryCheck: unsupported service type \"ExternalName\"",
    "kubectl get apiservice v1alpha2.sub.ex.io -o yaml"
)]
fn an_api_whose_service_exists_is_not_deleted(
    #[case] service: &str,
    #[case] reason: &str,
    #[case] message: &str,
    #[case] code: Code,
    #[case] expected: &str,
    #[case] command: &str,
) {
    let found = only(api_service(service, reason, message, &json!({})));
    assert_eq!((found.code, found.message.as_str()), (code, expected));
    assert_eq!(found.command.as_deref(), Some(command));
    assert_eq!(
        found.deletion(true),
        Err(Refusal::NotDead(expected.to_owned()))
    );
}

#[test]
fn an_api_that_answers_has_a_backend_whatever_its_endpoints() {
    let mut answers = api_service("idle", "Passed", "all checks passed", &json!({}));
    if let Role::Api { unavailable, .. } = &mut answers.role {
        *unavailable = None;
    }
    let found = diagnose(&Observations {
        registrations: vec![answers],
        ..cluster()
    });
    assert_eq!(found, []);
}

#[test]
fn a_service_that_could_not_be_read_is_not_missing() {
    let found = diagnose(&Observations {
        registrations: vec![webhooks(
            "ValidatingWebhookConfiguration",
            &[webhook("unread", "Fail", &["CREATE"])],
        )],
        ..cluster()
    });
    assert_eq!(found, []);
}

#[rstest]
#[case("ValidatingWebhookConfiguration", "Fail", &["CREATE", "UPDATE"], Severity::Error,
    &["CREATE, UPDATE of things.ex.io, things.ex.io/scale is refused (webhook create.ex.io, failurePolicy Fail)"])]
#[case("ValidatingWebhookConfiguration", "Fail", &["*"], Severity::Error,
    &["every write of things.ex.io, things.ex.io/scale is refused (webhook create.ex.io, failurePolicy Fail)",
      "namespaces that hold things.ex.io, things.ex.io/scale cannot be deleted"])]
#[case("ValidatingWebhookConfiguration", "Ignore", &["DELETE"], Severity::Warning,
    &["DELETE of things.ex.io, things.ex.io/scale is not checked (webhook create.ex.io, failurePolicy Ignore)"])]
#[case("MutatingWebhookConfiguration", "Ignore", &["CREATE"], Severity::Warning,
    &["CREATE of things.ex.io, things.ex.io/scale is not changed as it should be (webhook create.ex.io, failurePolicy Ignore)"])]
fn what_a_dead_webhook_breaks_depends_on_its_rules(
    #[case] kind: &str,
    #[case] policy: &str,
    #[case] operations: &[&str],
    #[case] severity: Severity,
    #[case] breaks: &[&str],
) {
    let found = only(webhooks(kind, &[webhook("api", policy, operations)]));
    assert_eq!(
        (found.code, found.severity),
        (Code::ServiceMissing, severity)
    );
    assert_eq!(found.breaks, breaks);
    assert!(found.is_fixable());
}

#[test]
fn selectors_and_wildcards_are_told() {
    let mut hook = webhook("api", "Fail", &["CREATE"]);
    hook["namespaceSelector"] = json!({"matchLabels": {"a": "b"}});
    hook["rules"][0] = json!({"apiGroups": ["*"], "resources": ["*/*"], "operations": ["CREATE"]});
    let found = only(webhooks("ValidatingWebhookConfiguration", &[hook]));
    assert_eq!(
        found.breaks,
        [
            "CREATE of everything is refused, where its selectors match (webhook create.ex.io, failurePolicy Fail)"
        ]
    );
}

#[rstest]
#[case(webhook("live", "Fail", &["CREATE"]))]
#[case(webhook("idle", "Fail", &["CREATE"]))]
#[case(json!({"name": "url.ex.io", "clientConfig": {"url": "https://10.0.0.1/"}}))]
fn a_configuration_of_which_something_is_in_use_is_not_deleted(#[case] other: Value) {
    let found = only(webhooks(
        "ValidatingWebhookConfiguration",
        &[webhook("api", "Fail", &["CREATE"]), other],
    ));
    assert_eq!(found.code, Code::ServiceMissing);
    assert!(!found.is_fixable());
    assert_eq!(
        found.command.as_deref(),
        Some("kubectl edit validatingwebhookconfiguration w")
    );
}

#[rstest]
#[case(&["v1"], Severity::Warning)]
#[case(&["v1beta1", "v1"], Severity::Error)]
fn a_dead_conversion_is_never_deleted(#[case] versions: &[&str], #[case] severity: Severity) {
    let versions: Vec<Value> = versions
        .iter()
        .map(|name| json!({"name": name, "served": true, "schema": {"openAPIV3Schema": {}}}))
        .collect();
    let definition = Definition::deserialize(json!({
        "metadata": {"name": "things.ex.io", "uid": "u"},
        "spec": {"group": "ex.io", "names": {"plural": "things", "kind": "Thing"}, "versions": versions,
            "conversion": {"strategy": "Webhook", "webhook": {"clientConfig": {"service": {"namespace": "old", "name": "api"}}}}},
    }))
    .unwrap();
    assert_eq!(definition.kind(), GroupKind::new("ex.io", "Thing"));
    let found = only(definition.registered().unwrap());
    assert_eq!(
        (found.code, found.severity),
        (Code::ServiceMissing, severity)
    );
    assert!(!found.is_fixable());
    assert!(found.breaks[0].contains("things.ex.io"));
    assert!(found.command.unwrap().contains(r#""strategy":"None""#));
}

#[rstest]
#[case::flux(json!({"labels": {"kustomize.toolkit.fluxcd.io/name": "apps"}}),
    "Flux (Kustomization apps)", Some("flux suspend kustomization apps"))]
#[case::helm(json!({"annotations": {"meta.helm.sh/release-name": "db"}}), "Helm (release db)", None)]
#[case::apply_set(json!({"labels": {"applyset.kubernetes.io/part-of": "applyset-x-v1"}}),
    "ApplySet applyset-x-v1", None)]
fn another_owner_has_to_be_overruled(
    #[case] metadata: Value,
    #[case] who: &str,
    #[case] suspend: Option<&str>,
) {
    let found = only(api_service(
        "api",
        "ServiceNotFound",
        NOT_PRESENT,
        &metadata,
    ));
    let refusal = Refusal::Foreign {
        who: who.to_owned(),
        suspend: suspend.map(str::to_owned),
    };
    assert_eq!(found.deletion(false), Err(refusal));
    assert!(found.deletion(true).is_ok());
    assert!(found.command.unwrap().ends_with(" --yes"));
}

#[test]
fn what_has_an_owner_reference_goes_with_it() {
    let metadata = json!({"ownerReferences": [{"kind": "Deployment", "name": "web", "uid": "o"}]});
    let found = only(api_service(
        "api",
        "ServiceNotFound",
        NOT_PRESENT,
        &metadata,
    ));
    assert!(!found.is_fixable());
    let refusal = Refusal::Owned("Deployment/web".to_owned());
    assert_eq!(found.deletion(true), Err(refusal));
    assert_eq!(
        found.hint.as_deref(),
        Some("it goes with Deployment/web; until then that may put it back")
    );
}

#[rstest]
#[case::of_the_service("Service/old/api", EntryState::Applied, Some("prod/web"))]
#[case::of_the_registration(API, EntryState::Observed, Some("prod/web"))]
#[case::kept(API, EntryState::Kept, None)]
#[case::others("Service/old/other", EntryState::Applied, None)]
fn a_release_owns_what_points_at_its_service(
    #[case] member: &str,
    #[case] state: EntryState,
    #[case] owner: Option<&str>,
) {
    let found = diagnose(&Observations {
        registrations: vec![dead_api()],
        releases: vec![release("prod.web", &[(member, state)])],
        ..cluster()
    });
    assert_eq!(codes(&found), [Code::ServiceMissing]);
    let actual = found[0].owner.as_ref().unwrap().release.as_deref();
    assert_eq!(actual, owner);
    let command = found[0].command.as_deref().unwrap();
    assert_eq!(command == "pleach apply prod/web", owner.is_some());
}

#[test]
fn a_namespace_that_waits_for_an_api_names_it() {
    let found = diagnose(&Observations {
        registrations: vec![dead_api()],
        namespaces: vec![namespace(
            &[
                ("NamespaceDeletionDiscoveryFailure", DISCOVERY),
                (
                    "NamespaceContentRemaining",
                    "Some resources are remaining: pods. has 1 resource instances",
                ),
            ],
            "2026-07-01T10:09:50Z",
        )],
        ..cluster()
    });
    assert_eq!(codes(&found), [Code::ServiceMissing, Code::NamespaceStuck]);
    assert_eq!(
        found[0].breaks[2],
        "namespaces cannot be deleted; waiting for it: st1"
    );
    let stuck = &found[1];
    assert_eq!(stuck.severity, Severity::Error);
    assert_eq!(
        stuck.message,
        format!("has been terminating for 10s: {DISCOVERY}")
    );
    assert_eq!(stuck.related, [API.parse::<ObjectId>().unwrap()]);
    assert_eq!(
        stuck.hint.as_deref(),
        Some(
            "its content is deleted; it goes by itself once sub.ex.io/v1alpha2 answers, or is no longer registered"
        )
    );
    assert!(!stuck.is_fixable());
}

#[rstest]
#[case::young(&[("NamespaceContentRemaining", "Some resources are remaining: pods. has 1 resource instances")],
    "2026-07-01T10:09:30Z", None)]
#[case::content(&[("NamespaceContentRemaining", "Some resources are remaining: pods. has 1 resource instances")],
    "2026-07-01T10:00:00Z",
    Some(("has been terminating for 10m: Some resources are remaining: pods. has 1 resource instances", "kubectl get pods -n st1")))]
#[case::finalizers(&[
        ("NamespaceContentRemaining", "Some resources are remaining: things.ex.io has 1 resource instances"),
        ("NamespaceFinalizersRemaining", "Some content in the namespace has finalizers remaining: ex.io/keep in 1 resource instances")],
    "2026-07-01T10:00:00Z",
    Some(("has been terminating for 10m: Some content in the namespace has finalizers remaining: ex.io/keep in 1 resource instances; Some resources are remaining: things.ex.io has 1 resource instances",
        "kubectl get things.ex.io -n st1")))]
#[case::failure(&[("NamespaceDeletionContentFailure", "Failed to delete all resource types, 1 remaining: x")],
    "2026-07-01T10:09:30Z",
    Some(("has been terminating for 30s: NamespaceDeletionContentFailure: Failed to delete all resource types, 1 remaining: x",
        "kubectl get namespace st1 -o yaml")))]
#[case::nobody(&[], "2026-07-01T10:00:00Z",
    Some(("has been terminating for 10m: waits for kubernetes", "kubectl get namespace st1 -o yaml")))]
fn namespaces_are_stuck_with_a_cause(
    #[case] conditions: &[(&str, &str)],
    #[case] since: &str,
    #[case] expected: Option<(&str, &str)>,
) {
    let found = diagnose(&Observations {
        namespaces: vec![namespace(conditions, since)],
        objects: vec![object(
            "Thing.ex.io/st1/a",
            &json!({"deletionTimestamp": since, "finalizers": ["ex.io/keep"]}),
        )],
        ..cluster()
    });
    let stuck = found
        .iter()
        .find(|diagnosis| diagnosis.code == Code::NamespaceStuck)
        .map(|diagnosis| {
            (
                diagnosis.message.as_str(),
                diagnosis.command.as_deref().unwrap(),
            )
        });
    assert_eq!(stuck, expected);
}

#[test]
fn what_remains_is_read_from_the_message() {
    let leaving = namespace(
        &[(
            "NamespaceContentRemaining",
            "Some resources are remaining: things.ex.io has 1 resource instances, pods. has 20 resource instances",
        )],
        NOW,
    );
    let remaining = |plural: &str, group: &str| Remaining {
        plural: plural.to_owned(),
        group: group.to_owned(),
    };
    assert_eq!(
        leaving.remaining(),
        [remaining("things", "ex.io"), remaining("pods", "")]
    );
}

#[test]
fn an_api_is_named_as_a_whole() {
    assert!(stuck::names_api(DISCOVERY, "sub.ex.io/v1alpha2"));
    assert!(!stuck::names_api(DISCOVERY, "sub.ex.io/v1alpha"));
    assert!(!stuck::names_api(DISCOVERY, "ex.io/v1alpha2"));
}

#[rstest]
#[case::late("2026-07-01T10:00:00Z", json!(["ex.io/keep"]), true)]
#[case::young("2026-07-01T10:09:00Z", json!(["ex.io/keep"]), false)]
#[case::grace_period("2026-07-01T10:00:00Z", json!([]), false)]
fn objects_that_wait_long_for_a_finalizer_are_told(
    #[case] since: &str,
    #[case] finalizers: Value,
    #[case] told: bool,
) {
    let found = diagnose(&Observations {
        objects: vec![object(
            "Thing.ex.io/web/a",
            &json!({"deletionTimestamp": since, "finalizers": finalizers}),
        )],
        ..cluster()
    });
    assert_eq!(!found.is_empty(), told);
    if told {
        assert_eq!(
            found[0].message,
            "has been terminating for 10m: waits for ex.io/keep"
        );
        assert_eq!(
            found[0].command.as_deref(),
            Some("kubectl get thing.ex.io a -n web -o yaml")
        );
    }
}

#[test]
fn stale_discovery_is_told_once() {
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
            groups: [("sub.ex.io".to_owned(), group)].into(),
        },
        ..cluster()
    };
    let found = diagnose(&observations);
    assert_eq!(codes(&found), [Code::DiscoveryStale]);
    assert_eq!(found[0].object, Some(API.parse().unwrap()));
    observations.registrations = vec![dead_api()];
    assert_eq!(codes(&diagnose(&observations)), [Code::ServiceMissing]);
}

#[rstest]
#[case::of_the_release("ConfigMap/web/a", true, true, Some(Code::Orphan))]
#[case::label_only("ConfigMap/web/a", true, false, Some(Code::Orphan))]
#[case::annotation_only("ConfigMap/web/a", false, true, Some(Code::Orphan))]
#[case::member("ConfigMap/web/member", true, true, None)]
#[case::endpoints("EndpointSlice.discovery.k8s.io/web/a", true, false, None)]
fn orphans_are_in_no_inventory(
    #[case] id: &str,
    #[case] label: bool,
    #[case] annotation: bool,
    #[case] expected: Option<Code>,
) {
    let release = release("prod.web", &[("ConfigMap/web/member", EntryState::Applied)]);
    let mut metadata = json!({});
    if label {
        metadata["labels"] =
            json!({"applyset.kubernetes.io/part-of": release.summary.name.apply_set()});
    }
    if annotation {
        metadata["annotations"] = json!({"pleach.dev/desired": "sha256:0"});
    }
    let mut observations = Observations {
        objects: vec![object(id, &metadata)],
        releases: vec![release],
        ..cluster()
    };
    let found = diagnose(&observations);
    assert_eq!(codes(&found).first().copied(), expected);
    if let Some(orphan) = found.first() {
        assert_eq!(
            orphan.command.as_deref(),
            Some("kubectl delete configmap a -n web")
        );
    }
    // Nothing is an orphan of what could not be read.
    observations.releases[0].inventory = Err("a shard is missing".to_owned());
    assert_eq!(codes(&diagnose(&observations)), [Code::ReleaseUnreadable]);
}

#[test]
fn members_of_a_release_that_is_gone_are_told_together() {
    let metadata = json!({"labels": {"applyset.kubernetes.io/part-of": "applyset-gone-v1"},
        "annotations": {"pleach.dev/desired": "sha256:0"}});
    let foreign = json!({"labels": {"applyset.kubernetes.io/part-of": "applyset-kubectl-v1"}});
    let mut observations = Observations {
        objects: vec![
            object("ConfigMap/web/a", &metadata),
            object("ConfigMap/web/b", &metadata),
            object("ConfigMap/web/c", &foreign),
        ],
        ..cluster()
    };
    let found = diagnose(&observations);
    assert_eq!(codes(&found), [Code::ReleaseLost]);
    assert_eq!(
        found[0].message,
        "2 objects of ApplySet applyset-gone-v1, whose Release does not exist"
    );
    assert_eq!(found[0].related.len(), 2);
    observations.releases_are_complete = false;
    assert_eq!(diagnose(&observations), []);
}

#[test]
fn releases_that_are_not_ready_say_why() {
    let value = json!({"metadata": {"name": "prod.web"}, "status": {"conditions": [
        {"type": "Ready", "status": "False", "reason": "Failed", "message": "1 step failed",
         "lastTransitionTime": "2026-07-01T10:00:00Z"}]}});
    let found = diagnose(&Observations {
        releases: vec![KnownRelease {
            summary: ReleaseSummary::read(&value).unwrap(),
            inventory: Ok(Inventory::default()),
        }],
        ..cluster()
    });
    assert_eq!(codes(&found), [Code::ReleaseNotReady]);
    assert_eq!(
        found[0].message,
        "release prod/web has not been ready for 10m: Failed: 1 step failed"
    );
    assert_eq!(found[0].command.as_deref(), Some("pleach apply prod/web"));
}

#[test]
fn missing_rights_are_notes_and_gaps_are_told() {
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
    let told: Vec<(Severity, &str)> = found
        .iter()
        .map(|diagnosis| (diagnosis.severity, diagnosis.message.as_str()))
        .collect();
    assert_eq!(
        told,
        [
            (Severity::Warning, "the Services could not be looked at: no"),
            (
                Severity::Note,
                "pleach may not patch, delete deployments.apps in namespace web"
            ),
            (Severity::Note, "the Services could not be looked at: no"),
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
