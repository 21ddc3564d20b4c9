//! The selector of a Service changes together with the labels of its pods: it has endpoints at all
//! times.

use crate::fleet::{Fleet, object_writes};
use crate::samples::{BUNDLE, deployment};
use crate::stages::nodes;

/// Returns a Deployment with two pods and one more label, and a Service.
fn app(label: &str, selector: &str) -> String {
    let labels = format!("metadata: {{labels: {{app: web, {label}}}}}");
    let workload = deployment("web")
        .replace("replicas: 0", "replicas: 2")
        .replace("metadata: {labels: {app: web}}", &labels);
    format!(
        "{workload}---\napiVersion: v1\nkind: Service\nmetadata: {{name: web}}\nspec: {{selector: {{{selector}}}, ports: [{{port: 80}}]}}\n"
    )
}

/// Returns which of the two objects an apply wrote, in order.
fn written(fleet: &Fleet, app: &str) -> Vec<&'static str> {
    fleet.write("manifests/web/app.yaml", app);
    fleet.commit();
    let (_, events) = fleet.watched(Fleet::applied);
    let writes = object_writes(&events);
    let kind_of = |line: &String| {
        let mut kinds = ["deployments", "services"].into_iter();
        kinds.find(|kind| line.contains(&format!(" {kind} selects/web ")))
    };
    writes.iter().filter_map(kind_of).collect()
}

#[test]
fn a_service_and_its_pods_change_one_after_the_other() {
    let release = "  - {name: web, bundle: web, namespace: selects, timeout: 40s}\n";
    let files = [
        ("manifests/web/bundle.yaml", BUNDLE.to_owned()),
        ("manifests/web/app.yaml", app("tier: a", "app: web")),
    ];
    let fleet = Fleet::on(nodes(), "selects", release, &files);
    fleet.create_namespace("selects");
    fleet.applied();
    // The previous selector matches the new pods.
    let plan = written(&fleet, &app("tier: b", "tier: b"));
    assert_eq!(plan, ["deployments", "services"]);
    // The new selector matches the previous pods.
    let plan = written(&fleet, &app("tier: c", "app: web"));
    assert_eq!(plan, ["services", "deployments"]);

    // Neither selector matches the other's pods, which is reported.
    fleet.write("manifests/web/app.yaml", &app("tier: d", "tier: d"));
    fleet.commit();
    fleet.applied();
    let apart = app("tier: e", "tier: e");
    fleet.write("manifests/web/app.yaml", &apart);
    fleet.commit();
    fleet
        .run(&["plan", "selects"])
        .ended_with(0)
        .says("the Service has no endpoints while only one of them is applied")
        .says("change it in two versions");
    assert_eq!(written(&fleet, &apart), ["deployments", "services"]);
    fleet.writes_nothing(Fleet::applied);
}
