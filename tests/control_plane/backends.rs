//! Services that convert objects or answer webhooks: what points at one goes
//! before it, and one that somebody needs who stays does not go.

use std::sync::OnceLock;

use pleach::io::throwaway::ControlPlane;
use pleach_testkit::audit::Events;

use crate::fleet::{Fleet, object_writes};
use crate::samples::{BUNDLE, config_map, webhook};

/// A control plane of their own: a definition whose webhook does not answer would
/// be in the way of all other tests.
fn plane() -> &'static ControlPlane {
    static PLANE: OnceLock<ControlPlane> = OnceLock::new();
    PLANE.get_or_init(crate::control_plane)
}

/// A release whose first version has a Service, and an object that points at it;
/// the second one has neither. It is applied in the first one.
fn installed(environment: &'static str, object: &str) -> Fleet {
    let release = format!(
        "  - {{name: shop, bundle: shop, version: v1.0.0, namespace: {environment}, timeout: 20s}}\n"
    );
    let service = "\
apiVersion: v1
kind: Service
metadata: {name: engine}
spec: {selector: {app: engine}, ports: [{port: 443}]}
";
    let anchor = config_map("anchor", "v");
    let first = [anchor.as_str(), service, object].join("---\n");
    let files = [
        ("manifests/shop/bundle.yaml", BUNDLE),
        ("manifests/shop/v1.0.0/all.yaml", first.as_str()),
        ("manifests/shop/v1.1.0/all.yaml", anchor.as_str()),
    ];
    let fleet = Fleet::on(plane(), environment, &release, &files);
    fleet.applied();
    fleet
}

fn upgrade(fleet: &Fleet) {
    fleet.edit_environment("version: v1.0.0", "version: v1.1.0");
    fleet.commit();
}

/// Defines Gears in two versions, between which the Service converts.
fn gears(environment: &str) -> String {
    let group = format!("{environment}.example.org");
    let version = |name: &str, storage: bool| {
        format!(
            "    - {{name: {name}, served: true, storage: {storage}, schema: {{openAPIV3Schema: {{type: object, x-kubernetes-preserve-unknown-fields: true}}}}}}\n"
        )
    };
    let versions = [version("v1", true), version("v1alpha1", false)].concat();
    format!(
        "\
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {{name: gears.{group}}}
spec:
  group: {group}
  scope: Namespaced
  names: {{plural: gears, singular: gear, kind: Gear}}
  conversion:
    strategy: Webhook
    webhook:
      conversionReviewVersions: [v1]
      clientConfig: {{service: {{namespace: {environment}, name: engine}}}}
  versions:
{versions}"
    )
}

/// What was deleted, in the order of the answers, beside what every release has.
fn deleted(events: &Events) -> Vec<String> {
    let deletions = object_writes(events).into_iter();
    let deletions = deletions.filter_map(|line| {
        let object = line.strip_prefix("delete ")?.to_owned();
        (!object.starts_with("configmaps ")).then_some(object)
    });
    deletions.collect()
}

#[test]
fn a_definition_that_stays_keeps_the_service_that_converts_its_objects() {
    let fleet = installed("converts", &gears("converts"));
    let service = ["service/engine", "-n", "converts"];
    let stays = "goes, and CustomResourceDefinition.apiextensions.k8s.io/gears.converts.example.org stays; this Service converts its objects";
    let uninstall = ["uninstall", "converts/shop", "--yes"];
    fleet
        .writes_nothing(|fleet| fleet.run(&uninstall).ended_with(7))
        .says(stays);
    upgrade(&fleet);
    fleet
        .writes_nothing(|fleet| fleet.apply().ended_with(7))
        .says(stays)
        .says("nothing was written");
    assert!(fleet.exists(&service));

    // With the consent both go, the definition first.
    let consent = "{action: delete, kind: CustomResourceDefinition, name: gears.converts.example.org, release: shop, from: v1.0.0, to: v1.1.0}";
    fleet.apply().says(consent);
    fleet.extend_environment(&format!("consent: [{consent}]\n"));
    fleet.commit();
    let (_, events) = fleet.watched(Fleet::applied);
    assert_eq!(
        deleted(&events),
        [
            "apiextensions.k8s.io customresourcedefinitions gears.converts.example.org 200",
            "services converts/engine 200",
        ]
    );
}

#[test]
fn an_uninstall_deletes_a_definition_before_the_service_that_converts_its_objects() {
    let fleet = installed("unconverts", &gears("unconverts"));
    fleet.extend_environment(
        "consent: [{action: delete, kind: CustomResourceDefinition, name: gears.unconverts.example.org, release: shop, from: v1.0.0}]\n",
    );
    fleet.commit();
    let uninstall = ["uninstall", "unconverts/shop", "--yes"];
    let (_, events) = fleet.watched(|fleet| fleet.run(&uninstall).ended_with(0));
    assert_eq!(
        deleted(&events),
        [
            "apiextensions.k8s.io customresourcedefinitions gears.unconverts.example.org 200",
            "services unconverts/engine 200",
        ]
    );
}

/// Somebody wants it to stay.
fn keep(fleet: &Fleet) {
    let object = fleet.environment;
    let kind = "validatingwebhookconfiguration";
    fleet.kubectl(&["annotate", kind, object, "pleach.dev/prune=disabled"]);
}

#[test]
fn a_registration_that_stays_keeps_the_service_that_answers_it() {
    let fleet = installed("answers", &webhook("answers", "engine"));
    keep(&fleet);
    upgrade(&fleet);
    let object = "ValidatingWebhookConfiguration.admissionregistration.k8s.io/answers";
    fleet
        .writes_nothing(|fleet| fleet.apply().ended_with(7))
        .says(&format!(
            "goes, and {object} stays; this Service answers its webhooks"
        ))
        .says(&format!(
            "to delete {object} as well, take its annotation pleach.dev/prune off"
        ));
    assert!(fleet.exists(&["service/engine", "-n", "answers"]));

    let kind = "validatingwebhookconfiguration";
    fleet.kubectl(&["annotate", kind, "answers", "pleach.dev/prune-"]);
    let (_, events) = fleet.watched(Fleet::applied);
    assert_eq!(
        deleted(&events),
        [
            "admissionregistration.k8s.io validatingwebhookconfigurations answers 200",
            "services answers/engine 200",
        ]
    );
}

#[test]
fn who_knows_that_nobody_needs_it_says_so() {
    let fleet = installed("answered", &webhook("answered", "engine"));
    keep(&fleet);
    upgrade(&fleet);
    let consent = "{action: override, check: backend-goes, kind: Service, namespace: answered, name: engine, release: shop, from: v1.0.0, to: v1.1.0, reason: …}";
    fleet
        .writes_nothing(|fleet| fleet.apply().ended_with(7))
        .says(consent);
    let consent = consent.replace('…', "nobody calls it");
    fleet.extend_environment(&format!("consent: [{consent}]\n"));
    fleet.commit();
    let (run, events) = fleet.watched(Fleet::applied);
    run.says("check backend-goes is overridden (nobody calls it)");
    assert_eq!(deleted(&events), ["services answered/engine 200"]);
    assert!(fleet.exists(&["validatingwebhookconfiguration", "answered"]));
}
