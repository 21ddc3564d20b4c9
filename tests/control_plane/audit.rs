//! The audit log records all requests of clients.

use kube::{
    Client, Config,
    config::{KubeConfigOptions, Kubeconfig},
};
use pleach_testkit::audit::AuditLog;

use crate::{kubectl, shared};

#[tokio::test(flavor = "multi_thread")]
async fn writes_dry_runs_and_reads_of_kubectl_are_counted() {
    let namespace = "audit-counts";
    let log = AuditLog::new(shared().audit_log()).from_here().unwrap();
    kubectl::admin(&["create", "namespace", namespace]);
    let create = ["create", "configmap", "a", "--namespace", namespace];
    kubectl::admin(&[&create[..], &["--dry-run=server"]].concat());
    kubectl::admin(&create);
    kubectl::admin(&["get", "configmap", "a", "--namespace", namespace]);

    let kubeconfig = Kubeconfig::read_from(shared().kubeconfig()).unwrap();
    let config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default())
        .await
        .unwrap();
    let client = Client::try_from(config).unwrap();
    let events = log.complete(&client).await.unwrap();

    let events = events.in_namespace(namespace).by_agent("kubectl/");
    let summary = events.summary();
    assert_eq!(
        (summary.writes, summary.dry_runs, summary.reads),
        (1, 1, 1),
        "{events}"
    );
    assert_eq!(
        events.writes().to_string(),
        "create configmaps audit-counts/a 201\n"
    );
}
