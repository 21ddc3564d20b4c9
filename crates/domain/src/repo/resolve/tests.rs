//! Repositories in memory, and what is said about them.

use rstest::rstest;
use serde_json::json;

use super::*;
use crate::repo::{MemoryTree, RecordingTree, TreeEntry, TreeError, TreeKind, environments};

const PLEACH: &str = "apiVersion: pleach.dev/v1alpha1\nkind: Repository\nid: fleet\n";
const BUNDLE: &str = "apiVersion: pleach.dev/v1alpha1\nkind: Bundle\n";
const VERSION: &str = "apiVersion: pleach.dev/v1alpha1\nkind: BundleVersion\n";
const ENVIRONMENT: &str = "apiVersion: pleach.dev/v1alpha1\nkind: Environment\n";
const MANIFEST: &str = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\n";

/// A repository with a bundle `web` in two versions, a bundle `app` without
/// versions, and what a test adds or replaces. Files of ours get their header.
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
fn everything_of_a_release_is_there() {
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
            "manifests/web/v1.10.0/README.md: not rendered: neither .yaml, .yml, .json nor one of these with .j2"
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
    // The version's key replaces the bundle's.
    assert_eq!(site.runtime_objects.len(), 1);
    assert_eq!(site.runtime_objects[0].name.as_deref(), Some("certs"));
    assert!(
        site.kubernetes
            .as_ref()
            .unwrap()
            .matches(&Version::new(1, 36, 0))
    );
    assert!(site.upgrades_from.is_some());
    assert!(site.direction.is_some());

    assert_eq!(app.name.release, "app");
    assert_eq!(app.version, None);
    assert_eq!(app.folder, "manifests/app");
    assert_eq!(app.files, ["manifests/app/app.yaml.j2"]);
    assert_eq!(app.timeout, TIMEOUT);
    assert!(app.create_namespace);
}

#[test]
fn extended_files_merge_and_keep_their_layers() {
    let environment = resolved(&[
        (
            "environments/_base.yaml",
            "\
values: {a: base, b: base, gone: 1}
cluster: {context: base, kubernetes: \"1.35\"}
protect: [{kind: Disk}]
releases:
  - {bundle: web, version: v1.0.0, namespace: web, values: {r: base, s: base}}
  - {bundle: app, timeout: 5m}
",
        ),
        (
            "environments/_eu.yaml",
            "extends: _base.yaml\nvalues: {a: eu}\nreleases:\n  - {name: web, values: {r: eu}}\n",
        ),
        (
            PROD,
            "\
extends: _eu.yaml
cluster: {kubernetes: \"1.36\", context: null}
values: {gone: null}
protect: [{kind: Volume}]
releases:
  - {name: web, version: v1.10.0, values: {b: release, t: 1}}
  - {name: second, bundle: web, version: v1.0.0}
",
        ),
    ]);
    assert_eq!(environment.cluster.context, None);
    assert_eq!(environment.cluster.kubernetes.as_deref(), Some("1.36"));
    assert_eq!(environment.protect.len(), 1);
    assert_eq!(environment.protect[0].kind, "Volume");
    let names: Vec<&str> = environment
        .releases
        .iter()
        .map(|release| release.name.release.as_str())
        .collect();
    assert_eq!(names, ["web", "app", "second"]);
    let web = &environment.releases[0];
    assert_eq!(web.version.as_deref(), Some("v1.10.0"));
    assert_eq!(web.namespace.as_deref(), Some("web"));
    assert_eq!(web.origin, Origin::new(PROD, 8));
    let rows: Vec<String> = web
        .values
        .show()
        .iter()
        .map(|row| format!("{}={} {}", row.path, row.value, row.source.layer))
        .collect();
    assert_eq!(
        rows,
        [
            "a=\"eu\" environment _eu.yaml",
            "b=\"release\" release",
            "r=\"eu\" release _eu.yaml",
            "s=\"base\" release _base.yaml",
            "t=1 release",
        ]
    );
    assert_eq!(
        environment.releases[1].timeout,
        SignedDuration::from_mins(5)
    );
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
            "environments/prod.yaml:4: `cluster.kubernetes`: expected a text, found a number (put it in quotes)",
            "environments/prod.yaml:7: `releases[0]`: unknown field `versoin` (did you mean `version`?)",
            "environments/prod.yaml:8: `releases[0].timeout`: `soon` is not a duration such as `10m`, `90s` or `1h30m`",
            "pleach.yaml:4: this repository requires pleach >=0.2, this is 0.1.0 (install a version of pleach within that range)",
        ]
    );
}

#[rstest]
#[case(
    "releases: [{name: a}]",
    "environments/prod.yaml:3: release `a` needs `bundle`"
)]
#[case(
    "releases: [{namespace: a}]",
    "environments/prod.yaml:3: a release needs `bundle`"
)]
#[case(
    "releases: [{bundle: wbe, version: v1.0.0}]",
    "environments/prod.yaml:3: there is no bundle `wbe`: no folder manifests/wbe (did you mean `web`?)"
)]
#[case(
    "releases: [{bundle: something}]",
    "environments/prod.yaml:3: there is no bundle `something`: no folder manifests/something (there are app, web)"
)]
#[case(
    "releases: [{name: a, bundle: web/v1.0.0}]",
    "environments/prod.yaml:3: `web/v1.0.0` names no bundle: a bundle is a folder directly below manifests/"
)]
#[case(
    "releases:\n- bundle: web\n  version: v1.0.1",
    "environments/prod.yaml:5: there is no version `v1.0.1` of manifests/web; there are v1.0.0, v1.10.0 (did you mean `v1.0.0`?)"
)]
#[case(
    "releases: [{bundle: web, version: 1.10.0}]",
    "environments/prod.yaml:3: there is no version `1.10.0` of manifests/web; there are v1.0.0, v1.10.0 (did you mean `v1.10.0`?)"
)]
#[case(
    "releases: [{bundle: web, version: newest}]",
    "environments/prod.yaml:3: there is no version `newest` of manifests/web; there are v1.0.0, v1.10.0 (did you mean `v1.10.0`?)"
)]
#[case(
    "releases: [{bundle: web}]",
    "environments/prod.yaml:3: `version` is required: manifests/web has versions (there are v1.0.0, v1.10.0)"
)]
#[case(
    "releases: [{bundle: app, version: v1.0.0}]",
    "environments/prod.yaml:3: there is no version `v1.0.0`: manifests/app has no version folders (leave `version` out; the git revision is the version)"
)]
#[case(
    "releases:\n- {bundle: app}\n- {name: app, bundle: web, version: v1.0.0}",
    "environments/prod.yaml:5: a second release `app`; the first is at environments/prod.yaml:4 (give one of them another `name`)"
)]
#[case(
    "releases: [{bundle: app, name: a.b}]",
    "environments/prod.yaml:3: `a.b` cannot be the name of a release (a DNS label: lower-case letters, digits and -, at most 63 characters)"
)]
#[case(
    "releases: [{bundle: app, namespace: Web}]",
    "environments/prod.yaml:3: `Web` cannot be the name of a namespace (a DNS label: lower-case letters, digits and -, at most 63 characters)"
)]
#[case(
    "releases:\n- bundle: app\n  patches:\n  - target: {kind: A}",
    "environments/prod.yaml:6: a patch has either `json` or `merge`"
)]
#[case(
    "releases:\n- bundle: app\n  patches:\n  - target: {kind: A}\n    json:\n    - {op: remvoe, path: /a}",
    "environments/prod.yaml:8: `releases[0].patches[0].json[0]`: `remvoe` is not one of add, remove, replace, move, copy, test"
)]
#[case(
    "releases:\n- bundle: app\n  patches:\n  - target: {kind: A}\n    json:\n    - {op: add, path: /a, vlaue: 1}",
    "environments/prod.yaml:8: `releases[0].patches[0].json[0]`: `add` needs `value`|environments/prod.yaml:8: `releases[0].patches[0].json[0]`: unknown field `vlaue` (did you mean `value`?)"
)]
#[case(
    "prune: {max: 200%}",
    "environments/prod.yaml:3: `prune.max`: `200%` is neither a number of objects nor a percentage such as 10%"
)]
#[case(
    "consent: [{action: delete, release: web}]\nreleases: [{bundle: web, version: v1.0.0}]",
    "environments/prod.yaml:3: `from` is required: a consent is bound to what it is for|environments/prod.yaml:3: `kind` is required: a consent is bound to what it is for|environments/prod.yaml:3: `name` is required: a consent is bound to what it is for|environments/prod.yaml:3: `to` is required: a consent is bound to what it is for"
)]
#[case(
    "values: [a]",
    "environments/prod.yaml:3: `values`: expected a map, found a list"
)]
#[case(
    "releases: [{bundle: app\n",
    "environments/prod.yaml:3: unclosed bracket '{'"
)]
#[case(
    "cluster:\n  id: a\n  id: b",
    "environments/prod.yaml:5: duplicate key `id`"
)]
#[case(
    "extends: _none.yaml",
    "environments/prod.yaml:3: `extends`: there is no file environments/_none.yaml"
)]
#[case(
    "extends: ../x.yaml",
    "environments/prod.yaml:3: `extends` names a file of environments/, not `../x.yaml` (write it as `_base.yaml`)"
)]
#[case(
    "extends: prod.yaml",
    "environments/prod.yaml:3: environments extend each other: prod.yaml → prod.yaml"
)]
fn an_environment_is_refused(#[case] text: &str, #[case] expected: &str) {
    let expected: Vec<&str> = expected.split('|').collect();
    assert_eq!(errors(&[(PROD, text)]), expected);
}

#[test]
fn cycles_of_extends_are_shown() {
    let found = errors(&[
        (PROD, "extends: _a.yaml"),
        ("environments/_a.yaml", "extends: _b.yaml"),
        ("environments/_b.yaml", "extends: _a.yaml"),
    ]);
    assert_eq!(
        found,
        [
            "environments/_b.yaml:3: environments extend each other: prod.yaml → _a.yaml → _b.yaml → _a.yaml"
        ]
    );
}

#[rstest]
#[case("sync: {interval: 5m, drift: correct}", "3: `sync`")]
#[case("state: {kind: ConfigMap, namespace: a}", "3: `state.kind: ConfigMap`")]
#[case(
    "consent: [{action: recreate, kind: A, name: b, release: c}]",
    "3: `consent[0].action: recreate`"
)]
#[case(
    "consent: [{action: override, check: a, release: c, reason: d}]",
    "3: `consent[0].action: override`"
)]
#[case(
    "consent: [{action: uninstall, release: c}]",
    "3: `consent[0].action: uninstall`"
)]
#[case(
    "releases: [{bundle: web, versionFrom: app}]",
    "3: `releases[0].versionFrom`"
)]
#[case(
    "releases: [{bundle: app, ignore: [{kind: A, fields: [a]}]}]",
    "3: `releases[0].ignore`"
)]
#[case(
    "releases: [{bundle: app, dependsOn: [web, {kind: A, name: b}]}]",
    "3: `releases[0].dependsOn`"
)]
#[case(
    "releases: [{bundle: app, movedFrom: {environment: a, release: b}}]",
    "3: `releases[0].movedFrom`"
)]
#[case(
    "releases: [{bundle: app, rollback: {from: a, to: b}}]",
    "3: `releases[0].rollback`"
)]
#[case(
    "releases: [{bundle: app, restartOnConfigChange: true}]",
    "3: `releases[0].restartOnConfigChange`"
)]
#[case(
    "releases: [{bundle: app, patches: [{target: {kind: A, service: b}, merge: {}}]}]",
    "3: `releases[0].patches[0].target.service`"
)]
fn what_an_environment_cannot_have_yet_is_refused(#[case] text: &str, #[case] expected: &str) {
    assert_eq!(
        errors(&[(PROD, text)]),
        [format!(
            "environments/prod.yaml:{expected} is not supported yet"
        )]
    );
}

#[rstest]
#[case(
    "stages: [{name: a, select: [{kind: A}], rollout: {first: 1, then: 10%, abortOnRestart: true}, timeout: 20m, verify: [{job: a.yaml}, {check: b}]}]",
    "stages"
)]
#[case(
    "stages: [{name: a, restart: [{kind: A}], after: [b]}, {name: s, scale: [{kind: A, name: b, replicas: 0}], ready: applied, before: [a]}]",
    "stages"
)]
#[case(
    "gates: [{name: a, groups: [b], resources: [\"*\"], operations: [CREATE, UPDATE], from: api, exempt: [{serviceAccount: a/b}], maxDuration: 1h}]",
    "gates"
)]
#[case(
    "overlays: [{name: a, target: {kind: B}, patch: {spec: {}}, from: preflight, until: verify}]",
    "overlays"
)]
#[case(
    "checks: [{name: a, forEach: {group: g, kind: V, namespace: ns}, where: x, require: z, message: m}]",
    "checks"
)]
#[case("readiness: [{group: g, kind: K, current: a, failed: b}]", "readiness")]
#[case(
    "moves: [{from: a, to: b, copy: [{kind: ConfigMap, name: c}]}]",
    "moves"
)]
#[case("migrate: [{crd: a.b, from: v1, to: v2}]", "migrate")]
#[case(
    "blockUninstall: [{forEach: {group: g, kind: V}, message: m}]",
    "blockUninstall"
)]
#[case(
    "secretFields: [{kind: ConfigMap, name: a, fields: [data.b]}]",
    "secretFields"
)]
fn what_a_bundle_cannot_have_yet_is_refused(#[case] text: &str, #[case] field: &str) {
    let expected = format!(":3: `{field}` is not supported yet");
    let release = (PROD, "releases: [{bundle: web, version: v1.0.0}]");
    assert_eq!(
        errors(&[release, ("manifests/web/bundle.yaml", text)]),
        [format!("manifests/web/bundle.yaml{expected}")]
    );
    assert_eq!(
        errors(&[release, ("manifests/web/v1.0.0/version.yaml", text)]),
        [format!("manifests/web/v1.0.0/version.yaml{expected}")]
    );
}

#[test]
fn what_is_not_supported_is_checked_for_typos_all_the_same() {
    let found = errors(&[
        (PROD, "releases: [{bundle: app}]"),
        (
            "manifests/app/bundle.yaml",
            "stages:\n- name: a\n  rolout: {first: 1}\n",
        ),
    ]);
    assert_eq!(
        found,
        [
            "manifests/app/bundle.yaml:3: `stages` is not supported yet",
            "manifests/app/bundle.yaml:5: `stages[0]`: unknown field `rolout` (did you mean `rollout`?)",
        ]
    );
}

#[test]
fn what_asks_for_nothing_is_allowed() {
    let text = "state: {kind: Release}\nreleases: [{bundle: app, ignore: [], patches: [], restartOnConfigChange: false}]";
    assert_eq!(resolved(&[(PROD, text)]).releases.len(), 1);
}

#[rstest]
#[case(
    "patches: [{target: {kind: A}, patch: x}]",
    "`patches[0].patch` is not supported yet (write it as `json` or `merge`)"
)]
#[case(
    "runtimeObjects: [{kind: Secret, service: a}]",
    "no Secret points at a Service (name it with `name`)"
)]
#[case(
    "runtimeObjects: [{kind: APIService}]",
    "run-time APIService needs either `name` or `service` (`service` is the Service that it points at)"
)]
#[case(
    "runtimeObjects: [{kind: Foo, name: a}]",
    "the group of Foo is not known (say it with `group`)"
)]
#[case(
    "kubernetes: newest",
    "`kubernetes`: `newest` is not a range of versions such as `>=0.11.0, <0.12.0`"
)]
#[case("direction: up", "`direction`: `up` is not one of forward, reverse")]
fn a_bundle_is_refused(#[case] text: &str, #[case] expected: &str) {
    let found = errors(&[
        (PROD, "releases: [{bundle: app}]"),
        ("manifests/app/bundle.yaml", text),
    ]);
    assert_eq!(found, [format!("manifests/app/bundle.yaml:3: {expected}")]);
}

#[rstest]
#[case(
    "values.schema.json",
    "{}",
    "`values.schema.json` is not supported yet"
)]
#[case(
    "deep/kustomization.yaml",
    "a: 1",
    "kustomizations are not understood: the files beside it would be rendered without it (render it beforehand: `kubectl kustomize DIR > manifests.yaml`, and keep only the result here)"
)]
#[case(
    "Chart.yaml",
    "a: 1",
    "Helm charts are not understood: the files beside it are templates of another kind (render it beforehand: `helm template NAME DIR > manifests.yaml`, and keep only the result here)"
)]
#[case(
    "a.yaml",
    "version https://git-lfs.github.com/spec/v1\noid sha256:00\n",
    "the file is a git-LFS pointer, not its content (keep manifests in git itself; pleach does not fetch from LFS)"
)]
fn files_that_cannot_be_rendered_are_refused(
    #[case] file: &str,
    #[case] text: &str,
    #[case] expected: &str,
) {
    for folder in ["manifests/app", "manifests/web/v1.0.0"] {
        let path = format!("{folder}/{file}");
        let found = errors(&[
            (
                PROD,
                "releases: [{bundle: app}, {bundle: web, version: v1.0.0}]",
            ),
            (&path, text),
        ]);
        assert_eq!(found, [format!("{path}: {expected}")]);
    }
}

#[test]
fn what_lies_beside_versions_is_warned_about() {
    let environment = resolved(&[
        (PROD, "releases: [{bundle: web, version: v1.0.0}]"),
        ("manifests/web/extra.yaml", MANIFEST),
        ("manifests/web/common/a.yaml", MANIFEST),
        ("manifests/web/README.md", "text"),
        ("manifests/web/_drafts/a.yaml", MANIFEST),
    ]);
    let places: Vec<String> = environment
        .findings
        .iter()
        .map(|finding| finding.place.as_ref().unwrap().to_string())
        .collect();
    assert_eq!(places, ["manifests/web/common", "manifests/web/extra.yaml"]);
}

#[test]
fn a_folder_with_a_version_file_of_ours_is_a_version() {
    let environment = resolved(&[
        (PROD, "releases: [{bundle: web, version: canary}]"),
        ("manifests/web/canary/version.yaml", "description: next\n"),
        ("manifests/web/canary/a.yaml", MANIFEST),
    ]);
    assert_eq!(
        environment.releases[0].files,
        ["manifests/web/canary/a.yaml"]
    );
}

#[test]
fn a_manifest_may_be_called_version() {
    // Ours by apiVersion and kind, not by name.
    let environment = resolved(&[
        (
            PROD,
            "releases: [{bundle: app}, {bundle: web, version: v1.0.0}]",
        ),
        ("manifests/app/crds/version.yaml", MANIFEST),
        ("manifests/web/v1.0.0/version.yaml", MANIFEST),
    ]);
    assert_eq!(
        environment.releases[0].files,
        [
            "manifests/app/app.yaml.j2",
            "manifests/app/crds/version.yaml"
        ]
    );
    assert_eq!(
        environment.releases[1].files,
        [
            "manifests/web/v1.0.0/version.yaml",
            "manifests/web/v1.0.0/web.yaml"
        ]
    );
}

#[rstest]
#[case("kind: Environment\n", ":1: `apiVersion` is required")]
#[case(
    "apiVersion: v1\nkind: Environment\n",
    ":1: this is not a file of pleach"
)]
#[case(
    "apiVersion: pleach.dev/v2\nkind: Environment\n",
    ":1: this version of pleach does not know the format `pleach.dev/v2`"
)]
#[case("apiVersion: pleach.dev/v1alpha1\n", ":1: `kind` is required")]
#[case(
    "apiVersion: pleach.dev/v1alpha1\nkind: Bundle\n",
    ":2: expected kind `Environment`, found `Bundle`"
)]
#[case(
    "- a\n",
    ":1: expected a map that begins with `apiVersion: pleach.dev/v1alpha1` and `kind: Environment`"
)]
#[case(
    "# nothing\n",
    ": the file is empty; it begins with `apiVersion: pleach.dev/v1alpha1` and `kind: Environment`"
)]
fn files_of_another_kind_are_refused(#[case] text: &str, #[case] expected: &str) {
    let mut files: BTreeMap<String, Vec<u8>> = BTreeMap::new();
    files.insert("pleach.yaml".to_owned(), PLEACH.as_bytes().to_vec());
    files.insert(PROD.to_owned(), text.as_bytes().to_vec());
    let findings = resolve(&MemoryTree::new(files), "prod", &version()).unwrap_err();
    assert_eq!(findings[0].to_string(), format!("{PROD}{expected}"));
}

#[test]
fn a_folder_without_pleach_yaml_is_no_repository() {
    let files = [(PROD.to_owned(), ENVIRONMENT.as_bytes().to_vec())];
    let findings = resolve(&MemoryTree::new(files), "prod", &version()).unwrap_err();
    assert_eq!(
        shown(&findings),
        [
            "pleach.yaml: this is no repository of pleach: pleach.yaml is missing (`pleach init` writes one)"
        ]
    );
}

#[rstest]
#[case("prdo", "there is no environment `prdo` (did you mean `prod`?)")]
#[case(
    "elsewhere",
    "there is no environment `elsewhere` (there are prod, staging)"
)]
#[case(
    "_eu",
    "`_eu` is no environment: files that start with _ are only extended from"
)]
#[case(
    "dev",
    "there is no environment `dev` (rename environments/dev.yml to environments/dev.yaml)"
)]
fn unknown_environments(#[case] name: &str, #[case] expected: &str) {
    let tree = tree(&[
        ("environments/staging.yaml", ""),
        ("environments/_eu.yaml", ""),
        ("environments/dev.yml", ""),
    ]);
    assert_eq!(environments(&tree), ["prod", "staging"]);
    let findings = resolve(&tree, name, &version()).unwrap_err();
    assert!(shown(&findings).contains(&expected.to_owned()));
}

#[test]
fn names_fit_into_the_field_manager() {
    let long = "a".repeat(60);
    let file = format!("environments/{long}.yaml");
    let release = format!("releases: [{{name: {}, bundle: app}}]", "b".repeat(40));
    let found = resolve(&tree(&[(&file, &release)]), &long, &version()).unwrap_err();
    assert!(found[0].message.contains("longer than 100 characters"));
}

#[test]
fn a_consent_for_nobody_is_warned_about() {
    let environment = resolved(&[(
        PROD,
        "consent: [{action: prune, release: ap, from: v1, to: v2, count: 3}]\nreleases: [{bundle: app}]",
    )]);
    assert_eq!(
        shown(&environment.findings),
        [
            "environments/prod.yaml:3: consent for release `ap`, which the environment does not have (did you mean `app`?)"
        ]
    );
}

/// A tree in which some paths are links or submodules.
struct Special<'a> {
    tree: &'a dyn FileTree,
    name: &'a str,
    kind: TreeKind,
}

impl FileTree for Special<'_> {
    fn list(&self, folder: &str) -> Result<Vec<TreeEntry>, TreeError> {
        let mut entries = self.tree.list(folder)?;
        for entry in &mut entries {
            if entry.name == self.name {
                entry.kind = self.kind;
            }
        }
        Ok(entries)
    }

    fn read(&self, file: &str) -> Result<bytes::Bytes, TreeError> {
        self.tree.read(file)
    }
}

#[rstest]
#[case(
    TreeKind::Link,
    "manifests/app/x.yaml: symbolic links are not followed"
)]
#[case(
    TreeKind::Submodule,
    "manifests/app/x.yaml: submodules are not entered"
)]
fn links_and_submodules_are_refused(#[case] kind: TreeKind, #[case] expected: &str) {
    let tree = tree(&[
        (PROD, "releases: [{bundle: app}]"),
        ("manifests/app/x.yaml", MANIFEST),
    ]);
    let special = Special {
        tree: &tree,
        name: "x.yaml",
        kind,
    };
    let findings = resolve(&special, "prod", &version()).unwrap_err();
    assert_eq!(findings[0].to_string(), expected);
}

#[test]
fn only_what_matters_is_read() {
    let tree = tree(&[
        (
            PROD,
            "extends: _eu.yaml\nreleases: [{bundle: web, version: v1.0.0}]",
        ),
        ("environments/_eu.yaml", ""),
        ("environments/staging.yaml", ""),
        ("environments/_eu.yaml", "values: {a: 1}\n"),
    ]);
    let recording = RecordingTree::new(&tree);
    resolve(&recording, "prod", &version()).unwrap();
    let record = recording.record();
    let read: Vec<&str> = record.read.iter().map(String::as_str).collect();
    assert_eq!(
        read,
        [
            "environments/_eu.yaml",
            "environments/prod.yaml",
            "manifests/web/bundle.yaml",
            "manifests/web/v1.0.0/version.yaml",
            "manifests/web/v1.0.0/web.yaml",
            "pleach.yaml",
        ]
    );
    assert!(!record.listed.contains("manifests/app"));
}
