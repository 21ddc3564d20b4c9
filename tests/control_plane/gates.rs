//! Gates on a real server: stopped and exempt users during a change, and the gate after a failed or
//! killed change.

use std::process::Output;

use pleach_testkit::faults::Moment;
use rstest::rstest;
use serde_json::Value;

use crate::fleet::Fleet;
use crate::kill;
use crate::samples::{BUNDLE, config_map, deployment, gear, gears};

const KIND: &str = "validatingadmissionpolicies";

/// Returns a release `web` in an existing namespace, beside an unrelated kind.
fn fleet(environment: &'static str, timeout: &str, bundle: &str) -> Fleet {
    let release =
        format!("  - {{name: web, bundle: web, namespace: {environment}, timeout: {timeout}}}\n");
    let bundle = format!("{BUNDLE}{bundle}");
    let fleet = Fleet::new(
        environment,
        &release,
        &[("manifests/web/bundle.yaml", bundle.as_str())],
    );
    fleet.create_namespace(environment);
    let account = "apiVersion: v1\nkind: ServiceAccount\nmetadata: {name: app}\n";
    fleet.write("manifests/web/account.yaml", account);
    fleet
}

fn group(fleet: &Fleet) -> String {
    format!("{}.example.org", fleet.environment)
}

/// Creates an unrelated CRD in the group of the environment.
pub(crate) fn define_gears(fleet: &Fleet) {
    let file = fleet.file("gears.yaml", &gears(&group(fleet)));
    fleet.kubectl(&["apply", "-f", &file]);
    fleet.kubectl(&[
        "wait",
        "--for=condition=Established",
        &format!("crd/gears.{}", group(fleet)),
    ]);
}

/// Returns the result of a write by a user with all permissions, which only a gate stops.
fn by(fleet: &Fleet, user: &str, args: &[&str]) -> Output {
    let user = format!("--as={user}");
    let who = [user.as_str(), "--as-group=system:masters"];
    let namespace = ["-n", fleet.environment];
    fleet.try_kubectl(&[args, &who, &namespace].concat())
}

/// Creates the gear in a dry run. The error is the refusal.
fn create(fleet: &Fleet, user: &str) -> Result<(), String> {
    let file = fleet.file("gear.yaml", &gear(&group(fleet)));
    let args = ["create", "--dry-run=server", "-f", file.as_str()];
    let output = by(fleet, user, &args);
    if output.status.success() {
        return Ok(());
    }
    Err(String::from_utf8(output.stderr).unwrap())
}

/// Returns whether a gate of release `web` exists.
pub(crate) fn is_closed(fleet: &Fleet, gate: &str) -> bool {
    let name = format!("{}.web.{gate}", fleet.environment);
    let both = [KIND, "validatingadmissionpolicybindings"];
    let found = both.map(|kind| fleet.exists(&[kind, &name]));
    assert_eq!(found[0], found[1], "half a gate");
    found[0]
}

pub(crate) fn journal(fleet: &Fleet) -> Option<Value> {
    let name = format!("{}.web.journal", fleet.environment);
    fleet.get(&["configmap", &name, "-n", "pleach-system"])
}

/// Returns a Deployment whose pods never run, because there are no nodes.
fn never() -> String {
    deployment("app").replace("replicas: 0", "replicas: 1")
}

fn deploy(fleet: &Fleet, app: &str) {
    fleet.write("manifests/web/app.yaml", app);
    fleet.commit();
}

fn hold(environment: &str) -> String {
    format!(
        "gates:\n  - {{name: hold, groups: [{environment}.example.org], exempt: [{{serviceAccount: backup/velero}}], maxDuration: 30m}}\n"
    )
}

#[test]
fn a_gate_stops_everybody_but_those_exempt_until_the_change_is_done() {
    let fleet = fleet("gate-hold", "2s", &hold("gate-hold"));
    define_gears(&fleet);
    deploy(&fleet, &never());
    let policy = "ValidatingAdmissionPolicy.admissionregistration.k8s.io/gate-hold.web.hold";
    let closes = format!(
        "~ close   {policy}  (gate hold until ungate: CREATE and UPDATE of *.gate-hold.example.org)"
    );
    fleet
        .run(&["plan", "gate-hold"])
        .ended_with(0)
        .says(&closes)
        .says(&format!("~ lift    {policy}  (gate hold ends)"));
    fleet
        .run(&["diff", "gate-hold"])
        .ended_with(0)
        .says("gate hold blocks CREATE and UPDATE of *.gate-hold.example.org until ungate");
    assert!(!is_closed(&fleet, "hold"));
    let lifts = format!("`pleach doctor --fix {policy}` lifts it now");
    fleet
        .apply()
        .ended_with(6)
        .says(&format!(
            "still closed: {policy} (gate hold: retained if the run fails, for at most 30m"
        ))
        .says(&lifts);
    assert!(is_closed(&fleet, "hold"));

    // The refusal contains the reason and the condition for its end.
    let refused = create(&fleet, "eve").unwrap_err();
    for text in [
        "gate-hold/web is being changed to",
        "(gate hold, since ",
        "pleach doctor --fix ValidatingAdmissionPolicy",
    ] {
        assert!(refused.contains(text), "{refused}");
    }
    for exempt in [
        "system:serviceaccount:gate-hold:app",
        "system:serviceaccount:backup:velero",
        "system:kube-controller-manager",
    ] {
        assert_eq!(create(&fleet, exempt), Ok(()), "{exempt}");
    }
    for stopped in ["system:serviceaccount:ci:deployer", "system:somebody"] {
        assert!(create(&fleet, stopped).is_err(), "{stopped}");
    }
    // Our own user is stopped too, because this plan does not write the closed kind.
    let file = fleet.file("gear.yaml", &gear(&group(&fleet)));
    let args = ["create", "-n", "gate-hold", "-f", file.as_str()];
    assert!(!fleet.try_kubectl(&args).status.success());
    // Changes are refused, deletions are allowed.
    let account = "system:serviceaccount:gate-hold:app";
    let created = by(&fleet, account, &["create", "-f", file.as_str()]);
    assert!(created.status.success(), "{created:?}");
    let gear = "gears.gate-hold.example.org/first";
    let change = by(&fleet, "eve", &["annotate", gear, "a=b"]);
    assert!(!change.status.success());
    assert!(by(&fleet, "eve", &["delete", gear]).status.success());
    // For ConfigMaps, only the probe is refused, for all users.
    let other = ["create", "configmap", "other", "--dry-run=server"];
    assert!(by(&fleet, "eve", &other).status.success());

    fleet
        .run(&["status"])
        .ended_with(0)
        .says("gate-hold/web: CREATE and UPDATE of *.gate-hold.example.org has been closed for")
        .says(&lifts);

    // The next successful run lifts the gate.
    deploy(&fleet, &deployment("app"));
    fleet.applied();
    assert!(!is_closed(&fleet, "hold"));
    assert_eq!(create(&fleet, "eve"), Ok(()));
    assert_eq!(journal(&fleet), None);
    fleet.writes_nothing(Fleet::applied);
}

#[test]
fn a_run_does_not_keep_a_gate_for_longer_than_it_may_be_closed() {
    let bundle = hold("gate-long").replace("30m", "5s");
    let fleet = fleet("gate-long", "12s", &bundle);
    define_gears(&fleet);
    deploy(&fleet, &never());
    let failed = fleet
        .apply()
        .ended_with(6)
        .says("gate hold reached its time limit");
    assert!(
        !failed.stdout.contains("still closed"),
        "{}",
        failed.shown()
    );
    assert!(!is_closed(&fleet, "hold"));
    assert_eq!(create(&fleet, "eve"), Ok(()));
    assert_eq!(journal(&fleet), None);
}

#[test]
fn a_gate_that_git_does_not_have_any_more_is_lifted_first() {
    let fleet = fleet("gate-drop", "2s", &hold("gate-drop"));
    define_gears(&fleet);
    deploy(&fleet, &never());
    fleet.apply().ended_with(6);
    fleet.write("manifests/web/bundle.yaml", BUNDLE);
    fleet.commit();
    // The change still fails.
    let failed = fleet.apply().ended_with(6);
    assert!(
        !failed.stdout.contains("still closed"),
        "{}",
        failed.shown()
    );
    assert!(!is_closed(&fleet, "hold"));
    assert_eq!(create(&fleet, "eve"), Ok(()));
    assert_eq!(journal(&fleet), None);
}

#[test]
fn a_gate_that_somebody_lifted_is_closed_again_while_it_is_wanted() {
    let fleet = fleet("gate-fix", "2s", &hold("gate-fix"));
    define_gears(&fleet);
    deploy(&fleet, &never());
    fleet.apply().ended_with(6);
    let policy = "ValidatingAdmissionPolicy.admissionregistration.k8s.io/gate-fix.web.hold";
    fleet
        .run(&["doctor"])
        .ended_with(1)
        .says("is a gate of an upgrade of gate-fix/web, which no client is executing");
    fleet
        .run(&["doctor", "--fix", policy, "--yes"])
        .ended_with(0);
    assert!(!is_closed(&fleet, "hold"));
    fleet.apply().ended_with(6).says("still closed");
    assert!(is_closed(&fleet, "hold"));
    deploy(&fleet, &deployment("app"));
    fleet.applied();
    assert!(!is_closed(&fleet, "hold"));
}

#[rstest]
#[case("gate-cut-before", Moment::BeforeForwarding)]
#[case("gate-cut-after", Moment::AfterForwarding)]
fn a_kill_leaves_a_gate_that_the_next_run_finds(
    #[case] environment: &'static str,
    #[case] moment: Moment,
) {
    let mut fleet = fleet(environment, "1m", &hold(environment));
    define_gears(&fleet);
    deploy(&fleet, &config_map("a", "v"));
    kill::at_every_write(&mut fleet, &["apply", environment, "--yes"], moment);
    fleet.applied();
    assert!(!is_closed(&fleet, "hold"));
    assert_eq!(create(&fleet, "eve"), Ok(()));
    assert_eq!(journal(&fleet), None);
}

#[test]
fn kinds_that_an_upgrade_brings_are_closed_until_it_is_done() {
    let fleet = fleet("gate-new", "2s", "");
    deploy(&fleet, &deployment("app"));
    fleet.applied();
    fleet.write("manifests/web/gears.yaml", &gears(&group(&fleet)));
    fleet.write("manifests/web/gear.yaml", &gear(&group(&fleet)));
    deploy(&fleet, &never());
    let (run, events) = fleet.watched(Fleet::apply);
    run.ended_with(6).says("still closed");
    let writes = events.writes().to_string();
    let closed = writes.find("gate-new.web.new-apis").unwrap();
    let defined = writes.find("gears.gate-new.example.org").unwrap();
    assert!(closed < defined, "{writes}");
    // The kind exists with our object. Other users cannot create one.
    let first = ["gears.gate-new.example.org/first", "-n", "gate-new"];
    assert!(fleet.exists(&first));
    assert!(create(&fleet, "eve").unwrap_err().contains("gate new-apis"));
    deploy(&fleet, &deployment("app"));
    fleet.applied();
    assert!(!is_closed(&fleet, "new-apis"));
    fleet.kubectl(&["delete", first[0], "-n", "gate-new"]);
    assert_eq!(create(&fleet, "eve"), Ok(()));
    assert_eq!(journal(&fleet), None);
}

#[test]
fn our_own_user_is_stopped_unless_the_plan_writes_there() {
    let fleet = fleet("gate-own", "2s", &hold("gate-own"));
    define_gears(&fleet);
    deploy(&fleet, &never());
    fleet.apply().ended_with(6);
    let ours = || {
        let other = gear(&group(&fleet)).replace("first", "other");
        let file = fleet.file("other.yaml", &other);
        let args = ["create", "--dry-run=server", "-n", "gate-own", "-f", &file];
        fleet.try_kubectl(&args).status.success()
    };
    assert!(!ours());
    // The next change writes the closed kind. It declares this and is exempt.
    fleet.write("manifests/web/gear.yaml", &gear(&group(&fleet)));
    fleet.commit();
    fleet
        .run(&["plan", "gate-own"])
        .ended_with(0)
        .says("gate hold does not stop `")
        .says("this plan writes Gear.gate-own.example.org/gate-own/first while it is closed");
    fleet.apply().ended_with(6);
    assert!(fleet.exists(&["gears.gate-own.example.org/first", "-n", "gate-own"]));
    assert!(ours());
    assert!(create(&fleet, "eve").is_err());
    deploy(&fleet, &deployment("app"));
    fleet.applied();
    assert!(!is_closed(&fleet, "hold"));
}
