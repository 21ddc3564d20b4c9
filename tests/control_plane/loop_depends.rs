//! The loop and what comes before a release: woken, and not asking again.

use std::time::{Duration, Instant};

use crate::fleet::Fleet;
use crate::samples::{BUNDLE, config_map};

#[test]
fn a_release_that_waits_is_woken_when_what_it_depends_on_is_ready() {
    let name = "loop-depends";
    let releases = format!(
        "  - {{name: web, bundle: web, namespace: {name}, dependsOn: [base]}}\n  - {{name: base, bundle: base, namespace: {name}, dependsOn: [{{kind: ConfigMap, name: flag, ready: \"data.on == 'yes'\"}}]}}\n"
    );
    let fleet = Fleet::new(
        name,
        &releases,
        &[
            ("manifests/web/bundle.yaml", BUNDLE),
            ("manifests/web/web.yaml", &config_map("web", "first")),
            ("manifests/base/bundle.yaml", BUNDLE),
            ("manifests/base/base.yaml", &config_map("base", "first")),
        ],
    );
    // Nothing is looked at again by the clock.
    fleet.extend_environment("sync: {interval: 1h}\n");
    fleet.kubectl(&["create", "namespace", name]);
    fleet.push("start");
    let running = fleet.runs();
    let looks = |release: &str, result: &str| {
        running.number(&format!(
            "pleach_looks_total{{environment=\"{name}\",release=\"{release}\",result=\"{result}\"}}"
        ))
    };
    let waiting = |release: &str| looks(release, "waiting");
    fleet.until("both wait", |_| {
        (waiting("web") > 0.0 && waiting("base") > 0.0).then_some(())
    });
    fleet.kubectl(&[
        "create",
        "configmap",
        "flag",
        "-n",
        name,
        "--from-literal=on=no",
    ]);
    fleet.kubectl(&[
        "patch",
        "configmap",
        "flag",
        "-n",
        name,
        "-p",
        r#"{"data":{"on":"yes"}}"#,
    ]);
    let since = Instant::now();
    fleet.until_value("first");
    assert!(since.elapsed() < Duration::from_secs(10), "{since:?}");
    // It was looked at when it began, and when it could go on.
    assert_eq!((waiting("base"), looks("base", "deployed")), (1.0, 1.0));
    fleet.until("web", |_| (looks("web", "deployed") > 0.0).then_some(()));
    assert!(waiting("web") <= 2.0, "{}", waiting("web"));

    // A commit that changes both: the second one waits, and is told so.
    fleet.kubectl(&[
        "patch",
        "configmap",
        "flag",
        "-n",
        name,
        "-p",
        r#"{"data":{"on":"no"}}"#,
    ]);
    fleet.edit("manifests/base/base.yaml", "k: first", "k: second");
    fleet.push_value("first", "second");
    running.pushed();
    let said = fleet.until_condition("Reconciling", "DependencyNotReady");
    assert!(
        said.contains("it depends on release base, which was not brought to commit "),
        "{said}"
    );
    assert_eq!(fleet.value().as_deref(), Some("first"));
    fleet.kubectl(&[
        "patch",
        "configmap",
        "flag",
        "-n",
        name,
        "-p",
        r#"{"data":{"on":"yes"}}"#,
    ]);
    fleet.until_value("second");
    fleet.until_not("Reconciling");
    running.stopped();
}
