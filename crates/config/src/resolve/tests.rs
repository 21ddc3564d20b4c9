//! Tests with in-memory repositories, and their findings.

mod bundles;
mod charts;
mod depending;
mod environments;
mod following;
mod later;
mod reading;
mod rules;
mod sequence;
mod uninstall;

use serde_json::json;

use super::*;
use crate::{PatchChange, environments};
use pleach_model::tree::MemoryTree;

const PLEACH: &str = "apiVersion: pleach.dev/v1alpha1\nkind: Repository\nid: fleet\n";
const BUNDLE: &str = "apiVersion: pleach.dev/v1alpha1\nkind: Bundle\n";
const VERSION: &str = "apiVersion: pleach.dev/v1alpha1\nkind: BundleVersion\n";
const ENVIRONMENT: &str = "apiVersion: pleach.dev/v1alpha1\nkind: Environment\n";
const MANIFEST: &str = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\n";

/// Builds a repository with a bundle `web` in two versions and a bundle `app` without versions.
/// `files` are added or replaced. pleach's own files get their header.
fn tree(files: &[(&str, &str)]) -> MemoryTree {
    let mut all: BTreeMap<String, String> = [
        ("pleach.yaml", PLEACH.to_owned()),
        ("environments/prod.yaml", ENVIRONMENT.to_owned()),
        ("manifests/web/bundle.yaml", BUNDLE.to_owned()),
        ("manifests/web/v1.0.0/web.yaml", MANIFEST.to_owned()),
        ("manifests/web/v1.10.0/web.yaml", MANIFEST.to_owned()),
        ("manifests/app/bundle.yaml", BUNDLE.to_owned()),
        ("manifests/app/app.yaml.j2", MANIFEST.to_owned()),
    ]
    .into_iter()
    .map(|(path, text)| (path.to_owned(), text))
    .collect();
    for (path, text) in files {
        let header = match path.rsplit('/').next() {
            _ if text.contains("apiVersion:") || text.is_empty() => "",
            _ if path.starts_with("environments/") => ENVIRONMENT,
            Some("pleach.yaml") => PLEACH,
            Some("bundle.yaml") => BUNDLE,
            Some("version.yaml") => VERSION,
            _ => "",
        };
        all.insert((*path).to_owned(), format!("{header}{text}"));
    }
    MemoryTree::new(
        all.into_iter()
            .map(|(path, text)| (path, text.into_bytes())),
    )
}

fn version() -> Version {
    Version::new(0, 1, 0)
}

fn resolved(files: &[(&str, &str)]) -> ResolvedEnvironment {
    resolve(&tree(files), "prod", &version()).unwrap()
}

fn shown(findings: &[Finding]) -> Vec<String> {
    findings
        .iter()
        .map(|finding| {
            let hint = finding.hint.clone().map(|hint| format!(" ({hint})"));
            format!("{finding}{}", hint.unwrap_or_default())
        })
        .collect()
}

fn errors(files: &[(&str, &str)]) -> Vec<String> {
    let findings = resolve(&tree(files), "prod", &version()).unwrap_err();
    let errors: Vec<Finding> = findings.into_iter().filter(Finding::is_error).collect();
    assert!(errors.iter().all(|error| error.kind == Kind::Repository));
    shown(&errors)
}

const PROD: &str = "environments/prod.yaml";

#[test]
#[expect(
    clippy::too_many_lines,
    reason = "one repository, checked in all aspects"
)]
fn a_resolved_release_is_complete() {
    let environment = resolved(&[
        (
            PROD,
            "\
cluster: {context: production, id: 6f0c, kubernetes: \"1.36\"}
values: {region: eu}
prune: {max: 20%}
protect: [{group: infra.example.org, kind: \"*\"}]
consent:
  - {action: delete, kind: CustomResourceDefinition, name: a.example.org, release: site, from: v1.0.0, to: v1.10.0}
releases:
  - name: site
    bundle: web
    version: v1.10.0
    namespace: web
    createNamespace: false
    values: {replicas: 3}
    patches: [{target: {kind: ConfigMap, name: a}, merge: {data: {k: null}}}]
    adopt: [kubectl]
    timeout: 1h30m
  - bundle: app
",
        ),
        (
            "manifests/web/bundle.yaml",
            "description: web\nvalues: {replicas: 1, port: 80}\nkubernetes: \">=1.30\"\nupgradesFrom: \">=1.0.0, <2.0.0\"\ndirection: forward\nruntimeObjects: [{kind: APIService, service: api}]\npatches:\n  - target: {kind: ConfigMap}\n    json: [{op: remove, path: /data/x}]\n",
        ),
        (
            "manifests/web/v1.10.0/version.yaml",
            "values: {port: 8080}\nruntimeObjects: [{kind: Secret, name: certs, optional: true}]\n",
        ),
        ("manifests/web/v1.10.0/deep/v2/more.yml", MANIFEST),
        ("manifests/web/v1.10.0/_draft.yaml", MANIFEST),
        ("manifests/web/v1.10.0/.hidden/x.yaml", MANIFEST),
        ("manifests/web/v1.10.0/README.md", "text"),
    ]);
    assert_eq!(environment.repository, "fleet");
    assert_eq!(environment.origin, Origin::new(PROD, 1));
    assert_eq!(
        environment.cluster,
        ClusterRef {
            context: Some("production".to_owned()),
            id: Some("6f0c".to_owned()),
            kubernetes: Some("1.36".to_owned()),
        }
    );
    assert_eq!(environment.prune.max.cap(100), 20);
    assert_eq!(environment.protect.len(), 1);
    assert_eq!(environment.consent.len(), 1);
    assert_eq!(
        shown(&environment.findings),
        [
            "manifests/web/v1.10.0/README.md: not rendered: the name does not end in .yaml, .yml or .json, with or without .j2"
        ]
    );

    let [site, app] = &environment.releases[..] else {
        unreachable!()
    };
    assert_eq!(site.name.to_string(), "prod.site");
    assert_eq!(site.origin, Origin::new(PROD, 10));
    assert_eq!(site.bundle, "web");
    assert_eq!(site.version.as_deref(), Some("v1.10.0"));
    assert_eq!(site.bundle_folder, "manifests/web");
    assert_eq!(site.folder, "manifests/web/v1.10.0");
    assert_eq!(
        site.files,
        [
            "manifests/web/v1.10.0/deep/v2/more.yml",
            "manifests/web/v1.10.0/web.yaml"
        ]
    );
    assert_eq!(site.namespace.as_deref(), Some("web"));
    assert!(!site.create_namespace);
    assert_eq!(
        site.values.merged,
        json!({"replicas": 3, "port": 8080, "region": "eu"})
    );
    let layers: Vec<&str> = site
        .values
        .origins
        .values()
        .map(|source| source.layer.as_str())
        .collect();
    assert_eq!(layers, ["version", "environment", "release"]);
    assert_eq!(site.patches.len(), 2);
    assert!(matches!(site.patches[0].change, PatchChange::Json(_)));
    assert_eq!(
        site.patches[0].origin,
        Origin::new("manifests/web/bundle.yaml", 10)
    );
    assert_eq!(
        site.patches[1].change,
        PatchChange::Merge(json!({"data": {"k": null}}))
    );
    assert_eq!(site.patches[1].origin, Origin::new(PROD, 16));
    assert_eq!(site.adopt, ["kubectl"]);
    assert_eq!(site.timeout, SignedDuration::from_mins(90));
    // The key in the version replaces that of the bundle.
    assert_eq!(site.runtime_objects.len(), 1);
    assert_eq!(site.runtime_objects[0].name.as_deref(), Some("certs"));
    assert!(
        site.versions
            .kubernetes
            .as_ref()
            .unwrap()
            .matches(&Version::new(1, 36, 0))
    );
    assert!(site.versions.upgrades_from.is_some());
    assert!(site.versions.direction.is_some());

    assert_eq!(app.name.release, "app");
    assert_eq!(app.version, None);
    assert_eq!(app.folder, "manifests/app");
    assert_eq!(app.files, ["manifests/app/app.yaml.j2"]);
    assert_eq!(app.timeout, TIMEOUT);
    assert!(app.create_namespace);
}

#[test]
fn all_errors_of_all_files_come_at_once() {
    let found = errors(&[
        (
            PROD,
            "\
clutser: {context: a}
cluster: {kubernetes: 1.36}
releases:
  - bundle: web
    versoin: v1.0.0
    timeout: soon
",
        ),
        ("pleach.yaml", "requires: \">=0.2\"\n"),
    ]);
    assert_eq!(
        found,
        [
            "environments/prod.yaml:3: unknown field `clutser` (did you mean `cluster`?)",
            "environments/prod.yaml:4: `cluster.kubernetes`: expected a string, found a number (put it in quotes)",
            "environments/prod.yaml:7: `releases[0]`: unknown field `versoin` (did you mean `version`?)",
            "environments/prod.yaml:8: `releases[0].timeout`: `soon` is not a duration such as `10m`, `90s` or `1h30m`",
            "pleach.yaml:4: this repository requires pleach >=0.2, but this is 0.1.0 (install a version of pleach within that range)",
        ]
    );
}

#[test]
fn state_is_stored_in_a_release_or_a_namespace() {
    let store = |text: &str| {
        let environment = resolved(&[(PROD, text)]);
        for release in &environment.releases {
            assert_eq!(release.store, environment.store);
        }
        environment.store.spelled()
    };
    let releases = "releases: [{bundle: app}]\n";
    assert_eq!(store(releases), "{kind: Release}");
    assert_eq!(
        store(&format!(
            "{releases}state: {{kind: ConfigMap, namespace: team-a}}"
        )),
        "{kind: ConfigMap, namespace: team-a}"
    );
    let error = |text: &str| errors(&[(PROD, text)]).join("\n");
    let found = error("state: {kind: ConfigMap}");
    assert!(
        found.starts_with("environments/prod.yaml:3: state of kind ConfigMap needs `namespace`"),
        "{found}"
    );
    let found = error("state: {kind: Release, namespace: a}");
    assert!(
        found.starts_with(
            "environments/prod.yaml:3: state of kind Release has no namespace of its own"
        ),
        "{found}"
    );
    assert!(
        error("state: {kind: ConfigMap, namespace: A}")
            .contains("is not a valid name for a namespace")
    );
}
