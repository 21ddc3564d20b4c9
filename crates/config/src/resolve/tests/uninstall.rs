//! Tests for handovers and removals of releases.

use rstest::rstest;

use super::*;
use crate::{outline, repository_id};

#[test]
fn moved_from_and_uninstall_blocks_are_resolved() {
    let environment = resolved(&[
        (
            PROD,
            "releases: [{bundle: app, movedFrom: {environment: dev, release: old}}]",
        ),
        (
            "manifests/app/bundle.yaml",
            "blockUninstall: [{forEach: {group: g, kind: V}, message: still in use}]",
        ),
    ]);
    let release = &environment.releases[0];
    let from = release.moved_from.as_ref().unwrap();
    assert_eq!(from.to_string(), "dev.old");
    assert_eq!(release.block_uninstall[0].message, "still in use");
}

#[rstest]
#[case(
    "releases: [{bundle: app, movedFrom: {environment: prod, release: app}}]",
    "environments/prod.yaml:3: `movedFrom` names the release itself"
)]
#[case(
    "releases: [{bundle: app, movedFrom: {environment: prod, release: A}}]",
    "environments/prod.yaml:3: `A` is not a valid name for a release (use a DNS label: lower-case letters, digits and -, at most 63 characters)"
)]
fn origins_are_checked(#[case] text: &str, #[case] expected: &str) {
    assert_eq!(errors(&[(PROD, text)]), [expected]);
}

#[rstest]
#[case(
    "{forEach: {kind: \"*\"}, message: m}",
    "`forEach` must name one kind (set `kind` and `group`)"
)]
#[case(
    "{forEach: {kind: V}, message: m}",
    "the API group of V is not known (set `group`)"
)]
fn uninstall_blocks_need_a_known_kind(#[case] rule: &str, #[case] expected: &str) {
    let bundle = format!("blockUninstall: [{rule}]");
    let found = errors(&[
        (PROD, "releases: [{bundle: app}]"),
        ("manifests/app/bundle.yaml", &bundle),
    ]);
    assert_eq!(found, [format!("manifests/app/bundle.yaml:3: {expected}")]);
}

#[test]
fn consents_to_an_uninstall_name_no_target_version() {
    let environment = resolved(&[(
        PROD,
        "consent: [{action: uninstall, release: old}, {action: delete, kind: Namespace, name: web, release: old, from: v1},\n  {action: uninstall, release: web}, {action: delete, kind: Namespace, name: web, release: web, from: v1}]\nreleases: [{bundle: web, version: v1.0.0}]",
    )]);
    assert_eq!(environment.findings, []);
}

#[test]
fn consents_that_an_uninstall_suggests_are_valid_before_it() {
    let environment = resolved(&[(
        PROD,
        "consent: [{action: delete, kind: Namespace, name: web, release: web, from: v1.0.0},\n  {action: override, check: backend-removed, kind: Service, name: web, release: web, from: v1.0.0, reason: nobody}]\nreleases: [{bundle: web, version: v1.0.0}]",
    )]);
    assert_eq!(environment.findings, []);
}

#[test]
fn an_environment_is_outlined_without_its_bundles() {
    let tree = tree(&[(
        PROD,
        "cluster: {id: c}\nprotect: [{kind: V}]\nreleases: [{bundle: gone}, {name: new, bundle: gone, movedFrom: {environment: prod, release: old}}]",
    )]);
    let outline = outline(&tree, "prod", &version()).unwrap();
    assert_eq!(outline.environment.repository, "fleet");
    assert_eq!(outline.environment.cluster.id.as_deref(), Some("c"));
    assert_eq!(outline.environment.protect.len(), 1);
    let releases: Vec<&String> = outline.releases.keys().collect();
    assert_eq!(releases, ["gone", "new"]);
    let from = outline.releases["new"].as_ref().unwrap();
    assert_eq!(from.to_string(), "prod.old");
    assert!(resolve(&tree, "prod", &version()).is_err());
}

#[test]
fn an_invalid_environment_has_no_outline() {
    let tree = tree(&[(PROD, "releases: 1")]);
    let findings = outline(&tree, "prod", &version()).unwrap_err();
    assert!(findings.iter().any(Finding::is_error));
    let findings = outline(&tree, "none", &version()).unwrap_err();
    assert_eq!(findings[0].code, "unknown-environment");
    assert_eq!(repository_id(&tree, &version()).unwrap(), "fleet");
}
