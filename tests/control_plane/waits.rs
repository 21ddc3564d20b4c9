//! All waits end at their deadline and report what they waited for (I4).

use std::time::{Duration, Instant};

use rstest::rstest;

use crate::fleet::Fleet;
use crate::samples::{BUNDLE, config_map, deployment, gears, webhook};

/// Returns a Deployment whose pods never run, because the shared control plane has no nodes.
pub(crate) fn never(name: &str) -> String {
    deployment(name).replace("replicas: 0", "replicas: 1")
}

fn service(name: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Service\nmetadata: {{name: {name}}}\n\
         spec: {{selector: {{app: {name}}}, ports: [{{port: 443}}]}}\n"
    )
}

/// Returns a release with these files and bundle declarations.
fn fleet(environment: &'static str, bundle: &str, files: &[String]) -> Fleet {
    let release =
        format!("  - {{name: web, bundle: web, namespace: {environment}, timeout: 3s}}\n");
    Fleet::new(
        environment,
        &release,
        &[
            ("manifests/web/bundle.yaml", format!("{BUNDLE}{bundle}")),
            ("manifests/web/web.yaml", files.join("---\n")),
        ],
    )
}

/// Returns two CRDs with the same plural in a group. The second one is never served.
fn rival() -> [String; 2] {
    let first = gears("rival.example.org");
    let second = first
        .replace("{name: gears.rival", "{name: wheels.rival")
        .replace(
            "plural: gears, singular: gear,",
            "plural: wheels, singular: gear,",
        );
    let wheel = "apiVersion: rival.example.org/v1\nkind: Gear\nmetadata: {name: first}\n";
    assert!(second.contains("wheels.rival.example.org"));
    [second, wheel.to_owned()]
}

#[rstest]
#[case::a_workload("wait-ready", "", vec![never("app")],
    "Deployment.apps/wait-ready/app: not ready after 3 s: ", "0 of 1")]
#[case::a_run_time_registration("wait-registered",
    "runtimeObjects: [{kind: ValidatingWebhookConfiguration, service: app}]\n",
    vec![service("app"), deployment("app")],
    "not ready after 3 s: ", "no ValidatingWebhookConfiguration points at Service wait-registered/app yet")]
#[case::a_run_time_object("wait-exists",
    "runtimeObjects: [{kind: Secret, name: made-later}]\n", vec![deployment("app")],
    "not ready after 3 s: ", "the workloads have not created it yet")]
#[case::a_backend("wait-endpoints", "",
    vec![service("app"), never("app"), webhook("wait-endpoints", "app")],
    "Deployment.apps/wait-endpoints/app: not ready after 3 s: ", "0 of 1")]
fn waits_of_a_first_apply_end(
    #[case] environment: &'static str,
    #[case] bundle: &str,
    #[case] files: Vec<String>,
    #[case] failed: &str,
    #[case] reason: &str,
) {
    let fleet = fleet(environment, bundle, &files);
    fleet.apply().ended_with(6).says(failed).says(reason);
}

/// Returns a Deployment that never becomes ready, with its readiness level.
fn never_counts(name: &str, how: &str) -> String {
    let annotations = format!("{{name: {name}, annotations: {{pleach.dev/ready: {how}}}}}");
    never(name).replacen(&format!("{{name: {name}}}"), &annotations, 1)
}

#[test]
fn what_need_not_be_ready_fails_nothing() {
    let after = config_map("after", "v").replace(
        "{name: after}",
        "{name: after, annotations: {pleach.dev/after: Deployment/told}}",
    );
    let files = [
        never_counts("ignored", "none"),
        never_counts("told", "warn"),
        after,
    ];
    let fleet = fleet("wait-counts", "", &files);
    let started = Instant::now();
    let run = fleet.apply().ended_with(0);
    let warning = "warning: not ready after 3 s: 0 of 1 replicas ready\n  object: Deployment.apps/wait-counts/told\n";
    let run = run.says(warning);
    let said = run.shown();
    assert_eq!(said.matches("warning: ").count(), 1, "{said}");
    // The wait happened, and later objects were not blocked forever.
    assert!(started.elapsed() > Duration::from_secs(3));
    assert!(fleet.exists(&["configmap", "after", "-n", "wait-counts"]));
    let ready = fleet.field(&["release", "wait-counts.web"], "{.status.record.ready}");
    assert_eq!(ready, "true");
    // Without changes, nothing is waited for.
    fleet.writes_nothing(Fleet::applied);
    // The time-out starts when readiness is required.
    fleet.edit("manifests/web/web.yaml", "ready: warn", "ready: require");
    fleet.commit();
    fleet
        .apply()
        .ended_with(6)
        .says("Deployment.apps/wait-counts/told: not ready after 3 s: ");
}

#[test]
fn the_wait_for_a_definition_that_is_not_accepted_ends() {
    let fleet = fleet("wait-served", "", &rival());
    let file = fleet.file("first.yaml", &gears("rival.example.org"));
    fleet.kubectl(&["apply", "-f", &file]);
    fleet
        .apply()
        .ended_with(6)
        .says("CustomResourceDefinition.apiextensions.k8s.io/wheels.rival.example.org: ")
        .says("is already in use");
}

#[test]
fn the_waits_for_an_end_end() {
    // One is removed from git, one was deleted manually. Both have finalizers.
    let held = |name: &str| {
        config_map(name, "v").replace(
            &format!("{{name: {name}}}"),
            &format!("{{name: {name}, finalizers: [example.org/{name}]}}"),
        )
    };
    let files = [config_map("stays", "v"), held("pruned"), held("ended")];
    let fleet = fleet("wait-absent", "", &files);
    fleet.applied();
    fleet.write("manifests/web/web.yaml", &files[..1].join("---\n"));
    fleet.commit();
    fleet
        .apply()
        .ended_with(6)
        .says("ConfigMap/wait-absent/pruned: not gone after 3 s: it waits for example.org/pruned")
        .says("it waits for example.org/ended");
    fleet.write("manifests/web/web.yaml", &files.join("---\n"));
    fleet.commit();
    fleet
        .apply()
        .ended_with(6)
        .says("ConfigMap/wait-absent/ended: not gone after 3 s: it waits for example.org/ended")
        .says("the controller that set example.org/ended must remove it");
}

#[test]
fn a_wrong_image_is_told_once_with_the_way_back() {
    let files = [deployment("app")];
    let fleet = fleet("wait-image", "", &files);
    fleet.edit_environment("timeout: 3s", "timeout: 10m, failFast: 1s");
    fleet.commit();
    fleet.applied();
    fleet.edit("manifests/web/web.yaml", "replicas: 0", "replicas: 1");
    fleet.edit("manifests/web/web.yaml", "app:1", "app:typo");
    fleet.commit();
    // Without nodes, the test reports the pod status instead of a kubelet.
    let started = Instant::now();
    let run = std::thread::scope(|scope| {
        let kubelet = scope.spawn(|| {
            let pod = fleet.until("a pod", |fleet| {
                let pods = fleet.get(&["pods", "-n", "wait-image", "-l", "app=app"])?;
                Some(pods["items"][0]["metadata"]["name"].as_str()?.to_owned())
            });
            let status = r#"{"status":{"phase":"Pending","containerStatuses":[{"name":"app","image":"app:typo","imageID":"","ready":false,"restartCount":0,"state":{"waiting":{"reason":"ErrImagePull","message":"app:typo: not found"}}}]}}"#;
            let patch = ["patch", "pod", &pod, "-n", "wait-image"];
            fleet.kubectl(&[&patch[..], &["--subresource=status", "--type=merge", "-p", status]].concat());
        });
        let run = fleet.apply().ended_with(6);
        kubelet.join().unwrap();
        run
    });
    assert!(started.elapsed() < Duration::from_mins(5));
    let shown = run.shown();
    for (text, count) in [
        ("failed Deployment.apps/wait-image/app: not ready after ", 1),
        ("not ready after ", 1),
        (": container app: ErrImagePull: app:typo: not found\n", 1),
        (
            "hint: fix the image in git, or roll back: pleach rollback wait-image/web && pleach apply wait-image/web\n",
            1,
        ),
        ("timeout", 0),
    ] {
        assert_eq!(shown.matches(text).count(), count, "{text:?} in:\n{shown}");
    }
}
