//! Services for conversions or webhooks: registrations are removed before their Service. A Service
//! that a remaining object needs is not removed.

use std::sync::OnceLock;

use pleach_testkit::audit::Events;
use pleach_testkit::faults::{Fault, FaultProxy, Moment, Rule};
use pleach_testkit::throwaway::ControlPlane;

use crate::fleet::{Fleet, object_writes};
use crate::samples::{ANYTHING, BUNDLE, config_map, deployment, gears_of, webhook};

/// Returns a separate control plane. A CRD with a dead conversion webhook would break all other
/// tests.
fn plane() -> &'static ControlPlane {
    static PLANE: OnceLock<ControlPlane> = OnceLock::new();
    PLANE.get_or_init(crate::control_plane)
}

/// Returns a release, applied in its first version. The first version has a Service and an object
/// that refers to it; the second one has neither.
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

/// Returns a CRD with two versions whose conversion uses the Service.
fn gears(environment: &str) -> String {
    let group = format!("{environment}.example.org");
    let conversion = format!(
        "  conversion:
    strategy: Webhook
    webhook:
      conversionReviewVersions: [v1]
      clientConfig: {{service: {{namespace: {environment}, name: engine}}}}
"
    );
    gears_of(&group, &["v1", "v1alpha1"], ANYTHING) + &conversion
}

/// Returns the deleted objects in order of the answers, without those of every release.
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
    let stays = "is deleted, but CustomResourceDefinition.apiextensions.k8s.io/gears.converts.example.org stays; this Service converts its objects";
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

    // With the consent, both are removed, the CRD first.
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

/// Annotates the object to be retained.
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
            "is deleted, but {object} stays; this Service serves its webhooks"
        ))
        .says(&format!(
            "to delete {object} as well, remove its annotation pleach.dev/prune"
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
    let consent = "{action: override, check: backend-removed, kind: Service, namespace: answered, name: engine, release: shop, from: v1.0.0, to: v1.1.0, reason: …}";
    fleet
        .writes_nothing(|fleet| fleet.apply().ended_with(7))
        .says(consent);
    let consent = consent.replace('…', "nobody calls it");
    fleet.extend_environment(&format!("consent: [{consent}]\n"));
    fleet.commit();
    let (run, events) = fleet.watched(Fleet::applied);
    run.says("check backend-removed is overridden (nobody calls it)");
    assert_eq!(deleted(&events), ["services answered/engine 200"]);
    assert!(fleet.exists(&["validatingwebhookconfiguration", "answered"]));
}

/// Registers a webhook as pods do, and recreates it before the answer to its first deletion.
/// Returns the proxy for this.
fn registers_again(fleet: &Fleet, name: &'static str, deleted: &'static str) -> FaultProxy {
    let file = fleet.file("hook", &webhook(name, "engine"));
    fleet.kubectl(&["apply", "-f", &file]);
    let kubectl = plane().kubectl().to_owned();
    let kubeconfig = plane().kubeconfig().to_owned();
    let register = Fault::hook(Moment::BeforeAnswer, move || {
        let mut command = std::process::Command::new(&kubectl);
        command.arg("--kubeconfig").arg(&kubeconfig);
        let done = command.args(["apply", "-f", &file]).output().unwrap();
        assert!(done.status.success(), "{done:?}");
    });
    let proxy = FaultProxy::start(plane().kubeconfig()).unwrap();
    let is_it = move |path: &str| path.ends_with(&format!("/{deleted}"));
    let rule = Rule::on(
        move |seen| seen.method == "DELETE" && is_it(&seen.path),
        register,
    );
    proxy.add(rule.nth(1));
    proxy
}

#[test]
fn what_pods_register_again_while_they_are_pruned_goes_before_their_service() {
    let mut fleet = installed("reregisters", &deployment("engine"));
    let hook = "validatingwebhookconfigurations/reregisters";
    let proxy = registers_again(&fleet, "reregisters", hook);
    upgrade(&fleet);
    fleet.through(proxy.kubeconfig());
    let (run, events) = fleet.watched(Fleet::applied);
    run.says("points at Service reregisters/engine, which is deleted");
    assert_eq!(proxy.log().faults().count(), 1);
    assert_eq!(
        deleted(&events),
        [
            "admissionregistration.k8s.io validatingwebhookconfigurations reregisters 200",
            // The gate of the handover, after the new registrations are ready.
            "admissionregistration.k8s.io validatingadmissionpolicybindings reregisters.shop.handover 200",
            "admissionregistration.k8s.io validatingadmissionpolicies reregisters.shop.handover 200",
            "apps deployments reregisters/engine 200",
            "admissionregistration.k8s.io validatingwebhookconfigurations reregisters 200",
            "services reregisters/engine 200",
        ]
    );
    assert!(!fleet.exists(&["validatingwebhookconfiguration", "reregisters"]));
    fleet.audited();
    fleet.writes_nothing(Fleet::applied);
}

#[test]
fn what_comes_back_after_its_service_went_goes_with_the_next_apply() {
    let mut fleet = installed("late", &deployment("engine"));
    let proxy = registers_again(&fleet, "late", "services/engine");
    upgrade(&fleet);
    fleet.through(proxy.kubeconfig());
    fleet
        .applied()
        .says("points at Service late/engine, which is gone: another client recreated it");
    assert_eq!(proxy.log().faults().count(), 1);
    assert!(fleet.exists(&["validatingwebhookconfiguration", "late"]));

    let (run, events) = fleet.watched(Fleet::applied);
    run.says("points at Service late/engine, which is deleted");
    assert_eq!(
        deleted(&events),
        ["admissionregistration.k8s.io validatingwebhookconfigurations late 200"]
    );
    fleet.writes_nothing(Fleet::applied);
}

/// Returns a webhook of a release that validates the Lease of the same release.
fn guards_itself() -> String {
    let rules = "    rules: [{apiGroups: [coordination.k8s.io], apiVersions: ['*'], operations: [CREATE], resources: [leases]}]\n";
    let guard = webhook("guards", "engine").replace("failurePolicy: Ignore", "failurePolicy: Fail");
    let (start, _) = guard.split_once("    rules:").unwrap();
    // Limit it to this Lease, so that other tests are not affected.
    let only = "    matchConditions: [{name: own, expression: \"object.metadata.name == 'guards.shop'\"}]\n    timeoutSeconds: 1\n";
    [start, rules, only].concat()
}

#[test]
fn a_release_that_locks_itself_out_says_how_to_go_on() {
    let fleet = installed("guards", &guards_itself());
    upgrade(&fleet);
    let command = "kubectl delete validatingwebhookconfiguration guards";
    fleet
        .apply()
        .ended_with(4)
        .says("ValidatingWebhookConfiguration.admissionregistration.k8s.io/guards blocks the writes of pleach")
        .says("make sure that Service guards/engine has ready endpoints")
        .says(&format!("`{command}`: the next apply creates it again"));
    fleet.kubectl(&["delete", "validatingwebhookconfiguration", "guards"]);
    fleet.applied();
}

/// `plan` and `apply` report this, and the doctor does not suggest `apply`.
#[test]
fn a_registration_that_git_has_without_its_service_is_to_be_fixed_in_git() {
    let fleet = installed("unbacked", &webhook("unbacked", "absent"));
    let says = "Service unbacked/absent, which it points at, is neither in git nor in the cluster";
    fleet.run(&["plan", "unbacked"]).ended_with(0).says(says);
    fleet.applied().says(says);
    fleet
        .run(&["doctor"])
        .ended_with(1)
        .says("release unbacked/shop contains it, but not Service unbacked/absent")
        .says("add the Service to the files, or remove the registration");
}
