//! Upgrade of the example with upstream's real files.

use std::path::Path;
use std::time::Duration;

use jiff::Timestamp;
use pleach_testkit::isolated;
use pleach_testkit::repository::TestRepo;
use pleach_testkit::scene::Scene;
use pleach_testkit::upgrade::{Upgrade, is_recorded};
use pleach_testkit::world::Product;

use crate::{program, read};

const ENVIRONMENT: &str = "environments/test.yaml";
const PATIENCE: Duration = Duration::from_mins(1);

/// Additions to upstream's files: runtime objects as in the example, and fixes.
pub(crate) const PATCHES: &str = "
patches:
  - target: {kind: Deployment, name: virt-api}
    json: [{op: remove, path: /spec/template/spec/containers/0/ports/0}]    # 8443/TCP is there twice
";

fn repository() -> TestRepo {
    let example = Path::new(env!("CARGO_MANIFEST_DIR")).join("manifests/kubevirt/bundle.yaml");
    let bundle = std::fs::read_to_string(example).unwrap();
    let repo = TestRepo::new([
        (
            "pleach.yaml",
            "apiVersion: pleach.dev/v1alpha1\nkind: Repository\nid: upstream\n",
        ),
        (
            ENVIRONMENT,
            "apiVersion: pleach.dev/v1alpha1\nkind: Environment\n\
             releases: [{bundle: kubevirt, version: v0.11.0, namespace: kubevirt, timeout: 1m}]\n",
        ),
        ("manifests/kubevirt/bundle.yaml", &(bundle + PATCHES)),
    ])
    .unwrap();
    for version in ["v0.11.0", "v0.12.0", "v0.13.0"] {
        let text = read(&format!("kubevirt/modernised/{version}/kubevirt.yaml"));
        repo.write(format!("manifests/kubevirt/{version}/kubevirt.yaml"), text)
            .unwrap();
    }
    repo.commit("Install").unwrap();
    repo
}

const INSTANCE: &str = "apiVersion: kubevirt.io/v1alpha2\nkind: VirtualMachineInstance\nmetadata: {name: kept, namespace: default}\nspec: {}\n";

fn pin(repo: &TestRepo, from: &str, to: &str) {
    let pin = |version: &str| format!("version: {version}");
    repo.edit(ENVIRONMENT, &pin(from), &pin(to)).unwrap();
    repo.commit("Upgrade").unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn the_real_files_move_and_a_loss_of_data_is_refused() {
    if !isolated::inside("upgrade::the_real_files_move_and_a_loss_of_data_is_refused").unwrap() {
        return;
    }
    let mut scene = Scene::start(Product::kubevirt(), "kube-system")
        .await
        .unwrap();
    let repo = repository();
    let pleach = scene.program(program(), repo.path());
    let id = scene.cluster_id().unwrap();
    let args = ["apply", "test", "--yes", "--cluster-id", &id];
    pleach.run(&args).await.unwrap().ended_with(0).unwrap();
    scene.start_user(PATIENCE).await.unwrap();

    pin(&repo, "v0.11.0", "v0.12.0");
    let upgrade = Upgrade::watch(&scene, &pleach, "test", "kubevirt")
        .await
        .unwrap();
    upgrade.run.clone().ended_with(0).unwrap();
    upgrade.is_in_order("virt-api").unwrap();
    // Objects that git no longer has, objects of the pods, and a gate: policy and binding.
    assert_eq!(upgrade.deletes_what_it_saw().unwrap(), 15 + 2);
    scene.has_moved_to("kubevirt").await.unwrap();
    is_recorded(&scene.kubectl, "test.kubevirt", "v0.12.0", "kube-system").unwrap();
    scene.is_unchanged(&pleach, "test").await.unwrap();
    scene.world.more_writes(20, PATIENCE).await.unwrap();

    // The next version drops the API version of stored objects.
    let kept = repo.write("kept.yaml", INSTANCE).unwrap();
    scene.kubectl.apply(&[&kept]).unwrap();
    pin(&repo, "v0.12.0", "v0.13.0");
    let begun = Timestamp::now();
    let run = pleach.run(&["apply", "test", "--yes"]).await.unwrap();
    let requests = scene.audit().await.unwrap().since(begun);
    assert_eq!(
        requests.by_agent("pleach/").writes().to_string(),
        "",
        "{run}"
    );
    let run = run.ended_with(7).unwrap();
    assert!(run.says("storedVersions"), "{run}");
    // The objects that would be lost are named.
    assert!(
        run.says("VirtualMachineInstance.kubevirt.io/default/kept"),
        "{run}"
    );
    is_recorded(&scene.kubectl, "test.kubevirt", "v0.12.0", "kube-system").unwrap();
    scene.world.stop().await.unwrap();
}
