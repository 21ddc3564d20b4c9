//! Refusals of the API server.

use rstest::rstest;
use serde_json::json;

use super::{CONFIG, EDITED, KEY, change, operations, refused};
use crate::observe::{ApiRefusal, Prediction};
use crate::plan::tests::scene::{MANAGER, Scene};
use crate::plan::tests::server;
use crate::plan::{Action, Op};
use pleach_model::finding::Kind;

/// The manifest is not at fault for foreign writes, and only this object is
/// blocked.
#[test]
fn a_refusal_caused_by_fields_of_other_managers_is_a_conflict() {
    let drifted = || {
        Scene::new()
            .installed(CONFIG)
            .edited("kubectl-edit", EDITED)
            .predict(KEY, refused(422))
    };
    let plan = drifted().git(CONFIG).plan();
    let finding = &plan.findings[0];
    assert_eq!(
        (finding.kind, finding.message.as_str()),
        (
            Kind::Conflict,
            "the fields in git conflict with fields that kubectl-edit wrote: the server refuses it (422): no"
        )
    );
    assert!(plan.refusals().next().is_none());
    let hint = finding.hint.as_deref().unwrap();
    assert!(hint.contains("`kubectl edit configmap c -n web`"), "{hint}");
    // A value that git changed may be invalid on its own.
    let plan = drifted().git("ConfigMap/web/c: {data: {k: x}}").plan();
    assert_eq!(plan.findings[0].kind, Kind::Repository);
}

/// Another key creates another item, which conflicts with ours.
#[test]
fn an_item_with_a_changed_key_is_removed_before_ours_is_restored() {
    const SERVICE: &str = "Service/web/s: {spec: {ports: [{name: http, port: 80}]}}";
    let item = json!({"f:spec": {"f:ports": {
        r#"k:{"port":81,"protocol":"TCP"}"#: {".": {}, "f:name": {}, "f:port": {}}}}});
    let refused = Prediction::Refused(ApiRefusal {
        code: 422,
        reason: "Invalid".to_owned(),
        message: r#"Service "s" is invalid: spec.ports[1].name: Duplicate value: "http""#
            .to_owned(),
    });
    let plan = Scene::new()
        .installed(SERVICE)
        .with_live("Service/web/s", |live| {
            live["spec"]["ports"] = json!([{"name": "http", "port": 81, "protocol": "TCP"}]);
            let labels =
                json!({"f:metadata": {"f:labels": {"f:applyset.kubernetes.io/part-of": {}}}});
            live["metadata"]["resourceVersion"] = json!("2");
            live["metadata"]["managedFields"] = json!([
                server::entry(MANAGER, "Apply", &labels),
                server::entry("hand", "Update", &item),
            ]);
        })
        .git(SERVICE)
        .predict("Service/web/s", refused)
        .plan();
    assert!(plan.findings.iter().all(|finding| !finding.is_error()));
    let change = change(&plan, "Service/web/s");
    assert_eq!(
        (change.action, change.reason.as_str()),
        (
            Action::Update,
            "the cluster drifted: hand wrote to fields of the release"
        )
    );
    assert!(change.corrects.iter().all(|one| one.manager == "hand"));
    assert_eq!(operations(&plan, "Service/web/s")[..2], ["patch", "apply"]);
    let mut patches = plan.steps.iter().filter_map(|step| match &step.op {
        Op::Own(own) => Some(&own.reclaim),
        _ => None,
    });
    assert_eq!(patches.next().unwrap().to_json(), item);
}

#[test]
fn a_conflict_with_a_default_has_a_hint() {
    let refused = Prediction::Refused(ApiRefusal {
        code: 422,
        reason: "Invalid".to_owned(),
        message: "spec.strategy.rollingUpdate: Forbidden: may not be specified when strategy `type` is 'Recreate'".to_owned(),
    });
    let scene = Scene::new().installed(CONFIG).git(EDITED);
    let plan = scene.predict(KEY, refused).plan();
    let hint = plan.findings[0].hint.as_deref().unwrap();
    assert!(hint.contains("add it to the manifest"), "{hint}");
}

/// A webhook that does not answer is not the manifest's fault and only blocks
/// this object. Refusals of admission checks are policy errors.
#[rstest]
#[case::conversion(
    500,
    "conversion webhook for ex.org/v1, Kind=Thing failed: Post \"https://gone.a.svc:443/\": service \"gone\" not found",
    Kind::Cluster
)]
#[case::overloaded(503, "service unavailable", Kind::Cluster)]
#[case::no_right(
    403,
    "things.ex.org \"a\" is forbidden: User \"bob\" cannot patch resource \"things\" in API group \"ex.org\" in the namespace \"web\"",
    Kind::Cluster
)]
#[case::escalation(
    403,
    "roles.rbac.authorization.k8s.io \"a\" is forbidden: user \"bob\" (groups=[]) is attempting to grant RBAC permissions not currently held:\n{APIGroups:[\"\"], Resources:[\"pods\"], Verbs:[\"get\"]}",
    Kind::Cluster
)]
#[case::webhook(
    422,
    "admission webhook \"w.example.org\" denied the request: too big",
    Kind::Policy
)]
#[case::policy(
    403,
    "things.ex.org \"a\" is forbidden: ValidatingAdmissionPolicy 'p' with binding 'b' denied request: no",
    Kind::Policy
)]
#[case::quota(
    403,
    "things.ex.org \"a\" is forbidden: exceeded quota: q, requested: count/things=1, used: count/things=1, limited: count/things=1",
    Kind::Policy
)]
#[case::schema(
    500,
    "failed to create typed patch object (a/b; ex.org/v1, Kind=Thing): .spec.x: field not declared in schema",
    Kind::Repository
)]
fn a_refusal_names_its_cause(#[case] code: u16, #[case] message: &str, #[case] kind: Kind) {
    let refusal = ApiRefusal {
        code,
        reason: String::new(),
        message: message.to_owned(),
    };
    let plan = Scene::new()
        .git("Thing.ex.org/web/a: {}")
        .predict("Thing.ex.org/web/a", Prediction::Refused(refusal))
        .plan();
    let finding = plan.findings.iter().find(|finding| finding.is_error());
    assert_eq!(finding.unwrap().kind, kind);
}
