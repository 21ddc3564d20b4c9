//! Uninstall of objects that custom stages applied.

use super::{fleet, has_state, take_out};
use crate::fleet::Fleet;
use crate::prune::deleted;
use crate::samples;

#[test]
fn what_stages_applied_goes_in_their_reverse_order_without_the_bundle() {
    let stages = "\
stages:
  - {name: agents, select: [{kind: Deployment, name: b}]}
  - {name: controllers, select: [{kind: Deployment, name: a}]}
  - {name: front, select: [{kind: Deployment, name: c}, {kind: ConfigMap, name: front}]}
";
    let parts = ["a", "b", "c", "plain"].map(samples::deployment);
    let maps = ["base", "front"].map(|name| samples::config_map(name, "v"));
    let all = [parts.join("---\n"), maps.join("---\n")].join("---\n");
    let fleet = fleet("backwards", &all);
    let bundle = format!("{}{stages}", samples::BUNDLE);
    fleet.write("manifests/shop/bundle.yaml", &bundle);
    fleet.commit();
    fleet.applied();
    let path = "{.status.record.memory.stages[*].name}";
    let release = ["release", "backwards.shop"];
    assert_eq!(fleet.field(&release, path), "agents controllers front");
    fleet.writes_nothing(Fleet::applied);

    // The next version has fewer objects, and its stages have other names.
    let bundle = bundle.replace("name: controllers", "name: middle");
    fleet.write("manifests/shop/bundle.yaml", &bundle);
    fleet.commit();
    fleet.applied();
    assert_eq!(fleet.field(&release, path), "agents middle front");
    take_out(&fleet);
    let (run, events) = fleet.watched(|fleet| fleet.run(&["uninstall", "backwards/shop", "--yes"]));
    run.ended_with(0);
    let names = |resource: &str| -> Vec<String> {
        let of_kind = deleted(&events).filter(|object| object.resource == resource);
        of_kind.map(|object| object.name.clone()).collect()
    };
    assert_eq!(names("deployments"), ["c", "a", "b", "plain"]);
    assert_eq!(names("configmaps"), ["front", "base"]);
    assert!(!has_state(&fleet));
}
