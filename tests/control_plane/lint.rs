//! Lint refuses exactly the manifests that the API server refuses.
use pleach_model::finding::Finding;
use pleach_model::kinds::KindTable;
use pleach_model::tree::MemoryTree;
use pleach_render::lint;
use rstest::rstest;
use semver::Version;

use crate::{kubectl, shared};

/// Returns a Deployment whose only container has additional fields.
fn deployment(container: &str) -> String {
    format!(
        "apiVersion: apps/v1\nkind: Deployment\nmetadata: {{name: lint, namespace: default}}\n\
         spec:\n  selector: {{matchLabels: {{app: a}}}}\n  template:\n    metadata: {{labels: \
         {{app: a}}}}\n    spec:\n      containers:\n        - name: a\n          image: a\n          \
         {container}\n"
    )
}

fn config_map(fields: &str) -> String {
    format!(
        "apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: lint, namespace: default}}\n{fields}\n"
    )
}

fn service(fields: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Service\nmetadata: {{name: lint, namespace: default}}\nspec:\n  \
         selector: {{a: b}}\n  {fields}\n"
    )
}

fn binding(fields: &str) -> String {
    format!(
        "apiVersion: rbac.authorization.k8s.io/v1\nkind: RoleBinding\n\
         metadata: {{name: lint, namespace: default}}\n{fields}\n"
    )
}

fn errors(manifest: &str) -> Vec<String> {
    let tree = MemoryTree::new(
        [
            (
                "pleach.yaml",
                "apiVersion: pleach.dev/v1alpha1\nkind: Repository\nid: x\n",
            ),
            (
                "environments/a.yaml",
                "apiVersion: pleach.dev/v1alpha1\nkind: Environment\nreleases: [{bundle: b}]\n",
            ),
            (
                "manifests/b/bundle.yaml",
                "apiVersion: pleach.dev/v1alpha1\nkind: Bundle\n",
            ),
            ("manifests/b/x.yaml", manifest),
        ]
        .map(|(path, text)| (path, text.to_owned())),
    );
    let environment = pleach_config::resolve(&tree, "a", &Version::new(0, 1, 0)).unwrap();
    let (table, _) = KindTable::nearest(None);
    lint::environment(&tree, &environment, &table)
        .findings
        .iter()
        .filter(|finding| finding.is_error())
        .map(Finding::to_string)
        .collect()
}

/// Returns the server's refusal of a dry run with strict field validation.
#[expect(clippy::disallowed_methods, reason = "a file for kubectl")]
fn refusal(manifest: &str) -> Option<String> {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("a.yaml");
    std::fs::write(&file, manifest).unwrap();
    let file = file.to_str().unwrap();
    let arguments = [
        "apply",
        "--server-side",
        "--dry-run=server",
        "--validate=strict",
        "-f",
        file,
    ];
    let output = kubectl::run(shared().kubeconfig(), &arguments);
    (!output.status.success()).then(|| String::from_utf8(output.stderr).unwrap())
}

#[rstest]
#[case::unknown_field(config_map("dta: {}"))]
#[case::unknown_nested_field(deployment("imagePullPolcy: Always"))]
#[case::field_of_another_place(deployment("replicas: 1"))]
#[case::number_for_text(config_map("data: {a: 1}"))]
#[case::boolean_for_text(deployment("command: [a, yes]"))]
#[case::text_for_number(deployment("ports: [{containerPort: '80'}]"))]
#[case::text_for_boolean(config_map("immutable: 'true'"))]
#[case::map_for_list(deployment("args: {a: b}"))]
#[case::list_for_map(deployment("resources: []"))]
#[case::no_amount(deployment("resources: {limits: {memory: 1Gib}}"))]
#[case::no_base64(config_map("binaryData: {a: '%'}"))]
#[case::not_allowed(deployment("ports: [{containerPort: 80, protocol: tcp}]"))]
#[case::port_twice(deployment(
    "ports: [{containerPort: 80, name: a}, {containerPort: 80, protocol: TCP}]"
))]
#[case::variable_twice(deployment("env: [{name: A, value: a}, {name: A, value: b}]"))]
#[case::variable_without_name(deployment("env: [{value: a}]"))]
#[case::service_port_twice(service("ports: [{port: 80, name: a}, {port: 80, name: b}]"))]
#[case::finalizer_twice(config_map("").replace("namespace: default", "namespace: default, finalizers: [a.b/c, a.b/c]"))]
#[case::no_selector(deployment("").replace("  selector: {matchLabels: {app: a}}\n", ""))]
#[case::empty_selector(deployment("").replace("{matchLabels: {app: a}}", "{}"))]
#[case::other_selector(deployment("").replace("{matchLabels: {app: a}}", "{matchLabels: {app: b}}"))]
#[case::port_too_large(deployment("ports: [{containerPort: 80000}]"))]
#[case::mount_without_name(deployment("volumeMounts: [{mountPath: /a}]"))]
#[case::probe_without_port(deployment("livenessProbe: {httpGet: {path: /a}}"))]
#[case::mode_in_decimal(
    deployment("volumeMounts: [{name: a, mountPath: /a}]")
        + "      volumes: [{name: a, configMap: {name: a, defaultMode: 644}}]\n"
)]
#[case::negative_replicas(deployment("").replace("spec:\n  selector", "spec:\n  replicas: -1\n  selector"))]
#[case::target_port_too_large(service("ports: [{port: 80, targetPort: 80000}]"))]
#[case::target_port_no_name(service("ports: [{port: 80, targetPort: A_b}]"))]
#[case::binding_without_role(binding("subjects: [{kind: User, name: a}]"))]
#[case::subject_without_name(binding(
    "roleRef: {kind: ClusterRole, name: view}\nsubjects: [{kind: User}]"
))]
#[case::role_without_verbs(
    "apiVersion: rbac.authorization.k8s.io/v1\nkind: ClusterRole\nmetadata: {name: lint}\n\
     rules: [{apiGroups: [''], resources: [pods]}]\n".to_owned()
)]
#[case::autoscaler_without_limit(
    "apiVersion: autoscaling/v2\nkind: HorizontalPodAutoscaler\nmetadata: {name: lint, namespace: default}\n\
     spec: {scaleTargetRef: {kind: Deployment, name: a}}\n".to_owned()
)]
#[case::definition_with_another_name(
    "apiVersion: apiextensions.k8s.io/v1\nkind: CustomResourceDefinition\nmetadata: {name: foo.lint.example.org}\n\
     spec:\n  group: lint.example.org\n  scope: Namespaced\n  names: {kind: Foo, plural: foos, singular: foo}\n  \
     versions: [{name: v1, served: true, storage: true, schema: {openAPIV3Schema: {type: object}}}]\n".to_owned()
)]
fn what_lint_refuses_the_server_refuses(#[case] manifest: String) {
    assert_ne!(errors(&manifest), Vec::<String>::new());
    assert!(
        refusal(&manifest).is_some(),
        "the server takes it:\n{manifest}"
    );
}

#[rstest]
#[case::plain(deployment("imagePullPolicy: Always"))]
#[case::empty_choice(deployment("imagePullPolicy: ''"))]
#[case::amounts(deployment(
    "resources: {limits: {cpu: 1, memory: 1.5Gi, ephemeral-storage: '1e9'}}"
))]
#[case::number_or_name(deployment("livenessProbe: {httpGet: {port: http}}"))]
#[case::two_protocols(deployment(
    "ports: [{containerPort: 80}, {containerPort: 80, protocol: UDP}]"
))]
#[case::null(config_map("data: {a: null}"))]
#[case::null_fields(deployment("args: null"))]
#[case::base64_over_lines(config_map("binaryData: {a: \"aGVs\\nbG8=\"}"))]
#[case::whole_float(service("ports: [{port: 80.0}]"))]
#[case::items_without_default_keys(service(
    "ports: [{port: 80, name: a}, {port: 80, name: b, protocol: UDP}]"
))]
#[case::header_without_value(deployment(
    "livenessProbe: {httpGet: {port: 1, httpHeaders: [{name: a}]}}"
))]
#[case::policy_for_all_pods(
    "apiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {name: lint, namespace: default}\n\
     spec: {policyTypes: [Ingress]}\n".to_owned()
)]
#[case::priority_without_value(
    "apiVersion: scheduling.k8s.io/v1\nkind: PriorityClass\nmetadata: {name: lint}\n".to_owned()
)]
#[case::preference_for_any_node(
    deployment("args: []")
        + "      affinity: {nodeAffinity: {preferredDuringSchedulingIgnoredDuringExecution: [{weight: 1}]}}\n"
)]
fn what_lint_lets_pass_the_server_takes(#[case] manifest: String) {
    assert_eq!(errors(&manifest), Vec::<String>::new());
    assert_eq!(refusal(&manifest), None, "{manifest}");
}
