//! Numbers of masked values, and values that must not appear.

use proptest::prelude::*;
use serde_json::json;

use super::super::fields::{Scope, compare};
use super::super::ownership::FieldSet;
use super::*;
use pleach_model::object::{ObjectId, SecretField};

fn masker() -> Masker {
    Masker::new(DigestKey::new(b"a key of the test".to_vec()))
}

fn secret_kind() -> Secrecy {
    Secrecy::of(&ObjectId::new("", "Secret", Some("web"), "db"), &[])
}

fn all_changes(old: &Value, new: &Value, secrecy: &Secrecy) -> Vec<FieldChange> {
    let owned = FieldSet::default();
    compare(old, new, &owned, Scope::All, None, secrecy).changes
}

fn secret(data: &Value) -> Value {
    json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "db"}, "type": "Opaque", "data": data})
}

#[test]
fn equal_values_have_equal_numbers_wherever_they_are() {
    let mut masker = masker();
    let object = json!({"data": {"a": STANDARD.encode("hunter2"), "b": STANDARD.encode("other")},
        "stringData": {"c": "hunter2"}, "type": "Opaque"});
    assert_eq!(
        masker.object(object.clone(), &secret_kind()),
        json!({"data": {"a": "<secret 1>", "b": "<secret 2>"}, "stringData": {"c": "<secret 1>"}, "type": "Opaque"})
    );
    assert_eq!(
        masker.object(
            secret(&json!({"x": STANDARD.encode("other")})),
            &secret_kind()
        )["data"],
        json!({"x": "<secret 2>"})
    );
}

#[test]
fn line_breaks_in_base64_change_nothing() {
    let mut masker = masker();
    let object = secret(&json!({"a": "aHVudGVyMg==", "b": "aHVu\ndGVyMg==\n"}));
    let masked = masker.object(object, &secret_kind());
    assert_eq!(
        masked["data"],
        json!({"a": "<secret 1>", "b": "<secret 1>"})
    );
    let mut masker = self::masker();
    let object = secret(&json!({"b": "aHVu\ndGVyMg==\n"}));
    assert_eq!(
        masker.object(object, &secret_kind())["data"]["b"],
        "<secret 1>"
    );
}

#[test]
fn a_misspelled_field_of_a_secret_is_secret_too() {
    let object = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "a"}, "type": "Opaque",
        "immutable": true, "stringDate": {"a": "hunter2"}});
    let masked = masker().object(object.clone(), &secret_kind());
    assert_eq!(masked["stringDate"], json!({"a": "<secret 1>"}));
    assert_eq!(
        (&masked["type"], &masked["immutable"], &masked["metadata"]),
        (&json!("Opaque"), &json!(true), &object["metadata"])
    );
}

#[test]
fn a_changed_secret_is_marked() {
    let old = secret(&json!({"a": "MQ==", "b": "Mg==", "gone": "Mw=="}));
    let new = secret(&json!({"a": "MQ==", "b": "Mw==", "moved": "Mw=="}));
    let (old_masked, new_masked) = masker().pair(&old, &new, &secret_kind());
    assert_eq!(
        old_masked["data"],
        json!({"a": "<secret 1>", "b": "<secret 2>", "gone": "<secret 3>"})
    );
    assert_eq!(
        new_masked["data"],
        json!({"a": "<secret 1>", "b": "<secret 4, changed>", "moved": "<secret 4>"})
    );
}

/// Returns the masked `pin` before and after, and a masked guess of the same value.
fn guess(field: &str, masked_first: bool) -> [String; 3] {
    let mut masker = masker();
    let guesses = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "guesses"},
        field: {"pin": "4711"}});
    let guesses = |masker: &mut Masker| {
        let masked = masker.object(guesses.clone(), &secret_kind());
        masked[field]["pin"].as_str().unwrap().to_owned()
    };
    let before = masked_first.then(|| guesses(&mut masker));
    let live = secret(&json!({"pin": STANDARD.encode("4711")}));
    // The prediction also contains fields of other managers.
    let mut desired = live.clone();
    desired["data"]["g4711"] = json!(STANDARD.encode("4711"));
    let (old, new) = masker.pair(&live, &desired, &secret_kind());
    let beside = new["data"]["g4711"].as_str().unwrap().to_owned();
    let guess = before.unwrap_or_else(|| guesses(&mut masker));
    assert_eq!(beside, guess);
    assert_eq!(
        old["data"]["pin"],
        masker.previous(live, &secret_kind())["data"]["pin"]
    );
    let pin = |side: &Value| side["data"]["pin"].as_str().unwrap().to_owned();
    [pin(&old), pin(&new), guess]
}

#[test]
fn a_guess_in_another_field_has_another_number() {
    for field in ["stringData", "spec"] {
        for masked_first in [false, true] {
            let [old, new, guess] = guess(field, masked_first);
            assert_eq!(old, new);
            assert_ne!(old, guess);
        }
    }
}

#[test]
fn equal_values_of_one_field_have_one_number() {
    let old = secret(&json!({"pin": STANDARD.encode("4711")}));
    let mut new = secret(&json!({}));
    new["stringData"] = json!({"pin": "4711"});
    let (old, new) = masker().pair(&old, &new, &secret_kind());
    assert_eq!(old["data"]["pin"], "<secret 1>");
    assert_eq!(new["stringData"]["pin"], "<secret 1>");
}

#[test]
fn a_guess_in_another_item_has_another_number() {
    let fields: Vec<SecretField> = vec!["env[*].value".parse().unwrap()];
    let secrecy = Secrecy::of(&ObjectId::new("", "ConfigMap", Some("web"), "a"), &fields);
    let pin = json!({"name": "PIN", "value": "4711"});
    let guess = json!({"name": "G", "value": "4711"});
    let (old, new) = (json!({"env": [&pin]}), json!({"env": [&guess, &pin]}));
    let (_, masked) = masker().pair(&old, &new, &secrecy);
    assert_eq!(masked["env"][1]["value"], "<secret 1>");
    assert_ne!(masked["env"][0]["value"], "<secret 1>");
    let mut changes = vec![FieldChange {
        path: FieldPath::default()
            .key("env")
            .join(PathSegment::Select(vec![(
                "name".into(),
                KeyValue::Text("PIN".to_owned()),
            )]))
            .key("value"),
        old: Some(json!("4711")),
        new: Some(json!("x")),
        reordered: false,
        cause: None,
    }];
    let mut masker = masker();
    drop(masker.pair(&old, &new, &secrecy));
    masker.changes(&mut changes, &new, &secrecy);
    assert_eq!(changes[0].old, Some(json!("<secret 1>")));
}

#[test]
fn a_guess_in_an_item_without_a_name_of_its_own_has_another_number() {
    let (pin, other) = (
        json!({"name": "PIN", "value": "4711"}),
        json!({"name": "PIN", "value": "0000"}),
    );
    let (named, wrong) = (json!({"name": "4711"}), json!({"name": "0000"}));
    for (case, field, below, old, new) in [
        (
            "no name",
            "list[*].value",
            "value",
            json!([{"value": "4711"}]),
            json!([{"value": "0000"}, {"value": "4711"}]),
        ),
        (
            "one name",
            "list[*].value",
            "value",
            json!([pin]),
            json!([other, pin]),
        ),
        (
            "secret name",
            "list[*].name",
            "name",
            json!([named]),
            json!([wrong, named]),
        ),
    ] {
        let fields: Vec<SecretField> = vec![field.parse().unwrap()];
        let secrecy = Secrecy::of(&ObjectId::new("", "ConfigMap", Some("web"), "a"), &fields);
        let number = |item: &Value| item[below].clone();
        let (old, new) = (json!({"list": old}), json!({"list": new}));
        let mut masker = masker();
        let (before, after) = masker.pair(&old, &new, &secrecy);
        let live = number(&before["list"][0]);
        assert_eq!(live, "<secret 1>", "{case}");
        assert_ne!(number(&after["list"][1]), live, "{case}");
        let mut changes = vec![FieldChange {
            path: FieldPath::default().key("list").join(PathSegment::Index(1)),
            old: None,
            new: Some(new["list"][1].clone()),
            reordered: false,
            cause: None,
        }];
        masker.changes(&mut changes, &new, &secrecy);
        let changed = number(changes[0].new.as_ref().unwrap());
        assert_eq!(changed, number(&after["list"][1]), "{case}");
        // An item at an unchanged position is the same field.
        let (before, after) = masker.pair(&old, &old, &secrecy);
        assert_eq!(before, after, "{case}");
    }
}

#[test]
fn a_declared_list_retains_its_items_outside_of_a_comparison() {
    let fields: Vec<SecretField> = vec!["spec.secret".parse().unwrap()];
    let secrecy = Secrecy::of(&ObjectId::new("", "Widget", Some("web"), "a"), &fields);
    let object = json!({"kind": "Widget", "spec": {"secret": ["1", {"a": "2"}]}});
    assert_eq!(
        masker().object(object.clone(), &secrecy)["spec"]["secret"],
        json!(["<secret 1>", {"a": "<secret 2>"}])
    );
    let sides = [
        masker().previous(object.clone(), &secrecy),
        masker().desired(object, &secrecy),
    ];
    for side in sides {
        assert_eq!(side["spec"]["secret"], "<secret 1>");
    }
}

#[test]
fn changes_of_fields_are_masked_at_any_depth() {
    let mut masker = masker();
    let old = secret(&json!({"a": "MQ=="}));
    let new = secret(&json!({"a": "Mg=="}));
    let mut changes = all_changes(&old, &new, &secret_kind());
    let whole = FieldChange {
        path: FieldPath::default().key("data"),
        old: None,
        new: Some(json!({"a": "Mg=="})),
        reordered: false,
        cause: None,
    };
    changes.push(whole);
    masker.changes(&mut changes, &new, &secret_kind());
    assert_eq!(changes[0].old, Some(json!("<secret 1>")));
    assert_eq!(changes[0].new, Some(json!("<secret 2, changed>")));
    assert_eq!(changes[1].new, Some(json!({"a": "<secret 2>"})));
}

#[test]
fn the_last_applied_annotation_is_masked_in_every_kind() {
    let object = json!({"kind": "ConfigMap", "metadata": {"annotations": {
        "kubectl.kubernetes.io/last-applied-configuration": "{\"data\":{}}", "team": "web"}}});
    assert_eq!(
        masker().object(object.clone(), &Secrecy::default())["metadata"]["annotations"],
        json!({"kubectl.kubernetes.io/last-applied-configuration": "<secret 1>", "team": "web"})
    );
}

#[test]
fn fields_of_other_kinds_are_masked_where_they_are_named() {
    let fields: Vec<SecretField> = ["data.password", "spec.users[name=b].key"]
        .iter()
        .map(|text| text.parse().unwrap())
        .collect();
    let secrecy = Secrecy::of(&ObjectId::new("", "ConfigMap", Some("web"), "a"), &fields);
    let object = |password: &str, key: &str| {
        json!({"kind": "ConfigMap", "data": {"password": password, "user": "web"}, "spec": {"users": [
        {"name": "a", "key": "open"}, {"name": "b", "key": key}]}})
    };
    let mut masker = masker();
    let (old, new) = (object("one", "two"), object("three", "two"));
    let (old_masked, new_masked) = masker.pair(&old, &new, &secrecy);
    assert_eq!(old_masked, object("<secret 1>", "<secret 2>"));
    assert_eq!(new_masked, object("<secret 3, changed>", "<secret 2>"));
    let mut changes = all_changes(&old, &new, &secrecy);
    masker.changes(&mut changes, &new, &secrecy);
    assert_eq!(changes.len(), 1);
    assert_eq!(changes[0].new, Some(json!("<secret 3, changed>")));
}

#[test]
fn removed_items_next_to_a_secret_are_masked() {
    let fields: Vec<SecretField> = ["data.password", "env[name=NEW].value"]
        .iter()
        .map(|text| text.parse().unwrap())
        .collect();
    let secrecy = Secrecy::of(&ObjectId::new("", "ConfigMap", Some("web"), "a"), &fields);
    let old = json!({"data": {"pass": "previous", "user": "web"}, "env": [
        {"name": "OLD", "value": "previous"}, {"name": "X", "value": "open"}]});
    let new = json!({"data": {"password": "now", "user": "web"}, "env": [
        {"name": "NEW", "value": "now"}, {"name": "X", "value": "open"}]});
    let mut masker = masker();
    let (old_masked, new_masked) = masker.pair(&old, &new, &secrecy);
    let mut changes = all_changes(&old, &new, &secrecy);
    masker.changes(&mut changes, &new, &secrecy);
    let out = format!("{old_masked}{new_masked}{changes:?}");
    assert!(!out.contains("previous") && !out.contains("now"), "{out}");
    assert!(out.contains("open") && out.contains("web"), "{out}");
}

#[test]
fn values_that_are_guarded_are_secret_everywhere() {
    let values = SecretValues::of(&json!({"writeOnly": true}), &json!("hunter2-and-more"));
    let mut masker = masker();
    masker.guard(&values);
    let object = json!({"a": "x hunter2-and-more", "b": STANDARD.encode("hunter2-and-more"), "c": "hunter2"});
    assert_eq!(
        masker.object(object.clone(), &Secrecy::default()),
        json!({"a": "<secret 1>", "b": "<secret 2>", "c": "hunter2"})
    );
}

#[test]
fn base64_of_a_value_has_its_number() {
    for flip in [false, true] {
        let mut masker = masker();
        let mut texts = ["hunter2".to_owned(), STANDARD.encode("hunter2")];
        if flip {
            texts.reverse();
        }
        let numbers = texts.map(|text| masker.number(&text));
        assert_eq!(numbers, [1, 1]);
    }
}

const PLANTED: &str = "planted-5ecret";

/// Generates an object with the planted value at some places, plain and encoded.
fn any_object() -> impl Strategy<Value = Value> {
    let scalar = prop_oneof![
        Just(json!(PLANTED)),
        Just(json!(STANDARD.encode(PLANTED))),
        Just(json!(format!("--password={PLANTED}"))),
        "[a-c]".prop_map(Value::from),
        (0..3).prop_map(Value::from),
        Just(json!(null)),
    ];
    scalar.prop_recursive(3, 20, 3, |inner| {
        prop_oneof![
            proptest::collection::btree_map("[a-c]|name|env", inner.clone(), 0..4)
                .prop_map(|map| Value::Object(map.into_iter().collect())),
            proptest::collection::vec(inner.clone(), 0..3).prop_map(Value::from),
            inner.prop_map(|item| json!({"env": [{"name": item}], "finalizers": [PLANTED]})),
        ]
    })
}

proptest! {
    #[test]
    fn no_planted_value_gets_out(old in any_object(), new in any_object(), in_data in any::<bool>()) {
        let (wrap, secrecy): (fn(&Value) -> Value, _) = if in_data {
            (|value| json!({"kind": "Secret", "data": value, "stringData": {"x": value}}), secret_kind())
        } else {
            (|value| json!({"kind": "Widget", "metadata": {"annotations": {"a": value}}, "spec": value}), Secrecy::everything())
        };
        let (old, new) = (wrap(&old), wrap(&new));
        let mut masker = masker();
        let (old_masked, new_masked) = masker.pair(&old, &new, &secrecy);
        let mut changes = all_changes(&old, &new, &secrecy);
        masker.changes(&mut changes, &new, &secrecy);
        let mut out = format!("{old_masked}{new_masked}");
        for change in &changes {
            write!(out, "{} {:?} {:?}", change.path, change.old, change.new).unwrap();
        }
        prop_assert!(!out.contains(PLANTED), "{}", out);
        prop_assert!(!out.contains(&STANDARD.encode(PLANTED)), "{}", out);
    }
}

#[test]
fn blank_objects_do_not_depend_on_secret_values() {
    let widget = |secret: &Value| {
        json!({"kind": "Widget", "metadata": {"name": "w"},
            "spec": {"open": "a", "secret": secret, "users": [{"name": "b", "pin": secret}]}})
    };
    let id = ObjectId::new("example.org", "Widget", Some("web"), "w");
    let fields = ["spec.secret", "spec.users[name=b].pin"];
    let secrecy = Secrecy::of(&id, &fields.map(|field| field.parse().unwrap()));
    let values = [
        json!("x"),
        json!("y"),
        json!(1),
        json!(null),
        json!(["x"]),
        json!({"x": 1}),
    ];
    for value in values {
        assert_eq!(
            masker().blank(widget(&value), &secrecy),
            widget(&json!(BLANK)),
            "{value}"
        );
    }
    let data = json!({"a": STANDARD.encode("hunter2")});
    let blank = masker().blank(secret(&data), &secret_kind());
    assert_eq!(blank["data"], BLANK);
    assert_eq!(blank["type"], "Opaque");
}
