//! The controller follows a tag of an OCI artifact.

use axum::body::Body;
use axum::response::Response;
use pleach_testkit::cosign::{CosignKey, Form};
use pleach_testkit::registry::Registry;

use crate::fleet::Fleet;
use crate::loop_run::fleet;

/// Commits a value and pushes the commit as an artifact. Returns its digest.
fn push_artifact(fleet: &Fleet, registry: &Registry, (from, to): (&str, &str)) -> String {
    if from != to {
        fleet.push_value(from, to);
    }
    let address = format!("oci://{}/fleet", registry.host());
    let run = fleet
        .run(&["push", &address, "--tag", "production"])
        .ended_with(0);
    let (digest, _) = run.stdout.split_once("  ").unwrap();
    digest.to_owned()
}

#[test]
fn the_tag_of_a_signed_artifact_is_followed() {
    let fleet = fleet("loop-artifact", "{interval: 1s}");
    let registry = Registry::start(0).unwrap();
    let key = CosignKey::generate().unwrap();
    let sign = |digest: &str, form| key.sign(&registry, "fleet", digest, form).unwrap();
    let first = push_artifact(&fleet, &registry, ("first", "first"));
    sign(&first, Form::Simple);
    let keys = fleet.file("fleet.pub", &key.public_pem());
    let address = format!("oci://{}/fleet", registry.host());
    let text = fleet.configuration_text(&address, "");
    let artifact = format!("    tag: production\n    verify: {{cosignKeysFile: {keys}}}\n");
    let text = text
        .replace("    url: ", "    oci: ")
        .replace("        branch: env/loop-artifact\n", "")
        .replace("    environments:", &format!("{artifact}    environments:"));
    let config = fleet.file("artifact.yaml", &text);
    let running = fleet.runs_with(&["--config", &config]);
    fleet.until_value("first");
    fleet.until_ready();

    // An unsigned artifact is refused, and the last good state stays.
    let second = push_artifact(&fleet, &registry, ("first", "second"));
    let said = fleet.until_condition("Stalled", "UntrustedArtifact");
    let start = format!("{address}@{second} has no trusted signature: there is no signature");
    assert!(said.starts_with(&start), "{said}");
    fleet.edit_by_hand("ann");
    fleet.until_value("first");
    // A signature that is added later is found.
    sign(&second, Form::FallbackTag);
    fleet.until_value("second");
    fleet.until_not("Stalled");

    // Without the registry, the state stays.
    registry.answer_with(|_| Response::builder().status(403).body(Body::empty()).ok());
    let said = fleet.until_condition("SourceUnavailable", "Unreachable");
    assert!(
        said.contains("unauthorized: the registry answered 403"),
        "{said}"
    );
    registry.answer_with(|_| None);
    fleet.until_not("SourceUnavailable");

    // A tag that moves back is followed.
    registry.move_tag("fleet:production", &first);
    fleet.until_value("first");
    // Another key revokes the trust.
    let other = CosignKey::generate().unwrap();
    fleet.file("fleet.pub", &other.public_pem());
    let said = fleet.until_condition("Stalled", "UntrustedArtifact");
    assert!(said.contains("a signature is by another key"), "{said}");
    fleet.file("fleet.pub", &key.public_pem());
    fleet.until_not("Stalled");
    running.stopped();

    // A restart gives the same artifact the same revision.
    let name = "release.pleach.dev/loop-artifact.web";
    let revision = || fleet.get(&[name]).unwrap()["status"]["record"]["revision"].clone();
    let before = revision();
    let running = fleet.runs_with(&["--config", &config]);
    fleet.until_reconciled_twice(&running);
    assert_eq!(revision(), before);
    running.stopped();
}
