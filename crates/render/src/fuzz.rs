//! Property tests with arbitrary templates. `PROPTEST_CASES=100000` runs more cases.

use bytes::Bytes;
use proptest::prelude::*;
use serde_json::json;

use super::*;
use pleach_model::tree::MemoryTree;

fn render_one(template: &str) -> Rendered {
    let release = samples::release(
        "web",
        &["a.yaml.j2"],
        json!({"a": [1, {"b": "text"}], "s": "x: y"}),
    );
    let environment = samples::environment(vec![release.clone()]);
    let tree = MemoryTree::new([
        ("a.yaml.j2".to_owned(), Bytes::from(template.to_owned())),
        (
            "templates/t.j2".to_owned(),
            Bytes::from("{% macro m(x) %}{{ x }}{{ caller() }}{% endmacro %}{% include 't.j2' %}"),
        ),
    ]);
    let table = KindTable::for_minor("1.36").unwrap();
    render(&tree, &environment, &release, &table)
}

/// Generates templates from fragments.
fn template() -> impl Strategy<Value = String> {
    let parts = [
        "{{ ",
        " }}",
        "{% ",
        " %}",
        "{# ",
        " #}",
        "values",
        ".a",
        ".s",
        "release.name",
        " | ",
        "toyaml",
        "tojson",
        "indent(",
        "regex_replace('(.*)*', 'x')",
        "b64decode",
        "required('m')",
        "join",
        "sort",
        "map('upper')",
        "for x in ",
        "endfor",
        "if ",
        "else",
        "endif",
        "set x = ",
        "macro m(a) ",
        "endmacro",
        "m(",
        "include 't.j2'",
        "import 't.j2' as t",
        "t.m(",
        "range(",
        "99999999999",
        "-1",
        "loop(",
        "recursive",
        "x",
        "~",
        "*",
        "+",
        "[0]",
        "[",
        "]",
        "(",
        ")",
        "{",
        "}",
        "'",
        "\"",
        ",",
        " in ",
        "namespace()",
        "do ",
        "call ",
        "raw",
        "endraw",
        "\n",
        "a: ",
        "- ",
        "---\n",
        "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\n",
    ];
    let token = prop_oneof![
        12 => prop::sample::select(parts.to_vec()).prop_map(str::to_owned),
        1 => any::<String>(),
    ];
    prop::collection::vec(token, 0..40).prop_map(|tokens| tokens.concat())
}

proptest! {
    /// Rendering gives objects or findings, and the same ones again.
    #[test]
    fn any_template_is_rendered_or_refused(template in template()) {
        let first = render_one(&template);
        let again = render_one(&template);
        prop_assert_eq!(&first.findings, &again.findings);
        let objects = |rendered: &Rendered| -> Vec<Bytes> {
            rendered.manifests.iter().map(|one| one.json().clone()).collect()
        };
        prop_assert_eq!(objects(&first), objects(&again));
    }
}
