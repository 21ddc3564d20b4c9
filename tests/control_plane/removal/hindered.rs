//! Obstacles of an uninstall are explained, and no object is forgotten.

use http::StatusCode;
use pleach_testkit::faults::{Answer, Fault, FaultProxy, Rule};

use super::{everything, fleet, has_state, take_out};
use crate::{kubectl, samples, shared};

#[test]
fn a_finalizer_is_explained_and_never_taken_off() {
    let clings = samples::gear("clings.example.org").replace(
        "metadata: {name: first}",
        "metadata: {name: first, finalizers: [example.org/clean]}",
    );
    let manifests = [
        samples::gears("clings.example.org"),
        clings,
        samples::config_map("settings", "v"),
    ]
    .join("---\n");
    let fleet = fleet("clings", &manifests);
    fleet.applied();
    let run = fleet.run(&[
        "uninstall",
        "clings/shop",
        "--yes",
        "--timeout",
        "2s",
        "-o",
        "json",
    ]);
    let report = run.ended_with(6).json();
    let failure = &report["releases"][0]["failures"][0];
    assert_eq!(report["releases"][0]["result"], "failed");
    assert_eq!(failure["object"], "Gear.clings.example.org/clings/first");
    let message = failure["message"].as_str().unwrap();
    assert!(message.contains("not gone after"), "{message}");
    assert!(
        message.ends_with("it waits for example.org/clean (set by pleach/clings.shop)"),
        "{message}"
    );
    let hint = failure["hint"].as_str().unwrap();
    assert!(
        hint.contains("kubectl patch gear.clings.example.org first -n clings"),
        "{hint}"
    );
    // Later objects and the record still exist.
    assert!(fleet.exists(&["-n", "clings", "cm/settings"]));
    assert!(has_state(&fleet));

    // The next run continues from there.
    let patch = r#"--patch={"metadata":{"finalizers":null}}"#;
    kubectl::admin(&[
        "-n",
        "clings",
        "patch",
        "gears.clings.example.org/first",
        "--type=merge",
        patch,
    ]);
    fleet
        .run(&["uninstall", "clings/shop", "--yes"])
        .ended_with(0);
    assert!(!has_state(&fleet));
}

#[test]
fn what_the_bundle_says_must_be_gone_blocks_the_end() {
    let bundle = "apiVersion: pleach.dev/v1alpha1\nkind: Bundle\n\
                  blockUninstall: [{forEach: {group: block.example.org, kind: Gear}, message: gears are turning}]\n";
    let manifests = [
        samples::gears("block.example.org"),
        samples::config_map("settings", "v"),
    ];
    let fleet = fleet("block", &manifests.join("---\n"));
    fleet.write("manifests/shop/bundle.yaml", bundle);
    fleet.commit();
    fleet.applied();
    let gear = fleet.file("gear.yaml", &samples::gear("block.example.org"));
    kubectl::admin(&["-n", "block", "apply", "-f", &gear]);
    // The rule is retained after the bundle is removed.
    take_out(&fleet);
    fleet
        .writes_nothing(|fleet| {
            fleet
                .run(&["uninstall", "block/shop", "--yes"])
                .ended_with(7)
        })
        .says("gears are turning: Gear.block.example.org/block/first");
    kubectl::admin(&["-n", "block", "delete", "gears.block.example.org/first"]);
    fleet
        .run(&["uninstall", "block/shop", "--yes"])
        .ended_with(0);
}

#[test]
fn what_cannot_be_listed_is_neither_deleted_nor_forgotten() {
    let mut fleet = fleet("unseen", &everything("unseen"));
    fleet.applied();
    let proxy = FaultProxy::start(shared().kubeconfig()).unwrap();
    let forbidden = Answer::status(StatusCode::FORBIDDEN, "Forbidden", "services is forbidden");
    proxy.add(
        Rule::on(
            |seen| seen.method == "GET" && seen.path.ends_with("/services"),
            Fault::Answer(forbidden),
        )
        .times(1000),
    );
    fleet.through(proxy.kubeconfig());
    fleet
        .run(&["uninstall", "unseen/shop", "--yes"])
        .ended_with(4)
        .says("kept Service/unseen/shop: stays because its kind could not be listed completely")
        .says("release unseen.shop v1.0.0: removed");
    assert!(fleet.exists(&["-n", "unseen", "service/shop"]));
    assert!(!fleet.exists(&["-n", "unseen", "cm/settings"]));
    assert!(has_state(&fleet));
    fleet.through(shared().kubeconfig().to_owned());
    fleet
        .run(&["uninstall", "unseen/shop", "--yes"])
        .ended_with(0);
    assert!(!fleet.exists(&["-n", "unseen", "service/shop"]));
    assert!(!has_state(&fleet));
}
