//! Plans against another revision instead of a cluster.

use std::collections::BTreeMap;

use crate::observe::{Base, Observed};
use crate::plan::{Action, Desired, Plan, Policy, plan_offline};
use crate::text_diff::View;
use crate::view::Drawing;
use pleach_fields::diff::{Cause, fields::Scope, masking::Masker};
use pleach_model::kinds::{Catalog, Crds, KindTable};
use pleach_model::object::DigestKey;

use super::scene::Scene;

/// Builds a release at a revision of git.
fn revision(text: &str) -> Desired {
    let mut desired = Scene::new().git(text).desired;
    desired.digest_with(Some(&key()));
    desired
}

fn key() -> DigestKey {
    DigestKey::new(b"of this run".to_vec())
}

/// Builds the same release under another name.
fn other(text: &str) -> Desired {
    let mut scene = Scene::new();
    scene.desired.name.release = "other".to_owned();
    let mut desired = scene.git(text).desired;
    desired.digest_with(Some(&key()));
    desired
}

fn observed(base: Option<&Desired>, others: &[Desired], head: &Desired) -> Observed {
    let (kinds, _) = KindTable::nearest(None);
    let others: Vec<&Desired> = others.iter().collect();
    let base = Base {
        release: base,
        others: &others,
        namespaces: &BTreeMap::new(),
        kinds: &kinds,
    };
    Observed::from_rendered(base, head)
}

fn compare(base: Option<&Desired>, others: &[Desired], head: &Desired) -> Plan {
    plan_offline(head, &observed(base, others, head), &policy())
}

fn policy() -> Policy {
    Scene::new().policy
}

/// Returns `action object` for everything that is not unchanged.
fn actions(plan: &Plan) -> Vec<String> {
    plan.changes
        .iter()
        .filter(|change| change.action != Action::Unchanged)
        .map(|change| format!("{} {}", change.action, change.object))
        .collect()
}

const BASE: &str = "
ConfigMap/web/a: {data: {k: '1', gone: x}}
ConfigMap/web/same: {data: {k: '1'}}
ConfigMap/web/old: {data: {k: '1'}}
Secret/web/s: {data: {k: MQ==}}
Deployment.apps/web/app: {spec: {replicas: 1, template: {spec: {containers: [{name: app, image: a}]}}}}
";

const HEAD: &str = "
ConfigMap/web/a: {data: {k: '2'}}
ConfigMap/web/same: {data: {k: '1'}}
ConfigMap/web/new: {data: {k: '1'}}
Secret/web/s: {data: {k: MQ==}}
Deployment.apps/web/app: {spec: {template: {spec: {containers: [{name: app, image: b}]}}}}
";

#[test]
fn a_revision_is_compared_with_another_as_if_it_were_live() {
    let (base, head) = (revision(BASE), revision(HEAD));
    let observed = observed(Some(&base), &[], &head);
    let plan = plan_offline(&head, &observed, &policy());
    assert_eq!(
        actions(&plan),
        [
            "update ConfigMap/web/a",
            "create ConfigMap/web/new",
            "delete ConfigMap/web/old",
            "update Deployment.apps/web/app",
        ]
    );
    assert!(plan.findings.is_empty(), "{:?}", plan.findings);
    for change in &plan.changes {
        assert_eq!(change.unverified, None);
        if change.action == Action::Update {
            assert_eq!(change.cause, Some(Cause::Git));
        }
    }
    let view = View {
        scope: Scope::Owned,
        status: false,
        full_deletes: false,
    };
    let policy = policy();
    let (table, _) = KindTable::nearest(None);
    let drawing = Drawing {
        desired: &head,
        observed: &observed,
        policy: &policy,
        kinds: Catalog {
            table: &table,
            crds: &Crds::default(),
        },
        view,
    };
    let drawn = drawing.release(&plan, &mut Masker::new(key()));
    let fields: Vec<String> = drawn
        .objects
        .iter()
        .flat_map(|diff| &diff.fields)
        .map(|field| field.path.to_string())
        .collect();
    assert_eq!(
        fields,
        [
            ".data.gone",
            ".data.k",
            ".spec.replicas",
            ".spec.template.spec.containers[name=\"app\"].image",
        ]
    );
}

#[test]
fn the_same_revision_changes_nothing() {
    let base = revision(BASE);
    let plan = compare(Some(&base), &[], &base);
    assert_eq!(actions(&plan), [] as [&str; 0]);
    assert!(plan.steps.is_empty() && plan.findings.is_empty());
}

#[test]
fn a_new_release_is_created_with_its_namespace() {
    let plan = compare(None, &[], &revision("ConfigMap/web/a: {}"));
    assert_eq!(
        actions(&plan),
        ["create ConfigMap/web/a", "create Namespace/web"]
    );
    // A namespace used by another release exists.
    let neighbor = other("ConfigMap/web/b: {}");
    let plan = compare(None, &[neighbor], &revision("ConfigMap/web/a: {}"));
    assert_eq!(actions(&plan), ["create ConfigMap/web/a"]);
}

#[test]
fn an_object_of_another_release_is_blocked() {
    let neighbor = other("ConfigMap/web/a: {}");
    let plan = compare(None, &[neighbor], &revision("ConfigMap/web/a: {}"));
    assert_eq!(actions(&plan), ["blocked ConfigMap/web/a"]);
    assert_eq!(plan.findings[0].code, "foreign-apply-set");
}

#[test]
fn versions_are_checked_as_for_a_cluster() {
    let mut base = revision("ConfigMap/web/a: {}");
    "v1.0.0".clone_into(&mut base.version);
    let head = revision("ConfigMap/web/a: {}");
    let mut policy = policy();
    policy.versions.upgrades_from = Some(">=1.5.0".parse().unwrap());
    let plan = plan_offline(&head, &observed(Some(&base), &[], &head), &policy);
    assert_eq!(plan.from.as_deref(), Some("v1.0.0"));
    assert_eq!(plan.findings[0].code, "version-path");
}

#[test]
fn crds_are_awaited_and_their_kinds_are_known() {
    let crd = "
CustomResourceDefinition.apiextensions.k8s.io/foos.x.org: {spec: {group: x.org, scope: Namespaced,
  names: {kind: Foo, plural: foos}, versions: [{name: v1, served: true}]}}
Foo.x.org/web/a: {spec: {x: 1}}
";
    let plan = compare(None, &[], &revision(crd));
    assert!(plan.findings.is_empty(), "{:?}", plan.findings);
    assert!(actions(&plan).contains(&"create Foo.x.org/web/a".to_owned()));
    // The kind is defined by another release, or by none; rendering has
    // reported it.
    let plan = compare(
        None,
        &[other(crd)],
        &revision("Foo.x.org/web/b: {}\nBar.y.org/web/b: {}"),
    );
    assert_eq!(
        actions(&plan),
        ["create Foo.x.org/web/b", "create Bar.y.org/web/b"]
    );
}

#[test]
fn registrations_are_deleted_with_their_service() {
    let base = revision(
        "
Service/web/api: {spec: {selector: {app: api}}}
ValidatingWebhookConfiguration.admissionregistration.k8s.io/api:
  {webhooks: [{name: a.x.org, clientConfig: {service: {namespace: web, name: api}}}]}
",
    );
    let head = revision("ConfigMap/web/a: {}");
    let plan = compare(Some(&base), &[], &head);
    assert_eq!(
        actions(&plan),
        [
            "create ConfigMap/web/a",
            "delete Service/web/api",
            "delete ValidatingWebhookConfiguration.admissionregistration.k8s.io/api",
        ]
    );
}
