//! The controller only executes approved changes.

use crate::fleet::Fleet;
use crate::loop_run::{Loop, fleet};
use crate::samples::{BUNDLE, config_map};

const RELEASE: &str = "release.pleach.dev/loop-approved.web";

const RELEASE_KEPT: &str = "release.pleach.dev/loop-approved-kept.web";

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
fn what_was_approved_is_kept_while_something_newer_waits() {
    let fleet = fleet("loop-approved-kept", "{interval: 2s, approval: digest}");
    // Objects that the newer commit removes are retained, too.
    fleet.write("manifests/web/more.yaml", &config_map("more", "first"));
    fleet.push("more");
    let more = |value: &str| {
        let value = format!(r#"{{"data":{{"k":"{value}"}}}}"#);
        fleet.kubectl(&["patch", "cm", "more", "-n", fleet.environment, "-p", &value]);
    };
    let until_more = |value: &str| {
        fleet.until(value, |fleet| {
            let live = fleet.get(&["cm", "more", "-n", fleet.environment])?;
            (live["data"]["k"] == value).then_some(())
        });
    };
    let running = follows(&fleet);
    fleet.until_condition("Stalled", "AwaitingApproval");
    approve(&fleet, RELEASE_KEPT, &effects(&fleet));
    fleet.until_ready();

    fleet.remove("manifests/web/more.yaml");
    fleet.push_value("first", "second");
    fleet.until_condition("Stalled", "AwaitingApproval");
    let waits = || running.looks(fleet.environment, "web", "unapproved");
    let corrected = || running.looks(fleet.environment, "web", "deployed");
    let before = corrected();
    fleet.edit_by_hand("ann");
    fleet.until_value("first");
    more("ann");
    until_more("first");
    // Both are counted. The condition reports the waiting change.
    fleet.until("both", |_| (corrected() >= before + 2.0).then_some(()));
    let (_, said) = fleet.condition("Stalled").unwrap();
    let digest = effects(&fleet);
    assert!(
        said.contains(&format!("waits for approval of {digest}")),
        "{said}"
    );
    let before = waits();
    fleet.until("looks", |_| (waits() > before + 2.0).then_some(()));
    assert!(corrected() < 4.0, "{}", corrected());
    running.stopped();

    // A restarted controller finds the previous revision in git. A manual change of a field that
    // the newer commit also changes is corrected first.
    fleet.edit_by_hand("bob");
    let running = follows(&fleet);
    fleet.until_value("first");
    fleet.until("the condition", |fleet| {
        let (_, said) = fleet.condition("Stalled")?;
        said.contains(&digest).then_some(())
    });
    until_more("first");

    approve(&fleet, RELEASE_KEPT, &digest);
    fleet.until_value("second");
    fleet.until_not("Stalled");
    assert!(!fleet.exists(&["cm", "more", "-n", fleet.environment]));
    // The previous objects are not restored.
    let unchanged = || running.looks(fleet.environment, "web", "unchanged");
    let before = unchanged();
    fleet.until("looks", |_| (unchanged() > before + 1.0).then_some(()));
    assert_eq!(fleet.value().as_deref(), Some("second"));
    running.stopped();
}

#[test]
fn an_approval_counts_for_no_other_commit_that_does_less() {
    let fleet = fleet("loop-approved-part", "{interval: 1s, approval: digest}");
    let release = "release.pleach.dev/loop-approved-part.web";
    fleet.write("manifests/web/more.yaml", &config_map("more", "first"));
    fleet.push("more");
    let running = follows(&fleet);
    fleet.until_condition("Stalled", "AwaitingApproval");
    approve(&fleet, release, &effects(&fleet));
    fleet.until_ready();
    // Two changes, approved while nothing is applied, are applied together.
    fleet.edit("manifests/web/more.yaml", "k: first", "k: second");
    fleet.push_value("first", "second");
    let said = fleet.until_condition("Stalled", "AwaitingApproval");
    let both = effects(&fleet);
    assert!(said.contains(&both), "{said}");
    let (open, closed) = ("digest}", "digest, windows: [{deny: \"00:00-24:00\"}]}");
    fleet.edit_environment(open, closed);
    fleet.push("not now");
    fleet.until_condition("Reconciling", "WindowClosed");
    approve(&fleet, release, &both);
    fleet.edit_environment(closed, open);
    fleet.edit("manifests/web/more.yaml", "k: second", "k: first");
    fleet.push("one of them");
    let one = effects(&fleet);
    assert_ne!(one, both);
    fleet.until("the question", |fleet| {
        let (_, said) = fleet.condition("Stalled")?;
        said.contains(&format!("waits for approval of {one}"))
            .then_some(())
    });
    let looks = || running.looks(fleet.environment, "web", "unapproved");
    let before = looks();
    fleet.until("looks", |_| (looks() > before + 1.0).then_some(()));
    assert_eq!(fleet.value().as_deref(), Some("first"));
    approve(&fleet, release, &one);
    fleet.until_value("second");
    running.stopped();
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
