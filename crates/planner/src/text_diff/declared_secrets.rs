//! Diffs of fields that a bundle declares secret.
//!
//! The author of a change must not learn which parts of a guess are right, or how many parts the
//! live value has.

use proptest::prelude::*;
use serde_json::json;

use super::*;
use pleach_model::object::DigestKey;

/// Returns the secrecy of a Widget with one declared field.
fn declared(field: &str) -> Secrecy {
    let id = ObjectId::new("example.org", "Widget", Some("web"), "w");
    Secrecy::of(&id, &[field.parse().unwrap()])
}

fn widget(spec: &Value) -> Value {
    json!({"apiVersion": "example.org/v1", "kind": "Widget", "metadata": {"name": "w"}, "spec": spec})
}

/// Returns the diff of an update of a Widget.
fn draw(old: &Value, new: &Value, secrecy: &Secrecy) -> ObjectDiff {
    let id = ObjectId::new("example.org", "Widget", Some("web"), "w");
    ObjectDiff::new(
        Sides {
            object: &id,
            action: Action::Update,
            old: Some(old),
            new: Some(new),
            owned: &FieldSet::default(),
            secrecy,
            schema: None,
            previous: None,
            note: &Note::default(),
        },
        View {
            scope: Scope::All,
            status: false,
            full_deletes: false,
        },
        &mut Masker::new(DigestKey::new(b"test".to_vec())),
    )
}

/// Returns the lines that only one side has.
fn changed_lines(diff: &ObjectDiff) -> Vec<String> {
    let lines = diff.hunks.iter().flat_map(|hunk| &hunk.lines);
    lines
        .filter(|line| line.tag != Tag::Context)
        .map(|line| format!("{}{}", line.tag.sign(), line.text))
        .collect()
}

fn paths(diff: &ObjectDiff) -> Vec<String> {
    let fields = diff.fields.iter();
    fields.map(|field| field.path.to_string()).collect()
}

#[test]
fn a_declared_list_or_map_is_one_value() {
    let items = |values: [&str; 2]| json!(values.map(|value| json!({"value": value})));
    for (case, field, live, guess) in [
        (
            "right items",
            "spec.secret",
            json!(["1", "2", "3"]),
            json!(["1", "0", "3"]),
        ),
        (
            "every item",
            "spec.secret[*]",
            json!(["1", "2"]),
            json!(["1"]),
        ),
        (
            "items of items",
            "spec.secret[*][*]",
            json!([["1"], ["2"]]),
            json!([["1"], ["3"]]),
        ),
        ("no item", "spec.secret", json!(["1", "2"]), json!([])),
        (
            "other order",
            "spec.secret",
            items(["1", "2"]),
            items(["2", "1"]),
        ),
        (
            "map",
            "spec.secret",
            json!({"user": "a", "pin": "1"}),
            json!({"user": "a", "pin": "2"}),
        ),
        ("other type", "spec.secret", json!(["1"]), json!("1")),
    ] {
        let secrecy = declared(field);
        let object = |secret: &Value| widget(&json!({"open": ["a"], "secret": secret}));
        let wrong = draw(&object(&live), &object(&guess), &secrecy);
        assert_eq!(
            changed_lines(&wrong),
            [
                r#"-  secret: "<secret 1>""#,
                r#"+  secret: "<secret 2, changed>""#
            ],
            "{case}"
        );
        assert_eq!(paths(&wrong), [".spec.secret"], "{case}");
        let right = draw(&object(&live), &object(&live), &secrecy);
        assert!(right.is_empty() && right.fields.is_empty(), "{case}");
    }
}

/// Elsewhere the order of a set is no difference. Here that would confirm all items of a guess.
#[test]
fn the_order_of_a_declared_set_is_a_difference() {
    let object = |items: [&str; 2]| widget(&json!({"finalizers": items}));
    let (old, new) = (object(["1", "2"]), object(["2", "1"]));
    let secret = draw(&old, &new, &declared("spec.finalizers[*]"));
    assert_eq!(changed_lines(&secret).len(), 2, "{}", secret.unified());
    assert_eq!(paths(&secret), [".spec.finalizers"]);
    let open = draw(&old, &new, &Secrecy::default());
    assert!(open.is_empty() && open.fields.is_empty());
}

#[test]
fn a_declared_item_is_one_value_among_others() {
    let object = |level: &str, pin: &str| {
        widget(&json!({"users": [
            {"name": "a", "pin": "0"}, {"name": "b", "level": level, "pin": pin}]}))
    };
    let secrecy = declared("spec.users[name=b]");
    let one = draw(&object("x", "1"), &object("x", "2"), &secrecy);
    let both = draw(&object("x", "1"), &object("y", "2"), &secrecy);
    assert_eq!(one, both);
    assert_eq!(paths(&one), [".spec.users[1]"]);
    let text = one.unified();
    assert!(text.contains("pin: \"0\""), "{text}");
    assert!(text.contains("<secret 2, changed>"), "{text}");
    assert!(!text.contains("<secret 3"), "{text}");
}

#[test]
fn a_removed_list_beside_a_secret_is_one_value() {
    let old = widget(&json!({"previous": ["1", "2"], "secret": ["1"]}));
    let new = widget(&json!({"secret": ["1"]}));
    let diff = draw(&old, &new, &declared("spec.secret"));
    assert_eq!(changed_lines(&diff), [r#"-  previous: "<secret 1>""#]);
    assert_eq!(paths(&diff), [".spec.previous"]);
    assert_eq!(diff.fields[0].old, Some(json!("<secret 1>")));
}

/// Generates values that often share parts.
fn any_parts() -> impl Strategy<Value = Value> {
    let text = "[ab]{0,2}";
    prop_oneof![
        text.prop_map(Value::from),
        proptest::collection::vec(text, 0..4).prop_map(Value::from),
        proptest::collection::btree_map("[a-c]", text, 0..3).prop_map(|map| json!(map)),
        proptest::collection::vec(text, 0..3).prop_map(|items| {
            let items = items.into_iter();
            items.map(|item| json!({"value": item})).collect::<Value>()
        }),
    ]
}

proptest! {
    #[test]
    fn all_wrong_guesses_of_a_declared_field_look_alike(
        live in any_parts(), guess in any_parts(), other in any_parts(), every in any::<bool>(),
    ) {
        prop_assume!(guess != live && other != live);
        let secrecy = declared(if every { "spec.secret[*]" } else { "spec.secret" });
        let object = |secret: &Value| widget(&json!({"open": ["a"], "secret": secret}));
        let [one, another] = [&guess, &other].map(|guess| {
            let diff = draw(&object(&live), &object(guess), &secrecy);
            serde_json::to_string(&diff).unwrap()
        });
        prop_assert_eq!(one, another);
    }
}
