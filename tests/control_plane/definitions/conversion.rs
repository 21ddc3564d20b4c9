//! A conversion webhook is removed after another client modified the conversion.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use super::{crd, definition, fleet, group, migrate, names, not_applied, upgrade};
use crate::fleet::Fleet;
use crate::samples::deployment;

/// Returns a release whose CRD has a conversion webhook with an injected CA bundle. In git, the CRD
/// has these versions and no webhook.
fn injected(environment: &'static str, versions: &[&str]) -> Fleet {
    const PEM: &str = include_str!("../../../crates/planner/src/plan/tests/certificates/long.pem");
    let g = group(environment);
    let service = "apiVersion: v1\nkind: Service\nmetadata: {name: app}\nspec: {selector: {app: app}, ports: [{port: 443}]}\n";
    let conversion = format!(
        "  conversion:\n    strategy: Webhook\n    webhook:\n      conversionReviewVersions: [v1]\n      clientConfig: {{service: {{namespace: {environment}, name: app}}}}\n"
    );
    let before = definition(&g, &["v1", "v1beta1"], &["a"]) + &conversion;
    let fleet = fleet(
        environment,
        &format!("{before}---\n{service}---\n{}", deployment("app")),
        &format!(
            "{}---\n{}",
            definition(&g, versions, &["a"]),
            deployment("app")
        ),
    );
    let bundle = STANDARD.encode(PEM);
    fleet.kubectl(&[
        "patch",
        "crd",
        &format!("gears.{g}"),
        "--type=json",
        "--field-manager=injector",
        "-p",
        &format!(
            r#"[{{"op": "add", "path": "/spec/conversion/webhook/clientConfig/caBundle", "value": "{bundle}"}}]"#
        ),
    ]);
    fleet
}

/// With a CA bundle without a certificate, the server does not establish the CRD.
#[test]
fn a_broken_conversion_is_repaired_by_the_next_commit() {
    const PEM: &str = include_str!("../../../crates/planner/src/plan/tests/certificates/long.pem");
    let g = group("repaired");
    let version = |bundle: &str| {
        let conversion = format!(
            "  conversion:\n    strategy: Webhook\n    webhook:\n      conversionReviewVersions: [v1]\n      clientConfig: {{service: {{namespace: repaired, name: app}}, caBundle: {bundle}}}\n"
        );
        let service = "apiVersion: v1\nkind: Service\nmetadata: {name: app}\nspec: {selector: {app: app}, ports: [{port: 443}]}\n";
        let definition = definition(&g, &["v1", "v1beta1"], &["a"]) + &conversion;
        format!("{definition}---\n{service}---\n{}", deployment("app"))
    };
    let bundle = STANDARD.encode(PEM);
    let fleet = not_applied("repaired", &version("Cg=="), &version(&bundle));
    fleet.edit_environment("timeout: 30s", "timeout: 2s");
    fleet.commit();
    fleet.apply().ended_with(6).says("InvalidCABundle");
    fleet.edit_environment("timeout: 2s", "timeout: 30s");
    upgrade(&fleet);
    fleet.applied();
    let client = &crd(&fleet)["spec"]["conversion"]["webhook"]["clientConfig"];
    assert_eq!(client["caBundle"], bundle);
    fleet.writes_nothing(Fleet::applied);
}

/// Verifies that the conversion is removed and the objects have moved.
fn does_without(fleet: &Fleet) {
    let live = crd(fleet);
    assert_eq!(
        live["spec"]["conversion"],
        serde_json::json!({"strategy": "None"})
    );
    assert!(!fleet.exists(&["service/app", "-n", fleet.environment]));
    fleet.writes_nothing(Fleet::applied);
}

#[test]
fn a_conversion_goes_with_the_certificates_that_others_put_into_it() {
    let fleet = injected("injected", &["v1", "v1beta1"]);
    upgrade(&fleet);
    fleet.run(&["diff", "injected"]).says("conversion");
    fleet.applied();
    does_without(&fleet);
}

#[test]
fn a_version_goes_with_the_conversion_that_others_put_certificates_into() {
    let fleet = injected("injected-too", &["v1"]);
    migrate(&fleet, "v1beta1", "v1");
    upgrade(&fleet);
    fleet.applied();
    assert_eq!(names(&crd(&fleet)["spec"]["versions"]), ["v1"]);
    does_without(&fleet);
}
