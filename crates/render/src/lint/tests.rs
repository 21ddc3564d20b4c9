mod overlays;
mod references;
mod server;

use rstest::rstest;
use semver::Version;

use super::*;
use pleach_model::finding::overridable::OVERRIDABLE;
use pleach_model::tree::MemoryTree;

/// Lints environment `dev` with a release `web` of these manifests.
fn lint(manifests: &[(&str, &str)]) -> Linted {
    lint_with("", "", manifests)
}

/// Also appends text to the environment file and to the bundle file.
fn lint_with(environment: &str, bundle: &str, manifests: &[(&str, &str)]) -> Linted {
    let mut files = vec![
        (
            "pleach.yaml".to_owned(),
            "apiVersion: pleach.dev/v1alpha1\nkind: Repository\nid: fleet\n".to_owned(),
        ),
        (
            "environments/dev.yaml".to_owned(),
            format!(
                "apiVersion: pleach.dev/v1alpha1\nkind: Environment\n\
                 cluster: {{id: c1, kubernetes: \"1.36\"}}\n\
                 releases:\n  - bundle: web\n    version: v1.0.0\n    namespace: shop\n{environment}"
            ),
        ),
        (
            "manifests/web/bundle.yaml".to_owned(),
            format!("apiVersion: pleach.dev/v1alpha1\nkind: Bundle\n{bundle}"),
        ),
    ];
    for (name, text) in manifests {
        files.push((format!("manifests/web/v1.0.0/{name}"), (*text).to_owned()));
    }
    let tree = MemoryTree::new(files);
    let environment = pleach_config::resolve(&tree, "dev", &Version::new(0, 1, 0))
        .unwrap_or_else(|findings| panic!("{findings:#?}"));
    let table = KindTable::for_minor("1.36").unwrap();
    super::environment(&tree, &environment, &table)
}

/// Formats findings as `line:column code: message (hint)`, without the release folder.
fn shown(linted: &Linted) -> Vec<String> {
    linted
        .findings
        .iter()
        .map(|finding| {
            let place = finding.place.as_ref().unwrap();
            let file = place.file.rsplit('/').next().unwrap();
            let column = finding.column.map_or_else(String::new, |c| format!(":{c}"));
            let hint = finding
                .hint
                .as_ref()
                .map_or_else(String::new, |hint| format!(" ({hint})"));
            assert!(meaning(&finding.code).is_some(), "{}", finding.code);
            format!(
                "{file}:{}{column} {}: {}{hint}",
                place.line, finding.code, finding.message
            )
        })
        .collect()
}

fn check(manifest: &str, expected: &[&str]) {
    assert_eq!(shown(&lint(&[("a.yaml", manifest)])), expected);
}

const DEPLOYMENT: &str = "\
apiVersion: apps/v1
kind: Deployment
metadata:
  name: web
spec:
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      containers:
        - name: web
          image: web
";

#[test]
fn a_valid_bundle_has_no_findings() {
    check(DEPLOYMENT, &[]);
}

#[test]
fn unknown_fields_are_found_where_they_are_written() {
    check(
        &format!("{DEPLOYMENT}          imagePullPolcy: Always\n"),
        &[
            "a.yaml:13:11 unknown-field: `spec.template.spec.containers[0].imagePullPolcy` is not a \
           field of Deployment (did you mean `imagePullPolicy`?)",
        ],
    );
    // The field belongs to another part of the kind.
    check(
        &DEPLOYMENT.replace("  template:", "  initContainers: []\n  template:"),
        &[
            "a.yaml:7:3 unknown-field: `spec.initContainers` is not a field of Deployment \
           (`initContainers` is a field of `spec.template.spec`)",
        ],
    );
}

#[test]
fn origins_are_exact_under_anchors_and_in_lists() {
    check(
        "\
apiVersion: v1
kind: List
items:
  - apiVersion: v1
    kind: Pod
    metadata: {name: a}
    spec:
      containers:
        - &c
          name: a
          imgae: x
        - <<: *c
          name: b
",
        &[
            "a.yaml:11:11 unknown-field: `spec.containers[0].imgae` is not a field of Pod (did you \
             mean `image`?)",
            "a.yaml:11:11 unknown-field: `spec.containers[1].imgae` is not a field of Pod (did you \
             mean `image`?)",
        ],
    );
}

#[test]
fn templates_are_pointed_at_by_line() {
    let template = "\
{% if true %}
# comment
{% endif %}
apiVersion: v1
kind: ConfigMap
metadata:
  name: {{ release.name }}
dta: {}
";
    assert_eq!(
        shown(&lint(&[("a.yaml.j2", template)])),
        ["a.yaml.j2:8 unknown-field: `dta` is not a field of ConfigMap (did you mean `data`?)"]
    );
}

#[test]
fn types_are_checked_like_the_server() {
    let deployment = DEPLOYMENT.replace(
        "  selector:",
        "  replicas: \"3\"\n  paused: 'true'\n  minReadySeconds: 1.5\n  selector:",
    ) + "          resources: {limits: {cpu: 1, memory: 1Gib}}\n          args: {a: b}\n          \
         command: [sleep, 1]\n          ports: [{containerPort: 80, protocol: tcp}]\n";
    check(
        &deployment,
        &[
            "a.yaml:6:3 wrong-type: `spec.replicas`: expected an integer, found a string (remove \
             the quotes)",
            "a.yaml:7:3 wrong-type: `spec.paused`: expected true or false, found a string (remove \
             the quotes)",
            "a.yaml:8:3 wrong-type: `spec.minReadySeconds`: expected an integer, found a number",
            "a.yaml:16:40 wrong-type: `spec.template.spec.containers[0].resources.limits.memory`: \
             expected a quantity such as `500m` or `2Gi`, found another string",
            "a.yaml:17:11 wrong-type: `spec.template.spec.containers[0].args`: expected a list, \
             found a map (begin each item with `- `)",
            "a.yaml:18:28 wrong-type: `spec.template.spec.containers[0].command[1]`: expected a \
             string, found a number (put it in quotes)",
            "a.yaml:19:39 invalid-value: the value of \
             `spec.template.spec.containers[0].ports[0].protocol` is not allowed (did you mean `TCP`?)",
        ],
    );
    check(
        "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\ndata:\n  port: 80\nbinaryData: {a: '%'}\n",
        &[
            "a.yaml:5:3 wrong-type: `data.port`: expected a string, found a number (put it in quotes)",
            "a.yaml:6:14 wrong-type: `binaryData.a`: expected base64, found another string",
        ],
    );
}

#[test]
fn items_with_the_same_keys_are_refused() {
    let twice = format!(
        "{DEPLOYMENT}          ports:
            - {{name: a, containerPort: 8443, protocol: TCP}}
            - {{name: b, containerPort: 8443}}
            - {{name: c, containerPort: 8443, protocol: UDP}}
          env:
            - {{name: A, value: x}}
            - {{name: A, value: v}}
            - {{value: z}}
"
    );
    let expected = [
        "a.yaml:15:15 duplicate-item: `spec.template.spec.containers[0].ports` has a second item \
         with containerPort 8443, protocol TCP; the first is at manifests/web/v1.0.0/a.yaml:14 \
         (server-side apply refuses duplicates; remove one of them)",
        "a.yaml:19:15 duplicate-item: `spec.template.spec.containers[0].env` has a second item \
         with name A; the first is at manifests/web/v1.0.0/a.yaml:18 (server-side apply refuses \
         duplicates; remove one of them)",
        "a.yaml:20:15 missing-field: spec.template.spec.containers[0].env[2] needs the field \
         `name`, which identifies the items of the list",
    ];
    check(&twice, &expected);
    // A patch removes the first duplicate.
    let patch = "patches:\n  - target: {kind: Deployment}\n    json: [{op: remove, path: \
                 /spec/template/spec/containers/0/ports/0}]\n";
    let linted = lint_with("", patch, &[("a.yaml", &twice)]);
    assert_eq!(shown(&linted), expected[1..]);
}

#[test]
fn a_field_that_a_patch_brings_is_at_the_object() {
    let patch = "patches:\n  - target: {kind: Deployment}\n    merge: {spec: {replcas: 3}}\n";
    let linted = lint_with("", patch, &[("a.yaml", DEPLOYMENT)]);
    assert_eq!(
        shown(&linted),
        [
            "a.yaml:1 unknown-field: `spec.replcas` is not a field of Deployment (did you mean \
          `replicas`?)"
        ]
    );
}

const CRD: &str = "\
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: foos.example.org}
spec:
  group: example.org
  scope: Namespaced
  names: {kind: Foo, plural: foos, singular: foo, listKind: FooList}
  versions:
    - name: v1
      served: true
      storage: true
      schema:
        openAPIV3Schema:
          type: object
          required: [spec]
          properties:
            spec:
              type: object
              required: [size]
              properties:
                size: {type: integer}
                mode: {type: string, enum: [fast, safe]}
                any: {type: object, x-kubernetes-preserve-unknown-fields: true}
";

#[test]
fn custom_resources_are_checked_by_their_crd() {
    let linted = lint(&[
        ("a.yaml", CRD),
        (
            "b.yaml",
            "apiVersion: example.org/v1\nkind: Foo\nmetadata: {name: a}\nspec:\n  sizee: 1\n  mode: slow\n  any: {x: 1}\n---\napiVersion: example.org/v1\nkind: Foo\nmetadata: {name: b}\n",
        ),
    ]);
    assert_eq!(
        shown(&linted),
        [
            "b.yaml:4:1 missing-field: spec needs the field `size`",
            "b.yaml:5:3 unknown-field: `spec.sizee` is not a field of Foo (did you mean `size`?)",
            "b.yaml:6:3 invalid-value: the value of `spec.mode` is not allowed (allowed values: \
             fast, safe)",
            "b.yaml:9 missing-field: the object needs the field `spec`",
        ]
    );
}

#[test]
fn a_removed_version_is_reported_with_its_replacement() {
    check(
        "apiVersion: policy/v1beta1\nkind: PodDisruptionBudget\nmetadata: {name: a}\n",
        &[
            "a.yaml:1 api-not-served: PodDisruptionBudget a (policy/v1beta1) is not served by \
           Kubernetes 1.36: it was removed in 1.25 (PodDisruptionBudget is served as policy/v1)",
        ],
    );
}

#[test]
fn replicas_of_an_autoscaled_workload_are_reported() {
    let scaler = "---
apiVersion: autoscaling/v2
kind: HorizontalPodAutoscaler
metadata: {name: web}
spec: {maxReplicas: 3, scaleTargetRef: {apiVersion: apps/v1, kind: Deployment, name: web}}
";
    check(&format!("{DEPLOYMENT}{scaler}"), &[]);
    let fixed = DEPLOYMENT.replace("  selector:", "  replicas: 3\n  selector:");
    check(
        &format!("{fixed}{scaler}"),
        &["a.yaml:6:3 autoscaled-field: \
           HorizontalPodAutoscaler.autoscaling/shop/web at manifests/web/v1.0.0/a.yaml:15 controls \
           `spec.replicas` (omit `replicas` in the manifest)"],
    );
}

#[test]
fn a_suspended_job_that_runs_once_is_never_ready() {
    let job = "---
apiVersion: batch/v1
kind: Job
metadata: {name: once, annotations: {pleach.dev/run: once}}
spec:
  suspend: true
  template: {spec: {restartPolicy: Never, containers: [{name: a, image: a}]}}
";
    let paused = DEPLOYMENT.replace("  selector:", "  paused: true\n  selector:");
    let linted = lint(&[("a.yaml", format!("{paused}{job}").as_str())]);
    let shown: Vec<(&str, &str)> = linted
        .findings
        .iter()
        .filter(|finding| finding.code == "never-ready")
        .map(|finding| {
            let object = finding.object.as_ref().unwrap();
            (object.kind.as_str(), finding.message.as_str())
        })
        .collect();
    assert_eq!(
        shown,
        [(
            "Job",
            "`suspend: true` in git: the Job does not run, and an apply waits for it until the timeout, unless another client resumes it"
        )]
    );
    let resumed = job.replace("true", "false");
    let repeated = job.replace(", annotations: {pleach.dev/run: once}", "");
    for fixed in [resumed, repeated] {
        let linted = lint(&[("a.yaml", fixed.as_str())]);
        assert!(linted.findings.iter().all(|one| one.code != "never-ready"));
    }
}

#[test]
fn entries_that_are_about_nothing_are_found() {
    let linted = lint_with(
        "\
consent:
  - {action: delete, kind: Deployment, name: web, release: web, from: v0.9.0, to: v1.0.0}
  - {action: prune, count: 9, release: web, from: v0.8.0, to: v0.9.0}
  - {action: recreate, kind: StatefulSet, name: db, release: web, from: v0.9.0, to: v1.0.0, propagation: Orphan}
  - {action: recreate, kind: Deployment, name: web, release: web, from: v0.9.0, to: v1.0.0}
  - {action: override, check: wel, release: web, from: v0.9.0, to: v1.0.0, reason: r}
  - {action: override, check: well, release: web, from: v0.9.0, to: v1.0.0, reason: r}
  - {action: override, check: field-in-use, kind: CustomResourceDefinition, name: a.b, release: web, from: v0.9.0, to: v1.0.0, reason: r}
  - {action: override, check: backend-removed, kind: Service, name: web, release: web, from: v0.9.0, to: v1.0.0, reason: r}
  - {action: delete, kind: Deployment, name: web, release: web, from: v1.0.0}
",
        "kubernetes: '>=1.37'\nchecks: [{name: well, forEach: {kind: Node}, require: item.spec.a == 1}]\n",
        &[("a.yaml", DEPLOYMENT)],
    );
    assert_eq!(
        shown(&linted),
        [
            "dev.yaml:5 kubernetes-range: bundle web is for Kubernetes >=1.37, but the cluster \
             has 1.36 (apply refuses to install it there)",
            "dev.yaml:9 unused-consent: the consent is to delete Deployment.apps/shop/web, which \
             release web still contains (remove the consent, or remove the object from the manifests)",
            "dev.yaml:10 unused-consent: the consent is for v0.9.0, but release web is at v1.0.0 \
             (remove it after that upgrade)",
            "dev.yaml:11 unused-consent: the consent is to recreate StatefulSet db, which no \
             manifest of release web contains (correct the name, or remove the consent)",
            "dev.yaml:13 unused-consent: the consent is to override check wel, which the bundle \
             of release web does not have (did you mean `well`?)",
        ]
    );
}

#[test]
fn every_rule_of_the_planner_that_can_be_overridden_is_known() {
    for rule in OVERRIDABLE {
        let consent = format!(
            "consent: [{{action: override, check: {rule}, kind: Kind, name: a, release: web, \
             from: v0.9.0, to: v1.0.0, reason: r}}]\n"
        );
        let linted = lint_with(&consent, "", &[("a.yaml", DEPLOYMENT)]);
        assert_eq!(shown(&linted), [""; 0], "{rule}");
    }
}

#[rstest]
#[case::misspelled(
    "kubctl",
    Some("which is not a known family of field managers (did you mean `kubectl`?)")
)]
#[case::spelled_otherwise(
    "Argo-CD",
    Some("which is not a known family of field managers (did you mean `argocd`?)")
)]
#[case::with_its_surname(
    "FluxCD",
    Some("which is not a known family of field managers (did you mean `flux`?)")
)]
#[case::covered("kubectl, kubectl-edit", Some("which kubectl covers (remove it)"))]
#[case::our_own(
    "pleach-overlay",
    Some("field managers of pleach itself need no consent (remove it)")
)]
#[case::twice("flux, flux", Some("more than once (remove it)"))]
#[case::a_manager("kubelet", None)]
#[case::a_program_of_a_family("helm-controller", None)]
#[case::a_family("Helm, argocd", None)]
fn adoption_of_impossible_owners_is_reported(#[case] adopt: &str, #[case] message: Option<&str>) {
    let release = format!(
        "  - {{name: two, bundle: web, version: v1.0.0, namespace: two, adopt: [{adopt}]}}\n"
    );
    let mut found = shown(&lint_with(&release, "", &[("a.yaml", DEPLOYMENT)]));
    found.retain(|line| line.contains("unused-adopt"));
    assert_eq!(found.is_empty(), message.is_none(), "{found:?}");
    let message = message.unwrap_or_default();
    assert!(
        found
            .iter()
            .all(|line| line.starts_with("dev.yaml:8 ") && line.ends_with(message)),
        "{found:?}"
    );
}

#[test]
fn a_rollback_to_an_undesired_version_is_stale() {
    let found = |entry: &str| {
        shown(&lint_with(
            &format!("    rollback: {entry}\n"),
            "",
            &[("a.yaml", DEPLOYMENT)],
        ))
    };
    assert_eq!(found("{from: v1.1.0, to: v1.0.0}"), [""; 0]);
    assert_eq!(
        found("{from: v1.0.0, to: v0.9.0}"),
        [
            "dev.yaml:8 unused-rollback: the rollback is to v0.9.0, but release web is at v1.0.0 \
             (remove it after the rollback)"
        ]
    );
}

#[test]
fn two_environments_of_a_cluster_cannot_have_one_object() {
    let one = lint(&[("a.yaml", DEPLOYMENT)]);
    let mut two = one.clone();
    two.environment = "prod".to_owned();
    let findings = across(&[one.clone(), two.clone()]);
    assert_eq!(findings.len(), 1);
    assert_eq!(
        findings[0].to_string(),
        "manifests/web/v1.0.0/a.yaml:1: Deployment.apps/shop/web: environments dev and prod both \
         contain the object on cluster c1; dev has it at manifests/web/v1.0.0/a.yaml:1"
    );
    two.cluster = Some("c2".to_owned());
    assert_eq!(across(&[one.clone(), two.clone()]), []);
    two.cluster = None;
    assert_eq!(across(&[one, two]), []);
}

#[test]
fn values_of_secrets_are_in_no_finding() {
    let linted = lint(&[(
        "a.yaml",
        "apiVersion: v1\nkind: Secret\nmetadata: {name: a}\ndata: {a: aHVudGVyMg==}\nimmutable: hunter2\ntipe: hunter2\n",
    )]);
    let codes: Vec<&str> = linted.findings.iter().map(|f| f.code.as_str()).collect();
    assert_eq!(codes, ["wrong-type", "unknown-field"]);
    let text = format!("{linted:?}");
    assert!(!text.contains("hunter2") && !text.contains("aHVudGVyMg"));
}

#[test]
fn the_line_of_a_secret_field_is_not_pointed_at() {
    let linted = lint_with(
        "",
        "secretFields: [{kind: ConfigMap, name: legacy, fields: [data.password]}]\n",
        &[(
            "a.yaml",
            "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: legacy}\ndata:\n  password: 4711\n",
        )],
    );
    assert_eq!(
        shown(&linted),
        [
            "a.yaml:1 wrong-type: `data.password`: expected a string, found a number (put it in quotes)"
        ]
    );
}

/// Lints a bundle that declares `replicas`, `image` and the open map `labels`.
fn check_values(values: &str, template: &str, expected: &[&str]) {
    let environment = format!("    values: {values}\n");
    let bundle = "values: {replicas: 2, image: {tag: a}, labels: {}}\n";
    let template = format!(
        "apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: web}}\ndata: {{a: \"{template}\"}}\n"
    );
    let linted = lint_with(&environment, bundle, &[("a.yaml.j2", &template)]);
    assert_eq!(shown(&linted), expected, "{values} {template}");
}

#[test]
fn an_unused_value_is_reported() {
    let read = "{{ values.replicas }}{{ values.image.tag }}";
    check_values(
        "{replica: 1}",
        read,
        &[
            "dev.yaml:8 unused-value: bundle web neither declares `replica` nor reads it in a template (did you mean `replicas`?)",
        ],
    );
    check_values(
        "{image: {tags: b}}",
        read,
        &[
            "dev.yaml:8 unused-value: bundle web neither declares `image.tags` nor reads it in a template (did you mean `tag`?)",
        ],
    );
    check_values(
        "{colours: {sky: blue}}",
        read,
        &[
            "dev.yaml:8 unused-value: bundle web neither declares `colours` nor reads it in a template (remove it, or declare it in the `values` of the bundle)",
        ],
    );
    // Declared, in an open map, read by name, or read together with the enclosing map.
    check_values("{replicas: 3, labels: {team: a}}", read, &[]);
    check_values("{extra: 1}", "{{ values.extra }}", &[]);
    check_values(
        "{extra: 1}",
        "{{ values | tojson | replace('\\\"', '') }}",
        &[],
    );
    check_values(
        "{image: {tags: b}}",
        "{% for key in values.image %}{{ key }}{% endfor %}",
        &[],
    );
}

#[test]
fn a_chart_uses_the_values_of_its_release() {
    let environment = "    values: {size: 3}\n";
    let bundle = "charts: [{path: chart}]\n";
    let linted = lint_with(environment, bundle, &[("chart/Chart.yaml", "name: web\n")]);
    let shown = shown(&linted);
    assert!(
        shown[0].starts_with("bundle.yaml:3 engines-missing: "),
        "{shown:?}"
    );
    assert_eq!(shown.len(), 1, "{shown:?}");
}
