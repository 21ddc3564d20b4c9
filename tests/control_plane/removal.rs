//! Releases that go as a whole: taken out of git, or uninstalled.

mod killed;

use std::sync::atomic::{AtomicUsize, Ordering};

use http::StatusCode;
use pleach_testkit::audit::Events;
use pleach_testkit::faults::{Answer, Fault, FaultProxy, Moment, Rule};
use serde_json::Value;

use crate::fleet::{Fleet, object_writes};
use crate::{kubectl, samples, shared};

/// One object of each class of deletion, and one of each protected kind.
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

/// A release `shop` with these manifests; nothing in it is waited for long.
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

/// Takes the release out of the environment file, and its bundle out of git.
fn take_out(fleet: &Fleet) {
    fleet.edit_environment(&release(fleet.environment), "");
    fleet.edit_environment("releases:\n", "releases: []\n");
    fleet.remove("manifests/shop");
    fleet.commit();
}

/// What was deleted, in the order of the answers, without the state.
fn deletions(events: &Events) -> Vec<String> {
    let deletions = events.filter(|event| {
        let object = event.object_ref.as_ref();
        // What moved since the plan was made is refused once, and looked at again.
        event.verb == "delete"
            && event.code() < 400
            && object.is_some_and(|object| {
                object.namespace != "pleach-system" && object.api_group != "pleach.dev"
            })
    });
    let name =
        |event: &pleach_testkit::audit::Event| event.object_ref.as_ref().unwrap().resource.clone();
    deletions.0.iter().map(name).collect()
}

/// Whether anything of a release's state is left.
fn has_state(fleet: &Fleet) -> bool {
    let release = format!("{}.shop", fleet.environment);
    let label = format!("pleach.dev/release={release}");
    let shards = fleet.kubectl(&[
        "-n",
        "pleach-system",
        "get",
        "cm",
        "-l",
        &label,
        "-o",
        "name",
    ]);
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

    // It shows the plan and asks; without a terminal it needs --yes.
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
        .says("what is kept belongs to no release any more");
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

    // A second time there is nothing to uninstall; and what was kept comes back
    // to a release of the same name without `adopt`.
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
fn a_release_that_left_git_waits_for_its_consent() {
    let fleet = fleet("waits", &everything("waits"));
    fleet.applied();
    take_out(&fleet);
    let line = "{action: uninstall, release: shop}";
    fleet
        .writes_nothing(|fleet| fleet.diff().ended_with(0))
        .says(
            "release waits.shop is no longer in git; its 10 objects stay until that is consented to",
        )
        .says(line);

    // Nothing is deleted; the record says why it is not ready, once.
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

    // With consent it goes, and what is protected stays without its own.
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
        .says("vanish/shop of it: without its file it is suspended")
        .says("`pleach uninstall vanish/shop` takes a release away");
    assert_eq!(events.writes().to_string(), "");
    fleet
        .run(&["uninstall", "vanish/shop", "--yes"])
        .ended_with(0)
        .says("environment vanish is not in git");
    assert!(!fleet.exists(&["-n", "vanish", "cm/settings"]));
    assert!(!has_state(&fleet));
    // Where there is no cluster, the file is missing all the same.
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
    // Nor does it take it for one of its own that left git.
    take_out(&fleet);
    fleet.writes_nothing(Fleet::applied);
}

#[test]
fn parts_that_were_deleted_by_hand_are_no_obstacle() {
    for (index, by_hand) in [
        &[][..],
        &["crd/gears.NAME.example.org"],
        &["deployment/shop", "service/shop", "cm/settings"],
        &["sa/shop"],
        &["crd/gears.NAME.example.org", "sa/shop", "service/shop"],
        &["namespace/NAME"],
        &[
            "deployment/shop",
            "namespace/NAME",
            "crd/gears.NAME.example.org",
        ],
    ]
    .into_iter()
    .enumerate()
    {
        let environment: &'static str = format!("hand-{index}").leak();
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
        assert!(!has_state(&fleet), "{by_hand:?}");
        assert!(!fleet.exists(&["-n", environment, "deployment/shop"]));
    }
}

#[test]
fn a_finalizer_is_explained_and_never_taken_off() {
    let clings = samples::gear("clings.example.org").replace(
        "metadata: {name: first}",
        "metadata: {name: first, finalizers: [example.org/clean]}",
    );
    let manifests = [
        samples::gears("clings.example.org"),
        clings,
        samples::config_map("settings", "v"),
    ]
    .join("---\n");
    let fleet = fleet("clings", &manifests);
    fleet.applied();
    let run = fleet.run(&[
        "uninstall",
        "clings/shop",
        "--yes",
        "--timeout",
        "2s",
        "-o",
        "json",
    ]);
    let report = run.ended_with(6).json();
    let failure = &report["releases"][0]["failures"][0];
    assert_eq!(report["releases"][0]["result"], "failed");
    assert_eq!(failure["object"], "Gear.clings.example.org/clings/first");
    let message = failure["message"].as_str().unwrap();
    assert!(message.contains("not gone after"), "{message}");
    assert!(
        message.ends_with("it waits for example.org/clean (set by pleach/clings.shop)"),
        "{message}"
    );
    let hint = failure["hint"].as_str().unwrap();
    assert!(
        hint.contains("kubectl patch gear.clings.example.org first -n clings"),
        "{hint}"
    );
    // What comes after it is still there, and so is the record.
    assert!(fleet.exists(&["-n", "clings", "cm/settings"]));
    assert!(has_state(&fleet));

    // The next run goes on from there.
    let patch = r#"--patch={"metadata":{"finalizers":null}}"#;
    kubectl::admin(&[
        "-n",
        "clings",
        "patch",
        "gears.clings.example.org/first",
        "--type=merge",
        patch,
    ]);
    fleet
        .run(&["uninstall", "clings/shop", "--yes"])
        .ended_with(0);
    assert!(!has_state(&fleet));
}

#[test]
fn what_the_bundle_says_must_be_gone_blocks_the_end() {
    let bundle = "apiVersion: pleach.dev/v1alpha1\nkind: Bundle\n\
                  blockUninstall: [{forEach: {group: block.example.org, kind: Gear}, message: gears are turning}]\n";
    let manifests = [
        samples::gears("block.example.org"),
        samples::config_map("settings", "v"),
    ];
    let fleet = fleet("block", &manifests.join("---\n"));
    fleet.write("manifests/shop/bundle.yaml", bundle);
    fleet.commit();
    fleet.applied();
    let gear = fleet.file("gear.yaml", &samples::gear("block.example.org"));
    kubectl::admin(&["-n", "block", "apply", "-f", &gear]);
    // The rule is remembered when the bundle is gone.
    take_out(&fleet);
    fleet
        .writes_nothing(|fleet| {
            fleet
                .run(&["uninstall", "block/shop", "--yes"])
                .ended_with(7)
        })
        .says("gears are turning: Gear.block.example.org/block/first");
    kubectl::admin(&["-n", "block", "delete", "gears.block.example.org/first"]);
    fleet
        .run(&["uninstall", "block/shop", "--yes"])
        .ended_with(0);
}

#[test]
fn what_cannot_be_listed_is_neither_deleted_nor_forgotten() {
    let mut fleet = fleet("unseen", &everything("unseen"));
    fleet.applied();
    let proxy = FaultProxy::start(shared().kubeconfig()).unwrap();
    let forbidden = Answer::status(StatusCode::FORBIDDEN, "Forbidden", "services is forbidden");
    proxy.add(
        Rule::on(
            |seen| seen.method == "GET" && seen.path.ends_with("/services"),
            Fault::Answer(forbidden),
        )
        .times(1000),
    );
    fleet.through(proxy.kubeconfig());
    fleet
        .run(&["uninstall", "unseen/shop", "--yes"])
        .ended_with(4)
        .says("kept Service/unseen/shop: stays because its kind could not be listed completely")
        .says("release unseen.shop v1.0.0: removed");
    assert!(fleet.exists(&["-n", "unseen", "service/shop"]));
    assert!(!fleet.exists(&["-n", "unseen", "cm/settings"]));
    assert!(has_state(&fleet));
    fleet.through(shared().kubeconfig().to_owned());
    fleet
        .run(&["uninstall", "unseen/shop", "--yes"])
        .ended_with(0);
    assert!(!fleet.exists(&["-n", "unseen", "service/shop"]));
    assert!(!has_state(&fleet));
}

/// A webhook that nothing calls, as pods register it.
const WEBHOOK: &str = "\
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingWebhookConfiguration
metadata: {name: NAME}
webhooks:
  - name: a.example.org
    clientConfig: {service: {namespace: returns, name: shop}}
    rules: [{apiGroups: [none.example.org], apiVersions: [v1], operations: [CREATE], resources: [nones]}]
    sideEffects: None
    admissionReviewVersions: [v1]
";

#[test]
fn registrations_that_pods_make_anew_while_they_end_go_too() {
    let mut fleet = fleet("returns", &everything("returns"));
    fleet.applied();
    let register = |name: &str| {
        let file = fleet.file(name, &WEBHOOK.replace("NAME", name));
        kubectl::admin(&["apply", "-f", &file]);
        file
    };
    register("returns-first");
    let again = register("returns-again");
    kubectl::admin(&["delete", "-f", &again]);
    let proxy = FaultProxy::start(shared().kubeconfig()).unwrap();
    let register = Fault::hook(Moment::AfterAnswer, move || {
        kubectl::admin(&["apply", "-f", &again]);
    });
    proxy.add(
        Rule::on(
            |seen| seen.method == "DELETE" && seen.path.ends_with("/deployments/shop"),
            register,
        )
        .nth(1),
    );
    fleet.through(proxy.kubeconfig());
    let (_, events) = fleet.watched(|fleet| {
        fleet
            .run(&["uninstall", "returns/shop", "--yes"])
            .ended_with(0)
            .says("points at Service returns/shop, which goes")
    });
    assert_eq!(proxy.log().faults().count(), 1);
    for gone in ["returns-first", "returns-again"] {
        assert!(
            !fleet.exists(&["validatingwebhookconfiguration", gone]),
            "{gone}"
        );
    }
    assert_eq!(
        deletions(&events).last().map(String::as_str),
        Some("validatingwebhookconfigurations")
    );
    assert!(!has_state(&fleet));
}

/// Somebody makes a registration anew whenever one goes, and what is handed over
/// keeps the record.
#[test]
fn what_comes_back_in_every_round_ends_the_uninstall_with_a_code_of_its_own() {
    let service = "\
apiVersion: v1
kind: Service
metadata: {name: shop}
spec: {selector: {app: shop}, ports: [{port: 80}]}
";
    let handed = samples::config_map("handed", "v");
    let mut fleet = fleet("endless", &[service, handed.as_str()].join("---\n"));
    let declared =
        "runtimeObjects: [{kind: ValidatingWebhookConfiguration, service: shop, optional: true}]\n";
    let bundle = format!("{}{declared}", samples::BUNDLE);
    fleet.write("manifests/shop/bundle.yaml", &bundle);
    fleet.commit();
    fleet.applied();
    fleet.write("manifests/next/bundle.yaml", samples::BUNDLE);
    fleet.write("manifests/next/all.yaml", &handed);
    fleet.edit_environment(
        &release("endless"),
        "  - {name: next, bundle: next, namespace: endless, movedFrom: {environment: endless, release: shop}}\n",
    );
    fleet.commit();

    let hooks: Vec<String> = (0..10)
        .map(|number| {
            let name = format!("endless-{number}");
            let hook = WEBHOOK.replace("NAME", &name);
            fleet.file(
                &name,
                &hook.replace("namespace: returns", "namespace: endless"),
            )
        })
        .collect();
    kubectl::admin(&["apply", "-f", &hooks[0]]);
    let made = AtomicUsize::new(0);
    let comes_back = move || {
        let made = made.fetch_add(1, Ordering::SeqCst);
        kubectl::admin(&["apply", "-f", &hooks[made + 1]]);
    };
    let proxy = FaultProxy::start(shared().kubeconfig()).unwrap();
    proxy.add(Rule::on(
        |seen| seen.method == "DELETE" && seen.path.contains("/endless-"),
        Fault::hook(Moment::AfterAnswer, comes_back),
    ));
    fleet.through(proxy.kubeconfig());
    let uninstall = ["uninstall", "endless/shop", "--yes"];
    fleet
        .run(&uninstall)
        .ended_with(6)
        .says("endless.shop is still there: in each of 5 rounds something of it came back")
        .says("see `pleach status endless/shop`");
    assert_eq!(proxy.log().faults().count(), 5);
    assert!(has_state(&fleet));
    assert!(fleet.exists(&["validatingwebhookconfiguration", "endless-5"]));
    assert!(!fleet.exists(&["-n", "endless", "service/shop"]));

    // When nothing comes back, what stays is what another release waits for.
    fleet.through(shared().kubeconfig().to_owned());
    let run = fleet
        .run(&uninstall)
        .ended_with(7)
        .says("it is handed over to release endless.next");
    assert!(!run.stderr.contains("is still there"), "{}", run.shown());
    assert!(!fleet.exists(&["validatingwebhookconfiguration", "endless-5"]));
    assert!(fleet.exists(&["-n", "endless", "cm/handed"]));
}

/// The names of what was deleted of a kind, in the order of the answers.
fn deleted_names(events: &Events, resource: &str) -> Vec<String> {
    let deletions = events.filter(|event| {
        let object = event.object_ref.as_ref();
        event.verb == "delete"
            && event.code() < 400
            && object.is_some_and(|object| object.resource == resource)
    });
    let name =
        |event: &pleach_testkit::audit::Event| event.object_ref.as_ref().unwrap().name.clone();
    deletions.0.iter().map(name).collect()
}

#[test]
fn what_stages_applied_goes_in_their_reverse_order_without_the_bundle() {
    let stages = "\
stages:
  - {name: agents, select: [{kind: Deployment, name: b}]}
  - {name: controllers, select: [{kind: Deployment, name: a}]}
  - {name: front, select: [{kind: Deployment, name: c}, {kind: ConfigMap, name: front}]}
";
    let parts = ["a", "b", "c", "plain"].map(samples::deployment);
    let maps = ["base", "front"].map(|name| samples::config_map(name, "v"));
    let all = [parts.join("---\n"), maps.join("---\n")].join("---\n");
    let fleet = fleet("backwards", &all);
    let bundle = format!("{}{stages}", samples::BUNDLE);
    fleet.write("manifests/shop/bundle.yaml", &bundle);
    fleet.commit();
    fleet.applied();
    let path = "{.status.record.memory.stages[*].name}";
    let release = ["release", "backwards.shop"];
    assert_eq!(fleet.field(&release, path), "agents controllers front");
    fleet.writes_nothing(Fleet::applied);

    // The next version has fewer objects, and its stages other names.
    let bundle = bundle.replace("name: controllers", "name: middle");
    fleet.write("manifests/shop/bundle.yaml", &bundle);
    fleet.commit();
    fleet.applied();
    assert_eq!(fleet.field(&release, path), "agents middle front");
    take_out(&fleet);
    let (run, events) = fleet.watched(|fleet| fleet.run(&["uninstall", "backwards/shop", "--yes"]));
    run.ended_with(0);
    let deployments = deleted_names(&events, "deployments");
    assert_eq!(deployments, ["c", "a", "b", "plain"]);
    let maps = deleted_names(&events, "configmaps");
    let maps: Vec<&String> = maps
        .iter()
        .filter(|name| !name.starts_with("backwards."))
        .collect();
    assert_eq!(maps, ["front", "base"]);
    assert!(!has_state(&fleet));
}
