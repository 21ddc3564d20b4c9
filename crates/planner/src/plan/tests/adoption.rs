//! Changes that the server refuses next to fields of other managers.

use serde_json::{Value, json};

use super::scene::{MANAGER, Scene};
use crate::observe::{ApiRefusal, FieldConflict, Observed, Prediction};
use crate::plan::{Action, Plan};
use pleach_model::finding::Kind;
use pleach_model::object::FieldPath;
use pleach_state::live::Live;

const CONFIG: &str = "ConfigMap/web/c: {data: {k: v}}";
const EDITED: &str = "ConfigMap/web/c: {data: {k: edited}}";
const KEY: &str = "ConfigMap/web/c";

fn codes(plan: &Plan) -> Vec<&str> {
    plan.findings
        .iter()
        .map(|finding| finding.code.as_str())
        .collect()
}

/// Builds a conflict about a field that the server would refuse even from its
/// owner.
fn inseparable(immutable: Vec<FieldPath>) -> Prediction {
    Prediction::Conflict {
        fields: vec![FieldConflict {
            manager: "kubectl-edit".to_owned(),
            api_version: None,
            field: ".data.k".to_owned(),
        }],
        forced: None,
        refused: Some(ApiRefusal {
            code: 422,
            reason: "Invalid".to_owned(),
            message: "may not specify more than 1 handler type".to_owned(),
        }),
        immutable,
    }
}

/// Ownership is not the cause of the refusal, so adopting would not help.
#[test]
fn inseparable_fields_are_reported_with_the_reason() {
    let drifted = |immutable| {
        Scene::new()
            .installed(CONFIG)
            .edited("kubectl-edit", EDITED)
            .predict(KEY, inseparable(immutable))
    };
    let plan = drifted(Vec::new()).git(CONFIG).plan();
    let finding = &plan.findings[0];
    assert_eq!(finding.kind, Kind::Conflict);
    assert_eq!(
        finding.message,
        "the fields in git conflict with fields that kubectl-edit wrote: \
         the server refuses it (422): may not specify more than 1 handler type"
    );
    let plan = drifted(Vec::new())
        .git("ConfigMap/web/c: {data: {k: x}}")
        .plan();
    assert_eq!(plan.findings[0].code, "refused");

    let field = || vec![FieldPath::default().key("data")];
    let plan = drifted(field()).git(CONFIG).plan();
    let finding = &plan.findings[0];
    assert_eq!(
        (finding.code.as_str(), finding.message.as_str()),
        (
            "field-conflict",
            "kubectl-edit owns .data.k, and .data cannot be changed on an existing object"
        )
    );
    let hint = finding.hint.as_deref().unwrap();
    assert!(hint.contains("fields: [data.k]"), "{hint}");
    assert!(!hint.contains("adopt:"), "{hint}");

    // Git changed the field, so it is recreated once the manager gives it up.
    let plan = drifted(field())
        .git("ConfigMap/web/c: {data: {k: x}}")
        .plan();
    assert_eq!(plan.findings[0].message, "kubectl-edit owns .data.k");
    let hint = plan.findings[0].hint.as_deref().unwrap();
    assert!(hint.contains("adopt: [kubectl-edit]"), "{hint}");

    // Recreated by hand, so it is not the object that we applied.
    let plan = drifted(field())
        .git(CONFIG)
        .with_live(KEY, |live| live["metadata"]["uid"] = json!("another"))
        .plan();
    assert_eq!(codes(&plan), ["immutable-field"]);
}

#[test]
fn inseparable_fields_are_not_adopted() {
    let scene = |immutable| {
        Scene::new()
            .git(CONFIG)
            .live("ConfigMap/web/c: {data: {k: theirs}, managers: [kubectl-edit]}")
            .adopt("kubectl")
            .predict(KEY, inseparable(immutable))
    };
    let plan = scene(Vec::new()).plan();
    let message = &plan.findings[0].message;
    assert!(message.contains("more than 1 handler type"), "{message}");
    let plan = scene(vec![FieldPath::default().key("data")]).plan();
    assert_eq!(codes(&plan), ["immutable-field", "not-verified"]);
}

/// A port with a new number. The server refuses a second port of the same name,
/// and the adoption removes the first.
fn refused_next_to_removed_objects() -> Scene {
    let refused = Prediction::Refused(ApiRefusal {
        code: 422,
        reason: "Invalid".to_owned(),
        message: r#"Service "s" is invalid: spec.ports[1].name: Duplicate value: "http""#
            .to_owned(),
    });
    Scene::new()
        .live("Service/web/s: {spec: {port: 80}, managers: [kubectl-create]}")
        .git("Service/web/s: {spec: {port: 8080}}")
        .adopt("kubectl")
        .predict("Service/web/s", refused)
}

fn left(value: &Value) -> impl FnOnce(&mut Observed) {
    let left = Live::new(value.clone(), MANAGER);
    move |observed| drop(observed.adopted.insert(left.id(), left))
}

#[test]
fn an_object_the_server_accepts_without_other_managers_is_adopted() {
    let plan = refused_next_to_removed_objects().plan();
    assert_eq!(plan.count(Action::Blocked), 1);
    let service = json!({"apiVersion": "v1", "kind": "Service",
        "metadata": {"name": "s", "namespace": "web"}, "spec": {"port": 8080}});
    let plan = refused_next_to_removed_objects()
        .cluster(left(&service))
        .plan();
    assert_eq!(plan.count(Action::Adopt), 1, "{:?}", plan.findings);
    let steps = plan
        .steps
        .iter()
        .filter(|step| step.object.kind == "Service");
    let verbs: Vec<&str> = steps.map(|step| step.op.verb()).collect();
    assert_eq!(verbs[..2], ["patch", "apply"]);

    // A manager that is not adopted remains in conflict.
    let object = json!({"apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {"name": "c", "namespace": "web"}, "data": {"k": "v"}});
    let scene = |adopted: &str| {
        Scene::new()
            .git(CONFIG)
            .live("ConfigMap/web/c: {data: {k: theirs}, managers: [kubectl-edit, helm]}")
            .adopt(adopted)
            .predict(KEY, inseparable(Vec::new()))
            .cluster(left(&object))
    };
    assert_eq!(scene("kubectl").plan().count(Action::Adopt), 1);
    assert_eq!(
        codes(&scene("helm").plan()),
        ["field-conflict", "not-verified"]
    );
}

/// The apply alone would succeed, but the adopted object would be refused.
#[test]
fn an_object_the_server_would_refuse_after_adoption_is_not_adopted() {
    let against = |why: Prediction| {
        Scene::new()
            .live("ConfigMap/web/c: {data: {k: v, more: x}, managers: [kubectl]}")
            .git(CONFIG)
            .adopt("kubectl")
            .cluster(|observed| {
                observed.unadoptable.insert(KEY.parse().unwrap(), why);
            })
            .plan()
    };
    let plan = against(Prediction::Immutable {
        fields: vec![FieldPath::default().key("data")],
        refused: None,
    });
    assert_eq!(codes(&plan), ["immutable-field", "not-verified"]);
    assert_eq!(
        plan.findings[0].message,
        ".data cannot be changed on an existing object, and git does not have .data.more"
    );
    assert!(!plan.has_steps());
    let plan = against(Prediction::Refused(ApiRefusal {
        code: 422,
        reason: "Invalid".to_owned(),
        message: "no".to_owned(),
    }));
    assert_eq!(codes(&plan), ["refused", "not-verified"]);
}
