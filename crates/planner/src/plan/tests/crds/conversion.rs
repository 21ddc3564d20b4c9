//! CRDs with a conversion webhook.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use rstest::rstest;
use serde_json::json;

use super::{CRD, Instances, Scene, crd, edges, id, lines, migrated, refusals, seen, sent, things};
use crate::plan::{Body, EdgeReason, Op, Plan, tests::step_of};

const WEBHOOK: &str = ", conversion: {strategy: Webhook, webhook: {clientConfig: {service: {namespace: web, name: api}}}}";

/// Builds a release that introduces a conversion webhook, with other objects in
/// git.
fn converting(before: &str, after: &str) -> Scene {
    let service = "Service/web/api: {spec: {selector: {app: api}}}\n";
    let workload = |image: &str| {
        format!(
            "Deployment.apps/web/api: {{spec: {{replicas: 2, template: {{metadata: {{labels: {{app: api}}}}, spec: {{i: {image}}}}}}}}}\n"
        )
    };
    Scene::new()
        .installed(&format!("{service}{}{before}", workload("a")))
        .with_live(CRD, |live| live["status"]["storedVersions"] = json!(["v1"]))
        .git(&format!("{service}{}{after}", workload("b")))
        .cluster_scoped("CustomResourceDefinition.apiextensions.k8s.io")
}

#[rstest]
#[case::a_webhook_comes(converting(&crd(&["v1"], ""), &crd(&["v1"], WEBHOOK)), &["definitions: *v1", "registrations: git"])]
#[case::a_version_comes(converting(&crd(&["v1"], WEBHOOK), &crd(&["v1", "v2"], WEBHOOK)), &["definitions: *v1 v2!", "registrations: git"])]
#[case::another_one_is_stored(converting(&crd(&["v1", "v2"], WEBHOOK), &crd(&["v2", "v1"], WEBHOOK)), &["definitions: v2 *v1", "registrations: git"])]
#[case::without_a_webhook(converting(&crd(&["v1"], ""), &crd(&["v1", "v2"], "")), &["definitions: git"])]
#[case::nothing_to_convert(converting(&crd(&["v1"], WEBHOOK), &crd(&["v1"], &format!("{WEBHOOK}, preserveUnknownFields: false"))), &["definitions: git"])]
#[case::of_another_owner(
    converting(&crd(&["v1"], ""), &crd(&["v1"], &WEBHOOK.replace("name: api", "name: other"))), &["definitions: git"])]
#[case::it_is_new(
    converting(&crd(&["v1"], ""), &crd(&["v1", "v2"], WEBHOOK)).gone(CRD), &["definitions: git"])]
#[case::and_a_version_is_removed(
    migrated(converting(&crd(&["v1"], ""), &crd(&["v2"], WEBHOOK)), "v1", "v2"),
    &["definitions: v2! *v1", "registrations: *v2 v1", "shrink: *v2 v1!", "shrink: v1 to v2", "shrink: git"])]
fn converted_objects_wait_for_the_webhook(#[case] scene: Scene, #[case] expected: &[&str]) {
    let plan = scene.plan();
    assert_eq!(refusals(&plan), [""; 0]);
    assert_eq!(sent(&plan), expected);
}

/// The conversion in the cluster is broken, so none of it is retained.
#[test]
fn a_broken_conversion_is_replaced_at_once() {
    let broken = |scene: Scene, name: &str| match name {
        "not established" => scene.with_live(CRD, |live| {
            live["status"]["conditions"] = json!([{"type": "Established", "status": "False"}]);
        }),
        "no Service" => scene.backend("web/api", false, 0),
        "no endpoints" => scene.backend("web/api", true, 0),
        _ => scene.backend("web/api", true, 1),
    };
    let other = WEBHOOK.replace("service", "caBundle: Cg==, service");
    for (name, expected) in [
        (
            "not established",
            &["definitions: git", "registrations: git"],
        ),
        ("no Service", &["definitions: git", "registrations: git"]),
        ("no endpoints", &["definitions: git", "registrations: git"]),
        ("it works", &["definitions: *v1", "registrations: git"]),
    ] {
        let before = crd(&["v1"], WEBHOOK);
        let scene = converting(&before, &crd(&["v1"], &other));
        let plan = broken(scene, name).plan();
        assert_eq!(refusals(&plan), [""; 0], "{name}");
        assert_eq!(sent(&plan), expected, "{name}");
        let waits: Vec<bool> = plan
            .steps
            .iter()
            .filter(|step| step.object == id())
            .map(|step| step.until.is_some())
            .collect();
        let is_broken = expected[0] == "definitions: git";
        assert_eq!(waits, [!is_broken, true], "{name}");
        let after_its_backend = format!("Service/web/api (wait) -> {CRD}: Ready Backend");
        let edges = edges(&plan);
        assert!(edges.contains(&after_its_backend), "{name}: {edges:#?}");
    }
}

/// Builds a release that removes its conversion webhook. Objects may be stored
/// as v1, and the first version is the present storage version.
fn unconverting(before: &[&str], after: &str) -> Scene {
    converting(&crd(before, WEBHOOK), after).with_live(CRD, |live| {
        live["status"]["storedVersions"] = json!(["v1", "v2"]);
    })
}

/// Returns the conversion in every step that applies the CRD, `git` for the
/// body in git, and the storage migrations.
fn converted(plan: &Plan) -> Vec<String> {
    let steps = plan.steps.iter().filter(|step| step.object == id());
    steps
        .map(|step| match &step.op {
            Op::Apply {
                body: Body::Inline(body),
                ..
            } => format!(
                "{}: {}",
                step.stage, body.0["spec"]["conversion"]["strategy"]
            ),
            Op::Apply { .. } => format!("{}: git", step.stage),
            op => format!("{}: {}", step.stage, op.verb()),
        })
        .collect()
}

#[rstest]
#[case::with_the_removed_version(crd(&["v2"], ", conversion: {strategy: None}"),
    &["definitions: migrate", "definitions: \"Webhook\"", "shrink: \"Webhook\"", "shrink: migrate", "shrink: git"])]
#[case::git_does_not_set_it(crd(&["v2"], ""),
    &["definitions: migrate", "definitions: \"Webhook\"", "shrink: \"Webhook\"", "shrink: migrate", "shrink: git"])]
#[case::before_the_version(crd(&["v2", "v1"], ", conversion: {strategy: None}"),
    &["definitions: migrate", "definitions: git", "shrink: migrate"])]
#[case::not_at_all(crd(&["v2"], WEBHOOK),
    &["definitions: \"Webhook\"", "shrink: \"Webhook\"", "shrink: migrate", "shrink: git"])]
fn objects_are_rewritten_before_their_webhook_is_removed(
    #[case] after: String,
    #[case] expected: &[&str],
) {
    let plan = migrated(unconverting(&["v2", "v1"], &after), "v1", "v2").plan();
    assert_eq!(refusals(&plan), [""; 0]);
    assert_eq!(converted(&plan), expected);
    let edges = edges(&plan);
    let before = format!("{CRD} -> Deployment.apps/web/api: Applied Rewritten");
    let is_early = expected[0].ends_with("migrate");
    assert_eq!(edges.contains(&before), is_early, "{edges:#?}");
}

#[test]
fn a_conversion_of_another_manager_stays() {
    let git = crd(&["v2", "v1"], "");
    let scene = unconverting(&["v2", "v1"], &git).with_live(CRD, |live| {
        let entries = live["metadata"]["managedFields"].as_array_mut().unwrap();
        entries.push(json!({"manager": "injector", "operation": "Update",
            "fieldsV1": {"f:spec": {"f:conversion": {"f:strategy": {}}}}}));
    });
    let plan = seen(scene, things(&[("a", &[], &[])])).plan();
    assert_eq!(refusals(&plan), [""; 0]);
}

/// Certificates of another manager would remain without a webhook, which the
/// server refuses.
#[rstest]
#[case::at_once(unconverting(&["v2", "v1"], &crd(&["v2", "v1"], "")), &["definitions: patch", "definitions: git"])]
#[case::git_sets_none(
    unconverting(&["v2", "v1"], &crd(&["v2", "v1"], ", conversion: {strategy: None}")),
    &["definitions: patch", "definitions: git"])]
#[case::with_a_version(
    migrated(unconverting(&["v2", "v1"], &crd(&["v2"], "")), "v1", "v2"),
    &["definitions: \"Webhook\"", "shrink: \"Webhook\"", "shrink: migrate", "shrink: patch", "shrink: git"])]
fn fields_of_other_managers_are_removed_with_the_conversion(
    #[case] scene: Scene,
    #[case] expected: &[&str],
) {
    let injected = format!(
        "{CRD}: {{spec: {{conversion: {{webhook: {{clientConfig: {{caBundle: YQ==}}}}}}}}}}"
    );
    let scene = scene.edited("injector", &injected).with_live(CRD, |live| {
        live["status"]["storedVersions"] = json!(["v2"]);
    });
    let plan = seen(scene, things(&[])).plan();
    assert_eq!(refusals(&plan), [""; 0]);
    assert_eq!(converted(&plan), expected);
    let taken = plan.steps.iter().find_map(|step| match &step.op {
        Op::Own(own) => Some(own.reclaim.to_json()),
        _ => None,
    });
    assert_eq!(
        taken,
        Some(
            json!({"f:spec": {"f:conversion": {"f:webhook": {"f:clientConfig": {"f:caBundle": {}}}}}})
        )
    );
}

const LOST_CONVERSION: &str = "conversion-removed: objects may be stored as v1 (status.storedVersions), and their conversion webhook is removed: the server would read them as v2 without conversion, and they would lose fields that v2 does not have";

#[rstest]
#[case::no_migration(unconverting(&["v2", "v1"], &crd(&["v2", "v1"], "")), things(&[("a", &[], &[])]), &[LOST_CONVERSION])]
#[case::not_stored_as_that_yet(
    migrated(unconverting(&["v1", "v2"], &crd(&["v2"], "")), "v1", "v2"), things(&[("a", &[], &[])]), &[LOST_CONVERSION])]
#[case::there_are_none(unconverting(&["v2", "v1"], &crd(&["v2", "v1"], "")), things(&[]), &[])]
#[case::all_were_rewritten(
    unconverting(&["v2", "v1"], &crd(&["v2", "v1"], "")).with_live(CRD, |live| live["status"]["storedVersions"] = json!(["v2"])),
    things(&[("a", &[], &[])]), &[])]
fn a_webhook_stays_as_long_as_objects_need_it(
    #[case] scene: Scene,
    #[case] instances: Instances,
    #[case] expected: &[&str],
) {
    let plan = seen(scene, instances).plan();
    assert_eq!(refusals(&plan), expected);
}

/// A migration in the version that drops both would be refused too.
#[rstest]
#[case::with_its_webhook(unconverting(&["v1", "v2"], &crd(&["v2"], "")),
    "go through a version that stores v2, keeps the webhook, and declares `migrate: [")]
#[case::stored_as_that_already(unconverting(&["v2", "v1"], &crd(&["v2"], "")),
    "to rewrite them before the version is removed, add to version.yaml of ")]
fn the_hint_for_a_removed_version_is_applicable(#[case] scene: Scene, #[case] expected: &str) {
    let plan = seen(scene, things(&[("a", &[], &[])])).plan();
    let mut findings = plan.findings.iter();
    let stored = findings.find(|finding| finding.code == "version-stored");
    let hint = stored.and_then(|finding| finding.hint.clone()).unwrap();
    assert!(hint.starts_with(expected), "{hint}");
}

#[test]
fn the_webhook_answers_before_it_is_needed() {
    let scene = converting(
        &crd(&["v1"], ""),
        &format!(
            "{}Thing.example.org/web/t: {{spec: {{}}}}\n",
            crd(&["v2", "v1"], WEBHOOK)
        ),
    );
    let plan = scene.plan();
    let edges = edges(&plan);
    for expected in [
        format!("Service/web/api (wait) -> {CRD}: Ready Backend"),
        "Deployment.apps/web/api -> Service/web/api (wait): Ready Backend".to_owned(),
        format!("{CRD} -> Thing.example.org/web/t: Ready Crd"),
    ] {
        assert!(edges.contains(&expected), "{expected}\n{edges:#?}");
    }
    let lines = lines(&plan);
    let at = |text: &str| {
        lines
            .iter()
            .position(|line| line.starts_with(text))
            .unwrap()
    };
    assert!(at("registrations: wait Service/web/api") < at(&format!("registrations: apply {CRD}")));
    assert!(at(&format!("registrations: apply {CRD}")) < at("resources: apply Thing"));
    // The workload needs the first part, and not the part that waits for the
    // workload.
    let mut needs = step_of(&plan, "Deployment.apps/web/api").needs.iter();
    let written = needs.find(|edge| edge.why == EdgeReason::Operator).unwrap();
    let written = &plan.steps[written.from.0];
    assert_eq!(
        (written.object.to_string().as_str(), written.stage.as_str()),
        (CRD, "definitions")
    );
    // Until then the CRD serves its previous versions.
    assert!(lines.contains(&format!(
        "definitions: apply {CRD} until example.org/v1, Kind=Thing is served"
    )));
}

#[test]
fn a_new_crd_precedes_its_webhook_and_objects() {
    let release = |more: &str| {
        format!(
            "Service/web/api: {{spec: {{selector: {{app: api}}}}}}\n\
             Deployment.apps/web/api: {{{more}spec: {{template: {{metadata: {{labels: {{app: api}}}}}}}}}}\n\
             {}Thing.example.org/web/t: {{spec: {{}}}}\n",
            crd(&["v2", "v1"], WEBHOOK)
        )
    };
    let edge = "Deployment.apps/web/api -> Thing.example.org/web/t: Ready Backend".to_owned();
    let plan = Scene::new().git(&release("")).plan();
    assert_eq!(sent(&plan), ["definitions: git"]);
    assert!(edges(&plan).contains(&edge), "{:#?}", edges(&plan));
    // Resources that the workload itself needs still come first.
    let after = "metadata: {annotations: {pleach.dev/after: Thing/t}}, ";
    let plan = Scene::new().git(&release(after)).plan();
    assert_eq!(refusals(&plan), [""; 0]);
    assert!(!edges(&plan).contains(&edge));
    // Resources in an earlier stage come first too.
    let plan = Scene::new()
        .git(&release(""))
        .stage(
            "first",
            &pleach_model::order::StageName::Definitions,
            &[],
            &[],
        )
        .with_desired(|desired| {
            let select = r#"{"kind": "Thing", "group": "example.org"}"#;
            let select = serde_json::from_str(select).unwrap();
            desired.sequence.stages[0].select = vec![select];
        })
        .plan();
    assert_eq!(refusals(&plan), [""; 0]);
    assert!(!edges(&plan).contains(&edge));
}

#[test]
fn webhooks_that_need_each_other_cause_no_cycle() {
    let other = crd(&["v2", "v1"], &WEBHOOK.replace("api", "b"))
        .replace("things", "others")
        .replace("Thing", "Other");
    let workload = |name: &str, after: &str| {
        format!(
            "Service/web/{name}: {{spec: {{selector: {{app: {name}}}}}}}\n\
             Deployment.apps/web/{name}: {{metadata: {{annotations: {{pleach.dev/after: {after}}}}}, spec: {{template: {{metadata: {{labels: {{app: {name}}}}}}}}}}}\n"
        )
    };
    let git = [
        crd(&["v2", "v1"], WEBHOOK),
        other,
        workload("api", "Other/o"),
        workload("b", "Thing/t"),
        "Thing.example.org/web/t: {}\nOther.example.org/web/o: {}".to_owned(),
    ];
    let plan = Scene::new().git(&git.concat()).plan();
    assert_eq!(refusals(&plan), [""; 0]);
    let edges = edges(&plan);
    let one = "Deployment.apps/web/b -> Other.example.org/web/o: Ready Backend".to_owned();
    let two = "Deployment.apps/web/api -> Thing.example.org/web/t: Ready Backend".to_owned();
    assert!(edges.contains(&one) && !edges.contains(&two), "{edges:#?}");
}

/// Builds a CRD whose webhook has these CA certificates.
fn trusting(versions: &[&str], names: &[&str]) -> String {
    let certificate =
        |name: &&str| format!("-----BEGIN CERTIFICATE-----\n{name}\n-----END CERTIFICATE-----\n");
    let bundle = STANDARD.encode(names.iter().map(certificate).collect::<String>());
    let client = format!("{{clientConfig: {{caBundle: {bundle}, service");
    crd(
        versions,
        &WEBHOOK.replace("{clientConfig: {service", &client),
    )
}

/// Returns the certificates in the sent bodies, in order; `git` for the body in
/// git.
fn trusted(plan: &Plan) -> Vec<String> {
    let steps = plan.steps.iter().filter(|step| step.object == id());
    steps
        .filter_map(|step| match &step.op {
            Op::Apply { body, .. } => Some((&step.stage, body)),
            _ => None,
        })
        .map(|(stage, body)| {
            let Body::Inline(body) = body else {
                return format!("{stage}: git");
            };
            let client = &body.0["spec"]["conversion"]["webhook"]["clientConfig"];
            let bundle = STANDARD
                .decode(client["caBundle"].as_str().unwrap())
                .unwrap();
            let bundle = String::from_utf8(bundle).unwrap();
            let names = bundle.lines().filter(|line| !line.starts_with('-'));
            format!("{stage}: {}", names.collect::<Vec<_>>().join(" "))
        })
        .collect()
}

#[rstest]
#[case::another(trusting(&["v1"], &["old"]), trusting(&["v1"], &["new"]), &["definitions: old", "registrations: new old", "shrink: git"])]
#[case::the_same(trusting(&["v1"], &["old"]), trusting(&["v1", "v2!"], &["old"]), &["definitions: git"])]
#[case::one_more(trusting(&["v1"], &["old"]), trusting(&["v1"], &["new", "old"]), &["definitions: old", "registrations: git"])]
fn a_conversion_trusts_both_versions_until_the_previous_pods_are_gone(
    #[case] before: String,
    #[case] after: String,
    #[case] expected: &[&str],
) {
    let plan = converting(&before, &after).plan();
    assert_eq!(refusals(&plan), [""; 0]);
    assert_eq!(trusted(&plan), expected);
}

#[test]
fn a_removed_version_removes_the_previous_certificates() {
    let scene = converting(&trusting(&["v1"], &["old"]), &trusting(&["v2"], &["new"]));
    let plan = migrated(scene, "v1", "v2").plan();
    assert_eq!(refusals(&plan), [""; 0]);
    assert_eq!(
        trusted(&plan),
        [
            "definitions: old",
            "registrations: new old",
            "shrink: new",
            "shrink: git",
        ]
    );
}

#[test]
fn without_replaced_pods_git_decides_the_ca_bundle() {
    let plan = Scene::new()
        .installed(&trusting(&["v1"], &["old"]))
        .with_live(CRD, |live| live["status"]["storedVersions"] = json!(["v1"]))
        .git(&trusting(&["v1"], &["new"]))
        .cluster_scoped("CustomResourceDefinition.apiextensions.k8s.io")
        .plan();
    assert_eq!(trusted(&plan), ["definitions: git"]);
}
