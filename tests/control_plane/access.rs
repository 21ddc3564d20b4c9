//! Pods of two versions run at the same time, and neither lacks a permission.

use crate::fleet::{Fleet, object_writes};
use crate::samples::{BUNDLE, deployment};

/// Returns an application with an account and its permissions. The shared control plane has no
/// nodes, so desired pods never run.
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

/// Returns whether an account has a permission on ConfigMaps, according to the server.
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

    // The new version does not become ready. Both versions exist and have their permissions.
    fleet.write(FILE, &application("new", "list", 1));
    fleet.commit();
    fleet
        .apply()
        .ended_with(6)
        .says("access that the running version may need is retained until the end")
        .says("Deployment.apps/access/app: not ready after 3 s");
    for account in ["old", "new"] {
        for verb in ["get", "list"] {
            assert!(may(&fleet, account, verb), "{account} {verb}");
        }
    }

    // The state is stable without changes.
    let (_, events) = fleet.watched(|fleet| fleet.apply().ended_with(6));
    assert_eq!(object_writes(&events), [""; 0]);
    assert!(may(&fleet, "old", "get"));

    // The new version becomes ready. The permissions then match git.
    fleet.edit(FILE, "replicas: 1", "replicas: 0");
    fleet.commit();
    fleet
        .applied()
        .says("no pod of the previous version needs the remaining access");
    assert!(!may(&fleet, "old", "get") && !may(&fleet, "old", "list"));
    assert!(may(&fleet, "new", "list") && !may(&fleet, "new", "get"));
    assert!(!fleet.exists(&["-n", "access", "serviceaccount/old"]));
    let (_, events) = fleet.watched(Fleet::applied);
    assert_eq!((events.summary().writes, events.summary().dry_runs), (0, 0));
}

/// Returns an application whose pods are bound to one of two roles.
fn bound(role: &str, replicas: usize) -> String {
    let text = application("app", "get", replicas);
    let rbac = "rbac.authorization.k8s.io";
    let text = text.replace(
        "kind: Role, name: app}",
        &format!("kind: Role, name: {role}}}"),
    );
    format!(
        "\
{text}---
apiVersion: {rbac}/v1
kind: Role
metadata: {{name: other}}
rules: [{{apiGroups: [''], resources: [configmaps], verbs: [list]}}]
"
    )
}

#[test]
fn a_binding_to_another_role_leaves_nobody_without_rights() {
    const FILE: &str = "manifests/web/web.yaml";
    let release = "  - {name: web, bundle: web, namespace: rebound, timeout: 3s}\n";
    let app = |role: &str, replicas| {
        bound(role, replicas).replace("namespace: access", "namespace: rebound")
    };
    let fleet = Fleet::new(
        "rebound",
        release,
        &[
            ("manifests/web/bundle.yaml", BUNDLE.to_owned()),
            (FILE, app("app", 0)),
        ],
    );
    fleet.applied();
    let may = |verb: &str| {
        let asked = [
            "auth",
            "can-i",
            verb,
            "configmaps",
            "-n",
            "rebound",
            "--as=system:serviceaccount:rebound:app",
        ];
        fleet.try_kubectl(&asked).status.success()
    };
    let former = || fleet.kubectl(&["-n", "rebound", "get", "rolebindings", "-o=name"]);
    assert!(may("get") && !may("list"));

    // The new version does not become ready. The pods of both versions have their permissions.
    fleet.write(FILE, &app("other", 1));
    fleet.commit();
    fleet
        .apply()
        .ended_with(6)
        .says("access that the running version may need is retained until the end");
    assert!(may("get") && may("list"));
    assert!(
        former().contains("/app.pleach-previous-role."),
        "{}",
        former()
    );
    fleet.run(&["status", "rebound"]).says("previous-role");
    fleet.apply().ended_with(6);
    assert!(may("get") && may("list"));

    // The new version becomes ready, and the temporary permissions are removed.
    fleet.edit(FILE, "replicas: 1", "replicas: 0");
    fleet.commit();
    fleet.applied();
    assert!(!may("get") && may("list"));
    assert_eq!(former().trim(), "rolebinding.rbac.authorization.k8s.io/app");
    let (_, events) = fleet.watched(Fleet::applied);
    assert_eq!(events.writes().to_string(), "");
}

/// Permissions of a user who writes roles but does not have all of their rules.
const DEPLOYER: &str = "\
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: deployer-who-may-not-read-secrets}
rules:
  - {apiGroups: [''], resources: [configmaps, serviceaccounts, services, namespaces], verbs: ['*']}
  - {apiGroups: [''], resources: [secrets], resourceNames: [pleach-digest-key], verbs: [get]}
  - {apiGroups: [apps], resources: [deployments], verbs: ['*']}
  - {apiGroups: [rbac.authorization.k8s.io], resources: [roles, rolebindings], verbs: [get, list, watch, create, patch, delete]}
  - {apiGroups: [coordination.k8s.io], resources: [leases], verbs: ['*']}
  - {apiGroups: [pleach.dev], resources: ['*'], verbs: ['*']}
  - {apiGroups: [apiextensions.k8s.io, apiregistration.k8s.io, admissionregistration.k8s.io, discovery.k8s.io], resources: ['*'], verbs: [get, list, watch]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: deployer-who-may-not-read-secrets}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: deployer-who-may-not-read-secrets}
subjects: [{apiGroup: rbac.authorization.k8s.io, kind: User, name: cleo}]
";

#[test]
fn what_is_given_for_a_while_must_be_held_before_anything_is_written() {
    const FILE: &str = "manifests/web/web.yaml";
    let app = |verbs: &str, replicas| {
        application("app", verbs, replicas).replace("namespace: access", "namespace: giver")
    };
    let mut fleet = Fleet::new(
        "giver",
        "  - {name: web, bundle: web, namespace: giver, timeout: 3s}\n",
        &[
            ("manifests/web/bundle.yaml", BUNDLE.to_owned()),
            (FILE, app("get", 0).replace("[configmaps]", "[secrets]")),
        ],
    );
    fleet.applied();
    let file = fleet.file("deployer.yaml", DEPLOYER);
    fleet.kubectl(&["apply", "-f", &file]);
    let groups = ["system:authenticated"];
    fleet.through(
        crate::shared()
            .kubeconfig_for_user("cleo", &groups)
            .unwrap(),
    );

    // The user has the rules of the role in git, but not those of the union for both versions.
    fleet.write(FILE, &app("list", 0).replace("app:1", "app:2"));
    fleet.commit();
    fleet
        .writes_nothing(|fleet| fleet.apply().ended_with(4))
        .says("pleach is not allowed to write Role.rbac.authorization.k8s.io/giver/app: it grants permissions that pleach does not have")
        .says(r#"{apiGroups: [""], resources: ["secrets"], verbs: ["get"]}"#)
        .says("nothing was written");
    // The user does not have the rules of this role in git.
    fleet.write(FILE, &app("get", 0).replace("[configmaps]", "[pods]"));
    fleet.commit();
    fleet
        .writes_nothing(|fleet| fleet.apply().ended_with(4))
        .says(r#"{apiGroups: [""], resources: ["pods"], verbs: ["get"]}"#);
    fleet.through(crate::shared().kubeconfig().to_owned());
    fleet.applied();
}
