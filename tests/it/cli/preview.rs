//! Previews of a change in git before its merge.

use std::fmt::Write as _;

use insta::assert_snapshot;
use rstest::rstest;
use serde_json::Value;

use super::diff::{changed, check_secret, commit, git, schema};
use super::{Folder, Run};

const REPOSITORY: &str = "apiVersion: pleach.dev/v1alpha1\nkind: Repository\nid: fleet\n";
const BUNDLE: &str = "apiVersion: pleach.dev/v1alpha1\nkind: Bundle\n";

/// Returns environments with a release `app` of one file each.
fn fleet(environments: &[&str], manifests: &str) -> Folder {
    let folder = Folder::with(&[
        ("pleach.yaml", REPOSITORY),
        ("manifests/app/bundle.yaml", BUNDLE),
        ("manifests/app/app.yaml", manifests),
        ("manifests/other/bundle.yaml", BUNDLE),
        ("manifests/other/other.yaml", &config_map("other", "x")),
    ]);
    for environment in environments {
        let text = "apiVersion: pleach.dev/v1alpha1\nkind: Environment\nreleases:\n  - {name: app, bundle: app, namespace: app}\n  - {name: other, bundle: other, namespace: app}\n";
        folder.write(&format!("environments/{environment}.yaml"), text);
    }
    commit(&folder);
    folder
}

fn config_map(name: &str, value: &str) -> String {
    let value = Value::from(value);
    format!("apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: {name}}}\ndata: {{a: {value}}}\n")
}

fn preview(folder: &Folder, arguments: &[&str]) -> Run {
    folder.run(&[&["preview", "--base", "main"], arguments].concat())
}

#[rstest]
#[case("text")]
#[case("markdown")]
#[case("html")]
fn a_pull_request_is_shown_in_every_format(#[case] format: &str) {
    let run = preview(&changed(), &["-o", format]);
    check_secret(&run.stdout);
    check_secret(&run.stderr);
    assert_snapshot!(format!("preview_{format}"), run.shown());
}

#[test]
fn a_comment_does_not_quote_the_error_of_a_cluster() {
    let folder = changed();
    // Nothing listens on port 1.
    let away = Folder::with(&[(
        "config",
        "apiVersion: v1\nkind: Config\ncurrent-context: x\ncontexts: [{name: x, context: {cluster: x, user: x}}]\n\
         clusters: [{name: x, cluster: {server: \"https://127.0.0.1:1\"}}]\nusers: [{name: x, user: {}}]\n",
    )]);
    let kubeconfig = away.path().join("config");
    let kubeconfig = kubeconfig.to_str().unwrap();
    for (format, quotes) in [("json", true), ("markdown", false), ("comment", false)] {
        let arguments = ["--live", "--kubeconfig", kubeconfig, "-o", format];
        let run = preview(&folder, &arguments);
        assert_eq!(run.code, 4, "{format}: {}", run.shown());
        let is_quoted = run.stdout.contains("127.0.0.1:1");
        assert_eq!(is_quoted, quotes, "{format}: {}", run.stdout);
        let is_replaced = run.stdout.contains("failed to compare with the cluster");
        assert_eq!(is_replaced, !quotes, "{format}: {}", run.stdout);
    }
}

/// Returns the schema errors of a document.
fn errors(document: &Value) -> Vec<String> {
    // Nothing is fetched, because references are inlined.
    let text = schema("preview").to_string();
    let mut whole: Value = serde_json::from_str(&text.replace("diff.schema.json#/", "#/")).unwrap();
    let shared = schema("diff")["$defs"].take();
    for (name, one) in shared.as_object().unwrap() {
        whole["$defs"][name] = one.clone();
    }
    let validator = jsonschema::validator_for(&whole).unwrap();
    let errors = validator.iter_errors(document);
    errors
        .map(|error| format!("{}: {error}", error.instance_path()))
        .collect()
}

#[test]
fn programs_read_what_the_schema_says() {
    let run = preview(&changed(), &["-o", "json", "--exit-code"]);
    assert_eq!(run.code, 10, "{}", run.shown());
    check_secret(&run.stdout);
    let document: Value = serde_json::from_str(&run.stdout).unwrap();
    assert_eq!(errors(&document), Vec::<String>::new());
    let release = &document["environments"][0]["releases"][0];
    assert!(release["risks"]["restarted"].is_u64(), "{release:#}");
    let mut wrong = document.clone();
    wrong["environments"][0]["releases"][0]["risks"]["doom"] = 1.into();
    assert_ne!(errors(&wrong), Vec::<String>::new());
}

#[test]
fn only_what_the_change_touches_is_shown() {
    let folder = fleet(&["dev", "prod"], &config_map("app", "1"));
    folder.write("manifests/app/app.yaml", &config_map("app", "2"));
    let text = folder.read("environments/prod.yaml");
    folder.write(
        "environments/prod.yaml",
        &text.replace(
            "{name: app, bundle: app, namespace: app}",
            "{name: app, bundle: app, namespace: shop}",
        ),
    );
    folder.write(
        "environments/extra.yaml",
        "apiVersion: pleach.dev/v1alpha1\nkind: Environment\n",
    );
    folder.write("README.md", "nothing of ours\n");
    let run = preview(&folder, &[]);
    assert_eq!(run.code, 0, "{}", run.shown());
    for words in [
        "release dev.app",
        "release prod.app",
        "risk: 1 moved",
        "no change to 2 other releases of these environments",
        "not touched: extra",
    ] {
        assert!(run.stdout.contains(words), "{words}: {}", run.shown());
    }
    // A requested release is shown even without changes.
    let run = preview(&folder, &["dev/other"]);
    assert!(
        run.stdout.contains("this change affects no environment"),
        "{}",
        run.shown()
    );
    let run = preview(&folder, &["dev"]);
    assert!(!run.stdout.contains("prod"), "{}", run.shown());
}

#[test]
fn a_change_without_effect_is_said_to_be_one() {
    let folder = fleet(&["dev"], &config_map("app", "1"));
    let text = folder.read("manifests/app/app.yaml");
    folder.write("manifests/app/app.yaml", &format!("# a word\n{text}"));
    for format in ["text", "markdown", "html"] {
        let run = preview(&folder, &["-o", format, "--exit-code"]);
        assert_eq!(run.code, 0, "{}", run.shown());
        assert!(
            run.stdout.contains("this change affects no environment"),
            "{}",
            run.shown()
        );
    }
}

#[test]
fn a_change_that_touches_nothing_has_a_summary_too() {
    let folder = fleet(&["dev"], &config_map("app", "1"));
    folder.write("README.md", "nothing of ours\n");
    let run = preview(&folder, &["-o", "markdown"]);
    assert!(
        run.stdout.contains("## pleach: no changes\n"),
        "{}",
        run.shown()
    );
}

#[test]
fn a_removed_environment_is_named_and_no_change_without_effect() {
    let folder = fleet(&["dev", "prod"], &config_map("app", "1"));
    std::fs::remove_file(folder.path().join("environments/dev.yaml")).unwrap();
    for format in ["text", "markdown", "html"] {
        let run = preview(&folder, &["-o", format]);
        assert_eq!(run.code, 0, "{}", run.shown());
        let (all, lines) = (run.shown(), &run.stdout);
        assert!(
            all.contains("the file of environment dev is removed"),
            "{all}"
        );
        assert!(lines.contains("environment removed: dev"), "{all}");
        for words in [
            "affects no environment",
            "no changes",
            "| release |",
            "<table>",
        ] {
            assert!(!lines.contains(words), "{words}: {all}");
        }
    }
}

#[test]
fn the_base_is_where_the_head_left_it() {
    let folder = fleet(&["dev"], &config_map("app", "1"));
    let git = |arguments: &[&str]| git(&folder, arguments);
    git(&["checkout", "--quiet", "-b", "feature"]);
    folder.write("manifests/other/other.yaml", &config_map("other", "y"));
    commit(&folder);
    git(&["checkout", "--quiet", "main"]);
    folder.write("manifests/app/app.yaml", &config_map("app", "2"));
    commit(&folder);
    // Later commits on the base are not part of this change.
    let run = preview(&folder, &["--head", "feature"]);
    assert!(run.stdout.contains("dev.other"), "{}", run.shown());
    assert!(!run.stdout.contains("dev.app"), "{}", run.shown());
    let run = preview(&folder, &["--head", "feature", "--direct"]);
    assert!(run.stdout.contains("dev.app"), "{}", run.shown());
    git(&["checkout", "--quiet", "--orphan", "alone"]);
    commit(&folder);
    let run = preview(&folder, &["--head", "alone"]);
    assert_eq!(run.code, 3, "{}", run.shown());
    assert!(
        run.stderr.contains("have no commit in common") && run.stderr.contains("--direct"),
        "{}",
        run.shown()
    );
}

#[test]
fn what_cannot_be_rendered_is_told_beside_what_can() {
    let folder = fleet(&["dev", "prod", "old"], &config_map("app", "1"));
    folder.write("manifests/app/app.yaml", &config_map("app", "2"));
    folder.write(
        "environments/dev.yaml",
        "apiVersion: pleach.dev/v1alpha1\nkind: Environment\nreleazes: []\n",
    );
    std::fs::remove_file(folder.path().join("environments/old.yaml")).unwrap();
    let run = preview(&folder, &["-o", "markdown"]);
    assert_eq!(run.code, 3, "{}", run.shown());
    for words in [
        "; cannot be previewed: dev\n",
        "**cannot be previewed: 1 error**",
        "releazes",
        "prod.app",
        "nothing is deleted",
    ] {
        assert!(run.stdout.contains(words), "{words}: {}", run.shown());
    }
    let run = preview(&folder, &["-o", "json"]);
    let document: Value = serde_json::from_str(&run.stdout).unwrap();
    assert_eq!(errors(&document), Vec::<String>::new());
    let finding = &document["environments"][0]["findings"][0];
    assert_eq!(finding["excerpt"], "releazes: []", "{document:#}");
}

#[test]
fn a_comment_stays_within_its_limit_and_begins_with_what_is_dangerous() {
    let many = |value: &str| {
        let objects = (0..300).map(|index| config_map(&format!("c{index:03}"), &value.repeat(40)));
        let role = "apiVersion: rbac.authorization.k8s.io/v1\nkind: Role\nmetadata: {name: z}\nrules: [{apiGroups: [''], resources: [pods], verbs: [VERB]}]\n".replace("VERB", if value == "1" { "get" } else { "list" });
        objects.chain([role]).collect::<Vec<_>>().join("---\n")
    };
    let folder = fleet(&["dev"], &many("1"));
    folder.write("manifests/app/app.yaml", &many("2"));
    for (limit, all) in [(65_536, true), (8_000, false)] {
        let limit_text = limit.to_string();
        let run = preview(&folder, &["-o", "markdown", "--limit", &limit_text]);
        assert_eq!(run.code, 0, "{}", run.stderr);
        assert!(run.stdout.len() <= limit, "{}", run.stdout.len());
        assert!(run.stdout.contains("301 to update"), "{}", run.stdout);
        // All objects are listed if they fit, and as many as possible are shown in full.
        let is_cut = run.stdout.contains("more objects are not shown");
        assert_eq!(is_cut, !all, "{}", run.stdout);
        assert_eq!(run.stdout.contains("ConfigMap/app/c299"), all);
        let place = |words: &str| {
            run.stdout
                .find(words)
                .unwrap_or_else(|| panic!("{words}: {}", run.stdout))
        };
        assert!(place("Role.rbac.authorization.k8s.io/app/z") < place("ConfigMap/app/c000"));
        let opened = run.stdout.matches("<details>").count();
        assert_eq!(opened, run.stdout.matches("</details>").count());
    }
}

#[test]
fn a_definition_of_700_kb_leaves_room_for_the_rest() {
    let definition = |word: &str| {
        let fields = (0..12_000).fold(String::new(), |mut text, index| {
            let _never_fails = writeln!(
                text,
                "                field{index}: {{type: string, description: \"{word} {index}\"}}"
            );
            text
        });
        format!(
            "apiVersion: apiextensions.k8s.io/v1\nkind: CustomResourceDefinition\nmetadata: {{name: things.example.org}}\nspec:\n  group: example.org\n  scope: Namespaced\n  names: {{plural: things, kind: Thing}}\n  versions:\n  - name: v1\n    served: true\n    storage: true\n    schema:\n      openAPIV3Schema:\n        type: object\n        properties:\n          spec:\n            type: object\n            properties:\n{fields}"
        )
    };
    let both = |word: &str| [definition(word), config_map("small", word)].join("---\n");
    assert!(definition("before").len() > 700_000);
    let folder = fleet(&["dev"], &both("before"));
    folder.write("manifests/app/app.yaml", &both("after"));
    for format in ["markdown", "html", "text", "json"] {
        let run = preview(&folder, &["-o", format]);
        assert_eq!(run.code, 0, "{}", run.stderr);
        // The page marks changed words.
        let shown = run.stdout.replace("<b>", "").replace("</b>", "");
        assert!(shown.contains("after 0"), "{format}");
        let small = match format {
            "html" => "ConfigMap&#x2f;app&#x2f;small",
            _ => "ConfigMap/app/small",
        };
        assert!(run.stdout.contains(small), "{format}");
        match format {
            "markdown" => assert!(run.stdout.len() < 20_000, "{}", run.stdout.len()),
            "html" => assert!(run.stdout.len() < 400_000, "{}", run.stdout.len()),
            _ => {}
        }
        if format == "markdown" || format == "html" {
            assert!(run.stdout.contains("more lines are not shown"), "{format}");
        }
    }
}

const DEPLOYMENT: &str = "\
apiVersion: apps/v1
kind: Deployment
metadata: {name: app}
spec:
  replicas: 2
  selector: {matchLabels: {app: app}}
  template:
    metadata: {labels: {app: app}}
    spec: {containers: [{name: app, image: app}]}
";

#[test]
fn refusals_are_said_first() {
    let folder = fleet(&["dev"], DEPLOYMENT);
    let broken = DEPLOYMENT.replace("replicas: 2", "replcas: 3");
    folder.write("manifests/app/app.yaml", &broken);
    for format in ["text", "markdown", "html"] {
        let run = preview(&folder, &["-o", format]);
        assert_eq!(run.code, 3, "{}", run.shown());
        // The page marks changed words.
        let shown = run.stdout.replace("<b>", "").replace("</b>", "");
        let place = |words: &str| {
            let found = shown.find(words);
            found.unwrap_or_else(|| panic!("{words}: {}", run.shown()))
        };
        let first = place("would be refused");
        assert!(first < place("1 to update"), "{}", run.shown());
        assert!(first < place("replcas: 3"), "{}", run.shown());
        assert!(run.stdout.contains("app.yaml:5"), "{}", run.shown());
    }
    let run = preview(&folder, &["-o", "json"]);
    let document: Value = serde_json::from_str(&run.stdout).unwrap();
    assert_eq!(errors(&document), Vec::<String>::new());
    let refusal = &document["environments"][0]["refusals"][0];
    assert_eq!(refusal["code"], "unknown-field", "{document:#}");
    assert_eq!(refusal["severity"], "error");
    // An existing problem at the base is not part of this change.
    commit(&folder);
    folder.write(
        "manifests/app/app.yaml",
        &broken.replace("image: app", "image: app:2"),
    );
    let run = preview(&folder, &[]);
    assert_eq!(run.code, 0, "{}", run.shown());
    assert!(
        run.stdout.contains(
            "app.yaml:5: warning: `spec.replcas` is not a field of Deployment (the same at the base)"
        ),
        "{}",
        run.shown()
    );
    // A new problem is.
    folder.write(
        "manifests/app/app.yaml",
        &broken.replace("  template:", "  paused: 'true'\n  template:"),
    );
    let run = preview(&folder, &[]);
    assert_eq!(run.code, 3, "{}", run.shown());
    assert!(
        run.stdout
            .contains("environment dev: would be refused: 1 error, 1 warning"),
        "{}",
        run.shown()
    );
}

/// A result of a rehearsal is shown with the preview; files of another form are refused.
#[test]
fn a_rehearsal_is_shown_with_the_preview() {
    let folder = fleet(&["dev"], &config_map("app", "x"));
    git(&folder, &["checkout", "-q", "-b", "pr"]);
    folder.write("manifests/app/app.yaml", &config_map("app", "y"));
    commit(&folder);
    let json: Value = serde_json::from_str(&preview(&folder, &["-o", "json"]).stdout).unwrap();
    let head = json["head"].as_str().unwrap();
    let report = |revision: &str| {
        let releases = ["dev.app", "dev.other"].map(|name| {
            serde_json::json!({"name": name, "stages":
                [{"stage": "workloads", "planned": 2, "writes": 2, "refused": []}]})
        });
        serde_json::json!({"format": 1, "environment": "dev", "revision": revision,
            "releases": releases, "verdict": "passed"})
    };
    let outside = Folder::new();
    let path = outside.path().join("r.json");
    let path = path.to_str().unwrap();
    for (revision, expected) in [
        (head, "yes, 4 writes, 0 refused (dev)"),
        ("c0ffee", "out of date (dev): it is of revision c0ffee"),
    ] {
        outside.write("r.json", &report(revision).to_string());
        for (format, line) in [
            ("text", format!("rehearsed: {expected}")),
            ("markdown", format!("**rehearsed:** {expected}")),
            (
                "html",
                format!("<p><strong>rehearsed:</strong> {expected}</p>"),
            ),
            ("json", format!("\"{expected}\"")),
        ] {
            let arguments = ["--head", "pr", "--rehearsal", path, "-o", format];
            let run = preview(&folder, &arguments);
            assert_eq!(run.code, 0, "{}", run.shown());
            let mut lines = run.stdout.lines().map(str::trim);
            assert!(lines.any(|it| it == line), "{}", run.shown());
        }
    }
    outside.write("r.json", "{\"format\": 7, \"token\": \"s3cret\"}");
    let run = preview(&folder, &["--rehearsal", path]);
    assert_eq!(run.code, 1, "{}", run.shown());
    assert!(
        run.stderr.contains("the report has format 7"),
        "{}",
        run.stderr
    );
    assert!(!run.shown().contains("s3cret"), "{}", run.shown());
}
