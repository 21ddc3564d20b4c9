//! Diffs between two revisions of a repository, without a cluster.

use std::path::Path;
use std::process::Command;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use insta::assert_snapshot;
use pleach_model::object::NonSecret;
use pleach_planner::plan::Course;
use pleach_planner::view::Temporary;
use pleach_state::overlay::OverlayContent;
use rstest::rstest;
use serde_json::{Value, json};

use super::{Folder, Run};

/// Planted secrets: current and previous.
const PASSWORDS: [&str; 2] = ["correct-horse-battery", "former-staple-battery"];

const ENVIRONMENT: &str = "\
apiVersion: pleach.dev/v1alpha1
kind: Environment
cluster: {kubernetes: \"1.36\"}
releases:
  - {name: web, bundle: web, version: v1.0.0, namespace: web, values: {password: former-staple-battery}}
  - {name: old, bundle: old, namespace: old}
";

const WEB: &str = "\
apiVersion: v1
kind: ConfigMap
metadata: {name: conf-5h2mk8gt9b}
data: {a: '1', b: '2', c: '3', d: '4'}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: legacy}
data: {user: web, password: {{ values.password | quote }}}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec:
  replicas: 2
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      containers:
      - name: side
        image: side:1
      - name: web
        image: web:1
        env: [{name: A, value: '1'}, {name: B, value: '2'}, {name: GONE, value: x}]
        resources: {limits: {cpu: 1000m}}
---
apiVersion: v1
kind: Service
metadata: {name: web, namespace: first}
spec: {selector: {app: web}, ports: [{port: 80, name: http}]}
---
apiVersion: v1
kind: Secret
metadata: {name: web}
stringData: {url: \"postgres://web:{{ values.password }}@db\", kept: the-same-as-before}
";

const BUNDLE: &str = "\
apiVersion: pleach.dev/v1alpha1
kind: Bundle
secretFields: [{kind: ConfigMap, name: legacy, fields: [data.password]}]
";

pub(super) fn repository() -> Folder {
    let folder = Folder::with(&[
        (
            "pleach.yaml",
            "apiVersion: pleach.dev/v1alpha1\nkind: Repository\nid: fleet\n",
        ),
        ("environments/dev.yaml", ENVIRONMENT),
        ("manifests/web/bundle.yaml", BUNDLE),
        ("manifests/web/v1.0.0/web.yaml.j2", WEB),
        (
            "manifests/old/bundle.yaml",
            "apiVersion: pleach.dev/v1alpha1\nkind: Bundle\n",
        ),
        (
            "manifests/old/a.yaml",
            "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\n",
        ),
    ]);
    commit(&folder);
    folder
}

pub(super) fn commit(folder: &Folder) {
    git(folder, &["init", "--quiet", "--initial-branch=main"]);
    git(folder, &["add", "--all"]);
    git(folder, &["commit", "--quiet", "--message", "x"]);
}

/// Runs git without user configuration.
pub(super) fn git(folder: &Folder, arguments: &[&str]) {
    let mut command = Command::new("git");
    for role in ["AUTHOR", "COMMITTER"] {
        command
            .env(format!("GIT_{role}_NAME"), "tester")
            .env(format!("GIT_{role}_EMAIL"), "tester@example.org")
            .env(format!("GIT_{role}_DATE"), "2026-01-01T00:00:00Z");
    }
    let output = command
        .env("GIT_CONFIG_GLOBAL", "/dev/null")
        .env("GIT_CONFIG_NOSYSTEM", "1")
        .current_dir(folder.path())
        .args(arguments)
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
}

/// Returns a repository with all kinds of changes of a pull request.
pub(super) fn changed() -> Folder {
    let folder = repository();
    let environment = ENVIRONMENT
        .replace("former-staple-battery", PASSWORDS[0])
        .replace(
            "  - {name: old, bundle: old, namespace: old}",
            "  - {name: new, bundle: old, namespace: fresh}",
        );
    let consent = "consent: [{action: uninstall, release: old}]\n";
    folder.write("environments/dev.yaml", &(environment + consent));
    let web = WEB
        .replace("conf-5h2mk8gt9b", "conf-7f2tm6dk4c")
        .replace("d: '4'", "d: '5'")
        .replace("namespace: first", "namespace: second")
        .replace("port: 80,", "port: 8080,")
        .replace("cpu: 1000m", "cpu: 1")
        .replace(
            "[{name: A, value: '1'}, {name: B, value: '2'}, {name: GONE, value: x}]",
            "[{name: B, value: '3'}, {name: A, value: '1'}]",
        )
        .replace("  replicas: 2\n", "");
    folder.write("manifests/web/v1.0.0/web.yaml.j2", &web);
    folder
}

/// Fails if a text contains a planted value, plain or in base64.
pub(super) fn check_secret(text: &str) {
    for password in PASSWORDS {
        assert!(!text.contains(password), "{text}");
        for padding in ["", "x", "xx"] {
            let encoded = STANDARD.encode(format!("{padding}{password}"));
            let inner = &encoded[4..encoded.len() - 4];
            assert!(!text.contains(inner), "{text}");
        }
    }
}

#[rstest]
#[case("text")]
#[case("markdown")]
#[case("json")]
fn a_pull_request_is_shown_in_every_format(#[case] format: &str) {
    let run = changed().run(&["diff", "dev", "--base", "main", "-o", format]);
    check_secret(&run.stdout);
    check_secret(&run.stderr);
    assert_snapshot!(format!("diff_{format}"), run.shown());
}

#[test]
fn everything_is_shown_with_all() {
    let run = changed().run(&["diff", "dev", "--base", "main", "--all", "--exit-code"]);
    check_secret(&run.stdout);
    assert_eq!(run.code, 10, "{}", run.stderr);
    assert!(
        run.stdout.contains("delete ConfigMap/old/a"),
        "{}",
        run.stdout
    );
    assert!(run.stdout.contains("\n-  name: a\n"), "{}", run.stdout);
}

#[test]
fn the_same_revision_has_no_changes() {
    let folder = repository();
    let run = folder.run(&["diff", "dev", "--base", "main", "--exit-code"]);
    assert_eq!(run.code, 0, "{}{}", run.stdout, run.stderr);
    assert_eq!(run.stdout.lines().last(), Some("8 unchanged"));
    // Neither a cluster nor a kubeconfig affects the result.
    let mut command = folder.command(&["diff", "dev", "--base", "main"]);
    let again = folder.finish(command.env("KUBECONFIG", "/nowhere"));
    assert_eq!((again.code, again.stdout), (0, run.stdout));
}

#[test]
fn one_release_is_compared_alone_also_one_that_is_removed() {
    let folder = changed();
    let last = |run: &Run| run.stdout.lines().last().unwrap_or_default().to_owned();
    let run = folder.run(&["diff", "dev/new", "--base", "main"]);
    assert_eq!(last(&run), "2 to create", "{}", run.stderr);
    let run = folder.run(&["diff", "dev/old", "--base", "main"]);
    assert!(
        run.stdout.contains("delete ConfigMap/old/a"),
        "{}",
        run.shown()
    );
    let run = folder.run(&["diff", "dev/none", "--base", "main"]);
    assert_eq!(run.code, 3);
    assert!(run.stderr.contains("has no release none"), "{}", run.stderr);
}

#[test]
fn a_release_that_left_git_waits_for_its_consent() {
    let folder = repository();
    let left = ENVIRONMENT.replace("  - {name: old, bundle: old, namespace: old}\n", "");
    folder.write("environments/dev.yaml", &left);
    let run = folder.run(&["diff", "dev", "--base", "main", "--exit-code"]);
    assert_eq!(run.code, 0, "{}", run.shown());
    assert!(!run.stdout.contains("delete"), "{}", run.stdout);
    for words in [
        "release dev.old is no longer in git; its 2 objects stay until a consent to uninstall it",
        "{action: uninstall, release: old}",
    ] {
        assert!(run.stderr.contains(words), "{}", run.stderr);
    }
    // `protect` in the environment file overrides a general consent.
    let protected = "consent: [{action: uninstall, release: old}]\nprotect: [{kind: ConfigMap}]\n";
    folder.write("environments/dev.yaml", &format!("{left}{protected}"));
    let run = folder.run(&["diff", "dev", "--base", "main"]);
    assert!(!run.stdout.contains("delete ConfigMap"), "{}", run.stdout);
    assert!(
        run.stderr.contains("action: delete, kind: ConfigMap"),
        "{}",
        run.stderr
    );
}

#[test]
fn objects_that_change_hands_are_neither_deleted_nor_created() {
    let folder = repository();
    let moved = ENVIRONMENT.replace(
        "{name: old, bundle: old, namespace: old}",
        "{name: new, bundle: old, namespace: old, movedFrom: {environment: dev, release: old}}",
    );
    folder.write("environments/dev.yaml", &moved);
    let run = folder.run(&["diff", "dev", "--base", "main"]);
    assert_eq!(run.code, 0, "{}", run.shown());
    assert!(
        run.stdout.contains("adopt ConfigMap/old/a"),
        "{}",
        run.shown()
    );
    for word in ["delete", "create"] {
        assert!(!run.stdout.contains(word), "{}", run.stdout);
    }
    // Another environment can take the objects too, even if it is unreadable.
    folder.write(
        "environments/dev.yaml",
        &ENVIRONMENT.replace(
            "  - {name: old, bundle: old, namespace: old}\n",
            "consent: [{action: uninstall, release: old}]\n",
        ),
    );
    folder.write("environments/next.yaml", "nonsense: [");
    let run = folder.run(&["diff", "dev", "--base", "main"]);
    assert!(!run.stdout.contains("delete"), "{}", run.stdout);
    assert!(
        run.stderr.contains(
            "environment next cannot be read and could take ownership of objects of dev.old"
        ),
        "{}",
        run.stderr
    );
}

#[test]
fn an_environment_that_the_base_does_not_have_is_new() {
    let folder = repository();
    folder.write("environments/next.yaml", ENVIRONMENT);
    let run = folder.run(&["diff", "next", "--base", "main", "-o", "json"]);
    assert_eq!(run.code, 0, "{}", run.stderr);
    let document: Value = serde_json::from_str(&run.stdout).unwrap();
    assert_eq!(document["summary"], "8 to create");
}

#[test]
fn errors_of_base_and_head_are_told_apart() {
    let folder = repository();
    folder.write("manifests/old/a.yaml", "kind: [\n");
    let run = folder.run(&["diff", "dev", "--base", "main"]);
    assert_eq!(run.code, 3);
    assert!(
        run.stderr.contains("\nerror: dev cannot be rendered"),
        "{}",
        run.stderr
    );
    assert!(
        run.stderr.starts_with("manifests/old/a.yaml:"),
        "{}",
        run.stderr
    );
    commit(&folder);
    folder.write("manifests/old/a.yaml", "{}\n");
    folder.write(
        "environments/dev.yaml",
        "apiVersion: pleach.dev/v1alpha1\nkind: Environment\n",
    );
    let run = folder.run(&["diff", "dev", "--base", "main"]);
    assert_eq!(run.code, 3);
    assert!(
        run.stderr.starts_with("main:manifests/old/a.yaml:"),
        "{}",
        run.stderr
    );
    assert!(
        run.stderr
            .contains("\nerror: base main of dev cannot be rendered: 1 error"),
        "{}",
        run.stderr
    );
    let run = folder.run(&["diff", "dev", "--base", "nowhere"]);
    assert_eq!(run.code, 3);
    assert!(
        run.stderr.contains("revision nowhere does not exist"),
        "{}",
        run.stderr
    );
    let run = folder.run(&["diff", "dev", "--base", "main", "--verify"]);
    assert_eq!(run.code, 2);
}

#[test]
fn secret_fields_are_masked_in_what_is_rendered() {
    let folder = repository();
    for arguments in [
        &["render", "dev"][..],
        &["render", "dev", "-o", "json"],
        &["render", "dev", "--show-values"],
    ] {
        let run = folder.run(arguments);
        assert_eq!(run.code, 0, "{}", run.stderr);
        check_secret(&run.stdout);
    }
    let run = folder.run(&["render", "dev/web"]);
    assert!(
        run.stdout
            .contains("password: \"<secret 1>\"\n  user: web\n"),
        "{}",
        run.stdout
    );
    let shown = folder.run(&["render", "dev/web", "--show-secrets"]);
    assert!(shown.stdout.contains(PASSWORDS[1]));
}

#[test]
fn a_secret_field_that_nothing_has_is_pointed_out() {
    let folder = repository();
    let bundle = BUNDLE.replace("data.password", "data.passwort, \"data[0]\"");
    folder.write("manifests/web/bundle.yaml", &bundle);
    let run = folder.run(&["render", "dev/web"]);
    assert_eq!(run.code, 3);
    assert!(
        run.stderr.contains("`data[0]` is not a field path"),
        "{}",
        run.stderr
    );
    let bundle = BUNDLE.replace("data.password", "data.passwort");
    folder.write("manifests/web/bundle.yaml", &bundle);
    let run = folder.run(&["render", "dev/web"]);
    assert!(
        run.stderr.contains("manifests/web/bundle.yaml:3: warning: secretFields: no object that the rule matches has data.passwort"),
        "{}",
        run.stderr
    );
}

/// Returns a schema of docs/schemas.
pub(super) fn schema(name: &str) -> Value {
    let file = format!("docs/schemas/{name}.schema.json");
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(file);
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

/// Fails if a document does not match the schema.
fn check_schema(document: &Value) {
    let schema = schema("diff");
    let validator = jsonschema::validator_for(&schema).unwrap();
    let errors: Vec<String> = validator
        .iter_errors(document)
        .map(|error| format!("{}: {error}", error.instance_path()))
        .collect();
    assert!(errors.is_empty(), "{errors:#?}");
}

#[test]
fn what_programs_read_is_what_the_schema_says() {
    let folder = changed();
    for arguments in [&[][..], &["--all"]] {
        let line = [&["diff", "dev", "--base", "main", "-o", "json"], arguments].concat();
        let document: Value = serde_json::from_str(&folder.run(&line).stdout).unwrap();
        check_schema(&document);
        // The schema also rejects documents.
        let mut wrong = document.clone();
        wrong["releases"][0]["objects"][0]["action"] = "explode".into();
        assert!(std::panic::catch_unwind(|| check_schema(&wrong)).is_err());
    }
}

#[test]
fn what_was_not_there_before_has_no_original() {
    let run = changed().run(&["diff", "dev", "--base", "main", "-o", "json"]);
    let mut document: Value = serde_json::from_str(&run.stdout).unwrap();
    // A closed gate: its policy is new.
    let gate = Temporary {
        overlay: "locked".to_owned(),
        object: "ValidatingAdmissionPolicy.admissionregistration.k8s.io/locked"
            .parse()
            .unwrap(),
        course: Course::Made,
        until: "finish".to_owned(),
        content: OverlayContent::Binding {
            body: NonSecret(json!({"spec": {}})),
        },
        on_failure: "it stays".to_owned(),
    };
    document["releases"][0]["overlays"] = json!([gate]);
    check_schema(&document);
}
