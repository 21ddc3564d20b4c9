//! Tests that edits change only the intended bytes.

use proptest::prelude::*;
use rstest::rstest;
use serde_json::json;

use super::*;

fn path(text: &str) -> Vec<Step> {
    text.split('.')
        .map(|step| match step.parse::<usize>() {
            Ok(item) => Step::Item(item),
            Err(_) => Step::Key(step.to_owned()),
        })
        .collect()
}

fn plain(value: Value) -> Written {
    Written { value, text: None }
}

const FILE: &str = "\
# The shop.
apiVersion: pleach.dev/v1alpha1
kind: Environment
values: {region: eu}   # for all

releases:
  # The front.
  - name: web          # named
    bundle: web
    version: v1.1.0    # pinned
    # How loud.
    values:            # of the release
      logLevel: 2      # quiet

      lines: |
        # not a comment
        text
    # Behind.

  - {bundle: db, version: \"v2.0.0\", values: {a: [1, 2]}}
  - bundle: app
# The end.
";

#[rstest]
#[case::scalar("releases.0.version", json!("v1.0.0"), "version: v1.1.0    # pinned", "version: v1.0.0    # pinned")]
#[case::in_brackets("releases.1.version", json!("v1.0.0"), "version: \"v2.0.0\"", "version: v1.0.0")]
#[case::deeper_in_brackets("releases.1.values.a", json!({"b": ["x, y", true]}), "{a: [1, 2]}", "{a: {b: [\"x, y\", true]}}")]
#[case::map_for_map("releases.0.values", json!({"b": {"c": 1}}),
    "      logLevel: 2      # quiet\n\n      lines: |\n        # not a comment\n        text\n", "      b:\n        c: 1\n")]
#[case::scalar_for_map("releases.0.values", json!(null),
    "values:            # of the release\n      logLevel: 2      # quiet\n\n      lines: |\n        # not a comment\n        text\n", "values: null\n")]
#[case::lines_for_map("releases.0.values", json!("two\nlines\n"),
    "values:            # of the release\n      logLevel: 2      # quiet\n\n      lines: |\n        # not a comment\n        text\n", "values: |            # of the release\n      two\n      lines\n")]
#[case::map_for_scalar("releases.0.version", json!({"a": 1}), "version: v1.1.0    # pinned\n", "version:\n      a: 1\n")]
#[case::new_key("releases.0.patches", json!([{"a": 1}]), "        text\n", "        text\n    patches:\n    - a: 1\n")]
#[case::new_key_of_the_last_item("releases.2.version", json!("v1"), "  - bundle: app\n", "  - bundle: app\n    version: v1\n")]
#[case::new_key_in_brackets("releases.1.name", json!("on"), "[1, 2]}}", "[1, 2]}, name: \"on\"}")]
#[case::new_item("releases.3", json!({"bundle": "x", "values": {"a": 1}}), "  - bundle: app\n", "  - bundle: app\n  - bundle: x\n    values:\n      a: 1\n")]
#[case::new_key_at_the_top("prune", json!({"enabled": false}), "  - bundle: app\n", "  - bundle: app\nprune:\n  enabled: false\n")]
fn a_value_is_set(#[case] at: &str, #[case] value: Value, #[case] from: &str, #[case] to: &str) {
    assert!(FILE.matches(from).count() == 1);
    for newline in ["\n", "\r\n"] {
        let (text, expected) = (
            FILE.replace('\n', newline),
            FILE.replace(from, to).replace('\n', newline),
        );
        let edited = set("e.yaml", &text, &path(at), &plain(value.clone())).unwrap();
        assert_eq!(edited, expected);
    }
}

#[rstest]
#[case::line("releases.0.version", "    version: v1.1.0    # pinned\n", "")]
#[case::lines(
    "releases.0.values",
    "    values:            # of the release\n      logLevel: 2      # quiet\n\n      lines: |\n        # not a comment\n        text\n",
    ""
)]
#[case::first_of_an_item("releases.0.name", "name: web          # named\n    bundle", "bundle")]
#[case::in_brackets("releases.1.bundle", "bundle: db, ", "")]
#[case::last_in_brackets("releases.1.values", ", values: {a: [1, 2]}", "")]
#[case::at_the_top("values", "values: {region: eu}   # for all\n", "")]
fn a_key_is_removed(#[case] at: &str, #[case] from: &str, #[case] to: &str) {
    assert!(FILE.matches(from).count() == 1);
    assert_eq!(
        remove("e.yaml", FILE, &path(at)).unwrap(),
        FILE.replace(from, to)
    );
}

/// Anchors, merges and multi-line strings can have effects elsewhere.
#[rstest]
#[case::anchor("a: &x {b: 1}\nc: *x\n", "a.b", json!(2))]
#[case::alias("a: &x {b: 1}\nc: *x\n", "c.b", json!(2))]
#[case::merge("a: &x\n  b: 1\nc:\n  <<: *x\n  d: 1\n", "c.b", json!(2))]
#[case::comment_in_brackets("a: {b: {c: 1, # x\n  d: 2}}\n", "a.b", json!(2))]
fn unsafe_edits_are_refused(#[case] text: &str, #[case] at: &str, #[case] value: Value) {
    let error = set("e.yaml", text, &path(at), &plain(value)).unwrap_err();
    assert!(matches!(error, EditError::Unsafe { .. }), "{error}");
}

#[test]
fn an_error_names_file_and_line() {
    let error = set(
        "e.yaml",
        FILE,
        &path("releases.7.version"),
        &plain(json!(1)),
    )
    .unwrap_err();
    assert_eq!(error.to_string(), "e.yaml has no releases[7].version");
    let error = remove("e.yaml", "a: 1\n---\nb: 1\n", &path("a")).unwrap_err();
    assert_eq!(error.to_string(), "e.yaml is not a single YAML document");
}

/// A value copied from another text keeps its comments.
#[test]
fn a_value_is_copied_verbatim() {
    let previous = FILE
        .replace("quiet", "loud")
        .replace("logLevel: 2 ", "logLevel: 9 ");
    let values = written("e.yaml", &previous, &path("releases.0.values")).unwrap();
    let back = set("e.yaml", FILE, &path("releases.0.values"), &values).unwrap();
    assert_eq!(back, previous);
    // Also with other indentation, and where the key did not exist.
    let other = "releases:\n- name: web\n  version: v1\nprune: {enabled: true}\n";
    let there = set("e.yaml", other, &path("releases.0.values"), &values).unwrap();
    assert_eq!(
        there,
        "releases:\n- name: web\n  version: v1\n  values:\n    logLevel: 9      # loud\n\n    lines: |\n      # not a comment\n      text\nprune: {enabled: true}\n"
    );
    let version = written("e.yaml", FILE, &path("releases.1.version")).unwrap();
    assert_eq!(version.text.as_deref(), Some("\"v2.0.0\""));
}

/// A file without a final line break gets no other change.
#[test]
fn a_last_line_without_newline_is_extended() {
    let text = "releases:\n  - bundle: web";
    let edited = set(
        "e.yaml",
        text,
        &path("releases.0.version"),
        &plain(json!("v1")),
    )
    .unwrap();
    assert_eq!(edited, "releases:\n  - bundle: web\n    version: v1");
}

/// Formatting variants of an environment file.
#[derive(Debug, Clone)]
struct Hand {
    dash: usize,
    flow: Vec<bool>,
    comments: Vec<bool>,
    blank: bool,
}

fn hand() -> impl Strategy<Value = Hand> {
    (
        0..4_usize,
        prop::collection::vec(any::<bool>(), 8),
        prop::collection::vec(any::<bool>(), 8),
        any::<bool>(),
    )
        .prop_map(|(dash, flow, comments, blank)| Hand {
            dash,
            flow,
            comments,
            blank,
        })
}

fn leaf() -> impl Strategy<Value = Value> {
    prop_oneof![
        any::<bool>().prop_map(Value::from),
        (-9..99_i64).prop_map(Value::from),
        "[a-z,:# '\"{}\\[\\]é|&*-]{0,8}".prop_map(Value::from),
        Just(json!("two\nlines\n")),
        Just(json!("on")),
        Just(Value::Null),
        Just(json!([])),
        Just(json!({})),
    ]
}

fn tree() -> impl Strategy<Value = Value> {
    leaf().prop_recursive(2, 8, 3, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..3).prop_map(Value::from),
            prop::collection::btree_map("[a-c]", inner, 0..3).prop_map(|map| json!(map)),
        ]
    })
}

fn releases() -> impl Strategy<Value = Vec<Value>> {
    let release = (
        prop::option::of(tree()),
        prop::option::of(leaf()),
        any::<bool>(),
    );
    prop::collection::vec(release, 1..4).prop_map(|all| {
        all.into_iter()
            .enumerate()
            .map(|(number, (values, version, named))| {
                let mut one = json!({"bundle": format!("b{number}")});
                if let Some(version) = version {
                    one["version"] = version;
                }
                if let Some(values) = values {
                    one["values"] = values;
                }
                if named {
                    one["name"] = json!("n");
                }
                one
            })
            .collect()
    })
}

impl Hand {
    fn bit(bits: &[bool], number: usize) -> bool {
        bits[number % bits.len()]
    }

    /// Formats a file. Also returns its comments.
    fn write(&self, releases: &[Value]) -> (String, Vec<String>) {
        let mut comments = vec!["# head".to_owned()];
        let mut lines: Vec<String> = vec![
            "# head".to_owned(),
            "kind: Environment".to_owned(),
            "releases:".to_owned(),
        ];
        let pad = " ".repeat(self.dash);
        for (number, release) in releases.iter().enumerate() {
            if Self::bit(&self.comments, number) {
                let comment = format!("{pad}# before {number}");
                lines.push(comment.clone());
                comments.push(comment);
            }
            if Self::bit(&self.flow, number) {
                lines.push(format!("{pad}- {}", render::in_flow(release)));
            } else {
                let body = pleach_model::object::yaml::emit(release);
                for (at, line) in body.lines().enumerate() {
                    lines.push(match (at, line) {
                        (0, line) => format!("{pad}- {line}"),
                        (_, "") => String::new(),
                        (_, line) => format!("{pad}  {line}"),
                    });
                }
            }
            if self.blank {
                lines.push(String::new());
            }
        }
        let last = "prune: {enabled: true} # last".to_owned();
        comments.push(last.clone());
        lines.push(last);
        let text = lines.join("\n") + "\n";
        (text, comments)
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn parsing_the_edited_text_is_editing_the_parsed_one(
        hand in hand(), releases in releases(), number in 0..4_usize, key in "version|values|name|rollback", new in prop::option::of(tree()),
    ) {
        let (text, comments) = hand.write(&releases);
        let parsed = document("e.yaml", &text).unwrap().to_value();
        prop_assert_eq!(&parsed["releases"], &json!(releases), "{}", text);
        let number = number % releases.len();
        let at = [Step::from("releases"), number.into(), key.as_str().into()];
        let there = releases[number].get(&key).is_some();
        let edited = match &new {
            Some(value) => set("e.yaml", &text, &at, &plain(value.clone())),
            None if there => remove("e.yaml", &text, &at),
            None => return Ok(()),
        };
        let edited = match edited {
            Ok(edited) => edited,
            Err(error) => return Err(TestCaseError::fail(format!("{error}\n{text}"))),
        };
        let mut expected = parsed;
        put(&mut expected, &at, new.as_ref()).unwrap();
        prop_assert_eq!(document("e.yaml", &edited).unwrap().to_value(), expected, "{}\n{}", text, edited);
        // Every comment and every line of the other releases is unchanged.
        for comment in comments {
            prop_assert!(edited.contains(&format!("{comment}\n")), "{}\n{}", text, edited);
        }
        let marks = |text: &str, other: usize| -> Option<String> {
            let root = document("e.yaml", text).unwrap();
            let source = Text::new(text);
            let items = root.get("releases").unwrap().items();
            let start = source.line_start(source.dash(&items[other]).unwrap());
            let end = items.get(other + 1).map_or_else(
                || text.find("prune:").unwrap(),
                |next| source.line_start(source.dash(next).unwrap()),
            );
            Some(text[start..end].to_owned())
        };
        for other in (0..releases.len()).filter(|other| *other != number) {
            prop_assert_eq!(marks(&text, other), marks(&edited, other));
        }
        // Setting a value to its present text changes nothing.
        if there && let Some(as_it_is) = written("e.yaml", &text, &at)
            && as_it_is.text.is_some()
        {
            prop_assert_eq!(set("e.yaml", &text, &at, &as_it_is).unwrap(), text);
        }
    }
}
