//! What is not supported yet is refused, and nothing else because of it.

use rstest::rstest;

use super::*;

#[rstest]
#[case("sync: {interval: 5m, approval: digest}", "3: `sync.approval: digest`")]
#[case(
    "releases: [{bundle: web, versionFrom: app}]",
    "3: `releases[0].versionFrom`"
)]
#[case(
    "releases: [{bundle: app, dependsOn: [web, {kind: A, name: b}]}]",
    "3: `releases[0].dependsOn`"
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
    "moves: [{from: a, to: b, copy: [{kind: ConfigMap, name: c}]}]",
    "moves"
)]
#[case("migrate: [{crd: a.b, from: v1, to: v2}]", "migrate")]
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
fn of_declared_stages_only_those_that_restart_or_scale_are_supported() {
    let text = "stages:\n- {name: a, select: [{kind: DaemonSet}], rollout: {first: 1}, verify: [{check: b}]}\n- {name: b, restart: [{kind: DaemonSet}], ready: applied}\n";
    let found = errors(&[
        (PROD, "releases: [{bundle: app}]"),
        ("manifests/app/bundle.yaml", text),
    ]);
    assert_eq!(
        found,
        [
            "manifests/app/bundle.yaml:4: `stages[0].rollout` is not supported yet",
            "manifests/app/bundle.yaml:4: `stages[0].select` is not supported yet",
            "manifests/app/bundle.yaml:4: `stages[0].verify` is not supported yet",
            "manifests/app/bundle.yaml:5: `stages[1].ready` is not supported yet",
        ]
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
            "manifests/app/bundle.yaml:5: `stages[0]`: unknown field `rolout` (did you mean `rollout`?)",
        ]
    );
}

#[test]
fn what_asks_for_nothing_is_allowed() {
    let text = "state: {kind: Release}\nreleases: [{bundle: app, ignore: [], patches: []}]";
    assert_eq!(resolved(&[(PROD, text)]).releases.len(), 1);
}
