//! Bundles and their version folders.

use rstest::rstest;

use super::*;

#[rstest]
#[case(
    "patches: [{target: {kind: A}, patch: x}]",
    "`patch` must contain a list of operations or a map"
)]
#[case(
    "patches: [{target: {kind: A}, patch: \"a: 1\", merge: {a: 1}}]",
    "a patch has exactly one of `json`, `merge` and `patch`"
)]
#[case(
    "patches: [{target: {kind: A}, patch: \"a: [\"}]",
    "`patch` is not YAML: line 1, column 4: unclosed bracket '['"
)]
#[case(
    "patches: [{target: {kind: A}, patch: \"- {op: move, path: /a}\"}]",
    "operation 0 of `patch` is invalid: `move` needs `from`"
)]
#[case(
    "patches: [{target: {kind: A}, patch: \"[a]\"}]",
    "operation 0 of `patch` is invalid: it is not a map"
)]
#[case(
    "patches: [{target: {kind: A}, patch: \"a: {$patch: remove}\"}]",
    "`$patch` of `patch` is not a valid merge directive"
)]
#[case(
    "patches: [{target: {kind: A}, patch: \"{$setElementOrder/a: b}\"}]",
    "`$setElementOrder/a` of `patch` is not a valid merge directive"
)]
#[case(
    "patches: [{target: {kind: A}, patch: \"{$setElementOrder: []}\"}]",
    "`$setElementOrder` of `patch` is not a valid merge directive"
)]
#[case(
    "patches: [{target: {kind: A}, patch: \"a: 1\\n---\\nb: 1\"}]",
    "`patch` contains more than one document (write one patch per document)"
)]
#[case(
    "runtimeObjects: [{kind: Secret, service: a}]",
    "kind Secret does not point at a Service (set `name` instead)"
)]
#[case(
    "runtimeObjects: [{kind: APIService}]",
    "runtime object of kind APIService needs either `name` or `service` (`service` is the Service that it points at)"
)]
#[case(
    "runtimeObjects: [{kind: Foo, name: a}]",
    "the API group of Foo is not known (set `group`)"
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
    "deep/kustomization.yaml",
    "a: 1",
    "no bundle.yaml or version.yaml names this kustomization: the files beside it would be rendered without it (write `kustomize: {path: FOLDER}` with its folder, relative to that of the version)"
)]
#[case(
    "Chart.yaml",
    "a: 1",
    "no bundle.yaml or version.yaml names this chart: the files beside it use another template language (write `charts: [{path: FOLDER}]` with its folder, relative to that of the version)"
)]
#[case(
    "a.yaml",
    "version https://git-lfs.github.com/spec/v1\noid sha256:00\n",
    "the file is a Git LFS pointer, not the content (commit manifests to git itself; pleach does not fetch from Git LFS)"
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
fn files_next_to_versions_cause_a_warning() {
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
fn a_manifest_can_be_named_version() {
    // A `version.yaml` belongs to pleach by apiVersion and kind, not by name.
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
