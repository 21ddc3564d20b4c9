//! Restarts of pods whose configuration changes.

use std::collections::BTreeMap;

use rstest::rstest;
use serde_json::Value;

use super::scene::Scene;
use crate::plan::Desired;
use pleach_model::object::{DesiredDigest, Digest, DigestKey};

/// Reads the ConfigMap `app`, optionally the Secret `extra`, and a ConfigMap of
/// another release.
const WEB: &str = "
Deployment.apps/web/web:
  spec:
    template:
      metadata: {labels: {app: web}}
      spec:
        containers:
        - name: web
          envFrom: [{configMapRef: {name: app}}, {configMapRef: {name: elsewhere}}]
          env: [{name: X, valueFrom: {secretKeyRef: {name: extra, key: x, optional: true}}}]
";
const APP: &str = "
ConfigMap/web/app: {data: {mode: fast}}
";
const EXTRA: &str = "
Secret/web/extra: {data: {x: eA==}}
";

/// Returns the sent objects with their digests, by id.
fn stamped(
    git: &[&str],
    key: Option<&str>,
    restarts: bool,
) -> BTreeMap<String, (Value, DesiredDigest)> {
    let scene = git.iter().fold(Scene::new(), |scene, text| scene.git(text));
    let mut found = BTreeMap::new();
    scene.with_desired(|desired| {
        desired.terms.restart_on_config_change = restarts;
        fill_in(desired, key);
        for manifest in &desired.manifests {
            let digest = desired.digests[manifest.id()];
            found.insert(manifest.id().to_string(), (manifest.value(), digest));
        }
    });
    found
}

/// Computes the digests twice, as an apply does: when observing, and after
/// creating the key.
fn fill_in(desired: &mut Desired, key: Option<&str>) {
    let key = key.map(|key| DigestKey::new(key.as_bytes().to_vec()));
    desired.digest_with(None);
    desired.digest_with(key.as_ref());
}

/// Returns the annotation of the pod template.
fn stamp(git: &[&str], key: Option<&str>) -> Option<String> {
    let found = stamped(git, key, true);
    let (web, _) = &found["Deployment.apps/web/web"];
    let annotation =
        &web["spec"]["template"]["metadata"]["annotations"]["pleach.dev/configuration"];
    annotation.as_str().map(str::to_owned)
}

#[rstest]
#[case::data("ConfigMap/web/app: {data: {mode: slow}}", true)]
#[case::another_key("ConfigMap/web/app: {data: {mode: fast, more: x}}", true)]
#[case::bytes("ConfigMap/web/app: {data: {mode: fast}, binaryData: {b: eA==}}", true)]
#[case::a_label(
    "ConfigMap/web/app: {metadata: {labels: {a: b}}, data: {mode: fast}}",
    false
)]
#[case::the_secret("Secret/web/extra: {data: {x: eQ==}}", true)]
#[case::one_that_is_not_read("ConfigMap/web/other: {data: {a: b}}", false)]
#[case::one_of_another_namespace("ConfigMap/shop/app: {data: {mode: slow}}", false)]
fn pods_are_replaced_when_the_data_changes_that_they_read(
    #[case] change: &str,
    #[case] replaced: bool,
) {
    let before = stamp(&[WEB, APP, EXTRA], Some("k"));
    let after = stamp(&[WEB, APP, EXTRA, change], Some("k"));
    assert!(before.is_some() && after.is_some());
    assert_eq!(before != after, replaced);
}

#[test]
fn no_digest_is_added_unless_requested_and_used() {
    let found = stamped(&[WEB, APP, EXTRA], Some("k"), false);
    let (web, _) = &found["Deployment.apps/web/web"];
    assert!(web["spec"]["template"]["metadata"]["annotations"].is_null());
    assert_eq!(stamp(&[WEB], Some("k")), None);
    // The template of a Job is immutable.
    let job = WEB.replace("Deployment.apps", "Job.batch");
    let found = stamped(&[&job, APP], None, true);
    let (job, _) = &found["Job.batch/web/web"];
    assert!(job["spec"]["template"]["metadata"]["annotations"].is_null());
}

#[test]
fn secrets_are_digested_only_with_a_key() {
    assert_ne!(
        stamp(&[WEB, APP, EXTRA], Some("k")),
        stamp(&[WEB, APP, EXTRA], Some("l"))
    );
    let found = stamped(&[WEB, APP, EXTRA], None, true);
    let (web, digest) = &found["Deployment.apps/web/web"];
    assert!(web["spec"]["template"]["metadata"]["annotations"].is_null());
    assert_eq!(*digest, DesiredDigest::Unkeyed);
    // Without secrets no key is needed.
    assert!(stamp(&[WEB, APP], None).is_some());
    assert_eq!(stamp(&[WEB, APP], None), stamp(&[WEB, APP], Some("k")));
}

#[test]
fn the_digest_covers_the_sent_content() {
    let found = stamped(&[WEB, APP, EXTRA], Some("k"), true);
    let (web, digest) = &found["Deployment.apps/web/web"];
    assert_eq!(
        *digest,
        DesiredDigest::Known(Digest::of(&pleach_model::object::canonical_json(web)))
    );
}

#[test]
fn ignored_fields_are_not_digested() {
    let web = WEB.replace(
        "  spec:\n    template",
        "  spec:\n    replicas: 3\n    template",
    );
    let scene = Scene::new()
        .git(&web)
        .git(APP)
        .ignores("Deployment.apps/web/web", &["spec.replicas"]);
    scene.with_desired(|desired| {
        desired.terms.restart_on_config_change = true;
        fill_in(desired, Some("k"));
        let web = &desired
            .manifests
            .iter()
            .find(|one| one.id().kind == "Deployment")
            .unwrap();
        let lean = desired.ignored.lean(web).value();
        assert!(lean["spec"]["replicas"].is_null());
        assert_eq!(lean["spec"]["template"], web.value()["spec"]["template"]);
        assert!(lean["spec"]["template"]["metadata"]["annotations"].is_object());
    });
}

#[rstest]
#[case("Deployment.apps/web/web: {spec: {template: none}}")]
#[case("Deployment.apps/web/web: {spec: 3}")]
#[case("Deployment.apps/web/web: {}")]
fn an_invalid_template_is_unchanged(#[case] text: &str) {
    let before = stamped(&[text, APP], Some("k"), false);
    assert_eq!(stamped(&[text, APP], Some("k"), true), before);
}

#[test]
fn a_template_without_metadata_gets_some() {
    let web = WEB.replace("metadata: {labels: {app: web}}", "metadata: null");
    assert!(stamp(&[&web, APP], None).is_some());
}
