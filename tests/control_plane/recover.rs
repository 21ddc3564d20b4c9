//! Recovery of lost records from the objects.

use std::time::Duration;

use pleach_testkit::faults::{Fault, FaultProxy, Kind, Rule, Seen};
use rstest::rstest;

use crate::fleet::{Fleet, object_writes};
use crate::{kubectl, samples, shared};

fn fleet(environment: &'static str) -> Fleet {
    let group = format!("{environment}.example.org");
    let secret =
        "apiVersion: v1\nkind: Secret\nmetadata: {name: token}\nstringData: {k: Xq7hush9vB2}\n";
    let manifests = [
        samples::config_map("settings", "v"),
        samples::config_map("unlabelled", "v"),
        samples::deployment("shop"),
        samples::gears(&group),
        samples::gear(&group),
        secret.to_owned(),
    ]
    .join("---\n");
    Fleet::new(
        environment,
        &format!("  - {{name: shop, bundle: shop, namespace: {environment}}}\n"),
        &[
            ("manifests/shop/bundle.yaml", samples::BUNDLE),
            ("manifests/shop/all.yaml", &manifests),
        ],
    )
}

/// Returns the names of the release's inventory shards.
fn shards(fleet: &Fleet) -> Vec<String> {
    let label = format!("pleach.dev/release={}.shop", fleet.environment);
    let names = fleet.state_maps(&label).into_iter();
    names.map(|name| format!("configmap/{name}")).collect()
}

fn lose_release(fleet: &Fleet) {
    kubectl::admin(&["delete", "release", &format!("{}.shop", fleet.environment)]);
}

fn lose_shard(fleet: &Fleet) {
    for shard in shards(fleet) {
        kubectl::admin(&["-n", "pleach-system", "delete", &shard]);
    }
}

fn tamper(fleet: &Fleet) {
    for shard in shards(fleet) {
        let patch = r#"--patch={"binaryData":{"entries":"aGVsbG8="}}"#;
        kubectl::admin(&[
            "-n",
            "pleach-system",
            "patch",
            &shard,
            "--type=merge",
            patch,
        ]);
    }
}

fn lose_both(fleet: &Fleet) {
    lose_shard(fleet);
    lose_release(fleet);
}

/// A way to lose the record, and its effect.
type Loss = (fn(&Fleet), &'static str);

#[test]
fn a_lost_record_is_rebuilt_and_nothing_is_deleted() {
    let environment = "lost";
    let fleet = fleet(environment);
    fleet.applied();
    let set = fleet.field(
        &["release", "lost.shop"],
        r"{.metadata.labels.applyset\.kubernetes\.io/id}",
    );
    let label = format!("applyset.kubernetes.io/part-of={set}");
    kubectl::admin(&["-n", environment, "create", "cm", "copied"]);
    kubectl::admin(&["-n", environment, "label", "cm/copied", &label]);
    unlabel(&fleet);
    let recover = ["recover", environment, "--yes"];
    let (run, events) = fleet.watched(|fleet| fleet.run(&recover).ended_with(0));
    run.says("nothing is lost");
    assert_eq!(events.writes().to_string(), "");

    let shard = "ConfigMap pleach-system/lost.shop.inventory.";
    let both = "the record and its inventory";
    let losses: [Loss; 4] = [
        (lose_release, both),
        (lose_shard, shard),
        (tamper, shard),
        (lose_both, both),
    ];
    for (lose, what) in losses {
        unlabel(&fleet);
        lose(&fleet);
        is_rebuilt(&fleet, what);
    }
    // The recovered object is a member again and is pruned when git drops it.
    fleet.edit(
        "manifests/shop/all.yaml",
        &samples::config_map("settings", "v"),
        &samples::config_map("other", "v"),
    );
    fleet.commit();
    fleet.applied().says("1 created, 1 deleted");
    assert!(!fleet.exists(&["-n", environment, "cm/settings"]));
    assert!(fleet.exists(&["-n", environment, "cm/copied"]));
}

/// Removes the label of an object, as another client.
fn unlabel(fleet: &Fleet) {
    let label = ["label", "cm/unlabelled", "applyset.kubernetes.io/part-of-"];
    kubectl::admin(&[&["-n", fleet.environment], &label[..]].concat());
}

/// Recovers the release, and applies it. One client copied the label, another removed it.
#[track_caller]
fn is_rebuilt(fleet: &Fleet, what: &str) {
    let environment = fleet.environment;
    let group = format!("{environment}.example.org");
    let recover = ["recover", environment, "--yes"];
    let (run, events) = fleet.watched(|fleet| fleet.run(&recover).ended_with(0));
    assert_eq!(object_writes(&events), [""; 0]);
    run.says(&format!("lost: {what}"))
        .says(&format!("found: ConfigMap/{environment}/settings"))
        .says(&format!("found: Gear.{group}/{environment}/first"))
        .says(&format!("found from git, without the label: ConfigMap/{environment}/unlabelled"))
        .says(&format!("skipped, because pleach did not apply it although it has the label: ConfigMap/{environment}/copied"))
        .says("recovered with 7 objects");
    let ready = "{.status.conditions[0].status} {.status.conditions[0].reason}";
    let release = format!("{environment}.shop");
    assert_eq!(
        fleet.field(&["release", &release], ready),
        "False Recovered"
    );
    // The next apply works, and a further one has nothing to do.
    fleet.applied().says("deployed");
    let (_, events) = fleet.watched(Fleet::applied);
    assert_eq!(events.writes().to_string(), "");
}

/// Another client creates an object between plan and apply, which then fails. The object still
/// belongs to that client after the record is lost.
#[test]
fn what_somebody_else_made_stays_theirs_when_the_record_is_lost() {
    let mut fleet = fleet("lost-kept");
    fleet.applied();
    let manifests = "manifests/shop/all.yaml";
    let with = format!(
        "{}---\n{}",
        fleet.read(manifests),
        samples::config_map("late", "v")
    );
    fleet.write(manifests, &with);
    fleet.commit();
    let proxy = FaultProxy::start(shared().kubeconfig()).unwrap();
    let is_about =
        |seen: &Seen| seen.kind == Kind::Write && seen.path.ends_with("/configmaps/late");
    proxy.add(Rule::on(is_about, Fault::Delay(Duration::from_millis(2500))).nth(1));
    fleet.through(proxy.kubeconfig());
    let run = fleet.start(&["apply", "lost-kept", "--yes"]);
    fleet.until("the request", |_| proxy.log().faults().next().map(drop));
    kubectl::admin(&[
        "-n",
        "lost-kept",
        "create",
        "cm",
        "late",
        "--from-literal=k=v",
    ]);
    run.ended()
        .ended_with(5)
        .says("it was created by kubectl-create");
    fleet.through(shared().kubeconfig().to_owned());

    lose_both(&fleet);
    fleet
        .run(&["recover", "lost-kept", "--yes"])
        .ended_with(0)
        .says("never deleted, because another client created it: ConfigMap/lost-kept/late")
        .says("found: ConfigMap/lost-kept/settings");
    // Git drops it, and it is retained.
    fleet.edit(
        manifests,
        &samples::config_map("late", "v"),
        &samples::config_map("else", "v"),
    );
    fleet.commit();
    fleet.applied().says(
        "kept ConfigMap/lost-kept/late: no longer in git; stays because other field managers own fields of it",
    );
    assert!(fleet.exists(&["-n", "lost-kept", "cm/late"]));
}

#[test]
fn a_lost_record_stops_everything_until_it_is_rebuilt() {
    let fleet = fleet("stopped");
    fleet.applied();
    lose_shard(&fleet);
    let (run, events) = fleet.watched(Fleet::apply);
    run.ended_with(4).says("`pleach recover stopped/shop`");
    assert_eq!(events.writes().to_string(), "");
    // It prompts. Without an answer it only shows the plan.
    fleet
        .writes_nothing(|fleet| fleet.run(&["recover", "stopped/shop"]).ended_with(2))
        .says("--yes");
    let report = fleet.run(&["recover", "stopped/shop", "--yes", "-o", "json"]);
    let report = report.ended_with(0).json();
    assert_eq!(report["releases"][0]["result"], "recovered");
    assert_eq!(report["releases"][0]["objects"], 7);
    fleet.applied();
}

#[test]
fn what_nobody_remembers_is_not_taken_for_a_first_apply() {
    let fleet = fleet("forgotten");
    fleet.applied();
    lose_release(&fleet);
    fleet
        .writes_nothing(|fleet| fleet.apply().ended_with(4))
        .says("the record of release forgotten.shop is gone")
        .says("`pleach recover forgotten/shop`");
    fleet
        .run(&["recover", "forgotten/shop", "--yes"])
        .ended_with(0);
    fleet.applied();
}

/// A backup restored without status, or a patch: the object exists without content.
#[rstest]
#[case::what_git_still_has("emptied", false)]
#[case::what_git_has_no_more("emptied-kinds", true)]
fn a_record_that_was_emptied_is_not_taken_for_a_first_apply(
    #[case] environment: &'static str,
    #[case] is_dropped: bool,
) {
    let fleet = fleet(environment);
    fleet.applied();
    let release = format!("{environment}.shop");
    let empty = r#"--patch={"status":null}"#;
    kubectl::admin(&[
        "patch",
        "release",
        &release,
        "--subresource=status",
        "--type=merge",
        empty,
    ]);
    if is_dropped {
        // A kind that the release did not contain.
        let role = "apiVersion: v1\nkind: ServiceAccount\nmetadata: {name: other}\n";
        fleet.write("manifests/shop/all.yaml", role);
        fleet.commit();
    }
    fleet
        .writes_nothing(|fleet| fleet.apply().ended_with(4))
        .says(&format!("the record of release {release} is empty"))
        .says(&format!("`pleach recover {environment}/shop`"));
    let uninstall = format!("{environment}/shop");
    fleet
        .writes_nothing(|fleet| fleet.run(&["uninstall", &uninstall, "--yes"]).ended_with(4))
        .says("is empty");
    fleet
        .run(&["recover", environment, "--yes"])
        .ended_with(0)
        .says("lost: the record and its inventory")
        .says("recovered with 7 objects");
    if !is_dropped {
        fleet.applied();
    }
}

/// Killed between the creation of the record object and its content.
#[test]
fn a_first_run_that_left_an_empty_record_goes_on() {
    let fleet = Fleet::web("begun", &samples::config_map("settings", "v"));
    fleet.applied();
    let release = serde_json::json!({
        "apiVersion": "pleach.dev/v1alpha1", "kind": "Release",
        "metadata": {"name": "begun.late", "annotations": {
            "applyset.kubernetes.io/tooling": "pleach/0.1.0",
            "applyset.kubernetes.io/contains-group-kinds": "ConfigMap,Namespace",
            "applyset.kubernetes.io/additional-namespaces": "begun-late"}},
        "spec": {"environment": "begun", "release": "late"},
    });
    let file = fleet.file("release.json", &release.to_string());
    kubectl::admin(&["apply", "--server-side", "-f", &file]);
    fleet.extend_environment("  - {name: late, bundle: web, namespace: begun-late}\n");
    fleet.commit();
    fleet
        .run(&["recover", "begun/late", "--yes"])
        .ended_with(0)
        .says("nothing to recover");
    fleet.applied().says("deployed");
}

#[test]
fn a_record_of_another_repository_is_not_written_over() {
    let fleet = fleet("theirs");
    fleet.applied();
    lose_shard(&fleet);
    fleet.edit("pleach.yaml", "id: theirs", "id: another");
    fleet.commit();
    fleet
        .writes_nothing(|fleet| fleet.run(&["recover", "theirs", "--yes"]).ended_with(7))
        .says("belongs to the repository `theirs`, not to `another`");
}
