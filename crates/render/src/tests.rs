//! Tests of rendering as a whole.

use bytes::Bytes;
use jiff::SignedDuration;
use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use pleach_config::{Patch, PatchChange, RecordingTree};
use pleach_formats::nodes::NodesRule;
use pleach_formats::sequence::{Count, StageRule};
use pleach_model::cel::Expression;
use pleach_model::object::{Selector, labels};
use pleach_model::order::StageName;
use pleach_model::tree::MemoryTree;
use pleach_state::inventory::Store;

fn table() -> KindTable {
    KindTable::for_minor("1.36").unwrap()
}

fn tree(files: &[(&str, &str)]) -> MemoryTree {
    MemoryTree::new(
        files
            .iter()
            .map(|(path, text)| ((*path).to_owned(), Bytes::from((*text).to_owned()))),
    )
}

fn render_files(files: &[(&str, &str)], values: Value) -> Rendered {
    let names: Vec<&str> = files
        .iter()
        .map(|(name, _)| *name)
        .filter(|name| !name.starts_with("templates/"))
        .collect();
    let release = samples::release("web", &names, values);
    let environment = samples::environment(vec![release.clone()]);
    render(&tree(files), &environment, &release, &table())
}

/// Returns the manifests as bytes.
fn bytes(rendered: &Rendered) -> Vec<(ObjectId, Bytes)> {
    rendered
        .manifests
        .iter()
        .map(|manifest| (manifest.id().clone(), manifest.json().clone()))
        .collect()
}

fn messages(rendered: &Rendered) -> Vec<String> {
    rendered.findings.iter().map(ToString::to_string).collect()
}

/// A schema violation does not hide errors of other releases. Templates of the affected release are
/// skipped, because they do not expect such values.
#[test]
fn refused_values_are_reported_with_all_other_errors() {
    let files = [
        ("plain.yaml", "apiVersion: v1\nkind: ConfigMap\n"),
        ("web.yaml.j2", "{{ values.host.name }}"),
        ("other.yaml.j2", "{{ values.nothing }}"),
    ];
    let mut refused = samples::release("web", &["plain.yaml", "web.yaml.j2"], json!({}));
    let message = "`values`: `host` is required";
    refused.refused = vec![
        Finding::error(Kind::Repository, "values-refused", message).at(refused.origin.clone()),
    ];
    let other = samples::release("other", &["other.yaml.j2"], json!({}));
    let environment = samples::environment(vec![refused, other]);
    let rendered = render_environment(&tree(&files), &environment, &table());
    let codes: Vec<Vec<&str>> = rendered
        .iter()
        .map(|one| one.findings.iter().map(|one| one.code.as_str()).collect())
        .collect();
    assert!(codes[0].contains(&"values-refused"), "{codes:?}");
    assert!(!codes[0].contains(&"template-failed"), "{codes:?}");
    assert!(codes[0].len() > 1, "{codes:?}");
    assert_eq!(codes[1].len(), 1, "{codes:?}");
}

#[test]
fn objects_carry_the_labels_of_the_release() {
    let rendered = render_files(
        &[(
            "a.yaml",
            "{apiVersion: v1, kind: ConfigMap, metadata: {name: a, labels: null, annotations: {}}}\n",
        )],
        json!({}),
    );
    assert_eq!(messages(&rendered), [""; 0]);
    let value = rendered.manifests[0].value();
    assert_eq!(
        value["metadata"],
        json!({
            "name": "a",
            "namespace": "shop",
            "labels": {
                labels::PART_OF: Store::Release.apply_set(&rendered.release),
                labels::MANAGED_BY: "pleach",
            },
        })
    );
}

/// A manifest with the name of state would be adopted as the record of another release.
#[test]
fn a_manifest_named_like_state_is_refused() {
    let team = Store::ConfigMap {
        namespace: "shop".to_owned(),
    };
    for (kind, name, store, is_refused) in [
        ("{apiVersion: v1, kind: ConfigMap", "dev.db", &team, true),
        (
            "{apiVersion: v1, kind: ConfigMap",
            "dev.db",
            &Store::Release,
            false,
        ),
        ("{apiVersion: v1, kind: ConfigMap", "settings", &team, false),
        (
            "{apiVersion: coordination.k8s.io/v1, kind: Lease",
            "dev.db",
            &team,
            true,
        ),
        (
            "{apiVersion: v1, kind: Secret",
            "pleach-digest-key",
            &Store::Release,
            true,
        ),
    ] {
        let mut release = samples::release("web", &["a.yaml"], json!({}));
        let name = name.replace("dev.", &format!("{}.", release.name.environment));
        release.store = store.clone();
        let environment = samples::environment(vec![release.clone()]);
        let files = [("a.yaml", format!("{kind}, metadata: {{name: {name}}}}}\n"))];
        let files: Vec<(&str, &str)> = files
            .iter()
            .map(|(path, text)| (*path, text.as_str()))
            .collect();
        let rendered = render(&tree(&files), &environment, &release, &table());
        let errors = rendered.findings.iter().filter(|one| one.is_error());
        let codes: Vec<&str> = errors.map(|one| one.code.as_str()).collect();
        let expected: &[&str] = if is_refused { &["state-object"] } else { &[] };
        assert_eq!(codes, expected, "{kind} {name} {store:?}");
        assert_eq!(rendered.manifests.is_empty(), is_refused, "{kind} {name}");
    }
}

/// Returns a stage that `test.yaml` verifies.
fn stage() -> StageRule {
    StageRule {
        stage: StageName::declared("agents", &StageName::Workloads, 0),
        select: Vec::new(),
        applied_only: false,
        rollout: None,
        nodes: None,
        preload: None,
        verify: vec!["test.yaml".to_owned()],
        checks: Vec::new(),
        scale: Vec::new(),
        restart: Vec::new(),
        timeout: None,
        origin: Origin::new("manifests/web/bundle.yaml", 3),
    }
}

/// Renders a release with a stage that `test.yaml` verifies.
fn staged(text: &str) -> Rendered {
    let mut release = samples::release("web", &["test.yaml"], json!({}));
    release.sequence.stages.push(stage());
    let environment = samples::environment(vec![release.clone()]);
    let files = tree(&[("test.yaml", text)]);
    render(&files, &environment, &release, &table())
}

#[test]
fn a_change_of_nodes_has_one_job() {
    let job = "{apiVersion: batch/v1, kind: Job, metadata: {name: test}, spec: {template: {spec: {containers: []}}}}\n";
    let config = "{apiVersion: v1, kind: ConfigMap, metadata: {name: test}}\n";
    for (text, expected) in [
        (job.to_owned(), 0),
        (config.to_owned(), 1),
        (job.replace("[]", "[x]"), 1),
        (format!("{job}---\n{config}"), 1),
    ] {
        let mut release = samples::release("web", &["test.yaml"], json!({}));
        release.sequence.stages.push(StageRule {
            verify: Vec::new(),
            nodes: Some(NodesRule {
                select: BTreeMap::new(),
                first: Vec::new(),
                parallel: Count::Pods(1),
                done: Expression::compile("node.x", &["node"]).unwrap(),
                before: Vec::new(),
                drain: None,
                driver: None,
                job: Some("test.yaml".to_owned()),
                after: Vec::new(),
                cleanup: None,
                pause_after: None,
                reverse: false,
                timeout: SignedDuration::from_secs(60),
            }),
            ..stage()
        });
        let environment = samples::environment(vec![release.clone()]);
        let rendered = render(
            &tree(&[("test.yaml", &text)]),
            &environment,
            &release,
            &table(),
        );
        let codes: Vec<&str> = rendered
            .findings
            .iter()
            .map(|finding| finding.code.as_str())
            .collect();
        assert_eq!(codes, vec!["node-job"; expected], "{text}");
    }
}

#[test]
fn a_verification_of_a_stage_is_a_run_once_job() {
    let rendered = staged("{apiVersion: batch/v1, kind: Job, metadata: {name: test}}\n");
    assert_eq!(messages(&rendered), [""; 0]);
    let value = rendered.manifests[0].value();
    assert_eq!(
        value["metadata"]["annotations"],
        json!({"pleach.dev/run": "once", "pleach.dev/stage": "agents"})
    );
    let other = staged("{apiVersion: v1, kind: ConfigMap, metadata: {name: test}}\n");
    assert_eq!(
        messages(&other),
        ["test.yaml:1: this file verifies stage `agents` and must contain only Jobs"]
    );
    assert!(other.failed());
}

#[test]
fn an_annotation_names_a_stage_that_there_is() {
    let object = |stage: &str| {
        let text = format!(
            "{{apiVersion: v1, kind: ConfigMap, metadata: {{name: a, annotations: {{pleach.dev/stage: {stage}}}}}}}\n"
        );
        messages(&render_files(&[("a.yaml", &text)], json!({})))
    };
    assert_eq!(object("access"), [""; 0]);
    for stage in ["prune", "verify", "agents"] {
        let found = object(stage);
        assert!(
            found[0].contains(&format!("there is no stage `{stage}` that applies objects")),
            "{found:?}"
        );
    }
}

/// An upstream Job with `generateName`.
const GENERATED: &str = "apiVersion: batch/v1\nkind: Job\nmetadata:\n  generateName: migrate-\nspec: {backoffLimit: 1}\n";

/// Renders a file with a patch for objects of a kind and name.
fn patched(text: &str, kind: &str, name: &str, change: PatchChange) -> Rendered {
    let mut release = samples::release("web", &["job.yaml"], json!({}));
    release.patches.push(Patch {
        target: Selector {
            kind: kind.to_owned(),
            name: Some(name.to_owned()),
            ..Selector::default()
        },
        change,
        origin: Origin::new("manifests/web/bundle.yaml", 3),
    });
    let environment = samples::environment(vec![release.clone()]);
    let files = tree(&[("job.yaml", text)]);
    render(&files, &environment, &release, &table())
}

fn generated(name: &str, change: PatchChange) -> Rendered {
    patched(GENERATED, "Job", name, change)
}

fn once(more: Value) -> PatchChange {
    let mut change = json!({"metadata": {"annotations": {"pleach.dev/run": "once"}}});
    change["spec"] = more;
    PatchChange::Merge(change)
}

#[test]
fn a_patch_makes_a_job_run_once_that_has_no_name() {
    let name = |rendered: &Rendered| {
        assert_eq!(messages(rendered), [""; 0]);
        let value = rendered.manifests[0].value();
        let name = rendered.manifests[0].id().name.clone();
        assert_eq!(value["metadata"]["generateName"], Value::Null);
        assert_eq!(value["metadata"]["namespace"], "shop");
        assert_eq!(value["metadata"]["name"], name.as_str());
        name
    };
    let first = name(&generated("migrate-*", once(json!({}))));
    assert!(first.starts_with("migrate-"), "{first}");
    assert_eq!(first.len(), "migrate-".len() + 12);
    assert_eq!(name(&generated("migrate-", once(json!({})))), first);
    // The name depends on the final content.
    let other = once(json!({"backoffLimit": 2}));
    assert_ne!(name(&generated("migrate-*", other)), first);
    let operations = json!([
        {"op": "remove", "path": "/metadata/generateName"},
        {"op": "add", "path": "/metadata/name", "value": "migrate"},
    ]);
    let named = PatchChange::Json(serde_json::from_value(operations).unwrap());
    assert_eq!(name(&generated("migrate-*", named)), "migrate");
}

#[test]
fn a_patch_of_other_objects_keeps_the_name_of_a_job() {
    let job = GENERATED.replace(
        "  generateName",
        "  annotations: {pleach.dev/run: once}\n  generateName",
    );
    let text = format!("{job}---\napiVersion: v1\nkind: ConfigMap\nmetadata: {{name: a}}\n");
    let name = |rendered: &Rendered| {
        assert_eq!(messages(rendered), [""; 0]);
        let mut ids = rendered.manifests.iter().map(Manifest::id);
        ids.find(|id| id.kind == "Job").unwrap().name.clone()
    };
    let merge = PatchChange::Merge(json!({"data": {"a": "b"}}));
    let beside = patched(&text, "ConfigMap", "a", merge);
    let alone = render_files(&[("job.yaml", &text)], json!({}));
    assert_eq!(name(&beside), name(&alone));
}

#[test]
fn a_job_without_a_name_that_no_patch_makes_run_once_is_refused() {
    let label = PatchChange::Merge(json!({"metadata": {"labels": {"a": "b"}}}));
    for rendered in [
        generated("migrate-*", label),
        generated("other", once(json!({}))),
    ] {
        let mut findings = rendered.findings.iter();
        let found = findings.find(|one| one.code == "generate-name").unwrap();
        assert_eq!(found.place, Some(Origin::new("job.yaml", 4)));
        let hint = found.hint.as_deref().unwrap();
        assert!(
            hint.starts_with("annotate it with pleach.dev/run: once"),
            "{hint}"
        );
        assert!(rendered.manifests.is_empty());
    }
}

#[test]
fn an_error_of_yaml_in_a_template_is_shown_where_the_template_has_it() {
    let rendered = render_files(
        &[(
            "a.yaml.j2",
            "{# one #}\n{% for x in [1, 2] %}\na: {{ x }}\n{% endfor %}\n",
        )],
        json!({}),
    );
    assert_eq!(rendered.findings.len(), 1);
    let finding = &rendered.findings[0];
    assert_eq!(finding.code, "yaml");
    assert_eq!(finding.place, Some(Origin::new("a.yaml.j2", 3)));
}

#[test]
fn errors_of_all_files_are_found_at_once() {
    let rendered = render_files(
        &[
            ("a.yaml", "a: [\n"),
            ("b.yaml.j2", "{{ values.x }}\n"),
            ("c.yaml.j2", "{% if %}\n"),
            ("d.yaml", "kind: ConfigMap\n"),
        ],
        json!({}),
    );
    let files: Vec<_> = rendered
        .findings
        .iter()
        .map(|finding| finding.place.as_ref().unwrap().file.as_str())
        .collect();
    assert_eq!(
        files,
        ["a.yaml", "b.yaml.j2", "c.yaml.j2", "d.yaml", "d.yaml"]
    );
    assert!(rendered.failed());
}

#[test]
fn a_missing_or_binary_file_is_an_error_of_its_own() {
    let release = samples::release("web", &["a.yaml", "b.yaml"], json!({}));
    let environment = samples::environment(vec![release.clone()]);
    let tree = MemoryTree::new([("b.yaml", Bytes::from_static(b"\xff\xfe"))]);
    let rendered = render(&tree, &environment, &release, &table());
    assert_eq!(
        messages(&rendered),
        [
            "a.yaml: a.yaml does not exist",
            "b.yaml: the file is not UTF-8"
        ]
    );
}

#[test]
fn no_value_shows_in_a_finding() {
    let secret = "s3cr3t-value";
    let rendered = render_files(
        &[
            ("a.yaml.j2", "x: {{ values.password | b64decode }}\n"),
            (
                "b.yaml.j2",
                "{{ values.password }}: {{ values.password }}\n  bad\n",
            ),
            (
                "c.yaml.j2",
                "{apiVersion: v1, kind: Secret, metadata: {name: a}, data: {k: {{ values.password }}}}\n",
            ),
            ("d.yaml.j2", "x: {{ values.number // 0 }}\n"),
            ("e.yaml.j2", "{% include values.password %}\n"),
            ("f.yaml.j2", "{{ values.password }}\n"),
        ],
        json!({"password": secret, "number": 4711}),
    );
    assert!(rendered.findings.len() >= 6, "{:#?}", rendered.findings);
    let all = format!("{:?}", rendered.findings);
    assert!(!all.contains(secret), "{all}");
    assert!(!all.contains("4711"), "{all}");
}

#[test]
fn only_files_that_are_used_are_inputs() {
    let files = [
        (
            "a.yaml.j2",
            "{% import 'used.j2' as used %}\n{{ used.x() }}\n",
        ),
        ("templates/used.j2", "{% macro x() %}# x{% endmacro %}\n"),
        ("templates/unused.j2", "{% broken\n"),
    ];
    let rendered = render_files(&files, json!({}));
    assert_eq!(messages(&rendered), [""; 0]);
    assert_eq!(
        rendered.inputs,
        ["a.yaml.j2", "environments/test.yaml", "templates/used.j2"]
    );
}

#[test]
fn templates_are_not_read_for_plain_files() {
    let files = tree(&[
        (
            "a.yaml",
            "{apiVersion: v1, kind: ConfigMap, metadata: {name: a}}\n",
        ),
        ("templates/x.j2", ""),
    ]);
    let release = samples::release("web", &["a.yaml"], json!({}));
    let environment = samples::environment(vec![release.clone()]);
    let recording = RecordingTree::new(&files);
    render(&recording, &environment, &release, &table());
    assert_eq!(
        recording.record().read.into_iter().collect::<Vec<_>>(),
        ["a.yaml", "manifests/web/v1.0.0/values.schema.json"]
    );
}

#[test]
fn parsed_objects_equal_those_of_the_file() {
    let text = "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: a\n  creationTimestamp: null\nstatus: {}\n";
    let files = tree(&[("a.yaml", text), ("b.yaml.j2", "{{ values.missing }}")]);
    let release = samples::release("web", &["a.yaml", "b.yaml.j2"], json!({}));
    let parsed = parsed_objects(&files, &release).unwrap();
    assert_eq!(
        parsed,
        [ParsedObject {
            origin: Origin::new("a.yaml", 1),
            value: json!({
                "apiVersion": "v1",
                "kind": "ConfigMap",
                "metadata": {"name": "a", "creationTimestamp": null},
                "status": {},
            }),
        }]
    );
}

/// Generates names of objects with the values of their data.
fn objects() -> impl Strategy<Value = Vec<(String, String)>> {
    let name = "[a-z][a-z0-9]{0,6}";
    let value = any::<String>();
    prop::collection::btree_map(name, value, 0..12)
        .prop_map(|map| map.into_iter().collect::<Vec<_>>())
        .prop_shuffle()
}

proptest! {
    #[test]
    fn the_same_input_gives_the_same_bytes_in_any_order(objects in objects()) {
        let template = "{% for object in values.objects %}\n---\napiVersion: v1\nkind: Secret\n\
            metadata:\n  name: {{ object[0] | quote }}\nstringData:\n  key: {{ object[1] | quote }}\n{% endfor %}\n";
        let render = |objects: &[(String, String)]| {
            render_files(&[("a.yaml.j2", template)], json!({"objects": objects}))
        };
        let first = render(&objects);
        prop_assert_eq!(messages(&first), Vec::<String>::new());
        prop_assert_eq!(first.manifests.len(), objects.len());
        prop_assert_eq!(bytes(&first), bytes(&render(&objects)));
        let mut sorted = objects;
        sorted.sort();
        prop_assert_eq!(bytes(&first), bytes(&render(&sorted)));
    }

    #[test]
    fn a_quoted_string_is_itself(text in any::<String>()) {
        let rendered = render_files(
            &[(
                "a.yaml.j2",
                "{apiVersion: v1, kind: ConfigMap, metadata: {name: a}, data: {key: {{ values.text | quote }}}}\n",
            )],
            json!({"text": text}),
        );
        prop_assert_eq!(messages(&rendered), Vec::<String>::new());
        prop_assert_eq!(&rendered.manifests[0].value()["data"]["key"], &json!(text));
    }

    #[test]
    fn a_value_written_as_yaml_is_itself(list in prop::collection::vec(any::<String>(), 0..5), number in any::<i64>()) {
        let values = json!({"list": list, "map": {"on": number, "nested": [true, null, "1.0"]}});
        let rendered = render_files(
            &[(
                "a.yaml.j2",
                "apiVersion: example.org/v1\nkind: Thing\nmetadata: {name: a}\nspec:\n  {{ values | toyaml | indent(2) }}\n",
            )],
            values.clone(),
        );
        prop_assert_eq!(rendered.manifests.len(), 1, "{:?}", rendered.findings);
        prop_assert_eq!(&rendered.manifests[0].value()["spec"], &values);
    }
}

/// A tree that counts how often each file is read.
struct Counting {
    tree: MemoryTree,
    reads: std::cell::RefCell<BTreeMap<String, usize>>,
}

impl FileTree for Counting {
    fn list(
        &self,
        folder: &str,
    ) -> Result<Vec<pleach_model::tree::TreeEntry>, pleach_model::tree::TreeError> {
        self.tree.list(folder)
    }

    fn read(&self, file: &str) -> Result<Bytes, pleach_model::tree::TreeError> {
        *self.reads.borrow_mut().entry(file.to_owned()).or_default() += 1;
        self.tree.read(file)
    }
}

#[test]
fn every_file_is_read_once_and_shared_templates_too() {
    let mut files = vec![(
        "templates/m.j2".to_owned(),
        "{% macro m() %}x{% endmacro %}".to_owned(),
    )];
    for number in 0..100 {
        let object = format!(
            "{{% from 'm.j2' import m %}}\n{{apiVersion: v1, kind: ConfigMap, metadata: {{name: a{number:03}}}, data: {{x: {{{{ m() }}}}}}}}\n"
        );
        files.push((format!("a{number:03}.yaml.j2"), object));
    }
    let borrowed: Vec<(&str, &str)> = files
        .iter()
        .map(|(a, b)| (a.as_str(), b.as_str()))
        .collect();
    let names: Vec<&str> = borrowed.iter().skip(1).map(|(name, _)| *name).collect();
    let release = samples::release("web", &names, json!({}));
    let environment = samples::environment(vec![release.clone()]);
    let counting = Counting {
        tree: tree(&borrowed),
        reads: std::cell::RefCell::default(),
    };
    let rendered = render(&counting, &environment, &release, &table());
    assert_eq!(messages(&rendered), [""; 0]);
    let origins: Vec<&str> = rendered
        .manifests
        .iter()
        .map(|manifest| manifest.origin().file.as_str())
        .collect();
    assert_eq!(origins, names);
    let mut reads = counting.reads.into_inner();
    // The schema is read, but does not exist.
    let schema = reads.remove(&secret_values::schema_file(&release));
    assert_eq!(schema, Some(1));
    assert_eq!(reads.len(), 101);
    assert!(reads.values().all(|count| *count == 1), "{reads:?}");
}

#[test]
fn a_file_with_many_objects_is_one_file_to_its_notes() {
    let documents = (0..1000).map(|number| {
        format!(
            "---\napiVersion: v1\nkind: ConfigMap\nmetadata: {{name: c{number:04}, uid: x}}\n\
             data: {{padding: \"{}\"}}\n",
            "x".repeat(200)
        )
    });
    let text: String = documents.collect();
    let rendered = render_files(&[("all.yaml", &text)], json!({}));
    assert_eq!(rendered.manifests.len(), 1000);
    let places: Vec<usize> = (0..1000).map(|number| 2 + number * 5).collect();
    let lines: Vec<usize> = rendered
        .manifests
        .iter()
        .map(|manifest| manifest.origin().line)
        .collect();
    assert_eq!(lines, places);
    assert_eq!(rendered.findings.len(), 1, "{:?}", rendered.findings);
    assert!(
        rendered.findings[0]
            .message
            .contains("1000 objects: metadata.uid")
    );
    assert_eq!(
        rendered.findings[0].place.as_ref().map(|at| at.line),
        Some(2)
    );
}
