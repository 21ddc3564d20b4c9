use rstest::rstest;
use serde_json::{Value, json};

use super::*;
use pleach_model::finding::Finding;
use pleach_model::object::{ApiVersion, Origin, Selector};

fn deployment() -> Value {
    json!({
        "apiVersion": "apps/v1", "kind": "Deployment",
        "metadata": {"name": "web", "annotations": {"example.org/a": "1"}},
        "spec": {"replicas": 2, "template": {"spec": {"containers": [
            {"name": "app", "image": "app:1", "ports": [{"containerPort": 80, "name": "http"}]},
            {"name": "side", "image": "side:1"}]}}},
    })
}

fn manifest(value: &Value) -> Manifest {
    let id = ObjectId::new("apps", "Deployment", Some("web"), "web");
    let version = ApiVersion::parse("apps/v1");
    Manifest::new(id, version, Origin::new("web.yaml", 1), value, false)
}

fn pattern(text: &str) -> FieldPattern {
    text.parse().unwrap()
}

#[rstest]
#[case("spec.replicas", "spec.replicas")]
#[case(".spec.replicas", "spec.replicas")]
#[case(
    r#"metadata.annotations["example.org/a"]"#,
    r#"metadata.annotations["example.org/a"]"#
)]
#[case(
    "metadata.annotations['example.org/a'].x",
    r#"metadata.annotations["example.org/a"].x"#
)]
#[case("spec.containers[name=app].image", "spec.containers[name=app].image")]
#[case(
    r#"spec.ports[containerPort=80,protocol="TCP"]"#,
    "spec.ports[containerPort=80,protocol=TCP]"
)]
#[case(
    "webhooks[*].clientConfig.caBundle",
    "webhooks[*].clientConfig.caBundle"
)]
#[case(r#"a[name="x,y]"].b"#, r#"a[name="x,y]"].b"#)]
fn paths_are_read_and_written(#[case] text: &str, #[case] expected: &str) {
    let read = pattern(text);
    assert_eq!(read.to_string(), expected);
    assert_eq!(pattern(&read.to_string()), read);
}

#[rstest]
#[case("", "it is empty")]
#[case("/spec/replicas", "separate keys with dots, such as spec.replicas")]
#[case("spec..replicas", "it has an empty key")]
#[case("spec.", "it ends with a `.`")]
#[case(
    "spec.containers[0].image",
    "select list items by content, such as [name=app], or all of them with [*]"
)]
#[case(
    "spec.containers.0.image",
    "select list items by content, such as [name=app], or all of them with [*]"
)]
#[case("spec.containers[name=app", "a `]` is missing")]
#[case(
    "spec.containers[name]",
    "brackets must contain a key and a value, such as [name=app], or a quoted key"
)]
#[case("spec.containers[name=app]image", "a `.` is missing after `]`")]
#[case("[name=app].image", "it must start with a key, such as spec")]
fn invalid_paths_are_refused(#[case] text: &str, #[case] why: &str) {
    let error = text.parse::<FieldPattern>().unwrap_err();
    assert_eq!(
        error.to_string(),
        format!("`{text}` is not a field path: {why}")
    );
}

#[rstest]
#[case("metadata.name", true)]
#[case("metadata.labels", true)]
#[case(r#"metadata.labels["applyset.kubernetes.io/part-of"]"#, true)]
#[case(r#"metadata.annotations["pleach.dev/desired"]"#, true)]
#[case("kind", true)]
#[case("status.replicas", true)]
#[case("metadata.labels.app", false)]
#[case("spec", false)]
fn identity_fields_are_never_ignored(#[case] text: &str, #[case] reserved: bool) {
    assert_eq!(pattern(text).reserved().is_some(), reserved);
}

#[rstest]
#[case(&["spec.replicas"], json!({"spec": {"template": deployment()["spec"]["template"]}}))]
#[case(&["spec.template", "spec.replicas"], json!({}))]
fn ignored_fields_are_removed_from_the_spec(#[case] fields: &[&str], #[case] spec: Value) {
    let fields: Vec<FieldPattern> = fields.iter().map(|field| pattern(field)).collect();
    let lean = lean(&manifest(&deployment()), &fields).unwrap().value();
    assert_eq!(lean.get("spec"), spec.get("spec"));
}

#[test]
fn items_are_selected_by_content() {
    let fields = [
        pattern("spec.template.spec.containers[name=app].image"),
        pattern("spec.template.spec.containers[*].ports[name=http].containerPort"),
        pattern(r#"metadata.annotations["example.org/a"]"#),
    ];
    let lean = lean(&manifest(&deployment()), &fields).unwrap().value();
    assert_eq!(
        lean["spec"]["template"]["spec"]["containers"],
        json!([{"name": "app", "ports": [{"name": "http"}]}, {"name": "side", "image": "side:1"}])
    );
    assert!(lean["metadata"].get("annotations").is_none());
    assert!(super::lean(&manifest(&deployment()), &[pattern("spec.paused")]).is_none());
}

fn entry() -> FieldSet {
    FieldSet::parse(&json!({
        "f:spec": {"f:replicas": {}, "f:template": {"f:spec": {"f:containers": {
            "k:{\"name\":\"app\"}": {".": {}, "f:name": {}, "f:image": {}, "f:ports": {
                "k:{\"containerPort\":80,\"protocol\":\"TCP\"}": {".": {}, "f:containerPort": {}, "f:name": {}}}},
            "k:{\"name\":\"side\"}": {".": {}, "f:name": {}, "f:image": {}}}}}}}))
}

#[test]
fn paths_are_given_up_as_the_server_names_them() {
    let mut live = deployment();
    live["spec"]["template"]["spec"]["containers"][0]["ports"][0]["protocol"] = json!("TCP");
    let give_up = |text: &str| give_up(&[pattern(text)], &entry(), &live).to_json();
    assert!(
        give_up("spec.replicas")["f:spec"]
            .get("f:replicas")
            .is_none()
    );
    let containers =
        give_up("spec.template.spec.containers[name=app].image")["f:spec"]["f:template"]["f:spec"]
            ["f:containers"]
            .clone();
    assert_eq!(
        containers["k:{\"name\":\"side\"}"],
        json!({".": {}, "f:name": {}, "f:image": {}})
    );
    assert!(containers["k:{\"name\":\"app\"}"].get("f:image").is_none());
    // Selects by a field that is not a list key of the server.
    let ports = give_up("spec.template.spec.containers[name=app].ports[name=http].name");
    assert!(!ports.to_string().contains("f:protocol\":{},\"f:name"));
    assert_eq!(
        ports["f:spec"]["f:template"]["f:spec"]["f:containers"]["k:{\"name\":\"app\"}"]["f:ports"],
        json!({"k:{\"containerPort\":80,\"protocol\":\"TCP\"}": {".": {}, "f:containerPort": {}}})
    );
    assert_eq!(
        give_up("spec.template"),
        json!({"f:spec": {"f:replicas": {}}})
    );
    assert_eq!(give_up("spec"), json!({}));
    assert_eq!(give_up("data.x"), entry().to_json());
}

#[test]
fn the_dry_run_sends_owned_fields_with_live_values() {
    let mut ignored = Ignored::default();
    let manifest = manifest(&deployment());
    let image = pattern("spec.template.spec.containers[name=app].image");
    ignored.add(&manifest, &[FieldPattern::replicas(), image]);
    let mut live = deployment();
    live["spec"]["replicas"] = json!(7);
    live["spec"]["template"]["spec"]["containers"][0]["image"] = json!("app:of-others");

    // We own both fields, so they are sent with their live values.
    let question = ignored.question(&manifest, &live, &entry()).unwrap();
    assert_eq!(question["spec"]["replicas"], 7);
    let container = &question["spec"]["template"]["spec"]["containers"][0];
    assert_eq!(container["image"], "app:of-others");

    // We own neither field any more, so both are omitted.
    let given_up = give_up(ignored.of(manifest.id()), &entry(), &live);
    let question = ignored.question(&manifest, &live, &given_up).unwrap();
    assert_eq!(question, ignored.lean(&manifest).value());
}

#[test]
fn a_field_of_an_atomic_list_cannot_be_given_up_alone() {
    let ours = FieldSet::parse(&json!({"f:rules": {}, "f:spec": {"f:x": {}}}));
    assert!(pattern("rules[*].verbs").is_locked(&ours));
    assert!(!pattern("rules").is_locked(&ours));
    assert!(!pattern("spec.x").is_locked(&ours));
    assert!(!pattern("spec.y").is_locked(&ours));
}

#[rstest]
#[case(".spec.replicas", Some("spec.replicas"))]
#[case(
    ".metadata.annotations.example.org/a",
    Some(r#"metadata.annotations["example.org/a"]"#)
)]
#[case(
    r#".spec.template.spec.containers[name="app"].image"#,
    Some("spec.template.spec.containers[name=app].image")
)]
#[case(
    r#".spec.template.spec.containers[name="new"].image"#,
    Some("spec.template.spec.containers[name=new].image")
)]
#[case(r#".spec.finalizers[="x"]"#, Some("spec.finalizers"))]
#[case("nonsense", None)]
fn the_server_format_becomes_a_rule(#[case] text: &str, #[case] expected: Option<&str>) {
    let read = FieldPattern::of_server(text, &deployment());
    assert_eq!(read.map(|read| read.to_string()).as_deref(), expected);
}

fn rule(kind: &str, name: &str, field: &str) -> IgnoreRule {
    IgnoreRule {
        target: Selector {
            kind: kind.to_owned(),
            name: Some(name.to_owned()),
            ..Selector::default()
        },
        fields: vec![pattern(field)],
        origin: Origin::new("environments/e.yaml", 7),
    }
}

#[rstest]
#[case("Deployment", "web", "spec.replicas", None)]
#[case("Deployment", "w*", "spec.replicas", None)]
#[case("Deploymnt", "web", "spec.replicas", Some(("the ignore rule for Deploymnt web matches no object of the release", "did you mean `Deployment`?")))]
#[case("Deployment", "wep", "spec.replicas", Some(("the ignore rule for Deployment wep matches no object of the release", "did you mean `web`?")))]
#[case("Deployment", "web", "spec.replica", Some(("no object that the ignore rule matches has spec.replica", "did you mean `replicas`?")))]
#[case("Deployment", "web", "spec.template.spec.containers[name=ap].image", Some(("no object that the ignore rule matches has spec.template.spec.containers[name=ap].image", "remove the field from the rule: no manifest contains it")))]
fn rules_without_effect_are_reported(
    #[case] kind: &str,
    #[case] name: &str,
    #[case] field: &str,
    #[case] expected: Option<(&str, &str)>,
) {
    let mut findings: Vec<Finding> = Vec::new();
    let manifests = [manifest(&deployment())];
    let ignored = resolve(&[rule(kind, name, field)], &manifests, &mut findings);
    let shown = findings.first().map(|finding| {
        assert_eq!(finding.place.as_ref().unwrap().line, 7);
        let hint = finding.hint.as_deref().unwrap_or_default();
        (finding.message.as_str(), hint)
    });
    assert_eq!(shown, expected);
    assert_eq!(ignored.is_empty(), expected.is_some());
}

#[test]
fn the_scale_target_is_found() {
    let id = ObjectId::new("autoscaling", "HorizontalPodAutoscaler", Some("web"), "hpa");
    let autoscaler = json!({"spec": {"scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"}}});
    let target = ObjectId::new("apps", "Deployment", Some("web"), "web");
    assert_eq!(scale_target(&id, &autoscaler), Some(target.clone()));
    assert_eq!(scale_target(&target, &autoscaler), None);
    assert!(sets_replicas(&manifest(&deployment())));
    let mut without = deployment();
    without["spec"]["replicas"] = Value::Null;
    assert!(!sets_replicas(&manifest(&without)));
}
