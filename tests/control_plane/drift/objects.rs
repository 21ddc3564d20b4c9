//! Manifests for the drift cases, one small one per kind.

/// Kinds of the drift cases.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Object {
    ConfigMap,
    Secret,
    Service,
    Deployment,
    Role,
    Gear,
}

/// CRD with a schema, so that its fields have separate owners.
pub(super) const GEARS: &str = "\
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: gears.byhand.example.org}
spec:
  group: byhand.example.org
  scope: Namespaced
  names: {plural: gears, singular: gear, kind: Gear}
  versions:
    - name: v1
      served: true
      storage: true
      schema:
        openAPIV3Schema:
          type: object
          properties:
            spec:
              type: object
              properties: {size: {type: integer}, teeth: {type: integer}}
";

impl Object {
    /// Returns kubectl's name of the kind.
    pub(super) fn resource(self) -> &'static str {
        match self {
            Self::ConfigMap => "configmap",
            Self::Secret => "secret",
            Self::Service => "service",
            Self::Deployment => "deployment",
            Self::Role => "role",
            Self::Gear => "gears.byhand.example.org",
        }
    }

    /// Returns pleach's id of an object.
    pub(super) fn id(self, namespace: &str, name: &str) -> String {
        let kind = match self {
            Self::ConfigMap => "ConfigMap",
            Self::Secret => "Secret",
            Self::Service => "Service",
            Self::Deployment => "Deployment.apps",
            Self::Role => "Role.rbac.authorization.k8s.io",
            Self::Gear => "Gear.byhand.example.org",
        };
        format!("{kind}/{namespace}/{name}")
    }

    /// Returns the manifest in git.
    pub(super) fn manifest(self, name: &str) -> String {
        match self {
            Self::ConfigMap => format!(
                "\
apiVersion: v1
kind: ConfigMap
metadata: {{name: {name}, labels: {{tier: front}}, annotations: {{example.org/team: web}}}}
data: {{color: red, tone: dark}}
"
            ),
            Self::Secret => format!(
                "\
apiVersion: v1
kind: Secret
metadata: {{name: {name}}}
stringData: {{session: Xq7hush9vB2}}
"
            ),
            Self::Service => format!(
                "\
apiVersion: v1
kind: Service
metadata: {{name: {name}}}
spec:
  selector: {{app: {name}}}
  ports: [{{name: http, port: 80}}]
"
            ),
            Self::Deployment => format!(
                "\
apiVersion: apps/v1
kind: Deployment
metadata: {{name: {name}}}
spec:
  replicas: 0
  selector: {{matchLabels: {{app: {name}}}}}
  template:
    metadata: {{labels: {{app: {name}}}}}
    spec:
      initContainers: [{{name: i1, image: \"i1:1\"}}, {{name: i2, image: \"i2:1\"}}]
      containers:
        - name: app
          image: app:1
          args: [serve, --quiet]
          env: [{{name: A, value: \"1\"}}, {{name: B, value: \"2\"}}]
        - {{name: side, image: \"side:1\"}}
"
            ),
            Self::Role => format!(
                "\
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {{name: {name}}}
rules:
  - {{apiGroups: [\"\"], resources: [configmaps], verbs: [get, list]}}
  - {{apiGroups: [\"\"], resources: [services], verbs: [get]}}
"
            ),
            Self::Gear => format!(
                "\
apiVersion: byhand.example.org/v1
kind: Gear
metadata: {{name: {name}}}
spec: {{size: 1, teeth: 12}}
"
            ),
        }
    }
}
