//! Registrations without a backend: owners and consequences.

use rstest::rstest;

use super::*;

#[test]
fn a_dead_api_is_reported_with_owner_effect_and_command() {
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
            "its discovery is stale: clients omit its kinds without an error",
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
fn an_api_with_an_existing_service_is_not_deleted(
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

#[test]
fn a_service_of_another_name_may_answer() {
    let mut observations = Observations {
        registrations: vec![webhooks(
            "ValidatingWebhookConfiguration",
            &[webhook("named", "Fail", &["CREATE"])],
        )],
        ..cluster()
    };
    let backend = Backend {
        exists: true,
        is_elsewhere: true,
        ready_endpoints: 0,
    };
    observations.backends.insert(service("named"), backend);
    assert_eq!(diagnose(&observations), []);
}

#[rstest]
#[case("ValidatingWebhookConfiguration", "Fail", &["CREATE", "UPDATE"], Severity::Error,
    &["CREATE, UPDATE of things.ex.io, things.ex.io/scale is refused (webhook create.ex.io, failurePolicy Fail)"])]
#[case("ValidatingWebhookConfiguration", "Fail", &["*"], Severity::Error,
    &["every write of things.ex.io, things.ex.io/scale is refused (webhook create.ex.io, failurePolicy Fail)",
      "namespaces with things.ex.io, things.ex.io/scale cannot be deleted"])]
#[case("ValidatingWebhookConfiguration", "Ignore", &["DELETE"], Severity::Warning,
    &["DELETE of things.ex.io, things.ex.io/scale is not checked (webhook create.ex.io, failurePolicy Ignore)"])]
#[case("MutatingWebhookConfiguration", "Ignore", &["CREATE"], Severity::Warning,
    &["CREATE of things.ex.io, things.ex.io/scale is admitted without the webhook's changes (webhook create.ex.io, failurePolicy Ignore)"])]
fn the_effect_of_a_dead_webhook_depends_on_its_rules(
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
fn selectors_and_wildcards_are_reported() {
    let mut hook = webhook("api", "Fail", &["CREATE"]);
    hook["namespaceSelector"] = json!({"matchLabels": {"a": "b"}});
    hook["rules"][0] = json!({"apiGroups": ["*"], "resources": ["*/*"], "operations": ["CREATE"]});
    let found = only(webhooks("ValidatingWebhookConfiguration", &[hook]));
    assert_eq!(
        found.breaks,
        [
            "CREATE of everything is refused if its selectors match (webhook create.ex.io, failurePolicy Fail)"
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
    let crd = Crd::deserialize(json!({
        "metadata": {"name": "things.ex.io", "uid": "u"},
        "spec": {"group": "ex.io", "names": {"plural": "things", "kind": "Thing"}, "versions": versions,
            "conversion": {"strategy": "Webhook", "webhook": {"clientConfig": {"service": {"namespace": "old", "name": "api"}}}}},
    }))
    .unwrap();
    assert_eq!(crd.kind(), GroupKind::new("ex.io", "Thing"));
    let found = only(crd.registered().unwrap());
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
fn an_owned_object_is_deleted_with_its_owner() {
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
        Some("it is deleted together with Deployment/web, which can recreate it until then")
    );
}

#[rstest]
#[case::of_the_service("Service/old/api", EntryState::Applied, Some("prod/web"))]
#[case::of_the_registration(API, EntryState::Observed, Some("prod/web"))]
#[case::kept(API, EntryState::Kept, None)]
#[case::others("Service/old/other", EntryState::Applied, None)]
fn a_release_owns_registrations_of_its_service(
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
fn a_registration_that_git_has_without_its_service_is_to_be_fixed_in_git() {
    let advice = |members: &[(&str, EntryState)]| {
        let found = diagnose(&Observations {
            registrations: vec![dead_api()],
            releases: vec![release("prod.web", members)],
            ..cluster()
        });
        (found[0].hint.clone().unwrap(), found[0].command.clone())
    };
    let registration = (API, EntryState::Applied);
    let (hint, command) = advice(&[registration]);
    assert_eq!(
        hint,
        "release prod/web contains it, but not Service old/api: add the Service to the files, or remove the registration; then apply prod/web"
    );
    assert_eq!(command, None);
    // Only a previous version contained it, or the release has its Service. An apply helps.
    for members in [
        &[registration, ("Service/old/api", EntryState::Applied)][..],
        &[("Service/old/api", EntryState::Applied)],
        &[(API, EntryState::Observed)],
    ] {
        let (_, command) = advice(members);
        assert_eq!(command.as_deref(), Some("pleach apply prod/web"));
    }
}

/// An apply alone cannot create a Service in a namespace that is being deleted.
#[rstest]
#[case::it_terminates("old", true)]
#[case::another_one_terminates("other", false)]
fn registrations_into_a_terminating_namespace_can_be_removed(
    #[case] terminating: &str,
    #[case] is_suggested: bool,
) {
    let found = diagnose(&Observations {
        registrations: vec![dead_api()],
        namespaces: vec![Leaving {
            name: terminating.to_owned(),
            since: NOW.parse().unwrap(),
            conditions: Vec::new(),
            finalizers: Vec::new(),
        }],
        releases: vec![release(
            "prod.web",
            &[("Service/old/api", EntryState::Applied)],
        )],
        ..cluster()
    });
    let mut found = found.iter();
    let dead = found.find(|one| one.code == Code::ServiceMissing).unwrap();
    let fix = format!("`pleach doctor --fix {API} --yes`");
    let hint = dead.hint.as_deref().unwrap();
    assert_eq!(hint.contains(&fix), is_suggested, "{hint}");
    assert_eq!(dead.command.as_deref(), Some("pleach apply prod/web"));
}
