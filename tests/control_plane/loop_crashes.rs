//! Crashes of the API server while the controller runs.

use pleach_testkit::isolated;
use pleach_testkit::throwaway::{Component, ControlPlane};

use crate::loop_run::fleet_on;
use crate::samples::{gear, gears};

/// A restarted server does not serve CRDs at once. Neither records nor custom resources count as
/// deleted.
#[test]
fn a_server_that_starts_again_is_not_taken_for_one_that_lost_everything() {
    // The control plane ends with the process of the test.
    let name = "loop_crashes::a_server_that_starts_again_is_not_taken_for_one_that_lost_everything";
    if !isolated::inside(name).unwrap() {
        return;
    }
    let plane: &'static ControlPlane = Box::leak(Box::new(crate::control_plane()));
    let fleet = fleet_on(plane, "loop-crashes", "{interval: 1s}");
    let group = "crashes.example.org";
    let definition = fleet.file("gears.yaml", &gears(group));
    fleet.kubectl(&["apply", "-f", &definition]);
    let established = format!("crd/gears.{group}");
    fleet.kubectl(&[
        "wait",
        "--for=condition=Established",
        &established,
        "--timeout=30s",
    ]);
    fleet.write("manifests/web/gear.yaml", &gear(group));
    fleet.push("gear");
    let running = fleet.runs();
    fleet.until_value("first");
    fleet.until_ready();

    let answers = |path: &str| {
        fleet.until(path, |fleet| {
            let output = fleet.try_kubectl(&["get", "--raw", path]);
            output.status.success().then_some(())
        });
    };
    for (from, to) in [("first", "second"), ("second", "last")] {
        plane.restart(Component::ApiServer).unwrap();
        // A push is reconciled while the server hardly answers.
        answers("/version");
        fleet.push_value(from, to);
        running.pushed();
        answers("/readyz");
        fleet.until_value(to);
        fleet.until_ready();
        fleet.until_not("Stalled");
    }
    assert!(fleet.exists(&["-n", "loop-crashes", &format!("gears.{group}/first")]));
    assert!(running.looks("loop-crashes", "web", "refused") < 1.0);
    let log = running.stopped().stderr;
    let lost = "the record of release loop-crashes.web is gone";
    for wrong in [lost, "the cluster serves no Gear"] {
        assert!(!log.contains(wrong), "{log}");
    }
}
