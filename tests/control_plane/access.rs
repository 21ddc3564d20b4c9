//! Pods of two versions run at the same time: neither lacks a right.

use crate::fleet::{Fleet, object_writes};
use crate::samples::{BUNDLE, deployment};

/// An application whose pods use an account, with what the account may do. The
/// shared control plane has no nodes: pods that are wanted never run.
fn application(account: &str, verbs: &str, replicas: usize) -> String {
    let rbac = "rbac.authorization.k8s.io";
    let workload = deployment("app")
        .replace("replicas: 0", &format!("replicas: {replicas}"))
        .replace(
            "{containers:",
            &format!("{{serviceAccountName: {account}, containers:"),
        );
    assert!(workload.contains(account));
    format!(
        "\
apiVersion: v1
kind: ServiceAccount
metadata: {{name: {account}}}
---
apiVersion: {rbac}/v1
kind: Role
metadata: {{name: app}}
rules: [{{apiGroups: [''], resources: [configmaps], verbs: [{verbs}]}}]
---
apiVersion: {rbac}/v1
kind: RoleBinding
metadata: {{name: app}}
roleRef: {{apiGroup: {rbac}, kind: Role, name: app}}
subjects: [{{kind: ServiceAccount, name: {account}, namespace: access}}]
---
{workload}"
    )
}

/// Whether an account may do something with ConfigMaps, as the server says.
fn may(fleet: &Fleet, account: &str, verb: &str) -> bool {
    let user = format!("--as=system:serviceaccount:access:{account}");
    let asked = ["auth", "can-i", verb, "configmaps", "-n", "access", &user];
    fleet.try_kubectl(&asked).status.success()
}

#[test]
fn no_version_lacks_a_right_while_both_run() {
    const FILE: &str = "manifests/web/web.yaml";
    let release = "  - {name: web, bundle: web, namespace: access, timeout: 3s}\n";
    let first = application("old", "get", 0);
    let fleet = Fleet::new(
        "access",
        release,
        &[
            ("manifests/web/bundle.yaml", BUNDLE.to_owned()),
            (FILE, first),
        ],
    );
    fleet.applied();
    assert!(may(&fleet, "old", "get"));

    // The new version does not get ready: both are there, and both may work.
    fleet.write(FILE, &application("new", "list", 1));
    fleet.commit();
    fleet
        .apply()
        .ended_with(6)
        .says("what the version that still runs may need stays until the end")
        .says("Deployment.apps/access/app: not ready after 3 s");
    for account in ["old", "new"] {
        for verb in ["get", "list"] {
            assert!(may(&fleet, account, verb), "{account} {verb}");
        }
    }

    // So it stays while nothing changes.
    let (_, events) = fleet.watched(|fleet| fleet.apply().ended_with(6));
    assert_eq!(object_writes(&events), [""; 0]);
    assert!(may(&fleet, "old", "get"));

    // It gets ready: at last, access is what git says.
    fleet.edit(FILE, "replicas: 1", "replicas: 0");
    fleet.commit();
    fleet
        .applied()
        .says("nothing of the former version needs the rest any more");
    assert!(!may(&fleet, "old", "get") && !may(&fleet, "old", "list"));
    assert!(may(&fleet, "new", "list") && !may(&fleet, "new", "get"));
    assert!(!fleet.exists(&["-n", "access", "serviceaccount/old"]));
    let (_, events) = fleet.watched(Fleet::applied);
    assert_eq!((events.summary().writes, events.summary().dry_runs), (0, 0));
}
