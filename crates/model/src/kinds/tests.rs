use rstest::rstest;
use serde_json::json;

use super::*;
use crate::object::{Manifest, ObjectId, Origin};

#[test]
fn every_checked_in_table_has_its_declared_minor_version() {
    for minor in KindTable::minors() {
        let table = KindTable::for_minor(minor).unwrap();
        assert_eq!(table.minor(), minor);
        assert!(table.groups.len() > 15, "{minor} has too few groups");
    }
}

/// Also checks that every table can be decoded.
#[test]
fn every_kind_at_every_version_has_a_schema() {
    for minor in KindTable::minors() {
        let table = KindTable::for_minor(minor).unwrap();
        for (group, kinds) in &table.groups {
            for (kind, entry) in kinds {
                for version in &entry.versions {
                    let gvk = Gvk {
                        api_version: ApiVersion {
                            group: group.clone(),
                            version: version.clone(),
                        },
                        kind: kind.clone(),
                    };
                    let schema = table.schema(&gvk);
                    let schema = schema.unwrap_or_else(|| panic!("{minor} lacks {gvk}"));
                    assert!(schema.field("metadata").is_some(), "{minor}: {gvk}");
                }
                assert!(!entry.verbs.is_empty(), "{minor}: {group} {kind}");
            }
        }
    }
}

#[rstest]
#[case("apps", "Deployment", Scope::Namespaced, "deployments", &["v1"])]
#[case("", "Namespace", Scope::Cluster, "namespaces", &["v1"])]
#[case("", "Endpoints", Scope::Namespaced, "endpoints", &["v1"])]
#[case("autoscaling", "HorizontalPodAutoscaler", Scope::Namespaced, "horizontalpodautoscalers", &["v2", "v1"])]
#[case("apiregistration.k8s.io", "APIService", Scope::Cluster, "apiservices", &["v1"])]
fn kinds_are_the_same_in_every_minor(
    #[case] group: &str,
    #[case] kind: &str,
    #[case] scope: Scope,
    #[case] plural: &str,
    #[case] versions: &[&str],
) {
    let kind = GroupKind::new(group, kind);
    for minor in KindTable::minors() {
        let table = KindTable::for_minor(&format!("v{minor}.3")).unwrap();
        assert_eq!(table.scope(&kind), Some(scope));
        assert_eq!(table.plural(&kind), Some(plural));
        assert_eq!(table.versions(&kind), versions);
        assert!(table.verbs(&kind).contains(&"patch".to_owned()));
    }
}

#[test]
fn removed_versions_and_kinds_are_distinguished_from_unknown_ones() {
    let table = KindTable::for_minor("1.36").unwrap();
    assert!(!table.served(&Gvk::new("policy/v1beta1", "PodDisruptionBudget")));
    assert!(table.served(&Gvk::new("policy/v1", "PodDisruptionBudget")));
    assert!(table.knows_group("policy"));
    assert!(table.knows_group("extensions"));
    assert!(!table.knows_group("example.org"));
    assert_eq!(table.api_versions("Ingress"), ["networking.k8s.io/v1"]);
}

#[test]
fn minors_differ() {
    let policy = GroupKind::new("admissionregistration.k8s.io", "MutatingAdmissionPolicy");
    let versions = |minor: &str| {
        let table = KindTable::for_minor(minor).unwrap();
        table.versions(&policy).to_vec()
    };
    assert_eq!(versions("1.33"), Vec::<String>::new());
    assert_eq!(versions("1.36"), ["v1"]);
}

#[rstest]
#[case(Some("1.36"), "1.36", false)]
#[case(Some("v1.36.9-gke.1"), "1.36", false)]
#[case(Some("1.34"), "1.34", false)]
#[case(None, "1.36", false)]
#[case(Some("1.29"), "1.32", true)]
#[case(Some("1.99"), "1.36", true)]
#[case(Some("soon"), "1.36", true)]
fn the_nearest_table_comes_with_a_note(
    #[case] declared: Option<&str>,
    #[case] nearest: &str,
    #[case] noted: bool,
) {
    let (table, note) = KindTable::nearest(declared);
    assert_eq!(table.minor(), nearest);
    assert_eq!(note.is_some(), noted, "{note:?}");
    assert!(KindTable::for_minor("1.29").is_none());
}

#[test]
fn a_table_survives_compression() {
    let table = KindTable::for_minor("1.36").unwrap();
    let (kinds, schemas) = (table.to_gz().unwrap(), table.schemas_to_gz().unwrap());
    assert_eq!(kinds, table.to_gz().unwrap());
    assert_eq!(KindTable::from_gz(&kinds, &schemas).unwrap(), table);
    assert!(KindTable::from_gz(b"no", &schemas).is_err());
    assert!(KindTable::from_gz(&kinds, b"no").is_err());
}

/// Checks the schema of a built-in kind at a path. `*` stands for a list item or a value of a map
/// with arbitrary keys.
fn built_in(api_version: &str, kind: &str, path: &str, check: impl Fn(Schema<'_>)) {
    let table = KindTable::for_minor("1.36").unwrap();
    let schema = table.schema(&Gvk::new(api_version, kind)).unwrap();
    let found = schema.at(path.split('.').filter(|step| !step.is_empty()));
    check(found.unwrap_or_else(|| panic!("{kind} has no {path}")));
}

#[rstest]
#[case("apps/v1", "Deployment", "spec.replicas", Type::Integer)]
#[case(
    "apps/v1",
    "Deployment",
    "spec.template.spec.containers.*.image",
    Type::String
)]
#[case(
    "apps/v1",
    "Deployment",
    "spec.template.spec.containers.*.resources.limits.*",
    Type::Quantity
)]
#[case(
    "apps/v1",
    "Deployment",
    "spec.strategy.rollingUpdate.maxSurge",
    Type::IntOrString
)]
#[case("v1", "ConfigMap", "data.*", Type::String)]
#[case("v1", "ConfigMap", "immutable", Type::Boolean)]
#[case("v1", "Secret", "data.*", Type::Bytes)]
#[case("v1", "Pod", "metadata.creationTimestamp", Type::Time)]
#[case(
    "apiextensions.k8s.io/v1",
    "CustomResourceDefinition",
    "spec.versions.*.schema.openAPIV3Schema.properties.*.properties.*.type",
    Type::String
)]
#[case(
    "apiextensions.k8s.io/v1",
    "CustomResourceDefinition",
    "spec.versions.*.schema.openAPIV3Schema.default",
    Type::Any
)]
fn types_of_fields(
    #[case] api_version: &str,
    #[case] kind: &str,
    #[case] path: &str,
    #[case] expected: Type,
) {
    built_in(api_version, kind, path, |schema| {
        assert_eq!(schema.kind(), expected);
    });
}

#[test]
fn lists_declare_their_merge_strategy() {
    let ports = "spec.template.spec.containers.*.ports";
    built_in("apps/v1", "Deployment", ports, |schema| {
        let ListKind::Map(keys) = schema.list() else {
            panic!("{:?}", schema.list());
        };
        assert_eq!(keys, ["containerPort", "protocol"]);
        let port = schema.items().unwrap();
        assert_eq!(
            port.field("protocol").unwrap().default(),
            Some(&json!("TCP"))
        );
        assert!(port.field("porrt").is_none());
    });
    built_in("v1", "Pod", "metadata.finalizers", |schema| {
        assert_eq!(schema.list(), ListKind::Set);
    });
    let rules = "rules";
    built_in("rbac.authorization.k8s.io/v1", "Role", rules, |schema| {
        assert_eq!(schema.list(), ListKind::Atomic);
        assert!(!schema.preserves_unknown());
    });
    built_in("apps/v1", "Deployment", "spec.selector", |schema| {
        assert!(schema.is_atomic_map());
    });
    built_in("apps/v1", "ControllerRevision", "data", |schema| {
        assert!(schema.preserves_unknown());
    });
}

/// Builds a CRD with two served versions and one that is not served.
fn crd() -> Manifest {
    let schema = json!({
        "type": "object",
        "required": ["spec"],
        "properties": {"spec": {
            "type": "object",
            "properties": {
                "size": {"type": "integer", "default": 3},
                "mode": {"type": "string", "enum": ["fast", "safe"]},
                "memory": {
                    "anyOf": [{"type": "integer"}, {"type": "string"}],
                    "pattern": r"^(\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))(([KMGTPE]i)|[numkMGTPE]|([eE](\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))))?$",
                    "x-kubernetes-int-or-string": true,
                },
                "port": {"x-kubernetes-int-or-string": true},
                "free": {"type": "object", "x-kubernetes-preserve-unknown-fields": true},
                "note": {"type": "string", "nullable": true},
                "parts": {
                    "type": "array",
                    "x-kubernetes-list-type": "map",
                    "x-kubernetes-list-map-keys": ["name"],
                    "items": {"type": "object", "properties": {"name": {"type": "string"}}},
                },
                "template": {"type": "object", "x-kubernetes-embedded-resource": true},
            },
        }},
    });
    let version = |name: &str, served: bool, schema: &Value| {
        json!({
            "name": name, "served": served, "storage": name == "v1",
            "schema": {"openAPIV3Schema": schema},
        })
    };
    let old = json!({"type": "object", "properties": {"spec": {"type": "string"}}});
    let value = json!({
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": "foos.example.org"},
        "spec": {
            "group": "example.org", "scope": "Cluster",
            "names": {"kind": "Foo", "plural": "foos"},
            "versions": [
                version("v1", true, &schema),
                version("v1beta1", true, &old),
                version("v1alpha1", false, &old),
            ],
        },
    });
    Manifest::new(
        ObjectId::new(
            "apiextensions.k8s.io",
            "CustomResourceDefinition",
            None,
            "foos.example.org",
        ),
        ApiVersion::parse("apiextensions.k8s.io/v1"),
        Origin::new("crd.yaml", 1),
        &value,
        false,
    )
}

#[test]
fn crds_give_the_same_schemas() {
    let crds = Crds::of([&crd()]);
    let table = KindTable::for_minor("1.36").unwrap();
    let catalog = Catalog {
        table: &table,
        crds: &crds,
    };
    let foo = catalog.schema(&Gvk::new("example.org/v1", "Foo")).unwrap();
    assert_eq!(foo.required(), ["spec"]);
    let spec = foo.field("spec").unwrap();
    assert_eq!(spec.field("size").unwrap().default(), Some(&json!(3)));
    assert_eq!(spec.field("mode").unwrap().choices(), ["fast", "safe"]);
    assert!(spec.field("memory").unwrap().is_quantity());
    assert_eq!(spec.field("port").unwrap().kind(), Type::IntOrString);
    assert!(spec.field("free").unwrap().preserves_unknown());
    assert!(!spec.preserves_unknown());
    let ListKind::Map(keys) = spec.field("parts").unwrap().list() else {
        panic!("a map list")
    };
    assert_eq!(keys, ["name"]);
    for object in [foo, spec.field("template").unwrap()] {
        assert_eq!(
            object.at(["metadata", "labels", "x"]).unwrap().kind(),
            Type::String
        );
        assert_eq!(object.field("apiVersion").unwrap().kind(), Type::String);
    }
    let old = catalog
        .schema(&Gvk::new("example.org/v1beta1", "Foo"))
        .unwrap();
    assert_eq!(old.field("spec").unwrap().kind(), Type::String);
    assert!(
        catalog
            .schema(&Gvk::new("example.org/v1alpha1", "Foo"))
            .is_none()
    );
    assert!(catalog.schema(&Gvk::new("v1", "Pod")).is_some());
    let kind = GroupKind::new("example.org", "Foo");
    assert_eq!(crds.scope(&kind), Some(Scope::Cluster));
    assert_eq!(crds.versions(&kind), ["v1", "v1beta1"]);
}

#[test]
fn invalid_crds_define_nothing() {
    let broken = Manifest::new(
        ObjectId::new(
            "apiextensions.k8s.io",
            "CustomResourceDefinition",
            None,
            "x",
        ),
        ApiVersion::parse("apiextensions.k8s.io/v1"),
        Origin::new("crd.yaml", 1),
        &json!({"spec": {"group": "example.org"}}),
        false,
    );
    assert_eq!(Crds::of([&broken]).kinds().count(), 0);
}
