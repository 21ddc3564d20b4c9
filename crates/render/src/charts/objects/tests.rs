//! Releases with charts and overlays, rendered with canned answers of the program.

use std::sync::{Arc, Mutex};

use serde_json::{Value, json};

use crate::{Rendered, render, render_environment, samples};
use pleach_config::values::Values;
use pleach_config::{ChartSource, ChartValues, KustomizeSource, ResolvedRelease};
use pleach_model::data_keys::{DataKey, DataKeys, Recipient};
use pleach_model::engines::{EngineAnswer, EngineRequest, Engines, EnginesError};
use pleach_model::kinds::KindTable;
use pleach_model::object::{Manifest, Origin, annotations};
use pleach_model::tree::{KeyedTree, MemoryTree};

struct NoKeys;

impl DataKeys for NoKeys {
    fn data_key(&self, _: &[Recipient]) -> Result<DataKey, Vec<String>> {
        Err(Vec::new())
    }
}

/// Program with a canned answer. Remembers its requests.
struct Canned {
    answer: Result<Value, EnginesError>,
    requests: Mutex<Vec<Value>>,
}

impl Engines for Canned {
    fn run(&self, request: &EngineRequest) -> Result<EngineAnswer, EnginesError> {
        let request = serde_json::to_value(request).unwrap();
        self.requests.lock().unwrap().push(request);
        let answer = self.answer.clone()?;
        Ok(serde_json::from_value(answer).unwrap())
    }
}

fn chart(name: &str) -> ChartSource {
    ChartSource {
        name: name.to_owned(),
        path: format!("charts/{name}"),
        digest: None,
        from: None,
        namespace: None,
        values: ChartValues::Merged(Box::new(Values {
            merged: json!({"size": 3}),
            ..Values::merge(&[])
        })),
        lookups: false,
        stage: None,
        origin: Origin::new("manifests/web/v1.0.0/version.yaml", 3),
    }
}

fn release(charts: Vec<ChartSource>) -> ResolvedRelease {
    ResolvedRelease {
        charts,
        ..samples::release("web", &[], json!({}))
    }
}

/// Renders one release. Returns it with the requests.
fn rendered(
    release: ResolvedRelease,
    files: &[(&str, &str)],
    answer: Result<Value, EnginesError>,
) -> (Rendered, Vec<Value>) {
    let charts = [
        ("charts/a/Chart.yaml", "name: a\n"),
        ("charts/b/Chart.yaml", "name: b\n"),
    ];
    let files = files.iter().copied().chain(charts);
    let tree = MemoryTree::new(files.map(|(path, text)| (path, text.to_owned())));
    let canned = Arc::new(Canned {
        answer,
        requests: Mutex::default(),
    });
    let tree = KeyedTree::new(tree, NoKeys).with_engines(Arc::clone(&canned) as Arc<dyn Engines>);
    let table = KindTable::for_minor("1.36").unwrap();
    let environment = samples::environment(vec![release]);
    let mut all = render_environment(&tree, &environment, &table);
    let one = all.remove(0);
    let requests = canned.requests.lock().unwrap().clone();
    assert_eq!(
        render(&tree, &environment, &environment.releases[0], &table),
        one
    );
    (one, requests)
}

fn with_charts(charts: &Value) -> Value {
    json!({"format": 1, "engines": "1.0.0", "charts": charts, "kustomizations": null})
}

fn document(source: &str, text: &str) -> Value {
    json!({"source": source, "hook": null, "text": text})
}

fn hook(events: &[&str], weight: i64, text: &str) -> Value {
    json!({"source": "templates/hook.yaml", "hook": {"events": events, "weight": weight}, "text": text})
}

fn map(name: &str) -> String {
    format!("apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: {name}}}\n")
}

fn job(name: &str) -> String {
    format!(
        "apiVersion: batch/v1\nkind: Job\nmetadata: {{name: {name}, annotations: {{helm.sh/hook: x}}}}\n\
         spec: {{template: {{spec: {{restartPolicy: Never, containers: [{{name: a, image: a}}]}}}}}}\n"
    )
}

fn deployment(name: &str) -> String {
    format!(
        "apiVersion: apps/v1\nkind: Deployment\nmetadata: {{name: {name}}}\nspec:\n  selector: {{matchLabels: {{a: b}}}}\n  \
         template: {{metadata: {{labels: {{a: b}}}}, spec: {{containers: [{{name: a, image: a}}]}}}}\n"
    )
}

/// Returns the annotations of pleach of each object.
fn marks(rendered: &Rendered) -> Vec<String> {
    let of = |manifest: &Manifest| {
        let value = manifest.value();
        let all = value["metadata"]["annotations"].as_object().cloned();
        let all = all.unwrap_or_default();
        let own = all.iter().filter_map(|(key, text)| {
            Some(format!(
                " {}={}",
                key.strip_prefix("pleach.dev/")?,
                text.as_str()?
            ))
        });
        let own: Vec<String> = own.collect();
        format!("{}{}", manifest.id(), own.concat())
    };
    let mut marks: Vec<String> = rendered.manifests.iter().map(of).collect();
    marks.sort();
    marks
}

fn shown(rendered: &Rendered) -> Vec<String> {
    let findings = rendered.findings.iter();
    let findings = findings.map(|one| match &one.hint {
        Some(hint) => format!("{} {one} ({hint})", one.code),
        None => format!("{} {one}", one.code),
    });
    findings.collect()
}

#[test]
fn objects_of_a_chart_are_members_of_the_release() {
    let crd = "apiVersion: apiextensions.k8s.io/v1\nkind: CustomResourceDefinition\nmetadata: {name: gears.example.org}\nspec:\n  \
               group: example.org\n  names: {kind: Gear, plural: gears}\n  scope: Cluster\n  versions: \
               [{name: v1, served: true, storage: true, schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}}]\n";
    let kept = "apiVersion: v1\nkind: PersistentVolumeClaim\nmetadata:\n  name: data\n  annotations: {helm.sh/resource-policy: keep}\n  \
                labels: {app.kubernetes.io/managed-by: Helm}\nspec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}}\n";
    let gear = "apiVersion: example.org/v1\nkind: Gear\nmetadata: {name: one}\n";
    let mut other = chart("b");
    other.namespace = Some("other".to_owned());
    other.stage = None;
    let answer = Ok(with_charts(&json!([
        {
            "documents": [document("templates/a.yaml", &map("a")), document("templates/gear.yaml", gear), document("templates/data.yaml", kept)],
            "crds": [{"source": "crds/gear.yaml", "text": crd}],
        },
        {"documents": [document("templates/b.yaml", &map("b"))]},
    ])));
    let (one, requests) = rendered(release(vec![chart("a"), other]), &[], answer);
    assert!(!one.failed(), "{:?}", shown(&one));
    assert_eq!(
        marks(&one),
        [
            "ConfigMap/other/b",
            "ConfigMap/shop/a",
            "CustomResourceDefinition.apiextensions.k8s.io/gears.example.org",
            "Gear.example.org/one",
            "PersistentVolumeClaim/shop/data prune=disabled",
        ]
    );
    let claim = one
        .manifests
        .iter()
        .find(|one| one.id().name == "data")
        .unwrap();
    assert_eq!(
        claim.value()["metadata"]["labels"]["app.kubernetes.io/managed-by"],
        "pleach"
    );
    assert_eq!(claim.origin().to_string(), "charts/a/templates/data.yaml");
    assert_eq!(
        one.inputs,
        [
            "charts/a/Chart.yaml",
            "charts/b/Chart.yaml",
            "environments/test.yaml"
        ]
    );
    let [request] = requests.as_slice() else {
        panic!("{} requests", requests.len());
    };
    let first = &request["charts"][0];
    assert_eq!(
        (&first["name"], &first["namespace"]),
        (&json!("a"), &json!("shop"))
    );
    assert_eq!(first["files"], json!({"Chart.yaml": "bmFtZTogYQo="}));
    assert_eq!(
        (&first["values"], &first["kubernetes"]),
        (&json!({"size": 3}), &json!("v1.36.0"))
    );
    let served = first["apiVersions"].as_array().unwrap();
    assert!(served.contains(&json!("apps/v1/Deployment")) && served.contains(&json!("apps/v1")));
    assert_eq!(request["charts"][1]["namespace"], "other");
}

#[test]
fn jobs_of_hooks_run_once_in_order() {
    let documents = json!([
        document("templates/web.yaml", &deployment("web")),
        hook(&["post-install", "post-upgrade"], 0, &job("after")),
        hook(&["pre-upgrade"], 5, &job("second")),
        hook(&["pre-install", "pre-upgrade"], -5, &job("first")),
        hook(&["pre-install"], -9, &map("settings")),
        hook(&["test"], 0, &map("test")),
        hook(&["post-delete", "pre-rollback"], 0, &job("gone")),
        hook(&["post-delete", "post-install"], 1, &job("last")),
    ]);
    let (one, _) = rendered(
        release(vec![chart("a")]),
        &[],
        Ok(with_charts(&json!([{"documents": documents}]))),
    );
    assert_eq!(
        shown(&one),
        [
            "hook-dropped charts/a/templates/hook.yaml: ConfigMap test is not applied: pleach has no hooks for test",
            "hook-dropped charts/a/templates/hook.yaml: Job gone is not applied: pleach has no hooks for post-delete, pre-rollback",
        ]
    );
    assert_eq!(
        marks(&one),
        [
            "ConfigMap/shop/settings",
            "Deployment.apps/shop/web",
            "Job.batch/shop/after after=Deployment/web run=once stage=resources",
            "Job.batch/shop/first run=once stage=services",
            "Job.batch/shop/last after=Job/after run=once stage=resources",
            "Job.batch/shop/second after=Job/first run=once stage=services",
        ]
    );
}

#[test]
fn in_the_stage_of_a_chart_its_workloads_follow_its_hooks() {
    let mut staged = chart("a");
    staged.stage = Some("workloads".to_owned());
    let documents = json!([
        document("templates/web.yaml", &deployment("web")),
        document("templates/a.yaml", &map("a")),
        hook(&["post-install"], 0, &job("after")),
        hook(&["pre-install"], 0, &job("before")),
    ]);
    let (one, _) = rendered(
        release(vec![staged]),
        &[],
        Ok(with_charts(&json!([{"documents": documents}]))),
    );
    assert!(!one.failed(), "{:?}", shown(&one));
    assert_eq!(
        marks(&one),
        [
            "ConfigMap/shop/a stage=workloads",
            "Deployment.apps/shop/web after=Job/before stage=workloads",
            "Job.batch/shop/after after=Deployment/web run=once stage=workloads",
            "Job.batch/shop/before run=once stage=workloads",
        ]
    );
    assert_eq!(annotations::STAGE, "pleach.dev/stage");
}

#[test]
fn findings_of_charts_have_places_and_hints() {
    let call = json!({"function": "randAlphaNum", "template": "templates/s.yaml", "line": 8});
    for (name, answer, expected) in [
        (
            "a template error",
            json!({"errors": [{"code": "chart-template", "message": "nil pointer", "template": "templates/a.yaml", "line": 3}]}),
            "chart-template charts/a/templates/a.yaml:3: nil pointer",
        ),
        (
            "a message with a secret",
            json!({"errors": [{"code": "chart-template", "message": "hunter22hunter is too short", "template": "templates/a.yaml", "line": 3}]}),
            "chart-template charts/a/templates/a.yaml:3: the message of the error is not shown, because it has a secret value",
        ),
        (
            "an unknown code",
            json!({"errors": [{"code": "other", "message": "m"}]}),
            "chart-template manifests/web/v1.0.0/version.yaml:3: m",
        ),
        (
            "a dependency",
            json!({"errors": [{"code": "chart-dependency-missing", "message": "no sub"}]}),
            "chart-dependency-missing manifests/web/v1.0.0/version.yaml:3: no sub (copy it into the folder `charts` of the chart, for example with `helm dependency build`)",
        ),
        (
            "a lookup",
            json!({"lookups": [{"template": "templates/s.yaml", "line": 4, "apiVersion": "v1", "kind": "Secret", "namespace": "one", "name": "two"}]}),
            "chart-asks-cluster charts/a/templates/s.yaml:4: the chart asks the cluster with `lookup`: v1 Secret one two (`lookups: accept` of chart `a` answers that there is nothing)",
        ),
        (
            "a password",
            json!({"calls": [call], "irreproducible": [{"document": "templates/s.yaml", "index": 0, "field": ".data.password", "calls": [call]}]}),
            "chart-not-reproducible charts/a/templates/s.yaml:8: two renderings of the chart differ, in data.password of document 1: `randAlphaNum` at charts/a/templates/s.yaml:8 (give it a fixed value in the values of the chart, such as a password in an encrypted file)",
        ),
        (
            "no YAML",
            json!({"documents": [document("templates/a.yaml", "a: b: c\n")]}),
            "yaml charts/a/templates/a.yaml: the output of the template is not YAML: `:` is not allowed here; check the indentation, or put the string in quotes (line 1, column 5 of the output)",
        ),
        (
            "a fact of a release",
            json!({"usesRelease": [
                {"field": "IsUpgrade", "template": "templates/a.yaml", "line": 2},
                {"field": "IsInstall", "template": "templates/a.yaml", "line": 2},
            ]}),
            "chart-reads-release charts/a/templates/a.yaml:2: the chart reads .Release.IsUpgrade: to pleach, each rendering is a first installation",
        ),
        ("a harmless call", json!({"calls": [call]}), ""),
    ] {
        let mut own = release(vec![chart("a")]);
        own.values.merged = json!({"password": "hunter22hunter"});
        let schema = r#"{"properties": {"password": {"writeOnly": true}}}"#;
        let schema = ("manifests/web/v1.0.0/values.schema.json", schema);
        let (one, _) = rendered(own, &[schema], Ok(with_charts(&json!([answer]))));
        assert_eq!(shown(&one).join("\n"), expected, "{name}");
    }
}

#[test]
fn a_lookup_can_be_accepted() {
    let mut accepting = chart("a");
    accepting.lookups = true;
    let answer = json!([{"lookups": [{"kind": "Secret"}], "documents": [document("templates/a.yaml", &map("a"))]}]);
    let (one, requests) = rendered(release(vec![accepting]), &[], Ok(with_charts(&answer)));
    assert_eq!(shown(&one), Vec::<String>::new());
    assert_eq!(one.manifests.len(), 1);
    assert_eq!(requests[0]["charts"][0]["lookups"], true);
}

#[test]
fn without_a_program_the_release_has_an_error() {
    let missing = EnginesError::Missing("PATH".to_owned());
    let failed = EnginesError::Failed("(signal: 9)".to_owned());
    for (answer, expected) in [
        (
            Err(missing),
            "engines-missing manifests/web/v1.0.0/version.yaml:3: there is no `pleach-engines`: searched PATH (it is in the release archive; from source: `make engines`)",
        ),
        (
            Err(failed),
            "engines-failed manifests/web/v1.0.0/version.yaml:3: `pleach-engines` failed: (signal: 9)",
        ),
        (
            Ok(with_charts(&json!([]))),
            "engines-failed manifests/web/v1.0.0/version.yaml:3: `pleach-engines` failed: the answer has another format; it is of another version than pleach",
        ),
    ] {
        let (one, _) = rendered(release(vec![chart("a")]), &[], answer);
        assert_eq!(shown(&one), [expected]);
    }
}

#[test]
fn values_come_from_a_template_of_the_bundle() {
    let file = "manifests/web/v1.0.0/a.yaml.j2";
    let mut own = release(vec![chart("a")]);
    own.charts[0].values = ChartValues::File(file.to_owned());
    own.values.merged = json!({"size": 7});
    let answer = || Ok(with_charts(&json!([{}])));
    let text = "size: {{ values.size }}\nname: {{ release.name }}\nold: null\n";
    let (one, requests) = rendered(own.clone(), &[(file, text)], answer());
    assert_eq!(shown(&one), Vec::<String>::new());
    let values = json!({"size": 7, "name": "web", "old": null});
    assert_eq!(requests[0]["charts"][0]["values"], values);
    assert!(one.inputs.contains(&file.to_owned()));
    for (text, expected) in [
        (
            "- 1\n",
            "yaml manifests/web/v1.0.0/a.yaml.j2: the values of a chart are one map",
        ),
        (
            "a: {{ values.none }}\n",
            "template-undefined manifests/web/v1.0.0/a.yaml.j2:1: undefined value in `values.none` (give it a value, or use `| default(…)` or `is defined`; values are read from environments/test.yaml)",
        ),
    ] {
        let (one, requests) = rendered(own.clone(), &[(file, text)], answer());
        assert_eq!(shown(&one), [expected]);
        assert!(requests.is_empty(), "{text}");
    }
}

#[test]
fn values_are_checked_against_the_schema_of_the_chart() {
    let schema = r#"{"required": ["size", "host"], "properties": {"size": {"type": "integer"}, "host": {"type": "string"}}}"#;
    let file = ("charts/a/values.schema.json", schema);
    let defaults = ("charts/a/values.yaml", "host: x\n");
    let answer = || Ok(with_charts(&json!([{}])));
    let (one, _) = rendered(release(vec![chart("a")]), &[file, defaults], answer());
    assert_eq!(shown(&one), Vec::<String>::new());
    let (one, requests) = rendered(release(vec![chart("a")]), &[file], answer());
    assert_eq!(
        shown(&one),
        ["chart-schema manifests/web/v1.0.0/version.yaml:3: `values`: `host` is required"]
    );
    assert!(requests.is_empty());
    let remote = (
        "charts/a/values.schema.json",
        r#"{"$ref": "https://example.org/a.json"}"#,
    );
    let (one, _) = rendered(release(vec![chart("a")]), &[remote], answer());
    assert_eq!(
        shown(&one),
        [
            "chart-schema charts/a/values.schema.json:1: `$ref` points outside the file (put the definition into `$defs` and write `#/$defs/NAME`)"
        ]
    );
}

/// Program that a chart `b` ends.
struct Fragile;

impl Engines for Fragile {
    fn run(&self, request: &EngineRequest) -> Result<EngineAnswer, EnginesError> {
        let request = serde_json::to_value(request).unwrap();
        let charts = request["charts"].as_array().unwrap();
        if charts.iter().any(|chart| chart["name"] == "b") {
            return Err(EnginesError::Failed("(signal: 9)".to_owned()));
        }
        let one = json!({"documents": [document("templates/a.yaml", &map("a"))]});
        let answer = with_charts(&json!(vec![one; charts.len()]));
        Ok(serde_json::from_value(answer).unwrap())
    }
}

#[test]
fn a_chart_that_ends_the_program_fails_only_its_release() {
    let charts = ["a", "b"].map(|name| {
        (
            format!("charts/{name}/Chart.yaml"),
            format!("name: {name}\n"),
        )
    });
    let tree = KeyedTree::new(MemoryTree::new(charts), NoKeys).with_engines(Arc::new(Fragile));
    let other = ResolvedRelease {
        charts: vec![chart("b")],
        ..samples::release("other", &[], json!({}))
    };
    let environment = samples::environment(vec![release(vec![chart("a")]), other]);
    let table = KindTable::for_minor("1.36").unwrap();
    let all = render_environment(&tree, &environment, &table);
    assert_eq!(shown(&all[0]), Vec::<String>::new());
    assert_eq!(all[0].manifests.len(), 1);
    assert_eq!(
        shown(&all[1]),
        [
            "engines-failed manifests/web/v1.0.0/version.yaml:3: `pleach-engines` failed: (signal: 9)"
        ]
    );
}

#[test]
fn another_digest_is_refused() {
    let mut own = release(vec![chart("a")]);
    own.charts[0].digest = Some(format!("sha256:{}", "0".repeat(64)));
    let (one, requests) = rendered(own, &[], Ok(with_charts(&json!([{}]))));
    let shown = shown(&one);
    assert!(
        shown[0].starts_with(
            "chart-digest manifests/web/v1.0.0/version.yaml:3: charts/a has another digest: sha256:"
        ),
        "{shown:?}"
    );
    assert!(requests.is_empty());
}

#[test]
fn an_overlay_gives_objects_and_findings() {
    let mut own = release(Vec::new());
    own.kustomize = Some(KustomizeSource {
        path: "manifests/web/v1.0.0/overlay".to_owned(),
        bases: vec!["charts/a".to_owned()],
        excluded: vec!["manifests/web/v1.0.0/version.yaml".to_owned()],
        origin: Origin::new("manifests/web/v1.0.0/version.yaml", 3),
    });
    let files = [
        ("manifests/web/v1.0.0/version.yaml", "kustomize: {}\n"),
        (
            "manifests/web/v1.0.0/overlay/kustomization.yaml",
            "resources: []\n",
        ),
    ];
    let text = format!("{}---\n{}", map("a"), map("b"));
    let answer =
        |overlay: Value| Ok(json!({"format": 1, "engines": "1", "kustomizations": [overlay]}));
    let (one, requests) = rendered(own.clone(), &files, answer(json!({"text": text})));
    assert_eq!(marks(&one), ["ConfigMap/shop/a", "ConfigMap/shop/b"]);
    let request = &requests[0]["kustomizations"][0];
    assert_eq!(request["path"], "manifests/web/v1.0.0/overlay");
    let sent: Vec<&String> = request["files"].as_object().unwrap().keys().collect();
    assert_eq!(
        sent,
        [
            "charts/a/Chart.yaml",
            "manifests/web/v1.0.0/overlay/kustomization.yaml"
        ]
    );
    let remote = json!({"errors": [{
        "code": "kustomize-remote", "message": "https://example.org is an address",
        "file": "manifests/web/v1.0.0/overlay/kustomization.yaml", "line": 1, "field": "resources[0]",
    }]});
    let (one, _) = rendered(own, &files, answer(remote));
    assert_eq!(
        shown(&one),
        [
            "kustomize-remote manifests/web/v1.0.0/overlay/kustomization.yaml:1: `resources[0]`: https://example.org is an address (copy the files into the repository, and list their folder under `bases`)"
        ]
    );
}

#[test]
fn another_version_of_the_program_is_refused_if_the_repository_says_so() {
    let shown_with = |requires: &str| {
        let file = format!("apiVersion: pleach.dev/v1alpha1\nkind: Repository\nid: a\n{requires}");
        let answer = Ok(with_charts(&json!([{}])));
        shown(&rendered(release(vec![chart("a")]), &[("pleach.yaml", &file)], answer).0)
    };
    for requires in [
        "",
        "requires: \">=7\"\n",
        "requires: {engines: \"=1.0\"}\n",
        "requires: {pleach: \">=7\", engines: \">=0.9, <2\"}\n",
    ] {
        assert_eq!(shown_with(requires), Vec::<String>::new(), "{requires}");
    }
    assert_eq!(
        shown_with("requires: {engines: \"=1.2\"}\n"),
        [
            "engines-version pleach.yaml:4: this repository requires `pleach-engines` =1.2, but this is 1.0.0 (it is in the release archive of pleach; from source: `make engines`)"
        ]
    );
}
