//! Ignored fields.

use serde_json::Value;

use crate::fleet::{Fleet, WEB, object_writes, owners};
use crate::samples;

/// Returns the fields that we own through our applies.
fn ours(fleet: &Fleet, args: &[&str]) -> Value {
    let live = fleet.get(args).unwrap();
    let entries = live["metadata"]["managedFields"].as_array().unwrap();
    let manager = format!("pleach/{}.web", fleet.environment);
    let mut entries = entries.iter();
    entries
        .find(|entry| entry["manager"] == manager.as_str() && entry["operation"] == "Apply")
        .unwrap()["fieldsV1"]
        .clone()
}

fn config() -> String {
    let settings = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: settings}\ndata: {mode: fast, other: x}\n";
    let containers = "[{name: web, image: \"web:1\"}, {name: side, image: \"side:1\"}]";
    [settings, &samples::deployment_of("web", containers)].join("---\n")
}

#[test]
fn a_rule_comes_lives_and_goes() {
    let fleet = Fleet::web("ignoring", &config());
    fleet.applied();
    let write = |value: &str| {
        let patch = format!(r#"{{"data":{{"mode":"{value}"}}}}"#);
        fleet.kubectl(&[
            "-n",
            "ignoring",
            "patch",
            "cm/settings",
            "--type=merge",
            "-p",
            &patch,
            "--field-manager=someone",
        ]);
    };
    let mode = || fleet.field(&["-n", "ignoring", "cm/settings"], "{.data.mode}");
    let rules = "ignore: [{kind: ConfigMap, name: settings, fields: [data.mode]}, \
                 {kind: Deployment, name: web, fields: ['spec.template.spec.containers[name=web].image']}], ";

    // The rule is added: ownership of the paths is released, and no value changes.
    fleet.edit_environment("bundle: web,", &format!("bundle: web, {rules}"));
    fleet.commit();
    let (_, events) = fleet.watched(Fleet::applied);
    assert_eq!(object_writes(&events).len(), 4, "{}", events.writes());
    assert_eq!(mode(), "fast");
    let config = ["-n", "ignoring", "cm/settings"];
    assert!(ours(&fleet, &config)["f:data"].get("f:mode").is_none());
    let containers = "f:containers";
    let deployment = ours(&fleet, &["-n", "ignoring", "deployment/web"]);
    let containers = &deployment["f:spec"]["f:template"]["f:spec"][containers];
    assert!(containers["k:{\"name\":\"web\"}"].get("f:image").is_none());
    assert!(containers["k:{\"name\":\"side\"}"].get("f:image").is_some());

    // With the rule, changes of other clients are not drift, and the value in git is ignored.
    fleet.diff().ended_with(0);
    write("slow");
    fleet.kubectl(&[
        "-n",
        "ignoring",
        "set",
        "image",
        "deployment/web",
        "web=web:9",
    ]);
    fleet.diff().ended_with(0);
    let (_, events) = fleet.watched(Fleet::applied);
    assert_eq!(object_writes(&events), Vec::<String>::new());
    fleet.edit(WEB, "mode: fast", "mode: odd");
    fleet.edit(WEB, "image: \"side:1\"", "image: \"side:2\"");
    fleet.edit(WEB, "other: x", "other: z");
    fleet.commit();
    let run = fleet.diff().ended_with(10);
    assert!(
        !run.stdout.contains("mode") || !run.stdout.contains("+  mode"),
        "{}",
        run.shown()
    );
    run.says("update ConfigMap/ignoring/settings  (git changed)")
        .says("update Deployment.apps/ignoring/web  (git changed)");
    fleet.applied();
    assert_eq!(mode(), "slow");
    let images = "{.spec.template.spec.containers[*].image}";
    assert_eq!(
        fleet.field(&["-n", "ignoring", "deployment/web"], images),
        "web:9 side:2"
    );
    let live = fleet.get(&config).unwrap();
    assert_eq!(
        owners(&live),
        ["pleach/ignoring.web Apply", "someone Update"]
    );
    fleet.diff().ended_with(0);

    // The rule is removed: git sets the field, and another client owns it.
    fleet.edit_environment(rules, "");
    fleet.commit();
    fleet
        .diff()
        .ended_with(5)
        .says("someone owns .data.mode")
        .says("to leave the fields to someone, add to release web in environments/ignoring.yaml:")
        .says(
            "ignore: [{kind: ConfigMap, name: settings, namespace: ignoring, fields: [data.mode]}]",
        )
        .says("adopt: [someone]")
        .says("or remove data.mode from manifests/web/web.yaml:1");
    fleet.edit_environment("bundle: web,", "bundle: web, adopt: [someone, kubectl],");
    fleet.commit();
    fleet.applied();
    assert_eq!(mode(), "odd");
    assert_eq!(
        fleet.field(&["-n", "ignoring", "deployment/web"], images),
        "web:1 side:2"
    );
    fleet.diff().ended_with(0);
}

#[test]
fn an_ignored_field_is_sent_when_its_object_is_created() {
    let fleet = Fleet::web("initial", &config());
    fleet.edit_environment(
        "bundle: web,",
        "bundle: web, ignore: [{kind: ConfigMap, fields: [data.mode, data.typo]}, {kind: ConfigMap, name: setting, fields: [data.x]}],",
    );
    fleet.commit();
    fleet
        .applied()
        .says("environments/initial.yaml:")
        .says("no object that the ignore rule matches has data.typo")
        .says("the ignore rule for ConfigMap setting matches no object of the release")
        .says("did you mean `settings`?");
    assert_eq!(
        fleet.field(&["-n", "initial", "cm/settings"], "{.data.mode}"),
        "fast"
    );
    let (_, events) = fleet.watched(Fleet::applied);
    assert_eq!(events.writes().to_string(), "");
    fleet.diff().ended_with(0);
    // After a manual deletion, the object is recreated with all fields.
    fleet.kubectl(&["-n", "initial", "delete", "cm/settings"]);
    fleet.applied();
    assert_eq!(
        fleet.field(&["-n", "initial", "cm/settings"], "{.data.mode}"),
        "fast"
    );
}

fn scaled(name: &str) -> String {
    format!(
        "apiVersion: apps/v1
kind: Deployment
metadata: {{name: {name}}}
spec:
  replicas: 1
  selector: {{matchLabels: {{app: {name}}}}}
  template:
    metadata: {{labels: {{app: {name}}}}}
    spec: {{containers: [{{name: web, image: \"web:1\"}}]}}
"
    )
}

fn autoscaler(name: &str) -> String {
    format!(
        "apiVersion: autoscaling/v2
kind: HorizontalPodAutoscaler
metadata: {{name: {name}}}
spec:
  minReplicas: 1
  maxReplicas: 10
  scaleTargetRef: {{apiVersion: apps/v1, kind: Deployment, name: {name}}}
  metrics: [{{type: Resource, resource: {{name: cpu, target: {{type: Utilization, averageUtilization: 50}}}}}}]
"
    )
}

#[test]
fn replicas_that_an_autoscaler_sets_are_not_fought_over() {
    let manifests = [
        scaled("web"),
        scaled("idle"),
        scaled("foreign"),
        autoscaler("web"),
        autoscaler("idle"),
    ]
    .join("---\n");
    let fleet = Fleet::web("scaling", &manifests);
    // No pods run here, so do not wait.
    let apply = |fleet: &Fleet| {
        fleet
            .run(&["apply", "scaling", "--yes", "--wait=none"])
            .ended_with(0)
    };
    apply(&fleet);
    // One autoscaler exists only in the cluster.
    let file = fleet.file("hpa.yaml", &autoscaler("foreign"));
    fleet.kubectl(&["-n", "scaling", "apply", "-f", &file]);
    let plan = fleet.plan();
    let notes: Vec<&str> = plan["findings"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|finding| finding["code"] == "autoscaled")
        .map(|finding| finding["object"].as_str().unwrap())
        .collect();
    assert_eq!(notes.len(), 3, "{notes:?}");

    let replicas = |name: &str| {
        fleet.field(
            &["-n", "scaling", &format!("deployment/{name}")],
            "{.spec.replicas}",
        )
    };
    apply(&fleet);
    for name in ["web", "foreign"] {
        fleet.kubectl(&[
            "-n",
            "scaling",
            "scale",
            &format!("deployment/{name}"),
            "--replicas=5",
        ]);
    }
    for _ in 0..3 {
        let (_, events) = fleet.watched(apply);
        assert_eq!(object_writes(&events), Vec::<String>::new());
    }
    fleet.edit(WEB, "image: \"web:1\"", "image: \"web:2\"");
    fleet.commit();
    let run = fleet.diff().ended_with(10);
    assert!(!run.stdout.contains("replicas: 1\n"), "{}", run.shown());
    apply(&fleet);
    let wanted = ["web", "idle", "foreign"].map(replicas);
    assert_eq!(wanted, ["5", "1", "5"]);
    for name in ["web", "idle", "foreign"] {
        let args = ["-n", "scaling", &format!("deployment/{name}")];
        assert!(
            ours(&fleet, &args)["f:spec"].get("f:replicas").is_none(),
            "{name}"
        );
        let image = fleet.field(&args, "{.spec.template.spec.containers[0].image}");
        assert_eq!(image, "web:2");
        let live = fleet.get(&args).unwrap();
        assert_eq!(owners(&live), ["pleach/scaling.web Apply"], "{live}");
    }
    // A Deployment that was never scaled can now be scaled.
    fleet.kubectl(&["-n", "scaling", "scale", "deployment/idle", "--replicas=4"]);
    apply(&fleet);
    assert_eq!(replicas("idle"), "4");
    fleet.diff().ended_with(0);
}
