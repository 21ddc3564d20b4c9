//! A Service whose selector changes together with the labels of its pods: somebody
//! is behind it all the time.

use crate::fleet::{Fleet, object_writes};
use crate::samples::{BUNDLE, deployment};
use crate::stages::nodes;

/// Two pods with one more label, and a Service.
fn app(label: &str, selector: &str) -> String {
    let labels = format!("metadata: {{labels: {{app: web, {label}}}}}");
    let workload = deployment("web")
        .replace("replicas: 0", "replicas: 2")
        .replace("metadata: {labels: {app: web}}", &labels);
    format!(
        "{workload}---\napiVersion: v1\nkind: Service\nmetadata: {{name: web}}\nspec: {{selector: {{{selector}}}, ports: [{{port: 80}}]}}\n"
    )
}

/// What of the two an apply wrote, in order.
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
    fleet.kubectl(&["create", "namespace", "selects"]);
    fleet.applied();
    // The former selector finds the new pods.
    let plan = written(&fleet, &app("tier: b", "tier: b"));
    assert_eq!(plan, ["deployments", "services"]);
    // The new one finds the former pods.
    let plan = written(&fleet, &app("tier: c", "app: web"));
    assert_eq!(plan, ["services", "deployments"]);

    // Neither finds the pods of the other: that is told.
    fleet.write("manifests/web/app.yaml", &app("tier: d", "tier: d"));
    fleet.commit();
    fleet.applied();
    let apart = app("tier: e", "tier: e");
    fleet.write("manifests/web/app.yaml", &apart);
    fleet.commit();
    fleet
        .run(&["plan", "selects"])
        .ended_with(0)
        .says("nothing is behind it while only one of them is written")
        .says("go there in two versions");
    assert_eq!(written(&fleet, &apart), ["deployments", "services"]);
    fleet.writes_nothing(Fleet::applied);
}
