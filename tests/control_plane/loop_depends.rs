//! Dependencies of releases in the controller: triggered by events, without polling.

use std::time::{Duration, Instant};

use crate::depends::{fleet, make_flag, set_flag};
use crate::samples::config_map;

#[test]
fn a_release_that_waits_is_woken_when_what_it_depends_on_is_ready() {
    let name = "loop-depends";
    let fleet = fleet(name, "[base]", &config_map("base", "first"));
    let needs = "dependsOn: [{kind: ConfigMap, name: flag, ready: \"data.on == 'yes'\"}]";
    fleet.edit_environment("bundle: base,", &format!("bundle: base, {needs},"));
    // Disable periodic reconciles.
    fleet.extend_environment("sync: {interval: 1h}\n");
    fleet.create_namespace(name);
    fleet.push("start");
    let running = fleet.runs();
    let looks = |release: &str, result: &str| running.looks(name, release, result);
    let waiting = |release: &str| looks(release, "waiting");
    fleet.until("both wait", |_| {
        (waiting("web") > 0.0 && waiting("base") > 0.0).then_some(())
    });
    make_flag(&fleet);
    set_flag(&fleet, "yes");
    let since = Instant::now();
    fleet.until_value("first");
    assert!(since.elapsed() < Duration::from_secs(10), "{since:?}");
    // The release was reconciled at the start and when its dependency became ready.
    assert_eq!((waiting("base"), looks("base", "deployed")), (1.0, 1.0));
    fleet.until("web", |_| (looks("web", "deployed") > 0.0).then_some(()));
    assert!(waiting("web") <= 2.0, "{}", waiting("web"));

    // A commit changes both releases. The second one waits and reports it.
    set_flag(&fleet, "no");
    fleet.edit("manifests/base/base.yaml", "k: first", "k: second");
    fleet.push_value("first", "second");
    running.pushed();
    let said = fleet.until_condition("Reconciling", "DependencyNotReady");
    assert!(
        said.contains("it depends on release base, which was not reconciled at commit "),
        "{said}"
    );
    assert_eq!(fleet.value().as_deref(), Some("first"));
    set_flag(&fleet, "yes");
    fleet.until_value("second");
    fleet.until_not("Reconciling");
    running.stopped();
}
