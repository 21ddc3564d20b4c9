//! Conformance with kubectl.
//!
//! The expected values are from `kubectl annotate --local -o json` (1.32, the sigs.k8s.io/yaml path
//! of every API client), recorded by hand. Where pleach differs, the case states the difference and
//! its reason.

use rstest::rstest;
use serde_json::{Value, json};

use super::parse_documents;

fn read(text: &str) -> Vec<Value> {
    parse_documents(text)
        .unwrap()
        .into_iter()
        .map(|document| document.value)
        .collect()
}

#[rstest]
// Booleans of YAML 1.1.
#[case("a: yes\nb: on\nc: y", json!({"a": true, "b": true, "c": true}))]
#[case("a: No\nb: OFF\nc: N", json!({"a": false, "b": false, "c": false}))]
#[case("a: 'yes'\nb: \"on\"\nc: !!str y", json!({"a": "yes", "b": "on", "c": "y"}))]
// Keys are converted to JSON strings.
#[case("1: x\ntrue: b\n1.5: z\n017: q", json!({"1": "x", "true": "b", "1.5": "z", "15": "q"}))]
#[case("on: x\n\"off\": b", json!({"true": "x", "off": "b"}))]
// Numbers.
#[case("[0755, 08, 0o755, 0b11, 0x1F]", json!([493, 8, 493, 3, 31]))]
#[case("[-017, 0_7, +12, -0b11, 0B11, 0X1F]", json!([-15, 7, 12, -3, 3, 31]))]
#[case("[1_000, 0o7_7]", json!([1000, 63]))]
#[case("[0o08, 0b2, 0xzz, _1, 1e, 1.2.3]", json!(["0o08", "0b2", "0xzz", "_1", "1e", "1.2.3"]))]
#[case("[1e3, 2.0, 1., -0.0, 1E3, 1e+3]", json!([1000, 2, 1, 0, 1000, 1000]))]
#[case("[.5, -.5, 2.5e-3, 1e-7, 01.5]", json!([0.5, -0.5, 0.0025, 1e-7, 1.5]))]
#[case("-9223372036854775808", json!(i64::MIN))]
#[case("9007199254740993", json!(9_007_199_254_740_993_u64))]
#[case("18446744073709551616", json!(18_446_744_073_709_551_616.0))]
// Texts.
#[case("[2001-01-01, 1:30, 190:20:30]", json!(["2001-01-01", "1:30", "190:20:30"]))]
#[case("a: =\nb: '<<'", json!({"a": "=", "b": "<<"}))]
#[case("a: 1\tb", json!({"a": "1\tb"}))]
#[case("a: \"\\ud83d\\ude00\"", json!({"a": "😀"}))] // kubectl 1.32 refuses surrogate pairs
// Null.
#[case("a: ~\nb:\nc: Null", json!({"a": null, "b": null, "c": null}))]
// Tags.
#[case("a: !!str 12\nb: !!int \"12\"\nc: !!binary aGk=\nd: !local x", json!({"a": "12", "b": 12, "c": "hi", "d": "x"}))]
#[case("!!set {x, z}", json!({"x": null, "z": null}))]
// Anchors and merge keys.
#[case("a: &a {x: 1, z: 2}\nb: *a", json!({"a": {"x": 1, "z": 2}, "b": {"x": 1, "z": 2}}))]
#[case("a: &a {x: 1, z: 2}\nb:\n  <<: *a\n  x: 3", json!({"a": {"x": 1, "z": 2}, "b": {"x": 3, "z": 2}}))]
#[case("a: &a {x: 1, z: 2}\nb:\n  x: 3\n  <<: *a", json!({"a": {"x": 1, "z": 2}, "b": {"x": 3, "z": 2}}))]
#[case("a: &a {x: 1}\nb:\n  <<: [*a, {x: 5, z: 1}]", json!({"a": {"x": 1}, "b": {"x": 1, "z": 1}}))]
#[case("b: {\"<<\": {x: 1}}", json!({"b": {"<<": {"x": 1}}}))]
// Byte order mark and CRLF.
#[case("\u{feff}a: 1\r\nb: |\r\n  x\r\n", json!({"a": 1, "b": "x\n"}))]
fn kubectl_reads_the_same(#[case] text: &str, #[case] expected: Value) {
    assert_eq!(read(text), [expected]);
}

#[rstest]
// Exact here. kubectl rounds to a float.
#[case("12345678901234567890", json!(12_345_678_901_234_567_890_u64))]
#[case("0xffffffffffffffff", json!(u64::MAX))]
// Underscores in fractions and doubled underscores: numbers in kubectl, strings here. They do not
// occur in practice, and `emit` quotes such strings.
#[case("[1_000.5, 1__0, 1_]", json!(["1_000.5", "1__0", "1_"]))]
// Mixed case: strings in kubectl. `emit` quotes these, too.
#[case("[yEs, nUll]", json!([true, null]))]
fn known_differences_from_kubectl(#[case] text: &str, #[case] expected: Value) {
    assert_eq!(read(text), [expected]);
}

#[rstest]
// Refused by design. kubectl silently uses the last value.
#[case("a: 1\nb: 2\na: 3", 3, 1, "duplicate key `a`")]
#[case("x:\n  on: 1\n  yes: 2", 3, 3, "duplicate key `true`")]
// Refused by kubectl, too.
#[case("~: x", 1, 1, "null cannot be a key")]
#[case("[1]: x", 1, 1, "a list cannot be a key")]
#[case(
    "a: .inf",
    1,
    4,
    "infinity, NaN and numbers beyond 64-bit floats have no JSON form; put it in quotes if it is a string"
)]
#[case("a:\n  <<: 1", 2, 7, "`<<` takes a map or a list of maps")]
#[case("a: *x", 1, 4, "alias of an undefined anchor")]
#[case("a: &x [*x]", 1, 8, "alias within the value that it refers to")]
#[case("a: \"x", 1, 4, "unclosed quote")]
#[case("a: [1, 2", 1, 4, "unclosed bracket '['")]
#[case(
    "a: b: c",
    1,
    5,
    "`:` is not allowed here; check the indentation, or put the string in quotes"
)]
#[case(
    "a: @x",
    1,
    4,
    "a string cannot start with this character; put it in quotes"
)]
#[case(
    "a: \"x\u{0}y\"",
    1,
    6,
    r"YAML does not allow this character; remove it, or escape it in double quotes, such as \x00"
)]
#[case(
    "a: |\n  x\u{0}y",
    2,
    4,
    r"YAML does not allow this character; remove it, or escape it in double quotes, such as \x00"
)]
#[case("a: !!int x", 1, 10, "the tag does not match the value")]
fn refused_with_its_position(
    #[case] text: &str,
    #[case] line: usize,
    #[case] column: usize,
    #[case] message: &str,
) {
    let errors = parse_documents(text).unwrap_err();
    let found: Vec<_> = errors
        .iter()
        .map(|error| (error.line, error.column, error.message.as_str()))
        .collect();
    assert_eq!(found, [(line, column, message)]);
}

#[rstest]
#[case("a:\n\tb: 1", &[(2, 2)])]
#[case("\ta: 1", &[(1, 1)])]
// kubectl reads this tab as a space, other parsers do not.
#[case("a:\t1", &[(1, 3)])]
#[case("openAPIV3Schema:\t\n  properties:\t\n    kind: x\n", &[(1, 17), (2, 14)])]
#[case("-\ta", &[(1, 2)])]
fn tabs_that_indent_or_separate_are_refused(#[case] text: &str, #[case] places: &[(usize, usize)]) {
    let errors = parse_documents(text).unwrap_err();
    let found: Vec<_> = errors
        .iter()
        .map(|error| (error.line, error.column))
        .collect();
    assert_eq!(found, places);
    for error in errors {
        assert_eq!(error.message, "YAML does not allow tabs here; use spaces");
    }
}

#[rstest]
#[case("a: |\n  x:\ty\n  \tz:\n\t\nb: 1", json!({"a": "x:\ty\n\tz:\n", "b": 1}))]
#[case("a: \"x:\ty\"", json!({"a": "x:\ty"}))]
#[case("a: 1\t# x:\ty", json!({"a": 1}))]
#[case("{\n\t\"a\": {\n\t\t\"b\":\t[\n\t\t\t1\n\t\t]\n\t}\n}\n", json!({"a": {"b": [1]}}))]
#[case("# x:\ty\n#\tz\na: 1", json!({"a": 1}))]
fn tabs_in_texts_and_comments_are_fine(#[case] text: &str, #[case] expected: Value) {
    assert_eq!(read(text), [expected]);
}

#[test]
fn documents_are_counted_with_their_line() {
    let text = "\
# c

---
# d

  # e
a: 1
--- # x
---

---
{a: 1}
--- |
 text
---
&x b: 1
--- !foo
c: 1
---
- 1
---
null
...
---
# nothing
";
    let lines: Vec<usize> = parse_documents(text)
        .unwrap()
        .iter()
        .map(|document| document.line)
        .collect();
    assert_eq!(lines, [7, 12, 14, 16, 18, 20]);
    assert_eq!(parse_documents("").unwrap(), []);
    assert_eq!(parse_documents("# only a comment\n").unwrap(), []);
    assert_eq!(parse_documents("---\n---\n").unwrap(), []);
}

#[test]
fn every_broken_document_is_reported() {
    let text = "a: 1\n b: 2\n---\nfine: 1\n---\nd: 1\nd: 2\n---\n# c\ne: [\n";
    let lines: Vec<usize> = parse_documents(text)
        .unwrap_err()
        .iter()
        .map(|error| error.line)
        .collect();
    assert_eq!(lines[..2], [2, 7]);
    assert_eq!(lines.len(), 3);
}

#[test]
fn errors_quote_no_value() {
    let broken = [
        "password: s3cret: x",
        "password: \"s3cret",
        "password: @s3cret",
        "password: *s3cret",
        "password: !!int s3cret",
        "password: !!bool s3cret",
        "password: [s3cret",
        "password: {s3cret: }}",
        "password: s3cret\n s3cret: x",
        "password: |\n  x\n s3cret\n",
        "password: %s3cret",
        "password: !<s3cret",
        "password: .s3cret\n\t- x",
        "password: 's3cret' s3cret",
        "password: !!binary s3cret!",
        "password: s3cret\n<<: s3cret",
        "password: \"s3cret\\q\"",
    ];
    for text in broken {
        for error in parse_documents(text).unwrap_err() {
            assert!(!format!("{error} {error:?}").contains("s3cret"), "{error}");
        }
    }
}

#[test]
fn bundles_of_crds_fit() {
    let deep = |depth: usize| format!("{}1{}", "[".repeat(depth), "]".repeat(depth));
    assert!(parse_documents(&deep(120)).is_ok());
    let error = &parse_documents(&deep(100_000)).unwrap_err()[0];
    assert_eq!(error.message, "nested deeper than 128 levels");
    // More documents than the YAML crate's limit of 1,024.
    let many = "---\na: 1\n".repeat(3000);
    assert_eq!(parse_documents(&many).unwrap().len(), 3000);
}

#[test]
fn aliases_cannot_explode() {
    let mut text = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n".to_owned();
    for level in 1..10 {
        let aliases = vec![format!("*a{}", level - 1); 10].join(", ");
        let line = format!("a{level}: &a{level} [{aliases}]\n");
        text.push_str(&line);
    }
    let error = &parse_documents(&text).unwrap_err()[0];
    assert_eq!(error.message, "too many anchors and aliases");
}
