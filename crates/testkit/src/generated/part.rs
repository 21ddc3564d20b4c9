//! Parts of a generated bundle: a few objects that depend on each other and are changed, moved and
//! renamed together.

use serde_json::{Value, json};

use super::LABEL;

/// Kind of a part.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Kind {
    /// Server with an account, permissions, configuration and a Service.
    App,
    /// Server with persistent data.
    Database,
    /// Program on every node, with cluster-wide permissions.
    Agent,
    /// CRD with custom resources.
    Resources,
    /// Admission webhook server.
    Hook,
    /// Unused configuration.
    Settings,
    /// Scheduled job.
    Schedule,
    /// Permissions of users.
    Permissions,
}

impl Kind {
    pub(super) const ALL: [Self; 8] = [
        Self::App,
        Self::Database,
        Self::Agent,
        Self::Resources,
        Self::Hook,
        Self::Settings,
        Self::Schedule,
        Self::Permissions,
    ];

    pub(super) fn word(self) -> &'static str {
        match self {
            Self::App => "app",
            Self::Database => "database",
            Self::Agent => "agent",
            Self::Resources => "resources",
            Self::Hook => "hook",
            Self::Settings => "settings",
            Self::Schedule => "schedule",
            Self::Permissions => "rights",
        }
    }

    /// Returns whether the part can move.
    pub(super) fn is_namespaced(self) -> bool {
        !matches!(self, Self::Resources | Self::Permissions)
    }
}

/// Group of related objects.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Part {
    pub(super) kind: Kind,
    pub(super) name: String,
    /// Index of its namespace.
    pub(super) namespace: usize,
    /// Revision of its content.
    pub(super) revision: usize,
    /// Number of repeated objects.
    pub(super) size: usize,
    /// Whether its workload has pods.
    pub(super) has_pods: bool,
}

/// Returns the name of a namespace of a bundle.
pub(super) fn namespace(bundle: &str, number: usize) -> String {
    format!("{bundle}-{number}")
}

impl Part {
    pub(super) fn objects(&self, bundle: &str) -> Vec<Value> {
        let of = Of {
            part: self,
            bundle,
            namespace: namespace(bundle, self.namespace),
            global: format!("{bundle}-{}", self.name),
        };
        match self.kind {
            Kind::App => vec![
                of.account(),
                of.role(),
                of.binding(),
                of.config_map(&self.name),
                of.secret(),
                of.service(false),
                of.deployment(usize::from(self.has_pods)),
            ],
            Kind::Database => vec![
                of.account(),
                of.config_map(&self.name),
                of.secret(),
                of.service(true),
                of.stateful_set(),
                of.budget(),
            ],
            Kind::Agent => vec![
                of.account(),
                of.cluster_role(),
                of.cluster_binding(&json!([
                    {"kind": "ServiceAccount", "name": self.name, "namespace": of.namespace}
                ])),
                of.daemon_set(),
            ],
            Kind::Resources => std::iter::once(of.crd())
                .chain((0..self.size).map(|number| of.resource(number)))
                .collect(),
            Kind::Hook => vec![of.service(false), of.deployment(1), of.webhook()],
            Kind::Settings => (0..self.size)
                .map(|number| of.config_map(&format!("{}-{number}", self.name)))
                .collect(),
            Kind::Schedule => vec![of.account(), of.cron_job(), of.network_policy()],
            Kind::Permissions => vec![
                of.cluster_role(),
                of.cluster_binding(&json!([
                    {"apiGroup": "rbac.authorization.k8s.io", "kind": "Group", "name": of.global}
                ])),
                of.priority_class(),
            ],
        }
    }
}

/// Generator of the objects of a part.
struct Of<'a> {
    part: &'a Part,
    bundle: &'a str,
    namespace: String,
    /// Cluster-scoped name.
    global: String,
}

impl Of<'_> {
    fn object(&self, api_version: &str, kind: &str, name: &str, body: Value) -> Value {
        let metadata = json!({"name": name, "namespace": self.namespace});
        self.complete(api_version, kind, metadata, body)
    }

    fn global(&self, api_version: &str, kind: &str, name: &str, body: Value) -> Value {
        self.complete(api_version, kind, json!({"name": name}), body)
    }

    fn complete(&self, api_version: &str, kind: &str, mut metadata: Value, body: Value) -> Value {
        metadata["labels"] = json!({LABEL: self.bundle, "app": self.part.name});
        let mut object = json!({"apiVersion": api_version, "kind": kind});
        object["metadata"] = metadata;
        if let (Value::Object(object), Value::Object(body)) = (&mut object, body) {
            object.extend(body);
        }
        object
    }

    fn account(&self) -> Value {
        self.object("v1", "ServiceAccount", &self.part.name, json!({}))
    }

    fn rules(&self) -> Value {
        let verbs = ["get", "list", "watch", "update"];
        let verbs = &verbs[..=(1 + self.part.size + self.part.revision) % 4];
        json!([{"apiGroups": [""], "resources": ["configmaps"], "verbs": verbs}])
    }

    fn role(&self) -> Value {
        let body = json!({"rules": self.rules()});
        self.object(
            "rbac.authorization.k8s.io/v1",
            "Role",
            &self.part.name,
            body,
        )
    }

    fn binding(&self) -> Value {
        let body = json!({
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": self.part.name},
            "subjects": [{"kind": "ServiceAccount", "name": self.part.name, "namespace": self.namespace}],
        });
        let name = &self.part.name;
        self.object("rbac.authorization.k8s.io/v1", "RoleBinding", name, body)
    }

    fn cluster_role(&self) -> Value {
        let body = json!({"rules": self.rules()});
        let name = &self.global;
        self.global("rbac.authorization.k8s.io/v1", "ClusterRole", name, body)
    }

    fn cluster_binding(&self, subjects: &Value) -> Value {
        let role = json!({"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": self.global});
        let body = json!({"roleRef": role, "subjects": subjects});
        let api = "rbac.authorization.k8s.io/v1";
        self.global(api, "ClusterRoleBinding", &self.global, body)
    }

    /// Returns a ConfigMap. With each revision one key changes, one is removed and one is added.
    fn config_map(&self, name: &str) -> Value {
        let revision = self.part.revision;
        let mut data = json!({"name": name, "key": format!("revision {revision}")});
        data[format!("only-{revision}")] = json!("yes");
        self.object("v1", "ConfigMap", name, json!({"data": data}))
    }

    fn secret(&self) -> Value {
        use base64::{Engine as _, prelude::BASE64_STANDARD};

        let value = format!("secret of {} {}", self.part.name, self.part.revision);
        let body = json!({"type": "Opaque", "data": {"token": BASE64_STANDARD.encode(value)}});
        self.object("v1", "Secret", &self.part.name, body)
    }

    fn service(&self, is_headless: bool) -> Value {
        let mut spec = json!({
            "selector": {"app": self.part.name},
            "ports": [{"name": "http", "port": 79 + self.part.revision, "protocol": "TCP", "targetPort": 8080}],
        });
        if is_headless {
            spec["clusterIP"] = json!("None");
        }
        self.object("v1", "Service", &self.part.name, json!({"spec": spec}))
    }

    fn template(&self) -> Value {
        let name = &self.part.name;
        let image = format!("{}:{}", self.part.kind.word(), self.part.revision);
        let mut spec = json!({"containers": [{"name": "main", "image": image}]});
        if !matches!(self.part.kind, Kind::Hook) {
            spec["serviceAccountName"] = json!(name);
        }
        if matches!(self.part.kind, Kind::App | Kind::Database) {
            spec["containers"][0]["envFrom"] =
                json!([{"configMapRef": {"name": name}}, {"secretRef": {"name": name}}]);
        }
        json!({"metadata": {"labels": {"app": name}}, "spec": spec})
    }

    fn workload(&self, kind: &str, mut spec: Value) -> Value {
        spec["selector"] = json!({"matchLabels": {"app": self.part.name}});
        spec["template"] = self.template();
        self.object("apps/v1", kind, &self.part.name, json!({"spec": spec}))
    }

    fn deployment(&self, replicas: usize) -> Value {
        self.workload("Deployment", json!({"replicas": replicas}))
    }

    fn stateful_set(&self) -> Value {
        let replicas = usize::from(self.part.has_pods);
        let spec = json!({"replicas": replicas, "serviceName": self.part.name});
        self.workload("StatefulSet", spec)
    }

    fn daemon_set(&self) -> Value {
        self.workload("DaemonSet", json!({}))
    }

    fn budget(&self) -> Value {
        let spec = json!({"maxUnavailable": self.part.revision,
            "selector": {"matchLabels": {"app": self.part.name}}});
        let body = json!({"spec": spec});
        self.object("policy/v1", "PodDisruptionBudget", &self.part.name, body)
    }

    /// Returns the group of the custom resources.
    fn group(&self) -> String {
        format!("{}.{}.example.org", self.part.name, self.bundle)
    }

    fn crd(&self) -> Value {
        let group = self.group();
        let schema = json!({"type": "object", "properties": {"spec": {"type": "object",
            "properties": {"size": {"type": "integer"}, "words": {"type": "array", "items": {"type": "string"}}}}}});
        let mut columns =
            vec![json!({"name": "Size", "type": "integer", "jsonPath": ".spec.size"})];
        if self.part.revision > 1 {
            columns.push(
                json!({"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"}),
            );
        }
        let body = json!({"spec": {
            "group": group, "scope": "Namespaced",
            "names": {"plural": "things", "singular": "thing", "kind": "Thing", "listKind": "ThingList"},
            "versions": [{"name": "v1", "served": true, "storage": true,
                "schema": {"openAPIV3Schema": schema}, "additionalPrinterColumns": columns}],
        }});
        self.global(
            "apiextensions.k8s.io/v1",
            "CustomResourceDefinition",
            &format!("things.{group}"),
            body,
        )
    }

    fn resource(&self, number: usize) -> Value {
        let spec = json!({"size": number * self.part.revision, "words": ["a", "b"]});
        self.object(
            &format!("{}/v1", self.group()),
            "Thing",
            &format!("thing-{number}"),
            json!({"spec": spec}),
        )
    }

    /// Returns a webhook for objects that no client writes.
    fn webhook(&self) -> Value {
        let group = format!("nobody.{}.example.org", self.bundle);
        let body = json!({"webhooks": [{
            "name": format!("{}.{}.example.org", self.part.name, self.bundle),
            "admissionReviewVersions": ["v1"],
            "sideEffects": "None",
            "timeoutSeconds": self.part.revision,
            "clientConfig": {"service": {"name": self.part.name, "namespace": self.namespace, "path": "/",
                "port": 79 + self.part.revision}},
            "rules": [{"apiGroups": [group], "apiVersions": ["*"], "operations": ["CREATE"], "resources": ["*"]}],
        }]});
        let api = "admissionregistration.k8s.io/v1";
        let kind = if self.part.size.is_multiple_of(2) {
            "MutatingWebhookConfiguration"
        } else {
            "ValidatingWebhookConfiguration"
        };
        self.global(api, kind, &self.global, body)
    }

    fn cron_job(&self) -> Value {
        let mut template = self.template();
        template["spec"]["restartPolicy"] = json!("Never");
        let spec = json!({
            "schedule": format!("{} 3 * * *", self.part.revision),
            "suspend": true,
            "jobTemplate": {"spec": {"template": template}},
        });
        self.object(
            "batch/v1",
            "CronJob",
            &self.part.name,
            json!({"spec": spec}),
        )
    }

    fn network_policy(&self) -> Value {
        let spec = json!({
            "podSelector": {"matchLabels": {"app": self.part.name}},
            "policyTypes": ["Ingress"],
            "ingress": [{"ports": [{"port": 8079 + self.part.revision, "protocol": "TCP"}]}],
        });
        let body = json!({"spec": spec});
        self.object(
            "networking.k8s.io/v1",
            "NetworkPolicy",
            &self.part.name,
            body,
        )
    }

    fn priority_class(&self) -> Value {
        // The value is immutable.
        let body = json!({"value": self.part.size * 10,
            "description": format!("revision {}", self.part.revision)});
        self.global("scheduling.k8s.io/v1", "PriorityClass", &self.global, body)
    }
}
