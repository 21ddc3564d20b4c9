//! Reports of rehearsals on the web page of the controller.

use crate::loop_run::fleet;
use crate::page::Page;
use crate::rehearsal::rehearse;
use crate::samples::config_map;

/// The page shows the report of the plan that waits for approval, until another plan waits.
#[test]
fn the_page_shows_a_rehearsal_of_the_plan_that_waits() {
    let fleet = fleet("loop-attached", "{interval: 1h, approval: digest}");
    let url = fleet.repo.path().to_str().unwrap();
    let text = fleet.configuration_text(url, "");
    let config = fleet.file("page.yaml", &(text + "ui: {listen: '127.0.0.1:0'}\n"));
    let mut running = fleet.runs_with(&["--config", &config]);
    let address = running.running.until_prints("page: http://");
    let page = Page { address };
    let until_shown = |expected: &str| {
        fleet.until(expected, |_| {
            let shown = page.ask("GET /releases/loop-attached/web", "", "");
            shown.body.contains(expected).then_some(())
        });
    };
    fleet.until_condition("Stalled", "AwaitingApproval");
    until_shown("--attach</code>");

    let report = rehearse(&fleet, &["--attach"])
        .ended_with(0)
        .says("the report is attached to release loop-attached.web")
        .json();
    assert_eq!(report["verdict"], "passed");
    fleet.run(&["sync", "loop-attached/web"]).ended_with(0);
    until_shown("rehearsed:</span> yes, 1 writes, 0 refused");

    fleet.write("manifests/web/web.yaml", &config_map("web", "second"));
    fleet.push("another plan");
    fleet.run(&["sync", "loop-attached/web"]).ended_with(0);
    until_shown("out of date: the plan has other effects");
    running.stopped();
}
