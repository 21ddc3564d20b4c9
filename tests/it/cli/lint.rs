//! `pleach lint`.

use insta::assert_snapshot;
use serde_json::Value;

use super::Folder;

fn folder() -> Folder {
    let environment = |cluster: &str| {
        format!(
            "apiVersion: pleach.dev/v1alpha1\nkind: Environment\n\
             cluster: {{id: {cluster}, kubernetes: \"1.36\"}}\n\
             releases:\n  - {{bundle: web, version: v1.0.0, namespace: web}}\n"
        )
    };
    Folder::with(&[
        (
            "pleach.yaml",
            "apiVersion: pleach.dev/v1alpha1\nkind: Repository\nid: fleet\n",
        ),
        ("environments/blue.yaml", &environment("a")),
        ("environments/green.yaml", &environment("b")),
        (
            "manifests/web/bundle.yaml",
            "apiVersion: pleach.dev/v1alpha1\nkind: Bundle\n",
        ),
        (
            "manifests/web/v1.0.0/web.yaml",
            "\
apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec:
  selector: {matchLabels: {app: web}}
  replicsa: 2
  template:
    metadata: {labels: {app: web}}
    spec:
      serviceAccountName: web
      containers:
        - name: web
          image: web
          ports:
            - {name: a, containerPort: 8443, protocol: TCP}
            - {name: b, containerPort: 8443, protocol: TCP}
",
        ),
        (
            "manifests/web/v1.0.0/secret.yaml.j2",
            "apiVersion: v1\nkind: Secret\nmetadata: {name: s}\nstringDat:\n  key: hunter2\n",
        ),
    ])
}

#[test]
fn everything_is_said_once_with_its_place() {
    assert_snapshot!(folder().run(&["lint"]).shown(), @r"
    exit: 3
    --- stdout
    manifests/web/v1.0.0/secret.yaml.j2:4: error: `stringDat` is not a field of Secret
      4 | stringDat:
      object: Secret/web/s
      hint: did you mean `stringData`?
    manifests/web/v1.0.0/web.yaml:6: error: `spec.replicsa` is not a field of Deployment
      6 |   replicsa: 2
        |   ^^^^^^^^
      object: Deployment.apps/web/web
      hint: did you mean `replicas`?
    manifests/web/v1.0.0/web.yaml:10: warning: the pods need ServiceAccount/web/web, which is in no manifest of the environment
      10 |       serviceAccountName: web
         |       ^^^^^^^^^^^^^^^^^^
      object: Deployment.apps/web/web
    manifests/web/v1.0.0/web.yaml:16: error: `spec.template.spec.containers[0].ports` has a second item with containerPort 8443, protocol TCP; the first is at manifests/web/v1.0.0/web.yaml:15
      16 |             - {name: b, containerPort: 8443, protocol: TCP}
         |               ^^^^^
      object: Deployment.apps/web/web
      hint: server-side apply refuses duplicates; remove one of them
    --- stderr
    3 errors, 1 warning in 2 environments
    ");
}

#[test]
fn json_is_for_programs() {
    let run = folder().run(&["lint", "blue", "-o", "json"]);
    assert_eq!((run.code, run.stderr.as_str()), (3, ""));
    assert!(!run.stdout.contains("hunter2"));
    let report: Value = serde_json::from_str(&run.stdout).unwrap();
    assert_eq!(report["format"], 1);
    assert_eq!(report["environments"], serde_json::json!(["blue"]));
    assert_eq!(
        report["summary"],
        serde_json::json!({"errors": 3, "warnings": 1, "notes": 0})
    );
    let unknown = &report["findings"][1];
    assert_eq!(
        unknown["place"],
        serde_json::json!({"file": "manifests/web/v1.0.0/web.yaml", "line": 6})
    );
    assert_eq!(unknown["column"], 3);
    assert_eq!(unknown["code"], "unknown-field");
    assert_eq!(unknown["severity"], "error");
    let schema: Value =
        serde_json::from_str(include_str!("../../../docs/schemas/lint.json")).unwrap();
    let errors: Vec<String> = jsonschema::validator_for(&schema)
        .unwrap()
        .iter_errors(&report)
        .map(|error| error.to_string())
        .collect();
    assert_eq!(errors, Vec::<String>::new());
}

#[test]
fn sarif_is_for_code_hosts() {
    let folder = folder();
    folder.write("manifests/web/v1.0.0/a file.yaml", "kind: [\n");
    let run = folder.run(&["lint", "-o", "sarif"]);
    assert_eq!((run.code, run.stderr.as_str()), (3, ""));
    assert!(!run.stdout.contains("hunter2"));
    let log: Value = serde_json::from_str(&run.stdout).unwrap();
    let schema: Value = serde_json::from_str(include_str!("sarif.schema.json")).unwrap();
    let errors: Vec<String> = jsonschema::validator_for(&schema)
        .unwrap()
        .iter_errors(&log)
        .map(|error| format!("{}: {error}", error.instance_path()))
        .collect();
    assert_eq!(errors, Vec::<String>::new());

    let found = &log["runs"][0];
    let results = found["results"].as_array().unwrap();
    for result in results {
        let index = usize::try_from(result["ruleIndex"].as_u64().unwrap()).unwrap();
        let rule = &found["tool"]["driver"]["rules"][index];
        assert_eq!(rule["id"], result["ruleId"]);
    }
    let of = |file: &str| -> Vec<String> {
        results
            .iter()
            .filter(|result| {
                let place = &result["locations"][0]["physicalLocation"];
                place["artifactLocation"]["uri"]
                    .as_str()
                    .unwrap()
                    .ends_with(file)
            })
            .map(|result| {
                let region = &result["locations"][0]["physicalLocation"]["region"];
                format!(
                    "{}:{} {} {}: {}",
                    region["startLine"],
                    region["startColumn"],
                    result["level"].as_str().unwrap(),
                    result["ruleId"].as_str().unwrap(),
                    result["message"]["text"].as_str().unwrap()
                )
            })
            .collect()
    };
    assert!(
        of("v1.0.0/web.yaml").contains(
            &"6:3 error unknown-field: Deployment.apps/web/web: `spec.replicsa` is not a field of \
              Deployment\nhint: did you mean `replicas`?"
                .to_owned()
        ),
        "{}",
        run.stdout
    );
    assert_eq!(of("v1.0.0/a%20file.yaml").len(), 1, "{}", run.stdout);
}

#[test]
fn what_has_no_place_is_shown_at_the_repository() {
    let folder = Folder::with(&[(
        "pleach.yaml",
        "apiVersion: pleach.dev/v1alpha1\nkind: Repository\nid: fleet\n",
    )]);
    let run = folder.run(&["lint", "-o", "sarif"]);
    assert_eq!(run.code, 3);
    let log: Value = serde_json::from_str(&run.stdout).unwrap();
    let result = &log["runs"][0]["results"][0];
    assert_eq!(result["ruleId"], "unknown-environment");
    assert_eq!(
        result["locations"][0]["physicalLocation"]["artifactLocation"]["uri"],
        "pleach.yaml"
    );
}

#[test]
fn one_cluster_has_one_environment_for_an_object() {
    let folder = folder();
    let green = folder
        .read("environments/green.yaml")
        .replace("id: b", "id: a");
    folder.write("environments/green.yaml", &green);
    let run = folder.run(&["lint"]);
    assert!(
        run.stdout.contains(
            "error: environments blue and green both contain the object on cluster a; blue has it \
             at manifests/web/v1.0.0/web.yaml:1\n"
        ),
        "{}",
        run.stdout
    );
}

#[test]
fn a_release_is_not_an_environment() {
    let run = folder().run(&["lint", "blue/web"]);
    assert_eq!(run.code, 2);
    assert!(run.stderr.contains("lint checks whole environments"));
}

#[test]
fn the_repository_of_the_project_is_clean() {
    let folder = Folder::new();
    let root = env!("CARGO_MANIFEST_DIR");
    let run = folder.run(&["lint", "--repo", root, "-o", "json"]);
    let report: Value = serde_json::from_str(&run.stdout).unwrap();
    let findings = report["findings"].as_array().unwrap().iter();
    let warnings: Vec<&Value> = findings
        .filter(|finding| finding["severity"] == "warning")
        .map(|finding| &finding["message"])
        .collect();
    // Users create the accounts of branches, and the Secret with the credentials of their
    // repository.
    let expected = [
        "no manifest of the environment creates namespace deployers, so it must exist already",
        "the pods need Secret/pleach/git, which is in no manifest of the environment",
    ];
    assert_eq!(run.code, 0, "{report:#}");
    assert_eq!(warnings, expected, "{report:#}");
}

#[test]
fn a_missing_reference_is_a_warning_at_its_line() {
    let folder = folder();
    folder.write(
        "manifests/web/v1.0.0/web.yaml",
        "\
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: web}
roleRef:
  apiGroup: rbac.authorization.k8s.io
  kind: Role
  name: web
subjects:
  - {kind: ServiceAccount, name: web}
",
    );
    folder.write("manifests/web/v1.0.0/secret.yaml.j2", "");
    assert_snapshot!(folder.run(&["lint"]).shown(), @r"
    exit: 0
    --- stdout
    manifests/web/v1.0.0/web.yaml:7: warning: the binding refers to Role.rbac.authorization.k8s.io/web/web, which is in no manifest of the environment
      7 |   name: web
        |   ^^^^
      object: RoleBinding.rbac.authorization.k8s.io/web/web
    manifests/web/v1.0.0/web.yaml:9: warning: the binding refers to ServiceAccount/web/web, which is in no manifest of the environment
      9 |   - {kind: ServiceAccount, name: web}
        |                            ^^^^
      object: RoleBinding.rbac.authorization.k8s.io/web/web
    --- stderr
    2 warnings in 2 environments
    ");
}

#[test]
fn plan_and_apply_refuse_what_the_api_server_would() {
    let folder = folder();
    for arguments in [&["plan", "blue"][..], &["apply", "blue/web", "--yes"]] {
        let run = folder.run(arguments);
        assert_eq!((run.code, run.stdout.as_str()), (3, ""), "{}", run.shown());
        for words in [
            "manifests/web/v1.0.0/web.yaml:6: error: `spec.replicsa` is not a field of Deployment",
            "manifests/web/v1.0.0/secret.yaml.j2:4: error: `stringDat` is not a field of Secret",
            "the API server would refuse blue",
            ": 3 errors",
        ] {
            assert!(run.stderr.contains(words), "{words}: {}", run.shown());
        }
        assert!(!run.stderr.contains("hunter2"), "{}", run.shown());
    }
    // The tables of another minor version are not used.
    let blue = folder
        .read("environments/blue.yaml")
        .replace("1.36", "1.99");
    folder.write("environments/blue.yaml", &blue);
    let run = folder.run(&["plan", "blue"]);
    assert!(!run.stderr.contains("would refuse"), "{}", run.shown());
    assert_ne!(run.code, 0, "{}", run.shown());
}
