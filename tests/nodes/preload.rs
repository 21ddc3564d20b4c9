//! Preloading by real kubelets: image volumes that are pulled from a registry, and one that is not
//! there.

use std::path::Path;

use pleach_testkit::isolated::inside_nodes;
use pleach_testkit::program::Program;
use pleach_testkit::proof;
use pleach_testkit::repository::TestRepo;
use pleach_testkit::throwaway::nodes::POD_IMAGE;
use serde_json::json;

use crate::Cluster;
use crate::controller::Image;

/// Registry of the test images, as nodes name it.
const REGISTRY: &str = "127.0.0.1:5000";

fn bundle(runner: &str, space: &str) -> String {
    format!(
        "apiVersion: pleach.dev/v1alpha1\nkind: Bundle\nstages:\n  - name: images\n    before: [definitions]\n    \
         preload: {{images: release, runner: \"{runner}\", parallel: 2, space: {space}, timeout: 2m}}\n"
    )
}

/// Returns a Deployment without pods.
fn app(name: &str, image: &str) -> String {
    format!(
        "apiVersion: apps/v1\nkind: Deployment\nmetadata: {{name: {name}}}\nspec:\n  replicas: 0\n  \
         selector: {{matchLabels: {{app: {name}}}}}\n  template:\n    metadata: {{labels: {{app: {name}}}}}\n    \
         spec: {{containers: [{{name: app, image: \"{image}\"}}]}}\n"
    )
}

#[tokio::test(flavor = "multi_thread")]
async fn images_are_pulled_and_a_missing_one_is_named() {
    if !inside_nodes("preload::images_are_pulled_and_a_missing_one_is_named").unwrap() {
        return;
    }
    let cluster = Cluster::start(1).await.unwrap();
    let kubectl = &cluster.kubectl;
    let image = Image::new().unwrap();
    let runner = image.publish(&cluster, "1").unwrap();
    // An image of its own, which nothing else pulls.
    let root = tempfile::tempdir().unwrap();
    let program = pleach_testkit::control_plane::binaries()
        .find("pod")
        .unwrap();
    crate::install(&program, &root.path().join("data")).unwrap();
    let config = json!({ "Labels": { "purpose": "preload" } });
    let data = cluster.registry.publish("data:1", root.path(), &config);
    data.unwrap();
    let id = proof::cluster_id(kubectl).unwrap();
    let environment = format!(
        "apiVersion: pleach.dev/v1alpha1\nkind: Environment\ncluster: {{id: {id}}}\nreleases:\n\
         - {{name: web, bundle: web, namespace: web, timeout: 60s, failFast: 2s}}\n"
    );
    let wanted = format!("{REGISTRY}/data:1");
    let repo = TestRepo::new([
        (
            "pleach.yaml",
            "apiVersion: pleach.dev/v1alpha1\nkind: Repository\nid: nodes\n",
        ),
        ("environments/dev.yaml", environment.as_str()),
        ("manifests/web/bundle.yaml", &bundle(&runner, "1Ki")),
        ("manifests/web/app.yaml", &app("app", &wanted)),
    ])
    .unwrap();
    repo.commit("start").unwrap();
    // Pods that preload are allowed where only restricted ones are.
    kubectl.run(&["create", "namespace", "web"]).unwrap();
    let restricted = "pod-security.kubernetes.io/enforce=restricted";
    kubectl
        .run(&["label", "namespace", "web", restricted])
        .unwrap();
    let program = Path::new(env!("CARGO_BIN_EXE_pleach"));
    let pleach = Program::new(program, repo.path(), cluster.plane.kubeconfig());
    let apply = ["apply", "dev", "--yes"];
    let images = || -> Vec<String> {
        let nodes = kubectl.list(&["get", "nodes"]).unwrap();
        let images = nodes.iter().flat_map(|node| {
            let images = node["status"]["images"].as_array();
            images.cloned().unwrap_or_default()
        });
        let names = images.flat_map(|image| image["names"].as_array().cloned().unwrap_or_default());
        names
            .filter_map(|name| name.as_str().map(str::to_owned))
            .collect()
    };

    pleach.run(&apply).await.unwrap().ended_with(0).unwrap();
    // The kubelet reports images with its next status.
    cluster.until("the image is on the node", || {
        Ok(images().contains(&wanted).then_some(()))
    });
    // A deleted pod ends after its grace period.
    let no_pods_are_left = || {
        cluster.until("the pods are gone", || {
            let pods = kubectl.list(&["get", "pods", "-n", "web"])?;
            Ok(pods.is_empty().then_some(()))
        });
    };
    no_pods_are_left();

    // The second version has an image that does not exist, beside others that do.
    let absent = format!("{REGISTRY}/absent:1");
    repo.write("manifests/web/app.yaml", app("app", &absent))
        .unwrap();
    let other = app("other", POD_IMAGE);
    repo.write("manifests/web/other.yaml", other).unwrap();
    repo.commit("upgrade").unwrap();
    let run = pleach.run(&apply).await.unwrap().ended_with(6).unwrap();
    assert!(run.says(&format!("not preloaded: {absent}: ")), "{run}");
    no_pods_are_left();
    let deployments = kubectl.list(&["get", "deployments", "-n", "web"]).unwrap();
    assert_eq!(deployments.len(), 1, "nothing was changed yet");

    // A node has both figures in the refusal of too little space.
    repo.write("manifests/web/bundle.yaml", bundle(&runner, "9000Ti"))
        .unwrap();
    repo.commit("space").unwrap();
    let run = pleach.run(&apply).await.unwrap().ended_with(6).unwrap();
    assert!(
        run.says("are free for images, and `space` needs 9000Ti"),
        "{run}"
    );
}
