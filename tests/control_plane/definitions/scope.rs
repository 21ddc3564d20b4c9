//! A CRD changes from namespaced to cluster-scoped.

use serde_json::Value;

use super::{definition, fleet, gear, group, upgrade};
use crate::fleet::Fleet;

/// Verifies that the objects of the release exist again under the new CRD.
fn rescoped(environment: &'static str, before: &str, after: &str) {
    let g = group(environment);
    let release = |scope: &str| {
        let scope = format!("scope: {scope}");
        let definition = definition(&g, &["v1"], &["a"]).replace("scope: Namespaced", &scope);
        format!("{definition}---\n{}", gear(&g, "v1", "ours", "{a: x}"))
    };
    let fleet = fleet(environment, &release(before), &release(after));
    upgrade(&fleet);
    fleet
        .writes_nothing(|fleet| fleet.apply().ended_with(7))
        .says(&format!(
            "its scope is {before} and cannot change to {after} while the CRD exists"
        ))
        .says("1 object is lost with it");

    fleet.extend_environment(&format!(
        "consent:\n  - {{action: recreate, kind: CustomResourceDefinition, name: gears.{g}, release: web, from: v1.0.0, to: v1.1.0}}\n"
    ));
    fleet.commit();
    fleet.applied();
    // Use the path, because kubectl caches scopes.
    let list = fleet.kubectl(&["get", "--raw", &format!("/apis/{g}/v1/gears")]);
    let list: Value = serde_json::from_str(&list).unwrap();
    let all = list["items"].as_array().unwrap();
    let names: Vec<&Value> = all.iter().map(|gear| &gear["metadata"]["name"]).collect();
    assert_eq!(names, ["ours"]);
    assert_eq!(all[0]["spec"]["a"], "x");
    let namespace = &all[0]["metadata"]["namespace"];
    assert_eq!(namespace.is_string(), after == "Namespaced");
    fleet.writes_nothing(Fleet::applied);
}

#[test]
fn objects_leave_their_namespaces_with_another_definition() {
    rescoped("unscoped", "Namespaced", "Cluster");
}

#[test]
fn objects_get_a_namespace_with_another_definition() {
    rescoped("scoped", "Cluster", "Namespaced");
}
