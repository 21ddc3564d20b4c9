//! Objects that are recreated during an uninstall.

use std::sync::atomic::{AtomicUsize, Ordering};

use pleach_testkit::faults::{Fault, FaultProxy, Moment, Rule};

use super::{everything, fleet, has_state, release};
use crate::prune::deletions;
use crate::{kubectl, samples, shared};

/// Unused webhook, as pods register it.
const WEBHOOK: &str = "\
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingWebhookConfiguration
metadata: {name: NAME}
webhooks:
  - name: a.example.org
    clientConfig: {service: {namespace: returns, name: shop}}
    rules: [{apiGroups: [none.example.org], apiVersions: [v1], operations: [CREATE], resources: [nones]}]
    sideEffects: None
    admissionReviewVersions: [v1]
";

#[test]
fn registrations_that_pods_make_anew_while_they_end_go_too() {
    let mut fleet = fleet("returns", &everything("returns"));
    fleet.applied();
    let register = |name: &str| {
        let file = fleet.file(name, &WEBHOOK.replace("NAME", name));
        kubectl::admin(&["apply", "-f", &file]);
        file
    };
    register("returns-first");
    let again = register("returns-again");
    kubectl::admin(&["delete", "-f", &again]);
    let proxy = FaultProxy::start(shared().kubeconfig()).unwrap();
    let register = Fault::hook(Moment::BeforeAnswer, move || {
        kubectl::admin(&["apply", "-f", &again]);
    });
    proxy.add(
        Rule::on(
            |seen| seen.method == "DELETE" && seen.path.ends_with("/deployments/shop"),
            register,
        )
        .nth(1),
    );
    fleet.through(proxy.kubeconfig());
    let (_, events) = fleet.watched(|fleet| {
        fleet
            .run(&["uninstall", "returns/shop", "--yes"])
            .ended_with(0)
            .says("points at Service returns/shop, which is deleted")
    });
    assert_eq!(proxy.log().faults().count(), 1);
    for gone in ["returns-first", "returns-again"] {
        assert!(
            !fleet.exists(&["validatingwebhookconfiguration", gone]),
            "{gone}"
        );
    }
    let deletions = deletions(&events);
    let last = |resource: &str| deletions.iter().rposition(|one| one == resource);
    let (workload, hook) = (last("deployments"), last("validatingwebhookconfigurations"));
    assert!(workload < hook && hook < last("services"), "{deletions:?}");
    assert!(!has_state(&fleet));
}

/// Another client recreates a registration after every deletion. The record is retained for objects
/// to hand over.
#[test]
fn what_comes_back_in_every_round_ends_the_uninstall_with_a_code_of_its_own() {
    let service = "\
apiVersion: v1
kind: Service
metadata: {name: shop}
spec: {selector: {app: shop}, ports: [{port: 80}]}
";
    let handed = samples::config_map("handed", "v");
    let mut fleet = fleet("endless", &[service, handed.as_str()].join("---\n"));
    let declared =
        "runtimeObjects: [{kind: ValidatingWebhookConfiguration, service: shop, optional: true}]\n";
    let bundle = format!("{}{declared}", samples::BUNDLE);
    fleet.write("manifests/shop/bundle.yaml", &bundle);
    fleet.commit();
    fleet.applied();
    fleet.write("manifests/next/bundle.yaml", samples::BUNDLE);
    fleet.write("manifests/next/all.yaml", &handed);
    fleet.edit_environment(
        &release("endless"),
        "  - {name: next, bundle: next, namespace: endless, movedFrom: {environment: endless, release: shop}}\n",
    );
    fleet.commit();

    let hooks: Vec<String> = (0..10)
        .map(|number| {
            let name = format!("endless-{number}");
            let hook = WEBHOOK.replace("NAME", &name);
            fleet.file(
                &name,
                &hook.replace("namespace: returns", "namespace: endless"),
            )
        })
        .collect();
    kubectl::admin(&["apply", "-f", &hooks[0]]);
    let made = AtomicUsize::new(0);
    let comes_back = move || {
        let made = made.fetch_add(1, Ordering::SeqCst);
        kubectl::admin(&["apply", "-f", &hooks[made + 1]]);
    };
    let proxy = FaultProxy::start(shared().kubeconfig()).unwrap();
    proxy.add(Rule::on(
        |seen| seen.method == "DELETE" && seen.path.contains("/endless-"),
        Fault::hook(Moment::BeforeAnswer, comes_back),
    ));
    fleet.through(proxy.kubeconfig());
    let uninstall = ["uninstall", "endless/shop", "--yes"];
    fleet
        .run(&uninstall)
        .ended_with(6)
        .says("endless.shop is not removed: objects were recreated in each of 5 rounds")
        .says("see `pleach status endless/shop`");
    // In the first round, also before the Service was deleted.
    assert_eq!(proxy.log().faults().count(), 6);
    assert!(has_state(&fleet));
    assert!(fleet.exists(&["validatingwebhookconfiguration", "endless-6"]));
    assert!(!fleet.exists(&["-n", "endless", "service/shop"]));

    // Once nothing is recreated, only the objects for another release remain.
    fleet.through(shared().kubeconfig().to_owned());
    let run = fleet
        .run(&uninstall)
        .ended_with(7)
        .says("it is handed over to release endless.next");
    assert!(!run.stderr.contains("is not removed"), "{}", run.shown());
    assert!(!fleet.exists(&["validatingwebhookconfiguration", "endless-6"]));
    assert!(fleet.exists(&["-n", "endless", "cm/handed"]));
}
