//! `apply --wait=none`: only required waits happen, nothing is reported as done, and a repetition
//! reports nothing new.

use std::path::Path;
use std::time::Duration;

use jiff::Timestamp;
use kube::config::{KubeConfigOptions, Kubeconfig};
use pleach_testkit::audit::AuditLog;
use pleach_testkit::kubectl::Kubectl;
use pleach_testkit::program::Program;
use pleach_testkit::proof;
use pleach_testkit::repository::TestRepo;

use crate::shared;

/// Its pods never run, because the shared control plane has no nodes.
const APP: &str = "\
apiVersion: apps/v1
kind: Deployment
metadata: {name: app}
spec:
  selector: {matchLabels: {app: app}}
  template:
    metadata: {labels: {app: app}}
    spec: {containers: [{name: app, image: app}]}
";

#[tokio::test(flavor = "multi_thread")]
async fn without_waiting_a_release_stays_unfinished() {
    let kubectl = Kubectl::new(shared().kubectl(), shared().kubeconfig());
    let id = proof::cluster_id(&kubectl).unwrap();
    let environment = format!(
        "apiVersion: pleach.dev/v1alpha1\nkind: Environment\ncluster: {{id: {id}}}\n\
         releases: [{{bundle: app, namespace: unwaited, timeout: 30s}}]\n"
    );
    let repo = TestRepo::new([
        (
            "pleach.yaml",
            "apiVersion: pleach.dev/v1alpha1\nkind: Repository\nid: unwaited\n",
        ),
        ("environments/unwaited.yaml", &environment),
        (
            "manifests/app/bundle.yaml",
            "apiVersion: pleach.dev/v1alpha1\nkind: Bundle\n",
        ),
        ("manifests/app/app.yaml", APP),
    ])
    .unwrap();
    repo.commit("start").unwrap();
    let program = Path::new(env!("CARGO_BIN_EXE_pleach"));
    let pleach = Program::new(program, repo.path(), shared().kubeconfig());
    let apply = ["apply", "unwaited", "--yes", "--wait=none"];

    let run = pleach.run(&apply).await.unwrap().ended_with(0).unwrap();
    assert!(run.took < Duration::from_secs(20), "{run}");
    assert!(run.says(": unverified (2 "), "{run}");
    let get = ["get", "releases.pleach.dev", "unwaited.app"];
    let release = kubectl.json(&get).unwrap();
    let ready = &release["status"]["conditions"][0];
    assert_eq!(ready["status"], "False", "{ready}");
    assert_eq!(ready["reason"], "NotVerified", "{ready}");

    let begun = Timestamp::now();
    let log = AuditLog::new(shared().audit_log()).from_here().unwrap();
    pleach.run(&apply).await.unwrap().ended_with(0).unwrap();
    let kubeconfig = Kubeconfig::read_from(shared().kubeconfig()).unwrap();
    let config = kube::Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default())
        .await
        .unwrap();
    let client = kube::Client::try_from(config).unwrap();
    let events = log.complete(&client).await.unwrap().since(begun);
    let events = events.filter(|event| event.user_agent.ends_with(" unwaited.app"));
    assert!(events.summary().reads > 0);
    assert_eq!(events.writes().to_string(), "");
    assert_eq!(events.dry_runs().to_string(), "");

    // With waiting, the failure is reported.
    repo.edit("environments/unwaited.yaml", "timeout: 30s", "timeout: 2s")
        .unwrap();
    let run = pleach
        .run(&apply[..3])
        .await
        .unwrap()
        .ended_with(6)
        .unwrap();
    assert!(
        run.says("failed Deployment.apps/unwaited/app: not ready after 2 s"),
        "{run}"
    );
}
