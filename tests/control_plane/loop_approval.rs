//! The loop carries out what was approved, and nothing else.

use crate::fleet::Fleet;
use crate::loop_run::fleet;
use crate::samples::{BUNDLE, config_map};

const RELEASE: &str = "release.pleach.dev/loop-approved.web";

fn approve(fleet: &Fleet, digest: &str) {
    let approval = format!("pleach.dev/approved={digest}");
    fleet.kubectl(&["annotate", "--overwrite", RELEASE, &approval]);
}

/// The digest that `pleach plan` shows for the commit.
fn effects(fleet: &Fleet) -> String {
    let plan = fleet.plan();
    let digest = plan["effects"].as_str().unwrap().to_owned();
    fleet
        .run(&["plan", fleet.environment])
        .says(&format!("effects {digest}"));
    digest
}

#[test]
fn a_plan_is_carried_out_when_its_effects_are_approved() {
    let fleet = fleet("loop-approved", "{interval: 1h, approval: digest}");
    let running = fleet.runs();
    let said = fleet.until_condition("Stalled", "AwaitingApproval");
    let first = effects(&fleet);
    for part in [
        format!("waits for approval of {first}: 1 to create (create ConfigMap/loop-approved/web)"),
        format!(
            "kubectl annotate --overwrite releases.pleach.dev loop-approved.web pleach.dev/approved={first}"
        ),
    ] {
        assert!(said.contains(&part), "{said}");
    }
    assert_eq!(fleet.value(), None);
    // Not this one.
    approve(&fleet, "sha256:00");
    let said = fleet.until("the other digest", |fleet| {
        let (_, message) = fleet.condition("Stalled")?;
        message
            .contains("what is approved is sha256:00")
            .then_some(message)
    });
    assert!(said.contains(&first), "{said}");
    assert_eq!(fleet.value(), None);
    approve(&fleet, &first);
    fleet.until_value("first");
    fleet.until_not("Stalled");

    // What was reached is kept without asking.
    fleet.edit_by_hand("ann");
    fleet.until_value("first");

    // The next one is another one.
    let unapproved = || running.looks("loop-approved", "web", "unapproved");
    let before = unapproved();
    fleet.push_value("first", "second");
    running.pushed();
    fleet.until("a look", |_| (unapproved() > before).then_some(()));
    fleet.until_condition("Stalled", "AwaitingApproval");
    assert_eq!(fleet.value().as_deref(), Some("first"));
    approve(&fleet, &effects(&fleet));
    fleet.until_value("second");
    fleet.until_not("Stalled");

    // So is its end, which is gone on with as soon as it is approved.
    fleet.write("manifests/other/bundle.yaml", BUNDLE);
    fleet.write("manifests/other/other.yaml", &config_map("other", "first"));
    fleet.edit_environment("{name: web, bundle: web,", "{name: other, bundle: other,");
    fleet.extend_environment("consent: [{action: uninstall, release: web}]\n");
    fleet.push("the end");
    running.pushed();
    let said = fleet.until_condition("Stalled", "AwaitingApproval");
    let (_, digest) = said.split_once("approval of ").unwrap();
    let digest = digest.split_whitespace().next().unwrap();
    assert_eq!(fleet.value().as_deref(), Some("second"));
    approve(&fleet, digest.trim_end_matches(':'));
    fleet.until("the end", |fleet| (!fleet.exists(&[RELEASE])).then_some(()));
    assert_eq!(fleet.value(), None);
    running.stopped();
}
