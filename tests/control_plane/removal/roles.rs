//! Uninstall of aggregated roles.

use super::{fleet, has_state};
use crate::prune::deleted;

/// Number of roles of each type. With few, the controller is fast enough.
const ROLES: usize = 6;

fn roles() -> String {
    let pairs = (0..ROLES).map(|number| {
        format!(
            "\
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {{name: gathered-{number}}}
aggregationRule: {{clusterRoleSelectors: [{{matchLabels: {{gathered.example.org/to: \"{number}\"}}}}]}}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {{name: \"gathered-{number}:part\", labels: {{gathered.example.org/to: \"{number}\"}}}}
rules: [{{apiGroups: [\"\"], resources: [pods], verbs: [get]}}]
"
        )
    });
    pairs.collect::<Vec<_>>().join("---\n")
}

#[test]
fn aggregated_roles_are_gone_before_their_parts_and_stay_gone() {
    let fleet = fleet("gathered", &roles());
    fleet.applied();
    let wholes: Vec<String> = (0..ROLES)
        .map(|number| format!("gathered-{number}"))
        .collect();
    for whole in &wholes {
        let role = format!("clusterrole/{whole}");
        fleet.kubectl(&[
            "wait",
            "--for=jsonpath={.rules[0].resources[0]}=pods",
            role.as_str(),
            "--timeout=20s",
        ]);
    }
    let (run, events) = fleet.watched(|fleet| fleet.run(&["uninstall", "gathered/shop", "--yes"]));
    run.ended_with(0);
    let roles = deleted(&events).filter(|object| object.resource == "clusterroles");
    let names: Vec<&str> = roles.map(|object| object.name.as_str()).collect();
    assert_eq!(names.len(), 2 * ROLES, "{names:?}");
    let (first, last) = names.split_at(ROLES);
    assert!(
        first.iter().all(|name| !name.ends_with(":part")),
        "{names:?}"
    );
    assert!(last.iter().all(|name| name.ends_with(":part")), "{names:?}");
    assert!(!has_state(&fleet));
    // An empty role without an owner would block it.
    fleet.applied();
    for whole in &wholes {
        let uid = fleet.field(&["clusterrole", whole], "{.metadata.uid}");
        assert!(!uid.is_empty(), "{whole}");
    }
}
