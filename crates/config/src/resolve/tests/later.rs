//! Tests for unsupported features.

use super::*;

#[test]
fn unsupported_fields_are_checked_for_typos() {
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
fn empty_fields_are_permitted() {
    let text = "state: {kind: Release}\nreleases: [{bundle: app, ignore: [], patches: []}]";
    assert_eq!(resolved(&[(PROD, text)]).releases.len(), 1);
}
