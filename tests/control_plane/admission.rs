//! Admission policies of a release are applied after their parameters and removed before them.

use pleach_testkit::audit::Events;

use crate::fleet::{Fleet, WEB, object_writes};
use crate::samples::gears;

const GROUP: &str = "admission.example.org";

/// Returns a policy that refuses all persistent volume claims in the namespace while its parameter is
/// missing. No client creates any.
fn policy(environment: &str) -> String {
    format!(
        "\
apiVersion: {GROUP}/v1
kind: Gear
metadata: {{name: limits}}
spec: {{teeth: 5}}
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata: {{name: {environment}}}
spec:
  failurePolicy: Fail
  paramKind: {{apiVersion: {GROUP}/v1, kind: Gear}}
  matchConstraints:
    resourceRules:
      - {{apiGroups: [''], apiVersions: [v1], operations: [CREATE], resources: [persistentvolumeclaims]}}
  validations: [{{expression: params.spec.teeth > 3}}]
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata: {{name: {environment}}}
spec:
  policyName: {environment}
  validationActions: [Deny]
  paramRef: {{name: limits, namespace: {environment}, parameterNotFoundAction: Deny}}
  matchResources: {{namespaceSelector: {{matchLabels: {{kubernetes.io/metadata.name: {environment}}}}}}}
"
    )
}

/// Returns the writes with a verb to the CRD and the policy objects, in order.
fn order(events: &Events, verb: &str) -> Vec<String> {
    let of_it = |line: &String| line.contains(GROUP) || line.contains("validatingadmission");
    let writes = object_writes(events).into_iter().filter(of_it);
    writes
        .filter_map(|line| {
            let mut words = line.split(' ');
            let is_it = words.next() == Some(verb);
            is_it.then(|| words.nth(1).unwrap_or_default().to_owned())
        })
        .collect()
}

#[test]
fn a_policy_is_written_after_its_parameters_and_goes_before_them() {
    let definition = gears(GROUP);
    let all = [definition.clone(), policy("admission")].join("---\n");
    let fleet = Fleet::web("admission", &all);
    let (_, events) = fleet.watched(Fleet::applied);
    assert_eq!(
        order(&events, "patch"),
        [
            "customresourcedefinitions",
            "gears",
            "validatingadmissionpolicies",
            "validatingadmissionpolicybindings",
        ]
    );
    let backwards = [
        "validatingadmissionpolicybindings",
        "validatingadmissionpolicies",
        "gears",
    ];

    // Git drops the objects.
    fleet.write(WEB, &definition);
    fleet.commit();
    let (_, events) = fleet.watched(Fleet::applied);
    assert_eq!(order(&events, "delete"), backwards);

    // The release is removed. The CRD is protected.
    fleet.write(WEB, &all);
    fleet.commit();
    fleet.applied();
    let uninstall = ["uninstall", "admission/web", "--yes"];
    let (_, events) = fleet.watched(|fleet| fleet.run(&uninstall).ended_with(0));
    assert_eq!(order(&events, "delete"), backwards);
}
