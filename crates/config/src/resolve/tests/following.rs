//! Tests for releases with `versionFrom`.

use rstest::rstest;

use super::*;

#[test]
fn a_release_has_the_version_of_the_one_that_it_follows() {
    let environment = resolved(&[(
        PROD,
        "releases:\n- {name: c, bundle: web, versionFrom: b}\n- {name: b, bundle: web, versionFrom: a}\n- {name: a, bundle: web, version: v1.0.0}\n",
    )]);
    let versions: Vec<Option<&str>> = environment
        .releases
        .iter()
        .map(|release| release.version.as_deref())
        .collect();
    assert_eq!(versions, [Some("v1.0.0"); 3]);
    assert_eq!(environment.releases[0].folder, "manifests/web/v1.0.0");
}

#[rstest]
#[case::back("{from: v1.10.0, to: v1.0.0}", "", Some("v1.10.0"))]
#[case::left_over("{from: v2.0.0, to: v1.10.0}", "", None)]
#[case::its_own(
    "{from: v1.10.0, to: v1.0.0}",
    ", rollback: {from: v1.9.0, to: v1.0.0}",
    Some("v1.9.0")
)]
fn a_rollback_applies_to_following_releases(
    #[case] rollback: &str,
    #[case] own: &str,
    #[case] from: Option<&str>,
) {
    let releases = format!(
        "releases:\n- {{name: b, bundle: web, versionFrom: a{own}}}\n- {{name: a, bundle: web, version: v1.0.0, rollback: {rollback}}}\n"
    );
    let environment = resolved(&[(PROD, &releases)]);
    let found = environment.releases[0].versions.rollback.as_ref();
    assert_eq!(found.map(|one| one.from.as_str()), from);
}

#[rstest]
#[case::a_circle("[{name: a, bundle: web, versionFrom: b}, {name: b, bundle: web, versionFrom: a}]",
    &["these releases follow each other's version: a -> b -> a (one of them needs `version`)",
      "these releases follow each other's version: b -> a -> b (one of them needs `version`)"])]
#[case::itself("[{name: a, bundle: web, versionFrom: a}]",
    &["these releases follow each other's version: a -> a (one of them needs `version`)"])]
#[case::behind_a_circle("[{name: a, bundle: web, versionFrom: b}, {name: b, bundle: web, versionFrom: b}]",
    &["these releases follow each other's version: b -> b (one of them needs `version`)"])]
#[case::unknown_release("[{name: a, bundle: web, versionFrom: sity}, {name: site, bundle: web, version: v1.0.0}]",
    &["`versionFrom` names release `sity`, which the environment does not have (did you mean `site`?)"])]
#[case::both("[{name: a, bundle: web, version: v1.0.0, versionFrom: b}, {name: b, bundle: web, version: v1.0.0}]",
    &["a release has either `version` or `versionFrom`"])]
#[case::no_version("[{name: a, bundle: web, versionFrom: app}, {bundle: app}]",
    &["release `app`, whose version is followed, has no version (the version of a bundle without version folders is the git revision: no release has to follow it)"])]
#[case::a_version_that_the_bundle_lacks("[{name: a, bundle: web, versionFrom: b}, {name: b, bundle: other, version: v2.0.0}]",
    &["there is no version `v2.0.0` of manifests/web; known versions: v1.0.0, v1.10.0 (did you mean `v1.0.0`?)"])]
fn a_version_that_cannot_be_followed_is_refused(#[case] releases: &str, #[case] expected: &[&str]) {
    let found = errors(&[
        (PROD, &format!("releases: {releases}")),
        ("manifests/other/bundle.yaml", BUNDLE),
        ("manifests/other/v2.0.0/other.yaml", MANIFEST),
    ]);
    let expected: Vec<String> = expected
        .iter()
        .map(|text| format!("{PROD}:3: {text}"))
        .collect();
    assert_eq!(found, expected);
}
