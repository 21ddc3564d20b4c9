//! Namespaces and objects that have been terminating for too long.

use rstest::rstest;

use super::*;

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

#[test]
fn a_namespace_that_waits_for_an_api_names_it() {
    let found = diagnose(&Observations {
        registrations: vec![dead_api()],
        namespaces: vec![namespace(
            &[("NamespaceDeletionDiscoveryFailure", DISCOVERY)],
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
            "its content is deleted; the server removes the namespace once sub.ex.io/v1alpha2 answers, or is no longer registered"
        )
    );
    assert!(!stuck.is_fixable());
}

#[test]
fn a_namespace_that_waits_for_an_api_and_for_its_content_names_both() {
    let since = "2026-07-01T10:00:00Z";
    let finalizers = "Some content in the namespace has finalizers remaining: ex.io/keep in 1 resource instances";
    let content = "Some resources are remaining: things.ex.io has 1 resource instances";
    let found = diagnose(&Observations {
        registrations: vec![dead_api()],
        namespaces: vec![namespace(
            &[
                ("NamespaceDeletionDiscoveryFailure", DISCOVERY),
                ("NamespaceContentRemaining", content),
                ("NamespaceFinalizersRemaining", finalizers),
            ],
            since,
        )],
        objects: vec![object(
            "Thing.ex.io/st1/a",
            &json!({"deletionTimestamp": since, "finalizers": ["ex.io/keep"]}),
        )],
        ..cluster()
    });
    let stuck = found
        .iter()
        .find(|diagnosis| diagnosis.code == Code::NamespaceStuck)
        .unwrap();
    let why = format!("has been terminating for 10m: {DISCOVERY}; {finalizers}; {content}");
    assert!(stuck.message.starts_with(&why), "{}", stuck.message);
    let hint = stuck.hint.as_deref().unwrap();
    assert!(
        hint.starts_with("the server removes the namespace once sub.ex.io/v1alpha2 answers, or is no longer registered, and the remaining objects are removed: the controllers of ex.io/keep"),
        "{hint}"
    );
    let related = ["APIService", "Thing"];
    let kinds: Vec<&str> = stuck.related.iter().map(|id| id.kind.as_str()).collect();
    assert_eq!(kinds[..2], related);
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
#[case::no_controller(&[], "2026-07-01T10:00:00Z",
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
fn remaining_content_is_read_from_the_message() {
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
fn objects_that_wait_long_for_a_finalizer_are_reported(
    #[case] since: &str,
    #[case] finalizers: Value,
    #[case] is_reported: bool,
) {
    let found = diagnose(&Observations {
        objects: vec![object(
            "Thing.ex.io/web/a",
            &json!({"deletionTimestamp": since, "finalizers": finalizers}),
        )],
        ..cluster()
    });
    assert_eq!(!found.is_empty(), is_reported);
    if is_reported {
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

/// Builds an object with a finalizer of a controller named `gears`.
fn deleting() -> Subject {
    let fields = json!({"f:metadata": {"f:finalizers": {"v:\"ex.io/keep\"": {}}}});
    object(
        "Thing.ex.io/web/a",
        &json!({"deletionTimestamp": "2026-07-01T10:09:30Z", "finalizers": ["ex.io/keep"],
            "managedFields": [{"manager": "gears", "operation": "Update", "fieldsV1": fields}]}),
    )
}

fn workload(kind: &str, container: &Value, status: &Value) -> Workload {
    let spec = json!({"template": {"spec": {"containers": [container]}}});
    let metadata = json!({"name": "operator", "namespace": "gears-system"});
    let value = json!({"metadata": metadata, "spec": spec, "status": status});
    Workload::read(kind, &value).unwrap()
}

const NO_CONTROLLER: &str = "no Deployment, StatefulSet or DaemonSet is named gears, nor a container, image or command of one";
const IDLE: &str = "Deployment.apps/gears-system/operator has no ready pods";

#[rstest]
#[case::not_read(None, None)]
#[case::no_controller(Some(vec![]), Some(NO_CONTROLLER))]
#[case::other_workloads(Some(vec![workload("Deployment", &json!({"name": "web"}), &json!({"readyReplicas": 1}))]), Some(NO_CONTROLLER))]
#[case::scaled_to_zero(Some(vec![workload("Deployment", &json!({"name": "gears"}), &json!({"replicas": 0}))]), Some(IDLE))]
#[case::by_image(Some(vec![workload("DaemonSet", &json!({"image": "ex.io/team/gears:v1@sha256:0"}), &json!({"numberReady": 2}))]), None)]
#[case::by_command(Some(vec![workload("StatefulSet", &json!({"command": ["/bin/gears", "-v"]}), &json!({"readyReplicas": 1}))]), None)]
fn a_finalizer_without_controller_is_reported_at_once(
    #[case] workloads: Option<Vec<Workload>>,
    #[case] cause: Option<&str>,
) {
    assert!(waits_for_controller(&deleting()));
    let found = diagnose(&Observations {
        objects: vec![deleting()],
        workloads,
        ..cluster()
    });
    let Some(cause) = cause else {
        // The controller is possibly busy.
        assert_eq!(found, []);
        return;
    };
    assert_eq!(found[0].code, Code::ObjectStuck);
    assert_eq!(
        found[0].message,
        format!("has been terminating for 30s: waits for ex.io/keep (set by gears); {cause}")
    );
    let idle: Vec<ObjectId> = (cause == IDLE)
        .then(|| "Deployment.apps/gears-system/operator".parse().unwrap())
        .into_iter()
        .collect();
    assert_eq!(found[0].related, idle);
}

#[rstest]
#[case("kubectl-edit")]
#[case("kube-controller-manager")]
#[case("pleach/production.web")]
fn common_field_managers_are_no_controllers(#[case] manager: &str) {
    let mut object = deleting();
    object.finalizers[0].set_by = vec![manager.to_owned()];
    assert!(!waits_for_controller(&object));
}

#[rstest]
#[case::dead("api", "Fail", &["UPDATE"], true)]
#[case::answers("live", "Fail", &["UPDATE"], false)]
#[case::need_not_answer("api", "Ignore", &["UPDATE"], false)]
#[case::does_not_intercept("api", "Fail", &["CREATE"], false)]
fn a_webhook_that_blocks_a_finalizer_is_named(
    #[case] service: &str,
    #[case] policy: &str,
    #[case] operations: &[&str],
    #[case] named: bool,
) {
    let resource = Resource {
        kind: "Thing".to_owned(),
        plural: "things".to_owned(),
        namespaced: true,
        verbs: [].into(),
    };
    let version = ServedVersion {
        version: "v1".to_owned(),
        freshness: Freshness::Current,
        resources: vec![resource],
    };
    let versions = vec![version];
    let kind = "ValidatingWebhookConfiguration";
    let mut observations = Observations {
        registrations: vec![webhooks(kind, &[webhook(service, policy, operations)])],
        objects: vec![deleting()],
        ..cluster()
    };
    let groups = observations.discovery.groups_mut();
    groups.insert("ex.io".to_owned(), ServedGroup { versions });
    let found = diagnose(&observations);
    let stuck = found.iter().find(|found| found.code == Code::ObjectStuck);
    assert_eq!(stuck.is_some(), named, "{found:#?}");
    if let Some(stuck) = stuck {
        assert_eq!(
            stuck.message,
            "has been terminating for 30s: waits for ex.io/keep (set by gears); webhook create.ex.io must admit the removal of a finalizer, but does not answer"
        );
        let id = format!("{kind}.admissionregistration.k8s.io/w");
        assert_eq!(stuck.related, [id.parse::<ObjectId>().unwrap()]);
    }
}
