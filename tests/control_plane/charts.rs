//! A platform of charts and an overlay that the real `pleach-engines` renders. `make test-engines`
//! builds the program and runs the ignored test.

use crate::fleet::Fleet;

const KEYS: &str = include_str!("../fixtures/sops/keys.txt");
const VALUES: &str = include_str!("../fixtures/sops/values.yaml");
/// The encrypted value.
const PLANTED: &str = "planted-value-of-a-file";
const HEADER: &str = "apiVersion: pleach.dev/v1alpha1\nkind";

const CRD: &str = "apiVersion: apiextensions.k8s.io/v1\nkind: CustomResourceDefinition\nmetadata: {name: gears.charts.example.org}\nspec:\n  group: charts.example.org\n  names: {kind: Gear, plural: gears}\n  scope: Namespaced\n  versions: [{name: v1, served: true, storage: true, schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}}]\n";
const OPERATOR: &str = "{{ $found := lookup \"v1\" \"ConfigMap\" .Release.Namespace \"absent\" }}\napiVersion: apps/v1\nkind: Deployment\nmetadata: {name: {{ .Release.Name }}, labels: {found: {{ len $found | quote }}}}\nspec:\n  replicas: 0\n  selector: {matchLabels: {app: operator}}\n  template:\n    metadata: {labels: {app: operator}}\n    spec: {containers: [{name: c, image: {{ .Values.image }}}]}\n";
const SECRET: &str = "apiVersion: v1\nkind: Secret\nmetadata: {name: {{ .Release.Name }}}\nstringData: {password: {{ .Values.password }}}\n---\napiVersion: charts.example.org/v1\nkind: Gear\nmetadata: {name: {{ .Release.Name }}}\nspec: {size: {{ .Values.size }}}\n";
const JOB: &str = "apiVersion: batch/v1\nkind: Job\nmetadata: {name: migrate, annotations: {helm.sh/hook: pre-upgrade}}\nspec:\n  completions: 0\n  template: {spec: {restartPolicy: Never, containers: [{name: c, image: {{ .Values.image }}}]}}\n";

/// Writes a version of the platform: three charts with their values.
fn version(fleet: &Fleet, version: &str, image: &str) {
    let folder = format!("manifests/platform/{version}");
    for (path, text) in [
        (
            "version.yaml",
            &*format!(
                "{HEADER}: BundleVersion\ncharts:\n  - {{name: crds, path: charts/crds, values: image.yaml}}\n  - {{name: operator, path: charts/operator, values: image.yaml, lookups: accept}}\n  - {{name: web, path: charts/web, values: web.yaml.j2}}\nstages: [{{name: operators, select: [{{chart: operator}}], before: [workloads]}}]\n"
            ),
        ),
        ("image.yaml", &format!("image: {image}\n")),
        (
            "web.yaml.j2",
            &format!("image: {image}\nsize: 1\npassword: {{{{ values.database.password }}}}\n"),
        ),
        ("charts/crds/crds/gears.yaml", CRD),
        ("charts/operator/templates/operator.yaml", OPERATOR),
        ("charts/web/templates/secret.yaml", SECRET),
        ("charts/web/templates/job.yaml", JOB),
    ] {
        fleet.write(&format!("{folder}/{path}"), text);
    }
    for chart in ["crds", "operator", "web"] {
        let text = format!("apiVersion: v2\nname: {chart}\nversion: 1.0.0\n");
        fleet.write(&format!("{folder}/charts/{chart}/Chart.yaml"), &text);
    }
}

#[test]
#[ignore = "make test-engines"]
#[expect(clippy::disallowed_methods, reason = "make names the program")]
fn a_platform_of_charts_is_upgraded_beside_an_overlay() {
    let name = "charts-platform";
    let releases = format!(
        "  - {{bundle: platform, version: v1.0.0, namespace: {name}}}\n  - {{bundle: overlay, namespace: {name}}}\nvaluesFrom: [secrets/values.yaml]\n"
    );
    let bundle = format!("{HEADER}: Bundle\n");
    let overlay =
        format!("{HEADER}: Bundle\nkustomize: {{path: overlays/one, bases: [manifests/base]}}\n");
    let mut fleet = Fleet::new(
        name,
        &releases,
        &[
            ("secrets/values.yaml", VALUES),
            ("manifests/platform/bundle.yaml", &bundle),
            ("manifests/overlay/bundle.yaml", &overlay),
            (
                "manifests/overlay/overlays/one/kustomization.yaml",
                "namePrefix: one-\nresources: [../../../base]\nconfigMapGenerator: [{name: made, literals: [k=v]}]\n",
            ),
            ("manifests/base/kustomization.yaml", "resources: [a.yaml]\n"),
            (
                "manifests/base/a.yaml",
                "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\ndata: {k: v}\n",
            ),
        ],
    );
    let engines = std::env::var("PLEACH_ENGINES").expect("make test-engines sets PLEACH_ENGINES");
    fleet.set_variable("PLEACH_ENGINES", &engines);
    version(&fleet, "v1.0.0", "operator:1");
    fleet.commit();
    fleet.create_namespace(name);
    // Without a key, nothing is applied.
    fleet.run(&["plan", name]).ended_with(3).says("no key fits");
    fleet.set_variable("SOPS_AGE_KEY", KEYS);

    fleet.applied();
    let field = |what: &[&str], path: &str| fleet.field(&[what, &["-n", name]].concat(), path);
    let image = "{.spec.template.spec.containers[0].image}";
    assert_eq!(field(&["deployment", "operator"], image), "operator:1");
    assert_eq!(
        field(&["deployment", "operator"], "{.metadata.labels.found}"),
        "0"
    );
    assert_eq!(
        field(&["gears.charts.example.org", "web"], "{.spec.size}"),
        "1"
    );
    assert_eq!(field(&["configmap", "one-a"], "{.data.k}"), "v");
    let password = field(&["secret", "web"], "{.data.password}");
    assert_eq!(password, "cGxhbnRlZC12YWx1ZS1vZi1hLWZpbGU=");
    let first = field(&["job", "migrate"], "{.metadata.uid}");
    fleet.writes_nothing(Fleet::applied);

    version(&fleet, "v1.1.0", "operator:2");
    fleet.edit_environment("v1.0.0", "v1.1.0");
    let plan = fleet.run(&["plan", name]).ended_with(0);
    assert!(!plan.stdout.contains(PLANTED), "{}", plan.shown());
    // The Job of the hook precedes the stage of the operator, which precedes the workloads.
    let stages = ["\nservices", "\noperators"].map(|stage| plan.stdout.find(stage));
    assert!(
        stages[0].is_some() && stages[0] < stages[1],
        "{}",
        plan.shown()
    );
    fleet.commit();
    fleet.applied();
    assert_eq!(field(&["deployment", "operator"], image), "operator:2");
    assert_ne!(field(&["job", "migrate"], "{.metadata.uid}"), first);
    assert_eq!(field(&["secret", "web"], "{.data.password}"), password);
    fleet.writes_nothing(Fleet::applied);
}
