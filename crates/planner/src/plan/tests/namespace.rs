//! The release namespace, if no manifest contains it.

use rstest::rstest;

use super::scene::Scene;
use super::{changes, edges, lines};
use crate::plan::{Body, EdgeReason, Need, Op};
use pleach_model::object::labels;

const GIT: &str = "ConfigMap/web/c: {}";

#[test]
fn a_namespace_is_created_before_its_objects() {
    let plan = Scene::new().gone("Namespace/web").git(GIT).plan();
    assert_eq!(
        changes(&plan),
        [
            "create ConfigMap/web/c: it does not exist yet",
            "create Namespace/web: objects of the release are in it, and no manifest contains it",
        ]
    );
    let [namespace, config] = &plan.steps[..2] else {
        panic!()
    };
    let Op::Apply {
        body: Body::Inline(body),
        ..
    } = &namespace.op
    else {
        panic!()
    };
    assert!(body.0["metadata"]["labels"][labels::PART_OF].is_string());
    let edge = &config.needs[0];
    assert_eq!(
        (edge.from, edge.state, &edge.why),
        (namespace.id, Need::Applied, &EdgeReason::Namespace)
    );
}

#[test]
fn an_existing_namespace_is_unchanged_and_is_no_member() {
    let plan = Scene::new().git(GIT).plan();
    assert_eq!(
        changes(&plan),
        ["create ConfigMap/web/c: it does not exist yet"]
    );
}

#[test]
fn a_namespace_that_we_created_stays_a_member() {
    let plan = Scene::new()
        .installed("Namespace/web: {}")
        .installed(GIT)
        .git(GIT)
        .plan();
    assert_eq!(
        changes(&plan),
        [
            "unchanged ConfigMap/web/c: in sync",
            "unchanged Namespace/web: in sync"
        ]
    );
    assert!(!plan.has_steps());
}

#[test]
fn a_namespace_is_not_created_if_the_environment_forbids_it() {
    let plan = Scene::new()
        .gone("Namespace/web")
        .git(GIT)
        .with_desired(|desired| desired.create_namespace = false)
        .plan();
    assert_eq!(plan.findings[0].code, "namespace-missing");
    assert!(plan.findings[0].is_error());
}

#[test]
fn a_terminating_namespace_is_awaited() {
    let plan = Scene::new()
        .git(GIT)
        .meta("Namespace/web", |meta| meta.deleting = true)
        .plan();
    let verbs: Vec<&str> = plan.steps.iter().map(|step| step.op.verb()).collect();
    assert_eq!(verbs[..3], ["wait", "apply", "apply"]);
    assert_eq!(plan.steps[1].needs[0].state, Need::Absent);
}

#[test]
fn without_objects_no_namespace_is_created() {
    let plan = Scene::new()
        .gone("Namespace/web")
        .git("Namespace/other: {}")
        .plan();
    assert_eq!(
        changes(&plan),
        ["create Namespace/other: it does not exist yet"]
    );
}

#[test]
fn a_missing_namespace_is_refused_before_any_write() {
    let git = "ConfigMap/web/c: {}\nConfigMap/elsewhere/a: {}\nConfigMap/elsewhere/b: {}";
    let plan = Scene::new().git(git).plan();
    let errors = plan.findings.iter().filter(|finding| finding.is_error());
    let shown: Vec<(&str, &str)> = errors
        .map(|finding| (finding.code.as_str(), finding.message.as_str()))
        .collect();
    assert_eq!(
        shown,
        [(
            "namespace-missing",
            "namespace elsewhere does not exist, and the release does not create it"
        )]
    );
    assert!(plan.findings.iter().any(crate::plan::is_refusal));
}

#[rstest]
#[case::a_manifest("Namespace/elsewhere: {}\nConfigMap/elsewhere/a: {}", false)]
#[case::an_earlier_release("ConfigMap/elsewhere/a: {}", true)]
#[case::that_of_the_records("ConfigMap/pleach-system/a: {}", false)]
fn a_namespace_of_a_prior_release_is_awaited(#[case] git: &str, #[case] is_of_prior_release: bool) {
    let scene = Scene::new().git(git).with_desired(|desired| {
        let namespace = is_of_prior_release.then_some("elsewhere");
        desired.terms.prior_releases.add(&[], namespace);
    });
    let plan = scene.plan();
    let codes: Vec<&str> = plan
        .findings
        .iter()
        .map(|finding| finding.code.as_str())
        .collect();
    assert_eq!(codes, [""; 0]);
}

const API: &str = "Service/web/api: {spec: {selector: {app: api}}}\nDeployment.apps/web/api: {spec: {template: {metadata: {labels: {app: api}}}}}\n\
    APIService.apiregistration.k8s.io/v1.sub.x.org: {spec: {group: sub.x.org, version: v1, service: {namespace: web, name: api}}}";

/// The deletion of the namespace waits for an API whose server is in it.
#[rstest]
#[case::of_the_bundle("Namespace/web: {}\n", "web", true)]
#[case::made_for_the_release("", "web", true)]
#[case::of_others("", "other", false)]
fn an_api_served_from_a_terminating_namespace_is_deleted_and_recreated(
    #[case] namespace: &str,
    #[case] terminating: &str,
    #[case] expected: bool,
) {
    let git = format!(
        "{namespace}{}",
        API.replace("namespace: web", &format!("namespace: {terminating}"))
    );
    let namespace = format!("Namespace/{terminating}");
    let mut scene = Scene::new();
    if terminating != "web" {
        scene = scene.live("Namespace/other: {}");
    }
    let plan = scene
        .installed(&git)
        .git(&git)
        .meta(&namespace, |meta| meta.deleting = true)
        .plan();
    assert!(
        !plan
            .findings
            .iter()
            .any(pleach_model::finding::Finding::is_error)
    );
    let lines = lines(&plan);
    let api = "APIService.apiregistration.k8s.io/v1.sub.x.org";
    let at = |text: &str| lines.iter().position(|line| line.starts_with(text));
    let deleted = at(&format!("definitions: delete {api}"));
    assert_eq!(deleted.is_some(), expected, "{lines:#?}");
    if expected {
        assert!(deleted < at("definitions: wait Namespace/web until gone"));
        assert!(
            at("workloads: apply Deployment.apps/web/api")
                < at(&format!("registrations: apply {api}"))
        );
        let edge = format!("{api} -> Namespace/web (wait): Absent Leftover");
        assert!(edges(&plan).contains(&edge), "{:#?}", edges(&plan));
    }
}
