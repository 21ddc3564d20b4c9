//! Selection of releases to render for a change, and its completeness.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use pleach_model::object::DigestKey;
use pleach_model::tree::MemoryTree;
use rstest::rstest;
use serde_json::Value;

use super::*;
use pleach_git::Revision;

type Files = BTreeMap<String, String>;

const HEADER: &str = "apiVersion: pleach.dev/v1alpha1\nkind";
const PASSWORD: &str = "correct-horse-battery";

fn config_map(name: &str, value: &str) -> String {
    format!(
        "apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: {name}}}\ndata: {{level: {value}}}\n"
    )
}

fn deployment(name: &str, replicas: u32) -> String {
    format!(
        "apiVersion: apps/v1\nkind: Deployment\nmetadata: {{name: {name}}}\nspec:\n  replicas: {replicas}\n  selector: {{matchLabels: {{app: {name}}}}}\n  template:\n    metadata: {{labels: {{app: {name}}}}}\n    spec: {{containers: [{{name: app, image: app}}]}}\n"
    )
}

fn autoscaler(name: &str, target: &str) -> String {
    format!(
        "apiVersion: autoscaling/v2\nkind: HorizontalPodAutoscaler\nmetadata: {{name: {name}}}\nspec:\n  maxReplicas: 9\n  scaleTargetRef: {{apiVersion: apps/v1, kind: Deployment, name: {target}}}\n"
    )
}

fn crd(scope: &str) -> String {
    format!(
        "apiVersion: apiextensions.k8s.io/v1\nkind: CustomResourceDefinition\nmetadata: {{name: things.example.org}}\nspec:\n  group: example.org\n  scope: {scope}\n  names: {{plural: things, kind: Thing}}\n  versions:\n  - name: v1\n    served: true\n    storage: true\n    schema: {{openAPIV3Schema: {{type: object}}}}\n"
    )
}

/// Builds an environment with one bundle per release, and two releases per namespace.
fn fleet(releases: usize) -> Files {
    let mut environment = format!("{HEADER}: Environment\nreleases:\n");
    let mut files = Files::from([
        (
            "pleach.yaml".to_owned(),
            format!("{HEADER}: Repository\nid: fleet\n"),
        ),
        (
            "templates/lib.j2".to_owned(),
            "{% macro level(value) %}{{ value }}{% endmacro %}".to_owned(),
        ),
    ]);
    for number in 0..releases {
        let _never_fails = writeln!(
            environment,
            "  - {{name: app-{number}, bundle: app-{number}, namespace: team-{}, values: {{level: info}}}}",
            number / 2
        );
        let folder = format!("manifests/app-{number}");
        files.insert(
            format!("{folder}/bundle.yaml"),
            format!("{HEADER}: Bundle\n"),
        );
        let template = format!(
            "{{% from 'lib.j2' import level %}}\n{}",
            config_map(&format!("app-{number}"), "{{ level(values.level) }}")
        );
        files.insert(format!("{folder}/app.yaml.j2"), template);
    }
    files.insert("environments/dev.yaml".to_owned(), environment);
    files
}

fn change(base: &Files, head: &Files) -> Change {
    let end = |name: &str, files: &Files| End {
        name: name.to_owned(),
        tree: Box::new(MemoryTree::new(files.clone())),
        revision: Revision::Commit(name.to_owned()),
    };
    let paths: BTreeSet<&String> = base.keys().chain(head.keys()).collect();
    let differing = paths
        .into_iter()
        .filter(|path| base.get(*path) != head.get(*path));
    Change {
        files: differing.cloned().collect(),
        base: end("base", base),
        head: end("head", head),
    }
}

/// Returns the preview, and the number of rendered releases of the head; `None` if it cannot be
/// rendered.
fn inspect(change: &Change, whole: bool) -> (Value, Option<usize>) {
    let question = Question {
        scope: Scope {
            environment: "dev",
            release: None,
        },
        is_requested: true,
        whole,
    };
    let key = DigestKey::new(b"of this run".to_vec());
    let offline_preview = change.inspect(question, &key).unwrap();
    let rendered = offline_preview
        .rendered
        .map(|head| head.loaded.rendered.len());
    (
        serde_json::to_value(&offline_preview.preview).unwrap(),
        rendered,
    )
}

fn settings() -> String {
    fleet(8)["environments/dev.yaml"].replacen("level: info", "level: debug", 1)
}

fn protected() -> String {
    let text = fleet(8)["environments/dev.yaml"].clone();
    format!("{text}protect: [{{kind: ConfigMap}}]\n")
}

/// Gives the first release its own namespace.
fn alone() -> String {
    fleet(8)["environments/dev.yaml"].replacen("team-0", "alone", 1)
}

fn fewer() -> String {
    let text = fleet(8)["environments/dev.yaml"].clone();
    let lines = text.lines().filter(|line| !line.contains("app-7"));
    lines.collect::<Vec<_>>().join("\n") + "\n"
}

fn guarded() -> String {
    r#"{"properties": {"level": {"writeOnly": true}}}"#.to_owned()
}

fn with_password() -> String {
    fleet(8)["environments/dev.yaml"].replace(
        "team-2, values: {level: info}",
        &format!("team-2, values: {{level: {PASSWORD}}}"),
    )
}

const APP: &str = "manifests/app-0/more.yaml";
const OTHER: &str = "manifests/app-5/more.yaml";
const SCHEMA: &str = "manifests/app-5/values.schema.json";
const ENVIRONMENT: &str = "environments/dev.yaml";

#[rstest]
#[case::a_value(vec![], vec![(ENVIRONMENT, settings())], Some(1))]
#[case::an_object(vec![(APP, config_map("more", "a"))],
    vec![(APP, config_map("more", "b"))], Some(1))]
#[case::two_releases(vec![(APP, config_map("more", "a")), (OTHER, config_map("more", "a"))],
    vec![(APP, config_map("more", "b")), (OTHER, config_map("more", "b"))], Some(2))]
#[case::many_releases(vec![], vec![("templates/lib.j2", "{% macro level(value) %}{{ value }}!{% endmacro %}".to_owned())], Some(8))]
#[case::nothing(vec![], vec![], Some(0))]
#[case::words(vec![(APP, config_map("more", "a"))],
    vec![(APP, format!("# a word\n{}", config_map("more", "a")))], Some(1))]
#[case::an_object_that_comes(vec![], vec![(APP, config_map("more", "a"))], Some(8))]
#[case::an_object_that_another_has(vec![(OTHER, config_map("more", "a").replace("name: more", "name: more, namespace: shared"))],
    vec![(APP, config_map("more", "a").replace("name: more", "name: more, namespace: shared"))], None)]
#[case::replicas_without_autoscaler(vec![(APP, deployment("web", 1))],
    vec![(APP, deployment("web", 2))], Some(1))]
#[case::replicas_that_another_scales(vec![
        (APP, deployment("web", 1)),
        (OTHER, autoscaler("web", "web").replace("name: web}\nspec", "name: web, namespace: team-0}\nspec")),
    ],
    vec![(APP, deployment("web", 2))], Some(2))]
#[case::an_autoscaler_that_stays(vec![
        (APP, [deployment("web", 1), autoscaler("web", "web")].join("---\n")),
    ],
    vec![
        (APP, [deployment("web", 2), autoscaler("web", "web")].join("---\n")),
    ], Some(1))]
#[case::an_autoscaler_that_changes(vec![
        (APP, autoscaler("web", "web")),
        (OTHER, deployment("web", 1).replace("name: web}\nspec", "name: web, namespace: team-0}\nspec")),
    ],
    vec![(APP, autoscaler("web", "other"))], Some(8))]
#[case::a_crd(vec![
        (APP, crd("Namespaced")),
        (OTHER, "apiVersion: example.org/v1\nkind: Thing\nmetadata: {name: one}\n".to_owned()),
    ],
    vec![(APP, crd("Cluster"))], Some(8))]
#[case::a_kind_that_another_defines(vec![
        (OTHER, crd("Cluster")),
        (APP, "apiVersion: example.org/v1\nkind: Thing\nmetadata: {name: one}\n".to_owned()),
    ],
    vec![(APP, "apiVersion: example.org/v1\nkind: Thing\nmetadata: {name: one}\nspec: {a: 1}\n".to_owned())], Some(8))]
#[case::a_namespace_that_another_has(vec![
        (ENVIRONMENT, alone()),
        (APP, config_map("more", "a")),
        (OTHER, "apiVersion: v1\nkind: Namespace\nmetadata: {name: alone}\n".to_owned()),
    ],
    vec![(APP, config_map("more", "b"))], Some(2))]
#[case::a_namespace_that_another_lies_in(vec![
        (ENVIRONMENT, alone()),
        (APP, config_map("more", "a")),
        (OTHER, config_map("there", "a").replace("name: there", "name: there, namespace: alone")),
    ],
    vec![(APP, config_map("more", "b"))], Some(2))]
#[case::shared_templates(vec![
        ("templates/more.j2", "{% macro scaled() %}kind: HorizontalPodAutoscaler{% endmacro %}".to_owned()),
        (APP, deployment("web", 1)),
    ],
    vec![(APP, deployment("web", 2))], Some(8))]
#[case::protected_environment(vec![], vec![(ENVIRONMENT, protected())], Some(8))]
#[case::a_removed_release(vec![], vec![(ENVIRONMENT, fewer())], Some(7))]
#[case::a_file_that_is_wrong(vec![], vec![(APP, "kind: [\n".to_owned())], None)]
#[case::secret_of_another_release(vec![
        (SCHEMA, guarded()),
        (ENVIRONMENT, with_password()),
        (APP, config_map("more", "a")),
    ],
    vec![(APP, config_map("more", PASSWORD))], Some(1))]
fn only_affected_releases_are_rendered(
    #[case] both: Vec<(&str, String)>,
    #[case] changed: Vec<(&str, String)>,
    #[case] rendered: Option<usize>,
) {
    let owned = |files: Vec<(&str, String)>| -> Files {
        let files = files.into_iter();
        files.map(|(path, text)| (path.to_owned(), text)).collect()
    };
    let mut base = fleet(8);
    base.extend(owned(both));
    let mut head = base.clone();
    head.extend(owned(changed));
    let change = change(&base, &head);
    let (found, count) = inspect(&change, false);
    assert_eq!(count, rendered, "{found:#}");
    // Rendering everything gives the same result.
    let (whole, _) = inspect(&change, true);
    assert_eq!(found, whole);
    assert!(!found.to_string().contains(PASSWORD), "{found:#}");
}

const BUNDLE: &str = "manifests/app-0/bundle.yaml";

/// Lets the first release use another bundle, which declares nothing.
fn with_another_bundle() -> String {
    fleet(8)[ENVIRONMENT].replacen("bundle: app-0", "bundle: other", 1)
}

fn with_a_renamed_release() -> String {
    fleet(8)[ENVIRONMENT].replacen("name: app-0", "name: web", 1)
}

fn with_a_moved_release() -> String {
    with_a_renamed_release().replacen(
        "name: web",
        "name: web, movedFrom: {environment: dev, release: app-0}",
        1,
    )
}

fn without_the_first() -> String {
    let text = fleet(8)[ENVIRONMENT].clone();
    let lines = text.lines().filter(|line| !line.contains("app-0"));
    lines.collect::<Vec<_>>().join("\n") + "\n"
}

/// The author of a change must not make a value visible by dropping its declaration.
#[rstest]
#[case::a_dropped_declaration(vec![(BUNDLE, format!("{HEADER}: Bundle\n"))])]
#[case::another_bundle(vec![
    (ENVIRONMENT, with_another_bundle()),
    ("manifests/other/bundle.yaml", format!("{HEADER}: Bundle\n")),
    ("manifests/other/more.yaml", config_map("more", "open")),
])]
#[case::a_renamed_release(vec![
    (ENVIRONMENT, with_a_renamed_release()),
    (BUNDLE, format!("{HEADER}: Bundle\n")),
])]
#[case::a_moved_release(vec![
    (ENVIRONMENT, with_a_moved_release()),
    (BUNDLE, format!("{HEADER}: Bundle\n")),
])]
#[case::a_removed_release(vec![(ENVIRONMENT, without_the_first())])]
fn fields_that_the_base_declares_stay_secret(#[case] changed: Vec<(&str, String)>) {
    let declares = "secretFields: [{kind: ConfigMap, name: more, fields: [data.level]}]\n";
    let mut base = fleet(8);
    base.insert(BUNDLE.to_owned(), format!("{HEADER}: Bundle\n{declares}"));
    base.insert(APP.to_owned(), config_map("more", PASSWORD));
    let mut head = base.clone();
    head.insert(APP.to_owned(), config_map("more", "open"));
    head.extend(
        changed
            .into_iter()
            .map(|(path, text)| (path.to_owned(), text)),
    );
    let question = Question {
        scope: Scope {
            environment: "dev",
            release: None,
        },
        is_requested: true,
        whole: true,
    };
    let key = DigestKey::new(b"of this run".to_vec());
    let offline_preview = change(&base, &head).inspect(question, &key).unwrap();
    let shown = serde_json::to_string(&offline_preview.preview).unwrap();
    assert!(!shown.contains(PASSWORD), "{shown}");
    let secrets = offline_preview.rendered.unwrap().base_secrets;
    let id = "ConfigMap/team-0/more".parse().unwrap();
    assert!(secrets.of_object(&id).hides_anything(), "{secrets:?}");
}

#[test]
fn failed_environments_are_named_in_the_summary() {
    let mut preview = change(&Files::new(), &Files::new()).preview();
    assert_eq!(preview.summary, "no changes");
    add(&mut preview, EnvironmentPreview::new("dev"));
    assert_eq!(preview.summary, "no changes");
    for name in ["prod", "staging"] {
        let mut broken = EnvironmentPreview::new(name);
        let finding = Finding::error(Kind::Repository, "x", "it cannot be rendered");
        broken.findings.push(finding);
        add(&mut preview, broken);
    }
    assert_eq!(preview.summary, "cannot be previewed: prod, staging");
}

#[test]
fn of_a_thousand_releases_one_is_rendered() {
    let base = fleet(1000);
    let mut head = base.clone();
    let text = base["manifests/app-7/app.yaml.j2"].replace("data: {", "data: {more: one, ");
    head.insert("manifests/app-7/app.yaml.j2".to_owned(), text);
    let (found, rendered) = inspect(&change(&base, &head), false);
    assert_eq!(rendered, Some(1));
    let names = |key: &str| found[key].as_array().unwrap().len();
    assert_eq!((names("releases"), names("unchanged")), (1, 999));
    assert_eq!(found["releases"][0]["release"], "dev.app-7");
}

#[test]
fn a_removed_environment_is_named() {
    let base = fleet(1);
    let mut head = base.clone();
    head.remove(ENVIRONMENT);
    let change = change(&base, &head);
    let key = DigestKey::new(b"of this run".to_vec());
    let question = Question {
        scope: Scope {
            environment: "dev",
            release: None,
        },
        is_requested: false,
        whole: false,
    };
    let offline_preview = change.inspect(question, &key).unwrap();
    assert!(offline_preview.rendered.is_none());
    assert_eq!(
        offline_preview.preview.findings[0].message,
        "the file of environment dev is removed: it is suspended, and nothing is deleted"
    );
    let mut preview = change.preview();
    add(&mut preview, offline_preview.preview);
    assert_eq!(preview.summary, "environment removed: dev");
}
