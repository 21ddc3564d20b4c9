//! Checks of a bundle, evaluated on live objects.

use http::StatusCode;
use pleach_testkit::faults::{Answer, Fault, FaultProxy, Kind, Moment, Rule};

use crate::fleet::Fleet;
use crate::samples::{BUNDLE, config_map, deployment, gears};
use crate::{kubectl, shared};

const VERSION: &str = "apiVersion: pleach.dev/v1alpha1\nkind: BundleVersion\n";

/// Returns a release of a bundle with two versions and these rules, in an existing namespace.
fn fleet(environment: &'static str, rules: &str) -> Fleet {
    let release = format!(
        "  - {{name: web, bundle: web, version: v1.0.0, namespace: {environment}, timeout: 4s}}\n"
    );
    let fleet = Fleet::new(
        environment,
        &release,
        &[
            ("manifests/web/bundle.yaml", &*format!("{BUNDLE}{rules}")),
            ("manifests/web/v1.0.0/version.yaml", VERSION),
            (
                "manifests/web/v1.0.0/web.yaml",
                &config_map("settings", "old"),
            ),
            ("manifests/web/v1.1.0/version.yaml", VERSION),
            (
                "manifests/web/v1.1.0/web.yaml",
                &config_map("settings", "new"),
            ),
        ],
    );
    fleet.create_namespace(environment);
    fleet
}

fn define(fleet: &Fleet, group: &str) {
    let file = fleet.file("gears.yaml", &gears(group));
    kubectl::admin(&["apply", "-f", &file]);
    let name = format!("crd/gears.{group}");
    kubectl::admin(&[
        "wait",
        "--for=condition=Established",
        &name,
        "--timeout=30s",
    ]);
}

fn plant(fleet: &Fleet, group: &str, name: &str, teeth: u32, state: &str) {
    let gear = format!(
        "apiVersion: {group}/v1\nkind: Gear\nmetadata: {{name: {name}}}\nspec: {{teeth: {teeth}}}\nstatus: {{state: {state}}}\n"
    );
    let file = fleet.file("gear.yaml", &gear);
    kubectl::admin(&["-n", fleet.environment, "apply", "-f", &file]);
}

fn upgrade(fleet: &Fleet) {
    fleet.edit_environment("version: v1.0.0", "version: v1.1.0");
    fleet.commit();
}

const RULES: &str = "\
checks:
  - name: gears-turn
    forEach: {group: GROUP, kind: Gear}
    where: item.spec.teeth > 3
    require: item.status.state == 'turning'
    message: \"gear {{ item.metadata.name }} is {{ item.status.state }}\"
";

#[test]
fn what_does_not_hold_refuses_an_upgrade_until_git_says_otherwise() {
    let group = "checks.example.org";
    let fleet = fleet("checked", &RULES.replace("GROUP", group));
    // A kind that is not served has no objects that could violate the check.
    fleet.applied();
    define(&fleet, group);
    plant(&fleet, group, "fine", 5, "turning");
    plant(&fleet, group, "small", 2, "broken");
    plant(&fleet, group, "bent", 7, "bent");
    plant(&fleet, group, "rusty", 9, "rusty");
    upgrade(&fleet);
    let run = fleet.writes_nothing(|fleet| fleet.apply().ended_with(7));
    let run = run
        .says("check gears-turn does not hold: Gear.checks.example.org/checked/bent: gear bent is bent")
        .says("check gears-turn does not hold: Gear.checks.example.org/checked/rusty: gear rusty is rusty")
        .says("{action: override, check: gears-turn, release: web, from: v1.0.0, to: v1.1.0, reason: …}");
    let shown = run.shown();
    assert!(
        !shown.contains("gear fine") && !shown.contains("gear small"),
        "{shown}"
    );

    fleet.extend_environment(
        "consent: [{action: override, check: gears-turn, release: web, from: v1.0.0, to: v1.1.0, reason: the gears are changed}]\n",
    );
    fleet.commit();
    fleet
        .applied()
        .says("check gears-turn is overridden (the gears are changed)");
    // The override is recorded and shown.
    let path = "{.status.record.history[0].overridden[0].reason}";
    assert_eq!(
        fleet.field(&["release", "checked.web"], path),
        "the gears are changed"
    );
    fleet
        .run(&["history", "checked/web"])
        .ended_with(0)
        .says("check gears-turn overridden: the gears are changed");
    // Without an upgrade, drift is corrected regardless of checks.
    let change = "--patch={\"data\":{\"k\":\"other\"}}";
    kubectl::admin(&[
        "-n",
        "checked",
        "patch",
        "cm/settings",
        "--type=merge",
        change,
    ]);
    fleet.applied();
    assert_eq!(
        fleet.field(&["cm/settings", "-n", "checked"], "{.data.k}"),
        "new"
    );
}

#[test]
fn an_incomplete_list_is_a_refusal() {
    let group = "unlisted.example.org";
    let mut fleet = fleet("unlisted", &RULES.replace("GROUP", group));
    define(&fleet, group);
    fleet.applied();
    upgrade(&fleet);
    let proxy = FaultProxy::start(shared().kubeconfig()).unwrap();
    let forbidden = Answer::status(StatusCode::FORBIDDEN, "Forbidden", "gears is forbidden");
    proxy.add(
        Rule::on(
            |seen| seen.method == "GET" && seen.path.ends_with("/gears"),
            Fault::Answer(forbidden),
        )
        .times(1000),
    );
    fleet.through(proxy.kubeconfig());
    fleet
        .writes_nothing(|fleet| fleet.apply().ended_with(4))
        .says("check gears-turn cannot be evaluated: ")
        .says("gears is forbidden");
}

#[test]
fn a_stage_of_the_bundles_own_waits_until_its_checks_hold_again() {
    let rules = "\
checks: [{name: still-old, forEach: {kind: ConfigMap, name: settings, namespace: staged}, require: item.data.k == 'old'}]
stages: [{name: again, restart: [{kind: Deployment, name: app}], after: [workloads]}]
";
    let fleet = fleet("staged", rules);
    for (version, value) in [("v1.0.0", "old"), ("v1.1.0", "new")] {
        let files = [config_map("settings", value), deployment("app")].join("---\n");
        fleet.write(&format!("manifests/web/{version}/web.yaml"), &files);
    }
    fleet.commit();
    fleet.applied();
    upgrade(&fleet);
    // The check holds at the start, and the upgrade itself violates it.
    fleet
        .apply()
        .ended_with(6)
        .says("check still-old does not hold: ConfigMap/staged/settings: `item.data.k == 'old'` does not hold");
    let path = "{.spec.template.metadata.annotations}";
    let restarted = fleet.field(&["deployment/app", "-n", "staged"], path);
    assert_eq!(restarted, "");
}

#[test]
fn a_stage_is_verified_by_a_check_before_what_comes_after_it() {
    let rules = "\
checks: [{name: report, forEach: {kind: ConfigMap, name: report, namespace: reported}, require: item.data.k == 'fine'}]
stages:
  - {name: first, select: [{kind: ConfigMap, name: settings}], verify: [{check: report}]}
  - {name: second, select: [{kind: ConfigMap, name: later}]}
";
    let fleet = fleet("reported", rules);
    for (version, value) in [("v1.0.0", "old"), ("v1.1.0", "new")] {
        let files = [config_map("settings", value), config_map("later", value)].join("---\n");
        fleet.write(&format!("manifests/web/{version}/web.yaml"), &files);
    }
    fleet.commit();
    let report = |value: &str| {
        let file = fleet.file("report.yaml", &config_map("report", value));
        kubectl::admin(&["-n", "reported", "apply", "-f", &file]);
    };
    let values = || {
        ["settings", "later"].map(|name| fleet.field(&["cm", name, "-n", "reported"], "{.data.k}"))
    };
    report("fine");
    fleet.applied();
    // The check is not required at the start, because the report is about the upgrade.
    report("bad");
    upgrade(&fleet);
    fleet
        .apply()
        .ended_with(6)
        .says("check report does not hold: ConfigMap/reported/report");
    assert_eq!(values(), ["new", "old"]);
    // Without changes, the next run evaluates the check again.
    fleet.writes_objects_nowhere(|fleet| fleet.apply().ended_with(6));
    report("fine");
    fleet.applied();
    assert_eq!(values(), ["new", "new"]);
}

#[test]
fn a_check_is_waited_for_of_a_kind_that_came_after_the_plan() {
    let group = "late.example.org";
    let stages = "\
stages:
  - {name: first, select: [{kind: ConfigMap, name: settings}], verify: [{check: gears-turn}]}
  - {name: second, select: [{kind: ConfigMap, name: later}]}
";
    let rules = RULES.replace("GROUP", group) + stages;
    let mut fleet = fleet("check-late", &rules);
    // The kind is created while a write is answered, which takes time on a busy machine.
    fleet.edit_environment("timeout: 4s", "timeout: 12s");
    for (version, value) in [("v1.0.0", "old"), ("v1.1.0", "new")] {
        let files = [config_map("settings", value), config_map("later", value)].join("---\n");
        fleet.write(&format!("manifests/web/{version}/web.yaml"), &files);
    }
    fleet.commit();
    // A kind that is not served has no objects that could violate the check.
    fleet.applied();
    upgrade(&fleet);
    let definition = fleet.file("gears.yaml", &gears(group));
    let bent = format!(
        "apiVersion: {group}/v1\nkind: Gear\nmetadata: {{name: bent}}\nspec: {{teeth: 7}}\nstatus: {{state: bent}}\n"
    );
    let bent = fleet.file("bent.yaml", &bent);
    let name = format!("crd/gears.{group}");
    let comes = move || {
        kubectl::admin(&["apply", "-f", &definition]);
        let wait = ["wait", "--for=condition=Established", "--timeout=30s"];
        kubectl::admin(&[&wait[..], &[name.as_str()]].concat());
        kubectl::admin(&["-n", "check-late", "apply", "-f", &bent]);
    };
    let proxy = FaultProxy::start(shared().kubeconfig()).unwrap();
    proxy.add(
        Rule::on(
            |seen| seen.kind == Kind::Write && seen.path.ends_with("/configmaps/settings"),
            Fault::hook(Moment::BeforeAnswer, comes),
        )
        .nth(1),
    );
    fleet.through(proxy.kubeconfig());
    fleet.apply().ended_with(6).says(
        "check gears-turn does not hold: Gear.late.example.org/check-late/bent: gear bent is bent",
    );
    assert_eq!(proxy.log().faults().count(), 1);
    let values = || {
        ["settings", "later"]
            .map(|name| fleet.field(&["cm", name, "-n", "check-late"], "{.data.k}"))
    };
    assert_eq!(values(), ["new", "old"]);
    plant(&fleet, group, "bent", 7, "turning");
    fleet.applied();
    assert_eq!(values(), ["new", "new"]);
}

#[test]
fn what_forbids_an_end_may_say_which_objects() {
    let group = "running.example.org";
    let rules = format!(
        "blockUninstall: [{{forEach: {{group: {group}, kind: Gear}}, where: item.status.state == 'turning', message: \"gear {{{{ item.metadata.name }}}} turns\"}}]\n"
    );
    let fleet = fleet("running", &rules);
    define(&fleet, group);
    fleet.applied();
    plant(&fleet, group, "idle", 5, "stopped");
    plant(&fleet, group, "busy", 5, "turning");
    // The rule is retained after the bundle is removed.
    fleet.edit_environment(
        "  - {name: web, bundle: web, version: v1.0.0, namespace: running, timeout: 4s}\n",
        "",
    );
    fleet.remove("manifests/web");
    fleet.commit();
    fleet
        .writes_nothing(|fleet| {
            fleet
                .run(&["uninstall", "running/web", "--yes"])
                .ended_with(7)
        })
        .says("gear busy turns: Gear.running.example.org/running/busy");
    plant(&fleet, group, "busy", 5, "stopped");
    fleet
        .run(&["uninstall", "running/web", "--yes"])
        .ended_with(0);
}

#[test]
fn two_budgets_for_a_pod_are_pointed_out() {
    let fleet = fleet("budgets", "");
    let budget = |name: &str, bound: &str| {
        format!(
            "apiVersion: policy/v1\nkind: PodDisruptionBudget\nmetadata: {{name: {name}}}\nspec: {{{bound}, selector: {{matchLabels: {{app: app}}}}}}\n"
        )
    };
    let file = fleet.file("theirs.yaml", &budget("theirs", "maxUnavailable: 0"));
    kubectl::admin(&["-n", "budgets", "apply", "-f", &file]);
    let app = deployment("app").replace("replicas: 0", "replicas: 2");
    let files = [budget("ours", "minAvailable: 1"), app].join("---\n");
    fleet.write("manifests/web/v1.0.0/web.yaml", &files);
    fleet.commit();
    fleet
        .run(&["plan", "budgets"])
        .ended_with(0)
        .says("its pods have 2 PodDisruptionBudgets: ours, theirs")
        .says("PodDisruptionBudget theirs allows no eviction of its 2 pods (maxUnavailable: 0)");
}
