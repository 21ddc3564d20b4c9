//! The controller as a pod: installed by `pleach bootstrap`, killed, drained and upgraded by itself.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, ensure};
use pleach_testkit::audit::AuditLog;
use pleach_testkit::hosted::Hosted;
use pleach_testkit::isolated::inside_nodes;
use pleach_testkit::program::Program;
use pleach_testkit::proof;
use pleach_testkit::repository::{TestRepo, noise};
use pleach_testkit::throwaway::isolate::API_ADDRESS;
use pleach_testkit::throwaway::nodes::POD_IMAGE;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::{Cluster, install};

/// Account of the controller.
const ACCOUNT: &str = "system:serviceaccount:pleach:pleach";
const PLEACH: &str = env!("CARGO_BIN_EXE_pleach");
/// Memory limit of the upgraded controller.
const MEMORY: &str = "128Mi";
/// Command that fetches, and waits until the controller has reconciled the commit.
const SYNC: [&str; 5] = ["sync", "shop", "--wait", "--timeout", "90s"];

/// Files of an image with the program under test.
///
/// The program is not static here, so its libraries are in the image. The released image has the
/// same users and folders (`dist/image.sh`).
pub(crate) struct Image {
    root: TempDir,
}

impl Image {
    pub(crate) fn new() -> anyhow::Result<Self> {
        let image = Self {
            root: tempfile::tempdir()?,
        };
        install(Path::new(PLEACH), &image.path("usr/local/bin/pleach"))?;
        // Nodes unpack the image twice, and debug information is most of it.
        let program = image.path("usr/local/bin/pleach");
        run(Command::new("strip").arg(program))?;
        for library in libraries()? {
            install(Path::new(&library), &image.path(&library))?;
        }
        let authorities = "etc/ssl/certs/ca-certificates.crt";
        install(&Path::new("/").join(authorities), &image.path(authorities))?;
        for folder in ["home/nonroot", "tmp"] {
            run(Command::new("install")
                .args([
                    "--directory",
                    "--owner=65532",
                    "--group=65532",
                    "--mode=700",
                ])
                .arg(image.path(folder)))?;
        }
        run(Command::new("chmod").arg("755").arg(image.root.path()))?;
        Ok(image)
    }

    fn path(&self, path: &str) -> PathBuf {
        self.root.path().join(path.trim_start_matches('/'))
    }

    /// Publishes the image. Each tag has another digest.
    pub(crate) fn publish(&self, cluster: &Cluster, tag: &str) -> anyhow::Result<String> {
        let config = json!({
            "Entrypoint": ["/usr/local/bin/pleach"],
            "User": "65532:65532",
            "WorkingDir": "/home/nonroot",
            "Env": [
                "HOME=/home/nonroot",
                "PATH=/usr/local/bin",
                "SSL_CERT_FILE=/etc/ssl/certs/ca-certificates.crt",
            ],
            "Labels": { "tag": tag },
        });
        let tag = format!("pleach:{tag}");
        cluster.registry.publish(&tag, self.root.path(), &config)
    }
}

/// Publishes the image of a release, an archive with an OCI layout that `PLEACH_IMAGE` names.
#[expect(
    clippy::disallowed_methods,
    reason = "a test has no arguments of its own"
)]
fn publish_released(cluster: &Cluster) -> anyhow::Result<Option<String>> {
    let Some(archive) = std::env::var_os("PLEACH_IMAGE").filter(|path| !path.is_empty()) else {
        return Ok(None);
    };
    let layout = tempfile::tempdir()?;
    let mut tar = Command::new("tar");
    run(tar
        .arg("--extract")
        .arg("--file")
        .arg(archive)
        .arg("--directory")
        .arg(layout.path()))?;
    let image = cluster
        .registry
        .publish_layout("pleach:released", layout.path());
    image.map(Some)
}

/// Returns the paths of the libraries that the program loads, with the loader.
fn libraries() -> anyhow::Result<Vec<String>> {
    let printed = run(Command::new("ldd").arg(PLEACH))?;
    let words = printed
        .split_whitespace()
        .filter(|word| word.starts_with('/'));
    Ok(words.map(str::to_owned).collect())
}

fn run(command: &mut Command) -> anyhow::Result<String> {
    let output = command
        .output()
        .with_context(|| format!("failed to start {command:?}"))?;
    ensure!(output.status.success(), "{command:?}: {output:?}");
    Ok(String::from_utf8(output.stdout)?)
}

/// Cluster whose controller follows a repository.
struct Installed {
    cluster: Cluster,
    hosted: Hosted,
    /// Clone of the repository.
    repo: TestRepo,
    pleach: Program,
    id: String,
}

impl Installed {
    /// Runs `pleach bootstrap` with an image. Branch `env/shop` exists before, so that the first fetch
    /// of the controller finds it.
    async fn bootstrap(cluster: Cluster, image: &str) -> anyhow::Result<Self> {
        let repo = TestRepo::new::<&str, &str>([])?;
        let installed = Self {
            hosted: Hosted::start(API_ADDRESS, "Xq7hush9vB2")?,
            id: proof::cluster_id(&cluster.kubectl)?,
            pleach: Program::new(Path::new(PLEACH), repo.path(), cluster.plane.kubeconfig()),
            repo,
            cluster,
        };
        let Self { hosted, repo, .. } = &installed;
        repo.write(
            "pleach.yaml",
            "apiVersion: pleach.dev/v1alpha1\nkind: Repository\nid: fleet\n",
        )?;
        installed.push("HEAD:main");
        repo.git(&["switch", "--quiet", "--create", "shop"])?;
        installed.push_shop(1);
        let token = repo.write(".git/token", hosted.token())?;
        let authority = repo.write(".git/ca.crt", hosted.certificate())?;
        let args = [
            "bootstrap",
            "--url",
            &hosted.url(),
            "--token-file",
            token.to_str().context("text")?,
            "--ca-file",
            authority.to_str().context("text")?,
            "--allow-namespaces",
            "team-*",
            "--image",
            image,
            "--yes",
            "--cluster-id",
            &installed.id,
        ];
        let run = installed.pleach.run(&args).await?.ended_with(0)?;
        let commit = hosted.git(&["rev-parse", "main"])?;
        let end = format!("follows pleach/pleach is at main {}", &commit[..7]);
        ensure!(run.says(&end), "{run}");
        let path = hosted.path();
        repo.git(&[
            "fetch",
            "--quiet",
            path.to_str().context("text")?,
            "main:main",
        ])?;
        Ok(installed)
    }

    /// Returns the names of all ready pods of the controller and their nodes.
    fn replicas(&self) -> anyhow::Result<Vec<(String, String)>> {
        let list = ["get", "pods", "-n", "pleach"];
        let pods = self.cluster.kubectl.list(&list)?;
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        Ok(pods
            .iter()
            .filter(|pod| pod["metadata"]["deletionTimestamp"].is_null())
            .filter(|pod| pod["status"]["containerStatuses"][0]["ready"] == true)
            .map(|pod| {
                (
                    text(&pod["metadata"]["name"]),
                    text(&pod["spec"]["nodeName"]),
                )
            })
            .collect())
    }

    /// Returns how often the containers of the controller were started again.
    fn restarts(&self) -> anyhow::Result<Vec<u64>> {
        let pods = self
            .cluster
            .kubectl
            .list(&["get", "pods", "-n", "pleach"])?;
        let count = |pod: &Value| pod["status"]["containerStatuses"][0]["restartCount"].as_u64();
        Ok(pods.iter().filter_map(count).collect())
    }

    fn until_replicas(&self, count: usize) -> Vec<(String, String)> {
        self.cluster.until("ready replicas", || {
            let replicas = self.replicas()?;
            Ok((replicas.len() == count).then_some(replicas))
        })
    }

    fn push(&self, refspec: &str) {
        self.repo.commit("change").unwrap();
        let path = self.hosted.path();
        self.repo
            .git(&["push", "--quiet", path.to_str().unwrap(), refspec])
            .unwrap();
    }

    /// Pushes a Deployment with this number of replicas to its environment.
    fn push_shop(&self, replicas: usize) {
        let environment = format!(
            "apiVersion: pleach.dev/v1alpha1\nkind: Environment\ncluster: {{id: {}}}\nreleases:\n\
             - {{name: web, bundle: web, namespace: team-web}}\n",
            self.id
        );
        let deployment = format!(
            "apiVersion: apps/v1\nkind: Deployment\nmetadata: {{name: web}}\n\
             spec:\n  replicas: {replicas}\n  selector: {{matchLabels: {{app: web}}}}\n  template:\n    \
             metadata: {{labels: {{app: web}}}}\n    spec: {{terminationGracePeriodSeconds: 1, \
             containers: [{{name: web, image: \"{POD_IMAGE}\"}}]}}\n"
        );
        let header = "apiVersion: pleach.dev/v1alpha1\n";
        for (path, text) in [
            ("environments/shop.yaml", environment),
            (
                "manifests/web/bundle.yaml",
                format!("{header}kind: Bundle\n"),
            ),
            ("manifests/web/web.yaml", deployment),
        ] {
            self.repo.write(path, text).unwrap();
        }
        self.push("HEAD:env/shop");
    }

    /// Waits until this number of replicas is ready.
    fn until_shop(&self, replicas: usize) {
        self.cluster.until("the pushed number of replicas", || {
            let get = ["get", "deployment", "web", "-n", "team-web"];
            let web = self.cluster.kubectl.json(&get)?;
            Ok((web["status"]["readyReplicas"] == replicas).then_some(()))
        });
    }

    /// Pushes a number of replicas, and waits until the controller has applied it.
    async fn follows(&self, replicas: usize) {
        self.push_shop(replicas);
        let run = self.pleach.run(&SYNC).await.unwrap();
        run.ended_with(0).unwrap();
        self.until_shop(replicas);
    }

    /// Pushes a commit that needs more memory than the controller has, and expects a refusal.
    async fn refuses_a_large_commit(&self) {
        let contents = noise(17, 100_000);
        let maps: Vec<String> = (0..100)
            .map(|number| {
                format!(
                    "apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: map-{number}}}\n\
                     data: {{key: \"{contents}\"}}\n"
                )
            })
            .collect();
        let path = "manifests/web/large.yaml";
        self.repo.write(path, maps.join("---\n")).unwrap();
        self.push("HEAD:env/shop");
        let run = self.pleach.run(&SYNC).await.unwrap();
        let run = run.ended_with(3).unwrap();
        assert!(run.says("exceed the memory or time limit"), "{run}");
        self.repo.remove(path).unwrap();
    }

    /// Changes the image and the memory limit of the controller by a commit, and waits until only
    /// that image runs and the controller has recorded the commit.
    async fn upgrade(&self, from: &str, to: &str) {
        self.repo.git(&["switch", "--quiet", "main"]).unwrap();
        self.repo
            .edit("environments/pleach.yaml", from, to)
            .unwrap();
        let secrets = "secrets: [git]\n";
        let limited = format!("{secrets}      resources: {{limits: {{memory: {MEMORY}}}}}\n");
        self.repo
            .edit("environments/pleach.yaml", secrets, &limited)
            .unwrap();
        self.push("HEAD:main");
        let commit = self.hosted.git(&["rev-parse", "main"]).unwrap();
        let run = self.pleach.run(&["sync", "pleach"]).await.unwrap();
        run.ended_with(0).unwrap();
        self.repo.git(&["switch", "--quiet", "shop"]).unwrap();
        self.cluster.until("the commit of the upgrade", || {
            let get = ["get", "releases.pleach.dev", "pleach.pleach"];
            let record = self.cluster.kubectl.json(&get)?;
            let revision = &record["status"]["record"]["installed"]["revision"];
            Ok((*revision == commit).then_some(()))
        });
        self.cluster.until("pods of the new image only", || {
            let pods = self
                .cluster
                .kubectl
                .list(&["get", "pods", "-n", "pleach"])?;
            let is_new = |pod: &Value| {
                pod["spec"]["containers"][0]["image"] == to
                    && pod["status"]["containerStatuses"][0]["ready"] == true
            };
            Ok((pods.len() == 2 && pods.iter().all(is_new)).then_some(()))
        });
    }

    /// Fails if the API server refused a request of the controller.
    fn nothing_was_refused(&self) {
        let log = AuditLog::new(self.cluster.plane.audit_log());
        let events = log.events().unwrap();
        let of_controller = events.filter(|event| event.user.username == ACCOUNT);
        assert!(of_controller.0.len() > 20, "{of_controller}");
        let refused = of_controller.filter(|event| matches!(event.code(), 401 | 403));
        assert_eq!(refused.to_string(), "");
    }
}

/// Returns the ids of processes of the controllers, which are pods of this machine.
#[expect(clippy::disallowed_methods, reason = "the process list")]
fn processes() -> anyhow::Result<Vec<u32>> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir("/proc")? {
        let path = entry?.path();
        let id = path
            .file_name()
            .and_then(|name| name.to_str()?.parse().ok());
        let (Some(id), Ok(line)) = (id, std::fs::read(path.join("cmdline"))) else {
            continue;
        };
        let line = String::from_utf8_lossy(&line).replace('\0', " ");
        if line.starts_with("/usr/local/bin/pleach run ") {
            found.push(id);
        }
    }
    Ok(found)
}

/// Checks the user and the root file system of a process.
#[expect(clippy::disallowed_methods, reason = "the process list")]
fn is_restricted(process: u32) {
    let file = |name: &str| std::fs::read_to_string(format!("/proc/{process}/{name}")).unwrap();
    let status = file("status");
    for line in [
        "Uid:\t65532\t65532\t65532\t65532",
        "CapEff:\t0000000000000000",
        "Seccomp:\t2",
    ] {
        assert!(status.contains(line), "{line}\n{status}");
    }
    let mounts = file("mounts");
    let root = mounts
        .lines()
        .find(|line| line.split(' ').nth(1) == Some("/"));
    let options = root
        .and_then(|line| line.split(' ').nth(3))
        .unwrap_or_default();
    assert!(options.starts_with("ro,"), "{mounts}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bootstrapped_controller_survives_kills_drains_and_its_own_upgrade() {
    let test = "controller::a_bootstrapped_controller_survives_kills_drains_and_its_own_upgrade";
    if !inside_nodes(test).unwrap() {
        return;
    }
    let cluster = Cluster::start(2).await.unwrap();
    let image = Image::new().unwrap();
    let first = match publish_released(&cluster).unwrap() {
        Some(released) => released,
        None => image.publish(&cluster, "1").unwrap(),
    };
    let second = image.publish(&cluster, "2").unwrap();
    let installed = Installed::bootstrap(cluster, &first).await.unwrap();
    installed.until_replicas(2);
    let processes = processes().unwrap();
    assert_eq!(processes.len(), 2);
    processes.iter().copied().for_each(is_restricted);

    installed.until_shop(1);
    installed.follows(2).await;
    installed.nothing_was_refused();

    // The other replica continues when one is killed, and the kubelet starts it again.
    let kill = format!("kill -s KILL {}", processes[0]);
    run(Command::new("sh").args(["-c", &kill])).unwrap();
    installed.follows(3).await;
    installed.until_replicas(2);

    // The drain of a node leaves one replica at a time, and the pods move.
    let node = installed.until_replicas(2)[0].1.clone();
    let drain = ["drain", &node, "--delete-emptydir-data", "--timeout=90s"];
    installed.cluster.kubectl.run(&drain).unwrap();
    let replicas = installed.until_replicas(2);
    assert!(
        replicas.iter().all(|(_, other)| *other != node),
        "{replicas:?}"
    );
    installed.follows(2).await;
    installed.cluster.kubectl.run(&["uncordon", &node]).unwrap();

    // The controller replaces itself with the image of a commit.
    installed.upgrade(&first, &second).await;
    installed.follows(1).await;

    // A commit that is too large for its memory limit ends no container.
    installed.refuses_a_large_commit().await;
    installed.follows(2).await;
    assert_eq!(installed.restarts().unwrap(), [0, 0]);
    installed.nothing_was_refused();
}
