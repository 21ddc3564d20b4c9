//! Progress, failures and status of pods as a kubelet reports them.

use std::path::Path;

use pleach_testkit::isolated::inside_nodes;
use pleach_testkit::program::Program;
use pleach_testkit::proof;
use pleach_testkit::repository::TestRepo;
use pleach_testkit::throwaway::nodes::POD_IMAGE;

use crate::Cluster;

/// Returns a Deployment with one container of these further fields.
fn deployment(name: &str, replicas: usize, container: &str) -> String {
    format!(
        "apiVersion: apps/v1\nkind: Deployment\nmetadata: {{name: {name}}}\n\
         spec:\n  replicas: {replicas}\n  selector: {{matchLabels: {{app: {name}}}}}\n  template:\n    \
         metadata: {{labels: {{app: {name}}}}}\n    \
         spec: {{terminationGracePeriodSeconds: 1, containers: [{{name: app, {container}}}]}}\n"
    )
}

/// Names of Deployments that cannot become ready, their containers, and the reason to show.
fn broken() -> [(&'static str, String, &'static str); 4] {
    let pod = |more: &str| format!("image: \"{POD_IMAGE}\", {more}");
    [
        (
            "absent",
            "image: \"127.0.0.1:5000/absent:1\"".to_owned(),
            "container app: ImagePullBackOff: Back-off pulling image \"127.0.0.1:5000/absent:1\"",
        ),
        (
            "crashing",
            // Without a probe, its pod is ready for a moment.
            pod("args: [exit, \"3\"], readinessProbe: {httpGet: {port: 8080}}"),
            // The kubelet reports CrashLoopBackOff while it waits, and else the exit code. The number
            // of restarts depends on the time.
            " restart",
        ),
        (
            "large",
            pod("resources: {requests: {cpu: 1k}}"),
            "unschedulable: 0/1 nodes are available: 1 Insufficient cpu",
        ),
        (
            "silent",
            pod("readinessProbe: {httpGet: {port: 8080}, periodSeconds: 1}"),
            "container app: not ready: Readiness probe failed",
        ),
    ]
}

#[tokio::test(flavor = "multi_thread")]
async fn pods_that_cannot_run_are_explained() {
    if !inside_nodes("pods::pods_that_cannot_run_are_explained").unwrap() {
        return;
    }
    let cluster = Cluster::start(1).await.unwrap();
    let id = proof::cluster_id(&cluster.kubectl).unwrap();
    let serving = format!(
        "image: \"{POD_IMAGE}\", args: [serve, \":8080\"], readinessProbe: {{httpGet: {{port: 8080}}, periodSeconds: 1}}"
    );
    let environment = format!(
        "apiVersion: pleach.dev/v1alpha1\nkind: Environment\ncluster: {{id: {id}}}\nreleases:\n\
         - {{name: good, bundle: good, namespace: good}}\n\
         - {{name: bad, bundle: bad, namespace: bad, timeout: 25s, failFast: never}}\n\
         - {{name: fast, bundle: fast, namespace: fast, timeout: 10m, failFast: 1s}}\n"
    );
    let bad = broken().map(|(name, container, _)| deployment(name, 1, &container));
    let bundle = "apiVersion: pleach.dev/v1alpha1\nkind: Bundle\n";
    let repo = TestRepo::new([
        (
            "pleach.yaml",
            "apiVersion: pleach.dev/v1alpha1\nkind: Repository\nid: nodes\n",
        ),
        ("environments/dev.yaml", &environment),
        ("manifests/good/bundle.yaml", bundle),
        ("manifests/good/good.yaml", &deployment("web", 3, &serving)),
        ("manifests/bad/bundle.yaml", bundle),
        ("manifests/bad/bad.yaml", &bad.join("---\n")),
        ("manifests/fast/bundle.yaml", bundle),
        ("manifests/fast/fast.yaml", &bad[0]),
    ])
    .unwrap();
    repo.commit("start").unwrap();
    let program = Path::new(env!("CARGO_BIN_EXE_pleach"));
    let pleach = Program::new(program, repo.path(), cluster.plane.kubeconfig());

    // Pods with a probe that succeeds become ready.
    let run = pleach.run(&["apply", "dev/good", "--yes"]).await.unwrap();
    run.ended_with(0).unwrap();
    let run = pleach.run(&["status", "dev/good"]).await.unwrap();
    assert!(run.says("✓ 2 objects ready\nREADY"), "{run}");

    // A failed wait explains every object, and the status as well.
    let run = pleach.run(&["apply", "dev/bad", "--yes"]).await.unwrap();
    let run = run.ended_with(6).unwrap();
    for (name, _, reason) in broken() {
        assert!(
            run.says(&format!("Deployment.apps/bad/{name}: not ready")),
            "{name}\n{run}"
        );
        assert!(run.says(reason), "{name}: {reason}\n{run}");
    }
    let run = pleach.run(&["status", "dev/bad"]).await.unwrap();
    let run = run.ended_with(0).unwrap();
    assert!(run.says("✓ 1 object ready\nNOT READY"), "{run}");
    for (name, _, _) in broken() {
        let line = format!("✗ Deployment.apps/bad/{name}");
        assert!(run.says(&line), "{name}\n{run}");
        // The kubelet alternates between reasons.
        let pod = format!("; pod {name}-");
        assert!(run.says(&pod), "{name}\n{run}");
    }

    // An image that cannot be pulled ends the wait early.
    let run = pleach.run(&["apply", "dev/fast", "--yes"]).await.unwrap();
    let run = run.ended_with(6).unwrap();
    assert!(run.says("failed Deployment.apps/fast/absent: "), "{run}");
    assert!(run.says("hint: fix the image in git"), "{run}");
    assert!(!run.says("timeout"), "{run}");
}
