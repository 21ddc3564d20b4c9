//! An upgrade is followed on the web page in a real browser, from the push to its end.

#![expect(
    clippy::disallowed_methods,
    reason = "writes inside its own folder, and pictures where the caller wants them"
)]

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Child;
use std::time::Duration;

use pleach_testkit::browser::{Browser, Window};
use pleach_testkit::demo::copy_example;
use pleach_testkit::isolated;
use pleach_testkit::repository::TestRepo;
use pleach_testkit::scene::Scene;
use pleach_testkit::world::Product;

const ENVIRONMENT: &str = "environments/demo.yaml";
const BUNDLE: &str = "manifests/kubevirt/bundle.yaml";
const OLD: &str = "version: v0.11.0";
const NEW: &str = "version: v0.12.0";
/// Agents, then controllers, then the API, behind a gate.
const STAGES: &str = "stages:
  - {name: agents, select: [{kind: DaemonSet, name: virt-handler}]}
  - {name: controllers, select: [{kind: Deployment, name: virt-controller}]}
  - {name: api, select: [{kind: Deployment, name: virt-api}]}
gates: [{name: handover, groups: [kubevirt.io], from: api}]
moves: ";
const PATIENCE: Duration = Duration::from_mins(1);
const SITE: &str = "http://127.0.0.1:8081";
const DESK: Window = Window {
    width: 1280,
    height: 900,
    is_dark: false,
};
const PHONE: Window = Window {
    width: 360,
    height: 800,
    is_dark: true,
};

/// Running controller. Dropping it kills it.
struct Controller(Child);

impl Drop for Controller {
    fn drop(&mut self) {
        // The process could have ended by itself.
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

/// Browser of a user who follows the upgrade.
struct Reader {
    browser: Browser,
    /// Folder for pictures, from `PLEACH_PICTURES`.
    pictures: Option<PathBuf>,
}

impl Reader {
    async fn start() -> Self {
        let browser = Browser::start().await.unwrap();
        browser.resize(DESK).await.unwrap();
        Self {
            browser,
            pictures: std::env::var_os("PLEACH_PICTURES").map(PathBuf::from),
        }
    }

    /// Waits on a page until it shows all texts.
    async fn sees(&self, path: &str, texts: &[&str]) {
        self.browser.open(&format!("{SITE}{path}")).await.unwrap();
        for text in texts {
            self.browser.until(text).await.unwrap();
        }
    }

    /// Checks the page on a desk and a phone, and takes pictures if they are wanted.
    async fn checks(&self, moment: &str) {
        for (window, suffix) in [(PHONE, "-phone"), (DESK, "")] {
            self.browser.resize(window).await.unwrap();
            let violations = self.browser.violations().await.unwrap();
            assert!(violations.is_empty(), "{moment}: {violations:#?}");
            assert!(!self.browser.overflows().await.unwrap(), "{moment}");
            if let Some(folder) = &self.pictures {
                let path = folder.join(format!("page-{moment}{suffix}.png"));
                self.browser.save_screenshot(&path).await.unwrap();
            }
        }
        let console = self.browser.console().await.unwrap();
        assert!(console.is_empty(), "{moment}: {console:#?}");
    }
}

fn push(repo: &TestRepo, message: &str) {
    repo.commit(message).unwrap();
    repo.git(&["branch", "--force", "env/demo"]).unwrap();
}

/// Starts a controller that follows the branch of the environment and serves the page.
fn start(scene: &Scene, repo: &TestRepo, folder: &Path) -> Controller {
    let configuration = format!(
        "apiVersion: pleach.dev/v1alpha1\nkind: Controller\nui: {{listen: 127.0.0.1:8081, auth: none}}\n\
         repositories:\n  - name: fleet\n    url: {}\n    environments:\n      - name: demo\n        branch: env/demo\n        \
         allow: all\n        cluster: {{id: {}, kubeconfigFile: {}}}\n",
        repo.path().display(),
        scene.cluster_id().unwrap(),
        scene.proxy.kubeconfig().display(),
    );
    let file = folder.join("controller.yaml");
    std::fs::write(&file, configuration).unwrap();
    let program = scene.program(Path::new(env!("CARGO_BIN_EXE_pleach")), repo.path());
    let log = File::create(folder.join("log")).unwrap();
    let args = ["run", "--config", file.to_str().unwrap()];
    Controller(program.start(&args, log).unwrap())
}

#[tokio::test(flavor = "multi_thread")]
async fn an_upgrade_is_followed_in_the_browser() {
    if !isolated::inside("browser::an_upgrade_is_followed_in_the_browser").unwrap() {
        return;
    }
    let mut scene = Scene::start(Product::kubevirt(), "kube-system")
        .await
        .unwrap();
    let repo = TestRepo::new::<&str, &str>([]).unwrap();
    copy_example(Path::new(env!("CARGO_MANIFEST_DIR")), repo.path()).unwrap();
    repo.edit(ENVIRONMENT, "releases:", "sync: {interval: 2s}\nreleases:")
        .unwrap();
    push(&repo, "Install");
    let folder = tempfile::tempdir().unwrap();
    let _controller = start(&scene, &repo, folder.path());
    let reader = Reader::start().await;

    reader.sees("/", &["kubevirt", "v0.11.0", "in sync"]).await;
    reader.sees("/releases/demo/kubevirt", &["in sync"]).await;

    // No node has this label, so the new pods of the last stage are never scheduled.
    let broken = format!(
        "{NEW}
    patches:
      - target: {{kind: Deployment, name: virt-api}}
        merge: {{spec: {{template: {{spec: {{nodeSelector: {{nowhere: \"true\"}}}}}}}}}}"
    );
    repo.edit(BUNDLE, "moves: ", STAGES).unwrap();
    repo.edit(ENVIRONMENT, OLD, &broken).unwrap();
    push(&repo, "Upgrade");
    // The page is not reloaded: the events of the controller change it.
    let waits = ["stage api", "virt-api", "nodes are available"];
    for text in waits {
        reader.browser.until(text).await.unwrap();
    }
    reader.checks("waits").await;
    reader.sees("/", &["v0.12.0", "virt-api"]).await;
    reader.checks("overview").await;
    reader
        .sees(
            "/releases/demo/kubevirt/plan",
            &["agents", "controllers", "api"],
        )
        .await;
    reader.checks("plan").await;
    reader
        .sees(
            "/releases/demo/kubevirt/graph",
            &["agents", "controllers", "api"],
        )
        .await;
    reader.checks("graph").await;

    reader.sees("/releases/demo/kubevirt", &["virt-api"]).await;
    repo.edit(ENVIRONMENT, &broken, NEW).unwrap();
    push(&repo, "Schedule the pods");
    reader.browser.until("in sync").await.unwrap();
    reader.checks("done").await;
    scene.start_user(PATIENCE).await.unwrap();
    scene.has_moved_to("kubevirt").await.unwrap();
}
