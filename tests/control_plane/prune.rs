//! Objects that git no longer has: pruned in order, retained or refused.

use pleach_testkit::audit::{Events, ObjectRef};
use pleach_testkit::faults::{Fault, FaultProxy, Moment, Rule};
use rstest::rstest;
use std::sync::{Arc, Mutex};

use crate::fleet::{Fleet, object_writes};
use crate::{kubectl, samples, shared};

const BUNDLE: (&str, &str) = ("manifests/shop/bundle.yaml", samples::BUNDLE);

const ANCHOR: &str = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: anchor}\ndata: {k: v}\n";

/// Objects of several deletion classes.
const PARTS: &str = "\
apiVersion: v1
kind: ServiceAccount
metadata: {name: shop}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {name: shop}
rules: [{apiGroups: [\"\"], resources: [configmaps], verbs: [get]}]
---
apiVersion: v1
kind: ConfigMap
metadata: {name: settings}
data: {k: v}
---
apiVersion: v1
kind: Service
metadata: {name: shop}
spec: {selector: {app: shop}, ports: [{port: 80}]}
";

/// Returns a release at v1.0.0 with these files; v1.1.0 contains only the anchor.
fn fleet(environment: &'static str, files: &[(&str, &str)]) -> Fleet {
    let release =
        format!("  - {{name: shop, bundle: shop, version: v1.0.0, namespace: {environment}}}\n");
    let fleet = Fleet::new(
        environment,
        &release,
        &[
            BUNDLE,
            ("manifests/shop/v1.0.0/anchor.yaml", ANCHOR),
            ("manifests/shop/v1.1.0/anchor.yaml", ANCHOR),
        ],
    );
    for (path, text) in files {
        let path = format!("manifests/shop/v1.0.0/{path}");
        fleet.write(&path, &text.replace("ENV", environment));
    }
    fleet.commit();
    fleet
}

fn upgrade(fleet: &Fleet) {
    fleet.edit_environment("v1.0.0", "v1.1.0");
    fleet.commit();
}

/// Returns the deleted objects in order of the answers, without state.
pub(crate) fn deleted(events: &Events) -> impl Iterator<Item = &ObjectRef> {
    let deletions = events.0.iter().filter(|event| event.verb == "delete");
    // A deletion of an object that changed since the plan is refused once, then the object is read
    // again.
    let done = deletions.filter(|event| event.code() < 400);
    let objects = done.filter_map(|event| event.object_ref.as_ref());
    objects.filter(|object| object.namespace != "pleach-system" && object.api_group != "pleach.dev")
}

/// Returns the resources of the deleted objects.
pub(crate) fn deletions(events: &Events) -> Vec<String> {
    deleted(events)
        .map(|object| object.resource.clone())
        .collect()
}

#[test]
fn removed_objects_go_in_order_and_only_the_incarnation_that_was_recorded() {
    let fleet = fleet(
        "order",
        &[
            ("parts.yaml", PARTS),
            ("app.yaml", &samples::deployment("shop")),
            ("gear.yaml", &samples::gear("order.example.org")),
            ("crd.yaml", &samples::gears("order.example.org")),
        ],
    );
    fleet.applied();
    // Only the CRD remains. No other object needs its group.
    fleet.edit_environment("v1.0.0", "v1.1.0");
    fleet.extend_environment(
        "consent: [{action: delete, kind: CustomResourceDefinition, name: gears.order.example.org, release: shop, from: v1.0.0, to: v1.1.0}]\n\
         prune: {max: 10}\n",
    );
    fleet.commit();
    let plan = fleet.plan();
    for step in plan["steps"].as_array().unwrap() {
        if step["op"]["delete"].is_object() {
            let uid = step["op"]["delete"]["uid"].as_str().unwrap_or_default();
            assert_eq!(step["require"][0]["uid"], uid, "{step}");
            assert!(!uid.is_empty(), "{step}");
        }
    }

    let (_, events) = fleet.watched(|fleet| fleet.applied().says("7 deleted, 2 unchanged"));
    let order = deletions(&events);
    let rank = |resource: &String| {
        [
            &["gears"][..],
            &["deployments"],
            &["services"],
            &["configmaps"],
            &["serviceaccounts", "roles"],
            &["customresourcedefinitions"],
        ]
        .iter()
        .position(|class| class.contains(&resource.as_str()))
    };
    let ranks: Vec<_> = order.iter().map(rank).collect();
    assert_eq!(order.len(), 7, "{order:?}");
    assert!(
        ranks.is_sorted() && ranks.iter().all(Option::is_some),
        "{order:?}"
    );
    for gone in [
        "sa/shop",
        "role/shop",
        "cm/settings",
        "service/shop",
        "deployment/shop",
    ] {
        assert!(!fleet.exists(&["-n", "order", gone]), "{gone}");
    }
    assert!(!fleet.exists(&["crd", "gears.order.example.org"]));
    assert!(fleet.exists(&["-n", "order", "cm/anchor"]));
    let (_, events) = fleet.watched(|fleet| fleet.applied().says("2 unchanged"));
    assert_eq!(events.writes().to_string(), "");
}

#[test]
fn another_object_of_the_same_name_is_never_deleted() {
    let settings = ANCHOR.replace("anchor", "settings");
    let mut fleet = fleet("reborn", &[("settings.yaml", &settings)]);
    fleet.applied();
    upgrade(&fleet);

    // Between plan and deletion, another client deletes and recreates it.
    let proxy = FaultProxy::start(shared().kubeconfig()).unwrap();
    let reborn = Arc::new(Mutex::new(String::new()));
    let uid = reborn.clone();
    proxy.add(
        Rule::on(
            |seen| seen.method == "DELETE" && seen.path.ends_with("/configmaps/settings"),
            Fault::hook(Moment::BeforeForwarding, move || {
                kubectl::admin(&["-n", "reborn", "delete", "cm/settings"]);
                kubectl::admin(&["-n", "reborn", "create", "cm", "settings"]);
                let get = [
                    "-n",
                    "reborn",
                    "get",
                    "cm/settings",
                    "-o=jsonpath={.metadata.uid}",
                ];
                *uid.lock().unwrap() = kubectl::admin(&get);
            }),
        )
        .nth(1),
    );
    fleet.through(proxy.kubeconfig());
    let run = fleet.apply();
    assert_eq!(proxy.log().faults().count(), 1, "{}", run.shown());
    let uid = fleet.field(&["-n", "reborn", "cm/settings"], "{.metadata.uid}");
    assert_eq!(uid, *reborn.lock().unwrap(), "{}", run.shown());

    // It does not belong to the release, so the next run does not change it either.
    fleet.through(shared().kubeconfig().to_owned());
    fleet.applied();
    assert_eq!(
        fleet.field(&["-n", "reborn", "cm/settings"], "{.metadata.uid}"),
        uid
    );
}

/// Between plan and deletion, another client writes to it.
#[rstest]
#[case::kept(
    "prune-keep",
    &["annotate", "cm/settings", "pleach.dev/prune=disabled"],
    "it now has the annotation pleach.dev/prune: disabled"
)]
#[case::given_away(
    "prune-give",
    &["label", "--overwrite", "cm/settings", "applyset.kubernetes.io/part-of=other"],
    "it is part of another ApplySet now (other)"
)]
fn what_is_to_stay_by_now_is_not_deleted(
    #[case] environment: &'static str,
    #[case] change: &'static [&'static str],
    #[case] why: &str,
) {
    let settings = ANCHOR.replace("anchor", "settings");
    let mut fleet = fleet(environment, &[("settings.yaml", &settings)]);
    fleet.applied();
    upgrade(&fleet);
    let proxy = FaultProxy::start(shared().kubeconfig()).unwrap();
    proxy.add(
        Rule::on(
            |seen| seen.method == "DELETE" && seen.path.ends_with("/configmaps/settings"),
            Fault::hook(Moment::BeforeForwarding, move || {
                kubectl::admin(&[&["-n", environment][..], change].concat());
            }),
        )
        .nth(1),
    );
    fleet.through(proxy.kubeconfig());
    fleet.apply().ended_with(5).says(why);
    assert_eq!(proxy.log().faults().count(), 1);
    assert!(fleet.exists(&["-n", environment, "cm/settings"]));

    // The next plan retains it.
    fleet.through(shared().kubeconfig().to_owned());
    fleet.applied();
    assert!(fleet.exists(&["-n", environment, "cm/settings"]));
}

#[test]
fn what_only_moved_since_the_plan_is_deleted() {
    let settings = ANCHOR.replace("anchor", "settings");
    let mut fleet = fleet("prune-moved", &[("settings.yaml", &settings)]);
    fleet.applied();
    upgrade(&fleet);
    let proxy = FaultProxy::start(shared().kubeconfig()).unwrap();
    proxy.add(
        Rule::on(
            |seen| seen.method == "DELETE" && seen.path.ends_with("/configmaps/settings"),
            Fault::hook(Moment::BeforeForwarding, || {
                kubectl::admin(&["-n", "prune-moved", "annotate", "cm/settings", "a=b"]);
            }),
        )
        .nth(1),
    );
    fleet.through(proxy.kubeconfig());
    fleet.applied().says("1 deleted");
    assert_eq!(proxy.log().faults().count(), 1);
    assert!(!fleet.exists(&["-n", "prune-moved", "cm/settings"]));
}

/// Protected objects: an empty namespace, a claim, and a CRD.
const PROTECTED: &str = "\
apiVersion: v1
kind: Namespace
metadata: {name: ENV-extra}
---
apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata: {name: ENV}
provisioner: example.org/none
volumeBindingMode: WaitForFirstConsumer
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: data}
spec: {storageClassName: ENV, accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Mi}}}
";

#[test]
fn protected_kinds_need_consent_that_names_the_upgrade() {
    let kept = ANCHOR.replace(
        "{name: anchor}",
        "{name: kept, annotations: {pleach.dev/prune: disabled}}",
    );
    let fleet = fleet(
        "guard",
        &[
            ("protected.yaml", PROTECTED),
            ("crd.yaml", &samples::gears("guard.example.org")),
            ("gear.yaml", &samples::gear("guard.example.org")),
            ("kept.yaml", &kept),
        ],
    );
    fleet.applied();
    upgrade(&fleet);
    let words = "no longer in git; stays because objects of kind Namespace are protected";
    fleet
        .diff()
        .ended_with(10)
        .says(words)
        .says("{action: delete, kind: Namespace, name: guard-extra, release: shop, from: v1.0.0, to: v1.1.0}");
    let (run, events) = fleet.watched(Fleet::applied);
    run.says(&format!("kept Namespace/guard-extra: {words}"))
        .says("kept PersistentVolumeClaim/guard/data: ")
        .says("kept CustomResourceDefinition.apiextensions.k8s.io/gears.guard.example.org: ")
        .says("kept ConfigMap/guard/kept: no longer in git; stays because of its annotation pleach.dev/prune");
    let mut gone = deletions(&events);
    gone.sort();
    assert_eq!(gone, ["gears", "storageclasses"]);

    // They are retained and listed in every run.
    let (run, events) = fleet.watched(Fleet::applied);
    run.says("kept Namespace/guard-extra: ")
        .says("kept ConfigMap/guard/kept: ");
    assert_eq!(events.writes().to_string(), "");

    // The consents are for a finished upgrade and for another release.
    let consent = |release: &str, from: &str| {
        let consents: Vec<String> = [
            ("Namespace", "guard-extra"),
            ("PersistentVolumeClaim", "data"),
            ("CustomResourceDefinition", "gears.guard.example.org"),
        ]
        .iter()
        .map(|(kind, name)| {
            format!("  - {{action: delete, kind: {kind}, name: {name}, release: {release}, from: {from}, to: v1.1.0}}\n")
        })
        .collect();
        format!("consent:\n{}", consents.concat())
    };
    let environment = fleet.read(&fleet.environment_file());
    for (release, from) in [("shop", "v1.0.0"), ("other", "v1.1.0")] {
        fleet.write(
            &fleet.environment_file(),
            &(environment.clone() + &consent(release, from)),
        );
        fleet.commit();
        let (run, events) = fleet.watched(Fleet::apply);
        assert_eq!(object_writes(&events), [""; 0], "{}", run.shown());
        assert!(fleet.exists(&["namespace", "guard-extra"]));
    }
    fleet.write(
        &fleet.environment_file(),
        &(environment + &consent("shop", "v1.1.0")),
    );
    fleet.commit();
    fleet.diff().ended_with(10).says("3 to delete");
    fleet.applied().says("kept ConfigMap/guard/kept: ");
    for gone in [
        &["namespace", "guard-extra"][..],
        &["-n", "guard", "pvc/data"],
        &["crd", "gears.guard.example.org"],
    ] {
        assert!(!fleet.exists(gone), "{gone:?}");
    }
    assert!(fleet.exists(&["-n", "guard", "cm/kept"]));
}

#[test]
fn namespaces_with_objects_of_others_stay() {
    let extra = "apiVersion: v1\nkind: Namespace\nmetadata: {name: tenant-extra}\n";
    let fleet = fleet("tenant", &[("extra.yaml", extra)]);
    fleet.applied();
    kubectl::admin(&["-n", "tenant-extra", "create", "cm", "precious"]);
    upgrade(&fleet);
    fleet.extend_environment(
        "consent: [{action: delete, kind: Namespace, name: tenant-extra, release: shop, from: v1.0.0, to: v1.1.0}]\n",
    );
    fleet.commit();
    // Already detected in the plan: it is retained, and everything else is applied.
    let why = "kept Namespace/tenant-extra: no longer in git; stays because it contains objects that the release does not own: ConfigMap/tenant-extra/precious";
    fleet
        .diff()
        .ended_with(0)
        .says("it contains objects that the release does not own: ConfigMap/tenant-extra/precious");
    fleet.applied().says(why);
    assert!(fleet.exists(&["-n", "tenant-extra", "cm/precious"]));
    kubectl::admin(&["-n", "tenant-extra", "delete", "cm", "precious"]);
    // The consent was for a finished upgrade.
    fleet.applied().says("kept Namespace/tenant-extra: ");
    fleet.edit_environment("from: v1.0.0", "from: v1.1.0");
    fleet.commit();
    fleet.applied();
    assert!(!fleet.exists(&["namespace", "tenant-extra"]));
}

/// Returns a function that creates the CRD and an object, once the kind is served.
fn makes_a_gear(fleet: &Fleet, group: &str, namespace: &str) -> impl Fn() + Send + Sync + use<> {
    let definition = fleet.file("gears.yaml", &samples::gears(group));
    let gear = fleet.file("gear.yaml", &samples::gear(group));
    let (name, namespace) = (format!("crd/gears.{group}"), namespace.to_owned());
    move || {
        kubectl::admin(&["apply", "-f", &definition]);
        let wait = ["wait", "--for=condition=Established", "--timeout=30s"];
        kubectl::admin(&[&wait[..], &[name.as_str()]].concat());
        kubectl::admin(&["-n", &namespace, "apply", "-f", &gear]);
    }
}

#[test]
fn namespaces_with_objects_of_a_kind_that_came_after_the_plan_stay() {
    let extra = "apiVersion: v1\nkind: Namespace\nmetadata: {name: between-extra}\n";
    let before = ANCHOR.replace("anchor", "before");
    let mut fleet = fleet(
        "between",
        &[("extra.yaml", extra), ("before.yaml", &before)],
    );
    fleet.applied();
    upgrade(&fleet);
    fleet.extend_environment(
        "consent: [{action: delete, kind: Namespace, name: between-extra, release: shop, from: v1.0.0, to: v1.1.0}]\n",
    );
    fleet.commit();
    // At the time of the plan, the namespace was empty and the kind was not served.
    fleet.diff().ended_with(10).says("2 to delete");
    let proxy = FaultProxy::start(shared().kubeconfig()).unwrap();
    let comes = makes_a_gear(&fleet, "between.example.org", "between-extra");
    proxy.add(
        Rule::on(
            |seen| seen.method == "DELETE" && seen.path.ends_with("/configmaps/before"),
            Fault::hook(Moment::BeforeAnswer, comes),
        )
        .nth(1),
    );
    fleet.through(proxy.kubeconfig());
    let (run, events) = fleet.watched(|fleet| fleet.apply().ended_with(5));
    run.says("it contains objects that the release does not own: Gear.between.example.org/between-extra/first")
        .says("delete or move them first, or withdraw the consent");
    assert_eq!(proxy.log().faults().count(), 1);
    assert_eq!(deletions(&events), ["configmaps"]);
    assert!(fleet.exists(&["gears.between.example.org/first", "-n", "between-extra"]));
}

#[test]
fn more_than_the_cap_is_refused_and_nothing_waited_for_prunes_nothing() {
    let many: Vec<String> = (0..7)
        .map(|number| ANCHOR.replace("anchor", &format!("many-{number}")))
        .collect();
    let fleet = fleet("capped", &[("many.yaml", &many.join("---\n"))]);
    fleet.applied();
    upgrade(&fleet);
    fleet.edit("manifests/shop/v1.1.0/anchor.yaml", "k: v", "k: w");
    fleet.commit();
    fleet
        .writes_nothing(|fleet| fleet.apply().ended_with(7))
        .says("7 objects would be pruned, more than the cap of 5")
        .says("{action: prune, release: shop, from: v1.0.0, to: v1.1.0, count: 7}")
        .says("nothing was written");
    fleet.diff().ended_with(7);

    // Without waiting, nothing is pruned, so nothing is refused.
    let (run, events) =
        fleet.watched(|fleet| fleet.run(&["apply", "capped", "--yes", "--wait=none"]));
    run.ended_with(0).says(
        "kept ConfigMap/capped/many-0: no longer in git; stays because this run does not wait for readiness",
    );
    assert_eq!(
        object_writes(&events),
        ["patch configmaps capped/anchor 200"]
    );
    let ready = "{.status.conditions[0].status} {.status.conditions[0].reason}";
    assert_eq!(
        fleet.field(&["release", "capped.shop"], ready),
        "False NotVerified"
    );

    // First too little consent, then enough. The upgrade from v1.0.0 is not finished.
    fleet.extend_environment(
        "consent:\n  - {action: prune, release: shop, from: v1.0.0, to: v1.1.0, count: 6}\n",
    );
    fleet.commit();
    fleet.writes_nothing(|fleet| fleet.apply().ended_with(7));
    fleet.edit_environment("count: 6", "count: 7");
    fleet.commit();
    let (_, events) = fleet.watched(|fleet| fleet.applied().says("7 deleted, 2 unchanged"));
    assert_eq!(deletions(&events), ["configmaps"; 7]);
    assert_eq!(
        fleet.field(&["release", "capped.shop"], ready),
        "True Deployed"
    );
}

#[test]
fn nothing_is_pruned_while_pruning_is_disabled() {
    let extra = ANCHOR.replace("anchor", "extra");
    let fleet = fleet("held", &[("extra.yaml", &extra)]);
    fleet.applied();
    upgrade(&fleet);
    fleet.extend_environment("prune: {enabled: false}\n");
    fleet.commit();
    let (run, events) = fleet.watched(Fleet::applied);
    run.says("kept ConfigMap/held/extra: no longer in git; stays because pruning is disabled");
    assert_eq!(object_writes(&events), [""; 0]);
    fleet.edit_environment("prune: {enabled: false}\n", "");
    fleet.commit();
    fleet.applied();
    assert!(!fleet.exists(&["-n", "held", "cm/extra"]));
}
