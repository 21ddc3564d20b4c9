use proptest::prelude::*;
use rstest::rstest;
use serde_json::json;

use super::*;

const NAMES: &[&str] = &["item", "metadata", "spec", "status"];

fn volume() -> serde_json::Value {
    json!({
        "apiVersion": "v1", "kind": "Volume",
        "metadata": {"name": "a", "labels": {"tier": "gold"}, "managedFields": [{"manager": "m"}]},
        "spec": {"replicas": 3, "size": "10Gi", "ratio": 0.5, "tags": ["a", "b"], "nothing": null},
        "status": {"phase": "Ready", "conditions": [{"type": "Ready", "status": "True"}]},
    })
}

fn ask(text: &str) -> Result<bool, Unevaluable> {
    let expression = Expression::compile(text, NAMES).unwrap_or_else(|error| panic!("{error}"));
    expression.test(&Subject::of(&volume()))
}

#[rstest]
#[case::by_item("item.status.phase == 'Ready'", true)]
#[case::by_field("status.phase == 'Ready' && spec.replicas > 2", true)]
#[case::minus("spec.replicas - 5 < 0", true)]
#[case::float("spec.ratio < 1.0", true)]
#[case::has("has(status.phase) && !has(status.reason)", true)]
#[case::has_of_a_missing_field("!has(spec.missing)", true)]
#[case::null_is_absent("has(spec.nothing)", false)]
#[case::labels("item.metadata.labels['tier'] == 'gold'", true)]
#[case::exists(
    "status.conditions.exists(c, c.type == 'Ready' && c.status == 'True')",
    true
)]
#[case::all("spec.tags.all(t, t.startsWith('a'))", false)]
#[case::map("spec.tags.map(t, t + 'x') == ['ax', 'bx']", true)]
#[case::filter("size(spec.tags.filter(t, t == 'b')) == 1", true)]
#[case::within("'a' in spec.tags", true)]
#[case::condition("spec.replicas > 2 ? true : false", true)]
#[case::quantity("quantity(spec.size).isGreaterThan(quantity('9Gi'))", true)]
#[case::matches("metadata.name.matches('^[a-z]$')", true)]
#[case::an_error_next_to_a_decisive_operand("status.phase == 'Ready' || status.missing == 1", true)]
#[case::owners_are_left_out("has(metadata.managedFields)", false)]
fn conditions(#[case] text: &str, #[case] expected: bool) {
    assert_eq!(ask(text), Ok(expected));
}

#[rstest]
#[case("status.reason == 'x'", "there is no `reason`")]
#[case("spec.tags[7] == 'x'", "there is no such item")]
#[case(
    "size(status.missing) == 0",
    "there is no value for a function argument"
)]
#[case(
    "spec.tags[status.phase] == 'x'",
    "type error: a value does not have the expected type"
)]
#[case("metadata.labels[status.phase] == 'x'", "there is no such key")]
#[case(
    "status.phase.name == 'x'",
    "type error: a value does not have the expected type"
)]
#[case(
    "!status.conditions.ready",
    "type error: a value does not have the expected type"
)]
#[case(
    "status.phase > 3",
    "type error: a value does not have the expected type"
)]
#[case("status.phase", "expected bool, got string")]
#[case("spec.replicas / 0 == 1", "division by zero")]
#[case(
    "quantity(status.phase).isInteger()",
    "invalid argument for `quantity`"
)]
fn an_error_names_the_reason_and_never_the_value(#[case] text: &str, #[case] expected: &str) {
    let error = ask(text).unwrap_err().to_string();
    assert_eq!(error, expected);
}

#[test]
fn a_field_of_a_missing_value_is_missing() {
    let expression = Expression::compile("status.phase == 'Ready'", NAMES).unwrap();
    let answer = expression.test(&Subject::of(&json!({})));
    assert_eq!(answer, Err(Unevaluable::Missing("`phase`".to_owned())));
}

#[rstest]
#[case(
    "staus.phase == 'x'",
    "unknown name `staus`; known names: item, metadata, spec, status"
)]
#[case(
    "item.spec.tags.all(t, u == 'x')",
    "unknown name `u`; known names: item, metadata, spec, status"
)]
#[case("sizee(spec.tags) > 1", "there is no function `sizee`")]
#[case("spec.tags.frobnicate()", "there is no function `frobnicate`")]
#[case(
    "spec.a.all(a, spec.b.all(b, spec.c.all(c, spec.d.all(d, true))))",
    "loops are nested deeper than 3 levels"
)]
fn errors_are_reported_when_parsed(#[case] text: &str, #[case] expected: &str) {
    let error = Expression::compile(text, NAMES).unwrap_err();
    assert_eq!(error.to_string(), expected);
}

#[rstest]
#[case("status.phase = 'x'")]
#[case("status.phase ==")]
#[case("")]
#[case("a.b{c: 1}")]
#[case("has(status)")]
fn invalid_expressions_are_refused(#[case] text: &str) {
    assert!(Expression::compile(text, NAMES).is_err());
}

#[test]
fn all_errors_of_an_expression_are_reported() {
    let CompileError(problems) = Expression::compile("a.b == c.d || f(1)", NAMES).unwrap_err();
    assert_eq!(problems.len(), 3, "{problems:?}");
}

#[test]
fn too_long_or_deep_expressions_are_refused() {
    let long = format!("'{}' == ''", "x".repeat(LONGEST));
    assert_eq!(
        Expression::compile(&long, NAMES).unwrap_err().to_string(),
        "it is longer than 2000 characters"
    );
    for deep in [
        format!("{} > 1", vec!["1"; 900].join("+")),
        format!("{}true{}", "(".repeat(900), ")".repeat(900)),
        "(".repeat(1_900),
        "[".repeat(1_900),
        "true ? true : ".repeat(140) + "true",
        format!("item{}", ".a".repeat(900)),
        format!("item{}", "[0]".repeat(600)),
        format!("true{}", " && (true".repeat(200)),
    ] {
        assert!(Expression::compile(&deep, NAMES).is_err(), "{deep}");
    }
    // These texts look deeply nested, but are not.
    for flat in ["!".repeat(1_900) + "true", vec!["true"; 200].join(" && ")] {
        assert!(Expression::compile(&flat, NAMES).is_ok(), "{flat}");
    }
}

#[test]
fn loops_terminate() {
    let items: Vec<u32> = (0..2_000).collect();
    let subject = Subject::of(&json!({"spec": {"a": items}}));
    let ask = |text: &str| Expression::compile(text, NAMES).unwrap().test(&subject);
    assert_eq!(ask("spec.a.all(a, a >= 0)"), Ok(true));
    let too_many = Err(Unevaluable::Wrong(
        "the evaluation takes more than 100000 steps".to_owned(),
    ));
    assert_eq!(ask("spec.a.all(a, spec.a.all(b, a + b >= 0))"), too_many);
    assert_eq!(ask("size(spec.a.map(a, a)) == 2000"), too_many);
    // Each evaluation has its own budget of steps.
    assert_eq!(ask("spec.a.exists(a, a == 1999)"), Ok(true));
}

#[rstest]
#[case(
    "volume {{ item.metadata.name }} is {{item.status.phase}}",
    "volume a is Ready"
)]
#[case("no expression", "no expression")]
#[case("{{ item.status.robustness }} replicas", "(unknown) replicas")]
#[case(
    "{{ spec.replicas }} {{ spec.ratio }} {{ spec.tags }} {{ metadata.labels }}",
    "3 0.5 [a, b] {tier: gold}"
)]
#[case("{{ spec.replicas > 2 ? 'many' : 'few' }}", "many")]
fn messages(#[case] text: &str, #[case] expected: &str) {
    let template = Template::compile(text, NAMES).unwrap();
    assert_eq!(template.render(&Subject::of(&volume())), expected);
    assert_eq!(template.text(), text);
}

#[rstest]
#[case("{{ spec.replicas }}", json!(3))]
#[case("{{ spec.replicas }} ", json!("3 "))]
#[case("{{ spec.tags }}", json!(["a", "b"]))]
#[case("{{ metadata.labels }}", json!({"tier": "gold"}))]
#[case("{{ metadata.name }}-{{ spec.replicas }}", json!("a-3"))]
#[case("plain", json!("plain"))]
fn values_of_templates(#[case] text: &str, #[case] expected: serde_json::Value) {
    let template = Template::compile(text, NAMES).unwrap();
    let subject = Subject::of(&volume());
    assert_eq!(template.value(&subject), Ok(expected));
    let missing = Template::compile("{{ item.status.robustness }}", NAMES).unwrap();
    assert!(missing.value(&subject).is_err());
}

#[rstest]
#[case("{{ item.metadata.name", "`{{` without `}}`")]
#[case(
    "{{ it.metadata.name }}",
    "unknown name `it`; known names: item, metadata, spec, status"
)]
fn broken_messages_are_refused(#[case] text: &str, #[case] expected: &str) {
    assert_eq!(
        Template::compile(text, NAMES).unwrap_err().to_string(),
        expected
    );
}

/// Generates texts that look like expressions.
fn expressions() -> impl Strategy<Value = String> {
    let word = prop::sample::select(vec![
        "item",
        "status",
        "phase",
        "a",
        "'x'",
        "1",
        "2.5",
        "null",
        "true",
        "(",
        ")",
        "[",
        "]",
        "{",
        "}",
        ".",
        ",",
        ":",
        "?",
        "&&",
        "||",
        "!",
        "-",
        "+",
        "==",
        "<",
        "in",
        ".all(x, ",
        ".map(x, ",
        ".filter(",
        "has(",
        "size(",
        "\"",
        "\\",
        "matches('(')",
        "quantity(",
    ]);
    prop_oneof![
        prop::collection::vec(word, 0..14).prop_map(|words| words.join(" ")),
        ".{0,40}",
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2_000, ..ProptestConfig::default() })]

    /// Checks that arbitrary texts are evaluated or rejected, without a panic.
    #[test]
    fn any_text_is_parsed_or_refused(text in expressions()) {
        if let Ok(expression) = Expression::compile(&text, NAMES) {
            let first = expression.test(&Subject::of(&volume()));
            prop_assert_eq!(first, expression.test(&Subject::of(&volume())));
        }
        if let Ok(template) = Template::compile(&text, NAMES) {
            let _message = template.render(&Subject::of(&volume()));
        }
    }

    /// Errors never contain values of the object.
    #[test]
    fn no_error_contains_a_value(text in expressions()) {
        let secret = json!({"status": {"phase": "s3cr3t", "a": ["s3cr3t"]}, "item": "s3cr3t"});
        if let Ok(expression) = Expression::compile(&text, NAMES)
            && let Err(error) = expression.test(&Subject::of(&secret))
        {
            prop_assert!(!error.to_string().contains("s3cr3t"), "{}", error);
        }
    }
}
