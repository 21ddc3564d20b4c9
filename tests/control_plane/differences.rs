//! Diffs of live objects with defaults of the server.

use serde_json::{Value, json};

use crate::fleet::Fleet;

const OBJECTS: &str = "\
apiVersion: v1
kind: Namespace
metadata: {name: pairs-a}
---
apiVersion: v1
kind: Namespace
metadata: {name: pairs-b}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: conf-5h2mk8gt9b}
data: {a: '1', b: '2', c: '3', d: '4'}
---
apiVersion: v1
kind: Service
metadata: {name: api, namespace: pairs-a}
spec: {selector: {app: api}, ports: [{port: 80, name: http}]}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: api}
spec:
  replicas: 0
  selector: {matchLabels: {app: api}}
  template:
    metadata: {labels: {app: api}}
    spec:
      containers:
      - name: api
        image: api:1
        env: [{name: A, value: '1'}, {name: B, value: '2'}]
        resources: {limits: {cpu: 1000m}}
";

fn fleet(environment: &'static str) -> Fleet {
    Fleet::new(
        environment,
        &format!("  - {{name: app, bundle: app, namespace: {environment}}}\n"),
        &[
            (
                "manifests/app/bundle.yaml",
                "apiVersion: pleach.dev/v1alpha1\nkind: Bundle\n".to_owned(),
            ),
            (
                "manifests/app/app.yaml",
                OBJECTS.replace("pairs", environment),
            ),
        ],
    )
}

/// Returns the objects in the diff of the only release.
fn objects(fleet: &Fleet, args: &[&str]) -> Vec<Value> {
    let line = [&["diff", fleet.environment, "-o", "json"], args].concat();
    let document = fleet.run(&line).json();
    document["releases"][0]["objects"]
        .as_array()
        .unwrap()
        .clone()
}

fn paths(object: &Value) -> Vec<&str> {
    let fields = object["fields"].as_array().unwrap();
    fields
        .iter()
        .map(|field| field["path"].as_str().unwrap())
        .collect()
}

#[test]
fn what_only_changes_its_name_is_one_entry_with_what_else_changes() {
    let fleet = fleet("pairs");
    fleet.applied();
    let file = "manifests/app/app.yaml";
    fleet.edit(file, "conf-5h2mk8gt9b", "conf-7f2tm6dk4c");
    fleet.edit(file, "d: '4'", "d: '5'");
    fleet.edit(
        file,
        "{name: api, namespace: pairs-a}",
        "{name: api, namespace: pairs-b}",
    );
    fleet.edit(file, "port: 80,", "port: 8080,");
    fleet.commit();
    // Values that the server defaults or assigns (an address, a type) are not shown as changes.
    for args in [&[][..], &["--base", "HEAD~1"]] {
        let objects = objects(&fleet, args);
        let moved: Vec<(Value, Value)> = objects
            .iter()
            .map(|object| (object["previous"].clone(), json!(paths(object))))
            .collect();
        assert_eq!(
            moved,
            [
                (
                    json!({"object": "ConfigMap/pairs/conf-5h2mk8gt9b", "how": "rename"}),
                    json!([".data.d"])
                ),
                (
                    json!({"object": "Service/pairs-a/api", "how": "move"}),
                    json!([
                        ".spec.ports[port=80,protocol=\"TCP\"]",
                        ".spec.ports[port=8080,protocol=\"TCP\"]"
                    ])
                ),
            ]
        );
        let line = [&["diff", "pairs"], args].concat();
        fleet
            .run(&line)
            .says("rename ConfigMap/pairs/conf-5h2mk8gt9b -> ConfigMap/pairs/conf-7f2tm6dk4c")
            .says("move Service/pairs-a/api -> Service/pairs-b/api")
            .says("2 to create, 2 to delete, 4 unchanged");
    }
    fleet.applied();
}

#[test]
fn items_that_move_are_no_change_of_their_content() {
    let fleet = fleet("reorder");
    fleet.applied();
    fleet.edit(
        "manifests/app/app.yaml",
        "[{name: A, value: '1'}, {name: B, value: '2'}]",
        "[{name: B, value: '3'}, {name: A, value: '1'}]",
    );
    fleet.edit("manifests/app/app.yaml", "cpu: 1000m", "cpu: '1'");
    fleet.commit();
    let env = ".spec.template.spec.containers[name=\"api\"].env";
    for args in [&[][..], &["--base", "HEAD~1"]] {
        let objects = objects(&fleet, args);
        assert_eq!(objects.len(), 1);
        assert_eq!(
            paths(&objects[0]),
            [&format!("{env}[name=\"B\"].value"), env]
        );
        assert_eq!(objects[0]["fields"][1]["reordered"], true);
        let lines: Vec<&str> = objects[0]["hunks"]
            .as_array()
            .unwrap()
            .iter()
            .flat_map(|hunk| hunk["lines"].as_array().unwrap())
            .filter(|line| line["tag"] != "context")
            .map(|line| line["text"].as_str().unwrap().trim())
            .collect();
        assert_eq!(lines, ["value: \"2\"", "value: \"3\""]);
    }
    fleet.applied();
    fleet.diff().ended_with(0);
}

#[test]
fn drift_is_told_from_what_git_dropped() {
    let fleet = fleet("whose");
    fleet.applied();
    fleet.kubectl(&["-n", "whose", "scale", "deployment", "api", "--replicas=2"]);
    let drifted = objects(&fleet, &[]);
    assert_eq!(
        drifted[0]["cause"],
        json!({"kind": "drift", "managers": ["kubectl"]})
    );
    assert_eq!(paths(&drifted[0]), [".spec.replicas"]);
    assert_eq!(drifted[0]["fields"][0]["cause"], drifted[0]["cause"]);
    fleet.applied();
    fleet.edit("manifests/app/app.yaml", "d: '4'", "e: '4'");
    fleet.commit();
    let dropped = objects(&fleet, &[]);
    assert_eq!(dropped[0]["cause"], json!({"kind": "git"}));
    assert_eq!(paths(&dropped[0]), [".data.d", ".data.e"]);
    assert_eq!(dropped[0]["fields"][0]["cause"], json!({"kind": "git"}));
}
