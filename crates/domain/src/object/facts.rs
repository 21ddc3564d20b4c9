//! What an object says about others: the raw material of edges.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, LazyLock};

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{ApiVersion, GroupKind, Gvk, ObjectId, ServiceRef, annotations};

/// The type of Secrets that the cluster fills with the token of an account.
const TOKEN: &str = "kubernetes.io/service-account-token";

/// The annotation that names the account.
const TOKEN_OF: &str = "kubernetes.io/service-account.name";

/// The facts of all objects that say nothing about others.
static NONE: LazyLock<Arc<Facts>> = LazyLock::new(Arc::default);

/// What one object needs, selects, points at and defines.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Facts {
    /// Objects that its pod template names, without those marked optional.
    pub pod_references: Vec<ObjectId>,
    /// The ServiceAccount of its pods.
    pub service_account: Option<ObjectId>,
    /// Labels of its pods.
    pub pod_labels: Option<BTreeMap<String, String>>,
    /// A binding's role.
    pub role: Option<ObjectId>,
    /// A binding's service accounts.
    pub subjects: Vec<ObjectId>,
    /// The label selectors of the roles that the cluster gathers a `ClusterRole`'s
    /// rules from.
    pub gathers: Vec<Value>,
    /// The ServiceAccount that a Secret is a token of.
    pub token_of: Option<ObjectId>,
    /// A Service's selector; none for Services without one.
    pub selector: Option<BTreeMap<String, String>>,
    /// The Services that a registration (or a CRD's conversion) points at.
    pub services: Vec<ServiceRef>,
    /// What a webhook configuration intercepts.
    pub intercepts: Vec<Interception>,
    /// What a CRD defines.
    pub defines: Option<Definition>,
    /// The group-version that an APIService registers for another server.
    pub registers: Option<ApiVersion>,
    /// The kind of the parameters that an admission policy takes.
    pub parameter_kind: Option<Gvk>,
    /// What a binding of an admission policy switches on.
    pub switches_on: Option<SwitchedOn>,
    /// Annotation `pleach.dev/after`, as `(kind, name)` pairs; without a name
    /// where it is not written as such.
    pub after: Vec<(String, String)>,
    /// Annotation `pleach.dev/stage`.
    pub stage: Option<String>,
    /// Annotation `pleach.dev/ready`.
    pub readiness: ReadinessDemand,
}

/// How it counts that an object is not ready.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum ReadinessDemand {
    /// It is waited for, and what is not ready in time fails.
    #[default]
    Require,
    /// It is waited for, and what is not ready in time is only told.
    Warn,
    /// It is not waited for.
    None,
}

impl ReadinessDemand {
    /// Reads the annotation; none where nobody knows what it says.
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
pub struct Definition {
    /// The kind.
    pub kind: GroupKind,
    /// Its plural name.
    pub plural: String,
    /// The kind at each version that is served, in the CRD's order.
    pub served: Vec<Gvk>,
}

/// One rule of a webhook.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Interception {
    /// API group, or `*`.
    pub group: String,
    /// Plural without subresource, or `*`.
    pub resource: String,
}

/// An admission policy as a binding switches it on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SwitchedOn {
    /// The policy.
    pub policy: ObjectId,
    /// What it asks; none where the binding names no parameters.
    pub parameters: Option<Parameters>,
}

/// The parameters that a binding names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Parameters {
    /// Their name; none where a selector finds them by their labels.
    pub name: Option<String>,
    /// Their namespace; none where each object is judged by those beside it.
    pub namespace: Option<String>,
}

impl Parameters {
    /// Whether an object of their kind may be one of them. Labels are not looked at.
    pub fn may_be(&self, id: &ObjectId) -> bool {
        let has_name = self.name.as_ref().is_none_or(|name| *name == id.name);
        let lies_there = self.namespace.is_none() || self.namespace == id.namespace;
        has_name && lies_there
    }
}

impl Facts {
    /// Reads an object's facts. Objects without any share them.
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
            // What it cannot say was refused when it was rendered.
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
                facts.defines = definition(value);
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

    /// Whether the pods of this workload are selected by a Service's selector.
    pub fn is_selected_by(&self, selector: &BTreeMap<String, String>) -> bool {
        self.pod_labels.as_ref().is_some_and(|labels| {
            selector
                .iter()
                .all(|(key, value)| labels.get(key) == Some(value))
        })
    }
}

/// The group-version that an APIService registers; none for one that the API
/// server itself answers for.
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

/// The Services that an APIService or webhook configuration points at, without doubles.
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

/// The Services that an object points at: a registration, or a definition whose
/// conversion a webhook does.
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

/// The template of the pods that an object makes; a Pod is its own.
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

/// The `ConfigMaps` and Secrets that the pods of a Deployment, `StatefulSet` or
/// `DaemonSet` read, also optional ones.
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

fn definition(value: &Value) -> Option<Definition> {
    let spec = &value["spec"];
    let (group, kind) = (spec["group"].as_str()?, spec["names"]["kind"].as_str()?);
    let served = items(&spec["versions"])
        .filter(|version| version["served"] == true)
        .filter_map(|version| version["name"].as_str())
        .map(|version| Gvk::new(&format!("{group}/{version}"), kind))
        .collect();
    Some(Definition {
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

/// The policy of a binding is of the kind that the binding is named after.
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

/// What a webhook configuration intercepts.
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
