//! Removal of images from simulated nodes at the end of an upgrade.

use pleach_testkit::faults::{Kind, Moment, Seen};

use crate::fleet::Fleet;
use crate::kill;
use crate::pool::{admin, await_ready, join};
use crate::samples::BUNDLE;
use crate::stages::nodes as plane;

const POOL: &str = "pool-clean";

fn create_nodes() {
    join(POOL, 0, "");
    join(POOL, 1, "");
    await_ready(POOL);
}

/// Returns a workload without pods.
fn app(image: &str) -> String {
    format!(
        "\
apiVersion: apps/v1
kind: Deployment
metadata: {{name: app}}
spec:
  replicas: 0
  selector: {{matchLabels: {{app: app}}}}
  template:
    metadata: {{labels: {{app: app}}}}
    spec:
      containers: [{{name: app, image: \"{image}\"}}]
"
    )
}

const JOB: &str = "\
apiVersion: batch/v1
kind: Job
metadata: {name: purge}
spec:
  template:
    metadata: {annotations: {}}
    spec:
      restartPolicy: Never
      containers: [{name: purge, image: \"purge:1\", volumeMounts: [{name: images, mountPath: /images}]}]
      volumes: [{name: images, configMap: {name: former-images}}]
";

fn jobs() -> usize {
    let names = admin(&["get", "jobs", "-n", POOL, "-o", "name"]);
    names.lines().count()
}

/// Returns the images of the `ConfigMap`. Empty without one.
fn remembered() -> String {
    let path = "jsonpath={.data.images}";
    let ignore = "--ignore-not-found";
    let map = ["get", "configmap", "former-images", "-n", POOL];
    admin(&[&map[..], &["-o", path, ignore]].concat())
}

#[test]
fn images_of_the_replaced_version_are_removed_also_after_a_kill() {
    create_nodes();
    let release = format!("  - {{name: web, bundle: web, namespace: {POOL}}}\n");
    let bundle = format!(
        "{BUNDLE}stages:\n  - name: nodes\n    nodes:\n      select: {{labels: {{pool: {POOL}}}}}\n      parallel: 2\n      done: node.metadata.name != ''\n      cleanup: {{job: job.yaml, images: former}}\n"
    );
    let files = [
        ("manifests/web/bundle.yaml", bundle),
        ("manifests/web/job.yaml", JOB.to_owned()),
        ("manifests/web/app.yaml", app("app:1")),
    ];
    let mut fleet = Fleet::on(plane(), POOL, &release, &files);
    fleet.create_namespace(POOL);
    fleet.applied();
    assert_eq!((jobs(), remembered().as_str()), (0, ""));
    fleet.write("manifests/web/app.yaml", &app("app:2"));
    fleet.commit();
    fleet
        .run(&["plan", POOL])
        .ended_with(0)
        .says("~ remember ConfigMap/pool-clean/former-images  (1 image of the replaced version, to be removed from nodes)")
        .says("~ clean    Node/pool-clean-0  (1 image of the replaced version, Job of manifests/web/job.yaml)");
    let creates_a_job = |seen: &Seen| {
        let is_creation = seen.method.as_str().eq_ignore_ascii_case("post");
        seen.kind == Kind::Write && is_creation && seen.path.contains("/jobs")
    };
    let args = ["apply", POOL, "--yes"];
    assert!(kill::at(
        &mut fleet,
        &args,
        Moment::BeforeForwarding,
        creates_a_job
    ));
    fleet.forget_killed_runs();
    assert_eq!(remembered(), "app:1", "no live object has it any more");
    fleet.applied();
    assert_eq!((jobs(), remembered().as_str()), (2, ""));
    fleet.writes_objects_nowhere(|fleet| fleet.apply().ended_with(0));
    // The same Job runs again for another list, and its failure is a warning.
    fleet.write("manifests/web/app.yaml", &app("app:3"));
    fleet.commit();
    fleet.applied();
    assert_eq!(jobs(), 4);
    let stuck = "    metadata: {annotations: {testkit.pleach.dev/crash: wait}}\n";
    let doomed = JOB.replace("    metadata: {annotations: {}}\n", stuck);
    let doomed = doomed.replace(
        "spec:\n  template",
        "spec:\n  activeDeadlineSeconds: 1\n  template",
    );
    fleet.write("manifests/web/job.yaml", &doomed);
    fleet.write("manifests/web/app.yaml", &app("app:4"));
    fleet.commit();
    fleet
        .apply()
        .ended_with(0)
        .says("its images were not removed: ");
    assert_eq!(remembered(), "");
}
