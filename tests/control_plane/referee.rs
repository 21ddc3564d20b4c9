//! A release that the real helm installed from a chart, adopted with the same chart. `make interop`
//! builds the programs and runs the ignored test.

use std::path::PathBuf;
use std::process::Command;

use serde_json::{Value, json};

use crate::fleet::{Fleet, PLANTED, owners};

const HEADER: &str = "apiVersion: pleach.dev/v1alpha1\nkind";
const NAME: &str = "referee-helm";
const CRD: &str = "apiVersion: apiextensions.k8s.io/v1\nkind: CustomResourceDefinition\nmetadata: {name: cogs.referee.example.org}\nspec:\n  group: referee.example.org\n  names: {kind: Cog, plural: cogs}\n  scope: Namespaced\n  versions: [{name: v1, served: true, storage: true, schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}}]\n";
const HELPERS: &str = "{{- define \"labels\" -}}\nhelm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}\napp.kubernetes.io/managed-by: {{ .Release.Service }}\napp.kubernetes.io/instance: {{ .Release.Name }}\n{{- end -}}\n";
const TEMPLATE: &str = "\
apiVersion: apps/v1
kind: Deployment
metadata:
  name: {{ .Release.Name }}
  labels: {{- include \"labels\" . | nindent 4 }}
spec:
  replicas: 0
  selector: {matchLabels: {app: {{ .Release.Name }}}}
  template:
    metadata: {labels: {app: {{ .Release.Name }}}}
    spec:
      containers:
      - name: main
        image: {{ .Values.image }}
        ports: [{containerPort: 8080}]
        resources: {limits: {memory: 1Gi}}
---
apiVersion: v1
kind: Service
metadata:
  name: {{ .Release.Name }}
  labels: {{- include \"labels\" . | nindent 4 }}
spec:
  selector: {app: {{ .Release.Name }}}
  ports: [{port: 80, targetPort: 8080}]
---
apiVersion: v1
kind: Secret
metadata: {name: {{ .Release.Name }}}
stringData: {password: {{ .Values.password }}}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: {{ .Release.Name }}, annotations: {helm.sh/resource-policy: keep}}
data: {color: {{ .Values.color }}}
---
apiVersion: referee.example.org/v1
kind: Cog
metadata: {name: {{ .Release.Name }}}
spec: {size: 1}
";
const HOOK: &str = "apiVersion: batch/v1\nkind: Job\nmetadata: {name: migrate, annotations: {helm.sh/hook: 'pre-install,pre-upgrade'}}\nspec:\n  completions: 0\n  template: {spec: {restartPolicy: Never, containers: [{name: c, image: shop:1}]}}\n";
const OBJECTS: [&str; 5] = [
    "deployment/shop",
    "service/shop",
    "secret/shop",
    "configmap/shop",
    "cog/shop",
];

#[expect(clippy::disallowed_methods, reason = "make names the programs")]
fn variable(name: &str) -> String {
    std::env::var(name).expect("make interop names the programs")
}

/// Runs helm and returns its output.
fn helm(fleet: &Fleet, arguments: &[&str]) -> String {
    let program = PathBuf::from(variable("PLEACH_REFEREES")).join("helm");
    let mut command = Command::new(program);
    command
        .env_clear()
        .env("HOME", fleet.repo.path().join(".git"))
        .env("KUBECONFIG", fleet.server())
        .current_dir(fleet.repo.path())
        .args(arguments)
        .args(["--namespace", NAME]);
    let output = command.output().unwrap();
    assert!(output.status.success(), "{arguments:?}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// Parts of an object that adoption must not change. The generation of a Deployment also counts
/// changes of annotations.
fn content(object: &Value) -> Value {
    let part = |name: &str| object[name].clone();
    json!([
        object["metadata"]["uid"],
        part("spec"),
        part("data"),
        part("type")
    ])
}

#[test]
#[ignore = "needs helm and pleach-engines: make interop"]
fn a_release_of_helm_is_adopted_with_its_chart() {
    let release = format!("  - {{name: shop, bundle: shop, namespace: {NAME}}}\n");
    let bundle = format!("{HEADER}: Bundle\ncharts: [{{path: chart}}]\nvalues: {{color: red}}\n");
    let values = format!("image: shop:1\npassword: {PLANTED}\ncolor: none\n");
    let mut fleet = Fleet::new(
        NAME,
        &release,
        &[
            ("manifests/shop/bundle.yaml", &*bundle),
            (
                "manifests/shop/chart/Chart.yaml",
                "apiVersion: v2\nname: shop\nversion: 1.0.0\n",
            ),
            ("manifests/shop/chart/values.yaml", &values),
            ("manifests/shop/chart/crds/cogs.yaml", CRD),
            ("manifests/shop/chart/templates/_helpers.tpl", HELPERS),
            ("manifests/shop/chart/templates/shop.yaml", TEMPLATE),
            ("manifests/shop/chart/templates/job.yaml", HOOK),
        ],
    );
    fleet.set_variable("PLEACH_ENGINES", &variable("PLEACH_ENGINES"));
    fleet.create_namespace(NAME);
    let chart = ["shop", "manifests/shop/chart", "--set", "color=red"];
    helm(&fleet, &[&["install"], &chart[..]].concat());
    helm(&fleet, &[&["upgrade"], &chart[..]].concat());
    let live = || {
        OBJECTS.map(|object| {
            let object = fleet.get(&["-n", NAME, object]);
            object.expect("helm installed it")
        })
    };
    let crd = || fleet.get(&["crd/cogs.referee.example.org"]).unwrap();
    let (before, crd_before) = (live().map(|object| content(&object)), content(&crd()));

    fleet
        .writes_nothing(|fleet| fleet.apply().ended_with(7))
        .says(&format!("Helm (release {NAME}/shop) installed it"));
    fleet.edit_environment("bundle: shop,", "bundle: shop, adopt: [helm],");
    fleet.commit();
    let records = "secret/sh.helm.release.v1.shop.v1 secret/sh.helm.release.v1.shop.v2";
    // It is unknown whether the Job of a hook ran for this release.
    fleet
        .writes_nothing(|fleet| fleet.apply().ended_with(7))
        .says("delete it, or rename the Job in git: either way it runs again");
    fleet.kubectl(&["-n", NAME, "delete", "job", "migrate"]);
    let run = fleet
        .applied()
        .says(&format!(
            "Helm still has a record of release {NAME}/shop ({} in namespace {NAME})",
            records.replace(' ', ", ")
        ))
        .says(&format!("`kubectl -n {NAME} delete {records}`"));
    assert!(!run.stdout.contains("recreate"), "{}", run.shown());

    assert_eq!(live().map(|object| content(&object)), before);
    assert_eq!(content(&crd()), crd_before);
    for object in live().iter().chain([&crd()]) {
        let metadata = &object["metadata"];
        let kind = &object["kind"];
        assert_eq!(
            owners(object)[0],
            format!("pleach/{NAME}.shop Apply"),
            "{kind}: {:?}",
            owners(object)
        );
        let marks = metadata["annotations"].to_string();
        assert!(!marks.contains("meta.helm.sh"), "{kind}: {marks}");
        let owners = owners(object);
        assert!(
            !owners.iter().any(|one| one.starts_with("helm")),
            "{owners:?}"
        );
        assert_eq!(
            metadata["labels"]["app.kubernetes.io/managed-by"], "pleach",
            "{kind}"
        );
    }
    assert!(fleet.exists(&["-n", NAME, "job", "migrate"]));
    // Helm still knows the release, until its record is deleted as the plan says.
    assert!(helm(&fleet, &["list", "--short"]).contains("shop"));
    let delete: Vec<&str> = records.split(' ').collect();
    fleet.kubectl(&[&["-n", NAME, "delete"], &delete[..]].concat());
    assert_eq!(helm(&fleet, &["list", "--short"]).trim(), "");
    fleet.diff().ended_with(0);
    fleet.writes_nothing(Fleet::applied);
}
