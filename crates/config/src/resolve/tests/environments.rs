//! Tests for merging and refusing environment files.

use rstest::rstest;

use super::*;

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
    "environments/prod.yaml:3: there is no bundle `something`: no folder manifests/something (known bundles: app, web)"
)]
#[case(
    "releases: [{name: a, bundle: web/v1.0.0}]",
    "environments/prod.yaml:3: `web/v1.0.0` is not a bundle name: a bundle is a folder directly below manifests/"
)]
#[case(
    "releases:\n- bundle: web\n  version: v1.0.1",
    "environments/prod.yaml:5: there is no version `v1.0.1` of manifests/web; known versions: v1.0.0, v1.10.0 (did you mean `v1.0.0`?)"
)]
#[case(
    "releases: [{bundle: web, version: 1.10.0}]",
    "environments/prod.yaml:3: there is no version `1.10.0` of manifests/web; known versions: v1.0.0, v1.10.0 (did you mean `v1.10.0`?)"
)]
#[case(
    "releases: [{bundle: web, version: newest}]",
    "environments/prod.yaml:3: there is no version `newest` of manifests/web; known versions: v1.0.0, v1.10.0 (did you mean `v1.10.0`?)"
)]
#[case(
    "releases: [{bundle: web}]",
    "environments/prod.yaml:3: `version` is required: manifests/web has versions (known versions: v1.0.0, v1.10.0)"
)]
#[case(
    "releases: [{bundle: app, version: v1.0.0}]",
    "environments/prod.yaml:3: there is no version `v1.0.0`: manifests/app has no version folders (omit `version`; the git revision is the version)"
)]
#[case(
    "releases:\n- {bundle: app}\n- {name: app, bundle: web, version: v1.0.0}",
    "environments/prod.yaml:5: a second release `app`; the first is at environments/prod.yaml:4 (give one of them another `name`)"
)]
#[case(
    "releases: [{bundle: app, name: a.b}]",
    "environments/prod.yaml:3: `a.b` is not a valid name for a release (use a DNS label: lower-case letters, digits and -, at most 63 characters)"
)]
#[case(
    "releases: [{bundle: app, namespace: Web}]",
    "environments/prod.yaml:3: `Web` is not a valid name for a namespace (use a DNS label: lower-case letters, digits and -, at most 63 characters)"
)]
#[case(
    "releases:\n- bundle: app\n  patches:\n  - target: {kind: A}",
    "environments/prod.yaml:6: a patch has exactly one of `json`, `merge` and `patch`"
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
    "environments/prod.yaml:3: `from` is required: a consent is bound to one change|environments/prod.yaml:3: `kind` is required: a consent is bound to one change|environments/prod.yaml:3: `name` is required: a consent is bound to one change|environments/prod.yaml:3: `to` is required: a consent is bound to one change"
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
    "environments/prod.yaml:3: `extends` must name a file in environments/, not `../x.yaml` (write it as `_base.yaml`)"
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
#[case("prdo", "there is no environment `prdo` (did you mean `prod`?)")]
#[case(
    "elsewhere",
    "there is no environment `elsewhere` (known environments: prod, staging)"
)]
#[case(
    "_eu",
    "`_eu` is not an environment: files that start with _ are only for `extends`"
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
fn a_consent_for_an_unknown_release_causes_a_warning() {
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

#[rstest]
#[case(
    "releases: [{bundle: app, ignore: [{kind: A, fields: []}]}]",
    "an ignore rule needs `fields`"
)]
#[case(
    "releases: [{bundle: app, ignore: [{kind: A, fields: [/spec/replicas]}]}]",
    "`/spec/replicas` is not a field path: separate keys with dots, such as spec.replicas"
)]
#[case(
    "releases: [{bundle: app, ignore: [{kind: A, fields: ['spec.containers[0].image']}]}]",
    "`spec.containers[0].image` is not a field path: select list items by content, such as [name=app], or all of them with [*]"
)]
#[case(
    "releases: [{bundle: app, ignore: [{kind: A, fields: [metadata.name]}]}]",
    "`metadata.name` cannot be ignored: it identifies the object"
)]
#[case(
    "consent: [{action: recreate, kind: StatefulSet, name: db, release: app}]\nreleases: [{bundle: app}]",
    "a consent to recreate a StatefulSet needs `propagation`; `propagation: Orphan` retains its pods"
)]
#[case(
    "consent: [{action: recreate, kind: Deployment, name: db, release: app, propagation: Orphan}]\nreleases: [{bundle: app}]",
    "`propagation: Orphan` is only for StatefulSets: no other kind adopts its orphaned objects"
)]
#[case(
    "consent: [{action: recreate, kind: Job, release: app}]\nreleases: [{bundle: app}]",
    "`name` is required: a consent is bound to one change"
)]
fn invalid_rules_and_consents_are_reported(#[case] text: &str, #[case] expected: &str) {
    assert_eq!(
        errors(&[(PROD, text)]),
        [format!("environments/prod.yaml:3: {expected}")]
    );
}

#[test]
fn ignore_rules_and_consents_are_resolved_with_their_origins() {
    let environment = resolved(&[(
        PROD,
        "consent: [{action: recreate, kind: StatefulSet, name: db, release: app, propagation: Orphan}]\nreleases:\n  - bundle: app\n    ignore:\n      - {kind: Deployment, name: web, fields: [spec.replicas, 'spec.containers[name=app].image']}\n",
    )]);
    assert_eq!(
        environment.consent[0].propagation,
        Some(Propagation::Orphan)
    );
    let rule = &environment.releases[0].ignore[0];
    assert_eq!(rule.origin.line, 7);
    assert_eq!(rule.target.name.as_deref(), Some("web"));
    let fields: Vec<String> = rule.fields.iter().map(ToString::to_string).collect();
    assert_eq!(fields, ["spec.replicas", "spec.containers[name=app].image"]);
}
