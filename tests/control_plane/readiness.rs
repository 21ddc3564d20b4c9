//! Readiness rules of a bundle, and messages while an object is not ready.

use std::time::{Duration, Instant};

use crate::fleet::Fleet;
use crate::kubectl;
use crate::samples::{BUNDLE, config_map, deployment, gear, gears};

/// Returns a release with these files and readiness rules.
fn fleet(environment: &'static str, rules: &str, files: &[String]) -> Fleet {
    let release =
        format!("  - {{name: web, bundle: web, namespace: {environment}, timeout: 4s}}\n");
    let fleet = Fleet::new(
        environment,
        &release,
        &[
            ("manifests/web/bundle.yaml", format!("{BUNDLE}{rules}")),
            ("manifests/web/web.yaml", files.join("---\n")),
        ],
    );
    fleet.create_namespace(environment);
    fleet
}

#[test]
fn a_rule_of_the_bundle_says_when_a_custom_resource_is_ready() {
    let group = "phases.example.org";
    let rules = format!(
        "readiness: [{{group: {group}, kind: Gear, current: status.phase == 'Turning', failed: status.phase == 'Broken'}}]\n"
    );
    let files = [gears(group), gear(group)];
    let fleet = fleet("phases", &rules, &files);
    fleet
        .apply()
        .ended_with(6)
        .says("Gear.phases.example.org/phases/first: not ready after 4 s: `status.phase == 'Turning'` does not hold yet");
    let phase = |phase: &str| {
        let patch = format!("--patch={{\"status\":{{\"phase\":\"{phase}\"}}}}");
        let gear = format!("gears.{group}/first");
        kubectl::admin(&["-n", "phases", "patch", &gear, "--type=merge", &patch]);
    };
    phase("Turning");
    fleet.applied();
    // The rule is recorded for the time after the bundle is removed.
    let path = "{.status.record.memory.readiness[0].current}";
    let recorded = fleet.field(&["release", "phases.web"], path);
    assert_eq!(recorded, "status.phase == 'Turning'");
    // Failed objects are not waited for.
    phase("Broken");
    let files = [&files[..], &[config_map("more", "v")]].concat();
    fleet.write("manifests/web/web.yaml", &files.join("---\n"));
    fleet.commit();
    fleet
        .apply()
        .ended_with(6)
        .says("Gear.phases.example.org/phases/first: `status.phase == 'Broken'` holds");
}

#[test]
fn a_condition_of_the_former_spec_is_waited_out() {
    let group = "former.example.org";
    let ready = "status.conditions.exists(c, c.type == 'Ready' && c.status == 'True')";
    let rules = format!("readiness: [{{group: {group}, kind: Gear, current: \"{ready}\"}}]\n");
    let definition = gears(group).replace("schema: ", "subresources: {status: {}}, schema: ");
    let first = format!("{}spec: {{teeth: 1}}\n", gear(group));
    let fleet = fleet("former", &rules, &[definition, first]);
    let ready_at = |generation: u8| {
        let patch = format!(
            r#"{{"status":{{"conditions":[{{"type":"Ready","status":"True","observedGeneration":{generation}}}]}}}}"#
        );
        let gear = format!("gears.{group}/first");
        let patch = format!("--patch={patch}");
        kubectl::admin(&[
            "-n",
            "former",
            "patch",
            &gear,
            "--subresource=status",
            "--type=merge",
            &patch,
        ]);
    };
    fleet.apply().ended_with(6).says("does not hold yet");
    ready_at(1);
    fleet.applied();
    fleet.edit("manifests/web/web.yaml", "teeth: 1", "teeth: 2");
    fleet.commit();
    fleet.apply().ended_with(6).says("does not hold yet");
    ready_at(2);
    fleet.applied();
}

#[test]
fn a_status_is_waited_for_a_while() {
    let group = "silent.example.org";
    let definition = gears(group).replace("schema: ", "subresources: {status: {}}, schema: ");
    let gear = format!("{}spec: {{teeth: 1}}\n", gear(group));
    let fleet = fleet("silent", "", &[definition, gear]);
    // The timeout is shorter than the grace period for the first status.
    fleet
        .apply()
        .ended_with(6)
        .says("not ready after 4 s: its controller has written no status yet");
    // An unchanged object is not waited for.
    let unchanged = fleet.applied();
    assert!(
        unchanged.took < Duration::from_secs(4),
        "{}",
        unchanged.shown()
    );
    // A status that is written during the wait ends it.
    fleet.edit("manifests/web/web.yaml", "teeth: 1", "teeth: 2");
    fleet.commit();
    let written = std::thread::scope(|scope| {
        let apply = scope.spawn(|| fleet.applied());
        let teeth = ["-n", "silent", "wait", "--for=jsonpath={.spec.teeth}=2"];
        let gear = format!("gears.{group}/first");
        kubectl::admin(&[&teeth[..], &[&gear, "--timeout=30s"]].concat());
        let status = r#"--patch={"status":{"observedGeneration":2}}"#;
        let patch = ["-n", "silent", "patch", &gear, "--subresource=status"];
        kubectl::admin(&[&patch[..], &["--type=merge", status]].concat());
        apply.join().unwrap()
    });
    assert!(written.took < Duration::from_secs(4), "{}", written.shown());
}

#[test]
fn what_is_ready_has_to_stay_so() {
    let rules = "readiness: [{kind: Deployment, stableFor: 2s}]\n";
    let fleet = fleet("stable", rules, &[deployment("app")]);
    let begun = Instant::now();
    fleet.applied();
    assert!(begun.elapsed() > Duration::from_secs(2));
    // A stability period longer than the time-out is never reached.
    fleet.edit(
        "manifests/web/bundle.yaml",
        "stableFor: 2s",
        "stableFor: 1m",
    );
    fleet.edit("manifests/web/web.yaml", "app:1", "app:2");
    fleet.commit();
    fleet
        .apply()
        .ended_with(6)
        .says("not ready after 4 s: ready; must stay ready for 60 s");
}

/// Returns a workload with one pod.
fn wants_one(kind: &str) -> String {
    let text = deployment("app").replace("replicas: 0", "replicas: 1");
    if kind == "StatefulSet" {
        return text
            .replace("kind: Deployment", "kind: StatefulSet")
            .replace("  replicas", "  serviceName: app\n  replicas");
    }
    text
}

fn quota(fleet: &Fleet) {
    let quota = "apiVersion: v1\nkind: ResourceQuota\nmetadata: {name: none}\nspec: {hard: {pods: \"0\"}}\n";
    let file = fleet.file("quota.yaml", quota);
    kubectl::admin(&["-n", fleet.environment, "apply", "-f", &file]);
    let reached = "--for=jsonpath={.status.hard.pods}=0";
    kubectl::admin(&[
        "-n",
        fleet.environment,
        "wait",
        reached,
        "quota/none",
        "--timeout=30s",
    ]);
}

#[test]
fn a_quota_is_named_by_a_deployment_itself() {
    let fleet = fleet("quota-one", "", &[wants_one("Deployment")]);
    quota(&fleet);
    fleet
        .apply()
        .ended_with(6)
        .says("Deployment.apps/quota-one/app: not ready after 4 s: ")
        .says("exceeded quota: none");
}

#[test]
fn a_quota_is_named_by_the_events_of_a_stateful_set() {
    let fleet = fleet("quota-two", "", &[wants_one("StatefulSet")]);
    quota(&fleet);
    fleet
        .apply()
        .ended_with(6)
        .says("StatefulSet.apps/quota-two/app: not ready after 4 s: 0 of 1")
        .says("statefulset app: FailedCreate: ")
        .says("exceeded quota: none");
}

#[test]
fn an_image_that_cannot_be_pulled_is_named() {
    let fleet = fleet("image", "", &[wants_one("Deployment")]);
    fleet.apply().ended_with(6);
    // Without nodes, write the status that a kubelet would report.
    let name = fleet.field(&["pods", "-n", "image"], "{.items[0].metadata.name}");
    let patch = "--patch={\"status\":{\"containerStatuses\":[{\"name\":\"app\",\"image\":\"app:1\",\"imageID\":\"\",\"ready\":false,\"restartCount\":0,\"state\":{\"waiting\":{\"reason\":\"ImagePullBackOff\",\"message\":\"no such image app:1\"}}}]}}";
    let pod = format!("pod/{name}");
    kubectl::admin(&["-n", "image", "patch", &pod, "--subresource=status", patch]);
    let said = format!("pod {name}: container app: ImagePullBackOff: no such image app:1");
    fleet.apply().ended_with(6).says(&said);
}
