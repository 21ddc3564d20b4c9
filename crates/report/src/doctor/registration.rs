//! Registrations of Services: aggregated APIs, webhooks and conversions.

use std::collections::BTreeSet;

use serde::Deserialize;
use serde_json::Value;

use super::Subject;
use pleach_model::object::{GroupKind, ObjectId, ServiceRef};
use pleach_planner::observe::available;

/// An object that refers to Services.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Registered {
    /// Id and metadata of the object.
    pub subject: Subject,
    /// Kind of the registration.
    pub role: Role,
}

/// Kinds of registrations.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Role {
    /// A group-version that is served by another API server.
    Api {
        /// Group and version, such as `metrics.k8s.io/v1beta1`.
        group_version: String,
        /// Service of that server.
        service: ServiceRef,
        /// Reason and message of the Available condition. `None` while it is true.
        unavailable: Option<String>,
    },
    /// Admission webhooks.
    Webhooks(Vec<Webhook>),
    /// A conversion webhook for the objects of a CRD.
    Conversion {
        /// Resource and group, such as `things.example.org`.
        resource: String,
        /// Versions that are served.
        served: Vec<String>,
        /// Service of the webhook.
        service: ServiceRef,
    },
}

/// A webhook of a configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Webhook {
    /// Its name, as it appears in error messages.
    pub name: String,
    /// Service of the webhook. `None` for a URL.
    pub service: Option<ServiceRef>,
    /// Whether a failed call refuses the write (`failurePolicy: Fail`).
    pub refuses: bool,
    /// Whether the webhook can change the object.
    pub mutates: bool,
    /// Whether selectors or match conditions exclude some objects.
    pub selects: bool,
    /// Writes for which the webhook is called.
    pub rules: Vec<Rule>,
}

/// Writes for which a webhook is called.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
#[derive(Default)]
pub struct Rule {
    /// Operations: `CREATE`, `UPDATE`, `DELETE`, `CONNECT` or `*`.
    pub operations: Vec<String>,
    /// API groups. The core group is empty.
    pub api_groups: Vec<String>,
    /// Plural names, with subresources.
    pub resources: Vec<String>,
}

/// A `CustomResourceDefinition` without its schemas, which are large.
#[derive(Debug, Clone, Deserialize)]
pub struct Crd {
    metadata: Value,
    spec: CrdSpec,
}

#[derive(Debug, Clone, Deserialize)]
struct CrdSpec {
    group: String,
    names: Names,
    #[serde(default)]
    versions: Vec<DefinedVersion>,
    #[serde(default)]
    conversion: Option<Value>,
}

#[derive(Debug, Clone, Deserialize)]
struct Names {
    plural: String,
    kind: String,
}

#[derive(Debug, Clone, Deserialize)]
struct DefinedVersion {
    name: String,
    #[serde(default)]
    served: bool,
}

impl Registered {
    /// Reads an `APIService`. Returns `None` if the API server itself serves it.
    pub fn api_service(value: &Value) -> Option<Self> {
        let spec = &value["spec"];
        let service = service(&spec["service"])?;
        let id = id("apiregistration.k8s.io", "APIService", value)?;
        let text = |key: &str| spec[key].as_str().unwrap_or_default();
        Some(Self {
            subject: Subject::read(id, &value["metadata"]),
            role: Role::Api {
                group_version: format!("{}/{}", text("group"), text("version")),
                service,
                unavailable: available(value).err(),
            },
        })
    }

    /// Reads a webhook configuration. Returns `None` if it contains no webhooks.
    pub fn webhooks(kind: &str, value: &Value) -> Option<Self> {
        let id = id("admissionregistration.k8s.io", kind, value)?;
        let mutates = kind.starts_with("Mutating");
        let webhooks: Vec<Webhook> = value["webhooks"]
            .as_array()?
            .iter()
            .map(|webhook| read_webhook(webhook, mutates))
            .collect();
        (!webhooks.is_empty()).then(|| Self {
            subject: Subject::read(id, &value["metadata"]),
            role: Role::Webhooks(webhooks),
        })
    }

    /// Returns the distinct Services of the registration.
    pub fn services(&self) -> BTreeSet<&ServiceRef> {
        match &self.role {
            Role::Api { service, .. } | Role::Conversion { service, .. } => [service].into(),
            Role::Webhooks(webhooks) => webhooks
                .iter()
                .filter_map(|webhook| webhook.service.as_ref())
                .collect(),
        }
    }
}

impl Crd {
    /// Returns the kind that the CRD defines.
    pub fn kind(&self) -> GroupKind {
        GroupKind::new(self.spec.group.clone(), self.spec.names.kind.clone())
    }

    /// Returns the conversion webhook. `None` if it has no Service.
    pub fn registered(&self) -> Option<Registered> {
        let conversion = self.spec.conversion.as_ref()?;
        if conversion["strategy"] != "Webhook" {
            return None;
        }
        let service = service(&conversion["webhook"]["clientConfig"]["service"])?;
        let name = self.metadata["name"].as_str()?;
        let id = ObjectId::new(
            "apiextensions.k8s.io",
            "CustomResourceDefinition",
            None,
            name,
        );
        Some(Registered {
            subject: Subject::read(id, &self.metadata),
            role: Role::Conversion {
                resource: format!("{}.{}", self.spec.names.plural, self.spec.group),
                served: self
                    .spec
                    .versions
                    .iter()
                    .filter(|version| version.served)
                    .map(|version| version.name.clone())
                    .collect(),
                service,
            },
        })
    }
}

fn id(group: &str, kind: &str, value: &Value) -> Option<ObjectId> {
    Some(ObjectId::new(
        group,
        kind,
        None,
        value["metadata"]["name"].as_str()?,
    ))
}

fn service(value: &Value) -> Option<ServiceRef> {
    Some(ServiceRef {
        namespace: value["namespace"].as_str()?.to_owned(),
        name: value["name"].as_str()?.to_owned(),
    })
}

fn read_webhook(webhook: &Value, mutates: bool) -> Webhook {
    let restricts = |key: &str| match &webhook[key] {
        Value::Object(fields) => !fields.is_empty(),
        Value::Array(items) => !items.is_empty(),
        _ => false,
    };
    Webhook {
        name: webhook["name"].as_str().unwrap_or_default().to_owned(),
        service: service(&webhook["clientConfig"]["service"]),
        refuses: webhook["failurePolicy"] != "Ignore",
        mutates,
        selects: ["namespaceSelector", "objectSelector", "matchConditions"]
            .into_iter()
            .any(restricts),
        rules: Vec::deserialize(&webhook["rules"]).unwrap_or_default(),
    }
}
