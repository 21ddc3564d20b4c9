//! Removal of whole releases: from git, or by uninstall.

mod hindered;
mod killed;
mod returning;
mod roles;
mod staged;

use rstest::rstest;
use serde_json::Value;

use crate::fleet::{Fleet, object_writes};
use crate::prune::deletions;
use crate::suspensions::apart;
use crate::{kubectl, samples};

/// Returns an object of each deletion class and of each protected kind.
fn everything(environment: &str) -> String {
    let group = format!("{environment}.example.org");
    let parts = format!(
        "\
apiVersion: v1
kind: ServiceAccount
metadata: {{name: shop}}
---
apiVersion: v1
kind: Service
metadata: {{name: shop}}
spec: {{selector: {{app: shop}}, ports: [{{port: 80}}]}}
---
apiVersion: v1
kind: Namespace
metadata: {{name: {environment}-extra}}
---
apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata: {{name: {environment}}}
provisioner: example.org/none
volumeBindingMode: WaitForFirstConsumer
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {{name: data}}
spec: {{storageClassName: {environment}, accessModes: [ReadWriteOnce], resources: {{requests: {{storage: 1Mi}}}}}}
"
    );
    [
        parts,
        samples::config_map("settings", "v"),
        samples::deployment("shop"),
        samples::gears(&group),
        samples::gear(&group),
    ]
    .join("---\n")
}

/// Returns a release `shop` with these manifests and short waits.
fn fleet(environment: &'static str, manifests: &str) -> Fleet {
    Fleet::new(
        environment,
        &release(environment),
        &[
            ("manifests/shop/bundle.yaml", samples::BUNDLE),
            ("manifests/shop/v1.0.0/all.yaml", manifests),
        ],
    )
}

fn release(environment: &str) -> String {
    format!(
        "  - {{name: shop, bundle: shop, version: v1.0.0, namespace: {environment}, timeout: 20s}}\n"
    )
}

/// Removes the release from the environment file, and its bundle from git.
fn take_out(fleet: &Fleet) {
    fleet.edit_environment(&release(fleet.environment), "");
    fleet.edit_environment("releases:\n", "releases: []\n");
    fleet.remove("manifests/shop");
    fleet.commit();
}

/// Returns whether any state of the release remains.
fn has_state(fleet: &Fleet) -> bool {
    let release = format!("{}.shop", fleet.environment);
    let shards = fleet.state_maps(&format!("pleach.dev/release={release}"));
    fleet.exists(&["release", &release]) || !shards.is_empty()
}

fn marks(fleet: &Fleet, object: &[&str]) -> Vec<String> {
    let object = fleet.get(object).unwrap();
    let keys = |map: &str| -> Vec<String> {
        let map: &Value = &object["metadata"][map];
        map.as_object()
            .into_iter()
            .flatten()
            .map(|(key, _)| key.clone())
            .filter(|key| {
                key.contains("pleach") || key.contains("applyset") || key.contains("managed-by")
            })
            .collect()
    };
    [keys("labels"), keys("annotations")].concat()
}

#[test]
fn uninstall_takes_everything_away_in_order_and_keeps_what_is_protected() {
    let fleet = fleet("leave", &everything("leave"));
    fleet.applied();
    kubectl::admin(&["-n", "leave", "create", "cm", "of-others"]);

    // It shows the plan and prompts. Without a terminal it needs --yes.
    fleet
        .writes_nothing(|fleet| fleet.run(&["uninstall", "leave/shop"]).ended_with(2))
        .says("--yes");
    let run = fleet.on_a_terminal(&["uninstall", "leave/shop"], "n\n");
    run.ended_with(1).says("nothing was deleted");
    assert!(fleet.exists(&["-n", "leave", "cm/settings"]));

    let (run, events) = fleet.watched(|fleet| {
        fleet
            .run(&["uninstall", "leave/shop", "--yes"])
            .ended_with(0)
    });
    run.says("release leave.shop v1.0.0: uninstalled")
        .says("has release leave/shop: the next apply installs it again")
        .says("kept Namespace/leave: stays because objects of kind Namespace are protected")
        .says("kept Namespace/leave-extra: ")
        .says("kept PersistentVolumeClaim/leave/data: ")
        .says("kept CustomResourceDefinition.apiextensions.k8s.io/gears.leave.example.org: ")
        .says("kept objects no longer belong to a release");
    let mut order = deletions(&events);
    order.retain(|resource| resource != "storageclasses");
    assert_eq!(
        order,
        [
            "gears",
            "deployments",
            "services",
            "configmaps",
            "serviceaccounts"
        ],
    );
    assert!(!has_state(&fleet));
    assert!(fleet.exists(&["-n", "leave", "cm/of-others"]));
    for kept in [
        &["namespace", "leave"][..],
        &["namespace", "leave-extra"],
        &["-n", "leave", "pvc/data"],
        &["crd", "gears.leave.example.org"],
    ] {
        assert_eq!(marks(&fleet, kept), ["pleach.dev/released"], "{kept:?}");
    }

    // A second uninstall has nothing to do. Retained objects return to a release of the same name
    // without `adopt`.
    fleet
        .run(&["uninstall", "leave/shop", "--yes"])
        .ended_with(1)
        .says("release leave/shop is not installed");
    fleet.applied();
    let ours = [
        "app.kubernetes.io/managed-by",
        "applyset.kubernetes.io/part-of",
        "pleach.dev/desired",
    ];
    assert_eq!(marks(&fleet, &["-n", "leave", "pvc/data"]), ours);
    assert_eq!(marks(&fleet, &["namespace", "leave-extra"]), ours);
    let (_, events) = fleet.watched(Fleet::applied);
    assert_eq!(events.writes().to_string(), "");
}

#[test]
fn an_uninstall_can_keep_all_objects() {
    let fleet = fleet("stays", &everything("stays"));
    fleet.applied();
    let arguments = ["uninstall", "stays/shop", "--keep-objects", "--yes"];
    let (run, events) = fleet.watched(|fleet| fleet.run(&arguments).ended_with(0));
    run.says("release stays.shop v1.0.0: uninstalled");
    assert_eq!(deletions(&events), [""; 0]);
    assert!(!has_state(&fleet));
    let gears = ["crd", "gears.stays.example.org"];
    let settings = ["-n", "stays", "cm/settings"];
    for kept in [&settings[..], &["-n", "stays", "deploy/shop"], &gears] {
        assert_eq!(marks(&fleet, kept), ["pleach.dev/released"], "{kept:?}");
    }
    // A release of the same name takes them again without `adopt`.
    fleet.applied();
    assert!(!marks(&fleet, &settings).contains(&"pleach.dev/released".to_owned()));
}

#[test]
fn claims_that_go_with_their_set_are_named() {
    let set = samples::deployment("db")
        .replace("kind: Deployment", "kind: StatefulSet")
        .replace(
            "  replicas",
            "  serviceName: db\n  persistentVolumeClaimRetentionPolicy: {whenDeleted: Delete}\n  replicas",
        )
        + "  volumeClaimTemplates: [{metadata: {name: data}, spec: {accessModes: [ReadWriteOnce], \
           resources: {requests: {storage: 1Mi}}}}]\n";
    let fleet = fleet("claims-go", &set);
    fleet
        .run(&["apply", "claims-go", "--yes", "--wait=none"])
        .ended_with(0);
    fleet
        .run(&["uninstall", "claims-go/shop", "--yes"])
        .ended_with(0)
        .says("its release is uninstalled; its PersistentVolumeClaims are deleted with it, unless");
}

#[test]
fn a_release_that_left_git_waits_for_its_consent() {
    let fleet = fleet("waits", &everything("waits"));
    fleet.applied();
    take_out(&fleet);
    let line = "{action: uninstall, release: shop}";
    fleet
        .writes_nothing(|fleet| fleet.diff().ended_with(0))
        .says(
            "release waits.shop is no longer in git; its 10 objects stay until a consent to uninstall it",
        )
        .says(line);

    // Nothing is deleted. The record contains the reason once.
    let (run, events) = fleet.watched(Fleet::applied);
    run.says("release waits.shop v1.0.0: removed")
        .says("kept ConfigMap/waits/settings: no longer in git");
    assert_eq!(object_writes(&events), [""; 0]);
    let ready = "{.status.conditions[0].status} {.status.conditions[0].reason}";
    assert_eq!(
        fleet.field(&["release", "waits.shop"], ready),
        "False Removed"
    );
    fleet
        .writes_nothing(Fleet::applied)
        .says("release waits.shop v1.0.0: removed");

    // With consent the release is removed. Protected objects without their own consent are
    // retained.
    fleet.extend_environment(&format!(
        "consent:\n  - {line}\n  - {{action: delete, kind: PersistentVolumeClaim, name: data, release: shop, from: v1.0.0}}\n"
    ));
    fleet.commit();
    fleet.diff().ended_with(10).says("7 to delete");
    let (run, events) = fleet.watched(Fleet::applied);
    run.says("release waits.shop v1.0.0: uninstalled")
        .says("kept Namespace/waits: stays because");
    let order = deletions(&events);
    assert_eq!(
        order.first().map(String::as_str),
        Some("gears"),
        "{order:?}"
    );
    assert_eq!(order.len(), 7, "{order:?}");
    assert!(!fleet.exists(&["-n", "waits", "pvc/data"]));
    assert!(fleet.exists(&["crd", "gears.waits.example.org"]));
    assert!(!has_state(&fleet));
    fleet.writes_nothing(Fleet::applied);
}

#[test]
fn a_release_comes_back_to_git_before_anybody_consented() {
    let fleet = fleet("again", &samples::config_map("settings", "v"));
    fleet.applied();
    let uid = fleet.field(&["-n", "again", "cm/settings"], "{.metadata.uid}");
    let environment = fleet.read(&fleet.environment_file());
    let bundle = fleet.read("manifests/shop/v1.0.0/all.yaml");
    take_out(&fleet);
    fleet.applied().says("removed");
    fleet.write(&fleet.environment_file(), &environment);
    fleet.write("manifests/shop/bundle.yaml", samples::BUNDLE);
    fleet.write("manifests/shop/v1.0.0/all.yaml", &bundle);
    fleet.commit();
    fleet.applied().says("release again.shop v1.0.0: deployed");
    assert_eq!(
        uid,
        fleet.field(&["-n", "again", "cm/settings"], "{.metadata.uid}")
    );
}

#[test]
fn an_environment_without_its_file_is_suspended_and_can_be_uninstalled() {
    let mut fleet = fleet("vanish", &samples::config_map("settings", "v"));
    fleet.applied();
    fleet.remove("environments/vanish.yaml");
    fleet.remove("manifests");
    fleet.commit();
    let (run, events) = fleet.watched(Fleet::apply);
    run.ended_with(3)
        .says("there is no environment `vanish`")
        .says("vanish/shop of it; without its file, nothing is applied")
        .says("`pleach uninstall vanish/shop` removes a release");
    assert_eq!(events.writes().to_string(), "");
    fleet
        .run(&["uninstall", "vanish/shop", "--yes"])
        .ended_with(0)
        .says("environment vanish is not in git");
    assert!(!fleet.exists(&["-n", "vanish", "cm/settings"]));
    assert!(!has_state(&fleet));
    // Without a cluster, the missing file is still reported.
    fleet.through("/nowhere".into());
    fleet
        .apply()
        .ended_with(3)
        .says("there is no environment `vanish`");
}

#[test]
fn a_repository_uninstalls_only_what_is_its_own() {
    let fleet = fleet("alien", &samples::config_map("settings", "v"));
    fleet.applied();
    fleet.edit("pleach.yaml", "id: alien", "id: another");
    fleet.commit();
    fleet
        .writes_nothing(|fleet| {
            fleet
                .run(&["uninstall", "alien/shop", "--yes"])
                .ended_with(7)
        })
        .says("belongs to the repository `alien`, not to `another`");
    // It is not treated as a removed release of this repository either.
    take_out(&fleet);
    fleet.writes_nothing(Fleet::applied);
}

#[rstest]
#[case("hand-0", &["crd/gears.NAME.example.org"])]
#[case("hand-1", &["deployment/shop", "service/shop", "cm/settings", "sa/shop"])]
#[case("hand-2", &["crd/gears.NAME.example.org", "sa/shop", "service/shop"])]
#[case("hand-3", &["namespace/NAME"])]
#[case("hand-4", &["deployment/shop", "namespace/NAME", "crd/gears.NAME.example.org"])]
fn parts_that_were_deleted_by_hand_are_no_obstacle(
    #[case] environment: &'static str,
    #[case] by_hand: &[&str],
) {
    let fleet = fleet(environment, &everything(environment));
    fleet.applied();
    for object in by_hand {
        let object = object.replace("NAME", environment);
        kubectl::admin(&["-n", environment, "delete", &object]);
    }
    let target = format!("{environment}/shop");
    fleet
        .run(&["uninstall", &target, "--yes"])
        .ended_with(0)
        .says("uninstalled");
    assert!(!has_state(&fleet));
    assert!(!fleet.exists(&["-n", environment, "deployment/shop"]));
}

#[test]
fn several_records_of_one_name_are_not_guessed_between() {
    let ours = apart("guessed", "guessed", "guessed-ours");
    let theirs = apart("guessed", "others", "guessed-theirs");
    ours.remove("environments/guessed.yaml");
    ours.commit();
    ours.writes_nothing(|fleet| {
        fleet
            .run(&["uninstall", "guessed/web", "--yes"])
            .ended_with(7)
            .says("2 records of guessed/web")
            .says("ConfigMap/guessed-ours/guessed.web (repository guessed)")
            .says("ConfigMap/guessed-theirs/guessed.web (repository others)")
            .says("--state-namespace");
    });
    let chosen = ["uninstall", "guessed/web", "--yes", "--state-namespace"];
    ours.run(&[&chosen[..], &["guessed-ours"]].concat())
        .ended_with(0);
    assert!(!ours.exists(&["configmap", "web", "-n", "guessed-ours"]));
    assert!(theirs.exists(&["configmap", "web", "-n", "guessed-theirs"]));
}
