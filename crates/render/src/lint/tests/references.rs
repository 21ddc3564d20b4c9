//! References to objects that no manifest contains.

use super::*;

#[test]
fn namespaces_registrations_and_references_lead_somewhere() {
    let linted = lint(&[(
        "a.yaml",
        "\
apiVersion: v1
kind: ConfigMap
metadata: {name: a, namespace: nowhere}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: b, namespace: nowhere}
---
apiVersion: apiregistration.k8s.io/v1
kind: APIService
metadata: {name: v1.example.org}
spec:
  group: example.org
  version: v1
  groupPriorityMinimum: 1
  versionPriority: 1
  service: {name: api, namespace: shop}
---
apiVersion: v1
kind: Pod
metadata: {name: p}
spec:
  serviceAccountName: runner
  containers: [{name: a, image: a, envFrom: [{configMapRef: {name: settings}}]}]
",
    )]);
    assert_eq!(
        shown(&linted),
        [
            "a.yaml:3:21 namespace-not-made: no manifest of the environment creates \
             namespace nowhere, so it must exist already (add a Namespace, or a release with this `namespace`)",
            "a.yaml:17:3 registration-without-service: Service shop/api, which it points at, is in \
             no manifest of the environment (requests that it intercepts fail as long as that \
             Service has no endpoints)",
            "a.yaml:23:3 reference-not-made: the pods need ServiceAccount/shop/runner, which is in \
             no manifest of the environment",
            "a.yaml:24:62 reference-not-made: the pods need ConfigMap/shop/settings, which is in no \
             manifest of the environment",
        ]
    );
}

#[test]
fn references_to_a_broken_file_are_not_reported() {
    let linted = lint(&[
        (
            "a.yaml",
            "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a, namespace: nowhere}\n",
        ),
        ("b.yaml", "kind: Namespace: x\n"),
    ]);
    let codes: Vec<&str> = linted.findings.iter().map(|f| f.code.as_str()).collect();
    assert_eq!(codes, ["yaml"]);
}

#[test]
fn references_are_reported_where_they_are_written() {
    let linted = lint(&[(
        "a.yaml",
        "\
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: a}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: reader}
subjects:
  - {kind: User, name: ann}
  - kind: ServiceAccount
    name: runner
  - {kind: ServiceAccount, name: default}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: b}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: view}
subjects:
  - {kind: ServiceAccount, name: runner, namespace: elsewhere}
  - {kind: ServiceAccount, name: attachdetach-controller, namespace: kube-system}
---
apiVersion: v1
kind: Pod
metadata: {name: p}
spec:
  containers:
    - name: a
      image: a
      env:
        - {name: A, valueFrom: {configMapKeyRef: {name: settings, key: a, optional: true}}}
        - name: B
          valueFrom:
            configMapKeyRef:
              name: settings
              key: b
  volumes:
    - name: v
      projected:
        sources:
          - secret: {name: keys}
    - name: claim
      persistentVolumeClaim:
        claimName: disk
",
    )]);
    assert_eq!(
        shown(&linted),
        [
            "a.yaml:4:60 reference-not-made: the binding refers to \
             Role.rbac.authorization.k8s.io/shop/reader, which is in no manifest of the environment",
            "a.yaml:8:5 reference-not-made: the binding refers to ServiceAccount/shop/runner, which is \
             in no manifest of the environment",
            "a.yaml:16:28 reference-not-made: the binding refers to ServiceAccount/elsewhere/runner, \
             which is in no manifest of the environment",
            "a.yaml:31:15 reference-not-made: the pods need ConfigMap/shop/settings, which is in \
             no manifest of the environment",
            "a.yaml:37:22 reference-not-made: the pods need Secret/shop/keys, which is in no \
             manifest of the environment",
            "a.yaml:40:9 reference-not-made: the pods need PersistentVolumeClaim/shop/disk, which \
             is in no manifest of the environment",
        ]
    );
    assert!(linted.findings.iter().all(|one| !one.is_error()));
    let has_role =
        "apiVersion: rbac.authorization.k8s.io/v1\nkind: Role\nmetadata: {name: reader}\n";
    let binding = "apiVersion: rbac.authorization.k8s.io/v1\nkind: RoleBinding\nmetadata: {name: a}\n\
                   roleRef: {kind: Role, name: reader}\n";
    check(&format!("{has_role}---\n{binding}"), &[]);
}
