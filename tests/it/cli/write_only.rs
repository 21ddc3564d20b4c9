//! Values marked `writeOnly` in `values.schema.json` are never printed, in any object and message.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use rstest::rstest;

use super::diff::commit;
use super::{Folder, Run};

/// Planted values of `password`: previous and current.
const PLANTED: [&str; 2] = ["former-zq4wrench8k", "present-zq4wrench8k"];

/// Common substring of both, to detect any leaked form.
const KERNEL: &str = "zq4wrench8k";

const SCHEMA: &str = r#"{
  "type": "object",
  "properties": {
    "password": {"type": "string", "minLength": 6, "writeOnly": true},
    "level": {"type": "string"}
  }
}"#;

/// Objects with the value alone, within a text, in base64, and as an argument.
const OBJECTS: &str = "\
apiVersion: v1
kind: ConfigMap
metadata: {name: conf, annotations: {note: 'pw {{ values.password }}'}}
data:
  password: {{ values.password | quote }}
  url: 'postgres://web:{{ values.password }}@db'
  encoded: {{ values.password | b64encode | quote }}
  level: {{ values.level | quote }}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec:
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      containers:
        - {name: web, image: web, args: ['--password={{ values.password }}']}
";

const TEMPLATE: &str = "manifests/web/v1.0.0/web.yaml.j2";
const ENVIRONMENT: &str = "environments/dev.yaml";

fn folder() -> Folder {
    let header = "apiVersion: pleach.dev/v1alpha1\nkind:";
    let environment = format!(
        "{header} Environment\ncluster: {{kubernetes: \"1.36\"}}\nreleases:\n\
         \x20 - {{bundle: web, version: v1.0.0, namespace: web, values: {{password: {}, level: info}}}}\n",
        PLANTED[0]
    );
    let folder = Folder::with(&[
        ("pleach.yaml", &format!("{header} Repository\nid: fleet\n")),
        (ENVIRONMENT, &environment),
        ("manifests/web/bundle.yaml", &format!("{header} Bundle\n")),
        ("manifests/web/v1.0.0/values.schema.json", SCHEMA),
        (TEMPLATE, OBJECTS),
    ]);
    commit(&folder);
    folder
}

fn edit(folder: &Folder, file: &str, from: &str, to: &str) {
    let text = folder.read(file);
    assert!(text.contains(from), "{from}");
    folder.write(file, &text.replace(from, to));
}

/// Fails if an output contains a planted value, plain or in base64.
#[track_caller]
fn check(run: &Run) {
    for text in [&run.stdout, &run.stderr] {
        assert!(!text.contains(KERNEL), "{}", run.shown());
        for planted in PLANTED {
            // Check all base64 alignments.
            for padding in ["", "x", "xx"] {
                let encoded = STANDARD.encode(format!("{padding}{planted}"));
                let inner = &encoded[4..encoded.len() - 4];
                assert!(!text.contains(inner), "{}", run.shown());
            }
        }
    }
}

#[rstest]
#[case::rendered(&["render", "dev"])]
#[case::as_json(&["render", "dev", "-o", "json"])]
#[case::with_values(&["render", "dev", "--show-values"])]
#[case::linted(&["lint", "-o", "json"])]
#[case::for_code_hosts(&["lint", "-o", "sarif"])]
#[case::compared(&["diff", "dev", "--base", "main"])]
#[case::compared_with_all(&["diff", "dev", "--base", "main", "--all"])]
#[case::compared_for_programs(&["diff", "dev", "--base", "main", "-o", "json"])]
#[case::compared_for_a_comment(&["diff", "dev", "--base", "main", "-o", "markdown"])]
fn a_write_only_value_is_in_no_output(#[case] arguments: &[&str]) {
    let folder = folder();
    edit(&folder, ENVIRONMENT, PLANTED[0], PLANTED[1]);
    edit(&folder, ENVIRONMENT, "level: info", "level: debug");
    let run = folder.run(arguments);
    check(&run);
    assert_eq!(run.code, 0, "{}", run.shown());
    // Other values are shown beside it.
    if arguments[0] != "lint" {
        assert!(run.stdout.contains("debug"), "{}", run.shown());
        assert!(run.stdout.contains("<secret"), "{}", run.shown());
    }
}

#[test]
fn a_changed_write_only_value_is_followed_by_its_number() {
    let folder = folder();
    edit(&folder, ENVIRONMENT, PLANTED[0], PLANTED[1]);
    let run = folder.run(&["diff", "dev", "--base", "main"]);
    check(&run);
    assert!(run.stdout.contains("changed>"), "{}", run.shown());
    assert_eq!(
        run.stdout.lines().last(),
        Some("2 to update, 1 unchanged"),
        "{}",
        run.shown()
    );
}

/// The finding has the location of the value, but not the value.
#[rstest]
#[case::an_unknown_field(TEMPLATE, "\ndata:", "\ndate:", "unknown-field")]
#[case::of_another_type(
    TEMPLATE,
    "  password: {{",
    "  password: {a: x}\n  other: {{",
    "wrong-type"
)]
#[case::no_yaml(TEMPLATE, "\ndata:", "\ndata: [", "yaml")]
#[case::twice(
    TEMPLATE,
    "  level:",
    "  password: {{ values.password }}\n  level:",
    "yaml"
)]
#[case::in_a_filter(TEMPLATE, "| b64encode", "| b64decode", "template-failed")]
#[case::in_a_name(
    TEMPLATE,
    "name: conf,",
    "name: 'conf-{{ values.password }}',",
    "secret-in-name"
)]
#[case::too_short(
    ENVIRONMENT,
    "password: former-zq4wrench8k",
    "password: zq4",
    "values-refused"
)]
#[case::no_text(
    ENVIRONMENT,
    "password: former-zq4wrench8k",
    "password: [former-zq4wrench8k]",
    "values-refused"
)]
#[case::no_value(
    ENVIRONMENT,
    "password: former-zq4wrench8k",
    "password: former-zq4wrench8k, password: x",
    "invalid-yaml"
)]
fn errors_about_a_write_only_value_do_not_quote_it(
    #[case] file: &str,
    #[case] from: &str,
    #[case] to: &str,
    #[case] code: &str,
) {
    let folder = folder();
    edit(&folder, file, from, to);
    let json = folder.run(&["lint", "-o", "json"]);
    check(&json);
    assert!(
        json.stdout.contains(&format!("\"code\": \"{code}\"")),
        "{code}: {}",
        json.shown()
    );
    for arguments in [
        &["lint"][..],
        &["lint", "-o", "sarif"],
        &["render", "dev"],
        &["diff", "dev", "--base", "main"],
        &["plan", "dev", "--kubeconfig", "/nowhere"],
        &["apply", "dev", "--yes", "--kubeconfig", "/nowhere"],
    ] {
        let run = folder.run(arguments);
        check(&run);
        for text in [&json.stdout, &run.stdout, &run.stderr] {
            assert!(!text.contains("zq4"), "{text}");
        }
    }
}
