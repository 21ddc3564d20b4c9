use proptest::prelude::*;
use rstest::rstest;
use serde_json::json;

use super::*;
use pleach_model::kinds::KindTable;
use pleach_model::object::{Gvk, yaml};

/// Compares objects without secret fields.
fn compare(
    old: &Value,
    new: &Value,
    owned: &FieldSet,
    scope: Scope,
    schema: Option<Schema<'_>>,
) -> Comparison {
    super::compare(old, new, owned, scope, schema, &Secrecy::default())
}

/// Returns all changes that count, as `path: old -> new`.
fn check(old: &Value, new: &Value, owned: &Value, scope: Scope) -> Vec<String> {
    let side = |value: Option<Value>| value.map_or_else(|| "-".to_owned(), |v| v.to_string());
    compare(old, new, &FieldSet::parse(owned), scope, None)
        .changes
        .into_iter()
        .map(|change| {
            format!(
                "{}: {} -> {}",
                change.path,
                side(change.old),
                side(change.new)
            )
        })
        .collect()
}

/// Our fields name items by key, and the list contains one key twice. The duplicate is not ours,
/// but counts nevertheless.
#[test]
fn a_doubled_item_of_a_list_of_ours_counts() {
    let item = |name: &str, value: &str| json!({"name": name, "value": value});
    let old = json!({"env": [item("A", "1"), item("B", "2"), item("A", "3")]});
    let new = json!({"env": [item("A", "1"), item("B", "2")]});
    let key = |name: &str| format!(r#"k:{{"name":"{name}"}}"#);
    let owned =
        json!({"f:env": {key("A"): {".": {}, "f:name": {}}, key("B"): {".": {}, "f:name": {}}}});
    assert_eq!(
        check(&old, &new, &owned, Scope::Owned),
        [r#".env[2]: {"name":"A","value":"3"} -> -"#]
    );
}

fn all(old: &Value, new: &Value) -> Vec<String> {
    check(old, new, &json!({}), Scope::All)
}

#[rstest]
#[case::map(json!({"a": 1, "b": {"c": 2}}), json!({"b": {"c": 3}, "d": [1]}),
    &[".a: 1 -> -", ".b.c: 2 -> 3", ".d: - -> [1]"])]
#[case::containers(
    json!({"containers": [{"name": "a", "image": "a:1"}, {"name": "b", "image": "b:1"}]}),
    json!({"containers": [{"name": "new"}, {"name": "a", "image": "a:2"}]}),
    &[r#".containers[name="a"].image: "a:1" -> "a:2""#,
      r#".containers[name="b"]: {"name":"b","image":"b:1"} -> -"#,
      r#".containers[name="new"]: - -> {"name":"new"}"#])]
#[case::order_is_content(
    json!({"env": [{"name": "A", "value": "1"}, {"name": "B", "value": "$(A)"}]}),
    json!({"env": [{"name": "B", "value": "$(A)"}, {"name": "A", "value": "1"}]}),
    &[r#".env: [{"name":"A"},{"name":"B"}] -> [{"name":"B"},{"name":"A"}]"#])]
#[case::ports_without_names(
    json!({"ports": [{"containerPort": 80}, {"containerPort": 53, "protocol": "UDP"}]}),
    json!({"ports": [{"containerPort": 80, "hostPort": 80}, {"containerPort": 53, "protocol": "UDP"}]}),
    &[r#".ports[containerPort=80,protocol="TCP"].hostPort: - -> 80"#])]
#[case::service_ports(
    json!({"ports": [{"port": 80, "targetPort": 1}]}), json!({"ports": [{"port": 80, "targetPort": 2}]}),
    &[r#".ports[port=80,protocol="TCP"].targetPort: 1 -> 2"#])]
#[case::named_ports(
    json!({"ports": [{"name": "http", "port": 80}]}), json!({"ports": [{"name": "http", "port": 81}]}),
    &[r#".ports[name="http"].port: 80 -> 81"#])]
#[case::duplicate_keys_fall_back_to_positions(
    json!({"env": [{"name": "A", "value": "1"}, {"name": "A", "value": "2"}]}),
    json!({"env": [{"name": "A", "value": "1"}, {"name": "A", "value": "3"}]}),
    &[r#".env[1].value: "2" -> "3""#])]
#[case::positions(
    json!({"args": ["a", "b", "c"]}), json!({"args": ["a", "x", "b", "c"]}),
    &[r#".args[1]: - -> "x""#])]
#[case::positions_of_maps(
    json!({"rules": [{"verbs": ["get"]}, {"verbs": ["list"]}]}), json!({"rules": [{"verbs": ["get", "watch"]}, {"verbs": ["list"]}]}),
    &[r#".rules[0].verbs[1]: - -> "watch""#])]
#[case::sets(
    json!({"finalizers": ["a", "b"]}), json!({"finalizers": ["c", "a"]}),
    &[r#".finalizers[="b"]: "b" -> -"#, r#".finalizers[="c"]: - -> "c""#])]
#[case::set_order(json!({"finalizers": ["a", "b"]}), json!({"finalizers": ["b", "a"]}), &[])]
#[case::quantities(
    json!({"resources": {"limits": {"cpu": "1000m", "memory": "1Gi"}}, "env": "1000m"}),
    json!({"resources": {"limits": {"cpu": 1, "memory": "1025Mi"}}, "env": "1"}),
    &[r#".env: "1000m" -> "1""#, r#".resources.limits.memory: "1Gi" -> "1025Mi""#])]
#[case::types(json!({"port": 80}), json!({"port": "80"}), &[r#".port: 80 -> "80""#])]
#[case::shapes(json!({"a": {"b": 1}}), json!({"a": [1]}), &[r#".a: {"b":1} -> [1]"#])]
fn fields(#[case] old: Value, #[case] new: Value, #[case] expected: &[&str]) {
    assert_eq!(all(&old, &new), expected);
}

/// Returns all changes of an object of a built-in kind.
fn check_kind(api_version: &str, kind: &str, old: &str, new: &str) -> Vec<String> {
    let table = KindTable::for_minor("1.36").unwrap();
    let schema = table.schema(&Gvk::new(api_version, kind));
    assert!(schema.is_some());
    let read = |text: &str| yaml::parse_documents(text).unwrap()[0].value.clone();
    let changes = compare(
        &read(old),
        &read(new),
        &FieldSet::default(),
        Scope::All,
        schema,
    )
    .changes;
    changes
        .iter()
        .map(|change| {
            let order = if change.reordered { ": order" } else { "" };
            format!("{}{order}", change.path)
        })
        .collect()
}

#[rstest]
// Keys come from the server's schema, with defaults, instead of the table.
#[case::ports("v1", "Service", "spec: {ports: [{port: 80, name: a}, {port: 443}]}",
    "spec: {ports: [{port: 443, protocol: TCP, targetPort: 1}, {port: 80, name: b}]}",
    &[".spec.ports[port=80,protocol=\"TCP\"].name", ".spec.ports[port=443,protocol=\"TCP\"].protocol",
      ".spec.ports[port=443,protocol=\"TCP\"].targetPort", ".spec.ports: order"])]
#[case::int_or_string("v1", "Service", "spec: {ports: [{port: 80, targetPort: 8080}]}",
    "spec: {ports: [{port: 80, targetPort: '8080'}]}", &[])]
#[case::quantities("v1", "ResourceQuota", "spec: {hard: {cpu: 1000m, memory: 1Gi}}", "spec: {hard: {cpu: 1, memory: 2Gi}}",
    &[".spec.hard.memory"])]
// The key only looks like a quantity.
#[case::no_quantity("v1", "ConfigMap", "data: {limits: '1000m'}", "data: {limits: '1'}", &[".data.limits"])]
#[case::times("v1", "Pod", "spec: {x: 1}\nstatus: {startTime: '2026-01-01T01:00:00Z'}", "spec: {x: 1}\nstatus: {startTime: '2026-01-01T02:00:00+01:00'}", &[])]
#[case::sets("v1", "Pod", "metadata: {finalizers: [a, b]}", "metadata: {finalizers: [b, a]}", &[])]
// The list is atomic for the server, but its items have names.
#[case::versions("apiextensions.k8s.io/v1", "CustomResourceDefinition",
    "spec: {versions: [{name: v1, served: true}]}", "spec: {versions: [{name: v2, served: true}, {name: v1, served: false}]}",
    &[".spec.versions[name=\"v1\"].served", ".spec.versions[name=\"v2\"]"])]
#[case::rules("rbac.authorization.k8s.io/v1", "ClusterRole",
    "rules: [{verbs: [a]}, {verbs: [b]}]", "rules: [{verbs: [b]}, {verbs: [a]}]", &[".rules: order"])]
#[case::arguments("v1", "Pod", "spec: {containers: [{name: a, args: [x, y]}]}", "spec: {containers: [{name: a, args: [y, x]}]}",
    &[".spec.containers[name=\"a\"].args[0]", ".spec.containers[name=\"a\"].args[1]"])]
fn schemas_define_equality(
    #[case] api_version: &str,
    #[case] kind: &str,
    #[case] old: &str,
    #[case] new: &str,
    #[case] expected: &[&str],
) {
    assert_eq!(check_kind(api_version, kind, old, new), expected);
}

#[test]
fn only_owned_fields_count() {
    let old = json!({"spec": {"replicas": 1, "paused": false, "rules": [{"a": 1}], "x": {"y": 1}}, "data": {"a": "1"}});
    let new = json!({"spec": {"replicas": 3, "paused": true, "rules": [{"a": 2}], "x": {"y": 2}}, "data": {"b": "2"}});
    let owned = json!({"f:spec": {"f:paused": {}, "f:rules": {}}, "f:data": {".": {}, "f:a": {}}});
    assert_eq!(
        check(&old, &new, &owned, Scope::Owned),
        [
            r#".data.a: "1" -> -"#,
            ".spec.paused: false -> true",
            ".spec.rules[0].a: 1 -> 2"
        ]
    );
    assert_eq!(check(&old, &new, &owned, Scope::All).len(), 6);
}

#[test]
fn keys_of_the_server_come_before_the_table() {
    // The table would use the name as the key.
    let old = json!({"ports": [{"name": "a", "port": 80, "protocol": "TCP"}]});
    let new = json!({"ports": [{"name": "b", "port": 80, "protocol": "TCP"}]});
    let owned =
        json!({"f:ports": {"k:{\"port\":80,\"protocol\":\"TCP\"}": {".": {}, "f:name": {}}}});
    assert_eq!(
        check(&old, &new, &owned, Scope::Owned),
        [r#".ports[port=80,protocol="TCP"].name: "a" -> "b""#]
    );
    // A list that is not in the table.
    let old = json!({"servers": [{"id": 1, "x": 1}, {"id": 2, "x": 1}]});
    let new = json!({"servers": [{"id": 2, "x": 2}]});
    let owned = json!({"f:servers": {
        "k:{\"id\":1}": {".": {}, "f:id": {}}, "k:{\"id\":2}": {".": {}, "f:id": {}, "f:x": {}}}});
    assert_eq!(
        check(&old, &new, &owned, Scope::Owned),
        [
            ".servers[id=1]: {\"id\":1,\"x\":1} -> -",
            ".servers[id=2].x: 1 -> 2"
        ]
    );
}

#[test]
fn ignored_differences_are_not_shown() {
    let old = json!({"data": {"a": "1", "theirs": "1"}, "finalizers": ["x", "y"],
        "containers": [{"name": "side"}, {"name": "app", "image": "1", "resources": {"limits": {"cpu": "1000m"}}}]});
    let new = json!({"data": {"a": "2", "also": "1"}, "finalizers": ["y", "x"],
        "containers": [{"name": "app", "image": "2", "resources": {"limits": {"cpu": "1"}}}]});
    let owned = FieldSet::parse(
        &json!({"f:data": {"f:a": {}}, "f:finalizers": {"v:\"x\"": {}},
        "f:containers": {"k:{\"name\":\"app\"}": {".": {}, "f:image": {}, "f:name": {},
            "f:resources": {"f:limits": {"f:cpu": {}}}}}}),
    );
    let comparison = compare(&old, &new, &owned, Scope::Owned, None);
    assert_eq!(comparison.changes.len(), 2);
    assert_eq!(
        shown(&old, &new, &comparison.ignored),
        json!({"data": {"a": "2", "theirs": "1"}, "finalizers": ["x", "y"],
            "containers": [{"name": "side"}, {"name": "app", "image": "2", "resources": {"limits": {"cpu": "1000m"}}}]})
    );
}

fn any_value() -> impl Strategy<Value = Value> {
    let scalar = prop_oneof![
        any::<bool>().prop_map(Value::from),
        (-3..3).prop_map(Value::from),
        "[a-c]{0,2}".prop_map(Value::from),
    ];
    scalar.prop_recursive(4, 40, 4, |inner| {
        prop_oneof![
            proptest::collection::btree_map("[a-d]", inner.clone(), 0..4)
                .prop_map(|map| Value::Object(map.into_iter().collect())),
            proptest::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            proptest::collection::btree_map("[a-c]", inner, 0..3).prop_map(|items| {
                json!({"containers": items.into_iter()
                    .map(|(name, x)| json!({"name": name, "x": x})).collect::<Vec<_>>()})
            }),
        ]
    })
}

fn any_maps() -> impl Strategy<Value = Value> {
    let scalar = prop_oneof![(-3..3).prop_map(Value::from), "[a-c]".prop_map(Value::from)];
    scalar.prop_recursive(4, 40, 5, |inner| {
        proptest::collection::btree_map("[a-e]", inner, 0..5)
            .prop_map(|map| Value::Object(map.into_iter().collect()))
    })
}

/// Generates maps with lists of named items, in any order.
fn any_named() -> impl Strategy<Value = Value> {
    let scalar = prop_oneof![(-3..3).prop_map(Value::from), "[a-c]".prop_map(Value::from)];
    scalar.prop_recursive(4, 40, 5, |inner| {
        let items = proptest::collection::btree_map("[a-e]", inner.clone(), 0..5)
            .prop_map(|items| items.into_iter().collect::<Vec<_>>())
            .prop_shuffle();
        prop_oneof![
            proptest::collection::btree_map("[a-e]", inner, 0..5)
                .prop_map(|map| Value::Object(map.into_iter().collect())),
            items.prop_map(|items| {
                json!({"containers": items.into_iter()
                    .map(|(name, x)| json!({"name": name, "x": x})).collect::<Vec<_>>()})
            }),
        ]
    })
}

proptest! {
    #[test]
    fn changes_of_named_items_lead_from_old_to_new(old in any_named(), new in any_named()) {
        let comparison = compare(&old, &new, &FieldSet::default(), Scope::All, None);
        let mut value = old.clone();
        for change in comparison.changes.iter().filter(|change| !change.reordered) {
            put(&mut value, &new, &change.path.0, change.new.as_ref());
        }
        for change in comparison.changes.iter().filter(|change| change.reordered) {
            align::reorder(&mut value, &change.path, change.new.as_ref().unwrap());
        }
        prop_assert_eq!(value, new);
    }

    #[test]
    fn aligned_objects_only_differ_in_their_order(old in any_named(), new in any_named()) {
        let nothing = FieldSet::default();
        let aligned = aligned(&old, &new, &nothing, None, &Secrecy::default());
        let between = compare(&aligned, &new, &nothing, Scope::All, None).changes;
        prop_assert!(between.iter().all(|change| change.reordered));
        // Common items have the order of the old side.
        let changes = compare(&old, &aligned, &nothing, Scope::All, None).changes;
        prop_assert!(changes.iter().all(|change| !change.reordered));
    }

    #[test]
    fn equal_objects_do_not_differ(value in any_value()) {
        prop_assert_eq!(
            compare(&value, &value.clone(), &FieldSet::default(), Scope::All, None),
            Comparison::default()
        );
    }

    #[test]
    fn different_objects_differ(old in any_value(), new in any_value()) {
        let comparison = compare(&old, &new, &FieldSet::default(), Scope::All, None);
        prop_assert_eq!(comparison.changes.is_empty(), old == new);
        for change in comparison.changes {
            prop_assert_ne!(change.old, change.new);
        }
    }

    #[test]
    fn changes_lead_from_old_to_new(old in any_maps(), new in any_maps()) {
        let comparison = compare(&old, &new, &FieldSet::default(), Scope::All, None);
        let mut value = old.clone();
        for change in &comparison.changes {
            put(&mut value, &new, &change.path.0, change.new.as_ref());
        }
        prop_assert_eq!(value, new);
    }

    #[test]
    fn without_owned_fields_nothing_is_shown(old in any_value(), new in any_value()) {
        let comparison = compare(&old, &new, &FieldSet::default(), Scope::Owned, None);
        prop_assert!(comparison.changes.is_empty());
        prop_assert_eq!(shown(&old, &new, &comparison.ignored), old);
    }
}
