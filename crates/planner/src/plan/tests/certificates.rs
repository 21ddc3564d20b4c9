//! Certificates that expire soon.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use jiff::Timestamp;
use rstest::rstest;

use super::scene::Scene;
use pleach_model::finding::Severity;

/// Expires on 2026-12-22.
const SHORT: &str = include_str!("certificates/short.pem");
/// Expires on 2036-11-19.
const LONG: &str = include_str!("certificates/long.pem");

const LONG_BEFORE: &str = "2026-12-01T00:00:00Z";
const BEFORE: &str = "2026-12-20T00:00:00Z";
const AFTER: &str = "2027-01-01T00:00:00Z";

fn encoded(pems: &[&str]) -> String {
    STANDARD.encode(pems.concat())
}

fn tls(kind: &str, pems: &[&str]) -> String {
    format!(
        "Secret/web/tls: {{type: {kind}, data: {{tls.crt: {}, tls.key: a2V5}}}}",
        encoded(pems)
    )
}

fn webhooks(pems: &[&str]) -> String {
    format!(
        "ValidatingWebhookConfiguration.admissionregistration.k8s.io/hooks: {{webhooks: [{{name: a.org, clientConfig: {{caBundle: {}}}}}]}}",
        encoded(pems)
    )
}

fn api(pems: &[&str]) -> String {
    format!(
        "APIService.apiregistration.k8s.io/v1.a.org: {{spec: {{group: a.org, version: v1, caBundle: {}}}}}",
        encoded(pems)
    )
}

fn messages(git: &str, at: &str) -> Vec<String> {
    let at: Timestamp = at.parse().unwrap();
    let plan = Scene::new()
        .git(git)
        .cluster(|observed| observed.at = at)
        .plan();
    let found = plan
        .findings
        .iter()
        .filter(|finding| finding.code == "certificate-ends");
    found
        .map(|finding| {
            assert_eq!(finding.severity, Severity::Warning);
            assert!(finding.object.is_some() && finding.place.is_some());
            finding.message.clone()
        })
        .collect()
}

#[rstest]
#[case::weeks_before(&tls("kubernetes.io/tls", &[SHORT]), LONG_BEFORE, &[])]
#[case::soon(&tls("kubernetes.io/tls", &[SHORT]), BEFORE, &["the certificate in data[tls.crt] expires at 2026-12-22T02:18:49Z"])]
#[case::over(&tls("kubernetes.io/tls", &[SHORT]), AFTER, &["the certificate in data[tls.crt] expired at 2026-12-22T02:18:49Z"])]
#[case::a_chain_ends_with_its_first(&tls("kubernetes.io/tls", &[LONG, SHORT]), BEFORE, &["the certificate in data[tls.crt] expires at 2026-12-22T02:18:49Z"])]
#[case::another_secret(&tls("Opaque", &[SHORT]), AFTER, &[])]
#[case::an_authority(&webhooks(&[SHORT]), BEFORE, &["the certificate in webhooks[a.org].clientConfig.caBundle expires at 2026-12-22T02:18:49Z"])]
#[case::one_of_two_authorities(&webhooks(&[SHORT, LONG]), AFTER, &[])]
#[case::an_api(&api(&[SHORT]), AFTER, &["the certificate in spec.caBundle expired at 2026-12-22T02:18:49Z"])]
#[case::no_certificate(&tls("kubernetes.io/tls", &["hello"]), AFTER, &[])]
#[case::nothing(&webhooks(&[]), AFTER, &[])]
fn certificates_that_expire_within_a_week_are_reported(
    #[case] git: &str,
    #[case] at: &str,
    #[case] expected: &[&str],
) {
    assert_eq!(messages(git, at), expected);
}

#[test]
fn a_bundle_may_have_line_breaks() {
    let git = api(&[SHORT])
        .replace("caBundle: ", "caBundle: \"")
        .replace("}}", "\\n\"}}");
    assert!(git.ends_with("\\n\"}}"), "{git}");
    assert_eq!(messages(&git, AFTER).len(), 1);
}

#[test]
fn an_empty_plan_reports_no_certificates() {
    let git = tls("kubernetes.io/tls", &[SHORT]);
    let at: Timestamp = AFTER.parse().unwrap();
    let plan = Scene::new()
        .installed(&git)
        .git(&git)
        .cluster(|observed| observed.at = at)
        .plan();
    assert!(plan.findings.is_empty(), "{:?}", plan.findings);
}

#[test]
fn an_ignored_certificate_is_reported_only_for_a_new_object() {
    let at: Timestamp = AFTER.parse().unwrap();
    let id = "ValidatingWebhookConfiguration.admissionregistration.k8s.io/hooks";
    let scene = Scene::new()
        .git(&format!("{}\nConfigMap/web/new: {{}}", webhooks(&[SHORT])))
        .cluster(|observed| observed.at = at);
    let is_reported = |scene: &Scene| {
        let plan = scene.plan();
        let mut found = plan.findings.iter();
        found.any(|finding| finding.code == "certificate-ends")
    };
    let installed = scene.clone().installed(&webhooks(&[SHORT]));
    assert!(is_reported(&installed));
    let field = "webhooks[*].clientConfig.caBundle";
    assert!(!is_reported(&installed.ignores(id, &[field])));
    // An ignored field is sent with a new object.
    assert!(is_reported(&scene.ignores(id, &[field])));
}
