//! Manifests shared by many tests.

/// Complete bundle file.
pub(crate) const BUNDLE: &str = "apiVersion: pleach.dev/v1alpha1\nkind: Bundle\n";

/// Returns a `ConfigMap` with one key.
pub(crate) fn config_map(name: &str, value: &str) -> String {
    format!("apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: {name}}}\ndata: {{k: {value}}}\n")
}

/// Returns a Deployment with no replicas, which is ready without nodes.
pub(crate) fn deployment(name: &str) -> String {
    deployment_of(name, &format!("[{{name: {name}, image: \"{name}:1\"}}]"))
}

/// Returns such a Deployment with these containers.
pub(crate) fn deployment_of(name: &str, containers: &str) -> String {
    format!(
        "\
apiVersion: apps/v1
kind: Deployment
metadata: {{name: {name}}}
spec:
  replicas: 0
  selector: {{matchLabels: {{app: {name}}}}}
  template:
    metadata: {{labels: {{app: {name}}}}}
    spec: {{containers: {containers}}}
"
    )
}

/// Schema for any content.
pub(crate) const ANYTHING: &str = "{type: object, x-kubernetes-preserve-unknown-fields: true}";

/// Returns a schema with string fields in the spec.
pub(crate) fn texts(fields: &[&str]) -> String {
    let fields: Vec<String> = fields
        .iter()
        .map(|field| format!("{field}: {{type: string}}"))
        .collect();
    format!(
        "{{type: object, properties: {{spec: {{type: object, properties: {{{}}}}}}}}}",
        fields.join(", ")
    )
}

/// Returns the CRD of kind Gear in a group, for any content.
pub(crate) fn gears(group: &str) -> String {
    gears_of(group, &["v1"], ANYTHING)
}

/// Returns the CRD with a schema. `name!` is a version that is not served; the first one is stored.
/// The text ends within the spec.
pub(crate) fn gears_of(group: &str, versions: &[&str], schema: &str) -> String {
    let versions = versions.iter().enumerate().map(|(index, version)| {
        let name = version.trim_end_matches('!');
        let (served, storage) = (name == *version, index == 0);
        format!(
            "    - {{name: {name}, served: {served}, storage: {storage}, schema: {{openAPIV3Schema: {schema}}}}}\n"
        )
    });
    let versions: Vec<String> = versions.collect();
    format!(
        "\
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {{name: gears.{group}}}
spec:
  group: {group}
  scope: Namespaced
  names: {{plural: gears, singular: gear, kind: Gear}}
  versions:
{}",
        versions.concat()
    )
}

/// Returns a Gear of a group.
pub(crate) fn gear(group: &str) -> String {
    format!("apiVersion: {group}/v1\nkind: Gear\nmetadata: {{name: first}}\n")
}

/// Returns a webhook configuration for a Service in the namespace with its name. It is never
/// called.
pub(crate) fn webhook(name: &str, service: &str) -> String {
    format!(
        "\
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingWebhookConfiguration
metadata: {{name: {name}}}
webhooks:
  - name: {name}.example.org
    failurePolicy: Ignore
    sideEffects: None
    admissionReviewVersions: [v1]
    clientConfig: {{service: {{namespace: {name}, name: {service}}}}}
    rules: [{{apiGroups: [{name}.example.org], apiVersions: ['*'], operations: [CREATE], resources: ['*']}}]
"
    )
}
