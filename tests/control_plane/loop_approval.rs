//! The controller only executes approved changes.

use crate::fleet::Fleet;
use crate::loop_run::{Loop, fleet};
use crate::samples::{BUNDLE, config_map};

const RELEASE: &str = "release.pleach.dev/loop-approved.web";

fn approve(fleet: &Fleet, release: &str, digest: &str) {
    let approval = format!("pleach.dev/approved={digest}");
    fleet.kubectl(&["annotate", "--overwrite", release, &approval]);
}

/// Returns the digest of the plan for the commit.
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
    // An approval of another digest is ignored.
    approve(&fleet, RELEASE, "sha256:00");
    let said = fleet.until("the other digest", |fleet| {
        let (_, message) = fleet.condition("Stalled")?;
        message
            .contains("the present approval is for sha256:00")
            .then_some(message)
    });
    assert!(said.contains(&first), "{said}");
    assert_eq!(fleet.value(), None);
    approve(&fleet, RELEASE, &first);
    fleet.until_value("first");
    fleet.until_not("Stalled");

    // The reconciled state is maintained without approval.
    fleet.edit_by_hand("ann");
    fleet.until_value("first");

    // The next change needs its own approval.
    let unapproved = || running.looks("loop-approved", "web", "unapproved");
    let before = unapproved();
    fleet.push_value("first", "second");
    running.pushed();
    fleet.until("a look", |_| (unapproved() > before).then_some(()));
    fleet.until_condition("Stalled", "AwaitingApproval");
    assert_eq!(fleet.value().as_deref(), Some("first"));
    approve(&fleet, RELEASE, &effects(&fleet));
    fleet.until_value("second");
    fleet.until_not("Stalled");

    // A removal needs approval too and continues immediately after it.
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
    approve(&fleet, RELEASE, digest.trim_end_matches(':'));
    fleet.until("the end", |fleet| (!fleet.exists(&[RELEASE])).then_some(()));
    assert_eq!(fleet.value(), None);
    running.stopped();
}

#[test]
fn approval_cannot_be_removed_without_approval() {
    let fleet = fleet("loop-loosened", "{interval: 1h, approval: digest}");
    let release = "release.pleach.dev/loop-loosened.web";
    let running = fleet.runs();
    fleet.until_condition("Stalled", "AwaitingApproval");
    approve(&fleet, release, &effects(&fleet));
    fleet.until_value("first");
    fleet.until_not("Stalled");
    // One commit removes the approval requirement, another one changes a value.
    let unchanged = || running.looks("loop-loosened", "web", "unchanged");
    let before = unchanged();
    fleet.edit_environment(", approval: digest", "");
    fleet.push("no approval");
    running.pushed();
    fleet.until("a look", |_| (unchanged() > before).then_some(()));
    fleet.push_value("first", "second");
    running.pushed();
    let said = fleet.until_condition("Stalled", "AwaitingApproval");
    assert_eq!(fleet.value().as_deref(), Some("first"));
    let (_, digest) = said.split_once("approval of ").unwrap();
    let digest = digest.split_whitespace().next().unwrap();
    approve(&fleet, release, digest.trim_end_matches(':'));
    fleet.until_value("second");
    fleet.until_not("Stalled");
    // From then on, nothing waits.
    fleet.push_value("second", "third");
    running.pushed();
    fleet.until_value("third");
    // A commit that renames the release does not remove the requirement either.
    fleet.edit_environment("{interval: 1h", "{interval: 1h, approval: digest");
    fleet.push("approval");
    running.pushed();
    fleet.until("the recorded policy", |fleet| {
        let record = &fleet.get(&[release])?["status"]["record"];
        (record["memory"]["approval"] == true).then_some(())
    });
    fleet.edit_environment(", approval: digest", "");
    fleet.edit_environment(
        "{name: web, bundle: web,",
        "{name: web2, bundle: web, movedFrom: {environment: loop-loosened, release: web},",
    );
    fleet.push_value("third", "fourth");
    running.pushed();
    let renamed = "release.pleach.dev/loop-loosened.web2";
    let said = fleet.until("the question", |fleet| {
        let release = fleet.get(&[renamed])?;
        let mut conditions = release["status"]["conditions"].as_array()?.iter();
        let waits = conditions
            .find(|one| one["type"] == "Stalled" && one["reason"] == "AwaitingApproval")?;
        waits["message"].as_str().map(str::to_owned)
    });
    assert_eq!(fleet.value().as_deref(), Some("third"));
    let (_, digest) = said.split_once("approval of ").unwrap();
    let digest = digest.split_whitespace().next().unwrap();
    approve(&fleet, renamed, digest.trim_end_matches(':'));
    fleet.until_value("fourth");
    running.stopped();
}

/// Starts the controller with periodic reconciles.
fn follows(fleet: &Fleet) -> Loop {
    let repo = fleet.repo.path().to_str().unwrap();
    fleet.runs_with(&["--repo", repo, fleet.environment])
}

#[test]
fn a_consent_alone_is_something_new() {
    let fleet = fleet("loop-approved-consent", "{interval: 1s, approval: digest}");
    fleet.extend_environment("protect: [{group: \"\", kind: ConfigMap}]\n");
    fleet.write("manifests/web/more.yaml", &config_map("more", "first"));
    fleet.push("more");
    let release = "release.pleach.dev/loop-approved-consent.web";
    let running = follows(&fleet);
    fleet.until_condition("Stalled", "AwaitingApproval");
    approve(&fleet, release, &effects(&fleet));
    fleet.until_ready();
    fleet.remove("manifests/web/more.yaml");
    fleet.push_value("first", "second");
    fleet.until_condition("Stalled", "AwaitingApproval");
    approve(&fleet, release, &effects(&fleet));
    fleet.until_value("second");
    fleet.until_not("Stalled");
    // The object is retained without consent, until the consent is added.
    let more = ["cm", "more", "-n", fleet.environment];
    assert!(fleet.exists(&more));
    let consent = "consent: [{action: delete, kind: ConfigMap, namespace: loop-approved-consent, name: more, release: web}]\n";
    fleet.extend_environment(consent);
    fleet.push("consent");
    let said = fleet.until_condition("Stalled", "AwaitingApproval");
    assert!(
        said.contains("delete ConfigMap/loop-approved-consent/more"),
        "{said}"
    );
    // Drift is corrected meanwhile, without deletions.
    fleet.edit_by_hand("ann");
    fleet.until_value("second");
    assert!(fleet.exists(&more));
    running.stopped();
    // This also works if the controller only has the record.
    fleet.edit_by_hand("bob");
    let running = follows(&fleet);
    fleet.until_value("second");
    assert!(fleet.exists(&more));
    approve(&fleet, release, &effects(&fleet));
    fleet.until("the end", |fleet| (!fleet.exists(&more)).then_some(()));
    fleet.until_not("Stalled");
    running.stopped();
}

#[test]
fn what_is_consented_to_goes_where_drift_is_only_reported() {
    let fleet = fleet("loop-report-consent", "{interval: 1s, drift: report}");
    fleet.extend_environment("protect: [{group: \"\", kind: ConfigMap}]\n");
    fleet.write("manifests/web/more.yaml", &config_map("more", "first"));
    fleet.push("more");
    let running = follows(&fleet);
    fleet.until_ready();
    fleet.remove("manifests/web/more.yaml");
    fleet.push_value("first", "second");
    fleet.until_value("second");
    let more = ["cm", "more", "-n", fleet.environment];
    assert!(fleet.exists(&more));
    let consent = "consent: [{action: delete, kind: ConfigMap, namespace: loop-report-consent, name: more, release: web}]\n";
    fleet.extend_environment(consent);
    fleet.push("consent");
    fleet.until("the end", |fleet| (!fleet.exists(&more)).then_some(()));
    running.stopped();
}
