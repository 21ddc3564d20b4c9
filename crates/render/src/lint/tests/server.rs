//! Objects that the API server rejects, or that have no effect.

use super::*;

const SERVICE: &str = "\
---
apiVersion: v1
kind: Service
metadata: {name: web}
spec:
  selector: {app: web}
  ports: [{port: 80, targetPort: http}]
";

/// Returns a Deployment with this selector and additional container fields.
fn deployment(selector: &str, container: &str) -> String {
    DEPLOYMENT.replace("  selector: {matchLabels: {app: web}}\n", selector) + container
}

const MATCHING: &str = "  selector: {matchLabels: {app: web}}\n";

fn crd(name: &str) -> String {
    CRD.replace("foos.example.org", name)
}

/// Returns code, severity and message of the findings.
fn found(manifest: &str) -> Vec<String> {
    let linted = lint(&[("a.yaml", manifest)]);
    for finding in &linted.findings {
        assert!(meaning(&finding.code).is_some(), "{}", finding.code);
    }
    linted
        .findings
        .iter()
        .map(|one| {
            let line = one.place.as_ref().unwrap().line;
            format!("{line} {} {}: {}", one.severity, one.code, one.message)
        })
        .collect()
}

type Case = (&'static str, String, &'static [&'static str]);

fn verify(cases: Vec<Case>) {
    for (name, manifest, expected) in cases {
        assert_eq!(found(&manifest), expected, "{name}:\n{manifest}");
    }
}

#[test]
fn requirements_of_the_server_are_known() {
    verify(vec![
        (
            "no selector",
            deployment("", ""),
            &["5 error missing-field: spec needs the field `selector`"],
        ),
        (
            "empty selector",
            deployment("  selector: {}\n", ""),
            &["6 error selector-mismatch: `spec.selector` is empty"],
        ),
        (
            "another selector",
            deployment("  selector: {matchLabels: {app: wep}}\n", ""),
            &["6 error selector-mismatch: `spec.selector` does not match the labels of `spec.template`"],
        ),
        (
            "a selector by expressions",
            deployment(
                "  selector: {matchExpressions: [{key: app, operator: In, values: [web, api]}]}\n",
                "",
            ),
            &[],
        ),
        (
            "a selector whose expression does not hold",
            deployment("  selector: {matchExpressions: [{key: app, operator: DoesNotExist}]}\n", ""),
            &["6 error selector-mismatch: `spec.selector` does not match the labels of `spec.template`"],
        ),
        (
            "a plain selector",
            "apiVersion: v1\nkind: ReplicationController\nmetadata: {name: a}\nspec:\n  selector: {a: b}\n  \
             template: {metadata: {labels: {a: c}}, spec: {containers: [{name: a, image: a}]}}\n"
                .to_owned(),
            &["5 error selector-mismatch: `spec.selector` does not match the labels of `spec.template`"],
        ),
        (
            "a port that is too large",
            deployment(MATCHING, "          ports: [{containerPort: 80000}]\n"),
            &["13 error invalid-value: `spec.template.spec.containers[0].ports[0].containerPort` is not \
               between 1 and 65535"],
        ),
        (
            "numbers without a range",
            deployment(MATCHING, "          securityContext: {runAsUser: 80000}\n"),
            &[],
        ),
        (
            "a mode in decimal",
            deployment(MATCHING, "")
                + "      volumes: [{name: a, emptyDir: {}}, {name: b, configMap: {name: kube-root-ca.crt, \
                   defaultMode: 644}}]\n",
            &["13 error invalid-value: `spec.template.spec.volumes[1].configMap.defaultMode` is not \
               between 0 and 511"],
        ),
        (
            "fewer than no replicas",
            deployment("  selector: {matchLabels: {app: web}}\n  replicas: -1\n", ""),
            &["7 error invalid-value: `spec.replicas` is not 0 or more"],
        ),
        (
            "a probe of a port that is not",
            deployment(MATCHING, "          livenessProbe: {httpGet: {port: 0}}\n"),
            &["13 error invalid-value: `spec.template.spec.containers[0].livenessProbe.httpGet.port` is \
               not between 1 and 65535"],
        ),
        (
            "data with the names of fields",
            "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\ndata: {targetPort: A B, port: '0'}\n".to_owned(),
            &[],
        ),
        (
            "what may be empty",
            "apiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {name: a}\n\
             spec: {policyTypes: [Ingress]}\n---\n\
             apiVersion: scheduling.k8s.io/v1\nkind: PriorityClass\nmetadata: {name: a}\n"
                .to_owned(),
            &[],
        ),
    ]);
}

#[test]
fn required_fields_and_names_are_known() {
    verify(vec![
        (
            "keys of lists, once",
            deployment(
                MATCHING,
                "          ports: [{name: http}]\n          volumeMounts: [{name: a}]\n",
            ),
            &[
                "13 error missing-field: spec.template.spec.containers[0].ports[0] needs the field \
                 `containerPort`, which identifies the items of the list",
                "14 error missing-field: spec.template.spec.containers[0].volumeMounts[0] needs the \
                 field `mountPath`, which identifies the items of the list",
            ],
        ),
        (
            "a binding without a role",
            "apiVersion: rbac.authorization.k8s.io/v1\nkind: RoleBinding\nmetadata: {name: a}\n\
             subjects: [{kind: User, name: ann}]\n"
                .to_owned(),
            &["1 error missing-field: the object needs the field `roleRef`"],
        ),
        (
            "a definition with another name",
            crd("foo.example.org"),
            &[
                "3 error name: a CustomResourceDefinition must have the name PLURAL.GROUP of its \
               kind: foos.example.org",
            ],
        ),
        ("a definition", crd("foos.example.org"), &[]),
    ]);
}

#[test]
fn services_select_pods_and_ports() {
    let with_port = "          ports: [{name: http, containerPort: 80}]\n";
    verify(vec![
        (
            "nothing wrong",
            deployment(MATCHING, with_port) + SERVICE,
            &[],
        ),
        (
            "a port with another name",
            deployment(
                MATCHING,
                "          ports: [{name: web, containerPort: 80}]\n",
            ) + SERVICE,
            &[
                "20 warning service-without-port: `spec.ports[0].targetPort` names a port that \
               the selected pods do not have",
            ],
        ),
        (
            "a port by a name that none can have",
            deployment(MATCHING, with_port) + &SERVICE.replace("http", "HTTP_port"),
            &[
                "20 error invalid-value: `spec.ports[0].targetPort` is not a port: 1 to 65535, or a name \
               of at most 15 lower-case letters, digits and `-`",
                "20 warning service-without-port: `spec.ports[0].targetPort` names a port that \
               the selected pods do not have",
            ],
        ),
        (
            "a Service for other pods",
            deployment(MATCHING, with_port) + &SERVICE.replace("app: web", "app: wep"),
            &[
                "19 warning service-without-pods: `spec.selector` matches no pods of the environment: \
               the Service has no endpoints",
            ],
        ),
        (
            "a Service for one pod of a set",
            deployment(MATCHING, with_port)
                + &SERVICE.replace(
                    "app: web",
                    "app: web, statefulset.kubernetes.io/pod-name: web-0",
                ),
            &[],
        ),
        (
            "a Service whose pods a custom resource makes",
            crd("foos.example.org")
                + "---\napiVersion: example.org/v1\nkind: Foo\nmetadata: {name: a}\nspec: {size: 1}\n"
                + SERVICE,
            &[],
        ),
        (
            "a name for another host",
            SERVICE.replace(
                "selector",
                "type: ExternalName\n  externalName: a.b\n  selector",
            ),
            &[],
        ),
    ]);
}
