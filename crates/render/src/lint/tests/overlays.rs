//! Declared overlays that are rejected before rendering.

use semver::Version;

use super::DEPLOYMENT;
use pleach_model::tree::MemoryTree;

/// Returns the errors of a bundle as `file:line code: message`.
fn refused(bundle: &str) -> Vec<String> {
    let files = [
        (
            "pleach.yaml",
            "apiVersion: pleach.dev/v1alpha1\nkind: Repository\nid: fleet\n".to_owned(),
        ),
        (
            "environments/dev.yaml",
            "apiVersion: pleach.dev/v1alpha1\nkind: Environment\ncluster: {id: c1}\n\
             releases:\n  - {bundle: web, version: v1.0.0, namespace: shop}\n"
                .to_owned(),
        ),
        (
            "manifests/web/bundle.yaml",
            format!("apiVersion: pleach.dev/v1alpha1\nkind: Bundle\n{bundle}"),
        ),
        ("manifests/web/v1.0.0/a.yaml", DEPLOYMENT.to_owned()),
    ];
    let tree = MemoryTree::new(files.map(|(path, text)| (path.to_owned(), text)));
    let resolved = pleach_config::resolve(&tree, "dev", &Version::new(0, 1, 0));
    let findings = resolved.err().unwrap_or_default();
    let shown = findings.iter().map(|finding| {
        let place = finding.place.as_ref().unwrap();
        format!("{place} {}: {}", finding.code, finding.message)
    });
    shown.collect()
}

/// A patch of an admission policy is rejected, even if it resembles a gate.
#[test]
fn an_overlay_on_a_policy_is_refused() {
    for kind in [
        "ValidatingAdmissionPolicy",
        "ValidatingAdmissionPolicyBinding",
        "MutatingAdmissionPolicy",
        "MutatingAdmissionPolicyBinding",
    ] {
        for patch in [
            "{spec: {failurePolicy: Ignore}}",
            "{release: {environment: dev, release: web}, name: x, version: v1, closed: [], operations: [], exempt: [], state: pleach-system}",
        ] {
            let bundle = format!(
                "overlays:\n  - name: x\n    target: {{kind: {kind}, group: admissionregistration.k8s.io, name: images}}\n    patch: {patch}\n"
            );
            let expected = format!(
                "manifests/web/bundle.yaml:4 invalid-value: {kind} controls the writes of other clients, and an overlay cannot change it"
            );
            assert_eq!(refused(&bundle), [expected]);
        }
    }
}

#[test]
fn an_overlay_on_state_of_pleach_is_refused() {
    let overlay = |target: &str| {
        format!("overlays:\n  - {{name: x, target: {target}, patch: {{data: {{a: b}}}}}}\n")
    };
    assert_eq!(
        refused(&overlay(
            "{kind: ConfigMap, name: prod.db, namespace: pleach-system}"
        )),
        [
            "manifests/web/bundle.yaml:4 invalid-value: namespace pleach-system contains state of pleach, which an overlay cannot change"
        ]
    );
    assert_eq!(refused(&overlay("{kind: ConfigMap, name: web}")).len(), 0);
    let release = "{kind: Release, group: pleach.dev, name: dev.db}";
    assert_eq!(refused(&overlay(release)).len(), 1);
}
