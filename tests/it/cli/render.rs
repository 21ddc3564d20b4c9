use std::os::unix::fs::PermissionsExt as _;
use std::process::Command;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use insta::assert_snapshot;
use pleach_model::object::yaml;
use rstest::rstest;
use serde_json::Value;

use super::Folder;

/// Planted secret.
const PASSWORD: &str = "correct-horse-battery";

const FILES: [(&str, &str); 7] = [
    (
        "pleach.yaml",
        "apiVersion: pleach.dev/v1alpha1\nkind: Repository\nid: fleet\n",
    ),
    (
        "environments/dev.yaml",
        "\
apiVersion: pleach.dev/v1alpha1
kind: Environment
cluster: {kubernetes: \"1.36\"}
values: {region: eu}
releases:
  - name: web
    bundle: web
    version: v1.0.0
    namespace: web
    values:
      password: correct-horse-battery
  - name: base
    bundle: base
",
    ),
    (
        "manifests/web/bundle.yaml",
        "\
apiVersion: pleach.dev/v1alpha1
kind: Bundle
values:
  region: none
  replicas: 2
",
    ),
    (
        "manifests/web/v1.0.0/web.yaml.j2",
        "\
apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec:
  replicas: {{ values.replicas }}
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      containers: [{name: web, image: \"web:1\", env: [{name: REGION, value: {{ values.region | quote }}}]}]
",
    ),
    (
        "manifests/web/v1.0.0/secret.yaml.j2",
        "\
apiVersion: v1
kind: Secret
metadata: {name: web}
stringData:
  url: \"postgres://web:{{ values.password }}@db/web\"
  password: {{ values.password | quote }}
  again: {{ values.password | quote }}
",
    ),
    (
        "manifests/base/bundle.yaml",
        "apiVersion: pleach.dev/v1alpha1\nkind: Bundle\n",
    ),
    (
        "manifests/base/role.yaml",
        "\
# A comment before it.
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: \"system:web\"}
rules: [{apiGroups: [''], resources: [pods], verbs: [get]}]
",
    ),
];

fn repository() -> Folder {
    Folder::with(&FILES)
}

/// Fails if a text contains a secret value, plain or in base64.
fn check_secret(text: &str) {
    assert!(!text.contains(PASSWORD), "{text}");
    // Check all base64 alignments of a text with the password.
    for padding in ["", "x", "xx"] {
        let encoded = STANDARD.encode(format!("{padding}{PASSWORD}"));
        let inner = &encoded[4..encoded.len() - 4];
        assert!(!text.contains(inner), "{text}");
    }
}

fn git(folder: &Folder, arguments: &[&str]) -> String {
    let output = Command::new("git")
        .arg("-C")
        .arg(folder.path())
        .args(["-c", "user.name=t", "-c", "user.email=t@example.org"])
        .args(arguments)
        .env("GIT_CONFIG_GLOBAL", "/dev/null")
        .env("GIT_CONFIG_NOSYSTEM", "1")
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

#[test]
fn objects_come_as_yaml_with_their_places_and_without_secrets() {
    let run = repository().run(&["render", "dev"]);
    assert_snapshot!(run.shown());
    check_secret(&run.stdout);
    let documents = yaml::parse_documents(&run.stdout).unwrap();
    assert_eq!(documents.len(), 3);
}

#[test]
fn one_release_can_be_rendered_alone() {
    let run = repository().run(&["render", "dev/base"]);
    assert_eq!(run.code, 0, "{}", run.stderr);
    let documents = yaml::parse_documents(&run.stdout).unwrap();
    let kinds: Vec<_> = documents
        .iter()
        .map(|document| &document.value["kind"])
        .collect();
    assert_eq!(kinds, ["ClusterRole"]);
}

#[test]
fn yaml_and_json_hold_the_same_objects() {
    let folder = repository();
    let stream = folder.run(&["render", "dev", "--show-secrets"]);
    let list = folder.run(&["render", "dev", "--show-secrets", "-o", "json"]);
    let list: Value = serde_json::from_str(&list.stdout).unwrap();
    assert_eq!(list["kind"], "List");
    let documents = yaml::parse_documents(&stream.stdout).unwrap();
    let documents: Vec<Value> = documents
        .into_iter()
        .map(|document| document.value)
        .collect();
    assert_eq!(list["items"].as_array().unwrap(), &documents);
    let secret = documents
        .iter()
        .find(|object| object["kind"] == "Secret")
        .unwrap();
    assert_eq!(secret["data"]["password"], STANDARD.encode(PASSWORD));
    assert_eq!(stream.stderr, "");
}

#[test]
fn the_same_files_give_the_same_bytes() {
    let folder = repository();
    let first = folder.run(&["render", "dev", "--show-secrets"]).stdout;
    for _ in 0..3 {
        assert_eq!(
            folder.run(&["render", "dev", "--show-secrets"]).stdout,
            first
        );
    }
}

#[test]
fn one_file_per_object() {
    let folder = repository();
    let run = folder.run(&["render", "dev", "--out", "out/dev"]);
    assert_snapshot!(run.shown(), @r"
    exit: 0
    --- stdout
    --- stderr
    3 objects written to out/dev
    secret values of 1 object are not shown; --show-secrets shows them
    ");
    let files = folder.files("out/dev");
    assert_eq!(
        files,
        [
            ".pleach-render",
            "base/ClusterRole.rbac.authorization.k8s.io-system:web.yaml",
            "web/web/Deployment.apps-web.yaml",
            "web/web/Secret-web.yaml",
        ]
    );
    for file in &files {
        check_secret(&folder.read(&format!("out/dev/{file}")));
    }
    let secret = folder.path().join("out/dev/web/web/Secret-web.yaml");
    let mode = std::fs::metadata(secret).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
}

#[test]
fn a_folder_that_was_written_before_is_brought_up_to_date() {
    let folder = repository();
    folder.run(&["render", "dev", "--out", "out"]);
    let run = folder.run(&["render", "dev/base", "--out", "out", "-o", "json"]);
    assert_eq!(run.code, 0, "{}", run.stderr);
    assert_eq!(
        folder.files("out"),
        [
            ".pleach-render",
            "base/ClusterRole.rbac.authorization.k8s.io-system:web.json",
        ]
    );
    assert!(!folder.path().join("out/web").exists());
}

#[test]
fn a_folder_with_files_of_others_is_left_alone() {
    let folder = repository();
    folder.write("out/mine.txt", "mine");
    let run = folder.run(&["render", "dev", "--out", "out"]);
    assert_snapshot!(run.shown(), @r"
    exit: 1
    --- stdout
    --- stderr
    error: out/mine.txt exists already
      hint: out holds files that pleach render did not write; name another folder
    ");
    assert_eq!(folder.files("out"), ["mine.txt"]);
    // A marker file with other paths cannot affect files outside of the folder.
    folder.write("out/.pleach-render", "mine.txt\n../pleach.yaml\n");
    let run = folder.run(&["render", "dev", "--out", "out"]);
    assert_eq!(run.code, 0, "{}", run.stderr);
    assert!(folder.path().join("pleach.yaml").exists());
}

#[test]
fn values_are_shown_with_their_origin() {
    let folder = repository();
    let run = folder.run(&["render", "dev", "--show-values"]);
    assert_snapshot!(run.shown());
    check_secret(&run.stdout);
    let run = folder.run(&["render", "dev", "--show-values", "-o", "json"]);
    check_secret(&run.stdout);
    let rows: Vec<Value> = serde_json::from_str(&run.stdout).unwrap();
    let password = rows.iter().find(|row| row["path"] == "password").unwrap();
    assert_eq!(password["secret"], true);
    assert_eq!(password["file"], "environments/dev.yaml");
    assert_eq!(password["line"], 11);
}

#[test]
fn a_secret_of_another_release_is_not_shown_either() {
    let folder = repository();
    let shared = FILES[1]
        .1
        .replace("      password: correct-horse-battery\n", "      a: b\n")
        .replace("{region: eu}", "{password: correct-horse-battery}");
    folder.write("environments/dev.yaml", &shared);
    let run = folder.run(&["render", "dev/base", "--show-values"]);
    assert_eq!(run.code, 0, "{}", run.stderr);
    assert!(
        run.stdout.contains("password: \"<secret>\""),
        "{}",
        run.stdout
    );
    check_secret(&run.stdout);
}

#[test]
fn empty_lines_at_the_end_of_the_last_text_are_kept() {
    let folder = repository();
    folder.write(
        "manifests/base/role.yaml",
        "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: z, namespace: web}\n\
         data: {text: \"a\\n\\n\\n\"}\n",
    );
    let run = folder.run(&["render", "dev/base"]);
    let documents = yaml::parse_documents(&run.stdout).unwrap();
    assert_eq!(
        documents[0].value["data"]["text"], "a\n\n\n",
        "{}",
        run.stdout
    );
}

#[test]
fn values_are_hidden_while_a_release_does_not_render() {
    let folder = repository();
    folder.write(
        "manifests/web/v1.0.0/broken.yaml.j2",
        "a: {{ values.nothing }}\n",
    );
    let run = folder.run(&["render", "dev", "--show-values"]);
    assert_eq!(run.code, 3);
    check_secret(&run.stdout);
    assert!(
        run.stdout.contains("replicas: \"<hidden>\""),
        "{}",
        run.stdout
    );
    assert!(
        run.stderr.contains("manifests/web/v1.0.0/broken.yaml.j2:1"),
        "{}",
        run.stderr
    );
}

#[test]
fn any_revision_can_be_rendered() {
    let folder = repository();
    git(&folder, &["init", "--quiet", "--initial-branch=main"]);
    git(&folder, &["add", "--all"]);
    git(&folder, &["commit", "--quiet", "--message=x"]);
    git(&folder, &["tag", "v1"]);
    let before = folder.run(&["render", "dev"]).stdout;
    folder.write(
        "manifests/web/bundle.yaml",
        &FILES[2].1.replace("replicas: 2", "replicas: 5"),
    );
    assert!(
        folder
            .run(&["render", "dev"])
            .stdout
            .contains("replicas: 5")
    );
    assert_eq!(
        folder.run(&["render", "dev", "--revision", "v1"]).stdout,
        before
    );
    let run = folder.run(&["render", "dev", "--revision", "v2"]);
    assert_snapshot!(run.shown(), @r"
    exit: 3
    --- stdout
    --- stderr
    error: revision v2 does not exist in HERE
      hint: name a branch, a tag or a commit; a branch of a remote is origin/NAME
    ");
}

#[rstest]
#[case("broken_yaml", "manifests/base/role.yaml", "kind: [\n", 1)]
#[case(
    "undefined_value",
    "manifests/web/v1.0.0/a.yaml.j2",
    "kind: ConfigMap\nx: {{ values.nothing }}\n",
    1
)]
#[case("template_syntax", "manifests/web/v1.0.0/a.yaml.j2", "{% if %}\n", 1)]
#[case(
    "unknown_field",
    "manifests/web/bundle.yaml",
    "apiVersion: pleach.dev/v1alpha1\nkind: Bundle\nvalus: {}\n",
    1
)]
#[case("missing_repository", "pleach.yaml", "x: y\n", 1)]
#[case("link_instead_of_a_file", "manifests/base/role.yaml", "", 0)]
fn what_is_wrong_is_shown_with_its_place(
    #[case] name: &str,
    #[case] file: &str,
    #[case] content: &str,
    #[case] line: usize,
) {
    let folder = repository();
    if line == 0 {
        std::fs::remove_file(folder.path().join(file)).unwrap();
        std::os::unix::fs::symlink("/etc/hostname", folder.path().join(file)).unwrap();
    } else {
        folder.write(file, content);
    }
    let run = folder.run(&["render", "dev"]);
    assert_eq!((run.code, run.stdout.as_str()), (3, ""), "{}", run.stderr);
    assert!(run.stderr.contains(&format!("{file}:")), "{}", run.stderr);
    assert!(run.stderr.contains("error: "), "{}", run.stderr);
    check_secret(&run.stderr);
    assert_snapshot!(format!("wrong_{name}"), run.stderr);
}

#[rstest]
#[case("version", "dev", "version: v1.0.0", "version: v2.0.0")]
#[case("bundle", "dev", "bundle: base", "bundle: bas")]
#[case("environment", "prod", "", "")]
#[case("release", "dev/wbe", "", "")]
fn what_is_missing_is_shown_with_what_there_is(
    #[case] name: &str,
    #[case] target: &str,
    #[case] there: &str,
    #[case] instead: &str,
) {
    let folder = repository();
    folder.write("environments/dev.yaml", &FILES[1].1.replace(there, instead));
    let run = folder.run(&["render", target]);
    assert_eq!((run.code, run.stdout.as_str()), (3, ""), "{}", run.stderr);
    assert_snapshot!(format!("missing_{name}"), run.stderr);
}

#[test]
fn every_error_is_shown_at_once() {
    let folder = repository();
    folder.write("manifests/base/role.yaml", "a: b: c\n");
    folder.write("manifests/web/v1.0.0/one.yaml.j2", "{{ values.one }}\n");
    folder.write("manifests/web/v1.0.0/two.yaml.j2", "{{ values.two }}\n");
    let run = folder.run(&["render", "dev"]);
    assert_eq!(run.code, 3);
    for place in ["role.yaml:1", "one.yaml.j2:1", "two.yaml.j2:1", "3 errors"] {
        assert!(run.stderr.contains(place), "{}", run.stderr);
    }
    let run = folder.run(&["render", "dev/base"]);
    assert!(run.stderr.contains("1 error"), "{}", run.stderr);
    assert!(!run.stderr.contains("one.yaml.j2"), "{}", run.stderr);
}

#[test]
fn notes_are_for_those_who_ask() {
    let folder = repository();
    let role = FILES[6]
        .1
        .replace("{name:", "{creationTimestamp: null, name:");
    folder.write("manifests/base/role.yaml", &role);
    let stderr = |option: &[&str]| {
        folder
            .run(&[&["render", "dev/base"], option].concat())
            .stderr
    };
    assert_eq!(stderr(&[]), "1 note, shown with --verbose\n");
    assert!(stderr(&["--verbose"]).contains("manifests/base/role.yaml:"));
    assert_eq!(stderr(&["--quiet"]), "");
}
