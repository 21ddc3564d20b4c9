//! Secret values are never printed. [`Fleet::run`] searches every output for planted ones; these
//! tests cover all ways for values to reach an output.

use serde_json::Value;

use crate::fleet::{Fleet, PLANTED, leaks};

const ENVIRONMENT: &str = "\
releases:
  - name: web
    bundle: web
    version: v1.0.0
    namespace: NAME
    adopt: [kubectl]
    values:
      password: pw-Xq7hush9vB2
      nested: {token: \"Xq7hush9vB2/token\", url: \"postgres://web:Xq7hush9vB2@db/web\"}
";

const SECRETS: &str = "\
apiVersion: v1
kind: Secret
metadata: {name: text, annotations: {note: public}}
stringData:
  password: {{ values.password | quote }}
  url: {{ values.nested.url | quote }}
  lines: |
    first
    key = {{ values.nested.token }}
---
apiVersion: v1
kind: Secret
metadata: {name: encoded}
data:
  password: {{ values.password | b64encode }}
  again: {{ values.password | b64encode }}
---
apiVersion: v1
kind: Secret
metadata: {name: fixed}
immutable: true
stringData: {token: {{ values.nested.token | quote }}}
";

const LITERAL: &str = "\
apiVersion: v1
kind: Secret
metadata: {name: literal}
stringData: {a: Xq7hush9vB2}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: open}
data: {k: v}
";

pub(crate) fn fleet(environment: &'static str) -> Fleet {
    let fleet = Fleet::new(
        environment,
        "  []\n",
        &[
            (
                "manifests/web/bundle.yaml",
                "apiVersion: pleach.dev/v1alpha1\nkind: Bundle\n",
            ),
            ("manifests/web/v1.0.0/secrets.yaml.j2", SECRETS),
            ("manifests/web/v1.0.0/literal.yaml", LITERAL),
        ],
    );
    let id = fleet.cluster_id();
    let body = ENVIRONMENT.replace("NAME", environment);
    fleet.set_environment(&format!("cluster: {{id: {id}}}\n{body}"));
    fleet.commit();
    fleet
}

/// Runs every command with every output; [`Fleet::run`] checks all of them.
fn say_everything(fleet: &Fleet) {
    let environment = fleet.environment;
    for args in [
        &["render"][..],
        &["render", "--show-values"],
        &["diff"],
        &["diff", "--all", "--verify"],
        &["diff", "-o", "json"],
        &["diff", "-o", "markdown"],
        &["plan", "-o", "json"],
        // With all that `plan` alone prints.
        &["plan", "-vvv", "--log", "trace"],
        &["apply"],
    ] {
        let mut line = args.to_vec();
        line.insert(1, environment);
        fleet.run(&line);
    }
}

#[track_caller]
fn nothing_leaks(what: &str, text: &str) {
    assert!(!text.trim().is_empty(), "{what} is empty");
    assert_eq!(leaks(text), None, "{what}");
}

#[test]
fn values_of_secrets_are_in_the_secrets_and_nowhere_else() {
    let fleet = fleet("hush");
    say_everything(&fleet);
    fleet.run(&["apply", "hush", "--yes", "-vvv"]).ended_with(0);
    let live = fleet.get(&["-n", "hush", "secret/text"]).unwrap();
    assert!(
        leaks(&live["data"]["url"].to_string()).is_some(),
        "it got there"
    );
    assert_eq!(live["metadata"]["annotations"]["note"], "public");

    // The record, and all objects in the namespace except Secrets.
    for args in [
        &["get", "releases", "-o", "yaml", "--show-managed-fields"][..],
        &["-n", "pleach-system", "get", "cm,secrets", "-o", "yaml"],
        &[
            "-n",
            "hush",
            "get",
            "cm,events",
            "-o",
            "yaml",
            "--show-managed-fields",
        ],
    ] {
        nothing_leaks(&args.join(" "), &fleet.kubectl(args));
    }
    let secrets = fleet.get(&["-n", "hush", "secrets"]).unwrap();
    for secret in secrets["items"].as_array().unwrap() {
        nothing_leaks("metadata of a Secret", &secret["metadata"].to_string());
    }

    // Git changes: one value stays, one moves, and one is added.
    fleet.edit_environment("pw-Xq7hush9vB2", "new-Xq7hush9vB2");
    fleet.edit(
        "manifests/web/v1.0.0/literal.yaml",
        "{a: Xq7hush9vB2}",
        "{b: Xq7hush9vB2}",
    );
    fleet.commit();
    say_everything(&fleet);
    fleet.diff().ended_with(10).says("<secret");
    fleet.applied();
    fleet.diff().ended_with(0);

    // The cluster drifts.
    let drift = format!(r#"{{"stringData":{{"password":"other-{PLANTED}"}}}}"#);
    fleet.kubectl(&[
        "-n",
        "hush",
        "patch",
        "secret/text",
        "--type=merge",
        "-p",
        &drift,
    ]);
    say_everything(&fleet);
    fleet.applied();

    // The field is immutable, so the object is recreated.
    fleet.edit(
        "manifests/web/v1.0.0/secrets.yaml.j2",
        "{token: {{ values.nested.token | quote }}}",
        "{token: {{ values.password | quote }}}",
    );
    fleet.commit();
    say_everything(&fleet);
    fleet
        .apply()
        .ended_with(0)
        .says("git changed .data, which cannot change on an existing object");
}

#[test]
fn digests_of_secrets_cannot_be_guessed() {
    let fleet = fleet("digest");
    fleet.applied();
    let plan = fleet.plan();
    let shown: Vec<&Value> = plan["changes"].as_array().unwrap().iter().collect();
    assert_eq!(shown.len(), 6, "{plan}");
    // Equal data with different names: a plain digest would be equal too.
    let digest = |object: &str| {
        let live = fleet.get(&["-n", "digest", object]).unwrap();
        live["metadata"]["annotations"]["pleach.dev/desired"]
            .as_str()
            .unwrap()
            .to_owned()
    };
    assert!(
        digest("secret/literal").contains("hmac"),
        "{}",
        digest("secret/literal")
    );
    assert!(!digest("cm/open").contains("hmac"), "{}", digest("cm/open"));
}

const NAMED: &str = "\
apiVersion: v1
kind: ConfigMap
metadata: {name: legacy}
data: {user: web, password: {{ values.password | quote }}}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: app}
spec:
  replicas: 0
  selector: {matchLabels: {app: app}}
  template:
    metadata: {labels: {app: app}}
    spec:
      containers:
      - name: app
        image: app
        env: [{name: LEVEL, value: '1'}, {name: TOKEN, value: {{ values.nested.token | quote }}}]
";

#[test]
fn fields_that_a_bundle_names_are_as_secret_as_secrets() {
    let fleet = fleet("named");
    fleet.write(
        "manifests/web/bundle.yaml",
        "apiVersion: pleach.dev/v1alpha1\nkind: Bundle\nsecretFields:\n\
         - {kind: ConfigMap, name: leg*, fields: [data.password]}\n\
         - {kind: Deployment, fields: ['spec.template.spec.containers[name=app].env[name=TOKEN].value']}\n",
    );
    fleet.write("manifests/web/v1.0.0/named.yaml.j2", NAMED);
    fleet.commit();
    say_everything(&fleet);
    fleet.applied();
    for object in ["cm/legacy", "deployment/app"] {
        let live = fleet.get(&["-n", "named", object]).unwrap();
        assert!(leaks(&live.to_string()).is_some(), "it got there");
        let digest = &live["metadata"]["annotations"]["pleach.dev/desired"];
        assert!(digest.as_str().unwrap().contains("hmac"), "{digest}");
    }
    fleet.diff().ended_with(0);

    // Git changes a value and adds one under another name.
    fleet.edit_environment("pw-Xq7hush9vB2", "new-Xq7hush9vB2");
    fleet.edit(
        "manifests/web/v1.0.0/named.yaml.j2",
        "name: LEVEL, value: '1'",
        "name: LEVEL, value: '2'",
    );
    fleet.commit();
    say_everything(&fleet);
    for args in [&[][..], &["--all"], &["-o", "json"], &["-o", "markdown"]] {
        let line = [&["diff", "named", "--base", "HEAD~1"], args].concat();
        fleet.run(&line).says("changed>");
    }
    fleet.diff().ended_with(10).says("-          value: \"1\"");
    fleet.applied();

    // The cluster drifts.
    let drift = format!(r#"{{"data":{{"password":"other-{PLANTED}"}}}}"#);
    fleet.kubectl(&[
        "-n",
        "named",
        "patch",
        "cm/legacy",
        "--type=merge",
        "-p",
        &drift,
    ]);
    say_everything(&fleet);
    fleet.applied();

    // The server's refusal quotes the object.
    let template = "manifests/web/v1.0.0/named.yaml.j2";
    let list = "password: [{{ values.password | quote }}]";
    fleet.edit(template, "password: {{ values.password | quote }}", list);
    fleet.commit();
    say_everything(&fleet);
    assert_ne!(fleet.apply().code, 0);
    fleet.edit(template, list, "password: {{ values.password | quote }}");

    // The objects are removed.
    fleet.edit(template, "name: legacy", "name: legacy-of-old");
    fleet.edit(
        "manifests/web/bundle.yaml",
        "name: leg*",
        "name: legacy-of-old",
    );
    fleet.commit();
    say_everything(&fleet);
    fleet.applied();
}

/// Objects other than Secrets with a value that the schema marks.
const MARKED: &str = "\
apiVersion: v1
kind: ConfigMap
metadata: {name: marked, annotations: {note: 'pw {{ values.password }}'}}
data:
  url: 'postgres://web:{{ values.password }}@db'
  encoded: {{ values.password | b64encode | quote }}
  level: low
";

#[test]
fn values_that_the_schema_marks_are_as_secret_as_secrets() {
    let fleet = fleet("marked");
    fleet.write(
        "manifests/web/v1.0.0/values.schema.json",
        r#"{"properties": {"password": {"type": "string", "writeOnly": true}}}"#,
    );
    let template = "manifests/web/v1.0.0/marked.yaml.j2";
    fleet.write(template, MARKED);
    fleet.commit();
    say_everything(&fleet);
    fleet.applied();
    let live = || fleet.get(&["-n", "marked", "cm/marked"]).unwrap();
    assert!(leaks(&live()["data"].to_string()).is_some(), "it got there");
    let digest = &live()["metadata"]["annotations"]["pleach.dev/desired"];
    assert!(digest.as_str().unwrap().contains("hmac"), "{digest}");

    // Git changes it, and the cluster drifts.
    fleet.edit_environment("pw-Xq7hush9vB2", "new-Xq7hush9vB2");
    fleet.edit(template, "level: low", "level: high");
    fleet.commit();
    say_everything(&fleet);
    fleet.diff().ended_with(10).says("+  level: high");
    fleet.applied();
    let drift = format!(r#"{{"data":{{"url":"other-{PLANTED}"}}}}"#);
    fleet.kubectl(&[
        "-n",
        "marked",
        "patch",
        "cm/marked",
        "--type=merge",
        "-p",
        &drift,
    ]);
    say_everything(&fleet);
    fleet.applied();

    // The server's refusal quotes the object.
    fleet.edit(
        template,
        "  level: high",
        "  level: [\"{{ values.password }}\"]",
    );
    fleet.commit();
    say_everything(&fleet);
    assert_ne!(fleet.apply().code, 0);
}

#[test]
fn secrets_of_kubectl_are_adopted_in_silence() {
    let fleet = fleet("adopted");
    fleet.create_namespace("adopted");
    // Client-side apply writes the data into an annotation.
    let file = fleet.file("secret.yaml", &format!(
        "apiVersion: v1\nkind: Secret\nmetadata: {{name: literal, namespace: adopted}}\nstringData: {{a: old-{PLANTED}, c: {PLANTED}}}\n"
    ));
    fleet.kubectl(&["apply", "-f", &file]);
    let live = fleet.get(&["-n", "adopted", "secret/literal"]).unwrap();
    assert!(leaks(&live["metadata"]["annotations"].to_string()).is_some());

    say_everything(&fleet);
    fleet.run(&["plan", "adopted", "-o", "json"]).says("adopt");
    fleet.applied();
    let live = fleet.get(&["-n", "adopted", "secret/literal"]).unwrap();
    nothing_leaks("metadata", &live["metadata"].to_string());
    assert_eq!(live["data"].as_object().unwrap().len(), 1);
}

#[test]
fn errors_about_files_with_secrets_do_not_quote_them() {
    let fleet = fleet("quoted");
    let literal = "manifests/web/v1.0.0/literal.yaml";
    let template = "manifests/web/v1.0.0/secrets.yaml.j2";
    let environment = "environments/quoted.yaml";
    for (file, from, to) in [
        (literal, "{a: Xq7hush9vB2}", "{a: Xq7hush9vB2, b: [}"),
        (
            literal,
            "{a: Xq7hush9vB2}",
            "{a: Xq7hush9vB2, a: Xq7hush9vB2}",
        ),
        (literal, "{a: Xq7hush9vB2}", "Xq7hush9vB2"),
        (literal, "{a: Xq7hush9vB2}", "{a: {b: Xq7hush9vB2}}"),
        (
            literal,
            "stringData: {a: Xq7hush9vB2}",
            "data: {a: \"!Xq7hush9vB2!\"}",
        ),
        (
            literal,
            "stringData: {a: Xq7hush9vB2}",
            "stringDate: {a: Xq7hush9vB2}",
        ),
        (
            template,
            "{{ values.nested.token }}",
            "{{ values.nested.token | semver_matches(\">1\") }}",
        ),
        (
            template,
            "{{ values.nested.token }}",
            "{{ values.nested.token | b64decode }}",
        ),
        (template, "{{ values.nested.token }}", "{{ values.nested }}"),
        (
            template,
            "{{ values.nested.token }}",
            "{{ values.nested.token + 1 }}",
        ),
        (
            template,
            "stringData: {token:",
            "stringData: {\"tok: [en\": x, token:",
        ),
        (
            environment,
            "      password: pw-Xq7hush9vB2",
            "      password: pw-Xq7hush9vB2\n     bad: 1",
        ),
        (
            environment,
            "password: pw-Xq7hush9vB2",
            "password: pw-Xq7hush9vB2\n      password: pw-Xq7hush9vB2",
        ),
        (
            environment,
            "password: pw-Xq7hush9vB2",
            "password: [pw-Xq7hush9vB2",
        ),
    ] {
        let before = fleet.read(file);
        fleet.edit(file, from, to);
        let run = fleet.run(&["render", "quoted"]);
        let refused = fleet.apply();
        assert_ne!(
            refused.code,
            0,
            "{to}: {}\n{}",
            run.shown(),
            refused.shown()
        );
        fleet.write(file, &before);
    }
}
