//! Objects that only a vanished client would remove: gates and temporary changes of abandoned
//! upgrades, and finalizers without a controller.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use pleach_testkit::faults::{Kind, Moment, Seen};
use serde_json::Value;

use crate::fleet::Fleet;
use crate::kill;
use crate::samples::{BUNDLE, config_map};

const ID: &str = "ValidatingAdmissionPolicy.admissionregistration.k8s.io/gated.web.handover";

/// Gate of an upgrade, and the Lease of that upgrade.
const GATE: &str = "\
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata: {name: gated.web.handover, annotations: {pleach.dev/gate: gated.web}}
spec:
  failurePolicy: Fail
  matchConstraints:
    resourceRules: [{apiGroups: [gated.example.org], apiVersions: ['*'], operations: [CREATE, UPDATE], resources: ['*/*']}]
  validations: [{expression: 'false', message: closed during an upgrade, reason: Forbidden}]
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata: {name: gated.web.handover, annotations: {pleach.dev/gate: gated.web}}
spec: {policyName: gated.web.handover, validationActions: [Deny]}
---
apiVersion: coordination.k8s.io/v1
kind: Lease
metadata: {name: gated.web, namespace: pleach-system}
spec: {holderIdentity: desk, leaseDurationSeconds: 3, renewTime: '2026-01-01T00:00:00.000000Z'}
";

/// Returns the doctor's diagnosis of an object.
fn diagnosis_of(fleet: &Fleet, id: &str) -> Option<Value> {
    let run = fleet.run(&["doctor", "-o", "json"]);
    let all = run.json()["diagnoses"].as_array().unwrap().clone();
    all.into_iter().find(|found| found["object"] == id)
}

/// Returns the doctor's diagnosis of the gate.
fn diagnosis(fleet: &Fleet) -> Option<Value> {
    diagnosis_of(fleet, ID)
}

#[test]
fn what_a_killed_upgrade_left_different_is_found_with_what_ends_it() {
    let release = "  - {name: web, bundle: web, namespace: differs}\n";
    let overlay = "overlays:\n  - {name: hold, target: {kind: ConfigMap, name: theirs}, patch: {data: {mode: slow}}, from: preflight, until: verify}\n";
    let files = [
        ("manifests/web/bundle.yaml", format!("{BUNDLE}{overlay}")),
        ("manifests/web/a.yaml", config_map("a", "v")),
    ];
    let mut fleet = Fleet::new("differs", release, &files);
    fleet.applied();
    let theirs = ["configmap", "theirs", "-n=differs"];
    fleet.kubectl(&[
        "create",
        theirs[0],
        theirs[1],
        theirs[2],
        "--from-literal=mode=fast",
    ]);
    fleet.write("manifests/web/a.yaml", &config_map("a", "w"));
    fleet.commit();
    let apply = ["apply", "differs", "--yes"];
    let is_change = |seen: &Seen| seen.kind == Kind::Write && seen.path.ends_with("/configmaps/a");
    assert!(kill::at(
        &mut fleet,
        &apply,
        Moment::BeforeForwarding,
        is_change
    ));
    fleet.forget_killed_runs();

    let id = "ConfigMap/differs/theirs";
    let found = diagnosis_of(&fleet, id).unwrap();
    assert_eq!(found["code"], "overlay-abandoned");
    assert_eq!(found["severity"], "warning");
    let message = found["message"].as_str().unwrap();
    assert!(
        message.contains(r#"data.mode is "slow" and was "fast"; overlay hold of"#)
            && message.ends_with("which no client is executing"),
        "{message}"
    );
    assert_eq!(found["command"], "pleach apply differs/web");

    // Without the Release, no run finds the change. The doctor prints the command that reverts it.
    fleet.kubectl(&["delete", "release", "differs.web"]);
    let found = diagnosis_of(&fleet, id).unwrap();
    assert_eq!(found["severity"], "error");
    let command = found["command"].as_str().unwrap();
    let rest = command.strip_prefix("kubectl patch configmap theirs -n differs --type=merge -p ");
    let patch = rest.unwrap().trim_matches('\'');
    fleet.kubectl(&[
        "patch",
        theirs[0],
        theirs[1],
        theirs[2],
        "--type=merge",
        "-p",
        patch,
    ]);
    assert_eq!(fleet.field(&theirs, "{.data.mode}"), "fast");
    let hint = found["hint"].as_str().unwrap();
    let record = "kubectl delete configmap differs.web.journal -n pleach-system";
    assert!(hint.contains(record), "{hint}");
    fleet.kubectl(&[
        "delete",
        "configmap",
        "differs.web.journal",
        "-n=pleach-system",
    ]);
    assert_eq!(diagnosis_of(&fleet, id), None);
}

#[test]
fn a_gate_that_nobody_will_lift_is_found_and_lifted() {
    let release = "  - {name: web, bundle: web, namespace: gated}\n";
    let files = [
        ("manifests/web/bundle.yaml", BUNDLE.to_owned()),
        ("manifests/web/a.yaml", config_map("a", "v")),
    ];
    let fleet = Fleet::new("gated", release, &files);
    fleet.applied();
    let file = fleet.file("gate.yaml", GATE);
    fleet.kubectl(&["apply", "-f", &file]);
    let fix = ["doctor", "--fix", ID, "--yes"];

    // Another client is running the upgrade.
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut second = 0;
            while !done.load(Ordering::Relaxed) {
                second = (second + 1) % 60;
                let patch =
                    format!(r#"{{"spec":{{"renewTime":"2026-01-01T00:00:{second:02}.000000Z"}}}}"#);
                fleet.kubectl(&[
                    "patch",
                    "lease",
                    "gated.web",
                    "-n=pleach-system",
                    "--type=merge",
                    "-p",
                    &patch,
                ]);
                std::thread::sleep(Duration::from_millis(300));
            }
        });
        let found = diagnosis(&fleet);
        let refused = fleet.run(&fix);
        done.store(true, Ordering::Relaxed);
        assert_eq!(found, None);
        refused.ended_with(7).says("is not removed");
    });
    assert!(fleet.exists(&["validatingadmissionpolicy", "gated.web.handover"]));

    // The Lease is no longer renewed.
    let found = diagnosis(&fleet).unwrap();
    assert_eq!(found["code"], "gate-abandoned");
    assert_eq!(
        found["message"],
        "is a gate of an upgrade of gated/web, whose Lease holder no longer renews the Lease"
    );
    assert_eq!(
        found["breaks"][0],
        "CREATE, UPDATE of everything of gated.example.org is refused, except for exempt clients"
    );
    assert_eq!(found["command"], format!("pleach doctor --fix {ID}"));
    assert_eq!(found["fixable"], true);

    let run = fleet.run(&fix).ended_with(0);
    run.says(&format!(
        "deleted {ID}: it was a gate of an upgrade of gated.web that no client executes"
    ));
    for kind in [
        "validatingadmissionpolicy",
        "validatingadmissionpolicybinding",
    ] {
        assert!(!fleet.exists(&[kind, "gated.web.handover"]), "{kind}");
    }
    assert_eq!(diagnosis(&fleet), None);
}

#[test]
fn an_object_whose_controller_is_gone_is_named_with_it() {
    let release = "  - {name: web, bundle: web, namespace: keeps}\n";
    let files = [
        ("manifests/web/bundle.yaml", BUNDLE.to_owned()),
        ("manifests/web/a.yaml", config_map("a", "v")),
    ];
    let fleet = Fleet::new("keeps", release, &files);
    fleet.applied();
    let patch = r#"{"metadata": {"finalizers": ["gears.example.org/clean"]}}"#;
    fleet.kubectl(&[
        "create",
        "configmap",
        "gear",
        "-n=keeps",
        "--from-literal=a=b",
    ]);
    fleet.kubectl(&[
        "patch",
        "configmap",
        "gear",
        "-n=keeps",
        "--type=merge",
        "--field-manager=gear-controller",
        "-p",
        patch,
    ]);
    fleet.kubectl(&["delete", "configmap", "gear", "-n=keeps", "--wait=false"]);

    let found = fleet.until("the diagnosis", |fleet| {
        diagnosis_of(fleet, "ConfigMap/keeps/gear")
    });
    assert_eq!(found["code"], "object-stuck");
    let message = found["message"].as_str().unwrap();
    assert!(
        message.ends_with(
            ": waits for gears.example.org/clean (set by gear-controller); no Deployment, StatefulSet or DaemonSet is named gear-controller, nor a container, image or command of one"
        ),
        "{message}"
    );
    let free = r#"{"metadata": {"finalizers": null}}"#;
    fleet.kubectl(&[
        "patch",
        "configmap",
        "gear",
        "-n=keeps",
        "--type=merge",
        "-p",
        free,
    ]);
}
