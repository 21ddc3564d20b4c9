//! Environment of the benchmark: a control plane, a repository, manifests, and the simulated
//! controllers.

use std::path::PathBuf;
use std::process::Command;

use crate::throwaway::{ControlPlane, Network, Options};
use anyhow::{Context as _, ensure};
use futures::stream::{self, StreamExt as _, TryStreamExt as _};
use http::Request;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use pleach_model::object::yaml;
use serde_json::{Value, json};

use super::measure::{self, Server, Usage};
use super::report::{Sample, Task, Tool};
use super::workload::{self, NAMESPACES, Workload};
use crate::audit::AuditLog;
use crate::control_plane::binaries;
use crate::kubectl::Kubectl;
use crate::proof;
use crate::repository::TestRepo;

/// Folder of the manifests in the repository. Both programs read it.
pub(super) const OBJECTS: &str = "manifests/app/v1.0.0";

/// Prefix of the namespaces with unrelated objects.
const FOREIGN: &str = "other";

/// Maximum number of concurrent requests of the benchmark itself.
const CONCURRENCY: usize = 32;

/// Control plane with a repository to apply to it.
pub struct Arena {
    workload: Workload,
    pleach: PathBuf,
    repository: TestRepo,
    client: Client,
    server: Server,
    folder: tempfile::TempDir,
    control_plane: ControlPlane,
}

impl Arena {
    /// Starts a control plane with the namespaces of a workload and the unrelated objects.
    pub async fn start(pleach: &std::path::Path, workload: Workload) -> anyhow::Result<Self> {
        // Fails if a provider is already installed, which is fine.
        drop(rustls::crypto::ring::default_provider().install_default());
        let control_plane = ControlPlane::start(Options {
            binaries: binaries(),
            controllers: false,
            scheduler: false,
            nodes: 0,
            network: Network::Host,
        })
        .await?;
        let config = Config::from_custom_kubeconfig(
            Kubeconfig::read_from(control_plane.kubeconfig())?,
            &KubeConfigOptions::default(),
        )
        .await?;
        let kubectl = Kubectl::new(control_plane.kubectl(), control_plane.kubeconfig());
        let id = proof::cluster_id(&kubectl)?;
        let arena = Self {
            workload,
            pleach: pleach.to_owned(),
            repository: repository(&id)?,
            client: Client::try_from(config)?,
            server: Server::in_folder(control_plane.dir())?,
            folder: tempfile::Builder::new().prefix("pleach-bench-").tempdir()?,
            control_plane,
        };
        arena.prepare().await?;
        Ok(arena)
    }

    async fn prepare(&self) -> anyhow::Result<()> {
        let groups: &[&str] = if self.workload.foreign > 0 {
            &["bench", FOREIGN]
        } else {
            &["bench"]
        };
        for group in groups {
            for number in 0..NAMESPACES {
                let name = workload::namespace(group, number);
                let object =
                    json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}});
                self.post("api/v1/namespaces", &object).await?;
            }
        }
        let content = self.workload.content;
        let kinds = content.kinds();
        stream::iter(0..self.workload.foreign)
            .map(|number| async move {
                let text = workload::document(content, FOREIGN, number, 0);
                let documents = yaml::parse_documents(&text)
                    .map_err(|errors| anyhow::anyhow!("the workload is no YAML: {errors:?}"))?;
                let object = &documents[0].value;
                let namespace = object["metadata"]["namespace"].as_str().unwrap_or_default();
                let (api, plural) = kinds[number % kinds.len()];
                self.post(&format!("{api}/namespaces/{namespace}/{plural}"), object)
                    .await
            })
            .buffer_unordered(CONCURRENCY)
            .try_collect::<()>()
            .await
    }

    async fn post(&self, path: &str, object: &Value) -> anyhow::Result<()> {
        let request = Request::post(format!("/{path}"))
            .header("content-type", "application/json")
            .body(serde_json::to_vec(object)?)?;
        self.client.request::<Value>(request).await?;
        Ok(())
    }

    /// Writes a revision of the workload and commits it.
    pub fn write(&self, revision: usize) -> anyhow::Result<()> {
        for file in self.workload.files(revision) {
            self.repository
                .write(format!("{OBJECTS}/{}", file.name), file.text)?;
        }
        self.repository.commit(&format!("revision {revision}"))?;
        Ok(())
    }

    /// Runs a task with a tool and measures it.
    pub async fn measure(&self, tool: Tool, task: Task) -> anyhow::Result<Sample> {
        // Events of earlier requests can still be missing from the log.
        let log = AuditLog::new(self.control_plane.audit_log()).from_here()?;
        log.complete(&self.client).await?;
        let log = log.from_here()?;
        let before = self.server.cpu()?;
        let usage = self.run(tool, task)?;
        let server_cpu = self.server.cpu()?.saturating_sub(before);
        let events = log.complete(&self.client).await?;
        let events = events.by_agent(match tool {
            Tool::Pleach => "pleach/",
            Tool::Kubectl => "kubectl/",
        });
        let of_objects = events.writes().filter(|event| {
            let object = event.object_ref.as_ref();
            object.is_some_and(|object| object.namespace.starts_with("bench-"))
        });
        Ok(Sample {
            usage,
            server_cpu,
            object_writes: of_objects.0.len(),
            requests: events.summary(),
        })
    }

    fn run(&self, tool: Tool, task: Task) -> anyhow::Result<Usage> {
        let mut command = match tool {
            Tool::Pleach => self.pleach(match task {
                Task::FirstApply | Task::OnePercent => &["apply", "bench", "--yes", "--wait=none"],
                Task::NoOp => &["apply", "bench", "--yes"],
                Task::Diff => &["diff", "bench"],
            }),
            Tool::Kubectl => self.kubectl(match task {
                Task::FirstApply | Task::NoOp | Task::OnePercent => "apply",
                Task::Diff => "diff",
            }),
        };
        // kubectl returns 1 for differences.
        let good: &[i32] = match (tool, task) {
            (Tool::Kubectl, Task::Diff) => &[0, 1],
            _ => &[0],
        };
        measure::run(&mut command, &self.folder.path().join("output"), good)
    }

    fn pleach(&self, args: &[&str]) -> Command {
        let mut command = self.program(&self.pleach);
        command
            .args(args)
            .env("KUBECONFIG", self.control_plane.kubeconfig());
        command
    }

    fn kubectl(&self, verb: &str) -> Command {
        let mut command = self.program(self.control_plane.kubectl());
        command
            .arg("--kubeconfig")
            .arg(self.control_plane.kubeconfig())
            .args([verb, "--server-side", "--recursive", "--filename", OBJECTS]);
        command
    }

    fn program(&self, path: &std::path::Path) -> Command {
        let mut command = Command::new(path);
        command
            .env_clear()
            .env("PATH", "/usr/bin:/bin")
            .env("HOME", self.folder.path())
            .env("NO_COLOR", "1")
            .current_dir(self.repository.path());
        command
    }

    /// Completes the rollout: marks Deployments as rolled out and lets pleach verify them.
    pub async fn wait_until_idle(&self, tool: Tool) -> anyhow::Result<()> {
        for (api, plural) in self.workload.content.kinds() {
            if *plural == "deployments" {
                self.roll_out(&format!("{api}/{plural}")).await?;
            }
        }
        if tool == Tool::Pleach {
            let mut command = self.pleach(&["apply", "bench", "--yes"]);
            measure::run(&mut command, &self.folder.path().join("output"), &[0])?;
        }
        Ok(())
    }

    async fn roll_out(&self, path: &str) -> anyhow::Result<()> {
        let selector = "labelSelector=app.kubernetes.io%2Fpart-of%3Dbench";
        let list = self.get(&format!("/{path}?{selector}")).await?;
        let items = list["items"].as_array().context("a list without items")?;
        stream::iter(items)
            .map(|item| async move {
                let metadata = &item["metadata"];
                let text = |key: &str| metadata[key].as_str().unwrap_or_default();
                let (api, plural) = path.rsplit_once('/').unwrap_or_default();
                let uri = format!(
                    "/{api}/namespaces/{}/{plural}/{}/status",
                    text("namespace"),
                    text("name")
                );
                let replicas = item["spec"]["replicas"].as_i64().unwrap_or(1);
                let status = json!({"status": {
                    "observedGeneration": metadata["generation"],
                    "replicas": replicas,
                    "updatedReplicas": replicas,
                    "readyReplicas": replicas,
                    "availableReplicas": replicas,
                }});
                let request = Request::patch(uri)
                    .header("content-type", "application/merge-patch+json")
                    .body(serde_json::to_vec(&status)?)?;
                self.client.request::<Value>(request).await?;
                anyhow::Ok(())
            })
            .buffer_unordered(CONCURRENCY)
            .try_collect::<()>()
            .await
    }

    async fn get(&self, uri: &str) -> anyhow::Result<Value> {
        Ok(self
            .client
            .request(Request::get(uri).body(Vec::new())?)
            .await?)
    }

    /// Removes the applied objects and pleach's records.
    pub async fn clear(&self) -> anyhow::Result<()> {
        let mut collections = vec![
            "/api/v1/namespaces/pleach-system/configmaps".to_owned(),
            "/apis/pleach.dev/v1alpha1/releases".to_owned(),
        ];
        for number in 0..NAMESPACES {
            let namespace = workload::namespace("bench", number);
            for (api, plural) in self.workload.content.kinds() {
                collections.push(format!("/{api}/namespaces/{namespace}/{plural}"));
            }
        }
        stream::iter(&collections)
            .map(|uri| async move {
                match self.delete(uri).await {
                    // kubectl does not create the CRD of Release.
                    Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
                    other => other.map_err(anyhow::Error::from),
                }
            })
            .buffer_unordered(CONCURRENCY)
            .try_collect::<()>()
            .await?;
        for uri in &collections[2..] {
            let list = self.get(uri).await?;
            let left = list["items"].as_array().map_or(0, Vec::len);
            ensure!(left == 0, "{left} objects of {uri} are left");
        }
        Ok(())
    }

    async fn delete(&self, uri: &str) -> Result<(), kube::Error> {
        let request = Request::delete(uri)
            .header("content-type", "application/json")
            .body(
                br#"{"kind":"DeleteOptions","apiVersion":"v1","propagationPolicy":"Background"}"#
                    .to_vec(),
            )
            .map_err(kube::Error::HttpError)?;
        self.client.request_text(request).await.map(drop)
    }
}

/// Creates a repository with one environment for a cluster.
pub(super) fn repository(cluster: &str) -> anyhow::Result<TestRepo> {
    let header = "apiVersion: pleach.dev/v1alpha1\nkind";
    TestRepo::new([
        ("pleach.yaml", format!("{header}: Repository\nid: bench\n")),
        (
            "environments/bench.yaml",
            format!(
                "{header}: Environment\ncluster: {{id: {cluster}}}\nreleases:\n  - {{bundle: app, version: v1.0.0}}\n"
            ),
        ),
        ("manifests/app/bundle.yaml", format!("{header}: Bundle\n")),
    ])
}
