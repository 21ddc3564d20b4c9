//! Local runs for an environment that a controller follows: refused unless requested explicitly,
//! and then the controller is suspended.

use crate::fleet::Fleet;
use crate::loop_run::fleet;
use crate::samples::{BUNDLE, config_map};

const RELEASE: &str = "release.pleach.dev";

/// Waits until the controller has synced release web and recorded that it follows it.
pub(crate) fn until_followed(fleet: &Fleet) {
    let said = fleet.until_condition("Followed", "Loop");
    let branch = format!("env/{} of repository", fleet.environment);
    assert_eq!(said, branch);
}

#[test]
fn what_a_loop_follows_is_changed_from_the_desk_only_when_that_is_meant() {
    let fleet = fleet("desk-loop", "{interval: 1s}");
    let running = fleet.runs();
    fleet.until_value("first");
    until_followed(&fleet);
    fleet
        .run(&["status", "desk-loop"])
        .ended_with(0)
        .says("desk-loop/web: a controller follows env/desk-loop of repository");

    // Reads are allowed. Writes are refused, even without changes.
    fleet.run(&["diff", "desk-loop"]).ended_with(0);
    fleet.run(&["plan", "desk-loop"]).ended_with(0);
    for args in [
        &["apply", "desk-loop", "--yes"][..],
        &["apply", "desk-loop/web", "--yes"],
        &["uninstall", "desk-loop/web", "--yes"],
    ] {
        fleet
            .writes_nothing(|fleet| fleet.run(args).ended_with(7))
            .says("a controller reconciles desk-loop/web with env/desk-loop of repository")
            .says("--local --reason TEXT");
    }
    // One of the two options is not enough.
    fleet
        .run(&["apply", "desk-loop", "--yes", "--local"])
        .ended_with(2);
    fleet
        .run(&["apply", "desk-loop", "--yes", "--reason", "x"])
        .ended_with(2);
    fleet
        .run(&["apply", "desk-loop", "--yes", "--local", "--reason", ""])
        .ended_with(2);

    // With both options, the run proceeds, the controller is suspended, and the reason is recorded.
    fleet.edit("manifests/web/web.yaml", "k: first", "k: mine");
    let reason = "the pager went off";
    let meant = ["apply", "desk-loop", "--yes", "--local", "--reason", reason];
    fleet.run(&meant).ended_with(0);
    assert_eq!(fleet.value().as_deref(), Some("mine"));
    fleet
        .run(&["status", "desk-loop"])
        .says("suspended by ")
        .says(reason);
    fleet
        .run(&["history", "desk-loop/web"])
        .says("local run: ")
        .says(reason);
    let looks = || running.looks("desk-loop", "web", "suspended");
    let seen = looks();
    fleet.until("two more looks", |_| (looks() > seen + 1.0).then_some(()));
    assert_eq!(fleet.value().as_deref(), Some("mine"));
    // The controller still follows but does not reconcile, so further local runs are allowed.
    until_followed(&fleet);
    fleet
        .applied()
        .says("release desk-loop.web is suspended by ");

    // After `resume`, the controller restores the state of the branch.
    fleet.run(&["resume", "desk-loop/web"]).ended_with(0);
    fleet.until_value("first");
    fleet
        .apply()
        .ended_with(7)
        .says("a controller reconciles desk-loop/web with");
    running.stopped();
}

#[test]
fn what_is_new_in_an_environment_that_a_loop_follows_is_new_to_the_loop_too() {
    let fleet = fleet("desk-new", "{interval: 1s}");
    let running = fleet.runs();
    fleet.until_value("first");
    until_followed(&fleet);
    // The record of the controller remains.
    running.stopped();
    fleet.write("manifests/extra/bundle.yaml", BUNDLE);
    fleet.write("manifests/extra/extra.yaml", &config_map("extra", "x"));
    fleet.edit_environment(
        "releases:\n",
        "releases:\n  - {name: extra, bundle: extra, namespace: desk-new}\n",
    );
    fleet.commit();
    let apply = ["apply", "desk-new/extra", "--yes"];
    fleet
        .writes_nothing(|fleet| fleet.run(&apply).ended_with(7))
        .says("a controller reconciles desk-new/extra with");
    let meant = [&apply[..], &["--local", "--reason", "a trial"]].concat();
    fleet.run(&meant).ended_with(0);
    let status = fleet.run(&["status", "desk-new", "-o", "json"]).json();
    let releases = status["releases"].as_array().unwrap().iter();
    let suspended: Vec<(&str, bool)> = releases
        .map(|one| {
            let name = one["release"].as_str().unwrap();
            (name, one["orders"]["suspended"].as_bool().unwrap())
        })
        .collect();
    assert_eq!(suspended, [("extra", true), ("web", false)]);
}

#[test]
fn a_desk_may_take_away_what_a_loop_follows_when_that_is_meant() {
    let fleet = fleet("desk-end", "{interval: 1s}");
    let running = fleet.runs();
    fleet.until_value("first");
    until_followed(&fleet);
    // The record remains after the controller ends, because its end is not recorded.
    running.stopped();
    let uninstall = ["uninstall", "desk-end/web", "--yes"];
    fleet.writes_nothing(|fleet| fleet.run(&uninstall).ended_with(7));
    let meant = [&uninstall[..], &["--local", "--reason", "it moves"]].concat();
    fleet.run(&meant).ended_with(0);
    assert_eq!(fleet.value(), None);
    assert!(!fleet.exists(&[RELEASE, "desk-end.web"]));
    // Without a record, no controller follows the release.
    fleet.applied();
}

#[test]
fn what_a_loop_followed_goes_on_under_another_name_once_it_is_suspended() {
    let fleet = fleet("desk-former", "{interval: 1s}");
    let running = fleet.runs();
    fleet.until_value("first");
    until_followed(&fleet);
    running.stopped();
    let file = fleet.environment_file();
    let web = "name: web, bundle: web,";
    let moved = format!("{web} movedFrom: {{environment: desk-former, release: web}},");
    let renamed = fleet.read(&file).replace(web, &moved);
    fleet.write("environments/desk-renamed.yaml", &renamed);
    fleet.remove(&file);
    fleet.commit();
    let apply = ["apply", "desk-renamed", "--yes"];
    // Only the release that hands over is followed.
    let run = fleet.run(&apply).ended_with(7);
    let said = run.shown();
    assert!(
        said.contains("a controller reconciles desk-former/web with"),
        "{said}"
    );
    assert!(
        !said.contains("a controller reconciles desk-renamed/web"),
        "{said}"
    );
    let suspend = ["suspend", "desk-former", "--reason", "renamed"];
    fleet.run(&suspend).ended_with(0);
    fleet.run(&apply).ended_with(0);
    assert_eq!(fleet.value().as_deref(), Some("first"));
    assert!(fleet.exists(&[RELEASE, "desk-renamed.web"]));
}

#[test]
fn where_no_loop_is_there_is_nothing_to_hold() {
    let fleet = fleet("desk-alone", "{interval: 1s}");
    let meant = ["apply", "desk-alone", "--yes", "--local", "--reason", "x"];
    fleet.run(&meant).ended_with(0);
    assert_eq!(fleet.value().as_deref(), Some("first"));
    let status = fleet.run(&["status", "desk-alone", "-o", "json"]).json();
    assert_eq!(status["releases"][0]["orders"]["suspended"], false);
    assert!(status["releases"][0]["followed"].is_null());
}
