//! Tests for dependencies on releases and objects.

use rstest::rstest;

use super::*;
use crate::dependencies::Needed;

#[test]
fn dependencies_are_resolved() {
    let environment = resolved(&[(
        PROD,
        "releases:\n- {name: a, bundle: app, dependsOn: [b, {kind: Deployment, name: api, namespace: web}]}\n- name: b\n  bundle: app\n  dependsOn:\n  - {kind: Issuer, group: cert-manager.io, name: ca, ready: \"status.ready\"}\n",
    )]);
    let shown: Vec<Vec<String>> = environment
        .releases
        .iter()
        .map(|release| {
            let needed = release.depends_on.iter().map(|one| match &one.needed {
                Needed::Release(name) => name.clone(),
                Needed::Object(object) => object.to_string(),
            });
            needed.collect()
        })
        .collect();
    assert_eq!(
        shown,
        [
            vec!["b".to_owned(), "Deployment.apps/web/api".to_owned()],
            vec!["Issuer.cert-manager.io/ca".to_owned()],
        ]
    );
    let second = &environment.releases[1].depends_on[0];
    assert_eq!(second.origin.to_string(), format!("{PROD}:8"));
}

#[rstest]
#[case::a_circle("[{name: a, bundle: app, dependsOn: [b]}, {name: b, bundle: app, dependsOn: [c]}, {name: c, bundle: app, dependsOn: [a]}]",
    &["these releases wait for each other: a -> b -> c -> a (remove one of these dependencies)"])]
#[case::itself("[{bundle: app, dependsOn: [app]}]",
    &["these releases wait for each other: app -> app (remove one of these dependencies)"])]
#[case::unknown_release("[{name: site, bundle: app}, {name: a, bundle: app, dependsOn: [sit]}]",
    &["`dependsOn` names release `sit`, which the environment does not have (did you mean `site`?)"])]
#[case::no_group("[{bundle: app, dependsOn: [{kind: Issuer, name: ca}]}]",
    &["the API group of Issuer is not known (set `group`)"])]
#[case::a_pattern("[{bundle: app, dependsOn: [{kind: Deployment, name: \"a*\"}]}]",
    &["`dependsOn` must name exactly one object (write kind, name and namespace without patterns)"])]
#[case::no_expression("[{bundle: app, dependsOn: [{kind: Deployment, name: a, ready: \"spec.x &&\"}]}]",
    &["`ready`: "])]
#[case::a_typo("[{bundle: app, dependsOn: [{kind: Deployment, name: a, redy: \"true\"}]}]",
    &["`releases[0].dependsOn[0]`: unknown field `redy` (did you mean `ready`?)"])]
fn invalid_dependencies_are_refused(#[case] releases: &str, #[case] expected: &[&str]) {
    let found = errors(&[(PROD, &format!("releases: {releases}"))]);
    assert_eq!(found.len(), expected.len(), "{found:?}");
    for (found, expected) in found.iter().zip(expected) {
        let expected = format!("{PROD}:3: {expected}");
        assert!(found.starts_with(&expected), "{found}");
    }
}
