//! Relations that an object declares to other objects. The planner derives its edges from them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, LazyLock};

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{ApiVersion, GroupKind, Gvk, ObjectId, ServiceRef, annotations};

/// Type of the Secrets that the cluster fills with a ServiceAccount token.
const TOKEN: &str = "kubernetes.io/service-account-token";

/// Annotation that names the ServiceAccount of such a Secret.
const TOKEN_OF: &str = "kubernetes.io/service-account.name";

/// Shared value for all objects without relations.
static NONE: LazyLock<Arc<Facts>> = LazyLock::new(Arc::default);

/// Relations of one object: its references, selectors, dependencies and definitions.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Facts {
    /// ConfigMaps, Secrets and other objects that its pod template names, without optional ones.
    pub pod_references: Vec<ObjectId>,
    /// The ServiceAccount of its pods.
    pub service_account: Option<ObjectId>,
    /// Labels of its pods.
    pub pod_labels: Option<BTreeMap<String, String>>,
    /// Role of a binding.
    pub role: Option<ObjectId>,
    /// Service accounts of a binding.
    pub subjects: Vec<ObjectId>,
    /// Label selectors of an aggregated `ClusterRole` (`aggregationRule`).
    pub gathers: Vec<Value>,
    /// ServiceAccount that a token Secret belongs to.
    pub token_of: Option<ObjectId>,
    /// Selector of a Service. `None` if it has none.
    pub selector: Option<BTreeMap<String, String>>,
    /// Services that a registration or a CRD's conversion webhook points at.
    pub services: Vec<ServiceRef>,
    /// API resources that a webhook configuration intercepts.
    pub intercepts: Vec<Interception>,
    /// Kind that a CRD defines.
    pub defines: Option<DefinedKind>,
    /// Group-version that an APIService registers for an aggregated API server.
    pub registers: Option<ApiVersion>,
    /// Parameter kind of an admission policy (`paramKind`).
    pub parameter_kind: Option<Gvk>,
    /// Admission policy that a binding activates.
    pub switches_on: Option<SwitchedOn>,
    /// Annotation `pleach.dev/after`, as `(kind, name)` pairs. The name is empty if the annotation
    /// is malformed.
    pub after: Vec<(String, String)>,
    /// Annotation `pleach.dev/stage`.
    pub stage: Option<String>,
    /// Annotation `pleach.dev/ready`.
    pub readiness: ReadinessDemand,
}

/// Effect of an object that does not become ready, from annotation `pleach.dev/ready`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum ReadinessDemand {
    /// Wait for the object. If it is not ready in time, the run fails.
    #[default]
    Require,
    /// Wait for the object. If it is not ready in time, only report it.
    Warn,
    /// Do not wait for the object.
    None,
}

impl ReadinessDemand {
    /// Parses the annotation. Returns `None` for an unknown value.
    pub fn parse(text: &str) -> Option<Self> {
        Some(match text {
            "require" => Self::Require,
            "warn" => Self::Warn,
            "none" => Self::None,
            _ => return None,
        })
    }
}

/// The kind that a CRD defines.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DefinedKind {
    /// The kind.
    pub kind: GroupKind,
    /// Plural name of the resource.
    pub plural: String,
    /// The kind at each served version, in the CRD's order.
    pub served: Vec<Gvk>,
}

/// One group and resource that a webhook rule matches.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Interception {
    /// API group, or `*`.
    pub group: String,
    /// Plural without subresource, or `*`.
    pub resource: String,
}

/// Reference from a policy binding to its admission policy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SwitchedOn {
    /// The policy.
    pub policy: ObjectId,
    /// Parameters of the policy. `None` if the binding has no `paramRef`.
    pub parameters: Option<Parameters>,
}

/// Parameter reference of a policy binding (`paramRef`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Parameters {
    /// Name of the parameter object. `None` if a label selector finds the parameters.
    pub name: Option<String>,
    /// Namespace of the parameter object. `None` if the namespace of the admitted object is used.
    pub namespace: Option<String>,
}

impl Parameters {
    /// Returns whether an object of the parameter kind can be one of the parameters. Ignores
    /// labels.
    pub fn may_be(&self, id: &ObjectId) -> bool {
        let has_name = self.name.as_ref().is_none_or(|name| *name == id.name);
        let lies_there = self.namespace.is_none() || self.namespace == id.namespace;
        has_name && lies_there
    }
}

impl Facts {
    /// Extracts an object's facts. Objects without relations share one value.
    pub(super) fn shared(id: &ObjectId, value: &Value) -> Arc<Self> {
        let facts = Self::of(id, value);
        if facts == **NONE {
            Arc::clone(&NONE)
        } else {
            Arc::new(facts)
        }
    }

    fn of(id: &ObjectId, value: &Value) -> Self {
        let namespace = id.namespace.as_deref();
        let mut facts = Self {
            after: after(value),
            stage: value["metadata"]["annotations"][annotations::STAGE]
                .as_str()
                .map(str::to_owned),
            // Rendering already refused unknown values.
            readiness: value["metadata"]["annotations"][annotations::READY]
                .as_str()
                .and_then(ReadinessDemand::parse)
                .unwrap_or_default(),
            ..Self::default()
        };
        if let Some(pod) = pod_template(id, value) {
            facts.pod_references = pod_references(&pod["spec"], namespace);
            let account = pod["spec"]["serviceAccountName"]
                .as_str()
                .unwrap_or("default");
            facts.service_account = Some(ObjectId::new("", "ServiceAccount", namespace, account));
            facts.pod_labels = Some(text_map(&pod["metadata"]["labels"]));
            if let Some(service) = value["spec"]["serviceName"]
                .as_str()
                .filter(|name| !name.is_empty())
            {
                facts
                    .pod_references
                    .push(ObjectId::new("", "Service", namespace, service));
            }
        }
        match (id.group.as_str(), id.kind.as_str()) {
            ("rbac.authorization.k8s.io", "RoleBinding" | "ClusterRoleBinding") => {
                facts.role = role(value, namespace);
                facts.subjects = subjects(value, namespace);
            }
            ("rbac.authorization.k8s.io", "ClusterRole") => {
                let selectors = items(&value["aggregationRule"]["clusterRoleSelectors"]);
                facts.gathers = selectors.cloned().collect();
            }
            ("", "Secret") if value["type"] == TOKEN => {
                let account = value["metadata"]["annotations"][TOKEN_OF].as_str();
                facts.token_of =
                    account.map(|name| ObjectId::new("", "ServiceAccount", namespace, name));
            }
            ("", "Service") => {
                let selector = text_map(&value["spec"]["selector"]);
                facts.selector = (!selector.is_empty()).then_some(selector);
            }
            ("apiextensions.k8s.io", "CustomResourceDefinition") => {
                facts.defines = crd(value);
                facts.services = pointed_at(&id.group_kind(), value);
            }
            (
                "admissionregistration.k8s.io",
                "MutatingAdmissionPolicy" | "ValidatingAdmissionPolicy",
            ) => facts.parameter_kind = parameter_kind(value),
            (
                "admissionregistration.k8s.io",
                "MutatingAdmissionPolicyBinding" | "ValidatingAdmissionPolicyBinding",
            ) => facts.switches_on = switches_on(id, value),
            _ => {
                facts.registers = registered_api(&id.group_kind(), value);
                facts.services = registered_services(&id.group_kind(), value);
                facts.intercepts = interceptions(value);
            }
        }
        facts
    }

    /// Returns whether a Service with this selector selects the pods of this workload.
    pub fn is_selected_by(&self, selector: &BTreeMap<String, String>) -> bool {
        self.pod_labels.as_ref().is_some_and(|labels| {
            selector
                .iter()
                .all(|(key, value)| labels.get(key) == Some(value))
        })
    }
}

/// Returns the group-version that an APIService registers. `None` for other kinds and for APIs that
/// the API server serves itself.
pub fn registered_api(kind: &GroupKind, value: &Value) -> Option<ApiVersion> {
    let spec = &value["spec"];
    if !kind.is("apiregistration.k8s.io", "APIService") || !spec["service"].is_object() {
        return None;
    }
    Some(ApiVersion {
        group: spec["group"].as_str()?.to_owned(),
        version: spec["version"].as_str()?.to_owned(),
    })
}

/// Returns the Services that an APIService or webhook configuration points at, sorted and without
/// duplicates.
pub fn registered_services(kind: &GroupKind, value: &Value) -> Vec<ServiceRef> {
    let mut services: Vec<ServiceRef> = match (kind.group.as_str(), kind.kind.as_str()) {
        ("apiregistration.k8s.io", "APIService") => {
            service_ref(&value["spec"]["service"]).into_iter().collect()
        }
        (
            "admissionregistration.k8s.io",
            "MutatingWebhookConfiguration" | "ValidatingWebhookConfiguration",
        ) => items(&value["webhooks"])
            .filter_map(|webhook| service_ref(&webhook["clientConfig"]["service"]))
            .collect(),
        _ => Vec::new(),
    };
    services.sort();
    services.dedup();
    services
}

/// Returns the Services that an object points at. The object is a registration, or a CRD with a
/// conversion webhook.
pub fn pointed_at(kind: &GroupKind, value: &Value) -> Vec<ServiceRef> {
    if kind.is("apiextensions.k8s.io", "CustomResourceDefinition") {
        let client = &value["spec"]["conversion"]["webhook"]["clientConfig"];
        return service_ref(&client["service"]).into_iter().collect();
    }
    registered_services(kind, value)
}

fn items(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

fn text_map(value: &Value) -> BTreeMap<String, String> {
    value
        .as_object()
        .into_iter()
        .flatten()
        .filter_map(|(key, value)| Some((key.clone(), value.as_str()?.to_owned())))
        .collect()
}

fn service_ref(value: &Value) -> Option<ServiceRef> {
    Some(ServiceRef {
        namespace: value["namespace"].as_str()?.to_owned(),
        name: value["name"].as_str()?.to_owned(),
    })
}

/// Returns the pod template of a workload. For a Pod, returns the Pod itself.
pub fn pod_template<'a>(id: &ObjectId, value: &'a Value) -> Option<&'a Value> {
    match (id.group.as_str(), id.kind.as_str()) {
        ("apps", "Deployment" | "DaemonSet" | "StatefulSet" | "ReplicaSet")
        | ("", "ReplicationController")
        | ("batch", "Job") => Some(&value["spec"]["template"]),
        ("batch", "CronJob") => Some(&value["spec"]["jobTemplate"]["spec"]["template"]),
        ("", "Pod") => Some(value),
        _ => None,
    }
}

/// Returns the `ConfigMaps` and Secrets that the pods of a Deployment, `StatefulSet` or `DaemonSet`
/// read, including optional ones.
pub fn configuration(id: &ObjectId, value: &Value) -> BTreeSet<ObjectId> {
    if !matches!(id.kind.as_str(), "Deployment" | "StatefulSet" | "DaemonSet") {
        return BTreeSet::new();
    }
    let spec = pod_template(id, value).map(|template| &template["spec"]);
    spec.into_iter()
        .flat_map(|spec| read_by_pods(spec, id.namespace.as_deref()))
        .map(|read| read.id)
        .collect()
}

/// A `ConfigMap` or Secret that a pod reads.
struct Read {
    id: ObjectId,
    optional: bool,
}

fn read_by_pods(spec: &Value, namespace: Option<&str>) -> Vec<Read> {
    let mut found = Vec::new();
    let mut add = |kind: &str, source: &Value, key: &str| {
        if let Some(name) = source[key].as_str() {
            found.push(Read {
                id: ObjectId::new("", kind, namespace, name),
                optional: source["optional"] == true,
            });
        }
    };
    for volume in items(&spec["volumes"]) {
        add("ConfigMap", &volume["configMap"], "name");
        add("Secret", &volume["secret"], "secretName");
        for source in items(&volume["projected"]["sources"]) {
            add("ConfigMap", &source["configMap"], "name");
            add("Secret", &source["secret"], "name");
        }
    }
    for container in items(&spec["containers"]).chain(items(&spec["initContainers"])) {
        for env in items(&container["env"]) {
            add("ConfigMap", &env["valueFrom"]["configMapKeyRef"], "name");
            add("Secret", &env["valueFrom"]["secretKeyRef"], "name");
        }
        for source in items(&container["envFrom"]) {
            add("ConfigMap", &source["configMapRef"], "name");
            add("Secret", &source["secretRef"], "name");
        }
    }
    found
}

fn pod_references(spec: &Value, namespace: Option<&str>) -> Vec<ObjectId> {
    let mut references: Vec<ObjectId> = read_by_pods(spec, namespace)
        .into_iter()
        .filter(|read| !read.optional)
        .map(|read| read.id)
        .collect();
    let mut add = |kind: &str, name: &Value| {
        if let Some(name) = name.as_str() {
            references.push(ObjectId::new("", kind, namespace, name));
        }
    };
    for volume in items(&spec["volumes"]) {
        let claim = &volume["persistentVolumeClaim"]["claimName"];
        add("PersistentVolumeClaim", claim);
        add("Secret", &volume["csi"]["nodePublishSecretRef"]["name"]);
    }
    for secret in items(&spec["imagePullSecrets"]) {
        add("Secret", &secret["name"]);
    }
    for claim in items(&spec["resourceClaims"]) {
        let named = [
            ("ResourceClaim", &claim["resourceClaimName"]),
            ("ResourceClaimTemplate", &claim["resourceClaimTemplateName"]),
        ];
        for (kind, name) in named {
            if let Some(name) = name.as_str() {
                references.push(ObjectId::new("resource.k8s.io", kind, namespace, name));
            }
        }
    }
    let volumes = items(&spec["volumes"]);
    for source in volumes.flat_map(|volume| items(&volume["projected"]["sources"])) {
        let bundle = &source["clusterTrustBundle"];
        if let Some(name) = bundle["name"].as_str()
            && bundle["optional"] != true
        {
            references.push(ObjectId::new(
                "certificates.k8s.io",
                "ClusterTrustBundle",
                None,
                name,
            ));
        }
    }
    if let Some(name) = spec["priorityClassName"].as_str() {
        references.push(ObjectId::new(
            "scheduling.k8s.io",
            "PriorityClass",
            None,
            name,
        ));
    }
    if let Some(name) = spec["runtimeClassName"].as_str() {
        references.push(ObjectId::new("node.k8s.io", "RuntimeClass", None, name));
    }
    references.sort();
    references.dedup();
    references
}

fn role(value: &Value, namespace: Option<&str>) -> Option<ObjectId> {
    let kind = value["roleRef"]["kind"].as_str()?;
    let namespace = if kind == "Role" { namespace } else { None };
    Some(ObjectId::new(
        "rbac.authorization.k8s.io",
        kind,
        namespace,
        value["roleRef"]["name"].as_str()?,
    ))
}

fn subjects(value: &Value, namespace: Option<&str>) -> Vec<ObjectId> {
    items(&value["subjects"])
        .filter(|subject| subject["kind"] == "ServiceAccount")
        .filter_map(|subject| {
            let namespace = subject["namespace"].as_str().or(namespace);
            Some(ObjectId::new(
                "",
                "ServiceAccount",
                namespace,
                subject["name"].as_str()?,
            ))
        })
        .collect()
}

fn crd(value: &Value) -> Option<DefinedKind> {
    let spec = &value["spec"];
    let (group, kind) = (spec["group"].as_str()?, spec["names"]["kind"].as_str()?);
    let served = items(&spec["versions"])
        .filter(|version| version["served"] == true)
        .filter_map(|version| version["name"].as_str())
        .map(|version| Gvk::new(&format!("{group}/{version}"), kind))
        .collect();
    Some(DefinedKind {
        kind: GroupKind::new(group, kind),
        plural: spec["names"]["plural"].as_str()?.to_owned(),
        served,
    })
}

fn parameter_kind(policy: &Value) -> Option<Gvk> {
    let kind = &policy["spec"]["paramKind"];
    Some(Gvk::new(
        kind["apiVersion"].as_str()?,
        kind["kind"].as_str()?,
    ))
}

/// Reads the policy that a binding refers to. The policy's kind is the binding's kind without the
/// suffix `Binding`.
fn switches_on(id: &ObjectId, binding: &Value) -> Option<SwitchedOn> {
    let spec = &binding["spec"];
    let kind = id.kind.strip_suffix("Binding")?;
    let text = |field: &Value| {
        field
            .as_str()
            .filter(|it| !it.is_empty())
            .map(str::to_owned)
    };
    let parameters = &spec["paramRef"];
    Some(SwitchedOn {
        policy: ObjectId::new(&id.group, kind, None, spec["policyName"].as_str()?),
        parameters: parameters.is_object().then(|| Parameters {
            name: text(&parameters["name"]),
            namespace: text(&parameters["namespace"]),
        }),
    })
}

/// Returns the groups and resources that a webhook configuration intercepts, in file order.
pub fn interceptions(value: &Value) -> Vec<Interception> {
    let mut found = Vec::new();
    for rule in items(&value["webhooks"]).flat_map(|webhook| items(&webhook["rules"])) {
        for group in items(&rule["apiGroups"]).filter_map(Value::as_str) {
            for resource in items(&rule["resources"]).filter_map(Value::as_str) {
                let resource = resource.split('/').next().unwrap_or(resource);
                found.push(Interception {
                    group: group.to_owned(),
                    resource: resource.to_owned(),
                });
            }
        }
    }
    found
}

fn after(value: &Value) -> Vec<(String, String)> {
    value["metadata"]["annotations"][annotations::AFTER]
        .as_str()
        .into_iter()
        .flat_map(|text| text.split(','))
        .map(str::trim)
        .filter(|one| !one.is_empty())
        .map(|one| one.split_once('/').unwrap_or((one, "")))
        .map(|(kind, name)| (kind.to_owned(), name.to_owned()))
        .collect()
}

#[cfg(test)]
mod tests;
