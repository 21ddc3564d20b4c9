//! Generated products whose two versions are in different namespaces. Their pods register
//! themselves.
//!
//! The seed decides about replicas, added, removed, changed and renamed parts, new CRDs or CRD
//! versions, webhooks, changed rules, the order of declared stages, and gates.

use std::fmt::Write as _;

use fastrand::Rng;
use serde_json::{Value, json};

use super::part::{Kind, Part, namespace};
use super::{BUNDLE, Generated, LABEL, Maker, Side};
use crate::world::{Product, Resource, Webhook};

/// Optional rules that a component can have in only one version. A version that declares them must
/// have them while it runs.
const RULES: [(&str, &str, &[&str]); 6] = [
    ("", "nodes", &["get", "list", "watch"]),
    ("", "events", &["create", "patch"]),
    ("", "limitranges", &["list", "watch"]),
    ("", "persistentvolumeclaims", &["get", "list"]),
    ("apps", "deployments", &["get", "list", "watch"]),
    ("batch", "jobs", &["create", "delete"]),
];

/// Product that moves from one namespace to another.
#[derive(Debug, Clone)]
pub struct Moving {
    /// Bundle with both versions.
    pub bundle: Generated,
    /// Behavior of its pods.
    pub product: Product,
    /// Namespace of the old version.
    pub from: String,
    /// Namespace of the new version.
    pub to: String,
    /// Whether user settings exist in the old namespace, which must be moved.
    pub has_settings: bool,
    /// Plural of a CRD whose storage version changes.
    pub migrated: Option<String>,
}

/// Random properties of a product.
struct Choice {
    name: String,
    product: Product,
    replicas: usize,
    /// Rules of the api and of the controller, in the old and the new version.
    rules: [[Vec<Value>; 2]; 2],
    /// Whether the previous version of the other CRD is still served.
    keeps_former: bool,
    is_migrated: bool,
    /// Whether the new version contains the previous namespace too.
    namespace_stays: bool,
}

impl Moving {
    /// Generates a product. The name is part of all cluster-scoped names and must be a DNS label.
    pub fn new(name: &str, seed: u64) -> Self {
        let mut rng = Rng::with_seed(seed);
        let product = product(name, &mut rng);
        let has_settings = rng.bool();
        let choice = Choice {
            name: name.to_owned(),
            replicas: rng.usize(1..=2),
            rules: [(); 2].map(|()| [(); 2].map(|()| rules(&mut rng))),
            keeps_former: rng.bool(),
            is_migrated: rng.bool(),
            // A namespace with user data is retained.
            namespace_stays: has_settings || rng.bool(),
            product,
        };
        let mut maker = Maker {
            name,
            rng: &mut rng,
            namespaces: 1,
            counts: std::collections::BTreeMap::new(),
        };
        let mut old = Vec::new();
        // Always include an agent and an application with permissions.
        for kind in [Kind::App, Kind::Agent] {
            old.push(maker.part(kind));
        }
        for _ in 0..maker.rng.usize(0..5) {
            let kind = maker.any_kind();
            old.push(maker.part(kind));
        }
        for part in &mut old {
            part.has_pods = maker.rng.u8(0..3) > 0;
        }
        let (mut new, mut changes) = maker.next_version(&old);
        // All of the parts move, so do not list it.
        changes.retain(|change| !change.contains(" moves to "));
        for part in &mut new {
            part.namespace = 1;
        }
        let files = declared(&choice, &old, &new, &mut rng);
        let bundle = Generated {
            name: name.to_owned(),
            old: choice.objects(Side::Old, &old),
            new: choice.objects(Side::New, &new),
            changes,
            files,
        };
        let others = choice.others();
        Self {
            bundle,
            from: namespace(name, 0),
            to: namespace(name, 1),
            has_settings,
            migrated: choice.is_migrated.then_some(others),
            product: choice.product,
        }
    }
}

fn product(name: &str, rng: &mut Rng) -> Product {
    let group = format!("{name}.example.org");
    let mut hook = |word: &str, plural: &str, operations: &[&str]| Webhook {
        name: format!("{word}.{group}"),
        path: format!("/{word}"),
        plural: plural.to_owned(),
        operations: operations.iter().map(ToString::to_string).collect(),
        failure_policy: if rng.u8(0..4) == 0 { "Ignore" } else { "Fail" }.to_owned(),
    };
    let mut validating = vec![
        hook("validate-create", "things", &["CREATE"]),
        hook("validate-update", "things", &["UPDATE"]),
    ];
    // Mutating webhooks run before any gate. A webhook that pods register before they are ready
    // fails user requests until then, regardless of the backend (docs/guides/gates.md).
    let mutating = vec![Webhook {
        failure_policy: "Ignore".to_owned(),
        ..hook("mutate", "things", &["CREATE"])
    }];
    let other = hook("validate-others", "others", &["CREATE", "UPDATE"]);
    if rng.bool() {
        validating.push(other);
    }
    Product {
        component_label: format!("{group}/component"),
        api: format!("{name}-api"),
        controller: format!("{name}-controller"),
        service: format!("{name}-api"),
        port: 8443,
        certificates: format!("{name}-certs"),
        settings: format!("{name}-settings"),
        group: format!("sub.{group}"),
        version: "v1".to_owned(),
        validator: format!("{name}-validator"),
        validating,
        mutator: format!("{name}-mutator"),
        mutating,
        guarded: Resource {
            group,
            version: "v1".to_owned(),
            plural: "things".to_owned(),
            kind: "Thing".to_owned(),
        },
    }
}

fn rules(rng: &mut Rng) -> Vec<Value> {
    let rules = RULES.into_iter().filter(|_| rng.bool());
    rules
        .map(|(group, resource, verbs)| rule(group, resource, verbs))
        .collect()
}

fn rule(group: &str, resource: &str, verbs: &[&str]) -> Value {
    json!({"apiGroups": [group], "resources": [resource], "verbs": verbs})
}

/// Returns the declarations of the bundle: its files besides the manifests.
fn declared(choice: &Choice, old: &[Part], new: &[Part], rng: &mut Rng) -> Vec<(String, String)> {
    let Choice { name, product, .. } = choice;
    let (from, to) = (namespace(name, 0), namespace(name, 1));
    let mut bundle = format!(
        "{BUNDLE}runtimeObjects:\n\
         \x20 - {{kind: APIService, service: {0}}}\n\
         \x20 - {{kind: ValidatingWebhookConfiguration, service: {0}}}\n\
         \x20 - {{kind: MutatingWebhookConfiguration, service: {0}}}\n\
         \x20 - {{kind: Secret, name: {1}}}\n\
         \x20 - {{kind: Endpoints, name: {2}, optional: true}}\n\
         moves:\n  - {{from: {from}, to: {to}, copy: [{{kind: ConfigMap, name: {3}}}]}}\n",
        product.service, product.certificates, product.controller, product.settings,
    );
    if rng.u8(0..3) == 0 {
        let from = ["gates", "workloads"][rng.usize(0..2)];
        let _never_fails = writeln!(
            bundle,
            "gates:\n  - {{name: hold, groups: [{name}.example.org], from: {from}}}"
        );
    }
    let agents = old
        .iter()
        .chain(new)
        .filter(|part| part.kind == Kind::Agent);
    let agents: Vec<String> = agents
        .map(|part| format!("{{kind: DaemonSet, name: {}}}", part.name))
        .collect();
    let mut stages = vec![
        (
            "apis",
            format!("{{kind: Deployment, name: {}}}", product.api),
        ),
        (
            "controllers",
            format!("{{kind: Deployment, name: {}}}", product.controller),
        ),
        ("agents", agents.join(", ")),
    ];
    rng.shuffle(&mut stages);
    stages.truncate(rng.usize(0..=3));
    if !stages.is_empty() {
        bundle += "stages:\n";
    }
    for (stage, select) in stages {
        let _never_fails = writeln!(bundle, "  - {{name: {stage}, select: [{select}]}}");
    }
    let mut files = vec![("bundle.yaml".to_owned(), bundle)];
    if choice.is_migrated {
        files.push((
            format!("{}/version.yaml", Side::New.version()),
            format!(
                "apiVersion: pleach.dev/v1alpha1\nkind: BundleVersion\n\
                 migrate: [{{crd: others.{name}.example.org, from: v1alpha1, to: v1}}]\n"
            ),
        ));
    }
    files
}

impl Choice {
    /// Returns the name of the CRD whose version changes.
    fn others(&self) -> String {
        format!("others.{}.example.org", self.name)
    }

    fn objects(&self, side: Side, parts: &[Part]) -> Vec<Value> {
        let (place, namespaces) = match side {
            Side::Old => (0, vec![0]),
            Side::New if self.namespace_stays => (1, vec![0, 1]),
            Side::New => (1, vec![1]),
        };
        let of = Of {
            choice: self,
            side,
            namespace: namespace(&self.name, place),
        };
        let namespaces = namespaces.into_iter().map(|number| {
            of.object(
                "v1",
                "Namespace",
                None,
                &namespace(&self.name, number),
                json!({}),
            )
        });
        let parts = parts.iter().flat_map(|part| part.objects(&self.name));
        namespaces.chain(of.core()).chain(parts).collect()
    }
}

/// Generator of the objects of one version.
struct Of<'a> {
    choice: &'a Choice,
    side: Side,
    namespace: String,
}

impl Of<'_> {
    fn object(
        &self,
        api_version: &str,
        kind: &str,
        namespace: Option<&str>,
        name: &str,
        body: Value,
    ) -> Value {
        let mut object = json!({"apiVersion": api_version, "kind": kind,
            "metadata": {"name": name, "labels": {LABEL: self.choice.name}}});
        if let Some(namespace) = namespace {
            object["metadata"]["namespace"] = json!(namespace);
        }
        if let (Value::Object(object), Value::Object(body)) = (&mut object, body) {
            object.extend(body);
        }
        object
    }

    /// Returns the components that register themselves and elect a leader, and their dependencies.
    fn core(&self) -> Vec<Value> {
        let product = &self.choice.product;
        let group = &product.guarded.group;
        let registrations = [
            rule(
                "admissionregistration.k8s.io",
                "validatingwebhookconfigurations",
                &["get", "create", "update"],
            ),
            rule(
                "admissionregistration.k8s.io",
                "mutatingwebhookconfigurations",
                &["get", "create", "update"],
            ),
            rule(
                "apiregistration.k8s.io",
                "apiservices",
                &["get", "create", "update"],
            ),
            json!({"apiGroups": [""], "resources": ["configmaps"], "verbs": ["get"],
                "resourceNames": ["extension-apiserver-authentication"]}),
        ];
        let own = [
            rule("", "secrets", &["get", "create", "update"]),
            rule("", "configmaps", &["get", "list", "watch"]),
        ];
        let leads = [
            rule("", "endpoints", &["get", "create", "update"]),
            rule(group, "things", &["get", "list", "watch", "update"]),
        ];
        let mut all = self.crds();
        all.extend(self.component(0, &product.api, &registrations, &own));
        all.extend(self.component(1, &product.controller, &leads, &[]));
        all.push(self.object(
            "v1",
            "Service",
            Some(&self.namespace),
            &product.service,
            json!({"spec": {"selector": {"app": product.api},
                "ports": [{"port": 443, "targetPort": product.port, "protocol": "TCP"}]}}),
        ));
        // Users get the permissions through the aggregated role `edit`.
        let mut edit = self.object(
            "rbac.authorization.k8s.io/v1",
            "ClusterRole",
            None,
            &format!("{}-edit", self.choice.name),
            json!({"rules": [rule(group, "things", &["get", "list", "create", "update", "patch", "delete"])]}),
        );
        edit["metadata"]["labels"]["rbac.authorization.k8s.io/aggregate-to-edit"] = json!("true");
        all.push(edit);
        all
    }

    fn crds(&self) -> Vec<Value> {
        let group = &self.choice.product.guarded.group;
        let version = |name: &str, storage: bool| {
            json!({"name": name, "served": true, "storage": storage, "schema": {"openAPIV3Schema":
                {"type": "object", "x-kubernetes-preserve-unknown-fields": true}}})
        };
        let crd = |plural: &str, kind: &str, versions: Vec<Value>| {
            let body = json!({"spec": {"group": group, "scope": "Namespaced", "versions": versions,
                "names": {"kind": kind, "listKind": format!("{kind}List"), "plural": plural,
                    "singular": kind.to_lowercase()}}});
            let api = "apiextensions.k8s.io/v1";
            let name = format!("{plural}.{group}");
            self.object(api, "CustomResourceDefinition", None, &name, body)
        };
        let others = match (self.choice.is_migrated, self.side) {
            (true, Side::Old) => vec![version("v1alpha1", true)],
            (true, Side::New) if self.choice.keeps_former => {
                vec![version("v1", true), version("v1alpha1", false)]
            }
            (true, Side::New) | (false, _) => vec![version("v1", true)],
        };
        vec![
            crd("things", "Thing", vec![version("v1", true)]),
            crd("others", "Other", others),
        ]
    }

    /// Returns an account with its permissions and Deployment.
    fn component(&self, which: usize, name: &str, global: &[Value], own: &[Value]) -> Vec<Value> {
        let Choice { product, rules, .. } = self.choice;
        let side = usize::from(self.side == Side::New);
        let namespace = self.namespace.as_str();
        let rbac = "rbac.authorization.k8s.io/v1";
        let subjects = json!([{"kind": "ServiceAccount", "name": name, "namespace": namespace}]);
        let role = |kind: &str| json!({"apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": name});
        let mut global = global.to_vec();
        global.extend(rules[which][side].iter().cloned());
        let mut all = vec![
            self.object("v1", "ServiceAccount", Some(namespace), name, json!({})),
            self.object(rbac, "ClusterRole", None, name, json!({"rules": global})),
            self.object(
                rbac,
                "ClusterRoleBinding",
                None,
                name,
                json!({"roleRef": role("ClusterRole"), "subjects": subjects}),
            ),
        ];
        if !own.is_empty() {
            all.push(self.object(rbac, "Role", Some(namespace), name, json!({"rules": own})));
            all.push(self.object(
                rbac,
                "RoleBinding",
                Some(namespace),
                name,
                json!({"roleRef": role("Role"), "subjects": subjects}),
            ));
        }
        all.push(self.object(
            "apps/v1",
            "Deployment",
            Some(namespace),
            name,
            json!({"spec": {
                "replicas": self.choice.replicas,
                "selector": {"matchLabels": {"app": name}},
                "template": {
                    "metadata": {"labels": {"app": name, &product.component_label: name}},
                    "spec": {"serviceAccountName": name, "containers": [
                        {"name": "main", "image": format!("{name}:{}", self.side.version())}]},
                },
            }}),
        ));
        all
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::generated::id;

    #[test]
    fn the_same_seed_gives_the_same_product() {
        let files = |seed| Moving::new("m", seed).bundle.files();
        assert_eq!(files(1), files(1));
        assert_ne!(files(1), files(2));
    }

    #[test]
    fn everything_moves_and_every_kind_of_declaration_comes() {
        let mut words = BTreeSet::new();
        for seed in 0..40 {
            let moving = Moving::new("m", seed);
            for (side, place) in [(Side::Old, &moving.from), (Side::New, &moving.to)] {
                let objects = moving.bundle.objects(side);
                let ids: BTreeSet<String> = objects.iter().map(id).collect();
                assert_eq!(ids.len(), objects.len(), "seed {seed}: an id comes twice");
                for object in objects {
                    let namespace = object["metadata"]["namespace"].as_str();
                    assert!(namespace.is_none_or(|one| one == place), "{object}");
                }
                assert!(ids.contains(&format!("Namespace/{place}")));
                assert!(ids.contains(&format!("Deployment.apps/{place}/m-api")));
            }
            let files = moving.bundle.files();
            for word in ["gates:", "stages:", "migrate:", "agents", "controllers"] {
                if files.iter().any(|(path, text)| {
                    path.ends_with("bundle.yaml") && text.contains(word)
                        || path.ends_with("version.yaml") && text.contains(word)
                }) {
                    words.insert(word);
                }
            }
            assert_eq!(
                moving.migrated.is_some(),
                files.iter().any(|(path, _)| path.ends_with("version.yaml"))
            );
        }
        assert_eq!(words.len(), 5, "{words:?}");
    }
}
