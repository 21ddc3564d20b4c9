//! Description of a simulated product.

use serde_json::{Value, json};

/// Product whose pods register themselves: names and paths, no behavior.
#[derive(Debug, Clone)]
pub struct Product {
    /// Label key of the component name.
    pub component_label: String,
    /// Component whose pods answer as aggregated API and webhooks. Also their field manager and
    /// User-Agent.
    pub api: String,
    /// Component whose leader holds a lock: Endpoints of the same name.
    pub controller: String,
    /// Service of the api pods, in their namespace.
    pub service: String,
    /// Port of the api pods.
    pub port: u16,
    /// Secret with the certificates that the api pods create.
    pub certificates: String,
    /// `ConfigMap` with settings that the api pods read at their start.
    pub settings: String,
    /// Group of the aggregated API.
    pub group: String,
    /// Version of the aggregated API.
    pub version: String,
    /// Name of the validating webhook configuration.
    pub validator: String,
    /// Its webhooks.
    pub validating: Vec<Webhook>,
    /// Name of the mutating webhook configuration.
    pub mutator: String,
    /// Its webhooks.
    pub mutating: Vec<Webhook>,
    /// Resource that users work with.
    pub guarded: Resource,
}

/// Resource in the notation of URLs and webhook rules.
#[derive(Debug, Clone)]
pub struct Resource {
    /// Group.
    pub group: String,
    /// Version.
    pub version: String,
    /// Plural.
    pub plural: String,
    /// Kind.
    pub kind: String,
}

/// Webhook of a configuration, for the group and version of the guarded resource.
#[derive(Debug, Clone)]
pub struct Webhook {
    /// Full name.
    pub name: String,
    /// Path on the api pods.
    pub path: String,
    /// Plural of the matched resource.
    pub plural: String,
    /// Matched operations.
    pub operations: Vec<String>,
    /// `Fail` or `Ignore`.
    pub failure_policy: String,
}

impl Product {
    /// Returns a stand-in for KubeVirt as of 2019.
    pub fn kubevirt() -> Self {
        let validator = |name: &str, path: &str, plural: &str, operations: &[&str]| Webhook {
            name: format!("{name}-validator.kubevirt.io"),
            path: path.to_owned(),
            plural: plural.to_owned(),
            operations: operations.iter().map(ToString::to_string).collect(),
            failure_policy: "Fail".to_owned(),
        };
        let instances = "virtualmachineinstances";
        let migrations = "virtualmachineinstancemigrations";
        Self {
            component_label: "kubevirt.io".to_owned(),
            api: "virt-api".to_owned(),
            controller: "virt-controller".to_owned(),
            service: "virt-api".to_owned(),
            port: 8443,
            certificates: "kubevirt-virt-api-certs".to_owned(),
            settings: "kubevirt-config".to_owned(),
            group: "subresources.kubevirt.io".to_owned(),
            version: "v1alpha2".to_owned(),
            validator: "virt-api-validator".to_owned(),
            validating: vec![
                validator(
                    "virtualmachineinstances-create",
                    "/virtualmachineinstances-validate-create",
                    instances,
                    &["CREATE"],
                ),
                validator(
                    "virtualmachineinstances-update",
                    "/virtualmachineinstances-validate-update",
                    instances,
                    &["UPDATE"],
                ),
                validator(
                    "virtualmachine",
                    "/virtualmachines-validate",
                    "virtualmachines",
                    &["CREATE", "UPDATE"],
                ),
                validator(
                    "virtualmachinereplicaset",
                    "/virtualmachinereplicaset-validate",
                    "virtualmachineinstancereplicasets",
                    &["CREATE", "UPDATE"],
                ),
                validator(
                    "virtualmachinepreset",
                    "/vmipreset-validate",
                    "virtualmachineinstancepresets",
                    &["CREATE", "UPDATE"],
                ),
                validator(
                    "migration-create",
                    "/migration-validate-create",
                    migrations,
                    &["CREATE"],
                ),
                validator(
                    "migration-update",
                    "/migration-validate-update",
                    migrations,
                    &["UPDATE"],
                ),
            ],
            mutator: "virt-api-mutator".to_owned(),
            mutating: vec![Webhook {
                name: "virtualmachineinstances-mutator.kubevirt.io".to_owned(),
                path: "/virtualmachineinstances-mutate".to_owned(),
                plural: instances.to_owned(),
                operations: vec!["CREATE".to_owned()],
                failure_policy: "Ignore".to_owned(),
            }],
            guarded: Resource {
                group: "kubevirt.io".to_owned(),
                version: "v1alpha2".to_owned(),
                plural: instances.to_owned(),
                kind: "VirtualMachineInstance".to_owned(),
            },
        }
    }

    /// Returns the name of the `APIService`.
    pub fn api_service(&self) -> String {
        format!("{}.{}", self.version, self.group)
    }

    /// Returns the metadata of the certificate Secret in a namespace.
    pub(crate) fn certificates_metadata(&self, namespace: &str) -> Value {
        json!({
            "name": self.certificates,
            "namespace": namespace,
            "labels": {&self.component_label: format!("{}-aggregator", self.api)},
        })
    }

    /// Returns the `APIService` that an api pod of a namespace creates.
    pub(crate) fn api_service_body(&self, namespace: &str, ca_bundle: &str) -> Value {
        json!({
            "apiVersion": "apiregistration.k8s.io/v1",
            "kind": "APIService",
            "metadata": {
                "name": self.api_service(),
                "labels": {&self.component_label: format!("{}-aggregator", self.api)},
            },
            "spec": {
                "group": self.group,
                "version": self.version,
                "groupPriorityMinimum": 1000,
                "versionPriority": 15,
                "service": {"namespace": namespace, "name": self.service},
                "caBundle": ca_bundle,
            },
        })
    }

    /// Returns the webhook configuration that an api pod of a namespace creates.
    pub(crate) fn webhooks_body(
        &self,
        configuration: Configuration,
        namespace: &str,
        ca_bundle: &str,
    ) -> Value {
        let (name, webhooks) = match configuration {
            Configuration::Validating => (&self.validator, &self.validating),
            Configuration::Mutating => (&self.mutator, &self.mutating),
        };
        let webhooks: Vec<Value> = webhooks
            .iter()
            .map(|hook| {
                json!({
                    "name": hook.name,
                    "rules": [{
                        "apiGroups": [self.guarded.group],
                        "apiVersions": [self.guarded.version],
                        "resources": [hook.plural],
                        "operations": hook.operations,
                    }],
                    "clientConfig": {
                        "service": {"namespace": namespace, "name": self.service, "path": hook.path},
                        "caBundle": ca_bundle,
                    },
                    "failurePolicy": hook.failure_policy,
                    "admissionReviewVersions": ["v1"],
                    "sideEffects": "None",
                })
            })
            .collect();
        json!({
            "apiVersion": "admissionregistration.k8s.io/v1",
            "kind": configuration.kind(),
            "metadata": {"name": name, "labels": {&self.component_label: name}},
            "webhooks": webhooks,
        })
    }
}

/// Kind of a webhook configuration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Configuration {
    Validating,
    Mutating,
}

impl Configuration {
    fn kind(self) -> &'static str {
        match self {
            Self::Validating => "ValidatingWebhookConfiguration",
            Self::Mutating => "MutatingWebhookConfiguration",
        }
    }

    /// Returns the path of the collection.
    pub(crate) fn path(self) -> &'static str {
        match self {
            Self::Validating => {
                "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations"
            }
            Self::Mutating => "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn registrations_point_at_the_namespace_of_the_pod() {
        let product = Product::kubevirt();
        let service = product.api_service_body("a", "Q0E=");
        assert_eq!(service["spec"]["service"]["namespace"], "a");
        assert_eq!(
            service["metadata"]["name"],
            "v1alpha2.subresources.kubevirt.io"
        );
        let hooks = product.webhooks_body(Configuration::Validating, "a", "Q0E=");
        assert_eq!(hooks["webhooks"].as_array().unwrap().len(), 7);
        assert_eq!(
            hooks["webhooks"][0]["clientConfig"]["service"]["path"],
            "/virtualmachineinstances-validate-create"
        );
    }
}
