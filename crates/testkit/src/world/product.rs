//! What a product is made of, as far as the world plays it.

use serde_json::{Value, json};

/// A product whose pods register themselves: names and paths, no behavior.
#[derive(Debug, Clone)]
pub struct Product {
    /// Label key whose value tells the components apart.
    pub component_label: String,
    /// Component whose pods answer as aggregated API and webhooks. It is their
    /// field manager and User-Agent too.
    pub api: String,
    /// Component whose leader keeps a lock: Endpoints of the same name.
    pub controller: String,
    /// Service before the api pods, in the namespace of the pods.
    pub service: String,
    /// Port on which the api pods listen.
    pub port: u16,
    /// Secret with the certificates that the api pods make.
    pub certificates: String,
    /// `ConfigMap` with settings that the api pods look for when they start.
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
    /// The resource that users work with.
    pub guarded: Resource,
}

/// A resource as URLs and webhook rules name it.
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

/// One webhook of a configuration, for the group and version of the guarded
/// resource.
#[derive(Debug, Clone)]
pub struct Webhook {
    /// Full name.
    pub name: String,
    /// Path under which the api pods answer.
    pub path: String,
    /// Plural of what it sees.
    pub plural: String,
    /// Operations that it sees.
    pub operations: Vec<String>,
    /// `Fail` or `Ignore`.
    pub failure_policy: String,
}

impl Product {
    /// A stand-in for KubeVirt as it was in 2019.
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

    /// Name of the `APIService`.
    pub fn api_service(&self) -> String {
        format!("{}.{}", self.version, self.group)
    }

    /// The metadata of the Secret that an api pod of a namespace makes.
    pub(crate) fn certificates_metadata(&self, namespace: &str) -> Value {
        json!({
            "name": self.certificates,
            "namespace": namespace,
            "labels": {&self.component_label: format!("{}-aggregator", self.api)},
        })
    }

    /// The `APIService` that an api pod of a namespace makes.
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

    /// The webhook configuration that an api pod of a namespace makes.
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

/// The two kinds of webhook configurations.
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

    /// URL of the collection.
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
