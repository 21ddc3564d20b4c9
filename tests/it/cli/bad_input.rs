//! Problems in a repository are reported with file, line, reason and hint, by lint and render
//! alike, with exit code 3.

use super::Folder;

/// Valid repository, whose files the cases replace.
const FILES: [(&str, &str); 4] = [
    ("pleach.yaml", REPOSITORY),
    ("environments/dev.yaml", ENVIRONMENT),
    ("manifests/web/bundle.yaml", BUNDLE),
    ("manifests/web/v1.0.0/web.yaml", WEB),
];

const REPOSITORY: &str = "apiVersion: pleach.dev/v1alpha1\nkind: Repository\nid: fleet\n";

const ENVIRONMENT: &str = "\
apiVersion: pleach.dev/v1alpha1
kind: Environment
cluster: {kubernetes: \"1.36\"}
releases:
  - bundle: web
    version: v1.0.0
    namespace: web
";

const BUNDLE: &str = "apiVersion: pleach.dev/v1alpha1\nkind: Bundle\n";

const WEB: &str = "\
apiVersion: v1
kind: ConfigMap
metadata:
  name: web
data:
  theme: dark
";

/// Command that reports the finding.
#[derive(Clone, Copy, PartialEq)]
enum Found {
    /// Any command that reads the files.
    Always,
    /// Only lint, because the server would refuse it.
    ByLint,
}

struct Case {
    name: &'static str,
    files: Vec<(&'static str, String)>,
    found: Found,
    /// Printed finding with excerpt and hint.
    says: &'static str,
}

fn case(
    name: &'static str,
    path: &'static str,
    text: impl Into<String>,
    says: &'static str,
) -> Case {
    Case {
        name,
        files: vec![(path, text.into())],
        found: Found::Always,
        says,
    }
}

impl Case {
    fn and(mut self, path: &'static str, text: impl Into<String>) -> Self {
        self.files.push((path, text.into()));
        self
    }

    fn by_lint(mut self) -> Self {
        self.found = Found::ByLint;
        self
    }
}

const DEV: &str = "environments/dev.yaml";
const BUNDLE_FILE: &str = "manifests/web/bundle.yaml";
const WEB_FILE: &str = "manifests/web/v1.0.0/web.yaml";
const TEMPLATE: &str = "manifests/web/v1.0.0/more.yaml.j2";

fn yaml() -> Vec<Case> {
    vec![
        case("broken YAML", WEB_FILE, "kind: ConfigMap\nmetadata: {name: web\n", "\
manifests/web/v1.0.0/web.yaml:2: error: unclosed bracket '{' (column 11)
  2 | metadata: {name: web
    |           ^^^^^
"),
        case("a tab", WEB_FILE, WEB.replace("  theme", "\ttheme"), "\
manifests/web/v1.0.0/web.yaml:6: error: YAML does not allow tabs here; use spaces (column 2)
  6 | \ttheme: dark
    | \t^^^^^
"),
        case("a tab after a key", WEB_FILE, WEB.replace("data:", "data:\t"), "\
manifests/web/v1.0.0/web.yaml:5: error: YAML does not allow tabs here; use spaces (column 6)
  5 | data:
"),
        case("a duplicate key", WEB_FILE, format!("{WEB}  theme: light\n"), "\
manifests/web/v1.0.0/web.yaml:7: error: duplicate key `theme` (column 3)
  7 |   theme: light
    |   ^^^^^
"),
        case("a template in a plain file", WEB_FILE, WEB.replace("dark", "{{ x }}"), "\
manifests/web/v1.0.0/web.yaml:6: error: a map cannot be a key (column 11)
  6 |   theme: {{ x }}
    |           ^
  hint: only files whose name ends in .j2 are templates
"),
        case("a tag in another line of a broken file", WEB_FILE, format!("{WEB}  a: {{{{ x }}}}\n").replace("  theme: dark", "   theme: dark\n  light: a"), "\
manifests/web/v1.0.0/web.yaml:7: error: while parsing a block mapping, did not find expected key (column 3)
  7 |   light: a
"),
        case("broken YAML of our own", DEV, "releases: [\n", "\
environments/dev.yaml:1: error: unclosed bracket '['
  1 | releases: [
"),
    ]
}

fn own_files() -> Vec<Case> {
    vec![
        case("an unknown field of the repository", "pleach.yaml", format!("{REPOSITORY}requres: x\n"), "\
pleach.yaml:4: error: unknown field `requres`
  4 | requres: x
  hint: did you mean `requires`?
"),
        case("an unknown field of an environment", DEV, ENVIRONMENT.replace("releases", "relaeses"), "\
environments/dev.yaml:4: error: unknown field `relaeses`
  4 | relaeses:
  hint: did you mean `releases`?
"),
        case("an unknown field of a release", DEV, ENVIRONMENT.replace("namespace", "namspace"), "\
environments/dev.yaml:7: error: `releases[0]`: unknown field `namspace`
  7 |     namspace: web
  hint: did you mean `namespace`?
"),
        case("an unknown field of a bundle", BUNDLE_FILE, format!("{BUNDLE}patchs: []\n"), "\
manifests/web/bundle.yaml:3: error: unknown field `patchs`
  3 | patchs: []
  hint: did you mean `patches`?
"),
        case("an unknown field of a version", "manifests/web/v1.0.0/version.yaml", "apiVersion: pleach.dev/v1alpha1\nkind: BundleVersion\nvalus: {}\n", "\
manifests/web/v1.0.0/version.yaml:3: error: unknown field `valus`
  3 | valus: {}
  hint: did you mean `values`?
"),
        case("another kind of file", DEV, REPOSITORY, "\
environments/dev.yaml:2: error: expected kind `Environment`, found `Repository`
  2 | kind: Repository
  hint: a file of this kind begins with `apiVersion: pleach.dev/v1alpha1` and `kind: Environment`
"),
        case("a later format", BUNDLE_FILE, "apiVersion: pleach.dev/v9\nkind: Bundle\n", "\
manifests/web/bundle.yaml:1: error: this version of pleach does not support the format `pleach.dev/v9`
  1 | apiVersion: pleach.dev/v9
  hint: a file of this kind begins with `apiVersion: pleach.dev/v1alpha1` and `kind: Bundle`
"),
        case("a later pleach", "pleach.yaml", format!("{REPOSITORY}requires: '>=9'\n"), "\
pleach.yaml:4: error: this repository requires pleach >=9, but this is 0.1.0
  4 | requires: '>=9'
  hint: install a version of pleach within that range
"),
        case("no id", "pleach.yaml", "apiVersion: pleach.dev/v1alpha1\nkind: Repository\n", "\
pleach.yaml:1: error: `id` is required
  1 | apiVersion: pleach.dev/v1alpha1
"),
        case("a bad id", "pleach.yaml", REPOSITORY.replace("fleet", "my fleet"), "\
pleach.yaml:3: error: `id` must be a name without spaces
  3 | id: my fleet
"),
        case("a bad duration", DEV, format!("{ENVIRONMENT}    timeout: soon\n"), "\
environments/dev.yaml:8: error: `releases[0].timeout`: `soon` is not a duration such as `10m`, `90s` or `1h30m`
  8 |     timeout: soon
"),
        case("a bad range", BUNDLE_FILE, format!("{BUNDLE}upgradesFrom: newest\n"), "\
manifests/web/bundle.yaml:3: error: `upgradesFrom`: `newest` is not a range of versions such as `>=0.11.0, <0.12.0`
  3 | upgradesFrom: newest
"),
        case("a bad version of Kubernetes", DEV, ENVIRONMENT.replace("\"1.36\"", "1.x"), "\
environments/dev.yaml:3: error: `cluster.kubernetes`: `1.x` is not a version of Kubernetes such as `1.36`
  3 | cluster: {kubernetes: 1.x}
"),
        case("a name that is no DNS label", DEV, format!("{ENVIRONMENT}    name: Web_1\n"), "\
environments/dev.yaml:8: error: `Web_1` is not a valid name for a release
  8 |     name: Web_1
  hint: use a DNS label: lower-case letters, digits and -, at most 63 characters
"),
        case("no such bundle", DEV, ENVIRONMENT.replace("bundle: web", "bundle: wbe"), "\
environments/dev.yaml:5: error: there is no bundle `wbe`: no folder manifests/wbe
  5 |   - bundle: wbe
  hint: did you mean `web`?
"),
        case("no such version", DEV, ENVIRONMENT.replace("v1.0.0", "v1.0.1"), "\
environments/dev.yaml:6: error: there is no version `v1.0.1` of manifests/web; known versions: v1.0.0
  6 |     version: v1.0.1
  hint: did you mean `v1.0.0`?
"),
        case("a release twice", DEV, format!("{ENVIRONMENT}  - {{bundle: web, version: v1.0.0}}\n"), "\
environments/dev.yaml:8: error: a second release `web`; the first is at environments/dev.yaml:5
  8 |   - {bundle: web, version: v1.0.0}
  hint: give one of them another `name`
"),
        case("environments that extend each other", DEV, format!("{ENVIRONMENT}extends: _a.yaml\n"), "\
environments/_a.yaml:3: error: environments extend each other: dev.yaml → _a.yaml → dev.yaml
  3 | extends: dev.yaml
").and("environments/_a.yaml", "apiVersion: pleach.dev/v1alpha1\nkind: Environment\nextends: dev.yaml\n"),
        case("an extended file that is not there", DEV, format!("{ENVIRONMENT}extends: _eu.yaml\n"), "\
environments/dev.yaml:8: error: `extends`: there is no file environments/_eu.yaml
  8 | extends: _eu.yaml
"),
        case("a consent that is bound to nothing", DEV, format!("{ENVIRONMENT}consent:\n  - {{action: prune, release: web, count: 40}}\n"), "\
environments/dev.yaml:9: error: `from` is required: a consent is bound to one change
  9 |   - {action: prune, release: web, count: 40}
"),
    ]
}

fn values_and_templates() -> Vec<Case> {
    let schema =
        r#"{"properties": {"replicas": {"type": "integer"}}, "additionalProperties": false}"#;
    vec![
        case("a template with an error", TEMPLATE, "a: 1\n{% if %}\n", "\
manifests/web/v1.0.0/more.yaml.j2:2: error: syntax error: unexpected end of block
  2 | {% if %}
"),
        case("an undefined value", TEMPLATE, "a: {{ values.repicas }}\n", "\
manifests/web/v1.0.0/more.yaml.j2:1: error: undefined value in `values.repicas`
  1 | a: {{ values.repicas }}
  hint: give it a value, or use `| default(…)` or `is defined`"),
        case("a list where text is meant", TEMPLATE, "a: {{ [1, 2] }}\n", "\
manifests/web/v1.0.0/more.yaml.j2:1: error: "),
        case("a template that writes no YAML", TEMPLATE, "{# x #}\na: b: c\n", "\
manifests/web/v1.0.0/more.yaml.j2:2: error: the output of the template is not YAML: `:` is not allowed here; check the indentation, or put the string in quotes (line 1, column 5 of the output)
  2 | a: b: c
"),
        case("a value that the schema refuses", DEV, format!("{ENVIRONMENT}    values:\n      replicas: many\n"), "\
environments/dev.yaml:9: error: `values.replicas`: the value is not of type \"integer\"
  9 |       replicas: …
").and("manifests/web/v1.0.0/values.schema.json", schema),
        case("a value that the schema does not name", BUNDLE_FILE, format!("{BUNDLE}values:\n  replcas: 2\n"), "\
manifests/web/bundle.yaml:4: error: `values.replcas`: the schema does not declare this value
  4 |   replcas: …
  hint: did you mean `replicas`?
").and("manifests/web/v1.0.0/values.schema.json", schema),
        case("a schema that is none", "manifests/web/v1.0.0/values.schema.json", "{\n  \"type\": \"map\"\n}", "\
manifests/web/v1.0.0/values.schema.json:2: error: not a valid JSON Schema: `/type`: "),
        case("a schema that leads elsewhere", "manifests/web/v1.0.0/values.schema.json", "{\n  \"$ref\": \"https://example.org/x\"\n}", "\
manifests/web/v1.0.0/values.schema.json:2: error: `$ref` points outside the file
  2 |   \"$ref\": \"https://example.org/x\"
  hint: put the definition into `$defs` and write `#/$defs/NAME`
"),
    ]
}

fn patches() -> Vec<Case> {
    let patch = |patch: &str| {
        format!("{BUNDLE}patches:\n  - target: {{kind: ConfigMap, name: web}}\n    {patch}\n")
    };
    vec![
        case("a patch of what is not there", BUNDLE_FILE, patch("json: [{op: remove, path: /data/none}]"), "\
manifests/web/bundle.yaml:4: error: operation 0 of the patch (remove /data/none) failed: "),
        case("a patch that is for nothing", BUNDLE_FILE, patch("merge: {}").replace("name: web", "name: wbe"), "\
manifests/web/bundle.yaml:4: error: the patch is for ConfigMap/wbe, but the release has no such object
  4 |   - target: …
  hint: correct its target, or remove it if upstream no longer needs it
"),
        case("a patch of two forms", BUNDLE_FILE, patch("merge: {}\n    json: []"), "\
manifests/web/bundle.yaml:4: error: a patch has exactly one of `json`, `merge` and `patch`
"),
        case("a patch with an unknown operation", BUNDLE_FILE, patch("json: [{op: delete, path: /data}]"), "\
manifests/web/bundle.yaml:5: error: `patches[0].json[0]`: `delete` is not one of add, remove, replace, move, copy, test
"),
    ]
}

fn manifests() -> Vec<Case> {
    vec![
        case("an object of two releases", DEV, format!("{ENVIRONMENT}  - {{bundle: web, version: v1.0.0, namespace: web, name: again}}\n"), "\
manifests/web/v1.0.0/web.yaml:1: error: the object is also in release web, at manifests/web/v1.0.0/web.yaml:1
  1 | apiVersion: v1
  object: ConfigMap/web/web
"),
        case("an object twice", WEB_FILE, format!("{WEB}---\n{}", WEB.replace("dark", "light")), "\
manifests/web/v1.0.0/web.yaml:8: error: the object is also at manifests/web/v1.0.0/web.yaml:1, with other content: .data.theme
  8 | apiVersion: v1
  object: ConfigMap/web/web
  hint: remove one of them; if you cannot edit the file, set these fields with `patches` of the bundle or the release: a patch changes both, and equal objects count once
"),
        case("a generated name", WEB_FILE, WEB.replace("name: web", "generateName: web-"), "\
manifests/web/v1.0.0/web.yaml:4: error: metadata.generateName creates another object on each apply; it is allowed only for a Job with pleach.dev/run: once
  4 |   generateName: web-
"),
        case("a label of ours", WEB_FILE, WEB.replace("  name: web", "  name: web\n  labels: {applyset.kubernetes.io/part-of: x}"), "\
manifests/web/v1.0.0/web.yaml:5: error: label applyset.kubernetes.io/part-of is reserved for pleach
  5 |   labels: {applyset.kubernetes.io/part-of: x}
  object: ConfigMap/web/web
  hint: remove it from the manifest
"),
        case("a label that is no text", WEB_FILE, WEB.replace("  name: web", "  name: web\n  labels: {on: yes}"), "\
manifests/web/v1.0.0/web.yaml:5: error: metadata.labels `true` is a boolean, not a string
  5 |   labels: {on: yes}
  object: ConfigMap/web/web
  hint: quote it
"),
        case("no namespace", DEV, ENVIRONMENT.replace("    namespace: web\n", ""), "\
manifests/web/v1.0.0/web.yaml:1: error: ConfigMap web has no namespace, and the release has no default
  1 | apiVersion: v1
  hint: set `namespace` in release web
"),
        case("a name that no object can have", WEB_FILE, WEB.replace("name: web", "name: Web"), "\
manifests/web/v1.0.0/web.yaml:4: error: metadata.name must contain only lower-case letters, digits, `-` and `.`
  4 |   name: Web
"),
        case("no object at all", WEB_FILE, "- 1\n", "\
manifests/web/v1.0.0/web.yaml:1: error: the document is a list, not an object with apiVersion and kind
  1 | - 1
"),
        case("a version that is gone", WEB_FILE, "apiVersion: extensions/v1beta1\nkind: Ingress\nmetadata: {name: web}\n", "\
manifests/web/v1.0.0/web.yaml:1: error: Ingress web (extensions/v1beta1) is not served by Kubernetes 1.36: it was removed in 1.22
  1 | apiVersion: extensions/v1beta1
  hint: Ingress is served as networking.k8s.io/v1
"),
        case("an unknown field", WEB_FILE, format!("{WEB}imutable: true\n"), "\
manifests/web/v1.0.0/web.yaml:7: error: `imutable` is not a field of ConfigMap
  7 | imutable: true
    | ^^^^^^^^
  object: ConfigMap/web/web
  hint: did you mean `immutable`?
").by_lint(),
        case("a value of another type", WEB_FILE, WEB.replace("dark", "1"), "\
manifests/web/v1.0.0/web.yaml:6: error: `data.theme`: expected a string, found a number
  6 |   theme: 1
    |   ^^^^^
  object: ConfigMap/web/web
  hint: put it in quotes
").by_lint(),
        case("a kind that a definition has in another version", WEB_FILE, "\
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: foos.example.org}
spec:
  group: example.org
  scope: Namespaced
  names: {kind: Foo, plural: foos}
  versions: [{name: v1, served: true, storage: true, schema: {openAPIV3Schema: {type: object}}}]
---
apiVersion: example.org/v2
kind: Foo
metadata: {name: a}
", "\
manifests/web/v1.0.0/web.yaml:10: error: Foo a (example.org/v2) is not served by its CRD
  10 | apiVersion: example.org/v2
  hint: Foo is served as example.org/v1
"),
        case("a Secret that is not base64, whose value is not shown", WEB_FILE, "apiVersion: v1\nkind: Secret\nmetadata: {name: a}\ndata:\n  key: hunter2!\n", "\
manifests/web/v1.0.0/web.yaml:5: error: "),
        case("a kustomization", "manifests/web/v1.0.0/kustomization.yaml", "resources: []\n", "\
manifests/web/v1.0.0/kustomization.yaml: error: no bundle.yaml or version.yaml names this kustomization: the files beside it would be rendered without it
  hint: write `kustomize: {path: FOLDER}` with its folder, relative to that of the version
"),
        case("a chart", "manifests/web/v1.0.0/Chart.yaml", "name: x\n", "\
manifests/web/v1.0.0/Chart.yaml: error: no bundle.yaml or version.yaml names this chart: the files beside it use another template language
  hint: write `charts: [{path: FOLDER}]` with its folder, relative to that of the version
"),
        case("a file of ours among manifests", "manifests/web/v1.0.0/bundle.yaml", BUNDLE, "\
manifests/web/v1.0.0/bundle.yaml:1: error: a pleach file is among the manifests
"),
        case("a pointer of git LFS", WEB_FILE, "version https://git-lfs.github.com/spec/v1\noid x\n", "\
manifests/web/v1.0.0/web.yaml: error: the file cannot be read: it is a git LFS pointer, and LFS is not supported; keep the file itself in git
"),
    ]
}

#[test]
fn bad_input_is_said_with_place_reason_and_way_out() {
    let cases: Vec<Case> = [
        yaml(),
        own_files(),
        values_and_templates(),
        patches(),
        manifests(),
    ]
    .into_iter()
    .flatten()
    .collect();
    assert!(cases.len() >= 50, "{}", cases.len());
    let mut wrong = Vec::new();
    for case in cases {
        let folder = Folder::with(&FILES);
        for (path, text) in &case.files {
            folder.write(path, text);
        }
        let lint = folder.run(&["lint"]);
        let mut runs = vec![("lint", lint.code, lint.stdout)];
        if case.found == Found::Always {
            let render = folder.run(&["render", "dev"]);
            runs.push(("render", render.code, render.stderr));
        }
        for (command, code, text) in runs {
            if code != 3 || !text.contains(case.says) {
                wrong.push(format!(
                    "{} ({command}, exit {code}):\n{}\nis not in:\n{text}",
                    case.name, case.says
                ));
            }
            assert!(!text.contains("hunter2"), "{}", case.name);
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n----\n"));
}

#[test]
fn the_repository_of_the_cases_is_right() {
    let run = Folder::with(&FILES).run(&["lint"]);
    assert_eq!(
        (run.code, run.stdout.as_str(), run.stderr.as_str()),
        (0, "", "no errors, no warnings in environment dev\n")
    );
}

#[test]
fn files_that_are_no_text_and_links_are_named() {
    let folder = Folder::with(&FILES);
    let path = folder.path().join("manifests/web/v1.0.0/more.yaml");
    std::fs::write(&path, b"a: \xff\n").unwrap();
    std::os::unix::fs::symlink("/etc/hostname", path.with_file_name("link.yaml")).unwrap();
    let run = folder.run(&["lint"]);
    assert_eq!(run.code, 3);
    for says in [
        "manifests/web/v1.0.0/link.yaml: error: symbolic links are not followed\n  hint: replace \
         the link with the file, or use a macro in templates/\n",
        "manifests/web/v1.0.0/more.yaml: error: the file is not UTF-8 text\n",
    ] {
        assert!(run.stdout.contains(says), "{}", run.stdout);
    }
}

#[test]
fn an_environment_that_is_not_there_is_named() {
    let folder = Folder::with(&FILES);
    for command in ["lint", "render"] {
        let run = folder.run(&[command, "dve"]);
        assert_eq!(run.code, 3);
        let text = run.stdout + &run.stderr;
        let says = "error: there is no environment `dve`\n  hint: did you mean `dev`?\n";
        assert!(text.contains(says), "{text}");
    }
}
